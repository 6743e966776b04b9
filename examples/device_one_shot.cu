/*
 * The all-reduce of device_one_shot.h on GPUs: the source that device_one_shot.c runs on CPUs.
 *
 *	device_one_shot_gpu [-n ranks (2)]
 */
#include "device_common.cuh"
#include "device_one_shot.h"

enum { THREADS = 256, PACKS = 1024, CTAS = 4 }; /* each CTA has PACKS of its own */

__global__ void __launch_bounds__(THREADS) all_reduce(const __grid_constant__ symcclDevComm_t comm,
	const union pack *in, union pack *out, symcclResult_t *result)
{
	const size_t at = (size_t)blockIdx.x * PACKS;
	symcclDevSession_t s;

	symcclDevSessionOpen(
		&s, symcclDevCtx(&comm, symcclDevCta(), 0), symcclDevTeamLsa(&comm), blockIdx.x);
	one_shot(&s, &comm, in + at, out + at, PACKS);
	if (symcclDevSessionClose(&s) != symcclSuccess)
		*result = s.result;
}

/* Whole numbers, so that any order of adding gives the same sum. */
static float element(int rank, int i)
{
	return (float)((rank + 1) * (i % 1000) + i / 7);
}

int main(int argc, char **argv)
{
	enum { ELEMENTS = 2 * CTAS * PACKS };
	symcclDevCommRequirements_t reqs = SYMCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
	union pack *in[RANKS_MOST], *out[RANKS_MOST];
	float host[ELEMENTS];
	double us;

	start(argc, argv);
	reqs.sessions = CTAS;
	reqs.packetSlots = nranks * PACKS;
	resources(4096, &reqs); /* packets need no window of one's own */
	for (int i = 0; i < nlocal; i++) {
		use(&side[i]);
		CUDA(cudaMalloc(&in[i], sizeof(host)));
		CUDA(cudaMalloc(&out[i], sizeof(host)));
		for (int k = 0; k < ELEMENTS; k++)
			host[k] = element(side[i].rank, k);
		CUDA(cudaMemcpy(in[i], host, sizeof(host), cudaMemcpyDefault));
	}
	us = timed([&](struct side *s) {
		all_reduce<<<CTAS, THREADS, 0, s->stream>>>(
			s->dev, in[s - side], out[s - side], s->result);
	});
	for (int i = 0; i < nlocal; i++) {
		use(&side[i]);
		CUDA(cudaMemcpy(host, out[i], sizeof(host), cudaMemcpyDefault));
		for (int k = 0; k < ELEMENTS; k++) {
			float want = 0;

			for (int q = 0; q < nranks; q++)
				want += element(q, k);
			if (host[k] != want) {
				fprintf(stderr, "rank %d: element %d is %g, not %g\n", side[i].rank,
					k, host[k], want);
				return 1;
			}
		}
	}
	if (side[0].rank == 0)
		printf("%d ranks: all-reduce of %d floats right, %.2f us\n", nranks, (int)ELEMENTS,
			us);
	stop();
	return 0;
}
