/* See messages.h. Each message is a small state machine; one loop turns all that are first of their
 * kind (peer, direction), and rests by the rules of waiting when none has moved. */
#include <stdlib.h>
#include <string.h>
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "coll/host/messages.h"
#include "coll/host/peer_read.h"
#include "coll/host/ring.h"
#include "util.h"

/* Most bytes that are sent unasked: of memory that the peer can load from, and of other. */
#define EAGER_NEAR ((size_t)4 << 10)
#define EAGER_FAR ((size_t)32 << 10)
#define PIECE ((size_t)256 << 10) /* moved before the others get their turn */
#define FEW 8                     /* messages without an allocation */

enum stage {
	START,  /* send: before the first packet; receive: the same */
	ASKED,  /* send: until the answer */
	MOVING, /* copying this side's part; receive: then until the sender's final packet */
	ENDING, /* send: until the receiver is done with packet `last` */
	PACKETS,
	COPYING, /* of the rank to itself: until all is copied */
	DONE
};

struct message {
	const struct coll_xfer *x;
	uint32_t tag;
	enum stage stage;
	size_t at, end; /* bytes: next to move or send, and the end of this side's part */
	size_t split;   /* receive: bytes that the sender moves */
	uint64_t last;
	struct place place; /* of the other side's buffer */
	int next;           /* the one after it with that peer in that direction, or -1 */
};

struct engine {
	const struct coll_team *t;
	const struct coll_call *c;
	struct message *m;
	int *active, nactive;
	int share;
};

/* What a request carries. */
struct request {
	struct place place;
	int64_t share;
};

/* ---- Memory --------------------------------------------------------------------------------- */

/* Copy the next piece between this rank's buffer and the peer's. */
static symcclResult_t move(const struct engine *g, struct message *m)
{
	const struct coll_team *t = g->t;
	int peer = m->x->peer, stream = m->x->bytes >= COPY_STREAM_FROM / 2;
	size_t n = MIN(m->end - m->at, PIECE);
	char *own = (char *)m->x->buf.ptr + m->at;
	char *other = ring_place_here(t, peer, &m->place) + m->at;

	m->at += n;
	if (m->place.kind == PLACE_ADDRESS && peer != t->rank && t->pid[peer] != 0)
		return m->x->recv ? peer_read(t, peer, own, other, n, stream)
				  : peer_write(t, peer, other, own, n);
	(stream ? copy_stream : copy_plain)(m->x->recv ? own : other, m->x->recv ? other : own, n);
	return symcclSuccess;
}

/* ---- Sending -------------------------------------------------------------------------------- */

static size_t packet_bytes(const struct coll_team *t, size_t n)
{
	return n <= CTRL_SLOT_INLINE ? CTRL_SLOT_INLINE : t->layout.ring_bytes;
}

/* Every message has at least one. */
static int send_packets(const struct engine *g, struct message *m)
{
	const struct coll_team *t = g->t;
	size_t all = m->x->bytes, most = packet_bytes(t, all);
	int peer = m->x->peer, moved = 0;

	while (m->stage == PACKETS && ring_room(t, peer)) {
		size_t n = MIN(all - m->at, most);
		struct slot *slot = ring_next_slot(t, peer);

		if (n > 0 && all > CTRL_SLOT_INLINE)
			copy_plain(
				ring_next_stage(t, peer), (const char *)m->x->buf.ptr + m->at, n);
		else if (n > 0)
			memcpy(slot->data, m->x->buf.ptr, n);
		ring_post(t, peer, slot, g->c, m->tag, RING_DATA, all);
		m->at += n;
		if (m->at == all)
			m->stage = DONE;
		moved = 1;
	}
	return moved;
}

static int ask(const struct engine *g, struct message *m)
{
	int peer = m->x->peer;
	struct request own = {
		.place = ring_place(g->t, peer, &m->x->buf, m->x->bytes), .share = g->share};
	struct slot *slot = ring_next_slot(g->t, peer);

	if (!ring_room(g->t, peer))
		return 0;
	memcpy(slot->data, &own, sizeof(own));
	ring_post(g->t, peer, slot, g->c, m->tag, RING_REQUEST, m->x->bytes);
	m->last = ring_pair(g->t, peer)->sent;
	m->stage = ASKED;
	return 1;
}

static int hear(const struct engine *g, struct message *m)
{
	const struct ring_answer *a = ring_answer(g->t, g->t->rank, m->x->peer);

	if (load_acquire64(&a->asked) != m->last)
		return 0;
	m->end = a->split;
	m->place = a->place;
	m->stage = a->split == RING_BY_PACKETS ? PACKETS : a->split == 0 ? ENDING : MOVING;
	return 1;
}

