/* Streams on the host: queues that a thread of their own works off. */
#ifndef HOST_STREAM_H
#define HOST_STREAM_H

#include "comm.h"

/* Put a planned call in the stream; copies what it needs. Calls of one communicator run in the
 * order in which they were put, whatever streams they are in. Return: symcclInvalidArgument when it
 * is no stream of this process. */
symcclResult_t host_stream_put(symcclComm_t comm, const struct coll_call *call,
	const struct coll_plan *plan, symcclStream_t stream);
/* The one of the messages' streams that their call is put in; NULL when none has one. */
symcclStream_t host_stream_of(const struct coll_xfer *x, int n);
/* The messages' other streams: what `to` gets next waits for what is in them, or what they get next
 * for what is in `from`; a message without a stream: this thread waits for `from`. */
symcclResult_t host_stream_gather(const struct coll_xfer *x, int n, symcclStream_t to);
symcclResult_t host_stream_spread(const struct coll_xfer *x, int n, symcclStream_t from);
/* Wait until all calls of the communicator that are in streams are done. */
void host_stream_drain(symcclComm_t comm);
/* Take out those that have not begun, as failed, then wait for the one that runs: the communicator
 * has failed, so it ends. */
void host_stream_purge(symcclComm_t comm);
/* In a forked child: there are none. */
void host_stream_forked(void);

#endif
