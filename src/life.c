/* Meetings on the board, and the phases of the calls that need them. */
#define _GNU_SOURCE
#include "life.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "async.h"
#include "hub.h"
#include "log.h"
#include "params.h"
#include "util.h"

#define YIELDS 64
#define LOOK_MS 5              /* between two looks at who lives */
#define LEAVE_NS 1000000000ull /* for listed ranks that are about to leave */
#define PHASES 4

struct life_note {
	int32_t code; /* not symcclSuccess: text says why */
	union {
		struct {
			int32_t color, key;
		};
		symcclUniqueId id;
		char text[BOARD_NOTE - sizeof(int32_t)];
	};
};
_Static_assert(sizeof(struct life_note) <= BOARD_NOTE, "a note holds what ranks tell each other");

static const char *life_name(uint32_t kind)
{
	static const char *const names[] = {[LIFE_SPLIT] = "symcclCommSplit",
		[LIFE_SHRINK] = "symcclCommShrink",
		[LIFE_SHRINK_ABORT] = "symcclCommShrink with SYMCCL_SHRINK_ABORT",
		[LIFE_FINALIZE] = "symcclCommFinalize"};

	return kind > 0 && kind < ARRAY_LEN(names) ? names[kind] : "another call";
}

/* ---- Meeting -----------------------------------------------------------------------------------
 */

static int rank_at(const struct life *l, int i)
{
	return l->n ? l->ranks[i] : i;
}

static int life_count(const struct life *l)
{
	return l->n ? l->n : l->comm->nranks;
}

/* Meetings are counted: those of all ranks together, those of a part by who and what for. */
static symcclResult_t next_seq(struct life *l)
{
	symcclComm_t c = l->comm;
	uint64_t key = 14695981039346656037ull ^ l->kind;
	struct part_count *p;
	int i = 0;

	if (l->n == 0) {
		l->which = NOTE_TEAM;
		l->note_key = 0;
		l->seq = ++c->meetings;
		return symcclSuccess;
	}
	for (int k = 0; k < l->n; k++)
		key = (key ^ (uint64_t)(unsigned)l->ranks[k]) * 1099511628211ull;
	while (i < c->nparts && c->parts[i].key != key)
		i++;
	if (i == c->nparts) {
		p = realloc(c->parts, (size_t)(i + 1) * sizeof(*p));
		if (p == NULL)
			return fail(symcclSystemError, "out of memory in %s", life_name(l->kind));
		c->parts = p;
		p[i] = (struct part_count){.key = key};
		c->nparts++;
	}
	l->which = NOTE_PART;
	l->note_key = key;
	l->seq = ++c->parts[i].n;
	return symcclSuccess;
}

static symcclResult_t meet_begin(struct life *l, const struct life_note *note)
{
	double limit = params_get()->setup_timeout;

	TRY(next_seq(l));
	if (l->heard == NULL)
		l->heard = calloc((size_t)life_count(l), sizeof(*l->heard));
	if (l->heard == NULL)
		return fail(symcclSystemError, "out of memory in %s", life_name(l->kind));
	l->deadline = limit > 0 ? now_ns() + (uint64_t)(limit * 1e9) : UINT64_MAX;
	board_post(l->comm->hub->board, l->comm->rank, l->which, l->kind, l->note_key, l->seq, note,
		sizeof(*note));
	return symcclSuccess;
}

static int pid_of(const struct hub *h, int rank)
{
	return h->boot->procs[h->boot->rank_proc[rank]].pid;
}

/* 1: the rank's note has come; 0: not yet; -1: it will not, and fail() has said why. */
static int meet_hear(struct life *l, int i)
{
	struct hub *h = l->comm->hub;
	int rank = rank_at(l, i);
	uint32_t kind = 0;
	int got = board_heard(h->board, rank, l->which, l->note_key, l->seq, &kind, &l->heard[i],
		sizeof(l->heard[i]));

	if (got < 0) {
		l->result.code = fail(symcclInvalidUsage,
			"rank %d is ahead of rank %d in %s: all ranks must make the same calls",
			rank, l->comm->rank, life_name(l->kind));
	} else if (got > 0 && kind != (uint32_t)l->kind) {
		l->result.code = fail(symcclInvalidUsage, "rank %d calls %s, rank %d calls %s",
			rank, life_name(kind), l->comm->rank, life_name(l->kind));
		got = -1;
	}
	return got;
}

