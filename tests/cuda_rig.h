/*
 * Ranks with a communicator each over the driver double, several in a process if need be, and one
 * collective of theirs: made up, enqueued, compared with the oracle. For programs that are linked
 * with fakecuda/kernels.o and have FAKE_IMAGES.
 */
#ifndef CUDA_RIG_H
#define CUDA_RIG_H

#include "cuda/driver.h"
#include "coll/coll.h"
#include "fakecuda/fakecuda.h"
#include "ranks.h"

enum { CUDA_RIG_LOCAL = 4, CUDA_RIG_RANKS = 9 }; /* most of a process, of all */
#define CUDA_RIG_ROOM ((size_t)8 << 20)          /* bytes of a buffer */

/* Processes, ranks of each, and how many GPUs the double has. */
struct cuda_shape {
	int procs, local;
	const char *devices;
};

struct cuda_member {
	int rank, device;
	symcclComm_t comm;
	CUstream stream[2];
	char *buf[3]; /* two windows, plain memory */
	symcclWindow_t win[2];
};
struct cuda_rig {
	int nranks, nlocal;
	struct cuda_member m[CUDA_RIG_LOCAL];
};

/* A call and where its buffers lie. */
struct cuda_one {
	symcclFunc_t func;
	symcclDataType_t type;
	symcclRedOp_t op;
	size_t count, at;       /* at: byte offset in both buffers */
	int from, to, in_place; /* numbers of cuda_member.buf */
};

int cuda_ok(CUresult r, const char *what);
#define CU_OK(call) RANK_TRY(cuda_ok((call), #call))
static inline CUdeviceptr dev(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

/* The process's side of it: the double, streams, memory; and the end of that. */
int cuda_rig_start(struct cuda_rig *g, int proc, const struct cuda_shape *s);
int cuda_rig_stop(struct cuda_rig *g);
/* The same id in all processes. */
int cuda_rig_id(int proc, symcclUniqueId *id);
/* All local ranks in one group: join a communicator; register buffers 0 and 1. */
symcclResult_t cuda_rig_join(struct cuda_rig *g, symcclUniqueId id);
symcclResult_t cuda_rig_enroll(struct cuda_rig *g);
/* All of these, and back. */
int cuda_rig_open(struct cuda_rig *g, int proc, const struct cuda_shape *s);
int cuda_rig_close(struct cuda_rig *g);
/* Wait for all streams; no communicator may have failed. */
int cuda_rig_sync(struct cuda_rig *g);

/* Any of the three collectives, from a seed. */
struct cuda_one cuda_one_random(uint64_t seed, int nranks);
void cuda_one_places(
	const struct cuda_one *o, const struct cuda_member *m, char **send, char **recv);
symcclResult_t cuda_one_enqueue(const struct cuda_one *o, struct cuda_member *m, CUstream stream);

/* For all local ranks: fill the inputs and poison the outputs; make the call as a group on stream
 * `which`; compare every byte. */
void cuda_rig_load(struct cuda_rig *g, const struct cuda_one *o, uint64_t seed);
int cuda_rig_enqueue(struct cuda_rig *g, const struct cuda_one *o, int which);
int cuda_rig_compare(struct cuda_rig *g, const struct cuda_one *o, uint64_t seed);

#endif
