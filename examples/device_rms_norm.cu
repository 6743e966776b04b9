/*
 * All-reduce, residual and RMSNorm in one kernel, as a tensor-parallel layer ends, in bf16:
 *
 *	sum = x of all ranks added up             residual += sum
 *	norm = residual / sqrt(mean(residual^2) + eps) * weight        for each token
 *
 * Two kernels. Few tokens: every rank sends its rows to all as packets, and each computes all
 * tokens; a cluster of CTAs shares a row, for latency. Many: each rank loads its share of the
 * tokens from everybody's window, and stores the results to everybody's. Both are checked against a
 * plain loop, and against three kernels in a row, symcclAllReduce, add, norm, with which their time
 * is compared.
 *
 *	device_rms_norm_gpu [-n ranks (2)] [-c]
 */
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <math.h>
#include "device_common.cuh"

namespace cg = cooperative_groups;

enum { WIDTH = 8192 };
enum { TOKENS_MOST = 512 };
#define EPS 1e-5f

/* In every rank's window; rows of WIDTH. */
struct layout {
	__nv_bfloat16 x[TOKENS_MOST * WIDTH], sum[TOKENS_MOST * WIDTH],
		residual[TOKENS_MOST * WIDTH], norm[TOKENS_MOST * WIDTH];
};
#define ROW(token) ((size_t)(token)*WIDTH * 2)
#define AT(part, token) (offsetof(struct layout, part) + ROW(token))

/*
 * How a row lies in the threads of SPLIT CTAs, which are a cluster when they are more than one:
 * each has VECS vectors of 16 bytes, THREADS apart.
 */
template <int SPLIT_, int VECS_> struct rows {
	enum { SPLIT = SPLIT_, VECS = VECS_, EACH = 8 * VECS, PACKS = 2 * VECS };
	enum { THREADS = WIDTH / EACH / SPLIT, WARPS = SPLIT * THREADS / 32 };

	union piece { /* what a thread has */
		uint4 v[VECS];
		uint64_t pack[PACKS];
		__nv_bfloat16 e[EACH];
	};

	static __device__ size_t vec_at(int u)
	{
		return (blockIdx.x % SPLIT * VECS + u) * THREADS + threadIdx.x;
	}
	static __device__ union piece load(const void *row)
	{
		union piece a;

		for (int u = 0; u < VECS; u++)
			a.v[u] = ((const uint4 *)row)[vec_at(u)];
		return a;
	}
	static __device__ void store(void *row, const union piece &a)
	{
		for (int u = 0; u < VECS; u++)
			((uint4 *)row)[vec_at(u)] = a.v[u];
	}

	/* The sum of v over the row's threads. turn: by turns 0 and 1. */
	static __device__ float sum(float v, int turn)
	{
		__shared__ float warps[2][WARPS];
		cg::cluster_group cluster = cg::this_cluster();
		int lane = threadIdx.x % 32;
		int warp = blockIdx.x % SPLIT * (THREADS / 32) + threadIdx.x / 32;

		for (int d = 16; d > 0; d /= 2)
			v += __shfl_xor_sync(~0u, v, d);
		if (SPLIT == 1 && lane == 0)
			warps[turn][warp] = v;
		if (SPLIT > 1 && lane < SPLIT)
			*cluster.map_shared_rank(&warps[turn][warp], lane) = v;
		if (SPLIT == 1)
			__syncthreads();
		else
			cluster.sync();
		v = warps[turn][lane % WARPS];
		for (int d = WARPS / 2; d > 0; d /= 2)
			v += __shfl_xor_sync(~0u, v, d);
		return v;
	}

	/* a + b, rounded. */
	static __device__ union piece add(union piece a, const union piece &b)
	{
		for (int k = 0; k < EACH; k++)
			a.e[k] = __float2bfloat16_rn(
				__bfloat162float(a.e[k]) + __bfloat162float(b.e[k]));
		return a;
	}
	/* All ranks' pieces, added up as symcclAllReduce does. */
	template <int N> static __device__ union piece add_up(const union piece (&x)[N])
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
	/* All threads of the row. */
	static __device__ union piece norm(union piece a, const union piece &weight, int turn)
	{
		float squares = 0;

		for (int k = 0; k < EACH; k++)
			squares += __bfloat162float(a.e[k]) * __bfloat162float(a.e[k]);
		squares = rsqrtf(sum(squares, turn) / WIDTH + EPS);
		for (int k = 0; k < EACH; k++)
			a.e[k] = __float2bfloat16_rn(
				__bfloat162float(a.e[k]) * squares * __bfloat162float(weight.e[k]));
		return a;
	}
};

typedef rows<4, 1> shared; /* four CTAs of 256 threads */
typedef rows<1, 2> whole;  /* one of 512 */

struct job {
	symcclDevWindow_t w;
	char *old, *weight; /* plain memory: the residual before, [TOKENS_MOST][WIDTH]; [WIDTH] */
	int tokens;
	symcclResult_t *result;
};

/* A session that has failed returns from each of its calls at once. The loop goes on to its end,
 * since the CTAs of a cluster wait for each other. */
