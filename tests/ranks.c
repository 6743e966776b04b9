#define _GNU_SOURCE
#include "ranks.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "util.h"

#define BCAST_BYTES 4096
#define TEXT_BYTES 600

/* One rank's line of the run; shared by all processes. */
struct slot {
	_Alignas(128) uint64_t arrived; /* barriers entered; atomic */
	uint32_t ended;                 /* atomic; no barrier waits for it any more */
	uint32_t failed;                /* atomic; 1: somebody writes text, 2: written */
	uint64_t failed_at;
	int expect_signal; /* atomic */
	pid_t pid;
	char text[TEXT_BYTES];
	char note[128];
};

struct run {
	int n, per_proc, nproc;
	uint64_t deadline; /* atomic: a failure brings it forward */
	uint32_t stop;     /* atomic: barriers return */
	rank_fn *fn;
	void *arg;
	char bcast[BCAST_BYTES];
	_Alignas(128) char shared[RANKS_SHARED_BYTES];
	struct slot slot[];
};

static struct run *run; /* this process's run */
static int first_rank;  /* of this process, for threads that are no rank */
static _Thread_local int self = -1;

/* Present in ASan builds only. */
extern int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static struct slot *my_slot(void)
{
	return &run->slot[self >= 0 ? self : first_rank];
}

/* ---- For the body -------------------------------------------------------------------------- */

