/*
 * symccl-tune: fit the constants of the host's cost model to this machine, store them, and show how
 * far the model is to be trusted.
 *
 * Every row of the algorithm table is timed at sizes from a few bytes to beyond the caches, on two
 * ranks with a CPU each and on ranks that share CPUs. The constants are those whose predictions lie
 * nearest to the times: the sum over samples of the logarithm of predicted / measured, each weighed
 * by how near the row comes to the best at its size, is least. So the formulas stay in coll/algo.c
 * alone.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cuda/driver.h"
#include "params.h"
#include "tune/measure.h"
#include "tuning.h"
#include "util.h"

#define SETS_MAX 2
#define SAMPLES_MAX 1024
#define CLOSE 1.15 /* a choice that costs no more than this is as good as the best */

static const size_t sizes[] = {
	8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};

static const struct constant {
	const char *name;
	size_t offset;
	double def, lo, hi;
	const char *help;
} constants[] = {
#define TUNING(field, def, lo, hi, help) \
	{#field, offsetof(struct coll_tuning, field), def, lo, hi, help},
#include "coll/tuning.def"
#undef TUNING
};

/* All samples of one team. */
struct set {
	struct ranks ranks;
	struct sample s[SAMPLES_MAX];
	int n;
};

static struct set sets[SETS_MAX];
static int nsets;

static double *constant_of(struct coll_tuning *t, size_t i)
{
	return (double *)((char *)t + constants[i].offset);
}

/* ---- What is measured ------------------------------------------------------------------------ */

static const char *const names[symcclNumFuncs] = {
	[symcclFuncBarrier] = "barrier",
	[symcclFuncAllGather] = "all-gather",
	[symcclFuncAllReduce] = "all-reduce",
	[symcclFuncReduceScatter] = "reduce-scatter",
	[symcclFuncBroadcast] = "broadcast",
	[symcclFuncReduce] = "reduce",
	[symcclFuncAlltoAll] = "all-to-all",
	[symcclFuncGather] = "gather",
	[symcclFuncScatter] = "scatter",
};

/* Rows of the host's table that are planned, in its order. */
static const struct coll_algo *host_row(size_t i)
{
	size_t n;
	const struct coll_algo *a = coll_algos(&n);

	for (size_t k = 0; k < n; k++)
		if (!a[k].gpu && names[a[k].func] && i-- == 0)
			return &a[k];
	return NULL;
}

static int needs_windows(const struct coll_algo *a)
{
	return (a->needs & (COLL_NEED_SEND_WINDOW | COLL_NEED_RECV_WINDOW)) != 0;
}

/* Calls of a round that fit the time, by what the model says so far; fewer make no median. */
static int calls_for(const struct coll_algo *a, const struct set *s, size_t bytes, double seconds)
{
	struct coll_team t = {0};
	struct coll_call c;
	double us;

	coll_tuning_default(&t.tuning);
	team_of(&s->ranks, 0, &t);
	call_of(a->func, bytes, 1, &c);
	us = 2 * a->cost(&t, &c) + (double)bytes * s->ranks.n * t.crowd / 4e3 + 2;
	return (int)MAX(5, MIN(CALLS_MAX, seconds * 1e6 / us / 3));
}

/* Every row with every size that it can take, in `seconds` altogether. */
static void plan_set(struct set *s, int n, int cpus, size_t most, double seconds)
{
	struct coll_team t = {0};
	const struct coll_algo *a;

	s->ranks = (struct ranks){.n = n, .cpus = cpus};
	s->n = 0;
	team_of(&s->ranks, 0, &t);
	for (size_t i = 0; (a = host_row(i)) != NULL; i++)
		for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
			if (sizes[k] > most || sizes[k] > a->max_bytes(&t) || s->n == SAMPLES_MAX ||
				(a->func == symcclFuncBarrier && k > 0))
				continue;
			s->s[s->n++] = (struct sample){
				.algo = a, .bytes = sizes[k], .windows = needs_windows(a)};
		}
	for (int i = 0; i < s->n; i++)
		s->s[i].calls = calls_for(s->s[i].algo, s, s->s[i].bytes, seconds / s->n);
}

