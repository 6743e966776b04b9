/* Communicators that do not block: in progress, done, failed, aborted on the way. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "life_helper.h"
#include "mem.h"
#include "params.h"
#include "ranks.h"
#include "symccl.h"
#include "util.h"

TestSuite(life_async, .timeout = 60);

static void run(const char *what, int n, int procs, rank_fn *fn)
{
	char err[1024];
	int e;

	setenv("SYMCCL_DEVICE", "host", 1);
	test_seed(); /* before the ranks are forked */
	e = procs == 1 ? ranks_run_threads(n, 30, fn, NULL, err, sizeof(err))
		       : ranks_run_mixed(procs, n, 30, fn, NULL, err, sizeof(err));
	cr_assert_eq(e, 0, "%s, %d ranks in %d processes, seed %llu: %s", what, n, procs,
		(unsigned long long)test_seed(), err);
}

static symcclResult_t settle(symcclComm_t comm)
{
	symcclResult_t e = symcclInProgress;

	while (symcclCommGetAsyncError(comm, &e) == symcclSuccess && e == symcclInProgress)
		usleep(100);
	return e;
}

static int start(int rank, int n, symcclComm_t *comm)
{
	symcclConfig_t cfg = SYMCCL_CONFIG_INITIALIZER;
	symcclUniqueId id;

	cfg.blocking = 0;
	if (rank == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_RESULT(symcclCommInitRankConfig(comm, n, id, rank, &cfg), symcclInProgress);
	return 0;
}

static int whole_life(int rank, int n, void *arg)
{
	symcclComm_t comm, half = NULL, less = NULL;
	symcclWindow_t win = NULL;
	void *p;

	(void)arg;
	RANK_TRY(start(rank, n, &comm));
	RANK_OK(settle(comm));
	RANK_TRY(life_works(comm, rank, n, test_seed()));
	RANK_OK(symcclMemAlloc(&p, 65536));
	RANK_RESULT(symcclCommWindowRegister(comm, p, 65536, &win, SYMCCL_WIN_COLL_SYMMETRIC),
		symcclInProgress);
	RANK_OK(settle(comm));
	RANK_CHECK(win != NULL, "no window");
	RANK_RESULT(symcclCommSplit(comm, rank % 2, 0, &half, NULL), symcclInProgress);
	RANK_OK(settle(comm));
	RANK_OK(settle(half));
	RANK_TRY(life_works(half, rank / 2, (n + 1 - rank % 2) / 2, test_seed()));
	RANK_TRY(life_works(comm, rank, n, test_seed()));
	if (rank != 0) {
		RANK_RESULT(symcclCommShrink(comm, &(int){0}, 1, &less, NULL, 0), symcclInProgress);
		RANK_OK(settle(comm));
		RANK_TRY(life_works(less, rank - 1, n - 1, test_seed()));
		RANK_OK(symcclCommDestroy(less));
	}
	RANK_RESULT(symcclCommFinalize(half), symcclInProgress);
	RANK_OK(settle(half));
	RANK_RESULT(symcclBarrier(half, NULL), symcclInvalidUsage);
	RANK_OK(symcclCommDestroy(half));
	RANK_OK(symcclCommDestroy(comm));
	RANK_OK(symcclMemFree(p));
	return 0;
}

static int whole_life_no_leak(int rank, int n, void *arg)
{
	struct leak_snapshot before;

	RANK_TRY(whole_life(rank, n, arg));
	RANK_BARRIER();
	leak_snapshot(&before);
	RANK_TRY(whole_life(rank, n, arg));
	RANK_BARRIER();
	RANK_NO_LEAK(&before);
	return 0;
}

Test(life_async, whole_life)
{
	run("a life", 3, 3, whole_life_no_leak);
	run("a life", 4, 1, whole_life);
}

/* While rank 0 is awaited nothing else may be done; then it comes. */
static int waiting(int rank, int n, void *arg)
{
	symcclComm_t comm, sub = NULL, other;
	symcclResult_t e = symcclSuccess;

	(void)arg;
	RANK_TRY(start(rank, n, &comm));
	RANK_OK(settle(comm));
	RANK_OK(symcclBarrier(comm, NULL));
	if (rank != 0) {
		RANK_RESULT(symcclCommSplit(comm, 0, 0, &sub, NULL), symcclInProgress);
		RANK_OK(symcclCommGetAsyncError(comm, &e));
		RANK_CHECK(e == symcclInProgress, "%d", e);
		RANK_RESULT(symcclBarrier(comm, NULL), symcclInvalidUsage);
		RANK_CHECK(strstr(error_text(), "in progress"), "%s", error_text());
		RANK_RESULT(symcclCommSplit(comm, 0, 0, &other, NULL), symcclInvalidUsage);
		RANK_RESULT(symcclCommFinalize(comm), symcclInvalidUsage);
		RANK_CHECK(sub == NULL, "written too early");
	}
	RANK_BARRIER();
	if (rank == 0)
		RANK_RESULT(symcclCommSplit(comm, 0, 0, &sub, NULL), symcclInProgress);
	RANK_OK(settle(comm));
	RANK_TRY(life_works(sub, rank, n, test_seed()));
	RANK_OK(symcclCommDestroy(sub));
	/* What one rank does wrong, all are told by the state; the communicator works on. */
	RANK_RESULT(symcclCommSplit(comm, rank == 1 ? -9 : 0, 0, &sub, NULL), symcclInProgress);
	RANK_RESULT(settle(comm), symcclInvalidArgument);
	RANK_TRY(life_works(comm, rank, n, test_seed()));
	RANK_OK(symcclCommDestroy(comm));
	return 0;
}

Test(life_async, in_progress)
{
	run("in progress", 3, 3, waiting);
	run("in progress", 3, 1, waiting);
}

/* Ended while it joins, and while it splits. */
static int ended(int rank, int n, void *arg)
{
	symcclComm_t comm, sub;
	uint64_t t0;

	(void)arg;
	setenv("SYMCCL_SETUP_TIMEOUT", "20", 1);
	params_reload();
	RANK_TRY(start(rank, n + 1, &comm));
	t0 = now_ns();
	if (rank % 2)
		RANK_OK(symcclCommAbort(comm));
	else
		RANK_OK(symcclCommDestroy(comm));
	RANK_CHECK(now_ns() - t0 < 10000000000ull, "waited for the time-out");
	RANK_BARRIER();
	RANK_TRY(start(rank, n, &comm));
	RANK_OK(settle(comm));
	RANK_BARRIER();
	if (rank != 0)
		RANK_RESULT(symcclCommSplit(comm, 0, 0, &sub, NULL), symcclInProgress);
	RANK_BARRIER();
	if (rank == 1)
		RANK_OK(symcclCommAbort(comm));
	if (rank > 1)
		RANK_RESULT(settle(comm), symcclRemoteError);
	RANK_BARRIER();
	if (rank != 1)
		RANK_OK(symcclCommDestroy(comm));
	return 0;
}

Test(life_async, ended_on_the_way)
{
	run("ended on the way", 3, 3, ended);
	run("ended on the way", 3, 1, ended);
}

/* One thread, all ranks, without waiting in between. */
Test(life_async, in_a_group)
{
	enum { N = 3 };
	symcclConfig_t cfg = SYMCCL_CONFIG_INITIALIZER;
	symcclComm_t c[N];
	symcclUniqueId id;

	setenv("SYMCCL_DEVICE", "host", 1);
	cfg.blocking = 0;
	cr_assert_eq(symcclGetUniqueId(&id), symcclSuccess);
	symcclGroupStart();
	for (int i = 0; i < N; i++)
		cr_assert_eq(symcclCommInitRankConfig(&c[i], N, id, i, &cfg), symcclSuccess);
	cr_assert_eq(symcclGroupEnd(), symcclInProgress);
	for (int i = 0; i < N; i++)
		cr_assert_eq(settle(c[i]), symcclSuccess, "%s", error_text());
	symcclGroupStart();
	for (int i = 0; i < N; i++)
		cr_assert_eq(symcclBarrier(c[i], NULL), symcclSuccess);
	cr_assert_eq(symcclGroupEnd(), symcclSuccess, "%s", error_text());
	for (int i = 0; i < N; i++)
		cr_assert_eq(symcclCommDestroy(c[i]), symcclSuccess);
}
