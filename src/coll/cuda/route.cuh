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

/* A thread's packs: pack i for, or from, each of `peers` ranks, then the next i. One peer: the
 * root, or the other of two. */
struct cursor {
	uint32_t d, i, peers, only;

	INL cursor(const struct route &r, bool sending)
	    : d(0), i(kern_first()), peers(r.nranks - 1), only(r.root)
	{
		bool root = r.rank == r.root;

		if (r.mode & (sending ? CUDA_MODE_FROM_ROOT : CUDA_MODE_TO_ROOT))
			peers = root ? peers : 0;
		else if (r.mode & (sending ? CUDA_MODE_TO_ROOT : CUDA_MODE_FROM_ROOT))
			peers = root ? 0 : 1;
		if (peers != 1 || root || r.mode == 0)
			only = ~0u;
		if (peers == 0)
			i = 1u << 31; /* no pack */
	}
	INL uint32_t peer(const struct route &r) const
	{
		return only != ~0u ? only : r.peer(d + 1);
	}
	INL void next()
	{
		if (++d >= peers) {
			d = 0;
			i += kern_step();
		}
	}
};

/* This rank's block for itself, pack by pack: a thread's first is loaded with all else it loads and
 * stored when the others have been sent. */
struct own_block {
	uint64_t from, to, bytes, at, x;
	uint32_t size; /* of the pack in x; 0: none */

	INL own_block(const struct cuda_args &a, const struct route &r)
	    : at(8 * (uint64_t)kern_first())
	{
		from = a.in + r.rank * a.in_stride;
		to = a.out + r.rank * a.out_stride;
		bytes = r.sends(r.rank) && r.hears(r.rank) && from != to ? a.count : 0;
		load();
	}
	INL void load()
	{
		size = at < bytes ? pack_size(at, bytes) : 0;
		x = load64_if(size == 8 && ((from + at) & 7) == 0, from + at);
		if (size != 0 && (size != 8 || ((from + at) & 7) != 0))
			x = load_bytes(from + at, size);
	}
	INL void store()
	{
		DEV_LOOP
		while (size != 0) {
			store_pack(to + at, size, x);
			at += 8 * (uint64_t)kern_step();
			load();
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
	struct own_block own(args, r);
	bool first = true;

	for (struct cursor c(r, true); first || (c.i < packs && !k.gave_up);) {
		struct cursor s = c;
		uint64_t x[B];

#pragma unroll
		for (int b = 0; b < B; b++) {
			uint64_t at = args.in + c.peer(r) * args.in_stride + 8 * (uint64_t)c.i;
			uint32_t size = c.i < packs ? pack_size(8 * (uint64_t)c.i, bytes) : 0;
			int fast = size == 8 && (at & 7) == 0;

			x[b] = load64_if(fast, at);
			if (size != 0 && !fast)
				x[b] = load_bytes(at, size);
			c.next();
		}
		if (first)
			kern_open(k);
		first = false;
		if (k.gave_up)
			break;
#pragma unroll
		for (int b = 0; b < B; b++) {
			if (s.i < packs)
				packet_store(packet_slots(&args.team, s.peer(r), &k.e) +
						     PACKET_BYTES * (r.slot(r.rank, packs) + s.i),
					x[b], k.e.flag);
			s.next();
		}
	}
	for (uint32_t q = kern_first(); q < n && !k.gave_up; q += kern_step())
		if (q != r.rank && !r.sends(q))
			packet_store(packet_slots(&args.team, q, &k.e) + PACKET_BYTES * r.rank, 0,
				k.e.flag);
	kern_announce(k);
	if (!k.gave_up)
		own.store();
	for (struct cursor c(r, false); c.i < packs && !k.gave_up;) {
		uint64_t x[B], slot[B];
		uint32_t want = 0, from[B];
		struct cursor s = c;

#pragma unroll
		for (int b = 0; b < B; b++) {
			from[b] = c.peer(r);
			slot[b] = r.slot(from[b], packs) + c.i;
			want |= (c.i < packs) << b;
			c.next();
		}
		k.gave_up = packets_await_at<B>(k, want, from, slot, x);
#pragma unroll
		for (int b = 0; b < B; b++) {
			uint64_t at = 8 * (uint64_t)s.i;

			if (!k.gave_up && (want >> b & 1))
				store_pack(args.out + from[b] * args.out_stride + at,
					pack_size(at, bytes), x[b]);
			s.next();
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
	if (args.team.nranks == 2 && args.count <= 8ull * kern_step())
		move_packet_b<1>(args);
	else
		move_packet_b<4>(args);
}

/*
 * Into the receivers' windows, between two barriers. All to all: rank r's block goes to r's place
 * in the others' output. From the root: when its input is in a window, too, each rank fetches a
 * part of it and stores that to everybody; else the root stores all.
 */
DEV void push_from_root(struct kern &k, uint64_t where)
{
	const struct cuda_args &a = k.a;
	const uint32_t n = a.team.nranks;
	uint64_t from = a.in, lo = 0, hi = a.count;
	struct fan f;

	if (where != 0) {
		uint64_t part = (a.count / n + 128) / 128 * 128;

		lo = min(a.count, a.team.rank * part);
		hi = min(a.count, lo + part);
		from = (uintptr_t)team_ctrl(&a.team, a.root) + where;
	} else if (a.team.rank != a.root) {
		return;
	}
	f.at = a.out + lo;
	f.stride = a.out_stride;
	f.rank = a.team.rank;
	f.nranks = n;
	f.skip = from == a.out + a.root * a.out_stride ? a.root : ~0u; /* in place */
	copy_fan(from + lo, f, hi - lo, kern_first(), kern_step());
}
DEV void push_direct(const struct cuda_args &args)
{
	struct kern k(args);
	const struct route r(args);
	const bool all = !(args.mode & CUDA_MODE_FROM_ROOT);

	kern_open(k);
	kern_announce(k);
	if (!all)
		root_tell(k, args.in_stride);
	kern_meet(k, 0, all);
	for (uint32_t d = 0; all && d < r.nranks && !k.gave_up; d++) {
		uint32_t q = r.peer(d);

		copy_range(args.in + q * args.count,
			args.out + q * args.out_stride + r.rank * args.count, args.count,
			kern_first(), kern_step());
	}
	if (!all && !k.gave_up)
		push_from_root(k, root_told(k));
	kern_meet(k, 1);
	kern_end(k);
}

#endif
