/* One batch in the making: shared by batch.c (what is asked and agreed) and batch_map.c (handles,
 * pages, vote, commit). */
#ifndef SYM_BATCH_H
#define SYM_BATCH_H

#include "sym/sym.h"
#include "sym/wire.h"

/* What one rank said about one request. */
struct peer_req {
	struct wire_req h;
	const unsigned char *segs; /* wire_seg[h.nseg], unaligned */
	const char *text;
};

struct batch {
	struct sym *s;
	struct reg_set *const *sets; /* [nlocal][noffered] */
	int noffered, nlocal, nranks, ntaken;
	uint64_t deadline;
	struct wcur *cur;       /* per rank: where its next request is read */
	struct peer_req *peer;  /* per rank: the request under decision */
	struct mapping **fresh; /* mappings this batch makes, in order */
	int nfresh, fresh_room;
	struct window ***win; /* per set: its windows */
	int *nwin;
	struct failure *result;   /* per set */
	struct mem_handle **ctrl; /* per local rank, first batch only */
	struct window *ctrl_win;
	struct failure ctrl_bad;
	struct failure mc_bad; /* why this batch's mappings are without multicast */
	int committed;
};

static inline struct reg_set *batch_set(const struct batch *b, int local, int i)
{
	return b->sets[local * b->noffered + i];
}

/* Note a local failure: code, and the calling thread's sentence with the rank before it. */
void failure_now(struct failure *f, symcclResult_t code, int rank);
/* The first failure stands. */
void failure_first(struct failure *f, symcclResult_t code, int rank, const char *text);

void mapping_drop(struct sym *s, struct mapping *m);
void window_free(struct sym *s, struct window *w);

/* Steps 4 to 6 (batch_map.c). local[i]: what went wrong here with set i; [ntaken]: with the control
 * block. */
symcclResult_t batch_map(struct batch *b);
symcclResult_t batch_vote(struct batch *b, const struct failure *local);
void batch_commit(struct batch *b);
/* Multicast for the new mappings, between batch_map and batch_vote (multicast.c). What goes wrong
 * is noted in mc_bad; fails only when the communicator is dead. */
symcclResult_t batch_multicast(struct batch *b);
/* After the vote: if a rank failed, none of the new mappings has it. */
void batch_multicast_decide(struct batch *b);
void batch_apply_freed(struct sym *s, const struct wbuf *freed, int nranks);

#endif
