#include <pthread.h>
#include <stdio.h>
#include "coll/cuda/launch.h"
#include "util.h"

/* What image.S embeds: one fat binary a .cu file; ends with NULL. Only the end without nvcc. */
extern const unsigned char *const cuda_images[] __attribute__((visibility("hidden")));
#define IMAGES_MAX 16

static const char *const algo_names[CUDA_NUM_ALGOS] = {
	[CUDA_ALLREDUCE_ONESHOT] = "allreduce_oneshot",
	[CUDA_ALLREDUCE_TWOSTEP] = "allreduce_twostep",
	[CUDA_ALLREDUCE_DIRECT] = "allreduce_direct",
	[CUDA_ALLREDUCE_STAGED] = "reduce_staged",
	[CUDA_REDUCESCATTER_PACKET] = "reducescatter_packet",
	[CUDA_REDUCESCATTER_DIRECT] = "reducescatter_direct",
	[CUDA_REDUCESCATTER_STAGED] = "reduce_staged",
	[CUDA_ALLGATHER_PACKET] = "allgather_packet",
	[CUDA_ALLGATHER_DIRECT] = "allgather_direct",
	[CUDA_ALLGATHER_STAGED] = "allgather_staged",
	[CUDA_BARRIER] = "barrier",
	[CUDA_MOVE_PACKET] = "move_packet",
	[CUDA_PUSH_DIRECT] = "push_direct",
	[CUDA_MESSAGES] = "messages",
	[CUDA_SIGNAL] = "signal",
	[CUDA_WAITS] = "waits",
	[CUDA_ALLREDUCE_MULTIMEM] = "allreduce_multimem",
	[CUDA_REDUCESCATTER_MULTIMEM] = "reducescatter_multimem",
	[CUDA_ALLGATHER_MULTIMEM] = "allgather_multimem",
};

enum elem {
	ELEM_u8,
	ELEM_u32,
	ELEM_u64,
	ELEM_f16,
	ELEM_bf16,
	ELEM_f32,
	ELEM_f64,
	ELEM_e4m3,
	ELEM_e5m2
};
enum op_class { OP_sum, OP_prod, OP_min };
static const int widths[CUDA_NUM_WIDTHS] = {0, 2, 4, 8};

static int is_multimem_sum(int algo)
{
	return algo == CUDA_ALLREDUCE_MULTIMEM || algo == CUDA_REDUCESCATTER_MULTIMEM;
}
static int is_reducing(int algo)
{
	return algo < CUDA_ALLGATHER_PACKET || is_multimem_sum(algo);
}

/* ---- Loading ------------------------------------------------------------------------------- */

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static CUlibrary libraries[IMAGES_MAX];
static int nlibraries;

/* Once per process; with load_lock. */
static symcclResult_t libraries_load(void)
{
	CUlibraryOption preserved = CU_LIBRARY_BINARY_IS_PRESERVED;
	void *yes = (void *)1;

	if (cuda_images[0] == NULL)
		return fail(symcclInvalidUsage, "this symccl was built without nvcc and has no GPU "
						"kernels: install the CUDA "
						"toolkit and build again");
	while (nlibraries < IMAGES_MAX && cuda_images[nlibraries] != NULL) {
		CUresult r = cu.LibraryLoadData(&libraries[nlibraries], cuda_images[nlibraries],
			NULL, NULL, 0, &preserved, &yes, 1);

		if (r != CUDA_SUCCESS)
			return cu_fail(r, "loading the GPU kernels");
		nlibraries++;
	}
	return symcclSuccess;
}

static symcclResult_t kernel_load(const char *name, CUfunction *fn)
{
	CUresult r = CUDA_ERROR_NOT_FOUND;
	CUkernel kernel;

	for (int i = 0; i < nlibraries && r == CUDA_ERROR_NOT_FOUND; i++)
		r = cu.LibraryGetKernel(&kernel, libraries[i], name);
	if (r == CUDA_SUCCESS)
		r = cu.KernelGetFunction(fn, kernel);
	if (r == CUDA_SUCCESS)
		return symcclSuccess;
	return cu_fail(r, "loading GPU kernel %s", name);
}

