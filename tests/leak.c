/* What a process holds, from /proc/self. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "ranks.h"
#include "util.h"

static void fds_read(struct leak_snapshot *s)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;

	while (d && (e = readdir(d))) {
		int fd = atoi(e->d_name);

		if (e->d_name[0] == '.' || fd == dirfd(d))
			continue;
		s->nfds++;
		if (fd < (int)sizeof(s->fds) * 8)
			s->fds[fd / 8] |= (unsigned char)(1 << fd % 8);
	}
	if (d)
		closedir(d);
}

static void maps_read(struct leak_snapshot *s)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned long from, to;
	char line[512], perms[8];

	while (f && fgets(line, sizeof(line), f)) {
		s->memfd_maps += strstr(line, "memfd:") != NULL;
		if (sscanf(line, "%lx-%lx %7s", &from, &to, perms) == 3 && perms[0] == '-' &&
			perms[1] == '-' && to - from >= 1 << 20)
			s->reserved += to - from;
	}
	if (f)
		fclose(f);
}

static void threads_read(struct leak_snapshot *s)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;

	while (d && (e = readdir(d)))
		s->threads += e->d_name[0] != '.';
	if (d)
		closedir(d);
}

void leak_snapshot(struct leak_snapshot *s)
{
	memset(s, 0, sizeof(*s));
	fds_read(s);
	maps_read(s);
	threads_read(s);
}

static int more(const struct leak_snapshot *b, const struct leak_snapshot *a)
{
	/* glibc reserves malloc arenas of 64 MiB for threads and keeps them. */
	return a->nfds > b->nfds || a->memfd_maps > b->memfd_maps || a->threads > b->threads ||
	       a->reserved > b->reserved + ((size_t)1 << 30);
}

int leak_check(const struct leak_snapshot *before, double wait_s, char *why, size_t whylen)
{
	uint64_t deadline = now_ns() + (uint64_t)(wait_s * 1e9);
	struct leak_snapshot now;
	size_t n;

	leak_snapshot(&now);
	while (more(before, &now) && now_ns() < deadline) {
		usleep(2000);
		leak_snapshot(&now);
	}
	if (!more(before, &now))
		return 0;
	n = (size_t)snprintf(why, whylen,
		"left behind: descriptors %d -> %d, memfd mappings %d -> %d, threads %d -> %d, "
		"reserved %zu -> %zu MiB",
		before->nfds, now.nfds, before->memfd_maps, now.memfd_maps, before->threads,
		now.threads, before->reserved >> 20, now.reserved >> 20);
	for (int fd = 0; fd < (int)sizeof(now.fds) * 8 && n < whylen; fd++) {
		char link[64], target[128];
		ssize_t len;

		if (!(now.fds[fd / 8] & ~before->fds[fd / 8] & (1 << fd % 8)))
			continue;
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		len = readlink(link, target, sizeof(target) - 1);
		n += (size_t)snprintf(
			why + n, whylen - n, "; %d is %.*s", fd, (int)MAX(len, 0), target);
	}
	return 1;
}
