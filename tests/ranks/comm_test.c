/* Communicators: joining in every mixture of processes and threads, and everything that stops it.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "params.h"
#include "ranks.h"
#include "symccl.h"
#include "util.h"

TestSuite(comm, .timeout = 60);

struct how {
	int ranks, procs; /* procs == ranks: processes; 1: threads */
};

static void run(const char *what, int n, int procs, double timeout, rank_fn *fn, void *arg)
{
	char err[1024];
	int e;

	if (procs == n)
		e = ranks_run(n, timeout, fn, arg, err, sizeof(err));
	else if (procs == 1)
		e = ranks_run_threads(n, timeout, fn, arg, err, sizeof(err));
	else
		e = ranks_run_mixed(procs, n, timeout, fn, arg, err, sizeof(err));
	cr_assert_eq(e, 0, "%s, %d ranks in %d processes: %s", what, n, procs, err);
}

static int share_id(int rank, symcclUniqueId *id)
{
	if (rank == 0)
		RANK_OK(symcclGetUniqueId(id));
	RANK_BCAST(id, sizeof(*id));
	return 0;
}

static int join(int rank, int n, symcclComm_t *comm)
{
	symcclUniqueId id;

	RANK_TRY(share_id(rank, &id));
	RANK_OK(symcclCommInitRank(comm, n, id, rank));
	return 0;
}

/* ---- Coming and going --------------------------------------------------------------------------
 */

static int come_and_go(int rank, int n, void *arg)
{
	symcclComm_t comm;
	symcclDeviceType_t type;
	uint64_t total, persist;
	symcclResult_t async = symcclInternalError;
	int v = -7;

	(void)arg;
	for (int i = 0; i < 3; i++) {
		RANK_TRY(join(rank, n, &comm));
		RANK_OK(symcclCommCount(comm, &v));
		RANK_CHECK(v == n, "count %d", v);
		RANK_OK(symcclCommUserRank(comm, &v));
		RANK_CHECK(v == rank, "rank %d", v);
		RANK_OK(symcclCommDeviceType(comm, &type));
		RANK_OK(symcclCommMemStats(comm, symcclStatMemTotal, &total));
		RANK_OK(symcclCommMemStats(comm, symcclStatMemPersist, &persist));
		RANK_CHECK(total == persist && total >= 65536 && total < 64 << 20, "%llu",
			(unsigned long long)total);
		RANK_RESULT(symcclCommMemStats(comm, (symcclCommMemStat_t)4, &total),
			symcclInvalidArgument);
		RANK_RESULT(
			symcclCommMemStats(comm, symcclStatMemTotal, NULL), symcclInvalidArgument);
		RANK_CHECK(type == symcclDeviceHost, "device %d", type);
		RANK_OK(symcclCommGetAsyncError(comm, &async));
		RANK_CHECK(async == symcclSuccess, "async %d", async);
		if (i > 0)
			RANK_OK(symcclBarrier(comm, NULL));
		RANK_OK(symcclCommDestroy(comm));
	}
	return 0;
}

static int no_leak_proc(int rank, int n, void *arg)
{
	struct leak_snapshot before;

	/* Once for what stays: the parameters, the id's thread of rank 0. */
	RANK_TRY(come_and_go(rank, n, arg));
	RANK_BARRIER();
	leak_snapshot(&before);
	RANK_TRY(come_and_go(rank, n, arg));
	RANK_BARRIER();
	RANK_NO_LEAK(&before);
	return 0;
}

Test(comm, come_and_go)
{
	static const struct how h[] = {
		{1, 1}, {2, 2}, {2, 1}, {3, 3}, {5, 5}, {6, 2}, {8, 1}, {16, 4}};

	setenv("SYMCCL_DEVICE", "host", 1);
	for (size_t i = 0; i < ARRAY_LEN(h); i++)
		run("come and go", h[i].ranks, h[i].procs, 20, come_and_go, NULL);
	run("leaks nothing", 4, 4, 20, no_leak_proc, NULL);
}

