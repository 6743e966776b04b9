/* Connections to this process's listeners: children of the tree, and messages. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "tree.h"
#include "util.h"

#define HANDSHAKE_NS 5000000000ull
#define DEAF_NS 50000000ull

/* ---- Messages ---------------------------------------------------------------------------- */

int stash_add(struct tree *t, int from, uint32_t tag, struct blob *body)
{
	struct stash *s = calloc(1, sizeof(*s)), **end = &t->stash;

	if (!s)
		return -1;
	*s = (struct stash){NULL, from, tag, body};
	while (*end)
		end = &(*end)->next;
	*end = s;
	return 0;
}

/* ---- Guests ------------------------------------------------------------------------------ */

/* *at is the link that points to the guest. */
static void guest_remove(struct tree *t, struct guest **at)
{
	struct guest *g = *at;

	*at = g->next;
	if (!*at)
		t->guests_end = at;
	t->nguests--;
	edge_close(&g->edge);
	free(g);
}

static struct guest **guest_link(struct tree *t, const struct guest *g)
{
	struct guest **at = &t->guests;

	while (*at != g)
		at = &(*at)->next;
	return at;
}

static bool guest_accept(struct tree *t, int listener, bool is_unix)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), pid;
	struct guest *g;

	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
			t->deaf = now_ns() + DEAF_NS;
		return false;
	}
	if (is_unix && unix_peer(fd, &pid)) {
		close(fd);
		return true;
	}
	/* The oldest stranger goes; those who have proved themselves stay. */
	if (t->nguests >= GUESTS_MAX)
		for (struct guest **at = &t->guests; *at; at = &(*at)->next)
			if (!(*at)->known) {
				guest_remove(t, at);
				break;
			}
	g = t->nguests < GUESTS_MAX ? calloc(1, sizeof(*g)) : NULL;
	if (!g) {
		close(fd);
		return true;
	}
	edge_init(&g->edge, fd, is_unix, FRAME_MAX);
	g->limit = now_ns() + HANDSHAKE_NS;
	*t->guests_end = g;
	t->guests_end = &g->next;
	t->nguests++;
	if (auth_start(&g->auth, fd, t->key, AUTH_TREE, 1) < 0)
		guest_remove(t, guest_link(t, g));
	return true;
}

void guests_poll(struct tree *t, uint64_t *until)
{
	bool deaf = t->deaf && now_ns() < t->deaf;

	if (deaf)
		*until = MIN(*until, t->deaf);
	t->local_slot = pollset_add(&t->ps, deaf ? -1 : t->local, POLLIN);
	t->tcp_slot = pollset_add(&t->ps, deaf ? -1 : t->tcp, POLLIN);
	for (struct guest *g = t->guests; g; g = g->next) {
		g->edge.slot = g->early ? -1 : pollset_add(&t->ps, g->edge.fd, POLLIN);
		if (!g->known)
			*until = MIN(*until, g->limit);
	}
}

/* Is it one of the children that the tree's shape gives us? */
static bool hello_expected(const struct tree *t, const struct wire_hello *h)
{
	if (h->node_proc)
		return h->node == t->node && (h->node_proc - 1) / SHAPE_LOCAL == t->node_proc;
	return t->node_proc == 0 && h->node && (h->node - 1) / SHAPE_LEADERS == t->node;
}

/* A child: its connection becomes an edge. */
static void guest_hello(struct tree *t, struct guest *g)
{
	struct wire_hello h;
	struct peer *p;

	if (!g->edge.body || g->edge.body->len != sizeof(h))
		return;
	memcpy(&h, g->edge.body->data, sizeof(h));
	h.host[sizeof(h.host) - 1] = 0;
	for (int i = 0; i < t->npeers; i++)
		if (t->peers[i].proc == h.proc)
			return;
	if (!hello_expected(t, &h))
		return;
	p = tree_add_peer(t, g->edge.fd, g->edge.is_unix);
	if (!p)
		return;
	g->edge.fd = -1; /* it is the edge's now */
	p->proc = h.proc;
	p->rank = h.rank;
	p->pid = h.pid;
	memcpy(p->host, h.host, sizeof(p->host));
}

/* Whether the guest stays. */
static bool guest_step(struct tree *t, struct guest *g)
{
	int got;

	if (g->early && t->placed) {
		guest_hello(t, g);
		return false;
	}
	if (!pollset_got(&t->ps, g->edge.slot))
		return g->known || now_ns() < g->limit;
	if (!g->known) {
		got = auth_step(&g->auth, g->edge.fd);
		if (got <= 0)
			return got == 0;
		g->known = true;
		if (!g->edge.is_unix)
			addr_tune(g->edge.fd);
	}
	got = edge_read(&g->edge);
	if (got <= 0)
		return got == 0;
	if (g->edge.rx.kind == FRAME_HELLO) {
		/* Kept until the root has told us, too, where we are. */
		g->early = !t->placed;
		if (t->placed)
			guest_hello(t, g);
		return g->early;
	}
	if (g->edge.rx.kind == FRAME_MESSAGE) {
		if (stash_add(t, g->edge.rx.from, g->edge.rx.seq, g->edge.body))
			log_warn(LOG_BOOT, "no memory for a message from process %d",
				g->edge.rx.from);
		else
			g->edge.body = NULL;
	}
	return false;
}

void guests_step(struct tree *t)
{
	struct guest **at = &t->guests;
	bool local = pollset_got(&t->ps, t->local_slot), tcp = pollset_got(&t->ps, t->tcp_slot);

	while (*at) {
		if (guest_step(t, *at))
			at = &(*at)->next;
		else
			guest_remove(t, at);
	}
	for (int i = 0; i < 64 && local && guest_accept(t, t->local, true); i++)
		;
	for (int i = 0; i < 64 && tcp && guest_accept(t, t->tcp, false); i++)
		;
}

void guests_free(struct tree *t)
{
	while (t->guests)
		guest_remove(t, &t->guests);
	while (t->stash) {
		struct stash *s = t->stash;

		t->stash = s->next;
		blob_put(s->body);
		free(s);
	}
}
