/* What root.c (connections, thread) and root_ranks.c (who has come, who goes where) share. */
#ifndef ROOT_PRIVATE_H
#define ROOT_PRIVATE_H

#include "edge.h"
#include "root.h"
#include "wire.h"

enum conn_state {
	CONN_STRANGER, /* has not proved the secret */
	CONN_KNOWN,    /* has; its introduction is due */
	CONN_PROC,     /* a process; its ranks come */
	CONN_DONE      /* its tree stands, it has gone, or it was dropped */
};

struct conn {
	struct conn *next, *prev;
	struct edge edge;
	struct auth auth;
	enum conn_state state;
	int is_unix;
	bool wants_out; /* epoll watches for room */
	uint64_t limit; /* strangers: of the handshake */
	struct wire_proc info;
	int nranks, lowest;        /* ranks that have joined */
	int proc, node, node_proc; /* place */
};

struct conn_list {
	struct conn *first, *last;
	int n;
};

enum root_state {
	ROOT_JOINING, /* ranks come */
	ROOT_PLACED,  /* all have; trees are being built */
	ROOT_FAILED   /* everyone is told why */
};

struct root {
	struct root *next;
	uint8_t key[AUTH_KEY];
	uint16_t port;
	int tcp, local;  /* listeners, -1: closed */
	int epoll, stop; /* stop: eventfd */
	bool stopping;
	uint64_t deaf; /* no descriptors left: until then the listeners are out of epoll */
	enum root_state state;
	bool was_deaf;
	int strangers_max;
	struct conn_list trying;  /* strangers, oldest first */
	struct conn_list procs;   /* the others */
	int nopen;                /* connections in state CONN_PROC */
	uint64_t start, deadline; /* 0: no rank yet; no limit */
	double timeout;           /* SYMCCL_SETUP_TIMEOUT */
	/* Ranks. */
	int nranks, joined, told;
	struct conn **by_rank;
	struct wire_member first; /* the rank the others are compared with */
	int nprocs, nplaced, ndone;
	struct failure failure;
};

/* root_ranks.c: */

/* Ranks of connection c. */
void root_join(struct root *r, struct conn *c, const struct wire_member *m, int n);
/* "rank 3 (pid 12 on host a)" of a process that has joined. Returns buf. */
const char *conn_text(const struct conn *c, char *buf, size_t size);
/* The deadline has passed: say who is missing. */
void root_expire(struct root *r);

/* root.c: */

/* Everyone is told, now and later; only the first failure counts. */
void root_fail(struct root *r, const struct failure *f);
void conn_send(struct root *r, struct conn *c, int kind, const void *body, size_t len);
/* All ranks have come: nobody else may. */
void root_stop_listening(struct root *r);

#endif
