/*
 * symccl: collective communication over symmetric windows. The host C API.
 *
 * The calls follow NCCL's C API: where a name, an argument order or a meaning has an NCCL
 * counterpart it is the same, so `nccl` -> `symccl` is most of a port. The differences are said
 * at each call.
 *
 * Result: every call returns symcclSuccess (0) or the reason it failed; outputs are written only
 * on success. symcclGetLastError() has the sentence that names the argument, the rank, the peer
 * and what to do.
 *
 * Collective calls ("collective" below) must be made by every rank of the communicator, in the
 * same order on all ranks. Local calls concern the calling rank alone.
 *
 * Threads: different communicator handles may be used from different threads at the same time.
 * One handle may be used by one thread at a time, except symcclCommAbort(),
 * symcclCommRevoke(), symcclCommGetAsyncError() and symcclGetLastError(), which any thread may call
 * at any time before the handle is destroyed.
 *
 * Fork: a communicator belongs to the process that made it. In a forked child every call on it
 * returns symcclInvalidUsage; the parent is not disturbed.
 */
#ifndef SYMCCL_H
#define SYMCCL_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SYMCCL_MAJOR 0
#define SYMCCL_MINOR 1
#define SYMCCL_PATCH 0
/* One number that grows with every release: major * 10000 + minor * 100 + patch. */
#define SYMCCL_VERSION_CODE (SYMCCL_MAJOR * 10000 + SYMCCL_MINOR * 100 + SYMCCL_PATCH)

#define SYMCCL_API __attribute__((visibility("default")))

/* What a call returns. The values 0 to 8 are NCCL's. */
typedef enum {
	symcclSuccess = 0,
	symcclUnhandledCudaError = 1, /* the CUDA driver refused something */
	symcclSystemError = 2,        /* a system call failed: memory, descriptors, sockets */
	symcclInternalError = 3,      /* a bug in symccl */
	symcclInvalidArgument = 4,    /* one argument is wrong by itself */
	symcclInvalidUsage = 5,       /* the arguments are fine, the call is not (here, now, so) */
	symcclRemoteError = 6,        /* a peer died, aborted or reported the failure */
	symcclInProgress = 7,         /* not finished yet: poll */
	symcclTimeout = 8,            /* a peer did not come within the deadline */
	symcclNumResults = 9
} symcclResult_t;

/* Element types. The values are NCCL's. */
typedef enum {
	symcclInt8 = 0,
	symcclChar = 0,
	symcclUint8 = 1,
	symcclInt32 = 2,
	symcclInt = 2,
	symcclUint32 = 3,
	symcclInt64 = 4,
	symcclUint64 = 5,
	symcclFloat16 = 6,
	symcclHalf = 6,
	symcclFloat32 = 7,
	symcclFloat = 7,
	symcclFloat64 = 8,
	symcclDouble = 8,
	symcclBfloat16 = 9,
	symcclFloat8e4m3 = 10,
	symcclFloat8e5m2 = 11,
	symcclNumTypes = 12
} symcclDataType_t;

/* Reduction operators. The values are NCCL's; docs/semantics.md says what each computes, bit for
 * bit. */
typedef enum {
	symcclSum = 0,
	symcclProd = 1,
	symcclMax = 2,
	symcclMin = 3,
	symcclAvg = 4,
	symcclNumOps = 5, /* values from here on: symcclRedOpCreatePreMulSum() */
	symcclMaxRedOp = 0x7fffffff
} symcclRedOp_t;

/* Where a communicator's buffers live. */
typedef enum {
	symcclDeviceAuto = 0, /* SYMCCL_DEVICE, else CUDA if the thread has a context, else host */
	symcclDeviceHost = 1, /* CPU memory */
	symcclDeviceCuda = 2  /* the calling thread's current CUDA device */
} symcclDeviceType_t;

typedef struct symcclComm *symcclComm_t;
typedef struct symcclWindow *symcclWindow_t;
typedef struct symcclRequest *symcclRequest_t;

