/*
 * The GPU kernels, the very source, on threads of a CPU: ranks x CTAs x a few threads each. Finds
 * wrong indices, tails, trees and protocol steps where there is no GPU; with -fsanitize=thread,
 * accesses that nothing orders. With -DEMULATE_FEW, as make builds it, protocol steps only.
 *
 *   g++ -std=c++17 -O1 -g -pthread -ffp-contract=off -DDEV_CTA_THREADS=4 -Iinclude -Isrc
 *       -Isrc/coll/cuda -Itests/gpu -x c++ tests/gpu/kernels_cpu.cc -o kernels_cpu
 */
#include <sys/mman.h>
#include "emulate.h"
#include "routes_body.h"

#define STRIDE (4u << 20)
static char *memory;
static uint32_t abort_word;
static struct dev_record records[WORLD_MAX];

uint64_t machine_base()
{
	return (uint64_t)(uintptr_t)memory;
}
uint64_t machine_stride()
{
	return STRIDE;
}
void machine_put(uint64_t to, const void *from, size_t n)
{
	memcpy((void *)to, from, n);
}
void machine_get(void *to, uint64_t from, size_t n)
{
	memcpy(to, (const void *)from, n);
}
void machine_zero(uint64_t to, size_t n)
{
	memset((void *)to, 0, n);
}
uint64_t machine_abort()
{
	return (uint64_t)(uintptr_t)&abort_word;
}
volatile uint32_t *machine_abort_host()
{
	return &abort_word;
}
uint64_t machine_record(int rank)
{
	return (uint64_t)(uintptr_t)&records[rank];
}
volatile struct dev_record *machine_record_host(int rank)
{
	return &records[rank];
}

/* Each rank's kernels, one after the other. */
static struct rank_queue {
	struct {
		const struct kernel_entry *kernel;
		struct cuda_args args;
		uint32_t ctas;
	} work[2];
	int n;
	uint32_t lag; /* of its CTAs, in microseconds */
	pthread_t thread;
} queues[WORLD_MAX];

void machine_launch(
	int rank, const char *kernel, const struct cuda_args *args, int ctas, int threads)
{
	struct rank_queue *q = &queues[rank];
	int i = 0;

	(void)threads;
	while (i < KERNEL_ENTRIES && strcmp(kernel_entries[i].name, kernel) != 0)
		i++;
	if (i == KERNEL_ENTRIES || q->n == 2) {
		printf("no kernel %s, or one too many\n", kernel);
		exit(1);
	}
	q->work[q->n++] = {&kernel_entries[i], *args, (uint32_t)ctas};
}
static void *queue_run(void *arg)
{
	struct rank_queue *q = (struct rank_queue *)arg;

	for (int i = 0; i < q->n; i++)
		grid_join(grid_start(q->work[i].kernel, &q->work[i].args, q->work[i].ctas, q->lag));
	return NULL;
}
void machine_run()
{
	for (struct rank_queue &q : queues)
		if (q.n > 0 && pthread_create(&q.thread, NULL, queue_run, &q) != 0)
			abort();
	for (struct rank_queue &q : queues) {
		if (q.n > 0)
			pthread_join(q.thread, NULL);
		q.n = 0;
	}
}

/* ---- Staged kernels whose ranks do not keep step ----------------------------------------------
 */

static const int staged_algos[] = {
	CUDA_ALLREDUCE_STAGED, CUDA_REDUCESCATTER_STAGED, CUDA_ALLGATHER_STAGED};

static struct test_case staged_case(int algo, int n, size_t count)
{
	struct test_case c;

	memset(&c, 0, sizeof(c));
	c.algo = algo;
	c.type = R_F32;
	c.n = n;
	c.ctas = 2;
	c.fixed = n % 2;
	c.count = count;
	c.part = 64;
	return c;
}

/* One rank after the other is slow between any two steps: who does not wait for it reads what is
 * not there, or overwrites what it has not read. */
static long lag_run(int n)
{
	long wrong = 0;

	world_init(n, 512);
	for (int algo : staged_algos)
		for (int slow = 0; slow < n; slow++) {
			struct test_case c = staged_case(algo, n,
				algo == CUDA_ALLREDUCE_STAGED   ? 16 * n * 13 + 5
				: algo == CUDA_ALLGATHER_STAGED ? 64 * 13 + 5
								: 16 * 13 + 5);

			queues[slow].lag = 400;
			wrong += case_run(&c);
			queues[slow].lag = 0;
		}
	return wrong;
}

/* A kernel right behind another, whose parts are larger: it puts its first chunk where the other
 * has all of its slots, and so waits until its peers are done with that. */
