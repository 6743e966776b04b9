/*
 * Reduce on send windows: each rank reduces its slice of all of them into the root's buffer, where
 * that can be stored to from everywhere (a window of the control blocks' range, or all ranks in one
 * process), else the root reduces everything. A step before (inputs are there; the root says where
 * its buffer is) and one after (they have been read). In place is safe: who reads an element of the
 * root's input writes it.
 */
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "coll/host/ring.h"
#include "util.h"

struct hello {
	uint64_t factor;
	uint64_t sliced; /* of the root's: all take part */
	struct place out;
};

static int can_slice(const struct coll_team *t, const struct coll_call *c)
{
	size_t n = c->count * coll_type_size(c->type);
	int here = t->pid != NULL;

	for (int q = 0; q < t->nranks && here; q++)
		here = t->pid[q] == 0;
	return here || ring_place_in_space(t, &c->recv, n) != SIZE_MAX;
}

/* The step before: everybody's factor, and the root's hello. */
static symcclResult_t meet(struct step *s, uint64_t *factor, struct hello *root)
{
	const struct coll_team *t = s->team;
	const struct coll_call *c = s->call;
	struct hello own = {.factor = c->factor};
	const unsigned char *data;

	if (t->rank == c->root)
		own.sliced = (uint64_t)can_slice(t, c);
	step_begin(s);
	for (int k = 1; k < t->nranks; k++) {
		int peer = (t->rank + k) % t->nranks;

		if (own.sliced)
			own.out = ring_place(t, peer, &c->recv, c->count * coll_type_size(c->type));
		step_post(s, peer, &own, sizeof(own));
	}
	factor[t->rank] = c->factor;
	*root = own;
	for (int k = 1; k < t->nranks; k++) {
		int peer = (t->rank + k) % t->nranks;
		struct hello h;

		TRY(step_await(s, peer, &data));
		memcpy(&h, data, sizeof(h));
		factor[peer] = h.factor;
		if (peer == c->root)
			*root = h;
	}
	step_end(s);
	return symcclSuccess;
}

HOST_KERNEL(reduce_direct)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t bytes = c->count * coll_type_size(c->type), from, n, at, len;
	int ranks = t->nranks;
	int stream = bytes * (size_t)(ranks + 1) >= COPY_STREAM_FROM &&
		     !(t->rank == c->root && coll_in_place(t, c));
	uint64_t factor[ranks];
	const void *src[ranks];
	struct hello root;
	void *out;

	host_share(bytes, cta, nctas, &from, &n);
	TRY(meet(&s, factor, &root));
	if (root.sliced)
		host_share(n, t->rank, ranks, &at, &len);
	else
		at = 0, len = t->rank == c->root ? n : 0;
	at += from;
	for (int q = 0; q < ranks; q++)
		src[q] = (q == t->rank ? (char *)c->send.ptr : coll_peer(&c->send, q)) + at;
	if (t->rank == c->root)
		out = (char *)c->recv.ptr + at;
	else
		out = ring_place_here(t, c->root, &root.out) + at;
	if (len > 0)
		host_reduce(c, ranks, src, factor, 1, &out, len, stream);
	return step_sync(&s);
}