/* Is it small enough to be sent unasked? */
static int is_eager(const struct coll_team *t, const struct coll_xfer *x)
{
	size_t most = t->layout.ring_slots * t->layout.ring_bytes;
	int far;

	if (ring_is_packet(t, x->bytes) || x->bytes <= MIN(EAGER_NEAR, most))
		return 1;
	far = (t->pid == NULL || t->pid[x->peer] != 0) &&
	      ring_place_in_space(t, &x->buf, x->bytes) == SIZE_MAX;
	return far && x->bytes <= MIN(EAGER_FAR, most);
}

static symcclResult_t send_turn(const struct engine *g, struct message *m, int *moved)
{
	const struct coll_team *t = g->t;
	int peer = m->x->peer;

	switch (m->stage) {
	case START:
		if (!is_eager(t, m->x)) {
			*moved = ask(g, m);
			return symcclSuccess;
		}
		m->stage = PACKETS;
		/* fall through */
	case PACKETS:
		*moved = send_packets(g, m);
		return symcclSuccess;
	case ASKED:
		*moved = hear(g, m);
		return symcclSuccess;
	case MOVING:
		*moved = m->at < m->end;
		if (m->at < m->end)
			TRY(move(g, m));
		if (m->at < m->end || !ring_room(t, peer))
			return symcclSuccess;
		ring_post(t, peer, ring_next_slot(t, peer), g->c, m->tag, RING_FINAL, m->x->bytes);
		m->last = ring_pair(t, peer)->sent;
		m->stage = ENDING;
		*moved = 1;
		return symcclSuccess;
	default:
		if (ring_done(t, peer, m->last))
			m->stage = DONE;
		*moved = m->stage == DONE;
		return symcclSuccess;
	}
}

/* ---- Receiving ------------------------------------------------------------------------------ */

/* The next packet, checked; *slot is NULL while there is none. */
static symcclResult_t next_packet(const struct engine *g, const struct message *m,
	const struct slot **slot, enum ring_kind *kind)
{
	*slot = ring_look(g->t, m->x->peer);
	if (*slot == NULL || (m->stage == START ? ring_begins(*slot, m->tag, m->x->bytes, kind)
						: ring_fits(*slot, m->tag, kind)))
		return symcclSuccess;
	return ring_differs(g->t, g->c, m->x->peer, *slot, m->x->bytes);
}

static symcclResult_t receive_packets(const struct engine *g, struct message *m, int *moved)
{
	const struct coll_team *t = g->t;
	size_t all = m->x->bytes, most = packet_bytes(t, all);
	int peer = m->x->peer;
	const struct slot *slot;
	enum ring_kind kind;

	while (m->stage == PACKETS) {
		size_t n = MIN(all - m->at, most);

		TRY(next_packet(g, m, &slot, &kind));
		if (slot == NULL)
			return symcclSuccess;
		if (n > 0)
			memcpy((char *)m->x->buf.ptr + m->at,
				all <= CTRL_SLOT_INLINE ? (const char *)slot->data
							: ring_look_stage(t, peer),
				n);
		ring_take(t, peer);
		m->at += n;
		if (m->at == all)
			m->stage = DONE;
		*moved = 1;
	}
	return symcclSuccess;
}

/* The sender has asked: say who moves what. */
static void answer(const struct engine *g, struct message *m, const struct slot *slot)
{
	const struct coll_team *t = g->t;
	int peer = m->x->peer;
	struct place own = ring_place(t, peer, &m->x->buf, m->x->bytes);
	struct ring_answer *a = ring_answer(t, peer, t->rank);
	struct request r;
	int64_t share;
	size_t part;

	memcpy(&r, slot->data, sizeof(r));
	share = g->share != MESSAGES_ANY ? g->share : r.share != MESSAGES_ANY ? r.share : 128;
	part = share == 256 ? m->x->bytes : m->x->bytes / 256 * (size_t)share & ~(size_t)63;
	m->place = r.place;
	m->end = m->x->bytes;
	m->split = m->place.kind == PLACE_NONE ? m->end : own.kind == PLACE_NONE ? 0 : part;
	m->at = m->split;
	m->stage = MOVING;
	if (m->place.kind == PLACE_NONE && own.kind == PLACE_NONE) {
		m->split = RING_BY_PACKETS;
		m->at = 0;
		m->stage = PACKETS;
	}
	/* Done with it only when all is moved: told then. */
	ring_pair(t, peer)->taken++;
	a->split = m->split;
	a->place = own;
	store_release64(&a->asked, ring_pair(t, peer)->taken);
	ring_wake(t, peer);
}

