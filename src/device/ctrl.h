/*
 * The GPU's control block: one per rank, at the same offset of each rank's slot, zeroed at birth.
 *
 *   head    this rank's own words
 *   half 0  written by the peers in even epochs      half 1  in odd ones. Each half:
 *     plan      [source]              8-byte words {flag, hash}: which call the source is in
 *     scalar    [source]              packets: the factor of a pre-multiplied sum
 *     barrier   [phase][cta][source]  8-byte words {flag, hash}
 *     packets   slots of 16 bytes; how a call numbers them is its own affair
 *
 * One kernel is one epoch, whatever the kernel and its grid. Why two halves are enough:
 *   (1) in each epoch every rank sends to every peer, and awaits from every peer, at least one
 *       packet or barrier word; and it awaits all that peers send, except plan words;
 *   (2) a kernel writes to peers only once the rank's previous kernel is complete (stream order, or
 *       the wait for the grid before it);
 *   so a rank that has completed epoch e+1 has heard from each peer's kernel e+1, which by (2)
 * began after that peer's kernel e was complete: everything in half e & 1 has been read there, and
 * may be written for e+2. Nothing in this depends on which CTA sent or read what, hence neither on
 * the grid's size nor on CTAs that had nothing to do.
 *
 * The epoch is counted on the GPU, so graphs can be replayed: `arrivals` is epoch << 16 plus the
 * CTAs of the running kernel that are done with reading it. CTA 0 adds what is missing to a full
 * epoch, so after the last CTA the sum is (epoch + 1) << 16 and no CTA had to wait to know that it
 * was the last.
 *
 * Flags are 32 bits: the low 31 of the epoch, and the top bit, so that zero never matches. They
 * come again after 2^31 epochs, so a slot not written since then would match. Therefore the half of
 * each of the first two epochs of a new period is zeroed in the epoch before, by CTA 0, before it
 * sends anything: peers cannot be in the next epoch before they have heard from it, and all that
 * was sent to that half has been read.
 */
#include "names.h"
#ifndef SYMCCL_DEVICE_CTRL_H
#define SYMCCL_DEVICE_CTRL_H

#include <stddef.h>
#include <stdint.h>
#include "lane.h"

#define SYMCCL_DEV_CTAS_MAX 128  /* CTAs of one kernel that uses barriers */
#define SYMCCL_DEV_RANKS_MAX 120 /* ranks of a team */
#define SYMCCL_DEV_PHASES 2      /* barriers in one epoch */
#define SYMCCL_DEV_EPOCH_SHIFT 16
#define SYMCCL_DEV_FLAG_BIT 0x80000000u

struct dev_head {
	uint64_t arrivals; /* see above */
	uint32_t dead;     /* enum dev_dead; set once, then every kernel leaves at once */
	uint32_t claim;    /* who sets it first writes the record */
	uint8_t pad[240];
};
#define SYMCCL_DEV_HEAD_BYTES 256

enum dev_dead { DEV_ALIVE, DEV_ABORTED, DEV_TIMED_OUT, DEV_DIFFERS };

/* What a kernel that gave up leaves for the host, in host memory. */
struct dev_record {
	uint32_t state; /* nonzero, stored last: the rest is there */
	uint32_t code;  /* enum dev_dead */
	uint32_t rank, peer;
	uint64_t epoch;
	uint32_t hash, peer_hash; /* of the calls; peer_hash 0: the peer has not begun this epoch */
	uint32_t cta;
	uint32_t pad[7];
};

/* Where things are: the same on all ranks of a team. */
struct dev_layout {
	uint64_t half_bytes;
	uint64_t slots; /* packets in one half */
	uint32_t scalar_off, barrier_off, barrier_row, packet_off;
};

/* What a kernel knows of its team. */
struct dev_team {
	uint64_t ctrl; /* address of rank 0's control block as this rank sees it */
	uint64_t stride;
	struct dev_layout layout;
	uint32_t rank, nranks;
};

/* How a kernel's waits end. */
struct dev_watch {
	uint64_t abort;      /* address of the abort word, 0: none */
	uint64_t record;     /* address of a struct dev_record */
	uint64_t timeout_ns; /* of one wait; 0: none */
	uint32_t hash;       /* of the call; equal on all ranks, not 0 */
	uint32_t look_every; /* turns between looks, a power of two */
};

