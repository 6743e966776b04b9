/*
 * All-reduce, residual and RMSNorm in one kernel, as a tensor-parallel layer ends, in bf16:
 *
 *	sum = x of all ranks added up             residual += sum
 *	norm = residual / sqrt(mean(residual^2) + eps) * weight        for each token
 *
 * Two kernels. Few tokens: every rank sends its rows to all as packets, and each computes all
 * tokens. Many: each rank loads its share of the tokens from everybody's window, and stores the
 * results to everybody's. Both are checked against a plain loop, and against three kernels in a
 * row, symcclAllReduce, add, norm, with which their time is compared.
 *
 *	device_rms_norm_gpu [-n ranks (2)] [-c]
 */
#include <cuda_bf16.h>
#include <math.h>
#include "device_common.cuh"

/* A CTA has a row, a thread vectors of 16 bytes of it, THREADS apart. */
enum { WIDTH = 8192, THREADS = 512, EACH = WIDTH / THREADS, VECS = EACH / 8 };
enum { TOKENS_MOST = 512 };
#define EPS 1e-5f

/* In every rank's window; rows of WIDTH. */
struct layout {
	__nv_bfloat16 x[TOKENS_MOST * WIDTH], sum[TOKENS_MOST * WIDTH],
		residual[TOKENS_MOST * WIDTH], norm[TOKENS_MOST * WIDTH];
};
#define ROW(token) ((size_t)(token)*WIDTH * 2)
#define AT(part, token) (offsetof(struct layout, part) + ROW(token))

/* What a thread has of a row. */
union piece {
	uint4 v[VECS];
	uint64_t pack[2 * VECS];
	__nv_bfloat16 e[EACH];
};

__device__ union piece load(const void *row)
{
	union piece a;

	for (int u = 0; u < VECS; u++)
		a.v[u] = ((const uint4 *)row)[u * THREADS + threadIdx.x];
	return a;
}
__device__ void store(void *row, const union piece &a)
{
	for (int u = 0; u < VECS; u++)
		((uint4 *)row)[u * THREADS + threadIdx.x] = a.v[u];
}

/* The sum of v over the CTA. */
__device__ float cta_sum(float v)
{
	enum { WARPS = THREADS / 32 };
	__shared__ float warps[WARPS];

	for (int d = 16; d > 0; d /= 2)
		v += __shfl_xor_sync(~0u, v, d);
	__syncthreads(); /* the row before has been read */
	if (threadIdx.x % 32 == 0)
		warps[threadIdx.x / 32] = v;
	__syncthreads();
	v = warps[threadIdx.x % WARPS];
	for (int d = WARPS / 2; d > 0; d /= 2)
		v += __shfl_xor_sync(~0u, v, d);
	return v;
}
/* sum + old, rounded; then its norm. All threads of the CTA. */
__device__ void add_norm(union piece sum, union piece old, union piece weight,
	union piece &residual, union piece &norm)
{
	float h[EACH], squares = 0;

	for (int k = 0; k < EACH; k++) {
		residual.e[k] = __float2bfloat16_rn(
			__bfloat162float(old.e[k]) + __bfloat162float(sum.e[k]));
		h[k] = __bfloat162float(residual.e[k]);
		squares += h[k] * h[k];
	}
	squares = rsqrtf(cta_sum(squares) / WIDTH + EPS);
	for (int k = 0; k < EACH; k++)
		norm.e[k] = __float2bfloat16_rn(h[k] * squares * __bfloat162float(weight.e[k]));
}

/* All ranks' pieces added up as symcclAllReduce does. */
template <int N> __device__ union piece add_up(const union piece (&x)[N])
{
	union piece sum;

	for (int k = 0; k < EACH; k++) {
		float v[N];

		for (int q = 0; q < N; q++)
			v[q] = __bfloat162float(x[q].e[k]);
		sum.e[k] = __float2bfloat16_rn(symcclDevTreeSum(v, N));
	}
	return sum;
}

struct job {
	symcclDevWindow_t w;
	char *old, *weight; /* plain memory: the residual before, [TOKENS_MOST][WIDTH]; [WIDTH] */
	int tokens;
	symcclResult_t *result;
};

