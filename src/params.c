#define _GNU_SOURCE
#include "params.h"
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "log.h"
#include "util.h"

#define PREFIX "SYMCCL_"
#define PREFIX_LEN (sizeof(PREFIX) - 1)
/* Variables of the test suite begin so; they are no parameters. */
#define TEST_PREFIX "SYMCCL_TEST_"
#define WHY_MAX 192

enum type { INT, SIZE, TIME, STR, ENUM };
static const char *const type_names[] = {"INT", "SIZE", "TIME", "STR", "ENUM"};

struct row {
	const char *name;
	enum type type;
	size_t offset; /* in struct params */
	const char *def;
	long long lo, hi;
	const char *names; /* of an ENUM */
	const char *help;
};

#define BOUNDS_INT(l, h) .lo = (l), .hi = (h)
#define BOUNDS_SIZE(l, h) .lo = (l), .hi = (long long)(h)
#define BOUNDS_TIME(l, h) .lo = (l), .hi = (h)
#define BOUNDS_STR(l, h) .lo = 0
#define BOUNDS_ENUM(l, h) .names = (l)
static const struct row rows[] = {
#define PARAM(field_, name_, type_, def_, lo_, hi_, help_) \
	{.name = PREFIX name_, \
		.type = type_, \
		.offset = offsetof(struct params, field_), \
		.def = (def_), \
		BOUNDS_##type_(lo_, hi_), \
		.help = (help_)},
#include "params.def"
#undef PARAM
};
_Static_assert(ARRAY_LEN(rows) <= 40, "at most 40 variables: make one go before you add one");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int ready; /* atomic */
static struct params current;
static char *copies[ARRAY_LEN(rows)]; /* of STR values that came from the environment */
static char from_env[ARRAY_LEN(rows)];

/* ---- Text to value: pure ------------------------------------------------------------------- */

/* By hand, since strtod takes the locale's decimal comma. */
int number_parse(const char *s, double *v)
{
	double n = 0, scale = 1;
	int digits = 0;

	for (; isdigit((unsigned char)*s); s++, digits++)
		n = n * 10 + (*s - '0');
	if (*s == '.')
		for (s++; isdigit((unsigned char)*s); s++, digits++) {
			scale *= 10;
			n = n * 10 + (*s - '0');
		}
	*v = n / scale;
	return digits > 0 && digits < 300 && *s == 0;
}

static int size_parse(const char *s, long long *v)
{
	static const char suffixes[] = "KMGT";
	unsigned long long n = 0;
	const char *at;
	int shift = 0;

	if (!isdigit((unsigned char)*s))
		return 0;
	for (; isdigit((unsigned char)*s); s++)
		if (__builtin_mul_overflow(n, 10u, &n) ||
			__builtin_add_overflow(n, (unsigned)(*s - '0'), &n))
			return 0;
	if (*s && (at = strchr(suffixes, toupper((unsigned char)*s)))) {
		shift = 10 * (int)(at - suffixes + 1);
		s++;
	}
	*v = (long long)(n << shift);
	return *s == 0 && n <= (unsigned long long)(INT64_MAX >> shift);
}

static int int_parse(const char *s, long long *v)
{
	int negative = *s == '-';

	/* A plain number; a suffix is not one. */
	if (!s[negative] || s[strspn(s + negative, "0123456789") + (size_t)negative] ||
		!size_parse(s + negative, v))
		return 0;
	if (negative)
		*v = -*v;
	return 1;
}

static int enum_parse(const char *names, const char *s)
{
	size_t want = strlen(s);
	int i = 0;

	for (const char *p = names; *p; i++) {
		size_t len = strcspn(p, "|");

		if (len == want && strncasecmp(p, s, len) == 0)
			return i;
		p += len + (p[len] == '|');
	}
	return -1;
}

/* Write the value of text into p; 0, and why not, when it is none. */
static int row_parse(const struct row *r, const char *text, struct params *p, char *why)
{
	void *field = (char *)p + r->offset;
	long long n = 0;
	double t = 0;
	int e;

	switch (r->type) {
	case INT:
	case SIZE:
		if (!(r->type == INT ? int_parse(text, &n) : size_parse(text, &n))) {
			snprintf(why, WHY_MAX, "is not a %s",
				r->type == INT ? "number" : "size (4096, 64K, 2M, 1G)");
			return 0;
		}
		if (n < r->lo || n > r->hi) {
			snprintf(why, WHY_MAX, "is not in %lld..%lld", r->lo, r->hi);
			return 0;
		}
		if (r->type == INT)
			*(long *)field = (long)n;
		else
			*(size_t *)field = (size_t)n;
		return 1;
	case TIME:
		if (!number_parse(text, &t)) {
			snprintf(why, WHY_MAX, "is not a time in seconds (30, 0.5)");
			return 0;
		}
		if (t < (double)r->lo || t > (double)r->hi) {
			snprintf(why, WHY_MAX, "is not in %lld..%lld seconds", r->lo, r->hi);
			return 0;
		}
		*(double *)field = t;
		return 1;
	case ENUM:
		e = enum_parse(r->names, text);
		if (e < 0) {
			snprintf(why, WHY_MAX, "is none of %s", r->names);
			return 0;
		}
		*(int *)field = e;
		return 1;
	case STR:
		*(const char **)field = text;
		return 1;
	}
	return 0;
}

/* ---- The environment ----------------------------------------------------------------------- */

/* Unset and empty are the same. */
static const char *row_env(const struct row *r)
{
	const char *v = getenv(r->name);

	return v && v[0] ? v : NULL;
}

