/* Host memory in one process: what it promises, what it refuses, what it leaves behind. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "mem.h"
#include "mem/limits.h"
#include "mem/mem.h"
#include "params.h"
#include "ranks.h"
#include "util.h"

TestSuite(mem, .timeout = 20);

#define MIB ((size_t)1 << 20)
#define OK(call) cr_assert_eq(call, symcclSuccess, "%s", error_text())
#define FAILS(call, code, says) \
	do { \
		cr_assert_eq(call, code, "%s", error_text()); \
		cr_assert(strstr(error_text(), says) != NULL, "%s", error_text()); \
	} while (0)

/* Present in ASan builds only. */
extern int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static size_t page;
static struct leak_snapshot before;

static void begin(void)
{
	page = mem_host.granularity();
	mem_proc_uid();
	leak_snapshot(&before);
}

static void end(void)
{
	char why[512];

	cr_assert_eq(leak_check(&before, 0, why, sizeof(why)), 0, "%s", why);
}

/* The line of /proc/self/maps that holds all of [p, p + size); the kernel may have joined it with a
 * neighbour. */
static int mapped_at(const void *p, size_t size, char *line, size_t room)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned long from, to, at = (unsigned long)p;
	int found = 0;

	while (!found && fgets(line, (int)room, f) != NULL)
		found = sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= at && at + size <= to;
	fclose(f);
	return found;
}

static size_t resident(const void *p, size_t size)
{
	size_t n = size / page, count = 0;
	unsigned char *vec = malloc(n);

	cr_assert_eq(mincore((void *)(uintptr_t)p, size, vec), 0);
	for (size_t i = 0; i < n; i++)
		count += vec[i] & 1;
	free(vec);
	return count;
}

/* Minor faults of this thread so far. */
static long faults(void)
{
	struct rusage u;

	getrusage(RUSAGE_THREAD, &u);
	return u.ru_minflt;
}

/* Of touching so many present bytes: noise, and AddressSanitizer's own pages. */
static long most_faults(size_t size)
{
	return 8 + (long)(size / page / 6);
}

Test(mem, alloc_is_zeroed_present_and_aligned)
{
	static const size_t sizes[] = {1, 4095, 4096, 4097, 65536, 3 * MIB + 5, 70 * MIB};

	begin();
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		size_t size = sizes[i], rounded = align_up(size, page);
		char *p, line[256];
		long f;

		OK(symcclMemAllocOn((void **)&p, size, symcclDeviceHost));
		cr_assert_eq((uintptr_t)p % page, 0);
		cr_assert_eq(resident(p, rounded), rounded / page);
		cr_assert(mapped_at(p, rounded, line, sizeof(line)));
		cr_assert(strstr(line, "memfd:symccl") != NULL && strstr(line, "rw-s") != NULL,
			"%s", line);
		f = faults();
		for (size_t k = 0; k < rounded; k += page)
			((volatile char *)p)[k] = 1;
		cr_assert_lt(faults() - f, most_faults(rounded), "%ld faults in %zu pages",
			faults() - f, rounded / page);
		for (size_t k = 0; k < rounded; k++)
			cr_assert_eq(p[k], k % page == 0);
		OK(symcclMemFree(p));
	}
	end();
}

Test(mem, public_arguments)
{
	void *p = &p, *q;
	int local;

	begin();
	FAILS(symcclMemAllocOn(NULL, 1, symcclDeviceHost), symcclInvalidArgument, "ptr");
	FAILS(symcclMemAllocOn(&p, 0, symcclDeviceHost), symcclInvalidArgument, "size");
	FAILS(symcclMemAllocOn(&p, 1, (symcclDeviceType_t)7), symcclInvalidArgument, "7");
	cr_assert_eq(p, &p, "output written on failure");
	OK(symcclMemFree(NULL));
	FAILS(symcclMemFree(&local), symcclInvalidArgument, "symcclMemAlloc");
	OK(symcclMemAllocOn(&q, 2 * page, symcclDeviceHost));
	FAILS(symcclMemFree((char *)q + 1), symcclInvalidArgument, "symcclMemAlloc");
	OK(symcclMemFree(q));
	FAILS(symcclMemFree(q), symcclInvalidArgument, "symcclMemAlloc");
	end();
}