static int two_ids(int rank, int n, void *arg)
{
	symcclUniqueId id[2];
	symcclComm_t c[2];

	(void)arg;
	if (rank == 0) {
		RANK_OK(symcclGetUniqueId(&id[0]));
		RANK_OK(symcclGetUniqueId(&id[1]));
	}
	RANK_BCAST(id, sizeof(id));
	RANK_OK(symcclCommInitRank(&c[0], n, id[0], rank));
	RANK_OK(symcclCommInitRank(&c[1], n, id[1], n - 1 - rank));
	for (int i = 0; i < 50; i++) {
		RANK_OK(symcclBarrier(c[i % 3 == 0], NULL));
		RANK_OK(symcclBarrier(c[i % 2], NULL));
	}
	RANK_OK(symcclCommDestroy(c[0]));
	RANK_OK(symcclBarrier(c[1], NULL));
	RANK_OK(symcclCommDestroy(c[1]));
	return 0;
}

Test(comm, two_at_once)
{
	run("two communicators", 4, 4, 20, two_ids, NULL);
	run("two communicators", 4, 1, 20, two_ids, NULL);
}

/* One thread brings several ranks. */
Test(comm, ranks_of_one_thread)
{
	enum { N = 7 };
	symcclComm_t c[N];
	symcclUniqueId id;
	char send[N][3], recv[N][3 * N];

	cr_assert_eq(symcclGetUniqueId(&id), symcclSuccess);
	cr_assert_eq(symcclGroupStart(), symcclSuccess);
	for (int i = 0; i < N; i++)
		cr_assert_eq(symcclCommInitRank(&c[i], N, id, i), symcclSuccess);
	cr_assert_eq(symcclGroupEnd(), symcclSuccess, "%s", symcclGetLastError(NULL));
	for (int k = 0; k < 20; k++) {
		for (int i = 0; i < N; i++) {
			memset(send[i], k * 10 + i, sizeof(send[i]));
			memset(recv[i], 0xee, sizeof(recv[i]));
		}
		symcclGroupStart();
		for (int i = 0; i < N; i++)
			cr_assert_eq(symcclAllGather(send[i], recv[i], 3, symcclInt8, c[i], NULL),
				symcclSuccess);
		cr_assert_eq(symcclGroupEnd(), symcclSuccess, "%s", symcclGetLastError(NULL));
		for (int i = 0; i < N; i++)
			for (int j = 0; j < 3 * N; j++)
				cr_assert_eq(recv[i][j], (char)(k * 10 + j / 3));
	}
	for (int i = 0; i < N; i++)
		cr_assert_eq(symcclCommDestroy(c[i]), symcclSuccess);
}

/* ---- Bad input
 * ------------------------------------------------------------------------------------ */

