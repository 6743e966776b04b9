/*
 * Barriers: CTA b of a rank with CTA b of every peer. Everything the CTA's threads wrote before, to
 * whatever memory, is visible after it to the threads of the peers' CTAs b.
 */
#include "names.h"
#ifndef SYMCCL_DEVICE_BARRIER_H
#define SYMCCL_DEVICE_BARRIER_H

#include "ctrl.h"

DEV uint64_t *barrier_slot(const struct dev_team *t, uint32_t at, const struct dev_epoch *e,
	uint32_t phase, uint32_t cta, uint32_t source)
{
	return (uint64_t *)(team_half(t, at, e->number) + t->layout.barrier_off +
			    (phase * DEV_CTAS_MAX + cta) * t->layout.barrier_row) +
	       source;
}

/* Tell the peers; thread 0..width - 1, after all of them are done with what the barrier orders.
 * opens: that is only what was done before this kernel. */
DEV void barrier_arrive(const struct dev_team *t, const struct dev_epoch *e, uint32_t hash,
	uint32_t phase, uint32_t cta, uint32_t thread, uint32_t width, int opens)
{
	DEV_LOOP
	for (uint32_t q = thread; q < t->nranks; q += width) {
		uint64_t *slot = barrier_slot(t, q, e, phase, cta, t->rank);

		if (q != t->rank && opens)
			store_opening64(slot, epoch_word(e, hash));
		else if (q != t->rank)
			store_release64(slot, epoch_word(e, hash));
	}
}

/* Hear from the peers; afterwards the threads have to meet. Nonzero: gave up. */
DEV int barrier_await(const struct dev_team *t, const struct dev_epoch *e,
	const struct dev_watch *w, uint32_t phase, uint32_t cta, uint32_t thread, uint32_t width)
{
	int gave_up = 0;

	DEV_LOOP
	for (uint32_t q = thread; q < t->nranks && !gave_up; q += width) {
		const uint64_t *slot = barrier_slot(t, t->rank, e, phase, cta, q);
		struct dev_wait wait = {0, 0};
		uint64_t word = 0;

		if (q == t->rank)
			continue;
		while (!gave_up && (word = load_acquire64(slot)) >> 32 != e->flag)
			gave_up = wait_turn(t, e, w, &wait, q, cta);
		if (!gave_up && (uint32_t)word != w->hash) {
			team_die(t, e->number, w, DEV_DIFFERS, q, (uint32_t)word, cta);
			gave_up = 1;
		}
	}
	return gave_up;
}

/* All threads of the CTA. phase: 0, then 1, in one epoch. opens: see barrier_arrive. Nonzero, to
 * all: gave up, here or (the argument) before. */
DEV int barrier_meet(const struct dev_team *t, const struct dev_epoch *e, const struct dev_watch *w,
	uint32_t phase, uint32_t cta, uint32_t thread, uint32_t width, int opens, int gave_up)
{
	cta_sync();
	if (!gave_up) {
		barrier_arrive(t, e, w->hash, phase, cta, thread, width, opens);
		gave_up = barrier_await(t, e, w, phase, cta, thread, width);
	}
	return cta_sync_or(gave_up);
}

#endif
