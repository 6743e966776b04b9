/*
 * Credit rings: packets from one rank to another, without a step of all ranks. For each ordered
 * pair the receiver's control block holds a ring of slots. The sender numbers its packets from 1,
 * fills slot (number mod slots) and stores its flag {number:32, tag:32} with release; the receiver
 * says how many packets it is done with in an answer cell in the sender's block, and a slot is free
 * when that is not further back than the ring is long. Counters are 64 bit and live in the control
 * block; every line has one writer.
 *
 * The tag says what the packet belongs to (the call, the message's size) and, in its low two bits,
 * which kind it is. Two ranks that do not make the same call see that at the first packet. A rank
 * that waits for a packet or an answer and sees the peer in a step (device/slot.h) that itself has
 * not begun looks once more: what is not there then will not come, since a rank sends all packets
 * of a call before it posts a step of a later one.
 *
 * A receiver publishes its count every quarter of a ring, and when a message ends that the sender
 * waits for. Who sleeps is woken through its bell (struct ctrl_head).
 */
#ifndef HOST_RING_H
#define HOST_RING_H

#include "coll/host/copy.h"
#include "device/slot.h"

/* Where bytes lie, as told to a peer. */
enum place_kind {
	PLACE_NONE,   /* the peer cannot get there */
	PLACE_SPACE,  /* addr bytes from the teller's control block */
	PLACE_ADDRESS /* at addr in the teller's process */
};
struct place {
	uint64_t kind, addr;
};

enum ring_kind { RING_DATA, RING_REQUEST, RING_FINAL };
#define RING_BY_PACKETS UINT64_MAX

/* What a peer writes into a rank's block: the first line as the receiver of this rank's packets,
 * the second as the source of signals. */
struct ring_answer {
	uint64_t tail;  /* packets that the receiver is done with */
	uint64_t asked; /* the request that this answers; stored last */
	uint64_t split; /* bytes that the sender moves, or RING_BY_PACKETS: all go in packets */
	struct place place;
	unsigned char pad[24];
	uint64_t signals[SYMCCL_SIGNALS];
};
_Static_assert(sizeof(struct ring_answer) == 128, "one writer a line pair");

/* In the own block: what this rank has counted, with one peer. */
struct ring_pair {
	uint64_t sent, credit; /* packets sent; the highest tail seen */
	uint64_t taken, told;  /* packets done with; what the peer was told of them */
	uint64_t waited[SYMCCL_SIGNALS];
	unsigned char pad[32];
};
_Static_assert(sizeof(struct ring_pair) == 128, "fits its region");

static inline char *ring_region(const struct coll_team *t, int owner, size_t region)
{
	return t->ctrl + (size_t)owner * t->stride + region;
}
static inline struct ring_pair *ring_pair(const struct coll_team *t, int peer)
{
	return (struct ring_pair *)ring_region(t, t->rank, t->layout.pairs) + peer;
}
/* The cell in `owner`'s block that `writer` writes. */
static inline struct ring_answer *ring_answer(const struct coll_team *t, int owner, int writer)
{
	return (struct ring_answer *)ring_region(t, owner, t->layout.answers) + writer;
}
static inline struct slot *ring_slot(
	const struct coll_team *t, int owner, int source, uint64_t number)
{
	const struct ctrl_layout *l = &t->layout;
	size_t bytes = l->ring_slots * (CTRL_SLOT_BYTES + l->ring_bytes);

	return (struct slot *)(ring_region(t, owner, l->rings) + (size_t)source * bytes) +
	       (number & (l->ring_slots - 1));
}
/* The memory behind it. */
static inline char *ring_stage(const struct coll_team *t, int owner, int source, uint64_t number)
{
	const struct ctrl_layout *l = &t->layout;
	size_t i = number & (l->ring_slots - 1);

	return (char *)(ring_slot(t, owner, source, number) + (l->ring_slots - i)) +
	       i * l->ring_bytes;
}

/* A tag for the packets of n bytes of a call; hash is equal on both sides. */
static inline uint32_t ring_tag(uint32_t hash, size_t n)
{
	uint32_t h = (hash ^ (uint32_t)n) * 0x9e3779b1u;

	h = (h ^ h >> 15 ^ (uint32_t)(n >> 32)) * 0x85ebca6bu;
	return ((h ^ h >> 13) & ~7u) | 4;
}

void ring_bell(const struct coll_team *t, int peer);

/* Something was stored for the peer. */
static inline void ring_wake(const struct coll_team *t, int peer)
{
	if (__builtin_expect(load_relaxed32(&ctrl_head(t, peer)->waiters) != 0, 0))
		ring_bell(t, peer);
}