/* A CUstream / cudaStream_t for a CUDA communicator: the call is put on it and returns at once,
 * also while it captures; NULL is the default stream. Calls on one communicator run in the order in
 * which they are made, whatever streams they are put on. On the host backend: a stream of
 * symcclHostStreamCreate(), or NULL: the calling thread does the work, after what is in streams,
 * and the call returns when it is done. */
typedef struct symcclStream *symcclStream_t;

/* Names a communicator to be: the addresses of its rendezvous and a 128-bit secret. Opaque; send
 * it to the other ranks over a channel you trust. */
#define SYMCCL_UNIQUE_ID_BYTES 128
typedef struct {
	char internal[SYMCCL_UNIQUE_ID_BYTES];
} symcclUniqueId;

/* Options of one communicator. Fill with SYMCCL_CONFIG_INITIALIZER, then set fields; a field left
 * alone takes the value of its environment variable, else its default. A set field beats the
 * environment. Callers built against an older, shorter struct are accepted. */
typedef struct {
	size_t size;          /* sizeof(symcclConfig_t) as the caller was compiled */
	unsigned int magic;   /* SYMCCL_CONFIG_MAGIC */
	unsigned int version; /* SYMCCL_VERSION_CODE */
	int blocking; /* 1: calls return when done (default); 0: see symcclCommGetAsyncError */
	int minCTAs;  /* least and most workers of a rank on the data path; */
	int maxCTAs;  /* SYMCCL_MIN_CTAS, SYMCCL_MAX_CTAS */
	const char *commName;      /* shown in logs and errors; copied */
	symcclDeviceType_t device; /* which memory; must be equal on all ranks */
} symcclConfig_t;

#define SYMCCL_CONFIG_MAGIC 0x53594d43u
#define SYMCCL_UNDEF_INT INT_MIN
#define SYMCCL_CONFIG_INITIALIZER \
	{ \
		sizeof(symcclConfig_t), SYMCCL_CONFIG_MAGIC, SYMCCL_VERSION_CODE, \
			SYMCCL_UNDEF_INT, SYMCCL_UNDEF_INT, SYMCCL_UNDEF_INT, NULL, \
			symcclDeviceAuto \
	}

/* ---- Library ---------------------------------------------------------------------------- */

/* Version of the library in use, as SYMCCL_VERSION_CODE. Local, any thread.
 * Return: symcclInvalidArgument when version is NULL. */
SYMCCL_API symcclResult_t symcclGetVersion(int *version);

/* A constant sentence for a result code; never NULL, also for values outside the enum. */
SYMCCL_API const char *symcclGetErrorString(symcclResult_t result);

/* What the last failing call said. With a communicator: the last error of that communicator, on
 * whatever thread; with NULL: the last error of the calling thread. "" when there was none. The
 * text is the caller thread's until its next symccl call. */
SYMCCL_API const char *symcclGetLastError(symcclComm_t comm);

/* ---- Communicators ---------------------------------------------------------------------- */

/* Make an id and start its rendezvous in this process, on the address and port that the log
 * (SYMCCL_DEBUG=info) shows; SYMCCL_SOCKET_IFNAME chooses the interface. One rank calls this and
 * hands the id to the others. An id makes one communicator; until it does, it holds a thread and
 * four descriptors of this process. Local, any thread, does not block. Return: symcclSystemError
 * when no interface or no port can be had. */
SYMCCL_API symcclResult_t symcclGetUniqueId(symcclUniqueId *id);

/* Where this process stands in the job that started it. */
typedef struct {
	int rank, nranks;           /* in the job */
	int localRank, localNranks; /* on this node; -1 when the launcher does not say */
	symcclUniqueId id;          /* usable on every rank for one symcclCommInitRank at a time */
	char launcher[32];          /* "env", "torchrun", "openmpi", "pmix", "pmi", "slurm" */
} symcclLaunch_t;

/* Read rank, size and rendezvous from the environment: SYMCCL_RANK, SYMCCL_NRANKS and
 * SYMCCL_COMM_ID=host:port; torchrun's RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; Open MPI's,
 * PMIx's or Slurm's variables for rank and size together with SYMCCL_COMM_ID. Local.
 * Return: symcclInvalidUsage when no launcher is recognised or it leaves something out; the error
 * names the variable. */