#ifdef __cplusplus
#define SYMCCL_DEV_ASSERT(c) static_assert(c, #c)
#else
#define SYMCCL_DEV_ASSERT(c) _Static_assert(c, #c)
#endif
DEV_ASSERT(sizeof(struct dev_head) == DEV_HEAD_BYTES);
DEV_ASSERT(offsetof(struct dev_head, dead) == 8);
DEV_ASSERT(sizeof(struct dev_record) == 64);
DEV_ASSERT(offsetof(struct dev_record, epoch) == 16);
DEV_ASSERT(sizeof(struct dev_layout) == 32);
DEV_ASSERT(sizeof(struct dev_team) == 56);
DEV_ASSERT(offsetof(struct dev_team, rank) == 48);
DEV_ASSERT(sizeof(struct dev_watch) == 32);

static inline uint64_t dev_round_up(uint64_t n, uint64_t a)
{
	return (n + a - 1) / a * a;
}

/* The layout of a team of nranks (1..DEV_RANKS_MAX) whose halves have `rows` barriers and at least
 * `slots` packets. */
static inline struct dev_layout dev_layout_rows(uint32_t nranks, uint32_t rows, uint64_t slots)
{
	struct dev_layout l;

	l.slots = dev_round_up(slots, 8);
	l.barrier_row = (uint32_t)dev_round_up(8 * (uint64_t)nranks, 32);
	l.scalar_off = (uint32_t)dev_round_up(8 * (uint64_t)nranks, 128);
	l.barrier_off = l.scalar_off + (uint32_t)dev_round_up(16 * (uint64_t)nranks, 128);
	l.packet_off = l.barrier_off + (uint32_t)dev_round_up(rows * l.barrier_row, 128);
	l.half_bytes = l.packet_off + 16 * l.slots;
	return l;
}
/* The same with room for any kernel's barriers. */
static inline struct dev_layout dev_layout(uint32_t nranks, uint64_t slots)
{
	return dev_layout_rows(nranks, DEV_PHASES * DEV_CTAS_MAX, slots);
}
static inline uint64_t dev_ctrl_bytes(const struct dev_layout *l)
{
	return DEV_HEAD_BYTES + 2 * l->half_bytes;
}

/* The epoch a kernel runs in. */
struct dev_epoch {
	uint64_t number;
	uint32_t flag;
	uint32_t dead;
};

DEV char *team_ctrl(const struct dev_team *t, uint32_t rank)
{
	return (char *)(uintptr_t)(t->ctrl + rank * t->stride);
}
DEV char *team_half(const struct dev_team *t, uint32_t rank, uint64_t epoch)
{
	return team_ctrl(t, rank) + DEV_HEAD_BYTES + (epoch & 1) * t->layout.half_bytes;
}
DEV struct dev_head *team_head(const struct dev_team *t)
{
	return (struct dev_head *)team_ctrl(t, t->rank);
}
DEV uint64_t *team_plan_word(const struct dev_team *t, uint32_t at, uint64_t epoch, uint32_t source)
{
	return (uint64_t *)team_half(t, at, epoch) + source;
}

DEV uint32_t epoch_flag(uint64_t number)
{
	return (uint32_t)number | DEV_FLAG_BIT;
}
DEV uint64_t epoch_word(const struct dev_epoch *e, uint32_t hash)
{
	return (uint64_t)e->flag << 32 | hash;
}

DEV struct dev_epoch epoch_of(struct pair64 head)
{
	struct dev_epoch e;

	e.number = head.lo >> DEV_EPOCH_SHIFT;
	e.flag = epoch_flag(e.number);
	e.dead = (uint32_t)head.hi;
	return e;
}
/* First thing in a kernel, after the wait for the grid before; every thread. One load. */
DEV struct dev_epoch epoch_begin(const struct dev_team *t)
{
	return epoch_of(load_relaxed_pair(team_head(t)));
}

/* Last thing, one thread of each CTA, after all the CTA's threads have read the epoch. */
DEV void epoch_end(const struct dev_team *t, uint32_t cta, uint32_t nctas)
{
	add_local64(&team_head(t)->arrivals,
		cta == 0 ? ((uint64_t)1 << DEV_EPOCH_SHIFT) - (nctas - 1) : 1);
}

/* Nonzero when the next epoch's half must be zeroed in this one. */
DEV int epoch_period_ends(const struct dev_epoch *e)
{
	uint64_t next = e->number + 1;

	return next >= DEV_FLAG_BIT && (next & (DEV_FLAG_BIT - 1)) < 2;
}