/* ---- Sending -------------------------------------------------------------------------------- */

/* Is there a free slot? */
static inline int ring_room(const struct coll_team *t, int peer)
{
	struct ring_pair *p = ring_pair(t, peer);

	if (p->sent - p->credit < t->layout.ring_slots)
		return 1;
	p->credit = load_acquire64(&ring_answer(t, t->rank, peer)->tail);
	return p->sent - p->credit < t->layout.ring_slots;
}
/* Slot and stage of the next packet. Only with room. */
static inline struct slot *ring_next_slot(const struct coll_team *t, int peer)
{
	return ring_slot(t, peer, t->rank, ring_pair(t, peer)->sent + 1);
}
static inline char *ring_next_stage(const struct coll_team *t, int peer)
{
	return ring_stage(t, peer, t->rank, ring_pair(t, peer)->sent + 1);
}
/* What the peer's sentence needs: the call and the message's bytes. Most slots say it already, and
 * what is not written again need not be fetched again. */
static inline void ring_describe(struct slot *slot, const struct coll_call *c, size_t n)
{
	struct slot_call *said = &slot->call;
	uint8_t op = (uint8_t)(c->has_factor ? symcclNumOps : c->op);

	if (said->func == c->func && said->type == c->type && said->op == op &&
		said->root == c->root && said->count == c->count && said->offset[0] == n)
		return;
	*said = (struct slot_call){.func = (uint8_t)c->func,
		.type = (uint8_t)c->type,
		.op = op,
		.root = c->root,
		.count = c->count,
		.offset = {n}};
}
/* Send the packet in the next slot, which is filled, as is its stage. n: bytes of the message. Who
 * sends many finds slots that it has asked for meanwhile; not the next one, for the peer looks at
 * that. */
static inline void ring_post(const struct coll_team *t, int peer, struct slot *slot,
	const struct coll_call *c, uint32_t tag, enum ring_kind kind, size_t n)
{
	uint64_t number = ++ring_pair(t, peer)->sent;
	uint64_t ahead = (t->layout.ring_slots + 3) / 4;

	ring_describe(slot, c, n);
	store_release64(&slot->flag, (number & 0xffffffffu) << 32 | tag | kind);
	copy_ask(ring_slot(t, peer, t->rank, number + ahead), sizeof(slot->flag));
	ring_wake(t, peer);
}
/* Has the peer done with packet `number`? */
static inline int ring_done(const struct coll_team *t, int peer, uint64_t number)
{
	struct ring_pair *p = ring_pair(t, peer);

	if ((int64_t)(p->credit - number) < 0)
		p->credit = load_acquire64(&ring_answer(t, t->rank, peer)->tail);
	return (int64_t)(p->credit - number) >= 0;
}

/* ---- Receiving ------------------------------------------------------------------------------ */

/* The packet after those taken, or NULL. */
static inline const struct slot *ring_look(const struct coll_team *t, int peer)
{
	uint64_t number = ring_pair(t, peer)->taken + 1;
	const struct slot *slot = ring_slot(t, t->rank, peer, number);
	uint64_t v = load_acquire64(&slot->flag);

	return v != 0 && (uint32_t)(v >> 32) == (uint32_t)number ? slot : NULL;
}
static inline const char *ring_look_stage(const struct coll_team *t, int peer)
{
	return ring_stage(t, t->rank, peer, ring_pair(t, peer)->taken + 1);
}
/* Does the packet carry the tag? Its kind in *kind. */
static inline int ring_fits(const struct slot *slot, uint32_t tag, enum ring_kind *kind)
{
	uint32_t got = (uint32_t)slot->flag;

	*kind = (enum ring_kind)(got & 3);
	return (got & ~3u) == tag;
}
/* The same of a message's first packet. Tags are short: two sizes may share one. */
static inline int ring_begins(const struct slot *slot, uint32_t tag, size_t n, enum ring_kind *kind)
{
	return ring_fits(slot, tag, kind) && slot->call.offset[0] == n;
}
static inline void ring_tell(const struct coll_team *t, int peer)
{
	struct ring_pair *p = ring_pair(t, peer);

	p->told = p->taken;
	store_release64(&ring_answer(t, peer, t->rank)->tail, p->taken);
	ring_wake(t, peer);
}
/* Done with the packet. */
static inline void ring_take(const struct coll_team *t, int peer)
{
	struct ring_pair *p = ring_pair(t, peer);

	if (++p->taken - p->told >= t->layout.ring_slots / 4 || t->layout.ring_slots < 4)
		ring_tell(t, peer);
}

