/* GPU allocations as mem_handles (private to src/mem/cuda*.c). */
#ifndef MEM_CUDA_HANDLE_H
#define MEM_CUDA_HANDLE_H

#include "cuda/driver.h"
#include "mem/mem.h"

struct gpu_handle {
	struct mem_handle head;
	CUmemGenericAllocationHandle drv;
	int multicast; /* not memory, but a multicast object */
	uint64_t team; /* of that: GPUs that this process has added, as bits */
	struct gpu_handle *next;
};

/* A record with one reference that owns drv; the caller may still change uid. NULL: out of memory,
 * drv is still the caller's. */
struct gpu_handle *gpu_handle_new(CUmemGenericAllocationHandle drv, size_t size, int device);
/* New physical memory on a GPU; not zeroed. */
symcclResult_t gpu_handle_create(int device, size_t size, struct gpu_handle **out);
/* ops->release. */
void gpu_handle_release(struct mem_handle *m);
/* Append the allocations under [p, end) to an empty span, a reference each; on failure those
 * appended so far are the caller's to release. Within cu_enter. */
symcclResult_t gpu_span_retain(CUdeviceptr p, CUdeviceptr end, struct mem_span *span);

/* ops->multicast_* (cuda_multicast.c). */
int gpu_multicast_able(int device);
symcclResult_t gpu_multicast_create(size_t size, int ndevices, struct mem_handle **out);
symcclResult_t gpu_multicast_import(int fd, size_t size, struct mem_handle **out);
symcclResult_t gpu_multicast_add(struct mem_handle *m, int device);
symcclResult_t gpu_multicast_bind(struct mem_handle *m, size_t offset, struct mem_handle *mem);
symcclResult_t gpu_multicast_unbind(
	struct mem_handle *m, size_t offset, const struct mem_handle *mem);

#endif
