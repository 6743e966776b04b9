/*
 * The algorithm table and the choice between its rows: the cheapest by the cost model that can take
 * the call. A cost is latency terms plus bytes over bandwidth; the constants are in coll_tuning.
 */
#include <stdio.h>
#include <string.h>
#include "coll/cuda/rows.h"
#include "coll/host/copy.h"
#include "coll/host/host.h"
#include "device/slot.h"
#include "log.h"
#include "util.h"

/* ---- Costs, in microseconds --------------------------------------------------------------------
 */

/* One exchange. When ranks outnumber the CPUs each waits for the others' turns on its own. */
static double step_us(const struct coll_team *t)
{
	if (t->oversubscribed)
		return t->tuning.latency_us + t->tuning.turn_us * MAX(1, t->crowd);
	return t->tuning.latency_us + 0.02 * t->nranks;
}

/* A further one of the same call finds the peers at the same place; on shared CPUs it costs another
 * turn. */
static double next_step_us(const struct coll_team *t)
{
	return t->oversubscribed ? step_us(t) : 0.4 * step_us(t);
}

static double block_bytes(const struct coll_call *c)
{
	return (double)c->count * (double)coll_type_size(c->type);
}

/* How much slower a rank that touches `footprint` bytes gets on than alone on a CPU in its cache.
 * Ranks that share a CPU run one after the other, and each finds the others' lines in the cache. */
static double slowdown(const struct coll_team *t, double footprint)
{
	double share = t->oversubscribed ? MAX(1, t->crowd) : 1;
	double full = footprint * share / (t->tuning.cache_mib * 1048576);
	double beyond = full * full / (1 + full * full);

	return (1 + MAX(0, t->tuning.copy_gbs / t->tuning.stream_gbs - 1) * beyond) *
	       (share > 1 ? 1.3 * share : 1);
}

/* Bytes per microsecond that such a rank copies, and that it reduces (read or written). */
static double rate(const struct coll_team *t, double footprint)
{
	return t->tuning.copy_gbs * 1e3 / slowdown(t, footprint);
}

static double reduce_rate(const struct coll_team *t, double footprint)
{
	return t->tuning.reduce_gbs * 1e3 / slowdown(t, footprint);
}

static double barrier_cost(const struct coll_team *t, const struct coll_call *c)
{
	(void)c;
	return step_us(t);
}

static double allgather_packet_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks;

	/* In, and out of lines that a peer has just written, which is the slow part; the data goes
	 * with the flag when it fits its line. */
	return step_us(t) +
	       (b > CTRL_SLOT_INLINE ? 0.05 + 1.2 * b * (2 * n - 1) / rate(t, b * (3 * n - 1)) : 0);
}

static double allgather_push_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks;

	return step_us(t) + next_step_us(t) + b * n / rate(t, b * (n + 1));
}

static double allgather_pull_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks;

	/* Loads of lines that a peer has just written wait for it; stores do not. */
	return step_us(t) + next_step_us(t) + 1.4 * b * n / rate(t, 2 * b * n);
}

static double allgather_scratch_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks;

	return step_us(t) + b / (double)t->layout.bulk_bytes * next_step_us(t) + 0.06 +
	       1.25 * b * (2 * n - 1) / rate(t, b * (3 * n - 1));
}

static double allgather_read_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks, bytes = 2 * b * n;
	double share = t->oversubscribed ? MAX(1, t->crowd) : 1;

	/* A system call a peer, and the kernel looks up every page. */
	return step_us(t) + next_step_us(t) + (n - 1) * t->tuning.read_us * share +
	       b * n / (t->tuning.read_gbs * 1e3) * slowdown(t, bytes);
}

static double allreduce_packet_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks;

	return step_us(t) +
	       (b > CTRL_SLOT_INLINE ? 0.1 + 1.15 * b * (2 * n - 1) / reduce_rate(t, 2 * b * n)
				     : 0.02);
}

static double allreduce_twostep_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks;

	return step_us(t) + next_step_us(t) + 0.1 +
	       1.8 * b * 4 * (n - 1) / n / reduce_rate(t, 4 * b);
}

static double allreduce_direct_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c);

	return step_us(t) + next_step_us(t) + 0.05 + 2 * b / reduce_rate(t, 2 * b);
}

static double allreduce_scratch_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks, chunks = 1 + b / (double)t->layout.bulk_bytes;

	return step_us(t) + (2 * chunks - 1) * next_step_us(t) + 0.2 +
	       1.45 * b * (1 + 4 * (n - 1) / n) / reduce_rate(t, 5 * b);
}

