/* Times symcclScatter. Run with -h; columns: perf/README.md. */
#include "common.h"

/* Parts start at multiples of 16 bytes, as nccl-tests has it; smaller parts, which nccl-tests
 * rounds to nothing, are taken as they are. */
static void counts(size_t nelem, struct perf_case *c)
{
	size_t part = nelem / (size_t)c->nranks, unit = 16 / c->esize;

	c->count = part < unit ? part : part / unit * unit;
	c->sendcount = c->count * (size_t)c->nranks;
	c->recvcount = c->count;
	c->recv_shift = c->count;
}

static symcclResult_t call(
	const struct perf_case *c, const struct perf_rank *r, const void *send, void *recv)
{
	return symcclScatter(send, recv, c->count, c->type, c->root, r->comm, r->stream);
}

static void expect(const struct perf_case *c, int rank, size_t first, size_t n, void *out)
{
	perf_input(c, c->root, (size_t)rank * c->count + first, n, out);
}

static double bus_factor(int nranks)
{
	return (double)(nranks - 1) / nranks;
}

static const struct perf_coll scatter = {
	.name = "Scatter",
	.rooted = 1,
	.counts = counts,
	.call = call,
	.expect = expect,
	.bus_factor = bus_factor,
};

int main(int argc, char **argv)
{
	return perf_main(argc, argv, &scatter);
}
