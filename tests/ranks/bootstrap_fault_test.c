/* The bootstrap when processes die, stop, leave or abort: every survivor returns in time, with the
 * reason. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "boot_helper.h"
#include "mem.h"
#include "params.h"
#include "ranks.h"
#include "util.h"

TestSuite(bootstrap_fault, .timeout = 60);

#define RUN(n, s, fn, arg) \
	do { \
		char err_[1024]; \
		cr_assert_eq(ranks_run(n, s, fn, arg, err_, sizeof(err_)), 0, "%s", err_); \
	} while (0)

/* ---- Deaths -------------------------------------------------------------------------------- */

enum phase {
	DIE_BEFORE_JOIN, /* connected to the root, others still missing */
	DIE_ALLGATHER,
	DIE_BARRIER,
	DIE_FDS,
	DIE_RECV,
	DIE_IDLE,
	DIE_PHASES
};

struct death {
	enum phase phase;
	int victim;
	int heir;  /* a forked child of the victim keeps its sockets */
	int nodes; /* virtual */
	uint64_t seed;
};

/* Die, perhaps leaving a child that holds every descriptor. */
static void die(const struct death *d)
{
	if (d->heir && fork() == 0) {
		sleep(4);
		_exit(0);
	}
	ranks_die(SIGKILL);
}

static symcclResult_t survive(struct boot *b, enum phase phase)
{
	int wakefd, *fds, *counts;
	const void **all;
	const size_t *len;
	symcclResult_t r;
	char byte;
	size_t one = 1;

	switch (phase) {
	case DIE_ALLGATHER:
		return boot_allgather(b, "x", 1, &all, &len, after(20));
	case DIE_FDS:
		r = boot_allgather_fds(b, NULL, 0, &fds, &counts, after(20));
		if (r == symcclSuccess) {
			free(fds);
			free(counts);
		}
		return r == symcclSuccess ? boot_barrier(b, after(20)) : r;
	case DIE_RECV:
		return boot_recv(b, 0, 77, &byte, &one, after(20));
	case DIE_IDLE:
		wakefd = eventfd(0, EFD_CLOEXEC);
		r = boot_idle(b, wakefd, 20000);
		close(wakefd);
		return r;
	default:
		return boot_barrier(b, after(20));
	}
}

static int one_dies(int rank, int n, void *arg)
{
	const struct death *d = arg;
	struct leak_snapshot before;
	uint64_t *when = ranks_shared();
	struct failure why = {0};
	symcclUniqueId id;
	char node[16], who[32];
	struct boot *b = NULL;

	leak_snapshot(&before);
	if (d->nodes) {
		snprintf(node, sizeof(node), "node%d", rank % d->nodes);
		set_env("SYMCCL_HOSTID", node);
	}
	RANK_TRY(share_id(rank, &id));
	snprintf(who, sizeof(who), "rank %d (pid %d", d->victim, (int)ranks_pid(d->victim));
	RANK_OK(open_one(rank, n, &id, 10, &b, NULL));
	RANK_OK(boot_barrier(b, after(10)));
	RANK_BARRIER();
	if (rank == d->victim) {
		ranks_expect_signal(rank, SIGKILL);
		usleep(100000); /* the others are inside */
		__atomic_store_n(when, now_ns(), __ATOMIC_RELEASE);
		die(d);
	}
	RANK_RESULT(survive(b, d->phase), symcclRemoteError);
	RANK_CHECK(__atomic_load_n(when, __ATOMIC_ACQUIRE) != 0, "before the death");
	RANK_CHECK(seconds_since(*when) < 0.9, "known only after %.3f s", seconds_since(*when));
	why = *boot_failure(b);
	CHECK_WHY(&why, symcclRemoteError, who, "died");
	RANK_CHECK(why.rank == d->victim, "blames rank %d", why.rank);
	RANK_RESULT(boot_barrier(b, after(5)), symcclRemoteError);
	boot_close(b);
	RANK_NO_LEAK(&before);
	return 0;
}

/* Victims: the top of the tree, a leader, an inner one, a leaf. */
static void everyone_dies(int n, int heir, int nodes)
{
	static const int victims[] = {0, 1, 5};

	for (int phase = DIE_ALLGATHER; phase < DIE_PHASES; phase++)
		for (size_t v = 0; v < ARRAY_LEN(victims); v++) {
			struct death d = {(enum phase)phase, victims[v], heir, nodes, 0};

			RUN(n, 15, one_dies, &d);
		}
}