SYMCCL_API symcclResult_t symcclGetLaunch(symcclLaunch_t *launch);

/* Join a communicator of nranks ranks as rank (0 <= rank < nranks). Collective over all holders
 * of the id; blocks until all have come, at most SYMCCL_SETUP_TIMEOUT seconds. Ranks may be
 * processes, threads of one process, or both. Inside a group the call is queued and *comm is
 * written by symcclGroupEnd(), so one thread may create several ranks.
 * Return: symcclInvalidArgument for a bad rank, size or id; symcclInvalidUsage when ranks disagree
 * (size, version, device, two ranks with one number); symcclTimeout naming the ranks that did
 * not come; symcclRemoteError when one died. */
SYMCCL_API symcclResult_t symcclCommInitRank(
	symcclComm_t *comm, int nranks, symcclUniqueId id, int rank);
/* The same with options; config may be NULL. */
SYMCCL_API symcclResult_t symcclCommInitRankConfig(
	symcclComm_t *comm, int nranks, symcclUniqueId id, int rank, const symcclConfig_t *config);

/* One thread makes all ndev ranks of a communicator: comms[i] is rank i, on CUDA device devlist[i]
 * (NULL: device i); on the host backend devlist must be NULL. Not inside a group.
 * Return: as symcclCommInitRank; comms is written when all have been made. */
SYMCCL_API symcclResult_t symcclCommInitAll(symcclComm_t *comms, int ndev, const int *devlist);
/* As symcclCommInitRankConfig with nId ids, made by different ranks and given in the same order by
 * all; nId is 1..nranks. The first id's rendezvous serves all ranks (its work is O(n log n)); the
 * others' are given up in the processes that made them. */
SYMCCL_API symcclResult_t symcclCommInitRankScalable(symcclComm_t *comm, int nranks, int myrank,
	int nId, symcclUniqueId *commIds, const symcclConfig_t *config);

/* A new communicator for the ranks that give the same color (>= 0), ranked by key, then by their
 * old rank. SYMCCL_SPLIT_NOCOLOR: this rank takes no part in any, *newcomm = NULL. config NULL:
 * the parent's; the device is always the parent's. The parent stays usable. Collective over comm;
 * in a group *newcomm is written by symcclGroupEnd().
 *
 * Return: what is wrong with one rank's arguments is returned by all; symcclRemoteError naming a
 * rank that died, symcclTimeout naming one that did not come (SYMCCL_SETUP_TIMEOUT). */
#define SYMCCL_SPLIT_NOCOLOR (-1)
SYMCCL_API symcclResult_t symcclCommSplit(
	symcclComm_t comm, int color, int key, symcclComm_t *newcomm, const symcclConfig_t *config);

/* A new communicator without the listed ranks, in the old order; called by the others only, with
 * the same list (in any order; may be empty). In a group *newcomm is written by symcclGroupEnd().
 *
 * SYMCCL_SHRINK_DEFAULT: comm must be free of errors, or revoked. It stays what it was, also for
 * the listed ranks.
 *
 * SYMCCL_SHRINK_ABORT: also after failures. What runs on comm is stopped first, on all ranks, and
 * comm is only good for symcclCommDestroy or symcclCommAbort afterwards, or for another attempt. A
 * listed rank must have died or left comm (destroyed or aborted it): within a second, else
 * symcclInvalidUsage names its process id, since it may still write into memory that the others
 * share.
 *
 * Return: symcclRemoteError naming a rank that is dead but not listed; symcclTimeout naming one
 * that did not come with this list (SYMCCL_SETUP_TIMEOUT). */
#define SYMCCL_SHRINK_DEFAULT 0x00
#define SYMCCL_SHRINK_ABORT 0x01
SYMCCL_API symcclResult_t symcclCommShrink(symcclComm_t comm, int *excludeRanksList,
	int excludeRanksCount, symcclComm_t *newcomm, const symcclConfig_t *config,
	int shrinkFlags);

