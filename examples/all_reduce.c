/* Sum a vector over all ranks, on CPU memory. Start it like examples/all_gather.c. */
#include <stdio.h>
#include <stdlib.h>
#include <symccl.h>

static void check(symcclResult_t result)
{
	if (result == symcclSuccess)
		return;
	fprintf(stderr, "%s: %s\n", symcclGetErrorString(result), symcclGetLastError(NULL));
	exit(1);
}

int main(void)
{
	enum { COUNT = 1 << 20 };
	symcclConfig_t config = SYMCCL_CONFIG_INITIALIZER;
	symcclLaunch_t job;
	symcclComm_t comm;
	symcclWindow_t win;
	float *x;

	check(symcclGetLaunch(&job));
	config.device = symcclDeviceHost;
	check(symcclCommInitRankConfig(&comm, job.nranks, job.id, job.rank, &config));

	/* A window: the other ranks read and write it in place. Plain memory works, too. */
	check(symcclMemAllocOn((void **)&x, COUNT * sizeof(*x), symcclDeviceHost));
	check(symcclCommWindowRegister(
		comm, x, COUNT * sizeof(*x), &win, SYMCCL_WIN_COLL_SYMMETRIC));
	for (int i = 0; i < COUNT; i++)
		x[i] = (float)(job.rank + 1);
	check(symcclAllReduce(x, x, COUNT, symcclFloat, symcclSum, comm, NULL));
	printf("rank %d of %d: %g everywhere\n", job.rank, job.nranks, x[COUNT - 1]);

	check(symcclCommWindowDeregister(comm, win));
	check(symcclCommDestroy(comm));
	check(symcclMemFree(x));
	return 0;
}
