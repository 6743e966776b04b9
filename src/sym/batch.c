/*
 * One batch of the registration queue: probe, exchange, compare, pass handles, map, vote, commit or
 * undo. Every process works from the same exchanged bytes, so all come to the same windows, extents
 * and failures without another word, except for what the vote is about: what only happened here.
 *
 * Message of a process: u32 sets offered, u32 n, n freed ordinals; then per local rank, ascending:
 * u32 bytes that follow for this rank, [its control block, in the first batch], and per set:
 * u32 requests, then per request: wire_req, wire_seg[nseg], reason.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "log.h"
#include "sym/batch.h"
#include "util.h"

/* ---- 1: what this process says ------------------------------------------------------------ */

static void say_req(struct wbuf *b, const struct mem_span *span, const struct failure *bad,
	size_t size, int flags)
{
	struct wire_req h = {.flags = (uint32_t)flags, .code = (int32_t)bad->code, .size = size};
	size_t text = 0;

	if (bad->code == symcclSuccess) {
		h.nseg = (uint32_t)span->n;
		h.off = span->offset;
	} else {
		text = strlen(bad->text) + 1;
		h.text = (uint32_t)text;
	}
	wbuf_add(b, &h, sizeof(h));
	for (uint32_t i = 0; i < h.nseg; i++) {
		struct wire_seg g = {
			span->seg[i]->uid.proc, span->seg[i]->uid.seq, span->seg[i]->size};

		wbuf_add(b, &g, sizeof(g));
	}
	wbuf_add(b, bad->text, text);
}

/* The local probe of one request. A reason, not an error: every rank decides what to make of it. */
static void probe(struct batch *b, struct reg_req *r, int rank)
{
	symcclResult_t e;

	if (r->bad.code != symcclSuccess)
		return;
	e = b->s->mem->retain(r->addr, r->size, &r->span);
	if (e != symcclSuccess) {
		r->span.n = 0;
		failure_now(&r->bad, e, rank);
	}
}

/* A new control block for local rank l, on its own GPU. */
static symcclResult_t ctrl_create(struct batch *b, int l)
{
	if (b->s->device != NULL)
		TRY(b->s->mem->bind_thread(b->s->device[l]));
	return b->s->mem->create(b->s->ctrl_size, &b->ctrl[l]);
}

static void say_rank(struct batch *b, struct wbuf *m, int l, int n)
{
	size_t at = m->len, bytes;
	int rank = b->s->local[l];
	uint32_t u;

	wbuf_u32(m, 0);
	if (b->s->ctrl == NULL) {
		struct mem_span span = {.n = 1};
		struct failure bad = {.code = symcclSuccess};

		symcclResult_t e = ctrl_create(b, l);

		if (e != symcclSuccess)
			failure_now(&bad, e, rank);
		span.seg[0] = b->ctrl[l];
		say_req(m, &span, &bad, b->s->ctrl_size, SYMCCL_WIN_COLL_SYMMETRIC);
	}
	for (int k = 0; k < n; k++) {
		struct reg_set *s = batch_set(b, l, k);

		wbuf_u32(m, (uint32_t)s->nreq);
		for (int i = 0; i < s->nreq; i++) {
			probe(b, &s->req[i], rank);
			say_req(m, &s->req[i].span, &s->req[i].bad, s->req[i].size,
				s->req[i].flags);
		}
	}
	if (m->oom)
		return;
	bytes = m->len - at - sizeof(u);
	u = (uint32_t)bytes;
	memcpy(m->p + at, &u, sizeof(u));
}

/* ---- 2: what everybody said ----------------------------------------------------------------- */

static void hear_req(struct wcur *c, struct peer_req *p)
{
	wcur_get(c, &p->h, sizeof(p->h));
	p->segs = wcur_take(c, (size_t)p->h.nseg * sizeof(struct wire_seg));
	p->text = wcur_take(c, p->h.text);
	if (c->bad || p->h.nseg > MEM_SEGS_MAX || (p->h.text && p->text[p->h.text - 1] != '\0'))
		c->bad = 1;
	if (c->bad)
		memset(p, 0, sizeof(*p));
}

static struct wire_seg peer_seg(const struct peer_req *p, uint32_t i)
{
	struct wire_seg g;

	memcpy(&g, p->segs + i * sizeof(g), sizeof(g));
	return g;
}

