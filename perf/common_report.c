/* What is printed: the table as nccl-tests' users know it, and the same as JSON. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

#ifndef PERF_COMMIT
#define PERF_COMMIT "" /* the build may say which commit it is of */
#endif

enum { RANKS_SHOWN = 64 };

struct perf_report {
	const struct perf_job *job;
	const struct perf_options *opt;
	FILE *json;
	double line_ns, copy_gbs;
	double bus_sum;
	long wrong, rows, forms;
	int terminal, progress; /* is stderr one; is a progress line on it */
	double progress_at;
};

void stats_of(double *per_call, int n, struct perf_time *t)
{
	double sum = 0, squares = 0, mean;

	if (n < 1)
		return;
	qsort(per_call, (size_t)n, sizeof(*per_call), bench_compare);
	for (int i = 0; i < n; i++)
		sum += per_call[i];
	mean = sum / n;
	for (int i = 0; i < n; i++)
		squares += (per_call[i] - mean) * (per_call[i] - mean);
	t->min = per_call[0] * 1e6;
	t->max = per_call[n - 1] * 1e6;
	t->p99 = per_call[(int)ceil(0.99 * n) - 1] * 1e6;
	t->cv = mean > 0 ? sqrt(squares / n) / mean * 100 : 0;
}

/* Three digits after the point for what takes under 10 us, and what fits the width. */
static const char *number(char *text, size_t len, double v, int width)
{
	for (int digits = width > 6 && v < 10 ? 3 : 2; digits >= 0; digits--)
		if (snprintf(text, len, "%*.*f", width, digits, v) <= width)
			return text;
	snprintf(text, len, "%*.0e", width, v);
	return text;
}

/* ---- JSON ------------------------------------------------------------------------------- */

static void json_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++)
		if (*s == '"' || *s == '\\')
			fprintf(f, "\\%c", *s);
		else if ((unsigned char)*s < ' ')
			fprintf(f, "\\u%04x", *s);
		else
			fputc(*s, f);
	fputc('"', f);
}

static void json_pair(FILE *f, const char *name, const char *value)
{
	fprintf(f, "  \"%s\": ", name);
	json_string(f, value);
	fputs(",\n", f);
}

static void json_open(struct perf_report *r, const struct perf_who *who, int version)
{
	const struct perf_options *o = r->opt;
	struct utsname host;
	char date[64], text[64];
	time_t now = time(NULL);
	struct tm tm;

	r->json = fopen(o->json, "we");
	if (!r->json)
		perf_die("-J %s: %s", o->json, strerror(errno));
	uname(&host);
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
	fputs("{\n", r->json);
	json_pair(r->json, "program", r->job->program);
	json_pair(r->json, "date", date);
	json_pair(r->json, "host", host.nodename);
	json_pair(r->json, "machine", host.machine);
	json_pair(r->json, "kernel", host.release);
	json_pair(r->json, "commit", PERF_COMMIT);
	snprintf(text, sizeof(text), "%d.%d.%d", version / 10000, version / 100 % 100,
		version % 100);
	json_pair(r->json, "version", text);
	fputs("  \"command\": [", r->json);
	for (int i = 0; i < r->job->argc; i++) {
		fputs(i ? ", " : "", r->json);
		json_string(r->json, r->job->argv[i]);
	}
	fprintf(r->json,
		"],\n  \"ranks\": %d, \"processes\": %d, \"threads\": %d, \"ranks_per_thread\": "
		"%d,\n"
		"  \"device\": \"%s\", \"gpu\": \"%s\", \"graph_launches\": %d,\n"
		"  \"buffers\": %d, \"dirty\": %d, \"average\": %d, \"pinned\": %d, \"seed\": "
		"%zu,\n"
		"  \"line_latency_ns\": %.1f, \"copy_gbs\": %.2f,\n  \"rows\": [",
		r->job->nranks, r->job->nprocs, o->threads, o->ranks,
		r->job->cuda ? "cuda" : "host", who[0].name, o->graph, o->buffers, o->dirty,
		o->average, r->job->pinned, o->seed, r->line_ns, r->copy_gbs);
}

static void json_time(const struct perf_report *r, const char *name, const struct perf_time *t)
{
	fprintf(r->json, ", \"%s\": {\"%s\": %.4f, \"algbw_gbs\": %.4f, \"busbw_gbs\": %.4f, ",
		name, r->opt->cputime ? "cputime_us" : "time_us", t->us, t->algbw, t->busbw);
	if (t->max > 0)
		fprintf(r->json,
			"\"min_us\": %.4f, \"max_us\": %.4f, \"p99_us\": %.4f, \"cv_percent\": "
			"%.2f, ",
			t->min, t->max, t->p99, t->cv);
	if (t->wrong < 0)
		fprintf(r->json, "\"iters\": %d, \"wrong\": null}", t->iters);
	else
		fprintf(r->json, "\"iters\": %d, \"wrong\": %ld}", t->iters, t->wrong);
}

