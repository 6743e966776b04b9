#include "calls.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coll/coll.h"
#include "mem.h"
#include "moves.h"
#include "oracle.h"
#include "ranks.h"
#include "util.h"

#define ROOM CALLS_ROOM
#define MEMORIES CALLS_MEMORIES

static int join(int rank, int n, symcclComm_t *comm)
{
	symcclUniqueId id;

	if (rank == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_OK(symcclCommInitRank(comm, n, id, rank));
	return 0;
}

int calls_open(struct calls_world *w)
{
	symcclWindow_t other;

	RANK_TRY(join(w->rank, w->n, &w->c));
	symcclGroupStart();
	for (int i = 0; i < 2; i++) {
		int flags = i == 0 ? SYMCCL_WIN_COLL_SYMMETRIC : SYMCCL_WIN_DEFAULT;

		RANK_OK(symcclMemAlloc((void **)&w->send[i], ROOM));
		RANK_OK(symcclMemAlloc((void **)&w->recv[i], ROOM));
		RANK_OK(symcclCommWindowRegister(w->c, w->send[i], ROOM, &other, flags));
		RANK_OK(symcclCommWindowRegister(
			w->c, w->recv[i], ROOM, i == 0 ? &w->window : &other, flags));
	}
	RANK_OK(symcclGroupEnd());
	w->send[2] = malloc(ROOM);
	w->recv[2] = malloc(ROOM);
	w->other = malloc((size_t)w->n * ROOM);
	w->want = malloc(ROOM);
	RANK_CHECK(w->send[2] && w->recv[2] && w->other && w->want, "no memory");
	return 0;
}

int calls_close(struct calls_world *w)
{
	free(w->send[2]);
	free(w->recv[2]);
	free(w->other);
	free(w->want);
	RANK_OK(symcclCommDestroy(w->c));
	for (int i = 0; i < 2; i++) {
		RANK_OK(symcclMemFree(w->send[i]));
		RANK_OK(symcclMemFree(w->recv[i]));
	}
	return 0;
}

/* ---- Reductions ------------------------------------------------------------------------------ */

static int reduction(struct calls_world *w, const struct calls_one *o, char *send, char *recv)
{
	size_t size = coll_type_size(o->type), out = o->count * size;
	int scatter = o->func == symcclFuncReduceScatter;
	size_t elements = o->count * (size_t)(scatter ? w->n : 1), in = elements * size;
	int takes = o->func != symcclFuncReduce || w->rank == o->root;
	uint64_t factor[64] = {0};
	const void *src[64];
	symcclRedOp_t op = (symcclRedOp_t)o->op;

	if (o->op == symcclNumOps)
		op = symcclSum;
	for (int q = 0; q < w->n; q++) {
		src[q] = w->other + (size_t)q * ROOM;
		fill_type(w->other + (size_t)q * ROOM, elements, o->type, o->seed + (uint64_t)q);
		fill_type(&factor[q], 1, o->type, o->seed + 100 + (uint64_t)q);
	}
	if (takes && o->in_place)
		recv = send + (scatter ? (size_t)w->rank * out : 0);
	else
		poison(recv, out);
	memcpy(send, src[w->rank], in);
	oracle_reduce(
		o->type, op, src, w->n, o->op == symcclNumOps ? factor : NULL, elements, w->want);
	if (o->op == symcclNumOps)
		RANK_OK(symcclRedOpCreatePreMulSum(
			&op, &factor[w->rank], o->type, symcclScalarHostImmediate, w->c));
	if (o->func == symcclFuncAllReduce)
		RANK_OK(symcclAllReduce(send, recv, o->count, o->type, op, w->c, NULL));
	else if (scatter)
		RANK_OK(symcclReduceScatter(send, recv, o->count, o->type, op, w->c, NULL));
	else
		RANK_OK(symcclReduce(send, recv, o->count, o->type, op, o->root, w->c, NULL));
	if (o->op == symcclNumOps)
		RANK_OK(symcclRedOpDestroy(op, w->c));
	if (takes && memcmp(recv, w->want + (scatter ? (size_t)w->rank * out : 0), out) != 0)
		RANK_FAIL("the result is not the oracle's");
	return 0;
}

/* ---- Moves ------------------------------------------------------------------------------------
 */

static int vector(struct calls_world *w, const struct moves *m, char *send, char *recv)
{
	size_t sc[64], rc[64], sd[64], rd[64], s = 0, r = 0;

	for (int q = 0; q < w->n; q++) {
		sc[q] = moves_pair_bytes(m, w->rank, q);
		rc[q] = moves_pair_bytes(m, q, w->rank);
		sd[q] = s;
		rd[q] = r;
		s += sc[q];
		r += rc[q];
	}
	RANK_OK(symcclAlltoAllv(send, sc, sd, recv, rc, rd, symcclUint8, w->c, NULL));
	return 0;
}

static int movement(struct calls_world *w, const struct calls_one *o, char *send, char *recv)
{
	size_t size = coll_type_size(o->type);
	struct moves m = {.func = o->func,
		.n = w->n,
		.root = o->root,
		.in_place = o->in_place,
		.block = o->count * size,
		.seed = o->seed};
	char why[256];
	ptrdiff_t at;

	if (moves_in_place(&m, w->rank, &at)) {
		if (at < 0)
			recv = send - at;
		else
			send = recv + at;
	}
	moves_fill(&m, w->rank, send, recv);
	switch (o->func) {
	case symcclFuncAllGather:
		RANK_OK(symcclAllGather(send, recv, o->count, o->type, w->c, NULL));
		break;
	case symcclFuncAlltoAll:
		RANK_OK(symcclAlltoAll(send, recv, o->count, o->type, w->c, NULL));
		break;
	case symcclFuncBroadcast:
		if (o->in_place && w->rank != o->root)
			RANK_OK(symcclBcast(recv, o->count, o->type, o->root, w->c, NULL));
		else
			RANK_OK(symcclBroadcast(
				send, recv, o->count, o->type, o->root, w->c, NULL));
		break;
	case symcclFuncGather:
		RANK_OK(symcclGather(send, recv, o->count, o->type, o->root, w->c, NULL));
		break;
	case symcclFuncScatter:
		RANK_OK(symcclScatter(send, recv, o->count, o->type, o->root, w->c, NULL));
		break;
	default:
		RANK_TRY(vector(w, &m, send, recv));
	}
	RANK_CHECK(moves_verify(&m, w->rank, send, recv, why, sizeof(why)) == 0, "%s", why);
	return 0;
}

/* ---- Messages and signals -------------------------------------------------------------------- */

/* A shift around the ranks, and one to oneself, in a group. */
static int shift(struct calls_world *w, const struct calls_one *o, char *send, char *recv)
{
	int by = (int)(o->seed % (uint64_t)w->n);
	int to = (w->rank + by) % w->n, from = (w->rank + w->n - by) % w->n;
	size_t n = o->count * coll_type_size(o->type);

	fill_bytes(send, n, o->seed + (uint64_t)w->rank);
	poison(recv, n);
	RANK_OK(symcclGroupStart());
	if (o->in_place & 1)
		RANK_OK(symcclRecv(recv, o->count, o->type, from, w->c, NULL));
	RANK_OK(symcclSend(send, o->count, o->type, to, w->c, NULL));
	RANK_OK(symcclSend(send, n, symcclInt8, w->rank, w->c, NULL));
	if (!(o->in_place & 1))
		RANK_OK(symcclRecv(recv, o->count, o->type, from, w->c, NULL));
	RANK_OK(symcclRecv(w->want, n, symcclInt8, w->rank, w->c, NULL));
	RANK_OK(symcclGroupEnd());
	RANK_CHECK(check_bytes(recv, n, o->seed + (uint64_t)(by ? from : w->rank)) == n,
		"rank %d's data", from);
	RANK_CHECK(check_bytes(w->want, n, o->seed + (uint64_t)w->rank) == n, "its own data");
	return 0;
}

static int signals(struct calls_world *w, const struct calls_one *o, char *send)
{
	int by = (int)(o->seed % (uint64_t)w->n), index = (int)(o->seed >> 8) & 7;
	int to = (w->rank + by) % w->n, from = (w->rank + w->n - by) % w->n;
	size_t n = o->count * coll_type_size(o->type);
	symcclWaitSignalDesc_t d[2] = {{.opCnt = 1, .peer = from, .sigIdx = index},
		{.opCnt = 2, .peer = from, .sigIdx = (index + 1) & 7}};

	fill_bytes(send, n, o->seed + (uint64_t)w->rank);
	poison(w->recv[0] + o->recv_at, n);
	RANK_OK(symcclBarrier(w->c, NULL));
	RANK_OK(symcclSignal(to, (index + 1) & 7, 0, 0, w->c, NULL));
	RANK_OK(symcclPutSignal(
		send, o->count, o->type, to, w->window, o->recv_at, index, 0, 0, w->c, NULL));
	RANK_OK(symcclSignal(to, (index + 1) & 7, 0, 0, w->c, NULL));
	RANK_OK(symcclWaitSignal(2, d, w->c, NULL));
	RANK_CHECK(check_bytes(w->recv[0] + o->recv_at, n, o->seed + (uint64_t)from) == n,
		"what rank %d has put", from);
	RANK_OK(symcclBarrier(w->c, NULL));
	return 0;
}

/* ---- The matrix ------------------------------------------------------------------------------ */

static const symcclFunc_t funcs[] = {symcclFuncAllGather, symcclFuncAllReduce,
	symcclFuncReduceScatter, symcclFuncBroadcast, symcclFuncReduce, symcclFuncAlltoAll,
	symcclFuncGather, symcclFuncScatter, symcclFuncAlltoAllv, symcclFuncSendRecv,
	symcclFuncPutSignal};

int calls_run(struct calls_world *w, const struct calls_one *o)
{
	char *send = w->send[o->send] + o->send_at, *recv = w->recv[o->recv] + o->recv_at;

	if (coll_reduces(o->func))
		return reduction(w, o, send, recv);
	if (o->func == symcclFuncSendRecv)
		return shift(w, o, send, recv);
	if (o->func == symcclFuncPutSignal)
		return signals(w, o, send);
	return movement(w, o, send, recv);
}

int calls_pick(int n, uint64_t seed, uint64_t i, struct calls_one *o)
{
	static const size_t counts[] = {0, 1, 2, 3, 7, 13, 57, 64, 129, 1000, 4097};
	uint64_t x = mix64(seed, i), y = mix64(seed + 1, i), most;

	*o = (struct calls_one){.seed = x, .root = (int)(y % (uint64_t)n)};
	o->func = funcs[i % ARRAY_LEN(funcs)];
	i /= ARRAY_LEN(funcs);
	o->send = (int)(i % MEMORIES);
	i /= MEMORIES;
	o->recv = (int)(i % MEMORIES);
	i /= MEMORIES;
	o->in_place = (int)(i % 2);
	i /= 2;
	o->type = (symcclDataType_t)(i % symcclNumTypes);
	i /= symcclNumTypes;
	o->op = (int)(i % (symcclNumOps + 1));
	i /= symcclNumOps + 1;
	/* Only sums and the like of one operator are another call for another operator. */
	if (!coll_reduces(o->func) && o->op != 0)
		return 0;
	o->count = counts[(y >> 8) % ARRAY_LEN(counts)];
	most = (y >> 16) % 8 == 0 && !coll_reduces(o->func) ? 120000 : 20000;
	if ((y >> 24) % 4 == 0)
		o->count = (y >> 32) % (most / coll_type_size(o->type));
	/* Aligned, to elements, anywhere. */
	o->send_at = MOVES_GUARD + ((x >> 8) % 3 == 0 ? 0 : (x >> 16) % 64);
	o->recv_at = MOVES_GUARD + ((x >> 8) % 3 == 0 ? 0 : (x >> 24) % 64);
	return 1;
}

uint64_t calls_all(void)
{
	return ARRAY_LEN(funcs) * MEMORIES * MEMORIES * 2 * symcclNumTypes * (symcclNumOps + 1);
}

void calls_text(const struct calls_one *o, char *out, size_t n)
{
	snprintf(out, n, "func %d type %d op %d count %zu root %d memory %d %d at %zu %zu%s",
		(int)o->func, (int)o->type, o->op, o->count, o->root, o->send, o->recv, o->send_at,
		o->recv_at, o->in_place ? " in place" : "");
}
