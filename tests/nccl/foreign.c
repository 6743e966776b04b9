/* Stands in for NVIDIA's library in the tests of loading: tells another version, refuses the rest.
 */
#include "shim/nccl.h"

ncclResult_t pncclCommInitRankConfig(
	ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config);

ncclResult_t ncclGetVersion(int *version)
{
	*version = 99999;
	return ncclSuccess;
}

ncclResult_t pncclCommInitRankConfig(
	ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config)
{
	(void)comm, (void)nranks, (void)commId, (void)rank, (void)config;
	return ncclInternalError;
}
