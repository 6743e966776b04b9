/*
 * Direct kernels: load and store peers' windows, between two barriers. The first says that
 * everybody's input is there and output may be overwritten, the second that all has been read and
 * written.
 *
 * N: the number of ranks when fixed (16-byte vectors), else 0 (8-byte vectors).
 */
#ifndef DIRECT_CUH
#define DIRECT_CUH

#include "copy.cuh"
#include "elem.cuh"

/* One element, in the low bytes. */
template <int BYTES> DEV uint64_t load_element(uint64_t p)
{
	if ((p & (BYTES - 1)) != 0)
		return load_bytes(p, BYTES);
	return BYTES == 8 ? load64(p) : BYTES == 4 ? load32(p) : BYTES == 2 ? load16(p) : load8(p);
}
template <int BYTES> DEV void store_element(uint64_t p, uint64_t v)
{
	if ((p & (BYTES - 1)) != 0)
		store_bytes(p, BYTES, v);
	else if (BYTES == 8)
		store64(p, v);
	else if (BYTES == 4)
		store32(p, (uint32_t)v);
	else if (BYTES == 2)
		store16(p, (uint32_t)v);
	else
		store8(p, (uint32_t)v);
}

/* Where the ranks' buffers are: in + q * in_stride; out likewise, or only this rank's at out. */
struct sides {
	uint64_t in, in_stride, out, out_stride;
	uint32_t rank, nranks;
};

/* Reduce what load(address) gives of all ranks at byte `at`. */
template <class T, int OP, int N, class LOAD>
DEV uint64_t reduce_at(const struct sides &s, const struct how<T> &h, uint64_t at, LOAD load)
{
	if constexpr (N != 0) {
		uint64_t x[N];

#pragma unroll
		for (int q = 0; q < N; q++)
			x[q] = load(s.in + q * s.in_stride + at);
		return reduce_pack<T, OP, N>(x, h);
	} else {
		typedef struct pile<T, OP> pile_t;
		uint32_t groups = (s.nranks + GROUP - 1) / GROUP;
		uint64_t out = 0;

		DEV_LOOP
		for (uint32_t shift = 0; shift < 64; shift += pile_t::SHIFT) {
			pile_t pile;

			DEV_LOOP
			for (uint32_t g = 0; g < groups; g++) {
				uint32_t first = g * GROUP,
					 n = min(s.nranks - first, (uint32_t)GROUP);
				uint64_t x[GROUP];

#pragma unroll
				for (int j = 0; j < GROUP; j++)
					x[j] = j < n ? load(s.in + (first + j) * s.in_stride + at)
						     : 0;
#pragma unroll
				for (int j = 0; j < GROUP; j++)
					x[j] >>= shift;
				pile.add(g, x, first, n, h);
			}
			out |= pile.result(groups, h) << shift;
		}
		return out;
	}
}

/* To everybody, oneself first, or to oneself. */
template <bool ALL, class STORE> DEV void spread(const struct sides &s, uint64_t at, STORE store)
{
	uint64_t to = s.out + at;

	if constexpr (!ALL)
		store(to);
	else
		for (uint32_t d = 0; d < s.nranks; d++) {
			uint32_t q = s.rank + d < s.nranks ? s.rank + d : s.rank + d - s.nranks;

			store(to + q * s.out_stride);
		}
}

template <class T, int OP, int N, bool ALL>
DEV void reduce_elements(const struct sides &s, const struct how<T> &h, uint64_t lo, uint64_t hi)
{
	DEV_LOOP
	for (uint64_t i = lo + kern_first(); i < hi; i += kern_step()) {
		uint64_t v = reduce_at<T, OP, N>(
			s, h, i * T::BYTES, [](uint64_t p) { return load_element<T::BYTES>(p); });

		spread<ALL>(s, i * T::BYTES, [v](uint64_t p) { store_element<T::BYTES>(p, v); });
	}
}

template <int N> struct vector {
	enum { BYTES = N ? 16 : 8, U = N == 0 || N >= 8 ? 1 : 8 / N };
};

