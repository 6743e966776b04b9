/* AVX2 and F16C. No FMA, so nothing can be contracted. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>
#include "coll/host/reduce_isa.h"

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c,prfchw"))), apply_to = function)
#else
#pragma GCC push_options
/* Vectors first, then complete unrolling: -O3 unrolls short loops first. */
#pragma GCC optimize("O2,tree-vectorize,vect-cost-model=dynamic,peel-loops")
#pragma GCC target("avx2,f16c,prfchw")
#endif

static inline void store_lines(void *dst, const void *src, size_t bytes)
{
	const __m256i *s = src;
	__m256i *d = dst;

	for (size_t i = 0; i < bytes / sizeof(*d); i++)
		_mm256_stream_si256(d + i, _mm256_loadu_si256(s + i));
}

#define LANE __m256i
#define CHUNK 128
#define WIDE 8
static inline __m256 f32_load(const void *p)
{
	return _mm256_loadu_ps(p);
}
static inline void f32_store(void *p, __m256 v)
{
	_mm256_storeu_ps(p, v);
}
static inline __m256 f16_load(const void *p)
{
	return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
static inline void f16_store(void *p, __m256 v)
{
	__m128i h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
	__m256i wide = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
	__m128i nan =
		_mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));

	_mm_storeu_si128(p, _mm_blendv_epi8(h, _mm_set1_epi16(0x7e00), nan));
}
static inline __m256 wide_min(__m256 a, __m256 b)
{
	return _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));
}
static inline __m256 wide_max(__m256 a, __m256 b)
{
	return _mm256_or_ps(_mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a)),
		_mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}

#define ISA reduce_avx2
#define ISA_NAME "avx2"
#include "coll/host/reduce_loops.inc"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int reduce_avx2_is_for_x86;
#endif
