/* The bootstrap between processes: meeting, operations, descriptors, messages. What goes wrong is
 * in bootstrap_fault_test.c. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boot_helper.h"
#include "mem.h"
#include "params.h"
#include "ranks.h"
#include "util.h"

TestSuite(bootstrap, .timeout = 60);

#define RUN(n, s, fn, arg) \
	do { \
		char err_[1024]; \
		cr_assert_eq(ranks_run(n, s, fn, arg, err_, sizeof(err_)), 0, "%s", err_); \
	} while (0)

/* How many ranks each process brings, and on how many virtual nodes the processes are. */
struct layout {
	int per_proc; /* 0: process p brings 1 + p % 3 */
	int nodes;    /* 0: no SYMCCL_HOSTID */
	uint64_t seed;
};

static int layout_ranks(const struct layout *l, int proc)
{
	return l->per_proc ? l->per_proc : 1 + proc % 3;
}

/* Ranks are dealt so that those of a process are not neighbours: the i-th rank of process p is
 * p's position in a walk over all processes. */
static int open_layout(int rank, int n, const struct layout *l, struct boot **b)
{
	struct opener o = {0};
	symcclUniqueId id;
	int total = 0, next = 0;
	char host[16];

	if (l->nodes) {
		snprintf(host, sizeof(host), "node%d", rank % l->nodes);
		setenv("SYMCCL_HOSTID", host, 1);
		params_reload();
	}
	for (int p = 0; p < n; p++)
		total += layout_ranks(l, p);
	for (int round = 0; round < 64; round++)
		for (int p = 0; p < n; p++)
			if (round < layout_ranks(l, p)) {
				if (p == rank)
					opener_add(&o, next, total);
				next++;
			}
	RANK_TRY(share_id(rank, &id));
	RANK_OK(opener_run(&o, &id, 20, b));
	RANK_CHECK((*b)->nprocs == n && (*b)->nranks == total, "%d processes, %d ranks",
		(*b)->nprocs, (*b)->nranks);
	RANK_CHECK((*b)->nnodes == (l->nodes ? MIN(l->nodes, n) : 1), "%d nodes", (*b)->nnodes);
	return 0;
}

static int check_table(const struct boot *b, int rank)
{
	int seen = 0, lowest = -1, node = -1;

	RANK_CHECK(b->procs[b->proc].pid == getpid(), "own place is pid %d", b->procs[b->proc].pid);
	RANK_CHECK(b->rank_proc[rank] == b->proc, "rank %d is in process %d", rank,
		b->rank_proc[rank]);
	for (int p = 0; p < b->nprocs; p++) {
		const struct boot_proc *q = &b->procs[p];

		RANK_CHECK(q->node == node || (q->node == node + 1 && q->node_proc == 0),
			"process %d is %d of node %d", p, q->node_proc, q->node);
		RANK_CHECK(
			q->node != node || q->ranks[0] > lowest, "process %d is out of order", p);
		node = q->node;
		lowest = q->ranks[0];
		for (int i = 0; i < q->nranks; i++, seen++) {
			RANK_CHECK(b->rank_proc[q->ranks[i]] == p, "rank %d", q->ranks[i]);
			RANK_CHECK(i == 0 || q->ranks[i] > q->ranks[i - 1], "ranks not ascending");
		}
		if (p >= b->node_proc0 && p < b->node_proc0 + b->node_nprocs)
			RANK_CHECK(q->node == b->procs[b->proc].node, "process %d", p);
	}
	RANK_CHECK(seen == b->nranks, "%d of %d ranks in the table", seen, b->nranks);
	return 0;
}

/* Lengths from 0 on, some long ones; all processes know what to expect. */
static size_t gather_length(uint64_t seed, int round, int proc, size_t most)
{
	uint64_t r = mix64(seed, (uint64_t)(round * 1000 + proc));

	return round == 0 ? 0 : r % 3 == 0 ? 0 : (size_t)(mix64(seed, r) % most);
}

