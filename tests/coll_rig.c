#define _GNU_SOURCE
#include "coll_rig.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "device/slot.h"
#include "mem.h"
#include "oracle.h"
#include "util.h"

int rig_open(struct rig *r, int n, int nctas, size_t room)
{
	*r = (struct rig){.n = n, .nctas = nctas, .room = align_up(room, 4096)};
	ctrl_layout(n, nctas, &r->layout);
	r->stride = align_up(r->layout.size, 4096) + 2 * r->room;
	r->map_size = 4096 + (size_t)n * r->stride;
	r->map = mmap(NULL, r->map_size, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->map == MAP_FAILED)
		return 1;
	r->abort = (uint32_t *)r->map;
	for (int i = 0; i < n; i++)
		r->skew[i] = (size_t)(i * 7 % 5) * 67;
	return 0;
}

void rig_close(struct rig *r)
{
	munmap(r->map, r->map_size);
}

void rig_team(const struct rig *r, int rank, struct coll_team *t)
{
	int crowded = r->n > 2;

	*t = (struct coll_team){.rank = rank,
		.nranks = r->n,
		.nctas = r->nctas,
		.ctrl = r->map + 4096,
		.stride = r->stride,
		.layout = r->layout,
		.wait = {.abort = r->abort,
			.spins = crowded ? 50 : 2000,
			.yields = 16,
			.timeout_ns = 60000000000u},
		.oversubscribed = crowded,
		.crowd = r->n / 2.0};
	coll_tuning_default(&t->tuning);
}

void rig_seed(const struct rig *r, uint64_t epoch)
{
	struct coll_team t;

	for (int i = 0; i < r->n; i++) {
		rig_team(r, i, &t);
		memset(ctrl_head(&t, i), 0, r->layout.stage);
		for (int cta = 0; cta < r->nctas; cta++)
			ctrl_head(&t, i)->epoch[cta] = epoch;
	}
}

void rig_window(const struct rig *r, int rank, enum rig_memory m, int window, size_t offset,
	struct coll_buf *b)
{
	char *w = r->map + 4096 + r->stride - (size_t)(3 - window) * r->room;

	*b = (struct coll_buf){.peers = w + offset,
		.stride = r->stride,
		.skew = m == RIG_DEFAULT ? r->skew : NULL,
		.window = (uint32_t)window + (m == RIG_DEFAULT ? 2 : 0),
		.offset = offset,
		.symmetric = m == RIG_SYMMETRIC};
	b->ptr = coll_peer(b, rank);
}

/* ---- One all-gather, checked ----------------------------------------------------------------- */

static void set_guards(char *p, size_t n)
{
	memset(p - RIG_GUARD, 0x5a, RIG_GUARD);
	memset(p + n, 0x5a, RIG_GUARD);
}

static int guards_whole(const char *p, size_t n)
{
	for (size_t i = 0; i < RIG_GUARD; i++)
		if (p[(ptrdiff_t)i - RIG_GUARD] != 0x5a || p[n + i] != 0x5a)
			return 0;
	return 1;
}

static void buffers(const struct rig *r, int rank, const struct rig_plain *plain,
	const struct rig_call *rc, struct coll_call *c)
{
	size_t block = rc->count * coll_type_size(rc->type);

	*c = (struct coll_call){.func = symcclFuncAllGather, .type = rc->type, .count = rc->count};
	if (rc->recv == RIG_PLAIN)
		c->recv.ptr = plain->recv + rc->recv_at;
	else
		rig_window(r, rank, rc->recv, 2, rc->recv_at, &c->recv);
	if (rc->in_place) {
		/* As the communicator finds it: the same window, further in. */
		c->send = c->recv;
		c->send.ptr = (char *)c->recv.ptr + (size_t)rank * block;
		c->send.offset += (size_t)rank * block;
		if (c->send.peers != NULL)
			c->send.peers += (size_t)rank * block;
	} else if (rc->send == RIG_PLAIN) {
		c->send.ptr = plain->send + rc->send_at;
	} else {
		rig_window(r, rank, rc->send, 1, rc->send_at, &c->send);
	}
}

