/* Calls that do not match, and groups whose messages are on several streams. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "hub.h"
#include "ranks.h"

TestSuite(calls_misuse, .timeout = 60);

static void run(int n, rank_fn *fn)
{
	char err[1024];
	int e = ranks_run(n, 20, fn, NULL, err, sizeof(err));

	cr_assert_eq(e, 0, "%d processes: %s", n, err);
	e = ranks_run_threads(n, 20, fn, NULL, err, sizeof(err));
	cr_assert_eq(e, 0, "%d threads: %s", n, err);
}

static int join(int rank, int n, symcclComm_t *comm)
{
	symcclUniqueId id;

	if (rank == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_OK(symcclCommInitRank(comm, n, id, rank));
	RANK_BARRIER();
	return 0;
}

/* Every rank waits for another one: noticed long before any deadline. */
static int roots_differ(int rank, int n, void *arg)
{
	static const size_t counts[] = {10, 200000};

	(void)arg;
	for (int k = 0; k < 4; k++) {
		char *in = calloc(1, 200000), *out = calloc(2, 200000);
		symcclComm_t c;

		RANK_CHECK(in != NULL && out != NULL, "out of memory");
		RANK_TRY(join(rank, n, &c));
		if (k < 2)
			RANK_RESULT(symcclReduce(in, out, counts[k], symcclInt8, symcclSum, rank, c,
					    NULL),
				symcclInvalidUsage);
		else
			RANK_RESULT(symcclGather(in, out, counts[k - 2], symcclInt8, rank, c, NULL),
				symcclInvalidUsage);
		RANK_OK(symcclCommDestroy(c));
		free(in);
		free(out);
		RANK_BARRIER();
	}
	return 0;
}

Test(calls_misuse, roots_that_differ)
{
	run(2, roots_differ);
}

/* Both send and return; the next broadcast must not take what is left over for its own. */
static int leftover(int rank, int n, void *arg)
{
	symcclComm_t c;
	int v = 100 + rank;
	symcclResult_t e;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclBcast(&v, 1, symcclInt32, rank, c, NULL));
	RANK_BARRIER();
	v = rank == 0 ? 7 : -1;
	e = symcclBcast(&v, 1, symcclInt32, 0, c, NULL);
	if (rank != 0)
		RANK_CHECK(e == symcclInvalidUsage, "%s, value %d", error_name(e), v);
	RANK_BARRIER();
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(calls_misuse, a_broadcast_of_another_root_left_over)
{
	run(2, leftover);
}

/* Sizes whose packets carry the same tag. */
static int sizes_differ(int rank, int n, void *arg)
{
	static const size_t sizes[][2] = {{84662, 972}, {23246, 111952}, {8, 12}};

	(void)arg;
	for (size_t k = 0; k < 3; k++) {
		char *p = calloc(1, 200000);
		symcclComm_t c;

		RANK_CHECK(p != NULL, "out of memory");
		RANK_TRY(join(rank, n, &c));
		if (rank == 0)
			symcclSend(p, sizes[k][0], symcclInt8, 1, c, NULL); /* may not notice */
		else
			RANK_RESULT(symcclRecv(p, sizes[k][1], symcclInt8, 0, c, NULL),
				symcclInvalidUsage);
		RANK_BARRIER();
		RANK_OK(symcclCommDestroy(c));
		free(p);
	}
	return 0;
}

Test(calls_misuse, sizes_that_differ)
{
	run(2, sizes_differ);
}

/* The same of a reduction: the root would take what was in the slots before. */
static int reduced_sizes_differ(int rank, int n, void *arg)
{
	static const size_t counts[] = {35986, 33794};
	char *p = calloc(1, counts[0]);
	symcclComm_t c;

	(void)arg;
	RANK_CHECK(p != NULL, "out of memory");
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclBarrier(c, NULL));
	if (rank == 0)
		RANK_RESULT(symcclReduce(p, p, counts[0], symcclInt8, symcclSum, 0, c, NULL),
			symcclInvalidUsage);
	else
		symcclReduce(p, NULL, counts[1], symcclInt8, symcclSum, 0, c, NULL);
	RANK_BARRIER();
	RANK_OK(symcclCommDestroy(c));
	free(p);
	return 0;
}

Test(calls_misuse, reduced_sizes_that_differ)
{
	run(2, reduced_sizes_differ);
}

/* {send on a, receive on b}: after b, what was received is there; after a, what was before the send
 * on a was done first. */