static double reducescatter_packet_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks, more = b / (double)t->layout.stage_bytes;

	if (b <= CTRL_SLOT_INLINE)
		return step_us(t) + 0.02;
	return step_us(t) + more * next_step_us(t) + 0.1 +
	       1.4 * b * (2 * n - 1) / reduce_rate(t, 3 * b * n);
}

static double reducescatter_direct_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks;

	return step_us(t) + next_step_us(t) + 0.05 +
	       1.3 * b * (n + 1) / reduce_rate(t, b * (n + 1));
}

static double alltoall_packet_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks, more = b / (double)t->layout.stage_bytes;

	if (b <= CTRL_SLOT_INLINE)
		return step_us(t);
	return step_us(t) + more * next_step_us(t) + 0.05 +
	       1.2 * b * (2 * n - 1) / rate(t, b * (4 * n - 2));
}

static double alltoall_push_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks;

	return step_us(t) + next_step_us(t) + b * n / rate(t, 2 * b * n);
}

static double alltoall_pull_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks;

	return step_us(t) + next_step_us(t) + 1.4 * b * n / rate(t, 2 * b * n);
}

static double alltoall_read_cost(const struct coll_team *t, const struct coll_call *c)
{
	return allgather_read_cost(t, c); /* as many bytes from as many */
}

static double reduce_ring_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks;

	return step_us(t) + (b > CTRL_SLOT_INLINE ? 0.05 + 1.4 * b * n / rate(t, 0) : 0);
}

static double reduce_direct_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c);

	return step_us(t) + next_step_us(t) + 0.05 + 1.5 * b / reduce_rate(t, 2 * b);
}

/* Not compared with anything: how a message travels its two ranks find out. */
static double messages_cost(const struct coll_team *t, const struct coll_call *c)
{
	double b = block_bytes(c), n = t->nranks;

	return step_us(t) + (b > CTRL_SLOT_INLINE ? 0.05 + b * n / rate(t, b * n) : 0);
}

/* ---- The table ------------------------------------------------------------------------------ */

static size_t any_size(const struct coll_team *t)
{
	(void)t;
	return SIZE_MAX;
}

static size_t stage_size(const struct coll_team *t)
{
	return MAX(t->layout.stage_bytes, CTRL_SLOT_INLINE);
}

/* A slice is rounded up to whole lines. */
static size_t twostep_size(const struct coll_team *t)
{
	return (t->layout.stage_bytes - 64) * (size_t)t->nranks;
}

#define HOST(func, name, needs, most, cost, kernel) \
	{ \
		func, name, needs, most, cost, 0, kernel \
	}
#define GPU(func, name, needs, most, cost, kernel) \
	{ \
		func, name, needs, most, cost, GPU_ROW(kernel), NULL \
	}
#define BOTH_WINDOWS (COLL_NEED_SEND_WINDOW | COLL_NEED_RECV_WINDOW)

