/*
 * Windows of GPU memory over the driver double: the product's registration code, every driver call
 * of it failing once. Whatever call it is, all ranks must say the same, nothing may be left behind,
 * and the next registration must work.
 *
 * A process stands for a hub here: it has one or several ranks, and one thread that registers for
 * all of them, as a communicator's worker does.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "boot_helper.h"
#include "cuda/driver.h"
#include "fakecuda/fakecuda.h"
#include "mem.h"
#include "params.h"
#include "ranks.h"
#include "sym/sym.h"
#include "util.h"

TestSuite(window_cuda, .timeout = 140);

#define PROCS_MAX 4
#define LOCAL_MAX 4
#define STRIDE ((size_t)256 << 20)
#define SETS 4 /* of a whole script */

static const struct mem_ops *const ops = &mem_cuda;

struct plan {
	const char *name, *devices, *async;
	int procs, local; /* ranks per process */
	int multicast;    /* all may have it */
	int victim;       /* process whose calls fail */
	int code;         /* with this CUresult */
	int strict;       /* nonzero: every failure must be seen by the caller */
	int at_end;       /* calls of sym_fini fail, else those of the registrations */
	int first, step;  /* which calls */
};

/* What a process says about each set. */
struct said {
	symcclResult_t code;
	int multicast; /* how many of its windows have it */
	char text[ERROR_TEXT_MAX];
};
struct shared {
	uint32_t done; /* the victim has run out of calls */
	struct said said[PROCS_MAX][SETS];
};

struct buffers {
	char *x, *z;   /* symcclMemAlloc */
	CUdeviceptr y; /* a program's own, two allocations side by side */
};

struct rig {
	const struct plan *plan;
	struct boot *boot;
	struct sym sym;
	int local[LOCAL_MAX];  /* ranks */
	int device[LOCAL_MAX]; /* and their GPUs */
	size_t g;              /* granularity */
	struct buffers mem[LOCAL_MAX];
	struct said *said;
	int nsaid;
	uint32_t freed[2 * LOCAL_MAX]; /* to go with the next batch */
	int nfreed;
	struct window *last[3]; /* newest windows over x, y and z */
	fakecuda_fail_at_t fail_at;
	fakecuda_calls_t calls;
	fakecuda_failed_t failed;
	fakecuda_leaks_t leaks;
};

/* ---- A program's memory ---------------------------------------------------------------------- */

static int two_segments(struct rig *g, CUdeviceptr *out)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, ops->device()},
	};
	CUmemAccessDesc rw = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle h;
	CUdeviceptr va;

	RANK_CHECK(cu.MemAddressReserve(&va, 2 * g->g, 0, 0, 0) == CUDA_SUCCESS);
	for (int i = 0; i < 2; i++) {
		RANK_CHECK(cu.MemCreate(&h, g->g, &prop, 0) == CUDA_SUCCESS);
		RANK_CHECK(cu.MemMap(va + (size_t)i * g->g, g->g, 0, h, 0) == CUDA_SUCCESS);
		RANK_CHECK(cu.MemRelease(h) == CUDA_SUCCESS);
	}
	RANK_CHECK(cu.MemSetAccess(va, 2 * g->g, &rw, 1) == CUDA_SUCCESS);
	*out = va;
	return 0;
}

static int rig_open(struct rig *g, int proc)
{
	const struct plan *p = g->plan;
	struct opener o = {0};
	symcclUniqueId id;

	setenv("SYMCCL_DEBUG", "none", 1);
	setenv("FAKECUDA_DEVICES", p->devices, 1);
	setenv("FAKECUDA_ASYNC", p->async, 1);
	setenv("FAKECUDA_MULTICAST", p->multicast ? "1" : "0", 1);
	params_reload();
	RANK_TRY(share_id(proc, &id));
	for (int l = 0; l < p->local; l++) {
		g->local[l] = proc * p->local + l;
		opener_add(&o, g->local[l], p->procs * p->local);
	}
	RANK_OK(opener_run(&o, &id, 20, &g->boot));
	RANK_CHECK(ops->unusable() == NULL, "%s", ops->unusable());
	g->fail_at = (fakecuda_fail_at_t)fakecuda_hook("fakecuda_fail_at");
	g->calls = (fakecuda_calls_t)fakecuda_hook("fakecuda_calls");
	g->failed = (fakecuda_failed_t)fakecuda_hook("fakecuda_failed");
	g->leaks = (fakecuda_leaks_t)fakecuda_hook("fakecuda_leaks");
	RANK_CHECK(g->leaks != NULL, "the real driver was found first");
	g->g = ops->granularity();
	for (int l = 0; l < p->local; l++) {
		g->device[l] = g->local[l] % cuda_devices()->n;
		RANK_OK(ops->bind_thread(g->device[l]));
		RANK_OK(ops->alloc(g->g, (void **)&g->mem[l].x));
		RANK_OK(ops->alloc(g->g, (void **)&g->mem[l].z));
		RANK_TRY(two_segments(g, &g->mem[l].y));
	}
	return 0;
}

