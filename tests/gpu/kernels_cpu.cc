/*
 * The GPU kernels, the very source, on threads of a CPU: ranks x CTAs x a few threads each. Finds
 * wrong indices, tails, trees and protocol steps where there is no GPU; with -fsanitize=thread,
 * accesses that nothing orders.
 *
 *   g++ -std=c++17 -O1 -g -pthread -ffp-contract=off -DDEV_CTA_THREADS=4 -Iinclude -Isrc
 *       -Isrc/coll/cuda -x c++ tests/gpu/kernels_cpu.cc -o kernels_cpu
 */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <map>
#include <string>
#include <vector>
#include "device/port.h"
#define cpu_relax() sched_yield()
#include "direct.cuh"
#include "packets.cuh"
#undef cpu_relax
#include "kernels.def"

/* ---- The machine --------------------------------------------------------------------------- */

struct cta_state {
	pthread_mutex_t lock;
	uint32_t arrived, turn, any, last_any;
	char shared[8 * DEV_RANKS_MAX];
};
static thread_local uint32_t my_cta, my_ctas, my_thread;
static thread_local struct cta_state *my_state;

uint32_t emulate_cta()
{
	return my_cta;
}
uint32_t emulate_ctas()
{
	return my_ctas;
}
uint32_t emulate_thread()
{
	return my_thread;
}
void *emulate_shared()
{
	return my_state->shared;
}
int emulate_sync_or(int v)
{
	struct cta_state *s = my_state;
	uint32_t turn;

	pthread_mutex_lock(&s->lock);
	turn = s->turn;
	s->any |= v != 0;
	if (++s->arrived == DEV_CTA_THREADS) {
		s->last_any = s->any;
		s->any = s->arrived = 0;
		s->turn++;
	}
	while (s->turn == turn) {
		pthread_mutex_unlock(&s->lock);
		sched_yield();
		pthread_mutex_lock(&s->lock);
	}
	v = (int)s->last_any;
	pthread_mutex_unlock(&s->lock);
	return v;
}
void emulate_sync()
{
	emulate_sync_or(0);
}

#include "kernels_body.h"

typedef void (*kernel_fn)(const struct cuda_args);
static std::map<std::string, kernel_fn> kernels;

#define ENTRY_ANY(algo, elem, op) \
	kernels["symccl_" #algo "_" #elem "_" #op] = [](const struct cuda_args a) { \
		algo<elem, OP_##op, 0>(a); \
	};
#define ENTRY_FIXED(algo, elem, op, n) \
	kernels["symccl_" #algo "_" #elem "_" #op "_" #n] = [](const struct cuda_args a) { \
		algo<elem, OP_##op, n>(a); \
	};
