/*
 * Messages between pairs of ranks: a warp moves one channel's slice of one message at a time. The
 * protocol's memory and order: coll_abi.h.
 *
 * Of a slice the sender sends a header packet, which says how long the message is, then its bytes,
 * 8 a packet; as fast as the receiver takes them out of the ring. From RING_DIRECT_BYTES on it
 * waits for the receiver's offer first: if that says where the message goes, the sender stores it
 * there, and one more packet says that it has.
 */
#ifndef RING_CUH
#define RING_CUH

#include "copy.cuh"

#define RING_U 4 /* packets in flight per lane */

/* One warp's side of a channel. */
struct ring {
	const struct cuda_messages &a;
	const struct cuda_message &m;
	struct ring_line *line; /* this rank's */
	char *slots;            /* the receiver's */
	uint32_t channel;
	uint64_t pos, lo, hi; /* of the ring; of the message: this channel's bytes */
	uint64_t credit;      /* sending: how far the receiver is, at least */
	int gave_up;

	INL ring(const struct cuda_messages &args, const struct cuda_message &msg, uint32_t ch)
	    : a(args), m(msg), channel(ch), gave_up(0)
	{
		const struct dev_team *t = &a.team;
		uint64_t slice, n = ring_channels(m.bytes, a.ring.channels);

		line = line_of(t->rank, m.peer);
		slots = team_ctrl(t, m.recv ? t->rank : m.peer) + a.ring.rings +
			((m.recv ? m.peer : t->rank) * (uint64_t)a.ring.channels + ch) *
				(PACKET_BYTES * RING_SLOTS);
		pos = load_relaxed64(m.recv ? &line->got : &line->sent);
		credit = load_relaxed64(&line->credit);
		slice = ((m.bytes + n - 1) / n + 127) / 128 * 128;
		lo = min(m.bytes, ch * slice);
		hi = min(m.bytes, lo + slice);
	}
	/* Of this channel in `at`'s memory, between it and `other`. */
	INL struct ring_line *line_of(uint32_t at, uint32_t other) const
	{
		return (struct ring_line *)(team_ctrl(&a.team, at) + a.ring.lines) +
		       other * (uint64_t)a.ring.channels + channel;
	}
	INL char *slot(uint64_t p) const
	{
		return slots + PACKET_BYTES * (p % RING_SLOTS);
	}
	INL uint32_t flag(uint64_t p) const
	{
		return (uint32_t)(p / RING_SLOTS) + 1;
	}
};

/* What may end a wait: 0, leave; else its deadline. One lane. */
DEV_COLD uint64_t pair_look(
	const struct dev_team *t, const struct dev_watch *w, uint64_t deadline, uint32_t peer)
{
	uint64_t now = clock_ns();

	wait_rest();
	if (load_relaxed32(&team_head(t)->dead) != DEV_ALIVE)
		return 0;
	if (w->abort != 0 && load_relaxed32((const uint32_t *)(uintptr_t)w->abort) != 0) {
		team_die(t, 0, w, DEV_ABORTED, peer, 0, cta_id());
		return 0;
	}
	if (deadline == 0)
		deadline = now + w->timeout_ns + 1;
	if (w->timeout_ns != 0 && now >= deadline) {
		team_die(t, 0, w, DEV_TIMED_OUT, peer, 0, cta_id());
		return 0;
	}
	return deadline;
}
/* One more turn of the warp. Nonzero, to all lanes: leave. */
DEV int ring_turn(struct ring &r, struct dev_wait &wait)
{
	int leave = 0;

	cpu_relax();
	if (++wait.turns & (r.a.watch.look_every - 1))
		return 0;
	if (warp_lane() == 0) {
		wait.deadline = pair_look(&r.a.team, &r.a.watch, wait.deadline, r.m.peer);
		leave = wait.deadline == 0;
	}
	return warp_any(leave);
}
/* The peer's message is of another size. One lane. */
DEV_COLD void ring_die(const struct cuda_messages &a, const struct cuda_message &m, uint64_t theirs)
{
	struct dev_watch w = a.watch;

	w.hash = (uint32_t)theirs;
	team_die(&a.team, m.bytes, &w, CUDA_DEAD_SIZES, m.peer, (uint32_t)(theirs >> 32), cta_id());
}

/* Until the ring has room for packets up to `end`. */
DEV void ring_room(struct ring &r, uint64_t end)
{
	struct dev_wait wait = {0, 0};

	while (!r.gave_up && warp_any((int64_t)(end - r.credit) > RING_SLOTS)) {
		r.credit = load_acquire64(&r.line->credit);
		r.gave_up = ring_turn(r, wait);
	}
}

