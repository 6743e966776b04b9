/* The benchmarks' command line, numbers and checker. */
#include <criterion/criterion.h>

#include "../../perf/common_data.c"
#include "../../perf/common_options.c"
#include "../../perf/common_report.c"

void perf_die(const char *fmt, ...)
{
	fputs(fmt, stderr);
	abort();
}

TestSuite(perf, .timeout = 10);

/* Rank r's output is what rank r + 1 gave. */
static void shifted(const struct perf_case *c, int rank, size_t first, size_t n, void *out)
{
	perf_input(c, (rank + 1) % c->nranks, first, n, out);
}

static const struct perf_coll plain = {.name = "plain"};
static const struct perf_coll shift = {.name = "shift", .expect = shifted};

static int parse(struct perf_options *o, char *err, size_t errlen, int argc, const char **argv)
{
	return options_parse(o, &plain, argc, (char **)argv, err, errlen);
}

#define PARSE(o, err, ...) \
	parse(&(o), err, sizeof(err), (int)(sizeof((const char *[]){"p", __VA_ARGS__}) / 8), \
		(const char *[]){"p", __VA_ARGS__, NULL})

Test(perf, sizes_with_units)
{
	static const struct {
		char text[16];
		size_t want;
	} good[] = {{"8", 8}, {"64K", 65536}, {"1m", 1 << 20}, {"1.5M", 3 << 19}, {"0", 0},
		{"2G", (size_t)2 << 30}, {"4KB", 4096}};
	static const char bad[][16] = {"", "x", "-1", "3Q", "4KK", "1e30"};
	size_t n = 7;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		cr_assert_eq(size_parse(good[i].text, &n), 0, "%s", good[i].text);
		cr_assert_eq(n, good[i].want, "%s gave %zu", good[i].text, n);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_eq(size_parse(bad[i], &n), -1, "%s", bad[i]);
}

Test(perf, options_as_in_nccl_tests)
{
	struct perf_options o;
	char err[256];

	cr_assert_eq(PARSE(o, err, "-b8", "-e", "1M", "-f", "8", "-n", "50", "-w", "2", "-R", "2",
			     "-d", "bfloat16", "-c", "0", "-t", "2", "-g", "3", "-P", "4", "-G",
			     "9", "--dirty", "0", "-r", "all"),
		0, "%s", err);
	cr_assert_eq(o.nsizes, 6);
	cr_assert_eq(o.sizes[5], 8 * 32768);
	cr_assert(o.iters == 50 && o.warmup == 2 && o.buffers == 2 && o.check == 0);
	cr_assert(o.threads == 2 && o.ranks == 3 && o.processes == 4);
	cr_assert_eq(o.type, symcclBfloat16);
	options_settle(&o, 0);
	cr_assert_eq(o.average, 1, "back to back is averaged");
	cr_assert_eq(o.nignored, 2, "-G has no meaning on a CPU, nor -r here");
	cr_assert_eq(o.graph, 0);
	cr_assert_eq(PARSE(o, err, "--sizes", "8,1K,3"), 0);
	cr_assert(o.nsizes == 3 && o.sizes[1] == 1024 && o.sizes[2] == 3);
	options_settle(&o, 0);
	cr_assert(o.dirty && o.average == 3, "on CPUs: dirty, of the slowest rank");
}

Test(perf, options_on_gpus)
{
	struct perf_options o;
	char err[256];

	cr_assert_eq(PARSE(o, err, "-b8", "-e8"), 0, "%s", err);
	options_settle(&o, 1);
	cr_assert(!o.dirty && o.average == 1 && !o.graph && !o.nignored);
	cr_assert_eq(PARSE(o, err, "-b8", "-e8", "--dirty", "1", "-z", "1"), 0, "%s", err);
	options_settle(&o, 1);
	cr_assert(o.dirty && o.average == 3 && !o.blocking && o.nignored == 1);
	cr_assert_eq(PARSE(o, err, "-b8", "-e8", "-G", "7", "-n", "50", "-y", "1", "-z", "3",
			     "--dirty", "1", "-a", "2", "-K", "60"),
		0, "%s", err);
	options_settle(&o, 1);
	cr_assert(o.graph == 7 && o.iters == 50 && o.null_stream && o.average == 2);
	cr_assert(!o.dirty && !o.blocking && o.nignored == 2, "neither in a graph");
}

