/*
 * A rank is killed at a random instant of each kind of call. The survivors must return an error
 * within a second of the death, go on without the dead rank, get right results, and leave nothing
 * behind. Three deaths of each kind; SYMCCL_TEST_FULL=1: 20, SYMCCL_TEST_SOAK=1: 200.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "bootstrap/root.h"
#include "life_helper.h"
#include "mem.h"
#include "params.h"
#include "ranks.h"
#include "symccl.h"
#include "util.h"

TestSuite(life_kill, .timeout = 3000);

#define N 4
#define LIMIT_NS 1000000000ull
#define INIT_NS 2500000000ull /* time-out of joining, and what it waits for late ones then */
#define BYTES ((size_t)1 << 20)

struct trial {
	symcclComm_t comm;
	int rank, victim;
	uint64_t seed;
	char *a, *b; /* BYTES each, of symcclMemAlloc; windows in some kinds */
	symcclUniqueId id;
};

struct shared {
	uint64_t death; /* when it is due, now_ns() */
};

/* ---- Kinds of calls: once; until the first error they are made again and again ------------------
 */

static size_t some(const struct trial *t)
{
	static const size_t size[] = {8, 1000, 16384, 65544, 262144};

	return size[t->seed / 7 % ARRAY_LEN(size)];
}

static symcclResult_t k_barrier(struct trial *t)
{
	return symcclBarrier(t->comm, NULL);
}

static symcclResult_t k_all_gather(struct trial *t)
{
	return symcclAllGather(t->a, t->b, some(t), symcclInt8, t->comm, NULL);
}

static symcclResult_t k_all_reduce(struct trial *t)
{
	return symcclAllReduce(t->a, t->b, some(t), symcclInt32, symcclSum, t->comm, NULL);
}

static symcclResult_t k_reduce_scatter(struct trial *t)
{
	return symcclReduceScatter(t->a, t->b, some(t), symcclInt8, symcclMax, t->comm, NULL);
}

static symcclResult_t k_broadcast(struct trial *t)
{
	return symcclBroadcast(t->a, t->b, some(t), symcclInt8, 1, t->comm, NULL);
}

static symcclResult_t k_reduce(struct trial *t)
{
	return symcclReduce(t->a, t->b, some(t), symcclInt8, symcclSum, 2, t->comm, NULL);
}

static symcclResult_t k_all_to_all(struct trial *t)
{
	return symcclAlltoAll(t->a, t->b, some(t), symcclInt8, t->comm, NULL);
}

static symcclResult_t k_gather(struct trial *t)
{
	return symcclGather(t->a, t->b, some(t), symcclInt8, 0, t->comm, NULL);
}

static symcclResult_t k_scatter(struct trial *t)
{
	return symcclScatter(t->a, t->b, some(t), symcclInt8, 3, t->comm, NULL);
}

static symcclResult_t k_register(struct trial *t)
{
	symcclWindow_t w[2];
	symcclResult_t e;

	symcclGroupStart();
	symcclCommWindowRegister(t->comm, t->a, BYTES, &w[0], SYMCCL_WIN_COLL_SYMMETRIC);
	symcclCommWindowRegister(t->comm, t->b, BYTES, &w[1], SYMCCL_WIN_DEFAULT);
	e = symcclGroupEnd();
	if (e == symcclSuccess)
		e = symcclCommWindowDeregister(t->comm, w[0]);
	if (e == symcclSuccess)
		e = symcclCommWindowDeregister(t->comm, w[1]);
	return e;
}

static symcclResult_t k_split(struct trial *t)
{
	symcclComm_t sub;
	symcclResult_t e = symcclCommSplit(t->comm, t->rank % 2, -t->rank, &sub, NULL);

	if (e != symcclSuccess)
		return e;
	e = symcclBarrier(sub, NULL);
	symcclCommDestroy(sub);
	return e;
}

