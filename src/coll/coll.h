/*
 * Collectives: what one call is, which algorithm it takes, and the host kernels.
 *
 * This layer sees a communicator as a `struct coll_team`: the ranks' control blocks at a fixed
 * stride and how to wait. It knows nothing of processes, registration or backends above that.
 */
#ifndef COLL_H
#define COLL_H

#include <stddef.h>
#include <stdint.h>
#include "error.h"

/* ---- Control block -------------------------------------------------------------------------
 * One per rank, at the same offset of each rank's slot: ctrl(r) = team->ctrl + r * team->stride.
 * Zeroed at birth. Regions, in order (offsets in struct ctrl_layout, all multiples of 128):
 *
 *   head     this rank's own words: epoch per CTA (64 bit), waiters (on a line of its own), what it
 *            is doing
 *   slots    [cta][parity][source rank]: 128-byte slots, written by `source` only
 *   stage    [cta][parity][rank]: stage_bytes each, bulk payload of packets
 *   bulk     [cta][parity]: bulk_bytes each, written by one rank, read by the others (scratch for
 *            buffers that are not windows)
 *   rings    [source]: ring_slots slots, and ring_bytes behind each: packets from `source` to this
 *            rank (coll/host/ring.h)
 *   answers  [peer]: 128 bytes that `peer` writes: how far it has read its ring of this rank's
 *            packets; signals
 *   pairs    [peer]: 128 bytes, this rank's own counters for rings and signals
 * Who writes which stage and bulk memory alternates: step_stage() and step_bulk().
 *
 * A step of any host algorithm is one exchange: write payload into every peer's slot (and stage),
 * then release-store the slot's flag {epoch:32, plan hash:32}; wait until one's own slots of all
 * sources carry the epoch. Each step takes the next epoch; its parity picks the half. A slot of
 * epoch e may be overwritten for e + 2, since awaiting e + 1 of every peer proves that all have
 * read e. So all ranks find each other in the same place whatever algorithm they chose, and a
 * differing call shows as a differing hash at once. */
#define CTRL_CTAS_MAX 64
#define CTRL_SLOT_BYTES 128
#define CTRL_SLOT_INLINE 56 /* payload bytes on the flag's own cache line */

struct ctrl_layout {
	int nranks, nctas;
	size_t slots, stage, bulk;      /* offsets */
	size_t stage_bytes, bulk_bytes; /* per (parity, source) and per parity */
	size_t rings, answers, pairs;
	size_t ring_slots, ring_bytes; /* a power of two, at least 2; behind each slot */
	size_t size;                   /* of the whole block */
};
/* The layout for a team size; the same on all ranks. */
void ctrl_layout(int nranks, int nctas, struct ctrl_layout *l);

/* Model constants (tuning.h) and forced rows; rank 0's, broadcast at init. */
struct coll_tuning {
#define TUNING(field, def, lo, hi, help) double field;
#include "coll/tuning.def"
#undef TUNING
	char algo[256]; /* SYMCCL_ALGO */
};
void coll_tuning_default(struct coll_tuning *t); /* those compiled in; algo is left alone */

/* ---- Team --------------------------------------------------------------------------------- */

struct coll_wait {
	const uint32_t *abort; /* nonzero: the communicator is dead, return symcclRemoteError */
	uint32_t spins;        /* pauses before the first yield */
	uint32_t yields;       /* sched_yields before the first futex sleep */
	uint64_t timeout_ns;   /* 0: none */
};

/* A team on GPUs. */
struct coll_gpu {
	size_t slots;      /* packets in one half of a control block */
	size_t scratch;    /* bytes of a rank, for staged kernels */
	int ctas;          /* most of one kernel: all ranks of a GPU must be resident together */
	int ranks_per_gpu; /* most that share one */
	int shared;        /* all ranks are on one GPU */
};

struct coll_team {
	int rank, nranks;
	int nctas; /* most workers of this rank */
	char *ctrl;
	size_t stride;
	struct ctrl_layout layout;
	struct coll_wait wait;
	struct coll_tuning tuning;
	const struct coll_gpu *gpu; /* NULL: host memory */
	const int32_t *pid;         /* per rank: its process, 0 when it is this one */
	int readable;               /* every process may read every other's memory (agreed) */
	int oversubscribed;         /* more ranks on this node than CPUs they may use */
	double crowd;               /* ranks that share a CPU; less than 1 counts as 1 */
};

/* ---- A call --------------------------------------------------------------------------------- */

/* A buffer argument. peers == NULL: plain memory, only `ptr` is usable. Else rank r's bytes are at
 * peers + r * stride (+ skew[r] when skew is not NULL: windows whose offsets differ). */
struct coll_buf {
	void *ptr;
	char *peers;
	size_t stride;
	char *mc; /* all ranks' bytes at once, by multicast; NULL: there is no such address */
	const size_t *skew;
	uint32_t window; /* ordinal, for the plan hash; 0: none */
	size_t offset;   /* in the window, likewise */
	int symmetric;   /* the caller promised equal windows and offsets on all ranks */
};

/* One message of a call that names its peers: all-to-all-v, sends and receives. */
struct coll_xfer {
	int peer; /* may be this rank */
	int recv; /* 0: a send */
	struct coll_buf buf;
	size_t bytes;
	void *stream; /* of the send or receive; GPUs only */
};

