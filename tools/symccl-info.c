/* symccl-info: what this library is, what it finds on this machine, and what can be set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <getopt.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "config.h"
#include "cuda/driver.h"
#include "mem/mem.h"
#include "params.h"
#include "symccl.h"
#include "util.h"

static void line(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void line(const char *name, const char *fmt, ...)
{
	va_list ap;

	printf("  %-18s ", name);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
}

static const char *bytes(double n)
{
	static char text[4][32];
	static int turn;
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
	char *t = text[turn++ % 4];
	size_t i = 0;

	for (; n >= 1024 && i + 1 < ARRAY_LEN(units); i++)
		n /= 1024;
	snprintf(t, sizeof(text[0]), "%.*f %s", i && n < 100 ? 1 : 0, n, units[i]);
	return t;
}

/* First line of a file, without its end; 0 when there is none. */
static int slurp(const char *path, char *out, size_t room)
{
	FILE *f = fopen(path, "re");
	int ok = f && fgets(out, (int)room, f);

	if (f)
		fclose(f);
	if (ok)
		out[strcspn(out, "\n")] = 0;
	return ok;
}

/* ---- Build, backends, libraries, devices --------------------------------------------------- */

static void show_build(void)
{
	printf("symccl %d.%d.%d\n\nbuild\n", SYMCCL_MAJOR, SYMCCL_MINOR, SYMCCL_PATCH);
#ifdef __clang__
	line("compiler", "%s", __VERSION__);
#else
	line("compiler", "GCC %s", __VERSION__);
#endif
	line("found", "%s", CONFIG_FOUND);
#ifdef __SANITIZE_ADDRESS__
	line("sanitizer", "address");
#endif
#ifdef __SANITIZE_THREAD__
	line("sanitizer", "thread");
#endif
}

static void show_backends(void)
{
	static const struct mem_ops *const all[] = {&mem_host, &mem_cuda};
	const struct mem_ops *first = NULL;

	mem_select(symcclDeviceAuto, &first);
	printf("\nbackends\n");
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		const char *why = all[i]->unusable();

		if (why)
			line(all[i]->name, "not usable: %s", why);
		else
			line(all[i]->name, "usable%s: up to %s a rank, granularity %s",
				all[i] == first ? ", the default" : "",
				bytes((double)all[i]->capacity()),
				bytes((double)all[i]->granularity()));
	}
}

static void show_libraries(void)
{
	static const struct {
		const char *soname, *what;
	} libs[] = {
		{"libcuda.so.1", "NVIDIA GPUs"},
		{"libibverbs.so.1", "RDMA"},
		{"libmlx5.so.1", "RDMA, queues that a GPU can drive"},
		{"libfabric.so.1", "networks by libfabric"},
		{"libpmix.so.2", "launchers that speak PMIx"},
	};

	printf("\noptional libraries (opened at run time)\n");
	for (size_t i = 0; i < ARRAY_LEN(libs); i++) {
		void *h = dlopen(libs[i].soname, RTLD_LAZY | RTLD_LOCAL);

		line(libs[i].soname, "%s (%s)", h ? "found" : "not found", libs[i].what);
		if (h)
			dlclose(h);
	}
}

static void show_devices(void)
{
	const struct cuda_devices *gpus;

	printf("\ndevices\n");
	line("cpu", "%ld online", sysconf(_SC_NPROCESSORS_ONLN));
	if (cuda_open())
		return;
	gpus = cuda_devices();
	for (int i = 0; i < gpus->n; i++) {
		const struct cuda_device *d = &gpus->d[i];
		char name[16], model[96] = "?", pci[32] = "?";

		snprintf(name, sizeof(name), "gpu %d", i);
		cu.DeviceGetName(model, sizeof(model), d->dev);
		cu.DeviceGetPCIBusId(pci, sizeof(pci), d->dev);
		line(name, "%s, %s, %s%s%s", model, pci, bytes((double)d->memory),
			d->vmm ? "" : ", no virtual memory management",
			d->rdma ? ", GPUDirect RDMA" : "");
	}
}

/* ---- Limits -------------------------------------------------------------------------------- */

static void show_rlimit(const char *name, int what, int is_bytes)
{
	struct rlimit r;
	char text[2][32];
	rlim_t v[2];

	if (getrlimit(what, &r) != 0)
		return;
	v[0] = r.rlim_cur;
	v[1] = r.rlim_max;
	for (int i = 0; i < 2; i++)
		if (v[i] == RLIM_INFINITY)
			strcpy(text[i], "unlimited");
		else if (is_bytes)
			snprintf(text[i], sizeof(text[i]), "%s", bytes((double)v[i]));
		else
			snprintf(text[i], sizeof(text[i]), "%llu", (unsigned long long)v[i]);
	line(name, "%s (hard limit %s)", text[0], text[1]);
}

