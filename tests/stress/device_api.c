/*
 * The device API on threads: ranks of CTAs of several threads run kernels one after the other, as
 * they would on a GPU, on plain memory laid out as symcclDevCommCreate() does. Barriers, packets,
 * signals, counters, put, get, reductions; flags begin just before their period ends, and signals
 * just before they wrap. `make check` runs this built with -fsanitize=thread, which sees every
 * access that nothing orders.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 3
#define CTAS 2
#define DEV_CTA_THREADS 2
#define KERNELS 300
#define EPOCHS 5 /* of each kind in a kernel */
#define SLOTS 16
#define WORDS 64 /* of a window's part */

#include "devcomm.h"

static symcclDevComm_t comm[RANKS];
static symcclDevWindow_t win[RANKS];
static struct dev_record record[RANKS];
static uint32_t abort_word;
static int wrong;

/* ---- A CTA ---------------------------------------------------------------------------------- */

static struct cta {
	pthread_mutex_t lock;
	pthread_cond_t turned;
	uint32_t arrived, turn;
	int any, last_any;
} ctas[RANKS][CTAS];
static pthread_barrier_t grid[RANKS];

static __thread struct cta *my_cta;
static __thread uint32_t my_rank, my_cta_id, my_thread, my_kernel;

uint32_t emulate_thread(void)
{
	return my_thread;
}
int emulate_sync_or(int v)
{
	struct cta *c = my_cta;
	uint32_t turn;

	pthread_mutex_lock(&c->lock);
	turn = c->turn;
	c->any |= v != 0;
	if (++c->arrived == DEV_CTA_THREADS) {
		c->last_any = c->any;
		c->any = 0;
		c->arrived = 0;
		c->turn++;
		pthread_cond_broadcast(&c->turned);
	}
	while (c->turn == turn)
		pthread_cond_wait(&c->turned, &c->lock);
	v = c->last_any;
	pthread_mutex_unlock(&c->lock);
	return v;
}
void emulate_sync(void)
{
	emulate_sync_or(0);
}

