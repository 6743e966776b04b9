/* Meeting: the client's side of the rendezvous, then the tree's connections, then the table. */
#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <fcntl.h>

#include "log.h"
#include "mem/mem.h"
#include "params.h"
#include "root.h"
#include "tree.h"
#include "util.h"

#define JOIN_BATCH 256
#define GIVE_UP_MS 100
#define LINGER_MS 500

/* One boot_open on its way. */
struct join {
	struct tree *t;
	struct id id;
	struct wire_proc self;
	int wakefd;
	int (*next)(void *arg, struct boot_member *m);
	void *arg;
	uint64_t start, deadline; /* 0: none */
	/* Local ranks. */
	struct wire_member *members;
	int n, room, sent;
};

/* ---- Who we are -------------------------------------------------------------------------- */

static void hash_file(crypto_generichash_state *h, const char *path)
{
	char buf[128];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, buf, sizeof(buf));

	if (n > 0)
		crypto_generichash_update(h, (const uint8_t *)buf, (size_t)n);
	if (fd >= 0)
		close(fd);
}

/* Equal for processes that reach each other by abstract Unix sockets and may exchange descriptors:
 * one kernel, one network namespace, one user; SYMCCL_HOSTID divides further. */
static void node_hash(const char *host, uint8_t out[16])
{
	const char *hostid = params_get()->hostid;
	crypto_generichash_state h;
	struct stat ns = {0};
	uint64_t words[3];

	crypto_generichash_init(&h, NULL, 0, 16);
	crypto_generichash_update(&h, (const uint8_t *)host, strlen(host) + 1);
	hash_file(&h, "/proc/sys/kernel/random/boot_id");
	if (stat("/proc/self/ns/net", &ns) != 0)
		log_info(LOG_BOOT, "cannot tell the network namespace: %m");
	words[0] = (uint64_t)ns.st_dev;
	words[1] = (uint64_t)ns.st_ino;
	words[2] = (uint64_t)geteuid();
	crypto_generichash_update(&h, (const uint8_t *)words, sizeof(words));
	crypto_generichash_update(&h, (const uint8_t *)hostid, strlen(hostid));
	crypto_generichash_final(&h, out, 16);
}

static symcclResult_t join_self(struct join *j)
{
	struct tree *t = j->t;
	struct wire_proc *self = &j->self;

	if (gethostname(t->host, sizeof(t->host) - 1) != 0)
		snprintf(t->host, sizeof(t->host), "unknown");
	self->protocol = WIRE_PROTOCOL;
	self->pid = getpid();
	self->uid = mem_proc_uid();
	memcpy(self->host, t->host, sizeof(self->host));
	node_hash(t->host, self->node);
	TRY(addr_local(&t->endpoint));
	randombytes_buf(t->unix_name, sizeof(t->unix_name));
	t->local = unix_listen(t->unix_name);
	errno = -t->local;
	if (t->local < 0)
		return fail(symcclSystemError, "cannot make a Unix socket to listen on: %m");
	t->tcp = addr_listen(0, &t->endpoint.port);
	errno = -t->tcp;
	if (t->tcp < 0)
		return fail(symcclSystemError, "cannot make a TCP socket to listen on: %m");
	memcpy(self->unix_name, t->unix_name, sizeof(self->unix_name));
	self->tcp = t->endpoint;
	return symcclSuccess;
}

/* ---- The root ---------------------------------------------------------------------------- */

/* Where the root may be: in this process, on this host, at the id's addresses. */
static symcclResult_t join_targets(struct join *j)
{
	struct dial *d = j->t->dial;
	struct addr resolved[ADDR_MAX];
	uint8_t name[UNIX_NAME];
	int n = j->id.naddrs;

	/* One that plays another host takes the way another host would take. */
	if (!*params_get()->hostid) {
		wire_root_name(j->id.secret, name);
		TRY(dial_add_unix(d, name));
	}
	if (j->id.flags & ID_SERVED)
		return dial_add(d, j->id.addrs, n, j->id.port, 1);
	TRY(addr_resolve(j->id.name, resolved, &n));
	return dial_add(d, resolved, n, j->id.port, j->id.nports);
}

