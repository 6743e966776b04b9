/* A hub's worker: meets the other processes, runs batches, rests while it watches them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "comm_gpu.h"
#include "hub.h"
#include "log.h"
#include "params.h"
#include "util.h"

#define GPU_LOOK_MS 100
#define BATCH_MAX 256 /* sets of a rank */

static uint64_t deadline_after(double seconds)
{
	return seconds > 0 ? now_ns() + (uint64_t)(seconds * 1e9) : 0;
}

static void drain(int fd)
{
	uint64_t n;

	while (read(fd, &n, sizeof(n)) > 0)
		;
}

/* boot_open asks which local ranks have come since. */
static int next_member(void *arg, struct boot_member *m)
{
	struct hub *h = arg;
	int found = 0;

	drain(h->wake);
	pthread_mutex_lock(&h->lock);
	for (int i = 0; i < h->nlocal && !found; i++) {
		struct symcclComm *c = h->local[i];

		if (c->joined)
			continue;
		c->joined = 1;
		*m = (struct boot_member){.rank = c->rank,
			.nranks = c->nranks,
			.version = SYMCCL_VERSION_CODE,
			.config = c->config};
		found = 1;
	}
	pthread_mutex_unlock(&h->lock);
	return found;
}

static void failure_from(struct failure *f, symcclResult_t e)
{
	f->code = e;
	f->rank = -1;
	snprintf(f->text, sizeof(f->text), "%s", error_text());
}

/* The rendezvous has counted: who comes now is too many. A rank that came in time to be waiting
 * here but not to be counted has a number that another one has, too. */
static symcclResult_t seal_hub(struct hub *h)
{
	int extra = -1;

	pthread_mutex_lock(&h->lock);
	h->sealed = 1;
	for (int i = 0; i < h->nlocal; i++)
		if (!h->local[i]->joined)
			extra = h->local[i]->rank;
	pthread_mutex_unlock(&h->lock);
	if (extra < 0)
		return symcclSuccess;
	return fail(symcclInvalidUsage,
		"rank %d has joined twice: all %d ranks had come when it came again", extra,
		h->nranks);
}

/* Each local rank's first set, an empty one: with it come the control blocks, while all ranks are
 * in init, so that no call has to wait for ranks that it does not concern. */
static symcclResult_t first_sets(struct hub *h)
{
	for (int i = 0; i < h->nlocal; i++) {
		h->local[i]->first = comm_set_new(0);
		if (h->local[i]->first == NULL)
			return symcclSystemError;
	}
	return symcclSuccess;
}

static void open_hub(struct hub *h)
{
	uint64_t deadline = deadline_after(params_get()->setup_timeout);
	struct failure why = {.code = symcclSuccess, .rank = -1};
	symcclResult_t e;

	e = boot_open(&h->id, h->wake, h->cancel, next_member, h, deadline, &h->boot, &why);
	if (e == symcclSuccess) {
		boot_set_cancel(h->boot, h->cancel);
		e = seal_hub(h);
		if (e == symcclSuccess)
			e = hub_agree(h, deadline_after(params_get()->setup_timeout));
		if (e == symcclInProgress)
			e = fail(symcclRemoteError, "rank %d gave up joining", h->local[0]->rank);
		if (e == symcclSuccess)
			e = first_sets(h);
		if (e != symcclSuccess) {
			failure_from(&why, e);
			boot_abort(h->boot, &why);
		}
	}
	pthread_mutex_lock(&h->lock);
	if (e == symcclSuccess && h->state == HUB_JOINING) {
		h->stood = 1;
		for (int i = 0; i < h->nlocal; i++)
			comm_set_queue(h->local[i], h->local[i]->first);
		__atomic_store_n(&h->state, HUB_READY, __ATOMIC_RELEASE);
		pthread_cond_broadcast(&h->cond);
	} else if (h->state == HUB_JOINING) {
		hub_fail_locked(h, &why);
	}
	pthread_mutex_unlock(&h->lock);
}

/* The ranks that have posted fewer sets than `want`, as "1, 3 and 5"; 0 when there are none. */
static int late_ranks(const struct hub *h, uint32_t want, char *out, size_t n)
{
	int late = 0;
	size_t at = 0;

	out[0] = '\0';
	for (int r = 0; r < h->nranks; r++) {
		if (__atomic_load_n(&h->board->rank[r].posted, __ATOMIC_RELAXED) >= want)
			continue;
		if (at + 16 < n)
			at += (size_t)snprintf(out + at, n - at, "%s%d", late ? ", " : "", r);
		late++;
	}
	return late;
}

/* A deadline has passed: say which ranks did not register. */
static void timeout_text(struct hub *h, struct failure *why)
{
	char late[160];
	uint32_t most = 0;
	int n;

	for (int i = 0; i < h->nlocal; i++)
		most = MAX(most, h->local[i]->nposted);
	n = late_ranks(h, most, late, sizeof(late));
	if (n == 0)
		return;
	why->code = symcclTimeout;
	why->rank = -1;
	snprintf(why->text, sizeof(why->text),
		"rank%s %s did not come to window registration %u in time "
		"(SYMCCL_SETUP_TIMEOUT is %g s): "
		"registering is collective, every rank must call it in the same order",
		n > 1 ? "s" : "", late, most - 1, params_get()->setup_timeout);
}

/* How many sets every local rank has queued, whether any has one, and the earliest deadline. Lock
 * held. */
