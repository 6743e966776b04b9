/*
 * See copy.h. The lines to be written are asked for ahead of the stores: what a peer has read or
 * written since is far away, and a core waits for such lines one after the other otherwise (twice
 * as long where the peer reads what it gets).
 */
#include <stdint.h>
#include <string.h>
#include "coll/host/copy.h"
#include "util.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AHEAD 512 /* bytes */

/* Destinations are 64-byte aligned, the source need not be. n is a multiple of 128. d2 may be NULL;
 * stream1, stream2: past the caches. Inlined where these are known. */
#define COPY_LOOP(NAME, TARGET, VECTOR, LOAD, STORE, STREAM) \
	__attribute__((target(TARGET), always_inline)) static inline void NAME( \
		char *d1, char *d2, const char *s, size_t n, int stream1, int stream2) \
	{ \
		for (size_t i = 0; i < n; i += 128) { \
			int more = i + AHEAD + 128 <= n; /* not beyond what is ours to write */ \
			VECTOR v[128 / sizeof(VECTOR)]; \
\
			if (more && !stream1) { \
				__builtin_prefetch(d1 + i + AHEAD, 1); \
				__builtin_prefetch(d1 + i + AHEAD + 64, 1); \
			} \
			if (more && d2 && !stream2) { \
				__builtin_prefetch(d2 + i + AHEAD, 1); \
				__builtin_prefetch(d2 + i + AHEAD + 64, 1); \
			} \
			for (size_t k = 0; k < 128 / sizeof(VECTOR); k++) \
				v[k] = LOAD((const void *)(s + i + k * sizeof(VECTOR))); \
			for (size_t k = 0; k < 128 / sizeof(VECTOR); k++) \
				if (stream1) \
					STREAM((void *)(d1 + i + k * sizeof(VECTOR)), v[k]); \
				else \
					STORE((void *)(d1 + i + k * sizeof(VECTOR)), v[k]); \
			for (size_t k = 0; d2 && k < 128 / sizeof(VECTOR); k++) \
				if (stream2) \
					STREAM((void *)(d2 + i + k * sizeof(VECTOR)), v[k]); \
				else \
					STORE((void *)(d2 + i + k * sizeof(VECTOR)), v[k]); \
		} \
	}

/* The four that are used. */
#define COPY_FUNCTIONS(ISA, TARGET) \
	__attribute__((target(TARGET))) static void ISA##_plain( \
		char *d1, char *d2, const char *s, size_t n) \
	{ \
		(void)d2; \
		ISA##_loop(d1, NULL, s, n, 0, 0); \
	} \
	__attribute__((target(TARGET))) static void ISA##_stream( \
		char *d1, char *d2, const char *s, size_t n) \
	{ \
		(void)d2; \
		ISA##_loop(d1, NULL, s, n, 1, 1); \
	} \
	__attribute__((target(TARGET))) static void ISA##_twice( \
		char *d1, char *d2, const char *s, size_t n) \
	{ \
		ISA##_loop(d1, d2, s, n, 0, 0); \
	} \
	__attribute__((target(TARGET))) static void ISA##_twice_stream( \
		char *d1, char *d2, const char *s, size_t n) \
	{ \
		ISA##_loop(d1, d2, s, n, 0, 1); \
	}

#define AVX512 "avx512f,prfchw"
#define AVX2 "avx2,prfchw"
COPY_LOOP(avx512_loop, AVX512, __m512i, _mm512_loadu_si512, _mm512_store_si512, _mm512_stream_si512)
COPY_FUNCTIONS(avx512, AVX512)
COPY_LOOP(avx2_loop, AVX2, __m256i, _mm256_loadu_si256, _mm256_store_si256, _mm256_stream_si256)
COPY_FUNCTIONS(avx2, AVX2)
COPY_LOOP(sse2_loop, "sse2", __m128i, _mm_loadu_si128, _mm_store_si128, _mm_stream_si128)
COPY_FUNCTIONS(sse2, "sse2")

enum { PLAIN, STREAM, TWICE, TWICE_STREAM };
typedef void lines_fn(char *d1, char *d2, const char *s, size_t n);

static lines_fn *lines(int how)
{
	static lines_fn *const all[3][4] = {
		{avx512_plain, avx512_stream, avx512_twice, avx512_twice_stream},
		{avx2_plain, avx2_stream, avx2_twice, avx2_twice_stream},
		{sse2_plain, sse2_stream, sse2_twice, sse2_twice_stream}};

	if (__builtin_cpu_supports("avx512f"))
		return all[0][how];
	return all[__builtin_cpu_supports("avx2") ? 1 : 2][how];
}

/* d2 NULL, or as far from a line's start as d1. */
static void copy(char *d1, char *d2, const char *s, size_t n, int how)
{
	size_t head = MIN((size_t) - (uintptr_t)d1 & 63, n), body = (n - head) & ~(size_t)127;

	memcpy(d1, s, head);
	if (d2)
		memcpy(d2, s, head);
	if (body)
		lines(how)(d1 + head, d2 ? d2 + head : NULL, s + head, body);
	/* The flag is an ordinary store: without this it could be seen first. */
	if (how == STREAM || how == TWICE_STREAM)
		_mm_sfence();
	memcpy(d1 + head + body, s + head + body, n - head - body);
	if (d2)
		memcpy(d2 + head + body, s + head + body, n - head - body);
}
#else
enum { PLAIN, STREAM, TWICE, TWICE_STREAM };

static void copy(char *d1, char *d2, const char *s, size_t n, int how)
{
	(void)how;
	memcpy(d1, s, n);
	if (d2)
		memcpy(d2, s, n);
}
#endif

#define SMALL 512            /* bytes from which on asking ahead pays */
#define PIECE ((size_t)4096) /* stays in the L1 cache, so the second copy reads from there */

void copy_plain(void *dst, const void *src, size_t n)
{
	if (n < SMALL)
		memcpy(dst, src, n);
	else
		copy(dst, NULL, src, n, PLAIN);
}

void copy_stream(void *dst, const void *src, size_t n)
{
	copy(dst, NULL, src, n, STREAM);
}

void copy_twice(void *own, void *peer, const void *src, size_t n, int stream)
{
	if ((((uintptr_t)own ^ (uintptr_t)peer) & 63) == 0) {
		copy(own, peer, src, n, stream ? TWICE_STREAM : TWICE);
		return;
	}
	for (size_t i = 0; i < n; i += PIECE) {
		size_t k = MIN(PIECE, n - i);

		copy_plain((char *)own + i, (const char *)src + i, k);
		(stream ? copy_stream : copy_plain)((char *)peer + i, (const char *)src + i, k);
	}
}
