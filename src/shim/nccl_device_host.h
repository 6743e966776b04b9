/*
 * The host half of NCCL's device API, which NVIDIA declares in nccl_device/core.h (and barrier.h,
 * ll_a2a.h): layouts that cross the binary interface, and the exported functions.
 */
#ifndef NCCL_DEVICE_HOST_H
#define NCCL_DEVICE_HOST_H

#include "shim/nccl.h"

typedef struct ncclTeam {
	int nRanks, rank, stride;
} ncclTeam_t;

typedef enum { NCCL_GIN_TYPE_NONE = 0 } ncclGinType_t;

typedef struct {
	size_t size;
	unsigned int magic;
	unsigned int version;
	int rank;
	int nRanks;
	int cudaDev;
	int nvmlDev;
	bool deviceApiSupport;
	bool multimemSupport;
	ncclGinType_t ginType;
	int nLsaTeams;
	bool hostRmaSupport;
	ncclGinType_t railedGinType;
} ncclCommProperties_t;

typedef struct ncclMultimemHandle {
	void *mcBasePtr;
} ncclMultimemHandle_t;

/* Only passed through by address. */
typedef struct ncclDevComm ncclDevComm_t;
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;
typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;
typedef struct ncclGinOutboxHandle ncclGinOutboxHandle_t;
typedef struct ncclGinInboxA2AHandle ncclGinInboxA2AHandle_t;

#endif
