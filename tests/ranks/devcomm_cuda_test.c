/*
 * Device communicators on the CUDA backend over the driver double: made in a group for several
 * ranks of a process, on "GPU" memory, which CPU threads can run the calls on; and what the library
 * makes of a kernel that gave up.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cuda/driver.h"
#include "fakecuda/fakecuda.h"
#include "params.h"
#include "ranks.h"
#include "symccl_device.h"

TestSuite(devcomm_cuda, .timeout = 60);

FAKE_IMAGES

enum { LOCAL = 2, WINDOW = 1 << 20 };

struct member {
	int rank;
	symcclComm_t comm;
	void *memory;
	symcclWindow_t win;
	symcclDevWindow_t w;
	symcclDevComm_t dev;
	symcclResult_t result;
};
static struct member m[LOCAL];

static int open_all(int proc, int nprocs, const char *timeout)
{
	symcclDevCommRequirements_t r = SYMCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
	symcclUniqueId id;

	r.packetSlots = 8;
	r.signals = 1;
	setenv("FAKECUDA_DEVICES", "2", 1);
	setenv("SYMCCL_DEVICE", "cuda", 1);
	setenv("SYMCCL_WIN_STRIDE", "256M", 1);
	setenv("SYMCCL_OP_TIMEOUT", timeout, 1);
	setenv("SYMCCL_DEBUG", "none", 1);
	params_reload();
	fake_kernels_register();
	RANK_CHECK(cuda_open() == NULL, "%s", cuda_open());
	if (proc == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_OK(symcclGroupStart());
	for (int i = 0; i < LOCAL; i++) {
		m[i].rank = proc * LOCAL + i;
		RANK_OK(cu_bind_thread(m[i].rank % 2));
		RANK_OK(symcclCommInitRank(&m[i].comm, nprocs * LOCAL, id, m[i].rank));
	}
	RANK_OK(symcclGroupEnd());
	RANK_OK(symcclGroupStart());
	for (int i = 0; i < LOCAL; i++) {
		RANK_OK(cu_bind_thread(m[i].rank % 2));
		RANK_OK(symcclMemAlloc(&m[i].memory, WINDOW));
		RANK_OK(symcclCommWindowRegister(
			m[i].comm, m[i].memory, WINDOW, &m[i].win, SYMCCL_WIN_COLL_SYMMETRIC));
		RANK_OK(symcclDevCommCreate(m[i].comm, &r, &m[i].dev));
	}
	RANK_OK(symcclGroupEnd());
	for (int i = 0; i < LOCAL; i++)
		RANK_OK(symcclWinGetDevice(m[i].comm, m[i].win, &m[i].w));
	return 0;
}

static int close_all(void)
{
	for (int i = 0; i < LOCAL; i++)
		RANK_OK(symcclCommDestroy(m[i].comm));
	for (int i = 0; i < LOCAL; i++)
		RANK_OK(symcclMemFree(m[i].memory));
	return 0;
}

/* A rank's kernel: every rank's packet to every rank, then words between barriers. */
static void *kernel(void *arg)
{
	struct member *k = arg;
	symcclDevTeam_t t = symcclDevTeamLsa(&k->dev);
	symcclDevSession_t s;
	uint64_t got;

	symcclDevSessionOpen(&s, symcclDevCtx(&k->dev, symcclDevThread(), 0), t, 0);
	for (int e = 0; e < 100 && s.result == symcclSuccess; e++) {
		symcclDevSendAll(&s, (uint32_t)k->rank, (uint64_t)(e * 10 + k->rank));
		for (int q = 0; q < t.nranks; q++)
			if (q != k->rank && symcclDevRecv(&s, q, (uint32_t)q, &got) == 0 &&
				got != (uint64_t)(e * 10 + q))
				k->result = symcclInternalError;
		symcclDevEndEpoch(&s);
		*(int *)symcclDevLsaPtr(&k->w, (k->rank + 1) % t.nranks, 64) = e;
		symcclDevBarrier(&s);
		if (*(int *)symcclDevLocalPtr(&k->w, 64) != e)
			k->result = symcclInternalError;
		symcclDevBarrier(&s);
	}
	if (symcclDevSessionClose(&s) != symcclSuccess)
		k->result = s.result;
	return NULL;
}

static int used(int proc, int n, void *arg)
{
	pthread_t thread[LOCAL];

	(void)arg;
	RANK_TRY(open_all(proc, n, "30"));
	for (int i = 0; i < LOCAL; i++)
		RANK_CHECK(pthread_create(&thread[i], NULL, kernel, &m[i]) == 0, "a thread");
	for (int i = 0; i < LOCAL; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < LOCAL; i++)
		RANK_CHECK(m[i].result == symcclSuccess, "rank %d: %d", m[i].rank, m[i].result);
	RANK_OK(symcclDevCommDestroy(m[0].comm, &m[0].dev));
	RANK_BARRIER();
	return close_all();
}

/* The worker looks at the records now and then; then the communicator says why. */
static int comes_to(symcclComm_t comm, symcclResult_t want, const char *says)
{
	symcclResult_t e = symcclSuccess;

	for (int i = 0; i < 500 && e == symcclSuccess; i++) {
		usleep(10000);
		RANK_OK(symcclCommGetAsyncError(comm, &e));
	}
	RANK_CHECK(e == want, "asynchronous error %d", (int)e);
	RANK_CHECK(strstr(symcclGetLastError(comm), says) != NULL, "said: %s",
		symcclGetLastError(comm));
	return 0;
}

static int gave_up(int proc, int n, void *arg)
{
	int at_signal = *(int *)arg;
	symcclDevSession_t s;
	symcclDevCtx_t x;

	RANK_TRY(open_all(proc, n, "0.2"));
	x = symcclDevCtx(&m[0].dev, symcclDevThread(), 0);
	if (at_signal) {
		RANK_RESULT(symcclDevSignalWait(x, 0, 1), symcclTimeout);
		RANK_TRY(comes_to(
			m[0].comm, symcclTimeout, "rank 0's kernel waited 0.2 s for a signal"));
	} else {
		RANK_OK(symcclDevSessionOpen(&s, x, symcclDevTeamLsa(&m[0].dev), 0));
		RANK_RESULT(symcclDevBarrier(&s), symcclTimeout);
		RANK_TRY(comes_to(
			m[0].comm, symcclTimeout, "rank 0's kernel waited 0.2 s for rank 1"));
		/* and so end the waits of the others */
		x = symcclDevCtx(&m[1].dev, symcclDevThread(), 0);
		RANK_RESULT(symcclDevSignalWait(x, 0, 1), symcclRemoteError);
	}
	return close_all();
}

static void run(int procs, rank_fn *fn, void *arg)
{
	char err[1024];

	cr_assert_eq(ranks_run(procs, 50, fn, arg, err, sizeof(err)), 0, "%s", err);
}
Test(devcomm_cuda, in_a_group)
{
	run(1, used, NULL);
}
Test(devcomm_cuda, between_processes)
{
	run(2, used, NULL);
}
Test(devcomm_cuda, a_kernel_that_gave_up_at_a_barrier)
{
	run(1, gave_up, &(int){0});
}
Test(devcomm_cuda, a_kernel_that_gave_up_at_a_signal)
{
	run(1, gave_up, &(int){1});
}