static symcclResult_t hear_all(
	struct batch *b, const void **all, const size_t *len, struct wbuf *freed)
{
	const struct boot *boot = b->s->boot;

	b->ntaken = 1 << 30;
	for (int p = 0; p < boot->nprocs; p++) {
		struct wcur c = {all[p], (const unsigned char *)all[p] + len[p], 0};
		uint32_t offered = wcur_u32(&c), nfreed = wcur_u32(&c);
		const void *f = wcur_take(&c, (size_t)nfreed * sizeof(uint32_t));

		b->ntaken = MIN(b->ntaken, (int)offered);
		if (f != NULL)
			wbuf_add(freed, f, nfreed * sizeof(uint32_t));
		for (int i = 0; i < boot->procs[p].nranks; i++) {
			uint32_t bytes = wcur_u32(&c);
			const unsigned char *q = wcur_take(&c, bytes);

			if (q != NULL)
				b->cur[boot->procs[p].ranks[i]] = (struct wcur){q, q + bytes, 0};
		}
		if (c.bad || freed->oom)
			return fail(symcclInternalError,
				"the registration message of rank %d is malformed",
				boot->procs[p].ranks[0]);
	}
	return symcclSuccess;
}

/* ---- 3: compare, and find or plan the mapping ------------------------------------------------ */

/* Do the ranks ask for the same thing? `why` stays untouched when they do. *shared: every rank's
 * memory can be mapped. */
static void compare(struct batch *b, struct failure *why, int *shared)
{
	const struct peer_req *p = b->peer;
	char t[ERROR_TEXT_MAX];

	for (int r = 0; r < b->nranks; r++)
		if (p[r].h.code != symcclSuccess && p[r].h.code != symcclInvalidUsage) {
			failure_first(why, (symcclResult_t)p[r].h.code, r, p[r].text);
			return;
		}
	*shared = 1;
	for (int r = 0; r < b->nranks; r++) {
		int symmetric = p[0].h.flags & SYMCCL_WIN_COLL_SYMMETRIC;

		if (p[r].h.flags != p[0].h.flags) {
			snprintf(t, sizeof(t),
				"rank %d registers with flags %#x where rank 0 has %#x: windows "
				"must be "
				"registered in the same order with the same flags on all ranks",
				r, p[r].h.flags, p[0].h.flags);
			failure_first(why, symcclInvalidUsage, r, t);
			return;
		}
		if (p[r].h.code == symcclSuccess) {
			if (!symmetric || p[r].h.off == p[0].h.off || p[0].h.code != symcclSuccess)
				continue;
			snprintf(t, sizeof(t),
				"rank %d's buffer is at offset %llu of its allocation, rank 0's at "
				"%llu: a "
				"symmetric window needs equal offsets (or use SYMCCL_WIN_DEFAULT)",
				r, (unsigned long long)p[r].h.off, (unsigned long long)p[0].h.off);
			failure_first(why, symcclInvalidUsage, r, t);
			return;
		}
		*shared = 0;
		if (symmetric) {
			failure_first(why, (symcclResult_t)p[r].h.code, r, p[r].text);
			return;
		}
		log_info(LOG_SYM, "window without peer access, collectives will copy: %s",
			p[r].text);
	}
}

static void make_key(const struct batch *b, struct wbuf *key)
{
	for (int r = 0; r < b->nranks; r++) {
		wbuf_u32(key, b->peer[r].h.nseg);
		wbuf_add(key, b->peer[r].segs, b->peer[r].h.nseg * sizeof(struct wire_seg));
	}
}

/* The local handle of segment i of the request under decision, with a reference of its own. */
static struct mem_handle *own_seg(const struct mem_span *span, uint32_t i)
{
	__atomic_add_fetch(&span->seg[i]->refs, 1, __ATOMIC_RELAXED);
	return span->seg[i];
}

/* A mapping that nobody has yet: bookkeeping and extent now, handles and pages later. spans[l] is
 * local rank l's own memory. */
static struct mapping *plan_mapping(
	struct batch *b, struct wbuf *key, const struct mem_span *const *spans)
{
	const struct boot *boot = b->s->boot;
	struct mapping *m = calloc(1, sizeof(*m));
	int n = 0, l = 0;

