/*
 * The device API on CPUs: ranks are threads of this process, and run the all-reduce of
 * device_one_shot.h, the same source as on a GPU.
 *
 *	device_one_shot [ranks (2)] [calls (2000)]
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "device_one_shot.h"

enum { PACKETS = 64 }; /* 128 floats */

static int nranks = 2, calls = 2000;
static symcclUniqueId id;

#define CHECK(call) \
	do { \
		symcclResult_t result_ = (call); \
		if (result_ != symcclSuccess) { \
			fprintf(stderr, "%s: %s: %s\n", #call, symcclGetErrorString(result_), \
				symcclGetLastError(NULL)); \
			exit(1); \
		} \
	} while (0)

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* What a rank contributes: whole numbers, so that any order of adding gives the same sum. */
static float element(int rank, int call, int i)
{
	return (float)((rank + 1) * (i % 100) + call % 1000);
}

static void *rank_run(void *arg)
{
	int rank = (int)(size_t)arg;
	symcclConfig_t config = SYMCCL_CONFIG_INITIALIZER;
	symcclDevCommRequirements_t reqs = SYMCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
	union pack in[PACKETS], out[PACKETS];
	symcclDevSession_t session;
	symcclDevComm_t dev;
	symcclComm_t comm;
	double start;

	config.device = symcclDeviceHost;
	CHECK(symcclCommInitRankConfig(&comm, nranks, id, rank, &config));
	reqs.packetSlots = nranks * PACKETS;
	CHECK(symcclDevCommCreate(comm, &reqs, &dev));

	CHECK(symcclDevSessionOpen(
		&session, symcclDevCtx(&dev, symcclDevThread(), 0), symcclDevTeamLsa(&dev), 0));
	CHECK(symcclDevBarrier(&session));
	start = now_us();
	for (int call = 0; call < calls; call++) {
		for (int i = 0; i < 2 * PACKETS; i++)
			in[i / 2].f[i % 2] = element(rank, call, i);
		CHECK(one_shot(&session, &dev, in, out, PACKETS));
		for (int i = 0; i < 2 * PACKETS; i++) {
			float want = 0, got = out[i / 2].f[i % 2];

			for (int q = 0; q < nranks; q++)
				want += element(q, call, i);
			if (got != want) {
				fprintf(stderr, "rank %d call %d: element %d is %g, not %g\n", rank,
					call, i, got, want);
				exit(1);
			}
		}
	}
	if (rank == 0)
		printf("%d ranks: %d all-reduces of %d floats right, %.2f us each with the check\n",
			nranks, calls, 2 * PACKETS, (now_us() - start) / calls);
	CHECK(symcclDevBarrier(&session));
	CHECK(symcclDevSessionClose(&session));

	CHECK(symcclDevCommDestroy(comm, &dev));
	CHECK(symcclCommDestroy(comm));
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread[RANKS_MOST];

	if (argc > 1)
		nranks = atoi(argv[1]);
	if (argc > 2)
		calls = atoi(argv[2]);
	if (nranks < 1 || nranks > RANKS_MOST || calls < 1) {
		fprintf(stderr, "usage: %s [ranks, 1 to %d] [calls]\n", argv[0], RANKS_MOST);
		return 2;
	}
	CHECK(symcclGetUniqueId(&id));
	for (int r = 0; r < nranks; r++)
		if (pthread_create(&thread[r], NULL, rank_run, (void *)(size_t)r) != 0)
			return 1;
	for (int r = 0; r < nranks; r++)
		pthread_join(thread[r], NULL);
	return 0;
}
