/*
 * The host's exchange: slots in control blocks (layout and proof: coll/coll.h).
 *
 * A step is: step_begin; post to every peer (payload, then flag); await every peer; step_end. The
 * flag is {epoch:32, hash:32}; data written before post is visible after await. One line carries
 * the flag and up to 56 bytes of payload, so a small message is one cache-line transfer.
 *
 * Epochs are 64 bit in the control block, and their low half goes into the flag. A low half of 0
 * and 1 is skipped (two, so that parities go on alternating): 0 is what untouched slots hold. A
 * slot never holds a flag older than two steps, so 2^32 steps later cannot be mistaken for now.
 */
#ifndef DEVICE_SLOT_H
#define DEVICE_SLOT_H

#include <string.h>
#include "coll/coll.h"
#include "device/port.h"

/* What a rank is doing, for the sentence when two do not make the same call, read only then. Steps
 * have it in the head of the rank's own block: in the slot it would be a second line to fetch. */
struct slot_call {
	uint32_t hash; /* of a step's call, to see whether it changes */
	uint8_t func, type, op;
	int32_t root;
	uint64_t count;
	uint32_t window[2]; /* symmetric windows of send and recv */
	uint64_t offset[2];
};

struct slot {
	uint64_t flag;
	unsigned char data[CTRL_SLOT_INLINE];
	struct slot_call call; /* of a ring's packet */
	unsigned char pad[64 - sizeof(struct slot_call)];
};
_Static_assert(sizeof(struct slot) == CTRL_SLOT_BYTES, "a slot is two lines");

/* The head of a control block. */
struct ctrl_head {
	uint64_t epoch[CTRL_CTAS_MAX];
	_Alignas(
		128) uint32_t waiters; /* threads of this rank in a futex wait; a line of its own */
	unsigned char pad[60];
	uint32_t bell; /* rung by who sees waiters and has put something into a ring */
	unsigned char pad2[60];
	/* {number:32, hash:32} of the last call on rings that all ranks make; peers that wait for
	 * long look at it. */
	_Alignas(128) uint64_t ring_call;
	unsigned char pad3[120];
	struct slot_call call[CTRL_CTAS_MAX]
			     [2]; /* by the epoch's parity: no peer is further ahead */
};
_Static_assert(sizeof(struct ctrl_head) % 128 == 0, "regions begin at pairs of lines");

#define SLOT_HASH_GOODBYE 0xffffffffu

struct step {
	const struct coll_team *team;
	const struct coll_call *call;
	uint32_t hash;
	int cta;
	uint64_t epoch;
};

static inline struct ctrl_head *ctrl_head(const struct coll_team *t, int rank)
{
	return (struct ctrl_head *)(t->ctrl + (size_t)rank * t->stride);
}

/* The cell of `source` among those that `owner` holds, in a region of `bytes` per cell. */
static inline char *ctrl_cell(
	const struct step *s, int owner, int source, size_t region, size_t bytes)
{
	size_t i = ((size_t)s->cta * 2 + (s->epoch & 1)) * (size_t)s->team->nranks + (size_t)source;

	return s->team->ctrl + (size_t)owner * s->team->stride + region + i * bytes;
}

static inline struct slot *step_slot(const struct step *s, int owner, int source)
{
	return (struct slot *)ctrl_cell(s, owner, source, s->team->layout.slots, CTRL_SLOT_BYTES);
}

/*
 * Payload memory changes hands: at every other use of a half, what goes from a to b lies where
 * otherwise b's for a does, and bulk memory is the next rank's. So who writes a line has read it
 * the time before, and finds it in its own cache; to write again what a peer has read since costs
 * half as much more (2 ranks, 1 KiB to 256 KiB). The order of steps allows any placement, as long
 * as all ranks agree on it and no two write one place in one step.
 */
static inline int step_turn(const struct step *s)
{
	return (int)(s->epoch >> 1 & 1);
}

/* Where the payload from `source` to `dest` lies in this step. */
static inline char *step_stage(const struct step *s, int dest, int source)
{
	const struct ctrl_layout *l = &s->team->layout;
	int turn = step_turn(s);

	return ctrl_cell(s, turn ? source : dest, turn ? dest : source, l->stage, l->stage_bytes);
}

