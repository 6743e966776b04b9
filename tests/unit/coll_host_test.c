/* Every algorithm of the host backend, over team sizes, sizes, memory, alignment, workers: ranks
 * as threads, and as processes. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coll_rig.h"
#include "mem.h"
#include "ranks.h"
#include "util.h"

TestSuite(coll_host, .timeout = 100);

enum { SPAN_MAX = 1 << 20 };

struct job {
	struct rig rig;
	int large; /* sizes of many chunks instead of the edges of small ones */
	int must_run;
};

static int plain_open(const struct rig *r, struct rig_plain *p)
{
	p->send = malloc(r->room);
	p->recv = malloc(r->room);
	return p->send == NULL || p->recv == NULL;
}

static void plain_close(struct rig_plain *p)
{
	free(p->send);
	free(p->recv);
}

/* One algorithm and size over memory, alignment and place. */
static int vary(const struct job *j, struct coll_team *t, const struct rig_plain *plain,
	const char *algo, size_t bytes, uint64_t seed, int *count)
{
	static const size_t at[][2] = {{64, 64}, {64 + 1, 64 + 7}, {128 - 8, 64 + 32}};
	char why[512];
	int ran;

	for (int k = 0; k < RIG_MEMORIES * RIG_MEMORIES * 2; k++) {
		int place = j->large ? k % 3 : (int)(mix64(seed, (uint64_t)k) % 3);
		struct rig_call c = {.algo = algo,
			.type = symcclUint8,
			.count = bytes,
			.send = (enum rig_memory)(k / 2 % RIG_MEMORIES),
			.recv = (enum rig_memory)(k / 2 / RIG_MEMORIES),
			.send_at = at[place][0],
			.recv_at = at[place][1],
			.in_place = k & 1};

		/* In place there is one buffer; large ones take time. */
		if (c.in_place && c.send != c.recv)
			continue;
		if (j->large && (c.send == RIG_DEFAULT || c.recv == RIG_DEFAULT))
			continue;
		ranks_note("%s, %zu bytes, variant %d", algo, bytes, k);
		RANK_CHECK(rig_allgather(&j->rig, t, plain, &c, mix64(seed, (uint64_t)k), &ran, why,
				   sizeof(why)) == 0,
			"%s, %zu bytes, memory %d %d, offsets %zu %zu%s, %d CTAs: %s", algo, bytes,
			c.send, c.recv, c.send_at, c.recv_at, c.in_place ? ", in place" : "",
			j->rig.nctas, why);
		*count += ran;
	}
	return 0;
}

static size_t pick_size(const struct job *j, int i)
{
	const struct ctrl_layout *l = &j->rig.layout;
	const size_t small[] = {0, 1, 2, 3, 7, 8, 55, 56, 57, 63, 64, 65, 111, 112, 113, 128, 129,
		1000, 4096, l->stage_bytes - 1, l->stage_bytes, l->stage_bytes + 1};
	const size_t large[] = {l->bulk_bytes - 1, l->bulk_bytes, l->bulk_bytes + 1,
		2 * l->bulk_bytes + 17, MIN(4 * l->bulk_bytes + 3, (size_t)SPAN_MAX)};

	if (j->large)
		return i < (int)ARRAY_LEN(large) ? large[i] : SIZE_MAX;
	return i < (int)ARRAY_LEN(small) ? small[i] : SIZE_MAX;
}

