/*
 * All-to-all on windows, and on plain memory that peers can read. A step before (peers have
 * entered; says who is in place, and where the send buffer lies) and one after (all is moved).
 *
 *   push   receive windows: a rank stores its blocks into its peers' buffers
 *   pull   send windows: a rank loads its blocks from its peers' buffers
 *   read   plain memory: the same with process_vm_readv(2)
 *
 * In place two ranks swap blocks; with push each of them swaps one half of both. A call that is in
 * place on some ranks only goes by packets, as does one in place on memory that is no window.
 */
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "coll/host/peer_read.h"
#include "device/slot.h"
#include "util.h"

struct hello {
	const char *send;
	int in_place;
};

/* The step before. at[r]: rank r's send buffer in its own address space. *n_in_place: how many
 * ranks are in place. */
static symcclResult_t meet(struct step *s, const char **at, int *n_in_place)
{
	const struct coll_team *t = s->team;
	const struct coll_call *c = s->call;
	struct hello own = {.send = c->send.ptr, .in_place = c->send.ptr == c->recv.ptr}, h;
	const unsigned char *data;
	int n = own.in_place;

	step_begin(s);
	for (int k = 1; k < t->nranks; k++)
		step_post(s, (t->rank + k) % t->nranks, &own, sizeof(own));
	at[t->rank] = own.send;
	for (int k = 1; k < t->nranks; k++) {
		int peer = (t->rank + k) % t->nranks;

		TRY(step_await(s, peer, &data));
		memcpy(&h, data, sizeof(h));
		at[peer] = h.send;
		n += h.in_place;
	}
	step_end(s);
	*n_in_place = n;
	return symcclSuccess;
}

/* All of it is more than the caches hold. */
static int streams(const struct coll_team *t, size_t block)
{
	return block * (size_t)t->nranks * (size_t)t->nranks >= COPY_STREAM_FROM / 2;
}

/* This rank's own block. */
static void keep(const struct step *s, size_t from, size_t n, int stream)
{
	const struct coll_call *c = s->call;
	size_t at = (size_t)s->team->rank * c->count * coll_type_size(c->type) + from;

	if (c->recv.ptr != c->send.ptr)
		(stream ? copy_stream : copy_plain)(
			(char *)c->recv.ptr + at, (const char *)c->send.ptr + at, n);
}

/* Exchange two places' bytes. */
static void swap(char *a, char *b, size_t n)
{
	char tmp[2048];

	for (size_t i = 0; i < n; i += sizeof(tmp)) {
		size_t k = MIN(sizeof(tmp), n - i);

		memcpy(tmp, a + i, k);
		memcpy(a + i, b + i, k);
		memcpy(b + i, tmp, k);
	}
}

/* The lower rank of two swaps the first half. */
static void swap_all(const struct step *s, size_t from, size_t n)
{
	const struct coll_team *t = s->team;
	const struct coll_call *c = s->call;
	size_t block = c->count * coll_type_size(c->type), half = n / 128 * 64;

	for (int k = 1; k < t->nranks; k++) {
		int peer = (t->rank + k) % t->nranks, first = t->rank < peer;
		char *mine = (char *)c->recv.ptr + (size_t)peer * block + from;
		char *theirs = coll_peer(&c->recv, peer) + (size_t)t->rank * block + from;

		swap(mine + (first ? 0 : half), theirs + (first ? 0 : half),
			first ? half : n - half);
	}
}

HOST_KERNEL(alltoall_push)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t block = c->count * coll_type_size(c->type), from, n;
	int ranks = t->nranks, in_place, stream = streams(t, block);
	const char *at[ranks];

	host_share(block, cta, nctas, &from, &n);
	TRY(meet(&s, at, &in_place));
	if (in_place > 0 && in_place < ranks)
		return alltoall_packet(t, c, hash, cta, nctas);
	if (in_place > 0) {
		swap_all(&s, from, n);
		return step_sync(&s);
	}
	for (int k = 1; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;

		(stream ? copy_stream : copy_plain)(
			coll_peer(&c->recv, peer) + (size_t)t->rank * block + from,
			(const char *)c->send.ptr + (size_t)peer * block + from, n);
	}
	keep(&s, from, n, stream);
	return step_sync(&s);
}

HOST_KERNEL(alltoall_pull)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t block = c->count * coll_type_size(c->type), from, n;
	int ranks = t->nranks, in_place, stream = streams(t, block);
	const char *at[ranks];

	host_share(block, cta, nctas, &from, &n);
	TRY(meet(&s, at, &in_place));
	if (in_place > 0)
		return alltoall_packet(t, c, hash, cta, nctas);
	for (int k = 1; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;

		(stream ? copy_stream : copy_plain)(
			(char *)c->recv.ptr + (size_t)peer * block + from,
			coll_peer(&c->send, peer) + (size_t)t->rank * block + from, n);
	}
	keep(&s, from, n, stream);
	return step_sync(&s);
}

HOST_KERNEL(alltoall_read)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t block = c->count * coll_type_size(c->type), from, n;
	int ranks = t->nranks, in_place, stream = streams(t, block);
	const char *at[ranks];

	host_share(block, cta, nctas, &from, &n);
	TRY(meet(&s, at, &in_place));
	if (in_place > 0)
		return alltoall_packet(t, c, hash, cta, nctas);
	for (int k = 1; k < ranks; k++) {
		int peer = (t->rank + k) % ranks;

		TRY(peer_read(t, peer, (char *)c->recv.ptr + (size_t)peer * block + from,
			at[peer] + (size_t)t->rank * block + from, n, stream));
	}
	keep(&s, from, n, stream);
	return step_sync(&s);
}
