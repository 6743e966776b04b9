/*
 * mem_ops cuda on whatever libcuda.so.1 is there: N processes (argument, default 2) on GPU
 * rank % GPUs map each other's memory, write into it and take it down in an order that hurts; then
 * each alone. Prints what the operations cost. Exit: 0 passed, 1 failed, 77 no GPU.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cuda/driver.h"
#include "mem/mem.h"
#include "util.h"

enum { MAX_RANKS = 8 };

static const struct mem_ops *const ops = &mem_cuda;
static int rank, nranks, sock[MAX_RANKS][MAX_RANKS];
static CUstream stream;
static size_t G;

#define CHECK(expr) \
	do { \
		if (!(expr)) { \
			printf("rank %d line %d: not so: %s (%s)\n", rank, __LINE__, #expr, \
				error_text()); \
			return 1; \
		} \
	} while (0)
#define OK(call) CHECK((call) == symcclSuccess)
#define CU(call) CHECK((call) == CUDA_SUCCESS)

/* ---- Between ranks -------------------------------------------------------------------------- */

struct message {
	struct mem_uid uid;
	size_t size, offset;
};

static int fd_send(int s, int fd, const struct message *m)
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
	return sendmsg(s, &msg, 0) == sizeof(*m);
}

static int fd_receive(int s, struct message *m)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = {m, sizeof(*m)};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	int fd = -1;

	if (recvmsg(s, &msg, MSG_CMSG_CLOEXEC) == sizeof(*m) && CMSG_FIRSTHDR(&msg) != NULL)
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

static int barrier(void)
{
	char c = 'b';

	for (int p = 0; p < nranks; p++)
		if (p != rank)
			CHECK(write(sock[rank][p], &c, 1) == 1);
	for (int p = 0; p < nranks; p++)
		if (p != rank)
			CHECK(read(sock[rank][p], &c, 1) == 1 && c == 'b');
	return 0;
}

/* ---- GPU bytes ------------------------------------------------------------------------------ */

