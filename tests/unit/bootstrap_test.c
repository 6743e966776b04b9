/* The parts of the bootstrap that need no second process: ids, the tree's shape, sentences, the
 * handshake, frames and descriptors on an edge, interfaces, launchers. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bootstrap/auth.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/dial.h"
#include "bootstrap/edge.h"
#include "bootstrap/root.h"
#include "bootstrap/tree_shape.h"
#include "bootstrap/wire.h"
#include "mem.h"
#include "params.h"
#include "util.h"

TestSuite(bootstrap_unit, .timeout = 20);

/* ---- Ids ----------------------------------------------------------------------------------- */

Test(bootstrap_unit, ids_differ_and_are_checked)
{
	symcclUniqueId a, b;
	struct id damaged;

	cr_assert_eq(symcclGetUniqueId(NULL), symcclInvalidArgument);
	cr_assert_eq(symcclGetUniqueId(&a), symcclSuccess);
	cr_assert_eq(symcclGetUniqueId(&b), symcclSuccess);
	cr_assert(memcmp(((struct id *)&a)->secret, ((struct id *)&b)->secret, AUTH_KEY));
	cr_assert_eq(boot_id_check(&a), symcclSuccess);
	memcpy(&damaged, &a, sizeof(damaged));
	damaged.format++;
	cr_assert_eq(boot_id_check((symcclUniqueId *)&damaged), symcclInvalidArgument);
	cr_assert(strstr(error_text(), "format"));
	memcpy(&damaged, &a, sizeof(damaged));
	damaged.naddrs = ADDR_MAX + 1;
	cr_assert_eq(boot_id_check((symcclUniqueId *)&damaged), symcclInvalidArgument);
	memset(&damaged, 0, sizeof(damaged));
	cr_assert_eq(boot_id_check((symcclUniqueId *)&damaged), symcclInvalidArgument);
	cr_assert_eq(root_count(), 2);
}

Test(bootstrap_unit, ids_from_an_address)
{
	static const char *const bad[] = {
		"", "host", "host:", ":5", "host:0", "host:65536", "host:x", "host:12x", "[]:5"};
	symcclUniqueId a, b;
	const struct id *id = (const struct id *)&a;
	char longest[200];

	cr_assert_eq(boot_id_from_address("head:4000", 16, "job", &a), symcclSuccess);
	cr_assert_eq(boot_id_from_address("head:4000", 16, "job", &b), symcclSuccess);
	cr_assert(memcmp(&a, &b, sizeof(a)) == 0, "not the same on all ranks");
	cr_assert_str_eq(id->name, "head");
	cr_assert_eq(id->port, 4000);
	cr_assert_eq(boot_id_from_address("head:4000", 16, "job2", &b), symcclSuccess);
	cr_assert(memcmp(id->secret, ((struct id *)&b)->secret, AUTH_KEY));
	cr_assert_eq(boot_id_from_address("head:4001", 16, "job", &b), symcclSuccess);
	cr_assert(memcmp(id->secret, ((struct id *)&b)->secret, AUTH_KEY));
	cr_assert_eq(boot_id_from_address("[fe80::1]:65535", 16, "", &a), symcclSuccess);
	cr_assert_str_eq(id->name, "fe80::1");
	cr_assert_eq(id->nports, 1, "ports beyond the last one");
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		cr_assert_eq(boot_id_from_address(bad[i], 1, "", &a), symcclInvalidArgument, "%s",
			bad[i]);
		cr_assert(strstr(error_text(), bad[i]), "%s", error_text());
	}
	memset(longest, 'h', sizeof(longest));
	snprintf(longest + ID_NAME_MAX, sizeof(longest) - ID_NAME_MAX, ":5");
	cr_assert_eq(boot_id_from_address(longest, 1, "", &a), symcclInvalidArgument);
	cr_assert_eq(boot_id_from_address(longest + 1, 1, "", &a), symcclSuccess);
	cr_assert_eq(boot_id_check(&a), symcclSuccess);
}

