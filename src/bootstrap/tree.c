/* The tree: progress on all edges, deaths, failures, idling, the end. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "tree.h"
#include "util.h"

#define CLOSE_MS 100
#define ABORT_MS 20
#define DOUBT_NS 300000000ull

/* ---- Failure ----------------------------------------------------------------------------- */

const char *peer_text(const struct peer *p, char *buf, size_t size)
{
	snprintf(buf, size, "rank %d (pid %d on host %s)", p->rank, p->pid, p->host);
	return buf;
}

symcclResult_t tree_failed(struct tree *t)
{
	return fail_quiet(t->failure.code, "%s", t->failure.text);
}

symcclResult_t tree_die(struct tree *t, const struct failure *why, const struct peer *except)
{
	struct frame h = {.kind = FRAME_ABORT, .from = t->pub.proc};

	if (t->failure.code != symcclSuccess)
		return t->failure.code;
	t->failure = *why;
	for (int i = 0; i < t->npeers; i++) {
		struct peer *p = &t->peers[i];

		edge_drop(&p->edge); /* their buffers may go now */
		if (p == except || p->edge.fd < 0)
			continue;
		if (edge_send_copy(&p->edge, h, why, sizeof(*why)))
			log_warn(LOG_BOOT, "no memory to tell rank %d of a failure", p->rank);
	}
	if (t->root.fd >= 0)
		(void)edge_send_copy(&t->root, h, why, sizeof(*why));
	return why->code;
}

symcclResult_t tree_die_here(struct tree *t, symcclResult_t code)
{
	struct failure f;

	failure_set(&f, code, t->my_rank, "%s", error_text());
	return tree_die(t, &f, NULL);
}

/* The process behind p has gone without a goodbye. */
static void peer_died(struct tree *t, struct peer *p)
{
	struct failure f;
	char text[160];

	edge_close(&p->edge);
	if (t->failure.code != symcclSuccess)
		return;
	failure_set(&f, symcclRemoteError, p->rank, "%s died", peer_text(p, text, sizeof(text)));
	fail(f.code, "%s", f.text);
	tree_die(t, &f, p);
}

/* While the communicator is set up a neighbour may also be gone because it has been told of a
 * failure elsewhere, and the root knows of that failure, or soon will. */
static void peer_gone(struct tree *t, struct peer *p)
{
	if (t->root.fd < 0) {
		peer_died(t, p);
		return;
	}
	edge_hang_up(&p->edge);
	p->doubt = now_ns() + DOUBT_NS;
}

static void peers_doubt(struct tree *t)
{
	for (int i = 0; i < t->npeers; i++) {
		struct peer *p = &t->peers[i];

		if (p->doubt && (t->root.fd < 0 || now_ns() >= p->doubt)) {
			p->doubt = 0;
			peer_died(t, p);
		}
	}
}

/* The connection is unusable although the process lives. */
static void peer_lost(struct tree *t, struct peer *p, const char *why)
{
	struct failure f;
	char text[160];

	if (t->failure.code == symcclSuccess) {
		failure_set(&f, symcclSystemError, t->my_rank,
			"rank %d lost the connection to %s: %s", t->my_rank,
			peer_text(p, text, sizeof(text)), why);
		fail(f.code, "%s", f.text);
		tree_die(t, &f, p);
	}
	edge_close(&p->edge);
}

/* ---- Frames ------------------------------------------------------------------------------ */

void tree_begun(struct tree *t, uint32_t seq, const struct peer *from)
{
	struct frame h = {.kind = FRAME_NOTE, .seq = seq, .from = t->pub.proc};

	if (seq > t->begun)
		t->begun = seq;
	for (int i = 0; i < t->npeers; i++) {
		struct peer *p = &t->peers[i];

		if (p == from || p->left || p->seen >= seq || p->sent >= seq)
			continue;
		p->sent = seq;
		(void)edge_send(&p->edge, h, NULL, NULL, 0); /* a hint: lost without memory */
	}
}

static void peer_data(struct tree *t, struct peer *p)
{
	if (p->has_data) {
		peer_lost(t, p, "it sent two parts at once (a bug in symccl)");
		return;
	}
	p->has_data = true;
	p->data_head = p->edge.rx;
	p->data = p->edge.body;
	p->edge.body = NULL;
}

static void peer_note(struct peer *p)
{
	const struct blob *b = p->edge.body;

	p->note = p->edge.rx.seq;
	p->nmissing = b ? (int)MIN(b->len / sizeof(int32_t), NOTE_MAX) : 0;
	if (p->nmissing)
		memcpy(p->missing, b->data, (size_t)p->nmissing * sizeof(int32_t));
}

static void peer_abort(struct tree *t, struct peer *p)
{
	struct failure f;

	if (!p->edge.body || p->edge.body->len != sizeof(f))
		return;
	memcpy(&f, p->edge.body->data, sizeof(f));
	f.text[sizeof(f.text) - 1] = 0;
	if (f.code == symcclSuccess)
		f.code = symcclInternalError;
	tree_die(t, &f, p);
}

