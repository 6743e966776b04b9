/* One thread's walk over types, operators, roots and sizes: time, then check, then report. All
 * threads of all processes walk alike; what one must know of the others goes by perf_exchange(). */
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common.h"

enum { WARMUP = 3, LEAST = 20, MOST_DIRTY = 2000, MOST = 20000 };
static const double budget_s = 0.25, progress_s = 0.5;

/* ---- Among ranks ------------------------------------------------------------------------ */

/* The library moves them, outside of what is timed. */
const double *perf_exchange(struct perf_thread *t, const double *mine, size_t n)
{
	int per = t->job->opt.ranks;
	size_t len = n * (size_t)t->job->nranks;

	if (len * (size_t)per > t->all_len) {
		t->all_len = len * (size_t)per;
		free(t->all);
		t->all = malloc(t->all_len * sizeof(double));
		if (!t->all)
			perf_die("no memory");
	}
	perf_check(symcclGroupStart(), NULL, "symcclGroupStart");
	for (int i = 0; i < per; i++)
		perf_check(symcclAllGather(mine, t->all + len * (size_t)i, n, symcclFloat64,
				   t->ranks[i].host, NULL),
			t->ranks[i].host, "symcclAllGather of results");
	perf_check(symcclGroupEnd(), t->ranks[0].host, "symcclAllGather of results");
	return t->all;
}

double perf_over_ranks(const struct perf_job *job, const double *v, size_t stride, int average)
{
	double sum = 0, least = v[0], most = v[0];

	for (int r = 0; r < job->nranks; r++) {
		double x = v[(size_t)r * stride];

		sum += x;
		least = x < least ? x : least;
		most = x > most ? x : most;
	}
	return average == 0 ? v[0] : average == 1 ? sum / job->nranks : average == 2 ? least : most;
}

void perf_barrier(struct perf_thread *t)
{
	if (t->team.n) {
		bench_barrier(&t->team);
		return;
	}
	perf_check(symcclGroupStart(), NULL, "symcclGroupStart");
	for (int i = 0; i < t->job->opt.ranks; i++)
		perf_check(
			symcclBarrier(t->ranks[i].host, NULL), t->ranks[i].host, "symcclBarrier");
	perf_check(symcclGroupEnd(), t->ranks[0].host, "symcclBarrier");
}

/* ---- One call --------------------------------------------------------------------------- */

static char *recv_at(const struct perf_thread *t, const struct perf_case *c, int i, int in_place)
{
	size_t shift = in_place ? c->recv_shift * (size_t)t->ranks[i].rank : 0;

	return t->ranks[i].recv_base + ((size_t)t->job->opt.unalign + shift) * c->esize;
}

static char *send_at(const struct perf_thread *t, const struct perf_case *c, int i, int in_place)
{
	size_t shift = in_place ? c->send_shift * (size_t)t->ranks[i].rank : 0;
	char *base = in_place ? t->ranks[i].recv_base : t->ranks[i].send_base;

	return base + ((size_t)t->job->opt.unalign + shift) * c->esize;
}

void perf_call(struct perf_thread *t, const struct perf_case *c, int in_place, int calls)
{
	int per = t->job->opt.ranks, group = per > 1 || calls > 1;

	if (group)
		perf_check(symcclGroupStart(), NULL, "symcclGroupStart");
	for (int k = 0; k < calls; k++)
		for (int i = 0; i < per; i++)
			perf_check(c->coll->call(c, &t->ranks[i], send_at(t, c, i, in_place),
					   recv_at(t, c, i, in_place)),
				t->ranks[i].comm, c->coll->name);
	if (group)
		perf_check(symcclGroupEnd(), t->ranks[0].comm, c->coll->name);
}

void perf_dirty(struct perf_thread *t, const struct perf_case *c, int in_place, int salt)
{
	for (int i = 0; i < t->job->opt.ranks; i++) {
		char *send = send_at(t, c, i, in_place);

		if (t->job->cuda)
			gpu_set(&t->ranks[i], send, salt, c->sendcount * c->esize);
		else
			bench_dirty(send, c->sendcount * c->esize, (uint64_t)salt);
	}
}

