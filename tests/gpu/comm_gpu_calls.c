/*
 * The calls beyond the first three collectives on real GPUs; what is checked is in calls_body.h.
 *
 *   comm_gpu_calls [-P processes] [-g ranks] [-n calls] [-r replays] [-t]
 *
 * As comm_gpu: P processes (1) of g ranks each (1) in one thread. Random calls of each kind (-n
 * 60), a captured graph of them replayed (-r 200), a message whose size the peer does not expect.
 * -t: times, in a graph of 20, median of 15. Exit: 0 passed, 1 failed, 77 no GPU.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "symccl.h"

static int proc, nprocs = 1, nlocal = 1, ncalls = 60, replays = 200;

#define CHECK(cond, ...) \
	do { \
		if (!(cond)) { \
			printf("process %d line %d: %s: ", proc, __LINE__, #cond); \
			printf(__VA_ARGS__); \
			printf("\n"); \
			return 1; \
		} \
	} while (0)
#define RIG_BARRIER() pthread_barrier_wait(&shared->barrier)
static struct {
	symcclUniqueId id;
	pthread_barrier_t barrier;
} * shared;
#include "calls_body.h"

enum { TIMED = 20, SAMPLES = 15, KINDS = ARRAY_LEN(all_funcs), GRAPHED = 3 * KINDS };
#define ROOM ((size_t)160 << 20)

static int check(void)
{
	for (int i = 0; i < ncalls * (int)KINDS; i++) {
		struct call c = random_call(all_funcs[i % (int)KINDS],
			test_seed() + 1000 * (uint64_t)i, (size_t)32 << 20);

		TEST_TRY(call_check(&c));
		RIG_BARRIER();
		if (i % 8 == 0) {
			TEST_TRY(others_check(c.seed));
			RIG_BARRIER();
		}
	}
	if (proc == 0)
		printf("check: %d ranks, %d calls right\n", rig.nranks, ncalls * (int)KINDS);
	return 0;
}

/* Calls of all kinds, each with the copy that makes its input just before, replayed: each has its
 * own piece of the buffers. */
