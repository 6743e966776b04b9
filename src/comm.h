/* One rank's handle of a communicator. */
#ifndef COMM_H
#define COMM_H

#include <pthread.h>
#include <sched.h>
#include "error.h"
#include "coll/coll.h"
#include "sym/sym.h"

#define COMM_MAGIC 0x53594d43434c4855ull

struct hub;
struct exec;
struct comm_gpu;

/* A handle that the user holds: one rank's view of a window. */
struct symcclWindow {
	struct symcclComm *comm;
	const struct window *w;
	char *user;
	size_t size;
	const char *reach; /* furthest end of the windows up to this one in comm->wins */
	int stale;         /* its memory was freed: what lies there now is something else */
};

/* A pre-multiplied sum. */
struct redop {
	int used; /* 0: free; else the calls' has_factor */
	symcclDataType_t type;
	uint64_t factor; /* likewise */
};

/* How often this rank has met with a part of the ranks, for one purpose (life.c). */
struct part_count {
	uint64_t key;
	uint32_t n;
};

/* Why no collective may be started now. */
enum comm_gate { GATE_OPEN = 0, GATE_FINALIZED, GATE_BUSY };

/* A call and what was decided for it. */
#define PLAN_MEMOS 16
struct plan_memo {
	unsigned gen; /* comm->wins_gen + 1 when it was made; 0: empty */
	struct coll_call call;
	struct coll_plan plan;
};

struct symcclComm {
	uint64_t magic;
	unsigned fork_gen; /* of the process that made it */
	int rank, nranks;
	uint32_t config; /* what all ranks must agree on */
	char name[64];
	struct hub *hub;
	int device;          /* GPU, as this process counts; -1 on the host */
	cpu_set_t cpus;      /* of the thread that joined */
	symcclConfig_t conf; /* commName is NULL */
	int joined;          /* told to the rendezvous */
	int left;            /* destroyed by this rank, others of the process still hold the hub */

	/* Guarded by the hub's lock. */
	pthread_cond_t cond;
	struct reg_set *queue, **queue_end;
	int nqueued;      /* sets in the queue */
	uint32_t nposted; /* sets ever posted */
	struct failure last;
	struct failure outcome; /* of the last call that did not block */

	/* The rank's own thread. */
	int busy;          /* atomic: a collective runs, for abort */
	int held;          /* atomic: other calls in progress that wait, for abort */
	int aborting;      /* atomic: symcclCommAbort has begun */
	int gate;          /* atomic: enum comm_gate */
	int joining;       /* has not been seen to be complete; only where calls do not block */
	uint32_t meetings; /* of all ranks, that this one has come to */
	struct part_count *parts;
	int nparts;
	uint64_t turns, turns_done; /* calls put in host streams (host_stream.c) */
	struct comm_gpu *gpu;
	int ready; /* team is filled */
	int quick; /* atomic: a host call without a stream needs no more than its plan */
	struct coll_team team;
	struct symcclWindow **wins; /* ascending by user address */
	int nwins, wins_room;
	unsigned freed_seen;            /* mem_frees() when the table was last compared */
	unsigned wins_gen;              /* bumped whenever the table changes */
	struct symcclRequest *requests; /* not waited for yet */
	struct devcomm *devcomms;
	struct plan_memo memo[PLAN_MEMOS];
	/* On the host, of calls that name their peers: all of one kind take the same. */
	struct coll_plan listed[symcclNumFuncs - symcclFuncAlltoAllv];
	struct coll_call messages; /* sends and receives: only their list changes */
	struct reg_set *first;     /* empty, queued when all have joined: brings control blocks */
	struct redop *redops;      /* pre-multiplied sums: op symcclNumOps + i */
	int nredops;
	struct exec *exec; /* made when a group needs it */
};

/* Check a handle on entry of a public call: not NULL, ours, this process's; then its asynchronous
 * error, if any. comm_check_handle leaves the latter out. */
symcclResult_t comm_check(symcclComm_t comm);
symcclResult_t comm_check_handle(symcclComm_t comm);
/* Between the two symcclCommAbort in another thread does not free the communicator. For calls that
 * wait; collectives have `busy`, which costs less. */
