/*
 * More of what the GPU's protocols need, under nvcc and gcc alike: 16-byte packets, the CTA's own
 * barrier, counters shared by the CTAs of one rank, time. On the host a CTA is one thread (width
 * 1).
 */
#include "names.h"
#ifndef SYMCCL_DEVICE_LANE_H
#define SYMCCL_DEVICE_LANE_H

#include <stdint.h>
#include "port.h"

/* Two 64-bit halves that arrive whole, each by itself; the pair need not. */
struct pair64 {
	uint64_t lo, hi;
};

#ifdef __CUDACC__

DEV void store_relaxed_pair(void *p, struct pair64 v)
{
	asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(v.lo), "l"(v.hi)
		     : "memory");
}
DEV struct pair64 load_relaxed_pair(const void *p)
{
	struct pair64 v;

	asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
		     : "=l"(v.lo), "=l"(v.hi)
		     : "l"(p)
		     : "memory");
	return v;
}
DEV void store_relaxed32(uint32_t *p, uint32_t v)
{
	asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DEV void store_release32(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* Among the CTAs of one rank only. No result, so nobody waits for it. */
DEV void add_local64(uint64_t *p, uint64_t v)
{
	asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/* For other ranks' words; everything this thread has seen or done before comes with it. */
DEV void add_release64(uint64_t *p, uint64_t v)
{
	asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
DEV uint32_t exchange_local32(uint32_t *p, uint32_t v)
{
	uint32_t old;

	asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;"
		     : "=r"(old)
		     : "l"(p), "r"(v)
		     : "memory");
	return old;
}
DEV void fence_system(void)
{
	asm volatile("fence.acq_rel.sys;" ::: "memory");
}
DEV void wait_rest(void)
{
}
DEV uint64_t clock_ns(void)
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}
DEV void cta_sync(void)
{
	__syncthreads();
}
/* The same; nonzero to all threads when v is nonzero in one. */
DEV int cta_sync_or(int v)
{
	return __syncthreads_or(v);
}
/* Wait for the grids this one was launched to overlap with; let the next one start. */
DEV void grid_wait(void)
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
}
DEV void grid_trigger(void)
{
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

#else
#include <sched.h>
#include <time.h>

#define SYMCCL_DEV_COLD static inline
#define SYMCCL_DEV_LOOP
#define SYMCCL_DEV_UNROLL

DEV void store_relaxed_pair(void *p, struct pair64 v)
{
	__atomic_store_n((uint64_t *)p, v.lo, __ATOMIC_RELAXED);
	__atomic_store_n((uint64_t *)p + 1, v.hi, __ATOMIC_RELAXED);
}
DEV struct pair64 load_relaxed_pair(const void *p)
{
	struct pair64 v;

	v.lo = __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);
	v.hi = __atomic_load_n((const uint64_t *)p + 1, __ATOMIC_RELAXED);
	return v;
}
DEV void store_relaxed32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}
DEV void store_release32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}
DEV void add_local64(uint64_t *p, uint64_t v)
{
	__atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
DEV void add_release64(uint64_t *p, uint64_t v)
{
	__atomic_fetch_add(p, v, __ATOMIC_RELEASE);
}
DEV uint32_t exchange_local32(uint32_t *p, uint32_t v)
{
	return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);
}
DEV void fence_system(void)
{
#ifndef __SANITIZE_THREAD__ /* gcc's TSan knows no fences */
	__atomic_thread_fence(__ATOMIC_ACQ_REL);
#endif
}
/* Waited for long: let somebody else have this CPU. */
DEV void wait_rest(void)
{
	sched_yield();
}
DEV uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
#ifdef DEV_CTA_THREADS /* tests: a CTA is several threads */
void emulate_sync(void);
int emulate_sync_or(int v);
uint32_t emulate_thread(void);
DEV void cta_sync(void)
{
	emulate_sync();
}
DEV int cta_sync_or(int v)
{
	return emulate_sync_or(v);
}
#else
DEV void cta_sync(void)
{
}
DEV int cta_sync_or(int v)
{
	return v;
}
#endif
DEV void grid_wait(void)
{
}
DEV void grid_trigger(void)
{
}
#endif

#endif
