/* What tests of a communicator's life do all the time. */
#ifndef TESTS_LIFE_HELPER_H
#define TESTS_LIFE_HELPER_H

#include <stdint.h>
#include "ranks.h"

/* Join a new communicator of all ranks of the run. */
int life_join(int rank, int n, symcclComm_t *comm);
/* comm has rank `rank` of n, and adds fresh numbers correctly. */
int life_works(symcclComm_t comm, int rank, int n, uint64_t seed);

#endif