static symcclResult_t k_shrink(struct trial *t)
{
	symcclComm_t sub;
	symcclResult_t e = symcclCommShrink(t->comm, NULL, 0, &sub, NULL, SYMCCL_SHRINK_DEFAULT);

	return e == symcclSuccess ? symcclCommDestroy(sub) : e;
}

static symcclResult_t k_finalize(struct trial *t)
{
	symcclComm_t sub;
	symcclResult_t e = symcclCommSplit(t->comm, 0, 0, &sub, NULL);

	if (e != symcclSuccess)
		return e;
	e = symcclCommFinalize(sub);
	symcclCommDestroy(sub);
	return e;
}

/* Another communicator, once: who is not there yet when it dies is not missed before the time-out.
 */
static symcclResult_t k_init(struct trial *t)
{
	symcclComm_t more;
	symcclResult_t e = symcclCommInitRank(&more, N, t->id, t->rank);

	if (e != symcclSuccess)
		return e;
	while ((e = symcclBarrier(more, NULL)) == symcclSuccess)
		;
	symcclCommDestroy(more);
	return e;
}

static symcclResult_t k_group(struct trial *t)
{
	symcclGroupStart();
	symcclAllReduce(t->a, t->b, 100, symcclFloat32, symcclSum, t->comm, NULL);
	symcclAllGather(t->a, t->b, 5000, symcclInt8, t->comm, NULL);
	symcclBarrier(t->comm, NULL);
	return symcclGroupEnd();
}

static const struct kind {
	const char *name;
	symcclResult_t (*call)(struct trial *t);
	int windows; /* a and b are */
} kinds[] = {
	{"barrier", k_barrier, 0},
	{"all-gather", k_all_gather, 0},
	{"all-gather on windows", k_all_gather, 1},
	{"all-reduce", k_all_reduce, 0},
	{"all-reduce on windows", k_all_reduce, 1},
	{"reduce-scatter", k_reduce_scatter, 1},
	{"broadcast", k_broadcast, 0},
	{"reduce", k_reduce, 0},
	{"all-to-all", k_all_to_all, 1},
	{"gather", k_gather, 0},
	{"scatter", k_scatter, 0},
	{"registration", k_register, 0},
	{"split", k_split, 0},
	{"shrink", k_shrink, 0},
	{"finalize", k_finalize, 0},
	{"init", k_init, 0},
	{"group", k_group, 1},
};

/* ---- One death ---------------------------------------------------------------------------------
 */

/* A machine that is busy with other things is not to blame the library for: a second, times the
 * threads that want a CPU. */
static uint64_t limit_ns(void)
{
	double load[1] = {0}, cpus = (double)sysconf(_SC_NPROCESSORS_ONLN);

	getloadavg(load, 1);
	return (uint64_t)((double)LIMIT_NS * MAX(1.0, load[0] / cpus));
}

static void die_at(uint64_t when)
{
	struct sigevent ev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
	struct itimerspec at = {
		.it_value = {(time_t)(when / 1000000000), (long)(when % 1000000000)}};
	timer_t timer;

	if (timer_create(CLOCK_MONOTONIC, &ev, &timer) == 0)
		timer_settime(timer, TIMER_ABSTIME, &at, NULL);
}

static int go_on(struct trial *t)
{
	symcclComm_t sub;
	int rank = t->rank - (t->rank > t->victim);

	RANK_OK(symcclCommShrink(t->comm, &t->victim, 1, &sub, NULL, SYMCCL_SHRINK_ABORT));
	RANK_TRY(life_works(sub, rank, N - 1, t->seed));
	RANK_OK(symcclCommDestroy(t->comm));
	RANK_OK(symcclCommDestroy(sub));
	return 0;
}

static int survive(struct trial *t, const struct kind *k)
{
	struct shared *s = ranks_shared();
	uint64_t returned, limit;
	symcclResult_t e;

	do
		e = k->call(t);
	while (e == symcclSuccess);
	returned = now_ns();
	/* Whoever has not reached the rendezvous is missed by the time-out alone. */
	limit = s->death + limit_ns() + (k->call == k_init) * INIT_NS;
	RANK_CHECK(e == symcclRemoteError || e == symcclTimeout, "%s: %s", error_name(e),
		error_text());
	RANK_CHECK(e == symcclRemoteError || k->call == k_init, "%s", error_text());
	RANK_CHECK(returned < limit, "returned %.3f s after the death (%s)",
		(double)(returned - s->death) / 1e9, error_text());
	return 0;
}

