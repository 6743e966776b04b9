/* The cost model's constants as a file: parsed, written, found, refused. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <fcntl.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "params.h"
#include "tuning.h"
#include "util.h"

TestSuite(tuning, .timeout = 20);

static char dir[64];

static void dir_new(void)
{
	strcpy(dir, "/tmp/symccl-tuning-XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
}

static void dir_remove(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	cr_assert_eq(system(command), 0);
}

/* Constants that are nobody's default, in bounds. */
static void odd_constants(struct coll_tuning *t)
{
	double v = 1.25;

	memset(t, 0, sizeof(*t));
#define TUNING(field, def, lo, hi, help) t->field = v += 0.5;
#include "coll/tuning.def"
#undef TUNING
}

static int same(const struct coll_tuning *a, const struct coll_tuning *b)
{
#define TUNING(field, def, lo, hi, help) \
	if (!(a->field == b->field)) \
		return 0;
#include "coll/tuning.def"
#undef TUNING
	return 1;
}

static size_t text_of(const struct coll_tuning *t, const char *processor, char *out, size_t room)
{
	size_t n = (size_t)snprintf(
		out, room, "# a comment\n\nformat = 1\nprocessor = %s\n", processor);

#define TUNING(field, def, lo, hi, help) \
	n += (size_t)snprintf(out + n, room - n, #field "\t=  %.6f # " help "\n", t->field);
#include "coll/tuning.def"
#undef TUNING
	return n;
}

/* ---- Parsing --------------------------------------------------------------------------------- */

Test(tuning, parses_whole_files)
{
	struct coll_tuning want, got = {.algo = "a/b"};
	char text[4096], why[256], *p;

	odd_constants(&want);
	text_of(&want, "Abacus 3", text, sizeof(text));
	cr_assert_eq(tuning_parse(text, "Abacus 3", &got, why, sizeof(why)), 0, "%s", why);
	cr_assert(same(&got, &want));
	cr_assert_str_eq(got.algo, "a/b");
	/* A last line without an end, and ends of another system. */
	text[strlen(text) - 1] = 0;
	cr_assert_eq(tuning_parse(text, "Abacus 3", &got, why, sizeof(why)), 0, "%s", why);
	for (p = text; (p = strchr(p, '\n')) != NULL; p += 2) {
		memmove(p + 1, p, strlen(p) + 1);
		*p = '\r';
	}
	cr_assert_eq(tuning_parse(text, "Abacus 3", &got, why, sizeof(why)), 0, "%s", why);
}

static const struct fault {
	const char *from, *to; /* replaced in a good text */
	int line;
	const char *why;
} faults[] = {
	{"format = 1", "format = 2", 3, "format"},
	{"format = 1\n", "", 3, "format"},
	{"format = 1", "formats = 1", 3, "format"},
	{"Abacus 3", "Abacus 4", 4, "it is for processor \"Abacus 4\", this is \"Abacus 3\""},
	{"processor = Abacus 3\n", "", 7, "processor"},
	{"latency_us\t=", "latency_us\t", 5, "key = value"},
	{"latency_us\t=  ", "latency_us\t=  -", 5, "not a number"},
	{"latency_us\t=  ", "latency_us\t=  nan", 5, "not a number"},
	{"latency_us\t=  ", "latency_us\t=  1,", 5, "not a number"},
	{"latency_us\t=  ", "latency_us\t= #", 5, "not a number"},
	{"latency_us\t=  ", "latency_us\t=  9999999", 5, "not in"},
	{"latency_us\t=  1.", "latency_us\t=  0.00", 5, "not in"},
	{"latency_us\t", "latencies_us", 5, "no constant"},
	{"turn_us\t", "latency_us", 6, "twice"},
	{"turn_us\t", "# ", 8, "turn_us is missing"},
};

Test(tuning, names_the_line_at_fault)
{
	struct coll_tuning good, got, untouched;
	char text[4096], bad[4096], why[256];
	int last;

	odd_constants(&good);
	text_of(&good, "Abacus 3", text, sizeof(text));
	memset(&untouched, 7, sizeof(untouched));
	for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
		const struct fault *f = &faults[i];
		char *at = strstr(text, f->from);
		int line, want = f->line;

		cr_assert_not_null(at, "%s", f->from);
		snprintf(bad, sizeof(bad), "%.*s%s%s", (int)(at - text), text, f->to,
			at + strlen(f->from));
		last = 0;
		for (const char *p = bad; (p = strchr(p, '\n')) != NULL; p++)
			last++;
		if (strstr(f->why, "missing") || strcmp(f->why, "processor") == 0)
			want = last;
		got = untouched;
		why[0] = 0;
		line = tuning_parse(bad, "Abacus 3", &got, why, sizeof(why));
		cr_assert_eq(line, want, "%s -> %s: line %d: %s", f->from, f->to, line, why);
		cr_assert(strstr(why, f->why), "%s -> %s: %s", f->from, f->to, why);
		cr_assert_eq(memcmp(&got, &untouched, sizeof(got)), 0);
	}
	cr_assert_eq(tuning_parse("", "Abacus 3", &got, why, sizeof(why)), 1);
	memset(bad, 'x', sizeof(bad) - 1);
	bad[sizeof(bad) - 1] = 0;
	cr_assert_eq(tuning_parse(bad, "Abacus 3", &got, why, sizeof(why)), 1);
	cr_assert_str_eq(why, "the line is too long");
}

