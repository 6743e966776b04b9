/*
 * Staged kernels: collectives on buffers that peers cannot reach, in one launch. Each rank has
 * scratch behind its control block that all can reach. CTA b of a rank works with CTA b of every
 * peer and with nobody else, so each CTA is a pipeline of its own, and one that waits is hidden by
 * the others.
 *
 * What a call moves is cut into chunks, of which CTA b takes b, b + CTAs, ...; each has one part a
 * rank, at most args.out_stride bytes long. Step i of a CTA, which is on chunk i of its own:
 *   (a) push each peer's part of chunk i from the user's input into the peer's scratch, area 0;
 *   (b) reduce the own part of chunk i - 1, from area 0 and the own input, to the user's output,
 *       and all-reduce: to the peers' scratch, area 1;
 *   (c) all-reduce: copy what peers reduced of chunk i - 2 from area 1 to the user's output.
 * All-gather pushes its one part to all, and copies out what came one step later. Nothing in a step
 * needs what the same step did. Between two steps a CTA says to CTAs b of the peers how many it has
 * done, and waits until all of them have done as many: {flag, steps} in the place of the second
 * barrier's words.
 *
 * An area has two stages, which chunks take by turns. That is enough: step i writes
 *   - to area 0 where chunk i - 2 was, which its owner has read in step i - 1;
 *   - to area 1 where chunk i - 3 was, likewise,
 * and who begins step i has heard from all that they are done with step i - 1. The first barrier,
 * an ordinary one, says that the peers' kernels before this, hence their CTAs, however many, are
 * done with the scratch. All CTAs b have as many chunks, maybe none, hence as many steps. After the
 * last there is nothing to say: what it wrote is this rank's own. So all words sent in an epoch are
 * awaited in it, as ctrl.h wants.
 */
#ifndef STAGED_CUH
#define STAGED_CUH

#include "direct.cuh"

#define STAGES 2

/* A call, as its CTAs see it; all sizes are bytes. */
struct staged {
	uint64_t in, out;
	uint64_t scratch; /* rank 0's, of CTAs b */
	uint64_t stride;  /* from rank to rank */
	uint64_t bytes;   /* of the whole vector, or of a rank's block */
	uint64_t part;    /* most of one part, a multiple of 16 */
	uint32_t rank, nranks, areas;
	bool whole;      /* all-reduce: parts of one vector; else of blocks, one a rank */
	uint32_t chunks; /* of this CTA */
};

/* In (or out) a chunk's part q is at `at` + q * apart. */
struct chunk {
	uint64_t at, apart, part, bytes;
};

DEV uint32_t staged_slots(const struct staged &g)
{
	return max(g.nranks - 1, 1u);
}

DEV struct staged staged_call(const struct kern &k, bool whole, uint64_t bytes)
{
	const struct dev_team *t = &k.a.team;
	struct staged g;
	uint64_t per, n;

	g.in = k.a.in;
	g.out = k.a.out;
	g.stride = t->stride;
	g.bytes = bytes;
	g.part = k.a.out_stride;
	g.rank = t->rank;
	g.nranks = t->nranks;
	g.areas = whole ? 2 : 1;
	g.whole = whole;
	g.scratch = t->ctrl + k.a.in_stride +
		    (uint64_t)cta_id() * g.areas * STAGES * staged_slots(g) * g.part;
	per = whole ? g.nranks * g.part : g.part;
	n = (bytes + per - 1) / per;
	g.chunks = cta_id() < n ? (uint32_t)((n - cta_id() + cta_count() - 1) / cta_count()) : 0;
	return g;
}

/* Chunk i of this CTA. The last of a vector is divided anew, so that all ranks have some of it. */
DEV struct chunk staged_chunk(const struct staged &g, uint32_t i)
{
	uint64_t at = (cta_id() + (uint64_t)i * cta_count()) * g.part * (g.whole ? g.nranks : 1);
	uint64_t left = g.bytes - at;
	struct chunk c;

	c.at = at;
	if (g.whole) {
		c.bytes = min(left, g.nranks * g.part);
		c.part = left < g.nranks * g.part
				 ? ((left + g.nranks - 1) / g.nranks + 15) / 16 * 16
				 : g.part;
		c.apart = c.part;
	} else {
		c.part = min(left, g.part);
		c.bytes = g.nranks * c.part;
		c.apart = g.bytes;
	}
	return c;
}
DEV uint64_t chunk_part(const struct chunk &c, uint32_t q)
{
	uint64_t at = q * c.part;

	return at < c.bytes ? min(c.bytes - at, c.part) : 0;
}