/* Wait until everything this rank has issued is complete, on all streams, and until all ranks are
 * here. Only asking, symcclCommDestroy and symcclCommAbort are allowed after it. Collective; in a
 * group it comes after the group's other calls. */
SYMCCL_API symcclResult_t symcclCommFinalize(symcclComm_t comm);

/* Stop work in flight, here and at the peers, and keep the handle: what runs or is called later
 * returns symcclInvalidUsage. After it symcclCommSplit and symcclCommShrink (made by all ranks that
 * take part), destroy and abort are allowed. Any thread; several ranks may. flags must be 0. */
#define SYMCCL_REVOKE_DEFAULT 0x00
SYMCCL_API symcclResult_t symcclCommRevoke(symcclComm_t comm, int flags);

/* Free the communicator, its windows and its part of every mapping. Collective in order, but does
 * not wait for peers longer than they need to leave the last call; after an asynchronous error it
 * does not wait at all. Requests not waited for are freed too and must not be used. NULL is
 * accepted. */
SYMCCL_API symcclResult_t symcclCommDestroy(symcclComm_t comm);

/* Stop everything on the communicator, here and at the peers, and free it. Any thread, at any
 * time; a collective that runs in another thread returns symcclRemoteError within a second, and
 * must have returned before the handle's memory goes (symcclCommAbort waits for that). Peers get
 * an asynchronous error that names this rank. */
SYMCCL_API symcclResult_t symcclCommAbort(symcclComm_t comm);

/* The communicator's asynchronous state: symcclSuccess, or the error that stopped it (a peer's
 * death, an abort, a deadline); once not symcclSuccess, every later call returns it. Any thread.
 *
 * With config.blocking 0 the calls that make, end or register (symcclCommInitRankConfig, Split,
 * Shrink, Finalize, WindowRegister; symcclGroupEnd when it makes communicators) return
 * symcclInProgress, and so does this until they are done; then it says what they came to. Outputs
 * are written by then; the new handle of InitRank and of GroupEnd at once. Meanwhile the
 * communicator may only be asked, destroyed or aborted: other calls return symcclInvalidUsage. In a
 * group, symcclGroupEnd() waits for splits, shrinks and registrations all the same. */
SYMCCL_API symcclResult_t symcclCommGetAsyncError(symcclComm_t comm, symcclResult_t *async);

SYMCCL_API symcclResult_t symcclCommCount(symcclComm_t comm, int *nranks);
SYMCCL_API symcclResult_t symcclCommUserRank(symcclComm_t comm, int *rank);
/* The CUDA device of this rank, or -1 on the host backend. */
SYMCCL_API symcclResult_t symcclCommCuDevice(symcclComm_t comm, int *device);
/* Which memory this communicator works on: never symcclDeviceAuto. */
SYMCCL_API symcclResult_t symcclCommDeviceType(symcclComm_t comm, symcclDeviceType_t *type);

/* Bytes of memory that this rank holds for the communicator, of the kind it works on; without the
 * user's windows and what peers hold. Local.
 * Return: symcclInvalidArgument for a NULL value or a stat that is none. */
typedef enum {
	symcclStatMemSuspend = 0,   /* that could be given back for a while: 0, nothing can yet */
	symcclStatMemSuspended = 1, /* 1: it has been */
	symcclStatMemPersist = 2,   /* the rest */
	symcclStatMemTotal = 3
} symcclCommMemStat_t;
SYMCCL_API symcclResult_t symcclCommMemStats(
	symcclComm_t comm, symcclCommMemStat_t stat, uint64_t *value);

/* ---- Groups ----------------------------------------------------------------------------- */

/* Calls between Start and the matching End are queued and run by the outermost End, which returns
 * the first failure; when a call was refused on the way, that one, and runs nothing. They may
 * concern several communicators, also several ranks of one. Groups nest and belong to the calling
 * thread. Registrations of one group are one set: all succeed or all are undone. A communicator's
 * sends and receives run side by side, after the group's collectives on it. */
SYMCCL_API symcclResult_t symcclGroupStart(void);
SYMCCL_API symcclResult_t symcclGroupEnd(void);

