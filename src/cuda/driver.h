/*
 * The CUDA driver, found at run time: libcuda.so.1 is opened once, its calls are reached as
 * cu.MemCreate(...). Rows and prototypes: driver_syms.def. Where there is no driver, cuda_open()
 * says why and nothing else here may be called.
 */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include "driver_types.h"
#include "error.h"

#define CUDA_MAX_DEVICES 64

struct cuda_table {
#define CU_SYM(name, symbol, version, need, params) CUresult(*name) params;
#include "driver_syms.def"
#undef CU_SYM
};
extern struct cuda_table cu;

/* What never changes about a visible GPU. */
struct cuda_device {
	CUdevice dev;
	size_t memory;      /* bytes */
	size_t granularity; /* recommended, for shareable memory on this GPU */
	int rdma;           /* NICs can reach VMM memory (GPUDirect RDMA) */
	int vmm;            /* virtual memory management with descriptors as handles */
};
struct cuda_devices {
	int n;
	struct cuda_device d[CUDA_MAX_DEVICES];
};

/* Load the driver, start it and list the GPUs; the first call decides, later ones return the same.
 * No context is made. Any thread. NULL: usable; else a constant sentence that says why not (no
 * driver, no GPU, a call missing, a GPU without virtual memory management). */
const char *cuda_open(void);
/* Has the calling thread a current CUDA context? Neither loads nor starts the driver. */
int cuda_current(void);
/* The visible GPUs, by ordinal. Only after cuda_open() returned NULL. */
const struct cuda_devices *cuda_devices(void);

/* fail(symcclUnhandledCudaError, ...) with the driver's name and sentence for r: "what: ...". */
symcclResult_t cu_fail(CUresult r, const char *what, ...)
	__attribute__((format(printf, 2, 3), cold));

/* For a call that must work while this or another thread captures a stream, on a thread that may
 * have no context: relax the capture mode and make device 0's primary context current when there is
 * none. Leave puts both back. cu_enter fails without side effects; leave is for success only. */
struct cu_scope {
	CUstreamCaptureMode mode;
	int pushed;
	int device; /* the current one */
};
symcclResult_t cu_enter(struct cu_scope *s);
void cu_leave(struct cu_scope *s);

/* Make the primary context of a GPU current on this thread. Primary contexts are retained once per
 * process and kept until it ends. symcclInvalidArgument: no such GPU. */
symcclResult_t cu_bind_thread(int device);

/* For tests: load a table from another library; NULL or the reason, in buf. */
const char *cuda_load(const char *soname, struct cuda_table *table, char *buf, size_t len);

#endif
