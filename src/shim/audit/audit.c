/*
 * For LD_AUDIT (rtld-audit(7)): whoever asks the dynamic linker for a libnccl.so, by whatever path,
 * gets the one beside this file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static char ours[4096];

unsigned int la_version(unsigned int version)
{
	Dl_info me;
	const char *slash;

	if (dladdr((void *)la_version, &me) == 0 || me.dli_fname == NULL)
		return version;
	slash = strrchr(me.dli_fname, '/');
	if (slash != NULL)
		snprintf(ours, sizeof(ours), "%.*s/libnccl.so.2", (int)(slash - me.dli_fname),
			me.dli_fname);
	return version;
}

char *la_objsearch(const char *name, uintptr_t *cookie, unsigned int flag)
{
	const char *base = strrchr(name, '/');

	(void)cookie, (void)flag;
	base = base ? base + 1 : name;
	if (ours[0] != '\0' && strncmp(base, "libnccl.so", 10) == 0 &&
		(base[10] == '\0' || base[10] == '.'))
		return ours;
	return (char *)name;
}
