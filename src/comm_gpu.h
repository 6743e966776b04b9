/*
 * The GPU side of communicators: what hubs and ranks hold on the CUDA backend, and launching.
 */
#ifndef COMM_GPU_H
#define COMM_GPU_H

#include "device/ctrl.h"
#include "hub.h"

/* What a process says of one of its ranks' GPUs when a communicator is made. */
struct gpu_hello {
	uint8_t uuid[16];
	int32_t sms;
	int32_t multicast; /* wants it (SYMCCL_MC_ENABLE), and its GPU can */
};

/* Worker thread: bind it to the ranks' GPU, load the kernels, make the words that kernels look at.
 */
symcclResult_t hub_gpu_open(struct hub *h);
void hub_gpu_close(struct hub *h);
symcclResult_t hub_gpu_say(const struct hub *h, int local, struct gpu_hello *me);
/* From what all ranks said: h->gpu. all[r] is rank r's. */
symcclResult_t hub_gpu_hear(struct hub *h, const struct gpu_hello *all);
/* Bytes of a rank's control block, and the layout in it. */
size_t hub_gpu_ctrl_bytes(const struct hub *h);
/* Agreed: windows get multicast addresses where they can. */
int hub_gpu_multicast(const struct hub *h);
const struct coll_gpu *hub_gpu_team(const struct hub *h);
/* Worker thread, collective, after each batch: when the control blocks are new, prove that all
 * ranks' GPUs reach each other's. The same result on all ranks. */
symcclResult_t hub_gpu_prove(struct hub *h, uint64_t deadline);
/* Has a kernel of this process given up? Then why, in *f: 1. */
int hub_gpu_check(struct hub *h, struct failure *f);

/* A rank's own state, made when its control block is mapped; comm->gpu. */
symcclResult_t comm_gpu_open(symcclComm_t comm);
void comm_gpu_close(symcclComm_t comm);
/* Wait until what the rank has enqueued is done. */
symcclResult_t comm_gpu_flush(symcclComm_t comm);
/* Enqueue one planned call on the stream; returns at once. */
symcclResult_t comm_gpu_run(symcclComm_t comm, const struct coll_call *c,
	const struct coll_plan *plan, symcclStream_t stream);
/* How the waits of the rank's own kernels end: all but the hash. */
void comm_gpu_watch(symcclComm_t comm, struct dev_watch *w);
/* symcclInvalidArgument when a buffer cannot be reached by the rank's GPU. */
symcclResult_t comm_gpu_check_buffer(symcclComm_t comm, const char *name, const void *ptr);

#endif