static symcclResult_t receive_turn(const struct engine *g, struct message *m, int *moved)
{
	const struct slot *slot;
	enum ring_kind kind;

	switch (m->stage) {
	case START:
		TRY(next_packet(g, m, &slot, &kind));
		if (slot == NULL)
			return symcclSuccess;
		*moved = 1;
		if (kind == RING_REQUEST) {
			answer(g, m, slot);
			return symcclSuccess;
		}
		m->stage = PACKETS;
		/* fall through */
	case PACKETS:
		return receive_packets(g, m, moved);
	case COPYING:
		*moved = 1;
		TRY(move(g, m));
		if (m->at == m->end)
			m->stage = DONE;
		return symcclSuccess;
	default:
		*moved = m->at < m->end;
		if (m->at < m->end)
			TRY(move(g, m));
		if (m->at < m->end)
			return symcclSuccess;
		if (m->split > 0) {
			TRY(next_packet(g, m, &slot, &kind));
			if (slot == NULL)
				return symcclSuccess;
			ring_pair(g->t, m->x->peer)->taken++;
		}
		ring_tell(g->t, m->x->peer);
		m->stage = DONE;
		*moved = 1;
		return symcclSuccess;
	}
}

/* ---- All of them ---------------------------------------------------------------------------- */

static symcclResult_t turn(const struct engine *g, struct message *m, int *moved)
{
	/* look_around() has ended it. */
	*moved = m->stage == DONE;
	if (*moved)
		return symcclSuccess;
	return m->x->recv ? receive_turn(g, m, moved) : send_turn(g, m, moved);
}

/* Nothing has come for long: has a peer passed by? */
static symcclResult_t look_around(const struct engine *g)
{
	for (int i = 0; i < g->nactive; i++) {
		struct message *m = &g->m[g->active[i]];
		const struct slot *step = ring_peer_ahead(g->t, m->x->peer);
		int moved;

		TRY(ring_peer_call(g->t, g->c, m->x->peer));
		if (step == NULL)
			continue;
		TRY(turn(g, m, &moved));
		if (!moved)
			return ring_passed_by(g->t, g->c, m->x->peer, step);
	}
	return symcclSuccess;
}

/* Turn each that is active once. */
static symcclResult_t turn_all(struct engine *g, int *any)
{
	int moved;

	*any = 0;
	for (int i = 0; i < g->nactive;) {
		struct message *m = &g->m[g->active[i]];

		TRY(turn(g, m, &moved));
		*any |= moved;
		if (m->stage == DONE && m->next < 0)
			g->active[i] = g->active[--g->nactive];
		else if (m->stage == DONE)
			g->active[i] = m->next;
		else
			i++;
	}
	return symcclSuccess;
}

static symcclResult_t run(struct engine *g)
{
	const struct coll_team *t = g->t;
	const uint32_t *bell = &ctrl_head(t, t->rank)->bell;
	struct waiting w = {0};

	while (g->nactive > 0) {
		uint32_t seen = load_acquire32(bell);
		symcclResult_t e;
		int any;

		TRY(turn_all(g, &any));
		if (any || g->nactive == 0) {
			w = (struct waiting){0};
			if (load_relaxed32(t->wait.abort))
				return symcclRemoteError;
			continue;
		}
		if (waiting_is_long(t, &w))
			TRY(look_around(g));
		e = waiting_rest(t, &w, bell, seen);
		if (e == symcclTimeout)
			return ring_timeout(t, g->c, g->m[g->active[0]].x->peer);
		TRY(e);
	}
	return symcclSuccess;
}

/* The next send of the rank to itself from *s on and the receive from *r on that it matches; both
 * n: there is none. */
static symcclResult_t own_pair(
	const struct coll_team *t, const struct coll_xfer *x, int n, int *s, int *r)
{
	while (*s < n && (x[*s].recv || x[*s].peer != t->rank))
		++*s;
	while (*r < n && (!x[*r].recv || x[*r].peer != t->rank))
		++*r;
	if (*s == n && *r == n)
		return symcclSuccess;
	if (*s == n || *r == n)
		return fail(symcclInvalidUsage,
			"rank %d would wait for itself: its sends to itself and its receives from "
			"itself must be as many in a group",
			t->rank);
	if (x[*s].bytes != x[*r].bytes)
		return fail(symcclInvalidUsage,
			"rank %d sends itself %zu bytes where it expects %zu", t->rank, x[*s].bytes,
			x[*r].bytes);
	return symcclSuccess;
}