static symcclResult_t join_dial(struct join *j)
{
	struct tree *t = j->t;

	t->dial = calloc(1, sizeof(*t->dial));
	if (!t->dial)
		return fail(symcclSystemError, "no memory for the rendezvous");
	dial_init(t->dial, j->id.secret, AUTH_ROOT);
	return join_targets(j);
}

/* Rank 0 is here: serve the rendezvous, and look for it on this host only. */
static symcclResult_t join_serve(struct join *j)
{
	static const struct addr loopback[] = {
		{.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}}, {.ip = {[15] = 1}}};
	struct dial *d = j->t->dial;
	uint16_t port;
	uint8_t name[UNIX_NAME];

	if ((j->id.flags & ID_SERVED) || j->t->root.fd >= 0)
		return symcclSuccess;
	TRY(root_start(j->id.secret, j->id.port, j->id.nports, &port));
	log_info(LOG_BOOT, "rank 0 serves the rendezvous at %s port %u", j->id.name, port);
	if (d->fd >= 0)
		close(d->fd);
	dial_close(d);
	wire_root_name(j->id.secret, name);
	TRY(dial_add_unix(d, name));
	return dial_add(d, loopback, (int)ARRAY_LEN(loopback), port, 1);
}

/* Take the local ranks that have come. */
static symcclResult_t join_members(struct join *j)
{
	struct boot_member m;

	while (j->next(j->arg, &m)) {
		if (j->n == j->room) {
			int room = MAX(2 * j->room, 16);
			struct wire_member *p = realloc(j->members, (size_t)room * sizeof(*p));

			if (!p)
				return fail(symcclSystemError, "no memory for rank %d", m.rank);
			j->members = p;
			j->room = room;
		}
		j->members[j->n++] = (struct wire_member){m.rank, m.nranks, m.version, m.config};
		j->t->my_rank = j->n > 1 ? MIN(j->t->my_rank, m.rank) : m.rank;
		if (m.rank == 0)
			TRY(join_serve(j));
	}
	return symcclSuccess;
}

static symcclResult_t root_send(struct join *j, int kind, const void *body, size_t len)
{
	struct frame h = {.kind = (uint16_t)kind};

	if (edge_send_copy(&j->t->root, h, body, len))
		return fail(symcclSystemError, "no memory to talk to the rendezvous");
	return symcclSuccess;
}

static symcclResult_t join_send_members(struct join *j)
{
	while (j->t->root.fd >= 0 && j->sent < j->n) {
		int n = MIN(j->n - j->sent, JOIN_BATCH);

		TRY(root_send(
			j, FRAME_JOIN, j->members + j->sent, (size_t)n * sizeof(*j->members)));
		j->sent += n;
	}
	return symcclSuccess;
}

/* The dial has succeeded: introduce ourselves. */
static symcclResult_t join_connected(struct join *j)
{
	struct tree *t = j->t;
	int pid;

	edge_init(&t->root, t->dial->fd, t->dial->is_unix, WIRE_BODY_MAX);
	if (t->dial->is_unix && unix_peer(t->root.fd, &pid) == 0)
		edge_watch(&t->root, pid);
	t->dial->fd = -1;
	dial_close(t->dial);
	free(t->dial);
	t->dial = NULL;
	return root_send(j, FRAME_PROC, &j->self, sizeof(j->self));
}

symcclResult_t join_frame(struct tree *t)
{
	const struct blob *b = t->root.body;
	struct failure f;

	if (t->root.rx.kind == FRAME_ABORT && b && b->len == sizeof(f)) {
		memcpy(&f, b->data, sizeof(f));
		f.text[sizeof(f.text) - 1] = 0;
		tree_die(t, &f, NULL);
		return tree_failed(t);
	}
	if (t->root.rx.kind == FRAME_PLACE && b && b->len == sizeof(t->place)) {
		memcpy(&t->place, b->data, sizeof(t->place));
		t->placed = true;
	}
	return symcclSuccess;
}