static int rig_close(struct rig *g)
{
	char text[256];

	boot_close(g->boot);
	for (int l = 0; l < g->plan->local; l++) {
		struct buffers *m = &g->mem[l];

		RANK_OK(ops->free_(m->x));
		RANK_OK(ops->free_(m->z));
		RANK_CHECK(cu.MemUnmap(m->y, g->g) == CUDA_SUCCESS);
		RANK_CHECK(cu.MemUnmap(m->y + g->g, g->g) == CUDA_SUCCESS);
		RANK_CHECK(cu.MemAddressFree(m->y, 2 * g->g) == CUDA_SUCCESS);
	}
	RANK_CHECK(cu.CtxSetCurrent(NULL) == CUDA_SUCCESS);
	RANK_CHECK(g->leaks(text, sizeof(text)) == 0, "left open: %s", text);
	return 0;
}

/* ---- A script of registrations ----------------------------------------------------------------
 */

/* Of each batch its sets, of each set its windows. The last batch runs without failures. */
static const char *const script[][2] = {{"xy", NULL}, {"x", "z"}, {"xyz", NULL}};
#define BATCHES ((int)ARRAY_LEN(script))

static struct reg_set *set_new(const struct rig *g, int l, const char *what)
{
	const struct buffers *m = &g->mem[l];
	int n = (int)strlen(what);
	struct reg_set *s = calloc(1, sizeof(*s) + (size_t)n * sizeof(s->req[0]));

	s->nreq = n;
	for (int i = 0; i < n; i++) {
		struct reg_req *r = &s->req[i];

		if (what[i] == 'x') {
			*r = (struct reg_req){m->x, g->g, SYMCCL_WIN_COLL_SYMMETRIC, {0}, {0}, 0};
		} else if (what[i] == 'y') { /* across the seam */
			r->addr = (char *)(uintptr_t)m->y + 4096;
			r->size = 2 * g->g - 4096;
		} else { /* where every rank likes */
			r->addr = m->z + 64 * g->local[l];
			r->size = g->g / 2;
		}
	}
	return s;
}

/* All local ranks must hear the same; keep it for the comparison with the other processes. */
static int take_results(struct rig *g, struct reg_set *const *sets, int b, int n)
{
	for (int i = 0; i < n; i++) {
		const struct reg_set *s = sets[i];
		struct said *said = &g->said[g->nsaid++];

		said->code = s->result.code;
		said->multicast = 0;
		snprintf(said->text, sizeof(said->text), "%s",
			s->result.code == symcclSuccess ? "" : s->result.text);
		for (int l = 1; l < g->plan->local; l++) {
			RANK_CHECK(sets[l * n + i]->result.code == s->result.code,
				"ranks of one process differ");
			for (int k = 0; k < s->nreq; k++)
				RANK_CHECK(sets[l * n + i]->req[k].window == s->req[k].window,
					"windows differ");
		}
		for (int k = 0; s->result.code == symcclSuccess && k < s->nreq; k++) {
			for (int l = 0; b == BATCHES - 1 && l < g->plan->local; l++)
				RANK_CHECK(sets[l * n + i]->req[k].bad.code == symcclSuccess, "%s",
					sets[l * n + i]->req[k].bad.text);
			g->last[script[b][i][k] - 'x'] = s->req[k].window;
			said->multicast += s->req[k].window->mc != NULL;
		}
	}
	return 0;
}

static int run_batch(struct rig *g, int b)
{
	int n = script[b][1] != NULL ? 2 : 1, taken = 0, e, bad = 0;
	struct reg_set *sets[2 * LOCAL_MAX];

	for (int l = 0; l < g->plan->local; l++)
		for (int i = 0; i < n; i++)
			sets[l * n + i] = set_new(g, l, script[b][i]);
	e = sym_batch(&g->sym, sets, n, g->freed, g->nfreed, after(20), &taken);
	g->nfreed = 0;
	if (e == symcclSuccess && taken == n)
		bad = take_results(g, sets, b, n);
	for (int i = 0; i < n * g->plan->local; i++)
		free(sets[i]);
	RANK_CHECK(e == symcclSuccess && taken == n, "the communicator died: %s", error_text());
	return bad;
}