/* Small ones. */
static symcclResult_t copy_own(const struct coll_team *t, const struct coll_xfer *x, int n)
{
	for (int s = 0, r = 0;; s++, r++) {
		TRY(own_pair(t, x, n, &s, &r));
		if (s == n)
			return symcclSuccess;
		if (x[s].buf.ptr != x[r].buf.ptr && x[s].bytes > 0)
			memcpy(x[r].buf.ptr, x[s].buf.ptr, x[s].bytes);
	}
}

/* Any, as messages that are copied while the others move. */
static symcclResult_t add_own(struct engine *g, const struct coll_xfer *x, int n, int k)
{
	for (int s = 0, r = 0;; s++, r++) {
		TRY(own_pair(g->t, x, n, &s, &r));
		if (s == n)
			return symcclSuccess;
		if (x[s].buf.ptr == x[r].buf.ptr || x[s].bytes == 0)
			continue;
		g->m[k] = (struct message){.x = &x[r],
			.stage = COPYING,
			.end = x[r].bytes,
			.place = {PLACE_ADDRESS, (uint64_t)(uintptr_t)x[s].buf.ptr},
			.next = -1};
		g->active[g->nactive++] = k++;
	}
}

/* Chain the messages of each peer and direction; the first of each is active. Returns how many. */
static int chain(struct engine *g, const struct coll_xfer *x, int n, uint32_t hash)
{
	int ranks = g->t->nranks, last[2 * ranks], k = 0;

	memset(last, -1, sizeof(last));
	for (int i = 0; i < n; i++) {
		int *tail = &last[2 * x[i].peer + x[i].recv];

		if (x[i].peer == g->t->rank)
			continue;
		g->m[k] = (struct message){
			.x = &x[i], .tag = ring_tag(hash, x[i].bytes), .stage = START, .next = -1};
		if (*tail < 0)
			g->active[g->nactive++] = k;
		else
			g->m[*tail].next = k;
		*tail = k++;
	}
	return k;
}

/* The list's front as far as each is one packet and can go now, without any state; *own: some are
 * the rank's to itself. The last of all is waited for: there is nothing else to do. */
static symcclResult_t run_front(const struct coll_team *t, const struct coll_call *c, uint32_t hash,
	const struct coll_xfer *x, int n, int *first, int *own)
{
	int i = 0;

	*own = 0;
	for (; i < n; i++) {
		int peer = x[i].peer;
		uint32_t tag = ring_tag(hash, x[i].bytes);

		if (peer == t->rank) {
			*own = 1;
			continue;
		}
		if (!ring_is_packet(t, x[i].bytes))
			break;
		if (i < n - 1 && !(x[i].recv ? ring_look(t, peer) != NULL : ring_room(t, peer)))
			break;
		TRY(x[i].recv ? ring_receive(t, c, peer, tag, x[i].buf.ptr, x[i].bytes)
			      : ring_send(t, c, peer, tag, x[i].buf.ptr, x[i].bytes));
	}
	*first = i;
	return symcclSuccess;
}

/* What is left of n messages from `first` on, and all of the rank's to itself. */
static __attribute__((noinline)) symcclResult_t run_rest(const struct coll_team *t,
	const struct coll_call *c, uint32_t hash, const struct coll_xfer *x, int n, int first,
	int share)
{
	struct message few[FEW], *many = NULL;
	int few_active[FEW];
	struct engine g = {.t = t, .c = c, .m = few, .active = few_active, .share = share};
	symcclResult_t e;
	int k;

	if (n > FEW) {
		many = malloc((size_t)n * (sizeof(*g.m) + sizeof(*g.active)));
		if (many == NULL)
			return fail(symcclSystemError, "out of memory for %d messages", n);
		g.m = many;
		g.active = (int *)(many + n);
	}
	k = chain(&g, x + first, n - first, hash);
	e = add_own(&g, x, n, k);
	if (e == symcclSuccess)
		e = run(&g);
	free(many);
	return e;
}

symcclResult_t messages_run(const struct coll_team *t, const struct coll_call *c, uint32_t hash,
	const struct coll_xfer *x, int n, int share)
{
	int first = 0, own;

	hash = ring_begin(t, c, hash);
	TRY(run_front(t, c, hash, x, n, &first, &own));
	if (first < n)
		return run_rest(t, c, hash, x, n, first, share);
	return own ? copy_own(t, x, n) : symcclSuccess;
}

HOST_KERNEL(messages_listed)
{
	int sends = 0, recvs = 0;

	(void)cta;
	(void)nctas;
	for (int i = 0; i < c->nxfers; i++)
		*(c->xfer[i].recv ? &recvs : &sends) = 1;
	/* Stores cost half of what loads from a peer do: who has both to do stores only. */
	return messages_run(t, c, hash, c->xfer, c->nxfers, sends && recvs ? 256 : 171);
}
