/* Times symcclReduce. Run with -h; columns: perf/README.md. */
#include "common.h"

static void counts(size_t nelem, struct perf_case *c)
{
	c->count = c->sendcount = c->recvcount = nelem;
}

static symcclResult_t call(
	const struct perf_case *c, const struct perf_rank *r, const void *send, void *recv)
{
	return symcclReduce(send, recv, c->count, c->type, c->op, c->root, r->comm, r->stream);
}

static void expect(const struct perf_case *c, int rank, size_t first, size_t n, void *out)
{
	(void)rank;
	perf_reduced(c, first, n, out);
}

static double bus_factor(int nranks)
{
	(void)nranks;
	return 1;
}

static const struct perf_coll reduce = {
	.name = "Reduce",
	.reduces = 1,
	.rooted = 1,
	.root_only = 1,
	.counts = counts,
	.call = call,
	.expect = expect,
	.bus_factor = bus_factor,
};

int main(int argc, char **argv)
{
	return perf_main(argc, argv, &reduce);
}