/* ---- Timing ----------------------------------------------------------------------------- */

static void samples_reserve(struct perf_thread *t, int n)
{
	free(t->mine);
	t->mine = calloc((size_t)n, sizeof(double));
	if (!t->mine)
		perf_die("no memory");
}

static void progress(struct perf_thread *t, const struct perf_case *c, const char *what, int i,
	int n, double since)
{
	static const char *const spans[] = {"B", "KiB", "MiB", "GiB"};
	double bytes = (double)(c->sendcount > c->recvcount ? c->sendcount : c->recvcount) *
		       (double)c->esize;
	int unit = 0;

	for (; bytes >= 1024 && unit < 3; unit++)
		bytes /= 1024;
	report_progress(t->index ? NULL : t->job->report, "%.4g %s: %s %d of %d, %.1f s", bytes,
		spans[unit], what, i, n, since);
}

/* Warm up, and settle on a number of iterations that all ranks share. */
static int iterations(struct perf_thread *t, const struct perf_case *c, int in_place)
{
	const struct perf_options *o = &t->job->opt;
	int warmup = o->warmup == PERF_AUTO ? WARMUP : o->warmup;
	int probes = o->iters == PERF_AUTO && warmup < 1 ? 1 : warmup;
	int most = o->dirty ? MOST_DIRTY : MOST;
	double t0 = bench_now(CLOCK_MONOTONIC), last = t0, each, n;

	for (int i = 0; i < probes; i++) {
		if (last - t0 > progress_s)
			progress(t, c, "warm-up", i, probes, last - t0);
		if (o->dirty) {
			perf_dirty(t, c, in_place, i);
			perf_barrier(t);
		}
		last = bench_now(CLOCK_MONOTONIC);
		perf_call(t, c, in_place, t->job->opt.agg_iters);
	}
	if (o->iters != PERF_AUTO)
		return o->iters;
	/* The last call only: the first ones pay for first touches. With its rewriting. */
	perf_dirty(t, c, in_place, probes);
	each = bench_now(CLOCK_MONOTONIC) - last;
	n = budget_s / perf_over_ranks(t->job, perf_exchange(t, &each, 1), 1, 3);
	n = n > most ? most : n;
	return n < LEAST + o->skip ? LEAST + o->skip : (int)n;
}

/* Rewritten inputs and a barrier before each call; per call the -a over ranks; the median. */
static double time_dirty(struct perf_thread *t, const struct perf_case *c, int in_place,
	clockid_t clock, struct perf_time *out)
{
	const struct perf_options *o = &t->job->opt;
	double start = bench_now(CLOCK_MONOTONIC), *per_call = t->mine;
	const double *all;

	for (int i = 0; i < out->iters; i++) {
		double t0;

		if (t->index == 0 && bench_now(CLOCK_MONOTONIC) - start > progress_s)
			progress(t, c, in_place ? "in place" : "out of place", i, out->iters,
				bench_now(CLOCK_MONOTONIC) - start);
		perf_dirty(t, c, in_place, i);
		perf_barrier(t);
		t0 = bench_now(clock);
		perf_call(t, c, in_place, t->job->opt.agg_iters);
		per_call[i] = (bench_now(clock) - t0) / o->agg_iters;
	}
	all = perf_exchange(t, per_call, (size_t)out->iters);
	for (int i = 0; i < out->iters; i++)
		per_call[i] = perf_over_ranks(t->job, all + i, (size_t)out->iters, o->average);
	stats_of(per_call + o->skip, out->iters - o->skip, out);
	return bench_median(per_call + o->skip, (size_t)(out->iters - o->skip));
}