void rank_fail(const char *file, int line, const char *fmt, ...)
{
	struct slot *s = my_slot();
	uint32_t none = 0;
	va_list ap;
	int n;

	if (!__atomic_compare_exchange_n(
		    &s->failed, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return;
	s->failed_at = now_ns();
	n = snprintf(s->text, sizeof(s->text), "%s:%d: ", file, line);
	va_start(ap, fmt);
	vsnprintf(s->text + n, sizeof(s->text) - (size_t)n, fmt, ap);
	va_end(ap);
	__atomic_store_n(&s->failed, 2, __ATOMIC_RELEASE);
}

void ranks_note(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(my_slot()->note, sizeof(my_slot()->note), fmt, ap);
	va_end(ap);
}

void *ranks_shared(void)
{
	return run->shared;
}

pid_t ranks_pid(int rank)
{
	return run->slot[rank].pid;
}

void ranks_expect_signal(int rank, int sig)
{
	__atomic_store_n(&run->slot[rank].expect_signal, sig, __ATOMIC_RELEASE);
}

void ranks_die(int sig)
{
	ranks_expect_signal(self, sig);
	signal(sig, SIG_DFL);
	kill(getpid(), sig);
	for (;;)
		pause();
}

static void nap(int *round)
{
	if ((*round)++ < 100)
		sched_yield();
	else
		usleep(200);
}

int ranks_barrier(void)
{
	uint64_t mine = my_slot()->arrived + 1;
	int round = 0;

	__atomic_store_n(&my_slot()->arrived, mine, __ATOMIC_RELEASE);
	for (int r = 0; r < run->n; r++) {
		struct slot *s = &run->slot[r];

		while (__atomic_load_n(&s->arrived, __ATOMIC_ACQUIRE) < mine &&
			!__atomic_load_n(&s->ended, __ATOMIC_ACQUIRE)) {
			if (__atomic_load_n(&run->stop, __ATOMIC_ACQUIRE) ||
				now_ns() > __atomic_load_n(&run->deadline, __ATOMIC_RELAXED))
				return 1;
			nap(&round);
		}
	}
	return 0;
}

int ranks_bcast(void *p, size_t len)
{
	if (len > BCAST_BYTES)
		return 1;
	if (self == 0)
		memcpy(run->bcast, p, len);
	if (ranks_barrier())
		return 1;
	if (self != 0)
		memcpy(p, run->bcast, len);
	return ranks_barrier();
}

/* ---- One process of ranks ------------------------------------------------------------------ */

static void rank_main(int rank)
{
	struct slot *s = &run->slot[rank];
	int rc;

	self = rank;
	rc = run->fn(rank, run->n, run->arg);
	if (rc)
		rank_fail(__FILE__, __LINE__, "returned %d and did not say why", rc);
	__atomic_store_n(&s->ended, 1, __ATOMIC_RELEASE);
}

static void *rank_thread(void *arg)
{
	rank_main((int)((struct slot *)arg - run->slot));
	return NULL;
}

/* Start a thread per rank of [first, first + n); how many could be started. */
static int threads_start(int first, int n, pthread_t *threads)
{
	pthread_attr_t attr;
	int i;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 1 << 20);
	for (i = 0; i < n; i++) {
		int e = pthread_create(&threads[i], &attr, rank_thread, &run->slot[first + i]);

		if (e) {
			self = first + i;
			rank_fail(__FILE__, __LINE__, "pthread_create: %s", strerror(e));
			self = -1;
			break;
		}
	}
	pthread_attr_destroy(&attr);
	return i;
}

static void process_main(int proc, pid_t parent)
{
	pthread_t threads[RANKS_MAX];
	int n = run->per_proc, started, failed = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	first_rank = proc * n;
	for (int r = first_rank; r < first_rank + n; r++)
		run->slot[r].pid = getpid();
	if (n == 1) {
		rank_main(first_rank);
	} else {
		started = threads_start(first_rank, n, threads);
		for (int i = 0; i < started; i++)
			pthread_join(threads[i], NULL);
	}
	for (int r = first_rank; r < first_rank + n; r++)
		failed |= __atomic_load_n(&run->slot[r].failed, __ATOMIC_ACQUIRE) != 0;
	if (!failed && __lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check()) {
		rank_fail(__FILE__, __LINE__, "leaks memory, see the log");
		failed = 1;
	}
	fflush(NULL);
	_exit(failed);
}

/* ---- The parent ---------------------------------------------------------------------------- */

/* A failure has been seen: let the others end, but not for long. */
static void hurry(void)
{
	uint64_t soon = now_ns() + (uint64_t)(RANKS_GRACE_S * 1e9);

	if (!__atomic_exchange_n(&run->stop, 1, __ATOMIC_ACQ_REL))
		__atomic_store_n(&run->deadline, MIN(soon, run->deadline), __ATOMIC_RELAXED);
}

static void process_ended(int proc, int status)
{
	int first = proc * run->per_proc, want = 0, failed = 0;

	for (int r = first; r < first + run->per_proc; r++) {
		want = want ? want : __atomic_load_n(&run->slot[r].expect_signal, __ATOMIC_ACQUIRE);
		failed |= __atomic_load_n(&run->slot[r].failed, __ATOMIC_ACQUIRE) != 0;
	}
	self = first;
	if (want && !(WIFSIGNALED(status) && WTERMSIG(status) == want))
		rank_fail(__FILE__, __LINE__, "was to die of signal %d, but ended with status 0x%x",
			want, status);
	else if (WIFSIGNALED(status) && !want)
		rank_fail(__FILE__, __LINE__, "died of signal %d (%s)%s%s", WTERMSIG(status),
			strsignal(WTERMSIG(status)), my_slot()->note[0] ? " at " : "",
			my_slot()->note);
	else if (WIFEXITED(status) && WEXITSTATUS(status) && !failed)
		rank_fail(__FILE__, __LINE__, "exited with %d", WEXITSTATUS(status));
	self = -1;
	for (int r = first; r < first + run->per_proc; r++) {
		__atomic_store_n(&run->slot[r].ended, 1, __ATOMIC_RELEASE);
		if (__atomic_load_n(&run->slot[r].failed, __ATOMIC_ACQUIRE))
			hurry();
	}
}

static int any_failed(void)
{
	for (int r = 0; r < run->n; r++)
		if (__atomic_load_n(&run->slot[r].failed, __ATOMIC_ACQUIRE))
			return 1;
	return 0;
}

static void hung(int rank, double timeout_s)
{
	struct slot *s = &run->slot[rank];

	self = rank;
	rank_fail(__FILE__, __LINE__, "hung: no end within %g s%s%s", timeout_s,
		s->note[0] ? ", last at " : "", s->note);
	self = -1;
}

/* The failures, the earliest first, one line each. */
static int report(char *err, size_t errlen)
{
	size_t used = 0;
	int bad = 0;

	if (errlen)
		err[0] = 0;
	for (;;) {
		int next = -1;

		for (int r = 0; r < run->n; r++)
			if (run->slot[r].failed == 2 &&
				(next < 0 || run->slot[r].failed_at < run->slot[next].failed_at))
				next = r;
		if (next < 0)
			return bad;
		if (used < errlen)
			used += (size_t)snprintf(err + used, errlen - used, "%srank %d: %s",
				bad ? "\n" : "", next, run->slot[next].text);
		run->slot[next].failed = 3;
		bad = 1;
	}
}

static int run_new(
	int n, int nproc, double timeout_s, rank_fn *fn, void *arg, char *err, size_t errlen)
{
	size_t size = sizeof(*run) + (size_t)n * sizeof(run->slot[0]);

	if (n < 1 || n > RANKS_MAX || nproc < 1 || n % nproc) {
		snprintf(err, errlen, "%d ranks in %d processes cannot be run", n, nproc);
		return 0;
	}
	run = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (run == MAP_FAILED) {
		snprintf(err, errlen, "no memory for %d ranks: %s", n, strerror(errno));
		return 0;
	}
	run->n = n;
	run->nproc = nproc;
	run->per_proc = n / nproc;
	run->fn = fn;
	run->arg = arg;
	run->deadline = now_ns() + (uint64_t)(timeout_s * 1e9);
	return 1;
}

static void run_free(void)
{
	munmap(run, sizeof(*run) + (size_t)run->n * sizeof(run->slot[0]));
	run = NULL;
}

/* Wait for all processes until the deadline; those left over are killed and reported as hung. */
static void processes_wait(pid_t *pids, double timeout_s)
{
	int left = 0, status;

	for (int p = 0; p < run->nproc; p++)
		left += pids[p] > 0;
	while (left > 0) {
		int late = now_ns() > __atomic_load_n(&run->deadline, __ATOMIC_RELAXED);

		if (any_failed())
			hurry();
		for (int p = 0; p < run->nproc; p++) {
			if (pids[p] <= 0)
				continue;
			if (late) {
				for (int i = 0; i < run->per_proc; i++)
					if (!run->slot[p * run->per_proc + i].ended)
						hung(p * run->per_proc + i, timeout_s);
				kill(pids[p], SIGKILL);
			}
			if (waitpid(pids[p], &status, late ? 0 : WNOHANG) != pids[p])
				continue;
			pids[p] = 0;
			left--;
			process_ended(p, status);
		}
		if (left > 0)
			usleep(500);
	}
}

int ranks_run_mixed(
	int nproc, int n, double timeout_s, rank_fn *fn, void *arg, char *err, size_t errlen)
{
	pid_t pids[RANKS_MAX] = {0}, parent = getpid();
	int bad;

	if (!run_new(n, nproc, timeout_s, fn, arg, err, errlen))
		return 1;
	fflush(NULL);
	for (int p = 0; p < nproc; p++) {
		pids[p] = fork();
		if (pids[p] == 0)
			process_main(p, parent);
		for (int i = 0; i < run->per_proc; i++)
			run->slot[p * run->per_proc + i].pid = pids[p];
		if (pids[p] < 0) {
			self = p * run->per_proc;
			rank_fail(__FILE__, __LINE__, "fork: %s", strerror(errno));
			self = -1;
			hurry();
			break;
		}
	}
	processes_wait(pids, timeout_s);
	bad = report(err, errlen);
	run_free();
	return bad;
}

int ranks_run(int n, double timeout_s, rank_fn *fn, void *arg, char *err, size_t errlen)
{
	return ranks_run_mixed(n, n, timeout_s, fn, arg, err, errlen);
}

int ranks_run_threads(int n, double timeout_s, rank_fn *fn, void *arg, char *err, size_t errlen)
{
	pthread_t threads[RANKS_MAX];
	struct timespec until;
	int bad, started, lost = 0;

	if (!run_new(n, 1, timeout_s, fn, arg, err, errlen))
		return 1;
	for (int r = 0; r < n; r++)
		run->slot[r].pid = getpid();
	started = threads_start(0, n, threads);
	for (int i = started; i < n; i++)
		run->slot[i].ended = 1;
	for (int i = 0; i < started; i++) {
		int joined = 0;

		while (!joined && now_ns() <= run->deadline) {
			if (any_failed())
				hurry();
			clock_gettime(CLOCK_REALTIME, &until);
			until.tv_nsec += 20000000;
			until.tv_sec += until.tv_nsec / 1000000000;
			until.tv_nsec %= 1000000000;
			joined = pthread_timedjoin_np(threads[i], NULL, &until) == 0;
		}
		if (!joined && pthread_tryjoin_np(threads[i], NULL) != 0) {
			hung(i, timeout_s);
			pthread_detach(threads[i]);
			lost = 1;
		}
	}
	bad = report(err, errlen);
	if (!lost) /* else a thread that was left behind still looks at it */
		run_free();
	return bad;
}
