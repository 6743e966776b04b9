/* The command line: one table of options, in nccl-tests' letters and meanings. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common.h"

enum kind { INT, SIZE, SIZES, TYPE, OP, ROOT, DEVICE, STRING, NOTHING, HELP };

struct option_row {
	int letter;
	const char *name, *value;
	enum kind kind;
	size_t offset;
	long lo, hi;
	const char *help;
};

#define AT(field) offsetof(struct perf_options, field)
enum { LONG_DEVICE = 256, LONG_DIRTY, LONG_PIN, LONG_SIZES, LONG_SEED };

static const struct option_row rows[] = {
	{'b', "minbytes", "size", SIZE, AT(min_bytes), 0, 0, "smallest size (default 32M)"},
	{'e', "maxbytes", "size", SIZE, AT(max_bytes), 0, 0, "largest size (32M)"},
	{'i', "stepbytes", "size", SIZE, AT(step_bytes), 1, 0, "step between sizes (1M)"},
	{'f', "stepfactor", "factor", INT, AT(step_factor), 2, 1 << 30,
		"multiply sizes by this instead"},
	{LONG_SIZES, "sizes", "list", SIZES, 0, 0, 0, "these sizes instead, comma separated"},
	{'P', "processes", "n", INT, AT(processes), 1, 4096, "fork n processes"},
	{'t', "nthreads", "n", INT, AT(threads), 1, 4096, "threads a process (1)"},
	{'g', "ngpus", "n", INT, AT(ranks), 1, 4096, "ranks a thread, as one group (1)"},
	{'n', "iters", "n", INT, AT(iters), 1, 1 << 24,
		"timed iterations (a quarter second's worth, 20 to 20000)"},
	{'w', "warmup_iters", "n", INT, AT(warmup), 0, 1 << 24, "warm-up iterations (3)"},
	{'m', "agg_iters", "n", INT, AT(agg_iters), 1, 1 << 16,
		"calls in one group, an iteration (1)"},
	{'N', "run_cycles", "n", INT, AT(cycles), 0, 1 << 30,
		"go over all sizes n times; 0: for ever (1)"},
	{'a', "average", "0-3", INT, AT(average), 0, 3,
		"over ranks: 0 rank 0, 1 mean, 2 least, 3 most (1 back to back, else 3)"},
	{'c', "check", "n", INT, AT(check), 0, 1 << 20, "iterations whose outputs are checked (1)"},
	{'o', "op", "op", OP, AT(op), 0, 0, "sum prod max min avg all (sum)"},
	{'d', "datatype", "type", TYPE, AT(type), 0, 0,
		"int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2 all "
		"(float)"},
	{'r', "root", "root", ROOT, AT(root), 0, INT_MAX, "root rank, or all (0)"},
	{'z', "blocking", "0-3", INT, AT(blocking), 0, 3,
		"back to back: 1 wait and meet after each iteration, 3 the same but not timed (0)"},
	{'C', "report_cputime", "0|1", INT, AT(cputime), 0, 1,
		"report CPU time of the calling thread; on GPUs that of enqueueing (0)"},
	{'T', "timeout", "seconds", INT, AT(timeout), 0, 1 << 20,
		"end the program when a size takes longer (0: never)"},
	{'I', "per_iter_timing", "0|1", INT, AT(per_iter), 0, 1,
		"add columns: least, most, 99th percentile, variation over iterations (0)"},
	{'K', "per_iter_skip", "n", INT, AT(skip), 0, 1 << 24,
		"leave n first iterations out of -I (0)"},
	{'S', "report_timestamps", "0|1", INT, AT(timestamps), 0, 1,
		"end each row with the time of day (0)"},
	{'J', "output_file", "file", STRING, AT(json), 0, 0, "write everything as JSON too"},
	{'R', "local_register", "0|1|2", INT, AT(buffers), 0, 2,
		"buffers: 0 malloc or cuMemAlloc, 1 symcclMemAlloc, 2 symmetric windows (0)"},
	{'M', "memory", "0|1", INT, AT(memory), 0, 1, "report memory use of the processes (0)"},
	{'u', "unalign", "n", INT, AT(unalign), 0, 1 << 16, "start buffers n elements off (0)"},
	{LONG_DEVICE, "device", "auto|host|cuda", DEVICE, AT(device), 0, 0,
		"memory of the buffers (auto: SYMCCL_DEVICE, else GPUs if there are any)"},
	{LONG_DIRTY, "dirty", "0|1", INT, AT(dirty), 0, 1,
		"1: rewrite inputs and meet before each timed call, median of calls; "
		"0: back to back, mean (CPUs 1, GPUs 0)"},
	{LONG_PIN, "pin", "0|1", INT, AT(pin), 0, 1, "one CPU a rank (1 if there are enough)"},
	{LONG_SEED, "seed", "n", SIZE, AT(seed), 0, 0, "of the random data (a fresh one)"},
	{'G', "cudagraph", "n", INT, AT(graph), 0, 1 << 16,
		"GPUs: the iterations (20) in a CUDA graph that is launched n times (0: none)"},
	{'y', "stream_null", "0|1", INT, AT(null_stream), 0, 1, "GPUs: use the default stream (0)"},
	{'p', "parallel_init", "0|1", NOTHING, 0, 0, 0, "threads always initialise in parallel"},
	{'x', "cta_policy", "n", NOTHING, 0, 0, 0, "the library chooses"},
	{'D', "device_implementation", "n", NOTHING, 0, 0, 0, "the library's kernels are timed"},
	{'V', "device_cta_count", "n", NOTHING, 0, 0, 0, "SYMCCL_MAX_CTAS does that"},
	{'h', "help", NULL, HELP, 0, 0, 0, "this text"},
};
enum { NROWS = sizeof(rows) / sizeof(rows[0]) };

static const struct {
	const char *name, *alias;
	size_t size;
} types[symcclNumTypes] = {
	[symcclInt8] = {"int8", "char", 1},
	[symcclUint8] = {"uint8", "byte", 1},
	[symcclInt32] = {"int32", "int", 4},
	[symcclUint32] = {"uint32", NULL, 4},
	[symcclInt64] = {"int64", NULL, 8},
	[symcclUint64] = {"uint64", NULL, 8},
	[symcclFloat16] = {"half", "float16", 2},
	[symcclFloat32] = {"float", "float32", 4},
	[symcclFloat64] = {"double", "float64", 8},
	[symcclBfloat16] = {"bfloat16", "bf16", 2},
	[symcclFloat8e4m3] = {"f8e4m3", "fp8e4m3", 1},
	[symcclFloat8e5m2] = {"f8e5m2", "fp8e5m2", 1},
};

static const char *const ops[symcclNumOps] = {"sum", "prod", "max", "min", "avg"};
static const char *const devices[] = {"auto", "host", "cuda"};

const char *type_name(symcclDataType_t t)
{
	return types[t].name;
}

size_t type_size(symcclDataType_t t)
{
	return types[t].size;
}

const char *op_name(symcclRedOp_t op)
{
	return ops[op];
}

int size_parse(const char *text, size_t *size)
{
	static const char units[] = "KMGT";
	char *end;
	double n = strtod(text, &end);
	const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;

	if (end == text || n < 0 || (*end && !unit))
		return -1;
	if (unit) {
		for (const char *u = units; u <= unit; u++)
			n *= 1024;
		end++;
	}
	if (*end == 'B' || *end == 'b')
		end++;
	if (*end || n >= 0x1p63)
		return -1;
	*size = (size_t)n;
	return 0;
}

static int name_index(const char *text, const char *const *names, int n)
{
	for (int i = 0; i < n; i++)
		if (!strcasecmp(text, names[i]))
			return i;
	return strcasecmp(text, "all") ? -2 : PERF_ALL;
}

static int type_index(const char *text)
{
	for (int i = 0; i < symcclNumTypes; i++)
		if (!strcasecmp(text, types[i].name) ||
			(types[i].alias && !strcasecmp(text, types[i].alias)))
			return i;
	return strcasecmp(text, "all") ? -2 : PERF_ALL;
}

static int int_parse(const char *text, long lo, long hi, int *value)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(text, &end, 0);
	if (errno || end == text || *end || n < lo || n > hi)
		return -1;
	*value = (int)n;
	return 0;
}

static int sizes_parse(struct perf_options *o, const char *text)
{
	char word[32];

	for (o->nsizes = 0; *text && o->nsizes < PERF_MAX_SIZES; o->nsizes++) {
		size_t len = strcspn(text, ",");

		if (len >= sizeof(word))
			return -1;
		memcpy(word, text, len);
		word[len] = 0;
		if (size_parse(word, &o->sizes[o->nsizes]))
			return -1;
		text += len + (text[len] == ',');
	}
	return *text || !o->nsizes ? -1 : 0;
}

static void ignore(struct perf_options *o, const char *name)
{
	if (o->nignored < (int)(sizeof(o->ignored) / sizeof(o->ignored[0])))
		o->ignored[o->nignored++] = name;
}

/* 0, or -1 when text is no value of this row. */
static int value_parse(struct perf_options *o, const struct option_row *row, const char *text)
{
	int *field = (int *)((char *)o + row->offset);

	switch (row->kind) {
	case INT:
		return int_parse(text, row->lo, row->hi, field);
	case SIZE: {
		size_t *size = (size_t *)((char *)o + row->offset);

		return size_parse(text, size) || *size < (size_t)row->lo ? -1 : 0;
	}
	case SIZES:
		return sizes_parse(o, text);
	case TYPE:
		*field = type_index(text);
		return *field < PERF_ALL ? -1 : 0;
	case OP:
		*field = name_index(text, ops, symcclNumOps);
		return *field < PERF_ALL ? -1 : 0;
	case ROOT:
		if (!strcasecmp(text, "all") || !strcmp(text, "-1")) {
			*field = PERF_ALL;
			return 0;
		}
		return int_parse(text, row->lo, row->hi, field);
	case DEVICE:
		*field = name_index(text, devices, 3);
		return *field < 0 ? -1 : 0;
	case STRING:
		*(const char **)((char *)o + row->offset) = text;
		return 0;
	case NOTHING:
		ignore(o, row->name);
		return 0;
	case HELP:
		o->help = 1;
		return 0;
	}
	return -1;
}

