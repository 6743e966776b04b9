/* Collective operations over the tree: a part goes up, joined with the children's; the result comes
 * down. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"
#include "util.h"

#define FIRST_TICK_NS 200000ull /* then those who do not take part yet are told */
#define TICK_NS 20000000ull     /* so often parents hear whom we lack */
#define DEPTH_NS 100000000ull   /* deeper processes wait this much longer, each level */

static const char *const op_names[] = {
	"no operation", "all-gather", "barrier", "descriptor exchange"};

bool run_child(const struct run *r, int i)
{
	return !(i == 0 && r->t->has_parent) && (!r->node_only || r->t->peers[i].here);
}

struct peer *run_parent(const struct run *r)
{
	struct tree *t = r->t;

	return t->has_parent && (!r->node_only || t->peers[0].here) ? &t->peers[0] : NULL;
}

/* ---- Who is missing ---------------------------------------------------------------------- */

static void missing_add(int32_t *who, int *n, int32_t proc)
{
	if (*n < NOTE_MAX)
		who[(*n)++] = proc;
}

/* The processes below that have not taken part, as far as it is known here. */
static int run_missing(const struct run *r, int32_t who[NOTE_MAX])
{
	int n = 0;

	for (int i = 0; i < r->t->npeers; i++) {
		const struct peer *p = &r->t->peers[i];

		if (!run_child(r, i) || p->has_data)
			continue;
		if (p->note != r->t->seq || p->nmissing == 0)
			missing_add(who, &n, p->proc);
		else
			for (int k = 0; k < p->nmissing; k++)
				missing_add(who, &n, p->missing[k]);
	}
	return n;
}

