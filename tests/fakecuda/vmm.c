/* The double: virtual memory, and the table of all address ranges. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fake.h"

static struct phys *all_phys;
static struct range *ranges;
static unsigned long long next_id = 0x1000;

static void *at(CUdeviceptr va)
{
	return (void *)(uintptr_t)va;
}

/* ---- Tables --------------------------------------------------------------------------------- */

struct phys *phys_of(CUmemGenericAllocationHandle id)
{
	struct phys *p;

	for (p = all_phys; p != NULL && (p->id != id || p->refs == 0); p = p->next)
		;
	return p;
}

static void phys_drop(struct phys *p)
{
	struct phys **q;

	if (p->refs > 0 || p->maps > 0)
		return;
	for (q = &all_phys; *q != p; q = &(*q)->next)
		;
	*q = p->next;
	if (!p->imported)
		fake.used[p->prop.location.id] -= p->size;
	if (p->multicast != NULL)
		multicast_drop(p->multicast);
	close(p->fd);
	free(p);
}

struct phys *phys_new(int fd, size_t size, const CUmemAllocationProp *prop, int imported)
{
	struct phys *p = calloc(1, sizeof(*p));

	p->id = next_id++;
	p->fd = fd;
	p->size = size;
	p->prop = *prop;
	p->refs = 1;
	p->imported = imported;
	p->next = all_phys;
	all_phys = p;
	return p;
}

struct range *range_add(enum range_kind kind, CUdeviceptr va, size_t size)
{
	struct range *r = calloc(1, sizeof(*r));

	r->kind = kind;
	r->va = va;
	r->size = size;
	r->fd = -1;
	r->id = next_id++;
	r->next = ranges;
	ranges = r;
	return r;
}

void range_remove(struct range *r)
{
	struct range **q;

	for (q = &ranges; *q != r; q = &(*q)->next)
		;
	*q = r->next;
	free(r);
}

struct range *range_around(CUdeviceptr va, unsigned int kinds)
{
	struct range *r;

	for (r = ranges; r != NULL; r = r->next)
		if ((kinds >> r->kind & 1) != 0 && va >= r->va && va - r->va < r->size)
			return r;
	return NULL;
}

struct range *range_at(CUdeviceptr va, enum range_kind kind)
{
	struct range *r = range_around(va, 1u << kind);

	return r != NULL && r->va == va ? r : NULL;
}

static int overlaps_mapping(CUdeviceptr va, size_t size)
{
	for (struct range *r = ranges; r != NULL; r = r->next)
		if (r->kind == MAPPED && va < r->va + r->size && r->va < va + size)
			return 1;
	return 0;
}

int memory_ok(CUdeviceptr p, size_t n, int device)
{
	CUdeviceptr end = p + n;
	struct range *r;

	if (n != 0 && p == 0)
		return 0;
	while (p < end) {
		r = range_around(p, DEVICE_KINDS);
		if (r == NULL)
			return range_around(p, 1u << RESERVED) == NULL;
		if (r->kind == MAPPED && (r->access >> device & 1) == 0)
			return 0;
		p = r->va + r->size;
	}
	return 1;
}

int memory_device(CUdeviceptr p)
{
	struct range *r = range_around(p, DEVICE_KINDS);

	if (r == NULL)
		return -1;
	return r->kind == MAPPED ? r->phys->prop.location.id : r->device;
}

int memory_open(char *text, size_t len, size_t *pos)
{
	static const char *const names[] = {"reservations", "mappings", "allocations",
		"IPC mappings", "host allocations", "host registrations"};
	int count[6] = {0}, total = 0, handles = 0;

	for (struct range *r = ranges; r != NULL; r = r->next)
		count[r->kind]++;
	for (struct phys *p = all_phys; p != NULL; p = p->next)
		handles += p->refs;
	for (int i = 0; i < 6; i++) {
		total += count[i];
		if (count[i] != 0 && *pos < len)
			*pos += (size_t)snprintf(
				text + *pos, len - *pos, "%d %s, ", count[i], names[i]);
	}
	if (handles != 0 && *pos < len)
		*pos += (size_t)snprintf(text + *pos, len - *pos, "%d handles, ", handles);
	return total + handles;
}

/* ---- Physical memory ------------------------------------------------------------------------ */

