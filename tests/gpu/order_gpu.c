/*
 * Two ranks in one thread, on one GPU or two: calls of a communicator on several streams, captured
 * and not, stay in order; and what a small call costs the CPU beside a bare launch.
 *
 *   order_gpu [-t]      -t: times, too. Exit: 0 passed, 1 failed, 77 no GPU.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "coll/cuda/launch.h"
#include "symccl.h"
#include "util.h"

enum { RANKS = 2, COUNT = 20000, ROUNDS = 40, CALLS = 200, SAMPLES = 25 };
#define ROOM ((size_t)1 << 20)

static struct rank {
	int device;
	symcclComm_t comm;
	CUstream stream[2];
	int64_t *buf[2];
	symcclWindow_t win[2];
} ranks[RANKS];

#define CHECK(cond, ...) \
	do { \
		if (!(cond)) { \
			printf("line %d: %s: ", __LINE__, #cond); \
			printf(__VA_ARGS__); \
			printf(" (%s)\n", symcclGetLastError(NULL)); \
			return 1; \
		} \
	} while (0)
#define OK(call) CHECK((call) == symcclSuccess, "call failed")
#define CU(call) CHECK((call) == CUDA_SUCCESS, "driver call failed")
#define TRY_TEST(call) \
	do { \
		if (call) \
			return 1; \
	} while (0)

static CUdeviceptr dev(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

static int open_ranks(void)
{
	symcclConfig_t cfg = SYMCCL_CONFIG_INITIALIZER;
	symcclUniqueId id;

	cfg.device = symcclDeviceCuda;
	OK(symcclGetUniqueId(&id));
	symcclGroupStart();
	for (int r = 0; r < RANKS; r++) {
		ranks[r].device = r % cuda_devices()->n;
		OK(cu_bind_thread(ranks[r].device));
		OK(symcclCommInitRankConfig(&ranks[r].comm, RANKS, id, r, &cfg));
	}
	OK(symcclGroupEnd());
	symcclGroupStart();
	for (int r = 0; r < RANKS; r++) {
		OK(cu_bind_thread(ranks[r].device));
		for (int i = 0; i < 2; i++) {
			CU(cu.StreamCreate(&ranks[r].stream[i], CU_STREAM_NON_BLOCKING));
			OK(symcclMemAllocOn((void **)&ranks[r].buf[i], ROOM, symcclDeviceCuda));
			OK(symcclCommWindowRegister(ranks[r].comm, ranks[r].buf[i], ROOM,
				&ranks[r].win[i], SYMCCL_WIN_COLL_SYMMETRIC));
		}
	}
	OK(symcclGroupEnd());
	return 0;
}

static int sync_all(void)
{
	for (int r = 0; r < RANKS; r++) {
		symcclResult_t e;

		OK(cu_bind_thread(ranks[r].device));
		for (int i = 0; i < 2; i++)
			CU(cu.StreamSynchronize(ranks[r].stream[i]));
		OK(symcclCommGetAsyncError(ranks[r].comm, &e));
		CHECK(e == symcclSuccess, "%s", symcclGetLastError(ranks[r].comm));
	}
	return 0;
}

/* buf[!from] = sum of buf[from]: each step reads what the one before it wrote. */
static symcclResult_t step(struct rank *r, int from, CUstream stream)
{
	return symcclAllReduce(r->buf[from], r->buf[!from], COUNT, symcclInt64, symcclSum, r->comm,
		(symcclStream_t)stream);
}

static int eager(int from, int which)
{
	symcclGroupStart();
	for (int r = 0; r < RANKS; r++) {
		OK(cu_bind_thread(ranks[r].device));
		OK(step(&ranks[r], from, ranks[r].stream[which]));
	}
	OK(symcclGroupEnd());
	return 0;
}

/* Something long first, so that what is not ordered behind it would overtake. */
static int busy(int which)
{
	for (int r = 0; r < RANKS; r++) {
		OK(cu_bind_thread(ranks[r].device));
		for (int i = 0; i < 30; i++)
			CU(cu.MemsetD8Async(dev(ranks[r].buf[0]) + ROOM / 2, (unsigned char)i,
				ROOM / 2, ranks[r].stream[which]));
	}
	return 0;
}

