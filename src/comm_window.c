/* A rank's windows: registering, finding, giving back. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "async.h"
#include "hub.h"
#include "log.h"
#include "params.h"
#include "util.h"

struct symcclRequest {
	struct symcclRequest *next; /* of the communicator's */
	symcclComm_t comm;
	struct reg_set *set;
	struct win_task task;
};

/* ---- Sets ---------------------------------------------------------------------------------- */

struct reg_set *comm_set_new(int nreq)
{
	struct reg_set *s = calloc(1, sizeof(*s) + (size_t)nreq * sizeof(s->req[0]));

	if (s == NULL)
		fail(symcclSystemError, "out of memory for a registration");
	else
		s->nreq = nreq;
	return s;
}

void comm_set_queue(symcclComm_t comm, struct reg_set *set)
{
	double limit = params_get()->setup_timeout;

	set->deadline = limit > 0 ? now_ns() + (uint64_t)(limit * 1e9) : 0;
	*comm->queue_end = set;
	comm->queue_end = &set->next;
	comm->nqueued++;
	comm->nposted++;
	__atomic_store_n(
		&comm->hub->board->rank[comm->rank].posted, comm->nposted, __ATOMIC_RELAXED);
}

symcclResult_t comm_set_post(symcclComm_t comm, struct reg_set *set)
{
	struct hub *h = comm->hub;
	symcclResult_t e = symcclSuccess;
	struct failure why;

	pthread_mutex_lock(&h->lock);
	why = h->why;
	if (h->state == HUB_FAILED)
		e = why.code;
	else
		comm_set_queue(comm, set);
	pthread_mutex_unlock(&h->lock);
	if (e != symcclSuccess)
		return fail_quiet(e, "%s", why.text);
	hub_wake(h);
	return e;
}

int comm_set_done(symcclComm_t comm, struct reg_set *set)
{
	(void)comm;
	return __atomic_load_n(&set->done, __ATOMIC_ACQUIRE);
}

/* Bounded: the worker ends every queued set by its deadline, a death or an abort. */
symcclResult_t comm_set_wait(symcclComm_t comm, struct reg_set *set)
{
	pthread_mutex_lock(&comm->hub->lock);
	while (!set->done)
		pthread_cond_wait(&comm->cond, &comm->hub->lock);
	pthread_mutex_unlock(&comm->hub->lock);
	if (set->result.code == symcclSuccess)
		return symcclSuccess;
	return fail_quiet(set->result.code, "%s", set->result.text);
}

/* ---- The rank's table of windows --------------------------------------------------------------
 */

