#define _GNU_SOURCE
#include "mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "util.h"

#define GUARD 64
#define POISON 0xa5

uint64_t mix64(uint64_t seed, uint64_t i)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15u + i;

	x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
	x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
	return x ^ x >> 32;
}

uint64_t test_seed(void)
{
	static uint64_t seed;
	const char *s = getenv("SYMCCL_TEST_SEED");

	if (!seed) {
		if (s && s[0])
			seed = strtoull(s, NULL, 0);
		else if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
			seed = now_ns();
		seed = (seed & 0xffffffffu) | 1; /* short to type */
		fprintf(stderr, "seed: SYMCCL_TEST_SEED=%#llx\n", (unsigned long long)seed);
	}
	return seed;
}

void fill_bytes(void *p, size_t n, uint64_t seed)
{
	unsigned char *b = p;

	for (size_t i = 0; i < n; i += 8) {
		uint64_t v = mix64(seed, i / 8);

		memcpy(b + i, &v, MIN(n - i, (size_t)8));
	}
}

size_t check_bytes(const void *p, size_t n, uint64_t seed)
{
	const unsigned char *b = p;

	for (size_t i = 0; i < n; i += 8) {
		uint64_t v = mix64(seed, i / 8);

		if (memcmp(b + i, &v, MIN(n - i, (size_t)8)) == 0)
			continue;
		for (size_t j = i; j < n; j++)
			if (b[j] != (unsigned char)(v >> 8 * (j - i)))
				return j;
	}
	return n;
}

/* Bits of sign, exponent and mantissa. */
struct format {
	int bytes, exponent, mantissa;
};

static const struct format formats[symcclNumTypes] = {
	[symcclInt8] = {1, 0, 0},
	[symcclUint8] = {1, 0, 0},
	[symcclInt32] = {4, 0, 0},
	[symcclUint32] = {4, 0, 0},
	[symcclInt64] = {8, 0, 0},
	[symcclUint64] = {8, 0, 0},
	[symcclFloat16] = {2, 5, 10},
	[symcclFloat32] = {4, 8, 23},
	[symcclFloat64] = {8, 11, 52},
	[symcclBfloat16] = {2, 8, 7},
	[symcclFloat8e4m3] = {1, 4, 3},
	[symcclFloat8e5m2] = {1, 5, 2},
};

size_t fill_type_size(symcclDataType_t type)
{
	return (size_t)formats[type].bytes;
}

static uint64_t element(const struct format *f, uint64_t r)
{
	uint64_t mantissa, sign = r >> 63, exponent = 0;
	int bias, spread;

	if (!f->exponent)
		return r;
	mantissa = r & (((uint64_t)1 << f->mantissa) - 1);
	bias = (1 << (f->exponent - 1)) - 1;
	spread = MIN(bias - 1, 12);
	/* Mostly around 1, so that sums round; one in 16 zero or subnormal. */
	if ((r >> 56 & 15) != 0)
		exponent = (uint64_t)(bias - spread / 2) + (r >> 52 & 15) % (uint64_t)spread;
	else if (!(r >> 60 & 1))
		mantissa = 0;
	return sign << (f->exponent + f->mantissa) | exponent << f->mantissa | mantissa;
}

void fill_type(void *p, size_t count, symcclDataType_t type, uint64_t seed)
{
	const struct format *f = &formats[type];
	unsigned char *b = p;

	for (size_t i = 0; i < count; i++) {
		uint64_t v = element(f, mix64(seed, i));

		for (int k = 0; k < f->bytes; k++)
			b[i * (size_t)f->bytes + (size_t)k] = (unsigned char)(v >> 8 * k);
	}
}

void poison(void *p, size_t n)
{
	memset(p, POISON, n);
}

int guarded_alloc(struct guarded *g, size_t n, size_t skew)
{
	memset(g, 0, sizeof(*g));
	skew %= 64;
	g->base = aligned_alloc(64, align_up(n + skew + 2 * GUARD, 64));
	if (!g->base)
		return 1;
	memset(g->base, 0x5a, n + skew + 2 * GUARD);
	g->p = (unsigned char *)g->base + GUARD + skew;
	g->n = n;
	poison(g->p, n);
	return 0;
}

int guarded_check(const struct guarded *g, long *at)
{
	const unsigned char *end = g->p + g->n;

	for (long i = 1; g->p - i >= (const unsigned char *)g->base; i++)
		if (g->p[-i] != 0x5a) {
			*at = -i;
			return 1;
		}
	for (long i = 0; i < GUARD; i++)
		if (end[i] != 0x5a) {
			*at = (long)g->n + i;
			return 1;
		}
	return 0;
}

void guarded_free(struct guarded *g)
{
	free(g->base);
	memset(g, 0, sizeof(*g));
}
