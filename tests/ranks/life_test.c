/* A communicator's life: split, shrink, finalize, revoke, and ranks that die on the way. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "bootstrap/root.h"
#include "life_helper.h"
#include "mem.h"
#include "params.h"
#include "ranks.h"
#include "symccl.h"
#include "util.h"

TestSuite(life, .timeout = 120);

static void run(const char *what, int n, int procs, double timeout, rank_fn *fn, void *arg)
{
	char err[1024];
	int e;

	test_seed(); /* before the ranks are forked */
	e = procs == 1 ? ranks_run_threads(n, timeout, fn, arg, err, sizeof(err))
		       : ranks_run_mixed(procs, n, timeout, fn, arg, err, sizeof(err));

	cr_assert_eq(e, 0, "%s, %d ranks in %d processes, seed %llu: %s", what, n, procs,
		(unsigned long long)test_seed(), err);
}

/* ---- Split ----------------------------------------------------------------------------------- */

/* Colors and keys from the seed, the same on all ranks; what must come of it. */
static int split_once(symcclComm_t comm, int rank, int n, uint64_t seed)
{
	int color[64] = {0}, key[64] = {0}, want = 0, count = 0;
	symcclComm_t sub = (symcclComm_t)&count;

	for (int r = 0; r < n; r++) {
		color[r] = (int)(mix64(seed, (uint64_t)r) % 4) - 1;
		key[r] = (int)(mix64(seed, 100 + (uint64_t)r) % 5) - 2;
	}
	for (int r = 0; r < n; r++) {
		count += color[r] == color[rank];
		want += color[r] == color[rank] &&
			(key[r] < key[rank] || (key[r] == key[rank] && r < rank));
	}
	RANK_OK(symcclCommSplit(comm, color[rank], key[rank], &sub, NULL));
	if (color[rank] == SYMCCL_SPLIT_NOCOLOR) {
		RANK_CHECK(sub == NULL, "a communicator without a color");
		return 0;
	}
	RANK_TRY(life_works(sub, want, count, seed));
	/* Parent and child side by side. */
	RANK_OK(symcclBarrier(sub, NULL));
	RANK_OK(symcclCommDestroy(sub));
	return 0;
}

static int split(int rank, int n, void *arg)
{
	int rounds = *(int *)arg;
	symcclComm_t comm;

	RANK_TRY(life_join(rank, n, &comm));
	for (int i = 0; i < rounds; i++) {
		RANK_TRY(split_once(comm, rank, n, test_seed() + (uint64_t)i * 1000));
		if (i % 2)
			RANK_TRY(life_works(comm, rank, n, test_seed()));
	}
	RANK_OK(symcclCommDestroy(comm));
	return 0;
}

static int no_leak(int rank, int n, void *arg)
{
	struct leak_snapshot before;

	RANK_TRY(split(rank, n, arg));
	RANK_BARRIER();
	leak_snapshot(&before);
	RANK_TRY(split(rank, n, arg));
	RANK_BARRIER();
	RANK_NO_LEAK(&before);
	RANK_CHECK(root_count() == 0, "%d rendezvous threads left", root_count());
	return 0;
}

Test(life, split)
{
	int rounds = 4;

	run("split", 1, 1, 20, split, &rounds);
	run("split", 4, 4, 30, no_leak, &rounds);
	run("split", 6, 2, 30, split, &rounds);
	run("split", 8, 1, 30, split, &rounds);
}

/* A split of a split, its parent destroyed meanwhile. */
static int split_deep(int rank, int n, void *arg)
{
	symcclComm_t comm, half, pair;

	(void)arg;
	RANK_TRY(life_join(rank, n, &comm));
	RANK_OK(symcclCommSplit(comm, rank / 4, -rank, &half, NULL));
	RANK_OK(symcclCommDestroy(comm));
	RANK_OK(symcclCommSplit(half, rank % 2, 0, &pair, NULL));
	RANK_OK(symcclCommDestroy(half));
	/* In half, ranks stand in descending order. */
	RANK_TRY(life_works(pair, rank % 4 < 2, 2, test_seed() + (uint64_t)rank / 4));
	RANK_OK(symcclCommDestroy(pair));
	return 0;
}

Test(life, split_of_split)
{
	run("split of a split", 8, 4, 30, split_deep, NULL);
}

