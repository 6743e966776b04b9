/*
 * All-gather by direct loads: every rank reads all peers' send windows, for calls where only the
 * send buffer is one. A step before (the peers' data is there) and one after (all have read).
 */
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "device/slot.h"

HOST_KERNEL(allgather_pull)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t block = c->count * coll_type_size(c->type), from, n;
	int ranks = t->nranks, in_place = coll_in_place(t, c);
	int stream = block * (size_t)ranks * (size_t)ranks >= COPY_STREAM_FROM;

	host_share(block, cta, nctas, &from, &n);
	TRY(step_sync(&s));
	for (int k = 0; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;
		char *dst = (char *)c->recv.ptr + (size_t)peer * block + from;
		const char *src = (const char *)c->send.ptr + from;

		if (k > 0 && in_place)
			src = coll_peer(&c->recv, peer) + (size_t)peer * block + from;
		else if (k > 0)
			src = coll_peer(&c->send, peer) + from;
		if (dst != src)
			(stream ? copy_stream : copy_plain)(dst, src, n);
	}
	return step_sync(&s);
}
