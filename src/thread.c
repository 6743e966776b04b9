#define _GNU_SOURCE
#include "thread.h"
#include <link.h>
#include <signal.h>

static int add_tls(struct dl_phdr_info *info, size_t size, void *sum)
{
	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_TLS)
			*(size_t *)sum += info->dlpi_phdr[i].p_memsz + info->dlpi_phdr[i].p_align;
	return 0;
}

/* The C library takes the program's thread-local variables out of every thread's stack, and some
 * programs have more of them than our threads have stack. */
int thread_start(pthread_t *thread, size_t stack, void *(*fn)(void *arg), void *arg)
{
	pthread_attr_t a;
	pthread_t own;
	sigset_t all, old;
	int e;

	dl_iterate_phdr(add_tls, &stack);
	pthread_attr_init(&a);
	if (thread == NULL)
		pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	e = pthread_attr_setstacksize(&a, (stack + 65535) & ~(size_t)65535);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (e == 0)
		e = pthread_create(thread ? thread : &own, &a, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&a);
	return e;
}
