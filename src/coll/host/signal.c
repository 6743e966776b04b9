/*
 * One-sided calls: store into a peer's window, count in the peer's control block, wait for one's
 * own counts. A signal's counter has one writer, its source, and only grows; what waits have taken
 * is counted in the own block. Counts are added with release, so whoever has seen one sees the
 * data.
 */
#include <string.h>
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "coll/host/ring.h"

HOST_KERNEL(put_signal)
{
	size_t n = c->count * coll_type_size(c->type);

	(void)hash;
	(void)cta;
	(void)nctas;
	if (c->func == symcclFuncPutSignal && n > 0)
		(n >= COPY_STREAM_FROM / 2 ? copy_stream : copy_plain)(c->recv.ptr, c->send.ptr, n);
	__atomic_fetch_add(
		&ring_answer(t, c->root, t->rank)->signals[c->signal], 1, __ATOMIC_RELEASE);
	ring_wake(t, c->root);
	return symcclSuccess;
}

static int has_come(const struct coll_team *t, int peer, const void *arg)
{
	const symcclWaitSignalDesc_t *d = arg;
	uint64_t got = load_acquire64(&ring_answer(t, t->rank, peer)->signals[d->sigIdx]);

	return got - ring_pair(t, peer)->waited[d->sigIdx] >= (uint64_t)d->opCnt;
}

HOST_KERNEL(wait_signal)
{
	(void)hash;
	(void)cta;
	(void)nctas;
	for (int i = 0; i < c->nwaits; i++) {
		const symcclWaitSignalDesc_t *d = &c->wait[i];

		if (!has_come(t, d->peer, d))
			TRY(ring_await(t, c, d->peer, has_come, d));
		ring_pair(t, d->peer)->waited[d->sigIdx] += (uint64_t)d->opCnt;
	}
	return symcclSuccess;
}
