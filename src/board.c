/* The board: failure, who lives, notes. */
#define _GNU_SOURCE
#include "board.h"
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "util.h"

#define CLAIM_MS 50 /* for who writes the reason */

/* Once per node. Who finds the claim taken waits for the one that took it: it may have died before
 * it was done, and everybody's loops end by the abort word alone. */
void board_fail(struct board *b, const struct failure *why)
{
	uint32_t none = 0;

	if (!__atomic_compare_exchange_n(
		    &b->claim, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
		for (int i = 0; i < CLAIM_MS * 10; i++) {
			if (__atomic_load_n(&b->abort, __ATOMIC_ACQUIRE))
				return;
			usleep(100);
		}
	}
	b->why = *why;
	__atomic_store_n(&b->abort, 1, __ATOMIC_RELEASE);
}

int board_read(const struct board *b, struct failure *why)
{
	if (b == NULL || !__atomic_load_n(&b->abort, __ATOMIC_ACQUIRE))
		return 0;
	*why = b->why;
	why->text[sizeof(why->text) - 1] = '\0';
	return 1;
}

/* ---- Who lives ---------------------------------------------------------------------------------
 */

symcclResult_t board_enter(struct board *b, const int *ranks, int n)
{
	pthread_mutexattr_t a;
	pthread_mutex_t *alive = &b->rank[ranks[0]].alive;
	int e;

	for (int i = 0; i < n; i++)
		b->rank[ranks[i]].proc_rank = ranks[0];
	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	e = pthread_mutex_init(alive, &a);
	pthread_mutexattr_destroy(&a);
	if (e == 0)
		e = pthread_mutex_lock(alive);
	if (e == 0)
		return symcclSuccess;
	errno = e;
	return fail(symcclSystemError, "no lock in memory that processes share: %m");
}

void board_leave(struct board *b, int lowest)
{
	pthread_mutex_unlock(&b->rank[lowest].alive);
}

enum board_life board_look(struct board *b, int rank)
{
	struct board_rank *proc = &b->rank[b->rank[rank].proc_rank];
	int e;

	if (__atomic_load_n(&b->rank[rank].left, __ATOMIC_ACQUIRE))
		return BOARD_LEFT;
	if (__atomic_load_n(&proc->dead, __ATOMIC_ACQUIRE))
		return BOARD_DEAD;
	e = pthread_mutex_trylock(&proc->alive);
	if (e == EBUSY)
		return BOARD_ALIVE;
	/* A robust mutex that is given up instead of made consistent is left locked by glibc's
	 * trylock (2.36), so this is kept beside it. */
	if (e == EOWNERDEAD) {
		__atomic_store_n(&proc->dead, 1, __ATOMIC_RELEASE);
		pthread_mutex_consistent(&proc->alive);
	}
	pthread_mutex_unlock(&proc->alive);
	return e == 0 && !__atomic_load_n(&proc->dead, __ATOMIC_ACQUIRE) ? BOARD_LEFT : BOARD_DEAD;
}

/* ---- Notes -------------------------------------------------------------------------------------
 */

void board_post(struct board *b, int rank, int which, uint32_t kind, uint64_t key, uint32_t seq,
	const void *data, size_t n)
{
	struct board_note *o = &b->rank[rank].note[which + (seq & 1)];

	/* Acquire: what follows stays behind it. */
	(void)__atomic_exchange_n(&o->seq, 0, __ATOMIC_ACQ_REL);
	o->kind = kind;
	__atomic_store_n(&o->key, key, __ATOMIC_RELAXED);
	memcpy(o->data, data, n);
	__atomic_store_n(&o->seq, seq, __ATOMIC_RELEASE);
	syscall(SYS_futex, &o->seq, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

int board_heard(struct board *b, int rank, int which, uint64_t key, uint32_t seq, uint32_t *kind,
	void *data, size_t n)
{
	struct board_note *o = &b->rank[rank].note[which + (seq & 1)];
	uint32_t at = __atomic_load_n(&o->seq, __ATOMIC_ACQUIRE);
	int same = __atomic_load_n(&o->key, __ATOMIC_RELAXED) == key;

	if (at != 0 && same && at != seq)
		return (int32_t)(at - seq) > 0 ? -1 : 0;
	if (at != seq || !same)
		return 0;
	*kind = o->kind;
	memcpy(data, o->data, n);
	/* A read-modify-write for its release: the copy is made before it. */
	return __atomic_fetch_add(&o->seq, 0, __ATOMIC_ACQ_REL) == seq ? 1 : -1;
}

void board_sleep(const struct board *b, int rank, int which, uint32_t seq, int ms)
{
	const struct board_note *o = &b->rank[rank].note[which + (seq & 1)];
	struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
	uint32_t at = __atomic_load_n(&o->seq, __ATOMIC_RELAXED);

	if (at != seq)
		syscall(SYS_futex, &o->seq, FUTEX_WAIT, at, &t, NULL, 0);
}
