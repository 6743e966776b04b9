/* Host memory between processes: descriptors passed by hand, laid out by the address rule. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "mem.h"
#include "mem/mem.h"
#include "ranks.h"
#include "sym/space.h"
#include "util.h"

TestSuite(mem_share, .timeout = 30);

#define MIB ((size_t)1 << 20)
#define MOST 4

/* mesh[a][b]: where a sends to b; made before the fork. */
static int mesh[MOST][MOST][2];

static void mesh_open(void)
{
	for (int a = 0; a < MOST; a++)
		for (int b = 0; b < MOST; b++)
			cr_assert_eq(
				socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, mesh[a][b]),
				0);
}

struct offer {
	struct mem_uid uid;
	size_t size;
};

static int send_fd(int sock, const struct offer *o, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec v = {(void *)(uintptr_t)o, sizeof(*o)};
	struct msghdr m = {.msg_iov = &v,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	RANK_CHECK(sendmsg(sock, &m, 0) == sizeof(*o), "%s", strerror(errno));
	return 0;
}

static int recv_fd(int sock, struct offer *o, int *fd)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec v = {o, sizeof(*o)};
	struct msghdr m = {.msg_iov = &v,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};

	RANK_CHECK(recvmsg(sock, &m, MSG_CMSG_CLOEXEC) == sizeof(*o), "%s", strerror(errno));
	RANK_CHECK(CMSG_FIRSTHDR(&m) != NULL, "no descriptor");
	memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(*fd));
	return 0;
}

struct shared {
	struct space space;
	struct extent ext;
	struct mem_handle *h[MOST];
	char *own; /* as symcclMemAlloc gave it */
};

static size_t size_of(int rank)
{
	return 2 * MIB + (size_t)rank * mem_host.granularity();
}

/* Every rank's allocation in every process, at the address rule. */
static int share(int rank, int n, struct shared *s)
{
	struct mem_span span;
	struct offer o;
	int fd;

	memset(s, 0, sizeof(*s));
	RANK_OK(symcclMemAllocOn((void **)&s->own, size_of(rank), symcclDeviceHost));
	RANK_OK(mem_host.retain(s->own, size_of(rank), &span));
	s->h[rank] = span.seg[0];
	for (int q = 0; q < n; q++) {
		if (q == rank)
			continue;
		RANK_OK(mem_host.export_fd(s->h[rank], &fd));
		o = (struct offer){s->h[rank]->uid, s->h[rank]->size};
		RANK_TRY(send_fd(mesh[rank][q][0], &o, fd));
		close(fd);
	}
	RANK_OK(space_init(&s->space, &mem_host, n, 64 * MIB));
	RANK_OK(space_alloc(&s->space, size_of(n - 1), 0, &s->ext));
	for (int q = 0; q < n; q++) {
		if (q != rank) {
			RANK_TRY(recv_fd(mesh[q][rank][1], &o, &fd));
			RANK_CHECK(o.size == size_of(q));
			RANK_OK(mem_host.import_fd(fd, o.size, o.uid, &s->h[q]));
			RANK_CHECK(s->h[q]->uid.proc != mem_proc_uid());
		}
		RANK_OK(mem_host.map(space_addr(&s->space, &s->ext, q), s->h[q]));
		RANK_OK(mem_host.set_access(
			space_addr(&s->space, &s->ext, q), size_of(q), q != rank, NULL));
	}
	return 0;
}

static int unshare_all(int n, struct shared *s)
{
	for (int q = 0; q < n; q++) {
		RANK_OK(mem_host.unmap(space_addr(&s->space, &s->ext, q), s->h[q]));
		mem_host.release(s->h[q]);
	}
	space_free(&s->space, &s->ext);
	space_fini(&s->space);
	RANK_OK(symcclMemFree(s->own));
	return 0;
}

/* Each rank fills its own memory, all check; then each writes one byte into everybody's. */
static int both_ways(int rank, int n, void *arg)
{
	struct leak_snapshot before;
	struct shared s;

	(void)arg;
	leak_snapshot(&before);
	RANK_TRY(share(rank, n, &s));
	fill_bytes(s.own, size_of(rank), (uint64_t)rank);
	RANK_BARRIER();
	for (int q = 0; q < n; q++)
		RANK_CHECK(check_bytes(space_addr(&s.space, &s.ext, q), size_of(q), (uint64_t)q) ==
				   size_of(q),
			"rank %d's memory", q);
	RANK_BARRIER();
	for (int q = 0; q < n; q++)
		space_addr(&s.space, &s.ext, q)[rank] = (char)(100 + rank);
	RANK_BARRIER();
	for (int q = 0; q < n; q++)
		RANK_CHECK(s.own[q] == 100 + q, "rank %d's byte", q);
	RANK_BARRIER();
	RANK_TRY(unshare_all(n, &s));
	RANK_NO_LEAK(&before);
	return 0;
}

Test(mem_share, values_are_seen_both_ways)
{
	char err[1024];

	mesh_open();
	cr_assert_eq(ranks_run(2, 10, both_ways, NULL, err, sizeof(err)), 0, "%s", err);
	cr_assert_eq(ranks_run(MOST, 10, both_ways, NULL, err, sizeof(err)), 0, "%s", err);
}

