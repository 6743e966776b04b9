/*
 * Launchers: rank, size and rendezvous from the environment.
 *
 * The first row of `launchers` whose first variable is set counts; SYMCCL_RANK and SYMCCL_NRANKS
 * come before all of them. The rendezvous is at SYMCCL_COMM_ID where that is set, else where the
 * row says: next to torchrun's own port, or, when all ranks are on this node, on the loopback
 * interface at a port that comes from the name of the job. The job's name is also in the secret, so
 * jobs do not meet by chance.
 */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bootstrap.h"
#include "log.h"
#include "params.h"
#include "util.h"

#define PORTS 16          /* torchrun, one node: how many ports are tried */
#define PORT_FIRST 16384u /* one node: below the ports that the kernel deals out */
#define PORT_COUNT 12288u
#define JOB_VARS 3
#define JOB_MAX 512

struct launcher {
	const char *name;
	const char *rank, *size;
	const char *local_rank, *local_size; /* NULL: does not say */
	const char *addr, *port;             /* rendezvous; NULL: none */
	const char *job[JOB_VARS];           /* what names the job, as far as set */
	int parent; /* no variable names the job, but all ranks of a node have one parent process */
};

static const struct launcher launchers[] = {
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
		"MASTER_PORT", {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}, 0},
	{"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
		"OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL,
		{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"}, 0},
	/* Before Slurm: hydra started by Slurm leaves the proxy's SLURM_PROCID in place. */
	{"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL,
		{"PMI_ID", "PMI_JOBID"}, 1},
	{"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
		NULL, NULL, {"SLURM_JOB_ID", "SLURM_STEP_ID"}, 0},
	{"pmix", "PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK", "PMIX_LOCAL_SIZE", NULL, NULL,
		{"PMIX_NAMESPACE"}, 0},
};

static const char *env(const char *name)
{
	const char *s = name ? getenv(name) : NULL;

	return s && *s ? s : NULL;
}

/* A variable that must be a number; adds its name to missing when it is not set. */
static symcclResult_t env_int(
	const char *name, int lo, int hi, int *out, char *missing, size_t room)
{
	const char *s = env(name);
	char *end;
	long v;

	if (!s) {
		size_t at = strlen(missing);

		snprintf(missing + at, room - at, "%s%s", at ? ", " : "", name);
		return symcclSuccess;
	}
	v = strtol(s, &end, 10);
	if (*end || v < lo || v > hi)
		return fail(
			symcclInvalidUsage, "%s=%s is not a number from %d to %d", name, s, lo, hi);
	*out = (int)v;
	return symcclSuccess;
}

static int env_local(const char *name)
{
	const char *s = env(name);
	char *end;
	long v = s ? strtol(s, &end, 10) : -1;

	return s && *end == 0 && v >= 0 && v < 1 << 20 ? (int)v : -1;
}

/* When the process that started us started: with its number it is unique. */
static void parent_name(char *buf, size_t size)
{
	char path[64], stat[512], *p;
	unsigned long long start = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)getppid());
	f = fopen(path, "re");
	if (f) {
		size_t n = fread(stat, 1, sizeof(stat) - 1, f);

		stat[n] = 0;
		fclose(f);
		p = strrchr(stat, ')'); /* the 22nd field; the 2nd ends here */
		for (int i = 0; p && i < 20; i++)
			p = strchr(p + 1, ' ');
		start = p ? strtoull(p + 1, NULL, 10) : 0;
	}
	snprintf(buf, size, "parent %d %llu", (int)getppid(), start);
}

/* "" when nothing names the job. */
static void job_name(const struct launcher *l, char job[JOB_MAX])
{
	size_t at = 0;

	job[0] = 0;
	for (int i = 0; i < JOB_VARS && at < JOB_MAX; i++) {
		const char *s = env(l->job[i]);

		if (s)
			at += (size_t)snprintf(job + at, JOB_MAX - at, "%s=%s;", l->job[i], s);
	}
	if (at == 0 && l->parent)
		parent_name(job, JOB_MAX);
}

/* ---- Rendezvous -------------------------------------------------------------------------- */

static symcclResult_t id_at_master(
	const struct launcher *l, const char *job, int master_port, symcclUniqueId *id)
{
	char where[300];
	const char *addr = env(l->addr);
	/* The port itself is the launcher's own. */
	int port = master_port + PORTS < 65536 ? master_port + 1 : master_port - PORTS;

	snprintf(where, sizeof(where), strchr(addr, ':') ? "[%s]:%d" : "%s:%d", addr, port);
	return boot_id_from_address(where, PORTS, job, id);
}

