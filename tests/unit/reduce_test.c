/* Every type, operator, number of sources and instruction set against the oracle, bit for bit. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "coll/host/reduce.h"
#include "coll/host/reduce_isa.h"
#include "device/types.h"
#include "mem.h"
#include "oracle.h"
#include "util.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

TestSuite(reduce, .timeout = 60);

#define SOURCES_MAX 33
#define DESTINATIONS_MAX 3
#define PREMUL symcclNumOps /* as an operator of these tests */

static const char *const isas[] = {"plain", "avx2", "avx512"};

/* ---- Data ------------------------------------------------------------------------------------ */

/* What finds mistakes: zeros, ends, subnormals, infinities, NaN with payloads, quiet or not. */
static uint64_t special(symcclDataType_t type, uint64_t r)
{
	static const uint64_t f64[] = {0, 1, 0x000fffffffffffff, 0x0010000000000000,
		0x3ff0000000000000, 0x7fefffffffffffff, 0x7ff0000000000000, 0x7ff8000000000000,
		0x7ff8000000001234, 0x7ff0000000000001, 0x4340000000000001};
	static const uint64_t f32[] = {0, 1, 0x007fffff, 0x00800000, 0x3f800000, 0x7f7fffff,
		0x7f800000, 0x7fc00000, 0x7fc01234, 0x7f800001, 0x4b800001};
	static const uint64_t f16[] = {
		0, 1, 0x03ff, 0x0400, 0x3c00, 0x7bff, 0x7c00, 0x7e00, 0x7e34, 0x7c01, 0x6401};
	static const uint64_t bf16[] = {
		0, 1, 0x007f, 0x0080, 0x3f80, 0x7f7f, 0x7f80, 0x7fc0, 0x7fd4, 0x7f81, 0x4b81};
	static const uint64_t e4m3[] = {0, 1, 0x07, 0x08, 0x38, 0x7e, 0x7d, 0x7f, 0x77, 0x39, 0x40};
	static const uint64_t e5m2[] = {0, 1, 0x03, 0x04, 0x3c, 0x7b, 0x7c, 0x7e, 0x7f, 0x7d, 0x3d};
	static const uint64_t integers[] = {0, 1, 2, 3, 0x7f, 0x80, 0x7fffffff, 0x80000000,
		0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff};
	int bits = 8 * (int)fill_type_size(type);
	uint64_t sign = (r >> 8 & 1) << (bits - 1), i = r % ARRAY_LEN(integers);

	switch (type) {
	case symcclFloat64:
		return f64[i] | sign;
	case symcclFloat32:
		return f32[i] | sign;
	case symcclFloat16:
		return f16[i] | sign;
	case symcclBfloat16:
		return bf16[i] | sign;
	case symcclFloat8e4m3:
		return e4m3[i] | sign;
	case symcclFloat8e5m2:
		return e5m2[i] | sign;
	default:
		return integers[i] & ~(uint64_t)0 >> (64 - bits);
	}
}

/* A third ordinary elements, a third any bits, a third of every eighth element special ones. */
static void fill(void *p, size_t count, symcclDataType_t type, uint64_t seed)
{
	size_t size = fill_type_size(type);

	fill_type(p, count, type, seed);
	for (size_t i = 0; i < count; i++) {
		uint64_t r = mix64(seed ^ 0x5eed, i), v = mix64(r, 1);

		if (r % 3 == 0)
			continue;
		if (r % 3 == 1 && (i % 8 == 3 || (r >> 20) % 16 == 0))
			v = special(type, r >> 32);
		else if (r % 3 == 1)
			continue;
		memcpy((char *)p + i * size, &v, size);
	}
}

/* ---- One reduction, many ways ---------------------------------------------------------------- */

struct data {
	symcclDataType_t type;
	int op, nsrc;
	size_t count, bytes;
	struct guarded src[SOURCES_MAX];
	uint64_t factor[SOURCES_MAX];
	unsigned char *want;
};