/* End the group without running any of it; the outermost one writes what the cost model expects of
 * its collectives into estimatedTime, in microseconds (calls that name their peers, registrations
 * and communicators count nothing). Filled with SYMCCL_SIM_INFO_INITIALIZER before: what is not is
 * refused, and leaves the group open. */
#define SYMCCL_SIM_INFO_MAGIC 0x74685283u
typedef struct {
	size_t size;
	unsigned int magic;
	unsigned int version;
	float estimatedTime;
} symcclSimInfo_t;
#define SYMCCL_SIM_INFO_INITIALIZER \
	{ \
		sizeof(symcclSimInfo_t), SYMCCL_SIM_INFO_MAGIC, SYMCCL_VERSION_CODE, -1.0f \
	}
SYMCCL_API symcclResult_t symcclGroupSimulateEnd(symcclSimInfo_t *simInfo);

/* ---- Streams on the host ------------------------------------------------------------------ */

/* A queue that a thread of its own works off in order, for host communicators: a collective given
 * such a stream returns at once. Any number of communicators may share one; buffers must stay as
 * they are until the call is done. Local, any thread. */
SYMCCL_API symcclResult_t symcclHostStreamCreate(symcclStream_t *stream);
/* Wait until all that was put in before is done; returns the first failure since the stream was
 * last synchronized or queried, with its sentence. After symcclCommAbort() the communicator's calls
 * have failed; those of others go on. */
SYMCCL_API symcclResult_t symcclHostStreamSynchronize(symcclStream_t stream);
/* The same, but symcclInProgress instead of waiting. */
SYMCCL_API symcclResult_t symcclHostStreamQuery(symcclStream_t stream);
/* Synchronize, and free the stream. NULL is accepted. */
SYMCCL_API symcclResult_t symcclHostStreamDestroy(symcclStream_t stream);

/* A point in a stream. Record: after what was put in `stream` so far. WaitEvent: what is put in
 * `stream` later starts when the event's last recording has been passed; one that was never
 * recorded has been. Query: symcclInProgress while it has not. Destroying leaves what waits for it
 * alone. */
typedef struct symcclHostEvent *symcclHostEvent_t;
SYMCCL_API symcclResult_t symcclHostEventCreate(symcclHostEvent_t *event);
SYMCCL_API symcclResult_t symcclHostEventRecord(symcclHostEvent_t event, symcclStream_t stream);
SYMCCL_API symcclResult_t symcclHostStreamWaitEvent(symcclStream_t stream, symcclHostEvent_t event);
SYMCCL_API symcclResult_t symcclHostEventQuery(symcclHostEvent_t event);
SYMCCL_API symcclResult_t symcclHostEventSynchronize(symcclHostEvent_t event);
SYMCCL_API symcclResult_t symcclHostEventDestroy(symcclHostEvent_t event);

/* ---- Memory and windows ----------------------------------------------------------------- */

/* Allocate memory that can become a window: zeroed, present, page aligned, at least size bytes
 * (rounded up to the backend's granularity). symcclMemAlloc takes the device that
 * symcclDeviceAuto stands for. Local, any thread.
 * Return: symcclInvalidArgument for size 0 or NULL; symcclSystemError when memory, a memory
 * limit or the descriptor table is exhausted. */
SYMCCL_API symcclResult_t symcclMemAlloc(void **ptr, size_t size);
SYMCCL_API symcclResult_t symcclMemAllocOn(void **ptr, size_t size, symcclDeviceType_t device);
/* Give it back. Windows over it stay valid for the peers until they are deregistered, but must not
 * be used by this rank any more. NULL is accepted. */
SYMCCL_API symcclResult_t symcclMemFree(void *ptr);

#define SYMCCL_WIN_DEFAULT 0x00
/* The caller promises that in each collective all ranks pass the same offset in the window. */
#define SYMCCL_WIN_COLL_SYMMETRIC 0x01

