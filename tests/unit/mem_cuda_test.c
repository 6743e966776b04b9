/* GPU memory over the driver double (tests/fakecuda), every driver call failing once included. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cuda/driver.h"
#include "fakecuda/fakecuda.h"
#include "mem/mem.h"
#include "params.h"

static const struct mem_ops *const ops = &mem_cuda;
static size_t G; /* granularity */

static void quiet(void)
{
	setenv("SYMCCL_DEBUG", "none", 1);
	params_reload();
}

TestSuite(mem_cuda, .timeout = 20, .init = quiet);

static void start(const char *devices)
{
	setenv("FAKECUDA_DEVICES", devices, 1);
	cr_assert_null(ops->unusable(), "%s", ops->unusable());
	cr_assert_not_null(fakecuda_hook("fakecuda_leaks"), "the real driver was found first");
	G = ops->granularity();
}

static int leaks(char *text, size_t len)
{
	return ((fakecuda_leaks_t)fakecuda_hook("fakecuda_leaks"))(text, len);
}

#define NO_LEAKS() \
	do { \
		char leaks_[256]; \
		cr_assert_eq(leaks(leaks_, sizeof(leaks_)), 0, "left open: %s", leaks_); \
	} while (0)
#define OK(call) cr_assert_eq(call, symcclSuccess, "%s: %s", #call, error_text())
/* That code, and a sentence that says so. */
#define REFUSED(code, word, call) \
	do { \
		cr_assert_eq(call, code, "%s", #call); \
		cr_assert_not_null(strstr(error_text(), word), "%s: %s", #call, error_text()); \
	} while (0)

static int is_zero(const unsigned char *p, size_t n)
{
	return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

/* A user's own mapping, by the driver's calls; parts of n[i] granules each. */
static CUdeviceptr user_map(const int *n, int parts, CUmemAllocationHandleType types)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = types,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
	};
	CUmemAccessDesc rw = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle h;
	CUdeviceptr va, p;

	cr_assert_eq(cu.MemAddressReserve(&va, 64 * G, 0, 0, 0), CUDA_SUCCESS);
	p = va;
	for (int i = 0; i < parts; p += (size_t)n[i++] * G) {
		cr_assert_eq(cu.MemCreate(&h, (size_t)n[i] * G, &prop, 0), CUDA_SUCCESS);
		cr_assert_eq(cu.MemMap(p, (size_t)n[i] * G, 0, h, 0), CUDA_SUCCESS);
		cr_assert_eq(cu.MemSetAccess(p, (size_t)n[i] * G, &rw, 1), CUDA_SUCCESS);
		cr_assert_eq(cu.MemRelease(h), CUDA_SUCCESS);
	}
	return va;
}

static void user_unmap(CUdeviceptr va, const int *n, int parts)
{
	CUdeviceptr p = va;

	for (int i = 0; i < parts; p += (size_t)n[i++] * G)
		cr_assert_eq(cu.MemUnmap(p, (size_t)n[i] * G), CUDA_SUCCESS);
	cr_assert_eq(cu.MemAddressFree(va, 64 * G), CUDA_SUCCESS);
}

static void *addr(CUdeviceptr p)
{
	return (void *)(uintptr_t)p;
}

static void span_release(struct mem_span *s)
{
	for (int i = 0; i < s->n; i++)
		ops->release(s->seg[i]);
	s->n = 0;
}

/* ---- Is it usable? -------------------------------------------------------------------------- */

Test(mem_cuda, unusable_without_gpu)
{
	setenv("FAKECUDA_DEVICES", "0", 1);
	cr_assert_not_null(ops->unusable());
	cr_assert_not_null(strstr(ops->unusable(), "CUDA_ERROR_NO_DEVICE"), "%s", ops->unusable());
	REFUSED(symcclInvalidUsage, "not usable", ops->bind_thread(0));
}

Test(mem_cuda, unusable_without_vmm)
{
	setenv("FAKECUDA_VMM", "0", 1);
	cr_assert_not_null(ops->unusable());
	cr_assert_not_null(strstr(ops->unusable(), "virtual memory"), "%s", ops->unusable());
}

Test(mem_cuda, unusable_without_driver)
{
	struct cuda_table t;
	char why[256];

	cr_assert_not_null(cuda_load("libno-such-driver.so.9", &t, why, sizeof(why)));
	cr_assert_not_null(strstr(why, "libno-such-driver.so.9"), "%s", why);
	cr_assert_not_null(cuda_load("libm.so.6", &t, why, sizeof(why)));
	cr_assert_not_null(strstr(why, "has no cuInit"), "%s", why);
	cr_assert_null(cuda_load("libcuda.so.1", &t, why, sizeof(why)), "%s", why);
}

/* ---- Allocation ----------------------------------------------------------------------------- */

Test(mem_cuda, alloc_and_free)
{
	unsigned char *p;
	void *q = &q;

	setenv("FAKECUDA_MEMORY", "67108864", 1);
	start("1");
	cr_assert_eq(G, 2u << 20);
	cr_assert_eq(ops->capacity(), 64u << 20);
	OK(ops->alloc(3 << 20, (void **)&p));
	cr_assert(is_zero(p, 4 << 20));
	memset(p, 1, 4 << 20);
	cr_assert(ops->owns(p) && ops->owns(p + (4 << 20) - 1));
	cr_assert(!ops->owns(p + (4 << 20)) && !ops->owns(&p));
	REFUSED(symcclInvalidArgument, "symcclMemAlloc", ops->free_(p + 4096));
	OK(ops->free_(p));
	cr_assert(!ops->owns(p));
	REFUSED(symcclInvalidArgument, "symcclMemAlloc", ops->free_(p));
	REFUSED(symcclInvalidArgument, "0 bytes", ops->alloc(0, &q));
	REFUSED(symcclInvalidArgument, "cannot be allocated", ops->alloc(SIZE_MAX, &q));
	REFUSED(symcclSystemError, "no 134217728 bytes", ops->alloc(128 << 20, &q));
	cr_assert_eq(q, &q, "an output was written by a call that failed");
	NO_LEAKS();
}

Test(mem_cuda, memory_is_zeroed_again)
{
	struct mem_handle *h;
	void *p, *va;

	start("1");
	OK(ops->alloc(G, &p));
	memset(p, 0xee, G);
	OK(ops->free_(p));
	REFUSED(symcclInvalidArgument, "granularity", ops->create(G + 4096, &h));
	OK(ops->create(2 * G, &h));
	cr_assert_eq(h->refs, 1);
	cr_assert_eq(h->device, 0);
	OK(ops->reserve(2 * G, 0, &va));
	OK(ops->map(va, h));
	cr_assert_eq(h->refs, 2);
	OK(ops->set_access(va, 2 * G, 1, NULL));
	cr_assert(is_zero(va, 2 * G));
	OK(ops->unmap(va, h));
	cr_assert_eq(h->refs, 1);
	OK(ops->unreserve(va, 2 * G));
	ops->release(h);
	NO_LEAKS();
}

Test(mem_cuda, reserve_aligns)
{
	void *va;

	start("1");
	OK(ops->reserve(4 * G, (size_t)1 << 32, &va));
	cr_assert_eq((uintptr_t)va & 0xffffffffu, 0);
	cr_assert_eq(ops->unreserve(va, G), symcclUnhandledCudaError);
	OK(ops->unreserve(va, 4 * G));
	NO_LEAKS();
}

/* ---- From address to handle ----------------------------------------------------------------- */

Test(mem_cuda, retain_own_memory)
{
	struct mem_span a, b;
	unsigned char *p;
	void *va;

	start("1");
	OK(ops->alloc(2 * G, (void **)&p));
	OK(ops->retain(p + 100, G, &a));
	OK(ops->retain(p + G, 1, &b));
	cr_assert(a.n == 1 && a.offset == 100 && a.size == 2 * G);
	cr_assert(b.n == 1 && b.offset == G && b.seg[0] == a.seg[0]);
	cr_assert_eq(a.seg[0]->uid.proc, mem_proc_uid());
	cr_assert_neq(a.seg[0]->uid.seq, 0);
	p[5] = 55;
	/* The memory outlives its allocation while somebody holds it. */
	span_release(&b);
	OK(ops->free_(p));
	OK(ops->reserve(2 * G, 0, &va));
	OK(ops->map(va, a.seg[0]));
	span_release(&a); /* the mapping has its own reference */
	OK(ops->set_access(va, 2 * G, 1, NULL));
	cr_assert_eq(((unsigned char *)va)[5], 55);
	OK(ops->retain(va, 2 * G, &a)); /* by the new address */
	OK(ops->unmap(va, a.seg[0]));
	OK(ops->unreserve(va, 2 * G));
	span_release(&a);
	NO_LEAKS();
}

Test(mem_cuda, retain_foreign_segments)
{
	static const int sizes[] = {1, 3, 2};
	struct mem_span a, b;
	CUdeviceptr va;

	start("1");
	OK(ops->bind_thread(0));
	va = user_map(sizes, 3, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	OK(ops->retain(addr(va + 4096), 6 * G - 4096, &a));
	cr_assert_eq(a.n, 3);
	cr_assert(a.offset == 4096 && a.size == 6 * G && a.seg[1]->size == 3 * G);
	OK(ops->retain(addr(va + 2 * G), 3 * G, &b));
	cr_assert(b.n == 2 && b.offset == G && b.size == 5 * G);
	cr_assert(b.seg[0] == a.seg[1] && b.seg[1] == a.seg[2], "two records for one allocation");
	cr_assert_neq(a.seg[0]->uid.seq, a.seg[1]->uid.seq);
	span_release(&a);
	cr_assert_eq(b.seg[0]->refs, 1);
	span_release(&b);
	REFUSED(symcclInvalidUsage, "not known to CUDA", ops->retain(addr(va + 5 * G), 2 * G, &a));
	user_unmap(va, sizes, 3);
	cr_assert_eq(cu.CtxSetCurrent(NULL), CUDA_SUCCESS);
	NO_LEAKS();
}

Test(mem_cuda, retain_refuses)
{
	static const int many[40] = {[0 ... 39] = 1}, one[] = {1};
	struct mem_span s = {.n = -7};
	CUdeviceptr va;
	void *host;
	int here;

	start("1");
	OK(ops->bind_thread(0));
	cr_assert_eq(cu.MemAlloc(&va, 4096), CUDA_SUCCESS);
	REFUSED(symcclInvalidUsage, "of cudaMalloc", ops->retain(addr(va), 100, &s));
	cr_assert_eq(cu.MemFree(va), CUDA_SUCCESS);
	cr_assert_eq(cu.MemHostAlloc(&host, 4096, 0), CUDA_SUCCESS);
	REFUSED(symcclInvalidUsage, "host memory", ops->retain(host, 100, &s));
	cr_assert_eq(cu.MemFreeHost(host), CUDA_SUCCESS);
	REFUSED(symcclInvalidUsage, "not known to CUDA", ops->retain(&here, 4, &s));
	va = user_map(one, 1, CU_MEM_HANDLE_TYPE_NONE);
	REFUSED(symcclInvalidUsage, "file descriptor", ops->retain(addr(va), 4, &s));
	user_unmap(va, one, 1);
	va = user_map(many, 40, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	REFUSED(symcclInvalidUsage, "more than 32", ops->retain(addr(va), 33 * G, &s));
	OK(ops->retain(addr(va), 32 * G, &s));
	span_release(&s);
	user_unmap(va, many, 40);
	cr_assert_eq(cu.CtxSetCurrent(NULL), CUDA_SUCCESS);
	NO_LEAKS();
}

/* ---- Between processes ---------------------------------------------------------------------- */

struct message {
	struct mem_uid uid;
	size_t size;
};

static void fd_send(int sock, int fd, const struct message *m)
{
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {(void *)(uintptr_t)m, sizeof(*m)};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	if (sendmsg(sock, &msg, 0) < 0)
		_exit(10);
}

static int fd_receive(int sock, struct message *m)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = {m, sizeof(*m)};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	int fd = -1;

	if (recvmsg(sock, &msg, 0) == sizeof(*m) && CMSG_FIRSTHDR(&msg) != NULL)
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

/* 0, or the number of the step that failed. Runs in a forked child: no cr_*. */
static int importer(int sock)
{
	struct mem_handle *h;
	struct message m;
	unsigned char *va;
	char text[256];
	int fd = fd_receive(sock, &m);

	if (fd < 0 || ops->unusable() != NULL)
		return 1;
	if (ops->import_fd(fd, m.size, m.uid, &h) != symcclSuccess)
		return 2;
	if (h->uid.proc != m.uid.proc || h->uid.seq != m.uid.seq || h->uid.proc == mem_proc_uid())
		return 3;
	if (close(fd) == 0)
		return 4; /* import_fd should have */
	if (ops->reserve(m.size, 0, (void **)&va) != symcclSuccess ||
		ops->map(va, h) != symcclSuccess ||
		ops->set_access(va, m.size, 1, NULL) != symcclSuccess)
		return 5;
	if (va[0] != 17 || va[m.size - 1] != 18)
		return 6;
	va[1] = 19;
	if (ops->unmap(va, h) != symcclSuccess || ops->unreserve(va, m.size) != symcclSuccess)
		return 7;
	ops->release(h);
	return leaks(text, sizeof(text)) == 0 ? 0 : 8;
}

Test(mem_cuda, export_import)
{
	struct mem_span s;
	struct message m;
	unsigned char *p;
	int sock[2], fd, status;
	pid_t pid;

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sock), 0);
	pid = fork(); /* before CUDA starts */
	if (pid == 0)
		_exit(importer(sock[1]));
	start("1");
	OK(ops->alloc(2 * G, (void **)&p));
	p[0] = 17;
	p[2 * G - 1] = 18;
	OK(ops->retain(p, 2 * G, &s));
	OK(ops->export_fd(s.seg[0], &fd));
	m.uid = s.seg[0]->uid;
	m.size = s.seg[0]->size;
	fd_send(sock[0], fd, &m);
	close(fd);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status));
	cr_assert_eq(WEXITSTATUS(status), 0, "the importer's step %d", WEXITSTATUS(status));
	cr_assert_eq(p[1], 19);
	span_release(&s);
	OK(ops->free_(p));
	NO_LEAKS();
}

