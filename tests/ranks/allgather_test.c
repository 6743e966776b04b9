/* All-gather through the whole library: windows and plain memory, in place and not, processes,
 * threads and both. (The algorithms one by one: tests/unit/coll_*.) */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "mem.h"
#include "ranks.h"
#include "symccl.h"
#include "util.h"

TestSuite(allgather, .timeout = 120);

#define ROOM ((size_t)6 << 20)

static void run(int n, int procs, rank_fn *fn, void *arg)
{
	char err[1024];
	int e;

	test_seed(); /* before the ranks part: they share it */
	if (procs == n)
		e = ranks_run(n, 60, fn, arg, err, sizeof(err));
	else if (procs == 1)
		e = ranks_run_threads(n, 60, fn, arg, err, sizeof(err));
	else
		e = ranks_run_mixed(procs, n, 60, fn, arg, err, sizeof(err));
	cr_assert_eq(e, 0, "%d ranks in %d processes: %s", n, procs, err);
}

static int join(int rank, int n, symcclComm_t *comm)
{
	symcclUniqueId id;

	if (rank == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_OK(symcclCommInitRank(comm, n, id, rank));
	return 0;
}

struct bufs {
	char *send[3], *recv[3]; /* symmetric window, default window, plain */
};

static int bufs_make(symcclComm_t c, struct bufs *b)
{
	symcclWindow_t w;

	symcclGroupStart();
	for (int i = 0; i < 2; i++) {
		RANK_OK(symcclMemAlloc((void **)&b->send[i], ROOM));
		RANK_OK(symcclMemAlloc((void **)&b->recv[i], ROOM));
		RANK_OK(symcclCommWindowRegister(c, b->send[i], ROOM, &w,
			i == 0 ? SYMCCL_WIN_COLL_SYMMETRIC : SYMCCL_WIN_DEFAULT));
		RANK_OK(symcclCommWindowRegister(c, b->recv[i], ROOM, &w,
			i == 0 ? SYMCCL_WIN_COLL_SYMMETRIC : SYMCCL_WIN_DEFAULT));
	}
	RANK_OK(symcclGroupEnd());
	b->send[2] = malloc(ROOM);
	b->recv[2] = malloc(ROOM);
	RANK_CHECK(b->send[2] != NULL && b->recv[2] != NULL, "no memory");
	return 0;
}

/* One call: poisoned output, guard bytes, every element of every rank. */
static int one(symcclComm_t c, int rank, int n, char *send, char *recv, size_t bytes, int in_place,
	uint64_t seed)
{
	const unsigned char guard = 0xa5;
	char *own = recv + (size_t)rank * bytes;
	size_t total = bytes * (size_t)n;

	if (in_place)
		send = own;
	memset(recv - 16, guard, 16);
	memset(recv + total, guard, 16);
	poison(recv, total);
	fill_bytes(send, bytes, seed + (uint64_t)rank);
	RANK_OK(symcclAllGather(send, recv, bytes, symcclUint8, c, NULL));
	for (int r = 0; r < n; r++)
		RANK_CHECK(
			check_bytes(recv + (size_t)r * bytes, bytes, seed + (uint64_t)r) == bytes,
			"%zu bytes%s: rank %d's block", bytes, in_place ? " in place" : "", r);
	for (int i = 0; i < 16; i++)
		RANK_CHECK((unsigned char)recv[-1 - i] == guard &&
				   (unsigned char)recv[total + (size_t)i] == guard,
			"%zu bytes: guard", bytes);
	if (!in_place)
		RANK_CHECK(
			check_bytes(send, bytes, seed + (uint64_t)rank) == bytes, "input changed");
	return 0;
}

static int sweep(int rank, int n, void *arg)
{
	static const size_t sizes[] = {
		0, 1, 3, 8, 55, 56, 57, 64, 1000, 4096, 65535, 65536, 70001, 300000};
	struct bufs b;
	symcclComm_t c;
	uint64_t seed = test_seed();

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_TRY(bufs_make(c, &b));
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		size_t bytes = MIN(sizes[i], (ROOM - 8192) / (size_t)n);

		for (int s = 0; s < 3; s++)
			for (int r = 0; r < 3; r++) {
				size_t off = mix64(seed, i * 9 + (size_t)(s * 3 + r)) % 200 + 16;

				ranks_note("%zu bytes, kinds %d %d", bytes, s, r);
				RANK_TRY(one(c, rank, n, b.send[s] + off % 97, b.recv[r] + off,
					bytes, 0, seed + i * 1000));
				RANK_TRY(one(c, rank, n, NULL, b.recv[r] + off, bytes, 1,
					seed + i * 2000));
			}
		/* Ranks need not bring the same kind of memory unless they promised to. */
		RANK_TRY(one(c, rank, n, b.send[1 + (rank & 1)] + 16, b.recv[1 + (rank & 1)] + 16,
			bytes, 0, seed + i * 3000));
	}
	RANK_OK(symcclCommDestroy(c));
	free(b.send[2]);
	free(b.recv[2]);
	return 0;
}

