/* What the double's files share. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdint.h>
#include "cuda/driver_types.h"
#include "fakecuda.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_DEVICES 8
#define GRANULARITY ((size_t)2 << 20)

/* Every call, as exported. */
#define CU_SYM(name, symbol, version, need, params) EXPORT CUresult symbol params;
#include "cuda/driver_syms.def"
#undef CU_SYM

struct CUctx_st {
	int device;
	int refs;
	struct CUstream_st *legacy; /* the default stream */
};

/* One lock for all state; recursive. Work on streams runs without it. */
extern struct fake {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a stream made progress */
	int initialized;
	int n, vmm, async, multicast, lie; /* lie: 'w', 'r' or 0 */
	size_t memory, used[MAX_DEVICES];
	char p2p[MAX_DEVICES][MAX_DEVICES];
	struct CUctx_st ctx[MAX_DEVICES];
	/* Open objects, for the leak report. */
	int streams, events, graphs, execs, captures, libraries, bindings;
} fake;

/* ---- Entry of a call ---- */
enum {
	NEED_INIT = 1,
	NEED_CTX = 2 | NEED_INIT,
	UNSAFE = 4, /* forbidden to threads that a capture restricts */
	LATE = 8    /* destroys: an injected failure is reported after the work */
};
CUresult entry(const char *name, int flags, CUresult *late);
#define ENTRY(flags) \
	do { \
		CUresult entry_ = entry(__func__, flags, NULL); \
		if (entry_ != CUDA_SUCCESS) \
			return entry_; \
	} while (0)
/* The same for what destroys: declares `late`, to be returned on success. */
#define ENTRY_LATE(flags) \
	CUresult late = CUDA_SUCCESS; \
	do { \
		CUresult entry_ = entry(__func__, (flags) | LATE, &late); \
		if (entry_ != CUDA_SUCCESS) \
			return entry_; \
	} while (0)

void fake_lock(void);
void fake_unlock(void);
/* Unlock and return r. */
CUresult done(CUresult r);
CUcontext current(void); /* of the thread; NULL: none */
int current_depth(void);

/* ---- Memory ---- */
struct phys { /* a physical allocation: a memfd whose name says what it is */
	CUmemGenericAllocationHandle id;
	int fd, refs, maps, imported;
	size_t size;
	CUmemAllocationProp prop;
	struct multicast *multicast; /* or not memory, but such an object */
	struct phys *next;
};
struct phys *phys_of(CUmemGenericAllocationHandle id); /* NULL: none */
struct phys *phys_new(int fd, size_t size, const CUmemAllocationProp *prop, int imported);
enum range_kind { RESERVED, MAPPED, ALLOCATED, IPC, HOST_ALLOCATED, HOST_REGISTERED };
struct range {
	enum range_kind kind;
	CUdeviceptr va;
	size_t size;
	struct phys *phys; /* MAPPED */
	uint32_t access;   /* MAPPED: devices */
	int fd, device;    /* ALLOCATED, IPC */
	unsigned long long id;
	struct range *next;
};
#define DEVICE_KINDS (1u << MAPPED | 1u << ALLOCATED | 1u << IPC)
#define HOST_KINDS (1u << HOST_ALLOCATED | 1u << HOST_REGISTERED)
struct range *range_add(enum range_kind kind, CUdeviceptr va, size_t size);
void range_remove(struct range *r);
/* The range around va of one of the kinds (bits), or the one of a kind that begins there; or NULL.
 */
struct range *range_around(CUdeviceptr va, unsigned int kinds);
struct range *range_at(CUdeviceptr va, enum range_kind kind);
/* A new memfd; -1: no. */
int backing(const char *kind, int device, size_t size);
/* Is [p, p + n) good for device to read and write? Host memory is. */
int memory_ok(CUdeviceptr p, size_t n, int device);
/* The device that the memory around p is on; -1: none. */
int memory_device(CUdeviceptr p);
int memory_open(char *text, size_t len, size_t *at);