/* A CTA's slots: [rank][pack of the piece][thread]. */
enum { PACKS = 2 * VECS, SLOTS = PACKS * THREADS };

template <int N>
__global__ void __launch_bounds__(THREADS)
	fused_packets(const __grid_constant__ symcclDevComm_t comm, const __grid_constant__ job j)
{
	union piece own, old, residual, norm;
	int t = blockIdx.x; /* no more CTAs than tokens */
	symcclDevSession_t s;

	cudaGridDependencySynchronize();
	own = load(symcclDevLocalPtr(&j.w, AT(x, t)));
	old = load(j.old + ROW(t));
	symcclDevSessionOpen(
		&s, symcclDevCtx(&comm, symcclDevCta(), 0), symcclDevTeamLsa(&comm), blockIdx.x);
	for (;;) {
		union piece x[N], weight;
		uint64_t got[N][PACKS];

		for (int u = 0; u < PACKS; u++)
			symcclDevSendAll(
				&s, comm.rank * SLOTS + u * THREADS + threadIdx.x, own.pack[u]);
		weight = load(j.weight);
		symcclDevRecvTeam<N, PACKS>(&s, threadIdx.x, SLOTS, THREADS, own.pack, got);
		if (symcclDevEndEpoch(&s) != symcclSuccess)
			break;
		for (int q = 0; q < N; q++)
			for (int u = 0; u < PACKS; u++)
				x[q].pack[u] = got[q][u];
		add_norm(add_up<N>(x), old, weight, residual, norm);
		store(symcclDevLocalPtr(&j.w, AT(residual, t)), residual);
		store(symcclDevLocalPtr(&j.w, AT(norm, t)), norm);
		t += gridDim.x;
		if (t >= j.tokens)
			break;
		own = load(symcclDevLocalPtr(&j.w, AT(x, t)));
		old = load(j.old + ROW(t));
	}
	if (symcclDevSessionClose(&s) != symcclSuccess)
		*j.result = s.result;
	cudaTriggerProgrammaticLaunchCompletion();
}

template <int N>
__global__ void __launch_bounds__(THREADS)
	fused_direct(const __grid_constant__ symcclDevComm_t comm, const __grid_constant__ job j)
{
	const union piece weight = load(j.weight);
	symcclDevSession_t s;

	cudaGridDependencySynchronize();
	symcclDevSessionOpen(
		&s, symcclDevCtx(&comm, symcclDevCta(), 0), symcclDevTeamLsa(&comm), blockIdx.x);
	/* Everybody's x is there, and the results may be written. */
	symcclDevBarrier(&s);
	for (int t = comm.rank + N * blockIdx.x; t < j.tokens && s.result == symcclSuccess;
		t += N * gridDim.x) {
		union piece x[N], residual, norm, old = load(j.old + ROW(t));

		for (int q = 0; q < N; q++)
			x[q] = load(symcclDevLsaPtr(&j.w, q, AT(x, t)));
		add_norm(add_up<N>(x), old, weight, residual, norm);
		for (int q = 0; q < N; q++) {
			store(symcclDevLsaPtr(&j.w, q, AT(residual, t)), residual);
			store(symcclDevLsaPtr(&j.w, q, AT(norm, t)), norm);
		}
	}
	/* All results are there, and x may be written. */
	symcclDevBarrier(&s);
	if (symcclDevSessionClose(&s) != symcclSuccess)
		*j.result = s.result;
	cudaTriggerProgrammaticLaunchCompletion();
}

/* ---- What it is compared with ---------------------------------------------------------------- */

