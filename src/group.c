/*
 * Groups: what is called between Start and End of a thread is queued and run by the outermost End,
 * in this order: communicators joined, split and shrunk, windows registered (one set per
 * communicator), collectives (each communicator's in order; several communicators side by side,
 * each on a thread of its own), communicators finalized.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "async.h"
#include "exec.h"
#include "host_stream.h"
#include "hub.h"
#include "life.h"
#include "util.h"

enum task_kind { TASK_JOIN, TASK_LIFE, TASK_WINDOW, TASK_CALL, TASK_MESSAGE };

struct task {
	enum task_kind kind;
	symcclComm_t comm; /* not for TASK_JOIN */
	union {
		struct join_task join;
		struct win_task win;
		struct life *life;
		struct {
			struct coll_call call;
			symcclStream_t stream;
		};
		struct {
			struct coll_xfer message;
			symcclDataType_t type;
		};
	};
};

/* What one communicator of the group has to do. */
struct member {
	symcclComm_t comm;
	struct task *tasks;
	int ntasks;
	struct win_task *wins;
	int nwins, ncalls, nlives;
	int nplain; /* calls without a stream */
	struct reg_set *set;
	int held; /* an abort meanwhile waits with freeing it */
	symcclResult_t result;
	char *text; /* of a failure */
	struct latch *latch;
};

/* Members that run on threads of their own. */
struct latch {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	int left;
};

unsigned groups_open;
static __thread int group_depth;
static __thread struct {
	int ntasks, room;
	struct task *tasks;
	struct failure bad; /* of the first call that was refused */
} group;
/* Most groups are small and need no allocation. */
enum { FEW = 4 };
static __thread struct task few[FEW];
static __thread int few_busy;

int group_open_here(void)
{
	return group_depth > 0;
}

/* The thread's outermost group opens or closes. */
static void groups_count(int by)
{
	__atomic_add_fetch(&groups_open, (unsigned)by, __ATOMIC_RELAXED);
}

void group_note(symcclResult_t e)
{
	if (group_depth == 0 || e == symcclSuccess || group.bad.code != symcclSuccess)
		return;
	group.bad.code = e;
	snprintf(group.bad.text, sizeof(group.bad.text), "%s", error_text());
}

void group_forked(void)
{
	int calls = 0;

	for (int i = 0; i < group.ntasks; i++)
		calls |= group.tasks[i].kind != TASK_JOIN;
	if (!calls || group.bad.code != symcclSuccess)
		return;
	group.bad.code = symcclInvalidUsage;
	snprintf(group.bad.text, sizeof(group.bad.text),
		"the group has calls from before fork(): the child process must make its own");
}

static void life_free(struct life *l)
{
	if (l != NULL)
		life_drop(l);
	free(l);
}

int group_holds(symcclComm_t comm)
{
	for (int i = 0; i < group.ntasks; i++)
		if (group.tasks[i].kind != TASK_JOIN && group.tasks[i].comm == comm)
			return 1;
	return 0;
}

void group_drop(symcclComm_t comm)
{
	int n = 0;

	for (int i = 0; i < group.ntasks; i++)
		if (group.tasks[i].kind == TASK_JOIN || group.tasks[i].comm != comm)
			group.tasks[n++] = group.tasks[i];
		else if (group.tasks[i].kind == TASK_CALL)
			comm_call_free(&group.tasks[i].call);
		else if (group.tasks[i].kind == TASK_LIFE)
			life_free(group.tasks[i].life);
	group.ntasks = n;
}

/* The next task, for the caller to fill. */
static symcclResult_t group_add(enum task_kind kind, symcclComm_t comm, struct task **out)
{
	struct task *t;

	if (group.ntasks == 0 && group.tasks == NULL && !few_busy) {
		few_busy = 1;
		group.tasks = few;
		group.room = FEW;
	} else if (group.ntasks == group.room) {
		int room = group.room * 2 + 16;
		struct task *old = group.tasks == few ? NULL : group.tasks;
		struct task *p = realloc(old, (size_t)room * sizeof(*p));

		if (p == NULL)
			return fail(symcclSystemError, "out of memory for a group");
		if (group.tasks == few) {
			memcpy(p, few, sizeof(few));
			few_busy = 0;
		}
		group.tasks = p;
		group.room = room;
	}
	t = &group.tasks[group.ntasks++];
	t->kind = kind;
	t->comm = comm;
	*out = t;
	return symcclSuccess;
}

