/* Threads that meet parameters, log and errors for the first time all at once. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "error.h"
#include "log.h"
#include "params.h"

#define THREADS 8
#define ROUNDS 300

static pthread_barrier_t start;
static int wrong;

static void *body(void *arg)
{
	int id = *(int *)arg;
	char want[64];

	pthread_barrier_wait(&start);
	for (int i = 0; i < ROUNDS; i++) {
		struct param_row row;

		if (params_get()->op_timeout != 7 || !params_row(i % 5, &row))
			__atomic_store_n(&wrong, 1, __ATOMIC_RELAXED);
		log_info(LOG_COLL, "thread %d round %d", id, i);
		snprintf(want, sizeof(want), "thread %d says %d", id, i);
		fail(symcclTimeout, "thread %d says %d", id, i);
		if (strcmp(error_text(), want) != 0)
			__atomic_store_n(&wrong, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	int ids[THREADS];

	setenv("SYMCCL_OP_TIMEOUT", "7", 1);
	setenv("SYMCCL_DEBUG", "info", 1);
	setenv("SYMCCL_DEBUG_FILE", "/dev/null", 1);
	pthread_barrier_init(&start, NULL, THREADS);
	for (int i = 0; i < THREADS; i++) {
		ids[i] = i;
		if (pthread_create(&threads[i], NULL, body, &ids[i]) != 0)
			return 1;
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	if (wrong)
		fprintf(stderr, "a thread read a wrong value\n");
	return wrong;
}
