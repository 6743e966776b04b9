/* All-reduce and reduce-scatter through the whole library: windows and plain memory, in place and
 * not, processes, threads and both, groups; operators made by the user. (The algorithms one by one:
 * tests/unit/coll_allreduce_test.c.) */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "mem.h"
#include "oracle.h"
#include "ranks.h"
#include "symccl.h"
#include "util.h"

TestSuite(allreduce, .timeout = 120);

enum { ROOM = 1 << 20, MOST = 20000, RANKS = 8 };
#define PREMUL symcclNumOps

static void run(int n, int procs, rank_fn *fn, void *arg)
{
	char err[1024];
	int e;

	test_seed(); /* before the ranks part: they share it */
	if (procs == n)
		e = ranks_run(n, 100, fn, arg, err, sizeof(err));
	else if (procs == 1)
		e = ranks_run_threads(n, 100, fn, arg, err, sizeof(err));
	else
		e = ranks_run_mixed(procs, n, 100, fn, arg, err, sizeof(err));
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

/* A buffer pair of one kind: symmetric window, default window, plain. */
struct bufs {
	char *send[3], *recv[3];
	char *in[RANKS], *want; /* every rank's input, and the result */
};

static int bufs_make(symcclComm_t c, int n, struct bufs *b)
{
	symcclWindow_t w;

	symcclGroupStart();
	for (int i = 0; i < 2; i++) {
		int flags = i == 0 ? SYMCCL_WIN_COLL_SYMMETRIC : SYMCCL_WIN_DEFAULT;

		RANK_OK(symcclMemAlloc((void **)&b->send[i], ROOM));
		RANK_OK(symcclMemAlloc((void **)&b->recv[i], ROOM));
		RANK_OK(symcclCommWindowRegister(c, b->send[i], ROOM, &w, flags));
		RANK_OK(symcclCommWindowRegister(c, b->recv[i], ROOM, &w, flags));
	}
	RANK_OK(symcclGroupEnd());
	b->send[2] = malloc(ROOM);
	b->recv[2] = malloc(ROOM);
	b->want = malloc(ROOM);
	RANK_CHECK(b->send[2] && b->recv[2] && b->want, "no memory");
	for (int q = 0; q < n; q++)
		RANK_CHECK((b->in[q] = malloc(ROOM)) != NULL, "no memory");
	return 0;
}

static void bufs_free(int n, struct bufs *b)
{
	for (int i = 0; i < 2; i++) {
		symcclMemFree(b->send[i]);
		symcclMemFree(b->recv[i]);
	}
	free(b->send[2]);
	free(b->recv[2]);
	free(b->want);
	for (int q = 0; q < n; q++)
		free(b->in[q]);
}

/* One all-reduce of `total` elements, then a reduce-scatter of as many as divide. */
static int one(symcclComm_t c, int rank, int n, struct bufs *b, char *send, char *recv,
	size_t total, symcclDataType_t type, int op, int in_place, uint64_t seed)
{
	size_t size = fill_type_size(type), part = total / (size_t)n;
	const void *src[RANKS];
	uint64_t factor[RANKS] = {0};
	symcclRedOp_t made = (symcclRedOp_t)op;

	for (int q = 0; q < n; q++) {
		fill_type(b->in[q], total, type, seed + (uint64_t)q);
		fill_type(&factor[q], 1, type, seed + 100 + (uint64_t)q);
		src[q] = b->in[q];
	}
	oracle_reduce(type, op == PREMUL ? symcclSum : (symcclRedOp_t)op, src, n,
		op == PREMUL ? factor : NULL, total, b->want);
	if (op == PREMUL)
		RANK_OK(symcclRedOpCreatePreMulSum(
			&made, &factor[rank], type, symcclScalarHostImmediate, c));
	if (in_place)
		recv = send;
	poison(recv, total * size);
	memcpy(send, b->in[rank], total * size);
	RANK_OK(symcclAllReduce(send, recv, total, type, made, c, NULL));
	RANK_CHECK(memcmp(recv, b->want, total * size) == 0, "%zu elements of type %d, op %d%s",
		total, type, op, in_place ? ", in place" : "");
	if (in_place)
		recv = send + (size_t)rank * part * size;
	poison(recv, part * size);
	memcpy(send, b->in[rank], total * size);
	RANK_OK(symcclReduceScatter(send, recv, part, type, made, c, NULL));
	RANK_CHECK(memcmp(recv, b->want + (size_t)rank * part * size, part * size) == 0,
		"reduce-scatter: %zu elements of type %d, op %d%s", part, type, op,
		in_place ? ", in place" : "");
	if (op == PREMUL)
		RANK_OK(symcclRedOpDestroy(made, c));
	return 0;
}

static int sweep(int rank, int n, void *arg)
{
	static const size_t counts[] = {0, 1, 3, 7, 14, 57, 1000, 4099, MOST};
	uint64_t seed = test_seed();
	struct bufs b;
	symcclPlan_t plan;
	symcclComm_t c;

	RANK_TRY(join(rank, n, &c));
	RANK_TRY(bufs_make(c, n, &b));
	RANK_OK(symcclQueryPlan(
		c, symcclFuncAllReduce, b.send[0], b.recv[0], MOST, symcclInt8, symcclSum, &plan));
	RANK_CHECK(plan.nCTAs == (arg ? *(int *)arg : 1), "%d", plan.nCTAs);
	for (size_t i = 0; i < ARRAY_LEN(counts) * 9; i++) {
		uint64_t s = mix64(seed, i);
		int from = (int)(i % 3), to = (int)(i / 3 % 3);
		size_t off = s % 64;
		symcclDataType_t type = (symcclDataType_t)(s >> 8 & 0xffff) % symcclNumTypes;
		int op = (int)((s >> 24 & 0xffff) % (symcclNumOps + 1));

		ranks_note("count %zu, kinds %d %d", counts[i / 9], from, to);
		RANK_TRY(one(c, rank, n, &b, b.send[from] + off, b.recv[to] + off % 13,
			counts[i / 9], type, op, from == to && (s >> 40 & 1), s));
		/* Ranks need not bring the same kind of memory unless they promised to. */
		if (i % 9 == 0)
			RANK_TRY(one(c, rank, n, &b, b.send[1 + (rank & 1)], b.recv[1 + (rank & 1)],
				counts[i / 9], type, op, 0, s));
	}
	RANK_OK(symcclCommDestroy(c));
	bufs_free(n, &b);
	return 0;
}

Test(allreduce, sweep)
{
	run(1, 1, sweep, NULL);
	run(2, 2, sweep, NULL);
	run(3, 1, sweep, NULL);
	run(4, 4, sweep, NULL);
	run(6, 3, sweep, NULL);
	run(7, 1, sweep, NULL);
	run(8, 8, sweep, NULL);
}

Test(allreduce, several_workers)
{
	int ctas = 4;

	setenv("SYMCCL_MAX_CTAS", "4", 1);
	run(2, 2, sweep, &ctas);
	run(5, 1, sweep, &ctas);
}

/* ---- Operators made by the user -------------------------------------------------------------- */

static int operators(int rank, int n, void *arg)
{
	int32_t x = 10, y, by = rank + 1, again = 7, sum = 0;
	symcclRedOp_t op, op2, other;
	symcclComm_t c, d;
	float f = 2;

	(void)arg;
	for (int q = 0; q < n; q++)
		sum += 10 * (q + 1);
	RANK_TRY(join(rank, n, &c));
	RANK_TRY(join(rank, n, &d));
	RANK_OK(symcclRedOpCreatePreMulSum(&op, &by, symcclInt32, symcclScalarHostImmediate, c));
	by = 99; /* it has been read */
	/* The same buffers, one after the other: each call has its own operator. */
	RANK_OK(symcclAllReduce(&x, &y, 1, symcclInt32, symcclSum, c, NULL));
	RANK_CHECK(y == 10 * n, "%d", y);
	RANK_OK(symcclAllReduce(&x, &y, 1, symcclInt32, op, c, NULL));
	RANK_CHECK(y == sum, "%d", y);
	RANK_OK(symcclRedOpCreatePreMulSum(
		&op2, &again, symcclInt32, symcclScalarHostImmediate, c));
	RANK_CHECK(op2 != op && op >= symcclNumOps, "%d %d", op, op2);
	RANK_OK(symcclAllReduce(&x, &y, 1, symcclInt32, op2, c, NULL));
	RANK_CHECK(y == 70 * n, "%d", y);
	RANK_OK(symcclAllReduce(&x, &y, 1, symcclInt32, symcclSum, c, NULL));
	RANK_CHECK(y == 10 * n, "%d", y);
	RANK_RESULT(symcclAllReduce(&f, &f, 1, symcclFloat32, op, c, NULL), symcclInvalidArgument);
	RANK_RESULT(symcclAllReduce(&x, &y, 1, symcclInt32, op, d, NULL), symcclInvalidArgument);
	RANK_CHECK(strstr(symcclGetLastError(d), "op"), "%s", symcclGetLastError(d));
	RANK_RESULT(symcclRedOpDestroy(op, d), symcclInvalidArgument);
	RANK_OK(symcclRedOpDestroy(op, c));
	RANK_RESULT(symcclRedOpDestroy(op, c), symcclInvalidArgument);
	RANK_RESULT(symcclRedOpDestroy(symcclSum, c), symcclInvalidArgument);
	RANK_RESULT(symcclAllReduce(&x, &y, 1, symcclInt32, op, c, NULL), symcclInvalidArgument);
	RANK_OK(symcclAllReduce(&x, &y, 1, symcclInt32, op2, c, NULL));
	RANK_CHECK(y == 70 * n, "%d", y);
	RANK_RESULT(
		symcclRedOpCreatePreMulSum(&other, NULL, symcclInt32, symcclScalarHostImmediate, c),
		symcclInvalidArgument);
	RANK_RESULT(symcclRedOpCreatePreMulSum(NULL, &x, symcclInt32, symcclScalarHostImmediate, c),
		symcclInvalidArgument);
	RANK_RESULT(symcclRedOpCreatePreMulSum(
			    &other, &x, symcclNumTypes, symcclScalarHostImmediate, c),
		symcclInvalidArgument);
	RANK_RESULT(symcclRedOpCreatePreMulSum(&other, &x, symcclInt32, symcclScalarDevice, c),
		symcclInvalidUsage);
	/* One not given back goes with its communicator. */
	RANK_OK(symcclCommDestroy(c));
	RANK_OK(symcclCommDestroy(d));
	return 0;
}

Test(allreduce, operators)
{
	run(2, 2, operators, NULL);
	run(3, 1, operators, NULL);
}

/* ---- What is wrong --------------------------------------------------------------------------- */

static int bad_arguments(int rank, int n, void *arg)
{
	int32_t x = 1, y = 0;
	symcclComm_t c;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_RESULT(symcclAllReduce(NULL, &y, 1, symcclInt32, symcclSum, c, NULL),
		symcclInvalidArgument);
	RANK_CHECK(strstr(symcclGetLastError(c), "sendbuff"), "%s", symcclGetLastError(c));
	RANK_RESULT(symcclAllReduce(&x, NULL, 1, symcclInt32, symcclSum, c, NULL),
		symcclInvalidArgument);
	RANK_RESULT(symcclAllReduce(&x, &y, 1, symcclNumTypes, symcclSum, c, NULL),
		symcclInvalidArgument);
	RANK_RESULT(symcclAllReduce(&x, &y, 1, symcclInt32, (symcclRedOp_t)-1, c, NULL),
		symcclInvalidArgument);
	RANK_RESULT(symcclReduceScatter(&x, &y, 1, symcclInt32, symcclNumOps, c, NULL),
		symcclInvalidArgument);
	RANK_RESULT(symcclAllReduce(&x, &y, SIZE_MAX / 2, symcclInt32, symcclSum, c, NULL),
		symcclInvalidArgument);
	RANK_RESULT(symcclAllReduce(&x, &y, 1, symcclInt32, symcclSum, NULL, NULL),
		symcclInvalidArgument);
	/* Nothing of that has done harm. */
	RANK_OK(symcclAllReduce(NULL, NULL, 0, symcclInt32, symcclSum, c, NULL));
	RANK_OK(symcclAllReduce(&x, &y, 1, symcclInt32, symcclSum, c, NULL));
	RANK_CHECK(y == n, "%d", y);
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(allreduce, bad_arguments)
{
	run(2, 2, bad_arguments, NULL);
}

/* Ranks that do not make the same call: somebody says so, nobody hangs. */
static int calls_differ(int rank, int n, void *arg)
{
	static const char *const say[] = {"max", "uint32", "ReduceScatter", "pre-multiplied"};
	int kind = *(int *)arg, odd = rank == 1;
	uint32_t x[8] = {0}, y[8] = {0}, one_ = 1;
	symcclRedOp_t op = odd && kind == 0 ? symcclMax : symcclSum;
	symcclComm_t c;
	symcclResult_t e;

	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclBarrier(c, NULL));
	if (kind == 3 && odd)
		RANK_OK(symcclRedOpCreatePreMulSum(
			&op, &one_, symcclInt32, symcclScalarHostImmediate, c));
	if (kind == 2 && odd)
		e = symcclReduceScatter(x, y, 1, symcclInt32, op, c, NULL);
	else
		e = symcclAllReduce(
			x, y, 1, kind == 1 && odd ? symcclUint32 : symcclInt32, op, c, NULL);
	if (e == symcclSuccess) /* it may only have noticed afterwards */
		e = symcclBarrier(c, NULL);
	RANK_CHECK(e == symcclInvalidUsage, "kind %d: %s", kind, error_name(e));
	RANK_CHECK(strstr(symcclGetLastError(c), say[kind]), "%s", symcclGetLastError(c));
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(allreduce, calls_differ)
{
	for (int kind = 0; kind < 4; kind++)
		run(2, 2, calls_differ, &kind);
}

/* ---- Several communicators, several ranks ---------------------------------------------------- */

static int interleaved(int rank, int n, void *arg)
{
	symcclComm_t c[2];
	struct bufs b[2];

	(void)arg;
	for (int k = 0; k < 2; k++) {
		RANK_TRY(join(rank, n, &c[k]));
		RANK_TRY(bufs_make(c[k], n, &b[k]));
	}
	for (uint64_t i = 0; i < 100; i++) {
		uint64_t s = mix64(test_seed(), i);
		int k = (int)(s & 1), kind = (int)(s >> 1 & 3) % 3;

		RANK_TRY(one(c[k], rank, n, &b[k], b[k].send[kind], b[k].recv[kind],
			(s >> 8) % (s >> 7 & 1 ? 3000 : 20),
			(symcclDataType_t)((s >> 32) % symcclNumTypes),
			(int)((s >> 40) % (symcclNumOps + 1)), 0, s));
	}
	for (int k = 0; k < 2; k++) {
		RANK_OK(symcclCommDestroy(c[k]));
		bufs_free(n, &b[k]);
	}
	return 0;
}

Test(allreduce, two_communicators)
{
	run(2, 2, interleaved, NULL);
	run(4, 1, interleaved, NULL);
}

/* All ranks of one thread, in groups of two calls each. */
static int one_thread(int rank, int n, void *arg)
{
	enum { N = 3, COUNT = 5000 };
	static int32_t x[N][COUNT], y[N][COUNT], z[N][COUNT];
	symcclRedOp_t op[N];
	symcclUniqueId id;
	symcclComm_t c[N];

	(void)rank, (void)n, (void)arg;
	RANK_OK(symcclGetUniqueId(&id));
	RANK_OK(symcclGroupStart());
	for (int i = 0; i < N; i++)
		RANK_OK(symcclCommInitRank(&c[i], N, id, i));
	RANK_OK(symcclGroupEnd());
	for (int i = 0; i < N; i++) {
		int32_t by = i + 1;

		for (int k = 0; k < COUNT; k++)
			x[i][k] = k * (i + 1);
		RANK_OK(symcclRedOpCreatePreMulSum(
			&op[i], &by, symcclInt32, symcclScalarHostImmediate, c[i]));
	}
	RANK_OK(symcclGroupStart());
	for (int i = 0; i < N; i++) {
		RANK_OK(symcclAllReduce(x[i], y[i], COUNT, symcclInt32, op[i], c[i], NULL));
		RANK_OK(symcclAllReduce(x[i], z[i], COUNT, symcclInt32, symcclMax, c[i], NULL));
	}
	RANK_OK(symcclGroupEnd());
	for (int i = 0; i < N; i++) {
		for (int k = 0; k < COUNT; k++)
			RANK_CHECK(y[i][k] == 14 * k && z[i][k] == 3 * k, "rank %d: %d", i, k);
		RANK_OK(symcclCommDestroy(c[i]));
	}
	return 0;
}

Test(allreduce, group_of_one_thread)
{
	run(1, 1, one_thread, NULL);
}

/* ---- Large ----------------------------------------------------------------------------------- */

static int large(int rank, int n, void *arg)
{
	size_t count = ((size_t)1 << 31) + 77;
	symcclComm_t c;
	symcclWindow_t w;
	unsigned char *p;

	RANK_TRY(join(rank, n, &c));
	if (*(int *)arg) {
		RANK_OK(symcclMemAlloc((void **)&p, count));
		RANK_OK(symcclCommWindowRegister(c, p, count, &w, SYMCCL_WIN_COLL_SYMMETRIC));
	} else {
		RANK_CHECK((p = malloc(count)) != NULL, "no memory");
	}
	for (size_t i = 0; i < count; i++)
		p[i] = (unsigned char)((i >> 13) + i * (size_t)(3 + rank));
	RANK_OK(symcclAllReduce(p, p, count, symcclInt8, symcclSum, c, NULL));
	for (size_t i = 0; i < count; i++)
		RANK_CHECK(p[i] == (unsigned char)(2 * (i >> 13) + i * 7), "byte %zu", i);
	RANK_OK(symcclCommDestroy(c));
	if (*(int *)arg)
		RANK_OK(symcclMemFree(p));
	else
		free(p);
	return 0;
}

Test(allreduce, beyond_2_gib, .timeout = 300)
{
	const char *full = getenv("SYMCCL_TEST_FULL");

	if (!full || strcmp(full, "1") != 0)
		cr_skip_test("SYMCCL_TEST_FULL=1 runs it");
	for (int window = 0; window < 2; window++)
		run(2, 2, large, &window);
}