static void data_make(struct data *d, uint64_t seed)
{
	size_t size = fill_type_size(d->type);
	const void *src[SOURCES_MAX];

	d->bytes = d->count * size;
	for (int q = 0; q < d->nsrc; q++) {
		uint64_t r = mix64(seed, (uint64_t)q);

		/* Half of the cases lie as compilers align them. */
		cr_assert_eq(guarded_alloc(&d->src[q], d->bytes, seed & 1 ? r % 64 : 0), 0);
		fill(d->src[q].p, d->count, d->type, r);
		src[q] = d->src[q].p;
		d->factor[q] = 0;
		fill(&d->factor[q], 1, d->type, r + 1);
	}
	d->want = malloc(d->bytes + 1);
	oracle_reduce(d->type, d->op == PREMUL ? symcclSum : (symcclRedOp_t)d->op, src, d->nsrc,
		d->op == PREMUL ? d->factor : NULL, d->count, d->want);
}

static void data_free(struct data *d)
{
	for (int q = 0; q < d->nsrc; q++)
		guarded_free(&d->src[q]);
	free(d->want);
}

struct way {
	int ndst, stream;
	int in_place; /* source that destination 0 is; -1: none */
	size_t skew[DESTINATIONS_MAX];
};

static void check_result(const struct data *d, const struct way *w, int k, struct guarded *g)
{
	size_t size = fill_type_size(d->type);
	long at = 0;

	for (size_t i = 0; i < d->count; i++)
		if (memcmp(g->p + i * size, d->want + i * size, size) != 0) {
			uint64_t got = 0, want = 0;

			memcpy(&got, g->p + i * size, size);
			memcpy(&want, d->want + i * size, size);
			cr_assert_fail(
				"%s: type %d op %d of %d sources, %zu elements, destination %d "
				"of %d, stream %d, in place %d: element %zu is %llx, not %llx",
				reduce_used(), (int)d->type, d->op, d->nsrc, d->count, k, w->ndst,
				w->stream, w->in_place, i, (unsigned long long)got,
				(unsigned long long)want);
		}
	cr_assert_eq(guarded_check(g, &at), 0,
		"%s: type %d op %d of %d, %zu elements: wrote at %ld", reduce_used(), (int)d->type,
		d->op, d->nsrc, d->count, at);
}

static void try_way(const struct data *d, const struct way *w)
{
	struct guarded dst[DESTINATIONS_MAX];
	const void *src[SOURCES_MAX];
	void *to[DESTINATIONS_MAX];
	struct reduction r = {.type = d->type,
		.op = (symcclRedOp_t)d->op,
		.nsrc = d->nsrc,
		.ndst = w->ndst,
		.src = src,
		.dst = to,
		.count = d->count,
		.stream = w->stream};

	if (d->op == PREMUL) {
		r.op = symcclSum;
		r.factor = d->factor;
	}
	for (int q = 0; q < d->nsrc; q++)
		src[q] = d->src[q].p;
	for (int k = 0; k < w->ndst; k++) {
		cr_assert_eq(guarded_alloc(&dst[k], d->bytes, w->skew[k]), 0);
		to[k] = dst[k].p;
	}
	if (w->in_place >= 0) {
		memcpy(to[0], src[w->in_place], d->bytes);
		src[w->in_place] = to[0];
	}
	/* The last destination may be a source as well. */
	if (w->in_place > 0 && w->ndst > 1) {
		memcpy(to[w->ndst - 1], src[0], d->bytes);
		src[0] = to[w->ndst - 1];
	}
	reduce(&r);
	for (int k = 0; k < w->ndst; k++) {
		check_result(d, w, k, &dst[k]);
		guarded_free(&dst[k]);
	}
}

/* Ways drawn from the seed; with SYMCCL_TEST_FULL=1 every combination of what counts. */
static void try_ways(const struct data *d, uint64_t seed, int full)
{
	for (int w = 0; w < (full ? 36 : 2); w++) {
		uint64_t r = mix64(seed, (uint64_t)w + 77);
		int k = full ? w : (int)(r >> 32 & 0xffff) % 36;
		struct way way = {.ndst = 1 + k % 3, .stream = k / 3 % 2, .in_place = -1};

		if (k / 6 % 2)
			way.in_place = (int)((r >> 8) % (uint64_t)d->nsrc);
		for (int j = 0; j < DESTINATIONS_MAX; j++) {
			size_t element = fill_type_size(d->type);

			/* Lines together; elements aligned; anywhere. */
			way.skew[j] = k / 12 == 0   ? 0
				      : k / 12 == 1 ? (r >> 16) % 8 * element
						    : (r >> (16 + 6 * j)) % 64;
		}
		try_way(d, &way);
	}
}

static int is_full(void)
{
	const char *s = getenv("SYMCCL_TEST_FULL");

	return s && strcmp(s, "1") == 0;
}

