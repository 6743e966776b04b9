/*
 * Copies and reductions over an LSA team. Included by symccl_device.h.
 *
 * A reduction has the bits of symcclAllReduce() (docs/semantics.md): over the ranks in order, as
 * T(lo, n) = T(lo, k) + T(lo + k, n - k), k the largest power of two below n; small floating types
 * are widened to fp32 and rounded once at the end. Type and op are meant to be constants: then only
 * their code remains.
 */
#include "names.h"
#ifndef SYMCCL_DEVICE_REDUCE_H
#define SYMCCL_DEVICE_REDUCE_H

#include "comm.h"
#include "types.h"

/* ---- What an element is --------------------------------------------------------------------- */

DEV uint32_t reduce_size(symcclDataType_t type)
{
	switch (type) {
	case symcclInt8:
	case symcclUint8:
	case symcclFloat8e4m3:
	case symcclFloat8e5m2:
		return 1;
	case symcclFloat16:
	case symcclBfloat16:
		return 2;
	case symcclInt32:
	case symcclUint32:
	case symcclFloat32:
		return 4;
	default:
		return 8;
	}
}
DEV int reduce_is_int(symcclDataType_t type)
{
	return type <= symcclUint64 && type >= symcclInt8;
}
/* The low `bytes` bytes of v as a number of the type. */
DEV uint64_t reduce_trim(symcclDataType_t type, uint64_t v)
{
	uint32_t up = 64 - 8 * reduce_size(type);
	int is_signed = type == symcclInt8 || type == symcclInt32 || type == symcclInt64;

	return is_signed ? (uint64_t)((int64_t)(v << up) >> up) : v << up >> up;
}
DEV float reduce_widen(symcclDataType_t type, uint64_t v)
{
	switch (type) {
	case symcclFloat16:
		return f16_widen((uint32_t)v & 0xffff);
	case symcclBfloat16:
		return bf16_widen((uint32_t)v & 0xffff);
	case symcclFloat8e4m3:
		return e4m3_widen((uint32_t)v & 0xff);
	case symcclFloat8e5m2:
		return e5m2_widen((uint32_t)v & 0xff);
	default:
		return f32_of_bits((uint32_t)v);
	}
}
DEV uint64_t reduce_narrow(symcclDataType_t type, float a)
{
	switch (type) {
	case symcclFloat16:
		return f16_narrow(a);
	case symcclBfloat16:
		return bf16_narrow(a);
	case symcclFloat8e4m3:
		return e4m3_narrow(a);
	case symcclFloat8e5m2:
		return e5m2_narrow(a);
	default:
		return a != a ? F32_NAN : f32_bits(a);
	}
}

/* ---- Operators --------------------------------------------------------------------------------
 * Never contracted with what stands around them; NaN beats everything, and -0 is less than +0. */

#ifdef __CUDACC__
#define SYMCCL_REDUCE_EXACT(ieee, plain) (ieee)
#else
#define SYMCCL_REDUCE_EXACT(ieee, plain) (plain)
#endif

DEV float reduce_f32(symcclRedOp_t op, float a, float b)
{
	int most = op == symcclMax;

	if (op == symcclProd)
		return REDUCE_EXACT(__fmul_rn(a, b), a * b);
	if (op == symcclSum || op == symcclAvg)
		return REDUCE_EXACT(__fadd_rn(a, b), a + b);
	if (a != a || b != b)
		return a + b;
	if (a == b) /* the same bits, or zeros of which one may be negative */
		return f32_of_bits(most ? f32_bits(a) & f32_bits(b) : f32_bits(a) | f32_bits(b));
	return (a < b) != most ? a : b;
}
DEV double reduce_f64(symcclRedOp_t op, double a, double b)
{
	int most = op == symcclMax;

	if (op == symcclProd)
		return REDUCE_EXACT(__dmul_rn(a, b), a * b);
	if (op == symcclSum || op == symcclAvg)
		return REDUCE_EXACT(__dadd_rn(a, b), a + b);
	if (a != a || b != b)
		return a + b;
	if (a == b)
		return f64_of_bits(most ? f64_bits(a) & f64_bits(b) : f64_bits(a) | f64_bits(b));
	return (a < b) != most ? a : b;
}
DEV uint64_t reduce_int(symcclRedOp_t op, symcclDataType_t type, uint64_t a, uint64_t b)
{
	int less = type == symcclInt8 || type == symcclInt32 || type == symcclInt64
			   ? (int64_t)a < (int64_t)b
			   : a < b;

	if (op == symcclProd)
		return a * b;
	if (op == symcclSum || op == symcclAvg)
		return a + b;
	return less != (op == symcclMax) ? a : b;
}

/* ---- Trees ------------------------------------------------------------------------------------
 */

