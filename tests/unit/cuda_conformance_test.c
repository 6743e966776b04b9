/* The double behaves as we believe the driver does: the conformance program passes on it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(cuda_conformance, .timeout = 60);

static void run(const char *env)
{
	char exe[512], cmd[1400];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	cr_assert_gt(n, 0);
	exe[n] = '\0';
	for (int up = 0; up < 2; up++) /* the folder above this program's */
		*strrchr(exe, '/') = '\0';
	snprintf(cmd, sizeof(cmd), "%s LD_LIBRARY_PATH=%s/fakecuda %s/cuda_conformance >&2", env,
		exe, exe);
	cr_assert_eq(system(cmd), 0, "%s", cmd);
}

Test(cuda_conformance, at_once)
{
	run("FAKECUDA_ASYNC=0");
}

Test(cuda_conformance, threads_for_streams)
{
	run("FAKECUDA_ASYNC=1");
}
