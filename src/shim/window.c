/* NCCL's memory, registrations and windows. */
#include <stdlib.h>
#include "shim/shim.h"

#define WINDOW_MAGIC 0x73796d6e63636c32ull
#define BUFFER_MAGIC 0x73796d6e63636c33ull

SHIM(ncclResult_t, ncclMemAlloc, void **ptr, size_t size)
{
	return shim_result(symcclMemAllocOn(ptr, size, shim_device()));
}

SHIM(ncclResult_t, ncclMemFree, void *ptr)
{
	return shim_result(symcclMemFree(ptr));
}

/* ---- Local registration ------------------------------------------------------------------------
 * A hint that NCCL may use a buffer directly. Ranks give it each by itself, so nothing can be
 * mapped at the peers for it; buffers take the path of those without a window. */

struct buffer {
	uint64_t magic;
};

SHIM(ncclResult_t, ncclCommRegister, const ncclComm_t comm, void *buff, size_t size, void **handle)
{
	struct buffer *b;

	SHIM_COMM(comm, c);
	(void)c;
	if (handle == NULL || buff == NULL || size == 0)
		return shim_fail(ncclInvalidArgument, "%s",
			handle == NULL ? "handle is NULL"
			: buff == NULL ? "buff is NULL"
				       : "size is 0");
	b = malloc(sizeof(*b));
	if (b == NULL)
		return shim_fail(ncclSystemError, "out of memory for a registration");
	b->magic = BUFFER_MAGIC;
	*handle = b;
	return ncclSuccess;
}

SHIM(ncclResult_t, ncclCommDeregister, const ncclComm_t comm, void *handle)
{
	struct buffer *b = handle;

	SHIM_COMM(comm, c);
	(void)c;
	if (b == NULL)
		return ncclSuccess;
	if (b->magic != BUFFER_MAGIC)
		return shim_fail(ncclInvalidArgument,
			"handle %p was not given by ncclCommRegister (a window goes back by "
			"ncclCommWindowDeregister)",
			handle);
	b->magic = 0;
	free(b);
	return ncclSuccess;
}

/* ---- Windows --------------------------------------------------------------------------------- */

/* NULL: *e says why not. */
static struct shim_window *window_of(ncclWindow_t win, ncclResult_t *e)
{
	struct shim_window *w = (struct shim_window *)win;

	if (w == NULL || w->magic != WINDOW_MAGIC) {
		*e = shim_fail(
			ncclInvalidArgument, "window %p is none of this library's", (void *)win);
		return NULL;
	}
	if (w->w == NULL) {
		*e = shim_fail(ncclInvalidUsage,
			"window %p is not registered yet: end its group, or wait for the "
			"non-blocking call",
			(void *)win);
		return NULL;
	}
	return w;
}

SHIM(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void *buff, size_t size,
	ncclWindow_t *win, int winFlags)
{
	struct shim_window *w;
	symcclResult_t e;

	SHIM_COMM(comm, c);
	if (win == NULL)
		return shim_fail(ncclInvalidArgument, "win is NULL");
	w = calloc(1, sizeof(*w));
	if (w == NULL)
		return shim_fail(ncclSystemError, "out of memory for a window");
	/* Stores to one peer are in order here, as NCCL_WIN_STRICT_ORDERING asks. */
	e = symcclCommWindowRegister(c, buff, size, &w->w, winFlags & ~NCCL_WIN_STRICT_ORDERING);
	if (e != symcclSuccess && e != symcclInProgress) {
		free(w);
		return shim_result(e);
	}
	w->magic = WINDOW_MAGIC;
	w->comm = comm;
	w->next = comm->windows;
	comm->windows = w;
	*win = (ncclWindow_t)w;
	return shim_result(e);
}

static void window_forget(struct shim_window *w)
{
	struct shim_window **p = &w->comm->windows;

	while (*p != w)
		p = &(*p)->next;
	*p = w->next;
	w->magic = 0;
	free(w);
}

void shim_windows_free(struct ncclComm *comm)
{
	while (comm->windows != NULL)
		window_forget(comm->windows);
}

SHIM(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t win)
{
	struct shim_window *w;
	symcclResult_t e;
	ncclResult_t n;

	SHIM_COMM(comm, c);
	if (win == NULL)
		return ncclSuccess;
	w = window_of(win, &n);
	if (w == NULL)
		return n;
	if (w->comm != comm)
		return shim_fail(
			ncclInvalidArgument, "window %p is another communicator's", (void *)win);
	e = symcclCommWindowDeregister(c, w->w);
	if (e == symcclSuccess)
		window_forget(w);
	return shim_result(e);
}

SHIM(ncclResult_t, ncclWinGetUserPtr, ncclComm_t comm, ncclWindow_t win, void **outUserPtr)
{
	struct shim_window *w;
	ncclResult_t n;

	SHIM_COMM(comm, c);
	w = window_of(win, &n);
	return w == NULL ? n : shim_result(symcclWinGetUserPtr(c, w->w, outUserPtr));
}

SHIM(ncclResult_t, ncclPutSignal, const void *localbuff, size_t count, ncclDataType_t datatype,
	int peer, ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
	unsigned int flags, ncclComm_t comm, cudaStream_t stream)
{
	struct shim_window *w;
	ncclResult_t n;

	SHIM_COMM(comm, c);
	w = window_of(peerWin, &n);
	if (w == NULL)
		return n;
	return shim_result(symcclPutSignal(localbuff, count, (symcclDataType_t)datatype, peer, w->w,
		peerWinOffset, sigIdx, ctx, flags, c, (symcclStream_t)stream));
}

/* One host is one LSA team, so both kinds of peer are the same. */
SHIM(ncclResult_t, ncclGetPeerDevicePointer, ncclWindow_t window, size_t offset, int peer,
	void **outPtr)
{
	ncclResult_t n;
	struct shim_window *w = window_of(window, &n);

	if (w == NULL)
		return n;
	return shim_result(symcclWinGetPeerPtr(w->comm->c, w->w, peer, offset, outPtr));
}

SHIM(ncclResult_t, ncclGetLsaDevicePointer, ncclWindow_t window, size_t offset, int lsaRank,
	void **outPtr)
{
	return pncclGetPeerDevicePointer(window, offset, lsaRank, outPtr);
}