#define PIECE ((size_t)4 << 20)
static int graph(void)
{
	struct call c[GRAPHED];
	CUgraphExec exec[LOCAL_MOST];
	size_t in, out, at_in, at_out;
	CUgraph g;

	for (int k = 0; k < GRAPHED; k++) {
		c[k] = random_call(
			all_funcs[k % (int)KINDS], test_seed() + 77 + (uint64_t)k * 50, PIECE / 2);
		c[k].from = 0;
		c[k].to = c[k].in_place ? 0 : 1;
		c[k].at += (size_t)k * PIECE;
		TEST_TRY(call_check(&c[k])); /* also makes everything ready */
	}
	for (int k = 0; k < GRAPHED; k++)
		TEST_TRY(call_load(&c[k])); /* what is right now must not stay so by itself */
	for (int i = 0; i < rig.nlocal; i++) {
		struct rank *r = &rig.r[i];
		CUevent fork;

		OK(cu_bind_thread(r->device));
		for (int k = 0; k < GRAPHED; k++) {
			call_bytes(&c[k], &in, &out);
			if (!has_in(&c[k], r->rank))
				continue;
			input_of(&c[k], r->rank, rig.host);
			CU(cu.MemcpyAsync(
				dev(r->buf[2] + (size_t)k * PIECE), dev(rig.host), in, r->stream));
			CU(cu.StreamSynchronize(r->stream));
		}
		CU(cu.EventCreate(&fork, CU_EVENT_DISABLE_TIMING));
		CU(cu.StreamBeginCapture(r->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
		CU(cu.EventRecord(fork, r->stream));
		CU(cu.StreamWaitEvent(r->other, fork, 0));
		for (int k = 0; k < GRAPHED; k++) {
			call_bytes(&c[k], &in, &out);
			call_places(&c[k], r->rank, &at_in, &at_out);
			if (has_in(&c[k], r->rank))
				CU(cu.MemcpyAsync(dev(r->buf[c[k].from] + at_in),
					dev(r->buf[2] + (size_t)k * PIECE), in, r->stream));
			OK(enqueue(&c[k], r));
		}
		CU(cu.EventRecord(fork, r->other));
		CU(cu.StreamWaitEvent(r->stream, fork, 0));
		CU(cu.StreamEndCapture(r->stream, &g));
		CU(cu.GraphInstantiateWithFlags(&exec[i], g, 0));
		CU(cu.GraphDestroy(g));
		CU(cu.EventDestroy(fork));
	}
	for (int k = 0; k < replays; k++)
		for (int i = 0; i < rig.nlocal; i++) {
			OK(cu_bind_thread(rig.r[i].device));
			CU(cu.GraphLaunch(exec[i], rig.r[i].stream));
		}
	TEST_TRY(rig_sync());
	for (int k = 0; k < GRAPHED; k++)
		TEST_TRY(call_compare(&c[k]));
	for (int i = 0; i < rig.nlocal; i++)
		CU(cu.GraphExecDestroy(exec[i]));
	if (proc == 0)
		printf("graph: %d ranks, %d calls replayed %d times: right\n", rig.nranks, GRAPHED,
			replays);
	return 0;
}

/* ---- Times ----------------------------------------------------------------------------------- */

static symcclResult_t timed_call(const struct call *c, const struct rank *r)
{
	symcclStream_t s = (symcclStream_t)r->stream;
	int next = (r->rank + 1) % rig.nranks;
	symcclResult_t e;

	if (c->func != symcclFuncSendRecv)
		return enqueue(c, r);
	symcclGroupStart();
	e = symcclSend(r->buf[c->from] + GUARD, c->count, c->type, next, r->comm, s);
	if (e == symcclSuccess)
		e = symcclRecv(r->buf[c->to] + GUARD, c->count, c->type,
			(r->rank + rig.nranks - 1) % rig.nranks, r->comm, s);
	return e == symcclSuccess ? symcclGroupEnd() : e;
}

static double graph_us(const struct call *c)
{
	CUgraphExec exec[LOCAL_MOST];
	double us[SAMPLES];
	CUgraph g;

	for (int i = 0; i < rig.nlocal; i++) {
		struct rank *r = &rig.r[i];

		cu_bind_thread(r->device);
		cu.StreamBeginCapture(r->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
		for (int k = 0; k < TIMED; k++)
			timed_call(c, r);
		cu.StreamEndCapture(r->stream, &g);
		cu.GraphInstantiateWithFlags(&exec[i], g, 0);
		cu.GraphDestroy(g);
	}
	for (int k = 0; k < SAMPLES; k++) {
		uint64_t t;

		pthread_barrier_wait(&shared->barrier);
		t = now_ns();
		for (int i = 0; i < rig.nlocal; i++)
			cu.GraphLaunch(exec[i], rig.r[i].stream);
		rig_sync();
		us[k] = (double)(now_ns() - t) / 1e3 / TIMED;
	}
	for (int i = 0; i < rig.nlocal; i++)
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
	static const char *const name[] = {[symcclFuncBroadcast] = "Broadcast",
		[symcclFuncReduce] = "Reduce",
		[symcclFuncAlltoAll] = "AlltoAll",
		[symcclFuncGather] = "Gather",
		[symcclFuncScatter] = "Scatter",
		[symcclFuncSendRecv] = "SendRecv"};

	for (int f = symcclFuncBroadcast; f <= symcclFuncSendRecv; f++)
		for (size_t bytes = 8; bytes <= (size_t)128 << 20 && f != symcclFuncAlltoAllv;
			bytes *= 4)
			for (int plain = 0; plain < 2; plain++) {
				struct call c = {.func = (symcclFunc_t)f,
					.type = symcclFloat32,
					.count = bytes / 4,
					.from = 0,
					.to = plain ? 2 : 1};
				symcclPlan_t plan = {.algorithm = "sendrecv/ring"};
				size_t at_in, at_out;
				double us;

				if (plain && bytes > (size_t)32 << 20)
					continue;
				if (f == symcclFuncAlltoAll || f == symcclFuncGather ||
					f == symcclFuncScatter)
					c.count /= (size_t)rig.nranks;
				if (c.count == 0)
					continue;
				if (plain && f == symcclFuncReduce) {
					c.from = 2;
					c.in_place = 1;
				}
				call_places(&c, rig.r[0].rank, &at_in, &at_out);
				if (f != symcclFuncSendRecv)
					OK(symcclQueryPlan(rig.r[0].comm, c.func,
						rig.r[0].buf[c.from] + at_in,
						rig.r[0].buf[c.to] + at_out, c.count, c.type, c.op,
						&plan));
				us = graph_us(&c);
				if (proc == 0)
					printf("time: %-10s %10zu B %-6s %9.2f us  %s, %d CTAs, "
					       "model %.2f\n",
						name[f], bytes, plain ? "plain" : "window", us,
						plan.algorithm, plan.nCTAs, plan.timeUs);
			}
	return 0;
}

/* ---- What goes wrong ------------------------------------------------------------------------- */

/* Rank 1 expects more than rank 0 sends: all ranks are told who, what and how much. The last test:
 * the communicator is over. */
static int mismatch(size_t sent, size_t expected)
{
	uint64_t t = now_ns();
	char text[2][64];

	if (rig.nranks < 2)
		return 0;
	snprintf(text[0], sizeof(text[0]), "%zu bytes", sent);
	snprintf(text[1], sizeof(text[1]), "%zu bytes", expected);
	for (int i = 0; i < rig.nlocal; i++) {
		struct rank *r = &rig.r[i];

		OK(cu_bind_thread(r->device));
		if (r->rank == 0)
			OK(symcclSend(r->buf[0], sent, symcclInt8, 1, r->comm,
				(symcclStream_t)r->stream));
		if (r->rank == 1)
			OK(symcclRecv(r->buf[1], expected, symcclInt8, 0, r->comm,
				(symcclStream_t)r->stream));
	}
	for (int i = 0; i < rig.nlocal; i++) {
		struct rank *r = &rig.r[i];
		symcclResult_t e = symcclSuccess;
		const char *why;

		OK(cu_bind_thread(r->device));
		while (e == symcclSuccess && now_ns() - t < 5000000000u)
			OK(symcclCommGetAsyncError(r->comm, &e));
		why = symcclGetLastError(r->comm);
		CHECK(e == symcclInvalidUsage, "rank %d: error %d", r->rank, (int)e);
		CHECK(strstr(why, text[0]) != NULL && strstr(why, text[1]) != NULL, "%s", why);
		CU(cu.StreamSynchronize(r->stream));
	}
	if (proc == 0)
		printf("mismatch: %s\n", symcclGetLastError(rig.r[0].comm));
	return 0;
}

static int body(int timed)
{
	if (cuda_open() != NULL) {
		printf("no GPU: %s\n", cuda_open());
		return 77;
	}
	TEST_TRY(rig_open(proc, nprocs, nlocal, shared->id, ROOM));
	TEST_TRY(check());
	TEST_TRY(graph());
	if (timed)
		TEST_TRY(timing());
	pthread_barrier_wait(&shared->barrier);
	TEST_TRY(mismatch(70000, nlocal % 2 ? 90000 : 100));
	TEST_TRY(rig_close());
	if (proc == 0)
		printf("comm_gpu_calls: %d processes of %d ranks: all right\n", nprocs, nlocal);
	return 0;
}

int main(int argc, char **argv)
{
	pthread_barrierattr_t a;
	int timed = 0, opt, rc = 0, status;

	setvbuf(stdout, NULL, _IOLBF, 0);
	while ((opt = getopt(argc, argv, "P:g:n:r:t")) != -1) {
		if (opt == 'P')
			nprocs = atoi(optarg);
		else if (opt == 'g')
			nlocal = atoi(optarg);
		else if (opt == 'n')
			ncalls = atoi(optarg);
		else if (opt == 'r')
			replays = atoi(optarg);
		else if (opt == 't')
			timed = 1;
		else
			return 1;
	}
	if (nprocs < 1 || nlocal < 1 || nlocal > LOCAL_MOST || nprocs * nlocal > TEAM_MOST)
		return 1;
	/* Streams that wait for each other need queues of their own; a GPU has few for all
	 * processes. */
	if (nlocal > 1)
		setenv("CUDA_DEVICE_MAX_CONNECTIONS", nprocs > 1 ? "8" : "32", 0);
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