/* Where chunk i's part from `source` lies in rank 0's scratch, and how far it is from there to the
 * next rank's. A rank has a slot for each of the others: the last of them takes the receiver's. */
DEV uint64_t staged_slot(const struct staged &g, uint32_t area, uint32_t i, uint32_t source)
{
	uint64_t stage = area * STAGES + i % STAGES;

	return g.scratch +
	       (stage * staged_slots(g) + (source + 1 < g.nranks ? source : 0)) * g.part;
}
DEV uint64_t staged_apart(const struct staged &g, uint32_t source)
{
	return g.stride + (source + 1 < g.nranks ? 0 : g.part);
}
/* Where this rank finds it. */
DEV uint64_t staged_heard(const struct staged &g, uint32_t area, uint32_t i, uint32_t source)
{
	return staged_slot(g, area, i, source) + g.rank * staged_apart(g, source);
}

/* Wait until all peers' CTAs b have done `steps`; all threads. Nonzero: gave up. */
DEV int staged_await(struct kern &k, uint32_t steps)
{
	const struct dev_team *t = &k.a.team;
	int gave_up = 0;

	DEV_LOOP
	for (uint32_t q = cta_thread(); q < t->nranks && !gave_up; q += cta_threads()) {
		const uint64_t *slot = barrier_slot(t, t->rank, &k.e, 1, cta_id(), q);
		struct dev_wait wait = {0, 0};

		if (q == t->rank)
			continue;
		for (;;) {
			uint64_t word = load_acquire64(slot);

			if (word >> 32 == k.e.flag && (uint32_t)word >= steps)
				break;
			gave_up = wait_turn(t, &k.e, &k.a.watch, &wait, q, cta_id());
			if (gave_up)
				break;
		}
	}
	return cta_sync_or(gave_up);
}
/* All threads are done with a step. */
DEV void staged_done(struct kern &k, uint32_t steps)
{
	const struct dev_team *t = &k.a.team;

	cta_sync();
	DEV_LOOP
	for (uint32_t q = cta_thread(); q < t->nranks; q += cta_threads())
		if (q != t->rank)
			store_release64(barrier_slot(t, q, &k.e, 1, cta_id(), t->rank),
				epoch_word(&k.e, steps));
}

/* One copy for each peer, all at once: f(q, number of this thread, threads). */
template <class F> DEV void staged_each(const struct staged &g, F f)
{
	uint32_t peers = g.nranks - 1, lanes = warp_lanes();
	uint32_t width = max(cta_threads() / max(peers, 1u) / lanes * lanes, lanes);
	uint32_t groups = cta_threads() / width, group = cta_thread() / width;

	DEV_LOOP
	for (uint32_t d = group; d < peers && group < groups; d += groups)
		f(g.rank + 1 + d < g.nranks ? g.rank + 1 + d : g.rank + 1 + d - g.nranks,
			cta_thread() % width, width);
}

/* From the user's memory to a slot, or back: aligned, and touched once, but for a slot. */
template <bool PUSH>
DEV void staged_copy(uint64_t from, uint64_t to, uint64_t bytes, uint32_t first, uint32_t width)
{
	enum { U = 4 };
	const uint32_t vecs = ((from | to) & 15) == 0 ? (uint32_t)(bytes / 16) : 0;

	DEV_LOOP
	for (uint32_t i = first; i < vecs; i += U * width) {
		struct pair64 x[U];

#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * width < vecs) {
				uint64_t p = from + 16 * (i + u * width);

				x[u] = PUSH ? load128_once(p) : load128(p);
			}
#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * width < vecs) {
				uint64_t p = to + 16 * (i + u * width);

				if (PUSH)
					store128(p, x[u]);
				else
					store128_once(p, x[u]);
			}
	}
	if (16 * vecs < bytes)
		copy_range(from + 16 * vecs, to + 16 * vecs, bytes - 16 * vecs, first, width);
}

/* ---- Reducing -------------------------------------------------------------------------------- */

