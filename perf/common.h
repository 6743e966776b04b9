/*
 * What the perf programs share. A program describes one collective in a struct perf_coll and calls
 * perf_main(); options, processes and threads, timing, checking and output are here:
 *   common_options.c  command line          common_launch.c  processes, threads, ranks, buffers
 *   common_run.c      timing                common_data.c    random inputs and the check
 *   common_report.c   table and JSON        common_gpu.c      GPUs: driver, memory, timing
 */
#ifndef PERF_COMMON_H
#define PERF_COMMON_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "bench.h"
#include "symccl.h"

#define PERF_ALL (-1) /* of type, op, root: one after the other */
#define PERF_AUTO (-1)
#define PERF_MAX_SIZES 256

struct perf_options {
	size_t min_bytes, max_bytes, step_bytes;
	int step_factor;
	size_t sizes[PERF_MAX_SIZES]; /* --sizes, or made of the four above */
	int nsizes;
	int processes;      /* 0: not asked for */
	int threads, ranks; /* threads a process, ranks a thread */
	int iters, warmup;  /* PERF_AUTO: as many as a quarter second holds; 3 */
	int agg_iters, cycles;
	int average; /* 0 rank 0, 1 mean, 2 least, 3 most over ranks; PERF_AUTO: 3 if dirty, else 1
		      */
	int check, blocking, cputime, timeout, per_iter, skip, timestamps, memory;
	int buffers;            /* -R */
	int unalign;            /* in elements */
	int graph, null_stream; /* -G launches of a graph; -y */
	int dirty, pin;         /* pin: PERF_AUTO when there are enough CPUs; dirty: on CPUs */
	int type, op, root;
	int device;  /* symcclDeviceType_t */
	size_t seed; /* 0: a fresh one */
	const char *json;
	const char *ignored[32]; /* what was given and has no meaning here */
	int nignored, help;
};

/* One call to be timed: a size, type, op and root. Counts are in elements. */
struct perf_case {
	const struct perf_coll *coll;
	int nranks, root;
	symcclDataType_t type;
	symcclRedOp_t op;
	size_t esize;
	size_t count;                /* the call's count argument */
	size_t sendcount, recvcount; /* extent of the buffers */
	/* In place both lie in one buffer, at rank * send_shift and rank * recv_shift elements. */
	size_t send_shift, recv_shift;
	uint64_t seed; /* of the inputs */
};

struct perf_rank {
	int rank;
	symcclComm_t comm;
	symcclStream_t stream;       /* NULL on CPU memory */
	symcclComm_t host;           /* for results and for meeting; on CPU memory comm itself */
	int device;                  /* its GPU; -1 on CPU memory */
	char *send_base, *recv_base; /* allocations; the buffers start unalign elements inside */
	size_t send_bytes, recv_bytes;
	symcclWindow_t send_win, recv_win;
	struct CUevent_st **marks; /* common_gpu.c */
	int nmarks;
};

struct perf_thread;

/* A collective. Plain functions of their arguments, called from several threads at once. */
struct perf_coll {
	const char *name;
	int reduces, rooted; /* does -o, -r mean anything */
	int root_only;       /* only the root's output is defined */
	int no_in_place;     /* there is no such form */
	int no_data;         /* nothing is moved: one row, of size 0 */
	/* Fill count, sendcount, recvcount, send_shift, recv_shift for a buffer of nelem elements,
	 * as nccl-tests does; nranks and esize are set. */
	void (*counts)(size_t nelem, struct perf_case *c);
	/* One call of rank r, on r->comm and r->stream. */
	symcclResult_t (*call)(
		const struct perf_case *c, const struct perf_rank *r, const void *send, void *recv);
	/* Elements [first, first + n) of rank's output, from perf_input(). */
	void (*expect)(const struct perf_case *c, int rank, size_t first, size_t n, void *out);
	double (*bus_factor)(int nranks); /* busbw = algbw * this */
	/* With no_data: is it right that a call returned? t->team.n may be 0. NULL: not checked. */
	void (*before)(struct perf_thread *t, uint64_t seed);
	int (*wrong)(struct perf_thread *t);
};

struct perf_thread {
	struct perf_job *job;
	int index;               /* in the job, over all processes */
	struct perf_rank *ranks; /* options.ranks of them, consecutive */
	void *flags;             /* this thread's bench_flags, and the window over them */
	symcclWindow_t flags_win;
	struct bench_team team; /* n 0: flags cannot be shared, symcclBarrier() is used */
	double *mine, *all;     /* exchange buffers */
	size_t all_len;
	char *scratch; /* of CPU memory, for what is on a GPU */
	size_t scratch_len;
	int wrong; /* this process's own view */
};

struct perf_job {
	struct perf_options opt;
	const struct perf_coll *coll;
	const char *program;
	int argc;
	char **argv;
	int nprocs, proc;             /* processes, and which this is */
	int local_index, local_procs; /* on this node; -1: unknown */
	int nranks, pinned, cuda;
	symcclUniqueId id;
	struct perf_thread *threads;
	struct perf_report *report; /* of the process that holds rank 0, else NULL */
};

