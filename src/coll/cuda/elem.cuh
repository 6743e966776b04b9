/*
 * Element types and operators: what one element's bits mean, and how n of them become one. The same
 * bits as the host's (docs/semantics.md): accumulate in float, double or wrapping integers, in the
 * order of the tree, round once.
 *
 * Elements travel 8 bytes at a time, in a uint64_t, little-endian.
 */
#ifndef ELEM_CUH
#define ELEM_CUH

#include "kernel.cuh"

enum op { OP_sum, OP_prod, OP_min };

/* A class of elements: A is what it accumulates in, BYTES the size of an element. */
template <int SIZE, class ACC> struct int_class {
	typedef ACC A;
	enum { BYTES = SIZE, REAL = 0 };
	DEV A get(uint64_t v)
	{
		return (A)v;
	}
	DEV uint64_t put(A a)
	{
		return a & (~0ull >> (64 - 8 * SIZE));
	}
	DEV A add(A a, A b)
	{
		return a + b;
	}
	DEV A mul(A a, A b)
	{
		return a * b;
	}
	DEV A least(A a, A b)
	{
		return a < b ? a : b;
	}
	/* Bits to flip before and after, so that `least` gives what the mode asks for. */
	DEV A flip(uint32_t mode)
	{
		A all = (A)(~0ull >> (64 - 8 * SIZE)), sign = (A)1 << (8 * SIZE - 1);

		return (mode & CUDA_MODE_MAX ? all : 0) ^ (mode & CUDA_MODE_SIGNED ? sign : 0);
	}
	DEV A flipped(A a, A bits)
	{
		return a ^ bits;
	}
	DEV A divided(A a, uint32_t n, uint32_t mode)
	{
		const int up = 8 * (sizeof(A) - SIZE);

		if (sizeof(A) == 8)
			return mode & CUDA_MODE_SIGNED ? (A)((int64_t)a / (int64_t)n) : a / n;
		if (mode & CUDA_MODE_SIGNED)
			return (A)(((int32_t)(a << up) >> up) / (int32_t)n);
		return (A)(((uint32_t)(a << up) >> up) / n);
	}
};
struct u8 : int_class<1, uint32_t> {
};
struct u32 : int_class<4, uint32_t> {
};
struct u64 : int_class<8, uint64_t> {
};

/* What the classes that accumulate in float have in common. */
struct float_class {
	typedef float A;
	enum { REAL = 1 };
	DEV float add(float a, float b)
	{
		return add_exact(a, b);
	}
	DEV float mul(float a, float b)
	{
		return mul_exact(a, b);
	}
	DEV float least(float a, float b)
	{
		return least_of(a, b);
	}
	DEV float flip(uint32_t mode)
	{
		return mode & CUDA_MODE_MAX ? -0.0f : 0.0f;
	}
	DEV float flipped(float a, float bits)
	{
		return f32_of_bits(f32_bits(a) ^ f32_bits(bits));
	}
	DEV float divided(float a, uint32_t n, uint32_t)
	{
		return div_exact(a, (float)n);
	}
};
struct f32 : float_class {
	enum { BYTES = 4 };
	DEV float get(uint64_t v)
	{
		return f32_of_bits((uint32_t)v);
	}
	DEV uint64_t put(float a)
	{
		return a != a ? F32_NAN : f32_bits(a);
	}
};
struct f16 : float_class {
	enum { BYTES = 2 };
	DEV float get(uint64_t v)
	{
		return f16_widen_fast((uint32_t)v & 0xffff);
	}
	DEV uint64_t put(float a)
	{
		return f16_narrow_fast(a);
	}
};
struct bf16 : float_class {
	enum { BYTES = 2 };
	DEV float get(uint64_t v)
	{
		return bf16_widen((uint32_t)v & 0xffff);
	}
	DEV uint64_t put(float a)
	{
		return bf16_narrow_fast(a);
	}
};
struct e4m3 : float_class {
	enum { BYTES = 1 };
	DEV float get(uint64_t v)
	{
		return e4m3_widen((uint32_t)v & 0xff);
	}
	DEV uint64_t put(float a)
	{
		return e4m3_narrow(a);
	}
};
struct e5m2 : float_class {
	enum { BYTES = 1 };
	DEV float get(uint64_t v)
	{
		return f16_widen_fast((uint32_t)(v & 0xff) << 8);
	}
	DEV uint64_t put(float a)
	{
		return e5m2_narrow(a);
	}
};
struct f64 {
	typedef double A;
	enum { BYTES = 8, REAL = 1 };
	DEV double get(uint64_t v)
	{
		return f64_of_bits(v);
	}
	DEV uint64_t put(double a)
	{
		return a != a ? F64_NAN : f64_bits(a);
	}
	DEV double add(double a, double b)
	{
		return add_exact(a, b);
	}
	DEV double mul(double a, double b)
	{
		return mul_exact(a, b);
	}
	DEV double least(double a, double b)
	{
		if (a != a || b != b)
			return a + b;
		if (a == b) /* the same bits, or zeros of which one may be negative */
			return f64_of_bits(f64_bits(a) | f64_bits(b));
		return a < b ? a : b;
	}
	DEV double flip(uint32_t mode)
	{
		return mode & CUDA_MODE_MAX ? -0.0 : 0.0;
	}
	DEV double flipped(double a, double bits)
	{
		return f64_of_bits(f64_bits(a) ^ f64_bits(bits));
	}
	DEV double divided(double a, uint32_t n, uint32_t)
	{
		return div_exact(a, (double)n);
	}
};

