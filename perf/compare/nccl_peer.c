/*
 * NCCL behind symccl's calls, so that the programs of perf/ time it exactly as they time symccl:
 *
 *   cc -shared -fPIC -o nccl_peer.so nccl_peer.c -I NCCL/include -I CUDA/include -I ../../include
 *   NCCL_PEER_LIB=NCCL/lib/libnccl.so.2 LD_PRELOAD=./nccl_peer.so all_reduce_perf --device cuda ...
 *
 * Communicators on GPUs, their memory and their calls are NCCL's; those on CPU memory, which the
 * programs exchange results with, stay symccl's. One rank a thread. Not covered: reductions of
 * symccl's own (symcclRedOpCreatePreMulSum), plans.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "symccl.h"

enum { MOST = 4096 };

/* clang-format off */
#define ROWS \
	ROW(ncclGetVersion) ROW(ncclGetUniqueId) ROW(ncclCommInitRankConfig) \
	ROW(ncclCommDestroy) ROW(ncclCommGetAsyncError) ROW(ncclGetLastError) \
	ROW(ncclGetErrorString) ROW(ncclGroupStart) ROW(ncclGroupEnd) ROW(ncclMemAlloc) \
	ROW(ncclMemFree) ROW(ncclCommWindowRegister) ROW(ncclCommWindowDeregister) \
	ROW(ncclAllGather) ROW(ncclAllReduce) ROW(ncclReduceScatter) ROW(ncclBroadcast) \
	ROW(ncclReduce) ROW(ncclAlltoAll) ROW(ncclGather) ROW(ncclScatter) ROW(ncclSend) \
	ROW(ncclRecv)
/* clang-format on */
static struct {
#define ROW(name) __typeof__(&name) name;
	ROWS
#undef ROW
} nccl;

/* What a symcclComm_t is when it is NCCL's. */
struct peer {
	ncclComm_t comm;
};
static struct peer peers[MOST];
static int npeers;
static void *blocks[MOST]; /* of ncclMemAlloc */
static __thread int depth; /* of groups */
static __thread char error[512];

/* The library's own call. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void load(void)
{
	const char *path = getenv("NCCL_PEER_LIB");
	void *lib = dlopen(path ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		fprintf(stderr, "nccl_peer: %s\n", dlerror());
		_Exit(1);
	}
#define ROW(name) \
	nccl.name = (__typeof__(&name))dlsym(lib, #name); \
	if (!nccl.name) { \
		fprintf(stderr, "nccl_peer: this NCCL has no " #name "\n"); \
		_Exit(1); \
	}
	ROWS
#undef ROW
}

static struct peer *peer_of(symcclComm_t comm)
{
	struct peer *p = (struct peer *)comm;

	return p >= peers && p < peers + MOST ? p : NULL;
}

static symcclResult_t result(ncclResult_t r, const char *what)
{
	if (r != ncclSuccess)
		snprintf(error, sizeof(error), "NCCL: %s: %s: %s", what, nccl.ncclGetErrorString(r),
			nccl.ncclGetLastError(NULL));
	return (symcclResult_t)r; /* 0 to 7 are the same */
}

/* ---- Communicators ---------------------------------------------------------------------- */

symcclResult_t symcclGetVersion(int *version)
{
	return result(nccl.ncclGetVersion(version), "ncclGetVersion");
}

const char *symcclGetLastError(symcclComm_t comm)
{
	return *error ? error : peer_of(comm) ? "" : NEXT(symcclGetLastError)(comm);
}

/* NCCL's id goes round over a symccl communicator of the same ranks. */
static symcclResult_t id_share(ncclUniqueId *nid, int nranks, symcclUniqueId id, int rank)
{
	symcclConfig_t config = SYMCCL_CONFIG_INITIALIZER;
	char *all = malloc((size_t)nranks * sizeof(*nid));
	symcclComm_t comm;
	symcclResult_t e;

	config.device = symcclDeviceHost;
	if (rank == 0)
		nccl.ncclGetUniqueId(nid);
	e = NEXT(symcclCommInitRankConfig)(&comm, nranks, id, rank, &config);
	if (e == symcclSuccess) {
		e = NEXT(symcclAllGather)(nid, all, sizeof(*nid), symcclInt8, comm, NULL);
		NEXT(symcclCommDestroy)(comm);
	}
	memcpy(nid, all, sizeof(*nid));
	free(all);
	return e;
}

