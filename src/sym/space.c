#include "sym/space.h"
#include <stdlib.h>
#include <string.h>
#include "log.h"
#include "util.h"

symcclResult_t space_init(struct space *s, const struct mem_ops *mem, int nslots, size_t stride)
{
	size_t most;

	memset(s, 0, sizeof(*s));
	if (nslots < 1)
		return fail(symcclInternalError, "an address space for %d ranks", nslots);
	most = SPACE_RANGE_MAX / (size_t)nslots / SPACE_UNIT * SPACE_UNIT;
	if (most == 0)
		return fail(
			symcclInvalidUsage, "%d ranks are too many to address one another", nslots);
	s->mem = mem;
	s->nslots = nslots;
	/* The comparison first: rounding SIZE_MAX up would overflow. */
	s->stride = stride >= most ? most : align_up(MAX(stride, 1), SPACE_UNIT);
	return symcclSuccess;
}

static void range_unreserve(struct space *s, struct space_range *r)
{
	size_t bytes = (size_t)s->nslots * r->stride;

	/* Twice: see mapping_release. */
	if (r->base != NULL && s->mem->unreserve(r->base, bytes) != symcclSuccess &&
		s->mem->unreserve(r->base, bytes) != symcclSuccess)
		log_warn(LOG_SYM, "%zu MiB of address space stay reserved", bytes >> 20);
	r->base = NULL;
}

static symcclResult_t range_reserve(struct space *s, struct space_range *r)
{
	size_t bytes = (size_t)s->nslots * r->stride;
	void *base;

	if (s->mem->reserve(bytes, SPACE_UNIT, &base) != symcclSuccess)
		return fail_quiet(symcclSystemError,
			"no addresses for the windows of %d ranks at a stride of %zu MiB: %s",
			s->nslots, r->stride >> 20, error_text());
	r->base = base;
	log_info(LOG_SYM, "reserved %zu MiB of address space: %d ranks, stride %zu MiB",
		bytes >> 20, s->nslots, r->stride >> 20);
	return symcclSuccess;
}

/* A place in the list of ranges, the lowest free one; -1: out of memory. */
static int range_add(struct space *s, size_t stride)
{
	struct space_range *p;
	int i;

	for (i = 0; i < s->nranges && s->range[i].stride != 0; i++)
		;
	if (i == s->nranges) {
		p = realloc(s->range, (size_t)(i + 1) * sizeof(*p));
		if (p == NULL)
			return -1;
		s->range = p;
		s->nranges++;
	}
	s->range[i] = (struct space_range){.stride = stride};
	return i;
}

/* The first hole of range i that takes e->size bytes; links e there. */
static int range_place(struct space *s, int i, size_t align, struct extent *e)
{
	struct space_range *r = &s->range[i];
	struct extent *prev = NULL, *next = r->first;
	size_t at = 0;

	for (; next != NULL && (at > next->offset || next->offset - at < e->size);
		next = next->next) {
		at = align_up(next->offset + next->size, align);
		prev = next;
	}
	if (at > r->stride || r->stride - at < e->size)
		return 0;
	e->range = i;
	e->offset = at;
	e->prev = prev;
	e->next = next;
	*(prev != NULL ? &prev->next : &r->first) = e;
	if (next != NULL)
		next->prev = e;
	return 1;
}

symcclResult_t space_alloc(struct space *s, size_t size, size_t align, struct extent *e)
{
	size_t unit = s->mem->granularity();
	size_t most = SPACE_RANGE_MAX / (size_t)s->nslots;
	int i;

	align = MAX(align, unit);
	if (size == 0 || align > SPACE_UNIT || (align & (align - 1)) != 0)
		return fail(
			symcclInternalError, "an extent of %zu bytes aligned to %zu", size, align);
	if (size > most || align_up(size, SPACE_UNIT) > most)
		return fail(symcclInvalidUsage,
			"a window of %zu MiB on %d ranks needs more than %zu GiB of addresses",
			size >> 20, s->nslots, SPACE_RANGE_MAX >> 30);
	e->size = align_up(size, unit);
	for (i = 0; i < s->nranges; i++)
		if (s->range[i].stride != 0 && range_place(s, i, align, e))
			break;
	if (i == s->nranges) {
		i = range_add(s, MAX(s->stride, align_up(size, SPACE_UNIT)));
		if (i < 0) {
			e->size = 0;
			return fail(symcclSystemError, "out of memory for a range of addresses");
		}
		range_place(s, i, align, e);
	}
	return s->range[i].base != NULL ? symcclSuccess : range_reserve(s, &s->range[i]);
}

void space_free(struct space *s, struct extent *e)
{
	struct space_range *r;

	if (e->size == 0)
		return;
	r = &s->range[e->range];
	*(e->prev != NULL ? &e->prev->next : &r->first) = e->next;
	if (e->next != NULL)
		e->next->prev = e->prev;
	if (r->first == NULL && e->range != 0) {
		range_unreserve(s, r);
		r->stride = 0;
	}
	memset(e, 0, sizeof(*e));
}

char *space_addr(const struct space *s, const struct extent *e, int slot)
{
	const struct space_range *r = &s->range[e->range];

	return r->base + (size_t)slot * r->stride + e->offset;
}

size_t space_stride(const struct space *s, const struct extent *e)
{
	return s->range[e->range].stride;
}

void space_fini(struct space *s)
{
	for (int i = 0; i < s->nranges; i++)
		range_unreserve(s, &s->range[i]);
	free(s->range);
	memset(s, 0, sizeof(*s));
}
