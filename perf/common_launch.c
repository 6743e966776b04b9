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
	return o->ranks == 1 && !job->cuda && job->local_index >= 0 &&
	       job->local_procs * o->threads <= cpus_allowed();
}

/* ---- Ranks ------------------------------------------------------------------------------ */

static char *buffer_alloc(const struct perf_job *job, const struct perf_rank *r, size_t bytes)
{
	size_t rounded = (bytes + PAGE - 1) / PAGE * PAGE;
	void *p = NULL;

	if (job->cuda)
		gpu_bind(r->device);
	if (job->opt.buffers) {
		perf_check(symcclMemAllocOn(
				   &p, rounded, job->cuda ? symcclDeviceCuda : symcclDeviceHost),
			NULL, "symcclMemAlloc");
		return p;
	}
	if (job->cuda)
		return gpu_alloc(r, rounded);
	p = aligned_alloc(PAGE, rounded);
	if (!p)
		perf_die("rank %d: no memory for a buffer of %zu bytes", r->rank, rounded);
	memset(p, 0, rounded);
	return p;
}

static void buffer_free(const struct perf_job *job, const struct perf_rank *r, char *p)
{
	if (job->opt.buffers)
		symcclMemFree(p);
	else if (job->cuda)
		gpu_free(r, p);
	else
		free(p);
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

/* A communicator of all ranks, in a group with the thread's others. */
static void comms_init(struct perf_thread *t, symcclUniqueId id, symcclDeviceType_t device)
{
	symcclConfig_t config = SYMCCL_CONFIG_INITIALIZER;

	config.device = device;
	perf_check(symcclGroupStart(), NULL, "symcclGroupStart");
	for (int i = 0; i < t->job->opt.ranks; i++) {
		struct perf_rank *r = &t->ranks[i];

		if (device == symcclDeviceCuda)
			gpu_bind(r->device);
		perf_check(
			symcclCommInitRankConfig(device == symcclDeviceCuda ? &r->comm : &r->host,
				t->job->nranks, id, r->rank, &config),
			NULL, "symcclCommInitRank");
	}
	perf_check(symcclGroupEnd(), NULL, "symcclCommInitRank");
}

/* On CPU memory one communicator; on GPUs a second one, whose id goes over the first. */
static void comms_create(struct perf_thread *t)
{
	struct perf_job *job = t->job;
	symcclUniqueId id = {{0}};

	comms_init(t, job->id, symcclDeviceHost);
	if (!job->cuda) {
		for (int i = 0; i < job->opt.ranks; i++)
			t->ranks[i].comm = t->ranks[i].host;
		return;
	}
	if (t->index == 0)
		perf_check(symcclGetUniqueId(&id), NULL, "symcclGetUniqueId");
	memcpy(&id, perf_exchange(t, (const double *)&id, sizeof(id) / sizeof(double)), sizeof(id));
	for (int i = 0; i < job->opt.ranks; i++)
		gpu_rank_open(&t->ranks[i], job->opt.null_stream);
	comms_init(t, id, symcclDeviceCuda);
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
		perf_check(symcclCommWindowRegister(t->ranks[i].host, p[i],
				   sizeof(struct bench_flags), &win[i], SYMCCL_WIN_DEFAULT),
			t->ranks[i].host, "symcclCommWindowRegister");
	}
	perf_check(symcclGroupEnd(), t->ranks[0].host, "symcclCommWindowRegister");
	for (int i = 1; i < per; i++) {
		perf_check(symcclCommWindowDeregister(t->ranks[i].host, win[i]), t->ranks[i].host,
			"symcclCommWindowDeregister");
		symcclMemFree(p[i]);
	}
	t->flags = p[0];
	t->flags_win = win[0];
	for (int i = 0; i < n; i++) {
		void *peer;

		if (symcclWinGetPeerPtr(t->ranks[0].host, win[0], i * per, 0, &peer))
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
		r->send_base = buffer_alloc(t->job, r, send);
		r->recv_base = buffer_alloc(t->job, r, recv);
	}
	if (t->job->opt.buffers == 2)
		windows_register(t);
}

static void thread_close(struct perf_thread *t)
{
	struct perf_job *job = t->job;

	perf_check(symcclGroupStart(), NULL, "symcclGroupStart");
	for (int i = 0; i < job->opt.ranks; i++) {
		struct perf_rank *r = &t->ranks[i];

		perf_check(symcclCommWindowDeregister(r->comm, r->send_win), r->comm, "deregister");
		perf_check(symcclCommWindowDeregister(r->comm, r->recv_win), r->comm, "deregister");
		if (i == 0)
			perf_check(symcclCommWindowDeregister(r->host, t->flags_win), r->host,
				"deregister");
		if (r->host != r->comm)
			perf_check(symcclCommDestroy(r->comm), NULL, "symcclCommDestroy");
		perf_check(symcclCommDestroy(r->host), NULL, "symcclCommDestroy");
	}
	perf_check(symcclGroupEnd(), NULL, "symcclCommDestroy");
	symcclMemFree(t->flags);
	for (int i = 0; i < job->opt.ranks; i++) {
		buffer_free(job, &t->ranks[i], t->ranks[i].send_base);
		buffer_free(job, &t->ranks[i], t->ranks[i].recv_base);
		if (job->cuda)
			gpu_rank_close(&t->ranks[i]);
	}
	free(t->ranks);
	free(t->mine);
	free(t->all);
	free(t->scratch);
}

/* Rank by rank over the node's GPUs, several on one when they are fewer. */
static void ranks_place(struct perf_thread *t)
{
	struct perf_job *job = t->job;
	int before = (job->local_index < 0 ? job->proc : job->local_index) * job->opt.threads +
		     t->index % job->opt.threads;

	for (int i = 0; i < job->opt.ranks; i++) {
		t->ranks[i].rank = t->index * job->opt.ranks + i;
		t->ranks[i].device = job->cuda ? (before * job->opt.ranks + i) % gpu_count() : -1;
	}
}

static void *thread_main(void *arg)
{
	struct perf_thread *t = arg;
	struct perf_job *job = t->job;

	t->ranks = calloc((size_t)job->opt.ranks, sizeof(*t->ranks));
	if (!t->ranks)
		perf_die("no memory");
	ranks_place(t);
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

/* Where the buffers are: --device, else SYMCCL_DEVICE, else GPUs where there are any. */
static void device_choose(struct perf_job *job)
{
	const char *env = getenv("SYMCCL_DEVICE"), *why;
	int asked = job->opt.device;

	if (asked == symcclDeviceAuto && env)
		asked = !strcmp(env, "host")   ? symcclDeviceHost
			: !strcmp(env, "cuda") ? symcclDeviceCuda
					       : symcclDeviceAuto;
	if (asked != symcclDeviceHost) {
		/* Streams that wait for each other need queues of their own; a GPU has few for all
		 * processes. */
		if (job->opt.threads * job->opt.ranks > 1)
			setenv("CUDA_DEVICE_MAX_CONNECTIONS", job->nprocs > 1 ? "8" : "32", 0);
		why = gpu_open();
		if (why && asked == symcclDeviceCuda)
			perf_die("--device cuda: %s", why);
		job->cuda = !why;
	}
	options_settle(&job->opt, job->cuda);
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
	device_choose(job);
	job->pinned = pin_wanted(job);
	if (!job->cuda)
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
