#include "error.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "log.h"
#include "util.h"

static const struct {
	const char *name, *sentence;
} results[] = {
#define RESULT(code, sentence) [code] = {#code, sentence},
#include "error.def"
#undef RESULT
};

/* The list is complete and in the enum's order. */
enum {
#define RESULT(code, sentence) ROW_##code,
#include "error.def"
#undef RESULT
	NROWS
};
_Static_assert(NROWS == (int)symcclNumResults, "error.def lacks a row");
#define RESULT(code, sentence) _Static_assert(ROW_##code == (int)code, "error.def: wrong order");
#include "error.def"
#undef RESULT

static _Thread_local char last[ERROR_TEXT_MAX];

static int known(symcclResult_t code)
{
	return (unsigned)code < ARRAY_LEN(results);
}

const char *symcclGetErrorString(symcclResult_t result)
{
	return known(result) ? results[result].sentence : "unknown result code";
}

const char *error_name(symcclResult_t code)
{
	return known(code) ? results[code].name : "unknown result code";
}

const char *error_text(void)
{
	return last;
}

/* By way of a copy: the old sentence may be an argument of the new one. */
static void set_last(const char *fmt, va_list ap)
{
	char text[ERROR_TEXT_MAX];

	vsnprintf(text, sizeof(text), fmt, ap);
	memcpy(last, text, sizeof(last));
}

symcclResult_t fail(symcclResult_t code, const char *fmt, ...)
{
	int saved = errno;
	va_list ap;

	va_start(ap, fmt);
	set_last(fmt, ap);
	va_end(ap);
	log_warn(LOG_ALL, "%s: %s", error_name(code), last);
	errno = saved;
	return code;
}

symcclResult_t fail_quiet(symcclResult_t code, const char *fmt, ...)
{
	int saved = errno;
	va_list ap;

	va_start(ap, fmt);
	set_last(fmt, ap);
	va_end(ap);
	errno = saved;
	return code;
}
