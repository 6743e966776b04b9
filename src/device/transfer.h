/*
 * Put, get, signals and counters. Included by symccl_device.h.
 *
 * Ranks are numbered as in the team that is given. The ranks that can be stored to are served by
 * loads and stores of the calling threads; the others are symcclInvalidUsage until there is a
 * network layer, which will serve them under the same names.
 *
 * A signal is a 64-bit word of a rank that peers add to and that it waits for; a counter is one
 * that its own puts add to. They only grow, and are compared around the wrap. Beside each signal
 * is its shadow: how much of it has been waited for, kept in memory so that the next kernel, or the
 * next replay of a graph, goes on from there.
 */
#include "names.h"
#ifndef SYMCCL_DEVICE_TRANSFER_H
#define SYMCCL_DEVICE_TRANSFER_H

#include "session.h"

/* What a put does when it has arrived, and when its source may be written again. */
typedef struct {
	int signal; /* of the peer, -1: none */
	uint64_t add;
	int counter; /* of the caller, grows by one; -1: none */
} symcclDevNotify_t;

DEV symcclDevNotify_t symcclDevNotify(int signal, uint64_t add, int counter)
{
	symcclDevNotify_t n;

	n.signal = signal;
	n.add = add;
	n.counter = counter;
	return n;
}
/* Nothing. */
DEV symcclDevNotify_t symcclDevNoNotify(void)
{
	return symcclDevNotify(-1, 0, -1);
}

#define SYMCCL_DEV_SIGNAL_BYTES 128 /* signals are on lines of their own: peers write them */

DEV uint64_t *signal_word(const symcclDevComm_t *c, int lsa, int signal)
{
	return (uint64_t *)(uintptr_t)(c->base + (uint64_t)lsa * c->stride + c->signalOff +
				       (uint64_t)signal * SYMCCL_DEV_SIGNAL_BYTES);
}
DEV uint64_t *shadow_word(const symcclDevComm_t *c, int signal)
{
	return (uint64_t *)(uintptr_t)(c->base + (uint64_t)c->lsaRank * c->stride + c->shadowOff) +
	       signal;
}
DEV uint64_t *counter_word(const symcclDevComm_t *c, int counter)
{
	return (uint64_t *)(uintptr_t)(c->base + (uint64_t)c->lsaRank * c->stride + c->counterOff) +
	       counter;
}
DEV int none_such(int i, int n)
{
	return i < 0 || i >= n;
}

/* Wait until *word has come to `least`, or past it. One thread. */
DEV symcclResult_t word_await(const symcclDevComm_t *c, const uint64_t *word, uint64_t least)
{
	struct dev_wait wait = {0, 0};

	while ((int64_t)(load_acquire64(word) - least) < 0) {
		struct dev_team t = block_team(c, symcclDevTeamLsa(c), 0);
		struct dev_epoch e = {0, 0, 0};
		struct dev_watch w = c->watch;

		if (wait_turn(&t, &e, &w, &wait, t.rank, 0))
			return dead_result(&t);
	}
	return symcclSuccess;
}
/* The same for all threads of the scope; *shadow, if any, is what was waited for before. */
DEV symcclResult_t coop_await(
	symcclDevCtx_t x, const uint64_t *word, uint64_t least, uint64_t *shadow)
{
	int result = symcclSuccess;

	coop_sync(x.coop);
	if (x.coop.thread == 0) {
		if (shadow != NULL)
			least += load_relaxed64(shadow);
		result = word_await(x.comm, word, least);
		if (shadow != NULL && result == symcclSuccess)
			store_relaxed64(shadow, least);
	}
	if (!coop_sync_or(x.coop, result != symcclSuccess))
		return symcclSuccess;
	if (result == symcclSuccess) {
		struct dev_team t = block_team(x.comm, symcclDevTeamLsa(x.comm), 0);

		return dead_result(&t);
	}
	return (symcclResult_t)result;
}

/* ---- Signals -------------------------------------------------------------------------------- */

