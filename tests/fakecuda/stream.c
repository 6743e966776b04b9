/* The double: streams, events, work on them. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "fake.h"

enum { STREAM_MAGIC = 0x57524d31, EVENT_MAGIC = 0x45564e31 };

static struct CUstream_st *all_streams; /* never freed: marks point to them */
static uint64_t next_id = 1;

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- Work ----------------------------------------------------------------------------------- */

static void kernel_run(struct op *op)
{
	void *params[16];
	size_t at = 0;

	for (int i = 0; i < op->kernel->n; i++) {
		params[i] = op->params + at;
		at += (op->kernel->sizes[i] + 15) & ~(size_t)15;
	}
	op->kernel->fn(&op->launch, params);
}

static void wait_value(const struct op *op)
{
	const uint32_t *p = (const uint32_t *)(uintptr_t)op->dst;
	struct timespec nap = {0, 20000};

	for (;;) {
		uint32_t v = __atomic_load_n(p, __ATOMIC_ACQUIRE);

		if (op->flags == CU_STREAM_WAIT_VALUE_EQ ? v == (uint32_t)op->value
							 : (int32_t)(v - (uint32_t)op->value) >= 0)
			return;
		nanosleep(&nap, NULL);
	}
}

static void op_run(struct op *op)
{
	void *dst = (void *)(uintptr_t)op->dst;

	switch (op->kind) {
	case OP_NOP:
		break;
	case OP_COPY:
		memmove(dst, (const void *)(uintptr_t)op->src, op->n);
		break;
	case OP_SET8:
		memset(dst, (int)op->value, op->n);
		break;
	case OP_SET32:
		for (size_t i = 0; i < op->n; i++)
			((uint32_t *)dst)[i] = (uint32_t)op->value;
		break;
	case OP_HOST:
		op->fn(op->arg);
		break;
	case OP_KERNEL:
		kernel_run(op);
		break;
	case OP_RECORD:
		__atomic_store_n(&op->event->time_ns, clock_ns(), __ATOMIC_RELEASE);
		break;
	case OP_WRITE:
		__atomic_store_n((uint32_t *)dst, (uint32_t)op->value, __ATOMIC_RELEASE);
		break;
	case OP_WAIT:
		wait_value(op);
		break;
	}
}

int mark_done(struct mark m)
{
	return m.s == NULL || m.s->finished >= m.seq;
}

void mark_wait(struct mark m)
{
	while (!mark_done(m))
		pthread_cond_wait(&fake.changed, &fake.lock);
}

/* Run the head of a stream; lock held, let go of while working. */
static void stream_step(CUstream s)
{
	struct op *op = s->head;

	for (int i = 0; i < op->nwait; i++)
		mark_wait(op->wait[i]);
	fake_unlock();
	op_run(op);
	fake_lock();
	s->head = op->next;
	if (s->head == NULL)
		s->tail = NULL;
	s->finished = op->seq;
	free(op);
	pthread_cond_broadcast(&fake.changed);
}

static void *stream_main(void *arg)
{
	CUstream s = arg;

	fake_lock();
	for (;;) {
		while (s->head == NULL && s->magic != 0)
			pthread_cond_wait(&fake.changed, &fake.lock);
		if (s->head == NULL)
			break; /* destroyed */
		stream_step(s);
	}
	fake_unlock();
	return NULL;
}

static void wait_add(struct op *op, struct mark m)
{
	if (!mark_done(m) && op->nwait < 64)
		op->wait[op->nwait++] = m;
}

/* The default stream waits for all blocking streams of its context, and they for it. */
static void legacy_order(CUstream s, struct op *op)
{
	CUstream legacy = s->ctx->legacy;

	if (s == legacy) {
		for (CUstream o = all_streams; o != NULL; o = o->next)
			if (o->ctx == s->ctx && o != s && (o->flags & CU_STREAM_NON_BLOCKING) == 0)
				wait_add(op, (struct mark){o, o->queued});
	} else if ((s->flags & CU_STREAM_NON_BLOCKING) == 0 && legacy != NULL) {
		wait_add(op, (struct mark){legacy, legacy->queued});
	}
}