	if (m == NULL)
		return NULL;
	for (int r = 0; r < b->nranks; r++)
		n += (int)b->peer[r].h.nseg;
	m->segs = calloc((size_t)n, sizeof(*m->segs));
	m->seg_off = calloc((size_t)n, sizeof(*m->seg_off));
	m->seg_rank = calloc((size_t)n, sizeof(*m->seg_rank));
	if (m->segs == NULL || m->seg_off == NULL || m->seg_rank == NULL) {
		mapping_release(b->s, m);
		return NULL;
	}
	for (int r = 0; r < b->nranks; r++) {
		size_t at = 0;
		int here = boot->rank_proc[r] == boot->proc;

		for (uint32_t i = 0; i < b->peer[r].h.nseg; i++) {
			m->segs[m->nsegs] = here ? own_seg(spans[l], i) : NULL;
			m->seg_rank[m->nsegs] = r;
			m->seg_off[m->nsegs++] = at;
			at += peer_seg(&b->peer[r], i).size;
		}
		m->size = MAX(m->size, at);
		l += here;
	}
	m->key = key->p;
	m->keylen = key->len;
	key->p = NULL;
	return m;
}

static struct mapping *find_mapping(const struct sym *s, const struct wbuf *key)
{
	for (struct mapping *m = s->maps; m != NULL; m = m->next)
		if (m->keylen == key->len && memcmp(m->key, key->p, key->len) == 0)
			return m;
	return NULL;
}

static symcclResult_t fresh_add(struct batch *b, struct mapping *m)
{
	if (b->nfresh == b->fresh_room) {
		int room = b->fresh_room * 2 + 16;
		struct mapping **p = realloc(b->fresh, (size_t)room * sizeof(*p));

		if (p == NULL)
			return fail(symcclSystemError, "out of memory for a window");
		b->fresh = p;
		b->fresh_room = room;
	}
	m->refs = 1; /* the batch's own, until it has ended */
	m->next = b->s->maps;
	b->s->maps = m;
	b->fresh[b->nfresh++] = m;
	return symcclSuccess;
}

/* Find or plan the mapping under the request. A failure in here is local: it goes to the vote. */
static struct mapping *want_mapping(struct batch *b, const struct mem_span *const *spans)
{
	struct wbuf key = {0};
	struct mapping *m;

	make_key(b, &key);
	if (key.oom)
		return NULL;
	m = find_mapping(b->s, &key);
	if (m == NULL) {
		m = plan_mapping(b, &key, spans);
		if (m != NULL && fresh_add(b, m) != symcclSuccess) {
			mapping_release(b->s, m);
			m = NULL;
		}
		/* The allocator runs in the same order on every process; that a reservation fails
		 * here alone is for the vote. */
		if (m != NULL && space_alloc(&b->s->space, m->size, 0, &m->ext) != symcclSuccess)
			failure_now(&m->why, symcclSystemError, b->s->local[0]);
	}
	free(key.p);
	return m;
}

static struct window *window_new(struct batch *b, struct mapping *m)
{
	struct window *w = calloc(1, sizeof(*w));

	if (w == NULL)
		goto out_of_memory;
	w->size = calloc((size_t)b->nranks, sizeof(*w->size));
	w->off = calloc((size_t)b->nranks, sizeof(*w->off));
	if (w->size == NULL || w->off == NULL)
		goto out_of_memory;
	w->flags = (int)b->peer[0].h.flags;
	w->symmetric = 1;
	for (int r = 0; r < b->nranks; r++) {
		w->size[r] = b->peer[r].h.size;
		w->off[r] = b->peer[r].h.off;
		w->symmetric &= w->off[r] == w->off[0];
	}
	w->map = m;
	if (m != NULL)
		m->refs++;
	return w;
out_of_memory:
	window_free(b->s, w);
	return NULL;
}

/* Decide the request that b->peer holds: agreed failures into *agreed, local ones into *local. */
static struct window *decide(struct batch *b, const struct mem_span *const *spans,
	struct failure *agreed, struct failure *local)
{
	struct mapping *m = NULL;
	struct window *w;
	int shared;

	if (agreed->code == symcclSuccess)
		compare(b, agreed, &shared);
	if (agreed->code != symcclSuccess)
		return NULL;
	if (shared) {
		m = want_mapping(b, spans);
		if (m == NULL) {
			failure_first(local, symcclSystemError, b->s->local[0],
				"out of memory for a window");
			return NULL;
		}
	}
	w = window_new(b, m);
	if (w != NULL && m != NULL)
		m->symmetric |= w->symmetric;
	if (w == NULL)
		failure_first(
			local, symcclSystemError, b->s->local[0], "out of memory for a window");
	return w;
}

