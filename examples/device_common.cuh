/*
 * What the GPU examples share: ranks, memory, timing. Ranks are streams of this process, rank r on
 * GPU r modulo their number; or this process is one rank of a job that a launcher has started
 * (SYMCCL_RANK, torchrun, mpirun: see symccl(7)). Processes that share a GPU need MPS to run at the
 * same time.
 */
#ifndef DEVICE_COMMON_CUH
#define DEVICE_COMMON_CUH

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <symccl_device.h>

#define OK(call) \
	do { \
		symcclResult_t result_ = (call); \
		if (result_ != symcclSuccess) { \
			fprintf(stderr, "%s: %s: %s\n", #call, symcclGetErrorString(result_), \
				symcclGetLastError(NULL)); \
			exit(1); \
		} \
	} while (0)
#define CUDA(call) \
	do { \
		cudaError_t error_ = (call); \
		if (error_ != cudaSuccess) { \
			fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_)); \
			exit(1); \
		} \
	} while (0)

#define RANKS_MOST 8

/* One rank that this process has. */
struct side {
	int rank, gpu;
	symcclComm_t comm;
	cudaStream_t stream;
	char *memory; /* a window, */
	symcclWindow_t win;
	symcclDevWindow_t w; /* for kernels */
	symcclDevComm_t dev;
	symcclResult_t *result; /* what its kernels return, in host memory; success is 0 */
};

static struct side side[RANKS_MOST];
static int nranks = 2, nlocal, untimed;
static int ctas; /* most of one rank: all CTAs of a GPU's ranks must run at the same time */

static void use(const struct side *s)
{
	CUDA(cudaSetDevice(s->gpu));
}

/* -n ranks, or the launcher's; -c: only check values. */
static void start(int argc, char **argv)
{
	symcclLaunch_t job;
	int gpus, sms, first = 0;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "-c") == 0)
			untimed = 1;
		if (strcmp(argv[i], "-n") == 0 && i + 1 < argc)
			nranks = atoi(argv[i + 1]);
	}
	nlocal = nranks;
	CUDA(cudaGetDeviceCount(&gpus));
	CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
	if (getenv("SYMCCL_RANK") != NULL) {
		OK(symcclGetLaunch(&job));
		nranks = job.nranks;
		first = job.rank;
		nlocal = 1;
	} else {
		OK(symcclGetUniqueId(&job.id));
	}
	if (nranks < 1 || nranks > RANKS_MOST) {
		fprintf(stderr, "usage: %s [-n ranks, 1 to %d] [-c]\n", argv[0], RANKS_MOST);
		exit(2);
	}
	ctas = sms / ((nranks + gpus - 1) / gpus);
	OK(symcclGroupStart());
	for (int i = 0; i < nlocal; i++) {
		struct side *s = &side[i];
		symcclConfig_t config = SYMCCL_CONFIG_INITIALIZER;

		s->rank = first + i;
		s->gpu = s->rank % gpus;
		use(s);
		CUDA(cudaFree(NULL)); /* the GPU is this thread's now */
		CUDA(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
		CUDA(cudaMallocHost(&s->result, sizeof(*s->result)));
		*s->result = symcclSuccess;
		config.device = symcclDeviceCuda;
		OK(symcclCommInitRankConfig(&s->comm, nranks, job.id, s->rank, &config));
	}
	OK(symcclGroupEnd());
}

/* A window of `bytes` on each rank, and what kernels need. */
static void resources(size_t bytes, const symcclDevCommRequirements_t *reqs)
{
	OK(symcclGroupStart());
	for (int i = 0; i < nlocal; i++) {
		struct side *s = &side[i];

		use(s);
		OK(symcclMemAllocOn((void **)&s->memory, bytes, symcclDeviceCuda));
		OK(symcclCommWindowRegister(
			s->comm, s->memory, bytes, &s->win, SYMCCL_WIN_COLL_SYMMETRIC));
		OK(symcclDevCommCreate(s->comm, reqs, &s->dev));
	}
	OK(symcclGroupEnd());
	for (int i = 0; i < nlocal; i++)
		OK(symcclWinGetDevice(side[i].comm, side[i].win, &side[i].w));
}

