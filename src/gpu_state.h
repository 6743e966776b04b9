/*
 * A rank on a GPU, for the files that run its calls: comm_gpu.c (set-up, collectives) and
 * gpu_calls.c (all others).
 */
#ifndef GPU_STATE_H
#define GPU_STATE_H

#include "coll/cuda/launch.h"
#include "comm_gpu.h"
#include "gpu_order.h"

struct gpu_copy;

struct comm_gpu {
	int device;
	CUcontext ctx;
	const struct cuda_kernels *kernels;
	struct dev_team team;
	struct dev_watch watch;
	struct gpu_order order;
	struct gpu_copy *copy; /* gpu_copy.c; made when it is needed */
	struct ring_layout ring;
	CUevent side; /* between a group's streams; made when there are some */
};

/* Enqueue a call from symcclFuncBroadcast on, whose turn it is, on the stream; the rank's context
 * is current. overlap: as cuda_kernel_launch(). */
symcclResult_t gpu_call_run(symcclComm_t comm, const struct coll_call *c,
	const struct coll_plan *plan, int overlap, CUstream stream);

/* Sends and receives, and what is made of them. */
symcclResult_t gpu_messages_run(
	symcclComm_t comm, const struct coll_call *c, int overlap, CUstream stream);

/* Puts, signals and waits for them. */
symcclResult_t gpu_signals_run(
	symcclComm_t comm, const struct coll_call *c, int overlap, CUstream stream);

/* CUDA_MODE_EARLY where it may be. */
static inline uint32_t gpu_mode_early(symcclComm_t comm)
{
	return comm->team.gpu->ranks_per_gpu == 1 ? CUDA_MODE_EARLY : 0;
}

/* The factor of a pre-multiplied sum, or where it will be. */
static inline void gpu_factor(struct cuda_args *a, const struct coll_call *c)
{
	if (c->has_factor == 2)
		a->factor_at = c->factor;
	else
		a->factor = c->factor;
}
/* Windows through the space, the rest by its own address: one alias in a kernel. */
static inline uint64_t gpu_own_address(symcclComm_t comm, const struct coll_buf *b)
{
	return (uintptr_t)(b->peers ? coll_peer(b, comm->rank) : (char *)b->ptr);
}

/* Offset of own memory from the control block, for peers to reach it by; ~0: in no window, or in
 * one that lies in another range of addresses. */
static inline uint64_t gpu_offset(symcclComm_t comm, const struct coll_buf *b)
{
	const struct dev_team *t = &comm->gpu->team;
	uint64_t own = t->ctrl + t->rank * t->stride, at = gpu_own_address(comm, b);

	if (b->peers == NULL || b->stride != t->stride || at < own || at - own >= t->stride)
		return ~(uint64_t)0;
	return at - own;
}

#endif
