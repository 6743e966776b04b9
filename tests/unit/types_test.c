/* The conversions of small floating types, every pattern of them, against the oracle's. */
#include <criterion/criterion.h>
#include <math.h>
#include "device/types.h"
#include "mem.h"
#include "oracle.h"
#include "util.h"

TestSuite(types, .timeout = 60);

static const struct small {
	symcclDataType_t type;
	uint32_t codes, largest; /* how many patterns; the largest finite one */
	float (*widen)(uint32_t);
	uint32_t (*narrow)(float);
	uint32_t nan, over;
} smalls[] = {
	{symcclFloat16, 0x10000, 0x7bff, f16_widen, f16_narrow, F16_NAN, 0x7c00},
	{symcclBfloat16, 0x10000, 0x7f7f, bf16_widen, bf16_narrow, BF16_NAN, 0x7f80},
	{symcclFloat8e4m3, 0x100, 0x7e, e4m3_widen, e4m3_narrow, E4M3_NAN, 0x7e},
	{symcclFloat8e5m2, 0x100, 0x7b, e5m2_widen, e5m2_narrow, E5M2_NAN, 0x7b},
};

static void check_narrow(const struct small *s, uint32_t bits)
{
	float a = f32_of_bits(bits);
	uint32_t got = s->narrow(a), want = (uint32_t)oracle_round(s->type, (double)a);

	if (got != want)
		cr_assert_fail("type %d: %08x (%a) became %x, not %x", (int)s->type, bits,
			(double)a, got, want);
}

Test(types, every_pattern_widens_to_its_value)
{
	for (size_t k = 0; k < ARRAY_LEN(smalls); k++) {
		const struct small *s = &smalls[k];

		for (uint32_t v = 0; v < s->codes; v++) {
			double want = oracle_value(s->type, v);
			float got = s->widen(v);

			cr_assert_eq(isnan(want), isnan(got), "type %d: %x", (int)s->type, v);
			if (isnan(want))
				continue;
			cr_assert((double)got == want && !signbit(got) == !signbit(want),
				"type %d: %x is %a, not %a", (int)s->type, v, (double)got, want);
		}
	}
}

Test(types, every_value_comes_back)
{
	for (size_t k = 0; k < ARRAY_LEN(smalls); k++) {
		const struct small *s = &smalls[k];
		uint32_t sign = s->codes / 2;

		for (uint32_t v = 0; v < s->codes; v++) {
			float a = s->widen(v);
			uint32_t got = s->narrow(a), want = v;

			if (isnan(a))
				want = s->nan;
			else if (isinf(a))
				want = (v & sign) | s->over;
			cr_assert_eq(
				got, want, "type %d: %x came back as %x", (int)s->type, v, got);
		}
	}
}

/* Between each two neighbours: the middle, and the fp32 next to it on either side. */
Test(types, halves_go_to_even)
{
	for (size_t k = 0; k < ARRAY_LEN(smalls); k++) {
		const struct small *s = &smalls[k];

		for (uint32_t v = 0; v < s->largest; v++) {
			double a = oracle_value(s->type, v), b = oracle_value(s->type, v + 1);
			uint32_t middle = f32_bits((float)((a + b) / 2));

			for (uint32_t bits = middle - (middle > 0); bits <= middle + 1; bits++) {
				check_narrow(s, bits);
				check_narrow(s, bits | 0x80000000);
			}
		}
	}
}

Test(types, the_ends)
{
	static const uint32_t ends[] = {0, 1, 0x007fffff, 0x00800000, 0x00800001, 0x7f7fffff,
		0x7f7f8000, 0x7f7f7fff, 0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff};
	static const float around[] = {65504, 65520, 65519, 65536, 448, 464, 463.99f, 464.01f, 480,
		512, 57344, 61440, 61439, 61441, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 0x1p-9f,
		0x1p-10f, 0x1.000002p-10f, 0x1p-16f, 0x1p-17f, 0x1.000002p-17f, 0x1p-133f,
		0x1p-134f};

	for (size_t k = 0; k < ARRAY_LEN(smalls); k++)
		for (uint32_t sign = 0; sign < 2; sign++) {
			for (size_t i = 0; i < ARRAY_LEN(ends); i++)
				check_narrow(&smalls[k], ends[i] | sign << 31);
			for (size_t i = 0; i < ARRAY_LEN(around); i++)
				check_narrow(&smalls[k], f32_bits(around[i]) | sign << 31);
		}
}

/* Numbers that docs/semantics.md promises, so that the oracle cannot err along. */
Test(types, known_answers)
{
	cr_assert_eq(f16_narrow(65519.0f), 0x7bff);
	cr_assert_eq(f16_narrow(65520.0f), 0x7c00);
	cr_assert_eq(f16_narrow(-0x1p-25f), 0x8000);
	cr_assert_eq(f16_narrow(0x1.8p-24f), 0x0002);
	cr_assert_eq(bf16_narrow(f32_of_bits(0x3f808000)), 0x3f80);
	cr_assert_eq(bf16_narrow(f32_of_bits(0x3f818000)), 0x3f82);
	cr_assert_eq(bf16_narrow(f32_of_bits(0x7f7fffff)), 0x7f80);
	cr_assert_eq(bf16_narrow(f32_of_bits(0xffffffff)), BF16_NAN);
	cr_assert_eq(e4m3_narrow(448.0f), 0x7e);
	cr_assert_eq(e4m3_narrow(1e30f), 0x7e);
	cr_assert_eq(e4m3_narrow(-(float)INFINITY), 0xfe);
	cr_assert_eq(e4m3_narrow((float)NAN), 0x7f);
	cr_assert_eq(e5m2_narrow(1e30f), 0x7b);
	cr_assert_eq(e5m2_narrow((float)INFINITY), 0x7b);
	cr_assert_eq(e5m2_narrow((float)NAN), 0x7e);
	cr_assert_eq(f32_bits(e4m3_widen(0x01)), f32_bits(0x1p-9f));
	cr_assert_eq(f32_bits(e5m2_widen(0xfc)), 0xff800000);
}

Test(types, random_floats_round_as_the_oracle_says)
{
	uint64_t seed = test_seed();

	for (size_t k = 0; k < ARRAY_LEN(smalls); k++)
		for (uint64_t i = 0; i < 300000; i++) {
			uint64_t r = mix64(seed, i);
			uint32_t bits = (uint32_t)r, exponent = 127 - 28 + (uint32_t)(r >> 40) % 48;

			/* Half of them where the type has numbers. */
			if (r >> 63)
				bits = (bits & 0x807fffff) | exponent << 23;
			check_narrow(&smalls[k], bits);
		}
}
