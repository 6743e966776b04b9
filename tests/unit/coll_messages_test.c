/* Sends and receives on the rings: many at a time, any sizes, order and memory, to oneself too;
 * wrap-around of their counters; what is wrong is an error. Ranks as threads and as processes. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "coll/host/ring.h"
#include "coll_rig.h"
#include "mem.h"
#include "ranks.h"
#include "util.h"

TestSuite(coll_messages, .timeout = 100);

enum { MOST = 24, GUARD = 32 };

struct job {
	struct rig rig;
	int threads, rounds, readable;
	size_t most;
	uint64_t first; /* packets sent before, as all counters say */
	symcclFunc_t func[2];
	size_t bytes[2];
	const char *text;
};

static size_t any_bytes(uint64_t x, size_t most)
{
	switch (x % 8) {
	case 0:
		return 0;
	case 1:
		return (x >> 8) % (most + 1);
	case 2:
		return most - (x >> 8) % 100;
	case 3:
	case 4:
		return (x >> 8) % 9000;
	default:
		return (x >> 8) % 130;
	}
}

/* Message i of a round concerns two ranks; a rank's list has those that concern it, ordered by peer
 * and direction at random. */
struct list {
	struct coll_xfer x[2 * MOST];
	uint64_t key[2 * MOST], seed[2 * MOST];
	int n;
};

static int before(const struct list *l, int a, int b)
{
	return l->key[a] != l->key[b] ? l->key[a] < l->key[b] : 0;
}

static void sort(struct list *l)
{
	for (int i = 1; i < l->n; i++)
		for (int k = i; k > 0 && before(l, k, k - 1); k--) {
			struct coll_xfer x = l->x[k];
			uint64_t key = l->key[k], seed = l->seed[k];

			l->x[k] = l->x[k - 1];
			l->key[k] = l->key[k - 1];
			l->seed[k] = l->seed[k - 1];
			l->x[k - 1] = x;
			l->key[k - 1] = key;
			l->seed[k - 1] = seed;
		}
}

/* One side of a message: memory of any kind, filled or poisoned, between guards. */
static void add(const struct job *j, int rank, struct list *l, char *const plain[2], int recv,
	int peer, size_t n, size_t used[2], uint64_t round, uint64_t x, uint64_t y)
{
	struct coll_xfer *m = &l->x[l->n];
	size_t at = used[recv] + GUARD + y % 17;

	*m = (struct coll_xfer){.peer = peer, .recv = recv, .bytes = n};
	if (y >> 8 & 1)
		m->buf.ptr = plain[recv] + at;
	else
		rig_window(&j->rig, rank, y >> 9 & 1 ? RIG_SYMMETRIC : RIG_DEFAULT, 1 + recv, at,
			&m->buf);
	l->key[l->n] = mix64(mix64(round, (uint64_t)rank), (uint64_t)(peer * 2 + recv));
	l->seed[l->n++] = x;
	used[recv] = at + n + GUARD + 512; /* as far as windows' offsets differ, at most */
	memset((char *)m->buf.ptr - GUARD, 0x5a, GUARD);
	memset((char *)m->buf.ptr + n, 0x5a, GUARD);
	if (recv)
		poison(m->buf.ptr, n);
	else
		fill_bytes(m->buf.ptr, n, x);
}

static void make(
	const struct job *j, int rank, uint64_t round, char *const plain[2], struct list *l)
{
	size_t used[2] = {512, 512}; /* windows of different offsets differ by less */
	int n = j->rig.n, count = 1 + (int)(mix64(round, 99) % MOST);

	l->n = 0;
	for (int i = 0; i < count; i++) {
		uint64_t x = mix64(round, (uint64_t)i);
		int from = (int)(x % (uint64_t)n), to = (int)((x >> 16) % (uint64_t)n);
		size_t bytes = any_bytes(x >> 24, j->most);

		if (from == rank)
			add(j, rank, l, plain, 0, to, bytes, used, round, x, mix64(x, 1));
		if (to == rank)
			add(j, rank, l, plain, 1, from, bytes, used, round, x, mix64(x, 2));
	}
	sort(l);
}

