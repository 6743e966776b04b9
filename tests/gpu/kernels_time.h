/*
 * kernels.cu's parts that take times: floors of the machine, kernels beside them, and what moves
 * bytes best.
 */
#ifndef KERNELS_TIME_H
#define KERNELS_TIME_H

/* ---- Time ----------------------------------------------------------------------------------- */

/* Microseconds a step of `steps` kernels captured by record(rank), on n ranks: best of 7 and
 * median. */
template <class F> static double graph_time(int n, int steps, F record, double *median)
{
	cudaGraphExec_t exec[WORLD_MAX];
	std::vector<double> t;

	for (int r = 0; r < n; r++) {
		cudaGraph_t graph;

		CR(cudaSetDevice(device_of(r)));
		CR(cudaStreamBeginCapture(streams[r], cudaStreamCaptureModeRelaxed));
		record(r);
		CR(cudaStreamEndCapture(streams[r], &graph));
		CR(cudaGraphInstantiate(&exec[r], graph, 0));
		CR(cudaGraphDestroy(graph));
		CR(cudaGraphUpload(exec[r], streams[r]));
	}
	sync_all();
	for (int i = 0; i < 8; i++) {
		const int launches = 4;
		double t0 = now_us();

		for (int k = 0; k < launches; k++)
			for (int r = 0; r < n; r++) {
				CR(cudaSetDevice(device_of(r)));
				CR(cudaGraphLaunch(exec[r], streams[r]));
			}
		sync_all();
		if (i)
			t.push_back((now_us() - t0) / (launches * steps));
	}
	for (int r = 0; r < n; r++)
		CR(cudaGraphExecDestroy(exec[r]));
	std::sort(t.begin(), t.end());
	if (median)
		*median = t[t.size() / 2];
	return t[0];
}

__global__ void empty()
{
}
__global__ void ping(
	volatile uint32_t *mine, volatile uint32_t *peer, int first, int turns, int strong)
{
	for (int i = 1; i <= turns; i++) {
		uint32_t v;

		if (first) {
			if (strong)
				asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(peer), "r"(i)
					     : "memory");
			else
				asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(peer), "r"(i)
					     : "memory");
		}
		do {
			if (strong)
				asm volatile("ld.acquire.sys.u32 %0, [%1];"
					     : "=r"(v)
					     : "l"(mine)
					     : "memory");
			else
				asm volatile("ld.relaxed.sys.u32 %0, [%1];"
					     : "=r"(v)
					     : "l"(mine)
					     : "memory");
		} while (v != (uint32_t)i);
		if (!first) {
			if (strong)
				asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(peer), "r"(i)
					     : "memory");
			else
				asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(peer), "r"(i)
					     : "memory");
		}
	}
}
__global__ void __launch_bounds__(512) copy(const uint4 *in, uint4 *out, size_t n)
{
	size_t step = (size_t)gridDim.x * blockDim.x;

	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += 4 * step) {
		uint4 x[4];

#pragma unroll
		for (int u = 0; u < 4; u++)
			if (i + u * step < n)
				x[u] = in[i + u * step];
#pragma unroll
		for (int u = 0; u < 4; u++)
			if (i + u * step < n)
				out[i + u * step] = x[u];
	}
}

static void floors_run()
{
	const size_t bytes = 256 << 20;
	struct cudaFuncAttributes attr;

	for (int g = 0; g < gpus; g++) {
		CR(cudaSetDevice(g));
		CR(cudaFuncGetAttributes(&attr, (const void *)ping));
		CR(cudaFuncGetAttributes(&attr, (const void *)copy));
		CR(cudaFuncGetAttributes(&attr, (const void *)empty));
	}
	printf("floor: empty kernel in a graph %.2f us\n",
		graph_time(
			1, 50,
			[](int r) {
				for (int i = 0; i < 50; i++)
					empty<<<1, 32, 0, streams[r]>>>();
			},
			NULL));
	for (int strong = 0; strong < 2; strong++) {
		double t0;

		for (int i = 0; i < 2; i++) {
			machine_zero(base, 4096);
			machine_zero(base + stride, 4096);
			t0 = now_us();
			for (int r = 0; r < 2; r++) {
				CR(cudaSetDevice(device_of(r)));
				ping<<<1, 1, 0, streams[r]>>>((uint32_t *)(base + r * stride),
					(uint32_t *)(base + (1 - r) * stride), r == 0, 20000,
					strong);
			}
			sync_all();
		}
		printf("floor: one-way flag, %s: %.2f us\n", strong ? "release/acquire" : "relaxed",
			(now_us() - t0) / 40000);
	}
	for (int ctas : {8, 16, 32, 64, 128}) {
		double own = graph_time(
			1, 4,
			[=](int r) {
				for (int i = 0; i < 4; i++)
					copy<<<ctas, 512, 0, streams[r]>>>(
						(uint4 *)(base + world_region.in),
						(uint4 *)(base + world_region.out), bytes / 16);
			},
			NULL);
		double peer = graph_time(
			1, 4,
			[=](int r) {
				for (int i = 0; i < 4; i++)
					copy<<<ctas, 512, 0, streams[r]>>>(
						(uint4 *)(base + world_region.in),
						(uint4 *)(base + stride + world_region.out),
						bytes / 16);
			},
			NULL);
		printf("floor: copy of 256 MiB, %d CTAs: own memory %.0f GB/s, to the peer's %.0f "
		       "GB/s\n",
			ctas, bytes / own / 1e3, bytes / peer / 1e3);
	}
	for (int peer = 0; peer < 2; peer++) {
		double us = graph_time(
			1, 4,
			[=](int r) {
				for (int i = 0; i < 4; i++)
					CR(cudaMemcpyAsync(
						(void *)(base + peer * stride + world_region.out),
						(void *)(base + world_region.in), bytes,
						cudaMemcpyDeviceToDevice, streams[r]));
			},
			NULL);

		printf("floor: copy of 256 MiB by the driver: %s %.0f GB/s\n",
			peer ? "to the peer's memory" : "own memory", bytes / us / 1e3);
	}
	fflush(stdout);
}

