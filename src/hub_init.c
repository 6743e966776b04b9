/* What the processes of a communicator agree on once they have met. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
#include "comm_gpu.h"
#include "device/port.h"
#include "log.h"
#include "params.h"
#include "tuning.h"
#include "util.h"

#define STRIDE_UNIT ((size_t)4 << 30)
#define HOST_CTAS 1 /* workers of a rank on the host, unless SYMCCL_MAX_CTAS says more */

/* One per process. */
struct hello {
	uint64_t granularity, capacity, stride;
	uint32_t quota_milli; /* CPUs the cgroup grants, in thousandths; 0: no limit */
	int32_t nctas;
	uint64_t probe, probe_at; /* a random word, and where it lies in this process */
	cpu_set_t cpus;           /* union over the process's ranks */
	struct coll_tuning tuning;
};

/* CPU time that the cgroup grants, in thousandths of a CPU; 0 when it does not limit. */
static uint32_t cgroup_quota(void)
{
	FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
	unsigned long long quota, period;
	uint32_t milli = 0;

	if (f == NULL)
		return 0;
	if (fscanf(f, "%llu %llu", &quota, &period) == 2 && period > 0)
		milli = (uint32_t)MIN(quota * 1000 / period, 1000000000ull);
	fclose(f);
	return milli;
}

/* The caller's config beats the environment; within it the most (a config with less most than least
 * was refused). */
static int32_t nctas_wanted(const struct symcclComm *c, const struct params *p)
{
	int own_least = c->conf.minCTAs != SYMCCL_UNDEF_INT,
	    own_most = c->conf.maxCTAs != SYMCCL_UNDEF_INT;
	long least = own_least ? c->conf.minCTAs : p->min_ctas;
	long most = own_most ? c->conf.maxCTAs : p->max_ctas;

	if (most == 0 || (own_least && !own_most))
		return (int32_t)MAX(least, most ? most : HOST_CTAS);
	if (least > most && !own_most)
		log_warn(LOG_PARAM,
			"SYMCCL_MIN_CTAS=%ld is more than SYMCCL_MAX_CTAS=%ld; taking %ld", least,
			most, most);
	return (int32_t)most;
}

static void say_hello(struct hub *h, struct hello *me)
{
	const struct params *p = params_get();

	h->probe = mem_proc_uid();
	memset(me, 0, sizeof(*me));
	me->granularity = h->mem->granularity();
	me->capacity = h->mem->capacity();
	me->stride = p->win_stride;
	me->quota_milli = cgroup_quota();
	me->nctas = nctas_wanted(h->local[0], p);
	me->probe = mem_proc_uid();
	me->probe_at = (uintptr_t)&h->probe;
	/* Only rank 0's process decides; the others need not read a file. */
	if (h->boot->proc == 0)
		tuning_load(&me->tuning);
	snprintf(me->tuning.algo, sizeof(me->tuning.algo), "%s", p->algo);
	for (int i = 0; i < h->nlocal; i++)
		CPU_OR(&me->cpus, &me->cpus, &h->local[i]->cpus);
}

/* Can this process read the word that `o` shows in process p? Containers and yama may forbid it,
 * and a process id may mean somebody else here: the word tells. */
static int can_read(const struct hub *h, int p, const struct hello *o)
{
	uint64_t got = 0;
	struct iovec to = {&got, sizeof(got)}, from = {(void *)(uintptr_t)o->probe_at, sizeof(got)};

	return p == h->boot->proc ||
	       (process_vm_readv(h->boot->procs[p].pid, &to, 1, &from, 1, 0) == sizeof(got) &&
		       got == o->probe);
}

