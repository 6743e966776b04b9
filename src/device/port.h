/*
 * What the protocol headers need of a machine: atomics and fences, the same names under gcc, clang
 * and nvcc. Memory order is always spelled out; nothing relies on x86's.
 */
#include "names.h"
#ifndef SYMCCL_DEVICE_PORT_H
#define SYMCCL_DEVICE_PORT_H

#include <stdint.h>

#ifdef __CUDACC__
#include "port_cuda.cuh"
#else
#define SYMCCL_DEV static inline

DEV uint64_t load_relaxed64(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}
DEV uint64_t load_acquire64(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
DEV void store_relaxed64(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}
DEV void store_release64(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}
/* To say that all which this rank did before this kernel is visible. */
DEV void store_opening64(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}
DEV uint32_t load_relaxed32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}
DEV uint32_t load_acquire32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
DEV void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#endif
}
#endif

#endif
