/* Puts, signals and waits for them on GPUs. */
#include "gpu_state.h"
#include "util.h"

#define KERNEL_PUT_BYTES ((size_t)64 << 10) /* more are copied by the driver before the kernel */
#define SIGNAL_THREADS 256

static symcclResult_t run_signal(
	symcclComm_t comm, const struct coll_call *c, int overlap, CUstream stream)
{
	struct comm_gpu *g = comm->gpu;
	struct cuda_signal a = {.team = g->team,
		.watch = g->watch,
		.signals = g->ring.signals,
		.from = gpu_own_address(comm, &c->send),
		.to = (uintptr_t)c->recv.ptr,
		.peer = (uint32_t)c->root,
		.index = (uint32_t)c->signal};

	if (c->func == symcclFuncPutSignal)
		a.bytes = c->count * coll_type_size(c->type);
	if (a.bytes > KERNEL_PUT_BYTES) {
		CUresult r = cu.MemcpyAsync(
			(CUdeviceptr)a.to, (CUdeviceptr)a.from, (size_t)a.bytes, stream);

		if (r != CUDA_SUCCESS)
			return cu_fail(r, "copying %llu bytes to rank %d",
				(unsigned long long)a.bytes, c->root);
		a.bytes = overlap = 0;
	}
	return cuda_list_launch(g->kernels->fn[CUDA_SIGNAL][0][0][0], &a, 1,
		a.bytes ? SIGNAL_THREADS : 32, overlap, stream);
}

static symcclResult_t run_wait(
	symcclComm_t comm, const struct coll_call *c, int overlap, CUstream stream)
{
	struct comm_gpu *g = comm->gpu;
	struct cuda_waits a = {.team = g->team, .watch = g->watch, .signals = g->ring.signals};

	for (int at = 0; at < c->nwaits;) {
		for (a.n = 0; at < c->nwaits; at++) {
			const symcclWaitSignalDesc_t *d = &c->wait[at];
			uint32_t i = 0;

			while (i < a.n && (a.w[i].peer != (uint32_t)d->peer ||
						  a.w[i].index != (uint32_t)d->sigIdx))
				i++;
			if (i == CUDA_WAITS_MAX)
				break;
			if (i == a.n) {
				a.n++;
				a.w[i].peer = (uint32_t)d->peer;
				a.w[i].index = (uint32_t)d->sigIdx;
				a.w[i].count = 0;
			}
			a.w[i].count += (uint32_t)d->opCnt;
		}
		TRY(cuda_list_launch(g->kernels->fn[CUDA_WAITS][0][0][0], &a, 1,
			(int)align_up(a.n, 32), overlap, stream));
		overlap = 1;
	}
	return symcclSuccess;
}

symcclResult_t gpu_signals_run(
	symcclComm_t comm, const struct coll_call *c, int overlap, CUstream stream)
{
	return c->func == symcclFuncWaitSignal ? run_wait(comm, c, overlap, stream)
					       : run_signal(comm, c, overlap, stream);
}
