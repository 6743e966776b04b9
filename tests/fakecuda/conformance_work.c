/* Conformance: streams, events, capture, graphs, threads, code. */
#include <pthread.h>
#include <unistd.h>
#include "conformance.h"

static void count_up(void *arg)
{
	(*(int *)arg)++;
}

void group_streams(void)
{
	CUevent a, b, c;
	CUstream s, t;
	CUcontext ctx, got;
	struct mem m;
	int n = 0;
	float ms;

	if (!open_gpu() || !mem_open(&m, 1))
		return;
	WANT(CUDA_ERROR_INVALID_VALUE, StreamCreate(&s, 77));
	MUST(StreamCreate(&s, CU_STREAM_NON_BLOCKING));
	MUST(StreamCreateWithPriority(&t, CU_STREAM_NON_BLOCKING, 0));
	OK(CtxGetCurrent(&ctx));
	OK(StreamGetCtx(s, &got));
	THAT(got == ctx);
	MUST(EventCreate(&a, CU_EVENT_DEFAULT));
	MUST(EventCreate(&b, CU_EVENT_DEFAULT));
	MUST(EventCreate(&c, CU_EVENT_DISABLE_TIMING));
	OK(EventQuery(a)); /* never recorded counts as done */
	OK(EventRecord(a, s));
	OK(MemsetD32Async(m.va, 0x01010101, gran / 4, s));
	OK(LaunchHostFunc(s, count_up, &n));
	OK(EventRecord(b, s));
	OK(StreamWaitEvent(t, b, 0));
	OK(MemsetD8Async(m.va, 2, 1, t));
	OK(StreamSynchronize(t));
	THAT(n == 1);
	OK(EventSynchronize(b));
	OK(EventQuery(b));
	OK(StreamQuery(s));
	OK(EventElapsedTime(&ms, a, b));
	THAT(ms >= 0);
	THAT(byte_at(m.va) == 2 && byte_at(m.va + 1) == 1);
	OK(EventRecord(c, s));
	OK(StreamSynchronize(s));
	REFUSE(EventElapsedTime(&ms, a, c));
	REFUSE(EventRecordWithFlags(a, s, CU_EVENT_RECORD_EXTERNAL)); /* not capturing */
	SHOW(StreamWaitEvent(s, a, CU_EVENT_WAIT_EXTERNAL));
	OK(StreamWriteValue32(s, m.va, 0x44, 0));
	OK(StreamWaitValue32(s, m.va, 0x44, CU_STREAM_WAIT_VALUE_EQ));
	OK(StreamSynchronize(s));
	THAT(byte_at(m.va) == 0x44);
	OK(EventDestroy(a));
	OK(EventDestroy(b));
	OK(EventDestroy(c));
	OK(StreamDestroy(s));
	OK(StreamDestroy(t));
	mem_close(&m);
}

