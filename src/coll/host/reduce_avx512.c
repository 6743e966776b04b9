/* AVX-512 as servers have had it since Skylake: F, BW, VL, DQ. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>
#include "coll/host/reduce_isa.h"

#ifdef __clang__
#pragma clang attribute push( \
	__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prfchw"))), apply_to = function)
#else
#pragma GCC push_options
/* Vectors first, then complete unrolling: -O3 unrolls short loops first. */
#pragma GCC optimize("O2,tree-vectorize,vect-cost-model=dynamic,peel-loops")
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,prfchw,prefer-vector-width=512")
#endif

static inline void store_lines(void *dst, const void *src, size_t bytes)
{
	const __m512i *s = src;
	__m512i *d = dst;

	for (size_t i = 0; i < bytes / sizeof(*d); i++)
		_mm512_stream_si512(d + i, _mm512_loadu_si512(s + i));
}

#define LANE __m512i
#define CHUNK 128
#define PARTS
static inline __mmask64 first_bytes(size_t n)
{
	return n < 64 ? ((__mmask64)1 << n) - 1 : ~(__mmask64)0;
}
static inline void part_load(void *to, const void *from, size_t bytes)
{
	const char *s = from;
	__mmask64 rest = bytes > 64 ? first_bytes(bytes - 64) : 0;

	_mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(first_bytes(bytes), s));
	_mm512_storeu_si512((char *)to + 64, _mm512_maskz_loadu_epi8(rest, s + 64));
}
static inline void part_store(void *to, const void *from, size_t bytes)
{
	const char *s = from;
	char *d = to;

	_mm512_mask_storeu_epi8(d, first_bytes(bytes), _mm512_loadu_si512(s));
	if (bytes > 64)
		_mm512_mask_storeu_epi8(
			d + 64, first_bytes(bytes - 64), _mm512_loadu_si512(s + 64));
}
#define WIDE 16
static inline __m512 f32_load(const void *p)
{
	return _mm512_loadu_ps(p);
}
static inline void f32_store(void *p, __m512 v)
{
	_mm512_storeu_ps(p, v);
}
static inline __m512 f16_load(const void *p)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
static inline void f16_store(void *p, __m512 v)
{
	__m256i h = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
	__mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);

	_mm256_storeu_si256(p, _mm256_mask_set1_epi16(h, nan, 0x7e00));
}
static inline __m512 wide_min(__m512 a, __m512 b)
{
	return _mm512_or_ps(_mm512_min_ps(a, b), _mm512_min_ps(b, a));
}
static inline __m512 wide_max(__m512 a, __m512 b)
{
	__m512 m = _mm512_and_ps(_mm512_max_ps(a, b), _mm512_max_ps(b, a));

	return _mm512_mask_add_ps(m, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q), a, b);
}

#define ISA reduce_avx512
#define ISA_NAME "avx512"
#include "coll/host/reduce_loops.inc"

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int reduce_avx512_is_for_x86;
#endif
