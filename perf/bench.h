/*
 * Pieces of timing that the symccl programs and the MPI comparison share, so that all are timed
 * alike: clock, median, a barrier of flags, rewriting of inputs, and the two numbers that say how
 * fast the machine is right now (L and C). Needs neither symccl nor MPI.
 */
#ifndef BENCH_H
#define BENCH_H

#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BENCH_TEAM_MAX 64
#define BENCH_COPY_BYTES ((size_t)64 << 20)

/* One per participant, in memory that all map; one writer a line. Starts zeroed. */
struct bench_flags {
	_Alignas(128) _Atomic uint32_t barrier;
	_Alignas(128) _Atomic uint32_t ping;
	_Alignas(128) _Atomic uint32_t came; /* to the barrier that is being checked */
};

struct bench_team {
	int me, n;
	int yield; /* more participants than CPUs: give the CPU away while waiting */
	uint32_t epoch, pings, checks;
	struct bench_flags *of[BENCH_TEAM_MAX];
};

static inline double bench_now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int bench_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* Sorts v. 0 for n == 0. */
static inline double bench_median(double *v, size_t n)
{
	if (!n)
		return 0;
	qsort(v, n, sizeof(*v), bench_compare);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static inline void bench_wait(_Atomic uint32_t *flag, uint32_t value, int yield)
{
	for (int spins = 0; (int32_t)(atomic_load_explicit(flag, memory_order_acquire) - value) < 0;
		spins++) {
		if (yield && spins > 50)
			sched_yield();
#if defined(__x86_64__) || defined(__i386__)
		__builtin_ia32_pause();
#elif defined(__aarch64__)
		__asm__ volatile("yield");
#endif
	}
}

static inline void bench_barrier(struct bench_team *t)
{
	uint32_t e = ++t->epoch;

	atomic_store_explicit(&t->of[t->me]->barrier, e, memory_order_release);
	for (int k = 1; k < t->n; k++)
		bench_wait(&t->of[(t->me + k) % t->n]->barrier, e, t->yield);
}

/* An owner that rewrites its buffer: plain stores, so that the lines end up dirty in its cache as
 * far as they fit. A library's memset would stream past the cache. */
static inline void bench_dirty(void *buf, size_t bytes, uint64_t salt)
{
	uint64_t v = (salt + 1) * 0x9e3779b97f4a7c15u;
	size_t words = bytes / 8;
	char *p = buf;

	for (size_t i = 0; i < words; i++)
		memcpy(p + 8 * i, &v, 8);
	memcpy(p + 8 * words, &v, bytes % 8);
}

/* L: one-way latency of a cache line between participants 0 and 1, in ns; the same two must call
 * it. */
static inline double bench_line_latency(struct bench_team *t)
{
	enum { REPEATS = 21, ROUNDS = 200 };
	double v[REPEATS];

	for (int r = 0; r < REPEATS; r++) {
		double t0 = bench_now(CLOCK_MONOTONIC);

		for (int i = 0; i < ROUNDS; i++) {
			uint32_t e = ++t->pings;

			if (t->me == 1)
				bench_wait(&t->of[0]->ping, e, t->yield);
			atomic_store_explicit(&t->of[t->me]->ping, e, memory_order_release);
			if (t->me == 0)
				bench_wait(&t->of[1]->ping, e, t->yield);
		}
		v[r] = (bench_now(CLOCK_MONOTONIC) - t0) / ROUNDS / 2 * 1e9;
	}
	return bench_median(v, REPEATS);
}

/* One participant's part of C, in GB/s: all call it, two of them with copy set copy 64 MiB at the
 * same time; the sum of the two is C. 0 for the others, and when there is no memory. */
static inline double bench_copy_rate(struct bench_team *t, int copy)
{
	enum { REPEATS = 5 };
	size_t bytes = 2 * BENCH_COPY_BYTES;
	double v[REPEATS] = {0};
	char *p = MAP_FAILED;

	if (copy)
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p != MAP_FAILED) {
		madvise(p, bytes, MADV_HUGEPAGE); /* touching 4 KiB pages would take seconds */
		bench_dirty(p, bytes, 1);
	}
	for (int r = 0; r < REPEATS; r++) {
		bench_barrier(t);
		if (p != MAP_FAILED) {
			double t0 = bench_now(CLOCK_MONOTONIC);

			memcpy(p + BENCH_COPY_BYTES, p, BENCH_COPY_BYTES);
			v[r] = (double)BENCH_COPY_BYTES / (bench_now(CLOCK_MONOTONIC) - t0) / 1e9;
		}
	}
	bench_barrier(t);
	if (p != MAP_FAILED)
		munmap(p, bytes);
	return bench_median(v, REPEATS);
}

#endif
