/*
 * The benchmarks on GPUs, over the driver double and the kernels on threads of the CPU: whole runs,
 * of which the table and the JSON are looked at.
 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fakecuda/fakecuda.h"

/* The program as it is, but for its start. */
#define main all_reduce_main
int main(int argc, char **argv);
#include "../../perf/all_reduce_perf.c"
#undef main

FAKE_IMAGES

TestSuite(perf_cuda, .timeout = 140);

enum { TEXT = 1 << 16, WORDS = 40 };

struct run {
	int status;
	char text[TEXT]; /* stdout and stderr */
};

/* all_reduce_perf with these words, in a process of its own. */
static void run(struct run *r, const char *devices, const char *words)
{
	char copy[512], *argv[WORDS] = {"all_reduce_perf"}, path[] = "/tmp/perf_cuda_XXXXXX";
	int fd = mkstemp(path), argc = 1, status;
	ssize_t n;
	pid_t pid;

	cr_assert(fd >= 0);
	unlink(path);
	snprintf(copy, sizeof(copy), "%s", words);
	for (char *w = strtok(copy, " "); w && argc < WORDS - 1; w = strtok(NULL, " "))
		argv[argc++] = w;
	pid = fork();
	if (pid == 0) {
		setenv("FAKECUDA_DEVICES", devices, 1);
		setenv("FAKECUDA_ASYNC", "1", 1);
		setenv("SYMCCL_DEBUG", "none", 1);
		dup2(fd, 1);
		dup2(fd, 2);
		fake_kernels_register();
		status = all_reduce_main(argc, argv);
		fflush(NULL);
		_exit(status);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	r->status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
	n = pread(fd, r->text, TEXT - 1, 0);
	r->text[n > 0 ? n : 0] = 0;
	close(fd);
}

static int lines(const char *text, const char *with)
{
	int n = 0;

	for (const char *p = text; (p = strstr(p, with)); p++)
		n++;
	return n;
}

/* Two rows of right values, on as many ranks. */
static void good(const char *devices, const char *words, int ranks)
{
	static struct run r;
	char all[512];

	snprintf(all, sizeof(all), "--sizes 8,1K -n 3 -w 1 -c 2 %s", words);
	run(&r, devices, all);
	cr_assert_eq(r.status, 0, "%s: status %d: %s", words, r.status, r.text);
	cr_assert(strstr(r.text, "# Out of bounds values : 0 OK"), "%s: %s", words, r.text);
	cr_assert_eq(lines(r.text, "#  Rank "), ranks, "%s: %s", words, r.text);
	cr_assert_eq(lines(r.text, "     float     sum      -1"), 2, "%s: %s", words, r.text);
}

Test(perf_cuda, ranks_as_streams_and_threads)
{
	good("1", "-g 2 -R 2", 2);
	good("2", "-g 2 -R 0 -u 3", 2);
	good("1", "-t 2 -R 1 -I 1", 2);
	good("2", "-t 2 -R 2 --dirty 1", 2);
	good("2", "-t 2 -R 2 -z 3 -m 2", 2);
}

Test(perf_cuda, ranks_as_processes)
{
	good("1", "-P 2 -R 2", 2);
	good("2", "-P 2 -R 0 -z 1", 2);
	good("1", "-P 2 -R 2 -C 1", 2);
}

Test(perf_cuda, graphs)
{
	good("1", "-g 2 -R 2 -G 4", 2);
	good("1", "-P 2 -R 0 -G 3 -I 1", 2);
	good("2", "-t 2 -R 2 -G 2 -C 1", 2);
}

Test(perf_cuda, says_what_it_timed)
{
	static struct run r;
	char json[8192] = "", path[64], words[128];
	FILE *f;

	snprintf(path, sizeof(path), "/tmp/perf_cuda_test.%d.json", (int)getpid());
	snprintf(words, sizeof(words), "-P 2 --sizes 8 -R 2 -G 5 -n 4 -J %s", path);
	run(&r, "1", words);
	cr_assert_eq(r.status, 0, "%s", r.text);
	cr_assert(strstr(r.text, "a graph launched 5 times"), "%s", r.text);
	cr_assert(strstr(r.text, "share a GPU without MPS"), "%s", r.text);
	f = fopen(path, "re");
	cr_assert(f && fread(json, 1, sizeof(json) - 1, f) > 0);
	fclose(f);
	unlink(path);
	cr_assert(strstr(json, "\"device\": \"cuda\", \"gpu\": \""), "%s", json);
	cr_assert(strstr(json, "\"graph_launches\": 5"), "%s", json);
	cr_assert(strstr(json, "\"iters\": 4, \"wrong\": 0"), "%s", json);
}

Test(perf_cuda, refuses_with_a_sentence)
{
	static struct run r;

	run(&r, "0", "--device cuda --sizes 8");
	cr_assert_eq(r.status, 1, "%s", r.text);
	cr_assert(strstr(r.text, "--device cuda: no GPU is visible"), "%s", r.text);
	run(&r, "1", "--sizes 8 -n 2 -y 1 -G 1");
	cr_assert_eq(r.status, 1, "%s", r.text);
	cr_assert(strstr(r.text, "-G: capturing the calls"), "%s", r.text);
	run(&r, "1", "--sizes 8G -n 2");
	cr_assert_eq(r.status, 1, "%s", r.text);
	cr_assert(strstr(r.text, "use a smaller -e"), "%s", r.text);
	/* No GPU is no error when none was asked for. */
	run(&r, "0", "--sizes 8 -n 2");
	cr_assert_eq(r.status, 0, "%s", r.text);
	cr_assert(strstr(r.text, "[host]"), "%s", r.text);
}
