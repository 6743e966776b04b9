/*
 * Sessions: one CTA (or warp, or thread) of a rank with the same of every peer in a team. Included
 * by symccl_device.h.
 *
 * A session goes through epochs, one after the other. An epoch is a barrier, or an exchange of
 * packets in which every rank of the team sends at least one packet to every other and receives
 * all that are sent to it. (Both in one epoch is fine, too: packets, then the barrier that ends
 * it.) Peers go through the same epochs in the same order. The count lives in memory, so the next
 * kernel goes on where this one stopped, also when a graph is replayed.
 *
 * Session `index` of a context belongs to one CTA at a time, and to one team for good.
 */
#include "names.h"
#ifndef SYMCCL_DEVICE_SESSION_H
#define SYMCCL_DEVICE_SESSION_H

#include "barrier.h"
#include "comm.h"
#include "packet.h"

/* Symccl's own. Each thread has its copy. */
typedef struct {
	struct dev_team team; /* the session's own block of every rank */
	struct dev_watch watch;
	struct dev_epoch epoch;
	symcclDevCoop_t coop;
	uint32_t index, slots;
	uint64_t first; /* epoch it began with */
	int failed;
	symcclResult_t result;
} symcclDevSession_t;

/* Why a rank's block is dead. */
DEV symcclResult_t dead_result(const struct dev_team *t)
{
	uint32_t dead = load_relaxed32(&team_head(t)->dead);

	return dead == DEV_TIMED_OUT ? symcclTimeout
	       : dead == DEV_DIFFERS ? symcclInvalidUsage
				     : symcclRemoteError;
}

/* Block `number` of the team's ranks; 0 is for waits outside of sessions. */
DEV struct dev_team block_team(const symcclDevComm_t *comm, symcclDevTeam_t team, uint32_t number)
{
	struct dev_team t;
	int first = comm->lsaRank - team.rank * team.stride;

	t.ctrl = comm->base + (uint64_t)first * comm->stride + number * comm->blockBytes;
	t.stride = (uint64_t)team.stride * comm->stride;
	t.layout = comm->layout;
	t.rank = (uint32_t)team.rank;
	t.nranks = (uint32_t)team.nranks;
	return t;
}

/* A new epoch has begun, nothing is sent yet. */
DEV void session_prepare(symcclDevSession_t *s)
{
	if (epoch_period_ends(&s->epoch)) {
		struct dev_team t = s->team; /* a copy, so that *s can stay in registers */

		epoch_zero_half(&t, s->epoch.number, s->coop.thread, s->coop.width);
		coop_sync(s->coop);
	}
}

/* The epoch ends, and all threads know how. */
DEV symcclResult_t session_step(symcclDevSession_t *s, int gave_up)
{
	if (gave_up) {
		s->result = dead_result(&s->team);
		return s->result;
	}
	s->epoch.number++;
	s->epoch.flag = epoch_flag(s->epoch.number);
	session_prepare(s);
	return symcclSuccess;
}

/* Begin. All threads of x.coop, which keep *s until they close it. Once a session has failed it
 * stays so, in later kernels too.
 * Return: symcclInvalidArgument: no such session or context; symcclInvalidUsage: the team has ranks
 * that cannot be stored to from here; else why it failed before. */
DEV symcclResult_t symcclDevSessionOpen(
	symcclDevSession_t *s, symcclDevCtx_t x, symcclDevTeam_t team, int index)
{
	const symcclDevComm_t *c = x.comm;

	s->coop = x.coop;
	s->failed = 0;
	s->result = symcclSuccess;
	if (index < 0 || index >= c->sessions || x.context < 0 || x.context >= c->contexts)
		s->result = symcclInvalidArgument;
	else if (symcclDevTeamRankToLsa(c, team, 0) < 0 ||
		 symcclDevTeamRankToLsa(c, team, team.nranks - 1) < 0)
		s->result = symcclInvalidUsage;
	if (s->result != symcclSuccess)
		return s->result;
	s->index = (uint32_t)(x.context * c->sessions + index);
	s->team = block_team(c, team, 1 + s->index);
	s->watch = c->watch;
	s->slots = (uint32_t)c->packetSlots;
	s->epoch = epoch_begin(&s->team);
	s->first = s->epoch.number;
	if (s->epoch.dead != DEV_ALIVE)
		s->result = dead_result(&s->team);
	else
		session_prepare(s);
	return s->result;
}

/* End: it may be opened again, by these threads or in a later kernel. All threads. Does not wait
 * for peers. Return: the session's first failure, or symcclSuccess. */
DEV symcclResult_t symcclDevSessionClose(symcclDevSession_t *s)
{
	if (s->coop.thread == 0 && s->epoch.number != s->first)
		store_relaxed64(&team_head(&s->team)->arrivals, s->epoch.number << DEV_EPOCH_SHIFT);
	if (coop_sync_or(s->coop, s->failed) && s->result == symcclSuccess)
		s->result = dead_result(&s->team);
	return s->result;
}

/* ---- Barriers ------------------------------------------------------------------------------- */

/* The first half of a barrier: tell the peers that this rank's threads have come. What they wrote
 * before, to whatever memory, peers see after their wait. All threads. */