static int verify(const struct rig *r, const struct coll_call *c, int in_place, int rank,
	size_t block, uint64_t seed, char *why, size_t whylen)
{
	const char *recv = c->recv.ptr;
	size_t total = block * (size_t)r->n;

	for (int p = 0; p < r->n; p++) {
		size_t at = check_bytes(recv + (size_t)p * block, block, seed + (uint64_t)p);

		if (at == block)
			continue;
		snprintf(why, whylen, "rank %d: byte %zu of rank %d's %zu is wrong", rank, at, p,
			block);
		return 1;
	}
	if (!guards_whole(recv, total) || (!in_place && !guards_whole(c->send.ptr, block))) {
		snprintf(why, whylen, "rank %d: wrote beyond a buffer", rank);
		return 1;
	}
	if (!in_place && check_bytes(c->send.ptr, block, seed + (uint64_t)rank) != block) {
		snprintf(why, whylen, "rank %d: its input has changed", rank);
		return 1;
	}
	return 0;
}

/* The plan in *plan, if it is the algorithm that was asked for. */
static int plan_for(struct coll_team *t, const struct coll_call *c, const char *algo,
	struct coll_plan *plan, int *ran, char *why, size_t whylen)
{
	symcclResult_t e;

	snprintf(t->tuning.algo, sizeof(t->tuning.algo), "%s", algo);
	e = coll_check(c, t->rank, t->nranks);
	if (e == symcclSuccess)
		e = coll_plan(t, c, plan);
	if (e != symcclSuccess) {
		snprintf(why, whylen, "rank %d: no plan: %s", t->rank, error_text());
		return 1;
	}
	*ran = !algo[0] || strcmp(plan->algo->name, algo) == 0;
	return 0;
}

int rig_allgather(const struct rig *r, struct coll_team *t, const struct rig_plain *plain,
	const struct rig_call *rc, uint64_t seed, int *ran, char *why, size_t whylen)
{
	size_t block = rc->count * coll_type_size(rc->type), total = block * (size_t)r->n;
	symcclResult_t e;
	struct coll_call c;
	struct coll_plan plan;

	buffers(r, t->rank, plain, rc, &c);
	if (plan_for(t, &c, rc->algo, &plan, ran, why, whylen))
		return 1;
	if (!*ran)
		return 0;
	set_guards(c.recv.ptr, total);
	poison(c.recv.ptr, total);
	if (!rc->in_place)
		set_guards(c.send.ptr, block);
	fill_bytes(c.send.ptr, block, seed + (uint64_t)t->rank);
	e = coll_run_host(t, &c, &plan);
	if (e != symcclSuccess) {
		snprintf(why, whylen, "rank %d: %s: %s", t->rank, error_name(e), error_text());
		return 1;
	}
	return verify(r, &c, rc->in_place, t->rank, block, seed, why, whylen);
}

/* ---- One reduction, checked -------------------------------------------------------------------
 */

int rig_data_open(struct rig_data *d, symcclDataType_t type, int op, int n, uint64_t seed)
{
	size_t size = fill_type_size(type);
	const void *src[RIG_RANKS_MAX];

	*d = (struct rig_data){.type = type, .op = op, .n = n};
	for (int q = 0; q < n; q++) {
		uint64_t s = mix64(seed, (uint64_t)q);

		d->input[q] = malloc(RIG_PERIOD * size);
		if (d->input[q] == NULL)
			return 1;
		fill_type(d->input[q], RIG_PERIOD, type, s);
		for (size_t i = s % 5; i < RIG_PERIOD; i += 5)
			fill_bytes(d->input[q] + i * size, size, s + i);
		fill_type(&d->factor[q], 1, type, s + 1);
		src[q] = d->input[q];
	}
	d->want = malloc(RIG_PERIOD * size);
	if (d->want == NULL)
		return 1;
	oracle_reduce(type, op == RIG_PREMUL ? symcclSum : (symcclRedOp_t)op, src, n,
		op == RIG_PREMUL ? d->factor : NULL, RIG_PERIOD, d->want);
	return 0;
}