static int trial_ready(struct trial *t, const struct kind *k)
{
	symcclWindow_t w;

	RANK_TRY(life_join(t->rank, N, &t->comm));
	RANK_OK(symcclMemAlloc((void **)&t->a, BYTES));
	RANK_OK(symcclMemAlloc((void **)&t->b, BYTES));
	if (k->windows) {
		RANK_OK(symcclCommWindowRegister(
			t->comm, t->a, BYTES, &w, SYMCCL_WIN_COLL_SYMMETRIC));
		RANK_OK(symcclCommWindowRegister(
			t->comm, t->b, BYTES, &w, SYMCCL_WIN_COLL_SYMMETRIC));
	}
	if (t->rank == 0 && k->call == k_init)
		RANK_OK(symcclGetUniqueId(&t->id));
	RANK_BCAST(&t->id, sizeof(t->id));
	return 0;
}

struct how {
	const struct kind *kind;
	uint64_t seed;
};

static int one_death(int rank, int n, void *arg)
{
	const struct how *how = arg;
	struct trial t = {.rank = rank, .seed = how->seed};
	struct shared *s = ranks_shared();
	struct leak_snapshot before;
	char why[512];

	(void)n;
	/* The id's rendezvous must outlive the others' joining: it is rank 0's. */
	t.victim = (int)(mix64(t.seed, 1) % N);
	if (how->kind->call == k_init) {
		t.victim = 1 + t.victim % (N - 1);
		setenv("SYMCCL_SETUP_TIMEOUT", "1.5", 1);
	}
	params_reload();
	RANK_TRY(life_join(rank, N, &t.comm));
	RANK_OK(symcclCommDestroy(t.comm));
	RANK_BARRIER();
	leak_snapshot(&before);
	RANK_TRY(trial_ready(&t, how->kind));
	if (rank == t.victim) {
		/* From 16 us to 16 ms, as often between 16 and 32 as between 8 and 16. */
		uint64_t ns = 16000ull << mix64(t.seed, 2) % 10;

		ranks_expect_signal(rank, SIGKILL);
		s->death = now_ns() + ns + mix64(t.seed, 3) % ns;
		RANK_BARRIER();
		die_at(s->death);
		while (how->kind->call(&t) == symcclSuccess)
			;
		for (;;)
			pause();
	}
	RANK_BARRIER();
	RANK_TRY(survive(&t, how->kind));
	RANK_TRY(go_on(&t));
	RANK_OK(symcclMemFree(t.a));
	RANK_OK(symcclMemFree(t.b));
	/* A rendezvous that has failed stays 3 s for those who come late. */
	RANK_CHECK(leak_check(&before, 10, why, sizeof(why)) == 0, "%s", why);
	return 0;
}

Test(life_kill, each_kind)
{
	int deaths = getenv("SYMCCL_TEST_SOAK") ? 200 : getenv("SYMCCL_TEST_FULL") ? 20 : 3;
	const char *only = getenv("SYMCCL_TEST_KIND");
	char err[1024];

	setenv("SYMCCL_DEVICE", "host", 1);
	setenv("SYMCCL_DEBUG", "none", 0);
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
		for (int i = 0; i < deaths; i++) {
			struct how how = {&kinds[k], mix64(test_seed(), k * 1000 + (uint64_t)i)};

			if (only && strcmp(only, kinds[k].name) != 0)
				break;
			cr_assert_eq(ranks_run(N, 30, one_death, &how, err, sizeof(err)), 0,
				"%s, death %d, seed %llu: %s", kinds[k].name, i,
				(unsigned long long)test_seed(), err);
		}
}
