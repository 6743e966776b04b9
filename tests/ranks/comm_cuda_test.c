/*
 * Communicators on the CUDA backend over the driver double: the library's host code as it is, and
 * its kernels on threads of the CPU (fakecuda/kernels.cc). What it launches, in which order, across
 * streams and graphs, and what becomes of it when a driver call fails.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cuda/driver.h"
#include "coll/coll.h"
#include "fakecuda/fakecuda.h"
#include "mem.h"
#include "oracle.h"
#include "params.h"
#include "ranks.h"
#include "util.h"

TestSuite(comm_cuda, .timeout = 140);

enum { LOCAL_MAX = 4, WORLD_MAX = 9 };
#define ROOM ((size_t)8 << 20)

FAKE_IMAGES

struct shape {
	int procs, local;
	const char *devices;
};

struct member {
	int rank, device;
	symcclComm_t comm;
	CUstream stream[2];
	char *buf[3]; /* two windows, plain memory */
	symcclWindow_t win[2];
};
struct rig {
	int nranks, nlocal;
	struct member m[LOCAL_MAX];
};

static int no_cuda_error(CUresult r, const char *what)
{
	RANK_CHECK(r == CUDA_SUCCESS, "%s: %d", what, (int)r);
	return 0;
}
#define CU_OK(call) RANK_TRY(no_cuda_error((call), #call))

