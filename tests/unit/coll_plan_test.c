/* Pure parts: arguments, layout of the control block, choice of the algorithm, hash; the copies. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coll/cuda/rows.h"
#include "coll/host/copy.h"
#include "coll/host/ring.h"
#include "coll_rig.h"
#include "device/slot.h"
#include "mem.h"
#include "util.h"

TestSuite(coll_plan, .timeout = 30);

/* ---- Arguments ------------------------------------------------------------------------------ */

Test(coll_plan, check)
{
	static char buf[8];
	struct coll_call c = {.func = symcclFuncAllGather,
				 .send.ptr = buf,
				 .recv.ptr = buf,
				 .count = 1,
				 .type = symcclInt8},
			 d;

	cr_assert_eq(coll_check(&c, 0, 4), symcclSuccess);
	d = c;
	d.send.ptr = NULL;
	cr_assert_eq(coll_check(&d, 0, 4), symcclInvalidArgument);
	cr_assert_not_null(strstr(error_text(), "sendbuff"));
	d = c;
	d.recv.ptr = NULL;
	cr_assert_eq(coll_check(&d, 0, 4), symcclInvalidArgument);
	cr_assert_not_null(strstr(error_text(), "recvbuff"));
	d.send.ptr = NULL;
	d.count = 0;
	cr_assert_eq(coll_check(&d, 0, 4), symcclSuccess);
	for (int type = -1; type <= symcclNumTypes; type++) {
		d = c;
		d.type = (symcclDataType_t)type;
		cr_assert_eq(coll_check(&d, 0, 4),
			type < 0 || type >= symcclNumTypes ? symcclInvalidArgument : symcclSuccess);
	}
	d = c;
	d.func = (symcclFunc_t)77;
	cr_assert_eq(coll_check(&d, 0, 4), symcclInvalidArgument);
	d = (struct coll_call){.func = symcclFuncBarrier};
	cr_assert_eq(coll_check(&d, 0, 4), symcclSuccess);
}

Test(coll_plan, sizes_that_overflow)
{
	static char buf[8];
	struct coll_call c = {.func = symcclFuncAllGather,
		.send.ptr = buf,
		.recv.ptr = buf,
		.type = symcclFloat64};
	const size_t bad[] = {SIZE_MAX, SIZE_MAX / 8, SIZE_MAX / 8 + 1, SIZE_MAX / 64 + 1,
		(size_t)1 << 61, (size_t)1 << 44};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		c.count = bad[i];
		cr_assert_eq(coll_check(&c, 0, 8), symcclInvalidArgument, "%zu", bad[i]);
		cr_assert_not_null(strstr(error_text(), "count"));
	}
	c.count = (size_t)1 << 33; /* far over 2^31, and right */
	cr_assert_eq(coll_check(&c, 0, 8), symcclSuccess);
}

/* ---- Layout ---------------------------------------------------------------------------------- */

Test(coll_plan, layout)
{
	for (int n = 1; n <= 1024; n += n < 20 ? 1 : n / 3)
		for (int nctas = 1; nctas <= CTRL_CTAS_MAX; nctas *= 4) {
			size_t cells = (size_t)n * (size_t)nctas * 2;
			struct ctrl_layout l;

			ctrl_layout(n, nctas, &l);
			cr_assert(l.nranks == n && l.nctas == nctas);
			cr_assert_geq(l.slots, sizeof(struct ctrl_head));
			cr_assert_geq(l.stage, l.slots + cells * CTRL_SLOT_BYTES);
			cr_assert_geq(l.bulk, l.stage + cells * l.stage_bytes);
			cr_assert_geq(l.rings, l.bulk + (size_t)nctas * 2 * l.bulk_bytes);
			cr_assert_geq(
				l.answers, l.rings + (size_t)n * l.ring_slots *
							     (CTRL_SLOT_BYTES + l.ring_bytes));
			cr_assert_geq(l.pairs, l.answers + (size_t)n * sizeof(struct ring_answer));
			cr_assert_geq(l.size, l.pairs + (size_t)n * sizeof(struct ring_pair));
			cr_assert_eq(
				(l.slots | l.stage | l.bulk | l.rings | l.answers | l.pairs) % 128,
				0);
			cr_assert(l.ring_slots >= 2 && (l.ring_slots & (l.ring_slots - 1)) == 0);
			cr_assert_geq(l.stage_bytes, 256);
			cr_assert_geq(l.bulk_bytes, 16384);
			if (nctas == 1 && n <= 16)
				cr_assert_leq(
					l.size, (size_t)1536 << 10, "%d ranks: %zu", n, l.size);
			else if (nctas == 1 && n <= 512)
				cr_assert_leq(
					l.size, (size_t)1100 << 10, "%d ranks: %zu", n, l.size);
		}
	cr_assert_eq(sizeof(struct ctrl_head) % 128, 0);
	cr_assert_eq(offsetof(struct ctrl_head, waiters) % 128, 0);
}

