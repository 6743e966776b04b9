#include <stdint.h>
#include <string.h>
#include "coll/host/copy.h"
#include "util.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define PIECE ((size_t)4096) /* fits the L1 cache, so the second write reads from there */

__attribute__((target("avx512f"))) static size_t stream_avx512(char *d, const char *s, size_t n)
{
	size_t i = 0;

	for (; i + 256 <= n; i += 256) {
		__m512i a = _mm512_loadu_si512(s + i), b = _mm512_loadu_si512(s + i + 64);
		__m512i c = _mm512_loadu_si512(s + i + 128), e = _mm512_loadu_si512(s + i + 192);

		_mm512_stream_si512((void *)(d + i), a);
		_mm512_stream_si512((void *)(d + i + 64), b);
		_mm512_stream_si512((void *)(d + i + 128), c);
		_mm512_stream_si512((void *)(d + i + 192), e);
	}
	return i;
}

__attribute__((target("avx2"))) static size_t stream_avx2(char *d, const char *s, size_t n)
{
	size_t i = 0;

	for (; i + 128 <= n; i += 128)
		for (size_t k = 0; k < 128; k += 32)
			_mm256_stream_si256((__m256i *)(d + i + k),
				_mm256_loadu_si256((const __m256i *)(s + i + k)));
	return i;
}

static size_t stream_sse2(char *d, const char *s, size_t n)
{
	size_t i = 0;

	for (; i + 64 <= n; i += 64)
		for (size_t k = 0; k < 64; k += 16)
			_mm_stream_si128((__m128i *)(d + i + k),
				_mm_loadu_si128((const __m128i *)(s + i + k)));
	return i;
}

void copy_stream(void *dst, const void *src, size_t n)
{
	char *d = dst;
	const char *s = src;
	size_t head = (size_t) - (uintptr_t)d & 63, i;

	if (n < PIECE) {
		memcpy(d, s, n);
		return;
	}
	memcpy(d, s, head);
	d += head;
	s += head;
	n -= head;
	if (__builtin_cpu_supports("avx512f"))
		i = stream_avx512(d, s, n);
	else if (__builtin_cpu_supports("avx2"))
		i = stream_avx2(d, s, n);
	else
		i = stream_sse2(d, s, n);
	/* The flag is an ordinary store: without this it could be seen first. */
	_mm_sfence();
	memcpy(d + i, s + i, n - i);
}
#else
#define PIECE ((size_t)4096)

void copy_stream(void *dst, const void *src, size_t n)
{
	memcpy(dst, src, n);
}
#endif

void copy_plain(void *dst, const void *src, size_t n)
{
	memcpy(dst, src, n);
}

void copy_twice(void *dst1, void *dst2, const void *src, size_t n, int stream)
{
	void (*copy)(void *, const void *, size_t) = stream ? copy_stream : copy_plain;

	/* By pieces, the second copy reads what the first has brought into the cache. */
	for (size_t i = 0; i < n; i += PIECE) {
		size_t k = MIN(PIECE, n - i);

		copy((char *)dst1 + i, (const char *)src + i, k);
		copy((char *)dst2 + i, (const char *)src + i, k);
	}
}
