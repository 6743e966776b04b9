/*
 * All-gather by the copy engines: a barrier, copies into every rank's window, a barrier. It begins
 * later than a kernel's stores and is then as fast, but leaves the multiprocessors alone.
 */
#ifndef GPU_COPY_H
#define GPU_COPY_H

#include "gpu_state.h"

/* Enqueue; the rank's context is current, it is the call's turn on the stream. Captured or not. */
symcclResult_t gpu_copy_run(symcclComm_t comm, const struct coll_call *c,
	const struct coll_plan *plan, int overlap, CUstream stream);
/* Before the rank's state goes; what was enqueued is done. */
void gpu_copy_close(struct gpu_copy *copy);

#endif
