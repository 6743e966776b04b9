/* Times Gloo, which PyTorch uses on CPUs, for host.sh:
 *     gloo_coll collective[/halving] ranks back-to-back-up-to size... */
#define _GNU_SOURCE
#include "gloo_api.h"
#include "peer_fork.h"

static struct peer me;
static char folder[] = "/tmp/gloo_coll.XXXXXX";

static void need(int result)
{
	if (result)
		_exit(1);
}

static void all_reduce(int n)
{
	need(gloo_all_reduce((float *)me.send, (float *)me.recv, n));
}

static void all_reduce_halving(int n)
{
	need(gloo_all_reduce_halving((float *)me.send, n));
}

static void all_gather(int n)
{
	need(gloo_all_gather((float *)me.send, (float *)me.recv, n / me.nranks));
}

static void barrier(int n)
{
	(void)n;
	need(gloo_barrier());
}

static const struct peer_op ops[] = {{"all_reduce", all_reduce, 0, 0},
	{"all_reduce/halving", all_reduce_halving, 0, 0}, {"all_gather", all_gather, 1, 0},
	{"barrier", barrier, 0, 1}};
static const struct peer_op *op;
static int nsizes;
static char **args;

static int body(struct peer *p)
{
	int failed;

	need(gloo_open(p->rank, p->nranks, folder));
	failed = peer_main(p, op, strtoul(args[0], NULL, 10), nsizes, args + 1);
	gloo_close();
	return failed;
}

static void folder_remove(void)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -rf %s", folder);
	if (system(command))
		fprintf(stderr, "gloo_coll: %s is left behind\n", folder);
}

int main(int argc, char **argv)
{
	int failed;

	for (size_t i = 0; argc > 4 && i < sizeof(ops) / sizeof(ops[0]); i++)
		if (!strcmp(argv[1], ops[i].name))
			op = &ops[i];
	me.nranks = argc > 4 ? atoi(argv[2]) : 0;
	if (!op || me.nranks < 1 || me.nranks > BENCH_TEAM_MAX) {
		fprintf(stderr, "usage: gloo_coll all_reduce[/halving]|all_gather|barrier ranks "
				"back_to_back_max size...\n");
		return 2;
	}
	nsizes = argc - 4;
	args = argv + 3;
	if (!mkdtemp(folder))
		return 1;
	failed = peer_fork(&me, body);
	folder_remove();
	return failed;
}
