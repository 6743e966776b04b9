/* The multicast operations of a backend that has none. */
#ifndef MEM_NO_MULTICAST_H
#define MEM_NO_MULTICAST_H

#include <unistd.h>
#include "mem/mem.h"

static inline int multicast_able(int device)
{
	(void)device;
	return 0;
}

static inline symcclResult_t not_supported(void)
{
	return fail(symcclInvalidUsage, "multicast is not supported in host memory");
}

static inline symcclResult_t multicast_create(size_t size, int ndevices, struct mem_handle **mc)
{
	(void)size, (void)ndevices, (void)mc;
	return not_supported();
}

static inline symcclResult_t multicast_import(int fd, size_t size, struct mem_handle **mc)
{
	(void)size, (void)mc;
	close(fd);
	return not_supported();
}

static inline symcclResult_t multicast_add(struct mem_handle *mc, int device)
{
	(void)mc, (void)device;
	return not_supported();
}

static inline symcclResult_t multicast_bind(
	struct mem_handle *mc, size_t offset, struct mem_handle *h)
{
	(void)mc, (void)offset, (void)h;
	return not_supported();
}

static inline symcclResult_t multicast_unbind(
	struct mem_handle *mc, size_t offset, const struct mem_handle *h)
{
	(void)mc, (void)offset, (void)h;
	return not_supported();
}

#endif
