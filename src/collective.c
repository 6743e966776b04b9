/* The collectives' entry points: arguments, windows, plan, run. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "hub.h"
#include "log.h"
#include "util.h"

/* Control blocks mapped, team filled. All ranks come here in the same order among their
 * registrations, so either all post an empty set or none does. */
static symcclResult_t make_ready(symcclComm_t comm)
{
	struct hub *h = comm->hub;
	struct reg_set *last;
	const struct window *ctrl;
	symcclResult_t e;

	/* One more set behind all that this rank has posted: when it is done, so are they. */
	last = comm_set_new(0);
	if (last == NULL)
		return symcclSystemError;
	e = comm_set_post(comm, last);
	if (e == symcclSuccess)
		e = comm_set_wait(comm, last);
	free(last);
	TRY(e);
	ctrl = h->sym.ctrl;
	comm->team = (struct coll_team){.rank = comm->rank,
		.nranks = comm->nranks,
		.nctas = h->nctas,
		.ctrl = ctrl->base + ctrl->off[0],
		.stride = ctrl->stride,
		.layout = h->layout,
		.wait = h->wait,
		.tuning = h->tuning,
		.pid = h->pid,
		.readable = h->readable,
		.oversubscribed = h->oversubscribed};
	comm->ready = 1;
	return symcclSuccess;
}

symcclResult_t comm_ready(symcclComm_t comm)
{
	return __builtin_expect(comm->ready, 1) ? symcclSuccess : make_ready(comm);
}

/* Bytes of the send and the receive buffer. */
static void call_bytes(const struct coll_call *c, int nranks, size_t *send, size_t *recv)
{
	size_t n = c->count * coll_type_size(c->type);

	*send = *recv = n;
	if (c->func == symcclFuncAllGather)
		*recv = n * (size_t)nranks;
	if (c->func == symcclFuncReduceScatter)
		*send = n * (size_t)nranks;
	if (c->func == symcclFuncBarrier)
		*send = *recv = 0;
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
}

/* The same arguments again take the same plan, as long as no window came or went. */
static symcclResult_t plan_call(
	symcclComm_t comm, const struct coll_call *c, struct plan_memo **out)
{
	struct plan_memo *m = &comm->memo[((uintptr_t)c->recv.ptr / 64 + c->count) % PLAN_MEMOS];
	size_t send, recv;

	if (__builtin_expect(mem_frees() != comm->freed_seen, 0))
		comm_windows_recheck(comm);
	*out = m;
	if (m->gen == comm->wins_gen + 1 && m->call.func == c->func && m->call.count == c->count &&
		m->call.type == c->type && m->call.op == c->op && m->call.root == c->root &&
		m->call.send.ptr == c->send.ptr && m->call.recv.ptr == c->recv.ptr)
		return symcclSuccess;
	TRY(coll_check(c, comm->nranks));
	m->gen = 0;
	m->call = *c;
	call_bytes(c, comm->nranks, &send, &recv);
	find_buf(comm, &m->call.send, send);
	find_buf(comm, &m->call.recv, recv);
	TRY(coll_plan(&comm->team, &m->call, &m->plan));
	log_trace(LOG_COLL, "rank %d: %s, count %zu, %d CTAs", comm->rank, m->plan.algo->name,
		c->count, m->plan.nctas);
	m->gen = comm->wins_gen + 1;
	return symcclSuccess;
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

symcclResult_t comm_run(symcclComm_t comm, const struct coll_call *call)
{
	struct plan_memo *m;
	symcclResult_t e;

	/* Relaxed: symcclCommAbort pays for the order. */
	__atomic_store_n(&comm->busy, 1, __ATOMIC_RELAXED);
	e = hub_status(comm->hub);
	if (e == symcclSuccess)
		e = comm_ready(comm);
	if (e == symcclSuccess)
		e = plan_call(comm, call, &m);
	if (e == symcclSuccess) {
		e = coll_run_host(&comm->team, &m->call, &m->plan);
		if (__builtin_expect(e != symcclSuccess, 0))
			e = run_failed(comm, e);
	}
	e = comm_error(comm, e);
	__atomic_store_n(&comm->busy, 0, __ATOMIC_RELEASE);
	return e;
}

static symcclResult_t enter(symcclComm_t comm, symcclStream_t stream, const struct coll_call *call)
{
	TRY(comm_check_handle(comm));
	if (stream != NULL)
		return comm_error(comm,
			fail(symcclInvalidArgument,
				"stream is %p: a host communicator takes NULL, the calling thread",
				(void *)stream));
	return group_open() ? group_add_call(comm, call) : comm_run(comm, call);
}

symcclResult_t symcclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
	symcclDataType_t datatype, symcclComm_t comm, symcclStream_t stream)
{
	struct coll_call c = {.func = symcclFuncAllGather,
		.send.ptr = (void *)sendbuff,
		.recv.ptr = recvbuff,
		.count = sendcount,
		.type = datatype};

	return enter(comm, stream, &c);
}

symcclResult_t symcclBarrier(symcclComm_t comm, symcclStream_t stream)
{
	struct coll_call c = {.func = symcclFuncBarrier};

	return enter(comm, stream, &c);
}

symcclResult_t symcclQueryPlan(symcclComm_t comm, symcclFunc_t func, const void *sendbuff,
	const void *recvbuff, size_t count, symcclDataType_t datatype, symcclRedOp_t op,
	symcclPlan_t *plan)
{
	struct coll_call c = {.func = func,
		.send.ptr = (void *)sendbuff,
		.recv.ptr = (void *)recvbuff,
		.count = count,
		.type = datatype,
		.op = op};
	struct coll_team t;
	struct coll_plan p;
	size_t send, recv;
	struct hub *h;

	TRY(comm_check(comm));
	if (plan == NULL)
		return comm_error(comm, fail(symcclInvalidArgument, "plan is NULL"));
	TRY(comm_error(comm, coll_check(&c, comm->nranks)));
	/* Planning needs sizes and constants only, so the control blocks may still be missing. */
	h = comm->hub;
	t = (struct coll_team){.rank = comm->rank,
		.nranks = comm->nranks,
		.nctas = h->nctas,
		.layout = h->layout,
		.wait = h->wait,
		.tuning = h->tuning,
		.pid = h->pid,
		.readable = h->readable,
		.oversubscribed = h->oversubscribed};
	call_bytes(&c, comm->nranks, &send, &recv);
	comm_windows_recheck(comm);
	find_buf(comm, &c.send, send);
	find_buf(comm, &c.recv, recv);
	TRY(comm_error(comm, coll_plan(&t, &c, &p)));
	memset(plan, 0, sizeof(*plan));
	snprintf(plan->algorithm, sizeof(plan->algorithm), "%s", p.algo->name);
	plan->nCTAs = p.nctas;
	plan->usesWindows = (p.algo->needs & (COLL_NEED_SEND_WINDOW | COLL_NEED_RECV_WINDOW)) != 0;
	plan->timeUs = p.cost_us;
	return symcclSuccess;
}