Test(comm, bad_arguments)
{
	symcclComm_t c = NULL;
	symcclUniqueId id, zero = {{0}};
	symcclConfig_t cfg = SYMCCL_CONFIG_INITIALIZER;
	int v;

	cr_assert_eq(symcclGetUniqueId(NULL), symcclInvalidArgument);
	cr_assert_eq(symcclGetUniqueId(&id), symcclSuccess);
	cr_assert_eq(symcclCommInitRank(NULL, 1, id, 0), symcclInvalidArgument);
	cr_assert_eq(symcclCommInitRank(&c, 0, id, 0), symcclInvalidArgument);
	cr_assert_eq(symcclCommInitRank(&c, 2, id, 2), symcclInvalidArgument);
	cr_assert(strstr(symcclGetLastError(NULL), "rank is 2"), "%s", symcclGetLastError(NULL));
	cr_assert_eq(symcclCommInitRank(&c, 2, id, -1), symcclInvalidArgument);
	cr_assert_eq(symcclCommInitRank(&c, 1, zero, 0), symcclInvalidArgument);
	cfg.magic = 1;
	cr_assert_eq(symcclCommInitRankConfig(&c, 1, id, 0, &cfg), symcclInvalidArgument);
	cfg.magic = SYMCCL_CONFIG_MAGIC;
	cfg.blocking = 2;
	cr_assert_eq(symcclCommInitRankConfig(&c, 1, id, 0, &cfg), symcclInvalidArgument);
	cfg.blocking = 1;
	cfg.maxCTAs = 1000;
	cr_assert_eq(symcclCommInitRankConfig(&c, 1, id, 0, &cfg), symcclInvalidArgument);
	cfg.minCTAs = 3;
	cfg.maxCTAs = 2;
	cr_assert_eq(symcclCommInitRankConfig(&c, 1, id, 0, &cfg), symcclInvalidArgument);
	cr_assert(strstr(symcclGetLastError(NULL), "minCTAs is 3, more than"), "%s",
		symcclGetLastError(NULL));
	cfg.minCTAs = SYMCCL_UNDEF_INT;
	cr_assert_null(c);
	cr_assert_eq(symcclCommCount(NULL, &v), symcclInvalidArgument);
	cr_assert_eq(symcclCommDestroy(NULL), symcclSuccess);
	cr_assert_eq(symcclGroupEnd(), symcclInvalidUsage);
	/* The id is still good, also for a caller with an older, shorter struct. */
	cfg.size = offsetof(symcclConfig_t, maxCTAs);
	cr_assert_eq(symcclCommInitRankConfig(&c, 1, id, 0, &cfg), symcclSuccess, "%s",
		symcclGetLastError(NULL));
	cr_assert_eq(symcclCommCount(c, NULL), symcclInvalidArgument);
	cr_assert_eq(symcclAllGather(NULL, NULL, 1, symcclInt8, c, NULL), symcclInvalidArgument);
	cr_assert_eq(
		symcclAllGather(&v, &v, 1, (symcclDataType_t)99, c, NULL), symcclInvalidArgument);
	cr_assert_eq(
		symcclAllGather(&v, &v, SIZE_MAX / 2, symcclInt64, c, NULL), symcclInvalidArgument);
	cr_assert_eq(symcclAllGather(&v, &v, 1, symcclInt8, c, (symcclStream_t)&v),
		symcclInvalidArgument);
	cr_assert_eq(symcclAllGather(&v, &v, 1, symcclInt8, c, NULL), symcclSuccess);
	cr_assert_eq(symcclCommDestroy(c), symcclSuccess);
}

/* Least and most workers: a config beats the environment, and the most beats the least there. */
Test(comm, ctas_wanted)
{
	static const struct {
		int least, most;
		const char *env_least, *env_most;
		int want;
	} cases[] = {
		{SYMCCL_UNDEF_INT, SYMCCL_UNDEF_INT, "", "", 1},
		{SYMCCL_UNDEF_INT, SYMCCL_UNDEF_INT, "3", "", 3},
		{SYMCCL_UNDEF_INT, SYMCCL_UNDEF_INT, "4", "2", 2},
		{SYMCCL_UNDEF_INT, SYMCCL_UNDEF_INT, "2", "4", 4},
		{5, SYMCCL_UNDEF_INT, "", "2", 5},
		{SYMCCL_UNDEF_INT, 2, "5", "", 2},
		{2, 3, "7", "7", 3},
	};

	setenv("SYMCCL_DEVICE", "host", 1);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		symcclConfig_t cfg = SYMCCL_CONFIG_INITIALIZER;
		symcclUniqueId id;
		symcclPlan_t plan;
		symcclComm_t c;
		char buf[8];

		setenv("SYMCCL_MIN_CTAS", cases[i].env_least, 1);
		setenv("SYMCCL_MAX_CTAS", cases[i].env_most, 1);
		params_reload();
		cfg.minCTAs = cases[i].least;
		cfg.maxCTAs = cases[i].most;
		cr_assert_eq(symcclGetUniqueId(&id), symcclSuccess);
		cr_assert_eq(symcclCommInitRankConfig(&c, 1, id, 0, &cfg), symcclSuccess);
		cr_assert_eq(symcclQueryPlan(c, symcclFuncAllGather, buf, buf, 8, symcclInt8,
				     symcclSum, &plan),
			symcclSuccess);
		cr_assert_eq(plan.nCTAs, cases[i].want, "case %zu: %d", i, plan.nCTAs);
		cr_assert_eq(symcclCommDestroy(c), symcclSuccess);
	}
}

