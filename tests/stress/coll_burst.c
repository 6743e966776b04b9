/*
 * Random collectives between threads, two teams a rank, for TSan: the payload that a flag announces
 * must be ordered by that flag alone. Two seconds per team size, a minute with SYMCCL_TEST_SOAK.
 * Exit 0: passed, 1: failed.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "coll_rig.h"
#include "mem.h"
#include "util.h"

enum { ROOM = 64 << 10, CALLS = 50, ROUNDS_MAX = 100000 };

static struct rig rig[2];
static uint64_t seed;
static int failed;     /* atomic */
static int last_round; /* atomic: set by rank 0, read after a barrier of the calls themselves */

static void *rank_main(void *arg)
{
	int rank = *(int *)arg;
	struct rig_plain plain = {malloc(ROOM), malloc(ROOM)};
	uint64_t end = now_ns();
	struct coll_team t[2];
	char why[512];

	end += (getenv("SYMCCL_TEST_SOAK") ? 60 : 2) * (uint64_t)1000000000;
	rig_team(&rig[0], rank, &t[0]);
	rig_team(&rig[1], rig[1].n - 1 - rank, &t[1]);
	for (int i = 0; i < ROUNDS_MAX; i++) {
		const struct rig *r = &rig[i & 1];

		if (rig_burst(r, &t[i & 1], &plain, seed + (uint64_t)i, CALLS, 2000, why,
			    sizeof(why))) {
			fprintf(stderr, "%d ranks, round %d: %s\n", r->n, i, why);
			__atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
			__atomic_store_n(rig[0].abort, 1, __ATOMIC_RELAXED);
			__atomic_store_n(rig[1].abort, 1, __ATOMIC_RELAXED);
			break;
		}
		/* Rank 0 says which round is the last one, a round ahead of it: nobody can be two
		 * rounds further than rank 0. */
		if (rank == 0 && now_ns() > end && last_round == ROUNDS_MAX)
			__atomic_store_n(&last_round, i + 2, __ATOMIC_RELEASE);
		if (i >= __atomic_load_n(&last_round, __ATOMIC_ACQUIRE))
			break;
	}
	free(plain.send);
	free(plain.recv);
	return NULL;
}

int main(void)
{
	static const int sizes[] = {2, 3, 8};

	seed = test_seed();
	for (size_t k = 0; k < ARRAY_LEN(sizes) && !failed; k++) {
		pthread_t th[8];
		int n = sizes[k], rank[8];

		last_round = ROUNDS_MAX;
		if (rig_open(&rig[0], n, 1, ROOM) || rig_open(&rig[1], n, 2, ROOM))
			return 1;
		rig_seed(&rig[0], 0xffffffffu - 500);
		for (int i = 0; i < n; i++) {
			rank[i] = i;
			if (pthread_create(&th[i], NULL, rank_main, &rank[i]))
				return 1;
		}
		for (int i = 0; i < n; i++)
			pthread_join(th[i], NULL);
		rig_close(&rig[0]);
		rig_close(&rig[1]);
	}
	return failed;
}