/* ---- Choice ---------------------------------------------------------------------------------- */

static void call(
	const struct rig *r, int rank, enum rig_memory m, size_t bytes, struct coll_call *c)
{
	static char some[64];

	*c = (struct coll_call){.func = symcclFuncAllGather, .type = symcclInt8, .count = bytes};
	c->send.ptr = c->recv.ptr = some;
	c->send.ptr = some + 32;
	if (m == RIG_PLAIN)
		return;
	rig_window(r, rank, m, 1, 64, &c->send);
	rig_window(r, rank, m, 2, 64, &c->recv);
}

static const char *chosen(struct coll_team *t, const struct coll_call *c, const char *algo)
{
	struct coll_plan p;

	snprintf(t->tuning.algo, sizeof(t->tuning.algo), "%s", algo);
	cr_assert_eq(coll_plan(t, c, &p), symcclSuccess);
	cr_assert(p.hash != 0 && p.nctas == t->nctas && p.cost_us > 0);
	return p.algo->name;
}

Test(coll_plan, forced_rows)
{
	const struct coll_algo *a;
	struct coll_team t;
	struct coll_call c;
	struct rig r;
	size_t n;

	cr_assert_eq(rig_open(&r, 4, 1, 1 << 20), 0);
	rig_team(&r, 1, &t);
	a = coll_algos(&n);
	call(&r, 1, RIG_SYMMETRIC, 500, &c);
	for (size_t i = 0; i < n; i++) {
		char list[128];

		if (a[i].func != symcclFuncAllGather || a[i].gpu != 0 ||
			(a[i].needs & ~(COLL_NEED_SEND_WINDOW | COLL_NEED_RECV_WINDOW)))
			continue;
		cr_assert_str_eq(chosen(&t, &c, a[i].name), a[i].name);
		snprintf(list, sizeof(list), "reduce/x,%s,allreduce/two", a[i].name);
		cr_assert_str_eq(chosen(&t, &c, list), a[i].name);
	}
	/* Names are whole ones. */
	cr_assert_str_eq(chosen(&t, &c, "allgather/pushy,xallgather/push"), chosen(&t, &c, ""));
	/* A row that cannot take the call leaves it to the others. */
	call(&r, 1, RIG_PLAIN, 500, &c);
	cr_assert_str_neq(chosen(&t, &c, "allgather/push"), "allgather/push");
	call(&r, 1, RIG_DEFAULT, 500, &c);
	cr_assert_str_neq(chosen(&t, &c, "allgather/push"), "allgather/push");
	cr_assert_str_neq(chosen(&t, &c, "allgather/pull"), "allgather/pull");
	call(&r, 1, RIG_PLAIN, t.layout.stage_bytes + 1, &c);
	cr_assert_str_neq(chosen(&t, &c, "allgather/packet"), "allgather/packet");
	c = (struct coll_call){.func = symcclFuncBarrier};
	cr_assert_str_eq(chosen(&t, &c, "allgather/push"), "barrier/flags");
	rig_close(&r);
}