/* v[0] = T(0, n): pairs at distance 1, then 2, 4; who has no partner passes. N: a constant >= n. */
#define SYMCCL_REDUCE_TREE(v, n, N, join) \
	do { \
		DEV_UNROLL \
		for (uint32_t d_ = 1; d_ < (N); d_ *= 2) \
			DEV_UNROLL \
		for (uint32_t i_ = 0; i_ + d_ < (N); i_ += 2 * d_) \
			if (i_ + d_ < (n)) \
				(v)[i_] = join((v)[i_], (v)[i_ + d_]); \
	} while (0)

/* The sum of v[0..n) in the order of ranks, in v[0]; v is used up. For fused kernels, which have
 * the ranks' values in registers: with a constant n they stay there. */
DEV float symcclDevTreeSum(float *v, int n)
{
#define SYMCCL_REDUCE_ADD(a, b) reduce_f32(symcclSum, a, b)
	REDUCE_TREE(v, (uint32_t)n, (uint32_t)n, REDUCE_ADD);
	return v[0];
}

#define SYMCCL_REDUCE_GROUP 8 /* ranks that are reduced from registers */

/* What is kept of groups: level l is the join of 2^l of them. */
#define SYMCCL_REDUCE_LEVELS 4
DEV_ASSERT(DEV_RANKS_MAX < REDUCE_GROUP << REDUCE_LEVELS);

/* One element of each of the group's ranks, x[0..n) >> shift, to what it adds up to. */
#define SYMCCL_REDUCE_OF(A, get, join) \
	do { \
		DEV_UNROLL \
		for (uint32_t j_ = 0; j_ < REDUCE_GROUP; j_++) \
			v[j_] = (A)(j_ < n ? get(x[j_] >> shift) : 0); \
		REDUCE_TREE(v, n, REDUCE_GROUP, join); \
	} while (0)

union reduce_value {
	float f;
	double d;
	uint64_t i;
};

DEV union reduce_value reduce_join(
	symcclDataType_t type, symcclRedOp_t op, union reduce_value a, union reduce_value b)
{
	if (reduce_is_int(type))
		a.i = reduce_int(op, type, a.i, b.i);
	else if (type == symcclFloat64)
		a.d = reduce_f64(op, a.d, b.d);
	else
		a.f = reduce_f32(op, a.f, b.f);
	return a;
}
DEV union reduce_value reduce_group(
	symcclDataType_t type, symcclRedOp_t op, const uint64_t *x, uint32_t n, uint32_t shift)
{
	union reduce_value out;

	if (reduce_is_int(type)) {
		uint64_t v[REDUCE_GROUP];
#define SYMCCL_REDUCE_GET_INT(b) reduce_trim(type, b)
#define SYMCCL_REDUCE_JOIN_INT(a, b) reduce_int(op, type, a, b)
		REDUCE_OF(uint64_t, REDUCE_GET_INT, REDUCE_JOIN_INT);
		out.i = v[0];
	} else if (type == symcclFloat64) {
		double v[REDUCE_GROUP];
#define SYMCCL_REDUCE_JOIN_F64(a, b) reduce_f64(op, a, b)
		REDUCE_OF(double, f64_of_bits, REDUCE_JOIN_F64);
		out.d = v[0];
	} else {
		float v[REDUCE_GROUP];
#define SYMCCL_REDUCE_GET_F32(b) reduce_widen(type, b)
#define SYMCCL_REDUCE_JOIN_F32(a, b) reduce_f32(op, a, b)
		REDUCE_OF(float, REDUCE_GET_F32, REDUCE_JOIN_F32);
		out.f = v[0];
	}
	return out;
}
/* What n ranks have come to, as an element's bits. */
DEV uint64_t reduce_finish(
	symcclDataType_t type, symcclRedOp_t op, union reduce_value a, uint32_t n)
{
	int avg = op == symcclAvg;

	if (reduce_is_int(type)) {
		uint64_t v = reduce_trim(type, a.i);

		if (avg && (type == symcclInt8 || type == symcclInt32 || type == symcclInt64))
			v = (uint64_t)((int64_t)v / (int64_t)n);
		else if (avg)
			v /= n;
		return v & ~0ull >> (64 - 8 * reduce_size(type));
	}
	if (type == symcclFloat64) {
		if (avg)
			a.d = REDUCE_EXACT(__ddiv_rn(a.d, (double)n), a.d / (double)n);
		return a.d != a.d ? F64_NAN : f64_bits(a.d);
	}
	if (avg)
		a.f = REDUCE_EXACT(__fdiv_rn(a.f, (float)n), a.f / (float)n);
	return reduce_narrow(type, a.f);
}

/* ---- Memory -----------------------------------------------------------------------------------
 */

DEV uint64_t reduce_load(const char *p, uint32_t bytes)
{
	switch (bytes) {
	case 1:
		return *(const uint8_t *)p;
	case 2:
		return *(const uint16_t *)p;
	case 4:
		return *(const uint32_t *)p;
	default:
		return *(const uint64_t *)p;
	}
}
DEV void reduce_store(char *p, uint32_t bytes, uint64_t v)
{
	switch (bytes) {
	case 1:
		*(uint8_t *)p = (uint8_t)v;
		break;
	case 2:
		*(uint16_t *)p = (uint16_t)v;
		break;
	case 4:
		*(uint32_t *)p = (uint32_t)v;
		break;
	default:
		*(uint64_t *)p = v;
		break;
	}
}