symcclResult_t group_add_join(const struct join_task *t)
{
	struct task *k;

	TRY(group_add(TASK_JOIN, NULL, &k));
	k->join = *t;
	return symcclSuccess;
}

symcclResult_t group_add_life(const struct life *l)
{
	struct life *copy = malloc(sizeof(*copy));
	struct task *k;
	symcclResult_t e;

	if (copy == NULL)
		return comm_error(l->comm, fail(symcclSystemError, "out of memory for a group"));
	e = group_add(TASK_LIFE, l->comm, &k);
	if (e != symcclSuccess) {
		free(copy);
		return comm_error(l->comm, e);
	}
	*copy = *l;
	k->life = copy;
	return symcclSuccess;
}

symcclResult_t group_add_window(symcclComm_t comm, const struct win_task *t)
{
	struct task *k;

	TRY(comm_error(comm, group_add(TASK_WINDOW, comm, &k)));
	k->win = *t;
	return symcclSuccess;
}

symcclResult_t group_add_call(symcclComm_t comm, struct coll_call *call, symcclStream_t stream)
{
	struct task *k;
	symcclResult_t e;

	/* What is wrong by itself is said here, not at the end. */
	e = coll_check(call, comm->rank, comm->nranks);
	if (e == symcclSuccess)
		e = group_add(TASK_CALL, comm, &k);
	if (e != symcclSuccess) {
		comm_call_free(call);
		return comm_error(comm, e);
	}
	k->call = *call;
	k->stream = stream;
	return symcclSuccess;
}

symcclResult_t group_add_message(
	symcclComm_t comm, const struct coll_xfer *x, symcclDataType_t type)
{
	struct task *k;
	symcclResult_t e = group_add(TASK_MESSAGE, comm, &k);

	if (e != symcclSuccess)
		return comm_error(comm, e);
	k->message = *x;
	k->type = type;
	return symcclSuccess;
}

static void keep(symcclResult_t *first, char *text, symcclResult_t e)
{
	if (*first != symcclSuccess || e == symcclSuccess)
		return;
	*first = e;
	strncpy(text, error_text(), ERROR_TEXT_MAX - 1);
}

/* All ranks of the group join before any is waited for. */
static symcclResult_t run_joins(struct task *tasks, int n, int *pending, char *text)
{
	symcclResult_t first = symcclSuccess;
	int begun = 0;

	for (int i = 0; i < n && first == symcclSuccess; i++, begun++)
		if (tasks[i].kind == TASK_JOIN)
			keep(&first, text, comm_join_begin(&tasks[i].join));
	for (int i = 0; i < begun; i++) {
		struct join_task *t = &tasks[i].join;
		symcclComm_t comm = NULL;

		if (tasks[i].kind != TASK_JOIN || t->comm == NULL)
			continue;
		/* One that cannot be complete any more is not waited for. */
		if (first != symcclSuccess) {
			hub_leave(t->comm);
			t->comm = NULL;
			continue;
		}
		if (comm_is_async(t->comm)) {
			async_join(t->comm);
			*pending = 1;
			continue;
		}
		keep(&first, text, comm_join_finish(t, NULL, NULL, &comm));
		t->comm = comm;
	}
	for (int i = 0; i < begun; i++) {
		struct join_task *t = &tasks[i].join;

		if (tasks[i].kind != TASK_JOIN || t->comm == NULL)
			continue;
		if (first == symcclSuccess)
			*t->out = t->comm;
		else
			symcclCommDestroy(t->comm);
	}
	return first;
}