Test(mem_cuda, import_refuses)
{
	struct mem_handle *h;
	struct mem_uid uid = {1, 2};
	void *va;
	int fds[2], fd;

	start("1");
	cr_assert_eq(pipe(fds), 0);
	REFUSED(symcclUnhandledCudaError, "import", ops->import_fd(fds[0], G, uid, &h));
	cr_assert_neq(close(fds[0]), 0, "a refused descriptor must be closed");
	close(fds[1]);
	/* A size that the memory does not have shows when it is mapped. */
	OK(ops->create(G, &h));
	OK(ops->export_fd(h, &fd));
	ops->release(h);
	OK(ops->import_fd(fd, 2 * G, uid, &h));
	OK(ops->reserve(2 * G, 0, &va));
	REFUSED(symcclUnhandledCudaError, "cannot map", ops->map(va, h));
	cr_assert_eq(h->refs, 1);
	ops->release(h);
	OK(ops->unreserve(va, 2 * G));
	NO_LEAKS();
}

/* ---- Several GPUs, threads, capture --------------------------------------------------------- */

/* Can device's copy engine write there? */
static int reaches(int device, void *va)
{
	CUresult r;

	OK(cu_bind_thread(device));
	r = cu.MemsetD8Async((CUdeviceptr)(uintptr_t)va, 1, 16, NULL);
	cr_assert_eq(cu.CtxSetCurrent(NULL), CUDA_SUCCESS);
	return r == CUDA_SUCCESS;
}

