/*
 * Calls of a communicator's life that ranks make together: split, shrink, finalize.
 *
 * Ranks meet on the board (board.h): each posts a note and reads those of all who take part. This
 * needs neither the bootstrap nor the hub's worker, so it works after a death, an abort or a
 * revoke, and beside collectives. Every wait ends when a rank that is awaited dies or leaves, when
 * this communicator is aborted, and after SYMCCL_SETUP_TIMEOUT. What a rank has posted before it
 * died counts, so that all survivors come to the same result.
 *
 * A call is a struct life, and goes through phases; one thread may take several ranks, or several
 * communicators, through them side by side.
 */
#ifndef LIFE_H
#define LIFE_H

#include "comm.h"

enum life_kind {
	LIFE_SPLIT = 1,
	LIFE_SHRINK,       /* of a healthy communicator */
	LIFE_SHRINK_ABORT, /* of whatever is left of one */
	LIFE_FINALIZE
};

struct life {
	enum life_kind kind;
	symcclComm_t comm;
	symcclComm_t *out;     /* split, shrink */
	symcclConfig_t config; /* of the new communicator */
	char name[64];
	int color, key; /* split */
	/* Who meets, ascending; n 0: all. */
	int *ranks, n;
	struct failure bad; /* wrong on this rank: all are told */
	/* While it runs: */
	int round; /* of the same communicator's in one group */
	int which; /* pair of notes */
	uint64_t note_key, deadline;
	uint32_t seq;
	int healthy;             /* a failure of the communicator breaks it off */
	struct life_note *heard; /* one per rank that meets */
	int *members, nmembers;  /* of the new communicator, as ranks of the old one */
	symcclUniqueId id;
	int has_id; /* this rank serves it */
	struct join_task join;
	struct failure result;
};

/* Run n calls, each with a result of its own, and free what they hold. Outputs are written when all
 * have succeeded. Returns the first failure. The caller holds the communicators (comm_hold), once.
 */
symcclResult_t life_run(struct life *l, int n);
/* Free what has not been run. */
void life_drop(struct life *l);
/* Run it now, or queue it when a group is open. Takes over what *l holds. */
symcclResult_t life_call(struct life *l);

#endif