static long behind_run(int before, int behind, int n, int slow)
{
	const int sums = before == CUDA_ALLREDUCE_STAGED;
	const size_t count = 16 * 4 * (sums ? n : 1); /* floats */
	struct test_case first = staged_case(before, n, sums ? count : 4 * count);
	struct test_case second =
		staged_case(behind, n, behind == CUDA_ALLREDUCE_STAGED ? 128 * n : 512);
	const uint64_t half = world_region.bytes / 2;
	char text[80];

	world_init(n, 512);
	second.ctas = 1;
	second.part = 512;
	for (int r = 0; r < n; r++) {
		float *in = (float *)case_args(&first, r, NULL).in;

		for (size_t i = 0; i < count; i++)
			in[i] = (float)(i + 1);
		memset((char *)in + half, 0xff, 512 * n);
	}
	for (int r = 0; r < n; r++) {
		struct cuda_args a = case_args(&first, r, NULL), b = case_args(&second, r, NULL);
		char name[96];

		b.in += half;
		b.out += half;
		kernel_name(name, sizeof(name), &first);
		machine_launch(r, name, &a, first.ctas, 32);
		kernel_name(name, sizeof(name), &second);
		machine_launch(r, name, &b, second.ctas, 32);
	}
	queues[slow].lag = 400;
	machine_run();
	queues[slow].lag = 0;
	world_hash++;
	for (int r = 0; r < n; r++) {
		const float *out = (const float *)case_args(&first, r, NULL).out;

		for (size_t i = 0; i < count * (sums ? 1 : n); i++)
			if (out[i] != (float)(i % count + 1) * (float)(sums ? n : 1)) {
				snprintf(text, sizeof(text), "rank %d element %zu is %g", r, i,
					(double)out[i]);
				case_print(&first, text);
				return 1;
			}
	}
	return 0;
}

/* The peer stops after some steps, being told of less to do: the wait ends by its deadline, or by
 * the abort word. */
static void *abort_later(void *arg)
{
	const struct dev_head *peer = (const struct dev_head *)(machine_base() + machine_stride());

	(void)arg;
	/* Not before the peer's kernel is over. */
	while (__atomic_load_n(&peer->arrivals, __ATOMIC_RELAXED) >> DEV_EPOCH_SHIFT == 0)
		usleep(1000);
	usleep(10000);
	__atomic_store_n(&abort_word, 1, __ATOMIC_RELAXED);
	return NULL;
}
static long ends_run(int algo, uint32_t want)
{
	struct test_case c = staged_case(algo, 2, 4096);
	pthread_t thread;
	char name[96], text[120];
	long wrong = 0;

	world_init(2, 512);
	kernel_name(name, sizeof(name), &c);
	for (int r = 0; r < 2; r++) {
		struct cuda_args a = case_args(&c, r, NULL);

		a.watch.timeout_ns = want == DEV_TIMED_OUT ? 500000000 : 0;
		if (r == 1) {
			a.count = 1024;
			a.watch.timeout_ns = 60000000000;
		}
		machine_launch(r, name, &a, c.ctas, 32);
	}
	if (want == DEV_ABORTED)
		pthread_create(&thread, NULL, abort_later, NULL);
	machine_run();
	if (want == DEV_ABORTED)
		pthread_join(thread, NULL);
	for (int r = 0; r < 2; r++) {
		const struct dev_head *head =
			(const struct dev_head *)(machine_base() + r * machine_stride());
		const volatile struct dev_record *rec = machine_record_host(r);
		int left = r == 0;

		if (head->dead == (left ? want : (uint32_t)DEV_ALIVE) &&
			(want == DEV_ABORTED || !left ||
				(rec->state && rec->code == want && rec->peer == 1 &&
					rec->peer_hash == world_hash)))
			continue;
		snprintf(text, sizeof(text), "rank %d: dead %u, record %u code %u peer %u hash %u",
			r, head->dead, rec->state, rec->code, rec->peer, rec->peer_hash);
		case_print(&c, text);
		wrong++;
	}
	world_hash++;
	return wrong;
}

int main(int argc, char **argv)
{
	const uint64_t slots = 16384;
	int ranks[] = {2, 3, 1, 4, 5, 8, 10}, sizes[] = {1, 2, 3};
	size_t counts[] = {1, 2, 7, 33, 100, 517};
#ifdef EMULATE_FEW
	int few = 0;
#else
	int few = argc > 1 ? atoi(argv[1]) : 7;
#endif
	long done = 0, wrong = 0;

	memory = (char *)mmap(NULL, (size_t)STRIDE * WORLD_MAX, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	world_region = {2 << 20, 3 << 20, 1 << 19, 3 << 19};
	for (int i = 0; i < few && wrong == 0; i++) {
		wrong += cases_run(&ranks[i], 1, counts, 6, sizes, 3, slots, &done);
		wrong += routes_run(&ranks[i], 1, counts, 6, sizes, 3, slots, 6, &done);
		printf("%d ranks: %ld cases, %ld wrong\n", ranks[i], done, wrong);
		fflush(stdout);
	}
	wrong += wrap_run(2, 512) + wrap_run(3, 512);
	printf("%ld wrong after the wrap\n", wrong);
	wrong += lag_run(2) + lag_run(3) + lag_run(10);
	printf("%ld wrong after slow ranks\n", wrong);
	for (int slow = 0; slow < 3; slow++)
		for (int behind : staged_algos)
			wrong += behind_run(CUDA_ALLREDUCE_STAGED, behind, 3, slow) +
				 behind_run(CUDA_ALLGATHER_STAGED, behind, 3, slow);
	printf("%ld wrong after one kernel behind another\n", wrong);
	for (int algo : staged_algos)
		wrong += ends_run(algo, DEV_TIMED_OUT) + ends_run(algo, DEV_ABORTED);
	printf("%ld wrong after waits that ended\n", wrong);
	return wrong != 0;
}
