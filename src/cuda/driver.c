#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "cuda/driver.h"
#include "log.h"
#include "util.h"

struct cuda_table cu;

static struct {
	pthread_once_t once;
	char reason[256];
	const char *why; /* NULL: usable */
	struct cuda_devices devices;
	pthread_mutex_t lock; /* primary[] */
	CUcontext primary[CUDA_MAX_DEVICES];
} state = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- Symbols -------------------------------------------------------------------------------- */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
/* What stands in for optional calls that this driver lacks. */
#define CU_SYM(name, symbol, version, need, params) \
	static CUresult absent_##name params \
	{ \
		return CUDA_ERROR_NOT_SUPPORTED; \
	}
#include "driver_syms.def"
#undef CU_SYM
#pragma GCC diagnostic pop

typedef CUresult (*get_proc_t)(const char *name, void **fn, int version, cuuint64_t flags);
typedef CUresult (*get_proc_v2_t)(const char *name, void **fn, int version, cuuint64_t flags,
	CUdriverProcAddressQueryResult *status);

struct loader {
	void *lib;
	get_proc_t get;
	get_proc_v2_t get_v2;
};

/* By cuGetProcAddress, which takes the name without its ABI suffix and the version instead; else by
 * the exported name. */
static void *symbol_find(const struct loader *l, const char *symbol, int version)
{
	CUdriverProcAddressQueryResult status;
	void *fn = NULL;
	char base[96];
	size_t n = strlen(symbol);

	if (n > 3 && symbol[n - 3] == '_' && symbol[n - 2] == 'v')
		n -= 3;
	snprintf(base, sizeof(base), "%.*s", (int)n, symbol);
	if (l->get_v2 != NULL &&
		l->get_v2(base, &fn, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status) ==
			CUDA_SUCCESS &&
		fn != NULL)
		return fn;
	fn = NULL;
	if (l->get_v2 == NULL && l->get != NULL &&
		l->get(base, &fn, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM) == CUDA_SUCCESS &&
		fn != NULL)
		return fn;
	return dlsym(l->lib, symbol);
}

enum need { REQUIRED, OPTIONAL };

static const struct row {
	const char *symbol;
	int version;
	enum need need;
	size_t slot; /* offset in the table */
	void (*absent)(void);
} rows[] = {
#define CU_SYM(name, symbol, version, need, params) \
	{#symbol, version, need, offsetof(struct cuda_table, name), (void (*)(void))absent_##name},
#include "driver_syms.def"
#undef CU_SYM
};

const char *cuda_load(const char *soname, struct cuda_table *table, char *buf, size_t len)
{
	struct loader l = {.lib = dlopen(soname, RTLD_NOW | RTLD_LOCAL)};

	if (l.lib == NULL) {
		snprintf(buf, len, "no CUDA driver: %s", dlerror());
		return buf;
	}
	l.get_v2 = (get_proc_v2_t)dlsym(l.lib, "cuGetProcAddress_v2");
	l.get = (get_proc_t)dlsym(l.lib, "cuGetProcAddress");
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		const struct row *r = &rows[i];
		void *fn = symbol_find(&l, r->symbol, r->version);

		if (fn == NULL && r->need == REQUIRED) {
			snprintf(buf, len, "%s has no %s (CUDA %d.%d or newer is needed)", soname,
				r->symbol, r->version / 1000, r->version % 1000 / 10);
			dlclose(l.lib);
			return buf;
		}
		memcpy((char *)table + r->slot, fn != NULL ? (void *)&fn : (void *)&r->absent,
			sizeof(fn));
	}
	return NULL;
}

/* ---- Devices -------------------------------------------------------------------------------- */

static int attribute(CUdevice dev, CUdevice_attribute attr)
{
	int v = 0;

	return cu.DeviceGetAttribute(&v, attr, dev) == CUDA_SUCCESS ? v : 0;
}

