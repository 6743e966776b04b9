/*
 * The kernels that move blocks between ranks, and reducing to a root, as kernels_body.h does the
 * others: for the GPU program and for the one on threads of a CPU.
 */
#ifndef ROUTES_BODY_H
#define ROUTES_BODY_H

#include "kernels_body.h"

enum { ROUTE_BROADCAST, ROUTE_ALLTOALL, ROUTE_GATHER, ROUTE_SCATTER, ROUTE_REDUCE, ROUTES };

struct route_case {
	int what, direct, n, root, ctas, threads, in_place;
	int told;            /* direct: everybody may reach the root's own buffer */
	int type, op, fixed; /* of a reduce */
	size_t count, skew_in, skew_out;
};

static int route_sends_all(const struct route_case *c)
{
	return c->what == ROUTE_ALLTOALL || c->what == ROUTE_SCATTER;
}
static int route_hears_all(const struct route_case *c)
{
	return c->what == ROUTE_ALLTOALL || c->what == ROUTE_GATHER;
}
/* Does this rank's input, or output, count? */
static int route_has_in(const struct route_case *c, int r)
{
	return r == c->root || !(c->what == ROUTE_BROADCAST || c->what == ROUTE_SCATTER);
}
static int route_has_out(const struct route_case *c, int r)
{
	return r == c->root || !(c->what == ROUTE_REDUCE || c->what == ROUTE_GATHER);
}
static size_t route_elem(const struct route_case *c)
{
	return c->what == ROUTE_REDUCE ? ref_size[c->type] : 1;
}

static void route_print(const struct route_case *c, const char *what)
{
	static const char *const names[] = {"broadcast", "alltoall", "gather", "scatter", "reduce"};

	printf("WRONG %s direct %d n %d root %d ctas %d threads %d count %zu skew %zu %zu in place "
	       "%d type %s op %s: %s\n",
		names[c->what], c->direct, c->n, c->root, c->ctas, c->threads, c->count, c->skew_in,
		c->skew_out, c->in_place, type_names[c->type], op_names[c->op], what);
	fflush(stdout);
}

/* Where rank r's input and output are. */
static void route_places(const struct route_case *c, int r, uint64_t *in, uint64_t *out)
{
	uint64_t mine = machine_base() + r * machine_stride();
	size_t part = c->count * route_elem(c);

	*in = mine + world_region.in + 16 + c->skew_in;
	*out = mine + world_region.out + 16 + c->skew_out;
	if (!c->in_place)
		return;
	if (c->what == ROUTE_GATHER && r == c->root)
		*in = *out + r * part;
	else if (c->what == ROUTE_SCATTER && r == c->root)
		*out = *in + r * part;
	else if (c->what != ROUTE_GATHER && c->what != ROUTE_SCATTER)
		*in = *out;
}

static struct cuda_args route_args(const struct route_case *c, int r, const uint64_t *factor)
{
	struct test_case t;
	struct cuda_args a;
	size_t part = c->count * route_elem(c);

	memset(&t, 0, sizeof(t));
	t.algo = c->what == ROUTE_REDUCE ? CUDA_REDUCESCATTER_PACKET : CUDA_ALLGATHER_PACKET;
	t.type = c->type;
	t.op = c->what == ROUTE_REDUCE ? c->op : (int)R_SUM;
	t.n = c->n;
	t.count = c->count;
	a = case_args(&t, r, c->what == ROUTE_REDUCE ? factor : NULL);
	route_places(c, r, &a.in, &a.out);
	a.root = c->root;
	a.mode |= c->what == ROUTE_BROADCAST || c->what == ROUTE_SCATTER ? CUDA_MODE_FROM_ROOT : 0;
	a.mode |= c->what == ROUTE_GATHER || c->what == ROUTE_REDUCE ? CUDA_MODE_TO_ROOT : 0;
	if (c->what == ROUTE_BROADCAST && c->direct)
		a.in_stride = c->told && r == c->root
				      ? a.in - (machine_base() + r * machine_stride())
				      : 0;
	if (c->what == ROUTE_REDUCE && c->direct)
		a.out_stride = c->told && r == c->root
				       ? a.out - (machine_base() + r * machine_stride())
				       : 0;
	if (c->what == ROUTE_REDUCE && c->direct)
		a.in -= r * machine_stride();
	else if (c->what != ROUTE_REDUCE && c->direct)
		a.out -= r * machine_stride();
	else if (c->what != ROUTE_REDUCE) {
		a.in_stride = route_sends_all(c) ? part : 0;
		a.out_stride = route_hears_all(c) ? part : 0;
	}
	return a;
}

static void route_kernel(const struct route_case *c, char *name, size_t len)
{
	struct test_case t;

	if (c->what != ROUTE_REDUCE) {
		snprintf(name, len, c->direct ? "symccl_push_direct" : "symccl_move_packet");
		return;
	}
	memset(&t, 0, sizeof(t));
	t.algo = c->direct ? CUDA_REDUCESCATTER_DIRECT : CUDA_REDUCESCATTER_PACKET;
	t.type = c->type;
	t.op = c->op;
	t.n = c->n;
	t.fixed = c->fixed;
	kernel_name(name, len, &t);
}

/* What byte or element i of rank r's output must be. */
static uint64_t route_want(
	const struct route_case *c, char *const *in, const uint64_t *factor, int r, size_t i)
{
	uint64_t x[WORLD_MAX];

	switch (c->what) {
	case ROUTE_BROADCAST:
		return (unsigned char)in[c->root][i];
	case ROUTE_ALLTOALL:
		return (unsigned char)in[i / c->count][r * c->count + i % c->count];
	case ROUTE_GATHER:
		return (unsigned char)in[i / c->count][i % c->count];
	case ROUTE_SCATTER:
		return (unsigned char)in[c->root][r * c->count + i];
	default:
		for (int q = 0; q < c->n; q++)
			x[q] = element_get(in[q], c->type, i);
		return ref_reduce(c->type, c->op, x, factor, c->n);
	}
}

