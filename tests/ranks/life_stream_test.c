/* Streams on the host: order, events, several communicators, failures that stay until asked for. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "life_helper.h"
#include "mem.h"
#include "ranks.h"
#include "symccl.h"
#include "util.h"

TestSuite(life_stream, .timeout = 120);

#define STREAMS 3

static void run(const char *what, int n, int procs, rank_fn *fn)
{
	char err[1024];
	int e;

	setenv("SYMCCL_DEVICE", "host", 1);
	test_seed(); /* before the ranks are forked */
	e = procs == 1 ? ranks_run_threads(n, 40, fn, NULL, err, sizeof(err))
		       : ranks_run_mixed(procs, n, 40, fn, NULL, err, sizeof(err));
	cr_assert_eq(e, 0, "%s, %d ranks in %d processes, seed %llu: %s", what, n, procs,
		(unsigned long long)test_seed(), err);
}

/* ---- Order ----------------------------------------------------------------------------------- */

/* Each sum takes the one before as its input, on whatever stream; now and then one without. */
static int chain(int rank, int n, void *arg)
{
	enum { STEPS = 60 };
	symcclStream_t s[STREAMS];
	symcclComm_t comm;
	uint64_t x[STEPS + 1], want;

	(void)arg;
	RANK_TRY(life_join(rank, n, &comm));
	for (int i = 0; i < STREAMS; i++)
		RANK_OK(symcclHostStreamCreate(&s[i]));
	for (int round = 0; round < 5; round++) {
		uint64_t seed = mix64(test_seed(), (uint64_t)round);

		poison(x, sizeof(x));
		x[0] = seed + (uint64_t)rank;
		for (uint64_t i = 0; i < STEPS; i++) {
			uint64_t k = mix64(seed, i) % (STREAMS * 8);

			/* Without a stream the call comes after what is in streams. */
			RANK_OK(symcclAllReduce(&x[i], &x[i + 1], 1, symcclUint64, symcclSum, comm,
				k == 0 ? NULL : s[k % STREAMS]));
			if (k == 0)
				RANK_CHECK(memcmp(&x[i + 1], "\xa5\xa5\xa5\xa5", 4) != 0, "late");
			if (k == 1)
				usleep(100);
		}
		for (int i = 0; i < STREAMS; i++)
			RANK_OK(symcclHostStreamSynchronize(s[i]));
		want = 0;
		for (int r = 0; r < n; r++)
			want += seed + (uint64_t)r;
		for (int i = 1; i <= STEPS; i++) {
			RANK_CHECK(x[i] == want, "round %d, step %d", round, i);
			want *= (uint64_t)n;
		}
	}
	/* What is still in there is done before the communicator goes. */
	for (int i = 0; i < STEPS; i++)
		RANK_OK(symcclBarrier(comm, s[i % STREAMS]));
	RANK_OK(symcclCommDestroy(comm));
	for (int i = 0; i < STREAMS; i++)
		RANK_OK(symcclHostStreamDestroy(s[i]));
	return 0;
}

static int chain_no_leak(int rank, int n, void *arg)
{
	struct leak_snapshot before;

	RANK_TRY(chain(rank, n, arg));
	RANK_BARRIER();
	leak_snapshot(&before);
	RANK_TRY(chain(rank, n, arg));
	RANK_NO_LEAK(&before);
	return 0;
}

Test(life_stream, order_over_streams)
{
	run("a chain", 3, 3, chain_no_leak);
	run("a chain", 4, 1, chain);
}

/* ---- Events ------------------------------------------------------------------------------------
 */

/* Two communicators, a stream each, and one both: the event carries the order from one to the
 * other. */