Test(mem, far_too_much_fails_at_once)
{
	static const size_t sizes[] = {SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 50};
	struct mem_handle *h = NULL;
	uint64_t t = now_ns();
	void *p = NULL;

	begin();
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		FAILS(symcclMemAllocOn(&p, sizes[i], symcclDeviceHost), symcclSystemError, "");
	FAILS(mem_host.create((size_t)1 << 50, &h), symcclSystemError, "MiB are free");
	cr_assert_null(p);
	cr_assert_null(h);
	cr_assert_lt(now_ns() - t, 1000000000u);
	end();
}

Test(mem, create_refuses_odd_sizes)
{
	struct mem_handle *h = NULL;

	begin();
	FAILS(mem_host.create(0, &h), symcclInvalidArgument, "page size");
	FAILS(mem_host.create(page + 1, &h), symcclInvalidArgument, "page size");
	end();
}

Test(mem, file_size_limit_is_an_error_not_a_signal)
{
	struct rlimit r = {MIB, RLIM_INFINITY};
	void *p = NULL;

	begin();
	setrlimit(RLIMIT_FSIZE, &r);
	FAILS(symcclMemAllocOn(&p, MIB + 1, symcclDeviceHost), symcclSystemError, "ulimit -f");
	OK(symcclMemAllocOn(&p, MIB, symcclDeviceHost));
	OK(symcclMemFree(p));
	end();
}

Test(mem, address_limit_is_an_error)
{
	struct rlimit old, r;
	void *p = NULL, *va = NULL;

	if (__lsan_do_recoverable_leak_check)
		cr_skip_test("AddressSanitizer cannot live with RLIMIT_AS");
	begin();
	getrlimit(RLIMIT_AS, &old);
	r = (struct rlimit){512 * MIB, old.rlim_max};
	setrlimit(RLIMIT_AS, &r);
	FAILS(mem_host.reserve((size_t)1 << 40, 0, &va), symcclSystemError, "SYMCCL_WIN_STRIDE");
	FAILS(symcclMemAllocOn(&p, 600 * MIB, symcclDeviceHost), symcclSystemError, "cannot map");
	setrlimit(RLIMIT_AS, &old);
	cr_assert_null(va);
	end();
}

Test(mem, full_descriptor_table_is_an_error)
{
	struct rlimit old, none = {.rlim_cur = 1};
	char says[2][ERROR_TEXT_MAX];
	struct mem_handle *h;
	symcclResult_t e[2];
	void *p = NULL;
	int fd = -1;

	begin();
	OK(mem_host.create(page, &h));
	getrlimit(RLIMIT_NOFILE, &old);
	none.rlim_max = old.rlim_max;
	setrlimit(RLIMIT_NOFILE, &none);
	/* Criterion needs descriptors: it is asked only afterwards. */
	e[0] = symcclMemAllocOn(&p, page, symcclDeviceHost);
	snprintf(says[0], sizeof(says[0]), "%s", error_text());
	e[1] = mem_host.export_fd(h, &fd);
	snprintf(says[1], sizeof(says[1]), "%s", error_text());
	setrlimit(RLIMIT_NOFILE, &old);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(e[i], symcclSystemError);
		cr_assert(strstr(says[i], "ulimit -n") != NULL, "%s", says[i]);
	}
	cr_assert_null(p);
	mem_host.release(h);
	end();
}

/* ---- retain ---------------------------------------------------------------------------------- */

