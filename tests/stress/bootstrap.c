/* Threads that each play a process meet again and again, in two groups at once, while ids come and
 * go and the process forks: for the sanitizers. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "boot_helper.h"
#include "bootstrap/root.h"
#include "mem.h"
#include "util.h"

#define THREADS 5
#define ROUNDS 30

struct group {
	pthread_barrier_t meet;
	symcclUniqueId id;
	int by_address;
};

struct member {
	struct group *g;
	int rank;
	pthread_t thread;
};

#define NEED(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #cond, \
				error_text()); \
			exit(1); \
		} \
	} while (0)

static void use(struct boot *b, int round)
{
	const void **all;
	const size_t *len;
	int *fds, *counts, word = 100 * round + b->proc;
	char byte = 0;
	size_t one = 1;

	NEED(boot_allgather(b, &word, sizeof(word), &all, &len, after(20)) == symcclSuccess);
	for (int p = 0; p < b->nprocs; p++)
		NEED(*(const int *)all[p] == 100 * round + p);
	NEED(boot_allgather_fds(b, (int[]){0}, 1, &fds, &counts, after(20)) == symcclSuccess);
	for (int p = 0; p < b->nprocs; p++)
		close(fds[p]);
	free(fds);
	free(counts);
	NEED(boot_send(b, (b->proc + 1) % b->nprocs, 1, "x", 1, after(20)) == symcclSuccess);
	NEED(boot_recv(b, (b->proc + b->nprocs - 1) % b->nprocs, 1, &byte, &one, after(20)) ==
		symcclSuccess);
	NEED(boot_barrier(b, after(20)) == symcclSuccess);
}

static void *play(void *arg)
{
	struct member *m = arg;
	struct group *g = m->g;

	for (int round = 0; round < ROUNDS; round++) {
		struct boot *b;

		if (m->rank == 0 && !g->by_address)
			NEED(boot_id_create(&g->id) == symcclSuccess);
		pthread_barrier_wait(&g->meet);
		NEED(open_one(m->rank, THREADS, &g->id, 20, &b, NULL) == symcclSuccess);
		use(b, round);
		boot_close(b);
		pthread_barrier_wait(&g->meet);
	}
	return NULL;
}

int main(void)
{
	struct group groups[2] = {{.by_address = 0}, {.by_address = 1}};
	struct member members[2][THREADS];
	char where[32];
	int status;

	snprintf(where, sizeof(where), "localhost:%d", 16384 + (int)(test_seed() % 12000));
	NEED(boot_id_from_address(where, 16, where, &groups[1].id) == symcclSuccess);
	for (int g = 0; g < 2; g++) {
		pthread_barrier_init(&groups[g].meet, NULL, THREADS);
		for (int i = 0; i < THREADS; i++) {
			members[g][i] = (struct member){.g = &groups[g], .rank = i};
			NEED(pthread_create(&members[g][i].thread, NULL, play, &members[g][i]) ==
				0);
		}
	}
	for (int i = 0; i < 10; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(root_count() != 0);
		NEED(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
		usleep(10000);
	}
	for (int g = 0; g < 2; g++)
		for (int i = 0; i < THREADS; i++)
			pthread_join(members[g][i].thread, NULL);
	for (int i = 0; i < 200 && root_count(); i++)
		usleep(10000);
	NEED(root_count() == 0);
	return 0;
}