static void decide_ctrl(struct batch *b, struct failure *local)
{
	struct mem_span *own = calloc((size_t)b->nlocal, sizeof(*own));
	const struct mem_span **spans = calloc((size_t)b->nlocal, sizeof(*spans));

	for (int r = 0; r < b->nranks; r++)
		hear_req(&b->cur[r], &b->peer[r]);
	if (own == NULL || spans == NULL) {
		failure_first(local, symcclSystemError, b->s->local[0], "out of memory");
		goto out;
	}
	for (int l = 0; l < b->nlocal; l++) {
		own[l].n = b->ctrl[l] != NULL;
		own[l].seg[0] = b->ctrl[l];
		spans[l] = &own[l];
	}
	b->ctrl_win = decide(b, spans, &b->ctrl_bad, local);
out:
	free(own);
	free(spans);
}

/* Read and decide set number i of every rank. */
static void decide_set(struct batch *b, int i, struct failure *local)
{
	const struct mem_span **spans = calloc((size_t)b->nlocal, sizeof(*spans));
	struct failure *agreed = &b->result[i];
	uint32_t n0 = 0;
	char t[160];
	uint32_t max = 0;

	for (int r = 0; r < b->nranks; r++) {
		uint32_t n = wcur_u32(&b->cur[r]);

		if (r == 0)
			n0 = n;
		if (n != n0) {
			snprintf(t, sizeof(t),
				"rank %d registers %u windows in this group where rank 0 registers "
				"%u",
				r, n, n0);
			failure_first(agreed, symcclInvalidUsage, r, t);
		}
		b->peer[r].h.nseg = n; /* borrowed as this rank's count, for skipping */
		max = MAX(max, n);
	}
	if (agreed->code != symcclSuccess) {
		for (int r = 0; r < b->nranks; r++)
			for (uint32_t k = b->peer[r].h.nseg; k > 0; k--) {
				struct peer_req skip;

				hear_req(&b->cur[r], &skip);
			}
		free(spans);
		return;
	}
	b->win[i] = calloc((size_t)max + 1, sizeof(*b->win[i]));
	if (spans == NULL || b->win[i] == NULL)
		failure_first(
			local, symcclSystemError, b->s->local[0], "out of memory for a window");
	for (uint32_t k = 0; k < n0; k++) {
		for (int r = 0; r < b->nranks; r++)
			hear_req(&b->cur[r], &b->peer[r]);
		if (spans == NULL || b->win[i] == NULL)
			continue;
		for (int l = 0; l < b->nlocal; l++)
			spans[l] = &batch_set(b, l, i)->req[k].span;
		b->win[i][k] = decide(b, spans, agreed, local);
		b->nwin[i] = (int)k + 1;
	}
	free(spans);
}

/* ---- All of it ------------------------------------------------------------------------- */

static void batch_fini(struct batch *b)
{
	for (int l = 0; l < b->nlocal; l++) {
		if (b->ctrl != NULL)
			b->s->mem->release(b->ctrl[l]);
		for (int i = 0; i < b->noffered; i++) {
			struct reg_set *s = batch_set(b, l, i);

			for (int k = 0; k < s->nreq; k++) {
				for (int g = 0; g < s->req[k].span.n; g++)
					b->s->mem->release(s->req[k].span.seg[g]);
				s->req[k].span.n = 0;
			}
		}
	}
	/* Nothing handed out: the communicator is dead, and the mappings go with sym_fini. */
	if (!b->committed)
		window_free(b->s, b->ctrl_win);
	for (int i = 0; b->nwin != NULL && i < b->ntaken; i++) {
		for (int k = 0; !b->committed && k < b->nwin[i]; k++)
			window_free(b->s, b->win[i][k]);
		free(b->win[i]);
	}
	for (int j = 0; j < b->nfresh; j++)
		mapping_drop(b->s, b->fresh[j]);
	free(b->cur);
	free(b->peer);
	free(b->fresh);
	free(b->win);
	free(b->nwin);
	free(b->result);
	free(b->ctrl);
}

