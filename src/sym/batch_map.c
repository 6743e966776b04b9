/* The second half of a batch: pass handles, map, vote, commit or undo. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "log.h"
#include "sym/batch.h"
#include "util.h"

#define FDS_AT_ONCE 128 /* descriptors a process holds while it passes handles */

void failure_now(struct failure *f, symcclResult_t code, int rank)
{
	f->code = code;
	f->rank = rank;
	snprintf(f->text, sizeof(f->text), "rank %d: %s", rank, error_text());
}

void failure_first(struct failure *f, symcclResult_t code, int rank, const char *text)
{
	if (f->code != symcclSuccess)
		return;
	f->code = code;
	f->rank = rank;
	snprintf(f->text, sizeof(f->text), "%s", text);
}

void mapping_drop(struct sym *s, struct mapping *m)
{
	if (m != NULL && --m->refs == 0)
		mapping_release(s, m);
}

void window_free(struct sym *s, struct window *w)
{
	if (w == NULL)
		return;
	mapping_drop(s, w->map);
	free(w->size);
	free(w->off);
	free(w);
}

/* ---- 4 and 5: pass handles, map ----------------------------------------------------------------
 */

static int is_local(const struct sym *s, int rank)
{
	return s->boot->rank_proc[rank] == s->boot->proc;
}

/* Take the descriptors that process p sent for m out of fds; returns how many it used. */
static int import_from(struct sym *s, struct mapping *m, int p, const int *fds)
{
	int used = 0;

	for (int i = 0; i < m->nsegs; i++) {
		const unsigned char *k;
		struct wire_seg g;
		symcclResult_t e = symcclSuccess;
		size_t at = 0;
		int fd;

		if (s->boot->rank_proc[m->seg_rank[i]] != p)
			continue;
		fd = fds[used++];
		if (p == s->boot->proc) {
			if (fd >= 0)
				close(fd);
			continue;
		}
		/* The key holds all segments in the same order, each rank's behind its count. */
		at = (size_t)(m->seg_rank[i] + 1) * sizeof(uint32_t) + (size_t)i * sizeof(g);
		k = m->key + at;
		memcpy(&g, k, sizeof(g));
		if (fd >= 0 && m->why.code == symcclSuccess)
			e = s->mem->import_fd(
				fd, g.size, (struct mem_uid){g.proc, g.seq}, &m->segs[i]);
		else if (fd >= 0)
			close(fd);
		if (e != symcclSuccess)
			failure_now(&m->why, e, s->local[0]);
	}
	return used;
}

/* Pass the handles of fresh[from..to) around the node. */
static symcclResult_t pass_handles(struct batch *b, int from, int to)
{
	struct sym *s = b->s;
	const struct boot *boot = s->boot;
	int *fds = NULL, *counts = NULL, n = 0, at = 0, total = 0;
	int *mine;
	symcclResult_t e;

	for (int j = from; j < to; j++)
		for (int i = 0; i < b->fresh[j]->nsegs; i++)
			total += is_local(s, b->fresh[j]->seg_rank[i]);
	mine = calloc((size_t)total + 1, sizeof(*mine));
	if (mine == NULL)
		return fail(symcclSystemError, "out of memory while windows were being registered");
	for (int j = from; j < to; j++) {
		struct mapping *m = b->fresh[j];

		for (int i = 0; i < m->nsegs; i++) {
			if (!is_local(s, m->seg_rank[i]))
				continue;
			mine[n] = -1;
			e = m->why.code == symcclSuccess ? s->mem->export_fd(m->segs[i], &mine[n])
							 : symcclSuccess;
			if (e != symcclSuccess)
				failure_now(&m->why, e, m->seg_rank[i]);
			n++;
		}
	}
	e = boot_allgather_fds(s->boot, mine, n, &fds, &counts, b->deadline);
	for (int i = 0; i < n; i++)
		if (mine[i] >= 0)
			close(mine[i]);
	free(mine);
	TRY(e);
	for (int q = 0; q < boot->node_nprocs; q++) {
		int p = boot->node_proc0 + q, used = 0;

		for (int j = from; j < to; j++)
			used += import_from(s, b->fresh[j], p, fds + at + used);
		at += counts[q];
	}
	free(fds);
	free(counts);
	return symcclSuccess;
}

symcclResult_t batch_map(struct batch *b)
{
	int from = 0;

	while (b->s->boot->node_nprocs > 1 && from < b->nfresh) {
		int to = from, n = 0;

		while (to < b->nfresh && (to == from || n + b->fresh[to]->nsegs <= FDS_AT_ONCE))
			n += b->fresh[to++]->nsegs;
		TRY(pass_handles(b, from, to));
		from = to;
	}
	for (int j = 0; j < b->nfresh; j++) {
		struct mapping *m = b->fresh[j];
		symcclResult_t e;

		if (m->why.code != symcclSuccess)
			continue;
		e = mapping_create(b->s, m);
		if (e != symcclSuccess)
			failure_now(&m->why, e, b->s->local[0]);
	}
	return symcclSuccess;
}

/* ---- 6: vote, commit, undo ----------------------------------------------------------------- */

static void vote_say(struct wbuf *v, int set, const struct failure *f, int weak)
{
	struct wire_vote w = {set, (int32_t)f->code, f->rank, weak, ""};

	memcpy(w.text, f->text, sizeof(w.text));
	if (f->code != symcclSuccess)
		wbuf_add(v, &w, sizeof(w));
}

