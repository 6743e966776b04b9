/*
 * Forked ranks with a real communicator walk over a list of (row, size). Timing is the benchmarks'
 * "dirty" way: before each call every rank rewrites its input and a barrier passes, since programs
 * do so, and designs in which a peer reads the input look twice as fast otherwise.
 */
#define _GNU_SOURCE
#include "measure.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench.h"
#include "hub.h"
#include "params.h"
#include "util.h"

#define WARM 3
#define ROUNDS 3 /* over all samples: whatever else runs here disturbs the one or the other */

/* What the ranks share. */
struct shared {
	_Atomic int id_ready;
	symcclUniqueId id;
	int readable;
	double crowd;
	char why[256];
	struct bench_flags flags[BENCH_TEAM_MAX];
	double us[]; /* [round][call of any sample][rank] */
};

struct job {
	struct ranks *ranks;
	const struct sample *samples;
	int n;
	struct shared *shared;
	size_t room; /* of one buffer */
};

struct rank {
	const struct job *job;
	int me;
	symcclComm_t comm;
	struct bench_team team;
	char *plain[2], *window[2]; /* send, recv */
};

int cpus_allowed(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* A CPU for each rank as long as there are enough; else, as programs do, all of them for all. */
static void pin(const struct ranks *r, int rank)
{
	cpu_set_t set, own;
	int index = 0;

	CPU_ZERO(&own);
	if (sched_getaffinity(0, sizeof(set), &set) != 0)
		return;
	for (int cpu = 0; cpu < CPU_SETSIZE && index < r->cpus; cpu++)
		if (CPU_ISSET(cpu, &set) && (index++ == rank || r->n > r->cpus))
			CPU_SET(cpu, &own);
	sched_setaffinity(0, sizeof(own), &own);
}

void team_of(const struct ranks *r, int rank, struct coll_team *t)
{
	struct coll_tuning tuning = t->tuning;
	double crowd = r->crowd > 0 ? r->crowd : MAX(1, (double)r->n / r->cpus);

	*t = (struct coll_team){.rank = rank,
		.nranks = r->n,
		.nctas = 1,
		.readable = r->readable,
		.oversubscribed = crowd > 1,
		.crowd = crowd,
		.tuning = tuning};
	ctrl_layout(r->n, 1, &t->layout);
}

void call_of(symcclFunc_t func, size_t bytes, int windows, struct coll_call *c)
{
	static char some[2]; /* only addresses */

	*c = (struct coll_call){.func = func,
		.type = bytes % 4 ? symcclInt8 : symcclFloat32,
		.count = bytes % 4 ? bytes : bytes / 4,
		.send = {.ptr = &some[0], .window = 1},
		.recv = {.ptr = &some[1], .window = 2}};
	if (windows) {
		c->send.peers = c->send.ptr;
		c->recv.peers = c->recv.ptr;
		c->send.symmetric = c->recv.symmetric = 1;
	}
}

/* ---- In a rank ------------------------------------------------------------------------------- */

static int failed(const struct rank *k, symcclResult_t e, const char *what)
{
	if (e == symcclSuccess)
		return 0;
	snprintf(k->job->shared->why, sizeof(k->job->shared->why), "rank %d: %s: %s", k->me, what,
		symcclGetLastError(k->comm));
	return 1;
}

static int join(struct rank *k)
{
	symcclConfig_t config = SYMCCL_CONFIG_INITIALIZER;
	struct shared *s = k->job->shared;

	config.device = symcclDeviceHost;
	config.maxCTAs = 1;
	if (k->me == 0) {
		if (failed(k, symcclGetUniqueId(&s->id), "symcclGetUniqueId"))
			return 1;
		s->id_ready = 1;
	}
	while (!s->id_ready)
		usleep(100);
	return failed(k,
		symcclCommInitRankConfig(&k->comm, k->job->ranks->n, s->id, k->me, &config),
		"symcclCommInitRankConfig");
}

static int buffers(struct rank *k)
{
	for (int i = 0; i < 2; i++) {
		symcclWindow_t w;

		if (posix_memalign((void **)&k->plain[i], 4096, k->job->room) != 0)
			return failed(k, symcclSystemError, "no memory");
		bench_dirty(k->plain[i], k->job->room, 1);
		if (failed(k,
			    symcclMemAllocOn(
				    (void **)&k->window[i], k->job->room, symcclDeviceHost),
			    "symcclMemAlloc") ||
			failed(k,
				symcclCommWindowRegister(k->comm, k->window[i], k->job->room, &w,
					SYMCCL_WIN_COLL_SYMMETRIC),
				"symcclCommWindowRegister"))
			return 1;
	}
	return failed(k, symcclBarrier(k->comm, NULL), "symcclBarrier");
}

/* Bytes of the input that a call of this size has. */
static size_t input_bytes(symcclFunc_t f, size_t bytes, int ranks)
{
	return f == symcclFuncReduceScatter || f == symcclFuncAlltoAll || f == symcclFuncScatter
		       ? bytes * (size_t)ranks
		       : bytes;
}

static int run_sample(struct rank *k, const struct sample *s, double *us)
{
	int ranks = k->job->ranks->n;
	size_t dirty = input_bytes(s->algo->func, s->bytes, ranks);
	struct coll_call c;

	call_of(s->algo->func, s->bytes, s->windows, &c);
	c.send = (struct coll_buf){.ptr = s->windows ? k->window[0] : k->plain[0]};
	c.recv = (struct coll_buf){.ptr = s->windows ? k->window[1] : k->plain[1]};
	/* All ranks do so between the same two calls. */
	snprintf(k->comm->team.tuning.algo, sizeof(k->comm->team.tuning.algo), "%s", s->algo->name);
	k->comm->wins_gen++; /* plans are remembered */
	for (int i = -WARM; i < s->calls; i++) {
		double t;

		bench_dirty(c.send.ptr, dirty, (uint64_t)i);
		bench_barrier(&k->team);
		t = bench_now(CLOCK_MONOTONIC);
		if (failed(k, comm_run(k->comm, &c, NULL), s->algo->name))
			return 1;
		t = bench_now(CLOCK_MONOTONIC) - t;
		if (i >= 0)
			us[i * ranks + k->me] = t * 1e6;
	}
	return 0;
}

static int rank_main(const struct job *j, int me)
{
	struct rank k = {.job = j, .me = me, .team = {.me = me, .n = j->ranks->n}};
	double *us = j->shared->us;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Not what was stored before, and no warnings about it. */
	setenv("SYMCCL_TUNING_FILE", "none", 1);
	params_reload();
	pin(j->ranks, me);
	k.team.yield = j->ranks->n > j->ranks->cpus;
	for (int i = 0; i < j->ranks->n; i++)
		k.team.of[i] = &j->shared->flags[i];
	if (join(&k) || buffers(&k))
		return 1;
	if (me == 0) {
		j->shared->readable = k.comm->hub->readable;
		j->shared->crowd = k.comm->hub->crowd;
	}
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < j->n; us += j->samples[i++].calls * j->ranks->n)
			if (!(j->samples[i].algo->needs & COLL_NEED_READABLE) ||
				k.comm->hub->readable)
				if (run_sample(&k, &j->samples[i], us))
					return 1;
	return failed(&k, symcclCommDestroy(k.comm), "symcclCommDestroy");
}