/* ---- ring.c: the rare halves ---------------------------------------------------------------- */

/* Begin a call; once. Returns what goes into the tags of its packets: its plan's hash and, where
 * all ranks make the call, its place among those that are steps and those that are not. */
uint32_t ring_begin(const struct coll_team *t, const struct coll_call *c, uint32_t hash);
/* A peer that is awaited in such a call and makes another: fails with a sentence. */
symcclResult_t ring_peer_call(const struct coll_team *t, const struct coll_call *c, int peer);
/* The packet is of another call or size: fails with a sentence. n: bytes of the message awaited. */
symcclResult_t ring_differs(const struct coll_team *t, const struct coll_call *c, int peer,
	const struct slot *slot, size_t n);
/* The step of a later call that the peer has begun, or NULL. */
const struct slot *ring_peer_ahead(const struct coll_team *t, int peer);
/* The peer was ahead, and what was awaited is still not there: fails with a sentence. */
symcclResult_t ring_passed_by(
	const struct coll_team *t, const struct coll_call *c, int peer, const struct slot *step);
symcclResult_t ring_timeout(const struct coll_team *t, const struct coll_call *c, int peer);

/* Where n bytes of this rank's lie for the peer; in the second form the offset from its control
 * block, SIZE_MAX when they lie in no window of that range. */
struct place ring_place(const struct coll_team *t, int peer, const struct coll_buf *b, size_t n);
size_t ring_place_in_space(const struct coll_team *t, const struct coll_buf *b, size_t n);
/* The address of a peer's place, or the one in its process. */
static inline char *ring_place_here(const struct coll_team *t, int peer, const struct place *p)
{
	return p->kind == PLACE_SPACE ? ring_region(t, peer, p->addr) : (char *)(uintptr_t)p->addr;
}

/* One wait for one peer: ready() says whether what is awaited is there. */
symcclResult_t ring_await(const struct coll_team *t, const struct coll_call *c, int peer,
	int (*ready)(const struct coll_team *t, int peer, const void *arg), const void *arg);
/* For a packet from it, and for room for one to it. */
symcclResult_t ring_await_packet(const struct coll_team *t, const struct coll_call *c, int peer);
symcclResult_t ring_await_room(const struct coll_team *t, const struct coll_call *c, int peer);

/* ---- Messages of one packet ----------------------------------------------------------------- */

/* Does a message of n bytes fit one? */
static inline int ring_is_packet(const struct coll_team *t, size_t n)
{
	return n <= t->layout.ring_bytes;
}
/* Send it. Only with room. */
static inline void ring_put(const struct coll_team *t, const struct coll_call *c, int peer,
	uint32_t tag, const void *p, size_t n)
{
	struct slot *slot = ring_next_slot(t, peer);

	if (n > CTRL_SLOT_INLINE)
		copy_plain(ring_next_stage(t, peer), p, n);
	else if (n > 0)
		memcpy(slot->data, p, n);
	ring_post(t, peer, slot, c, tag, RING_DATA, n);
	if (n > CTRL_SLOT_INLINE)
		copy_ask(ring_next_stage(t, peer), n);
}
/* Receive it: slot is what ring_look() has found. */
static inline symcclResult_t ring_get(const struct coll_team *t, const struct coll_call *c,
	int peer, const struct slot *slot, uint32_t tag, void *p, size_t n)
{
	enum ring_kind kind;

	if (__builtin_expect(!ring_begins(slot, tag, n, &kind), 0))
		return ring_differs(t, c, peer, slot, n);
	if (n > CTRL_SLOT_INLINE)
		memcpy(p, ring_look_stage(t, peer), n);
	else if (n > 0)
		memcpy(p, slot->data, n);
	ring_take(t, peer);
	return symcclSuccess;
}

/* The same two with the wait. */
static inline symcclResult_t ring_send(const struct coll_team *t, const struct coll_call *c,
	int peer, uint32_t tag, const void *p, size_t n)
{
	if (!ring_room(t, peer))
		TRY(ring_await_room(t, c, peer));
	ring_put(t, c, peer, tag, p, n);
	return symcclSuccess;
}
static inline symcclResult_t ring_receive(const struct coll_team *t, const struct coll_call *c,
	int peer, uint32_t tag, void *p, size_t n)
{
	const struct slot *slot = ring_look(t, peer);

	if (slot == NULL) {
		TRY(ring_await_packet(t, c, peer));
		slot = ring_look(t, peer);
	}
	return ring_get(t, c, peer, slot, tag, p, n);
}

#endif
