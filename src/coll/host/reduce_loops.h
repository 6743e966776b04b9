/*
 * The loops themselves, for the compiler to vectorise: included by one file per instruction set. It
 * has told the compiler what it may use, and defines
 *   ISA, ISA_NAME    the table's name
 *   LANE             the widest vector
 *   CHUNK            bytes that a loop keeps in registers before it stores them
 *   store_lines()    struct reduce_isa's `stream`
 *   WIDE             where the machine converts fp16: how many at a time; and f16_load(),
 * f16_store(), f32_load(), f32_store(), wide_min(), wide_max() of as many floats.
 */
#ifndef HOST_REDUCE_LOOPS_H
#define HOST_REDUCE_LOOPS_H

#include "coll/host/reduce_isa.h"
#include "device/types.h"

#define PER_CHUNK(T) (CHUNK / sizeof(T))

/* No iteration depends on another: a destination is a source exactly, or apart from it. Compilers
 * do not make vectors of what they instrument, and take very long to find out. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INDEPENDENT
#elif defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
#define EACH(i, count) INDEPENDENT for (size_t i = 0; i < (count); i++)

/* Elements as they lie in memory: at any address. */
#define ANYWHERE __attribute__((aligned(1), may_alias))
typedef int8_t ANYWHERE i8;
typedef uint8_t ANYWHERE u8;
typedef int32_t ANYWHERE i32;
typedef uint32_t ANYWHERE u32;
typedef int64_t ANYWHERE i64;
typedef uint64_t ANYWHERE u64;
typedef float ANYWHERE f32;
typedef double ANYWHERE f64;
typedef uint16_t ANYWHERE f16;
typedef uint16_t ANYWHERE bf16;
typedef uint8_t ANYWHERE e4m3;
typedef uint8_t ANYWHERE e5m2;

/* ---- One element ----------------------------------------------------------------------------- */

#define SAME(a) (a)
#define ADD(a, b) ((a) + (b))
#define MUL(a, b) ((a) * (b))
#define INT_MUL(a, b) (1u * (a) * (b)) /* not as int, which small types become otherwise */

#define PICK(T, name, TEST) \
	static inline T name(T a, T b) \
	{ \
		return a TEST b ? a : b; \
	}
PICK(int8_t, i8_min, <)
PICK(int8_t, i8_max, >)
PICK(uint8_t, u8_min, <)
PICK(uint8_t, u8_max, >)
PICK(int32_t, i32_min, <)
PICK(int32_t, i32_max, >)
PICK(uint32_t, u32_min, <)
PICK(uint32_t, u32_max, >)
PICK(int64_t, i64_min, <)
PICK(int64_t, i64_max, >)
PICK(uint64_t, u64_min, <)
PICK(uint64_t, u64_max, >)

/* Each of the two picks is one instruction, which takes b when neither is less: so they differ only
 * for zeros of both signs, and for a NaN. OR keeps a minus and a NaN. AND keeps a plus, but not a
 * NaN. */
static inline float f32_min(float a, float b)
{
	return f32_of_bits(f32_bits(a < b ? a : b) | f32_bits(b < a ? b : a));
}
static inline float f32_max(float a, float b)
{
	uint32_t m = f32_bits(a > b ? a : b) & f32_bits(b > a ? b : a);

	return f32_of_bits(m | -(uint32_t)__builtin_isunordered(a, b));
}
static inline double f64_min(double a, double b)
{
	return f64_of_bits(f64_bits(a < b ? a : b) | f64_bits(b < a ? b : a));
}
static inline double f64_max(double a, double b)
{
	uint64_t m = f64_bits(a > b ? a : b) & f64_bits(b > a ? b : a);

	return f64_of_bits(m | -(uint64_t)__builtin_isunordered(a, b));
}

static inline float f32_canonical(float a)
{
	return a != a ? f32_of_bits(F32_NAN) : a;
}
static inline double f64_canonical(double a)
{
	return a != a ? f64_of_bits(F64_NAN) : a;
}

/* ---- Loops ----------------------------------------------------------------------------------- */

typedef unsigned char chunk[CHUNK] __attribute__((aligned(64)));