static int check(const struct list *l, int rank)
{
	for (int i = 0; i < l->n; i++) {
		const char *p = l->x[i].buf.ptr;
		size_t n = l->x[i].bytes, at = check_bytes(p, n, l->seed[i]);

		RANK_CHECK(at == n, "rank %d, message %d (%s rank %d): byte %zu of %zu is wrong",
			rank, i, l->x[i].recv ? "from" : "to", l->x[i].peer, at, n);
		for (int k = 0; k < GUARD; k++)
			RANK_CHECK(p[k - GUARD] == 0x5a && p[n + (size_t)k] == 0x5a,
				"rank %d, message %d: wrote beyond it", rank, i);
	}
	return 0;
}

static void open_team(const struct job *j, int rank, struct coll_team *t, int32_t *pid)
{
	rig_team(&j->rig, rank, t);
	for (int q = 0; q < j->rig.n; q++)
		pid[q] = j->threads || q == rank ? 0 : (int32_t)ranks_pid(q);
	t->pid = pid;
	t->readable = j->readable;
}

static int messages(int rank, int n, void *arg)
{
	const struct job *j = arg;
	char *plain[2] = {malloc(j->rig.room), malloc(j->rig.room)};
	struct list *l = malloc(sizeof(*l));
	struct coll_call barrier = {.func = symcclFuncBarrier};
	int32_t pid[RIG_RANKS_MAX];
	struct coll_team t;
	struct coll_plan plan;
	int e = 0;

	RANK_CHECK(plain[0] != NULL && plain[1] != NULL && l != NULL, "no memory");
	RANK_BARRIER();
	open_team(j, rank, &t, pid);
	for (int q = 0; q < n; q++) {
		struct ring_pair *p = ring_pair(&t, q);

		p->sent = p->credit = p->taken = p->told = j->first;
		ring_answer(&t, rank, q)->tail = j->first;
	}
	RANK_BARRIER();
	for (int i = 0; i < j->rounds && !e; i++) {
		struct coll_call c = {.func = symcclFuncSendRecv, .xfer = l->x};

		ranks_note("round %d", i);
		make(j, rank, test_seed() + (uint64_t)i, plain, l);
		c.nxfers = l->n;
		RANK_OK(coll_plan(&t, &c, &plan));
		RANK_OK(coll_run_host(&t, &c, &plan));
		e = check(l, rank);
		if (i % 5 != 0)
			continue;
		RANK_OK(coll_plan(&t, &barrier, &plan));
		RANK_OK(coll_run_host(&t, &barrier, &plan));
	}
	free(plain[0]);
	free(plain[1]);
	free(l);
	return e;
}

static void run(struct job *j, int n)
{
	char err[1024];

	test_seed();
	cr_assert_eq(rig_open(&j->rig, n, 1, MOST * (j->most + 9000) + 4096), 0);
	cr_assert_eq(
		(j->threads ? ranks_run_threads : ranks_run)(n, 60, messages, j, err, sizeof(err)),
		0, "%d ranks: %s", n, err);
	rig_close(&j->rig);
}

Test(coll_messages, threads)
{
	static const int n[] = {1, 2, 3, 4, 5, 8};

	for (size_t i = 0; i < ARRAY_LEN(n); i++) {
		struct job j = {.threads = 1, .rounds = 60, .most = 40000};

		run(&j, n[i]);
	}
}

Test(coll_messages, threads_large)
{
	struct job j = {.threads = 1, .rounds = 6, .most = 2500000};

	run(&j, 2);
	run(&j, 3);
}

Test(coll_messages, processes)
{
	for (int n = 2; n <= 4; n++)
		for (int readable = 0; readable <= 1; readable++) {
			struct job j = {.rounds = 40, .most = 70000, .readable = readable};

			run(&j, n);
		}
}

Test(coll_messages, processes_large)
{
	struct job j = {.rounds = 6, .most = 2500000, .readable = 1};

	run(&j, 2);
	run(&j, 4);
}

/* Flags hold the low half of a 64-bit count. */
Test(coll_messages, counters_wrap)
{
	struct job j = {
		.threads = 1, .rounds = 60, .most = 30000, .first = ((uint64_t)1 << 32) - 40};

	run(&j, 2);
	j.first = ((uint64_t)7 << 32) - 3;
	run(&j, 3);
}

