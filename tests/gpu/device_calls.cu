/*
 * The device API's calls that the examples leave out, on GPUs: put, get, signals and counters by
 * threads, warps and CTAs; every reduction against symcclAllReduce, bit for bit; a wait that nobody
 * ends.
 *
 *	device_calls_gpu [-n ranks (2)] [-c]
 */
#include "../../examples/device_common.cuh"

enum { UNITS_MOST = 64, PART = 8192, WORDS = 100, ROUNDS = 10 };

/* A unit's part of the window: what it puts, what it is put, what it gets. */
#define SRC 0
#define DST 2048
#define GOT 4096

__device__ void expect(int *wrong, int line, bool right)
{
	if (!right)
		atomicCAS(wrong, 0, line);
}
#define EXPECT(cond) expect(wrong, __LINE__, cond)

__device__ uint64_t word_of(int rank, int unit, int round, int i)
{
	return ((uint64_t)rank << 48 | (uint64_t)unit << 32 | round << 16 | i) + 0x0101010101010101;
}

/* Every unit of the grid with the same unit of the next rank. */
__global__ void transfers(
	const __grid_constant__ symcclDevComm_t comm, symcclDevWindow_t w, int scope, int *wrong)
{
	const symcclDevCoop_t coop = scope == 0   ? symcclDevThread()
				     : scope == 1 ? symcclDevWarp()
						  : symcclDevCta();
	const symcclDevCtx_t x = symcclDevCtx(&comm, coop, 0);
	const symcclDevTeam_t team = symcclDevTeamWorld(&comm);
	const int unit = (int)((blockIdx.x * blockDim.x + threadIdx.x) / coop.width);
	const int next = (comm.rank + 1) % comm.nranks, n = comm.nranks;
	const size_t at = (size_t)unit * PART;
	const uint64_t *dst = (uint64_t *)symcclDevLocalPtr(&w, at + DST);
	const uint64_t *got = (uint64_t *)symcclDevLocalPtr(&w, at + GOT);
	uint64_t *src = (uint64_t *)symcclDevLocalPtr(&w, at + SRC), counted;
	symcclDevSession_t s;

	symcclDevSessionOpen(&s, x, team, unit);
	counted = symcclDevCounterRead(x, unit);
	for (int k = 0; k < ROUNDS; k++) {
		const size_t bytes = 8 * WORDS - (k % 3 == 0 ? 0 : k);

		for (int i = coop.thread; i < WORDS; i += coop.width)
			src[i] = word_of(comm.rank, unit, k, i);
		EXPECT(symcclDevBarrier(&s) == symcclSuccess);
		EXPECT(symcclDevPut(x, team, next, &w, at + DST, &w, at + SRC, bytes,
			       symcclDevNotify(unit, 2, unit)) == symcclSuccess);
		EXPECT(symcclDevPutValue(x, team, next, &w, at + DST + 8 * WORDS, k, unit, 1) ==
			symcclSuccess);
		EXPECT(symcclDevSignalWaitMore(x, unit, 3) == symcclSuccess);
		EXPECT(dst[WORDS] == (uint64_t)k);
		for (int i = coop.thread; i < (int)(bytes / 8); i += coop.width)
			EXPECT(dst[i] == word_of((comm.rank + n - 1) % n, unit, k, i));
		EXPECT(symcclDevGet(x, team, next, &w, at + SRC, &w, at + GOT, bytes) ==
			symcclSuccess);
		EXPECT(symcclDevBarrier(&s) == symcclSuccess);
		for (int i = coop.thread; i < (int)(bytes / 8); i += coop.width)
			EXPECT(got[i] == word_of(next, unit, k, i));
		EXPECT(symcclDevCounterWait(x, unit, counted + k + 1) == symcclSuccess);
		EXPECT(symcclDevBarrier(&s) == symcclSuccess);
	}
	EXPECT(symcclDevPut(x, team, next, &w, w.size - 7, &w, 0, 8, symcclDevNoNotify()) ==
		symcclInvalidArgument);
	EXPECT(symcclDevSignal(x, team, n, 0, 1) == symcclInvalidUsage);
	EXPECT(symcclDevSessionClose(&s) == symcclSuccess);
}

/* out = all ranks' elements, then spread to everybody at `to` + rank * bytes. */
__global__ void reduce(const __grid_constant__ symcclDevComm_t comm, symcclDevWindow_t w,
	size_t offset, void *out, size_t count, symcclDataType_t type, symcclRedOp_t op, size_t to,
	size_t bytes, int *wrong)
{
	const symcclDevCtx_t x = symcclDevCtx(&comm, symcclDevCta(), 0);
	symcclDevSession_t s;

	symcclDevSessionOpen(&s, x, symcclDevTeamLsa(&comm), 0);
	EXPECT(symcclDevBarrier(&s) == symcclSuccess);
	EXPECT(symcclDevReduce(x, out, &w, offset, count, type, op) == symcclSuccess);
	EXPECT(symcclDevBarrier(&s) == symcclSuccess);
	EXPECT(symcclDevSpread(x, &w, to + comm.rank * bytes, out, bytes) == symcclSuccess);
	EXPECT(symcclDevBarrier(&s) == symcclSuccess);
	EXPECT(symcclDevSessionClose(&s) == symcclSuccess);
}

