/*
 * Memory: one table of operations per backend, one to one with the CUDA driver's VMM calls.
 *
 * Every operation may be called from any thread; operations on one handle or one address range
 * must not overlap in time, except that handles are reference counted. All return symcclResult_t
 * and leave a sentence with fail(); on failure nothing has changed unless said.
 *
 * Fork, host memory: allocations are shared mappings, so parent and child go on seeing the same
 * bytes. Either may free its own mapping and handles; that does not touch the other's. The child's
 * new allocations carry another uid.proc.
 */
#ifndef MEM_H
#define MEM_H

#include <stddef.h>
#include <stdint.h>
#include "error.h"

/* Names one physical allocation among all processes of a node; never reused. {0,0}: none. */
struct mem_uid {
	uint64_t proc; /* random, per process */
	uint64_t seq;
};

/* One physical allocation, owned or imported. Private to its backend except this head. */
struct mem_handle {
	struct mem_uid uid; /* an import carries the owner's */
	size_t size;        /* multiple of the granularity */
	int refs;           /* atomic */
	int device;         /* the GPU it lies on, as this process counts; -1: none, or not known */
};

/* A user's range in terms of physical allocations: [0, n) in address order, without holes. Each is
 * a reference that the caller gives back with ops->release. */
#define MEM_SEGS_MAX 32
struct mem_span {
	int n;
	struct mem_handle *seg[MEM_SEGS_MAX];
	size_t offset; /* of the user's address in seg[0] */
	size_t size;   /* of all segments together */
};

struct mem_ops {
	const char *name; /* "host", "cuda" */
	symcclDeviceType_t type;

	/* NULL, or a constant sentence that says why this backend cannot be used here. May start
	 * the CUDA driver, never makes a context. */
	const char *(*unusable)(void);
	/* Nonzero when the calling thread works with this backend's devices already, so that
	 * symcclDeviceAuto means it: CUDA: it has a current context, whoever made that. Loads and
	 * starts nothing. Host: always. */
	int (*current)(void);
	/* The GPU that create, import_fd and set_access mean on the calling thread (its current
	 * one), by ordinal; host: -1. No failure: 0 when the thread has none. */
	int (*device)(void);
	/* Make that GPU the thread's current one; for threads of our own, before anything else.
	 * Host: does nothing. symcclInvalidArgument: no such GPU. */
	symcclResult_t (*bind_thread)(int device);
	/* Unit of size, offset and address for create, map and reserve: a power of two. */
	size_t (*granularity)(void);
	/* Memory a rank could use at most, for the stride: host: physical memory, or the cgroup's
	 * limit if that is less. */
	size_t (*capacity)(void);
	/* New zeroed physical memory, all pages present (may take long; no locks held). *h has one
	 * reference. symcclSystemError when memory or descriptors are exhausted: at once when it
	 * can be seen beforehand. Host: holds a descriptor until the last release. */
	symcclResult_t (*create)(size_t size, struct mem_handle **h);
	/* The allocations under a user's range. symcclInvalidUsage, with the reason, when that
	 * memory cannot be shared. Takes the allocation table's lock. */
	symcclResult_t (*retain)(const void *addr, size_t size, struct mem_span *span);
	/* A new descriptor for another process; the caller closes it. */
	symcclResult_t (*export_fd)(struct mem_handle *h, int *fd);
	/* The reverse: takes ownership of fd also on failure. size and uid are the exporter's; a
	 * size that the object does not have is symcclInvalidUsage (CUDA tells only when it is
	 * mapped). Host: so is an object that could shrink under the mapping. An import is mapped
	 * once: its descriptor is closed then, so that peers' windows do not fill the descriptor
	 * table. */
	symcclResult_t (*import_fd)(int fd, size_t size, struct mem_uid uid, struct mem_handle **h);
	/* Address space only. align: power of two, 0 = granularity. symcclSystemError when there is
	 * no room (RLIMIT_AS, a sanitizer, too many reservations). */
	symcclResult_t (*reserve)(size_t size, size_t align, void **va);
	symcclResult_t (*unreserve)(void *va, size_t size);
	/* Map all of h at va inside a reservation; not accessible before set_access on CUDA. Takes
	 * its own reference on h, which unmap gives back. */
	symcclResult_t (*map)(void *va, struct mem_handle *h);
	/* Make [va, va + size) readable and writable, and, if prefault is nonzero, its pages
	 * present in this process. May take long; looks at *stop (may be NULL) now and then and
	 * returns symcclRemoteError, without a sentence, when it is nonzero. On failure a part may
	 * be accessible until unmap. CUDA: for the current GPU, and those of the process's other
	 * ranks that reach it; always present. */
	symcclResult_t (*set_access)(void *va, size_t size, int prefault, const uint32_t *stop);
	/* Undo map (h as given there); the addresses become reserved again. */
	symcclResult_t (*unmap)(void *va, struct mem_handle *h);
	/* Drop one reference; the last one frees. h may be NULL. */
	void (*release)(struct mem_handle *h);
	/* symcclMemAlloc / symcclMemFree: create + reserve + map + set_access, entered in (removed
	 * from) the table that retain reads. free_: symcclInvalidArgument for a pointer alloc did
	 * not return; after any other failure it can be called again. */
	symcclResult_t (*alloc)(size_t size, void **ptr);
	symcclResult_t (*free_)(void *ptr);
	/* Nonzero when ptr lies in memory of this backend's alloc. */
	int (*owns)(const void *ptr);

