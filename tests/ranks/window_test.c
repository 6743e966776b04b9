/* Windows: what registering promises, what undoes it, what it leaves behind. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "mem.h"
#include "ranks.h"
#include "symccl.h"
#include "util.h"

TestSuite(window, .timeout = 60);

#define MIB ((size_t)1 << 20)

static void run(const char *what, int n, int procs, rank_fn *fn, void *arg)
{
	char err[1024];
	int e;

	test_seed(); /* before the ranks part: they share it */
	if (procs == n)
		e = ranks_run(n, 30, fn, arg, err, sizeof(err));
	else if (procs == 1)
		e = ranks_run_threads(n, 30, fn, arg, err, sizeof(err));
	else
		e = ranks_run_mixed(procs, n, 30, fn, arg, err, sizeof(err));
	cr_assert_eq(e, 0, "%s, %d ranks in %d processes: %s", what, n, procs, err);
}

static void run_all(const char *what, rank_fn *fn, void *arg)
{
	run(what, 1, 1, fn, arg);
	run(what, 2, 2, fn, arg);
	run(what, 3, 1, fn, arg);
	run(what, 5, 5, fn, arg);
	run(what, 6, 2, fn, arg);
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

/* Every rank writes its pattern by its own pointer and reads every other's by the window. */
static int see_peers(
	symcclComm_t c, symcclWindow_t w, int rank, int n, char *own, size_t size, uint64_t seed)
{
	fill_bytes(own, size, seed + (uint64_t)rank);
	RANK_OK(symcclBarrier(c, NULL));
	for (int r = 0; r < n; r++) {
		void *p;
		size_t s;

		RANK_OK(symcclWinGetSize(c, w, r, &s));
		RANK_OK(symcclWinGetPeerPtr(c, w, r, 0, &p));
		RANK_CHECK(check_bytes(p, s, seed + (uint64_t)r) == s, "rank %d's bytes", r);
		RANK_CHECK(symcclWinGetPeerPtr(c, w, r, s, &p) == symcclInvalidArgument,
			"an offset beyond the window");
	}
	RANK_OK(symcclBarrier(c, NULL));
	return 0;
}

static int address_rule(int rank, int n, void *arg)
{
	symcclWindow_t w, sub;
	symcclComm_t c;
	void *p, *q, *at[8], *mine;
	size_t size = 3 * MIB + 4096 * (size_t)(n - rank);

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&p, size));
	RANK_OK(symcclCommWindowRegister(c, p, size, &w, SYMCCL_WIN_COLL_SYMMETRIC));
	RANK_OK(symcclWinGetUserPtr(c, w, &mine));
	RANK_CHECK(mine == p, "user pointer");
	RANK_TRY(see_peers(c, w, rank, n, p, size, test_seed()));
	for (int r = 0; r < n; r++)
		RANK_OK(symcclWinGetPeerPtr(c, w, r, 0, &at[r]));
	for (int r = 2; r < n; r++)
		RANK_CHECK((char *)at[r] - (char *)at[r - 1] == (char *)at[1] - (char *)at[0],
			"the stride is not constant");
	/* A sub-range at an odd place is a view of the same mapping. */
	RANK_OK(symcclCommWindowRegister(
		c, (char *)p + 12345, MIB + 1, &sub, SYMCCL_WIN_COLL_SYMMETRIC));
	for (int r = 0; r < n; r++) {
		RANK_OK(symcclWinGetPeerPtr(c, sub, r, 0, &q));
		RANK_CHECK((char *)q == (char *)at[r] + 12345, "rank %d was mapped anew", r);
	}
	RANK_TRY(see_peers(c, sub, rank, n, (char *)p + 12345, MIB + 1, test_seed() + 77));
	RANK_CHECK(symcclWinGetPeerPtr(c, w, n, 0, &q) == symcclInvalidArgument, "peer n");
	RANK_CHECK(symcclWinGetPeerPtr(c, w, -1, 0, &q) == symcclInvalidArgument, "peer -1");
	RANK_OK(symcclCommWindowDeregister(c, w));
	RANK_CHECK(symcclCommWindowDeregister(c, w) == symcclInvalidArgument, "freed twice");
	RANK_TRY(see_peers(c, sub, rank, n, (char *)p + 12345, MIB + 1, test_seed() + 99));
	RANK_OK(symcclCommWindowDeregister(c, sub));
	RANK_OK(symcclCommWindowDeregister(c, NULL));
	RANK_OK(symcclCommDestroy(c));
	RANK_OK(symcclMemFree(p));
	return 0;
}

Test(window, address_rule)
{
	run_all("address rule", address_rule, NULL);
}

