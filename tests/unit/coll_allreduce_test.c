/* Every reducing algorithm of the host backend against the oracle, bit for bit: types, operators,
 * team sizes, sizes, memory, alignment, workers. A sample; everything with SYMCCL_TEST_FULL=1. All
 * algorithms are held to one expectation, so they agree with each other as well. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>
#include "coll_rig.h"
#include "mem.h"
#include "ranks.h"
#include "util.h"

TestSuite(coll_allreduce, .timeout = 100);

enum { FUNCS = 3, SPAN = 600000 }; /* bytes of the largest buffer of the matrix */
static const symcclFunc_t funcs[FUNCS] = {
	symcclFuncAllReduce, symcclFuncReduceScatter, symcclFuncReduce};

struct job {
	struct rig rig;
	struct rig_data data;
	uint64_t seed;
	int full;
};

static int is_full(void)
{
	const char *s = getenv("SYMCCL_TEST_FULL");

	return s && strcmp(s, "1") == 0;
}

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

/* Bytes around every edge of lines, stages and bulk halves; cut to whole elements, which for odd
 * ones leaves tails of every length. */
static size_t edge(const struct rig *r, size_t i)
{
	const struct ctrl_layout *l = &r->layout;
	size_t n = (size_t)r->n;
	const size_t bytes[] = {0, 8, 16, 24, 48, 56, 57, 64, 72, 120, 128, 136, 200, 777,
		64 * n - 8, 64 * n + 8, 4096 + 24, l->stage_bytes - 8, l->stage_bytes,
		l->stage_bytes + 8, (l->stage_bytes - 64) * n, (l->stage_bytes - 64) * n + 8,
		l->bulk_bytes - 8, l->bulk_bytes, l->bulk_bytes + 8, 2 * l->bulk_bytes + 72};

	return i < ARRAY_LEN(bytes) ? bytes[i] : SIZE_MAX;
}

static int one(const struct job *j, struct coll_team *t, const struct rig_plain *plain,
	const struct rig_call *c, uint64_t seed, int *count)
{
	char why[300];
	int ran = 0;

	ranks_note("%s type %d op %d count %zu", c->algo, j->data.type, j->data.op, c->count);
	RANK_CHECK(rig_reduce(&j->rig, t, plain, c, &j->data, seed, &ran, why, sizeof(why)) == 0,
		"%s, type %d, op %d, %zu elements, memory %d %d, offsets %zu %zu%s, %d CTAs: %s",
		c->algo, j->data.type, j->data.op, c->count, c->send, c->recv, c->send_at,
		c->recv_at, c->in_place ? ", in place" : "", j->rig.nctas, why);
	*count += ran;
	return 0;
}

/* One algorithm over sizes, memory, alignment and place. */
static int vary(const struct job *j, struct coll_team *t, const struct rig_plain *plain,
	const struct coll_algo *a, uint64_t seed)
{
	size_t size = coll_type_size(j->data.type), parts = 1, bytes;
	int count = 0, kinds = RIG_MEMORIES * RIG_MEMORIES * 2;

	if (a->func == symcclFuncReduceScatter)
		parts = (size_t)j->rig.n;
	for (size_t i = 0; (bytes = edge(&j->rig, i)) != SIZE_MAX; i++)
		for (int k = 0; k < kinds * 3; k++) {
			uint64_t s = mix64(seed, i * 100 + (size_t)k);
			/* Aligned; to elements; anywhere. */
			size_t unit = k / kinds == 0 ? 64 : k / kinds == 1 ? size : 1;
			struct rig_call c = {.algo = a->name,
				.func = a->func,
				.root = (int)((s >> 24) % (uint64_t)j->rig.n),
				.count = MIN(bytes, SPAN / parts) / size + (size_t)(k / kinds == 2),
				.send = (enum rig_memory)(k / 2 % RIG_MEMORIES),
				.recv = (enum rig_memory)(k / 2 / RIG_MEMORIES % RIG_MEMORIES),
				.send_at = RIG_GUARD + s % 64 / unit * unit,
				.recv_at = RIG_GUARD + (s >> 8) % 64 / unit * unit,
				.in_place = k & 1};

			if (c.in_place && c.send != c.recv)
				continue;
			if (!j->full && (s >> 16) % (a->func == symcclFuncReduce ? 48 : 24) != 0)
				continue;
			/* An algorithm on windows takes nothing else. */
			if (!j->full && (a->needs & COLL_NEED_SEND_WINDOW))
				c.send = RIG_SYMMETRIC;
			if (!j->full && (a->needs & COLL_NEED_RECV_WINDOW))
				c.recv = RIG_SYMMETRIC;
			RANK_TRY(one(j, t, plain, &c, s, &count));
		}
	RANK_CHECK(count > 0, "%s took no call at all", a->name);
	return 0;
}

