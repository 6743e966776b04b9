#include "moves.h"
#include <stdio.h>
#include <string.h>
#include "mem.h"
#include "util.h"

#define GUARD 0x5a

size_t moves_pair_bytes(const struct moves *m, int from, int to)
{
	uint64_t x = mix64(m->seed, (uint64_t)(from * 1031 + to));

	return x % 5 == 0 ? 0 : (x >> 8) % (m->block + 1);
}

/* Does the rank send to (1) or receive from (0) every rank, or only one block? */
static int many(const struct moves *m, int rank, int sends)
{
	switch (m->func) {
	case symcclFuncAlltoAll:
		return 1;
	case symcclFuncAllGather:
		return !sends;
	case symcclFuncGather:
		return !sends && rank == m->root;
	case symcclFuncScatter:
		return sends && rank == m->root;
	default:
		return 0;
	}
}

static size_t vector_bytes(const struct moves *m, int rank, int sends)
{
	size_t n = 0;

	for (int q = 0; q < m->n; q++)
		n += sends ? moves_pair_bytes(m, rank, q) : moves_pair_bytes(m, q, rank);
	return n;
}

size_t moves_send_bytes(const struct moves *m, int rank)
{
	if (m->func == symcclFuncAlltoAllv)
		return vector_bytes(m, rank, 1);
	if ((m->func == symcclFuncBroadcast || m->func == symcclFuncScatter) && rank != m->root)
		return 0;
	return m->block * (size_t)(many(m, rank, 1) ? m->n : 1);
}

size_t moves_recv_bytes(const struct moves *m, int rank)
{
	if (m->func == symcclFuncAlltoAllv)
		return vector_bytes(m, rank, 0);
	if (m->func == symcclFuncGather && rank != m->root)
		return 0;
	return m->block * (size_t)(many(m, rank, 0) ? m->n : 1);
}

int moves_in_place(const struct moves *m, int rank, ptrdiff_t *send_at)
{
	ptrdiff_t own = (ptrdiff_t)((size_t)rank * m->block);
	int all = m->func == symcclFuncAlltoAll || m->func == symcclFuncAllGather;

	*send_at = m->func == symcclFuncGather || m->func == symcclFuncAllGather ? own
		   : m->func == symcclFuncScatter                                ? -own
										 : 0;
	return m->in_place && m->func != symcclFuncAlltoAllv && (all || rank == m->root);
}

/* What goes from one rank to another. */
static uint64_t pair_seed(const struct moves *m, int from, int to)
{
	if (m->func == symcclFuncBroadcast || m->func == symcclFuncAllGather)
		to = 0;
	return mix64(m->seed + 1, (uint64_t)(from * 4099 + to));
}

/* Block k of a rank's buffer: where it begins, how long it is, and its bytes. */
struct piece {
	size_t at, n;
	uint64_t seed;
};
static int pieces(const struct moves *m, int rank, int sends)
{
	if (sends ? moves_send_bytes(m, rank) == 0 : moves_recv_bytes(m, rank) == 0)
		return 0;
	return many(m, rank, sends) || m->func == symcclFuncAlltoAllv ? m->n : 1;
}
static void piece(const struct moves *m, int rank, int sends, int k, struct piece *p)
{
	int one = pieces(m, rank, sends) == 1;
	int peer = !one ? k : !sends ? m->root : m->func == symcclFuncGather ? m->root : rank;

	*p = (struct piece){.at = (size_t)k * m->block, .n = m->block};
	if (m->func == symcclFuncAlltoAllv) {
		peer = k;
		p->at = 0;
		for (int q = 0; q < k; q++)
			p->at +=
				sends ? moves_pair_bytes(m, rank, q) : moves_pair_bytes(m, q, rank);
		p->n = sends ? moves_pair_bytes(m, rank, k) : moves_pair_bytes(m, k, rank);
	}
	p->seed = sends ? pair_seed(m, rank, peer) : pair_seed(m, peer, rank);
}

void moves_fill(const struct moves *m, int rank, char *send, char *recv)
{
	size_t sent = moves_send_bytes(m, rank), received = moves_recv_bytes(m, rank);
	ptrdiff_t unused;
	int in_place = moves_in_place(m, rank, &unused);
	struct piece p;

	if (received > 0) {
		memset(recv - MOVES_GUARD, GUARD, MOVES_GUARD);
		poison(recv, received);
		memset(recv + received, GUARD, MOVES_GUARD);
	}
	if (sent > 0 && (!in_place || sent > received)) {
		memset(send - MOVES_GUARD, GUARD, MOVES_GUARD);
		memset(send + sent, GUARD, MOVES_GUARD);
	}
	for (int k = 0; k < pieces(m, rank, 1); k++) {
		piece(m, rank, 1, k, &p);
		fill_bytes(send + p.at, p.n, p.seed);
	}
}

static int guards(const char *p, size_t n)
{
	for (size_t i = 0; i < MOVES_GUARD; i++)
		if (p[(ptrdiff_t)i - MOVES_GUARD] != GUARD || p[n + i] != GUARD)
			return 0;
	return 1;
}

int moves_verify(const struct moves *m, int rank, const char *send, const char *recv, char *why,
	size_t whylen)
{
	size_t sent = moves_send_bytes(m, rank), received = moves_recv_bytes(m, rank);
	ptrdiff_t at;
	int in_place = moves_in_place(m, rank, &at);
	struct piece p;

	for (int k = 0; k < pieces(m, rank, 0); k++) {
		size_t bad;

		piece(m, rank, 0, k, &p);
		bad = check_bytes(recv + p.at, p.n, p.seed);
		if (bad < p.n) {
			snprintf(why, whylen, "rank %d: byte %zu of the %zu of block %d is wrong",
				rank, bad, p.n, k);
			return 1;
		}
	}
	for (int k = 0; k < pieces(m, rank, 1); k++) {
		piece(m, rank, 1, k, &p);
		/* What the output covers has been compared. */
		if (in_place && (sent <= received || (ptrdiff_t)p.at == -at))
			continue;
		if (check_bytes(send + p.at, p.n, p.seed) < p.n) {
			snprintf(
				why, whylen, "rank %d: block %d of its input has changed", rank, k);
			return 1;
		}
	}
	if ((received > 0 && !(in_place && sent > received) && !guards(recv, received)) ||
		(sent > 0 && (!in_place || sent > received) && !guards(send, sent))) {
		snprintf(why, whylen, "rank %d: wrote beyond a buffer", rank);
		return 1;
	}
	return 0;
}