/* First entry whose user address is above ptr. */
static int wins_above(symcclComm_t comm, const char *ptr)
{
	int lo = 0, hi = comm->nwins;

	while (lo < hi) {
		int mid = (lo + hi) / 2;

		if (comm->wins[mid]->user > ptr)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

static symcclResult_t wins_add(symcclComm_t comm, struct symcclWindow *w)
{
	int at = wins_above(comm, w->user);

	if (comm->nwins == comm->wins_room) {
		int room = comm->wins_room * 2 + 8;
		struct symcclWindow **p = realloc(comm->wins, (size_t)room * sizeof(*p));

		if (p == NULL)
			return fail(symcclSystemError, "out of memory for a window");
		comm->wins = p;
		comm->wins_room = room;
	}
	memmove(comm->wins + at + 1, comm->wins + at,
		(size_t)(comm->nwins - at) * sizeof(*comm->wins));
	comm->wins[at] = w;
	comm->nwins++;
	comm->wins_gen++;
	return symcclSuccess;
}

static int wins_index(symcclComm_t comm, const struct symcclWindow *w)
{
	for (int i = 0; i < comm->nwins; i++)
		if (comm->wins[i] == w)
			return i;
	return -1;
}

/* Is the memory that the rank registered still what lies at its address? */
static int win_stale(symcclComm_t comm, const struct symcclWindow *w)
{
	const struct mem_ops *mem = comm->hub->mem;
	const struct mapping *m = w->w->map;
	struct mem_span span;
	int i = 0, stale;

	if (m == NULL)
		return 0;
	if (!mem->owns(w->user) || mem->retain(w->user, 1, &span) != symcclSuccess)
		return 1;
	while (m->seg_rank[i] != comm->rank)
		i++;
	stale = span.seg[0]->uid.proc != m->segs[i]->uid.proc ||
		span.seg[0]->uid.seq != m->segs[i]->uid.seq;
	for (int k = 0; k < span.n; k++)
		mem->release(span.seg[k]);
	return stale;
}

/* Memory may be freed under a window, and other memory come to lie there: the window must not be
 * taken for that. */
void comm_windows_recheck(symcclComm_t comm)
{
	unsigned frees = mem_frees();

	if (frees == comm->freed_seen)
		return;
	comm->freed_seen = frees;
	for (int i = 0; i < comm->nwins; i++) {
		struct symcclWindow *w = comm->wins[i];

		if (w->stale || !win_stale(comm, w))
			continue;
		w->stale = 1;
		comm->wins_gen++;
		log_info(LOG_SYM, "rank %d: window %u's memory was freed, it is not used any more",
			comm->rank, w->w->ordinal);
	}
}

const struct symcclWindow *comm_window_find(symcclComm_t comm, const void *ptr, size_t size)
{
	const char *p = ptr;
	const struct symcclWindow *best = NULL;

	/* Windows may overlap or nest: of those that hold the range, the oldest, so that all ranks
	 * choose the same one. */
	for (int i = wins_above(comm, p) - 1; i >= 0; i--) {
		const struct symcclWindow *w = comm->wins[i];

		if (!w->stale && size <= w->size && (size_t)(p - w->user) <= w->size - size &&
			(best == NULL || w->w->ordinal < best->w->ordinal))
			best = w;
		if (w->reach <= p)
			break;
	}
	return best;
}

/* reach: the furthest end of any window at or below this one, so that a search can stop. */
static void wins_reach(symcclComm_t comm)
{
	const char *reach = NULL;

	for (int i = 0; i < comm->nwins; i++) {
		struct symcclWindow *w = comm->wins[i];

		reach = MAX(reach, (const char *)w->user + w->size);
		w->reach = reach;
	}
}

/* ---- Registering -------------------------------------------------------------------------------
 */

/* A bad argument of one rank is still a registration: all ranks must hear of it. */
static void task_check(symcclComm_t comm, const struct win_task *t, struct reg_req *r)
{
	const char *what = NULL;

	if (t->out == NULL)
		what = "win is NULL: nowhere to put the window";
	else if (t->buff == NULL)
		what = "buff is NULL";
	else if (t->size == 0)
		what = "size is 0";
	else if ((uintptr_t)t->buff + t->size < t->size)
		what = "size reaches beyond the address space";
	else if (t->flags & ~SYMCCL_WIN_COLL_SYMMETRIC)
		what = "winFlags has unknown bits";
	if (what == NULL)
		return;
	r->bad.code = symcclInvalidArgument;
	r->bad.rank = comm->rank;
	snprintf(r->bad.text, sizeof(r->bad.text), "rank %d: window registration: %s", comm->rank,
		what);
}

symcclResult_t comm_windows_begin(
	symcclComm_t comm, const struct win_task *t, int n, struct reg_set **set)
{
	struct reg_set *s = comm_set_new(n);
	symcclResult_t e;

	if (s == NULL)
		return symcclSystemError;
	for (int i = 0; i < n; i++) {
		s->req[i].addr = t[i].buff;
		s->req[i].size = t[i].size;
		s->req[i].flags = t[i].flags & SYMCCL_WIN_COLL_SYMMETRIC;
		task_check(comm, &t[i], &s->req[i]);
	}
	e = comm_set_post(comm, s);
	if (e == symcclSuccess)
		*set = s;
	else
		free(s);
	return e;
}

symcclResult_t comm_windows_finish(
	symcclComm_t comm, const struct win_task *t, int n, struct reg_set *set)
{
	symcclResult_t e = comm_set_wait(comm, set);
	struct symcclWindow **made = NULL;

	if (e == symcclSuccess) {
		made = calloc((size_t)n + 1, sizeof(*made));
		if (made == NULL)
			e = fail(symcclSystemError, "out of memory for a window");
	}
	for (int i = 0; e == symcclSuccess && i < n; i++) {
		made[i] = calloc(1, sizeof(*made[i]));
		if (made[i] == NULL) {
			e = fail(symcclSystemError, "out of memory for a window");
			break;
		}
		*made[i] = (struct symcclWindow){.comm = comm,
			.w = set->req[i].window,
			.user = t[i].buff,
			.size = t[i].size};
		e = wins_add(comm, made[i]);
	}
	if (e == symcclSuccess) {
		wins_reach(comm);
		for (int i = 0; i < n; i++)
			*t[i].out = made[i];
	} else {
		/* Peers may keep theirs; this rank's part is given back. */
		for (int i = 0; i < n && made != NULL; i++) {
			int at = wins_index(comm, made[i]);

			if (at >= 0) {
				memmove(comm->wins + at, comm->wins + at + 1,
					(size_t)(comm->nwins - at - 1) * sizeof(*comm->wins));
				comm->nwins--;
			}
			free(made[i]);
			if (set->req[i].window != NULL)
				hub_free_window(comm->hub, set->req[i].window->ordinal);
		}
	}
	free(made);
	free(set);
	for (int i = 0; i < n; i++)
		if (t[i].made != NULL)
			e = t[i].made(t[i].arg, e);
	return comm_error(comm, e);
}

struct apart {
	symcclComm_t comm;
	struct win_task task;
};

static symcclResult_t register_now(symcclComm_t comm, const struct win_task *t)
{
	struct reg_set *set;

	TRY(comm_windows_begin(comm, t, 1, &set));
	return comm_windows_finish(comm, t, 1, set);
}

static symcclResult_t register_apart(void *arg)
{
	struct apart *a = arg;
	symcclResult_t e = register_now(a->comm, &a->task);

	free(a);
	return e;
}

static symcclResult_t register_start(symcclComm_t comm, const struct win_task *t)
{
	struct apart *a = malloc(sizeof(*a));
	symcclResult_t e;

	if (a == NULL)
		return fail(symcclSystemError, "out of memory for a registration");
	*a = (struct apart){comm, *t};
	e = async_start(comm, register_apart, a);
	if (e != symcclInProgress)
		free(a);
	return e;
}

symcclResult_t symcclCommWindowRegister(
	symcclComm_t comm, void *buff, size_t size, symcclWindow_t *win, int winFlags)
{
	struct win_task t = {.buff = buff, .size = size, .out = win, .flags = winFlags};
	symcclResult_t e;

	TRY(comm_check_handle(comm));
	comm_hold(comm);
	e = comm_check(comm);
	if (e == symcclSuccess && group_open())
		e = group_add_window(comm, &t);
	else if (e == symcclSuccess)
		e = comm_is_async(comm) ? register_start(comm, &t) : register_now(comm, &t);
	comm_release(comm);
	return e;
}

symcclResult_t symcclCommWindowRegisterAsync(symcclComm_t comm, void *buff, size_t size,
	symcclWindow_t *win, int winFlags, symcclRequest_t *request)
{
	struct symcclRequest *r;
	symcclResult_t e;

	TRY(comm_check(comm));
	if (request == NULL)
		return comm_error(comm,
			fail(symcclInvalidArgument, "request is NULL: nowhere to put the request"));
	r = calloc(1, sizeof(*r));
	if (r == NULL)
		return comm_error(
			comm, fail(symcclSystemError, "out of memory for a registration"));
	r->comm = comm;
	r->task = (struct win_task){.buff = buff, .size = size, .out = win, .flags = winFlags};
	e = comm_windows_begin(comm, &r->task, 1, &r->set);
	if (e != symcclSuccess) {
		free(r);
		return comm_error(comm, e);
	}
	r->next = comm->requests;
	comm->requests = r;
	*request = r;
	return symcclSuccess;
}

symcclResult_t symcclRequestWait(symcclRequest_t request)
{
	struct symcclRequest **p;
	symcclComm_t comm;
	symcclResult_t e;

	if (request == NULL)
		return fail(symcclInvalidArgument, "request is NULL");
	comm = request->comm;
	TRY(comm_check_handle(comm));
	comm_hold(comm);
	for (p = &comm->requests; *p != request; p = &(*p)->next)
		;
	*p = request->next;
	e = comm_windows_finish(comm, &request->task, 1, request->set);
	free(request);
	comm_release(comm);
	return e;
}

void comm_windows_free(symcclComm_t comm)
{
	comm_devcomms_free(comm);
	while (comm->requests != NULL) {
		struct symcclRequest *r = comm->requests;

		comm->requests = r->next;
		free(r->set);
		free(r);
	}
	for (int i = 0; i < comm->nwins; i++)
		free(comm->wins[i]);
	free(comm->wins);
}

symcclResult_t symcclRequestTest(symcclRequest_t request, int *done)
{
	if (request == NULL || done == NULL)
		return fail(symcclInvalidArgument, "%s is NULL", request ? "done" : "request");
	TRY(comm_check_handle(request->comm));
	*done = comm_set_done(request->comm, request->set);
	return *done ? symcclRequestWait(request) : symcclSuccess;
}

symcclResult_t symcclCommWindowDeregister(symcclComm_t comm, symcclWindow_t win)
{
	int at;

	TRY(comm_check_handle(comm));
	if (win == NULL)
		return symcclSuccess;
	at = wins_index(comm, win);
	if (at < 0)
		return comm_error(comm,
			fail(symcclInvalidArgument, "win %p is no window of rank %d's communicator",
				(void *)win, comm->rank));
	hub_free_window(comm->hub, win->w->ordinal);
	memmove(comm->wins + at, comm->wins + at + 1,
		(size_t)(comm->nwins - at - 1) * sizeof(*comm->wins));
	comm->nwins--;
	comm->wins_gen++;
	wins_reach(comm);
	free(win);
	return symcclSuccess;
}

/* ---- Asking
 * -------------------------------------------------------------------------------------- */

static symcclResult_t win_check(symcclComm_t comm, symcclWindow_t win, int peer, const void *out)
{
	TRY(comm_check_handle(comm));
	if (wins_index(comm, win) < 0)
		return comm_error(comm,
			fail(symcclInvalidArgument, "win %p is no window of rank %d's communicator",
				(void *)win, comm->rank));
	if (peer < 0 || peer >= comm->nranks)
		return comm_error(comm, fail(symcclInvalidArgument, "peer is %d, not in 0..%d",
						peer, comm->nranks - 1));
	if (out == NULL)
		return comm_error(comm, fail(symcclInvalidArgument, "the output pointer is NULL"));
	return symcclSuccess;
}

symcclResult_t symcclWinGetUserPtr(symcclComm_t comm, symcclWindow_t win, void **ptr)
{
	TRY(win_check(comm, win, 0, ptr));
	*ptr = win->user;
	return symcclSuccess;
}

symcclResult_t symcclWinGetPeerPtr(
	symcclComm_t comm, symcclWindow_t win, int peer, size_t offset, void **ptr)
{
	const struct window *w;

	TRY(win_check(comm, win, peer, ptr));
	w = win->w;
	if (offset >= w->size[peer])
		return comm_error(
			comm, fail(symcclInvalidArgument,
				      "offset %zu is beyond rank %d's window of %zu bytes", offset,
				      peer, w->size[peer]));
	if (w->map == NULL)
		return comm_error(comm, fail(symcclInvalidUsage,
						"rank %d's memory cannot be addressed: a rank's "
						"buffer is not memory of "
						"symcclMemAlloc",
						peer));
	*ptr = w->base + (size_t)peer * w->stride + w->off[peer] + offset;
	return symcclSuccess;
}

symcclResult_t symcclWinGetSize(symcclComm_t comm, symcclWindow_t win, int peer, size_t *size)
{
	TRY(win_check(comm, win, peer, size));
	*size = win->w->size[peer];
	return symcclSuccess;
}