uint64_t enqueue(CUstream s, const struct op *model)
{
	struct op *op = malloc(sizeof(*op));
	uint64_t seq;

	*op = *model;
	op->next = NULL;
	seq = op->seq = ++s->queued;
	legacy_order(s, op);
	if (s->tail != NULL)
		s->tail->next = op;
	else
		s->head = op;
	s->tail = op;
	while (!fake.async && s->finished < seq) {
		if (s->started) { /* another thread is at it */
			pthread_cond_wait(&fake.changed, &fake.lock);
			continue;
		}
		s->started = 1;
		stream_step(s);
		s->started = 0;
		pthread_cond_broadcast(&fake.changed);
	}
	if (!fake.async)
		return seq;
	if (!s->started) {
		s->started = 1;
		pthread_create(&s->thread, NULL, stream_main, s);
		pthread_detach(s->thread);
	}
	pthread_cond_broadcast(&fake.changed);
	return seq;
}

CUresult submit(CUstream s, const struct op *op)
{
	CUresult r;

	if (s == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (s->cap != NULL)
		return capture_add(s, op);
	if (s == s->ctx->legacy && (r = capture_check_legacy(s->ctx)) != CUDA_SUCCESS)
		return r;
	enqueue(s, op);
	return CUDA_SUCCESS;
}

/* ---- Streams -------------------------------------------------------------------------------- */

CUstream stream_new(CUcontext ctx, unsigned int flags)
{
	CUstream s = calloc(1, sizeof(*s));

	s->magic = STREAM_MAGIC;
	s->ctx = ctx;
	s->flags = flags;
	s->id = next_id++;
	s->next = all_streams;
	all_streams = s;
	return s;
}

void streams_leave(const struct capture *c)
{
	for (CUstream s = all_streams; s != NULL; s = s->next)
		if (s->cap == c) {
			s->cap = NULL;
			s->ndeps = 0;
		}
}

CUstream stream_of(CUstream s)
{
	static __thread CUstream per_thread[MAX_DEVICES];
	CUcontext ctx = current();

	if (s == NULL || s == CU_STREAM_LEGACY)
		return ctx != NULL ? ctx->legacy : NULL;
	if (s == CU_STREAM_PER_THREAD) {
		if (ctx == NULL)
			return NULL;
		if (per_thread[ctx->device] == NULL)
			per_thread[ctx->device] = stream_new(ctx, CU_STREAM_DEFAULT);
		return per_thread[ctx->device];
	}
	for (CUstream o = all_streams; o != NULL; o = o->next)
		if (o == s)
			return s->magic == STREAM_MAGIC ? s : NULL;
	return NULL;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	ENTRY(NEED_CTX);
	(void)priority;
	if (stream == NULL || flags > CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	*stream = stream_new(current(), flags);
	fake.streams++;
	return done(CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	ENTRY(NEED_CTX);
	if (stream == NULL || flags > CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	*stream = stream_new(current(), flags);
	fake.streams++;
	return done(CUDA_SUCCESS);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	ENTRY_LATE(NEED_INIT);
	fake_lock();
	if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ||
		stream_of(stream) == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	stream->magic = 0;
	fake.streams--;
	pthread_cond_broadcast(&fake.changed); /* its thread ends */
	return done(late);
}

CUresult cuStreamSynchronize(CUstream stream)
{
	CUstream s;
	CUresult r;

	ENTRY(NEED_CTX | UNSAFE);
	fake_lock();
	s = stream_of(stream);
	if (s == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	if (s->cap != NULL) {
		s->cap->invalid = 1;
		return done(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	}
	if (s == s->ctx->legacy && (r = capture_check_legacy(s->ctx)) != CUDA_SUCCESS)
		return done(r);
	if (s == s->ctx->legacy) /* waits for the blocking streams, too */
		enqueue(s, &(struct op){.kind = OP_NOP});
	mark_wait((struct mark){s, s->queued});
	return done(CUDA_SUCCESS);
}

CUresult cuStreamQuery(CUstream stream)
{
	CUstream s;

	ENTRY(NEED_CTX | UNSAFE);
	fake_lock();
	s = stream_of(stream);
	if (s == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	if (s->cap != NULL) {
		s->cap->invalid = 1;
		return done(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	}
	return done(mark_done((struct mark){s, s->queued}) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx)
{
	CUstream s;

	ENTRY(NEED_CTX);
	fake_lock();
	s = stream_of(stream);
	if (s == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	*ctx = s->ctx;
	return done(CUDA_SUCCESS);
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
	CUstream s;

	ENTRY(NEED_CTX);
	fake_lock();
	s = stream_of(stream);
	if (s == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	*id = s->id;
	return done(CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void)
{
	ENTRY(NEED_CTX | UNSAFE);
	fake_lock();
	for (CUstream s = all_streams; s != NULL; s = s->next)
		if (s->ctx == current())
			mark_wait((struct mark){s, s->queued});
	return done(CUDA_SUCCESS);
}

/* ---- Submitting ----------------------------------------------------------------------------- */

CUresult submit_checked(CUstream stream, const struct op *op, size_t dst_bytes)
{
	CUstream s;

	fake_lock();
	s = stream_of(stream);
	if (s == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	if (!memory_ok(op->dst, dst_bytes, s->ctx->device) ||
		(op->kind == OP_COPY && !memory_ok(op->src, op->n, s->ctx->device)))
		return done(CUDA_ERROR_INVALID_VALUE);
	return done(submit(s, op));
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	struct op op = {.kind = OP_COPY, .dst = dst, .src = src, .n = size};

	ENTRY(NEED_CTX);
	fake_lock();
	if (fake.lie == 'w' && memory_device(dst) >= 0 && memory_device(dst) != current()->device)
		op.kind = OP_NOP;
	if (fake.lie == 'r' && memory_device(src) >= 0 && memory_device(src) != current()->device)
		op.kind = OP_SET8;
	fake_unlock();
	return submit_checked(stream, &op, size);
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream)
{
	ENTRY(NEED_CTX);
	return submit_checked(
		stream, &(struct op){.kind = OP_SET8, .dst = dst, .value = value, .n = n}, n);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t n, CUstream stream)
{
	ENTRY(NEED_CTX);
	if (dst % 4 != 0)
		return CUDA_ERROR_INVALID_VALUE;
	return submit_checked(
		stream, &(struct op){.kind = OP_SET32, .dst = dst, .value = value, .n = n}, n * 4);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *arg)
{
	ENTRY(NEED_CTX);
	if (fn == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	return submit_checked(stream, &(struct op){.kind = OP_HOST, .fn = fn, .arg = arg}, 0);
}

CUresult cuStreamWriteValue32_v2(
	CUstream stream, CUdeviceptr va, cuuint32_t value, unsigned int flags)
{
	ENTRY(NEED_CTX);
	if (va % 4 != 0 || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	return submit_checked(stream, &(struct op){.kind = OP_WRITE, .dst = va, .value = value}, 4);
}

CUresult cuStreamWaitValue32_v2(
	CUstream stream, CUdeviceptr va, cuuint32_t value, unsigned int flags)
{
	ENTRY(NEED_CTX);
	if (va % 4 != 0 || flags > CU_STREAM_WAIT_VALUE_EQ)
		return CUDA_ERROR_INVALID_VALUE;
	return submit_checked(stream,
		&(struct op){.kind = OP_WAIT, .dst = va, .value = value, .flags = flags}, 4);
}

CUresult cuStreamBatchMemOp_v2(
	CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags)
{
	CUresult r = CUDA_SUCCESS;

	ENTRY(NEED_CTX);
	if (ops == NULL || count == 0 || flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < count && r == CUDA_SUCCESS; i++) {
		struct op op = {.dst = ops[i].writeValue.address,
			.value = ops[i].writeValue.value,
			.flags = ops[i].writeValue.flags};

		if (ops[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_32)
			op.kind = OP_WRITE;
		else if (ops[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32)
			op.kind = OP_WAIT;
		else
			return CUDA_ERROR_INVALID_VALUE;
		r = submit_checked(stream, &op, 4);
	}
	return r;
}

/* ---- Events --------------------------------------------------------------------------------- */

static int bad_event(CUevent e)
{
	return e == NULL || e->magic != EVENT_MAGIC;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	CUevent e;

	ENTRY(NEED_CTX);
	if (event == NULL || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	e = calloc(1, sizeof(*e));
	e->magic = EVENT_MAGIC;
	e->flags = flags;
	fake_lock();
	fake.events++;
	*event = e;
	return done(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent event)
{
	ENTRY_LATE(NEED_INIT);
	if (bad_event(event))
		return CUDA_ERROR_INVALID_HANDLE;
	fake_lock();
	mark_wait(event->mark); /* the record may still be queued */
	event->magic = 0;
	fake.events--;
	free(event);
	return done(late);
}

static CUresult event_record(CUevent event, CUstream stream, unsigned int flags)
{
	CUstream s;

	if (bad_event(event))
		return CUDA_ERROR_INVALID_HANDLE;
	if (flags > CU_EVENT_RECORD_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	s = stream_of(stream);
	if (s == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	if (s->cap != NULL) {
		if (flags == CU_EVENT_RECORD_EXTERNAL)
			return done(
				capture_add(s, &(struct op){.kind = OP_RECORD, .event = event}));
		return done(capture_record(event, s));
	}
	if (flags == CU_EVENT_RECORD_EXTERNAL) /* makes sense in a capture only */
		return done(CUDA_ERROR_ILLEGAL_STATE);
	event->cap = NULL;
	event->recorded = 1;
	event->mark.s = s;
	event->mark.seq = s->queued + 1;
	return done(submit(s, &(struct op){.kind = OP_RECORD, .event = event}));
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	ENTRY(NEED_CTX);
	return event_record(event, stream, CU_EVENT_RECORD_DEFAULT);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	ENTRY(NEED_CTX);
	return event_record(event, stream, flags);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	struct op op = {.kind = OP_NOP};
	CUstream s;

	ENTRY(NEED_CTX);
	if (bad_event(event))
		return CUDA_ERROR_INVALID_HANDLE;
	if (flags > CU_EVENT_WAIT_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	s = stream_of(stream);
	if (s == NULL)
		return done(CUDA_ERROR_INVALID_HANDLE);
	if (flags == CU_EVENT_WAIT_EXTERNAL) {
		if (s->cap == NULL)
			return done(CUDA_ERROR_ILLEGAL_STATE);
		op.event = event;
		return done(capture_add(s, &op));
	}
	if (s->cap != NULL || event->cap != NULL)
		return done(capture_wait(s, event));
	if (!event->recorded)
		return done(CUDA_SUCCESS);
	wait_add(&op, event->mark);
	return done(submit(s, &op));
}

/* Asking about an event spoils the capture that it is part of, and any that binds this thread. */
static CUresult event_ask(CUevent event)
{
	struct capture *c = capture_of(event);

	if (c != NULL)
		c->invalid = 1;
	return event->cap != NULL ? CUDA_ERROR_CAPTURED_EVENT : capture_check_unsafe();
}

CUresult cuEventQuery(CUevent event)
{
	CUresult r;

	ENTRY(NEED_CTX);
	if (bad_event(event))
		return CUDA_ERROR_INVALID_HANDLE;
	fake_lock();
	if ((r = event_ask(event)) != CUDA_SUCCESS)
		return done(r);
	return done(mark_done(event->mark) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuEventSynchronize(CUevent event)
{
	CUresult r;

	ENTRY(NEED_CTX);
	if (bad_event(event))
		return CUDA_ERROR_INVALID_HANDLE;
	fake_lock();
	if ((r = event_ask(event)) != CUDA_SUCCESS)
		return done(r);
	mark_wait(event->mark);
	return done(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	ENTRY(NEED_CTX);
	if (bad_event(start) || bad_event(end) || !start->recorded || !end->recorded ||
		((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0)
		return CUDA_ERROR_INVALID_HANDLE;
	fake_lock();
	if (!mark_done(start->mark) || !mark_done(end->mark))
		return done(CUDA_ERROR_NOT_READY);
	*ms = (float)((double)(end->time_ns - start->time_ns) * 1e-6);
	return done(CUDA_SUCCESS);
}
