/* What programs do to communicators besides using them: memory freed under windows, ranks too many,
 * aborts from other threads, signals. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "hub.h"
#include "mem.h"
#include "params.h"
#include "ranks.h"
#include "util.h"

TestSuite(misuse, .timeout = 60);

static void run(int n, int procs, rank_fn *fn, void *arg)
{
	char err[1024];
	int e = procs == 1 ? ranks_run_threads(n, 20, fn, arg, err, sizeof(err))
			   : ranks_run_mixed(procs, n, 20, fn, arg, err, sizeof(err));

	cr_assert_eq(e, 0, "%d ranks in %d processes: %s", n, procs, err);
}

static int join(int rank, int n, symcclComm_t *comm)
{
	symcclUniqueId id;

	if (rank == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_OK(symcclCommInitRank(comm, n, id, rank));
	RANK_BARRIER(); /* an abort may overtake another rank's return */
	return 0;
}

/* ---- Memory ------------------------------------------------------------------------------------
 */

#define BLOCK ((size_t)256 << 10)

static int gather_right(symcclComm_t c, int rank, int n, char *recv, int salt)
{
	char *send = malloc(BLOCK);

	RANK_CHECK(send != NULL, "out of memory");
	memset(send, rank + salt, BLOCK);
	memset(recv, 0, BLOCK * (size_t)n);
	RANK_OK(symcclAllGather(send, recv, BLOCK, symcclInt8, c, NULL));
	for (int r = 0; r < n; r++)
		for (size_t i = 0; i < BLOCK; i++)
			RANK_CHECK(recv[(size_t)r * BLOCK + i] == (char)(r + salt),
				"byte %zu of rank %d is wrong", i, r);
	free(send);
	return 0;
}

/* The kernel hands the same address out again, and the window still lies there. */
static int freed_and_again(int rank, int n, void *arg)
{
	size_t bytes = BLOCK * (size_t)n;
	symcclWindow_t old, new = NULL;
	symcclComm_t c;
	void *p, *q;

	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&p, bytes));
	RANK_OK(symcclCommWindowRegister(c, p, bytes, &old, SYMCCL_WIN_COLL_SYMMETRIC));
	RANK_TRY(gather_right(c, rank, n, p, 1));
	RANK_OK(symcclMemFree(p));
	RANK_OK(symcclMemAlloc(&q, bytes));
	if (arg != NULL)
		RANK_OK(symcclCommWindowRegister(c, q, bytes, &new, SYMCCL_WIN_COLL_SYMMETRIC));
	RANK_TRY(gather_right(c, rank, n, q, 2));
	RANK_OK(symcclCommWindowDeregister(c, old));
	RANK_TRY(gather_right(c, rank, n, q, 3));
	RANK_OK(symcclCommWindowDeregister(c, new));
	RANK_OK(symcclCommDestroy(c));
	RANK_OK(symcclMemFree(q));
	return 0;
}

Test(misuse, new_memory_where_a_window_was)
{
	run(2, 2, freed_and_again, NULL);
	run(2, 2, freed_and_again, "registered");
}

/* ---- Joining and leaving ----------------------------------------------------------------------
 */

struct joiner {
	pthread_t thread;
	symcclUniqueId id;
	int n, rank, delay_us;
	symcclResult_t result;
};

static void *join_alone(void *arg)
{
	struct joiner *j = arg;
	symcclComm_t c;

	usleep((useconds_t)j->delay_us);
	j->result = symcclCommInitRank(&c, j->n, j->id, j->rank);
	if (j->result == symcclSuccess)
		symcclCommDestroy(c);
	return NULL;
}

