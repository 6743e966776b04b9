/*
 * GPU memory by the driver's VMM calls. A handle is a cuMemCreate'd (or imported, or retained)
 * allocation; it remembers its GPU. The caller's GPU is the one current on the thread.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "mem/cuda_handle.h"
#include "util.h"

/* A handle mapped by ops->map: set_access must know where the memory lies. */
struct mapping {
	CUdeviceptr va;
	struct gpu_handle *h;
	struct mapping *next;
};
/* Addresses of one handle: reserved, maybe mapped. */
struct view {
	CUdeviceptr va; /* 0: none */
	size_t size;
	int mapped;
};
struct block { /* of ops->alloc */
	struct view view;
	struct gpu_handle *h;
	struct block *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the lists; no driver call under it */
static struct mapping *mappings;
static struct block *blocks;
static uint64_t used_devices; /* atomic bit set: GPUs that ranks of this process work on */

static void device_use(int device)
{
	__atomic_fetch_or(&used_devices, UINT64_C(1) << device, __ATOMIC_RELAXED);
}

/* cu_enter for calls that make the current GPU one of the process's. */
static symcclResult_t enter_use(struct cu_scope *s)
{
	TRY(cu_enter(s));
	device_use(s->device);
	return symcclSuccess;
}

/* ---- Backend -------------------------------------------------------------------------------- */

static int device_current(void)
{
	CUdevice dev = 0;

	if (cuda_open() != NULL || cu.CtxGetDevice(&dev) != CUDA_SUCCESS)
		return 0;
	return dev;
}

static symcclResult_t bind_thread(int device)
{
	TRY(cu_bind_thread(device));
	device_use(device);
	return symcclSuccess;
}

/* One unit for all GPUs, so that ranks of one process can share address ranges. */
static size_t granularity(void)
{
	const struct cuda_devices *all = cuda_devices();
	size_t g = 4096;

	for (int i = 0; i < all->n; i++)
		g = MAX(g, all->d[i].granularity);
	return g;
}

static size_t capacity(void)
{
	const struct cuda_devices *all = cuda_devices();
	size_t n = 0;

	for (int i = 0; i < all->n; i++)
		n = MAX(n, all->d[i].memory);
	return n;
}

/* ---- Access --------------------------------------------------------------------------------- */

/* Give current, and every other GPU the process uses that reaches GPU owner (-1: not known, then
 * all), access to one mapping. team: of a multicast object, then just those; else 0. */
static CUresult access_give(CUdeviceptr va, size_t size, int current, int owner, uint64_t team)
{
	uint64_t used = __atomic_load_n(&used_devices, __ATOMIC_RELAXED);
	CUmemAccessDesc desc[CUDA_MAX_DEVICES];
	size_t n = 0;
	CUresult r;

	for (int i = 0; i < cuda_devices()->n; i++) {
		int can = 1;

		if (team != 0 ? (team >> i & 1) == 0 : i != current && (used >> i & 1) == 0)
			continue;
		if (i != current && i != owner && owner >= 0) {
			r = cu.DeviceCanAccessPeer(&can, i, owner);
			if (r != CUDA_SUCCESS)
				return r;
		}
		if (!can)
			continue;
		desc[n].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		desc[n].location.id = i;
		desc[n].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		n++;
	}
	return cu.MemSetAccess(va, size, desc, n);
}

/* Take back what view_open made; after a failure it can be called again. */
static CUresult view_close(struct view *v)
{
	CUresult r;

	if (v->mapped) {
		if ((r = cu.MemUnmap(v->va, v->size)) != CUDA_SUCCESS)
			return r;
		v->mapped = 0;
	}
	if (v->va != 0) {
		if ((r = cu.MemAddressFree(v->va, v->size)) != CUDA_SUCCESS)
			return r;
		v->va = 0;
	}
	return CUDA_SUCCESS;
}

/* Map h somewhere, accessible; nothing remains on failure. */
static CUresult view_open(struct view *v, const struct gpu_handle *h, int current)
{
	CUresult r;

	*v = (struct view){.size = h->head.size};
	r = cu.MemAddressReserve(&v->va, v->size, granularity(), 0, 0);
	if (r != CUDA_SUCCESS) {
		v->va = 0;
		return r;
	}
	r = cu.MemMap(v->va, v->size, 0, h->drv, 0);
	if (r == CUDA_SUCCESS) {
		v->mapped = 1;
		r = access_give(v->va, v->size, current, h->head.device, 0);
	}
	if (r != CUDA_SUCCESS)
		view_close(v);
	return r;
}

/* Zero on a stream of its own: the user's streams may be capturing or busy for long. */
static CUresult view_zero(const struct view *v)
{
	CUstream stream;
	CUresult r, d;

	if ((r = cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING)) != CUDA_SUCCESS)
		return r;
	r = cu.MemsetD8Async(v->va, 0, v->size, stream);
	/* Also when that failed, and once more when the driver reported an older error instead of
	 * waiting: the caller will unmap what is being written. */
	d = cu.StreamSynchronize(stream);
	if (d != CUDA_SUCCESS)
		cu.StreamSynchronize(stream);
	if (r == CUDA_SUCCESS)
		r = d;
	d = cu.StreamDestroy(stream);
	return r != CUDA_SUCCESS ? r : d;
}