/* ---- Shape, sentences ------------------------------------------------------------------------ */

/* Every process but one has a parent that counts it, and the depth is one more than the parent's.
 */
Test(bootstrap_unit, the_tree_hangs_together)
{
	for (int nnodes = 1; nnodes < 40; nnodes += 3)
		for (int per_node = 1; per_node < 80; per_node += 7) {
			int roots = 0, children = 0;

			for (int i = 0; i < nnodes * per_node; i++) {
				struct shape s =
					shape_of(i / per_node, nnodes, i % per_node, per_node);
				struct shape p;

				children += s.nchildren;
				cr_assert(s.nchildren <= SHAPE_LOCAL + SHAPE_LEADERS);
				if (s.parent_node < 0) {
					roots++;
					cr_assert_eq(s.depth, 0);
					continue;
				}
				cr_assert(s.parent_node * per_node + s.parent_node_proc < i);
				p = shape_of(s.parent_node, nnodes, s.parent_node_proc, per_node);
				cr_assert_eq(s.depth, p.depth + 1);
				cr_assert(s.parent_node == i / per_node ||
					  (i % per_node == 0 && s.parent_node_proc == 0));
			}
			cr_assert_eq(roots, 1);
			cr_assert_eq(children, nnodes * per_node - 1, "%d nodes of %d", nnodes,
				per_node);
		}
}

Test(bootstrap_unit, ranks_as_text)
{
	static const int some[] = {2, 5, 6, 7, 9, 10, 40};
	int many[400];
	char buf[128];

	cr_assert_str_eq(ranks_text(buf, sizeof(buf), some, 1), "rank 2");
	cr_assert_str_eq(ranks_text(buf, sizeof(buf), some + 1, 3), "ranks 5-7");
	cr_assert_str_eq(ranks_text(buf, sizeof(buf), some, 7), "ranks 2, 5-7, 9, 10, 40");
	for (int i = 0; i < 400; i++)
		many[i] = 1000000 + 2 * i;
	ranks_text(buf, sizeof(buf), many, 400);
	cr_assert(strstr(buf, "1000000, 1000002") && strstr(buf, " more"), "%s", buf);
}

/* ---- Handshake ------------------------------------------------------------------------------- */

static const uint8_t key_a[AUTH_KEY] = "0123456789abcde", key_b[AUTH_KEY] = "0123456789abcdf";

/* Run both sides. 1: both accept, 0: one does, -1: none does. */
static int shake(const uint8_t *ks, const uint8_t *kc, enum auth_purpose ps, enum auth_purpose pc)
{
	int fd[2], s = 0, c = 0;
	struct auth server, client;

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	cr_assert_eq(auth_start(&client, fd[1], kc, pc, 0), 0);
	cr_assert_eq(auth_step(&client, fd[1]), 0, "accepted silence");
	cr_assert_eq(auth_start(&server, fd[0], ks, ps, 1), 0);
	cr_assert_eq(auth_step(&server, fd[0]), 0, "accepted silence");
	for (int i = 0; i < 10 && s >= 0 && c >= 0 && !(s && c); i++) {
		c = c ? c : auth_step(&client, fd[1]);
		s = s ? s : auth_step(&server, fd[0]);
	}
	close(fd[0]);
	close(fd[1]);
	return s > 0 && c > 0 ? 1 : s > 0 || c > 0 ? 0 : -1;
}

Test(bootstrap_unit, only_the_secret_opens)
{
	cr_assert_eq(shake(key_a, key_a, AUTH_ROOT, AUTH_ROOT), 1);
	cr_assert_eq(shake(key_a, key_b, AUTH_ROOT, AUTH_ROOT), -1);
	cr_assert_eq(shake(key_a, key_a, AUTH_ROOT, AUTH_TREE), -1);
}

