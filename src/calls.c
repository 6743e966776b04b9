/* The entry points of everything that moves data: arguments to a struct coll_call. */
#include <stdlib.h>
#include <string.h>
#include "comm.h"
#include "hub.h"
#include "util.h"

/* ---- The same call on all ranks ------------------------------------------------------------ */

static symcclResult_t anew(symcclFunc_t func, const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, symcclRedOp_t op, int root, symcclComm_t comm,
	symcclStream_t stream)
{
	struct coll_call c = {.func = func,
		.send.ptr = (void *)sendbuff,
		.recv.ptr = recvbuff,
		.count = count,
		.type = datatype,
		.root = root};

	TRY(comm_check_handle(comm));
	if (coll_reduces(func))
		TRY(comm_error(comm, redop_resolve(comm, op, &c)));
	return comm_call(comm, &c, stream);
}

/* Most calls on the host are like one before, and small ones take no longer than all the checks
 * would: these run what is remembered. Where the root's buffer alone counts, that of another rank
 * is left out. */
__attribute__((always_inline)) static inline symcclResult_t collective(symcclFunc_t func,
	const void *sendbuff, void *recvbuff, size_t count, symcclDataType_t datatype,
	symcclRedOp_t op, int root, symcclComm_t comm, symcclStream_t stream)
{
	if (!comm_is_mine(comm))
		return anew(func, sendbuff, recvbuff, count, datatype, op, root, comm, stream);
	if ((func == symcclFuncBroadcast || func == symcclFuncScatter) && root != comm->rank)
		sendbuff = NULL;
	if ((func == symcclFuncReduce || func == symcclFuncGather) && root != comm->rank)
		recvbuff = NULL;
	if (comm_is_quick(comm, stream)) {
		const struct plan_memo *m = comm_memo(comm, sendbuff, recvbuff, count);

		if (comm_remembers(comm, m, func, sendbuff, recvbuff, count, datatype, op, root))
			return comm_run_again(comm, &m->call, &m->plan);
	}
	return anew(func, sendbuff, recvbuff, count, datatype, op, root, comm, stream);
}

symcclResult_t symcclBarrier(symcclComm_t comm, symcclStream_t stream)
{
	return collective(
		symcclFuncBarrier, NULL, NULL, 0, (symcclDataType_t)0, symcclSum, 0, comm, stream);
}

symcclResult_t symcclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
	symcclDataType_t datatype, symcclComm_t comm, symcclStream_t stream)
{
	return collective(symcclFuncAllGather, sendbuff, recvbuff, sendcount, datatype, symcclSum,
		0, comm, stream);
}

symcclResult_t symcclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, symcclComm_t comm, symcclStream_t stream)
{
	return collective(symcclFuncAlltoAll, sendbuff, recvbuff, count, datatype, symcclSum, 0,
		comm, stream);
}

symcclResult_t symcclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, symcclRedOp_t op, symcclComm_t comm, symcclStream_t stream)
{
	return collective(
		symcclFuncAllReduce, sendbuff, recvbuff, count, datatype, op, 0, comm, stream);
}

symcclResult_t symcclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
	symcclDataType_t datatype, symcclRedOp_t op, symcclComm_t comm, symcclStream_t stream)
{
	return collective(symcclFuncReduceScatter, sendbuff, recvbuff, recvcount, datatype, op, 0,
		comm, stream);
}

symcclResult_t symcclReduce(const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, symcclRedOp_t op, int root, symcclComm_t comm,
	symcclStream_t stream)
{
	return collective(
		symcclFuncReduce, sendbuff, recvbuff, count, datatype, op, root, comm, stream);
}

symcclResult_t symcclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, int root, symcclComm_t comm, symcclStream_t stream)
{
	return collective(symcclFuncBroadcast, sendbuff, recvbuff, count, datatype, symcclSum, root,
		comm, stream);
}

