#define _GNU_SOURCE
#include <errno.h>
#include <sys/uio.h>
#include "coll/host/copy.h"
#include "coll/host/peer_read.h"
#include "device/port.h"
#include "util.h"

#define PIECE ((size_t)4 << 20) /* between two looks at the abort word */

/* errno says why bytes could not be moved between this rank's buffer and the peer's. */
static symcclResult_t refused(const struct coll_team *t, int peer, int write)
{
	const char *what = write ? "write" : "read";

	switch (errno) {
	case ESRCH:
		return fail(symcclRemoteError, "rank %d (pid %d) died in the middle of a call",
			peer, (int)t->pid[peer]);
	case EFAULT:
		return fail(symcclRemoteError,
			"rank %d cannot %s rank %d's buffer: one of the two is not memory that may "
			"be read or written",
			t->rank, what, peer);
	case EPERM:
		return fail(symcclRemoteError,
			"rank %d may not %s rank %d's memory any more (pid %d; was allowed when "
			"the "
			"communicator was made: a change of user?)",
			t->rank, what, peer, (int)t->pid[peer]);
	default:
		return fail(symcclRemoteError, "rank %d cannot %s rank %d's buffer: %m", t->rank,
			what, peer);
	}
}

/* Between own memory and a process's. */
static symcclResult_t move(
	const struct coll_team *t, int peer, char *own, char *other, size_t n, int write)
{
	for (size_t at = 0; at < n;) {
		struct iovec here = {own + at, MIN(PIECE, n - at)};
		struct iovec there = {other + at, here.iov_len};
		ssize_t got = write ? process_vm_writev(t->pid[peer], &here, 1, &there, 1, 0)
				    : process_vm_readv(t->pid[peer], &here, 1, &there, 1, 0);

		if (load_relaxed32(t->wait.abort))
			return symcclRemoteError;
		if (got > 0)
			at += (size_t)got;
		else if (errno != EINTR)
			return refused(t, peer, write);
	}
	return symcclSuccess;
}

symcclResult_t peer_read(
	const struct coll_team *t, int peer, void *dst, const void *src, size_t n, int stream)
{
	if (t->pid[peer] != 0)
		return move(t, peer, dst, (char *)src, n, 0);
	(stream ? copy_stream : copy_plain)(dst, src, n);
	return symcclSuccess;
}

symcclResult_t peer_write(const struct coll_team *t, int peer, void *dst, const void *src, size_t n)
{
	if (t->pid[peer] != 0)
		return move(t, peer, (char *)src, dst, n, 1);
	copy_plain(dst, src, n);
	return symcclSuccess;
}