static symcclResult_t reducing_load(struct cuda_kernels *k, int algo)
{
	char name[96];

#define ANY(elem, op) \
	snprintf(name, sizeof(name), "symccl_%s_" #elem "_" #op, algo_names[algo]); \
	TRY(kernel_load(name, &k->fn[algo][ELEM_##elem][OP_##op][0]));
#define ANY_OPS(elem) CUDA_OPS(ANY, elem)
#define FIXED(elem, op, w) \
	snprintf(name, sizeof(name), "symccl_%s_" #elem "_" #op "_%d", algo_names[algo], \
		widths[w]); \
	TRY(kernel_load(name, &k->fn[algo][ELEM_##elem][OP_##op][w]));
#include "coll/cuda/kernels.def"
	CUDA_ELEMS(ANY_OPS)
	for (int w = 1; w < CUDA_NUM_WIDTHS; w++) {
		CUDA_FIXED_ELEMS(FIXED, w)
	}
	return symcclSuccess;
}

static symcclResult_t multimem_load(struct cuda_kernels *k, int algo)
{
	char name[96];

#define SUM(elem) ANY(elem, sum)
	CUDA_MULTIMEM_ELEMS(SUM)
	return symcclSuccess;
}

static symcclResult_t moving_load(struct cuda_kernels *k, int algo)
{
	char name[96];

	snprintf(name, sizeof(name), "symccl_%s", algo_names[algo]);
	TRY(kernel_load(name, &k->fn[algo][0][0][0]));
	for (int w = 1; algo == CUDA_ALLGATHER_PACKET && w < CUDA_NUM_WIDTHS; w++) {
		snprintf(name, sizeof(name), "symccl_%s_%d", algo_names[algo], widths[w]);
		TRY(kernel_load(name, &k->fn[algo][0][0][w]));
	}
	return symcclSuccess;
}

symcclResult_t cuda_kernels_load(struct cuda_kernels *k)
{
	symcclResult_t r = symcclSuccess;

	*k = (struct cuda_kernels){0};
	pthread_mutex_lock(&load_lock);
	if (nlibraries == 0 || cuda_images[nlibraries] != NULL)
		r = libraries_load();
	for (int algo = 0; algo < CUDA_NUM_ALGOS && r == symcclSuccess; algo++)
		r = is_multimem_sum(algo) ? multimem_load(k, algo)
		    : is_reducing(algo)   ? reducing_load(k, algo)
					  : moving_load(k, algo);
	pthread_mutex_unlock(&load_lock);
	return r;
}

/* ---- Picking ------------------------------------------------------------------------------- */

static const struct {
	unsigned char elem, is_signed;
} types[symcclNumTypes] = {
	[symcclInt8] = {ELEM_u8, 1},
	[symcclUint8] = {ELEM_u8, 0},
	[symcclInt32] = {ELEM_u32, 1},
	[symcclUint32] = {ELEM_u32, 0},
	[symcclInt64] = {ELEM_u64, 1},
	[symcclUint64] = {ELEM_u64, 0},
	[symcclFloat16] = {ELEM_f16, 0},
	[symcclBfloat16] = {ELEM_bf16, 0},
	[symcclFloat32] = {ELEM_f32, 0},
	[symcclFloat64] = {ELEM_f64, 0},
	[symcclFloat8e4m3] = {ELEM_e4m3, 0},
	[symcclFloat8e5m2] = {ELEM_e5m2, 0},
};
static const struct {
	unsigned char op, mode;
} ops[CUDA_OP_PREMUL + 1] = {
	[symcclSum] = {OP_sum, 0},
	[symcclProd] = {OP_prod, 0},
	[symcclMax] = {OP_min, CUDA_MODE_MAX},
	[symcclMin] = {OP_min, 0},
	[symcclAvg] = {OP_sum, CUDA_MODE_AVG},
	[CUDA_OP_PREMUL] = {OP_sum, CUDA_MODE_PREMUL},
};

CUfunction cuda_kernel_pick(const struct cuda_kernels *k, enum cuda_algo algo,
	symcclDataType_t type, int op, uint32_t nranks, uint32_t *mode)
{
	int reduces = is_reducing(algo), w = 0;
	const CUfunction *fn =
		k->fn[algo][reduces ? types[type].elem : 0][reduces ? ops[op].op : 0];

	*mode = reduces ? ops[op].mode | (types[type].is_signed ? CUDA_MODE_SIGNED : 0) : 0;
	if (algo == CUDA_ALLREDUCE_STAGED)
		*mode |= CUDA_MODE_WHOLE;
	for (int i = 1; i < CUDA_NUM_WIDTHS; i++)
		if (widths[i] == (int)nranks && fn[i] != NULL)
			w = i;
	return fn[w];
}

symcclResult_t cuda_kernel_fits(CUfunction fn, int *per_sm)
{
	CUresult r = cu.OccupancyMaxActiveBlocksPerMultiprocessor(per_sm, fn, CUDA_THREADS_MAX, 0);

	return r == CUDA_SUCCESS ? symcclSuccess : cu_fail(r, "asking for a kernel's occupancy");
}

/* ---- Launching ----------------------------------------------------------------------------- */

static symcclResult_t launch(
	CUfunction fn, const void *args, int nctas, int threads, int overlap, CUstream stream)
{
	CUlaunchAttribute attr = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
		.value.programmaticStreamSerializationAllowed = 1};
	CUlaunchConfig config = {.gridDimX = (unsigned)nctas,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = (unsigned)threads,
		.blockDimY = 1,
		.blockDimZ = 1,
		.hStream = stream,
		.attrs = &attr,
		.numAttrs = overlap != 0};
	void *params[] = {(void *)args};
	CUresult r = cu.LaunchKernelEx(&config, fn, params, NULL);

	if (__builtin_expect(r != CUDA_SUCCESS, 0))
		return cu_fail(r, "launching a collective's kernel with %d CTAs", nctas);
	return symcclSuccess;
}

symcclResult_t cuda_kernel_launch(CUfunction fn, const struct cuda_args *args, int nctas,
	int threads, int overlap, CUstream stream)
{
	return launch(fn, args, nctas, threads, overlap, stream);
}

symcclResult_t cuda_list_launch(
	CUfunction fn, const void *args, int nctas, int threads, int overlap, CUstream stream)
{
	return launch(fn, args, nctas, threads, overlap, stream);
}
