/* Device communicators on the host backend: made, used by CPU threads, given back, refused. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "mem.h"
#include "oracle.h"
#include "ranks.h"
#include "symccl_device.h"
#include "util.h"

TestSuite(devcomm, .timeout = 60);

#define WINDOW ((size_t)1 << 20)

static void run(const char *what, int n, int procs, rank_fn *fn, void *arg)
{
	char err[1024];
	int e;

	test_seed(); /* before the ranks part: they share it */
	if (procs == n)
		e = ranks_run(n, 40, fn, arg, err, sizeof(err));
	else if (procs == 1)
		e = ranks_run_threads(n, 40, fn, arg, err, sizeof(err));
	else
		e = ranks_run_mixed(procs, n, 40, fn, arg, err, sizeof(err));
	cr_assert_eq(e, 0, "%s, %d ranks in %d processes: %s", what, n, procs, err);
}

static void run_all(const char *what, rank_fn *fn, void *arg)
{
	run(what, 1, 1, fn, arg);
	run(what, 2, 2, fn, arg);
	run(what, 3, 1, fn, arg);
	run(what, 9, 9, fn, arg);
	run(what, 6, 2, fn, arg);
}

/* A rank, its window and its device communicator. */
struct side {
	symcclComm_t comm;
	char *memory;
	symcclWindow_t win;
	symcclDevWindow_t w;
	symcclDevComm_t dev;
};

static const symcclDevCommRequirements_t initial = SYMCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;

static symcclDevCommRequirements_t wanted(void)
{
	symcclDevCommRequirements_t r = initial;

	r.contexts = 2;
	r.sessions = 2;
	r.packetSlots = 64;
	r.signals = 3;
	r.counters = 2;
	return r;
}