/* How a kernel reduces: uniform over the grid. */
template <class T> struct how {
	uint32_t mode, nranks;
	typename T::A flip;
	const typename T::A *factor; /* [rank], in shared memory, when the mode wants them */
};

template <class T, int OP>
DEV typename T::A elem_in(uint64_t pack, int k, uint32_t rank, const struct how<T> &h)
{
	typename T::A a = T::get(pack >> (8 * T::BYTES * k));

	if (OP == OP_sum && (h.mode & CUDA_MODE_PREMUL))
		return T::mul(a, h.factor[rank]);
	if (OP == OP_min) {
		if (!T::REAL) /* bits above the element must not take part */
			a = T::get(T::put(a));
		return T::flipped(a, h.flip);
	}
	return a;
}
template <class T, int OP> DEV uint64_t elem_out(typename T::A a, int k, const struct how<T> &h)
{
	if (OP == OP_sum && (h.mode & CUDA_MODE_AVG))
		a = T::divided(a, h.nranks, h.mode);
	if (OP == OP_min)
		a = T::flipped(a, h.flip);
	return T::put(a) << (8 * T::BYTES * k);
}
template <class T, int OP> DEV typename T::A elem_join(typename T::A a, typename T::A b)
{
	return OP == OP_sum ? T::add(a, b) : OP == OP_prod ? T::mul(a, b) : T::least(a, b);
}

/* The tree over v[0..n), n <= N: pairs at distance 1, then 2, 4; who has no partner passes. */
template <class T, int OP, int N> DEV typename T::A tree(typename T::A (&v)[N], uint32_t n)
{
#pragma unroll
	for (int d = 1; d < N; d *= 2)
#pragma unroll
		for (int i = 0; i + d < N; i += 2 * d)
			if (i + d < n)
				v[i] = elem_join<T, OP>(v[i], v[i + d]);
	return v[0];
}

/* All N ranks' packs to one. */
template <class T, int OP, int N>
DEV uint64_t reduce_pack(const uint64_t (&x)[N], const struct how<T> &h)
{
	uint64_t out = 0;

#pragma unroll
	for (int k = 0; k < 8 / T::BYTES; k++) {
		typename T::A v[N];

#pragma unroll
		for (int q = 0; q < N; q++)
			v[q] = elem_in<T, OP>(x[q], k, q, h);
		out |= elem_out<T, OP>(tree<T, OP, N>(v, N), k, h);
	}
	return out;
}