static void complain(const char *what, int got)
{
	if (!__atomic_exchange_n(&wrong, 1, __ATOMIC_RELAXED))
		fprintf(stderr, "kernel %u, rank %u, CTA %u, thread %u: %s (%d)\n", my_kernel,
			my_rank, my_cta_id, my_thread, what, got);
}
#define EXPECT(cond) \
	do { \
		if (!(cond)) \
			complain(#cond, 0); \
	} while (0)
#define OK(call) \
	do { \
		int result_ = (call); \
		if (result_ != symcclSuccess) \
			complain(#call, result_); \
	} while (0)

/* ---- Kernels -------------------------------------------------------------------------------- */

/* Plain words of the window, written before a barrier and read by the peers after it. Its parts:
 * [CTA][rank][WORDS]. */
static uint64_t *word(
	const symcclDevComm_t *c, const symcclDevWindow_t *w, int rank, int part, int source)
{
	size_t at = (size_t)((part * CTAS + (int)my_cta_id) * RANKS + source) * WORDS * 8;

	return symcclDevPeerPtr(c, w, symcclDevTeamWorld(c), rank, at);
}
static size_t offset_of(const symcclDevWindow_t *w, const void *p)
{
	return (size_t)((uintptr_t)p - (uintptr_t)symcclDevLocalPtr(w, 0));
}

static void barriers(const symcclDevComm_t *c, const symcclDevWindow_t *w, symcclDevSession_t *s)
{
	for (int k = 0; k < EPOCHS; k++) {
		uint64_t mine = my_kernel * 100 + (uint64_t)k;

		for (int q = 0; q < RANKS; q++)
			word(c, w, q, 0, c->rank)[my_thread] = mine;
		if (k % 2) {
			symcclDevBarrierArrive(s);
			OK(symcclDevBarrierWait(s));
		} else {
			OK(symcclDevBarrier(s));
		}
		/* another thread's words */
		for (int q = 0; q < RANKS; q++)
			EXPECT(word(c, w, c->rank, 0, q)[1 - my_thread] == mine);
		OK(symcclDevBarrier(s));
	}
}

static void packets(const symcclDevComm_t *c, symcclDevSession_t *s)
{
	for (int k = 0; k < EPOCHS; k++) {
		uint32_t n = 1 + (my_kernel * 7 + (uint32_t)k) % (SLOTS / RANKS);
		uint64_t tag = (uint64_t)my_kernel << 40 | (uint64_t)k << 32, got = 0;

		for (uint32_t i = my_thread; i < n; i += DEV_CTA_THREADS)
			symcclDevSendAll(
				s, (uint32_t)c->rank * n + i, tag | (uint32_t)c->rank << 16 | i);
		for (uint32_t i = (my_thread + 1) % DEV_CTA_THREADS; i < n; i += DEV_CTA_THREADS)
			for (int q = 0; q < RANKS; q++) {
				if (q == c->rank)
					continue;
				OK(symcclDevRecv(s, q, (uint32_t)q * n + i, &got));
				EXPECT(got == (tag | (uint32_t)q << 16 | i));
			}
		OK(symcclDevEndEpoch(s));
	}
}

/* Put to the next rank, whose signal tells; it answers by a signal of its own. */
static void transfers(const symcclDevComm_t *c, const symcclDevWindow_t *w, symcclDevCtx_t x)
{
	symcclDevTeam_t team = symcclDevTeamLsa(c);
	int next = (c->rank + 1) % RANKS, last = (c->rank + RANKS - 1) % RANKS;
	int ready = (int)my_cta_id, answer = CTAS + (int)my_cta_id, counter = (int)my_cta_id;
	uint64_t counted = symcclDevCounterRead(x, counter);
	uint64_t *from = word(c, w, c->rank, 1, 0), *to = word(c, w, c->rank, 1, 1),
		 *back = word(c, w, c->rank, 1, 2);

	for (int k = 0; k < EPOCHS; k++) {
		uint64_t tag = my_kernel * 1000 + (uint64_t)k * 10;
		size_t bytes = 8 * (2 + my_kernel % (WORDS - 2)) - my_kernel % 8;

		for (uint32_t i = my_thread; i < WORDS; i += DEV_CTA_THREADS)
			from[i] = tag + (uint64_t)c->rank;
		coop_sync(x.coop);
		/* signalled once, by the put, or twice */
		OK(symcclDevPutValue(x, team, next, w, offset_of(w, &to[WORDS - 1]), tag,
			k % 2 ? ready : -1, 1));
		OK(symcclDevPut(x, team, next, w, offset_of(w, to), w, offset_of(w, from), bytes,
			symcclDevNotify(ready, k % 2 ? 3 : 4, counter)));
		OK(symcclDevSignalWaitMore(x, ready, 4));
		EXPECT(to[0] == tag + (uint64_t)last);
		EXPECT(to[WORDS - 1] == tag);
		/* what this rank was sent, the sender still has: until it is answered */
		OK(symcclDevGet(
			x, team, last, w, offset_of(w, from), w, offset_of(w, back), bytes));
		coop_sync(x.coop);
		EXPECT(memcmp(back, to, bytes) == 0);
		symcclDevQuiet(x);
		OK(symcclDevSignal(x, team, last, answer, 1));
		OK(symcclDevSignalWaitMore(x, answer, 1));
		OK(symcclDevCounterWait(x, counter, counted + (uint64_t)k + 1));
	}
}

static void reduction(const symcclDevComm_t *c, const symcclDevWindow_t *w, symcclDevCtx_t x,
	symcclDevSession_t *s)
{
	uint64_t *in = word(c, w, c->rank, 2, 0), *out = word(c, w, c->rank, 2, 1);
	float *f = (float *)in, sum[2 * WORDS];

	for (uint32_t i = my_thread; i < 2 * WORDS; i += DEV_CTA_THREADS)
		f[i] = (float)((uint32_t)c->rank * my_kernel + i) / 3;
	OK(symcclDevBarrier(s));
	OK(symcclDevReduce(x, out, w, offset_of(w, in), 2 * WORDS, symcclFloat, symcclSum));
	coop_sync(x.coop);
	memcpy(sum, out, sizeof(sum));
	for (uint32_t i = 0; i < 2 * WORDS; i++) {
		float v[RANKS];

		for (uint32_t q = 0; q < RANKS; q++)
			v[q] = (float)(q * my_kernel + i) / 3;
		EXPECT(sum[i] == (v[0] + v[1]) + v[2]);
		EXPECT(symcclDevTreeSum(v, RANKS) == sum[i]);
	}
	OK(symcclDevBarrier(s));
	OK(symcclDevSpread(x, w, offset_of(w, word(c, w, c->rank, 0, c->rank)), out, WORDS * 8));
	OK(symcclDevBarrier(s));
	for (int q = 0; q < RANKS; q++)
		EXPECT(memcmp(word(c, w, c->rank, 0, q), sum, WORDS * 8) == 0);
	OK(symcclDevBarrier(s));
}

static void *thread_run(void *arg)
{
	uint32_t id = (uint32_t)(uintptr_t)arg;
	const symcclDevComm_t *c;

	my_rank = id / (CTAS * DEV_CTA_THREADS);
	my_cta_id = id / DEV_CTA_THREADS % CTAS;
	my_thread = id % DEV_CTA_THREADS;
	my_cta = &ctas[my_rank][my_cta_id];
	c = &comm[my_rank];
	for (my_kernel = 1; my_kernel <= KERNELS; my_kernel++) {
		/* every second kernel: only CTA 0, in the other context */
		int context = my_kernel % 2 ? 0 : 1;
		symcclDevCtx_t x = symcclDevCtx(c, symcclDevCta(), context);
		symcclDevSession_t s;
		uint32_t index;

		pthread_barrier_wait(&grid[my_rank]);
		if (context == 1 && my_cta_id != 0)
			continue;
		index = context == 1 ? 1 : my_cta_id;
		OK(symcclDevSessionOpen(&s, x, symcclDevTeamWorld(c), (int)index));
		if (my_kernel % 4 < 2)
			packets(c, &s);
		barriers(c, &win[my_rank], &s);
		OK(symcclDevSessionClose(&s));
		OK(symcclDevSessionOpen(&s, x, symcclDevTeamWorld(c), (int)index));
		if (my_kernel % 4 >= 2)
			packets(c, &s);
		transfers(c, &win[my_rank], x);
		reduction(c, &win[my_rank], x, &s);
		OK(symcclDevSessionClose(&s));
	}
	return NULL;
}

/* ---- Setting up -------------------------------------------------------------------------------
 */

static void comm_make(int rank, char *memory, uint64_t stride)
{
	comm[rank] = (symcclDevComm_t){.rank = rank,
		.nranks = RANKS,
		.lsaRank = rank,
		.lsaSize = RANKS,
		.contexts = 2,
		.sessions = CTAS,
		.packetSlots = SLOTS,
		.signals = 2 * CTAS,
		.counters = CTAS,
		.base = (uintptr_t)memory,
		.stride = stride};
	devcomm_layout(&comm[rank]);
	comm[rank].watch.abort = (uintptr_t)&abort_word;
	comm[rank].watch.record = (uintptr_t)&record[rank];
	comm[rank].watch.timeout_ns = 100000000000u;
	comm[rank].watch.look_every = 1; /* more threads than CPUs */
}

static uint64_t first_epoch(uint32_t block)
{
	return DEV_FLAG_BIT - 1 - block;
}

/* Blocks shortly before the period's end, full of what the epochs after it will wait for; signals
 * shortly before the wrap. */
static void comm_seed(const symcclDevComm_t *c)
{
	for (uint32_t b = 1; b <= 2 * CTAS; b++) {
		struct dev_team t = block_team(c, symcclDevTeamLsa(c), b);

		team_head(&t)->arrivals = first_epoch(b) << DEV_EPOCH_SHIFT;
		for (uint32_t half = 0; half < 2; half++)
			for (uint64_t i = 1; i < t.layout.half_bytes / 4; i += 2)
				((uint32_t *)team_half(&t, t.rank, half))[i] =
					DEV_FLAG_BIT + 2 * (uint32_t)(i / 4 % 3) + half;
	}
	for (int i = 0; i < c->signals; i++)
		*signal_word(c, c->rank, i) = *shadow_word(c, i) = (uint64_t)-7;
	for (int i = 0; i < c->counters; i++)
		*counter_word(c, i) = (uint64_t)-3;
}

int main(void)
{
	enum { THREADS = RANKS * CTAS * DEV_CTA_THREADS };
	uint64_t window = 3 * CTAS * RANKS * WORDS * 8, stride;
	pthread_t threads[THREADS];
	char *memory, *windows;

	comm_make(0, NULL, 0);
	stride = dev_round_up(comm[0].bytes, 4096);
	memory = calloc(RANKS, stride + 4096);
	windows = calloc(RANKS, window);
	if (memory == NULL || windows == NULL)
		return 1;
	for (int r = 0; r < RANKS; r++) {
		comm_make(r, (char *)(((uintptr_t)memory + 4095) & ~(uintptr_t)4095), stride);
		win[r] = (symcclDevWindow_t){.uc = (uintptr_t)windows,
			.stride = window,
			.size = window,
			.lsaRank = r,
			.lsaSize = RANKS};
		comm_seed(&comm[r]);
		pthread_barrier_init(&grid[r], NULL, CTAS * DEV_CTA_THREADS);
		for (int b = 0; b < CTAS; b++) {
			pthread_mutex_init(&ctas[r][b].lock, NULL);
			pthread_cond_init(&ctas[r][b].turned, NULL);
		}
	}
	for (uintptr_t i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, thread_run, (void *)i) != 0)
			return 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int r = 0; r < RANKS; r++)
		for (uint32_t b = 1; b <= 2 * CTAS; b++) {
			struct dev_team t = block_team(&comm[r], symcclDevTeamLsa(&comm[r]), b);
			uint64_t kernels = b == 3 ? 0 : KERNELS / 2;

			if (epoch_begin(&t).number != first_epoch(b) + kernels * (4 * EPOCHS - 1))
				complain("the epoch is off", (int)b);
		}
	free(memory);
	free(windows);
	return wrong;
}
