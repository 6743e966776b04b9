/*
 * The communicator and its windows as kernels see them, teams, addresses. Included by
 * symccl_device.h.
 */
#include "names.h"
#ifndef SYMCCL_DEVICE_COMM_H
#define SYMCCL_DEVICE_COMM_H

#include <stddef.h>
#include <stdint.h>
#ifndef SYMCCL_H
#include "symccl.h"
#endif
#include "coop.h"
#include "ctrl.h"

/* Layout of the structs here. A program and a library that do not agree on it are told so by
 * symcclDevCommCreate(). */
#define SYMCCL_DEV_ABI 1u

/* A communicator as kernels see it. Programs read the first part only. */
typedef struct {
	uint32_t size, version; /* of this struct; SYMCCL_DEV_ABI */
	int32_t rank, nranks;
	int32_t lsaRank, lsaSize; /* in the team of ranks that load and store each other's memory */
	int32_t contexts, sessions, packetSlots, signals, counters; /* as they were required */
	/* symccl's own */
	uint32_t tag;
	uint64_t host;
	uint64_t base, stride; /* LSA rank 0's resources: one block, then a block for each session,
				* then signals, shadows, counters */
	uint64_t blockBytes, signalOff, shadowOff, counterOff, bytes;
	struct dev_layout layout; /* of a block */
	struct dev_watch watch;
	uint64_t reserved[5];
} symcclDevComm_t;

/* A window as kernels see it: byte i of LSA rank r is at uc + r * stride + i. */
typedef struct {
	uint64_t uc, stride;
	uint64_t mc;   /* the multicast address; 0: none */
	uint64_t size; /* bytes, the smallest rank's */
	int32_t lsaRank, lsaSize;
	uint64_t reserved[2];
} symcclDevWindow_t;

DEV_ASSERT(sizeof(symcclDevComm_t) == 216);
DEV_ASSERT(offsetof(symcclDevComm_t, host) == 48);
DEV_ASSERT(offsetof(symcclDevComm_t, layout) == 112);
DEV_ASSERT(offsetof(symcclDevComm_t, watch) == 144);
DEV_ASSERT(sizeof(symcclDevWindow_t) == 56);
DEV_ASSERT(offsetof(symcclDevWindow_t, lsaRank) == 32);

/* What the calls below work on: the communicator's value, who calls together, and which context. */
typedef struct {
	const symcclDevComm_t *comm;
	symcclDevCoop_t coop;
	int context;
} symcclDevCtx_t;

DEV symcclDevCtx_t symcclDevCtx(const symcclDevComm_t *comm, symcclDevCoop_t coop, int context)
{
	symcclDevCtx_t x;

	x.comm = comm;
	x.coop = coop;
	x.context = context;
	return x;
}

/* ---- Teams ------------------------------------------------------------------------------------
 */

/* Ranks first, first + stride, ... of the world; `rank` is the caller's number in it. */
typedef struct {
	int rank, nranks, stride;
} symcclDevTeam_t;

DEV symcclDevTeam_t symcclDevTeam(int rank, int nranks, int stride)
{
	symcclDevTeam_t t;

	t.rank = rank;
	t.nranks = nranks;
	t.stride = stride;
	return t;
}
/* All ranks. */
DEV symcclDevTeam_t symcclDevTeamWorld(const symcclDevComm_t *comm)
{
	return symcclDevTeam(comm->rank, comm->nranks, 1);
}
/* Those whose memory this rank loads and stores. */
DEV symcclDevTeam_t symcclDevTeamLsa(const symcclDevComm_t *comm)
{
	return symcclDevTeam(comm->lsaRank, comm->lsaSize, 1);
}
/* Those with the same LSA rank in each LSA team. */
DEV symcclDevTeam_t symcclDevTeamRail(const symcclDevComm_t *comm)
{
	return symcclDevTeam(
		comm->rank / comm->lsaSize, comm->nranks / comm->lsaSize, comm->lsaSize);
}
DEV int symcclDevTeamRankToWorld(const symcclDevComm_t *comm, symcclDevTeam_t team, int rank)
{
	return comm->rank + (rank - team.rank) * team.stride;
}
/* -1 when that rank's memory cannot be loaded from here. */
DEV int symcclDevTeamRankToLsa(const symcclDevComm_t *comm, symcclDevTeam_t team, int rank)
{
	int lsa = comm->lsaRank + (rank - team.rank) * team.stride;

	return lsa >= 0 && lsa < comm->lsaSize ? lsa : -1;
}
/* The team's number for a rank of the world; -1 when it is none of it. */
DEV int symcclDevWorldToTeamRank(const symcclDevComm_t *comm, symcclDevTeam_t team, int world)
{
	int away = world - comm->rank, rank = team.rank + away / team.stride;

	return away % team.stride == 0 && rank >= 0 && rank < team.nranks ? rank : -1;
}

/* ---- Addresses --------------------------------------------------------------------------------
 */

/* Byte `offset` of an LSA rank's window, the caller's own included. GPUs: within a kernel touch a
 * window's bytes through these addresses, or through the pointer that was registered, not both:
 * they are different addresses of the same memory, and caches are kept by address. */
DEV void *symcclDevLsaPtr(const symcclDevWindow_t *win, int lsaRank, size_t offset)
{
	return (void *)(uintptr_t)(win->uc + (uint64_t)lsaRank * win->stride + offset);
}
DEV void *symcclDevLocalPtr(const symcclDevWindow_t *win, size_t offset)
{
	return symcclDevLsaPtr(win, win->lsaRank, offset);
}
/* Of a team's rank; NULL when it cannot be loaded or stored from here. */
DEV void *symcclDevPeerPtr(const symcclDevComm_t *comm, const symcclDevWindow_t *win,
	symcclDevTeam_t team, int rank, size_t offset)
{
	int lsa = symcclDevTeamRankToLsa(comm, team, rank);

	return lsa < 0 ? NULL : symcclDevLsaPtr(win, lsa, offset);
}
/* Multicast: stores go to all LSA ranks, multimem loads reduce over them. NULL when there is none:
 * fewer than the GPUs, switch or SYMCCL_MC_ENABLE it needs. */
DEV void *symcclDevMulticastPtr(const symcclDevWindow_t *win, size_t offset)
{
	return win->mc == 0 ? NULL : (void *)(uintptr_t)(win->mc + offset);
}

#endif
