/* See tuning.h. */
#define _GNU_SOURCE
#include "tuning.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include "log.h"
#include "params.h"
#include "util.h"

#define FORMAT "1"
#define FILE_MAX 65536

static const struct row {
	const char *name;
	size_t offset;
	double lo, hi;
	const char *help;
} rows[] = {
#define TUNING(field, def, lo, hi, help) \
	{#field, offsetof(struct coll_tuning, field), lo, hi, help},
#include "coll/tuning.def"
#undef TUNING
};

static double *value_of(struct coll_tuning *t, size_t row)
{
	return (double *)((char *)t + rows[row].offset);
}

/* ---- This machine ---------------------------------------------------------------------------- */

void tuning_processor(char *out, size_t room)
{
	/* x86 has a name, arm64 numbers; of the first CPU. */
	static const char *const fields[] = {"model name", "CPU implementer", "CPU part", "uarch"};
	FILE *f = fopen("/proc/cpuinfo", "re");
	struct utsname u;
	char line[512];
	size_t n = 0;

	out[0] = 0;
	while (f && fgets(line, sizeof(line), f) && line[0] != '\n') {
		char *colon = strchr(line, ':');

		line[strcspn(line, "\n")] = 0;
		for (size_t i = 0; colon && i < ARRAY_LEN(fields); i++)
			if (strncmp(line, fields[i], strlen(fields[i])) == 0 && n < room)
				n += (size_t)snprintf(out + n, room - n, "%s%s", n ? " " : "",
					colon + 1 + strspn(colon + 1, " "));
	}
	if (f)
		fclose(f);
	if (out[0] == 0 && uname(&u) == 0)
		snprintf(out, room, "%s", u.machine);
	out[strcspn(out, "#\r")] = 0;
	for (n = strlen(out); n > 0 && out[n - 1] == ' '; n--)
		out[n - 1] = 0;
}

int tuning_path(char *path, size_t room)
{
	const char *given = params_get()->tuning_file;
	char dir[TUNING_PATH_MAX];
	struct utsname u;

	path[0] = 0;
	if (strcmp(given, "none") == 0)
		return 0;
	if (given[0])
		return snprintf(path, room, "%s", given) < (int)room;
	if (!params_cache_dir(dir, sizeof(dir)) || uname(&u) != 0)
		return 0;
	if (snprintf(path, room, "%s/symccl/tuning-%s", dir, u.nodename) < (int)room)
		return 1;
	path[0] = 0;
	return 0;
}

/* ---- Text to constants: pure ----------------------------------------------------------------- */

struct reading {
	const char *processor;
	struct coll_tuning t;
	char seen[ARRAY_LEN(rows)];
	int format, foreign;
};

static char *trim(char *s)
{
	size_t n;

	s += strspn(s, " \t");
	for (n = strlen(s); n > 0 && strchr(" \t\r", s[n - 1]); n--)
		s[n - 1] = 0;
	return s;
}

static int constant_parse(
	struct reading *r, const char *key, const char *value, char *why, size_t whylen)
{
	double v;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (strcmp(key, rows[i].name) != 0)
			continue;
		if (r->seen[i]) {
			snprintf(why, whylen, "%s is there twice", key);
			return 0;
		}
		if (!number_parse(value, &v)) {
			snprintf(why, whylen, "%s is \"%.32s\", not a number", key, value);
			return 0;
		}
		if (!(v >= rows[i].lo && v <= rows[i].hi)) {
			snprintf(why, whylen, "%s is %.32s, not in %g..%g", key, value, rows[i].lo,
				rows[i].hi);
			return 0;
		}
		r->seen[i] = 1;
		*value_of(&r->t, i) = v;
		return 1;
	}
	snprintf(why, whylen, "\"%.32s\" is no constant of the model", key);
	return 0;
}

/* One line, without its end. 0 and why when it is wrong. */
static int line_parse(struct reading *r, char *line, char *why, size_t whylen)
{
	char *key, *value;

	line[strcspn(line, "#")] = 0;
	key = trim(line);
	if (key[0] == 0)
		return 1;
	value = strchr(key, '=');
	if (value == NULL) {
		snprintf(why, whylen, "\"%.32s\" is not \"key = value\"", key);
		return 0;
	}
	*value++ = 0;
	key = trim(key);
	value = trim(value);
	if (!r->format) {
		r->format = strcmp(key, "format") == 0 && strcmp(value, FORMAT) == 0;
		if (!r->format)
			snprintf(why, whylen,
				"it does not begin with \"format = " FORMAT
				"\": no tuning file of this version");
		return r->format;
	}
	if (strcmp(key, "processor") != 0)
		return constant_parse(r, key, value, why, whylen);
	r->foreign = 1;
	if (strcmp(value, r->processor) == 0)
		return 1;
	snprintf(why, whylen, "it is for processor \"%.64s\", this is \"%.64s\"", value,
		r->processor);
	return 0;
}

