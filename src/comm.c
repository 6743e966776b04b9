/* Communicators: making, asking, ending. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "async.h"
#include "comm_gpu.h"
#include "exec.h"
#include "host_stream.h"
#include "hub.h"
#include "log.h"
#include "params.h"
#include "util.h"

#define NRANKS_MAX 65536

/* ---- Checks ------------------------------------------------------------------------------- */

static symcclResult_t bad_handle(symcclComm_t comm)
{
	if (comm == NULL)
		return fail(symcclInvalidArgument, "comm is NULL");
	if (comm->magic != COMM_MAGIC)
		return fail(symcclInvalidArgument,
			"comm %p is no communicator, or one that was destroyed", (void *)comm);
	return fail(symcclInvalidUsage,
		"rank %d's communicator was made before fork(): the child process must make its "
		"own",
		comm->rank);
}

symcclResult_t comm_check_handle(symcclComm_t comm)
{
	symcclResult_t e;

	if (comm_is_mine(comm))
		return symcclSuccess;
	e = bad_handle(comm);
	if (group_open())
		group_note(e);
	return e;
}

symcclResult_t comm_gate(symcclComm_t comm)
{
	switch (__atomic_load_n(&comm->gate, __ATOMIC_ACQUIRE)) {
	case GATE_FINALIZED:
		return fail(symcclInvalidUsage,
			"rank %d has called symcclCommFinalize: only symcclCommDestroy and "
			"symcclCommAbort may follow",
			comm->rank);
	case GATE_BUSY:
		return fail(symcclInvalidUsage,
			"rank %d's last call on this communicator is in progress: wait until "
			"symcclCommGetAsyncError does not say symcclInProgress",
			comm->rank);
	default:
		return symcclSuccess;
	}
}

symcclResult_t comm_check(symcclComm_t comm)
{
	symcclResult_t e;

	TRY(comm_check_handle(comm));
	e = hub_status(comm->hub);
	return comm_error(comm, e == symcclSuccess ? comm_gate(comm) : e);
}

void comm_hold(symcclComm_t comm)
{
	__atomic_add_fetch(&comm->held, 1, __ATOMIC_SEQ_CST);
}

void comm_release(symcclComm_t comm)
{
	__atomic_sub_fetch(&comm->held, 1, __ATOMIC_RELEASE);
}

symcclResult_t comm_error(symcclComm_t comm, symcclResult_t code)
{
	if (__builtin_expect(code == symcclSuccess, 1))
		return code;
	group_note(code);
	pthread_mutex_lock(&comm->hub->lock);
	comm->last.code = code;
	snprintf(comm->last.text, sizeof(comm->last.text), "%s", error_text());
	pthread_mutex_unlock(&comm->hub->lock);
	return code;
}

/* ---- Joining ------------------------------------------------------------------------------- */

static symcclResult_t ctas_check(const char *name, int n)
{
	if (n != SYMCCL_UNDEF_INT && (n < 1 || n > 64))
		return fail(symcclInvalidArgument, "config.%s is %d, not in 1..64", name, n);
	return symcclSuccess;
}

symcclResult_t comm_config_read(const symcclConfig_t *in, symcclConfig_t *out, char name[64])
{
	symcclConfig_t c = SYMCCL_CONFIG_INITIALIZER;

	name[0] = '\0';
	if (in == NULL)
		return symcclSuccess;
	if (in->magic != SYMCCL_CONFIG_MAGIC || in->size < offsetof(symcclConfig_t, minCTAs))
		return fail(symcclInvalidArgument,
			"config was not filled with SYMCCL_CONFIG_INITIALIZER");
	memcpy(&c, in, MIN(in->size, sizeof(c)));
	if (c.blocking != SYMCCL_UNDEF_INT && c.blocking != 0 && c.blocking != 1)
		return fail(symcclInvalidArgument, "config.blocking is %d, not 0 or 1", c.blocking);
	TRY(ctas_check("minCTAs", c.minCTAs));
	TRY(ctas_check("maxCTAs", c.maxCTAs));
	if (c.device < symcclDeviceAuto || c.device > symcclDeviceCuda)
		return fail(symcclInvalidArgument, "config.device is %d, not a symcclDeviceType_t",
			(int)c.device);
	if (c.commName != NULL)
		snprintf(name, 64, "%s", c.commName);
	if (c.blocking != SYMCCL_UNDEF_INT)
		out->blocking = c.blocking;
	if (c.minCTAs != SYMCCL_UNDEF_INT)
		out->minCTAs = c.minCTAs;
	if (c.maxCTAs != SYMCCL_UNDEF_INT)
		out->maxCTAs = c.maxCTAs;
	if (c.device != symcclDeviceAuto)
		out->device = c.device;
	if (out->minCTAs != SYMCCL_UNDEF_INT && out->maxCTAs != SYMCCL_UNDEF_INT &&
		out->minCTAs > out->maxCTAs)
		return fail(symcclInvalidArgument,
			"config.minCTAs is %d, more than config.maxCTAs, %d", out->minCTAs,
			out->maxCTAs);
	return symcclSuccess;
}

