/*
 * One call of the library, of any kind that moves data, with all that it varies in: made, and
 * checked against the oracle. For ranks (ranks.h); the functions return 1 after recording a
 * failure.
 */
#ifndef TESTS_CALLS_H
#define TESTS_CALLS_H

#include <stddef.h>
#include <stdint.h>
#include "symccl.h"

#define CALLS_ROOM ((size_t)1 << 20)
#define CALLS_MEMORIES 3 /* symmetric window, other window, plain */

/* A rank with its buffers; rank and n are set before calls_open. */
struct calls_world {
	symcclComm_t c;
	symcclWindow_t window; /* over recv[0] */
	int rank, n;
	char *send[CALLS_MEMORIES], *recv[CALLS_MEMORIES]; /* CALLS_ROOM bytes each */
	char *other;                                       /* peers' inputs */
	char *want;
};
int calls_open(struct calls_world *w); /* joins a new communicator */
int calls_close(struct calls_world *w);

/* The same on all ranks. */
struct calls_one {
	symcclFunc_t func; /* SendRecv: a shift in a group; PutSignal: with signals and waits */
	symcclDataType_t type;
	int op, root, in_place, send, recv;
	size_t count, send_at, recv_at;
	uint64_t seed;
};
/* Case i of calls_all() for n ranks: functions, memory, place, type and operator are enumerated,
 * what is left comes from the seed. 0: there is no such case. */
uint64_t calls_all(void);
int calls_pick(int n, uint64_t seed, uint64_t i, struct calls_one *o);
int calls_run(struct calls_world *w, const struct calls_one *o);
void calls_text(const struct calls_one *o, char *out, size_t n);

#endif
