/*
 * All-reduce in two steps of packets: a rank sends slice r of its input to rank r only, which
 * reduces it and sends the result to all. Any memory; a slice must fit a stage.
 */
#include "coll/host/host.h"
#include "device/slot.h"

HOST_KERNEL(allreduce_twostep)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t from, n, at, len;
	int ranks = t->nranks;
	const void *src[ranks];
	uint64_t factor[ranks];
	const unsigned char *data;
	char *in = c->send.ptr, *out = c->recv.ptr;

	host_share(c->count * coll_type_size(c->type), cta, nctas, &from, &n);
	step_begin(&s);
	for (int k = 1; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;

		host_share(n, peer, ranks, &at, &len);
		memcpy(step_stage(&s, peer, t->rank), in + from + at, len);
		step_post(&s, peer, &c->factor, c->has_factor ? sizeof(c->factor) : 0);
	}
	host_share(n, t->rank, ranks, &at, &len);
	src[t->rank] = in + from + at;
	factor[t->rank] = c->factor;
	for (int k = 1; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;

		TRY(step_await(&s, peer, &data));
		src[peer] = step_stage(&s, t->rank, peer);
		memcpy(&factor[peer], data, sizeof(factor[peer]));
	}
	host_reduce(c, ranks, src, factor, 1, (void *[]){out + from + at}, len, 0);
	step_end(&s);

	step_begin(&s);
	for (int k = 1; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;

		memcpy(step_stage(&s, peer, t->rank), out + from + at, len);
		step_post(&s, peer, NULL, 0);
	}
	for (int k = 1; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;

		TRY(step_await(&s, peer, &data));
		host_share(n, peer, ranks, &at, &len);
		memcpy(out + from + at, step_stage(&s, t->rank, peer), len);
	}
	step_end(&s);
	return symcclSuccess;
}