struct coll_call {
	symcclFunc_t func;
	struct coll_buf send, recv; /* ptr NULL where the root's alone counts and this is not it */
	size_t count;               /* the call's own count argument */
	symcclDataType_t type;
	symcclRedOp_t op;
	int root;        /* or the peer of a put or signal */
	int has_factor;  /* a pre-multiplied sum: op is symcclSum, and 1: */
	uint64_t factor; /* this rank's factor, the bits of an element in the low bytes; or 2: its
			    address, read when the call runs (GPUs only) */

	/* From symcclFuncAlltoAllv on: what the ranks need not agree on. */
	struct coll_xfer *xfer; /* messages to and from one peer match in this order */
	int nxfers;
	int signal; /* index of a put or signal */
	const symcclWaitSignalDesc_t *wait;
	int nwaits;
};

/* Calls that name their peers: they concern only those, are not planned before they run, and are no
 * steps of all ranks. */
static inline int coll_is_listed(symcclFunc_t f)
{
	return f >= symcclFuncAlltoAllv;
}
static inline int coll_is_rooted(symcclFunc_t f)
{
	return f == symcclFuncBroadcast || f == symcclFuncReduce || f == symcclFuncGather ||
	       f == symcclFuncScatter;
}
static inline int coll_reduces(symcclFunc_t f)
{
	return f == symcclFuncAllReduce || f == symcclFuncReduceScatter || f == symcclFuncReduce;
}

static inline char *coll_peer(const struct coll_buf *b, int rank)
{
	return b->peers + (size_t)rank * b->stride + (b->skew ? b->skew[rank] : 0);
}

/* The buffer from byte `by` on. */
static inline struct coll_buf coll_buf_at(const struct coll_buf *b, size_t by)
{
	struct coll_buf at = *b;

	at.ptr = (char *)b->ptr + by;
	at.peers = b->peers ? b->peers + by : NULL;
	at.mc = b->mc ? b->mc + by : NULL;
	at.offset += by;
	return at;
}

/* Bytes, a power of two; 0: no such type. */
extern const unsigned char coll_type_bytes[symcclNumTypes];
static inline size_t coll_type_size(symcclDataType_t type)
{
	return (unsigned)type < symcclNumTypes ? coll_type_bytes[type] : 0;
}

/* Does the call take its input from its own output? Then a rank's block lies where the collective
 * puts it, and `send` differs from rank to rank by that much. */
static inline int coll_in_place(const struct coll_team *t, const struct coll_call *c)
{
	size_t at = (size_t)t->rank * c->count * coll_type_size(c->type);

	if (c->func == symcclFuncReduceScatter || c->func == symcclFuncScatter)
		return c->recv.ptr == (char *)c->send.ptr + at;
	return c->send.ptr ==
	       (char *)c->recv.ptr +
		       (c->func == symcclFuncAllGather || c->func == symcclFuncGather ? at : 0);
}

/* ---- Algorithms ----------------------------------------------------------------------------- */

enum {
	COLL_NEED_SEND_WINDOW = 1,
	COLL_NEED_RECV_WINDOW = 2,
	COLL_NEED_READABLE = 4,
	COLL_NEED_APART = 8,     /* not in place, on any rank */
	COLL_ONE_WORKER = 16,    /* no need: the row runs on worker 0 alone */
	COLL_NEED_MULTICAST = 32 /* of the windows that it needs; sums only */
};

struct coll_algo {
	symcclFunc_t func;
	const char *name; /* "allgather/push" */
	int needs;        /* COLL_NEED_*; windows mean symmetric ones */
	/* Largest call it can take, in bytes per rank; SIZE_MAX: any. */
	size_t (*max_bytes)(const struct coll_team *t);
	/* Estimated microseconds. */
	double (*cost)(const struct coll_team *t, const struct coll_call *c);
	int gpu; /* 0: a host row; else GPU_ROW() of its kernel, and host is NULL */
	/* Run worker cta of nctas of this rank; blocks until done. symcclRemoteError when the abort
	 * word is set (without a sentence: the caller has the reason), symcclTimeout and
	 * symcclInvalidUsage with one. */
	symcclResult_t (*host)(const struct coll_team *t, const struct coll_call *c, uint32_t hash,
		int cta, int nctas);
};

struct coll_plan {
	const struct coll_algo *algo;
	int nctas;
	double cost_us;
	uint32_t hash; /* of everything that must be equal on all ranks; never 0 */
};

/* The whole table, for tests and tools. */
const struct coll_algo *coll_algos(size_t *n);

/* Pure: the same inputs give the same plan on every rank. Forced rows win where they can take the
 * call. */
symcclResult_t coll_plan(
	const struct coll_team *t, const struct coll_call *c, struct coll_plan *plan);
symcclResult_t coll_run_host(
	const struct coll_team *t, const struct coll_call *c, const struct coll_plan *plan);

/* This rank leaves: a peer that waits for it in a later call gets symcclInvalidUsage instead of
 * waiting. Only between calls. */
void coll_goodbye(const struct coll_team *t);

/* Check the arguments of a call of `rank`; fail() names the argument. */
symcclResult_t coll_check(const struct coll_call *c, int rank, int nranks);

#endif
