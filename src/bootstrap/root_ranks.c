/* The root's bookkeeping: ranks, disagreements, and each process's place in the tree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "root_private.h"
#include "tree_shape.h"
#include "util.h"

#define NRANKS_MAX (1 << 20)

const char *conn_text(const struct conn *c, char *buf, size_t size)
{
	if (c->nranks)
		snprintf(buf, size, "rank %d (pid %d on host %s)", c->lowest, c->info.pid,
			c->info.host);
	else
		snprintf(buf, size, "a process (pid %d on host %s)", c->info.pid, c->info.host);
	return buf;
}

/* ---- Joining ----------------------------------------------------------------------------- */

static symcclResult_t root_first(struct root *r, const struct wire_member *m, struct failure *f)
{
	if (m->nranks < 1 || m->nranks > NRANKS_MAX) {
		failure_set(f, symcclInvalidArgument, m->rank,
			"rank %d asks for a communicator of %d ranks; 1 to %d are possible",
			m->rank, m->nranks, NRANKS_MAX);
		return f->code;
	}
	r->by_rank = calloc((size_t)m->nranks, sizeof(*r->by_rank));
	if (!r->by_rank) {
		failure_set(f, symcclSystemError, m->rank,
			"the root of the rendezvous has no memory for %d ranks", m->nranks);
		return f->code;
	}
	r->nranks = m->nranks;
	r->first = *m;
	return symcclSuccess;
}

static symcclResult_t root_check(
	struct root *r, const struct conn *c, const struct wire_member *m, struct failure *f)
{
	const struct wire_member *o = &r->first;
	const struct conn *other;

	if (m->nranks != o->nranks)
		failure_set(f, symcclInvalidUsage, m->rank,
			"ranks disagree on the number of ranks: rank %d says %d, rank %d says %d",
			m->rank, m->nranks, o->rank, o->nranks);
	else if (m->version != o->version)
		failure_set(f, symcclInvalidUsage, m->rank,
			"ranks run different versions of symccl: rank %d runs %u, rank %d runs %u",
			m->rank, m->version, o->rank, o->version);
	else if (m->config != o->config)
		failure_set(f, symcclInvalidUsage, m->rank,
			"ranks disagree on the configuration (device type): rank %d has 0x%x, rank "
			"%d "
			"has 0x%x",
			m->rank, m->config, o->rank, o->config);
	else if (m->rank < 0 || m->rank >= r->nranks)
		failure_set(f, symcclInvalidUsage, m->rank,
			"rank %d (pid %d on host %s) is out of range: the communicator has %d "
			"ranks",
			m->rank, c->info.pid, c->info.host, r->nranks);
	else if ((other = r->by_rank[m->rank]))
		failure_set(f, symcclInvalidUsage, m->rank,
			"rank %d joined twice: by pid %d on host %s and by pid %d on host %s; give "
			"each "
			"rank its own number",
			m->rank, other->info.pid, other->info.host, c->info.pid, c->info.host);
	return f->code;
}

/* ---- Places ------------------------------------------------------------------------------ */

static int conn_compare_node(const void *a, const void *b)
{
	const struct conn *x = *(struct conn *const *)a, *y = *(struct conn *const *)b;
	int c = memcmp(x->info.node, y->info.node, sizeof(x->info.node));

	return c ? c : (x->lowest > y->lowest) - (x->lowest < y->lowest);
}

/* Here node still holds the lowest rank of the node. */
static int conn_compare_place(const void *a, const void *b)
{
	const struct conn *x = *(struct conn *const *)a, *y = *(struct conn *const *)b;

	if (x->node != y->node)
		return x->node < y->node ? -1 : 1;
	return (x->lowest > y->lowest) - (x->lowest < y->lowest);
}

/* Order the processes by (node's lowest rank, lowest rank) and number them; node0[i]: the index of
 * node i's first. Returns the number of nodes. */
static int root_order(struct conn **procs, int n, int *node0)
{
	int nnodes = 0, lowest;

	qsort(procs, (size_t)n, sizeof(*procs), conn_compare_node);
	for (int i = 0; i < n; i++) {
		if (i == 0 || memcmp(procs[i]->info.node, procs[i - 1]->info.node, 16) != 0)
			procs[i]->node = procs[i]->lowest;
		else
			procs[i]->node = procs[i - 1]->node;
	}
	qsort(procs, (size_t)n, sizeof(*procs), conn_compare_place);
	lowest = -1;
	for (int i = 0; i < n; i++) {
		struct conn *c = procs[i];

		if (c->node != lowest) {
			lowest = c->node;
			node0[nnodes++] = i;
		}
		c->proc = i;
		c->node = nnodes - 1;
		c->node_proc = i - node0[nnodes - 1];
	}
	node0[nnodes] = n;
	return nnodes;
}