#define ENTRIES(algo) \
	static void entries_##algo() \
	{ \
		CUDA_ELEMS(ANY_##algo) \
		CUDA_FIXED_RANKS(FIXED_##algo) \
	}
#define ANY_OP_1(elem, op) ENTRY_ANY(allreduce_oneshot, elem, op)
#define ANY_OP_2(elem, op) ENTRY_ANY(allreduce_twostep, elem, op)
#define ANY_OP_3(elem, op) ENTRY_ANY(allreduce_direct, elem, op)
#define ANY_OP_4(elem, op) ENTRY_ANY(reducescatter_packet, elem, op)
#define ANY_OP_5(elem, op) ENTRY_ANY(reducescatter_direct, elem, op)
#define ANY_allreduce_oneshot(elem) CUDA_OPS(ANY_OP_1, elem)
#define ANY_allreduce_twostep(elem) CUDA_OPS(ANY_OP_2, elem)
#define ANY_allreduce_direct(elem) CUDA_OPS(ANY_OP_3, elem)
#define ANY_reducescatter_packet(elem) CUDA_OPS(ANY_OP_4, elem)
#define ANY_reducescatter_direct(elem) CUDA_OPS(ANY_OP_5, elem)
#define FIX_OP_1(elem, op, n) ENTRY_FIXED(allreduce_oneshot, elem, op, n)
#define FIX_OP_2(elem, op, n) ENTRY_FIXED(allreduce_twostep, elem, op, n)
#define FIX_OP_3(elem, op, n) ENTRY_FIXED(allreduce_direct, elem, op, n)
#define FIX_OP_4(elem, op, n) ENTRY_FIXED(reducescatter_packet, elem, op, n)
#define FIX_OP_5(elem, op, n) ENTRY_FIXED(reducescatter_direct, elem, op, n)
#define FIXED_allreduce_oneshot(n) CUDA_FIXED_ELEMS(FIX_OP_1, n)
#define FIXED_allreduce_twostep(n) CUDA_FIXED_ELEMS(FIX_OP_2, n)
#define FIXED_allreduce_direct(n) CUDA_FIXED_ELEMS(FIX_OP_3, n)
#define FIXED_reducescatter_packet(n) CUDA_FIXED_ELEMS(FIX_OP_4, n)
#define FIXED_reducescatter_direct(n) CUDA_FIXED_ELEMS(FIX_OP_5, n)
ENTRIES(allreduce_oneshot)
ENTRIES(allreduce_twostep)
ENTRIES(allreduce_direct)
ENTRIES(reducescatter_packet)
ENTRIES(reducescatter_direct)

#define ENTRY_GATHER(n) \
	kernels["symccl_allgather_packet_" #n] = [](const struct cuda_args a) { \
		allgather_packet<n>(a); \
	};

#define STRIDE (4u << 20)
static char *memory;
static uint32_t abort_word;
static struct dev_record records[WORLD_MAX];

uint64_t machine_base()
{
	return (uint64_t)(uintptr_t)memory;
}
uint64_t machine_stride()
{
	return STRIDE;
}
void machine_put(uint64_t to, const void *from, size_t n)
{
	memcpy((void *)to, from, n);
}
void machine_get(void *to, uint64_t from, size_t n)
{
	memcpy(to, (const void *)from, n);
}
void machine_zero(uint64_t to, size_t n)
{
	memset((void *)to, 0, n);
}
uint64_t machine_abort()
{
	return (uint64_t)(uintptr_t)&abort_word;
}
volatile uint32_t *machine_abort_host()
{
	return &abort_word;
}
uint64_t machine_record(int rank)
{
	return (uint64_t)(uintptr_t)&records[rank];
}
volatile struct dev_record *machine_record_host(int rank)
{
	return &records[rank];
}

struct job {
	kernel_fn fn;
	struct cuda_args args;
	uint32_t cta, ctas, thread;
	struct cta_state *state;
};
static std::vector<struct job> queue;

void machine_launch(
	int rank, const char *kernel, const struct cuda_args *args, int ctas, int threads)
{
	(void)rank;
	(void)threads;
	if (!kernels.count(kernel)) {
		printf("no kernel %s\n", kernel);
		exit(1);
	}
	for (int b = 0; b < ctas; b++) {
		struct cta_state *s = (struct cta_state *)calloc(1, sizeof(*s));

		pthread_mutex_init(&s->lock, NULL);
		for (int t = 0; t < DEV_CTA_THREADS; t++)
			queue.push_back({kernels[kernel], *args, (uint32_t)b, (uint32_t)ctas,
				(uint32_t)t, s});
	}
}
static void *job_run(void *arg)
{
	struct job *j = (struct job *)arg;

	my_cta = j->cta;
	my_ctas = j->ctas;
	my_thread = j->thread;
	my_state = j->state;
	j->fn(j->args);
	return NULL;
}
void machine_run()
{
	std::vector<pthread_t> threads(queue.size());
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 1 << 20);
	for (size_t i = 0; i < queue.size(); i++)
		if (pthread_create(&threads[i], &attr, job_run, &queue[i]) != 0)
			exit(1);
	for (size_t i = 0; i < queue.size(); i++)
		pthread_join(threads[i], NULL);
	for (size_t i = 0; i < queue.size(); i += DEV_CTA_THREADS)
		free(queue[i].state);
	queue.clear();
}

int main(int argc, char **argv)
{
	const uint64_t slots = 16384;
	int ranks[] = {1, 2, 3, 4, 5, 8}, grids[] = {1, 2, 3};
	size_t counts[] = {1, 2, 7, 33, 100, 517};
	int few = argc > 1 ? atoi(argv[1]) : 6;
	long done = 0, wrong = 0;

	memory = (char *)mmap(NULL, (size_t)STRIDE * WORLD_MAX, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	world_region = {2 << 20, 3 << 20, 1 << 19};
	entries_allreduce_oneshot();
	entries_allreduce_twostep();
	entries_allreduce_direct();
	entries_reducescatter_packet();
	entries_reducescatter_direct();
	CUDA_FIXED_RANKS(ENTRY_GATHER)
	kernels["symccl_allgather_packet"] = [](const struct cuda_args a) {
		allgather_packet<0>(a);
	};
	kernels["symccl_allgather_direct"] = [](const struct cuda_args a) { allgather_direct(a); };
	kernels["symccl_barrier"] = [](const struct cuda_args a) { barrier(a); };

	for (int i = 0; i < few && wrong == 0; i++) {
		wrong += cases_run(&ranks[i], 1, counts, 6, grids, 3, slots, &done);
		printf("%d ranks: %ld cases, %ld wrong\n", ranks[i], done, wrong);
		fflush(stdout);
	}
	wrong += wrap_run(2, 512) + wrap_run(3, 512);
	printf("%ld wrong after the wrap\n", wrong);
	return wrong != 0;
}