/* A few bytes. */
static inline void sink_store(const struct reduce_sink *to, size_t at, const void *from, size_t n)
{
	for (int k = 0; k < to->ndst; k++)
		memcpy((char *)to->dst[k] + to->at + at, from, n);
}
static inline void chunk_store(const struct reduce_sink *to, size_t at, const void *from)
{
	typedef LANE __attribute__((aligned(1))) lane_anywhere;

	for (int k = 0; k < to->ndst; k++) {
		char *d = (char *)to->dst[k] + to->at + at;

		if (to->stream)
			store_lines(d, from, CHUNK);
		else
			for (size_t j = 0; j < CHUNK / sizeof(LANE); j++)
				((lane_anywhere *)d)[j] = ((const LANE *)from)[j];
	}
}

/* The last bytes, less than a chunk: in chunks of their own, padded. */
__attribute__((noinline)) static void combine_tail(reduce_combine_fn *whole,
	const struct reduce_sink *to, const void *const *src, int nsrc, size_t at, size_t bytes,
	size_t elements)
{
	chunk in[REDUCE_FAN_MAX], out;
	const void *p[REDUCE_FAN_MAX];
	void *o = out;
	const struct reduce_sink here = {.dst = &o, .ndst = 1};

	memset(in, 0, sizeof(chunk) * (size_t)nsrc);
	for (int q = 0; q < nsrc; q++)
		p[q] = memcpy(in[q], (const char *)src[q] + at, bytes);
	whole(&here, p, elements);
	sink_store(to, at, out, bytes);
}

/*
 * T(0, n) of elements of type T. BULK fills `o` with a chunk's worth, from i on; ONE is the element
 * i. The empty asm keeps the compiler from making vectors for the few.
 */
#define FEW 4
#define COMBINE(name, n, T, BULK, ONE) \
	static void name(const struct reduce_sink *sink, const void *const *src, size_t count) \
	{ \
		const struct reduce_sink to = *sink; /* which no store can change */ \
		size_t i = 0; \
		SOURCES_##n(T) \
\
			for (; i + PER_CHUNK(T) <= count; i += PER_CHUNK(T)) \
		{ \
			chunk room; \
			T *o = (T *)room; \
\
			BULK chunk_store(&to, i * sizeof(T), room); \
		} \
		if (count - i > FEW) { \
			combine_tail(name, sink, src, n, i * sizeof(T), (count - i) * sizeof(T), \
				PER_CHUNK(T)); \
			return; \
		} \
		for (; i < count; i++) { \
			T one = (T)(ONE); \
\
			sink_store(&to, i * sizeof(T), &one, sizeof(T)); \
			__asm__ volatile(""); \
		} \
	}

#define SOURCES_2(T) const T *s0 = src[0], *s1 = src[1];
#define SOURCES_3(T) SOURCES_2(T) const T *s2 = src[2];
#define SOURCES_4(T) SOURCES_3(T) const T *s3 = src[3];
#define SOURCES_8(T) SOURCES_4(T) const T *s4 = src[4], *s5 = src[5], *s6 = src[6], *s7 = src[7];
#define TREE_2(OP, IN, i) OP(IN(s0, i), IN(s1, i))
#define TREE_3(OP, IN, i) OP(TREE_2(OP, IN, i), IN(s2, i))
#define TREE_4(OP, IN, i) OP(TREE_2(OP, IN, i), OP(IN(s2, i), IN(s3, i)))
#define TREE_8(OP, IN, i) \
	OP(TREE_4(OP, IN, i), OP(OP(IN(s4, i), IN(s5, i)), OP(IN(s6, i), IN(s7, i))))

#define FOR_2_3_4_8(DO, ...) \
	DO(2, __VA_ARGS__) DO(3, __VA_ARGS__) DO(4, __VA_ARGS__) DO(8, __VA_ARGS__)

