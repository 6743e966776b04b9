/* What is common to all collectives: types, layout of the control block, checks. */
#include "coll/coll.h"
#include "device/slot.h"
#include "util.h"

const unsigned char coll_type_bytes[symcclNumTypes] = {
	[symcclInt8] = 1,
	[symcclUint8] = 1,
	[symcclInt32] = 4,
	[symcclUint32] = 4,
	[symcclInt64] = 8,
	[symcclUint64] = 8,
	[symcclFloat16] = 2,
	[symcclFloat32] = 4,
	[symcclFloat64] = 8,
	[symcclBfloat16] = 2,
	[symcclFloat8e4m3] = 1,
	[symcclFloat8e5m2] = 1,
};

/* The largest power of two in [lo, hi] that is at most n. */
static size_t power_below(size_t n, size_t lo, size_t hi)
{
	size_t p = lo;

	while (p * 2 <= n && p * 2 <= hi)
		p *= 2;
	return p;
}

/* A block has n stages and n slots for each half, and n rings, so their size shrinks as teams grow:
 * 1 MiB a rank for 2 ranks as for 512. */
void ctrl_layout(int nranks, int nctas, struct ctrl_layout *l)
{
	size_t cells = (size_t)nctas * 2 * (size_t)nranks, n = (size_t)nranks * (size_t)nctas;

	*l = (struct ctrl_layout){.nranks = nranks, .nctas = nctas};
	l->stage_bytes = power_below(((size_t)256 << 10) / n, 256, (size_t)64 << 10);
	l->bulk_bytes = power_below(((size_t)4 << 20) / n, (size_t)16 << 10, (size_t)256 << 10);
	l->slots = sizeof(struct ctrl_head);
	l->stage = l->slots + cells * CTRL_SLOT_BYTES;
	l->bulk = align_up(l->stage + cells * l->stage_bytes, 4096);
	l->ring_slots = power_below(64 / (size_t)nranks, 2, 16);
	l->ring_bytes = power_below(
		((size_t)128 << 10) / ((size_t)nranks * l->ring_slots), 128, (size_t)8 << 10);
	l->rings = l->bulk + (size_t)nctas * 2 * l->bulk_bytes;
	l->answers = l->rings + (size_t)nranks * l->ring_slots * (CTRL_SLOT_BYTES + l->ring_bytes);
	l->pairs = l->answers + (size_t)nranks * 128;
	l->size = l->pairs + (size_t)nranks * 128;
}

void coll_tuning_default(struct coll_tuning *t)
{
#define TUNING(field, def, lo, hi, help) t->field = def;
#include "coll/tuning.def"
#undef TUNING
}

static symcclResult_t check_buffer(const char *name, const void *p, size_t count)
{
	if (p == NULL && count > 0)
		return fail(symcclInvalidArgument, "%s is NULL, but count is %zu", name, count);
	return symcclSuccess;
}

symcclResult_t coll_check(const struct coll_call *c, int rank, int nranks)
{
	size_t size = coll_type_size(c->type), most = (size_t)1 << 47;

	if ((unsigned)c->func >= symcclNumFuncs)
		return fail(symcclInvalidArgument, "func is %d: no such collective", (int)c->func);
	if (c->func == symcclFuncBarrier || coll_is_listed(c->func))
		return symcclSuccess; /* the latter were checked where their lists were made */
	if (size == 0)
		return fail(symcclInvalidArgument, "datatype is %d, not a symcclDataType_t",
			(int)c->type);
	if (coll_reduces(c->func) && (unsigned)c->op >= symcclNumOps)
		return fail(symcclInvalidArgument, "op is %d, not a symcclRedOp_t", (int)c->op);
	if (coll_is_rooted(c->func) && (c->root < 0 || c->root >= nranks))
		return fail(symcclInvalidArgument, "root is %d, not in 0..%d", c->root, nranks - 1);
	if (c->count > most / size / (size_t)nranks)
		return fail(symcclInvalidArgument,
			"count is %zu: %d blocks of that many elements of %zu bytes are beyond any "
			"memory",
			c->count, nranks, size);
	if (rank == c->root || !(c->func == symcclFuncBroadcast || c->func == symcclFuncScatter))
		TRY(check_buffer("sendbuff", c->send.ptr, c->count));
	if (rank == c->root || !(c->func == symcclFuncReduce || c->func == symcclFuncGather))
		TRY(check_buffer("recvbuff", c->recv.ptr, c->count));
	return symcclSuccess;
}
