/* Times symcclAlltoAllv with blocks of 1 to n units. Run with -h; columns: perf/README.md. */
#include "common.h"

enum { RANKS_MOST = 1024 };

/* Elements from one rank to another: count, times 1 to n. */
static size_t pair(const struct perf_case *c, int from, int to)
{
	return c->count * (size_t)((from + to) % c->nranks + 1);
}

static void counts(size_t nelem, struct perf_case *c)
{
	size_t n = (size_t)c->nranks, units = n * (n + 1) / 2;

	if (c->nranks > RANKS_MOST)
		perf_die("%d ranks: at most %d", c->nranks, RANKS_MOST);
	c->count = nelem / units;
	c->sendcount = c->recvcount = c->count * units;
}

static symcclResult_t call(
	const struct perf_case *c, const struct perf_rank *r, const void *send, void *recv)
{
	size_t sizes[RANKS_MOST], at[RANKS_MOST], sum = 0;

	/* What a rank sends to another it gets from that. */
	for (int q = 0; q < c->nranks; q++) {
		sizes[q] = pair(c, r->rank, q);
		at[q] = sum;
		sum += sizes[q];
	}
	return symcclAlltoAllv(send, sizes, at, recv, sizes, at, c->type, r->comm, r->stream);
}

/* Element first of what `from` has for `to`. */
static size_t offset(const struct perf_case *c, int from, int to)
{
	size_t at = 0;

	for (int q = 0; q < to; q++)
		at += pair(c, from, q);
	return at;
}

static void expect(const struct perf_case *c, int rank, size_t first, size_t n, void *out)
{
	char *p = out;
	int from = 0;
	size_t begin = 0;

	while (n) {
		size_t part = pair(c, from, rank), at = first - begin, len = part - at;

		if (first >= begin + part) {
			begin += part;
			from++;
			continue;
		}
		if (len > n)
			len = n;
		perf_input(c, from, offset(c, from, rank) + at, len, p);
		p += len * c->esize;
		first += len;
		n -= len;
	}
}

static double bus_factor(int nranks)
{
	return (double)(nranks - 1) / nranks;
}

static const struct perf_coll all_to_all_v = {
	.name = "AlltoAllv",
	.no_in_place = 1,
	.counts = counts,
	.call = call,
	.expect = expect,
	.bus_factor = bus_factor,
};

int main(int argc, char **argv)
{
	return perf_main(argc, argv, &all_to_all_v);
}