symcclResult_t comm_join_begin(struct join_task *t)
{
	symcclComm_t c;
	symcclResult_t e;

	t->comm = NULL;
	c = calloc(1, sizeof(*c));
	if (c == NULL)
		return fail(symcclSystemError, "out of memory for a communicator");
	c->magic = COMM_MAGIC;
	c->rank = t->rank;
	c->nranks = t->nranks;
	c->config = (uint32_t)t->mem->type;
	c->device = t->device;
	c->conf = t->config;
	memcpy(c->name, t->name, sizeof(c->name));
	pthread_cond_init(&c->cond, NULL);
	if (sched_getaffinity(0, sizeof(c->cpus), &c->cpus) != 0)
		for (int i = 0; i < CPU_SETSIZE && i < sysconf(_SC_NPROCESSORS_ONLN); i++)
			CPU_SET(i, &c->cpus);
	e = hub_join(&t->id, c, t->mem);
	if (e != symcclSuccess) {
		comm_free(c);
		return e;
	}
	c->fork_gen = fork_generation();
	t->comm = c;
	return symcclSuccess;
}

symcclResult_t comm_join_finish(
	struct join_task *t, symcclResult_t (*watch)(void *arg), void *arg, symcclComm_t *comm)
{
	TRY(hub_wait_ready(t->comm, watch, arg));
	log_info(LOG_INIT, "rank %d of %d is up%s%s", t->rank, t->nranks,
		t->comm->name[0] ? ": " : "", t->comm->name);
	*comm = t->comm;
	return symcclSuccess;
}

static symcclResult_t join_prepare(struct join_task *t, const symcclConfig_t *config)
{
	if (t->out == NULL)
		return fail(symcclInvalidArgument, "comm is NULL: nowhere to put the communicator");
	if (t->nranks < 1 || t->nranks > NRANKS_MAX)
		return fail(
			symcclInvalidArgument, "nranks is %d, not in 1..%d", t->nranks, NRANKS_MAX);
	if (t->rank < 0 || t->rank >= t->nranks)
		return fail(
			symcclInvalidArgument, "rank is %d, not in 0..%d", t->rank, t->nranks - 1);
	TRY(boot_id_check(&t->id));
	TRY(comm_config_read(config, &t->config, t->name));
	TRY(mem_select(t->config.device, &t->mem));
	t->device = t->mem->device();
	return symcclSuccess;
}

/* There is no communicator yet that could keep the error. */
static symcclResult_t join_refused(symcclResult_t e)
{
	group_note(e);
	return e;
}

static const symcclConfig_t config_default = SYMCCL_CONFIG_INITIALIZER;

symcclResult_t symcclCommInitRankConfig(
	symcclComm_t *comm, int nranks, symcclUniqueId id, int rank, const symcclConfig_t *config)
{
	struct join_task t = {
		.out = comm, .nranks = nranks, .rank = rank, .id = id, .config = config_default};

	TRY(join_refused(join_prepare(&t, config)));
	if (group_open())
		return group_add_join(&t);
	TRY(comm_join_begin(&t));
	if (!comm_is_async(t.comm))
		return comm_join_finish(&t, NULL, NULL, comm);
	async_join(t.comm);
	*comm = t.comm;
	return symcclInProgress;
}

symcclResult_t symcclCommInitRank(symcclComm_t *comm, int nranks, symcclUniqueId id, int rank)
{
	return symcclCommInitRankConfig(comm, nranks, id, rank, NULL);
}

symcclResult_t symcclCommInitRankScalable(symcclComm_t *comm, int nranks, int myrank, int nId,
	symcclUniqueId *commIds, const symcclConfig_t *config)
{
	if (commIds == NULL)
		return join_refused(fail(symcclInvalidArgument, "commIds is NULL"));
	if (nId < 1 || nId > nranks)
		return join_refused(
			fail(symcclInvalidArgument, "nId is %d, not in 1..%d", nId, nranks));
	for (int i = 0; i < nId; i++)
		TRY(join_refused(boot_id_check(&commIds[i])));
	/* The first one's root serves all; where the others' are, they are not needed. */
	for (int i = 1; i < nId; i++)
		if (memcmp(&commIds[i], &commIds[0], sizeof(commIds[0])) != 0)
			boot_id_drop(&commIds[i]);
	return symcclCommInitRankConfig(comm, nranks, commIds[0], myrank, config);
}