static CUresult prop_check(const CUmemAllocationProp *prop)
{
	if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
		prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.id < 0 || prop->location.id >= fake.n)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!fake.vmm || prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC)
		return CUDA_ERROR_NOT_SUPPORTED;
	if ((prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(
	size_t *size, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
	CUresult r;

	ENTRY(NEED_INIT);
	(void)option;
	if (size == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = prop_check(prop)) != CUDA_SUCCESS)
		return r;
	*size = GRANULARITY;
	return CUDA_SUCCESS;
}

int backing(const char *kind, int device, size_t size)
{
	char name[64], junk[64];
	int fd;

	snprintf(name, sizeof(name), "fakecuda-%s-%d", kind, device);
	fd = memfd_create(name, MFD_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) {
		close(fd);
		return -1;
	}
	/* New memory holds what was there before; here and there is enough. */
	memset(junk, 0xa5, sizeof(junk));
	for (size_t i = 0; fd >= 0 && i + sizeof(junk) <= size; i += 1 << 16)
		if (pwrite(fd, junk, sizeof(junk), (off_t)i) != sizeof(junk))
			break;
	return fd;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t size, const CUmemAllocationProp *prop,
	unsigned long long flags)
{
	CUresult r;
	int fd;

	ENTRY(NEED_INIT | UNSAFE);
	if (h == NULL || flags != 0 || size == 0 || size % GRANULARITY != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = prop_check(prop)) != CUDA_SUCCESS)
		return r;
	fake_lock();
	if (size > fake.memory - fake.used[prop->location.id])
		return done(CUDA_ERROR_OUT_OF_MEMORY);
	fd = backing(
		prop->requestedHandleTypes != 0 ? "shared" : "private", prop->location.id, size);
	if (fd < 0)
		return done(CUDA_ERROR_OUT_OF_MEMORY);
	fake.used[prop->location.id] += size;
	*h = phys_new(fd, size, prop, 0)->id;
	return done(CUDA_SUCCESS);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle h)
{
	struct phys *p;

	ENTRY_LATE(NEED_INIT | UNSAFE);
	fake_lock();
	p = phys_of(h);
	if (p == NULL)
		return done(CUDA_ERROR_INVALID_VALUE);
	p->refs--;
	phys_drop(p);
	return done(late);
}

CUresult cuMemGetAllocationPropertiesFromHandle(
	CUmemAllocationProp *prop, CUmemGenericAllocationHandle h)
{
	struct phys *p;

	ENTRY(NEED_INIT);
	fake_lock();
	p = phys_of(h);
	if (p == NULL || prop == NULL || p->multicast != NULL)
		return done(CUDA_ERROR_INVALID_VALUE);
	*prop = p->prop;
	return done(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle h,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	struct phys *p;
	int fd;

	ENTRY(NEED_INIT | UNSAFE);
	fake_lock();
	p = phys_of(h);
	if (p == NULL || shareable == NULL || flags != 0 ||
		type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
		(p->prop.requestedHandleTypes & type) == 0)
		return done(CUDA_ERROR_INVALID_VALUE);
	fd = fcntl(p->fd, F_DUPFD, 3);
	if (fd < 0)
		return done(CUDA_ERROR_OUT_OF_MEMORY);
	memcpy(shareable, &fd, sizeof(fd));
	return done(CUDA_SUCCESS);
}

#define FD_MULTICAST (-2)
/* What a descriptor of ours is: its device, FD_MULTICAST, or -1. */
static int fd_device(int fd)
{
	char path[64], name[128];
	ssize_t n;
	int device;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, name, sizeof(name) - 1);
	if (n < 0)
		return -1;
	name[n] = '\0';
	if (strncmp(name, "/memfd:fakecuda-multicast", 25) == 0)
		return FD_MULTICAST;
	return sscanf(name, "/memfd:fakecuda-shared-%d", &device) == 1 ? device : -1;
}

CUresult cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *h, void *shareable, CUmemAllocationHandleType type)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
	};
	int fd = (int)(intptr_t)shareable, copy;
	struct stat st;

	ENTRY(NEED_CTX | UNSAFE);
	if (h == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	prop.location.id = fd_device(fd);
	if (prop.location.id == FD_MULTICAST) {
		fake_lock();
		return done(multicast_import(fd, h));
	}
	if (prop.location.id < 0 || fstat(fd, &st) != 0)
		return CUDA_ERROR_UNKNOWN;
	fake_lock();
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (copy < 0)
		return done(CUDA_ERROR_OUT_OF_MEMORY);
	*h = phys_new(copy, (size_t)st.st_size, &prop, 1)->id;
	return done(CUDA_SUCCESS);
}

/* ---- Address space -------------------------------------------------------------------------- */