void rig_data_close(struct rig_data *d)
{
	for (int q = 0; q < d->n; q++)
		free(d->input[q]);
	free(d->want);
}

/* Elements [first, first + count) of what is `period` for ever, copied to or compared with p.
 * Returns the first element that differs, or count. */
static size_t periodic(
	void *p, const char *period, size_t size, size_t first, size_t count, int set)
{
	for (size_t i = 0, n; i < count; i += n) {
		size_t at = (first + i) % RIG_PERIOD;
		char *to = (char *)p + i * size;

		n = MIN(count - i, RIG_PERIOD - at);
		if (set)
			memcpy(to, period + at * size, n * size);
		else if (memcmp(to, period + at * size, n * size) != 0)
			for (size_t k = 0; k < n; k++)
				if (memcmp(to + k * size, period + (at + k) * size, size) != 0)
					return i + k;
	}
	return count;
}

static void advance(struct coll_buf *b, size_t by)
{
	b->ptr = (char *)b->ptr + by;
	b->offset += by;
	if (b->peers != NULL)
		b->peers += by;
}

static void reduce_buffers(const struct rig *r, int rank, const struct rig_plain *plain,
	const struct rig_call *rc, struct coll_call *c)
{
	if (rc->send == RIG_PLAIN)
		c->send.ptr = plain->send + rc->send_at;
	else
		rig_window(r, rank, rc->send, 1, rc->send_at, &c->send);
	if (rc->in_place) {
		c->recv = c->send;
		if (rc->func == symcclFuncReduceScatter)
			advance(&c->recv, (size_t)rank * rc->count * coll_type_size(c->type));
	} else if (rc->recv == RIG_PLAIN) {
		c->recv.ptr = plain->recv + rc->recv_at;
	} else {
		rig_window(r, rank, rc->recv, 2, rc->recv_at, &c->recv);
	}
}

static int reduce_verify(const struct rig *r, const struct coll_call *c, int in_place, int rank,
	const struct rig_data *d, size_t first, char *why, size_t whylen)
{
	int scatter = c->func == symcclFuncReduceScatter;
	size_t size = coll_type_size(c->type), sends = c->count * (size_t)(scatter ? r->n : 1);
	size_t mine = scatter ? (size_t)rank * c->count : 0, at;
	char *send = c->send.ptr, *recv = c->recv.ptr;

	at = recv ? periodic(recv, d->want, size, first + mine, c->count, 0) : c->count;
	if (at < c->count) {
		uint64_t got = 0, want = 0;

		memcpy(&got, recv + at * size, size);
		memcpy(&want, d->want + (first + mine + at) % RIG_PERIOD * size, size);
		snprintf(why, whylen, "rank %d: element %zu is %#llx, not %#llx", rank, at,
			(unsigned long long)got, (unsigned long long)want);
		return 1;
	}
	if (!guards_whole(send, sends * size) ||
		(!in_place && recv && !guards_whole(recv, c->count * size))) {
		snprintf(why, whylen, "rank %d: wrote beyond a buffer", rank);
		return 1;
	}
	if (!scatter && in_place)
		return 0;
	for (size_t p = 0; p < (size_t)(scatter ? r->n : 1); p++) {
		size_t from = p * c->count;

		if ((in_place && from == mine) || periodic(send + from * size, d->input[rank], size,
							  first + from, c->count, 0) == c->count)
			continue;
		snprintf(why, whylen, "rank %d: its input has changed", rank);
		return 1;
	}
	return 0;
}