/* The best time of a call on such buffers, 0 when none was measured. */
static double best_of(const struct set *s, symcclFunc_t f, size_t bytes, int windows)
{
	double best = 0;

	for (int i = 0; i < s->n; i++)
		if (s->s[i].algo->func == f && s->s[i].bytes == bytes && s->s[i].us > 0 &&
			(windows || !s->s[i].windows) && (best == 0 || s->s[i].us < best))
			best = s->s[i].us;
	return best;
}

/* ---- The fit --------------------------------------------------------------------------------- */

static double predict(const struct set *s, const struct sample *p, const struct coll_tuning *t)
{
	struct coll_team team = {.tuning = *t};
	struct coll_call c;

	team_of(&s->ranks, 0, &team);
	call_of(p->algo->func, p->bytes, p->windows, &c);
	return p->algo->cost(&team, &c);
}

static double loss(const struct coll_tuning *t)
{
	struct coll_tuning copy = *t;
	double sum = 0;

	/* What the samples hardly say anything about stays near what is compiled in. */
	for (size_t i = 0; i < ARRAY_LEN(constants); i++) {
		double off = log(*constant_of(&copy, i) / constants[i].def);

		sum += 0.05 * off * off;
	}
	for (int k = 0; k < nsets; k++)
		for (int i = 0; i < sets[k].n; i++) {
			const struct sample *p = &sets[k].s[i];
			double near, off;

			if (p->us <= 0)
				continue;
			near = best_of(&sets[k], p->algo->func, p->bytes, p->windows) / p->us;
			off = log(predict(&sets[k], p, t) / p->us);
			/* One sample that is far off must not pull all others along. */
			sum += near * near * (sqrt(off * off + 0.01) - 0.1);
		}
	return sum;
}

/* The best value of one constant, the others fixed, by golden section on a logarithmic scale. */
static void fit_one(struct coll_tuning *t, size_t i)
{
	const double golden = 0.6180339887;
	double *v = constant_of(t, i), old = *v, before = loss(t);
	double lo = log(MAX(constants[i].lo, old / 8)), hi = log(MIN(constants[i].hi, old * 8));

	while (hi - lo > 0.005) {
		double a = hi - golden * (hi - lo), b = lo + golden * (hi - lo), at_a, at_b;

		*v = exp(a);
		at_a = loss(t);
		*v = exp(b);
		at_b = loss(t);
		if (at_a < at_b)
			hi = b;
		else
			lo = a;
	}
	*v = exp((lo + hi) / 2);
	if (!(loss(t) < before - 1e-6))
		*v = old;
}

static void fit(struct coll_tuning *t)
{
	double last;

	coll_tuning_default(t);
	t->algo[0] = 0;
	for (int round = 0; round < 30; round++) {
		last = loss(t);
		for (size_t i = 0; i < ARRAY_LEN(constants); i++)
			fit_one(t, i);
		if (last - loss(t) < 1e-3)
			break;
	}
}

/* ---- What is shown --------------------------------------------------------------------------- */

static const char *bytes_text(size_t n)
{
	static char text[4][24];
	static int turn;
	char *t = text[turn++ % 4];

	if (n >= 1 << 20)
		snprintf(t, sizeof(text[0]), "%.3gM", (double)n / (1 << 20));
	else if (n >= 1 << 10)
		snprintf(t, sizeof(text[0]), "%.3gK", (double)n / (1 << 10));
	else
		snprintf(t, sizeof(text[0]), "%zu", n);
	return t;
}

static const char *short_name(const struct coll_algo *a)
{
	const char *slash = strchr(a->name, '/');

	return slash ? slash + 1 : a->name;
}

static const struct coll_algo *chosen(const struct ranks *r, const struct coll_tuning *t,
	symcclFunc_t f, size_t bytes, int windows)
{
	struct coll_team team = {.tuning = *t};
	struct coll_plan plan;
	struct coll_call c;

	team_of(r, 0, &team);
	call_of(f, bytes, windows, &c);
	return coll_plan(&team, &c, &plan) == symcclSuccess ? plan.algo : NULL;
}

