/*
 * All kernels of one reducing algorithm, by kernels.def. Define ALGORITHM, include its header, then
 * this.
 */
#include "kernels.def"

#define PASTE(algo, elem, op) symccl_##algo##_##elem##_##op
#define PASTE_N(algo, elem, op, n) symccl_##algo##_##elem##_##op##_##n
#define NAME(algo, elem, op) PASTE(algo, elem, op)
#define NAME_N(algo, elem, op, n) PASTE_N(algo, elem, op, n)

#define ANY_RANKS(elem, op) \
	KERNEL(NAME(ALGORITHM, elem, op)) \
	{ \
		ALGORITHM<elem, OP_##op, 0>(args); \
	}
#define ANY_RANKS_ALL_OPS(elem) CUDA_OPS(ANY_RANKS, elem)
#define FIXED_RANKS(elem, op, n) \
	KERNEL(NAME_N(ALGORITHM, elem, op, n)) \
	{ \
		ALGORITHM<elem, OP_##op, n>(args); \
	}
#define FIXED_RANKS_ALL_ELEMS(n) CUDA_FIXED_ELEMS(FIXED_RANKS, n)

CUDA_ELEMS(ANY_RANKS_ALL_OPS)
CUDA_FIXED_RANKS(FIXED_RANKS_ALL_ELEMS)
