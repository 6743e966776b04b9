/*
 * Messages between pairs of ranks on GPUs: sends and receives, all-to-all-v, and gathers and
 * scatters that are too large for packets. What the kernel gets, and in which order:
 * coll/cuda/coll_abi.h.
 */
#include <stdlib.h>
#include <string.h>
#include "gpu_state.h"
#include "util.h"

#define ON_STACK 24

/* Where a message goes among those of the rank. */
struct place {
	uint32_t distance; /* from sender to receiver */
	uint32_t number;   /* among those of the same peer and direction */
	const struct coll_xfer *x;
};

static int place_compare(const void *pa, const void *pb)
{
	const struct place *a = pa, *b = pb;

	if (a->distance != b->distance)
		return a->distance < b->distance ? -1 : 1;
	if (a->number != b->number)
		return a->number < b->number ? -1 : 1;
	return a->x->recv - b->x->recv;
}

/* Number the messages of each peer and direction and sort; those to oneself come first. */
static symcclResult_t places_fill(
	symcclComm_t comm, const struct coll_xfer *x, int n, struct place *places)
{
	uint32_t nranks = (uint32_t)comm->nranks, me = (uint32_t)comm->rank,
		 few[2 * ON_STACK] = {0};
	uint32_t *count = few;

	if (comm->nranks > ON_STACK)
		count = calloc(2 * nranks, sizeof(*count));
	if (count == NULL)
		return fail(symcclSystemError, "out of memory for a call");
	for (int i = 0; i < n; i++) {
		uint32_t peer = (uint32_t)x[i].peer;

		places[i].x = &x[i];
		places[i].number = count[2 * peer + (x[i].recv != 0)]++;
		places[i].distance = (x[i].recv ? me + nranks - peer : peer + nranks - me) % nranks;
	}
	if (count != few)
		free(count);
	for (int i = 1; i < n; i++)
		if (place_compare(&places[i - 1], &places[i]) > 0) {
			qsort(places, (size_t)n, sizeof(*places), place_compare);
			break;
		}
	return symcclSuccess;
}

/* Messages to oneself: pairs of a send and a receive. *n: how many places they take. */
static symcclResult_t copy_own(
	symcclComm_t comm, const struct place *p, int nplaces, int *n, CUstream stream)
{
	for (*n = 0; *n < nplaces && p[*n].distance == 0; *n += 2) {
		const struct coll_xfer *send = p[*n].x,
				       *recv = *n + 1 < nplaces ? p[*n + 1].x : NULL;
		CUresult r = CUDA_SUCCESS;

		if (send->recv || recv == NULL || recv->peer != comm->rank || !recv->recv)
			return fail(symcclInvalidUsage,
				"rank %d %s itself a message that it does not %s in the same group",
				comm->rank, send->recv ? "expects from" : "sends",
				send->recv ? "send" : "receive");
		if (send->bytes != recv->bytes)
			return fail(symcclInvalidUsage,
				"rank %d sends itself %zu bytes but expects %zu", comm->rank,
				send->bytes, recv->bytes);
		if (send->bytes > 0 && send->buf.ptr != recv->buf.ptr)
			r = cu.MemcpyAsync((CUdeviceptr)gpu_own_address(comm, &recv->buf),
				(CUdeviceptr)gpu_own_address(comm, &send->buf), send->bytes,
				stream);
		if (r != CUDA_SUCCESS)
			return cu_fail(r, "copying %zu bytes", send->bytes);
	}
	return symcclSuccess;
}

/* The next messages of the list to a kernel. *at: the first; moved on. */
static symcclResult_t launch_some(
	symcclComm_t comm, const struct place *p, int n, int *at, int overlap, CUstream stream)
{
	struct comm_gpu *g = comm->gpu;
	struct cuda_messages a = {.team = g->team, .watch = g->watch, .ring = g->ring};
	uint32_t known[CUDA_MESSAGES_MAX], most = 1, ctas = (uint32_t)comm->team.gpu->ctas, each;
	CUfunction fn = g->kernels->fn[CUDA_MESSAGES][0][0][0];

	for (; *at < n && a.n < CUDA_MESSAGES_MAX; ++*at) {
		const struct coll_xfer *x = p[*at].x;
		struct cuda_message *m = &a.m[a.n++];
		uint32_t pair = (uint32_t)x->peer * 2 + (x->recv != 0), i = 0;

		while (i < a.npairs && known[i] != pair)
			i++;
		if (i == a.npairs)
			known[a.npairs++] = pair;
		*m = (struct cuda_message){.at = gpu_own_address(comm, &x->buf),
			.bytes = x->bytes,
			.offer = x->recv ? gpu_offset(comm, &x->buf) : 0,
			.peer = (uint32_t)x->peer,
			.recv = x->recv != 0,
			.pair = (uint16_t)i};
		most = MAX(most, ring_channels(x->bytes, g->ring.channels));
	}
	most = MIN(most, MAX(ctas * (CUDA_THREADS_MAX / 32) / a.npairs, 1));
	a.warps = most;
	a.places = MIN(a.npairs, ctas * (CUDA_THREADS_MAX / 32));
	each = (a.warps * a.places + ctas - 1) / ctas;
	return cuda_list_launch(fn, &a, (int)((a.warps * a.places + each - 1) / each),
		(int)each * 32, overlap, stream);
}

