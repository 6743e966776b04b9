/* Times symcclBroadcast. Run with -h; columns: perf/README.md. */
#include "common.h"

static void counts(size_t nelem, struct perf_case *c)
{
	c->count = c->sendcount = c->recvcount = nelem;
}

static symcclResult_t call(
	const struct perf_case *c, const struct perf_rank *r, const void *send, void *recv)
{
	return symcclBroadcast(send, recv, c->count, c->type, c->root, r->comm, r->stream);
}

static void expect(const struct perf_case *c, int rank, size_t first, size_t n, void *out)
{
	(void)rank; /* all ranks end with the same */
	perf_input(c, c->root, first, n, out);
}

static double bus_factor(int nranks)
{
	(void)nranks;
	return 1;
}

static const struct perf_coll broadcast = {
	.name = "Broadcast",
	.rooted = 1,
	.counts = counts,
	.call = call,
	.expect = expect,
	.bus_factor = bus_factor,
};

int main(int argc, char **argv)
{
	return perf_main(argc, argv, &broadcast);
}
