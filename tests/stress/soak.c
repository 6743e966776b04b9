/*
 * Random legal programs on four ranks, as processes, as threads, and as both: calls of every kind
 * and size, groups of many messages with a collective among them, calls on several streams, windows
 * given back and registered anew, communicators split, and all of it on new ones. Half a minute;
 * ten with SYMCCL_TEST_SOAK. Exit 0: passed, 1: failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "calls.h"
#include "mem.h"
#include "ranks.h"
#include "util.h"

enum { RANKS = 4, MESSAGES = 16, MOST = 30000 };

struct job {
	uint64_t seed, until; /* until: rank 0's clock */
};

/* Bytes of message i of a storm, and between whom. */
static size_t message(uint64_t seed, int i, int *from, int *to)
{
	uint64_t x = mix64(seed, (uint64_t)i);

	*from = (int)(x % RANKS);
	*to = (int)((x >> 8) % RANKS);
	return (x >> 16) % 3 ? (x >> 24) % 100 : (x >> 24) % MOST;
}

/* Queue this rank's side of all messages; every second rank its receives first. */
static int queue(struct calls_world *w, uint64_t seed, char *send, char *recv, int count, int recvs)
{
	size_t out = 0, in = 0;

	for (int i = 0; i < count; i++) {
		int from, to;
		size_t n = message(seed, i, &from, &to);

		if (from == w->rank && !recvs) {
			fill_bytes(send + out, n, seed + (uint64_t)i);
			RANK_OK(symcclSend(send + out, n, symcclUint8, to, w->c, NULL));
		}
		if (to == w->rank && recvs) {
			poison(recv + in, n);
			RANK_OK(symcclRecv(recv + in, n, symcclUint8, from, w->c, NULL));
		}
		out += from == w->rank ? n + 1 : 0;
		in += to == w->rank ? n + 1 : 0;
	}
	return 0;
}

/* A group of messages and, now and then, an all-gather. */
static int storm(struct calls_world *w, uint64_t seed)
{
	uint64_t x = mix64(seed, 77);
	int count = 1 + (int)(x % MESSAGES), first = (x >> 8 ^ (uint64_t)w->rank) & 1;
	int gathers = (x >> 16) % 3 == 0;
	/* Each rank as it likes. */
	char *send = w->send[(x >> 24) % 3], *recv = w->recv[((x >> 32) + (uint64_t)w->rank) % 3];
	size_t in = 0;

	RANK_OK(symcclGroupStart());
	RANK_TRY(queue(w, seed, send, recv, count, first));
	if (gathers) {
		fill_bytes(w->want, 100, seed + 1000 + (uint64_t)w->rank);
		RANK_OK(symcclAllGather(w->want, w->other, 100, symcclUint8, w->c, NULL));
	}
	RANK_TRY(queue(w, seed, send, recv, count, !first));
	RANK_OK(symcclGroupEnd());
	for (int i = 0; i < count; i++) {
		int from, to;
		size_t n = message(seed, i, &from, &to);

		if (to != w->rank)
			continue;
		RANK_CHECK(check_bytes(recv + in, n, seed + (uint64_t)i) == n,
			"message %d from rank %d, %zu bytes", i, from, n);
		in += n + 1;
	}
	for (int q = 0; q < RANKS && gathers; q++)
		RANK_CHECK(check_bytes(w->other + 100 * q, 100, seed + 1000 + (uint64_t)q) == 100,
			"rank %d's block of the all-gather", q);
	return 0;
}

/* Other memory under the symmetric window. */
static int anew(struct calls_world *w)
{
	RANK_OK(symcclBarrier(w->c, NULL)); /* nobody stores into the old one any more */
	RANK_OK(symcclCommWindowDeregister(w->c, w->window));
	RANK_OK(symcclMemFree(w->recv[0]));
	RANK_OK(symcclMemAlloc((void **)&w->recv[0], CALLS_ROOM));
	RANK_OK(symcclCommWindowRegister(
		w->c, w->recv[0], CALLS_ROOM, &w->window, SYMCCL_WIN_COLL_SYMMETRIC));
	return 0;
}

/* Each sum takes the one before as its input, on whatever stream, or on none. */
static int chain(struct calls_world *w, uint64_t seed)
{
	enum { STEPS = 12, STREAMS = 3 };
	uint64_t *x = (uint64_t *)(void *)w->recv[seed >> 8 & 1], want = 0;
	size_t count = 1 + mix64(seed, 1) % 100;
	symcclStream_t s[STREAMS + 1] = {NULL};

	for (int i = 0; i < STREAMS; i++)
		RANK_OK(symcclHostStreamCreate(&s[i]));
	poison(x, (STEPS + 1) * count * sizeof(*x));
	for (size_t k = 0; k < count; k++)
		x[k] = mix64(seed, 2 + k) + (uint64_t)w->rank;
	for (uint64_t i = 0; i < STEPS; i++)
		RANK_OK(symcclAllReduce(x + i * count, x + (i + 1) * count, count, symcclUint64,
			symcclSum, w->c, s[mix64(seed, 200 + i) % (STREAMS + 1)]));
	for (int i = 0; i < STREAMS; i++)
		RANK_OK(symcclHostStreamSynchronize(s[i]));
	for (size_t k = 0; k < count; k++) {
		want = mix64(seed, 2 + k) * RANKS + RANKS * (RANKS - 1) / 2;
		for (size_t i = 1; i <= STEPS; i++, want *= RANKS)
			RANK_CHECK(x[i * count + k] == want, "sum %zu of the chain, element %zu", i,
				k);
	}
	for (int i = 0; i < STREAMS; i++)
		RANK_OK(symcclHostStreamDestroy(s[i]));
	return 0;
}

