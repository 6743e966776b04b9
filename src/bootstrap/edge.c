/* One connection: frames, outbox, descriptors. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "edge.h"
#include "util.h"

struct out {
	struct out *next;
	struct frame h;
	struct blob *body;
	size_t off;     /* bytes written, header included */
	const int *fds; /* borrowed; FRAME_FDS only */
};

union control {
	struct cmsghdr align;
	char buf[CMSG_SPACE(sizeof(int) * (EDGE_FDS + 3))];
};

struct blob *blob_new(size_t len)
{
	struct blob *b = NULL;

	if (len < SIZE_MAX - sizeof(*b) - 64)
		b = aligned_alloc(64, align_up(sizeof(*b) + len, 64));
	if (b) {
		b->refs = 1;
		b->len = len;
	}
	return b;
}

struct blob *blob_ref(struct blob *b)
{
	if (b)
		b->refs++;
	return b;
}

void blob_put(struct blob *b)
{
	if (b && --b->refs == 0)
		free(b);
}

void edge_clear(struct edge *e)
{
	memset(e, 0, sizeof(*e));
	e->fd = e->pidfd = -1;
	e->slot = e->pid_slot = -1;
	e->out_end = &e->out;
}

void edge_init(struct edge *e, int fd, bool is_unix, size_t max)
{
	edge_clear(e);
	e->fd = fd;
	e->is_unix = is_unix;
	e->max = max;
}

void edge_watch(struct edge *e, int pid)
{
	if (pid > 0 && e->pidfd < 0)
		e->pidfd = (int)syscall(SYS_pidfd_open, pid, 0); /* close-on-exec by nature */
}

static void out_free(struct out *o)
{
	blob_put(o->body);
	free(o);
}

void edge_close_fds(struct edge *e)
{
	for (int i = 0; i < e->nfds; i++)
		if (e->fds[i] >= 0)
			close(e->fds[i]);
	e->nfds = 0;
}

void edge_hang_up(struct edge *e)
{
	while (e->out) {
		struct out *o = e->out;

		e->out = o->next;
		out_free(o);
	}
	e->out_end = &e->out;
	if (e->fd >= 0)
		close(e->fd);
	if (e->pidfd >= 0)
		close(e->pidfd);
	e->fd = e->pidfd = -1;
}

void edge_close(struct edge *e)
{
	edge_hang_up(e);
	blob_put(e->body);
	edge_close_fds(e);
	free(e->fds);
	edge_clear(e);
}

/* ---- Receiving --------------------------------------------------------------------------- */

/* Room for n more descriptors in the queue. */
static int fds_reserve(struct edge *e, int n)
{
	int room = MAX(e->fds_room, 16);
	int *p;

	while (room < e->nfds + n)
		room *= 2;
	if (room == e->fds_room)
		return 0;
	p = realloc(e->fds, (size_t)room * sizeof(*p));
	if (!p)
		return -1;
	e->fds = p;
	e->fds_room = room;
	return 0;
}

static void fds_take(struct edge *e, struct msghdr *m)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		int n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int)), fd;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (int i = 0; i < n; i++) {
			memcpy(&fd, CMSG_DATA(c) + (size_t)i * sizeof(fd), sizeof(fd));
			/* More than one frame may carry, or no memory: as if never received. */
			if (e->rx_fds == EDGE_FDS || fds_reserve(e, 1)) {
				close(fd);
				continue;
			}
			e->fds[e->nfds++] = fd;
			e->rx_fds++;
		}
	}
}

/* Bytes read, 0 for now none, -1 end or error. */
static ssize_t edge_recv(struct edge *e, void *buf, size_t len)
{
	union control control;
	struct iovec iov = {buf, len};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (e->is_unix) {
		m.msg_control = control.buf;
		m.msg_controllen = sizeof(control.buf);
	}
	do
		n = recvmsg(e->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n > 0) {
		if (e->is_unix)
			fds_take(e, &m);
		return n;
	}
	if (n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM))
		return 0;
	e->error = n == 0 ? 0 : errno;
	return -1;
}

static void frame_reset(struct edge *e)
{
	/* Descriptors nobody announced belong to nobody. */
	if (e->rx.kind != FRAME_FDS)
		while (e->rx_fds > 0) {
			close(e->fds[--e->nfds]);
			e->rx_fds--;
		}
	blob_put(e->body);
	e->body = NULL;
	e->rx_got = 0;
	e->rx_fds = 0;
}

/* The header is there: is it one, and have its descriptors come? */
static int frame_begin(struct edge *e)
{
	int want = e->rx.kind == FRAME_FDS ? (int)e->rx.nfds : 0;

	if (e->rx.len > e->max || want > EDGE_FDS || (want && !e->is_unix) ||
		(want && e->rx_fds > want)) {
		e->error = EPROTO;
		return -1;
	}
	if (fds_reserve(e, MAX(want - e->rx_fds, 0)) ||
		(e->rx.len && !(e->body = blob_new(e->rx.len)))) {
		e->error = ENOMEM;
		return -1;
	}
	while (e->rx_fds < want) {
		e->fds[e->nfds++] = -1;
		e->rx_fds++;
	}
	return 0;
}