/* The call runs on one stream: it waits for what the messages' own have enqueued, or they for it.
 */
static symcclResult_t other_streams(
	symcclComm_t comm, const struct coll_call *c, CUstream stream, int before, int *any)
{
	struct comm_gpu *g = comm->gpu;
	CUresult r = CUDA_SUCCESS;
	CUstream last = stream;

	for (int i = 0; i < c->nxfers && r == CUDA_SUCCESS; i++) {
		CUstream s = c->xfer[i].stream;

		if (s == stream || s == last)
			continue;
		if (g->side == NULL)
			r = cu.EventCreate(&g->side, CU_EVENT_DISABLE_TIMING);
		if (r == CUDA_SUCCESS && (before || !*any))
			r = cu.EventRecord(g->side, before ? s : stream);
		if (r == CUDA_SUCCESS)
			r = cu.StreamWaitEvent(before ? stream : s, g->side, CU_EVENT_WAIT_DEFAULT);
		last = s;
		*any = 1;
	}
	return r == CUDA_SUCCESS ? symcclSuccess : cu_fail(r, "ordering the streams of a group");
}

static symcclResult_t run_list(
	symcclComm_t comm, const struct coll_xfer *x, int n, int overlap, CUstream stream)
{
	struct place few[ON_STACK], *p = few;
	symcclResult_t e;
	int at = 0;

	if (n > ON_STACK)
		p = malloc((size_t)n * sizeof(*p));
	if (p == NULL)
		return fail(symcclSystemError, "out of memory for a call");
	e = places_fill(comm, x, n, p);
	if (e == symcclSuccess)
		e = copy_own(comm, p, n, &at, stream);
	overlap &= at == 0; /* else what comes before the kernel is a copy */
	while (e == symcclSuccess && at < n) {
		e = launch_some(comm, p, n, &at, overlap, stream);
		overlap = 1;
	}
	if (p != few)
		free(p);
	return e;
}

static struct coll_xfer block(const struct coll_buf *b, int peer, int recv, size_t at, size_t bytes)
{
	struct coll_xfer x = {.peer = peer, .recv = recv, .buf = *b, .bytes = bytes};

	x.buf.ptr = (char *)b->ptr + at;
	if (b->peers != NULL)
		x.buf.peers = b->peers + at;
	return x;
}

/* A gather or scatter as messages. */
static symcclResult_t run_rooted(
	symcclComm_t comm, const struct coll_call *c, int overlap, CUstream stream)
{
	size_t n = c->count * coll_type_size(c->type);
	int gather = c->func == symcclFuncGather, count = 0;
	struct coll_xfer *x = malloc(((size_t)comm->nranks + 1) * sizeof(*x));
	symcclResult_t e;

	if (x == NULL)
		return fail(symcclSystemError, "out of memory for a call");
	x[count++] = gather ? block(&c->send, c->root, 0, 0, n) : block(&c->recv, c->root, 1, 0, n);
	for (int q = 0; q < comm->nranks && comm->rank == c->root; q++)
		x[count++] = block(gather ? &c->recv : &c->send, q, gather, (size_t)q * n, n);
	e = run_list(comm, x, count, overlap, stream);
	free(x);
	return e;
}

symcclResult_t gpu_messages_run(
	symcclComm_t comm, const struct coll_call *c, int overlap, CUstream stream)
{
	int others = 0, again = 0;

	if (!coll_is_listed(c->func))
		return run_rooted(comm, c, overlap, stream);
	TRY(other_streams(comm, c, stream, 1, &others));
	TRY(run_list(comm, c->xfer, c->nxfers, overlap && !others, stream));
	return others ? other_streams(comm, c, stream, 0, &again) : symcclSuccess;
}
