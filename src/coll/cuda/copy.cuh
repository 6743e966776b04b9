/*
 * Bytes from one place to another at any alignment, by `width` threads of which this is number
 * `first`; nothing here makes them meet.
 */
#ifndef COPY_CUH
#define COPY_CUH

#include "kernel.cuh"

/* 16 bytes from an address that is aligned to less, by whole words that hold some of them. */
DEV struct pair64 load128_unaligned(uint64_t p)
{
	uint32_t w[5], shift = 8 * (uint32_t)(p & 3);
	struct pair64 v;

	p &= ~3ull;
	w[4] = 0;
#pragma unroll
	for (int i = 0; i < 5; i++)
		if (i < 4 || shift != 0)
			w[i] = load32(p + 4 * i);
#pragma unroll
	for (int i = 0; i < 4; i++)
		w[i] = shift_right(w[i], w[i + 1], shift);
	v.lo = w[0] | (uint64_t)w[1] << 32;
	v.hi = w[2] | (uint64_t)w[3] << 32;
	return v;
}

/* vecs vectors of 16 bytes; to is aligned. */
template <bool ALIGNED>
DEV void copy_range_vectors(
	uint64_t from, uint64_t to, uint64_t vecs, uint32_t first, uint32_t width)
{
	enum { U = 4 };

	DEV_LOOP
	for (uint64_t i = first; i < vecs; i += U * (uint64_t)width) {
		struct pair64 x[U];

#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * (uint64_t)width < vecs) {
				uint64_t p = from + 16 * (i + u * (uint64_t)width);

				x[u] = ALIGNED ? load128(p) : load128_unaligned(p);
			}
#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * (uint64_t)width < vecs)
				store128(to + 16 * (i + u * (uint64_t)width), x[u]);
	}
}
DEV void copy_range(uint64_t from, uint64_t to, uint64_t bytes, uint32_t first, uint32_t width)
{
	uint64_t head = min(bytes, -to & 15), vecs = (bytes - head) / 16, tail = head + 16 * vecs;

	if (((from ^ to) & 15) == 0)
		copy_range_vectors<true>(from + head, to + head, vecs, first, width);
	else
		copy_range_vectors<false>(from + head, to + head, vecs, first, width);
	DEV_LOOP
	for (uint64_t i = first; i < head; i += width)
		store8(to + i, load8(from + i));
	DEV_LOOP
	for (uint64_t i = tail + first; i < bytes; i += width)
		store8(to + i, load8(from + i));
}

/* To the same place on all ranks but `skip`: that of rank q is at + q * stride. */
struct fan {
	uint64_t at, stride;
	uint32_t rank, nranks, skip;
};
template <class STORE> DEV void fan_out(const struct fan &f, STORE store)
{
	DEV_LOOP
	for (uint32_t d = 0; d < f.nranks; d++) {
		uint32_t q = f.rank + d < f.nranks ? f.rank + d : f.rank + d - f.nranks;

		if (q != f.skip)
			store(f.at + q * f.stride);
	}
}
template <bool ALIGNED>
DEV void copy_fan_vectors(uint64_t from, const struct fan &f, uint64_t at, uint64_t vecs,
	uint32_t first, uint32_t width)
{
	enum { U = 4 };

	DEV_LOOP
	for (uint64_t i = first; i < vecs; i += U * (uint64_t)width) {
		struct pair64 x[U];

#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * (uint64_t)width < vecs) {
				uint64_t p = from + at + 16 * (i + u * (uint64_t)width);

				x[u] = ALIGNED ? load128(p) : load128_unaligned(p);
			}
		fan_out(f, [&](uint64_t to) {
#pragma unroll
			for (int u = 0; u < U; u++)
				if (i + u * (uint64_t)width < vecs)
					store128(to + at + 16 * (i + u * (uint64_t)width), x[u]);
		});
	}
}
/* The stride is a multiple of 16. */
DEV void copy_fan(
	uint64_t from, const struct fan &f, uint64_t bytes, uint32_t first, uint32_t width)
{
	uint64_t head = min(bytes, -f.at & 15), vecs = (bytes - head) / 16;

	if (((from ^ f.at) & 15) == 0)
		copy_fan_vectors<true>(from, f, head, vecs, first, width);
	else
		copy_fan_vectors<false>(from, f, head, vecs, first, width);
	DEV_LOOP
	for (uint64_t i = first; i < bytes - 16 * vecs; i += width) {
		uint64_t at = i < head ? i : i + 16 * vecs;
		uint32_t v = load8(from + at);

		fan_out(f, [&](uint64_t to) { store8(to + at, v); });
	}
}

/* ---- Where the root's buffer is -------------------------------------------------------------- */

/* Before and after the first barrier: the root tells everybody an offset from its control block, 0
 * for none; CTA by CTA, in a packet slot. Returns what the root said. */
DEV void root_tell(struct kern &k, uint64_t where)
{
	const struct dev_team *t = &k.a.team;

	if (t->rank == k.a.root && !k.gave_up)
		for (uint32_t q = cta_thread(); q < t->nranks; q += cta_threads())
			store64((uintptr_t)packet_slots(t, q, &k.e) + PACKET_BYTES * cta_id(),
				where);
}
DEV uint64_t root_told(struct kern &k)
{
	const struct dev_team *t = &k.a.team;

	return k.gave_up ? 0
			 : load64((uintptr_t)packet_slots(t, t->rank, &k.e) +
				   PACKET_BYTES * cta_id());
}

/* ---- 8 bytes at a time ---------------------------------------------------------------------- */

/* One pack of n bytes. */
DEV void store_pack(uint64_t p, uint32_t n, uint64_t v)
{
	if (n == 8 && (p & 7) == 0)
		store64(p, v);
	else
		store_bytes(p, n, v);
}

/* Await the packets in slots slot[b] of this rank, from ranks from[b], for the bits b of want. All
 * loads of a turn are in flight together. Nonzero: gave up. */
template <int B>
DEV int packets_await_at(struct kern &k, uint32_t want, const uint32_t (&from)[B],
	const uint64_t (&slot)[B], uint64_t (&x)[B])
{
	const char *slots = packet_slots(&k.a.team, k.a.team.rank, &k.e);
	struct dev_wait wait = {0, 0};

	for (;;) {
		uint32_t missing = 0;
		struct pair64 p[B];

#pragma unroll
		for (int b = 0; b < B; b++)
			p[b] = load_relaxed_pair_if(want >> b & 1, slots + PACKET_BYTES * slot[b]);
#pragma unroll
		for (int b = 0; b < B; b++)
			if ((want >> b & 1) && ((uint32_t)(p[b].lo >> 32) != k.e.flag ||
						       (uint32_t)(p[b].hi >> 32) != k.e.flag))
				missing |= 1u << b;
		if (missing == 0) {
#pragma unroll
			for (int b = 0; b < B; b++)
				x[b] = (uint32_t)p[b].lo | p[b].hi << 32;
			return 0;
		}
		uint32_t who = 0;

#pragma unroll
		for (int b = B - 1; b >= 0; b--)
			if (missing >> b & 1)
				who = from[b];
		if (wait_turn(&k.a.team, &k.e, &k.a.watch, &wait, who, cta_id()))
			return 1;
	}
}

#endif
