/* Programs for machines with a GPU pass on the double: it behaves as we believe the driver does. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(cuda_conformance, .timeout = 60);

static void run(const char *env, const char *program)
{
	char exe[512], cmd[1400];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	cr_assert_gt(n, 0);
	exe[n] = '\0';
	for (int up = 0; up < 2; up++) /* the folder above this program's */
		*strrchr(exe, '/') = '\0';
	snprintf(cmd, sizeof(cmd), "%s LD_LIBRARY_PATH=%s/fakecuda %s/%s >&2", env, exe, exe,
		program);
	cr_assert_eq(system(cmd), 0, "%s", cmd);
}

Test(cuda_conformance, at_once)
{
	run("FAKECUDA_ASYNC=0", "cuda_conformance");
}

Test(cuda_conformance, threads_for_streams)
{
	run("FAKECUDA_ASYNC=1", "cuda_conformance");
}

Test(cuda_conformance, memory_between_processes)
{
	run("FAKECUDA_DEVICES=1", "gpu/mem_gpu 2");
	run("FAKECUDA_DEVICES=2 FAKECUDA_ASYNC=1", "gpu/mem_gpu 3");
}
