/* Scatter: the root sends to every other rank, whose part of a large block is the larger. */
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
	for (int k = 1; k <= ranks && t->rank == c->root; k++) {
		int peer = (c->root + k) % ranks;

		x[n++] = (struct coll_xfer){.peer = peer,
			.buf = coll_buf_at(&c->send, (size_t)peer * bytes),
			.bytes = bytes};
	}
	return messages_run(t, c, hash, x, n, 256 / (unsigned)ranks);
}