Test(mem, retain_finds_the_allocation)
{
	struct mem_span s;
	char *p, *q, local;

	begin();
	OK(symcclMemAllocOn((void **)&p, 4 * page, symcclDeviceHost));
	OK(symcclMemAllocOn((void **)&q, page, symcclDeviceHost));
	OK(mem_host.retain(p + 17, 4 * page - 17, &s));
	cr_assert_eq(s.n, 1);
	cr_assert_eq(s.offset, 17);
	cr_assert_eq(s.size, 4 * page);
	cr_assert_eq(s.seg[0]->size, 4 * page);
	cr_assert_eq(s.seg[0]->refs, 2);
	cr_assert_eq(s.seg[0]->uid.proc, mem_proc_uid());
	cr_assert_neq(s.seg[0]->uid.seq, 0);
	mem_host.release(s.seg[0]);
	FAILS(mem_host.retain(p + 17, 4 * page - 16, &s), symcclInvalidUsage, "1 bytes beyond");
	FAILS(mem_host.retain(p, SIZE_MAX, &s), symcclInvalidUsage, "beyond");
	FAILS(mem_host.retain(&local, 1, &s), symcclInvalidUsage, "not host memory");
	FAILS(mem_host.retain(NULL, 1, &s), symcclInvalidUsage, "not host memory");
	cr_assert(mem_host.owns(p) && mem_host.owns(p + 4 * page - 1) && mem_host.owns(q));
	cr_assert(!mem_host.owns(&local) && !mem_host.owns(NULL));
	OK(symcclMemFree(p));
	FAILS(mem_host.retain(p, 1, &s), symcclInvalidUsage, "not host memory");
	OK(symcclMemFree(q));
	end();
}

/* A handle outlives the user's mapping: peers may still have the window. */
Test(mem, retained_memory_outlives_free)
{
	struct mem_span s;
	void *va;
	char *p;

	begin();
	OK(symcclMemAllocOn((void **)&p, page, symcclDeviceHost));
	strcpy(p, "still here");
	OK(mem_host.retain(p, page, &s));
	OK(symcclMemFree(p));
	OK(mem_host.reserve(page, 0, &va));
	OK(mem_host.map(va, s.seg[0]));
	cr_assert_str_eq(va, "still here");
	OK(mem_host.unmap(va, s.seg[0]));
	OK(mem_host.unreserve(va, page));
	mem_host.release(s.seg[0]);
	end();
}

/* Many allocations, freed in another order than made; every one is found by any of its bytes. */
Test(mem, table_against_a_list)
{
	enum { N = 300, STEPS = 4000 };
	static struct {
		char *p;
		size_t size;
	} live[N];
	uint64_t seed = test_seed();
	struct mem_span s;

	begin();
	for (int i = 0; i < STEPS; i++) {
		uint64_t r = mix64(seed, (uint64_t)i);
		int k = (int)(r % N);

		if (live[k].p == NULL) {
			live[k].size = page * (1 + (r >> 20) % 3);
			OK(symcclMemAllocOn((void **)&live[k].p, live[k].size, symcclDeviceHost));
			continue;
		}
		if (r >> 40 & 1) {
			OK(symcclMemFree(live[k].p));
			cr_assert(!mem_host.owns(live[k].p));
			live[k].p = NULL;
			continue;
		}
		OK(mem_host.retain(live[k].p + live[k].size - 1, 1, &s));
		cr_assert_eq(s.offset, live[k].size - 1);
		cr_assert_eq(s.size, live[k].size);
		mem_host.release(s.seg[0]);
	}
	for (int k = 0; k < N; k++)
		OK(symcclMemFree(live[k].p));
	end();
}

/* ---- Address space --------------------------------------------------------------------------- */

Test(mem, reserve_map_unmap)
{
	size_t size = 16 * MIB;
	struct mem_handle *h;
	char *va, line[256];
	uint32_t stop = 0;

	begin();
	for (size_t align = 0; align <= 4 * MIB; align = MAX(align * 4, page)) {
		OK(mem_host.reserve(size, align, (void **)&va));
		cr_assert_eq((uintptr_t)va % MAX(align, page), 0);
		OK(mem_host.unreserve(va, size));
	}
	OK(mem_host.reserve(4 * size, 2 * MIB, (void **)&va));
	OK(mem_host.create(size, &h));
	OK(mem_host.map(va + size, h));
	cr_assert_eq(h->refs, 2);
	OK(mem_host.set_access(va + size, size, 1, &stop));
	cr_assert(mapped_at(va + size, size, line, sizeof(line)) && strstr(line, "rw-s") != NULL);
	stop = 1;
	cr_assert_eq(mem_host.set_access(va + size, size, 1, &stop), symcclRemoteError);
	/* The same object in a second place of the same process. */
	OK(mem_host.map(va + 2 * size, h));
	*(volatile char *)(va + size + 5) = 42; /* the compiler knows nothing of aliases */
	cr_assert_eq(*(volatile char *)(va + 2 * size + 5), 42);
	OK(mem_host.unmap(va + 2 * size, h));
	OK(mem_host.unmap(va + size, h));
	cr_assert_eq(h->refs, 1);
	/* One reservation again, not accessible, without a piece of memory in it. */
	cr_assert(mapped_at(va, 4 * size, line, sizeof(line)));
	cr_assert(strstr(line, "---p") != NULL, "%s", line);
	OK(mem_host.unreserve(va, 4 * size));
	mem_host.release(h);
	mem_host.release(NULL);
	end();
}

