/* NCCL's communicators over symccl's. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "shim/shim.h"

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), #a)
SAME(ncclInvalidUsage, symcclInvalidUsage);
SAME(ncclInProgress, symcclInProgress);
SAME(ncclTimeout, symcclTimeout);
SAME(ncclNumResults, symcclNumResults);
SAME(ncclBfloat16, symcclBfloat16);
SAME(ncclFloat8e5m2, symcclFloat8e5m2);
SAME(ncclNumTypes, symcclNumTypes);
SAME(ncclAvg, symcclAvg);
SAME(ncclNumOps, symcclNumOps);
SAME(ncclScalarHostImmediate, symcclScalarHostImmediate);
SAME(NCCL_SPLIT_NOCOLOR, SYMCCL_SPLIT_NOCOLOR);
SAME(NCCL_SHRINK_ABORT, SYMCCL_SHRINK_ABORT);
SAME(ncclStatGpuMemTotal, symcclStatMemTotal);
SAME(sizeof(ncclSimInfo_t), sizeof(symcclSimInfo_t));
SAME(sizeof(ncclUniqueId), sizeof(symcclUniqueId));
SAME(sizeof(ncclWaitSignalDesc_t), sizeof(symcclWaitSignalDesc_t));

/* ---- Results --------------------------------------------------------------------------------- */

static __thread char own_text[512];

ncclResult_t shim_fail(ncclResult_t code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(own_text, sizeof(own_text), fmt, ap);
	va_end(ap);
	shim_info("%s", own_text);
	return code;
}

ncclResult_t shim_result(symcclResult_t e)
{
	own_text[0] = '\0';
	return (ncclResult_t)e;
}

ncclResult_t shim_refuse(const char *what)
{
	return shim_fail(ncclInvalidUsage,
		"%s does not exist in symccl's libnccl.so.2 (docs/nccl.md lists what does)", what);
}

const char *shim_text(void)
{
	return own_text;
}

ncclResult_t shim_comm(ncclComm_t comm, symcclComm_t *c)
{
	if (comm == NULL)
		return shim_fail(ncclInvalidArgument, "comm is NULL");
	if (comm->magic != SHIM_COMM_MAGIC)
		return shim_fail(ncclInvalidArgument,
			"comm %p is no communicator of this library, or one that was destroyed",
			(void *)comm);
	if (comm->c == NULL)
		return shim_fail(ncclInvalidUsage,
			"comm %p is not initialised yet: its group has not ended, or its creation "
			"failed",
			(void *)comm);
	*c = comm->c;
	return ncclSuccess;
}

SHIM(const char *, ncclGetErrorString, ncclResult_t result)
{
	return symcclGetErrorString((symcclResult_t)result);
}

SHIM(const char *, ncclGetLastError, ncclComm_t comm)
{
	if (own_text[0] != '\0')
		return own_text;
	return symcclGetLastError(comm != NULL && comm->magic == SHIM_COMM_MAGIC ? comm->c : NULL);
}

SHIM(ncclResult_t, ncclGetVersion, int *version)
{
	if (version == NULL)
		return shim_fail(ncclInvalidArgument, "version is NULL");
	*version = shim_version();
	return ncclSuccess;
}

SHIM(ncclResult_t, ncclGetUniqueId, ncclUniqueId *uniqueId)
{
	return shim_result(symcclGetUniqueId((symcclUniqueId *)uniqueId));
}

/* ---- Making ---------------------------------------------------------------------------------- */

/* How much of the caller's struct there is, and what of it means something here. */
static ncclResult_t config_read(const ncclConfig_t *in, symcclConfig_t *out)
{
	const symcclConfig_t fresh = SYMCCL_CONFIG_INITIALIZER;
	ncclConfig_t c = NCCL_CONFIG_INITIALIZER;

	*out = fresh;
	out->device = shim_device();
	if (in == NULL)
		return ncclSuccess;
	if (in->magic != NCCL_API_MAGIC || in->size < offsetof(ncclConfig_t, cgaClusterSize))
		return shim_fail(ncclInvalidArgument,
			"config was not filled with NCCL_CONFIG_INITIALIZER (size %zu, magic %#x)",
			in->size, in->magic);
	memcpy(&c, in, in->size < sizeof(c) ? in->size : sizeof(c));
	out->blocking = c.blocking;
	out->minCTAs = c.minCTAs;
	out->maxCTAs = c.maxCTAs;
	out->commName = c.commName;
	if (c.netName != NULL)
		shim_info("config.netName %s has no effect: symccl does not use the network on "
			  "one host",
			c.netName);
	return ncclSuccess;
}

/* Handles that were ended while symccl still was to write their `c`, in a group or a non-blocking
 * call: kept until it has. */
static pthread_mutex_t orphans_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *orphans;

static void orphan_add(struct ncclComm *w)
{
	pthread_mutex_lock(&orphans_lock);
	w->next = orphans;
	orphans = w;
	pthread_mutex_unlock(&orphans_lock);
}

