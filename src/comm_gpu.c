#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coll/cuda/launch.h"
#include "coll/cuda/rows.h"
#include "gpu_copy.h"
#include "gpu_prove.h"
#include "gpu_state.h"
#include "log.h"
#include "params.h"
#include "util.h"

#define SLOTS ((size_t)1 << 18)       /* packets in a half: 4 MiB; one-shot to 1 MiB on two ranks */
#define BULK_BYTES ((size_t)16 << 20) /* a rank's scratch for buffers that are not windows */
#define RING_BYTES ((size_t)16 << 20) /* and for messages */
/* Turns of a waiting loop between two looks at the abort word, which is in the host's memory: when
 * hundreds of warps look, it takes them longer than what they wait for. About 2 ms. */
#define LOOK_EVERY 4096
#define CTAS_MOST 128

/* Kernels of each GPU that this process has used. */
static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_kernels *kernels[CUDA_MAX_DEVICES];

/* Host memory that kernels of all this process's ranks look at, and write. */
struct hub_gpu {
	struct coll_gpu team; /* what planning sees */
	uint32_t *words;      /* pinned: line 0 the abort word, line 1 + l local rank l's record */
	uint64_t words_dev;
	struct dev_layout layout;
	int multicast; /* of all ranks: wanted, and each on a GPU of its own that can */
	int proven;    /* all ranks' GPUs reach each other */
};

/* ---- Hubs ---------------------------------------------------------------------------------------
 */

static symcclResult_t kernels_of(int device, const struct cuda_kernels **out)
{
	symcclResult_t e = symcclSuccess;

	pthread_mutex_lock(&kernels_lock);
	if (kernels[device] == NULL) {
		struct cuda_kernels *k = calloc(1, sizeof(*k));

		e = k ? cuda_kernels_load(k) : fail(symcclSystemError, "out of memory");
		if (e == symcclSuccess)
			kernels[device] = k;
		else
			free(k);
	}
	*out = kernels[device];
	pthread_mutex_unlock(&kernels_lock);
	return e;
}

symcclResult_t hub_gpu_open(struct hub *h)
{
	size_t bytes = 64 * (size_t)(1 + h->nlocal);
	const struct cuda_kernels *k;
	struct cu_scope scope;
	CUdeviceptr dev = 0;
	void *words;
	CUresult r;

	/* All kernels of all GPUs before any runs: loading one later may wait for one that spins.
	 */
	for (int l = h->nlocal - 1; l >= 0; l--) {
		TRY(h->mem->bind_thread(h->local[l]->device));
		TRY(kernels_of(h->local[l]->device, &k));
	}
	h->gpu = calloc(1, sizeof(*h->gpu));
	if (h->gpu == NULL)
		return fail(symcclSystemError, "out of memory for a communicator");
	TRY(cu_enter(&scope));
	r = cu.MemHostAlloc(&words, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
	if (r == CUDA_SUCCESS) {
		memset(words, 0, bytes);
		h->gpu->words = words;
		r = cu.MemHostGetDevicePointer(&dev, words, 0);
	}
	cu_leave(&scope);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "host memory for the abort word");
	h->gpu->words_dev = dev;
	h->gpu_abort = words;
	return symcclSuccess;
}

void hub_gpu_close(struct hub *h)
{
	struct cu_scope scope;
	int entered;

	if (h->gpu == NULL)
		return;
	entered = cu_enter(&scope) == symcclSuccess;
	if (h->gpu->words != NULL)
		cu.MemFreeHost(h->gpu->words);
	if (entered)
		cu_leave(&scope);
	free(h->gpu);
}

symcclResult_t hub_gpu_say(const struct hub *h, int local, struct gpu_hello *me)
{
	const struct cuda_device *d = &cuda_devices()->d[h->local[local]->device];
	CUuuid uuid;
	int sms = 0;
	CUresult r = cu.DeviceGetUuid(&uuid, d->dev);

	if (r == CUDA_SUCCESS)
		r = cu.DeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d->dev);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "asking what GPU %d is", h->local[local]->device);
	memset(me, 0, sizeof(*me));
	memcpy(me->uuid, &uuid, sizeof(me->uuid));
	me->sms = sms;
	me->multicast = params_get()->mc_enable && h->mem->multicast_able(h->local[local]->device);
	return symcclSuccess;
}