/* What a stranger may send to either side, all of it at once and cut short. */
Test(bootstrap_unit, garbage_does_not_open)
{
	uint64_t seed = test_seed();

	for (int i = 0; i < 2000; i++) {
		int fd[2], server = i & 1, r;
		struct auth a;
		char junk[200];
		size_t n = (size_t)(mix64(seed, (uint64_t)i) % sizeof(junk));

		cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
		cr_assert_eq(auth_start(&a, fd[0], key_a, AUTH_TREE, server), 0);
		fill_bytes(junk, sizeof(junk), seed + (uint64_t)i);
		if (i % 4 == 1)
			memcpy(junk, "symccl/1", 8);
		cr_assert_eq(write(fd[1], junk, n), (ssize_t)n);
		r = auth_step(&a, fd[0]);
		cr_assert(r <= 0, "opened by %zu bytes of %#lx + %d", n, (unsigned long)seed, i);
		shutdown(fd[1], SHUT_WR);
		if (r == 0)
			cr_assert_eq(auth_step(&a, fd[0]), -1);
		close(fd[0]);
		close(fd[1]);
	}
}

/* ---- Edges ----------------------------------------------------------------------------------- */

static void edge_pair(struct edge e[2], size_t max)
{
	int fd[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd), 0);
	edge_init(&e[0], fd[0], true, max);
	edge_init(&e[1], fd[1], true, max);
}

/* Both sides send more than the sockets hold before either reads. */
Test(bootstrap_unit, large_frames_cross)
{
	enum { LEN = 5 << 20 };
	struct edge e[2];
	struct frame h = {.kind = FRAME_DATA};
	int done[2] = {0, 0};

	edge_pair(e, LEN);
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 3; k++) {
			struct blob *b = blob_new(k == 1 ? 0 : LEN);

			fill_bytes(b->data, b->len, (uint64_t)(10 * i + k));
			h.seq = (uint32_t)k;
			cr_assert_eq(edge_send(&e[i], h, b, NULL, 0), 0);
			cr_assert_eq(b->refs, 2);
			blob_put(b);
		}
	while (done[0] < 3 || done[1] < 3)
		for (int i = 0; i < 2; i++) {
			int got;

			edge_flush(&e[i]);
			got = edge_read(&e[i]);
			cr_assert(got >= 0);
			if (!got)
				continue;
			cr_assert_eq(e[i].rx.seq, (uint32_t)done[i]);
			cr_assert_eq(e[i].rx.len, done[i] == 1 ? 0 : LEN);
			if (e[i].body)
				cr_assert_eq(check_bytes(e[i].body->data, e[i].rx.len,
						     (uint64_t)(10 * (1 - i) + done[i])),
					e[i].rx.len);
			done[i]++;
		}
	cr_assert(edge_idle(&e[0]) && edge_idle(&e[1]));
	edge_close(&e[0]);
	cr_assert_eq(edge_read(&e[1]), -1);
	cr_assert_eq(e[1].error, 0);
	edge_close(&e[1]);
}

/* More than one message can carry, among other frames. */
Test(bootstrap_unit, descriptors_stay_in_step)
{
	enum { N = 600 };
	struct edge e[2];
	struct frame h = {.kind = FRAME_DATA};
	struct stat st;
	int fds[N], frames = 0;

	edge_pair(e, 1000);
	for (int i = 0; i < N; i++) {
		fds[i] = memfd_create("x", MFD_CLOEXEC);
		cr_assert(fds[i] >= 0 && ftruncate(fds[i], i) == 0);
	}
	for (int i = 0; i < 3; i++) {
		cr_assert_eq(edge_send_copy(&e[0], h, "before", 6), 0);
		cr_assert_eq(edge_send(&e[0], h, NULL, fds + 200 * i, 200 * (i + 1) - 200 * i), 0);
	}
	cr_assert_eq(edge_send(&e[0], h, NULL, fds, N), 0);
	for (int rounds = 0; rounds < 1000 && frames < 7; rounds++) {
		edge_flush(&e[0]);
		while (edge_read(&e[1]) > 0)
			frames += e[1].rx.kind == FRAME_DATA;
	}
	cr_assert_eq(frames, 7);
	cr_assert_eq(e[1].rx.nfds, N);
	cr_assert_eq(e[1].nfds, 2 * N);
	for (int i = 0; i < 2 * N; i++) {
		cr_assert_eq(fstat(e[1].fds[i], &st), 0);
		cr_assert_eq(st.st_size, i % N);
	}
	edge_close(&e[0]);
	edge_close(&e[1]);
	for (int i = 0; i < N; i++) {
		cr_assert_eq(close(fds[i]), 0);
	}
}

