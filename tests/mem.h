/*
 * Test data: reproducible random elements, poison, and buffers between guards.
 *
 * Element i of a fill depends on (seed, type, i) alone, so any rank can tell what a peer has sent
 * without being told: seed = test_seed() + rank.
 */
#ifndef TESTS_MEM_H
#define TESTS_MEM_H

#include <stddef.h>
#include <stdint.h>
#include "symccl.h"

/* The seed of this run: SYMCCL_TEST_SEED, else a random one; printed on first use. */
uint64_t test_seed(void);
/* A uniform 64-bit number for (seed, i). */
uint64_t mix64(uint64_t seed, uint64_t i);

/* Any bytes. */
void fill_bytes(void *p, size_t n, uint64_t seed);
/* Index of the first byte that differs from such a fill, or n. */
size_t check_bytes(const void *p, size_t n, uint64_t seed);
/* Elements: integers take any value; floating types take finite ones of mixed sign and magnitude,
 * with zeros of both signs and subnormals among them. */
void fill_type(void *p, size_t count, symcclDataType_t type, uint64_t seed);
/* Bytes of one element. */
size_t fill_type_size(symcclDataType_t type);

/* What no result may look like. */
void poison(void *p, size_t n);

/* n bytes at an address that is `skew` above a multiple of 64, with guards on both sides. NULL: no
 * memory. */
struct guarded {
	void *base;
	unsigned char *p;
	size_t n;
};
int guarded_alloc(struct guarded *g, size_t n, size_t skew);
/* 0 when both guards are whole; else the nearest touched byte's offset from p is in *at. */
int guarded_check(const struct guarded *g, long *at);
void guarded_free(struct guarded *g);

#endif
