/* The double: start, devices, contexts, errors, failures on demand, what is left open. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "fake.h"

struct fake fake = {
	.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
	.changed = PTHREAD_COND_INITIALIZER,
};
static struct {
	long calls, at;
	int code, all;
	const char *failed;
} inject = {.failed = ""};
static __thread CUcontext stack[16];
static __thread int depth;

void fake_lock(void)
{
	pthread_mutex_lock(&fake.lock);
}

void fake_unlock(void)
{
	pthread_mutex_unlock(&fake.lock);
}

CUresult done(CUresult r)
{
	fake_unlock();
	return r;
}

CUcontext current(void)
{
	return depth > 0 ? stack[depth - 1] : NULL;
}

int current_depth(void)
{
	return depth;
}

static CUresult injected(const char *name)
{
	inject.calls++;
	if (inject.at == 0 || inject.calls < inject.at || (inject.calls > inject.at && !inject.all))
		return CUDA_SUCCESS;
	inject.failed = name;
	return (CUresult)inject.code;
}

CUresult entry(const char *name, int flags, CUresult *late)
{
	CUresult r;

	fake_lock();
	r = injected(name);
	if (r != CUDA_SUCCESS && (flags & LATE) != 0) {
		*late = r;
		r = CUDA_SUCCESS;
	}
	if (r == CUDA_SUCCESS && (flags & NEED_INIT) != 0 && !fake.initialized)
		r = CUDA_ERROR_NOT_INITIALIZED;
	if (r == CUDA_SUCCESS && (flags & NEED_CTX) == NEED_CTX && current() == NULL)
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS && (flags & UNSAFE) != 0)
		r = capture_check_unsafe();
	return done(r);
}

/* ---- Hooks ---------------------------------------------------------------------------------- */
#define _GNU_SOURCE

EXPORT void fakecuda_fail_at(long n, int code, int all);
void fakecuda_fail_at(long n, int code, int all)
{
	fake_lock();
	inject.calls = 0;
	inject.at = n;
	inject.code = code;
	inject.all = all;
	inject.failed = "";
	fake_unlock();
}

EXPORT long fakecuda_calls(void);
long fakecuda_calls(void)
{
	return inject.calls;
}

EXPORT const char *fakecuda_failed(void);
const char *fakecuda_failed(void)
{
	return inject.failed;
}

EXPORT int fakecuda_leaks(char *text, size_t len);
int fakecuda_leaks(char *text, size_t len)
{
	struct {
		const char *name;
		int n;
	} rows[] = {{"streams", fake.streams}, {"events", fake.events}, {"graphs", fake.graphs},
		{"executable graphs", fake.execs}, {"captures", fake.captures},
		{"libraries", fake.libraries}, {"multicast bindings", fake.bindings},
		{"contexts on the stack", depth}};
	size_t at = 0;
	int total;

	fake_lock();
	text[0] = '\0';
	total = memory_open(text, len, &at);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		total += rows[i].n;
		if (rows[i].n != 0 && at < len)
			at += (size_t)snprintf(
				text + at, len - at, "%d %s, ", rows[i].n, rows[i].name);
	}
	fake_unlock();
	return total;
}

/* ---- Start ---------------------------------------------------------------------------------- */

static long env_number(const char *name, long def)
{
	const char *v = getenv(name);

	return v != NULL && *v != '\0' ? strtol(v, NULL, 0) : def;
}

