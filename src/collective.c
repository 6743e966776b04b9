/* Running a collective: windows, plan, launch. The entry points are in calls.c. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "comm_gpu.h"
#include "host_stream.h"
#include "log.h"
#include "util.h"

/* What planning needs: sizes and constants; the control blocks may still be missing. */
static void team_fill(symcclComm_t comm, struct coll_team *t)
{
	struct hub *h = comm->hub;

	*t = (struct coll_team){.rank = comm->rank,
		.nranks = comm->nranks,
		.nctas = h->nctas,
		.layout = h->layout,
		.wait = h->wait,
		.tuning = h->tuning,
		.gpu = h->gpu ? hub_gpu_team(h) : NULL,
		.pid = h->pid,
		.readable = h->readable,
		.oversubscribed = h->oversubscribed,
		.crowd = h->crowd};
}

symcclResult_t comm_ready(symcclComm_t comm)
{
	const struct window *ctrl;
	symcclResult_t e;

	if (__builtin_expect(comm->ready, 1))
		return symcclSuccess;
	TRY(comm_gate(comm));
	TRY(hub_status(comm->hub));
	TRY(comm_set_wait(comm, comm->first));
	team_fill(comm, &comm->team);
	ctrl = comm->hub->sym.ctrl;
	comm->team.ctrl = ctrl->base + ctrl->off[0];
	comm->team.stride = ctrl->stride;
	if (comm->hub->gpu != NULL) {
		e = comm_gpu_open(comm);
		if (e != symcclSuccess) {
			comm_gpu_close(comm);
			return e;
		}
	}
	comm->ready = 1;
	comm_quick_set(comm);
	return symcclSuccess;
}

void comm_quick_set(symcclComm_t comm)
{
	int quick = comm->ready && comm->gpu == NULL && comm->turns == 0 &&
		    __atomic_load_n(&comm->gate, __ATOMIC_ACQUIRE) == GATE_OPEN;

	__atomic_store_n(&comm->quick, quick, __ATOMIC_RELAXED);
}

/* Bytes of the send and the receive buffer; 0 of one that does not count on this rank. */
static void call_bytes(const struct coll_call *c, int nranks, size_t *send, size_t *recv)
{
	size_t n = c->count * coll_type_size(c->type), all = n * (size_t)nranks;

	*send = *recv = n;
	if (c->func == symcclFuncAllGather || c->func == symcclFuncAlltoAll ||
		c->func == symcclFuncGather)
		*recv = all;
	if (c->func == symcclFuncReduceScatter || c->func == symcclFuncAlltoAll ||
		c->func == symcclFuncScatter)
		*send = all;
	if (c->func == symcclFuncBarrier || c->send.ptr == NULL)
		*send = 0;
	if (c->func == symcclFuncBarrier || c->recv.ptr == NULL)
		*recv = 0;
}

static void find_buf(symcclComm_t comm, struct coll_buf *b, size_t bytes)
{
	const struct symcclWindow *w = bytes ? comm_window_find(comm, b->ptr, bytes) : NULL;
	size_t at;

	if (w == NULL || w->w->map == NULL)
		return;
	at = (size_t)((char *)b->ptr - w->user);
	b->stride = w->w->stride;
	b->window = w->w->ordinal;
	b->offset = at;
	b->symmetric = (w->w->flags & SYMCCL_WIN_COLL_SYMMETRIC) != 0;
	b->skew = w->w->symmetric ? NULL : w->w->off;
	b->peers = w->w->base + at + (w->w->symmetric ? w->w->off[0] : 0);
	b->mc = w->w->mc ? w->w->mc + at : NULL;
}

static symcclResult_t plan_call(
	symcclComm_t comm, const struct coll_call *c, struct plan_memo **out)
{
	struct plan_memo *m = comm_memo(comm, c->send.ptr, c->recv.ptr, c->count);
	size_t send, recv;

	if (__builtin_expect(mem_frees() != comm->freed_seen, 0))
		comm_windows_recheck(comm);
	*out = m;
	if (!c->has_factor && comm_remembers(comm, m, c->func, c->send.ptr, c->recv.ptr, c->count,
				      c->type, c->op, c->root))
		return symcclSuccess;
	TRY(coll_check(c, comm->rank, comm->nranks));
	m->gen = 0;
	m->call = *c;
	call_bytes(c, comm->nranks, &send, &recv);
	find_buf(comm, &m->call.send, send);
	find_buf(comm, &m->call.recv, recv);
	if (comm->gpu != NULL && send > 0)
		TRY(comm_gpu_check_buffer(comm, "sendbuff", c->send.ptr));
	if (comm->gpu != NULL && recv > 0)
		TRY(comm_gpu_check_buffer(comm, "recvbuff", c->recv.ptr));
	TRY(coll_plan(&comm->team, &m->call, &m->plan));
	log_trace(LOG_COLL, "rank %d: %s, count %zu, %d CTAs", comm->rank, m->plan.algo->name,
		c->count, m->plan.nctas);
	m->gen = comm->wins_gen + 1;
	return symcclSuccess;
}

