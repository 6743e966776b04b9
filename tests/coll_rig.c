#define _GNU_SOURCE
#include "coll_rig.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "device/slot.h"
#include "mem.h"
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
		.oversubscribed = crowded};
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

int rig_allgather(const struct rig *r, struct coll_team *t, const struct rig_plain *plain,
	const struct rig_call *rc, uint64_t seed, int *ran, char *why, size_t whylen)
{
	size_t block = rc->count * coll_type_size(rc->type), total = block * (size_t)r->n;
	symcclResult_t e;
	struct coll_call c;
	struct coll_plan plan;

	*ran = 0;
	buffers(r, t->rank, plain, rc, &c);
	snprintf(t->tuning.algo, sizeof(t->tuning.algo), "%s", rc->algo);
	e = coll_check(&c, r->n);
	if (e == symcclSuccess)
		e = coll_plan(t, &c, &plan);
	if (e != symcclSuccess) {
		snprintf(why, whylen, "rank %d: no plan: %s", t->rank, error_text());
		return 1;
	}
	if (rc->algo[0] && strcmp(plan.algo->name, rc->algo) != 0)
		return 0;
	*ran = 1;
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