static int owner_dies(int rank, int n, void *arg)
{
	struct leak_snapshot before;
	struct shared s;

	(void)arg;
	leak_snapshot(&before);
	RANK_TRY(share(rank, n, &s));
	fill_bytes(s.own, size_of(rank), (uint64_t)rank);
	RANK_BARRIER();
	if (rank == n - 1)
		ranks_die(SIGKILL);
	while (kill(ranks_pid(n - 1), 0) == 0 && getppid() > 1) {
		char path[64], state[256] = "";
		FILE *f;

		/* Dead, but not yet waited for. */
		snprintf(path, sizeof(path), "/proc/%d/stat", (int)ranks_pid(n - 1));
		f = fopen(path, "re");
		if (f == NULL)
			break;
		RANK_CHECK(fgets(state, sizeof(state), f) != NULL);
		fclose(f);
		if (strstr(state, ") Z ") != NULL)
			break;
		usleep(1000);
	}
	RANK_CHECK(check_bytes(space_addr(&s.space, &s.ext, n - 1), size_of(n - 1),
			   (uint64_t)n - 1) == size_of(n - 1));
	RANK_BARRIER();
	memset(space_addr(&s.space, &s.ext, n - 1), 1, size_of(n - 1));
	RANK_TRY(unshare_all(n, &s));
	RANK_NO_LEAK(&before);
	return 0;
}

Test(mem_share, memory_of_a_dead_peer_stays_readable)
{
	char err[1024];

	mesh_open();
	cr_assert_eq(ranks_run(3, 10, owner_dies, NULL, err, sizeof(err)), 0, "%s", err);
}

/* The child of a rank uses what it inherited, frees it and ends; the ranks notice nothing. */
static int forks(int rank, int n, void *arg)
{
	struct shared s;
	int status = -1;
	pid_t pid;

	(void)arg;
	RANK_TRY(share(rank, n, &s));
	RANK_BARRIER();
	pid = fork();
	if (pid == 0) {
		for (int q = 0; q < n; q++)
			space_addr(&s.space, &s.ext, q)[n + rank] = (char)(rank + 1);
		_exit(symcclMemFree(s.own) != symcclSuccess);
	}
	RANK_CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %#x", status);
	RANK_BARRIER();
	for (int q = 0; q < n; q++)
		RANK_CHECK(s.own[n + q] == q + 1, "the byte of rank %d's child", q);
	RANK_BARRIER();
	RANK_TRY(unshare_all(n, &s));
	return 0;
}

Test(mem_share, fork)
{
	char err[1024];

	mesh_open();
	cr_assert_eq(ranks_run(3, 10, forks, NULL, err, sizeof(err)), 0, "%s", err);
}

/* ---- Machines that have little --------------------------------------------------------------- */

static int small_shm(int rank, int n, void *arg)
{
	void *p;

	(void)rank, (void)n, (void)arg;
	/* For this forked rank only. */
	RANK_CHECK(unshare(CLONE_NEWNS) == 0, "%s", strerror(errno));
	RANK_CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "%s", strerror(errno));
	RANK_CHECK(mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") == 0, "%s", strerror(errno));
	RANK_OK(symcclMemAllocOn(&p, 96 * MIB, symcclDeviceHost));
	memset(p, 1, 96 * MIB);
	RANK_OK(symcclMemFree(p));
	return 0;
}

Test(mem_share, dev_shm_does_not_matter)
{
	char err[1024];

	if (geteuid() != 0)
		cr_skip_test("needs root for a mount namespace");
	cr_assert_eq(ranks_run(1, 10, small_shm, NULL, err, sizeof(err)), 0, "%s", err);
}

static char group[128];

static int write_text(const char *dir, const char *name, const char *text)
{
	char path[256];
	int fd, ok;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	close(fd);
	return ok;
}

/* A memory cgroup of 64 MiB, of whatever version there is; 0: none can be made. */
static int group_make(void)
{
	static const struct {
		const char *mount, *limit;
	} row[] = {{"/sys/fs/cgroup", "memory.max"},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}};

	for (size_t i = 0; i < ARRAY_LEN(row); i++) {
		char probe[64];

		snprintf(probe, sizeof(probe), "%s/cgroup.procs", row[i].mount);
		if (access(probe, W_OK) != 0)
			continue;
		snprintf(group, sizeof(group), "%s/symccl-test-%d", row[i].mount, (int)getpid());
		if (mkdir(group, 0700) != 0)
			continue;
		if (write_text(group, row[i].limit, "67108864"))
			return 1;
		rmdir(group);
	}
	return 0;
}

static int limited(int rank, int n, void *arg)
{
	void *p = NULL;
	char pid[16];

	(void)rank, (void)n, (void)arg;
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	RANK_CHECK(write_text(group, "cgroup.procs", pid), "%s", strerror(errno));
	RANK_CHECK(mem_host.capacity() == 64 * MIB, "%zu", mem_host.capacity());
	RANK_RESULT(symcclMemAllocOn(&p, 256 * MIB, symcclDeviceHost), symcclSystemError);
	RANK_CHECK(strstr(error_text(), "64 MiB") != NULL, "%s", error_text());
	RANK_OK(symcclMemAllocOn(&p, 32 * MIB, symcclDeviceHost));
	RANK_OK(symcclMemFree(p));
	return 0;
}

Test(mem_share, a_memory_cgroup_is_an_error_not_a_kill)
{
	char err[1024];
	int e, left;

	if (geteuid() != 0 || !group_make())
		cr_skip_test("needs the right to make a memory cgroup");
	e = ranks_run(1, 10, limited, NULL, err, sizeof(err));
	left = rmdir(group);
	cr_assert_eq(e, 0, "%s", err);
	cr_assert_eq(left, 0);
}