/* clang-format off */
static const struct coll_algo table[] = {
	HOST(symcclFuncBarrier, "barrier/flags", 0, any_size, barrier_cost, barrier_flags),
	HOST(symcclFuncAllGather, "allgather/packet", 0, stage_size, allgather_packet_cost, allgather_packet),
	HOST(symcclFuncAllGather, "allgather/push", COLL_NEED_RECV_WINDOW, any_size, allgather_push_cost, allgather_push),
	HOST(symcclFuncAllGather, "allgather/pull", COLL_NEED_SEND_WINDOW, any_size, allgather_pull_cost, allgather_pull),
	HOST(symcclFuncAllGather, "allgather/scratch", 0, any_size, allgather_scratch_cost, allgather_scratch),
	HOST(symcclFuncAllGather, "allgather/read", COLL_NEED_READABLE, any_size, allgather_read_cost, allgather_read),
	HOST(symcclFuncAllReduce, "allreduce/packet", 0, stage_size, allreduce_packet_cost, allreduce_packet),
	HOST(symcclFuncAllReduce, "allreduce/twostep", 0, twostep_size, allreduce_twostep_cost, allreduce_twostep),
	HOST(symcclFuncAllReduce, "allreduce/direct", BOTH_WINDOWS, any_size, allreduce_direct_cost, allreduce_direct),
	HOST(symcclFuncAllReduce, "allreduce/scratch", 0, any_size, allreduce_scratch_cost, allreduce_scratch),
	HOST(symcclFuncReduceScatter, "reducescatter/packet", 0, any_size, reducescatter_packet_cost, reducescatter_packet),
	HOST(symcclFuncReduceScatter, "reducescatter/direct", COLL_NEED_SEND_WINDOW, any_size, reducescatter_direct_cost, reducescatter_direct),
	HOST(symcclFuncAlltoAll, "alltoall/packet", 0, any_size, alltoall_packet_cost, alltoall_packet),
	HOST(symcclFuncAlltoAll, "alltoall/push", COLL_NEED_RECV_WINDOW, any_size, alltoall_push_cost, alltoall_push),
	HOST(symcclFuncAlltoAll, "alltoall/pull", COLL_NEED_SEND_WINDOW, any_size, alltoall_pull_cost, alltoall_pull),
	HOST(symcclFuncAlltoAll, "alltoall/read", COLL_NEED_READABLE, any_size, alltoall_read_cost, alltoall_read),
	HOST(symcclFuncReduce, "reduce/ring", COLL_ONE_WORKER, any_size, reduce_ring_cost, reduce_ring),
	HOST(symcclFuncReduce, "reduce/direct", COLL_NEED_SEND_WINDOW, any_size, reduce_direct_cost, reduce_direct),
	HOST(symcclFuncBroadcast, "broadcast/ring", COLL_ONE_WORKER, any_size, messages_cost, rooted_ring),
	HOST(symcclFuncGather, "gather/ring", COLL_ONE_WORKER, any_size, messages_cost, rooted_ring),
	HOST(symcclFuncScatter, "scatter/ring", COLL_ONE_WORKER, any_size, messages_cost, rooted_ring),
	HOST(symcclFuncSendRecv, "sendrecv/ring", COLL_ONE_WORKER, any_size, messages_cost, messages_listed),
	HOST(symcclFuncAlltoAllv, "alltoallv/ring", COLL_ONE_WORKER, any_size, messages_cost, messages_listed),
	HOST(symcclFuncPutSignal, "putsignal/store", COLL_ONE_WORKER, any_size, messages_cost, put_signal),
	HOST(symcclFuncSignal, "signal/store", COLL_ONE_WORKER, any_size, messages_cost, put_signal),
	HOST(symcclFuncWaitSignal, "waitsignal/flags", COLL_ONE_WORKER, any_size, messages_cost, wait_signal),

	GPU(symcclFuncBarrier, "barrier/flags", 0, any_size, gpu_barrier_cost, CUDA_BARRIER),
	GPU(symcclFuncAllGather, "allgather/packet", 0, gpu_packet_most, gpu_gather_packet_cost, CUDA_ALLGATHER_PACKET),
	GPU(symcclFuncAllGather, "allgather/push", COLL_NEED_RECV_WINDOW, any_size, gpu_gather_direct_cost, CUDA_ALLGATHER_DIRECT),
	GPU(symcclFuncAllGather, "allgather/staged", 0, any_size, gpu_gather_staged_cost, CUDA_ALLGATHER_STAGED),
	GPU(symcclFuncAllGather, "allgather/multimem", COLL_NEED_RECV_WINDOW | COLL_NEED_MULTICAST, any_size, gpu_gather_multimem_cost, CUDA_ALLGATHER_MULTIMEM),
	GPU(symcclFuncAllGather, "allgather/copy", COLL_NEED_RECV_WINDOW, any_size, gpu_gather_copy_cost, CUDA_COPY_ENGINE),
	GPU(symcclFuncAllReduce, "allreduce/packet", 0, gpu_packet_most, gpu_oneshot_cost, CUDA_ALLREDUCE_ONESHOT),
	GPU(symcclFuncAllReduce, "allreduce/twostep", 0, gpu_twostep_most, gpu_twostep_cost, CUDA_ALLREDUCE_TWOSTEP),
	GPU(symcclFuncAllReduce, "allreduce/direct", BOTH_WINDOWS, any_size, gpu_allreduce_direct_cost, CUDA_ALLREDUCE_DIRECT),
	GPU(symcclFuncAllReduce, "allreduce/load", BOTH_WINDOWS | COLL_NEED_APART, any_size, gpu_allreduce_load_cost, CUDA_REDUCESCATTER_DIRECT),
	GPU(symcclFuncAllReduce, "allreduce/staged", 0, any_size, gpu_allreduce_staged_cost, CUDA_ALLREDUCE_STAGED),
	GPU(symcclFuncAllReduce, "allreduce/multimem", BOTH_WINDOWS | COLL_NEED_MULTICAST, any_size, gpu_allreduce_multimem_cost, CUDA_ALLREDUCE_MULTIMEM),
	GPU(symcclFuncReduceScatter, "reducescatter/packet", 0, gpu_packet_most, gpu_gather_packet_cost, CUDA_REDUCESCATTER_PACKET),
	GPU(symcclFuncReduceScatter, "reducescatter/direct", COLL_NEED_SEND_WINDOW, any_size, gpu_gather_direct_cost, CUDA_REDUCESCATTER_DIRECT),
	GPU(symcclFuncReduceScatter, "reducescatter/staged", 0, any_size, gpu_gather_staged_cost, CUDA_REDUCESCATTER_STAGED),
	GPU(symcclFuncReduceScatter, "reducescatter/multimem", COLL_NEED_SEND_WINDOW | COLL_NEED_MULTICAST, any_size, gpu_gather_multimem_cost, CUDA_REDUCESCATTER_MULTIMEM),
	GPU(symcclFuncBroadcast, "broadcast/packet", 0, any_size, gpu_rounds_cost, CUDA_MOVE_PACKET),
	GPU(symcclFuncBroadcast, "broadcast/push", COLL_NEED_RECV_WINDOW, any_size, gpu_push_cost, CUDA_PUSH_DIRECT),
	GPU(symcclFuncReduce, "reduce/packet", 0, any_size, gpu_rounds_cost, CUDA_REDUCESCATTER_PACKET),
	GPU(symcclFuncReduce, "reduce/direct", COLL_NEED_SEND_WINDOW, any_size, gpu_push_cost, CUDA_REDUCESCATTER_DIRECT),
	GPU(symcclFuncAlltoAll, "alltoall/packet", 0, any_size, gpu_rounds_cost, CUDA_MOVE_PACKET),
	GPU(symcclFuncAlltoAll, "alltoall/push", COLL_NEED_RECV_WINDOW | COLL_NEED_APART, any_size, gpu_push_cost, CUDA_PUSH_DIRECT),
	GPU(symcclFuncGather, "gather/packet", 0, any_size, gpu_rounds_cost, CUDA_MOVE_PACKET),
	GPU(symcclFuncScatter, "scatter/packet", 0, any_size, gpu_rounds_cost, CUDA_MOVE_PACKET),
	GPU(symcclFuncGather, "gather/ring", 0, any_size, gpu_ring_cost, CUDA_MESSAGES),
	GPU(symcclFuncScatter, "scatter/ring", 0, any_size, gpu_ring_cost, CUDA_MESSAGES),
	GPU(symcclFuncAlltoAllv, "alltoallv/ring", 0, any_size, gpu_ring_cost, CUDA_MESSAGES),
	GPU(symcclFuncSendRecv, "sendrecv/ring", 0, any_size, gpu_ring_cost, CUDA_MESSAGES),
	GPU(symcclFuncPutSignal, "putsignal/store", 0, any_size, gpu_ring_cost, CUDA_SIGNAL),
	GPU(symcclFuncSignal, "signal/store", 0, any_size, gpu_ring_cost, CUDA_SIGNAL),
	GPU(symcclFuncWaitSignal, "waitsignal/flags", 0, any_size, gpu_ring_cost, CUDA_WAITS),
};
/* clang-format on */

