/*
 * Reduce by packets, to the root only: every other rank sends its input through its ring, up to 56
 * bytes on the flag's own line; the root reduces straight from the slots of all. Any memory, any
 * size; who sends is done when all is in the ring. With factors each packet carries its rank's.
 */
#include <string.h>
#include "coll/host/host.h"
#include "coll/host/ring.h"
#include "util.h"

/* Send bytes [at, at + n). */
static symcclResult_t send_piece(const struct coll_team *t, const struct coll_call *c, uint32_t tag,
	size_t at, size_t n, int inl)
{
	const char *in = (const char *)c->send.ptr + at;
	struct slot *slot;

	if (!ring_room(t, c->root))
		TRY(ring_await_room(t, c, c->root));
	slot = ring_next_slot(t, c->root);
	memcpy(inl ? (char *)slot->data : ring_next_stage(t, c->root), in, n);
	if (c->has_factor)
		memcpy(slot->data, &c->factor, sizeof(c->factor));
	ring_post(t, c->root, slot, c, tag, RING_DATA, c->count * coll_type_size(c->type));
	if (!inl)
		copy_ask(ring_next_stage(t, c->root), n);
	return symcclSuccess;
}

/* Reduce bytes [at, at + n) of all. */
static symcclResult_t take_piece(const struct coll_team *t, const struct coll_call *c, uint32_t tag,
	size_t at, size_t n, int inl)
{
	int ranks = t->nranks;
	size_t all = c->count * coll_type_size(c->type);
	const void *src[ranks];
	uint64_t factor[ranks];
	void *out = (char *)c->recv.ptr + at;

	src[t->rank] = (const char *)c->send.ptr + at;
	factor[t->rank] = c->factor;
	for (int k = 1; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;
		const struct slot *slot = ring_look(t, peer);
		enum ring_kind kind;

		if (slot == NULL) {
			TRY(ring_await_packet(t, c, peer));
			slot = ring_look(t, peer);
		}
		if (!ring_begins(slot, tag, all, &kind))
			return ring_differs(t, c, peer, slot, all);
		src[peer] = inl ? (const char *)slot->data : ring_look_stage(t, peer);
		memcpy(&factor[peer], slot->data, sizeof(factor[peer]));
	}
	host_reduce(c, ranks, src, factor, 1, &out, n, 0);
	for (int k = 1; k < ranks; k++)
		ring_take(t, (t->rank + k) % ranks);
	return symcclSuccess;
}

HOST_KERNEL(reduce_ring)
{
	size_t all = c->count * coll_type_size(c->type), most = t->layout.ring_bytes;
	int inl = all <= CTRL_SLOT_INLINE && !c->has_factor;
	uint32_t tag = ring_tag(ring_begin(t, c, hash), all);

	(void)cta;
	(void)nctas;
	for (size_t at = 0; at < all; at += most)
		TRY((t->rank == c->root ? take_piece : send_piece)(
			t, c, tag, at, MIN(most, all - at), inl));
	return symcclSuccess;
}