static symcclResult_t join_timeout(struct join *j)
{
	double s = (double)(now_ns() - j->start) / 1e9;
	char text[512];

	if (!j->t->dial)
		return fail(symcclTimeout,
			"the rendezvous has not said within %.3g s whether all ranks have come", s);
	return fail(symcclTimeout, "cannot reach the rendezvous%s within %.3g s; tried %s",
		j->id.flags & ID_SERVED ? "" : " (rank 0 serves it)", s,
		dial_text(j->t->dial, text, sizeof(text)));
}

/* Until the root has told us our place. */
static symcclResult_t join_root(struct join *j)
{
	struct tree *t = j->t;
	bool woken = true;

	TRY(join_dial(j));
	while (!t->placed) {
		uint64_t until = !j->deadline ? UINT64_MAX
				 : t->dial    ? j->deadline
					      : j->deadline + WIRE_GRACE_NS;

		if (woken)
			TRY(join_members(j));
		TRY(join_send_members(j));
		if (now_ns() >= until)
			return join_timeout(j);
		TRY(tree_progress(t, until, j->wakefd, &woken));
		if (t->dial && t->dial->fd >= 0)
			TRY(join_connected(j));
	}
	/* The root counts in the order of arrival, so a rank too many is at the end. */
	if (j->n > t->place.mine)
		return fail(symcclInvalidUsage,
			"rank %d has joined twice: all %d ranks had come when it came again",
			j->members[t->place.mine].rank, t->place.nranks);
	return symcclSuccess;
}

/* ---- The tree ---------------------------------------------------------------------------- */

static symcclResult_t join_place(struct join *j)
{
	struct tree *t = j->t;
	const struct wire_place *p = &t->place;
	struct boot *b = &t->pub;

	b->nranks = p->nranks;
	b->nprocs = p->nprocs;
	b->nnodes = p->nnodes;
	b->proc = p->proc;
	b->node_nprocs = p->node_nprocs;
	b->node_proc0 = p->node_proc0;
	t->node = p->node;
	t->node_proc = p->node_proc;
	t->shape = shape_of(p->node, p->nnodes, p->node_proc, p->node_nprocs);
	t->all = calloc((size_t)b->nprocs, sizeof(*t->all));
	t->len = calloc((size_t)b->nprocs, sizeof(*t->len));
	if (!t->all || !t->len)
		return fail(symcclSystemError, "no memory for %d processes", b->nprocs);
	if (p->parent < 0)
		return symcclSuccess;
	t->has_parent = true;
	t->npeers = 1;
	edge_clear(&t->peers[0].edge);
	t->peers[0].proc = p->parent;
	t->dial = calloc(1, sizeof(*t->dial));
	if (!t->dial)
		return fail(symcclSystemError, "no memory to connect to the parent");
	dial_init(t->dial, t->key, AUTH_TREE);
	if (p->parent_here)
		return dial_add_unix(t->dial, p->parent_info.unix_name);
	return dial_add(t->dial, p->parent_info.tcp.addrs, p->parent_info.tcp.naddrs,
		p->parent_info.tcp.port, 1);
}

/* The parent has answered. */
static symcclResult_t join_parent(struct join *j)
{
	struct tree *t = j->t;
	const struct wire_place *place = &t->place;
	struct frame h = {.kind = FRAME_HELLO, .from = place->proc};
	struct wire_hello hello = {.proc = place->proc,
		.node = place->node,
		.node_proc = place->node_proc,
		.rank = t->my_rank,
		.pid = j->self.pid};
	struct peer *p = &t->peers[0];
	int pid;

	memcpy(hello.host, t->host, sizeof(hello.host));
	edge_init(&p->edge, t->dial->fd, t->dial->is_unix, FRAME_MAX);
	p->here = t->dial->is_unix;
	if (p->here && unix_peer(p->edge.fd, &pid) == 0)
		edge_watch(&p->edge, pid);
	p->rank = place->parent_rank;
	p->pid = place->parent_info.pid;
	memcpy(p->host, place->parent_info.host, sizeof(p->host));
	p->host[sizeof(p->host) - 1] = 0;
	t->dial->fd = -1;
	dial_close(t->dial);
	free(t->dial);
	t->dial = NULL;
	if (edge_send_copy(&p->edge, h, &hello, sizeof(hello)))
		return fail(symcclSystemError, "no memory to talk to the parent");
	return symcclSuccess;
}