/* New zeroed memory, mapped. */
static symcclResult_t memory_new(int device, size_t size, struct gpu_handle **h, struct view *v)
{
	CUresult r;

	TRY(gpu_handle_create(device, size, h));
	r = view_open(v, *h, device);
	if (r == CUDA_SUCCESS) {
		r = view_zero(v);
		if (r != CUDA_SUCCESS)
			view_close(v);
	}
	if (r != CUDA_SUCCESS) {
		gpu_handle_release(&(*h)->head);
		return cu_fail(r, "cannot map and zero %zu bytes on GPU %d", size, device);
	}
	return symcclSuccess;
}

static symcclResult_t create_in(int device, size_t size, struct mem_handle **out)
{
	struct gpu_handle *h;
	struct view v;
	CUresult r;

	TRY(memory_new(device, size, &h, &v));
	r = view_close(&v);
	if (r != CUDA_SUCCESS) {
		view_close(&v);
		gpu_handle_release(&h->head);
		return cu_fail(r, "cannot unmap new memory of GPU %d", device);
	}
	*out = &h->head;
	return symcclSuccess;
}

static symcclResult_t create(size_t size, struct mem_handle **out)
{
	struct cu_scope s;
	symcclResult_t ret;

	TRY(enter_use(&s));
	if (size == 0 || size % granularity() != 0)
		ret = fail(symcclInvalidArgument, "%zu is no multiple of the granularity %zu", size,
			granularity());
	else
		ret = create_in(s.device, size, out);
	cu_leave(&s);
	return ret;
}

static symcclResult_t retain(const void *addr, size_t size, struct mem_span *out)
{
	CUdeviceptr p = (CUdeviceptr)(uintptr_t)addr;
	struct mem_span span = {0};
	struct cu_scope s;
	symcclResult_t ret;

	TRY(cu_enter(&s));
	ret = gpu_span_retain(p, p + size, &span);
	if (ret == symcclSuccess)
		*out = span;
	else
		for (int i = 0; i < span.n; i++)
			gpu_handle_release(span.seg[i]);
	cu_leave(&s);
	return ret;
}

/* ---- Between processes ---------------------------------------------------------------------- */

static symcclResult_t export_fd(struct mem_handle *m, int *fd)
{
	struct gpu_handle *h = (struct gpu_handle *)m;
	struct cu_scope s;
	int new_fd = -1;
	CUresult r;

	TRY(cu_enter(&s));
	r = cu.MemExportToShareableHandle(
		&new_fd, h->drv, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	cu_leave(&s);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "cannot export %zu bytes of GPU %d", m->size, m->device);
	if (fcntl(new_fd, F_SETFD, FD_CLOEXEC) != 0) {
		close(new_fd);
		return fail(
			symcclSystemError, "cannot set close-on-exec on an exported handle: %m");
	}
	*fd = new_fd;
	return symcclSuccess;
}

static symcclResult_t import_in(int fd, size_t size, struct mem_uid uid, struct mem_handle **out)
{
	CUmemAllocationProp prop;
	CUmemGenericAllocationHandle drv;
	struct gpu_handle *h;
	int device = -1;
	CUresult r;

	r = cu.MemImportFromShareableHandle(
		&drv, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "cannot import a peer's GPU memory");
	/* Memory of a GPU that is not visible here has no ordinal; it is mapped all the same. */
	if (cu.MemGetAllocationPropertiesFromHandle(&prop, drv) == CUDA_SUCCESS &&
		prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop.location.id >= 0 &&
		prop.location.id < cuda_devices()->n)
		device = prop.location.id;
	h = gpu_handle_new(drv, size, device);
	if (h == NULL) {
		cu.MemRelease(drv);
		return fail(symcclSystemError, "out of host memory for a GPU allocation");
	}
	h->head.uid = uid;
	*out = &h->head;
	return symcclSuccess;
}

