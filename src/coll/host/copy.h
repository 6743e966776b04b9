/*
 * Copies of the host kernels. Streaming stores bypass the caches: better once what a step touches
 * is larger than they are, worse before. They are ordered before whatever the calling thread stores
 * after the copy returns.
 */
#ifndef HOST_COPY_H
#define HOST_COPY_H

#include <stddef.h>

/* Bytes that one call touches on a node from which on streaming wins (measured: docs/design.md). */
#define COPY_STREAM_FROM ((size_t)8 << 20)

void copy_plain(void *dst, const void *src, size_t n);
void copy_stream(void *dst, const void *src, size_t n);
/* One read, two writes. stream: the peer's past the caches; the own one, which the caller goes on
 * to use, is not (a tenth faster than both from 4 MiB on). */
void copy_twice(void *own, void *peer, const void *src, size_t n, int stream);
/* The lines that the caller will write next, and that a peer has read since: they come meanwhile.
 */
static inline void copy_ask(void *p, size_t n)
{
	for (size_t i = 0; i < n; i += 64) {
#if defined(__x86_64__) /* the builtin asks for writing only where compilers are told of a CPU */
		__asm__ volatile("prefetchw %0" ::"m"(((char *)p)[i]));
#else
		__builtin_prefetch((char *)p + i, 1);
#endif
	}
}

#endif
