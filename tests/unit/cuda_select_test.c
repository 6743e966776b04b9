/* Which memory "auto" stands for, and that the driver sleeps until somebody asks for it; over the
 * driver double. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "cuda/driver.h"
#include "fakecuda/fakecuda.h"
#include "mem/mem.h"
#include "params.h"

TestSuite(cuda_select, .timeout = 20);

#define OK(call) cr_assert_eq(call, symcclSuccess, "%s: %s", #call, error_text())

static int driver_loaded(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);

	if (lib != NULL)
		dlclose(lib);
	return lib != NULL;
}

static void device_is(const char *value)
{
	setenv("SYMCCL_DEVICE", value, 1);
	params_reload();
}

static const struct mem_ops *automatic(void)
{
	const struct mem_ops *ops = NULL;

	OK(mem_select(symcclDeviceAuto, &ops));
	return ops;
}

static void no_leaks(void)
{
	fakecuda_leaks_t leaks = (fakecuda_leaks_t)fakecuda_hook("fakecuda_leaks");
	char text[256];

	cr_assert_eq(leaks(text, sizeof(text)), 0, "left open: %s", text);
}

Test(cuda_select, host_programs_do_not_load_the_driver)
{
	int here;
	void *p;

	cr_assert(!driver_loaded());
	cr_assert_eq(automatic(), &mem_host);
	OK(symcclMemAlloc(&p, 100));
	cr_assert(mem_host.owns(p) && !mem_cuda.owns(p));
	OK(symcclMemFree(p));
	OK(symcclMemAllocOn(&p, 100, symcclDeviceHost));
	OK(symcclMemFree(p));
	cr_assert_eq(symcclMemFree(&here), symcclInvalidArgument);
	device_is("host");
	cr_assert_eq(automatic(), &mem_host);
	cr_assert(!driver_loaded());
}

Test(cuda_select, gpu_memory_by_name)
{
	void *p, *q;

	OK(symcclMemAllocOn(&p, 100, symcclDeviceCuda));
	cr_assert(mem_cuda.owns(p) && !mem_host.owns(p));
	cr_assert_eq(automatic(), &mem_host, "an allocation leaves a context behind");
	OK(symcclMemAlloc(&q, 100));
	cr_assert(mem_host.owns(q));
	OK(symcclMemFree(q));
	OK(symcclMemFree(p));
	cr_assert_eq(symcclMemFree(p), symcclInvalidArgument);
	no_leaks();
}

Test(cuda_select, gpu_memory_by_environment)
{
	void *p;

	device_is("cuda");
	cr_assert_eq(automatic(), &mem_cuda);
	OK(symcclMemAlloc(&p, 100));
	cr_assert(mem_cuda.owns(p));
	OK(symcclMemFree(p));
	no_leaks();
}

static void *other_thread(void *arg)
{
	mem_select(symcclDeviceAuto, arg);
	return NULL;
}

Test(cuda_select, gpu_memory_where_a_context_is_current)
{
	const struct mem_ops *other = NULL;
	struct cuda_table t; /* the program's own way to the driver */
	CUcontext ctx;
	pthread_t id;
	char why[256];
	void *p;

	setenv("FAKECUDA_DEVICES", "2", 1);
	cr_assert_null(cuda_load("libcuda.so.1", &t, why, sizeof(why)), "%s", why);
	cr_assert_eq(automatic(), &mem_host, "loaded, not started");
	cr_assert_eq(t.Init(0), CUDA_SUCCESS);
	cr_assert_eq(automatic(), &mem_host, "no context");
	cr_assert_eq(t.DevicePrimaryCtxRetain(&ctx, 1), CUDA_SUCCESS);
	cr_assert_eq(automatic(), &mem_host, "not current");
	cr_assert_eq(t.CtxPushCurrent(ctx), CUDA_SUCCESS);
	cr_assert_eq(automatic(), &mem_cuda);
	cr_assert_eq(mem_cuda.device(), 1);
	OK(symcclMemAlloc(&p, 100));
	cr_assert(mem_cuda.owns(p));
	OK(symcclMemFree(p));
	pthread_create(&id, NULL, other_thread, &other);
	pthread_join(id, NULL);
	cr_assert_eq(other, &mem_host, "another thread's context");
	device_is("host");
	cr_assert_eq(automatic(), &mem_host);
	cr_assert_eq(t.CtxPopCurrent(&ctx), CUDA_SUCCESS);
	no_leaks();
}

Test(cuda_select, unusable_gpus)
{
	const struct mem_ops *ops = NULL;
	struct cuda_table t;
	CUcontext ctx;
	char why[256];
	void *p = &ops;

	setenv("FAKECUDA_VMM", "0", 1);
	cr_assert_eq(symcclMemAllocOn(&p, 100, symcclDeviceCuda), symcclInvalidUsage, "no memory");
	cr_assert_not_null(strstr(error_text(), "virtual memory management"), "%s", error_text());
	cr_assert_eq(p, &ops);
	/* With a context current, auto falls back to the host (and the log says why). */
	cr_assert_null(cuda_load("libcuda.so.1", &t, why, sizeof(why)), "%s", why);
	cr_assert_eq(t.DevicePrimaryCtxRetain(&ctx, 0), CUDA_SUCCESS);
	cr_assert_eq(t.CtxPushCurrent(ctx), CUDA_SUCCESS);
	cr_assert_eq(automatic(), &mem_host);
	device_is("cuda");
	cr_assert_eq(mem_select(symcclDeviceAuto, &ops), symcclInvalidUsage);
	cr_assert_not_null(strstr(error_text(), "SYMCCL_DEVICE"), "%s", error_text());
}
