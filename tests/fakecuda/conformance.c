/*
 * What symccl relies on in the CUDA driver, as return codes: passes on the double and on the real
 * driver. Makes multicast objects on the double only. Needs nothing but libcuda.so.1.
 *
 *   cuda_conformance [-v] [group...]     -v prints every call with its code
 *
 * WANT: that very code. REFUSE: any error (which one differs between drivers, -v shows it). SHOW:
 * printed only. STRICT: a mistake of the caller's that the driver lets pass and the double must
 * refuse, so that our tests see it; printed only on a driver. Every group is a process of its own,
 * since a GPU that is driven into a fault stays so. Exit: 0 passed, 1 a difference, 77 no driver or
 * no GPU.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "conformance.h"

struct driver cu;
int verbose, failures, calls, on_double;

static const char *name_of(CUresult r)
{
	const char *s = NULL;

	return cu.GetErrorName(r, &s) == CUDA_SUCCESS && s != NULL ? s : "?";
}

CUresult check(int line, const char *text, CUresult got, int want)
{
	int good = want == NONE || (want == ANY ? got != CUDA_SUCCESS : (int)got == want);

	calls++;
	if (!good) {
		failures++;
		printf("  DIFFERS line %d: %s gave %d %s, expected %s\n", line, text, (int)got,
			name_of(got), want == ANY ? "an error" : name_of((CUresult)want));
	} else if (verbose) {
		printf("  %3d: %-78.78s %d %s\n", line, text, (int)got, name_of(got));
	}
	return got;
}

size_t gran;
const CUmemAllocationProp prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
};
const CUmemAccessDesc rw = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

int open_gpu(void)
{
	CUcontext ctx;
	CUdevice dev;

	return OK(Init(0)) == 0 && OK(DeviceGet(&dev, 0)) == 0 &&
	       OK(DevicePrimaryCtxRetain(&ctx, dev)) == 0 && OK(CtxSetCurrent(ctx)) == 0 &&
	       OK(MemGetAllocationGranularity(
		       &gran, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) == 0;
}

int mem_open(struct mem *m, size_t n)
{
	m->size = n * gran;
	return OK(MemCreate(&m->h, m->size, &prop, 0)) == 0 &&
	       OK(MemAddressReserve(&m->va, m->size, 0, 0, 0)) == 0 &&
	       OK(MemMap(m->va, m->size, 0, m->h, 0)) == 0 &&
	       OK(MemSetAccess(m->va, m->size, &rw, 1)) == 0;
}

void mem_close(struct mem *m)
{
	OK(MemUnmap(m->va, m->size));
	OK(MemAddressFree(m->va, m->size));
	OK(MemRelease(m->h));
}

void fill(CUdeviceptr va, unsigned char v, size_t n)
{
	OK(MemsetD8Async(va, v, n, NULL));
	OK(StreamSynchronize(NULL));
}

int byte_at(CUdeviceptr va)
{
	unsigned char v = 0;

	OK(MemcpyAsync((CUdeviceptr)(uintptr_t)&v, va, 1, NULL));
	OK(StreamSynchronize(NULL));
	return v;
}

/* ---- Groups --------------------------------------------------------------------------------- */