static void *create_on_1(void *arg)
{
	if (ops->bind_thread(1) != symcclSuccess || ops->device() != 1 ||
		ops->create(G, arg) != symcclSuccess)
		return NULL;
	return arg;
}

Test(mem_cuda, several_gpus)
{
	struct mem_handle *h = NULL;
	pthread_t id;
	void *va, *ok;

	start("3");
	cr_assert_eq(ops->device(), 0);
	REFUSED(symcclInvalidArgument, "no GPU 3", ops->bind_thread(3));
	REFUSED(symcclInvalidArgument, "no GPU -1", ops->bind_thread(-1));
	pthread_create(&id, NULL, create_on_1, &h);
	pthread_join(id, &ok);
	cr_assert_not_null(ok);
	cr_assert_eq(h->device, 1);
	/* Access: the caller's GPU and those that others of this process use, not the third. */
	OK(ops->reserve(G, 0, &va));
	OK(ops->map(va, h));
	cr_assert(!reaches(0, va) && !reaches(1, va));
	OK(ops->set_access(va, G, 1, NULL));
	cr_assert(reaches(0, va));
	cr_assert(reaches(1, va));
	cr_assert(!reaches(2, va));
	OK(ops->unmap(va, h));
	OK(ops->unreserve(va, G));
	ops->release(h);
	NO_LEAKS();
}