/* Calls that symccl makes while somebody captures, in its relaxed mode. */
static void relaxed_calls(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUmemGenericAllocationHandle h;
	CUstream own;
	struct mem m;
	int fd;

	OK(ThreadExchangeStreamCaptureMode(&mode));
	THAT(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
	if (mem_open(&m, 1)) {
		OK(StreamCreate(&own, CU_STREAM_NON_BLOCKING));
		OK(MemsetD8Async(m.va, 0, m.size, own));
		OK(StreamSynchronize(own));
		OK(StreamDestroy(own));
		OK(MemExportToShareableHandle(
			&fd, m.h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		OK(MemImportFromShareableHandle(
			&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		close(fd);
		OK(MemRelease(h));
		OK(MemRetainAllocationHandle(&h, (void *)(uintptr_t)m.va));
		OK(MemRelease(h));
		mem_close(&m);
	}
	OK(ThreadExchangeStreamCaptureMode(&mode));
	THAT(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
}

/* Does a call succeed during a global capture, and does it spoil the capture? Printed only: where
 * the driver (580 does so for all VMM calls) allows what its documentation does not promise, the
 * double forbids it. */
#define SPOILS(s, call) \
	do { \
		CUstreamCaptureStatus st_ = CU_STREAM_CAPTURE_STATUS_NONE; \
		CUgraph g_ = NULL; \
		OK(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL)); \
		SHOW(call); \
		OK(StreamIsCapturing(s, &st_)); \
		if (verbose) \
			printf("       capture is %s\n", st_ == 1 ? "active" : "invalid"); \
		SHOW(StreamEndCapture(s, &g_)); \
		if (g_ != NULL) \
			OK(GraphDestroy(g_)); \
	} while (0)

void group_capture(void)
{
	CUstreamCaptureStatus status;
	CUmemGenericAllocationHandle h;
	CUdeviceptr va;
	CUstream s, t, blocking;
	CUgraph graph;
	CUevent e, f;
	struct mem m;
	int v;

	if (!open_gpu() || !mem_open(&m, 1))
		return;
	MUST(StreamCreate(&s, CU_STREAM_NON_BLOCKING));
	MUST(StreamCreate(&t, CU_STREAM_NON_BLOCKING));
	MUST(StreamCreate(&blocking, CU_STREAM_DEFAULT));
	MUST(EventCreate(&e, CU_EVENT_DISABLE_TIMING));
	MUST(EventCreate(&f, CU_EVENT_DISABLE_TIMING));
	WANT(CUDA_ERROR_ILLEGAL_STATE, StreamEndCapture(s, &graph));
	REFUSE(StreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(StreamIsCapturing(s, &status));
	THAT(status == CU_STREAM_CAPTURE_STATUS_NONE);

	/* Relaxed threads may work while this thread captures in global mode. */
	MUST(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	WANT(CUDA_ERROR_ILLEGAL_STATE, StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(MemsetD8Async(m.va, 1, 1, s));
	relaxed_calls();
	OK(PointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, m.va));
	OK(StreamIsCapturing(s, &status));
	THAT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(StreamEndCapture(s, &graph));
	OK(GraphDestroy(graph));

	/* A forbidden call is refused and spoils the capture. */
	MUST(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	WANT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, MemAlloc(&va, 4096));
	OK(StreamIsCapturing(s, &status));
	THAT(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	WANT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, MemsetD8Async(m.va, 1, 1, s));
	WANT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, StreamEndCapture(s, &graph));
	MUST(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	WANT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, StreamSynchronize(s));
	SHOW(StreamEndCapture(s, &graph));
	SPOILS(s, MemAddressReserve(&va, gran, 0, 0, 0));
	SPOILS(s, MemCreate(&h, gran, &prop, 0));
	SPOILS(s, MemSetAccess(m.va, m.size, &rw, 1));
	SPOILS(s, MemRetainAllocationHandle(&h, (void *)(uintptr_t)m.va));
	SPOILS(s, StreamCreate(&t, CU_STREAM_NON_BLOCKING));
	SPOILS(s, StreamQuery(t));
	SPOILS(s, StreamSynchronize(t));
	SPOILS(s, EventSynchronize(e));
	MUST(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	WANT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, EventQuery(e));
	WANT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, StreamEndCapture(s, &graph));

	/* Forks and joins by events. */
	MUST(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(MemsetD8Async(m.va, 1, 1, s));
	OK(EventRecord(e, s));
	WANT(CUDA_ERROR_CAPTURED_EVENT, EventQuery(e));
	WANT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, StreamEndCapture(s, &graph));
	MUST(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(EventRecord(e, s));
	OK(StreamWaitEvent(t, e, 0));
	OK(StreamIsCapturing(t, &status));
	THAT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(MemsetD8Async(m.va, 1, 1, t));
	/* Ending it on the wrong stream spoils it. */
	WANT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, StreamEndCapture(t, &graph));
	WANT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, StreamEndCapture(s, &graph));
	MUST(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(EventRecord(e, s));
	OK(StreamWaitEvent(t, e, 0));
	OK(MemsetD8Async(m.va, 1, 1, t));
	WANT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, StreamEndCapture(s, &graph));
	OK(StreamIsCapturing(t, &status));
	THAT(status == CU_STREAM_CAPTURE_STATUS_NONE);
	OK(EventRecord(f, t));
	MUST(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	WANT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, StreamWaitEvent(s, f, 0));
	SHOW(StreamEndCapture(s, &graph));
	/* The default stream and blocking streams. */
	MUST(StreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
	WANT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, MemsetD8Async(m.va, 1, 1, NULL));
	SHOW(StreamEndCapture(blocking, &graph));
}

void group_graph(void)
{
	CUstreamCaptureStatus status;
	CUgraph graph, info;
	CUgraphExec exec;
	CUstream s, t;
	CUevent fork_event, join, outside;
	const CUgraphNode *deps;
	cuuint64_t id;
	struct mem m;
	size_t ndeps;

	if (!open_gpu() || !mem_open(&m, 1))
		return;
	MUST(StreamCreate(&s, CU_STREAM_NON_BLOCKING));
	MUST(StreamCreate(&t, CU_STREAM_NON_BLOCKING));
	MUST(EventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
	MUST(EventCreate(&join, CU_EVENT_DISABLE_TIMING));
	MUST(EventCreate(&outside, CU_EVENT_DISABLE_TIMING));
	fill(m.va, 0, gran);
	MUST(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(StreamWaitEvent(s, outside, CU_EVENT_WAIT_EXTERNAL));
	OK(MemsetD8Async(m.va, 11, 1, s));
	OK(StreamGetCaptureInfo(s, &status, &id, &info, &deps, &ndeps));
	THAT(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0 && info != NULL && ndeps == 1);
	OK(EventRecord(fork_event, s));
	OK(StreamWaitEvent(t, fork_event, 0));
	OK(MemcpyAsync(m.va + 1, m.va, 1, t));
	OK(EventRecord(join, t));
	OK(StreamWaitEvent(s, join, 0));
	OK(EventRecordWithFlags(outside, s, CU_EVENT_RECORD_EXTERNAL));
	MUST(StreamEndCapture(s, &graph));
	THAT(byte_at(m.va) == 0); /* recorded, not done */
	MUST(GraphInstantiateWithFlags(&exec, graph, 0));
	OK(GraphDestroy(graph));
	OK(GraphLaunch(exec, s));
	OK(StreamWaitEvent(t, outside, 0));
	OK(MemcpyAsync(m.va + 2, m.va + 1, 1, t));
	OK(StreamSynchronize(t));
	THAT(byte_at(m.va + 2) == 11);
	fill(m.va, 0, 3);
	OK(GraphLaunch(exec, t));
	OK(StreamSynchronize(t));
	THAT(byte_at(m.va + 1) == 11);
	OK(EventQuery(outside));
	OK(GraphExecDestroy(exec));
	OK(EventDestroy(fork_event));
	OK(EventDestroy(join));
	OK(EventDestroy(outside));
	OK(StreamDestroy(s));
	OK(StreamDestroy(t));
	mem_close(&m);
}

/* What the order of calls needs: a record node on the side whose edge moves on, an edge between
 * streams of one capture, and no unjoined work because of either. */
void group_graph_edges(void)
{
	CUstreamCaptureStatus status;
	CUgraphNode tail, record;
	CUgraph graph, info;
	CUgraphExec exec;
	CUstream s, t;
	CUevent outside, join;
	const CUgraphNode *deps;
	struct mem m;
	size_t ndeps;

	if (!open_gpu() || !mem_open(&m, 1))
		return;
	MUST(StreamCreate(&s, CU_STREAM_NON_BLOCKING));
	MUST(StreamCreate(&t, CU_STREAM_NON_BLOCKING));
	MUST(EventCreate(&outside, CU_EVENT_DISABLE_TIMING));
	MUST(EventCreate(&join, CU_EVENT_DISABLE_TIMING));
	fill(m.va, 0, gran);
	MUST(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	OK(StreamWaitEvent(s, outside, CU_EVENT_WAIT_EXTERNAL)); /* never recorded: no wait */
	OK(MemsetD8Async(m.va, 21, 1, s));
	MUST(StreamGetCaptureInfo(s, &status, NULL, &info, &deps, &ndeps));
	THAT(ndeps == 1);
	tail = deps[0];
	MUST(GraphAddEventRecordNode(&record, info, &tail, 1, outside));
	/* t joins the capture by an event, then depends on tail by an edge. */
	OK(EventRecord(join, s));
	OK(StreamWaitEvent(t, join, 0));
	OK(MemcpyAsync(m.va + 1, m.va, 1, s));
	MUST(StreamGetCaptureInfo(s, &status, NULL, &info, &deps, &ndeps));
	OK(GraphRemoveDependencies(info, &tail, &record, 1));
	REFUSE(GraphRemoveDependencies(info, &tail, &record, 1)); /* gone */
	tail = deps[0];
	OK(GraphAddDependencies(info, &tail, &record, 1));
	REFUSE(GraphAddDependencies(info, &tail, &record, 1)); /* there already */
	OK(StreamUpdateCaptureDependencies(t, &tail, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
	OK(MemcpyAsync(m.va + 2, m.va + 1, 1, t));
	OK(GraphRemoveDependencies(info, &tail, &record, 1));
	MUST(StreamGetCaptureInfo(t, &status, NULL, &info, &deps, &ndeps));
	THAT(ndeps == 1);
	tail = deps[0];
	OK(GraphAddDependencies(info, &tail, &record, 1));
	OK(EventRecord(join, t));
	OK(StreamWaitEvent(s, join, 0));
	MUST(StreamEndCapture(s, &graph));
	MUST(GraphInstantiateWithFlags(&exec, graph, 0));
	OK(GraphDestroy(graph));
	OK(GraphLaunch(exec, s));
	OK(StreamWaitEvent(t, outside, 0));
	OK(MemcpyAsync(m.va + 3, m.va + 2, 1, t));
	OK(StreamSynchronize(t));
	THAT(byte_at(m.va + 3) == 21);
	REFUSE(StreamUpdateCaptureDependencies(
		t, &tail, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES)); /* not capturing */
	OK(GraphExecDestroy(exec));
	OK(EventDestroy(join));
	OK(EventDestroy(outside));
	OK(StreamDestroy(s));
	OK(StreamDestroy(t));
	mem_close(&m);
}

/* Another thread of mode global is bound by a global capture as the capturing one is. */
static void *other_thread(void *arg)
{
	CUcontext ctx = ((CUcontext *)arg)[1];
	CUcontext got;
	CUdeviceptr va;

	OK(CtxGetCurrent(&got));
	THAT(got == NULL); /* contexts are per thread */
	OK(CtxSetCurrent(ctx));
	relaxed_calls();
	WANT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, MemAlloc(&va, 4096));
	return NULL;
}

/* Ending another thread's capture is refused, and ends it. */
static void *wrong_thread(void *arg)
{
	CUstream s = ((CUstream *)arg)[0];
	CUdeviceptr va;
	CUgraph graph;

	OK(CtxSetCurrent(((CUcontext *)arg)[1]));
	WANT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, StreamEndCapture(s, &graph));
	if (OK(MemAlloc(&va, 4096)) == CUDA_SUCCESS)
		OK(MemFree(va));
	return NULL;
}

static void run_thread(void *(*fn)(void *), void *arg)
{
	pthread_t id;

	THAT(pthread_create(&id, NULL, fn, arg) == 0);
	pthread_join(id, NULL);
}

void group_threads(void)
{
	void *arg[2];
	CUgraph graph;
	CUstream s;

	if (!open_gpu())
		return;
	MUST(StreamCreate(&s, CU_STREAM_NON_BLOCKING));
	arg[0] = s;
	OK(CtxGetCurrent((CUcontext *)&arg[1]));
	MUST(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	run_thread(other_thread, arg);
	WANT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, StreamEndCapture(s, &graph));
	MUST(StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	run_thread(wrong_thread, arg);
	WANT(CUDA_ERROR_ILLEGAL_STATE, StreamEndCapture(s, &graph));
	OK(StreamDestroy(s));
}

void group_library(void)
{
	static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
				  ".visible .entry nothing() { ret; }\n";
	static const char garbage[4096] = "this is no code";
	CUlibrary lib;
	CUkernel kernel;

	if (!open_gpu())
		return;
	WANT(CUDA_ERROR_INVALID_VALUE, LibraryLoadData(&lib, NULL, NULL, NULL, 0, NULL, NULL, 0));
	/* Loaded lazily: code that is none shows when something is asked of it. */
	if (SHOW(LibraryLoadData(&lib, garbage, NULL, NULL, 0, NULL, NULL, 0)) == CUDA_SUCCESS) {
		REFUSE(LibraryGetKernel(&kernel, lib, "nothing"));
		SHOW(LibraryUnload(lib));
	}
	MUST(LibraryLoadData(&lib, ptx, NULL, NULL, 0, NULL, NULL, 0));
	WANT(CUDA_ERROR_NOT_FOUND, LibraryGetKernel(&kernel, lib, "no_such_kernel"));
	OK(LibraryUnload(lib));
}
