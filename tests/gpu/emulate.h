/*
 * The GPU kernels, the very source, compiled for threads of a CPU: the machine that machine.cuh
 * asks for, and all kernels by name (EMULATE_FEW: sums of floats). Compile with
 * -DDEV_CTA_THREADS=n, the threads of a CTA. No C++ library is needed.
 */
#ifndef EMULATE_H
#define EMULATE_H

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "device/port.h"
#undef cpu_relax
#define cpu_relax() sched_yield()
#include "direct.cuh"
#include "multimem.cuh"
#include "packets.cuh"
#include "ring.cuh"
#include "route.cuh"
#include "staged.cuh"
#undef cpu_relax
#include "kernels.def"
#ifdef EMULATE_FEW /* for what is the same in all classes */
#undef CUDA_ELEMS
#undef CUDA_OPS
#undef CUDA_FIXED_ELEMS
#undef CUDA_MULTIMEM_ELEMS
#define CUDA_ELEMS(X) X(f32)
#define CUDA_OPS(X, arg) X(arg, sum)
#define CUDA_FIXED_ELEMS(X, n) X(f32, sum, n)
#define CUDA_MULTIMEM_ELEMS(X) X(f32)
#endif

/* ---- The machine --------------------------------------------------------------------------- */

struct cta_state {
	pthread_mutex_t lock;
	uint32_t arrived, turn, any, last_any;
	char shared[8 * DEV_RANKS_MAX];
};
static thread_local uint32_t my_cta, my_ctas, my_thread, my_lag;
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

	if (my_lag && my_thread == 0)
		usleep(my_lag);
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

/* ---- Kernels by name ------------------------------------------------------------------------- */

typedef void (*kernel_fn)(const void *args);

#define ENTRY_ANY(elem, op) \
	{"symccl_" ALGO_NAME "_" #elem "_" #op, \
		[](const void *a) { ALGO<elem, OP_##op, 0>(*(const struct cuda_args *)a); }, \
		sizeof(struct cuda_args)},
#define ENTRY_FIXED(elem, op, n) \
	{"symccl_" ALGO_NAME "_" #elem "_" #op "_" #n, \
		[](const void *a) { ALGO<elem, OP_##op, n>(*(const struct cuda_args *)a); }, \
		sizeof(struct cuda_args)},
#define ENTRIES_ANY(elem) CUDA_OPS(ENTRY_ANY, elem)
#define ENTRIES_FIXED(n) CUDA_FIXED_ELEMS(ENTRY_FIXED, n)
#define ENTRIES CUDA_ELEMS(ENTRIES_ANY) CUDA_FIXED_RANKS(ENTRIES_FIXED)
#define ENTRY_OF(type, name, call) \
	{"symccl_" name, [](const void *a) { call(*(const struct type *)a); }, sizeof(struct type)},
#define ENTRY_MOVE(name, call) ENTRY_OF(cuda_args, name, call)
#define ENTRY_MULTIMEM(elem) \
	ENTRY_MOVE("allreduce_multimem_" #elem "_sum", (allreduce_multimem<elem, OP_sum, 0>)) \
	ENTRY_MOVE( \
		"reducescatter_multimem_" #elem "_sum", (reducescatter_multimem<elem, OP_sum, 0>))
#define ENTRY_GATHER(n) ENTRY_MOVE("allgather_packet_" #n, allgather_packet<n>)

static const struct kernel_entry {
	const char *name;
	kernel_fn fn;
	size_t bytes; /* of its argument */
} kernel_entries[] = {
#define ALGO allreduce_oneshot
#define ALGO_NAME "allreduce_oneshot"
	ENTRIES
#undef ALGO
#undef ALGO_NAME
#define ALGO allreduce_twostep
#define ALGO_NAME "allreduce_twostep"
		ENTRIES
#undef ALGO
#undef ALGO_NAME
#define ALGO allreduce_direct
#define ALGO_NAME "allreduce_direct"
			ENTRIES
#undef ALGO
#undef ALGO_NAME
#define ALGO reducescatter_packet
#define ALGO_NAME "reducescatter_packet"
				ENTRIES
#undef ALGO
#undef ALGO_NAME
#define ALGO reducescatter_direct
#define ALGO_NAME "reducescatter_direct"
					ENTRIES
#undef ALGO
#undef ALGO_NAME
#define ALGO reduce_staged
#define ALGO_NAME "reduce_staged"
						ENTRIES
#undef ALGO
#undef ALGO_NAME
							/* clang-format off */
	CUDA_FIXED_RANKS(ENTRY_GATHER)
	ENTRY_MOVE("allgather_packet", allgather_packet<0>)
	ENTRY_MOVE("allgather_direct", allgather_direct)
	ENTRY_MOVE("allgather_staged", allgather_staged)
	ENTRY_MOVE("barrier", barrier)
	ENTRY_MOVE("allgather_multimem", allgather_multimem)
	CUDA_MULTIMEM_ELEMS(ENTRY_MULTIMEM)
	ENTRY_MOVE("move_packet", move_packet)
	ENTRY_MOVE("push_direct", push_direct)
	ENTRY_OF(cuda_messages, "messages", messages)
	ENTRY_OF(cuda_signal, "signal", put_signal)
	ENTRY_OF(cuda_waits, "waits", wait_signals)
};
/* clang-format on */
enum { KERNEL_ENTRIES = sizeof(kernel_entries) / sizeof(kernel_entries[0]) };

/* ---- Running --------------------------------------------------------------------------------- */

struct job {
	kernel_fn fn;
	void *args; /* the grid's */
	uint32_t cta, ctas, thread, lag;
	struct cta_state *state;
	pthread_t id;
};

static void *job_run(void *arg)
{
	struct job *j = (struct job *)arg;

	my_cta = j->cta;
	my_ctas = j->ctas;
	my_thread = j->thread;
	my_lag = j->lag;
	my_state = j->state;
	j->fn(j->args);
	return NULL;
}

/* Start a grid; grid_join waits for it and frees it. lag: microseconds that each CTA dawdles before
 * its threads meet. NULL: no memory, no threads. */
static struct job *grid_start(
	const struct kernel_entry *k, const void *args, uint32_t ctas, uint32_t lag)
{
	uint32_t n = ctas * DEV_CTA_THREADS;
	struct job *jobs = (struct job *)calloc(n, sizeof(*jobs));
	void *copy = malloc(k->bytes);
	struct cta_state *states = (struct cta_state *)calloc(ctas, sizeof(*states));
	pthread_attr_t attr;

	if (copy)
		memcpy(copy, args, k->bytes);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 1 << 20);
	for (uint32_t i = 0; jobs && states && copy && i < n; i++) {
		struct job *j = &jobs[i];

		j->fn = k->fn;
		j->args = copy;
		j->cta = i / DEV_CTA_THREADS;
		j->ctas = ctas;
		j->thread = i % DEV_CTA_THREADS;
		j->lag = lag;
		j->state = &states[j->cta];
		if (j->thread == 0)
			pthread_mutex_init(&j->state->lock, NULL);
		if (pthread_create(&j->id, &attr, job_run, j) != 0)
			abort();
	}
	pthread_attr_destroy(&attr);
	return jobs;
}
static void grid_join(struct job *jobs)
{
	uint32_t n = jobs[0].ctas * DEV_CTA_THREADS;

	for (uint32_t i = 0; i < n; i++)
		pthread_join(jobs[i].id, NULL);
	free(jobs[0].args);
	free(jobs[0].state);
	free(jobs);
}

#endif
