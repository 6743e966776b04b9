/* Times the life of a communicator: init, its first window, destroy; with the ranks as threads of
 * one process and as processes. Each repetition starts in fresh processes. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

enum { MAX_RANKS = 4096, MAX_LIST = 16, WINDOW = 65536, MAX_REPEATS = 101 };
enum { START, INIT, WINDOWED, DESTROYED, STAMPS };

struct shared {
	pthread_barrier_t start;
	struct perf_id id;
	double at[MAX_RANKS][STAMPS];
};

struct run {
	struct shared *shared;
	int n, processes;
};

struct rank {
	const struct run *run;
	int rank;
	symcclUniqueId id;
	pthread_t thread;
};

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	double *at = r->run->shared->at[r->rank];
	symcclConfig_t config = SYMCCL_CONFIG_INITIALIZER;
	symcclComm_t comm;
	symcclWindow_t win;
	void *p;

	config.device = symcclDeviceHost;
	pthread_barrier_wait(&r->run->shared->start);
	at[START] = bench_now(CLOCK_MONOTONIC);
	perf_check(symcclCommInitRankConfig(&comm, r->run->n, r->id, r->rank, &config), NULL,
		"symcclCommInitRank");
	at[INIT] = bench_now(CLOCK_MONOTONIC);
	perf_check(symcclMemAllocOn(&p, WINDOW, symcclDeviceHost), NULL, "symcclMemAlloc");
	perf_check(symcclCommWindowRegister(comm, p, WINDOW, &win, SYMCCL_WIN_COLL_SYMMETRIC), comm,
		"symcclCommWindowRegister");
	at[WINDOWED] = bench_now(CLOCK_MONOTONIC);
	perf_check(symcclCommWindowDeregister(comm, win), comm, "symcclCommWindowDeregister");
	perf_check(symcclCommDestroy(comm), NULL, "symcclCommDestroy");
	perf_check(symcclMemFree(p), NULL, "symcclMemFree");
	at[DESTROYED] = bench_now(CLOCK_MONOTONIC);
	return NULL;
}

static int process_main(int index, void *arg)
{
	struct run *run = arg;
	struct rank r = {.run = run, .rank = index, .id = perf_id_get(&run->shared->id, index)};

	rank_main(&r);
	return 0;
}

static int threads_main(int index, void *arg)
{
	struct run *run = arg;
	struct rank *r = calloc((size_t)run->n, sizeof(*r));
	symcclUniqueId id = perf_id_get(&run->shared->id, index);

	if (!r)
		perf_die("no memory");
	for (int i = 0; i < run->n; i++) {
		r[i] = (struct rank){.run = run, .rank = i, .id = id};
		errno = pthread_create(&r[i].thread, NULL, rank_main, &r[i]);
		if (errno)
			perf_die("thread %d of %d: %s", i, run->n, strerror(errno));
	}
	for (int i = 0; i < run->n; i++)
		pthread_join(r[i].thread, NULL);
	free(r);
	return 0;
}

/* Spans of one run in ms: per phase the slowest rank, and from the first start to the last end. */
static void spans(const struct run *run, double *phase, double *total)
{
	double first = INFINITY, last = 0;

	memset(phase, 0, (STAMPS - 1) * sizeof(*phase));
	for (int i = 0; i < run->n; i++) {
		const double *at = run->shared->at[i];

		first = fmin(first, at[START]);
		last = fmax(last, at[DESTROYED]);
		for (int k = 0; k < STAMPS - 1; k++)
			phase[k] = fmax(phase[k], (at[k + 1] - at[k]) * 1e3);
	}
	*total = (last - first) * 1e3;
}

static int measure(int n, int processes, int repeats)
{
	double phase[STAMPS - 1][MAX_REPEATS], total[MAX_REPEATS], one[STAMPS - 1], all;
	struct run run = {.n = n, .processes = processes};

	for (int k = 0; k < repeats; k++) {
		pthread_barrierattr_t attr;

		run.shared = perf_shared(sizeof(*run.shared));
		pthread_barrierattr_init(&attr);
		pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
		pthread_barrier_init(&run.shared->start, &attr, (unsigned)n);
		if (perf_fork(processes ? n : 1, processes ? process_main : threads_main, &run))
			return 1;
		spans(&run, one, &total[k]);
		for (int p = 0; p < STAMPS - 1; p++)
			phase[p][k] = one[p];
		munmap(run.shared, sizeof(*run.shared));
	}
	all = bench_median(total, (size_t)repeats);
	printf("%10s %6d %10.2f %10.2f %10.2f %10.2f %14.2f\n", processes ? "processes" : "threads",
		n, bench_median(phase[0], (size_t)repeats), bench_median(phase[1], (size_t)repeats),
		bench_median(phase[2], (size_t)repeats), all, all * 1e3 / (n * fmax(log2(n), 1)));
	fflush(stdout);
	return 0;
}

static int list_parse(const char *text, int *list)
{
	int n = 0;

	while (*text && n < MAX_LIST) {
		char *end;

		list[n] = (int)strtol(text, &end, 10);
		if (end == text || list[n] < 1 || list[n] > MAX_RANKS || (*end && *end != ','))
			return -1;
		n++;
		text = end + (*end == ',');
	}
	return *text ? -1 : n;
}

int main(int argc, char **argv)
{
	int threads[MAX_LIST] = {2, 64, 512}, processes[MAX_LIST] = {2, 64};
	int nthreads = 3, nprocesses = 2, repeats = 5;

	for (int c; (c = getopt(argc, argv, "t:P:k:h")) != -1;) {
		if (c == 't')
			nthreads = list_parse(optarg, threads);
		else if (c == 'P')
			nprocesses = list_parse(optarg, processes);
		else if (c == 'k')
			repeats = atoi(optarg);
		else
			nthreads = -1;
	}
	if (nthreads < 0 || nprocesses < 0 || repeats < 1 || repeats > MAX_REPEATS) {
		fprintf(stderr,
			"usage: %s [-t ranks,...] [-P ranks,...] [-k repeats]\n"
			"  -t  as threads of one process (2,64,512; \"\" for none)\n"
			"  -P  as processes (2,64)\n"
			"  -k  repetitions, whose median is shown (5)\n",
			argv[0]);
		return 2;
	}
	printf("# ms; phases: slowest rank; total: first start to last end; "
	       "total/(n log2 n) in us\n# %8s %6s %10s %10s %10s %10s %14s\n",
		"ranks as", "n", "init", "window", "destroy", "total", "per n log n");
	for (int i = 0; i < nthreads; i++)
		if (measure(threads[i], 0, repeats))
			return 1;
	for (int i = 0; i < nprocesses; i++)
		if (measure(processes[i], 1, repeats))
			return 1;
	return 0;
}