/* Calls in a row; the mean, then the -a over ranks. */
static double time_back_to_back(struct perf_thread *t, const struct perf_case *c, int in_place,
	clockid_t clock, struct perf_time *out)
{
	const struct perf_options *o = &t->job->opt;
	double t0, before, took = 0, mean;
	const double *all;

	progress(t, c, in_place ? "in place" : "out of place", 0, out->iters, 0);
	perf_barrier(t);
	t0 = before = bench_now(clock);
	for (int i = 0; i < out->iters; i++) {
		perf_call(t, c, in_place, t->job->opt.agg_iters);
		if (o->blocking == 3)
			took += bench_now(clock) - before;
		if (o->blocking == 1 || o->blocking == 3)
			perf_barrier(t);
		if (o->per_iter || o->blocking == 3) {
			double now = bench_now(clock);

			t->mine[i] = (now - before) / o->agg_iters;
			before = now;
		}
	}
	if (o->blocking != 3)
		took = bench_now(clock) - t0;
	if (o->per_iter) {
		all = perf_exchange(t, t->mine, (size_t)out->iters);
		for (int i = 0; i < out->iters; i++)
			t->mine[i] = perf_over_ranks(t->job, all + i, (size_t)out->iters, 3);
		stats_of(t->mine + o->skip, out->iters - o->skip, out);
	}
	mean = took / out->iters / o->agg_iters;
	return perf_over_ranks(t->job, perf_exchange(t, &mean, 1), 1, o->average);
}

static double cpu_time(
	struct perf_thread *t, const struct perf_case *c, int in_place, struct perf_time *out)
{
	const struct perf_options *o = &t->job->opt;
	clockid_t clock = o->cputime ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;

	out->iters = iterations(t, c, in_place);
	samples_reserve(t, out->iters);
	return o->dirty ? time_dirty(t, c, in_place, clock, out)
			: time_back_to_back(t, c, in_place, clock, out);
}

/* ---- Checking --------------------------------------------------------------------------- */

static char *scratch(struct perf_thread *t, size_t bytes)
{
	if (bytes > t->scratch_len) {
		free(t->scratch);
		t->scratch_len = bytes;
		t->scratch = malloc(bytes);
		if (!t->scratch)
			perf_die("no memory to check %zu MiB", bytes >> 20);
	}
	return t->scratch;
}

/* [p, p + n) of a rank's memory where the CPU can read it; valid until the next. */
static const char *seen(struct perf_thread *t, int i, const char *p, size_t n)
{
	if (!t->job->cuda)
		return p;
	gpu_copy(&t->ranks[i], scratch(t, n), p, n);
	return t->scratch;
}

static size_t rank_wrong(struct perf_thread *t, const struct perf_case *c, int i, int in_place)
{
	const char *base = t->ranks[i].recv_base;
	size_t extent = in_place && c->sendcount > c->recvcount ? c->sendcount : c->recvcount;
	size_t lead = (size_t)t->job->opt.unalign * c->esize, bytes = extent * c->esize;
	size_t at = (size_t)(recv_at(t, c, i, in_place) - base);
	const char *p = seen(t, i, base, lead + bytes + PERF_GUARD);
	size_t wrong = data_wrong(c, t->ranks[i].rank, p + at);

	wrong += data_guard_wrong(p, p + lead);
	wrong += data_guard_wrong(p + lead + bytes, p + lead + bytes + PERF_GUARD);
	return wrong;
}

static size_t input_wrong(struct perf_thread *t, const struct perf_case *c, int i)
{
	const char *send = seen(t, i, send_at(t, c, i, 0), c->sendcount * c->esize);

	return data_input_wrong(c, t->ranks[i].rank, send);
}

/* Poisoned output, fresh input. */
static void rank_fill(struct perf_thread *t, const struct perf_case *c, int i, int in_place)
{
	size_t extent = c->sendcount > c->recvcount ? c->sendcount : c->recvcount;
	size_t bytes = ((size_t)t->job->opt.unalign + extent) * c->esize + PERF_GUARD;
	struct perf_rank *r = &t->ranks[i];
	char *send = send_at(t, c, i, in_place);

	if (!t->job->cuda) {
		memset(r->recv_base, PERF_POISON, bytes);
		perf_input(c, r->rank, 0, c->sendcount, send);
		return;
	}
	gpu_set(r, r->recv_base, PERF_POISON, bytes);
	perf_input(c, r->rank, 0, c->sendcount, scratch(t, c->sendcount * c->esize));
	gpu_copy(r, send, t->scratch, c->sendcount * c->esize);
}