void comm_hold(symcclComm_t comm);
void comm_release(symcclComm_t comm);
/* What comm->gate says, as an error; success when it is open. */
symcclResult_t comm_gate(symcclComm_t comm);
/* Stop what runs on the communicator in other threads and streams, and wait until it has, which is
 * soon: the communicator has failed, or fails now. `own` holds are the caller's. */
void comm_stop(symcclComm_t comm, int own);
/* Wait until all that this rank has put on streams is done. */
symcclResult_t comm_flush(symcclComm_t comm);
/* No collective may follow; peers that wait for one are told. */
void comm_finalized(symcclComm_t comm);
/* Keep code and the calling thread's sentence as the communicator's last error; returns code. */
symcclResult_t comm_error(symcclComm_t comm, symcclResult_t code);
/* Make sure that the control blocks are mapped and comm->team is filled. */
symcclResult_t comm_ready(symcclComm_t comm);

/* Make and run sets of registrations (comm_window.c). */
struct reg_set *comm_set_new(int nreq);
symcclResult_t comm_set_post(symcclComm_t comm, struct reg_set *set);
/* Put it into the queue; the hub's lock is held. */
void comm_set_queue(symcclComm_t comm, struct reg_set *set);
int comm_set_done(symcclComm_t comm, struct reg_set *set);
/* Block until done; the set's result, with its sentence. Does not free. */
symcclResult_t comm_set_wait(symcclComm_t comm, struct reg_set *set);

struct win_task {
	void *buff;
	size_t size;
	symcclWindow_t *out;
	int flags;
	/* NULL, or called when the set has its result, which is e; may make a failure of it. */
	symcclResult_t (*made)(void *arg, symcclResult_t e);
	void *arg;
};
/* Begin a set of n registrations; comm_windows_finish waits, writes the handles, frees the set. */
symcclResult_t comm_windows_begin(
	symcclComm_t comm, const struct win_task *t, int n, struct reg_set **set);
symcclResult_t comm_windows_finish(
	symcclComm_t comm, const struct win_task *t, int n, struct reg_set *set);
/* Look for windows whose memory has been freed since the last time. */
void comm_windows_recheck(symcclComm_t comm);
/* The rank's window that holds all of [ptr, ptr + size), or NULL. */
const struct symcclWindow *comm_window_find(symcclComm_t comm, const void *ptr, size_t size);

/* Joining in two halves, so that one thread can bring several ranks (comm.c). */
struct join_task {
	symcclComm_t *out;
	symcclComm_t comm;
	int nranks, rank;
	symcclUniqueId id;
	symcclConfig_t config;
	char name[64];             /* config.commName, which may be gone by the end of a group */
	const struct mem_ops *mem; /* and the GPU: as they were when the call was made */
	int device;
};
symcclResult_t comm_join_begin(struct join_task *t);
/* watch: see hub_wait_ready. */
symcclResult_t comm_join_finish(
	struct join_task *t, symcclResult_t (*watch)(void *arg), void *arg, symcclComm_t *comm);
/* Take over what the caller's config has, whatever its age, and check it; *out: what it does not
 * say. The name is copied. */
symcclResult_t comm_config_read(const symcclConfig_t *in, symcclConfig_t *out, char name[64]);

/* The same arguments again take the same plan, as long as no window came or went. */
static inline struct plan_memo *comm_memo(
	symcclComm_t comm, const void *send, const void *recv, size_t count)
{
	return &comm->memo[((uintptr_t)send / 64 + (uintptr_t)recv / 64 + count) % PLAN_MEMOS];
}
/* A call without a factor. */
static inline int comm_remembers(symcclComm_t comm, const struct plan_memo *m, symcclFunc_t func,
	const void *send, const void *recv, size_t count, symcclDataType_t type, symcclRedOp_t op,
	int root)
{
	return m->gen == comm->wins_gen + 1 && m->call.func == func && m->call.count == count &&
	       m->call.type == type && m->call.op == op && m->call.root == root &&
	       !m->call.has_factor && m->call.send.ptr == send && m->call.recv.ptr == recv;
}
/* After a change of what comm->quick depends on. */
void comm_quick_set(symcclComm_t comm);
/* Run what is remembered, on the host. */
symcclResult_t comm_run_again(
	symcclComm_t comm, const struct coll_call *call, const struct coll_plan *plan);

