/* Calls on GPUs that move or reduce blocks between ranks: what their kernels are told. */
#include "coll/cuda/rows.h"
#include "gpu_state.h"
#include "util.h"

static uint32_t call_mode(symcclFunc_t f)
{
	if (f == symcclFuncBroadcast || f == symcclFuncScatter)
		return CUDA_MODE_FROM_ROOT;
	return f == symcclFuncGather || f == symcclFuncReduce ? CUDA_MODE_TO_ROOT : 0;
}

/* 0: peers cannot reach it. */
static uint64_t root_offset(symcclComm_t comm, const struct coll_buf *b)
{
	uint64_t at = gpu_offset(comm, b);

	return at == ~(uint64_t)0 ? 0 : at;
}

/* Broadcast, reduce, all-to-all, gather, scatter: packets in as many rounds as the slots ask for,
 * or one kernel on windows. */
static symcclResult_t run_blocks(symcclComm_t comm, const struct coll_call *c,
	const struct coll_plan *plan, int overlap, CUstream stream)
{
	struct comm_gpu *g = comm->gpu;
	enum cuda_algo algo = (enum cuda_algo)(plan->algo->gpu - 1);
	int direct = (plan->algo->needs & (COLL_NEED_SEND_WINDOW | COLL_NEED_RECV_WINDOW)) != 0;
	int reduces = c->func == symcclFuncReduce;
	int blocks_in = c->func == symcclFuncAlltoAll || c->func == symcclFuncScatter;
	int blocks_out = c->func == symcclFuncAlltoAll || c->func == symcclFuncGather;
	size_t es = coll_type_size(c->type), most = gpu_round_most(&comm->team, c->func) / es;
	struct cuda_args a = {.team = g->team, .watch = g->watch, .root = (uint32_t)c->root};
	struct coll_call part = *c;
	uint32_t mode = 0;
	CUfunction fn = cuda_kernel_pick(g->kernels, algo, c->type,
		c->has_factor ? (int)CUDA_OP_PREMUL : (int)c->op, (uint32_t)comm->nranks, &mode);

	gpu_factor(&a, c);
	a.watch.hash = plan->hash;
	a.mode = mode | call_mode(c->func) | gpu_mode_early(comm);
	if (direct)
		most = c->count;
	for (size_t at = 0; at < c->count; at += most) {
		int nctas;

		part.count = MIN(most, c->count - at);
		a.count = reduces ? part.count : part.count * es;
		a.in = gpu_own_address(comm, &c->send) + at * es;
		a.out = gpu_own_address(comm, &c->recv) + at * es;
		a.in_stride = blocks_in ? c->count * es : 0;
		a.out_stride = blocks_out ? c->count * es : 0;
		if (plan->algo->needs & COLL_NEED_SEND_WINDOW) {
			a.in = (uintptr_t)c->send.peers;
			a.in_stride = c->send.stride;
		}
		if (plan->algo->needs & COLL_NEED_RECV_WINDOW) {
			a.out = (uintptr_t)c->recv.peers;
			a.out_stride = c->recv.stride;
		}
		/* What the root's buffer is to the others, when it counts on the root alone. */
		if (direct && comm->rank == c->root && c->func == symcclFuncBroadcast)
			a.in_stride = root_offset(comm, &c->send);
		if (direct && comm->rank == c->root && c->func == symcclFuncReduce)
			a.out_stride = root_offset(comm, &c->recv);
		nctas = gpu_ctas(&comm->team, &part, algo);
		TRY(cuda_kernel_launch(fn, &a, nctas, gpu_threads(&comm->team, &part, algo, nctas),
			overlap || at > 0, stream));
	}
	return symcclSuccess;
}

symcclResult_t gpu_call_run(symcclComm_t comm, const struct coll_call *c,
	const struct coll_plan *plan, int overlap, CUstream stream)
{
	if (c->func == symcclFuncPutSignal || c->func == symcclFuncSignal ||
		c->func == symcclFuncWaitSignal)
		return gpu_signals_run(comm, c, overlap, stream);
	if (plan->algo->gpu == GPU_ROW(CUDA_MESSAGES))
		return gpu_messages_run(comm, c, overlap, stream);
	return run_blocks(comm, c, plan, overlap, stream);
}