static int sizes_fill(struct perf_options *o, char *err, size_t errlen)
{
	if (o->nsizes)
		return 0;
	if (o->min_bytes > o->max_bytes) {
		snprintf(err, errlen, "-b %zu is larger than -e %zu", o->min_bytes, o->max_bytes);
		return -1;
	}
	for (size_t s = o->min_bytes; s <= o->max_bytes;) {
		size_t next = o->step_factor > 1 ? s * (size_t)o->step_factor : s + o->step_bytes;

		if (o->nsizes == PERF_MAX_SIZES) {
			snprintf(err, errlen,
				"more than %d sizes between -b and -e: give a larger -i or -f",
				PERF_MAX_SIZES);
			return -1;
		}
		o->sizes[o->nsizes++] = s;
		if (next <= s) /* 0 times a factor, or past the end of size_t */
			break;
		s = next;
	}
	return 0;
}

static void defaults(struct perf_options *o)
{
	*o = (struct perf_options){
		.min_bytes = 32 << 20,
		.max_bytes = 32 << 20,
		.step_bytes = 1 << 20,
		.threads = 1,
		.ranks = 1,
		.iters = PERF_AUTO,
		.warmup = PERF_AUTO,
		.agg_iters = 1,
		.cycles = 1,
		.average = PERF_AUTO,
		.check = 1,
		.dirty = PERF_AUTO,
		.pin = PERF_AUTO,
		.type = symcclFloat32,
	};
}