/* All of one process: they join as a group would let them. */
static symcclResult_t init_all(struct join_task *t, int n)
{
	symcclResult_t e = symcclSuccess;
	char text[ERROR_TEXT_MAX] = "";
	int begun = 0;

	while (begun < n && e == symcclSuccess) {
		e = comm_join_begin(&t[begun]);
		begun += e == symcclSuccess;
	}
	for (int i = 0; i < begun; i++) {
		symcclComm_t made = NULL;
		symcclResult_t f = symcclSuccess;

		if (e == symcclSuccess)
			f = comm_join_finish(&t[i], NULL, NULL, &made);
		else
			hub_leave(t[i].comm);
		t[i].comm = made;
		e = e == symcclSuccess ? f : e;
		if (e != symcclSuccess && text[0] == '\0')
			snprintf(text, sizeof(text), "%s", error_text());
	}
	for (int i = 0; i < begun && e != symcclSuccess; i++)
		symcclCommAbort(t[i].comm);
	return e == symcclSuccess ? e : fail_quiet(e, "%s", text[0] ? text : error_text());
}

symcclResult_t symcclCommInitAll(symcclComm_t *comms, int ndev, const int *devlist)
{
	struct join_task *t;
	const struct mem_ops *mem;
	symcclUniqueId id;
	symcclResult_t e;

	if (comms == NULL)
		return fail(symcclInvalidArgument, "comms is NULL: nowhere to put communicators");
	if (ndev < 1 || ndev > NRANKS_MAX)
		return fail(symcclInvalidArgument, "ndev is %d, not in 1..%d", ndev, NRANKS_MAX);
	if (group_open())
		return fail(symcclInvalidUsage, "symcclCommInitAll inside a group");
	TRY(mem_select(symcclDeviceAuto, &mem));
	if (mem->type == symcclDeviceHost && devlist != NULL)
		return fail(symcclInvalidArgument, "devlist is not NULL, but there are no devices "
						   "on the host backend");
	t = calloc((size_t)ndev, sizeof(*t));
	if (t == NULL)
		return fail(symcclSystemError, "out of memory for %d communicators", ndev);
	e = symcclGetUniqueId(&id);
	for (int i = 0; e == symcclSuccess && i < ndev; i++)
		t[i] = (struct join_task){.nranks = ndev,
			.rank = i,
			.id = id,
			.config = config_default,
			.mem = mem,
			.device = mem->type == symcclDeviceHost ? -1
				  : devlist                     ? devlist[i]
								: i};
	if (e == symcclSuccess) {
		e = init_all(t, ndev);
		if (e != symcclSuccess)
			boot_id_drop(&id);
	}
	for (int i = 0; e == symcclSuccess && i < ndev; i++)
		comms[i] = t[i].comm;
	free(t);
	return e;
}

/* ---- Ending -------------------------------------------------------------------------------- */

void comm_free(symcclComm_t c)
{
	comm_windows_free(c);
	free(c->parts);
	free(c->redops);
	free(c->first);
	pthread_cond_destroy(&c->cond);
	c->magic = 0;
	free(c);
}

symcclResult_t comm_flush(symcclComm_t comm)
{
	if (comm->gpu != NULL)
		return comm_gpu_flush(comm);
	host_stream_drain(comm);
	return hub_status(comm->hub);
}

void comm_finalized(symcclComm_t comm)
{
	if (comm->ready && comm->gpu == NULL)
		coll_goodbye(&comm->team);
	comm->ready = 0;
	__atomic_store_n(&comm->gate, GATE_FINALIZED, __ATOMIC_RELEASE);
	comm_quick_set(comm);
}

static void comm_leave(symcclComm_t comm)
{
	if (hub_status(comm->hub) == symcclSuccess)
		host_stream_drain(comm);
	else
		host_stream_purge(comm);
	exec_free(comm->exec);
	comm->exec = NULL;
	if (comm->ready && comm->gpu == NULL && hub_status(comm->hub) == symcclSuccess)
		coll_goodbye(&comm->team);
	comm_gpu_close(comm);
	/* Its memory may live on with the other local ranks' until they leave, too. */
	comm->magic = 0;
	hub_leave(comm);
}

symcclResult_t symcclCommDestroy(symcclComm_t comm)
{
	if (comm == NULL)
		return symcclSuccess;
	TRY(comm_check_handle(comm));
	if (group_holds(comm))
		return fail(symcclInvalidUsage,
			"rank %d: symcclCommDestroy while the open group holds calls on it: end "
			"the group "
			"first",
			comm->rank);
	comm_leave(comm);
	return symcclSuccess;
}