static void hear_votes(struct batch *b, const void *bytes, size_t len, int weak)
{
	for (size_t at = 0; at + sizeof(struct wire_vote) <= len; at += sizeof(struct wire_vote)) {
		struct wire_vote w;

		memcpy(&w, (const char *)bytes + at, sizeof(w));
		w.text[sizeof(w.text) - 1] = '\0';
		if (w.weak != weak)
			continue;
		if (w.set == -2)
			failure_first(&b->mc_bad, (symcclResult_t)w.code, w.rank, w.text);
		else if (w.set == -1)
			failure_first(&b->ctrl_bad, (symcclResult_t)w.code, w.rank, w.text);
		else if (w.set >= 0 && w.set < b->ntaken)
			failure_first(&b->result[w.set], (symcclResult_t)w.code, w.rank, w.text);
	}
}

/* Set -1 is the control block: its failure is everybody's. Set -2 is multicast: without it the
 * windows go on. */
symcclResult_t batch_vote(struct batch *b, const struct failure *local)
{
	const struct boot *boot = b->s->boot;
	struct wbuf v = {0};
	const void **all;
	const size_t *len;
	symcclResult_t e;

	vote_say(&v, -1, &local[b->ntaken], 0);
	vote_say(&v, -2, &b->mc_bad, 0);
	if (b->ctrl_win != NULL && b->ctrl_win->map != NULL)
		vote_say(&v, -1, &b->ctrl_win->map->why, b->ctrl_win->map->no_handle);
	for (int i = 0; i < b->ntaken; i++) {
		vote_say(&v, i, &local[i], 0);
		for (int k = 0; k < b->nwin[i]; k++)
			if (b->win[i][k] != NULL && b->win[i][k]->map != NULL)
				vote_say(&v, i, &b->win[i][k]->map->why,
					b->win[i][k]->map->no_handle);
	}
	if (v.oom) {
		free(v.p);
		return fail(symcclSystemError, "out of memory while windows were being registered");
	}
	e = boot_allgather(b->s->boot, v.p, v.len, &all, &len, b->deadline);
	free(v.p);
	TRY(e);
	for (int weak = 0; weak < 2; weak++)
		for (int p = 0; p < boot->nprocs; p++)
			hear_votes(b, all[p], len[p], weak);
	return symcclSuccess;
}

static void commit_window(struct sym *s, struct window *w)
{
	w->ordinal = s->next_ordinal;
	if (w->map != NULL) {
		w->base = space_addr(&s->space, &w->map->ext, 0);
		w->stride = space_stride(&s->space, &w->map->ext);
		if (w->map->mc != NULL && w->symmetric)
			w->mc = w->map->mc_va + w->off[0];
	}
	w->next = s->windows;
	s->windows = w;
}

/* Hand out what was agreed; the order of frees is the same everywhere, since extents depend on it.
 */
void batch_commit(struct batch *b)
{
	struct sym *s = b->s;

	b->committed = 1;
	if (b->ctrl_win != NULL) {
		if (b->ctrl_bad.code == symcclSuccess) {
			commit_window(s, b->ctrl_win);
			s->ctrl = b->ctrl_win;
			s->next_ordinal++;
		} else {
			window_free(s, b->ctrl_win);
		}
	}
	for (int i = 0; i < b->ntaken; i++) {
		struct failure *f = &b->result[i];

		if (s->ctrl == NULL)
			failure_first(f, b->ctrl_bad.code, b->ctrl_bad.rank, b->ctrl_bad.text);
		for (int k = 0; k < b->nwin[i]; k++) {
			if (f->code == symcclSuccess)
				commit_window(s, b->win[i][k]);
			else
				window_free(s, b->win[i][k]);
			s->next_ordinal++;
		}
		for (int l = 0; l < b->nlocal; l++) {
			struct reg_set *set = batch_set(b, l, i);

			set->result = *f;
			for (int k = 0; k < set->nreq; k++)
				set->req[k].window = f->code == symcclSuccess ? b->win[i][k] : NULL;
		}
	}
}

void batch_apply_freed(struct sym *s, const struct wbuf *freed, int nranks)
{
	for (size_t at = 0; at + sizeof(uint32_t) <= freed->len; at += sizeof(uint32_t)) {
		struct window **p = &s->windows, **end = &s->doomed, *w;
		uint32_t ordinal;

		memcpy(&ordinal, freed->p + at, sizeof(ordinal));
		while (*p != NULL && (*p)->ordinal != ordinal)
			p = &(*p)->next;
		w = *p;
		if (w == NULL || ++w->nfreed < nranks)
			continue;
		*p = w->next;
		log_trace(LOG_SYM, "window %u is free on all ranks", ordinal);
		w->next = NULL;
		while (*end != NULL)
			end = &(*end)->next;
		*end = w;
	}
}

void sym_reap(struct sym *s)
{
	/* It may take long: those who have just been woken go first. */
	if (s->doomed != NULL)
		sched_yield();
	/* In the order in which they were freed: extents depend on it. */
	while (s->doomed != NULL) {
		struct window *w = s->doomed;

		s->doomed = w->next;
		window_free(s, w);
	}
}