/* What was healthy has failed meanwhile, and ranks that have noticed go no further. A revoke is
 * what splits and shrinks are made after: ranks may meet before they know. */
static symcclResult_t parent_failed(const struct life *l)
{
	const struct hub *h = l->comm->hub;

	if (!l->healthy || ((l->kind == LIFE_SPLIT || l->kind == LIFE_SHRINK) &&
				   __atomic_load_n(&h->board->revoked, __ATOMIC_ACQUIRE)))
		return symcclSuccess;
	return hub_status(l->comm->hub);
}

/* Can the rank still come? What it wrote last counts, so it is read after the look. */
static int meet_look(struct life *l, int i)
{
	struct hub *h = l->comm->hub;
	int rank = rank_at(l, i), got;
	enum board_life life = board_look(h->board, rank);

	if (life == BOARD_ALIVE)
		return 0;
	got = meet_hear(l, i);
	if (got != 0)
		return got;
	/* Who has left may have seen another one die: that is the reason then. */
	for (int k = 0; k < life_count(l) && life != BOARD_DEAD; k++)
		if (board_look(h->board, rank_at(l, k)) == BOARD_DEAD) {
			rank = rank_at(l, k);
			life = BOARD_DEAD;
		}
	if (life == BOARD_DEAD)
		l->result.code =
			fail(symcclRemoteError, "rank %d (pid %d) died before it came to %s", rank,
				pid_of(h, rank), life_name(l->kind));
	else if ((l->result.code = parent_failed(l)) == symcclSuccess)
		l->result.code = fail(symcclInvalidUsage,
			"rank %d has left the communicator and will not come to %s", rank,
			life_name(l->kind));
	l->result.rank = rank;
	return -1;
}

/* Anything but ranks that end the wait. */
static symcclResult_t meet_broken(struct life *l, int rank)
{
	symcclComm_t c = l->comm;

	if (__atomic_load_n(&c->aborting, __ATOMIC_ACQUIRE))
		return fail(symcclRemoteError, "rank %d called symcclCommAbort during %s", c->rank,
			life_name(l->kind));
	TRY(parent_failed(l));
	if (now_ns() >= l->deadline)
		return fail(symcclTimeout,
			"rank %d did not come to %s within %g s (SYMCCL_SETUP_TIMEOUT): all ranks "
			"that take part must call it%s",
			rank, life_name(l->kind), params_get()->setup_timeout,
			l->n ? ", with the same list" : ", in the same order");
	return symcclSuccess;
}

static symcclResult_t meet_finish(struct life *l)
{
	struct board *b = l->comm->hub->board;
	int n = life_count(l), yields = 0;

	for (int i = 0; i < n;) {
		int got = meet_hear(l, i);

		if (got > 0) {
			i++;
			continue;
		}
		/* Also of those whose turn has not come: they may be dead already. */
		for (int k = i; got == 0 && yields >= YIELDS && k < n; k++)
			got = MIN(meet_look(l, k), 0);
		if (got < 0)
			return l->result.code;
		TRY(meet_broken(l, rank_at(l, i)));
		if (yields++ < YIELDS)
			sched_yield();
		else
			board_sleep(b, rank_at(l, i), l->which, l->seq, LOOK_MS);
	}
	for (int i = 0; i < n; i++)
		if (l->heard[i].code != symcclSuccess) {
			l->heard[i].text[sizeof(l->heard[i].text) - 1] = '\0';
			return fail_quiet((symcclResult_t)l->heard[i].code, "%s", l->heard[i].text);
		}
	return symcclSuccess;
}

/* ---- Phases ------------------------------------------------------------------------------------
 */

/* What this rank has to say; its own failure is said, too. */
static symcclResult_t say(struct life *l, struct life_note *note)
{
	if (l->bad.code == symcclSuccess)
		return meet_begin(l, note);
	note->code = l->bad.code;
	/* A long sentence is cut. */
	memcpy(note->text, l->bad.text, sizeof(note->text) - 1);
	return meet_begin(l, note);
}

static void say_bad(struct life *l, symcclResult_t e)
{
	if (e == symcclSuccess || l->bad.code != symcclSuccess)
		return;
	l->bad.code = e;
	snprintf(l->bad.text, sizeof(l->bad.text), "rank %d: %s", l->comm->rank, error_text());
}

/* This rank is the first of the new communicator: make its id. */
static void make_id(struct life *l, struct life_note *note)
{
	symcclResult_t e = boot_id_create(&l->id);

	l->has_id = e == symcclSuccess;
	note->id = l->id;
	say_bad(l, e);
}