Test(bootstrap_unit, a_frame_too_large_ends_the_stream)
{
	struct edge e[2];
	struct frame h = {.kind = FRAME_DATA};
	char big[101] = "";

	edge_pair(e, 100);
	cr_assert_eq(edge_send_copy(&e[0], h, big, 100), 0);
	cr_assert_eq(edge_send_copy(&e[0], h, big, 101), 0);
	cr_assert_eq(edge_read(&e[1]), 1);
	cr_assert_eq(edge_read(&e[1]), -1);
	cr_assert_eq(e[1].error, EPROTO);
	edge_close(&e[0]);
	edge_close(&e[1]);
}

/* ---- Interfaces and dialling ------------------------------------------------------------------
 */

static int local_addresses(const char *names, struct endpoint *ep)
{
	setenv("SYMCCL_SOCKET_IFNAME", names, 1);
	params_reload();
	memset(ep, 0, sizeof(*ep));
	return addr_local(ep);
}

Test(bootstrap_unit, interfaces_are_chosen_by_name)
{
	static const uint8_t loopback[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
	struct endpoint all, lo, others;
	char text[ADDR_TEXT];

	cr_assert_eq(local_addresses("", &all), symcclSuccess);
	cr_assert(all.naddrs >= 1);
	cr_assert_eq(local_addresses("=lo", &lo), symcclSuccess);
	cr_assert(lo.naddrs >= 1);
	cr_assert_arr_eq(lo.addrs[0].ip, loopback, 16);
	cr_assert_str_eq(addr_text(&lo.addrs[0], 80, text), "127.0.0.1:80");
	cr_assert_str_eq(addr_text(&lo.addrs[0], 0, text), "127.0.0.1");
	if (all.naddrs > lo.naddrs) {
		cr_assert(memcmp(all.addrs[0].ip, loopback, 16), "loopback is preferred");
		cr_assert_eq(local_addresses("^lo", &others), symcclSuccess);
		cr_assert_arr_eq(others.addrs[0].ip, all.addrs[0].ip, 16);
		for (int i = 0; i < others.naddrs; i++)
			cr_assert(memcmp(others.addrs[i].ip, loopback, 16));
	}
	cr_assert_eq(local_addresses("=l", &lo), symcclInvalidUsage);
	cr_assert(strstr(error_text(), "SYMCCL_SOCKET_IFNAME=="), "%s", error_text());
	cr_assert_eq(local_addresses("l", &lo), symcclSuccess);
	setenv("SYMCCL_SOCKET_FAMILY", "inet6", 1);
	if (local_addresses("lo", &lo) == symcclSuccess && lo.naddrs)
		cr_assert(memcmp(lo.addrs[0].ip, loopback, 16), "IPv4 although inet6 is asked for");
}

/* Over TCP, past a port where nobody listens and one where a stranger does. */
Test(bootstrap_unit, dialling_finds_the_one_with_the_secret)
{
	struct addr lo = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
	uint16_t dead, stranger, ours;
	int gone = addr_listen(0, &dead), mute = addr_listen(0, &stranger);
	struct pollset ps = {0};
	struct dial d;
	uint64_t start = now_ns();

	cr_assert(gone >= 0 && mute >= 0);
	close(gone);
	cr_assert_eq(root_start(key_a, 0, 1, &ours), symcclSuccess);
	cr_assert_eq(root_find(key_a), ours);
	cr_assert_eq(root_find(key_b), 0);
	dial_init(&d, key_a, AUTH_ROOT);
	cr_assert_eq(dial_add(&d, &lo, 1, dead, 1), symcclSuccess);
	cr_assert_eq(dial_add(&d, &lo, 1, stranger, 1), symcclSuccess);
	cr_assert_eq(dial_add(&d, &lo, 1, ours, 1), symcclSuccess);
	while (d.fd < 0) {
		uint64_t until = now_ns() + 1000000000;

		ps.n = 0;
		dial_poll(&d, &ps, &until);
		poll(ps.p, (nfds_t)ps.n, (int)((until - now_ns()) / 1000000) + 1);
		dial_step(&d, &ps);
		cr_assert(now_ns() - start < 5000000000ull, "too slow");
	}
	cr_assert_eq(d.is_unix, 0);
	close(d.fd);
	dial_close(&d);
	free(ps.p);
	close(mute);
}

/* ---- Launchers ---------------------------------------------------------------------------------
 */

static symcclResult_t launch(symcclLaunch_t *l, const char *const *env, int n)
{
	clearenv();
	for (int i = 0; i < n; i += 2)
		setenv(env[i], env[i + 1], 1);
	params_reload();
	memset(l, 0, sizeof(*l));
	return symcclGetLaunch(l);
}
#define LAUNCH(l, ...) \
	launch(l, (const char *const[]){__VA_ARGS__}, \
		(int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))

Test(bootstrap_unit, launch_from_own_variables)
{
	symcclLaunch_t l;
	symcclUniqueId id;

	cr_assert_eq(symcclGetLaunch(NULL), symcclInvalidArgument);
	cr_assert_eq(LAUNCH(&l, "SYMCCL_RANK", "2", "SYMCCL_NRANKS", "5", "SYMCCL_COMM_ID", "h:77",
			     "RANK", "0"),
		symcclSuccess);
	cr_assert_str_eq(l.launcher, "env");
	cr_assert(l.rank == 2 && l.nranks == 5 && l.localRank == -1 && l.localNranks == -1);
	cr_assert_eq(boot_id_from_address("h:77", 1, "", &id), symcclSuccess);
	cr_assert_arr_eq(&id, &l.id, sizeof(id));
	cr_assert_eq(LAUNCH(&l, "SYMCCL_RANK", "2"), symcclInvalidUsage);
	cr_assert(
		strstr(error_text(), "not set: SYMCCL_NRANKS SYMCCL_COMM_ID"), "%s", error_text());
	cr_assert_eq(LAUNCH(&l, "SYMCCL_RANK", "5", "SYMCCL_NRANKS", "5", "SYMCCL_COMM_ID", "h:77"),
		symcclInvalidUsage);
	cr_assert_eq(LAUNCH(&l, "HOME", "/"), symcclInvalidUsage);
	cr_assert(strstr(error_text(), "no launcher"), "%s", error_text());
}

Test(bootstrap_unit, launch_by_torchrun)
{
	symcclLaunch_t l, m;
	const struct id *id = (const struct id *)&l.id;

	cr_assert_eq(LAUNCH(&l, "RANK", "3", "WORLD_SIZE", "8", "LOCAL_RANK", "1",
			     "LOCAL_WORLD_SIZE", "2", "MASTER_ADDR", "head", "MASTER_PORT", "29500",
			     "TORCHELASTIC_RUN_ID", "a"),
		symcclSuccess);
	cr_assert_str_eq(l.launcher, "torchrun");
	cr_assert(l.rank == 3 && l.nranks == 8 && l.localRank == 1 && l.localNranks == 2);
	cr_assert_str_eq(id->name, "head");
	cr_assert(id->port == 29501 && id->nports == 16);
	cr_assert_eq(LAUNCH(&m, "RANK", "0", "WORLD_SIZE", "8", "MASTER_ADDR", "head",
			     "MASTER_PORT", "29500", "TORCHELASTIC_RUN_ID", "a"),
		symcclSuccess);
	cr_assert_arr_eq(&l.id, &m.id, sizeof(l.id));
	cr_assert_eq(LAUNCH(&m, "RANK", "0", "WORLD_SIZE", "8", "MASTER_ADDR", "::1", "MASTER_PORT",
			     "65530"),
		symcclSuccess);
	cr_assert_eq(((const struct id *)&m.id)->port, 65514);
	cr_assert_eq(LAUNCH(&l, "RANK", "3", "MASTER_PORT", "29500"), symcclInvalidUsage);
	cr_assert(strstr(error_text(), "WORLD_SIZE, MASTER_ADDR"), "%s", error_text());
	cr_assert_eq(LAUNCH(&l, "RANK", "3", "WORLD_SIZE", "many", "MASTER_ADDR", "head",
			     "MASTER_PORT", "29500"),
		symcclInvalidUsage);
	cr_assert(strstr(error_text(), "WORLD_SIZE=many"), "%s", error_text());
}

/* One node: needs nothing. Several: SYMCCL_COMM_ID. */
Test(bootstrap_unit, launch_by_mpi_and_slurm)
{
	symcclLaunch_t l, m;

	cr_assert_eq(LAUNCH(&l, "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2",
			     "OMPI_COMM_WORLD_LOCAL_RANK", "1", "OMPI_COMM_WORLD_LOCAL_SIZE", "2",
			     "PMIX_NAMESPACE", "job7", "PMIX_RANK", "1"),
		symcclSuccess);
	cr_assert_str_eq(l.launcher, "openmpi");
	cr_assert(l.rank == 1 && l.localNranks == 2);
	cr_assert_str_eq(((const struct id *)&l.id)->name, "127.0.0.1");
	cr_assert_eq(LAUNCH(&m, "OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2",
			     "OMPI_COMM_WORLD_LOCAL_RANK", "0", "OMPI_COMM_WORLD_LOCAL_SIZE", "2",
			     "PMIX_NAMESPACE", "job8"),
		symcclSuccess);
	cr_assert(memcmp(&l.id, &m.id, sizeof(l.id)), "two jobs share an id");
	cr_assert_eq(LAUNCH(&l, "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4",
			     "OMPI_COMM_WORLD_LOCAL_SIZE", "2", "PMIX_NAMESPACE", "job7"),
		symcclInvalidUsage);
	cr_assert(strstr(error_text(), "SYMCCL_COMM_ID"), "%s", error_text());
	cr_assert_eq(LAUNCH(&l, "SLURM_PROCID", "1", "SLURM_NTASKS", "4", "SLURM_JOB_ID", "9",
			     "SYMCCL_COMM_ID", "head:5000"),
		symcclSuccess);
	cr_assert_str_eq(l.launcher, "slurm");
	cr_assert_str_eq(((const struct id *)&l.id)->name, "head");
	cr_assert_eq(LAUNCH(&l, "PMI_RANK", "1", "PMI_SIZE", "2", "MPI_LOCALRANKID", "1",
			     "MPI_LOCALNRANKS", "2"),
		symcclSuccess);
	cr_assert_str_eq(l.launcher, "pmi");
	cr_assert_eq(LAUNCH(&m, "PMI_RANK", "0", "PMI_SIZE", "2", "MPI_LOCALRANKID", "0",
			     "MPI_LOCALNRANKS", "2"),
		symcclSuccess);
	cr_assert_arr_eq(&l.id, &m.id, sizeof(l.id));
}