const struct coll_algo *coll_algos(size_t *n)
{
	*n = ARRAY_LEN(table);
	return table;
}

/* ---- Choosing -------------------------------------------------------------------------------- */

/* Why a row cannot take the call; NULL when it can. */
static const char *refusal(
	const struct coll_algo *a, const struct coll_team *t, const struct coll_call *c)
{
	const struct coll_buf *send =
		c->func == symcclFuncAllGather && coll_in_place(t, c) ? &c->recv : &c->send;
	const char *why;

	if ((a->needs & COLL_NEED_SEND_WINDOW) && !(send->peers && send->symmetric))
		return "the send buffer is no symmetric window";
	if ((a->needs & COLL_NEED_RECV_WINDOW) && !(c->recv.peers && c->recv.symmetric))
		return "the receive buffer is no symmetric window";
	if ((a->needs & COLL_NEED_READABLE) && !t->readable)
		return "a process may not read another's memory";
	if ((a->needs & COLL_NEED_APART) && coll_in_place(t, c))
		return "the call is in place";
	if ((a->needs & COLL_NEED_MULTICAST) &&
		(((a->needs & COLL_NEED_SEND_WINDOW) && send->mc == NULL) ||
			((a->needs & COLL_NEED_RECV_WINDOW) && c->recv.mc == NULL)))
		return "the windows have no multicast address (SYMCCL_MC_ENABLE=1 on all ranks, "
		       "each on a GPU of its own that can)";
	if ((a->needs & COLL_NEED_MULTICAST) && (why = gpu_multimem_refusal(c)) != NULL)
		return why;
	if (block_bytes(c) > (double)a->max_bytes(t))
		return "the call is too large for it";
	return NULL;
}

