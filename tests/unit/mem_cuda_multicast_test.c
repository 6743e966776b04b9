/* Multicast operations of both backends: over the driver double, every driver call failing once;
 * and that host memory has none. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cuda/driver.h"
#include "fakecuda/fakecuda.h"
#include "mem/mem.h"
#include "params.h"
#include "util.h"

static void quiet(void)
{
	setenv("SYMCCL_DEBUG", "none", 1);
	params_reload();
}

TestSuite(mem_multicast, .timeout = 30, .init = quiet);

static void start(const char *devices, const char *able)
{
	setenv("FAKECUDA_DEVICES", devices, 1);
	setenv("FAKECUDA_MULTICAST", able, 1);
	cr_assert_null(mem_cuda.unusable(), "%s", mem_cuda.unusable());
	cr_assert_not_null(fakecuda_hook("fakecuda_leaks"), "the real driver was found first");
}

Test(mem_multicast, host_has_none)
{
	struct mem_handle *mc = NULL, *h;
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	cr_assert_eq(mem_host.create(mem_host.granularity(), &h), symcclSuccess);
	cr_assert_eq(mem_host.multicast_able(0), 0);
	cr_assert_eq(mem_host.multicast_create(1 << 21, 2, &mc), symcclInvalidUsage);
	cr_assert_not_null(strstr(error_text(), "not supported"), "%s", error_text());
	cr_assert_eq(mem_host.multicast_import(fd, 1 << 21, &mc), symcclInvalidUsage);
	cr_assert_eq(fcntl(fd, F_GETFD), -1, "the descriptor is still open");
	cr_assert_eq(mem_host.multicast_add(h, 0), symcclInvalidUsage);
	cr_assert_eq(mem_host.multicast_bind(h, 0, h), symcclInvalidUsage);
	cr_assert_eq(mem_host.multicast_unbind(h, 0, h), symcclInvalidUsage);
	cr_assert_null(mc);
	mem_host.release(h);
}

Test(mem_multicast, who_can)
{
	start("2", "1");
	cr_assert_eq(mem_cuda.multicast_able(0), 1);
	cr_assert_eq(mem_cuda.multicast_able(1), 1);
	cr_assert_eq(mem_cuda.multicast_able(2), 0);
	cr_assert_eq(mem_cuda.multicast_able(-1), 0);
}

Test(mem_multicast, refusals)
{
	struct mem_handle *mc = NULL;
	size_t g;

	start("2", "0");
	g = mem_cuda.granularity();
	cr_assert_eq(mem_cuda.multicast_able(0), 0);
	cr_assert_eq(mem_cuda.multicast_create(g, 2, &mc), symcclUnhandledCudaError);
	cr_assert_not_null(strstr(error_text(), "NOT_SUPPORTED"), "%s", error_text());
	cr_assert_null(mc);
}

/* Two GPUs of one process through the whole life of an object; as far as it goes. */
static symcclResult_t life(void)
{
	const struct mem_ops *ops = &mem_cuda;
	struct mem_handle *mc = NULL, *again = NULL, *h[2] = {NULL, NULL};
	size_t g = ops->granularity();
	int fd, bound = 0, mapped = 0;
	symcclResult_t e = symcclSuccess;
	void *va = NULL;

	for (int i = 0; i < 2 && e == symcclSuccess; i++)
		if ((e = ops->bind_thread(i)) == symcclSuccess)
			e = ops->create(g, &h[i]);
	if (e == symcclSuccess)
		e = ops->multicast_create(g, 2, &mc);
	if (e == symcclSuccess && (e = ops->export_fd(mc, &fd)) == symcclSuccess)
		e = ops->multicast_import(fd, g, &again);
	for (int i = 0; i < 2 && e == symcclSuccess; i++)
		e = ops->multicast_add(i ? again : mc, i);
	if (e == symcclSuccess)
		e = ops->reserve(g, 0, &va);
	if (e == symcclSuccess && (e = ops->map(va, mc)) == symcclSuccess) {
		mapped = 1;
		e = ops->set_access(va, g, 0, NULL);
	}
	for (; bound < 2 && e == symcclSuccess; bound += e == symcclSuccess)
		e = ops->multicast_bind(mc, 0, h[bound]);
	/* Each again when it fails: the failure is injected once. */
	while (bound-- > 0)
		if (ops->multicast_unbind(mc, 0, h[bound]) != symcclSuccess &&
			ops->multicast_unbind(mc, 0, h[bound]) != symcclSuccess)
			return symcclInternalError;
	if (mapped && ops->unmap(va, mc) != symcclSuccess && ops->unmap(va, mc) != symcclSuccess)
		return symcclInternalError;
	if (va != NULL && ops->unreserve(va, g) != symcclSuccess &&
		ops->unreserve(va, g) != symcclSuccess)
		return symcclInternalError;
	ops->release(again);
	ops->release(mc);
	ops->release(h[0]);
	ops->release(h[1]);
	return e;
}

Test(mem_multicast, every_call_fails)
{
	fakecuda_fail_at_t fail_at;
	fakecuda_failed_t failed;
	fakecuda_leaks_t leaks;
	char text[256];
	long n;

	start("2", "1");
	fail_at = (fakecuda_fail_at_t)fakecuda_hook("fakecuda_fail_at");
	failed = (fakecuda_failed_t)fakecuda_hook("fakecuda_failed");
	leaks = (fakecuda_leaks_t)fakecuda_hook("fakecuda_leaks");
	cr_assert_eq(life(), symcclSuccess, "%s", error_text());
	for (n = 1;; n++) {
		symcclResult_t e;

		fail_at(n, CUDA_ERROR_UNKNOWN, 0);
		e = life();
		cr_assert_neq(e, symcclInternalError, "call %ld, %s", n, failed());
		if (failed()[0] == '\0') {
			cr_assert_eq(e, symcclSuccess, "%s", error_text());
			break;
		}
		if (strncmp(failed(), "cuMulticast", 11) == 0 &&
			strcmp(failed(), "cuMulticastUnbind") != 0)
			cr_assert_eq(e, symcclUnhandledCudaError, "call %ld, %s", n, failed());
		fail_at(0, 0, 0);
		cr_assert_eq(cu.CtxSetCurrent(NULL), CUDA_SUCCESS);
		cr_assert_eq(leaks(text, sizeof(text)), 0, "call %ld, %s: left open: %s", n,
			failed(), text);
	}
	cr_assert_gt(n, 50);
}
