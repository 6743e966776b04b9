/*
 * The symmetric address space of one communicator in one process: which addresses windows get.
 *
 * The space is a list of ranges. A range is nslots slots (one per rank) of `stride` bytes side by
 * side; an extent is the same piece of every slot:
 *
 *     address(slot) = range base + slot * stride + extent offset
 *
 * Placement is bookkeeping that depends on nothing but the order and sizes of the calls, so equal
 * calls give equal extents in every process; only the base differs. Extents are first fit in the
 * lowest range; when none has room the space grows by a range. The first extent lies at offset 0 of
 * the first range. A range takes at most SPACE_RANGE_MAX bytes of addresses, over all slots.
 *
 * Addresses are reserved when a range gets its first extent, and given back when it loses its last
 * one, except for the first range, which stays until space_fini.
 *
 * One thread at a time.
 */
#ifndef SPACE_H
#define SPACE_H

#include <stddef.h>
#include "error.h"
#include "mem/mem.h"

#define SPACE_RANGE_MAX ((size_t)1 << 42)
/* Strides are multiples of this, and range bases are aligned to it. */
#define SPACE_UNIT ((size_t)2 << 20)

/* Zeroed: none. Linked into its range: must stay where it is until space_free. */
struct extent {
	struct extent *prev, *next; /* in order of offset */
	int range;
	size_t offset; /* in every slot */
	size_t size;   /* as asked for, rounded up to the granularity; 0: none */
};

struct space_range {
	char *base;    /* NULL: nothing reserved */
	size_t stride; /* 0: this place in the list is free */
	struct extent *first;
};

struct space {
	const struct mem_ops *mem;
	int nslots;
	size_t stride; /* of a range, unless a request needs more */
	struct space_range *range;
	int nranges;
};

/* Reserves nothing. stride: wanted bytes per slot, made smaller when nslots of it exceed a range;
 * a multiple of SPACE_UNIT afterwards. symcclInvalidUsage: too many slots for any stride. */
symcclResult_t space_init(struct space *s, const struct mem_ops *mem, int nslots, size_t stride);
/* Give all addresses back; extents die. Accepts a zeroed struct. Nothing may be mapped any more. */
void space_fini(struct space *s);

/* Place size bytes (> 0) in every slot, aligned to align (a power of two up to SPACE_UNIT; 0: the
 * granularity). On entry *e is zeroed.
 * symcclInvalidUsage, the same in every process: the slots do not fit into one range. Nothing has
 * changed.
 * symcclSystemError, in this process alone: addresses cannot be reserved (RLIMIT_AS, a sanitizer,
 * too many ranges). The stride is agreed, so no smaller one is tried. The extent is placed all the
 * same (e->size != 0), so that later calls go on matching the other processes'; it has no address,
 * and the caller tells the others and frees it. The next space_alloc in that range tries again.
 * (With e->size == 0 not even the record of a new range could be had: nothing has changed.) */
symcclResult_t space_alloc(struct space *s, size_t size, size_t align, struct extent *e);
/* *e becomes zeroed. Nothing may be mapped there any more. An extent of size 0 is accepted. */
void space_free(struct space *s, struct extent *e);

/* Address of an extent in a slot; only after a successful space_alloc. */
char *space_addr(const struct space *s, const struct extent *e, int slot);
size_t space_stride(const struct space *s, const struct extent *e);

#endif