/* One thread more than ranks, coming while the others are being served. */
static int one_too_many(int rank, int n, void *arg)
{
	uint64_t end = now_ns() + 3000000000u;
	unsigned seed = (unsigned)test_seed();

	(void)rank, (void)n, (void)arg;
	RANK_CHECK(setenv("SYMCCL_SETUP_TIMEOUT", "0.05", 1) == 0, "setenv");
	RANK_CHECK(setenv("SYMCCL_DEBUG", "none", 1) == 0, "setenv");
	params_reload();
	for (int i = 0; now_ns() < end; i++) {
		struct joiner j[3] = {0};
		int ranks = 1 + i % 2, came = 0;

		RANK_OK(symcclGetUniqueId(&j[0].id));
		for (int k = 0; k <= ranks; k++) {
			j[k].id = j[0].id;
			j[k].n = ranks;
			j[k].rank = k % ranks;
			j[k].delay_us = k < ranks ? 0 : rand_r(&seed) % 1000;
			pthread_create(&j[k].thread, NULL, join_alone, &j[k]);
		}
		for (int k = 0; k <= ranks; k++) {
			pthread_join(j[k].thread, NULL);
			came += j[k].result == symcclSuccess;
			RANK_CHECK(j[k].result != symcclInternalError, "no bug: a rank too many");
		}
		RANK_CHECK(came <= ranks, "%d of %d ranks joined", came, ranks);
	}
	return 0;
}

Test(misuse, one_rank_too_many)
{
	run(2, 2, one_too_many, NULL);
}

/* Destroyed once is enough, also while other ranks of the process keep the hub. */
static int destroyed_twice(int rank, int n, void *arg)
{
	symcclComm_t c;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	if (rank == 0) {
		RANK_OK(symcclCommDestroy(c));
		RANK_RESULT(symcclCommDestroy(c), symcclInvalidArgument);
	}
	RANK_BARRIER();
	RANK_OK(symcclCommDestroy(c = rank == 0 ? NULL : c));
	return 0;
}

Test(misuse, destroyed_twice)
{
	run(3, 1, destroyed_twice, NULL);
}

/* Without a deadline there is still somebody who can tell. */
static int register_without_one(int rank, int n, void *arg)
{
	symcclWindow_t w;
	symcclComm_t c;
	void *p;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&p, BLOCK));
	if (rank == 0)
		RANK_OK(symcclCommDestroy(c));
	RANK_BARRIER();
	if (rank == 1) {
		RANK_RESULT(symcclCommWindowRegister(c, p, BLOCK, &w, 0), symcclInvalidUsage);
		RANK_OK(symcclCommDestroy(c));
	}
	RANK_OK(symcclMemFree(p));
	return 0;
}

Test(misuse, no_deadline_and_a_rank_that_left)
{
	setenv("SYMCCL_SETUP_TIMEOUT", "0", 1);
	params_reload();
	run(2, 1, register_without_one, NULL);
	unsetenv("SYMCCL_SETUP_TIMEOUT");
	params_reload();
}

/* The name is copied by the call, not by the group's end. */
static int name_in_group(int rank, int n, void *arg)
{
	symcclConfig_t config = SYMCCL_CONFIG_INITIALIZER;
	char name[] = "first";
	symcclUniqueId id;
	symcclComm_t c;

	(void)arg;
	if (rank == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	config.commName = name;
	RANK_OK(symcclGroupStart());
	RANK_OK(symcclCommInitRankConfig(&c, n, id, rank, &config));
	memset(name, 'x', sizeof(name) - 1);
	RANK_OK(symcclGroupEnd());
	RANK_CHECK(strcmp(c->name, "first") == 0, "the name is \"%s\"", c->name);
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(misuse, names_of_a_group)
{
	run(2, 2, name_in_group, NULL);
}

/* ---- Abort and death ---------------------------------------------------------------------------
 */

static void *abort_it(void *comm)
{
	return (void *)(uintptr_t)(symcclCommAbort(comm) + 1);
}

static int abort_while_registering(int rank, int n, void *arg)
{
	symcclWindow_t w;
	symcclComm_t c;
	pthread_t t;
	void *p, *r;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&p, BLOCK));
	if (rank == 0) {
		/* As if the registration were slow to return: abort must wait for it. */
		comm_hold(c);
		pthread_create(&t, NULL, abort_it, c);
		RANK_RESULT(symcclCommWindowRegister(c, p, BLOCK, &w, 0), symcclRemoteError);
		usleep(50000);
		RANK_CHECK(c->magic == COMM_MAGIC, "the communicator is gone");
		comm_release(c);
		pthread_join(t, &r);
		RANK_CHECK((uintptr_t)r == symcclSuccess + 1, "abort says %d", (int)(uintptr_t)r);
	}
	RANK_BARRIER();
	if (rank != 0)
		RANK_OK(symcclCommDestroy(c));
	RANK_OK(symcclMemFree(p));
	return 0;
}

