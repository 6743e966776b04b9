/* Communicators: making, asking, ending. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "comm_gpu.h"
#include "exec.h"
#include "hub.h"
#include "log.h"
#include "params.h"
#include "util.h"

#define NRANKS_MAX 65536

/* ---- Checks ------------------------------------------------------------------------------- */

symcclResult_t comm_check_handle(symcclComm_t comm)
{
	if (comm == NULL)
		return fail(symcclInvalidArgument, "comm is NULL");
	if (comm->magic != COMM_MAGIC)
		return fail(symcclInvalidArgument,
			"comm %p is no communicator, or one that was destroyed", (void *)comm);
	if (comm->fork_gen != fork_generation())
		return fail(symcclInvalidUsage,
			"rank %d's communicator was made before fork(): the child process must "
			"make its "
			"own",
			comm->rank);
	return symcclSuccess;
}

symcclResult_t comm_check(symcclComm_t comm)
{
	TRY(comm_check_handle(comm));
	return comm_error(comm, hub_status(comm->hub));
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
	pthread_mutex_lock(&comm->hub->lock);
	comm->last.code = code;
	snprintf(comm->last.text, sizeof(comm->last.text), "%s", error_text());
	pthread_mutex_unlock(&comm->hub->lock);
	return code;
}

/* ---- Joining ------------------------------------------------------------------------------- */

/* Take over what the caller's struct has, whatever its age, and check it. */
static symcclResult_t config_read(const symcclConfig_t *in, symcclConfig_t *out)
{
	symcclConfig_t c = SYMCCL_CONFIG_INITIALIZER;

	*out = c;
	if (in == NULL)
		return symcclSuccess;
	if (in->magic != SYMCCL_CONFIG_MAGIC || in->size < offsetof(symcclConfig_t, minCTAs))
		return fail(symcclInvalidArgument,
			"config was not filled with SYMCCL_CONFIG_INITIALIZER");
	memcpy(out, in, MIN(in->size, sizeof(*out)));
	out->size = sizeof(*out);
	if (out->blocking != SYMCCL_UNDEF_INT && out->blocking != 1)
		return fail(symcclInvalidArgument,
			"config.blocking is %d: only 1 (blocking) is supported", out->blocking);
	if (out->minCTAs != SYMCCL_UNDEF_INT && (out->minCTAs < 1 || out->minCTAs > 64))
		return fail(
			symcclInvalidArgument, "config.minCTAs is %d, not in 1..64", out->minCTAs);
	if (out->maxCTAs != SYMCCL_UNDEF_INT && (out->maxCTAs < 1 || out->maxCTAs > 64))
		return fail(
			symcclInvalidArgument, "config.maxCTAs is %d, not in 1..64", out->maxCTAs);
	if (out->minCTAs != SYMCCL_UNDEF_INT && out->maxCTAs != SYMCCL_UNDEF_INT &&
		out->minCTAs > out->maxCTAs)
		return fail(symcclInvalidArgument,
			"config.minCTAs is %d, more than config.maxCTAs, %d", out->minCTAs,
			out->maxCTAs);
	if (out->device < symcclDeviceAuto || out->device > symcclDeviceCuda)
		return fail(symcclInvalidArgument, "config.device is %d, not a symcclDeviceType_t",
			(int)out->device);
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
	c->min_ctas = t->config.minCTAs;
	c->max_ctas = t->config.maxCTAs;
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

symcclResult_t comm_join_finish(struct join_task *t, symcclComm_t *comm)
{
	TRY(hub_wait_ready(t->comm));
	log_info(LOG_INIT, "rank %d of %d is up%s%s", t->rank, t->nranks,
		t->comm->name[0] ? ": " : "", t->comm->name);
	*comm = t->comm;
	return symcclSuccess;
}

static symcclResult_t join_check(symcclComm_t *comm, int nranks, const symcclUniqueId *id, int rank)
{
	if (comm == NULL)
		return fail(symcclInvalidArgument, "comm is NULL: nowhere to put the communicator");
	if (nranks < 1 || nranks > NRANKS_MAX)
		return fail(
			symcclInvalidArgument, "nranks is %d, not in 1..%d", nranks, NRANKS_MAX);
	if (rank < 0 || rank >= nranks)
		return fail(symcclInvalidArgument, "rank is %d, not in 0..%d", rank, nranks - 1);
	return boot_id_check(id);
}

symcclResult_t symcclCommInitRankConfig(
	symcclComm_t *comm, int nranks, symcclUniqueId id, int rank, const symcclConfig_t *config)
{
	struct join_task t = {.out = comm, .nranks = nranks, .rank = rank, .id = id};

	TRY(join_check(comm, nranks, &id, rank));
	TRY(config_read(config, &t.config));
	TRY(mem_select(t.config.device, &t.mem));
	t.device = t.mem->device();
	snprintf(t.name, sizeof(t.name), "%s", t.config.commName ? t.config.commName : "");
	t.config.commName = NULL;
	if (group_open())
		return group_add_join(&t);
	TRY(comm_join_begin(&t));
	return comm_join_finish(&t, comm);
}

symcclResult_t symcclCommInitRank(symcclComm_t *comm, int nranks, symcclUniqueId id, int rank)
{
	return symcclCommInitRankConfig(comm, nranks, id, rank, NULL);
}

/* ---- Ending -------------------------------------------------------------------------------- */

void comm_free(symcclComm_t c)
{
	comm_windows_free(c);
	free(c->redops);
	free(c->readying);
	pthread_cond_destroy(&c->cond);
	c->magic = 0;
	free(c);
}

static void comm_leave(symcclComm_t comm)
{
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

symcclResult_t symcclCommAbort(symcclComm_t comm)
{
	struct failure why = {.code = symcclRemoteError};

	if (comm == NULL)
		return symcclSuccess;
	TRY(comm_check_handle(comm));
	group_drop(comm);
	why.rank = comm->rank;
	snprintf(why.text, sizeof(why.text), "rank %d called symcclCommAbort", comm->rank);
	hub_fail(comm->hub, &why);
	/* A call either sees the failure when it enters, or is seen here as busy: the barrier
	 * stands in for the fence that every call would need. Its loops look at the abort word:
	 * this is short. */
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) != 0)
		usleep(10000);
	while (__atomic_load_n(&comm->busy, __ATOMIC_ACQUIRE) > 0 ||
		__atomic_load_n(&comm->held, __ATOMIC_ACQUIRE) > 0)
		usleep(100);
	comm_leave(comm);
	return symcclSuccess;
}

/* ---- Asking --------------------------------------------------------------------------------- */

symcclResult_t symcclCommGetAsyncError(symcclComm_t comm, symcclResult_t *async)
{
	TRY(comm_check_handle(comm));
	if (async == NULL)
		return fail(symcclInvalidArgument, "async is NULL");
	*async = comm_error(comm, hub_status(comm->hub));
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
