/*
 * What a reduction must give, one element at a time, straight from docs/semantics.md: shares no
 * code with the library and knows no SIMD. Slow.
 */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include <stddef.h>
#include <stdint.h>
#include "symccl.h"

/* The value of an element of a floating type, given its bits; and the bits of the element that a
 * value rounds to. */
double oracle_value(symcclDataType_t type, uint64_t bits);
uint64_t oracle_round(symcclDataType_t type, double value);

/* One element of n ranks. factor: NULL, or of a pre-multiplied sum (op is symcclSum) each rank's.
 * Elements and factors are bits in the low bytes. An average divides by n. */
uint64_t oracle_element(
	symcclDataType_t type, symcclRedOp_t op, const uint64_t *x, int n, const uint64_t *factor);

/* count elements of n ranks' buffers, at any address. dst is not one of them. */
void oracle_reduce(symcclDataType_t type, symcclRedOp_t op, const void *const *src, int n,
	const uint64_t *factor, size_t count, void *dst);

#endif
