/*
 * All-gather by packets: each rank's block goes into every peer's slot, up to 56 bytes on the
 * flag's own line, more into the stage behind it. One step, any memory. Workers share a block by
 * bytes.
 */
#include "coll/host/host.h"
#include "device/slot.h"

HOST_KERNEL(allgather_packet)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t block = c->count * coll_type_size(c->type), from, n;
	int ranks = t->nranks, inl;
	char *own = (char *)c->recv.ptr + (size_t)t->rank * block;
	const unsigned char *data;

	host_share(block, cta, nctas, &from, &n);
	inl = n <= CTRL_SLOT_INLINE;
	step_begin(&s);
	for (int k = 1; k < ranks; k++) {
		int peer = t->rank + k < ranks ? t->rank + k : t->rank + k - ranks;

		if (!inl)
			memcpy(step_stage(&s, peer, t->rank), (char *)c->send.ptr + from, n);
		step_post(&s, peer, (char *)c->send.ptr + from, inl ? n : 0);
	}
	if (own != c->send.ptr)
		memcpy(own + from, (char *)c->send.ptr + from, n);
	for (int k = 1; k < ranks; k++) {
		int peer = t->rank + k < ranks ? t->rank + k : t->rank + k - ranks;

		TRY(step_await(&s, peer, &data));
		memcpy((char *)c->recv.ptr + (size_t)peer * block + from,
			inl ? (const void *)data : step_stage(&s, t->rank, peer), n);
	}
	step_end(&s);
	return symcclSuccess;
}