/* Fresh inputs, poisoned outputs, one call, every element of every rank compared. Out of place
 * the inputs are, by turns, overwritten as soon as the call returns (on GPUs: next on the stream),
 * which must disturb no peer, and compared, since no call may change them. */
static double check_once(struct perf_thread *t, struct perf_case *c, int in_place, int scribble)
{
	const struct perf_job *job = t->job;
	const double *all;
	double wrong = 0, sum = 0;

	for (int i = 0; i < job->opt.ranks; i++)
		rank_fill(t, c, i, in_place);
	perf_barrier(t);
	if (c->coll->before)
		c->coll->before(t, c->seed);
	perf_call(t, c, in_place, 1);
	if (scribble && !in_place)
		perf_dirty(t, c, 0, (int)(c->seed & 0xff));
	for (int i = 0; job->cuda && i < job->opt.ranks; i++)
		gpu_sync(&t->ranks[i]);
	if (c->coll->wrong)
		wrong += c->coll->wrong(t);
	for (int i = 0; i < job->opt.ranks && !in_place && !scribble; i++)
		wrong += (double)input_wrong(t, c, i);
	for (int i = 0; i < job->opt.ranks; i++)
		wrong += (double)rank_wrong(t, c, i, in_place);
	t->wrong |= wrong > 0;
	wrong /= job->opt.ranks; /* every rank of the thread gives the same share */
	all = perf_exchange(t, &wrong, 1);
	for (int r = 0; r < job->nranks; r++)
		sum += all[r];
	return sum;
}

/* ---- The walk --------------------------------------------------------------------------- */

static void measure(struct perf_thread *t, struct perf_case *c, int in_place, struct perf_time *out)
{
	const struct perf_options *o = &t->job->opt;
	size_t count = c->sendcount > c->recvcount ? c->sendcount : c->recvcount;
	int clock_keeper = t->index % o->threads == 0; /* one thread of a process */
	double s;

	*out = (struct perf_time){.wrong = o->check ? 0 : -1};
	if (clock_keeper)
		alarm((unsigned)o->timeout);
	s = t->job->cuda ? gpu_time(t, c, in_place, out) : cpu_time(t, c, in_place, out);
	out->us = s * 1e6;
	out->algbw = s > 0 ? (double)(count * c->esize) / s / 1e9 : 0;
	out->busbw = out->algbw * c->coll->bus_factor(c->nranks);
	for (int k = 0; k < o->check && !out->wrong; k++) {
		c->seed++;
		out->wrong = lround(ceil(check_once(t, c, in_place, k % 2 == 0)));
	}
	if (clock_keeper)
		alarm(0);
}

static void size_run(struct perf_thread *t, struct perf_case *c, size_t bytes)
{
	struct perf_time out, in;
	struct perf_report *report = t->index ? NULL : t->job->report;

	c->count = c->sendcount = c->recvcount = c->send_shift = c->recv_shift = 0;
	c->coll->counts(bytes / c->esize, c);
	measure(t, c, 0, &out);
	if (c->coll->no_in_place)
		in = (struct perf_time){.wrong = -1};
	else
		measure(t, c, 1, &in);
	if (report)
		report_row(report, c, &out, &in);
}

/* [first, last] of an option that may be "all". */
static void span(int asked, int n, int *first, int *last)
{
	*first = asked == PERF_ALL ? 0 : asked;
	*last = asked == PERF_ALL ? n - 1 : asked;
}

static void walk(struct perf_thread *t, struct perf_case *c)
{
	const struct perf_options *o = &t->job->opt;
	int type, type_end, op, op_end, root, root_end, root_first, op_first;

	span(o->type, symcclNumTypes, &type, &type_end);
	span(c->coll->reduces ? o->op : 0, symcclNumOps, &op_first, &op_end);
	span(c->coll->rooted ? o->root : 0, c->nranks, &root_first, &root_end);
	for (; type <= type_end; type++)
		for (op = op_first; op <= op_end; op++)
			for (root = root_first; root <= root_end; root++) {
				c->type = (symcclDataType_t)type;
				c->esize = type_size(c->type);
				c->op = (symcclRedOp_t)op;
				c->root = root;
				for (int i = 0; i < o->nsizes; i++)
					size_run(t, c, o->sizes[i]);
			}
}

