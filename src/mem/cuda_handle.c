/*
 * GPU allocations as mem_handles: one record per driver handle, found again by that handle, so that
 * an allocation has one uid however it is reached.
 */
#include <pthread.h>
#include <stdlib.h>
#include "mem/cuda_handle.h"
#include "log.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the list; no driver call under it */
static struct gpu_handle *handles;

struct gpu_handle *gpu_handle_new(CUmemGenericAllocationHandle drv, size_t size, int device)
{
	struct gpu_handle *h = calloc(1, sizeof(*h));

	if (h == NULL)
		return NULL;
	h->head.uid = mem_uid_next();
	h->head.size = size;
	h->head.refs = 1;
	h->head.device = device;
	h->drv = drv;
	pthread_mutex_lock(&lock);
	h->next = handles;
	handles = h;
	pthread_mutex_unlock(&lock);
	return h;
}

static void driver_release(CUmemGenericAllocationHandle drv)
{
	CUresult r = cu.MemRelease(drv);

	if (r != CUDA_SUCCESS)
		log_warn(LOG_MEM, "cuMemRelease reports error %d", (int)r);
}

void gpu_handle_release(struct mem_handle *m)
{
	struct gpu_handle *h = (struct gpu_handle *)m, **p;
	struct cu_scope s;
	int entered;

	if (m == NULL || __atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	pthread_mutex_lock(&lock);
	for (p = &handles; *p != h; p = &(*p)->next)
		;
	*p = h->next;
	pthread_mutex_unlock(&lock);
	entered = cu_enter(&s) == symcclSuccess;
	driver_release(h->drv);
	if (entered)
		cu_leave(&s);
	free(h);
}

/* A reference unless the last one is just being dropped. */
static int handle_hold(struct gpu_handle *h)
{
	int n = __atomic_load_n(&h->head.refs, __ATOMIC_RELAXED);

	while (n > 0)
		if (__atomic_compare_exchange_n(
			    &h->head.refs, &n, n + 1, 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			return 1;
	return 0;
}

symcclResult_t gpu_handle_create(int device, size_t size, struct gpu_handle **out)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
	};
	CUmemGenericAllocationHandle drv;
	CUresult r;

	prop.allocFlags.gpuDirectRDMACapable = cuda_devices()->d[device].rdma != 0;
	r = cu.MemCreate(&drv, size, &prop, 0);
	if (r == CUDA_ERROR_OUT_OF_MEMORY)
		return fail(
			symcclSystemError, "GPU %d has no %zu bytes of memory left", device, size);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "cannot allocate %zu bytes on GPU %d", size, device);
	*out = gpu_handle_new(drv, size, device);
	if (*out == NULL) {
		driver_release(drv);
		return fail(symcclSystemError, "out of host memory for a GPU allocation");
	}
	return symcclSuccess;
}

static symcclResult_t refuse(const void *addr, const char *what)
{
	return fail(symcclInvalidUsage,
		"the memory at %p cannot be shared: it is %s; take symcclMemAlloc, or cuMemCreate "
		"with "
		"file descriptors",
		addr, what);
}

/* Is this memory of cuMemCreate? Says what else it is. */
static symcclResult_t segment_check(CUdeviceptr p)
{
	const void *addr = (const void *)(uintptr_t)p;
	CUmemorytype type = 0;
	int legacy = 0;
	CUresult r;

	r = cu.PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p);
	if (r == CUDA_ERROR_INVALID_VALUE)
		return refuse(addr, "not known to CUDA");
	if (r == CUDA_SUCCESS && type != CU_MEMORYTYPE_DEVICE)
		return refuse(addr, "host memory");
	if (r == CUDA_SUCCESS)
		r = cu.PointerGetAttribute(
			&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "cannot ask what lies at %p", addr);
	if (legacy)
		return refuse(addr, "of cudaMalloc");
	return symcclSuccess;
}

/* The record for a driver handle that was just retained; consumes that on success. */
static symcclResult_t handle_of(
	CUmemGenericAllocationHandle drv, const void *addr, size_t size, struct gpu_handle **out)
{
	CUmemAllocationProp prop;
	struct gpu_handle *h;
	int device = -1;
	CUresult r;

	pthread_mutex_lock(&lock);
	for (h = handles; h != NULL; h = h->next)
		if (h->drv == drv && handle_hold(h))
			break;
	pthread_mutex_unlock(&lock);
	if (h != NULL) {
		if (h->head.size != size) {
			gpu_handle_release(&h->head);
			return refuse(addr, "only a part of its allocation");
		}
		driver_release(drv); /* h has its own */
		*out = h;
		return symcclSuccess;
	}
	r = cu.MemGetAllocationPropertiesFromHandle(&prop, drv);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "cannot read the properties of the allocation at %p", addr);
	if ((prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0)
		return refuse(addr, "not exportable as a file descriptor");
	if (prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		device = prop.location.id;
	*out = gpu_handle_new(drv, size, device);
	return *out != NULL ? symcclSuccess
			    : fail(symcclSystemError, "out of host memory for a GPU allocation");
}

/* The allocation under p and where its mapping begins. */
static symcclResult_t segment_retain(CUdeviceptr p, CUdeviceptr *base, struct gpu_handle **h)
{
	void *addr = (void *)(uintptr_t)p;
	CUmemGenericAllocationHandle drv;
	symcclResult_t ret;
	size_t size;
	CUresult r;

	TRY(segment_check(p));
	if ((r = cu.MemGetAddressRange(base, &size, p)) != CUDA_SUCCESS)
		return cu_fail(r, "cannot find the allocation at %p", addr);
	r = cu.MemRetainAllocationHandle(&drv, addr);
	if (r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_NOT_SUPPORTED)
		return refuse(addr, "of a memory pool, or managed");
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "cannot retain the allocation at %p", addr);
	ret = handle_of(drv, addr, size, h);
	if (ret != symcclSuccess)
		driver_release(drv);
	return ret;
}

symcclResult_t gpu_span_retain(CUdeviceptr p, CUdeviceptr end, struct mem_span *span)
{
	struct gpu_handle *h = NULL;
	CUdeviceptr base = 0;

	while (span->n == 0 || p < end) {
		if (span->n == MEM_SEGS_MAX)
			return fail(symcclInvalidUsage,
				"the buffer spans more than %d allocations: register it in pieces",
				MEM_SEGS_MAX);
		TRY(segment_retain(p, &base, &h));
		if (span->n == 0)
			span->offset = (size_t)(p - base);
		span->seg[span->n++] = &h->head;
		span->size += h->head.size;
		p = base + h->head.size;
	}
	return symcclSuccess;
}
