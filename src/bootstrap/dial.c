/* Connecting to one of several candidates. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dial.h"
#include "util.h"

#define MS 1000000ull
#define STAGGER_NS (100 * MS)
#define ATTEMPT_NS (2000 * MS) /* doubled each round, to 16 s */
#define PAUSE_NS (4 * MS)      /* doubled each round, to 128 ms */

void dial_init(struct dial *d, const uint8_t key[AUTH_KEY], enum auth_purpose purpose)
{
	memset(d, 0, sizeof(*d));
	memcpy(d->key, key, AUTH_KEY);
	d->purpose = purpose;
	d->fd = -1;
	for (int i = 0; i < DIAL_SLOTS; i++)
		d->at[i].fd = d->at[i].slot = -1;
	snprintf(d->error, sizeof(d->error), "not tried yet");
}

static symcclResult_t target_add(struct dial *d, const struct target *t)
{
	struct target *p = realloc(d->targets, (size_t)(d->n + 1) * sizeof(*p));

	if (!p)
		return fail(symcclSystemError, "no memory for the addresses of the rendezvous");
	d->targets = p;
	p[d->n++] = *t;
	return symcclSuccess;
}

symcclResult_t dial_add_unix(struct dial *d, const uint8_t name[UNIX_NAME])
{
	struct target t = {.is_unix = 1};

	memcpy(t.name, name, UNIX_NAME);
	return target_add(d, &t);
}

symcclResult_t dial_add(struct dial *d, const struct addr *addrs, int n, uint16_t port, int nports)
{
	uint32_t scopes[8];
	int nscopes;

	for (int p = 0; p < nports; p++)
		for (int i = 0; i < n; i++) {
			struct target t = {.addr = addrs[i], .port = (uint16_t)(port + p)};

			if (!addr_link_local(&t.addr)) {
				TRY(target_add(d, &t));
				continue;
			}
			/* The number of the interface is this host's own business. */
			nscopes = addr_link_scopes(scopes, (int)ARRAY_LEN(scopes));
			for (int s = 0; s < nscopes; s++) {
				t.addr.scope = scopes[s];
				TRY(target_add(d, &t));
			}
		}
	return symcclSuccess;
}

static void attempt_end(struct dial *d, struct attempt *a, const char *why)
{
	if (a->fd >= 0)
		close(a->fd);
	a->fd = a->slot = -1;
	d->closed++;
	d->next_start = 0;
	snprintf(d->error, sizeof(d->error), "%s", why);
	if (d->closed == d->n) { /* the round is over */
		d->closed = d->next = 0;
		d->next_start = now_ns() + (PAUSE_NS << MIN(d->round, 5));
		d->round++;
	}
}

static void attempt_start(struct dial *d, struct attempt *a)
{
	const struct target *t = &d->targets[d->next];
	int fd = t->is_unix ? unix_connect(t->name) : addr_connect(&t->addr, t->port), pid;

	a->target = d->next++;
	a->fd = fd < 0 ? -1 : fd;
	a->connected = 0;
	a->limit = now_ns() + (ATTEMPT_NS << MIN(d->round, 3));
	d->next_start = now_ns() + STAGGER_NS;
	if (fd < 0)
		attempt_end(d, a, strerror(-fd));
	else if (t->is_unix && unix_peer(fd, &pid))
		attempt_end(d, a, "the socket belongs to another user");
	else
		auth_start(&a->auth, fd, d->key, d->purpose, 0);
}

void dial_poll(struct dial *d, struct pollset *ps, uint64_t *until)
{
	for (int i = 0; i < DIAL_SLOTS && d->fd < 0; i++) {
		struct attempt *a = &d->at[i];

		while (a->fd < 0 && d->next < d->n && now_ns() >= d->next_start)
			attempt_start(d, a);
		a->slot = -1;
		if (a->fd < 0)
			continue;
		a->slot = pollset_add(ps, a->fd, a->connected ? POLLIN : POLLOUT);
		*until = MIN(*until, a->limit);
	}
	if (d->fd < 0 && d->next < d->n && d->next_start)
		*until = MIN(*until, d->next_start);
}

/* Whether the peer has proved itself. */
static int attempt_step(struct dial *d, struct attempt *a, short got)
{
	int err = 0, r;
	socklen_t len = sizeof(err);

	if (!got) {
		if (now_ns() >= a->limit)
			attempt_end(d, a,
				a->connected ? "connected, but nothing of ours answers"
					     : "no answer to the connection");
		return 0;
	}
	if (!a->connected) {
		if (getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &err, &len) || err) {
			attempt_end(d, a, strerror(err ? err : errno));
			return 0;
		}
		a->connected = 1;
	}
	r = auth_step(&a->auth, a->fd);
	if (r < 0)
		attempt_end(d, a, "connected, but what answers does not know this id's secret");
	return r > 0;
}

void dial_step(struct dial *d, const struct pollset *ps)
{
	for (int i = 0; i < DIAL_SLOTS && d->fd < 0; i++) {
		struct attempt *a = &d->at[i];

		if (a->fd < 0 || !attempt_step(d, a, pollset_got(ps, a->slot)))
			continue;
		d->fd = a->fd;
		d->is_unix = d->targets[a->target].is_unix;
		if (!d->is_unix)
			addr_tune(d->fd);
		a->fd = -1;
	}
	if (d->fd < 0)
		return;
	for (int i = 0; i < DIAL_SLOTS; i++) {
		if (d->at[i].fd >= 0)
			close(d->at[i].fd);
		d->at[i].fd = -1;
	}
}

void dial_close(struct dial *d)
{
	uint8_t key[AUTH_KEY];

	for (int i = 0; i < DIAL_SLOTS; i++)
		if (d->at[i].fd >= 0)
			close(d->at[i].fd);
	free(d->targets);
	memcpy(key, d->key, sizeof(key));
	dial_init(d, key, d->purpose);
}

const char *dial_text(const struct dial *d, char *buf, size_t size)
{
	char text[ADDR_TEXT];
	size_t at = 0;

	buf[0] = 0;
	for (int i = 0; i < d->n && at + ADDR_TEXT + 20 < size; i++)
		at += (size_t)snprintf(buf + at, size - at, "%s%s", at ? ", " : "",
			d->targets[i].is_unix
				? "this host"
				: addr_text(&d->targets[i].addr, d->targets[i].port, text));
	if (at < size)
		snprintf(buf + at, size - at, " (last error: %s)", d->error);
	return buf;
}
