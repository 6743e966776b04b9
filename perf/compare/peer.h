/*
 * Times a peer's collectives exactly as the symccl programs time theirs (../bench.h), for host.sh:
 * what mpi_coll.c, gloo_coll.c and llm_coll.c share. A program fills a struct peer and calls
 * peer_main(); it prints "L ns", "C GB/s" and for each size "row bytes dirty us" and "row bytes b2b
 * us".
 */
#ifndef PEER_H
#define PEER_H

#include <stdio.h>
#include <unistd.h>

#include "../bench.h"

enum { PEER_WARMUP = 3, PEER_LEAST = 20, PEER_MOST_DIRTY = 2000, PEER_MOST = 20000 };
static const double peer_budget_s = 0.25;

/* In memory that all ranks map; zeroed at birth. */
struct peer_board {
	struct bench_flags flags[BENCH_TEAM_MAX];
	double value[BENCH_TEAM_MAX][PEER_MOST_DIRTY];
};

/* n is the call's buffer in floats, as nccl-tests counts sizes. */
struct peer_op {
	const char *name;
	void (*call)(int n);
	int part;  /* a rank's own input is one of nranks parts of it */
	int empty; /* the call moves no data: one row, of size 0 */
};

struct peer {
	int rank, nranks;
	char *send, *recv;
	struct peer_board *board;
	struct bench_team team;
	double samples[PEER_MOST_DIRTY];
};

/* Write to v[0..n) the largest over ranks of what each brought. */
static void peer_most(struct peer *p, double *v, int n)
{
	bench_barrier(&p->team); /* the values of the time before have been read */
	memcpy(p->board->value[p->rank], v, (size_t)n * sizeof(*v));
	bench_barrier(&p->team);
	for (int r = 0; r < p->nranks; r++)
		for (int i = 0; i < n; i++)
			v[i] = p->board->value[r][i] > v[i] ? p->board->value[r][i] : v[i];
}

static void peer_prepare(struct peer *p, const struct peer_op *op, int n, int salt)
{
	bench_dirty(p->send, (size_t)(op->part ? n / p->nranks : n) * 4, (uint64_t)salt);
	bench_barrier(&p->team);
}

static int peer_iterations(struct peer *p, const struct peer_op *op, int n, int limit)
{
	double last = 0, count;

	for (int i = 0; i < PEER_WARMUP; i++) {
		peer_prepare(p, op, n, i);
		last = bench_now(CLOCK_MONOTONIC);
		op->call(n);
	}
	bench_dirty(p->send, (size_t)n * 4, PEER_WARMUP);
	last = bench_now(CLOCK_MONOTONIC) - last;
	peer_most(p, &last, 1);
	count = peer_budget_s / last;
	return count < PEER_LEAST ? PEER_LEAST : count > limit ? limit : (int)count;
}

static double peer_dirty_us(struct peer *p, const struct peer_op *op, int n)
{
	int iters = peer_iterations(p, op, n, PEER_MOST_DIRTY);

	for (int i = 0; i < iters; i++) {
		double t0;

		peer_prepare(p, op, n, i);
		t0 = bench_now(CLOCK_MONOTONIC);
		op->call(n);
		p->samples[i] = bench_now(CLOCK_MONOTONIC) - t0;
	}
	peer_most(p, p->samples, iters);
	return bench_median(p->samples, (size_t)iters) * 1e6;
}

static double peer_back_to_back_us(struct peer *p, const struct peer_op *op, int n)
{
	int iters = peer_iterations(p, op, n, PEER_MOST);
	double t0, mean, sum = 0;

	bench_barrier(&p->team);
	t0 = bench_now(CLOCK_MONOTONIC);
	for (int i = 0; i < iters; i++)
		op->call(n);
	mean = (bench_now(CLOCK_MONOTONIC) - t0) / iters * 1e6;
	bench_barrier(&p->team);
	p->board->value[p->rank][0] = mean;
	bench_barrier(&p->team);
	for (int r = 0; r < p->nranks; r++)
		sum += p->board->value[r][0];
	return sum / p->nranks;
}

static void peer_machine(struct peer *p)
{
	double copy, line;

	if (p->nranks < 2 || p->team.yield) /* ranks that share a CPU measure the scheduler */
		return;
	copy = bench_copy_rate(&p->team, p->rank < 2);
	line = p->rank < 2 ? bench_line_latency(&p->team) : 0;
	bench_barrier(&p->team);
	p->board->value[p->rank][0] = copy;
	bench_barrier(&p->team);
	if (p->rank == 0)
		printf("L %.1f\nC %.2f\n", line, copy + p->board->value[1][0]);
}

static void peer_size(struct peer *p, const struct peer_op *op, size_t bytes, size_t b2b_max)
{
	int n = op->empty ? 0 : (int)(bytes / 4);
	double us;

	if (!op->empty && (op->part || n < p->nranks) && n / p->nranks < 1)
		return;
	us = peer_dirty_us(p, op, n);
	if (p->rank == 0)
		printf("row %zu dirty %.4f\n", bytes, us);
	if (bytes > b2b_max)
		return;
	us = peer_back_to_back_us(p, op, n);
	if (p->rank == 0)
		printf("row %zu b2b %.4f\n", bytes, us);
}

/* The first two arguments, "collective back-to-back-up-to", have been looked at: op, b2b_max. */
static int peer_main(
	struct peer *p, const struct peer_op *op, size_t b2b_max, int nsizes, char **sizes)
{
	size_t max = 4096;

	if (p->nranks > BENCH_TEAM_MAX)
		return 1;
	for (int r = 0; r < p->nranks; r++)
		p->team.of[r] = &p->board->flags[r];
	p->team.me = p->rank;
	p->team.n = p->nranks;
	p->team.yield = p->nranks > sysconf(_SC_NPROCESSORS_ONLN);
	for (int i = 0; i < nsizes; i++)
		max = strtoul(sizes[i], NULL, 10) > max ? strtoul(sizes[i], NULL, 10) : max;
	p->send = aligned_alloc(4096, (max + 4095) & ~(size_t)4095);
	p->recv = aligned_alloc(4096, (max + 4095) & ~(size_t)4095);
	if (!p->send || !p->recv)
		return 1;
	memset(p->send, 0, max);
	memset(p->recv, 0, max);
	bench_barrier(&p->team);
	peer_machine(p);
	if (op->empty)
		peer_size(p, op, 0, b2b_max);
	for (int i = 0; i < nsizes && !op->empty; i++)
		peer_size(p, op, strtoul(sizes[i], NULL, 10), b2b_max);
	return 0;
}

#endif
