/*
 * A thread that runs jobs for a rank, one after another: in a group that holds several ranks of one
 * process, each runs on its own, since a collective of one waits for the others.
 */
#ifndef EXEC_H
#define EXEC_H

#include "error.h"

struct exec;

symcclResult_t exec_new(struct exec **out);
/* Start fn(arg); the previous job must have been waited for. */
void exec_start(struct exec *x, symcclResult_t (*fn)(void *arg), void *arg);
/* Wait for the job; its result, with its sentence in the calling thread. */
symcclResult_t exec_wait(struct exec *x);
/* Stop the thread. NULL is accepted. */
void exec_free(struct exec *x);

#endif
