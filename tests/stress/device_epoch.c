/*
 * Ranks, each of several CTAs of one thread, run a long sequence of packet exchanges and barriers
 * with grids that change from call to call, across the end of a flag's period, as GPU kernels do.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/barrier.h"
#include "device/packet.h"

#define RANKS 3
#define CTAS 2
#define CALLS 3000
#define SLOTS 64

static struct dev_team team[RANKS];
static struct dev_record record[RANKS];
static pthread_barrier_t grid[RANKS]; /* a kernel begins when the one before is complete */
static uint32_t words[RANKS];         /* plain memory that barriers order */
static int wrong;

static uint32_t mix(uint32_t a)
{
	a ^= a >> 16;
	a *= 0x7feb352d;
	a ^= a >> 15;
	a *= 0x846ca68b;
	return a ^ a >> 16;
}
static void complain(const char *what, uint32_t call, uint32_t rank)
{
	if (!__atomic_exchange_n(&wrong, 1, __ATOMIC_RELAXED))
		fprintf(stderr, "call %u rank %u: %s\n", call, rank, what);
}

/* Everybody sends everybody `packs` packets, by whatever CTA. */
static int exchange(const struct dev_team *t, const struct dev_epoch *e, const struct dev_watch *w,
	uint32_t call, uint32_t cta, uint32_t ctas)
{
	uint32_t packs = 1 + mix(call) % (SLOTS / RANKS);
	uint64_t got;

	for (uint32_t i = cta; i < packs; i += ctas)
		for (uint32_t q = 0; q < RANKS; q++)
			if (q != t->rank)
				packet_store(packet_slots(t, q, e) +
						     PACKET_BYTES * (t->rank * packs + i),
					(uint64_t)call << 32 | t->rank << 16 | i, e->flag);
	for (uint32_t i = cta; i < packs; i += ctas)
		for (uint32_t q = 0; q < RANKS; q++) {
			const char *slot =
				packet_slots(t, t->rank, e) + PACKET_BYTES * (q * packs + i);

			if (q == t->rank)
				continue;
			if (packet_await(t, e, w, slot, q, cta, &got))
				return 1;
			if (got != ((uint64_t)call << 32 | q << 16 | i))
				complain("a packet of another call", call, t->rank);
		}
	return 0;
}

/* Between two barriers all see what all wrote before the first. */
static int meet(const struct dev_team *t, const struct dev_epoch *e, const struct dev_watch *w,
	uint32_t call, uint32_t cta)
{
	if (cta == 0)
		words[t->rank] = call;
	if (barrier_meet(t, e, w, 0, cta, 0, 1, 0, 0))
		return 1;
	for (uint32_t q = 0; q < RANKS && cta == 0; q++)
		if (words[q] != call)
			complain("a barrier let an old word through", call, t->rank);
	return barrier_meet(t, e, w, 1, cta, 0, 1, 0, 0);
}

static void *cta_run(void *arg)
{
	uint32_t id = (uint32_t)(uintptr_t)arg, rank = id / CTAS, cta = id % CTAS;
	const struct dev_team *t = &team[rank];
	struct dev_watch w = {0, (uint64_t)(uintptr_t)&record[rank], 20000000000u, 0, 1};

	for (uint32_t call = 1; call <= CALLS; call++) {
		uint32_t ctas = 1 + mix(call * 3) % CTAS;

		pthread_barrier_wait(&grid[rank]);
		if (cta < ctas) {
			struct dev_epoch e = epoch_begin(t);
			int gave_up = e.dead != DEV_ALIVE;

			w.hash = call;
			if (cta == 0 && !gave_up) {
				epoch_prepare(t, &e, 0, 1);
				epoch_announce(t, &e, w.hash, 0, 1);
			}
			if (!gave_up)
				gave_up = mix(call * 7) % 3 ? exchange(t, &e, &w, call, cta, ctas)
							    : meet(t, &e, &w, call, cta);
			if (gave_up)
				complain("gave up", call, rank);
			epoch_end(t, cta, ctas);
		}
	}
	return NULL;
}

int main(void)
{
	const uint64_t start = DEV_FLAG_BIT - 3;
	struct dev_layout l = dev_layout(RANKS, SLOTS);
	uint64_t stride = dev_round_up(dev_ctrl_bytes(&l), 4096);
	char *memory = aligned_alloc(4096, stride * RANKS);
	pthread_t threads[RANKS * CTAS];

	if (memory == NULL)
		return 1;
	/* Scratch full of what the epochs after the wrap will wait for. */
	memset(memory, 0, stride * RANKS);
	for (uint32_t r = 0; r < RANKS; r++) {
		team[r] = (struct dev_team){(uint64_t)(uintptr_t)memory, stride, l, r, RANKS};
		team_head(&team[r])->arrivals = start << DEV_EPOCH_SHIFT;
		for (uint32_t half = 0; half < 2; half++)
			for (uint64_t i = 1; i < l.half_bytes / 4; i += 2)
				((uint32_t *)team_half(&team[r], r, half))[i] =
					DEV_FLAG_BIT + 2 * (uint32_t)(i / 4 % 5) + half;
		pthread_barrier_init(&grid[r], NULL, CTAS);
	}
	for (uintptr_t i = 0; i < RANKS * CTAS; i++)
		if (pthread_create(&threads[i], NULL, cta_run, (void *)i) != 0)
			return 1;
	for (int i = 0; i < RANKS * CTAS; i++)
		pthread_join(threads[i], NULL);
	for (uint32_t r = 0; r < RANKS; r++)
		if (team_head(&team[r])->arrivals != (start + CALLS) << DEV_EPOCH_SHIFT)
			complain("the epoch is off", CALLS, r);
	free(memory);
	return wrong;
}
