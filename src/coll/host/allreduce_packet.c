/*
 * All-reduce in one step: every rank sends its whole input to all peers, up to 56 bytes on the
 * flag's own line, more in the stage behind it, and reduces all n inputs itself. Any memory. With
 * factors the slot carries the factor, so the data goes to the stage.
 */
#include "coll/host/host.h"
#include "device/slot.h"

HOST_KERNEL(allreduce_packet)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t from, n;
	int ranks = t->nranks, inl;
	const void *src[ranks];
	uint64_t factor[ranks];
	const unsigned char *data;
	char *in = c->send.ptr, *out = c->recv.ptr;

	host_share(c->count * coll_type_size(c->type), cta, nctas, &from, &n);
	inl = n <= CTRL_SLOT_INLINE && !c->has_factor;
	step_begin(&s);
	for (int k = 1; k < ranks; k++) {
		int peer = t->rank + k < ranks ? t->rank + k : t->rank + k - ranks;

		if (inl) {
			step_post(&s, peer, in + from, n);
			continue;
		}
		memcpy(step_stage(&s, peer, t->rank), in + from, n);
		step_post(&s, peer, &c->factor, c->has_factor ? sizeof(c->factor) : 0);
	}
	src[t->rank] = in + from;
	factor[t->rank] = c->factor;
	for (int k = 1; k < ranks; k++) {
		int peer = t->rank + k < ranks ? t->rank + k : t->rank + k - ranks;

		TRY(step_await(&s, peer, &data));
		src[peer] = inl ? (const char *)data : step_stage(&s, t->rank, peer);
		memcpy(&factor[peer], data, sizeof(factor[peer]));
	}
	host_reduce(c, ranks, src, factor, 1, (void *[]){out + from}, n, 0);
	step_end(&s);
	return symcclSuccess;
}
