/*
 * Communicators that do not block (config.blocking 0): what makes, ends or registers returns
 * symcclInProgress, a thread of the rank goes on with it, and symcclCommGetAsyncError() tells.
 * Until then the communicator's gate is shut (GATE_BUSY).
 */
#ifndef ASYNC_H
#define ASYNC_H

#include "comm.h"

static inline int comm_is_async(symcclComm_t comm)
{
	return comm->conf.blocking == 0;
}

/* Joining goes on by itself: shut the gate until it is over. */
void async_join(symcclComm_t comm);
/* Run fn(arg) on the rank's thread; its result is the communicator's state.
 * Return: symcclInProgress, or why it could not be started (then fn is not called). */
symcclResult_t async_start(symcclComm_t comm, symcclResult_t (*fn)(void *arg), void *arg);
/* The communicator's state: symcclInProgress, the failure that stands, what the last call came to.
 */
symcclResult_t async_state(symcclComm_t comm);

#endif