symcclResult_t hub_gpu_hear(struct hub *h, const struct gpu_hello *all)
{
	int sms = all[0].sms, most = 0, distinct = 0, multicast = h->nranks > 1;
	struct coll_gpu *g = &h->gpu->team;

	if (h->nranks > DEV_RANKS_MAX)
		return fail(symcclInvalidUsage, "%d ranks: GPU communicators have at most %d",
			h->nranks, DEV_RANKS_MAX);
	for (int r = 0; r < h->nranks; r++) {
		int same = 0, first = 1;

		for (int q = 0; q < h->nranks; q++)
			if (memcmp(all[q].uuid, all[r].uuid, sizeof(all[r].uuid)) == 0) {
				same++;
				first &= q >= r;
			}
		distinct += first;
		most = MAX(most, same);
		sms = MIN(sms, all[r].sms);
		multicast &= all[r].multicast;
	}
	/* Kernels of all ranks of a GPU wait for each other, so all their CTAs must fit at once:
	 * one on each multiprocessor. */
	g->ctas = MIN(sms / most, CTAS_MOST);
	if (g->ctas < 1)
		return fail(symcclInvalidUsage,
			"%d ranks share one GPU of %d multiprocessors: too many to run at once",
			most, sms);
	g->ranks_per_gpu = most;
	g->shared = distinct == 1;
	g->slots = SLOTS;
	g->scratch = BULK_BYTES;
	h->gpu->proven = g->shared;
	h->gpu->multicast = multicast && most == 1;
	if (params_get()->mc_enable && !h->gpu->multicast)
		log_info(LOG_INIT, "no multicast: %s",
			most > 1     ? "ranks share a GPU"
			: !multicast ? "not all ranks ask for it on GPUs that can"
				     : "one rank");
	h->gpu->layout = dev_layout((uint32_t)h->nranks, SLOTS);
	TRY(gpu_may_reach(h, all));
	log_info(LOG_INIT, "%d ranks on %d GPUs, up to %d CTAs a kernel", h->nranks, distinct,
		g->ctas);
	return symcclSuccess;
}

static size_t bulk_offset(const struct hub *h)
{
	return align_up(dev_ctrl_bytes(&h->gpu->layout), (size_t)1 << 16);
}

static struct ring_layout rings(const struct hub *h)
{
	return ring_layout(bulk_offset(h) + BULK_BYTES, (uint32_t)h->nranks, RING_BYTES);
}

size_t hub_gpu_ctrl_bytes(const struct hub *h)
{
	return rings(h).end;
}

symcclResult_t hub_gpu_prove(struct hub *h, uint64_t deadline)
{
	const struct window *ctrl = h->sym.ctrl;

	/* The first batch brings the control blocks, or fails as a whole. In the scratch of large
	 * calls, of which there can be none yet. */
	if (h->gpu->proven || ctrl == NULL)
		return symcclSuccess;
	TRY(gpu_prove(h, ctrl->base + ctrl->off[0] + bulk_offset(h), ctrl->stride, deadline));
	h->gpu->proven = 1;
	return symcclSuccess;
}

int hub_gpu_multicast(const struct hub *h)
{
	return h->gpu->multicast;
}

const struct coll_gpu *hub_gpu_team(const struct hub *h)
{
	return &h->gpu->team;
}

void comm_gpu_watch(symcclComm_t comm, struct dev_watch *w)
{
	const struct hub *h = comm->hub;
	int l = 0;

	while (h->local[l] != comm)
		l++;
	w->abort = h->gpu->words_dev;
	w->record = h->gpu->words_dev + 64 * (uint64_t)(l + 1);
	w->timeout_ns = h->wait.timeout_ns;
	w->look_every = LOOK_EVERY;
}

