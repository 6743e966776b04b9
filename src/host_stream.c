#define _GNU_SOURCE
#include "host_stream.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "hub.h"
#include "thread.h"

#define STREAM_STACK (256u << 10)
#define EVENT_MAGIC 0x53594d4345564e54ull

enum op_kind { OP_CALL, OP_RECORD, OP_WAIT };

struct op {
	struct op *next;
	enum op_kind kind;
	int running;
	/* OP_CALL */
	symcclComm_t comm;
	uint64_t turn; /* number among the communicator's calls */
	struct coll_call call;
	struct coll_plan plan;
	/* The others: this recording of the event. */
	struct symcclHostEvent *event;
	uint64_t number;
};

/* What symcclStream_t points to on the host backend. */
struct symcclStream {
	struct symcclStream *next;
	pthread_t thread;
	pthread_cond_t cond; /* something to do, or done */
	struct op *first, **end;
	uint64_t put, done;
	int stop;
	struct failure why; /* first failure since it was last asked for */
};

struct symcclHostEvent {
	uint64_t magic;
	int refs; /* the handle, and operations in streams */
	uint64_t recorded, passed;
};

/* One lock for all streams, events and the communicators' turns: what is done under it is short,
 * and orders between several of them need no more thought. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t passed = PTHREAD_COND_INITIALIZER; /* an event, or a communicator's call */
static struct symcclStream *streams;

void host_stream_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_cond_init(&passed, NULL);
	streams = NULL;
}

/* ---- Operations; lock held ------------------------------------------------------------------- */

static void wake_all(void)
{
	for (struct symcclStream *s = streams; s != NULL; s = s->next)
		pthread_cond_broadcast(&s->cond);
	pthread_cond_broadcast(&passed);
}

static void event_drop(struct symcclHostEvent *e)
{
	if (--e->refs > 0)
		return;
	e->magic = 0;
	free(e);
}

static void op_free(struct op *o)
{
	if (o->event != NULL)
		event_drop(o->event);
	free(o->call.xfer);
	free((void *)o->call.wait);
	free(o);
}

static int op_ready(const struct op *o)
{
	if (o->kind == OP_WAIT)
		return o->event->passed >= o->number;
	return o->kind == OP_RECORD || o->comm->turns_done + 1 == o->turn;
}

static void stream_failed(struct symcclStream *s, const struct op *o, symcclResult_t e)
{
	if (e == symcclSuccess || s->why.code != symcclSuccess)
		return;
	s->why.code = e;
	s->why.rank = o->comm->rank;
	snprintf(s->why.text, sizeof(s->why.text), "rank %d, a call on stream %p: %s",
		o->comm->rank, (void *)s, error_text());
}

/* The first operation is done: take it out, and let others look. */
static void op_end(struct symcclStream *s, struct op *o)
{
	s->first = o->next;
	if (s->first == NULL)
		s->end = &s->first;
	s->done++;
	if (o->kind == OP_CALL)
		o->comm->turns_done = o->turn;
	if (o->kind == OP_RECORD && o->event->passed < o->number)
		o->event->passed = o->number;
	op_free(o);
	wake_all();
}

