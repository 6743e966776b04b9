#include "gpu_order.h"

symcclResult_t order_open(struct gpu_order *o)
{
	CUresult r = cu.EventCreate(&o->done, CU_EVENT_DISABLE_TIMING);

	return r == CUDA_SUCCESS ? symcclSuccess : cu_fail(r, "an event");
}

/* Bounded: kernels give up with the communicator. */
symcclResult_t order_wait(struct gpu_order *o)
{
	CUresult r = o->any || o->mixed ? cu.EventSynchronize(o->done) : CUDA_SUCCESS;

	return r == CUDA_SUCCESS ? symcclSuccess : cu_fail(r, "waiting for what was enqueued");
}

void order_close(struct gpu_order *o)
{
	if (o->done == NULL)
		return;
	(void)order_wait(o);
	cu.EventDestroy(o->done);
	o->done = NULL;
}

/* ---- Captured -------------------------------------------------------------------------------- */

static symcclResult_t capture_info(
	CUstream stream, cuuint64_t *id, CUgraph *graph, const CUgraphNode **deps, size_t *ndeps)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult r = cu.StreamGetCaptureInfo(stream, &status, id, graph, deps, ndeps);

	if (r == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	return r == CUDA_SUCCESS ? symcclSuccess
				 : cu_fail(r, "asking what stream %p is capturing", (void *)stream);
}

static symcclResult_t capture_before(struct gpu_order *o, CUstream stream, struct order_step *step)
{
	struct order_capture *c = o->cap;
	const CUgraphNode *deps;
	CUresult r = CUDA_SUCCESS;
	cuuint64_t id;
	CUgraph graph;
	size_t ndeps;

	TRY(capture_info(stream, &id, &graph, &deps, &ndeps));
	while (c < o->cap + ORDER_CAPTURES && c->id != id)
		c++;
	if (c == o->cap + ORDER_CAPTURES) {
		c = &o->cap[o->next++ % ORDER_CAPTURES];
		*c = (struct order_capture){.stream = stream};
		step->overlap = 0;
		r = cu.StreamWaitEvent(stream, o->done, CU_EVENT_WAIT_EXTERNAL);
		if (r == CUDA_SUCCESS)
			c->id = id;
	} else if (c->stream != stream) {
		step->overlap = 0;
		r = cu.StreamUpdateCaptureDependencies(
			stream, &c->tail, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
	}
	step->cap = c;
	return r == CUDA_SUCCESS ? symcclSuccess : cu_fail(r, "ordering a captured call");
}

static symcclResult_t capture_after(
	struct gpu_order *o, CUstream stream, const struct order_step *step)
{
	struct order_capture *c = step->cap;
	CUgraphNode before = c->tail;
	const CUgraphNode *deps;
	CUresult r;
	cuuint64_t id;
	CUgraph graph;
	size_t ndeps;

	TRY(capture_info(stream, &id, &graph, &deps, &ndeps));
	/* What was enqueued last is all that the stream's next work depends on. */
	if (ndeps != 1)
		return fail(symcclInternalError, "a captured call has %zu ends", ndeps);
	c->tail = deps[0];
	c->stream = stream;
	o->mixed = 1;
	if (c->record == NULL) {
		r = cu.GraphAddEventRecordNode(&c->record, graph, &c->tail, 1, o->done);
	} else {
		/* Nodes cannot be removed while the capture goes on, edges can. */
		r = cu.GraphRemoveDependencies(graph, &before, &c->record, 1);
		if (r == CUDA_SUCCESS)
			r = cu.GraphAddDependencies(graph, &c->tail, &c->record, 1);
	}
	return r == CUDA_SUCCESS ? symcclSuccess : cu_fail(r, "an event after a captured call");
}

/* ---- Both ------------------------------------------------------------------------------------ */

symcclResult_t order_before(struct gpu_order *o, CUstream stream, struct order_step *step)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult r = cu.StreamIsCapturing(stream, &status);

	if (r != CUDA_SUCCESS)
		return cu_fail(r, "asking stream %p whether it captures", (void *)stream);
	step->overlap = 1;
	step->capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
	if (step->capturing)
		return capture_before(o, stream, step);
	if (!o->mixed && (!o->any || o->last == stream))
		return symcclSuccess;
	r = cu.StreamWaitEvent(stream, o->done, CU_EVENT_WAIT_DEFAULT);
	return r == CUDA_SUCCESS ? symcclSuccess : cu_fail(r, "ordering two streams");
}

symcclResult_t order_after(struct gpu_order *o, CUstream stream, const struct order_step *step)
{
	CUresult r;

	if (step->capturing)
		return capture_after(o, stream, step);
	r = cu.EventRecord(o->done, stream);
	o->last = stream;
	o->any = 1;
	return r == CUDA_SUCCESS ? symcclSuccess : cu_fail(r, "an event after the call");
}
