/* Mappings: importing every rank's allocation and laying them side by side. */
#define _GNU_SOURCE
#include <stdlib.h>
#include "log.h"
#include "sym/sym.h"
#include "util.h"

/* Pages of this rank's own slot are left to be faulted in when it is the only rank here: it works
 * through the user's pointer, and the peers have their own page tables. */
static int slot_prefault(const struct sym *s, int rank)
{
	return s->nlocal > 1 || s->boot->rank_proc[rank] != s->boot->proc;
}

symcclResult_t mapping_create(struct sym *s, struct mapping *m)
{
	for (int i = 0; i < m->nsegs; i++) {
		int rank = m->seg_rank[i];
		char *va = space_addr(&s->space, &m->ext, rank) + m->seg_off[i];

		if (m->segs[i] == NULL) {
			m->no_handle = 1;
			return fail(symcclSystemError,
				"no descriptor of rank %d's memory was received: the descriptor "
				"table is full "
				"(raise ulimit -n)",
				rank);
		}
		TRY(s->mem->map(va, m->segs[i]));
		m->nmapped = i + 1;
		TRY(s->mem->set_access(va, m->segs[i]->size, slot_prefault(s, rank), s->stop));
	}
	return symcclSuccess;
}

void mapping_release(struct sym *s, struct mapping *m)
{
	struct mapping **p = &s->maps;

	if (m == NULL)
		return;
	while (*p != NULL && *p != m)
		p = &(*p)->next;
	if (*p == m)
		*p = m->next;
	multicast_release(s, m);
	for (int i = 0; i < m->nmapped; i++) {
		char *va = space_addr(&s->space, &m->ext, m->seg_rank[i]) + m->seg_off[i];

		/* Once more, since the CUDA driver may report an older error instead: what stays
		 * would be in the way of the next mapping. */
		if (s->mem->unmap(va, m->segs[i]) != symcclSuccess &&
			s->mem->unmap(va, m->segs[i]) != symcclSuccess)
			log_warn(LOG_SYM, "rank %d's memory stays mapped: %s", m->seg_rank[i],
				error_text());
	}
	for (int i = 0; i < m->nsegs; i++)
		s->mem->release(m->segs[i]);
	if (m->ext.size)
		space_free(&s->space, &m->ext);
	free(m->segs);
	free(m->seg_off);
	free(m->seg_rank);
	free(m->key);
	free(m);
}
