/*
 * The kernels with all ranks as CTAs of one launch, for compute-sanitizer, which runs one grid at a
 * time: rank r is row r of the grid. A kernel of each row, in the classes that differ in code.
 *
 *   together [-n ranks] [cases]      every rank count of 1, 2, 4 without -n
 */
#include <cuda_runtime.h>
#include <string>
#include <vector>
#include "direct.cuh"
#include "packets.cuh"
#include "staged.cuh"
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

/* ---- Kernels --------------------------------------------------------------------------------- */

#define TOGETHER(name, call) \
	__global__ void __launch_bounds__(CUDA_THREADS_MAX) \
		together_##name(const struct cuda_args *all) \
	{ \
		call(all[blockIdx.y]); \
	}
#define REDUCING(X, algo) \
	X(algo##_f32_sum, (algo<f32, OP_sum, 0>)) \
	X(algo##_f32_sum_2, (algo<f32, OP_sum, 2>)) \
	X(algo##_f32_sum_4, (algo<f32, OP_sum, 4>)) \
	X(algo##_bf16_sum, (algo<bf16, OP_sum, 0>)) \
	X(algo##_u8_min, (algo<u8, OP_min, 0>)) \
	X(algo##_f64_prod, (algo<f64, OP_prod, 0>))
#define ALL(X) \
	REDUCING(X, allreduce_oneshot) \
	REDUCING(X, allreduce_twostep) \
	REDUCING(X, allreduce_direct) \
	REDUCING(X, reduce_staged) \
	REDUCING(X, reducescatter_packet) \
	REDUCING(X, reducescatter_direct) \
	X(allgather_packet, allgather_packet<0>) \
	X(allgather_packet_2, allgather_packet<2>) \
	X(allgather_packet_4, allgather_packet<4>) \
	X(allgather_direct, allgather_direct) \
	X(allgather_staged, allgather_staged) \
	X(barrier, barrier)
ALL(TOGETHER)

static const struct {
	const char *name;
	void (*fn)(const struct cuda_args *);
} kernels[] = {
#define ENTRY(name, call) {"symccl_" #name, together_##name},
	ALL(ENTRY)};

/* ---- The machine ----------------------------------------------------------------------------- */

#define STRIDE ((uint64_t)8 << 20)
static char *memory, *pinned, *pinned_dev;
static struct cuda_args *all_args;
static struct {
	const char *name;
	int n, ctas, threads;
} grid;

uint64_t machine_base()
{
	return (uint64_t)memory;
}
uint64_t machine_stride()
{
	return STRIDE;
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
}
uint64_t machine_abort()
{
	return (uint64_t)pinned_dev;
}
uint64_t machine_record(int rank)
{
	return (uint64_t)pinned_dev + 256 + 64 * rank;
}
volatile uint32_t *machine_abort_host()
{
	return (uint32_t *)pinned;
}
volatile struct dev_record *machine_record_host(int rank)
{
	return (struct dev_record *)(pinned + 256 + 64 * rank);
}
void machine_launch(
	int rank, const char *kernel, const struct cuda_args *args, int ctas, int threads)
{
	static std::string name;

	name = kernel;
	grid = {name.c_str(), rank + 1, ctas, threads};
	CR(cudaMemcpy(all_args + rank, args, sizeof(*args), cudaMemcpyDefault));
}
void machine_run()
{
	for (auto &k : kernels)
		if (strcmp(k.name, grid.name) == 0) {
			k.fn<<<dim3(grid.ctas, grid.n), grid.threads>>>(all_args);
			CR(cudaGetLastError());
			CR(cudaDeviceSynchronize());
			return;
		}
	printf("no kernel %s\n", grid.name);
	exit(1);
}

/* ---- Cases ----------------------------------------------------------------------------------- */

static int known(const struct test_case *c)
{
	char name[96];

	kernel_name(name, sizeof(name), c);
	for (auto &k : kernels)
		if (strcmp(k.name, name) == 0)
			return 1;
	return 0;
}

static long cases(int n, long want)
{
	static const int types[] = {R_F32, R_F32, R_BF16, R_U8, R_F64};
	static const int ops[] = {R_SUM, R_PREMUL, R_SUM, R_MAX, R_PROD};
	static const size_t counts[] = {1, 7, 100, 1000, 5003};
	static const size_t skews[] = {0, 0, 8, 4, 1};
	long wrong = 0, done = 0;

	world_init(n, 1 << 14);
	for (long i = 0; done < want; i++) {
		struct test_case c;

		memset(&c, 0, sizeof(c));
		c.algo = (int)(i % (CUDA_BARRIER + 1));
		c.type = types[i / (CUDA_BARRIER + 1) % 5];
		c.op = algo_reduces(c.algo) ? ops[i / (CUDA_BARRIER + 1) % 5] : 0;
		c.n = n;
		c.ctas = c.algo == CUDA_BARRIER ? 1 : 1 + (int)(rng() % 3);
		c.threads = 32 << rng() % 4;
		c.count = counts[rng() % 5];
		c.skew_in = skews[rng() % 5];
		c.skew_out = rng() % 4 ? c.skew_in : skews[rng() % 5];
		c.in_place = (int)(rng() % 3 == 0);
		c.fixed = (int)(rng() % 3 != 0);
		c.part = part_random(&c);
		if (!known(&c))
			continue;
		wrong += case_run(&c);
		done++;
	}
	printf("together: %d ranks, %ld cases: %s\n", n, done, wrong ? "WRONG" : "right");
	fflush(stdout);
	return wrong;
}

int main(int argc, char **argv)
{
	int only = 0, gpus = 0;
	long want = 80, wrong = 0;

	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "-n") == 0 && i + 1 < argc)
			only = atoi(argv[++i]);
		else
			want = atol(argv[i]);
	if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0)
		return 77;
	CR(cudaMalloc(&memory, STRIDE * WORLD_MAX));
	CR(cudaMalloc(&all_args, sizeof(*all_args) * WORLD_MAX));
	CR(cudaHostAlloc((void **)&pinned, 4096, cudaHostAllocMapped));
	memset(pinned, 0, 4096);
	CR(cudaHostGetDevicePointer((void **)&pinned_dev, pinned, 0));
	world_region = {2 << 20, 5 << 20, 1 << 20, 3 << 19};
	for (int n : {1, 2, 4})
		if (!only || only == n)
			wrong += cases(n, want);
	return wrong != 0;
}