static symcclResult_t import_fd(int fd, size_t size, struct mem_uid uid, struct mem_handle **out)
{
	struct cu_scope s;
	symcclResult_t ret;

	ret = enter_use(&s);
	if (ret == symcclSuccess) {
		ret = import_in(fd, size, uid, out);
		cu_leave(&s);
	}
	close(fd);
	return ret;
}

/* ---- Address space -------------------------------------------------------------------------- */

static symcclResult_t reserve(size_t size, size_t align, void **va)
{
	struct cu_scope s;
	CUdeviceptr p;
	CUresult r;

	TRY(cu_enter(&s));
	r = cu.MemAddressReserve(&p, size, MAX(align, granularity()), 0, 0);
	cu_leave(&s);
	if (r == CUDA_ERROR_OUT_OF_MEMORY)
		return fail(symcclSystemError,
			"no %zu bytes of GPU address space are left (SYMCCL_WIN_STRIDE?)", size);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "cannot reserve %zu bytes of GPU address space", size);
	*va = (void *)(uintptr_t)p;
	return symcclSuccess;
}

static symcclResult_t unreserve(void *va, size_t size)
{
	struct cu_scope s;
	CUresult r;

	TRY(cu_enter(&s));
	r = cu.MemAddressFree((CUdeviceptr)(uintptr_t)va, size);
	cu_leave(&s);
	return r == CUDA_SUCCESS
		       ? symcclSuccess
		       : cu_fail(r, "cannot free %zu bytes of GPU addresses at %p", size, va);
}

static symcclResult_t map(void *va, struct mem_handle *m)
{
	struct mapping *e = malloc(sizeof(*e));
	struct cu_scope s;
	symcclResult_t ret;
	CUresult r;

	if (e == NULL)
		return fail(symcclSystemError, "out of host memory for a GPU mapping");
	e->va = (CUdeviceptr)(uintptr_t)va;
	e->h = (struct gpu_handle *)m;
	ret = cu_enter(&s);
	if (ret == symcclSuccess) {
		r = cu.MemMap(e->va, m->size, 0, e->h->drv, 0);
		cu_leave(&s);
		if (r != CUDA_SUCCESS)
			ret = cu_fail(r, "cannot map %zu bytes of GPU memory at %p", m->size, va);
	}
	if (ret != symcclSuccess) {
		free(e);
		return ret;
	}
	__atomic_fetch_add(&m->refs, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&lock);
	e->next = mappings;
	mappings = e;
	pthread_mutex_unlock(&lock);
	return symcclSuccess;
}

/* The mapping that begins at va: size, owner and team (by value, for use without the lock). */
static int mapping_find(CUdeviceptr va, size_t *size, int *owner, uint64_t *team)
{
	struct mapping *e;

	pthread_mutex_lock(&lock);
	for (e = mappings; e != NULL && e->va != va; e = e->next)
		;
	if (e != NULL) {
		*size = e->h->head.size;
		*owner = e->h->head.device;
		*team = e->h->team;
	}
	pthread_mutex_unlock(&lock);
	return e != NULL;
}

static symcclResult_t access_range(CUdeviceptr va, size_t size, int current, const uint32_t *stop)
{
	CUdeviceptr end = va + size;
	uint64_t team;
	size_t n;
	int owner;
	CUresult r;

	for (; va < end; va += n) {
		if (stop != NULL && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0)
			return symcclRemoteError;
		if (!mapping_find(va, &n, &owner, &team) || n > end - va)
			return fail(symcclInvalidArgument,
				"no GPU memory is mapped as a whole at %p", (void *)(uintptr_t)va);
		r = access_give(va, n, current, owner, team);
		if (r != CUDA_SUCCESS && team != 0)
			return cu_fail(r, "GPU %d gets no access to a multicast object", current);
		if (r != CUDA_SUCCESS)
			return cu_fail(r,
				"GPU %d gets no access to memory of GPU %d (without P2P ranks "
				"count as being on different nodes, and several nodes are not "
				"supported yet)",
				current, owner);
	}
	return symcclSuccess;
}

