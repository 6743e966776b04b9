/*
 * A CUDA driver for machines without one: libcuda.so.1 over memfd and mmap, with the real driver's
 * preconditions. Device addresses are host addresses, so tests can look at "GPU memory" directly.
 *
 * Environment, read by cuInit: FAKECUDA_DEVICES (1), FAKECUDA_MEMORY (bytes a device, 1 GiB),
 * FAKECUDA_P2P (rows of 0/1 separated by '/': who reaches whom; default everybody), FAKECUDA_VMM=0
 * (devices without virtual memory management), FAKECUDA_MULTICAST=1 (devices that can; default:
 * not), FAKECUDA_ASYNC=1 (a thread a stream; default: work
 * is done when it is submitted), FAKECUDA_FAIL=n[:code] (the n-th call fails), FAKECUDA_LIE=w or r
 * (P2P that lies: copies to another device's memory get lost, from it bring zeros).
 *
 * The hooks below are found with fakecuda_hook(), since programs do not link the double.
 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <dlfcn.h>
#include <stddef.h>

/* From now on the n-th driver call (1: the next) returns code without doing anything, except that
 * calls which destroy (release, destroy, free of streams, events, handles) do their work and report
 * the code, as the driver does with errors of earlier work. 0: none. all: every later one, too.
 * Name and string look-ups do not count. */
typedef void (*fakecuda_fail_at_t)(long n, int code, int all);
/* Calls since the last fakecuda_fail_at. */
typedef long (*fakecuda_calls_t)(void);
/* The name of the last call that was made to fail, or "". */
typedef const char *(*fakecuda_failed_t)(void);
/* Objects that exist: handles, reservations, mappings, allocations, host ranges, streams, events,
 * graphs, captures, libraries, contexts pushed by this thread. Text: "2 mappings, 1 streams". */
typedef int (*fakecuda_leaks_t)(char *text, size_t len);

/* The host version of a kernel: called once a launch, on the stream's thread. */
struct fakecuda_launch {
	unsigned int grid[3], block[3], shared;
	int device;
};
typedef void (*fakecuda_kernel_fn)(const struct fakecuda_launch *launch, void **params);
/* Give a kernel name a body; sizes: bytes of each of its n parameters. */
typedef void (*fakecuda_kernel_t)(
	const char *name, fakecuda_kernel_fn fn, int n, const size_t *sizes);

/* For a program linked with fakecuda/kernels.o: gives every kernel of the library its body. */
void fake_kernels_register(void);
/* And code for the library to load, that the double takes; instead of image.S's. */
#define FAKE_IMAGES \
	extern const unsigned char *const cuda_images[] __attribute__((visibility("hidden"))); \
	const unsigned char *const cuda_images[] = { \
		(const unsigned char *)".version: the double has the bodies", NULL};

/* The hook, or NULL when libcuda.so.1 is not the double. */
static inline void *fakecuda_hook(const char *name)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	return lib != NULL ? dlsym(lib, name) : NULL;
}

#endif