__global__ void add(const char *old, const char *sum, char *residual)
{
	union piece a, b, c;

	cudaGridDependencySynchronize();
	a = load(old + ROW(blockIdx.x));
	b = load(sum + ROW(blockIdx.x));
	for (int k = 0; k < EACH; k++)
		c.e[k] = __float2bfloat16_rn(__bfloat162float(a.e[k]) + __bfloat162float(b.e[k]));
	store(residual + ROW(blockIdx.x), c);
	cudaTriggerProgrammaticLaunchCompletion();
}
__global__ void __launch_bounds__(THREADS) norm(char *residual, char *weight, char *out)
{
	const size_t row = ROW(blockIdx.x);
	const union piece scale = load(weight);
	union piece none, same, result;

	cudaGridDependencySynchronize();
	memset(&none, 0, sizeof(none));
	add_norm(none, load(residual + row), scale, same, result);
	store(out + row, result);
	cudaTriggerProgrammaticLaunchCompletion();
}

/* ---- Running ----------------------------------------------------------------------------------
 */

static char *old_residual[RANKS_MOST], *weights[RANKS_MOST];
static __nv_bfloat16 *host; /* one part of a window */

enum how { THREE, PACKETS, DIRECT };
static const char *const names[] = {"three kernels", "packets", "direct"};

/* The kernel's start may overlap with the end of the one before. */
template <class... P, class... A>
static void launch(const struct side *s, int n, void (*kernel)(P...), A... args)
{
	cudaLaunchAttribute overlap = {};
	cudaLaunchConfig_t config = {};

	overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	overlap.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = n;
	config.blockDim = THREADS;
	config.stream = s->stream;
	config.attrs = &overlap;
	config.numAttrs = 1;
	CUDA(cudaLaunchKernelEx(&config, kernel, args...));
}

template <int N> static void fused(const struct side *s, enum how how, const struct job &j)
{
	int rows = how == PACKETS ? j.tokens : (j.tokens + N - 1) / N;

	launch(s, std::min(rows, ctas), how == PACKETS ? fused_packets<N> : fused_direct<N>, s->dev,
		j);
}

static void once(struct side *s, enum how how, int tokens)
{
	int i = (int)(s - side);
	struct layout *l = (struct layout *)s->memory;
	struct job j = {s->w, old_residual[i], weights[i], tokens, s->result};

	if (how == THREE) {
		OK(symcclAllReduce(l->x, l->sum, (size_t)tokens * WIDTH, symcclBfloat16, symcclSum,
			s->comm, (symcclStream_t)s->stream));
		launch(s, tokens, add, old_residual[i], (char *)l->sum, (char *)l->residual);
		launch(s, tokens, norm, (char *)l->residual, weights[i], (char *)l->norm);
	} else if (nranks == 1) {
		fused<1>(s, how, j);
	} else if (nranks == 2) {
		fused<2>(s, how, j);
	} else {
		fused<4>(s, how, j);
	}
}

static float x_value(int rank, size_t i)
{
	return (float)((int)(mix((uint32_t)rank, (uint32_t)i) % 2001) - 1000) / 512;
}
static __nv_bfloat16 narrow(float a)
{
	return __float2bfloat16_rn(a);
}
static float wide(__nv_bfloat16 a)
{
	return __bfloat162float(a);
}
#define OLD_VALUE(i) wide(narrow(x_value(100, i)))
#define WEIGHT(i) wide(narrow(1 + x_value(101, i) / 4))

static void fill(void)
{
	for (int i = 0; i < nlocal; i++) {
		struct side *s = &side[i];

		use(s);
		CUDA(cudaMalloc(&old_residual[i], TOKENS_MOST * WIDTH * 2));
		CUDA(cudaMalloc(&weights[i], WIDTH * 2));
		for (size_t k = 0; k < TOKENS_MOST * WIDTH; k++)
			host[k] = narrow(OLD_VALUE(k));
		CUDA(cudaMemcpy(old_residual[i], host, TOKENS_MOST * WIDTH * 2, cudaMemcpyDefault));
		for (size_t k = 0; k < WIDTH; k++)
			host[k] = narrow(WEIGHT(k));
		CUDA(cudaMemcpy(weights[i], host, WIDTH * 2, cudaMemcpyDefault));
		for (size_t k = 0; k < TOKENS_MOST * WIDTH; k++)
			host[k] = narrow(x_value(s->rank, k));
		CUDA(cudaMemcpy(s->memory, host, TOKENS_MOST * WIDTH * 2, cudaMemcpyDefault));
	}
}

