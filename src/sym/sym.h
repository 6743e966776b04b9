/*
 * Symmetric windows of one communicator, as one process sees them: what is mapped where, and the
 * protocol that registers and frees (docs/design.md, "Registration").
 *
 * A *mapping* is one allocation per rank, side by side at the address rule
 *     address(rank) = extent base + rank * stride
 * keyed by the tuple of all ranks' allocation ids: the same tuple again adds a reference. A
 * *window* is a view of a mapping: each rank's offset and size in it. Ranks of one process share
 * all of this.
 *
 * One thread (the communicator's worker) calls these functions; the collectives read finished
 * windows without a lock, since a window never changes between its registration and its free.
 */
#ifndef SYM_H
#define SYM_H

#include "error.h"
#include "bootstrap/bootstrap.h"
#include "mem/mem.h"
#include "sym/space.h"

struct mapping {
	struct mapping *next;
	int refs;           /* windows */
	struct failure why; /* what went wrong here while it was made */
	int no_handle;      /* only that a peer's handle did not come: the peer may know why */
	struct extent ext;
	size_t size;        /* largest rank's */
	unsigned char *key; /* all ranks' allocation ids, in rank order */
	size_t keylen;
	struct mem_handle **segs; /* all ranks' segments in rank order */
	size_t *seg_off;          /* where in the rank's slot */
	int *seg_rank;
	int nsegs, nmapped; /* segs[0..nmapped) are mapped */
	/* Multicast (multicast.c), when the ranks agreed on it: one address for all ranks' bytes.
	 */
	struct mem_handle *mc; /* NULL: none */
	char *mc_va;           /* NULL: not reserved */
	int mc_mapped;
	int symmetric; /* a window of its first batch has equal offsets */
	int mc_seen;   /* segs[0..mc_seen): those of local ranks are bound */
};

struct window {
	struct window *next;
	uint32_t ordinal;
	int flags;
	int nfreed;          /* ranks that have deregistered it */
	struct mapping *map; /* NULL: memory that cannot be shared */
	char *mc;            /* all ranks' first bytes at once, by multicast; NULL: none */
	char *base;          /* rank r's first byte is base + r * stride + off[r] */
	size_t stride;
	size_t *size, *off; /* [nranks] */
	int symmetric;      /* all off[] equal */
};

/* One registration that a rank asks for. */
struct reg_req {
	const void *addr;
	size_t size;
	int flags;
	struct failure bad;    /* refused by the rank itself: every rank returns it */
	struct mem_span span;  /* filled by the probe */
	struct window *window; /* result */
};

/* What one rank registers in one GroupEnd: all or nothing. No requests: only makes sure that the
 * control blocks are there. */
struct reg_set {
	struct reg_set *next;
	uint64_t deadline;
	int done;
	struct failure result;
	int nreq;
	struct reg_req req[];
};

struct sym {
	const struct mem_ops *mem;
	struct boot *boot;
	int nlocal;
	const int *local;  /* this process's ranks, ascending */
	const int *device; /* their GPUs, where their control blocks go; NULL: wherever the thread
			    * works. May be set between sym_init and the first batch. */
	int multicast;     /* all ranks want it and are on GPUs that can, each on one of its own;
			    * agreed,     and set as device is */
	size_t ctrl_size;
	struct window *ctrl; /* the control blocks; NULL before the first batch */
	const uint32_t *stop;
	uint32_t next_ordinal;
	struct space space;
	struct mapping *maps;
	struct window *windows;
	struct window *doomed; /* free on all ranks, still mapped here */
};

/* Nothing is reserved before the first batch. stop: abort word, looked at during long mappings. */
symcclResult_t sym_init(struct sym *s, struct boot *boot, const struct mem_ops *mem, int nlocal,
	const int *local, size_t stride, size_t ctrl_size, const uint32_t *stop);

/* One batch: n sets of each local rank are offered, sets[l * n + i] is local rank l's number i;
 * every process offers its own n and all take the least, *taken >= 1. freed: ordinals of windows
 * that local ranks have deregistered since the last batch. Each taken set has its result on return:
 * success and windows, or the same failure on all ranks. The return value is not success only when
 * the communicator is dead (a peer died, left, or did not come): nothing is undone then. */
symcclResult_t sym_batch(struct sym *s, struct reg_set *const *sets, int n, const uint32_t *freed,
	int nfreed, uint64_t deadline, int *taken);

/* Unmap what the last batch found free on all ranks. Takes as long as unmapping does, so it is for
 * after the ranks have been told of their own registrations; the next batch begins with it. */
void sym_reap(struct sym *s);

/* Unmap everything; works in any state after sym_init, and on a zeroed struct. */
void sym_fini(struct sym *s);

/* mapping.c: used by the batch. */
symcclResult_t mapping_create(struct sym *s, struct mapping *m);
void mapping_release(struct sym *s, struct mapping *m);

/* multicast.c: take back whatever of it the mapping has; peers do not matter. */
void multicast_release(struct sym *s, struct mapping *m);

#endif