static int matrix(int rank, int n, void *arg)
{
	const struct job *j = arg;
	const struct coll_algo *algos;
	struct rig_plain plain;
	struct coll_team t;
	size_t nalgos;
	int e = 0;

	RANK_CHECK(n == j->rig.n && plain_open(&j->rig, &plain) == 0, "no memory");
	rig_team(&j->rig, rank, &t);
	algos = coll_algos(&nalgos);
	for (size_t f = 0; f < FUNCS; f++)
		for (size_t a = 0; a < nalgos && !e; a++)
			if (algos[a].func == funcs[f] && !algos[a].gpu)
				e = vary(j, &t, &plain, &algos[a], j->seed + a * 1000);
	plain_close(&plain);
	return e;
}

typedef int runner(int n, double timeout_s, rank_fn *fn, void *arg, char *err, size_t errlen);

static void run_matrix(runner *run, int n, int nctas, int type, int op)
{
	struct job j = {.full = is_full()};
	char err[1024];

	j.seed = mix64(test_seed(), (uint64_t)((n * 8 + nctas) * 100 + type * 8 + op));
	cr_assert_eq(rig_open(&j.rig, n, nctas, SPAN + 8192), 0);
	cr_assert_eq(rig_data_open(&j.data, (symcclDataType_t)type, op, n, j.seed), 0);
	cr_assert_eq(run(n, j.full ? 600 : 60, matrix, &j, err, sizeof(err)), 0,
		"%d ranks, %d CTAs: %s", n, nctas, err);
	rig_data_close(&j.data);
	rig_close(&j.rig);
}

/* A row is one operator: 12 types x 7 team sizes x 3 numbers of workers. */
struct row {
	int op;
};

ParameterizedTestParameters(coll_allreduce, as_the_oracle_says)
{
	static struct row rows[symcclNumOps + 1];

	for (int i = 0; i < (int)ARRAY_LEN(rows); i++)
		rows[i].op = i;
	return cr_make_param_array(struct row, rows, ARRAY_LEN(rows));
}

/* Which of a row's configurations run. Instrumented code is ten times as slow: it takes every
 * eighth, by the seed. */
static int sampled(const struct row *row, int type, int n, int nctas)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	uint64_t key = (uint64_t)(((row->op * 16 + type) * 16 + n) * 4 + nctas);

	return is_full() || mix64(test_seed(), key) % 8 == 0;
#else
	(void)row;
	return is_full() || (type + n + nctas) % 3 == 0 || n < 4;
#endif
}

ParameterizedTest(struct row *row, coll_allreduce, as_the_oracle_says, .timeout = 3000)
{
	static const int n[] = {1, 2, 3, 4, 5, 7, 8};

	for (int type = 0; type < symcclNumTypes; type++)
		for (size_t i = 0; i < ARRAY_LEN(n); i++)
			for (int nctas = 1; nctas <= 3; nctas++)
				if (sampled(row, type, n[i], nctas))
					run_matrix(ranks_run_threads, n[i], nctas, type, row->op);
}

Test(coll_allreduce, processes)
{
	test_seed();
	run_matrix(ranks_run, 2, 1, symcclFloat32, symcclSum);
	run_matrix(ranks_run, 3, 2, symcclBfloat16, RIG_PREMUL);
	run_matrix(ranks_run, 5, 1, symcclFloat16, symcclAvg);
}

/* ---- Beyond the size from which stores bypass the caches ------------------------------------- */

