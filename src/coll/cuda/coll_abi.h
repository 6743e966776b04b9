/*
 * What the host hands to a kernel. C only; both compilers assert the layout.
 */
#ifndef COLL_ABI_H
#define COLL_ABI_H

#include <stddef.h>
#include <stdint.h>
#include "device/ctrl.h"

#define CUDA_THREADS_MAX 512 /* of a CTA; any multiple of 32 up to it will do */

/* What a reducing kernel does besides its operator: struct cuda_args.mode. */
enum {
	CUDA_MODE_AVG = 1,    /* sum: divide by the number of ranks */
	CUDA_MODE_PREMUL = 2, /* sum: each rank's input times its own factor first */
	CUDA_MODE_SIGNED = 4, /* sum, min: the integers are signed */
	CUDA_MODE_MAX = 8,    /* min: take the maximum instead */
	/* Who takes part in what is one call for all ranks; neither: everybody sends to everybody.
	 */
	CUDA_MODE_FROM_ROOT = 16, /* broadcast, scatter: the root sends */
	CUDA_MODE_TO_ROOT = 32    /* gather, reduce: the root hears; a reduce-scatter kernel then
				     takes all elements for the root's part */
};

/*
 * Buffers. Packet kernels touch only this rank's own: in, out are its user's addresses, the strides
 * are not read. Direct kernels reach rank q's at in + q * in_stride, out + q * out_stride (the
 * space's addresses, rank 0 first), except that all-gather reads its input, and reduce-scatter
 * writes its output, at `in` (`out`) itself. One alias rule: if those lie in a window that the same
 * kernel also reaches through the space, they must be given as addresses in the space too. Every
 * in_stride and out_stride is a multiple of 16.
 *
 * Move kernels: rank q's block is at in + q * in_stride, out + q * out_stride (any numbers; 0 where
 * there is one block). Push kernel: out is the space's address as above, in + q * count this rank's
 * block for q, or in itself for all when the root sends.
 *
 * count is the call's own: elements of the whole vector (all-reduce, reduce), of one rank's part
 * (all-gather and the kernels that move blocks, which are told bytes; reduce-scatter). Not 0.
 */
struct cuda_args {
	struct dev_team team;
	struct dev_watch watch;
	uint64_t in, in_stride;
	uint64_t out, out_stride;
	uint64_t count;
	uint64_t factor;    /* of a pre-multiplied sum, as an element in the low bytes */
	uint64_t factor_at; /* or its address, read when the kernel runs; 0: none */
	uint32_t mode;      /* CUDA_MODE_* */
	uint32_t root;
};
DEV_ASSERT(sizeof(struct cuda_args) == 152);
DEV_ASSERT(offsetof(struct cuda_args, watch) == 56);
DEV_ASSERT(offsetof(struct cuda_args, in) == 88);
DEV_ASSERT(offsetof(struct cuda_args, mode) == 144);

/* Kernels, by what they do: the row names in kernels.def. */
enum cuda_algo {
	CUDA_ALLREDUCE_ONESHOT, /* packets: everything to everybody */
	CUDA_ALLREDUCE_TWOSTEP, /* packets: reduce a part each, then send it round */
	CUDA_ALLREDUCE_DIRECT,  /* load a part from everybody, store it to everybody */
	CUDA_REDUCESCATTER_PACKET,
	CUDA_REDUCESCATTER_DIRECT,
	CUDA_ALLGATHER_PACKET,
	CUDA_ALLGATHER_DIRECT,
	CUDA_BARRIER,
	CUDA_MOVE_PACKET, /* blocks from rank to rank */
	CUDA_PUSH_DIRECT, /* blocks into the receivers' windows */
	CUDA_NUM_ALGOS
};

/* Packets of one epoch's half that a call needs; the kernel may run when they are at most
 * layout.slots. bytes: count in bytes. Direct kernels and the barrier: 0. */
static inline uint64_t cuda_slots_needed(enum cuda_algo algo, uint32_t nranks, uint64_t bytes)
{
	uint64_t packs = (bytes + 7) / 8;

	switch (algo) {
	case CUDA_ALLREDUCE_ONESHOT:
	case CUDA_REDUCESCATTER_PACKET:
	case CUDA_ALLGATHER_PACKET:
		return packs * nranks;
	case CUDA_MOVE_PACKET: /* at most: see struct route */
		return packs * nranks + nranks;
	case CUDA_ALLREDUCE_TWOSTEP:
		return 2 * ((packs + nranks - 1) / nranks) * nranks;
	default:
		return 0;
	}
}

#endif
