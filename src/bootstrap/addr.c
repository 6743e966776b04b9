/* Interfaces, names and sockets. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "addr.h"
#include "log.h"
#include "params.h"
#include "util.h"

#define FOUND_MAX 128

enum { FAMILY_ANY, FAMILY_INET, FAMILY_INET6 }; /* as SYMCCL_SOCKET_FAMILY lists them */

/* An address of an interface, and how much we like it: less is better. */
struct found {
	struct addr addr;
	char name[IF_NAMESIZE];
	int score;
};

static const uint8_t v4_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

static int addr_is_v4(const struct addr *a)
{
	return memcmp(a->ip, v4_prefix, sizeof(v4_prefix)) == 0;
}

int addr_link_local(const struct addr *a)
{
	return a->ip[0] == 0xfe && (a->ip[1] & 0xc0) == 0x80;
}

static int addr_from_sockaddr(const struct sockaddr *sa, struct addr *a)
{
	memset(a, 0, sizeof(*a));
	if (sa->sa_family == AF_INET) {
		memcpy(a->ip, v4_prefix, sizeof(v4_prefix));
		memcpy(a->ip + 12, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, 4);
		return 1;
	}
	if (sa->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)sa;

		memcpy(a->ip, &in6->sin6_addr, 16);
		a->scope = addr_link_local(a) ? in6->sin6_scope_id : 0;
		return 1;
	}
	return 0;
}

const char *addr_text(const struct addr *a, uint16_t port, char buf[ADDR_TEXT])
{
	char ip[INET6_ADDRSTRLEN], scope[16] = "", tail[8] = "";

	if (port)
		snprintf(tail, sizeof(tail), ":%u", port);
	if (addr_is_v4(a)) {
		inet_ntop(AF_INET, a->ip + 12, ip, sizeof(ip));
		snprintf(buf, ADDR_TEXT, "%s%s", ip, tail);
		return buf;
	}
	inet_ntop(AF_INET6, a->ip, ip, sizeof(ip));
	if (a->scope)
		snprintf(scope, sizeof(scope), "%%%u", a->scope);
	if (port)
		snprintf(buf, ADDR_TEXT, "[%s%s]%s", ip, scope, tail);
	else
		snprintf(buf, ADDR_TEXT, "%s%s", ip, scope);
	return buf;
}

/* ---- Interfaces -------------------------------------------------------------------------- */

static int family_wanted(int family)
{
	int want = params_get()->socket_family;

	return (family == AF_INET && want != FAMILY_INET6) ||
	       (family == AF_INET6 && want != FAMILY_INET);
}

/* Does SYMCCL_SOCKET_IFNAME take this interface? */
static int ifname_wanted(const char *name, const char *list)
{
	int exclude = *list == '^', exact, hit = 0;

	list += exclude;
	exact = *list == '=';
	list += exact;
	while (*list) {
		size_t n = strcspn(list, ",");

		if (n && strncmp(name, list, n) == 0 && (!exact || name[n] == 0))
			hit = 1;
		list += n + (list[n] == ',');
	}
	return hit != exclude;
}

static int found_score(const struct ifaddrs *ifa, const struct addr *a)
{
	int score = !addr_is_v4(a);

	if (addr_link_local(a))
		score += 2;
	if (strncmp(ifa->ifa_name, "docker", 6) == 0 || strncmp(ifa->ifa_name, "virbr", 5) == 0)
		score += 4;
	if (ifa->ifa_flags & IFF_LOOPBACK)
		score += 8;
	return score;
}

/* Has this interface given an address that makes this one superfluous? */
static int found_same(const struct found *f, int n, const char *name, const struct addr *a)
{
	for (int i = 0; i < n; i++)
		if (strcmp(f[i].name, name) == 0 &&
			(addr_is_v4(&f[i].addr) == addr_is_v4(a) || addr_link_local(a)))
			return 1;
	return 0;
}