static void root_tell_place(
	struct root *r, struct conn **procs, const int *node0, int nnodes, int i)
{
	struct conn *c = procs[i];
	const int nprocs = node0[nnodes], node_nprocs = node0[c->node + 1] - node0[c->node];
	struct shape s = shape_of(c->node, nnodes, c->node_proc, node_nprocs);
	struct wire_place p = {
		.nranks = r->nranks,
		.nprocs = nprocs,
		.nnodes = nnodes,
		.proc = i,
		.node = c->node,
		.node_proc = c->node_proc,
		.node_nprocs = node_nprocs,
		.node_proc0 = node0[c->node],
		.mine = c->nranks,
		.nchildren = s.nchildren,
		.parent = -1,
	};

	if (s.parent_node >= 0) {
		p.parent = node0[s.parent_node] + s.parent_node_proc;
		p.parent_here = s.parent_node == c->node;
		p.parent_rank = procs[p.parent]->lowest;
		p.parent_info = procs[p.parent]->info;
	}
	conn_send(r, c, FRAME_PLACE, &p, sizeof(p));
}

static void root_place(struct root *r)
{
	struct conn **procs = malloc((size_t)r->nprocs * sizeof(*procs));
	int *node0 = malloc(((size_t)r->nprocs + 1) * sizeof(*node0));
	struct failure f;
	int n = 0, nnodes;

	if (!procs || !node0) {
		failure_set(&f, symcclSystemError, -1,
			"the root of the rendezvous has no memory for %d processes", r->nprocs);
		root_fail(r, &f);
		goto out;
	}
	for (int i = 0; i < r->nranks; i++) {
		struct conn *c = r->by_rank[i];

		if (c->lowest == i)
			procs[n++] = c;
	}
	nnodes = root_order(procs, n, node0);
	/* Before anyone knows: a next communicator with this id must not come here. */
	root_stop_listening(r);
	r->state = ROOT_PLACED;
	r->nplaced = n;
	if (r->deadline)
		r->deadline = MAX(r->deadline, now_ns() + WIRE_TREE_NS);
	log_info(LOG_BOOT,
		"rendezvous at port %u: all %d ranks have come from %d processes on %d nodes",
		r->port, r->nranks, n, nnodes);
	for (int i = 0; i < n && r->state == ROOT_PLACED; i++)
		root_tell_place(r, procs, node0, nnodes, i);
out:
	free(procs);
	free(node0);
}

void root_join(struct root *r, struct conn *c, const struct wire_member *m, int n)
{
	struct failure f = {.code = symcclSuccess};
	int before = r->joined;

	if (r->state == ROOT_FAILED) {
		r->told += n;
		return;
	}
	for (int i = 0; i < n && f.code == symcclSuccess; i++) {
		if (!r->by_rank)
			root_first(r, &m[i], &f);
		if (f.code == symcclSuccess && root_check(r, c, &m[i], &f) == symcclSuccess) {
			r->by_rank[m[i].rank] = c;
			c->lowest = c->nranks ? MIN(c->lowest, m[i].rank) : m[i].rank;
			r->nprocs += c->nranks == 0;
			c->nranks++;
			r->joined++;
		}
	}
	if (f.code != symcclSuccess && r->state == ROOT_PLACED) {
		/* Too late to disturb the others. */
		conn_send(r, c, FRAME_ABORT, &f, sizeof(f));
		return;
	}
	if (f.code != symcclSuccess) {
		r->told += n - (r->joined - before);
		root_fail(r, &f);
	} else if (r->joined == r->nranks) {
		root_place(r);
	}
}

void root_expire(struct root *r)
{
	struct failure f;
	char text[256];
	int *who = calloc((size_t)r->nranks + 1, sizeof(*who)), n = 0;

	if (!who) {
		failure_set(&f, symcclTimeout, -1, "not all of %d ranks came within %g s",
			r->nranks, r->timeout);
		root_fail(r, &f);
		return;
	}
	for (int i = 0; i < r->nranks; i++) {
		const struct conn *c = r->by_rank[i];

		if (r->state == ROOT_JOINING ? !c : c->state != CONN_DONE)
			who[n++] = i;
	}
	ranks_text(text, sizeof(text), who, n);
	if (r->state == ROOT_JOINING)
		failure_set(&f, symcclTimeout, n ? who[0] : -1,
			"%s of %d did not come within %g s (SYMCCL_SETUP_TIMEOUT)", text, r->nranks,
			r->timeout);
	else
		failure_set(&f, symcclTimeout, n ? who[0] : -1,
			"%s of %d joined but did not connect to the others within %g s "
			"(SYMCCL_SETUP_TIMEOUT)",
			text, r->nranks, r->timeout);
	free(who);
	root_fail(r, &f);
}
