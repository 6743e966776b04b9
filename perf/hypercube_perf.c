/* Times an all-gather of sends and receives along the edges of a hypercube. Run with -h; columns:
 * perf/README.md. */
#include "common.h"

static void counts(size_t nelem, struct perf_case *c)
{
	if (c->nranks & (c->nranks - 1))
		perf_die("a hypercube has 2, 4, 8... ranks, not %d", c->nranks);
	c->count = c->sendcount = nelem / (size_t)c->nranks;
	c->recvcount = c->count * (size_t)c->nranks;
}

static symcclResult_t edge(const struct perf_case *c, const struct perf_rank *r, const void *send,
	void *recv, size_t n, int peer)
{
	symcclResult_t e = symcclGroupStart();

	if (e == symcclSuccess)
		e = symcclSend(send, n, c->type, peer, r->comm, r->stream);
	if (e == symcclSuccess)
		e = symcclRecv(recv, n, c->type, peer, r->comm, r->stream);
	return e == symcclSuccess ? symcclGroupEnd() : e;
}

static symcclResult_t call(
	const struct perf_case *c, const struct perf_rank *r, const void *send, void *recv)
{
	size_t part = c->count * c->esize;
	char *out = recv;
	symcclResult_t e = edge(c, r, send, out + (size_t)r->rank * part, c->count, r->rank);

	/* After each dimension a rank has twice as many blocks. */
	for (int m = 1; m < c->nranks && e == symcclSuccess; m *= 2) {
		int mine = r->rank & ~(m - 1);

		e = edge(c, r, out + (size_t)mine * part, out + (size_t)(mine ^ m) * part,
			c->count * (size_t)m, r->rank ^ m);
	}
	return e;
}

static void expect(const struct perf_case *c, int rank, size_t first, size_t n, void *out)
{
	char *p = out;

	(void)rank; /* all ranks end with the same */
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

static const struct perf_coll hypercube = {
	.name = "HyperCube",
	.no_in_place = 1,
	.counts = counts,
	.call = call,
	.expect = expect,
	.bus_factor = bus_factor,
};

int main(int argc, char **argv)
{
	return perf_main(argc, argv, &hypercube);
}
