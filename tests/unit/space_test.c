/* Placement of extents, against a map of pages; reservations, against a backend that can refuse. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "mem.h"
#include "mem/mem.h"
#include "sym/space.h"
#include "util.h"

TestSuite(space, .timeout = 20);

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define TIB ((size_t)1 << 40)
#define PAGE 4096u

/* A backend that only counts; the n-th reservation from now fails (0: none). */
static int reservations, refuse;
static size_t reserved_bytes;
static char *next_base = (char *)(64 * TIB);

static size_t toy_granularity(void)
{
	return PAGE;
}

static symcclResult_t toy_reserve(size_t size, size_t align, void **va)
{
	if (refuse > 0 && --refuse == 0)
		return fail_quiet(symcclSystemError, "the toy refuses");
	cr_assert_eq(align, SPACE_UNIT);
	*va = next_base;
	next_base += align_up(size, align);
	reservations++;
	reserved_bytes += size;
	return symcclSuccess;
}

static symcclResult_t toy_unreserve(void *va, size_t size)
{
	cr_assert_not_null(va);
	reservations--;
	reserved_bytes -= size;
	return symcclSuccess;
}

static const struct mem_ops toy = {
	.granularity = toy_granularity, .reserve = toy_reserve, .unreserve = toy_unreserve};

static void start(struct space *s, int nslots, size_t stride)
{
	cr_assert_eq(space_init(s, &toy, nslots, stride), symcclSuccess);
}

static void get(struct space *s, size_t size, struct extent *e)
{
	memset(e, 0, sizeof(*e));
	cr_assert_eq(space_alloc(s, size, 0, e), symcclSuccess, "%s", error_text());
}

static void finish(struct space *s)
{
	space_fini(s);
	cr_assert_eq(reservations, 0);
	cr_assert_eq(reserved_bytes, 0);
}

Test(space, nothing_is_reserved_before_the_first_extent)
{
	struct extent e;
	struct space s;

	start(&s, 4, GIB);
	cr_assert_eq(reservations, 0);
	get(&s, 100, &e);
	cr_assert_eq(reservations, 1);
	cr_assert_eq(reserved_bytes, 4 * GIB);
	cr_assert_eq(e.range, 0);
	cr_assert_eq(e.offset, 0);
	cr_assert_eq(e.size, PAGE);
	/* The first range stays, other ones do not. */
	space_free(&s, &e);
	cr_assert_eq(e.size, 0);
	cr_assert_eq(reservations, 1);
	space_free(&s, &e);
	finish(&s);
	space_fini(&s);
}

Test(space, address_rule)
{
	struct extent e[3];
	struct space s;

	start(&s, 7, 64 * MIB);
	for (int i = 0; i < 3; i++)
		get(&s, 10 * MIB + 1, &e[i]);
	for (int i = 0; i < 3; i++)
		for (int r = 0; r < 7; r++)
			cr_assert_eq(space_addr(&s, &e[i], r),
				space_addr(&s, &e[0], 0) + (size_t)r * 64 * MIB +
					(size_t)i * (10 * MIB + PAGE));
	cr_assert_eq(space_stride(&s, &e[2]), 64 * MIB);
	cr_assert_eq((size_t)space_addr(&s, &e[0], 0) % SPACE_UNIT, 0);
	finish(&s);
}

Test(space, stride_is_bounded_by_the_range)
{
	static const struct {
		int nslots;
		size_t wish, stride;
	} row[] = {
		{1, 0, SPACE_UNIT},
		{1, 1, SPACE_UNIT},
		{1, 3 * MIB, 4 * MIB},
		{1, SIZE_MAX, 4 * TIB},
		{72, 140 * GIB, 4 * TIB / 72 / SPACE_UNIT * SPACE_UNIT},
		{512, 24 * GIB, 8 * GIB},
		{3, 4 * GIB, 4 * GIB},
		{1 << 20, 4 * GIB, 4 * MIB},
		{1 << 21, 4 * GIB, SPACE_UNIT},
	};
	struct space s;

	for (size_t i = 0; i < ARRAY_LEN(row); i++) {
		start(&s, row[i].nslots, row[i].wish);
		cr_assert_eq(s.stride, row[i].stride, "row %zu: %zu", i, s.stride);
		finish(&s);
	}
	cr_assert_eq(space_init(&s, &toy, (1 << 21) + 1, GIB), symcclInvalidUsage);
	cr_assert_eq(space_init(&s, &toy, 0, GIB), symcclInternalError);
}

