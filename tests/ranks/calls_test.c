/*
 * Every call that moves data, through the whole library against the oracle: calls x types x
 * operators x ranks x {processes, threads, both} x {window, plain, mixed, in place, unaligned} x
 * odd counts. A sample that a printed seed picks; all of it with SYMCCL_TEST_FULL=1.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "calls.h"
#include "mem.h"
#include "ranks.h"

TestSuite(calls, .timeout = 120);

struct job {
	int procs, cases, full;
	uint64_t seed;
};

static int matrix(int rank, int n, void *arg)
{
	const struct job *j = arg;
	struct calls_world w = {.rank = rank, .n = n};
	uint64_t all = calls_all();
	int e = 0;

	RANK_TRY(calls_open(&w));
	for (uint64_t k = 0; k < (j->full ? all : (uint64_t)j->cases) && !e; k++) {
		uint64_t i = j->full ? k : mix64(j->seed, k) % all;
		struct calls_one o;
		char text[160];

		if (!calls_pick(n, j->seed, i, &o))
			continue;
		calls_text(&o, text, sizeof(text));
		ranks_note("case %llu: %s", (unsigned long long)i, text);
		e = calls_run(&w, &o);
		if (e)
			fprintf(stderr,
				"rank %d of %d in %d processes, seed %#llx, case %llu: %s\n", rank,
				n, j->procs, (unsigned long long)j->seed, (unsigned long long)i,
				text);
	}
	if (e)
		symcclCommAbort(w.c);
	return e ? e : calls_close(&w);
}

static void run(int n, int procs, int cases)
{
	const char *s = getenv("SYMCCL_TEST_FULL");
	struct job j = {.procs = procs, .cases = cases, .full = s && strcmp(s, "1") == 0};
	double limit = j.full ? 1000 : 100;
	char err[1024];
	int e;

	j.seed = mix64(test_seed(), (uint64_t)(n * 64 + procs));
	if (procs == n)
		e = ranks_run(n, limit, matrix, &j, err, sizeof(err));
	else if (procs == 1)
		e = ranks_run_threads(n, limit, matrix, &j, err, sizeof(err));
	else
		e = ranks_run_mixed(procs, n, limit, matrix, &j, err, sizeof(err));
	cr_assert_eq(e, 0, "%d ranks in %d processes: %s", n, procs, err);
}

/* Instrumented code is ten times as slow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CASES(n) ((n) / 8)
#else
#define CASES(n) (n)
#endif

Test(calls, few_ranks, .timeout = 3000)
{
	run(1, 1, CASES(400));
	run(2, 1, CASES(1200));
	run(2, 2, CASES(1200));
	run(3, 3, CASES(600));
	run(3, 1, CASES(300));
}

Test(calls, many_ranks, .timeout = 3000)
{
	run(4, 4, CASES(500));
	run(4, 2, CASES(500));
	run(5, 1, CASES(300));
	run(5, 5, CASES(200));
	run(8, 8, CASES(150));
	run(8, 2, CASES(150));
}
