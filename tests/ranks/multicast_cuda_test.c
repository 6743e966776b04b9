/*
 * Multicast over the driver double, from the communicator down to the kernels' launches: who gets
 * it, which calls take it, and that every rank's part of the work is the right one. What the switch
 * would do is done by the kernels' emulation, which adds in the order of the tree; so results are
 * compared bit for bit, and on a real switch need not be equal.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coll/coll.h"
#include "cuda/driver.h"
#include "fakecuda/fakecuda.h"
#include "mem.h"
#include "oracle.h"
#include "params.h"
#include "ranks.h"
#include "symccl_device.h"
#include "util.h"

TestSuite(multicast_cuda, .timeout = 120);

enum { LOCAL_MAX = 2, WORLD_MAX = 4 };
#define ROOM ((size_t)2 << 20)

FAKE_IMAGES

struct shape {
	int procs, local;
	const char *devices, *able; /* FAKECUDA_MULTICAST */
	int abstains;               /* rank whose SYMCCL_MC_ENABLE is 0; -1: none */
	int want;
};
struct member {
	int rank;
	symcclComm_t comm;
	CUstream stream;
	char *buf[2];
	symcclWindow_t win[2];
};
struct rig {
	const struct shape *shape;
	int nranks, nlocal, open0;
	struct member m[LOCAL_MAX];
};

static int leaks(char *text, size_t len)
{
	return ((fakecuda_leaks_t)fakecuda_hook("fakecuda_leaks"))(text, len);
}

