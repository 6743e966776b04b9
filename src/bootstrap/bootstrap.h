/*
 * Bootstrap: how the processes of one communicator find each other and talk while it is set up.
 *
 * The unit is the process, not the rank: ranks that share a process share one `struct boot`, used
 * by one thread at a time (the communicator's worker). Processes form one tree, by which every
 * operation runs: inside a node over connected Unix stream sockets in the abstract namespace, from
 * node leader to node leader over TCP. A process holds O(1) connections; the root of the rendezvous
 * does O(n log n) work and holds one connection per process until all have come.
 *
 * Every wait ends at the deadline it is given (now_ns() clock, 0 = none), when a process dies (seen
 * at once on the node, by pidfd and by the closed socket, also if only a forked child of it keeps
 * the socket open), or when a peer aborts. After any failure the boot is dead: every later
 * operation returns the same failure, and boot_failure() says what it was. A failure is passed on
 * to all processes before it is returned, so all name the same rank and reason.
 */
#ifndef BOOTSTRAP_H
#define BOOTSTRAP_H

#include <stddef.h>
#include <stdint.h>
#include "error.h"

/* ---- The unique id (id.c) ---------------------------------------------------------------- */

/* Fresh id: random secret, this host's addresses, and a thread in this process that serves the
 * rendezvous for it and ends when all ranks have been served. */
symcclResult_t boot_id_create(symcclUniqueId *id);
/* Stop the thread that serves this id, if it is in this process and ranks are still awaited. */
void boot_id_drop(const symcclUniqueId *id);
/* The same id on every rank, from "host:port" (port + nports - 1 at most) and a salt; whoever joins
 * as rank 0 serves it, on the first port of the range that is free. */
symcclResult_t boot_id_from_address(
	const char *hostport, int nports, const char *salt, symcclUniqueId *id);
/* symcclInvalidArgument when it is not an id of ours. */
symcclResult_t boot_id_check(const symcclUniqueId *id);

/* ---- Launchers (launch.c) ---------------------------------------------------------------- */
symcclResult_t boot_launch(symcclLaunch_t *launch);

/* ---- Joining (rendezvous.c) ------------------------------------------------------------- */

/* One local rank, as it asks to join. The root compares version and config over all ranks and
 * refuses with a sentence that names two ranks that differ, a duplicate, or a rank out of range. */
struct boot_member {
	int rank, nranks;
	uint32_t version; /* SYMCCL_VERSION_CODE */
	uint32_t config;  /* device type and whatever else must agree */
};

struct boot_proc {
	uint64_t uid;  /* mem_proc_uid() of that process */
	int pid;       /* as that process sees itself */
	int node;      /* 0..nnodes-1, in order of each node's lowest rank */
	int node_proc; /* index among the processes of its node */
	int nranks;
	const int *ranks; /* ascending */
	char host[64];
};

/* Head of a larger struct (tree.h). */
struct boot {
	int nranks, nprocs, nnodes;
	int proc;        /* this process's index; processes are ordered by (node, lowest rank) */
	int node_nprocs; /* processes on this node */
	int node_proc0;  /* index of its first; those of a node are consecutive */
	const struct boot_proc *procs;
	const int *rank_proc; /* rank -> process */
};

/* Meet. next(arg, &m) is called from this thread at first and whenever wakefd becomes readable (it
 * drains wakefd and returns 1 with a member to send, 0 when there is no more for now): local ranks
 * may trickle in. Returns when every rank of the communicator has joined and the tree stands.
 *
 * The root waits SYMCCL_SETUP_TIMEOUT from the first rank's arrival, then tells every process which
 * ranks did not come (symcclTimeout). deadline is when this process gives up by itself: at once
 * when it has not reached the root, 1.5 s later when it has, so that the root's sentence wins. On
 * failure *why is the first failure of all processes, and a root in this process is given up to
 * half a second to tell those who come late. When cancelfd (-1: none) becomes readable this process
 * gives up (symcclRemoteError, which all others are told). */
symcclResult_t boot_open(const symcclUniqueId *id, int wakefd, int cancelfd,
	int (*next)(void *arg, struct boot_member *m), void *arg, uint64_t deadline,
	struct boot **boot, struct failure *why);

/* ---- Operations (operations.c, descriptors.c, message.c) ----------------------------------
 *
 * All processes call the same collective ones in the same order. A timeout names the ranks that did
 * not take part: a process gives up when the first of those below it would, and deeper ones 0.1 s a
 * level later, so that the one that knows most speaks first. Any failure kills the boot, except
 * symcclInProgress (see boot_set_cancel) and a message larger than the buffer. */

/* Gather every process's bytes everywhere. Lengths may differ and be 0. all[p], len[p] for p in
 * 0..nprocs-1 point into memory that is valid until the next operation on b. */
symcclResult_t boot_allgather(struct boot *b, const void *mine, size_t mylen, const void ***all,
	const size_t **len, uint64_t deadline);
symcclResult_t boot_barrier(struct boot *b, uint64_t deadline);
/* Gather descriptors over this node's processes (the other nodes do the same): mine[0..n) of each,
 * in the order of node_proc; *fds (counts[p] of them per process, own ones as duplicates) belong to
 * the caller, who closes them and frees both arrays. A descriptor that could not be received (table
 * full) is -1: the caller votes. */
symcclResult_t boot_allgather_fds(
	struct boot *b, const int *mine, int n, int **fds, int **counts, uint64_t deadline);
/* Between two processes; connects on demand and keeps nothing open. recv waits for that sender and
 * tag; *len in: room, out: bytes. */
symcclResult_t boot_send(
	struct boot *b, int proc, uint32_t tag, const void *buf, size_t len, uint64_t deadline);
symcclResult_t boot_recv(
	struct boot *b, int proc, uint32_t tag, void *buf, size_t *len, uint64_t deadline);

/* ---- Idle, abort, end --------------------------------------------------------------------- */

/* Sleep until wakefd or the cancel descriptor is readable (returns symcclSuccess; drains neither),
 * a peer process begins an operation (symcclInProgress), or a failure. timeout_ms -1: for ever
 * (this is no wait for a peer). */
symcclResult_t boot_idle(struct boot *b, int wakefd, int timeout_ms);
/* Make cancelfd break any operation in progress: when it becomes readable the operation returns
 * symcclInProgress with nothing undone, and the caller says why with boot_abort(). -1: none. */
void boot_set_cancel(struct boot *b, int cancelfd);
/* Tell all processes, without waiting, that the communicator is dead for this reason. */
void boot_abort(struct boot *b, const struct failure *why);
/* What killed the boot; code symcclSuccess while it lives. */
const struct failure *boot_failure(const struct boot *b);
/* Leave. Neighbours are told, so that this is not a death; an operation that still needs this
 * process fails at once and says that it has left. Does not wait. NULL is accepted. */
void boot_close(struct boot *b);

#endif
