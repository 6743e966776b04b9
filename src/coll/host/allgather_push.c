/*
 * All-gather by direct stores: every rank writes its block into all peers' receive windows. A step
 * before (the peers' buffers are free) and one after (everything has arrived).
 */
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "device/slot.h"

HOST_KERNEL(allgather_push)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t block = c->count * coll_type_size(c->type), from, n, at;
	int ranks = t->nranks, first = 1;
	int stream = block * (size_t)ranks * (size_t)ranks >= COPY_STREAM_FROM;
	const char *src;
	char *own;

	host_share(block, cta, nctas, &from, &n);
	at = (size_t)t->rank * block + from;
	src = (const char *)c->send.ptr + from;
	own = (char *)c->recv.ptr + at;
	TRY(step_sync(&s));
	/* The first peer's copy also makes the own one: the block is read once for both. */
	if (own != src && ranks == 1) {
		(stream ? copy_stream : copy_plain)(own, src, n);
	} else if (own != src) {
		int peer = (t->rank + 1) % ranks;

		copy_twice(own, coll_peer(&c->recv, peer) + at, src, n, stream);
		first = 2;
	}
	for (int k = first; k < ranks; k++) {
		char *dst = coll_peer(&c->recv, (t->rank + k) % ranks) + at;

		(stream ? copy_stream : copy_plain)(dst, src, n);
	}
	return step_sync(&s);
}