Test(coll_plan, cheapest_row)
{
	struct coll_team t;
	struct coll_call c;
	struct rig r;

	cr_assert_eq(rig_open(&r, 2, 1, 1 << 20), 0);
	rig_team(&r, 0, &t);
	/* One step for what fits a line; the windows once there is something to move. */
	for (int m = 0; m < RIG_MEMORIES; m++) {
		call(&r, 0, (enum rig_memory)m, 8, &c);
		cr_assert_str_eq(chosen(&t, &c, ""), "allgather/packet");
	}
	call(&r, 0, RIG_SYMMETRIC, 8192, &c);
	cr_assert_str_eq(chosen(&t, &c, ""), "allgather/push");
	c.recv = (struct coll_buf){.ptr = c.recv.ptr};
	call(&r, 0, RIG_SYMMETRIC, (size_t)1 << 30, &c);
	cr_assert_str_eq(chosen(&t, &c, ""), "allgather/push");
	rig_close(&r);

	/* When ranks share CPUs a step costs a turn of each: fewest steps first, up to 64 KiB. */
	cr_assert_eq(rig_open(&r, 4, 1, 1 << 20), 0);
	rig_team(&r, 0, &t);
	t.oversubscribed = 1;
	for (size_t bytes = 1; bytes <= 16384; bytes *= 4) {
		const char *name;

		call(&r, 0, RIG_SYMMETRIC, bytes, &c);
		name = chosen(&t, &c, "");
		cr_assert(strcmp(name, "allgather/packet") == 0 ||
				  strcmp(name, "allgather/scratch") == 0,
			"%zu bytes: %s", bytes, name);
	}
	rig_close(&r);
}

/* All ranks that make one call take one row and one hash; a difference that matters shows. */
/* Plain buffers on GPUs: every call has a row, and what staged kernels take fits into the scratch.
 */
Test(coll_plan, staged_parts_fit)
{
	static const int ranks[] = {1, 2, 3, 8, 9, 50, 120}, shares[] = {1, 2, 8};
	static char buf[8];
	int large = 0;

	for (size_t i = 0; i < ARRAY_LEN(ranks) * ARRAY_LEN(shares); i++) {
		int n = ranks[i % ARRAY_LEN(ranks)], share = shares[i / ARRAY_LEN(ranks)];
		struct coll_gpu gpu = {.slots = 1 << 18,
			.scratch = 16 << 20,
			.ctas = MIN(132 / share, DEV_CTAS_MAX),
			.ranks_per_gpu = share,
			.shared = share == n};
		struct coll_team t = {.nranks = n, .gpu = &gpu};

		for (size_t k = 0; k < 3 * 35; k++) {
			struct coll_call c = {.func = (symcclFunc_t)(symcclFuncAllGather + k % 3),
				.send.ptr = buf,
				.recv.ptr = buf + 1,
				.count = ((size_t)1 << k / 3) + k % 2,
				.type = symcclFloat32};
			struct coll_plan plan;
			enum cuda_algo algo;
			size_t part;

			cr_assert_eq(coll_plan(&t, &c, &plan), symcclSuccess);
			algo = (enum cuda_algo)(plan.algo->gpu - 1);
			if (c.count <= 1024)
				cr_assert_not(gpu_is_staged(algo), "%s", plan.algo->name);
			if (!gpu_is_staged(algo))
				continue;
			large++;
			part = gpu_staged_part(&t, &c, algo, plan.nctas);
			cr_assert(part > 0 && part % 128 == 0, "%zu", part);
			cr_assert_leq(
				cuda_staged_bytes(algo, (uint32_t)n, (uint32_t)plan.nctas, part),
				gpu.scratch, "%s, %d ranks, %d CTAs, %zu elements: parts of %zu",
				plan.algo->name, n, plan.nctas, c.count, part);
		}
	}
	cr_assert_gt(large, 300);
}

Test(coll_plan, same_on_all_ranks)
{
	struct coll_plan p, q;
	struct coll_team t;
	struct coll_call c, d;
	struct rig r;

	cr_assert_eq(rig_open(&r, 5, 1, 8 << 20), 0);
	for (int in_place = 0; in_place < 2; in_place++)
		for (int m = 0; m < RIG_MEMORIES; m++)
			for (size_t bytes = 1; bytes < ((size_t)1 << 30); bytes *= 7)
				for (int rank = 0; rank < r.n; rank++) {
					rig_team(&r, rank, &t);
					call(&r, rank, (enum rig_memory)m, bytes, &c);
					if (in_place) {
						c.send = c.recv;
						c.send.ptr =
							(char *)c.send.ptr + (size_t)rank * bytes;
						c.send.offset += (size_t)rank * bytes;
					}
					cr_assert_eq(coll_plan(&t, &c, &p), symcclSuccess);
					if (rank == 0)
						q = p;
					cr_assert(p.algo == q.algo && p.hash == q.hash,
						"rank %d of %zu bytes", rank, bytes);
				}
	rig_team(&r, 0, &t);
	snprintf(t.tuning.algo, sizeof(t.tuning.algo), "allgather/push");
	call(&r, 0, RIG_SYMMETRIC, 1000, &c);
	cr_assert_eq(coll_plan(&t, &c, &p), symcclSuccess);
	for (int k = 0; k < 6; k++) {
		d = c;
		if (k == 0)
			d.count++;
		else if (k == 1)
			d.type = symcclUint8;
		else if (k == 2)
			d.recv.offset++;
		else if (k == 3)
			d.recv.window++;
		else if (k == 4)
			snprintf(t.tuning.algo, sizeof(t.tuning.algo), "allgather/scratch");
		else
			d = (struct coll_call){.func = symcclFuncBarrier};
		cr_assert_eq(coll_plan(&t, &d, &q), symcclSuccess);
		cr_assert_neq(p.hash, q.hash, "difference %d", k);
	}
	rig_close(&r);
}

