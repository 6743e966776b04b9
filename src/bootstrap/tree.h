/*
 * Inside a `struct boot`: the tree's edges and everything that arrives on them.
 *
 * tree.c moves bytes and watches for deaths, operations.c runs the collective operations on top,
 * message.c the messages between two processes, rendezvous.c builds it all.
 *
 * An operation goes up and then down: each process waits for its children's parts, hands the joined
 * part to its parent, waits for the result and hands it to its children. So on each edge at most
 * one part is ahead of its reader, and every part is read from the socket as soon as it is there.
 */
#ifndef TREE_H
#define TREE_H

#include <stdbool.h>
#include "bootstrap.h"
#include "dial.h"
#include "edge.h"
#include "tree_shape.h"
#include "wire.h"

#define PEERS_MAX (1 + SHAPE_LOCAL + SHAPE_LEADERS)
#define GUESTS_MAX 64
#define NOTE_MAX 64
#define FRAME_MAX ((size_t)1 << 31) /* bytes of one operation */
#define HELLO_MAX 256

/* A neighbour in the tree. */
struct peer {
	struct edge edge;
	int proc;
	int rank; /* its lowest */
	int pid;
	char host[64];
	bool here;      /* on this node */
	bool left;      /* said goodbye */
	uint64_t doubt; /* gone without a goodbye: until then the root of the rendezvous may say why
			 */
	/* The part that has come and not been used. */
	bool has_data;
	struct frame data_head;
	struct blob *data;
	/* What is known of the operation it is in. */
	uint32_t seen;    /* it has begun this one */
	uint32_t sent;    /* we have told it that this one has begun */
	uint64_t give_up; /* it waits no longer than that (own clock); 0: for ever */
	uint32_t note;    /* missing[] is about this one */
	int nmissing;
	int32_t missing[NOTE_MAX];
};

/* A connection to one of our listeners that has not said yet what it wants. */
struct guest {
	struct guest *next;
	struct edge edge;
	struct auth auth;
	bool known;
	bool early;     /* a child that was told its place before we were told ours */
	uint64_t limit; /* of the handshake */
};

/* A message nobody has asked for yet. */
struct stash {
	struct stash *next;
	int from;
	uint32_t tag;
	struct blob *body; /* NULL: empty */
};

struct tree {
	struct boot pub;
	struct failure failure;
	uint8_t key[AUTH_KEY];
	int my_rank; /* lowest */
	char host[64];
	/* Who may connect: listeners, and their names as others know them. */
	int tcp, local;
	int tcp_slot, local_slot; /* in the pollset */
	struct endpoint endpoint;
	uint8_t unix_name[UNIX_NAME];
	struct guest *guests, **guests_end; /* oldest first */
	int nguests;
	uint64_t deaf; /* no descriptors left: do not accept before then */
	/* The tree: peers[0] is the parent where there is one. */
	struct shape shape;
	int node_proc, node; /* own */
	struct peer peers[PEERS_MAX];
	int npeers;
	bool has_parent;
	/* Set-up only. */
	struct edge root;
	struct wire_place place;
	bool placed, stands; /* place is known; own edges are all there */
	struct dial *dial;
	/* Operations. */
	uint32_t seq;   /* the one in progress, or the last */
	uint32_t begun; /* highest that anyone is known to have begun */
	int cancel;     /* descriptor, -1: none */
	struct blob *result;
	const void **all;
	size_t *len;
	struct stash *stash;
	/* The table of processes. */
	struct boot_proc *procs;
	struct endpoint *endpoints; /* by process; IP addresses of their listeners */
	uint8_t (*unix_names)[UNIX_NAME];
	int *ranks, *rank_proc;
	struct pollset ps;
};

static inline struct tree *tree_of(struct boot *b)
{
	return (struct tree *)(void *)b; /* pub is the first member */
}

/* tree.c: */

/* One round: sleep until something happens, at most until `until` (UINT64_MAX: for ever), and deal
 * with all that has. wakefd (-1: none): *woken is set when it is readable.
 * Return: symcclSuccess; symcclInProgress when the cancel descriptor is readable; the failure. */
symcclResult_t tree_progress(struct tree *t, uint64_t until, int wakefd, bool *woken);
/* The communicator is dead: note why (only the first time), tell all neighbours but `except`. */
symcclResult_t tree_die(struct tree *t, const struct failure *why, const struct peer *except);
/* The same for what this process has just said with fail(). */
symcclResult_t tree_die_here(struct tree *t, symcclResult_t code);
/* Return the failure as this thread's last error. */
symcclResult_t tree_failed(struct tree *t);
/* "rank 3 (pid 12 on host a)". Returns buf. */
const char *peer_text(const struct peer *p, char *buf, size_t size);
/* Operation seq has begun somewhere: tell those who may not know. from: who told us, or NULL. */
void tree_begun(struct tree *t, uint32_t seq, const struct peer *from);
/* The tree's edges for a new neighbour; takes fd over. NULL when there is no place. */
struct peer *tree_add_peer(struct tree *t, int fd, bool is_unix);
symcclResult_t tree_new(const uint8_t key[AUTH_KEY], struct tree **tree);
void tree_free(struct tree *t);

/* guest.c: */

/* Connections to the listeners: enter them into the pollset; go on with them. */
void guests_poll(struct tree *t, uint64_t *until);
void guests_step(struct tree *t);
void guests_free(struct tree *t);
/* Keep a message until boot_recv asks for it. Takes body over. -1 without memory. */
int stash_add(struct tree *t, int from, uint32_t tag, struct blob *body);

/* rendezvous.c: */

/* A frame from the root of the rendezvous. */
symcclResult_t join_frame(struct tree *t);

#endif