struct row {
	int type, op;
};

ParameterizedTestParameters(reduce, as_the_oracle_says)
{
	static struct row rows[symcclNumTypes * (symcclNumOps + 1)];

	for (int i = 0; i < (int)ARRAY_LEN(rows); i++)
		rows[i] = (struct row){i / (symcclNumOps + 1), i % (symcclNumOps + 1)};
	return cr_make_param_array(struct row, rows, ARRAY_LEN(rows));
}

ParameterizedTest(struct row *row, reduce, as_the_oracle_says, .timeout = 600)
{
	static const int nsrc[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33};
	static const size_t counts[] = {
		0, 1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 257, 1031, 4099};
	int full = is_full();

	for (size_t a = 0; a < ARRAY_LEN(nsrc); a++)
		for (size_t b = 0; b < ARRAY_LEN(counts); b++) {
			struct data d = {.type = (symcclDataType_t)row->type,
				.op = row->op,
				.nsrc = nsrc[a],
				.count = counts[b]};
			uint64_t seed = mix64(test_seed(), a * 1000 + b + 17 * (size_t)row->type);

			/* The long ones for few sources, and now and then for many. */
			if (!full && counts[b] * (size_t)nsrc[a] > 9000)
				continue;
			data_make(&d, seed);
			for (size_t k = 0; k < ARRAY_LEN(isas); k++)
				if (reduce_use(isas[k]))
					try_ways(&d, seed + k, full);
			data_free(&d);
		}
}

/* ---- Single things --------------------------------------------------------------------------- */

static float sum_f32(const float *v, int n, symcclRedOp_t op)
{
	const void *src[n];
	float out;
	void *to = &out;
	struct reduction r = {.type = symcclFloat32,
		.op = op,
		.nsrc = n,
		.ndst = 1,
		.src = src,
		.dst = &to,
		.count = 1};

	for (int q = 0; q < n; q++)
		src[q] = &v[q];
	reduce(&r);
	return out;
}

Test(reduce, the_example_of_the_manual)
{
	static const float v[] = {0x1p24f, 1, 1, -0x1p24f, 0.5f};

	/* ((2^24 + 1) + (1 - 2^24)) + 0.5 = (2^24 + (1 - 2^24)) + 0.5; left to right it were 0.5.
	 */
	cr_assert_eq(sum_f32(v, 5, symcclSum), 1.5f);
	cr_assert_eq(sum_f32(v, 5, symcclAvg), 1.5f / 5);
}

Test(reduce, integers_wrap)
{
	int8_t x[] = {127, 1, 1}, y;
	const void *src[] = {&x[0], &x[1], &x[2]};
	void *to = &y;
	struct reduction r = {.type = symcclInt8,
		.op = symcclAvg,
		.nsrc = 3,
		.ndst = 1,
		.src = src,
		.dst = &to,
		.count = 1};

	reduce(&r); /* 129 is -127, a third of which is -42.3 */
	cr_assert_eq(y, -42);
	r.divisor = 2;
	reduce(&r);
	cr_assert_eq(y, -63);
	r.op = symcclMax;
	reduce(&r);
	cr_assert_eq(y, 127);
}

Test(reduce, every_small_quotient)
{
	for (uint32_t by = 1; by < 300; by++) {
		uint8_t u[256], v[256];
		int8_t s[256];
		const void *src = u;
		void *to = v;
		struct reduction r = {.type = symcclUint8,
			.op = symcclAvg,
			.nsrc = 1,
			.ndst = 1,
			.src = &src,
			.dst = &to,
			.count = 256,
			.divisor = by};

		for (int i = 0; i < 256; i++)
			u[i] = (uint8_t)i;
		reduce(&r);
		r.type = symcclInt8;
		to = s;
		reduce(&r);
		for (int i = 0; i < 256; i++) {
			cr_assert_eq(v[i], (uint8_t)((uint32_t)i / by));
			cr_assert_eq(s[i], (int8_t)((int8_t)i / (int32_t)by));
		}
	}
}