/* Add to a signal of a rank (which may be oneself). What the scope's threads wrote before, to
 * whatever memory of that rank, is there when it sees the signal. All threads of x.coop.
 * Return: symcclInvalidArgument: no such signal; symcclInvalidUsage: the rank is out of reach. */
DEV symcclResult_t symcclDevSignal(
	symcclDevCtx_t x, symcclDevTeam_t team, int rank, int signal, uint64_t add)
{
	int lsa = symcclDevTeamRankToLsa(x.comm, team, rank);

	if (none_such(signal, x.comm->signals))
		return symcclInvalidArgument;
	if (lsa < 0)
		return symcclInvalidUsage;
	coop_sync(x.coop);
	if (x.coop.thread == 0)
		add_release64(signal_word(x.comm, lsa, signal), add);
	return symcclSuccess;
}
/* One's own signal as it is now; 0 when there is no such. One thread. */
DEV uint64_t symcclDevSignalRead(symcclDevCtx_t x, int signal)
{
	return none_such(signal, x.comm->signals)
		       ? 0
		       : load_acquire64(signal_word(x.comm, x.comm->lsaRank, signal));
}
/* Wait until one's own signal is at least `least`. All threads. Leaves the shadow alone.
 * Return: symcclInvalidArgument; symcclTimeout; symcclRemoteError (the communicator is over). */
DEV symcclResult_t symcclDevSignalWait(symcclDevCtx_t x, int signal, uint64_t least)
{
	if (none_such(signal, x.comm->signals))
		return symcclInvalidArgument;
	return coop_await(x, signal_word(x.comm, x.comm->lsaRank, signal), least, NULL);
}
/* Wait until it has grown by `more` since the last call of this, in whatever kernel. All threads;
 * one scope at a time for each signal. Return: as symcclDevSignalWait(). */
DEV symcclResult_t symcclDevSignalWaitMore(symcclDevCtx_t x, int signal, uint64_t more)
{
	if (none_such(signal, x.comm->signals))
		return symcclInvalidArgument;
	return coop_await(
		x, signal_word(x.comm, x.comm->lsaRank, signal), more, shadow_word(x.comm, signal));
}
/* Set signal and shadow to 0, while no peer adds to it. All threads. */
DEV symcclResult_t symcclDevSignalReset(symcclDevCtx_t x, int signal)
{
	if (none_such(signal, x.comm->signals))
		return symcclInvalidArgument;
	coop_sync(x.coop);
	if (x.coop.thread == 0) {
		store_relaxed64(shadow_word(x.comm, signal), 0);
		store_relaxed64(signal_word(x.comm, x.comm->lsaRank, signal), 0);
	}
	return symcclSuccess;
}

/* ---- Counters ------------------------------------------------------------------------------- */

DEV uint64_t symcclDevCounterRead(symcclDevCtx_t x, int counter)
{
	return none_such(counter, x.comm->counters) ? 0
						    : load_acquire64(counter_word(x.comm, counter));
}
/* Wait until `least` puts that name this counter have read their source. All threads.
 * Return: as symcclDevSignalWait(). */
DEV symcclResult_t symcclDevCounterWait(symcclDevCtx_t x, int counter, uint64_t least)
{
	if (none_such(counter, x.comm->counters))
		return symcclInvalidArgument;
	return coop_await(x, counter_word(x.comm, counter), least, NULL);
}
/* Set it to 0, while no put counts. All threads. */
DEV symcclResult_t symcclDevCounterReset(symcclDevCtx_t x, int counter)
{
	if (none_such(counter, x.comm->counters))
		return symcclInvalidArgument;
	coop_sync(x.coop);
	if (x.coop.thread == 0)
		store_relaxed64(counter_word(x.comm, counter), 0);
	return symcclSuccess;
}

/* ---- Put and get ------------------------------------------------------------------------------
 */

DEV int out_of(const symcclDevWindow_t *w, size_t offset, size_t bytes)
{
	return offset > w->size || bytes > w->size - offset;
}

