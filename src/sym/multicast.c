/*
 * Multicast for a batch's new mappings. The process of rank 0 makes an object for each, the others
 * import it, everybody adds the GPUs of its ranks, and then all vote: mapping the object and
 * binding memory to it block in the driver until every GPU has been added, so nobody may begin
 * before all are known to have come that far. How that went is part of the batch's own vote.
 *
 * It is all or nothing: one failure anywhere, and none of the batch's mappings has multicast on any
 * rank. That is no failure of the registration.
 *
 * Every process takes part in both exchanges of every batch as soon as multicast is agreed at all:
 * what a single process thinks of the mappings (it may be out of memory) must not change how many
 * messages it sends.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "log.h"
#include "sym/batch.h"
#include "util.h"

#define OBJECTS_MAX 64 /* a batch: descriptors go in one message; further mappings have none */

/* May it have multicast? The same on all ranks: it looks at what was exchanged alone. Not the
 * control blocks, which no such kernel uses; not for windows at different offsets, which have no
 * one address; not where one rank's memory ends before another's. */
static int wanted(const struct batch *b, const struct mapping *m)
{
	size_t size = 0;

	if (!m->symmetric || (b->ctrl_win != NULL && b->ctrl_win->map == m))
		return 0;
	for (int i = 0; i < m->nsegs; i++) {
		size_t bytes;

		if (i == 0 || m->seg_rank[i] != m->seg_rank[i - 1])
			size = 0;
		/* The key holds {proc, seq, size} of each segment, each rank's behind its count. */
		memcpy(&bytes,
			m->key + (size_t)(m->seg_rank[i] + 1) * sizeof(uint32_t) +
				(size_t)i * sizeof(struct wire_seg) +
				offsetof(struct wire_seg, size),
			sizeof(bytes));
		size += bytes;
		if (i == m->nsegs - 1 || m->seg_rank[i + 1] != m->seg_rank[i])
			if (size != m->size)
				return 0;
	}
	return 1;
}

static int is_local(const struct sym *s, int rank)
{
	return s->boot->rank_proc[rank] == s->boot->proc;
}

static void note(struct batch *b, symcclResult_t e)
{
	if (e != symcclSuccess && b->mc_bad.code == symcclSuccess)
		failure_now(&b->mc_bad, e, b->s->local[0]);
}

/* ---- Making and passing ---------------------------------------------------------------------- */

/* The objects of want[0..n), and a descriptor of each; stops at the first failure. */
static void objects_create(struct batch *b, struct mapping **want, int n, int *fds)
{
	const struct mem_ops *mem = b->s->mem;

	for (int j = 0; j < n && b->mc_bad.code == symcclSuccess; j++) {
		note(b, mem->multicast_create(want[j]->size, b->nranks, &want[j]->mc));
		if (want[j]->mc != NULL && b->s->boot->nprocs > 1)
			note(b, mem->export_fd(want[j]->mc, &fds[j]));
	}
}

/* Take over what the creator sent, one descriptor a mapping. */
static void objects_import(struct batch *b, struct mapping **want, int n, const int *fds, int nfds)
{
	if (nfds != n)
		note(b, fail(symcclInternalError, "%d multicast objects came, not %d", nfds, n));
	for (int j = 0; j < nfds; j++) {
		if (fds[j] < 0)
			note(b, fail_quiet(symcclRemoteError, "no multicast object came"));
		else if (b->mc_bad.code != symcclSuccess)
			close(fds[j]);
		else
			note(b, b->s->mem->multicast_import(fds[j], want[j]->size, &want[j]->mc));
	}
}

static symcclResult_t objects_pass(struct batch *b, struct mapping **want, int n, const int *mine)
{
	const struct boot *boot = b->s->boot;
	int creator = boot->rank_proc[0], *fds = NULL, *counts = NULL, at = 0;

	TRY(boot_allgather_fds(
		b->s->boot, mine, boot->proc == creator ? n : 0, &fds, &counts, b->deadline));
	for (int q = 0; q < boot->node_nprocs; q++) {
		int p = boot->node_proc0 + q;

		if (p == creator && p != boot->proc)
			objects_import(b, want, n, fds + at, counts[q]);
		else
			for (int i = 0; i < counts[q]; i++)
				if (fds[at + i] >= 0)
					close(fds[at + i]);
		at += counts[q];
	}
	free(fds);
	free(counts);
	return symcclSuccess;
}

