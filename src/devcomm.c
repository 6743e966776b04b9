/* The device API's host side: resources for kernels in one symmetric window of the communicator. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include "comm_gpu.h"
#include "devcomm.h"
#include "hub.h"
#include "log.h"
#include "util.h"

#define LOOK_EVERY_HOST 64 /* turns of a CPU's waiting loop before it looks around and yields */

struct devcomm {
	struct devcomm *next; /* of the communicator's */
	symcclComm_t comm;
	void *memory;
	size_t size; /* of the window; all ranks' must be equal */
	symcclWindow_t win;
	symcclDevComm_t value;
	symcclDevComm_t *out;     /* the caller's; NULL once written */
	struct dev_record record; /* of a CPU's wait that ended; a GPU's is the communicator's */
};

/* Take over what the caller's struct has, whatever its age, and check it. */
static symcclResult_t reqs_read(
	const symcclDevCommRequirements_t *in, symcclDevCommRequirements_t *r)
{
	static const struct {
		const char *name;
		size_t at;
		int least, most;
	} field[] = {
#define FIELD(name, least, most) {#name, offsetof(symcclDevCommRequirements_t, name), least, most}
		FIELD(contexts, 1, DEVCOMM_SESSIONS_MAX),
		FIELD(sessions, 0, DEVCOMM_SESSIONS_MAX),
		FIELD(packetSlots, 0, DEVCOMM_SLOTS_MAX),
		FIELD(signals, 0, DEVCOMM_WORDS_MAX),
		FIELD(counters, 0, DEVCOMM_WORDS_MAX),
	};

	if (in == NULL || in->magic != SYMCCL_DEV_MAGIC ||
		in->size < offsetof(symcclDevCommRequirements_t, counters) + sizeof(int))
		return fail(symcclInvalidArgument,
			"reqs was not filled with SYMCCL_DEV_COMM_REQUIREMENTS_INITIALIZER");
	if (in->version != SYMCCL_DEV_ABI)
		return fail(symcclInvalidArgument,
			"reqs.version is %u: the program was compiled for another device ABI than "
			"this library's, which is %u: compile it again with its symccl_device.h",
			in->version, SYMCCL_DEV_ABI);
	memcpy(r, in, MIN(in->size, sizeof(*r)));
	for (size_t i = 0; i < ARRAY_LEN(field); i++) {
		int v = *(const int *)((const char *)r + field[i].at);

		if (v < field[i].least || v > field[i].most)
			return fail(symcclInvalidArgument, "reqs.%s is %d, not in %d..%d",
				field[i].name, v, field[i].least, field[i].most);
	}
	if ((int64_t)r->contexts * r->sessions > DEVCOMM_SESSIONS_MAX)
		return fail(symcclInvalidArgument,
			"reqs asks for %d contexts of %d sessions: more than %d sessions together",
			r->contexts, r->sessions, DEVCOMM_SESSIONS_MAX);
	return symcclSuccess;
}

static void devcomm_unlink(struct devcomm *d)
{
	struct devcomm **p = &d->comm->devcomms;

	while (*p != d)
		p = &(*p)->next;
	*p = d->next;
}

/* Window, memory and itself. */
static symcclResult_t devcomm_free(struct devcomm *d)
{
	symcclResult_t e = symcclSuccess;

	devcomm_unlink(d);
	if (d->win != NULL)
		e = symcclCommWindowDeregister(d->comm, d->win);
	if (d->memory != NULL && e == symcclSuccess)
		e = symcclMemFree(d->memory);
	free(d);
	return e;
}

static void devcomm_watch(struct devcomm *d)
{
	struct dev_watch *w = &d->value.watch;
	struct hub *h = d->comm->hub;

	if (h->gpu != NULL) {
		comm_gpu_watch(d->comm, w);
	} else {
		w->abort = (uintptr_t)h->wait.abort;
		w->record = (uintptr_t)&d->record;
		w->timeout_ns = h->wait.timeout_ns;
		w->look_every = LOOK_EVERY_HOST;
	}
}

/* Its window is registered, or is not. */
static symcclResult_t devcomm_made(void *arg, symcclResult_t e)
{
	struct devcomm *d = arg;
	symcclComm_t comm = d->comm;
	const struct window *w;

	if (e != symcclSuccess) {
		devcomm_free(d);
		return e;
	}
	w = d->win->w;
	for (int r = 0; r < comm->nranks; r++)
		if (w->size[r] != d->size) {
			devcomm_free(d);
			return comm_error(
				comm, fail(symcclInvalidUsage,
					      "rank %d called symcclDevCommCreate with other "
					      "requirements than "
					      "rank %d: they must be equal on all ranks",
					      r, comm->rank));
		}
	d->value.base = (uintptr_t)w->base + w->off[0];
	d->value.stride = w->stride;
	devcomm_watch(d);
	*d->out = d->value;
	d->out = NULL;
	log_info(LOG_INIT,
		"rank %d: device communicator: %d contexts of %d sessions of %d packets, %zu KiB",
		comm->rank, d->value.contexts, d->value.sessions, d->value.packetSlots,
		d->size >> 10);
	return symcclSuccess;
}