/* What one rank does wrong, all are told. */
static int split_bad(int rank, int n, void *arg)
{
	symcclConfig_t bad = SYMCCL_CONFIG_INITIALIZER;
	symcclComm_t comm, sub = NULL;

	(void)arg;
	RANK_TRY(life_join(rank, n, &comm));
	RANK_RESULT(
		symcclCommSplit(comm, rank == 1 ? -5 : 0, 0, &sub, NULL), symcclInvalidArgument);
	RANK_CHECK(strstr(error_text(), "rank 1") && strstr(error_text(), "color is -5"), "%s",
		error_text());
	bad.minCTAs = 1000;
	RANK_RESULT(
		symcclCommSplit(comm, 0, 0, &sub, rank == 2 ? &bad : NULL), symcclInvalidArgument);
	RANK_CHECK(strstr(error_text(), "rank 2") && strstr(error_text(), "minCTAs"), "%s",
		error_text());
	RANK_RESULT(
		symcclCommSplit(comm, 0, 0, rank == 0 ? NULL : &sub, NULL), symcclInvalidArgument);
	RANK_CHECK(sub == NULL, "written");
	/* Two calls that are not the same. */
	RANK_RESULT(rank == 1 ? symcclCommFinalize(comm) : symcclCommSplit(comm, 0, 0, &sub, NULL),
		symcclInvalidUsage);
	RANK_CHECK(strstr(error_text(), "symcclCommFinalize"), "%s", error_text());
	RANK_TRY(life_works(comm, rank, n, test_seed()));
	RANK_OK(symcclCommSplit(comm, 0, 0, &sub, NULL));
	RANK_OK(symcclCommDestroy(sub));
	RANK_OK(symcclCommDestroy(comm));
	return 0;
}

Test(life, split_misuse)
{
	run("bad arguments", 3, 3, 20, split_bad, NULL);
	run("bad arguments", 3, 1, 20, split_bad, NULL);
}

static int split_late(int rank, int n, void *arg)
{
	symcclComm_t comm, sub = NULL;

	(void)arg;
	setenv("SYMCCL_SETUP_TIMEOUT", "1", 1);
	params_reload();
	RANK_TRY(life_join(rank, n, &comm));
	if (rank != 2) {
		RANK_RESULT(symcclCommSplit(comm, 0, 0, &sub, NULL), symcclTimeout);
		RANK_CHECK(strstr(error_text(), "rank 2 did not come to symcclCommSplit"), "%s",
			error_text());
	}
	RANK_BARRIER();
	RANK_OK(symcclCommDestroy(comm));
	return 0;
}

Test(life, split_without_a_rank)
{
	run("a rank does not come", 3, 3, 20, split_late, NULL);
}

/* One thread, several ranks, several communicators, several splits of each. */
Test(life, split_in_groups)
{
	enum { N = 4 };
	symcclComm_t a[N], b[N], half[N], all[N], of_b[N];
	uint64_t in[N], out[N];
	int one = 1;

	setenv("SYMCCL_DEVICE", "host", 1);
	cr_assert_eq(symcclCommInitAll(a, N, &one), symcclInvalidArgument);
	cr_assert_eq(symcclCommInitAll(a, 0, NULL), symcclInvalidArgument);
	cr_assert_eq(symcclCommInitAll(a, N, NULL), symcclSuccess, "%s", error_text());
	cr_assert_eq(symcclCommInitAll(b, N, NULL), symcclSuccess, "%s", error_text());
	symcclGroupStart();
	for (int i = 0; i < N; i++) {
		cr_assert_eq(symcclCommSplit(a[i], i / 2, 0, &half[i], NULL), symcclSuccess);
		cr_assert_eq(
			symcclCommSplit(b[i], i == 3 ? -1 : 7, -i, &of_b[i], NULL), symcclSuccess);
		cr_assert_eq(symcclCommSplit(a[i], 0, 0, &all[i], NULL), symcclSuccess);
	}
	cr_assert_eq(symcclGroupEnd(), symcclSuccess, "%s", error_text());
	cr_assert_null(of_b[3]);
	symcclGroupStart();
	for (int i = 0; i < N; i++) {
		in[i] = 1ull << i;
		symcclAllReduce(&in[i], &out[i], 1, symcclUint64, symcclSum, half[i], NULL);
		symcclBarrier(all[i], NULL);
		if (i < 3)
			symcclBarrier(of_b[i], NULL);
	}
	cr_assert_eq(symcclGroupEnd(), symcclSuccess, "%s", error_text());
	for (int i = 0; i < N; i++) {
		cr_assert_eq(out[i], i < 2 ? 3 : 12);
		symcclCommDestroy(half[i]);
		symcclCommDestroy(all[i]);
		symcclCommDestroy(of_b[i]);
	}
	symcclGroupStart();
	for (int i = 0; i < N; i++)
		cr_assert_eq(symcclCommFinalize(a[i]), symcclSuccess);
	cr_assert_eq(symcclGroupEnd(), symcclSuccess, "%s", error_text());
	for (int i = 0; i < N; i++) {
		cr_assert_eq(symcclBarrier(a[i], NULL), symcclInvalidUsage);
		cr_assert_eq(symcclCommSplit(a[i], 0, 0, &all[i], NULL), symcclInvalidUsage);
		symcclCommDestroy(a[i]);
		symcclCommDestroy(b[i]);
	}
}

