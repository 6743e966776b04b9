/* Times symcclPutSignal into the next rank's window and symcclWaitSignal for the one before (-R 2).
 * Run with -h; columns: perf/README.md. */
#include "common.h"

static void counts(size_t nelem, struct perf_case *c)
{
	c->count = c->sendcount = c->recvcount = nelem;
}

static symcclResult_t call(
	const struct perf_case *c, const struct perf_rank *r, const void *send, void *recv)
{
	int next = (r->rank + 1) % c->nranks, last = (r->rank + c->nranks - 1) % c->nranks;
	symcclWaitSignalDesc_t one = {.opCnt = 1, .peer = last};
	symcclResult_t e;

	if (r->recv_win == NULL)
		perf_die("a put needs windows: add -R 2");
	e = symcclPutSignal(send, c->count, c->type, next, r->recv_win,
		(size_t)((char *)recv - r->recv_base), 0, 0, 0, r->comm, r->stream);
	return e == symcclSuccess ? symcclWaitSignal(1, &one, r->comm, r->stream) : e;
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

static const struct perf_coll put = {
	.name = "PutSignal",
	.no_in_place = 1,
	.counts = counts,
	.call = call,
	.expect = expect,
	.bus_factor = bus_factor,
};

int main(int argc, char **argv)
{
	return perf_main(argc, argv, &put);
}
