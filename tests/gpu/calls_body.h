/*
 * Every call beyond the first three collectives, on communicators on GPUs, against the oracle: for
 * the program that runs on real ones (comm_gpu_calls.c) and for the test over the driver double.
 * Whoever includes this defines CHECK(cond, ...), which returns 1 from the function it stands in,
 * and RIG_BARRIER(), of all processes.
 */
#ifndef CALLS_BODY_H
#define CALLS_BODY_H

#include <stdlib.h>
#include <string.h>
#include "coll/coll.h"
#include "cuda/driver.h"
#include "mem.h"
#include "oracle.h"
#include "symccl.h"
#include "util.h"

enum { LOCAL_MOST = 8, TEAM_MOST = 8, GUARD = 64, PER_PAIR = 3 };
#define OK(call) CHECK((call) == symcclSuccess, "%s", symcclGetLastError(NULL))
#define CU(call) CHECK((call) == CUDA_SUCCESS, "driver call failed")
#define TEST_TRY(call) \
	do { \
		if (call) \
			return 1; \
	} while (0)

struct rank {
	int rank, device;
	symcclComm_t comm;
	CUstream stream, other;
	char *buf[3]; /* window, window, plain */
	symcclWindow_t win[2];
};
static struct {
	struct rank r[LOCAL_MOST];
	int nlocal, nranks;
	size_t room;
	char *host, *want;
} rig;

struct call {
	symcclFunc_t func;
	symcclDataType_t type;
	symcclRedOp_t op;
	size_t count; /* of the lists: the most of one message */
	int root, from, to, in_place;
	size_t at; /* bytes before either buffer */
	uint64_t seed;
};