/* A rank sends many before the other receives any, one by one, in a later call. */
static int backlog(int rank, int n, void *arg)
{
	const struct job *j = arg;
	struct coll_xfer x[64];
	struct coll_call c = {.func = symcclFuncSendRecv, .xfer = x};
	char data[64][40];
	int32_t pid[RIG_RANKS_MAX];
	struct coll_team t;
	struct coll_plan plan;

	(void)n;
	RANK_BARRIER();
	open_team(j, rank, &t, pid);
	for (int i = 0; i < 64; i++) {
		if (rank == 0)
			fill_bytes(data[i], 40, test_seed() + (uint64_t)i);
		x[i] = (struct coll_xfer){
			.peer = 1 - rank, .recv = rank, .buf.ptr = data[i], .bytes = 40};
	}
	RANK_OK(coll_plan(&t, &c, &plan));
	c.nxfers = rank == 0 ? 64 : 1;
	for (int i = 0; i < 64; i += c.nxfers, c.xfer += c.nxfers)
		RANK_OK(coll_run_host(&t, &c, &plan));
	for (int i = 0; i < 64; i++)
		RANK_CHECK(
			check_bytes(data[i], 40, test_seed() + (uint64_t)i) == 40, "message %d", i);
	return 0;
}

Test(coll_messages, backlog)
{
	struct job j = {.threads = 1};
	char err[1024];

	test_seed();
	cr_assert_eq(rig_open(&j.rig, 2, 1, 4096), 0);
	cr_assert_eq(ranks_run_threads(2, 20, backlog, &j, err, sizeof(err)), 0, "%s", err);
	rig_close(&j.rig);
}

/* ---- Mistakes ------------------------------------------------------------------------------- */

/* Rank r makes call func[r] of bytes[r] bytes with the other one. Whoever notices says `text` and
 * sets the abort word, as a communicator does; the other may have returned before. */
static int mistake(int rank, int n, void *arg)
{
	const struct job *j = arg;
	size_t bytes = j->bytes[rank];
	char *buf = calloc(1, 2 * bytes + 1);
	struct coll_xfer x = {.peer = 1 - rank, .recv = rank, .buf.ptr = buf, .bytes = bytes};
	struct coll_call c = {.func = j->func[rank], .type = symcclInt8};
	int32_t pid[RIG_RANKS_MAX];
	struct coll_team t;
	struct coll_plan plan;
	symcclResult_t e;

	(void)n;
	RANK_BARRIER();
	open_team(j, rank, &t, pid);
	if (coll_is_listed(c.func)) {
		c.xfer = &x;
		c.nxfers = 1;
	} else {
		c.send.ptr = c.recv.ptr = buf;
		c.count = bytes;
	}
	RANK_OK(coll_plan(&t, &c, &plan));
	e = coll_run_host(&t, &c, &plan);
	if (e != symcclSuccess)
		__atomic_store_n(j->rig.abort, 1, __ATOMIC_RELEASE);
	if (e == symcclInvalidUsage) {
		RANK_CHECK(strstr(error_text(), j->text) != NULL, "said: %s", error_text());
		__atomic_store_n((uint32_t *)ranks_shared(), 1, __ATOMIC_RELEASE);
	} else {
		RANK_CHECK(e == symcclSuccess || e == symcclRemoteError, "result %d", (int)e);
	}
	RANK_BARRIER();
	RANK_CHECK(*(uint32_t *)ranks_shared() == 1, "nobody noticed");
	free(buf);
	return 0;
}

static void blunder(symcclFunc_t f0, size_t b0, symcclFunc_t f1, size_t b1, const char *text)
{
	struct job j = {.threads = 1, .func = {f0, f1}, .bytes = {b0, b1}, .text = text};
	char err[1024];

	cr_assert_eq(rig_open(&j.rig, 2, 1, 4096), 0);
	cr_assert_eq(
		ranks_run_threads(2, 20, mistake, &j, err, sizeof(err)), 0, "%s: %s", text, err);
	rig_close(&j.rig);
}

Test(coll_messages, mistakes)
{
	const symcclFunc_t message = symcclFuncSendRecv;

	blunder(message, 8, message, 16, "rank 0 sends rank 1 8 bytes where that expects 16");
	blunder(message, 0, message, 16, "rank 0 sends rank 1 0 bytes where that expects 16");
	blunder(message, 100000, message, 16, "sends rank 1 100000 bytes where that expects 16");
	blunder(message, 8, symcclFuncAlltoAllv, 8,
		"rank 1 calls AlltoAllv where rank 0 calls a group of sends and receives");
	/* One waits for a packet, an answer, room; the other is in a step. */
	blunder(symcclFuncBarrier, 0, message, 8, "rank 0, which has gone on to Barrier");
	blunder(message, 100000, symcclFuncAllGather, 8,
		"rank 1, which has gone on to AllGather of 8 int8");
}
