/*
 * All-to-all by packets: block p of every rank's buffer goes to rank p only, up to 56 bytes on the
 * flag's own line, else through the stage behind it, a stage at a time. One step a stage; any
 * memory, any size. All of a piece is sent before any of it is received, so in place is safe.
 */
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "device/slot.h"
#include "util.h"

/* Bytes [from, from + n) of all blocks. */
static symcclResult_t piece(struct step *s, size_t from, size_t n)
{
	const struct coll_team *t = s->team;
	const struct coll_call *c = s->call;
	size_t block = c->count * coll_type_size(c->type), own = (size_t)t->rank * block + from;
	int ranks = t->nranks, inl = n <= CTRL_SLOT_INLINE;
	const char *in = (const char *)c->send.ptr + from;
	char *out = (char *)c->recv.ptr + from;
	const unsigned char *data;

	step_begin(s);
	for (int k = 1; k < ranks; k++) {
		int peer = t->rank + k < ranks ? t->rank + k : t->rank + k - ranks;
		const char *part = in + (size_t)peer * block;

		if (!inl)
			copy_plain(step_stage(s, peer, t->rank), part, n);
		step_post(s, peer, part, inl ? n : 0);
	}
	if (c->recv.ptr != c->send.ptr)
		memcpy((char *)c->recv.ptr + own, (const char *)c->send.ptr + own, n);
	for (int k = 1; k < ranks; k++) {
		int peer = t->rank + k < ranks ? t->rank + k : t->rank + k - ranks;

		TRY(step_await(s, peer, &data));
		memcpy(out + (size_t)peer * block,
			inl ? (const void *)data : step_stage(s, t->rank, peer), n);
	}
	step_end(s);
	return symcclSuccess;
}

HOST_KERNEL(alltoall_packet)
{
	struct step s = {.team = t, .call = c, .hash = hash, .cta = cta};
	size_t from, n;

	host_share(c->count * coll_type_size(c->type), cta, nctas, &from, &n);
	for (size_t at = 0; at < n || at == 0; at += t->layout.stage_bytes)
		TRY(piece(&s, from + at, MIN(t->layout.stage_bytes, n - at)));
	return symcclSuccess;
}
