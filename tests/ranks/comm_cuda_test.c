/*
 * Communicators on the CUDA backend over the driver double: the library's host code as it is, and
 * its kernels on threads of the CPU (fakecuda/kernels.cc). What it launches, and in which order,
 * across streams and graphs.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cuda_rig.h"
#include "mem.h"
#include "params.h"
#include "util.h"

TestSuite(comm_cuda, .timeout = 140);

FAKE_IMAGES

/* ---- Bits ------------------------------------------------------------------------------------ */

static int random_calls(int proc, int n, void *arg)
{
	const struct cuda_shape *s = arg;
	struct cuda_rig g = {0};

	RANK_CHECK(n == s->procs);
	RANK_TRY(cuda_rig_open(&g, proc, s));
	for (uint64_t i = 0; i < 60; i++) {
		uint64_t seed = test_seed() + 1000 * i;
		struct cuda_one o = cuda_one_random(seed, g.nranks);

		ranks_note("call %d", (int)i);
		cuda_rig_load(&g, &o, seed);
		RANK_TRY(cuda_rig_enqueue(&g, &o, (int)i & 1));
		RANK_TRY(cuda_rig_sync(&g));
		RANK_TRY(cuda_rig_compare(&g, &o, seed));
	}
	RANK_BARRIER();
	return cuda_rig_close(&g);
}

static void run(const struct cuda_shape *s, rank_fn *fn)
{
	char err[1500];

	test_seed();
	cr_assert_eq(ranks_run(s->procs, 120, fn, (void *)s, err, sizeof(err)), 0,
		"%d processes of %d ranks on %s GPUs: %s", s->procs, s->local, s->devices, err);
}

Test(comm_cuda, bits_between_processes)
{
	run(&(struct cuda_shape){2, 1, "1"}, random_calls);
}

Test(comm_cuda, bits_in_one_process)
{
	run(&(struct cuda_shape){1, 3, "2"}, random_calls);
}

Test(comm_cuda, bits_mixed)
{
	run(&(struct cuda_shape){2, 2, "2"}, random_calls);
}

static void dawdle(void *arg)
{
	usleep((useconds_t)(uintptr_t)arg);
}

/* Staged kernels whatever the buffers, with several chunks a CTA: three calls one after the other,
 * for which one rank is late. */
static int staged_calls(int proc, int n, void *arg)
{
	struct cuda_rig g = {0};
	symcclPlan_t plan;

	(void)n;
	setenv("SYMCCL_ALGO", "allreduce/staged,allgather/staged,reducescatter/staged", 1);
	RANK_TRY(cuda_rig_open(&g, proc, arg));
	for (uint64_t i = 0; i < 8; i++) {
		uint64_t seed = test_seed() + 1000 * i;
		struct cuda_one o[3];
		char *s, *d;

		ranks_note("round %d", (int)i);
		for (uint64_t k = 0; k < 3; k++) {
			int large = i == 3 && k == 1;
			size_t es, most = (size_t)(large ? 2700 : i % 2 ? 200 : 20) << 10;

			o[k] = cuda_one_random(seed + k, g.nranks);
			es = coll_type_size(o[k].type);
			if (o[k].func != symcclFuncAllReduce)
				most /= (size_t)g.nranks;
			o[k].count = most / es;
			o[k].count -= mix64(seed + k, 7) % (o[k].count / (large ? 16 : 1));
			o[k].at += k * (CUDA_RIG_ROOM / 3 & ~(size_t)255);
			cuda_rig_load(&g, &o[k], seed + 100 * k);
			cuda_one_places(&o[k], &g.m[0], &s, &d);
			RANK_OK(symcclQueryPlan(g.m[0].comm, o[k].func, s, d, o[k].count, o[k].type,
				o[k].op, &plan));
			RANK_CHECK(strstr(plan.algorithm, "/staged") != NULL, "%s", plan.algorithm);
		}
		if ((int)(i % (uint64_t)g.nranks) / g.nlocal == proc)
			CU_OK(cu.LaunchHostFunc(g.m[(int)i % g.nlocal].stream[i & 1], dawdle,
				(void *)(uintptr_t)3000));
		for (uint64_t k = 0; k < 3; k++)
			RANK_TRY(cuda_rig_enqueue(&g, &o[k], (int)i & 1));
		RANK_TRY(cuda_rig_sync(&g));
		for (uint64_t k = 0; k < 3; k++)
			RANK_TRY(cuda_rig_compare(&g, &o[k], seed + 100 * k));
	}
	RANK_BARRIER();
	return cuda_rig_close(&g);
}