/* Packets [first, last) of the slice: 0 is the header, 1 + i the i-th 8 bytes. */
DEV void ring_send(struct ring &r, uint64_t first, uint64_t last)
{
	const uint32_t lane = warp_lane(), lanes = warp_lanes();

	DEV_LOOP
	for (uint64_t base = first; base < last && !r.gave_up; base += RING_U * lanes) {
		uint64_t x[RING_U];

#pragma unroll
		for (int u = 0; u < RING_U; u++) {
			uint64_t i = base + u * lanes + lane, at = r.lo + 8 * (i - 1);
			uint32_t size = i != 0 && i < last ? pack_size(at, r.hi) : 0;
			int fast = size == 8 && ((r.m.at + at) & 7) == 0;

			x[u] = load64_if(fast, r.m.at + at);
			if (size != 0 && !fast)
				x[u] = load_bytes(r.m.at + at, size);
			if (i == 0)
				x[u] = r.m.bytes;
		}
		ring_room(r, r.pos + min(last - base, (uint64_t)RING_U * lanes));
		if (r.gave_up)
			return;
#pragma unroll
		for (int u = 0; u < RING_U; u++) {
			uint64_t p = r.pos + u * lanes + lane;

			if (base + u * lanes + lane < last)
				packet_store(r.slot(p), x[u], r.flag(p));
		}
		r.pos += min(last - base, (uint64_t)RING_U * lanes);
	}
}

/* Tell the sender what has been taken; all lanes are done with it. */
DEV void ring_credit(struct ring &r)
{
	warp_sync();
	if (warp_lane() == 0)
		store_release64(&r.line_of(r.m.peer, r.a.team.rank)->credit, r.pos);
}
DEV void ring_receive(struct ring &r, uint64_t first, uint64_t last)
{
	const uint32_t lane = warp_lane(), lanes = warp_lanes();

	DEV_LOOP
	for (uint64_t base = first; base < last && !r.gave_up; base += RING_U * lanes) {
		struct dev_wait wait = {0, 0};
		struct pair64 p[RING_U];
		int missing, bad = 0;

		do {
			missing = 0;
#pragma unroll
			for (int u = 0; u < RING_U; u++)
				p[u] = load_relaxed_pair_if(base + u * lanes + lane < last,
					r.slot(r.pos + u * lanes + lane));
#pragma unroll
			for (int u = 0; u < RING_U; u++) {
				uint32_t flag = r.flag(r.pos + u * lanes + lane);

				missing |= base + u * lanes + lane < last &&
					   ((uint32_t)(p[u].lo >> 32) != flag ||
						   (uint32_t)(p[u].hi >> 32) != flag);
			}
			missing = warp_any(missing);
			if (missing)
				r.gave_up = ring_turn(r, wait);
		} while (missing && !r.gave_up);
		if (r.gave_up)
			return;
		if (base == 0) { /* the header is lane 0's */
			uint64_t theirs = (uint32_t)p[0].lo | p[0].hi << 32;

			if (lane == 0 && theirs != r.m.bytes) {
				ring_die(r.a, r.m, theirs);
				bad = 1;
			}
			r.gave_up = warp_any(bad);
			if (r.gave_up)
				return;
		}
#pragma unroll
		for (int u = 0; u < RING_U; u++) {
			uint64_t i = base + u * lanes + lane, at = r.lo + 8 * (i - 1);

			if (i != 0 && i < last && at < r.hi)
				store_pack(r.m.at + at, pack_size(at, r.hi),
					(uint32_t)p[u].lo | p[u].hi << 32);
		}
		r.pos += min(last - base, (uint64_t)RING_U * lanes);
		ring_credit(r);
	}
}

/* The receiver's offer: ~0, nowhere. */
DEV uint64_t ring_await_offer(struct ring &r)
{
	struct dev_wait wait = {0, 0};
	uint32_t number = r.line->taken + 1;
	uint64_t where = 0, bytes = 0;
	int bad = 0;

	while (!r.gave_up && warp_any(!packet_load(&r.line->offer[0], number, &where) ||
				      !packet_load(&r.line->offer[2], number, &bytes)))
		r.gave_up = ring_turn(r, wait);
	if (!r.gave_up) {
		if (warp_lane() == 0 && bytes != r.m.bytes) {
			ring_die(r.a, r.m, bytes);
			bad = 1;
		}
		r.gave_up = warp_any(bad);
	}
	if (warp_lane() == 0)
		r.line->taken = number;
	return where;
}
DEV void ring_make_offer(struct ring &r)
{
	struct ring_line *theirs = r.line_of(r.m.peer, r.a.team.rank);
	uint32_t number;

	if (warp_lane() == 0) {
		number = r.line->offered + 1;
		packet_store(&theirs->offer[0], r.m.offer, number);
		packet_store(&theirs->offer[2], r.m.bytes, number);
		r.line->offered = number;
	}
}

