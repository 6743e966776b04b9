/* The double: plain memory, legacy IPC, pointers, host memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "fake.h"

static void *at(CUdeviceptr va)
{
	return (void *)(uintptr_t)va;
}

/* ---- Plain memory --------------------------------------------------------------------------- */

CUresult cuMemAlloc_v2(CUdeviceptr *va, size_t size)
{
	int fd, device;
	struct range *r;
	void *p;

	ENTRY(NEED_CTX | UNSAFE);
	if (va == NULL || size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	device = current()->device;
	fake_lock();
	if (size > fake.memory - fake.used[device])
		return done(CUDA_ERROR_OUT_OF_MEMORY);
	fd = backing("malloc", device, size);
	p = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		if (fd >= 0)
			close(fd);
		return done(CUDA_ERROR_OUT_OF_MEMORY);
	}
	r = range_add(ALLOCATED, (CUdeviceptr)(uintptr_t)p, size);
	r->fd = fd;
	r->device = device;
	fake.used[device] += size;
	*va = r->va;
	return done(CUDA_SUCCESS);
}

CUresult cuMemFree_v2(CUdeviceptr va)
{
	struct range *r;

	ENTRY_LATE(NEED_CTX | UNSAFE);
	if (va == 0)
		return late;
	fake_lock();
	r = range_at(va, ALLOCATED);
	if (r == NULL)
		return done(CUDA_ERROR_INVALID_VALUE);
	munmap(at(va), r->size);
	close(r->fd);
	fake.used[r->device] -= r->size;
	range_remove(r);
	return done(late);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	ENTRY(NEED_CTX);
	*total = fake.memory;
	*free_bytes = fake.memory - fake.used[current()->device];
	return CUDA_SUCCESS;
}

/* ---- Legacy IPC: {pid, descriptor, size, device} of the owner -------------------------------- */

struct ipc {
	pid_t pid;
	int fd, device;
	size_t size;
};

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr va)
{
	struct ipc ipc;
	struct range *r;

	ENTRY(NEED_CTX | UNSAFE);
	fake_lock();
	r = range_around(va, 1u << ALLOCATED);
	if (handle == NULL || r == NULL)
		return done(CUDA_ERROR_INVALID_VALUE);
	memset(&ipc, 0, sizeof(ipc));
	ipc.pid = getpid();
	ipc.fd = r->fd;
	ipc.device = r->device;
	ipc.size = r->size;
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &ipc, sizeof(ipc));
	return done(CUDA_SUCCESS);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *va, CUipcMemHandle handle, unsigned int flags)
{
	struct ipc ipc;
	struct range *r;
	char path[64];
	void *p;
	int fd;

	ENTRY(NEED_CTX | UNSAFE);
	memcpy(&ipc, &handle, sizeof(ipc));
	if (va == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	if (ipc.pid == getpid()) /* not in the exporting process */
		return CUDA_ERROR_INVALID_CONTEXT;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)ipc.pid, ipc.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	p = fd < 0 ? MAP_FAILED : mmap(NULL, ipc.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		if (fd >= 0)
			close(fd);
		return CUDA_ERROR_INVALID_VALUE;
	}
	fake_lock();
	r = range_add(IPC, (CUdeviceptr)(uintptr_t)p, ipc.size);
	r->fd = fd;
	r->device = ipc.device;
	*va = r->va;
	return done(CUDA_SUCCESS);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr va)
{
	struct range *r;

	ENTRY_LATE(NEED_CTX | UNSAFE);
	fake_lock();
	r = range_at(va, IPC);
	if (r == NULL)
		return done(CUDA_ERROR_INVALID_VALUE);
	munmap(at(va), r->size);
	close(r->fd);
	range_remove(r);
	return done(late);
}

/* ---- Pointers ------------------------------------------------------------------------------- */

static CUresult attribute(void *value, CUpointer_attribute attr, struct range *r, CUdeviceptr va)
{
	int host = (HOST_KINDS >> r->kind & 1) != 0, number = 0;

	switch (attr) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		number = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		number = host ? 0 : r->kind == MAPPED ? r->phys->prop.location.id : r->device;
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		number = r->kind == ALLOCATED;
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		number = r->kind == MAPPED ? (int)r->phys->prop.requestedHandleTypes : 0;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		number = 1;
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		va = attr == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ? r->va : va;
		memcpy(value, &va, sizeof(va));
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		memcpy(value, &r->size, sizeof(r->size));
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		memcpy(value, &r->id, sizeof(r->id));
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (!host)
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(value, &va, sizeof(va));
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	memcpy(value, &number, sizeof(number));
	return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attr, CUdeviceptr va)
{
	struct range *r;

	ENTRY(NEED_CTX);
	fake_lock();
	r = range_around(va, DEVICE_KINDS | HOST_KINDS);
	return done(value == NULL || r == NULL ? CUDA_ERROR_INVALID_VALUE
					       : attribute(value, attr, r, va));
}

CUresult cuPointerGetAttributes(
	unsigned int n, CUpointer_attribute *attrs, void **values, CUdeviceptr va)
{
	struct range *r;

	ENTRY(NEED_CTX);
	fake_lock();
	r = range_around(va, DEVICE_KINDS | HOST_KINDS);
	for (unsigned int i = 0; i < n; i++)
		if (r != NULL)
			attribute(values[i], attrs[i], r, va);
		else
			memset(values[i], 0, sizeof(int));
	return done(CUDA_SUCCESS);
}

/* ---- Host memory ---------------------------------------------------------------------------- */

CUresult cuMemHostAlloc(void **ptr, size_t size, unsigned int flags)
{
	void *p;

	ENTRY(NEED_CTX | UNSAFE);
	if (ptr == NULL || size == 0 || flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fake_lock();
	range_add(HOST_ALLOCATED, (CUdeviceptr)(uintptr_t)p, size);
	*ptr = p;
	return done(CUDA_SUCCESS);
}

CUresult cuMemFreeHost(void *ptr)
{
	struct range *r;

	ENTRY_LATE(NEED_CTX | UNSAFE);
	fake_lock();
	r = range_at((CUdeviceptr)(uintptr_t)ptr, HOST_ALLOCATED);
	if (r == NULL)
		return done(CUDA_ERROR_INVALID_VALUE);
	munmap(ptr, r->size);
	range_remove(r);
	return done(late);
}

CUresult cuMemHostRegister_v2(void *ptr, size_t size, unsigned int flags)
{
	CUdeviceptr va = (CUdeviceptr)(uintptr_t)ptr;

	ENTRY(NEED_CTX | UNSAFE);
	if (ptr == NULL || size == 0 || flags > 15)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	if (range_around(va, HOST_KINDS) != NULL || range_around(va + size - 1, HOST_KINDS) != NULL)
		return done(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	range_add(HOST_REGISTERED, va, size);
	return done(CUDA_SUCCESS);
}

CUresult cuMemHostUnregister(void *ptr)
{
	struct range *r;

	ENTRY_LATE(NEED_CTX | UNSAFE);
	fake_lock();
	r = range_at((CUdeviceptr)(uintptr_t)ptr, HOST_REGISTERED);
	if (r == NULL)
		return done(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	range_remove(r);
	return done(late);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *va, void *ptr, unsigned int flags)
{
	ENTRY(NEED_CTX);
	fake_lock();
	if (va == NULL || flags != 0 ||
		range_around((CUdeviceptr)(uintptr_t)ptr, HOST_KINDS) == NULL)
		return done(CUDA_ERROR_INVALID_VALUE);
	*va = (CUdeviceptr)(uintptr_t)ptr;
	return done(CUDA_SUCCESS);
}
