/* Meeting when things go wrong: ranks that disagree or do not come, strangers, no descriptors. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "boot_helper.h"
#include "bootstrap/root.h"
#include "bootstrap/tree.h"
#include "mem.h"
#include "params.h"
#include "ranks.h"
#include "util.h"

TestSuite(bootstrap_join, .timeout = 60);

#define RUN(n, s, fn, arg) \
	do { \
		char err_[1024]; \
		cr_assert_eq(ranks_run(n, s, fn, arg, err_, sizeof(err_)), 0, "%s", err_); \
	} while (0)

/* ---- Ranks that disagree ------------------------------------------------------------------- */

enum wrong { WRONG_NRANKS, WRONG_VERSION, WRONG_CONFIG, WRONG_TWICE, WRONG_RANGE };
static const char *const wrong_words[][3] = {
	{"number of ranks", "rank 1 says 7", "says 4"},
	{"versions", "rank 1 runs 1,", "rank "},
	{"configuration", "rank 1 has 0x2", "has 0x1"},
	{"rank 2 joined twice", "pid", "host"},
	{"rank 4 (pid", "out of range", "4 ranks"},
};

/* Rank 1 is wrong; rank 3 comes late, and is told all the same. */
static int one_wrong(int rank, int n, void *arg)
{
	const enum wrong *w = arg;
	struct opener o = {0};
	struct leak_snapshot before;
	symcclUniqueId id;
	struct boot *b;

	leak_snapshot(&before);
	set_env("SYMCCL_SETUP_TIMEOUT", "10");
	opener_add(&o, rank, n);
	if (rank == 1) {
		struct boot_member *m = &o.members[0];

		m->nranks = *w == WRONG_NRANKS ? 7 : n;
		m->version = *w == WRONG_VERSION ? 1 : m->version;
		m->config = *w == WRONG_CONFIG ? 2 : m->config;
		m->rank = *w == WRONG_TWICE ? 2 : *w == WRONG_RANGE ? n : rank;
	}
	RANK_TRY(share_id(rank, &id));
	/* So that the wrong one is not the first. */
	usleep(rank == 1 ? 100000 : rank == 3 ? 300000 : 0);
	RANK_CHECK(opener_run(&o, &id, 10, &b) != symcclSuccess, "no error");
	CHECK_WHY(&o.why, symcclInvalidUsage, wrong_words[*w][0], wrong_words[*w][1],
		wrong_words[*w][2]);
	RANK_CHECK(strcmp(error_text(), o.why.text) == 0, "last error: %s", error_text());
	RANK_BARRIER();
	usleep(200000);
	RANK_CHECK(root_count() == 0, "the root still runs");
	RANK_NO_LEAK(&before);
	return 0;
}

Test(bootstrap_join, ranks_disagree)
{
	for (enum wrong w = WRONG_NRANKS; w <= WRONG_RANGE; w++)
		RUN(4, 15, one_wrong, &w);
}

static int bad_size(int rank, int n, void *arg)
{
	symcclUniqueId id;
	struct failure why;
	struct boot *b;

	(void)n;
	(void)arg;
	RANK_TRY(share_id(rank, &id));
	RANK_RESULT(open_one(0, 0, &id, 5, &b, &why), symcclInvalidArgument);
	memset(&id, 0, sizeof(id));
	RANK_RESULT(open_one(0, 1, &id, 5, &b, &why), symcclInvalidArgument);
	CHECK_WHY(&why, symcclInvalidArgument, "unique id");
	return 0;
}

Test(bootstrap_join, nonsense_is_refused)
{
	RUN(1, 10, bad_size, NULL);
}

/* ---- Ranks that do not come ---------------------------------------------------------------- */

static int some_missing(int rank, int n, void *arg)
{
	struct failure why = {0};
	symcclUniqueId id;
	struct boot *b;
	uint64_t start;

	(void)arg;
	set_env("SYMCCL_SETUP_TIMEOUT", "0.5");
	RANK_TRY(share_id(rank, &id));
	start = now_ns();
	if (rank == 1 || (rank >= 4 && rank <= 6))
		return 0;
	RANK_RESULT(open_one(rank, n, &id, 0.5, &b, &why), symcclTimeout);
	CHECK_WHY(&why, symcclTimeout, "ranks 1, 4-6 of 9 did not come within 0.5 s");
	RANK_CHECK(why.rank == 1, "blames rank %d", why.rank);
	RANK_CHECK(seconds_since(start) < 5, "late: %.3f s", seconds_since(start));
	return 0;
}

Test(bootstrap_join, missing_ranks_are_named)
{
	RUN(9, 10, some_missing, NULL);
}