/* A slice of a message, sender's and receiver's side. */
DEV void message_send(struct ring &r)
{
	const uint64_t packets = 1 + (r.hi - r.lo + 7) / 8;
	uint64_t where;

	if (r.m.bytes < RING_DIRECT_BYTES) {
		ring_send(r, 0, packets);
		return;
	}
	ring_send(r, 0, 1);
	where = r.gave_up ? 0 : ring_await_offer(r);
	if (r.gave_up)
		return;
	if (where == ~0ull) {
		ring_send(r, 1, packets);
		return;
	}
	where += (uintptr_t)team_ctrl(&r.a.team, r.m.peer);
	copy_range(r.m.at + r.lo, where + r.lo, r.hi - r.lo, warp_lane(), warp_lanes());
	warp_sync();
	ring_room(r, r.pos + 1);
	if (warp_lane() == 0 && !r.gave_up) {
		fence_system();
		packet_store(r.slot(r.pos), 0, r.flag(r.pos));
	}
	r.pos++;
}
DEV void message_receive(struct ring &r)
{
	const uint64_t packets = 1 + (r.hi - r.lo + 7) / 8;

	if (r.m.bytes < RING_DIRECT_BYTES) {
		ring_receive(r, 0, packets);
		return;
	}
	ring_make_offer(r);
	ring_receive(r, 0, 1);
	if (r.m.offer == ~0ull) {
		ring_receive(r, 1, packets);
		return;
	}
	r.hi = r.lo; /* the packet that says so holds none of it */
	ring_receive(r, 1, 2);
	fence_system();
}

/* All messages of the list that are this warp's. */
DEV void messages(const struct cuda_messages &a)
{
	const uint32_t warps = warp_count(), per = max(1u, warps / a.npairs), w = warp_id();
	const uint32_t places = warps / per; /* of `per` warps each */
	int gave_up;

	grid_wait();
	gave_up = load_relaxed32(&team_head(&a.team)->dead) != DEV_ALIVE;
	DEV_LOOP
	for (uint32_t i = 0; i < a.n && w / per < places && !gave_up; i++) {
		const struct cuda_message &m = a.m[i];
		uint32_t n = ring_channels(m.bytes, a.ring.channels);

		if (m.pair % places != w / per)
			continue;
		DEV_LOOP
		for (uint32_t ch = w % per; ch < n && !gave_up; ch += per) {
			struct ring r(a, m, ch);

			if (m.recv)
				message_receive(r);
			else
				message_send(r);
			warp_sync();
			if (warp_lane() == 0)
				store_relaxed64(m.recv ? &r.line->got : &r.line->sent, r.pos);
			warp_sync();
			gave_up = r.gave_up;
		}
	}
	grid_trigger();
}

/* ---- Signals --------------------------------------------------------------------------------- */

DEV struct signal_words *signal_words_at(
	const struct dev_team *t, uint64_t signals, uint32_t at, uint32_t source)
{
	return (struct signal_words *)(team_ctrl(t, at) + signals) + source;
}

DEV void put_signal(const struct cuda_signal &a)
{
	grid_wait();
	if (load_relaxed32(&team_head(&a.team)->dead) == DEV_ALIVE) {
		copy_range(a.from, a.to, a.bytes, cta_thread(), cta_threads());
		cta_sync();
		if (cta_thread() == 0)
			add_release64(&signal_words_at(&a.team, a.signals, a.peer, a.team.rank)
					       ->come[a.index],
				1);
	}
	grid_trigger();
}

DEV void wait_signals(const struct cuda_waits &a)
{
	grid_wait();
	DEV_LOOP
	for (uint32_t i = cta_thread(); i < a.n; i += cta_threads()) {
		struct signal_words *w =
			signal_words_at(&a.team, a.signals, a.team.rank, a.w[i].peer);
		uint64_t taken = w->taken[a.w[i].index], deadline = 0;
		uint32_t turns = 0;
		int gave_up = 0;

		while (!gave_up && (int64_t)(load_acquire64(&w->come[a.w[i].index]) - taken) <
					   (int64_t)a.w[i].count) {
			cpu_relax();
			if (++turns & (a.watch.look_every - 1))
				continue;
			deadline = pair_look(&a.team, &a.watch, deadline, a.w[i].peer);
			gave_up = deadline == 0;
		}
		if (!gave_up)
			w->taken[a.w[i].index] = taken + a.w[i].count;
	}
	grid_trigger();
}

#endif
