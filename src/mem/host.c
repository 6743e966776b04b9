/*
 * Host memory: one sealed memfd per allocation, mapped shared wherever it is wanted.
 *
 * The granularity is the page: what a peer pays for a mapping is per page, so a larger unit would
 * only make small windows dearer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "log.h"
#include "mem/limits.h"
#include "mem/mem.h"
#include "mem/no_multicast.h"
#include "util.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define FILL_PIECE ((size_t)64 << 10) /* of zeros, one write */
#define ROOM_PIECE ((size_t)64 << 20) /* written between two looks at the free memory */
#define PREFAULT_PIECE \
	((size_t)4 << 20) /* between two looks at *stop: about half a millisecond \
			   */

struct host_handle {
	struct mem_handle head;
	int fd; /* -1: an import that has been mapped */
	int imported;
};

/* What symcclMemAlloc has handed out, by address. */
struct entry {
	char *addr;
	struct host_handle *h;
};
static struct {
	pthread_mutex_t lock; /* held for look-ups and moves only, never over a system call */
	struct entry *e;
	size_t n, room;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- Limits --------------------------------------------------------------------------------- */

static const char *unusable(void)
{
	return NULL;
}

static int current(void)
{
	return 1;
}

static int device(void)
{
	return -1;
}

static symcclResult_t bind_thread(int gpu)
{
	(void)gpu;
	return symcclSuccess;
}

static size_t granularity(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t capacity(void)
{
	struct mem_limits l;

	mem_limits_read("", &l);
	if (l.capacity == SIZE_MAX)
		l.capacity = (size_t)sysconf(_SC_PHYS_PAGES) * granularity();
	return l.capacity;
}

/* What to do about errno; for the end of a sentence. */
static const char *advice(void)
{
	switch (errno) {
	case EMFILE:
		return " (raise ulimit -n)";
	case ENFILE:
		return " (raise fs.file-max)";
	case ENOMEM:
		return " (ulimit -v? vm.max_map_count?)";
	default:
		return "";
	}
}

/* Refuse beforehand what would end in the kernel killing somebody for want of memory. A
 * sixty-fourth is left for page tables and for what the kernel's estimate overlooks. */
static symcclResult_t room_check(size_t size)
{
	struct mem_limits l;

	mem_limits_read("", &l);
	if (size <= l.headroom - l.headroom / 64)
		return symcclSuccess;
	return fail(symcclSystemError,
		"%zu MiB of memory are asked for, but only %zu MiB are free (of %zu MiB that the "
		"machine or the memory cgroup grants)",
		size >> 20, l.headroom >> 20, l.capacity >> 20);
}

/* Growing a file beyond RLIMIT_FSIZE does not only fail, it raises a deadly signal. */
static symcclResult_t file_limit_check(size_t size)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_FSIZE, &r) == 0 && r.rlim_cur != RLIM_INFINITY && size > r.rlim_cur)
		return fail(symcclSystemError,
			"%zu bytes of shared memory are more than the file size limit of %zu bytes "
			"(raise ulimit -f)",
			size, (size_t)r.rlim_cur);
	return symcclSuccess;
}

/* ---- Handles -------------------------------------------------------------------------------- */

/* Takes fd, also on failure. */
static symcclResult_t handle_new(int fd, size_t size, struct mem_uid uid, struct host_handle **out)
{
	struct host_handle *h = calloc(1, sizeof(*h));

	if (h == NULL) {
		close(fd);
		return fail(symcclSystemError, "out of memory for an allocation's record");
	}
	h->head.uid = uid;
	h->head.size = size;
	h->head.refs = 1;
	h->head.device = -1;
	h->fd = fd;
	*out = h;
	return symcclSuccess;
}

static void handle_ref(struct mem_handle *m)
{
	__atomic_add_fetch(&m->refs, 1, __ATOMIC_RELAXED);
}