int tuning_parse(
	const char *text, const char *processor, struct coll_tuning *t, char *why, size_t whylen)
{
	struct reading r = {.processor = processor, .t = *t};
	char line[512];
	int at = 0;

	for (const char *p = text; *p; at++) {
		size_t n = strcspn(p, "\n");

		if (n >= sizeof(line)) {
			snprintf(why, whylen, "the line is too long");
			return at + 1;
		}
		memcpy(line, p, n);
		line[n] = 0;
		if (!line_parse(&r, line, why, whylen))
			return at + 1;
		p += n + (p[n] == '\n');
	}
	if (!r.foreign) {
		snprintf(why, whylen, "there is no \"%s\" line", r.format ? "processor" : "format");
		return MAX(at, 1);
	}
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (!r.seen[i]) {
			snprintf(why, whylen, "%s is missing", rows[i].name);
			return MAX(at, 1);
		}
	*t = r.t;
	return 0;
}

/* ---- Files ----------------------------------------------------------------------------------- */

/* The whole file with a zero behind it, or NULL with errno and the reason. Never blocks. */
static char *slurp(const char *path, const char **why)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char *text = NULL;
	struct stat st;
	size_t n = 0;
	ssize_t got;

	*why = NULL;
	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) == 0 && !S_ISREG(st.st_mode))
		*why = "it is no regular file";
	else if ((text = malloc(FILE_MAX + 1)) != NULL)
		while (n < FILE_MAX && (got = read(fd, text + n, FILE_MAX - n)) > 0)
			n += (size_t)got;
	close(fd);
	if (text == NULL)
		return NULL;
	text[n] = 0;
	if (strlen(text) == n && n < FILE_MAX)
		return text;
	*why = "it is no text file";
	free(text);
	return NULL;
}

void tuning_load(struct coll_tuning *t)
{
	char path[TUNING_PATH_MAX], processor[256], why[256], *text;
	const char *what;
	int line;

	coll_tuning_default(t);
	if (!tuning_path(path, sizeof(path)))
		return;
	text = slurp(path, &what);
	/* Nobody has asked for that one. */
	if (text == NULL && what == NULL && !params_get()->tuning_file[0]) {
		log_info(LOG_PARAM,
			"%s: %m; the cost model's constants are those compiled in (symccl-tune "
			"measures this machine's)",
			path);
		return;
	}
	if (text == NULL) {
		log_warn(LOG_PARAM, "%s: %s; taking the constants compiled in", path,
			what ? what : strerror(errno));
		return;
	}
	tuning_processor(processor, sizeof(processor));
	line = tuning_parse(text, processor, t, why, sizeof(why));
	if (line)
		log_warn(LOG_PARAM,
			"%s:%d: %s; taking the constants compiled in (symccl-tune makes the file "
			"anew)",
			path, line, why);
	else
		log_info(LOG_PARAM, "the cost model's constants are from %s", path);
	free(text);
}

/* All directories above path. */
static int make_dirs(const char *path)
{
	char dir[TUNING_PATH_MAX];

	snprintf(dir, sizeof(dir), "%s", path);
	for (char *p = dir + 1; (p = strchr(p, '/')) != NULL; *p++ = '/') {
		*p = 0;
		if (mkdir(dir, 0777) != 0 && errno != EEXIST)
			return -1;
	}
	return 0;
}

static int print_all(FILE *f, const struct coll_tuning *t, const char *note)
{
	struct coll_tuning copy = *t;
	char processor[256], date[64] = "?";
	time_t now = time(NULL);
	struct utsname u;
	struct tm tm;

	if (gmtime_r(&now, &tm) != NULL)
		strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", &tm);
	tuning_processor(processor, sizeof(processor));
	fprintf(f, "# Cost model of symccl, made by symccl-tune on %s, %s.\n%s",
		uname(&u) == 0 ? u.nodename : "?", date, note);
	fprintf(f, "format = " FORMAT "\nprocessor = %s\n", processor);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		fprintf(f, "%s = %.6f # %s\n", rows[i].name, *value_of(&copy, i), rows[i].help);
	return fflush(f) == 0 && !ferror(f) ? 0 : -1;
}

symcclResult_t tuning_store(const char *path, const struct coll_tuning *t, const char *note)
{
	char temp[TUNING_PATH_MAX + 8];
	FILE *f = NULL;
	int fd, bad;

	snprintf(temp, sizeof(temp), "%s.XXXXXX", path);
	if (make_dirs(path) != 0)
		return fail(symcclSystemError, "%s: cannot make its directory: %m", path);
	fd = mkostemp(temp, O_CLOEXEC);
	if (fd >= 0)
		f = fdopen(fd, "w");
	if (f == NULL) {
		symcclResult_t e = fail(symcclSystemError, "cannot write %s: %m", temp);

		if (fd >= 0) {
			close(fd);
			unlink(temp);
		}
		return e;
	}
	bad = print_all(f, t, note) != 0 || fchmod(fd, 0644) != 0;
	bad |= fclose(f) != 0;
	if (!bad && rename(temp, path) == 0)
		return symcclSuccess;
	fail(symcclSystemError, "cannot write %s: %m", path);
	unlink(temp);
	return symcclSystemError;
}
