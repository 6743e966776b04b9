/*
 * The kernels on GPUs: ranks as streams of one process, rank r on GPU r modulo their number.
 *
 *   kernels DIR [-n ranks] [-r replays] PART...     DIR: where kernels.sh put the fatbins
 *   parts: check wrap graph abort floors time tune
 */
#include <cuda.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>
#include "coll_abi.h"
#include "kernels_body.h"

#define CR(call) \
	do { \
		cudaError_t e_ = (call); \
		if (e_ != cudaSuccess) { \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
				cudaGetErrorString(e_)); \
			exit(1); \
		} \
	} while (0)

static double now_us()
{
	return std::chrono::duration<double, std::micro>(
		std::chrono::steady_clock::now().time_since_epoch())
		.count();
}

/* ---- The machine --------------------------------------------------------------------------- */

static int gpus;
static uint64_t base, stride;
static cudaStream_t streams[WORLD_MAX];
static std::vector<cudaLibrary_t> libraries;
static std::map<std::string, cudaKernel_t> found;
static uint32_t *abort_host;
static struct dev_record *records_host;
static uint64_t abort_dev, records_dev;
static int pdl = 1;

static int device_of(int rank)
{
	return rank % gpus;
}

template <class F> static F driver(const char *name, int version, F)
{
	void *p = NULL;
	cudaDriverEntryPointQueryResult status;

	CR(cudaGetDriverEntryPointByVersion(name, &p, version, cudaEnableDefault, &status));
	if (!p) {
		printf("no %s\n", name);
		exit(1);
	}
	return (F)p;
}
#define DRIVER(name, version) driver(#name, version, &name)
#define CU(call) \
	do { \
		CUresult e_ = (call); \
		if (e_ != CUDA_SUCCESS) { \
			printf("%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)e_); \
			exit(1); \
		} \
	} while (0)

static void memory_map(int ranks, size_t per_rank)
{
	auto create = DRIVER(cuMemCreate, 10020);
	auto reserve = DRIVER(cuMemAddressReserve, 10020);
	auto map = DRIVER(cuMemMap, 10020);
	auto access = DRIVER(cuMemSetAccess, 10020);
	CUdeviceptr va;

	stride = per_rank;
	CU(reserve(&va, stride * ranks, 2 << 20, 0, 0));
	base = va;
	for (int r = 0; r < ranks; r++) {
		CUmemAllocationProp prop;
		CUmemGenericAllocationHandle h;
		std::vector<CUmemAccessDesc> desc(gpus);

		memset(&prop, 0, sizeof(prop));
		prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
		prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		prop.location.id = device_of(r);
		CU(create(&h, stride, &prop, 0));
		CU(map(va + r * stride, stride, 0, h, 0));
		for (int g = 0; g < gpus; g++) {
			desc[g].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
			desc[g].location.id = g;
			desc[g].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		}
		CU(access(va + r * stride, stride, desc.data(), gpus));
	}
}

uint64_t machine_base()
{
	return base;
}
uint64_t machine_stride()
{
	return stride;
}
void machine_put(uint64_t to, const void *from, size_t n)
{
	CR(cudaMemcpy((void *)to, from, n, cudaMemcpyDefault));
}
void machine_get(void *to, uint64_t from, size_t n)
{
	CR(cudaMemcpy(to, (void *)from, n, cudaMemcpyDefault));
}
void machine_zero(uint64_t to, size_t n)
{
	CR(cudaMemset((void *)to, 0, n));
	CR(cudaDeviceSynchronize());
}
uint64_t machine_abort()
{
	return abort_dev;
}
volatile uint32_t *machine_abort_host()
{
	return abort_host;
}
uint64_t machine_record(int rank)
{
	return records_dev + rank * sizeof(struct dev_record);
}
volatile struct dev_record *machine_record_host(int rank)
{
	return &records_host[rank];
}

/* Found, and loaded on every GPU: loading behind a kernel that spins may wait for it. */
static cudaKernel_t kernel_find(const char *name)
{
	auto it = found.find(name);
	cudaKernel_t k = NULL;

	if (it != found.end())
		return it->second;
	for (auto lib : libraries)
		if (cudaLibraryGetKernel(&k, lib, name) == cudaSuccess)
			break;
		else
			k = NULL;
	cudaGetLastError();
	if (!k) {
		printf("no kernel %s\n", name);
		exit(1);
	}
	for (int g = 0; g < gpus; g++) {
		struct cudaFuncAttributes attr;

		CR(cudaSetDevice(g));
		CR(cudaFuncGetAttributes(&attr, (const void *)k));
	}
	return found[name] = k;
}

static void launch(int rank, cudaKernel_t k, const struct cuda_args *args, int ctas, int threads)
{
	cudaLaunchConfig_t config;
	cudaLaunchAttribute attr;
	void *params[] = {(void *)args};

	memset(&config, 0, sizeof(config));
	config.gridDim = dim3(ctas);
	config.blockDim = dim3(threads);
	config.stream = streams[rank];
	attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attr.val.programmaticStreamSerializationAllowed = 1;
	config.attrs = &attr;
	config.numAttrs = pdl ? 1 : 0;
	CR(cudaSetDevice(device_of(rank)));
	CR(cudaLaunchKernelExC(&config, (const void *)k, params));
}

struct queued {
	int rank, ctas, threads;
	cudaKernel_t kernel;
	struct cuda_args args;
};
static std::vector<struct queued> queue;

void machine_launch(
	int rank, const char *kernel, const struct cuda_args *args, int ctas, int threads)
{
	queue.push_back({rank, ctas, threads, kernel_find(kernel), *args});
}
/* Copies are done: these streams do not wait for the default one. */
static void settle()
{
	for (int g = 0; g < gpus; g++) {
		CR(cudaSetDevice(g));
		CR(cudaDeviceSynchronize());
	}
}
static void sync_all()
{
	for (int r = 0; r < WORLD_MAX; r++) {
		CR(cudaSetDevice(device_of(r)));
		CR(cudaStreamSynchronize(streams[r]));
	}
}
void machine_run()
{
	settle();
	for (auto &q : queue)
		launch(q.rank, q.kernel, &q.args, q.ctas, q.threads);
	queue.clear();
	sync_all();
}

/* ---- Graphs with producers ------------------------------------------------------------------ */

#define STEPS 50
#define ELEMENTS 3000 /* of each call */

static __host__ __device__ float value_of(uint32_t replay, uint32_t step, uint32_t rank, uint32_t i)
{
	return (float)((i * 7 + rank * 13 + step * 5 + replay * 3) & 255);
}
/* Lets the collective start at once, dawdles, and only then writes what it reads. */
__global__ void producer(float *in, uint32_t *replay, uint32_t step, uint32_t rank, uint32_t n)
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
	__nanosleep(500 + 500 * (rank & 1));
	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		in[i] = value_of(*replay, step, rank, i);
}
/* kind: 0 the sum of all, 1 one's part of it, 2 everybody's one after the other */
__global__ void checker(const float *out, uint32_t *replay, uint32_t step, uint32_t rank,
	uint32_t nranks, uint32_t count, int kind, uint32_t *wrong)
{
	uint32_t n = kind == 2 ? count * nranks : count;

	for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
		i += gridDim.x * blockDim.x) {
		float want = 0;

		if (kind == 2)
			want = value_of(*replay, step, i / count, i % count);
		else
			for (uint32_t q = 0; q < nranks; q++)
				want += value_of(
					*replay, step, q, kind == 1 ? rank * count + i : i);
		if (out[i] != want)
			atomicAdd(wrong, 1);
	}
}
__global__ void next_replay(uint32_t *replay)
{
	++*replay;
}

static long graph_run(int n, long replays)
{
	cudaGraphExec_t exec[WORLD_MAX];
	uint32_t *state[WORLD_MAX]; /* replay, wrong */
	long wrong = 0;
	double t0;
	struct cudaFuncAttributes attr;

	world_init(n, 1 << 16);
	for (int g = 0; g < gpus; g++) {
		CR(cudaSetDevice(g));
		CR(cudaFuncGetAttributes(&attr, (const void *)producer));
		CR(cudaFuncGetAttributes(&attr, (const void *)checker));
		CR(cudaFuncGetAttributes(&attr, (const void *)next_replay));
	}
	for (int r = 0; r < n; r++) {
		uint64_t arrivals = (0x80000000ull - 777) << DEV_EPOCH_SHIFT;
		cudaGraph_t graph;

		machine_put(base + r * stride, &arrivals, 8);
		CR(cudaSetDevice(device_of(r)));
		CR(cudaMalloc(&state[r], 8));
		CR(cudaMemset(state[r], 0, 8));
		for (int s = 0; s < STEPS; s++) { /* loaded before any runs */
			struct test_case c;
			char name[96];

			memset(&c, 0, sizeof(c));
			c.algo = s % CASE_ALGOS;
			c.type = R_F32;
			c.n = n;
			c.fixed = 1;
			kernel_name(name, sizeof(name), &c);
			kernel_find(name);
		}
		CR(cudaSetDevice(device_of(r)));
		CR(cudaStreamBeginCapture(streams[r], cudaStreamCaptureModeRelaxed));
		for (int s = 0; s < STEPS; s++) {
			struct test_case c;
			struct cuda_args a;
			char name[96];
			uint64_t mine = base + r * stride, out;
			int kind, gather;

			memset(&c, 0, sizeof(c));
			c.algo = s % CASE_ALGOS;
			c.type = R_F32;
			c.n = n;
			c.fixed = 1;
			c.ctas = c.algo == CUDA_BARRIER ? 1 : 1 + s % 7;
			gather = c.algo >= CUDA_ALLGATHER_PACKET && c.algo < CUDA_BARRIER;
			c.part = 512;
			c.count = gather ? 4 * (ELEMENTS / n) : ELEMENTS / n;
			world_hash = 100 + s;
			kernel_name(name, sizeof(name), &c);
			a = case_args(&c, r, NULL);
			producer<<<4, 256, 0, streams[r]>>>(
				(float *)(mine + world_region.in + 16), state[r], s, r, ELEMENTS);
			launch(r, kernel_find(name), &a, c.ctas, s % 3 ? 512 : 64);
			if (c.algo == CUDA_BARRIER)
				continue;
			kind = gather ? 2 : c.algo >= CUDA_REDUCESCATTER_PACKET ? 1 : 0;
			out = mine + world_region.out + 16;
			checker<<<4, 256, 0, streams[r]>>>(
				(float *)out, state[r], s, r, n, ELEMENTS / n, kind, state[r] + 1);
		}
		next_replay<<<1, 1, 0, streams[r]>>>(state[r]);
		CR(cudaStreamEndCapture(streams[r], &graph));
		CR(cudaGraphInstantiate(&exec[r], graph, 0));
		CR(cudaGraphDestroy(graph));
	}
	settle();
	t0 = now_us();
	for (long i = 0; i < replays; i++) {
		for (int r = 0; r < n; r++) {
			CR(cudaSetDevice(device_of(r)));
			CR(cudaGraphLaunch(exec[r], streams[r]));
		}
		if (i % 64 == 63)
			sync_all();
	}
	sync_all();
	for (int r = 0; r < n; r++) {
		uint32_t s[2];
		uint64_t arrivals;

		machine_get(s, (uint64_t)state[r], 8);
		machine_get(&arrivals, base + r * stride, 8);
		if (s[1] || s[0] != replays || records_host[r].state) {
			printf("graph: rank %d: %u wrong elements in %u replays, record %u code %u "
			       "peer %u\n",
				r, s[1], s[0], records_host[r].state, records_host[r].code,
				records_host[r].peer);
			wrong++;
		}
		if (arrivals >> DEV_EPOCH_SHIFT != 0x80000000ull - 777 + STEPS * replays) {
			printf("graph: rank %d: the epoch is off\n", r);
			wrong++;
		}
		CR(cudaFree(state[r]));
		CR(cudaGraphExecDestroy(exec[r]));
	}
	printf("graph: %d ranks, %d collectives, %ld replays, %.1f us each, pdl %d: %s\n", n, STEPS,
		replays, (now_us() - t0) / replays, pdl, wrong ? "WRONG" : "right");
	fflush(stdout);
	return wrong;
}

/* ---- Ends of waiting ------------------------------------------------------------------------ */

static long abort_one(int algo, uint32_t want, const char *what)
{
	struct test_case c;
	struct cuda_args a;
	char name[96];
	double t0, t1, t2;
	long wrong = 0;
	uint32_t dead;

	memset(&c, 0, sizeof(c));
	c.algo = algo;
	c.type = R_F32;
	c.n = 2;
	c.fixed = 1;
	c.ctas = algo == CUDA_BARRIER ? 1 : 4;
	c.count = 4096;
	kernel_name(name, sizeof(name), &c);
	world_init(2, 1 << 16);
	world_hash++;
	a = case_args(&c, 0, NULL);
	a.watch.timeout_ns = want == DEV_TIMED_OUT ? 100000000ull : 0;
	kernel_find("symccl_barrier");
	kernel_find(name);
	settle();
	t0 = now_us();
	launch(0, kernel_find(name), &a, c.ctas, 256);
	if (want == DEV_DIFFERS) {
		struct test_case d = c;
		struct cuda_args b;

		d.algo = CUDA_BARRIER;
		d.ctas = 1;
		b = case_args(&d, 1, NULL);
		b.watch.hash++;
		b.watch.timeout_ns = 1000000000ull;
		launch(1, kernel_find("symccl_barrier"), &b, 1, 32);
	}
	if (want == DEV_ABORTED) {
		while (now_us() < t0 + 50000)
			;
		*machine_abort_host() = 1;
	}
	t1 = now_us();
	sync_all();
	t2 = now_us();
	machine_get(&dead, base + offsetof(struct dev_head, dead), 4);
	if (dead != want) {
		printf("abort: %s: %s: dead is %u, not %u\n", name, what, dead, want);
		wrong++;
	}
	if (want != DEV_ABORTED &&
		(records_host[0].state == 0 || records_host[0].code != want ||
			records_host[0].peer != 1 || records_host[0].hash != a.watch.hash)) {
		printf("abort: %s: %s: record %u code %u peer %u\n", name, what,
			records_host[0].state, records_host[0].code, records_host[0].peer);
		wrong++;
	}
	/* later kernels leave at once */
	for (int i = 0; i < 100; i++)
		launch(0, kernel_find(name), &a, c.ctas, 256);
	t0 = now_us();
	sync_all();
	printf("abort: %s: %s: left after %.0f us; 100 more took %.0f us\n", name, what, t2 - t1,
		now_us() - t0);
	fflush(stdout);
	return wrong;
}
static long abort_run()
{
	long wrong = 0;

	for (int algo = 0; algo < CASE_ALGOS; algo++) {
		wrong += abort_one(algo, DEV_ABORTED, "aborted");
		wrong += abort_one(algo, DEV_TIMED_OUT, "timed out after 100 ms");
		wrong += abort_one(algo, DEV_DIFFERS, "peer does something else");
	}
	return wrong;
}

#include "kernels_time.h"

/* ---- */

static void load(const char *dir)
{
	static const char *const files[] = {"allreduce_oneshot", "allreduce_twostep",
		"allreduce_direct", "reduce_staged", "reducescatter_packet", "reducescatter_direct",
		"move"};

	for (const char *f : files) {
		std::string path = std::string(dir) + "/" + f + ".fatbin";
		cudaLibrary_t lib;
		cudaError_t e =
			cudaLibraryLoadFromFile(&lib, path.c_str(), NULL, NULL, 0, NULL, NULL, 0);

		if (e != cudaSuccess) {
			printf("%s: %s\n", path.c_str(), cudaGetErrorString(e));
			exit(1);
		}
		libraries.push_back(lib);
	}
}

int main(int argc, char **argv)
{
	long replays = 20000, wrong = 0, done = 0;
	int only = 0;
	double t0 = now_us();

	if (argc < 3) {
		printf("usage: kernels DIR [-n ranks] [-r replays] "
		       "check|wrap|graph|abort|floors|time|tune ...\n");
		return 2;
	}
	setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
	CR(cudaGetDeviceCount(&gpus));
	for (int g = 0; g < gpus; g++) {
		CR(cudaSetDevice(g));
		CR(cudaFree(NULL));
	}
	load(argv[1]);
	CR(cudaSetDevice(0));
	memory_map(WORLD_MAX, 640u << 20);
	world_region = {64u << 20, 352u << 20, 288u << 20, 32u << 20};
	for (int r = 0; r < WORLD_MAX; r++) {
		CR(cudaSetDevice(device_of(r)));
		CR(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
	}
	CR(cudaHostAlloc((void **)&abort_host, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
	memset(abort_host, 0, 4096);
	records_host = (struct dev_record *)((char *)abort_host + 256);
	CR(cudaHostGetDevicePointer((void **)&abort_dev, abort_host, 0));
	records_dev = abort_dev + 256;
	printf("kernels: %d GPUs, set up in %.0f ms\n", gpus, (now_us() - t0) / 1e3);
	fflush(stdout);
	for (int i = 2; i < argc; i++) {
		std::string part = argv[i];

		t0 = now_us();
		if (part == "-n") {
			only = atoi(argv[++i]);
			continue;
		}
		if (part == "-r") {
			replays = atol(argv[++i]);
			continue;
		}
		if (part == "check") {
			static const size_t counts[] = {1, 2, 7, 33, 1000, 4099};
			static const size_t large[] = {70001, 262144};
			int grids[] = {1, 2, 5, 8, 16};

			for (int n : {1, 2, 3, 4, 8})
				if (!only || only == n) {
					done = 0;
					wrong += cases_run(
						&n, 1, counts, 6, grids, 5, 1 << 18, &done);
					if (n <= 4)
						wrong += cases_run(&n, 1, large + (n < 3), 1,
							grids + 2, 3, 1 << 19, &done);
					printf("check: %d ranks, %ld cases: %s (%.0f ms)\n", n,
						done, wrong ? "WRONG" : "right",
						(now_us() - t0) / 1e3);
					fflush(stdout);
				}
		} else if (part == "wrap") {
			for (int n : {2, 3, 8})
				wrong += wrap_run(n, 4096);
			printf("wrap: %s\n", wrong ? "WRONG" : "right");
		} else if (part == "graph") {
			for (int n : {2, 4})
				if (!only || only == n) {
					for (pdl = 0; pdl < 2; pdl++)
						wrong += graph_run(n, pdl ? replays : replays / 10);
					pdl = 1;
				}
		} else if (part == "abort") {
			wrong += abort_run();
		} else if (part == "tune") {
			tune_run();
		} else if (part == "floors") {
			floors_run();
		} else if (part == "time") {
			for (int n : {2, 4})
				if (!only || only == n)
					time_run(n, 128u << 20);
		} else {
			printf("no part %s\n", part.c_str());
			return 2;
		}
		printf("%s took %.1f s\n", part.c_str(), (now_us() - t0) / 1e6);
		fflush(stdout);
	}
	printf("%s\n", wrong ? "FAILED" : "all right");
	return wrong != 0;
}