/* On the host it does not matter where a message of one packet lies. */
static int is_anywhere(symcclComm_t comm, const struct coll_xfer *x)
{
	return x->bytes <= comm->team.layout.ring_bytes && comm->gpu == NULL;
}

static struct coll_plan *plan_of(symcclComm_t comm, symcclFunc_t func)
{
	return &comm->listed[func - symcclFuncAlltoAllv];
}

/* A call that names its peers: no two are alike, so the messages are not remembered. */
static symcclResult_t plan_listed(
	symcclComm_t comm, struct coll_call *c, const struct coll_plan **plan)
{
	struct coll_plan *p = plan_of(comm, c->func);

	if (__builtin_expect(mem_frees() != comm->freed_seen, 0))
		comm_windows_recheck(comm);
	for (int i = 0; i < c->nxfers; i++) {
		if (!is_anywhere(comm, &c->xfer[i]))
			find_buf(comm, &c->xfer[i].buf, c->xfer[i].bytes);
		if (comm->gpu != NULL && c->xfer[i].bytes > 0)
			TRY(comm_gpu_check_buffer(comm, c->xfer[i].recv ? "recvbuff" : "sendbuff",
				c->xfer[i].buf.ptr));
	}
	if (c->func == symcclFuncPutSignal) {
		size_t n = c->count * coll_type_size(c->type);

		find_buf(comm, &c->send, n);
		if (comm->gpu != NULL && n > 0)
			TRY(comm_gpu_check_buffer(comm, "localbuff", c->send.ptr));
	}
	*plan = p;
	return comm->gpu == NULL && p->algo != NULL ? symcclSuccess : coll_plan(&comm->team, c, p);
}

/* A collective that fails half-way leaves the ranks out of step: the communicator is over. */
static symcclResult_t run_failed(symcclComm_t comm, symcclResult_t e)
{
	struct failure why = {.code = e, .rank = comm->rank};

	if (e == symcclRemoteError && hub_status(comm->hub) != symcclSuccess)
		return hub_status(comm->hub);
	snprintf(why.text, sizeof(why.text), "%s", error_text());
	hub_fail(comm->hub, &why);
	return hub_status(comm->hub);
}

symcclResult_t comm_run_host(
	symcclComm_t comm, const struct coll_call *call, const struct coll_plan *plan)
{
	symcclResult_t e = hub_status(comm->hub);

	if (e == symcclSuccess) {
		e = coll_run_host(&comm->team, call, plan);
		if (__builtin_expect(e != symcclSuccess, 0))
			e = run_failed(comm, e);
	}
	return comm_error(comm, e);
}

static symcclResult_t launch(symcclComm_t comm, const struct coll_call *call,
	const struct coll_plan *plan, symcclStream_t stream)
{
	symcclResult_t e;

	if (comm->gpu == NULL && stream != NULL) {
		TRY(host_stream_put(comm, call, plan, stream));
		comm_quick_set(comm);
		return symcclSuccess;
	}
	if (comm->gpu == NULL && __builtin_expect(comm->turns != 0, 0))
		host_stream_drain(comm);
	e = comm->gpu ? comm_gpu_run(comm, call, plan, stream)
		      : coll_run_host(&comm->team, call, plan);
	return __builtin_expect(e != symcclSuccess, 0) ? run_failed(comm, e) : e;
}

symcclResult_t comm_run(symcclComm_t comm, struct coll_call *call, symcclStream_t stream)
{
	const struct coll_plan *plan = NULL;
	struct plan_memo *m = NULL;
	symcclResult_t e;

	/* Relaxed: symcclCommAbort pays for the order. */
	__atomic_store_n(&comm->busy, 1, __ATOMIC_RELAXED);
	e = hub_alive(comm->hub) ? symcclSuccess : hub_status(comm->hub);
	if (e == symcclSuccess)
		e = comm_gate(comm);
	if (e == symcclSuccess)
		e = comm_ready(comm);
	if (e == symcclSuccess)
		e = coll_is_listed(call->func) ? plan_listed(comm, call, &plan)
					       : plan_call(comm, call, &m);
	if (e == symcclSuccess)
		e = launch(comm, m ? &m->call : call, m ? &m->plan : plan, stream);
	e = comm_error(comm, e);
	__atomic_store_n(&comm->busy, 0, __ATOMIC_RELEASE);
	return e;
}