	/* Multicast: an object whose addresses stand for the same offset in memory of each GPU of
	 * its team: stores go to all, loads of kernels reduce over them. Its handle is exported,
	 * mapped, made accessible (to the team's GPUs of this process), unmapped and released as
	 * memory is. In order: one process creates, the others import; each adds its GPUs; when
	 * *all* have been added, and not before, each maps it and binds its memory. Host: the calls
	 * fail with symcclInvalidUsage, "not supported". */

	/* Can that GPU take part? No failure. Does not block. Host: 0. */
	int (*multicast_able)(int device);
	/* A new object of size bytes for a team of ndevices GPUs, all different. symcclInvalidUsage
	 * when size is no multiple of what the driver wants; symcclUnhandledCudaError when the
	 * switch has no room. Does not wait for anybody. */
	symcclResult_t (*multicast_create)(size_t size, int ndevices, struct mem_handle **mc);
	/* Another process's; takes ownership of fd also on failure. size is the creator's. */
	symcclResult_t (*multicast_import)(int fd, size_t size, struct mem_handle **mc);
	/* Add one of this process's GPUs, for good: only release undoes it. Does not wait for the
	 * others. Not while another thread works with the handle. */
	symcclResult_t (*multicast_add)(struct mem_handle *mc, int device);
	/* Let offset in the object stand for all of h, memory of a GPU that this process added.
	 * BLOCKS in the driver, without a deadline, until all of the team's GPUs have been added;
	 * so does map. */
	symcclResult_t (*multicast_bind)(
		struct mem_handle *mc, size_t offset, struct mem_handle *h);
	/* Undo that (offset and h as given there), before h is released. */
	symcclResult_t (*multicast_unbind)(
		struct mem_handle *mc, size_t offset, const struct mem_handle *h);
};

extern const struct mem_ops mem_host;
extern const struct mem_ops mem_cuda;

/* The backend for a device type. fail()s when that backend is not usable here, with the reason.
 * Auto: SYMCCL_DEVICE; else CUDA on a thread with a current CUDA context, when CUDA is usable; else
 * host. So a program that has nothing to do with CUDA never loads or starts the driver, and one
 * that uses GPUs gets their memory on the threads that have chosen a GPU. A thread that has chosen
 * none (no cudaSetDevice, no runtime call so far) must ask for symcclDeviceCuda. */
symcclResult_t mem_select(symcclDeviceType_t type, const struct mem_ops **ops);
/* This process's random number, as in mem_uid.proc; never 0. A forked child has another. */
uint64_t mem_proc_uid(void);
/* A name for a new allocation, for backends. */
struct mem_uid mem_uid_next(void);
/* Grows with every free of symcclMemAlloc's memory: windows over it must be looked at again. Any
 * thread, one load. */
extern unsigned mem_nfrees; /* atomic */
static inline unsigned mem_frees(void)
{
	return __atomic_load_n(&mem_nfrees, __ATOMIC_ACQUIRE);
}
/* For backends: called when the memory is not found any more, before its addresses can be had by
 * anybody else. */
void mem_freed(void);

#endif
