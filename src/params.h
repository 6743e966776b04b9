/*
 * Parameters: every SYMCCL_* variable is one row of params.def. Parsed once, at the first
 * params_get(); a bad value is a warning that names the variable and the default is taken.
 */
#ifndef PARAMS_H
#define PARAMS_H

#include <stddef.h>
#include <stdint.h>

/* How a row's value is written and stored. */
#define PARAM_C_INT long         /* 12 */
#define PARAM_C_SIZE size_t      /* 4096, 64K, 2M, 1G (powers of two) */
#define PARAM_C_TIME double      /* seconds: 30, 0.5; 0 = no limit */
#define PARAM_C_STR const char * /* "" when unset */
#define PARAM_C_ENUM int         /* index into the '|'-separated list of names */

struct params {
#define PARAM(field, name, type, def, lo, hi, help) PARAM_C_##type field;
#include "params.def"
#undef PARAM
};

const struct params *params_get(void);

/* A decimal number without sign or exponent, and nothing else; 0 when it is none. */
int number_parse(const char *s, double *v);
/* Where programs of this user keep what can be made again ($XDG_CACHE_HOME, else ~/.cache); 0 when
 * neither variable says. */
int params_cache_dir(char *out, size_t room);

/* One row as text, for symccl-info, the man page and tests. Pointers live as long as the library.
 */
struct param_row {
	const char *name;  /* "SYMCCL_DEBUG" */
	const char *type;  /* "INT", "SIZE", "TIME", "STR", "ENUM" */
	const char *def;   /* default, as written in params.def */
	const char *range; /* "1..64", or the names of an ENUM; "" for STR */
	const char *help;
	char value[128]; /* the value in force */
	int set;         /* 1: came from the environment */
};
/* Fill row i; 0 when there is no such row. */
int params_row(int i, struct param_row *row);
/* Parse the environment again. For tests only: nobody else may be running. */
void params_reload(void);

#endif