static void orphans_end(void)
{
	struct ncclComm **p = &orphans, *w;

	pthread_mutex_lock(&orphans_lock);
	while ((w = *p) != NULL) {
		symcclComm_t c = __atomic_load_n(&w->c, __ATOMIC_ACQUIRE);

		if (c == NULL) {
			p = &w->next;
			continue;
		}
		*p = w->next;
		symcclCommAbort(c);
		free(w);
	}
	pthread_mutex_unlock(&orphans_lock);
}

static ncclResult_t comm_new(ncclComm_t *out, struct ncclComm **w)
{
	orphans_end();
	if (out == NULL)
		return shim_fail(
			ncclInvalidArgument, "the pointer to the new communicator is NULL");
	*w = calloc(1, sizeof(**w));
	if (*w == NULL)
		return shim_fail(ncclSystemError, "out of memory for a communicator");
	(*w)->magic = SHIM_COMM_MAGIC;
	return ncclSuccess;
}

/* The handle is the caller's at once: in a group, and for calls that go on by themselves, symccl
 * fills it in later. */
static ncclResult_t comm_made(ncclComm_t *out, struct ncclComm *w, symcclResult_t e)
{
	if (e == symcclSuccess || e == symcclInProgress) {
		*out = w;
	} else {
		w->magic = 0;
		free(w);
	}
	return shim_result(e);
}

#define SHIM_TRY(call) \
	do { \
		ncclResult_t try_e_ = (call); \
		if (try_e_ != ncclSuccess) \
			return try_e_; \
	} while (0)

SHIM(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *comm, int nranks, ncclUniqueId commId,
	int rank, ncclConfig_t *config)
{
	symcclConfig_t c;
	struct ncclComm *w;
	symcclUniqueId id;

	SHIM_TRY(config_read(config, &c));
	SHIM_TRY(comm_new(comm, &w));
	memcpy(&id, &commId, sizeof(id));
	return comm_made(comm, w, symcclCommInitRankConfig(&w->c, nranks, id, rank, &c));
}

SHIM(ncclResult_t, ncclCommInitRank, ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
	return pncclCommInitRankConfig(comm, nranks, commId, rank, NULL);
}

SHIM(ncclResult_t, ncclCommInitRankScalable, ncclComm_t *newcomm, int nranks, int myrank, int nId,
	ncclUniqueId *commIds, ncclConfig_t *config)
{
	symcclConfig_t c;
	struct ncclComm *w;

	SHIM_TRY(config_read(config, &c));
	SHIM_TRY(comm_new(newcomm, &w));
	return comm_made(newcomm, w,
		symcclCommInitRankScalable(
			&w->c, nranks, myrank, nId, (symcclUniqueId *)commIds, &c));
}

SHIM(ncclResult_t, ncclCommInitAll, ncclComm_t *comm, int ndev, const int *devlist)
{
	const int *devices = devlist;
	symcclComm_t *made;
	struct ncclComm **w;
	int *first;
	ncclResult_t e = ncclSuccess;

	if (comm == NULL || ndev < 1)
		return shim_fail(
			ncclInvalidArgument, "%s", comm ? "ndev is below 1" : "comm is NULL");
	made = calloc((size_t)ndev, sizeof(*made));
	first = calloc((size_t)ndev, sizeof(*first));
	w = calloc((size_t)ndev, sizeof(*w));
	/* Without a list NCCL means the first GPUs, whatever context the thread has. */
	for (int i = 0; first != NULL && i < ndev; i++)
		first[i] = i;
	if (devlist == NULL && shim_device() == symcclDeviceCuda)
		devices = first;
	for (int i = 0; made && w && first && i < ndev && e == ncclSuccess; i++)
		e = comm_new(&comm[i], &w[i]);
	if (made == NULL || w == NULL || first == NULL)
		e = shim_fail(ncclSystemError, "out of memory for %d communicators", ndev);
	if (e == ncclSuccess)
		e = shim_result(symcclCommInitAll(made, ndev, devices));
	for (int i = 0; w != NULL && i < ndev; i++) {
		if (e == ncclSuccess) {
			w[i]->c = made[i];
			comm[i] = w[i];
		} else {
			free(w[i]);
		}
	}
	free(made);
	free(first);
	free(w);
	return e;
}

SHIM(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
	ncclConfig_t *config)
{
	symcclConfig_t c;
	struct ncclComm *w;

	SHIM_COMM(comm, parent);
	SHIM_TRY(config_read(config, &c));
	if (color == NCCL_SPLIT_NOCOLOR) {
		static symcclComm_t nowhere; /* only ever NULL; may be written after this call */

		if (newcomm == NULL)
			return shim_fail(ncclInvalidArgument, "newcomm is NULL");
		*newcomm = NULL;
		return shim_result(symcclCommSplit(parent, color, key, &nowhere, NULL));
	}
	SHIM_TRY(comm_new(newcomm, &w));
	w->parent = parent;
	return comm_made(
		newcomm, w, symcclCommSplit(parent, color, key, &w->c, config ? &c : NULL));
}

