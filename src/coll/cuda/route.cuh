/*
 * Blocks from rank to rank: broadcast, all-to-all, gather, scatter. Who sends what to whom is the
 * call's mode; block q of a buffer is the one for, or from, rank q.
 */
#ifndef ROUTE_CUH
#define ROUTE_CUH

#include "copy.cuh"

struct route {
	uint32_t mode, root, rank, nranks;

	INL route(const struct cuda_args &a)
	    : mode(a.mode), root(a.root), rank(a.team.rank), nranks(a.team.nranks)
	{
	}
	INL bool sends(uint32_t q) const
	{
		return mode & CUDA_MODE_FROM_ROOT ? rank == root
		       : mode & CUDA_MODE_TO_ROOT ? q == root
						  : true;
	}
	INL bool hears(uint32_t q) const
	{
		return mode & CUDA_MODE_FROM_ROOT ? q == root
		       : mode & CUDA_MODE_TO_ROOT ? rank == root
						  : true;
	}
	/* Packets: the first nranks slots are for those of ranks that send nothing (ctrl.h wants
	 * one from everybody); behind them the sources', or the root's alone. */
	INL uint64_t slot(uint32_t source, uint32_t packs) const
	{
		return nranks + (mode & CUDA_MODE_FROM_ROOT ? 0 : (uint64_t)source * packs);
	}
	INL uint32_t peer(uint32_t d) const
	{
		return rank + d < nranks ? rank + d : rank + d - nranks;
	}
};

/* The packs of a thread, block after block: pack i of rank q's for all q, then the next i. */
struct cursor {
	uint32_t d, i;

	INL cursor() : d(0), i(kern_first())
	{
	}
	INL void next(uint32_t nranks)
	{
		if (++d == nranks) {
			d = 0;
			i += kern_step();
		}
	}
};

/*
 * Through packets. The same thread handles pack i of all blocks, and sends all its own before it
 * stores what it hears: so a block may come to where one went from. B: packs in flight.
 */
template <int B> DEV void move_packet_b(const struct cuda_args &args)
{
	struct kern k(args);
	const struct route r(args);
	const uint64_t bytes = args.count;
	const uint32_t packs = (uint32_t)((bytes + 7) / 8), n = r.nranks;
	bool first = true;

	for (struct cursor c; first || (c.i < packs && !k.gave_up);) {
		uint64_t x[B];
		struct cursor s = c;

#pragma unroll
		for (int b = 0; b < B; b++) {
			uint32_t q = r.peer(c.d);
			uint64_t at = args.in + q * args.in_stride + 8 * (uint64_t)c.i;
			uint32_t size =
				c.i < packs && r.sends(q) ? pack_size(8 * (uint64_t)c.i, bytes) : 0;
			int fast = size == 8 && (at & 7) == 0;

			x[b] = load64_if(fast, at);
			if (size != 0 && !fast)
				x[b] = load_bytes(at, size);
			c.next(n);
		}
		if (first)
			kern_open(k);
		first = false;
		if (k.gave_up)
			break;
#pragma unroll
		for (int b = 0; b < B; b++) {
			uint32_t q = r.peer(s.d);
			uint64_t at = args.out + q * args.out_stride + 8 * (uint64_t)s.i;

			if (s.i < packs && r.sends(q)) {
				if (q != r.rank)
					packet_store(packet_slots(&args.team, q, &k.e) +
							     PACKET_BYTES *
								     (r.slot(r.rank, packs) + s.i),
						x[b], k.e.flag);
				else if (args.in + q * args.in_stride !=
					 args.out + q * args.out_stride)
					store_pack(at, pack_size(8 * (uint64_t)s.i, bytes), x[b]);
			}
			s.next(n);
		}
	}
	for (uint32_t q = kern_first(); q < n && !k.gave_up; q += kern_step())
		if (q != r.rank && !r.sends(q))
			packet_store(packet_slots(&args.team, q, &k.e) + PACKET_BYTES * r.rank, 0,
				k.e.flag);
	kern_announce(k);
	for (struct cursor c; c.i < packs && !k.gave_up;) {
		uint64_t x[B], slot[B];
		uint32_t want = 0, from[B];
		struct cursor s = c;

#pragma unroll
		for (int b = 0; b < B; b++) {
			from[b] = r.peer(c.d);
			slot[b] = r.slot(from[b], packs) + c.i;
			if (c.i < packs && from[b] != r.rank && r.hears(from[b]))
				want |= 1u << b;
			c.next(n);
		}
		k.gave_up = packets_await_at<B>(k, want, from, slot, x);
#pragma unroll
		for (int b = 0; b < B; b++) {
			uint64_t at = 8 * (uint64_t)s.i;

			if (!k.gave_up && (want >> b & 1))
				store_pack(args.out + from[b] * args.out_stride + at,
					pack_size(at, bytes), x[b]);
			s.next(n);
		}
	}
	for (uint32_t q = kern_first(); q < n && !k.gave_up; q += kern_step()) {
		uint64_t nothing;

		if (q != r.rank && !r.hears(q))
			k.gave_up = packet_await(&args.team, &k.e, &args.watch,
				packet_slots(&args.team, r.rank, &k.e) + PACKET_BYTES * q, q,
				cta_id(), &nothing);
	}
	kern_end(k);
}
DEV void move_packet(const struct cuda_args &args)
{
	const uint32_t sends = args.mode & (CUDA_MODE_FROM_ROOT | CUDA_MODE_TO_ROOT) ? 1 : 2;

	if (args.team.nranks == sends && args.count <= 8ull * kern_step())
		move_packet_b<2>(args);
	else
		move_packet_b<8>(args);
}

/*
 * Into the receivers' windows, between two barriers: rank r's block goes to r's place in the
 * others' output when all send to all, else the root's to the beginning of it.
 */
DEV void push_direct(const struct cuda_args &args)
{
	struct kern k(args);
	const struct route r(args);
	const bool all = !(args.mode & CUDA_MODE_FROM_ROOT);

	kern_open(k);
	kern_announce(k);
	kern_meet(k, 0);
	for (uint32_t d = 0; d < r.nranks && !k.gave_up; d++) {
		uint32_t q = r.peer(d);
		uint64_t from = args.in + q * (all ? args.count : 0);
		uint64_t to = args.out + q * args.out_stride + (all ? r.rank * args.count : 0);

		if (r.sends(q) && (q != r.rank || from != to))
			copy_range(from, to, args.count, kern_first(), kern_step());
	}
	kern_meet(k, 1);
	kern_end(k);
}

#endif
