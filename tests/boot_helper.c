/* Opening a boot from a test. */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "boot_helper.h"
#include "params.h"
#include "ranks.h"
#include "util.h"

uint64_t after(double s)
{
	return now_ns() + (uint64_t)(s * 1e9);
}

void opener_add(struct opener *o, int rank, int nranks)
{
	o->members[o->n++] = (struct boot_member){rank, nranks, SYMCCL_VERSION_CODE, 1};
}

static int opener_next(void *arg, struct boot_member *m)
{
	struct opener *o = arg;
	uint64_t n;

	if (read(o->wakefd, &n, sizeof(n)) < 0)
		n = 0;
	if (o->given == o->n)
		return 0;
	*m = o->members[o->given++];
	return 1;
}

symcclResult_t opener_run(struct opener *o, const symcclUniqueId *id, double s, struct boot **b)
{
	symcclResult_t r;

	o->wakefd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
	r = boot_open(id, o->wakefd, -1, opener_next, o, after(s), b, &o->why);
	close(o->wakefd);
	return r;
}

symcclResult_t open_one(int rank, int nranks, const symcclUniqueId *id, double s, struct boot **b,
	struct failure *why)
{
	static __thread struct opener o;
	symcclResult_t r;

	memset(&o, 0, sizeof(o));
	opener_add(&o, rank, nranks);
	r = opener_run(&o, id, s, b);
	if (why)
		*why = o.why;
	return r;
}

int share_id(int rank, symcclUniqueId *id)
{
	if (rank == 0)
		RANK_OK(boot_id_create(id));
	RANK_BCAST(id, sizeof(*id));
	return 0;
}

double seconds_since(uint64_t start)
{
	return (double)(now_ns() - start) / 1e9;
}

void set_env(const char *name, const char *value)
{
	setenv(name, value, 1);
	params_reload();
}
