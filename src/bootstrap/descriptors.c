/* The exchange of descriptors between the processes of a node. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

/* A process's part of the exchange has one byte per descriptor, whether it is really there. The
 * descriptors themselves are in the order of the parts. */
struct fd_set_all {
	int *fds; /* one per byte, -1 where the byte is 0; owned */
	int n;
};

static symcclResult_t fds_grow(struct run *r, struct fd_set_all *s, int more)
{
	int *p = realloc(s->fds, ((size_t)s->n + (size_t)more + 1) * sizeof(*p));

	if (!p)
		return run_no_memory(r, ((size_t)s->n + (size_t)more) * sizeof(*p));
	s->fds = p;
	return symcclSuccess;
}

/* Take the descriptors that came with a peer's part. What the sender did not have, or the kernel
 * could not install here, is -1 and stays so for everyone further on. */
static symcclResult_t fds_from_peer(struct run *r, struct peer *p, struct fd_set_all *s)
{
	size_t at = 0;
	int next = 0;

	while (p->data && at + sizeof(struct part) <= p->data->len) {
		struct part head;
		char *there = p->data->data + at + sizeof(head);

		memcpy(&head, p->data->data + at, sizeof(head));
		if (head.len > p->data->len - at - sizeof(head) || head.len > INT32_MAX)
			break;
		TRY(fds_grow(r, s, (int)head.len));
		for (size_t i = 0; i < head.len; i++) {
			int fd = -1;

			if (there[i] && next < p->edge.nfds)
				fd = p->edge.fds[next++];
			there[i] = fd >= 0;
			s->fds[s->n++] = fd;
		}
		at += part_room(head.len);
	}
	if (next == p->edge.nfds && p->data_head.nfds == (uint32_t)next &&
		(!p->data || at == p->data->len)) {
		p->edge.nfds = 0;
		return symcclSuccess;
	}
	/* Those not taken are closed with the edge. */
	if (p->edge.nfds > next)
		memmove(p->edge.fds, p->edge.fds + next,
			(size_t)(p->edge.nfds - next) * sizeof(int));
	p->edge.nfds -= next;
	/* They went with a peer that has died since its part came. */
	if (r->t->failure.code != symcclSuccess)
		return tree_failed(r->t);
	return tree_die_here(r->t,
		fail(symcclInternalError,
			"descriptors from rank %d are out of step (a bug in symccl)", p->rank));
}

static void fds_close(struct fd_set_all *s)
{
	for (int i = 0; i < s->n; i++)
		if (s->fds[i] >= 0)
			close(s->fds[i]);
	free(s->fds);
	*s = (struct fd_set_all){0};
}

/* The caller's own, as duplicates: from here on all of them are ours to close. */
static symcclResult_t fds_from_caller(
	struct run *r, const int *mine, int n, char *there, struct fd_set_all *s)
{
	TRY(fds_grow(r, s, n));
	for (int i = 0; i < n; i++) {
		int fd = mine[i] < 0 ? -1 : fcntl(mine[i], F_DUPFD_CLOEXEC, 0);

		there[i] = fd >= 0;
		s->fds[s->n++] = fd;
	}
	return symcclSuccess;
}

/* Send b with those of its descriptors that exist: to the parent, or down to the children (which
 * makes b the result and takes it over). Returns when the sockets have them. */
static symcclResult_t fds_send(
	struct run *r, struct peer *parent, struct blob *b, const struct fd_set_all *s)
{
	int *exist = malloc(((size_t)s->n + 1) * sizeof(*exist)), n = 0;
	symcclResult_t code;