/* Wait for all streams; what kernels and communicators have to say. */
static void finish(void)
{
	for (int i = 0; i < nlocal; i++) {
		use(&side[i]);
		CUDA(cudaStreamSynchronize(side[i].stream));
	}
	for (int i = 0; i < nlocal; i++) {
		symcclResult_t e;

		OK(symcclCommGetAsyncError(side[i].comm, &e));
		if (e != symcclSuccess || *side[i].result != symcclSuccess) {
			fprintf(stderr, "rank %d: kernel: %s, communicator: %s\n", side[i].rank,
				symcclGetErrorString(*side[i].result),
				symcclGetLastError(side[i].comm));
			exit(1);
		}
	}
}

static inline void stop(void)
{
	finish();
	for (int i = 0; i < nlocal; i++) {
		struct side *s = &side[i];

		use(s);
		OK(symcclDevCommDestroy(s->comm, &s->dev));
		OK(symcclCommWindowDeregister(s->comm, s->win));
		OK(symcclCommDestroy(s->comm));
		OK(symcclMemFree(s->memory));
		CUDA(cudaFreeHost(s->result));
		CUDA(cudaStreamDestroy(s->stream));
	}
}

/* Put a barrier on all streams: ranks go on from there together. */
static inline void meet(void)
{
	OK(symcclGroupStart());
	for (int i = 0; i < nlocal; i++)
		OK(symcclBarrier(side[i].comm, (symcclStream_t)side[i].stream));
	OK(symcclGroupEnd());
}

/* Microseconds of one round of once(side) on every rank: the median of 11 graphs of 20 each. */
template <class ONCE> static double timed(ONCE once)
{
	enum { ROUNDS = 20, SAMPLES = 11 };
	cudaGraphExec_t exec[RANKS_MOST];
	cudaEvent_t begin, end;
	float us[SAMPLES];

	for (int i = 0; i < nlocal; i++) {
		cudaGraph_t graph;

		use(&side[i]);
		CUDA(cudaStreamBeginCapture(side[i].stream, cudaStreamCaptureModeThreadLocal));
		for (int k = 0; k < ROUNDS; k++)
			once(&side[i]);
		CUDA(cudaStreamEndCapture(side[i].stream, &graph));
		CUDA(cudaGraphInstantiate(&exec[i], graph, 0));
		CUDA(cudaGraphDestroy(graph));
	}
	use(&side[0]);
	CUDA(cudaEventCreate(&begin));
	CUDA(cudaEventCreate(&end));
	for (int k = 0; k < SAMPLES; k++) {
		float ms;

		meet();
		use(&side[0]);
		CUDA(cudaEventRecord(begin, side[0].stream));
		for (int i = 0; i < nlocal; i++) {
			use(&side[i]);
			CUDA(cudaGraphLaunch(exec[i], side[i].stream));
		}
		use(&side[0]);
		CUDA(cudaEventRecord(end, side[0].stream));
		finish();
		CUDA(cudaEventElapsedTime(&ms, begin, end));
		us[k] = ms * 1000 / ROUNDS;
	}
	for (int i = 0; i < nlocal; i++)
		CUDA(cudaGraphExecDestroy(exec[i]));
	CUDA(cudaEventDestroy(begin));
	CUDA(cudaEventDestroy(end));
	std::sort(us, us + SAMPLES);
	return us[SAMPLES / 2];
}

/* A number for (rank, i), the same on every rank. */
static inline uint32_t mix(uint32_t rank, uint32_t i)
{
	uint32_t v = (i + 1) * 2654435761u ^ (rank + 1) * 0x9e3779b9u;

	v ^= v >> 15;
	v *= 0x2c1b3c6du;
	return v ^ v >> 13;
}

#endif