/* A call either sees the failure when it enters, or is seen here as busy: the barrier stands in for
 * the fence that every call would need. Its loops look at the abort word: this is short. */
static void comm_quiet(symcclComm_t comm, int own)
{
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) != 0)
		usleep(10000);
	while (__atomic_load_n(&comm->busy, __ATOMIC_ACQUIRE) > 0 ||
		__atomic_load_n(&comm->held, __ATOMIC_ACQUIRE) > own)
		usleep(100);
	host_stream_purge(comm);
}

void comm_stop(symcclComm_t comm, int own)
{
	struct failure why = {.code = symcclRemoteError, .rank = comm->rank};

	snprintf(why.text, sizeof(why.text),
		"rank %d called symcclCommShrink to go on without others", comm->rank);
	hub_fail(comm->hub, &why);
	comm_quiet(comm, own);
}

symcclResult_t symcclCommAbort(symcclComm_t comm)
{
	struct failure why = {.code = symcclRemoteError};

	if (comm == NULL)
		return symcclSuccess;
	TRY(comm_check_handle(comm));
	group_drop(comm);
	why.rank = comm->rank;
	snprintf(why.text, sizeof(why.text), "rank %d called symcclCommAbort", comm->rank);
	__atomic_store_n(&comm->aborting, 1, __ATOMIC_RELEASE);
	hub_fail(comm->hub, &why);
	comm_quiet(comm, 0);
	comm_leave(comm);
	return symcclSuccess;
}

/* ---- Asking --------------------------------------------------------------------------------- */

symcclResult_t symcclCommGetAsyncError(symcclComm_t comm, symcclResult_t *async)
{
	TRY(comm_check_handle(comm));
	if (async == NULL)
		return fail(symcclInvalidArgument, "async is NULL");
	*async = async_state(comm);
	if (*async != symcclSuccess && *async != symcclInProgress && !group_open())
		comm_error(comm, *async);
	return symcclSuccess;
}

symcclResult_t symcclCommCount(symcclComm_t comm, int *nranks)
{
	TRY(comm_check_handle(comm));
	if (nranks == NULL)
		return fail(symcclInvalidArgument, "nranks is NULL");
	*nranks = comm->nranks;
	return symcclSuccess;
}

symcclResult_t symcclCommUserRank(symcclComm_t comm, int *rank)
{
	TRY(comm_check_handle(comm));
	if (rank == NULL)
		return fail(symcclInvalidArgument, "rank is NULL");
	*rank = comm->rank;
	return symcclSuccess;
}

symcclResult_t symcclCommDeviceType(symcclComm_t comm, symcclDeviceType_t *type)
{
	TRY(comm_check_handle(comm));
	if (type == NULL)
		return fail(symcclInvalidArgument, "type is NULL");
	*type = comm->hub->mem->type;
	return symcclSuccess;
}

symcclResult_t symcclCommCuDevice(symcclComm_t comm, int *device)
{
	TRY(comm_check_handle(comm));
	if (device == NULL)
		return fail(symcclInvalidArgument, "device is NULL");
	*device = comm->device;
	return symcclSuccess;
}

symcclResult_t symcclCommMemStats(symcclComm_t comm, symcclCommMemStat_t stat, uint64_t *value)
{
	struct hub *h;

	TRY(comm_check_handle(comm));
	if (value == NULL)
		return comm_error(comm, fail(symcclInvalidArgument, "value is NULL"));
	if ((unsigned)stat > symcclStatMemTotal)
		return comm_error(
			comm, fail(symcclInvalidArgument, "stat is %d, not a symcclCommMemStat_t",
				      (int)stat));
	h = comm->hub;
	*value = 0;
	if (stat == symcclStatMemPersist || stat == symcclStatMemTotal)
		*value = h->gpu ? hub_gpu_ctrl_bytes(h) : h->layout.size;
	return symcclSuccess;
}

const char *symcclGetLastError(symcclComm_t comm)
{
	static __thread char text[ERROR_TEXT_MAX];

	if (comm == NULL || comm->magic != COMM_MAGIC || comm->fork_gen != fork_generation())
		return error_text();
	pthread_mutex_lock(&comm->hub->lock);
	snprintf(text, sizeof(text), "%s", comm->last.text);
	pthread_mutex_unlock(&comm->hub->lock);
	return text;
}

symcclResult_t symcclGetVersion(int *version)
{
	if (version == NULL)
		return fail(symcclInvalidArgument, "version is NULL");
	*version = SYMCCL_VERSION_CODE;
	return symcclSuccess;
}