Test(reduce, large_quotients_truncate)
{
	static const uint32_t by[] = {1, 2, 3, 7, 255, 256, 65535, 65536, 1000003};

	for (size_t k = 0; k < ARRAY_LEN(isas); k++)
		for (size_t b = 0; b < ARRAY_LEN(by) && reduce_use(isas[k]); b++) {
			uint32_t u[512], v[512];
			int32_t s[512];
			const void *src = u;
			void *to = v;
			struct reduction r = {.type = symcclUint32,
				.op = symcclAvg,
				.nsrc = 1,
				.ndst = 1,
				.src = &src,
				.dst = &to,
				.count = 512,
				.divisor = by[b]};

			for (uint32_t i = 0; i < 512; i++) /* multiples and their neighbours */
				u[i] = (uint32_t)mix64(3, i) / by[b] * by[b] + i % 3 - 1;
			reduce(&r);
			r.type = symcclInt32;
			to = s;
			reduce(&r);
			for (int i = 0; i < 512; i++) {
				cr_assert_eq(v[i], u[i] / by[b]);
				cr_assert_eq(s[i], (int32_t)u[i] / (int32_t)by[b]);
			}
		}
}

Test(reduce, hundreds_of_sources_in_a_small_stack)
{
	enum { N = 513 };
	static float v[N];
	uint64_t bits[N];
	float out;
	uint32_t word;

	for (int q = 0; q < N; q++) {
		fill_type(&v[q], 1, symcclFloat32, test_seed() + (uint64_t)q);
		memcpy(&word, &v[q], sizeof(word));
		bits[q] = word;
	}
	out = sum_f32(v, N, symcclSum);
	cr_assert_eq(f32_bits(out), oracle_element(symcclFloat32, symcclSum, bits, N, NULL));
}

/* The round functions of each instruction set, where vectors and single elements do the same. */
Test(reduce, vectors_round_like_single_elements)
{
	const struct reduce_isa *all[] = {
		&reduce_plain,
#if defined(__x86_64__)
		&reduce_avx2,
		&reduce_avx512
#endif
	};
	static float in[100003];
	static unsigned char out[100003 * 2];

	for (size_t i = 0; i < ARRAY_LEN(in); i++) {
		uint32_t bits = (uint32_t)mix64(test_seed(), i);

		if (i % 2) /* near the halves, and where the types have numbers */
			bits = (bits & 0x80700000) | (bits % 48 + 99) << 23 | (bits & 1) << 12 |
			       (bits >> 8 & 1) << 15 | (bits >> 9 & 1) << 19 | (bits >> 10 & 1);
		in[i] = f32_of_bits(bits);
	}
	for (size_t k = 0; k < ARRAY_LEN(all); k++) {
		if (!reduce_use(all[k]->name))
			continue;
		for (int type = symcclFloat16; type < symcclNumTypes; type++) {
			size_t size = fill_type_size((symcclDataType_t)type);

			if (size > 2)
				continue;
			all[k]->round[type](out, in, ARRAY_LEN(in));
			for (size_t i = 0; i < ARRAY_LEN(in); i++) {
				uint64_t got = 0, want;

				memcpy(&got, out + i * size, size);
				want = oracle_round((symcclDataType_t)type, (double)in[i]);
				if (got != want)
					cr_assert_fail("%s: type %d: %a became %llx, not %llx",
						all[k]->name, type, (double)in[i],
						(unsigned long long)got, (unsigned long long)want);
			}
		}
	}
}

#if defined(__x86_64__)
/* A thread that flushes subnormals, rounds up and traps gets the same bits, and keeps its mode. */
Test(reduce, the_callers_floating_mode_does_not_matter)
{
	static const float v[] = {0x1p-149f, 0x1p-140f, 1, 0x1p-30f};
	unsigned mode = _mm_getcsr(), odd = 0x8040 | 2 << 13, after; /* FTZ, DAZ, up; no masks */
	float tiny, one, nan;
	const float inf[] = {(float)INFINITY, -(float)INFINITY};

	_mm_setcsr(odd);
	tiny = sum_f32(v, 2, symcclSum);
	one = sum_f32(v + 2, 2, symcclSum);
	nan = sum_f32(inf, 2, symcclSum);
	after = _mm_getcsr();
	_mm_setcsr(mode);
	cr_assert_eq(f32_bits(tiny), 0x201);
	cr_assert_eq(one, 1.0f);
	cr_assert_eq(f32_bits(nan), F32_NAN);
	cr_assert_eq(after, odd);
}
#endif

Test(reduce, instruction_sets_by_name)
{
	cr_assert_eq(reduce_use("sse9"), 0);
	cr_assert_eq(reduce_use("plain"), 1);
	cr_assert_str_eq(reduce_used(), "plain");
	cr_assert_eq(reduce_use(NULL), 1);
}
