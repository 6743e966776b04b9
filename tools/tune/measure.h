/* Times of the host's algorithms on this machine: see symccl-tune. */
#ifndef TUNE_MEASURE_H
#define TUNE_MEASURE_H

#include "coll/coll.h"

#define CALLS_MAX 200

/* One row of the algorithm table with one size. */
struct sample {
	const struct coll_algo *algo;
	size_t bytes; /* of a call's count */
	int windows;  /* both buffers are symmetric windows, else plain memory */
	int calls;    /* how many are timed in each of three rounds, at most CALLS_MAX */
	double us;    /* least round's median of the slowest rank; 0: could not be measured */
};

struct ranks {
	int n, cpus;  /* ranks, and CPUs they are spread over */
	double crowd; /* out: ranks that share a CPU, which a quota may say, too; 0: not known */
	int readable; /* out: they may read each other's memory */
};

/* How many CPUs this process may use. */
int cpus_allowed(void);
/* Rank `rank`'s view of such a team, enough for coll_plan() and costs; t->tuning is left alone. */
void team_of(const struct ranks *r, int rank, struct coll_team *t);
/* A call of `bytes` per rank on made-up buffers, for the same. */
void call_of(symcclFunc_t func, size_t bytes, int windows, struct coll_call *c);

/* Time all samples on r->n processes on r->cpus CPUs, for as long as it takes but `seconds` at
 * most. 0, or -1 with a sentence in why. Forks: no library thread may run. */
int measure(struct ranks *r, struct sample *s, int n, double seconds, char *why, size_t whylen);

#endif
