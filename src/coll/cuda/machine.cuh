/*
 * What the kernels ask of the machine beyond device/lane.h: memory accesses of given widths, exact
 * float arithmetic, conversions. Two halves: a GPU, and threads of a CPU, on which the tests run
 * the same kernels (tests/emulate.h), CTA by CTA, with few threads each.
 */
#ifndef MACHINE_CUH
#define MACHINE_CUH

#include "coll_abi.h"
#include "device/lane.h"
#include "device/types.h"

#ifdef __CUDACC__

#define KERNEL_OF(type, name) \
	extern "C" __global__ void __launch_bounds__(CUDA_THREADS_MAX) \
		name(const __grid_constant__ struct type args)
#define KERNEL(name) KERNEL_OF(cuda_args, name)
#define INL __device__ __forceinline__ /* of a member */
#define CTA_SHARED(type, name, n) __shared__ type name[n]

DEV uint32_t cta_id()
{
	return blockIdx.x;
}
DEV uint32_t cta_count()
{
	return gridDim.x;
}
DEV uint32_t cta_thread()
{
	return threadIdx.x;
}
DEV uint32_t cta_threads()
{
	return blockDim.x;
}
/* A warp: who waits together. All of its lanes call warp_sync, warp_any. */
DEV uint32_t warp_id()
{
	return (blockIdx.x * blockDim.x + threadIdx.x) / 32;
}
DEV uint32_t warp_count()
{
	return gridDim.x * blockDim.x / 32;
}
DEV uint32_t warp_lane()
{
	return threadIdx.x % 32;
}
DEV uint32_t warp_lanes()
{
	return 32;
}
DEV void warp_sync()
{
	__syncwarp();
}
DEV int warp_any(int v)
{
	return __any_sync(~0u, v);
}
/* Nothing that needs these moves before here: what was loaded earlier stays in flight together. */
DEV void settle(struct pair64 &v)
{
	asm volatile("" : "+l"(v.lo), "+l"(v.hi)::"memory");
}
DEV uint32_t lowest_bit(uint32_t v)
{
	return __ffs(v) - 1;
}
DEV uint32_t shift_right(uint32_t lo, uint32_t hi, uint32_t n) /* n < 32 */
{
	return __funnelshift_r(lo, hi, n);
}

DEV uint64_t load64(uint64_t p)
{
	uint64_t v;

	asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}