static int queued(const struct hub *h, int *any, uint64_t *deadline)
{
	int least = 1 << 30;

	*any = 0;
	*deadline = 0;
	for (int i = 0; i < h->nlocal; i++) {
		const struct symcclComm *c = h->local[i];

		least = MIN(least, c->nqueued);
		*any |= c->queue != NULL;
		if (c->queue != NULL && c->queue->deadline != 0 &&
			(*deadline == 0 || c->queue->deadline < *deadline))
			*deadline = c->queue->deadline;
	}
	return least;
}

static int left_rank(const struct hub *h)
{
	for (int i = 0; i < h->nlocal; i++)
		if (h->local[i]->left)
			return h->local[i]->rank;
	return -1;
}

/* Run one batch of n sets. Lock held on entry and return, not between. */
static void run_batch(struct hub *h, int n, uint64_t deadline)
{
	struct reg_set **sets = calloc((size_t)(unsigned)(h->nlocal * n), sizeof(*sets));
	struct failure why = {.rank = -1};
	symcclResult_t e = symcclSystemError;
	uint32_t *freed = h->freed;
	int taken = 0, nfreed = h->nfreed;

	/* What the batch works on is its own: the ranks go on posting meanwhile. */
	for (int l = 0; sets != NULL && l < h->nlocal; l++) {
		struct reg_set *s = h->local[l]->queue;

		for (int i = 0; i < n; i++, s = s->next)
			sets[l * n + i] = s;
	}
	h->freed = NULL;
	h->nfreed = h->freed_room = 0;
	pthread_mutex_unlock(&h->lock);
	if (sets != NULL)
		e = sym_batch(&h->sym, sets, n, freed, nfreed, deadline, &taken);
	else
		fail(e, "out of memory while windows were being registered");
	if (e == symcclSuccess && h->gpu != NULL)
		e = hub_gpu_prove(h, deadline);
	free(freed);
	if (e != symcclSuccess) {
		failure_from(&why, e);
		if (boot_failure(h->boot)->code != symcclSuccess)
			why = *boot_failure(h->boot);
		if (why.code == symcclTimeout)
			timeout_text(h, &why);
	}
	pthread_mutex_lock(&h->lock);
	free(sets);
	if (e != symcclSuccess) {
		hub_fail_locked(h, &why);
		return;
	}
	for (int i = 0; i < h->nlocal; i++) {
		struct symcclComm *c = h->local[i];

		for (int k = 0; k < taken; k++) {
			struct reg_set *s = c->queue;

			c->queue = s->next;
			c->nqueued--;
			hub_finish_set(c, s);
		}
		if (c->queue == NULL)
			c->queue_end = &c->queue;
	}
	pthread_mutex_unlock(&h->lock);
	sym_reap(&h->sym);
	pthread_mutex_lock(&h->lock);
}

/* Nothing to do: sleep until a local rank or a peer wants something, or something dies. Lock held
 * on entry and return. */
static void rest(struct hub *h, uint64_t deadline)
{
	struct failure why = {.rank = -1};
	uint64_t now = now_ns();
	int ms = -1;
	symcclResult_t e;

	if (deadline != 0 && now >= deadline) {
		timeout_text(h, &why);
		if (why.code != symcclSuccess) {
			hub_fail_locked(h, &why);
			return;
		}
		deadline = 0;
	}
	if (deadline != 0)
		ms = (int)MIN((deadline - now) / 1000000u + 1, 1000000u);
	/* Kernels that give up leave a record, and cannot wake anybody. */
	if (h->gpu != NULL) {
		if (hub_gpu_check(h, &why)) {
			hub_fail_locked(h, &why);
			return;
		}
		ms = ms < 0 ? GPU_LOOK_MS : MIN(ms, GPU_LOOK_MS);
	}
	pthread_mutex_unlock(&h->lock);
	e = boot_idle(h->boot, h->wake, ms);
	if (e != symcclSuccess && e != symcclInProgress && e != symcclTimeout)
		why = *boot_failure(h->boot);
	drain(h->wake);
	pthread_mutex_lock(&h->lock);
	if (why.code != symcclSuccess)
		hub_fail_locked(h, &why);
}

void *hub_worker(void *arg)
{
	struct hub *h = arg;
	uint64_t deadline;
	int n, any;

	pthread_setname_np(pthread_self(), "symccl-worker");
	open_hub(h);
	pthread_mutex_lock(&h->lock);
	while (!h->closing && h->state == HUB_READY) {
		n = MIN(queued(h, &any, &deadline), BATCH_MAX);
		if (any && left_rank(h) >= 0) {
			struct failure why = {symcclInvalidUsage, left_rank(h), ""};

			snprintf(why.text, sizeof(why.text),
				"rank %d has destroyed the communicator: registering needs every "
				"rank",
				why.rank);
			hub_fail_locked(h, &why);
		} else if (n > 0) {
			run_batch(h, n, deadline);
		} else {
			rest(h, deadline);
		}
	}
	/* Failed: pass it on at once, then only wait for the ranks to leave. */
	if (h->state == HUB_FAILED && h->boot != NULL)
		boot_abort(h->boot, &h->why);
	while (!h->closing) {
		hub_fail_queues(h);
		pthread_cond_wait(&h->cond, &h->lock);
	}
	hub_fail_queues(h);
	pthread_mutex_unlock(&h->lock);
	if (h->entered)
		board_leave(h->board, h->local_rank[0]);
	return NULL;
}