/* In two goes: before the collectives, and what ends a communicator after them. */
static symcclResult_t run_lives(struct task *tasks, int n, int ending, char *text)
{
	symcclResult_t first = symcclSuccess;
	struct life *l;
	int k = 0;

	for (int i = 0; i < n; i++)
		k += tasks[i].kind == TASK_LIFE;
	if (k == 0)
		return symcclSuccess;
	l = calloc((size_t)k, sizeof(*l));
	k = 0;
	if (l == NULL)
		return fail(symcclSystemError, "out of memory for a group");
	for (int i = 0; i < n; i++)
		if (tasks[i].kind == TASK_LIFE && tasks[i].life != NULL &&
			(tasks[i].life->kind == LIFE_FINALIZE) == ending) {
			l[k++] = *tasks[i].life;
			free(tasks[i].life);
			tasks[i].life = NULL;
		}
	keep(&first, text, life_run(l, k));
	free(l);
	return first;
}

static int member_of(struct member *m, int n, symcclComm_t comm)
{
	for (int i = n - 1; i >= 0; i--)
		if (m[i].comm == comm)
			return i;
	return n;
}

static symcclResult_t run_windows(struct member *m, int n, char *text)
{
	symcclResult_t first = symcclSuccess;

	for (int i = 0; i < n && first == symcclSuccess; i++) {
		int k = 0;

		if (m[i].nwins == 0)
			continue;
		m[i].wins = calloc((size_t)m[i].nwins, sizeof(*m[i].wins));
		if (m[i].wins == NULL) {
			keep(&first, text, fail(symcclSystemError, "out of memory for a group"));
			break;
		}
		for (int j = 0; j < m[i].ntasks; j++)
			if (m[i].tasks[j].kind == TASK_WINDOW && m[i].tasks[j].comm == m[i].comm)
				m[i].wins[k++] = m[i].tasks[j].win;
		keep(&first, text, comm_windows_begin(m[i].comm, m[i].wins, k, &m[i].set));
	}
	for (int i = 0; i < n; i++) {
		if (m[i].set != NULL)
			keep(&first, text,
				comm_windows_finish(m[i].comm, m[i].wins, m[i].nwins, m[i].set));
		free(m[i].wins);
	}
	return first;
}

/* All n sends and receives of the group as one call: they run side by side. */
static symcclResult_t run_messages(symcclComm_t comm, const struct task *tasks, int ntasks, int n)
{
	struct coll_xfer some[FEW], *x = n > FEW ? malloc((size_t)n * sizeof(*x)) : some;
	symcclDataType_t type = symcclInt8;
	symcclStream_t stream = NULL;
	symcclResult_t e;
	int k = 0;

	if (x == NULL)
		return comm_error(comm, fail(symcclSystemError, "out of memory for a group"));
	for (int j = 0; j < ntasks; j++) {
		const struct task *t = &tasks[j];

		if (t->kind != TASK_MESSAGE || t->comm != comm)
			continue;
		if (k == 0) {
			type = t->type;
			stream = t->message.stream;
		}
		x[k++] = t->message;
	}
	/* On GPUs the launch sees to the messages' other streams. */
	if (comm->hub->gpu != NULL || (stream = host_stream_of(x, n)) == NULL) {
		e = comm_run_messages(comm, x, n, type, stream);
	} else {
		e = comm_error(comm, host_stream_gather(x, n, stream));
		if (e == symcclSuccess)
			e = comm_run_messages(comm, x, n, type, stream);
		if (e == symcclSuccess)
			e = comm_error(comm, host_stream_spread(x, n, stream));
	}
	if (x != some)
		free(x);
	return e;
}

/* The collectives in their order, then the messages. */
static symcclResult_t run_member(struct member *m)
{
	int messages = 0;

	for (int j = 0; j < m->ntasks; j++) {
		struct task *t = &m->tasks[j];

		if (t->comm != m->comm)
			continue;
		messages += t->kind == TASK_MESSAGE;
		if (t->kind == TASK_CALL)
			TRY(comm_run(m->comm, &t->call, t->stream));
	}
	return messages > 0 ? run_messages(m->comm, m->tasks, m->ntasks, messages) : symcclSuccess;
}

/* Calls on streams only launch, so one thread does them all, and in the group's order, which on a
 * stream that several communicators share must be the same on all ranks. */
