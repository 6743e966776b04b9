/*
 * All-gather of plain memory without a copy through scratch: ranks tell each other where their
 * block lies, and each reads the others'. A step before (carries the addresses) and one after (all
 * have read).
 */
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "coll/host/peer_read.h"
#include "device/slot.h"

HOST_KERNEL(allgather_read)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t block = c->count * coll_type_size(c->type), from, n;
	const char *src = c->send.ptr;
	int ranks = t->nranks;
	int stream = block * (size_t)ranks * (size_t)ranks >= COPY_STREAM_FROM;
	char *own = (char *)c->recv.ptr + (size_t)t->rank * block;
	const unsigned char *data;

	host_share(block, cta, nctas, &from, &n);
	step_begin(&s);
	for (int k = 1; k < ranks; k++)
		step_post(&s, (t->rank + k) % ranks, &src, sizeof(src));
	if (own != src)
		(stream ? copy_stream : copy_plain)(own + from, src + from, n);
	for (int k = 1; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;
		const char *at;

		TRY(step_await(&s, peer, &data));
		memcpy(&at, data, sizeof(at));
		TRY(peer_read(t, peer, (char *)c->recv.ptr + (size_t)peer * block + from, at + from,
			n, stream));
	}
	step_end(&s);
	return step_sync(&s);
}