static int check_gather(struct boot *b, uint64_t seed, int rounds, size_t most)
{
	const void **all;
	const size_t *len;

	for (int round = 0; round < rounds; round++) {
		size_t mine = gather_length(seed, round, b->proc, most);
		char *buf = malloc(mine + 1);

		fill_bytes(buf, mine, seed + (uint64_t)(round * 1000 + b->proc));
		RANK_OK(boot_allgather(b, buf, mine, &all, &len, after(10)));
		free(buf);
		for (int p = 0; p < b->nprocs; p++) {
			size_t want = gather_length(seed, round, p, most);

			RANK_CHECK(len[p] == want, "round %d: %zu bytes from process %d, not %zu",
				round, len[p], p, want);
			RANK_CHECK(((uintptr_t)all[p] & 15) == 0, "unaligned");
			RANK_CHECK(check_bytes(all[p], want, seed + (uint64_t)(round * 1000 + p)) ==
					   want,
				"round %d: bytes of process %d differ", round, p);
		}
	}
	return 0;
}

static int meet(int rank, int n, void *arg)
{
	const struct layout *l = arg;
	struct leak_snapshot before;
	struct boot *b;

	leak_snapshot(&before);
	RANK_TRY(open_layout(rank, n, l, &b));
	RANK_TRY(check_table(b, rank));
	RANK_TRY(check_gather(b, l->seed, 6, n > 16 ? 2000 : 200000));
	for (int i = 0; i < 20; i++)
		RANK_OK(boot_barrier(b, after(10)));
	boot_close(b);
	RANK_NO_LEAK(&before);
	return 0;
}

Test(bootstrap, processes_meet)
{
	static const int sizes[] = {1, 2, 3, 5, 16};
	struct layout l = {.per_proc = 1, .seed = test_seed()};

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		RUN(sizes[i], 20, meet, &l);
}

Test(bootstrap, sixty_four_processes_meet)
{
	struct layout l = {.per_proc = 1, .seed = test_seed()};

	RUN(64, 50, meet, &l);
}

Test(bootstrap, processes_with_several_ranks_meet)
{
	struct layout l = {.per_proc = 0, .seed = test_seed()};

	RUN(5, 20, meet, &l);
	l.per_proc = 40;
	RUN(3, 20, meet, &l);
}

Test(bootstrap, virtual_nodes_meet)
{
	static const int nodes[] = {2, 3, 7};
	struct layout l = {.per_proc = 0, .seed = test_seed()};

	for (size_t i = 0; i < ARRAY_LEN(nodes); i++) {
		l.nodes = nodes[i];
		RUN(7, 20, meet, &l);
	}
}

/* ---- Many ranks in one process, and ranks that trickle in --------------------------------- */

static int many_in_one(int rank, int n, void *arg)
{
	struct opener o = {0};
	symcclUniqueId id;
	struct boot *b;

	(void)arg;
	for (int i = 0; i < 512; i++)
		if (i % n == rank)
			opener_add(&o, i, 512);
	RANK_TRY(share_id(rank, &id));
	RANK_OK(opener_run(&o, &id, 20, &b));
	RANK_CHECK(b->nprocs == n && b->nranks == 512, "%d processes", b->nprocs);
	RANK_CHECK(b->procs[b->proc].nranks == o.n, "%d ranks here", b->procs[b->proc].nranks);
	RANK_OK(boot_barrier(b, after(10)));
	boot_close(b);
	return 0;
}

Test(bootstrap, five_hundred_twelve_ranks_share_one_connection)
{
	RUN(1, 10, many_in_one, NULL);
	RUN(2, 10, many_in_one, NULL);
}

/* Several suites may run on one machine. */
static char *random_address(char where[32])
{
	snprintf(where, 32, "localhost:%d", 16384 + (int)(test_seed() % 12000));
	return where;
}

struct trickle {
	struct opener o;
	int wakefd;
};

/* One member per wake-up; a thread pokes. */
static int trickle_next(void *arg, struct boot_member *m)
{
	struct trickle *t = arg;
	uint64_t n;

	if (read(t->wakefd, &n, sizeof(n)) < 0 || t->o.given == t->o.n)
		return 0;
	*m = t->o.members[t->o.given++];
	return 1;
}

static void *trickle_poke(void *arg)
{
	struct trickle *t = arg;
	uint64_t one = 1;

	for (int i = 0; i < t->o.n; i++) {
		usleep(20000);
		if (write(t->wakefd, &one, sizeof(one)) < 0)
			break;
	}
	return NULL;
}