/* The sum over ranks as T(0, n). */
static float tree(int lo, int n, size_t i)
{
	int k = 1;

	if (n == 1)
		return wide(narrow(x_value(lo, i)));
	while (2 * k < n)
		k *= 2;
	return tree(lo, k, i) + tree(lo + k, n - k, i);
}

static void wrong(
	const struct side *s, enum how how, const char *part, size_t i, float got, float want)
{
	fprintf(stderr, "rank %d, %s: %s of token %zu, element %zu is %g, not %g\n", s->rank,
		names[how], part, i / WIDTH, i % WIDTH, got, want);
	exit(1);
}

/* Residuals bit for bit; norms to a bf16's last place, since a loop adds squares in another order.
 */
static void check(enum how how, int tokens)
{
	const size_t n = (size_t)tokens * WIDTH;

	for (int i = 0; i < nlocal; i++) {
		struct side *s = &side[i];
		char *got = s->memory + offsetof(struct layout, residual);

		use(s);
		CUDA(cudaMemset(got, 0xff, 2 * sizeof(((struct layout *)0)->norm)));
		CUDA(cudaDeviceSynchronize());
	}
	meet();
	for (int i = 0; i < nlocal; i++) {
		use(&side[i]);
		once(&side[i], how, tokens);
	}
	finish();
	for (int i = 0; i < nlocal; i++) {
		struct side *s = &side[i];
		struct layout *l = (struct layout *)s->memory;
		__nv_bfloat16 *residual = host, *norm = host + TOKENS_MOST * WIDTH;

		use(s);
		CUDA(cudaMemcpy(residual, l->residual, n * 2, cudaMemcpyDefault));
		CUDA(cudaMemcpy(norm, l->norm, n * 2, cudaMemcpyDefault));
		for (size_t t = 0; t < n; t += WIDTH) {
			double squares = 0;

			for (size_t k = t; k < t + WIDTH; k++) {
				float want = wide(
					narrow(OLD_VALUE(k) + wide(narrow(tree(0, nranks, k)))));

				if (wide(residual[k]) != want)
					wrong(s, how, "residual", k, wide(residual[k]), want);
				squares += (double)want * want;
			}
			squares = 1 / sqrt(squares / WIDTH + EPS);
			for (size_t k = t; k < t + WIDTH; k++) {
				double want = wide(residual[k]) * squares * WEIGHT(k - t);

				if (!(fabs(wide(norm[k]) - want) <= fabs(want) / 128))
					wrong(s, how, "norm", k, wide(norm[k]), (float)want);
			}
		}
	}
}

int main(int argc, char **argv)
{
	symcclDevCommRequirements_t reqs = SYMCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;

	start(argc, argv);
	if (nranks != 1 && nranks != 2 && nranks != 4) {
		fprintf(stderr, "%d ranks: 1, 2 or 4 here\n", nranks);
		return 2;
	}
	reqs.sessions = ctas;
	reqs.packetSlots = nranks * SLOTS;
	resources(sizeof(struct layout), &reqs);
	CUDA(cudaMallocHost(&host, 2 * TOKENS_MOST * WIDTH * 2));
	fill();
	for (int how = THREE; how <= DIRECT; how++) {
		check((enum how)how, 7);
		check((enum how)how, TOKENS_MOST);
	}
	if (side[0].rank == 0)
		printf("%d ranks: values right\n"
		       "tokens  three kernels  packets   direct  (us)  three / best\n",
			nranks);
	for (int tokens = 8; tokens <= TOKENS_MOST && !untimed; tokens *= 2) {
		double us[3];

		for (int how = THREE; how <= DIRECT; how++)
			us[how] = timed([&](struct side *s) { once(s, (enum how)how, tokens); });
		if (side[0].rank == 0)
			printf("%6d  %13.2f  %7.2f  %7.2f        %12.2f\n", tokens, us[THREE],
				us[PACKETS], us[DIRECT],
				us[THREE] / std::min(us[PACKETS], us[DIRECT]));
	}
	stop();
	return 0;
}
