/* The shape of the tree: inside a node processes hang from its first one, node leaders hang from
 * node 0's. Pure arithmetic, the same on the root of the rendezvous and on every process. */
#ifndef TREE_SHAPE_H
#define TREE_SHAPE_H

#define SHAPE_LOCAL 8   /* children of a process on its node */
#define SHAPE_LEADERS 4 /* leaders of other nodes that hang from a leader */

struct shape {
	int parent_node, parent_node_proc; /* -1, -1: the root */
	int nchildren;
	int depth; /* connections between this process and the root */
};

/* Children of vertex i in a tree of n vertices where i's parent is (i - 1) / arity. */
static inline int shape_children(int i, int n, int arity)
{
	long long first = (long long)i * arity + 1;

	return first >= n ? 0 : (int)(n - first < arity ? n - first : arity);
}

static inline struct shape shape_of(int node, int nnodes, int node_proc, int node_nprocs)
{
	struct shape s = {-1, -1, shape_children(node_proc, node_nprocs, SHAPE_LOCAL), 0};

	if (node_proc) {
		s.parent_node = node;
		s.parent_node_proc = (node_proc - 1) / SHAPE_LOCAL;
	} else {
		s.nchildren += shape_children(node, nnodes, SHAPE_LEADERS);
		if (node) {
			s.parent_node = (node - 1) / SHAPE_LEADERS;
			s.parent_node_proc = 0;
		}
	}
	for (int i = node_proc; i; i = (i - 1) / SHAPE_LOCAL)
		s.depth++;
	for (int i = node; i; i = (i - 1) / SHAPE_LEADERS)
		s.depth++;
	return s;
}

#endif
