/* Times a round trip: each even rank sends to the next one, which sends back. Run with -h; columns:
 * perf/README.md. */
#include "common.h"

static void counts(size_t nelem, struct perf_case *c)
{
	c->count = c->sendcount = c->recvcount = nelem;
}

/* The last of an odd number of ranks plays with itself. */
static int partner(int rank, int nranks)
{
	return (rank ^ 1) < nranks ? rank ^ 1 : rank;
}

static symcclResult_t call(
	const struct perf_case *c, const struct perf_rank *r, const void *send, void *recv)
{
	int peer = partner(r->rank, c->nranks), first = !(r->rank & 1);
	symcclResult_t e = symcclSuccess;

	if (peer == r->rank)
		e = symcclGroupStart();
	if (e == symcclSuccess && first)
		e = symcclSend(send, c->count, c->type, peer, r->comm, r->stream);
	if (e == symcclSuccess)
		e = symcclRecv(recv, c->count, c->type, peer, r->comm, r->stream);
	if (e == symcclSuccess && !first)
		e = symcclSend(send, c->count, c->type, peer, r->comm, r->stream);
	return e == symcclSuccess && peer == r->rank ? symcclGroupEnd() : e;
}

static void expect(const struct perf_case *c, int rank, size_t first, size_t n, void *out)
{
	perf_input(c, partner(rank, c->nranks), first, n, out);
}

/* Bytes go both ways, one after the other. */
static double bus_factor(int nranks)
{
	(void)nranks;
	return 2;
}

static const struct perf_coll ping_pong = {
	.name = "PingPong",
	.no_in_place = 1,
	.counts = counts,
	.call = call,
	.expect = expect,
	.bus_factor = bus_factor,
};

int main(int argc, char **argv)
{
	return perf_main(argc, argv, &ping_pong);
}