Test(mem, prefault_leaves_no_fault_for_later)
{
	size_t size = 8 * MIB;
	struct mem_handle *h;
	char *va;
	long f;

	begin();
	OK(mem_host.create(size, &h));
	OK(mem_host.reserve(size, 0, (void **)&va));
	OK(mem_host.map(va, h));
	OK(mem_host.set_access(va, size, 1, NULL));
	f = faults();
	for (size_t i = 0; i < size; i += page)
		((volatile char *)va)[i] = 1;
	cr_assert_lt(faults() - f, most_faults(size));
	OK(mem_host.unmap(va, h));
	OK(mem_host.map(va, h));
	/* Without the flag they are left to the first access. */
	OK(mem_host.set_access(va, size, 0, NULL));
	f = faults();
	for (size_t i = 0; i < size; i += page)
		((volatile char *)va)[i] = 1;
	cr_assert_gt(faults() - f, (long)(size / page / 2));
	OK(mem_host.unmap(va, h));
	OK(mem_host.unreserve(va, size));
	mem_host.release(h);
	end();
}

/* ---- import ---------------------------------------------------------------------------------- */

static const struct mem_uid peer_uid = {.proc = 1234, .seq = 5};

/* import takes the descriptor in any case. */
static void refused(int fd, size_t size, const char *says)
{
	struct mem_handle *h = NULL;

	cr_assert_geq(fd, 0);
	FAILS(mem_host.import_fd(fd, size, peer_uid, &h), symcclInvalidUsage, says);
	cr_assert_null(h);
	cr_assert_eq(fcntl(fd, F_GETFD), -1, "the descriptor is still open");
}

static int memfd(int seals)
{
	int fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	cr_assert_eq(ftruncate(fd, (off_t)page), 0);
	cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

Test(mem, import_refuses_what_is_not_such_memory)
{
	int fd, pair[2];
	char file[] = "/tmp/symccl-test-XXXXXX", path[64];
	struct mem_handle *h;

	begin();
	OK(mem_host.create(page, &h));
	OK(mem_host.export_fd(h, &fd));
	cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	cr_assert_eq(ftruncate(fd, 0), -1, "it can be shrunk");
	cr_assert_eq(ftruncate(fd, (off_t)(2 * page)), -1, "it can grow");
	cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1, "it can be sealed further");
	refused(fd, 2 * page, "instead of");
	OK(mem_host.export_fd(h, &fd));
	refused(fd, 0, "instead of");
	OK(mem_host.export_fd(h, &fd));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	refused(open(path, O_RDONLY | O_CLOEXEC), page, "read-only");
	close(fd);
	mem_host.release(h);
	refused(memfd(0), page, "shrinking");
	refused(memfd(F_SEAL_GROW), page, "shrinking");
	refused(memfd(F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE), page, "read-only");
	fd = mkostemp(file, O_CLOEXEC);
	unlink(file);
	cr_assert_eq(ftruncate(fd, (off_t)page), 0);
	refused(fd, page, "no shared memory");
	cr_assert_eq(pipe2(pair, O_CLOEXEC), 0);
	refused(pair[0], page, "no shared memory");
	close(pair[1]);
	refused(open("/dev/null", O_RDWR | O_CLOEXEC), page, "no shared memory");
	refused(open("/", O_PATH | O_CLOEXEC), page, "no shared memory");
	end();
}