Test(comm_cuda, staged_between_processes)
{
	run(&(struct cuda_shape){2, 1, "1"}, staged_calls);
}

Test(comm_cuda, staged_by_nine)
{
	run(&(struct cuda_shape){3, 3, "3"}, staged_calls);
}

/* ---- Order ----------------------------------------------------------------------------------- */

/* b = sum of a, a = sum of b, and so on: each step reads what the one before it wrote. */
#define ORDER_COUNT 300
static const struct cuda_one there = {
	symcclFuncAllReduce, symcclInt64, symcclSum, ORDER_COUNT, 256, 0, 1, 0};
static const struct cuda_one back = {
	symcclFuncAllReduce, symcclInt64, symcclSum, ORDER_COUNT, 256, 1, 0, 0};

/* A call on one of the streams after a while, which must not let a later one pass. */
static int late_call(struct cuda_rig *g, const struct cuda_one *o, int which)
{
	for (int l = 0; l < g->nlocal; l++) {
		RANK_OK(cu_bind_thread(g->m[l].device));
		CU_OK(cu.LaunchHostFunc(
			g->m[l].stream[which], dawdle, (void *)(uintptr_t)(3000 * (1 + l))));
	}
	return cuda_rig_enqueue(g, o, which);
}

/* Captured: there and back, the second call on the stream that the first began or, when fork, on
 * another one of the same capture. */