/* Add to the n that are there: first the addresses of all scopes, then link-local ones. */
static int found_collect(const struct ifaddrs *list, struct found *found, int n, int link_local)
{
	const char *names = params_get()->socket_ifname;

	for (const struct ifaddrs *i = list; i && n < FOUND_MAX; i = i->ifa_next) {
		struct found *f = &found[n];

		if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) ||
			!family_wanted(i->ifa_addr->sa_family) ||
			(*names && !ifname_wanted(i->ifa_name, names)) ||
			!addr_from_sockaddr(i->ifa_addr, &f->addr) ||
			link_local != addr_link_local(&f->addr) ||
			found_same(found, n, i->ifa_name, &f->addr))
			continue;
		snprintf(f->name, sizeof(f->name), "%s", i->ifa_name);
		f->score = found_score(i, &f->addr);
		n++;
	}
	return n;
}

/* Stable: equally good ones stay in the kernel's order. */
static void found_sort(struct found *f, int n)
{
	for (int i = 1; i < n; i++) {
		struct found x = f[i];
		int j = i;

		for (; j > 0 && f[j - 1].score > x.score; j--)
			f[j] = f[j - 1];
		f[j] = x;
	}
}

symcclResult_t addr_local(struct endpoint *ep)
{
	struct found *found = calloc(FOUND_MAX, sizeof(*found));
	struct ifaddrs *list = NULL;
	char line[ADDR_MAX * (ADDR_TEXT + IF_NAMESIZE)] = "", text[ADDR_TEXT];
	size_t at = 0;
	int n;

	ep->naddrs = 0;
	if (!found || getifaddrs(&list) != 0) {
		free(found);
		return fail(symcclSystemError, "cannot list the network interfaces: %m");
	}
	n = found_collect(list, found, 0, 0);
	n = found_collect(list, found, n, 1);
	freeifaddrs(list);
	found_sort(found, n);
	/* Loopback keeps the last place, so that processes of this host always have a way. */
	if (n > ADDR_MAX)
		found[ADDR_MAX - 1] = found[n - 1];
	n = MIN(n, ADDR_MAX);
	for (int i = 0; i < n; i++) {
		ep->addrs[i] = found[i].addr;
		at += (size_t)snprintf(line + at, sizeof(line) - at, " %s %s", found[i].name,
			addr_text(&found[i].addr, 0, text));
	}
	free(found);
	if (n == 0 && *params_get()->socket_ifname)
		return fail(symcclInvalidUsage,
			"no interface that is up matches SYMCCL_SOCKET_IFNAME=%s; see 'ip addr' "
			"for "
			"their names",
			params_get()->socket_ifname);
	ep->naddrs = (uint16_t)n;
	log_info(LOG_BOOT, "interfaces, best first:%s", n ? line : " none is up");
	return symcclSuccess;
}

int addr_link_scopes(uint32_t *scopes, int max)
{
	struct ifaddrs *list = NULL;
	struct addr a;
	int n = 0;

	if (getifaddrs(&list) != 0)
		return 0;
	for (const struct ifaddrs *i = list; i && n < max; i = i->ifa_next)
		if (i->ifa_addr && (i->ifa_flags & IFF_UP) && addr_from_sockaddr(i->ifa_addr, &a) &&
			addr_link_local(&a))
			scopes[n++] = a.scope;
	freeifaddrs(list);
	return n;
}

symcclResult_t addr_resolve(const char *host, struct addr addrs[ADDR_MAX], int *n)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	int want = params_get()->socket_family, err;

	hints.ai_family = want == FAMILY_INET    ? AF_INET
			  : want == FAMILY_INET6 ? AF_INET6
						 : AF_UNSPEC;
	err = getaddrinfo(host, NULL, &hints, &list);
	if (err)
		return fail(symcclSystemError, "cannot resolve the host name \"%s\": %s", host,
			err == EAI_SYSTEM ? strerror(errno) : gai_strerror(err));
	*n = 0;
	for (const struct addrinfo *i = list; i && *n < ADDR_MAX; i = i->ai_next)
		*n += addr_from_sockaddr(i->ai_addr, &addrs[*n]);
	freeaddrinfo(list);
	if (*n == 0)
		return fail(symcclSystemError, "the host name \"%s\" has no IP address", host);
	return symcclSuccess;
}

