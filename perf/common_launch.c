/* Processes, threads and ranks: who there is, where they run, what memory they have. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

enum { ID_WAIT_S = 60, STRAGGLER_S = 5, PAGE = 4096 };

/* ---- Failing ---------------------------------------------------------------------------- */

void perf_die(const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fflush(stdout);
	fprintf(stderr, "%s: %s\n", program_invocation_short_name, text);
	_exit(1);
}

void perf_check(symcclResult_t result, symcclComm_t comm, const char *what)
{
	const char *why;

	if (result == symcclSuccess)
		return;
	why = symcclGetLastError(comm);
	if (!*why)
		why = symcclGetLastError(NULL);
	perf_die("%s: %s: %s", what, symcclGetErrorString(result), why);
}

static void timed_out(int sig)
{
	static const char text[] = "perf: a size took longer than -T allows\n";

	(void)sig;
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(1);
}

/* ---- Processes -------------------------------------------------------------------------- */

void *perf_shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		perf_die("no shared memory: %s", strerror(errno));
	return p;
}

static void child_report(pid_t pid, int index, int status)
{
	if (WIFSIGNALED(status))
		fprintf(stderr, "%s: process %d (pid %d) was killed by signal %d (%s)\n",
			program_invocation_short_name, index, (int)pid, WTERMSIG(status),
			strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status))
		fprintf(stderr, "%s: process %d (pid %d) failed\n", program_invocation_short_name,
			index, (int)pid);
}

/* Wait for all; the first failure starts the stragglers' clock. */
static int children_wait(const pid_t *pids, int n)
{
	double deadline = 0;
	int left = n, rc = 0;

	while (left) {
		int status, index = 0;
		pid_t pid = waitpid(-1, &status, deadline > 0 ? WNOHANG : 0);

		if (pid < 0 && errno == EINTR)
			continue;
		if (pid < 0)
			return 1;
		if (!pid) {
			if (bench_now(CLOCK_MONOTONIC) > deadline)
				for (int i = 0; i < n; i++)
					kill(pids[i], SIGKILL);
			usleep(10000);
			continue;
		}
		while (index < n && pids[index] != pid)
			index++;
		left--;
		if (!status)
			continue;
		if (!rc)
			child_report(pid, index, status);
		rc = rc ? rc : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
		if (deadline <= 0)
			deadline = bench_now(CLOCK_MONOTONIC) + STRAGGLER_S;
	}
	return rc;
}

int perf_fork(int n, int (*body)(int index, void *arg), void *arg)
{
	pid_t *pids = calloc((size_t)n, sizeof(*pids)), parent = getpid();
	int rc;

	if (!pids)
		perf_die("no memory");
	fflush(NULL);
	for (int i = 0; i < n; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != parent)
				_exit(1);
			rc = body(i, arg);
			fflush(NULL);
			_exit(rc);
		}
		if (pids[i] < 0) {
			fprintf(stderr, "%s: fork of process %d of %d: %s\n",
				program_invocation_short_name, i, n, strerror(errno));
			for (int k = 0; k < i; k++)
				kill(pids[k], SIGKILL);
			children_wait(pids, i);
			free(pids);
			return 1;
		}
	}
	rc = children_wait(pids, n);
	free(pids);
	return rc;
}

symcclUniqueId perf_id_get(struct perf_id *shared, int index)
{
	if (index == 0) {
		perf_check(symcclGetUniqueId(&shared->id), NULL, "symcclGetUniqueId");
		atomic_store_explicit(&shared->ready, 1, memory_order_release);
		return shared->id;
	}
	for (int ms = 0; !atomic_load_explicit(&shared->ready, memory_order_acquire); ms++) {
		if (ms > ID_WAIT_S * 1000)
			perf_die("process %d waited %d s for the first one's id", index, ID_WAIT_S);
		usleep(1000);
	}
	return shared->id;
}

/* ---- CPUs ------------------------------------------------------------------------------- */

