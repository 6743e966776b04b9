/*
 * The root of a rendezvous: a detached thread that listens on TCP and on an abstract Unix socket
 * (whose name comes from the secret), takes in one connection per process, checks that the ranks
 * agree, and tells each process its place. Its work is O(n log n).
 *
 * From the first rank's arrival it waits SYMCCL_SETUP_TIMEOUT. The first thing that goes wrong (a
 * disagreement, a death, the deadline) is what every process is told, also those that come later.
 * It ends when the tree of all processes stands, or all have been told that it will not.
 *
 * Who does not prove the secret within 5 s is dropped; of those who are trying the oldest goes when
 * they hold a quarter of the descriptors that this process may have (or ROOT_STRANGERS). Nothing a
 * stranger does delays others.
 */
#ifndef ROOT_H
#define ROOT_H

#include "auth.h"
#include "error.h"

#define ROOT_STRANGERS 1024

/* Listen on the first free port of [port, port + nports) (port 0: any) and start the thread.
 * A root of this process for the same secret that has failed is stopped first.
 * Return: symcclSystemError; it names the port when that is taken. */
symcclResult_t root_start(
	const uint8_t secret[AUTH_KEY], uint16_t port, uint16_t nports, uint16_t *bound);
/* The port of this process's live root for the secret; 0: there is none. */
uint16_t root_find(const uint8_t secret[AUTH_KEY]);
/* Where this process has a root for the secret that is not done: give it at most so long to tell
 * those who come late why it failed. */
void root_linger(const uint8_t secret[AUTH_KEY], int ms);
/* Stop this process's root for the secret, unless all ranks have come; waits until it is gone. */
void root_stop(const uint8_t secret[AUTH_KEY]);
/* How many roots are alive in this process. For tests. */
int root_count(void);

#endif