Test(mem, import_keeps_no_descriptor_once_mapped)
{
	struct mem_handle *h, *in;
	int fd, other;
	char *va;

	begin();
	OK(mem_host.create(page, &h));
	OK(mem_host.export_fd(h, &fd));
	OK(mem_host.import_fd(fd, page, peer_uid, &in));
	cr_assert_eq(in->uid.proc, peer_uid.proc);
	cr_assert_eq(in->uid.seq, peer_uid.seq);
	cr_assert_eq(in->size, page);
	OK(mem_host.reserve(2 * page, 0, (void **)&va));
	OK(mem_host.map(va, in));
	cr_assert_eq(fcntl(fd, F_GETFD), -1);
	FAILS(mem_host.map(va + page, in), symcclInternalError, "twice");
	FAILS(mem_host.export_fd(in, &other), symcclInternalError, "import");
	OK(mem_host.unmap(va, in));
	mem_host.release(in);
	OK(mem_host.unreserve(va, 2 * page));
	mem_host.release(h);
	end();
}

/* ---- Names and selection --------------------------------------------------------------------- */

Test(mem, names_are_unique)
{
	struct mem_uid a = mem_uid_next(), b = mem_uid_next();

	cr_assert_neq(mem_proc_uid(), 0);
	cr_assert_eq(mem_proc_uid(), mem_proc_uid());
	cr_assert_eq(a.proc, b.proc);
	cr_assert_neq(a.seq, b.seq);
}

/* Exit code of fn in a forked child. */
static int in_child(int (*fn)(void *arg), void *arg)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0)
		_exit(fn(arg));
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct inherited {
	uint64_t uid;
	char *p;
};

static int child(void *arg)
{
	struct inherited *i = arg;
	struct mem_span s;
	void *q;

	if (mem_proc_uid() == i->uid || mem_proc_uid() == 0)
		return 1;
	/* Inherited memory keeps its name: it is the same memory. */
	if (mem_host.retain(i->p, 1, &s) != symcclSuccess || s.seg[0]->uid.proc != i->uid)
		return 2;
	mem_host.release(s.seg[0]);
	if (strcmp(i->p, "from the parent") != 0)
		return 3;
	strcpy(i->p, "from the child");
	if (symcclMemFree(i->p) != symcclSuccess)
		return 4;
	if (symcclMemAllocOn(&q, page, symcclDeviceHost) != symcclSuccess)
		return 5;
	if (mem_host.retain(q, 1, &s) != symcclSuccess || s.seg[0]->uid.proc != mem_proc_uid())
		return 6;
	return 0;
}

Test(mem, fork_leaves_the_parent_alone)
{
	struct inherited i;

	begin();
	i.uid = mem_proc_uid();
	OK(symcclMemAllocOn((void **)&i.p, page, symcclDeviceHost));
	strcpy(i.p, "from the parent");
	cr_assert_eq(in_child(child, &i), 0);
	cr_assert_eq(mem_proc_uid(), i.uid);
	cr_assert_str_eq(i.p, "from the child");
	i.p[0] = 'x';
	OK(symcclMemFree(i.p));
	end();
}

static int churn_stop;

static void *churn(void *arg)
{
	void *p;

	/* Mostly what holds the lock. */
	while (!__atomic_load_n(&churn_stop, __ATOMIC_RELAXED)) {
		if (symcclMemAllocOn(&p, page, symcclDeviceHost) != symcclSuccess)
			continue;
		for (int i = 0; i < 10000; i++)
			mem_host.owns(p);
		symcclMemFree(p);
	}
	return arg;
}

static int alloc_once(void *arg)
{
	void *p;

	(void)arg;
	alarm(5);
	return symcclMemAllocOn(&p, page, symcclDeviceHost) != symcclSuccess ||
	       symcclMemFree(p) != symcclSuccess;
}

Test(mem, fork_while_another_thread_allocates)
{
	pthread_t t;

	page = mem_host.granularity();
	cr_assert_eq(pthread_create(&t, NULL, churn, NULL), 0);
	for (int i = 0; i < 100; i++)
		cr_assert_eq(in_child(alloc_once, NULL), 0);
	__atomic_store_n(&churn_stop, 1, __ATOMIC_RELAXED);
	pthread_join(t, NULL);
}