Test(space, grows_by_ranges)
{
	struct extent a, b, big, c, d;
	struct space s;

	start(&s, 2, 16 * MIB);
	get(&s, 10 * MIB, &a);
	get(&s, 10 * MIB, &b);
	cr_assert_eq(b.range, 1);
	cr_assert_eq(b.offset, 0);
	get(&s, 100 * MIB + 1, &big);
	cr_assert_eq(big.range, 2);
	cr_assert_eq(space_stride(&s, &big), 102 * MIB);
	get(&s, 6 * MIB, &c);
	cr_assert_eq(c.range, 0);
	cr_assert_eq(c.offset, 10 * MIB);
	cr_assert_eq(reservations, 3);
	/* An empty range goes and its place is taken by the next one. */
	space_free(&s, &b);
	cr_assert_eq(reservations, 2);
	get(&s, 12 * MIB, &d);
	cr_assert_eq(d.range, 1);
	space_free(&s, &big);
	space_free(&s, &d);
	space_free(&s, &c);
	space_free(&s, &a);
	cr_assert_eq(reservations, 1);
	cr_assert_eq(reserved_bytes, 32 * MIB);
	finish(&s);
}

Test(space, a_first_request_above_the_stride_opens_the_first_range)
{
	struct extent e;
	struct space s;

	start(&s, 2, 2 * MIB);
	get(&s, 5 * MIB, &e);
	cr_assert_eq(e.range, 0);
	cr_assert_eq(e.offset, 0);
	cr_assert_eq(space_stride(&s, &e), 6 * MIB);
	finish(&s);
}

Test(space, too_large)
{
	static const size_t sizes[] = {TIB + 1, 4 * TIB, SIZE_MAX, SIZE_MAX - PAGE};
	struct extent e = {0};
	struct space s;

	start(&s, 4, GIB);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		cr_assert_eq(space_alloc(&s, sizes[i], 0, &e), symcclInvalidUsage);
		cr_assert(strstr(error_text(), "4 ranks") != NULL, "%s", error_text());
		cr_assert_eq(e.size, 0);
	}
	cr_assert_eq(reservations, 0);
	get(&s, TIB, &e);
	cr_assert_eq(reserved_bytes, 4 * TIB);
	space_free(&s, &e);
	cr_assert_eq(space_alloc(&s, 0, 0, &e), symcclInternalError);
	cr_assert_eq(space_alloc(&s, 1, 3 * PAGE, &e), symcclInternalError);
	cr_assert_eq(space_alloc(&s, 1, 2 * SPACE_UNIT, &e), symcclInternalError);
	finish(&s);
}

Test(space, holes_join_and_are_used_lowest_first)
{
	struct extent e[8], f;
	struct space s;

	start(&s, 3, 8 * MIB);
	for (int i = 0; i < 8; i++)
		get(&s, MIB, &e[i]);
	space_free(&s, &e[5]);
	space_free(&s, &e[1]);
	space_free(&s, &e[3]);
	get(&s, MIB, &f);
	cr_assert_eq(f.offset, MIB);
	space_free(&s, &f);
	/* 1 + 2 + 3 join, whatever the order. */
	space_free(&s, &e[2]);
	get(&s, 3 * MIB, &f);
	cr_assert_eq(f.range, 0);
	cr_assert_eq(f.offset, MIB);
	space_free(&s, &f);
	/* Aligned placement wastes what lies before it. */
	get(&s, 512 * KIB, &e[1]);
	memset(&f, 0, sizeof(f));
	cr_assert_eq(space_alloc(&s, MIB, 2 * MIB, &f), symcclSuccess);
	cr_assert_eq(f.offset, 2 * MIB);
	get(&s, 512 * KIB, &e[2]);
	cr_assert_eq(e[2].offset, MIB + 512 * KIB);
	finish(&s);
}

/* When this process alone gets no addresses it must go on placing as the others do. */
Test(space, a_refused_reservation_keeps_the_books_in_step)
{
	struct extent a[4] = {0}, b[4] = {0};
	struct space s, t;

	start(&s, 2, 4 * MIB);
	start(&t, 2, 4 * MIB);
	refuse = 1;
	cr_assert_eq(space_alloc(&s, 3 * MIB, 0, &a[0]), symcclSystemError);
	cr_assert(strstr(error_text(), "the toy refuses") != NULL, "%s", error_text());
	cr_assert_eq(a[0].size, 3 * MIB);
	get(&t, 3 * MIB, &b[0]);
	/* The next one tries the same range again. */
	get(&s, MIB, &a[1]);
	get(&t, MIB, &b[1]);
	refuse = 1;
	cr_assert_eq(space_alloc(&s, 2 * MIB, 0, &a[2]), symcclSystemError);
	get(&t, 2 * MIB, &b[2]);
	cr_assert_eq(a[2].range, 1);
	space_free(&s, &a[2]);
	space_free(&t, &b[2]);
	space_free(&s, &a[0]);
	space_free(&t, &b[0]);
	for (int i = 2; i < 4; i++) {
		get(&s, 3 * MIB, &a[i]);
		get(&t, 3 * MIB, &b[i]);
		cr_assert_eq(a[i].range, b[i].range);
		cr_assert_eq(a[i].offset, b[i].offset);
	}
	cr_assert_eq(a[2].range, 0);
	space_fini(&t);
	finish(&s);
}