/*
 * Any number of ranks, in groups of 8: each group is a subtree, and the groups are joined like the
 * bits of a counter: level l holds the join of 2^l groups, when bit l of the count is set.
 */
#define GROUP 8
#define LEVELS 4
DEV_ASSERT(DEV_RANKS_MAX < GROUP << LEVELS);

/* For PASSES parts of a pack one after the other, so that one-byte elements fit in registers. */
template <class T, int OP> struct pile {
	enum {
		E = T::BYTES == 1 ? 2 : 8 / T::BYTES,
		PASSES = 8 / T::BYTES / E,
		SHIFT = 64 / PASSES
	};
	typename T::A level[LEVELS][E];

	/* Group g = 0, 1, ...: ranks first..first + n of x; elements from the lowest byte on. */
	INL void add(uint32_t g, const uint64_t (&x)[GROUP], uint32_t first, uint32_t n,
		const struct how<T> &h)
	{
#pragma unroll
		for (int k = 0; k < E; k++) {
			typename T::A v[GROUP], a;
			int placed = 0;

#pragma unroll
			for (int j = 0; j < GROUP; j++)
				v[j] = j < n ? elem_in<T, OP>(x[j], k, first + j, h)
					     : typename T::A();
			a = tree<T, OP, GROUP>(v, n);
#pragma unroll
			for (int l = 0; l < LEVELS; l++) {
				if (!placed && (g >> l & 1)) {
					a = elem_join<T, OP>(level[l][k], a);
				} else if (!placed) {
					level[l][k] = a;
					placed = 1;
				}
			}
		}
	}
	/* After `groups` of them. */
	INL uint64_t result(uint32_t groups, const struct how<T> &h)
	{
		uint64_t out = 0;

#pragma unroll
		for (int k = 0; k < E; k++) {
			typename T::A a = typename T::A();
			int some = 0;

#pragma unroll
			for (int l = 0; l < LEVELS; l++)
				if (groups >> l & 1) {
					a = some ? elem_join<T, OP>(level[l][k], a) : level[l][k];
					some = 1;
				}
			out |= elem_out<T, OP>(a, k, h);
		}
		return out;
	}
};

/* How this kernel reduces; for a pre-multiplied sum, tell everybody one's own factor. */
template <class T, int OP> DEV void how_begin(struct kern &k, struct how<T> &h)
{
	const struct dev_team *t = &k.a.team;

	h.mode = k.a.mode;
	h.nranks = t->nranks;
	h.flip = T::flip(h.mode);
	h.factor = NULL;
	if (OP == OP_sum && (h.mode & CUDA_MODE_PREMUL) && !k.gave_up && cta_id() == 0)
		for (uint32_t q = cta_thread(); q < t->nranks; q += cta_threads()) {
			uint64_t own =
				k.a.factor_at ? load_bytes(k.a.factor_at, T::BYTES) : k.a.factor;

			packet_store(packet_scalar(t, q, &k.e, t->rank), own, k.e.flag);
		}
}
/* All threads: have the factors of all ranks (one's own came through memory too). */
template <class T, int OP> DEV void how_await(struct kern &k, struct how<T> &h)
{
	CTA_SHARED(typename T::A, factor, DEV_RANKS_MAX);
	const struct dev_team *t = &k.a.team;

	if (OP == OP_sum && (h.mode & CUDA_MODE_PREMUL)) {
		for (uint32_t q = cta_thread(); q < t->nranks && !k.gave_up; q += cta_threads()) {
			uint64_t bits = 0;

			k.gave_up = packet_await(t, &k.e, &k.a.watch,
				packet_scalar(t, t->rank, &k.e, q), q, cta_id(), &bits);
			factor[q] = T::get(bits);
		}
		k.gave_up = cta_sync_or(k.gave_up);
		h.factor = factor;
	}
}

#endif
