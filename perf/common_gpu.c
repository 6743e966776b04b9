/*
 * GPUs: the CUDA driver, found at run time by the library's own table of its calls; memory, streams
 * and events of ranks; and timing with these. Nothing here runs before processes are forked.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "cuda/driver_types.h"

enum {
	MAX_GPUS = 64,
	CHUNK = 32,
	GPU_PROBES = 5,
	GRAPH_CALLS = 20,
	GPU_LEAST = 20,
	GPU_MOST = 2000
};
static const double gpu_budget_s = 0.25;

static struct {
#define CU_SYM(name, symbol, version, need, params) CUresult(*name) params;
#include "cuda/driver_syms.def"
#undef CU_SYM
} cuda;

static struct {
	int n;
	CUcontext ctx[MAX_GPUS];
	pthread_mutex_t lock; /* ctx */
} gpus = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- The driver ------------------------------------------------------------------------- */

static const char *result_name(CUresult r)
{
	const char *name = NULL;

	return cuda.GetErrorName(r, &name) == CUDA_SUCCESS && name ? name : "unknown CUDA error";
}

static void cuda_check(CUresult r, const char *what)
{
	const char *text = NULL;

	if (r == CUDA_SUCCESS)
		return;
	if (cuda.GetErrorString(r, &text) != CUDA_SUCCESS || !text)
		text = "no description";
	perf_die("%s: %s (%s)", what, text, result_name(r));
}

static const char *driver_load(char *why, size_t len)
{
	static const struct {
		const char *symbol;
		size_t slot;
		int required;
	} rows[] = {
#define REQUIRED 1
#define OPTIONAL 0
#define CU_SYM(name, symbol, version, need, params) \
	{#symbol, offsetof(__typeof__(cuda), name), need},
#include "cuda/driver_syms.def"
#undef CU_SYM
#undef REQUIRED
#undef OPTIONAL
	};
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		snprintf(why, len, "no CUDA driver: %s", dlerror());
		return why;
	}
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		void *fn = dlsym(lib, rows[i].symbol);

		if (!fn && rows[i].required) {
			snprintf(why, len, "the CUDA driver is too old: it has no %s",
				rows[i].symbol);
			return why;
		}
		memcpy((char *)&cuda + rows[i].slot, &fn, sizeof(fn));
	}
	return NULL;
}

const char *gpu_open(void)
{
	static char why[256];
	static int tried;
	CUresult r;

	if (tried)
		return *why ? why : NULL;
	tried = 1;
	if (driver_load(why, sizeof(why)))
		return why;
	r = cuda.Init(0);
	if (r == CUDA_SUCCESS)
		r = cuda.DeviceGetCount(&gpus.n);
	if (r != CUDA_SUCCESS && r != CUDA_ERROR_NO_DEVICE)
		snprintf(why, sizeof(why), "the CUDA driver does not start: %s", result_name(r));
	else if (gpus.n < 1)
		snprintf(why, sizeof(why), "no GPU is visible (CUDA_VISIBLE_DEVICES?)");
	gpus.n = gpus.n > MAX_GPUS ? MAX_GPUS : gpus.n;
	return *why ? why : NULL;
}

int gpu_count(void)
{
	return gpus.n;
}

void gpu_bind(int device)
{
	CUdevice dev;
	CUcontext ctx;

	pthread_mutex_lock(&gpus.lock);
	if (!gpus.ctx[device]) {
		cuda_check(cuda.DeviceGet(&dev, device), "opening a GPU");
		cuda_check(cuda.DevicePrimaryCtxRetain(&gpus.ctx[device], dev),
			"opening a GPU's primary context");
	}
	ctx = gpus.ctx[device];
	pthread_mutex_unlock(&gpus.lock);
	cuda_check(cuda.CtxSetCurrent(ctx), "entering a GPU's primary context");
}

void gpu_who(int device, struct perf_who *who)
{
	CUdevice dev;
	int mps = 0;

	who->device = device;
	cuda_check(cuda.DeviceGet(&dev, device), "opening a GPU");
	cuda.DeviceGetPCIBusId(who->bus, sizeof(who->bus), dev);
	cuda.DeviceGetName(who->name, sizeof(who->name), dev);
	cuda.DeviceGetAttribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, dev);
	who->mps = mps;
}

/* ---- A rank's memory and stream --------------------------------------------------------- */