CUresult cuMemAddressReserve(
	CUdeviceptr *va, size_t size, size_t align, CUdeviceptr hint, unsigned long long flags)
{
	char *p, *q;

	ENTRY(NEED_INIT | UNSAFE);
	(void)hint;
	if (va == NULL || size == 0 || size % GRANULARITY != 0 || (align & (align - 1)) != 0 ||
		flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	align = align < GRANULARITY ? GRANULARITY : align;
	if (size + align < size)
		return CUDA_ERROR_OUT_OF_MEMORY;
	p = mmap(NULL, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	q = (char *)(((uintptr_t)p + align - 1) & ~(align - 1));
	if (q > p)
		munmap(p, (size_t)(q - p));
	munmap(q + size, (size_t)(p + align - q));
	fake_lock();
	range_add(RESERVED, (CUdeviceptr)(uintptr_t)q, size);
	*va = (CUdeviceptr)(uintptr_t)q;
	return done(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr va, size_t size)
{
	struct range *r;

	ENTRY(NEED_INIT | UNSAFE);
	fake_lock();
	r = range_at(va, RESERVED);
	if (r == NULL || r->size != size || overlaps_mapping(va, size))
		return done(CUDA_ERROR_INVALID_VALUE);
	munmap(at(va), size);
	range_remove(r);
	return done(CUDA_SUCCESS);
}

/* Over the end of the reservation the driver maps as well, into what is not ours: refused here. */
CUresult cuMemMap(CUdeviceptr va, size_t size, size_t offset, CUmemGenericAllocationHandle h,
	unsigned long long flags)
{
	struct range *r;
	struct phys *p;

	ENTRY(NEED_INIT | UNSAFE);
	fake_lock();
	p = phys_of(h);
	r = range_around(va, 1u << RESERVED);
	if (p != NULL && (size > p->size || size % GRANULARITY != 0))
		return done(CUDA_ERROR_NOT_SUPPORTED);
	if (p == NULL || r == NULL || offset != 0 || flags != 0 || size == 0 ||
		va % GRANULARITY != 0 || size > r->size - (va - r->va) ||
		overlaps_mapping(va, size) ||
		(p->multicast != NULL && !multicast_complete(p->multicast)))
		return done(CUDA_ERROR_INVALID_VALUE);
	if (mmap(at(va), size, PROT_NONE, MAP_SHARED | MAP_FIXED, p->fd, 0) == MAP_FAILED)
		return done(CUDA_ERROR_OUT_OF_MEMORY);
	r = range_add(MAPPED, va, size);
	r->phys = p;
	p->maps++;
	return done(CUDA_SUCCESS);
}

/* Where nothing is mapped the driver does nothing and reports success; here it is refused, since an
 * unmap too many is a mistake of ours. */
CUresult cuMemUnmap(CUdeviceptr va, size_t size)
{
	struct range *r;
	struct phys *p;

	ENTRY(NEED_INIT | UNSAFE);
	fake_lock();
	r = range_at(va, MAPPED);
	if (r == NULL || r->size != size)
		return done(CUDA_ERROR_INVALID_VALUE);
	mmap(at(va), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		0);
	p = r->phys;
	p->maps--;
	phys_drop(p);
	range_remove(r);
	return done(CUDA_SUCCESS);
}

static CUresult access_check(struct range *r, const CUmemAccessDesc *desc, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		int d = desc[i].location.id;

		if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			return CUDA_ERROR_INVALID_VALUE;
		if (d < 0 || d >= fake.n)
			return CUDA_ERROR_INVALID_VALUE;
		if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
			desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
			desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
			return CUDA_ERROR_INVALID_VALUE;
		if (r->phys->multicast != NULL) {
			if (multicast_access(r->phys->multicast, d) != CUDA_SUCCESS)
				return CUDA_ERROR_INVALID_DEVICE;
			continue;
		}
		if (d != r->phys->prop.location.id && !fake.p2p[d][r->phys->prop.location.id])
			return CUDA_ERROR_INVALID_DEVICE;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr va, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	CUdeviceptr p, end = va + size;
	struct range *r;
	CUresult ret;

	ENTRY(NEED_INIT | UNSAFE);
	fake_lock();
	if (desc == NULL || count == 0 || size == 0)
		return done(CUDA_ERROR_INVALID_VALUE);
	for (p = va; p < end; p += r->size) {
		r = range_at(p, MAPPED);
		if (r == NULL || r->size > end - p)
			return done(CUDA_ERROR_INVALID_VALUE);
		if ((ret = access_check(r, desc, count)) != CUDA_SUCCESS)
			return done(ret);
	}
	for (p = va; p < end; p += r->size) {
		r = range_at(p, MAPPED);
		for (size_t i = 0; i < count; i++) {
			r->access &= ~(1u << desc[i].location.id);
			if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
				r->access |= 1u << desc[i].location.id;
		}
		mprotect(at(p), r->size, r->access != 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
	}
	return done(CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *h, void *va)
{
	struct range *r;

	ENTRY(NEED_INIT);
	fake_lock();
	r = range_around((CUdeviceptr)(uintptr_t)va, 1u << MAPPED);
	if (h == NULL || r == NULL)
		return done(CUDA_ERROR_INVALID_VALUE);
	r->phys->refs++;
	*h = r->phys->id;
	return done(CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr va)
{
	struct range *r;

	ENTRY(NEED_CTX);
	fake_lock();
	r = range_around(va, DEVICE_KINDS | HOST_KINDS);
	if (r == NULL)
		return done(CUDA_ERROR_NOT_FOUND);
	if (base != NULL)
		*base = r->va;
	if (size != NULL)
		*size = r->size;
	return done(CUDA_SUCCESS);
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr va, size_t size,
	CUmemRangeHandleType type, unsigned long long flags)
{
	struct range *r;
	int fd;

	ENTRY(NEED_CTX | UNSAFE);
	fake_lock();
	r = range_around(va, DEVICE_KINDS);
	if (r == NULL || va + size > r->va + r->size ||
		type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0 || size == 0 ||
		va % 4096 != 0 || size % 4096 != 0)
		return done(CUDA_ERROR_INVALID_VALUE);
	fd = fcntl(r->kind == MAPPED ? r->phys->fd : r->fd, F_DUPFD_CLOEXEC, 3);
	memcpy(handle, &fd, sizeof(fd));
	return done(CUDA_SUCCESS);
}
