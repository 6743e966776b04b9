/*
 * All-reduce of plain memory, any size: chunk by chunk through the bulk halves. A rank copies its
 * chunk into its half, reduces its slice of everybody's into its other half, and copies all slices
 * out: two steps a chunk.
 */
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "device/slot.h"
#include "util.h"

static symcclResult_t chunk(struct step *s, const char *in, char *out, size_t n, int stream)
{
	const struct coll_team *t = s->team;
	const struct coll_call *c = s->call;
	int ranks = t->nranks;
	const void *src[ranks];
	uint64_t factor[ranks];
	const unsigned char *data;
	size_t at, len;
	void *sum;

	step_begin(s);
	memcpy(step_bulk(s, t->rank), in, n);
	for (int k = 1; k < ranks; k++)
		step_post(s, (t->rank + k) % ranks, &c->factor,
			c->has_factor ? sizeof(c->factor) : 0);
	host_share(n, t->rank, ranks, &at, &len);
	src[t->rank] = in + at;
	factor[t->rank] = c->factor;
	for (int k = 1; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;

		TRY(step_await(s, peer, &data));
		src[peer] = step_bulk(s, peer) + at;
		memcpy(&factor[peer], data, sizeof(factor[peer]));
	}
	step_end(s);

	step_begin(s);
	sum = step_bulk(s, t->rank);
	host_reduce(c, ranks, src, factor, 1, &sum, len, 0);
	step_post_all(s);
	for (int k = 0; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;

		if (k > 0)
			TRY(step_await(s, peer, &data));
		host_share(n, peer, ranks, &at, &len);
		(stream ? copy_stream : copy_plain)(out + at, step_bulk(s, peer), len);
	}
	step_end(s);
	return symcclSuccess;
}

HOST_KERNEL(allreduce_scratch)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t bytes = c->count * coll_type_size(c->type), from, n;
	int stream = 2 * bytes * (size_t)t->nranks >= COPY_STREAM_FROM;

	host_share(bytes, cta, nctas, &from, &n);
	for (size_t at = 0; at < n || at == 0; at += t->layout.bulk_bytes)
		TRY(chunk(&s, (char *)c->send.ptr + from + at, (char *)c->recv.ptr + from + at,
			MIN(t->layout.bulk_bytes, n - at), stream));
	return symcclSuccess;
}
