/* What becomes of communicators on the CUDA backend when a driver call fails: each of them, once.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cuda_rig.h"
#include "mem.h"
#include "util.h"

TestSuite(comm_cuda_fail, .timeout = 140);

FAKE_IMAGES

static const struct cuda_one there = {
	symcclFuncAllReduce, symcclInt64, symcclSum, 300, 256, 0, 1, 0};
static const struct cuda_one back = {
	symcclFuncAllReduce, symcclInt64, symcclSum, 300, 256, 1, 0, 0};

/* The n-th of the driver calls that the library makes fails; those of the test do not count. */
static struct {
	fakecuda_fail_at_t fail_at;
	fakecuda_calls_t calls;
	fakecuda_failed_t failed;
	fakecuda_leaks_t leaks;
	long n, made;
	char name[64];
} inject;

static void inject_on(void)
{
	inject.fail_at(inject.n > inject.made ? inject.n - inject.made : 0, CUDA_ERROR_UNKNOWN, 0);
}

static void inject_off(void)
{
	inject.made += inject.calls();
	if (inject.failed()[0] != '\0')
		snprintf(inject.name, sizeof(inject.name), "%s", inject.failed());
	inject.fail_at(0, 0, 0);
}

#define INJECTED(call) \
	({ \
		symcclResult_t e_; \
		inject_on(); \
		e_ = (call); \
		inject_off(); \
		e_; \
	})

/* What undoes cannot report; where no context or device is told there is a substitute. */
static int tolerated(const char *name)
{
	static const char *const names[] = {"", "cuMemRelease", "cuMemUnmap", "cuMemAddressFree",
		"cuThreadExchangeStreamCaptureMode", "cuCtxGetCurrent", "cuCtxGetDevice",
		"cuCtxSetCurrent", "cuMemFreeHost", "cuEventDestroy_v2", "cuEventSynchronize",
		"cuMemGetAllocationPropertiesFromHandle", "cuCtxPopCurrent_v2",
		"cuDeviceGetUuid_v2" /* a copy will tell */};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strcmp(name, names[i]) == 0)
			return 1;
	return 0;
}

