/* What the files of the conformance program share: checks, and a GPU with memory. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <stdio.h>
#include "cuda/driver_types.h"

struct driver {
#define CU_SYM(name, symbol, version, need, params) CUresult(*name) params;
#include "cuda/driver_syms.def"
#undef CU_SYM
};
extern struct driver cu;
extern int verbose, failures, calls;
extern int on_double; /* libcuda.so.1 is the double */

enum { ANY = -1, NONE = -2 };
/* Count, compare, print; returns got. */
CUresult check(int line, const char *text, CUresult got, int want);
#define WANT(code, call) check(__LINE__, #call, cu.call, (int)(code))
#define OK(call) WANT(CUDA_SUCCESS, call)
#define REFUSE(call) check(__LINE__, #call, cu.call, ANY)
#define SHOW(call) check(__LINE__, #call, cu.call, NONE)
#define STRICT(call) check(__LINE__, #call, cu.call, on_double ? ANY : NONE)
#define THAT(expr) \
	do { \
		calls++; \
		if (!(expr)) { \
			failures++; \
			printf("  DIFFERS line %d: not so: %s\n", __LINE__, #expr); \
		} \
	} while (0)
/* Without this the group makes no sense. */
#define MUST(call) \
	do { \
		if (OK(call) != CUDA_SUCCESS) \
			return; \
	} while (0)

extern size_t gran;
extern const CUmemAllocationProp prop;
extern const CUmemAccessDesc rw;
/* A mapped, accessible allocation. */
struct mem {
	CUmemGenericAllocationHandle h;
	CUdeviceptr va;
	size_t size;
};
/* These return nonzero when all went well. */
int open_gpu(void);
int mem_open(struct mem *m, size_t granules);
void mem_close(struct mem *m);
/* Fill with a byte, and read one back. */
void fill(CUdeviceptr va, unsigned char v, size_t n);
int byte_at(CUdeviceptr va);

/* The groups of conformance_work.c. */
void group_streams(void);
void group_capture(void);
void group_graph(void);
void group_graph_edges(void);
void group_threads(void);
void group_library(void);

/* conformance_multicast.c */
void group_multicast(void);

#endif
