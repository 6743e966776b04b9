/* Times symcclCommWindowRegister between two processes: one large window, and many small ones in
 * one group. On CPU memory against what the kernel takes to map the same pages, which are there
 * already. */
#define _GNU_SOURCE
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

enum { PROCS = 2, PAGE = 4096, MANY = 100, MAX_REPEATS = 101 };
static const size_t bare_bytes = (size_t)256 << 20;

struct shared {
	struct perf_id id;
	struct bench_flags flags[PROCS];
};

struct job {
	struct shared *shared;
	int fd[PROCS]; /* bare memory of each process */
	size_t bytes;
	int repeats;
	symcclDeviceType_t device;
	struct bench_team team;
	symcclComm_t comm;
};

/* Seconds to map the other process's present pages, both processes at once. */
static double bare_once(struct job *j)
{
	double t0;
	void *p;

	bench_barrier(&j->team);
	t0 = bench_now(CLOCK_MONOTONIC);
	p = mmap(NULL, bare_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
		j->fd[!j->team.me], 0);
	t0 = bench_now(CLOCK_MONOTONIC) - t0;
	if (p == MAP_FAILED)
		perf_die("mmap: %m");
	bench_barrier(&j->team);
	munmap(p, bare_bytes);
	return t0;
}

/* Seconds to register n windows of bytes each in one group, from a common start; each in fresh
 * memory of its own, or all in one fresh allocation. */
static double register_once(struct job *j, size_t bytes, int n, int one_allocation)
{
	symcclWindow_t win[n];
	void *p[n];
	double t0;

	for (int i = 0; i < n; i++)
		if (i && one_allocation)
			p[i] = (char *)p[0] + (size_t)i * bytes;
		else
			perf_check(symcclMemAllocOn(
					   &p[i], one_allocation ? n * bytes : bytes, j->device),
				NULL, "symcclMemAlloc");
	bench_barrier(&j->team);
	t0 = bench_now(CLOCK_MONOTONIC);
	perf_check(symcclGroupStart(), NULL, "symcclGroupStart");
	for (int i = 0; i < n; i++)
		perf_check(symcclCommWindowRegister(
				   j->comm, p[i], bytes, &win[i], SYMCCL_WIN_COLL_SYMMETRIC),
			j->comm, "symcclCommWindowRegister");
	perf_check(symcclGroupEnd(), j->comm, "symcclCommWindowRegister");
	t0 = bench_now(CLOCK_MONOTONIC) - t0;
	bench_barrier(&j->team);
	for (int i = 0; i < n; i++) {
		perf_check(symcclCommWindowDeregister(j->comm, win[i]), j->comm, "deregister");
		if (!i || !one_allocation)
			perf_check(symcclMemFree(p[i]), NULL, "symcclMemFree");
	}
	return t0;
}

static double register_ms(struct job *j, size_t bytes, int n, int one_allocation)
{
	double v[MAX_REPEATS];

	for (int k = 0; k < j->repeats; k++)
		v[k] = register_once(j, bytes, n, one_allocation);
	return bench_median(v, (size_t)j->repeats) * 1e3;
}

static void bare_touch(struct job *j)
{
	char *p = mmap(NULL, bare_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
		j->fd[j->team.me], 0);

	if (p == MAP_FAILED)
		perf_die("mmap: %m");
	memset(p, 1, bare_bytes);
}

/* Microseconds a page, three times. */
static void bare_measure(struct job *j, double *us)
{
	for (int k = 0; k < 3; k++)
		us[k] = bare_once(j) / (double)(bare_bytes / PAGE) * 1e6;
}

static void print_bare(const struct job *j, double *bare, double big_ms)
{
	double first = bare[0], last = bare[5];
	double page_us = bench_median(bare, 6), all_ms = page_us * (double)(j->bytes / PAGE) / 1e3;

	printf("bare mapping of the peer's pages         %9.3f us a page (%.3f to %.3f)\n", page_us,
		first, last);
	printf("one window of %7zu KiB               %9.3f ms, bare %.3f ms, more by %.3f ms\n",
		j->bytes >> 10, big_ms, all_ms, big_ms - all_ms);
}

