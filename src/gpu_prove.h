/*
 * Proof that GPUs reach each other's memory. A driver may say so while what is written gets lost or
 * what is read is something else (IOMMU, ACS, virtual machines), so every pair of ranks is tried
 * once, when the control blocks are mapped: by these mappings, which is what kernels will use, in
 * both directions, and what was written is checked by its owner. It is cheap enough to do for every
 * communicator; nothing is kept, and GPUs that this process cannot see by themselves are tried too.
 */
#ifndef GPU_PROVE_H
#define GPU_PROVE_H

#include "comm_gpu.h"

/* Bytes of each rank's room. */
size_t gpu_prove_bytes(int nranks);
/* Worker thread, collective. room: rank 0's as this process sees it, rank r's is stride further on;
 * left dirty. Any failure is the same on all ranks: symcclInvalidUsage, naming the ranks, when a
 * copy comes out wrong. */
symcclResult_t gpu_prove(struct hub *h, char *room, size_t stride, uint64_t deadline);
/* Before that, by what the driver says of the GPUs that this process sees. all[r] is rank r's. */
symcclResult_t gpu_may_reach(const struct hub *h, const struct gpu_hello *all);

#endif