static void peer_frame(struct tree *t, struct peer *p)
{
	const struct frame *h = &p->edge.rx;

	switch (h->kind) {
	case FRAME_DATA:
	case FRAME_NOTE:
		p->seen = MAX(p->seen, h->seq);
		p->give_up = h->left ? now_ns() + h->left : 0;
		if (h->kind == FRAME_DATA)
			peer_data(t, p);
		else
			peer_note(p);
		if (h->seq > t->begun)
			tree_begun(t, h->seq, p);
		break;
	case FRAME_ABORT:
		peer_abort(t, p);
		break;
	case FRAME_BYE:
		p->left = true;
		break;
	case FRAME_FDS:
		break; /* queued by the edge */
	default:
		log_info(LOG_BOOT, "frame %u from rank %d ignored", h->kind, p->rank);
	}
}

/* Read all there is; notice the end. */
static void peer_step(struct tree *t, struct peer *p)
{
	bool gone = pollset_got(&t->ps, p->edge.pid_slot) != 0;
	int got = 0;

	if (p->edge.fd < 0 || (!gone && !pollset_got(&t->ps, p->edge.slot) && !p->edge.stalled))
		return;
	edge_flush(&p->edge);
	while (p->edge.fd >= 0 && (got = edge_read(&p->edge)) > 0)
		peer_frame(t, p);
	if (p->edge.fd < 0 || (got == 0 && !gone))
		return;
	if (p->left)
		edge_hang_up(&p->edge); /* its last part may not have been used yet */
	else if (got < 0 && (p->edge.error == ENOMEM || p->edge.error == EPROTO))
		peer_lost(t, p, strerror(p->edge.error));
	else if (got < 0 && !gone && !p->here && p->edge.error && p->edge.error != ECONNRESET)
		peer_lost(t, p, strerror(p->edge.error)); /* the network, or its host */
	else
		peer_gone(t, p);
}

/* ---- Progress ---------------------------------------------------------------------------- */

static void edge_poll(struct pollset *ps, struct edge *e, uint64_t *until)
{
	short events = POLLIN;

	e->slot = e->pid_slot = -1;
	if (e->fd < 0)
		return;
	if (e->stalled)
		*until = MIN(*until, now_ns() + 1000000);
	else if (!edge_idle(e))
		events |= POLLOUT;
	e->slot = pollset_add(ps, e->fd, events);
	if (e->pidfd >= 0)
		e->pid_slot = pollset_add(ps, e->pidfd, POLLIN);
}

/* The longest sleep: a descriptor that the program closed under this one wakes nobody. */
#define LOOK_NS 1000000000ull

static symcclResult_t tree_sleep(struct tree *t, uint64_t until)
{
	uint64_t now = now_ns(), ns = until > now ? MIN(until - now, LOOK_NS) : 0;
	struct timespec wait = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
	int ready = ppoll(t->ps.p, (nfds_t)t->ps.n, &wait, NULL);

	if (ready < 0 && errno != EINTR)
		return tree_die_here(
			t, fail(symcclSystemError, "cannot wait for the other processes: %m"));
	for (int i = 0; i < t->ps.n; i++)
		if (ready < 0)
			t->ps.p[i].revents = 0;
		else if (t->ps.p[i].revents & POLLNVAL)
			return tree_die_here(t,
				fail(symcclInvalidUsage,
					"rank %d: the program has closed descriptor %d, which is a "
					"communicator's: close only what you opened",
					t->my_rank, t->ps.p[i].fd));
	return symcclSuccess;
}

static symcclResult_t root_step(struct tree *t)
{
	int got;

	if (t->root.fd < 0 || (!pollset_got(&t->ps, t->root.slot) && !t->root.stalled))
		return symcclSuccess;
	edge_flush(&t->root);
	while ((got = edge_read(&t->root)) > 0)
		TRY(join_frame(t));
	if (got == 0)
		return symcclSuccess;
	got = t->root.error;
	edge_close(&t->root);
	/* Rank 0 may be through with all of it, and gone, before the last ones are. */
	if (t->stands)
		return symcclSuccess;
	return tree_die_here(
		t, fail(symcclRemoteError,
			   "the rendezvous went away (%s); the process that made the unique id, or "
			   "that of "
			   "rank 0, serves it and must live until all ranks have joined",
			   got ? strerror(got) : "connection closed"));
}

