/* What every machine has: on x86-64 the compiler's SSE2. */
#include <string.h>
#include "coll/host/reduce_isa.h"

#ifndef __clang__
/* Vectors first, then complete unrolling: -O3 unrolls short loops first. */
#pragma GCC optimize("O2,tree-vectorize,vect-cost-model=dynamic,peel-loops")
#endif

#if defined(__x86_64__)
#include <emmintrin.h>

static inline void store_lines(void *dst, const void *src, size_t bytes)
{
	const __m128i *s = src;
	__m128i *d = dst;

	for (size_t i = 0; i < bytes / sizeof(*d); i++)
		_mm_stream_si128(d + i, _mm_loadu_si128(s + i));
}
#else
static inline void store_lines(void *dst, const void *src, size_t bytes)
{
	memcpy(dst, src, bytes);
}
#endif

typedef uint64_t lane __attribute__((vector_size(16), may_alias));
#define LANE lane
#define CHUNK 64
#define ISA reduce_plain
#define ISA_NAME "plain"
#include "coll/host/reduce_loops.inc"
