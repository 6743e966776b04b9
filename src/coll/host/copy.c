/* See copy.h. Each loop returns how many bytes it did, a multiple of its step. */
#include <stdint.h>
#include <string.h>
#include "coll/host/copy.h"
#include "util.h"

#define PIECE ((size_t)4096) /* stays in the L1 cache, so the second copy reads from there */

#if defined(__x86_64__)
#include <immintrin.h>

/* d2 may be NULL: one destination. Destinations are 64-byte aligned, the source need not be. */
typedef size_t stream_fn(char *d1, char *d2, const char *s, size_t n);

__attribute__((target("avx512f"))) static size_t stream_avx512(
	char *d1, char *d2, const char *s, size_t n)
{
	size_t i = 0;

	for (; i + 256 <= n; i += 256) {
		__m512i a = _mm512_loadu_si512(s + i), b = _mm512_loadu_si512(s + i + 64);
		__m512i c = _mm512_loadu_si512(s + i + 128), e = _mm512_loadu_si512(s + i + 192);

		_mm512_stream_si512((void *)(d1 + i), a);
		_mm512_stream_si512((void *)(d1 + i + 64), b);
		_mm512_stream_si512((void *)(d1 + i + 128), c);
		_mm512_stream_si512((void *)(d1 + i + 192), e);
		if (d2 == NULL)
			continue;
		_mm512_stream_si512((void *)(d2 + i), a);
		_mm512_stream_si512((void *)(d2 + i + 64), b);
		_mm512_stream_si512((void *)(d2 + i + 128), c);
		_mm512_stream_si512((void *)(d2 + i + 192), e);
	}
	return i;
}

__attribute__((target("avx2"))) static size_t stream_avx2(
	char *d1, char *d2, const char *s, size_t n)
{
	size_t i = 0;

	for (; i + 64 <= n; i += 64) {
		__m256i a = _mm256_loadu_si256((const __m256i *)(s + i));
		__m256i b = _mm256_loadu_si256((const __m256i *)(s + i + 32));

		_mm256_stream_si256((__m256i *)(d1 + i), a);
		_mm256_stream_si256((__m256i *)(d1 + i + 32), b);
		if (d2 == NULL)
			continue;
		_mm256_stream_si256((__m256i *)(d2 + i), a);
		_mm256_stream_si256((__m256i *)(d2 + i + 32), b);
	}
	return i;
}

static size_t stream_sse2(char *d1, char *d2, const char *s, size_t n)
{
	size_t i = 0;

	for (; i + 16 <= n; i += 16) {
		__m128i a = _mm_loadu_si128((const __m128i *)(s + i));

		_mm_stream_si128((__m128i *)(d1 + i), a);
		if (d2 != NULL)
			_mm_stream_si128((__m128i *)(d2 + i), a);
	}
	return i;
}

static stream_fn *stream_loop(void)
{
	if (__builtin_cpu_supports("avx512f"))
		return stream_avx512;
	return __builtin_cpu_supports("avx2") ? stream_avx2 : stream_sse2;
}

/* d2 NULL, or as far from a line's start as d1. */
static void stream(char *d1, char *d2, const char *s, size_t n)
{
	size_t head = MIN((size_t) - (uintptr_t)d1 & 63, n), i;

	memcpy(d1, s, head);
	if (d2 != NULL)
		memcpy(d2, s, head);
	i = head + stream_loop()(d1 + head, d2 ? d2 + head : NULL, s + head, n - head);
	/* The flag is an ordinary store: without this it could be seen first. */
	_mm_sfence();
	memcpy(d1 + i, s + i, n - i);
	if (d2 != NULL)
		memcpy(d2 + i, s + i, n - i);
}
#else
static void stream(char *d1, char *d2, const char *s, size_t n)
{
	memcpy(d1, s, n);
	if (d2 != NULL)
		memcpy(d2, s, n);
}
#endif

void copy_plain(void *dst, const void *src, size_t n)
{
	memcpy(dst, src, n);
}

void copy_stream(void *dst, const void *src, size_t n)
{
	stream(dst, NULL, src, n);
}

void copy_twice(void *dst1, void *dst2, const void *src, size_t n, int streaming)
{
	if (streaming && (((uintptr_t)dst1 ^ (uintptr_t)dst2) & 63) == 0) {
		stream(dst1, dst2, src, n);
		return;
	}
	if (streaming) {
		stream(dst1, NULL, src, n);
		stream(dst2, NULL, src, n);
		return;
	}
	for (size_t i = 0; i < n; i += PIECE) {
		size_t k = MIN(PIECE, n - i);

		memcpy((char *)dst1 + i, (const char *)src + i, k);
		memcpy((char *)dst2 + i, (const char *)src + i, k);
	}
}