Test(perf, options_refused)
{
	static const char bad[][2][24] = {{"-q", "1"}, {"-n", "0"}, {"-n", "ten"}, {"-R", "3"},
		{"-d", "complex"}, {"-b", "1X"}, {"--dirty", "2"}, {"--sizes", "8,,"},
		{"--device", "tpu"}, {"-G", "-1"}, {"-y", "2"}, {"-b", "64M"}, {"-b", "0"},
		{"stray", "-h"}};
	struct perf_options o;
	char err[256];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		err[0] = 0;
		cr_expect_eq(PARSE(o, err, bad[i][0], bad[i][1], "-i", "1K"), -1, "%s %s",
			bad[i][0], bad[i][1]);
		cr_expect(err[0], "%s %s: says nothing", bad[i][0], bad[i][1]);
	}
}

Test(perf, inputs_do_not_depend_on_the_range)
{
	struct perf_case c = {.coll = &shift, .nranks = 3, .esize = 4, .seed = 5};
	char whole[400], part[400];

	perf_input(&c, 1, 0, 100, whole);
	for (size_t first = 0; first < 100; first += 7) {
		perf_input(&c, 1, first, 100 - first, part);
		cr_assert_arr_eq(part, whole + 4 * first, 4 * (100 - first));
	}
	perf_input(&c, 2, 0, 100, part);
	cr_assert_arr_neq(part, whole, 400, "ranks give different data");
	c.seed++;
	perf_input(&c, 1, 0, 100, part);
	cr_assert_arr_neq(part, whole, 400, "seeds give different data");
}

Test(perf, every_wrong_element_is_counted)
{
	enum { N = 20001 };
	static uint16_t out[N];
	struct perf_case c = {
		.coll = &shift, .nranks = 2, .esize = 2, .seed = 9, .sendcount = N, .recvcount = N};
	unsigned char guard[8];

	perf_input(&c, 1, 0, N, out);
	cr_assert_eq(data_wrong(&c, 0, out), 0);
	cr_assert_eq(data_input_wrong(&c, 1, out), 0);
	out[0] ^= 1;
	out[N / 2] ^= 0x8000;
	out[N - 1] ^= 4;
	cr_assert_eq(data_wrong(&c, 0, out), 3);
	cr_assert_eq(data_input_wrong(&c, 1, out), 3);
	cr_assert_neq(data_wrong(&c, 1, out), 0);

	memset(guard, PERF_POISON, sizeof(guard));
	cr_assert_eq(data_guard_wrong(guard, guard + 8), 0);
	guard[7]++;
	cr_assert_eq(data_guard_wrong(guard, guard + 8), 1);
}

Test(perf, medians_and_spread)
{
	double odd[] = {3e-6, 1e-6, 2e-6}, even[] = {4, 1, 3, 2};
	struct perf_time t = {0};

	cr_assert_float_eq(bench_median(even, 4), 2.5, 1e-12);
	cr_assert_float_eq(bench_median(odd, 3), 2e-6, 1e-12);
	cr_assert_float_eq(bench_median(odd, 0), 0, 0);
	stats_of(odd, 3, &t);
	cr_assert_float_eq(t.min, 1, 1e-9);
	cr_assert_float_eq(t.max, 3, 1e-9);
	cr_assert_float_eq(t.p99, 3, 1e-9);
	cr_assert_float_eq(t.cv, 40.8248, 1e-3);
}

Test(perf, numbers_keep_their_width)
{
	static const double v[] = {0, 0.1234, 9.9996, 123.456, 99999.99, 1234567.8, 1e12};
	char text[32];

	for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++) {
		cr_assert_eq(strlen(number(text, sizeof(text), v[i], 7)), 7, "%g: %s", v[i], text);
		cr_assert_eq(strlen(number(text, sizeof(text), v[i], 6)), 6, "%g: %s", v[i], text);
	}
	cr_assert_str_eq(number(text, sizeof(text), 0.1234, 7), "  0.123");
}
