/*
 * All-to-all of token blocks, as experts of a mixture exchange them: every rank has a block of
 * tokens for each rank, of any number of them, and puts it into that rank's window. A signal from
 * each source says that its block is there. Blocks stay where they are put, [source][token].
 *
 *	device_all_to_all_gpu [-n ranks (2)] [-c]
 */
#include "device_common.cuh"

enum { THREADS = 512, TOKENS_MOST = 512, SLICES_MOST = 16 };
#define TOKEN_BYTES ((size_t)7168 * 2) /* bf16 */

/* The window: how many tokens each source sends, then what it is sent, then what it sends. */
#define COUNTS 0
#define RECV ((size_t)4096)
#define SEND (RECV + nranks * TOKENS_MOST * TOKEN_BYTES)
#define BLOCK(rank) ((rank)*TOKENS_MOST * TOKEN_BYTES)

struct job {
	symcclDevWindow_t w;
	size_t recv, send;
	const int *count; /* tokens for each rank */
	int slices;       /* CTAs that share a block */
	symcclResult_t *result;
};

/* CTA (p, i): slice i of the block for rank p; then wait for slice i of the block from rank p. */
__global__ void __launch_bounds__(THREADS)
	exchange(const __grid_constant__ symcclDevComm_t comm, const __grid_constant__ job j)
{
	const symcclDevTeam_t team = symcclDevTeamWorld(&comm);
	const symcclDevCtx_t x = symcclDevCtx(&comm, symcclDevCta(), 0);
	/* Everybody begins with another peer. */
	const int to = (comm.rank + 1 + blockIdx.x / j.slices) % comm.nranks;
	const int slice = blockIdx.x % j.slices;
	const size_t bytes = j.count[to] * TOKEN_BYTES;
	const size_t part = (bytes / 16 + j.slices - 1) / j.slices * 16, at = part * slice;
	symcclDevSession_t s;
	symcclResult_t e;

	/* A peer that has come here is done with what it was sent the last time. */
	symcclDevSessionOpen(&s, x, team, blockIdx.x);
	e = symcclDevBarrier(&s);
	/* One number per source travels beside the data, on the same signal. */
	if (e == symcclSuccess && slice == 0)
		e = symcclDevPutValue(
			x, team, to, &j.w, COUNTS + 8 * comm.rank, j.count[to], -1, 0);
	if (e == symcclSuccess)
		e = symcclDevPut(x, team, to, &j.w, j.recv + BLOCK(comm.rank) + at, &j.w,
			j.send + BLOCK(to) + at, at < bytes ? min(part, bytes - at) : 0,
			symcclDevNotify(comm.rank, 1, -1));
	/* The first slice's CTA answers for the block: here its tokens would be used. */
	if (e == symcclSuccess && slice == 0)
		e = symcclDevSignalWaitMore(x, to, j.slices);
	symcclDevSessionClose(&s);
	if (e != symcclSuccess)
		*j.result = e;
}

/* ---- Running ----------------------------------------------------------------------------------
 */

static int *counts[RANKS_MOST];

static int count_of(int from, int to, int round)
{
	return (int)(mix((uint32_t)(from * RANKS_MOST + to), (uint32_t)round) % (TOKENS_MOST + 1));
}
static uint32_t word_of(int from, int to, int round, size_t i)
{
	return mix((uint32_t)((round * RANKS_MOST + from) * RANKS_MOST + to), (uint32_t)i);
}

static void once(struct side *s, int slices)
{
	struct job j = {s->w, RECV, SEND, counts[s - side], slices, s->result};

	exchange<<<nranks * slices, THREADS, 0, s->stream>>>(s->dev, j);
	CUDA(cudaGetLastError());
}

static void set_counts(const struct side *s, int round, int all)
{
	int n[RANKS_MOST];

	for (int q = 0; q < nranks; q++)
		n[q] = all >= 0 ? all : count_of(s->rank, q, round);
	CUDA(cudaMemcpy(counts[s - side], n, sizeof(n), cudaMemcpyDefault));
}

static void check(uint32_t *host, int round, int slices)
{
	for (int i = 0; i < nlocal; i++) {
		struct side *s = &side[i];

		use(s);
		set_counts(s, round, -1);
		CUDA(cudaMemset(s->memory, 0xff, SEND));
		for (int q = 0; q < nranks; q++) {
			size_t n = count_of(s->rank, q, round) * TOKEN_BYTES;

			for (size_t k = 0; k < n / 4; k++)
				host[k] = word_of(s->rank, q, round, k);
			CUDA(cudaMemcpy(s->memory + SEND + BLOCK(q), host, n, cudaMemcpyDefault));
		}
		CUDA(cudaDeviceSynchronize());
	}
	meet();
	for (int i = 0; i < nlocal; i++) {
		use(&side[i]);
		once(&side[i], slices);
	}
	finish();
	for (int i = 0; i < nlocal; i++) {
		struct side *s = &side[i];
		uint64_t said[RANKS_MOST];

		use(s);
		CUDA(cudaMemcpy(said, s->memory + COUNTS, sizeof(said), cudaMemcpyDefault));
		for (int q = 0; q < nranks; q++) {
			size_t n = count_of(q, s->rank, round) * TOKEN_BYTES / 4;

			CUDA(cudaMemcpy(host, s->memory + RECV + BLOCK(q),
				TOKENS_MOST * TOKEN_BYTES, cudaMemcpyDefault));
			for (size_t k = 0; k < TOKENS_MOST * TOKEN_BYTES / 4; k++) {
				uint32_t want = k < n ? word_of(q, s->rank, round, k) : ~0u;

				if (host[k] == want && said[q] == n / (TOKEN_BYTES / 4))
					continue;
				fprintf(stderr,
					"round %d, rank %d from rank %d: %llu tokens, word %zu is "
					"%x, not %x\n",
					round, s->rank, q, (unsigned long long)said[q], k, host[k],
					want);
				exit(1);
			}
		}
	}
}

int main(int argc, char **argv)
{
	symcclDevCommRequirements_t reqs = SYMCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
	uint32_t *host;
	int slices;

	start(argc, argv);
	slices = std::min(ctas / nranks, (int)SLICES_MOST);
	reqs.sessions = nranks * slices;
	reqs.signals = nranks; /* one a source */
	resources(SEND + nranks * TOKENS_MOST * TOKEN_BYTES, &reqs);
	CUDA(cudaMallocHost(&host, TOKENS_MOST * TOKEN_BYTES));
	for (int i = 0; i < nlocal; i++) {
		use(&side[i]);
		CUDA(cudaMalloc(&counts[i], RANKS_MOST * sizeof(int)));
	}
	for (int round = 0; round < 3; round++)
		check(host, round, round == 0 ? 1 : slices);
	if (side[0].rank == 0)
		printf("%d ranks: values right\ntokens a pair      us    GB/s a rank\n", nranks);
	for (int tokens = 1; tokens <= TOKENS_MOST && !untimed; tokens *= 8) {
		double us;
		size_t bytes = tokens * TOKEN_BYTES * nranks;

		for (int i = 0; i < nlocal; i++) {
			use(&side[i]);
			set_counts(&side[i], 0, tokens);
		}
		us = timed([&](struct side *s) { once(s, slices); });
		if (side[0].rank == 0)
			printf("%13d  %6.2f  %13.1f\n", tokens, us, bytes / us / 1e3);
	}
	stop();
	return 0;
}