int cpus_allowed(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

int cpu_pin(int index)
{
	cpu_set_t set, one;

	if (sched_getaffinity(0, sizeof(set), &set))
		return -1;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set) && index-- == 0) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			return sched_setaffinity(0, sizeof(one), &one) ? -1 : cpu;
		}
	return -1;
}

/* Ranks of a group run in the library's own threads, which a pinned caller would gather on one
 * CPU: those are left alone. */
static int pin_wanted(const struct perf_job *job)
{
	const struct perf_options *o = &job->opt;

	if (o->pin != PERF_AUTO)
		return o->pin;
	return o->ranks == 1 && job->local_index >= 0 &&
	       job->local_procs * o->threads <= cpus_allowed();
}

/* ---- Ranks ------------------------------------------------------------------------------ */

static char *buffer_alloc(int kind, size_t bytes, int rank)
{
	size_t rounded = (bytes + PAGE - 1) / PAGE * PAGE;
	void *p = NULL;

	if (kind) {
		perf_check(symcclMemAllocOn(&p, rounded, symcclDeviceHost), NULL, "symcclMemAlloc");
		return p;
	}
	p = aligned_alloc(PAGE, rounded);
	if (!p)
		perf_die("rank %d: no memory for a buffer of %zu bytes", rank, rounded);
	memset(p, 0, rounded);
	return p;
}

static size_t memory_available(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128];
	size_t kib = 0;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %zu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib ? kib << 10 : SIZE_MAX;
}

/* Bytes of the largest send and receive buffer. Rounding is coarsest for 1-byte elements, so
 * elements of every size fit. */
static void buffer_bytes(const struct perf_job *job, size_t *send, size_t *recv)
{
	size_t most = 0, pad = (size_t)job->opt.unalign * 8 + PERF_GUARD;
	struct perf_case c = {.nranks = job->nranks, .esize = 1};

	for (int i = 0; i < job->opt.nsizes; i++)
		most = job->opt.sizes[i] > most ? job->opt.sizes[i] : most;
	job->coll->counts(most, &c);
	*send = c.sendcount + pad;
	*recv = (c.sendcount > c.recvcount ? c.sendcount : c.recvcount) + pad; /* in place: both */
}

static void comms_create(struct perf_thread *t)
{
	struct perf_job *job = t->job;
	symcclConfig_t config = SYMCCL_CONFIG_INITIALIZER;
	symcclDeviceType_t type;

	/* What is timed here is CPU memory; a communicator on a GPU would not take it. */
	config.device = job->opt.device == symcclDeviceAuto ? symcclDeviceHost
							    : (symcclDeviceType_t)job->opt.device;
	perf_check(symcclGroupStart(), NULL, "symcclGroupStart");
	for (int i = 0; i < job->opt.ranks; i++)
		perf_check(symcclCommInitRankConfig(&t->ranks[i].comm, job->nranks, job->id,
				   t->ranks[i].rank, &config),
			NULL, "symcclCommInitRank");
	perf_check(symcclGroupEnd(), NULL, "symcclCommInitRank");
	perf_check(symcclCommDeviceType(t->ranks[0].comm, &type), t->ranks[0].comm,
		"symcclCommDeviceType");
	if (type != symcclDeviceHost)
		perf_die("this program times CPU memory only: use --device host");
}

static void windows_register(struct perf_thread *t)
{
	perf_check(symcclGroupStart(), NULL, "symcclGroupStart");
	for (int i = 0; i < t->job->opt.ranks; i++) {
		struct perf_rank *r = &t->ranks[i];

		perf_check(symcclCommWindowRegister(r->comm, r->send_base, r->send_bytes,
				   &r->send_win, SYMCCL_WIN_COLL_SYMMETRIC),
			r->comm, "symcclCommWindowRegister of the send buffer");
		perf_check(symcclCommWindowRegister(r->comm, r->recv_base, r->recv_bytes,
				   &r->recv_win, SYMCCL_WIN_COLL_SYMMETRIC),
			r->comm, "symcclCommWindowRegister of the receive buffer");
	}
	perf_check(symcclGroupEnd(), t->ranks[0].comm, "symcclCommWindowRegister");
}

