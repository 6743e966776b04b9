/* Times a group of symcclSend to the next rank and symcclRecv from the one before. Run with -h;
 * columns: perf/README.md. */
#include "common.h"

static void counts(size_t nelem, struct perf_case *c)
{
	c->count = c->sendcount = c->recvcount = nelem;
}

static symcclResult_t call(
	const struct perf_case *c, const struct perf_rank *r, const void *send, void *recv)
{
	int next = (r->rank + 1) % c->nranks, last = (r->rank + c->nranks - 1) % c->nranks;
	symcclResult_t e = symcclGroupStart();

	if (e == symcclSuccess)
		e = symcclSend(send, c->count, c->type, next, r->comm, r->stream);
	if (e == symcclSuccess)
		e = symcclRecv(recv, c->count, c->type, last, r->comm, r->stream);
	return e == symcclSuccess ? symcclGroupEnd() : e;
}

static void expect(const struct perf_case *c, int rank, size_t first, size_t n, void *out)
{
	perf_input(c, (rank + c->nranks - 1) % c->nranks, first, n, out);
}

static double bus_factor(int nranks)
{
	(void)nranks;
	return 1;
}

static const struct perf_coll send_recv = {
	.name = "SendRecv",
	.no_in_place = 1,
	.counts = counts,
	.call = call,
	.expect = expect,
	.bus_factor = bus_factor,
};

int main(int argc, char **argv)
{
	return perf_main(argc, argv, &send_recv);
}
