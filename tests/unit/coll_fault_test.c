/* What a rank says when its peers make other calls, leave, stop, or never come: a sentence in
 * bounded time, never a hang. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "coll_rig.h"
#include "device/slot.h"
#include "mem.h"
#include "ranks.h"
#include "util.h"

TestSuite(coll_fault, .timeout = 60);

#define BYTES 400000

struct job {
	struct rig rig;
	int kind, odd; /* which difference, and which rank makes it */
};

static void sleep_ms(int ms)
{
	struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

	nanosleep(&t, NULL);
}

static void run(int n, rank_fn *fn, struct job *j)
{
	char err[1024];

	cr_assert_eq(rig_open(&j->rig, n, 1, (size_t)n * BYTES + 8192), 0);
	cr_assert_eq(ranks_run_threads(n, 30, fn, j, err, sizeof(err)), 0, "%d ranks, kind %d: %s",
		n, j->kind, err);
	rig_close(&j->rig);
}

static symcclResult_t start(const struct coll_team *t, const struct coll_call *c)
{
	struct coll_plan plan;

	TRY(coll_plan(t, c, &plan));
	return coll_run_host(t, c, &plan);
}

static symcclResult_t barrier(const struct coll_team *t)
{
	struct coll_call c = {.func = symcclFuncBarrier};

	return start(t, &c);
}

/* ---- Ranks that differ ----------------------------------------------------------------------- */

enum { COUNT, COUNT_LARGE, TYPE, FUNC, ALGO, OFFSET, WINDOW, MEMORY, NOTHING, KINDS };

/* What the sentences of both sides must hold. */
static const char *const says[KINDS][2] = {
	[COUNT] = {"AllGather of 8 int8", "AllGather of 9 int8"},
	[COUNT_LARGE] = {"AllGather of 400000 int8", "AllGather of 8 int8"},
	[TYPE] = {"AllGather of 8 int8", "AllGather of 8 uint8"},
	[FUNC] = {"AllGather", "Barrier"},
	[ALGO] = {"AllGather of 8 int8", "different algorithms"},
	[OFFSET] = {"+64", "+128"},
	[WINDOW] = {"+64", "+64"},
	[MEMORY] = {"rank", "rank"},
	[NOTHING] = {"AllGather of 8 int8", "Barrier"},
};

static void differ(const struct job *j, int odd, struct coll_team *t, const struct rig_plain *p,
	struct coll_call *c)
{
	int direct = j->kind == OFFSET || j->kind == WINDOW || j->kind == MEMORY;

	*c = (struct coll_call){.func = symcclFuncAllGather,
		.type = symcclInt8,
		.count = direct || j->kind == COUNT_LARGE ? BYTES : 8,
		.send.ptr = p->send,
		.recv.ptr = p->recv};
	if (direct)
		rig_window(&j->rig, t->rank, RIG_SYMMETRIC, 2, odd && j->kind == OFFSET ? 128 : 64,
			&c->recv);
	if (!odd) {
		if (j->kind == ALGO)
			strcpy(t->tuning.algo, "allgather/packet");
		return;
	}
	switch (j->kind) {
	case COUNT:
		c->count = 9;
		break;
	case COUNT_LARGE:
		c->count = 8;
		break;
	case TYPE:
		c->type = symcclUint8;
		break;
	case FUNC:
		*c = (struct coll_call){.func = symcclFuncBarrier};
		break;
	case ALGO:
		strcpy(t->tuning.algo, "allgather/scratch");
		break;
	case WINDOW:
		c->recv.window = 7;
		break;
	case MEMORY:
		c->recv = (struct coll_buf){.ptr = p->recv};
		break;
	case NOTHING:
		c->count = 0;
		break;
	}
}

static int ranks_differ(int rank, int n, void *arg)
{
	const struct job *j = arg;
	struct rig_plain p = {malloc(BYTES), malloc((size_t)n * BYTES)};
	uint64_t start_ns = now_ns();
	struct coll_team t;
	struct coll_call c;
	symcclResult_t e;
	const char *text;

	RANK_CHECK(p.send != NULL && p.recv != NULL, "no memory");
	memset(p.send, rank, BYTES);
	rig_team(&j->rig, rank, &t);
	for (int i = 0; i < j->kind; i++) /* either parity */
		RANK_OK(barrier(&t));
	differ(j, rank == j->odd, &t, &p, &c);
	e = start(&t, &c);
	/* Nothing to move is no step, so that rank is found out in its next call. */
	if (j->kind == NOTHING && rank == j->odd && e == symcclSuccess)
		e = barrier(&t);
	RANK_CHECK(e == symcclInvalidUsage, "%s: %s", error_name(e), error_text());
	text = error_text();
	RANK_CHECK(strstr(text, "rank"), "%s", text);
	if (n == 2)
		RANK_CHECK(strstr(text, says[j->kind][0]) && strstr(text, says[j->kind][1]) &&
				   strstr(text, "rank 0") && strstr(text, "rank 1"),
			"%s", text);
	RANK_CHECK(now_ns() - start_ns < 2000000000u, "took too long");
	free(p.send);
	free(p.recv);
	return 0;
}

Test(coll_fault, ranks_differ)
{
	for (int kind = 0; kind < KINDS; kind++)
		for (int n = 2; n <= 4; n++) {
			struct job j = {.kind = kind, .odd = n - 2};

			run(n, ranks_differ, &j);
		}
}

/* A slot that is a whole turn further than anybody can be. */
static int out_of_step(int rank, int n, void *arg)
{
	const struct job *j = arg;
	struct step s;
	struct coll_team t;

	rig_team(&j->rig, rank, &t);
	RANK_OK(barrier(&t));
	if (rank != 0) {
		s = (struct step){.team = &t, .hash = 5};
		step_begin(&s);
		s.epoch += 2;
		step_post(&s, 0, NULL, 0);
		return 0;
	}
	RANK_RESULT(barrier(&t), symcclInvalidUsage);
	RANK_CHECK(strstr(error_text(), "ahead of rank 0"), "%d: %s", n, error_text());
	return 0;
}

