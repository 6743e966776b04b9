/* abi.def as numbers, under whichever header was included before. */
#ifndef ABI_H
#define ABI_H

#include <stddef.h>

struct abi_row {
	const char *what;
	long long value;
};
#define SIZE(type) {"sizeof " #type, (long long)sizeof(type)},
#define OFFSET(type, member) {#type "." #member, (long long)offsetof(type, member)},
#define VALUE(constant) {#constant, (long long)(constant)},
static const struct abi_row abi_rows[] = {
#include "abi.def"
};
#undef SIZE
#undef OFFSET
#undef VALUE

#endif