/* Rank 0's process decides what is a matter of taste; address space must suit everybody. */
static symcclResult_t hear_hellos(struct hub *h, const void **all, const size_t *len)
{
	struct hello first = {0}, o;
	uint64_t capacity = 0, granularity = 0;
	uint32_t quota = 0;
	cpu_set_t cpus;
	double usable;

	CPU_ZERO(&cpus);
	h->readable = 1;
	for (int p = 0; p < h->boot->nprocs; p++) {
		if (len[p] != sizeof(o))
			return fail(symcclInternalError,
				"rank %d's process has another build of symccl",
				h->boot->procs[p].ranks[0]);
		memcpy(&o, all[p], sizeof(o));
		if (p == 0)
			first = o;
		capacity = MAX(capacity, o.capacity);
		granularity = MAX(granularity, o.granularity);
		if (o.quota_milli)
			quota = quota ? MIN(quota, o.quota_milli) : o.quota_milli;
		CPU_OR(&cpus, &cpus, &o.cpus);
		h->readable &= can_read(h, p, &o);
	}
	h->tuning = first.tuning;
	h->nctas = first.nctas;
	h->stride = first.stride ? align_up(first.stride, granularity)
				 : align_up(capacity, STRIDE_UNIT);
	usable = CPU_COUNT(&cpus);
	if (quota && quota < usable * 1000)
		usable = quota / 1000.0;
	/* A rank's workers take turns on its thread, so they need no CPUs of their own. */
	h->oversubscribed = h->nranks > usable;
	h->crowd = MAX(1, h->nranks / usable);
	log_info(LOG_INIT, "%d ranks in %d processes on %g CPUs%s, stride %zu MiB", h->nranks,
		h->boot->nprocs, usable, h->oversubscribed ? " (oversubscribed)" : "",
		h->stride >> 20);
	return symcclSuccess;
}

static symcclResult_t agree_gpus(struct hub *h, uint64_t deadline)
{
	struct gpu_hello *ranks = calloc((size_t)h->nranks, sizeof(*ranks));
	const void **all;
	const size_t *len;
	symcclResult_t e;

	if (ranks == NULL)
		return fail(symcclSystemError, "out of memory for a communicator");
	e = hub_gpu_open(h);
	for (int l = 0; e == symcclSuccess && l < h->nlocal; l++)
		e = hub_gpu_say(h, l, &ranks[l]);
	if (e == symcclSuccess)
		e = boot_allgather(
			h->boot, ranks, (size_t)h->nlocal * sizeof(*ranks), &all, &len, deadline);
	for (int p = 0; e == symcclSuccess && p < h->boot->nprocs; p++)
		for (int i = 0;
			i < h->boot->procs[p].nranks && len[p] >= (size_t)(i + 1) * sizeof(*ranks);
			i++)
			memcpy(&ranks[h->boot->procs[p].ranks[i]],
				(const struct gpu_hello *)all[p] + i, sizeof(*ranks));
	if (e == symcclSuccess)
		e = hub_gpu_hear(h, ranks);
	free(ranks);
	return e;
}

/* All or none, so that all ranks plan alike. */
static symcclResult_t agree_readable(struct hub *h, uint64_t deadline)
{
	char mine = (char)h->readable;
	const void **all;
	const size_t *len;

	TRY(boot_allgather(h->boot, &mine, 1, &all, &len, deadline));
	for (int p = 0; p < h->boot->nprocs; p++)
		h->readable &= len[p] == 1 && *(const char *)all[p] != 0;
	h->pid = calloc((size_t)h->nranks, sizeof(*h->pid));
	if (h->pid == NULL)
		return fail(symcclSystemError, "out of memory for a communicator");
	for (int r = 0; r < h->nranks; r++) {
		int p = h->boot->rank_proc[r];

		h->pid[r] = p == h->boot->proc ? 0 : h->boot->procs[p].pid;
	}
	if (!h->readable)
		log_info(LOG_INIT, "processes may not read each other's memory (ptrace scope, "
				   "containers): plain buffers go through scratch");
	return symcclSuccess;
}

static symcclResult_t hub_take_board(struct hub *h, struct board *b)
{
	/* A rank may give up, and say so on the board, at any time. */
	pthread_mutex_lock(&h->lock);
	h->board = b;
	pthread_mutex_unlock(&h->lock);
	TRY(board_enter(b, h->local_rank, h->nlocal));
	h->entered = 1;
	return symcclSuccess;
}

