/* The challenge-response on every new connection. */
#define _GNU_SOURCE
#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>

#include "auth.h"

#define MAC_LEN 32
#define GREETING "symccl/1"
#define GREETING_LEN 8

static void auth_mac(const struct auth *a, uint8_t role, uint8_t mac[MAC_LEN])
{
	uint8_t text[2 + 16 + 16];

	text[0] = role;
	text[1] = a->purpose;
	memcpy(text + 2, a->server_nonce, 16);
	memcpy(text + 18, a->client_nonce, 16);
	crypto_generichash(mac, MAC_LEN, text, sizeof(text), a->key, AUTH_KEY);
}

static int auth_send(int fd, const void *buf, size_t len)
{
	return send(fd, buf, len, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)len ? 0 : -1;
}

/* Collect len bytes in buf: 1 when there, 0 not yet, -1 closed. */
static int auth_recv(struct auth *a, int fd, size_t len)
{
	while (a->got < len) {
		ssize_t n = recv(fd, a->buf + a->got, len - a->got, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n <= 0)
			return -1;
		a->got = (uint8_t)(a->got + n);
	}
	a->got = 0;
	return 1;
}

int auth_start(
	struct auth *a, int fd, const uint8_t key[AUTH_KEY], enum auth_purpose purpose, int server)
{
	uint8_t hello[GREETING_LEN + 16];

	memset(a, 0, sizeof(*a));
	memcpy(a->key, key, AUTH_KEY);
	a->purpose = (uint8_t)purpose;
	a->server = (uint8_t)server;
	if (!server)
		return 0;
	randombytes_buf(a->server_nonce, 16);
	memcpy(hello, GREETING, GREETING_LEN);
	memcpy(hello + GREETING_LEN, a->server_nonce, 16);
	return auth_send(fd, hello, sizeof(hello));
}

static int auth_step_server(struct auth *a, int fd)
{
	uint8_t mac[MAC_LEN];
	int r = auth_recv(a, fd, 16 + MAC_LEN);

	if (r <= 0)
		return r;
	memcpy(a->client_nonce, a->buf, 16);
	auth_mac(a, 'c', mac);
	if (sodium_memcmp(mac, a->buf + 16, MAC_LEN))
		return -1;
	auth_mac(a, 's', mac);
	return auth_send(fd, mac, sizeof(mac)) ? -1 : 1;
}

static int auth_step_client(struct auth *a, int fd)
{
	uint8_t answer[16 + MAC_LEN], mac[MAC_LEN];
	int r;

	if (a->stage == 0) {
		r = auth_recv(a, fd, GREETING_LEN + 16);
		/* Do not wait for more from someone who does not even begin like us. */
		if (a->got &&
			memcmp(a->buf, GREETING, a->got < GREETING_LEN ? a->got : GREETING_LEN))
			return -1;
		if (r <= 0)
			return r;
		if (memcmp(a->buf, GREETING, GREETING_LEN))
			return -1;
		memcpy(a->server_nonce, a->buf + GREETING_LEN, 16);
		randombytes_buf(a->client_nonce, 16);
		memcpy(answer, a->client_nonce, 16);
		auth_mac(a, 'c', answer + 16);
		if (auth_send(fd, answer, sizeof(answer)))
			return -1;
		a->stage = 1;
	}
	r = auth_recv(a, fd, MAC_LEN);
	if (r <= 0)
		return r;
	auth_mac(a, 's', mac);
	return sodium_memcmp(mac, a->buf, MAC_LEN) ? -1 : 1;
}

int auth_step(struct auth *a, int fd)
{
	return a->server ? auth_step_server(a, fd) : auth_step_client(a, fd);
}