static void time_run(int n, size_t largest)
{
	static const size_t sizes[] = {
		8, 1024, 8192, 32768, 131072, 524288, 2097152, 8388608, 33554432, 134217728};
	const uint64_t slots = 1 << 20;
	int most = std::min(64, 128 * gpus / n / (gpus > 1 ? 1 : 1));

	if (gpus >= n)
		most = 128;
	world_init(n, slots);
	for (int algo = 0; algo < CASE_ALGOS; algo++)
		for (size_t size : sizes) {
			double best = 1e9, best_median = 0;
			int best_ctas = 0, best_threads = 0;
			std::string all;
			struct test_case c;
			char name[96];
			int packet = cuda_slots_needed((enum cuda_algo)algo, n, 8) != 0;
			size_t part = algo >= CUDA_REDUCESCATTER_PACKET ? size / n : size;

			memset(&c, 0, sizeof(c));
			c.algo = algo;
			c.type = R_F32;
			c.n = n;
			c.fixed = 1;
			c.count = algo_reduces(algo) ? part / 4 : part;
			if (size > largest || c.count == 0 || (algo == CUDA_BARRIER && size != 8) ||
				cuda_slots_needed((enum cuda_algo)algo, n, part) > slots ||
				(packet && size > 8388608) ||
				(!packet && size < 32768 && algo != CUDA_BARRIER))
				continue;
			kernel_name(name, sizeof(name), &c);
			kernel_find(name);
			for (int ctas : {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128})
				for (int threads : {32, 128, 256, 512}) {
					int steps = size >= 8388608 ? 10 : 50;
					double median, t;
					char text[40];

					double per_thread =
						size / (packet ? 8.0 : 16.0) / (ctas * threads);

					c.ctas = ctas;
					c.part = std::min(
						part_most(&c), (size_t)32768 / n / 16 * 16);
					if (ctas > most ||
						(algo == CUDA_BARRIER &&
							(ctas > 1 || threads > 128)) ||
						(packet &&
							(per_thread > 9 ||
								(per_thread < 0.3 &&
									ctas * threads > 128))) ||
						(!packet && algo != CUDA_BARRIER &&
							(ctas < 8 || threads < 256 ||
								(threads < 512 &&
									size < 33554432))))
						continue;
					t = graph_time(
						n, steps,
						[&](int r) {
							struct cuda_args a = case_args(&c, r, NULL);

							for (int i = 0; i < steps; i++)
								launch(r, kernel_find(name), &a,
									ctas, threads);
						},
						&median);
					snprintf(text, sizeof(text), " %dx%d:%.2f", ctas, threads,
						t);
					all += text;
					if (t < best) {
						best = t;
						best_median = median;
						best_ctas = ctas;
						best_threads = threads;
					}
				}
			printf("time: %d ranks %d gpus %-22s %9zu B best %8.2f us (median %8.2f) "
			       "%3d x %d |%s\n",
				n, gpus, algo_names[algo], size, best, best_median, best_ctas,
				best_threads, all.c_str());
			fflush(stdout);
			for (int r = 0; r < n; r++)
				if (records_host[r].state) {
					printf("time: rank %d left\n", r);
					exit(1);
				}
		}
	pdl = 1;
}

/* ---- What moves bytes best: the bodies of direct kernels without their barriers ----------------
 */

