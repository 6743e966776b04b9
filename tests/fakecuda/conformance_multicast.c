/*
 * Multicast objects, on the double alone: nothing here may be tried on a machine whose switch
 * others use. What the double refuses is what cuda.h says of the driver.
 */
#include <stdlib.h>
#include <unistd.h>
#include "conformance.h"

static CUmulticastObjectProp object(unsigned int devices, size_t size)
{
	return (CUmulticastObjectProp){.numDevices = devices,
		.size = size,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
}

static void creating(void)
{
	CUmulticastObjectProp p = object(2, gran);
	CUmemGenericAllocationHandle mc;
	CUmemAllocationProp mem;
	size_t g;

	MUST(MulticastGetGranularity(&g, &p, CU_MULTICAST_GRANULARITY_MINIMUM));
	THAT(gran % g == 0);
	p = object(2, g + 1);
	WANT(CUDA_ERROR_INVALID_VALUE, MulticastCreate(&mc, &p));
	p = object(0, g);
	REFUSE(MulticastCreate(&mc, &p));
	p = object(100, g);
	REFUSE(MulticastCreate(&mc, &p));
	p = object(2, g);
	p.flags = 1;
	WANT(CUDA_ERROR_INVALID_VALUE, MulticastCreate(&mc, &p));
	p = object(2, (size_t)1 << 50); /* the switch's tables are small */
	REFUSE(MulticastCreate(&mc, &p));
	p = object(2, g);
	MUST(MulticastCreate(&mc, &p));
	REFUSE(MemGetAllocationPropertiesFromHandle(&mem, mc));
	OK(MemRelease(mc));
	WANT(CUDA_ERROR_INVALID_VALUE, MulticastAddDevice(mc, 0));
}

/* Devices 0 and 1 of three; 2 is not one of the team. */
static void using_it(void)
{
	CUmulticastObjectProp p = object(2, 2 * gran);
	CUmemAllocationProp there = prop, outside = prop;
	CUmemAccessDesc both[2] = {rw, rw}, other = rw;
	CUmemGenericAllocationHandle mc, again, h[2], alien;
	CUdeviceptr va;
	int fd = -1;

	there.location.id = both[1].location.id = 1;
	outside.location.id = other.location.id = 2;
	MUST(MulticastCreate(&mc, &p));
	MUST(MemCreate(&h[0], gran, &prop, 0));
	MUST(MemCreate(&h[1], gran, &there, 0));
	MUST(MemCreate(&alien, gran, &outside, 0));
	MUST(MemAddressReserve(&va, 2 * gran, 0, 0, 0));
	OK(MulticastAddDevice(mc, 0));
	REFUSE(MulticastAddDevice(mc, 0));
	REFUSE(MulticastAddDevice(mc, 99));
	REFUSE(MulticastAddDevice(h[0], 1)); /* not such an object */
	/* The driver would wait for device 1 in these two; the double refuses. */
	REFUSE(MulticastBindMem(mc, 0, h[0], 0, gran, 0));
	REFUSE(MemMap(va, 2 * gran, 0, mc, 0));
	/* As if from another process: the same object. */
	MUST(MemExportToShareableHandle(&fd, mc, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	MUST(MemImportFromShareableHandle(
		&again, (void *)(size_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	OK(MulticastAddDevice(again, 1));
	REFUSE(MulticastAddDevice(again, 2)); /* one too many */

	OK(MulticastBindMem(mc, 0, h[0], 0, gran, 0));
	OK(MulticastBindMem(again, gran, h[1], 0, gran, 0));
	REFUSE(MulticastBindMem(mc, 0, h[0], 0, gran, 0)); /* bound already */
	REFUSE(MulticastBindMem(mc, 0, alien, 0, gran, 0));
	REFUSE(MulticastBindMem(mc, 0, mc, 0, gran, 0));
	REFUSE(MulticastBindMem(mc, gran, h[0], 0, gran, 1));
	REFUSE(MulticastBindMem(mc, gran + 4096, h[0], 0, gran, 0));
	REFUSE(MulticastBindMem(mc, gran, h[0], 0, 2 * gran, 0)); /* more than there is */
	REFUSE(MulticastBindMem(mc, 2 * gran, h[0], 0, gran, 0));
	OK(MemMap(va, 2 * gran, 0, mc, 0));
	OK(MemSetAccess(va, 2 * gran, both, 2));
	REFUSE(MemSetAccess(va, 2 * gran, &other, 1));
	REFUSE(MulticastUnbind(mc, 0, gran, gran)); /* nothing of device 0 there */
	OK(MemUnmap(va, 2 * gran));
	OK(MulticastUnbind(again, 0, 0, gran));
	OK(MulticastUnbind(mc, 1, gran, gran));
	REFUSE(MulticastUnbind(mc, 1, gran, gran));
	OK(MemAddressFree(va, 2 * gran));
	OK(MemRelease(mc));
	OK(MemRelease(again));
	OK(MemRelease(alien));
	OK(MemRelease(h[0]));
	OK(MemRelease(h[1]));
}

void group_multicast(void)
{
	CUmulticastObjectProp p = object(2, (size_t)2 << 20);
	CUmemGenericAllocationHandle mc;
	int can = -1;

	if (!on_double) {
		printf("  skipped: on the double only\n");
		return;
	}
	setenv("FAKECUDA_DEVICES", "3", 1);
	if (getenv("FAKECUDA_MULTICAST") == NULL)
		setenv("FAKECUDA_MULTICAST", "1", 1);
	if (!open_gpu())
		return;
	MUST(DeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
	if (!can) {
		WANT(CUDA_ERROR_NOT_SUPPORTED, MulticastCreate(&mc, &p));
		return;
	}
	creating();
	using_it();
}
