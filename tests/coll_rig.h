/*
 * A team of ranks without the rest of the library: control blocks and two windows per rank, side by
 * side in one shared mapping, for threads and for forked processes alike.
 */
#ifndef TESTS_COLL_RIG_H
#define TESTS_COLL_RIG_H

#include <stddef.h>
#include <stdint.h>
#include "coll/coll.h"

#define RIG_RANKS_MAX 64

struct rig {
	int n, nctas;
	size_t room;             /* bytes of a window */
	size_t map_size, stride; /* of the mapping, and per rank in it */
	char *map;
	struct ctrl_layout layout;
	uint32_t *abort;
	size_t skew[RIG_RANKS_MAX]; /* of windows whose offsets differ */
};

/* Before the ranks start. 0, or 1 when there is no memory. */
int rig_open(struct rig *r, int n, int nctas, size_t room);
void rig_close(struct rig *r);
/* Zeroed control blocks whose last epoch was `epoch`, on all ranks. */
void rig_seed(const struct rig *r, uint64_t epoch);
/* One rank's view: 60 s deadline, short spins when ranks outnumber two CPUs. */
void rig_team(const struct rig *r, int rank, struct coll_team *t);

enum rig_memory { RIG_PLAIN, RIG_SYMMETRIC, RIG_DEFAULT, RIG_MEMORIES };
/* The buffer at `offset` of window 1 or 2, in a flavour that is not RIG_PLAIN. */
void rig_window(const struct rig *r, int rank, enum rig_memory m, int window, size_t offset,
	struct coll_buf *b);

/* ---- One all-gather, checked ----------------------------------------------------------------- */

struct rig_call {
	const char *algo; /* "": the library's choice */
	symcclDataType_t type;
	size_t count;
	enum rig_memory send, recv;
	size_t send_at, recv_at; /* offsets, at least RIG_GUARD, any alignment */
	int in_place;
	symcclFunc_t func; /* of a reduction */
	int root;          /* of a reduce */
};
#define RIG_GUARD 64

/* Plain memory of one rank, as large as a window. */
struct rig_plain {
	char *send, *recv;
};

/* Random input from seed + rank, poisoned output between guards, every byte compared. 0, or 1 with
 * a sentence in why. *ran is 0 when the algorithm does not take such a call. */
int rig_allgather(const struct rig *r, struct coll_team *t, const struct rig_plain *plain,
	const struct rig_call *c, uint64_t seed, int *ran, char *why, size_t whylen);

/* ---- One reduction, checked -------------------------------------------------------------------
 */

#define RIG_PREMUL symcclNumOps /* as an operator: a sum with each rank's own factor */
#define RIG_PERIOD 2053         /* elements after which inputs come again; a prime */

/* Inputs of n ranks, and what the oracle makes of them. Any bits are among them. */
struct rig_data {
	symcclDataType_t type;
	int op, n;
	char *input[RIG_RANKS_MAX]; /* RIG_PERIOD elements */
	uint64_t factor[RIG_RANKS_MAX];
	char *want;
};
/* Before the ranks start. 0, or 1 when there is no memory. */
int rig_data_open(struct rig_data *d, symcclDataType_t type, int op, int n, uint64_t seed);
void rig_data_close(struct rig_data *d);

/* As rig_allgather, for c->func AllReduce, ReduceScatter or Reduce of d's type and operator: rank
 * q's input is d->input[q] from element seed % RIG_PERIOD on, over and over. */
int rig_reduce(const struct rig *r, struct coll_team *t, const struct rig_plain *plain,
	const struct rig_call *c, const struct rig_data *d, uint64_t seed, int *ran, char *why,
	size_t whylen);

/* ---- Many ------------------------------------------------------------------------------------ */

/* Any small all-gather or (*barrier = 1) a barrier: the same for all ranks that give the same seed.
 */
void rig_random(const struct rig *r, uint64_t seed, size_t most, struct rig_call *c, int *barrier);
/* n of them. */
int rig_burst(const struct rig *r, struct coll_team *t, const struct rig_plain *plain,
	uint64_t seed, int n, size_t most, char *why, size_t whylen);

#endif