static void group_start(void)
{
	CUcontext ctx, got;
	CUdeviceptr va;
	CUstream stream;
	CUdevice dev;
	unsigned int flags;
	int n, v, active;

	WANT(CUDA_ERROR_NOT_INITIALIZED, DeviceGetCount(&n));
	WANT(CUDA_ERROR_NOT_INITIALIZED, CtxGetCurrent(&ctx));
	WANT(CUDA_ERROR_INVALID_VALUE, Init(1));
	MUST(Init(0));
	OK(Init(0));
	OK(DeviceGetCount(&n));
	WANT(CUDA_ERROR_INVALID_DEVICE, DeviceGet(&dev, -1));
	WANT(CUDA_ERROR_INVALID_DEVICE, DeviceGet(&dev, n));
	MUST(DeviceGet(&dev, 0));
	OK(DeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, dev));
	THAT(v == 1);
	OK(DeviceGetAttribute(
		&v, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, dev));
	THAT(v == 1);
	OK(DeviceCanAccessPeer(&v, dev, dev));
	THAT(v == 0);
	/* The granularity is asked for before there is any context. */
	OK(MemGetAllocationGranularity(&gran, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	ctx = (CUcontext)&n;
	OK(CtxGetCurrent(&ctx));
	THAT(ctx == NULL);
	WANT(CUDA_ERROR_INVALID_CONTEXT, CtxGetDevice(&dev));
	WANT(CUDA_ERROR_INVALID_CONTEXT, CtxPopCurrent(&ctx));
	WANT(CUDA_ERROR_INVALID_CONTEXT, MemAlloc(&va, 4096));
	WANT(CUDA_ERROR_INVALID_CONTEXT, StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	SHOW(PointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096));
	OK(DevicePrimaryCtxGetState(0, &flags, &active));
	THAT(active == 0);
	MUST(DevicePrimaryCtxRetain(&ctx, 0));
	OK(DevicePrimaryCtxRetain(&got, 0));
	THAT(ctx == got);
	OK(DevicePrimaryCtxRelease(0));
	OK(CtxGetCurrent(&got));
	THAT(got == NULL);
	MUST(CtxPushCurrent(ctx));
	OK(CtxGetDevice(&dev));
	THAT(dev == 0);
	OK(CtxPopCurrent(&got));
	THAT(got == ctx);
	MUST(CtxSetCurrent(ctx));
	OK(CtxSynchronize());
	OK(CtxSetCurrent(NULL));
	OK(DevicePrimaryCtxRelease(0));
}

static void group_create(void)
{
	CUmemAllocationProp p = prop;
	CUmemGenericAllocationHandle h;
	size_t free0, total;

	if (!open_gpu())
		return;
	printf("  granularity %zu\n", gran);
	WANT(CUDA_ERROR_INVALID_VALUE, MemCreate(&h, gran + 4096, &prop, 0));
	WANT(CUDA_ERROR_INVALID_VALUE, MemCreate(&h, 0, &prop, 0));
	WANT(CUDA_ERROR_INVALID_VALUE, MemCreate(&h, gran, &prop, 1));
	WANT(CUDA_ERROR_INVALID_VALUE, MemCreate(NULL, gran, &prop, 0));
	p.type = CU_MEM_ALLOCATION_TYPE_INVALID;
	REFUSE(MemCreate(&h, gran, &p, 0));
	p = prop;
	p.location.id = 999;
	REFUSE(MemCreate(&h, gran, &p, 0));
	p = prop;
	p.location.type = CU_MEM_LOCATION_TYPE_INVALID;
	REFUSE(MemCreate(&h, gran, &p, 0));
	OK(MemGetInfo(&free0, &total));
	WANT(CUDA_ERROR_OUT_OF_MEMORY, MemCreate(&h, (total / gran + 1024) * gran, &prop, 0));
	MUST(MemCreate(&h, gran, &prop, 0));
	memset(&p, 0, sizeof(p));
	OK(MemGetAllocationPropertiesFromHandle(&p, h));
	THAT(p.type == prop.type && p.location.type == prop.location.type && p.location.id == 0);
	THAT((p.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0);
	OK(MemRelease(h));
}

static void group_map(void)
{
	CUmemGenericAllocationHandle h, g;
	CUdeviceptr va, big;
	CUmemAccessDesc bad = rw;

	if (!open_gpu())
		return;
	WANT(CUDA_ERROR_INVALID_VALUE, MemAddressReserve(&va, 0, 0, 0, 0));
	REFUSE(MemAddressReserve(&va, 1000, 0, 0, 0));
	WANT(CUDA_ERROR_INVALID_VALUE, MemAddressReserve(&va, gran, 3, 0, 0));
	REFUSE(MemAddressReserve(&va, (size_t)1 << 60, 0, 0, 0));
	MUST(MemAddressReserve(&big, 8 * gran, 64 * gran, 0, 0));
	THAT(big % (64 * gran) == 0);
	MUST(MemAddressReserve(&va, 4 * gran, 0, 0, 0));
	THAT(va % gran == 0);
	MUST(MemCreate(&h, 2 * gran, &prop, 0));
	MUST(MemCreate(&g, gran, &prop, 0));

	REFUSE(MemMap(va, 4 * gran, 0, h, 0)); /* larger than the memory */
	REFUSE(MemMap(va + 4096, 2 * gran, 0, h, 0));
	REFUSE(MemMap(va, gran + 4096, 0, h, 0));
	REFUSE(MemMap(va, 2 * gran, 0, h, 1));
	/* Over the end: the driver maps beyond the reservation, too. */
	if (STRICT(MemMap(va + 3 * gran, 2 * gran, 0, h, 0)) == CUDA_SUCCESS)
		OK(MemUnmap(va + 3 * gran, 2 * gran));
	STRICT(MemUnmap(va, 2 * gran)); /* nothing there yet */
	REFUSE(MemSetAccess(va, 2 * gran, &rw, 1));
	MUST(MemMap(va, 2 * gran, 0, h, 0));
	REFUSE(MemMap(va, 2 * gran, 0, h, 0)); /* again */
	REFUSE(MemMap(va + gran, gran, 0, g, 0));
	bad.location.id = 999;
	REFUSE(MemSetAccess(va, 2 * gran, &bad, 1));
	REFUSE(MemSetAccess(va, 4 * gran, &rw, 1)); /* not all of it is mapped */
	OK(MemSetAccess(va, 2 * gran, &rw, 1));
	OK(MemSetAccess(va, 2 * gran, &rw, 1));
	REFUSE(MemUnmap(va, gran)); /* a piece */
	REFUSE(MemUnmap(va + gran, gran));
	/* Two mappings side by side, access for both in one call. */
	MUST(MemMap(va + 2 * gran, gran, 0, g, 0));
	OK(MemSetAccess(va, 3 * gran, &rw, 1));
	fill(va, 7, 3 * gran);
	THAT(byte_at(va + 3 * gran - 1) == 7);
	/* The same memory elsewhere shows the same bytes; releasing the handle keeps what is
	 * mapped. */
	MUST(MemMap(big, 2 * gran, 0, h, 0));
	OK(MemSetAccess(big, 2 * gran, &rw, 1));
	fill(va + gran, 9, 1);
	THAT(byte_at(big + gran) == 9);
	OK(MemRelease(h));
	THAT(byte_at(big + gran) == 9);
	OK(MemUnmap(big, 2 * gran));
	THAT(byte_at(va + gran) == 9);
	OK(MemUnmap(va, 2 * gran));
	STRICT(MemUnmap(va, 2 * gran)); /* again */
	OK(MemUnmap(va + 2 * gran, gran));
	OK(MemRelease(g));
	REFUSE(MemAddressFree(va, 2 * gran)); /* a part */
	REFUSE(MemAddressFree(va + gran, 3 * gran));
	OK(MemAddressFree(va, 4 * gran));
	OK(MemAddressFree(big, 8 * gran));
}

static void group_retain(void)
{
	CUmemGenericAllocationHandle h[2], g;
	CUdeviceptr va, base;
	CUmemAllocationProp p;
	size_t size;
	int v, on_stack = 0;

	if (!open_gpu())
		return;
	MUST(MemAddressReserve(&va, 3 * gran, 0, 0, 0));
	MUST(MemCreate(&h[0], gran, &prop, 0));
	MUST(MemCreate(&h[1], 2 * gran, &prop, 0));
	REFUSE(MemRetainAllocationHandle(&g, (void *)(uintptr_t)va));
	MUST(MemMap(va, gran, 0, h[0], 0));
	MUST(MemMap(va + gran, 2 * gran, 0, h[1], 0));
	OK(MemSetAccess(va, 3 * gran, &rw, 1));
	/* The range of an address is that of its own mapping, also between neighbours. */
	OK(MemGetAddressRange(&base, &size, va + 100));
	THAT(base == va && size == gran);
	OK(MemGetAddressRange(&base, &size, va + 2 * gran + 1));
	THAT(base == va + gran && size == 2 * gran);
	/* The retained handle is the one that was mapped. */
	OK(MemRetainAllocationHandle(&g, (void *)(uintptr_t)(va + gran - 1)));
	THAT(g == h[0]);
	OK(MemRelease(g));
	OK(MemRetainAllocationHandle(&g, (void *)(uintptr_t)(va + gran)));
	THAT(g == h[1]);
	OK(MemRelease(g));
	/* Also when the maker has released his. */
	OK(MemRelease(h[0]));
	OK(MemRetainAllocationHandle(&g, (void *)(uintptr_t)va));
	THAT(g == h[0]);
	OK(MemGetAllocationPropertiesFromHandle(&p, g));
	OK(MemRelease(g));
	v = 0;
	OK(PointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, va + gran));
	THAT(v == CU_MEMORYTYPE_DEVICE);
	OK(PointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, va));
	THAT(v == 0);
	OK(PointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, va));
	THAT(v == 0);
	WANT(CUDA_ERROR_INVALID_VALUE, PointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
					       (CUdeviceptr)(uintptr_t)&on_stack));
	REFUSE(MemGetAddressRange(&base, &size, (CUdeviceptr)(uintptr_t)&on_stack));
	OK(MemUnmap(va, gran));
	OK(MemUnmap(va + gran, 2 * gran));
	OK(MemRelease(h[1]));
	OK(MemAddressFree(va, 3 * gran));
}

