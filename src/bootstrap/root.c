/* The root's thread: listeners, connections, deadlines. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "params.h"
#include "root_private.h"
#include "thread.h"
#include "util.h"

#define HANDSHAKE_NS 5000000000ull
#define DEAF_NS 100000000ull
#define WATCH_MAX 256 /* processes watched by pidfd: half of a usual limit of descriptors */
/* A failed root without a deadline stays this long for late comers. */
#define FAILED_NS 60000000000ull
#define ROOT_STACK (256u << 10)

/* All roots of this process. A root works with the lock held, and sleeps without it, so that fork()
 * finds every root in order and the child can close its descriptors. */
static pthread_mutex_t roots_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t roots_gone = PTHREAD_COND_INITIALIZER;
static pthread_once_t roots_once = PTHREAD_ONCE_INIT;
static struct root *roots;

/* ---- Connections ------------------------------------------------------------------------- */

static void list_add(struct conn_list *l, struct conn *c)
{
	c->next = NULL;
	c->prev = l->last;
	*(l->last ? &l->last->next : &l->first) = c;
	l->last = c;
	l->n++;
}

static void list_remove(struct conn_list *l, struct conn *c)
{
	*(c->prev ? &c->prev->next : &l->first) = c->next;
	*(c->next ? &c->next->prev : &l->last) = c->prev;
	l->n--;
}

static void conn_set_state(struct root *r, struct conn *c, enum conn_state state)
{
	r->nopen += (state == CONN_PROC) - (c->state == CONN_PROC);
	if (c->state == CONN_STRANGER) {
		list_remove(&r->trying, c);
		list_add(&r->procs, c);
	}
	c->state = state;
}

/* Without the explicit removal a copy of the descriptor in a forked child would keep reporting. */
static void conn_close(struct root *r, struct conn *c)
{
	if (c->edge.fd >= 0)
		epoll_ctl(r->epoll, EPOLL_CTL_DEL, c->edge.fd, NULL);
	if (c->edge.pidfd >= 0)
		epoll_ctl(r->epoll, EPOLL_CTL_DEL, c->edge.pidfd, NULL);
	edge_close(&c->edge);
}

static void conn_free(struct root *r, struct conn *c)
{
	r->nopen -= c->state == CONN_PROC;
	list_remove(c->state == CONN_STRANGER ? &r->trying : &r->procs, c);
	conn_close(r, c);
	free(c);
}

/* In the table of ranks it stays, without its socket, for what it has said. */
static void conn_drop(struct root *r, struct conn *c)
{
	if (c->nranks == 0) {
		conn_free(r, c);
		return;
	}
	conn_close(r, c);
	conn_set_state(r, c, CONN_DONE);
}

static void conn_watch_out(struct root *r, struct conn *c)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
	bool want = !edge_idle(&c->edge);

	if (want == c->wants_out || c->edge.fd < 0)
		return;
	ev.events |= want ? (uint32_t)EPOLLOUT : 0;
	epoll_ctl(r->epoll, EPOLL_CTL_MOD, c->edge.fd, &ev);
	c->wants_out = want;
}

void conn_send(struct root *r, struct conn *c, int kind, const void *body, size_t len)
{
	struct frame h = {.kind = (uint16_t)kind};

	/* Without memory this process times out; the others are not disturbed. */
	if (edge_send_copy(&c->edge, h, body, len))
		log_warn(LOG_BOOT, "the root of the rendezvous has no memory for an answer");
	conn_watch_out(r, c);
}

/* No descriptors: rather than spin, do not listen until some strangers have timed out. */
static void root_deafen(struct root *r)
{
	if (!r->was_deaf)
		log_warn(LOG_BOOT, "no descriptor for another process at the rendezvous, raise "
				   "the limit (ulimit -n): %m");
	r->was_deaf = true;
	if (r->trying.first)
		conn_free(r, r->trying.first);
	r->deaf = now_ns() + DEAF_NS;
}

/* Whether there may be more to accept. */
static bool conn_accept(struct root *r, int listener, int is_unix)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct conn *c;

	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
			root_deafen(r);
		return false;
	}
	if (r->trying.n >= r->strangers_max)
		conn_free(r, r->trying.first);
	c = calloc(1, sizeof(*c));
	if (!c) {
		close(fd);
		return false;
	}
	edge_init(&c->edge, fd, is_unix, WIRE_BODY_MAX);
	c->is_unix = is_unix;
	c->limit = now_ns() + HANDSHAKE_NS;
	list_add(&r->trying, c);
	ev.data.ptr = c;
	if (auth_start(&c->auth, fd, r->key, AUTH_ROOT, 1) < 0 ||
		epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &ev))
		conn_free(r, c);
	return true;
}

