/*
 * Communicators on GPUs, through the public API, on whatever libcuda.so.1 is there.
 *
 *   comm_gpu [-P processes] [-g ranks] [-t] [-r replays]
 *
 * P processes (1) of g ranks each (1) in one thread, rank r on GPU r modulo their number. Every
 * collective, type, op, on windows and plain memory, in place and not, against the oracle; a
 * captured graph replayed; streams; what goes wrong. -t: times too, graph of 20, median of 15.
 * Exit: 0 passed, 1 failed, 77 no GPU. Several processes on one GPU need MPS to run at the same
 * time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../mem.h"
#include "../oracle.h"
#include "coll/coll.h"
#include "cuda/driver.h"
#include "symccl.h"
#include "util.h"

enum { RANKS_MOST = 8, TIMED = 20, SAMPLES = 15 };
#define ROOM ((size_t)160 << 20)

struct rank {
	int rank, device;
	symcclComm_t comm;
	CUstream stream;
	char *buf[3]; /* window, window, plain of cuMemAlloc */
	symcclWindow_t win[2];
};

static struct rank ranks[RANKS_MOST];
static int nlocal = 1, nprocs = 1, proc, nranks, replays = 200;
static char *host; /* one rank's output */
static struct {
	symcclUniqueId id;
	pthread_barrier_t barrier;
} * shared;

