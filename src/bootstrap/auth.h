/*
 * Proof of the secret, both ways, on a fresh connection: each side sends a random number and
 * answers the other's with a keyed hash of both, so the secret is never on the wire and an old
 * answer is worth nothing. The listening side speaks first; a stranger that listens on one of our
 * ports is found out by what it says, or by its silence.
 *
 * The messages are smaller than an empty socket's buffer, so nothing here waits for room. Reads
 * never go beyond the handshake.
 */
#ifndef AUTH_H
#define AUTH_H

#include <stddef.h>
#include <stdint.h>

#define AUTH_KEY 16

/* What the connection is for: a proof for one is worth nothing for the other. */
enum auth_purpose { AUTH_ROOT = 1, AUTH_TREE = 2 };

struct auth {
	uint8_t key[AUTH_KEY];
	uint8_t purpose;
	uint8_t server;
	uint8_t stage;
	uint8_t got; /* bytes in buf */
	uint8_t server_nonce[16], client_nonce[16];
	uint8_t buf[48];
};

/* Begin on a connected, non-blocking socket. Returns like auth_step. */
int auth_start(
	struct auth *a, int fd, const uint8_t key[AUTH_KEY], enum auth_purpose purpose, int server);
/* Go on when the socket is readable. 1: the peer knows the secret; 0: more to come; -1: it does
 * not, or it closed the connection. */
int auth_step(struct auth *a, int fd);

#endif