static int rig_join(struct rig *g, int proc, const struct shape *s)
{
	symcclUniqueId id;
	char text[256];

	g->shape = s;
	g->nlocal = s->local;
	g->nranks = s->procs * s->local;
	setenv("FAKECUDA_DEVICES", s->devices, 1);
	setenv("FAKECUDA_MULTICAST", s->able, 1);
	setenv("FAKECUDA_ASYNC", "1", 1);
	setenv("SYMCCL_DEVICE", "cuda", 1);
	setenv("SYMCCL_WIN_STRIDE", "256M", 1);
	setenv("SYMCCL_OP_TIMEOUT", "30", 1);
	setenv("SYMCCL_DEBUG", "none", 1);
	setenv("SYMCCL_MC_ENABLE", proc == s->abstains ? "0" : "1", 1);
	setenv("SYMCCL_ALGO", "allreduce/multimem,allgather/multimem,reducescatter/multimem", 1);
	params_reload();
	fake_kernels_register();
	RANK_CHECK(cuda_open() == NULL, "%s", cuda_open());
	g->open0 = leaks(text, sizeof(text));
	if (proc == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_OK(symcclGroupStart());
	for (int l = 0; l < g->nlocal; l++) {
		g->m[l].rank = proc * s->local + l;
		RANK_OK(cu_bind_thread(g->m[l].rank % cuda_devices()->n));
		RANK_OK(symcclCommInitRank(&g->m[l].comm, g->nranks, id, g->m[l].rank));
	}
	RANK_OK(symcclGroupEnd());
	for (int l = 0; l < g->nlocal; l++) {
		struct member *m = &g->m[l];

		RANK_OK(cu_bind_thread(m->rank % cuda_devices()->n));
		RANK_CHECK(cu.StreamCreate(&m->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
		for (int i = 0; i < 2; i++)
			RANK_OK(symcclMemAlloc((void **)&m->buf[i], ROOM));
	}
	return 0;
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

static int rig_open(struct rig *g, int proc, const struct shape *s)
{
	RANK_TRY(rig_join(g, proc, s));
	RANK_OK(enroll(g));
	return 0;
}

static int rig_close(struct rig *g)
{
	char text[256];

	for (int l = 0; l < g->nlocal; l++)
		RANK_OK(symcclCommDestroy(g->m[l].comm));
	for (int l = 0; l < g->nlocal; l++) {
		struct member *m = &g->m[l];

		RANK_OK(cu_bind_thread(m->rank % cuda_devices()->n));
		RANK_CHECK(cu.StreamDestroy(m->stream) == CUDA_SUCCESS);
		for (int i = 0; i < 2; i++)
			RANK_OK(symcclMemFree(m->buf[i]));
	}
	RANK_CHECK(cu.CtxSetCurrent(NULL) == CUDA_SUCCESS);
	/* The kernels' code stays. */
	RANK_CHECK(leaks(text, sizeof(text)) <= g->open0 + 1, "left open: %s", text);
	return 0;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

struct one {
	symcclFunc_t func;
	symcclDataType_t type;
	symcclRedOp_t op;
	size_t count, at;
	int in_place;
};

static void places(const struct one *o, const struct member *m, char **send, char **recv)
{
	size_t part = (size_t)m->rank * o->count * coll_type_size(o->type);

	*send = m->buf[0] + o->at;
	*recv = m->buf[1] + o->at;
	if (o->in_place && o->func == symcclFuncReduceScatter)
		*recv = *send + part;
	else if (o->in_place)
		*send = *recv + (o->func == symcclFuncAllGather ? part : 0);
}

static int plan_of(struct rig *g, const struct one *o, const char **name)
{
	static symcclPlan_t plan;
	char *s, *d;

	places(o, &g->m[0], &s, &d);
	RANK_OK(symcclQueryPlan(g->m[0].comm, o->func, s, d, o->count, o->type, o->op, &plan));
	*name = plan.algorithm;
	return 0;
}

static symcclResult_t enqueue(const struct one *o, struct member *m)
{
	symcclStream_t s = (symcclStream_t)m->stream;
	char *send, *recv;

	places(o, m, &send, &recv);
	if (o->func == symcclFuncAllGather)
		return symcclAllGather(send, recv, o->count, o->type, m->comm, s);
	if (o->func == symcclFuncAllReduce)
		return symcclAllReduce(send, recv, o->count, o->type, o->op, m->comm, s);
	return symcclReduceScatter(send, recv, o->count, o->type, o->op, m->comm, s);
}

static int run_one(struct rig *g, const struct one *o, uint64_t seed)
{
	size_t es = coll_type_size(o->type), n = (size_t)g->nranks;
	size_t send = o->count * (o->func == symcclFuncReduceScatter ? n : 1);
	size_t recv = o->count * es * (o->func == symcclFuncAllGather ? n : 1);
	char *in = malloc(n * send * es), *want = malloc(n * send * es);
	const void *src[WORLD_MAX];
	char *s, *d;

	RANK_CHECK(in != NULL && want != NULL);
	for (size_t r = 0; r < n; r++) {
		src[r] = in + r * send * es;
		fill_type(in + r * send * es, send, o->type, seed + r);
	}
	if (o->func == symcclFuncAllGather)
		memcpy(want, in, n * send * es);
	else
		oracle_reduce(o->type, o->op, src, g->nranks, NULL, send, want);
	for (int l = 0; l < g->nlocal; l++) {
		places(o, &g->m[l], &s, &d);
		poison(d - 64, recv + 128);
		memcpy(s, src[g->m[l].rank], send * es);
	}
	RANK_BARRIER(); /* peers' guard bytes are written now, too */
	RANK_OK(symcclGroupStart());
	for (int l = 0; l < g->nlocal; l++) {
		RANK_OK(cu_bind_thread(g->m[l].rank % cuda_devices()->n));
		RANK_OK(enqueue(o, &g->m[l]));
	}
	RANK_OK(symcclGroupEnd());
	for (int l = 0; l < g->nlocal; l++) {
		size_t part = o->func == symcclFuncReduceScatter ? (size_t)g->m[l].rank * recv : 0;
		char guard[64];

		RANK_OK(cu_bind_thread(g->m[l].rank % cuda_devices()->n));
		RANK_CHECK(cu.StreamSynchronize(g->m[l].stream) == CUDA_SUCCESS);
		places(o, &g->m[l], &s, &d);
		for (size_t k = 0; k < recv; k++)
			RANK_CHECK(d[k] == want[part + k],
				"seed %#lx func %d type %d count %zu at %zu in place %d: rank %d "
				"byte %zu",
				(unsigned long)seed, o->func, o->type, o->count, o->at, o->in_place,
				g->m[l].rank, k);
		if (o->in_place)
			continue;
		poison(guard, sizeof(guard));
		RANK_CHECK(memcmp(guard, d - 64, 64) == 0 && memcmp(guard, d + recv, 64) == 0,
			"bytes around the output");
	}
	free(in);
	free(want);
	return 0;
}

static const symcclDataType_t sums[] = {symcclInt32, symcclUint32, symcclInt64, symcclUint64,
	symcclFloat16, symcclBfloat16, symcclFloat32};

static int calls(int proc, int n, void *arg)
{
	static const symcclFunc_t funcs[] = {
		symcclFuncAllReduce, symcclFuncAllGather, symcclFuncReduceScatter};
	struct rig g = {0};
	const char *name;

	(void)n;
	RANK_TRY(rig_open(&g, proc, arg));
	for (uint64_t i = 0; i < 90; i++) {
		uint64_t seed = test_seed() + 1000 * i, r = mix64(seed, 7);
		struct one o = {.func = funcs[i % 3],
			.type = sums[r % ARRAY_LEN(sums)],
			.op = symcclSum,
			.count = 1 + mix64(seed, 8) % (i % 9 < 6 ? 100 : 30000),
			.in_place = r / 100 % 3 == 0};

		/* Any byte for those that only move. */
		if (o.func == symcclFuncAllGather)
			o.type = (symcclDataType_t)(r / 1000 % symcclNumTypes);
		o.at = 4096 + mix64(seed, 9) % 33 *
				      (o.func == symcclFuncAllGather ? 1 : coll_type_size(o.type));
		ranks_note("call %d", (int)i);
		RANK_TRY(plan_of(&g, &o, &name));
		RANK_CHECK(strstr(name, "/multimem") != NULL, "%s", name);
		RANK_TRY(run_one(&g, &o, seed));
	}
	RANK_BARRIER();
	return rig_close(&g);
}

static void run(const struct shape *s, rank_fn *fn)
{
	char err[1500];

	test_seed();
	cr_assert_eq(ranks_run(s->procs, 100, fn, (void *)s, err, sizeof(err)), 0,
		"%d processes of %d ranks on %s GPUs: %s", s->procs, s->local, s->devices, err);
}

Test(multicast_cuda, bits_between_processes)
{
	run(&(struct shape){3, 1, "3", "1", -1, 1}, calls);
}

Test(multicast_cuda, bits_mixed)
{
	run(&(struct shape){2, 2, "4", "1", -1, 1}, calls);
}

/* ---- What it is not for ---------------------------------------------------------------------- */

static int refused(int proc, int n, void *arg)
{
	static const struct one not_these[] = {
		{symcclFuncAllReduce, symcclFloat32, symcclMax, 1000, 4096, 0},
		{symcclFuncAllReduce, symcclFloat32, symcclAvg, 1000, 4096, 0},
		{symcclFuncReduceScatter, symcclInt64, symcclProd, 1000, 4096, 0},
		{symcclFuncAllReduce, symcclInt8, symcclSum, 1000, 4096, 0},
		{symcclFuncAllReduce, symcclFloat64, symcclSum, 1000, 4096, 0},
		{symcclFuncReduceScatter, symcclFloat8e4m3, symcclSum, 1000, 4096, 0},
	};
	struct rig g = {0};
	const char *name;

	(void)n;
	RANK_TRY(rig_open(&g, proc, arg));
	for (size_t i = 0; i < ARRAY_LEN(not_these); i++) {
		RANK_TRY(plan_of(&g, &not_these[i], &name));
		RANK_CHECK(strstr(name, "/multimem") == NULL, "call %zu: %s", i, name);
		RANK_TRY(run_one(&g, &not_these[i], test_seed()));
	}
	RANK_BARRIER();
	return rig_close(&g);
}

Test(multicast_cuda, other_types_and_operators)
{
	run(&(struct shape){2, 1, "2", "1", -1, 1}, refused);
}

/* ---- Who has it ------------------------------------------------------------------------------ */

/* The same on all ranks, and calls work either way. */
static int who(int proc, int n, void *arg)
{
	static const struct one o = {symcclFuncAllReduce, symcclFloat32, symcclSum, 5000, 4096, 0};
	const struct shape *s = arg;
	struct rig g = {0};
	const char *name;

	(void)n;
	RANK_TRY(rig_open(&g, proc, s));
	for (int l = 0; l < g.nlocal; l++)
		for (int i = 0; i < 2; i++) {
			symcclDevWindow_t w;

			RANK_OK(symcclWinGetDevice(g.m[l].comm, g.m[l].win[i], &w));
			RANK_CHECK((symcclDevMulticastPtr(&w, 0) != NULL) == s->want);
		}
	RANK_TRY(plan_of(&g, &o, &name));
	RANK_CHECK((strcmp(name, "allreduce/multimem") == 0) == s->want, "%s", name);
	RANK_TRY(run_one(&g, &o, test_seed()));
	RANK_BARRIER();
	return rig_close(&g);
}

Test(multicast_cuda, all_ranks)
{
	run(&(struct shape){3, 1, "3", "1", -1, 1}, who);
}

Test(multicast_cuda, not_where_a_rank_does_not_ask)
{
	run(&(struct shape){3, 1, "3", "1", 1, 0}, who);
}

Test(multicast_cuda, not_where_ranks_share_a_gpu)
{
	run(&(struct shape){3, 1, "2", "1", -1, 0}, who);
}

Test(multicast_cuda, not_where_gpus_cannot)
{
	run(&(struct shape){2, 1, "2", "0", -1, 0}, who);
}

Test(multicast_cuda, not_for_one_rank)
{
	run(&(struct shape){1, 1, "1", "1", -1, 0}, who);
}

/* ---- A rank that dies on the way -------------------------------------------------------------
 * In the worker's thread. */

static CUresult die_creating(CUmemGenericAllocationHandle *mc, const CUmulticastObjectProp *prop)
{
	(void)mc, (void)prop;
	raise(SIGKILL);
	return CUDA_ERROR_UNKNOWN;
}

static CUresult die_adding(CUmemGenericAllocationHandle mc, CUdevice dev)
{
	(void)mc, (void)dev;
	raise(SIGKILL);
	return CUDA_ERROR_UNKNOWN;
}

static CUresult die_binding(CUmemGenericAllocationHandle mc, size_t mc_offset,
	CUmemGenericAllocationHandle h, size_t offset, size_t size, unsigned long long flags)
{
	(void)mc, (void)mc_offset, (void)h, (void)offset, (void)size, (void)flags;
	raise(SIGKILL);
	return CUDA_ERROR_UNKNOWN;
}

/* The others hear of it, wherever they are, and keep nothing. */
static int death(int proc, int n, void *arg)
{
	static const struct shape shape = {3, 1, "3", "1", -1, 1};
	int where = *(int *)arg; /* also the victim: rank 0 creates */
	struct rig g = {0};

	(void)n;
	RANK_TRY(rig_join(&g, proc, &shape));
	RANK_BARRIER();
	if (proc == where)
		ranks_expect_signal(proc, SIGKILL);
	if (proc == where && where == 0)
		cu.MulticastCreate = die_creating;
	else if (proc == where && where == 1)
		cu.MulticastAddDevice = die_adding;
	else if (proc == where)
		cu.MulticastBindMem = die_binding;
	RANK_RESULT(enroll(&g), symcclRemoteError);
	return rig_close(&g);
}

Test(multicast_cuda, a_rank_dies)
{
	char err[1500];

	for (int where = 0; where < 3; where++) {
		test_seed();
		cr_assert_eq(ranks_run(3, 60, death, &where, err, sizeof(err)), 0, "place %d: %s",
			where, err);
	}
}
