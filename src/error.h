/*
 * Errors. Every internal function that can fail returns symcclResult_t; whoever decides which
 * error it is calls fail() once, callers pass the code up silently.
 */
#ifndef ERROR_H
#define ERROR_H

#include "symccl.h"

#define ERROR_TEXT_MAX 384

/* A failure that travels between threads, processes and the wire. */
struct failure {
	symcclResult_t code;
	int rank; /* whose fault, or -1 */
	char text[ERROR_TEXT_MAX];
};

/* Record a sentence (lower case, no full stop, names the argument, the rank, the peer and what to
 * do; %m works) as the calling thread's last error, log it at WARN, return code. */
symcclResult_t fail(symcclResult_t code, const char *fmt, ...)
	__attribute__((format(printf, 2, 3), cold));
/* The same without the log line: for a failure that another thread or rank has logged. */
symcclResult_t fail_quiet(symcclResult_t code, const char *fmt, ...)
	__attribute__((format(printf, 2, 3), cold));
/* The calling thread's last sentence; "" when none. */
const char *error_text(void);
/* The name of a result code as in the header ("symcclTimeout"); never NULL. */
const char *error_name(symcclResult_t code);

#define TRY(call) \
	do { \
		symcclResult_t try_result_ = (call); \
		if (__builtin_expect(try_result_ != symcclSuccess, 0)) \
			return try_result_; \
	} while (0)

#endif