/* Make [buff, buff + size) addressable by all ranks. Collective; blocks until every rank has mapped
 * every other, or all undo it. Sizes may differ between ranks; buff may lie anywhere inside an
 * allocation. Registering the same memory again is cheap (a new handle over the same mapping).
 *
 * SYMCCL_WIN_COLL_SYMMETRIC demands memory of symcclMemAlloc() at the same offset in its allocation
 * on every rank; else symcclInvalidUsage names the rank that differs. SYMCCL_WIN_DEFAULT takes
 * offsets that differ, and memory that cannot be shared: such a window works in every collective
 * through scratch memory, and symcclWinGetPeerPtr() returns symcclInvalidUsage for it.
 *
 * On failure every rank returns the same code and reason, and nothing stays mapped anywhere. In a
 * group *win is written by symcclGroupEnd(). */
SYMCCL_API symcclResult_t symcclCommWindowRegister(
	symcclComm_t comm, void *buff, size_t size, symcclWindow_t *win, int winFlags);
/* The same without waiting. *win is written before a test or wait reports success; buff must stay
 * allocated until then. Every request must be waited for or tested until done, which frees it. */
SYMCCL_API symcclResult_t symcclCommWindowRegisterAsync(symcclComm_t comm, void *buff, size_t size,
	symcclWindow_t *win, int winFlags, symcclRequest_t *request);
/* *done = 1 and the request is freed, or *done = 0. Never blocks. Returns the registration's own
 * result once done. */
SYMCCL_API symcclResult_t symcclRequestTest(symcclRequest_t request, int *done);
/* Block until done (bounded by SYMCCL_SETUP_TIMEOUT), free the request, return its result. */
SYMCCL_API symcclResult_t symcclRequestWait(symcclRequest_t request);

/* Give the window back. Local; never waits for peers. The caller's own collectives on it must have
 * finished. Peers' mappings go with the next registration or at destroy, once all ranks have
 * deregistered. NULL is accepted. */
SYMCCL_API symcclResult_t symcclCommWindowDeregister(symcclComm_t comm, symcclWindow_t win);

/* The pointer this rank registered. */
SYMCCL_API symcclResult_t symcclWinGetUserPtr(symcclComm_t comm, symcclWindow_t win, void **ptr);
/* The address, in this process, of byte offset of rank peer's window (peer may be this rank).
 * Return: symcclInvalidArgument when peer or offset is out of range; symcclInvalidUsage when that
 * memory cannot be loaded from here. */
SYMCCL_API symcclResult_t symcclWinGetPeerPtr(
	symcclComm_t comm, symcclWindow_t win, int peer, size_t offset, void **ptr);
/* The size in bytes that rank peer registered. */
SYMCCL_API symcclResult_t symcclWinGetSize(
	symcclComm_t comm, symcclWindow_t win, int peer, size_t *size);

/* ---- Collectives ------------------------------------------------------------------------ */

/* Concatenate: recvbuff[r * sendcount + i] = rank r's sendbuff[i] on every rank. In place when
 * sendbuff == recvbuff + rank * sendcount elements. Any alignment; the buffers may be windows,
 * parts of windows, or plain memory. Collective.
 * Return: symcclInvalidArgument for a NULL buffer with a count above 0, an unknown type, or a size
 * that overflows; symcclInvalidUsage when ranks do not make the same call (named). */
SYMCCL_API symcclResult_t symcclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
	symcclDataType_t datatype, symcclComm_t comm, symcclStream_t stream);

/* Reduce element by element over all ranks, the result on every rank, the same bits on every rank
 * and for any algorithm, size, alignment and memory (docs/semantics.md). In place when sendbuff ==
 * recvbuff. Any alignment; the buffers may be windows, parts of windows, or plain memory; otherwise
 * they must not overlap. Collective.
 * Return: as symcclAllGather; symcclInvalidArgument for an op that is none. */
SYMCCL_API symcclResult_t symcclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, symcclRedOp_t op, symcclComm_t comm, symcclStream_t stream);

/* Reduce element by element over all ranks; rank r gets elements [r * recvcount, (r + 1) *
 * recvcount) of the result, with the bits that symcclAllReduce gives. In place when recvbuff ==
 * sendbuff + rank * recvcount elements. Otherwise as symcclAllReduce. Collective. */
