/* Reduction operators that programs create. */
#include <stdlib.h>
#include <string.h>
#include "comm_gpu.h"

static struct redop *redop_find(symcclComm_t comm, symcclRedOp_t op)
{
	int i = (int)op - symcclNumOps;

	return i >= 0 && i < comm->nredops && comm->redops[i].used ? &comm->redops[i] : NULL;
}

symcclResult_t redop_resolve(symcclComm_t comm, symcclRedOp_t op, struct coll_call *c)
{
	const struct redop *r;

	c->op = op;
	if ((unsigned)op < symcclNumOps)
		return symcclSuccess;
	r = redop_find(comm, op);
	if (r == NULL)
		return fail(symcclInvalidArgument,
			"op is %d: no symcclRedOp_t, and none that symcclRedOpCreatePreMulSum made "
			"on this "
			"communicator",
			(int)op);
	if (r->type != c->type)
		return fail(symcclInvalidArgument,
			"op %d was created for datatype %d, the call has datatype %d", (int)op,
			(int)r->type, (int)c->type);
	c->op = symcclSum;
	c->has_factor = r->used;
	c->factor = r->factor;
	return symcclSuccess;
}

symcclResult_t symcclRedOpCreatePreMulSum(symcclRedOp_t *op, void *scalar,
	symcclDataType_t datatype, symcclScalarResidence_t residence, symcclComm_t comm)
{
	int i = 0;

	TRY(comm_check_handle(comm));
	if (op == NULL || scalar == NULL)
		return comm_error(comm,
			fail(symcclInvalidArgument, "%s is NULL", op == NULL ? "op" : "scalar"));
	if (coll_type_size(datatype) == 0)
		return comm_error(
			comm, fail(symcclInvalidArgument, "datatype is %d, not a symcclDataType_t",
				      (int)datatype));
	if ((unsigned)residence > symcclScalarHostImmediate)
		return comm_error(
			comm, fail(symcclInvalidArgument,
				      "residence is %d, not a symcclScalarResidence_t", residence));
	if (residence == symcclScalarDevice && comm->hub->gpu == NULL)
		return comm_error(comm, fail(symcclInvalidUsage,
						"residence is %d: a host communicator takes "
						"symcclScalarHostImmediate",
						(int)residence));
	if (residence == symcclScalarDevice)
		TRY(comm_error(comm, comm_gpu_check_buffer(comm, "scalar", scalar)));
	while (i < comm->nredops && comm->redops[i].used)
		i++;
	if (i == comm->nredops) {
		struct redop *p = realloc(comm->redops, (size_t)(i + 8) * sizeof(*p));

		if (p == NULL)
			return comm_error(comm, fail(symcclSystemError, "out of memory for an op"));
		memset(p + i, 0, 8 * sizeof(*p));
		comm->redops = p;
		comm->nredops = i + 8;
	}
	comm->redops[i] = (struct redop){.used = residence == symcclScalarDevice ? 2 : 1,
		.type = datatype,
		.factor = (uintptr_t)scalar};
	if (residence == symcclScalarHostImmediate) {
		comm->redops[i].factor = 0;
		memcpy(&comm->redops[i].factor, scalar, coll_type_size(datatype));
	}
	*op = (symcclRedOp_t)(symcclNumOps + i);
	return symcclSuccess;
}

symcclResult_t symcclRedOpDestroy(symcclRedOp_t op, symcclComm_t comm)
{
	struct redop *r;

	TRY(comm_check_handle(comm));
	r = redop_find(comm, op);
	if (r == NULL)
		return comm_error(
			comm, fail(symcclInvalidArgument, "op is %d: not made on this communicator",
				      (int)op));
	r->used = 0;
	return symcclSuccess;
}
