#include "mem/limits.h"
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "util.h"

/* Where each version keeps what. v1 counts children in the total_ rows. */
static const struct layout {
	const char *mount, *limit, *usage, *inactive, *active;
} layouts[] = {
	{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "active_file"},
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
		"total_inactive_file", "total_active_file"},
};

static FILE *file_open(const char *root, const char *dir, const char *name)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s%s/%s", root, dir, name) >= (int)sizeof(path))
		return NULL;
	return fopen(path, "re");
}

/* The number a file begins with; 0 when there is none ("max"). */
static int number_read(const char *root, const char *dir, const char *name, size_t *n)
{
	FILE *f = file_open(root, dir, name);
	unsigned long long v;
	int ok;

	if (f == NULL)
		return 0;
	ok = fscanf(f, "%llu", &v) == 1;
	fclose(f);
	if (ok)
		*n = (size_t)v;
	return ok;
}

/* The sum of the rows "key number" (or "key: number") that are named. */
static int rows_sum(const char *root, const char *dir, const char *file, const char *a,
	const char *b, size_t *sum)
{
	FILE *f = file_open(root, dir, file);
	unsigned long long v;
	char line[256], key[64];
	int found = 0;

	*sum = 0;
	if (f == NULL)
		return 0;
	while (fgets(line, sizeof(line), f) != NULL) {
		if (sscanf(line, "%63[^ :]%*[ :]%llu", key, &v) != 2)
			continue;
		if (strcmp(key, a) == 0 || strcmp(key, b) == 0) {
			*sum += (size_t)v;
			found = 1;
		}
	}
	fclose(f);
	return found;
}

/* Take one directory's limit into account. */
static void level_read(const char *root, const struct layout *at, const char *dir, size_t swap,
	struct mem_limits *l)
{
	size_t limit, usage, cache, room;

	/* v1 writes "no limit" as a number near 2^63. */
	if (!number_read(root, dir, at->limit, &limit) || limit >= SIZE_MAX / 4)
		return;
	l->capacity = MIN(l->capacity, limit);
	if (!number_read(root, dir, at->usage, &usage))
		return;
	rows_sum(root, dir, "memory.stat", at->inactive, at->active, &cache);
	room = limit > usage ? limit - usage : 0;
	l->headroom = MIN(l->headroom, MIN(room + cache, limit) + swap);
}

/* All directories from the process's own up to the mount. A path that is not there (no cgroup
 * namespace: the mount shows the container's directory as its root) leaves the mount itself. */
static void group_read(const char *root, const struct layout *at, const char *path, size_t swap,
	struct mem_limits *l)
{
	char dir[PATH_MAX];
	char *slash;

	if (strstr(path, "..") != NULL)
		path = "";
	if (snprintf(dir, sizeof(dir), "%s%s", at->mount, path) >= (int)sizeof(dir))
		return;
	for (;;) {
		level_read(root, at, dir, swap, l);
		slash = strrchr(dir + strlen(at->mount), '/');
		if (slash == NULL)
			return;
		*slash = 0;
	}
}

/* Lines are "id:controllers:path": v2 is "0::path", v1 names "memory" among the controllers. */
static void groups_read(const char *root, size_t swap, struct mem_limits *l)
{
	FILE *f = file_open(root, "/proc/self", "cgroup");
	char line[PATH_MAX], list[256];
	char *names, *path;

	if (f == NULL)
		return;
	while (fgets(line, sizeof(line), f) != NULL) {
		line[strcspn(line, "\n")] = 0;
		names = strchr(line, ':');
		path = names ? strchr(names + 1, ':') : NULL;
		if (path == NULL)
			continue;
		*path++ = 0;
		snprintf(list, sizeof(list), ",%s,", names + 1);
		if (names[1] == 0)
			group_read(root, &layouts[0], path, swap, l);
		else if (strstr(list, ",memory,") != NULL)
			group_read(root, &layouts[1], path, swap, l);
	}
	fclose(f);
}

void mem_limits_read(const char *root, struct mem_limits *l)
{
	size_t kib, swap = 0;

	l->capacity = l->headroom = SIZE_MAX;
	if (rows_sum(root, "/proc", "meminfo", "SwapFree", "", &kib))
		swap = kib * 1024;
	if (rows_sum(root, "/proc", "meminfo", "MemTotal", "", &kib))
		l->capacity = kib * 1024;
	if (rows_sum(root, "/proc", "meminfo", "MemAvailable", "", &kib))
		l->headroom = kib * 1024 + swap;
	groups_read(root, swap, l);
}
