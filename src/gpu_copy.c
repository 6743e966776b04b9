#include <stdlib.h>
#include "gpu_copy.h"
#include "util.h"

/* A rank's own block is copied beside those that go over links. */
struct gpu_copy {
	CUstream stream;
	CUevent begin, end;
};

static symcclResult_t copy_open(struct gpu_copy **out)
{
	struct gpu_copy *copy = calloc(1, sizeof(*copy));
	struct cu_scope scope;
	CUresult r;

	if (copy == NULL)
		return fail(symcclSystemError, "out of memory for a copy");
	if (cu_enter(&scope) != symcclSuccess) { /* the call may be captured */
		free(copy);
		return symcclUnhandledCudaError;
	}
	r = cu.StreamCreate(&copy->stream, CU_STREAM_NON_BLOCKING);
	if (r == CUDA_SUCCESS)
		r = cu.EventCreate(&copy->begin, CU_EVENT_DISABLE_TIMING);
	if (r == CUDA_SUCCESS)
		r = cu.EventCreate(&copy->end, CU_EVENT_DISABLE_TIMING);
	cu_leave(&scope);
	if (r != CUDA_SUCCESS) {
		gpu_copy_close(copy);
		return cu_fail(r, "a stream for copies");
	}
	*out = copy;
	return symcclSuccess;
}

void gpu_copy_close(struct gpu_copy *copy)
{
	if (copy == NULL)
		return;
	if (copy->end != NULL)
		cu.EventDestroy(copy->end);
	if (copy->begin != NULL)
		cu.EventDestroy(copy->begin);
	if (copy->stream != NULL)
		cu.StreamDestroy(copy->stream);
	free(copy);
}

static symcclResult_t meet(symcclComm_t comm, uint32_t hash, int overlap, CUstream stream)
{
	struct comm_gpu *g = comm->gpu;
	struct cuda_args a = {.team = g->team, .watch = g->watch, .count = 1};
	uint32_t mode;
	CUfunction fn = cuda_kernel_pick(
		g->kernels, CUDA_BARRIER, symcclInt8, symcclSum, (uint32_t)comm->nranks, &mode);

	a.watch.hash = hash;
	return cuda_kernel_launch(
		fn, &a, 1, (int)align_up((size_t)comm->nranks, 32), overlap, stream);
}

/* To rank q, d places further on. One's own goes on a stream of its own, unless it is there. */
static CUresult put(symcclComm_t comm, const struct coll_call *c, int d, CUstream stream)
{
	size_t bytes = c->count * coll_type_size(c->type);
	int q = (comm->rank + d) % comm->nranks;
	CUdeviceptr to =
		(CUdeviceptr)(uintptr_t)(coll_peer(&c->recv, q) + (size_t)comm->rank * bytes);

	return cu.MemcpyAsync(to, gpu_own_address(comm, &c->send), bytes, stream);
}

static CUresult copies(
	symcclComm_t comm, const struct coll_call *c, struct gpu_copy *copy, CUstream stream)
{
	size_t bytes = c->count * coll_type_size(c->type);
	int own = (char *)c->send.ptr != (char *)c->recv.ptr + (size_t)comm->rank * bytes;
	CUresult r = CUDA_SUCCESS;

	if (own) {
		r = cu.EventRecord(copy->begin, stream);
		if (r == CUDA_SUCCESS)
			r = cu.StreamWaitEvent(copy->stream, copy->begin, 0);
		if (r == CUDA_SUCCESS)
			r = put(comm, c, 0, copy->stream);
		if (r == CUDA_SUCCESS)
			r = cu.EventRecord(copy->end, copy->stream);
	}
	for (int d = 1; d < comm->nranks && r == CUDA_SUCCESS; d++)
		r = put(comm, c, d, stream);
	if (own && r == CUDA_SUCCESS)
		r = cu.StreamWaitEvent(stream, copy->end, 0);
	return r;
}

symcclResult_t gpu_copy_run(symcclComm_t comm, const struct coll_call *c,
	const struct coll_plan *plan, int overlap, CUstream stream)
{
	struct comm_gpu *g = comm->gpu;
	CUresult r;

	if (g->copy == NULL)
		TRY(copy_open(&g->copy));
	TRY(meet(comm, plan->hash, overlap, stream));
	r = copies(comm, c, g->copy, stream);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "an all-gather's copies");
	return meet(comm, plan->hash, 0, stream);
}