static CUdeviceptr dev(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

/* All n bytes at p are v? */
static int holds(const void *p, int v, size_t n)
{
	unsigned char *host = malloc(n);
	int good = cu.MemcpyAsync(dev(host), dev(p), n, stream) == CUDA_SUCCESS &&
		   cu.StreamSynchronize(stream) == CUDA_SUCCESS && host[0] == v &&
		   (n == 1 || memcmp(host, host + 1, n - 1) == 0);

	free(host);
	return good;
}

static int fill(void *p, int v, size_t n)
{
	CU(cu.MemsetD8Async(dev(p), (unsigned char)v, n, stream));
	CU(cu.StreamSynchronize(stream));
	return 0;
}

/* ---- All together ---------------------------------------------------------------------------- */

static int share(void)
{
	struct mem_handle *peers[MAX_RANKS] = {NULL};
	struct mem_span span;
	struct message m;
	size_t stride = (size_t)4 << 30;
	char *mine, *va;
	int fd;

	OK(ops->alloc(3 * G, (void **)&mine));
	CHECK(holds(mine, 0, 3 * G));
	CHECK(fill(mine, rank + 1, 3 * G) == 0);
	OK(ops->retain(mine + 64, G, &span));
	CHECK(span.n == 1 && span.offset == 64 && span.seg[0]->size == 3 * G);
	m = (struct message){span.seg[0]->uid, span.seg[0]->size, span.offset};
	for (int p = 0; p < nranks; p++) {
		if (p == rank)
			continue;
		OK(ops->export_fd(span.seg[0], &fd));
		CHECK(fd_send(sock[rank][p], fd, &m));
		close(fd);
	}
	OK(ops->reserve(stride * (size_t)nranks, stride, (void **)&va));
	for (int p = 0; p < nranks; p++) {
		if (p == rank) {
			peers[p] = span.seg[0];
		} else {
			CHECK((fd = fd_receive(sock[rank][p], &m)) >= 0);
			OK(ops->import_fd(fd, m.size, m.uid, &peers[p]));
		}
		OK(ops->map(va + (size_t)p * stride, peers[p]));
		OK(ops->set_access(va + (size_t)p * stride, peers[p]->size, 1, NULL));
	}
	for (int p = 0; p < nranks; p++)
		CHECK(holds(va + (size_t)p * stride, p + 1, 3 * G));
	CHECK(barrier() == 0);
	/* Everybody writes into everybody; the owner sees it by his own pointer. */
	for (int p = 0; p < nranks; p++)
		CHECK(fill(va + (size_t)p * stride + (size_t)rank * 4096, 100 + rank, 4096) == 0);
	CHECK(barrier() == 0);
	for (int p = 0; p < nranks; p++)
		CHECK(holds(mine + (size_t)p * 4096, 100 + p, 4096));
	/* An owner's memory lives as long as somebody maps it. */
	CHECK(barrier() == 0);
	OK(ops->free_(mine));
	ops->release(span.seg[0]);
	CHECK(barrier() == 0);
	for (int p = 0; p < nranks; p++)
		CHECK(holds(va + (size_t)p * stride + G, p + 1, G));
	for (int p = 0; p < nranks; p++) {
		OK(ops->unmap(va + (size_t)p * stride, peers[p]));
		if (p != rank)
			ops->release(peers[p]);
	}
	OK(ops->unreserve(va, stride * (size_t)nranks));
	return barrier();
}

/* ---- Alone ----------------------------------------------------------------------------------- */

/* The life of a window while a stream of this thread captures. */
static int capturing(void)
{
	CUstreamCaptureStatus status;
	struct mem_handle *h;
	struct mem_span span;
	CUgraph graph;
	CUstream s;
	void *p, *va;
	int fd;

	CU(cu.StreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CU(cu.StreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(ops->alloc(G, &p));
	OK(ops->retain(p, G, &span));
	OK(ops->export_fd(span.seg[0], &fd));
	OK(ops->import_fd(fd, G, span.seg[0]->uid, &h));
	OK(ops->reserve(G, 0, &va));
	OK(ops->map(va, h));
	OK(ops->set_access(va, G, 1, NULL));
	OK(ops->unmap(va, h));
	OK(ops->unreserve(va, G));
	ops->release(h);
	ops->release(span.seg[0]);
	OK(ops->free_(p));
	OK(ops->create(G, &h));
	ops->release(h);
	CU(cu.StreamIsCapturing(s, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	CU(cu.StreamEndCapture(s, &graph));
	CU(cu.GraphDestroy(graph));
	CU(cu.StreamDestroy(s));
	return 0;
}

/* Memory of others: two segments under one range; what cannot be shared. */
static int foreign(void)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, ops->device()},
	};
	CUmemAccessDesc rw = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle h[2];
	struct mem_span a, b;
	CUdeviceptr va, plain;
	void *host;
	int here;

	CU(cu.MemAddressReserve(&va, 3 * G, 0, 0, 0));
	for (int i = 0; i < 2; i++) {
		CU(cu.MemCreate(&h[i], (size_t)(i + 1) * G, &prop, 0));
		CU(cu.MemMap(va + (size_t)i * G, (size_t)(i + 1) * G, 0, h[i], 0));
		CU(cu.MemRelease(h[i]));
	}
	CU(cu.MemSetAccess(va, 3 * G, &rw, 1));
	OK(ops->retain((void *)(uintptr_t)(va + 4096), 2 * G, &a));
	CHECK(a.n == 2 && a.offset == 4096 && a.size == 3 * G && a.seg[1]->size == 2 * G);
	CHECK(a.seg[0]->device == ops->device());
	OK(ops->retain((void *)(uintptr_t)(va + G), 1, &b));
	CHECK(b.n == 1 && b.seg[0] == a.seg[1]);
	ops->release(a.seg[0]);
	ops->release(a.seg[1]);
	ops->release(b.seg[0]);
	CU(cu.MemUnmap(va, G));
	CU(cu.MemUnmap(va + G, 2 * G));
	CU(cu.MemAddressFree(va, 3 * G));

	CU(cu.MemAlloc(&plain, 4 << 20));
	CHECK(ops->retain((void *)(uintptr_t)plain, 4096, &a) == symcclInvalidUsage);
	CHECK(strstr(error_text(), "cudaMalloc") != NULL);
	CU(cu.MemFree(plain));
	CU(cu.MemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_PORTABLE));
	CHECK(ops->retain(host, 4096, &a) == symcclInvalidUsage);
	CU(cu.MemFreeHost(host));
	CHECK(ops->retain(&here, sizeof(here), &a) == symcclInvalidUsage);
	CHECK(ops->alloc((size_t)1 << 46, &host) == symcclSystemError);
	return 0;
}

static double us_since(uint64_t t0)
{
	return (double)(now_ns() - t0) / 1000;
}

/* Again and again: nothing is lost; and what it costs. */
static int cost(void)
{
	enum { ROUNDS = 20, ALLOC, RETAIN, EXPORT, IMPORT, RESERVE, MAP, ACCESS, UNMAP, FREE, N };
	static const char *const names[] = {[ALLOC] = "alloc",
		[RETAIN] = "retain",
		[EXPORT] = "export",
		[IMPORT] = "import",
		[RESERVE] = "reserve",
		[MAP] = "map",
		[ACCESS] = "set_access",
		[UNMAP] = "unmap",
		[FREE] = "free"};
	double us[N] = {0};
	size_t before, after, total, size = 16 * G;
	struct mem_handle *h;
	struct mem_span span;
	void *p, *va;
	uint64_t t;
	int fd;

	CU(cu.MemGetInfo(&before, &total));
#define TIMED(what, call) \
	do { \
		t = now_ns(); \
		OK(call); \
		us[what] += us_since(t); \
	} while (0)
	for (int i = 0; i < ROUNDS; i++) {
		TIMED(ALLOC, ops->alloc(size, &p));
		TIMED(RETAIN, ops->retain(p, size, &span));
		TIMED(EXPORT, ops->export_fd(span.seg[0], &fd));
		TIMED(IMPORT, ops->import_fd(fd, size, span.seg[0]->uid, &h));
		TIMED(RESERVE, ops->reserve(size, 0, &va));
		TIMED(MAP, ops->map(va, h));
		TIMED(ACCESS, ops->set_access(va, size, 1, NULL));
		TIMED(UNMAP, ops->unmap(va, h));
		OK(ops->unreserve(va, size));
		ops->release(h);
		ops->release(span.seg[0]);
		TIMED(FREE, ops->free_(p));
	}
	CU(cu.MemGetInfo(&after, &total));
	/* Other ranks may share this GPU: only a loss as large as the rounds' is one. */
	CHECK(after + ROUNDS / 2 * size > before);
	if (rank == 0)
		for (int i = ALLOC; i < N; i++)
			printf("%-10s %8.1f us (%zu MiB)\n", names[i], us[i] / ROUNDS, size >> 20);
	return 0;
}

static int rank_main(void)
{
	const char *why = ops->unusable();

	alarm(120);
	if (why != NULL) {
		printf("rank %d: %s\n", rank, why);
		return 77;
	}
	G = ops->granularity();
	OK(ops->bind_thread(rank % cuda_devices()->n));
	CU(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	if (rank == 0)
		printf("%d GPUs, granularity %zu, memory %zu, rdma %d\n", cuda_devices()->n, G,
			ops->capacity(), cuda_devices()->d[0].rdma);
	if (share() || capturing() || foreign() || barrier() || cost() || barrier())
		return 1;
	CU(cu.StreamDestroy(stream));
	return 0;
}

int main(int argc, char **argv)
{
	pid_t pid[MAX_RANKS];
	int worst = 0, status, pair[2];

	setenv("SYMCCL_DEBUG", "none", 0); /* refusals are part of the test */
	nranks = argc > 1 ? atoi(argv[1]) : 2;
	if (nranks < 1 || nranks > MAX_RANKS)
		return 2;
	for (int i = 0; i < nranks; i++)
		for (int j = 0; j < i; j++) {
			if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
				return 1;
			sock[i][j] = pair[0];
			sock[j][i] = pair[1];
		}
	for (rank = 0; rank < nranks; rank++) {
		fflush(stdout);
		pid[rank] = fork();
		if (pid[rank] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (int i = 0; i < nranks; i++)
				for (int j = 0; j < nranks; j++)
					if (i != j && i != rank)
						close(sock[i][j]);
			status = rank_main();
			fflush(stdout);
			_exit(status);
		}
	}
	for (int i = 0; i < nranks; i++)
		for (int j = 0; j < nranks; j++)
			if (i != j)
				close(sock[i][j]);
	for (int i = 0; i < nranks; i++) {
		waitpid(pid[i], &status, 0);
		if (WIFSIGNALED(status))
			printf("rank %d was ended by signal %d\n", i, WTERMSIG(status));
		status = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
		worst = worst == 1 || status == 1 ? 1 : MAX(worst, status);
	}
	printf("mem_gpu, %d ranks: %s\n", nranks,
		worst == 0    ? "passed"
		: worst == 77 ? "skipped"
			      : "FAILED");
	return worst;
}