symcclResult_t symcclBcast(void *buff, size_t count, symcclDataType_t datatype, int root,
	symcclComm_t comm, symcclStream_t stream)
{
	return symcclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

symcclResult_t symcclGather(const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, int root, symcclComm_t comm, symcclStream_t stream)
{
	return collective(symcclFuncGather, sendbuff, recvbuff, count, datatype, symcclSum, root,
		comm, stream);
}

symcclResult_t symcclScatter(const void *sendbuff, void *recvbuff, size_t count,
	symcclDataType_t datatype, int root, symcclComm_t comm, symcclStream_t stream)
{
	return collective(symcclFuncScatter, sendbuff, recvbuff, count, datatype, symcclSum, root,
		comm, stream);
}

/* ---- Calls that name their peers ----------------------------------------------------------- */

static symcclResult_t check_peer(symcclComm_t comm, int peer)
{
	if (peer < 0 || peer >= comm->nranks)
		return fail(
			symcclInvalidArgument, "peer is %d, not in 0..%d", peer, comm->nranks - 1);
	return symcclSuccess;
}

/* Bytes of count elements at p. */
static symcclResult_t message_bytes(
	const char *name, const void *p, size_t count, symcclDataType_t type, size_t *bytes)
{
	size_t size = coll_type_size(type);

	if (size == 0)
		return fail(
			symcclInvalidArgument, "datatype is %d, not a symcclDataType_t", (int)type);
	if (count > ((size_t)1 << 47) / size)
		return fail(symcclInvalidArgument,
			"count is %zu: that many elements of %zu bytes are beyond any memory",
			count, size);
	if (p == NULL && count > 0)
		return fail(symcclInvalidArgument, "%s is NULL, but count is %zu", name, count);
	*bytes = count * size;
	return symcclSuccess;
}

static symcclResult_t message(struct coll_xfer *x, const char *name, const void *p, size_t count,
	symcclDataType_t type, int peer, symcclStream_t stream)
{
	*x = (struct coll_xfer){
		.peer = peer, .recv = name[0] == 'r', .buf.ptr = (void *)p, .stream = stream};
	return message_bytes(name, p, count, type, &x->bytes);
}

static symcclResult_t send_or_recv(const char *name, const void *p, size_t count,
	symcclDataType_t type, int peer, symcclComm_t comm, symcclStream_t stream)
{
	struct coll_xfer x;

	TRY(comm_check_handle(comm));
	TRY(comm_error(comm, check_peer(comm, peer)));
	TRY(comm_error(comm, message(&x, name, p, count, type, peer, stream)));
	if (group_open())
		return group_add_message(comm, &x, type);
	if (peer == comm->rank)
		return comm_error(comm, fail(symcclInvalidUsage,
						"rank %d would wait for itself: put the send and "
						"the receive into one group",
						peer));
	return comm_run_messages(comm, &x, 1, type, stream);
}

symcclResult_t symcclSend(const void *sendbuff, size_t count, symcclDataType_t datatype, int peer,
	symcclComm_t comm, symcclStream_t stream)
{
	return send_or_recv("sendbuff", sendbuff, count, datatype, peer, comm, stream);
}

symcclResult_t symcclRecv(void *recvbuff, size_t count, symcclDataType_t datatype, int peer,
	symcclComm_t comm, symcclStream_t stream)
{
	return send_or_recv("recvbuff", recvbuff, count, datatype, peer, comm, stream);
}

symcclResult_t symcclAlltoAllv(const void *sendbuff, const size_t sendcounts[],
	const size_t sdispls[], void *recvbuff, const size_t recvcounts[], const size_t rdispls[],
	symcclDataType_t datatype, symcclComm_t comm, symcclStream_t stream)
{
	struct coll_call c = {.func = symcclFuncAlltoAllv, .type = datatype};
	size_t size = coll_type_size(datatype);

	TRY(comm_check_handle(comm));
	if (sendcounts == NULL || sdispls == NULL || recvcounts == NULL || rdispls == NULL)
		return comm_error(comm, fail(symcclInvalidArgument, "%s is NULL",
						sendcounts == NULL   ? "sendcounts"
						: sdispls == NULL    ? "sdispls"
						: recvcounts == NULL ? "recvcounts"
								     : "rdispls"));
	c.xfer = calloc(2 * (size_t)comm->nranks, sizeof(*c.xfer));
	if (c.xfer == NULL)
		return comm_error(comm, fail(symcclSystemError, "out of memory for a call"));
	/* Each rank begins with another peer, so that nobody is everybody's first. */
	for (int k = 0; k < comm->nranks; k++) {
		int to = (comm->rank + k) % comm->nranks;
		int from = (comm->rank + comm->nranks - k) % comm->nranks;
		const char *out = sendbuff, *in = recvbuff;
		symcclResult_t e;

		e = message(&c.xfer[c.nxfers++], "sendbuff", out ? out + sdispls[to] * size : NULL,
			sendcounts[to], datatype, to, stream);
		if (e == symcclSuccess)
			e = message(&c.xfer[c.nxfers++], "recvbuff",
				in ? in + rdispls[from] * size : NULL, recvcounts[from], datatype,
				from, stream);
		if (e != symcclSuccess) {
			comm_call_free(&c);
			return comm_error(comm, e);
		}
	}
	if (sendcounts[comm->rank] != recvcounts[comm->rank]) {
		comm_call_free(&c);
		return comm_error(
			comm, fail(symcclInvalidArgument,
				      "rank %d sends itself %zu elements but expects %zu",
				      comm->rank, sendcounts[comm->rank], recvcounts[comm->rank]));
	}
	return comm_call(comm, &c, stream);
}

/* ---- One-sided ------------------------------------------------------------------------------ */

static symcclResult_t check_signal(
	symcclComm_t comm, int peer, int sigIdx, int ctx, unsigned int flags)
{
	TRY(check_peer(comm, peer));
	if (sigIdx < 0 || sigIdx >= SYMCCL_SIGNALS)
		return fail(symcclInvalidArgument, "sigIdx is %d, not in 0..%d", sigIdx,
			SYMCCL_SIGNALS - 1);
	if (ctx != 0 || flags != 0)
		return fail(symcclInvalidArgument, "%s is %d: it must be 0", ctx ? "ctx" : "flags",
			ctx ? ctx : (int)flags);
	return symcclSuccess;
}

symcclResult_t symcclPutSignal(const void *localbuff, size_t count, symcclDataType_t datatype,
	int peer, symcclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
	unsigned int flags, symcclComm_t comm, symcclStream_t stream)
{
	struct coll_call c = {.func = symcclFuncPutSignal,
		.send.ptr = (void *)localbuff,
		.count = count,
		.type = datatype,
		.root = peer,
		.signal = sigIdx};
	size_t bytes, size;

	TRY(comm_check_handle(comm));
	TRY(comm_error(comm, check_signal(comm, peer, sigIdx, ctx, flags)));
	TRY(comm_error(comm, message_bytes("localbuff", localbuff, count, datatype, &bytes)));
	TRY(symcclWinGetSize(comm, peerWin, peer, &size));
	if (peerWinOffset > size || bytes > size - peerWinOffset)
		return comm_error(comm,
			fail(symcclInvalidArgument,
				"peerWinOffset is %zu: %zu bytes from there do not fit rank %d's "
				"window of %zu",
				peerWinOffset, bytes, peer, size));
	if (bytes > 0)
		TRY(symcclWinGetPeerPtr(comm, peerWin, peer, peerWinOffset, &c.recv.ptr));
	return comm_call(comm, &c, stream);
}

symcclResult_t symcclSignal(
	int peer, int sigIdx, int ctx, unsigned int flags, symcclComm_t comm, symcclStream_t stream)
{
	struct coll_call c = {.func = symcclFuncSignal, .root = peer, .signal = sigIdx};

	TRY(comm_check_handle(comm));
	TRY(comm_error(comm, check_signal(comm, peer, sigIdx, ctx, flags)));
	return comm_call(comm, &c, stream);
}

symcclResult_t symcclWaitSignal(int nDesc, const symcclWaitSignalDesc_t *signalDescs,
	symcclComm_t comm, symcclStream_t stream)
{
	struct coll_call c = {.func = symcclFuncWaitSignal, .nwaits = nDesc};
	symcclWaitSignalDesc_t *copy;

	TRY(comm_check_handle(comm));
	if (nDesc < 0 || (nDesc > 0 && signalDescs == NULL))
		return comm_error(comm,
			fail(symcclInvalidArgument, "%s is %s", nDesc < 0 ? "nDesc" : "signalDescs",
				nDesc < 0 ? "below 0" : "NULL"));
	for (int i = 0; i < nDesc; i++) {
		const symcclWaitSignalDesc_t *d = &signalDescs[i];

		TRY(comm_error(comm, check_signal(comm, d->peer, d->sigIdx, d->ctx, 0)));
		if (d->opCnt < 0)
			return comm_error(
				comm, fail(symcclInvalidArgument,
					      "signalDescs[%d].opCnt is %d, below 0", i, d->opCnt));
	}
	copy = malloc((size_t)MAX(nDesc, 1) * sizeof(*copy));
	if (copy == NULL)
		return comm_error(comm, fail(symcclSystemError, "out of memory for a call"));
	if (nDesc > 0)
		memcpy(copy, signalDescs, (size_t)nDesc * sizeof(*copy));
	c.wait = copy;
	return comm_call(comm, &c, stream);
}