/* The elements in `bytes` bytes (one element's, or 8) at p + q * stride of all n ranks, to one. */
DEV uint64_t reduce_at(symcclDataType_t type, symcclRedOp_t op, const char *p, uint64_t stride,
	uint32_t n, uint32_t bytes)
{
	const uint32_t bits = 8 * reduce_size(type), groups = (n + REDUCE_GROUP - 1) / REDUCE_GROUP;
	uint64_t out = 0, x[REDUCE_GROUP];

	if (groups == 1) {
		DEV_UNROLL
		for (uint32_t j = 0; j < REDUCE_GROUP; j++)
			x[j] = j < n ? reduce_load(p + j * stride, bytes) : 0;
		DEV_UNROLL
		for (uint32_t at = 0; at < 8 * bytes; at += bits)
			out |= reduce_finish(type, op, reduce_group(type, op, x, n, at), n) << at;
		return out;
	}
	DEV_LOOP
	for (uint32_t at = 0; at < 8 * bytes; at += bits) {
		union reduce_value level[REDUCE_LEVELS + 1], a;
		uint32_t l;

		DEV_LOOP
		for (uint32_t g = 0; g < groups; g++) {
			uint32_t first = g * REDUCE_GROUP,
				 m = n - first < REDUCE_GROUP ? n - first : REDUCE_GROUP;

			for (uint32_t j = 0; j < m; j++)
				x[j] = reduce_load(p + (first + j) * stride, bytes);
			a = reduce_group(type, op, x, m, at);
			for (l = 0; g >> l & 1; l++)
				a = reduce_join(type, op, level[l], a);
			level[l] = a;
		}
		for (l = 0; (groups >> l & 1) == 0; l++)
			;
		a = level[l];
		for (l++; groups >> l != 0; l++)
			if (groups >> l & 1)
				a = reduce_join(type, op, level[l], a);
		out |= reduce_finish(type, op, a, n) << at;
	}
	return out;
}

/* dst[0..count) = the reduction of the LSA ranks' elements from byte `offset` of the window on.
 * All threads of x.coop, which share the elements; dst may be one's own part of the window itself.
 * Offset and dst are multiples of the element's size; of 8 is faster. Not NULL-safe, waits for
 * nothing: a barrier before says that the inputs are there, one after that they may be changed.
 * Return: symcclInvalidArgument: beyond the window, or op or type is none. */
DEV symcclResult_t symcclDevReduce(symcclDevCtx_t x, void *dst, const symcclDevWindow_t *win,
	size_t offset, size_t count, symcclDataType_t type, symcclRedOp_t op)
{
	const uint32_t size = reduce_size(type), n = (uint32_t)win->lsaSize;
	const char *from = (const char *)symcclDevLsaPtr(win, 0, offset);
	char *to = (char *)dst;
	uint64_t packs = 0, each = 8 / size;

	if ((unsigned)type >= symcclNumTypes || (unsigned)op >= symcclNumOps ||
		offset > win->size || count > (win->size - offset) / size)
		return symcclInvalidArgument;
	if ((((uintptr_t)from | (uintptr_t)to | win->stride) & 7) == 0)
		packs = count / each;
	for (uint64_t i = x.coop.thread; i < packs; i += x.coop.width)
		reduce_store(to + 8 * i, 8, reduce_at(type, op, from + 8 * i, win->stride, n, 8));
	DEV_LOOP
	for (uint64_t i = packs * each + x.coop.thread; i < count; i += x.coop.width)
		reduce_store(to + size * i, size,
			reduce_at(type, op, from + size * i, win->stride, n, size));
	return symcclSuccess;
}

/* ---- Copies -----------------------------------------------------------------------------------
 */

/* dst[0..bytes) = src[0..bytes), which do not overlap; 16-byte alignment is fastest. All threads of
 * the scope, each a share. */
DEV void symcclDevCopy(symcclDevCoop_t coop, void *dst, const void *src, size_t bytes)
{
	coop_copy(coop, (char *)dst, (const char *)src, bytes);
}
/* Copy src[0..bytes) to byte `offset` of every LSA rank's window, oneself first; src itself may be
 * the caller's. All threads of x.coop. Return: symcclInvalidArgument: beyond the window. */
DEV symcclResult_t symcclDevSpread(symcclDevCtx_t x, const symcclDevWindow_t *win, size_t offset,
	const void *src, size_t bytes)
{
	if (offset > win->size || bytes > win->size - offset)
		return symcclInvalidArgument;
	for (int d = 0; d < win->lsaSize; d++) {
		int q = win->lsaRank + d < win->lsaSize ? win->lsaRank + d
							: win->lsaRank + d - win->lsaSize;
		char *to = (char *)symcclDevLsaPtr(win, q, offset);

		if (to != src)
			coop_copy(x.coop, to, (const char *)src, bytes);
	}
	return symcclSuccess;
}

#endif
