/* The harness itself: it must see every way in which a rank can go wrong. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "mem.h"
#include "ranks.h"

TestSuite(harness, .timeout = 30);

static int all_meet(int rank, int n, void *arg)
{
	int *counter = ranks_shared(), token = rank == 0 ? 4711 : 0;

	(void)arg;
	for (int i = 1; i <= 5; i++) {
		__atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
		RANK_BARRIER();
		RANK_CHECK(*(volatile int *)counter == i * n, "round %d: %d", i, *counter);
		RANK_BARRIER();
	}
	RANK_BCAST(&token, sizeof(token));
	RANK_CHECK(token == 4711, "got %d", token);
	return 0;
}

Test(harness, ranks_meet)
{
	char err[1024];

	cr_assert_eq(ranks_run(4, 10, all_meet, NULL, err, sizeof(err)), 0, "%s", err);
	cr_assert_eq(ranks_run_threads(8, 10, all_meet, NULL, err, sizeof(err)), 0, "%s", err);
	cr_assert_eq(ranks_run_mixed(2, 6, 10, all_meet, NULL, err, sizeof(err)), 0, "%s", err);
	cr_assert_str_empty(err);
}

static int one_fails(int rank, int n, void *arg)
{
	(void)n;
	(void)arg;
	if (rank == 2)
		RANK_FAIL("value %d", 17);
	ranks_barrier(); /* must not hang for a rank that has ended */
	return 0;
}

Test(harness, a_failure_is_told_with_its_place)
{
	char err[1024];

	cr_assert_eq(ranks_run(4, 10, one_fails, NULL, err, sizeof(err)), 1);
	cr_assert(strstr(err, "rank 2: ") == err, "%s", err);
	cr_assert(strstr(err, "harness_test.c:") && strstr(err, "value 17"), "%s", err);
	cr_assert_eq(ranks_run_threads(4, 10, one_fails, NULL, err, sizeof(err)), 1);
	cr_assert(strstr(err, "rank 2: ") == err && strstr(err, "value 17"), "%s", err);
}

static int one_hangs(int rank, int n, void *arg)
{
	(void)n;
	(void)arg;
	ranks_note("phase %d", 3);
	if (rank == 1)
		for (;;)
			pause();
	return 0;
}

Test(harness, a_rank_that_hangs_is_named)
{
	char err[1024];

	cr_assert_eq(ranks_run(3, 0.3, one_hangs, NULL, err, sizeof(err)), 1);
	cr_assert(strstr(err, "rank 1: ") == err && strstr(err, "hung"), "%s", err);
	cr_assert(strstr(err, "phase 3"), "%s", err);
	cr_assert_null(strstr(err, "rank 0"), "%s", err);
}

static int dies(int rank, int n, void *arg)
{
	(void)n;
	if (rank == 1 && arg)
		ranks_die(SIGKILL);
	if (rank == 1)
		raise(SIGKILL);
	RANK_BARRIER();
	return 0;
}

static int survives(int rank, int n, void *arg)
{
	(void)n;
	(void)arg;
	if (rank == 0)
		ranks_expect_signal(0, SIGKILL);
	return 0;
}

Test(harness, deaths_are_failures_unless_announced)
{
	char err[1024], yes;

	cr_assert_eq(ranks_run(3, 10, dies, &yes, err, sizeof(err)), 0, "%s", err);
	cr_assert_eq(ranks_run(3, 10, dies, NULL, err, sizeof(err)), 1);
	cr_assert(strstr(err, "rank 1: ") && strstr(err, "signal 9"), "%s", err);
	cr_assert_eq(ranks_run(2, 10, survives, NULL, err, sizeof(err)), 1);
	cr_assert(strstr(err, "rank 0: ") && strstr(err, "was to die"), "%s", err);
}

static int wrong_code(int rank, int n, void *arg)
{
	(void)rank;
	(void)n;
	(void)arg;
	RANK_RESULT(fail_quiet(symcclTimeout, "rank 5 is late"), symcclRemoteError);
	return 0;
}

Test(harness, result_codes_are_exact)
{
	char err[1024];

	cr_assert_eq(ranks_run(1, 10, wrong_code, NULL, err, sizeof(err)), 1);
	cr_assert(strstr(err, "symcclTimeout instead of symcclRemoteError") &&
			  strstr(err, "rank 5 is late"),
		"%s", err);
}

Test(harness, leaks_are_found)
{
	struct leak_snapshot before;
	char why[512];
	int fd;

	leak_snapshot(&before);
	cr_assert_eq(leak_check(&before, 0, why, sizeof(why)), 0);
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	cr_assert_eq(leak_check(&before, 0, why, sizeof(why)), 1);
	cr_assert(strstr(why, "/dev/null"), "%s", why);
	close(fd);
	cr_assert_eq(leak_check(&before, 0, why, sizeof(why)), 0);
}

Test(harness, fills_are_reproducible)
{
	unsigned char a[1000], b[1000];
	struct guarded g;
	long at;

	fill_bytes(a, sizeof(a), 5);
	fill_bytes(b, 13, 5);
	cr_assert_arr_eq(a, b, 13);
	cr_assert_eq(check_bytes(a, sizeof(a), 5), sizeof(a));
	a[777] ^= 1;
	cr_assert_eq(check_bytes(a, sizeof(a), 5), 777);
	for (int t = 0; t < symcclNumTypes; t++) {
		fill_type(a, 64, t, 9);
		fill_type(b, 64, t, 9);
		cr_assert_arr_eq(a, b, 64 * fill_type_size(t));
	}
	cr_assert_eq(guarded_alloc(&g, 100, 3), 0);
	cr_assert_eq(guarded_check(&g, &at), 0);
	cr_assert_eq((uintptr_t)g.p % 64, 3);
	g.p[100] = 0;
	cr_assert_eq(guarded_check(&g, &at), 1);
	cr_assert_eq(at, 100);
	guarded_free(&g);
}
