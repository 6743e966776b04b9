/*
 * Packet kernels: everything goes through the peers' scratch, user buffers are only touched by
 * their own rank. Element order: pack i is 8 bytes; the same thread handles pack i (of every part)
 * in all loops of a kernel, so in place is safe without a barrier.
 *
 * N: the number of ranks when fixed, else 0. U: packs in flight per thread.
 */
#ifndef PACKETS_CUH
#define PACKETS_CUH

#include "elem.cuh"

template <int N> DEV uint32_t ranks(const struct kern &k)
{
	return N ? N : k.a.team.nranks;
}
/* Packs in flight per thread, where a thread has more than one: else the short code. */
template <int N> struct depth {
	enum { U = N == 0 || N >= 8 ? 1 : 8 / N };
};
/* How many of i, i + step, ... lie below n, at most U. */
template <int U> DEV int valid_of(uint32_t i, uint32_t step, uint32_t n)
{
	int valid = 0;

#pragma unroll
	for (int u = 0; u < U; u++)
		valid += i + u * step < n;
	return valid;
}

/* Await this rank's slots base + source * by_rank + i (+ u * step), put own[u] in its place, and
 * give the reduced packs. */
template <class T, int OP, int N, int U>
DEV int await_reduced(struct kern &k, const struct how<T> &h, uint64_t base, uint64_t by_rank,
	uint32_t step, int valid, const uint64_t (&own)[U], uint64_t (&out)[U])
{
	const uint32_t me = k.a.team.rank;

	if constexpr (N != 0) {
		uint64_t x[U][N];

		if (packets_await<U, N>(
			    k, 0, ((1u << N) - 1) & ~(1u << me), base, by_rank, step, valid, x))
			return 1;
#pragma unroll
		for (int u = 0; u < U; u++) {
#pragma unroll
			for (int q = 0; q < N; q++)
				if (q == me)
					x[u][q] = own[u];
			out[u] = reduce_pack<T, OP, N>(x[u], h);
		}
	} else {
		typedef struct pile<T, OP> pile_t;
		uint32_t groups = (h.nranks + GROUP - 1) / GROUP;

		out[0] = 0;
#pragma unroll 1
		for (uint32_t shift = 0; shift < 64; shift += pile_t::SHIFT) {
			pile_t pile;

#pragma unroll 1
			for (uint32_t g = 0; g < groups; g++) {
				uint32_t first = g * GROUP,
					 n = min(h.nranks - first, (uint32_t)GROUP);
				uint32_t want = (1u << n) - 1;
				uint64_t x[1][GROUP];

				if (me - first < n)
					want &= ~(1u << (me - first));
				if (packets_await<1, GROUP>(k, first, want, base + first * by_rank,
					    by_rank, 0, 1, x))
					return 1;
#pragma unroll
				for (int j = 0; j < GROUP; j++)
					x[0][j] = (first + j == me ? own[0] : x[0][j]) >> shift;
				pile.add(g, x[0], first, n, h);
			}
			out[0] |= pile.result(groups, h) << shift;
		}
	}
	return 0;
}

/* Send everybody its own packs: pack_of(q) is the first pack of rank q's in `in`, valid_of(q) how
 * many there are. first: opens the kernel, once the loads are in flight. */
template <class T, int OP, int N, int U, class FROM, class VALID>
DEV void send_parts(struct kern &k, struct how<T> &h, bool first, uint64_t slot, uint32_t step,
	FROM load, VALID valid)
{
	const uint32_t n = ranks<N>(k), me = k.a.team.rank;

	if constexpr (N != 0) {
		uint64_t x[N - 1][U];

#pragma unroll
		for (int d = 1; d < N; d++)
			load(me + d < n ? me + d : me + d - n, x[d - 1]);
		if (first) {
			kern_open(k);
			how_begin<T, OP>(k, h);
		}
		if (k.gave_up)
			return;
#pragma unroll
		for (int d = 1; d < N; d++) {
			uint32_t q = me + d < n ? me + d : me + d - n;

			packets_send<U>(k, q, slot, step, valid(q), x[d - 1]);
		}
	} else {
		if (first) {
			kern_open(k);
			how_begin<T, OP>(k, h);
		}
		for (uint32_t d = 1; d < n && !k.gave_up; d++) {
			uint32_t q = me + d < n ? me + d : me + d - n;
			uint64_t x[U];

			load(q, x);
			packets_send<U>(k, q, slot, step, valid(q), x);
		}
	}
}

