/* One operation on its way over the tree: what operations.c and descriptors.c share. All functions
 * leave the boot dead when they fail, except with symcclInProgress (cancelled). */
#ifndef RUN_H
#define RUN_H

#include "tree.h"
#include "util.h"

#define ALIGN 16

enum op { OP_ALLGATHER = 1, OP_BARRIER, OP_FDS };

/* One operation on its way. */
struct run {
	struct tree *t;
	enum op op;
	bool node_only; /* edges between nodes are left out */
	uint64_t start, deadline, give_up;
	uint64_t tick;
	int nnoted; /* the parent has last heard of these missing ones */
	int32_t noted[NOTE_MAX];
};

/* One process's part inside a larger one; its bytes follow, up to the next multiple of ALIGN. */
struct part {
	int32_t proc;
	int32_t pad;
	uint64_t len;
};
_Static_assert(sizeof(struct part) == ALIGN, "parts stay aligned");

/* operations.c: */

symcclResult_t run_begin(
	struct run *r, struct tree *t, enum op op, bool node_only, uint64_t deadline);
/* Edge i takes part, and leads to a child. */
bool run_child(const struct run *r, int i);
/* NULL at the top. */
struct peer *run_parent(const struct run *r);
/* Until each child's part is in peer->data. */
symcclResult_t run_wait_children(struct run *r);
symcclResult_t run_wait_parent(struct run *r, struct peer *p);
/* Done with the peer's part. */
void peer_used(struct peer *p);
/* Own part and the children's, one after another, in *joined; the children's are used up. */
symcclResult_t run_join(struct run *r, const void *mine, size_t mylen, struct blob **joined);
/* Hand b (may be NULL) and descriptors to a peer; they must stay until run_flush(). */
symcclResult_t run_send(struct run *r, struct peer *p, struct blob *b, const int *fds, int nfds);
/* What has been handed to the sockets must be gone before the caller's descriptors and buffers may
 * change. */
symcclResult_t run_flush(struct run *r);
/* b is the result: to all children and into t->result. Takes b over; includes run_flush(). */
symcclResult_t run_down(struct run *r, struct blob *b, const int *fds, int nfds);
/* Find each process's part in the result; exactly the processes [proc0, proc0 + n). */
symcclResult_t run_split(struct run *r, const struct blob *b, int proc0, int n);
/* Bytes that a part of len bytes takes. */
size_t part_room(size_t len);
symcclResult_t run_no_memory(struct run *r, size_t bytes);

#endif