static void conn_introduce(struct root *r, struct conn *c)
{
	struct failure f;
	uint32_t protocol = 0;
	int pid;

	memcpy(&protocol, c->edge.body->data, MIN(c->edge.body->len, sizeof(protocol)));
	if (protocol != WIRE_PROTOCOL || c->edge.body->len != sizeof(c->info)) {
		failure_set(&f, symcclInvalidUsage, -1,
			"processes run different versions of symccl: one speaks protocol %u, the "
			"root of "
			"the rendezvous %u",
			protocol, WIRE_PROTOCOL);
		root_fail(r, &f);
		conn_send(r, c, FRAME_ABORT, &r->failure, sizeof(r->failure));
		return;
	}
	memcpy(&c->info, c->edge.body->data, sizeof(c->info));
	c->info.host[sizeof(c->info.host) - 1] = 0;
	conn_set_state(r, c, CONN_PROC);
	if (c->is_unix && r->procs.n < WATCH_MAX && unix_peer(c->edge.fd, &pid) == 0) {
		struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};

		/* Sees a death also when a child of that process keeps the socket open. */
		edge_watch(&c->edge, pid);
		if (c->edge.pidfd >= 0)
			epoll_ctl(r->epoll, EPOLL_CTL_ADD, c->edge.pidfd, &ev);
	}
	if (!r->start) {
		r->start = now_ns();
		if (r->timeout > 0)
			r->deadline = r->start + (uint64_t)(r->timeout * 1e9);
	}
	if (r->state == ROOT_FAILED)
		conn_send(r, c, FRAME_ABORT, &r->failure, sizeof(r->failure));
}

static void conn_frame(struct root *r, struct conn *c)
{
	struct blob *body = c->edge.body;
	struct failure f;

	if (c->state == CONN_KNOWN && c->edge.rx.kind == FRAME_PROC && body) {
		conn_introduce(r, c);
	} else if (c->state != CONN_PROC) {
		return;
	} else if (c->edge.rx.kind == FRAME_JOIN && body &&
		   body->len % sizeof(struct wire_member) == 0) {
		root_join(r, c, (const struct wire_member *)(const void *)body->data,
			(int)(body->len / sizeof(struct wire_member)));
	} else if (c->edge.rx.kind == FRAME_ABORT && body && body->len == sizeof(f)) {
		memcpy(&f, body->data, sizeof(f));
		f.text[sizeof(f.text) - 1] = 0;
		root_fail(r, &f);
	} else if (c->edge.rx.kind == FRAME_DONE && r->state == ROOT_PLACED) {
		conn_set_state(r, c, CONN_DONE);
		r->ndone++;
	}
}

/* The connection has ended. */
static void conn_ended(struct root *r, struct conn *c)
{
	struct failure f;
	char text[160];

	if (c->state == CONN_PROC && c->nranks && r->state != ROOT_FAILED) {
		conn_text(c, text, sizeof(text));
		if (r->state == ROOT_JOINING)
			failure_set(&f, symcclRemoteError, c->lowest,
				"%s died before all ranks had joined (%d of %d had)", text,
				r->joined, r->nranks);
		else
			failure_set(&f, symcclRemoteError, c->lowest,
				"%s died while the communicator was being set up", text);
		root_fail(r, &f);
	}
	conn_drop(r, c);
}

static void conn_event(struct root *r, struct conn *c)
{
	int got = 0;

	if (c->state == CONN_STRANGER) {
		got = auth_step(&c->auth, c->edge.fd);
		if (got < 0)
			conn_free(r, c);
		if (got <= 0)
			return;
		conn_set_state(r, c, CONN_KNOWN);
		if (!c->is_unix)
			addr_tune(c->edge.fd);
	}
	edge_flush(&c->edge);
	while ((got = edge_read(&c->edge)) > 0)
		conn_frame(r, c);
	if (got == 0 && c->edge.pidfd >= 0) {
		struct pollfd p = {c->edge.pidfd, POLLIN, 0};

		if (poll(&p, 1, 0) > 0) {
			/* What it said last comes first. */
			while (edge_read(&c->edge) > 0)
				conn_frame(r, c);
			got = -1;
		}
	}
	if (got < 0)
		conn_ended(r, c);
	else
		conn_watch_out(r, c);
}

/* ---- The root ---------------------------------------------------------------------------- */

void root_fail(struct root *r, const struct failure *f)
{
	if (r->state == ROOT_FAILED)
		return;
	r->state = ROOT_FAILED;
	r->failure = *f;
	r->told += r->joined;
	if (!r->deadline)
		r->deadline = now_ns() + FAILED_NS;
	log_info(LOG_BOOT, "rendezvous at port %u failed: %s", r->port, f->text);
	/* This very process last: it may end, and this thread with it, as soon as it knows. */
	for (int own = 0; own < 2; own++)
		for (struct conn *c = r->procs.first; c; c = c->next)
			if (c->state == CONN_PROC && (c->info.pid == getpid()) == own)
				conn_send(r, c, FRAME_ABORT, f, sizeof(*f));
}