static void parse_all(void)
{
	char why[WHY_MAX];

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct row *r = &rows[i];
		const char *v = row_env(r);

		free(copies[i]);
		copies[i] = NULL;
		row_parse(r, r->def, &current, why);
		if (v && r->type == STR)
			v = copies[i] = strdup(v); /* setenv may free the original */
		from_env[i] = v && row_parse(r, v, &current, why);
	}
}

static size_t edit_distance(const char *a, const char *b)
{
	size_t row[64], la = strlen(a), lb = strlen(b);

	if (la >= ARRAY_LEN(row) || lb >= ARRAY_LEN(row))
		return SIZE_MAX;
	for (size_t j = 0; j <= lb; j++)
		row[j] = j;
	for (size_t i = 1; i <= la; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= lb; j++) {
			size_t change = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			row[j] = MIN(change, MIN(row[j], row[j - 1]) + 1);
		}
	}
	return row[lb];
}

static void report_unknown(const char *name)
{
	const struct row *nearest = &rows[0];
	size_t least = SIZE_MAX;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		size_t d = edit_distance(name + PREFIX_LEN, rows[i].name + PREFIX_LEN);

		if (d < least) {
			least = d;
			nearest = &rows[i];
		}
	}
	if (least <= strlen(name + PREFIX_LEN) / 2)
		log_warn(LOG_PARAM, "%s is not a variable of symccl; do you mean %s?", name,
			nearest->name);
	else
		log_warn(LOG_PARAM, "%s is not a variable of symccl (symccl-info -p lists them)",
			name);
}

static int name_known(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (strcmp(rows[i].name, name) == 0)
			return 1;
	return strncmp(name, TEST_PREFIX, sizeof(TEST_PREFIX) - 1) == 0;
}

/* Say what was wrong; apart from parse_all, because logging needs the parameters. */
static void report(void)
{
	struct params scratch;
	char why[WHY_MAX], name[64];

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const char *v = row_env(&rows[i]);

		if (v && !row_parse(&rows[i], v, &scratch, why))
			log_warn(LOG_PARAM, "%s=%.64s %s; taking the default, %s", rows[i].name, v,
				why, rows[i].def);
	}
	for (char **e = environ; e && *e; e++) {
		size_t len = strcspn(*e, "=");

		if (strncmp(*e, PREFIX, PREFIX_LEN) != 0 || len >= sizeof(name))
			continue;
		memcpy(name, *e, len);
		name[len] = 0;
		if (!name_known(name))
			report_unknown(name);
	}
}

const struct params *params_get(void)
{
	int first = 0;

	if (__builtin_expect(__atomic_load_n(&ready, __ATOMIC_ACQUIRE), 1))
		return &current;
	pthread_mutex_lock(&lock);
	if (!ready) {
		parse_all();
		__atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
		first = 1;
	}
	pthread_mutex_unlock(&lock);
	if (first)
		report();
	return &current;
}

void params_reload(void)
{
	pthread_mutex_lock(&lock);
	__atomic_store_n(&ready, 0, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	log_reset();
	params_get();
}

int params_cache_dir(char *out, size_t room)
{
	const char *dir = secure_getenv("XDG_CACHE_HOME"), *below = "";

	/* The specification says to ignore a relative one. */
	if (dir == NULL || dir[0] != '/') {
		dir = secure_getenv("HOME");
		below = "/.cache";
	}
	return dir != NULL && dir[0] == '/' && snprintf(out, room, "%s%s", dir, below) < (int)room;
}

/* ---- Rows as text -------------------------------------------------------------------------- */

static void size_format(size_t n, char *out, size_t room)
{
	static const char suffixes[] = "\0KMGT";
	int i = 0;

	for (; n && n % 1024 == 0 && i < 4; i++)
		n /= 1024;
	snprintf(out, room, "%zu%.1s", n, suffixes + i);
}

static void value_format(const struct row *r, char *out, size_t room)
{
	const void *field = (const char *)&current + r->offset;
	const char *p;

	switch (r->type) {
	case INT:
		snprintf(out, room, "%ld", *(const long *)field);
		break;
	case SIZE:
		size_format(*(const size_t *)field, out, room);
		break;
	case TIME:
		snprintf(out, room, "%g", *(const double *)field);
		break;
	case STR:
		snprintf(out, room, "%s", *(const char *const *)field);
		break;
	case ENUM:
		p = r->names;
		for (int i = *(const int *)field; i > 0; i--)
			p += strcspn(p, "|") + 1;
		snprintf(out, room, "%.*s", (int)strcspn(p, "|"), p);
		break;
	}
}

/* "1..64", "0..4T", "0..86400", "none|warn|info"; made once. */
static const char *range_text(int i)
{
	static char texts[ARRAY_LEN(rows)][48];
	const struct row *r = &rows[i];
	char hi[24];

	if (r->type == STR)
		return "";
	if (r->type == ENUM)
		return r->names;
	pthread_mutex_lock(&lock);
	if (!texts[i][0]) {
		snprintf(hi, sizeof(hi), "%lld", r->hi);
		if (r->type == SIZE)
			size_format((size_t)r->hi, hi, sizeof(hi));
		snprintf(texts[i], sizeof(texts[i]), "%lld..%s", r->lo, hi);
	}
	pthread_mutex_unlock(&lock);
	return texts[i];
}

int params_row(int i, struct param_row *row)
{
	const struct row *r;

	if (i < 0 || i >= (int)ARRAY_LEN(rows))
		return 0;
	params_get();
	r = &rows[i];
	row->name = r->name;
	row->type = type_names[r->type];
	row->def = r->def;
	row->range = range_text(i);
	row->help = r->help;
	row->set = from_env[i];
	value_format(r, row->value, sizeof(row->value));
	return 1;
}