static symcclResult_t exchange(struct batch *b, const uint32_t *mine, int nmine, struct wbuf *freed)
{
	struct wbuf m = {0};
	const void **all;
	const size_t *len;
	symcclResult_t e;

	wbuf_u32(&m, (uint32_t)b->noffered);
	wbuf_u32(&m, (uint32_t)nmine);
	wbuf_add(&m, mine, (size_t)nmine * sizeof(*mine));
	for (int l = 0; l < b->nlocal; l++)
		say_rank(b, &m, l, b->noffered);
	if (m.oom) {
		free(m.p);
		return fail(symcclSystemError, "out of memory while windows were being registered");
	}
	e = boot_allgather(b->s->boot, m.p, m.len, &all, &len, b->deadline);
	free(m.p);
	TRY(e);
	return hear_all(b, all, len, freed);
}

static symcclResult_t decide_all(struct batch *b, struct failure **local)
{
	*local = calloc((size_t)b->ntaken + 1, sizeof(**local));
	b->win = calloc((size_t)b->ntaken + 1, sizeof(*b->win));
	b->nwin = calloc((size_t)b->ntaken + 1, sizeof(*b->nwin));
	b->result = calloc((size_t)b->ntaken + 1, sizeof(*b->result));
	if (*local == NULL || b->win == NULL || b->nwin == NULL || b->result == NULL)
		return fail(symcclSystemError, "out of memory while windows were being registered");
	if (b->s->ctrl == NULL)
		decide_ctrl(b, &(*local)[b->ntaken]);
	for (int i = 0; i < b->ntaken; i++)
		decide_set(b, i, &(*local)[i]);
	for (int r = 0; r < b->nranks; r++)
		if (b->cur[r].bad)
			return fail(symcclInternalError,
				"the registration message of rank %d is malformed", r);
	return symcclSuccess;
}

static symcclResult_t batch_run(struct batch *b, const uint32_t *mine, int nmine,
	struct failure **local, struct wbuf *freed)
{
	if (b->cur == NULL || b->peer == NULL || b->ctrl == NULL)
		return fail(symcclSystemError, "out of memory while windows were being registered");
	TRY(exchange(b, mine, nmine, freed));
	TRY(decide_all(b, local));
	TRY(batch_map(b));
	TRY(batch_multicast(b));
	TRY(batch_vote(b, *local));
	batch_multicast_decide(b);
	batch_commit(b);
	batch_apply_freed(b->s, freed, b->nranks);
	return symcclSuccess;
}

symcclResult_t sym_batch(struct sym *s, struct reg_set *const *sets, int n, const uint32_t *mine,
	int nmine, uint64_t deadline, int *taken)
{
	struct batch b = {.s = s,
		.sets = sets,
		.noffered = n,
		.nlocal = s->nlocal,
		.nranks = s->boot->nranks,
		.deadline = deadline};
	struct failure *local = NULL;
	struct wbuf freed = {0};
	symcclResult_t e;

	b.cur = calloc((size_t)b.nranks, sizeof(*b.cur));
	b.peer = calloc((size_t)b.nranks, sizeof(*b.peer));
	b.ctrl = calloc((size_t)b.nlocal, sizeof(*b.ctrl));
	sym_reap(s);
	e = batch_run(&b, mine, nmine, &local, &freed);
	if (e == symcclSuccess) {
		*taken = b.ntaken;
		log_trace(LOG_SYM, "registered a batch of %d sets, %d new mappings", b.ntaken,
			b.nfresh);
	}
	batch_fini(&b);
	free(local);
	free(freed.p);
	return e;
}

symcclResult_t sym_init(struct sym *s, struct boot *boot, const struct mem_ops *mem, int nlocal,
	const int *local, size_t stride, size_t ctrl_size, const uint32_t *stop)
{
	memset(s, 0, sizeof(*s));
	s->boot = boot;
	s->mem = mem;
	s->nlocal = nlocal;
	s->local = local;
	s->ctrl_size = align_up(ctrl_size, mem->granularity());
	s->stop = stop;
	return space_init(&s->space, mem, boot->nranks, stride);
}

void sym_fini(struct sym *s)
{
	if (s->mem == NULL)
		return;
	sym_reap(s);
	while (s->windows != NULL) {
		struct window *w = s->windows;

		s->windows = w->next;
		window_free(s, w);
	}
	/* A batch that a death broke leaves mappings without windows. */
	while (s->maps != NULL)
		mapping_release(s, s->maps);
	space_fini(&s->space);
	memset(s, 0, sizeof(*s));
}