static int streaming(int rank, int n, void *arg)
{
	const struct job *j = arg;
	const struct coll_algo *algos;
	struct rig_plain plain;
	struct coll_team t;
	size_t nalgos;
	int e = 0, ran = 0;

	RANK_CHECK(plain_open(&j->rig, &plain) == 0, "no memory");
	rig_team(&j->rig, rank, &t);
	algos = coll_algos(&nalgos);
	for (size_t i = 0; i < nalgos * 4 && !e; i++) {
		const struct coll_algo *a = &algos[i / 4];
		uint64_t s = mix64(j->seed, i);
		struct rig_call c = {.algo = a->name,
			.func = a->func,
			.root = (int)((s >> 24) % (uint64_t)n),
			.count = ((size_t)3 << 20) / coll_type_size(j->data.type) - s % 64,
			.send = RIG_SYMMETRIC,
			.recv = RIG_SYMMETRIC,
			.send_at = RIG_GUARD + (i & 1 ? (s >> 8) % 64 : 0),
			.recv_at = RIG_GUARD + (i & 1 ? (s >> 16) % 64 : 0),
			.in_place = i & 2 ? 1 : 0};

		if (!coll_reduces(a->func) || a->gpu)
			continue;
		if (a->func == symcclFuncReduceScatter)
			c.count /= (size_t)n;
		e = one(j, &t, &plain, &c, s, &ran);
	}
	plain_close(&plain);
	return e;
}

Test(coll_allreduce, streaming)
{
	static const int types[] = {symcclFloat32, symcclUint8, symcclBfloat16};

	for (int n = 2; n <= 4; n++) {
		struct job j = {.seed = test_seed() + (uint64_t)n};
		char err[1024];

		cr_assert_eq(rig_open(&j.rig, n, 1, ((size_t)3 << 20) + 8192), 0);
		cr_assert_eq(rig_data_open(&j.data, (symcclDataType_t)types[n - 2],
				     n == 3 ? symcclAvg : symcclSum, n, j.seed),
			0);
		cr_assert_eq(ranks_run(n, 60, streaming, &j, err, sizeof(err)), 0, "%d ranks: %s",
			n, err);
		rig_data_close(&j.data);
		rig_close(&j.rig);
	}
}

/* ---- Sequences ------------------------------------------------------------------------------- */

struct seq {
	struct job j;
	int calls;
};

/* Small calls of any algorithm back to back. */
static int burst(int rank, int n, void *arg)
{
	struct seq *q = arg;
	const struct job *j = &q->j;
	struct rig_plain plain;
	struct coll_team t;
	const struct coll_algo *algos;
	size_t nalgos;
	int e = 0, ran = 0;

	(void)n;
	RANK_CHECK(plain_open(&j->rig, &plain) == 0, "no memory");
	rig_team(&j->rig, rank, &t);
	algos = coll_algos(&nalgos);
	for (int i = 0; i < q->calls && !e; i++) {
		uint64_t s = mix64(j->seed, (uint64_t)i);
		const struct coll_algo *a = &algos[s % nalgos];
		struct rig_call c = {.algo = a->gpu ? "" : a->name,
			.func = a->func,
			.count = (s >> 8) % (s >> 40 & 1 ? 300 : 8),
			.send = RIG_SYMMETRIC,
			.recv = RIG_SYMMETRIC,
			.send_at = RIG_GUARD + (s >> 24) % 64,
			.recv_at = RIG_GUARD + (s >> 32) % 64,
			.in_place = (s >> 41 & 3) == 0};

		if (a->func == symcclFuncAllReduce ||
			(a->func == symcclFuncReduceScatter && !a->gpu))
			e = one(j, &t, &plain, &c, s, &ran);
	}
	plain_close(&plain);
	return e;
}

static void run_burst(int n, int nctas, uint64_t epoch, int calls)
{
	struct seq q = {.calls = calls};
	char err[1024];

	q.j.seed = test_seed() + epoch;
	cr_assert_eq(rig_open(&q.j.rig, n, nctas, 32768), 0);
	rig_seed(&q.j.rig, epoch);
	cr_assert_eq(rig_data_open(&q.j.data, symcclFloat32, symcclSum, n, q.j.seed), 0);
	cr_assert_eq(ranks_run_threads(n, 60, burst, &q, err, sizeof(err)), 0,
		"%d ranks, epoch %#llx: %s", n, (unsigned long long)epoch, err);
	rig_data_close(&q.j.data);
	rig_close(&q.j.rig);
}

Test(coll_allreduce, bursts)
{
	run_burst(2, 1, 0, 20000);
	run_burst(3, 2, 0, 5000);
	run_burst(8, 1, 0, 3000);
}

/* Around every place where the flag's 32 bits or the epoch's 64 start again. */
Test(coll_allreduce, epochs_wrap)
{
	static const uint64_t around[] = {1ull << 32, 5ull << 32, UINT64_MAX, 1ull << 31};

	for (size_t i = 0; i < ARRAY_LEN(around); i++)
		for (uint64_t before = 0; before < 8; before++)
			run_burst(3, 1 + (int)(before & 1), around[i] - before, 60);
}
