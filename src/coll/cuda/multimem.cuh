/*
 * Multicast kernels: the switch reduces what one load reads from all ranks, and copies what one
 * store writes to all of them. Between two barriers, as direct.cuh; a vector of 16 bytes is one
 * access. Elements before and after the aligned part go by the ranks' own addresses: no byte is
 * touched through both in one kernel, except a rank's own part in place: all-gather stores it as it
 * was loaded, reduce-scatter stores what the same thread computed from it.
 *
 * Sums only. In which order the switch adds is its own affair, so the bits may differ from all
 * other kernels' (docs/semantics.md); but a part is reduced once, so all ranks hold the same.
 *
 * PTX ISA, "multimem.ld_reduce", "multimem.st": sm_90 on.
 * On threads of a CPU the ranks' memory is read one by one, which is how the tests see what each
 * rank takes and where it puts it.
 */
#ifndef MULTIMEM_CUH
#define MULTIMEM_CUH

#include "direct.cuh"

/* ---- One vector ---------------------------------------------------------------------------- */

#ifdef __CUDACC__
/* By class of elements (the first argument only tells which). Four registers of two elements each,
 * summed in fp32. */
#define SUM_4(elem, type) \
	DEV struct pair64 multimem_load(elem *, uint64_t p) \
	{ \
		uint32_t a = 0, b = 0, c = 0, d = 0; \
\
		asm volatile("multimem.ld_reduce.relaxed.sys.global.add" type \
			     " {%0, %1, %2, %3}, [%4];" \
			     : "=r"(a), "=r"(b), "=r"(c), "=r"(d) \
			     : "l"(p) \
			     : "memory"); \
		return {a | (uint64_t)b << 32, c | (uint64_t)d << 32}; \
	}
SUM_4(f16, ".acc::f32.v4.f16x2")
SUM_4(bf16, ".acc::f32.v4.bf16x2")
DEV struct pair64 multimem_load(f32 *, uint64_t p)
{
	float v[4] = {0, 0, 0, 0};

	asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
		     : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
		     : "l"(p)
		     : "memory");
	return {f32_bits(v[0]) | (uint64_t)f32_bits(v[1]) << 32,
		f32_bits(v[2]) | (uint64_t)f32_bits(v[3]) << 32};
}
/* There are no vectors of these. */
DEV struct pair64 multimem_load(u32 *, uint64_t p)
{
	uint32_t v[4] = {0, 0, 0, 0};

#pragma unroll
	for (int i = 0; i < 4; i++)
		asm volatile("multimem.ld_reduce.relaxed.sys.global.add.u32 %0, [%1];"
			     : "=r"(v[i])
			     : "l"(p + 4 * i)
			     : "memory");
	return {v[0] | (uint64_t)v[1] << 32, v[2] | (uint64_t)v[3] << 32};
}
DEV struct pair64 multimem_load(u64 *, uint64_t p)
{
	struct pair64 v = {0, 0};

	asm volatile("multimem.ld_reduce.relaxed.sys.global.add.u64 %0, [%1];"
		     : "=l"(v.lo)
		     : "l"(p)
		     : "memory");
	asm volatile("multimem.ld_reduce.relaxed.sys.global.add.u64 %0, [%1];"
		     : "=l"(v.hi)
		     : "l"(p + 8)
		     : "memory");
	return v;
}

template <class T>
DEV struct pair64 multimem_sum(
	const struct sides &s, const struct how<T> &h, uint64_t mc, uint64_t at)
{
	return multimem_load((T *)0, mc + at);
}
DEV void multimem_store(const struct sides &s, uint64_t mc, uint64_t at, struct pair64 v)
{
	asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(mc + at),
		     "f"(f32_of_bits((uint32_t)v.lo)), "f"(f32_of_bits((uint32_t)(v.lo >> 32))),
		     "f"(f32_of_bits((uint32_t)v.hi)), "f"(f32_of_bits((uint32_t)(v.hi >> 32)))
		     : "memory");
}
/* What was stored through the multicast address, for who looks through another. */
DEV void multimem_settle()
{
	asm volatile("fence.proxy.alias;" ::: "memory");
}

#else /* threads of a CPU */

template <class T>
DEV struct pair64 multimem_sum(
	const struct sides &s, const struct how<T> &h, uint64_t mc, uint64_t at)
{
	struct pair64 v;

	if (mc == 0 || ((mc + at) & 15) != 0)
		__builtin_trap();
	v.lo = reduce_at<T, OP_sum, 0>(s, h, at, [](uint64_t p) { return load64(p); });
	v.hi = reduce_at<T, OP_sum, 0>(s, h, at + 8, [](uint64_t p) { return load64(p); });
	return v;
}
DEV void multimem_store(const struct sides &s, uint64_t mc, uint64_t at, struct pair64 v)
{
	if (mc == 0 || ((mc + at) & 15) != 0)
		__builtin_trap();
	spread<true>(s, at, [v](uint64_t p) { store128(p, v); });
}
DEV void multimem_settle()
{
}
#endif