static int events(int rank, int n, void *arg)
{
	symcclStream_t s[2], both;
	symcclHostEvent_t ab, ba;
	symcclComm_t a, b;
	uint64_t x = 0, y = 0, want = 0;

	(void)arg;
	RANK_TRY(life_join(rank, n, &a));
	RANK_OK(symcclCommSplit(a, 0, -rank, &b, NULL));
	RANK_OK(symcclHostStreamCreate(&s[0]));
	RANK_OK(symcclHostStreamCreate(&s[1]));
	RANK_OK(symcclHostStreamCreate(&both));
	RANK_OK(symcclHostEventCreate(&ab));
	RANK_OK(symcclHostEventCreate(&ba));
	RANK_OK(symcclHostEventQuery(ab));
	RANK_OK(symcclHostEventSynchronize(ab));
	for (uint64_t i = 0; i < 200; i++) {
		if (i == 0)
			x = test_seed() + (uint64_t)rank;
		RANK_OK(symcclHostStreamWaitEvent(s[0], ba));
		RANK_OK(symcclAllReduce(&x, &y, 1, symcclUint64, symcclSum, a, s[0]));
		RANK_OK(symcclHostEventRecord(ab, s[0]));
		RANK_OK(symcclHostStreamWaitEvent(s[1], ab));
		RANK_OK(symcclAllReduce(&y, &x, 1, symcclUint64, symcclMax, b, s[1]));
		RANK_OK(symcclHostEventRecord(ba, s[1]));
		if (mix64(test_seed(), i) % 16 == 0)
			RANK_OK(symcclHostEventSynchronize(ba));
	}
	RANK_OK(symcclHostEventSynchronize(ba));
	RANK_OK(symcclHostEventQuery(ba));
	for (int r = 0; r < n; r++)
		want += test_seed() + (uint64_t)r;
	for (int i = 1; i < 200; i++)
		want *= (uint64_t)n;
	RANK_CHECK(x == want && y == want, "%llx, %llx instead of %llx", (unsigned long long)x,
		(unsigned long long)y, (unsigned long long)want);
	/* Both in one stream need no event. */
	for (int i = 0; i < 50; i++) {
		RANK_OK(symcclAllReduce(&x, &y, 1, symcclUint64, symcclSum, a, both));
		RANK_OK(symcclAllReduce(&y, &x, 1, symcclUint64, symcclMin, b, both));
		want *= (uint64_t)n;
	}
	RANK_OK(symcclHostEventRecord(ab, both));
	RANK_OK(symcclHostEventDestroy(ab));
	RANK_OK(symcclHostEventDestroy(ba));
	RANK_OK(symcclHostStreamDestroy(both));
	RANK_CHECK(x == want && y == want, "in one stream");
	RANK_OK(symcclHostStreamDestroy(s[0]));
	RANK_OK(symcclHostStreamDestroy(s[1]));
	RANK_OK(symcclCommDestroy(a));
	RANK_OK(symcclCommDestroy(b));
	return 0;
}

Test(life_stream, events)
{
	run("events", 2, 2, events);
	run("events", 4, 2, events);
	run("events", 3, 1, events);
}

/* ---- Waiting, failing -------------------------------------------------------------------------
 */

static int query(int rank, int n, void *arg)
{
	symcclStream_t s;
	symcclComm_t comm;
	symcclResult_t e;

	(void)arg;
	RANK_TRY(life_join(rank, n, &comm));
	RANK_OK(symcclBarrier(comm, NULL));
	RANK_OK(symcclHostStreamCreate(&s));
	RANK_OK(symcclHostStreamQuery(s));
	if (rank != 0) {
		RANK_OK(symcclBarrier(comm, s));
		RANK_RESULT(symcclHostStreamQuery(s), symcclInProgress);
	}
	RANK_BARRIER();
	if (rank == 0)
		RANK_OK(symcclBarrier(comm, s));
	while ((e = symcclHostStreamQuery(s)) == symcclInProgress)
		usleep(100);
	RANK_OK(e);
	RANK_OK(symcclHostStreamDestroy(s));
	RANK_OK(symcclCommDestroy(comm));
	return 0;
}

Test(life_stream, query)
{
	run("query", 3, 3, query);
	run("query", 3, 1, query);
}

/* A call of `a` stands behind one of `b` that is far from done: aborting a does not wait for b. */
static int abort_behind(int rank, int n, void *arg)
{
	symcclStream_t s;
	symcclComm_t a, b;

	(void)arg;
	RANK_TRY(life_join(rank, n, &a));
	RANK_OK(symcclCommSplit(a, 0, 0, &b, NULL));
	RANK_OK(symcclBarrier(a, NULL));
	RANK_OK(symcclBarrier(b, NULL));
	RANK_OK(symcclHostStreamCreate(&s));
	if (rank == 0) {
		RANK_OK(symcclBarrier(b, s));
		RANK_OK(symcclBarrier(a, s));
		RANK_OK(symcclBarrier(b, s));
		RANK_OK(symcclCommAbort(a));
		RANK_RESULT(symcclHostStreamQuery(s), symcclInProgress);
	}
	RANK_BARRIER();
	if (rank != 0) {
		RANK_OK(symcclBarrier(b, s));
		RANK_RESULT(symcclBarrier(a, NULL), symcclRemoteError);
		RANK_OK(symcclBarrier(b, s));
		RANK_OK(symcclHostStreamSynchronize(s));
	} else {
		RANK_RESULT(symcclHostStreamSynchronize(s), symcclRemoteError);
		RANK_CHECK(strstr(error_text(), "rank 0, a call on stream") &&
				   strstr(error_text(), "symcclCommAbort"),
			"%s", error_text());
	}
	/* Said once; and the stream works. */
	RANK_OK(symcclBarrier(b, s));
	RANK_OK(symcclHostStreamSynchronize(s));
	RANK_OK(symcclHostStreamDestroy(s));
	if (rank != 0)
		RANK_OK(symcclCommDestroy(a));
	RANK_OK(symcclCommDestroy(b));
	return 0;
}