/* The id is made of an address, so rank 0, which comes last, starts the root. */
static int trickling(int rank, int n, void *arg)
{
	struct trickle t = {.wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	const char *where = arg;
	struct leak_snapshot before;
	struct failure why;
	symcclUniqueId id;
	pthread_t poker;
	struct boot *b;

	leak_snapshot(&before);
	for (int i = 3; i >= 0; i--)
		opener_add(&t.o, i * n + rank, 4 * n);
	RANK_OK(boot_id_from_address(where, 16, "trickling", &id));
	RANK_CHECK(pthread_create(&poker, NULL, trickle_poke, &t) == 0, "no thread");
	RANK_OK(boot_open(&id, t.wakefd, -1, trickle_next, &t, after(10), &b, &why));
	pthread_join(poker, NULL);
	RANK_OK(boot_barrier(b, after(10)));
	boot_close(b);
	RANK_NO_LEAK(&before);
	close(t.wakefd);
	return 0;
}

Test(bootstrap, ranks_trickle_in)
{
	char where[32];

	RUN(3, 20, trickling, random_address(where));
}

/* ---- Ids made of an address ---------------------------------------------------------------- */

struct address {
	char where[32];
	int nports;
};

/* The same id again and again; rank 0 is not always in the same process. */
static int same_address(int rank, int n, void *arg)
{
	const struct address *a = arg;
	symcclUniqueId id;
	struct boot *b;

	RANK_OK(boot_id_from_address(a->where, a->nports, a->where, &id));
	for (int round = 0; round < 20; round++) {
		ranks_note("round %d", round);
		RANK_OK(open_one((rank + round / 4) % n, n, &id, 10, &b, NULL));
		if (round % 3 == 0)
			RANK_OK(boot_barrier(b, after(10)));
		boot_close(b);
	}
	return 0;
}

Test(bootstrap, an_address_serves_one_communicator_after_another)
{
	struct address a = {.nports = 1};

	random_address(a.where);
	RUN(4, 20, same_address, &a);
	a.nports = 16;
	RUN(4, 20, same_address, &a);
}

/* ---- No network ---------------------------------------------------------------------------- */

Test(bootstrap, one_node_needs_no_network)
{
	struct layout l = {.per_proc = 1, .seed = test_seed()};
	struct address a = {.nports = 1};

	/* Not even the loopback interface is up in a new namespace. */
	if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
		cr_skip_test("no right to make a network namespace");
	random_address(a.where);
	RUN(4, 20, meet, &l);
	RUN(4, 20, same_address, &a);
}

/* ---- Two at once --------------------------------------------------------------------------- */

static int two_boots(int rank, int n, void *arg)
{
	symcclUniqueId id[2];
	struct boot *a, *b;
	const void **all;
	const size_t *len;

	(void)arg;
	RANK_TRY(share_id(rank, &id[0]));
	RANK_TRY(share_id(rank, &id[1]));
	RANK_OK(open_one(rank, n, &id[0], 10, &a, NULL));
	RANK_OK(open_one(n - 1 - rank, n, &id[1], 10, &b, NULL));
	for (int i = 0; i < 10; i++) {
		int x = 100 * rank + i;

		RANK_OK(boot_allgather(i & 1 ? a : b, &x, sizeof(x), &all, &len, after(10)));
		for (int p = 0; p < n; p++)
			RANK_CHECK(*(const int *)all[p] == 100 * (i & 1 ? p : n - 1 - p) + i,
				"round %d, process %d", i, p);
		RANK_OK(boot_barrier(i & 1 ? b : a, after(10)));
	}
	boot_close(a);
	RANK_OK(boot_barrier(b, after(10)));
	boot_close(b);
	return 0;
}

Test(bootstrap, two_communicators_do_not_mix)
{
	RUN(4, 20, two_boots, NULL);
}

/* ---- Descriptors --------------------------------------------------------------------------- */

/* A file of its own for each (rank, i): its size tells them apart. */
static int tagged_fd(int rank, int i)
{
	int fd = memfd_create("fds", MFD_CLOEXEC);

	return fd < 0 || ftruncate(fd, 1 + rank * 1000 + i) ? -1 : fd;
}

static int fd_tag(int fd)
{
	struct stat st;

	return fstat(fd, &st) ? -1 : (int)st.st_size - 1;
}

static int fds_of(int proc, int round)
{
	return round == 0   ? 0
	       : round == 1 ? 1
	       : round == 2 ? (proc == 1 ? 300 : 0)
			    : 5 * (proc % 4);
}

static int exchange_fds(int rank, int n, void *arg)
{
	const struct layout *l = arg;
	struct leak_snapshot before;
	struct boot *b;

	leak_snapshot(&before);
	RANK_TRY(open_layout(rank, n, l, &b));
	for (int round = 0; round < 4; round++) {
		int mine[300], count = fds_of(b->proc, round), *fds, *counts, at = 0;

		for (int i = 0; i < count; i++)
			mine[i] = i == 3 ? -1 : tagged_fd(b->proc, i);
		RANK_OK(boot_allgather_fds(b, mine, count, &fds, &counts, after(10)));
		for (int p = 0; p < b->node_nprocs; p++) {
			int proc = b->node_proc0 + p;

			RANK_CHECK(counts[p] == fds_of(proc, round), "round %d: %d from process %d",
				round, counts[p], proc);
			for (int i = 0; i < counts[p]; i++, at++) {
				RANK_CHECK(
					i == 3 ? fds[at] == -1 : fd_tag(fds[at]) == proc * 1000 + i,
					"round %d: process %d, %d is %d", round, proc, i,
					fd_tag(fds[at]));
				RANK_CHECK(i == 3 || (fcntl(fds[at], F_GETFD) & FD_CLOEXEC),
					"inherited");
				if (fds[at] >= 0)
					close(fds[at]);
			}
		}
		for (int i = 0; i < count; i++)
			if (mine[i] >= 0) {
				RANK_CHECK(fd_tag(mine[i]) == b->proc * 1000 + i, "own closed");
				close(mine[i]);
			}
		free(fds);
		free(counts);
		RANK_OK(boot_barrier(b, after(10)));
	}
	boot_close(b);
	RANK_NO_LEAK(&before);
	return 0;
}

Test(bootstrap, descriptors_are_gathered)
{
	struct layout l = {.per_proc = 1};

	RUN(1, 10, exchange_fds, &l);
	RUN(4, 10, exchange_fds, &l);
	RUN(12, 20, exchange_fds, &l);
	l.nodes = 3;
	RUN(7, 20, exchange_fds, &l);
}

/* Process 1's table is nearly full; the others get everything from everyone, or know what is not
 * there; the next exchange works. */
static int full_table(int rank, int n, void *arg)
{
	struct rlimit lim, low;
	symcclUniqueId id;
	struct boot *b;
	int *fds, *counts, at = 0, missing = 0, mine[8], probe;

	(void)arg;
	RANK_TRY(share_id(rank, &id));
	RANK_OK(open_one(rank, n, &id, 10, &b, NULL));
	for (int i = 0; i < 8; i++)
		mine[i] = tagged_fd(rank, i);
	getrlimit(RLIMIT_NOFILE, &lim);
	low = lim;
	if (rank == 1) {
		probe = dup(0);
		close(probe);
		low.rlim_cur = (rlim_t)probe + 12;
		setrlimit(RLIMIT_NOFILE, &low);
	}
	RANK_OK(boot_allgather_fds(b, mine, 8, &fds, &counts, after(10)));
	for (int p = 0; p < n; p++) {
		RANK_CHECK(counts[p] == 8, "%d from process %d", counts[p], p);
		for (int i = 0; i < 8; i++, at++) {
			RANK_CHECK(fds[at] < 0 || fd_tag(fds[at]) == p * 1000 + i,
				"process %d, %d is %d", p, i, fd_tag(fds[at]));
			missing += fds[at] < 0;
			if (fds[at] >= 0)
				close(fds[at]);
		}
	}
	RANK_CHECK(rank == 1 ? missing > 0 : missing == 0, "%d missing", missing);
	setrlimit(RLIMIT_NOFILE, &lim);
	free(fds);
	free(counts);
	RANK_OK(boot_allgather_fds(b, mine, 8, &fds, &counts, after(10)));
	for (int i = 0; i < 8 * n; i++) {
		int want = i / 8 * 1000 + i % 8;

		RANK_CHECK(fd_tag(fds[i]) == want, "%d, not %d, the second time", fd_tag(fds[i]),
			want);
		close(fds[i]);
	}
	free(fds);
	free(counts);
	boot_close(b);
	return 0;
}

Test(bootstrap, a_full_descriptor_table_loses_only_descriptors)
{
	RUN(3, 20, full_table, NULL);
}

/* ---- Messages ------------------------------------------------------------------------------ */

static int messages(int rank, int n, void *arg)
{
	const struct layout *l = arg;
	static char big[3 << 20], got[3 << 20];
	struct leak_snapshot before;
	struct boot *b;
	size_t len;

	leak_snapshot(&before);
	RANK_TRY(open_layout(rank, n, l, &b));
	/* Everyone to everyone, before anyone receives: even large ones, both ways. */
	for (int p = 0; p < n; p++) {
		size_t size = p == (b->proc + 1) % n ? sizeof(big) : (size_t)p * 100;

		fill_bytes(big, size, (uint64_t)(b->proc * 64 + p));
		RANK_OK(boot_send(b, p, (uint32_t)b->proc, big, size, after(10)));
	}
	for (int p = n - 1; p >= 0; p--) {
		size_t size = b->proc == (p + 1) % n ? sizeof(big) : (size_t)b->proc * 100;

		len = sizeof(got);
		RANK_OK(boot_recv(b, p, (uint32_t)p, got, &len, after(10)));
		RANK_CHECK(len == size, "%zu bytes from %d", len, p);
		RANK_CHECK(check_bytes(got, size, (uint64_t)(p * 64 + b->proc)) == size, "bytes");
	}
	/* Tags select; what does not fit stays. */
	RANK_OK(boot_send(b, (b->proc + 1) % n, 7, "seven", 5, after(10)));
	RANK_OK(boot_send(b, (b->proc + 1) % n, 8, "eight", 5, after(10)));
	len = 5;
	RANK_OK(boot_recv(b, (b->proc + n - 1) % n, 8, got, &len, after(10)));
	RANK_CHECK(memcmp(got, "eight", 5) == 0, "%.5s", got);
	len = 4;
	RANK_RESULT(boot_recv(b, (b->proc + n - 1) % n, 7, got, &len, after(10)),
		symcclInvalidArgument);
	len = 5;
	RANK_OK(boot_recv(b, (b->proc + n - 1) % n, 7, got, &len, after(10)));
	RANK_CHECK(memcmp(got, "seven", 5) == 0, "%.5s", got);
	RANK_OK(boot_barrier(b, after(10)));
	boot_close(b);
	RANK_NO_LEAK(&before);
	return 0;
}

Test(bootstrap, messages_between_processes)
{
	struct layout l = {.per_proc = 1};

	RUN(1, 10, messages, &l);
	RUN(4, 10, messages, &l);
	l.nodes = 2;
	RUN(4, 10, messages, &l);
}

/* ---- Idle ---------------------------------------------------------------------------------- */

/* One process begins, somewhere in the tree; all others wake up. */
static int wake_idle(int rank, int n, void *arg)
{
	int wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct layout l = {.per_proc = 1, .nodes = 3};
	uint64_t one = 1, start;
	struct boot *b;

	(void)arg;
	RANK_TRY(open_layout(rank, n, &l, &b));
	RANK_OK(boot_idle(b, wakefd, 10));
	RANK_CHECK(write(wakefd, &one, sizeof(one)) == sizeof(one), "no wake");
	RANK_OK(boot_idle(b, wakefd, 5000));
	RANK_BARRIER();
	for (int first = 0; first < n; first++) {
		RANK_CHECK(read(wakefd, &one, sizeof(one)) == sizeof(one) || first, "not woken");
		RANK_BARRIER();
		start = now_ns();
		if (rank == first)
			usleep(20000);
		else
			RANK_RESULT(boot_idle(b, wakefd, 5000), symcclInProgress);
		RANK_CHECK(now_ns() - start < 2000000000ull, "late");
		RANK_OK(boot_barrier(b, after(10)));
		RANK_BARRIER();
	}
	boot_close(b);
	close(wakefd);
	return 0;
}

Test(bootstrap, an_operation_wakes_idle_processes)
{
	RUN(11, 30, wake_idle, NULL);
}