/* Nobody listens; somebody else listens; the port is taken. */
static int no_root(int rank, int n, void *arg)
{
	uint16_t port;
	struct failure why = {0};
	symcclUniqueId id;
	struct boot *b;
	char where[32];
	int fd;

	(void)rank;
	(void)n;
	(void)arg;
	fd = addr_listen(0, &port);
	RANK_CHECK(fd >= 0, "no listener");
	snprintf(where, sizeof(where), "127.0.0.1:%u", port);
	RANK_OK(boot_id_from_address(where, 1, "x", &id));
	RANK_RESULT(open_one(1, 2, &id, 0.3, &b, &why), symcclTimeout);
	CHECK_WHY(&why, symcclTimeout, "cannot reach the rendezvous", where);
	RANK_RESULT(open_one(0, 2, &id, 5, &b, &why), symcclSystemError);
	CHECK_WHY(&why, symcclSystemError, where + 10, "in use");
	close(fd);
	RANK_RESULT(open_one(1, 2, &id, 0.3, &b, &why), symcclTimeout);
	CHECK_WHY(&why, symcclTimeout, where, "refused");
	RANK_OK(boot_id_from_address("no.such.host.invalid:1234", 1, "x", &id));
	RANK_RESULT(open_one(1, 2, &id, 0.3, &b, &why), symcclSystemError);
	CHECK_WHY(&why, symcclSystemError, "no.such.host.invalid");
	return 0;
}

Test(bootstrap_join, an_unreachable_root_is_described)
{
	RUN(1, 20, no_root, NULL);
}

/* ---- Strangers ----------------------------------------------------------------------------- */

struct attack {
	uint16_t port;
	const uint8_t *unix_name; /* NULL: TCP */
	uint64_t seed;
	int stop;
	int connections;
};

static int attack_connect(const struct attack *a)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(a->port)};
	int fd;

	if (a->unix_name)
		return unix_connect(a->unix_name);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&in, sizeof(in))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Half-open connections by the hundred, garbage, truths cut short, one byte at a time. */