static CUdeviceptr dev(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

/* ---- Setting up ------------------------------------------------------------------------------ */

static int rig_open(int which, int procs, int local, symcclUniqueId id, size_t room)
{
	CUdeviceptr p;

	rig.nlocal = local;
	rig.nranks = procs * local;
	rig.room = room;
	rig.host = malloc(room);
	rig.want = malloc(room);
	CHECK(rig.host && rig.want, "no memory");
	OK(symcclGroupStart());
	for (int i = 0; i < local; i++) {
		symcclConfig_t cfg = SYMCCL_CONFIG_INITIALIZER;
		struct rank *r = &rig.r[i];

		r->rank = which * local + i;
		r->device = r->rank % cuda_devices()->n;
		cfg.device = symcclDeviceCuda;
		OK(cu_bind_thread(r->device));
		OK(symcclCommInitRankConfig(&r->comm, rig.nranks, id, r->rank, &cfg));
	}
	OK(symcclGroupEnd());
	OK(symcclGroupStart());
	for (int i = 0; i < local; i++) {
		struct rank *r = &rig.r[i];

		OK(cu_bind_thread(r->device));
		CU(cu.StreamCreate(&r->stream, CU_STREAM_NON_BLOCKING));
		CU(cu.StreamCreate(&r->other, CU_STREAM_NON_BLOCKING));
		for (int b = 0; b < 2; b++) {
			OK(symcclMemAllocOn((void **)&r->buf[b], room, symcclDeviceCuda));
			OK(symcclCommWindowRegister(
				r->comm, r->buf[b], room, &r->win[b], SYMCCL_WIN_COLL_SYMMETRIC));
		}
		CU(cu.MemAlloc(&p, room));
		r->buf[2] = (char *)(uintptr_t)p;
	}
	OK(symcclGroupEnd());
	return 0;
}

static int rig_close(void)
{
	for (int i = 0; i < rig.nlocal; i++) {
		struct rank *r = &rig.r[i];

		OK(cu_bind_thread(r->device));
		OK(symcclCommDestroy(r->comm));
		CU(cu.StreamDestroy(r->stream));
		CU(cu.StreamDestroy(r->other));
		for (int b = 0; b < 2; b++)
			OK(symcclMemFree(r->buf[b]));
		CU(cu.MemFree(dev(r->buf[2])));
	}
	free(rig.host);
	free(rig.want);
	return 0;
}

static int rig_sync(void)
{
	for (int i = 0; i < rig.nlocal; i++) {
		OK(cu_bind_thread(rig.r[i].device));
		CU(cu.StreamSynchronize(rig.r[i].stream));
		CU(cu.StreamSynchronize(rig.r[i].other));
	}
	for (int i = 0; i < rig.nlocal; i++) {
		symcclResult_t e;

		OK(symcclCommGetAsyncError(rig.r[i].comm, &e));
		CHECK(e == symcclSuccess, "asynchronous error: %s",
			symcclGetLastError(rig.r[i].comm));
	}
	return 0;
}

/* ---- What a call is -------------------------------------------------------------------------- */

static int has_list(const struct call *c)
{
	return c->func == symcclFuncAlltoAllv || c->func == symcclFuncSendRecv;
}
/* Message k from s to q: elements, and where it lies in s's input and q's output (elements). */
static size_t list_count(const struct call *c, int s, int q, int k)
{
	uint64_t x = mix64(c->seed, 7000 + (uint64_t)((s * TEAM_MOST + q) * PER_PAIR + k));

	if (k > 0 && (c->func == symcclFuncAlltoAllv || x % 3 != 0))
		return 0;
	return x / 16 % 5 == 0 ? x / 256 % MIN(c->count + 1, 9) : x / 256 % (c->count + 1);
}
static size_t list_place(const struct call *c, int peer, int k)
{
	return (size_t)(peer * PER_PAIR + k) * (c->count + 3);
}

/* Bytes of a rank's input and output. */
static void call_bytes(const struct call *c, size_t *in, size_t *out)
{
	size_t n = c->count * coll_type_size(c->type), all = n * (size_t)rig.nranks;

	*in = c->func == symcclFuncAlltoAll || c->func == symcclFuncScatter ? all : n;
	*out = c->func == symcclFuncAlltoAll || c->func == symcclFuncGather ? all : n;
	if (has_list(c))
		*in = *out = list_place(c, rig.nranks, 0) * coll_type_size(c->type);
}
static int has_in(const struct call *c, int r)
{
	return r == c->root || !(c->func == symcclFuncBroadcast || c->func == symcclFuncScatter);
}
static int has_out(const struct call *c, int r)
{
	return r == c->root || !(c->func == symcclFuncReduce || c->func == symcclFuncGather);
}
/* Offsets of input and output in their buffers; in place they are in the same one. */
static void call_places(const struct call *c, int r, size_t *in, size_t *out)
{
	size_t part = c->count * coll_type_size(c->type) * (size_t)r;

	*in = *out = GUARD + c->at;
	if (c->in_place && c->func == symcclFuncGather)
		*in += part;
	if (c->in_place && c->func == symcclFuncScatter)
		*out += part;
}

static symcclResult_t enqueue_list(const struct call *c, const struct rank *r, char *in, char *out)
{
	size_t count[2][TEAM_MOST], at[2][TEAM_MOST], es = coll_type_size(c->type);
	symcclResult_t e = symcclGroupStart();

	for (int q = 0; q < rig.nranks; q++) {
		count[0][q] = list_count(c, r->rank, q, 0);
		count[1][q] = list_count(c, q, r->rank, 0);
		at[0][q] = at[1][q] = list_place(c, q, 0);
	}
	if (c->func == symcclFuncAlltoAllv)
		e = symcclAlltoAllv(in, count[0], at[0], out, count[1], at[1], c->type, r->comm,
			(symcclStream_t)r->stream);
	for (int k = 0; c->func == symcclFuncSendRecv && k < PER_PAIR; k++)
		for (int q = 0; q < rig.nranks && e == symcclSuccess; q++) {
			CUstream s = q % 2 ? r->other : r->stream;

			e = symcclSend(in + list_place(c, q, k) * es, list_count(c, r->rank, q, k),
				c->type, q, r->comm, (symcclStream_t)s);
			if (e == symcclSuccess)
				e = symcclRecv(out + list_place(c, q, k) * es,
					list_count(c, q, r->rank, k), c->type, q, r->comm,
					(symcclStream_t)r->stream);
		}
	return e == symcclSuccess ? symcclGroupEnd() : e;
}

static symcclResult_t enqueue(const struct call *c, const struct rank *r)
{
	symcclStream_t s = (symcclStream_t)r->stream;
	size_t at_in, at_out;
	char *in, *out;

	call_places(c, r->rank, &at_in, &at_out);
	in = r->buf[c->from] + at_in;
	out = r->buf[c->to] + at_out;
	switch (c->func) {
	case symcclFuncBroadcast:
		return symcclBroadcast(in, out, c->count, c->type, c->root, r->comm, s);
	case symcclFuncReduce:
		return symcclReduce(in, out, c->count, c->type, c->op, c->root, r->comm, s);
	case symcclFuncAlltoAll:
		return symcclAlltoAll(in, out, c->count, c->type, r->comm, s);
	case symcclFuncGather:
		return symcclGather(in, out, c->count, c->type, c->root, r->comm, s);
	case symcclFuncScatter:
		return symcclScatter(in, out, c->count, c->type, c->root, r->comm, s);
	default:
		return enqueue_list(c, r, in, out);
	}
}

static int enqueue_all(const struct call *c)
{
	OK(symcclGroupStart());
	for (int i = 0; i < rig.nlocal; i++) {
		OK(cu_bind_thread(rig.r[i].device));
		OK(enqueue(c, &rig.r[i]));
	}
	OK(symcclGroupEnd());
	return 0;
}

/* ---- What it must give ----------------------------------------------------------------------- */

static void input_of(const struct call *c, int r, void *to)
{
	size_t in, out;

	call_bytes(c, &in, &out);
	fill_type(to, in / coll_type_size(c->type), c->type, c->seed + (uint64_t)r);
}

static int call_load(const struct call *c)
{
	size_t in, out, at_in, at_out;

	call_bytes(c, &in, &out);
	for (int i = 0; i < rig.nlocal; i++) {
		struct rank *r = &rig.r[i];
		char *image = r->buf[c->to] + c->at;

		call_places(c, r->rank, &at_in, &at_out);
		OK(cu_bind_thread(r->device));
		poison(rig.host, MAX(in, out) + 2 * GUARD);
		CU(cu.MemcpyAsync(dev(image), dev(rig.host), MAX(in, out) + 2 * GUARD, r->stream));
		CU(cu.StreamSynchronize(r->stream));
		if (!has_in(c, r->rank))
			continue;
		input_of(c, r->rank, rig.host);
		CU(cu.MemcpyAsync(dev(r->buf[c->from] + at_in), dev(rig.host), in, r->stream));
		CU(cu.StreamSynchronize(r->stream));
	}
	return 0;
}

/* Overlay rank r's output, whose first byte is to. in: one rank's input fits there. */
static int output_of(const struct call *c, int r, char *to, char *in)
{
	size_t es = coll_type_size(c->type), n = c->count * es, all_in, all_out;
	const void *src[TEAM_MOST];
	char *each;

	call_bytes(c, &all_in, &all_out);
	each = c->func == symcclFuncReduce ? malloc(all_in * (size_t)rig.nranks) : NULL;
	for (int s = 0; s < rig.nranks; s++) {
		char *at = each ? each + (size_t)s * all_in : in;

		src[s] = at;
		if (!has_in(c, s))
			continue;
		input_of(c, s, at);
		if (c->func == symcclFuncBroadcast)
			memcpy(to, in, n);
		else if (c->func == symcclFuncScatter)
			memcpy(to, in + (size_t)r * n, n);
		else if (c->func == symcclFuncGather)
			memcpy(to + (size_t)s * n, in, n);
		else if (c->func == symcclFuncAlltoAll)
			memcpy(to + (size_t)s * n, in + (size_t)r * n, n);
		for (int k = 0; has_list(c) && k < PER_PAIR; k++)
			memcpy(to + list_place(c, s, k) * es, in + list_place(c, r, k) * es,
				list_count(c, s, r, k) * es);
	}
	if (each)
		oracle_reduce(c->type, c->op, src, rig.nranks, NULL, c->count, to);
	free(each);
	return 0;
}

/* The whole buffer around the output: what was not to be written must be as it was. */
static int call_compare(const struct call *c)
{
	size_t in, out, at_in, at_out, whole;
	char *scratch;

	call_bytes(c, &in, &out);
	whole = MAX(in, out) + 2 * GUARD;
	scratch = malloc(MAX(in, out) + 64);
	for (int i = 0; i < rig.nlocal; i++) {
		struct rank *r = &rig.r[i];

		call_places(c, r->rank, &at_in, &at_out);
		poison(rig.want, whole);
		if (c->from == c->to && has_in(c, r->rank))
			input_of(c, r->rank, rig.want + at_in - c->at);
		if (has_out(c, r->rank))
			TEST_TRY(output_of(c, r->rank, rig.want + at_out - c->at, scratch));
		OK(cu_bind_thread(r->device));
		CU(cu.MemcpyAsync(dev(rig.host), dev(r->buf[c->to] + c->at), whole, r->stream));
		CU(cu.StreamSynchronize(r->stream));
		for (size_t k = 0; k < whole; k++)
			CHECK(rig.host[k] == rig.want[k],
				"seed %#lx func %d type %d op %d count %zu root %d buffers %d %d "
				"in "
				"place %d at %zu: rank %d byte %ld of %zu",
				(unsigned long)c->seed, c->func, c->type, c->op, c->count, c->root,
				c->from, c->to, c->in_place, c->at, r->rank, (long)k - GUARD, out);
	}
	free(scratch);
	return 0;
}

static int call_check(const struct call *c)
{
	TEST_TRY(call_load(c));
	TEST_TRY(enqueue_all(c));
	TEST_TRY(rig_sync());
	return call_compare(c);
}

/* ---- Random calls ---------------------------------------------------------------------------- */

static const symcclFunc_t all_funcs[] = {symcclFuncBroadcast, symcclFuncReduce, symcclFuncAlltoAll,
	symcclFuncGather, symcclFuncScatter, symcclFuncAlltoAllv, symcclFuncSendRecv};

/* most: bytes of one rank's larger buffer. */
static struct call random_call(symcclFunc_t func, uint64_t seed, size_t most)
{
	uint64_t r = mix64(seed, 0), size = mix64(seed, 1);
	struct call c = {.func = func,
		.type = (symcclDataType_t)(r % symcclNumTypes),
		.op = (symcclRedOp_t)(r / 16 % symcclNumOps),
		.root = (int)(r / 256 % (uint64_t)rig.nranks),
		.from = (int)(r / 4096 % 3),
		.to = (int)(r / 65536 % 3),
		.in_place = r / (1 << 20) % 4 == 0,
		.seed = seed};
	size_t es = coll_type_size(c.type), blocks = (size_t)rig.nranks;

	c.at = r >> 24 & 1 ? (r >> 25) % 64 * es : 0;
	if (has_list(&c)) {
		blocks *= PER_PAIR;
		c.in_place = 0;
	}
	if (c.in_place)
		c.from = c.to;
	else if (c.from == c.to)
		c.from = (c.to + 1) % 3;
	c.count = 1 + size / 16 %
			      (size % 16 < 6           ? 9
				      : size % 16 < 10 ? 700
				      : size % 16 < 14 ? 20000 / es
						       : most / es / blocks);
	c.count = MIN(c.count, most / es / blocks - 3);
	return c;
}

/* ---- Signals, scalars ------------------------------------------------------------------------ */

/* Everybody puts into the next rank's window and signals the one before it twice. */
static int signals_load(uint64_t seed, size_t bytes)
{
	int from = (int)(seed % 3);

	for (int i = 0; i < rig.nlocal; i++) {
		struct rank *r = &rig.r[i];

		OK(cu_bind_thread(r->device));
		poison(rig.host, bytes + 2 * GUARD);
		CU(cu.MemcpyAsync(dev(r->buf[1]), dev(rig.host), bytes + 2 * GUARD, r->stream));
		CU(cu.StreamSynchronize(r->stream));
		fill_bytes(rig.host, bytes, seed + (uint64_t)r->rank);
		CU(cu.MemcpyAsync(dev(r->buf[from] + (4 << 20)), dev(rig.host), bytes, r->stream));
		CU(cu.StreamSynchronize(r->stream));
	}
	return 0;
}
static int signals_enqueue(uint64_t seed, size_t bytes, const struct rank *r)
{
	int from = (int)(seed % 3), n = rig.nranks, next = (r->rank + 1) % n,
	    before = (r->rank + n - 1) % n;
	symcclWaitSignalDesc_t wait[] = {
		{1, before, 2, 0}, {1, next, 5, 0}, {0, before, 0, 0}, {1, next, 5, 0}};
	symcclStream_t s = (symcclStream_t)r->stream;

	OK(cu_bind_thread(r->device));
	OK(symcclPutSignal(r->buf[from] + (4 << 20), bytes, symcclInt8, next, r->win[1], GUARD, 2,
		0, 0, r->comm, s));
	OK(symcclSignal(before, 5, 0, 0, r->comm, s));
	OK(symcclSignal(before, 5, 0, 0, r->comm, s));
	OK(symcclWaitSignal(4, wait, r->comm, s));
	return 0;
}
static int signals_compare(uint64_t seed, size_t bytes)
{
	for (int i = 0; i < rig.nlocal; i++) {
		struct rank *r = &rig.r[i];
		int before = (r->rank + rig.nranks - 1) % rig.nranks;

		poison(rig.want, bytes + 2 * GUARD);
		fill_bytes(rig.want + GUARD, bytes, seed + (uint64_t)before);
		OK(cu_bind_thread(r->device));
		CU(cu.MemcpyAsync(dev(rig.host), dev(r->buf[1]), bytes + 2 * GUARD, r->stream));
		CU(cu.StreamSynchronize(r->stream));
		for (size_t k = 0; k < bytes + 2 * GUARD; k++)
			CHECK(rig.host[k] == rig.want[k], "put of %zu: rank %d byte %ld", bytes,
				r->rank, (long)k - GUARD);
	}
	return 0;
}

/* Each rank's factor lies on its GPU and is read when the call runs. */
static int scalars_check(uint64_t seed)
{
	symcclDataType_t type = (symcclDataType_t)(seed % symcclNumTypes);
	size_t es = coll_type_size(type), count = 1 + seed / 16 % 3000;
	int root = (int)(seed % (uint64_t)rig.nranks), reduce = seed / 64 % 2 == 0;
	uint64_t factor[TEAM_MOST] = {0};
	const void *src[TEAM_MOST];
	symcclRedOp_t op[LOCAL_MOST];
	char *in = malloc((size_t)rig.nranks * count * es);

	CHECK(in != NULL, "no memory");
	for (int q = 0; q < rig.nranks; q++) {
		src[q] = in + (size_t)q * count * es;
		fill_type(in + (size_t)q * count * es, count, type, seed + (uint64_t)q);
		fill_type(&factor[q], 1, type, seed + 500 + (uint64_t)q);
	}
	oracle_reduce(type, symcclSum, src, rig.nranks, factor, count, rig.want);
	OK(symcclGroupStart());
	for (int i = 0; i < rig.nlocal; i++) {
		struct rank *r = &rig.r[i];
		symcclStream_t s = (symcclStream_t)r->stream;

		OK(cu_bind_thread(r->device));
		OK(symcclRedOpCreatePreMulSum(
			&op[i], r->buf[2], type, symcclScalarDevice, r->comm));
		CU(cu.MemcpyAsync(
			dev(r->buf[0] + GUARD), dev(src[r->rank]), count * es, r->stream));
		CU(cu.MemcpyAsync(dev(r->buf[2]), dev(&factor[r->rank]), es, r->stream));
		if (reduce)
			OK(symcclReduce(r->buf[0] + GUARD, r->buf[1] + GUARD, count, type, op[i],
				root, r->comm, s));
		else
			OK(symcclAllReduce(r->buf[0] + GUARD, r->buf[1] + GUARD, count, type, op[i],
				r->comm, s));
	}
	OK(symcclGroupEnd());
	TEST_TRY(rig_sync());
	for (int i = 0; i < rig.nlocal; i++) {
		struct rank *r = &rig.r[i];

		OK(symcclRedOpDestroy(op[i], r->comm));
		if (reduce && r->rank != root)
			continue;
		OK(cu_bind_thread(r->device));
		CU(cu.MemcpyAsync(dev(rig.host), dev(r->buf[1] + GUARD), count * es, r->stream));
		CU(cu.StreamSynchronize(r->stream));
		CHECK(memcmp(rig.host, rig.want, count * es) == 0,
			"seed %#lx: a scalar on the GPU, type %d count %zu reduce %d rank %d",
			(unsigned long)seed, type, count, reduce, r->rank);
	}
	free(in);
	return 0;
}

static int others_check(uint64_t seed)
{
	size_t bytes = mix64(seed, 3) % 4 == 0 ? mix64(seed, 4) % 300000 : mix64(seed, 4) % 5000;

	TEST_TRY(signals_load(seed, bytes));
	RIG_BARRIER(); /* a put comes without being asked for */
	for (int i = 0; i < rig.nlocal; i++)
		TEST_TRY(signals_enqueue(seed, bytes, &rig.r[i]));
	TEST_TRY(rig_sync());
	TEST_TRY(signals_compare(seed, bytes));
	return scalars_check(mix64(seed, 5));
}

#endif