/* ---- The table -------------------------------------------------------------------------- */

static int share_gpu(const struct perf_who *a, const struct perf_who *b)
{
	return a->device >= 0 && a->pid != b->pid && !strcmp(a->host, b->host) &&
	       !strcmp(a->bus, b->bus);
}

static void print_ranks(const struct perf_job *job, const struct perf_who *who)
{
	int turns = 0;

	printf("# Using devices\n");
	for (int i = 0; i < job->nranks && i < RANKS_SHOWN; i++) {
		const struct perf_who *w = &who[i];

		printf("#  Rank %2d Group  0 Pid %6d on %10s device %2d [", i, w->pid, w->host,
			w->device < 0 ? 0 : w->device);
		if (w->device >= 0)
			printf("%s] %s\n", w->bus, w->name);
		else if (w->cpu < 0)
			printf("host] not pinned\n");
		else
			printf("host] CPU %d\n", w->cpu);
	}
	if (job->nranks > RANKS_SHOWN)
		printf("#  and %d more\n", job->nranks - RANKS_SHOWN);
	for (int i = 0; i < job->nranks; i++)
		for (int k = 0; k < i; k++)
			turns |= share_gpu(&who[i], &who[k]) && !who[i].mps;
	if (turns)
		printf("# Processes share a GPU without MPS: their kernels take turns, and wait "
		       "for "
		       "each other that long\n");
}

static const char *count_text(char *text, size_t len, int n)
{
	snprintf(text, len, n == PERF_AUTO ? "auto" : "%d", n);
	return text;
}

/* How a row is timed. */
static void print_timing(const struct perf_options *o, int cuda)
{
	static const char *const over[] = {
		"of rank 0", "mean over ranks", "of the fastest rank", "of the slowest rank"};
	const char *clock = o->cputime ? "CPU time" : cuda ? "CUDA events" : "CPU clock";

	printf("# Time: %s, ", clock);
	if (o->graph)
		printf("a graph launched %d times, median over launches", o->graph);
	else if (o->dirty)
		printf("inputs rewritten and a barrier before each call, median over calls");
	else
		printf("back to back, mean over calls");
	printf(", %s\n", over[o->average]);
}

