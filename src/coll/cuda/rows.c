/*
 * What the GPU's rows of the algorithm table need: how much they take, what they cost, how many
 * CTAs. Constants measured on H200s (perf/results): ranks that share a GPU, and ranks over NVLink.
 */
#include "coll/cuda/rows.h"
#include "util.h"

#define CTA_DIRECT_BYTES ((size_t)32 << 10) /* below this a CTA more does not pay */
#define DIRECT_CTAS_LEAST 8
#define PACKET_CTAS_MOST 64
#define STAGED_BYTES ((size_t)64 << 10) /* most of a stage of a staged CTA, from all peers */

static double bytes_of(const struct coll_call *c)
{
	return (double)c->count * (double)coll_type_size(c->type);
}

/* Bytes per microsecond of one rank: over a link, or its share of one GPU's memory. */
static double peer_rate(const struct coll_team *t)
{
	return t->gpu->shared ? 1.6e6 / t->gpu->ranks_per_gpu : 3.4e5;
}

size_t gpu_packet_most(const struct coll_team *t)
{
	return t->gpu->slots / (size_t)t->nranks * 8;
}

size_t gpu_twostep_most(const struct coll_team *t)
{
	return (t->gpu->slots / 2 - (size_t)t->nranks) * 8;
}

size_t gpu_round_most(const struct coll_team *t, symcclFunc_t func)
{
	size_t n = (size_t)t->nranks, packs = t->gpu->slots - n;

	if (func != symcclFuncBroadcast && func != symcclFuncScatter)
		packs /= n;
	return packs * 8 / 128 * 128;
}

double gpu_barrier_cost(const struct coll_team *t, const struct coll_call *c)
{
	(void)c;
	return 2.1 + 0.2 * t->nranks;
}

/* Packets double the bytes, and every rank's go to all. */
double gpu_oneshot_cost(const struct coll_team *t, const struct coll_call *c)
{
	double factor = t->gpu->shared ? 3 : 2;

	return 1.8 + 0.08 * t->nranks + factor * bytes_of(c) * (t->nranks - 1) / peer_rate(t);
}

double gpu_twostep_cost(const struct coll_team *t, const struct coll_call *c)
{
	double factor = t->gpu->shared ? 2.5 : 4;

	return 2.4 + 0.15 * t->nranks +
	       factor * bytes_of(c) * (t->nranks - 1) / t->nranks / peer_rate(t);
}

double gpu_allreduce_direct_cost(const struct coll_team *t, const struct coll_call *c)
{
	double moved = 2 * bytes_of(c) * (t->nranks - 1) / t->nranks;

	return (t->gpu->shared ? 3.3 : 4.6) + 0.5 * t->nranks + moved / peer_rate(t);
}

/* Everybody loads all: of two ranks no more goes over the link than in two steps, and nothing has
 * to arrive before the end. */
double gpu_allreduce_load_cost(const struct coll_team *t, const struct coll_call *c)
{
	double factor = t->gpu->shared ? (t->nranks + 1) / 2.0 : 1.04 * (t->nranks - 1);

	return (t->gpu->shared ? 2.6 : 3.6) + 0.4 * t->nranks + factor * bytes_of(c) / peer_rate(t);
}

double gpu_gather_packet_cost(const struct coll_team *t, const struct coll_call *c)
{
	return 1.8 + 0.08 * t->nranks + 2 * bytes_of(c) * (t->nranks - 1) / peer_rate(t);
}

double gpu_gather_direct_cost(const struct coll_team *t, const struct coll_call *c)
{
	return (t->gpu->shared ? 2.9 : 3.9) + 0.4 * t->nranks +
	       bytes_of(c) * (t->nranks - 1) / peer_rate(t);
}

/* As on windows, with steps that wait for each other, and through the own memory once more, which
 * a link hides. */
double gpu_allreduce_staged_cost(const struct coll_team *t, const struct coll_call *c)
{
	double moved = 2 * bytes_of(c) * (t->nranks - 1) / t->nranks;

	return (t->gpu->shared ? 8 : 10) + 0.5 * t->nranks +
	       (t->gpu->shared ? 1.45 : 1) * moved / peer_rate(t);
}

double gpu_gather_staged_cost(const struct coll_team *t, const struct coll_call *c)
{
	double moved = bytes_of(c) * (t->nranks - 1);

	return (t->gpu->shared ? 4.5 : 7) + 0.4 * t->nranks +
	       (t->gpu->shared ? 1.9 : 1) * moved / peer_rate(t);
}

/* Packets in rounds; on the rank that has most to do it is all-gather's traffic. */
double gpu_rounds_cost(const struct coll_team *t, const struct coll_call *c)
{
	double factor = t->gpu->shared ? 2.5 : 3;

	return 2.2 + 0.1 * t->nranks + factor * bytes_of(c) * (t->nranks - 1) / peer_rate(t) +
	       2 * (double)((size_t)bytes_of(c) / gpu_round_most(t, c->func));
}

/* Blocks stored into windows. */
double gpu_push_cost(const struct coll_team *t, const struct coll_call *c)
{
	return (t->gpu->shared ? 3.5 : 5.7) + 0.4 * t->nranks +
	       bytes_of(c) * (t->nranks - 1) / peer_rate(t);
}

/* Messages, stored where they go if that is a window. */
double gpu_ring_cost(const struct coll_team *t, const struct coll_call *c)
{
	return 8 + 0.4 * t->nranks + 1.2 * bytes_of(c) * (t->nranks - 1) / peer_rate(t);
}

