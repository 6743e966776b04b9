/*
 * symccl's device API: a program's own kernels on symmetric windows. For CUDA C++ (nvcc) and for C
 * and C++ on CPUs (gcc, clang): the same calls, the same protocols. docs/device.md is the manual.
 *
 * On the host: symcclDevCommCreate() gives a symcclDevComm_t, symcclWinGetDevice() turns a window
 * into a symcclDevWindow_t. Both are plain values; pass them to kernels as arguments:
 *
 *	__global__ void k(const __grid_constant__ symcclDevComm_t comm, symcclDevWindow_t win)
 *
 * In the kernel: teams and addresses (symccl_device/comm.h), who calls together
 * (symccl_device/coop.h), sessions with barriers and packets
 * (symccl_device/session.h), put, get, signals and counters (symccl_device/transfer.h), copies and
 * reductions (symccl_device/reduce.h).
 *
 * On a CPU a kernel is a function that threads call. A thread counts as a CTA of its own: every
 * scope below is that thread alone.
 *
 * Waiting calls end with the communicator (a death, an abort) and at SYMCCL_OP_TIMEOUT; they return
 * symcclSuccess or why not, and never trap. Names that begin with symccl_ or SYMCCL_ in the headers
 * under symccl_device/ are symccl's own.
 */
#include "symccl_device/names.h"
#ifndef SYMCCL_DEVICE_H
#define SYMCCL_DEVICE_H

#include <stddef.h>
#include <stdint.h>
#include "symccl.h"
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a struct and a function have one name */
#endif
#include "symccl_device/comm.h"
#include "symccl_device/reduce.h"
#include "symccl_device/session.h"
#include "symccl_device/transfer.h"
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/* ---- On the host ------------------------------------------------------------------------ */

/* What kernels will use. Fill with SYMCCL_DEV_COMM_REQUIREMENTS_INITIALIZER, then set fields. Must
 * be equal on all ranks. */
typedef struct {
	size_t size;          /* sizeof(symcclDevCommRequirements_t) as the caller was compiled */
	unsigned int magic;   /* SYMCCL_DEV_MAGIC */
	unsigned int version; /* SYMCCL_DEV_ABI */
	int contexts;    /* kernels that may run at the same time, each with sessions of its own */
	int sessions;    /* of each context: CTAs that meet their peers' (or warps: docs) */
	int packetSlots; /* packets that each session can receive in one epoch */
	int signals;     /* words that peers add to */
	int counters;    /* words that count this rank's own finished puts */
} symcclDevCommRequirements_t;

#define SYMCCL_DEV_MAGIC 0x53594d44u
#define SYMCCL_DEV_COMM_REQUIREMENTS_INITIALIZER \
	{ \
		sizeof(symcclDevCommRequirements_t), SYMCCL_DEV_MAGIC, SYMCCL_DEV_ABI, 1, 1, 0, 0, \
			0 \
	}

DEV_ASSERT(sizeof(symcclDevCommRequirements_t) == 40);
DEV_ASSERT(offsetof(symcclDevCommRequirements_t, contexts) == 16);

#ifdef __cplusplus
extern "C" {
#endif

/* Make what kernels need: barriers, packet memory, signals, counters, in one symmetric window of
 * the communicator. Collective; blocks as symcclCommWindowRegister(). In a group *devComm is
 * written by symcclGroupEnd(). A communicator may have several.
 * Return: symcclInvalidArgument for a bad or old struct or a field out of range; symcclInvalidUsage
 * on all ranks when requirements differ; what symcclMemAlloc() and symcclCommWindowRegister()
 * return. */
SYMCCL_API symcclResult_t symcclDevCommCreate(
	symcclComm_t comm, const symcclDevCommRequirements_t *reqs, symcclDevComm_t *devComm);
/* Give it back; the caller's kernels that use it have finished. Local; peers' kernels may still
 * run. symcclCommDestroy() does it for those that are left. NULL is accepted.
 * Return: symcclInvalidArgument when it is none of comm's. */
SYMCCL_API symcclResult_t symcclDevCommDestroy(symcclComm_t comm, const symcclDevComm_t *devComm);
/* The window for kernels. Local.
 * Return: symcclInvalidUsage when ranks registered memory at different offsets, or memory that
 * cannot be shared: such a window has no address rule. */
SYMCCL_API symcclResult_t symcclWinGetDevice(
	symcclComm_t comm, symcclWindow_t win, symcclDevWindow_t *devWin);

#ifdef __cplusplus
}
#endif

#endif
#include "symccl_device/names_end.h"