static symcclResult_t run_launches(struct member *m, int n, char *text)
{
	symcclResult_t first = symcclSuccess;

	for (int i = 0; i < n && first == symcclSuccess; i++)
		if (m[i].ncalls > 0 && (m[i].comm->hub->gpu != NULL || m[i].nplain == 0)) {
			keep(&first, text, run_member(&m[i]));
			m[i].ncalls = 0;
		}
	return first;
}

/* The communicator is not touched any more: who wants to abort it need not wait for the others. */
static void member_release(struct member *m)
{
	if (m->held)
		comm_release(m->comm);
	m->held = 0;
}

static void run_apart(void *arg)
{
	struct member *m = arg;
	struct latch *l = m->latch;
	symcclResult_t e = run_member(m);

	m->result = e;
	if (e != symcclSuccess)
		m->text = strdup(error_text());
	if (m->nlives == 0)
		member_release(m);
	pthread_mutex_lock(&l->lock);
	l->left--;
	pthread_cond_signal(&l->cond);
	pthread_mutex_unlock(&l->lock);
}

/* The last communicator runs in the calling thread, the others on their own. */
static symcclResult_t run_calls(struct member *m, int n, char *text)
{
	struct latch latch = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
	symcclResult_t first = run_launches(m, n, text);
	int own = -1;

	for (int i = 0; i < n; i++)
		if (m[i].ncalls > 0)
			own = i;
	for (int i = 0; i < own && first == symcclSuccess; i++)
		if (m[i].ncalls > 0 && m[i].comm->exec == NULL)
			keep(&first, text, exec_new(&m[i].comm->exec));
	if (own < 0 || first != symcclSuccess)
		return first;
	for (int i = 0; i < own; i++)
		latch.left += m[i].ncalls > 0;
	for (int i = 0; i < own; i++)
		if (m[i].ncalls > 0) {
			m[i].latch = &latch;
			exec_start(m[i].comm->exec, run_apart, &m[i]);
		}
	keep(&first, text, run_member(&m[own]));
	if (m[own].nlives == 0)
		member_release(&m[own]);
	pthread_mutex_lock(&latch.lock);
	while (latch.left > 0)
		pthread_cond_wait(&latch.cond, &latch.lock);
	pthread_mutex_unlock(&latch.lock);
	for (int i = 0; i < own; i++) {
		if (m[i].result != symcclSuccess && first == symcclSuccess) {
			first = m[i].result;
			snprintf(text, ERROR_TEXT_MAX, "%s", m[i].text ? m[i].text : "");
		}
		free(m[i].text);
	}
	return first;
}

static symcclResult_t run_group(struct task *tasks, int n, char *text)
{
	struct member some[FEW], *m = n > FEW ? calloc((size_t)n, sizeof(*m)) : some;
	symcclResult_t e;
	int nm = 0, pending = 0;

	if (m == NULL)
		return fail(symcclSystemError, "out of memory for a group");
	for (int i = 0; i < n; i++) {
		int k;

		if (tasks[i].kind == TASK_JOIN)
			continue;
		k = member_of(m, nm, tasks[i].comm);
		if (k == nm) {
			m[nm++] =
				(struct member){.comm = tasks[i].comm, .tasks = tasks, .ntasks = n};
			comm_hold(tasks[i].comm);
			m[k].held = 1;
		}
		m[k].nwins += tasks[i].kind == TASK_WINDOW;
		m[k].ncalls += tasks[i].kind == TASK_CALL || tasks[i].kind == TASK_MESSAGE;
		m[k].nplain += (tasks[i].kind == TASK_CALL && tasks[i].stream == NULL) ||
			       (tasks[i].kind == TASK_MESSAGE && tasks[i].message.stream == NULL);
		m[k].nlives += tasks[i].kind == TASK_LIFE;
	}
	e = run_joins(tasks, n, &pending, text);
	if (e == symcclSuccess)
		e = run_lives(tasks, n, 0, text);
	if (e == symcclSuccess)
		e = run_windows(m, nm, text);
	if (e == symcclSuccess)
		e = run_calls(m, nm, text);
	if (e == symcclSuccess)
		e = run_lives(tasks, n, 1, text);
	for (int i = 0; i < nm; i++)
		member_release(&m[i]);
	if (m != some)
		free(m);
	return e == symcclSuccess && pending ? symcclInProgress : e;
}