void root_stop_listening(struct root *r)
{
	if (r->tcp >= 0)
		close(r->tcp);
	if (r->local >= 0)
		close(r->local);
	r->tcp = r->local = -1;
}

static void root_listen_events(struct root *r, int on)
{
	struct epoll_event tcp = {.events = EPOLLIN, .data.ptr = &r->tcp};
	struct epoll_event local = {.events = EPOLLIN, .data.ptr = &r->local};
	int op = on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;

	if (r->tcp >= 0)
		epoll_ctl(r->epoll, op, r->tcp, &tcp);
	if (r->local >= 0)
		epoll_ctl(r->epoll, op, r->local, &local);
}

static bool root_over(const struct root *r, uint64_t now)
{
	if (r->stopping)
		return true;
	if (r->state == ROOT_PLACED)
		return r->ndone == r->nplaced;
	if (r->state != ROOT_FAILED)
		return false;
	if (now >= r->deadline)
		return true;
	/* All have been told; they close when they have read it. */
	return r->nopen == 0 && r->nranks && r->told >= r->nranks;
}

/* What is due by the clock; returns the time to sleep until. */
static uint64_t root_tick(struct root *r)
{
	uint64_t now = now_ns(), until = UINT64_MAX;

	while (r->trying.first && r->trying.first->limit <= now)
		conn_free(r, r->trying.first);
	if (r->trying.first)
		until = r->trying.first->limit;
	if (r->deadline && now >= r->deadline && r->state != ROOT_FAILED) {
		root_expire(r);
		/* Time to read the answer, and for those who come a little late. */
		r->deadline = now + 2 * WIRE_GRACE_NS;
	}
	if (r->deadline)
		until = MIN(until, r->deadline);
	if (r->deaf && now >= r->deaf) {
		r->deaf = 0;
		root_listen_events(r, 1);
	}
	if (r->deaf)
		until = MIN(until, r->deaf);
	return until;
}

static void root_event(struct root *r, void *what)
{
	int *listener = what;

	if (what == &r->stop)
		return;
	if (what != &r->tcp && what != &r->local) {
		conn_event(r, what);
		return;
	}
	for (int k = 0; k < 64 && *listener >= 0; k++)
		if (!conn_accept(r, *listener, what == &r->local))
			break;
	if (r->deaf)
		root_listen_events(r, 0);
}

static void root_free(struct root *r)
{
	root_stop_listening(r);
	while (r->trying.first)
		conn_free(r, r->trying.first);
	while (r->procs.first)
		conn_free(r, r->procs.first);
	if (r->epoll >= 0)
		close(r->epoll);
	if (r->stop >= 0)
		close(r->stop);
	free(r->by_rank);
	free(r);
}

/* The longest sleep: a descriptor that the program closed under this one wakes nobody. */
#define LOOK_MS 1000

static void *root_main(void *arg)
{
	struct root *r = arg;
	struct root **at;
	struct epoll_event ev;

	pthread_mutex_lock(&roots_lock);
	while (!root_over(r, now_ns())) {
		uint64_t until = root_tick(r), now = now_ns();
		int ms = until <= now ? 0 : (int)MIN((until - now) / 1000000 + 1, LOOK_MS), n;

		pthread_mutex_unlock(&roots_lock);
		/* One event at a time: handling one may free what another one points to. */
		n = epoll_wait(r->epoll, &ev, 1, ms);
		pthread_mutex_lock(&roots_lock);
		if (n > 0)
			root_event(r, ev.data.ptr);
		else if (n < 0 && errno != EINTR)
			r->stopping = true; /* the program has closed it */
	}
	for (at = &roots; *at != r; at = &(*at)->next)
		;
	*at = r->next;
	root_free(r);
	pthread_cond_broadcast(&roots_gone);
	pthread_mutex_unlock(&roots_lock);
	return NULL;
}

/* ---- Starting ---------------------------------------------------------------------------- */

static void roots_fork_prepare(void)
{
	pthread_mutex_lock(&roots_lock);
}

static void roots_fork_parent(void)
{
	pthread_mutex_unlock(&roots_lock);
}

/* The child has the descriptors but no thread. The epoll instance is shared with the parent: it
 * must not be told that the connections go. */
static void roots_fork_child(void)
{
	while (roots) {
		struct root *r = roots;

		roots = r->next;
		close(r->epoll);
		r->epoll = -1;
		root_free(r);
	}
	pthread_mutex_unlock(&roots_lock);
}

static void roots_init(void)
{
	pthread_atfork(roots_fork_prepare, roots_fork_parent, roots_fork_child);
}

