/*
 * Dialling: connect to the first of several addresses behind which someone knows the secret.
 *
 * Several attempts run side by side: the next one starts when one has failed, or after a short
 * while without an answer. When all have failed the round begins again after a pause, until the
 * caller gives up: a listener may not be there yet, or may be closing.
 */
#ifndef DIAL_H
#define DIAL_H

#include "wire.h"

#define DIAL_SLOTS 6

struct target {
	int is_unix;
	uint8_t name[UNIX_NAME];
	struct addr addr;
	uint16_t port;
};

struct attempt {
	int fd; /* -1: free */
	int target;
	int slot; /* in the pollset */
	int connected;
	uint64_t limit;
	struct auth auth;
};

struct dial {
	uint8_t key[AUTH_KEY];
	enum auth_purpose purpose;
	struct target *targets;
	int n, next; /* next target of this round */
	int round;
	int closed;          /* attempts of this round that ended */
	uint64_t next_start; /* not before */
	struct attempt at[DIAL_SLOTS];
	char error[128]; /* why the last attempt failed */
	int fd;          /* the answer: -1 so far; the caller takes it */
	int is_unix;
};

void dial_init(struct dial *d, const uint8_t key[AUTH_KEY], enum auth_purpose purpose);
/* symcclSystemError without memory. */
symcclResult_t dial_add_unix(struct dial *d, const uint8_t name[UNIX_NAME]);
symcclResult_t dial_add(struct dial *d, const struct addr *addrs, int n, uint16_t port, int nports);
/* Start what is due, enter the sockets, lower *until to the next thing that is due. */
void dial_poll(struct dial *d, struct pollset *ps, uint64_t *until);
/* After poll(): go on. d->fd >= 0 when the peer has proved itself; the other attempts are closed.
 */
void dial_step(struct dial *d, const struct pollset *ps);
/* Forget targets and attempts; d->fd is the caller's. */
void dial_close(struct dial *d);
/* "10.0.0.1:4000, [::1]:4000 (connection refused)". Returns buf. */
const char *dial_text(const struct dial *d, char *buf, size_t size);

#endif