/* All-reduce, one step: slot [source][pack]. */
template <class T, int OP, int N, int U> DEV void allreduce_oneshot_u(const struct cuda_args &args)
{
	enum { ONE = U < depth<N>::U }; /* at most one pack a thread */
	struct kern k(args);
	struct how<T> h;
	const uint64_t bytes = args.count * T::BYTES;
	const uint32_t packs = (uint32_t)((bytes + 7) / 8), step = kern_step();
	const uint32_t n = ranks<N>(k), me = args.team.rank;
	auto send = [&](uint32_t i, bool first) {
		int valid = valid_of<U>(i, step, packs);
		uint64_t x[U];

		packs_load<U>(args.in, i, step, valid, bytes, x);
		if (first) {
			kern_open(k);
			how_begin<T, OP>(k, h);
		}
		if (k.gave_up)
			return;
#pragma unroll
		for (uint32_t d = 1; d < (N ? N : n); d++) {
			uint32_t q = me + d < n ? me + d : me + d - n;

			packets_send<U>(k, q, (uint64_t)me * packs + i, step, valid, x);
		}
	};

	send(kern_first(), true);
	for (uint32_t i = kern_first() + U * step; !ONE && i < packs && !k.gave_up; i += U * step)
		send(i, false);
	kern_announce(k);
	how_await<T, OP>(k, h);
	for (uint32_t i = kern_first(); i < packs && !k.gave_up; i = ONE ? packs : i + U * step) {
		int valid = valid_of<U>(i, step, packs);
		uint64_t own[U], out[U];

		packs_load<U>(args.in, i, step, valid, bytes, own);
		k.gave_up = await_reduced<T, OP, N, U>(k, h, i, packs, step, valid, own, out);
		if (!k.gave_up)
			packs_store<U>(args.out, i, step, valid, bytes, out);
	}
	kern_end(k);
}
template <class T, int OP, int N> DEV void allreduce_oneshot(const struct cuda_args &args)
{
	if (depth<N>::U > 1 && args.count * T::BYTES > 8ull * kern_step())
		allreduce_oneshot_u<T, OP, N, depth<N>::U>(args);
	else
		allreduce_oneshot_u<T, OP, N, 1>(args);
}

/* Reduce-scatter: part q of the input goes to rank q; slot [source][pack]. Reduce: the root's part
 * is all of it and the others' are empty, but for one packet (ctrl.h). */
template <class T, int OP, int N, int U>
DEV void reducescatter_packet_u(const struct cuda_args &args)
{
	enum { ONE = U < depth<N>::U }; /* at most one pack a thread */
	struct kern k(args);
	struct how<T> h;
	const uint64_t bytes = args.count * T::BYTES;
	const uint32_t packs = (uint32_t)((bytes + 7) / 8), step = kern_step();
	const uint32_t me = args.team.rank;
	const bool to_root = args.mode & CUDA_MODE_TO_ROOT;
	const uint64_t part = to_root ? 0 : bytes, mine = args.in + me * part;
	auto has_part = [&](uint32_t q) { return !to_root || q == args.root; };
	auto send = [&](uint32_t i, bool first) {
		int valid = valid_of<U>(i, step, packs);

		send_parts<T, OP, N, U>(
			k, h, first, (uint64_t)me * packs + i, step,
			[&](uint32_t q, uint64_t(&x)[U]) {
				packs_load<U>(args.in + q * part, i, step, has_part(q) ? valid : 0,
					bytes, x);
			},
			[&](uint32_t q) { return has_part(q) ? valid : i == 0; });
	};

	send(kern_first(), true);
	for (uint32_t i = kern_first() + U * step; !ONE && i < packs && !k.gave_up; i += U * step)
		send(i, false);
	kern_announce(k);
	how_await<T, OP>(k, h);
	const uint32_t heard = has_part(me) ? packs : 1;

	for (uint32_t i = kern_first(); i < heard && !k.gave_up; i = ONE ? packs : i + U * step) {
		int valid = valid_of<U>(i, step, heard);
		uint64_t own[U], out[U];

		packs_load<U>(mine, i, step, valid, bytes, own);
		k.gave_up = await_reduced<T, OP, N, U>(k, h, i, packs, step, valid, own, out);
		if (!k.gave_up && has_part(me))
			packs_store<U>(args.out, i, step, valid, bytes, out);
	}
	kern_end(k);
}
template <class T, int OP, int N> DEV void reducescatter_packet(const struct cuda_args &args)
{
	if (depth<N>::U > 1 && args.count * T::BYTES > 8ull * kern_step())
		reducescatter_packet_u<T, OP, N, depth<N>::U>(args);
	else
		reducescatter_packet_u<T, OP, N, 1>(args);
}

/*
 * All-reduce, two steps: rank q owns packs [q * part, ...). Slots: [source][pack of the part] for
 * what is to be reduced, then n * part further on the same for what has been. Every rank sends
 * everybody at least one packet in each step, empty if need be (ctrl.h).
 */
