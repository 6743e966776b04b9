/*
 * Addresses: which interfaces this host offers, listening and connecting sockets.
 *
 * The rule for interfaces: SYMCCL_SOCKET_IFNAME when set (comma separated prefixes; a leading ^
 * excludes, a leading = wants whole names), else every interface that is up; docker and virbr
 * bridges after the others, loopback last. SYMCCL_SOCKET_FAMILY restricts the family. Of one
 * interface the first IPv4 and the first global IPv6 address are taken, a link-local one only when
 * there is no other. The choice is logged at SYMCCL_DEBUG=info.
 *
 * All sockets made here are close-on-exec and non-blocking. Functions that return int give -errno.
 */
#ifndef ADDR_H
#define ADDR_H

#include <stddef.h>
#include <stdint.h>
#include "error.h"

#define ADDR_MAX 5
#define ADDR_TEXT 72
#define UNIX_NAME 16

/* One IP address; IPv4 as ::ffff:a.b.c.d. */
struct addr {
	uint8_t ip[16];
	uint32_t scope; /* interface index on the host that wrote it, for link-local addresses */
};

/* Where a process listens. */
struct endpoint {
	uint16_t port;
	uint16_t naddrs;
	struct addr addrs[ADDR_MAX]; /* best first */
};

/* Fill addrs with what this host offers. naddrs 0 is possible only when no interface is up;
 * symcclInvalidUsage when SYMCCL_SOCKET_IFNAME matches none. */
symcclResult_t addr_local(struct endpoint *ep);
/* Look a name or a numeric address up; may block as long as the resolver does. */
symcclResult_t addr_resolve(const char *host, struct addr addrs[ADDR_MAX], int *n);
/* "10.0.0.1:4000", "[fe80::1%2]:4000"; port 0: the address alone. Returns buf. */
const char *addr_text(const struct addr *a, uint16_t port, char buf[ADDR_TEXT]);
/* IPv6 link-local: its scope means nothing on another host. */
int addr_link_local(const struct addr *a);
/* Interfaces of this host that have a link-local address: at most max indexes, returns how many. */
int addr_link_scopes(uint32_t *scopes, int max);

/* Listen on every interface; port 0: any. Returns the socket, *bound its port. */
int addr_listen(uint16_t port, uint16_t *bound);
/* Begin to connect; the socket becomes writable when it is decided. */
int addr_connect(const struct addr *a, uint16_t port);
/* Settings of a connected TCP socket: no delay, and a dead host is noticed within seconds. */
void addr_tune(int fd);

/* The same in the abstract namespace of Unix sockets; the name is made of 16 random bytes. */
int unix_listen(const uint8_t name[UNIX_NAME]);
int unix_connect(const uint8_t name[UNIX_NAME]);
/* The process at the other end: its pid as seen from here (0 when invisible), and -EPERM when it
 * does not run under this process's user. */
int unix_peer(int fd, int *pid);

#endif
