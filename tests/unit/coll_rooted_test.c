/* Rooted calls of one packet: who sends runs ahead until the ring is full, and no further; counters
 * wrap meanwhile; what does not match is named, also where slots have said something else before.
 */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "coll/host/ring.h"
#include "coll_rig.h"
#include "mem.h"
#include "ranks.h"
#include "util.h"

TestSuite(coll_rooted, .timeout = 100);

enum { CALLS = 100, MOST = 4096 };

struct job {
	struct rig rig;
	uint64_t first; /* packets sent before, as all counters say */
	symcclFunc_t func[2];
	size_t count[2];
	const char *text;
};

/* Calls done, per rank, in ranks_shared(). */
static uint32_t *done(int rank)
{
	return (uint32_t *)ranks_shared() + rank;
}

static int team(const struct job *j, int rank, struct coll_team *t)
{
	rig_team(&j->rig, rank, t);
	for (int q = 0; q < t->nranks; q++) {
		struct ring_pair *p = ring_pair(t, q);

		p->sent = p->credit = p->taken = p->told = j->first;
		ring_answer(t, rank, q)->tail = j->first;
	}
	RANK_BARRIER();
	return 0;
}

static int run(const struct coll_team *t, const struct coll_call *c)
{
	struct coll_plan plan;

	RANK_OK(coll_plan(t, c, &plan));
	RANK_CHECK(strstr(plan.algo->name, "/ring") != NULL, "it is %s", plan.algo->name);
	RANK_OK(coll_run_host(t, c, &plan));
	return 0;
}

/* Where all is: the root's blocks, and each rank's own. */
struct data {
	char all[8 * MOST], own[MOST];
};

/* Call i of root 0, on fresh data. In place where i says so. */
static int one(const struct coll_team *t, int i, struct data *d)
{
	static const symcclFunc_t funcs[] = {
		symcclFuncBroadcast, symcclFuncScatter, symcclFuncGather, symcclFuncReduce};
	uint64_t seed = mix64(test_seed(), (uint64_t)i);
	symcclFunc_t func = funcs[i / CALLS * 2 + i % 2];
	size_t n = 1 + seed % (i % 3 ? 100 : MIN(t->layout.ring_bytes, MOST)), at, step;
	int in = i >= CALLS, root = t->rank == 0, single = i % 2 == (in ? 1 : 0);
	struct coll_call c = {.func = func, .type = symcclUint8, .op = symcclMax, .count = n};

	step = single ? 0 : n;
	memset(d, 0, sizeof(*d));
	for (int r = 0; r < t->nranks; r++)
		if (!in && root)
			fill_bytes(d->all + (size_t)r * step, n,
				mix64(seed, single ? 0 : (uint64_t)r));
	if (in)
		fill_bytes(d->own, n, mix64(seed, single ? 0 : (uint64_t)t->rank));
	c.send.ptr = in ? d->own : root ? d->all : NULL;
	c.recv.ptr = in ? (root ? d->all : NULL) : d->own;
	if (run(t, &c))
		return 1;
	if (!in) {
		at = check_bytes(d->own, n, mix64(seed, single ? 0 : (uint64_t)t->rank));
		RANK_CHECK(at == n, "call %d, byte %zu of %zu", i, at, n);
	}
	for (int r = 0; in && root && r < t->nranks; r++) {
		at = check_bytes(
			d->all + (size_t)r * step, n, mix64(seed, single ? 0 : (uint64_t)r));
		RANK_CHECK(at == n, "call %d, rank %d's byte %zu of %zu", i, r, at, n);
	}
	return 0;
}

/* First the root runs ahead, then the others. */
static int ahead(int rank, int n, void *arg)
{
	const struct job *j = arg;
	struct data *d = malloc(sizeof(*d));
	struct coll_team t;

	RANK_CHECK(d != NULL, "no memory");
	RANK_TRY(team(j, rank, &t));
	for (int half = 0; half < 2; half++) {
		uint32_t most = (uint32_t)t.layout.ring_slots;
		int late = (rank == 0) == (half == 1);

		*done(rank) = 0;
		RANK_BARRIER();
		for (int r = 0; late && r < n; r++)
			while ((r == 0) == (half == 0) &&
				__atomic_load_n(done(r), __ATOMIC_ACQUIRE) < most)
				sched_yield();
		usleep(late ? 3000 : 0);
		for (int r = 0; late && r < n; r++)
			RANK_CHECK((r == 0) != (half == 0) ||
					   __atomic_load_n(done(r), __ATOMIC_ACQUIRE) == most,
				"rank %d has made %u calls that nobody has answered", r, *done(r));
		if (late)
			ranks_note("half %d: all rings are full", half);
		/* Until everybody has looked, nothing may be taken: those that are late meet. */
		if (late)
			__atomic_fetch_add(done(n + half), 1, __ATOMIC_ACQ_REL);
		while (late && __atomic_load_n(done(n + half), __ATOMIC_ACQUIRE) <
				       (uint32_t)(half == 0 ? n - 1 : 1))
			sched_yield();
		for (int i = 0; i < CALLS; i++) {
			RANK_TRY(one(&t, half * CALLS + i, d));
			__atomic_store_n(done(rank), (uint32_t)i + 1, __ATOMIC_RELEASE);
		}
		RANK_BARRIER();
	}
	free(d);
	return 0;
}

