/*
 * Run one function as n ranks, each a forked process (or a thread), and tell the one test that
 * called what went wrong first.
 *
 *	static int body(int rank, int n, void *arg)
 *	{
 *		symcclUniqueId id;
 *
 *		if (rank == 0)
 *			RANK_OK(symcclGetUniqueId(&id));
 *		RANK_BCAST(&id, sizeof(id));
 *		...
 *		RANK_CHECK(got == want, "got %d", got);
 *		return 0;
 *	}
 *	Test(suite, name, .timeout = 20)
 *	{
 *		char err[1024];
 *
 *		cr_assert_eq(ranks_run(4, 10, body, NULL, err, sizeof(err)), 0, "%s", err);
 *	}
 *
 * The body never calls cr_*: a forked rank that does would hang the run. RANK_* macros return 1
 * from the function they stand in, so helpers return int as well. As soon as one rank fails the
 * others have RANKS_GRACE_S seconds to end by themselves, then they are killed.
 */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include <stddef.h>
#include <sys/types.h>
#include "error.h"

#define RANKS_MAX 1024
#define RANKS_GRACE_S 3.0
#define RANKS_SHARED_BYTES 65536

typedef int rank_fn(int rank, int n, void *arg);

/* Run fn(rank, n, arg) in n forked ranks and wait at most timeout_s for all of them. 0 when every
 * one returned 0 (or died as announced); else 1 and err says which ranks failed, hung or died,
 * first one first. Under ASan a rank that leaks memory fails. One run at a time in a process. */
int ranks_run(int n, double timeout_s, rank_fn *fn, void *arg, char *err, size_t errlen);
/* The same with threads of this process. A thread that hangs cannot be killed: it is left behind.
 */
int ranks_run_threads(int n, double timeout_s, rank_fn *fn, void *arg, char *err, size_t errlen);
/* nproc forked processes of n / nproc ranks (threads) each; n must be a multiple of nproc. */
int ranks_run_mixed(
	int nproc, int n, double timeout_s, rank_fn *fn, void *arg, char *err, size_t errlen);

/* ---- Inside a rank ------------------------------------------------------------------------- */

/* RANKS_SHARED_BYTES bytes that all ranks of the run see; zero at its start. */
void *ranks_shared(void);
/* Wait for every rank that has not ended. Nonzero when another rank failed or time is up. */
int ranks_barrier(void);
/* Rank 0's bytes to all ranks; at most 4096. Two barriers. */
int ranks_bcast(void *p, size_t len);
/* Process id of a rank (of its process). */
pid_t ranks_pid(int rank);
/* From now on `rank` is to die of this signal (whoever sends it); ending otherwise is a failure.
 * 0 takes it back. */
void ranks_expect_signal(int rank, int sig);
/* Announce it and die at once. */
void ranks_die(int sig) __attribute__((noreturn));
/* Where this rank is, for the report about a rank that hung. */
void ranks_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Record this rank's first failure. Helper threads of a forked rank may call it, too. */
void rank_fail(const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#define RANK_FAIL(...) \
	do { \
		rank_fail(__FILE__, __LINE__, __VA_ARGS__); \
		return 1; \
	} while (0)
#define RANK_CHECK(cond, ...) \
	do { \
		if (!(cond)) \
			RANK_FAIL(#cond ": " __VA_ARGS__); \
	} while (0)
/* The call returns exactly this symcclResult_t. */
#define RANK_RESULT(call, want) \
	do { \
		symcclResult_t rank_want_ = (want), rank_got_ = (call); \
		if (rank_got_ != rank_want_) \
			RANK_FAIL("%s: %s instead of %s (last error: %s)", #call, \
				error_name(rank_got_), error_name(rank_want_), error_text()); \
	} while (0)
#define RANK_OK(call) RANK_RESULT(call, symcclSuccess)
#define RANK_BARRIER() RANK_CHECK(ranks_barrier() == 0, "another rank failed or did not come")
#define RANK_BCAST(p, len) RANK_CHECK(ranks_bcast(p, len) == 0, "another rank failed")
/* A helper that has recorded its own failure. */
#define RANK_TRY(call) \
	do { \
		if (call) \
			return 1; \
	} while (0)

/* ---- What a process holds ------------------------------------------------------------------ */

struct leak_snapshot {
	int nfds, memfd_maps, threads;
	size_t reserved;        /* bytes in inaccessible mappings of 1 MiB and more */
	unsigned char fds[512]; /* bit set of descriptors below 4096 */
};
void leak_snapshot(struct leak_snapshot *s);
/* 0 when the process holds no more than before; waits up to wait_s for threads to vanish. Else 1
 * and why names what is left. */
int leak_check(const struct leak_snapshot *before, double wait_s, char *why, size_t whylen);
#define RANK_NO_LEAK(before) \
	do { \
		char rank_why_[512]; \
		RANK_CHECK(leak_check(before, 2.0, rank_why_, sizeof(rank_why_)) == 0, "%s", \
			rank_why_); \
	} while (0)

#endif
