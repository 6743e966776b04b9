/* Entry points of what ranks make together in a communicator's life: split, shrink, finalize; and
 * revoke, which one makes alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "hub.h"
#include "life.h"

/* Ranks can meet: the communicator is up, and works or was revoked. */
static symcclResult_t parent_check(symcclComm_t comm)
{
	struct hub *h;

	TRY(comm_check_handle(comm));
	h = comm->hub;
	if (h->stood && __atomic_load_n(&h->board->revoked, __ATOMIC_ACQUIRE))
		return comm_error(comm, comm_gate(comm));
	return comm_check(comm);
}

static symcclResult_t child_config(struct life *l, const symcclConfig_t *config)
{
	symcclComm_t comm = l->comm;

	l->config = comm->conf;
	TRY(comm_config_read(config, &l->config, l->name));
	if (l->config.device != symcclDeviceAuto && l->config.device != comm->hub->mem->type)
		return fail(symcclInvalidArgument,
			"config.device is %d: the new communicator has its parent's, %d",
			(int)l->config.device, (int)comm->hub->mem->type);
	return symcclSuccess;
}

static void note_bad(struct life *l, symcclResult_t e)
{
	if (e == symcclSuccess)
		return;
	l->bad.code = e;
	snprintf(l->bad.text, sizeof(l->bad.text), "rank %d: %s", l->comm->rank, error_text());
}

symcclResult_t symcclCommSplit(
	symcclComm_t comm, int color, int key, symcclComm_t *newcomm, const symcclConfig_t *config)
{
	struct life l = {
		.kind = LIFE_SPLIT, .comm = comm, .out = newcomm, .color = color, .key = key};

	TRY(parent_check(comm));
	/* What is wrong here is told to all, so that nobody waits. */
	note_bad(&l, child_config(&l, config));
	if (newcomm == NULL)
		note_bad(&l, fail(symcclInvalidArgument,
				     "newcomm is NULL: nowhere to put the communicator"));
	if (color < SYMCCL_SPLIT_NOCOLOR)
		note_bad(&l,
			fail(symcclInvalidArgument,
				"color is %d, neither SYMCCL_SPLIT_NOCOLOR nor at least 0", color));
	return life_call(&l);
}

static int int_cmp(const void *a, const void *b)
{
	const int *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* The ranks that go on, ascending, from those that do not. */
static symcclResult_t survivors(struct life *l, const int *list, int n)
{
	symcclComm_t comm = l->comm;
	int *gone = malloc((size_t)(n + 1) * sizeof(*gone)), at = 0;

	l->ranks = malloc((size_t)comm->nranks * sizeof(*l->ranks));
	if (gone == NULL || l->ranks == NULL) {
		free(gone);
		return fail(symcclSystemError, "out of memory in symcclCommShrink");
	}
	if (n > 0)
		memcpy(gone, list, (size_t)n * sizeof(*gone));
	qsort(gone, (size_t)n, sizeof(*gone), int_cmp);
	for (int r = 0; r < comm->nranks; r++) {
		if (at < n && gone[at] == r)
			while (at < n && gone[at] == r)
				at++;
		else
			l->ranks[l->n++] = r;
	}
	free(gone);
	return symcclSuccess;
}

static symcclResult_t shrink_check(
	symcclComm_t comm, const int *list, int n, symcclComm_t *newcomm, int flags)
{
	if (newcomm == NULL)
		return fail(
			symcclInvalidArgument, "newcomm is NULL: nowhere to put the communicator");
	if (flags != SYMCCL_SHRINK_DEFAULT && flags != SYMCCL_SHRINK_ABORT)
		return fail(symcclInvalidArgument,
			"shrinkFlags is %d, neither SYMCCL_SHRINK_DEFAULT nor SYMCCL_SHRINK_ABORT",
			flags);
	if (n < 0 || (n > 0 && list == NULL))
		return fail(symcclInvalidArgument, "excludeRanksList of %d ranks is %p", n,
			(const void *)list);
	for (int i = 0; i < n; i++) {
		if (list[i] < 0 || list[i] >= comm->nranks)
			return fail(symcclInvalidArgument,
				"excludeRanksList[%d] is %d, not in 0..%d", i, list[i],
				comm->nranks - 1);
		if (list[i] == comm->rank)
			return fail(symcclInvalidUsage,
				"rank %d lists itself: symcclCommShrink is called by the ranks "
				"that "
				"go on",
				comm->rank);
	}
	return symcclSuccess;
}

symcclResult_t symcclCommShrink(symcclComm_t comm, int *excludeRanksList, int excludeRanksCount,
	symcclComm_t *newcomm, const symcclConfig_t *config, int shrinkFlags)
{
	struct life l = {.kind = LIFE_SHRINK, .comm = comm, .out = newcomm};
	symcclResult_t e;

	TRY(comm_check_handle(comm));
	if (shrinkFlags == SYMCCL_SHRINK_ABORT)
		l.kind = LIFE_SHRINK_ABORT;
	else
		TRY(parent_check(comm));
	if (!comm->hub->stood)
		return comm_error(comm, fail(symcclInvalidUsage,
						"rank %d's communicator was never complete: it "
						"cannot be shrunk",
						comm->rank));
	e = shrink_check(comm, excludeRanksList, excludeRanksCount, newcomm, shrinkFlags);
	if (e == symcclSuccess)
		e = survivors(&l, excludeRanksList, excludeRanksCount);
	if (e != symcclSuccess) {
		life_drop(&l);
		return comm_error(comm, e);
	}
	note_bad(&l, child_config(&l, config));
	return life_call(&l);
}

symcclResult_t symcclCommFinalize(symcclComm_t comm)
{
	struct life l = {.kind = LIFE_FINALIZE, .comm = comm};

	TRY(comm_check(comm));
	return life_call(&l);
}

symcclResult_t symcclCommRevoke(symcclComm_t comm, int flags)
{
	struct failure why = {.code = symcclInvalidUsage};

	TRY(comm_check_handle(comm));
	if (flags != SYMCCL_REVOKE_DEFAULT)
		return comm_error(comm, fail(symcclInvalidArgument,
						"flags is %d, not SYMCCL_REVOKE_DEFAULT", flags));
	if (!comm->hub->stood)
		return comm_error(comm,
			fail(symcclInvalidUsage,
				"rank %d's communicator was never complete: abort it", comm->rank));
	__atomic_store_n(&comm->hub->board->revoked, 1, __ATOMIC_RELEASE);
	why.rank = comm->rank;
	snprintf(why.text, sizeof(why.text),
		"rank %d called symcclCommRevoke: only symcclCommSplit, symcclCommShrink, "
		"symcclCommDestroy and symcclCommAbort may follow",
		comm->rank);
	hub_fail(comm->hub, &why);
	return symcclSuccess;
}
