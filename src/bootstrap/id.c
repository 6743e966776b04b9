/* The unique id: made, checked, read. */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap.h"
#include "log.h"
#include "params.h"
#include "root.h"
#include "util.h"
#include "wire.h"

symcclResult_t boot_id_create(symcclUniqueId *out)
{
	struct id id = {.magic = ID_MAGIC, .format = ID_FORMAT, .flags = ID_SERVED, .nports = 1};
	struct endpoint ep = {0};
	char text[ADDR_TEXT];

	if (sodium_init() < 0)
		return fail(symcclSystemError, "libsodium finds no source of random numbers");
	TRY(addr_local(&ep));
	randombytes_buf(id.secret, sizeof(id.secret));
	id.naddrs = ep.naddrs;
	memcpy(id.addrs, ep.addrs, sizeof(id.addrs));
	TRY(root_start(id.secret, 0, 1, &id.port));
	log_info(LOG_BOOT, "rendezvous of a new id at %s port %u",
		ep.naddrs ? addr_text(&ep.addrs[0], 0, text) : "this host only,", id.port);
	memcpy(out, &id, sizeof(id));
	return symcclSuccess;
}

void boot_id_drop(const symcclUniqueId *in)
{
	struct id id;

	memcpy(&id, in, sizeof(id));
	root_stop(id.secret);
}

/* "host:port", "[::1]:port". */
static symcclResult_t hostport_parse(
	const char *hostport, char name[ID_NAME_MAX], unsigned long *port)
{
	const char *colon = strrchr(hostport, ':');
	size_t len = colon ? (size_t)(colon - hostport) : 0;
	const char *host = hostport;
	char *end = NULL;

	*port = colon ? strtoul(colon + 1, &end, 10) : 0;
	if (!colon || end == colon + 1 || *end || *port < 1 || *port > 65535)
		return fail(symcclInvalidArgument,
			"\"%s\" is no address for the rendezvous; write host:port, with a port "
			"from 1 to "
			"65535",
			hostport);
	if (len >= 2 && hostport[0] == '[' && colon[-1] == ']') {
		host++;
		len -= 2;
	}
	if (len == 0 || len >= ID_NAME_MAX)
		return fail(symcclInvalidArgument,
			"the host name in \"%s\" must have 1 to %d characters", hostport,
			ID_NAME_MAX - 1);
	memcpy(name, host, len);
	name[len] = 0;
	return symcclSuccess;
}

symcclResult_t boot_id_from_address(
	const char *hostport, int nports, const char *salt, symcclUniqueId *out)
{
	struct id id = {.magic = ID_MAGIC, .format = ID_FORMAT};
	crypto_generichash_state h;
	unsigned long port;

	if (sodium_init() < 0)
		return fail(symcclSystemError, "libsodium finds no source of random numbers");
	TRY(hostport_parse(hostport, id.name, &port));
	id.port = (uint16_t)port;
	id.nports = (uint16_t)MAX(MIN(nports, (int)(65536 - port)), 1);
	crypto_generichash_init(&h, NULL, 0, sizeof(id.secret));
	crypto_generichash_update(&h, (const uint8_t *)hostport, strlen(hostport) + 1);
	crypto_generichash_update(&h, (const uint8_t *)salt, strlen(salt));
	crypto_generichash_final(&h, id.secret, sizeof(id.secret));
	memcpy(out, &id, sizeof(id));
	return symcclSuccess;
}

symcclResult_t boot_id_check(const symcclUniqueId *in)
{
	struct id id;

	memcpy(&id, in, sizeof(id));
	if (id.magic != ID_MAGIC)
		return fail(symcclInvalidArgument,
			"the unique id was not made by symcclGetUniqueId; was it sent whole?");
	if (id.format != ID_FORMAT)
		return fail(symcclInvalidArgument,
			"the unique id has format %u, this library reads %u; use one version of "
			"symccl",
			id.format, ID_FORMAT);
	if (id.port == 0 || id.nports == 0 || id.naddrs > ADDR_MAX ||
		(!(id.flags & ID_SERVED) && !memchr(id.name, 0, sizeof(id.name))))
		return fail(symcclInvalidArgument, "the unique id is damaged");
	return symcclSuccess;
}

symcclResult_t symcclGetUniqueId(symcclUniqueId *id)
{
	if (!id)
		return fail(symcclInvalidArgument, "id is NULL");
	return boot_id_create(id);
}