/* What comm_run does, less all that need not be done again. */
symcclResult_t comm_run_again(
	symcclComm_t comm, const struct coll_call *call, const struct coll_plan *plan)
{
	symcclResult_t e;

	__atomic_store_n(&comm->busy, 1, __ATOMIC_RELAXED);
	e = hub_alive(comm->hub) ? symcclSuccess : hub_status(comm->hub);
	if (__builtin_expect(e == symcclSuccess, 1)) {
		e = coll_run_host(&comm->team, call, plan);
		if (__builtin_expect(e != symcclSuccess, 0))
			e = run_failed(comm, e);
	}
	if (__builtin_expect(e != symcclSuccess, 0))
		e = comm_error(comm, e);
	__atomic_store_n(&comm->busy, 0, __ATOMIC_RELEASE);
	return e;
}

symcclResult_t comm_run_messages(
	symcclComm_t comm, struct coll_xfer *x, int n, symcclDataType_t type, symcclStream_t stream)
{
	struct coll_call *c = &comm->messages;
	const struct coll_plan *plan = plan_of(comm, symcclFuncSendRecv);
	int quick = comm_is_quick(comm, stream) && plan->algo != NULL;

	for (int i = 0; i < n; i++)
		quick &= is_anywhere(comm, &x[i]);
	c->func = symcclFuncSendRecv;
	c->type = type;
	c->xfer = x;
	c->nxfers = n;
	return quick ? comm_run_again(comm, c, plan) : comm_run(comm, c, stream);
}

void comm_call_free(struct coll_call *c)
{
	free(c->xfer);
	free((void *)c->wait);
	c->xfer = NULL;
	c->wait = NULL;
}

symcclResult_t comm_call(symcclComm_t comm, struct coll_call *c, symcclStream_t stream)
{
	symcclResult_t e;

	if (group_open())
		return group_add_call(comm, c, stream);
	e = comm_run(comm, c, stream);
	comm_call_free(c);
	return e;
}

symcclResult_t comm_estimate(symcclComm_t comm, const struct coll_call *call, double *us)
{
	struct coll_call c = *call;
	struct coll_team t;
	struct coll_plan p;
	size_t send, recv;

	*us = 0;
	/* What a call that names its peers takes, the two agree on when it runs. */
	if (coll_is_listed(c.func))
		return symcclSuccess;
	team_fill(comm, &t);
	call_bytes(&c, comm->nranks, &send, &recv);
	find_buf(comm, &c.send, send);
	find_buf(comm, &c.recv, recv);
	TRY(coll_plan(&t, &c, &p));
	*us = p.cost_us;
	return symcclSuccess;
}

symcclResult_t symcclQueryPlan(symcclComm_t comm, symcclFunc_t func, const void *sendbuff,
	const void *recvbuff, size_t count, symcclDataType_t datatype, symcclRedOp_t op,
	symcclPlan_t *plan)
{
	struct coll_call c = {.func = func,
		.send.ptr = (void *)sendbuff,
		.recv.ptr = (void *)recvbuff,
		.count = count,
		.type = datatype};
	struct coll_team t;
	struct coll_plan p;
	size_t send, recv;

	TRY(comm_check(comm));
	if (plan == NULL)
		return comm_error(comm, fail(symcclInvalidArgument, "plan is NULL"));
	if ((unsigned)func >= symcclFuncAlltoAllv && (unsigned)func < symcclNumFuncs)
		return comm_error(comm, fail(symcclInvalidUsage,
						"func is %d: a call that names its peers takes for "
						"each what the two agree on when it runs",
						(int)func));
	TRY(comm_error(comm, redop_resolve(comm, op, &c)));
	TRY(comm_error(comm, coll_check(&c, comm->rank, comm->nranks)));
	team_fill(comm, &t);
	call_bytes(&c, comm->nranks, &send, &recv);
	comm_windows_recheck(comm);
	find_buf(comm, &c.send, send);
	find_buf(comm, &c.recv, recv);
	TRY(comm_error(comm, coll_plan(&t, &c, &p)));
	memset(plan, 0, sizeof(*plan));
	snprintf(plan->algorithm, sizeof(plan->algorithm), "%s", p.algo->name);
	plan->nCTAs = p.nctas;
	plan->usesWindows =
		p.algo && (p.algo->needs & (COLL_NEED_SEND_WINDOW | COLL_NEED_RECV_WINDOW)) != 0;
	plan->timeUs = p.cost_us;
	return symcclSuccess;
}
