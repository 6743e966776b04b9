/*
 * Multicast objects of the CUDA driver as mem_handles. Only the calls that are theirs; mapping,
 * exporting and releasing are those of memory.
 */
#include <unistd.h>
#include "mem/cuda_handle.h"
#include "util.h"

int gpu_multicast_able(int device)
{
	int can = 0;

	if (cuda_open() != NULL || device < 0 || device >= cuda_devices()->n)
		return 0;
	return cu.DeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
		       cuda_devices()->d[device].dev) == CUDA_SUCCESS &&
	       can;
}

/* The record for a driver handle, which it takes over also on failure. */
static symcclResult_t handle_take(
	CUmemGenericAllocationHandle drv, size_t size, struct mem_handle **out)
{
	struct gpu_handle *h = gpu_handle_new(drv, size, -1);

	if (h == NULL) {
		cu.MemRelease(drv);
		return fail(symcclSystemError, "out of host memory for a multicast object");
	}
	h->multicast = 1;
	*out = &h->head;
	return symcclSuccess;
}

static symcclResult_t create_in(size_t size, int ndevices, struct mem_handle **out)
{
	CUmulticastObjectProp prop = {
		.numDevices = (unsigned)ndevices,
		.size = size,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	};
	CUmemGenericAllocationHandle drv;
	size_t unit;
	CUresult r;

	r = cu.MulticastGetGranularity(&unit, &prop, CU_MULTICAST_GRANULARITY_MINIMUM);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "cannot ask for the granularity of multicast objects");
	if (size % unit != 0)
		return fail(symcclInvalidUsage,
			"%zu bytes are no multiple of the multicast granularity %zu", size, unit);
	r = cu.MulticastCreate(&drv, &prop);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "cannot make a multicast object of %zu bytes for %d GPUs", size,
			ndevices);
	return handle_take(drv, size, out);
}

symcclResult_t gpu_multicast_create(size_t size, int ndevices, struct mem_handle **out)
{
	struct cu_scope s;
	symcclResult_t ret;

	TRY(cu_enter(&s));
	ret = create_in(size, ndevices, out);
	cu_leave(&s);
	return ret;
}

symcclResult_t gpu_multicast_import(int fd, size_t size, struct mem_handle **out)
{
	CUmemGenericAllocationHandle drv;
	struct cu_scope s;
	symcclResult_t ret;
	CUresult r;

	ret = cu_enter(&s);
	if (ret == symcclSuccess) {
		r = cu.MemImportFromShareableHandle(
			&drv, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
		ret = r == CUDA_SUCCESS ? handle_take(drv, size, out)
					: cu_fail(r, "cannot import a multicast object");
		cu_leave(&s);
	}
	close(fd);
	return ret;
}

symcclResult_t gpu_multicast_add(struct mem_handle *m, int device)
{
	struct gpu_handle *h = (struct gpu_handle *)m;
	struct cu_scope s;
	CUresult r;

	TRY(cu_enter(&s));
	r = cu.MulticastAddDevice(h->drv, cuda_devices()->d[device].dev);
	cu_leave(&s);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "cannot add GPU %d to a multicast object", device);
	h->team |= UINT64_C(1) << device;
	return symcclSuccess;
}

symcclResult_t gpu_multicast_bind(struct mem_handle *m, size_t offset, struct mem_handle *mem)
{
	struct gpu_handle *h = (struct gpu_handle *)m;
	struct cu_scope s;
	CUresult r;

	TRY(cu_enter(&s));
	r = cu.MulticastBindMem(h->drv, offset, ((struct gpu_handle *)mem)->drv, 0, mem->size, 0);
	cu_leave(&s);
	return r == CUDA_SUCCESS
		       ? symcclSuccess
		       : cu_fail(r, "cannot bind %zu bytes of GPU %d to a multicast object",
				 mem->size, mem->device);
}

symcclResult_t gpu_multicast_unbind(
	struct mem_handle *m, size_t offset, const struct mem_handle *mem)
{
	struct gpu_handle *h = (struct gpu_handle *)m;
	struct cu_scope s;
	CUresult r;

	TRY(cu_enter(&s));
	r = cu.MulticastUnbind(h->drv, cuda_devices()->d[mem->device].dev, offset, mem->size);
	cu_leave(&s);
	return r == CUDA_SUCCESS
		       ? symcclSuccess
		       : cu_fail(r, "cannot unbind GPU %d's memory from a multicast object",
				 mem->device);
}
