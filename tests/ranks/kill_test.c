/*
 * A rank dies at a random instant of each kind of call: the others get an error that names it,
 * soon, and go on without it. Twenty deaths; 200 of each kind with SYMCCL_TEST_SOAK.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
#include "mem.h"
#include "ranks.h"
#include "symccl.h"
#include "util.h"

TestSuite(kill, .timeout = 3000);

enum { RANKS = 3, MOST = 100000, KINDS = 12 };

struct job {
	int kind, window;
	uint64_t seed;
};

struct buffers {
	char *send, *recv;
	symcclWindow_t win[2];
};

/* One call of the kind, of n elements a rank. */
static symcclResult_t call(
	symcclComm_t c, const struct job *j, const struct buffers *b, int rank, int root, size_t n)
{
	int next = (rank + 1) % RANKS, last = (rank + RANKS - 1) % RANKS;
	symcclWaitSignalDesc_t one = {.opCnt = 1, .peer = last};
	size_t counts[RANKS] = {n, n, n}, at[RANKS] = {0, n, 2 * n};
	symcclResult_t e;

	switch (j->kind) {
	case 0:
		return symcclBarrier(c, NULL);
	case 1:
		return symcclAllGather(b->send, b->recv, n, symcclUint8, c, NULL);
	case 2:
		return symcclAllReduce(b->send, b->recv, n, symcclUint8, symcclSum, c, NULL);
	case 3:
		return symcclReduceScatter(b->send, b->recv, n, symcclUint8, symcclSum, c, NULL);
	case 4:
		return symcclBroadcast(b->send, b->recv, n, symcclUint8, root, c, NULL);
	case 5:
		return symcclReduce(b->send, b->recv, n, symcclUint8, symcclSum, root, c, NULL);
	case 6:
		return symcclAlltoAll(b->send, b->recv, n, symcclUint8, c, NULL);
	case 7:
		return symcclGather(b->send, b->recv, n, symcclUint8, root, c, NULL);
	case 8:
		return symcclScatter(b->send, b->recv, n, symcclUint8, root, c, NULL);
	case 9:
		return symcclAlltoAllv(
			b->send, counts, at, b->recv, counts, at, symcclUint8, c, NULL);
	case 10:
		symcclGroupStart();
		symcclSend(b->send, n, symcclUint8, next, c, NULL);
		symcclRecv(b->recv, n, symcclUint8, last, c, NULL);
		return symcclGroupEnd();
	default:
		e = symcclPutSignal(b->send, n, symcclUint8, next, b->win[1], 0, 0, 0, 0, c, NULL);
		return e == symcclSuccess ? symcclWaitSignal(1, &one, c, NULL) : e;
	}
}

