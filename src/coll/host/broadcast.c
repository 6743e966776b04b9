/*
 * Broadcast: the root sends to every other rank. A rank returns when it has its data, the root when
 * all is in the rings or, of large ones, moved. Of those the root stores a part, so that all are
 * done at the same time: loads from a peer cost twice what stores do, and its own copy is work,
 * too.
 */
#include "coll/host/host.h"
#include "coll/host/messages.h"

HOST_KERNEL(broadcast_ring)
{
	size_t bytes = c->count * coll_type_size(c->type);
	int ranks = t->nranks, n = 0;
	struct coll_xfer x[ranks + 1];

	(void)cta;
	(void)nctas;
	x[n++] = (struct coll_xfer){.peer = c->root, .recv = 1, .buf = c->recv, .bytes = bytes};
	if (t->rank != c->root)
		return messages_run(t, c, hash, x, n, MESSAGES_ANY);
	for (int k = 0; k < ranks; k++)
		x[n++] = (struct coll_xfer){
			.peer = (c->root + k) % ranks, .buf = c->send, .bytes = bytes};
	return messages_run(
		t, c, hash, x, n, coll_in_place(t, c) ? 512 / (ranks + 1) : 325 / (ranks + 1));
}