static symcclResult_t set_access(void *va, size_t size, int prefault, const uint32_t *stop)
{
	struct cu_scope s;
	symcclResult_t ret;

	(void)prefault;
	TRY(enter_use(&s));
	ret = access_range((CUdeviceptr)(uintptr_t)va, size, s.device, stop);
	cu_leave(&s);
	return ret;
}

static symcclResult_t unmap(void *va, struct mem_handle *m)
{
	struct mapping **p, *e;
	struct cu_scope s;
	CUresult r;

	TRY(cu_enter(&s));
	r = cu.MemUnmap((CUdeviceptr)(uintptr_t)va, m->size);
	cu_leave(&s);
	if (r != CUDA_SUCCESS)
		return cu_fail(r, "cannot unmap %zu bytes of GPU memory at %p", m->size, va);
	pthread_mutex_lock(&lock);
	for (p = &mappings; *p != NULL && (*p)->va != (CUdeviceptr)(uintptr_t)va; p = &(*p)->next)
		;
	e = *p;
	if (e != NULL)
		*p = e->next;
	pthread_mutex_unlock(&lock);
	free(e);
	gpu_handle_release(m);
	return symcclSuccess;
}

/* ---- symcclMemAlloc ------------------------------------------------------------------------- */

static symcclResult_t alloc(size_t size, void **ptr)
{
	size_t rounded = align_up(size, granularity());
	struct block *b = calloc(1, sizeof(*b));
	struct cu_scope s;
	symcclResult_t ret;

	if (b == NULL)
		return fail(symcclSystemError, "out of host memory for a GPU allocation");
	ret = rounded >= size && size > 0
		      ? enter_use(&s)
		      : fail(symcclInvalidArgument, "a size of %zu bytes cannot be allocated",
				size);
	if (ret == symcclSuccess) {
		ret = memory_new(s.device, rounded, &b->h, &b->view);
		cu_leave(&s);
	}
	if (ret != symcclSuccess) {
		free(b);
		return ret;
	}
	pthread_mutex_lock(&lock);
	b->next = blocks;
	blocks = b;
	pthread_mutex_unlock(&lock);
	*ptr = (void *)(uintptr_t)b->view.va;
	return symcclSuccess;
}

/* Take the block of ptr out of the list; NULL: not ours. */
static struct block *block_take(const void *ptr)
{
	struct block **p, *b;

	pthread_mutex_lock(&lock);
	for (p = &blocks; *p != NULL && (*p)->view.va != (CUdeviceptr)(uintptr_t)ptr;
		p = &(*p)->next)
		;
	b = *p;
	if (b != NULL)
		*p = b->next;
	pthread_mutex_unlock(&lock);
	return b;
}

static symcclResult_t free_(void *ptr)
{
	struct block *b = block_take(ptr);
	struct cu_scope s;
	symcclResult_t ret;
	CUresult r;

	if (b == NULL)
		return fail(symcclInvalidArgument, "%p was not returned by symcclMemAlloc", ptr);
	mem_freed();
	ret = cu_enter(&s);
	if (ret == symcclSuccess) {
		r = view_close(&b->view);
		cu_leave(&s);
		if (r != CUDA_SUCCESS)
			ret = cu_fail(r, "cannot unmap the GPU memory at %p", ptr);
	}
	if (ret != symcclSuccess) {
		pthread_mutex_lock(&lock);
		b->next = blocks;
		blocks = b;
		pthread_mutex_unlock(&lock);
		return ret;
	}
	gpu_handle_release(&b->h->head);
	free(b);
	return symcclSuccess;
}

static int owns(const void *ptr)
{
	CUdeviceptr p = (CUdeviceptr)(uintptr_t)ptr;
	const struct block *b;

	pthread_mutex_lock(&lock);
	for (b = blocks; b != NULL; b = b->next)
		if (p >= b->view.va && p - b->view.va < b->view.size)
			break;
	pthread_mutex_unlock(&lock);
	return b != NULL;
}

const struct mem_ops mem_cuda = {
	.name = "cuda",
	.type = symcclDeviceCuda,
	.unusable = cuda_open,
	.current = cuda_current,
	.device = device_current,
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
	.release = gpu_handle_release,
	.alloc = alloc,
	.free_ = free_,
	.owns = owns,
	.multicast_able = gpu_multicast_able,
	.multicast_create = gpu_multicast_create,
	.multicast_import = gpu_multicast_import,
	.multicast_add = gpu_multicast_add,
	.multicast_bind = gpu_multicast_bind,
	.multicast_unbind = gpu_multicast_unbind,
};