static int capture(int fork, CUgraphExec *exec)
{
	for (int r = 0; r < RANKS; r++) {
		CUstream first = ranks[r].stream[0], second = fork ? ranks[r].stream[1] : first;
		CUgraph graph;
		CUevent e;

		OK(cu_bind_thread(ranks[r].device));
		CU(cu.EventCreate(&e, CU_EVENT_DISABLE_TIMING));
		CU(cu.StreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
		if (fork) {
			CU(cu.EventRecord(e, first));
			CU(cu.StreamWaitEvent(second, e, 0));
		}
		OK(step(&ranks[r], 0, first));
		OK(step(&ranks[r], 1, second));
		OK(step(&ranks[r], 0, second));
		OK(step(&ranks[r], 1, first));
		if (fork) {
			CU(cu.EventRecord(e, second));
			CU(cu.StreamWaitEvent(first, e, 0));
		}
		CU(cu.StreamEndCapture(first, &graph));
		CU(cu.GraphInstantiateWithFlags(&exec[r], graph, 0));
		CU(cu.GraphDestroy(graph));
		CU(cu.EventDestroy(e));
	}
	return 0;
}

static int replay(const CUgraphExec *exec, int which)
{
	for (int r = 0; r < RANKS; r++) {
		OK(cu_bind_thread(ranks[r].device));
		CU(cu.GraphLaunch(exec[r], ranks[r].stream[which]));
	}
	return 0;
}

static int order(void)
{
	static int64_t host[COUNT];
	CUgraphExec straight[RANKS], forked[RANKS];

	TRY_TEST(eager(0, 0));
	TRY_TEST(eager(1, 1));
	TRY_TEST(sync_all());
	TRY_TEST(capture(0, straight));
	TRY_TEST(capture(1, forked));
	for (int k = 0; k < ROUNDS; k++) {
		const int64_t want = (int64_t)1 << 19; /* 2 + 4 + 2 + 4 + 4 + 3 steps */

		for (int i = 0; i < COUNT; i++)
			host[i] = 1;
		for (int r = 0; r < RANKS; r++) {
			OK(cu_bind_thread(ranks[r].device));
			CU(cu.MemcpyAsync(
				dev(ranks[r].buf[0]), dev(host), sizeof(host), ranks[r].stream[0]));
			CU(cu.StreamSynchronize(ranks[r].stream[0]));
		}
		TRY_TEST(busy(0));
		TRY_TEST(eager(0, 0));
		TRY_TEST(eager(1, 0));
		TRY_TEST(replay(k % 2 ? forked : straight, 1));
		TRY_TEST(eager(0, 0));
		TRY_TEST(eager(1, 1));
		TRY_TEST(busy(1));
		TRY_TEST(replay(straight, 1));
		TRY_TEST(replay(forked, 0));
		TRY_TEST(eager(0, 1));
		TRY_TEST(eager(1, 0));
		TRY_TEST(eager(0, 1));
		TRY_TEST(sync_all());
		for (int r = 0; r < RANKS; r++) {
			OK(cu_bind_thread(ranks[r].device));
			CU(cu.MemcpyAsync(
				dev(host), dev(ranks[r].buf[1]), sizeof(host), ranks[r].stream[0]));
			CU(cu.StreamSynchronize(ranks[r].stream[0]));
			for (int i = 0; i < COUNT; i++)
				CHECK(host[i] == want,
					"round %d rank %d element %d: %lld, not %lld", k, r, i,
					(long long)host[i], (long long)want);
		}
	}
	for (int r = 0; r < RANKS; r++) {
		CU(cu.GraphExecDestroy(straight[r]));
		CU(cu.GraphExecDestroy(forked[r]));
	}
	printf("order: %d rounds of eager calls and replays on two streams: right\n", ROUNDS);
	return 0;
}

/* ---- Times -------------------------------------------------------------------------------------
 */

static double sorted_median(double *us, int n)
{
	for (int a = 1; a < n; a++)
		for (int b = a; b > 0 && us[b] < us[b - 1]; b--) {
			double x = us[b];

			us[b] = us[b - 1];
			us[b - 1] = x;
		}
	return us[n / 2];
}

/* Microseconds of CALLS repetitions of `call` each, and what they enqueue done in between. */
#define HOST_US(name, call) \
	do { \
		double us_[SAMPLES]; \
		for (int k_ = 0; k_ < SAMPLES; k_++) { \
			uint64_t t_ = now_ns(); \
			for (int i_ = 0; i_ < CALLS; i_++) \
				CHECK((call) == 0, "failed"); \
			us_[k_] = (double)(now_ns() - t_) / 1e3 / CALLS; \
			CU(cu.StreamSynchronize(s)); \
		} \
		printf("host: %-34s %6.3f us\n", name, sorted_median(us_, SAMPLES)); \
	} while (0)

/* One rank: nothing to wait for, so that only the host's part counts. */
static int host_times(void)
{
	symcclConfig_t cfg = SYMCCL_CONFIG_INITIALIZER;
	CUstreamCaptureStatus status;
	struct cuda_kernels *kernels = calloc(1, sizeof(*kernels));
	struct cuda_args *args;
	symcclComm_t comm;
	symcclUniqueId id;
	CUdeviceptr block;
	CUcontext ctx;
	CUfunction fn;
	CUevent e;
	CUstream s;
	uint32_t mode;
	float *x;

	CHECK(kernels != NULL, "no memory");
	OK(cu_bind_thread(0));
	cfg.device = symcclDeviceCuda;
	OK(symcclGetUniqueId(&id));
	OK(symcclCommInitRankConfig(&comm, 1, id, 0, &cfg));
	CU(cu.StreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cu.EventCreate(&e, CU_EVENT_DISABLE_TIMING));
	OK(symcclMemAllocOn((void **)&x, ROOM, symcclDeviceCuda));
	OK(cuda_kernels_load(kernels));
	fn = cuda_kernel_pick(kernels, CUDA_BARRIER, symcclFloat32, symcclSum, 1, &mode);
	args = calloc(1, sizeof(*args));
	CHECK(args != NULL, "no memory");
	args->team.layout = dev_layout(1, 64);
	args->team.nranks = 1;
	args->watch.hash = 1;
	args->watch.look_every = 256;
	CU(cu.MemAlloc(&block, dev_ctrl_bytes(&args->team.layout)));
	CU(cu.MemsetD8Async(block, 0, dev_ctrl_bytes(&args->team.layout), s));
	args->team.ctrl = block;
	for (int warm = 0; warm < 2; warm++) {
		HOST_US("bare launch, overlapping", cuda_kernel_launch(fn, args, 1, 32, 1, s));
		HOST_US("bare launch", cuda_kernel_launch(fn, args, 1, 32, 0, s));
		HOST_US("event record", cu.EventRecord(e, s));
		HOST_US("wait for an event of the stream", cu.StreamWaitEvent(s, e, 0));
		HOST_US("is it capturing", cu.StreamIsCapturing(s, &status));
		HOST_US("current context", cu.CtxGetCurrent(&ctx));
		HOST_US("symcclBarrier", symcclBarrier(comm, (symcclStream_t)s));
		HOST_US("symcclAllReduce, 64 B", symcclAllReduce(x, x, 16, symcclFloat32, symcclSum,
							 comm, (symcclStream_t)s));
	}
	OK(symcclCommDestroy(comm));
	OK(symcclMemFree(x));
	CU(cu.MemFree(block));
	CU(cu.EventDestroy(e));
	CU(cu.StreamDestroy(s));
	free(args);
	free(kernels);
	return 0;
}

int main(int argc, char **argv)
{
	int timed = argc > 1 && strcmp(argv[1], "-t") == 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	if (cuda_open() != NULL) {
		printf("no GPU: %s\n", cuda_open());
		return 77;
	}
	TRY_TEST(open_ranks());
	TRY_TEST(order());
	if (timed)
		TRY_TEST(host_times());
	for (int r = 0; r < RANKS; r++) {
		OK(cu_bind_thread(ranks[r].device));
		OK(symcclCommDestroy(ranks[r].comm));
		for (int i = 0; i < 2; i++) {
			OK(symcclMemFree(ranks[r].buf[i]));
			CU(cu.StreamDestroy(ranks[r].stream[i]));
		}
	}
	printf("order_gpu: all right\n");
	return 0;
}
