/* The kernels on multicast windows. */
#include "multimem.cuh"
#include "kernels.def"

#define SUMS(elem) \
	KERNEL(symccl_allreduce_multimem_##elem##_sum) \
	{ \
		allreduce_multimem<elem, OP_sum, 0>(args); \
	} \
	KERNEL(symccl_reducescatter_multimem_##elem##_sum) \
	{ \
		reducescatter_multimem<elem, OP_sum, 0>(args); \
	}
CUDA_MULTIMEM_ELEMS(SUMS)

KERNEL(symccl_allgather_multimem)
{
	allgather_multimem(args);
}