static int disagree(int rank, int n, void *arg)
{
	symcclUniqueId id;
	symcclComm_t c;
	int kind = *(int *)arg;

	RANK_TRY(share_id(rank, &id));
	if (kind == 0) { /* nranks */
		RANK_RESULT(symcclCommInitRank(&c, rank == 1 ? n + 1 : n, id, rank),
			symcclInvalidUsage);
		RANK_CHECK(
			strstr(symcclGetLastError(NULL), "rank"), "%s", symcclGetLastError(NULL));
	} else { /* the same rank twice */
		RANK_RESULT(symcclCommInitRank(&c, n, id, rank == n - 1 ? 0 : rank),
			symcclInvalidUsage);
	}
	RANK_BARRIER(); /* the rendezvous lives in rank 0's process */
	return 0;
}

Test(comm, ranks_disagree)
{
	for (int kind = 0; kind < 2; kind++) {
		run("disagree", 3, 3, 15, disagree, &kind);
		run("disagree", 3, 1, 15, disagree, &kind);
	}
}

static int one_missing(int rank, int n, void *arg)
{
	symcclUniqueId id;
	symcclComm_t c;
	struct leak_snapshot before;

	(void)arg;
	RANK_TRY(share_id(rank, &id));
	if (rank == n - 2)
		return 0;
	leak_snapshot(&before);
	RANK_RESULT(symcclCommInitRank(&c, n, id, rank), symcclTimeout);
	RANK_CHECK(strstr(symcclGetLastError(NULL), "rank 2"), "%s", symcclGetLastError(NULL));
	if (rank != 0)
		RANK_NO_LEAK(&before);
	return 0;
}

Test(comm, a_rank_never_comes)
{
	setenv("SYMCCL_SETUP_TIMEOUT", "1", 1);
	run("missing", 4, 4, 15, one_missing, NULL);
}

static int forked(int rank, int n, void *arg)
{
	symcclComm_t c, own;
	symcclUniqueId id;
	int status = 0, got = -1;
	pid_t child;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclBarrier(c, NULL));
	/* What is in an open group the parent will run. */
	RANK_OK(symcclGroupStart());
	RANK_OK(symcclSend(&rank, 1, symcclInt32, 1 - rank, c, NULL));
	RANK_OK(symcclRecv(&got, 1, symcclInt32, 1 - rank, c, NULL));
	child = rank == 0 ? fork() : -1;
	if (child == 0)
		_exit(symcclGroupEnd() != symcclInvalidUsage ||
			strstr(symcclGetLastError(NULL), "fork") == NULL);
	RANK_CHECK(rank != 0 || waitpid(child, &status, 0) == child, "wait");
	RANK_CHECK(rank != 0 || status == 0, "the child: %#x", status);
	RANK_OK(symcclGroupEnd());
	RANK_CHECK(got == 1 - rank, "%d", got);
	child = fork();
	if (child == 0) {
		int bad = symcclBarrier(c, NULL) != symcclInvalidUsage ||
			  strstr(symcclGetLastError(NULL), "fork") == NULL ||
			  symcclCommDestroy(c) != symcclInvalidUsage;

		/* It may make its own. */
		bad |= symcclGetUniqueId(&id) != symcclSuccess ||
		       symcclCommInitRank(&own, 1, id, 0) != symcclSuccess ||
		       symcclBarrier(own, NULL) != symcclSuccess ||
		       symcclCommDestroy(own) != symcclSuccess;
		_exit(bad);
	}
	RANK_CHECK(child > 0, "fork");
	RANK_CHECK(waitpid(child, &status, 0) == child, "wait");
	RANK_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child: %#x", status);
	RANK_OK(symcclBarrier(c, NULL));
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(comm, a_forked_child_is_refused)
{
	run("fork", 2, 2, 20, forked, NULL);
}