static int matrix(int rank, int n, void *arg)
{
	const struct job *j = arg;
	const struct coll_algo *algos;
	struct rig_plain plain;
	struct coll_team t;
	size_t nalgos, bytes;
	int e = 0;

	RANK_CHECK(n == j->rig.n && plain_open(&j->rig, &plain) == 0, "no memory");
	rig_team(&j->rig, rank, &t);
	algos = coll_algos(&nalgos);
	for (size_t a = 0; a < nalgos && !e; a++) {
		int count = 0,
		    needed = !(algos[a].needs & ~(COLL_NEED_SEND_WINDOW | COLL_NEED_RECV_WINDOW));

		if (algos[a].func != symcclFuncAllGather || algos[a].gpu != 0)
			continue;
		for (int i = 0; (bytes = pick_size(j, i)) != SIZE_MAX && !e; i++)
			e = vary(j, &t, &plain, algos[a].name, bytes,
				test_seed() + a * 100 + (uint64_t)i, &count);
		if (!e && needed && !j->large && count == 0) {
			rank_fail(__FILE__, __LINE__, "%s took no call at all", algos[a].name);
			e = 1;
		}
	}
	plain_close(&plain);
	return e;
}

typedef int runner(int n, double timeout_s, rank_fn *fn, void *arg, char *err, size_t errlen);

static void run_matrix(runner *run, int n, int nctas, int large)
{
	struct job j = {.large = large};
	char err[1024];

	test_seed();
	cr_assert_eq(rig_open(&j.rig, n, nctas,
			     large ? (size_t)n * SPAN_MAX + 4096 : (size_t)n * 70000 + 4096),
		0);
	cr_assert_eq(run(n, 90, matrix, &j, err, sizeof(err)), 0, "%d ranks, %d CTAs: %s", n, nctas,
		err);
	rig_close(&j.rig);
}

Test(coll_host, threads_small)
{
	static const int n[] = {1, 2, 3, 4, 5, 7, 8};

	for (size_t i = 0; i < ARRAY_LEN(n); i++)
		for (int nctas = 1; nctas <= 2; nctas++)
			run_matrix(ranks_run_threads, n[i], nctas, 0);
}

Test(coll_host, threads_large)
{
	run_matrix(ranks_run_threads, 1, 1, 1);
	run_matrix(ranks_run_threads, 2, 1, 1);
	run_matrix(ranks_run_threads, 2, 2, 1);
	run_matrix(ranks_run_threads, 3, 1, 1);
	run_matrix(ranks_run_threads, 5, 2, 1);
	run_matrix(ranks_run_threads, 8, 1, 1);
}

Test(coll_host, processes)
{
	run_matrix(ranks_run, 2, 1, 0);
	run_matrix(ranks_run, 3, 2, 0);
	run_matrix(ranks_run, 4, 1, 0);
	run_matrix(ranks_run, 2, 1, 1);
	run_matrix(ranks_run, 3, 1, 1);
}

/* Beyond the size from which stores bypass the caches. */
static int streaming(int rank, int n, void *arg)
{
	static const char *const algo[] = {"allgather/push", "allgather/pull", "allgather/scratch"};
	const struct job *j = arg;
	struct rig_plain plain;
	struct coll_team t;
	int ran, e = 0;
	char why[512];

	RANK_CHECK(plain_open(&j->rig, &plain) == 0, "no memory");
	rig_team(&j->rig, rank, &t);
	for (int k = 0; k < 12 && !e; k++) {
		struct rig_call c = {.algo = algo[k % 3],
			.type = symcclInt8,
			.count = ((size_t)9 << 20) / (size_t)(n * n) + (size_t)(k * 13),
			.send = RIG_SYMMETRIC,
			.recv = RIG_SYMMETRIC,
			.send_at = RIG_GUARD + (size_t)(k * 5 % 64),
			.recv_at = RIG_GUARD + (size_t)(k * 11 % 64),
			.in_place = k > 8};

		e = rig_allgather(&j->rig, &t, &plain, &c, test_seed() + (uint64_t)(k * 99), &ran,
			why, sizeof(why));
		if (e || !ran)
			rank_fail(__FILE__, __LINE__, "%s: %s", c.algo, e ? why : "refused");
	}
	plain_close(&plain);
	return e;
}

