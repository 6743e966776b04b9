/* The kernels that do not reduce. */
#include "direct.cuh"
#include "packets.cuh"
#include "ring.cuh"
#include "route.cuh"
#include "staged.cuh"
#include "kernels.def"

#define GATHER(n) \
	KERNEL(symccl_allgather_packet_##n) \
	{ \
		allgather_packet<n>(args); \
	}
CUDA_FIXED_RANKS(GATHER)

KERNEL(symccl_allgather_packet)
{
	allgather_packet<0>(args);
}
KERNEL(symccl_allgather_direct)
{
	allgather_direct(args);
}
KERNEL(symccl_allgather_staged)
{
	allgather_staged(args);
}
KERNEL(symccl_barrier)
{
	barrier(args);
}
KERNEL(symccl_move_packet)
{
	move_packet(args);
}
KERNEL(symccl_push_direct)
{
	push_direct(args);
}
KERNEL_OF(cuda_messages, symccl_messages)
{
	messages(args);
}
KERNEL_OF(cuda_signal, symccl_signal)
{
	put_signal(args);
}
KERNEL_OF(cuda_waits, symccl_waits)
{
	wait_signals(args);
}
