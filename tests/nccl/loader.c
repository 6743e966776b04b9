/*
 * Load libraries as programs do, then say whose NCCL answers.
 *
 *	loader [-g PATH | -l PATH]...	dlopen each, globally or locally; the last one is asked
 *	linked				(built with -DLINKED) the one the dynamic linker found
 *
 * Prints the version, then "works" when a communicator of one rank reduces.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "shim/nccl.h"

#ifdef LINKED
#define FIND(name) (&name)
#else
#define FIND(name) ((__typeof__(&name))dlsym(handle, #name))
#endif

int main(int argc, char **argv)
{
	void *handle = RTLD_DEFAULT;
	int version = 0, in = 3, out = 0;
	__typeof__(&ncclGetVersion) get_version;
	ncclUniqueId id;
	ncclComm_t comm;

	for (int i = 1; i + 1 < argc; i += 2) {
		handle = dlopen(argv[i + 1],
			RTLD_NOW | (strcmp(argv[i], "-g") == 0 ? RTLD_GLOBAL : RTLD_LOCAL));
		if (handle == NULL) {
			printf("%s\n", dlerror());
			return 1;
		}
	}
	get_version = FIND(ncclGetVersion);
	if (get_version == NULL || get_version(&version) != ncclSuccess)
		return 1;
	printf("%d", version);
	if (version != 99999) {
		ncclResult_t e = FIND(ncclGetUniqueId)(&id);

		if (e == ncclSuccess)
			e = FIND(ncclCommInitRank)(&comm, 1, id, 0);
		if (e == ncclSuccess)
			e = FIND(ncclAllReduce)(&in, &out, 1, ncclInt32, ncclSum, comm, NULL);
		if (e == ncclSuccess)
			e = FIND(ncclCommDestroy)(comm);
		printf(" %s",
			e == ncclSuccess && out == 3 ? "works" : FIND(ncclGetLastError)(NULL));
	}
	printf("\n");
	return 0;
}