Test(coll_fault, out_of_step)
{
	struct job j = {0};

	run(2, out_of_step, &j);
}

/* One rank has gone for good. */
static int peer_leaves(int rank, int n, void *arg)
{
	const struct job *j = arg;
	struct coll_team t;

	(void)n;
	rig_team(&j->rig, rank, &t);
	for (int i = 0; i < 3 + j->kind; i++)
		RANK_OK(barrier(&t));
	if (rank == j->odd) {
		coll_goodbye(&t);
		return 0;
	}
	sleep_ms(j->kind * 20); /* before and after it has left */
	RANK_RESULT(barrier(&t), symcclInvalidUsage);
	RANK_CHECK(strstr(error_text(), "destroyed"), "%s", error_text());
	return 0;
}

Test(coll_fault, peer_leaves)
{
	for (int kind = 0; kind < 2; kind++)
		for (int odd = 0; odd < 3; odd++) {
			struct job j = {.kind = kind, .odd = odd};

			run(3, peer_leaves, &j);
		}
}

/* ---- Ranks that do not come ------------------------------------------------------------------ */

enum { IN_SPIN, IN_SLEEP };

/* Rank 1 stays away; rank 0 waits in one of its ways until the abort word is set, or for a time. */
static int abort_word(int rank, int n, void *arg)
{
	const struct job *j = arg;
	struct coll_team t;
	uint64_t from;

	(void)n;
	rig_team(&j->rig, rank, &t);
	if (rank == 1) {
		sleep_ms(100);
		__atomic_store_n(j->rig.abort, 1, __ATOMIC_RELEASE);
		return 0;
	}
	t.wait.spins = j->kind == IN_SPIN ? UINT32_MAX : 10;
	from = now_ns();
	RANK_RESULT(barrier(&t), symcclRemoteError);
	RANK_CHECK(now_ns() - from < 1000000000u, "took %.3f s", (double)(now_ns() - from) / 1e9);
	return 0;
}

Test(coll_fault, abort_word)
{
	for (int kind = IN_SPIN; kind <= IN_SLEEP; kind++) {
		struct job j = {.kind = kind};

		run(2, abort_word, &j);
	}
}

static int deadline(int rank, int n, void *arg)
{
	const struct job *j = arg;
	struct coll_team t;
	uint64_t from;

	(void)n;
	rig_team(&j->rig, rank, &t);
	if (rank == 2)
		return 0;
	t.wait.timeout_ns = 80000000;
	from = now_ns();
	RANK_RESULT(barrier(&t), symcclTimeout);
	from = now_ns() - from;
	RANK_CHECK(from > 79000000 && from < 1000000000u, "%.3f s", (double)from / 1e9);
	RANK_CHECK(strstr(error_text(), "rank 2") && strstr(error_text(), "SYMCCL_OP_TIMEOUT"),
		"%s", error_text());
	return 0;
}

Test(coll_fault, deadline)
{
	struct job j = {0};

	run(3, deadline, &j);
}

/* A rank that is late finds the others asleep; data is right all the same. */
static int late(int rank, int n, void *arg)
{
	const struct job *j = arg;
	struct rig_plain p = {malloc(j->rig.room), malloc(j->rig.room)};
	struct coll_team t;
	char why[512];

	rig_team(&j->rig, rank, &t);
	t.wait.spins = t.wait.yields = 0;
	for (int i = 0; i < 40; i++) {
		if (i % n == rank)
			sleep_ms(3);
		RANK_CHECK(rig_burst(&j->rig, &t, &p, test_seed() + (uint64_t)i, 3, 5000, why,
				   sizeof(why)) == 0,
			"%s", why);
	}
	RANK_CHECK(ctrl_head(&t, rank)->waiters == 0, "a sleeper was not counted out");
	free(p.send);
	free(p.recv);
	return 0;
}

Test(coll_fault, late)
{
	for (int n = 2; n <= 3; n++) {
		struct job j = {0};

		test_seed();
		run(n, late, &j);
	}
}

/* The timed sleep would hide a wake-up that misses, so sleep without one, on the same word. */
struct sleeper {
	uint32_t *word;
	long slept; /* what the futex call returned */
};

static void *sleep_on(void *arg)
{
	struct sleeper *s = arg;
	struct timespec t = {.tv_sec = 20};

	s->slept = syscall(SYS_futex, s->word, FUTEX_WAIT, 0, &t, NULL, 0);
	return NULL;
}

Test(coll_fault, wakes)
{
	struct coll_team t[2];
	struct sleeper s;
	struct step st;
	pthread_t th;
	struct rig r;
	uint64_t from;

	cr_assert_eq(rig_open(&r, 2, 1, 4096), 0);
	rig_team(&r, 0, &t[0]);
	rig_team(&r, 1, &t[1]);
	st = (struct step){.team = &t[0], .hash = 5};
	step_begin(&st);
	/* The half of rank 1's slot for rank 0 that holds the epoch. */
	s.word = (uint32_t *)&step_slot(&st, 1, 0)->flag +
		 (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
	ctrl_head(&t[1], 1)->waiters = 1;
	from = now_ns();
	cr_assert_eq(pthread_create(&th, NULL, sleep_on, &s), 0);
	sleep_ms(100);
	step_post(&st, 1, NULL, 0);
	pthread_join(th, NULL);
	cr_assert_eq(s.slept, 0);
	cr_assert_lt(now_ns() - from, 10000000000u);
	rig_close(&r);
}
