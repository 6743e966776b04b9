/* Sum a vector under MPI: the id travels by MPI_Bcast, the data by symccl.
 *	mpicc all_reduce.c -lsymccl && mpirun -n 4 ./a.out */
#include <mpi.h>
#include <stdio.h>
#include <symccl.h>

static void check(symcclResult_t result)
{
	if (result == symcclSuccess)
		return;
	fprintf(stderr, "%s: %s\n", symcclGetErrorString(result), symcclGetLastError(NULL));
	MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv)
{
	enum { COUNT = 1 << 20 };
	symcclConfig_t config = SYMCCL_CONFIG_INITIALIZER;
	symcclUniqueId id;
	symcclComm_t comm;
	static float in[COUNT], out[COUNT];
	int rank, n;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &n);
	if (rank == 0)
		check(symcclGetUniqueId(&id));
	MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);
	config.device = symcclDeviceHost;
	check(symcclCommInitRankConfig(&comm, n, id, rank, &config));

	for (int i = 0; i < COUNT; i++)
		in[i] = (float)(rank + 1);
	check(symcclAllReduce(in, out, COUNT, symcclFloat, symcclSum, comm, NULL));
	printf("rank %d of %d: %g everywhere\n", rank, n, out[COUNT - 1]);

	check(symcclCommDestroy(comm));
	MPI_Finalize();
	return 0;
}
