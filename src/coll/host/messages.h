/*
 * Messages between pairs of ranks, many at a time in both directions: what sends and receives, and
 * all calls made of them, run on. Packets and order: ring.h.
 *
 * Small messages, and those whose memory the two cannot reach, go through the ring's slots and
 * stages, pipelined; such a send is done when all is in the ring. For a larger one the sender asks:
 * it says where its bytes lie, the receiver answers where they are to go, and then both move a part
 * at the same time, as far as each can reach the other's memory: by plain loads and stores where it
 * is a window of the control blocks' range or of the same process, else by process_vm_readv(2) and
 * process_vm_writev(2). Neither is done before all has been moved.
 */
#ifndef HOST_MESSAGES_H
#define HOST_MESSAGES_H

#include "coll/coll.h"

/* Run n messages. Those with one peer in one direction go in the list's order; those with the rank
 * itself are copies, the k-th send to the k-th receive. share: of a large message the part, out of
 * 256, that the sender moves, as this rank would have it; MESSAGES_ANY: as the peer would. Errors:
 * as coll_algo.host. */
#define MESSAGES_ANY (-1)
symcclResult_t messages_run(const struct coll_team *t, const struct coll_call *c, uint32_t hash,
	const struct coll_xfer *x, int n, int share);

#endif