SYMCCL_API symcclResult_t symcclReduceScatter(const void *sendbuff, void *recvbuff,
	size_t recvcount, symcclDataType_t datatype, symcclRedOp_t op, symcclComm_t comm,
	symcclStream_t stream);

typedef enum {
	symcclScalarDevice = 0,       /* the scalar is read when the collective runs */
	symcclScalarHostImmediate = 1 /* the scalar is read by this call */
} symcclScalarResidence_t;

/* An op that multiplies this rank's input by *scalar (one element of datatype) and then sums; ranks
 * may use different scalars. For calls of that datatype on that communicator. Local. Return:
 * symcclInvalidUsage for symcclScalarDevice on the host backend. */
SYMCCL_API symcclResult_t symcclRedOpCreatePreMulSum(symcclRedOp_t *op, void *scalar,
	symcclDataType_t datatype, symcclScalarResidence_t residence, symcclComm_t comm);
/* Give it back; not while a call that uses it is queued in a group. Local. */
SYMCCL_API symcclResult_t symcclRedOpDestroy(symcclRedOp_t op, symcclComm_t comm);

/* Return (or complete on the stream) when every rank has entered. Collective. */
SYMCCL_API symcclResult_t symcclBarrier(symcclComm_t comm, symcclStream_t stream);

/* Rank root's count elements of sendbuff to every rank's recvbuff. sendbuff counts on the root
 * only. In place when the root's sendbuff == recvbuff. Any alignment, any memory. Collective, but a
 * rank may return before the others have come. Return: as symcclAllGather; symcclInvalidArgument
 * for a root that is no rank. */
SYMCCL_API symcclResult_t symcclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, int root, symcclComm_t comm, symcclStream_t stream);
/* The same in place. */
SYMCCL_API symcclResult_t symcclBcast(void *buff, size_t count, symcclDataType_t datatype, int root,
	symcclComm_t comm, symcclStream_t stream);

/* Reduce element by element over all ranks, the result on the root only, with the bits that
 * symcclAllReduce gives. recvbuff counts on the root only. In place when the root's sendbuff ==
 * recvbuff. Otherwise as symcclBroadcast. */
SYMCCL_API symcclResult_t symcclReduce(const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, symcclRedOp_t op, int root, symcclComm_t comm,
	symcclStream_t stream);

/* Block r of sendbuff (count elements) goes to rank r, and block r of recvbuff comes from rank r.
 * sendbuff == recvbuff: in place, block by block exchanged; otherwise they must not overlap.
 * Collective. Return: as symcclAllGather. */
SYMCCL_API symcclResult_t symcclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, symcclComm_t comm, symcclStream_t stream);

/* The same with blocks of any size: sendcounts[r] elements at sendbuff + sdispls[r] elements go to
 * rank r, recvcounts[r] elements from rank r go to recvbuff + rdispls[r] elements. The four arrays
 * have one entry a rank and are read by the call. What r sends to q must be what q expects from r.
 * The buffers must not overlap. Collective. Return: as symcclAllGather; symcclInvalidUsage naming
 * the peer when two ranks disagree on a size. */
SYMCCL_API symcclResult_t symcclAlltoAllv(const void *sendbuff, const size_t sendcounts[],
	const size_t sdispls[], void *recvbuff, const size_t recvcounts[], const size_t rdispls[],
	symcclDataType_t datatype, symcclComm_t comm, symcclStream_t stream);

/* Concatenate on the root: its recvbuff[r * count + i] = rank r's sendbuff[i]. recvbuff counts on
 * the root only. In place when the root's sendbuff == recvbuff + root * count elements. Otherwise
 * as symcclBroadcast. */
SYMCCL_API symcclResult_t symcclGather(const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, int root, symcclComm_t comm, symcclStream_t stream);

/* The other way: rank r's recvbuff[i] = the root's sendbuff[r * count + i]. sendbuff counts on the
 * root only. In place when the root's recvbuff == sendbuff + root * count elements. Otherwise as
 * symcclBroadcast. */
SYMCCL_API symcclResult_t symcclScatter(const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, int root, symcclComm_t comm, symcclStream_t stream);

