/* Every rank contributes four floats; afterwards all ranks hold all of them. CPU memory. */
#include <stdio.h>
#include <symccl.h>

#define CHECK(call) \
	do { \
		symcclResult_t result = (call); \
		if (result != symcclSuccess) { \
			fprintf(stderr, "%s: %s\n", symcclGetErrorString(result), \
				symcclGetLastError(NULL)); \
			return 1; \
		} \
	} while (0)

int main(void)
{
	enum { COUNT = 4 };
	symcclConfig_t config = SYMCCL_CONFIG_INITIALIZER;
	symcclLaunch_t job;
	symcclComm_t comm;
	symcclWindow_t win;
	float *buf;
	size_t bytes;
	void *p;

	/* Who am I? From the launcher's variables. */
	CHECK(symcclGetLaunch(&job));
	config.device = symcclDeviceHost;
	CHECK(symcclCommInitRankConfig(&comm, job.nranks, job.id, job.rank, &config));

	/* Memory that all ranks can reach. */
	bytes = (size_t)job.nranks * COUNT * sizeof(*buf);
	CHECK(symcclMemAllocOn(&p, bytes, symcclDeviceHost));
	CHECK(symcclCommWindowRegister(comm, p, bytes, &win, SYMCCL_WIN_COLL_SYMMETRIC));

	/* In place: this rank's part goes where it belongs in the result. */
	buf = p;
	for (int i = 0; i < COUNT; i++)
		buf[job.rank * COUNT + i] = (float)job.rank + (float)i / 10;
	CHECK(symcclAllGather(buf + job.rank * COUNT, buf, COUNT, symcclFloat, comm, NULL));
	printf("rank %d of %d: %.1f ... %.1f\n", job.rank, job.nranks, buf[0],
		buf[job.nranks * COUNT - 1]);

	CHECK(symcclCommWindowDeregister(comm, win));
	CHECK(symcclCommDestroy(comm));
	CHECK(symcclMemFree(p));
	return 0;
}
