/*
 * Eight ranks as threads, two teams each, reductions mixed with gathers and barriers of random
 * sizes, for TSan: results must be ordered by the flags alone. Three seconds, a minute with
 * SYMCCL_TEST_SOAK. Exit 0: passed, 1: failed.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "coll_rig.h"
#include "mem.h"
#include "util.h"

enum { RANKS = 8, ROOM = 256 << 10, CALLS = 20, MOST = 2000, ROUNDS_MAX = 1000000 };

static const struct {
	symcclDataType_t type;
	int op;
} kinds[] = {{symcclFloat32, symcclSum}, {symcclBfloat16, symcclAvg}, {symcclInt8, RIG_PREMUL},
	{symcclFloat64, symcclMax}};

static struct rig rig[2];
static struct rig_data data[ARRAY_LEN(kinds)];
static uint64_t seed, end;
static int failed;                  /* atomic */
static int last_round = ROUNDS_MAX; /* atomic: set by rank 0 */

/* A reduction: any algorithm, the same for all ranks that give the same seed. */
static int reduction(const struct rig *r, struct coll_team *t, const struct rig_plain *plain,
	uint64_t s, char *why, size_t whylen)
{
	const struct rig_data *d = &data[s % ARRAY_LEN(kinds)];
	const struct coll_algo *a;
	struct rig_call c = {0};
	size_t n;
	int ran;

	a = coll_algos(&n);
	a += (s >> 8) % n;
	if (a->func == symcclFuncAllReduce || a->func == symcclFuncReduceScatter) {
		c.func = a->func;
		c.algo = a->gpu ? "" : a->name;
	} else {
		c.func = symcclFuncAllReduce;
		c.algo = "";
	}
	/* Now and then several chunks. */
	c.count = (s >> 16) % (s >> 28 & 15 ? MOST : 150000 / (size_t)(d->n)) /
		  coll_type_size(d->type);
	c.send = (enum rig_memory)((s >> 32) % RIG_MEMORIES);
	c.recv = (enum rig_memory)((s >> 36) % RIG_MEMORIES);
	c.send_at = RIG_GUARD + (s >> 40) % 64;
	c.recv_at = RIG_GUARD + (s >> 48) % 64;
	c.in_place = (s >> 56) % 4 == 0;
	return rig_reduce(r, t, plain, &c, d, s, &ran, why, whylen);
}

static int round_of(const struct rig *r, struct coll_team *t, const struct rig_plain *plain,
	uint64_t s, char *why, size_t whylen)
{
	for (int k = 0; k < CALLS; k++) {
		if (reduction(r, t, plain, mix64(s, (uint64_t)k), why, whylen))
			return 1;
		if (k % 4 == 0 && rig_burst(r, t, plain, s + (uint64_t)k, 1, MOST, why, whylen))
			return 1;
	}
	return 0;
}

static void *rank_main(void *arg)
{
	int rank = *(int *)arg;
	struct rig_plain plain = {malloc(ROOM), malloc(ROOM)};
	struct coll_team t[2];
	char why[512];

	rig_team(&rig[0], rank, &t[0]);
	rig_team(&rig[1], RANKS - 1 - rank, &t[1]);
	for (int i = 0; i < ROUNDS_MAX; i++) {
		uint64_t s = mix64(seed, (uint64_t)i);

		if (round_of(&rig[s & 1], &t[s & 1], &plain, s, why, sizeof(why))) {
			fprintf(stderr, "round %d: %s\n", i, why);
			__atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
			__atomic_store_n(rig[0].abort, 1, __ATOMIC_RELAXED);
			__atomic_store_n(rig[1].abort, 1, __ATOMIC_RELAXED);
			break;
		}
		/* Rank 0 says which round is the last one, a round ahead of it: a round's calls let
		 * nobody be two rounds further than rank 0. */
		if (rank == 0 && now_ns() > end && last_round == ROUNDS_MAX)
			__atomic_store_n(&last_round, i + 2, __ATOMIC_RELEASE);
		if (i >= __atomic_load_n(&last_round, __ATOMIC_ACQUIRE)) {
			if (rank == 0)
				printf("%d rounds\n", i + 1);
			break;
		}
	}
	free(plain.send);
	free(plain.recv);
	return NULL;
}

int main(void)
{
	pthread_t th[RANKS];
	int rank[RANKS];

	seed = test_seed();
	end = now_ns() + (getenv("SYMCCL_TEST_SOAK") ? 60 : 3) * (uint64_t)1000000000;
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
		if (rig_data_open(&data[k], kinds[k].type, kinds[k].op, RANKS, seed + k))
			return 1;
	if (rig_open(&rig[0], RANKS, 1, ROOM) || rig_open(&rig[1], RANKS, 2, ROOM))
		return 1;
	rig_seed(&rig[0], 0xffffffffu - 300);
	for (int i = 0; i < RANKS; i++) {
		rank[i] = i;
		if (pthread_create(&th[i], NULL, rank_main, &rank[i]))
			return 1;
	}
	for (int i = 0; i < RANKS; i++)
		pthread_join(th[i], NULL);
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
		rig_data_close(&data[k]);
	rig_close(&rig[0]);
	rig_close(&rig[1]);
	return failed;
}
