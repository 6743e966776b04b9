/*
 * The double: multicast objects. Only with FAKECUDA_MULTICAST=1; else this machine has none.
 *
 * An object is a memfd, shared between processes like memory; its last page says who has been added
 * and what is bound. Addresses mapped to it are memory of their own that no device ever sees: what
 * is tested is that the calls are right, not what the switch does.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fake.h"

#define HEAD_BYTES ((size_t)4096)
#define GRANULES 64 /* largest object, in granules: one bit each */

struct multicast {
	uint32_t ndevices;
	uint32_t added;              /* atomic: a bit a device */
	uint64_t bound[MAX_DEVICES]; /* atomic: a bit a granule */
};

/* ---- Objects -------------------------------------------------------------------------------- */

/* The object of a descriptor that now belongs to it; *id 0: no memory. */
static CUmemGenericAllocationHandle object_new(int fd, size_t size)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	};
	void *head = mmap(NULL, HEAD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)size);
	struct phys *p;

	if (head == MAP_FAILED) {
		close(fd);
		return 0;
	}
	p = phys_new(fd, size, &prop, 1);
	p->multicast = head;
	return p->id;
}

void multicast_drop(struct multicast *m)
{
	munmap(m, HEAD_BYTES);
}

CUresult multicast_import(int fd, CUmemGenericAllocationHandle *h)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	struct stat st;

	if (copy < 0 || fstat(copy, &st) != 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*h = object_new(copy, (size_t)st.st_size - HEAD_BYTES);
	return *h != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The driver blocks in what needs all devices until they have been added; the double refuses, since
 * nobody may get there. */
int multicast_complete(const struct multicast *m)
{
	uint32_t added = __atomic_load_n(&m->added, __ATOMIC_ACQUIRE);

	return __builtin_popcount(added) == (int)m->ndevices;
}

CUresult multicast_access(const struct multicast *m, int device)
{
	return (__atomic_load_n(&m->added, __ATOMIC_ACQUIRE) >> device & 1) != 0
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult prop_check(const CUmulticastObjectProp *prop)
{
	if (prop == NULL || prop->flags != 0 || prop->numDevices == 0 || prop->size == 0 ||
		(prop->handleTypes &
			~(unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake.multicast)
		return CUDA_ERROR_NOT_SUPPORTED;
	return prop->numDevices <= (unsigned)fake.n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMulticastGetGranularity(
	size_t *size, const CUmulticastObjectProp *prop, CUmulticastGranularity_flags option)
{
	CUresult r;

	ENTRY(NEED_INIT);
	(void)option;
	if ((r = prop_check(prop)) != CUDA_SUCCESS)
		return r;
	if (size == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*size = GRANULARITY;
	return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *mc, const CUmulticastObjectProp *prop)
{
	struct phys *p;
	CUresult r;
	int fd;

	ENTRY(NEED_INIT | UNSAFE);
	if ((r = prop_check(prop)) != CUDA_SUCCESS)
		return r;
	if (mc == NULL || prop->size % GRANULARITY != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->size / GRANULARITY > GRANULES)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fake_lock();
	fd = memfd_create(
		prop->handleTypes != 0 ? "fakecuda-multicast" : "fakecuda-own", MFD_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, (off_t)(prop->size + HEAD_BYTES)) != 0) {
		close(fd);
		fd = -1;
	}
	*mc = fd >= 0 ? object_new(fd, prop->size) : 0;
	p = phys_of(*mc);
	if (p == NULL)
		return done(CUDA_ERROR_OUT_OF_MEMORY);
	p->prop.requestedHandleTypes = (CUmemAllocationHandleType)prop->handleTypes;
	p->multicast->ndevices = prop->numDevices;
	return done(CUDA_SUCCESS);
}

/* ---- Devices and memory --------------------------------------------------------------------- */

static struct phys *object_of(CUmemGenericAllocationHandle mc)
{
	struct phys *p = phys_of(mc);

	return p != NULL && p->multicast != NULL ? p : NULL;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle mc, CUdevice dev)
{
	struct phys *p;
	uint32_t bit, before;

	ENTRY(NEED_INIT | UNSAFE);
	if (dev < 0 || dev >= fake.n)
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	p = object_of(mc);
	if (p == NULL || multicast_complete(p->multicast))
		return done(CUDA_ERROR_INVALID_VALUE);
	if (!fake.multicast)
		return done(CUDA_ERROR_NOT_SUPPORTED);
	bit = 1u << dev;
	before = __atomic_fetch_or(&p->multicast->added, bit, __ATOMIC_ACQ_REL);
	return done((before & bit) != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

/* The granules of [offset, offset + size) of an object; 0: none such. */
static uint64_t granules(const struct phys *p, size_t offset, size_t size)
{
	uint64_t n = size / GRANULARITY;

	if (size == 0 || (size | offset) % GRANULARITY != 0 || offset > p->size ||
		size > p->size - offset)
		return 0;
	return (n == 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1) << offset / GRANULARITY;
}

/* Bind to granules of the object memory that lies on a device. Lock held. */
static CUresult bind(struct phys *p, size_t mc_offset, const struct phys *mem, size_t size)
{
	uint64_t bits = granules(p, mc_offset, size);
	int dev = mem->prop.location.id;

	if (bits == 0 || !multicast_complete(p->multicast) || mem->multicast != NULL ||
		mem->prop.requestedHandleTypes == 0 ||
		multicast_access(p->multicast, dev) != CUDA_SUCCESS ||
		(__atomic_load_n(&p->multicast->bound[dev], __ATOMIC_RELAXED) & bits) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	__atomic_fetch_or(&p->multicast->bound[dev], bits, __ATOMIC_RELAXED);
	fake.bindings++;
	return CUDA_SUCCESS;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mc, size_t mc_offset,
	CUmemGenericAllocationHandle h, size_t offset, size_t size, unsigned long long flags)
{
	struct phys *p, *mem;

	ENTRY(NEED_INIT | UNSAFE);
	fake_lock();
	p = object_of(mc);
	mem = phys_of(h);
	if (p == NULL || mem == NULL || flags != 0 || offset % GRANULARITY != 0 ||
		offset > mem->size || size > mem->size - offset)
		return done(CUDA_ERROR_INVALID_VALUE);
	return done(bind(p, mc_offset, mem, size));
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mc, size_t mc_offset, CUdeviceptr va,
	size_t size, unsigned long long flags)
{
	struct phys *p;
	struct range *r;

	ENTRY(NEED_INIT | UNSAFE);
	fake_lock();
	p = object_of(mc);
	r = range_around(va, 1u << MAPPED);
	if (p == NULL || r == NULL || flags != 0 || (va - r->va) % GRANULARITY != 0 ||
		size > r->size - (va - r->va))
		return done(CUDA_ERROR_INVALID_VALUE);
	return done(bind(p, mc_offset, r->phys, size));
}

/* Just what was bound, as the driver wants it. */
CUresult cuMulticastUnbind(
	CUmemGenericAllocationHandle mc, CUdevice dev, size_t mc_offset, size_t size)
{
	struct phys *p;
	uint64_t bits;

	ENTRY(NEED_INIT | UNSAFE);
	if (dev < 0 || dev >= fake.n)
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	p = object_of(mc);
	bits = p != NULL ? granules(p, mc_offset, size) : 0;
	if (bits == 0 ||
		(__atomic_load_n(&p->multicast->bound[dev], __ATOMIC_RELAXED) & bits) != bits)
		return done(CUDA_ERROR_INVALID_VALUE);
	__atomic_fetch_and(&p->multicast->bound[dev], ~bits, __ATOMIC_RELAXED);
	fake.bindings--;
	return done(CUDA_SUCCESS);
}