static int two_streams(int rank, int n, void *arg)
{
	int peer = 1 - rank, own = 0, got, before;
	symcclStream_t a, b;
	symcclComm_t c;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclHostStreamCreate(&a));
	RANK_OK(symcclHostStreamCreate(&b));
	for (int i = 0; i < 200; i++) {
		own = i * 2 + rank;
		before = -1;
		got = -1;
		RANK_OK(symcclAllReduce(&own, &before, 1, symcclInt32, symcclSum, c, a));
		RANK_OK(symcclGroupStart());
		RANK_OK(symcclSend(&before, 1, symcclInt32, peer, c, i % 2 ? a : NULL));
		RANK_OK(symcclRecv(&got, 1, symcclInt32, peer, c, b));
		RANK_OK(symcclGroupEnd());
		RANK_OK(symcclHostStreamSynchronize(b));
		RANK_CHECK(got == i * 4 + 1, "round %d: %d", i, got);
		RANK_OK(symcclHostStreamSynchronize(a));
	}
	RANK_OK(symcclHostStreamDestroy(a));
	RANK_OK(symcclHostStreamDestroy(b));
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(calls_misuse, messages_on_two_streams)
{
	run(2, two_streams);
}

static symcclResult_t refused(int k, int n, symcclComm_t c)
{
	symcclUniqueId id;
	symcclComm_t made;
	int v = 1;

	memset(&id, 0, sizeof(id));
	switch (k) {
	case 0:
		return symcclBarrier(NULL, NULL);
	case 1:
		return symcclPutSignal(&v, 1, symcclInt32, 0, NULL, 0, 0, 0, 0, c, NULL);
	case 2:
		return symcclCommInitRank(&made, n, id, n);
	case 3:
		return symcclCommInitRank(&made, n, id, 0);
	case 4:
		return symcclCommInitRankScalable(&made, n, 0, 0, &id, NULL);
	case 5:
		return symcclCommShrink(c, NULL, 1, &made, NULL, SYMCCL_SHRINK_DEFAULT);
	default:
		return symcclSend(&v, 1, symcclInt32, n, c, NULL);
	}
}

/* A refused call fails its group, also when it has no communicator. */
static int no_comm(int rank, int n, void *arg)
{
	symcclComm_t c;
	int v = 1, sum = 0;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	for (int k = 0; k < 7; k++) {
		RANK_OK(symcclGroupStart());
		RANK_OK(symcclAllReduce(&v, &sum, 1, symcclInt32, symcclSum, c, NULL));
		RANK_CHECK(refused(k, n, c) == symcclInvalidArgument, "call %d", k);
		RANK_CHECK(symcclGroupEnd() == symcclInvalidArgument && sum == 0,
			"call %d: the group was run", k);
	}
	RANK_OK(symcclAllReduce(&v, &sum, 1, symcclInt32, symcclSum, c, NULL));
	RANK_CHECK(sum == n, "%d", sum);
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(calls_misuse, a_group_with_a_refused_call)
{
	run(2, no_comm);
}

/* Nothing is left to simulate, and nothing of what was queued is left behind (seen under ASan). */
static int simulated_after_abort(int rank, int n, void *arg)
{
	symcclSimInfo_t sim = SYMCCL_SIM_INFO_INITIALIZER;
	symcclComm_t c;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclGroupStart());
	for (int i = 0; i < 10; i++)
		RANK_OK(symcclSend(&rank, 1, symcclInt32, 1 - rank, c, NULL));
	RANK_OK(symcclCommAbort(c));
	RANK_OK(symcclGroupSimulateEnd(&sim));
	RANK_CHECK(sim.estimatedTime == 0, "%g", (double)sim.estimatedTime);
	return 0;
}

Test(calls_misuse, simulated_after_abort)
{
	run(2, simulated_after_abort);
}

/* One rank splits before it can know of the other's revoke. */
static int revoked(int rank, int n, void *arg)
{
	symcclComm_t c, half;
	int v = 1, sum = 0;

	(void)arg;
	for (int i = 0; i < 20; i++) {
		RANK_TRY(join(rank, n, &c));
		if (rank == i % 2)
			RANK_OK(symcclCommRevoke(c, SYMCCL_REVOKE_DEFAULT));
		RANK_OK(symcclCommSplit(c, 0, 0, &half, NULL));
		RANK_OK(symcclAllReduce(&v, &sum, 1, symcclInt32, symcclSum, half, NULL));
		RANK_CHECK(sum == n, "%d", sum);
		RANK_OK(symcclCommDestroy(half));
		RANK_OK(symcclCommDestroy(c));
		RANK_BARRIER();
	}
	return 0;
}

Test(calls_misuse, a_split_that_meets_a_revoke)
{
	run(2, revoked);
}