/* ---- Abort and death
 * --------------------------------------------------------------------------------- */

static int abort_in_barrier(int rank, int n, void *arg)
{
	symcclResult_t async = symcclSuccess;
	symcclComm_t c;
	uint64_t t;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclBarrier(c, NULL));
	if (rank == 1) {
		usleep(100000);
		RANK_OK(symcclCommAbort(c));
		return 0;
	}
	t = now_ns();
	RANK_RESULT(symcclBarrier(c, NULL), symcclRemoteError);
	RANK_CHECK(now_ns() - t < 1100000000u, "took %g s", (double)(now_ns() - t) / 1e9);
	RANK_CHECK(strstr(symcclGetLastError(c), "rank 1"), "%s", symcclGetLastError(c));
	RANK_OK(symcclCommGetAsyncError(c, &async));
	RANK_CHECK(async == symcclRemoteError, "async %d", async);
	RANK_RESULT(symcclBarrier(c, NULL), symcclRemoteError);
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(comm, abort_wakes_everybody)
{
	run("abort", 3, 3, 15, abort_in_barrier, NULL);
	run("abort", 3, 1, 15, abort_in_barrier, NULL);
}

static int leaves_early(int rank, int n, void *arg)
{
	symcclComm_t c;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclBarrier(c, NULL));
	if (rank == 0) {
		RANK_OK(symcclCommDestroy(c));
		RANK_BARRIER();
		return 0;
	}
	RANK_BARRIER();
	RANK_CHECK(symcclBarrier(c, NULL) != symcclSuccess, "the barrier met a rank that had left");
	RANK_CHECK(strstr(symcclGetLastError(c), "rank 0"), "%s", symcclGetLastError(c));
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(comm, a_rank_that_left_is_named)
{
	run("left", 2, 2, 15, leaves_early, NULL);
	run("left", 2, 1, 15, leaves_early, NULL);
}

/* kind 0: the victim dies outside any call while the others wait in a barrier; 1: in the middle of
 * a stream of all-gathers; 2: while the others register; 3: everybody is idle. */
static int killed(int rank, int n, void *arg)
{
	int kind = *(int *)arg, victim = n / 2;
	symcclResult_t e = symcclSuccess, async = symcclSuccess;
	struct leak_snapshot before;
	symcclComm_t c;
	symcclWindow_t w;
	symcclUniqueId id;
	char send[100] = {0}, recv[800];
	uint64_t t;
	void *p;

	RANK_TRY(share_id(rank, &id));
	leak_snapshot(&before);
	RANK_OK(symcclCommInitRank(&c, n, id, rank));
	RANK_OK(symcclMemAlloc(&p, 1 << 20));
	RANK_OK(symcclBarrier(c, NULL));
	RANK_BARRIER();
	if (rank == victim) {
		ranks_expect_signal(rank, SIGKILL);
		if (kind == 1)
			for (int i = 0; i < 200; i++)
				symcclAllGather(send, recv, sizeof(send), symcclInt8, c, NULL);
		else
			usleep(50000);
		ranks_die(SIGKILL);
	}
	ranks_note("kind %d", kind);
	t = now_ns();
	while (e == symcclSuccess && now_ns() - t < 3000000000u) {
		if (kind == 0)
			e = symcclBarrier(c, NULL);
		else if (kind == 1)
			e = symcclAllGather(send, recv, sizeof(send), symcclInt8, c, NULL);
		else if (kind == 2)
			e = symcclCommWindowRegister(c, p, 1 << 20, &w, SYMCCL_WIN_COLL_SYMMETRIC);
		else
			e = symcclCommGetAsyncError(c, &async) ? symcclInternalError : async;
		if (kind == 3)
			usleep(1000);
	}
	RANK_CHECK(e == symcclRemoteError, "kind %d: %s", kind, error_name(e));
	RANK_CHECK(now_ns() - t < 1300000000u, "took %g s", (double)(now_ns() - t) / 1e9);
	RANK_CHECK(strstr(symcclGetLastError(c), "rank 2") && strstr(symcclGetLastError(c), "died"),
		"%s", symcclGetLastError(c));
	RANK_OK(symcclCommDestroy(c));
	RANK_OK(symcclMemFree(p));
	if (rank != 0) /* where the id's thread lives */
		RANK_NO_LEAK(&before);
	return 0;
}

