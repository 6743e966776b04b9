/*
 * Reduce-scatter on send windows, without a copy: each rank reduces its part of all of them. A step
 * before (inputs are there) and one after (they have been read). In place is safe: only a part's
 * owner reads or writes it.
 */
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "device/slot.h"

HOST_KERNEL(reducescatter_direct)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t block = c->count * coll_type_size(c->type), from, n, at;
	int ranks = t->nranks;
	/* In place the lines to be written have just been loaded: nothing to bypass. */
	int stream = !coll_in_place(t, c) &&
		     block * (size_t)ranks * (size_t)(ranks + 1) >= COPY_STREAM_FROM;
	const void *src[ranks];
	void *out;
	uint64_t factor[ranks];
	const unsigned char *data;

	host_share(block, cta, nctas, &from, &n);
	at = (size_t)t->rank * block + from;
	out = (char *)c->recv.ptr + from;
	step_begin(&s);
	for (int k = 1; k < ranks; k++)
		step_post(&s, (t->rank + k) % ranks, &c->factor,
			c->has_factor ? sizeof(c->factor) : 0);
	src[t->rank] = (char *)c->send.ptr + at;
	factor[t->rank] = c->factor;
	for (int k = 1; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;

		TRY(step_await(&s, peer, &data));
		src[peer] = coll_peer(&c->send, peer) + at;
		memcpy(&factor[peer], data, sizeof(factor[peer]));
	}
	step_end(&s);
	host_reduce(c, ranks, src, factor, 1, &out, n, stream);
	return step_sync(&s);
}
