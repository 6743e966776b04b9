/* The host kernels: one function per row of the algorithm table (coll/algo.c). */
#ifndef HOST_KERNELS_H
#define HOST_KERNELS_H

#include "coll/coll.h"
#include "coll/host/reduce.h"

#define HOST_KERNEL(name) \
	symcclResult_t name(const struct coll_team *t, const struct coll_call *c, uint32_t hash, \
		int cta, int nctas)

HOST_KERNEL(barrier_flags);
HOST_KERNEL(allgather_packet);
HOST_KERNEL(allgather_push);
HOST_KERNEL(allgather_pull);
HOST_KERNEL(allgather_scratch);
HOST_KERNEL(allgather_read);
HOST_KERNEL(allreduce_packet);
HOST_KERNEL(allreduce_twostep);
HOST_KERNEL(allreduce_direct);
HOST_KERNEL(allreduce_scratch);
HOST_KERNEL(reducescatter_packet);
HOST_KERNEL(reducescatter_direct);
HOST_KERNEL(alltoall_packet);
HOST_KERNEL(alltoall_push);
HOST_KERNEL(alltoall_pull);
HOST_KERNEL(alltoall_read);
HOST_KERNEL(messages_listed);
HOST_KERNEL(rooted_ring);
HOST_KERNEL(reduce_ring);
HOST_KERNEL(reduce_direct);
HOST_KERNEL(put_signal);
HOST_KERNEL(wait_signal);

/* Worker cta's share [*from, *from + *len) of n bytes, in whole cache lines. */
static inline void host_share(size_t n, int cta, int nctas, size_t *from, size_t *len)
{
	size_t lines = (n + 63) / 64, k = (size_t)nctas;
	size_t a, b;

	if (nctas == 1) { /* a division takes as long as all the rest of a small call */
		*from = 0;
		*len = n;
		return;
	}
	a = lines * (size_t)cta / k * 64;
	b = lines * (size_t)(cta + 1) / k * 64;
	*from = a < n ? a : n;
	*len = (b < n ? b : n) - *from;
}

/* Reduce n bytes as the call says; factor is read when the call has them. */
static inline void host_reduce(const struct coll_call *c, int nsrc, const void *const *src,
	const uint64_t *factor, int ndst, void *const *dst, size_t n, int stream)
{
	struct reduction r = {.type = c->type,
		.op = c->op,
		.nsrc = nsrc,
		.ndst = ndst,
		.src = src,
		.dst = dst,
		.count = n >> __builtin_ctzl(coll_type_size(c->type)),
		.factor = c->has_factor ? factor : NULL,
		.stream = stream};

	reduce(&r);
}

#endif