/* Nobody signals. */
__global__ void lonely(const __grid_constant__ symcclDevComm_t comm, symcclResult_t *result)
{
	symcclResult_t e =
		symcclDevSignalWait(symcclDevCtx(&comm, symcclDevCta(), 0), 0, (uint64_t)1 << 40);

	if (threadIdx.x == blockDim.x - 1)
		*result = e;
}

static int *wrong[RANKS_MOST];

static void right(const char *what)
{
	finish();
	for (int i = 0; i < nlocal; i++)
		if (*wrong[i] != 0) {
			fprintf(stderr, "rank %d: %s: line %d\n", side[i].rank, what, *wrong[i]);
			exit(1);
		}
}

static void check_transfers(void)
{
	static const int grid[3][2] = {{1, 32}, {2, 64}, {3, 96}};

	for (int scope = 0; scope < 3; scope++) {
		for (int i = 0; i < nlocal; i++) {
			use(&side[i]);
			transfers<<<grid[scope][0], grid[scope][1], 0, side[i].stream>>>(
				side[i].dev, side[i].w, scope, wrong[i]);
			CUDA(cudaGetLastError());
		}
		right("transfers");
	}
}

static void check_reduce(int type, int op)
{
	static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
	const size_t es = sizes[type], count = 1000 + (size_t)(type * 5 + op), bytes = count * es;
	const size_t in = (size_t)(op % 3) * es, to = 65536; /* odd places now and then */
	static uint8_t host[8 * 2048], got[8 * 2048], want[8 * 2048];
	static char *out[RANKS_MOST];

	for (int i = 0; i < nlocal; i++) {
		use(&side[i]);
		if (out[i] == NULL)
			CUDA(cudaMalloc(&out[i], 2 * sizeof(host)));
		for (size_t k = 0; k < bytes; k++)
			host[k] = (uint8_t)mix((uint32_t)(side[i].rank + 16 * op), (uint32_t)k);
		CUDA(cudaMemcpy(side[i].memory + in, host, bytes, cudaMemcpyDefault));
		CUDA(cudaMemset(out[i], 0x5a, 2 * sizeof(host)));
	}
	OK(symcclGroupStart());
	for (int i = 0; i < nlocal; i++)
		OK(symcclAllReduce(side[i].memory + in, out[i] + sizeof(host), count,
			(symcclDataType_t)type, (symcclRedOp_t)op, side[i].comm,
			(symcclStream_t)side[i].stream));
	OK(symcclGroupEnd());
	for (int i = 0; i < nlocal; i++) {
		use(&side[i]);
		reduce<<<1, 256, 0, side[i].stream>>>(side[i].dev, side[i].w, in, out[i], count,
			(symcclDataType_t)type, (symcclRedOp_t)op, to, bytes, wrong[i]);
		CUDA(cudaGetLastError());
	}
	right("reduce");
	for (int i = 0; i < nlocal; i++) {
		use(&side[i]);
		CUDA(cudaMemcpy(want, out[i] + sizeof(host), bytes, cudaMemcpyDefault));
		CUDA(cudaMemcpy(got, out[i], bytes + 8, cudaMemcpyDefault));
		for (size_t k = 0; k < bytes + 8; k++)
			if (got[k] != (k < bytes ? want[k] : 0x5a)) {
				fprintf(stderr,
					"rank %d: type %d op %d: byte %zu is %02x, not %02x\n",
					side[i].rank, type, op, k, got[k], want[k]);
				exit(1);
			}
		for (int q = 0; q < nranks; q++) {
			CUDA(cudaMemcpy(
				got, side[i].memory + to + q * bytes, bytes, cudaMemcpyDefault));
			if (memcmp(got, want, bytes) != 0) {
				fprintf(stderr, "rank %d: what rank %d spread\n", side[i].rank, q);
				exit(1);
			}
		}
	}
}

static void check_timeout(void)
{
	symcclResult_t e = symcclSuccess;

	use(&side[0]);
	lonely<<<1, 64, 0, side[0].stream>>>(side[0].dev, side[0].result);
	CUDA(cudaStreamSynchronize(side[0].stream));
	for (int k = 0; k < 3000 && e == symcclSuccess; k++) {
		timespec ms = {0, 1000000};

		nanosleep(&ms, NULL);
		OK(symcclCommGetAsyncError(side[0].comm, &e));
	}
	if (*side[0].result != symcclTimeout || e != symcclTimeout ||
		strstr(symcclGetLastError(side[0].comm), "signal") == NULL) {
		fprintf(stderr, "rank 0: a wait nobody ends: kernel %d, communicator %d: %s\n",
			*side[0].result, e, symcclGetLastError(side[0].comm));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	symcclDevCommRequirements_t reqs = SYMCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;

	setenv("SYMCCL_OP_TIMEOUT", "2", 1);
	start(argc, argv);
	reqs.sessions = reqs.signals = reqs.counters = UNITS_MOST;
	resources((size_t)1 << 20, &reqs);
	for (int i = 0; i < nlocal; i++) {
		use(&side[i]);
		CUDA(cudaMallocHost(&wrong[i], sizeof(int)));
		*wrong[i] = 0;
	}
	check_transfers();
	for (int type = 0; type < symcclNumTypes; type++)
		for (int op = 0; op < symcclNumOps; op++)
			check_reduce(type, op);
	if (nlocal == nranks)
		check_timeout();
	for (int i = 0; i < nlocal; i++)
		OK(symcclCommDestroy(side[i].comm));
	if (side[0].rank == 0)
		printf("%d ranks: calls right\n", nranks);
	return 0;
}
