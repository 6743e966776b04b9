/* Gather: the root receives from every other rank, which store all of a large block, or most of it
 * where the root has no block of its own to copy (broadcast.c says why). */
#include "coll/host/host.h"
#include "coll/host/messages.h"

HOST_KERNEL(gather_ring)
{
	size_t bytes = c->count * coll_type_size(c->type);
	int ranks = t->nranks, n = 0;
	struct coll_xfer x[ranks + 1];

	(void)cta;
	(void)nctas;
	x[n++] = (struct coll_xfer){.peer = c->root, .buf = c->send, .bytes = bytes};
	if (t->rank != c->root)
		return messages_run(t, c, hash, x, n, MESSAGES_ANY);
	for (int k = 0; k < ranks; k++) {
		int peer = (c->root + k) % ranks;

		x[n++] = (struct coll_xfer){.peer = peer,
			.recv = 1,
			.buf = coll_buf_at(&c->recv, (size_t)peer * bytes),
			.bytes = bytes};
	}
	return messages_run(
		t, c, hash, x, n, coll_in_place(t, c) ? 256 - 256 / (2 * ranks - 1) : 256);
}