/* ---- Several ids -------------------------------------------------------------------------------
 */

static int scalable(int rank, int n, void *arg)
{
	symcclUniqueId *shared = ranks_shared(), id[3];
	symcclComm_t comm;

	(void)arg;
	if (rank < 3)
		RANK_OK(symcclGetUniqueId(&shared[rank]));
	RANK_BARRIER();
	memcpy(id, shared, sizeof(id));
	RANK_RESULT(symcclCommInitRankScalable(&comm, n, rank, 0, id, NULL), symcclInvalidArgument);
	RANK_RESULT(
		symcclCommInitRankScalable(&comm, n, rank, n + 1, id, NULL), symcclInvalidArgument);
	RANK_RESULT(
		symcclCommInitRankScalable(&comm, n, rank, 1, NULL, NULL), symcclInvalidArgument);
	RANK_OK(symcclCommInitRankScalable(&comm, n, rank, 3, id, NULL));
	RANK_TRY(life_works(comm, rank, n, test_seed()));
	RANK_OK(symcclCommDestroy(comm));
	RANK_BARRIER();
	for (int i = 0; i < 1000 && root_count() > 0; i++)
		usleep(1000);
	RANK_CHECK(root_count() == 0, "%d rendezvous threads left", root_count());
	return 0;
}

Test(life, several_ids)
{
	run("several ids", 5, 5, 20, scalable, NULL);
}

/* ---- Finalize, revoke ------------------------------------------------------------------------ */

static int finalize(int rank, int n, void *arg)
{
	symcclComm_t comm, sub;
	symcclResult_t async = symcclInternalError;
	int v = 0;

	(void)arg;
	RANK_TRY(life_join(rank, n, &comm));
	if (rank % 2)
		RANK_OK(symcclBarrier(comm, NULL));
	else
		RANK_OK(symcclBarrier(comm, NULL));
	RANK_OK(symcclCommFinalize(comm));
	RANK_OK(symcclCommGetAsyncError(comm, &async));
	RANK_CHECK(async == symcclSuccess, "%d", async);
	RANK_OK(symcclCommCount(comm, &v));
	RANK_RESULT(symcclBarrier(comm, NULL), symcclInvalidUsage);
	RANK_CHECK(strstr(error_text(), "symcclCommFinalize"), "%s", error_text());
	RANK_RESULT(symcclCommFinalize(comm), symcclInvalidUsage);
	RANK_RESULT(symcclCommSplit(comm, 0, 0, &sub, NULL), symcclInvalidUsage);
	RANK_OK(symcclCommDestroy(comm));
	return 0;
}

Test(life, finalize)
{
	run("finalize", 4, 4, 20, finalize, NULL);
	run("finalize", 3, 1, 20, finalize, NULL);
}

/* Rank 1 stops the others in their collective; all go on with a new communicator. */
static int revoking(int rank, int n, void *arg)
{
	symcclComm_t comm, sub, two;
	symcclResult_t async = symcclSuccess;
	int list[1] = {n - 1};

	(void)arg;
	RANK_TRY(life_join(rank, n, &comm));
	RANK_OK(symcclBarrier(comm, NULL));
	RANK_RESULT(symcclCommRevoke(comm, 3), symcclInvalidArgument);
	if (rank == 1) {
		usleep(20000);
		RANK_OK(symcclCommRevoke(comm, SYMCCL_REVOKE_DEFAULT));
	} else {
		RANK_RESULT(symcclBarrier(comm, NULL), symcclInvalidUsage);
		RANK_CHECK(
			strstr(error_text(), "rank 1 called symcclCommRevoke"), "%s", error_text());
	}
	RANK_RESULT(symcclBarrier(comm, NULL), symcclInvalidUsage);
	RANK_OK(symcclCommGetAsyncError(comm, &async));
	RANK_CHECK(async == symcclInvalidUsage, "%d", async);
	RANK_RESULT(symcclCommFinalize(comm), symcclInvalidUsage);
	RANK_OK(symcclCommSplit(comm, 0, -rank, &sub, NULL));
	RANK_TRY(life_works(sub, n - 1 - rank, n, test_seed()));
	if (rank != n - 1) {
		RANK_OK(symcclCommShrink(comm, list, 1, &two, NULL, SYMCCL_SHRINK_DEFAULT));
		RANK_TRY(life_works(two, rank, n - 1, test_seed()));
		RANK_OK(symcclCommDestroy(two));
	}
	RANK_OK(symcclCommDestroy(comm));
	RANK_OK(symcclCommDestroy(sub));
	return 0;
}

