/*
 * All-reduce on windows, in two shots without a copy: each rank reduces its slice of all send
 * windows and stores the result into all receive windows. A step before (inputs are there, outputs
 * are free) and one after. In place is safe: only a slice's owner reads or writes it.
 */
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "device/slot.h"

HOST_KERNEL(allreduce_direct)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t bytes = c->count * coll_type_size(c->type), from, n, at, len;
	int ranks = t->nranks;
	/* In place the lines to be written have just been loaded: nothing to bypass. */
	int stream = c->send.ptr != c->recv.ptr && 2 * bytes * (size_t)ranks >= COPY_STREAM_FROM;
	const void *src[ranks];
	void *dst[ranks];
	uint64_t factor[ranks];
	const unsigned char *data;

	host_share(bytes, cta, nctas, &from, &n);
	host_share(n, t->rank, ranks, &at, &len);
	step_begin(&s);
	for (int k = 1; k < ranks; k++)
		step_post(&s, (t->rank + k) % ranks, &c->factor,
			c->has_factor ? sizeof(c->factor) : 0);
	src[t->rank] = (char *)c->send.ptr + from + at;
	dst[0] = (char *)c->recv.ptr + from + at;
	factor[t->rank] = c->factor;
	for (int k = 1; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;

		TRY(step_await(&s, peer, &data));
		src[peer] = coll_peer(&c->send, peer) + from + at;
		dst[k] = coll_peer(&c->recv, peer) + from + at;
		memcpy(&factor[peer], data, sizeof(factor[peer]));
	}
	step_end(&s);
	host_reduce(c, ranks, src, factor, ranks, dst, len, stream);
	return step_sync(&s);
}
