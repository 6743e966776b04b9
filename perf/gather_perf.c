/* Times symcclGather. Run with -h; columns: perf/README.md. */
#include "common.h"

/* Parts start at multiples of 16 bytes, as nccl-tests has it; smaller parts, which nccl-tests
 * rounds to nothing, are taken as they are. */
static void counts(size_t nelem, struct perf_case *c)
{
	size_t part = nelem / (size_t)c->nranks, unit = 16 / c->esize;

	c->count = part < unit ? part : part / unit * unit;
	c->sendcount = c->count;
	c->recvcount = c->count * (size_t)c->nranks;
	c->send_shift = c->count;
}

static symcclResult_t call(
	const struct perf_case *c, const struct perf_rank *r, const void *send, void *recv)
{
	return symcclGather(send, recv, c->count, c->type, c->root, r->comm, r->stream);
}

static void expect(const struct perf_case *c, int rank, size_t first, size_t n, void *out)
{
	char *p = out;

	(void)rank;
	while (n) {
		size_t at = first % c->count, len = c->count - at < n ? c->count - at : n;

		perf_input(c, (int)(first / c->count), at, len, p);
		p += len * c->esize;
		first += len;
		n -= len;
	}
}

static double bus_factor(int nranks)
{
	return (double)(nranks - 1) / nranks;
}

static const struct perf_coll gather = {
	.name = "Gather",
	.rooted = 1,
	.root_only = 1,
	.counts = counts,
	.call = call,
	.expect = expect,
	.bus_factor = bus_factor,
};

int main(int argc, char **argv)
{
	return perf_main(argc, argv, &gather);
}