int hub_gpu_check(struct hub *h, struct failure *f)
{
	for (int l = 0; h->gpu != NULL && l < h->nlocal; l++) {
		const struct dev_record *r =
			(const struct dev_record *)((char *)h->gpu->words + 64 * (l + 1));

		if (__atomic_load_n(&r->state, __ATOMIC_ACQUIRE) == 0)
			continue;
		f->rank = (int)r->rank;
		if (r->code == DEV_TIMED_OUT && r->peer == r->rank) {
			f->code = symcclTimeout;
			snprintf(f->text, sizeof(f->text),
				"rank %u's kernel waited %.3g s for a signal or a counter of its "
				"own (SYMCCL_OP_TIMEOUT)",
				r->rank, (double)h->wait.timeout_ns / 1e9);
		} else if (r->code == DEV_TIMED_OUT) {
			f->code = symcclTimeout;
			snprintf(f->text, sizeof(f->text),
				"rank %u's kernel waited %.3g s for rank %u (SYMCCL_OP_TIMEOUT), "
				"which %s",
				r->rank, (double)h->wait.timeout_ns / 1e9, r->peer,
				r->peer_hash ? "has begun the call but not finished it"
					     : "did not come to the same call");
		} else if (r->code == CUDA_DEAD_SIZES) {
			f->code = symcclInvalidUsage;
			snprintf(f->text, sizeof(f->text),
				"rank %u has a message of %llu bytes with rank %u, which has one "
				"of "
				"%llu bytes: what one sends must be what the other expects",
				r->rank, (unsigned long long)r->epoch, r->peer,
				(unsigned long long)r->peer_hash << 32 | r->hash);
		} else {
			f->code = symcclInvalidUsage;
			snprintf(f->text, sizeof(f->text),
				"rank %u makes another call than rank %u (call number %llu): all "
				"ranks must "
				"make the same calls in the same order, with symmetric windows at "
				"the same "
				"offsets",
				r->rank, r->peer, (unsigned long long)r->epoch);
		}
		return 1;
	}
	return 0;
}

/* ---- Ranks
 * ---------------------------------------------------------------------------------------- */

static symcclResult_t open_rank(symcclComm_t comm)
{
	struct hub *h = comm->hub;
	struct comm_gpu *g = calloc(1, sizeof(*g));
	const struct window *ctrl = h->sym.ctrl;
	struct cu_scope scope;
	CUcontext before = NULL;
	symcclResult_t e;
	int l = 0;

	if (g == NULL)
		return fail(symcclSystemError, "out of memory for a communicator");
	while (h->local[l] != comm)
		l++;
	comm->gpu = g;
	g->device = comm->device;
	g->team = (struct dev_team){.ctrl = (uintptr_t)ctrl->base + ctrl->off[0],
		.stride = ctrl->stride,
		.layout = h->gpu->layout,
		.rank = (uint32_t)comm->rank,
		.nranks = (uint32_t)comm->nranks};
	g->ring = rings(h);
	g->watch = (struct dev_watch){.abort = h->gpu->words_dev,
		.record = h->gpu->words_dev + 64 * (uint64_t)(l + 1),
		.timeout_ns = h->wait.timeout_ns,
		.look_every = LOOK_EVERY};
	TRY(cu_enter(&scope));
	e = cu.CtxGetCurrent(&before) == CUDA_SUCCESS
		    ? cu_bind_thread(g->device)
		    : fail(symcclUnhandledCudaError, "no context can be read on this thread");
	if (e == symcclSuccess && cu.CtxGetCurrent(&g->ctx) != CUDA_SUCCESS)
		e = fail(symcclUnhandledCudaError, "no context on GPU %d", g->device);
	if (e == symcclSuccess)
		e = kernels_of(g->device, &g->kernels);
	if (e == symcclSuccess)
		e = order_open(&g->order);
	cu.CtxSetCurrent(before); /* the caller's, which may be another GPU's */
	cu_leave(&scope);
	return e;
}

/* The peers have, or will have, opened theirs, and wait for this rank in their kernels. */
symcclResult_t comm_gpu_open(symcclComm_t comm)
{
	struct failure why = {.code = open_rank(comm), .rank = comm->rank};

	if (why.code != symcclSuccess) {
		snprintf(why.text, sizeof(why.text), "%s", error_text());
		hub_fail(comm->hub, &why);
	}
	return why.code;
}

void comm_gpu_close(symcclComm_t comm)
{
	struct cu_scope scope;
	int entered;

	if (comm->gpu == NULL)
		return;
	/* What runs still uses the control block. */
	entered = cu_enter(&scope) == symcclSuccess;
	order_close(&comm->gpu->order);
	gpu_copy_close(comm->gpu->copy);
	if (entered)
		cu_leave(&scope);
	if (comm->gpu->side != NULL)
		cu.EventDestroy(comm->gpu->side);
	free(comm->gpu);
	comm->gpu = NULL;
}

symcclResult_t comm_gpu_flush(symcclComm_t comm)
{
	struct cu_scope scope;
	symcclResult_t e;

	TRY(cu_enter(&scope));
	e = order_wait(&comm->gpu->order);
	cu_leave(&scope);
	return e;
}

