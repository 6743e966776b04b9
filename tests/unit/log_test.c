#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "error.h"
#include "log.h"
#include "params.h"

static char dir[] = "/tmp/symccl-log-XXXXXX";
static char path[64];

static void begin(const char *level, const char *subsys)
{
	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/log", dir);
	setenv("SYMCCL_DEBUG_FILE", path, 1);
	setenv("SYMCCL_DEBUG", level, 1);
	setenv("SYMCCL_DEBUG_SUBSYS", subsys, 1);
	params_reload();
}

static void end(void)
{
	char cmd[80];

	snprintf(cmd, sizeof(cmd), "rm -rf %s", dir);
	if (dir[sizeof(dir) - 2] != 'X' && system(cmd))
		fprintf(stderr, "cannot remove %s\n", dir);
}

TestSuite(log, .timeout = 10, .fini = end);

static const char *slurp(const char *name)
{
	static char text[1 << 16];
	FILE *f = fopen(name, "r");
	size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;

	if (f)
		fclose(f);
	text[n] = 0;
	return text;
}

Test(log, a_line_says_who_and_what)
{
	char host[64], want[256];

	begin("info", "all");
	errno = EACCES;
	log_info(LOG_BOOT, "rank %d: %m", 3);
	cr_assert_eq(errno, EACCES);
	gethostname(host, sizeof(host));
	snprintf(want, sizeof(want), "symccl %s:%d:%d INFO BOOT rank 3: Permission denied\n", host,
		(int)getpid(), (int)syscall(SYS_gettid));
	cr_assert_str_eq(slurp(path), want);
}

Test(log, levels)
{
	begin("warn", "all");
	cr_assert(log_enabled(LOG_WARN, LOG_MEM));
	cr_assert_not(log_enabled(LOG_INFO, LOG_MEM));
	log_info(LOG_MEM, "not to be seen");
	cr_assert_str_empty(slurp(path));
	log_warn(LOG_MEM, "to be seen");
	cr_assert_not_null(strstr(slurp(path), "WARN MEM to be seen"));
}

Test(log, subsystems_included)
{
	begin("trace", "boot,sym");
	cr_assert(log_enabled(LOG_TRACE, LOG_BOOT));
	cr_assert(log_enabled(LOG_TRACE, LOG_SYM));
	cr_assert_not(log_enabled(LOG_TRACE, LOG_MEM));
	cr_assert(log_enabled(LOG_WARN, LOG_ALL));
}

Test(log, subsystems_excluded)
{
	begin("trace", "^coll,net");
	cr_assert(log_enabled(LOG_TRACE, LOG_BOOT));
	cr_assert_not(log_enabled(LOG_TRACE, LOG_COLL));
	cr_assert_not(log_enabled(LOG_TRACE, LOG_NET));
}

Test(log, unknown_subsystem_is_told)
{
	begin("warn", "all,bot");
	log_enabled(LOG_WARN, LOG_ALL);
	cr_assert(strstr(slurp(path), "\"bot\"") != NULL, "%s", slurp(path));
}

Test(log, failures_are_logged_once)
{
	begin("warn", "all");
	fail(symcclTimeout, "rank 3 did not come");
	fail_quiet(symcclTimeout, "rank 4 did not come");
	cr_assert_not_null(strstr(slurp(path), "symcclTimeout: rank 3 did not come\n"));
	cr_assert_null(strstr(slurp(path), "rank 4"));
}

Test(log, control_characters_make_no_lines)
{
	begin("warn", "all");
	log_warn(LOG_NET, "%s", "peer\nsays \x1b[31m");
	cr_assert_not_null(strstr(slurp(path), "peer says  [31m\n"));
}

Test(log, long_lines_are_cut_but_end)
{
	char text[4000];
	const char *out;

	memset(text, 'y', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	begin("warn", "all");
	log_warn(LOG_NET, "%s", text);
	out = slurp(path);
	cr_assert_gt(strlen(out), 500);
	cr_assert_lt(strlen(out), 1100);
	cr_assert_eq(out[strlen(out) - 1], '\n');
}

Test(log, pattern_and_forked_child)
{
	char name[128];
	int status;
	pid_t pid;

	begin("warn", "all");
	snprintf(name, sizeof(name), "%s/%%p", dir);
	setenv("SYMCCL_DEBUG_FILE", name, 1);
	params_reload();
	log_warn(LOG_NET, "parent");
	pid = fork();
	if (pid == 0) {
		log_warn(LOG_NET, "child");
		_exit(0);
	}
	waitpid(pid, &status, 0);
	snprintf(name, sizeof(name), "%s/%d", dir, (int)pid);
	cr_assert_not_null(strstr(slurp(name), "child\n"));
	snprintf(name, sizeof(name), "%s/%d", dir, (int)getpid());
	cr_assert_not_null(strstr(slurp(name), "parent\n"));
	cr_assert_null(strstr(slurp(name), "child"));
}

static void *writer(void *arg)
{
	for (int i = 0; i < 50; i++)
		log_warn(LOG_NET, "%0*d end", 200, *(int *)arg);
	return NULL;
}

Test(log, lines_of_threads_do_not_mix)
{
	pthread_t t[4];
	int id[4], lines = 0;
	const char *p;

	begin("warn", "all");
	for (int i = 0; i < 4; i++) {
		id[i] = i;
		pthread_create(&t[i], NULL, writer, &id[i]);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	for (p = slurp(path); *p; p = strchr(p, '\n') + 1, lines++)
		cr_assert(strncmp(strchr(p, '\n') - 4, " end", 4) == 0 &&
			  strncmp(p, "symccl ", 7) == 0);
	cr_assert_eq(lines, 200);
}

static int child_status(void (*body)(void))
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		body();
		_exit(0);
	}
	cr_assert(pid > 0);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	return status;
}

/* Whoever has taken stderr's number since the start does not get our lines. */
static void without_stderr(void)
{
	char c;
	int p[2];

	if (pipe(p))
		_exit(2);
	close(STDERR_FILENO);
	log_at_load();
	log_reset();
	if (dup2(p[1], STDERR_FILENO) != STDERR_FILENO)
		_exit(2);
	log_line(LOG_WARN, LOG_INIT, "a line");
	close(p[1]);
	close(STDERR_FILENO);
	if (read(p[0], &c, 1) != 0)
		_exit(1);
}

Test(log, no_stderr_no_lines)
{
	unsetenv("SYMCCL_DEBUG_FILE");
	params_reload();
	cr_assert_eq(child_status(without_stderr), 0);
}

/* Nobody reads stderr any more: no reason to end the program. */
static void broken_pipe(void)
{
	int p[2];

	signal(SIGPIPE, SIG_DFL);
	if (pipe(p) || dup2(p[1], STDERR_FILENO) != STDERR_FILENO)
		_exit(2);
	close(p[0]);
	close(p[1]);
	log_at_load();
	log_reset();
	log_line(LOG_WARN, LOG_INIT, "a line");
	log_line(LOG_WARN, LOG_INIT, "another");
}

Test(log, broken_pipe_is_no_signal)
{
	unsetenv("SYMCCL_DEBUG_FILE");
	params_reload();
	cr_assert_eq(child_status(broken_pipe), 0);
}

Test(log, a_file_that_cannot_be_had)
{
	begin("warn", "all");
	setenv("SYMCCL_DEBUG_FILE", "/nonexistent/dir/file", 1);
	params_reload();
	log_warn(LOG_NET, "still works"); /* to stderr */
}
