/*
 * No rank goes on without a peer: in every step of every row that all ranks leave together, each
 * peer in turn stays behind, and the rank must neither post its next step nor return. The peers are
 * played by hand, so that it does not depend on luck which of them is late.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coll_rig.h"
#include "device/slot.h"
#include "util.h"

TestSuite(coll_steps, .timeout = 100);

enum { RANKS = 3, ROOM = 4 << 20, STEPS_MAX = 64 };

static struct rig rig;

struct run {
	struct coll_team team;
	struct coll_call call;
	struct coll_plan plan;
	symcclResult_t result;
	int done; /* atomic */
};

static void *rank_0(void *arg)
{
	struct run *r = arg;

	r->result = coll_run_host(&r->team, &r->call, &r->plan);
	__atomic_store_n(&r->done, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* A peer by hand: says where its input is, as allgather/read wants to know, and no more. */
static void peer_post(const struct run *r, int peer, uint64_t epoch)
{
	struct coll_team t;
	struct step s = {.team = &t, .call = &r->call, .hash = r->plan.hash, .epoch = epoch};
	char payload[CTRL_SLOT_INLINE] = {0};
	struct coll_buf in;

	rig_team(&rig, peer, &t);
	rig_window(&rig, peer, RIG_SYMMETRIC, 1, 64, &in);
	memcpy(payload, &in.ptr, sizeof(in.ptr));
	step_post(&s, 0, payload, sizeof(payload));
}

/* Has rank 0 posted this step to the peer? */
static int posted(const struct run *r, int peer, uint64_t epoch)
{
	struct coll_team t;
	struct step s = {.team = &t, .call = &r->call, .epoch = epoch};

	rig_team(&rig, peer, &t);
	return load_acquire64(&step_slot(&s, peer, 0)->flag) >> 32 == epoch;
}

static int done(const struct run *r)
{
	return __atomic_load_n(&r->done, __ATOMIC_ACQUIRE);
}

/* Until rank 0 has posted the step to both peers, or is done. */
static void await_step(const struct run *r, uint64_t epoch)
{
	while (!done(r) && !(posted(r, 1, epoch) && posted(r, 2, epoch)))
		sched_yield();
}

/* One call during which peer `late` (0: none) stays behind in step `at`. Returns the steps. */
static int run_call(const struct coll_algo *a, size_t bytes, int late, int at)
{
	struct run r = {.call = {.func = a->func, .type = symcclInt8, .count = bytes}};
	pthread_t thread;
	int steps = 0;

	rig_seed(&rig, 0);
	rig_team(&rig, 0, &r.team);
	r.team.pid = (const int32_t[RANKS]){0};
	r.team.readable = 1;
	snprintf(r.team.tuning.algo, sizeof(r.team.tuning.algo), "%s", a->name);
	rig_window(&rig, 0, RIG_SYMMETRIC, 1, 64, &r.call.send);
	rig_window(&rig, 0, RIG_SYMMETRIC, 2, 64, &r.call.recv);
	cr_assert_eq(coll_plan(&r.team, &r.call, &r.plan), symcclSuccess);
	if (r.plan.algo != a)
		return 0; /* too large for it */
	cr_assert_eq(pthread_create(&thread, NULL, rank_0, &r), 0);
	for (uint64_t e = 1;; e++) {
		await_step(&r, e);
		if (done(&r))
			break;
		steps++;
		cr_assert_leq(steps, STEPS_MAX);
		for (int peer = 1; peer < RANKS; peer++)
			if (peer != late || steps != at)
				peer_post(&r, peer, e);
		if (late == 0 || steps != at)
			continue;
		for (int i = 0; i < 20; i++) {
			struct timespec t = {.tv_nsec = 1000000};

			nanosleep(&t, NULL);
			cr_assert_not(done(&r), "%s, %zu bytes: done without rank %d in step %d",
				a->name, bytes, late, at);
			for (int peer = 1; peer < RANKS; peer++)
				cr_assert_not(posted(&r, peer, e + 1),
					"%s, %zu bytes: in step %d without rank %d in step %d",
					a->name, bytes, at + 1, late, at);
		}
		peer_post(&r, late, e);
	}
	pthread_join(thread, NULL);
	for (int peer = 1; peer < RANKS; peer++)
		cr_assert_not(posted(&r, peer, (uint64_t)steps + 1),
			"%s, %zu bytes: done without an answer to step %d", a->name, bytes,
			steps + 1);
	cr_assert_eq(r.result, symcclSuccess, "%s: %s", a->name, error_text());
	return steps;
}

/* Every peer late in every step; chunked rows repeat theirs, so there the first ones do. */
static void try_row(const struct coll_algo *a, size_t bytes)
{
	int steps = run_call(a, bytes, 0, 0);

	/* Memory of others is theirs before and after. */
	if (a->needs)
		cr_assert_geq(steps, 2, "%s", a->name);
	for (int at = 1; at <= MIN(steps, 5); at++)
		for (int late = 1; late < RANKS; late++)
			cr_assert_eq(run_call(a, bytes, late, at), steps);
}

Test(coll_steps, waits_for_every_peer)
{
	const struct coll_algo *a;
	int rows = 0;
	size_t n;

	cr_assert_eq(rig_open(&rig, RANKS, 1, ROOM), 0);
	a = coll_algos(&n);
	for (size_t i = 0; i < n; i++) {
		if (a[i].gpu ||
			(a[i].func != symcclFuncBarrier && a[i].func != symcclFuncAllGather &&
				a[i].func != symcclFuncAllReduce &&
				a[i].func != symcclFuncReduceScatter &&
				a[i].func != symcclFuncAlltoAll))
			continue;
		rows++;
		try_row(&a[i], 24);
		try_row(&a[i], 3000);
		if (strstr(a[i].name, "/scratch") != NULL)
			try_row(&a[i], 2 * rig.layout.bulk_bytes + 100);
	}
	cr_assert_gt(rows, 10);
	rig_close(&rig);
}
