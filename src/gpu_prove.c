#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cuda/driver.h"
#include "gpu_prove.h"
#include "log.h"
#include "util.h"

#define PIECE ((size_t)4096) /* of one copy */
#define SEVERAL_NODES \
	"ranks without P2P count as being on different nodes, and several nodes are not " \
	"supported yet"

/*
 * A rank's room, in pieces:
 *   [q]      written by rank q's GPU; [its own]: by the rank itself, for the others to read
 *   [n + q]  what this rank's GPU read from rank q
 */
struct proof {
	const struct hub *h;
	char *room;
	size_t stride;
	int n;
	char *host; /* one room */
};

static CUdeviceptr piece(const struct proof *p, int rank, int i)
{
	return (CUdeviceptr)(uintptr_t)(p->room + (size_t)rank * p->stride + (size_t)i * PIECE);
}

size_t gpu_prove_bytes(int nranks)
{
	return 2 * (size_t)nranks * PIECE;
}

/* Rank r's pattern: the communicator's own, so that nothing left from before matches. */
static void pattern(const struct proof *p, int r, char *out)
{
	uint64_t x = 0x9e3779b97f4a7c15u * (uint64_t)(r + 1);

	for (size_t i = 0; i < sizeof(p->h->id); i++)
		x = (x ^ (unsigned char)p->h->id.internal[i]) * 0x100000001b3u;
	for (size_t i = 0; i < PIECE; i += sizeof(x)) {
		x += 0x9e3779b97f4a7c15u;
		x ^= x >> 29;
		memcpy(out + i, &x, sizeof(x));
	}
}

enum stage { LAY_OUT, COPY, TAKE_BACK };

/* One local rank's part of a stage, on its GPU. */
static CUresult enqueue(const struct proof *p, enum stage stage, int r, CUstream s)
{
	CUdeviceptr host = (CUdeviceptr)(uintptr_t)p->host;
	CUresult e = CUDA_SUCCESS;

	if (stage == LAY_OUT) {
		pattern(p, r, p->host);
		return cu.MemcpyAsync(piece(p, r, r), host, PIECE, s);
	}
	if (stage == TAKE_BACK)
		return cu.MemcpyAsync(host, piece(p, r, 0), gpu_prove_bytes(p->n), s);
	for (int q = 0; q < p->n && e == CUDA_SUCCESS; q++) {
		if (q == r)
			continue;
		e = cu.MemcpyAsync(piece(p, q, r), piece(p, r, r), PIECE, s);
		if (e == CUDA_SUCCESS)
			e = cu.MemcpyAsync(piece(p, r, p->n + q), piece(p, q, q), PIECE, s);
	}
	return e;
}

static symcclResult_t copies(const struct proof *p, enum stage stage, int local)
{
	int r = p->h->local[local]->rank;
	CUstream s;
	CUresult e, d;

	TRY(cu_bind_thread(p->h->local[local]->device));
	e = cu.StreamCreate(&s, CU_STREAM_NON_BLOCKING);
	if (e == CUDA_SUCCESS) {
		e = enqueue(p, stage, r, s);
		d = cu.StreamSynchronize(s);
		if (d != CUDA_SUCCESS) /* an older error may have been reported instead */
			cu.StreamSynchronize(s);
		e = e != CUDA_SUCCESS ? e : d;
		d = cu.StreamDestroy(s);
		e = e != CUDA_SUCCESS ? e : d;
	}
	return e == CUDA_SUCCESS ? symcclSuccess : cu_fail(e, "trying copies between GPUs");
}

