/*
 * An all-reduce in one step by packets, written once for GPUs and CPUs: every rank sends all its
 * elements to everybody, and each reduces what it has. device_one_shot.c runs it on CPU threads,
 * device_one_shot.cu on a GPU.
 */
#ifndef DEVICE_ONE_SHOT_H
#define DEVICE_ONE_SHOT_H

#include <symccl_device.h>

#ifdef __CUDACC__
#define KERNEL_CODE static __device__ inline
#else
#define KERNEL_CODE static inline
#endif

#define RANKS_MOST 8

/* What one packet carries. */
union pack {
	uint64_t bits;
	float f[2];
};

/*
 * out = the sum of all ranks' in, n packs each; n * nranks is at most packetSlots. Rank r's pack i
 * goes to slot r * n + i. When several CTAs share a vector, each has its part of in and out, and
 * its own session.
 */
KERNEL_CODE symcclResult_t one_shot(symcclDevSession_t *s, const symcclDevComm_t *comm,
	const union pack *in, union pack *out, int n)
{
	const int nranks = comm->nranks, rank = comm->rank;

	for (int i = (int)s->coop.thread; i < n; i += (int)s->coop.width)
		symcclDevSendAll(s, (uint32_t)(rank * n + i), in[i].bits);
	for (int i = (int)s->coop.thread; i < n; i += (int)s->coop.width) {
		float lo[RANKS_MOST], hi[RANKS_MOST];

		for (int q = 0; q < nranks; q++) {
			union pack x = in[i];

			/* If it fails, the end of the epoch says so, to all threads. */
			if (q != rank)
				symcclDevRecv(s, q, (uint32_t)(q * n + i), &x.bits);
			lo[q] = x.f[0];
			hi[q] = x.f[1];
		}
		out[i].f[0] = symcclDevTreeSum(lo, nranks);
		out[i].f[1] = symcclDevTreeSum(hi, nranks);
	}
	return symcclDevEndEpoch(s);
}

#endif