/* Those who are left out must not write into memory that the others share any more. */
static symcclResult_t check_excluded(struct life *l)
{
	struct hub *h = l->comm->hub;
	uint64_t end = now_ns() + LEAVE_NS;

	for (int r = 0, i = 0; r < l->comm->nranks; r++) {
		if (i < l->n && l->ranks[i] == r) {
			i++;
			continue;
		}
		while (board_look(h->board, r) == BOARD_ALIVE) {
			if (now_ns() >= end)
				return fail(symcclInvalidUsage,
					"rank %d is listed, but its process (pid %d) lives and has "
					"not left the communicator: end it first",
					r, pid_of(h, r));
			usleep(1000);
		}
	}
	return symcclSuccess;
}

static symcclResult_t shrink_begin(struct life *l)
{
	struct life_note note = {.code = symcclSuccess};

	if (l->kind == LIFE_SHRINK_ABORT) {
		comm_stop(l->comm, 1);
		say_bad(l, check_excluded(l));
	}
	if (l->bad.code == symcclSuccess && l->ranks[0] == l->comm->rank)
		make_id(l, &note);
	return say(l, &note);
}

struct claim {
	int key, rank;
};

static int claim_cmp(const void *a, const void *b)
{
	const struct claim *x = a, *y = b;

	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return x->rank - y->rank;
}

/* Who has this rank's color, in the new order. */
static symcclResult_t split_members(struct life *l)
{
	int n = l->comm->nranks, m = 0;
	struct claim *c = calloc((size_t)n, sizeof(*c));

	l->members = calloc((size_t)n, sizeof(*l->members));
	if (c == NULL || l->members == NULL) {
		free(c);
		return fail(symcclSystemError, "out of memory in symcclCommSplit");
	}
	for (int r = 0; r < n && l->color != SYMCCL_SPLIT_NOCOLOR; r++)
		if (l->heard[r].color == l->color)
			c[m++] = (struct claim){l->heard[r].key, r};
	qsort(c, (size_t)m, sizeof(*c), claim_cmp);
	for (int i = 0; i < m; i++)
		l->members[i] = c[i].rank;
	l->nmembers = m;
	free(c);
	return symcclSuccess;
}

static symcclResult_t split_second(struct life *l)
{
	struct life_note note = {.code = symcclSuccess};

	TRY(meet_finish(l));
	say_bad(l, split_members(l));
	if (l->bad.code == symcclSuccess && l->nmembers > 0 && l->members[0] == l->comm->rank)
		make_id(l, &note);
	return say(l, &note);
}

/* The new communicator's id is known: join it. */
static symcclResult_t join_new(struct life *l)
{
	symcclComm_t c = l->comm;
	struct join_task *t = &l->join;
	int place = 0;

	if (l->nmembers == 0)
		return symcclSuccess;
	while (l->members[place] != c->rank)
		place++;
	*t = (struct join_task){.nranks = l->nmembers,
		.rank = place,
		.id = l->id,
		.config = l->config,
		.mem = c->hub->mem,
		.device = c->device};
	memcpy(t->name, l->name, sizeof(t->name));
	return comm_join_begin(t);
}

static symcclResult_t split_join(struct life *l)
{
	TRY(meet_finish(l));
	if (l->nmembers > 0)
		l->id = l->heard[l->members[0]].id;
	return join_new(l);
}

static symcclResult_t shrink_join(struct life *l)
{
	TRY(meet_finish(l));
	l->id = l->heard[0].id;
	l->members = l->ranks;
	l->nmembers = l->n;
	return join_new(l);
}

/* A member that has died will not come to the rendezvous, which does not know of it; nor will one
 * that has seen another rank's death before it had heard from all. */
static symcclResult_t join_watch(void *arg)
{
	struct life *l = arg;
	struct hub *h = l->comm->hub;

	if (__atomic_load_n(&l->comm->aborting, __ATOMIC_ACQUIRE))
		return fail(symcclRemoteError, "rank %d called symcclCommAbort during %s",
			l->comm->rank, life_name(l->kind));
	for (int i = 0; i < l->nmembers; i++)
		if (board_look(h->board, l->members[i]) == BOARD_DEAD)
			return fail(symcclRemoteError, "rank %d (pid %d) died during %s",
				l->members[i], pid_of(h, l->members[i]), life_name(l->kind));
	return parent_failed(l);
}