Test(mem_cuda, gpus_without_p2p)
{
	struct mem_handle *h;
	void *va;

	setenv("FAKECUDA_P2P", "100/010/001", 1);
	start("2");
	OK(ops->bind_thread(1));
	OK(ops->create(G, &h));
	OK(ops->reserve(G, 0, &va));
	OK(ops->map(va, h));
	OK(ops->set_access(va, G, 1, NULL));
	OK(ops->bind_thread(0));
	REFUSED(symcclUnhandledCudaError, "P2P", ops->set_access(va, G, 1, NULL));
	/* GPU 0 is in use now, and is left out where it does not reach. */
	OK(ops->bind_thread(1));
	OK(ops->set_access(va, G, 1, NULL));
	OK(ops->unmap(va, h));
	OK(ops->unreserve(va, G));
	ops->release(h);
	cr_assert_eq(cu.CtxSetCurrent(NULL), CUDA_SUCCESS);
	NO_LEAKS();
}

Test(mem_cuda, set_access_checks_and_stops)
{
	struct mem_handle *a, *b;
	uint32_t stop = 1;
	char *va;

	start("1");
	OK(ops->create(G, &a));
	OK(ops->create(2 * G, &b));
	OK(ops->reserve(4 * G, 0, (void **)&va));
	OK(ops->map(va, a));
	OK(ops->map(va + G, b));
	cr_assert_eq(ops->set_access(va, 3 * G, 1, &stop), symcclRemoteError);
	REFUSED(symcclInvalidArgument, "as a whole", ops->set_access(va, 2 * G, 1, NULL));
	REFUSED(symcclInvalidArgument, "as a whole", ops->set_access(va, 4 * G, 1, NULL));
	stop = 0;
	OK(ops->set_access(va, 3 * G, 1, &stop));
	va[3 * G - 1] = 1;
	cr_assert_eq(ops->unmap(va, b), symcclUnhandledCudaError); /* not b's place */
	OK(ops->unmap(va, a));
	OK(ops->unmap(va + G, b));
	OK(ops->unreserve(va, 4 * G));
	ops->release(a);
	ops->release(b);
	ops->release(NULL);
	NO_LEAKS();
}

