/*
 * Reading and writing a peer's plain memory: by loads and stores when it lives in this process,
 * else by process_vm_readv(2) and process_vm_writev(2), which ask for the same rights. Only when
 * team->readable (all ranks have tried at init).
 */
#ifndef HOST_PEER_READ_H
#define HOST_PEER_READ_H

#include "coll/coll.h"

/* Copy n bytes at address `src` of rank `peer` to dst. Looks at the abort word now and then. */
symcclResult_t peer_read(
	const struct coll_team *t, int peer, void *dst, const void *src, size_t n, int stream);
/* The other way: from src to address `dst` of the peer. */
symcclResult_t peer_write(
	const struct coll_team *t, int peer, void *dst, const void *src, size_t n);

#endif
