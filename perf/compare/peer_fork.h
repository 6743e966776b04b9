/* Ranks of peers that have no launcher: forked, a CPU each when there are enough. */
#ifndef PEER_FORK_H
#define PEER_FORK_H

#include <sys/wait.h>

#include "peer.h"

/* To the index-th CPU that this process may use. */
static void peer_pin(int index)
{
	cpu_set_t have, one;

	if (sched_getaffinity(0, sizeof(have), &have))
		return;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &have) || index--)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		sched_setaffinity(0, sizeof(one), &one);
		return;
	}
}

static void *peer_shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* Run body in p->nranks processes, with p->rank set; 0 when all of them returned 0. */
static int peer_fork(struct peer *p, int (*body)(struct peer *p))
{
	int status, failed = 0;
	cpu_set_t have;

	p->board = peer_shared(sizeof(*p->board));
	if (!p->board || sched_getaffinity(0, sizeof(have), &have))
		return 1;
	fflush(stdout);
	for (p->rank = 0; p->rank < p->nranks; p->rank++) {
		pid_t pid = fork();

		if (pid < 0)
			return 1;
		if (pid)
			continue;
		if (p->nranks <= CPU_COUNT(&have))
			peer_pin(p->rank);
		status = body(p);
		fflush(stdout);
		_exit(status);
	}
	for (int i = 0; i < p->nranks; i++)
		failed |= wait(&status) < 0 || status != 0;
	return failed;
}

#endif