/* What rank r took back, in p->host. */
static symcclResult_t judge(const struct proof *p, int r)
{
	char want[PIECE];

	for (int q = 0; q < p->n; q++) {
		if (q == r)
			continue;
		pattern(p, q, want);
		if (memcmp(p->host + (size_t)q * PIECE, want, PIECE) != 0)
			return fail(symcclInvalidUsage,
				"what rank %d's GPU wrote did not arrive in the memory of rank "
				"%d's: P2P "
				"between them does not work, whatever the driver "
				"says; " SEVERAL_NODES,
				q, r);
		if (memcmp(p->host + (size_t)(p->n + q) * PIECE, want, PIECE) != 0)
			return fail(symcclInvalidUsage,
				"rank %d's GPU read something else than what is in the memory of "
				"rank "
				"%d's: P2P between them does not work, whatever the driver "
				"says; " SEVERAL_NODES,
				r, q);
	}
	return symcclSuccess;
}

/* The first failure of all processes, or success. */
static symcclResult_t verdict(struct hub *h, symcclResult_t e, uint64_t deadline)
{
	struct failure mine = {.code = e}, first = {.code = symcclSuccess};
	const void **all;
	const size_t *len;

	if (e != symcclSuccess)
		snprintf(mine.text, sizeof(mine.text), "%s", error_text());
	TRY(boot_allgather(
		h->boot, &mine, e == symcclSuccess ? 0 : sizeof(mine), &all, &len, deadline));
	for (int i = h->boot->nprocs - 1; i >= 0; i--)
		if (len[i] == sizeof(first))
			memcpy(&first, all[i], sizeof(first));
	first.text[sizeof(first.text) - 1] = '\0';
	return first.code == symcclSuccess ? symcclSuccess : fail(first.code, "%s", first.text);
}

symcclResult_t gpu_prove(struct hub *h, char *room, size_t stride, uint64_t deadline)
{
	struct proof p = {.h = h, .room = room, .stride = stride, .n = h->nranks};
	uint64_t t = now_ns();
	symcclResult_t e = symcclSuccess;

	p.host = malloc(gpu_prove_bytes(h->nranks));
	if (p.host == NULL)
		e = fail(symcclSystemError, "out of memory for trying copies between GPUs");
	for (int stage = LAY_OUT; stage <= TAKE_BACK && e == symcclSuccess; stage++) {
		for (int l = 0; l < h->nlocal && e == symcclSuccess; l++) {
			e = copies(&p, (enum stage)stage, l);
			if (e == symcclSuccess && stage == TAKE_BACK)
				e = judge(&p, h->local[l]->rank);
		}
		/* Also the barrier between the stages. */
		e = verdict(h, e, deadline);
	}
	free(p.host);
	if (e == symcclSuccess)
		log_info(LOG_INIT, "copies between all ranks' GPUs arrive (tried in %.1f ms)",
			(double)(now_ns() - t) / 1e6);
	return e;
}

/* ---- What the driver says -------------------------------------------------------------------- */

/* The GPU of that name as this process counts; -1: not visible. */
static int visible(const uint8_t *uuid)
{
	CUuuid u;

	for (int i = 0; i < cuda_devices()->n; i++)
		if (cu.DeviceGetUuid(&u, cuda_devices()->d[i].dev) == CUDA_SUCCESS &&
			memcmp(&u, uuid, sizeof(u)) == 0)
			return i;
	return -1;
}

symcclResult_t gpu_may_reach(const struct hub *h, const struct gpu_hello *all)
{
	for (int r = 0; r < h->nranks; r++) {
		int peer = visible(all[r].uuid);

		for (int l = 0; l < h->nlocal; l++) {
			int mine = h->local[l]->device, can = 1;
			CUresult e = CUDA_SUCCESS;

			if (peer >= 0 && peer != mine)
				e = cu.DeviceCanAccessPeer(&can, cuda_devices()->d[mine].dev,
					cuda_devices()->d[peer].dev);
			if (e != CUDA_SUCCESS)
				return cu_fail(
					e, "asking whether GPU %d reaches GPU %d", mine, peer);
			if (!can)
				return fail(symcclInvalidUsage,
					"GPU %d of rank %d has no P2P access to GPU %d of rank "
					"%d: " SEVERAL_NODES,
					mine, h->local[l]->rank, peer, r);
		}
	}
	return symcclSuccess;
}
