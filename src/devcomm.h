/* What symcclDevCommCreate() lays out. Inline, so that the tests do the same on plain memory. */
#ifndef DEVCOMM_H
#define DEVCOMM_H

#include "symccl_device.h"
#include "device/barrier.h"
#include "device/packet.h"

#define DEVCOMM_SESSIONS_MAX 65536 /* contexts * sessions */
#define DEVCOMM_SLOTS_MAX (1 << 24)
#define DEVCOMM_WORDS_MAX (1 << 20) /* signals, counters */

/* From the ranks and requirements in *c: where everything is. bytes: of each rank's resources. */
static inline void devcomm_layout(symcclDevComm_t *c)
{
	uint64_t blocks = 1 + (uint64_t)c->contexts * (uint64_t)c->sessions;
	uint32_t tag = 2166136261u;
	const int32_t said[] = {
		c->nranks, c->contexts, c->sessions, c->packetSlots, c->signals, c->counters};

	c->size = sizeof(*c);
	c->version = SYMCCL_DEV_ABI;
	c->layout = dev_layout_rows((uint32_t)c->lsaSize, 1, (uint64_t)c->packetSlots);
	c->blockBytes = dev_ctrl_bytes(&c->layout);
	c->signalOff = blocks * c->blockBytes;
	c->shadowOff = c->signalOff + (uint64_t)c->signals * SYMCCL_DEV_SIGNAL_BYTES;
	c->counterOff = c->shadowOff + dev_round_up(8 * (uint64_t)c->signals, 128);
	c->bytes = c->counterOff + dev_round_up(8 * (uint64_t)c->counters, 128);
	for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++)
		tag = (tag ^ (uint32_t)said[i]) * 16777619u;
	/* What a barrier's words carry: never 0. */
	c->watch.hash = tag | 1;
	c->tag = c->watch.hash;
}

#endif