/* The GPU of a process, or nothing on CPU memory. */
static void device_open(struct job *j, int index)
{
	const char *why = j->device == symcclDeviceCuda ? gpu_open() : NULL;

	if (why)
		perf_die("-d cuda: %s", why);
	if (j->device == symcclDeviceCuda)
		gpu_bind(index % gpu_count());
	else
		bare_touch(j);
}

static int process_main(int index, void *arg)
{
	struct job *j = arg;
	symcclConfig_t config = SYMCCL_CONFIG_INITIALIZER;
	double bare[6], big, one, many, parts, total;
	int host = j->device == symcclDeviceHost;

	j->team = (struct bench_team){.me = index,
		.n = PROCS,
		.yield = 1,
		.of = {&j->shared->flags[0], &j->shared->flags[1]}};
	device_open(j, index);
	config.device = j->device;
	perf_check(symcclCommInitRankConfig(
			   &j->comm, PROCS, perf_id_get(&j->shared->id, index), index, &config),
		NULL, "symcclCommInitRank");
	register_once(j, PAGE, 1, 0); /* the first one also makes the communicator's own window */
	one = register_ms(j, PAGE, 1, 0);
	total = register_ms(j, (size_t)MANY * PAGE, 1, 0);
	many = register_ms(j, PAGE, MANY, 0);
	parts = register_ms(j, PAGE, MANY, 1);
	if (host)
		bare_measure(j, bare);
	big = register_ms(j, j->bytes, 1, 0);
	if (host)
		bare_measure(j, bare + 3);
	perf_check(symcclCommDestroy(j->comm), NULL, "symcclCommDestroy");
	if (index)
		return 0;
	printf("# two processes; ms, median of %d; rank 0's view\n", j->repeats);
	if (host)
		print_bare(j, bare, big);
	else
		printf("one window of %7zu KiB               %9.3f ms\n", j->bytes >> 10, big);
	printf("one window of       4 KiB                %9.3f ms\n", one);
	printf("one window of %7zu KiB               %9.3f ms\n", (size_t)MANY * PAGE >> 10, total);
	printf("%d windows of 4 KiB in one group        %9.3f ms, %.2f x one of 4 KiB, "
	       "%.2f x one of their size\n",
		MANY, many, many / one, many / total);
	printf("%d parts of one allocation, likewise    %9.3f ms, %.2f x, %.2f x\n", MANY, parts,
		parts / one, parts / total);
	return 0;
}

int main(int argc, char **argv)
{
	struct job j = {.bytes = (size_t)1 << 30, .repeats = 3, .device = symcclDeviceHost};
	int bad = 0;

	for (int c; (c = getopt(argc, argv, "s:k:d:h")) != -1;) {
		if (c == 's')
			bad |= size_parse(optarg, &j.bytes) || j.bytes < PAGE;
		else if (c == 'k')
			j.repeats = atoi(optarg);
		else if (c == 'd' && !strcmp(optarg, "cuda"))
			j.device = symcclDeviceCuda;
		else if (c == 'd' && strcmp(optarg, "host"))
			bad = 1;
		else if (c == 'd')
			j.device = symcclDeviceHost;
		else
			bad = 1;
	}
	if (bad || j.repeats < 1 || j.repeats > MAX_REPEATS) {
		fprintf(stderr,
			"usage: %s [-s size of the large window (1G)] [-k repeats (3)] "
			"[-d host|cuda]\n",
			argv[0]);
		return 2;
	}
	j.shared = perf_shared(sizeof(*j.shared));
	for (int i = 0; i < PROCS; i++) {
		j.fd[i] = memfd_create("bare", MFD_CLOEXEC);
		if (j.fd[i] < 0 || ftruncate(j.fd[i], (off_t)bare_bytes))
			perf_die("memfd: %m");
	}
	return perf_fork(PROCS, process_main, &j);
}
