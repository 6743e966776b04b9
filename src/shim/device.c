/*
 * The host half of NCCL's device API. Teams and properties are told; what hands NCCL's in-kernel
 * structs to user kernels is refused: their layout is private to NCCL's own headers.
 */
#include <string.h>
#include "shim/nccl_device_host.h"
#include "shim/shim.h"

static ncclTeam_t team(ncclComm_t comm, int whole)
{
	ncclTeam_t t = {1, 0, 1};
	symcclComm_t c;

	if (shim_comm(comm, &c) != ncclSuccess)
		return t;
	if (whole) {
		symcclCommCount(c, &t.nRanks);
		symcclCommUserRank(c, &t.rank);
	} else {
		symcclCommCount(c, &t.stride);
	}
	return t;
}

SHIM(ncclTeam_t, ncclTeamWorld, ncclComm_t comm)
{
	return team(comm, 1);
}

SHIM(ncclTeam_t, ncclTeamLsa, ncclComm_t comm)
{
	return team(comm, 1);
}

SHIM(ncclTeam_t, ncclTeamRail, ncclComm_t comm)
{
	return team(comm, 0);
}

SHIM(int, ncclTeamRankToWorld, ncclComm_t comm, ncclTeam_t t, int rank)
{
	return team(comm, 1).rank + (rank - t.rank) * t.stride;
}

SHIM(int, ncclTeamRankToLsa, ncclComm_t comm, ncclTeam_t t, int rank)
{
	return pncclTeamRankToWorld(comm, t, rank);
}

SHIM(ncclResult_t, ncclCommQueryProperties, ncclComm_t comm, ncclCommProperties_t *props)
{
	ncclCommProperties_t p = {.ginType = NCCL_GIN_TYPE_NONE, .nLsaTeams = 1};

	SHIM_COMM(comm, c);
	if (props == NULL || props->magic != NCCL_API_MAGIC ||
		props->size < offsetof(ncclCommProperties_t, rank))
		return shim_fail(ncclInvalidArgument, "props %s",
			props ? "was not filled with NCCL_COMM_PROPERTIES_INITIALIZER" : "is NULL");
	symcclCommUserRank(c, &p.rank);
	symcclCommCount(c, &p.nRanks);
	symcclCommCuDevice(c, &p.cudaDev);
	p.nvmlDev = p.cudaDev;
	p.hostRmaSupport = true;
	/* Older callers have a shorter struct; its head stays theirs. */
	memcpy((char *)props + offsetof(ncclCommProperties_t, rank), &p.rank,
		(props->size < sizeof(p) ? props->size : sizeof(p)) -
			offsetof(ncclCommProperties_t, rank));
	return shim_result(symcclSuccess);
}

SHIM(ncclResult_t, ncclDevCommCreate, ncclComm_t comm, const ncclDevCommRequirements_t *reqs,
	ncclDevComm_t *outDevComm)
{
	(void)comm, (void)reqs, (void)outDevComm;
	return shim_refuse("ncclDevCommCreate (NCCL's in-kernel communicator; symccl_device.h has "
			   "symccl's)");
}

SHIM(ncclResult_t, ncclDevCommDestroy, ncclComm_t comm, const ncclDevComm_t *devComm)
{
	(void)comm, (void)devComm;
	return shim_refuse("ncclDevCommDestroy");
}

SHIM(ncclResult_t, ncclLsaBarrierCreateRequirement, ncclTeam_t t, int nBarriers,
	ncclLsaBarrierHandle_t *outHandle, ncclDevResourceRequirements_t *outReq)
{
	(void)t, (void)nBarriers, (void)outHandle, (void)outReq;
	return shim_refuse("ncclLsaBarrierCreateRequirement");
}

SHIM(ncclResult_t, ncclGinBarrierCreateRequirement, ncclComm_t comm, ncclTeam_t t, int nBarriers,
	ncclGinBarrierHandle_t *outHandle, ncclDevResourceRequirements_t *outReq)
{
	(void)comm, (void)t, (void)nBarriers, (void)outHandle, (void)outReq;
	return shim_refuse("ncclGinBarrierCreateRequirement");
}

SHIM(int, ncclLLA2ACalcSlots, int maxElts, int maxEltSize)
{
	(void)maxElts, (void)maxEltSize;
	shim_refuse("ncclLLA2ACalcSlots");
	return 0;
}

SHIM(ncclResult_t, ncclLLA2ACreateRequirement, int nBlocks, int nSlots,
	ncclLLA2AHandle_t *outHandle, ncclDevResourceRequirements_t *outReq)
{
	(void)nBlocks, (void)nSlots, (void)outHandle, (void)outReq;
	return shim_refuse("ncclLLA2ACreateRequirement");
}

SHIM(ncclResult_t, ncclGinOutboxCreateRequirement, int nBlocks, int sizeLog2,
	ncclGinOutboxHandle_t *outHandle, ncclDevResourceRequirements_t *outReq)
{
	(void)nBlocks, (void)sizeLog2, (void)outHandle, (void)outReq;
	return shim_refuse("ncclGinOutboxCreateRequirement");
}

SHIM(ncclResult_t, ncclGinInboxA2ACreateRequirement, ncclTeam_t peers, int nBlocks, int sizeLog2,
	ncclGinInboxA2AHandle_t *outHandle, ncclDevResourceRequirements_t *outReq)
{
	(void)peers, (void)nBlocks, (void)sizeLog2, (void)outHandle, (void)outReq;
	return shim_refuse("ncclGinInboxA2ACreateRequirement");
}

SHIM(ncclResult_t, ncclGetLsaMultimemDevicePointer, ncclWindow_t window, size_t offset,
	void **outPtr)
{
	(void)window, (void)offset, (void)outPtr;
	return shim_refuse("a multicast pointer (ncclGetLsaMultimemDevicePointer)");
}

SHIM(ncclResult_t, ncclGetMultimemDevicePointer, ncclWindow_t window, size_t offset,
	ncclMultimemHandle_t multimem, void **outPtr)
{
	(void)window, (void)offset, (void)multimem, (void)outPtr;
	return shim_refuse("a multicast pointer (ncclGetMultimemDevicePointer)");
}