static symcclResult_t wait_new(struct life *l)
{
	symcclComm_t made = NULL;
	symcclResult_t e;

	if (l->nmembers == 0)
		return symcclSuccess;
	e = comm_join_finish(&l->join, join_watch, l, &made);
	l->join.comm = made;
	return e;
}

static symcclResult_t tell_begin(struct life *l)
{
	struct life_note note = {.code = symcclSuccess};

	if (l->kind == LIFE_FINALIZE)
		say_bad(l, comm_flush(l->comm));
	return say(l, &note);
}

static symcclResult_t tell_end(struct life *l)
{
	TRY(meet_finish(l));
	switch (l->kind) {
	case LIFE_FINALIZE:
		comm_finalized(l->comm);
		break;
	default:
		break;
	}
	return symcclSuccess;
}

static symcclResult_t life_step(struct life *l, int phase)
{
	static symcclResult_t (*const split[PHASES])(struct life *) = {
		NULL, split_second, split_join, wait_new};
	static symcclResult_t (*const shrink[PHASES])(struct life *) = {
		shrink_begin, NULL, shrink_join, wait_new};
	static symcclResult_t (*const tell[PHASES])(struct life *) = {tell_begin, tell_end};
	struct life_note note = {.color = l->color, .key = l->key};

	if (l->kind == LIFE_SPLIT)
		return phase == 0 ? say(l, &note) : split[phase](l);
	if (l->kind == LIFE_SHRINK || l->kind == LIFE_SHRINK_ABORT)
		return shrink[phase] ? shrink[phase](l) : symcclSuccess;
	return tell[phase] ? tell[phase](l) : symcclSuccess;
}

/* ---- Running -----------------------------------------------------------------------------------
 */

void life_drop(struct life *l)
{
	free(l->heard);
	if (l->members != l->ranks)
		free(l->members);
	free(l->ranks);
}

static void life_end(struct life *l, int ok)
{
	symcclComm_t made = l->join.comm;

	if (made != NULL && !ok)
		symcclCommAbort(made);
	else if (ok && l->out != NULL)
		*l->out = made;
	/* Ranks that come late have nobody to meet there. */
	if (!ok && l->has_id)
		boot_id_drop(&l->id);
	life_drop(l);
}

symcclResult_t life_run(struct life *l, int n)
{
	struct failure first = {.code = symcclSuccess};
	int rounds = 0;

	for (int i = 0; i < n; i++) {
		l[i].round = 0;
		for (int k = 0; k < i; k++)
			l[i].round += l[k].comm == l[i].comm;
		rounds = MAX(rounds, l[i].round + 1);
		l[i].healthy = l[i].kind != LIFE_SHRINK_ABORT &&
			       hub_status(l[i].comm->hub) == symcclSuccess;
	}
	for (int at = 0; at < rounds * PHASES; at++)
		for (int i = 0; i < n; i++) {
			symcclResult_t e;

			if (l[i].round != at / PHASES || l[i].result.code != symcclSuccess)
				continue;
			e = life_step(&l[i], at % PHASES);
			l[i].result.code = e;
			if (comm_error(l[i].comm, e) != symcclSuccess &&
				first.code == symcclSuccess) {
				first.code = e;
				snprintf(first.text, sizeof(first.text), "%s", error_text());
			}
		}
	for (int i = 0; i < n; i++)
		life_end(&l[i], first.code == symcclSuccess);
	if (first.code == symcclSuccess)
		return symcclSuccess;
	return fail_quiet(first.code, "%s", first.text);
}

/* The rank's thread holds the communicator itself. */
static symcclResult_t life_apart(void *arg)
{
	struct life *l = arg;
	symcclResult_t e = life_run(l, 1);

	free(l);
	return e;
}

symcclResult_t life_call(struct life *l)
{
	struct life *copy;
	symcclResult_t e;

	if (group_open()) {
		e = group_add_life(l);
		if (e != symcclSuccess)
			life_drop(l);
		return e;
	}
	if (!comm_is_async(l->comm)) {
		comm_hold(l->comm);
		e = life_run(l, 1);
		comm_release(l->comm);
		return e;
	}
	copy = malloc(sizeof(*copy));
	if (copy == NULL) {
		life_drop(l);
		return comm_error(l->comm, fail(symcclSystemError, "out of memory for a call"));
	}
	*copy = *l;
	e = async_start(l->comm, life_apart, copy);
	if (e != symcclInProgress)
		life_drop(copy), free(copy);
	return e;
}
