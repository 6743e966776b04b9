#define _GNU_SOURCE
#include <errno.h>
#include <sys/uio.h>
#include "coll/host/copy.h"
#include "coll/host/peer_read.h"
#include "device/port.h"
#include "util.h"

#define PIECE ((size_t)4 << 20) /* between two looks at the abort word */

symcclResult_t peer_read(
	const struct coll_team *t, int peer, void *dst, const void *src, size_t n, int stream)
{
	if (t->pid[peer] == 0) {
		(stream ? copy_stream : copy_plain)(dst, src, n);
		return symcclSuccess;
	}
	for (size_t at = 0; at < n;) {
		struct iovec to = {(char *)dst + at, MIN(PIECE, n - at)};
		struct iovec from = {(char *)src + at, to.iov_len};
		ssize_t got = process_vm_readv(t->pid[peer], &to, 1, &from, 1, 0);

		if (load_relaxed32(t->wait.abort))
			return symcclRemoteError;
		if (got > 0)
			at += (size_t)got;
		else if (errno != EINTR)
			return fail(symcclRemoteError, "rank %d cannot read rank %d's buffer: %m",
				t->rank, peer);
	}
	return symcclSuccess;
}