static void *attack_main(void *arg)
{
	struct attack *a = arg;
	static const char greeting[] = "symccl/1";
	int fds[600], n = 0;

	while (!__atomic_load_n(&a->stop, __ATOMIC_ACQUIRE)) {
		uint64_t r = mix64(a->seed, (uint64_t)a->connections);
		int fd = attack_connect(a);
		char junk[4096];

		if (fd < 0) {
			usleep(1000);
			continue;
		}
		a->connections++;
		fill_bytes(junk, sizeof(junk), r);
		if (r % 5 == 0)
			(void)!send(fd, junk, sizeof(junk), MSG_NOSIGNAL | MSG_DONTWAIT);
		else if (r % 5 == 1)
			(void)!send(fd, greeting, r % 8 + 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		else if (r % 5 == 2)
			(void)!send(fd, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL | MSG_DONTWAIT);
		else if (r % 5 == 3 && n > 0) /* slow: one byte more on an old one */
			(void)!send(fds[r % (uint64_t)n], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n == (int)ARRAY_LEN(fds)) {
			close(fds[r % ARRAY_LEN(fds)]);
			fds[r % ARRAY_LEN(fds)] = fd;
		} else {
			fds[n++] = fd;
		}
		if (a->connections > 1500)
			usleep(500);
	}
	while (n > 0)
		close(fds[--n]);
	return NULL;
}

/* Process n attacks the root; then each process attacks its own listeners. */
static int under_attack(int rank, int all, void *arg)
{
	const uint64_t *seed = arg;
	const int n = all - 1;
	struct attack a = {.seed = *seed + (uint64_t)rank}, u = a;
	struct leak_snapshot before;
	pthread_t attacker, second;
	symcclUniqueId id;
	struct boot *b;
	uint64_t start;

	leak_snapshot(&before);
	set_env("SYMCCL_HOSTID", rank % 2 ? "odd" : "even");
	RANK_TRY(share_id(rank, &id));
	a.port = ((const struct id *)(const void *)&id)->port;
	if (rank == n) {
		RANK_CHECK(pthread_create(&attacker, NULL, attack_main, &a) == 0, "no thread");
		usleep(300000);
	}
	RANK_BARRIER();
	start = now_ns();
	if (rank < n) {
		RANK_OK(open_one(rank, n, &id, 10, &b, NULL));
		RANK_CHECK(seconds_since(start) < 8, "delayed: %.3f s", seconds_since(start));
	}
	RANK_BARRIER();
	__atomic_store_n(&a.stop, 1, __ATOMIC_RELEASE);
	if (rank == n) {
		pthread_join(attacker, NULL);
		RANK_CHECK(a.connections > 300, "only %d connections", a.connections);
		return 0;
	}
	a.stop = 0;
	a.port = tree_of(b)->endpoint.port;
	u.unix_name = tree_of(b)->unix_name;
	RANK_CHECK(pthread_create(&attacker, NULL, attack_main, &a) == 0, "no thread");
	RANK_CHECK(pthread_create(&second, NULL, attack_main, &u) == 0, "no thread");
	for (int i = 0; i < 20; i++) {
		char byte;
		size_t one = 1;
		int to = (b->proc + 1) % n, from = (b->proc + n - 1) % n;

		start = now_ns();
		RANK_OK(boot_send(b, to, (uint32_t)i, "x", 1, after(10)));
		RANK_OK(boot_recv(b, from, (uint32_t)i, &byte, &one, after(10)));
		RANK_OK(boot_barrier(b, after(10)));
		RANK_CHECK(seconds_since(start) < 8, "delayed: %.3f s", seconds_since(start));
		usleep(10000);
	}
	__atomic_store_n(&a.stop, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&u.stop, 1, __ATOMIC_RELEASE);
	pthread_join(attacker, NULL);
	pthread_join(second, NULL);
	RANK_CHECK(a.connections > 20 && u.connections > 20, "no attack");
	boot_close(b);
	RANK_NO_LEAK(&before);
	return 0;
}

Test(bootstrap_join, strangers_do_not_disturb)
{
	uint64_t seed = test_seed();

	RUN(5, 40, under_attack, &seed);
}

static void *silent_main(void *arg)
{
	int fd = *(int *)arg;

	while ((fd = accept(*(int *)arg, NULL, NULL)) >= 0 || errno == EAGAIN)
		if (fd < 0)
			usleep(1000);
	return NULL;
}

/* Rank 0's port range begins with a stranger that takes connections and says nothing. */
static int silent_port(int rank, int n, void *arg)
{
	static uint16_t port;
	static int fd = -1;
	symcclUniqueId id;
	pthread_t thread;
	struct boot *b;
	char where[32];
	uint64_t start;

	(void)arg;
	set_env("SYMCCL_HOSTID", rank ? "a" : "b"); /* no way around TCP */
	if (rank == 0) {
		fd = addr_listen(0, &port);
		RANK_CHECK(fd >= 0, "no listener");
		RANK_CHECK(pthread_create(&thread, NULL, silent_main, &fd) == 0, "no thread");
		pthread_detach(thread);
	}
	RANK_BCAST(&port, sizeof(port));
	snprintf(where, sizeof(where), "127.0.0.1:%u", port);
	RANK_OK(boot_id_from_address(where, 8, "x", &id));
	start = now_ns();
	RANK_OK(open_one(rank, n, &id, 10, &b, NULL));
	RANK_CHECK(seconds_since(start) < 2, "delayed: %.3f s", seconds_since(start));
	RANK_OK(boot_barrier(b, after(5)));
	boot_close(b);
	return 0;
}

Test(bootstrap_join, a_silent_listener_is_passed_by)
{
	RUN(3, 20, silent_port, NULL);
}

/* ---- No descriptors ---------------------------------------------------------------------------
 */

/* Rank 1 may open ever fewer descriptors: either all of them meet, or all return an error. */
static int few_descriptors(int rank, int n, void *arg)
{
	const int *room = arg;
	struct rlimit lim, low;
	struct failure why = {0};
	symcclUniqueId id;
	struct boot *b = NULL;
	symcclResult_t r;
	int probe;

	set_env("SYMCCL_SETUP_TIMEOUT", "0.3");
	RANK_TRY(share_id(rank, &id));
	getrlimit(RLIMIT_NOFILE, &lim);
	if (rank == 1) {
		probe = dup(0);
		close(probe);
		low = lim;
		low.rlim_cur = (rlim_t)(probe + *room);
		setrlimit(RLIMIT_NOFILE, &low);
	}
	r = open_one(rank, n, &id, 0.3, &b, &why);
	setrlimit(RLIMIT_NOFILE, &lim);
	RANK_CHECK(r != symcclSuccess || *room > 3, "opened with %d descriptors", *room);
	RANK_CHECK(r == symcclSuccess || why.code == r, "%s: %s", error_name(r), why.text);
	if (r == symcclSuccess)
		r = boot_barrier(b, after(2));
	boot_close(b);
	return 0;
}

Test(bootstrap_join, a_full_descriptor_table_while_meeting)
{
	for (int room = 1; room < 8; room += 2)
		RUN(3, 10, few_descriptors, &room);
}
