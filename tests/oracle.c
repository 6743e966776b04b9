#include <math.h>
#include <string.h>
#include "mem.h"
#include "oracle.h"

/* ---- Formats --------------------------------------------------------------------------------- */

struct small {
	int exponent, mantissa;
	uint32_t last; /* largest finite magnitude's code */
	uint32_t over; /* what is beyond becomes */
	uint32_t nan;
	int has_inf;
};

static const struct small *small_format(symcclDataType_t type)
{
	static const struct small f16 = {5, 10, 0x7bff, 0x7c00, 0x7e00, 1};
	static const struct small bf16 = {8, 7, 0x7f7f, 0x7f80, 0x7fc0, 1};
	static const struct small e4m3 = {4, 3, 0x7e, 0x7e, 0x7f, 0};
	static const struct small e5m2 = {5, 2, 0x7b, 0x7b, 0x7e, 1};

	switch (type) {
	case symcclFloat16:
		return &f16;
	case symcclBfloat16:
		return &bf16;
	case symcclFloat8e4m3:
		return &e4m3;
	case symcclFloat8e5m2:
		return &e5m2;
	default:
		return NULL;
	}
}

/* The magnitude of a code, as if there were neither infinities nor NaN. */
static double magnitude(const struct small *f, uint32_t code)
{
	int bias = (1 << (f->exponent - 1)) - 1, e = (int)(code >> f->mantissa);
	double m = code & ((1u << f->mantissa) - 1), one = 1 << f->mantissa;

	return e == 0 ? ldexp(m, 1 - bias - f->mantissa) : ldexp(one + m, e - bias - f->mantissa);
}

static double small_value(const struct small *f, uint32_t bits)
{
	uint32_t sign = 1u << (f->exponent + f->mantissa), code = bits & (sign - 1);
	double a = magnitude(f, code);

	if (code > f->last)
		a = f->has_inf && code == f->last + 1 ? (double)INFINITY : (double)NAN;
	return bits & sign ? -a : a;
}

/* Of the two codes around it the nearer; of two as near the even one. */
static uint32_t small_round(const struct small *f, double value)
{
	uint32_t sign = signbit(value) ? 1u << (f->exponent + f->mantissa) : 0;
	uint32_t low = 0, high = f->last + 1;
	double a = fabs(value), down, up;

	if (isnan(value))
		return f->nan;
	if (a >= magnitude(f, high))
		return sign | f->over;
	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;

		if (magnitude(f, middle) <= a)
			low = middle;
		else
			high = middle;
	}
	down = a - magnitude(f, low);
	up = magnitude(f, high) - a;
	if (up < down || (up == down && low % 2 == 1))
		low = high;
	return sign | (low > f->last ? f->over : low);
}

double oracle_value(symcclDataType_t type, uint64_t bits)
{
	uint32_t word = (uint32_t)bits;
	double d;
	float s;

	if (small_format(type))
		return small_value(small_format(type), word);
	if (type == symcclFloat32) {
		memcpy(&s, &word, sizeof(s));
		return s;
	}
	memcpy(&d, &bits, sizeof(d));
	return d;
}

uint64_t oracle_round(symcclDataType_t type, double value)
{
	float s = (float)value;
	uint32_t word;
	uint64_t bits;

	if (small_format(type))
		return small_round(small_format(type), value);
	if (type == symcclFloat32) {
		memcpy(&word, &s, sizeof(word));
		return isnan(value) ? 0x7fc00000 : word;
	}
	memcpy(&bits, &value, sizeof(bits));
	return isnan(value) ? 0x7ff8000000000000 : bits;
}

/* ---- Floating types: every step in the accumulator's precision ------------------------------- */

static double step(symcclDataType_t type, double v)
{
	return type == symcclFloat64 ? v : (double)(float)v;
}

static double join(symcclDataType_t type, symcclRedOp_t op, double a, double b)
{
	switch (op) {
	case symcclProd:
		return step(type, a * b);
	case symcclMax:
	case symcclMin:
		if (isnan(a) || isnan(b))
			return (double)NAN;
		if (a == b) /* zeros: the negative one is less */
			return (op == symcclMin) == (signbit(a) != 0) ? a : b;
		return (op == symcclMin) == (a < b) ? a : b;
	default:
		return step(type, a + b);
	}
}

static double tree(symcclDataType_t type, symcclRedOp_t op, const double *v, int n)
{
	int k = 1;

	if (n == 1)
		return v[0];
	while (2 * k < n)
		k *= 2;
	return join(type, op, tree(type, op, v, k), tree(type, op, v + k, n - k));
}

static uint64_t reduce_real(
	symcclDataType_t type, symcclRedOp_t op, const uint64_t *x, int n, const uint64_t *factor)
{
	double v[n], a;

	for (int q = 0; q < n; q++) {
		v[q] = oracle_value(type, x[q]);
		if (factor)
			v[q] = step(type, v[q] * oracle_value(type, factor[q]));
	}
	a = tree(type, op, v, n);
	if (op == symcclAvg)
		a = step(type, a / n);
	return oracle_round(type, a);
}

/* ---- Integers -------------------------------------------------------------------------------- */

static int64_t as_signed(uint64_t v, int bits)
{
	return (int64_t)(v << (64 - bits)) >> (64 - bits);
}

static int less(symcclDataType_t type, int bits, uint64_t a, uint64_t b)
{
	if (type == symcclInt8 || type == symcclInt32 || type == symcclInt64)
		return as_signed(a, bits) < as_signed(b, bits);
	return a < b;
}

static uint64_t reduce_int(
	symcclDataType_t type, symcclRedOp_t op, const uint64_t *x, int n, const uint64_t *factor)
{
	int bits = 8 * (int)fill_type_size(type);
	uint64_t mask = ~(uint64_t)0 >> (64 - bits), a = 0;

	for (int q = 0; q < n; q++) {
		uint64_t v = factor ? x[q] * factor[q] & mask : x[q];

		if (q == 0)
			a = v;
		else if (op == symcclProd)
			a = a * v & mask;
		else if (op == symcclMin)
			a = less(type, bits, v, a) ? v : a;
		else if (op == symcclMax)
			a = less(type, bits, a, v) ? v : a;
		else
			a = (a + v) & mask;
	}
	if (op != symcclAvg)
		return a;
	if (type == symcclInt8 || type == symcclInt32 || type == symcclInt64)
		return (uint64_t)(as_signed(a, bits) / n) & mask;
	return a / (uint64_t)n;
}

uint64_t oracle_element(
	symcclDataType_t type, symcclRedOp_t op, const uint64_t *x, int n, const uint64_t *factor)
{
	if (type < symcclFloat16)
		return reduce_int(type, op, x, n, factor);
	return reduce_real(type, op, x, n, factor);
}

void oracle_reduce(symcclDataType_t type, symcclRedOp_t op, const void *const *src, int n,
	const uint64_t *factor, size_t count, void *dst)
{
	size_t size = fill_type_size(type);
	uint64_t x[n], y;

	for (size_t i = 0; i < count; i++) {
		for (int q = 0; q < n; q++) {
			x[q] = 0;
			memcpy(&x[q], (const char *)src[q] + i * size, size);
		}
		y = oracle_element(type, op, x, n, factor);
		memcpy((char *)dst + i * size, &y, size);
	}
}