Test(life, revoke)
{
	setenv("SYMCCL_DEVICE", "host", 1);
	run("revoke", 3, 3, 20, revoking, NULL);
	run("revoke", 4, 1, 20, revoking, NULL);
	run("revoke", 6, 3, 20, revoking, NULL);
}

/* ---- Shrink ------------------------------------------------------------------------------------
 */

/* The others go on beside the whole, which stays. */
static int shrink_healthy(int rank, int n, void *arg)
{
	symcclComm_t comm, sub, again;
	int list[4] = {n - 1, 1, n - 1, 1};

	(void)arg;
	RANK_TRY(life_join(rank, n, &comm));
	for (int i = 0; i < 3; i++) {
		if (rank != 1 && rank != n - 1) {
			int mine = rank - (rank > 1);

			RANK_OK(symcclCommShrink(comm, list, i ? 4 : 2, &sub, NULL, 0));
			RANK_TRY(life_works(sub, mine, n - 2, test_seed() + (uint64_t)i));
			if (mine != 0) {
				RANK_OK(symcclCommShrink(sub, &(int){0}, 1, &again, NULL, 0));
				RANK_TRY(life_works(again, mine - 1, n - 3, test_seed()));
				RANK_OK(symcclCommDestroy(again));
			}
			RANK_OK(symcclCommDestroy(sub));
		}
		RANK_TRY(life_works(comm, rank, n, test_seed() + (uint64_t)i));
		if (i == 1) {
			RANK_OK(symcclCommSplit(comm, 0, 0, &sub, NULL));
			RANK_OK(symcclCommDestroy(sub));
		}
	}
	RANK_RESULT(symcclCommShrink(comm, &rank, 1, &sub, NULL, 0), symcclInvalidUsage);
	RANK_RESULT(symcclCommShrink(comm, &n, 1, &sub, NULL, 0), symcclInvalidArgument);
	RANK_RESULT(symcclCommShrink(comm, NULL, 1, &sub, NULL, 0), symcclInvalidArgument);
	RANK_RESULT(symcclCommShrink(comm, list, -1, &sub, NULL, 0), symcclInvalidArgument);
	RANK_RESULT(symcclCommShrink(comm, NULL, 0, NULL, NULL, 0), symcclInvalidArgument);
	RANK_RESULT(symcclCommShrink(comm, NULL, 0, &sub, NULL, 9), symcclInvalidArgument);
	RANK_OK(symcclCommDestroy(comm));
	return 0;
}

Test(life, shrink_healthy)
{
	run("shrink", 5, 5, 30, shrink_healthy, NULL);
	run("shrink", 6, 1, 30, shrink_healthy, NULL);
	run("shrink", 8, 4, 30, shrink_healthy, NULL);
}

/* A rank aborts, the others stop what they do and go on without it. */
static int shrink_after_abort(int rank, int n, void *arg)
{
	symcclComm_t comm, sub;

	(void)arg;
	RANK_TRY(life_join(rank, n, &comm));
	RANK_OK(symcclBarrier(comm, NULL));
	if (rank == 0) {
		usleep(10000);
		RANK_OK(symcclCommAbort(comm));
		return 0;
	}
	RANK_RESULT(symcclBarrier(comm, NULL), symcclRemoteError);
	RANK_RESULT(symcclCommShrink(comm, &(int){0}, 1, &sub, NULL, SYMCCL_SHRINK_DEFAULT),
		symcclRemoteError);
	RANK_OK(symcclCommShrink(comm, &(int){0}, 1, &sub, NULL, SYMCCL_SHRINK_ABORT));
	RANK_TRY(life_works(sub, rank - 1, n - 1, test_seed()));
	RANK_OK(symcclCommDestroy(comm));
	RANK_OK(symcclCommDestroy(sub));
	return 0;
}

Test(life, shrink_after_abort)
{
	run("shrink after an abort", 4, 4, 20, shrink_after_abort, NULL);
	run("shrink after an abort", 4, 1, 20, shrink_after_abort, NULL);
	run("shrink after an abort", 4, 2, 20, shrink_after_abort, NULL);
}