/* Vectors [0, vecs) from byte `at` on, which is aligned on all sides. */
template <class T, int OP, int N, bool ALL>
DEV void reduce_vectors(const struct sides &s, const struct how<T> &h, uint64_t at, uint64_t vecs)
{
	const uint64_t step = kern_step();

	if constexpr (N == 0) {
		DEV_LOOP
		for (uint64_t i = kern_first(); i < vecs; i += step) {
			uint64_t v = reduce_at<T, OP, 0>(
				s, h, at + 8 * i, [](uint64_t p) { return load64(p); });

			spread<ALL>(s, at + 8 * i, [v](uint64_t p) { store64(p, v); });
		}
	} else {
		enum { U = vector<N>::U };

		DEV_LOOP
		for (uint64_t i = kern_first(); i < vecs; i += U * step) {
			struct pair64 x[U][N];

#pragma unroll
			for (int u = 0; u < U; u++)
#pragma unroll
				for (int q = 0; q < N; q++)
					if (i + u * step < vecs)
						x[u][q] = load128(s.in + q * s.in_stride + at +
								  16 * (i + u * step));
#pragma unroll
			for (int u = 0; u < U; u++) {
				uint64_t lo[N], hi[N];
				struct pair64 v;

				if (i + u * step >= vecs)
					break;
#pragma unroll
				for (int q = 0; q < N; q++) {
					lo[q] = x[u][q].lo;
					hi[q] = x[u][q].hi;
				}
				v.lo = reduce_pack<T, OP, N>(lo, h);
				v.hi = reduce_pack<T, OP, N>(hi, h);
				spread<ALL>(s, at + 16 * (i + u * step),
					[v](uint64_t p) { store128(p, v); });
			}
		}
	}
}

/* Elements before the first that is aligned on both sides; all, when there is none. */
template <class T, int N> DEV uint64_t unaligned_head(const struct sides &s, uint64_t count)
{
	const uint64_t mask = vector<N>::BYTES - 1;

	if (((s.in ^ s.out) & mask) != 0 || (s.in & (T::BYTES - 1)) != 0)
		return count;
	return min(count, (-s.in & mask) / T::BYTES);
}

template <class T, int OP, int N, bool ALL>
DEV void reduce_range(const struct sides &s, const struct how<T> &h, uint64_t count)
{
	const uint64_t per = vector<N>::BYTES / T::BYTES;
	uint64_t head = unaligned_head<T, N>(s, count), vecs = (count - head) / per;

	reduce_vectors<T, OP, N, ALL>(s, h, head * T::BYTES, vecs);
	if (head != 0)
		reduce_elements<T, OP, N, ALL>(s, h, 0, head);
	if (head + vecs * per < count)
		reduce_elements<T, OP, N, ALL>(s, h, head + vecs * per, count);
}

DEV struct sides kern_sides(const struct kern &k)
{
	struct sides s;

	s.in = k.a.in;
	s.in_stride = k.a.in_stride;
	s.out = k.a.out;
	s.out_stride = k.a.out_stride;
	s.rank = k.a.team.rank;
	s.nranks = k.a.team.nranks;
	return s;
}

/* All-reduce: each rank reduces its part of everybody's input into everybody's output. */
template <class T, int OP, int N> DEV void allreduce_direct(const struct cuda_args &args)
{
	struct kern k(args);
	struct how<T> h;
	struct sides s = kern_sides(k);
	const uint64_t per = vector<N>::BYTES / T::BYTES;
	uint64_t head = unaligned_head<T, N>(s, args.count) % args.count; /* none: cut anywhere */
	uint64_t part = ((args.count - head + s.nranks - 1) / s.nranks + per - 1) / per * per;
	uint64_t lo = s.rank == 0 ? 0 : min(args.count, head + s.rank * part);
	uint64_t hi = min(args.count, head + (s.rank + 1) * part);

	s.in += lo * T::BYTES;
	s.out += lo * T::BYTES;
	kern_open(k);
	kern_announce(k);
	how_begin<T, OP>(k, h);
	kern_meet(k, 0, 1);
	how_await<T, OP>(k, h);
	if (!k.gave_up)
		reduce_range<T, OP, N, true>(s, h, hi - lo);
	kern_meet(k, 1);
	kern_end(k);
}