static int join(int rank, int n, symcclComm_t *comm)
{
	symcclUniqueId id;

	if (rank == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_OK(symcclCommInitRank(comm, n, id, rank));
	return 0;
}

static int prepare(symcclComm_t c, const struct job *j, struct buffers *b)
{
	size_t room = RANKS * MOST;

	if (!j->window) {
		b->send = calloc(1, room);
		b->recv = calloc(1, room);
		RANK_CHECK(b->send && b->recv, "no memory");
		return 0;
	}
	RANK_OK(symcclMemAlloc((void **)&b->send, room));
	RANK_OK(symcclMemAlloc((void **)&b->recv, room));
	RANK_OK(symcclCommWindowRegister(c, b->send, room, &b->win[0], SYMCCL_WIN_COLL_SYMMETRIC));
	RANK_OK(symcclCommWindowRegister(c, b->recv, room, &b->win[1], SYMCCL_WIN_COLL_SYMMETRIC));
	return 0;
}

/* Without the dead one. */
static int go_on(symcclComm_t c, int rank, int victim)
{
	uint64_t in = (uint64_t)rank + 1, out = 0;
	symcclComm_t rest;

	RANK_OK(symcclCommShrink(c, &victim, 1, &rest, NULL, SYMCCL_SHRINK_ABORT));
	RANK_OK(symcclAllReduce(&in, &out, 1, symcclUint64, symcclSum, rest, NULL));
	RANK_CHECK(out == RANKS * (RANKS + 1) / 2 - (uint64_t)victim - 1, "the sum is %llu",
		(unsigned long long)out);
	RANK_OK(symcclBroadcast(&out, &in, 1, symcclUint64, 1, rest, NULL));
	RANK_CHECK(in == out, "broadcast");
	RANK_OK(symcclCommDestroy(rest));
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

static int dying(int rank, int n, void *arg)
{
	const struct job *j = arg;
	int victim = (int)(j->seed % RANKS);
	struct itimerval soon = {.it_value.tv_usec = 1 + (long)(mix64(j->seed, 1) % 8000)};
	struct buffers b = {0};
	symcclResult_t e = symcclSuccess;
	symcclComm_t c;

	RANK_TRY(join(rank, n, &c));
	RANK_TRY(prepare(c, j, &b));
	ranks_expect_signal(victim, SIGALRM);
	RANK_BARRIER();
	if (rank == victim)
		setitimer(ITIMER_REAL, &soon, NULL);
	/* The victim's timer ends its loop. A root may be calls ahead of the others. */
	for (uint64_t i = 0; e == symcclSuccess; i++) {
		static const size_t sizes[] = {1, 3000, 20000, MOST};
		uint64_t x = mix64(j->seed, i);

		ranks_note("kind %d, call %llu", j->kind, (unsigned long long)i);
		e = call(c, j, &b, rank, (int)(x % RANKS), sizes[(x >> 8) % 4]);
	}
	RANK_CHECK(rank != victim, "the victim lives: %s", error_text());
	RANK_CHECK(e == symcclRemoteError, "%s: %s", error_name(e), error_text());
	return go_on(c, rank, victim);
}

/* Rank 0 sends small messages to rank 1, or broadcasts them, until the ring is full: rank 1, which
 * takes none, dies while it waits for room. Rank 2 waits, too. */
static int full(int rank, int n, void *arg)
{
	const struct job *j = arg;
	uint32_t *calls = ranks_shared(), seen = 0, v = 0;
	symcclResult_t e = symcclSuccess;
	symcclComm_t c;

	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclBarrier(c, NULL));
	ranks_expect_signal(1, SIGKILL);
	RANK_BARRIER();
	while (rank == 1) {
		usleep(5000);
		v = __atomic_load_n(calls, __ATOMIC_ACQUIRE);
		if (v > 0 && v == seen)
			ranks_die(SIGKILL);
		seen = v;
	}
	for (uint32_t i = 1; e == symcclSuccess; i++) {
		if (j->kind)
			e = symcclBroadcast(&i, &v, 1, symcclUint32, 0, c, NULL);
		else
			e = rank == 0 ? symcclSend(&i, 1, symcclUint32, 1, c, NULL)
				      : symcclRecv(&v, 1, symcclUint32, 0, c, NULL);
		if (e == symcclSuccess && rank == 0)
			__atomic_store_n(calls, i, __ATOMIC_RELEASE);
	}
	RANK_CHECK(e == symcclRemoteError, "%s: %s", error_name(e), error_text());
	RANK_CHECK(strstr(symcclGetLastError(c), "rank 1") != NULL, "%s", symcclGetLastError(c));
	return go_on(c, rank, 1);
}

Test(kill, with_its_ring_full)
{
	char err[1024];

	for (int kind = 0; kind < 2; kind++) {
		struct job j = {.kind = kind};

		cr_assert_eq(
			ranks_run(RANKS, 60, full, &j, err, sizeof(err)), 0, "%d: %s", kind, err);
	}
}

static void one_death(int kind, uint64_t seed)
{
	struct job j = {.kind = kind, .seed = seed, .window = kind == 11 || (seed >> 20) & 1};
	char err[1024];

	cr_assert_eq(ranks_run(RANKS, 30, dying, &j, err, sizeof(err)), 0,
		"kind %d, seed %#llx: %s", kind, (unsigned long long)seed, err);
}

Test(kill, at_a_random_instant)
{
	int soak = getenv("SYMCCL_TEST_SOAK") != NULL;
	uint64_t seed = test_seed();

	for (int i = 0; i < (soak ? 200 * KINDS : 20); i++)
		one_death(soak ? i % KINDS : (i + (int)(seed % KINDS)) % KINDS,
			mix64(seed, (uint64_t)i));
}