static symcclResult_t objects_make(struct batch *b, struct mapping **want, int n)
{
	const struct sym *s = b->s;
	symcclResult_t e = symcclSuccess;
	int fds[OBJECTS_MAX];

	for (int j = 0; j < OBJECTS_MAX; j++)
		fds[j] = -1;
	if (s->boot->rank_proc[0] == s->boot->proc)
		objects_create(b, want, n, fds);
	if (s->boot->nprocs > 1)
		e = objects_pass(b, want, n, fds);
	for (int j = 0; j < OBJECTS_MAX; j++)
		if (fds[j] >= 0)
			close(fds[j]);
	for (int j = 0; j < n && e == symcclSuccess; j++)
		for (int l = 0; l < s->nlocal && b->mc_bad.code == symcclSuccess; l++)
			note(b, s->mem->multicast_add(want[j]->mc, s->device[l]));
	return e;
}

/* Has everybody added its GPUs? Then 1 in *all. */
static symcclResult_t added_vote(struct batch *b, int *all)
{
	char mine = b->mc_bad.code == symcclSuccess;
	const void **said;
	const size_t *len;

	*all = mine;
	if (b->s->boot->nprocs == 1)
		return symcclSuccess;
	TRY(boot_allgather(b->s->boot, &mine, 1, &said, &len, b->deadline));
	for (int p = 0; p < b->s->boot->nprocs; p++)
		*all &= len[p] == 1 && *(const char *)said[p] != 0;
	return symcclSuccess;
}

/* ---- Mapping and binding --------------------------------------------------------------------- */

/* On failure multicast_release takes back what was done. */
static symcclResult_t object_use(struct sym *s, struct mapping *m)
{
	void *va;

	TRY(s->mem->reserve(m->size, SPACE_UNIT, &va));
	m->mc_va = va;
	TRY(s->mem->map(va, m->mc));
	m->mc_mapped = 1;
	TRY(s->mem->set_access(va, m->size, 0, s->stop));
	for (int i = 0; i < m->nsegs; i++) {
		if (is_local(s, m->seg_rank[i]))
			TRY(s->mem->multicast_bind(m->mc, m->seg_off[i], m->segs[i]));
		m->mc_seen = i + 1;
	}
	return symcclSuccess;
}

/* Each once more, see mapping_release. */
void multicast_release(struct sym *s, struct mapping *m)
{
	if (m->mc == NULL)
		return;
	for (int i = 0; i < m->mc_seen; i++)
		if (is_local(s, m->seg_rank[i]) &&
			s->mem->multicast_unbind(m->mc, m->seg_off[i], m->segs[i]) !=
				symcclSuccess &&
			s->mem->multicast_unbind(m->mc, m->seg_off[i], m->segs[i]) != symcclSuccess)
			log_warn(LOG_SYM, "rank %d's memory stays bound: %s", m->seg_rank[i],
				error_text());
	if (m->mc_mapped && s->mem->unmap(m->mc_va, m->mc) != symcclSuccess &&
		s->mem->unmap(m->mc_va, m->mc) != symcclSuccess)
		log_warn(LOG_SYM, "a multicast object stays mapped: %s", error_text());
	if (m->mc_va != NULL && s->mem->unreserve(m->mc_va, m->size) != symcclSuccess &&
		s->mem->unreserve(m->mc_va, m->size) != symcclSuccess)
		log_warn(LOG_SYM, "%zu MiB of address space stay reserved", m->size >> 20);
	s->mem->release(m->mc);
	m->mc = NULL;
	m->mc_va = NULL;
	m->mc_mapped = m->mc_seen = 0;
}

symcclResult_t batch_multicast(struct batch *b)
{
	struct mapping *want[OBJECTS_MAX];
	int n = 0, all;

	if (!b->s->multicast)
		return symcclSuccess;
	for (int j = 0; j < b->nfresh && n < OBJECTS_MAX; j++) {
		if (!wanted(b, b->fresh[j]))
			continue;
		want[n++] = b->fresh[j];
		/* The window will be refused, on all ranks. */
		if (b->fresh[j]->why.code != symcclSuccess)
			b->mc_bad = b->fresh[j]->why;
	}
	TRY(objects_make(b, want, n));
	TRY(added_vote(b, &all));
	/* Who failed says so in the batch's vote. */
	for (int j = 0; all && j < n && b->mc_bad.code == symcclSuccess; j++)
		note(b, object_use(b->s, want[j]));
	return symcclSuccess;
}

void batch_multicast_decide(struct batch *b)
{
	int n = 0;

	if (!b->s->multicast)
		return;
	for (int j = 0; j < b->nfresh; j++) {
		n += b->fresh[j]->mc != NULL;
		if (b->mc_bad.code != symcclSuccess)
			multicast_release(b->s, b->fresh[j]);
	}
	if (b->mc_bad.code != symcclSuccess)
		log_warn(LOG_SYM, "windows without multicast: %s", b->mc_bad.text);
	else
		log_trace(LOG_SYM, "%d new mappings with multicast", n);
}