/* A rank that is only stopped is named with its process id, until it is dead. */
static int shrink_stopped(int rank, int n, void *arg)
{
	symcclComm_t comm, sub;
	char pid[32];

	(void)arg;
	RANK_TRY(life_join(rank, n, &comm));
	RANK_OK(symcclBarrier(comm, NULL));
	if (rank == 1) {
		ranks_expect_signal(rank, SIGKILL);
		kill(getpid(), SIGSTOP);
		pause();
		return 1;
	}
	usleep(20000);
	RANK_RESULT(symcclCommShrink(comm, &(int){1}, 1, &sub, NULL, SYMCCL_SHRINK_ABORT),
		symcclInvalidUsage);
	snprintf(pid, sizeof(pid), "pid %d", (int)ranks_pid(1));
	RANK_CHECK(strstr(error_text(), pid), "%s", error_text());
	if (rank == 0)
		kill(ranks_pid(1), SIGKILL);
	RANK_OK(symcclCommShrink(comm, &(int){1}, 1, &sub, NULL, SYMCCL_SHRINK_ABORT));
	RANK_TRY(life_works(sub, rank > 1 ? rank - 1 : 0, n - 1, test_seed()));
	RANK_OK(symcclCommDestroy(comm));
	RANK_OK(symcclCommDestroy(sub));
	return 0;
}

Test(life, shrink_with_a_stopped_rank)
{
	run("a stopped rank", 3, 3, 20, shrink_stopped, NULL);
}

/* Lists that differ are found out; a rank that is dead but not listed is named. */
static int shrink_lists(int rank, int n, void *arg)
{
	symcclComm_t comm, sub;
	int list[2] = {3, 2};

	(void)arg;
	setenv("SYMCCL_SETUP_TIMEOUT", "2", 1);
	params_reload();
	RANK_TRY(life_join(rank, n, &comm));
	RANK_OK(symcclBarrier(comm, NULL));
	RANK_BARRIER();
	if (rank >= 2)
		ranks_die(SIGKILL);
	RANK_RESULT(symcclCommShrink(comm, list, 1, &sub, NULL, SYMCCL_SHRINK_ABORT),
		symcclRemoteError);
	RANK_CHECK(strstr(error_text(), "rank 2 (pid"), "%s", error_text());
	/* Who has found out more goes on as soon as the others have, too. */
	if (rank == 0)
		RANK_RESULT(symcclCommShrink(comm, list, 1, &sub, NULL, SYMCCL_SHRINK_ABORT),
			symcclRemoteError);
	RANK_OK(symcclCommShrink(comm, list, 2, &sub, NULL, SYMCCL_SHRINK_ABORT));
	RANK_TRY(life_works(sub, rank, 2, test_seed()));
	RANK_OK(symcclCommDestroy(comm));
	RANK_OK(symcclCommDestroy(sub));
	return 0;
}

Test(life, shrink_lists)
{
	run("lists", 4, 4, 20, shrink_lists, NULL);
}

/* ---- A group that is only estimated ------------------------------------------------------------
 */

Test(life, simulate)
{
	symcclSimInfo_t info = SYMCCL_SIM_INFO_INITIALIZER, more = info;
	symcclComm_t c[2];
	uint64_t in[2] = {1, 2}, out[2] = {7, 7};

	setenv("SYMCCL_DEVICE", "host", 1);
	cr_assert_eq(symcclCommInitAll(c, 2, NULL), symcclSuccess);
	cr_assert_eq(symcclGroupSimulateEnd(&info), symcclInvalidUsage);
	for (int calls = 1; calls <= 2; calls++) {
		symcclGroupStart();
		for (int i = 0; i < 2 * calls; i++)
			symcclAllReduce(&in[i % 2], &out[i % 2], 1, symcclUint64, symcclSum,
				c[i % 2], NULL);
		cr_assert_eq(symcclGroupSimulateEnd(NULL), symcclInvalidArgument);
		cr_assert_eq(symcclGroupSimulateEnd(calls == 1 ? &info : &more), symcclSuccess);
	}
	cr_assert(info.estimatedTime > 0, "%g", info.estimatedTime);
	cr_assert(more.estimatedTime > 1.9 * info.estimatedTime, "%g, %g", info.estimatedTime,
		more.estimatedTime);
	cr_assert(out[0] == 7 && out[1] == 7, "it was run");
	cr_assert_eq(symcclCommDestroy(c[0]), symcclSuccess);
	cr_assert_eq(symcclCommDestroy(c[1]), symcclSuccess);
}
