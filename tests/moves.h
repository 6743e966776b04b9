/*
 * Calls that move data without changing it: what each rank's buffers must hold before and after.
 * Every pair of ranks has its own random bytes, so nothing can pass for anything else.
 */
#ifndef TESTS_MOVES_H
#define TESTS_MOVES_H

#include <stddef.h>
#include <stdint.h>
#include "symccl.h"

struct moves {
	symcclFunc_t func; /* AllGather, AlltoAll, Broadcast, Gather, Scatter, AlltoAllv */
	int n, root, in_place;
	size_t block; /* bytes of a block; of AlltoAllv: at most */
	uint64_t seed;
};
#define MOVES_GUARD 64

/* Bytes of a rank's buffers; 0: the buffer does not count there. */
size_t moves_send_bytes(const struct moves *m, int rank);
size_t moves_recv_bytes(const struct moves *m, int rank);
/* Bytes from one rank to another in an AlltoAllv; some are 0. Blocks lie behind one another. */
size_t moves_pair_bytes(const struct moves *m, int from, int to);
/* Where the rank's send buffer lies when the call is in place there, as an offset from recv; and
 * whether it is (rooted calls: only the root). */
int moves_in_place(const struct moves *m, int rank, ptrdiff_t *send_at);

/* Fill the input, poison the output, and set guards of MOVES_GUARD bytes around both. In place send
 * is where moves_in_place says. */
void moves_fill(const struct moves *m, int rank, char *send, char *recv);
/* Compare every byte of output, input and guards. 0, or 1 with a sentence. */
int moves_verify(const struct moves *m, int rank, const char *send, const char *recv, char *why,
	size_t whylen);

#endif
