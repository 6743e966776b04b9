/*
 * The CUDA half of port.h: the same names on a GPU. Scope is always the system (other GPUs and the
 * host) unless the name says otherwise.
 */
#include "names.h"
#ifndef SYMCCL_DEVICE_PORT_CUDA_H
#define SYMCCL_DEVICE_PORT_CUDA_H

#include <stdint.h>

#define SYMCCL_DEV static __device__ __forceinline__
#define SYMCCL_DEV_COLD static __device__ __noinline__ /* keeps what hardly runs out of the way */
#define SYMCCL_DEV_LOOP _Pragma("unroll 1")            /* likewise */
#define SYMCCL_DEV_UNROLL _Pragma("unroll")

DEV uint64_t load_relaxed64(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}
DEV uint64_t load_acquire64(const uint64_t *p)
{
	uint64_t v;

	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}
DEV void store_relaxed64(uint64_t *p, uint64_t v)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
DEV void store_release64(uint64_t *p, uint64_t v)
{
	asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/* To say that all which this rank did before this kernel is visible: since those kernels are
 * complete (stream order, or the wait for the grid before), it is, to other GPUs too; a release
 * would only cost half a microsecond. */
DEV void store_opening64(uint64_t *p, uint64_t v)
{
	store_relaxed64(p, v);
}
DEV uint32_t load_relaxed32(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
DEV uint32_t load_acquire32(const uint32_t *p)
{
	uint32_t v;

	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
DEV void cpu_relax(void)
{
}

#endif