static int offsets_differ(int rank, int n, void *arg)
{
	symcclWindow_t w = NULL;
	symcclComm_t c;
	void *p;
	size_t off = 64 * (size_t)rank;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&p, 2 * MIB));
	RANK_OK(symcclCommWindowRegister(c, (char *)p + off, MIB, &w, SYMCCL_WIN_DEFAULT));
	RANK_TRY(see_peers(c, w, rank, n, (char *)p + off, MIB, test_seed()));
	if (n > 1) {
		symcclWindow_t bad = NULL;

		RANK_RESULT(symcclCommWindowRegister(
				    c, (char *)p + off, MIB, &bad, SYMCCL_WIN_COLL_SYMMETRIC),
			symcclInvalidUsage);
		RANK_CHECK(strstr(symcclGetLastError(c), "rank 1's buffer is at offset 64"), "%s",
			symcclGetLastError(c));
		RANK_CHECK(bad == NULL, "an output on failure");
	}
	RANK_TRY(see_peers(c, w, rank, n, (char *)p + off, MIB, test_seed() + 5));
	RANK_OK(symcclCommDestroy(c));
	RANK_OK(symcclMemFree(p));
	return 0;
}

Test(window, offsets_differ)
{
	run_all("offsets differ", offsets_differ, NULL);
}

/* Memory of malloc: refused where it was promised to be shared, copied where not. */
static int not_shareable(int rank, int n, void *arg)
{
	symcclWindow_t w = NULL;
	symcclComm_t c;
	void *p, *q;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&p, MIB));
	q = rank == n - 1 ? malloc(MIB) : p;
	RANK_RESULT(symcclCommWindowRegister(c, q, MIB, &w, SYMCCL_WIN_COLL_SYMMETRIC),
		symcclInvalidUsage);
	RANK_CHECK(strstr(symcclGetLastError(c), "symcclMemAlloc"), "%s", symcclGetLastError(c));
	RANK_OK(symcclCommWindowRegister(c, q, MIB, &w, SYMCCL_WIN_DEFAULT));
	RANK_CHECK(symcclWinGetPeerPtr(c, w, 0, 0, &p) == symcclInvalidUsage, "an address");
	RANK_OK(symcclBarrier(c, NULL));
	RANK_OK(symcclCommDestroy(c));
	if (rank == n - 1)
		free(q);
	return 0;
}

Test(window, memory_that_cannot_be_shared)
{
	run_all("malloc", not_shareable, NULL);
}

/* ---- All or nothing
 * ------------------------------------------------------------------------------ */

static int undo(int rank, int n, void *arg)
{
	struct leak_snapshot before;
	symcclWindow_t w = NULL, v = NULL, keep;
	symcclComm_t c;
	char first[ERROR_TEXT_MAX], *all = ranks_shared();
	void *p;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&p, MIB));
	RANK_OK(symcclCommWindowRegister(c, p, 4096, &keep, SYMCCL_WIN_COLL_SYMMETRIC));
	RANK_OK(symcclBarrier(c, NULL));
	RANK_OK(symcclCommWindowDeregister(c, keep));
	RANK_OK(symcclCommWindowRegister(c, p, 4096, &keep, SYMCCL_WIN_COLL_SYMMETRIC));
	RANK_BARRIER();
	leak_snapshot(&before);
	for (int i = 0; i < 4; i++) {
		void *q, *r;
		int bad = rank == n / 2;

		RANK_OK(symcclMemAlloc(&q, MIB));
		RANK_OK(symcclMemAlloc(&r, MIB));
		symcclGroupStart();
		RANK_OK(symcclCommWindowRegister(c, q, MIB, &v, SYMCCL_WIN_COLL_SYMMETRIC));
		RANK_OK(symcclCommWindowRegister(c, bad && i == 0 ? NULL : r,
			bad && i == 1 ? 0 : MIB, &w,
			bad && i == 2 ? 0x80 : SYMCCL_WIN_COLL_SYMMETRIC));
		if (bad && i == 3)
			RANK_OK(symcclCommWindowRegister(c, r, 64, &w, SYMCCL_WIN_COLL_SYMMETRIC));
		RANK_CHECK(symcclGroupEnd() == (i == 3 && n > 1 ? symcclInvalidUsage
						       : i == 3 ? symcclSuccess
								: symcclInvalidArgument),
			"case %d: %s", i, symcclGetLastError(NULL));
		if (i < 3 || n > 1) {
			snprintf(first, sizeof(first), "%s", symcclGetLastError(c));
			RANK_CHECK(w == NULL && v == NULL, "an output on failure");
			if (rank == 0)
				memcpy(all, first, sizeof(first));
			RANK_BARRIER();
			RANK_CHECK(
				strcmp(all, first) == 0, "other reasons: '%s', '%s'", all, first);
			RANK_BARRIER();
			RANK_OK(symcclMemFree(q));
			RANK_OK(symcclMemFree(r));
			RANK_BARRIER();
			RANK_NO_LEAK(&before);
			RANK_BARRIER();
		}
	}
	RANK_OK(symcclBarrier(c, NULL));
	RANK_TRY(see_peers(c, keep, rank, n, p, 4096, test_seed()));
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(window, one_failure_undoes_all)
{
	run("undo", 1, 1, undo, NULL);
	run("undo", 2, 2, undo, NULL);
	run("undo", 5, 5, undo, NULL);
}