static void release(struct mem_handle *m)
{
	struct host_handle *h = (struct host_handle *)m;

	if (m == NULL || __atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	if (h->fd >= 0)
		close(h->fd);
	free(h);
}

static int memfd_new(void)
{
	int fd = memfd_create("symccl", MFD_CLOEXEC | MFD_NOEXEC_SEAL | MFD_ALLOW_SEALING);

	if (fd < 0 && errno == EINVAL) /* Linux before 6.3 */
		fd = memfd_create("symccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fd;
}

/* Make every page present, by writing zeros: it needs no mapping, fails with an error instead of a
 * signal, and is the fastest way (fallocate leaves the zeroing to the first access). */
static symcclResult_t pages_create(int fd, size_t size)
{
	static const char zeros[FILL_PIECE];
	size_t at = 0, looked = 0;

	while (at < size) {
		ssize_t n;

		if (at >= looked) {
			TRY(room_check(size - at));
			looked = at + ROOM_PIECE;
		}
		n = pwrite(fd, zeros, MIN(sizeof(zeros), size - at), (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fail(symcclSystemError,
				"no memory for %zu bytes, after %zu of them: %m", size, at);
		at += (size_t)n;
	}
	return symcclSuccess;
}

static symcclResult_t memory_new(size_t size, struct host_handle **out)
{
	symcclResult_t e;
	int fd;

	TRY(file_limit_check(size));
	fd = memfd_new();
	if (fd < 0)
		return fail(
			symcclSystemError, "cannot make a shared memory object: %m%s", advice());
	e = pages_create(fd, size);
	if (e == symcclSuccess && fcntl(fd, F_ADD_SEALS, SEALS) != 0)
		e = fail(symcclSystemError, "cannot seal a shared memory object: %m");
	if (e != symcclSuccess) {
		close(fd);
		return e;
	}
	return handle_new(fd, size, mem_uid_next(), out);
}

static symcclResult_t create(size_t size, struct mem_handle **out)
{
	struct host_handle *h = NULL;

	if (size == 0 || size % granularity() != 0)
		return fail(symcclInvalidArgument, "%zu is no multiple of the page size %zu", size,
			granularity());
	TRY(memory_new(size, &h));
	*out = &h->head;
	return symcclSuccess;
}

/* ---- Between processes ---------------------------------------------------------------------- */

static symcclResult_t export_fd(struct mem_handle *m, int *fd)
{
	struct host_handle *h = (struct host_handle *)m;
	int copy;

	if (h->fd < 0)
		return fail(symcclInternalError, "an import is exported");
	copy = fcntl(h->fd, F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		return fail(symcclSystemError, "cannot duplicate a descriptor for the peers: %m%s",
			advice());
	*fd = copy;
	return symcclSuccess;
}

/* It must be what pages_create and the seals made: else an access could end in SIGBUS. */
static symcclResult_t import_check(int fd, size_t size)
{
	struct stat st;
	int seals, flags;

	seals = fcntl(fd, F_GET_SEALS);
	flags = fcntl(fd, F_GETFL);
	if (seals < 0 || flags < 0 || fstat(fd, &st) != 0)
		return fail(
			symcclInvalidUsage, "a peer's descriptor is no shared memory object: %m");
	if ((flags & O_ACCMODE) != O_RDWR || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0)
		return fail(symcclInvalidUsage, "a peer's memory object is read-only");
	if ((seals & F_SEAL_SHRINK) == 0)
		return fail(symcclInvalidUsage,
			"a peer's memory object is not sealed against shrinking");
	if (size == 0 || st.st_size < 0 || (size_t)st.st_size != size)
		return fail(symcclInvalidUsage,
			"a peer's memory object has %lld bytes instead of %zu",
			(long long)st.st_size, size);
	return symcclSuccess;
}

static symcclResult_t import_fd(int fd, size_t size, struct mem_uid uid, struct mem_handle **out)
{
	struct host_handle *h = NULL;
	symcclResult_t e = import_check(fd, size);

	if (e != symcclSuccess) {
		close(fd);
		return e;
	}
	TRY(handle_new(fd, size, uid, &h));
	h->imported = 1;
	*out = &h->head;
	return symcclSuccess;
}

/* ---- Address space -------------------------------------------------------------------------- */

#define RESERVE_FLAGS (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

static symcclResult_t reserve(size_t size, size_t align, void **va)
{
	size_t page = granularity(), slack, head;
	char *p;

	align = MAX(align, page);
	slack = align - page;
	if (size == 0 || size > SIZE_MAX - slack)
		return fail(
			symcclInvalidArgument, "%zu bytes of addresses cannot be reserved", size);
	p = mmap(NULL, size + slack, PROT_NONE, RESERVE_FLAGS, -1, 0);
	if (p == MAP_FAILED)
		return fail(symcclSystemError,
			"cannot reserve %zu MiB of address space: %m%s; a smaller "
			"SYMCCL_WIN_STRIDE needs less",
			size >> 20, advice());
	head = align_up((size_t)p, align) - (size_t)p;
	if (head > 0)
		munmap(p, head);
	if (slack > head)
		munmap(p + head + size, slack - head);
	*va = p + head;
	return symcclSuccess;
}

static symcclResult_t unreserve(void *va, size_t size)
{
	if (munmap(va, size) != 0)
		return fail(symcclSystemError, "cannot give back %zu bytes of addresses at %p: %m",
			size, va);
	return symcclSuccess;
}

static symcclResult_t map(void *va, struct mem_handle *m)
{
	struct host_handle *h = (struct host_handle *)m;

	if (h->fd < 0)
		return fail(symcclInternalError, "an import is mapped twice");
	if (mmap(va, m->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, h->fd, 0) ==
		MAP_FAILED)
		return fail(symcclSystemError, "cannot map %zu bytes of shared memory: %m%s",
			m->size, advice());
	if (h->imported) {
		close(h->fd);
		h->fd = -1;
	}
	handle_ref(m);
	return symcclSuccess;
}

/* What replaces a mapping keeps the process's other threads from faulting in or mapping anything
 * until all its pages are gone, 25 ms a GiB; this lets them. */
static void pages_drop(char *va, size_t size)
{
	for (size_t at = 0; size > PREFAULT_PIECE && at < size; at += PREFAULT_PIECE)
		madvise(va + at, MIN(PREFAULT_PIECE, size - at), MADV_DONTNEED);
}

static symcclResult_t unmap(void *va, struct mem_handle *m)
{
	pages_drop(va, m->size);
	if (mmap(va, m->size, PROT_NONE, RESERVE_FLAGS | MAP_FIXED, -1, 0) == MAP_FAILED)
		return fail(symcclSystemError, "cannot unmap %zu bytes of shared memory: %m%s",
			m->size, advice());
	release(m);
	return symcclSuccess;
}

/* Pages exist since create, so reading suffices, and is cheaper than writing: the kernel maps their
 * neighbours in the same go, writable ones. */
static symcclResult_t piece_prefault(char *p, size_t size)
{
	while (madvise(p, size, MADV_POPULATE_READ) != 0) {
		if (errno == EINTR)
			continue;
		if (errno != EINVAL)
			return fail(symcclSystemError,
				"cannot make %zu bytes of shared memory present: %m", size);
		for (size_t i = 0; i < size; i += granularity()) /* Linux before 5.14 */
			(void)__atomic_load_n(p + i, __ATOMIC_RELAXED);
		break;
	}
	return symcclSuccess;
}

static symcclResult_t set_access(void *va, size_t size, int prefault, const uint32_t *stop)
{
	size_t n;

	for (size_t at = 0; prefault && at < size; at += n) {
		if (stop != NULL && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0)
			return symcclRemoteError;
		n = MIN(PREFAULT_PIECE, size - at);
		TRY(piece_prefault((char *)va + at, n));
	}
	return symcclSuccess;
}

/* ---- The table of symcclMemAlloc ------------------------------------------------------------ */

/* A fork while another thread holds the lock must not leave it locked in the child. */
static void fork_before(void)
{
	pthread_mutex_lock(&table.lock);
}

static void fork_after(void)
{
	pthread_mutex_unlock(&table.lock);
}

static void watch_forks(void)
{
	pthread_atfork(fork_before, fork_after, fork_after);
}

/* Index of the first entry above p; the lock is held. */
static size_t table_above(const char *p)
{
	size_t lo = 0, hi = table.n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (table.e[mid].addr <= p)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* The entry whose memory holds p, or NULL; the lock is held. */
static struct entry *table_find(const char *p)
{
	size_t above = table_above(p);
	struct entry *e = above > 0 ? &table.e[above - 1] : NULL;

	return e != NULL && (size_t)(p - e->addr) < e->h->head.size ? e : NULL;
}

static symcclResult_t table_add(char *addr, struct host_handle *h)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct entry *e;
	size_t i, room;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&table.lock);
	if (table.n == table.room) {
		room = table.room * 2 + 16;
		e = realloc(table.e, room * sizeof(*e));
		if (e == NULL) {
			pthread_mutex_unlock(&table.lock);
			return fail(symcclSystemError, "out of memory for an allocation's record");
		}
		table.e = e;
		table.room = room;
	}
	i = table_above(addr);
	memmove(&table.e[i + 1], &table.e[i], (table.n - i) * sizeof(*table.e));
	table.e[i] = (struct entry){addr, h};
	table.n++;
	pthread_mutex_unlock(&table.lock);
	return symcclSuccess;
}

/* Take out the entry that begins at addr; NULL: there is none. The last one takes the array along,
 * so that nothing is left for leak checkers. */
static struct host_handle *table_take(const char *addr)
{
	struct host_handle *h = NULL;
	struct entry *e;

	pthread_mutex_lock(&table.lock);
	e = table_find(addr);
	if (e != NULL && e->addr == addr) {
		h = e->h;
		table.n--;
		memmove(e, e + 1, (size_t)(&table.e[table.n] - e) * sizeof(*e));
		if (table.n == 0) {
			free(table.e);
			table.e = NULL;
			table.room = 0;
		}
	}
	pthread_mutex_unlock(&table.lock);
	return h;
}

static int owns(const void *ptr)
{
	int found;

	pthread_mutex_lock(&table.lock);
	found = table_find(ptr) != NULL;
	pthread_mutex_unlock(&table.lock);
	return found;
}

static symcclResult_t retain(const void *addr, size_t size, struct mem_span *span)
{
	struct entry found = {0};
	size_t offset, room;
	struct entry *e;

	pthread_mutex_lock(&table.lock);
	e = table_find(addr);
	if (e != NULL) {
		found = *e;
		handle_ref(&found.h->head);
	}
	pthread_mutex_unlock(&table.lock);
	if (e == NULL)
		return fail(symcclInvalidUsage,
			"%p is not host memory of symcclMemAlloc, so peers cannot map it", addr);
	offset = (size_t)((const char *)addr - found.addr);
	room = found.h->head.size - offset;
	if (size > room) {
		release(&found.h->head);
		return fail(symcclInvalidUsage,
			"%zu bytes at %p reach %zu bytes beyond the end of their allocation", size,
			addr, size - room);
	}
	memset(span, 0, sizeof(*span));
	span->n = 1;
	span->seg[0] = &found.h->head;
	span->offset = offset;
	span->size = found.h->head.size;
	return symcclSuccess;
}

static symcclResult_t alloc(size_t size, void **ptr)
{
	size_t page = granularity();
	struct host_handle *h = NULL;
	symcclResult_t e;
	char *p;

	if (size > SIZE_MAX / 2) /* so that rounding cannot overflow */
		return fail(symcclSystemError, "no machine has %zu bytes", size);
	size = align_up(size, page);
	TRY(memory_new(size, &h));
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, h->fd, 0);
	if (p == MAP_FAILED) {
		e = fail(symcclSystemError, "cannot map %zu bytes of shared memory: %m%s", size,
			advice());
		goto err_release;
	}
	e = set_access(p, size, 1, NULL);
	if (e == symcclSuccess)
		e = table_add(p, h);
	if (e != symcclSuccess)
		goto err_unmap;
	log_trace(LOG_MEM, "%zu bytes at %p", size, (void *)p);
	*ptr = p;
	return symcclSuccess;
err_unmap:
	munmap(p, size);
err_release:
	release(&h->head);
	return e;
}

static symcclResult_t free_(void *ptr)
{
	struct host_handle *h = table_take(ptr);
	symcclResult_t e;

	if (h == NULL)
		return fail(symcclInvalidArgument,
			"%p was not returned by symcclMemAlloc, or was freed before", ptr);
	mem_freed();
	if (munmap(ptr, h->head.size) != 0) {
		e = fail(symcclSystemError, "cannot unmap the memory at %p: %m", ptr);
		table_add(ptr, h);
		return e;
	}
	release(&h->head);
	return symcclSuccess;
}

const struct mem_ops mem_host = {
	.name = "host",
	.type = symcclDeviceHost,
	.unusable = unusable,
	.current = current,
	.device = device,
	.bind_thread = bind_thread,
	.granularity = granularity,
	.capacity = capacity,
	.create = create,
	.retain = retain,
	.export_fd = export_fd,
	.import_fd = import_fd,
	.reserve = reserve,
	.unreserve = unreserve,
	.map = map,
	.set_access = set_access,
	.unmap = unmap,
	.release = release,
	.alloc = alloc,
	.free_ = free_,
	.owns = owns,
	.multicast_able = multicast_able,
	.multicast_create = multicast_create,
	.multicast_import = multicast_import,
	.multicast_add = multicast_add,
	.multicast_bind = multicast_bind,
	.multicast_unbind = multicast_unbind,
};
