/* All ranks plan with rank 0's constants, whatever files the others have. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "hub.h"
#include "params.h"
#include "ranks.h"
#include "tuning.h"

TestSuite(tuning_ranks, .timeout = 60);

struct wanted {
	const char *dir;
	double latency;
	int broken; /* this rank's file */
};

static int check(int rank, int n, void *arg)
{
	const struct wanted *w = arg;
	struct coll_tuning t;
	symcclUniqueId id;
	symcclComm_t comm;
	char path[256];

	/* Each its own file. */
	coll_tuning_default(&t);
	t.latency_us = 11 + rank;
	snprintf(path, sizeof(path), "%s/%d", w->dir, rank);
	RANK_OK(tuning_store(path, &t, ""));
	if (rank == w->broken)
		RANK_CHECK(truncate(path, 40) == 0, "%m");
	setenv("SYMCCL_TUNING_FILE", path, 1);
	params_reload();
	if (rank == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_OK(symcclCommInitRank(&comm, n, id, rank));
	RANK_CHECK(comm->hub->tuning.latency_us == w->latency, "%g", comm->hub->tuning.latency_us);
	RANK_OK(symcclBarrier(comm, NULL));
	RANK_CHECK(comm->team.tuning.latency_us == w->latency, "%g", comm->team.tuning.latency_us);
	RANK_OK(symcclCommDestroy(comm));
	return 0;
}

static void run(double latency, int broken)
{
	char dir[] = "/tmp/symccl-tuning-XXXXXX", command[128], err[1024];
	struct wanted w = {dir, latency, broken};

	cr_assert_not_null(mkdtemp(dir));
	setenv("SYMCCL_DEVICE", "host", 1);
	cr_assert_eq(ranks_run(4, 30, check, &w, err, sizeof(err)), 0, "%s", err);
	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	cr_assert_eq(system(command), 0);
}

Test(tuning_ranks, rank_0_decides)
{
	run(11, 1);
}

/* The compiled constants for all, though the others have good files. */
Test(tuning_ranks, broken_file_of_rank_0)
{
	struct coll_tuning t;

	coll_tuning_default(&t);
	run(t.latency_us, 0);
}