Test(allgather, sweep)
{
	run(1, 1, sweep, NULL);
	run(2, 2, sweep, NULL);
	run(3, 1, sweep, NULL);
	run(4, 4, sweep, NULL);
	run(6, 3, sweep, NULL);
	run(7, 7, sweep, NULL);
}

/* Ranks that do not make the same call: somebody says so, nobody hangs, nothing is reported right.
 */
static int calls_differ(int rank, int n, void *arg)
{
	int kind = *(int *)arg;
	size_t big = 300000;
	symcclComm_t c;
	symcclResult_t e;
	char *s = malloc(big), *r = malloc(big * (size_t)n);

	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclBarrier(c, NULL));
	memset(s, rank, big);
	if (kind == 0)
		e = symcclAllGather(s, r, rank == 1 ? 9 : 8, symcclUint8, c, NULL);
	else if (kind == 1)
		e = rank == 1 ? symcclBarrier(c, NULL)
			      : symcclAllGather(s, r, 8, symcclUint8, c, NULL);
	else if (kind == 2)
		e = symcclAllGather(s, r, rank == 1 ? big : 8, symcclUint8, c, NULL);
	else
		e = symcclAllGather(s, r, 8, rank == 1 ? symcclInt8 : symcclUint8, c, NULL);
	if (e == symcclSuccess) /* it may only have noticed afterwards */
		e = symcclBarrier(c, NULL);
	RANK_CHECK(e == symcclInvalidUsage, "kind %d: %s", kind, error_name(e));
	RANK_CHECK(strstr(symcclGetLastError(c), "rank"), "%s", symcclGetLastError(c));
	RANK_OK(symcclCommDestroy(c));
	free(s);
	free(r);
	return 0;
}

Test(allgather, calls_differ)
{
	for (int kind = 0; kind < 4; kind++) {
		run(2, 2, calls_differ, &kind);
		run(3, 1, calls_differ, &kind);
	}
}

static int plan(int rank, int n, void *arg)
{
	struct bufs b;
	symcclPlan_t p, q;
	symcclComm_t c;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_TRY(bufs_make(c, &b));
	RANK_OK(symcclQueryPlan(c, symcclFuncAllGather, b.send[0], b.recv[0], ROOM / (size_t)n,
		symcclInt8, symcclSum, &p));
	RANK_CHECK(p.usesWindows && strncmp(p.algorithm, "allgather/", 10) == 0 && p.nCTAs >= 1,
		"%s %d", p.algorithm, p.usesWindows);
	RANK_OK(symcclQueryPlan(c, symcclFuncAllGather, b.send[2], b.recv[2], ROOM / (size_t)n,
		symcclInt8, symcclSum, &q));
	RANK_CHECK(!q.usesWindows, "%s", q.algorithm);
	RANK_OK(symcclQueryPlan(
		c, symcclFuncAllGather, b.send[0], b.recv[0], 8, symcclInt8, symcclSum, &q));
	RANK_CHECK(q.timeUs < p.timeUs, "%g %g", q.timeUs, p.timeUs);
	RANK_RESULT(symcclQueryPlan(c, (symcclFunc_t)77, NULL, NULL, 8, symcclInt8, symcclSum, &q),
		symcclInvalidArgument);
	RANK_OK(symcclCommDestroy(c));
	free(b.send[2]);
	free(b.recv[2]);
	return 0;
}

Test(allgather, query_plan)
{
	run(2, 2, plan, NULL);
	run(4, 1, plan, NULL);
}