static void *see_held(void *arg)
{
	symcclComm_t c = arg;

	for (int i = 0; i < 5000 && __atomic_load_n(&c->held, __ATOMIC_ACQUIRE) == 0; i++)
		usleep(1000);
	if (__atomic_load_n(&c->held, __ATOMIC_ACQUIRE) == 0)
		rank_fail(__FILE__, __LINE__, "a call that waits does not say so");
	return abort_it(arg);
}

/* Every call that waits is known to abort. */
static int waiting_is_seen(int rank, int n, void *arg)
{
	symcclRequest_t request;
	symcclWindow_t w;
	symcclComm_t c;
	pthread_t t;
	void *p;

	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclMemAlloc(&p, BLOCK));
	if (rank == 0 && arg == NULL) {
		pthread_create(&t, NULL, see_held, c);
		RANK_RESULT(symcclCommWindowRegister(c, p, BLOCK, &w, 0), symcclRemoteError);
		pthread_join(t, NULL);
	} else if (rank == 0 && strcmp(arg, "group") == 0) {
		RANK_OK(symcclGroupStart());
		RANK_OK(symcclBarrier(c, NULL));
		pthread_create(&t, NULL, see_held, c);
		RANK_RESULT(symcclGroupEnd(), symcclRemoteError);
		pthread_join(t, NULL);
	} else if (rank == 0) {
		RANK_OK(symcclCommWindowRegisterAsync(c, p, BLOCK, &w, 0, &request));
		pthread_create(&t, NULL, see_held, c);
		RANK_RESULT(symcclRequestWait(request), symcclRemoteError);
		pthread_join(t, NULL);
	}
	RANK_BARRIER();
	if (rank != 0)
		RANK_OK(symcclCommDestroy(c));
	RANK_OK(symcclMemFree(p));
	return 0;
}

Test(misuse, abort_waits_for_calls)
{
	run(2, 2, abort_while_registering, NULL);
	run(2, 2, waiting_is_seen, NULL);
	run(2, 2, waiting_is_seen, "group");
	run(2, 2, waiting_is_seen, "request");
}

/* What the group has queued on it goes with it. */
static int abort_in_group(int rank, int n, void *arg)
{
	symcclComm_t c;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	if (rank == 0) {
		RANK_OK(symcclGroupStart());
		RANK_OK(symcclBarrier(c, NULL));
		RANK_OK(symcclCommAbort(c));
		RANK_OK(symcclGroupEnd());
		return 0;
	}
	RANK_RESULT(symcclBarrier(c, NULL), symcclRemoteError);
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(misuse, abort_inside_a_group)
{
	run(2, 2, abort_in_group, NULL);
}

/* A process may die between claiming the board and writing why. */
static int half_a_board(int rank, int n, void *arg)
{
	symcclComm_t c;
	uint64_t t;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclBarrier(c, NULL));
	ranks_expect_signal(1, SIGKILL);
	RANK_BARRIER();
	if (rank == 1) {
		usleep(100000);
		c->hub->board->claim = 1;
		ranks_die(SIGKILL);
	}
	t = now_ns();
	RANK_RESULT(symcclBarrier(c, NULL), symcclRemoteError);
	RANK_CHECK(now_ns() - t < 1100000000u, "took %g s", (double)(now_ns() - t) / 1e9);
	RANK_CHECK(strstr(symcclGetLastError(c), "rank 1"), "%s", symcclGetLastError(c));
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(misuse, death_while_writing_the_board)
{
	run(3, 3, half_a_board, NULL);
}

/* ---- Signals -----------------------------------------------------------------------------------
 */

static volatile sig_atomic_t handled;

static void handle(int sig)
{
	(void)sig;
	handled = 1;
}

/* A signal that all of the program's threads block must not run on one of the library's. */
static int signals_stay(int rank, int n, void *arg)
{
	struct sigaction sa = {.sa_handler = handle};
	sigset_t set;
	symcclComm_t c;

	(void)arg;
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclBarrier(c, NULL));
	sigaction(SIGUSR1, &sa, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	kill(getpid(), SIGUSR1);
	usleep(50000);
	RANK_CHECK(!handled, "it ran on a thread of the library");
	RANK_OK(symcclCommDestroy(c));
	return 0;
}

Test(misuse, signals_are_not_ours)
{
	run(2, 2, signals_stay, NULL);
}

/* ---- Descriptors -------------------------------------------------------------------------------
 */

#define FDS_MAX 4096

static void note_open(unsigned char *open)
{
	for (int fd = 0; fd < FDS_MAX; fd++)
		open[fd] = fcntl(fd, F_GETFD) >= 0;
}

/* A daemon that closes "all" descriptors: the others hear of it, and nobody waits for ever. */
static int closed_under_us(int rank, int n, void *arg)
{
	unsigned char before[FDS_MAX], after[FDS_MAX];
	symcclResult_t e;
	symcclComm_t c;
	uint64_t t;

	(void)arg;
	note_open(before);
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclBarrier(c, NULL));
	RANK_BARRIER();
	if (rank == 1) {
		note_open(after);
		for (int fd = 0; fd < FDS_MAX; fd++)
			if (after[fd] && !before[fd])
				close(fd);
		do {
			usleep(1000);
			e = symcclInProgress;
			RANK_OK(symcclCommGetAsyncError(c, &e));
		} while (e == symcclSuccess);
		/* Whoever notices first says it to all: the others see the connections end. */
		RANK_CHECK(strstr(symcclGetLastError(c), "rank 1"), "%s", symcclGetLastError(c));
	} else {
		e = symcclBarrier(c, NULL);
		RANK_CHECK(e == symcclRemoteError || e == symcclInvalidUsage, "%d: %s", e,
			symcclGetLastError(c));
		RANK_CHECK(strstr(symcclGetLastError(c), "rank 1"), "%s", symcclGetLastError(c));
	}
	t = now_ns();
	RANK_OK(symcclCommDestroy(c));
	RANK_CHECK(now_ns() - t < 5000000000u, "took %g s", (double)(now_ns() - t) / 1e9);
	RANK_BARRIER();
	return 0;
}