static symcclResult_t life(CUdeviceptr foreign);

Test(mem_cuda, while_capturing)
{
	CUstreamCaptureStatus status;
	CUstream s;
	CUgraph graph;

	start("1");
	OK(ops->bind_thread(0));
	cr_assert_eq(cu.StreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	cr_assert_eq(cu.StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
	OK(life(0));
	cr_assert_eq(cu.StreamIsCapturing(s, &status), CUDA_SUCCESS);
	cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	cr_assert_eq(cu.StreamEndCapture(s, &graph), CUDA_SUCCESS);
	cr_assert_eq(cu.GraphDestroy(graph), CUDA_SUCCESS);
	cr_assert_eq(cu.StreamDestroy(s), CUDA_SUCCESS);
	cr_assert_eq(cu.CtxSetCurrent(NULL), CUDA_SUCCESS);
	NO_LEAKS();
}

/* ---- Every driver call failing once ---------------------------------------------------------- */

/* Keep the first failure; closing calls are repeated once, as mem.h says they may be. */
#define STEP(call) (ret == symcclSuccess ? (ret = (call)) : ret)
#define CLOSE(call) \
	do { \
		symcclResult_t close_ = (call); \
		if (close_ != symcclSuccess) { \
			ret = ret != symcclSuccess ? ret : close_; \
			if ((call) != symcclSuccess) \
				abort(); \
		} \
	} while (0)

/* Every operation of the table; returns the first failure with everything closed. foreign: 0, or
 * memory of another in two segments. */
static symcclResult_t life(CUdeviceptr foreign)
{
	struct mem_handle *made = NULL, *imported = NULL;
	struct mem_span own = {0}, theirs = {0};
	symcclResult_t ret = symcclSuccess;
	char *p = NULL, *va = NULL;
	int fd = -1, mapped = 0, n = 0;

	STEP(ops->alloc(G, (void **)&p));
	STEP(ops->create(2 * G, &made));
	STEP(ops->retain(p, G, &own));
	if (foreign != 0)
		STEP(ops->retain(addr(foreign), 3 * G, &theirs));
	if (STEP(ops->export_fd(own.seg[0], &fd)) == symcclSuccess)
		STEP(ops->import_fd(fd, G, own.seg[0]->uid, &imported));
	STEP(ops->reserve(3 * G, 0, (void **)&va));
	if (STEP(ops->map(va, imported)) == symcclSuccess)
		mapped = 1;
	if (STEP(ops->map(va + G, made)) == symcclSuccess)
		mapped = 2;
	if (STEP(ops->set_access(va, 3 * G, 1, NULL)) == symcclSuccess) {
		p[3] = 33;
		n = va[3] != 33 || !is_zero((unsigned char *)va + G, 2 * G);
	}
	if (mapped > 1)
		CLOSE(ops->unmap(va + G, made));
	if (mapped > 0)
		CLOSE(ops->unmap(va, imported));
	if (va != NULL)
		CLOSE(ops->unreserve(va, 3 * G));
	ops->release(imported);
	ops->release(made);
	span_release(&own);
	span_release(&theirs);
	if (p != NULL)
		CLOSE(ops->free_(p));
	return n != 0 ? symcclInternalError : ret;
}

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d) != NULL)
		n++;
	closedir(d);
	return n;
}

