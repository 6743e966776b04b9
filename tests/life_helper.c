#include "life_helper.h"
#include "mem.h"
#include "symccl.h"

int life_join(int rank, int n, symcclComm_t *comm)
{
	symcclUniqueId id;

	if (rank == 0)
		RANK_OK(symcclGetUniqueId(&id));
	RANK_BCAST(&id, sizeof(id));
	RANK_OK(symcclCommInitRank(comm, n, id, rank));
	return 0;
}

int life_works(symcclComm_t comm, int rank, int n, uint64_t seed)
{
	enum { COUNT = 777 };
	uint64_t in[COUNT], out[COUNT], want;
	int v = -1;

	RANK_OK(symcclCommCount(comm, &v));
	RANK_CHECK(v == n, "%d ranks instead of %d", v, n);
	RANK_OK(symcclCommUserRank(comm, &v));
	RANK_CHECK(v == rank, "rank %d instead of %d", v, rank);
	for (int i = 0; i < COUNT; i++)
		in[i] = mix64(seed + (uint64_t)rank, (uint64_t)i);
	poison(out, sizeof(out));
	RANK_OK(symcclAllReduce(in, out, COUNT, symcclUint64, symcclSum, comm, NULL));
	for (int i = 0; i < COUNT; i++) {
		want = 0;
		for (int r = 0; r < n; r++)
			want += mix64(seed + (uint64_t)r, (uint64_t)i);
		RANK_CHECK(out[i] == want, "element %d", i);
	}
	return 0;
}