static int route_compare(
	const struct route_case *c, char *const *in, const uint64_t *factor, int r, char *got)
{
	const size_t elem = route_elem(c), part = c->count * elem;
	const size_t bytes = route_hears_all(c) ? part * c->n : part;
	uint64_t from, to;
	char text[160];

	route_places(c, r, &from, &to);
	machine_get(got, to - 16, bytes + 32);
	for (size_t i = 0; i < bytes / elem && route_has_out(c, r); i++) {
		uint64_t want = route_want(c, in, factor, r, i);
		uint64_t is = element_get(got + 16, c->what == ROUTE_REDUCE ? c->type : R_U8, i);

		if (want == is)
			continue;
		snprintf(text, sizeof(text), "rank %d element %zu is %llx, not %llx", r, i,
			(unsigned long long)is, (unsigned long long)want);
		route_print(c, text);
		return 1;
	}
	for (size_t i = 0; i < bytes + 32; i++) {
		int outside = i < 16 || i >= bytes + 16;

		if (c->in_place && (!route_has_out(c, r) || c->what == ROUTE_SCATTER))
			break; /* the input lies there */
		if ((outside || !route_has_out(c, r)) && (unsigned char)got[i] != 0xa5) {
			snprintf(text, sizeof(text), "rank %d wrote byte %zd of %zu", r,
				(ssize_t)i - 16, bytes);
			route_print(c, text);
			return 1;
		}
	}
	return 0;
}

static int route_run(const struct route_case *c)
{
	static char *in[WORLD_MAX], *scratch;
	const size_t elem = route_elem(c), part = c->count * elem;
	const size_t in_bytes = route_sends_all(c) ? part * c->n : part;
	uint64_t factor[WORLD_MAX], from, to;
	char name[96], text[96];
	int wrong = 0;

	if (!scratch)
		scratch = (char *)malloc(world_region.bytes);
	memset(scratch, 0xa5, world_region.bytes);
	route_kernel(c, name, sizeof(name));
	for (int r = 0; r < c->n; r++) {
		uint64_t mine = machine_base() + r * machine_stride();
		int type = c->what == ROUTE_REDUCE ? c->type : (int)R_U8;

		if (!in[r])
			in[r] = (char *)malloc(world_region.bytes);
		factor[r] = random_element(c->type);
		for (size_t i = 0; i < in_bytes / elem; i++)
			element_set(in[r], type, i, random_element(type));
		machine_put(mine + world_region.in, scratch, part * c->n + 64);
		machine_put(mine + world_region.out, scratch, part * c->n + 64);
		route_places(c, r, &from, &to);
		if (route_has_in(c, r))
			machine_put(from, in[r], in_bytes);
	}
	for (int r = 0; r < c->n; r++) {
		struct cuda_args a = route_args(c, r, factor);

		machine_launch(r, name, &a, c->ctas, c->threads);
	}
	machine_run();
	world_hash++;
	for (int r = 0; r < c->n && wrong == 0; r++) {
		if (machine_record_host(r)->state) {
			snprintf(text, sizeof(text), "rank %d left: code %u peer %u", r,
				machine_record_host(r)->code, machine_record_host(r)->peer);
			route_print(c, text);
			return 1;
		}
		wrong += route_compare(c, in, factor, r, scratch);
	}
	return wrong;
}

/* Sizes, roots, alignments and grids at random. Returns wrong cases. */
static long routes_run(const int *ranks, int nranks, const size_t *counts, int ncounts,
	const int *grids, int ngrids, uint64_t slots, int rounds, long *done)
{
	static const size_t skews[] = {0, 8, 4, 1, 3, 5};
	static const int threads[] = {32, 128, 512};
	long wrong = 0;

	for (int ri = 0; ri < nranks; ri++) {
		int n = ranks[ri];

		world_init(n, slots);
		for (int i = 0; i < rounds * ncounts * ROUTES * 2 && wrong < 20; i++) {
			struct route_case c;

			memset(&c, 0, sizeof(c));
			c.what = i % ROUTES;
			c.direct = i / ROUTES % 2;
			c.count = counts[i / ROUTES / 2 % ncounts];
			c.n = n;
			c.root = (int)(rng() % n);
			c.ctas = grids[rng() % ngrids];
			c.threads = threads[rng() % 3];
			c.in_place = (int)(rng() % 3 == 0);
			c.told = (int)(rng() % 2);
			c.type = (int)(rng() % R_TYPES);
			c.op = (int)(rng() % R_OPS);
			c.fixed = (int)(rng() % 4 != 0);
			c.skew_in = skews[rng() % 6];
			c.skew_out = rng() % 3 ? c.skew_in : skews[rng() % 6];
			if (c.direct && (c.what == ROUTE_GATHER || c.what == ROUTE_SCATTER))
				continue;
			if (c.direct && c.what == ROUTE_ALLTOALL)
				c.in_place = 0;
			if (!c.direct &&
				cuda_slots_needed(c.what == ROUTE_REDUCE ? CUDA_REDUCESCATTER_PACKET
									 : CUDA_MOVE_PACKET,
					n, c.count * route_elem(&c)) > slots)
				continue;
			wrong += route_run(&c);
			++*done;
		}
	}
	return wrong;
}

#endif