/* ---- Copies ---------------------------------------------------------------------------------- */

Test(coll_plan, copies)
{
	static const size_t sizes[] = {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 255, 256, 257, 511,
		1000, 4095, 4096, 4097, 8192 + 77, 20000};
	struct guarded s, a, b;
	long at;

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		for (size_t k = 0; k < 300; k++) {
			size_t n = sizes[i], x = mix64(test_seed(), k * 1000 + i);
			int stream = k & 1;

			cr_assert_eq(guarded_alloc(&s, n, x % 64), 0);
			cr_assert_eq(guarded_alloc(&a, n, x >> 8 & 63), 0);
			/* Often the same alignment. */
			cr_assert_eq(guarded_alloc(&b, n, x >> (k & 2 ? 8 : 16) & 63), 0);
			fill_bytes(s.p, n, x);
			poison(a.p, n);
			poison(b.p, n);
			if (k % 3 == 0) {
				copy_stream(a.p, s.p, n);
				copy_plain(b.p, s.p, n);
			} else {
				copy_twice(a.p, b.p, s.p, n, stream);
			}
			cr_assert_eq(check_bytes(a.p, n, x), n, "%zu bytes, case %zu", n, k);
			cr_assert_eq(check_bytes(b.p, n, x), n, "%zu bytes, case %zu", n, k);
			cr_assert_eq(guarded_check(&s, &at), 0);
			cr_assert_eq(guarded_check(&a, &at), 0, "%zu bytes: %ld", n, at);
			cr_assert_eq(guarded_check(&b, &at), 0, "%zu bytes: %ld", n, at);
			guarded_free(&s);
			guarded_free(&a);
			guarded_free(&b);
		}
}

/* ---- Where payload lies ---------------------------------------------------------------------- */

/* Whatever step: all ranks agree on each place, no two write one, and in the usual course a place
 * is written by who has read it the time before. */
Test(coll_plan, payload_changes_hands)
{
	enum { N = 5, CTAS = 2 };
	struct ctrl_layout l;
	struct rig r;

	cr_assert_eq(rig_open(&r, N, CTAS, 4096), 0);
	l = r.layout;
	for (uint64_t e = 2; e < 12; e++) {
		char *seen[CTAS * N * N];
		size_t n = 0;

		for (int cta = 0; cta < CTAS; cta++)
			for (int from = 0; from < N; from++)
				for (int to = 0; to < N; to++) {
					struct coll_team a, b;
					struct step s = {.team = &a, .cta = cta, .epoch = e};
					struct step d = {.team = &b, .cta = cta, .epoch = e};
					struct step before = {
						.team = &a, .cta = cta, .epoch = e - 2};
					char *p;

					rig_team(&r, from, &a);
					rig_team(&r, to, &b);
					p = from == to ? step_bulk(&s, from)
						       : step_stage(&s, to, from);
					cr_assert_eq(p, from == to ? step_bulk(&d, from)
								   : step_stage(&d, to, from));
					for (size_t i = 0; i < n; i++)
						cr_assert_neq(p, seen[i]);
					seen[n++] = p;
					if (from != to)
						cr_assert_eq(p, step_stage(&before, from, to));
					else
						cr_assert_neq(p, step_bulk(&before, from));
					cr_assert_eq(((size_t)(p - a.ctrl) % r.stride -
							     (from == to ? l.bulk : l.stage)) %
							     64,
						0);
				}
	}
	rig_close(&r);
}
