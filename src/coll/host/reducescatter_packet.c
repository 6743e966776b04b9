/*
 * Reduce-scatter by packets: part p of every rank's input goes to rank p only, up to 56 bytes on
 * the flag's own line, else through the stage behind it, a stage at a time; rank p reduces. One
 * step a stage; any memory, any size. With factors the slot carries the factor.
 */
#include "coll/host/host.h"
#include "device/slot.h"
#include "util.h"

/* Bytes [from, from + n) of all parts. */
static symcclResult_t piece(struct step *s, size_t from, size_t n)
{
	const struct coll_team *t = s->team;
	const struct coll_call *c = s->call;
	size_t block = c->count * coll_type_size(c->type);
	int ranks = t->nranks, inl = n <= CTRL_SLOT_INLINE && !c->has_factor;
	const void *src[ranks];
	uint64_t factor[ranks];
	const unsigned char *data;
	const char *in = (const char *)c->send.ptr + from;
	void *out = (char *)c->recv.ptr + from;

	step_begin(s);
	for (int k = 1; k < ranks; k++) {
		int peer = t->rank + k < ranks ? t->rank + k : t->rank + k - ranks;
		const char *part = in + (size_t)peer * block;

		if (inl) {
			step_post(s, peer, part, n);
			continue;
		}
		memcpy(step_stage(s, peer, t->rank), part, n);
		step_post(s, peer, &c->factor, c->has_factor ? sizeof(c->factor) : 0);
	}
	src[t->rank] = in + (size_t)t->rank * block;
	factor[t->rank] = c->factor;
	for (int k = 1; k < ranks; k++) {
		int peer = t->rank + k < ranks ? t->rank + k : t->rank + k - ranks;

		TRY(step_await(s, peer, &data));
		src[peer] = inl ? (const char *)data : step_stage(s, t->rank, peer);
		memcpy(&factor[peer], data, sizeof(factor[peer]));
	}
	host_reduce(c, ranks, src, factor, 1, &out, n, 0);
	step_end(s);
	return symcclSuccess;
}

HOST_KERNEL(reducescatter_packet)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t from, n;

	host_share(c->count * coll_type_size(c->type), cta, nctas, &from, &n);
	for (size_t at = 0; at < n || at == 0; at += t->layout.stage_bytes)
		TRY(piece(&s, from + at, MIN(t->layout.stage_bytes, n - at)));
	return symcclSuccess;
}
