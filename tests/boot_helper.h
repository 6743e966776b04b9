/* Opening a boot from a test. */
#ifndef TESTS_BOOT_HELPER_H
#define TESTS_BOOT_HELPER_H

#include "bootstrap/bootstrap.h"

#define OPENER_MAX 512

/* The local ranks of one process. */
struct opener {
	struct boot_member members[OPENER_MAX];
	int n, given;
	int wakefd;
	struct failure why;
};

void opener_add(struct opener *o, int rank, int nranks);
/* boot_open with a deadline of s seconds. */
symcclResult_t opener_run(struct opener *o, const symcclUniqueId *id, double s, struct boot **b);
/* One rank. */
symcclResult_t open_one(int rank, int nranks, const symcclUniqueId *id, double s, struct boot **b,
	struct failure *why);
/* A new id of rank 0's process, on all ranks of the run. Returns like a rank's body. */
int share_id(int rank, symcclUniqueId *id);
/* The deadline in s seconds. */
uint64_t after(double s);

#endif