static CUdeviceptr address(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

static CUstream stream_of(const struct perf_rank *r)
{
	return (CUstream)r->stream;
}

void gpu_rank_open(struct perf_rank *r, int null_stream)
{
	CUstream s = NULL;

	gpu_bind(r->device);
	if (!null_stream)
		cuda_check(cuda.StreamCreate(&s, CU_STREAM_NON_BLOCKING), "creating a stream");
	r->stream = (symcclStream_t)s;
}

void gpu_rank_close(struct perf_rank *r)
{
	gpu_bind(r->device);
	for (int i = 0; i < r->nmarks; i++)
		cuda.EventDestroy(r->marks[i]);
	free(r->marks);
	if (r->stream)
		cuda.StreamDestroy(stream_of(r));
}

void *gpu_alloc(const struct perf_rank *r, size_t bytes)
{
	CUdeviceptr p = 0;
	CUresult e;

	gpu_bind(r->device);
	e = cuda.MemAlloc(&p, bytes);
	if (e == CUDA_ERROR_OUT_OF_MEMORY)
		perf_die("rank %d: GPU %d has no room for a buffer of %zu MiB: use a smaller -e",
			r->rank, r->device, bytes >> 20);
	cuda_check(e, "allocating GPU memory");
	return (void *)(uintptr_t)p;
}

void gpu_free(const struct perf_rank *r, void *p)
{
	gpu_bind(r->device);
	cuda_check(cuda.MemFree(address(p)), "freeing GPU memory");
}

void gpu_set(const struct perf_rank *r, void *p, int byte, size_t n)
{
	gpu_bind(r->device);
	if (n)
		cuda_check(cuda.MemsetD8Async(address(p), (unsigned char)byte, n, stream_of(r)),
			"filling GPU memory");
}

void gpu_copy(const struct perf_rank *r, void *dst, const void *src, size_t n)
{
	gpu_bind(r->device);
	if (n)
		cuda_check(cuda.MemcpyAsync(address(dst), address(src), n, stream_of(r)),
			"copying to or from a GPU");
	gpu_sync(r);
}

/* A kernel that gave up completes its stream; what it has to say is the communicator's. */
void gpu_sync(const struct perf_rank *r)
{
	symcclResult_t async = symcclSuccess;

	gpu_bind(r->device);
	cuda_check(cuda.StreamSynchronize(stream_of(r)), "waiting for a GPU");
	perf_check(symcclCommGetAsyncError(r->comm, &async), r->comm, "symcclCommGetAsyncError");
	perf_check(async, r->comm, "a collective on the GPU");
}

static void sync_all(struct perf_thread *t)
{
	for (int i = 0; i < t->job->opt.ranks; i++)
		gpu_sync(&t->ranks[i]);
}

/* ---- Marks: events on the streams of all ranks of a thread ------------------------------ */

static void marks_reserve(struct perf_thread *t, int n)
{
	for (int i = 0; i < t->job->opt.ranks; i++) {
		struct perf_rank *r = &t->ranks[i];

		if (r->nmarks >= n)
			continue;
		r->marks = realloc(r->marks, sizeof(*r->marks) * (size_t)n);
		if (!r->marks)
			perf_die("no memory");
		gpu_bind(r->device);
		for (; r->nmarks < n; r->nmarks++)
			cuda_check(cuda.EventCreate(&r->marks[r->nmarks], CU_EVENT_DEFAULT),
				"creating an event");
	}
}

static void mark_all(struct perf_thread *t, int k)
{
	for (int i = 0; i < t->job->opt.ranks; i++) {
		gpu_bind(t->ranks[i].device);
		cuda_check(cuda.EventRecord(t->ranks[i].marks[k], stream_of(&t->ranks[i])),
			"recording an event");
	}
}

/* Seconds from mark a to mark b on the slowest of this thread's streams. */
static double marks_between(const struct perf_thread *t, int a, int b)
{
	float ms, most = 0;

	for (int i = 0; i < t->job->opt.ranks; i++) {
		const struct perf_rank *r = &t->ranks[i];

		gpu_bind(r->device);
		cuda_check(cuda.EventElapsedTime(&ms, r->marks[a], r->marks[b]), "reading events");
		most = ms > most ? ms : most;
	}
	return (double)most * 1e-3;
}

/* ---- Graphs ----------------------------------------------------------------------------- */

/* n calls in a graph for each rank of the thread. The streams capture side by side, so that the
 * calls of a thread's ranks stay one group. */
static void graphs_make(
	struct perf_thread *t, const struct perf_case *c, int in_place, int n, CUgraphExec *exec)
{
	static const char what[] = "-G: capturing the calls in a graph (-y 1 cannot be captured)";
	int ranks = t->job->opt.ranks;
	CUgraph graph[ranks];

	for (int i = 0; i < ranks; i++) {
		gpu_bind(t->ranks[i].device);
		cuda_check(cuda.StreamBeginCapture(
				   stream_of(&t->ranks[i]), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
			what);
	}
	for (int k = 0; k < n; k++)
		perf_call(t, c, in_place, t->job->opt.agg_iters);
	for (int i = 0; i < ranks; i++) {
		gpu_bind(t->ranks[i].device);
		cuda_check(cuda.StreamEndCapture(stream_of(&t->ranks[i]), &graph[i]), what);
	}
	/* Not while any stream of the thread captures. */
	for (int i = 0; i < ranks; i++) {
		gpu_bind(t->ranks[i].device);
		cuda_check(cuda.GraphInstantiateWithFlags(&exec[i], graph[i], 0),
			"-G: making the graph executable");
		cuda.GraphDestroy(graph[i]);
	}
}

static void graphs_launch(struct perf_thread *t, CUgraphExec *exec)
{
	for (int i = 0; i < t->job->opt.ranks; i++) {
		gpu_bind(t->ranks[i].device);
		cuda_check(cuda.GraphLaunch(exec[i], stream_of(&t->ranks[i])), "-G: launching");
	}
}

/* ---- Timing ----------------------------------------------------------------------------- */

static double *samples(struct perf_thread *t, int n)
{
	free(t->mine);
	t->mine = calloc((size_t)n, sizeof(double));
	if (!t->mine)
		perf_die("no memory");
	return t->mine;
}

/* This thread's n samples become those of the job, each the -a over ranks; the first -K go. */
static double samples_median(struct perf_thread *t, int n, struct perf_time *out)
{
	const struct perf_options *o = &t->job->opt;
	int skip = o->skip < n ? o->skip : 0;
	const double *all = perf_exchange(t, t->mine, (size_t)n);

	for (int k = 0; k < n; k++)
		t->mine[k] = perf_over_ranks(t->job, all + k, (size_t)n, o->average);
	stats_of(t->mine + skip, n - skip, out);
	return bench_median(t->mine + skip, (size_t)(n - skip));
}

static double agreed(struct perf_thread *t, double mine)
{
	return perf_over_ranks(t->job, perf_exchange(t, &mine, 1), 1, t->job->opt.average);
}

/* -G: launches in a row, a mark between them; the median launch, by call. With -C the CPU time of
 * launching. */
static double time_graph(
	struct perf_thread *t, const struct perf_case *c, int in_place, struct perf_time *out)
{
	const struct perf_options *o = &t->job->opt;
	int calls = out->iters * o->agg_iters;
	CUgraphExec exec[o->ranks];
	double cpu = 0;

	graphs_make(t, c, in_place, out->iters, exec);
	graphs_launch(t, exec); /* the first one also brings the graph to the GPU */
	sync_all(t);
	marks_reserve(t, o->graph + 1);
	samples(t, o->graph);
	perf_barrier(t);
	mark_all(t, 0);
	for (int k = 0; k < o->graph; k++) {
		double t0 = bench_now(CLOCK_THREAD_CPUTIME_ID);

		graphs_launch(t, exec);
		cpu += bench_now(CLOCK_THREAD_CPUTIME_ID) - t0;
		mark_all(t, k + 1);
	}
	sync_all(t);
	for (int k = 0; k < o->graph; k++)
		t->mine[k] = marks_between(t, k, k + 1) / calls;
	for (int i = 0; i < o->ranks; i++)
		cuda_check(cuda.GraphExecDestroy(exec[i]), "destroying a graph");
	if (o->cputime)
		return agreed(t, cpu / o->graph / calls / o->ranks);
	return samples_median(t, o->graph, out);
}

/* -C: what the calls cost the CPU, in pieces that no queue is too short for. */
static double time_cpu(
	struct perf_thread *t, const struct perf_case *c, int in_place, const struct perf_time *out)
{
	double cpu = 0;

	perf_barrier(t);
	for (int i = 0; i < out->iters; i += CHUNK) {
		int n = out->iters - i < CHUNK ? out->iters - i : CHUNK;
		double t0 = bench_now(CLOCK_THREAD_CPUTIME_ID);

		for (int k = 0; k < n; k++)
			perf_call(t, c, in_place, t->job->opt.agg_iters);
		cpu += bench_now(CLOCK_THREAD_CPUTIME_ID) - t0;
		sync_all(t);
	}
	return agreed(t, cpu / out->iters / t->job->opt.agg_iters / t->job->opt.ranks);
}

/* --dirty 1, -z 3: each call alone, on idle streams, between two marks. */
static double time_alone(
	struct perf_thread *t, const struct perf_case *c, int in_place, struct perf_time *out)
{
	const struct perf_options *o = &t->job->opt;
	double sum = 0;

	marks_reserve(t, 2);
	samples(t, out->iters);
	for (int k = 0; k < out->iters; k++) {
		if (o->dirty)
			perf_dirty(t, c, in_place, k);
		sync_all(t);
		perf_barrier(t);
		mark_all(t, 0);
		perf_call(t, c, in_place, t->job->opt.agg_iters);
		mark_all(t, 1);
		sync_all(t);
		t->mine[k] = marks_between(t, 0, 1) / o->agg_iters;
		sum += t->mine[k];
	}
	if (o->dirty || o->per_iter)
		sum = samples_median(t, out->iters, out) * out->iters;
	else
		sum = agreed(t, sum / out->iters) * out->iters;
	return sum / out->iters;
}

/* Calls in a row; marks between them only with -I, since they cost a microsecond each. With -z 1
 * the CPU waits for each and meets the others, and its clock counts. */
static double time_eager(
	struct perf_thread *t, const struct perf_case *c, int in_place, struct perf_time *out)
{
	const struct perf_options *o = &t->job->opt;
	int n = out->iters, last = o->per_iter ? n : 1;
	double took, t0;

	marks_reserve(t, last + 1);
	samples(t, last);
	perf_barrier(t);
	t0 = bench_now(CLOCK_MONOTONIC);
	mark_all(t, 0);
	for (int k = 0; k < n; k++) {
		perf_call(t, c, in_place, t->job->opt.agg_iters);
		if (o->blocking == 1) {
			sync_all(t);
			perf_barrier(t);
		}
		if (o->per_iter && k + 1 < n)
			mark_all(t, k + 1);
	}
	mark_all(t, last);
	sync_all(t);
	took = o->blocking == 1 ? bench_now(CLOCK_MONOTONIC) - t0 : marks_between(t, 0, last);
	if (o->per_iter) {
		for (int k = 0; k < n; k++)
			t->mine[k] = marks_between(t, k, k + 1) / o->agg_iters;
		samples_median(t, n, out);
	}
	return agreed(t, took / n / o->agg_iters);
}

/* Warm up, which also makes everything ready for a capture, and settle on a number of calls that
 * all ranks share. */
static int calls_settle(struct perf_thread *t, const struct perf_case *c, int in_place)
{
	const struct perf_options *o = &t->job->opt;
	int warmup = o->warmup == PERF_AUTO ? GPU_PROBES : o->warmup;
	int probe = o->iters == PERF_AUTO && !o->graph;
	double each, n;

	for (int i = 0; i < warmup || (o->graph && i < 1); i++)
		perf_call(t, c, in_place, t->job->opt.agg_iters);
	sync_all(t);
	if (!probe)
		return o->iters == PERF_AUTO ? GRAPH_CALLS : o->iters;
	perf_barrier(t);
	each = bench_now(CLOCK_MONOTONIC);
	for (int i = 0; i < GPU_PROBES; i++)
		perf_call(t, c, in_place, t->job->opt.agg_iters);
	sync_all(t);
	each = (bench_now(CLOCK_MONOTONIC) - each) / GPU_PROBES;
	n = gpu_budget_s / perf_over_ranks(t->job, perf_exchange(t, &each, 1), 1, 3);
	n = n > GPU_MOST ? GPU_MOST : n;
	return n < GPU_LEAST + o->skip ? GPU_LEAST + o->skip : (int)n;
}

double gpu_time(
	struct perf_thread *t, const struct perf_case *c, int in_place, struct perf_time *out)
{
	const struct perf_options *o = &t->job->opt;

	out->iters = calls_settle(t, c, in_place);
	if (o->graph)
		return time_graph(t, c, in_place, out);
	if (o->cputime)
		return time_cpu(t, c, in_place, out);
	if (o->dirty || o->blocking == 3)
		return time_alone(t, c, in_place, out);
	return time_eager(t, c, in_place, out);
}