Test(coll_host, streaming)
{
	for (int n = 2; n <= 4; n++) {
		struct job j = {0};
		char err[1024];

		test_seed();
		cr_assert_eq(rig_open(&j.rig, n, 1, ((size_t)10 << 20) / (size_t)n + 8192), 0);
		cr_assert_eq(ranks_run(n, 60, streaming, &j, err, sizeof(err)), 0, "%s", err);
		rig_close(&j.rig);
	}
}

/* ---- Sequences ------------------------------------------------------------------------------ */

struct seq {
	struct rig a, b;
	int calls;
};

static int burst(int rank, int n, void *arg)
{
	struct seq *q = arg;
	struct rig_plain plain;
	struct coll_team t;
	char why[512];
	int e;

	(void)n;
	RANK_CHECK(plain_open(&q->a, &plain) == 0, "no memory");
	rig_team(&q->a, rank, &t);
	e = rig_burst(&q->a, &t, &plain, test_seed(), q->calls, 3000, why, sizeof(why));
	if (e)
		rank_fail(__FILE__, __LINE__, "%s", why);
	plain_close(&plain);
	return e;
}

Test(coll_host, bursts)
{
	static const int n[] = {2, 3, 8};

	for (size_t i = 0; i < ARRAY_LEN(n); i++) {
		struct seq q = {.calls = 10000};
		char err[1024];

		test_seed();
		cr_assert_eq(rig_open(&q.a, n[i], 1, (size_t)n[i] * 3100 + 4096), 0);
		cr_assert_eq(ranks_run_threads(n[i], 60, burst, &q, err, sizeof(err)), 0,
			"%d ranks: %s", n[i], err);
		rig_close(&q.a);
	}
}

/* Two teams, whose calls alternate at random. */
static int interleave(int rank, int n, void *arg)
{
	struct seq *q = arg;
	struct rig_plain plain;
	struct coll_team t[2];
	char why[512];
	int e = 0;

	RANK_CHECK(plain_open(&q->a, &plain) == 0, "no memory");
	rig_team(&q->a, rank, &t[0]);
	rig_team(&q->b, n - 1 - rank, &t[1]);
	for (int i = 0; i < q->calls && !e; i++) {
		uint64_t s = mix64(test_seed(), (uint64_t)i);

		e = rig_burst(s & 1 ? &q->b : &q->a, &t[s & 1], &plain, s, 1 + (int)(s >> 8 & 3),
			3000, why, sizeof(why));
	}
	if (e)
		rank_fail(__FILE__, __LINE__, "%s", why);
	plain_close(&plain);
	return e;
}

Test(coll_host, two_teams)
{
	struct seq q = {.calls = 1000};
	char err[1024];

	test_seed();
	cr_assert_eq(rig_open(&q.a, 3, 1, 16384), 0);
	cr_assert_eq(rig_open(&q.b, 3, 2, 16384), 0);
	cr_assert_eq(ranks_run(3, 60, interleave, &q, err, sizeof(err)), 0, "%s", err);
	rig_close(&q.a);
	rig_close(&q.b);
}

/* Around every place where the flag's 32 bits or the epoch's 64 start again. */
Test(coll_host, epochs_wrap)
{
	static const uint64_t around[] = {0, 1ull << 32, 5ull << 32, 1ull << 63, UINT64_MAX,
		0xffffffff80000000ull, 1ull << 31};

	test_seed();
	for (size_t i = 0; i < ARRAY_LEN(around); i++)
		for (uint64_t before = 0; before < 8; before++) {
			struct seq q = {.calls = 24};
			char err[1024];

			cr_assert_eq(rig_open(&q.a, 3, 1 + (int)(before & 1), 16384), 0);
			rig_seed(&q.a, around[i] - before);
			cr_assert_eq(ranks_run_threads(3, 20, burst, &q, err, sizeof(err)), 0,
				"epoch %#llx: %s", (unsigned long long)(around[i] - before), err);
			rig_close(&q.a);
		}
}
