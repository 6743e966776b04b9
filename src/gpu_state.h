/*
 * A rank on a GPU, for the files that run its calls: comm_gpu.c (set-up, collectives on windows and
 * through scratch) and gpu_calls.c (all others).
 */
#ifndef GPU_STATE_H
#define GPU_STATE_H

#include "coll/cuda/launch.h"
#include "comm_gpu.h"
#include "gpu_order.h"

struct comm_gpu {
	int device;
	CUcontext ctx;
	const struct cuda_kernels *kernels;
	struct dev_team team;
	struct dev_watch watch;
	struct gpu_order order;
	char *bulk; /* rank 0's scratch as this rank sees it */
};

/* Enqueue a call from symcclFuncBroadcast on, whose turn it is, on the stream; the rank's context
 * is current. overlap: as cuda_kernel_launch(). */
symcclResult_t gpu_call_run(symcclComm_t comm, const struct coll_call *c,
	const struct coll_plan *plan, int overlap, CUstream stream);

#endif