/* Whatever the bytes, it ends and says no. */
Test(tuning, takes_no_cut_file)
{
	struct coll_tuning good, got;
	char text[4096], why[256];
	size_t n, end;

	odd_constants(&good);
	n = text_of(&good, "Abacus 3", text, sizeof(text));
	end = (size_t)(strrchr(text, '=') - text); /* the last constant's value is cut only there */
	for (size_t i = 0; i <= end; i++) {
		char cut[4096];

		memcpy(cut, text, i);
		cut[i] = 0;
		cr_assert_neq(tuning_parse(cut, "Abacus 3", &got, why, sizeof(why)), 0,
			"%zu of %zu", i, n);
	}
}

/* ---- Files ----------------------------------------------------------------------------------- */

static void env(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void env(const char *name, const char *fmt, ...)
{
	char value[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(value, sizeof(value), fmt, ap);
	va_end(ap);
	setenv(name, value, 1);
	params_reload();
}

/* Load with stderr caught; what was logged. */
static const char *load(struct coll_tuning *t)
{
	static char text[8192];
	int fd = memfd_create("stderr", MFD_CLOEXEC), saved = dup(STDERR_FILENO);
	ssize_t n;

	fflush(stderr);
	dup2(fd, STDERR_FILENO);
	tuning_load(t);
	dup2(saved, STDERR_FILENO);
	close(saved);
	n = pread(fd, text, sizeof(text) - 1, 0);
	text[n > 0 ? n : 0] = 0;
	close(fd);
	return text;
}

static int is_default(const struct coll_tuning *t)
{
	struct coll_tuning d;

	coll_tuning_default(&d);
	return same(t, &d);
}

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	cr_assert_not_null(f);
	cr_assert_geq(fputs(text, f), 0);
	cr_assert_eq(fclose(f), 0);
}

Test(tuning, default_path)
{
	char path[TUNING_PATH_MAX], want[TUNING_PATH_MAX];
	struct utsname u;

	cr_assert_eq(uname(&u), 0);
	unsetenv("SYMCCL_TUNING_FILE");
	unsetenv("XDG_CACHE_HOME");
	env("HOME", "/home/x");
	cr_assert(tuning_path(path, sizeof(path)));
	snprintf(want, sizeof(want), "/home/x/.cache/symccl/tuning-%s", u.nodename);
	cr_assert_str_eq(path, want);
	env("XDG_CACHE_HOME", "/cache");
	cr_assert(tuning_path(path, sizeof(path)));
	snprintf(want, sizeof(want), "/cache/symccl/tuning-%s", u.nodename);
	cr_assert_str_eq(path, want);
	env("XDG_CACHE_HOME", "not/absolute");
	cr_assert(tuning_path(path, sizeof(path)));
	cr_assert(strncmp(path, "/home/x/", 8) == 0, "%s", path);
	unsetenv("HOME");
	cr_assert_not(tuning_path(path, sizeof(path)));
	cr_assert_str_empty(path);
	env("SYMCCL_TUNING_FILE", "some/where");
	cr_assert(tuning_path(path, sizeof(path)));
	cr_assert_str_eq(path, "some/where");
	env("SYMCCL_TUNING_FILE", "none");
	cr_assert_not(tuning_path(path, sizeof(path)));
}

Test(tuning, stored_is_loaded)
{
	struct coll_tuning want, got;
	char path[TUNING_PATH_MAX], pattern[256];
	struct stat st;
	glob_t g;

	dir_new();
	unsetenv("SYMCCL_TUNING_FILE");
	env("XDG_CACHE_HOME", "%s/deep/er", dir);
	cr_assert_str_empty(load(&got));
	cr_assert(is_default(&got));
	odd_constants(&want);
	cr_assert(tuning_path(path, sizeof(path)));
	for (int i = 0; i < 2; i++) { /* also over an older one */
		want.latency_us += 1;
		cr_assert_eq(tuning_store(path, &want, "# a note = 3\n"), symcclSuccess, "%s",
			error_text());
		cr_assert_str_empty(load(&got));
		cr_assert(same(&got, &want));
	}
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_mode & 0777, 0644);
	snprintf(pattern, sizeof(pattern), "%s/deep/er/symccl/*", dir);
	cr_assert_eq(glob(pattern, 0, NULL, &g), 0);
	cr_assert_eq(g.gl_pathc, 1, "a temporary file is left");
	globfree(&g);
	dir_remove();
}