/* Zero the half of epoch number + 1; thread 0..width - 1. Then they have to meet. */
DEV_COLD void epoch_zero_half(
	const struct dev_team *t, uint64_t number, uint32_t thread, uint32_t width)
{
	char *half = team_half(t, t->rank, number + 1);
	struct pair64 zero = {0, 0};

	DEV_LOOP
	for (uint64_t i = thread; i < t->layout.half_bytes / 16; i += width)
		store_relaxed_pair(half + 16 * i, zero);
	fence_system();
}

/* CTA 0, all threads, before anything is sent. */
DEV void epoch_prepare(
	const struct dev_team *t, const struct dev_epoch *e, uint32_t thread, uint32_t width)
{
	if (epoch_period_ends(e)) {
		epoch_zero_half(t, e->number, thread, width);
		cta_sync();
	}
}
/* CTA 0, all threads, sometime: say what call this is. Nobody waits for it. */
DEV void epoch_announce(const struct dev_team *t, const struct dev_epoch *e, uint32_t hash,
	uint32_t thread, uint32_t width)
{
	DEV_LOOP
	for (uint32_t q = thread; q < t->nranks; q += width)
		if (q != t->rank)
			store_relaxed64(
				team_plan_word(t, q, e->number, t->rank), epoch_word(e, hash));
}

/* ---- Waiting ------------------------------------------------------------------------------- */

struct dev_wait {
	uint32_t turns;
	uint64_t deadline; /* 0: not yet looked at the clock */
};

/* This rank is dead: tell its other CTAs and later kernels, and the host. */
DEV void team_die(const struct dev_team *t, uint64_t epoch, const struct dev_watch *w,
	uint32_t code, uint32_t peer, uint32_t peer_hash, uint32_t cta)
{
	struct dev_head *head = team_head(t);
	struct dev_record *r = (struct dev_record *)(uintptr_t)w->record;

	store_relaxed32(&head->dead, code);
	if (code == DEV_ABORTED || exchange_local32(&head->claim, 1) != 0)
		return;
	r->code = code;
	r->rank = t->rank;
	r->peer = peer;
	r->epoch = epoch;
	r->hash = w->hash;
	r->peer_hash = peer_hash;
	r->cta = cta;
	store_release32(&r->state, 1);
}

/* Look at everything that may end a wait for peer. Returns the wait's deadline, or 0: leave. */
DEV_COLD uint64_t wait_look(const struct dev_team *t, uint64_t epoch, const struct dev_watch *w,
	uint64_t deadline, uint32_t peer, uint32_t cta)
{
	uint64_t word = load_relaxed64(team_plan_word(t, t->rank, epoch, peer));
	uint64_t now = clock_ns();
	uint32_t peer_hash = word >> 32 == epoch_flag(epoch) ? (uint32_t)word : 0;

	wait_rest();
	if (load_relaxed32(&team_head(t)->dead) != DEV_ALIVE)
		return 0;
	if (w->abort != 0 && load_relaxed32((const uint32_t *)(uintptr_t)w->abort) != 0) {
		team_die(t, epoch, w, DEV_ABORTED, peer, peer_hash, cta);
		return 0;
	}
	if (peer_hash != 0 && peer_hash != w->hash) {
		team_die(t, epoch, w, DEV_DIFFERS, peer, peer_hash, cta);
		return 0;
	}
	if (deadline == 0)
		deadline = now + w->timeout_ns + 1;
	if (w->timeout_ns != 0 && now >= deadline) {
		team_die(t, epoch, w, DEV_TIMED_OUT, peer, peer_hash, cta);
		return 0;
	}
	return deadline;
}

/* One more turn of a loop that waits for peer; zero-initialise *wait before it. Nonzero: leave. */
DEV int wait_turn(const struct dev_team *t, const struct dev_epoch *e, const struct dev_watch *w,
	struct dev_wait *wait, uint32_t peer, uint32_t cta)
{
	struct dev_team team;
	struct dev_watch watch;

	cpu_relax();
	if (++wait->turns & (w->look_every - 1))
		return 0;
	/* Copies: who keeps *t and *w in registers shall not have to store them before the loop. */
	team = *t;
	watch = *w;
	wait->deadline = wait_look(&team, e->number, &watch, wait->deadline, peer, cta);
	return wait->deadline == 0;
}

#endif