/* (a); (c). Not inlined, so that each of many kernels has it once; by value, so that the caller's
 * stays in registers. */
DEV_COLD void staged_move(const struct staged g, uint32_t i, bool push)
{
	const struct chunk c = staged_chunk(g, i);

	staged_each(g, [&](uint32_t q, uint32_t first, uint32_t width) {
		uint64_t user = (push ? g.in : g.out) + c.at + q * c.apart;
		uint64_t slot = push ? staged_slot(g, 0, i, g.rank) + q * staged_apart(g, g.rank)
				     : staged_heard(g, 1, i, q);

		if (push)
			staged_copy<true>(user, slot, chunk_part(c, q), first, width);
		else
			staged_copy<false>(slot, user, chunk_part(c, q), first, width);
	});
}

/* 1..8 bytes of user memory. */
DEV uint64_t load_any(uint64_t p, uint32_t n)
{
	if (n == 8 && (p & 7) == 0)
		return load64(p);
	if (n == 8 && (p & 3) == 0)
		return load32(p) | (uint64_t)load32(p + 4) << 32;
	return load_bytes(p, n);
}
DEV void store_any(uint64_t p, uint32_t n, uint64_t v)
{
	if (n == 8 && (p & 7) == 0) {
		store64(p, v);
	} else if (n == 8 && (p & 3) == 0) {
		store32(p, (uint32_t)v);
		store32(p + 4, (uint32_t)(v >> 32));
	} else {
		store_bytes(p, n, v);
	}
}

/* (b) */
template <class T, int OP, int N>
DEV void staged_reduce(const struct staged &g, const struct how<T> &h, uint32_t i)
{
	const struct chunk c = staged_chunk(g, i);
	const uint64_t size = chunk_part(c, g.rank);
	const uint64_t own = g.in + c.at + g.rank * c.apart;
	const uint64_t out = g.out + c.at + (g.whole ? g.rank * c.part : 0);
	const uint64_t slots = staged_slot(g, 0, i, 0) + g.rank * g.stride;
	const uint64_t peers = staged_slot(g, 1, i, g.rank), apart = staged_apart(g, g.rank);
	uint64_t done = 0;
	/* rank q's part */
	auto from = [&](uint32_t q) {
		return q == g.rank ? own : slots + (q + 1 < g.nranks ? q : g.rank) * g.part;
	};
	auto to_peers = [&](auto store) {
		const uint32_t n = g.whole ? g.nranks : 0;

		DEV_LOOP
		for (uint32_t d = 1; d < n; d++)
			store(peers + (g.rank + d < n ? g.rank + d : g.rank + d - n) * apart);
	};

	if constexpr (N != 0) {
		enum { U = vector<N>::U };
		const uint32_t step = cta_threads();
		const uint32_t vecs = ((own | out) & 15) == 0 ? (uint32_t)(size / 16) : 0;

		DEV_LOOP
		for (uint32_t v = cta_thread(); v < vecs; v += U * step) {
			struct pair64 x[U][N];

#pragma unroll
			for (int u = 0; u < U; u++)
#pragma unroll
				for (int q = 0; q < N; q++)
					if (v + u * step < vecs) {
						uint64_t p = from(q) + 16 * (v + u * step);

						x[u][q] =
							q == g.rank ? load128_once(p) : load128(p);
					}
#pragma unroll
			for (int u = 0; u < U; u++) {
				uint64_t lo[N], hi[N], at = 16 * (v + u * step);
				struct pair64 r;

				if (v + u * step >= vecs)
					break;
#pragma unroll
				for (int q = 0; q < N; q++) {
					lo[q] = x[u][q].lo;
					hi[q] = x[u][q].hi;
				}
				r.lo = reduce_pack<T, OP, N>(lo, h);
				r.hi = reduce_pack<T, OP, N>(hi, h);
				store128_once(out + at, r);
				to_peers([&](uint64_t p) { store128(p + at, r); });
			}
		}
		done = 16 * (uint64_t)vecs;
	}
	/* Packs, the last of which may be short: in slots its other bytes are anything. "Addresses"
	 * are ranks. */
	const struct sides numbers = {0, 1, 0, 0, g.rank, g.nranks};

	DEV_LOOP
	for (uint64_t at = done + 8 * cta_thread(); at < size; at += 8 * cta_threads()) {
		const uint32_t n = pack_size(at, size);
		uint64_t r = reduce_at<T, OP, N>(numbers, h, 0, [&](uint64_t q) {
			return q == g.rank ? load_any(own + at, n) : load64(from(q) + at);
		});

		store_any(out + at, n, r);
		to_peers([&](uint64_t p) { store64(p + at, r); });
	}
}

