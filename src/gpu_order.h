/*
 * Calls of one rank's communicator run in one order, whatever streams they come on, captured or
 * not. The chain is one event: every eager call waits for it when it comes on another stream than
 * the last, and records it anew. A graph waits for it before its first call of this communicator
 * and records it after its last, by external event nodes: so a replay takes its place in the chain
 * when it is launched. After the first capture a replay may come between any two eager calls
 * unseen, so these wait always.
 *
 * One thread at a time: the rank's own. The context of the stream must be current.
 */
#ifndef GPU_ORDER_H
#define GPU_ORDER_H

#include "cuda/driver.h"

/* Calls that are being captured. The record node hangs on the last call and moves on with the next:
 * a graph has one, at its end, and the kernels' own edges stay as the capture made them. */
struct order_capture {
	cuuint64_t id; /* 0: free */
	CUstream stream;
	CUgraphNode tail, record;
};

#define ORDER_CAPTURES 4 /* going on at the same time; with more, a graph gets several nodes */
struct gpu_order {
	CUevent done; /* of the last call */
	CUstream last;
	int any;   /* has been recorded */
	int mixed; /* a call has been captured */
	struct order_capture cap[ORDER_CAPTURES];
	unsigned next; /* entry to be given up for a new capture */
};

/* Between before and after, of one call. */
struct order_step {
	int overlap; /* the call's first kernel may start while its predecessor ends */
	int capturing;
	struct order_capture *cap;
};

symcclResult_t order_open(struct gpu_order *o);
/* Wait for what was enqueued. */
symcclResult_t order_wait(struct gpu_order *o);
/* Waits for it, too. */
void order_close(struct gpu_order *o);
/* Around what a call enqueues on stream. All fail with a sentence. */
symcclResult_t order_before(struct gpu_order *o, CUstream stream, struct order_step *step);
symcclResult_t order_after(struct gpu_order *o, CUstream stream, const struct order_step *step);

#endif
