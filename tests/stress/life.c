/*
 * What threads may do at the same time: ranks as threads, each with collectives on streams, splits
 * and shrinks of its own, while another thread asks, and in the end aborts or revokes. For TSan.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "error.h"
#include "symccl.h"

#define N 4
#define ROUNDS 6
#define STEPS 12

static symcclComm_t comm[N];
static symcclUniqueId id;
static pthread_barrier_t gate;
static int round_no, failures;

static void bad(const char *what, symcclResult_t e)
{
	fprintf(stderr, "round %d, %s: %s: %s\n", round_no, what, error_name(e), error_text());
	__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
}

static void expect(const char *what, symcclResult_t got, symcclResult_t want)
{
	if (got != want)
		bad(what, got);
}

/* Two streams, a child now and then; ends with the first error, which the abort makes. */
static void work(int rank)
{
	symcclStream_t s[2];
	symcclComm_t sub;
	uint64_t x[STEPS + 1] = {1}, want = 1;
	symcclResult_t e = symcclSuccess;

	expect("stream", symcclHostStreamCreate(&s[0]), symcclSuccess);
	expect("stream", symcclHostStreamCreate(&s[1]), symcclSuccess);
	for (int i = 0; i < STEPS && e == symcclSuccess; i++)
		e = symcclAllReduce(
			&x[i], &x[i + 1], 1, symcclUint64, symcclSum, comm[rank], s[i % 2]);
	if (e == symcclSuccess)
		e = symcclCommSplit(comm[rank], rank % 2, 0, &sub, NULL);
	if (e == symcclSuccess) {
		e = symcclBarrier(sub, s[0]);
		symcclCommDestroy(sub);
	}
	expect("work", e, symcclSuccess);
	expect("work", symcclHostStreamSynchronize(s[0]), symcclSuccess);
	expect("work", symcclHostStreamSynchronize(s[1]), symcclSuccess);
	for (int i = 0; i < STEPS; i++)
		want *= N;
	if (x[STEPS] != want)
		bad("sum", symcclInternalError);
	pthread_barrier_wait(&gate);
	/* Until somebody stops it. */
	for (int i = 0; e == symcclSuccess; i++)
		e = symcclBarrier(comm[rank], i % 3 ? s[0] : NULL);
	expect("streams", symcclHostStreamDestroy(s[1]), symcclSuccess);
	symcclHostStreamDestroy(s[0]);
}

static void *rank_main(void *arg)
{
	int rank = (int)(long)arg;
	symcclComm_t less;

	expect("init", symcclCommInitRank(&comm[rank], N, id, rank), symcclSuccess);
	pthread_barrier_wait(&gate);
	work(rank);
	pthread_barrier_wait(&gate);
	/* Rank 0's handle has been aborted in every other round. */
	if (round_no % 2 == 0) {
		if (rank != 0)
			expect("shrink",
				symcclCommShrink(
					comm[rank], &(int){0}, 1, &less, NULL, SYMCCL_SHRINK_ABORT),
				symcclSuccess);
	} else {
		expect("split", symcclCommSplit(comm[rank], 0, 0, &less, NULL), symcclSuccess);
	}
	if (rank != 0 || round_no % 2 == 1) {
		expect("after", symcclBarrier(less, NULL), symcclSuccess);
		symcclCommDestroy(less);
		symcclCommDestroy(comm[rank]);
	}
	return NULL;
}

int main(void)
{
	pthread_t t[N];
	symcclResult_t async;

	setenv("SYMCCL_DEVICE", "host", 1);
	setenv("SYMCCL_DEBUG", "none", 1);
	for (round_no = 0; round_no < ROUNDS; round_no++) {
		pthread_barrier_init(&gate, NULL, N + 1);
		expect("id", symcclGetUniqueId(&id), symcclSuccess);
		for (long r = 0; r < N; r++)
			if (pthread_create(&t[r], NULL, rank_main, (void *)r))
				return 1;
		pthread_barrier_wait(&gate);
		for (int i = 0; i < 20; i++) {
			symcclCommGetAsyncError(comm[i % N], &async);
			(void)symcclGetLastError(comm[i % N]);
		}
		pthread_barrier_wait(&gate);
		usleep(2000);
		if (round_no % 2 == 0)
			symcclCommAbort(comm[0]);
		else
			expect("revoke", symcclCommRevoke(comm[0], 0), symcclSuccess);
		pthread_barrier_wait(&gate);
		for (int r = 0; r < N; r++)
			pthread_join(t[r], NULL);
		pthread_barrier_destroy(&gate);
	}
	return failures != 0;
}
