/*
 * All-gather through scratch: any memory, any size. Every rank copies a chunk into its own bulk
 * half, peers copy it out; one step a chunk, the halves alternate, so a rank fills one while slower
 * peers still read the other.
 */
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "device/slot.h"
#include "util.h"

/* Less than a half: what a step reads and writes should stay near. */
#define CHUNK ((size_t)128 << 10)

HOST_KERNEL(allgather_scratch)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t block = c->count * coll_type_size(c->type), from, n,
	       chunk = MIN(t->layout.bulk_bytes, CHUNK);
	char *own = (char *)c->recv.ptr + (size_t)t->rank * block;
	int ranks = t->nranks;
	/* The halves stay in the cache; what is written out need not. */
	int stream = block * (size_t)ranks * (size_t)ranks >= COPY_STREAM_FROM;
	const unsigned char *data;

	host_share(block, cta, nctas, &from, &n);
	for (size_t at = 0; at < n || at == 0; at += chunk) {
		size_t len = MIN(chunk, n - at);
		const char *src = (const char *)c->send.ptr + from + at;

		step_begin(&s);
		/* Read once for both. */
		if (own + from + at != src)
			copy_twice(step_bulk(&s, t->rank), own + from + at, src, len, stream);
		else
			memcpy(step_bulk(&s, t->rank), src, len);
		step_post_all(&s);
		for (int k = 1; k < ranks; k++) {
			int peer = (t->rank + k) % ranks;

			TRY(step_await(&s, peer, &data));
			(stream ? copy_stream : copy_plain)(
				(char *)c->recv.ptr + (size_t)peer * block + from + at,
				step_bulk(&s, peer), len);
		}
		step_end(&s);
	}
	return symcclSuccess;
}