static void who_all(struct perf_thread *t, struct perf_who *all)
{
	struct perf_who me = {
		.pid = getpid(), .cpu = cpus_allowed() == 1 ? sched_getcpu() : -1, .device = -1};
	int per = t->job->opt.ranks;

	gethostname(me.host, sizeof(me.host) - 1);
	/* All ranks of a thread say the same in one exchange; their GPUs take one each. */
	for (int k = 0; k < (t->job->cuda ? per : 1); k++) {
		const double *got;

		if (t->job->cuda)
			gpu_who(t->ranks[k].device, &me);
		got = perf_exchange(t, (const double *)&me, sizeof(me) / sizeof(double));
		for (int r = 0; r < t->job->nranks; r++)
			if (!t->job->cuda || r % per == k)
				memcpy(&all[r], (const char *)got + sizeof(me) * (size_t)r,
					sizeof(me));
	}
}

/* One number per process: the largest over processes of a /proc/self/status line, in MiB. */
static double status_mib(const char *name)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[128];
	double kib = 0;

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)))
			kib = strtod(line + strlen(name), NULL);
	if (f)
		fclose(f);
	return kib / 1024;
}

static const char *memory_text(struct perf_thread *t, char *text, size_t len)
{
	double v[3] = {status_mib("VmHWM:"), status_mib("RssShmem:"), status_mib("VmSize:")};
	const double *all = perf_exchange(t, v, 3);

	snprintf(text, len,
		"peak resident %.1f MiB, of which shared %.1f MiB, address space %.1f GiB "
		"(largest process)",
		perf_over_ranks(t->job, all, 3, 3), perf_over_ranks(t->job, all + 1, 3, 3),
		perf_over_ranks(t->job, all + 2, 3, 3) / 1024);
	return text;
}

/* L and C between the first two threads; 0 where they share no flags, and where they may share a
 * CPU: what is measured then is the scheduler. Of no interest to GPUs. */
static void machine_measure(struct perf_thread *t, double *line_ns, double *copy_gbs)
{
	double v[2] = {0, 0};
	const double *all;
	int per = t->job->opt.ranks;

	*line_ns = *copy_gbs = 0;
	if (t->team.n < 2 || t->team.yield || t->job->cuda)
		return;
	v[1] = bench_copy_rate(&t->team, t->team.me < 2);
	if (t->team.me < 2)
		v[0] = bench_line_latency(&t->team);
	all = perf_exchange(t, v, 2);
	*line_ns = all[0];
	*copy_gbs = all[1] + all[2 * per + 1];
}

static uint64_t seed_agree(struct perf_thread *t)
{
	uint64_t seed = t->job->opt.seed;
	double d;

	if (!seed && getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		seed = (uint64_t)getpid();
	seed &= (1u << 31) - 1; /* short enough to be typed again */
	memcpy(&d, &seed, sizeof(d));
	memcpy(&seed, perf_exchange(t, &d, 1), sizeof(seed));
	return seed;
}

void perf_run(struct perf_thread *t)
{
	struct perf_job *job = t->job;
	struct perf_case c = {.coll = job->coll, .nranks = job->nranks};
	struct perf_who *who = calloc((size_t)job->nranks, sizeof(*who));
	double line_ns, copy_gbs, end_line_ns = 0, ignored;
	char memory[160] = "";
	uint64_t seed;

	if (!who)
		perf_die("no memory");
	seed = seed_agree(t);
	who_all(t, who);
	machine_measure(t, &line_ns, &copy_gbs);
	if (t->index == 0) {
		job->opt.seed = seed;
		job->report = report_open(job, who, line_ns, copy_gbs);
	}
	free(who);
	for (int k = 0; !job->opt.cycles || k < job->opt.cycles; k++) {
		c.seed = seed << 32;
		walk(t, &c);
	}
	machine_measure(t, &end_line_ns, &ignored);
	if (job->opt.memory)
		memory_text(t, memory, sizeof(memory));
	if (t->index == 0)
		t->wrong |= report_close(job->report, end_line_ns, memory) > 0;
}