/* ---- Multicast objects; lock held ---- */
CUresult multicast_import(int fd, CUmemGenericAllocationHandle *h);
void multicast_drop(struct multicast *m);
int multicast_complete(const struct multicast *m); /* all devices have been added */
CUresult multicast_access(const struct multicast *m, int device);

/* ---- Streams and capture ---- */
enum op_kind {
	OP_NOP,
	OP_COPY,
	OP_SET8,
	OP_SET32,
	OP_HOST,
	OP_KERNEL,
	OP_RECORD,
	OP_WRITE,
	OP_WAIT
};
struct kernel {
	char name[128];
	fakecuda_kernel_fn fn;
	int n;
	size_t sizes[16];
	int shared;
	struct kernel *next;
};
struct mark { /* a place in a stream */
	struct CUstream_st *s;
	uint64_t seq;
};
struct op {
	enum op_kind kind;
	CUdeviceptr dst, src;
	size_t n; /* bytes, or elements */
	uint64_t value;
	unsigned int flags;
	CUhostFn fn;
	void *arg;
	struct kernel *kernel;
	struct fakecuda_launch launch;
	unsigned char params[4096];
	CUevent event;        /* RECORD; or, in a graph, an external wait on NOP */
	struct mark wait[64]; /* must be done first */
	int nwait;
	uint64_t seq;
	struct op *next;
};
struct CUevent_st {
	uint32_t magic;
	unsigned int flags;
	int recorded;
	struct mark mark;
	uint64_t time_ns;    /* atomic */
	struct capture *cap; /* recorded in this capture (gone, maybe: capture_of), */
	uint64_t cap_id;
	CUgraphNode deps[64]; /* after these */
	int ndeps;
};
struct CUstream_st {
	uint32_t magic;
	CUcontext ctx;
	unsigned int flags;
	uint64_t id, queued, finished;
	struct op *head, *tail;
	int started;
	pthread_t thread;
	struct capture *cap;
	CUgraphNode deps[64];
	int ndeps, lane;
	struct CUstream_st *next;
};
struct CUgraphNode_st {
	struct op op;
	CUgraphNode deps[64];
	int ndeps, lane, reached;
	int added;    /* by hand: need not lead to the capture's end */
	uint64_t seq; /* of the last launch */
	struct CUgraphNode_st *next;
};
struct CUgraph_st {
	uint32_t magic;
	struct CUgraphNode_st *first, **last;
};
struct capture {
	uint64_t id;
	CUstream origin;
	CUstreamCaptureMode mode;
	pthread_t thread;
	int invalid, nlanes;
	CUgraph graph;
	struct capture *next;
};
/* Submit to a stream, or record it when that is capturing. Copies op. Lock held. */
CUresult submit(CUstream s, const struct op *op);
/* The same for a stream's handle, after a look at the device ranges; takes the lock. */
CUresult submit_checked(CUstream stream, const struct op *op, size_t dst_bytes);
/* The stream a handle names (NULL and 1: legacy, 2: the thread's); NULL: not a stream. */
CUstream stream_of(CUstream s);
CUstream stream_new(CUcontext ctx, unsigned int flags);
uint64_t enqueue(CUstream s, const struct op *op); /* no capture; lock held */
int mark_done(struct mark m);
void mark_wait(struct mark m); /* lock held; lets go of it meanwhile */
/* May this thread make an unsafe call? Else invalidates what forbids it. Lock held. */
CUresult capture_check_unsafe(void);
CUresult capture_add(CUstream s, const struct op *op);
/* A blocking stream of ctx is capturing: work on the legacy stream is an error. */
CUresult capture_check_legacy(CUcontext ctx);
/* Streams that a capture held go back to normal. */
void streams_leave(const struct capture *c);
/* The capture that e was recorded in, if it still goes on. */
struct capture *capture_of(CUevent e);
CUresult capture_record(CUevent e, CUstream s);
CUresult capture_wait(CUstream s, CUevent e);

#endif