/* Types that are accumulated as they are. FINISH: what to do with a result. */
#define AS_IS(s, i) (s[i])
#define SIMPLE(n, T, op, OP, FINISH) \
	COMBINE(T##_##op##_##n, n, T, \
		EACH(k, PER_CHUNK(T)) o[k] = (T)FINISH(TREE_##n(OP, AS_IS, i + k)); \
		, FINISH(TREE_##n(OP, AS_IS, i)))
#define SIMPLES(T, op, OP, FINISH) FOR_2_3_4_8(SIMPLE, T, op, OP, FINISH)

#define MAP(name, D, S, EXPR) \
	static void name(void *dst, const void *src, size_t count) \
	{ \
		const S *s = src; \
		D *d = dst; \
\
		EACH(i, count) d[i] = (D)EXPR(s[i]); \
	}

/* Sums and products wrap, so the sign makes no difference to them. */
#define INT_SUMS(T) \
	SIMPLES(T, sum, ADD, SAME) \
	SIMPLES(T, prod, INT_MUL, SAME) \
	static void T##_scale(void *dst, const void *src, size_t count, uint64_t factor) \
	{ \
		const T *s = src; \
		T *d = dst, f = (T)factor; \
\
		EACH(i, count) d[i] = (T)(s[i] * f); \
	}
#define INT_REST(T, QUOTIENT) \
	SIMPLES(T, min, T##_min, SAME) \
	SIMPLES(T, max, T##_max, SAME) \
	static void T##_divide(void *dst, const void *src, size_t count, uint32_t by) \
	{ \
		const T *s = src; \
		T *d = dst; \
\
		EACH(i, count) d[i] = (T)((QUOTIENT)s[i] / (QUOTIENT)by); \
	}
/* Vectors divide floats, not integers. A quotient of integers that is none itself is off the next
 * one by 1/by at least, which the fp32 of an 8-bit and the fp64 of a 32-bit dividend tell apart. */
INT_SUMS(u8)
INT_SUMS(u32)
INT_SUMS(u64)
INT_REST(i8, float)
INT_REST(u8, float)
INT_REST(i32, double)
INT_REST(u32, double)
INT_REST(i64, int64_t)
INT_REST(u64, uint64_t)

#define REALS(T, REAL, FACTOR) \
	SIMPLES(T, sum, ADD, T##_canonical) \
	SIMPLES(T, prod, MUL, T##_canonical) \
	SIMPLES(T, min, T##_min, T##_canonical) \
	SIMPLES(T, max, T##_max, T##_canonical) \
	MAP(T##_round, T, T, T##_canonical) \
	static void T##_scale(void *dst, const void *src, size_t count, uint64_t factor) \
	{ \
		REAL f = FACTOR; \
		const T *s = src; \
		T *d = dst; \
\
		EACH(i, count) d[i] = s[i] * f; \
	} \
	static void T##_divide(void *dst, const void *src, size_t count, uint32_t by) \
	{ \
		REAL f = (REAL)by; \
		const T *s = src; \
		T *d = dst; \
\
		EACH(i, count) d[i] = T##_canonical(s[i] / f); \
	}
REALS(f32, float, f32_of_bits((uint32_t)factor))
REALS(f64, double, f64_of_bits(factor))

/* bf16, two at a time: the lower and the upper half of a word, with no shuffling. */
#define BF16_IN(s, i) bf16_widen(s[i])
#define BF16_LOWER(s, k) f32_of_bits(((const u32 *)(s + i))[k] << 16)
#define BF16_UPPER(s, k) f32_of_bits(((const u32 *)(s + i))[k] & 0xffff0000u)
#define BF16_COMBINE(n, op, OP) \
	COMBINE(bf16_##op##_##n, n, bf16, \
		EACH(k, PER_CHUNK(u32))((u32 *)o)[k] = bf16_narrow(TREE_##n(OP, BF16_LOWER, k)) | \
						       bf16_narrow(TREE_##n(OP, BF16_UPPER, k)) \
							       << 16; \
		, bf16_narrow(TREE_##n(OP, BF16_IN, i)))
FOR_2_3_4_8(BF16_COMBINE, sum, ADD)
FOR_2_3_4_8(BF16_COMBINE, prod, MUL)
FOR_2_3_4_8(BF16_COMBINE, min, f32_min)
FOR_2_3_4_8(BF16_COMBINE, max, f32_max)

/* fp16: WIDE at a time where the machine converts them. */
#define F16_IN(s, i) f16_widen(s[i])
#ifdef WIDE
#define F16_WIDE(s, i) f16_load(s + (i))
#define F16_COMBINE(n, op, OP, WIDE_OP) \
	COMBINE(f16_##op##_##n, n, f16, \
		for (size_t k = 0; k < PER_CHUNK(f16); k += WIDE) \
			f16_store(o + k, TREE_##n(WIDE_OP, F16_WIDE, i + k)); \
		, f16_narrow(TREE_##n(OP, F16_IN, i)))
#else
#define F16_COMBINE(n, op, OP, WIDE_OP) \
	COMBINE(f16_##op##_##n, n, f16, \
		EACH(k, PER_CHUNK(f16)) o[k] = (f16)f16_narrow(TREE_##n(OP, F16_IN, i + k)); \
		, f16_narrow(TREE_##n(OP, F16_IN, i)))
#endif
FOR_2_3_4_8(F16_COMBINE, sum, ADD, ADD)
FOR_2_3_4_8(F16_COMBINE, prod, MUL, MUL)
FOR_2_3_4_8(F16_COMBINE, min, f32_min, wide_min)
FOR_2_3_4_8(F16_COMBINE, max, f32_max, wide_max)

MAP(bf16_to_f32, f32, bf16, bf16_widen)
MAP(e4m3_to_f32, f32, e4m3, e4m3_widen)
MAP(e5m2_to_f32, f32, e5m2, e5m2_widen)
MAP(f32_to_bf16, bf16, f32, bf16_narrow)
MAP(f32_to_e4m3, e4m3, f32, e4m3_narrow)
MAP(f32_to_e5m2, e5m2, f32, e5m2_narrow)

#ifdef WIDE
static void f16_to_f32(void *dst, const void *src, size_t count)
{
	const f16 *s = src;
	f32 *d = dst;
	size_t i = 0;

	for (; i + WIDE <= count; i += WIDE)
		f32_store(d + i, f16_load(s + i));
	for (; i < count; i++)
		d[i] = f16_widen(s[i]);
}
static void f32_to_f16(void *dst, const void *src, size_t count)
{
	const f32 *s = src;
	f16 *d = dst;
	size_t i = 0;

	for (; i + WIDE <= count; i += WIDE)
		f16_store(d + i, f32_load(s + i));
	for (; i < count; i++)
		d[i] = (f16)f16_narrow(s[i]);
}
#else
MAP(f16_to_f32, f32, f16, f16_widen)
MAP(f32_to_f16, f16, f32, f16_narrow)
#endif

/* ---- The table ------------------------------------------------------------------------------- */

#define ROW(T, op) \
	{ \
		[2] = T##_##op##_2, [3] = T##_##op##_3, [4] = T##_##op##_4, [8] = T##_##op##_8 \
	}
#define TYPE(SUMS, T) \
	{ \
		[symcclSum] = ROW(SUMS, sum), [symcclProd] = ROW(SUMS, prod), \
		[symcclMax] = ROW(T, max), [symcclMin] = ROW(T, min), \
	}

const struct reduce_isa ISA = {
	.name = ISA_NAME,
	.combine =
		{
			[symcclInt8] = TYPE(u8, i8),
			[symcclUint8] = TYPE(u8, u8),
			[symcclInt32] = TYPE(u32, i32),
			[symcclUint32] = TYPE(u32, u32),
			[symcclInt64] = TYPE(u64, i64),
			[symcclUint64] = TYPE(u64, u64),
			[symcclFloat16] = TYPE(f16, f16),
			[symcclFloat32] = TYPE(f32, f32),
			[symcclFloat64] = TYPE(f64, f64),
			[symcclBfloat16] = TYPE(bf16, bf16),
		},
	.widen = {[symcclFloat16] = f16_to_f32,
		[symcclBfloat16] = bf16_to_f32,
		[symcclFloat8e4m3] = e4m3_to_f32,
		[symcclFloat8e5m2] = e5m2_to_f32},
	.round = {[symcclFloat16] = f32_to_f16,
		[symcclFloat32] = f32_round,
		[symcclFloat64] = f64_round,
		[symcclBfloat16] = f32_to_bf16,
		[symcclFloat8e4m3] = f32_to_e4m3,
		[symcclFloat8e5m2] = f32_to_e5m2},
	.scale = {[symcclInt8] = u8_scale,
		[symcclUint8] = u8_scale,
		[symcclInt32] = u32_scale,
		[symcclUint32] = u32_scale,
		[symcclInt64] = u64_scale,
		[symcclUint64] = u64_scale,
		[symcclFloat32] = f32_scale,
		[symcclFloat64] = f64_scale},
	.divide = {[symcclInt8] = i8_divide,
		[symcclUint8] = u8_divide,
		[symcclInt32] = i32_divide,
		[symcclUint32] = u32_divide,
		[symcclInt64] = i64_divide,
		[symcclUint64] = u64_divide,
		[symcclFloat32] = f32_divide,
		[symcclFloat64] = f64_divide},
	.stream = store_lines,
};

#endif