symcclResult_t symcclCommInitRankConfig(
	symcclComm_t *comm, int nranks, symcclUniqueId id, int rank, const symcclConfig_t *config)
{
	ncclConfig_t nc = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId nid = {{0}};
	struct peer *p;
	symcclResult_t e;

	if (!config || config->device != symcclDeviceCuda)
		return NEXT(symcclCommInitRankConfig)(comm, nranks, id, rank, config);
	if (depth) /* a communicator is needed at once; nothing else has been queued */
		NEXT(symcclGroupEnd)();
	e = id_share(&nid, nranks, id, rank);
	if (depth)
		NEXT(symcclGroupStart)();
	if (e != symcclSuccess)
		return e;
	p = &peers[__atomic_fetch_add(&npeers, 1, __ATOMIC_RELAXED)];
	*comm = (symcclComm_t)p;
	return result(nccl.ncclCommInitRankConfig(&p->comm, nranks, nid, rank, &nc),
		"ncclCommInitRankConfig");
}

symcclResult_t symcclCommDestroy(symcclComm_t comm)
{
	struct peer *p = peer_of(comm);

	return p ? result(nccl.ncclCommDestroy(p->comm), "ncclCommDestroy")
		 : NEXT(symcclCommDestroy)(comm);
}

symcclResult_t symcclCommGetAsyncError(symcclComm_t comm, symcclResult_t *async)
{
	struct peer *p = peer_of(comm);

	return p ? result(nccl.ncclCommGetAsyncError(p->comm, (ncclResult_t *)async),
			   "ncclCommGetAsyncError")
		 : NEXT(symcclCommGetAsyncError)(comm, async);
}

/* ---- Groups, memory, windows ------------------------------------------------------------ */

symcclResult_t symcclGroupStart(void)
{
	depth++;
	nccl.ncclGroupStart();
	return NEXT(symcclGroupStart)();
}

symcclResult_t symcclGroupEnd(void)
{
	symcclResult_t e;

	depth--;
	e = result(nccl.ncclGroupEnd(), "ncclGroupEnd");
	return e != symcclSuccess ? e : NEXT(symcclGroupEnd)();
}

