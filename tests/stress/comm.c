/*
 * Ranks as threads of one process, under TSan: communicators made, used, aborted and destroyed
 * while others of the process live; registrations in flight; errors asked for from other threads.
 * Exit 0: passed, 1: failed.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "symccl.h"

enum { RANKS = 3, ROUNDS = 8, WINDOWS = 4, BYTES = 40000 };

static symcclUniqueId id[ROUNDS][2];
static int failed;

#define CHECK(cond, ...) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "comm stress: %s: ", #cond); \
			fprintf(stderr, __VA_ARGS__); \
			fprintf(stderr, " (%s)\n", symcclGetLastError(NULL)); \
			__atomic_store_n(&failed, 1, __ATOMIC_RELAXED); \
			return NULL; \
		} \
	} while (0)
#define OK(call) CHECK((call) == symcclSuccess, "call failed")

struct rank {
	int rank;
	symcclComm_t watched; /* read by the watcher of this round */
	int stop;
};

/* Another thread may always ask how things stand. */
static void *watch(void *arg)
{
	struct rank *r = arg;
	symcclResult_t e;

	while (!__atomic_load_n(&r->stop, __ATOMIC_ACQUIRE)) {
		OK(symcclCommGetAsyncError(r->watched, &e));
		(void)symcclGetLastError(r->watched);
	}
	return NULL;
}

static void *work(symcclComm_t c, int rank)
{
	symcclRequest_t req[WINDOWS];
	symcclWindow_t win[WINDOWS];
	unsigned char *p[WINDOWS], out[RANKS * 100], in[100];
	void *peer;

	for (int i = 0; i < WINDOWS; i++) {
		OK(symcclMemAlloc((void **)&p[i], BYTES));
		memset(p[i], rank * 10 + i, BYTES);
		OK(symcclCommWindowRegisterAsync(
			c, p[i], BYTES, &win[i], SYMCCL_WIN_COLL_SYMMETRIC, &req[i]));
		memset(in, rank + i, sizeof(in));
		OK(symcclAllGather(in, out, sizeof(in), symcclInt8, c, NULL));
		for (int k = 0; k < RANKS * 100; k++)
			CHECK(out[k] == k / 100 + i, "byte %d is %d", k, out[k]);
	}
	for (int i = 0; i < WINDOWS; i++)
		OK(symcclRequestWait(req[i]));
	OK(symcclBarrier(c, NULL));
	for (int i = 0; i < WINDOWS; i++) {
		OK(symcclWinGetPeerPtr(c, win[i], (rank + 1) % RANKS, BYTES - 1, &peer));
		CHECK(*(unsigned char *)peer == (rank + 1) % RANKS * 10 + i, "window %d", i);
	}
	OK(symcclBarrier(c, NULL));
	for (int i = 0; i < WINDOWS; i++) {
		OK(symcclCommWindowDeregister(c, win[i]));
		OK(symcclMemFree(p[i]));
	}
	return c;
}

static void *run(void *arg)
{
	struct rank *r = arg;
	symcclComm_t a, b;
	pthread_t watcher;

	for (int i = 0; i < ROUNDS; i++) {
		OK(symcclCommInitRank(&a, RANKS, id[i][0], r->rank));
		r->watched = a;
		r->stop = 0;
		CHECK(pthread_create(&watcher, NULL, watch, r) == 0, "no thread");
		OK(symcclCommInitRank(&b, RANKS, id[i][1], RANKS - 1 - r->rank));
		if (work(a, r->rank) == NULL || work(b, RANKS - 1 - r->rank) == NULL)
			return NULL;
		__atomic_store_n(&r->stop, 1, __ATOMIC_RELEASE);
		pthread_join(watcher, NULL);
		OK(symcclCommDestroy(a));
		if (i % 2 == 0) {
			OK(symcclCommDestroy(b));
		} else if (r->rank == i % RANKS) {
			OK(symcclCommAbort(b));
		} else {
			while (symcclBarrier(b, NULL) == symcclSuccess)
				;
			OK(symcclCommDestroy(b));
		}
	}
	return NULL;
}

int main(void)
{
	struct rank r[RANKS] = {{0}};
	pthread_t t[RANKS];

	/* Sanitizers have little address space to give. */
	setenv("SYMCCL_WIN_STRIDE", "256M", 0);
	for (int i = 0; i < ROUNDS; i++)
		for (int k = 0; k < 2; k++)
			if (symcclGetUniqueId(&id[i][k]) != symcclSuccess)
				return 1;
	for (int i = 0; i < RANKS; i++) {
		r[i].rank = i;
		if (pthread_create(&t[i], NULL, run, &r[i]) != 0)
			return 1;
	}
	for (int i = 0; i < RANKS; i++)
		pthread_join(t[i], NULL);
	return failed;
}