static symcclResult_t id_on_node(const char *job, symcclUniqueId *id)
{
	uint8_t hash[crypto_generichash_BYTES_MIN];
	uint32_t word;
	char where[64];

	crypto_generichash(hash, sizeof(hash), (const uint8_t *)job, strlen(job), NULL, 0);
	memcpy(&word, hash, sizeof(word));
	snprintf(where, sizeof(where), "%s:%u",
		params_get()->socket_family == 2 ? "[::1]" : "127.0.0.1",
		PORT_FIRST + word % PORT_COUNT);
	return boot_id_from_address(where, PORTS, job, id);
}

static symcclResult_t launch_id(const struct launcher *l, int master_port, symcclLaunch_t *out)
{
	const char *comm_id = params_get()->comm_id;
	char job[JOB_MAX];

	job_name(l, job);
	if (*comm_id)
		return boot_id_from_address(comm_id, 1, job, &out->id);
	if (l->addr)
		return id_at_master(l, job, master_port, &out->id);
	if (*job && out->localNranks == out->nranks)
		return id_on_node(job, &out->id);
	return fail(symcclInvalidUsage,
		"%s tells rank and size, but the ranks need a rendezvous: set "
		"SYMCCL_COMM_ID=host:port "
		"to a free port on the host of rank 0, the same on all ranks",
		l->name);
}

/* ---- Sources ----------------------------------------------------------------------------- */

static symcclResult_t launch_check(const symcclLaunch_t *out, const char *rank, const char *size)
{
	if (out->rank >= out->nranks)
		return fail(symcclInvalidUsage, "%s=%d does not fit %s=%d", rank, out->rank, size,
			out->nranks);
	return symcclSuccess;
}

static symcclResult_t launch_params(symcclLaunch_t *out)
{
	const struct params *p = params_get();

	if (p->rank < 0 || p->nranks < 1 || !*p->comm_id)
		return fail(symcclInvalidUsage,
			"without a launcher SYMCCL_RANK, SYMCCL_NRANKS and "
			"SYMCCL_COMM_ID=host:port are "
			"needed together; not set:%s%s%s",
			p->rank < 0 ? " SYMCCL_RANK" : "", p->nranks < 1 ? " SYMCCL_NRANKS" : "",
			*p->comm_id ? "" : " SYMCCL_COMM_ID");
	out->rank = (int)p->rank;
	out->nranks = (int)p->nranks;
	out->localRank = out->localNranks = -1;
	snprintf(out->launcher, sizeof(out->launcher), "env");
	TRY(launch_check(out, "SYMCCL_RANK", "SYMCCL_NRANKS"));
	return boot_id_from_address(p->comm_id, 1, "", &out->id);
}

static symcclResult_t launch_row(const struct launcher *l, symcclLaunch_t *out)
{
	char missing[256] = "";
	int port = 0;

	TRY(env_int(l->rank, 0, (1 << 20) - 1, &out->rank, missing, sizeof(missing)));
	TRY(env_int(l->size, 1, 1 << 20, &out->nranks, missing, sizeof(missing)));
	if (l->addr && !*params_get()->comm_id) {
		if (!env(l->addr))
			snprintf(missing + strlen(missing), sizeof(missing) - strlen(missing),
				"%s%s", *missing ? ", " : "", l->addr);
		TRY(env_int(l->port, 1, 65535, &port, missing, sizeof(missing)));
	}
	if (*missing)
		return fail(symcclInvalidUsage,
			"%s is set, which is a sign of %s, but not: %s; set them, or SYMCCL_RANK, "
			"SYMCCL_NRANKS and SYMCCL_COMM_ID=host:port",
			l->rank, l->name, missing);
	TRY(launch_check(out, l->rank, l->size));
	out->localRank = env_local(l->local_rank);
	out->localNranks = env_local(l->local_size);
	snprintf(out->launcher, sizeof(out->launcher), "%s", l->name);
	return launch_id(l, port, out);
}

static symcclResult_t launch_any(symcclLaunch_t *out)
{
	if (params_get()->rank >= 0 || params_get()->nranks >= 1)
		return launch_params(out);
	for (size_t i = 0; i < ARRAY_LEN(launchers); i++)
		if (env(launchers[i].rank))
			return launch_row(&launchers[i], out);
	return fail(symcclInvalidUsage, "no launcher is recognised: start with torchrun, mpirun or "
					"srun, or set SYMCCL_RANK, "
					"SYMCCL_NRANKS and SYMCCL_COMM_ID=host:port");
}

symcclResult_t boot_launch(symcclLaunch_t *launch)
{
	symcclLaunch_t out = {0};

	if (sodium_init() < 0)
		return fail(symcclSystemError, "libsodium finds no source of random numbers");
	TRY(launch_any(&out));
	log_info(LOG_BOOT, "launched by %s: rank %d of %d, local rank %d of %d", out.launcher,
		out.rank, out.nranks, out.localRank, out.localNranks);
	*launch = out;
	return symcclSuccess;
}

symcclResult_t symcclGetLaunch(symcclLaunch_t *launch)
{
	if (!launch)
		return fail(symcclInvalidArgument, "launch is NULL");
	return boot_launch(launch);
}