/* Flags that all threads of the job can see, for a barrier that is not the library's own. Where
 * ranks do not share memory, or are too many to meet all with all, team.n stays 0. */
static void team_make(struct perf_thread *t)
{
	struct perf_job *job = t->job;
	int per = job->opt.ranks, n = job->nprocs * job->opt.threads;
	symcclWindow_t win[per];
	void *p[per];

	if (n > BENCH_TEAM_MAX)
		return;
	perf_check(symcclGroupStart(), NULL, "symcclGroupStart");
	for (int i = 0; i < per; i++) {
		perf_check(symcclMemAllocOn(&p[i], sizeof(struct bench_flags), symcclDeviceHost),
			NULL, "symcclMemAlloc");
		perf_check(symcclCommWindowRegister(t->ranks[i].comm, p[i],
				   sizeof(struct bench_flags), &win[i], SYMCCL_WIN_DEFAULT),
			t->ranks[i].comm, "symcclCommWindowRegister");
	}
	perf_check(symcclGroupEnd(), t->ranks[0].comm, "symcclCommWindowRegister");
	for (int i = 1; i < per; i++) {
		perf_check(symcclCommWindowDeregister(t->ranks[i].comm, win[i]), t->ranks[i].comm,
			"symcclCommWindowDeregister");
		symcclMemFree(p[i]);
	}
	t->flags = p[0];
	t->flags_win = win[0];
	for (int i = 0; i < n; i++) {
		void *peer;

		if (symcclWinGetPeerPtr(t->ranks[0].comm, win[0], i * per, 0, &peer))
			return;
		t->team.of[i] = peer;
	}
	t->team.me = t->index;
	/* All the machine's CPUs: a launcher may have bound each process to one of them. */
	t->team.yield = job->local_procs < 0 ||
			job->local_procs * job->opt.threads * per > sysconf(_SC_NPROCESSORS_ONLN);
	t->team.n = n;
}

static void buffers_make(struct perf_thread *t)
{
	size_t send, recv;

	buffer_bytes(t->job, &send, &recv);
	for (int i = 0; i < t->job->opt.ranks; i++) {
		struct perf_rank *r = &t->ranks[i];

		r->send_bytes = send;
		r->recv_bytes = recv;
		r->send_base = buffer_alloc(t->job->opt.buffers, send, r->rank);
		r->recv_base = buffer_alloc(t->job->opt.buffers, recv, r->rank);
	}
	if (t->job->opt.buffers == 2)
		windows_register(t);
}

static void thread_close(struct perf_thread *t)
{
	perf_check(symcclGroupStart(), NULL, "symcclGroupStart");
	for (int i = 0; i < t->job->opt.ranks; i++) {
		struct perf_rank *r = &t->ranks[i];

		perf_check(symcclCommWindowDeregister(r->comm, r->send_win), r->comm, "deregister");
		perf_check(symcclCommWindowDeregister(r->comm, r->recv_win), r->comm, "deregister");
		if (i == 0)
			perf_check(symcclCommWindowDeregister(r->comm, t->flags_win), r->comm,
				"deregister");
		perf_check(symcclCommDestroy(r->comm), NULL, "symcclCommDestroy");
	}
	perf_check(symcclGroupEnd(), NULL, "symcclCommDestroy");
	symcclMemFree(t->flags);
	for (int i = 0; i < t->job->opt.ranks; i++)
		if (t->job->opt.buffers) {
			symcclMemFree(t->ranks[i].send_base);
			symcclMemFree(t->ranks[i].recv_base);
		} else {
			free(t->ranks[i].send_base);
			free(t->ranks[i].recv_base);
		}
	free(t->ranks);
	free(t->mine);
	free(t->all);
}

static void *thread_main(void *arg)
{
	struct perf_thread *t = arg;
	struct perf_job *job = t->job;
	int per = job->opt.ranks;

	t->ranks = calloc((size_t)per, sizeof(*t->ranks));
	if (!t->ranks)
		perf_die("no memory");
	for (int i = 0; i < per; i++)
		t->ranks[i].rank = t->index * per + i;
	comms_create(t);
	team_make(t);
	/* Only now, so that the library's helper threads are not pinned with this one. */
	if (job->pinned &&
		cpu_pin(job->local_index * job->opt.threads + t->index % job->opt.threads) < 0)
		perf_die("rank %d cannot be pinned: use --pin 0", t->ranks[0].rank);
	buffers_make(t);
	perf_run(t);
	thread_close(t);
	return NULL;
}