symcclResult_t symcclMemAllocOn(void **ptr, size_t size, symcclDeviceType_t device)
{
	symcclResult_t e;

	if (device != symcclDeviceCuda)
		return NEXT(symcclMemAllocOn)(ptr, size, device);
	e = result(nccl.ncclMemAlloc(ptr, size), "ncclMemAlloc");
	for (int i = 0; e == symcclSuccess && i < MOST; i++) {
		void *none = NULL;

		if (__atomic_compare_exchange_n(
			    &blocks[i], &none, *ptr, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			break;
	}
	return e;
}

symcclResult_t symcclMemFree(void *ptr)
{
	for (int i = 0; ptr && i < MOST; i++)
		if (blocks[i] == ptr) {
			blocks[i] = NULL;
			return result(nccl.ncclMemFree(ptr), "ncclMemFree");
		}
	return NEXT(symcclMemFree)(ptr);
}

symcclResult_t symcclCommWindowRegister(
	symcclComm_t comm, void *buff, size_t size, symcclWindow_t *win, int flags)
{
	struct peer *p = peer_of(comm);

	return p ? result(nccl.ncclCommWindowRegister(
				  p->comm, buff, size, (ncclWindow_t *)win, flags),
			   "ncclCommWindowRegister")
		 : NEXT(symcclCommWindowRegister)(comm, buff, size, win, flags);
}

symcclResult_t symcclCommWindowDeregister(symcclComm_t comm, symcclWindow_t win)
{
	struct peer *p = peer_of(comm);

	if (p && !win)
		return symcclSuccess;
	return p ? result(nccl.ncclCommWindowDeregister(p->comm, (ncclWindow_t)win),
			   "ncclCommWindowDeregister")
		 : NEXT(symcclCommWindowDeregister)(comm, win);
}

/* ---- Collectives ------------------------------------------------------------------------ */

/* Types and operators have the same numbers. */
#define CALL(name, comm, ours, theirs) \
	struct peer *p = peer_of(comm); \
	return p ? result(nccl.nccl##name theirs, "nccl" #name) : NEXT(symccl##name) ours
#define TYPE ((ncclDataType_t)type)
#define OP ((ncclRedOp_t)op)
#define STREAM p->comm, (cudaStream_t)stream

symcclResult_t symcclAllGather(const void *send, void *recv, size_t n, symcclDataType_t type,
	symcclComm_t comm, symcclStream_t stream)
{
	CALL(AllGather, comm, (send, recv, n, type, comm, stream), (send, recv, n, TYPE, STREAM));
}

symcclResult_t symcclAllReduce(const void *send, void *recv, size_t n, symcclDataType_t type,
	symcclRedOp_t op, symcclComm_t comm, symcclStream_t stream)
{
	CALL(AllReduce, comm, (send, recv, n, type, op, comm, stream),
		(send, recv, n, TYPE, OP, STREAM));
}

symcclResult_t symcclReduceScatter(const void *send, void *recv, size_t n, symcclDataType_t type,
	symcclRedOp_t op, symcclComm_t comm, symcclStream_t stream)
{
	CALL(ReduceScatter, comm, (send, recv, n, type, op, comm, stream),
		(send, recv, n, TYPE, OP, STREAM));
}

symcclResult_t symcclBroadcast(const void *send, void *recv, size_t n, symcclDataType_t type,
	int root, symcclComm_t comm, symcclStream_t stream)
{
	CALL(Broadcast, comm, (send, recv, n, type, root, comm, stream),
		(send, recv, n, TYPE, root, STREAM));
}

symcclResult_t symcclReduce(const void *send, void *recv, size_t n, symcclDataType_t type,
	symcclRedOp_t op, int root, symcclComm_t comm, symcclStream_t stream)
{
	CALL(Reduce, comm, (send, recv, n, type, op, root, comm, stream),
		(send, recv, n, TYPE, OP, root, STREAM));
}

symcclResult_t symcclAlltoAll(const void *send, void *recv, size_t n, symcclDataType_t type,
	symcclComm_t comm, symcclStream_t stream)
{
	CALL(AlltoAll, comm, (send, recv, n, type, comm, stream), (send, recv, n, TYPE, STREAM));
}

symcclResult_t symcclGather(const void *send, void *recv, size_t n, symcclDataType_t type, int root,
	symcclComm_t comm, symcclStream_t stream)
{
	CALL(Gather, comm, (send, recv, n, type, root, comm, stream),
		(send, recv, n, TYPE, root, STREAM));
}

symcclResult_t symcclScatter(const void *send, void *recv, size_t n, symcclDataType_t type,
	int root, symcclComm_t comm, symcclStream_t stream)
{
	CALL(Scatter, comm, (send, recv, n, type, root, comm, stream),
		(send, recv, n, TYPE, root, STREAM));
}

symcclResult_t symcclSend(const void *send, size_t n, symcclDataType_t type, int peer,
	symcclComm_t comm, symcclStream_t stream)
{
	CALL(Send, comm, (send, n, type, peer, comm, stream), (send, n, TYPE, peer, STREAM));
}

symcclResult_t symcclRecv(void *recv, size_t n, symcclDataType_t type, int peer, symcclComm_t comm,
	symcclStream_t stream)
{
	CALL(Recv, comm, (recv, n, type, peer, comm, stream), (recv, n, TYPE, peer, STREAM));
}