/* The first process of the node makes the board, all map it. */
static symcclResult_t share_board(struct hub *h, uint64_t deadline)
{
	int leader = h->boot->proc == h->boot->node_proc0;
	int fd = -1, *fds = NULL, *counts = NULL;
	struct failure bad = {.code = symcclSuccess};
	symcclResult_t e = symcclSuccess, sent;

	h->board_size =
		align_up(sizeof(struct board) + (size_t)h->nranks * sizeof(struct board_rank),
			mem_host.granularity());
	if (leader) {
		e = mem_host.create(h->board_size, &h->board_mem);
		if (e == symcclSuccess)
			e = mem_host.export_fd(h->board_mem, &fd);
	}
	sent = boot_allgather_fds(h->boot, &fd, leader, &fds, &counts, deadline);
	if (fd >= 0)
		close(fd);
	TRY(sent);
	if (e == symcclSuccess) {
		void *p = fds[0] < 0 ? MAP_FAILED
				     : mmap(NULL, h->board_size, PROT_READ | PROT_WRITE,
					       MAP_SHARED | MAP_POPULATE, fds[0], 0);

		if (p == MAP_FAILED)
			e = fail(symcclSystemError,
				"cannot map the communicator's shared page: descriptors or memory "
				"are "
				"exhausted on rank %d",
				h->local[0]->rank);
		else
			e = hub_take_board(h, p);
	}
	if (fds[0] >= 0)
		close(fds[0]);
	free(fds);
	free(counts);
	if (e != symcclSuccess) {
		bad.code = e;
		bad.rank = h->local[0]->rank;
		snprintf(bad.text, sizeof(bad.text), "rank %d: %s", bad.rank, error_text());
		boot_abort(h->boot, &bad);
		return e;
	}
	return boot_barrier(h->boot, deadline);
}

/* About how many pauses fit into a microsecond here. */
static uint32_t pauses_per_us(void)
{
	uint64_t t = now_ns();

	for (int i = 0; i < 500; i++)
		__atomic_signal_fence(__ATOMIC_SEQ_CST), cpu_relax();
	t = now_ns() - t;
	return (uint32_t)MAX(1u, 500u * 1000u / MAX(t, 1u));
}

static int rank_cmp(const void *a, const void *b)
{
	const struct symcclComm *const *x = a, *const *y = b;

	return (*x)->rank - (*y)->rank;
}

symcclResult_t hub_agree(struct hub *h, uint64_t deadline)
{
	const struct params *p = params_get();
	struct hello me;
	const void **all;
	const size_t *len;

	/* Nobody joins any more: the root has counted. */
	pthread_mutex_lock(&h->lock);
	qsort(h->local, (size_t)h->nlocal, sizeof(*h->local), rank_cmp);
	pthread_mutex_unlock(&h->lock);
	h->local_rank = calloc((size_t)h->nlocal, sizeof(*h->local_rank));
	h->local_device = calloc((size_t)h->nlocal, sizeof(*h->local_device));
	if (h->local_rank == NULL || h->local_device == NULL)
		return fail(symcclSystemError, "out of memory for a communicator");
	for (int i = 0; i < h->nlocal; i++) {
		h->local_rank[i] = h->local[i]->rank;
		h->local_device[i] = h->local[i]->device;
	}
	if (h->boot->nnodes > 1)
		return fail(symcclInvalidUsage,
			"the ranks are on %d nodes (rank 0 on %s, rank %d on %s): several nodes "
			"are not "
			"supported yet",
			h->boot->nnodes, h->boot->procs[0].host,
			h->boot->procs[h->boot->nprocs - 1].ranks[0],
			h->boot->procs[h->boot->nprocs - 1].host);
	say_hello(h, &me);
	if (h->mem->type == symcclDeviceCuda)
		TRY(agree_gpus(h, deadline));
	TRY(boot_allgather(h->boot, &me, sizeof(me), &all, &len, deadline));
	TRY(hear_hellos(h, all, len));
	TRY(agree_readable(h, deadline));
	TRY(share_board(h, deadline));
	ctrl_layout(h->nranks, h->nctas, &h->layout);
	h->wait.abort = &h->board->abort;
	h->wait.timeout_ns = (uint64_t)(p->op_timeout * 1e9);
	h->wait.spins = p->spin_us >= 0 ? (uint32_t)p->spin_us * pauses_per_us()
					: (h->oversubscribed ? 50 : 50 * pauses_per_us());
	h->wait.yields = 16;
	TRY(sym_init(&h->sym, h->boot, h->mem, h->nlocal, h->local_rank, h->stride,
		h->gpu ? hub_gpu_ctrl_bytes(h) : h->layout.size, &h->board->abort));
	if (h->gpu != NULL) {
		h->sym.device = h->local_device;
		h->sym.multicast = hub_gpu_multicast(h);
	}
	return symcclSuccess;
}