SHIM(ncclResult_t, ncclCommShrink, ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
	ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags)
{
	symcclConfig_t c;
	struct ncclComm *w;

	SHIM_COMM(comm, parent);
	SHIM_TRY(config_read(config, &c));
	SHIM_TRY(comm_new(newcomm, &w));
	w->parent = parent;
	return comm_made(newcomm, w,
		symcclCommShrink(parent, excludeRanksList, excludeRanksCount, &w->c,
			config ? &c : NULL, shrinkFlags));
}

SHIM(ncclResult_t, ncclCommGetUniqueId, ncclComm_t comm, ncclUniqueId *uniqueId)
{
	(void)comm, (void)uniqueId;
	return shim_refuse("ncclCommGetUniqueId");
}

SHIM(ncclResult_t, ncclCommGrow, ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId,
	int rank, ncclComm_t *newcomm, ncclConfig_t *config)
{
	(void)comm, (void)nRanks, (void)uniqueId, (void)rank, (void)newcomm, (void)config;
	return shim_refuse("ncclCommGrow");
}

/* ---- Ending ---------------------------------------------------------------------------------- */

static ncclResult_t comm_end(ncclComm_t comm, symcclResult_t (*end)(symcclComm_t))
{
	symcclResult_t e;

	if (comm == NULL)
		return ncclSuccess;
	if (comm->magic != SHIM_COMM_MAGIC)
		return shim_fail(ncclInvalidArgument,
			"comm %p is no communicator of this library, or one that was destroyed",
			(void *)comm);
	orphans_end();
	if (comm->c == NULL) {
		comm->magic = 0;
		orphan_add(comm);
		return shim_result(symcclSuccess);
	}
	e = end(comm->c);
	if (e != symcclSuccess && e != symcclInProgress)
		return shim_result(e);
	shim_windows_free(comm);
	comm->magic = 0;
	free(comm);
	return shim_result(e);
}

SHIM(ncclResult_t, ncclCommDestroy, ncclComm_t comm)
{
	return comm_end(comm, symcclCommDestroy);
}

SHIM(ncclResult_t, ncclCommAbort, ncclComm_t comm)
{
	return comm_end(comm, symcclCommAbort);
}

SHIM(ncclResult_t, ncclCommFinalize, ncclComm_t comm)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclCommFinalize(c));
}

SHIM(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int revokeFlags)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclCommRevoke(c, revokeFlags));
}

SHIM(ncclResult_t, ncclCommSuspend, ncclComm_t comm, int flags)
{
	(void)comm, (void)flags;
	return shim_refuse("ncclCommSuspend");
}

SHIM(ncclResult_t, ncclCommResume, ncclComm_t comm)
{
	(void)comm;
	return shim_refuse("ncclCommResume");
}

/* ---- Asking ---------------------------------------------------------------------------------- */

SHIM(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *asyncError)
{
	symcclResult_t async;
	symcclResult_t e;

	if (asyncError == NULL)
		return shim_fail(ncclInvalidArgument, "asyncError is NULL");
	/* Not there yet: what makes it is the parent's business. */
	if (comm != NULL && comm->magic == SHIM_COMM_MAGIC && comm->c == NULL) {
		async = symcclInProgress;
		e = comm->parent ? symcclCommGetAsyncError(comm->parent, &async) : symcclSuccess;
		*asyncError = (ncclResult_t)(async == symcclSuccess ? symcclInProgress : async);
		return shim_result(e);
	}
	SHIM_COMM(comm, c);
	e = symcclCommGetAsyncError(c, &async);
	if (e == symcclSuccess)
		*asyncError = (ncclResult_t)async;
	return shim_result(e);
}

SHIM(ncclResult_t, ncclCommCount, const ncclComm_t comm, int *count)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclCommCount(c, count));
}

SHIM(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int *rank)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclCommUserRank(c, rank));
}

SHIM(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int *device)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclCommCuDevice(c, device));
}

SHIM(ncclResult_t, ncclCommMemStats, ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
	SHIM_COMM(comm, c);
	return shim_result(symcclCommMemStats(c, (symcclCommMemStat_t)stat, value));
}

/* ---- Groups ---------------------------------------------------------------------------------- */

SHIM(ncclResult_t, ncclGroupStart, void)
{
	return shim_result(symcclGroupStart());
}

SHIM(ncclResult_t, ncclGroupEnd, void)
{
	return shim_result(symcclGroupEnd());
}

SHIM(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t *simInfo)
{
	symcclSimInfo_t info = SYMCCL_SIM_INFO_INITIALIZER;
	symcclResult_t e;

	if (simInfo != NULL && (simInfo->magic != info.magic || simInfo->size < sizeof(*simInfo)))
		return shim_fail(ncclInvalidArgument,
			"simInfo was not filled with NCCL_SIM_INFO_INITIALIZER");
	e = symcclGroupSimulateEnd(&info);
	if (e == symcclSuccess && simInfo != NULL)
		simInfo->estimatedTime = info.estimatedTime;
	return shim_result(e);
}
