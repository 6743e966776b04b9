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

#define RING_CHUNK 4096 /* a large message is dealt out to the channels by chunks of this */

/* One warp's side of a channel. */
struct ring {
	const struct cuda_messages &a;
	const struct cuda_message &m;
	struct ring_line *line; /* this rank's */
	char *slots;            /* the receiver's */
	uint32_t channel, channels, dead;
	uint64_t pos;    /* of the ring */
	uint64_t credit; /* sending: how far the receiver is, at least */
	uint64_t packs;  /* of the message, that are this channel's */
	uint32_t chunk;  /* bytes: channel 0 has the first, channel 1 the second, and so on */
	int gave_up;

	INL ring(const struct cuda_messages &args, const struct cuda_message &msg, uint32_t ch,
		uint32_t n, uint32_t is_dead)
	    : a(args), m(msg), channel(ch), channels(n), dead(is_dead), gave_up(0)
	{
		const struct dev_team *t = &a.team;

		line = line_of(t->rank, m.peer);
		pos = load_relaxed64(m.recv ? &line->got : &line->sent);
		credit = load_relaxed64(&line->credit);
		slots = team_ctrl(t, m.recv ? t->rank : m.peer) + a.ring.rings +
			((m.recv ? m.peer : t->rank) * (uint64_t)a.ring.channels + ch) *
				(PACKET_BYTES * RING_SLOTS);
		deal();
	}
	/* Which of the message's bytes are this channel's. */
	INL void deal()
	{
		uint64_t chunks, own;

		if (channels == 1) {
			chunk = (uint32_t)m.bytes;
			packs = (m.bytes + 7) / 8;
			return;
		}
		chunk = RING_CHUNK;
		if (m.bytes < (uint64_t)channels * RING_CHUNK)
			chunk = ((uint32_t)m.bytes / channels + 128) / 128 * 128;
		chunks = (m.bytes + chunk - 1) / chunk;
		own = channel < chunks ? (chunks - 1 - channel) / channels + 1 : 0;
		packs = own * (chunk / 8);
		if (own != 0 && (chunks - 1) % channels == channel)
			packs -= (chunks * chunk - m.bytes) / 8;
	}
	/* The first byte of the channel's pack i. */
	INL uint64_t place(uint64_t i) const
	{
		if (chunk != RING_CHUNK || channels == 1)
			return (uint64_t)channel * chunk + 8 * i;
		return (i / (RING_CHUNK / 8) * channels + channel) * RING_CHUNK +
		       i % (RING_CHUNK / 8) * 8;
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

	r.gave_up |= r.dead != DEV_ALIVE;
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
			uint64_t i = base + u * lanes + lane, at = r.place(i - 1);
			uint32_t size = i != 0 && i < last ? pack_size(at, r.m.bytes) : 0;
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

/* Tell the sender what has been taken. No release: all that it may overwrite has been loaded and
 * looked at. */
DEV void ring_credit(struct ring &r)
{
	warp_sync();
	if (warp_lane() == 0)
		store_relaxed64(&r.line_of(r.m.peer, r.a.team.rank)->credit, r.pos);
}
/* The header has come, alone perhaps: is it what was expected? */
DEV int ring_header_bad(struct ring &r, const struct pair64 &p)
{
	uint64_t theirs = (uint32_t)p.lo | p.hi << 32;
	int bad = warp_lane() == 0 && (uint32_t)(p.lo >> 32) == r.flag(r.pos) &&
		  (uint32_t)(p.hi >> 32) == r.flag(r.pos) && theirs != r.m.bytes;

	if (bad)
		ring_die(r.a, r.m, theirs);
	return warp_any(bad);
}
/* The other side of ring_send. store: they are the message's, beyond the header. */
DEV void ring_receive(struct ring &r, uint64_t first, uint64_t last, bool store)
{
	const uint32_t lane = warp_lane(), lanes = warp_lanes();

	r.gave_up |= r.dead != DEV_ALIVE;
	DEV_LOOP
	for (uint64_t base = first; base < last && !r.gave_up; base += RING_U * lanes) {
		struct dev_wait wait = {0, 0};
		struct pair64 p[RING_U];
		int missing;

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
			if (base == 0)
				r.gave_up = ring_header_bad(r, p[0]);
			if (missing && !r.gave_up)
				r.gave_up = ring_turn(r, wait);
		} while (missing && !r.gave_up);
		if (r.gave_up)
			return;
#pragma unroll
		for (int u = 0; u < RING_U; u++) {
			uint64_t i = base + u * lanes + lane, at = r.place(i - 1);

			if (store && i != 0 && i < last)
				store_pack(r.m.at + at, pack_size(at, r.m.bytes),
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
	const uint64_t packets = 1 + r.packs;
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
	copy_range(r.m.at, where, r.m.bytes, r.channel * warp_lanes() + warp_lane(),
		r.channels * warp_lanes()); /* all channels side by side */
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
	const uint64_t packets = 1 + r.packs;

	if (r.m.bytes < RING_DIRECT_BYTES) {
		ring_receive(r, 0, packets, true);
		return;
	}
	ring_make_offer(r);
	ring_receive(r, 0, 1, false);
	if (r.m.offer == ~0ull) {
		ring_receive(r, 1, packets, true);
		return;
	}
	ring_receive(r, 1, 2, false); /* stored */
	fence_system();
}

/* All messages of the list that are this warp's: every channel of a pair is one warp's. */
DEV void messages(const struct cuda_messages &a)
{
	uint32_t per = a.warps, places = a.places, place, first, dead;
	int gave_up;

	if (warp_count() < per * places) { /* on a CPU, where a warp is a CTA */
		per = max(1u, warp_count() / a.npairs);
		places = warp_count() / per;
	}
	place = warp_id() / per;
	first = warp_id() % per;
	gave_up = place >= places;

	grid_wait();
	dead = load_relaxed32(&team_head(&a.team)->dead); /* looked at later: all is in flight */
	DEV_LOOP
	for (uint32_t i = 0; i < a.n && !gave_up; i++) {
		const struct cuda_message &m = a.m[i];
		uint32_t n = ring_channels(m.bytes, a.ring.channels);

		if ((m.pair < places ? m.pair : m.pair % places) != place)
			continue;
		DEV_LOOP
		for (uint32_t ch = first; ch < n && !gave_up; ch += per) {
			struct ring r(a, m, ch, n, dead);

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