/* ---- Point to point ---------------------------------------------------------------------- */

/* Send count elements to a peer, which must receive as many; messages between two ranks match in
 * order, across calls and groups. Concerns the two ranks only, except that a communicator's first
 * call waits for all (see symcclStream_t). Outside a group a send may return once the data is on
 * its way or wait until the peer receives it; a rank that sends and receives puts both in a group,
 * which runs them side by side and cannot deadlock. A peer may be the rank itself (then both must
 * be in one group). Return: symcclInvalidArgument for a peer that is no rank; symcclInvalidUsage
 * when the peer's matching call has another size. */
SYMCCL_API symcclResult_t symcclSend(const void *sendbuff, size_t count, symcclDataType_t datatype,
	int peer, symcclComm_t comm, symcclStream_t stream);
SYMCCL_API symcclResult_t symcclRecv(void *recvbuff, size_t count, symcclDataType_t datatype,
	int peer, symcclComm_t comm, symcclStream_t stream);

/* ---- One-sided ---------------------------------------------------------------------------- */

/* Store count elements into rank peer's window, peerWinOffset bytes from its start, then add one to
 * the peer's signal (this rank, sigIdx): a peer that has waited for it sees the data. The peer
 * makes no call for it. sigIdx is 0..SYMCCL_SIGNALS-1; ctx and flags must be 0. On the stream;
 * puts and signals of one rank to one peer arrive in order.
 * Return: symcclInvalidArgument when the data does not fit the peer's window. */
#define SYMCCL_SIGNALS 8
SYMCCL_API symcclResult_t symcclPutSignal(const void *localbuff, size_t count,
	symcclDataType_t datatype, int peer, symcclWindow_t peerWin, size_t peerWinOffset,
	int sigIdx, int ctx, unsigned int flags, symcclComm_t comm, symcclStream_t stream);
/* Only the signal. */
SYMCCL_API symcclResult_t symcclSignal(int peer, int sigIdx, int ctx, unsigned int flags,
	symcclComm_t comm, symcclStream_t stream);

/* Wait until opCnt signals of (peer, sigIdx) have come since those that earlier waits took. */
typedef struct {
	int opCnt, peer, sigIdx, ctx;
} symcclWaitSignalDesc_t;
SYMCCL_API symcclResult_t symcclWaitSignal(int nDesc, const symcclWaitSignalDesc_t *signalDescs,
	symcclComm_t comm, symcclStream_t stream);

/* ---- Plans ------------------------------------------------------------------------------- */

typedef enum {
	symcclFuncBarrier = 0,
	symcclFuncAllGather = 1,
	symcclFuncAllReduce = 2,
	symcclFuncReduceScatter = 3,
	symcclFuncBroadcast = 4,
	symcclFuncReduce = 5,
	symcclFuncAlltoAll = 6,
	symcclFuncGather = 7,
	symcclFuncScatter = 8,
	symcclFuncAlltoAllv = 9,
	symcclFuncSendRecv = 10, /* a group's sends and receives, together */
	symcclFuncPutSignal = 11,
	symcclFuncSignal = 12,
	symcclFuncWaitSignal = 13,
	symcclNumFuncs
} symcclFunc_t;

/* What a call would do. */
typedef struct {
	char algorithm[32]; /* the row's name, as SYMCCL_ALGO takes it: "allgather/push" */
	int nCTAs;          /* workers of this rank */
	int usesWindows;    /* 1: peers load or store the user's buffers directly */
	double timeUs;      /* the cost model's estimate */
} symcclPlan_t;

/* Which algorithm a call with these arguments would take on this rank, and why not another: rows
 * that could not be taken are logged at SYMCCL_DEBUG=trace. Local; nothing is sent. count is the
 * call's own count argument; op is ignored by calls that do not reduce. */
SYMCCL_API symcclResult_t symcclQueryPlan(symcclComm_t comm, symcclFunc_t func,
	const void *sendbuff, const void *recvbuff, size_t count, symcclDataType_t datatype,
	symcclRedOp_t op, symcclPlan_t *plan);

#ifdef __cplusplus
}
#endif
#endif