/* ---- Around them ----------------------------------------------------------------------------- */

/* Wait for all until the deadline; the first that fails, or the deadline, ends them all. */
static int wait_all(pid_t *pid, int n, uint64_t deadline, char *why, size_t whylen)
{
	int left = n, bad = 0, status;

	while (left > 0 && !bad && now_ns() < deadline) {
		int some = 0;

		for (int i = 0; i < n; i++)
			if (pid[i] > 0 && waitpid(pid[i], &status, WNOHANG) == pid[i]) {
				some = 1;
				left--;
				pid[i] = 0;
				bad |= status != 0;
			}
		if (!some)
			usleep(1000);
	}
	if (left > 0 && !bad)
		snprintf(why, whylen, "the ranks did not end in time");
	else if (bad)
		snprintf(why, whylen, "a rank died");
	for (int i = 0; i < n; i++)
		if (pid[i] > 0) {
			kill(pid[i], SIGKILL);
			waitpid(pid[i], NULL, 0);
			bad = 1;
		}
	return bad ? -1 : 0;
}

/* The samples' times out of the calls'. */
static void collect(const struct job *j, struct sample *s)
{
	const double *us = j->shared->us;
	int ranks = j->ranks->n;

	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < j->n; us += s[i++].calls * ranks) {
			double slowest[CALLS_MAX] = {0}, median;

			for (int c = 0; c < s[i].calls; c++)
				for (int r = 0; r < ranks; r++)
					slowest[c] = MAX(slowest[c], us[c * ranks + r]);
			median = bench_median(slowest, (size_t)s[i].calls);
			if (round == 0 || median < s[i].us)
				s[i].us = median;
		}
}

int measure(struct ranks *r, struct sample *s, int n, double seconds, char *why, size_t whylen)
{
	size_t bytes = sizeof(struct shared), room = 4096;
	uint64_t deadline = now_ns() + (uint64_t)(seconds * 1e9);
	pid_t pid[BENCH_TEAM_MAX] = {0};
	struct job j = {.ranks = r, .samples = s, .n = n};
	int e = 0;

	for (int i = 0; i < n; i++) {
		bytes += ROUNDS * (size_t)s[i].calls * (size_t)r->n * sizeof(double);
		room = MAX(room, s[i].bytes * (size_t)r->n);
	}
	j.room = align_up(room, 4096);
	j.shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (j.shared == MAP_FAILED) {
		snprintf(why, whylen, "no memory: %s", strerror(errno));
		return -1;
	}
	for (int i = 0; i < r->n && e == 0; i++) {
		fflush(NULL);
		pid[i] = fork();
		if (pid[i] == 0)
			_exit(rank_main(&j, i));
		if (pid[i] < 0) {
			snprintf(why, whylen, "cannot fork: %s", strerror(errno));
			e = -1;
			deadline = 0;
		}
	}
	if (wait_all(pid, r->n, deadline, why, whylen) != 0)
		e = -1;
	if (e != 0 && j.shared->why[0])
		snprintf(why, whylen, "%s", j.shared->why);
	r->readable = j.shared->readable;
	r->crowd = j.shared->crowd;
	if (e == 0)
		collect(&j, s);
	munmap(j.shared, bytes);
	return e;
}