void options_settle(struct perf_options *o, int cuda)
{
	if (!cuda) {
		if (o->graph)
			ignore(o, "cudagraph");
		if (o->null_stream)
			ignore(o, "stream_null");
		o->graph = o->null_stream = 0;
	}
	if (o->graph && o->dirty == 1)
		ignore(o, "dirty");
	if (o->graph || (o->dirty == PERF_AUTO && cuda))
		o->dirty = 0;
	o->dirty = o->dirty != 0;
	if (o->blocking && (o->dirty || o->graph)) {
		ignore(o, "blocking");
		o->blocking = 0;
	}
	if (o->average == PERF_AUTO)
		o->average = o->dirty ? 3 : 1;
}

/* What can be said before it is known where the buffers are. */
static int agree(struct perf_options *o, const struct perf_coll *coll, char *err, size_t errlen)
{
	if (o->iters != PERF_AUTO && !o->graph && o->skip >= o->iters) {
		snprintf(err, errlen, "-K %d leaves nothing of -n %d", o->skip, o->iters);
		return -1;
	}
	if (!coll->reduces && o->op)
		ignore(o, "op");
	if (!coll->rooted && o->root)
		ignore(o, "root");
	if (coll->no_data) {
		o->nsizes = 1;
		o->sizes[0] = 0;
	}
	return sizes_fill(o, err, errlen);
}

int options_parse(struct perf_options *o, const struct perf_coll *coll, int argc, char **argv,
	char *err, size_t errlen)
{
	struct option longs[NROWS + 1] = {0};
	char shorts[2 * NROWS + 2] = ":", *s = shorts + 1;
	int index;

	defaults(o);
	for (int i = 0; i < NROWS; i++) {
		longs[i] = (struct option){rows[i].name,
			rows[i].value ? required_argument : no_argument, NULL, rows[i].letter};
		if (rows[i].letter > 255)
			continue;
		*s++ = (char)rows[i].letter;
		if (rows[i].value)
			*s++ = ':';
	}
	optind = 1;
	for (int c; (c = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
		for (index = 0; index < NROWS && rows[index].letter != c; index++)
			;
		if (index == NROWS) {
			snprintf(err, errlen,
				c == ':' ? "%s wants a value" : "%s is no option here",
				argv[optind - 1]);
			return -1;
		}
		if (value_parse(o, &rows[index], optarg)) {
			snprintf(err, errlen, "--%s %s: not one of <%s>", rows[index].name, optarg,
				rows[index].value);
			return -1;
		}
	}
	if (optind < argc) {
		snprintf(err, errlen, "%s is no option", argv[optind]);
		return -1;
	}
	return agree(o, coll, err, errlen);
}

void options_usage(FILE *f, const char *program)
{
	fprintf(f, "usage: %s [options]\n", program);
	for (int i = 0; i < NROWS; i++) {
		const struct option_row *r = &rows[i];
		char left[64];

		snprintf(left, sizeof(left), "--%s%s%s", r->name, r->value ? " " : "",
			r->value ? r->value : "");
		fprintf(f, r->letter < 256 ? "  -%c, " : "      ", r->letter);
		fprintf(f, "%-28s %s%s\n", left,
			r->kind == NOTHING ? "accepted, without effect: " : "", r->help);
	}
}
