/*
 * Broadcast: the root sends to every other rank. A rank returns when it has its data, the root when
 * all is in the rings or, of large ones, moved; of those every rank fetches most by itself.
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
	if (t->rank != c->root) {
		x[n++] = (struct coll_xfer){
			.peer = c->root, .recv = 1, .buf = c->recv, .bytes = bytes};
	} else {
		for (int k = 1; k <= ranks; k++)
			x[n++] = (struct coll_xfer){
				.peer = (c->root + k) % ranks, .buf = c->send, .bytes = bytes};
		x[n++] = (struct coll_xfer){
			.peer = c->root, .recv = 1, .buf = c->recv, .bytes = bytes};
	}
	return messages_run(t, c, hash, x, n, 256 / (unsigned)ranks);
}
