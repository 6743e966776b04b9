/* Rings: waking, waiting, and what ends a wait instead of a packet. */
#include <stdio.h>
#include <string.h>
#include "coll/host/ring.h"
#include "util.h"

void ring_bell(const struct coll_team *t, int peer)
{
	uint32_t *bell = &ctrl_head(t, peer)->bell;

	__atomic_fetch_add(bell, 1, __ATOMIC_RELEASE);
	waiting_wake(bell);
}

static void own_text(const struct coll_call *c, char *out, size_t n)
{
	struct slot own = {0};

	ring_describe(&own, c, 0);
	slot_call_text(&own.call, out, n);
}

uint32_t ring_begin(const struct coll_team *t, const struct coll_call *c, uint32_t hash)
{
	struct ctrl_head *head = ctrl_head(t, t->rank);
	uint32_t number;

	/* Sends and receives are nobody else's business. */
	if (c->func == symcclFuncSendRecv)
		return hash;
	number = (uint32_t)(head->ring_call >> 32) + 1;
	hash = ring_tag(ring_tag(hash, head->epoch[0]), number);
	store_release64(&head->ring_call, (uint64_t)number << 32 | hash);
	return hash;
}

symcclResult_t ring_peer_call(const struct coll_team *t, const struct coll_call *c, int peer)
{
	uint64_t own = ctrl_head(t, t->rank)->ring_call;
	uint64_t theirs = load_acquire64(&ctrl_head(t, peer)->ring_call);
	char mine[128];

	if (c->func == symcclFuncSendRecv || own >> 32 != theirs >> 32 || own == theirs)
		return symcclSuccess;
	own_text(c, mine, sizeof(mine));
	return fail(symcclInvalidUsage,
		"rank %d waits in %s for rank %d, which makes another call there: all ranks must "
		"make the same calls in the same order, with the same root",
		t->rank, mine, peer);
}

size_t ring_place_in_space(const struct coll_team *t, const struct coll_buf *b, size_t n)
{
	size_t off;

	if (b->peers == NULL || b->stride != t->stride)
		return SIZE_MAX;
	off = (size_t)(coll_peer(b, t->rank) - ring_region(t, t->rank, 0));
	return off < t->stride && n <= t->stride - off ? off : SIZE_MAX;
}

struct place ring_place(const struct coll_team *t, int peer, const struct coll_buf *b, size_t n)
{
	struct place there = {PLACE_ADDRESS, (uint64_t)(uintptr_t)b->ptr};
	size_t off = ring_place_in_space(t, b, n);

	if (t->pid != NULL && t->pid[peer] == 0)
		return there;
	if (off != SIZE_MAX)
		return (struct place){PLACE_SPACE, off};
	if (!t->readable)
		there.kind = PLACE_NONE;
	return there;
}

symcclResult_t ring_differs(const struct coll_team *t, const struct coll_call *c, int peer,
	const struct slot *slot, size_t n)
{
	char mine[128], theirs[128];

	own_text(c, mine, sizeof(mine));
	slot_call_text(&slot->call, theirs, sizeof(theirs));
	if (strcmp(mine, theirs) != 0)
		return fail(symcclInvalidUsage,
			"rank %d calls %s where rank %d calls %s: all ranks must make the same "
			"calls in the same order",
			t->rank, mine, peer, theirs);
	if (slot->call.offset[0] != n)
		return fail(symcclInvalidUsage,
			"rank %d sends rank %d %llu bytes where that expects %zu (%s)", peer,
			t->rank, (unsigned long long)slot->call.offset[0], n, mine);
	return fail(symcclInvalidUsage,
		"rank %d and rank %d both call %s, but not at the same place among their calls",
		t->rank, peer, mine);
}

const struct slot *ring_peer_ahead(const struct coll_team *t, int peer)
{
	uint32_t epoch = (uint32_t)ctrl_head(t, t->rank)->epoch[0];

	for (uint64_t parity = 0; parity < 2; parity++) {
		struct step s = {.team = t, .epoch = parity};
		const struct slot *slot = step_slot(&s, t->rank, peer);
		uint64_t v = load_acquire64(&slot->flag);

		if (v != 0 && (int32_t)((uint32_t)(v >> 32) - epoch) > 0)
			return slot;
	}
	return NULL;
}

symcclResult_t ring_passed_by(
	const struct coll_team *t, const struct coll_call *c, int peer, const struct slot *step)
{
	char mine[128], theirs[128];

	own_text(c, mine, sizeof(mine));
	if ((uint32_t)load_relaxed64(&step->flag) == SLOT_HASH_GOODBYE)
		return fail(symcclInvalidUsage,
			"rank %d waits in %s for rank %d, which has destroyed the communicator",
			t->rank, mine, peer);
	slot_call_text(&ctrl_head(t, peer)->call[0][load_relaxed64(&step->flag) >> 32 & 1], theirs,
		sizeof(theirs));
	return fail(symcclInvalidUsage,
		"rank %d waits in %s for rank %d, which has gone on to %s: all ranks must make the "
		"same calls in the same order",
		t->rank, mine, peer, theirs);
}

symcclResult_t ring_timeout(const struct coll_team *t, const struct coll_call *c, int peer)
{
	char mine[128];

	own_text(c, mine, sizeof(mine));
	return fail(symcclTimeout,
		"rank %d waited %.3g s in %s for rank %d (SYMCCL_OP_TIMEOUT), which did not come "
		"to "
		"the same call",
		t->rank, (double)t->wait.timeout_ns / 1e9, mine, peer);
}

symcclResult_t ring_await(const struct coll_team *t, const struct coll_call *c, int peer,
	int (*ready)(const struct coll_team *t, int peer, const void *arg), const void *arg)
{
	const uint32_t *bell = &ctrl_head(t, t->rank)->bell;
	struct waiting w = {0};
	symcclResult_t e = symcclSuccess;

	while (e == symcclSuccess) {
		uint32_t seen = load_acquire32(bell);

		if (ready(t, peer, arg))
			return symcclSuccess;
		if (waiting_is_long(t, &w)) {
			const struct slot *step = ring_peer_ahead(t, peer);

			if (step != NULL && !ready(t, peer, arg))
				return ring_passed_by(t, c, peer, step);
			TRY(ring_peer_call(t, c, peer));
		}
		e = waiting_rest(t, &w, bell, seen);
	}
	return e == symcclTimeout ? ring_timeout(t, c, peer) : e;
}

static int has_packet(const struct coll_team *t, int peer, const void *arg)
{
	(void)arg;
	return ring_look(t, peer) != NULL;
}

symcclResult_t ring_await_packet(const struct coll_team *t, const struct coll_call *c, int peer)
{
	return ring_await(t, c, peer, has_packet, NULL);
}

static int has_room(const struct coll_team *t, int peer, const void *arg)
{
	(void)arg;
	return ring_room(t, peer);
}

symcclResult_t ring_await_room(const struct coll_team *t, const struct coll_call *c, int peer)
{
	return ring_await(t, c, peer, has_room, NULL);
}
