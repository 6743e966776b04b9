/* The double: stream capture and graphs. A graph replays each captured stream as a lane of its own,
 * so branches that wait for each other make progress under FAKECUDA_ASYNC=1. */
#include <stdlib.h>
#include <string.h>
#include "fake.h"

enum { GRAPH_MAGIC = 0x47525031, MAX_LANES = 32 };

struct CUgraphExec_st {
	CUgraph graph; /* a copy */
	CUstream lanes[MAX_LANES];
};

static struct capture *captures;
static uint64_t next_id = 1;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- What a capture forbids ------------------------------------------------------------------
 * Calls marked UNSAFE. A driver 580 forbids cuMemAlloc and cuEventQuery and lets the VMM calls
 * pass; here they are forbidden as well, since its documentation does not promise it.
 */

CUresult capture_check_unsafe(void)
{
	CUresult r = CUDA_SUCCESS;

	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	for (struct capture *c = captures; c != NULL; c = c->next) {
		int mine = pthread_equal(c->thread, pthread_self()) &&
			   c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
		int other = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
			    c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;

		if (mine || other) {
			c->invalid = 1;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	return r;
}

CUresult capture_check_legacy(CUcontext ctx)
{
	CUresult r = CUDA_SUCCESS;

	for (struct capture *c = captures; c != NULL; c = c->next)
		if (c->origin->ctx == ctx && (c->origin->flags & CU_STREAM_NON_BLOCKING) == 0) {
			c->invalid = 1;
			r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		}
	return r;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode old = thread_mode;

	ENTRY(0);
	if (mode == NULL || *mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

/* ---- Recording ------------------------------------------------------------------------------ */

CUresult capture_add(CUstream s, const struct op *op)
{
	CUgraphNode n;

	if (s->cap->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	n = calloc(1, sizeof(*n));
	n->op = *op;
	n->lane = s->lane;
	n->ndeps = s->ndeps;
	memcpy(n->deps, s->deps, sizeof(n->deps));
	*s->cap->graph->last = n;
	s->cap->graph->last = &n->next;
	s->deps[0] = n;
	s->ndeps = 1;
	return CUDA_SUCCESS;
}

struct capture *capture_of(CUevent e)
{
	struct capture *c = captures;

	while (c != NULL && (c != e->cap || c->id != e->cap_id))
		c = c->next;
	return c;
}

CUresult capture_record(CUevent e, CUstream s)
{
	if (s->cap->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	e->cap = s->cap;
	e->cap_id = s->cap->id;
	e->ndeps = s->ndeps;
	memcpy(e->deps, s->deps, sizeof(e->deps));
	return CUDA_SUCCESS;
}

CUresult capture_wait(CUstream s, CUevent e)
{
	struct capture *c = capture_of(e);

	if (s->cap != NULL && s->cap->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (c == NULL) {
		if (s->cap != NULL)
			s->cap->invalid = 1;
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	if (s->cap != NULL && s->cap != c) {
		s->cap->invalid = c->invalid = 1;
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (s == s->ctx->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (s->cap == NULL) {
		s->cap = c;
		s->lane = c->nlanes < MAX_LANES ? c->nlanes++ : 0;
		s->ndeps = 0;
	}
	for (int i = 0; i < e->ndeps && s->ndeps < 64; i++)
		s->deps[s->ndeps++] = e->deps[i];
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	struct capture *c;
	CUstream s;

	ENTRY(NEED_CTX);
	if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	s = stream_of(stream);
	if (s == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	if (s == s->ctx->legacy)
		return done(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (s->cap != NULL)
		return done(CUDA_ERROR_ILLEGAL_STATE);
	c = calloc(1, sizeof(*c));
	c->id = next_id++;
	c->origin = s;
	c->mode = mode;
	c->thread = pthread_self();
	c->nlanes = 1;
	c->graph = calloc(1, sizeof(*c->graph));
	c->graph->magic = GRAPH_MAGIC;
	c->graph->last = &c->graph->first;
	c->next = captures;
	captures = c;
	fake.captures++;
	s->cap = c;
	s->ndeps = s->lane = 0;
	return done(CUDA_SUCCESS);
}

static void reach(CUgraphNode n)
{
	if (n->reached)
		return;
	n->reached = 1;
	for (int i = 0; i < n->ndeps; i++)
		reach(n->deps[i]);
}

/* Does all that was captured lead to the origin stream's end? */
static int joined(struct capture *c)
{
	for (int i = 0; i < c->origin->ndeps; i++)
		reach(c->origin->deps[i]);
	for (CUgraphNode n = c->graph->first; n != NULL; n = n->next)
		if (!n->reached && !n->added)
			return 0;
	return 1;
}

static void graph_free(CUgraph g)
{
	CUgraphNode n;

	while ((n = g->first) != NULL) {
		g->first = n->next;
		free(n);
	}
	g->magic = 0;
	free(g);
}

static void capture_remove(struct capture *c)
{
	struct capture **q;

	streams_leave(c);
	for (q = &captures; *q != c; q = &(*q)->next)
		;
	*q = c->next;
	fake.captures--;
	free(c);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	struct capture *c;
	CUstream s;
	CUresult r;

	ENTRY(NEED_CTX);
	fake_lock();
	s = stream_of(stream);
	if (s == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	c = s->cap;
	if (c == NULL)
		return done(CUDA_ERROR_ILLEGAL_STATE);
	if (c->origin != s) {
		c->invalid = 1;
		return done(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	}
	if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(c->thread, pthread_self()))
		r = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	else if (c->invalid)
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else
		r = joined(c) ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (r == CUDA_SUCCESS) {
		*graph = c->graph;
		fake.graphs++;
	} else {
		*graph = NULL;
		graph_free(c->graph);
	}
	capture_remove(c);
	return done(r);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	CUstream s;
	CUresult r;

	ENTRY(NEED_CTX);
	fake_lock();
	s = stream_of(stream);
	if (s == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	if (s == s->ctx->legacy && (r = capture_check_legacy(s->ctx)) != CUDA_SUCCESS)
		return done(r);
	*status = s->cap == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
		  : s->cap->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
				    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return done(CUDA_SUCCESS);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
	CUgraph *graph, const CUgraphNode **deps, size_t *ndeps)
{
	CUresult r = cuStreamIsCapturing(stream, status);
	CUstream s;

	if (r != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return r;
	fake_lock();
	s = stream_of(stream);
	if (id != NULL)
		*id = s->cap->id;
	if (graph != NULL)
		*graph = s->cap->graph;
	if (deps != NULL)
		*deps = s->deps;
	if (ndeps != NULL)
		*ndeps = (size_t)s->ndeps;
	return done(CUDA_SUCCESS);
}

static int graph_has(CUgraph g, CUgraphNode node)
{
	CUgraphNode n = g->first;

	while (n != NULL && n != node)
		n = n->next;
	return n != NULL;
}

/* To the end of the list, so that a launch meets it after all that it may depend on. */
static void node_last(CUgraph g, CUgraphNode node)
{
	CUgraphNode *p = &g->first;

	while (*p != node)
		p = &(*p)->next;
	*p = node->next;
	if (g->last == &node->next)
		g->last = p;
	node->next = NULL;
	*g->last = node;
	g->last = &node->next;
}

static CUresult dep_add(CUgraph g, CUgraphNode *deps, int *n, CUgraphNode dep)
{
	if (!graph_has(g, dep))
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < *n; i++)
		if (deps[i] == dep)
			return CUDA_SUCCESS;
	if (*n < 64)
		deps[(*n)++] = dep;
	return CUDA_SUCCESS;
}

CUresult cuStreamUpdateCaptureDependencies(
	CUstream stream, CUgraphNode *deps, size_t ndeps, unsigned int flags)
{
	CUstream s;

	ENTRY(NEED_CTX);
	if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	s = stream_of(stream);
	if (s == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	if (s->cap == NULL)
		return done(CUDA_ERROR_ILLEGAL_STATE);
	if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
		s->ndeps = 0;
	for (size_t i = 0; i < ndeps; i++) {
		CUresult r = dep_add(s->cap->graph, s->deps, &s->ndeps, deps[i]);

		if (r != CUDA_SUCCESS)
			return done(r);
	}
	return done(CUDA_SUCCESS);
}

/* ---- Graphs --------------------------------------------------------------------------------- */

static CUgraph graph_copy(CUgraph g)
{
	CUgraph copy = calloc(1, sizeof(*copy));

	copy->magic = GRAPH_MAGIC;
	copy->last = &copy->first;
	for (CUgraphNode n = g->first; n != NULL; n = n->next) {
		CUgraphNode m = malloc(sizeof(*m));

		*m = *n;
		m->next = NULL;
		*copy->last = m;
		copy->last = &m->next;
	}
	/* Nodes' dependencies are in the original: find them by position. */
	for (CUgraphNode m = copy->first; m != NULL; m = m->next)
		for (int i = 0; i < m->ndeps; i++) {
			CUgraphNode a = g->first, b = copy->first;

			for (; a != m->deps[i]; a = a->next)
				b = b->next;
			m->deps[i] = b;
		}
	return copy;
}

CUresult cuGraphAddEventRecordNode(
	CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps, CUevent event)
{
	CUgraphNode n;
	CUresult r = CUDA_SUCCESS;

	ENTRY(NEED_CTX);
	if (node == NULL || graph == NULL || graph->magic != GRAPH_MAGIC || event == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	n = calloc(1, sizeof(*n));
	n->op = (struct op){.kind = OP_RECORD, .event = event};
	n->added = 1;
	for (size_t i = 0; i < ndeps && r == CUDA_SUCCESS; i++)
		r = dep_add(graph, n->deps, &n->ndeps, deps[i]);
	if (r != CUDA_SUCCESS) {
		free(n);
		return done(r);
	}
	n->lane = ndeps > 0 ? deps[0]->lane : 0;
	*graph->last = n;
	graph->last = &n->next;
	*node = n;
	return done(CUDA_SUCCESS);
}

CUresult cuGraphAddDependencies(
	CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
	CUresult r = CUDA_SUCCESS;

	ENTRY(NEED_CTX);
	if (graph == NULL || graph->magic != GRAPH_MAGIC || from == NULL || to == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	for (size_t i = 0; i < n && r == CUDA_SUCCESS; i++) {
		if (!graph_has(graph, to[i]))
			r = CUDA_ERROR_INVALID_VALUE;
		for (int k = 0; k < to[i]->ndeps && r == CUDA_SUCCESS; k++)
			if (to[i]->deps[k] == from[i])
				r = CUDA_ERROR_INVALID_VALUE; /* there already */
		if (r == CUDA_SUCCESS)
			r = dep_add(graph, to[i]->deps, &to[i]->ndeps, from[i]);
		if (r == CUDA_SUCCESS) {
			to[i]->lane = from[i]->lane;
			node_last(graph, to[i]);
		}
	}
	return done(r);
}

CUresult cuGraphRemoveDependencies(
	CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
	ENTRY(NEED_CTX);
	if (graph == NULL || graph->magic != GRAPH_MAGIC || from == NULL || to == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	for (size_t i = 0; i < n; i++) {
		int k = 0;

		if (!graph_has(graph, to[i]))
			return done(CUDA_ERROR_INVALID_VALUE);
		while (k < to[i]->ndeps && to[i]->deps[k] != from[i])
			k++;
		if (k == to[i]->ndeps)
			return done(CUDA_ERROR_INVALID_VALUE);
		to[i]->deps[k] = to[i]->deps[--to[i]->ndeps];
	}
	return done(CUDA_SUCCESS);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	ENTRY(NEED_INIT | UNSAFE);
	if (exec == NULL || graph == NULL || graph->magic != GRAPH_MAGIC || flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	*exec = calloc(1, sizeof(**exec));
	(*exec)->graph = graph_copy(graph);
	fake.execs++;
	return done(CUDA_SUCCESS);
}

static CUstream lane_stream(CUgraphExec exec, int lane, CUstream s)
{
	if (lane == 0)
		return s;
	if (exec->lanes[lane] == NULL)
		exec->lanes[lane] = stream_new(s->ctx, CU_STREAM_NON_BLOCKING);
	return exec->lanes[lane];
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	struct op end = {.kind = OP_NOP};
	struct mark start;
	CUstream s, lane;

	ENTRY(NEED_CTX);
	if (exec == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	s = stream_of(stream);
	if (s == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	if (s->cap != NULL)
		return done(CUDA_ERROR_NOT_SUPPORTED); /* child graphs: not needed so far */
	start = (struct mark){s, enqueue(s, &end)};
	for (CUgraphNode n = exec->graph->first; n != NULL; n = n->next) {
		struct op op = n->op;

		op.nwait = 0;
		op.wait[op.nwait++] = start;
		for (int i = 0; i < n->ndeps && op.nwait < 63; i++)
			op.wait[op.nwait++] = (struct mark){
				lane_stream(exec, n->deps[i]->lane, s), n->deps[i]->seq};
		lane = lane_stream(exec, n->lane, s);
		if (op.kind == OP_NOP && op.event != NULL && op.event->recorded)
			op.wait[op.nwait++] = op.event->mark;
		if (op.kind == OP_RECORD) {
			op.event->recorded = 1;
			op.event->cap = NULL;
			op.event->mark = (struct mark){lane, lane->queued + 1};
		}
		n->seq = enqueue(lane, &op);
	}
	for (int i = 1; i < MAX_LANES; i++)
		if (exec->lanes[i] != NULL)
			end.wait[end.nwait++] =
				(struct mark){exec->lanes[i], exec->lanes[i]->queued};
	enqueue(s, &end);
	return done(CUDA_SUCCESS);
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	ENTRY_LATE(NEED_INIT);
	if (exec == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	graph_free(exec->graph);
	free(exec);
	fake.execs--;
	return done(late);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	ENTRY_LATE(NEED_INIT);
	if (graph == NULL || graph->magic != GRAPH_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	graph_free(graph);
	fake.graphs--;
	return done(late);
}
