/* What processes tell each other while they meet: the unique id's inside, frame bodies, sentences.
 * Little-endian, fixed sizes. */
#ifndef BOOT_WIRE_H
#define BOOT_WIRE_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include "addr.h"
#include "auth.h"
#include "error.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "wire structs are little-endian");

/* Largest body of a frame to or from the root. */
#define WIRE_BODY_MAX 8192

#define WIRE_PROTOCOL 2 /* grows when any struct or frame here changes */

/* How long the sides of the rendezvous wait beyond the root's own deadline, so that the root's
 * sentence, which has the names, wins. */
#define WIRE_GRACE_NS 1500000000ull
/* At least this long for the tree to stand, once all have come. */
#define WIRE_TREE_NS 2000000000ull

#define ID_MAGIC 0x434d5953u /* "SYMC" */
#define ID_FORMAT 1
#define ID_NAME_MAX 100

enum id_flags {
	ID_SERVED = 1 /* the root runs already, at addrs; else rank 0's process runs it, at name */
};

struct id {
	uint32_t magic;
	uint8_t format;
	uint8_t flags;
	uint16_t port, nports;
	uint16_t naddrs;
	uint8_t secret[AUTH_KEY];
	union {
		struct addr addrs[ADDR_MAX];
		char name[ID_NAME_MAX]; /* host name, NUL-terminated */
	};
};
_Static_assert(sizeof(struct id) == SYMCCL_UNIQUE_ID_BYTES, "the id has its size");

/* A process introduces itself. */
struct wire_proc {
	uint32_t protocol; /* stays the first word for ever */
	int32_t pid;
	uint64_t uid;
	uint8_t node[16]; /* equal: same node */
	uint8_t unix_name[UNIX_NAME];
	struct endpoint tcp;
	char host[64];
};

struct wire_member {
	int32_t rank, nranks;
	uint32_t version, config;
};

/* A process's place among the others. */
struct wire_place {
	int32_t nranks, nprocs, nnodes;
	int32_t proc, node, node_proc, node_nprocs, node_proc0;
	int32_t mine; /* ranks of this process that were counted: its first ones */
	int32_t nchildren;
	int32_t parent;      /* process, -1: none */
	int32_t parent_rank; /* its lowest rank */
	int32_t parent_here; /* on the same node */
	struct wire_proc parent_info;
};

struct wire_hello {
	int32_t proc, node, node_proc;
	int32_t rank; /* lowest */
	int32_t pid;
	char host[64];
};

/* The name of the root's Unix socket: whoever has the secret can derive it. */
void wire_root_name(const uint8_t secret[AUTH_KEY], uint8_t name[UNIX_NAME]);

/* "rank 3", "ranks 2, 5-7 and 90 more"; ranks ascending. Returns buf. */
const char *ranks_text(char *buf, size_t size, const int *ranks, int n);
void failure_set(struct failure *f, symcclResult_t code, int rank, const char *fmt, ...)
	__attribute__((format(printf, 4, 5), cold));

/* The descriptors of one poll(). */
struct pollset {
	struct pollfd *p;
	int n, room;
};
/* Slot of the entry; -1 without memory (that descriptor is looked at in the next round). */
int pollset_add(struct pollset *ps, int fd, short events);
short pollset_got(const struct pollset *ps, int slot);

#endif