/* The result of timing one case in one form. */
struct perf_time {
	double us, algbw, busbw;  /* GB/s */
	long wrong;               /* -1: not checked, or no such form (us 0) */
	double min, max, p99, cv; /* per call, us and %; with -I */
	int iters;
};

/* What the header says about each rank. */
struct perf_who {
	int32_t pid, cpu; /* cpu -1: free to move */
	char host[56];
	int32_t device, mps; /* device -1: CPU memory; mps: several processes run at once on it */
	char bus[16], name[40];
};

/* ---- common_options.c ---- */
/* options_settle() once it is known where the buffers are. */
void options_settle(struct perf_options *o, int cuda);
int options_parse(struct perf_options *o, const struct perf_coll *coll, int argc, char **argv,
	char *err, size_t errlen); /* 0, or -1 and a sentence */
void options_usage(FILE *f, const char *program);
int size_parse(const char *text, size_t *size); /* 8, 64K, 1.5M, 2G */
const char *type_name(symcclDataType_t t);
size_t type_size(symcclDataType_t t);
const char *op_name(symcclRedOp_t op);

/* ---- common_launch.c ---- */
int perf_main(int argc, char **argv, const struct perf_coll *coll);
/* Print "program: sentence" and end the process: a failing rank cannot be gone around. */
void perf_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* die unless result is success, with the library's own sentence. */
void perf_check(symcclResult_t result, symcclComm_t comm, const char *what);
/* Run body(i) in n forked processes and wait for them; when one fails, the others get a few
 * seconds and are killed. Returns the exit status for main. */
int perf_fork(int n, int (*body)(int index, void *arg), void *arg);
/* Memory that children of perf_fork() share, zeroed. */
void *perf_shared(size_t bytes);
/* The id in shared memory: made by the first process, awaited by the others. */
struct perf_id {
	_Atomic int ready;
	symcclUniqueId id;
};
symcclUniqueId perf_id_get(struct perf_id *shared, int index);
int cpus_allowed(void);
int cpu_pin(int index); /* the index-th allowed CPU; returns its number or -1 */

/* ---- common_run.c ---- */
void perf_run(struct perf_thread *t);
/* Every rank gives n doubles; the thread's first rank gets nranks * n of them, in rank order, valid
 * until the next exchange. */
const double *perf_exchange(struct perf_thread *t, const double *mine, size_t n);
/* The -a of one value over ranks, stride apart. */
double perf_over_ranks(const struct perf_job *job, const double *v, size_t stride, int average);
void perf_barrier(struct perf_thread *t); /* of all threads' CPUs */
/* Calls of all ranks of the thread, as one group; on GPUs only enqueued. */
void perf_call(struct perf_thread *t, const struct perf_case *c, int in_place, int calls);
void perf_dirty(struct perf_thread *t, const struct perf_case *c, int in_place, int salt);

/* ---- common_gpu.c ---- */
/* NULL: there are GPUs; else a sentence why not. Not before a fork, and before any threads. */
const char *gpu_open(void);
int gpu_count(void);
void gpu_bind(int device); /* the thread's current GPU */
void gpu_who(int device, struct perf_who *who);
/* r->device is set: make and free r->stream. */
void gpu_rank_open(struct perf_rank *r, int null_stream);
void gpu_rank_close(struct perf_rank *r);
/* Memory of r's GPU. set: on r's stream; copy: between any two memories, done when it returns. */
void *gpu_alloc(const struct perf_rank *r, size_t bytes);
void gpu_free(const struct perf_rank *r, void *p);
void gpu_set(const struct perf_rank *r, void *p, int byte, size_t n);
void gpu_copy(const struct perf_rank *r, void *dst, const void *src, size_t n);
void gpu_sync(const struct perf_rank *r); /* also looks at the communicator */
/* Seconds of one call; sets out->iters, and the spread where there are single times. */
double gpu_time(
	struct perf_thread *t, const struct perf_case *c, int in_place, struct perf_time *out);

/* ---- common_data.c ---- */
/* Elements [first, first + n) of rank's input. Any range gives the same values. */
void perf_input(const struct perf_case *c, int rank, size_t first, size_t n, void *out);
/* Elements [first, first + n) of the reduction of all ranks' inputs (at most 64), by the tests'
 * oracle. */
void perf_reduced(const struct perf_case *c, size_t first, size_t n, void *out);
/* Wrong elements of a rank's output, plus changed bytes around it. */
#define PERF_GUARD 64
#define PERF_POISON 0xdb
size_t data_wrong(const struct perf_case *c, int rank, const void *recv);
size_t data_input_wrong(const struct perf_case *c, int rank, const void *send);
size_t data_guard_wrong(const void *begin, const void *end);

/* ---- common_report.c ---- */
struct perf_report *report_open(
	struct perf_job *job, const struct perf_who *who, double line_ns, double copy_gbs);
void report_row(struct perf_report *r, const struct perf_case *c, const struct perf_time *out,
	const struct perf_time *in);
/* Shown on a terminal when a size takes long; fmt NULL clears it. r may be NULL. */
void report_progress(struct perf_report *r, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Closing lines and the JSON file. Returns how many values were wrong. */
long report_close(struct perf_report *r, double line_ns, const char *memory);
void stats_of(double *per_call, int n, struct perf_time *t); /* sorts per_call */

#endif
