/*
 * Who makes a call together: one thread, a warp, or a CTA. All threads of a scope make the same
 * calls with the same arguments. Included by symccl_device.h.
 */
#include "names.h"
#ifndef SYMCCL_DEVICE_COOP_H
#define SYMCCL_DEVICE_COOP_H

#include <string.h>
#include "lane.h"

enum { SYMCCL_DEV_SCOPE_THREAD, SYMCCL_DEV_SCOPE_WARP, SYMCCL_DEV_SCOPE_CTA };

typedef struct {
	int scope;
	uint32_t thread, width; /* the caller is number `thread` of `width` */
} symcclDevCoop_t;

DEV symcclDevCoop_t coop_of(int scope, uint32_t thread, uint32_t width)
{
	symcclDevCoop_t c;

	c.scope = scope;
	c.thread = thread;
	c.width = width;
	return c;
}
/* This thread alone. */
DEV symcclDevCoop_t symcclDevThread(void)
{
	return coop_of(SYMCCL_DEV_SCOPE_THREAD, 0, 1);
}

#ifdef __CUDACC__
DEV uint32_t coop_rank(void)
{
	return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
/* This thread's warp, all 32 lanes. */
DEV symcclDevCoop_t symcclDevWarp(void)
{
	return coop_of(SYMCCL_DEV_SCOPE_WARP, coop_rank() & 31, 32);
}
/* All threads of this CTA. */
DEV symcclDevCoop_t symcclDevCta(void)
{
	return coop_of(SYMCCL_DEV_SCOPE_CTA, coop_rank(), blockDim.x * blockDim.y * blockDim.z);
}
DEV void coop_sync(symcclDevCoop_t c)
{
	if (c.scope == SYMCCL_DEV_SCOPE_CTA)
		cta_sync();
	else if (c.scope == SYMCCL_DEV_SCOPE_WARP)
		__syncwarp();
}
/* The same; nonzero to all when v is nonzero in one. */
DEV int coop_sync_or(symcclDevCoop_t c, int v)
{
	if (c.scope == SYMCCL_DEV_SCOPE_CTA)
		return cta_sync_or(v);
	if (c.scope == SYMCCL_DEV_SCOPE_WARP) {
		__syncwarp();
		return __any_sync(0xffffffffu, v);
	}
	return v;
}
#else
DEV symcclDevCoop_t symcclDevWarp(void)
{
	return coop_of(SYMCCL_DEV_SCOPE_WARP, 0, 1);
}
DEV symcclDevCoop_t symcclDevCta(void)
{
#ifdef DEV_CTA_THREADS
	return coop_of(SYMCCL_DEV_SCOPE_CTA, emulate_thread(), DEV_CTA_THREADS);
#else
	return coop_of(SYMCCL_DEV_SCOPE_CTA, 0, 1);
#endif
}
DEV void coop_sync(symcclDevCoop_t c)
{
	if (c.scope == SYMCCL_DEV_SCOPE_CTA)
		cta_sync();
}
DEV int coop_sync_or(symcclDevCoop_t c, int v)
{
	return c.scope == SYMCCL_DEV_SCOPE_CTA ? cta_sync_or(v) : v;
}
#endif

/* This thread's share of copying n bytes; the ranges do not overlap. */
DEV void coop_copy(symcclDevCoop_t c, char *to, const char *from, uint64_t n)
{
#ifdef __CUDACC__
	uint64_t skew = ((uintptr_t)to | (uintptr_t)from) & 15, done = 0;

	if (skew == 0) {
		const uint64_t vecs = n / 16;

		done = vecs * 16;
		DEV_LOOP
		for (uint64_t i = c.thread; i < vecs; i += 4 * (uint64_t)c.width) {
			uint4 v[4];

#pragma unroll
			for (int u = 0; u < 4; u++)
				if (i + u * (uint64_t)c.width < vecs)
					v[u] = ((const uint4 *)from)[i + u * (uint64_t)c.width];
#pragma unroll
			for (int u = 0; u < 4; u++)
				if (i + u * (uint64_t)c.width < vecs)
					((uint4 *)to)[i + u * (uint64_t)c.width] = v[u];
		}
	} else if ((skew & 3) == 0) {
		done = n / 4 * 4;
		for (uint64_t i = c.thread; i < n / 4; i += c.width)
			((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
	}
	DEV_LOOP
	for (uint64_t i = done + c.thread; i < n; i += c.width)
		to[i] = from[i];
#else
	uint64_t part = (n + c.width - 1) / c.width, at = part * c.thread;

	if (at < n)
		memcpy(to + at, from + at, part < n - at ? part : n - at);
#endif
}

#endif