static int join(int rank, int n, symcclComm_t *comm)
{
	symcclUniqueId id;

	if (rank == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_OK(symcclCommInitRank(comm, n, id, rank));
	return 0;
}

static int side_open(int rank, int n, struct side *s)
{
	symcclDevCommRequirements_t r = wanted();

	RANK_TRY(join(rank, n, &s->comm));
	RANK_OK(symcclMemAlloc((void **)&s->memory, WINDOW));
	RANK_OK(symcclCommWindowRegister(
		s->comm, s->memory, WINDOW, &s->win, SYMCCL_WIN_COLL_SYMMETRIC));
	RANK_OK(symcclWinGetDevice(s->comm, s->win, &s->w));
	RANK_OK(symcclDevCommCreate(s->comm, &r, &s->dev));
	return 0;
}

static int side_close(struct side *s)
{
	RANK_OK(symcclDevCommDestroy(s->comm, &s->dev));
	RANK_OK(symcclCommWindowDeregister(s->comm, s->win));
	RANK_OK(symcclCommDestroy(s->comm));
	RANK_OK(symcclMemFree(s->memory));
	return 0;
}

static symcclDevCtx_t ctx(const struct side *s, int context)
{
	return symcclDevCtx(&s->dev, symcclDevThread(), context);
}

/* ---- Use --------------------------------------------------------------------------------------
 */

static int teams_and_addresses(int rank, int n, void *arg)
{
	struct side s;
	symcclDevTeam_t world, rail;
	int next = (rank + 1) % n;
	void *p;

	(void)arg;
	RANK_TRY(side_open(rank, n, &s));
	world = symcclDevTeamWorld(&s.dev);
	rail = symcclDevTeamRail(&s.dev);
	RANK_CHECK(s.dev.rank == rank && s.dev.nranks == n && world.rank == rank &&
			   world.nranks == n && symcclDevTeamLsa(&s.dev).nranks == n,
		"world or LSA team");
	RANK_CHECK(rail.rank == 0 && rail.nranks == 1, "rail team of a node");
	RANK_CHECK(symcclDevTeamRankToWorld(&s.dev, rail, 0) == rank, "rail to world");
	RANK_CHECK(symcclDevWorldToTeamRank(&s.dev, world, n - 1) == n - 1, "world to world");
	RANK_CHECK(symcclDevWorldToTeamRank(&s.dev, rail, next) == (n == 1 ? 0 : -1),
		"a rank that is not of the rail");
	RANK_CHECK(s.w.size == WINDOW && s.w.lsaRank == rank && s.w.lsaSize == n &&
			   symcclDevMulticastPtr(&s.w, 0) == NULL,
		"window");
	for (int q = 0; q < n; q++) {
		RANK_OK(symcclWinGetPeerPtr(s.comm, s.win, q, 100, &p));
		RANK_CHECK(symcclDevLsaPtr(&s.w, q, 100) == p, "rank %d's address", q);
		RANK_CHECK(symcclDevPeerPtr(&s.dev, &s.w, world, q, 100) == p, "by team");
	}
	RANK_CHECK(symcclDevPeerPtr(&s.dev, &s.w, world, n, 0) == NULL, "rank n");
	RANK_CHECK(symcclDevPeerPtr(&s.dev, &s.w, world, -1, 0) == NULL, "rank -1");
	return side_close(&s);
}
Test(devcomm, teams_and_addresses)
{
	run_all("teams", teams_and_addresses, NULL);
}

/* Packets and barriers in turn, in several kernels, on both contexts. */
static int sessions(int rank, int n, void *arg)
{
	struct side s;
	uint64_t got;

	(void)arg;
	RANK_TRY(side_open(rank, n, &s));
	for (int kernel = 0; kernel < 20; kernel++) {
		symcclDevSession_t se;

		RANK_OK(symcclDevSessionOpen(
			&se, ctx(&s, kernel % 2), symcclDevTeamWorld(&s.dev), kernel / 2 % 2));
		for (int k = 0; k < 3; k++) {
			uint64_t tag = (uint64_t)(kernel * 10 + k) << 32;

			symcclDevSendAll(&se, (uint32_t)rank, tag + (uint64_t)rank);
			for (int q = 0; q < n; q++)
				if (q != rank) {
					RANK_OK(symcclDevRecv(&se, q, (uint32_t)q, &got));
					RANK_CHECK(got == tag + (uint64_t)q, "packet %lx", got);
				}
			RANK_OK(symcclDevEndEpoch(&se));
			((uint64_t *)symcclDevLocalPtr(&s.w, 0))[0] = tag;
			RANK_OK(symcclDevBarrier(&se));
			for (int q = 0; q < n; q++)
				RANK_CHECK(*(uint64_t *)symcclDevLsaPtr(&s.w, q, 0) == tag,
					"rank %d's word", q);
			RANK_OK(symcclDevBarrier(&se));
		}
		RANK_OK(symcclDevSessionClose(&se));
	}
	return side_close(&s);
}
Test(devcomm, sessions)
{
	run_all("sessions", sessions, NULL);
}

static int transfers(int rank, int n, void *arg)
{
	struct side s;
	symcclDevCtx_t x;
	symcclDevTeam_t t;
	int next = (rank + 1) % n, last = (rank + n - 1) % n;

	(void)arg;
	RANK_TRY(side_open(rank, n, &s));
	x = ctx(&s, 0);
	t = symcclDevTeamWorld(&s.dev);
	for (int k = 0; k < 50; k++) {
		uint64_t seed = test_seed() + (uint64_t)(k * 100);
		size_t bytes = mix64(seed, 1) % 5000, at = 8192 + mix64(seed, 2) % 64;

		fill_bytes(symcclDevLocalPtr(&s.w, 0), bytes, seed + (uint64_t)rank);
		poison(symcclDevLocalPtr(&s.w, at), bytes);
		RANK_BARRIER();
		RANK_OK(symcclDevPut(
			x, t, next, &s.w, at, &s.w, 0, bytes, symcclDevNotify(1, 2, 0)));
		RANK_OK(symcclDevPutValue(x, t, next, &s.w, 64000, seed, 1, 1));
		RANK_OK(symcclDevSignalWaitMore(x, 1, 3));
		RANK_CHECK(check_bytes(symcclDevLocalPtr(&s.w, at), bytes, seed + (uint64_t)last) ==
				   bytes,
			"what rank %d put", last);
		RANK_CHECK(*(uint64_t *)symcclDevLocalPtr(&s.w, 64000) == seed, "value");
		RANK_OK(symcclDevCounterWait(x, 0, (uint64_t)k + 1));
		RANK_CHECK(symcclDevCounterRead(x, 0) == (uint64_t)k + 1, "counter");
		RANK_CHECK(symcclDevSignalRead(x, 1) == 3 * ((uint64_t)k + 1), "signal");
		RANK_OK(symcclDevSignalWait(x, 1, 3 * ((uint64_t)k + 1)));
		RANK_OK(symcclDevGet(x, t, next, &s.w, 0, &s.w, 16384, bytes));
		RANK_CHECK(check_bytes(symcclDevLocalPtr(&s.w, 16384), bytes,
				   seed + (uint64_t)next) == bytes,
			"what came from rank %d", next);
		symcclDevQuiet(x);
		RANK_BARRIER();
	}
	RANK_OK(symcclDevSignalReset(x, 1));
	RANK_OK(symcclDevCounterReset(x, 0));
	RANK_CHECK(symcclDevSignalRead(x, 1) == 0 && symcclDevCounterRead(x, 0) == 0, "reset");
	/* what is wrong with a call is said, and nothing is done */
	RANK_RESULT(symcclDevSignal(x, t, next, 3, 1), symcclInvalidArgument);
	RANK_RESULT(symcclDevSignal(x, t, n, 0, 1), symcclInvalidUsage);
	RANK_RESULT(symcclDevSignalWait(x, -1, 0), symcclInvalidArgument);
	RANK_RESULT(symcclDevSignalWaitMore(x, 3, 0), symcclInvalidArgument);
	RANK_RESULT(symcclDevCounterWait(x, 2, 0), symcclInvalidArgument);
	RANK_RESULT(symcclDevPut(x, t, next, &s.w, WINDOW - 7, &s.w, 0, 8, symcclDevNoNotify()),
		symcclInvalidArgument);
	RANK_RESULT(symcclDevPut(x, t, next, &s.w, 0, &s.w, SIZE_MAX, 8, symcclDevNoNotify()),
		symcclInvalidArgument);
	RANK_RESULT(symcclDevPut(x, t, next, &s.w, 0, &s.w, 8, 8, symcclDevNotify(3, 1, -1)),
		symcclInvalidArgument);
	RANK_RESULT(symcclDevPut(x, t, -1, &s.w, 0, &s.w, 8, 8, symcclDevNoNotify()),
		symcclInvalidUsage);
	RANK_RESULT(symcclDevGet(x, t, n, &s.w, 0, &s.w, 8, 8), symcclInvalidUsage);
	RANK_RESULT(symcclDevPutValue(x, t, next, &s.w, 4, 1, -1, 0), symcclInvalidArgument);
	RANK_BARRIER();
	return side_close(&s);
}
Test(devcomm, transfers)
{
	run_all("transfers", transfers, NULL);
}

/* Every type and operator, bit for bit. */
static int reductions(int rank, int n, void *arg)
{
	enum { MOST = 300 };
	static const size_t counts[] = {1, 5, 64, MOST};
	struct side s;
	const void *src[16];
	char want[MOST * 8];
	struct guarded got;

	(void)arg;
	RANK_TRY(side_open(rank, n, &s));
	RANK_CHECK(guarded_alloc(&got, MOST * 8, 0) == 0, "memory");
	for (int type = 0; type < symcclNumTypes; type++)
		for (int op = 0; op < symcclNumOps; op++) {
			size_t es = fill_type_size((symcclDataType_t)type),
			       count = counts[(type + op) % 4], at = (size_t)(op % 3) * es;
			uint64_t seed = test_seed() + (uint64_t)(type * 8 + op) * 64;
			long where;

			RANK_BARRIER();
			fill_type(symcclDevLocalPtr(&s.w, at), count, (symcclDataType_t)type,
				seed + (uint64_t)rank);
			poison(got.p, got.n);
			RANK_BARRIER();
			RANK_OK(symcclDevReduce(ctx(&s, 0), got.p, &s.w, at, count,
				(symcclDataType_t)type, (symcclRedOp_t)op));
			for (int q = 0; q < n; q++)
				src[q] = symcclDevLsaPtr(&s.w, q, at);
			oracle_reduce((symcclDataType_t)type, (symcclRedOp_t)op, src, n, NULL,
				count, want);
			RANK_CHECK(memcmp(got.p, want, count * es) == 0, "type %d op %d", type, op);
			RANK_CHECK(guarded_check(&got, &where) == 0, "byte %ld", where);
			RANK_CHECK(count == MOST || got.p[count * es] != 0, "beyond the end");
		}
	RANK_RESULT(symcclDevReduce(ctx(&s, 0), got.p, &s.w, 8, WINDOW / 4, symcclFloat, symcclSum),
		symcclInvalidArgument);
	RANK_RESULT(symcclDevReduce(ctx(&s, 0), got.p, &s.w, 0, 1, symcclNumTypes, symcclSum),
		symcclInvalidArgument);
	RANK_BARRIER();
	fill_bytes(got.p, 999, test_seed() + (uint64_t)rank);
	RANK_OK(symcclDevSpread(ctx(&s, 0), &s.w, 1000 * (size_t)rank, got.p, 999));
	RANK_BARRIER();
	for (int q = 0; q < n; q++)
		RANK_CHECK(check_bytes(symcclDevLocalPtr(&s.w, 1000 * (size_t)q), 999,
				   test_seed() + (uint64_t)q) == 999,
			"rank %d's spread bytes", q);
	guarded_free(&got);
	return side_close(&s);
}
Test(devcomm, reductions)
{
	run_all("reductions", reductions, NULL);
}

/* One thread makes several ranks' in a group; kernels then run one rank after the other. */
static int grouped(int rank, int n, void *arg)
{
	enum { EACH = 3 };
	symcclDevCommRequirements_t r = wanted();
	symcclComm_t comm[EACH];
	symcclDevComm_t dev[EACH];
	symcclUniqueId id;

	(void)arg;
	if (rank == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_OK(symcclGroupStart());
	for (int i = 0; i < EACH; i++)
		RANK_OK(symcclCommInitRank(&comm[i], n * EACH, id, rank * EACH + i));
	RANK_OK(symcclGroupEnd());
	memset(dev, 0, sizeof(dev));
	RANK_OK(symcclGroupStart());
	for (int i = 0; i < EACH; i++)
		RANK_OK(symcclDevCommCreate(comm[i], &r, &dev[i]));
	RANK_CHECK(dev[0].base == 0, "written before the group's end");
	RANK_OK(symcclGroupEnd());
	for (int i = 0; i < EACH; i++)
		RANK_OK(symcclDevSignal(symcclDevCtx(&dev[i], symcclDevThread(), 0),
			symcclDevTeamWorld(&dev[i]), (rank * EACH + i + 1) % (n * EACH), 0, 1));
	for (int i = 0; i < EACH; i++)
		RANK_OK(symcclDevSignalWait(symcclDevCtx(&dev[i], symcclDevThread(), 0), 0, 1));
	RANK_OK(symcclDevCommDestroy(comm[0], &dev[0]));
	/* the others' go with their communicators */
	for (int i = 0; i < EACH; i++)
		RANK_OK(symcclCommDestroy(comm[i]));
	return 0;
}
Test(devcomm, in_a_group)
{
	run("group", 2, 2, grouped, NULL);
	run("group", 1, 1, grouped, NULL);
}

/* ---- Refused ----------------------------------------------------------------------------------
 */

static int refused(int rank, int n, void *arg)
{
	symcclDevCommRequirements_t r = wanted(), bad;
	struct leak_snapshot before;
	struct side s;
	symcclDevComm_t dev, other;
	symcclWindow_t skewed;
	symcclDevWindow_t dw;

	(void)arg;
	RANK_TRY(side_open(rank, n, &s));
	leak_snapshot(&before);
	RANK_RESULT(symcclDevCommCreate(NULL, &r, &dev), symcclInvalidArgument);
	RANK_RESULT(symcclDevCommCreate(s.comm, NULL, &dev), symcclInvalidArgument);
	RANK_RESULT(symcclDevCommCreate(s.comm, &r, NULL), symcclInvalidArgument);
#define REFUSE(field, value, word) \
	do { \
		bad = r; \
		bad.field = value; \
		RANK_RESULT(symcclDevCommCreate(s.comm, &bad, &dev), symcclInvalidArgument); \
		RANK_CHECK(strstr(symcclGetLastError(s.comm), word) != NULL, "said: %s", \
			symcclGetLastError(s.comm)); \
	} while (0)
	REFUSE(magic, 1, "INITIALIZER");
	REFUSE(size, 12, "INITIALIZER");
	REFUSE(version, SYMCCL_DEV_ABI + 1, "ABI");
	REFUSE(contexts, 0, "contexts");
	REFUSE(sessions, -1, "sessions");
	REFUSE(packetSlots, 1 << 30, "packetSlots");
	REFUSE(signals, -1, "signals");
	REFUSE(counters, 1 << 30, "counters");
	/* on all ranks, and the communicator goes on */
	bad = r;
	bad.signals += rank == n - 1;
	memset(&dev, 0, sizeof(dev));
	RANK_RESULT(symcclDevCommCreate(s.comm, &bad, &dev), symcclInvalidUsage);
	RANK_CHECK(dev.size == 0, "written on failure");
	/* only the kind differs */
	bad = r;
	if (rank == 0) {
		bad.contexts = r.contexts * 2;
		bad.sessions = r.sessions / 2;
	}
	RANK_RESULT(symcclDevCommCreate(s.comm, &bad, &dev), symcclInvalidUsage);
	RANK_OK(symcclDevCommCreate(s.comm, &r, &dev));
	other = dev;
	RANK_RESULT(symcclDevCommDestroy(NULL, &dev), symcclInvalidArgument);
	RANK_OK(symcclDevCommDestroy(s.comm, NULL));
	RANK_OK(symcclDevCommDestroy(s.comm, &dev));
	RANK_RESULT(symcclDevCommDestroy(s.comm, &other), symcclInvalidArgument);
	/* windows that have no address rule */
	RANK_RESULT(symcclWinGetDevice(s.comm, s.win, NULL), symcclInvalidArgument);
	RANK_RESULT(symcclWinGetDevice(s.comm, NULL, &dw), symcclInvalidArgument);
	RANK_OK(symcclCommWindowRegister(
		s.comm, s.memory + 64 * (size_t)rank, 4096, &skewed, SYMCCL_WIN_DEFAULT));
	RANK_RESULT(symcclWinGetDevice(s.comm, skewed, &dw), symcclInvalidUsage);
	RANK_OK(symcclCommWindowDeregister(s.comm, skewed));
	RANK_OK(symcclBarrier(s.comm, NULL));
	/* no such session, no team within reach */
	{
		symcclDevSession_t se;
		symcclDevTeam_t t = symcclDevTeamWorld(&s.dev);

		RANK_RESULT(symcclDevSessionOpen(&se, ctx(&s, 0), t, 2), symcclInvalidArgument);
		RANK_RESULT(symcclDevSessionOpen(&se, ctx(&s, 2), t, 0), symcclInvalidArgument);
		t.nranks++;
		RANK_RESULT(symcclDevSessionOpen(&se, ctx(&s, 0), t, 0), symcclInvalidUsage);
		RANK_RESULT(symcclDevBarrier(&se), symcclInvalidUsage);
	}
	return side_close(&s);
}
Test(devcomm, refused)
{
	run("refused", 2, 2, refused, NULL);
	run("refused", 3, 3, refused, NULL);
}

/* ---- Waits end --------------------------------------------------------------------------------
 */

static int timed_out(int rank, int n, void *arg)
{
	struct side s;
	symcclDevSession_t se;
	uint64_t data, start;

	(void)arg;
	setenv("SYMCCL_OP_TIMEOUT", "0.2", 1);
	RANK_TRY(side_open(rank, n, &s));
	RANK_OK(symcclDevSessionOpen(&se, ctx(&s, 0), symcclDevTeamWorld(&s.dev), 0));
	if (rank == 0) {
		start = now_ns();
		RANK_RESULT(symcclDevBarrier(&se), symcclTimeout);
		RANK_CHECK(now_ns() - start >= 200000000u, "too early");
		RANK_RESULT(symcclDevBarrier(&se), symcclTimeout);
		RANK_RESULT(symcclDevSessionClose(&se), symcclTimeout);
		/* it stays so, and other sessions are not concerned */
		RANK_RESULT(symcclDevSessionOpen(&se, ctx(&s, 0), symcclDevTeamWorld(&s.dev), 0),
			symcclTimeout);
		RANK_OK(symcclDevSessionOpen(&se, ctx(&s, 0), symcclDevTeamWorld(&s.dev), 1));
		RANK_RESULT(symcclDevRecv(&se, 1, 0, &data), symcclTimeout);
		RANK_RESULT(symcclDevEndEpoch(&se), symcclTimeout);
		RANK_RESULT(symcclDevSignalWait(ctx(&s, 0), 0, 1), symcclTimeout);
		RANK_RESULT(symcclDevCounterWait(ctx(&s, 0), 0, 1), symcclTimeout);
	}
	RANK_BARRIER();
	return side_close(&s);
}
Test(devcomm, a_deadline_ends_waits)
{
	run("deadline", 2, 2, timed_out, NULL);
}

/* Rank 1 aborts, or dies, while rank 0 waits. */
static int ended(int rank, int n, void *arg)
{
	int dies = *(int *)arg;
	struct side s;
	symcclDevSession_t se;

	RANK_TRY(side_open(rank, n, &s));
	RANK_OK(symcclDevSessionOpen(&se, ctx(&s, 0), symcclDevTeamWorld(&s.dev), 0));
	RANK_OK(symcclDevBarrier(&se));
	if (rank == 1) {
		usleep(20000);
		if (dies)
			ranks_die(SIGKILL);
		RANK_OK(symcclCommAbort(s.comm));
		RANK_OK(symcclMemFree(s.memory));
		return 0;
	}
	RANK_RESULT(symcclDevBarrier(&se), symcclRemoteError);
	RANK_RESULT(symcclDevSignalWait(ctx(&s, 0), 0, 1), symcclRemoteError);
	RANK_OK(symcclCommDestroy(s.comm));
	RANK_OK(symcclMemFree(s.memory));
	return 0;
}
Test(devcomm, an_abort_ends_waits)
{
	run("abort", 2, 2, ended, &(int){0});
}
Test(devcomm, a_death_ends_waits)
{
	run("death", 3, 3, ended, &(int){1});
}