static CUdeviceptr dev(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

/* The process's side of it: the double, streams, memory. */
static int rig_start(struct rig *g, int proc, const struct shape *s)
{
	CUdeviceptr p;

	setenv("FAKECUDA_DEVICES", s->devices, 1);
	setenv("FAKECUDA_ASYNC", "1", 1);
	setenv("SYMCCL_DEVICE", "cuda", 1);
	setenv("SYMCCL_WIN_STRIDE", "256M", 1);
	setenv("SYMCCL_OP_TIMEOUT", "30", 1);
	setenv("SYMCCL_DEBUG", "none", 1);
	params_reload();
	fake_kernels_register();
	g->nlocal = s->local;
	g->nranks = s->procs * s->local;
	RANK_CHECK(cuda_open() == NULL, "%s", cuda_open());
	for (int l = 0; l < g->nlocal; l++) {
		struct member *m = &g->m[l];

		m->rank = proc * s->local + l;
		m->device = m->rank % cuda_devices()->n;
		RANK_OK(cu_bind_thread(m->device));
		for (int i = 0; i < 2; i++) {
			CU_OK(cu.StreamCreate(&m->stream[i], CU_STREAM_NON_BLOCKING));
			RANK_OK(symcclMemAlloc((void **)&m->buf[i], ROOM));
		}
		CU_OK(cu.MemAlloc(&p, ROOM));
		m->buf[2] = (char *)(uintptr_t)p;
	}
	return 0;
}

static int rig_stop(struct rig *g)
{
	for (int l = 0; l < g->nlocal; l++) {
		struct member *m = &g->m[l];

		RANK_OK(cu_bind_thread(m->device));
		for (int i = 0; i < 2; i++) {
			CU_OK(cu.StreamDestroy(m->stream[i]));
			RANK_OK(symcclMemFree(m->buf[i]));
		}
		CU_OK(cu.MemFree(dev(m->buf[2])));
	}
	return 0;
}

static symcclResult_t join(struct rig *g, symcclUniqueId id)
{
	symcclResult_t e = symcclGroupStart();

	for (int l = 0; l < g->nlocal && e == symcclSuccess; l++) {
		e = cu_bind_thread(g->m[l].device);
		if (e == symcclSuccess)
			e = symcclCommInitRank(&g->m[l].comm, g->nranks, id, g->m[l].rank);
	}
	return e == symcclSuccess ? symcclGroupEnd() : e;
}

static symcclResult_t enroll(struct rig *g)
{
	symcclResult_t e = symcclGroupStart();

	for (int l = 0; l < g->nlocal; l++)
		for (int i = 0; i < 2 && e == symcclSuccess; i++)
			e = symcclCommWindowRegister(g->m[l].comm, g->m[l].buf[i], ROOM,
				&g->m[l].win[i], SYMCCL_WIN_COLL_SYMMETRIC);
	return e == symcclSuccess ? symcclGroupEnd() : e;
}

static int new_id(int proc, symcclUniqueId *id)
{
	if (proc == 0)
		RANK_OK(symcclGetUniqueId(id));
	RANK_BCAST(id, sizeof(*id));
	return 0;
}

static int rig_open(struct rig *g, int proc, const struct shape *s)
{
	symcclUniqueId id;

	RANK_TRY(rig_start(g, proc, s));
	RANK_TRY(new_id(proc, &id));
	RANK_OK(join(g, id));
	RANK_OK(enroll(g));
	return 0;
}

static int rig_close(struct rig *g)
{
	for (int l = 0; l < g->nlocal; l++)
		RANK_OK(symcclCommDestroy(g->m[l].comm));
	return rig_stop(g);
}

static int sync_all(struct rig *g)
{
	for (int l = 0; l < g->nlocal; l++) {
		symcclResult_t e;

		RANK_OK(cu_bind_thread(g->m[l].device));
		for (int i = 0; i < 2; i++)
			CU_OK(cu.StreamSynchronize(g->m[l].stream[i]));
		RANK_OK(symcclCommGetAsyncError(g->m[l].comm, &e));
		RANK_CHECK(e == symcclSuccess, "%s", symcclGetLastError(g->m[l].comm));
	}
	return 0;
}

/* ---- One call -------------------------------------------------------------------------------- */

struct one {
	symcclFunc_t func;
	symcclDataType_t type;
	symcclRedOp_t op;
	size_t count, at; /* at: byte offset in both buffers */
	int from, to, in_place;
};

static void extents(const struct one *o, int nranks, size_t *send, size_t *recv)
{
	size_t n = o->count * coll_type_size(o->type);

	*send = o->func == symcclFuncReduceScatter ? n * (size_t)nranks : n;
	*recv = o->func == symcclFuncAllGather ? n * (size_t)nranks : n;
}

static void places(const struct one *o, const struct member *m, char **send, char **recv)
{
	size_t n = o->count * coll_type_size(o->type);

	*send = m->buf[o->from] + o->at;
	*recv = m->buf[o->to] + o->at;
	if (!o->in_place)
		return;
	if (o->func == symcclFuncReduceScatter)
		*recv = *send + (size_t)m->rank * n;
	else
		*send = *recv + (o->func == symcclFuncAllGather ? (size_t)m->rank * n : 0);
}

static symcclResult_t enqueue(const struct one *o, struct member *m, CUstream stream)
{
	symcclStream_t s = (symcclStream_t)stream;
	char *send, *recv;

	places(o, m, &send, &recv);
	switch (o->func) {
	case symcclFuncAllGather:
		return symcclAllGather(send, recv, o->count, o->type, m->comm, s);
	case symcclFuncAllReduce:
		return symcclAllReduce(send, recv, o->count, o->type, o->op, m->comm, s);
	case symcclFuncReduceScatter:
		return symcclReduceScatter(send, recv, o->count, o->type, o->op, m->comm, s);
	default:
		return symcclBarrier(m->comm, s);
	}
}

static int enqueue_all(struct rig *g, const struct one *o, int which)
{
	RANK_OK(symcclGroupStart());
	for (int l = 0; l < g->nlocal; l++) {
		RANK_OK(cu_bind_thread(g->m[l].device));
		RANK_OK(enqueue(o, &g->m[l], g->m[l].stream[which]));
	}
	RANK_OK(symcclGroupEnd());
	return 0;
}

static void load(struct rig *g, const struct one *o, uint64_t seed)
{
	size_t send, recv;
	char *s, *d;

	extents(o, g->nranks, &send, &recv);
	for (int l = 0; l < g->nlocal; l++) {
		places(o, &g->m[l], &s, &d);
		poison(d, recv);
		fill_type(
			s, send / coll_type_size(o->type), o->type, seed + (uint64_t)g->m[l].rank);
	}
}

static int compare(struct rig *g, const struct one *o, uint64_t seed)
{
	size_t send, recv, es = coll_type_size(o->type);
	const void *src[WORLD_MAX];
	char *want, *in, *s, *d;

	extents(o, g->nranks, &send, &recv);
	in = malloc((size_t)g->nranks * send);
	want = malloc((size_t)g->nranks * send);
	RANK_CHECK(in != NULL && want != NULL);
	for (int r = 0; r < g->nranks; r++) {
		src[r] = in + (size_t)r * send;
		fill_type(in + (size_t)r * send, send / es, o->type, seed + (uint64_t)r);
	}
	if (o->func == symcclFuncAllGather)
		memcpy(want, in, recv);
	else
		oracle_reduce(o->type, o->op, src, g->nranks, NULL, send / es, want);
	for (int l = 0; l < g->nlocal; l++) {
		size_t part = o->func == symcclFuncReduceScatter ? (size_t)g->m[l].rank * recv : 0;

		places(o, &g->m[l], &s, &d);
		for (size_t k = 0; k < recv; k++)
			RANK_CHECK(d[k] == want[part + k],
				"seed %#lx func %d type %d op %d count %zu at %zu buffers %d %d in "
				"place %d: "
				"rank %d byte %zu",
				(unsigned long)seed, o->func, o->type, o->op, o->count, o->at,
				o->from, o->to, o->in_place, g->m[l].rank, k);
	}
	free(in);
	free(want);
	return 0;
}

static struct one random_call(uint64_t seed, int nranks)
{
	static const symcclFunc_t funcs[] = {
		symcclFuncAllGather, symcclFuncAllReduce, symcclFuncReduceScatter};
	uint64_t r = mix64(seed, 0), size = mix64(seed, 1);
	struct one o = {.func = funcs[r % 3],
		.type = (symcclDataType_t)(r / 3 % symcclNumTypes),
		.op = (symcclRedOp_t)(r / 97 % symcclNumOps),
		.from = (int)(r / 1000 % 3),
		.to = (int)(r / 3000 % 3),
		.in_place = r / 10000 % 4 == 0};
	size_t es = coll_type_size(o.type);

	o.at = 256 + (r / 100000 % 2 ? mix64(seed, 2) % 64 * es : 0);
	if (o.in_place)
		o.from = o.to;
	else if (o.from == o.to)
		o.from = (o.to + 1) % 3;
	/* Mostly few; packets; direct kernels; and beyond what packets take. */
	o.count = 1 + size / 8 %
			      (size % 8 < 4          ? 200
				      : size % 8 < 7 ? 20000 / es
						     : ((size_t)3 << 20) / es / (size_t)nranks);
	return o;
}

/* ---- Bits ------------------------------------------------------------------------------------ */

static int random_calls(int proc, int n, void *arg)
{
	const struct shape *s = arg;
	struct rig g = {0};

	RANK_CHECK(n == s->procs);
	RANK_TRY(rig_open(&g, proc, s));
	for (uint64_t i = 0; i < 60; i++) {
		uint64_t seed = test_seed() + 1000 * i;
		struct one o = random_call(seed, g.nranks);

		ranks_note("call %d", (int)i);
		load(&g, &o, seed);
		RANK_TRY(enqueue_all(&g, &o, (int)i & 1));
		RANK_TRY(sync_all(&g));
		RANK_TRY(compare(&g, &o, seed));
	}
	RANK_BARRIER();
	return rig_close(&g);
}

static void run(const struct shape *s, rank_fn *fn)
{
	char err[1500];

	test_seed();
	cr_assert_eq(ranks_run(s->procs, 120, fn, (void *)s, err, sizeof(err)), 0,
		"%d processes of %d ranks on %s GPUs: %s", s->procs, s->local, s->devices, err);
}

Test(comm_cuda, bits_between_processes)
{
	run(&(struct shape){2, 1, "1"}, random_calls);
}

Test(comm_cuda, bits_in_one_process)
{
	run(&(struct shape){1, 3, "2"}, random_calls);
}

Test(comm_cuda, bits_mixed)
{
	run(&(struct shape){2, 2, "2"}, random_calls);
}

static void dawdle(void *arg)
{
	usleep((useconds_t)(uintptr_t)arg);
}

/* Staged kernels whatever the buffers, with several chunks a CTA: three calls one after the other,
 * for which one rank is late. */
static int staged_calls(int proc, int n, void *arg)
{
	struct rig g = {0};
	symcclPlan_t plan;

	(void)n;
	setenv("SYMCCL_ALGO", "allreduce/staged,allgather/staged,reducescatter/staged", 1);
	RANK_TRY(rig_open(&g, proc, arg));
	for (uint64_t i = 0; i < 8; i++) {
		uint64_t seed = test_seed() + 1000 * i;
		struct one o[3];
		char *s, *d;

		ranks_note("round %d", (int)i);
		for (uint64_t k = 0; k < 3; k++) {
			int large = i == 3 && k == 1;
			size_t es, most = (size_t)(large ? 2700 : i % 2 ? 200 : 20) << 10;

			o[k] = random_call(seed + k, g.nranks);
			es = coll_type_size(o[k].type);
			if (o[k].func != symcclFuncAllReduce)
				most /= (size_t)g.nranks;
			o[k].count = most / es;
			o[k].count -= mix64(seed + k, 7) % (o[k].count / (large ? 16 : 1));
			o[k].at += k * (ROOM / 3 & ~(size_t)255);
			load(&g, &o[k], seed + 100 * k);
			places(&o[k], &g.m[0], &s, &d);
			RANK_OK(symcclQueryPlan(g.m[0].comm, o[k].func, s, d, o[k].count, o[k].type,
				o[k].op, &plan));
			RANK_CHECK(strstr(plan.algorithm, "/staged") != NULL, "%s", plan.algorithm);
		}
		if ((int)(i % (uint64_t)g.nranks) / g.nlocal == proc)
			CU_OK(cu.LaunchHostFunc(g.m[(int)i % g.nlocal].stream[i & 1], dawdle,
				(void *)(uintptr_t)3000));
		for (uint64_t k = 0; k < 3; k++)
			RANK_TRY(enqueue_all(&g, &o[k], (int)i & 1));
		RANK_TRY(sync_all(&g));
		for (uint64_t k = 0; k < 3; k++)
			RANK_TRY(compare(&g, &o[k], seed + 100 * k));
	}
	RANK_BARRIER();
	return rig_close(&g);
}

Test(comm_cuda, staged_between_processes)
{
	run(&(struct shape){2, 1, "1"}, staged_calls);
}

Test(comm_cuda, staged_by_nine)
{
	run(&(struct shape){3, 3, "3"}, staged_calls);
}

/* ---- Order ----------------------------------------------------------------------------------- */

/* b = sum of a, a = sum of b, and so on: each step reads what the one before it wrote. */
#define ORDER_COUNT 300
static const struct one there = {
	symcclFuncAllReduce, symcclInt64, symcclSum, ORDER_COUNT, 256, 0, 1, 0};
static const struct one back = {
	symcclFuncAllReduce, symcclInt64, symcclSum, ORDER_COUNT, 256, 1, 0, 0};

/* A call on one of the streams after a while, which must not let a later one pass. */
static int late_call(struct rig *g, const struct one *o, int which)
{
	for (int l = 0; l < g->nlocal; l++) {
		RANK_OK(cu_bind_thread(g->m[l].device));
		CU_OK(cu.LaunchHostFunc(
			g->m[l].stream[which], dawdle, (void *)(uintptr_t)(3000 * (1 + l))));
	}
	return enqueue_all(g, o, which);
}

/* Captured: there and back, the second call on the stream that the first began or, when fork, on
 * another one of the same capture. */
static int capture(struct rig *g, int fork, CUgraphExec *exec)
{
	for (int l = 0; l < g->nlocal; l++) {
		struct member *m = &g->m[l];
		CUstream first = m->stream[0], second = fork ? m->stream[1] : first;
		CUevent e;
		CUgraph graph;

		RANK_OK(cu_bind_thread(m->device));
		CU_OK(cu.EventCreate(&e, CU_EVENT_DISABLE_TIMING));
		CU_OK(cu.StreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
		if (fork) { /* joins before the call: only the library orders the two */
			CU_OK(cu.EventRecord(e, first));
			CU_OK(cu.StreamWaitEvent(second, e, 0));
		}
		CU_OK(cu.LaunchHostFunc(first, dawdle, (void *)2000));
		RANK_OK(enqueue(&there, m, first));
		RANK_OK(enqueue(&back, m, second));
		if (fork) {
			CU_OK(cu.EventRecord(e, second));
			CU_OK(cu.StreamWaitEvent(first, e, 0));
		}
		CU_OK(cu.StreamEndCapture(first, &graph));
		CU_OK(cu.GraphInstantiateWithFlags(&exec[l], graph, 0));
		CU_OK(cu.GraphDestroy(graph));
		CU_OK(cu.EventDestroy(e));
	}
	return 0;
}

static int replay(struct rig *g, CUgraphExec *exec, int which)
{
	for (int l = 0; l < g->nlocal; l++) {
		RANK_OK(cu_bind_thread(g->m[l].device));
		CU_OK(cu.GraphLaunch(exec[l], g->m[l].stream[which]));
	}
	return 0;
}

static int set_ones(struct rig *g)
{
	for (int l = 0; l < g->nlocal; l++)
		for (int i = 0; i < ORDER_COUNT; i++)
			((int64_t *)(g->m[l].buf[0] + 256))[i] = 1;
	return 0;
}

static int check_power(struct rig *g, int which, int calls)
{
	int64_t want = 1;

	while (calls-- > 0)
		want *= g->nranks;
	RANK_TRY(sync_all(g));
	for (int l = 0; l < g->nlocal; l++)
		for (int i = 0; i < ORDER_COUNT; i++) {
			int64_t got = ((int64_t *)(g->m[l].buf[which] + 256))[i];

			RANK_CHECK(got == want, "rank %d element %d: %lld, not %lld", g->m[l].rank,
				i, (long long)got, (long long)want);
		}
	return 0;
}

static int streams_and_graphs(int proc, int n, void *arg)
{
	CUgraphExec straight[LOCAL_MAX], forked[LOCAL_MAX];
	struct rig g = {0};

	(void)n;
	RANK_TRY(rig_open(&g, proc, arg));
	/* Eager calls only: from stream to stream. */
	set_ones(&g);
	RANK_TRY(late_call(&g, &there, 0));
	RANK_TRY(enqueue_all(&g, &back, 1));
	RANK_TRY(late_call(&g, &there, 0));
	RANK_TRY(enqueue_all(&g, &back, 1));
	RANK_TRY(check_power(&g, 0, 4));
	RANK_BARRIER();
	RANK_TRY(capture(&g, 0, straight));
	RANK_TRY(capture(&g, 1, forked));
	for (int round = 0; round < 3; round++) {
		set_ones(&g);
		RANK_BARRIER();
		/* Eager on one stream, a replay on the other, eager again where it was before. */
		RANK_TRY(late_call(&g, &there, 0));
		RANK_TRY(late_call(&g, &back, 0));
		RANK_TRY(replay(&g, round % 2 ? forked : straight, 1));
		RANK_TRY(enqueue_all(&g, &there, 0));
		RANK_TRY(enqueue_all(&g, &back, 0));
		/* Two graphs on two streams, eager last. */
		RANK_TRY(replay(&g, straight, 0));
		RANK_TRY(replay(&g, forked, 1));
		RANK_TRY(enqueue_all(&g, &there, 0));
		RANK_TRY(check_power(&g, 1, 11));
		RANK_BARRIER();
	}
	for (int l = 0; l < g.nlocal; l++) {
		CU_OK(cu.GraphExecDestroy(straight[l]));
		CU_OK(cu.GraphExecDestroy(forked[l]));
	}
	return rig_close(&g);
}

Test(comm_cuda, order_in_one_process)
{
	run(&(struct shape){1, 2, "1"}, streams_and_graphs);
}

Test(comm_cuda, order_between_processes)
{
	run(&(struct shape){2, 1, "2"}, streams_and_graphs);
}

/* ---- Loads ------------------------------------------------------------------------------------
 */

/* Every type and op by the all-reduce that loads all of everybody's; in place it may not, since
 * peers still read what would be written. */
static int by_loads(int proc, int n, void *arg)
{
	struct rig g = {0};

	(void)n;
	setenv("SYMCCL_ALGO", "allreduce/load", 1);
	RANK_TRY(rig_open(&g, proc, arg));
	for (uint64_t i = 0; i < (uint64_t)symcclNumTypes * symcclNumOps; i++) {
		uint64_t seed = test_seed() + 1000 * i, r = mix64(seed, 0);
		struct one o = {.func = symcclFuncAllReduce,
			.type = (symcclDataType_t)(i % symcclNumTypes),
			.op = (symcclRedOp_t)(i / symcclNumTypes),
			.to = 1,
			.in_place = r % 8 == 0};
		symcclPlan_t plan;
		char *s, *d;

		o.at = 256 + r / 8 % 16 * coll_type_size(o.type);
		o.count = 1 + r / 128 % 3000;
		if (o.in_place)
			o.from = o.to;
		places(&o, &g.m[0], &s, &d);
		RANK_OK(symcclQueryPlan(g.m[0].comm, o.func, s, d, o.count, o.type, o.op, &plan));
		RANK_CHECK((strcmp(plan.algorithm, "allreduce/load") == 0) == !o.in_place, "%s",
			plan.algorithm);
		load(&g, &o, seed);
		RANK_TRY(enqueue_all(&g, &o, (int)i & 1));
		RANK_TRY(sync_all(&g));
		RANK_TRY(compare(&g, &o, seed));
	}
	RANK_BARRIER();
	return rig_close(&g);
}

Test(comm_cuda, loads)
{
	run(&(struct shape){2, 1, "2"}, by_loads);
	run(&(struct shape){1, 3, "1"}, by_loads);
}

/* ---- Copy engines ---------------------------------------------------------------------------- */

/* Forced, in place and not, eager and captured, between other calls. */
static int by_copies(int proc, int n, void *arg)
{
	struct one o = {symcclFuncAllGather, symcclInt32, symcclSum, 3001, 256, 0, 1, 0};
	/* Through scratch. */
	static const struct one plain = {
		symcclFuncAllGather, symcclInt32, symcclSum, 150000, 256, 2, 2, 1};
	struct rig g = {0};

	(void)n;
	setenv("SYMCCL_ALGO", "allgather/copy", 1);
	RANK_TRY(rig_open(&g, proc, arg));
	load(&g, &plain, test_seed());
	RANK_TRY(enqueue_all(&g, &plain, 0));
	RANK_TRY(sync_all(&g));
	RANK_TRY(compare(&g, &plain, test_seed()));
	for (int i = 0; i < 8; i++) {
		uint64_t seed = test_seed() + 100 * (uint64_t)i;
		symcclPlan_t plan;
		CUgraphExec exec[LOCAL_MAX];
		char *s, *d;

		o.in_place = i & 1;
		o.from = i & 2 ? 2 : 0; /* the input need not be a window */
		places(&o, &g.m[0], &s, &d);
		RANK_OK(symcclQueryPlan(g.m[0].comm, o.func, s, d, o.count, o.type, o.op, &plan));
		RANK_CHECK(strcmp(plan.algorithm, "allgather/copy") == 0, "%s", plan.algorithm);
		load(&g, &o, seed);
		if (i < 4) {
			RANK_TRY(late_call(&g, &o, i & 1));
		} else {
			for (int l = 0; l < g.nlocal; l++) {
				CUstream st = g.m[l].stream[0];
				CUgraph graph;

				RANK_OK(cu_bind_thread(g.m[l].device));
				CU_OK(cu.StreamBeginCapture(
					st, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
				RANK_OK(enqueue(&o, &g.m[l], st));
				CU_OK(cu.StreamEndCapture(st, &graph));
				CU_OK(cu.GraphInstantiateWithFlags(&exec[l], graph, 0));
				CU_OK(cu.GraphDestroy(graph));
			}
			RANK_TRY(replay(&g, exec, 1));
			RANK_TRY(replay(&g, exec, 0));
		}
		RANK_TRY(sync_all(&g));
		RANK_TRY(compare(&g, &o, seed));
		for (int l = 0; i >= 4 && l < g.nlocal; l++)
			CU_OK(cu.GraphExecDestroy(exec[l]));
	}
	RANK_BARRIER();
	return rig_close(&g);
}

Test(comm_cuda, copy_engines)
{
	run(&(struct shape){2, 2, "2"}, by_copies);
}

/* ---- Memory of cudaMalloc ----------------------------------------------------------------------
 */

/* Refused where the flag promises what it cannot be, plain without; calls take it either way. */
static int plain_memory(int proc, int n, void *arg)
{
	static const struct one o = {
		symcclFuncAllReduce, symcclFloat32, symcclSum, 5000, 256, 2, 1, 0};
	struct rig g = {0};
	struct member *m = &g.m[0];
	symcclWindow_t w = NULL;

	(void)n;
	RANK_TRY(rig_open(&g, proc, arg));
	RANK_RESULT(
		symcclCommWindowRegister(m->comm, m->buf[2], ROOM, &w, SYMCCL_WIN_COLL_SYMMETRIC),
		symcclInvalidUsage);
	RANK_CHECK(strstr(error_text(), "rank 0") != NULL &&
			   strstr(error_text(), "of cudaMalloc; take symcclMemAlloc") != NULL,
		"%s", error_text());
	for (int i = 0; i < 2; i++) {
		load(&g, &o, test_seed() + (uint64_t)i);
		RANK_TRY(enqueue_all(&g, &o, 0));
		RANK_TRY(sync_all(&g));
		RANK_TRY(compare(&g, &o, test_seed() + (uint64_t)i));
		if (i == 0)
			RANK_OK(symcclCommWindowRegister(m->comm, m->buf[2], ROOM, &w, 0));
	}
	RANK_OK(symcclCommWindowDeregister(m->comm, w));
	RANK_BARRIER();
	return rig_close(&g);
}

Test(comm_cuda, memory_of_cudamalloc)
{
	run(&(struct shape){2, 1, "2"}, plain_memory);
}

/* ---- GPUs that do not reach each other --------------------------------------------------------
 */

static int no_p2p(int proc, int n, void *arg)
{
	struct rig g = {0};
	symcclUniqueId id;

	(void)n;
	setenv("FAKECUDA_P2P", "10/01", 1);
	RANK_TRY(rig_start(&g, proc, arg));
	RANK_TRY(new_id(proc, &id));
	RANK_RESULT(symcclCommInitRank(&g.m[0].comm, g.nranks, id, proc), symcclInvalidUsage);
	RANK_CHECK(strstr(error_text(), "no P2P access to GPU") != NULL &&
			   strstr(error_text(), "several nodes are not supported yet") != NULL,
		"%s", error_text());
	return rig_stop(&g);
}

Test(comm_cuda, no_p2p)
{
	run(&(struct shape){2, 1, "2"}, no_p2p);
}

/* The driver says that all is well. Ranks 0 and 2 share a GPU. */
static int lie(int proc, const char *how, const char *sentence, void *arg)
{
	struct rig g = {0};
	symcclUniqueId id;

	setenv("FAKECUDA_LIE", how, 1);
	RANK_TRY(rig_start(&g, proc, arg));
	RANK_TRY(new_id(proc, &id));
	RANK_OK(symcclCommInitRank(&g.m[0].comm, g.nranks, id, proc));
	RANK_RESULT(symcclCommWindowRegister(g.m[0].comm, g.m[0].buf[0], ROOM, &g.m[0].win[0],
			    SYMCCL_WIN_COLL_SYMMETRIC),
		symcclInvalidUsage);
	RANK_CHECK(strstr(error_text(), sentence) != NULL &&
			   strstr(error_text(), "several nodes are not supported yet") != NULL,
		"%s", error_text());
	RANK_BARRIER();
	RANK_OK(symcclCommDestroy(g.m[0].comm));
	return rig_stop(&g);
}

static int lost(int proc, int n, void *arg)
{
	(void)n;
	return lie(proc, "w",
		"what rank 1's GPU wrote did not arrive in the memory of rank 0's: P2P", arg);
}

static int misread(int proc, int n, void *arg)
{
	(void)n;
	return lie(proc, "r",
		"rank 0's GPU read something else than what is in the memory of rank 1's: P2P",
		arg);
}

Test(comm_cuda, p2p_that_loses_writes)
{
	run(&(struct shape){3, 1, "2"}, lost);
}

Test(comm_cuda, p2p_that_reads_wrong)
{
	run(&(struct shape){3, 1, "2"}, misread);
}

/* ---- Every driver call fails once ---------------------------------------------------------- */

/* The n-th of the driver calls that the library makes fails; those of the test do not count. */
static struct {
	fakecuda_fail_at_t fail_at;
	fakecuda_calls_t calls;
	fakecuda_failed_t failed;
	fakecuda_leaks_t leaks;
	long n, made;
	char name[64];
} inject;

static void inject_on(void)
{
	inject.fail_at(inject.n > inject.made ? inject.n - inject.made : 0, CUDA_ERROR_UNKNOWN, 0);
}

static void inject_off(void)
{
	inject.made += inject.calls();
	if (inject.failed()[0] != '\0')
		snprintf(inject.name, sizeof(inject.name), "%s", inject.failed());
	inject.fail_at(0, 0, 0);
}

#define INJECTED(call) \
	({ \
		symcclResult_t e_; \
		inject_on(); \
		e_ = (call); \
		inject_off(); \
		e_; \
	})

/* What undoes cannot report; where no context or device is told there is a substitute. */
static int tolerated(const char *name)
{
	static const char *const names[] = {"", "cuMemRelease", "cuMemUnmap", "cuMemAddressFree",
		"cuThreadExchangeStreamCaptureMode", "cuCtxGetCurrent", "cuCtxGetDevice",
		"cuCtxSetCurrent", "cuMemFreeHost", "cuEventDestroy_v2", "cuEventSynchronize",
		"cuMemGetAllocationPropertiesFromHandle", "cuCtxPopCurrent_v2",
		"cuDeviceGetUuid_v2" /* a copy will tell */};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strcmp(name, names[i]) == 0)
			return 1;
	return 0;
}

static symcclResult_t calls_of(struct member *m)
{
	static const struct one large = {symcclFuncAllReduce, symcclInt64, symcclSum, 132000, 256,
		2, 0, 0}; /* from plain memory */
	static const struct one gather = {
		symcclFuncAllGather, symcclInt64, symcclSum, ORDER_COUNT, 1 << 20, 0, 2, 0};
	CUgraph graph = NULL;
	symcclResult_t e;

	e = INJECTED(enqueue(&there, m, m->stream[0]));
	if (e == symcclSuccess)
		e = INJECTED(enqueue(&back, m, m->stream[1]));
	if (e == symcclSuccess)
		e = INJECTED(enqueue(&large, m, m->stream[0]));
	if (e == symcclSuccess && cu.StreamBeginCapture(m->stream[0],
					  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS) {
		e = INJECTED(enqueue(&there, m, m->stream[0]));
		if (e == symcclSuccess)
			e = INJECTED(enqueue(&gather, m, m->stream[0]));
		cu.StreamEndCapture(m->stream[0], &graph);
		if (graph != NULL)
			cu.GraphDestroy(graph);
	}
	if (e == symcclSuccess)
		e = INJECTED(enqueue(&gather, m, m->stream[1]));
	return e;
}

struct outcome {
	uint32_t ran_out;
	symcclResult_t e[2];
	char name[64];
};

static int trial(struct rig *g, int proc, int victim, long n, int *more)
{
	struct outcome *all = ranks_shared();
	struct member *m = &g->m[0];
	symcclResult_t e, async = symcclSuccess;
	char before[256], after[256];
	int open0 = inject.leaks(before, sizeof(before)), open1;
	symcclUniqueId id;

	RANK_TRY(new_id(proc, &id));
	m->comm = NULL;
	inject.n = proc == victim ? n : 0;
	inject.made = 0;
	inject.name[0] = '\0';
	e = INJECTED(symcclCommInitRank(&m->comm, g->nranks, id, m->rank));
	for (int i = 0; i < 2 && e == symcclSuccess; i++)
		e = INJECTED(symcclCommWindowRegister(
			m->comm, m->buf[i], ROOM, &m->win[i], SYMCCL_WIN_COLL_SYMMETRIC));
	if (e == symcclSuccess)
		e = calls_of(m);
	/* A bad argument is its own rank's affair, until that gives up. */
	if (e != symcclSuccess && strcmp(inject.name, "cuPointerGetAttribute") == 0) {
		RANK_OK(symcclCommAbort(m->comm));
		m->comm = NULL;
	}
	/* Whatever else happened, what was enqueued ends. */
	RANK_OK(cu_bind_thread(m->device));
	for (int i = 0; i < 2; i++)
		CU_OK(cu.StreamSynchronize(m->stream[i]));
	all->e[proc] = e;
	if (proc == victim)
		snprintf(all->name, sizeof(all->name), "%s", inject.name);
	RANK_BARRIER();
	/* Who noticed nothing while it enqueued is told afterwards. */
	for (int i = 0; i < 5000 && e == symcclSuccess && async == symcclSuccess &&
			all->e[!proc] != symcclSuccess;
		i++) {
		symcclCommGetAsyncError(m->comm, &async);
		usleep(1000);
	}
	if (all->e[victim] != symcclSuccess)
		RANK_CHECK(e != symcclSuccess || async != symcclSuccess,
			"call %ld, %s: rank %d heard nothing", n, all->name, proc);
	else
		RANK_CHECK(tolerated(all->name), "call %ld, %s, failed and nobody said so", n,
			all->name);
	if (m->comm != NULL)
		INJECTED(symcclCommDestroy(m->comm));
	if (proc == victim && inject.name[0] == '\0')
		all->ran_out = 1;
	open1 = inject.leaks(after, sizeof(after));
	/* Code stays loaded until the process ends. */
	open1 -= strstr(after, "libraries") != NULL && strstr(before, "libraries") == NULL;
	RANK_CHECK(open1 == open0, "call %ld, %s: open before: %s after: %s", n, inject.name,
		before, after);
	RANK_BARRIER();
	*more = !all->ran_out;
	RANK_BARRIER();
	return 0;
}

static int every_call(int proc, int n, void *arg)
{
	int more = 1, victim = (int)(test_seed() % 2);
	int step = getenv("SYMCCL_TEST_FULL") != NULL ? 1 : 4;
	struct outcome *all = ranks_shared();
	struct rig g = {0};
	long i;

	(void)n;
	RANK_TRY(rig_start(&g, proc, arg));
	inject.fail_at = (fakecuda_fail_at_t)fakecuda_hook("fakecuda_fail_at");
	inject.calls = (fakecuda_calls_t)fakecuda_hook("fakecuda_calls");
	inject.failed = (fakecuda_failed_t)fakecuda_hook("fakecuda_failed");
	inject.leaks = (fakecuda_leaks_t)fakecuda_hook("fakecuda_leaks");
	/* A stride through the start, with its hundreds of kernels, which a process loads once;
	 * then every call, or every fourth. */
	for (i = 1 + (long)(test_seed() % 7); more && i < 1000; i += 41) {
		ranks_note("call %ld, kernels not loaded", i);
		RANK_TRY(trial(&g, proc, victim, i, &more));
	}
	RANK_TRY(trial(&g, proc, victim, 1L << 30, &more));
	RANK_BARRIER();
	all->ran_out = 0;
	RANK_BARRIER();
	more = 1;
	for (i = 1 + (long)(test_seed() / 8 % (uint64_t)step); more; i += step) {
		ranks_note("call %ld", i);
		RANK_TRY(trial(&g, proc, victim, i, &more));
	}
	RANK_CHECK(i > 60, "only %ld calls", i);
	RANK_BARRIER();
	return rig_stop(&g);
}

Test(comm_cuda, every_call_fails)
{
	run(&(struct shape){2, 1, "2"}, every_call);
}