/* 0 when not. Predicated: several in a row are in flight together. */
DEV uint64_t load64_if(int want, uint64_t p)
{
	uint64_t v = 0;

	asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.u64 %0, [%1]; }"
		     : "+l"(v)
		     : "l"(p), "r"(want)
		     : "memory");
	return v;
}
DEV struct pair64 load_relaxed_pair_if(int want, const void *p)
{
	struct pair64 v = {0, 0};

	asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0;"
		     " @p ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2]; }"
		     : "+l"(v.lo), "+l"(v.hi)
		     : "l"(p), "r"(want)
		     : "memory");
	return v;
}
DEV uint32_t load32(uint64_t p)
{
	uint32_t v;

	asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
DEV uint32_t load16(uint64_t p)
{
	uint32_t v;

	asm volatile("ld.global.u16 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
DEV uint32_t load8(uint64_t p)
{
	uint32_t v;

	asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
/* Read once: not into the near cache. */
DEV struct pair64 load128(uint64_t p)
{
	struct pair64 v;

	asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];"
		     : "=l"(v.lo), "=l"(v.hi)
		     : "l"(p)
		     : "memory");
	return v;
}
DEV void store128(uint64_t p, struct pair64 v)
{
	asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v.lo), "l"(v.hi) : "memory");
}
/* The same for what is touched once: it makes room first in the far cache, for what is not. */
DEV uint64_t once_policy()
{
	uint64_t policy;

	asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
	return policy;
}
DEV struct pair64 load128_once(uint64_t p)
{
	struct pair64 v;

	asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v2.u64 {%0, %1}, [%2], %3;"
		     : "=l"(v.lo), "=l"(v.hi)
		     : "l"(p), "l"(once_policy())
		     : "memory");
	return v;
}
DEV void store128_once(uint64_t p, struct pair64 v)
{
	asm volatile("st.global.L2::cache_hint.v2.u64 [%0], {%1, %2}, %3;" ::"l"(p), "l"(v.lo),
		     "l"(v.hi), "l"(once_policy())
		     : "memory");
}
DEV void store64(uint64_t p, uint64_t v)
{
	asm volatile("st.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
DEV void store32(uint64_t p, uint32_t v)
{
	asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DEV void store16(uint64_t p, uint32_t v)
{
	asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DEV void store8(uint64_t p, uint32_t v)
{
	asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

DEV float add_exact(float a, float b)
{
	return __fadd_rn(a, b);
}
DEV float mul_exact(float a, float b)
{
	return __fmul_rn(a, b);
}
DEV float div_exact(float a, float b)
{
	return __fdiv_rn(a, b);
}
DEV double add_exact(double a, double b)
{
	return __dadd_rn(a, b);
}
DEV double mul_exact(double a, double b)
{
	return __dmul_rn(a, b);
}
DEV double div_exact(double a, double b)
{
	return __ddiv_rn(a, b);
}
/* IEEE minimum: NaN wins, -0 < +0. */
DEV float least_of(float a, float b)
{
	float m;

	asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
	return m;
}

/* What types.h computes, by one instruction. */
DEV float f16_widen_fast(uint32_t v)
{
	float a;

	asm("cvt.f32.f16 %0, %1;" : "=f"(a) : "h"((uint16_t)v));
	return a;
}
DEV uint32_t f16_narrow_fast(float a)
{
	uint16_t v;

	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(v) : "f"(a));
	return a != a ? F16_NAN : v;
}
DEV uint32_t bf16_narrow_fast(float a)
{
	uint16_t v;

	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(v) : "f"(a));
	return a != a ? BF16_NAN : v;
}

#else /* threads of a CPU */

#define INL inline
#define CTA_SHARED(type, name, n) type *name = (type *)emulate_shared()

uint32_t emulate_cta(), emulate_ctas(), emulate_thread();
void *emulate_shared();

DEV uint32_t cta_id()
{
	return emulate_cta();
}
DEV uint32_t cta_count()
{
	return emulate_ctas();
}
DEV uint32_t cta_thread()
{
	return emulate_thread();
}
DEV uint32_t cta_threads()
{
	return DEV_CTA_THREADS;
}
/* A warp is a CTA. */
DEV uint32_t warp_id()
{
	return emulate_cta();
}
DEV uint32_t warp_count()
{
	return emulate_ctas();
}
DEV uint32_t warp_lane()
{
	return emulate_thread();
}
DEV uint32_t warp_lanes()
{
	return DEV_CTA_THREADS;
}
DEV void warp_sync()
{
	emulate_sync();
}
DEV int warp_any(int v)
{
	return emulate_sync_or(v);
}
DEV void settle(struct pair64 &v)
{
	(void)v;
}
DEV uint32_t lowest_bit(uint32_t v)
{
	return (uint32_t)__builtin_ctz(v);
}
DEV uint32_t shift_right(uint32_t lo, uint32_t hi, uint32_t n)
{
	return (uint32_t)(((uint64_t)hi << 32 | lo) >> n);
}
template <class V> DEV V load_as(uint64_t p)
{
	return *(const volatile V *)p; /* misaligned: the sanitizer says so */
}
DEV uint64_t load64(uint64_t p)
{
	return load_as<uint64_t>(p);
}
DEV uint64_t load64_if(int want, uint64_t p)
{
	return want ? load64(p) : 0;
}
DEV struct pair64 load_relaxed_pair_if(int want, const void *p)
{
	struct pair64 none = {0, 0};

	return want ? load_relaxed_pair(p) : none;
}
DEV uint32_t load32(uint64_t p)
{
	return load_as<uint32_t>(p);
}
DEV uint32_t load16(uint64_t p)
{
	return load_as<uint16_t>(p);
}
DEV uint32_t load8(uint64_t p)
{
	return load_as<uint8_t>(p);
}
DEV struct pair64 load128(uint64_t p)
{
	struct pair64 v;

	if (p & 15)
		__builtin_trap();
	v.lo = load64(p);
	v.hi = load64(p + 8);
	return v;
}
DEV void store64(uint64_t p, uint64_t v)
{
	*(volatile uint64_t *)p = v;
}
DEV void store128(uint64_t p, struct pair64 v)
{
	if (p & 15)
		__builtin_trap();
	store64(p, v.lo);
	store64(p + 8, v.hi);
}
#define load128_once load128
#define store128_once store128
DEV void store32(uint64_t p, uint32_t v)
{
	*(volatile uint32_t *)p = v;
}
DEV void store16(uint64_t p, uint32_t v)
{
	*(volatile uint16_t *)p = (uint16_t)v;
}
DEV void store8(uint64_t p, uint32_t v)
{
	*(volatile uint8_t *)p = (uint8_t)v;
}

template <class A> DEV A add_exact(A a, A b)
{
	return a + b;
}
template <class A> DEV A mul_exact(A a, A b)
{
	return a * b;
}
template <class A> DEV A div_exact(A a, A b)
{
	return a / b;
}
DEV float least_of(float a, float b)
{
	if (a != a || b != b)
		return a + b;
	if (a == b)
		return f32_of_bits(f32_bits(a) | f32_bits(b));
	return a < b ? a : b;
}
#define f16_widen_fast f16_widen
#define f16_narrow_fast f16_narrow
#define bf16_narrow_fast bf16_narrow
template <class A, class B> DEV A min(A a, B b)
{
	return a < (A)b ? a : (A)b;
}
template <class A, class B> DEV A max(A a, B b)
{
	return a > (A)b ? a : (A)b;
}
#endif

#endif