/* Copy bytes from one's own src window to a rank's dst window, then notify. All threads of x.coop,
 * which share the work; they are not in step afterwards. 0 bytes notify, too. Any alignment; 16
 * bytes is fastest. Without a signal nothing says when it is there: see symcclDevQuiet().
 * Return: symcclInvalidArgument: beyond a window, or no such signal or counter; symcclInvalidUsage:
 * the rank is out of reach. */
DEV symcclResult_t symcclDevPut(symcclDevCtx_t x, symcclDevTeam_t team, int rank,
	const symcclDevWindow_t *dst, size_t dstOffset, const symcclDevWindow_t *src,
	size_t srcOffset, size_t bytes, symcclDevNotify_t notify)
{
	int lsa = symcclDevTeamRankToLsa(x.comm, team, rank);

	if (out_of(dst, dstOffset, bytes) || out_of(src, srcOffset, bytes) ||
		notify.signal >= x.comm->signals || notify.counter >= x.comm->counters)
		return symcclInvalidArgument;
	if (lsa < 0)
		return symcclInvalidUsage;
	coop_copy(x.coop, (char *)symcclDevLsaPtr(dst, lsa, dstOffset),
		(const char *)symcclDevLocalPtr(src, srcOffset), bytes);
	if (notify.signal < 0 && notify.counter < 0)
		return symcclSuccess;
	coop_sync(x.coop);
	if (x.coop.thread == 0 && notify.signal >= 0)
		add_release64(signal_word(x.comm, lsa, notify.signal), notify.add);
	if (x.coop.thread == 0 && notify.counter >= 0)
		add_release64(counter_word(x.comm, notify.counter), 1);
	return symcclSuccess;
}
/* Store 8 bytes, of which offset is a multiple, into a rank's window, then add to its signal (-1:
 * none). One thread's worth of work, by all threads of x.coop. Return: as symcclDevPut(). */
DEV symcclResult_t symcclDevPutValue(symcclDevCtx_t x, symcclDevTeam_t team, int rank,
	const symcclDevWindow_t *dst, size_t offset, uint64_t value, int signal, uint64_t add)
{
	int lsa = symcclDevTeamRankToLsa(x.comm, team, rank);

	if (out_of(dst, offset, 8) || (offset & 7) != 0 || signal >= x.comm->signals)
		return symcclInvalidArgument;
	if (lsa < 0)
		return symcclInvalidUsage;
	if (signal >= 0)
		coop_sync(x.coop);
	if (x.coop.thread == 0) {
		store_relaxed64((uint64_t *)symcclDevLsaPtr(dst, lsa, offset), value);
		if (signal >= 0)
			add_release64(signal_word(x.comm, lsa, signal), add);
	}
	return symcclSuccess;
}
/* Copy bytes from a rank's src window to one's own dst window. All threads of x.coop; each has its
 * share when it returns, all of them after the scope's own barrier. Return: as symcclDevPut(). */
DEV symcclResult_t symcclDevGet(symcclDevCtx_t x, symcclDevTeam_t team, int rank,
	const symcclDevWindow_t *src, size_t srcOffset, const symcclDevWindow_t *dst,
	size_t dstOffset, size_t bytes)
{
	int lsa = symcclDevTeamRankToLsa(x.comm, team, rank);

	if (out_of(dst, dstOffset, bytes) || out_of(src, srcOffset, bytes))
		return symcclInvalidArgument;
	if (lsa < 0)
		return symcclInvalidUsage;
	coop_copy(x.coop, (char *)symcclDevLocalPtr(dst, dstOffset),
		(const char *)symcclDevLsaPtr(src, lsa, srcOffset), bytes);
	return symcclSuccess;
}
/* All that these threads have put so far is at the peers, before anything they store from now on.
 * All threads of x.coop. */
DEV void symcclDevQuiet(symcclDevCtx_t x)
{
	fence_system();
	coop_sync(x.coop);
}

#endif
