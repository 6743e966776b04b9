/*
 * The small floating types' bits from and to fp32, under gcc, clang and nvcc alike. Pure functions;
 * what they say of rounding holds in the default mode (to nearest even, subnormals kept).
 *
 * Widening is exact. A NaN stays a NaN, with whatever payload.
 * Narrowing rounds to nearest, ties to even, once. Any NaN becomes the type's one NaN. What is too
 * large becomes an infinity in fp16 and bf16, and the largest finite value in the fp8 types, also
 * if it was infinite (docs/semantics.md says why).
 */
#include "names.h"
#ifndef SYMCCL_DEVICE_TYPES_H
#define SYMCCL_DEVICE_TYPES_H

#include <string.h>
#include "port.h"

/* The one NaN of each type: positive, quiet, no payload. */
#define SYMCCL_F16_NAN 0x7e00u
#define SYMCCL_BF16_NAN 0x7fc0u
#define SYMCCL_E4M3_NAN 0x7fu
#define SYMCCL_E5M2_NAN 0x7eu
#define SYMCCL_F32_NAN 0x7fc00000u
#define SYMCCL_F64_NAN 0x7ff8000000000000u

#define SYMCCL_F32_INF 0x7f800000u
#define SYMCCL_F32_EXPONENT(e) ((uint32_t)(127 + (e)) << 23) /* the bits of 2^e */

DEV uint32_t f32_bits(float a)
{
	uint32_t v;

	memcpy(&v, &a, sizeof(v));
	return v;
}
DEV float f32_of_bits(uint32_t v)
{
	float a;

	memcpy(&a, &v, sizeof(a));
	return a;
}
DEV uint64_t f64_bits(double a)
{
	uint64_t v;

	memcpy(&v, &a, sizeof(v));
	return v;
}
DEV double f64_of_bits(uint64_t v)
{
	double a;

	memcpy(&a, &v, sizeof(a));
	return a;
}

/* Conditions as masks, since compilers make branches of `?:`, and then no vectors. a, b < 2^31. */
DEV uint32_t mask_below(uint32_t a, uint32_t b)
{
	return (uint32_t)((int32_t)(a - b) >> 31);
}
DEV uint32_t mask_pick(uint32_t mask, uint32_t a, uint32_t b)
{
	return (a & mask) | (b & ~mask);
}

/*
 * A magnitude of a type with `mantissa` bits whose least normal number is 2^emin. A subnormal one
 * is taken for one of that exponent, and 2^emin taken off again. No branches, so that loops over
 * this are vectorised.
 */
DEV uint32_t f32_widen(uint32_t magnitude, int mantissa, int emin)
{
	uint32_t tiny = mask_below(magnitude, 1u << mantissa);
	uint32_t bits = (magnitude << (23 - mantissa)) + F32_EXPONENT(emin - 1);

	bits += tiny & 1u << 23;
	return f32_bits(f32_of_bits(bits) - f32_of_bits(tiny & F32_EXPONENT(emin)));
}

/* fp16: 5 bits of exponent, 10 of mantissa. */
DEV float f16_widen(uint32_t v)
{
	uint32_t magnitude = v & 0x7fff, bits = f32_widen(magnitude, 10, -14);

	bits |= ~mask_below(magnitude, 0x7c00) & F32_INF;
	return f32_of_bits(bits | (v & 0x8000) << 16);
}

DEV float bf16_widen(uint32_t v)
{
	return f32_of_bits(v << 16);
}

/* fp8 e4m3: no infinity; 0x7f and 0xff are NaN, 0x7e is 448. */
DEV float e4m3_widen(uint32_t v)
{
	uint32_t magnitude = v & 0x7f, bits = f32_widen(magnitude, 3, -6);

	bits |= ~mask_below(magnitude, 0x7f) & F32_NAN;
	return f32_of_bits(bits | (v & 0x80) << 24);
}

/* fp8 e5m2: the upper half of an fp16. */
DEV float e5m2_widen(uint32_t v)
{
	return f16_widen(v << 8);
}

/*
 * To a type of `mantissa` bits whose least normal number is 2^emin. Adding a power of two whose
 * last bit weighs as much as the result's does the rounding; what the sum is above it counts those
 * units, 2^mantissa of them and more in a normal number, fewer in a subnormal one. A carry goes
 * where it should. largest: the magnitude that stands for all
 * above.
 */
DEV uint32_t f32_narrow(float a, int mantissa, int emin, uint32_t largest, uint32_t nan)
{
	const int shift = 23 - mantissa;
	const uint32_t least = F32_EXPONENT(emin), most = F32_EXPONENT(16); /* beyond all */
	uint32_t bits = f32_bits(a), magnitude = bits & 0x7fffffff, exponent, unit, out;
	uint32_t is_nan = mask_below(F32_INF, magnitude);

	magnitude = mask_pick(mask_below(magnitude, most), magnitude, most);
	exponent = magnitude & F32_INF;
	exponent = mask_pick(mask_below(least, exponent), exponent, least);
	unit = exponent + ((uint32_t)shift << 23);
	out = f32_bits(f32_of_bits(magnitude) + f32_of_bits(unit)) - unit;
	out += (exponent - least) >> shift;
	out = mask_pick(mask_below(out, largest), out, largest);
	out |= bits >> 31 << (mantissa == 10 ? 15 : 7);
	return mask_pick(is_nan, nan, out);
}

DEV uint32_t f16_narrow(float a)
{
	return f32_narrow(a, 10, -14, 0x7c00, F16_NAN);
}

DEV uint32_t bf16_narrow(float a)
{
	uint32_t bits = f32_bits(a), out = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;

	return (bits & 0x7fffffff) > F32_INF ? BF16_NAN : out;
}

DEV uint32_t e4m3_narrow(float a)
{
	return f32_narrow(a, 3, -6, 0x7e, E4M3_NAN);
}

DEV uint32_t e5m2_narrow(float a)
{
	return f32_narrow(a, 2, -14, 0x7b, E5M2_NAN);
}

#endif