int edge_read(struct edge *e)
{
	const size_t head = sizeof(e->rx);
	ssize_t n;

	if (e->fd < 0)
		return 0;
	if (e->rx_got >= head && e->rx_got == head + e->rx.len)
		frame_reset(e);
	/* Never read into the next frame: its descriptors would be taken for this one's. */
	while (e->rx_got < head) {
		n = edge_recv(e, (char *)&e->rx + e->rx_got, head - e->rx_got);
		if (n <= 0)
			return (int)n;
		e->rx_got += (size_t)n;
		if (e->rx_got == head && frame_begin(e))
			return -1;
	}
	while (e->rx_got < head + e->rx.len) {
		n = edge_recv(e, e->body->data + (e->rx_got - head), head + e->rx.len - e->rx_got);
		if (n <= 0)
			return (int)n;
		e->rx_got += (size_t)n;
	}
	return 1;
}

/* ---- Sending ----------------------------------------------------------------------------- */

static int out_add(struct edge *e, struct frame h, struct blob *body, const int *fds)
{
	struct out *o = calloc(1, sizeof(*o));

	if (!o)
		return -1;
	o->h = h;
	o->body = blob_ref(body);
	o->h.len = body ? body->len : 0;
	o->fds = fds;
	*e->out_end = o;
	e->out_end = &o->next;
	return 0;
}

int edge_send(struct edge *e, struct frame h, struct blob *body, const int *fds, int nfds)
{
	struct frame hf = {.kind = FRAME_FDS, .op = h.op, .seq = h.seq, .from = h.from};

	if (e->fd < 0 || e->broken)
		return 0;
	for (int i = 0; i < nfds; i += EDGE_FDS) {
		hf.nfds = (uint32_t)MIN(nfds - i, EDGE_FDS);
		if (out_add(e, hf, NULL, fds + i))
			return -1;
	}
	h.nfds = (uint32_t)nfds;
	if (out_add(e, h, body, NULL))
		return -1;
	edge_flush(e);
	return 0;
}

int edge_send_copy(struct edge *e, struct frame h, const void *body, size_t len)
{
	struct blob *b = blob_new(len);
	int r;

	if (!b)
		return -1;
	if (len)
		memcpy(b->data, body, len);
	r = edge_send(e, h, b, NULL, 0);
	blob_put(b);
	return r;
}

static ssize_t out_write(struct edge *e, struct out *o)
{
	const size_t head = sizeof(o->h);
	union control control;
	struct iovec iov[2];
	struct msghdr m = {.msg_iov = iov};

	if (o->off < head)
		iov[m.msg_iovlen++] = (struct iovec){(char *)&o->h + o->off, head - o->off};
	if (o->body) {
		size_t done = o->off > head ? o->off - head : 0;

		iov[m.msg_iovlen++] = (struct iovec){o->body->data + done, o->body->len - done};
	}
	/* The descriptors go with the frame's first byte. */
	if (o->fds && o->off == 0) {
		size_t bytes = o->h.nfds * sizeof(int);
		struct cmsghdr *c;

		memset(&control, 0, sizeof(control));
		m.msg_control = control.buf;
		m.msg_controllen = CMSG_SPACE(bytes);
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(bytes);
		memcpy(CMSG_DATA(c), o->fds, bytes);
	}
	return sendmsg(e->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void out_drop(struct edge *e, struct out **from)
{
	while (*from) {
		struct out *o = *from;

		*from = o->next;
		out_free(o);
	}
	e->out_end = from;
}

void edge_flush(struct edge *e)
{
	e->stalled = false;
	while (e->out && e->fd >= 0) {
		struct out *o = e->out;
		ssize_t n = out_write(e, o);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == ETOOMANYREFS || errno == ENOBUFS)) {
			e->stalled = errno != EAGAIN;
			return;
		}
		if (n < 0) {
			/* What the peer said before it went is still to be read. */
			e->broken = true;
			out_drop(e, &e->out);
			return;
		}
		o->off += (size_t)n;
		if (o->off < sizeof(o->h) + o->h.len)
			continue;
		e->out = o->next;
		if (!e->out)
			e->out_end = &e->out;
		out_free(o);
	}
}

bool edge_idle(const struct edge *e)
{
	return e->fd < 0 || !e->out;
}

void edge_drop(struct edge *e)
{
	out_drop(e, e->out && e->out->off ? &e->out->next : &e->out);
}

void edge_drain(struct edge *e, int ms)
{
	uint64_t end = now_ns() + (uint64_t)ms * 1000000u;

	edge_flush(e);
	while (!edge_idle(e)) {
		uint64_t now = now_ns();
		struct pollfd p = {e->fd, POLLOUT, 0};

		if (now >= end)
			return;
		poll(&p, 1, (int)((end - now) / 1000000u) + 1);
		edge_flush(e);
	}
}
