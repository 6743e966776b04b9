/* NCCL's data calls: the same arguments, another handle. */
#include "shim/shim.h"

#define TYPE ((symcclDataType_t)datatype)
#define OP ((symcclRedOp_t)op)
#define STREAM ((symcclStream_t)stream)

SHIM(ncclResult_t, ncclAllGather, const void *sendbuff, void *recvbuff, size_t sendcount,
	ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclAllGather(sendbuff, recvbuff, sendcount, TYPE, c, STREAM));
}

SHIM(ncclResult_t, ncclAllReduce, const void *sendbuff, void *recvbuff, size_t count,
	ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclAllReduce(sendbuff, recvbuff, count, TYPE, OP, c, STREAM));
}

SHIM(ncclResult_t, ncclReduceScatter, const void *sendbuff, void *recvbuff, size_t recvcount,
	ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclReduceScatter(sendbuff, recvbuff, recvcount, TYPE, OP, c, STREAM));
}

SHIM(ncclResult_t, ncclReduce, const void *sendbuff, void *recvbuff, size_t count,
	ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclReduce(sendbuff, recvbuff, count, TYPE, OP, root, c, STREAM));
}

SHIM(ncclResult_t, ncclBroadcast, const void *sendbuff, void *recvbuff, size_t count,
	ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclBroadcast(sendbuff, recvbuff, count, TYPE, root, c, STREAM));
}

SHIM(ncclResult_t, ncclBcast, void *buff, size_t count, ncclDataType_t datatype, int root,
	ncclComm_t comm, cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclBcast(buff, count, TYPE, root, c, STREAM));
}

SHIM(ncclResult_t, ncclAlltoAll, const void *sendbuff, void *recvbuff, size_t count,
	ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclAlltoAll(sendbuff, recvbuff, count, TYPE, c, STREAM));
}

SHIM(ncclResult_t, ncclGather, const void *sendbuff, void *recvbuff, size_t count,
	ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclGather(sendbuff, recvbuff, count, TYPE, root, c, STREAM));
}

SHIM(ncclResult_t, ncclScatter, const void *sendbuff, void *recvbuff, size_t count,
	ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclScatter(sendbuff, recvbuff, count, TYPE, root, c, STREAM));
}

SHIM(ncclResult_t, ncclSend, const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
	ncclComm_t comm, cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclSend(sendbuff, count, TYPE, peer, c, STREAM));
}

SHIM(ncclResult_t, ncclRecv, void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
	ncclComm_t comm, cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclRecv(recvbuff, count, TYPE, peer, c, STREAM));
}

SHIM(ncclResult_t, ncclSignal, int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
	cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclSignal(peer, sigIdx, ctx, flags, c, STREAM));
}

SHIM(ncclResult_t, ncclWaitSignal, int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
	cudaStream_t stream)
{
	SHIM_COMM(comm, c);
	return shim_result(
		symcclWaitSignal(nDesc, (const symcclWaitSignalDesc_t *)signalDescs, c, STREAM));
}

/* Numbers of created operators are symccl's. */
SHIM(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
	ncclScalarResidence_t residence, ncclComm_t comm)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclRedOpCreatePreMulSum(
		(symcclRedOp_t *)op, scalar, TYPE, (symcclScalarResidence_t)residence, c));
}

SHIM(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclRedOpDestroy(OP, c));
}