static void print_settings(const struct perf_report *r, int version)
{
	static const char *const buffers[] = {
		"plain memory (-R 0)", "symcclMemAlloc (-R 1)", "symmetric windows (-R 2)"};
	const struct perf_options *o = r->opt;
	char warmup[16], iters[16];

	printf("# symccl version %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
	printf("# Collective test starting: %s\n", r->job->program);
	printf("# nProcess %d nThread %d nRanks per thread %d minBytes %zu maxBytes %zu step: "
	       "%zu(%s) "
	       "warmup iters: %s iters: %s agg iters: %d validation: %d unalign: %d\n",
		r->job->nprocs, o->threads, o->ranks, o->sizes[0], o->sizes[o->nsizes - 1],
		o->step_factor > 1 ? (size_t)o->step_factor : o->step_bytes,
		o->step_factor > 1 ? "factor" : "bytes",
		count_text(warmup, sizeof(warmup), o->warmup),
		count_text(iters, sizeof(iters), o->iters), o->agg_iters, o->check, o->unalign);
	printf("# Buffers: %s; seed %zu\n", buffers[o->buffers], o->seed);
	print_timing(o, r->job->cuda);
	if (r->line_ns > 0)
		printf("# L (one-way line latency, ranks 0 and 1): %.0f ns   C (copies by two "
		       "ranks at "
		       "once): %.1f GB/s\n",
			r->line_ns, r->copy_gbs);
	for (int i = 0; i < o->nignored; i++)
		printf("# --%s has no meaning here and is ignored\n", o->ignored[i]);
	printf("#\n");
}

static void print_columns(const struct perf_options *o)
{
	static const char *const heads[2][8] = {
		{"time", "algbw", "busbw", "#wrong", "i_min", "i_max", "i_p99", "i_cv%"},
		{"(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)", "(%)"}};
	int wide = o->per_iter ? 36 : 0;

	printf("#\n# %10s  %12s  %8s  %6s  %6s  %*s%*s\n", "", "", "", "", "", 22 + wide / 2,
		"out-of-place", 31 + wide, "in-place");
	for (int line = 0; line < 2; line++) {
		const char *const *h = heads[line];

		printf("# %10s  %12s  %8s  %6s  %6s", line ? "(B)" : "size",
			line ? "(elements)" : "count", line ? "" : "type", line ? "" : "redop",
			line ? "" : "root");
		for (int k = 0; k < 2; k++) {
			printf("  %7s  %6s  %6s  %6s", line || !o->cputime ? h[0] : "cputime", h[1],
				h[2], h[3]);
			if (o->per_iter)
				printf("  %7s  %7s  %7s  %7s", h[4], h[5], h[6], h[7]);
		}
		if (o->timestamps)
			printf("  %19s", line ? "YYYY-MM-DD hh:mm:ss" : "timestamp");
		putchar('\n');
	}
	fflush(stdout);
}

static void print_time(const struct perf_options *o, const struct perf_time *t)
{
	char a[16], b[16], c[16], d[16];

	if (t->us <= 0) { /* no such form */
		printf("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A");
		printf("%*s", o->per_iter ? 36 : 0, "");
		return;
	}
	printf("  %s  %s  %s", number(a, sizeof(a), t->us, 7), number(b, sizeof(b), t->algbw, 6),
		number(c, sizeof(c), t->busbw, 6));
	if (t->wrong < 0)
		printf("  %6s", "N/A");
	else
		printf("  %6ld", t->wrong);
	if (o->per_iter)
		printf("  %s  %s  %s  %s", number(a, sizeof(a), t->min, 7),
			number(b, sizeof(b), t->max, 7), number(c, sizeof(c), t->p99, 7),
			number(d, sizeof(d), t->cv, 7));
}

struct perf_report *report_open(
	struct perf_job *job, const struct perf_who *who, double line_ns, double copy_gbs)
{
	struct perf_report *r = calloc(1, sizeof(*r));
	int version = 0;

	if (!r)
		perf_die("no memory");
	symcclGetVersion(&version);
	*r = (struct perf_report){.job = job,
		.opt = &job->opt,
		.line_ns = line_ns,
		.copy_gbs = copy_gbs,
		.terminal = isatty(STDERR_FILENO)};
	print_settings(r, version);
	print_ranks(job, who);
	if (job->opt.json)
		json_open(r, who, version);
	print_columns(&job->opt);
	return r;
}

void report_progress(struct perf_report *r, const char *fmt, ...)
{
	double now = bench_now(CLOCK_MONOTONIC);
	va_list ap;

	if (!r || !r->terminal || (!fmt && !r->progress) || (fmt && now - r->progress_at < 0.1))
		return;
	r->progress = fmt != NULL;
	r->progress_at = now;
	fputs("\r\033[K", stderr);
	if (fmt) {
		va_start(ap, fmt);
		vfprintf(stderr, fmt, ap);
		va_end(ap);
	}
	fflush(stderr);
}

void report_row(struct perf_report *r, const struct perf_case *c, const struct perf_time *out,
	const struct perf_time *in)
{
	size_t bytes = (c->sendcount > c->recvcount ? c->sendcount : c->recvcount) * c->esize;
	const char *op = c->coll->reduces ? op_name(c->op) : "none";
	int root = c->coll->rooted ? c->root : -1;
	char when[32];
	time_t now = time(NULL);
	struct tm tm;

	report_progress(r, NULL);
	printf("%12zu  %12zu  %8s  %6s  %6d", bytes, c->count, type_name(c->type), op, root);
	print_time(r->opt, out);
	print_time(r->opt, in);
	strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", localtime_r(&now, &tm));
	printf(r->opt->timestamps ? "  %s\n" : "\n", when);
	fflush(stdout);
	if (r->json) {
		fprintf(r->json,
			"%s\n    {\"size\": %zu, \"count\": %zu, \"type\": \"%s\", \"redop\": "
			"\"%s\", "
			"\"root\": %d",
			r->rows ? "," : "", bytes, c->count, type_name(c->type), op, root);
		json_time(r, "out_of_place", out);
		if (in->us > 0)
			json_time(r, "in_place", in);
		fputc('}', r->json);
	}
	r->rows++;
	r->forms += 1 + (in->us > 0);
	r->bus_sum += out->busbw + in->busbw;
	r->wrong += (out->wrong > 0 ? out->wrong : 0) + (in->wrong > 0 ? in->wrong : 0);
}

long report_close(struct perf_report *r, double line_ns, const char *memory)
{
	double bus = r->forms ? r->bus_sum / (double)r->forms : 0;
	long wrong = r->wrong;

	report_progress(r, NULL);
	if (r->line_ns > 0)
		printf("# L at the end: %.0f ns\n", line_ns);
	if (*memory)
		printf("# %-20s : %s\n", "Memory usage", memory);
	printf("# %-20s : %ld %s\n", "Out of bounds values", wrong, wrong ? "FAILED" : "OK");
	printf("# %-20s : %g\n#\n", "Avg bus bandwidth", bus);
	printf("# Collective test concluded: %s\n", r->job->program);
	fflush(stdout);
	if (r->json) {
		fprintf(r->json,
			"\n  ],\n  \"line_latency_end_ns\": %.1f,\n  \"memory\": \"%s\",\n"
			"  \"out_of_bounds\": %ld, \"average_bus_bandwidth\": %.4f\n}\n",
			line_ns, memory, wrong, bus);
		if (fclose(r->json))
			perf_die("-J %s: %s", r->opt->json, strerror(errno));
	}
	free(r);
	return wrong;
}
