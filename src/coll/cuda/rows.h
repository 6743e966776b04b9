/* The GPU's half of the algorithm table: see rows.c. */
#ifndef COLL_CUDA_ROWS_H
#define COLL_CUDA_ROWS_H

#include "coll/coll.h"
#include "coll/cuda/coll_abi.h"

/* coll_algo.gpu of a row: which kernel, plus one. */
#define GPU_ROW(algo) ((algo) + 1)

/* A row without a kernel of its own: the caller enqueues copies between barriers. */
#define CUDA_COPY_ENGINE CUDA_NUM_ALGOS

size_t gpu_packet_most(const struct coll_team *t);
size_t gpu_twostep_most(const struct coll_team *t);
/* Bytes of a block (of a reduce: of the vector) that packets can take in one round. */
size_t gpu_round_most(const struct coll_team *t, symcclFunc_t func);
double gpu_barrier_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_oneshot_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_twostep_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_allreduce_direct_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_allreduce_load_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_gather_packet_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_gather_direct_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_allreduce_staged_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_gather_staged_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_gather_copy_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_rounds_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_push_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_ring_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_allreduce_multimem_cost(const struct coll_team *t, const struct coll_call *c);
double gpu_gather_multimem_cost(const struct coll_team *t, const struct coll_call *c);
/* Why the switch cannot reduce what the call wants; NULL: it can. */
const char *gpu_multimem_refusal(const struct coll_call *c);
/* CTAs that a call takes, and threads of each. */
int gpu_ctas(const struct coll_team *t, const struct coll_call *c, enum cuda_algo algo);
int gpu_threads(
	const struct coll_team *t, const struct coll_call *c, enum cuda_algo algo, int nctas);
static inline int gpu_is_staged(enum cuda_algo algo)
{
	return algo == CUDA_ALLREDUCE_STAGED || algo == CUDA_ALLGATHER_STAGED ||
	       algo == CUDA_REDUCESCATTER_STAGED;
}
/* Bytes of a staged kernel's parts (cuda_args.out_stride); they fit into coll_gpu.scratch. */
size_t gpu_staged_part(
	const struct coll_team *t, const struct coll_call *c, enum cuda_algo algo, int nctas);

#endif