template <int N>
__global__ void __cluster_dims__(shared::SPLIT) __launch_bounds__(shared::THREADS, 4)
	fused_packets(const __grid_constant__ symcclDevComm_t comm, const __grid_constant__ job j)
{
	typedef shared R;
	int t = blockIdx.x / R::SPLIT, turn = 0; /* no more clusters than tokens */
	R::piece own, old;
	symcclDevSession_t s;

	/* CTAs of a cluster reach into each other once all have begun. */
	asm volatile("barrier.cluster.arrive.relaxed.aligned;");
	/* These and the session's first load are in flight together. */
	own = R::load(symcclDevLocalPtr(&j.w, AT(x, t)));
	old = R::load(j.old + ROW(t));
	symcclDevSessionOpen(
		&s, symcclDevCtx(&comm, symcclDevCta(), 0), symcclDevTeamLsa(&comm), blockIdx.x);
	asm volatile("barrier.cluster.wait.aligned;");
	for (;;) {
		R::piece x[N];
		uint64_t got[N][R::PACKS];

		/* To slots [rank][pack][thread] of the peers' CTAs. */
		for (int u = 0; u < R::PACKS; u++)
			symcclDevSendAll(&s, (comm.rank * R::PACKS + u) * R::THREADS + threadIdx.x,
				own.pack[u]);
		symcclDevRecvTeam<N, R::PACKS>(
			&s, threadIdx.x, R::PACKS * R::THREADS, R::THREADS, own.pack, got);
		symcclDevEndEpoch(&s);
		for (int q = 0; q < N; q++)
			for (int u = 0; u < R::PACKS; u++)
				x[q].pack[u] = got[q][u];
		old = R::add(old, R::add_up<N>(x));
		R::store(symcclDevLocalPtr(&j.w, AT(residual, t)), old);
		R::store(symcclDevLocalPtr(&j.w, AT(norm, t)),
			R::norm(old, R::load(j.weight), turn));
		t += gridDim.x / R::SPLIT;
		if (t >= j.tokens)
			break;
		turn ^= 1;
		own = R::load(symcclDevLocalPtr(&j.w, AT(x, t)));
		old = R::load(j.old + ROW(t));
	}
	if (symcclDevSessionClose(&s) != symcclSuccess)
		*j.result = s.result;
}

template <int N>
__global__ void __launch_bounds__(whole::THREADS)
	fused_direct(const __grid_constant__ symcclDevComm_t comm, const __grid_constant__ job j)
{
	typedef whole R;
	symcclDevSession_t s;
	int turn = 0;

	symcclDevSessionOpen(
		&s, symcclDevCtx(&comm, symcclDevCta(), 0), symcclDevTeamLsa(&comm), blockIdx.x);
	/* Everybody's x is there, and the results may be written. */
	symcclDevBarrier(&s);
	for (int t = comm.rank + N * blockIdx.x; t < j.tokens && s.result == symcclSuccess;
		t += N * gridDim.x, turn ^= 1) {
		R::piece x[N], old = R::load(j.old + ROW(t)), norm;

		for (int q = 0; q < N; q++)
			x[q] = R::load(symcclDevLsaPtr(&j.w, q, AT(x, t)));
		old = R::add(old, R::add_up<N>(x));
		for (int q = 0; q < N; q++)
			R::store(symcclDevLsaPtr(&j.w, q, AT(residual, t)), old);
		norm = R::norm(old, R::load(j.weight), turn);
		for (int q = 0; q < N; q++)
			R::store(symcclDevLsaPtr(&j.w, q, AT(norm, t)), norm);
	}
	/* All results are there, and x may be written. */
	symcclDevBarrier(&s);
	if (symcclDevSessionClose(&s) != symcclSuccess)
		*j.result = s.result;
}

/* ---- What it is compared with ---------------------------------------------------------------- */

__global__ void __launch_bounds__(whole::THREADS)
	add(const char *old, const char *sum, char *residual)
{
	const size_t row = ROW(blockIdx.x);

	whole::store(residual + row, whole::add(whole::load(old + row), whole::load(sum + row)));
}
__global__ void __launch_bounds__(whole::THREADS)
	norm(const char *residual, const char *weight, char *out)
{
	const size_t row = ROW(blockIdx.x);

	whole::store(out + row, whole::norm(whole::load(residual + row), whole::load(weight), 0));
}

/* ---- Running ----------------------------------------------------------------------------------
 */

static char *old_residual[RANKS_MOST], *weights[RANKS_MOST];
static __nv_bfloat16 *host; /* one part of a window */

enum how { THREE, PACKETS, DIRECT };
static const char *const names[] = {"three kernels", "packets", "direct"};

/* CTAs of a rank, of either kind: four of the small ones fit on a multiprocessor. */
static int few(void)
{
	return 4 * ctas;
}

template <int N> static void fused(const struct side *s, enum how how, const struct job &j)
{
	if (how == PACKETS)
		fused_packets<N><<<std::min(j.tokens * shared::SPLIT, few()), shared::THREADS, 0,
			s->stream>>>(s->dev, j);
	else
		fused_direct<N>
			<<<std::min((j.tokens + N - 1) / N, ctas), whole::THREADS, 0, s->stream>>>(
				s->dev, j);
}

static void once(struct side *s, enum how how, int tokens)
{
	int i = (int)(s - side);
	struct layout *l = (struct layout *)s->memory;
	struct job j = {s->w, old_residual[i], weights[i], tokens, s->result};

	if (how == THREE) {
		OK(symcclAllReduce(l->x, l->sum, (size_t)tokens * WIDTH, symcclBfloat16, symcclSum,
			s->comm, (symcclStream_t)s->stream));
		add<<<tokens, whole::THREADS, 0, s->stream>>>(
			old_residual[i], (char *)l->sum, (char *)l->residual);
		norm<<<tokens, whole::THREADS, 0, s->stream>>>(
			(char *)l->residual, weights[i], (char *)l->norm);
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
	reqs.sessions = few();
	reqs.packetSlots = nranks * shared::PACKS * shared::THREADS;
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
