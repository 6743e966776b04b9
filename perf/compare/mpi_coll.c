/* Times MPI's collectives exactly as the symccl programs time theirs (../bench.h), for host.sh.
 * Prints "L ns", "C GB/s" and for each size "row bytes dirty us" and "row bytes b2b us". */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

#include "../bench.h"

enum { WARMUP = 3, LEAST = 20, MOST_DIRTY = 2000, MOST = 20000, MAX_SIZES = 64 };
static const double budget_s = 0.25;

static int rank, nranks;
static char *send, *recv;
static struct bench_team team;
static double samples[MOST_DIRTY], slowest[MOST_DIRTY];

static void all_gather(int n)
{
	MPI_Allgather(send, n / nranks, MPI_FLOAT, recv, n / nranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static void all_reduce(int n)
{
	MPI_Allreduce(send, recv, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce_scatter(int n)
{
	MPI_Reduce_scatter_block(send, recv, n / nranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void alltoall(int n)
{
	MPI_Alltoall(send, n / nranks, MPI_FLOAT, recv, n / nranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static void broadcast(int n)
{
	MPI_Bcast(send, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void reduce(int n)
{
	MPI_Reduce(send, recv, n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}

static void gather(int n)
{
	MPI_Gather(send, n / nranks, MPI_FLOAT, recv, n / nranks, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void scatter(int n)
{
	MPI_Scatter(send, n / nranks, MPI_FLOAT, recv, n / nranks, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void barrier(int n)
{
	(void)n;
	MPI_Barrier(MPI_COMM_WORLD);
}

/* n is the call's buffer in floats, as nccl-tests counts sizes; in: the part of it that a rank
 * rewrites between calls, 1 / nranks of it or all. */
static const struct op {
	const char *name;
	void (*call)(int n);
	int part;
} ops[] = {{"all_gather", all_gather, 1}, {"all_reduce", all_reduce, 0},
	{"reduce_scatter", reduce_scatter, 0}, {"alltoall", alltoall, 0},
	{"broadcast", broadcast, 0}, {"reduce", reduce, 0}, {"gather", gather, 1},
	{"scatter", scatter, 0}, {"barrier", barrier, 0}};

static double most(double v)
{
	double all;

	MPI_Allreduce(&v, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return all;
}

/* The barrier in front of a barrier would make it meaningless to rewrite anything. */
static void prepare(const struct op *op, int n, int salt)
{
	size_t bytes = op->call == barrier ? 0 : (size_t)(op->part ? n / nranks : n) * 4;

	bench_dirty(send, bytes, (uint64_t)salt);
	bench_barrier(&team);
}

static int iterations(const struct op *op, int n, int limit)
{
	double t0 = 0, count;

	for (int i = 0; i < WARMUP; i++) {
		prepare(op, n, i);
		t0 = bench_now(CLOCK_MONOTONIC);
		op->call(n);
	}
	bench_dirty(send, (size_t)n * 4, WARMUP);
	count = budget_s / most(bench_now(CLOCK_MONOTONIC) - t0);
	return count < LEAST ? LEAST : count > limit ? limit : (int)count;
}

static double dirty_us(const struct op *op, int n)
{
	int iters = iterations(op, n, MOST_DIRTY);

	for (int i = 0; i < iters; i++) {
		double t0;

		prepare(op, n, i);
		t0 = bench_now(CLOCK_MONOTONIC);
		op->call(n);
		samples[i] = bench_now(CLOCK_MONOTONIC) - t0;
	}
	MPI_Allreduce(samples, slowest, iters, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return bench_median(slowest, (size_t)iters) * 1e6;
}

static double back_to_back_us(const struct op *op, int n)
{
	int iters = iterations(op, n, MOST);
	double t0, sum, mean;

	bench_barrier(&team);
	t0 = bench_now(CLOCK_MONOTONIC);
	for (int i = 0; i < iters; i++)
		op->call(n);
	mean = (bench_now(CLOCK_MONOTONIC) - t0) / iters * 1e6;
	MPI_Allreduce(&mean, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return sum / nranks;
}

static int team_make(void)
{
	struct bench_flags *mine;
	MPI_Win win;

	if (nranks > BENCH_TEAM_MAX)
		return -1;
	MPI_Win_allocate_shared(2 * sizeof(*mine), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &win);
	memset(mine, 0, 2 * sizeof(*mine));
	for (int r = 0; r < nranks; r++) {
		MPI_Aint bytes;
		int unit;
		void *p;

		MPI_Win_shared_query(win, r, &bytes, &unit, &p);
		team.of[r] = (void *)(((uintptr_t)p + 127) & ~(uintptr_t)127);
	}
	team.me = rank;
	team.n = nranks;
	team.yield = nranks > sysconf(_SC_NPROCESSORS_ONLN);
	return MPI_Barrier(MPI_COMM_WORLD);
}

static void machine_measure(void)
{
	double copy, line, sum;

	if (nranks < 2 || team.yield) /* ranks that share a CPU measure the scheduler */
		return;
	copy = bench_copy_rate(&team, rank < 2);
	MPI_Allreduce(&copy, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	line = rank < 2 ? bench_line_latency(&team) : 0;
	if (rank == 0)
		printf("L %.1f\nC %.2f\n", line, sum);
}

static void run(const struct op *op, size_t bytes, size_t b2b_max)
{
	int n = (int)(bytes / 4);
	double dirty, b2b;

	if (op->call != barrier && (op->part || n < nranks) && n / nranks < 1)
		return;
	dirty = dirty_us(op, n);
	if (rank == 0)
		printf("row %zu dirty %.4f\n", bytes, dirty);
	if (bytes > b2b_max)
		return;
	b2b = back_to_back_us(op, n);
	if (rank == 0)
		printf("row %zu b2b %.4f\n", bytes, b2b);
}

/* mpi_coll collective back-to-back-up-to size... */
int main(int argc, char **argv)
{
	const struct op *op = NULL;
	size_t max = 4096;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &nranks);
	for (size_t i = 0; argc > 3 && i < sizeof(ops) / sizeof(ops[0]); i++)
		if (!strcmp(argv[1], ops[i].name))
			op = &ops[i];
	if (!op || team_make()) {
		fprintf(stderr, "usage: mpi_coll collective back_to_back_max size...\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	for (int i = 3; i < argc; i++)
		max = strtoul(argv[i], NULL, 10) > max ? strtoul(argv[i], NULL, 10) : max;
	send = aligned_alloc(4096, (max + 4095) & ~(size_t)4095);
	recv = aligned_alloc(4096, (max + 4095) & ~(size_t)4095);
	if (!send || !recv)
		MPI_Abort(MPI_COMM_WORLD, 1);
	memset(send, 0, max);
	memset(recv, 0, max);
	machine_measure();
	for (int i = 3; i < argc; i++)
		run(op, strtoul(argv[i], NULL, 10), strtoul(argv[2], NULL, 10));
	MPI_Finalize();
	return 0;
}