static int int_compare(const void *a, const void *b)
{
	const int *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* All ranks of these processes, as text; *lowest of them. */
static void procs_text(
	const struct tree *t, const int32_t *who, int n, char *buf, size_t size, int *lowest)
{
	int total = 0, *ranks;

	*lowest = -1;
	snprintf(buf, size, "some ranks");
	if (!t->procs)
		return;
	for (int i = 0; i < n; i++)
		if (who[i] >= 0 && who[i] < t->pub.nprocs)
			total += t->procs[who[i]].nranks;
	ranks = malloc(((size_t)total + 1) * sizeof(*ranks));
	if (!ranks)
		return;
	total = 0;
	for (int i = 0; i < n; i++) {
		const struct boot_proc *p;

		if (who[i] < 0 || who[i] >= t->pub.nprocs)
			continue;
		p = &t->procs[who[i]];
		memcpy(ranks + total, p->ranks, (size_t)p->nranks * sizeof(*ranks));
		total += p->nranks;
	}
	qsort(ranks, (size_t)total, sizeof(*ranks), int_compare);
	ranks_text(buf, size, ranks, total);
	*lowest = total ? ranks[0] : -1;
	free(ranks);
}

static symcclResult_t run_timeout(struct run *r, const int32_t *who, int n)
{
	struct tree *t = r->t;
	struct failure f;
	char text[200];
	int rank;

	procs_text(t, who, n, text, sizeof(text), &rank);
	failure_set(&f, symcclTimeout, rank, "%s did not take part in %s %u within %.3g s", text,
		op_names[r->op], t->seq, (double)(now_ns() - r->start) / 1e9);
	fail(f.code, "%s", f.text);
	return tree_die(t, &f, NULL);
}

static symcclResult_t run_left(struct run *r, const struct peer *p)
{
	struct failure f;

	failure_set(&f, symcclRemoteError, p->rank,
		"rank %d has destroyed the communicator (%s %u)", p->rank, op_names[r->op],
		r->t->seq);
	fail(f.code, "%s", f.text);
	return tree_die(r->t, &f, NULL);
}

/* ---- Waiting ----------------------------------------------------------------------------- */

static uint64_t run_left_ns(const struct run *r)
{
	uint64_t now = now_ns();

	return !r->give_up ? 0 : r->give_up > now ? r->give_up - now : 1;
}

/* A peer's part must be for this operation. */
static symcclResult_t run_check(struct run *r, const struct peer *p)
{
	struct tree *t = r->t;
	unsigned int op = p->data_head.op;

	if (!p->has_data || (op == r->op && p->data_head.seq == t->seq))
		return symcclSuccess;
	return tree_die_here(t,
		fail(symcclInternalError,
			"rank %d is in %s %u, rank %d in %s %u: the processes do not run the same "
			"operations (a bug in symccl)",
			p->rank, op_names[op < ARRAY_LEN(op_names) ? op : 0], p->data_head.seq,
			t->my_rank, op_names[r->op], t->seq));
}

/* Now and then: tell those who may not know that the operation has begun, and the parent whom we
 * still lack. */
static void run_tick(struct run *r)
{
	struct frame h = {.kind = FRAME_NOTE,
		.op = (uint16_t)r->op,
		.seq = r->t->seq,
		.from = r->t->pub.proc,
		.left = run_left_ns(r)};
	struct peer *parent = run_parent(r);
	int32_t who[NOTE_MAX];
	int n;

	if (now_ns() < r->tick)
		return;
	r->tick = now_ns() + TICK_NS;
	n = run_missing(r, who);
	if (parent && n && (n != r->nnoted || memcmp(who, r->noted, (size_t)n * sizeof(*who)))) {
		(void)edge_send_copy(&parent->edge, h, who, (size_t)n * sizeof(*who));
		parent->sent = r->t->seq;
		r->nnoted = n;
		memcpy(r->noted, who, (size_t)n * sizeof(*who));
	}
	tree_begun(r->t, r->t->seq, NULL);
}

static bool run_children_ready(struct run *r, symcclResult_t *result)
{
	bool ready = true;

	for (int i = 0; i < r->t->npeers && *result == symcclSuccess; i++) {
		struct peer *p = &r->t->peers[i];

		if (!run_child(r, i))
			continue;
		*result = run_check(r, p);
		/* Nobody below waits longer than the one that gives up first. */
		if (p->seen == r->t->seq && p->give_up)
			r->give_up = r->give_up ? MIN(r->give_up, p->give_up) : p->give_up;
		if (!p->has_data && p->left && *result == symcclSuccess)
			*result = run_left(r, p);
		ready &= p->has_data;
	}
	return ready;
}

/* Later than the parent gives up, which knows better who is missing. */
static uint64_t run_limit(const struct run *r)
{
	return r->give_up ? r->give_up + DEPTH_NS * (uint64_t)r->t->shape.depth : UINT64_MAX;
}

symcclResult_t run_wait_children(struct run *r)
{
	symcclResult_t result = symcclSuccess;
	int32_t who[NOTE_MAX];

	while (!run_children_ready(r, &result)) {
		uint64_t until = run_limit(r);

		TRY(result);
		if (now_ns() >= until)
			return run_timeout(r, who, run_missing(r, who));
		run_tick(r);
		TRY(tree_progress(r->t, MIN(until, r->tick), -1, NULL));
	}
	return result;
}

symcclResult_t run_wait_parent(struct run *r, struct peer *p)
{
	uint64_t until = run_limit(r);

	while (!p->has_data) {
		symcclResult_t e;

		if (p->left)
			return run_left(r, p);
		if (now_ns() >= until)
			return run_timeout(r, &p->proc, 1);
		e = tree_progress(r->t, until, -1, NULL);
		/* The result may have come together with news of a later failure. */
		if (e != symcclSuccess && !p->has_data)
			return e;
	}
	return run_check(r, p);
}

/* What has been handed to the sockets must be gone before the caller's descriptors and buffers may
 * change. */
symcclResult_t run_flush(struct run *r)
{
	uint64_t until = run_limit(r);

	for (int i = 0; i < r->t->npeers; i++)
		while (!edge_idle(&r->t->peers[i].edge)) {
			if (now_ns() >= until)
				return run_timeout(r, &r->t->peers[i].proc, 1);
			TRY(tree_progress(r->t, until, -1, NULL));
		}
	return symcclSuccess;
}

void peer_used(struct peer *p)
{
	blob_put(p->data);
	p->data = NULL;
	p->has_data = false;
}

/* ---- Up and down ------------------------------------------------------------------------- */

symcclResult_t run_no_memory(struct run *r, size_t bytes)
{
	return tree_die_here(
		r->t, fail(symcclSystemError, "rank %d has no memory for %zu bytes of %s %u",
			      r->t->my_rank, bytes, op_names[r->op], r->t->seq));
}

symcclResult_t run_send(struct run *r, struct peer *p, struct blob *b, const int *fds, int nfds)
{
	struct frame h = {.kind = FRAME_DATA,
		.op = (uint16_t)r->op,
		.seq = r->t->seq,
		.from = r->t->pub.proc,
		.left = run_left_ns(r)};

	p->sent = r->t->seq;
	return edge_send(&p->edge, h, b, fds, nfds) ? run_no_memory(r, b ? b->len : 0)
						    : symcclSuccess;
}

symcclResult_t run_begin(
	struct run *r, struct tree *t, enum op op, bool node_only, uint64_t deadline)
{
	if (t->failure.code != symcclSuccess)
		return tree_failed(t);
	*r = (struct run){.t = t, .op = op, .node_only = node_only};
	r->start = now_ns();
	r->deadline = r->give_up = deadline;
	r->tick = r->start + FIRST_TICK_NS;
	t->seq++;
	t->begun = MAX(t->begun, t->seq);
	return symcclSuccess;
}

size_t part_room(size_t len)
{
	return sizeof(struct part) + align_up(len, ALIGN);
}

static char *part_write(char *at, int proc, const void *bytes, size_t len)
{
	struct part head = {.proc = proc, .len = len};

	memcpy(at, &head, sizeof(head));
	if (len)
		memcpy(at + sizeof(head), bytes, len);
	memset(at + sizeof(head) + len, 0, align_up(len, ALIGN) - len);
	return at + part_room(len);
}

/* Own part and the children's, one after another. */
symcclResult_t run_join(struct run *r, const void *mine, size_t mylen, struct blob **joined)
{
	struct tree *t = r->t;
	size_t total = part_room(mylen);
	struct blob *b;
	char *at;

	for (int i = 0; i < t->npeers; i++)
		if (run_child(r, i) && t->peers[i].data)
			total += t->peers[i].data->len;
	if (total > FRAME_MAX)
		return tree_die_here(t,
			fail(symcclInvalidUsage, "%s %u has more than %zu bytes in all (rank %d)",
				op_names[r->op], t->seq, FRAME_MAX, t->my_rank));
	b = blob_new(total);
	if (!b)
		return run_no_memory(r, total);
	at = part_write(b->data, t->pub.proc, mine, mylen);
	for (int i = 0; i < t->npeers; i++) {
		struct peer *p = &t->peers[i];

		if (!run_child(r, i) || !p->data)
			continue;
		memcpy(at, p->data->data, p->data->len);
		at += p->data->len;
		peer_used(p);
	}
	*joined = b;
	return symcclSuccess;
}

/* Find each process's part in the result; exactly the processes [proc0, proc0 + n). */
symcclResult_t run_split(struct run *r, const struct blob *b, int proc0, int n)
{
	struct tree *t = r->t;
	size_t at = 0;
	int found = 0;

	memset(t->all, 0, (size_t)n * sizeof(*t->all));
	while (at + sizeof(struct part) <= b->len) {
		struct part p;

		memcpy(&p, b->data + at, sizeof(p));
		if (p.proc < proc0 || p.proc >= proc0 + n || p.len > b->len - at - sizeof(p) ||
			t->all[p.proc - proc0])
			break;
		t->all[p.proc - proc0] = b->data + at + sizeof(p);
		t->len[p.proc - proc0] = p.len;
		at += part_room(p.len);
		found++;
	}
	if (at == b->len && found == n)
		return symcclSuccess;
	return tree_die_here(
		r->t, fail(symcclInternalError, "the result of %s %u is damaged (a bug in symccl)",
			      op_names[r->op], t->seq));
}

/* The result, at the top of the tree or from the parent, to all children and into t->result. Takes
 * b over. */
symcclResult_t run_down(struct run *r, struct blob *b, const int *fds, int nfds)
{
	struct tree *t = r->t;

	blob_put(t->result);
	t->result = b;
	for (int i = 0; i < t->npeers; i++)
		if (run_child(r, i))
			TRY(run_send(r, &t->peers[i], b, fds, nfds));
	return run_flush(r);
}

static symcclResult_t run_gather(struct run *r, const void *mine, size_t mylen)
{
	struct peer *parent = run_parent(r);
	struct blob *b = NULL;
	symcclResult_t result;

	TRY(run_wait_children(r));
	TRY(run_join(r, mine, mylen, &b));
	if (parent) {
		result = run_send(r, parent, b, NULL, 0);
		blob_put(b);
		TRY(result);
		TRY(run_wait_parent(r, parent));
		b = blob_ref(parent->data);
		peer_used(parent);
		if (!b)
			return run_no_memory(r, 0);
	}
	return run_down(r, b, NULL, 0);
}

symcclResult_t boot_allgather(struct boot *boot, const void *mine, size_t mylen, const void ***all,
	const size_t **len, uint64_t deadline)
{
	struct tree *t = tree_of(boot);
	struct run r = {.t = t};

	TRY(run_begin(&r, t, OP_ALLGATHER, false, deadline));
	TRY(run_gather(&r, mine, mylen));
	TRY(run_split(&r, t->result, 0, t->pub.nprocs));
	*all = t->all;
	*len = t->len;
	return symcclSuccess;
}

symcclResult_t boot_barrier(struct boot *boot, uint64_t deadline)
{
	struct tree *t = tree_of(boot);
	struct peer *parent;
	struct run r = {.t = t};

	TRY(run_begin(&r, t, OP_BARRIER, false, deadline));
	parent = run_parent(&r);
	TRY(run_wait_children(&r));
	for (int i = 0; i < t->npeers; i++)
		if (run_child(&r, i))
			peer_used(&t->peers[i]);
	if (parent) {
		TRY(run_send(&r, parent, NULL, NULL, 0));
		TRY(run_wait_parent(&r, parent));
		peer_used(parent);
	}
	return run_down(&r, NULL, NULL, 0);
}