static symcclResult_t devcomm_new(
	symcclComm_t comm, const symcclDevCommRequirements_t *r, struct devcomm **out)
{
	struct devcomm *d = calloc(1, sizeof(*d));
	symcclResult_t e;

	if (d == NULL)
		return fail(symcclSystemError, "out of memory for a device communicator");
	/* One LSA team: there is no network layer that would make several. */
	d->value = (symcclDevComm_t){.rank = comm->rank,
		.nranks = comm->nranks,
		.lsaRank = comm->rank,
		.lsaSize = comm->nranks,
		.contexts = r->contexts,
		.sessions = r->sessions,
		.packetSlots = r->packetSlots,
		.signals = r->signals,
		.counters = r->counters,
		.host = (uintptr_t)d};
	devcomm_layout(&d->value);
	/* Sizes are exchanged: different requirements must not come to the same. */
	d->size = d->value.bytes + d->value.tag % 4096;
	e = symcclMemAllocOn(&d->memory, d->size, comm->hub->mem->type);
	if (e != symcclSuccess) {
		free(d);
		return e;
	}
	d->comm = comm;
	d->next = comm->devcomms;
	comm->devcomms = d;
	*out = d;
	return symcclSuccess;
}

static symcclResult_t devcomm_create(
	symcclComm_t comm, const symcclDevCommRequirements_t *reqs, symcclDevComm_t *devComm)
{
	symcclDevCommRequirements_t r;
	struct win_task t = {.flags = SYMCCL_WIN_COLL_SYMMETRIC, .made = devcomm_made};
	struct devcomm *d = NULL;
	struct reg_set *set;
	symcclResult_t e;

	if (devComm == NULL)
		return fail(symcclInvalidArgument,
			"devComm is NULL: nowhere to put the device communicator");
	if (comm->nranks > DEV_RANKS_MAX)
		return fail(symcclInvalidUsage, "%d ranks: device communicators have at most %d",
			comm->nranks, DEV_RANKS_MAX);
	TRY(reqs_read(reqs, &r));
	TRY(devcomm_new(comm, &r, &d));
	d->out = devComm;
	t.buff = d->memory;
	t.size = d->size;
	t.out = &d->win;
	t.arg = d;
	if (group_open()) {
		e = group_add_window(comm, &t);
		if (e != symcclSuccess)
			devcomm_free(d);
		return e;
	}
	e = comm_windows_begin(comm, &t, 1, &set);
	if (e != symcclSuccess) {
		devcomm_free(d);
		return e;
	}
	return comm_windows_finish(comm, &t, 1, set);
}

symcclResult_t symcclDevCommCreate(
	symcclComm_t comm, const symcclDevCommRequirements_t *reqs, symcclDevComm_t *devComm)
{
	symcclResult_t e;

	TRY(comm_check_handle(comm));
	comm_hold(comm);
	e = comm_check(comm);
	if (e == symcclSuccess)
		e = comm_error(comm, devcomm_create(comm, reqs, devComm));
	comm_release(comm);
	return e;
}

symcclResult_t symcclDevCommDestroy(symcclComm_t comm, const symcclDevComm_t *devComm)
{
	struct devcomm *d;

	TRY(comm_check_handle(comm));
	if (devComm == NULL)
		return symcclSuccess;
	for (d = comm->devcomms; d != NULL && (uintptr_t)d != devComm->host; d = d->next)
		;
	if (d == NULL || d->out != NULL)
		return comm_error(comm,
			fail(symcclInvalidArgument,
				"devComm is no device communicator of rank %d's communicator, or "
				"one that was destroyed",
				comm->rank));
	return comm_error(comm, devcomm_free(d));
}

/* The communicator goes, and its windows with it. */
void comm_devcomms_free(symcclComm_t comm)
{
	while (comm->devcomms != NULL) {
		struct devcomm *d = comm->devcomms;

		comm->devcomms = d->next;
		symcclMemFree(d->memory);
		free(d);
	}
}

symcclResult_t symcclWinGetDevice(symcclComm_t comm, symcclWindow_t win, symcclDevWindow_t *devWin)
{
	const struct window *w;
	size_t least, own;

	/* Checks both handles. */
	TRY(symcclWinGetSize(comm, win, comm ? comm->rank : 0, &own));
	if (devWin == NULL)
		return comm_error(comm, fail(symcclInvalidArgument, "devWin is NULL"));
	w = win->w;
	if (w->map == NULL || !w->symmetric)
		return comm_error(comm,
			fail(symcclInvalidUsage,
				"window %u cannot be used by kernels: %s; register with "
				"SYMCCL_WIN_COLL_SYMMETRIC to be told which rank",
				w->ordinal,
				w->map == NULL ? "a rank's buffer is not memory of symcclMemAlloc"
					       : "ranks' offsets in their allocations differ"));
	least = own;
	for (int r = 0; r < comm->nranks; r++)
		least = MIN(least, w->size[r]);
	*devWin = (symcclDevWindow_t){.uc = (uintptr_t)w->base + w->off[0],
		.stride = w->stride,
		.mc = (uintptr_t)w->mc,
		.size = least,
		.lsaRank = comm->rank,
		.lsaSize = comm->nranks};
	return symcclSuccess;
}
