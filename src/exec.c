#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include "exec.h"
#include "thread.h"

#define EXEC_STACK (256u << 10)

struct exec {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	void (*fn)(void *);
	void *arg;
	int stop;
};

static void *exec_loop(void *arg)
{
	struct exec *x = arg;

	pthread_setname_np(pthread_self(), "symccl-exec");
	pthread_mutex_lock(&x->lock);
	while (!x->stop || x->fn != NULL) {
		if (x->fn == NULL) {
			pthread_cond_wait(&x->cond, &x->lock);
			continue;
		}
		pthread_mutex_unlock(&x->lock);
		x->fn(x->arg);
		pthread_mutex_lock(&x->lock);
		x->fn = NULL;
		pthread_cond_broadcast(&x->cond);
	}
	pthread_mutex_unlock(&x->lock);
	return NULL;
}

symcclResult_t exec_new(struct exec **out)
{
	struct exec *x = calloc(1, sizeof(*x));
	int e;

	if (x == NULL)
		return fail(symcclSystemError, "out of memory for a rank's thread");
	pthread_mutex_init(&x->lock, NULL);
	pthread_cond_init(&x->cond, NULL);
	e = thread_start(&x->thread, EXEC_STACK, exec_loop, x);
	if (e != 0) {
		pthread_cond_destroy(&x->cond);
		pthread_mutex_destroy(&x->lock);
		free(x);
		errno = e;
		return fail(symcclSystemError, "no thread for a rank: %m");
	}
	*out = x;
	return symcclSuccess;
}

void exec_start(struct exec *x, void (*fn)(void *arg), void *arg)
{
	pthread_mutex_lock(&x->lock);
	while (x->fn != NULL)
		pthread_cond_wait(&x->cond, &x->lock);
	x->arg = arg;
	x->fn = fn;
	pthread_cond_broadcast(&x->cond);
	pthread_mutex_unlock(&x->lock);
}

void exec_free(struct exec *x)
{
	if (x == NULL)
		return;
	pthread_mutex_lock(&x->lock);
	x->stop = 1;
	pthread_cond_broadcast(&x->cond);
	pthread_mutex_unlock(&x->lock);
	pthread_join(x->thread, NULL);
	pthread_cond_destroy(&x->cond);
	pthread_mutex_destroy(&x->lock);
	free(x);
}
