/*
 * What of nccl.h crosses the binary interface, one line a fact. Compiled with the shim's header it
 * must print tests/nccl/abi.expected, which NVIDIA's header of 2.30.7 printed; where nccl.h is
 * installed that one is compiled and compared, too.
 */
#include <nccl.h>
#include <stddef.h>
#include <stdio.h>

#define VALUE(x) printf(#x " %lld\n", (long long)(x));
#define FIELD(type, field) \
	printf(#type "." #field " %zu+%zu\n", offsetof(type, field), sizeof(((type *)0)->field));
#define SIZE(type) printf("sizeof " #type " %zu\n", sizeof(type));
/* The arguments and the result, by assigning the function to a pointer of that type. */
#define CALL(type, name, ...) \
	{ \
		type (*p)(__VA_ARGS__) = name; \
		printf(#name " %d\n", p != NULL); \
	}

/* clang-format off */
static void constants(void)
{
	VALUE(ncclSuccess)
	VALUE(ncclUnhandledCudaError)
	VALUE(ncclSystemError)
	VALUE(ncclInternalError) VALUE(ncclInvalidArgument) VALUE(ncclInvalidUsage) VALUE(
		ncclRemoteError) VALUE(ncclInProgress) VALUE(ncclTimeout) VALUE(ncclNumResults)
		VALUE(ncclInt8) VALUE(ncclChar) VALUE(ncclUint8) VALUE(ncclInt32) VALUE(ncclInt) VALUE(
			ncclUint32) VALUE(ncclInt64) VALUE(ncclUint64) VALUE(ncclFloat16) VALUE(ncclHalf)
			VALUE(ncclFloat32) VALUE(ncclFloat) VALUE(ncclFloat64) VALUE(ncclDouble) VALUE(
				ncclBfloat16) VALUE(ncclFloat8e4m3) VALUE(ncclFloat8e5m2) VALUE(ncclNumTypes)
				VALUE(ncclSum) VALUE(ncclProd) VALUE(ncclMax) VALUE(ncclMin) VALUE(
					ncclAvg) VALUE(ncclNumOps) VALUE(ncclMaxRedOp) VALUE(ncclScalarDevice)
					VALUE(ncclScalarHostImmediate) VALUE(NCCL_UNIQUE_ID_BYTES) VALUE(
						NCCL_CONFIG_UNDEF_INT) VALUE(NCCL_SPLIT_NOCOLOR)
						VALUE(NCCL_API_MAGIC) VALUE(NCCL_WIN_DEFAULT) VALUE(
							NCCL_WIN_COLL_SYMMETRIC) VALUE(NCCL_WIN_STRICT_ORDERING)
							VALUE(NCCL_WIN_REQUIRED_ALIGNMENT) VALUE(
								NCCL_CTA_POLICY_DEFAULT) VALUE(NCCL_CTA_POLICY_EFFICIENCY)
								VALUE(NCCL_CTA_POLICY_ZERO) VALUE(
									NCCL_SHRINK_DEFAULT) VALUE(NCCL_SHRINK_ABORT)
									VALUE(NCCL_REVOKE_DEFAULT) VALUE(
										NCCL_SUSPEND_MEM)
										VALUE(ncclStatGpuMemSuspend) VALUE(
											ncclStatGpuMemSuspended)
											VALUE(ncclStatGpuMemPersist)
												VALUE(ncclStatGpuMemTotal)
}

static void layouts(void)
{
	ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
	ncclSimInfo_t s = NCCL_SIM_INFO_INITIALIZER;

	SIZE(ncclUniqueId)
	SIZE(ncclResult_t)
	SIZE(ncclDataType_t)
	SIZE(ncclRedOp_t) SIZE(ncclConfig_t) SIZE(ncclSimInfo_t) SIZE(ncclWaitSignalDesc_t) FIELD(
		ncclConfig_t, size) FIELD(ncclConfig_t, magic) FIELD(ncclConfig_t, version)
		FIELD(ncclConfig_t, blocking) FIELD(ncclConfig_t, cgaClusterSize) FIELD(
			ncclConfig_t, minCTAs) FIELD(ncclConfig_t, maxCTAs) FIELD(ncclConfig_t,
			netName) FIELD(ncclConfig_t, splitShare) FIELD(ncclConfig_t,
			trafficClass) FIELD(ncclConfig_t, commName) FIELD(ncclConfig_t,
			collnetEnable) FIELD(ncclConfig_t, CTAPolicy) FIELD(ncclConfig_t,
			shrinkShare) FIELD(ncclConfig_t, nvlsCTAs) FIELD(ncclConfig_t,
			nChannelsPerNetPeer) FIELD(ncclConfig_t,
			nvlinkCentricSched) FIELD(ncclConfig_t, graphUsageMode) FIELD(ncclConfig_t,
			numRmaCtx) FIELD(ncclConfig_t, maxP2pPeers) FIELD(ncclConfig_t,
			graphStreamOrdering) FIELD(ncclSimInfo_t, size) FIELD(ncclSimInfo_t, magic)
			FIELD(ncclSimInfo_t, version) FIELD(ncclSimInfo_t, estimatedTime) FIELD(
				ncclWaitSignalDesc_t, opCnt) FIELD(ncclWaitSignalDesc_t, peer)
				FIELD(ncclWaitSignalDesc_t, sigIdx) FIELD(ncclWaitSignalDesc_t, ctx)
					VALUE(c.size) VALUE(c.magic) VALUE(c.blocking)
						VALUE(c.graphStreamOrdering)
							VALUE(c.netName == NULL) VALUE(s.magic)
								VALUE(s.estimatedTime)
}

#define DATA const void *, void *, size_t, ncclDataType_t
#define TAIL ncclComm_t, cudaStream_t
static void calls(void)
{
	CALL(ncclResult_t, ncclAllGather, DATA, TAIL)
	CALL(ncclResult_t, ncclAllReduce, DATA, ncclRedOp_t, TAIL)
	CALL(ncclResult_t, ncclReduceScatter, DATA, ncclRedOp_t, TAIL)
	CALL(ncclResult_t, ncclReduce, DATA, ncclRedOp_t, int, TAIL)
	CALL(ncclResult_t, ncclBroadcast, DATA, int, TAIL)
	CALL(ncclResult_t, ncclBcast, void *, size_t, ncclDataType_t, int, TAIL)
	CALL(ncclResult_t, ncclAlltoAll, DATA, TAIL)
	CALL(ncclResult_t, ncclGather, DATA, int, TAIL)
	CALL(ncclResult_t, ncclScatter, DATA, int, TAIL)
	CALL(ncclResult_t, ncclSend, const void *, size_t, ncclDataType_t, int, TAIL)
	CALL(ncclResult_t, ncclRecv, void *, size_t, ncclDataType_t, int, TAIL)
	CALL(ncclResult_t, ncclPutSignal, const void *, size_t, ncclDataType_t, int, ncclWindow_t,
		size_t, int, int, unsigned int, TAIL)
	CALL(ncclResult_t, ncclSignal, int, int, int, unsigned int, TAIL)
	CALL(ncclResult_t, ncclWaitSignal, int, ncclWaitSignalDesc_t *, TAIL)
	CALL(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t *, void *, ncclDataType_t,
		ncclScalarResidence_t, ncclComm_t)
	CALL(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t, ncclComm_t)
	CALL(ncclResult_t, ncclMemAlloc, void **, size_t)
	CALL(ncclResult_t, ncclMemFree, void *)
	CALL(ncclResult_t, ncclCommRegister, const ncclComm_t, void *, size_t, void **)
	CALL(ncclResult_t, ncclCommDeregister, const ncclComm_t, void *)
	CALL(ncclResult_t, ncclCommWindowRegister, ncclComm_t, void *, size_t, ncclWindow_t *, int)
	CALL(ncclResult_t, ncclCommWindowDeregister, ncclComm_t, ncclWindow_t)
	CALL(ncclResult_t, ncclWinGetUserPtr, ncclComm_t, ncclWindow_t, void **)
	CALL(ncclResult_t, ncclGetVersion, int *)
	CALL(ncclResult_t, ncclGetUniqueId, ncclUniqueId *)
	CALL(const char *, ncclGetErrorString, ncclResult_t)
	CALL(const char *, ncclGetLastError, ncclComm_t)
	CALL(ncclResult_t, ncclCommInitRank, ncclComm_t *, int, ncclUniqueId, int)
	CALL(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *, int, ncclUniqueId, int,
		ncclConfig_t *)
	CALL(ncclResult_t, ncclCommInitRankScalable, ncclComm_t *, int, int, int, ncclUniqueId *,
		ncclConfig_t *)
	CALL(ncclResult_t, ncclCommInitAll, ncclComm_t *, int, const int *)
	CALL(ncclResult_t, ncclCommFinalize, ncclComm_t)
	CALL(ncclResult_t, ncclCommDestroy, ncclComm_t)
	CALL(ncclResult_t, ncclCommAbort, ncclComm_t)
	CALL(ncclResult_t, ncclCommRevoke, ncclComm_t, int)
	CALL(ncclResult_t, ncclCommSplit, ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *)
	CALL(ncclResult_t, ncclCommShrink, ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *,
		int)
	CALL(ncclResult_t, ncclCommGetUniqueId, ncclComm_t, ncclUniqueId *)
	CALL(ncclResult_t, ncclCommGrow, ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *,
		ncclConfig_t *)
	CALL(ncclResult_t, ncclCommGetAsyncError, ncclComm_t, ncclResult_t *)
	CALL(ncclResult_t, ncclCommCount, const ncclComm_t, int *)
	CALL(ncclResult_t, ncclCommCuDevice, const ncclComm_t, int *)
	CALL(ncclResult_t, ncclCommUserRank, const ncclComm_t, int *)
	CALL(ncclResult_t, ncclCommSuspend, ncclComm_t, int)
	CALL(ncclResult_t, ncclCommResume, ncclComm_t)
	CALL(ncclResult_t, ncclCommMemStats, ncclComm_t, ncclCommMemStat_t, uint64_t *)
	CALL(ncclResult_t, ncclGroupStart, void)
	CALL(ncclResult_t, ncclGroupEnd, void)
	CALL(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t *)
	CALL(ncclResult_t, ncclParamBind, ncclParamHandle_t *, const char *)
	CALL(ncclResult_t, ncclParamGetI8, ncclParamHandle_t, int8_t *)
	CALL(ncclResult_t, ncclParamGetI16, ncclParamHandle_t, int16_t *)
	CALL(ncclResult_t, ncclParamGetI32, ncclParamHandle_t, int32_t *)
	CALL(ncclResult_t, ncclParamGetI64, ncclParamHandle_t, int64_t *)
	CALL(ncclResult_t, ncclParamGetU8, ncclParamHandle_t, uint8_t *)
	CALL(ncclResult_t, ncclParamGetU16, ncclParamHandle_t, uint16_t *)
	CALL(ncclResult_t, ncclParamGetU32, ncclParamHandle_t, uint32_t *)
	CALL(ncclResult_t, ncclParamGetU64, ncclParamHandle_t, uint64_t *)
	CALL(ncclResult_t, ncclParamGetStr, ncclParamHandle_t, const char **)
	CALL(ncclResult_t, ncclParamGet, ncclParamHandle_t, void *, int, int *)
	CALL(ncclResult_t, ncclParamGetParameter, const char *, const char **, int *)
	CALL(ncclResult_t, ncclParamGetAllParameterKeys, const char ***, int *)
	CALL(void, ncclParamDumpAll, void)
}

/* clang-format on */

int main(void)
{
	constants();
	layouts();
	calls();
	return 0;
}
