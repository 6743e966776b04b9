/* Times MPI's collectives, for host.sh: mpi_coll collective back-to-back-up-to size... */
#define _GNU_SOURCE
#include <mpi.h>

#include "peer.h"

static struct peer me;

static void all_gather(int n)
{
	MPI_Allgather(me.send, n / me.nranks, MPI_FLOAT, me.recv, n / me.nranks, MPI_FLOAT,
		MPI_COMM_WORLD);
}

static void all_reduce(int n)
{
	MPI_Allreduce(me.send, me.recv, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce_scatter(int n)
{
	MPI_Reduce_scatter_block(
		me.send, me.recv, n / me.nranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void alltoall(int n)
{
	MPI_Alltoall(me.send, n / me.nranks, MPI_FLOAT, me.recv, n / me.nranks, MPI_FLOAT,
		MPI_COMM_WORLD);
}

static void broadcast(int n)
{
	MPI_Bcast(me.send, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void reduce(int n)
{
	MPI_Reduce(me.send, me.recv, n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}

static void gather(int n)
{
	MPI_Gather(me.send, n / me.nranks, MPI_FLOAT, me.recv, n / me.nranks, MPI_FLOAT, 0,
		MPI_COMM_WORLD);
}

static void scatter(int n)
{
	MPI_Scatter(me.send, n / me.nranks, MPI_FLOAT, me.recv, n / me.nranks, MPI_FLOAT, 0,
		MPI_COMM_WORLD);
}

/* To the next rank, from the one before. */
static void sendrecv(int n)
{
	int next = (me.rank + 1) % me.nranks, last = (me.rank + me.nranks - 1) % me.nranks;

	MPI_Sendrecv(me.send, n, MPI_FLOAT, next, 0, me.recv, n, MPI_FLOAT, last, 0, MPI_COMM_WORLD,
		MPI_STATUS_IGNORE);
}

/* Each even rank and the next one: there and back. */
static void pingpong(int n)
{
	int peer = me.rank ^ 1;

	if (peer >= me.nranks)
		return;
	if (!(me.rank & 1))
		MPI_Send(me.send, n, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
	MPI_Recv(me.recv, n, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (me.rank & 1)
		MPI_Send(me.send, n, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
}

static void barrier(int n)
{
	(void)n;
	MPI_Barrier(MPI_COMM_WORLD);
}

static const struct peer_op ops[] = {{"all_gather", all_gather, 1, 0},
	{"all_reduce", all_reduce, 0, 0}, {"reduce_scatter", reduce_scatter, 0, 0},
	{"alltoall", alltoall, 0, 0}, {"broadcast", broadcast, 0, 0}, {"reduce", reduce, 0, 0},
	{"gather", gather, 1, 0}, {"scatter", scatter, 0, 0}, {"sendrecv", sendrecv, 0, 0},
	{"pingpong", pingpong, 0, 0}, {"barrier", barrier, 0, 1}};

static struct peer_board *board_make(void)
{
	struct peer_board *mine, *first = NULL;
	MPI_Aint bytes;
	MPI_Win win;
	int unit;

	MPI_Win_allocate_shared(
		me.rank ? 0 : sizeof(*mine) + 128, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &win);
	MPI_Win_shared_query(win, 0, &bytes, &unit, &first);
	first = (void *)(((uintptr_t)first + 127) & ~(uintptr_t)127);
	if (me.rank == 0)
		memset(first, 0, sizeof(*first));
	MPI_Barrier(MPI_COMM_WORLD);
	return first;
}

int main(int argc, char **argv)
{
	const struct peer_op *op = NULL;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &me.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &me.nranks);
	for (size_t i = 0; argc > 3 && i < sizeof(ops) / sizeof(ops[0]); i++)
		if (!strcmp(argv[1], ops[i].name))
			op = &ops[i];
	if (!op) {
		fprintf(stderr, "usage: mpi_coll collective back_to_back_max size...\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	me.board = board_make();
	if (peer_main(&me, op, strtoul(argv[2], NULL, 10), argc - 3, argv + 3))
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Finalize();
	return 0;
}