/* ---- TCP --------------------------------------------------------------------------------- */

static int listen_family(int family, uint16_t port, uint16_t *bound)
{
	union {
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} u;
	socklen_t len = family == AF_INET ? sizeof(u.in) : sizeof(u.in6);
	int one = 1, zero = 0, err;
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	memset(&u, 0, sizeof(u));
	u.sa.sa_family = (sa_family_t)family;
	if (family == AF_INET)
		u.in.sin_port = htons(port);
	else
		u.in6.sin6_port = htons(port);
	/* A communicator after this one may use the same port at once. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY,
			params_get()->socket_family == FAMILY_INET6 ? &one : &zero, sizeof(one));
	if (bind(fd, &u.sa, len) || listen(fd, SOMAXCONN) || getsockname(fd, &u.sa, &len)) {
		err = -errno;
		close(fd);
		return err;
	}
	*bound = ntohs(family == AF_INET ? u.in.sin_port : u.in6.sin6_port);
	return fd;
}

int addr_listen(uint16_t port, uint16_t *bound)
{
	int fd = -EAFNOSUPPORT;

	if (family_wanted(AF_INET6))
		fd = listen_family(AF_INET6, port, bound);
	/* No IPv6 in this kernel, or switched off. */
	if ((fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL) && family_wanted(AF_INET))
		fd = listen_family(AF_INET, port, bound);
	return fd;
}

int addr_connect(const struct addr *a, uint16_t port)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	int v4 = addr_is_v4(a), r, err;
	int fd = socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	memcpy(&in.sin_addr, a->ip + 12, 4);
	memcpy(&in6.sin6_addr, a->ip, 16);
	in6.sin6_scope_id = a->scope;
	if (v4)
		r = connect(fd, (struct sockaddr *)&in, sizeof(in));
	else
		r = connect(fd, (struct sockaddr *)&in6, sizeof(in6));
	if (r && errno != EINPROGRESS) {
		err = -errno;
		close(fd);
		return err;
	}
	return fd;
}

void addr_tune(int fd)
{
	int one = 1, idle = 5, every = 2, count = 3;
	unsigned int ms = 12000;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

/* ---- Unix -------------------------------------------------------------------------------- */

static socklen_t unix_address(struct sockaddr_un *sa, const uint8_t name[UNIX_NAME])
{
	static const char prefix[] = "symccl-", digits[] = "0123456789abcdef";
	char *p = sa->sun_path + 1;

	memset(sa, 0, sizeof(*sa));
	sa->sun_family = AF_UNIX;
	memcpy(p, prefix, sizeof(prefix) - 1);
	p += sizeof(prefix) - 1;
	for (int i = 0; i < UNIX_NAME; i++) {
		*p++ = digits[name[i] >> 4];
		*p++ = digits[name[i] & 15];
	}
	return (socklen_t)(p - (char *)sa);
}

static int unix_socket(const uint8_t name[UNIX_NAME], int listening)
{
	struct sockaddr_un sa;
	socklen_t len = unix_address(&sa, name);
	int err, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	if (listening ? bind(fd, (struct sockaddr *)&sa, len) || listen(fd, SOMAXCONN)
		      : connect(fd, (struct sockaddr *)&sa, len)) {
		err = -errno;
		close(fd);
		return err;
	}
	return fd;
}

int unix_listen(const uint8_t name[UNIX_NAME])
{
	return unix_socket(name, 1);
}

int unix_connect(const uint8_t name[UNIX_NAME])
{
	return unix_socket(name, 0);
}

int unix_peer(int fd, int *pid)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return -errno;
	if (cred.uid != geteuid())
		return -EPERM;
	*pid = cred.pid;
	return 0;
}