Test(mem, selection)
{
	const struct mem_ops *ops = NULL;

	OK(mem_select(symcclDeviceHost, &ops));
	cr_assert_eq(ops, &mem_host);
	setenv("SYMCCL_DEVICE", "host", 1);
	params_reload();
	OK(mem_select(symcclDeviceAuto, &ops));
	cr_assert_eq(ops, &mem_host);
	unsetenv("SYMCCL_DEVICE");
	params_reload();
	OK(mem_select(symcclDeviceAuto, &ops));
	cr_assert_eq(ops, &mem_host); /* no CUDA context on this thread */
	if (mem_cuda.unusable() == NULL)
		return;
	ops = NULL;
	FAILS(mem_select(symcclDeviceCuda, &ops), symcclInvalidUsage, mem_cuda.unusable());
	setenv("SYMCCL_DEVICE", "cuda", 1);
	params_reload();
	FAILS(mem_select(symcclDeviceAuto, &ops), symcclInvalidUsage, "SYMCCL_DEVICE");
	cr_assert_null(ops);
}

/* ---- Limits: a tree of files as the kernel would show them ------------------------------------
 */

static char tree[64];

static void put(const char *path, const char *text)
{
	char full[512];
	FILE *f;

	snprintf(full, sizeof(full), "%s%s", tree, path);
	for (char *s = strchr(full + strlen(tree) + 1, '/'); s; s = strchr(s + 1, '/')) {
		*s = 0;
		mkdir(full, 0700);
		*s = '/';
	}
	f = fopen(full, "we");
	cr_assert_not_null(f, "%s", full);
	fputs(text, f);
	fclose(f);
}

static void limits_are(size_t capacity_mib, size_t headroom_mib)
{
	struct mem_limits l;

	mem_limits_read(tree, &l);
	cr_assert_eq(l.capacity >> 20, capacity_mib, "capacity %zu", l.capacity >> 20);
	cr_assert_eq(l.headroom >> 20, headroom_mib, "headroom %zu", l.headroom >> 20);
}

static void tree_begin(const char *group)
{
	char name[] = "/tmp/symccl-test-XXXXXX";

	cr_assert_not_null(mkdtemp(name));
	strcpy(tree, name);
	put("/proc/meminfo", "MemTotal:       1048576 kB\nMemFree:         102400 kB\n"
			     "MemAvailable:    512000 kB\nSwapFree:         10240 kB\n");
	put("/proc/self/cgroup", group);
}

static void tree_end(void)
{
	char cmd[128];

	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", tree);
	cr_assert_eq(system(cmd), 0);
}

Test(mem, limits_without_a_cgroup)
{
	tree_begin("0::/\n");
	limits_are(1024, 510);
	tree_end();
	limits_are(SIZE_MAX >> 20, SIZE_MAX >> 20);
}

Test(mem, limits_of_cgroup_v2)
{
	tree_begin("0::/a/b\n");
	put("/sys/fs/cgroup/a/b/memory.max", "max\n");
	put("/sys/fs/cgroup/a/memory.max", "209715200\n");
	put("/sys/fs/cgroup/a/memory.current", "104857600\n");
	limits_are(200, 110);
	put("/sys/fs/cgroup/a/memory.stat",
		"anon 1\nfile 99\ninactive_file 10485760\nactive_file 10485760\n");
	limits_are(200, 130);
	put("/sys/fs/cgroup/a/b/memory.max", "52428800\n");
	put("/sys/fs/cgroup/a/b/memory.current", "62914560\n");
	limits_are(50, 10);
	tree_end();
}

/* In a container without its own namespace the path is the host's; its group is the mount. */
Test(mem, limits_of_cgroup_v1_and_foreign_paths)
{
	tree_begin("9:name=systemd:/x\n4:cpu,memory:/docker/0123\n0::/../y\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	limits_are(1024, 510);
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n");
	put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "83886080\n");
	put("/sys/fs/cgroup/memory/memory.stat", "inactive_file 5\ntotal_inactive_file 1048576\n");
	limits_are(100, 31);
	put("/sys/fs/cgroup/memory.max", "62914560\n");
	put("/sys/fs/cgroup/memory.current", "0\n");
	limits_are(60, 31);
	tree_end();
}

Test(mem, capacity_is_this_machine)
{
	struct mem_limits l;

	mem_limits_read("", &l);
	cr_assert_eq(mem_host.capacity(), l.capacity);
	cr_assert_gt(l.capacity, 16 * MIB);
	cr_assert_lt(l.capacity, (size_t)1 << 48);
}