symcclResult_t tree_progress(struct tree *t, uint64_t until, int wakefd, bool *woken)
{
	int wake = -1, cancel = -1;

	if (t->failure.code != symcclSuccess)
		return tree_failed(t);
	t->ps.n = 0;
	if (wakefd >= 0)
		wake = pollset_add(&t->ps, wakefd, POLLIN);
	if (t->cancel >= 0)
		cancel = pollset_add(&t->ps, t->cancel, POLLIN);
	for (int i = 0; i < t->npeers; i++) {
		edge_poll(&t->ps, &t->peers[i].edge, &until);
		if (t->peers[i].doubt)
			until = MIN(until, t->peers[i].doubt);
	}
	edge_poll(&t->ps, &t->root, &until);
	guests_poll(t, &until);
	if (t->dial)
		dial_poll(t->dial, &t->ps, &until);
	TRY(tree_sleep(t, until));
	for (int i = 0; i < t->npeers; i++)
		peer_step(t, &t->peers[i]);
	if (t->failure.code == symcclSuccess)
		(void)root_step(t);
	if (t->failure.code == symcclSuccess)
		peers_doubt(t);
	if (t->failure.code == symcclSuccess)
		guests_step(t);
	if (t->dial)
		dial_step(t->dial, &t->ps);
	if (woken)
		*woken = pollset_got(&t->ps, wake) != 0;
	if (t->failure.code != symcclSuccess)
		return tree_failed(t);
	return pollset_got(&t->ps, cancel) ? symcclInProgress : symcclSuccess;
}

/* ---- Life -------------------------------------------------------------------------------- */

struct peer *tree_add_peer(struct tree *t, int fd, bool is_unix)
{
	struct peer *p = &t->peers[t->npeers];
	int pid;

	if (t->npeers == PEERS_MAX)
		return NULL;
	t->npeers++;
	memset(p, 0, sizeof(*p));
	edge_init(&p->edge, fd, is_unix, FRAME_MAX);
	p->here = is_unix;
	if (is_unix && unix_peer(fd, &pid) == 0)
		edge_watch(&p->edge, pid);
	return p;
}

symcclResult_t tree_new(const uint8_t key[AUTH_KEY], struct tree **tree)
{
	struct tree *t = calloc(1, sizeof(*t));

	if (!t)
		return fail(symcclSystemError, "no memory for the bootstrap");
	memcpy(t->key, key, AUTH_KEY);
	t->tcp = t->local = t->cancel = -1;
	t->guests_end = &t->guests;
	edge_clear(&t->root);
	*tree = t;
	return symcclSuccess;
}

void tree_free(struct tree *t)
{
	for (int i = 0; i < t->npeers; i++) {
		edge_close(&t->peers[i].edge);
		blob_put(t->peers[i].data);
	}
	edge_close(&t->root);
	guests_free(t);
	if (t->tcp >= 0)
		close(t->tcp);
	if (t->local >= 0)
		close(t->local);
	if (t->dial) {
		if (t->dial->fd >= 0)
			close(t->dial->fd);
		dial_close(t->dial);
		free(t->dial);
	}
	blob_put(t->result);
	free(t->all);
	free(t->len);
	free(t->procs);
	free(t->endpoints);
	free(t->unix_names);
	free(t->ranks);
	free(t->rank_proc);
	free(t->ps.p);
	free(t);
}

symcclResult_t boot_idle(struct boot *b, int wakefd, int timeout_ms)
{
	struct tree *t = tree_of(b);
	uint64_t until = timeout_ms < 0 ? UINT64_MAX : now_ns() + (uint64_t)timeout_ms * 1000000u;
	bool woken = false;

	symcclResult_t r;

	for (;;) {
		/* Look around in any case: news of a failure comes before an operation's begin. */
		r = tree_progress(t, t->begun > t->seq ? 0 : until, wakefd, &woken);
		if (r == symcclInProgress)
			return symcclSuccess; /* the cancel descriptor wakes as well */
		TRY(r);
		if (t->begun > t->seq)
			return symcclInProgress;
		if (woken || (until != UINT64_MAX && now_ns() >= until))
			return symcclSuccess;
	}
}

void boot_set_cancel(struct boot *b, int cancelfd)
{
	tree_of(b)->cancel = cancelfd;
}

void boot_abort(struct boot *b, const struct failure *why)
{
	struct tree *t = tree_of(b);

	tree_die(t, why, NULL);
	for (int i = 0; i < t->npeers; i++)
		edge_drain(&t->peers[i].edge, ABORT_MS);
}

const struct failure *boot_failure(const struct boot *b)
{
	return &((const struct tree *)(const void *)b)->failure;
}

void boot_close(struct boot *b)
{
	struct frame bye = {.kind = FRAME_BYE};
	uint64_t end = now_ns() + CLOSE_MS * 1000000ull;
	struct tree *t;

	if (!b)
		return;
	t = tree_of(b);
	for (int i = 0; i < t->npeers; i++)
		if (t->failure.code == symcclSuccess)
			(void)edge_send(&t->peers[i].edge, bye, NULL, NULL, 0);
	for (int i = 0; i < t->npeers; i++) {
		uint64_t now = now_ns();

		edge_drain(&t->peers[i].edge, now < end ? (int)((end - now) / 1000000) : 0);
	}
	edge_drain(&t->root, ABORT_MS);
	tree_free(t);
}
