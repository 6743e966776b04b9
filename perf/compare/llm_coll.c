/*
 * The all-reduce over shared memory that servers of large language models use between CPU sockets,
 * for host.sh: llm_coll design ranks back-to-back-up-to size...
 *
 * Two designs, written from descriptions of them, one thread a rank, fp32 sums in place:
 *   staged  as vLLM's (csrc/cpu/shm.cpp): two stages of 1 MiB a rank, filled with streaming stores,
 *           a full fence, a stamp; each rank adds the peers' stages to its own input.
 *   copied  as DeepSpeed's and SGLang's (csrc/cpu/comm/shm.cpp): below 1 MiB everybody sums all the
 *           copies, from there on its own part, which the others copy out; pieces of 32 MiB.
 * Both spin without a limit, as these do.
 */
#define _GNU_SOURCE
#include "peer_fork.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define STAGE ((size_t)1 << 20)
#define PIECE ((size_t)32 << 20)

struct stage {
	_Alignas(128) _Atomic uint32_t stamp;
	_Alignas(4096) char half[2][PIECE];
};

static struct peer me;
static struct stage *stages; /* one a rank */
static uint32_t now;

static void stamp(void)
{
	now++;
	atomic_thread_fence(memory_order_seq_cst);
	atomic_store_explicit(&stages[me.rank].stamp, now, memory_order_release);
}

static void await(int rank)
{
	bench_wait(&stages[rank].stamp, now, 0);
}

static void stream(char *dst, const char *src, size_t n)
{
	size_t i = 0;
#if defined(__AVX512F__)
	for (; i + 64 <= n; i += 64)
		_mm512_stream_si512((void *)(dst + i), _mm512_loadu_si512(src + i));
#elif defined(__SSE2__)
	for (; i + 16 <= n; i += 16)
		_mm_stream_si128((void *)(dst + i), _mm_loadu_si128((const void *)(src + i)));
#endif
	memcpy(dst + i, src + i, n - i);
}

static void add(float *restrict to, const float *restrict from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] += from[i];
}

static void add_two(float *restrict to, const float *restrict a, const float *restrict b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = a[i] + b[i];
}

/* ---- staged ---------------------------------------------------------------------------------- */

static void staged(int count)
{
	size_t bytes = (size_t)count * 4;

	for (size_t at = 0; at < bytes; at += STAGE) {
		size_t n = bytes - at < STAGE ? bytes - at : STAGE;
		int half = (now + 1) & 1;

		/* The stamps of the piece before say that all have read the one before that. */
		stream(stages[me.rank].half[half], me.send + at, n);
		stamp();
		for (int k = 1; k < me.nranks; k++) {
			int peer = (me.rank + k) % me.nranks;

			await(peer);
			add((float *)(me.send + at), (const float *)stages[peer].half[half], n / 4);
		}
	}
}

/* ---- copied ---------------------------------------------------------------------------------- */

static uint32_t pieces;

/* The sum over ranks, in order, of n bytes from `at` on of what each has copied. */
static void sum_copies(char *to, int half, size_t at, size_t n)
{
	const char *first = stages[0].half[half] + at;

	if (me.nranks == 1)
		memmove(to, first, n);
	else
		add_two((float *)to, (const float *)first,
			(const float *)(stages[1].half[half] + at), n / 4);
	for (int r = 2; r < me.nranks; r++)
		add((float *)to, (const float *)(stages[r].half[half] + at), n / 4);
}

static void await_all(void)
{
	for (int k = 1; k < me.nranks; k++)
		await((me.rank + k) % me.nranks);
}

static void copied_small(size_t bytes)
{
	int half = ++pieces & 1;

	memcpy(stages[me.rank].half[half], me.send, bytes);
	stamp();
	await_all();
	sum_copies(me.send, half, 0, bytes);
}

static void part(size_t bytes, int rank, size_t *at, size_t *n)
{
	size_t each = bytes / 4 / (size_t)me.nranks * 4;

	*at = each * (size_t)rank;
	*n = rank == me.nranks - 1 ? bytes - *at : each;
}

static void copied_large(char *data, size_t bytes)
{
	int half = ++pieces & 1;
	size_t at, n;
	float *own;

	memcpy(stages[me.rank].half[half], data, bytes);
	stamp();
	await_all();
	part(bytes, me.rank, &at, &n);
	own = (float *)(stages[me.rank].half[half] + at);
	for (int k = 1; k < me.nranks; k++)
		add(own, (const float *)(stages[(me.rank + k) % me.nranks].half[half] + at), n / 4);
	stamp();
	for (int k = 0; k < me.nranks; k++) {
		int peer = (me.rank + k) % me.nranks;

		if (k)
			await(peer);
		part(bytes, peer, &at, &n);
		memcpy(data + at, stages[peer].half[half] + at, n);
	}
}

static void copied(int count)
{
	size_t bytes = (size_t)count * 4;

	if (bytes < STAGE) {
		copied_small(bytes);
		return;
	}
	for (size_t at = 0; at < bytes; at += PIECE)
		copied_large(me.send + at, bytes - at < PIECE ? bytes - at : PIECE);
}

/* ---------------------------------------------------------------------------------------------- */

static const struct peer_op designs[] = {{"staged", staged, 0, 0}, {"copied", copied, 0, 0}};
static const struct peer_op *design;
static int nsizes;
static char **args;

/* Sums that fp32 holds exactly. */
static int check(int count)
{
	float *v = (float *)me.send, ranks = (float)me.nranks;

	for (int i = 0; i < count; i++)
		v[i] = (float)(i % 1000 + me.rank);
	design->call(count);
	for (int i = 0; i < count; i++)
		if (v[i] != ranks * (float)(i % 1000) + ranks * (ranks - 1) / 2)
			return 1;
	return 0;
}

static int body(struct peer *p)
{
	int wrong;

	memset(stages[p->rank].half, 0, sizeof(stages[p->rank].half));
	if (peer_main(p, design, strtoul(args[0], NULL, 10), nsizes, args + 1))
		return 1;
	wrong = 0;
	for (int i = 0; i < nsizes; i++)
		wrong |= check((int)(strtoul(args[i + 1], NULL, 10) / 4));
	if (wrong)
		fprintf(stderr, "llm_coll %s: rank %d has a wrong sum\n", design->name, p->rank);
	return wrong;
}

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 4 && i < sizeof(designs) / sizeof(designs[0]); i++)
		if (!strcmp(argv[1], designs[i].name))
			design = &designs[i];
	me.nranks = argc > 4 ? atoi(argv[2]) : 0;
	if (!design || me.nranks < 1 || me.nranks > BENCH_TEAM_MAX) {
		fprintf(stderr, "usage: llm_coll staged|copied ranks back_to_back_max size...\n");
		return 2;
	}
	nsizes = argc - 4;
	args = argv + 3;
	stages = peer_shared(sizeof(*stages) * (size_t)me.nranks);
	return !stages || peer_fork(&me, body);
}
