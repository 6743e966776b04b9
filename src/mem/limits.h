/* How much memory this process may have: what /proc and the memory cgroup (v1 and v2) say. */
#ifndef MEM_LIMITS_H
#define MEM_LIMITS_H

#include <stddef.h>

struct mem_limits {
	size_t capacity; /* physical memory, or the least cgroup limit above this process */
	size_t headroom; /* what could still be allocated now, reclaimable caches and swap included
			  */
};
/* Reads a handful of files below root ("" but in tests), about 0.1 ms. What cannot be read does not
 * limit: SIZE_MAX. No failure. */
void mem_limits_read(const char *root, struct mem_limits *l);

#endif
