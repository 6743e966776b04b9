/* Small helpers of the bootstrap: names, sentences, pollsets. */
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "util.h"
#include "wire.h"

void wire_root_name(const uint8_t secret[AUTH_KEY], uint8_t name[UNIX_NAME])
{
	static const uint8_t what[] = "root";

	crypto_generichash(name, UNIX_NAME, what, sizeof(what), secret, AUTH_KEY);
}

const char *ranks_text(char *buf, size_t size, const int *ranks, int n)
{
	size_t at = (size_t)snprintf(buf, size, n == 1 ? "rank" : "ranks");

	for (int i = 0; i < n;) {
		int j = i;

		if (at + 40 > size) {
			snprintf(buf + at, size - at, " and %d more", n - i);
			break;
		}
		while (j + 1 < n && ranks[j + 1] == ranks[j] + 1)
			j++;
		at += (size_t)snprintf(buf + at, size - at, "%s %d", i ? "," : "", ranks[i]);
		if (j > i)
			at += (size_t)snprintf(
				buf + at, size - at, "%s%d", j > i + 1 ? "-" : ", ", ranks[j]);
		i = j + 1;
	}
	return buf;
}

void failure_set(struct failure *f, symcclResult_t code, int rank, const char *fmt, ...)
{
	va_list ap;

	f->code = code;
	f->rank = rank;
	va_start(ap, fmt);
	vsnprintf(f->text, sizeof(f->text), fmt, ap);
	va_end(ap);
}

int pollset_add(struct pollset *ps, int fd, short events)
{
	if (ps->n == ps->room) {
		int room = MAX(ps->room * 2, 32);
		struct pollfd *p = realloc(ps->p, (size_t)room * sizeof(*p));

		if (!p)
			return -1;
		ps->p = p;
		ps->room = room;
	}
	ps->p[ps->n] = (struct pollfd){.fd = fd, .events = events};
	return ps->n++;
}

short pollset_got(const struct pollset *ps, int slot)
{
	return slot < 0 ? 0 : ps->p[slot].revents;
}
