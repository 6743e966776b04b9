/*
 * Reduction of n ranks' elements to one, on the host: what docs/semantics.md says, bit for bit,
 * whatever the machine. Pure functions over memory: no allocation, no waiting, no errors; any
 * number of threads at once.
 */
#ifndef HOST_REDUCE_H
#define HOST_REDUCE_H

#include <stddef.h>
#include <stdint.h>
#include "symccl.h"

/*
 * Every destination gets the same bytes. Addresses need no alignment. A destination may be one of
 * the sources; it must not overlap any source or destination otherwise.
 *
 * nsrc >= 1, in the order of ranks. divisor: what an average divides by (0: nsrc); not read for the
 * other operators. factor: NULL, or for symcclSum each source's own factor, the bits of an element
 * of `type` in the low bytes: each input is multiplied by it first. stream: bypass the caches when
 * storing; ordered before the calling thread's later stores.
 */
struct reduction {
	symcclDataType_t type;
	symcclRedOp_t op;
	int nsrc, ndst;
	const void *const *src;
	void *const *dst;
	size_t count; /* elements */
	uint32_t divisor;
	const uint64_t *factor;
	int stream;
};
void reduce(const struct reduction *r);

/* Which instructions: "plain", "avx2", "avx512"; NULL: the best that this CPU has, which is what is
 * used unless told. For tests and measurements. 0 when this build or CPU does not have them. */
int reduce_use(const char *isa);
/* The name of what is in use. */
const char *reduce_used(void);

#endif