static void group_plain(void)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr va, other;
	CUipcMemHandle ipc;
	int v;

	if (!open_gpu())
		return;
	WANT(CUDA_ERROR_INVALID_VALUE, MemAlloc(&va, 0));
	MUST(MemAlloc(&va, 3 << 20));
	REFUSE(MemRetainAllocationHandle(&h, (void *)(uintptr_t)va));
	OK(PointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, va));
	THAT(v == 1);
	OK(PointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, va));
	THAT(v == CU_MEMORYTYPE_DEVICE);
	OK(IpcGetMemHandle(&ipc, va));
	REFUSE(IpcOpenMemHandle(&other, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	fill(va, 5, 3 << 20);
	THAT(byte_at(va + (3 << 20) - 1) == 5);
	OK(MemFree(va));
	REFUSE(MemFree(va));
}

static void group_host(void)
{
	char *p = aligned_alloc(4096, 8192);
	CUdeviceptr va;
	void *q;
	int v;

	if (!open_gpu())
		return;
	MUST(MemHostAlloc(&q, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
	OK(MemHostGetDevicePointer(&va, q, 0));
	OK(PointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)q));
	THAT(v == CU_MEMORYTYPE_HOST);
	fill(va, 3, 4096);
	THAT(((char *)q)[4095] == 3);
	OK(MemFreeHost(q));
	WANT(CUDA_ERROR_INVALID_VALUE, MemHostGetDevicePointer(&va, p, 0));
	WANT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, MemHostUnregister(p));
	MUST(MemHostRegister(p, 8192, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
	WANT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, MemHostRegister(p, 8192, 0));
	OK(MemHostGetDevicePointer(&va, p + 4096, 0));
	fill(va, 4, 1);
	THAT(p[4096] == 4);
	OK(MemHostUnregister(p));
	free(p);
}

static void group_export(void)
{
	CUmemAllocationProp p = prop;
	CUmemGenericAllocationHandle h, g, imported;
	CUdeviceptr va;
	int fd = -1, pipes[2];

	if (!open_gpu())
		return;
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	MUST(MemCreate(&h, gran, &prop, 0));
	MUST(MemCreate(&g, gran, &p, 0));
	REFUSE(MemExportToShareableHandle(&fd, g, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	REFUSE(MemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1));
	REFUSE(MemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_NONE, 0));
	MUST(MemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	THAT(fd >= 0);
	/* The same process may import; both handles see the same bytes. */
	MUST(MemImportFromShareableHandle(
		&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	MUST(MemAddressReserve(&va, 2 * gran, 0, 0, 0));
	MUST(MemMap(va, gran, 0, h, 0));
	MUST(MemMap(va + gran, gran, 0, imported, 0));
	OK(MemSetAccess(va, 2 * gran, &rw, 1));
	fill(va, 6, gran);
	THAT(byte_at(va + gran + 5) == 6);
	OK(MemGetAllocationPropertiesFromHandle(&p, imported));
	THAT(p.location.type == CU_MEM_LOCATION_TYPE_DEVICE && p.location.id == 0);
	OK(MemUnmap(va, gran));
	OK(MemUnmap(va + gran, gran));
	/* An import of less than was exported cannot be mapped larger than it is. */
	REFUSE(MemMap(va, 2 * gran, 0, imported, 0));
	OK(MemRelease(imported));
	OK(MemRelease(h));
	OK(MemRelease(g));
	OK(MemAddressFree(va, 2 * gran));
	/* Not ours, and not a descriptor at all. */
	THAT(pipe(pipes) == 0);
	REFUSE(MemImportFromShareableHandle(
		&g, (void *)(intptr_t)pipes[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	REFUSE(MemImportFromShareableHandle(
		&g, (void *)(intptr_t)999, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

static int fd_send(int sock, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	return sendmsg(sock, &msg, 0) == 1;
}

static int fd_receive(int sock)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	int fd = -1;

	if (recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&msg) != NULL)
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

/* The peer: imports, checks, changes, keeps the memory after the owner has gone from it. */
static void peer(int sock)
{
	CUmemGenericAllocationHandle h;
	CUipcMemHandle ipc;
	CUdeviceptr va;
	char byte;
	int fd;

	fd = fd_receive(sock);
	THAT(fd >= 0);
	if (!open_gpu())
		return;
	MUST(MemImportFromShareableHandle(
		&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	MUST(MemAddressReserve(&va, gran, 0, 0, 0));
	MUST(MemMap(va, gran, 0, h, 0));
	MUST(MemSetAccess(va, gran, &rw, 1));
	THAT(byte_at(va + 10) == 0x21);
	fill(va, 0x22, gran);
	THAT(write(sock, "a", 1) == 1);
	THAT(read(sock, &byte, 1) == 1); /* the owner has unmapped and released */
	THAT(byte_at(va + 10) == 0x22);
	OK(MemUnmap(va, gran));
	OK(MemRelease(h));
	OK(MemAddressFree(va, gran));
	THAT(read(sock, &ipc, sizeof(ipc)) == sizeof(ipc));
	if (OK(IpcOpenMemHandle(&va, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) == 0) {
		THAT(byte_at(va) == 0x33);
		OK(IpcCloseMemHandle(va));
	}
	THAT(write(sock, "b", 1) == 1);
}

static void group_processes(void)
{
	CUdeviceptr plain;
	CUipcMemHandle ipc;
	struct mem m;
	char byte;
	int sock[2], fd, status;
	pid_t pid;

	THAT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) == 0);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		alarm(30);
		close(sock[0]);
		peer(sock[1]);
		fflush(stdout);
		_exit(failures != 0);
	}
	close(sock[1]);
	if (open_gpu() && mem_open(&m, 1)) {
		fill(m.va, 0x21, gran);
		MUST(MemExportToShareableHandle(
			&fd, m.h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		THAT(fd_send(sock[0], fd));
		close(fd);
		THAT(read(sock[0], &byte, 1) == 1);
		THAT(byte_at(m.va + gran - 1) == 0x22);
		mem_close(&m);
		THAT(write(sock[0], "c", 1) == 1);
		MUST(MemAlloc(&plain, 4096));
		fill(plain, 0x33, 4096);
		OK(IpcGetMemHandle(&ipc, plain));
		THAT(write(sock[0], &ipc, sizeof(ipc)) == sizeof(ipc));
		THAT(read(sock[0], &byte, 1) == 1);
		OK(MemFree(plain));
	}
	close(sock[0]);
	THAT(waitpid(pid, &status, 0) == pid && status == 0);
}

/* ---- Faults: in processes of their own; a crash counts as refused ---------------------------- */

static void fault_no_access(void)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr va;
	CUresult r;

	if (!open_gpu())
		return;
	MUST(MemCreate(&h, gran, &prop, 0));
	MUST(MemAddressReserve(&va, gran, 0, 0, 0));
	MUST(MemMap(va, gran, 0, h, 0));
	r = SHOW(MemsetD8Async(va, 1, gran, NULL)); /* mapped, access not set */
	if (r == CUDA_SUCCESS)
		REFUSE(StreamSynchronize(NULL));
}

static void fault_unmapped(void)
{
	struct mem m;
	CUresult r;

	if (!open_gpu() || !mem_open(&m, 1))
		return;
	OK(MemUnmap(m.va, m.size));
	r = SHOW(MemsetD8Async(m.va, 1, gran, NULL));
	if (r == CUDA_SUCCESS)
		REFUSE(StreamSynchronize(NULL));
}

static void fault_released_twice(void)
{
	CUmemGenericAllocationHandle h;

	if (!open_gpu())
		return;
	MUST(MemCreate(&h, gran, &prop, 0));
	OK(MemRelease(h));
	REFUSE(MemRelease(h));
}

static void fault_used_after_release(void)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr va;

	if (!open_gpu())
		return;
	MUST(MemCreate(&h, gran, &prop, 0));
	MUST(MemAddressReserve(&va, gran, 0, 0, 0));
	OK(MemRelease(h));
	REFUSE(MemMap(va, gran, 0, h, 0));
}

static void fault_freed_while_mapped(void)
{
	struct mem m;

	if (!open_gpu() || !mem_open(&m, 1))
		return;
	REFUSE(MemAddressFree(m.va, m.size));
}

static const struct {
	const char *name;
	void (*fn)(void);
	int may_crash;
} groups[] = {
	{"start", group_start, 0},
	{"create", group_create, 0},
	{"map", group_map, 0},
	{"retain", group_retain, 0},
	{"plain", group_plain, 0},
	{"host", group_host, 0},
	{"export", group_export, 0},
	{"processes", group_processes, 0},
	{"streams", group_streams, 0},
	{"capture", group_capture, 0},
	{"graph", group_graph, 0},
	{"graph edges", group_graph_edges, 0},
	{"threads", group_threads, 0},
	{"library", group_library, 0},
	{"multicast", group_multicast, 0},
	{"fault-no-access", fault_no_access, 1},
	{"fault-unmapped", fault_unmapped, 1},
	{"fault-released-twice", fault_released_twice, 1},
	{"fault-used-after-release", fault_used_after_release, 1},
	{"fault-freed-while-mapped", fault_freed_while_mapped, 1},
};

static int load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	void *fn;

	if (lib == NULL) {
		printf("skipped: %s\n", dlerror());
		return 77;
	}
#define CU_SYM(name, symbol, version, need, params) \
	fn = dlsym(lib, #symbol); \
	if (fn == NULL) { \
		printf("libcuda.so.1 has no " #symbol "\n"); \
		return 1; \
	} \
	memcpy(&cu.name, &fn, sizeof(fn));
#include "cuda/driver_syms.def"
#undef CU_SYM
	on_double = dlsym(lib, "fakecuda_leaks") != NULL;
	return 0;
}

/* Is there a GPU? Asked in a process of its own, since the driver does not survive fork. */
static int gpu_missing(void)
{
	int n = 0, status;
	pid_t pid = fork();

	if (pid == 0)
		_exit(cu.Init(0) != CUDA_SUCCESS || cu.DeviceGetCount(&n) != CUDA_SUCCESS ||
			n == 0);
	return waitpid(pid, &status, 0) != pid || status != 0;
}

/* 0: passed. */
static int group_run(int i)
{
	int status;
	pid_t pid;

	printf("%s\n", groups[i].name);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		alarm(60);
		groups[i].fn();
		printf("  %d checks, %d differ\n", calls, failures);
		fflush(stdout);
		_exit(failures != 0);
	}
	if (waitpid(pid, &status, 0) != pid)
		return 1;
	if (WIFSIGNALED(status))
		printf("  ended by signal %d%s\n", WTERMSIG(status),
			groups[i].may_crash ? ", which counts as refused" : "");
	return WIFSIGNALED(status) ? !groups[i].may_crash : WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
	int bad = 0, wanted = 0, rc;

	rc = load();
	if (rc != 0)
		return rc;
	if (gpu_missing()) {
		printf("skipped: no GPU\n");
		return 77;
	}
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "-v") == 0)
			verbose = 1;
		else
			wanted = 1;
	for (int i = 0; i < (int)(sizeof(groups) / sizeof(groups[0])); i++) {
		int take = !wanted;

		for (int j = 1; j < argc; j++)
			take |= strcmp(argv[j], groups[i].name) == 0;
		if (take && group_run(i) != 0) {
			bad++;
			printf("%s FAILED\n", groups[i].name);
		}
	}
	printf("%d groups failed\n", bad);
	return bad != 0;
}