static struct root *roots_find(const uint8_t key[AUTH_KEY])
{
	struct root *r = roots;

	while (r && (r->state == ROOT_PLACED || memcmp(r->key, key, AUTH_KEY) != 0))
		r = r->next;
	return r;
}

uint16_t root_find(const uint8_t secret[AUTH_KEY])
{
	const struct root *r;
	uint16_t port = 0;

	pthread_mutex_lock(&roots_lock);
	r = roots_find(secret);
	if (r && r->state == ROOT_JOINING)
		port = r->port;
	pthread_mutex_unlock(&roots_lock);
	return port;
}

void root_linger(const uint8_t secret[AUTH_KEY], int ms)
{
	uint64_t ns = now_ns() + (uint64_t)ms * 1000000u;
	struct timespec end = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};

	pthread_mutex_lock(&roots_lock);
	while (roots_find(secret) &&
		pthread_cond_clockwait(&roots_gone, &roots_lock, CLOCK_MONOTONIC, &end) == 0)
		;
	pthread_mutex_unlock(&roots_lock);
}

int root_count(void)
{
	int n = 0;

	pthread_mutex_lock(&roots_lock);
	for (const struct root *r = roots; r; r = r->next)
		n++;
	pthread_mutex_unlock(&roots_lock);
	return n;
}

static symcclResult_t root_listen(struct root *r, uint16_t port, uint16_t nports)
{
	uint8_t name[UNIX_NAME];

	for (int i = 0; i < nports && r->tcp < 0; i++)
		r->tcp = addr_listen(port ? (uint16_t)(port + i) : 0, &r->port);
	errno = -r->tcp;
	if (r->tcp == -EADDRINUSE && nports == 1)
		return fail(symcclSystemError,
			"port %u is in use, so rank 0 cannot serve the rendezvous there; choose "
			"another port (SYMCCL_COMM_ID)",
			port);
	if (r->tcp < 0)
		return fail(symcclSystemError,
			"cannot listen on port %u to %u for the rendezvous: %m", port,
			port ? port + nports - 1 : 0);
	wire_root_name(r->key, name);
	r->local = unix_listen(name);
	if (r->local < 0) {
		errno = -r->local;
		log_info(LOG_BOOT, "the rendezvous has no Unix socket, TCP must do: %m");
	}
	return symcclSuccess;
}

static symcclResult_t root_spawn(struct root *r)
{
	int err = thread_start(NULL, ROOT_STACK, root_main, r);

	errno = err;
	return err ? fail(symcclSystemError, "cannot start the rendezvous thread: %m")
		   : symcclSuccess;
}

/* One that waits or has failed would only be in the way of the new one. */
static void roots_stop(const uint8_t key[AUTH_KEY])
{
	struct root *r;

	while ((r = roots_find(key))) {
		uint64_t one = 1;

		r->stopping = true;
		if (write(r->stop, &one, sizeof(one)) < 0)
			log_warn(LOG_BOOT, "cannot wake the rendezvous thread: %m");
		pthread_cond_wait(&roots_gone, &roots_lock);
	}
}

void root_stop(const uint8_t secret[AUTH_KEY])
{
	pthread_mutex_lock(&roots_lock);
	roots_stop(secret);
	pthread_mutex_unlock(&roots_lock);
}

symcclResult_t root_start(
	const uint8_t secret[AUTH_KEY], uint16_t port, uint16_t nports, uint16_t *bound)
{
	struct root *r = calloc(1, sizeof(*r));
	struct epoll_event ev = {.events = EPOLLIN};
	struct rlimit limit;
	symcclResult_t result;

	if (!r)
		return fail(symcclSystemError, "no memory for the rendezvous");
	memcpy(r->key, secret, AUTH_KEY);
	r->timeout = params_get()->setup_timeout;
	r->strangers_max = ROOT_STRANGERS;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
		r->strangers_max = (int)MAX(MIN(limit.rlim_cur / 4, ROOT_STRANGERS), 16);
	r->tcp = r->local = -1;
	r->epoll = epoll_create1(EPOLL_CLOEXEC);
	r->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_once(&roots_once, roots_init);
	pthread_mutex_lock(&roots_lock);
	roots_stop(secret);
	ev.data.ptr = &r->stop;
	if (r->epoll < 0 || r->stop < 0 || epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->stop, &ev))
		result = fail(symcclSystemError, "cannot start the rendezvous: %m");
	else
		result = root_listen(r, port, nports);
	if (result == symcclSuccess) {
		*bound = r->port;
		root_listen_events(r, 1);
		result = root_spawn(r);
	}
	if (result == symcclSuccess) {
		r->next = roots;
		roots = r;
	} else {
		root_free(r);
	}
	pthread_mutex_unlock(&roots_lock);
	return result;
}
