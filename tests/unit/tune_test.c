/* symccl-tune as a user runs it, with little to measure. What it measures is not judged: only that
 * it ends, says what it should, and that what it stores can be read. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tuning.h"

TestSuite(tune, .timeout = 140);

static char out[65536];

/* The tool's exit status; what it printed to both is in `out`. */
static int tune(const char *options)
{
	char self[512], command[1024];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	FILE *p;
	int status;

	cr_assert_gt(n, 0);
	self[n] = 0;
	for (int i = 0; i < 3; i++) /* <build>/tests/unit/tune_test */
		*strrchr(self, '/') = 0;
	snprintf(
		command, sizeof(command), "'%s/bin/symccl-tune' %s 2>&1 </dev/null", self, options);
	p = popen(command, "r");
	cr_assert_not_null(p);
	out[fread(out, 1, sizeof(out) - 1, p)] = 0;
	status = pclose(p);
	cr_assert(WIFEXITED(status), "%s: %#x\n%s", command, (unsigned)status, out);
	return WEXITSTATUS(status);
}

Test(tune, options)
{
	cr_assert_eq(tune("-h"), 0);
	cr_assert(strstr(out, "usage: symccl-tune") && strstr(out, "-n"), "%s", out);
	cr_assert_eq(tune("-x"), 2);
	cr_assert_eq(tune("more"), 2);
	cr_assert_eq(tune("-t 0"), 2);
	cr_assert_eq(tune("-s 1e3"), 2);
}

Test(tune, measures_and_stores)
{
	char path[] = "/tmp/symccl-tune-XXXXXX", processor[256], why[256];
	struct coll_tuning t = {0};
	int fd = mkstemp(path), good = -1, all = -1;
	const char *sum;
	FILE *f;

	cr_assert_geq(fd, 0);
	close(fd);
	/* What was there before, an empty file, is not in the way. */
	setenv("SYMCCL_TUNING_FILE", path, 1);
	cr_assert_eq(tune("-t 1 -s 4096"), 0, "%s", out);
	cr_assert(strstr(out, "all-gather") && strstr(out, "push") && strstr(out, path), "%s", out);
	cr_assert_null(strstr(out, "WARN"), "%s", out);
	cr_assert_null(strstr(out, "nan"), "%s", out);
	sum = strstr(out, "more, in ");
	cr_assert_not_null(sum, "%s", out);
	cr_assert_eq(sscanf(sum, "more, in %d of %d cases", &good, &all), 2);
	cr_assert(0 < good && good <= all, "%d of %d", good, all);

	tuning_processor(processor, sizeof(processor));
	f = fopen(path, "r");
	cr_assert_not_null(f);
	out[fread(out, 1, sizeof(out) - 1, f)] = 0;
	fclose(f);
	cr_assert_eq(tuning_parse(out, processor, &t, why, sizeof(why)), 0, "%s: %s", why, out);
#define TUNING(field, def, lo, hi, help) \
	cr_assert(t.field >= lo && t.field <= hi, #field " is %g", t.field);
#include "coll/tuning.def"
#undef TUNING
	unlink(path);
}

Test(tune, shows_only)
{
	char dir[] = "/tmp/symccl-tune-XXXXXX", path[128];

	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/file", dir);
	setenv("SYMCCL_TUNING_FILE", path, 1);
	cr_assert_eq(tune("-n -t 1 -s 1024"), 0, "%s", out);
	cr_assert_null(strstr(out, "stored"), "%s", out);
	cr_assert_eq(rmdir(dir), 0, "something was stored");
	setenv("SYMCCL_TUNING_FILE", "/proc/version/file", 1);
	cr_assert_eq(tune("-t 1 -s 1024"), 1, "%s", out);
	cr_assert(strstr(out, "/proc/version/file"), "%s", out);
}
