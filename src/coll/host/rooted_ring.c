/*
 * Broadcast, gather, scatter: messages between the root and every other rank. A rank returns when
 * it has its data, or when what it sends is in the ring or, of large blocks, moved.
 *
 * Of those the root moves a part, so that all are done at the same time: loads from a peer cost
 * twice what stores do, and a copy of its own block is work, too. Senders to the root store all, or
 * most where the root has no block of its own to copy.
 */
#include <string.h>
#include "coll/host/host.h"
#include "coll/host/messages.h"
#include "coll/host/ring.h"

/* The block of `peer` at the root. */
static struct coll_buf root_block(const struct coll_call *c, int peer, size_t bytes)
{
	return c->func == symcclFuncGather    ? coll_buf_at(&c->recv, (size_t)peer * bytes)
	       : c->func == symcclFuncScatter ? coll_buf_at(&c->send, (size_t)peer * bytes)
					      : c->send;
}

/* Blocks of one packet each. */
static symcclResult_t packets(
	const struct coll_team *t, const struct coll_call *c, uint32_t hash, size_t bytes)
{
	size_t step = c->func == symcclFuncBroadcast ? 0 : bytes;
	int in = c->func == symcclFuncGather, ranks = t->nranks, peer = c->root;
	char *blocks = in ? c->recv.ptr : c->send.ptr;
	uint32_t tag = ring_tag(ring_begin(t, c, hash), bytes);

	if (t->rank != c->root)
		return in ? ring_send(t, c, c->root, tag, c->send.ptr, bytes)
			  : ring_receive(t, c, c->root, tag, c->recv.ptr, bytes);
	for (int k = 1; k < ranks; k++) {
		peer = peer + 1 == ranks ? 0 : peer + 1;
		TRY(in ? ring_receive(t, c, peer, tag, blocks + (size_t)peer * step, bytes)
		       : ring_send(t, c, peer, tag, blocks + (size_t)peer * step, bytes));
	}
	blocks += (size_t)t->rank * step;
	if (in && blocks != c->send.ptr)
		memcpy(blocks, c->send.ptr, bytes);
	if (!in && blocks != c->recv.ptr)
		memcpy(c->recv.ptr, blocks, bytes);
	return symcclSuccess;
}

/* What of a block the root moves, or a rank that sends to it, in 256ths. */
static int share(const struct coll_team *t, const struct coll_call *c)
{
	int n = t->nranks, in_place = coll_in_place(t, c);

	if (c->func == symcclFuncGather)
		return in_place ? 256 - 256 / (2 * n - 1) : 256;
	return (in_place ? 512 : c->func == symcclFuncBroadcast ? 325 : 256) / (n + 1);
}

static symcclResult_t blocks(
	const struct coll_team *t, const struct coll_call *c, uint32_t hash, size_t bytes)
{
	int in = c->func == symcclFuncGather, ranks = t->nranks, n = 0;
	struct coll_xfer x[ranks + 1];

	x[n++] = (struct coll_xfer){
		.peer = c->root, .recv = !in, .buf = in ? c->send : c->recv, .bytes = bytes};
	if (t->rank != c->root)
		return messages_run(t, c, hash, x, n, MESSAGES_ANY);
	for (int k = 0; k < ranks; k++) {
		int peer = (c->root + k) % ranks;

		x[n++] = (struct coll_xfer){.peer = peer,
			.recv = in,
			.buf = root_block(c, peer, bytes),
			.bytes = bytes};
	}
	return messages_run(t, c, hash, x, n, share(t, c));
}

HOST_KERNEL(rooted_ring)
{
	size_t bytes = c->count * coll_type_size(c->type);

	(void)cta;
	(void)nctas;
	return ring_is_packet(t, bytes) ? packets(t, c, hash, bytes) : blocks(t, c, hash, bytes);
}