static void deregister(struct rig *g, int which)
{
	struct window *w = g->last[which];

	for (int l = 0; w != NULL && l < g->plan->local; l++)
		g->freed[g->nfreed++] = w->ordinal;
	g->last[which] = NULL;
}

/* What rank r's memory holds around both ends of its window k. */
static uint64_t pattern(uint64_t seed, int r, int k, int end)
{
	return seed + 8 * (uint64_t)r + 2 * (uint64_t)k + (uint64_t)end;
}

#define LOOK ((size_t)512)

/* Every rank's control block is on its GPU. */
static int look_at_ctrl(struct rig *g)
{
	const struct window *w = g->sym.ctrl;

	for (int r = 0; r < g->boot->nranks; r++) {
		int want = r % cuda_devices()->n;
		CUdeviceptr p = (CUdeviceptr)(uintptr_t)(w->base + (size_t)r * w->stride);
		int device = -1;

		RANK_CHECK(cu.PointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
				   p) == CUDA_SUCCESS);
		RANK_CHECK(device == want, "rank %d's control block is on GPU %d", r, device);
	}
	return 0;
}

/* Every rank's bytes in every process, through all three windows. */
static int look(struct rig *g, uint64_t seed)
{
	for (int l = 0; l < g->plan->local; l++) {
		const struct buffers *m = &g->mem[l];
		char *own[] = {m->x, (char *)(uintptr_t)m->y + 4096, m->z + 64 * g->local[l]};
		size_t size[] = {g->g, 2 * g->g - 4096, g->g / 2};

		for (int k = 0; k < 3; k++) {
			fill_bytes(own[k], LOOK, pattern(seed, g->local[l], k, 0));
			fill_bytes(own[k] + size[k] - LOOK, LOOK, pattern(seed, g->local[l], k, 1));
		}
	}
	RANK_BARRIER();
	for (int k = 0; k < 3; k++) {
		const struct window *w = g->last[k];

		RANK_CHECK(w != NULL && w->map != NULL, "window %c has no address", 'x' + k);
		for (int r = 0; r < g->boot->nranks; r++) {
			const char *p = w->base + (size_t)r * w->stride + w->off[r];

			RANK_CHECK(check_bytes(p, LOOK, pattern(seed, r, k, 0)) == LOOK &&
					   check_bytes(p + w->size[r] - LOOK, LOOK,
						   pattern(seed, r, k, 1)) == LOOK,
				"window %c: rank %d's bytes", 'x' + k, r);
		}
	}
	RANK_BARRIER();
	return 0;
}

/* ---- A trial: the n-th call of the victim fails ---------------------------------------------- */

/* May this call fail without the registration failing? What undoes cannot report, and memory of a
 * GPU that is not visible has no properties. */
static int tolerated(const char *name)
{
	static const char *const names[] = {"cuMemRelease", "cuMemUnmap", "cuMemAddressFree",
		"cuThreadExchangeStreamCaptureMode", "cuCtxGetCurrent", "cuCtxGetDevice",
		"cuMemGetAllocationPropertiesFromHandle", "cuMulticastUnbind"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strcmp(name, names[i]) == 0)
			return 1;
	return 0;
}

/* This process's sayings against those of process 0, and their sense. */
static int compare(struct rig *g, const char *failed, long n)
{
	const struct shared *sh = ranks_shared();
	const struct plan *p = g->plan;
	/* The offsets of z differ, so it has none; y is new in the last batch, x maybe older. */
	static const int most[SETS] = {2, 1, 0, 2};
	int seen = 0;

	for (int i = 0; i < SETS; i++) {
		const struct said *mine = &g->said[i], *first = &sh->said[0][i];
		int rank;

		RANK_CHECK(mine->code == first->code && strcmp(mine->text, first->text) == 0,
			"call %ld: set %d: here %s (%s), on rank 0 %s (%s)", n, i,
			error_name(mine->code), mine->text, error_name(first->code), first->text);
		RANK_CHECK(mine->multicast == first->multicast &&
				   mine->multicast <= (p->multicast ? most[i] : 0),
			"call %ld, %s: set %d: %d windows with multicast, on rank 0 %d", n, failed,
			i, mine->multicast, first->multicast);
		seen |= p->multicast && mine->multicast < most[i];
		if (mine->code == symcclSuccess)
			continue;
		seen = 1;
		rank = strncmp(mine->text, "rank ", 5) == 0 ? atoi(mine->text + 5) : -1;
		RANK_CHECK(rank >= 0 && rank / p->local == p->victim,
			"call %ld: a sentence without the rank: %s", n, mine->text);
		if (p->code == CUDA_ERROR_UNKNOWN)
			RANK_CHECK(
				strstr(mine->text, "CUDA_ERROR_UNKNOWN") != NULL, "%s", mine->text);
	}
	if (p->strict && !p->at_end && failed[0] != '\0' && !tolerated(failed))
		RANK_CHECK(seen, "call %ld, %s, failed and nobody said so", n, failed);
	return 0;
}

