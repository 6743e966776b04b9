/* Messages between two processes: one connection each, made on demand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tree.h"
#include "util.h"

static symcclResult_t send_timeout(struct tree *t, int proc, uint32_t tag, const struct dial *d)
{
	const struct boot_proc *p = &t->procs[proc];
	char text[512];

	return tree_die_here(
		t, fail(symcclTimeout,
			   "rank %d could not send message %u to rank %d (pid %d on host %s): %s",
			   t->my_rank, tag, p->ranks[0], p->pid, p->host,
			   d ? dial_text(d, text, sizeof(text)) : "it does not read"));
}

static symcclResult_t send_connect(
	struct tree *t, int proc, uint32_t tag, uint64_t deadline, struct edge *e)
{
	const uint64_t until = deadline ? deadline : UINT64_MAX;
	struct dial d;
	symcclResult_t r;

	dial_init(&d, t->key, AUTH_TREE);
	if (t->procs[proc].node == t->node)
		r = dial_add_unix(&d, t->unix_names[proc]);
	else
		r = dial_add(&d, t->endpoints[proc].addrs, t->endpoints[proc].naddrs,
			t->endpoints[proc].port, 1);
	t->dial = &d;
	while (r == symcclSuccess && d.fd < 0) {
		if (now_ns() >= until)
			r = send_timeout(t, proc, tag, &d);
		else
			r = tree_progress(t, until, -1, NULL);
	}
	t->dial = NULL;
	if (r == symcclSuccess) {
		edge_init(e, d.fd, d.is_unix, FRAME_MAX);
		d.fd = -1;
	}
	if (d.fd >= 0)
		close(d.fd);
	dial_close(&d);
	return r;
}

symcclResult_t boot_send(
	struct boot *b, int proc, uint32_t tag, const void *buf, size_t len, uint64_t deadline)
{
	struct tree *t = tree_of(b);
	const uint64_t until = deadline ? deadline : UINT64_MAX;
	struct frame h = {.kind = FRAME_MESSAGE, .seq = tag, .from = b->proc};
	symcclResult_t r = symcclSuccess;
	struct blob *body;
	struct edge e;

	if (t->failure.code != symcclSuccess)
		return tree_failed(t);
	if (len > FRAME_MAX || !(body = blob_new(len)))
		return tree_die_here(
			t, fail(symcclSystemError, "no memory for a message of %zu bytes", len));
	if (len)
		memcpy(body->data, buf, len);
	if (proc == b->proc) {
		if (stash_add(t, proc, tag, body) == 0)
			return symcclSuccess;
		blob_put(body);
		return tree_die_here(t, fail(symcclSystemError, "no memory for a message"));
	}
	edge_clear(&e);
	r = send_connect(t, proc, tag, deadline, &e);
	if (r == symcclSuccess && edge_send(&e, h, body, NULL, 0))
		r = tree_die_here(t, fail(symcclSystemError, "no memory for a message"));
	blob_put(body);
	/* The peer reads inside its own boot_ calls; meanwhile it may be sending to us. */
	while (r == symcclSuccess && !edge_idle(&e)) {
		if (now_ns() >= until)
			r = send_timeout(t, proc, tag, NULL);
		else
			r = tree_progress(t, MIN(until, now_ns() + 1000000), -1, NULL);
		edge_flush(&e);
	}
	if (r == symcclSuccess && e.broken)
		r = tree_die_here(
			t, fail(symcclRemoteError, "rank %d closed the connection of message %u",
				   t->procs[proc].ranks[0], tag));
	edge_close(&e);
	return r;
}

/* The first message from proc with this tag; NULL: not there. */
static struct stash **stash_find(struct tree *t, int proc, uint32_t tag)
{
	struct stash **at = &t->stash;

	while (*at && ((*at)->from != proc || (*at)->tag != tag))
		at = &(*at)->next;
	return *at ? at : NULL;
}

symcclResult_t boot_recv(
	struct boot *b, int proc, uint32_t tag, void *buf, size_t *len, uint64_t deadline)
{
	struct tree *t = tree_of(b);
	const uint64_t until = deadline ? deadline : UINT64_MAX, start = now_ns();
	struct stash **at, *s;
	size_t got;

	while (!(at = stash_find(t, proc, tag))) {
		if (now_ns() >= until)
			return tree_die_here(t, fail(symcclTimeout,
							"rank %d had no message %u from rank %d "
							"(pid %d on host %s) within "
							"%.3g s",
							t->my_rank, tag, t->procs[proc].ranks[0],
							t->procs[proc].pid, t->procs[proc].host,
							(double)(now_ns() - start) / 1e9));
		TRY(tree_progress(t, until, -1, NULL));
	}
	s = *at;
	got = s->body ? s->body->len : 0;
	if (got > *len)
		return fail(symcclInvalidArgument,
			"message %u from rank %d has %zu bytes, the buffer only %zu", tag,
			t->procs[proc].ranks[0], got, *len);
	if (got)
		memcpy(buf, s->body->data, got);
	*len = got;
	*at = s->next;
	blob_put(s->body);
	free(s);
	return symcclSuccess;
}