static void *stream_main(void *arg)
{
	struct symcclStream *s = arg;

	pthread_setname_np(pthread_self(), "symccl-stream");
	pthread_mutex_lock(&lock);
	while (!s->stop) {
		struct op *o = s->first;

		if (o == NULL || !op_ready(o)) {
			pthread_cond_wait(&s->cond, &lock);
			continue;
		}
		if (o->kind == OP_CALL) {
			symcclResult_t e;

			o->running = 1;
			pthread_mutex_unlock(&lock);
			e = comm_run_host(o->comm, &o->call, &o->plan);
			pthread_mutex_lock(&lock);
			stream_failed(s, o, e);
		}
		op_end(s, o);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

static symcclResult_t find(symcclStream_t stream)
{
	const struct symcclStream *s = streams;

	while (s != NULL && s != stream)
		s = s->next;
	if (s != NULL)
		return symcclSuccess;
	return fail(symcclInvalidArgument,
		"stream is %p: none of symcclHostStreamCreate() in this process", (void *)stream);
}

static void stream_add(struct symcclStream *s, struct op *o)
{
	*s->end = o;
	s->end = &o->next;
	s->put++;
	pthread_cond_broadcast(&s->cond);
}

/* ---- Calls -------------------------------------------------------------------------------------
 */

static symcclResult_t op_new(symcclComm_t comm, const struct coll_call *call,
	const struct coll_plan *plan, struct op **out)
{
	size_t xfers = (size_t)call->nxfers * sizeof(*call->xfer);
	size_t waits = (size_t)call->nwaits * sizeof(*call->wait);
	struct op *o = calloc(1, sizeof(*o));

	if (o == NULL)
		return fail(symcclSystemError, "out of memory for a call in a stream");
	o->comm = comm;
	o->call = *call;
	o->plan = *plan;
	o->call.xfer = xfers ? malloc(xfers) : NULL;
	o->call.wait = waits ? malloc(waits) : NULL;
	if ((xfers && o->call.xfer == NULL) || (waits && o->call.wait == NULL)) {
		op_free(o);
		return fail(symcclSystemError, "out of memory for a call in a stream");
	}
	if (xfers)
		memcpy(o->call.xfer, call->xfer, xfers);
	if (waits)
		memcpy((void *)o->call.wait, call->wait, waits);
	*out = o;
	return symcclSuccess;
}

symcclResult_t host_stream_put(symcclComm_t comm, const struct coll_call *call,
	const struct coll_plan *plan, symcclStream_t stream)
{
	struct op *o = NULL;
	symcclResult_t e;

	TRY(op_new(comm, call, plan, &o));
	pthread_mutex_lock(&lock);
	e = find(stream);
	if (e == symcclSuccess) {
		o->turn = ++comm->turns;
		stream_add(stream, o);
	} else {
		op_free(o);
	}
	pthread_mutex_unlock(&lock);
	return e;
}

void host_stream_drain(symcclComm_t comm)
{
	pthread_mutex_lock(&lock);
	while (comm->turns_done != comm->turns)
		pthread_cond_wait(&passed, &lock);
	pthread_mutex_unlock(&lock);
}

/* Lock held. */
static void purge_stream(struct symcclStream *s, symcclComm_t comm)
{
	struct op **at = &s->first;

	while (*at != NULL) {
		struct op *o = *at;

		if (o->kind != OP_CALL || o->comm != comm || o->running) {
			at = &o->next;
			continue;
		}
		*at = o->next;
		s->done++;
		stream_failed(s, o, hub_status(comm->hub));
		op_free(o);
	}
	s->end = at;
}

void host_stream_purge(symcclComm_t comm)
{
	int running = 0;

	pthread_mutex_lock(&lock);
	for (struct symcclStream *s = streams; s != NULL; s = s->next) {
		purge_stream(s, comm);
		running |= s->first != NULL && s->first->running && s->first->comm == comm;
	}
	comm->turns = comm->turns_done + (uint64_t)running;
	wake_all();
	pthread_mutex_unlock(&lock);
	host_stream_drain(comm);
}

/* ---- Streams -----------------------------------------------------------------------------------
 */

static symcclResult_t stream_start(struct symcclStream *s)
{
	int e = thread_start(&s->thread, STREAM_STACK, stream_main, s);

	errno = e;
	return e ? fail(symcclSystemError, "no thread for a stream: %m") : symcclSuccess;
}

symcclResult_t symcclHostStreamCreate(symcclStream_t *stream)
{
	struct symcclStream *s;
	symcclResult_t e;

	if (stream == NULL)
		return fail(symcclInvalidArgument, "stream is NULL: nowhere to put the stream");
	fork_watch();
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return fail(symcclSystemError, "out of memory for a stream");
	pthread_cond_init(&s->cond, NULL);
	s->end = &s->first;
	pthread_mutex_lock(&lock);
	e = stream_start(s);
	if (e == symcclSuccess) {
		s->next = streams;
		streams = s;
	}
	pthread_mutex_unlock(&lock);
	if (e != symcclSuccess) {
		pthread_cond_destroy(&s->cond);
		free(s);
		return e;
	}
	*stream = s;
	return symcclSuccess;
}

/* The first failure since the last time; lock held. */
static symcclResult_t stream_result(struct symcclStream *s)
{
	struct failure why = s->why;

	s->why.code = symcclSuccess;
	return why.code == symcclSuccess ? why.code : fail_quiet(why.code, "%s", why.text);
}

static void stream_wait(struct symcclStream *s)
{
	uint64_t until = s->put;

	while (s->done < until)
		pthread_cond_wait(&s->cond, &lock);
}

symcclResult_t symcclHostStreamSynchronize(symcclStream_t stream)
{
	symcclResult_t e;

	pthread_mutex_lock(&lock);
	e = find(stream);
	if (e == symcclSuccess) {
		stream_wait(stream);
		e = stream_result(stream);
	}
	pthread_mutex_unlock(&lock);
	return e;
}

symcclResult_t symcclHostStreamQuery(symcclStream_t stream)
{
	symcclResult_t e;

	pthread_mutex_lock(&lock);
	e = find(stream);
	if (e == symcclSuccess)
		e = stream->done < stream->put ? symcclInProgress : stream_result(stream);
	pthread_mutex_unlock(&lock);
	return e;
}

symcclResult_t symcclHostStreamDestroy(symcclStream_t stream)
{
	struct symcclStream **at = &streams;
	symcclResult_t e;

	if (stream == NULL)
		return symcclSuccess;
	pthread_mutex_lock(&lock);
	e = find(stream);
	if (e == symcclSuccess) {
		stream_wait(stream);
		e = stream_result(stream);
		while (*at != stream)
			at = &(*at)->next;
		*at = stream->next;
		stream->stop = 1;
		pthread_cond_broadcast(&stream->cond);
		pthread_mutex_unlock(&lock);
		pthread_join(stream->thread, NULL);
		pthread_cond_destroy(&stream->cond);
		free(stream);
		return e;
	}
	pthread_mutex_unlock(&lock);
	return e;
}

/* ---- Events ------------------------------------------------------------------------------------
 */

static symcclResult_t event_check(symcclHostEvent_t event)
{
	if (event == NULL || event->magic != EVENT_MAGIC)
		return fail(symcclInvalidArgument,
			"event is %p: no event, or one that was destroyed", (void *)event);
	return symcclSuccess;
}

symcclResult_t symcclHostEventCreate(symcclHostEvent_t *event)
{
	struct symcclHostEvent *e;

	if (event == NULL)
		return fail(symcclInvalidArgument, "event is NULL: nowhere to put the event");
	e = calloc(1, sizeof(*e));
	if (e == NULL)
		return fail(symcclSystemError, "out of memory for an event");
	e->magic = EVENT_MAGIC;
	e->refs = 1;
	*event = e;
	return symcclSuccess;
}

/* Lock held. */
static symcclResult_t event_op(enum op_kind kind, symcclStream_t stream, symcclHostEvent_t event)
{
	struct op *o;

	TRY(find(stream));
	TRY(event_check(event));
	if (kind == OP_WAIT && event->passed >= event->recorded)
		return symcclSuccess;
	o = calloc(1, sizeof(*o));
	if (o == NULL)
		return fail(symcclSystemError, "out of memory for an event in a stream");
	o->kind = kind;
	o->event = event;
	o->number = kind == OP_RECORD ? ++event->recorded : event->recorded;
	event->refs++;
	stream_add(stream, o);
	return symcclSuccess;
}

symcclResult_t symcclHostEventRecord(symcclHostEvent_t event, symcclStream_t stream)
{
	symcclResult_t e;

	pthread_mutex_lock(&lock);
	e = event_op(OP_RECORD, stream, event);
	pthread_mutex_unlock(&lock);
	return e;
}

symcclResult_t symcclHostStreamWaitEvent(symcclStream_t stream, symcclHostEvent_t event)
{
	symcclResult_t e;

	pthread_mutex_lock(&lock);
	e = event_op(OP_WAIT, stream, event);
	pthread_mutex_unlock(&lock);
	return e;
}

symcclResult_t symcclHostEventQuery(symcclHostEvent_t event)
{
	symcclResult_t e;

	pthread_mutex_lock(&lock);
	e = event_check(event);
	if (e == symcclSuccess && event->passed < event->recorded)
		e = symcclInProgress;
	pthread_mutex_unlock(&lock);
	return e;
}

symcclResult_t symcclHostEventSynchronize(symcclHostEvent_t event)
{
	symcclResult_t e;

	pthread_mutex_lock(&lock);
	e = event_check(event);
	if (e == symcclSuccess) {
		uint64_t number = event->recorded;

		event->refs++;
		while (event->passed < number)
			pthread_cond_wait(&passed, &lock);
		event_drop(event);
	}
	pthread_mutex_unlock(&lock);
	return e;
}

symcclResult_t symcclHostEventDestroy(symcclHostEvent_t event)
{
	symcclResult_t e = symcclSuccess;

	if (event == NULL)
		return e;
	pthread_mutex_lock(&lock);
	e = event_check(event);
	if (e == symcclSuccess) {
		event->magic = 0;
		event_drop(event);
	}
	pthread_mutex_unlock(&lock);
	return e;
}

/* ---- Messages on several streams --------------------------------------------------------------
 */

symcclStream_t host_stream_of(const struct coll_xfer *x, int n)
{
	for (int i = 0; i < n; i++)
		if (x[i].stream != NULL)
			return x[i].stream;
	return NULL;
}

/* What `to` gets next waits for what is in `from` now. */
static symcclResult_t chain(symcclStream_t to, symcclStream_t from)
{
	symcclHostEvent_t event;
	symcclResult_t e;

	TRY(symcclHostEventCreate(&event));
	e = symcclHostEventRecord(event, from);
	if (e == symcclSuccess)
		e = symcclHostStreamWaitEvent(to, event);
	symcclHostEventDestroy(event);
	return e;
}

static int seen_before(const struct coll_xfer *x, int i)
{
	for (int k = 0; k < i; k++)
		if (x[k].stream == x[i].stream)
			return 1;
	return 0;
}

symcclResult_t host_stream_gather(const struct coll_xfer *x, int n, symcclStream_t to)
{
	for (int i = 0; i < n; i++)
		if (x[i].stream != NULL && x[i].stream != to && !seen_before(x, i))
			TRY(chain(to, x[i].stream));
	return symcclSuccess;
}

symcclResult_t host_stream_spread(const struct coll_xfer *x, int n, symcclStream_t from)
{
	int plain = 0;

	for (int i = 0; i < n; i++) {
		plain |= x[i].stream == NULL;
		if (x[i].stream != NULL && x[i].stream != from && !seen_before(x, i))
			TRY(chain(x[i].stream, from));
	}
	return plain ? symcclHostStreamSynchronize(from) : symcclSuccess;
}