/* *more: there was an n-th call. */
static int trial(struct rig *g, int proc, long n, int *more)
{
	const struct plan *p = g->plan;
	struct shared *sh = ranks_shared();
	int victim = proc == p->victim, open0, open1;
	char before[256], text[256], failed[64];

	open0 = g->leaks(before, sizeof(before));
	g->nsaid = g->nfreed = 0;
	g->said = sh->said[proc];
	memset(g->last, 0, sizeof(g->last));
	RANK_BARRIER(); /* all have read what was said before */
	g->fail_at(victim && !p->at_end ? n : 0, p->code, 0);
	RANK_OK(sym_init(
		&g->sym, g->boot, ops, p->local, g->local, STRIDE, (size_t)64 << 10, NULL));
	g->sym.device = g->device;
	g->sym.multicast = p->multicast;
	for (int b = 0; b < BATCHES; b++) {
		if (b == 1) {
			deregister(g, 0);
			deregister(g, 1);
		}
		if (b == BATCHES - 1) {
			snprintf(failed, sizeof(failed), "%s", g->failed());
			g->fail_at(0, 0, 0);
		}
		RANK_TRY(run_batch(g, b));
	}
	RANK_CHECK(g->said[SETS - 1].code == symcclSuccess, "call %ld, %s; afterwards: %s", n,
		failed, g->said[SETS - 1].text);
	RANK_CHECK((g->last[1]->mc != NULL) == p->multicast && g->last[2]->mc == NULL,
		"call %ld, %s: multicast afterwards", n, failed);
	RANK_CHECK(n < 1L << 30 || (g->last[0]->mc != NULL) == p->multicast);
	RANK_TRY(look_at_ctrl(g));
	RANK_TRY(look(g, test_seed() + (uint64_t)n));
	g->fail_at(victim && p->at_end ? n : 0, p->code, 0);
	sym_fini(&g->sym);
	if (p->at_end)
		snprintf(failed, sizeof(failed), "%s", g->failed());
	g->fail_at(0, 0, 0);
	open1 = g->leaks(text, sizeof(text));
	RANK_CHECK(
		open1 == open0, "call %ld, %s: open before: %s after: %s", n, failed, before, text);
	if (victim && failed[0] == '\0')
		sh->done = 1;
	RANK_BARRIER();
	*more = !sh->done;
	return compare(g, failed, n);
}

static int every_call(int proc, int n, void *arg)
{
	struct rig g = {.plan = arg};
	struct leak_snapshot before;
	char why[512];
	int more;
	long i;

	RANK_CHECK(n == g.plan->procs);
	RANK_TRY(rig_open(&g, proc));
	RANK_TRY(trial(&g, proc, 1L << 30, &more)); /* nothing fails */
	RANK_BARRIER();
	((struct shared *)ranks_shared())->done = 0;
	more = 1;
	RANK_BARRIER();
	leak_snapshot(&before);
	for (i = g.plan->first; more; i += g.plan->step) {
		ranks_note("call %ld", i);
		RANK_TRY(trial(&g, proc, i, &more));
		RANK_CHECK(leak_check(&before, 1, why, sizeof(why)) == 0, "call %ld: %s", i, why);
	}
	RANK_CHECK(i > (g.plan->at_end ? 10 : 80), "only %ld calls", i);
	RANK_TRY(rig_close(&g));
	return 0;
}

static const struct plan plans[] = {
	{.name = "processes", .devices = "1", .async = "0", .procs = 3, .local = 1},
	{.name = "one process", .devices = "1", .async = "0", .procs = 1, .local = 3},
	{.name = "mixed, three GPUs", .devices = "3", .async = "0", .procs = 2, .local = 2},
	{.name = "busy streams", .devices = "1", .async = "1", .procs = 2, .local = 1},
	{.name = "multicast", .devices = "3", .async = "0", .procs = 3, .local = 1, .multicast = 1},
	{.name = "multicast, mixed",
		.devices = "4",
		.async = "0",
		.procs = 2,
		.local = 2,
		.multicast = 1},
	{.name = "multicast, one process",
		.devices = "2",
		.async = "0",
		.procs = 1,
		.local = 2,
		.multicast = 1},
};