static symcclResult_t join_tree(struct join *j)
{
	struct tree *t = j->t;
	uint64_t until = UINT64_MAX;
	char text[512];

	TRY(join_place(j));
	/* The root gives up earlier, and knows all names. */
	if (j->deadline)
		until = MAX(j->deadline, now_ns() + WIRE_TREE_NS) + WIRE_GRACE_NS;
	j->deadline = until == UINT64_MAX ? 0 : until;
	while (t->dial || t->npeers < t->place.nchildren + t->has_parent) {
		if (now_ns() >= until && t->dial)
			return fail(symcclTimeout, "rank %d cannot connect to rank %d: %s",
				t->my_rank, t->place.parent_rank,
				dial_text(t->dial, text, sizeof(text)));
		if (now_ns() >= until)
			return fail(symcclTimeout, "%d of %d processes did not connect to rank %d",
				t->place.nchildren + t->has_parent - t->npeers, t->place.nchildren,
				t->my_rank);
		TRY(tree_progress(t, until, -1, NULL));
		if (t->dial && t->dial->fd >= 0)
			TRY(join_parent(j));
	}
	t->stands = true;
	return symcclSuccess;
}

/* ---- The table --------------------------------------------------------------------------- */

static int member_compare(const void *a, const void *b)
{
	const struct wire_member *x = a, *y = b;

	return (x->rank > y->rank) - (x->rank < y->rank);
}

/* What a process contributes to the table; its ranks follow. */
struct wire_row {
	struct wire_proc proc;
	int32_t node, node_proc, nranks, pad;
};

static symcclResult_t table_fill(struct tree *t, const void **all, const size_t *len)
{
	struct boot *b = &t->pub;
	int at = 0;

	for (int i = 0; i < b->nprocs; i++) {
		struct boot_proc *p = &t->procs[i];
		struct wire_row row;

		if (len[i] < sizeof(row))
			return fail(symcclInternalError, "process %d sent a bad table row", i);
		memcpy(&row, all[i], sizeof(row));
		if (row.nranks < 1 || row.nranks > b->nranks - at ||
			len[i] != sizeof(row) + (size_t)row.nranks * sizeof(int))
			return fail(symcclInternalError, "process %d sent a bad table row", i);
		p->uid = row.proc.uid;
		p->pid = row.proc.pid;
		p->node = row.node;
		p->node_proc = row.node_proc;
		p->nranks = row.nranks;
		p->ranks = t->ranks + at;
		memcpy(p->host, row.proc.host, sizeof(p->host));
		p->host[sizeof(p->host) - 1] = 0;
		t->endpoints[i] = row.proc.tcp;
		t->endpoints[i].naddrs = MIN(row.proc.tcp.naddrs, ADDR_MAX);
		memcpy(t->unix_names[i], row.proc.unix_name, UNIX_NAME);
		memcpy(t->ranks + at, (const char *)all[i] + sizeof(row),
			(size_t)row.nranks * sizeof(int));
		for (int k = 0; k < row.nranks; k++) {
			int rank = t->ranks[at + k];

			if (rank < 0 || rank >= b->nranks)
				return fail(symcclInternalError, "process %d sent a bad rank", i);
			t->rank_proc[rank] = i;
		}
		at += row.nranks;
	}
	return symcclSuccess;
}