/* Measured in graphs, over a link: 27 us before all has begun, then no faster than stores. So this
 * is for who asks for it, having something better to do with the multiprocessors. */
double gpu_gather_copy_cost(const struct coll_team *t, const struct coll_call *c)
{
	return 25 + 1.5 * t->nranks + bytes_of(c) * (t->nranks - 1) / peer_rate(t);
}

/* By multicast: estimates, no machine at hand may run them. All-reduce's bytes pass a rank's link
 * once, and a part once more. */
double gpu_allreduce_multimem_cost(const struct coll_team *t, const struct coll_call *c)
{
	return 4 + 0.4 * t->nranks + bytes_of(c) * (t->nranks + 1) / t->nranks / peer_rate(t);
}

/* Every rank still hears, or is read, as much as without. */
double gpu_gather_multimem_cost(const struct coll_team *t, const struct coll_call *c)
{
	return 3.2 + 0.4 * t->nranks + bytes_of(c) * (t->nranks - 1) / peer_rate(t);
}

const char *gpu_multimem_refusal(const struct coll_call *c)
{
	if (!coll_reduces(c->func))
		return NULL;
	if (c->op != symcclSum || c->has_factor)
		return "multicast computes plain sums only";
	switch (c->type) {
	case symcclInt32:
	case symcclUint32:
	case symcclInt64:
	case symcclUint64:
	case symcclFloat16:
	case symcclBfloat16:
	case symcclFloat32:
		return NULL;
	default:
		return "multicast cannot sum this type";
	}
}

/* Packets that a rank sends to each peer in one step. */
static size_t sent_packs(const struct coll_team *t, const struct coll_call *c, enum cuda_algo algo)
{
	size_t packs = (c->count * coll_type_size(c->type) + 7) / 8;

	if (algo == CUDA_ALLREDUCE_TWOSTEP)
		packs = packs / (size_t)t->nranks + 1;
	return algo == CUDA_BARRIER ? (size_t)t->nranks : packs;
}

/* The same on every rank: CTA b of one meets CTA b of the others. */
int gpu_ctas(const struct coll_team *t, const struct coll_call *c, enum cuda_algo algo)
{
	size_t bytes = c->count * coll_type_size(c->type), n;
	size_t ranks = (size_t)t->nranks;

	switch (algo) {
	case CUDA_BARRIER:
	case CUDA_COPY_ENGINE:
		return 1;
	case CUDA_ALLREDUCE_DIRECT:
	case CUDA_ALLREDUCE_STAGED:
	case CUDA_ALLREDUCE_MULTIMEM:
		n = bytes / CTA_DIRECT_BYTES;
		break;
	case CUDA_ALLGATHER_DIRECT:
	case CUDA_ALLGATHER_STAGED:
	case CUDA_REDUCESCATTER_DIRECT:
	case CUDA_REDUCESCATTER_STAGED:
	case CUDA_PUSH_DIRECT:
	case CUDA_ALLGATHER_MULTIMEM:
	case CUDA_REDUCESCATTER_MULTIMEM:
		n = bytes * ranks / CTA_DIRECT_BYTES;
		break;
	default:
		/* Many small CTAs: a warp's packets leave as soon as it runs. More than these only
		 * when they are full. */
		n = sent_packs(t, c, algo);
		if (n > PACKET_CTAS_MOST * CUDA_THREADS_MAX)
			return (int)MIN(n / CUDA_THREADS_MAX, (size_t)t->gpu->ctas);
		n = (n + 31) / 32;
		return (int)MIN(MAX(n, 1), MIN(PACKET_CTAS_MOST, (size_t)t->gpu->ctas));
	}
	return (int)MIN(MAX(n, DIRECT_CTAS_LEAST), (size_t)t->gpu->ctas);
}

size_t gpu_staged_part(
	const struct coll_team *t, const struct coll_call *c, enum cuda_algo algo, int nctas)
{
	size_t ranks = (size_t)t->nranks, ctas = (size_t)nctas;
	size_t room =
		t->gpu->scratch / cuda_staged_bytes(algo, (uint32_t)ranks, (uint32_t)nctas, 1);
	size_t most = MIN(STAGED_BYTES / MAX(ranks - 1, 1), room) / 128 * 128;
	size_t mine = c->count * coll_type_size(c->type) / ctas, chunks;

	/* Of this CTA, each rank's; in chunks that come out even. */
	if (algo == CUDA_ALLREDUCE_STAGED)
		mine /= ranks;
	chunks = mine / most + 1;
	return MIN(most, align_up(mine / chunks + 1, 128));
}

/* A CTA no larger than its packets: its barriers and its start cost by the warp. */
int gpu_threads(
	const struct coll_team *t, const struct coll_call *c, enum cuda_algo algo, int nctas)
{
	size_t n = (size_t)nctas, threads;

	if (algo == CUDA_ALLREDUCE_DIRECT || algo == CUDA_ALLGATHER_DIRECT ||
		algo == CUDA_REDUCESCATTER_DIRECT || algo == CUDA_PUSH_DIRECT ||
		gpu_is_staged(algo) || algo >= CUDA_ALLREDUCE_MULTIMEM)
		return CUDA_THREADS_MAX;
	threads = align_up((sent_packs(t, c, algo) + n - 1) / n, 32);
	return (int)MIN(MAX(threads, 32), CUDA_THREADS_MAX);
}