/* Does the comma separated list name the row? */
static int listed(const char *list, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = list; (p = strstr(p, name)) != NULL; p += n)
		if ((p == list || p[-1] == ',') && (p[n] == '\0' || p[n] == ','))
			return 1;
	return 0;
}

static uint32_t mix(uint32_t h, uint64_t v)
{
	h = (h ^ (uint32_t)v) * 0x9e3779b1u;
	h = (h ^ (uint32_t)(v >> 32)) * 0x85ebca6bu;
	return h ^ h >> 15;
}

/* Equal on all ranks that make the same call. Of the buffers only what the row relies on counts:
 * where the caller promised symmetric windows, and where nobody else looks the ranks may differ. */
static uint32_t plan_hash(const struct coll_team *t, const struct coll_call *c, size_t row)
{
	const struct coll_buf *send =
		c->func == symcclFuncAllGather && coll_in_place(t, c) ? &c->recv : &c->send;
	uint32_t h = mix(0x73796d63, (uint64_t)c->func << 48 | (uint64_t)row << 32 |
					     (uint64_t)c->type << 16 | (uint64_t)c->op);

	if (coll_is_listed(c->func)) /* each message speaks for itself */
		return mix(0x73796d63, (uint64_t)c->func) | 1;
	h = mix(h, c->count);
	h = mix(h, (uint64_t)(int64_t)c->root << 1 | (uint64_t)(c->has_factor != 0));
	if (table[row].needs & COLL_NEED_SEND_WINDOW)
		h = mix(mix(h, send->window), send->offset);
	if (table[row].needs & COLL_NEED_RECV_WINDOW)
		h = mix(mix(h, (uint64_t)c->recv.window << 32), c->recv.offset);
	return h == 0 || h == SLOT_HASH_GOODBYE ? 1 : h;
}

symcclResult_t coll_plan(
	const struct coll_team *t, const struct coll_call *c, struct coll_plan *plan)
{
	const char *why, *forced_why = NULL, *forced_name = NULL;
	size_t best = ARRAY_LEN(table);
	int best_forced = 0;
	double best_us = 0;

	for (size_t i = 0; i < ARRAY_LEN(table); i++) {
		const struct coll_algo *a = &table[i];
		int forced;
		double us;

		if (a->func != c->func || (a->gpu != 0) != (t->gpu != NULL))
			continue;
		forced = t->tuning.algo[0] && listed(t->tuning.algo, a->name);
		why = refusal(a, t, c);
		if (why != NULL) {
			log_trace(LOG_COLL, "not %s: %s", a->name, why);
			if (forced) {
				forced_why = why;
				forced_name = a->name;
			}
			continue;
		}
		us = a->cost(t, c);
		if (best == ARRAY_LEN(table) || forced > best_forced ||
			(forced == best_forced && us < best_us)) {
			best = i;
			best_us = us;
			best_forced = forced;
		}
	}
	if (best == ARRAY_LEN(table))
		return fail(symcclInvalidUsage, "no algorithm can take this call%s",
			t->gpu ? " on GPUs" : "");
	/* A forced row is for the calls that it can take. */
	if (forced_why != NULL && !best_forced)
		log_info(LOG_COLL, "SYMCCL_ALGO asks for %s, but %s: taking %s", forced_name,
			forced_why, table[best].name);
	plan->algo = &table[best];
	plan->nctas = table[best].needs & COLL_ONE_WORKER ? 1 : t->nctas;
	if (t->gpu)
		plan->nctas = gpu_ctas(t, c, (enum cuda_algo)(table[best].gpu - 1));
	plan->cost_us = best_us;
	plan->hash = plan_hash(t, c, best);
	return symcclSuccess;
}

/* ---- Running ----------------------------------------------------------------------------------
 */

symcclResult_t coll_run_host(
	const struct coll_team *t, const struct coll_call *c, const struct coll_plan *plan)
{
	/* Nothing to move on any rank, and nothing to wait for. */
	if (c->count == 0 && c->func != symcclFuncBarrier && !coll_is_listed(c->func))
		return symcclSuccess;
	/* Workers take their turns: worker b meets only worker b of the peers, in the same order.
	 */
	for (int cta = 0; cta < plan->nctas; cta++)
		TRY(plan->algo->host(t, c, plan->hash, cta, plan->nctas));
	return symcclSuccess;
}
