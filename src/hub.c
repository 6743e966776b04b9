/* Hubs: joining, failure, leaving. The worker thread is in hub_worker.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "comm_gpu.h"
#include "host_stream.h"
#include "hub.h"
#include "log.h"
#include "params.h"
#include "thread.h"
#include "util.h"

#define WORKER_STACK (512u << 10)
#define WATCH_MS 10

static pthread_mutex_t hubs_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hub *hubs;
unsigned fork_gen;

/* A child of fork() has none of its parent's threads: it starts without hubs. */
static void forked_child(void)
{
	pthread_mutex_init(&hubs_lock, NULL);
	hubs = NULL;
	host_stream_forked();
	group_forked();
	__atomic_add_fetch(&fork_gen, 1, __ATOMIC_RELAXED);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forked_child);
}

void fork_watch(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
}

static void poke(int eventfd)
{
	uint64_t one = 1;

	/* Full counter: the worker is awake anyway. */
	if (write(eventfd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_warn(LOG_INIT, "cannot wake the communicator's worker: %m");
}

/* ---- Failure -------------------------------------------------------------------------------- */

void hub_finish_set(struct symcclComm *c, struct reg_set *s)
{
	__atomic_store_n(&s->done, 1, __ATOMIC_RELEASE);
	pthread_cond_broadcast(&c->cond);
}

/* Every queued request of every local rank ends with the hub's reason. Lock held. */
void hub_fail_queues(struct hub *h)
{
	for (int i = 0; i < h->nlocal; i++) {
		struct symcclComm *c = h->local[i];

		while (c->queue != NULL) {
			struct reg_set *s = c->queue;

			c->queue = s->next;
			s->result = h->why;
			hub_finish_set(c, s);
		}
		c->queue_end = &c->queue;
		c->nqueued = 0;
		pthread_cond_broadcast(&c->cond);
	}
}

void hub_fail_locked(struct hub *h, const struct failure *why)
{
	if (h->state == HUB_FAILED)
		return;
	if (h->board != NULL)
		board_fail(h->board, why);
	if (!board_read(h->board, &h->why))
		h->why = *why;
	__atomic_store_n(&h->state, HUB_FAILED, __ATOMIC_RELEASE);
	if (h->gpu_abort != NULL)
		__atomic_store_n(h->gpu_abort, 1, __ATOMIC_RELEASE);
	log_info(LOG_INIT, "communicator failed: %s", h->why.text);
	pthread_cond_broadcast(&h->cond);
	hub_wake(h);
	poke(h->cancel);
}

void hub_fail(struct hub *h, const struct failure *why)
{
	pthread_mutex_lock(&h->lock);
	hub_fail_locked(h, why);
	pthread_mutex_unlock(&h->lock);
}

void hub_fail_here(struct hub *h, symcclResult_t code, int rank)
{
	struct failure why = {.code = code, .rank = rank};

	snprintf(why.text, sizeof(why.text), "%s", error_text());
	hub_fail(h, &why);
}

symcclResult_t hub_status(struct hub *h)
{
	struct failure why;
	int state = __atomic_load_n(&h->state, __ATOMIC_ACQUIRE);

	if (__builtin_expect(state == HUB_FAILED, 0)) {
		pthread_mutex_lock(&h->lock);
		why = h->why;
		pthread_mutex_unlock(&h->lock);
		return fail_quiet(why.code, "%s", why.text);
	}
	if (__builtin_expect(state == HUB_READY && board_read(h->board, &why), 0))
		return fail_quiet(why.code, "%s", why.text);
	return symcclSuccess;
}

void hub_wake(struct hub *h)
{
	poke(h->wake);
}

void hub_free_window(struct hub *h, uint32_t ordinal)
{
	pthread_mutex_lock(&h->lock);
	if (h->nfreed == h->freed_room) {
		int room = h->freed_room * 2 + 16;
		uint32_t *p = realloc(h->freed, (size_t)room * sizeof(*p));

		if (p != NULL) {
			h->freed = p;
			h->freed_room = room;
		}
	}
	if (h->nfreed < h->freed_room)
		h->freed[h->nfreed++] = ordinal;
	else
		log_warn(LOG_SYM, "out of memory: window %u stays mapped", ordinal);
	pthread_mutex_unlock(&h->lock);
}

/* ---- Joining and leaving -----------------------------------------------------------------------
 */

static void hub_free(struct hub *h)
{
	sym_fini(&h->sym);
	hub_gpu_close(h);
	boot_close(h->boot);
	if (h->board != NULL)
		munmap(h->board, h->board_size);
	if (h->board_mem != NULL)
		mem_host.release(h->board_mem);
	if (h->wake >= 0)
		close(h->wake);
	if (h->cancel >= 0)
		close(h->cancel);
	pthread_cond_destroy(&h->cond);
	pthread_mutex_destroy(&h->lock);
	free(h->freed);
	free(h->pid);
	free(h->local);
	free(h->local_rank);
	free(h->local_device);
	free(h);
}

/* hubs_lock held. */
static symcclResult_t hub_new(
	const symcclUniqueId *id, symcclComm_t c, const struct mem_ops *mem, struct hub **out)
{
	struct hub *h = calloc(1, sizeof(*h));

	fork_watch();
	if (h == NULL)
		return fail(symcclSystemError, "out of memory for a communicator");
	h->id = *id;
	h->nranks = c->nranks;
	h->mem = mem;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->cond, NULL);
	h->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	h->cancel = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (h->wake < 0 || h->cancel < 0) {
		hub_free(h);
		return fail(symcclSystemError, "no descriptor for a communicator: %m");
	}
	*out = h;
	return symcclSuccess;
}

static symcclResult_t start_worker(struct hub *h)
{
	int e = thread_start(&h->worker, WORKER_STACK, hub_worker, h);

	if (e == 0)
		return symcclSuccess;
	errno = e;
	return fail(symcclSystemError, "no thread for a communicator's worker: %m");
}

static symcclResult_t add_member(struct hub *h, symcclComm_t c)
{
	if (h->sealed)
		return fail(symcclInvalidUsage,
			"rank %d comes too late: all %d ranks that this unique id is for have come",
			c->rank, h->nranks);
	if (h->nlocal == h->local_room) {
		int room = h->local_room ? h->local_room * 2 : 8;
		symcclComm_t *p = realloc(h->local, (size_t)room * sizeof(*p));

		if (p == NULL)
			return fail(symcclSystemError, "out of memory for a communicator");
		h->local = p;
		h->local_room = room;
	}
	h->local[h->nlocal++] = c;
	c->hub = h;
	c->queue_end = &c->queue;
	return symcclSuccess;
}

static struct hub *find_joining(const symcclUniqueId *id)
{
	for (struct hub *h = hubs; h != NULL; h = h->next)
		if (memcmp(&h->id, id, sizeof(*id)) == 0 &&
			__atomic_load_n(&h->state, __ATOMIC_ACQUIRE) == HUB_JOINING)
			return h;
	return NULL;
}

symcclResult_t hub_join(const symcclUniqueId *id, symcclComm_t comm, const struct mem_ops *mem)
{
	struct hub *h;
	symcclResult_t e = symcclSuccess;
	int fresh = 0;

	pthread_mutex_lock(&hubs_lock);
	h = find_joining(id);
	if (h == NULL) {
		e = hub_new(id, comm, mem, &h);
		fresh = e == symcclSuccess;
	}
	if (e == symcclSuccess) {
		pthread_mutex_lock(&h->lock);
		e = add_member(h, comm);
		pthread_mutex_unlock(&h->lock);
	}
	if (fresh && e == symcclSuccess)
		e = start_worker(h);
	if (fresh && e == symcclSuccess) {
		h->next = hubs;
		hubs = h;
	} else if (fresh) {
		comm->hub = NULL;
		hub_free(h);
	}
	if (e == symcclSuccess)
		hub_wake(h);
	pthread_mutex_unlock(&hubs_lock);
	return e;
}

/* Wait for cond, or look at what else may end it. Lock held on entry and return. */
static void hub_watch(struct hub *h, symcclComm_t comm, pthread_cond_t *cond,
	symcclResult_t (*watch)(void *), void *arg)
{
	struct timespec until;
	symcclResult_t e;

	if (watch == NULL) {
		pthread_cond_wait(cond, &h->lock);
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += WATCH_MS * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_cond_clockwait(cond, &h->lock, CLOCK_MONOTONIC, &until);
	pthread_mutex_unlock(&h->lock);
	e = watch(arg);
	if (e != symcclSuccess)
		hub_fail_here(h, e, comm->rank);
	pthread_mutex_lock(&h->lock);
}

symcclResult_t hub_wait_ready(symcclComm_t comm, symcclResult_t (*watch)(void *arg), void *arg)
{
	struct hub *h = comm->hub;
	struct failure why = {.code = symcclSuccess};

	pthread_mutex_lock(&h->lock);
	while (h->state == HUB_JOINING)
		hub_watch(h, comm, &h->cond, watch, arg);
	while (comm->nposted > 0 && !comm->first->done)
		hub_watch(h, comm, &comm->cond, watch, arg);
	/* A peer may have joined, and aborted, before this thread looks: then this rank has joined.
	 */
	if (h->state == HUB_FAILED && !h->stood)
		why = h->why;
	pthread_mutex_unlock(&h->lock);
	if (why.code == symcclSuccess)
		return symcclSuccess;
	hub_leave(comm);
	return fail_quiet(why.code, "%s", why.text);
}

void hub_leave(symcclComm_t comm)
{
	struct hub *h = comm->hub;
	int last;

	pthread_mutex_lock(&hubs_lock);
	pthread_mutex_lock(&h->lock);
	comm->left = 1;
	if (h->board != NULL)
		__atomic_store_n(&h->board->rank[comm->rank].left, 1, __ATOMIC_RELEASE);
	h->nleft++;
	last = h->nleft == h->nlocal;
	if (last) {
		struct hub **p = &hubs;

		while (*p != h)
			p = &(*p)->next;
		*p = h->next;
		h->closing = 1;
		pthread_cond_broadcast(&h->cond);
		poke(h->cancel);
	}
	hub_wake(h);
	pthread_mutex_unlock(&h->lock);
	pthread_mutex_unlock(&hubs_lock);
	if (!last)
		return;
	pthread_join(h->worker, NULL);
	for (int i = 0; i < h->nlocal; i++)
		comm_free(h->local[i]);
	hub_free(h);
}