static void env_read(void)
{
	const char *lie = getenv("FAKECUDA_LIE");
	const char *p = getenv("FAKECUDA_P2P"), *f = getenv("FAKECUDA_FAIL"), *colon;

	fake.n = (int)env_number("FAKECUDA_DEVICES", 1);
	if (fake.n > MAX_DEVICES)
		fake.n = MAX_DEVICES;
	fake.memory = (size_t)env_number("FAKECUDA_MEMORY", 1L << 30);
	fake.vmm = env_number("FAKECUDA_VMM", 1) != 0;
	fake.multicast = env_number("FAKECUDA_MULTICAST", 0) != 0;
	fake.lie = lie != NULL ? *lie : 0;
	fake.async = env_number("FAKECUDA_ASYNC", 0) != 0;
	for (int i = 0; i < MAX_DEVICES; i++)
		for (int j = 0; j < MAX_DEVICES; j++)
			fake.p2p[i][j] = p == NULL;
	for (int i = 0, j = 0; p != NULL && *p != '\0' && i < MAX_DEVICES; p++) {
		if (*p == '/')
			i++, j = 0;
		else if (j < MAX_DEVICES)
			fake.p2p[i][j++] = *p == '1';
	}
	if (f != NULL && inject.at == 0) {
		colon = strchr(f, ':');
		inject.at = atol(f);
		inject.code = colon != NULL ? atoi(colon + 1) : CUDA_ERROR_UNKNOWN;
	}
}