static CUresult device_read(int i, struct cuda_device *d)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, i},
	};
	CUresult r;

	if ((r = cu.DeviceGet(&d->dev, i)) != CUDA_SUCCESS)
		return r;
	if ((r = cu.DeviceTotalMem(&d->memory, d->dev)) != CUDA_SUCCESS)
		return r;
	d->vmm = attribute(d->dev, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
		 attribute(d->dev, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
	d->rdma = attribute(d->dev, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	if (!d->vmm)
		return CUDA_SUCCESS;
	return cu.MemGetAllocationGranularity(
		&d->granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
}

static const char *driver_start(void)
{
	char *buf = state.reason;
	size_t len = sizeof(state.reason);
	const char *name = "?";
	CUresult r;
	int n = 0;

	if (cuda_load("libcuda.so.1", &cu, buf, len) != NULL)
		return buf;
	r = cu.Init(0);
	if (r == CUDA_SUCCESS)
		r = cu.DeviceGetCount(&n);
	if (r != CUDA_SUCCESS) {
		cu.GetErrorName(r, &name);
		snprintf(buf, len, "the CUDA driver does not start: %s", name);
		return buf;
	}
	if (n == 0) {
		snprintf(buf, len, "no GPU is visible (CUDA_VISIBLE_DEVICES?)");
		return buf;
	}
	state.devices.n = MIN(n, CUDA_MAX_DEVICES);
	for (int i = 0; i < state.devices.n; i++) {
		r = device_read(i, &state.devices.d[i]);
		if (r != CUDA_SUCCESS) {
			cu.GetErrorName(r, &name);
			snprintf(buf, len, "GPU %d cannot be queried: %s", i, name);
			return buf;
		}
		if (!state.devices.d[i].vmm) {
			snprintf(buf, len,
				"GPU %d has no virtual memory management with file descriptors", i);
			return buf;
		}
	}
	return NULL;
}

static void driver_once(void)
{
	state.why = driver_start();
	if (state.why != NULL)
		log_info(LOG_INIT, "CUDA is not usable: %s", state.why);
	else
		log_info(LOG_INIT, "CUDA is usable, %d GPUs", state.devices.n);
}

const char *cuda_open(void)
{
	pthread_once(&state.once, driver_once);
	return state.why;
}

int cuda_current(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	void *fn = lib != NULL ? dlsym(lib, "cuCtxGetCurrent") : NULL;
	CUresult (*get_current)(CUcontext * ctx);
	CUcontext ctx = NULL;

	if (fn != NULL) {
		memcpy(&get_current, &fn, sizeof(fn));
		if (get_current(&ctx) != CUDA_SUCCESS) /* not started */
			ctx = NULL;
	}
	if (lib != NULL)
		dlclose(lib);
	return ctx != NULL;
}

const struct cuda_devices *cuda_devices(void)
{
	return &state.devices;
}

/* ---- Errors and threads --------------------------------------------------------------------- */

symcclResult_t cu_fail(CUresult r, const char *what, ...)
{
	const char *name = NULL, *text = NULL;
	char buf[ERROR_TEXT_MAX / 2];
	va_list ap;

	va_start(ap, what);
	vsnprintf(buf, sizeof(buf), what, ap);
	va_end(ap);
	if (cu.GetErrorName(r, &name) != CUDA_SUCCESS || name == NULL)
		name = "unknown CUDA error";
	if (cu.GetErrorString(r, &text) != CUDA_SUCCESS || text == NULL)
		text = "no description";
	return fail(symcclUnhandledCudaError, "%s: %s (%s, %d)", buf, text, name, (int)r);
}

static symcclResult_t primary_context(int device, CUcontext *ctx)
{
	CUresult r = CUDA_SUCCESS;

	if (device < 0 || device >= state.devices.n)
		return fail(symcclInvalidArgument, "there is no GPU %d, %d are visible", device,
			state.devices.n);
	pthread_mutex_lock(&state.lock);
	if (state.primary[device] == NULL)
		r = cu.DevicePrimaryCtxRetain(&state.primary[device], state.devices.d[device].dev);
	*ctx = state.primary[device];
	pthread_mutex_unlock(&state.lock);
	return r == CUDA_SUCCESS ? symcclSuccess
				 : cu_fail(r, "cannot open the primary context of GPU %d", device);
}

static symcclResult_t scope_context(struct cu_scope *s)
{
	CUcontext ctx = NULL;
	CUresult r;

	if ((r = cu.CtxGetCurrent(&ctx)) != CUDA_SUCCESS)
		return cu_fail(r, "cannot read the thread's CUDA context");
	if (ctx == NULL) {
		TRY(primary_context(0, &ctx));
		if ((r = cu.CtxPushCurrent(ctx)) != CUDA_SUCCESS)
			return cu_fail(r, "cannot enter the primary context of GPU 0");
		s->pushed = 1;
	}
	if ((r = cu.CtxGetDevice(&s->device)) != CUDA_SUCCESS) {
		if (s->pushed)
			cu.CtxPopCurrent(&ctx);
		return cu_fail(r, "cannot tell the thread's current GPU");
	}
	return symcclSuccess;
}

symcclResult_t cu_enter(struct cu_scope *s)
{
	const char *why = cuda_open();
	symcclResult_t ret;
	CUresult r;

	if (why != NULL)
		return fail(symcclInvalidUsage, "CUDA is not usable here: %s", why);
	s->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	s->pushed = 0;
	if ((r = cu.ThreadExchangeStreamCaptureMode(&s->mode)) != CUDA_SUCCESS)
		return cu_fail(r, "cannot relax the thread's capture mode");
	ret = scope_context(s);
	if (ret != symcclSuccess)
		cu.ThreadExchangeStreamCaptureMode(&s->mode);
	return ret;
}

void cu_leave(struct cu_scope *s)
{
	CUcontext ctx;

	/* Once more when the driver first reports an older, asynchronous error instead. */
	if (s->pushed && cu.CtxPopCurrent(&ctx) != CUDA_SUCCESS)
		cu.CtxPopCurrent(&ctx);
	if (cu.ThreadExchangeStreamCaptureMode(&s->mode) != CUDA_SUCCESS)
		cu.ThreadExchangeStreamCaptureMode(&s->mode);
}

symcclResult_t cu_bind_thread(int device)
{
	const char *why = cuda_open();
	CUcontext ctx;
	CUresult r;

	if (why != NULL)
		return fail(symcclInvalidUsage, "CUDA is not usable here: %s", why);
	TRY(primary_context(device, &ctx));
	r = cu.CtxSetCurrent(ctx);
	return r == CUDA_SUCCESS ? symcclSuccess
				 : cu_fail(r, "cannot enter the primary context of GPU %d", device);
}