Test(bootstrap_fault, a_death_is_known_at_once)
{
	everyone_dies(12, 0, 0);
}

Test(bootstrap_fault, a_death_behind_a_forked_child_is_known_at_once)
{
	everyone_dies(6, 1, 0);
}

Test(bootstrap_fault, a_death_on_another_node_is_known_at_once)
{
	everyone_dies(7, 0, 3);
}

static void *fork_heir(void *arg)
{
	usleep(100000); /* the socket is there */
	if (fork() == 0) {
		sleep(4);
		_exit(0);
	}
	return arg;
}

/* The victim has told the root its rank, the last rank never comes. */
static int dies_early(int rank, int n, void *arg)
{
	const struct death *d = arg;
	struct failure why = {0};
	struct boot *b = NULL;
	uint64_t *when = ranks_shared();
	symcclUniqueId id;
	pthread_t thread;
	char who[32];

	RANK_TRY(share_id(rank, &id));
	snprintf(who, sizeof(who), "rank %d (pid %d", d->victim, (int)ranks_pid(d->victim));
	if (rank == n - 1) {
		usleep(200000);
		ranks_expect_signal(d->victim, SIGKILL);
		__atomic_store_n(when, now_ns(), __ATOMIC_RELEASE);
		kill(ranks_pid(d->victim), SIGKILL);
		return 0;
	}
	if (rank == d->victim && d->heir)
		RANK_CHECK(pthread_create(&thread, NULL, fork_heir, NULL) == 0, "no thread");
	RANK_RESULT(open_one(rank, n, &id, 10, &b, &why), symcclRemoteError);
	CHECK_WHY(&why, symcclRemoteError, who, "died before all ranks had joined");
	RANK_CHECK(seconds_since(*when) < 0.9, "known only after %.3f s", seconds_since(*when));
	return 0;
}

Test(bootstrap_fault, a_death_before_all_have_joined)
{
	struct death d = {DIE_BEFORE_JOIN, 1, 0, 0, 0};

	RUN(5, 15, dies_early, &d);
	d.victim = 3;
	d.heir = 1;
	RUN(5, 15, dies_early, &d);
}

struct bomb {
	const struct death *d;
	int after_us;
};

static void *bomb_main(void *arg)
{
	const struct bomb *b = arg;

	usleep((useconds_t)b->after_us);
	die(b->d);
	return NULL;
}

/* At a random moment while all meet, and run operations. */
static int dies_sometime(int rank, int n, void *arg)
{
	const struct death *d = arg;
	struct bomb bomb = {d, (int)(mix64(d->seed, 0) % 12000)};
	struct failure why = {0};
	struct boot *b = NULL;
	symcclUniqueId id;
	char node[16], who[16];
	pthread_t thread;
	symcclResult_t r;

	if (d->nodes) {
		snprintf(node, sizeof(node), "node%d", rank % d->nodes);
		set_env("SYMCCL_HOSTID", node);
	}
	snprintf(who, sizeof(who), "rank %d (", d->victim);
	set_env("SYMCCL_SETUP_TIMEOUT", "1");
	RANK_TRY(share_id(rank, &id));
	if (rank == d->victim) {
		ranks_expect_signal(rank, SIGKILL);
		RANK_CHECK(pthread_create(&thread, NULL, bomb_main, &bomb) == 0, "no thread");
	}
	r = open_one(rank, n, &id, 10, &b, &why);
	for (int i = 0; i < 100000 && r == symcclSuccess; i++)
		r = survive(b, (enum phase)(DIE_ALLGATHER + i % 3));
	if (b)
		why = *boot_failure(b);
	if (rank == d->victim)
		sleep(5);
	/* Dead before the root had heard of it, it is one that did not come. */
	if (r == symcclTimeout)
		snprintf(who, sizeof(who), "rank %d of", d->victim);
	else
		RANK_CHECK(r == symcclRemoteError, "%s: %s", error_name(r), why.text);
	CHECK_WHY(&why, r, who);
	boot_close(b);
	return 0;
}

