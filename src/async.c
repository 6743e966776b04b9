#include "async.h"
#include <stdio.h>
#include <stdlib.h>
#include "exec.h"
#include "hub.h"

struct job {
	symcclComm_t comm;
	symcclResult_t (*fn)(void *arg);
	void *arg;
};

static void gate_shut(symcclComm_t comm)
{
	__atomic_store_n(&comm->gate, GATE_BUSY, __ATOMIC_RELEASE);
	comm_quick_set(comm);
}

/* The call may have put another lock on it. */
static void gate_open(symcclComm_t comm)
{
	int busy = GATE_BUSY;

	__atomic_compare_exchange_n(
		&comm->gate, &busy, GATE_OPEN, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
	comm_quick_set(comm);
}

void async_join(symcclComm_t comm)
{
	comm->joining = 1;
	gate_shut(comm);
}

static void job_run(void *arg)
{
	struct job *j = arg;
	symcclComm_t comm = j->comm;
	symcclResult_t e = j->fn(j->arg);

	free(j);
	pthread_mutex_lock(&comm->hub->lock);
	comm->outcome.code = e;
	if (e != symcclSuccess)
		snprintf(comm->outcome.text, sizeof(comm->outcome.text), "%s", error_text());
	pthread_mutex_unlock(&comm->hub->lock);
	gate_open(comm);
	/* From here on an abort may free it, when this thread has ended. */
	comm_release(comm);
}

symcclResult_t async_start(symcclComm_t comm, symcclResult_t (*fn)(void *arg), void *arg)
{
	struct job *j = malloc(sizeof(*j));
	symcclResult_t e = symcclSuccess;

	if (j == NULL)
		return comm_error(comm, fail(symcclSystemError, "out of memory for a call"));
	*j = (struct job){comm, fn, arg};
	if (comm->exec == NULL)
		e = exec_new(&comm->exec);
	if (e != symcclSuccess) {
		free(j);
		return comm_error(comm, e);
	}
	comm_hold(comm);
	gate_shut(comm);
	exec_start(comm->exec, job_run, j);
	return symcclInProgress;
}

symcclResult_t async_state(symcclComm_t comm)
{
	struct hub *h = comm->hub;
	struct failure last;
	int state = __atomic_load_n(&h->state, __ATOMIC_ACQUIRE);

	if (comm->joining && state == HUB_JOINING)
		return symcclInProgress;
	if (comm->joining) {
		comm->joining = 0;
		gate_open(comm);
	}
	if (__atomic_load_n(&comm->gate, __ATOMIC_ACQUIRE) == GATE_BUSY)
		return symcclInProgress;
	TRY(hub_status(h));
	pthread_mutex_lock(&h->lock);
	last = comm->outcome;
	pthread_mutex_unlock(&h->lock);
	return last.code == symcclSuccess ? last.code : fail_quiet(last.code, "%s", last.text);
}
