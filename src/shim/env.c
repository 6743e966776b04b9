/*
 * The environment of NCCL programs. When the library is loaded, variables of NCCL that mean
 * something here become symccl's, unless those are set: before any thread of the program can be in
 * getenv(). The others are named once at NCCL_DEBUG=INFO.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "shim/shim.h"

#define VERSION_DEFAULT 22809 /* what PyTorch and vLLM of today ask for and have tested */

static const struct shim_env table[] = {
	{"NCCL_COMM_ID", "SYMCCL_COMM_ID"},
	{"NCCL_DEBUG", "SYMCCL_DEBUG"},
	{"NCCL_DEBUG_FILE", "SYMCCL_DEBUG_FILE"},
	{"NCCL_HOSTID", "SYMCCL_HOSTID"},
	{"NCCL_MAX_CTAS", "SYMCCL_MAX_CTAS"},
	{"NCCL_MIN_CTAS", "SYMCCL_MIN_CTAS"},
	{"NCCL_SOCKET_FAMILY", "SYMCCL_SOCKET_FAMILY"},
	{"NCCL_SOCKET_IFNAME", "SYMCCL_SOCKET_IFNAME"},
	{"NCCL_WIN_STRIDE", "SYMCCL_WIN_STRIDE"},
};

static int chatty; /* at NCCL_DEBUG=INFO or more */
static int version = VERSION_DEFAULT;

const struct shim_env *shim_env_table(int *n)
{
	*n = (int)(sizeof(table) / sizeof(table[0]));
	return table;
}

int shim_version(void)
{
	return version;
}

void shim_info(const char *fmt, ...)
{
	char line[600];
	va_list ap;
	int n;

	if (!chatty)
		return;
	n = snprintf(line, sizeof(line), "symccl nccl: ");
	va_start(ap, fmt);
	vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
	va_end(ap);
	strcat(line, "\n");
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		chatty = 0; /* nobody reads */
}

/* NCCL's spelling of a value to symccl's. */
static void value_of(const char *name, const char *in, char *out, size_t n)
{
	size_t i;

	if (strcmp(name, "NCCL_SOCKET_FAMILY") == 0 && strncasecmp(in, "AF_", 3) == 0)
		in += 3;
	if (strcmp(name, "NCCL_DEBUG") == 0 && strcasecmp(in, "ABORT") == 0)
		in = "trace";
	if (strcmp(name, "NCCL_DEBUG") != 0 && strcmp(name, "NCCL_SOCKET_FAMILY") != 0) {
		snprintf(out, n, "%s", in);
		return;
	}
	for (i = 0; in[i] != '\0' && i < n - 1; i++)
		out[i] = (char)(in[i] >= 'A' && in[i] <= 'Z' ? in[i] + 32 : in[i]);
	out[i] = '\0';
}

/* "2.28.9" or "22809"; 0: neither. */
static int version_read(const char *s)
{
	int major, minor, patch, code;
	char end;

	if (sscanf(s, "%d.%d.%d%c", &major, &minor, &patch, &end) == 3)
		return NCCL_VERSION(major, minor, patch);
	return sscanf(s, "%d%c", &code, &end) == 1 && code >= 2000 ? code : 0;
}

static void say_ignored(void)
{
	for (char **e = environ; e != NULL && *e != NULL; e++) {
		size_t i = 0;

		if (strncmp(*e, "NCCL_", 5) != 0)
			continue;
		while (i < sizeof(table) / sizeof(table[0]) &&
			(strncmp(*e, table[i].nccl, strlen(table[i].nccl)) != 0 ||
				(*e)[strlen(table[i].nccl)] != '='))
			i++;
		if (i == sizeof(table) / sizeof(table[0]))
			shim_info("%.200s has no effect here", *e);
	}
}

__attribute__((constructor)) static void env_read(void)
{
	const char *v;
	char value[512];
	int n;

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		v = getenv(table[i].nccl);
		if (v == NULL || v[0] == '\0')
			continue;
		value_of(table[i].nccl, v, value, sizeof(value));
		setenv(table[i].symccl, value, 0);
	}
	/* A collective of NCCL waits as long as it takes, and so does what makes communicators. */
	setenv("SYMCCL_OP_TIMEOUT", "0", 0);
	setenv("SYMCCL_SETUP_TIMEOUT", "0", 0);
	v = getenv("SYMCCL_DEBUG");
	chatty = v != NULL && (strcasecmp(v, "info") == 0 || strcasecmp(v, "trace") == 0);
	v = getenv("SYMCCL_NCCL_VERSION");
	n = v != NULL ? version_read(v) : 0;
	if (n != 0)
		version = n;
	else if (v != NULL && v[0] != '\0')
		shim_info("SYMCCL_NCCL_VERSION is %.50s: neither 2.28.9 nor 22809, taking %d", v,
			version);
	say_ignored();
}

/* ---- Where buffers live -------------------------------------------------------------------------
 */

static symcclDeviceType_t device = symcclDeviceAuto;

/* A thread without a context may still mean the GPU: NCCL has nothing else. */
static void device_find(void)
{
	const char *v = getenv("SYMCCL_DEVICE");
	void *p, *driver;

	if (v != NULL && v[0] != '\0' && strcasecmp(v, "auto") != 0)
		return;
	/* Without a driver there is nothing to ask, nor to warn of. */
	driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
	if (driver == NULL)
		return;
	dlclose(driver);
	if (symcclMemAllocOn(&p, 1, symcclDeviceCuda) != symcclSuccess)
		return;
	symcclMemFree(p);
	device = symcclDeviceCuda;
}

symcclDeviceType_t shim_device(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, device_find);
	return device;
}
