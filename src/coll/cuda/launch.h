/*
 * The GPU kernels, seen from C: load all of them, pick one, launch it.
 */
#ifndef COLL_CUDA_LAUNCH_H
#define COLL_CUDA_LAUNCH_H

#include "coll/cuda/coll_abi.h"
#include "cuda/driver.h"

enum { CUDA_NUM_ELEMS = 9, CUDA_NUM_OPS = 3, CUDA_NUM_WIDTHS = 4 /* any, 2, 4, 8 ranks */ };

/* All kernels on one GPU. NULL where the table has none. */
struct cuda_kernels {
	CUfunction fn[CUDA_NUM_ALGOS][CUDA_NUM_ELEMS][CUDA_NUM_OPS][CUDA_NUM_WIDTHS];
};

/* Load all kernels into the current context: once a GPU, before any of them runs (a kernel that is
 * loaded late may wait for one that spins). Not while the thread captures. The code stays loaded
 * until the process ends. Any thread.
 * symcclInvalidUsage: built without nvcc, or not for this GPU. */
symcclResult_t cuda_kernels_load(struct cuda_kernels *k);

/* What an operator is to the kernels. op: a symcclRedOp_t of the table, or CUDA_OP_PREMUL. */
#define CUDA_OP_PREMUL symcclNumOps

/* The kernel for a call; type and op are not read by algorithms that do not reduce. *mode gets the
 * CUDA_MODE_* bits to pass. The one made for this number of ranks, where there is one. */
CUfunction cuda_kernel_pick(const struct cuda_kernels *k, enum cuda_algo algo,
	symcclDataType_t type, int op, uint32_t nranks, uint32_t *mode);

/* CTAs of this kernel, as large as can be, that fit on one multiprocessor at once. */
symcclResult_t cuda_kernel_fits(CUfunction fn, int *per_sm);

/* Launch on a stream, capturing or not; returns at once. threads: of a CTA, a multiple of 32 up to
 * CUDA_THREADS_MAX; need not agree between ranks for packets, but better do. overlap: may start
 * while the kernel before it on the stream ends (programmatic dependent launch; the kernels wait
 * where they must). The context of the stream must be current. symcclUnhandledCudaError, with a
 * sentence. */
symcclResult_t cuda_kernel_launch(CUfunction fn, const struct cuda_args *args, int nctas,
	int threads, int overlap, CUstream stream);

/* The same for a kernel with an argument of its own (enum cuda_algo says which). */
symcclResult_t cuda_list_launch(
	CUfunction fn, const void *args, int nctas, int threads, int overlap, CUstream stream);

#endif
