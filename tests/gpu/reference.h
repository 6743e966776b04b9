/*
 * What the reducing kernels must give, computed another way: values as doubles, rounding by rint,
 * the tree by recursion. One element at a time.
 */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum ref_type {
	R_I8,
	R_U8,
	R_I32,
	R_U32,
	R_I64,
	R_U64,
	R_F16,
	R_F32,
	R_F64,
	R_BF16,
	R_E4M3,
	R_E5M2,
	R_TYPES
};
enum ref_op { R_SUM, R_PROD, R_MAX, R_MIN, R_AVG, R_PREMUL, R_OPS };

static const int ref_size[R_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

static inline int ref_is_float(int type)
{
	return type >= R_F16;
}
static inline int ref_is_signed(int type)
{
	return type == R_I8 || type == R_I32 || type == R_I64;
}

/* exponent bits, fraction bits, largest finite, whether there is an infinity to round to */
struct ref_format {
	int e, m;
	double largest;
	int inf;
	uint32_t nan;
};
static const struct ref_format ref_f16 = {5, 10, 65504.0, 1, 0x7e00};
static const struct ref_format ref_bf16 = {8, 7, 0x1.fep127, 1, 0x7fc0};
static const struct ref_format ref_e4m3 = {4, 3, 448.0, 0, 0x7f};
static const struct ref_format ref_e5m2 = {5, 2, 57344.0, 0, 0x7e};

static inline const struct ref_format *ref_format_of(int type)
{
	return type == R_F16    ? &ref_f16
	       : type == R_BF16 ? &ref_bf16
	       : type == R_E4M3 ? &ref_e4m3
				: &ref_e5m2;
}

static inline double ref_decode(int type, uint64_t v)
{
	const struct ref_format *f = ref_format_of(type);
	int e, bias = (1 << (f->e - 1)) - 1;
	double m, x;

	if (type == R_F32) {
		uint32_t w = (uint32_t)v;
		float a;

		memcpy(&a, &w, 4);
		return a;
	}
	if (type == R_F64) {
		memcpy(&x, &v, 8);
		return x;
	}
	e = (int)(v >> f->m & ((1u << f->e) - 1));
	m = (double)(v & ((1u << f->m) - 1));
	if (type == R_E4M3 && (v & 0x7f) == 0x7f)
		x = NAN;
	else if (type != R_E4M3 && e == (1 << f->e) - 1)
		x = m != 0 ? NAN : INFINITY;
	else
		x = e == 0 ? ldexp(m, 1 - bias - f->m) : ldexp(m + (1 << f->m), e - bias - f->m);
	return v >> (f->e + f->m) & 1 ? -x : x;
}

static inline uint64_t ref_encode(int type, double x)
{
	const struct ref_format *f = ref_format_of(type);
	int bias = (1 << (f->e - 1)) - 1, exponent;
	uint64_t sign = signbit(x) ? 1ull << (f->e + f->m) : 0;
	double a = fabs(x), unit;

	if (type == R_F32) {
		float s = (float)x;
		uint32_t w;

		memcpy(&w, &s, 4);
		return x != x ? 0x7fc00000u : w;
	}
	if (type == R_F64) {
		uint64_t w;

		memcpy(&w, &x, 8);
		return x != x ? 0x7ff8000000000000ull : w;
	}
	if (x != x)
		return f->nan;
	if (!isinf(a)) {
		frexp(a, &exponent);
		exponent = exponent - 1 < 1 - bias || a == 0 ? 1 - bias : exponent - 1;
		unit = ldexp(1, exponent - f->m);
		a = rint(a / unit) * unit;
	}
	if (a > f->largest) {
		if (f->inf)
			return sign | (uint64_t)((1 << f->e) - 1) << f->m;
		a = f->largest;
	}
	frexp(a, &exponent);
	if (a < ldexp(1, 1 - bias))
		return sign | (uint64_t)ldexp(a, bias - 1 + f->m);
	return sign | (uint64_t)(exponent - 1 + bias) << f->m |
	       ((uint64_t)ldexp(a, f->m - exponent + 1) & ((1u << f->m) - 1));
}

/* Rounded as the accumulator is: float, except for double. */
static inline double ref_acc(int type, double x)
{
	return type == R_F64 ? x : (float)x;
}

static inline double ref_join_float(int type, int op, double a, double b)
{
	if (op == R_PROD)
		return type == R_F64 ? a * b : (float)((float)a * (float)b);
	if (op == R_MIN || op == R_MAX) {
		if (a != a || b != b)
			return NAN;
		if (a == b)
			return (op == R_MIN) == (signbit(a) != 0) ? a : b;
		return (op == R_MIN) == (a < b) ? a : b;
	}
	return type == R_F64 ? a + b : (float)((float)a + (float)b);
}
static inline double ref_tree_float(int type, int op, const double *v, int n)
{
	int k = 1;

	if (n == 1)
		return v[0];
	while (2 * k < n)
		k *= 2;
	return ref_join_float(
		type, op, ref_tree_float(type, op, v, k), ref_tree_float(type, op, v + k, n - k));
}

static inline uint64_t ref_int(int type, int op, const uint64_t *x, const uint64_t *factor, int n)
{
	int bits = 8 * ref_size[type];
	uint64_t mask = ~0ull >> (64 - bits), acc = 0;

	for (int q = 0; q < n; q++) {
		uint64_t v = x[q];
		int64_t sv = (int64_t)(v << (64 - bits)) >> (64 - bits);
		int64_t sa = (int64_t)(acc << (64 - bits)) >> (64 - bits);
		int less = ref_is_signed(type) ? sv < sa : v < acc;

		if (op == R_PREMUL)
			v *= factor[q];
		if (q == 0)
			acc = v;
		else if (op == R_PROD)
			acc *= v;
		else if (op == R_MIN || op == R_MAX)
			acc = (op == R_MIN) == less ? v : acc;
		else
			acc += v;
		acc &= mask;
	}
	if (op == R_AVG && ref_is_signed(type))
		acc = (uint64_t)(((int64_t)(acc << (64 - bits)) >> (64 - bits)) / n);
	else if (op == R_AVG)
		acc /= (uint64_t)n;
	return acc & mask;
}

/* The element that the ranks' x[0..n) reduce to; factor: of a pre-multiplied sum, elements. */
static inline uint64_t ref_reduce(
	int type, int op, const uint64_t *x, const uint64_t *factor, int n)
{
	double v[128], a;

	if (!ref_is_float(type))
		return ref_int(type, op, x, factor, n);
	for (int q = 0; q < n; q++) {
		v[q] = ref_decode(type, x[q]);
		if (op == R_PREMUL)
			v[q] = ref_acc(type, v[q] * ref_decode(type, factor[q]));
	}
	a = ref_tree_float(type, op, v, n);
	if (op == R_AVG)
		a = type == R_F64 ? a / n : (float)((float)a / (float)n);
	return ref_encode(type, a);
}

#endif