/* Run a planned call on the host, in the calling thread; a failure is the communicator's. */
symcclResult_t comm_run_host(
	symcclComm_t comm, const struct coll_call *call, const struct coll_plan *plan);
/* Run one call now, in the calling thread, or put it on the stream (collective.c). */
symcclResult_t comm_run(symcclComm_t comm, struct coll_call *call, symcclStream_t stream);
/* The same of n messages; the type is for sentences. */
symcclResult_t comm_run_messages(symcclComm_t comm, struct coll_xfer *x, int n,
	symcclDataType_t type, symcclStream_t stream);
/* What the cost model expects of a call, in microseconds; nothing is run. */
symcclResult_t comm_estimate(symcclComm_t comm, const struct coll_call *call, double *us);
/* The same, or queue it when a group is open. Takes over the call's lists. */
symcclResult_t comm_call(symcclComm_t comm, struct coll_call *call, symcclStream_t stream);
void comm_call_free(struct coll_call *call);
/* Write op into the call: built in as it is, created ones as a sum with a factor (redop.c). */
symcclResult_t redop_resolve(symcclComm_t comm, symcclRedOp_t op, struct coll_call *c);

/* Groups (group.c). Nonzero inside one; then calls queue a task instead of running. While no thread
 * is in one, thread-local memory need not be found: that costs a call in a library that may be
 * loaded late (initial-exec would not, but then dlopen() fails where the static block is full). */
extern unsigned groups_open; /* atomic: threads in a group */
int group_open_here(void);
static inline int group_open(void)
{
	return __builtin_expect(__atomic_load_n(&groups_open, __ATOMIC_RELAXED) != 0, 0) &&
	       group_open_here();
}
/* A call was refused: an open group will not be run. */
void group_note(symcclResult_t e);
/* In a forked child: an open group with calls will not be run, the communicators are the parent's.
 */
void group_forked(void);
/* Nonzero when the open group has queued something on comm. */
int group_holds(symcclComm_t comm);
/* Forget what the open group has queued on comm. */
void group_drop(symcclComm_t comm);
symcclResult_t group_add_join(const struct join_task *t);
symcclResult_t group_add_window(symcclComm_t comm, const struct win_task *t);
/* Takes over the call's lists, also when it fails. */
struct life;
symcclResult_t group_add_life(const struct life *l);
symcclResult_t group_add_call(symcclComm_t comm, struct coll_call *call, symcclStream_t stream);
symcclResult_t group_add_message(
	symcclComm_t comm, const struct coll_xfer *x, symcclDataType_t type);

/* Called by the hub, when the last local rank has left. */
void comm_free(symcclComm_t comm);
void comm_windows_free(symcclComm_t comm);
void comm_devcomms_free(symcclComm_t comm); /* devcomm.c */

/* From the first call on, children of fork() are watched for. */
void fork_watch(void);
/* Bumped in every forked child. */
extern unsigned fork_gen;
static inline unsigned fork_generation(void)
{
	return __atomic_load_n(&fork_gen, __ATOMIC_RELAXED);
}

/* A handle of this process. */
static inline int comm_is_mine(symcclComm_t comm)
{
	return __builtin_expect(
		comm != NULL && comm->magic == COMM_MAGIC && comm->fork_gen == fork_generation(),
		1);
}
/* Such a communicator is ready, on the host, nothing is in the way, no stream or group in use, and
 * the windows are what they were. */
static inline int comm_is_quick(symcclComm_t comm, symcclStream_t stream)
{
	return stream == NULL && __atomic_load_n(&comm->quick, __ATOMIC_RELAXED) && !group_open() &&
	       mem_frees() == comm->freed_seen;
}

#endif
