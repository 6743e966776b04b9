/*
 * libnccl.so.2 over symccl: what the files of the shim share. The shim is a client of symccl.h like
 * any program; values of both interfaces' enumerations are the same (asserted in comm.c), so most
 * calls only change the handle.
 *
 * Every nccl* symbol is a weak alias of its pncclX twin, so that a profiler can wrap it.
 */
#ifndef SHIM_H
#define SHIM_H

#include "shim/nccl.h"
#include "symccl.h"

/* Define pncclX, and ncclX as its alias: SHIM(ncclResult_t, ncclX, arguments) { body } */
#define SHIM(type, name, ...) \
	SYMCCL_API type p##name(__VA_ARGS__); \
	SYMCCL_API __attribute__((weak, alias("p" #name))) type name(__VA_ARGS__); \
	type p##name(__VA_ARGS__)

#define SHIM_COMM_MAGIC 0x73796d6e63636c31ull

/* What a program holds. `c` is written by symccl, in groups and non-blocking calls later. */
struct ncclComm {
	uint64_t magic;
	symcclComm_t c;
	symcclComm_t parent;         /* of a split or shrink; asked while c is not there */
	struct shim_window *windows; /* not yet deregistered */
	struct ncclComm *next;       /* ended before symccl has filled it in */
};

/* NCCL's own is memory of the GPU that kernels read; this one is the host's. */
struct shim_window {
	uint64_t magic;
	struct ncclComm *comm;
	symcclWindow_t w;
	struct shim_window *next;
};

/* Keep a sentence for ncclGetLastError() and return code. */
ncclResult_t shim_fail(ncclResult_t code, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* From symccl's result; drops the shim's own sentence, symccl has one. */
ncclResult_t shim_result(symcclResult_t e);
/* Nothing of this kind exists here; says what, since which NCCL, and where to look. */
ncclResult_t shim_refuse(const char *what);
/* Note of the calling thread's last shim_fail, "" when symccl spoke since. */
const char *shim_text(void);

/* The communicator behind a handle, or a failure that says what is wrong with it. */
ncclResult_t shim_comm(ncclComm_t comm, symcclComm_t *c);
#define SHIM_COMM(comm, c) \
	symcclComm_t c = NULL; \
	do { \
		ncclResult_t shim_e_ = shim_comm(comm, &c); \
		if (shim_e_ != ncclSuccess) \
			return shim_e_; \
	} while (0)

/* Where programs that do not say keep their buffers: on the GPU when there is one. */
symcclDeviceType_t shim_device(void);

/* window.c: forget what the communicator's owner did not give back. */
void shim_windows_free(struct ncclComm *comm);

/* env.c: NCCL_* variables. */
struct shim_env {
	const char *nccl;   /* NCCL_X */
	const char *symccl; /* SYMCCL_Y it becomes, or NULL: known and without effect here */
};
const struct shim_env *shim_env_table(int *n);
/* Version code that ncclGetVersion tells. */
int shim_version(void);
/* Log a line at NCCL_DEBUG=INFO. */
void shim_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
