/* The loops of a reduction, once per instruction set: what reduce.c builds on. */
#ifndef HOST_REDUCE_ISA_H
#define HOST_REDUCE_ISA_H

#include <stddef.h>
#include <stdint.h>
#include "symccl.h"

#define REDUCE_OPS 4     /* sum, prod, max, min, by their symcclRedOp_t */
#define REDUCE_FAN_MAX 8 /* most sources of one loop */

/* Where results go: to `at` bytes beyond each of dst[0..ndst). stream: by non-temporal stores; then
 * those addresses are multiples of 64. ahead: ask for the lines first. */
struct reduce_sink {
	void *const *dst;
	size_t at;
	int ndst, stream, ahead;
};

typedef void reduce_combine_fn(const struct reduce_sink *to, const void *const *src, size_t count);

/* Destinations may be sources, exactly; nothing else need be aligned. Any NaN that `combine`,
 * `round` or `divide` stores is the type's one. */
struct reduce_isa {
	const char *name;
	/* By type, operator and number of sources (2, 3, 4, 8): the tree of them, rounded to the
	 * type. NULL where there is none: other numbers, and the fp8 types. */
	reduce_combine_fn *combine[symcclNumTypes][REDUCE_OPS][REDUCE_FAN_MAX + 1];
	/* Narrow floating types: to fp32. */
	void (*widen[symcclNumTypes])(void *dst, const void *src, size_t count);
	/* Floating types: from the accumulator's type, rounded, NaN made canonical. */
	void (*round[symcclNumTypes])(void *dst, const void *src, size_t count);
	/* Types that are accumulated as they are; the narrow floating ones are not. */
	void (*scale[symcclNumTypes])(void *dst, const void *src, size_t count, uint64_t factor);
	void (*divide[symcclNumTypes])(void *dst, const void *src, size_t count, uint32_t by);
	/* Non-temporal stores. dst is 64-byte aligned, bytes a multiple of 64. */
	void (*stream)(void *dst, const void *src, size_t bytes);
};

extern const struct reduce_isa reduce_plain;
#if defined(__x86_64__)
extern const struct reduce_isa reduce_avx2, reduce_avx512;
#endif

#endif