static void run_ahead(int n, uint64_t first)
{
	struct job j = {.first = first};
	char err[1024];

	test_seed();
	for (int threads = 0; threads < 2; threads++) {
		cr_assert_eq(rig_open(&j.rig, n, 1, 4096), 0);
		cr_assert_eq((threads ? ranks_run_threads : ranks_run)(
				     n, 30, ahead, &j, err, sizeof(err)),
			0, "%d ranks, %d: %s", n, threads, err);
		rig_close(&j.rig);
	}
}

Test(coll_rooted, rings_full)
{
	run_ahead(2, 0);
	run_ahead(3, 5);
	run_ahead(8, 0);
}

/* Flags hold the low half of a 64-bit count. */
Test(coll_rooted, counters_wrap)
{
	run_ahead(2, ((uint64_t)1 << 32) - 40);
	run_ahead(3, ((uint64_t)7 << 32) - 16);
}

/* ---- Mistakes ------------------------------------------------------------------------------- */

/* After calls that fill all slots with other descriptions rank r makes call func[r] of count[r].
 * Whoever notices says `text` and sets the abort word; the other may have returned before. */
static int mistake(int rank, int n, void *arg)
{
	const struct job *j = arg;
	struct coll_call c = {.type = symcclInt8, .op = symcclSum};
	char *in = calloc(2, MOST), *out = calloc(2, MOST);
	struct coll_plan plan;
	struct coll_team t;
	symcclResult_t e;

	(void)n;
	RANK_CHECK(in != NULL && out != NULL, "no memory");
	RANK_TRY(team(j, rank, &t));
	c.send.ptr = in;
	c.recv.ptr = out;
	for (int i = 0; i < 40; i++) {
		c.func = i % 2 ? symcclFuncBroadcast : symcclFuncGather;
		c.count = 8;
		RANK_TRY(run(&t, &c));
	}
	c.func = j->func[rank];
	c.count = j->count[rank];
	RANK_OK(coll_plan(&t, &c, &plan));
	e = coll_run_host(&t, &c, &plan);
	if (e != symcclSuccess)
		__atomic_store_n(j->rig.abort, 1, __ATOMIC_RELEASE);
	if (e == symcclInvalidUsage) {
		RANK_CHECK(strcmp(error_text(), j->text) == 0, "said: %s", error_text());
		*done(0) = 1;
	} else {
		RANK_CHECK(e == symcclSuccess || e == symcclRemoteError, "result %d", (int)e);
	}
	RANK_BARRIER();
	RANK_CHECK(*done(0) == 1, "nobody noticed");
	free(in);
	free(out);
	return 0;
}

static void blunder(symcclFunc_t f0, size_t n0, symcclFunc_t f1, size_t n1, const char *text)
{
	struct job j = {.func = {f0, f1}, .count = {n0, n1}, .text = text};
	char err[1024];

	cr_assert_eq(rig_open(&j.rig, 2, 1, 4096), 0);
	cr_assert_eq(
		ranks_run_threads(2, 20, mistake, &j, err, sizeof(err)), 0, "%s: %s", text, err);
	rig_close(&j.rig);
}

#define SAME ": all ranks must make the same calls in the same order"

Test(coll_rooted, mistakes)
{
	blunder(symcclFuncBroadcast, 24, symcclFuncBroadcast, 23,
		"rank 1 calls Broadcast of 23 int8 at root 0 where rank 0 calls Broadcast of 24 "
		"int8 at root 0" SAME);
	blunder(symcclFuncBroadcast, 1000, symcclFuncBroadcast, 1001,
		"rank 1 calls Broadcast of 1001 int8 at root 0 where rank 0 calls Broadcast of "
		"1000 int8 at root 0" SAME);
	blunder(symcclFuncScatter, 56, symcclFuncBroadcast, 56,
		"rank 1 calls Broadcast of 56 int8 at root 0 where rank 0 calls Scatter of 56 int8 "
		"at root 0" SAME);
	blunder(symcclFuncGather, 8, symcclFuncReduce, 8,
		"rank 0 calls Gather of 8 int8 at root 0 where rank 1 calls Reduce of 8 int8 sum "
		"at "
		"root 0" SAME);
	blunder(symcclFuncBroadcast, 2000, symcclFuncBroadcast, 200000,
		"rank 1 calls Broadcast of 200000 int8 at root 0 where rank 0 calls Broadcast of "
		"2000 int8 at root 0" SAME);
}