/* ---- Random sequences against a map of pages ------------------------------------------------- */

#define RANGES 24
#define PAGES 2048 /* of the largest range */

struct model {
	size_t npages[RANGES]; /* 0: no range */
	unsigned char used[RANGES][PAGES];
};

static size_t model_hole(const struct model *m, int range, size_t n, size_t align)
{
	for (size_t at = 0; at + n <= m->npages[range]; at += align) {
		size_t i = 0;

		while (i < n && !m->used[range][at + i])
			i++;
		if (i == n)
			return at;
	}
	return SIZE_MAX;
}

static void model_alloc(
	struct model *m, size_t n, size_t align, size_t stride, int *range, size_t *at)
{
	int i;

	for (i = 0; i < RANGES; i++)
		if (m->npages[i] != 0 && (*at = model_hole(m, i, n, align)) != SIZE_MAX)
			break;
	if (i == RANGES) {
		for (i = 0; m->npages[i] != 0; i++)
			cr_assert_lt(i, RANGES - 1);
		m->npages[i] = MAX(stride, align_up(n * PAGE, SPACE_UNIT)) / PAGE;
		*at = 0;
	}
	*range = i;
	memset(&m->used[i][*at], 1, n);
}

static void model_free(struct model *m, int range, size_t at, size_t n)
{
	memset(&m->used[range][at], 0, n);
	if (range != 0 && memchr(m->used[range], 1, PAGES) == NULL)
		m->npages[range] = 0;
}

Test(space, random_sequences_match_the_model)
{
	enum { LIVE = 40, STEPS = 6000 };
	static struct model m;
	static struct extent a[LIVE], b[LIVE];
	uint64_t seed = test_seed();
	size_t stride = 4 * MIB;
	struct space s, t;

	start(&s, 5, stride);
	start(&t, 5, stride);
	for (int step = 0; step < STEPS; step++) {
		uint64_t r = mix64(seed, (uint64_t)step);
		int k = (int)(r % LIVE), range;
		/* Mostly small, now and then above the stride; sizes in bytes. */
		size_t size = 1 + (r >> 8) % (r >> 40 & 15 ? 300 * KIB : 8 * MIB);
		size_t align = PAGE << (r >> 48) % 10, n = (size + PAGE - 1) / PAGE, at;

		if (a[k].size != 0) {
			model_free(&m, a[k].range, a[k].offset / PAGE, a[k].size / PAGE);
			space_free(&s, &a[k]);
			space_free(&t, &b[k]);
			continue;
		}
		model_alloc(&m, n, align / PAGE, stride, &range, &at);
		cr_assert_eq(space_alloc(&s, size, align, &a[k]), symcclSuccess);
		cr_assert_eq(space_alloc(&t, size, align, &b[k]), symcclSuccess);
		cr_assert_eq(a[k].range, range, "step %d", step);
		cr_assert_eq(a[k].offset, at * PAGE, "step %d", step);
		cr_assert_eq(a[k].size, n * PAGE);
		cr_assert_eq(b[k].range, range);
		cr_assert_eq(b[k].offset, at * PAGE);
		cr_assert_eq(space_stride(&s, &a[k]), m.npages[range] * PAGE);
	}
	for (int k = 0; k < LIVE; k++) {
		space_free(&s, &a[k]);
		space_free(&t, &b[k]);
	}
	cr_assert_eq(reservations, 2);
	cr_assert_eq(reserved_bytes, 2 * 5 * m.npages[0] * PAGE);
	space_fini(&t);
	finish(&s);
}

Test(space, real_addresses)
{
	struct extent e = {0};
	struct space s;

	cr_assert_eq(space_init(&s, &mem_host, 4, 64 * MIB), symcclSuccess);
	cr_assert_eq(space_alloc(&s, 100 * MIB, 0, &e), symcclSuccess);
	cr_assert_eq((size_t)space_addr(&s, &e, 0) % SPACE_UNIT, 0);
	space_free(&s, &e);
	space_fini(&s);
}
