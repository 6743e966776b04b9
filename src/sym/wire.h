/* What a batch sends: see batch.c. Native byte order: all ranks of a node, or of one architecture.
 */
#ifndef SYM_WIRE_H
#define SYM_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "error.h"

struct wire_seg {
	uint64_t proc, seq; /* mem_uid */
	uint64_t size;
};

struct wire_req {
	uint32_t flags;
	int32_t code; /* symcclSuccess, or why this rank's memory cannot be had */
	uint32_t nseg;
	uint32_t text; /* bytes of reason after the segments */
	uint64_t size, off;
};

struct wire_vote {
	int32_t set, code, rank;
	int32_t weak; /* counts only when nobody has a better reason */
	char text[ERROR_TEXT_MAX];
};

/* A growing message. Sticky out-of-memory: check `oom` once at the end. */
struct wbuf {
	unsigned char *p;
	size_t len, room;
	int oom;
};

static inline void *wbuf_add(struct wbuf *b, const void *data, size_t n)
{
	if (b->oom)
		return NULL;
	if (b->len + n > b->room) {
		size_t room = (b->len + n) * 2 + 256;
		unsigned char *p = realloc(b->p, room);

		if (p == NULL) {
			b->oom = 1;
			return NULL;
		}
		b->p = p;
		b->room = room;
	}
	if (n)
		memcpy(b->p + b->len, data, n);
	b->len += n;
	return b->p + b->len - n;
}

static inline void wbuf_u32(struct wbuf *b, uint32_t v)
{
	wbuf_add(b, &v, sizeof(v));
}

/* Reading, with bounds: a short message sets `bad` and yields zeros. */
struct wcur {
	const unsigned char *p, *end;
	int bad;
};

static inline const void *wcur_take(struct wcur *c, size_t n)
{
	const void *p = c->p;

	if (c->bad || n > (size_t)(c->end - c->p)) {
		c->bad = 1;
		return NULL;
	}
	c->p += n;
	return p;
}

static inline void wcur_get(struct wcur *c, void *out, size_t n)
{
	const void *p = wcur_take(c, n);

	if (p != NULL)
		memcpy(out, p, n);
	else
		memset(out, 0, n);
}

static inline uint32_t wcur_u32(struct wcur *c)
{
	uint32_t v;

	wcur_get(c, &v, sizeof(v));
	return v;
}

#endif