symcclResult_t comm_gpu_check_buffer(symcclComm_t comm, const char *name, const void *ptr)
{
	unsigned type = 0;

	if (cu.PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		    (CUdeviceptr)(uintptr_t)ptr) == CUDA_SUCCESS)
		return symcclSuccess;
	return fail(symcclInvalidArgument,
		"%s %p is not memory that GPU %d of rank %d can reach (host memory?)", name, ptr,
		comm->device, comm->rank);
}

/* ---- Calls
 * ---------------------------------------------------------------------------------------- */

static symcclResult_t launch(symcclComm_t comm, const struct coll_call *c,
	const struct coll_plan *plan, int overlap, CUstream stream)
{
	struct comm_gpu *g = comm->gpu;
	enum cuda_algo algo = (enum cuda_algo)(plan->algo->gpu - 1);
	struct cuda_args a = {.team = g->team, .watch = g->watch, .count = c->count};
	uint32_t mode = 0;
	CUfunction fn = cuda_kernel_pick(g->kernels, algo, c->type,
		c->has_factor ? (int)CUDA_OP_PREMUL : (int)c->op, (uint32_t)comm->nranks, &mode);

	gpu_factor(&a, c);
	a.mode = mode | gpu_mode_early(comm);
	a.watch.hash = plan->hash;
	/* Windows through the space only, the rest by its own address. */
	a.in = (uintptr_t)(c->send.peers ? coll_peer(&c->send, comm->rank) : (char *)c->send.ptr);
	a.out = (uintptr_t)(c->recv.peers ? coll_peer(&c->recv, comm->rank) : (char *)c->recv.ptr);
	if (plan->algo->needs & COLL_NEED_SEND_WINDOW) {
		a.in = (uintptr_t)c->send.peers;
		a.in_stride = c->send.stride;
	}
	if (plan->algo->needs & COLL_NEED_RECV_WINDOW) {
		a.out = (uintptr_t)c->recv.peers;
		a.out_stride = c->recv.stride;
	}
	if (plan->algo->needs & COLL_NEED_MULTICAST) {
		a.in_mc = (uintptr_t)c->send.mc;
		a.out_mc = (uintptr_t)c->recv.mc;
	}
	if (c->func == symcclFuncAllReduce && algo == CUDA_REDUCESCATTER_DIRECT) {
		a.mode |= CUDA_MODE_WHOLE;
		a.out = (uintptr_t)coll_peer(&c->recv, comm->rank);
	}
	if (gpu_is_staged(algo)) {
		a.in_stride = bulk_offset(comm->hub);
		a.out_stride = gpu_staged_part(&comm->team, c, algo, plan->nctas);
	}
	if (c->func == symcclFuncAllGather)
		a.count *= coll_type_size(c->type);
	if (c->func == symcclFuncBarrier)
		a.count = 1;
	return cuda_kernel_launch(fn, &a, plan->nctas,
		gpu_threads(&comm->team, c, algo, plan->nctas), overlap, stream);
}

static symcclResult_t run_plan(symcclComm_t comm, const struct coll_call *c,
	const struct coll_plan *plan, int overlap, CUstream stream)
{
	return plan->algo->gpu == GPU_ROW(CUDA_COPY_ENGINE)
		       ? gpu_copy_run(comm, c, plan, overlap, stream)
		       : launch(comm, c, plan, overlap, stream);
}

symcclResult_t comm_gpu_run(symcclComm_t comm, const struct coll_call *c,
	const struct coll_plan *plan, symcclStream_t stream)
{
	struct comm_gpu *g = comm->gpu;
	CUstream s = (CUstream)stream;
	CUcontext now = NULL;
	symcclResult_t e;
	int pushed = 0;
	struct order_step step;

	if (c->count == 0 && c->func != symcclFuncBarrier && !coll_is_listed(c->func))
		return symcclSuccess;
	cu.CtxGetCurrent(&now);
	if (now != g->ctx) {
		CUresult r = cu.CtxPushCurrent(g->ctx);

		if (r != CUDA_SUCCESS)
			return cu_fail(r, "making GPU %d current", g->device);
		pushed = 1;
	}
	e = order_before(&g->order, s, &step);
	if (e == symcclSuccess)
		e = c->func >= symcclFuncBroadcast ? gpu_call_run(comm, c, plan, step.overlap, s)
						   : run_plan(comm, c, plan, step.overlap, s);
	if (e == symcclSuccess)
		e = order_after(&g->order, s, &step);
	if (pushed)
		cu.CtxPopCurrent(&now);
	return e;
}
