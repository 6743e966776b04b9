/*
 * What all kernels share: begin and end, 8 bytes of user memory at any alignment, waiting for
 * packets.
 */
#ifndef KERNEL_CUH
#define KERNEL_CUH

#include "machine.cuh"
#include "device/barrier.h"
#include "device/packet.h"

/* A running kernel, as one thread sees it. Its first load is the epoch; kern_open, after the first
 * loads of data, so that all are in flight together, makes it known. */
struct kern {
	const struct cuda_args &a;
	struct pair64 head;
	struct dev_epoch e;
	int gave_up;

	INL kern(const struct cuda_args &args) : a(args), gave_up(0)
	{
		grid_wait();
		if (a.mode & CUDA_MODE_EARLY)
			grid_trigger();
		head = load_relaxed_pair(team_head(&a.team));
	}
};

DEV uint32_t kern_first()
{
	return cta_id() * cta_threads() + cta_thread();
}
DEV uint32_t kern_step()
{
	return cta_count() * cta_threads();
}

/* Before anything that needs the epoch. */
DEV void kern_open(struct kern &k)
{
	settle(k.head);
	k.e = epoch_of(k.head);
	k.gave_up = k.e.dead != DEV_ALIVE;
	if (cta_id() == 0 && !k.gave_up)
		epoch_prepare(&k.a.team, &k.e, cta_thread(), cta_threads());
}
/* After what peers wait for has been sent. */
DEV void kern_announce(struct kern &k)
{
	if (cta_id() == 0 && !k.gave_up)
		epoch_announce(&k.a.team, &k.e, k.a.watch.hash, cta_thread(), cta_threads());
}
DEV void kern_end(struct kern &k)
{
	cta_sync();
	grid_trigger();
	if (cta_thread() == 0)
		epoch_end(&k.a.team, cta_id(), cta_count());
}
/* opens: nothing that this kernel stored is to be seen after it. */
DEV void kern_meet(struct kern &k, uint32_t phase, int opens = 0)
{
	k.gave_up = barrier_meet(&k.a.team, &k.e, &k.a.watch, phase, cta_id(), cta_thread(),
		cta_threads(), opens, k.gave_up);
}

/* ---- User memory ------------------------------------------------------------------------- */

/* n bytes (1..8), no alignment known; all in flight together. */
DEV_COLD uint64_t load_bytes(uint64_t p, uint32_t n)
{
	uint64_t v = 0;

	if ((p & 3) == 0 && n >= 4) {
		v = load32(p);
		if (n == 4)
			return v;
#pragma unroll
		for (uint32_t b = 4; b < 8; b++)
			v |= b < n ? (uint64_t)load8(p + b) << (8 * b) : 0;
		return v;
	}
#pragma unroll
	for (uint32_t b = 0; b < 8; b++)
		v |= b < n ? (uint64_t)load8(p + b) << (8 * b) : 0;
	return v;
}
DEV_COLD void store_bytes(uint64_t p, uint32_t n, uint64_t v)
{
	uint32_t b = 0;

	if ((p & 3) == 0 && n >= 4) {
		store32(p, (uint32_t)v);
		b = 4;
	}
	DEV_LOOP
	for (; b < n; b++)
		store8(p + b, (uint32_t)(v >> (8 * b)));
}

/* Packs of 8 bytes of a buffer of `bytes`; the last may be short. Packs i + u * step for u < valid;
 * all loads in flight together. */
DEV uint32_t pack_size(uint64_t at, uint64_t bytes)
{
	return bytes - at < 8 ? (uint32_t)(bytes - at) : 8;
}
template <int U>
DEV void packs_load(
	uint64_t buffer, uint32_t i, uint32_t step, int valid, uint64_t bytes, uint64_t (&x)[U])
{
	int slow = 0;

#pragma unroll
	for (int u = 0; u < U; u++) {
		uint32_t j = i + u * step;
		int fast = u < valid && (buffer & 7) == 0 && j < (uint32_t)(bytes / 8);

		slow |= (u < valid && !fast) << u;
		x[u] = load64_if(fast, buffer + 8 * (uint64_t)j);
	}
	if (slow != 0)
#pragma unroll
		for (int u = 0; u < U; u++) {
			uint64_t at = 8 * (i + (uint64_t)u * step);

			if (slow >> u & 1)
				x[u] = load_bytes(buffer + at, pack_size(at, bytes));
		}
}
template <int U>
DEV void packs_store(uint64_t buffer, uint32_t i, uint32_t step, int valid, uint64_t bytes,
	const uint64_t (&x)[U])
{
#pragma unroll
	for (int u = 0; u < U; u++) {
		uint32_t j = i + u * step;
		uint64_t at = 8 * (uint64_t)j;

		if (u < valid && (buffer & 7) == 0 && j < (uint32_t)(bytes / 8))
			store64(buffer + at, x[u]);
		else if (u < valid)
			store_bytes(buffer + at, pack_size(at, bytes), x[u]);
	}
}

/* ---- Packets ----------------------------------------------------------------------------- */

/* Send x[u] for the u < valid to slot `to` + u * step of rank q. */
template <int U>
DEV void packets_send(
	struct kern &k, uint32_t q, uint64_t slot, uint64_t step, int valid, const uint64_t (&x)[U])
{
	char *to = packet_slots(&k.a.team, q, &k.e) + PACKET_BYTES * slot;

#pragma unroll
	for (int u = 0; u < U; u++)
		if (u < valid)
			packet_store(to + PACKET_BYTES * u * step, x[u], k.e.flag);
}

/*
 * Await, for the u < valid and the ranks first + j, j < n, in `want` (bit j), the packet in slot
 * `slot` + j * by_rank + u * by_unroll. All loads of a turn are in flight together.
 */
template <int U, int N>
DEV int packets_await(struct kern &k, uint32_t first, uint32_t want, uint64_t slot,
	uint64_t by_rank, uint64_t by_unroll, int valid, uint64_t (&x)[U][N])
{
	const char *from = packet_slots(&k.a.team, k.a.team.rank, &k.e) + PACKET_BYTES * slot;
	struct dev_wait wait = {0, 0};

	for (;;) {
		uint32_t missing = 0;
		struct pair64 p[U][N];

#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int j = 0; j < N; j++)
				p[u][j] = load_relaxed_pair_if(u < valid && (want >> j & 1),
					from + PACKET_BYTES * (j * by_rank + u * by_unroll));
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int j = 0; j < N; j++)
				if (u < valid && (want >> j & 1) &&
					((uint32_t)(p[u][j].lo >> 32) != k.e.flag ||
						(uint32_t)(p[u][j].hi >> 32) != k.e.flag))
					missing |= 1u << j;
		if (missing == 0) {
#pragma unroll
			for (int u = 0; u < U; u++)
#pragma unroll
				for (int j = 0; j < N; j++)
					x[u][j] = (uint32_t)p[u][j].lo | p[u][j].hi << 32;
			return 0;
		}
		if (wait_turn(&k.a.team, &k.e, &k.a.watch, &wait, first + lowest_bit(missing),
			    cta_id()))
			return 1;
	}
}

#endif