Test(tuning, unusable_files_are_named)
{
	struct coll_tuning t;
	char text[4096], processor[256], want[256];
	const char *said;

	dir_new();
	env("SYMCCL_TUNING_FILE", "%s/t", dir);
	said = load(&t); /* asked for by name, so silence would be wrong */
	cr_assert(strstr(said, "WARN") && strstr(said, dir) && strstr(said, "No such file"), "%s",
		said);
	cr_assert(is_default(&t));

	odd_constants(&t);
	tuning_processor(processor, sizeof(processor));
	text_of(&t, processor, text, sizeof(text));
	memcpy(strstr(text, "turn_us"), "turn_ms", 7);
	write_file(params_get()->tuning_file, text);
	said = load(&t);
	snprintf(want, sizeof(want), "%s/t:6: \"turn_ms\" is no constant", dir);
	cr_assert(strstr(said, "WARN") && strstr(said, want), "%s", said);
	cr_assert(is_default(&t));

	odd_constants(&t);
	text_of(&t, "Abacus 3", text, sizeof(text));
	write_file(params_get()->tuning_file, text);
	said = load(&t);
	snprintf(want, sizeof(want), "%s/t:4: it is for processor \"Abacus 3\"", dir);
	cr_assert(strstr(said, "WARN") && strstr(said, want), "%s", said);
	cr_assert(is_default(&t));

	env("SYMCCL_TUNING_FILE", "%s", dir);
	said = load(&t);
	cr_assert(strstr(said, "no regular file"), "%s", said);
	env("SYMCCL_TUNING_FILE", "%s/fifo", dir);
	cr_assert_eq(mkfifo(params_get()->tuning_file, 0600), 0);
	said = load(&t);
	cr_assert(strstr(said, "no regular file"), "%s", said);
	env("SYMCCL_TUNING_FILE", "/proc/self/exe");
	said = load(&t);
	cr_assert(strstr(said, "no text file"), "%s", said);
	cr_assert(is_default(&t));
	dir_remove();
}

Test(tuning, cannot_store)
{
	struct coll_tuning t;

	dir_new();
	odd_constants(&t);
	env("SYMCCL_TUNING_FILE", "%s/file", dir);
	write_file(params_get()->tuning_file, "");
	env("SYMCCL_TUNING_FILE", "%s/file/below", dir);
	cr_assert_eq(tuning_store(params_get()->tuning_file, &t, ""), symcclSystemError);
	cr_assert(strstr(error_text(), "file/below"), "%s", error_text());
	cr_assert_eq(tuning_store(dir, &t, ""), symcclSystemError); /* a directory is there */
	dir_remove();
}