static symcclResult_t calls_of(struct cuda_member *m)
{
	static const struct cuda_one large = {symcclFuncAllReduce, symcclInt64, symcclSum, 132000,
		256, 2, 0, 0}; /* from plain memory */
	static const struct cuda_one gather = {
		symcclFuncAllGather, symcclInt64, symcclSum, 300, 1 << 20, 0, 2, 0};
	CUgraph graph = NULL;
	symcclResult_t e;

	e = INJECTED(cuda_one_enqueue(&there, m, m->stream[0]));
	if (e == symcclSuccess)
		e = INJECTED(cuda_one_enqueue(&back, m, m->stream[1]));
	if (e == symcclSuccess)
		e = INJECTED(cuda_one_enqueue(&large, m, m->stream[0]));
	if (e == symcclSuccess && cu.StreamBeginCapture(m->stream[0],
					  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS) {
		e = INJECTED(cuda_one_enqueue(&there, m, m->stream[0]));
		if (e == symcclSuccess)
			e = INJECTED(cuda_one_enqueue(&gather, m, m->stream[0]));
		cu.StreamEndCapture(m->stream[0], &graph);
		if (graph != NULL)
			cu.GraphDestroy(graph);
	}
	if (e == symcclSuccess)
		e = INJECTED(cuda_one_enqueue(&gather, m, m->stream[1]));
	return e;
}

struct outcome {
	uint32_t ran_out;
	symcclResult_t e[2];
	char name[64];
};

static int trial(struct cuda_rig *g, int proc, int victim, long n, int *more)
{
	struct outcome *all = ranks_shared();
	struct cuda_member *m = &g->m[0];
	symcclResult_t e, async = symcclSuccess;
	char before[256], after[256];
	int open0 = inject.leaks(before, sizeof(before)), open1;
	symcclUniqueId id;

	RANK_TRY(cuda_rig_id(proc, &id));
	m->comm = NULL;
	inject.n = proc == victim ? n : 0;
	inject.made = 0;
	inject.name[0] = '\0';
	e = INJECTED(symcclCommInitRank(&m->comm, g->nranks, id, m->rank));
	for (int i = 0; i < 2 && e == symcclSuccess; i++)
		e = INJECTED(symcclCommWindowRegister(
			m->comm, m->buf[i], CUDA_RIG_ROOM, &m->win[i], SYMCCL_WIN_COLL_SYMMETRIC));
	if (e == symcclSuccess)
		e = calls_of(m);
	/* A bad argument is its own rank's affair, until that gives up. */
	if (e != symcclSuccess && strcmp(inject.name, "cuPointerGetAttribute") == 0) {
		RANK_OK(symcclCommAbort(m->comm));
		m->comm = NULL;
	}
	/* Whatever else happened, what was enqueued ends. */
	RANK_OK(cu_bind_thread(m->device));
	for (int i = 0; i < 2; i++)
		CU_OK(cu.StreamSynchronize(m->stream[i]));
	all->e[proc] = e;
	if (proc == victim)
		snprintf(all->name, sizeof(all->name), "%s", inject.name);
	RANK_BARRIER();
	/* Who noticed nothing while it enqueued is told afterwards. */
	for (int i = 0; i < 5000 && e == symcclSuccess && async == symcclSuccess &&
			all->e[!proc] != symcclSuccess;
		i++) {
		symcclCommGetAsyncError(m->comm, &async);
		usleep(1000);
	}
	if (all->e[victim] != symcclSuccess)
		RANK_CHECK(e != symcclSuccess || async != symcclSuccess,
			"call %ld, %s: rank %d heard nothing", n, all->name, proc);
	else
		RANK_CHECK(tolerated(all->name), "call %ld, %s, failed and nobody said so", n,
			all->name);
	if (m->comm != NULL)
		INJECTED(symcclCommDestroy(m->comm));
	if (proc == victim && inject.name[0] == '\0')
		all->ran_out = 1;
	open1 = inject.leaks(after, sizeof(after));
	/* Code stays loaded until the process ends. */
	open1 -= strstr(after, "libraries") != NULL && strstr(before, "libraries") == NULL;
	RANK_CHECK(open1 == open0, "call %ld, %s: open before: %s after: %s", n, inject.name,
		before, after);
	RANK_BARRIER();
	*more = !all->ran_out;
	RANK_BARRIER();
	return 0;
}

static int every_call(int proc, int n, void *arg)
{
	int more = 1, victim = (int)(test_seed() % 2);
	int step = getenv("SYMCCL_TEST_FULL") != NULL ? 1 : 4;
	struct outcome *all = ranks_shared();
	struct cuda_rig g = {0};
	long i;

	(void)n;
	RANK_TRY(cuda_rig_start(&g, proc, arg));
	inject.fail_at = (fakecuda_fail_at_t)fakecuda_hook("fakecuda_fail_at");
	inject.calls = (fakecuda_calls_t)fakecuda_hook("fakecuda_calls");
	inject.failed = (fakecuda_failed_t)fakecuda_hook("fakecuda_failed");
	inject.leaks = (fakecuda_leaks_t)fakecuda_hook("fakecuda_leaks");
	/* A stride through the start, with its hundreds of kernels, which a process loads once;
	 * then every call, or every fourth. */
	for (i = 1 + (long)(test_seed() % 7); more && i < 1000; i += 41) {
		ranks_note("call %ld, kernels not loaded", i);
		RANK_TRY(trial(&g, proc, victim, i, &more));
	}
	RANK_TRY(trial(&g, proc, victim, 1L << 30, &more));
	RANK_BARRIER();
	all->ran_out = 0;
	RANK_BARRIER();
	more = 1;
	for (i = 1 + (long)(test_seed() / 8 % (uint64_t)step); more; i += step) {
		ranks_note("call %ld", i);
		RANK_TRY(trial(&g, proc, victim, i, &more));
	}
	RANK_CHECK(i > 60, "only %ld calls", i);
	RANK_BARRIER();
	return cuda_rig_stop(&g);
}

Test(comm_cuda_fail, every_call)
{
	char err[1500];

	test_seed();
	cr_assert_eq(
		ranks_run(2, 120, every_call, &(struct cuda_shape){2, 1, "2"}, err, sizeof(err)), 0,
		"%s", err);
}