	if (!exist)
		return run_no_memory(r, ((size_t)s->n + 1) * sizeof(*exist));
	for (int i = 0; i < s->n; i++)
		if (s->fds[i] >= 0)
			exist[n++] = s->fds[i];
	if (parent) {
		code = run_send(r, parent, b, exist, n);
		if (code == symcclSuccess)
			code = run_flush(r);
	} else {
		code = run_down(r, blob_ref(b), exist, n);
	}
	/* The outboxes point to the array. */
	for (int i = 0; i < r->t->npeers && code != symcclSuccess; i++)
		edge_drop(&r->t->peers[i].edge);
	free(exist);
	return code;
}

/* Own descriptors and the children's go up; what comes down is the result, and at the top it is
 * what has come up. */
static symcclResult_t fds_exchange(struct run *r, const int *mine, int n, char *there,
	struct fd_set_all *up, struct fd_set_all *result, struct blob **b)
{
	struct tree *t = r->t;
	struct peer *parent = run_parent(r);

	TRY(run_wait_children(r));
	TRY(fds_from_caller(r, mine, n, there, up));
	for (int i = 0; i < t->npeers; i++)
		if (run_child(r, i))
			TRY(fds_from_peer(r, &t->peers[i], up));
	TRY(run_join(r, there, (size_t)n, b));
	if (parent) {
		TRY(fds_send(r, parent, *b, up));
		fds_close(up);
		blob_put(*b);
		*b = NULL;
		TRY(run_wait_parent(r, parent));
		TRY(fds_from_peer(r, parent, result));
		*b = blob_ref(parent->data);
		peer_used(parent);
		if (!*b)
			return run_no_memory(r, 0);
	} else {
		*result = *up;
		*up = (struct fd_set_all){0};
	}
	TRY(fds_send(r, NULL, *b, result));
	return run_split(r, *b, t->pub.node_proc0, t->pub.node_nprocs);
}

/* Put the result, which is in the order of the tree, into the order of processes. */
static symcclResult_t fds_order(struct run *r, const struct fd_set_all *s, int *out, int *counts)
{
	struct tree *t = r->t;
	const int n = t->pub.node_nprocs, proc0 = t->pub.node_proc0;
	int *start = malloc(((size_t)n + 1) * sizeof(*start)), from = 0;

	if (!start)
		return run_no_memory(r, (size_t)n * sizeof(*start));
	start[0] = 0;
	for (int i = 0; i < n; i++) {
		counts[i] = (int)t->len[i];
		start[i + 1] = start[i] + counts[i];
	}
	for (size_t at = 0; at < t->result->len;) {
		struct part head;

		memcpy(&head, t->result->data + at, sizeof(head));
		memcpy(out + start[head.proc - proc0], s->fds + from, head.len * sizeof(*out));
		from += (int)head.len;
		at += part_room(head.len);
	}
	free(start);
	return symcclSuccess;
}

symcclResult_t boot_allgather_fds(
	struct boot *boot, const int *mine, int n, int **fds, int **counts, uint64_t deadline)
{
	struct tree *t = tree_of(boot);
	struct fd_set_all up = {0}, result = {0};
	struct blob *b = NULL;
	char *there = calloc((size_t)n + 1, 1);
	int *out = NULL, *count = NULL;
	symcclResult_t code;
	struct run r = {.t = t};

	code = run_begin(&r, t, OP_FDS, true, deadline);
	if (code == symcclSuccess)
		code = there ? fds_exchange(&r, mine, n, there, &up, &result, &b)
			     : run_no_memory(&r, (size_t)n);
	if (code == symcclSuccess) {
		out = malloc(((size_t)result.n + 1) * sizeof(*out));
		count = malloc((size_t)t->pub.node_nprocs * sizeof(*count));
		code = out && count ? fds_order(&r, &result, out, count)
				    : run_no_memory(&r, (size_t)result.n * sizeof(*out));
	}
	if (code == symcclSuccess) {
		*fds = out;
		*counts = count;
		result.n = 0; /* they are the caller's now */
	} else {
		free(out);
		free(count);
	}
	fds_close(&up);
	fds_close(&result);
	blob_put(b);
	free(there);
	return code;
}
