/* Scatter: the root sends to every other rank. Who moves which part of large blocks: broadcast.c.
 */
#include "coll/host/host.h"
#include "coll/host/messages.h"

HOST_KERNEL(scatter_ring)
{
	size_t bytes = c->count * coll_type_size(c->type);
	int ranks = t->nranks, n = 0;
	struct coll_xfer x[ranks + 1];

	(void)cta;
	(void)nctas;
	x[n++] = (struct coll_xfer){.peer = c->root, .recv = 1, .buf = c->recv, .bytes = bytes};
	if (t->rank != c->root)
		return messages_run(t, c, hash, x, n, MESSAGES_ANY);
	for (int k = 0; k < ranks; k++) {
		int peer = (c->root + k) % ranks;

		x[n++] = (struct coll_xfer){.peer = peer,
			.buf = coll_buf_at(&c->send, (size_t)peer * bytes),
			.bytes = bytes};
	}
	return messages_run(
		t, c, hash, x, n, coll_in_place(t, c) ? 512 / (ranks + 1) : 256 / (ranks + 1));
}