/* A file of this process's own cgroup (v2), else of the root that a container sees. */
static int cgroup_read(const char *file, char *out, size_t room)
{
	char path[512], own[384] = "";
	FILE *f = fopen("/proc/self/cgroup", "re");

	while (f && fgets(own, sizeof(own), f) && strncmp(own, "0::", 3) != 0)
		own[0] = 0;
	if (f)
		fclose(f);
	own[strcspn(own, "\n")] = 0;
	snprintf(path, sizeof(path), "/sys/fs/cgroup%s/%s", own[0] ? own + 3 : "", file);
	if (slurp(path, out, room))
		return 1;
	snprintf(path, sizeof(path), "/sys/fs/cgroup/%s", file);
	return slurp(path, out, room);
}

static void show_cgroup(void)
{
	char text[64];
	long long quota, period;

	if (cgroup_read("cpu.max", text, sizeof(text)) &&
		sscanf(text, "%lld %lld", &quota, &period) == 2 && period > 0)
		line("cgroup cpus", "%.1f", (double)quota / (double)period);
	else if (slurp("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", text, sizeof(text)) &&
		 (quota = atoll(text)) > 0 &&
		 slurp("/sys/fs/cgroup/cpu/cpu.cfs_period_us", text, sizeof(text)) &&
		 (period = atoll(text)) > 0)
		line("cgroup cpus", "%.1f", (double)quota / (double)period);
	else
		line("cgroup cpus", "no quota");
	if ((cgroup_read("memory.max", text, sizeof(text)) ||
		    slurp("/sys/fs/cgroup/memory/memory.limit_in_bytes", text, sizeof(text))) &&
		atoll(text) > 0 && atoll(text) < 1ll << 60)
		line("cgroup memory", "%s", bytes((double)atoll(text)));
	else
		line("cgroup memory", "no limit");
}

static void show_limits(void)
{
	cpu_set_t set;
	struct statvfs fs;
	long page = sysconf(_SC_PAGESIZE);

	printf("\nlimits\n");
	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		line("cpus allowed", "%d", CPU_COUNT(&set));
	line("memory", "%s, %s free", bytes((double)sysconf(_SC_PHYS_PAGES) * (double)page),
		bytes((double)sysconf(_SC_AVPHYS_PAGES) * (double)page));
	show_cgroup();
	show_rlimit("descriptors", RLIMIT_NOFILE, 0);
	show_rlimit("locked memory", RLIMIT_MEMLOCK, 1);
	show_rlimit("address space", RLIMIT_AS, 1);
	if (statvfs("/dev/shm", &fs) == 0)
		line("/dev/shm", "%s, %s free (not used by symccl)",
			bytes((double)fs.f_blocks * (double)fs.f_frsize),
			bytes((double)fs.f_bavail * (double)fs.f_frsize));
	else
		line("/dev/shm", "none (not used by symccl)");
}

/* ---- Parameters ---------------------------------------------------------------------------- */

static void show_params(void)
{
	struct param_row r;

	for (int i = 0; params_row(i, &r); i++) {
		printf("%s=%s  (", r.name, r.value);
		if (r.set)
			printf("from the environment; default %s", r.def[0] ? r.def : "empty");
		else
			printf("default");
		printf("%s%s)\n", r.range[0] ? "; " : "", r.range);
		printf("    %s\n", r.help);
	}
}

/* In roff a backslash and a leading dot mean something, and a hyphen is not a minus. */
static void roff(const char *s)
{
	for (; *s; s++)
		if (*s == '\\')
			fputs("\\e", stdout);
		else if (*s == '-')
			fputs("\\-", stdout);
		else
			putchar(*s);
}

static void show_man(void)
{
	struct param_row r;

	for (int i = 0; params_row(i, &r); i++) {
		printf(".TP\n.B %s\n", r.name);
		roff(r.help);
		fputs(".\n", stdout);
		if (r.range[0]) {
			fputs("Values: ", stdout);
			roff(r.range);
			fputs(". ", stdout);
		}
		fputs("Default: ", stdout);
		roff(r.def[0] ? r.def : "empty");
		fputs(".\n", stdout);
	}
}

static int usage(FILE *to)
{
	fprintf(to, "usage: symccl-info [-p | -V | -h]\n"
		    "  (none)       build, backends, libraries, devices, limits and parameters\n"
		    "  -p, --params only the parameters: value, where from, default, range, help\n"
		    "      --man    the parameters as part of a manual page\n"
		    "  -V           the version\n");
	return to == stderr ? 2 : 0;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"params", no_argument, NULL, 'p'},
		{"man", no_argument, NULL, 'm'},
		{"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	int c = getopt_long(argc, argv, "pVh", options, NULL);

	if (argc > 2 || (c < 0 && argc > 1))
		return usage(stderr);
	switch (c) {
	case 'p':
		show_params();
		return 0;
	case 'm':
		show_man();
		return 0;
	case 'V':
		printf("%d.%d.%d\n", SYMCCL_MAJOR, SYMCCL_MINOR, SYMCCL_PATCH);
		return 0;
	case 'h':
		return usage(stdout);
	case -1:
		break;
	default:
		return usage(stderr);
	}
	show_build();
	show_backends();
	show_libraries();
	show_devices();
	show_limits();
	printf("\nparameters\n");
	show_params();
	return 0;
}