/* ---- Kernels ------------------------------------------------------------------------------- */

/* count elements; ALL: to everybody, else to oneself. */
template <class T, bool ALL>
DEV void multimem_range(const struct sides &s, const struct how<T> &h, uint64_t mc_in,
	uint64_t mc_out, uint64_t count)
{
	const uint64_t per = 16 / T::BYTES, step = kern_step();
	uint64_t head = unaligned_head<T, 2>(s, count), vecs = (count - head) / per;

	DEV_LOOP
	for (uint64_t i = kern_first(); i < vecs; i += step) {
		uint64_t at = head * T::BYTES + 16 * i;
		struct pair64 v = multimem_sum<T>(s, h, mc_in, at);

		if (ALL)
			multimem_store(s, mc_out, at, v);
		else
			store128(s.out + at, v);
	}
	if (head != 0)
		reduce_elements<T, OP_sum, 0, ALL>(s, h, 0, head);
	if (head + vecs * per < count)
		reduce_elements<T, OP_sum, 0, ALL>(s, h, head + vecs * per, count);
}

/* All-reduce: each rank has its part summed by the switch and stored to everybody. */
template <class T, int OP, int N> DEV void allreduce_multimem(const struct cuda_args &args)
{
	struct kern k(args);
	struct how<T> h;
	struct sides s = kern_sides(k);
	const uint64_t per = 16 / T::BYTES;
	uint64_t head = unaligned_head<T, 2>(s, args.count) % args.count; /* none: cut anywhere */
	uint64_t part = ((args.count - head + s.nranks - 1) / s.nranks + per - 1) / per * per;
	uint64_t lo = s.rank == 0 ? 0 : min(args.count, head + s.rank * part);
	uint64_t hi = min(args.count, head + (s.rank + 1) * part);

	s.in += lo * T::BYTES;
	s.out += lo * T::BYTES;
	kern_open(k);
	kern_announce(k);
	how_begin<T, OP_sum>(k, h);
	kern_meet(k, 0, 1);
	how_await<T, OP_sum>(k, h);
	if (!k.gave_up)
		multimem_range<T, true>(
			s, h, args.in_mc + lo * T::BYTES, args.out_mc + lo * T::BYTES, hi - lo);
	multimem_settle();
	kern_meet(k, 1);
	kern_end(k);
}

/* Reduce-scatter: each rank has its part summed by the switch. */
template <class T, int OP, int N> DEV void reducescatter_multimem(const struct cuda_args &args)
{
	struct kern k(args);
	struct how<T> h;
	struct sides s = kern_sides(k);
	uint64_t lo = s.rank * args.count;

	s.in += lo * T::BYTES;
	kern_open(k);
	kern_announce(k);
	how_begin<T, OP_sum>(k, h);
	kern_meet(k, 0, 1);
	how_await<T, OP_sum>(k, h);
	if (!k.gave_up)
		multimem_range<T, false>(s, h, args.in_mc + lo * T::BYTES, 0, args.count);
	kern_meet(k, 1);
	kern_end(k);
}

/* All-gather of `count` bytes a rank: each stores its own once, to everybody. */
DEV void allgather_multimem(const struct cuda_args &args)
{
	struct kern k(args);
	struct sides s = kern_sides(k);
	uint64_t bytes = args.count, mc = args.out_mc + s.rank * bytes, head, vecs;
	uint32_t from; /* of the ends, in place: not to oneself */

	s.out += s.rank * bytes;
	from = s.in == s.out + s.rank * s.out_stride;
	head = min(bytes, -s.out & 15);
	vecs = (bytes - head) / 16;
	kern_open(k);
	kern_announce(k);
	kern_meet(k, 0, 1);
	if (!k.gave_up) {
		DEV_LOOP
		for (uint64_t i = kern_first(); i < vecs; i += kern_step()) {
			uint64_t at = head + 16 * i, p = s.in + at;

			multimem_store(
				s, mc, at, (p & 15) == 0 ? load128(p) : load128_unaligned(p));
		}
		copy_bytes(s, 0, head, from);
		copy_bytes(s, head + 16 * vecs, bytes, from);
	}
	multimem_settle();
	kern_meet(k, 1);
	kern_end(k);
}

#endif