template <int HINT> static __device__ __forceinline__ uint4 hint_load(const uint4 *p)
{
	uint4 v;

	if (HINT == 1)
		asm volatile(
			"{ .reg .b64 p; createpolicy.fractional.L2::evict_first.b64 p, 1.0;"
			" ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], p; }"
			: "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
			: "l"(p));
	else
		asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
			     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
			     : "l"(p));
	return v;
}
template <int HINT> static __device__ __forceinline__ void hint_store(uint4 *p, uint4 v)
{
	if (HINT == 1)
		asm volatile("{ .reg .b64 p; createpolicy.fractional.L2::evict_first.b64 p, 1.0;"
			     " st.global.L2::cache_hint.v4.u32 [%0], {%1,%2,%3,%4}, p; }" ::"l"(p),
			     "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
			     : "memory");
	else if (HINT == 2)
		asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x),
			     "r"(v.y), "r"(v.z), "r"(v.w)
			     : "memory");
	else
		asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y),
			     "r"(v.z), "r"(v.w)
			     : "memory");
}
/* READS inputs, WRITES outputs, n vectors; BLOCKED: each CTA its own stretch. */
template <int READS, int WRITES, int U, int LD, int ST, int BLOCKED>
__global__ void __launch_bounds__(512)
	stream_kernel(uint64_t in, uint64_t out, uint64_t apart, size_t n)
{
	size_t step = BLOCKED ? blockDim.x : (size_t)gridDim.x * blockDim.x;
	size_t lo = BLOCKED ? n / gridDim.x * blockIdx.x : 0;
	size_t hi = BLOCKED ? n / gridDim.x * (blockIdx.x + 1) : n;
	size_t first = BLOCKED ? threadIdx.x : blockIdx.x * (size_t)blockDim.x + threadIdx.x;

	for (size_t i = lo + first; i < hi; i += U * step) {
		uint4 x[U][READS];

#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int q = 0; q < READS; q++)
				if (i + u * step < hi)
					x[u][q] = hint_load<LD>(
						(const uint4 *)(in + q * apart) + i + u * step);
#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * step < hi) {
				uint4 v = x[u][0];

#pragma unroll
				for (int q = 1; q < READS; q++) {
					v.x += x[u][q].x;
					v.y += x[u][q].y;
					v.z += x[u][q].z;
					v.w += x[u][q].w;
				}
#pragma unroll
				for (int q = 0; q < WRITES; q++)
					hint_store<ST>(
						(uint4 *)(out + q * apart) + i + u * step, v);
			}
	}
}
template <int READS, int WRITES, int U, int LD, int ST, int BLOCKED> static void stream_time()
{
	const size_t bytes = 64u << 20; /* a rank's part of 128 MiB */
	struct cudaFuncAttributes attr;

	CR(cudaFuncGetAttributes(
		&attr, (const void *)stream_kernel<READS, WRITES, U, LD, ST, BLOCKED>));
	printf("tune: %d reads %d writes U %d ld %d st %d %s %d regs:", READS, WRITES, U, LD, ST,
		BLOCKED ? "blocked" : "strided", attr.numRegs);
	for (int ctas : {16, 32, 48, 64, 66})
		for (int threads : {256, 512}) {
			double t = graph_time(
				2, 10,
				[&](int r) {
					for (int i = 0; i < 10; i++)
						stream_kernel<READS, WRITES, U, LD, ST, BLOCKED>
							<<<ctas, threads, 0, streams[r]>>>(
								base + world_region.in + r * bytes,
								base + world_region.out + r * bytes,
								stride, bytes / 16);
				},
				NULL);

			printf(" %dx%d:%.1f", ctas, threads, t);
		}
	printf(" us (both ranks at once)\n");
	fflush(stdout);
}
static void tune_run()
{
	CR(cudaSetDevice(0));
	stream_time<1, 1, 4, 0, 0, 0>();
	stream_time<2, 2, 1, 0, 0, 0>();
	stream_time<2, 2, 2, 0, 0, 0>();
	stream_time<2, 2, 4, 0, 0, 0>();
	stream_time<2, 2, 8, 0, 0, 0>();
	stream_time<2, 2, 4, 1, 0, 0>();
	stream_time<2, 2, 4, 0, 1, 0>();
	stream_time<2, 2, 4, 1, 1, 0>();
	stream_time<2, 2, 4, 0, 2, 0>();
	stream_time<2, 2, 4, 0, 0, 1>();
	stream_time<2, 2, 4, 1, 1, 1>();
	stream_time<1, 2, 4, 0, 0, 0>();
	stream_time<1, 2, 8, 0, 0, 0>();
	stream_time<1, 2, 4, 1, 1, 0>();
	stream_time<1, 2, 4, 0, 0, 1>();
	stream_time<2, 1, 4, 0, 0, 0>();
	stream_time<2, 1, 4, 1, 1, 0>();
}

#endif