static void show_constants(const struct coll_tuning *fitted)
{
	struct coll_tuning t = *fitted;
	char cpu[256];

	tuning_processor(cpu, sizeof(cpu));
	printf("constants of %s\n", cpu);
	for (size_t i = 0; i < ARRAY_LEN(constants); i++)
		printf("  %-12s %9.4g   (compiled in %.4g) %s\n", constants[i].name,
			*constant_of(&t, i), constants[i].def, constants[i].help);
}

/* "packet to 3.1K, push to 64K, ..." */
static void show_row_changes(
	const struct ranks *r, const struct coll_tuning *t, symcclFunc_t f, int windows)
{
	const struct coll_algo *now = chosen(r, t, f, 4, windows);
	size_t at = 4;

	while (now != NULL && at < (size_t)256 << 20) {
		size_t lo = at, hi = at * 2;

		if (chosen(r, t, f, hi, windows) == now) {
			at = hi;
			continue;
		}
		while (hi - lo > MAX(4, lo / 64)) {
			size_t mid = (lo + (hi - lo) / 2) & ~(size_t)3;

			if (mid <= lo || mid >= hi)
				break;
			if (chosen(r, t, f, mid, windows) == now)
				lo = mid;
			else
				hi = mid;
		}
		printf(" %s to %s,", short_name(now), bytes_text(lo));
		now = chosen(r, t, f, hi, windows);
		at = hi;
	}
	printf(" %s\n", now ? short_name(now) : "?");
}

static void show_crossovers(const struct ranks *r, const struct coll_tuning *t)
{
	size_t i = 0;
	const struct coll_algo *a;
	symcclFunc_t last = symcclFuncBarrier;

	printf("\nrows by bytes of a call's count, %d ranks on %d CPU%s\n", r->n, r->cpus,
		r->cpus > 1 ? "s" : "");
	for (; (a = host_row(i)) != NULL; i++) {
		if (a->func == last)
			continue;
		last = a->func;
		for (int windows = 1; windows >= 0; windows--) {
			printf("  %-15s %-8s", names[last], windows ? "windows:" : "plain:");
			show_row_changes(r, t, last, windows);
		}
	}
}

/* One size of one collective: all rows, what is taken, and what that costs against the best. */
static void show_case(const struct set *s, const struct coll_tuning *t, symcclFunc_t f,
	size_t bytes, int *good, int *all)
{
	printf("  %6s ", bytes_text(bytes));
	for (int i = 0; i < s->n; i++)
		if (s->s[i].algo->func == f && s->s[i].bytes == bytes && s->s[i].us > 0)
			printf(" %s %.3g/%.3g", short_name(s->s[i].algo), predict(s, &s->s[i], t),
				s->s[i].us);
	for (int windows = 1; windows >= 0; windows--) {
		const struct coll_algo *a = chosen(&s->ranks, t, f, bytes, windows);
		double best = best_of(s, f, bytes, windows), us = 0;

		for (int i = 0; i < s->n; i++)
			if (s->s[i].algo == a && s->s[i].bytes == bytes)
				us = s->s[i].us;
		if (us <= 0)
			continue;
		++*all;
		*good += us <= best * CLOSE;
		printf("; %s %s", windows ? "windows" : "plain", short_name(a));
		if (us > best * CLOSE)
			printf(" (%+.0f%%)", (us / best - 1) * 100);
	}
	printf("\n");
}

static void show_honesty(const struct set *s, const struct coll_tuning *t, int *good, int *all)
{
	printf("\npredicted/measured us, and the row taken (its excess over the best), %d ranks on "
	       "%d CPU%s\n",
		s->ranks.n, s->ranks.cpus, s->ranks.cpus > 1 ? "s" : "");
	for (int f = 0; f < symcclNumFuncs; f++) {
		int rows = 0;

		for (int i = 0; i < s->n; i++)
			rows += (int)s->s[i].algo->func == f;
		if (rows == 0)
			continue;
		printf(" %s\n", names[f]);
		for (size_t k = 0; k < ARRAY_LEN(sizes); k++)
			if (best_of(s, (symcclFunc_t)f, sizes[k], 1) > 0)
				show_case(s, t, (symcclFunc_t)f, sizes[k], good, all);
	}
}

