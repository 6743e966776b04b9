/* Times symcclBarrier. Run with -h; columns: perf/README.md. */
#define _DEFAULT_SOURCE
#include <unistd.h>

#include "common.h"

static void counts(size_t nelem, struct perf_case *c)
{
	(void)nelem;
	(void)c;
}

static symcclResult_t call(
	const struct perf_case *c, const struct perf_rank *r, const void *send, void *recv)
{
	(void)c;
	(void)send;
	(void)recv;
	return symcclBarrier(r->comm, r->stream);
}

static void expect(const struct perf_case *c, int rank, size_t first, size_t n, void *out)
{
	(void)c;
	(void)rank;
	(void)first;
	(void)n;
	(void)out;
}

static double bus_factor(int nranks)
{
	(void)nranks;
	return 0;
}

/* Threads come late, one or the other by up to a millisecond, and say so. */
static void before(struct perf_thread *t, uint64_t seed)
{
	if (!t->team.n)
		return;
	usleep((useconds_t)((seed + 1) * (uint64_t)(t->index + 7) * 0x9e3779b97f4a7c15u >> 54));
	atomic_store_explicit(
		&t->team.of[t->team.me]->came, ++t->team.checks, memory_order_relaxed);
}

/* How many have not come, though the barrier let this one go. */
static int wrong(struct perf_thread *t)
{
	int late = 0;

	for (int i = 0; i < t->team.n; i++)
		late += atomic_load_explicit(&t->team.of[i]->came, memory_order_relaxed) <
			t->team.checks;
	return late;
}

static const struct perf_coll barrier = {
	.name = "Barrier",
	.no_in_place = 1,
	.no_data = 1,
	.counts = counts,
	.call = call,
	.expect = expect,
	.bus_factor = bus_factor,
	.before = before,
	.wrong = wrong,
};

int main(int argc, char **argv)
{
	return perf_main(argc, argv, &barrier);
}