int rig_reduce(const struct rig *r, struct coll_team *t, const struct rig_plain *plain,
	const struct rig_call *rc, const struct rig_data *d, uint64_t seed, int *ran, char *why,
	size_t whylen)
{
	size_t size = coll_type_size(d->type), first = seed % RIG_PERIOD;
	size_t sends = rc->count * (size_t)(rc->func == symcclFuncReduceScatter ? r->n : 1);
	struct coll_call c = {.func = rc->func,
		.type = d->type,
		.count = rc->count,
		.op = d->op == RIG_PREMUL ? symcclSum : (symcclRedOp_t)d->op,
		.has_factor = d->op == RIG_PREMUL,
		.factor = d->op == RIG_PREMUL ? d->factor[t->rank] : 0};
	int in_place = rc->in_place, takes = 1;
	struct coll_plan plan;
	symcclResult_t e;

	reduce_buffers(r, t->rank, plain, rc, &c);
	if (rc->func == symcclFuncReduce) {
		c.root = rc->root;
		takes = t->rank == c.root;
		in_place = takes && in_place;
	}
	if (!takes)
		c.recv = (struct coll_buf){0};
	if (plan_for(t, &c, rc->algo, &plan, ran, why, whylen))
		return 1;
	if (!*ran)
		return 0;
	set_guards(c.send.ptr, sends * size);
	periodic(c.send.ptr, d->input[t->rank], size, first, sends, 1);
	if (!in_place && takes) {
		set_guards(c.recv.ptr, rc->count * size);
		poison(c.recv.ptr, rc->count * size);
	}
	e = coll_run_host(t, &c, &plan);
	if (e != symcclSuccess) {
		snprintf(why, whylen, "rank %d: %s: %s", t->rank, error_name(e), error_text());
		return 1;
	}
	return reduce_verify(r, &c, in_place, t->rank, d, first, why, whylen);
}

/* ---- Many ------------------------------------------------------------------------------------ */

void rig_random(const struct rig *r, uint64_t seed, size_t most, struct rig_call *c, int *barrier)
{
	static const symcclDataType_t types[] = {
		symcclInt8, symcclBfloat16, symcclInt32, symcclFloat64};
	const struct coll_algo *a;
	size_t n;
	uint64_t x = mix64(seed, 1), y = mix64(seed, 2);

	a = coll_algos(&n);
	a += x % n;
	*barrier = (x >> 8) % 8 == 0;
	*c = (struct rig_call){
		.algo = a->func == symcclFuncAllGather && (x >> 16) % 4 ? a->name : "",
		.type = types[(x >> 24) % ARRAY_LEN(types)],
		.send = (enum rig_memory)((x >> 32) % RIG_MEMORIES),
		.recv = (enum rig_memory)((x >> 40) % RIG_MEMORIES),
		.send_at = RIG_GUARD + (x >> 48) % 64,
		.recv_at = RIG_GUARD + (x >> 56) % 64,
		.in_place = y % 3 == 0};
	/* Half of them fit a flag's line. */
	most = y >> 8 & 1 ? MIN(most, (size_t)72) : most;
	c->count = (y >> 16) % (most / coll_type_size(c->type) + 1);
	(void)r;
}

int rig_burst(const struct rig *r, struct coll_team *t, const struct rig_plain *plain,
	uint64_t seed, int n, size_t most, char *why, size_t whylen)
{
	struct coll_call b = {.func = symcclFuncBarrier};
	struct coll_plan plan;
	struct rig_call c;
	int barrier, ran;

	for (int i = 0; i < n; i++) {
		uint64_t s = mix64(seed, (uint64_t)i);
		char text[256];

		rig_random(r, s, most, &c, &barrier);
		if (barrier && (coll_plan(t, &b, &plan) != symcclSuccess ||
				       coll_run_host(t, &b, &plan) != symcclSuccess)) {
			snprintf(why, whylen, "call %d, barrier: rank %d: %s", i, t->rank,
				error_text());
			return 1;
		}
		if (barrier)
			continue;
		if (rig_allgather(r, t, plain, &c, s, &ran, text, sizeof(text))) {
			snprintf(why, whylen, "call %d, %s%s of %zu x %zu bytes: %s", i,
				c.algo[0] ? c.algo : "all-gather", c.in_place ? " in place" : "",
				c.count, coll_type_size(c.type), text);
			return 1;
		}
	}
	return 0;
}
