/* The double: code libraries and kernels, whose bodies tests provide. */
#include <stdlib.h>
#include <string.h>
#include "fake.h"

static struct kernel *kernels;

struct CUlib_st {
	const void *code;
};

EXPORT void fakecuda_kernel(const char *name, fakecuda_kernel_fn fn, int n, const size_t *sizes);
void fakecuda_kernel(const char *name, fakecuda_kernel_fn fn, int n, const size_t *sizes)
{
	struct kernel *k = calloc(1, sizeof(*k));

	strncpy(k->name, name, sizeof(k->name) - 1);
	k->fn = fn;
	k->n = n;
	memcpy(k->sizes, sizes, (size_t)n * sizeof(*sizes));
	fake_lock();
	k->next = kernels;
	kernels = k;
	fake_unlock();
}

/* Like the driver, lazy: nothing looks at the code before a kernel is asked for. */
static int is_code(const void *code)
{
	static const unsigned char fatbin[4] = {0x50, 0xed, 0x55, 0xba};

	return memcmp(code, fatbin, 4) == 0 || memcmp(code, "\177ELF", 4) == 0 ||
	       strstr(code, ".version") != NULL;
}

CUresult cuLibraryLoadData(CUlibrary *lib, const void *code, CUjit_option *jit_options,
	void **jit_values, unsigned int njit, CUlibraryOption *options, void **values,
	unsigned int n)
{
	(void)jit_options, (void)jit_values, (void)njit, (void)options, (void)values, (void)n;
	ENTRY(NEED_INIT | UNSAFE);
	if (lib == NULL || code == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	*lib = malloc(sizeof(**lib));
	(*lib)->code = code;
	fake.libraries++;
	return done(CUDA_SUCCESS);
}

CUresult cuLibraryUnload(CUlibrary lib)
{
	ENTRY_LATE(NEED_INIT);
	if (lib == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	fake_lock();
	fake.libraries--;
	free(lib);
	return done(late);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary lib, const char *name)
{
	struct kernel *k;

	ENTRY(NEED_INIT);
	if (lib == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (kernel == NULL || name == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_code(lib->code))
		return CUDA_ERROR_INVALID_IMAGE;
	fake_lock();
	for (k = kernels; k != NULL && strcmp(k->name, name) != 0; k = k->next)
		;
	*kernel = (CUkernel)k;
	return done(k != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

CUresult cuKernelGetFunction(CUfunction *func, CUkernel kernel)
{
	ENTRY(NEED_CTX);
	if (kernel == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	*func = (CUfunction)kernel;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attr, CUfunction func)
{
	ENTRY(NEED_CTX);
	if (func == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	*value = attr == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
		 : attr == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
		 : attr == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
			 ? ((struct kernel *)func)->shared
			 : 0;
	return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction func, CUfunction_attribute attr, int value)
{
	ENTRY(NEED_CTX);
	if (func == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (attr != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
		value > 227 << 10)
		return CUDA_ERROR_INVALID_VALUE;
	((struct kernel *)func)->shared = value;
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(
	int *blocks, CUfunction func, int block_size, size_t shared)
{
	ENTRY(NEED_CTX);
	(void)shared;
	if (func == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (blocks == NULL || block_size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*blocks = block_size > 1024 ? 0 : 2048 / block_size;
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(
	const CUlaunchConfig *config, CUfunction func, void **params, void **extra)
{
	struct kernel *k = (struct kernel *)func;
	struct op op = {.kind = OP_KERNEL, .kernel = k};
	size_t at = 0;

	ENTRY(NEED_CTX);
	if (func == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (config == NULL || extra != NULL || config->gridDimX == 0 || config->gridDimY == 0 ||
		config->gridDimZ == 0 || config->blockDimX == 0 || config->blockDimY == 0 ||
		config->blockDimZ == 0 ||
		config->blockDimX * config->blockDimY * config->blockDimZ > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	op.launch = (struct fakecuda_launch){{config->gridDimX, config->gridDimY, config->gridDimZ},
		{config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
		current()->device};
	for (int i = 0; i < k->n; i++) {
		if (at + k->sizes[i] > sizeof(op.params))
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(op.params + at, params[i], k->sizes[i]);
		at += (k->sizes[i] + 15) & ~(size_t)15;
	}
	return submit_checked(config->hStream, &op, 0);
}