#define CHECK(cond, ...) \
	do { \
		if (!(cond)) { \
			printf("process %d line %d: %s: ", proc, __LINE__, #cond); \
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

/* ---- Setting up
 * ---------------------------------------------------------------------------------- */

static int open_ranks(void)
{
	CUdeviceptr p;

	symcclGroupStart();
	for (int i = 0; i < nlocal; i++) {
		symcclConfig_t cfg = SYMCCL_CONFIG_INITIALIZER;
		struct rank *r = &ranks[i];

		r->rank = proc * nlocal + i;
		r->device = r->rank % cuda_devices()->n;
		cfg.device = symcclDeviceCuda;
		OK(cu_bind_thread(r->device));
		OK(symcclCommInitRankConfig(&r->comm, nranks, shared->id, r->rank, &cfg));
	}
	OK(symcclGroupEnd());
	symcclGroupStart();
	for (int i = 0; i < nlocal; i++) {
		struct rank *r = &ranks[i];

		OK(cu_bind_thread(r->device));
		CU(cu.StreamCreate(&r->stream, CU_STREAM_NON_BLOCKING));
		for (int b = 0; b < 2; b++) {
			OK(symcclMemAllocOn((void **)&r->buf[b], ROOM, symcclDeviceCuda));
			OK(symcclCommWindowRegister(
				r->comm, r->buf[b], ROOM, &r->win[b], SYMCCL_WIN_COLL_SYMMETRIC));
		}
		CU(cu.MemAlloc(&p, ROOM));
		r->buf[2] = (char *)(uintptr_t)p;
	}
	OK(symcclGroupEnd());
	return 0;
}

static int sync_all(void)
{
	for (int i = 0; i < nlocal; i++) {
		OK(cu_bind_thread(ranks[i].device));
		CU(cu.StreamSynchronize(ranks[i].stream));
	}
	for (int i = 0; i < nlocal; i++) {
		symcclResult_t e;

		OK(symcclCommGetAsyncError(ranks[i].comm, &e));
		CHECK(e == symcclSuccess, "asynchronous error: %s",
			symcclGetLastError(ranks[i].comm));
	}
	return 0;
}

/* ---- One call on all local ranks ----------------------------------------------------------------
 */

struct one {
	symcclFunc_t func;
	symcclDataType_t type;
	symcclRedOp_t op;
	size_t count;
	int from, to; /* which buffers */
	int in_place;
	size_t at; /* byte offset in both */
};

static void extents(const struct one *o, size_t *send, size_t *recv)
{
	size_t n = o->count * coll_type_size(o->type);

	*send = o->func == symcclFuncReduceScatter ? n * (size_t)nranks : n;
	*recv = o->func == symcclFuncAllGather ? n * (size_t)nranks : n;
}

static void places(const struct one *o, const struct rank *r, char **send, char **recv)
{
	size_t n = o->count * coll_type_size(o->type);

	*send = r->buf[o->from] + o->at;
	*recv = r->buf[o->to] + o->at;
	if (!o->in_place)
		return;
	if (o->func == symcclFuncReduceScatter)
		*recv = *send + (size_t)r->rank * n;
	else
		*send = *recv + (o->func == symcclFuncAllGather ? (size_t)r->rank * n : 0);
}

static symcclResult_t enqueue(const struct one *o, const struct rank *r)
{
	char *send, *recv;

	places(o, r, &send, &recv);
	if (o->func == symcclFuncAllGather)
		return symcclAllGather(
			send, recv, o->count, o->type, r->comm, (symcclStream_t)r->stream);
	if (o->func == symcclFuncAllReduce)
		return symcclAllReduce(
			send, recv, o->count, o->type, o->op, r->comm, (symcclStream_t)r->stream);
	if (o->func == symcclFuncReduceScatter)
		return symcclReduceScatter(
			send, recv, o->count, o->type, o->op, r->comm, (symcclStream_t)r->stream);
	return symcclBarrier(r->comm, (symcclStream_t)r->stream);
}

static int enqueue_all(const struct one *o)
{
	symcclGroupStart();
	for (int i = 0; i < nlocal; i++) {
		OK(cu_bind_thread(ranks[i].device));
		OK(enqueue(o, &ranks[i]));
	}
	OK(symcclGroupEnd());
	return 0;
}

/* Inputs depend on (seed, rank) only, so the expected output needs no communication. */
static int load(const struct one *o, uint64_t seed)
{
	size_t send, recv,
		n = o->func == symcclFuncReduceScatter ? o->count * (size_t)nranks : o->count;
	char *s, *d;

	extents(o, &send, &recv);
	for (int i = 0; i < nlocal; i++) {
		struct rank *r = &ranks[i];

		places(o, r, &s, &d);
		OK(cu_bind_thread(r->device));
		CU(cu.MemsetD8Async(dev(d), 0xa5, recv, r->stream));
		fill_type(host, n, o->type, seed + (uint64_t)r->rank);
		CU(cu.MemcpyAsync(dev(s), dev(host), send, r->stream));
		CU(cu.StreamSynchronize(r->stream));
	}
	return 0;
}

static int compare(const struct one *o, uint64_t seed)
{
	size_t send, recv, es = coll_type_size(o->type), total = o->count;
	const void *src[RANKS_MOST];
	char *want, *s, *d, *in;

	extents(o, &send, &recv);
	if (o->func != symcclFuncAllReduce)
		total *= (size_t)nranks;
	want = malloc(total * es + 64);
	in = malloc((size_t)nranks * (send + 64));
	CHECK(want && in, "no memory");
	for (int r = 0; r < nranks; r++) {
		src[r] = in + (size_t)r * send;
		fill_type(in + (size_t)r * send, send / es, o->type, seed + (uint64_t)r);
	}
	if (o->func == symcclFuncAllGather)
		memcpy(want, in, total * es);
	else
		oracle_reduce(o->type, o->op, src, nranks, NULL, send / es, want);
	for (int i = 0; i < nlocal; i++) {
		struct rank *r = &ranks[i];
		size_t part = o->func == symcclFuncReduceScatter ? (size_t)r->rank * recv : 0;

		places(o, r, &s, &d);
		OK(cu_bind_thread(r->device));
		CU(cu.MemcpyAsync(dev(host), dev(d), recv, r->stream));
		CU(cu.StreamSynchronize(r->stream));
		for (size_t k = 0; k < recv; k++)
			CHECK(host[k] == want[part + k],
				"func %d type %d op %d count %zu buffers %d %d in place %d at %zu: "
				"rank %d byte "
				"%zu",
				o->func, o->type, o->op, o->count, o->from, o->to, o->in_place,
				o->at, r->rank, k);
	}
	free(want);
	free(in);
	return 0;
}

static int one(const struct one *o, uint64_t seed)
{
	TRY_TEST(load(o, seed));
	TRY_TEST(enqueue_all(o));
	TRY_TEST(sync_all());
	return compare(o, seed);
}

/* ---- Parts
 * ----------------------------------------------------------------------------------------- */

static int check(void)
{
	static const size_t counts[] = {1, 3, 7, 64, 1000, 4096, 70001, 300000};
	int n = 0;

	for (int f = symcclFuncAllGather; f <= symcclFuncReduceScatter; f++)
		for (int t = 0; t < symcclNumTypes; t++)
			for (int op = 0; op < (f == symcclFuncAllGather ? 1 : symcclNumOps); op++)
				for (size_t c = 0; c < ARRAY_LEN(counts); c++) {
					struct one o = {.func = (symcclFunc_t)f,
						.type = (symcclDataType_t)t,
						.op = (symcclRedOp_t)op,
						.count = counts[c],
						.from = (n / 3) % 3,
						.to = n % 3,
						.in_place = n % 5 == 0};

					/* A large one of each only now and then: the oracle is
					 * slow. */
					if (counts[c] > 5000 && (t * 7 + op + f) % 6 != (int)c % 6)
						continue;
					if (o.in_place)
						o.from = o.to;
					else if (o.from == o.to)
						o.from = (o.to + 1) % 3;
					o.at = n % 4 == 1 ? 256 + (size_t)(n % 61) *
									    coll_type_size(o.type)
							  : 256;
					TRY_TEST(one(&o, test_seed() + (uint64_t)n * 64));
					n++;
				}
	if (proc == 0)
		printf("check: %d ranks, %d calls right\n", nranks, n);
	return 0;
}

/* 50 collectives with something before each that makes its input, captured and replayed. */
static int graph(void)
{
	CUgraphExec exec[RANKS_MOST];
	CUgraph g;
	struct one o[5] = {
		{symcclFuncAllReduce, symcclFloat32, symcclSum, 1000, 0, 1, 0, 256},
		{symcclFuncAllGather, symcclFloat32, symcclSum, 5000, 0, 1, 0, 65536},
		{symcclFuncReduceScatter, symcclFloat32, symcclSum, 4000, 0, 1, 0, 1 << 20},
		{symcclFuncAllReduce, symcclFloat32, symcclSum, 1 << 20, 0, 1, 0, 2 << 20},
		{symcclFuncAllReduce, symcclFloat32, symcclSum, 9000, 2, 2, 0, 256},
	};
	size_t send, recv;

	o[4].in_place = 1;
	for (int k = 0; k < 5; k++) {
		TRY_TEST(load(&o[k], test_seed() + (uint64_t)k * 100));
		TRY_TEST(enqueue_all(&o[k])); /* everything is ready before the capture */
		TRY_TEST(sync_all());
	}
	/* The source stays beside the windows; each call's input is copied from it just before. */
	for (int i = 0; i < nlocal; i++) {
		struct rank *r = &ranks[i];
		char *s, *d;

		OK(cu_bind_thread(r->device));
		CU(cu.StreamBeginCapture(r->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
		for (int k = 0; k < 50; k++) {
			const struct one *p = &o[k % 5];
			char *keep = r->buf[2] + ((size_t)(32 + 16 * (k % 5)) << 20);

			extents(p, &send, &recv);
			places(p, r, &s, &d);
			CU(cu.MemcpyAsync(dev(s), dev(keep), send, r->stream));
			OK(enqueue(p, r));
		}
		CU(cu.StreamEndCapture(r->stream, &g));
		CU(cu.GraphInstantiateWithFlags(&exec[i], g, 0));
		CU(cu.GraphDestroy(g));
	}
	for (int k = 0; k < 5; k++)
		for (int i = 0; i < nlocal; i++) {
			struct rank *r = &ranks[i];
			char *keep = r->buf[2] + ((size_t)(32 + 16 * k) << 20);
			size_t n;

			OK(cu_bind_thread(r->device));
			extents(&o[k], &send, &recv);
			n = send / 4;
			fill_type(host, n, symcclFloat32,
				test_seed() + 7 + (uint64_t)(k * 100 + r->rank));
			CU(cu.MemcpyAsync(dev(keep), dev(host), send, r->stream));
			CU(cu.StreamSynchronize(r->stream));
		}
	for (int k = 0; k < replays; k++)
		for (int i = 0; i < nlocal; i++) {
			OK(cu_bind_thread(ranks[i].device));
			CU(cu.GraphLaunch(exec[i], ranks[i].stream));
		}
	TRY_TEST(sync_all());
	for (int k = 0; k < 5; k++)
		TRY_TEST(compare(&o[k], test_seed() + 7 + (uint64_t)k * 100));
	for (int i = 0; i < nlocal; i++)
		CU(cu.GraphExecDestroy(exec[i]));
	if (proc == 0)
		printf("graph: %d ranks, 50 collectives replayed %d times: right\n", nranks,
			replays);
	return 0;
}

/* Calls on alternating streams keep their order. */
static int streams(void)
{
	struct one o = {symcclFuncAllReduce, symcclFloat32, symcclSum, 50000, 1, 1, 1, 256};
	CUstream other[RANKS_MOST], first[RANKS_MOST];

	for (int i = 0; i < nlocal; i++) {
		OK(cu_bind_thread(ranks[i].device));
		CU(cu.StreamCreate(&other[i], CU_STREAM_NON_BLOCKING));
		first[i] = ranks[i].stream;
	}
	TRY_TEST(load(&o, 0));
	for (int i = 0; i < nlocal; i++) {
		char *s, *d;

		places(&o, &ranks[i], &s, &d);
		OK(cu_bind_thread(ranks[i].device));
		CU(cu.MemsetD8Async(dev(s), 0, o.count * 4, ranks[i].stream));
		CU(cu.MemsetD32Async(dev(s), 0x3f800000, o.count, ranks[i].stream)); /* 1.0 */
		CU(cu.StreamSynchronize(ranks[i].stream));
	}
	for (int k = 0; k < 6; k++) {
		for (int i = 0; i < nlocal; i++)
			ranks[i].stream = k % 2 ? other[i] : first[i];
		TRY_TEST(enqueue_all(&o));
	}
	TRY_TEST(sync_all());
	for (int i = 0; i < nlocal; i++) {
		char *s, *d;
		float want = 1;

		for (int k = 0; k < 6; k++)
			want *= (float)nranks;
		ranks[i].stream = first[i];
		places(&o, &ranks[i], &s, &d);
		CU(cu.StreamSynchronize(first[i]));
		CU(cu.MemcpyAsync(dev(host), dev(d), o.count * 4, first[i]));
		CU(cu.StreamSynchronize(first[i]));
		for (size_t k = 0; k < o.count; k++)
			CHECK(((float *)host)[k] == want, "element %zu is %g, not %g", k,
				(double)((float *)host)[k], (double)want);
	}
	if (proc == 0)
		printf("streams: right\n");
	return 0;
}

static double graph_us(const struct one *o)
{
	CUgraphExec exec[RANKS_MOST];
	double us[SAMPLES];
	CUgraph g;

	for (int i = 0; i < nlocal; i++) {
		cu_bind_thread(ranks[i].device);
		cu.StreamBeginCapture(ranks[i].stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
		for (int k = 0; k < TIMED; k++)
			enqueue(o, &ranks[i]);
		cu.StreamEndCapture(ranks[i].stream, &g);
		cu.GraphInstantiateWithFlags(&exec[i], g, 0);
		cu.GraphDestroy(g);
	}
	for (int k = 0; k < SAMPLES; k++) {
		uint64_t t;

		pthread_barrier_wait(&shared->barrier);
		t = now_ns();
		for (int i = 0; i < nlocal; i++)
			cu.GraphLaunch(exec[i], ranks[i].stream);
		sync_all();
		us[k] = (double)(now_ns() - t) / 1e3 / TIMED;
	}
	for (int i = 0; i < nlocal; i++)
		cu.GraphExecDestroy(exec[i]);
	for (int a = 1; a < SAMPLES; a++)
		for (int b = a; b > 0 && us[b] < us[b - 1]; b--) {
			double x = us[b];

			us[b] = us[b - 1];
			us[b - 1] = x;
		}
	return us[SAMPLES / 2];
}

static int timing(void)
{
	static const char *const name[] = {"Barrier", "AllGather", "AllReduce", "ReduceScatter"};

	for (int f = symcclFuncAllGather; f <= symcclFuncReduceScatter; f++)
		for (size_t bytes = 8; bytes <= (size_t)128 << 20; bytes *= 4)
			for (int plain = 0; plain < 2; plain++) {
				struct one o = {(symcclFunc_t)f, symcclFloat32, symcclSum,
					bytes / 4, plain ? 2 : 0, plain ? 2 : 1, 0, 256};
				symcclPlan_t plan;
				char *s, *d;
				double us, host_us;
				uint64_t t;

				if (f != symcclFuncAllReduce)
					o.count /= (size_t)nranks;
				if (o.count == 0)
					continue;
				if (plain) { /* one buffer only: out of place within it */
					if (bytes > (size_t)32 << 20)
						continue;
					o.in_place = 1;
				}
				places(&o, &ranks[0], &s, &d);
				OK(symcclQueryPlan(
					ranks[0].comm, o.func, s, d, o.count, o.type, o.op, &plan));
				us = graph_us(&o);
				pthread_barrier_wait(&shared->barrier);
				t = now_ns();
				for (int k = 0; k < 16; k++)
					TRY_TEST(enqueue_all(&o));
				host_us = (double)(now_ns() - t) / 1e3 / 16 / nlocal;
				TRY_TEST(sync_all());
				if (proc == 0)
					printf("time: %-13s %10zu B %-6s %9.2f us   call %5.2f us  "
					       " %s, %d CTAs, "
					       "model %.2f\n",
						name[f], bytes, plain ? "plain" : "window", us,
						host_us, plan.algorithm, plan.nCTAs, plan.timeUs);
			}
	return 0;
}

/* A kernel that waits for a peer that does not come leaves when the communicator is aborted. */
static int hung(void)
{
	struct one o = {symcclFuncAllReduce, symcclFloat32, symcclSum, 1000, 0, 1, 0, 256};
	uint64_t t;

	if (nranks < 2)
		return 0;
	pthread_barrier_wait(&shared->barrier);
	if (proc == 0) {
		OK(cu_bind_thread(ranks[0].device));
		OK(enqueue(&o, &ranks[0]));
		usleep(100000);
		CHECK(cu.StreamQuery(ranks[0].stream) == CUDA_ERROR_NOT_READY, "it did not wait");
		t = now_ns();
		OK(symcclCommAbort(ranks[0].comm));
		CU(cu.StreamSynchronize(ranks[0].stream));
		CHECK(now_ns() - t < 1000000000u, "%g s", (double)(now_ns() - t) / 1e9);
		ranks[0].comm = NULL;
		printf("hung: left after %.1f ms\n", (double)(now_ns() - t) / 1e6);
	}
	for (int i = proc == 0; i < nlocal; i++) {
		symcclResult_t e = symcclSuccess;

		t = now_ns();
		while (e == symcclSuccess && now_ns() - t < 2000000000u)
			OK(symcclCommGetAsyncError(ranks[i].comm, &e));
		CHECK(e == symcclRemoteError, "rank %d was not told", ranks[i].rank);
		CHECK(strstr(symcclGetLastError(ranks[i].comm), "rank 0 called symcclCommAbort") !=
				NULL,
			"another reason");
	}
	return 0;
}

static int close_ranks(void)
{
	for (int i = 0; i < nlocal; i++) {
		OK(cu_bind_thread(ranks[i].device));
		OK(symcclCommDestroy(ranks[i].comm));
		for (int b = 0; b < 2; b++)
			OK(symcclMemFree(ranks[i].buf[b]));
		CU(cu.MemFree(dev(ranks[i].buf[2])));
	}
	return 0;
}

static int body(int timed)
{
	CUdeviceptr h;
	void *p;

	if (cuda_open() != NULL) {
		printf("no GPU: %s\n", cuda_open());
		return 77;
	}
	OK(cu_bind_thread(proc * nlocal % cuda_devices()->n));
	CU(cu.MemHostAlloc(&p, ROOM, CU_MEMHOSTALLOC_PORTABLE));
	CU(cu.MemHostGetDevicePointer(&h, p, 0));
	host = p;
	TRY_TEST(open_ranks());
	TRY_TEST(check());
	TRY_TEST(graph());
	TRY_TEST(streams());
	if (timed)
		TRY_TEST(timing());
	TRY_TEST(hung());
	TRY_TEST(close_ranks());
	if (proc == 0)
		printf("comm_gpu: %d processes of %d ranks: all right\n", nprocs, nlocal);
	return 0;
}

int main(int argc, char **argv)
{
	pthread_barrierattr_t a;
	int timed = 0, opt, rc = 0, status;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((opt = getopt(argc, argv, "P:g:r:t")) != -1) {
		if (opt == 'P')
			nprocs = atoi(optarg);
		else if (opt == 'g')
			nlocal = atoi(optarg);
		else if (opt == 'r')
			replays = atoi(optarg);
		else if (opt == 't')
			timed = 1;
		else
			return 1;
	}
	/* Streams that wait for each other need queues of their own; a GPU has few for all
	 * processes. */
	if (nlocal > 1)
		setenv("CUDA_DEVICE_MAX_CONNECTIONS", nprocs > 1 ? "8" : "32", 0);
	nranks = nprocs * nlocal;
	if (nranks < 1 || nranks > RANKS_MOST || nlocal > RANKS_MOST)
		return 1;
	shared = mmap(
		NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || symcclGetUniqueId(&shared->id) != symcclSuccess)
		return 1;
	pthread_barrierattr_init(&a);
	pthread_barrierattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&shared->barrier, &a, (unsigned)nprocs);
	test_seed();
	for (proc = 0; proc < nprocs; proc++)
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			rc = body(timed);
			fflush(stdout);
			_exit(rc);
		}
	while (wait(&status) > 0)
		if (status != 0)
			rc = WIFEXITED(status) && WEXITSTATUS(status) == 77 ? 77 : 1;
	return rc;
}
