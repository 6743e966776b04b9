/* See cuda_rig.h. */
#include <stdlib.h>
#include <string.h>
#include "cuda_rig.h"
#include "mem.h"
#include "oracle.h"
#include "params.h"
#include "util.h"

int cuda_ok(CUresult r, const char *what)
{
	RANK_CHECK(r == CUDA_SUCCESS, "%s: %d", what, (int)r);
	return 0;
}
int cuda_rig_start(struct cuda_rig *g, int proc, const struct cuda_shape *s)
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
		struct cuda_member *m = &g->m[l];

		m->rank = proc * s->local + l;
		m->device = m->rank % cuda_devices()->n;
		RANK_OK(cu_bind_thread(m->device));
		for (int i = 0; i < 2; i++) {
			CU_OK(cu.StreamCreate(&m->stream[i], CU_STREAM_NON_BLOCKING));
			RANK_OK(symcclMemAlloc((void **)&m->buf[i], CUDA_RIG_ROOM));
		}
		CU_OK(cu.MemAlloc(&p, CUDA_RIG_ROOM));
		m->buf[2] = (char *)(uintptr_t)p;
	}
	return 0;
}

int cuda_rig_stop(struct cuda_rig *g)
{
	for (int l = 0; l < g->nlocal; l++) {
		struct cuda_member *m = &g->m[l];

		RANK_OK(cu_bind_thread(m->device));
		for (int i = 0; i < 2; i++) {
			CU_OK(cu.StreamDestroy(m->stream[i]));
			RANK_OK(symcclMemFree(m->buf[i]));
		}
		CU_OK(cu.MemFree(dev(m->buf[2])));
	}
	return 0;
}

symcclResult_t cuda_rig_join(struct cuda_rig *g, symcclUniqueId id)
{
	symcclResult_t e = symcclGroupStart();

	for (int l = 0; l < g->nlocal && e == symcclSuccess; l++) {
		e = cu_bind_thread(g->m[l].device);
		if (e == symcclSuccess)
			e = symcclCommInitRank(&g->m[l].comm, g->nranks, id, g->m[l].rank);
	}
	return e == symcclSuccess ? symcclGroupEnd() : e;
}

symcclResult_t cuda_rig_enroll(struct cuda_rig *g)
{
	symcclResult_t e = symcclGroupStart();

	for (int l = 0; l < g->nlocal; l++)
		for (int i = 0; i < 2 && e == symcclSuccess; i++)
			e = symcclCommWindowRegister(g->m[l].comm, g->m[l].buf[i], CUDA_RIG_ROOM,
				&g->m[l].win[i], SYMCCL_WIN_COLL_SYMMETRIC);
	return e == symcclSuccess ? symcclGroupEnd() : e;
}

int cuda_rig_id(int proc, symcclUniqueId *id)
{
	if (proc == 0)
		RANK_OK(symcclGetUniqueId(id));
	RANK_BCAST(id, sizeof(*id));
	return 0;
}

int cuda_rig_open(struct cuda_rig *g, int proc, const struct cuda_shape *s)
{
	symcclUniqueId id;

	RANK_TRY(cuda_rig_start(g, proc, s));
	RANK_TRY(cuda_rig_id(proc, &id));
	RANK_OK(cuda_rig_join(g, id));
	RANK_OK(cuda_rig_enroll(g));
	return 0;
}

int cuda_rig_close(struct cuda_rig *g)
{
	for (int l = 0; l < g->nlocal; l++)
		RANK_OK(symcclCommDestroy(g->m[l].comm));
	return cuda_rig_stop(g);
}

int cuda_rig_sync(struct cuda_rig *g)
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

static void extents(const struct cuda_one *o, int nranks, size_t *send, size_t *recv)
{
	size_t n = o->count * coll_type_size(o->type);

	*send = o->func == symcclFuncReduceScatter ? n * (size_t)nranks : n;
	*recv = o->func == symcclFuncAllGather ? n * (size_t)nranks : n;
}

void cuda_one_places(
	const struct cuda_one *o, const struct cuda_member *m, char **send, char **recv)
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

symcclResult_t cuda_one_enqueue(const struct cuda_one *o, struct cuda_member *m, CUstream stream)
{
	symcclStream_t s = (symcclStream_t)stream;
	char *send, *recv;

	cuda_one_places(o, m, &send, &recv);
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

int cuda_rig_enqueue(struct cuda_rig *g, const struct cuda_one *o, int which)
{
	RANK_OK(symcclGroupStart());
	for (int l = 0; l < g->nlocal; l++) {
		RANK_OK(cu_bind_thread(g->m[l].device));
		RANK_OK(cuda_one_enqueue(o, &g->m[l], g->m[l].stream[which]));
	}
	RANK_OK(symcclGroupEnd());
	return 0;
}

void cuda_rig_load(struct cuda_rig *g, const struct cuda_one *o, uint64_t seed)
{
	size_t send, recv;
	char *s, *d;

	extents(o, g->nranks, &send, &recv);
	for (int l = 0; l < g->nlocal; l++) {
		cuda_one_places(o, &g->m[l], &s, &d);
		poison(d, recv);
		fill_type(
			s, send / coll_type_size(o->type), o->type, seed + (uint64_t)g->m[l].rank);
	}
}

int cuda_rig_compare(struct cuda_rig *g, const struct cuda_one *o, uint64_t seed)
{
	size_t send, recv, es = coll_type_size(o->type);
	const void *src[CUDA_RIG_RANKS];
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

		cuda_one_places(o, &g->m[l], &s, &d);
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

struct cuda_one cuda_one_random(uint64_t seed, int nranks)
{
	static const symcclFunc_t funcs[] = {
		symcclFuncAllGather, symcclFuncAllReduce, symcclFuncReduceScatter};
	uint64_t r = mix64(seed, 0), size = mix64(seed, 1);
	struct cuda_one o = {.func = funcs[r % 3],
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