/* Some of the ranks in another order, or two halves at once: a window and calls of their own. */
static int part(struct calls_world *w, uint64_t seed)
{
	struct calls_world sub = *w;
	int color[RANKS], key[RANKS];
	struct calls_one o;

	for (int r = 0; r < RANKS; r++) {
		color[r] = (int)(mix64(seed, (uint64_t)r) % 3);
		key[r] = (int)(mix64(seed, 10 + (uint64_t)r) % 1000);
		if (color[r] == 2)
			color[r] = SYMCCL_SPLIT_NOCOLOR;
	}
	sub.n = sub.rank = 0;
	for (int r = 0; r < RANKS; r++) {
		if (color[r] != color[w->rank])
			continue;
		sub.n++;
		sub.rank += key[r] < key[w->rank] || (key[r] == key[w->rank] && r < w->rank);
	}
	RANK_OK(symcclCommSplit(w->c, color[w->rank], key[w->rank], &sub.c, NULL));
	RANK_CHECK((sub.c == NULL) == (color[w->rank] == SYMCCL_SPLIT_NOCOLOR), "the new one");
	if (sub.c == NULL)
		return 0;
	RANK_OK(symcclCommWindowRegister(
		sub.c, sub.recv[0], CALLS_ROOM, &sub.window, SYMCCL_WIN_COLL_SYMMETRIC));
	for (uint64_t i = 0; i < 8; i++)
		if (calls_pick(sub.n, mix64(seed, 20 + i), mix64(seed, 30 + i) % calls_all(), &o))
			RANK_TRY(calls_run(&sub, &o));
	RANK_OK(symcclCommWindowDeregister(sub.c, sub.window));
	RANK_OK(symcclCommDestroy(sub.c));
	return 0;
}

static int step(struct calls_world *w, uint64_t seed)
{
	struct calls_one o;

	if (seed % 8 == 0)
		return storm(w, seed);
	if (seed % 128 == 1)
		return anew(w);
	if (seed % 128 == 2)
		return part(w, seed);
	if (seed % 64 == 3)
		return chain(w, seed);
	if (!calls_pick(RANKS, seed, mix64(seed, 1) % calls_all(), &o))
		return 0;
	return calls_run(w, &o);
}

static int program(int rank, int n, void *arg)
{
	const struct job *j = arg;
	struct calls_world w = {.rank = rank, .n = n};
	unsigned char more = 1;
	int e = 0;

	RANK_TRY(calls_open(&w));
	for (int i = 0; more && !e; i++) {
		ranks_note("step %d of seed %#llx", i, (unsigned long long)j->seed);
		e = step(&w, mix64(j->seed, (uint64_t)i));
		if (!e && i % 16 == 0) {
			more = i < 4000 && now_ns() < j->until;
			RANK_OK(symcclBroadcast(&more, &more, 1, symcclUint8, 0, w.c, NULL));
		}
	}
	if (e)
		symcclCommAbort(w.c);
	return e ? e : calls_close(&w);
}

int main(void)
{
	uint64_t seed = test_seed(), second = 1000000000u;
	uint64_t end = now_ns() + (getenv("SYMCCL_TEST_SOAK") ? 600 : 30) * second;
	char err[1024] = "";
	int e = 0, rounds = 0;

	/* A communicator lives for some seconds at most. */
	for (; now_ns() < end && !e; rounds++) {
		struct job j = {.seed = seed + (uint64_t)rounds};

		j.until = MIN(end, now_ns() + 5 * second);
#ifdef __SANITIZE_THREAD__ /* follows no forks */
		e = ranks_run_threads(RANKS, 120, program, &j, err, sizeof(err));
#else
		if (rounds % 3 == 0)
			e = ranks_run(RANKS, 120, program, &j, err, sizeof(err));
		else if (rounds % 3 == 1)
			e = ranks_run_threads(RANKS, 120, program, &j, err, sizeof(err));
		else
			e = ranks_run_mixed(2, RANKS, 120, program, &j, err, sizeof(err));
#endif
	}
	if (e)
		fprintf(stderr, "round %d: %s\n", rounds - 1, err);
	printf("%d communicators\n", rounds);
	return e;
}