/* Nothing but messages on one communicator and no stream, as most groups are: that is one call, and
 * like one it needs no hold of the communicator. */
static int is_one_call(const struct task *tasks, int n)
{
	for (int i = 0; i < n; i++)
		if (tasks[i].kind != TASK_MESSAGE || tasks[i].comm != tasks[0].comm ||
			tasks[i].message.stream != NULL)
			return 0;
	return n > 0;
}

symcclResult_t symcclGroupStart(void)
{
	if (group_depth++ == 0)
		groups_count(1);
	return symcclSuccess;
}

static void tasks_free(struct task *tasks, int n)
{
	for (int i = 0; i < n; i++)
		if (tasks[i].kind == TASK_CALL)
			comm_call_free(&tasks[i].call);
		else if (tasks[i].kind == TASK_LIFE)
			life_free(tasks[i].life);
	if (tasks == few)
		few_busy = 0;
	else
		free(tasks);
}

symcclResult_t symcclGroupEnd(void)
{
	char text[ERROR_TEXT_MAX];
	struct task *tasks = group.tasks;
	int n = group.ntasks;
	symcclResult_t e;

	if (group_depth == 0)
		return fail(symcclInvalidUsage, "symcclGroupEnd without symcclGroupStart");
	if (--group_depth > 0)
		return symcclSuccess;
	groups_count(-1);
	group.tasks = NULL;
	group.ntasks = group.room = 0;
	text[0] = text[sizeof(text) - 1] = '\0';
	/* Nothing of a group with a call that was refused is run: the others could not match. */
	e = group.bad.code;
	group.bad.code = symcclSuccess;
	if (e != symcclSuccess)
		snprintf(text, sizeof(text), "%s", group.bad.text);
	else if (is_one_call(tasks, n))
		e = run_messages(tasks[0].comm, tasks, n, n);
	else if (n > 0)
		e = run_group(tasks, n, text);
	tasks_free(tasks, n);
	if (e == symcclSuccess || e == symcclInProgress)
		return e;
	return fail_quiet(e, "%s", text[0] ? text : error_text());
}

/* Communicators work side by side: the group takes as long as the longest one. */
static symcclResult_t estimate(const struct task *tasks, int n, double *us)
{
	*us = 0;
	for (int i = 0; i < n; i++) {
		double sum = 0, one;
		int first = 1;

		for (int k = 0; k < i; k++)
			first &= tasks[k].kind != TASK_CALL || tasks[k].comm != tasks[i].comm;
		for (int k = i; first && k < n; k++) {
			if (tasks[k].kind != TASK_CALL || tasks[k].comm != tasks[i].comm)
				continue;
			TRY(comm_estimate(tasks[k].comm, &tasks[k].call, &one));
			sum += one;
		}
		*us = sum > *us ? sum : *us;
	}
	return symcclSuccess;
}

symcclResult_t symcclGroupSimulateEnd(symcclSimInfo_t *simInfo)
{
	struct task *tasks = group.tasks;
	int n = group.ntasks;
	symcclResult_t e;
	double us;

	if (group_depth == 0)
		return fail(symcclInvalidUsage, "symcclGroupSimulateEnd without symcclGroupStart");
	if (simInfo == NULL || simInfo->magic != SYMCCL_SIM_INFO_MAGIC ||
		simInfo->size < sizeof(*simInfo))
		return fail(symcclInvalidArgument,
			"simInfo was not filled with SYMCCL_SIM_INFO_INITIALIZER");
	if (--group_depth > 0)
		return symcclSuccess;
	groups_count(-1);
	group.tasks = NULL;
	group.ntasks = group.room = 0;
	e = group.bad.code;
	group.bad.code = symcclSuccess;
	if (e != symcclSuccess)
		fail_quiet(e, "%s", group.bad.text);
	else
		e = estimate(tasks, n, &us);
	tasks_free(tasks, n);
	if (e == symcclSuccess)
		simInfo->estimatedTime = (float)us;
	return e;
}