Test(bootstrap_fault, a_death_at_any_moment)
{
	uint64_t seed = test_seed();

	for (int i = 0; i < 20; i++) {
		struct death d = {0};

		d.seed = mix64(seed, (uint64_t)i);
		d.victim = 1 + i % 5; /* rank 0 serves the rendezvous: the next test */
		d.nodes = i % 2 ? 3 : 0;
		/* Over TCP the root cannot see through a forked child. */
		d.heir = i % 4 == 0;
		RUN(6, 12, dies_sometime, &d);
	}
}

/* The process with the root dies: whatever is said, all return in time. */
static int root_dies(int rank, int n, void *arg)
{
	const struct death *d = arg;
	struct bomb bomb = {d, (int)(mix64(d->seed, 0) % 6000)};
	struct boot *b = NULL;
	struct failure why;
	symcclUniqueId id;
	pthread_t thread;
	symcclResult_t r;

	RANK_TRY(share_id(rank, &id));
	if (rank == 0) {
		ranks_expect_signal(rank, SIGKILL);
		RANK_CHECK(pthread_create(&thread, NULL, bomb_main, &bomb) == 0, "no thread");
	}
	r = open_one(rank, n, &id, 2, &b, &why);
	for (int i = 0; i < 100000 && r == symcclSuccess; i++)
		r = survive(b, (enum phase)(DIE_ALLGATHER + i % 3));
	if (rank == 0)
		sleep(5);
	RANK_CHECK(r == symcclRemoteError || r == symcclTimeout, "%s", error_name(r));
	boot_close(b);
	return 0;
}

Test(bootstrap_fault, the_root_dies)
{
	uint64_t seed = test_seed();

	for (int i = 0; i < 10; i++) {
		struct death d = {.seed = mix64(seed, (uint64_t)i)};

		RUN(5, 12, root_dies, &d);
	}
}

/* ---- Processes that do not take part -------------------------------------------------------- */

/* Absent ones idle: they learn what they have done. */
static int not_taking_part(int rank, int n, void *arg)
{
	const int *nodes = arg;
	int wakefd = eventfd(0, EFD_CLOEXEC);
	struct failure why;
	symcclUniqueId id;
	struct boot *b;
	uint64_t start;
	char node[16];

	if (*nodes) {
		snprintf(node, sizeof(node), "node%d", rank / 6);
		set_env("SYMCCL_HOSTID", node);
	}
	RANK_TRY(share_id(rank, &id));
	RANK_OK(open_one(rank, n, &id, 10, &b, NULL));
	RANK_BARRIER();
	start = now_ns();
	if (rank == 4 || rank == 10 || rank == 11) {
		symcclResult_t r;

		while ((r = boot_idle(b, wakefd, 5000)) == symcclInProgress)
			usleep(10000);
		RANK_CHECK(r == symcclTimeout, "%s", error_name(r));
	} else {
		/* The top of the tree comes late, but gives up when the first ones do. */
		while (rank == 0 && seconds_since(start) < 0.2)
			boot_idle(b, wakefd, 10);
		RANK_RESULT(boot_barrier(b, after(0.5)), symcclTimeout);
	}
	RANK_CHECK(seconds_since(start) < 1.5, "late: %.3f s", seconds_since(start));
	why = *boot_failure(b);
	CHECK_WHY(&why, symcclTimeout, "ranks 4, 10, 11 did not take part in barrier 2");
	boot_close(b);
	close(wakefd);
	return 0;
}

Test(bootstrap_fault, who_does_not_take_part_is_named)
{
	int nodes = 0;

	RUN(12, 10, not_taking_part, &nodes);
	nodes = 2;
	RUN(12, 10, not_taking_part, &nodes);
}

static int one_stopped(int rank, int n, void *arg)
{
	struct failure why;
	symcclUniqueId id;
	struct boot *b;

	(void)arg;
	RANK_TRY(share_id(rank, &id));
	RANK_OK(open_one(rank, n, &id, 10, &b, NULL));
	RANK_BARRIER();
	if (rank == 2) {
		raise(SIGSTOP);
		boot_close(b);
		return 0;
	}
	RANK_RESULT(boot_barrier(b, after(0.4)), symcclTimeout);
	why = *boot_failure(b);
	CHECK_WHY(&why, symcclTimeout, "rank 2 did not take part");
	boot_close(b);
	usleep(100000);
	if (rank == 0)
		kill(ranks_pid(2), SIGCONT);
	return 0;
}

Test(bootstrap_fault, a_stopped_process_is_named)
{
	RUN(4, 10, one_stopped, NULL);
}

