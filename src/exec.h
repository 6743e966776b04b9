/*
 * A thread that runs jobs for a rank, one after another: in a group that holds several ranks of one
 * process, each runs on its own, since a collective of one waits for the others.
 */
#ifndef EXEC_H
#define EXEC_H

#include "error.h"

struct exec;

symcclResult_t exec_new(struct exec **out);
/* Run fn(arg) when the job before has ended. */
void exec_start(struct exec *x, void (*fn)(void *arg), void *arg);
/* Stop the thread when its job has ended. NULL is accepted. */
void exec_free(struct exec *x);

#endif