DEV void symcclDevBarrierArrive(symcclDevSession_t *s)
{
	if (s->result != symcclSuccess)
		return;
	coop_sync(s->coop);
	barrier_arrive(&s->team, &s->epoch, s->watch.hash, 0, 0, s->coop.thread, s->coop.width, 0);
}
/* The second half: wait until all peers have arrived. Ends the epoch. All threads.
 * Return: symcclTimeout, symcclRemoteError (the communicator is over), symcclInvalidUsage. */
DEV symcclResult_t symcclDevBarrierWait(symcclDevSession_t *s)
{
	int gave_up;

	if (s->result != symcclSuccess)
		return s->result;
	gave_up =
		barrier_await(&s->team, &s->epoch, &s->watch, 0, 0, s->coop.thread, s->coop.width);
	return session_step(s, coop_sync_or(s->coop, gave_up | s->failed));
}
/* Both. */
DEV symcclResult_t symcclDevBarrier(symcclDevSession_t *s)
{
	symcclDevBarrierArrive(s);
	return symcclDevBarrierWait(s);
}

/* ---- Packets -------------------------------------------------------------------------------- */

/* Send 8 bytes to slot `slot` (0 <= slot < packetSlots, not checked) of a rank of the team. One
 * thread; waits for nothing. A slot takes one packet an epoch. */
DEV void symcclDevSend(symcclDevSession_t *s, int rank, uint32_t slot, uint64_t data)
{
	if (s->result == symcclSuccess)
		packet_store(packet_slots(&s->team, (uint32_t)rank, &s->epoch) +
				     (uint64_t)PACKET_BYTES * slot,
			data, s->epoch.flag);
}
/* To every other rank of the team. */
DEV void symcclDevSendAll(symcclDevSession_t *s, uint32_t slot, uint64_t data)
{
	DEV_LOOP
	for (uint32_t d = 1; d < s->team.nranks; d++) {
		uint32_t q = s->team.rank + d;

		symcclDevSend(s, (int)(q < s->team.nranks ? q : q - s->team.nranks), slot, data);
	}
}
/* Wait for the packet in one's own slot `slot`; from: the team's rank that sends it, for the error.
 * One thread; *data is written on success only. What the sender wrote elsewhere before is not
 * ordered: a barrier or a signal does that.
 * Return: as symcclDevBarrierWait(); the other threads learn of it at the epoch's end. */
DEV symcclResult_t symcclDevRecv(symcclDevSession_t *s, int from, uint32_t slot, uint64_t *data)
{
	const char *at =
		packet_slots(&s->team, s->team.rank, &s->epoch) + (uint64_t)PACKET_BYTES * slot;
	uint64_t got;

	if (s->result != symcclSuccess)
		return s->result;
	if (packet_await(&s->team, &s->epoch, &s->watch, at, (uint32_t)from, s->index, &got)) {
		s->failed = 1;
		return dead_result(&s->team);
	}
	*data = got;
	return symcclSuccess;
}
/* All packets of the epoch are sent and received. All threads; does not wait for peers.
 * Return: what a Recv of any of them has failed with. */
DEV symcclResult_t symcclDevEndEpoch(symcclDevSession_t *s)
{
	int failed = coop_sync_or(s->coop, s->failed);

	return s->result != symcclSuccess ? s->result : session_step(s, failed);
}

#ifdef __cplusplus
/* Receive U packets from each other rank of a team of N, all in flight together: rank q's number u
 * from slot + q * byRank + u * byPacket, to data[q][u]. data[one's own rank][u] is own[u]. One
 * thread. Return: as symcclDevRecv(). */
template <int N, int U>
DEV symcclResult_t symcclDevRecvTeam(symcclDevSession_t *s, uint32_t slot, uint32_t byRank,
	uint32_t byPacket, const uint64_t (&own)[U], uint64_t (&data)[N][U])
{
	const char *at =
		packet_slots(&s->team, s->team.rank, &s->epoch) + (uint64_t)PACKET_BYTES * slot;
	const int me = (int)s->team.rank;
	struct dev_wait wait = {0, 0};

	if (s->result != symcclSuccess)
		return s->result;
	for (;;) {
		struct pair64 p[N][U];
		int missing = -1;

		DEV_UNROLL
		for (int q = 0; q < N; q++)
			DEV_UNROLL
		for (int u = 0; u < U; u++)
			if (q != me)
				p[q][u] = load_relaxed_pair(
					at + (uint64_t)PACKET_BYTES * (q * byRank + u * byPacket));
		DEV_UNROLL
		for (int q = 0; q < N; q++)
			DEV_UNROLL
		for (int u = 0; u < U; u++) {
			data[q][u] = q == me ? own[u] : (uint32_t)p[q][u].lo | p[q][u].hi << 32;
			if (q != me && ((uint32_t)(p[q][u].lo >> 32) != s->epoch.flag ||
					       (uint32_t)(p[q][u].hi >> 32) != s->epoch.flag))
				missing = q;
		}
		if (missing < 0)
			return symcclSuccess;
		if (wait_turn(&s->team, &s->epoch, &s->watch, &wait, (uint32_t)missing, s->index)) {
			s->failed = 1;
			return dead_result(&s->team);
		}
	}
}
#endif

#endif
