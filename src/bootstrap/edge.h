/*
 * An edge: one authenticated connection, carrying frames both ways, with an outbox so that writing
 * never blocks, and descriptors beside the frames on Unix sockets.
 *
 * Descriptors travel in FRAME_FDS frames of at most EDGE_FDS each, one sendmsg() per frame, before
 * the frame that speaks of them; the receiver queues them in stream order and puts -1 for those the
 * kernel could not install, so the stream stays in step when its table is full.
 */
#ifndef EDGE_H
#define EDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EDGE_FDS 250 /* below the kernel's limit of 253 */

/* Reference counted bytes: one broadcast lies in many outboxes. One thread. */
struct blob {
	int refs;
	size_t len;
	_Alignas(64) char data[];
};
/* One reference; NULL without memory. */
struct blob *blob_new(size_t len);
struct blob *blob_ref(struct blob *b);
void blob_put(struct blob *b); /* NULL is accepted */

enum frame_kind {
	FRAME_DATA = 1, /* one process's (subtree's) part in an operation */
	FRAME_FDS,      /* nfds descriptors */
	FRAME_NOTE,     /* operation seq has begun; going up: the processes it still lacks */
	FRAME_ABORT,    /* struct failure: the communicator is dead */
	FRAME_BYE,      /* the sender leaves in good order */
	FRAME_HELLO,    /* struct wire_hello: a child joins */
	FRAME_MESSAGE,  /* boot_send: seq is the tag */
	FRAME_PROC,     /* to the root: struct wire_proc */
	FRAME_JOIN,     /* to the root: struct wire_member[] */
	FRAME_PLACE,    /* from the root: struct wire_place */
	FRAME_DONE      /* to the root: the tree stands */
};

struct frame {
	uint16_t kind;
	uint16_t op;   /* DATA, NOTE: which operation */
	uint32_t seq;  /* its number */
	uint64_t len;  /* bytes that follow */
	uint64_t left; /* ns the sender is still willing to wait; 0: for ever */
	uint32_t nfds; /* FDS: descriptors with this frame; DATA: in the frames before it */
	int32_t from;  /* process */
};

struct out;

struct edge {
	int fd;       /* -1: none */
	int pidfd;    /* of the process at the other end, -1 when that is not to be had */
	bool is_unix; /* carries descriptors */
	bool broken;  /* writing failed: what is queued is dropped */
	bool stalled; /* too many descriptors in flight: try again in a millisecond */
	int slot;     /* in the pollset, -1: not there */
	int pid_slot;
	size_t max; /* largest body that is accepted */
	int error;  /* after edge_read() < 0: 0 end of stream, else errno */
	/* Receiving. */
	struct frame rx;
	struct blob *body; /* of the frame in rx; NULL when len is 0 */
	size_t rx_got;
	int rx_fds; /* descriptors that came with this frame so far */
	int *fds;   /* queue */
	int nfds, fds_room;
	/* Sending. */
	struct out *out, **out_end;
};

/* Takes fd over. */
void edge_init(struct edge *e, int fd, bool is_unix, size_t max);
/* An edge that is not there. */
void edge_clear(struct edge *e);
/* Close the connection; what has been received stays. */
void edge_hang_up(struct edge *e);
void edge_close(struct edge *e);
/* Watch the process at the other end of a Unix socket (pid as SO_PEERCRED gave it). */
void edge_watch(struct edge *e, int pid);
/* Read on. 1: a frame is complete in rx and body (valid until the next call; take body by setting
 * it to NULL); 0: nothing more for now; -1: the stream has ended, see error. */
int edge_read(struct edge *e);
/* Queue a frame and write what fits. len and nfds of h are filled in from body and the arguments;
 * body (a reference is taken) may be NULL; fds (FRAME_DATA only) must stay open, and the array in
 * place, until edge_idle(). -1 without memory. */
int edge_send(struct edge *e, struct frame h, struct blob *body, const int *fds, int nfds);
int edge_send_copy(struct edge *e, struct frame h, const void *body, size_t len);
/* Write what fits. */
void edge_flush(struct edge *e);
/* Nothing left to write. */
bool edge_idle(const struct edge *e);
/* Forget what has not begun to be written. */
void edge_drop(struct edge *e);
/* Wait until written, at most ms milliseconds. */
void edge_drain(struct edge *e, int ms);
/* Close the queued descriptors. */
void edge_close_fds(struct edge *e);

#endif