static symcclResult_t join_table(struct join *j)
{
	struct tree *t = j->t;
	struct boot *b = &t->pub;
	size_t mine = sizeof(struct wire_row) + (size_t)j->n * sizeof(int);
	struct wire_row row = {
		.proc = j->self, .node = t->node, .node_proc = t->node_proc, .nranks = j->n};
	char *buf = malloc(mine);
	const void **all;
	const size_t *len;
	symcclResult_t r;

	t->procs = calloc((size_t)b->nprocs, sizeof(*t->procs));
	t->endpoints = calloc((size_t)b->nprocs, sizeof(*t->endpoints));
	t->unix_names = calloc((size_t)b->nprocs, sizeof(*t->unix_names));
	t->ranks = calloc((size_t)b->nranks, sizeof(*t->ranks));
	t->rank_proc = calloc((size_t)b->nranks, sizeof(*t->rank_proc));
	if (!buf || !t->procs || !t->endpoints || !t->unix_names || !t->ranks || !t->rank_proc) {
		free(buf);
		return fail(symcclSystemError, "no memory for the table of %d ranks", b->nranks);
	}
	qsort(j->members, (size_t)j->n, sizeof(*j->members), member_compare);
	memcpy(buf, &row, sizeof(row));
	for (int i = 0; i < j->n; i++)
		memcpy(buf + sizeof(row) + (size_t)i * sizeof(int), &j->members[i].rank,
			sizeof(int));
	r = boot_allgather(b, buf, mine, &all, &len, j->deadline);
	free(buf);
	TRY(r);
	TRY(table_fill(t, all, len));
	b->procs = t->procs;
	b->rank_proc = t->rank_proc;
	return symcclSuccess;
}

/* ---- All of it --------------------------------------------------------------------------- */

static void join_log(const struct join *j)
{
	const struct boot *b = &j->t->pub;
	char text[160];

	if (!log_enabled(LOG_INFO, LOG_BOOT))
		return;
	ranks_text(text, sizeof(text), b->procs[b->proc].ranks, b->procs[b->proc].nranks);
	log_info(LOG_BOOT,
		"%s of %d: process %d of %d, node %d of %d, %d neighbours, met in %.1f ms", text,
		b->nranks, b->proc, b->nprocs, j->t->node, b->nnodes, j->t->npeers,
		(double)(now_ns() - j->start) / 1e6);
}

static symcclResult_t join_run(struct join *j)
{
	TRY(join_self(j));
	TRY(join_root(j));
	TRY(join_tree(j));
	TRY(join_table(j));
	TRY(root_send(j, FRAME_DONE, NULL, 0));
	edge_drain(&j->t->root, GIVE_UP_MS);
	edge_close(&j->t->root);
	join_log(j);
	return symcclSuccess;
}

symcclResult_t boot_open(const symcclUniqueId *id, int wakefd, int cancelfd,
	int (*next)(void *arg, struct boot_member *m), void *arg, uint64_t deadline,
	struct boot **boot, struct failure *why)
{
	struct join j = {.wakefd = wakefd, .next = next, .arg = arg, .deadline = deadline};
	symcclResult_t r = boot_id_check(id);
	bool cancelled = false;

	j.start = now_ns();
	memcpy(&j.id, id, sizeof(j.id));
	if (r == symcclSuccess && sodium_init() < 0)
		r = fail(symcclSystemError, "libsodium finds no source of random numbers");
	if (r == symcclSuccess)
		r = tree_new(j.id.secret, &j.t);
	if (r == symcclSuccess) {
		j.t->cancel = cancelfd;
		r = join_run(&j);
		cancelled = r == symcclInProgress;
		if (cancelled)
			r = fail_quiet(symcclRemoteError, "rank %d gave up joining", j.t->my_rank);
		/* Whatever went wrong here is told to the root and the neighbours. */
		if (r != symcclSuccess)
			r = tree_die_here(j.t, r);
	}
	free(j.members);
	if (r == symcclSuccess) {
		*boot = &j.t->pub;
		return r;
	}
	if (j.t)
		*why = j.t->failure;
	else
		failure_set(why, r, -1, "%s", error_text());
	fail_quiet(r, "%s", why->text);
	boot_close(j.t ? &j.t->pub : NULL);
	/* The program may well end now, and with it the only one who can tell the others. */
	if (j.t && !cancelled)
		root_linger(j.id.secret, LINGER_MS);
	return r;
}