/* Aborted while it runs; a peer's abort. */
static int abort_running(int rank, int n, void *arg)
{
	symcclStream_t s;
	symcclComm_t comm;

	(void)arg;
	RANK_TRY(life_join(rank, n, &comm));
	RANK_OK(symcclBarrier(comm, NULL));
	RANK_OK(symcclHostStreamCreate(&s));
	if (rank != 1)
		for (int i = 0; i < 3; i++)
			RANK_OK(symcclBarrier(comm, s));
	RANK_BARRIER();
	if (rank == 0)
		RANK_OK(symcclCommAbort(comm));
	if (rank != 1)
		RANK_RESULT(symcclHostStreamSynchronize(s), symcclRemoteError);
	RANK_OK(symcclHostStreamSynchronize(s));
	RANK_BARRIER();
	if (rank != 0) {
		RANK_RESULT(symcclBarrier(comm, s), symcclRemoteError);
		RANK_OK(symcclCommDestroy(comm));
	}
	RANK_OK(symcclHostStreamDestroy(s));
	return 0;
}

Test(life_stream, abort)
{
	run("abort behind another", 2, 2, abort_behind);
	run("abort behind another", 3, 1, abort_behind);
	run("abort a running one", 3, 3, abort_running);
	run("abort a running one", 3, 1, abort_running);
}

/* Groups over two communicators and two streams; one that is finalized. */
static int groups(int rank, int n, void *arg)
{
	symcclStream_t s[2];
	symcclComm_t a, b;
	uint64_t x = 1, y = 1, z = 0, want = 1;

	(void)arg;
	RANK_TRY(life_join(rank, n, &a));
	RANK_OK(symcclCommSplit(a, 0, 0, &b, NULL));
	RANK_OK(symcclHostStreamCreate(&s[0]));
	RANK_OK(symcclHostStreamCreate(&s[1]));
	for (int i = 0; i < 20; i++) {
		RANK_OK(symcclGroupStart());
		RANK_OK(symcclAllReduce(&x, &x, 1, symcclUint64, symcclSum, a, s[i % 2]));
		RANK_OK(symcclAllReduce(&y, &y, 1, symcclUint64, symcclSum, b, s[0]));
		RANK_OK(symcclAllReduce(&x, &z, 1, symcclUint64, symcclMin, a, s[1]));
		RANK_OK(symcclGroupEnd());
	}
	RANK_OK(symcclCommFinalize(a));
	RANK_OK(symcclCommFinalize(b));
	for (int i = 0; i < 20; i++)
		want *= (uint64_t)n;
	RANK_CHECK(x == want && y == want && z == want, "%llx, %llx, %llx", (unsigned long long)x,
		(unsigned long long)y, (unsigned long long)z);
	RANK_OK(symcclCommDestroy(a));
	RANK_OK(symcclCommDestroy(b));
	RANK_OK(symcclHostStreamDestroy(s[0]));
	RANK_OK(symcclHostStreamDestroy(s[1]));
	return 0;
}

Test(life_stream, groups)
{
	run("groups", 2, 2, groups);
	run("groups", 4, 1, groups);
}

Test(life_stream, misuse)
{
	symcclStream_t s, gone;
	symcclHostEvent_t e;
	symcclComm_t c;
	int pid, status = 0;

	setenv("SYMCCL_DEVICE", "host", 1);
	cr_assert_eq(symcclCommInitAll(&c, 1, NULL), symcclSuccess);
	cr_assert_eq(symcclHostStreamCreate(NULL), symcclInvalidArgument);
	cr_assert_eq(symcclHostEventCreate(NULL), symcclInvalidArgument);
	cr_assert_eq(symcclHostStreamCreate(&gone), symcclSuccess);
	cr_assert_eq(symcclHostStreamDestroy(gone), symcclSuccess);
	cr_assert_eq(symcclHostStreamCreate(&s), symcclSuccess);
	cr_assert_eq(symcclHostEventCreate(&e), symcclSuccess);
	cr_assert_eq(symcclBarrier(c, (symcclStream_t)&c), symcclInvalidArgument);
	cr_assert(strstr(error_text(), "none of symcclHostStreamCreate"), "%s", error_text());
	cr_assert_eq(symcclHostStreamSynchronize((symcclStream_t)&c), symcclInvalidArgument);
	cr_assert_eq(symcclHostStreamQuery(NULL), symcclInvalidArgument);
	cr_assert_eq(symcclHostStreamDestroy(NULL), symcclSuccess);
	cr_assert_eq(symcclHostEventDestroy(NULL), symcclSuccess);
	cr_assert_eq(symcclHostEventRecord(e, (symcclStream_t)&c), symcclInvalidArgument);
	cr_assert_eq(symcclHostEventRecord(NULL, s), symcclInvalidArgument);
	cr_assert_eq(symcclHostStreamWaitEvent(s, NULL), symcclInvalidArgument);
	/* A wrong stream is no reason to end the communicator. */
	cr_assert_eq(symcclBarrier(c, s), symcclSuccess, "%s", error_text());
	cr_assert_eq(symcclHostStreamSynchronize(s), symcclSuccess, "%s", error_text());
	pid = fork();
	if (pid == 0)
		_exit(symcclHostStreamSynchronize(s) == symcclInvalidArgument ? 0 : 1);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0, "a stream was inherited");
	cr_assert_eq(symcclHostStreamDestroy(s), symcclSuccess);
	cr_assert_eq(symcclHostEventDestroy(e), symcclSuccess);
	cr_assert_eq(symcclCommDestroy(c), symcclSuccess);
}
