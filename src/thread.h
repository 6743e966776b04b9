/* The library's own threads. */
#ifndef THREAD_H
#define THREAD_H

#include <pthread.h>
#include <stddef.h>

/* Start fn(arg) with `stack` bytes for its own use and all signals blocked: those are the user's
 * threads' business. thread NULL: detached. Returns 0 or an errno. Any thread. */
int thread_start(pthread_t *thread, size_t stack, void *(*fn)(void *arg), void *arg);

#endif