template <class T, int OP, int N> DEV void allreduce_twostep(const struct cuda_args &args)
{
	enum { W = N ? N : GROUP };
	struct kern k(args);
	struct how<T> h;
	const uint64_t bytes = args.count * T::BYTES;
	const uint32_t packs = (uint32_t)((bytes + 7) / 8), step = kern_step();
	const uint32_t n = ranks<N>(k), me = args.team.rank, part = (packs + n - 1) / n;
	const uint64_t second = (uint64_t)n * part;
	/* packs of rank q's part that exist */
	auto have = [&](uint32_t q) { return q * part < packs ? min(packs - q * part, part) : 0; };

	auto send = [&](uint32_t i, bool first) {
		send_parts<T, OP, N, 1>(
			k, h, first, (uint64_t)me * part + i, 0,
			[&](uint32_t q, uint64_t(&x)[1]) {
				packs_load<1>(args.in, q * part + i, 0, i < have(q), bytes, x);
			},
			[&](uint32_t q) { return i < have(q) || i == 0; });
	};

	send(kern_first(), true);
	for (uint32_t i = kern_first() + step; i < part && !k.gave_up; i += step)
		send(i, false);
	kern_announce(k);
	how_await<T, OP>(k, h);
	for (uint32_t i = kern_first(); i < max(have(me), 1) && !k.gave_up; i += step) {
		uint64_t own[1], out[1];

		packs_load<1>(args.in, me * part + i, 0, i < have(me), bytes, own);
		k.gave_up = await_reduced<T, OP, N, 1>(k, h, i, part, 0, 1, own, out);
		if (k.gave_up)
			break;
#pragma unroll
		for (uint32_t d = 1; d < (N ? N : n); d++)
			packets_send<1>(k, me + d < n ? me + d : me + d - n,
				second + (uint64_t)me * part + i, 0, 1, out);
		packs_store<1>(args.out, me * part + i, 0, i < have(me), bytes, out);
	}
	for (uint32_t i = kern_first(); i < part && !k.gave_up; i += step)
		for (uint32_t first = 0; first < n && !k.gave_up; first += W) {
			uint32_t want = 0;
			uint64_t x[1][W];

#pragma unroll
			for (int j = 0; j < W; j++)
				if (first + j < n && first + j != me && i < max(have(first + j), 1))
					want |= 1u << j;
			k.gave_up = packets_await<1, W>(
				k, first, want, second + (uint64_t)first * part + i, part, 0, 1, x);
			if (!k.gave_up)
#pragma unroll
				for (int j = 0; j < W; j++) {
					uint64_t v[1] = {x[0][j]};

					packs_store<1>(args.out, (first + j) * part + i, 0,
						(want >> j & 1) && i < have(first + j), bytes, v);
				}
		}
	kern_end(k);
}

/* All-gather of `count` bytes a rank; slot [source][pack]. */
template <int N, int U> DEV void allgather_packet_u(const struct cuda_args &args)
{
	enum { W = N ? N : GROUP, ONE = U < depth<N>::U };
	struct kern k(args);
	const uint64_t bytes = args.count, mine = args.out + args.team.rank * bytes;
	const uint32_t packs = (uint32_t)((bytes + 7) / 8), step = kern_step();
	const uint32_t n = ranks<N>(k), me = args.team.rank;
	auto send = [&](uint32_t i, bool first) {
		int valid = valid_of<U>(i, step, packs);
		uint64_t x[U];

		packs_load<U>(args.in, i, step, valid, bytes, x);
		if (first)
			kern_open(k);
		if (k.gave_up)
			return;
#pragma unroll
		for (uint32_t d = 1; d < (N ? N : n); d++) {
			uint32_t q = me + d < n ? me + d : me + d - n;

			packets_send<U>(k, q, (uint64_t)me * packs + i, step, valid, x);
		}
		if (args.in != mine)
			packs_store<U>(mine, i, step, valid, bytes, x);
	};

	send(kern_first(), true);
	for (uint32_t i = kern_first() + U * step; !ONE && i < packs && !k.gave_up; i += U * step)
		send(i, false);
	kern_announce(k);
	for (uint32_t i = kern_first(); i < packs && !k.gave_up; i = ONE ? packs : i + U * step)
		for (uint32_t first = 0; first < n && !k.gave_up; first += W) {
			int valid = valid_of<U>(i, step, packs);
			uint32_t want = 0;
			uint64_t x[U][W];

#pragma unroll
			for (int j = 0; j < W; j++)
				if (first + j < n && first + j != me)
					want |= 1u << j;
			k.gave_up = packets_await<U, W>(
				k, first, want, (uint64_t)first * packs + i, packs, step, valid, x);
			if (k.gave_up)
				break;
#pragma unroll
			for (int j = 0; j < W; j++) {
				uint64_t v[U];

#pragma unroll
				for (int u = 0; u < U; u++)
					v[u] = x[u][j];
				packs_store<U>(args.out + (first + j) * bytes, i, step,
					want >> j & 1 ? valid : 0, bytes, v);
			}
		}
	kern_end(k);
}
template <int N> DEV void allgather_packet(const struct cuda_args &args)
{
	if (depth<N>::U > 1 && args.count > 8ull * kern_step())
		allgather_packet_u<N, depth<N>::U>(args);
	else
		allgather_packet_u<N, 1>(args);
}

#endif