/* Strict: every call of one process; else a stride through them. Which, the seed says. In make
 * check-full always every call, of every process. */
static void sweep(int which, int code, int strict, int at_end)
{
	static int count;
	uint64_t seed = test_seed() + (uint64_t)(++count);
	int full = getenv("SYMCCL_TEST_FULL") != NULL, step = full || strict ? 1 : 5, first;
	struct plan p = plans[which];
	char err[1500];

	p.code = code;
	p.strict = strict;
	p.at_end = at_end;
	p.step = step;
	p.first = 1 + (int)(mix64(seed, 1) % (uint64_t)step);
	first = (int)(mix64(seed, 2) % (uint64_t)p.procs);
	for (int v = 0; v < (full ? p.procs : 1); v++) {
		p.victim = (first + v) % p.procs;
		cr_assert_eq(ranks_run(p.procs, 100, every_call, &p, err, sizeof(err)), 0,
			"%s, process %d's calls fail with %d%s: %s", p.name, p.victim, code,
			at_end ? " at the end" : "", err);
	}
}

static void sweep_all(int which)
{
	sweep(which, CUDA_ERROR_UNKNOWN, 1, 0);
	sweep(which, CUDA_ERROR_UNKNOWN, 1, 1);
	/* Codes that mean something to the library: the same on all ranks, whatever comes of it. */
	sweep(which, CUDA_ERROR_OUT_OF_MEMORY, 0, 0);
	sweep(which, CUDA_ERROR_INVALID_VALUE, 0, 0);
	sweep(which, CUDA_ERROR_NOT_SUPPORTED, 0, 0);
}

Test(window_cuda, every_call_fails_between_processes)
{
	sweep_all(0);
}

Test(window_cuda, every_call_fails_in_one_process)
{
	sweep_all(1);
}

Test(window_cuda, every_call_fails_mixed)
{
	sweep_all(2);
}

Test(window_cuda, every_call_fails_while_streams_are_busy)
{
	sweep_all(3);
}

/* A call that fails on the way to multicast costs just that, on all ranks. */
Test(window_cuda, every_call_fails_with_multicast)
{
	sweep_all(4);
}

Test(window_cuda, every_call_fails_with_multicast_mixed)
{
	sweep_all(5);
}

Test(window_cuda, every_call_fails_with_multicast_in_one_process)
{
	sweep_all(6);
}

/* ---- Registering while the program captures ---------------------------------------------------
 */

static void *register_all(void *arg)
{
	struct rig *g = arg;

	if (ops->bind_thread(0) != symcclSuccess)
		return NULL;
	for (int b = 0; b < BATCHES; b++)
		if (run_batch(g, b) != 0)
			return NULL;
	return look(g, test_seed()) == 0 ? arg : NULL;
}

static int capturing(int proc, int n, void *arg)
{
	struct rig g = {.plan = arg};
	struct shared *sh = ranks_shared();
	CUstreamCaptureStatus status;
	CUstream s;
	CUgraph graph;
	pthread_t worker;
	void *ok;

	(void)n;
	RANK_TRY(rig_open(&g, proc));
	g.said = sh->said[proc];
	RANK_OK(sym_init(
		&g.sym, g.boot, ops, g.plan->local, g.local, STRIDE, (size_t)64 << 10, NULL));
	RANK_CHECK(cu.StreamCreate(&s, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	RANK_CHECK(cu.StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
	RANK_CHECK(pthread_create(&worker, NULL, register_all, &g) == 0);
	pthread_join(worker, &ok);
	RANK_CHECK(ok != NULL);
	for (int i = 0; i < SETS; i++)
		RANK_CHECK(g.said[i].code == symcclSuccess, "%s", g.said[i].text);
	RANK_CHECK(cu.StreamIsCapturing(s, &status) == CUDA_SUCCESS);
	RANK_CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "the capture was spoilt");
	sym_fini(&g.sym);
	RANK_CHECK(cu.StreamEndCapture(s, &graph) == CUDA_SUCCESS);
	RANK_CHECK(cu.GraphDestroy(graph) == CUDA_SUCCESS);
	RANK_CHECK(cu.StreamDestroy(s) == CUDA_SUCCESS);
	return rig_close(&g);
}

Test(window_cuda, while_the_program_captures)
{
	struct plan p = plans[0];
	char err[1024];

	test_seed();
	cr_assert_eq(ranks_run(p.procs, 30, capturing, &p, err, sizeof(err)), 0, "%s", err);
}