static double mean_error(const struct coll_tuning *t)
{
	double sum = 0;
	int n = 0;

	for (int k = 0; k < nsets; k++)
		for (int i = 0; i < sets[k].n; i++)
			if (sets[k].s[i].us > 0) {
				sum += fabs(
					log(predict(&sets[k], &sets[k].s[i], t) / sets[k].s[i].us));
				n++;
			}
	return n ? exp(sum / n) - 1 : 0;
}

/* ---- The program ----------------------------------------------------------------------------- */

static int usage(FILE *to)
{
	fprintf(to,
		"usage: symccl-tune [-n] [-t seconds] [-s bytes] [-h]\n"
		"Measures the constants of the host's cost model, shows what is chosen with them "
		"and\n"
		"how well predictions and measured times agree, and stores them for this user.\n"
		"  -n          only show, do not store\n"
		"  -t seconds  about how long to measure (10)\n"
		"  -s bytes    largest size that is measured (16777216; takes 16 times as much "
		"memory)\n"
		"The constants of GPUs are compiled in and not measured.\n");
	return to == stderr ? 2 : 0;
}

static int store(const struct coll_tuning *t)
{
	char path[TUNING_PATH_MAX], note[128];

	if (!tuning_path(path, sizeof(path))) {
		fprintf(stderr,
			"symccl-tune: nowhere to store: set HOME, or SYMCCL_TUNING_FILE to a "
			"path\n");
		return 1;
	}
	snprintf(note, sizeof(note), "# Predictions are off by %.0f%% in the mean.\n",
		mean_error(t) * 100);
	if (tuning_store(path, t, note) != symcclSuccess) {
		fprintf(stderr, "symccl-tune: %s\n", error_text());
		return 1;
	}
	printf("stored in %s\n", path);
	return 0;
}

int main(int argc, char **argv)
{
	int only_show = 0, cpus = cpus_allowed(), good = 0, all = 0, c;
	double seconds = 10, size = (double)sizes[ARRAY_LEN(sizes) - 1], load;
	size_t most;
	struct coll_tuning t;
	char why[512];

	while ((c = getopt(argc, argv, "nt:s:h")) >= 0)
		switch (c) {
		case 'n':
			only_show = 1;
			break;
		case 't':
			if (!number_parse(optarg, &seconds) || !(seconds > 0 && seconds <= 3600))
				return usage(stderr);
			break;
		case 's':
			if (!number_parse(optarg, &size) || !(size >= 1024 && size <= 1 << 30))
				return usage(stderr);
			break;
		case 'h':
			return usage(stdout);
		default:
			return usage(stderr);
		}
	if (optind < argc)
		return usage(stderr);
	most = (size_t)size;
	if (getloadavg(&load, 1) == 1 && load > 0.3 * cpus)
		printf("note: the load here is %.1f; measure on a machine that has nothing else to "
		       "do\n",
			load);
	/* Two with a CPU each, where there are two; then two on each CPU, of at most four. */
	if (cpus > 1)
		plan_set(&sets[nsets++], 2, 2, most, seconds / 2);
	c = MIN(cpus, 2);
	plan_set(&sets[nsets++], 2 * c, c, MIN(most, (size_t)4 << 20), seconds / 2);
	for (int k = 0; k < nsets; k++)
		if (measure(&sets[k].ranks, sets[k].s, sets[k].n, 60 + 20 * seconds, why,
			    sizeof(why)) != 0) {
			fprintf(stderr, "symccl-tune: %s\n", why);
			return 1;
		}
	fit(&t);
	show_constants(&t);
	for (int k = 0; k < nsets; k++)
		show_crossovers(&sets[k].ranks, &t);
	if (cpus > 2)
		show_crossovers(
			&(struct ranks){
				.n = cpus, .cpus = cpus, .readable = sets[0].ranks.readable},
			&t);
	for (int k = 0; k < nsets; k++)
		show_honesty(&sets[k], &t, &good, &all);
	printf("\nthe row taken is the fastest, or costs at most 15%% more, in %d of %d cases; "
	       "predictions are off by %.0f%% in the mean\n",
		good, all, mean_error(&t) * 100);
	if (cuda_open() == NULL)
		printf("GPUs: their constants are compiled in, and not measured\n");
	return only_show ? 0 : store(&t);
}