/* Reduce-scatter; with CUDA_MODE_WHOLE all-reduce. */
template <class T, int OP, int N> DEV void reduce_staged(const struct cuda_args &args)
{
	struct kern k(args);
	struct how<T> h;
	const bool whole = args.mode & CUDA_MODE_WHOLE;
	const struct staged g = staged_call(k, whole, args.count * T::BYTES);
	const uint32_t steps = g.chunks == 0 ? 0 : g.chunks + (whole ? 2 : 1);

	kern_open(k);
	kern_announce(k);
	how_begin<T, OP>(k, h);
	kern_meet(k, 0, 1);
	how_await<T, OP>(k, h);
	DEV_LOOP
	for (uint32_t i = 0; i < steps && !k.gave_up; i++) {
		if (i < g.chunks)
			staged_move(g, i, true);
		if (i > 0 && i <= g.chunks)
			staged_reduce<T, OP, N>(g, h, i - 1);
		if (whole && i > 1)
			staged_move(g, i - 2, false);
		if (i + 1 < steps) {
			staged_done(k, i + 1);
			k.gave_up = staged_await(k, i + 1);
		}
	}
	kern_end(k);
}

/* ---- All-gather ------------------------------------------------------------------------------ */

/* To the peers, and when not in place to the own output. */
DEV void gather_push(const struct staged &g, uint32_t i)
{
	enum { U = 4 };
	const struct chunk c = staged_chunk(g, i);
	struct fan peers = {
		staged_slot(g, 0, i, g.rank), staged_apart(g, g.rank), g.rank, g.nranks, g.rank};
	const uint64_t from = g.in + c.at, to = g.out + g.rank * g.bytes + c.at;
	const uint32_t width = cta_threads();
	const uint32_t vecs = ((from | to) & 15) == 0 ? (uint32_t)(c.part / 16) : 0;

	DEV_LOOP
	for (uint32_t v = cta_thread(); v < vecs; v += U * width) {
		struct pair64 x[U];

#pragma unroll
		for (int u = 0; u < U; u++)
			if (v + u * width < vecs)
				x[u] = load128_once(from + 16 * (v + u * width));
#pragma unroll
		for (int u = 0; u < U; u++)
			if (v + u * width < vecs && from != to)
				store128_once(to + 16 * (v + u * width), x[u]);
		fan_out(peers, [&](uint64_t slot) {
#pragma unroll
			for (int u = 0; u < U; u++)
				if (v + u * width < vecs)
					store128(slot + 16 * (v + u * width), x[u]);
		});
	}
	peers.at += 16 * vecs;
	copy_fan(from + 16 * vecs, peers, c.part - 16 * vecs, cta_thread(), width);
	if (from != to)
		copy_range(
			from + 16 * vecs, to + 16 * vecs, c.part - 16 * vecs, cta_thread(), width);
}

DEV void allgather_staged(const struct cuda_args &args)
{
	struct kern k(args);
	const struct staged g = staged_call(k, false, args.count);
	const uint32_t steps = g.chunks == 0 ? 0 : g.chunks + 1;

	kern_open(k);
	kern_announce(k);
	kern_meet(k, 0, 1);
	DEV_LOOP
	for (uint32_t i = 0; i < steps && !k.gave_up; i++) {
		if (i < g.chunks)
			gather_push(g, i);
		if (i > 0) {
			const struct chunk c = staged_chunk(g, i - 1);

			staged_each(g, [&](uint32_t q, uint32_t first, uint32_t width) {
				staged_copy<false>(staged_heard(g, 0, i - 1, q),
					g.out + c.at + q * c.apart, c.part, first, width);
			});
		}
		if (i + 1 < steps) {
			staged_done(k, i + 1);
			k.gave_up = staged_await(k, i + 1);
		}
	}
	kern_end(k);
}

#endif