/* May this call fail without its operation failing? What undoes has no way to report, and memory
 * of a GPU that is not visible has no properties. */
static int tolerated(const char *name)
{
	static const char *const names[] = {"cuMemRelease", "cuThreadExchangeStreamCaptureMode",
		"cuCtxPopCurrent_v2", "cuMemGetAllocationPropertiesFromHandle", "cuCtxGetCurrent",
		"cuCtxGetDevice", "cuCtxPushCurrent_v2"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(name, names[i]) == 0)
			return 1;
	return 0;
}

static void fail_each(CUdeviceptr foreign, int code, symcclResult_t want, int expected_open)
{
	fakecuda_fail_at_t fail_at = (fakecuda_fail_at_t)fakecuda_hook("fakecuda_fail_at");
	fakecuda_failed_t failed = (fakecuda_failed_t)fakecuda_hook("fakecuda_failed");
	CUstreamCaptureMode mode;
	int fds = open_fds(), reported = 0;
	char text[256];
	symcclResult_t r;
	long n;

	for (n = 1;; n++) {
		fail_at(n, code, 0);
		r = life(foreign);
		if (failed()[0] == '\0')
			break;
		cr_assert(r == want || (r == symcclSuccess && tolerated(failed())),
			"call %ld, %s: %s, %s", n, failed(), error_name(r), error_text());
		reported += r != symcclSuccess;
		if (r == symcclUnhandledCudaError)
			cr_assert_not_null(
				strstr(error_text(), "CUDA_ERROR_UNKNOWN"), "%s", error_text());
		fail_at(0, 0, 0);
		cr_assert_eq(leaks(text, sizeof(text)), expected_open, "call %ld, %s: %s open", n,
			failed(), text);
		cr_assert_eq(open_fds(), fds, "call %ld: descriptors", n);
		mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
		cu.ThreadExchangeStreamCaptureMode(&mode);
		cr_assert_eq(mode, CU_STREAM_CAPTURE_MODE_GLOBAL, "call %ld: capture mode", n);
	}
	fail_at(0, 0, 0);
	OK(r);
	cr_assert_gt(n, 80, "only %ld calls", n);
	cr_assert_gt(reported, 60);
}

Test(mem_cuda, every_call_fails_once)
{
	static const int sizes[] = {1, 2};
	CUdeviceptr foreign;
	char text[256];

	start("2");
	OK(ops->bind_thread(1)); /* in use: its access is part of the story */
	OK(ops->bind_thread(0));
	foreign = user_map(sizes, 2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	fail_each(foreign, CUDA_ERROR_UNKNOWN, symcclUnhandledCudaError, leaks(text, sizeof(text)));
	user_unmap(foreign, sizes, 2);
	cr_assert_eq(cu.CtxSetCurrent(NULL), CUDA_SUCCESS);
	NO_LEAKS();
}

Test(mem_cuda, every_call_fails_once_without_context)
{
	start("1");
	fail_each(0, CUDA_ERROR_UNKNOWN, symcclUnhandledCudaError, 0);
	NO_LEAKS();
}

/* The start itself: every call of cuda_open failing gives a reason, not a crash. A process each. */
Test(mem_cuda, every_call_of_the_start_fails)
{
	int status, reasons = 0;

	for (int n = 1; n < 30; n++) {
		pid_t pid = fork();

		if (pid == 0) {
			char value[16];

			snprintf(value, sizeof(value), "%d", n);
			setenv("FAKECUDA_FAIL", value, 1);
			setenv("FAKECUDA_DEVICES", "2", 1);
			_exit(ops->unusable() == NULL ? 0 : ops->unusable()[0] != '\0' ? 1 : 2);
		}
		cr_assert_eq(waitpid(pid, &status, 0), pid);
		cr_assert(WIFEXITED(status) && WEXITSTATUS(status) < 2, "call %d", n);
		reasons += WEXITSTATUS(status);
	}
	cr_assert_gt(reasons, 6);
}
