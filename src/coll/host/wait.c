/* Waiting for a peer's flag: spin, yield, sleep; and what can end it instead of the flag. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "device/slot.h"
#include "util.h"

#define SLEEP_NS 1000000 /* a lost wake-up costs no more */
#define LOOK_EVERY 64    /* spins between two looks at the abort word */

/* The half of the flag that every post changes. */
static uint32_t *slot_epoch_word(const struct slot *slot)
{
	return (uint32_t *)&slot->flag + (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
}

void waiting_wake(uint32_t *word)
{
	/* At most one thread sleeps on a slot or a bell: the owner's. */
	syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void slot_wake(struct slot *slot)
{
	waiting_wake(slot_epoch_word(slot));
}

void slot_describe(struct slot_call *call, const struct coll_call *c, uint32_t hash)
{
	if (c == NULL)
		return;
	*call = (struct slot_call){.hash = hash,
		.func = (uint8_t)c->func,
		.type = (uint8_t)c->type,
		.op = (uint8_t)(c->has_factor ? symcclNumOps : c->op),
		.root = c->root,
		.count = c->count,
		.window = {c->send.symmetric ? c->send.window : 0,
			c->recv.symmetric ? c->recv.window : 0},
		.offset = {c->send.offset, c->recv.offset}};
}

/* ---- Sentences ------------------------------------------------------------------------------ */

void slot_call_text(const struct slot_call *c, char *out, size_t n)
{
	static const char *const func[] = {"Barrier", "AllGather", "AllReduce", "ReduceScatter",
		"Broadcast", "Reduce", "AlltoAll", "Gather", "Scatter", "AlltoAllv",
		"a group of sends and receives", "PutSignal", "Signal", "WaitSignal"};
	static const char *const type[] = {"int8", "uint8", "int32", "uint32", "int64", "uint64",
		"float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};
	static const char *const op[] = {"sum", "prod", "max", "min", "avg", "pre-multiplied sum"};
	int reduces = coll_reduces((symcclFunc_t)c->func);
	char root[24] = "";

	if (c->func == symcclFuncBarrier || coll_is_listed((symcclFunc_t)c->func) ||
		c->func >= ARRAY_LEN(func) || c->type >= ARRAY_LEN(type)) {
		snprintf(out, n, "%s", c->func < ARRAY_LEN(func) ? func[c->func] : "another call");
		return;
	}
	if (coll_is_rooted((symcclFunc_t)c->func))
		snprintf(root, sizeof(root), " at root %d", c->root);
	if (c->window[0] == 0 && c->window[1] == 0) {
		snprintf(out, n, "%s of %llu %s%s%s%s", func[c->func], (unsigned long long)c->count,
			type[c->type], reduces ? " " : "",
			reduces && c->op < ARRAY_LEN(op) ? op[c->op] : "", root);
		return;
	}
	snprintf(out, n, "%s of %llu %s%s%s%s (windows %u+%llu, %u+%llu)", func[c->func],
		(unsigned long long)c->count, type[c->type], reduces ? " " : "",
		reduces && c->op < ARRAY_LEN(op) ? op[c->op] : "", root, c->window[0],
		(unsigned long long)(c->window[0] ? c->offset[0] : 0), c->window[1],
		(unsigned long long)(c->window[1] ? c->offset[1] : 0));
}

static symcclResult_t differs(const struct step *s, int peer, uint32_t hash)
{
	struct slot_call own = {0};
	char mine[128], theirs[128];

	if (hash == SLOT_HASH_GOODBYE)
		return fail(symcclInvalidUsage,
			"rank %d waits for rank %d, which has destroyed the communicator",
			s->team->rank, peer);
	slot_describe(&own, s->call, s->hash);
	slot_call_text(&own, mine, sizeof(mine));
	slot_call_text(
		&ctrl_head(s->team, peer)->call[s->cta][s->epoch & 1], theirs, sizeof(theirs));
	if (strcmp(mine, theirs) == 0)
		return fail(symcclInvalidUsage,
			"rank %d and rank %d both call %s, but by different algorithms: all ranks "
			"must bring the same kind of memory, and have the same SYMCCL_ALGO",
			s->team->rank, peer, mine);
	return fail(symcclInvalidUsage,
		"rank %d calls %s where rank %d calls %s: all ranks must make the same calls in "
		"the same order, with symmetric windows at the same offsets",
		s->team->rank, mine, peer, theirs);
}

/* Only one who does not wait for its peers gets ahead of them. */
static symcclResult_t out_of_step(const struct step *s, int peer, int32_t ahead)
{
	return fail(symcclInvalidUsage,
		"rank %d is %d steps ahead of rank %d: several threads or a forked child use one "
		"communicator handle at the same time",
		peer, (int)ahead, s->team->rank);
}

/* ---- The wait ----------------------------------------------------------------------------------
 */

static int arrived(const struct step *s, int peer, const struct slot *slot, symcclResult_t *e)
{
	uint64_t v = load_acquire64(&slot->flag);
	int32_t ahead = (int32_t)((uint32_t)(v >> 32) - (uint32_t)s->epoch);

	if (ahead < 0 || v == 0)
		return 0;
	if (ahead > 0)
		*e = out_of_step(s, peer, ahead);
	else
		*e = (uint32_t)v == s->hash ? symcclSuccess : differs(s, peer, (uint32_t)v);
	return 1;
}

static void nap(struct ctrl_head *own, const uint32_t *word, uint32_t seen)
{
	struct timespec t = {.tv_nsec = SLEEP_NS};

	__atomic_add_fetch(&own->waiters, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
	__atomic_sub_fetch(&own->waiters, 1, __ATOMIC_RELAXED);
}

symcclResult_t waiting_rest(
	const struct coll_team *t, struct waiting *w, const uint32_t *word, uint32_t seen)
{
	const struct coll_wait *how = &t->wait;

	if (w->turns < how->spins) {
		cpu_relax();
		return ++w->turns % LOOK_EVERY == 0 && load_relaxed32(how->abort)
			       ? symcclRemoteError
			       : symcclSuccess;
	}
	if (w->turns < how->spins + how->yields) {
		w->turns++;
		sched_yield();
		return symcclSuccess;
	}
	if (load_relaxed32(how->abort))
		return symcclRemoteError;
	if (w->start == 0)
		w->start = now_ns();
	else if (how->timeout_ns && now_ns() - w->start > how->timeout_ns)
		return symcclTimeout;
	nap(ctrl_head(t, t->rank), word, seen);
	return symcclSuccess;
}

symcclResult_t slot_wait(const struct step *s, int peer, const struct slot *slot)
{
	const uint32_t *word = slot_epoch_word(slot);
	struct waiting w = {0};
	symcclResult_t e = symcclSuccess;

	while (e == symcclSuccess) {
		uint32_t seen = load_relaxed32(word);

		if (arrived(s, peer, slot, &e))
			return e;
		e = waiting_rest(s->team, &w, word, seen);
	}
	if (e == symcclTimeout)
		return fail(e,
			"rank %d waited %.3g s for rank %d (SYMCCL_OP_TIMEOUT), which did not come "
			"to the same call",
			s->team->rank, (double)s->team->wait.timeout_ns / 1e9, peer);
	return e;
}

void coll_goodbye(const struct coll_team *t)
{
	struct step s = {.team = t, .hash = SLOT_HASH_GOODBYE};

	step_begin(&s);
	step_post_all(&s);
}
