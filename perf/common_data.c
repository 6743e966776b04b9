/* Inputs that any rank can compute for any other, and the comparison of every output element. */
#include <string.h>

#include "../tests/oracle.h"
#include "common.h"

/* A fixed scrambling of 64 bits (the finaliser of splitmix64). */
static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* Random bits with an exponent near 1: what programs reduce. Any bits would do for the check, but
 * subnormals take some CPUs a hundred times as long. */
static uint64_t near_one(symcclDataType_t type, uint64_t w)
{
	uint64_t e = w >> 56;

	switch (type) {
	case symcclFloat16:
		return (w & 0x83ff) | (12 + e % 6) << 10;
	case symcclBfloat16:
		return (w & 0x807f) | (124 + e % 6) << 7;
	case symcclFloat32:
		return (w & 0x807fffff) | (124 + e % 6) << 23;
	case symcclFloat64:
		return (w & 0x800fffffffffffff) | (1020 + e % 6) << 52;
	case symcclFloat8e4m3:
		return (w & 0x87) | (4 + e % 6) << 3;
	case symcclFloat8e5m2:
		return (w & 0x83) | (12 + e % 6) << 2;
	default:
		return w;
	}
}

static void input_elements(
	const struct perf_case *c, uint64_t key, size_t first, size_t n, char *out)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t w = near_one(c->type, mix(key + (first + i) * 0x9e3779b97f4a7c15u));

		memcpy(out + i * c->esize, &w, c->esize);
	}
}

/* Elements [first, first + n) of the reduction of all ranks' inputs. */
void perf_reduced(const struct perf_case *c, size_t first, size_t n, void *out)
{
	enum { PIECE = 512 };
	char in[64][PIECE * 8];
	const void *src[64];

	for (int r = 0; r < c->nranks && r < 64; r++)
		src[r] = in[r];
	for (size_t at = 0; at < n; at += PIECE) {
		size_t k = n - at < PIECE ? n - at : PIECE;

		for (int r = 0; r < c->nranks && r < 64; r++)
			perf_input(c, r, first + at, k, in[r]);
		oracle_reduce(c->type, c->op, src, c->nranks, NULL, k, (char *)out + at * c->esize);
	}
}

void perf_input(const struct perf_case *c, int rank, size_t first, size_t n, void *out)
{
	uint64_t key = mix(c->seed + 0x9e3779b97f4a7c15u * ((uint64_t)rank + 1));
	size_t at = first * c->esize, end = at + n * c->esize;
	char *p = out;

	if (c->coll->reduces) {
		input_elements(c, key, first, n, out);
		return;
	}
	while (at < end) {
		uint64_t word = mix(key + at / 8 * 0x9e3779b97f4a7c15u);
		size_t off = at % 8, len = 8 - off < end - at ? 8 - off : end - at;

		memcpy(p, (char *)&word + off, len);
		p += len;
		at += len;
	}
}

enum { CHUNK = 32768 };

static size_t differ(const char *a, const char *b, size_t n, size_t esize)
{
	size_t wrong = 0;

	if (!memcmp(a, b, n * esize))
		return 0;
	for (size_t i = 0; i < n; i++)
		wrong += memcmp(a + i * esize, b + i * esize, esize) != 0;
	return wrong;
}

size_t data_wrong(const struct perf_case *c, int rank, const void *recv)
{
	_Alignas(64) char want[CHUNK];
	size_t step = CHUNK / c->esize, wrong = 0;

	if (c->coll->root_only && rank != c->root)
		return 0;
	for (size_t i = 0; i < c->recvcount; i += step) {
		size_t n = c->recvcount - i < step ? c->recvcount - i : step;

		c->coll->expect(c, rank, i, n, want);
		wrong += differ((const char *)recv + i * c->esize, want, n, c->esize);
	}
	return wrong;
}

size_t data_input_wrong(const struct perf_case *c, int rank, const void *send)
{
	_Alignas(64) char want[CHUNK];
	size_t step = CHUNK / c->esize, wrong = 0;

	for (size_t i = 0; i < c->sendcount; i += step) {
		size_t n = c->sendcount - i < step ? c->sendcount - i : step;

		perf_input(c, rank, i, n, want);
		wrong += differ((const char *)send + i * c->esize, want, n, c->esize);
	}
	return wrong;
}

size_t data_guard_wrong(const void *begin, const void *end)
{
	size_t wrong = 0;

	for (const unsigned char *p = begin; p < (const unsigned char *)end; p++)
		wrong += *p != PERF_POISON;
	return wrong;
}
