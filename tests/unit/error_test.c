#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include "error.h"

TestSuite(error, .timeout = 10);

Test(error, every_code_has_a_name_and_a_sentence)
{
	for (int a = 0; a < symcclNumResults; a++) {
		cr_assert(strncmp(error_name(a), "symccl", 6) == 0, "%d: %s", a, error_name(a));
		cr_assert(strlen(symcclGetErrorString(a)) > 5, "%d", a);
		for (int b = 0; b < a; b++) {
			cr_assert_str_neq(error_name(a), error_name(b));
			cr_assert_str_neq(symcclGetErrorString(a), symcclGetErrorString(b));
		}
	}
	cr_assert_str_eq(error_name(symcclTimeout), "symcclTimeout");
}

Test(error, codes_outside_the_enum_have_one_too)
{
	cr_assert_str_eq(symcclGetErrorString(symcclNumResults), "unknown result code");
	cr_assert_str_eq(symcclGetErrorString((symcclResult_t)-1), "unknown result code");
	cr_assert_str_eq(error_name((symcclResult_t)1000), "unknown result code");
}

Test(error, fail_keeps_the_sentence_and_errno)
{
	cr_assert_str_empty(error_text());
	errno = ENOSPC;
	cr_assert_eq(fail_quiet(symcclSystemError, "rank %d: %m", 3), symcclSystemError);
	cr_assert_eq(errno, ENOSPC);
	cr_assert_str_eq(error_text(), "rank 3: No space left on device");
	/* The old sentence may be part of the new one. */
	fail_quiet(symcclRemoteError, "peer 1 said: %s", error_text());
	cr_assert_str_eq(error_text(), "peer 1 said: rank 3: No space left on device");
}

Test(error, long_sentences_are_cut)
{
	char text[2 * ERROR_TEXT_MAX];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	fail_quiet(symcclInternalError, "%s", text);
	cr_assert_eq(strlen(error_text()), ERROR_TEXT_MAX - 1);
}

static void *other_thread(void *arg)
{
	*(int *)arg = error_text()[0] == 0;
	fail_quiet(symcclTimeout, "of the other thread");
	return NULL;
}

Test(error, each_thread_has_its_own)
{
	pthread_t t;
	int was_empty = 0;

	fail_quiet(symcclTimeout, "mine");
	cr_assert_eq(pthread_create(&t, NULL, other_thread, &was_empty), 0);
	pthread_join(t, NULL);
	cr_assert(was_empty);
	cr_assert_str_eq(error_text(), "mine");
}

static symcclResult_t passes_up(symcclResult_t r, int *reached)
{
	TRY(r);
	*reached = 1;
	return symcclSuccess;
}

Test(error, try_returns_the_failure)
{
	int reached = 0;

	cr_assert_eq(passes_up(symcclTimeout, &reached), symcclTimeout);
	cr_assert_eq(reached, 0);
	cr_assert_eq(passes_up(symcclSuccess, &reached), symcclSuccess);
	cr_assert_eq(reached, 1);
}
