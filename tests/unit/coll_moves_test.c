/* Every host algorithm of the calls that move data: team sizes, sizes, roots, memory, alignment,
 * place; ranks as threads, and as processes. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coll_rig.h"
#include "mem.h"
#include "moves.h"
#include "ranks.h"
#include "util.h"

TestSuite(coll_moves, .timeout = 100);

static const symcclFunc_t funcs[] = {
	symcclFuncAlltoAll, symcclFuncBroadcast, symcclFuncGather, symcclFuncScatter};

struct job {
	struct rig rig;
	int threads, large;
};

static size_t pick_size(const struct job *j, int i)
{
	const struct ctrl_layout *l = &j->rig.layout;
	const size_t small[] = {1, 2, 3, 8, 55, 56, 57, 64, 65, 113, 1000, 4096, 5001};
	const size_t large[] = {
		l->stage_bytes - 1, l->stage_bytes + 1, 2 * l->stage_bytes + 17, 300007};

	if (j->large)
		return i < (int)ARRAY_LEN(large) ? large[i] : SIZE_MAX;
	return i < (int)ARRAY_LEN(small) ? small[i] : SIZE_MAX;
}

/* A buffer of window 1 or 2, or plain. */
static void buffer(const struct job *j, int rank, enum rig_memory m, int window, char *plain,
	size_t at, struct coll_buf *b)
{
	if (m == RIG_PLAIN)
		*b = (struct coll_buf){.ptr = plain + at};
	else
		rig_window(&j->rig, rank, m, window, at, b);
}

static void shift(struct coll_buf *b, ptrdiff_t by)
{
	b->ptr = (char *)b->ptr + by;
	b->offset += (size_t)by;
	if (b->peers != NULL)
		b->peers += by;
}

/* One call. *ran counts it if the algorithm takes it. */
static int one(const struct job *j, struct coll_team *t, char *const plain[2], const char *algo,
	const struct moves *m, uint64_t x, int *ran)
{
	enum rig_memory ms = (enum rig_memory)(x % RIG_MEMORIES);
	enum rig_memory mr = (enum rig_memory)(x >> 8) % RIG_MEMORIES;
	size_t send_at = MOVES_GUARD + (x >> 16) % 9, recv_at = MOVES_GUARD + (x >> 24) % 9;
	struct coll_call c = {
		.func = m->func, .type = symcclInt8, .count = m->block, .root = m->root};
	struct coll_plan plan;
	char why[512] = "";
	ptrdiff_t at;
	symcclResult_t e;

	buffer(j, t->rank, ms, 1, plain[0], send_at, &c.send);
	buffer(j, t->rank, mr, 2, plain[1], recv_at, &c.recv);
	if (moves_in_place(m, t->rank, &at)) {
		/* The larger of the two buffers lies where it would otherwise. */
		if (at < 0) {
			c.recv = c.send;
			shift(&c.recv, -at);
		} else {
			c.send = c.recv;
			shift(&c.send, at);
		}
	}
	moves_fill(m, t->rank, c.send.ptr, c.recv.ptr);
	if (moves_send_bytes(m, t->rank) == 0)
		c.send = (struct coll_buf){0};
	if (moves_recv_bytes(m, t->rank) == 0)
		c.recv = (struct coll_buf){0};
	snprintf(t->tuning.algo, sizeof(t->tuning.algo), "%s", algo);
	RANK_OK(coll_check(&c, t->rank, t->nranks));
	RANK_OK(coll_plan(t, &c, &plan));
	if (strcmp(plan.algo->name, algo) != 0)
		return 0;
	++*ran;
	e = coll_run_host(t, &c, &plan);
	if (e == symcclSuccess)
		moves_verify(m, t->rank, c.send.ptr, c.recv.ptr, why, sizeof(why));
	else
		snprintf(why, sizeof(why), "%s", error_text());
	RANK_CHECK(why[0] == '\0',
		"%s, %zu bytes, root %d, memory %d %d, offsets %zu %zu%s, %d CTAs: %s", algo,
		m->block, m->root, ms, mr, send_at, recv_at, m->in_place ? ", in place" : "",
		j->rig.nctas, why);
	return 0;
}

static int matrix(int rank, int n, void *arg)
{
	const struct job *j = arg;
	const struct coll_algo *algos;
	char *plain[2] = {malloc(j->rig.room), malloc(j->rig.room)};
	int32_t pid[RIG_RANKS_MAX] = {0};
	struct coll_team t;
	size_t nalgos, bytes;
	int e = 0;

	RANK_CHECK(plain[0] != NULL && plain[1] != NULL, "no memory");
	RANK_BARRIER(); /* then every process id is known */
	rig_team(&j->rig, rank, &t);
	for (int q = 0; q < n && !j->threads; q++)
		pid[q] = q == rank ? 0 : (int32_t)ranks_pid(q);
	t.pid = pid;
	t.readable = 1;
	algos = coll_algos(&nalgos);
	for (size_t a = 0; a < nalgos && !e; a++) {
		int ran = 0, known = 0;

		for (size_t f = 0; f < ARRAY_LEN(funcs); f++)
			known |= algos[a].func == funcs[f] && !algos[a].gpu;
		for (int i = 0; known && (bytes = pick_size(j, i)) != SIZE_MAX && !e; i++)
			for (int k = 0; k < (j->large ? 8 : 24) && !e; k++) {
				uint64_t x =
					mix64(test_seed() + a * 1000 + (uint64_t)i, (uint64_t)k);
				struct moves m = {.func = algos[a].func,
					.n = n,
					.root = (int)((x >> 32) % (uint64_t)n),
					.in_place = x >> 40 & 1,
					.block = bytes,
					.seed = x};

				ranks_note("%s, %zu bytes, variant %d", algos[a].name, bytes, k);
				e = one(j, &t, plain, algos[a].name, &m, x, &ran);
			}
		if (known && !e && ran == 0) {
			rank_fail(__FILE__, __LINE__, "%s took no call at all", algos[a].name);
			e = 1;
		}
	}
	free(plain[0]);
	free(plain[1]);
	return e;
}

static void run_matrix(int n, int threads, int nctas, int large)
{
	struct job j = {.threads = threads, .large = large};
	char err[1024];

	test_seed();
	cr_assert_eq(rig_open(&j.rig, n, nctas, (size_t)n * (large ? 310000 : 6000) + 4096), 0);
	cr_assert_eq((threads ? ranks_run_threads : ranks_run)(n, 90, matrix, &j, err, sizeof(err)),
		0, "%d ranks, %d CTAs: %s", n, nctas, err);
	rig_close(&j.rig);
}

Test(coll_moves, threads_small)
{
	static const int n[] = {1, 2, 3, 4, 5, 8};

	for (size_t i = 0; i < ARRAY_LEN(n); i++)
		for (int nctas = 1; nctas <= 2; nctas++)
			run_matrix(n[i], 1, nctas, 0);
}

Test(coll_moves, threads_large)
{
	run_matrix(2, 1, 1, 1);
	run_matrix(3, 1, 2, 1);
	run_matrix(5, 1, 1, 1);
}

Test(coll_moves, processes)
{
	run_matrix(2, 0, 1, 0);
	run_matrix(3, 0, 2, 0);
	run_matrix(4, 0, 1, 0);
	run_matrix(2, 0, 1, 1);
	run_matrix(3, 0, 1, 1);
}
