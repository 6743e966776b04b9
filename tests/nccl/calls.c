/*
 * A program written to nccl.h (NVIDIA's where it is installed), linked to libnccl.so.2: every call
 * on host buffers, several processes, blocking and not, values against the oracle. Knows nothing of
 * symccl but the oracle's name for a type, which has the same number.
 *
 *	calls [ranks]		one line a failure, exit 1
 */
#define _GNU_SOURCE
#include <nccl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "oracle.h"

#define RANKS_MAX 8
#define COUNT 1021 /* elements of a block: a prime */
#define GUARD 64

/* What the ranks share. */
static struct shared {
	ncclUniqueId id[16];
	int ready[16];
	int arrived[64];
} * sh;

static int rank, n, blocking, step;
static ncclComm_t comm;
static uint64_t seed;

static int complain(int line, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "calls.c:%d: rank %d of %d%s: ", line, rank, n,
		blocking ? "" : ", non-blocking");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, " (%s)\n", ncclGetLastError(comm));
	return 1;
}
#define CHECK(cond, ...) \
	do { \
		if (!(cond)) \
			return complain(__LINE__, #cond ": " __VA_ARGS__); \
	} while (0)

/* Poll a non-blocking communicator until it is done. */
static ncclResult_t settle(ncclComm_t c, ncclResult_t e)
{
	for (int i = 0; e == ncclInProgress && i < 200000; i++) {
		ncclResult_t q = ncclCommGetAsyncError(c, &e);

		if (q != ncclSuccess)
			return q;
		usleep(100);
	}
	return e;
}
#define OK_ON(c, call) \
	do { \
		ncclResult_t e_ = settle(c, call); \
		if (e_ != ncclSuccess) \
			return complain(__LINE__, "%s: %s", #call, ncclGetErrorString(e_)); \
	} while (0)
#define OK(call) OK_ON(comm, call)
#define WANT(want, call) \
	do { \
		ncclResult_t e_ = (call); \
		if (e_ != (want)) \
			return complain(__LINE__, "%s: %s instead of %s", #call, \
				ncclGetErrorString(e_), ncclGetErrorString(want)); \
	} while (0)

/* The processes meet without the library. */
static void meet(void)
{
	__atomic_add_fetch(&sh->arrived[step], 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(&sh->arrived[step], __ATOMIC_ACQUIRE) < n)
		usleep(100);
	step++;
}

static int share_id(int slot, int root)
{
	if (rank == root) {
		OK(ncclGetUniqueId(&sh->id[slot]));
		__atomic_store_n(&sh->ready[slot], 1, __ATOMIC_RELEASE);
	}
	while (!__atomic_load_n(&sh->ready[slot], __ATOMIC_ACQUIRE))
		usleep(100);
	return 0;
}

/* ---- Data ------------------------------------------------------------------------------------ */

static const size_t size_of[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

static uint64_t rand_of(uint64_t a, uint64_t b)
{
	uint64_t x = seed + a * 0x9e3779b97f4a7c15ull + b * 0xbf58476d1ce4e5b9ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* Rank r's input: bytes of any kind. */
static void input_fill(char *p, size_t bytes, int r, uint64_t salt)
{
	for (size_t i = 0; i < bytes; i++)
		p[i] = (char)rand_of(salt * 131 + (uint64_t)r, i / 8) >> (i % 8 * 8);
}

struct buffers {
	char *in[RANKS_MAX]; /* every rank's input, n blocks each */
	char *send, *recv, *want;
	size_t bytes; /* of n blocks */
};

static struct buffers b;

static void buffers_fill(ncclDataType_t type, uint64_t salt)
{
	b.bytes = COUNT * size_of[type] * (size_t)n;
	for (int r = 0; r < n; r++)
		input_fill(b.in[r], b.bytes, r, salt);
	memcpy(b.send, b.in[rank], b.bytes);
	memset(b.recv - GUARD, 0x5a, b.bytes + 2 * GUARD);
	memset(b.want, 0x5a, b.bytes);
}

static int compare(int line, const char *what, ncclDataType_t type)
{
	for (size_t i = 0; i < b.bytes; i++)
		if (b.recv[i] != b.want[i])
			return complain(line, "%s, type %d: byte %zu of %zu is %02x, not %02x",
				what, (int)type, i, b.bytes, (unsigned char)b.recv[i],
				(unsigned char)b.want[i]);
	for (size_t i = 0; i < GUARD; i++)
		if (b.recv[-1 - (long)i] != 0x5a || b.recv[b.bytes + i] != 0x5a)
			return complain(
				line, "%s, type %d: wrote outside the buffer", what, (int)type);
	return 0;
}
#define COMPARE(what) \
	do { \
		if (compare(__LINE__, what, type)) \
			return 1; \
	} while (0)

static void reduced(ncclDataType_t type, int op, size_t from, size_t count, char *out)
{
	const void *src[RANKS_MAX];

	for (int r = 0; r < n; r++)
		src[r] = b.in[r] + from * size_of[type];
	oracle_reduce((symcclDataType_t)type, (symcclRedOp_t)op, src, n, NULL, count, out);
}

/* ---- Collectives ----------------------------------------------------------------------------- */

static int reductions(ncclDataType_t type)
{
	size_t es = size_of[type];

	for (int op = ncclSum; op <= ncclAvg; op++) {
		int root = (op + (int)type) % n;

		buffers_fill(type, (uint64_t)(100 + op));
		reduced(type, op, 0, COUNT, b.want);
		OK(ncclAllReduce(b.send, b.recv, COUNT, type, (ncclRedOp_t)op, comm, NULL));
		COMPARE("AllReduce");

		buffers_fill(type, (uint64_t)(200 + op));
		reduced(type, op, (size_t)rank * COUNT, COUNT, b.want);
		OK(ncclReduceScatter(b.send, b.recv, COUNT, type, (ncclRedOp_t)op, comm, NULL));
		COMPARE("ReduceScatter");

		buffers_fill(type, (uint64_t)(300 + op));
		if (rank == root)
			reduced(type, op, 0, COUNT, b.want);
		OK(ncclReduce(b.send, b.recv, COUNT, type, (ncclRedOp_t)op, root, comm, NULL));
		COMPARE("Reduce");
	}
	(void)es;
	return 0;
}

static int moves(ncclDataType_t type)
{
	size_t block = COUNT * size_of[type];
	int root = (int)type % n;

	buffers_fill(type, 400);
	for (int r = 0; r < n; r++)
		memcpy(b.want + (size_t)r * block, b.in[r], block);
	OK(ncclAllGather(b.send, b.recv, COUNT, type, comm, NULL));
	COMPARE("AllGather");

	buffers_fill(type, 401);
	memcpy(b.want, b.in[root], block);
	OK(ncclBroadcast(b.send, b.recv, COUNT, type, root, comm, NULL));
	COMPARE("Broadcast");

	buffers_fill(type, 402);
	memcpy(b.recv, b.send, block);
	memcpy(b.want, b.in[root], block);
	OK(ncclBcast(b.recv, COUNT, type, root, comm, NULL));
	COMPARE("Bcast");

	buffers_fill(type, 403);
	for (int r = 0; r < n; r++)
		memcpy(b.want + (size_t)r * block, b.in[r] + (size_t)rank * block, block);
	OK(ncclAlltoAll(b.send, b.recv, COUNT, type, comm, NULL));
	COMPARE("AlltoAll");

	buffers_fill(type, 404);
	for (int r = 0; rank == root && r < n; r++)
		memcpy(b.want + (size_t)r * block, b.in[r], block);
	OK(ncclGather(b.send, b.recv, COUNT, type, root, comm, NULL));
	COMPARE("Gather");

	buffers_fill(type, 405);
	memcpy(b.want, b.in[root] + (size_t)rank * block, block);
	OK(ncclScatter(b.send, b.recv, COUNT, type, root, comm, NULL));
	COMPARE("Scatter");
	return 0;
}

/* Everybody to everybody in one group, and a message to oneself among them. */
static int messages(ncclDataType_t type)
{
	size_t block = COUNT * size_of[type];

	buffers_fill(type, 500);
	for (int r = 0; r < n; r++)
		memcpy(b.want + (size_t)r * block, b.in[r] + (size_t)rank * block, block);
	OK(ncclGroupStart());
	for (int r = 0; r < n; r++) {
		OK(ncclSend(b.send + (size_t)r * block, COUNT, type, r, comm, NULL));
		OK(ncclRecv(b.recv + (size_t)r * block, COUNT, type, r, comm, NULL));
	}
	OK(ncclGroupEnd());
	COMPARE("Send and Recv");
	/* A ring, without a group: even ranks send first. */
	if (n % 2 == 0) {
		int next = (rank + 1) % n, prev = (rank + n - 1) % n;

		buffers_fill(type, 501);
		memcpy(b.want, b.in[prev], block);
		if (rank % 2 == 0)
			OK(ncclSend(b.send, COUNT, type, next, comm, NULL));
		OK(ncclRecv(b.recv, COUNT, type, prev, comm, NULL));
		if (rank % 2 == 1)
			OK(ncclSend(b.send, COUNT, type, next, comm, NULL));
		COMPARE("a ring of Send and Recv");
	}
	return 0;
}

static int premul(void)
{
	const ncclDataType_t type = ncclFloat32;
	uint64_t factor[RANKS_MAX];
	const void *src[RANKS_MAX];
	ncclRedOp_t op;
	float f = 0.5f + (float)rank;

	buffers_fill(type, 600);
	for (int r = 0; r < n; r++) {
		float g = 0.5f + (float)r;

		factor[r] = 0;
		memcpy(&factor[r], &g, sizeof(g));
		src[r] = b.in[r];
	}
	oracle_reduce(symcclFloat32, symcclSum, src, n, factor, COUNT, b.want);
	OK(ncclRedOpCreatePreMulSum(&op, &f, type, ncclScalarHostImmediate, comm));
	CHECK(op >= ncclNumOps, "op is %d", (int)op);
	OK(ncclAllReduce(b.send, b.recv, COUNT, type, op, comm, NULL));
	COMPARE("a pre-multiplied sum");
	OK(ncclRedOpDestroy(op, comm));
	WANT(ncclInvalidArgument, ncclAllReduce(b.send, b.recv, COUNT, type, op, comm, NULL));
	return 0;
}

/* ---- Windows, signals -------------------------------------------------------------------------
 */

static int windows(void)
{
	const ncclDataType_t type = ncclInt32;
	size_t room = (size_t)1 << 20, block = COUNT * 4;
	char *send, *recv;
	ncclWindow_t ws = NULL, wr = NULL;
	void *p = NULL, *handle = NULL;

	OK(ncclMemAlloc((void **)&send, room));
	OK(ncclMemAlloc((void **)&recv, room));
	OK(ncclGroupStart());
	OK(ncclCommWindowRegister(comm, send, room, &ws, NCCL_WIN_COLL_SYMMETRIC));
	OK(ncclCommWindowRegister(comm, recv, room, &wr, NCCL_WIN_COLL_SYMMETRIC));
	OK(ncclGroupEnd());
	CHECK(ws != NULL && wr != NULL, "no window");
	OK(ncclWinGetUserPtr(comm, ws, &p));
	CHECK(p == send, "%p", p);

	buffers_fill(type, 700);
	memcpy(send, b.send, block);
	reduced(type, ncclSum, 0, COUNT, b.want);
	OK(ncclAllReduce(send, recv, COUNT, type, ncclSum, comm, NULL));
	memcpy(b.recv, recv, block);
	COMPARE("AllReduce on windows");

	/* Put to the next rank, past what it reduced. */
	buffers_fill(type, 701);
	memcpy(send, b.send, block);
	memcpy(b.want, b.in[(rank + n - 1) % n], block);
	meet();
	OK(ncclPutSignal(send, COUNT, type, (rank + 1) % n, wr, room / 2, 0, 0, 0, comm, NULL));
	{
		ncclWaitSignalDesc_t d = {
			.opCnt = 1, .peer = (rank + n - 1) % n, .sigIdx = 0, .ctx = 0};

		OK(ncclWaitSignal(1, &d, comm, NULL));
		memcpy(b.recv, recv + room / 2, block);
		COMPARE("PutSignal");
		OK(ncclSignal((rank + 1) % n, 0, 0, 0, comm, NULL));
		OK(ncclWaitSignal(1, &d, comm, NULL));
	}
	meet();
	OK(ncclCommWindowDeregister(comm, ws));
	OK(ncclCommWindowDeregister(comm, wr));
	OK(ncclCommWindowDeregister(comm, NULL));
	WANT(ncclInvalidArgument, ncclCommWindowDeregister(comm, (ncclWindow_t)send));

	OK(ncclCommRegister(comm, send, room, &handle));
	CHECK(handle != NULL, "no handle");
	OK(ncclCommDeregister(comm, handle));
	OK(ncclMemFree(send));
	OK(ncclMemFree(recv));
	return 0;
}

/* ---- Communicators ----------------------------------------------------------------------------
 */

static int sum_of_ranks(ncclComm_t c, int want)
{
	int mine = rank + 1, got = 0;

	OK_ON(c, ncclAllReduce(&mine, &got, 1, ncclInt32, ncclSum, c, NULL));
	CHECK(got == want, "%d instead of %d", got, want);
	return 0;
}

static int families(void)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclComm_t half = NULL, less = NULL;
	int count, want = 0, me;

	config.blocking = blocking;
	OK(ncclCommSplit(comm, rank % 2, -rank, &half, &config));
	OK_ON(half, ncclSuccess == ncclCommGetAsyncError(half, (ncclResult_t[1]){0})
			    ? ncclSuccess
			    : ncclSystemError);
	{
		ncclResult_t e = ncclInProgress;

		OK_ON(half, e);
	}
	for (int r = rank % 2; r < n; r += 2)
		want += r + 1;
	OK(ncclCommCount(half, &count));
	CHECK(count == (n + 1 - rank % 2) / 2, "%d", count);
	OK(ncclCommUserRank(half, &me));
	CHECK(me == count - 1 - rank / 2, "key -%d gave rank %d of %d", rank, me, count);
	if (sum_of_ranks(half, want))
		return 1;
	OK_ON(half, ncclCommFinalize(half));
	OK(ncclCommDestroy(half));

	OK(ncclCommSplit(comm, rank == 0 ? NCCL_SPLIT_NOCOLOR : 1, 0, &half, NULL));
	if (rank == 0) {
		CHECK(half == NULL, "a communicator without a color");
	} else {
		OK_ON(half, ncclInProgress);
		if (sum_of_ranks(half, n * (n + 1) / 2 - 1))
			return 1;
		OK(ncclCommDestroy(half));
	}

	/* Without the last rank, which makes no call. */
	if (n > 1 && rank != n - 1) {
		OK(ncclCommShrink(comm, (int[]){n - 1}, 1, &less, NULL, NCCL_SHRINK_DEFAULT));
		OK_ON(less, ncclInProgress);
		if (sum_of_ranks(less, n * (n - 1) / 2))
			return 1;
		OK(ncclCommDestroy(less));
	}
	meet();
	return 0;
}

/* ---- One rank's life --------------------------------------------------------------------------
 */

static int asks(void)
{
	ncclResult_t async = ncclInProgress;
	uint64_t bytes = 0;
	int got = -1;

	OK(ncclCommCount(comm, &got));
	CHECK(got == n, "%d", got);
	OK(ncclCommUserRank(comm, &got));
	CHECK(got == rank, "%d", got);
	OK(ncclCommCuDevice(comm, &got));
	OK(ncclCommGetAsyncError(comm, &async));
	CHECK(async == ncclSuccess, "%d", (int)async);
	OK(ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes));
	CHECK(bytes > 0, "a communicator without memory");
	OK(ncclGetVersion(&got));
	CHECK(got >= 22700 && got < 30000, "version %d", got);
	return 0;
}

static int groups(void)
{
	const ncclDataType_t type = ncclInt64;
	ncclSimInfo_t sim = NCCL_SIM_INFO_INITIALIZER;
	size_t block = COUNT * 8;

	/* Nested, several calls. */
	buffers_fill(type, 800);
	reduced(type, ncclSum, 0, COUNT, b.want);
	if (n > 1)
		reduced(type, ncclMax, COUNT, COUNT, b.want + block);
	OK(ncclGroupStart());
	OK(ncclGroupStart());
	OK(ncclAllReduce(b.send, b.recv, COUNT, type, ncclSum, comm, NULL));
	OK(ncclGroupEnd());
	if (n > 1)
		OK(ncclAllReduce(b.send + block, b.recv + block, COUNT, type, ncclMax, comm, NULL));
	OK(ncclGroupEnd());
	COMPARE("a group of two");
	/* Only estimated. */
	memset(b.want, 0x5a, b.bytes);
	memset(b.recv, 0x5a, b.bytes);
	OK(ncclGroupStart());
	OK(ncclAllReduce(b.send, b.recv, COUNT, type, ncclSum, comm, NULL));
	OK(ncclGroupSimulateEnd(&sim));
	CHECK(sim.estimatedTime >= 0, "%g", (double)sim.estimatedTime);
	COMPARE("a simulated group");
	return 0;
}

static int misuse(void)
{
	WANT(ncclInvalidArgument,
		ncclAllReduce(b.send, b.recv, 1, ncclNumTypes, ncclSum, comm, NULL));
	CHECK(strstr(ncclGetLastError(comm), "datatype") != NULL, "no word of it");
	WANT(ncclInvalidArgument, ncclBroadcast(b.send, b.recv, 1, ncclInt8, n, comm, NULL));
	WANT(ncclInvalidArgument, ncclSend(b.send, 1, ncclInt8, -1, comm, NULL));
	WANT(ncclInvalidArgument, ncclAllReduce(NULL, b.recv, 1, ncclInt8, ncclSum, comm, NULL));
	WANT(ncclInvalidArgument, ncclCommCount(NULL, &(int){0}));
	CHECK(ncclGetLastError(NULL)[0] != '\0', "no sentence");
	return 0;
}

static int life(void)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

	if (share_id(0, 0))
		return 1;
	config.blocking = blocking;
	config.commName = "calls";
	/* Callers of every release: the shortest struct has blocking and no more. */
	config.size = (const size_t[]){24, 40, 56, 72, 80, 88, sizeof(config)}[rank % 7];
	OK(ncclCommInitRankConfig(&comm, n, sh->id[0], rank, &config));
	if (asks())
		return 1;
	for (int t = 0; t < ncclNumTypes; t++)
		if (reductions((ncclDataType_t)t) || moves((ncclDataType_t)t) ||
			messages((ncclDataType_t)t))
			return 1;
	if (premul() || windows() || groups() || misuse() || families())
		return 1;
	OK(ncclCommFinalize(comm));
	OK(ncclCommDestroy(comm));
	comm = NULL;
	/* Another, ended by abort. */
	if (share_id(1, n - 1))
		return 1;
	OK(ncclCommInitRank(&comm, n, sh->id[1], rank));
	if (sum_of_ranks(comm, n * (n + 1) / 2))
		return 1;
	meet();
	OK(ncclCommAbort(comm));
	comm = NULL;
	return 0;
}

/* All ranks in one thread. */
static int one_thread(void)
{
	ncclComm_t all[3];
	int in[3] = {1, 2, 4}, out[3] = {0};

	rank = 0;
	OK(ncclCommInitAll(all, 3, NULL));
	OK(ncclGroupStart());
	for (int r = 0; r < 3; r++)
		OK(ncclAllReduce(&in[r], &out[r], 1, ncclInt32, ncclSum, all[r], NULL));
	OK(ncclGroupEnd());
	for (int r = 0; r < 3; r++)
		CHECK(out[r] == 7, "rank %d has %d", r, out[r]);
	OK(ncclGroupStart());
	for (int r = 0; r < 3; r++)
		OK(ncclCommDestroy(all[r]));
	OK(ncclGroupEnd());
	return 0;
}

static int in_child(int (*fn)(void), int r)
{
	pid_t pid = fork();

	if (pid == 0) {
		rank = r;
		alarm(100);
		_exit(fn());
	}
	return pid < 0;
}

static int run(int ranks)
{
	int bad = 0, status;

	n = ranks;
	memset(sh, 0, sizeof(*sh));
	for (int r = 0; r < n; r++)
		bad |= in_child(life, r);
	while (wait(&status) > 0)
		bad |= status != 0;
	return bad;
}

int main(int argc, char **argv)
{
	size_t most = (size_t)COUNT * 8 * RANKS_MAX;
	const char *s = getenv("SYMCCL_TEST_SEED");
	int bad = 0, status, ranks = argc > 1 ? atoi(argv[1]) : 3;

	seed = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
	printf("seed: SYMCCL_TEST_SEED=%#llx\n", (unsigned long long)seed);
	fflush(stdout);
	if (ranks < 1 || ranks > RANKS_MAX)
		return 2;
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int r = 0; r < RANKS_MAX; r++)
		b.in[r] = malloc(most);
	b.send = malloc(most);
	b.recv = (char *)malloc(most + 2 * GUARD) + GUARD;
	b.want = malloc(most);
	for (blocking = 1; blocking >= 0; blocking--) {
		bad |= run(ranks);
		bad |= run(2);
		bad |= run(1);
	}
	blocking = 1;
	n = 3;
	bad |= in_child(one_thread, 0);
	while (wait(&status) > 0)
		bad |= status != 0;
	return bad;
}