/* ---- The job ---------------------------------------------------------------------------- */

static void memory_check(const struct perf_job *job)
{
	size_t send, recv, here, have = memory_available();
	int procs = job->local_procs > 0 ? job->local_procs : 1;

	buffer_bytes(job, &send, &recv);
	here = (send + recv) * (size_t)(procs * job->opt.threads * job->opt.ranks);
	if (here > have / 10 * 9)
		perf_die(
			"buffers of %zu MiB for the ranks of this node, but only %zu MiB of memory "
			"are free: use a smaller -e",
			here >> 20, have >> 20);
}

static int job_run(struct perf_job *job)
{
	int n = job->opt.threads, wrong = 0;
	pthread_t *threads = calloc((size_t)n, sizeof(*threads));

	job->threads = calloc((size_t)n, sizeof(*job->threads));
	if (!job->threads || !threads)
		perf_die("no memory");
	job->nranks = job->nprocs * n * job->opt.ranks;
	if (job->opt.root >= job->nranks)
		perf_die("-r %d: there are %d ranks", job->opt.root, job->nranks);
	job->pinned = pin_wanted(job);
	memory_check(job);
	for (int i = 0; i < n; i++) {
		job->threads[i].job = job;
		job->threads[i].index = job->proc * n + i;
		errno = pthread_create(&threads[i], NULL, thread_main, &job->threads[i]);
		if (errno)
			perf_die("thread %d of %d: %s", i, n, strerror(errno));
	}
	for (int i = 0; i < n; i++) {
		pthread_join(threads[i], NULL);
		wrong |= job->threads[i].wrong;
	}
	free(job->threads);
	free(threads);
	return wrong;
}

struct forked {
	struct perf_job *job;
	struct perf_id *id;
};

static int forked_main(int index, void *arg)
{
	struct forked *f = arg;

	f->job->nprocs = f->job->local_procs = f->job->opt.processes;
	f->job->proc = f->job->local_index = index;
	f->job->id = perf_id_get(f->id, index);
	return job_run(f->job);
}

/* Whether to ask for a launch at all: where a launcher says too little, that is an error, not n
 * jobs of one rank each. */
static int launcher_seen(void)
{
	static const char *const names[] = {"RANK", "WORLD_SIZE", "SYMCCL_RANK", "SYMCCL_NRANKS",
		"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (getenv(names[i]))
			return 1;
	return 0;
}

static int launched_main(struct perf_job *job)
{
	symcclLaunch_t l;

	if (!launcher_seen()) {
		job->nprocs = job->local_procs = 1;
		perf_check(symcclGetUniqueId(&job->id), NULL, "symcclGetUniqueId");
		return job_run(job);
	}
	perf_check(symcclGetLaunch(&l), NULL, "symcclGetLaunch");
	job->nprocs = l.nranks;
	job->proc = l.rank;
	job->id = l.id;
	job->local_index = l.localRank;
	job->local_procs = l.localNranks;
	return job_run(job);
}

int perf_main(int argc, char **argv, const struct perf_coll *coll)
{
	struct perf_job job = {.coll = coll, .argc = argc, .argv = argv};
	char err[256];

	job.program = program_invocation_short_name;
	if (options_parse(&job.opt, coll, argc, argv, err, sizeof(err))) {
		fprintf(stderr, "%s: %s (-h shows the options)\n", job.program, err);
		return 2;
	}
	if (job.opt.help) {
		options_usage(stdout, job.program);
		return 0;
	}
	signal(SIGALRM, timed_out);
	if (job.opt.processes) {
		struct forked f = {&job, perf_shared(sizeof(*f.id))};

		return perf_fork(job.opt.processes, forked_main, &f);
	}
	return launched_main(&job);
}