Test(comm, a_death_reaches_everybody)
{
	for (int kind = 0; kind < 4; kind++)
		run("death", 5, 5, 20, killed, &kind);
}

static int killed_in_init(int rank, int n, void *arg)
{
	symcclUniqueId id;
	symcclComm_t c;

	(void)arg;
	RANK_TRY(share_id(rank, &id));
	if (rank == n - 1) {
		/* Joins as half of a process that needs two: the rendezvous waits, then it dies. */
		usleep(100000);
		if (fork() == 0)
			_exit(0);
		ranks_expect_signal(rank, SIGALRM);
		alarm(1);
		symcclCommInitRank(&c, n + 1, id, rank);
		pause();
	}
	RANK_CHECK(symcclCommInitRank(&c, n + 1, id, rank) == symcclRemoteError, "%s",
		symcclGetLastError(NULL));
	RANK_CHECK(strstr(symcclGetLastError(NULL), "rank 2"), "%s", symcclGetLastError(NULL));
	return 0;
}

Test(comm, a_death_during_init_is_named)
{
	run("death in init", 3, 3, 20, killed_in_init, NULL);
}

/* ---- Many ranks --------------------------------------------------------------------------------
 */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MANY_THREADS = 96, MANY_PROCS = 16 };
#else
enum { MANY_THREADS = 512, MANY_PROCS = 64 };
#endif

static int many(int rank, int n, void *arg)
{
	symcclComm_t c;
	symcclWindow_t w;
	void *send, *peer;
	uint16_t *recv = calloc((size_t)n, sizeof(*recv));

	(void)arg;
	RANK_CHECK(recv != NULL, "no memory");
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&send, 4096));
	RANK_OK(symcclCommWindowRegister(c, send, 4096, &w, SYMCCL_WIN_COLL_SYMMETRIC));
	*(uint16_t *)send = (uint16_t)(rank * 3);
	RANK_OK(symcclAllGather(send, recv, sizeof(*recv), symcclUint8, c, NULL));
	for (int r = 0; r < n; r++)
		RANK_CHECK(recv[r] == (uint16_t)(r * 3), "element %d is %d", r, recv[r]);
	for (int r = 0; r < n; r += 37) {
		RANK_OK(symcclWinGetPeerPtr(c, w, r, 0, &peer));
		RANK_CHECK(*(uint16_t *)peer == (uint16_t)(r * 3), "rank %d's window", r);
	}
	RANK_OK(symcclBarrier(c, NULL));
	RANK_OK(symcclCommDestroy(c));
	RANK_OK(symcclMemFree(send));
	free(recv);
	return 0;
}

Test(comm, many_ranks)
{
	run("many", MANY_THREADS, 1, 50, many, NULL);
	run("many", MANY_PROCS, MANY_PROCS, 50, many, NULL);
	run("many", MANY_PROCS, 4, 50, many, NULL);
}

/* ---- Whom a call concerns ----------------------------------------------------------------------
 */

/* The first call of a communicator, a message between two, does not wait for the third, which calls
 * nothing at all. */
static int two_of_three(int rank, int n, void *arg)
{
	uint64_t x = 7, y = 0;
	symcclComm_t c;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	if (rank == 0)
		RANK_OK(symcclSend(&x, sizeof(x), symcclUint8, 1, c, NULL));
	else if (rank == 1)
		RANK_OK(symcclRecv(&y, sizeof(y), symcclUint8, 0, c, NULL));
	RANK_CHECK(rank != 1 || y == 7, "received %llu", (unsigned long long)y);
	RANK_BARRIER();
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(comm, first_call_of_two)
{
	run("two of three", 3, 3, 20, two_of_three, NULL);
	run("two of three", 3, 1, 20, two_of_three, NULL);
}