Test(misuse, descriptors_closed_by_the_program)
{
	run(3, 3, closed_under_us, NULL);
}

/* The same while it waits in CommDestroy: one that sleeps on them when they go. */
static int closed_and_gone(int rank, int n, void *arg)
{
	unsigned char before[FDS_MAX], after[FDS_MAX];
	symcclComm_t c;
	uint64_t t;

	(void)arg;
	note_open(before);
	RANK_TRY(join(rank, n, &c));
	RANK_OK(symcclBarrier(c, NULL));
	usleep(100000); /* the worker rests */
	note_open(after);
	for (int fd = 0; fd < FDS_MAX; fd++)
		if (after[fd] && !before[fd])
			close(fd);
	t = now_ns();
	RANK_OK(symcclCommDestroy(c));
	RANK_CHECK(now_ns() - t < 5000000000u, "took %g s", (double)(now_ns() - t) / 1e9);
	return 0;
}

Test(misuse, descriptors_closed_before_destroy)
{
	run(2, 2, closed_and_gone, NULL);
}

/* ---- Thread-local variables ---------------------------------------------------------------------
 */

/* They lie on the stack of every thread, also on those of the library. */
static __thread unsigned char large[600 << 10];

static int threads_of_all_kinds(int rank, int n, void *arg)
{
	symcclStream_t stream;
	symcclComm_t a, b;

	(void)arg;
	memset(large, rank + 1, sizeof(large));
	RANK_TRY(join(rank, n, &a));
	RANK_TRY(join(rank, n, &b));
	RANK_OK(symcclHostStreamCreate(&stream));
	RANK_OK(symcclBarrier(a, stream));
	RANK_OK(symcclHostStreamDestroy(stream));
	RANK_OK(symcclGroupStart());
	RANK_OK(symcclBarrier(a, NULL));
	RANK_OK(symcclBarrier(b, NULL));
	RANK_OK(symcclGroupEnd());
	RANK_OK(symcclCommDestroy(a));
	RANK_OK(symcclCommDestroy(b));
	RANK_CHECK(large[0] == rank + 1 && large[sizeof(large) - 1] == rank + 1, "overwritten");
	return 0;
}

Test(misuse, large_thread_local_variables)
{
	run(2, 2, threads_of_all_kinds, NULL);
	run(2, 1, threads_of_all_kinds, NULL);
}