static int flags_differ(int rank, int n, void *arg)
{
	symcclWindow_t w = NULL;
	symcclComm_t c;
	void *p;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&p, MIB));
	RANK_RESULT(symcclCommWindowRegister(c, p, MIB, &w,
			    rank == 1 ? SYMCCL_WIN_DEFAULT : SYMCCL_WIN_COLL_SYMMETRIC),
		symcclInvalidUsage);
	RANK_CHECK(strstr(symcclGetLastError(c), "rank 1 registers with flags"), "%s",
		symcclGetLastError(c));
	RANK_OK(symcclCommWindowRegister(c, p, MIB, &w, SYMCCL_WIN_COLL_SYMMETRIC));
	RANK_TRY(see_peers(c, w, rank, n, p, MIB, test_seed()));
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(window, flags_differ)
{
	run("flags", 3, 3, flags_differ, NULL);
	run("flags", 3, 1, flags_differ, NULL);
}

/* A rank without descriptors to spare: all ranks hear of it, and all can go on afterwards. */
static int no_descriptors(int rank, int n, void *arg)
{
	struct rlimit old, low;
	symcclWindow_t w = NULL;
	symcclComm_t c;
	void *p;
	int fd;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&p, MIB));
	RANK_OK(symcclBarrier(c, NULL));
	RANK_CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0, "limit");
	low = old;
	fd = dup(0);
	RANK_CHECK(fd > 0, "dup");
	close(fd);
	if (rank == 1) {
		low.rlim_cur = (rlim_t)fd; /* the next free descriptor is one too many */
		RANK_CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0, "limit");
	}
	RANK_RESULT(symcclCommWindowRegister(c, p, MIB, &w, SYMCCL_WIN_COLL_SYMMETRIC),
		symcclSystemError);
	RANK_CHECK(strstr(symcclGetLastError(c), "rank 1"), "%s", symcclGetLastError(c));
	RANK_CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0, "limit");
	RANK_BARRIER();
	RANK_OK(symcclCommWindowRegister(c, p, MIB, &w, SYMCCL_WIN_COLL_SYMMETRIC));
	RANK_TRY(see_peers(c, w, rank, n, p, MIB, test_seed()));
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(window, descriptor_table_full)
{
	run("descriptors", 3, 3, no_descriptors, NULL);
}

/* ---- Asynchronous, repeated, late
 * -------------------------------------------------------------------- */

static int async(int rank, int n, void *arg)
{
	enum { K = 12 };
	symcclRequest_t req[K];
	symcclWindow_t w[K] = {0};
	symcclComm_t c;
	char *p[K];
	int done;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	for (int i = 0; i < K; i++) {
		RANK_OK(symcclMemAlloc((void **)&p[i], (size_t)(i + 1) * 8192));
		RANK_OK(symcclCommWindowRegisterAsync(c, p[i], (size_t)(i + 1) * 8192, &w[i],
			SYMCCL_WIN_COLL_SYMMETRIC, &req[i]));
		if (rank == 0 && i % 5 == 4)
			usleep(3000); /* ranks run apart: batches of different lengths meet */
		if (i == K / 2)
			RANK_OK(symcclBarrier(c, NULL));
	}
	for (int i = K - 1; i >= 0; i--) {
		if (i % 2) {
			RANK_OK(symcclRequestWait(req[i]));
			continue;
		}
		do
			RANK_OK(symcclRequestTest(req[i], &done));
		while (!done);
	}
	for (int i = 0; i < K; i++)
		RANK_TRY(see_peers(c, w[i], rank, n, p[i], (size_t)(i + 1) * 8192,
			test_seed() + (uint64_t)i * 100));
	RANK_RESULT(symcclRequestWait(NULL), symcclInvalidArgument);
	RANK_OK(symcclCommDestroy(c));
	for (int i = 0; i < K; i++)
		RANK_OK(symcclMemFree(p[i]));
	return 0;
}

