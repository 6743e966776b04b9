#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "log.h"
#include "params.h"

TestSuite(params, .timeout = 10);

/* Reload with stderr caught; what was logged. */
static const char *reload(void)
{
	static char text[8192];
	int fd = memfd_create("stderr", MFD_CLOEXEC), saved = dup(STDERR_FILENO);
	ssize_t n;

	fflush(stderr);
	dup2(fd, STDERR_FILENO);
	params_reload();
	dup2(saved, STDERR_FILENO);
	close(saved);
	n = pread(fd, text, sizeof(text) - 1, 0);
	text[n > 0 ? n : 0] = 0;
	close(fd);
	return text;
}

static const char *set(const char *name, const char *value)
{
	setenv(name, value, 1);
	return reload();
}

static const struct param_row *row(const char *name)
{
	static struct param_row r;

	for (int i = 0; params_row(i, &r); i++)
		if (strcmp(r.name, name) == 0)
			return &r;
	return NULL;
}

Test(params, defaults)
{
	cr_assert_str_empty(reload());
	cr_assert_float_eq(params_get()->setup_timeout, 30, 0);
	cr_assert_eq(params_get()->debug, LOG_WARN);
	cr_assert_eq(params_get()->rank, -1);
	cr_assert_eq(params_get()->win_stride, 0);
	cr_assert_str_empty(params_get()->comm_id);
	cr_assert_eq(row("SYMCCL_SETUP_TIMEOUT")->set, 0);
}

Test(params, every_row_is_sound)
{
	struct param_row r;
	int n = 0;

	for (; params_row(n, &r); n++) {
		cr_assert(strncmp(r.name, "SYMCCL_", 7) == 0, "%s", r.name);
		cr_assert(strlen(r.help) > 10, "%s", r.name);
		/* A default that is itself out of bounds would leave another value in force. */
		if (strcmp(r.type, "SIZE") != 0 && strcmp(r.type, "TIME") != 0)
			cr_assert_str_eq(r.value, r.def, "%s", r.name);
	}
	cr_assert_gt(n, 10);
	cr_assert_eq(params_row(-1, &r), 0);
	cr_assert_eq(params_row(n, &r), 0);
}

struct case_row {
	char name[32], text[40], value[24]; /* value "": refused */
};

static const struct case_row cases[] = {
	{"SYMCCL_WIN_STRIDE", "4096", "4K"},
	{"SYMCCL_WIN_STRIDE", "64K", "64K"},
	{"SYMCCL_WIN_STRIDE", "2m", "2M"},
	{"SYMCCL_WIN_STRIDE", "1536", "1536"},
	{"SYMCCL_WIN_STRIDE", "4T", "4T"},
	{"SYMCCL_WIN_STRIDE", "5T", ""},
	{"SYMCCL_WIN_STRIDE", "-1", ""},
	{"SYMCCL_WIN_STRIDE", "1KB", ""},
	{"SYMCCL_WIN_STRIDE", "1.5G", ""},
	{"SYMCCL_WIN_STRIDE", "99999999999999999999", ""},
	{"SYMCCL_WIN_STRIDE", "18014398509481984K", ""},
	{"SYMCCL_MIN_CTAS", "64", "64"},
	{"SYMCCL_MIN_CTAS", "65", ""},
	{"SYMCCL_MIN_CTAS", "0", ""},
	{"SYMCCL_MIN_CTAS", "1K", ""},
	{"SYMCCL_MIN_CTAS", "two", ""},
	{"SYMCCL_MIN_CTAS", " 2", ""},
	{"SYMCCL_RANK", "-1", "-1"},
	{"SYMCCL_RANK", "--1", ""},
	{"SYMCCL_RANK", "-", ""},
	{"SYMCCL_SETUP_TIMEOUT", "0.5", "0.5"},
	{"SYMCCL_SETUP_TIMEOUT", "12", "12"},
	{"SYMCCL_SETUP_TIMEOUT", ".25", "0.25"},
	{"SYMCCL_SETUP_TIMEOUT", "0,5", ""},
	{"SYMCCL_SETUP_TIMEOUT", "-3", ""},
	{"SYMCCL_SETUP_TIMEOUT", "nan", ""},
	{"SYMCCL_SETUP_TIMEOUT", "1e3", ""},
	{"SYMCCL_SETUP_TIMEOUT", ".", ""},
	{"SYMCCL_SETUP_TIMEOUT", "86401", ""},
	{"SYMCCL_DEVICE", "host", "host"},
	{"SYMCCL_DEVICE", "CUDA", "cuda"},
	{"SYMCCL_DEVICE", "hos", ""},
	{"SYMCCL_DEVICE", "auto|host", ""},
	{"SYMCCL_COMM_ID", "node1:5555", "node1:5555"},
};

Test(params, texts_become_values_or_a_warning)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct case_row *c = &cases[i];
		const char *log = set(c->name, c->text);
		const struct param_row *r = row(c->name);

		if (c->value[0]) {
			cr_assert_str_eq(
				r->value, c->value, "%s=%s: %s", c->name, c->text, r->value);
			cr_assert_str_empty(log, "%s=%s: %s", c->name, c->text, log);
			cr_assert(r->set);
		} else {
			cr_assert(strstr(log, c->name) && strstr(log, "default"),
				"%s=%s gave no warning: %s", c->name, c->text, log);
			cr_assert_not(r->set, "%s=%s", c->name, c->text);
		}
		unsetenv(c->name);
	}
	reload();
	cr_assert_float_eq(params_get()->setup_timeout, 30, 0);
}

Test(params, empty_is_unset)
{
	cr_assert_str_empty(set("SYMCCL_SETUP_TIMEOUT", ""));
	cr_assert_float_eq(params_get()->setup_timeout, 30, 0);
}

Test(params, strings_outlive_the_environment)
{
	static char variable[] = "SYMCCL_COMM_ID=first:1";

	putenv(variable);
	reload();
	memcpy(strchr(variable, '=') + 1, "other", 5);
	cr_assert_str_eq(params_get()->comm_id, "first:1");
}

Test(params, unknown_names_get_the_nearest)
{
	const char *log = set("SYMCCL_SETUP_TIMOUT", "3");

	cr_assert(strstr(log, "SYMCCL_SETUP_TIMOUT is not") &&
			  strstr(log, "do you mean SYMCCL_SETUP_TIMEOUT?"),
		"%s", log);
	unsetenv("SYMCCL_SETUP_TIMOUT");
	log = set("SYMCCL_XYZZY_QUUX", "3");
	cr_assert(strstr(log, "SYMCCL_XYZZY_QUUX") && !strstr(log, "do you mean"), "%s", log);
	unsetenv("SYMCCL_XYZZY_QUUX");
	cr_assert_str_empty(set("SYMCCL_TEST_ANYTHING", "1"));
}

Test(params, no_warnings_when_silenced)
{
	setenv("SYMCCL_DEBUG", "none", 1);
	cr_assert_str_empty(set("SYMCCL_SETUP_TIMEOUT", "x"));
}
