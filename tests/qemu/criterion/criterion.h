/*
 * What the tests use of Criterion, for machines where it cannot run: its workers execute the test
 * program anew, and under user-mode emulation the kernel does not know how. Here each test is a
 * forked child. `make check-arm64` puts this directory before the real one.
 *
 * Limits in seconds are multiplied by SLOWER. Options: all are ignored but --filter PATTERN.
 */
#ifndef QEMU_CRITERION_H
#define QEMU_CRITERION_H

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOWER 10

struct criterion_options {
	double timeout;
	void (*init)(void), (*fini)(void);
};
struct criterion_suite {
	const char *name;
	struct criterion_options options;
	struct criterion_suite *next;
};
struct criterion_test_params {
	size_t size, length;
	char *params;
};
struct criterion_test {
	const char *suite, *name;
	void (*run)(void *param);
	struct criterion_test_params (*params)(void); /* NULL: run once */
	struct criterion_options options;
	struct criterion_test *next;
};

static struct criterion_suite *criterion_suites;
static struct criterion_test *criterion_tests, **criterion_tests_end = &criterion_tests;

static inline void criterion_add(struct criterion_test *t)
{
	*criterion_tests_end = t;
	criterion_tests_end = &t->next;
}

/* In the child: the test, and then the end of it. */
static inline void criterion_run(const struct criterion_test *t, void *param)
{
	struct criterion_options suite = {0};
	double limit;

	for (struct criterion_suite *s = criterion_suites; s; s = s->next)
		if (strcmp(s->name, t->suite) == 0)
			suite = s->options;
	limit = t->options.timeout > 0 ? t->options.timeout : suite.timeout;
	if (limit > 0)
		alarm((unsigned)(limit * SLOWER) + 1);
	if (suite.init)
		suite.init();
	if (t->options.init)
		t->options.init();
	t->run(param);
	if (t->options.fini)
		t->options.fini();
	if (suite.fini)
		suite.fini();
	exit(0);
}

/* 0 passed, 1 failed, 2 skipped. */
static inline int criterion_one(const struct criterion_test *t, void *param)
{
	int status = -1;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0)
		criterion_run(t, param);
	if (pid > 0)
		waitpid(pid, &status, 0);
	if (status == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 77))
		return status == 0 ? 0 : 2;
	if (WIFSIGNALED(status))
		fprintf(stderr, "%s::%s: killed by signal %d\n", t->suite, t->name,
			WTERMSIG(status));
	return 1;
}

int main(int argc, char **argv)
{
	int n[3] = {0};
	const char *filter = "*";
	char name[256];

	for (int i = 1; i + 1 < argc; i++)
		if (strcmp(argv[i], "--filter") == 0)
			filter = argv[i + 1];
	for (struct criterion_test *t = criterion_tests; t; t = t->next) {
		struct criterion_test_params p = {.length = 1};
		int result = 0;

		snprintf(name, sizeof(name), "%s/%s", t->suite, t->name);
		if (fnmatch(filter, name, 0) != 0)
			continue;
		if (t->params)
			p = t->params();
		for (size_t i = 0; i < p.length && result != 1; i++)
			result = criterion_one(t, p.params + i * p.size);
		n[result]++;
		if (result)
			fprintf(stderr, "[%s] %s::%s\n", result == 1 ? "FAIL" : "SKIP", t->suite,
				t->name);
	}
	fprintf(stderr, "passed %d, failed %d, skipped %d\n", n[0], n[1], n[2]);
	return n[1] > 0;
}

#define TestSuite(suite_, ...) \
	__attribute__((constructor)) static void suite_##_suite(void) \
	{ \
		static struct criterion_suite s = {.name = #suite_, .options = {__VA_ARGS__}}; \
		s.next = criterion_suites; \
		criterion_suites = &s; \
	} \
	_Static_assert(1, "")
#define CRITERION_ADD(suite_, name_, params_, ...) \
	__attribute__((constructor)) static void suite_##_##name_##_add(void) \
	{ \
		static struct criterion_test t = {.suite = #suite_, \
			.name = #name_, \
			.run = suite_##_##name_##_run, \
			.params = params_, \
			.options = {__VA_ARGS__}}; \
		criterion_add(&t); \
	}
#define Test(suite_, name_, ...) \
	static void suite_##_##name_##_test(void); \
	static void suite_##_##name_##_run(void *param) \
	{ \
		(void)param; \
		suite_##_##name_##_test(); \
	} \
	CRITERION_ADD(suite_, name_, NULL, __VA_ARGS__) \
	static void suite_##_##name_##_test(void)
#define ParameterizedTestParameters(suite_, name_) \
	static struct criterion_test_params suite_##_##name_##_params(void)
#define ParameterizedTest(param_, suite_, name_, ...) \
	static void suite_##_##name_##_test(param_); \
	static void suite_##_##name_##_run(void *param) \
	{ \
		suite_##_##name_##_test(param); \
	} \
	CRITERION_ADD(suite_, name_, suite_##_##name_##_params, __VA_ARGS__) \
	static void suite_##_##name_##_test(param_)
#define cr_make_param_array(type_, array_, n_) \
	((struct criterion_test_params){ \
		.size = sizeof(type_), .length = (n_), .params = (char *)(array_)})

#define CRITERION_CHECK(ok_, text_, ...) \
	do { \
		if (!(ok_)) { \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, text_); \
			fprintf(stderr, " " __VA_ARGS__); \
			fputc('\n', stderr); \
			exit(1); \
		} \
	} while (0)
#define cr_skip_test(...) exit(77)
#define cr_assert_fail(...) CRITERION_CHECK(0, "failed", __VA_ARGS__)
#define cr_assert(c, ...) CRITERION_CHECK(c, #c, __VA_ARGS__)
#define cr_expect(c, ...) CRITERION_CHECK(c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...) CRITERION_CHECK(!(c), "not " #c, __VA_ARGS__)
#define cr_assert_null(p, ...) CRITERION_CHECK((p) == NULL, #p " is NULL", __VA_ARGS__)
#define cr_assert_not_null(p, ...) CRITERION_CHECK((p) != NULL, #p " is not NULL", __VA_ARGS__)
#define cr_assert_eq(a, b, ...) CRITERION_CHECK((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) CRITERION_CHECK((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) CRITERION_CHECK((a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) CRITERION_CHECK((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) CRITERION_CHECK((a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) CRITERION_CHECK((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) CRITERION_CHECK((a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, by_, ...) \
	CRITERION_CHECK((a) - (b) <= (by_) && (b) - (a) <= (by_), #a " == " #b, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) CRITERION_CHECK(strcmp(a, b) == 0, #a " is " #b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) \
	CRITERION_CHECK(strcmp(a, b) != 0, #a " is not " #b, __VA_ARGS__)
#define cr_assert_str_empty(a, ...) CRITERION_CHECK((a)[0] == 0, #a " is empty", __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n_, ...) \
	CRITERION_CHECK(memcmp(a, b, n_) == 0, #a " is " #b, __VA_ARGS__)
#define cr_assert_arr_neq(a, b, n_, ...) \
	CRITERION_CHECK(memcmp(a, b, n_) != 0, #a " is not " #b, __VA_ARGS__)

#endif