CUresult cuInit(unsigned int flags)
{
	ENTRY(0);
	fake_lock();
	if (flags != 0)
		return done(CUDA_ERROR_INVALID_VALUE);
	if (!fake.initialized) {
		env_read();
		if (fake.n == 0)
			return done(CUDA_ERROR_NO_DEVICE);
		for (int i = 0; i < fake.n; i++)
			fake.ctx[i].device = i;
		fake.initialized = 1;
	}
	return done(CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *version)
{
	ENTRY(0);
	if (version == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 13000;
	return CUDA_SUCCESS;
}

static const struct {
	CUresult code;
	const char *name;
} errors[] = {
#define E(x) \
	{ \
		x, #x \
	}
	E(CUDA_SUCCESS),
	E(CUDA_ERROR_INVALID_VALUE),
	E(CUDA_ERROR_OUT_OF_MEMORY),
	E(CUDA_ERROR_NOT_INITIALIZED),
	E(CUDA_ERROR_DEINITIALIZED),
	E(CUDA_ERROR_STUB_LIBRARY),
	E(CUDA_ERROR_NO_DEVICE),
	E(CUDA_ERROR_INVALID_DEVICE),
	E(CUDA_ERROR_INVALID_IMAGE),
	E(CUDA_ERROR_INVALID_CONTEXT),
	E(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED),
	E(CUDA_ERROR_INVALID_HANDLE),
	E(CUDA_ERROR_ILLEGAL_STATE),
	E(CUDA_ERROR_NOT_FOUND),
	E(CUDA_ERROR_NOT_READY),
	E(CUDA_ERROR_ILLEGAL_ADDRESS),
	E(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
	E(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
	E(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
	E(CUDA_ERROR_LAUNCH_FAILED),
	E(CUDA_ERROR_NOT_PERMITTED),
	E(CUDA_ERROR_NOT_SUPPORTED),
	E(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
	E(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
	E(CUDA_ERROR_STREAM_CAPTURE_MERGE),
	E(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
	E(CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
	E(CUDA_ERROR_STREAM_CAPTURE_ISOLATION),
	E(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
	E(CUDA_ERROR_CAPTURED_EVENT),
	E(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
	E(CUDA_ERROR_UNKNOWN),
#undef E
};

CUresult cuGetErrorName(CUresult error, const char **name)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == error) {
			*name = errors[i].name;
			return CUDA_SUCCESS;
		}
	*name = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	CUresult r = cuGetErrorName(error, text);

	if (r == CUDA_SUCCESS)
		*text = "as the double says";
	return r;
}

/* As the driver's: the newest ABI of a name that the asked version knows. */
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, cuuint64_t flags,
	CUdriverProcAddressQueryResult *status);
CUresult cuGetProcAddress_v2(const char *name, void **fn, int version, cuuint64_t flags,
	CUdriverProcAddressQueryResult *status)
{
	static const struct {
		const char *symbol;
		int version;
		void (*fn)(void);
	} rows[] = {
#define CU_SYM(n, symbol, v, need, params) {#symbol, v, (void (*)(void))symbol},
#include "cuda/driver_syms.def"
#undef CU_SYM
	};
	CUdriverProcAddressQueryResult s = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	size_t n = strlen(name);

	(void)flags;
	*fn = NULL;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && *fn == NULL; i++) {
		if (strncmp(rows[i].symbol, name, n) != 0 ||
			(rows[i].symbol[n] != '\0' && strncmp(rows[i].symbol + n, "_v", 2) != 0))
			continue;
		s = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		if (rows[i].version <= version) {
			memcpy(fn, &rows[i].fn, sizeof(*fn));
			s = CU_GET_PROC_ADDRESS_SUCCESS;
		}
	}
	if (status != NULL)
		*status = s;
	return *fn != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- Devices -------------------------------------------------------------------------------- */

static int bad_device(CUdevice d)
{
	return d < 0 || d >= fake.n;
}

CUresult cuDeviceGet(CUdevice *dev, int ordinal)
{
	ENTRY(NEED_INIT);
	if (dev == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (bad_device(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*dev = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	ENTRY(NEED_INIT);
	if (count == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*count = fake.n;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	ENTRY(NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)len, "fake GPU %d", dev);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	ENTRY(NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	memset(uuid, 0xfa, sizeof(*uuid));
	uuid->bytes[15] = (char)dev;
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	ENTRY(NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = fake.memory;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attr, CUdevice dev)
{
	ENTRY(NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	switch (attr) {
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*value = 4;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
		*value = 2048;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = 9;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
		*value = 227 << 10;
		break;
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
		*value = fake.vmm;
		break;
	case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
		*value = fake.multicast;
		break;
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
		*value = 1;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
	ENTRY(NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(id, (size_t)len, "0000:F%d:00.0", dev);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *id)
{
	int d = -1;

	ENTRY(NEED_INIT);
	if (sscanf(id, "0000:F%d:00.0", &d) != 1 || bad_device(d))
		return CUDA_ERROR_INVALID_VALUE;
	*dev = d;
	return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	ENTRY(NEED_INIT);
	if (bad_device(dev) || bad_device(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = dev != peer && fake.p2p[dev][peer];
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attr, CUdevice src, CUdevice dst)
{
	ENTRY(NEED_INIT);
	if (bad_device(src) || bad_device(dst) || src == dst)
		return CUDA_ERROR_INVALID_DEVICE;
	*value = attr == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : fake.p2p[src][dst];
	return CUDA_SUCCESS;
}

/* ---- Contexts: only primary ones ------------------------------------------------------------ */

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	ENTRY(NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	fake.ctx[dev].refs++;
	if (fake.ctx[dev].legacy == NULL)
		fake.ctx[dev].legacy = stream_new(&fake.ctx[dev], CU_STREAM_DEFAULT);
	*ctx = &fake.ctx[dev];
	return done(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	ENTRY(NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	if (fake.ctx[dev].refs == 0)
		return done(CUDA_ERROR_INVALID_CONTEXT);
	fake.ctx[dev].refs--;
	return done(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	ENTRY(NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = 0;
	*active = fake.ctx[dev].refs > 0;
	return CUDA_SUCCESS;
}

static int bad_context(CUcontext c)
{
	for (int i = 0; i < fake.n; i++)
		if (c == &fake.ctx[i])
			return c->refs == 0;
	return 1;
}

CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	ENTRY(NEED_INIT);
	*ctx = current();
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	ENTRY(NEED_INIT);
	if (ctx == NULL) {
		depth -= depth > 0;
		return CUDA_SUCCESS;
	}
	if (bad_context(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	depth += depth == 0;
	stack[depth - 1] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	ENTRY(NEED_INIT);
	if (bad_context(ctx) || depth == (int)(sizeof(stack) / sizeof(stack[0])))
		return CUDA_ERROR_INVALID_CONTEXT;
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	ENTRY(NEED_CTX);
	depth--;
	if (ctx != NULL)
		*ctx = stack[depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *dev)
{
	ENTRY(NEED_CTX);
	*dev = current()->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	ENTRY(NEED_CTX);
	*least = 0;
	*greatest = -5;
	return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	ENTRY(NEED_CTX);
	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (bad_context(peer))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (peer == current())
		return CUDA_ERROR_INVALID_DEVICE;
	return fake.p2p[current()->device][peer->device] ? CUDA_SUCCESS
							 : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}
