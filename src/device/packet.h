/*
 * Packets: 8 bytes of data that say by themselves that they have arrived. 16 bytes, two 64-bit
 * halves {data:32, flag:32}; each half arrives whole, so nothing orders them and no fence is
 * needed. A packet is there when both halves carry the epoch's flag. Slots and reuse: ctrl.h.
 */
#include "names.h"
#ifndef SYMCCL_DEVICE_PACKET_H
#define SYMCCL_DEVICE_PACKET_H

#include "ctrl.h"

#define SYMCCL_PACKET_BYTES 16
#define SYMCCL_PACKET_DATA 8

DEV char *packet_slots(const struct dev_team *t, uint32_t at, const struct dev_epoch *e)
{
	return team_half(t, at, e->number) + t->layout.packet_off;
}
DEV char *packet_scalar(
	const struct dev_team *t, uint32_t at, const struct dev_epoch *e, uint32_t source)
{
	return team_half(t, at, e->number) + t->layout.scalar_off + PACKET_BYTES * source;
}

DEV void packet_store(void *slot, uint64_t data, uint32_t flag)
{
	struct pair64 p;

	p.lo = (uint64_t)flag << 32 | (uint32_t)data;
	p.hi = (uint64_t)flag << 32 | data >> 32;
	store_relaxed_pair(slot, p);
}
/* Nonzero when it is there; *data is its data then. */
DEV int packet_load(const void *slot, uint32_t flag, uint64_t *data)
{
	struct pair64 p = load_relaxed_pair(slot);

	*data = (uint32_t)p.lo | p.hi << 32;
	return (uint32_t)(p.lo >> 32) == flag && (uint32_t)(p.hi >> 32) == flag;
}
/* Wait for one. Nonzero: gave up. */
DEV int packet_await(const struct dev_team *t, const struct dev_epoch *e, const struct dev_watch *w,
	const void *slot, uint32_t peer, uint32_t cta, uint64_t *data)
{
	struct dev_wait wait = {0, 0};

	while (!packet_load(slot, e->flag, data))
		if (wait_turn(t, e, w, &wait, peer, cta))
			return 1;
	return 0;
}

#endif