static int one_leaves(int rank, int n, void *arg)
{
	const int *leaver = arg;
	struct failure why;
	symcclUniqueId id;
	struct boot *b;
	char who[48];

	RANK_TRY(share_id(rank, &id));
	RANK_OK(open_one(rank, n, &id, 10, &b, NULL));
	RANK_OK(boot_barrier(b, after(10)));
	if (rank == *leaver) {
		boot_close(b);
		return 0;
	}
	usleep(50000);
	RANK_RESULT(boot_barrier(b, after(5)), symcclRemoteError);
	why = *boot_failure(b);
	snprintf(who, sizeof(who), "rank %d has destroyed the communicator", *leaver);
	CHECK_WHY(&why, symcclRemoteError, who);
	boot_close(b);
	return 0;
}

Test(bootstrap_fault, an_operation_without_one_that_left)
{
	static const int leavers[] = {0, 1, 10};

	for (size_t i = 0; i < ARRAY_LEN(leavers); i++)
		RUN(11, 10, one_leaves, (void *)(uintptr_t)&leavers[i]);
}

/* ---- Abort, cancel, mistakes ----------------------------------------------------------------- */

static int one_aborts(int rank, int n, void *arg)
{
	const struct failure reason = {symcclInvalidUsage, 3, "rank 3 has had enough"};
	struct failure why;
	symcclUniqueId id;
	struct boot *b;
	symcclResult_t r;

	(void)arg;
	RANK_TRY(share_id(rank, &id));
	RANK_OK(open_one(rank, n, &id, 10, &b, NULL));
	RANK_BARRIER();
	if (rank == 3) {
		usleep(50000);
		boot_abort(b, &reason);
		r = boot_barrier(b, after(5));
	} else {
		r = survive(b, rank % 2 ? DIE_RECV : DIE_BARRIER);
	}
	why = *boot_failure(b);
	RANK_CHECK(r == symcclInvalidUsage && why.rank == 3, "%s: %s", error_name(r), why.text);
	RANK_CHECK(strcmp(why.text, reason.text) == 0, "%s", why.text);
	boot_close(b);
	return 0;
}

Test(bootstrap_fault, an_abort_reaches_all)
{
	RUN(12, 10, one_aborts, NULL);
}

static int one_cancels(int rank, int n, void *arg)
{
	const struct failure reason = {symcclRemoteError, 1, "cancelled"};
	int cancel = eventfd(0, EFD_CLOEXEC), given[300], *fds, *counts;
	symcclUniqueId id;
	struct boot *b;
	uint64_t one = 1;

	(void)arg;
	RANK_TRY(share_id(rank, &id));
	RANK_OK(open_one(rank, n, &id, 10, &b, NULL));
	if (rank == 1) {
		for (int i = 0; i < 300; i++)
			given[i] = cancel;
		boot_set_cancel(b, cancel);
		RANK_CHECK(write(cancel, &one, sizeof(one)) == sizeof(one), "no wake");
		RANK_RESULT(boot_allgather_fds(b, given, 300, &fds, &counts, after(5)),
			symcclInProgress);
		boot_abort(b, &reason);
	} else {
		usleep(20000);
		RANK_RESULT(
			boot_allgather_fds(b, NULL, 0, &fds, &counts, after(5)), symcclRemoteError);
	}
	RANK_CHECK(strcmp(boot_failure(b)->text, "cancelled") == 0, "%s", boot_failure(b)->text);
	boot_close(b);
	close(cancel);
	return 0;
}

Test(bootstrap_fault, an_operation_is_cancelled)
{
	RUN(3, 10, one_cancels, NULL);
}

static int one_mistaken(int rank, int n, void *arg)
{
	struct failure why;
	symcclUniqueId id;
	struct boot *b;

	(void)arg;
	RANK_TRY(share_id(rank, &id));
	RANK_OK(open_one(rank, n, &id, 10, &b, NULL));
	RANK_BARRIER();
	RANK_RESULT(survive(b, rank == 2 ? DIE_ALLGATHER : DIE_BARRIER), symcclInternalError);
	why = *boot_failure(b);
	CHECK_WHY(&why, symcclInternalError, "all-gather 2", "barrier 2", "rank 2");
	boot_close(b);
	return 0;
}

Test(bootstrap_fault, different_operations_are_told_apart)
{
	RUN(4, 10, one_mistaken, NULL);
}