/* Where the payload that `writer` shows to all lies in this step. */
static inline char *step_bulk(const struct step *s, int writer)
{
	const struct ctrl_layout *l = &s->team->layout;
	size_t i = (size_t)s->cta * 2 + (s->epoch & 1);
	int owner = writer + step_turn(s);

	if (owner == s->team->nranks)
		owner = 0;
	return s->team->ctrl + (size_t)owner * s->team->stride + l->bulk + i * l->bulk_bytes;
}

/* coll/host/wait.c: the rare halves. */
symcclResult_t slot_wait(const struct step *s, int peer, const struct slot *slot);
void slot_wake(struct slot *slot);
void slot_describe(struct slot_call *call, const struct coll_call *c, uint32_t hash);
void slot_call_text(const struct slot_call *c, char *out, size_t n);

static inline void step_begin(struct step *s)
{
	struct ctrl_head *head = ctrl_head(s->team, s->team->rank);
	uint64_t e = head->epoch[s->cta] + 1;
	struct slot_call *call;

	if (__builtin_expect((uint32_t)e == 0, 0))
		e += 2;
	s->epoch = e;
	call = &head->call[s->cta][e & 1];
	if (call->hash != s->hash)
		slot_describe(call, s->call, s->hash);
}

static inline void step_end(const struct step *s)
{
	ctrl_head(s->team, s->team->rank)->epoch[s->cta] = s->epoch;
}

/* A wait under way: spins, then yields, then sleeps. Zero at its start and whenever something has
 * come. */
struct waiting {
	uint32_t turns;
	uint64_t start;
};
/* Nothing has come since *word was `seen`: rest. Success: look again. symcclRemoteError: aborted;
 * symcclTimeout, without a sentence. */
symcclResult_t waiting_rest(
	const struct coll_team *t, struct waiting *w, const uint32_t *word, uint32_t seen);
/* Wake whoever sleeps on it. */
void waiting_wake(uint32_t *word);
/* It sleeps by now: time for looks that cost something. */
static inline int waiting_is_long(const struct coll_team *t, const struct waiting *w)
{
	return w->turns >= t->wait.spins + t->wait.yields;
}

/* Publish everything written so far to `peer`, with n <= 56 bytes of payload on the flag's line. */
static inline void step_post(const struct step *s, int peer, const void *data, size_t n)
{
	struct slot *slot = step_slot(s, peer, s->team->rank);

	if (n)
		memcpy(slot->data, data, n);
	store_release64(&slot->flag, (s->epoch & 0xffffffffu) << 32 | s->hash);
	if (__builtin_expect(load_relaxed32(&ctrl_head(s->team, peer)->waiters) != 0, 0))
		slot_wake(slot);
}

static inline void step_post_all(const struct step *s)
{
	int n = s->team->nranks;

	for (int k = 1; k < n; k++) {
		int peer = s->team->rank + k;

		step_post(s, peer < n ? peer : peer - n, NULL, 0);
	}
}

/* Wait for the peer's post of this step; *data is its payload. */
static inline symcclResult_t step_await(const struct step *s, int peer, const unsigned char **data)
{
	const struct slot *slot = step_slot(s, s->team->rank, peer);

	*data = slot->data;
	if (load_acquire64(&slot->flag) == ((s->epoch & 0xffffffffu) << 32 | s->hash))
		return symcclSuccess;
	return slot_wait(s, peer, slot);
}

static inline symcclResult_t step_await_all(const struct step *s)
{
	const unsigned char *data;
	int n = s->team->nranks;

	for (int k = 1; k < n; k++) {
		int peer = s->team->rank + k;

		TRY(step_await(s, peer < n ? peer : peer - n, &data));
	}
	return symcclSuccess;
}

/* A whole step without payload: nobody returns before everybody has come. */
static inline symcclResult_t step_sync(struct step *s)
{
	step_begin(s);
	step_post_all(s);
	TRY(step_await_all(s));
	step_end(s);
	return symcclSuccess;
}

#endif
