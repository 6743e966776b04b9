/*
 * The calls beyond the first three collectives over the driver double, with the kernels on threads
 * of the CPU: the same as on a GPU (gpu/calls_body.h), at few sizes.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include "fakecuda/fakecuda.h"
#include "params.h"
#include "ranks.h"

#define CHECK RANK_CHECK
#define RIG_BARRIER() RANK_BARRIER()
#include "gpu/calls_body.h"

TestSuite(comm_cuda_calls, .timeout = 140);

FAKE_IMAGES

struct shape {
	int procs, local;
	const char *devices;
	int calls;
};

static int shape_open(int proc, const struct shape *s, size_t room)
{
	symcclUniqueId id;

	setenv("FAKECUDA_DEVICES", s->devices, 1);
	setenv("FAKECUDA_ASYNC", "1", 1);
	setenv("SYMCCL_DEVICE", "cuda", 1);
	setenv("SYMCCL_WIN_STRIDE", "256M", 1);
	setenv("SYMCCL_OP_TIMEOUT", "60", 1);
	setenv("SYMCCL_DEBUG", "none", 1);
	params_reload();
	fake_kernels_register();
	if (proc == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_CHECK(cuda_open() == NULL, "%s", cuda_open());
	return rig_open(proc, s->procs, s->local, id, room);
}

static int random_calls(int proc, int n, void *arg)
{
	const struct shape *s = arg;

	(void)n;
	RANK_TRY(shape_open(proc, s, (size_t)8 << 20));
	for (int i = 0; i < s->calls; i++) {
		struct call c = random_call(all_funcs[i % (int)ARRAY_LEN(all_funcs)],
			test_seed() + 1000 * (uint64_t)i, (size_t)5 << 20);

		ranks_note("call %d: func %d count %zu", i, c.func, c.count);
		RANK_TRY(call_check(&c));
		RANK_BARRIER();
		if (i % 4 == 0) {
			RANK_TRY(others_check(c.seed));
			RANK_BARRIER();
		}
	}
	return rig_close();
}

static void run(const struct shape *s, rank_fn *fn)
{
	char err[1500];

	test_seed();
	cr_assert_eq(ranks_run(s->procs, 120, fn, (void *)s, err, sizeof(err)), 0,
		"%d processes of %d ranks on %s GPUs: %s", s->procs, s->local, s->devices, err);
}

Test(comm_cuda_calls, between_processes)
{
	run(&(struct shape){2, 1, "1", 80}, random_calls);
}

Test(comm_cuda_calls, in_one_process)
{
	run(&(struct shape){1, 3, "2", 60}, random_calls);
}

Test(comm_cuda_calls, mixed)
{
	run(&(struct shape){2, 2, "2", 60}, random_calls);
}

Test(comm_cuda_calls, alone)
{
	run(&(struct shape){1, 1, "1", 40}, random_calls);
}