Test(window, asynchronous)
{
	run_all("async", async, NULL);
}

/* Registering, freeing and deregistering in a loop holds a bounded number of mappings. */
static int churn(int rank, int n, void *arg)
{
	struct leak_snapshot before;
	symcclWindow_t w;
	symcclComm_t c;
	void *p, *base = NULL, *a;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	for (int i = 0; i < 60; i++) {
		RANK_OK(symcclMemAlloc(&p, 256 << 10));
		RANK_OK(symcclCommWindowRegister(c, p, 256 << 10, &w, SYMCCL_WIN_COLL_SYMMETRIC));
		RANK_TRY(see_peers(c, w, rank, n, p, 256 << 10, test_seed() + (uint64_t)i));
		RANK_OK(symcclWinGetPeerPtr(c, w, 0, 0, &a));
		if (i == 10)
			base = a;
		if (i > 10 && (i - 10) % 2 == 0)
			RANK_CHECK(a == base, "extents are not reused: %p, %p", a, base);
		RANK_OK(symcclCommWindowDeregister(c, w));
		RANK_OK(symcclMemFree(p));
		if (i == 10) {
			RANK_BARRIER();
			leak_snapshot(&before);
		}
	}
	RANK_BARRIER();
	RANK_NO_LEAK(&before);
	RANK_BARRIER();
	/* The same memory again and again is mapped once. */
	RANK_OK(symcclMemAlloc(&p, 256 << 10));
	for (int i = 0; i < 60; i++) {
		RANK_OK(symcclCommWindowRegister(c, p, 256 << 10, &w, SYMCCL_WIN_COLL_SYMMETRIC));
		RANK_OK(symcclWinGetPeerPtr(c, w, 0, 0, &a));
		if (i == 0)
			base = a;
		RANK_CHECK(a == base, "mapped anew");
		RANK_OK(symcclCommWindowDeregister(c, w));
	}
	RANK_OK(symcclCommDestroy(c));
	RANK_OK(symcclMemFree(p));
	return 0;
}

Test(window, churn)
{
	run("churn", 2, 2, churn, NULL);
	run("churn", 4, 2, churn, NULL);
	run("churn", 3, 1, churn, NULL);
}

static int late(int rank, int n, void *arg)
{
	symcclWindow_t w = NULL;
	symcclComm_t c;
	uint64_t t;
	void *p;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&p, MIB));
	RANK_OK(symcclBarrier(c, NULL));
	if (rank == 2) {
		usleep(1800000);
		RANK_RESULT(symcclCommWindowRegister(c, p, MIB, &w, SYMCCL_WIN_COLL_SYMMETRIC),
			symcclTimeout);
	} else {
		t = now_ns();
		RANK_RESULT(symcclCommWindowRegister(c, p, MIB, &w, SYMCCL_WIN_COLL_SYMMETRIC),
			symcclTimeout);
		RANK_CHECK(
			now_ns() - t > 700000000u, "too early: %g s", (double)(now_ns() - t) / 1e9);
	}
	RANK_CHECK(
		strstr(symcclGetLastError(c), "rank 2 did not come"), "%s", symcclGetLastError(c));
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(window, a_rank_does_not_register)
{
	setenv("SYMCCL_SETUP_TIMEOUT", "1", 1);
	run("late", 4, 4, late, NULL);
	run("late", 4, 1, late, NULL);
	run("late", 4, 2, late, NULL);
}

/* Freed under a window: peers keep what they have mapped until everybody has let go. */
static int freed_under(int rank, int n, void *arg)
{
	symcclWindow_t w;
	symcclComm_t c;
	void *p, *q;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&p, MIB));
	RANK_OK(symcclCommWindowRegister(c, p, MIB, &w, SYMCCL_WIN_COLL_SYMMETRIC));
	fill_bytes(p, MIB, test_seed() + (uint64_t)rank);
	RANK_OK(symcclBarrier(c, NULL));
	if (rank == 0)
		RANK_OK(symcclMemFree(p));
	RANK_OK(symcclBarrier(c, NULL));
	RANK_OK(symcclWinGetPeerPtr(c, w, 0, 0, &q));
	RANK_CHECK(check_bytes(q, MIB, test_seed()) == MIB, "rank 0's memory is gone");
	RANK_OK(symcclBarrier(c, NULL));
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(window, freed_under_a_window)
{
	run("freed", 3, 3, freed_under, NULL);
	run("freed", 3, 1, freed_under, NULL);
}