/* Reduce-scatter: each rank loads its part of everybody's input, all of it when that is
 * everybody's. Reduce: a part goes to the root's output, or when that is in no window the root
 * loads all. */
template <class T, int OP, int N> DEV void reducescatter_direct(const struct cuda_args &args)
{
	struct kern k(args);
	struct how<T> h;
	struct sides s = kern_sides(k);
	const bool to_root = args.mode & CUDA_MODE_TO_ROOT;
	const bool from_0 = args.mode & (CUDA_MODE_TO_ROOT | CUDA_MODE_WHOLE);
	uint64_t lo = from_0 ? 0 : s.rank * args.count, count = args.count;

	kern_open(k);
	kern_announce(k);
	how_begin<T, OP>(k, h);
	if (to_root)
		root_tell(k, args.out_stride);
	kern_meet(k, 0, !to_root);
	how_await<T, OP>(k, h);
	if (to_root) {
		uint64_t where = root_told(k), part = (count / s.nranks + 16) / 16 * 16;

		if (where != 0) {
			lo = min(count, s.rank * part);
			count = min(count - lo, part);
			s.out = (uintptr_t)team_ctrl(&args.team, args.root) + where + lo * T::BYTES;
		} else if (s.rank != args.root) {
			count = 0;
		}
	}
	s.in += lo * T::BYTES;
	if (!k.gave_up && count != 0)
		reduce_range<T, OP, N, false>(s, h, count);
	/* What was loaded has been stored, so it is here: no release is needed to say so. */
	kern_meet(k, 1, !to_root);
	kern_end(k);
}

/* Vectors [0, vecs) from byte `at` on, where the output is aligned. */
template <bool ALIGNED>
DEV void copy_vectors(const struct sides &s, uint64_t at, uint64_t vecs, uint32_t from)
{
	enum { U = 4 };
	const uint64_t step = kern_step();

	DEV_LOOP
	for (uint64_t i = kern_first(); i < vecs; i += U * step) {
		struct pair64 x[U];

#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * step < vecs) {
				uint64_t p = s.in + at + 16 * (i + u * step);

				x[u] = ALIGNED ? load128(p) : load128_unaligned(p);
			}
		DEV_LOOP
		for (uint32_t d = from; d < s.nranks; d++) {
			uint32_t q = s.rank + d < s.nranks ? s.rank + d : s.rank + d - s.nranks;

#pragma unroll
			for (int u = 0; u < U; u++)
				if (i + u * step < vecs)
					store128(
						s.out + q * s.out_stride + at + 16 * (i + u * step),
						x[u]);
		}
	}
}
DEV void copy_bytes(const struct sides &s, uint64_t lo, uint64_t hi, uint32_t from)
{
	for (uint64_t i = lo + kern_first(); i < hi; i += kern_step()) {
		uint64_t v = load_element<1>(s.in + i);

		for (uint32_t d = from; d < s.nranks; d++) {
			uint32_t q = s.rank + d < s.nranks ? s.rank + d : s.rank + d - s.nranks;

			store_element<1>(s.out + q * s.out_stride + i, v);
		}
	}
}

/* All-gather of `count` bytes a rank: each stores its own to everybody. */
DEV void allgather_direct(const struct cuda_args &args)
{
	struct kern k(args);
	struct sides s = kern_sides(k);
	uint64_t bytes = args.count, head, vecs;
	uint32_t from; /* in place: not to oneself */

	s.out += s.rank * bytes;
	from = s.in == s.out + s.rank * s.out_stride;
	head = min(bytes, -s.out & 15);
	vecs = (bytes - head) / 16;
	kern_open(k);
	kern_announce(k);
	kern_meet(k, 0, 1);
	if (!k.gave_up) {
		if (((s.in ^ s.out) & 15) == 0)
			copy_vectors<true>(s, head, vecs, from);
		else
			copy_vectors<false>(s, head, vecs, from);
		copy_bytes(s, 0, head, from);
		copy_bytes(s, head + 16 * vecs, bytes, from);
	}
	kern_meet(k, 1);
	kern_end(k);
}

DEV void barrier(const struct cuda_args &args)
{
	struct kern k(args);

	kern_open(k);
	kern_announce(k);
	kern_meet(k, 0);
	kern_end(k);
}

#endif