static int capture(struct cuda_rig *g, int fork, CUgraphExec *exec)
{
	for (int l = 0; l < g->nlocal; l++) {
		struct cuda_member *m = &g->m[l];
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
		RANK_OK(cuda_one_enqueue(&there, m, first));
		RANK_OK(cuda_one_enqueue(&back, m, second));
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

static int replay(struct cuda_rig *g, CUgraphExec *exec, int which)
{
	for (int l = 0; l < g->nlocal; l++) {
		RANK_OK(cu_bind_thread(g->m[l].device));
		CU_OK(cu.GraphLaunch(exec[l], g->m[l].stream[which]));
	}
	return 0;
}

static int set_ones(struct cuda_rig *g)
{
	for (int l = 0; l < g->nlocal; l++)
		for (int i = 0; i < ORDER_COUNT; i++)
			((int64_t *)(g->m[l].buf[0] + 256))[i] = 1;
	return 0;
}

static int check_power(struct cuda_rig *g, int which, int calls)
{
	int64_t want = 1;

	while (calls-- > 0)
		want *= g->nranks;
	RANK_TRY(cuda_rig_sync(g));
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
	CUgraphExec straight[CUDA_RIG_LOCAL], forked[CUDA_RIG_LOCAL];
	struct cuda_rig g = {0};

	(void)n;
	RANK_TRY(cuda_rig_open(&g, proc, arg));
	/* Eager calls only: from stream to stream. */
	set_ones(&g);
	RANK_TRY(late_call(&g, &there, 0));
	RANK_TRY(cuda_rig_enqueue(&g, &back, 1));
	RANK_TRY(late_call(&g, &there, 0));
	RANK_TRY(cuda_rig_enqueue(&g, &back, 1));
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
		RANK_TRY(cuda_rig_enqueue(&g, &there, 0));
		RANK_TRY(cuda_rig_enqueue(&g, &back, 0));
		/* Two graphs on two streams, eager last. */
		RANK_TRY(replay(&g, straight, 0));
		RANK_TRY(replay(&g, forked, 1));
		RANK_TRY(cuda_rig_enqueue(&g, &there, 0));
		RANK_TRY(check_power(&g, 1, 11));
		RANK_BARRIER();
	}
	for (int l = 0; l < g.nlocal; l++) {
		CU_OK(cu.GraphExecDestroy(straight[l]));
		CU_OK(cu.GraphExecDestroy(forked[l]));
	}
	return cuda_rig_close(&g);
}

Test(comm_cuda, order_in_one_process)
{
	run(&(struct cuda_shape){1, 2, "1"}, streams_and_graphs);
}

Test(comm_cuda, order_between_processes)
{
	run(&(struct cuda_shape){2, 1, "2"}, streams_and_graphs);
}

/* ---- Loads ------------------------------------------------------------------------------------
 */

/* Every type and op by the all-reduce that loads all of everybody's; in place it may not, since
 * peers still read what would be written. */
static int by_loads(int proc, int n, void *arg)
{
	struct cuda_rig g = {0};

	(void)n;
	setenv("SYMCCL_ALGO", "allreduce/load", 1);
	RANK_TRY(cuda_rig_open(&g, proc, arg));
	for (uint64_t i = 0; i < (uint64_t)symcclNumTypes * symcclNumOps; i++) {
		uint64_t seed = test_seed() + 1000 * i, r = mix64(seed, 0);
		struct cuda_one o = {.func = symcclFuncAllReduce,
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
		cuda_one_places(&o, &g.m[0], &s, &d);
		RANK_OK(symcclQueryPlan(g.m[0].comm, o.func, s, d, o.count, o.type, o.op, &plan));
		RANK_CHECK((strcmp(plan.algorithm, "allreduce/load") == 0) == !o.in_place, "%s",
			plan.algorithm);
		cuda_rig_load(&g, &o, seed);
		RANK_TRY(cuda_rig_enqueue(&g, &o, (int)i & 1));
		RANK_TRY(cuda_rig_sync(&g));
		RANK_TRY(cuda_rig_compare(&g, &o, seed));
	}
	RANK_BARRIER();
	return cuda_rig_close(&g);
}

Test(comm_cuda, loads)
{
	run(&(struct cuda_shape){2, 1, "2"}, by_loads);
	run(&(struct cuda_shape){1, 3, "1"}, by_loads);
}

/* ---- Copy engines ---------------------------------------------------------------------------- */

/* Forced, in place and not, eager and captured, between other calls. */
static int by_copies(int proc, int n, void *arg)
{
	struct cuda_one o = {symcclFuncAllGather, symcclInt32, symcclSum, 3001, 256, 0, 1, 0};
	/* Through scratch. */
	static const struct cuda_one plain = {
		symcclFuncAllGather, symcclInt32, symcclSum, 150000, 256, 2, 2, 1};
	struct cuda_rig g = {0};

	(void)n;
	setenv("SYMCCL_ALGO", "allgather/copy", 1);
	RANK_TRY(cuda_rig_open(&g, proc, arg));
	cuda_rig_load(&g, &plain, test_seed());
	RANK_TRY(cuda_rig_enqueue(&g, &plain, 0));
	RANK_TRY(cuda_rig_sync(&g));
	RANK_TRY(cuda_rig_compare(&g, &plain, test_seed()));
	for (int i = 0; i < 8; i++) {
		uint64_t seed = test_seed() + 100 * (uint64_t)i;
		symcclPlan_t plan;
		CUgraphExec exec[CUDA_RIG_LOCAL];
		char *s, *d;

		o.in_place = i & 1;
		o.from = i & 2 ? 2 : 0; /* the input need not be a window */
		cuda_one_places(&o, &g.m[0], &s, &d);
		RANK_OK(symcclQueryPlan(g.m[0].comm, o.func, s, d, o.count, o.type, o.op, &plan));
		RANK_CHECK(strcmp(plan.algorithm, "allgather/copy") == 0, "%s", plan.algorithm);
		cuda_rig_load(&g, &o, seed);
		if (i < 4) {
			RANK_TRY(late_call(&g, &o, i & 1));
		} else {
			for (int l = 0; l < g.nlocal; l++) {
				CUstream st = g.m[l].stream[0];
				CUgraph graph;

				RANK_OK(cu_bind_thread(g.m[l].device));
				CU_OK(cu.StreamBeginCapture(
					st, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
				RANK_OK(cuda_one_enqueue(&o, &g.m[l], st));
				CU_OK(cu.StreamEndCapture(st, &graph));
				CU_OK(cu.GraphInstantiateWithFlags(&exec[l], graph, 0));
				CU_OK(cu.GraphDestroy(graph));
			}
			RANK_TRY(replay(&g, exec, 1));
			RANK_TRY(replay(&g, exec, 0));
		}
		RANK_TRY(cuda_rig_sync(&g));
		RANK_TRY(cuda_rig_compare(&g, &o, seed));
		for (int l = 0; i >= 4 && l < g.nlocal; l++)
			CU_OK(cu.GraphExecDestroy(exec[l]));
	}
	RANK_BARRIER();
	return cuda_rig_close(&g);
}

Test(comm_cuda, copy_engines)
{
	run(&(struct cuda_shape){2, 2, "2"}, by_copies);
}

/* ---- Memory of cudaMalloc ----------------------------------------------------------------------
 */

/* Refused where the flag promises what it cannot be, plain without; calls take it either way. */
static int plain_memory(int proc, int n, void *arg)
{
	static const struct cuda_one o = {
		symcclFuncAllReduce, symcclFloat32, symcclSum, 5000, 256, 2, 1, 0};
	struct cuda_rig g = {0};
	struct cuda_member *m = &g.m[0];
	symcclWindow_t w = NULL;

	(void)n;
	RANK_TRY(cuda_rig_open(&g, proc, arg));
	RANK_RESULT(symcclCommWindowRegister(
			    m->comm, m->buf[2], CUDA_RIG_ROOM, &w, SYMCCL_WIN_COLL_SYMMETRIC),
		symcclInvalidUsage);
	RANK_CHECK(strstr(error_text(), "rank 0") != NULL &&
			   strstr(error_text(), "of cudaMalloc; take symcclMemAlloc") != NULL,
		"%s", error_text());
	for (int i = 0; i < 2; i++) {
		cuda_rig_load(&g, &o, test_seed() + (uint64_t)i);
		RANK_TRY(cuda_rig_enqueue(&g, &o, 0));
		RANK_TRY(cuda_rig_sync(&g));
		RANK_TRY(cuda_rig_compare(&g, &o, test_seed() + (uint64_t)i));
		if (i == 0)
			RANK_OK(symcclCommWindowRegister(m->comm, m->buf[2], CUDA_RIG_ROOM, &w, 0));
	}
	RANK_OK(symcclCommWindowDeregister(m->comm, w));
	RANK_BARRIER();
	return cuda_rig_close(&g);
}

Test(comm_cuda, memory_of_cudamalloc)
{
	run(&(struct cuda_shape){2, 1, "2"}, plain_memory);
}

/* ---- GPUs that do not reach each other --------------------------------------------------------
 */

static int no_p2p(int proc, int n, void *arg)
{
	struct cuda_rig g = {0};
	symcclUniqueId id;

	(void)n;
	setenv("FAKECUDA_P2P", "10/01", 1);
	RANK_TRY(cuda_rig_start(&g, proc, arg));
	RANK_TRY(cuda_rig_id(proc, &id));
	RANK_RESULT(symcclCommInitRank(&g.m[0].comm, g.nranks, id, proc), symcclInvalidUsage);
	RANK_CHECK(strstr(error_text(), "no P2P access to GPU") != NULL &&
			   strstr(error_text(), "several nodes are not supported yet") != NULL,
		"%s", error_text());
	return cuda_rig_stop(&g);
}

Test(comm_cuda, no_p2p)
{
	run(&(struct cuda_shape){2, 1, "2"}, no_p2p);
}

/* The driver says that all is well. Ranks 0 and 2 share a GPU. */
static int lie(int proc, const char *how, const char *sentence, void *arg)
{
	struct cuda_rig g = {0};
	symcclUniqueId id;

	setenv("FAKECUDA_LIE", how, 1);
	RANK_TRY(cuda_rig_start(&g, proc, arg));
	RANK_TRY(cuda_rig_id(proc, &id));
	RANK_OK(symcclCommInitRank(&g.m[0].comm, g.nranks, id, proc));
	RANK_RESULT(symcclCommWindowRegister(g.m[0].comm, g.m[0].buf[0], CUDA_RIG_ROOM,
			    &g.m[0].win[0], SYMCCL_WIN_COLL_SYMMETRIC),
		symcclInvalidUsage);
	RANK_CHECK(strstr(error_text(), sentence) != NULL &&
			   strstr(error_text(), "several nodes are not supported yet") != NULL,
		"%s", error_text());
	RANK_BARRIER();
	RANK_OK(symcclCommDestroy(g.m[0].comm));
	return cuda_rig_stop(&g);
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
	run(&(struct cuda_shape){3, 1, "2"}, lost);
}

Test(comm_cuda, p2p_that_reads_wrong)
{
	run(&(struct cuda_shape){3, 1, "2"}, misread);
}
