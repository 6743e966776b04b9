/*
 * The GPU kernels, the very source, on threads of a CPU: ranks x CTAs x a few threads each. Finds
 * wrong indices, tails, trees and protocol steps where there is no GPU; with -fsanitize=thread,
 * accesses that nothing orders.
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

static struct job *grids[WORLD_MAX];
static int ngrids;

void machine_launch(
	int rank, const char *kernel, const struct cuda_args *args, int ctas, int threads)
{
	int i = 0;

	(void)rank;
	(void)threads;
	while (i < KERNEL_ENTRIES && strcmp(kernel_entries[i].name, kernel) != 0)
		i++;
	if (i == KERNEL_ENTRIES) {
		printf("no kernel %s\n", kernel);
		exit(1);
	}
	grids[ngrids++] = grid_start(&kernel_entries[i], args, (uint32_t)ctas);
}
void machine_run()
{
	while (ngrids > 0)
		grid_join(grids[--ngrids]);
}

int main(int argc, char **argv)
{
	const uint64_t slots = 16384;
	int ranks[] = {1, 2, 3, 4, 5, 8}, sizes[] = {1, 2, 3};
	size_t counts[] = {1, 2, 7, 33, 100, 517};
	int few = argc > 1 ? atoi(argv[1]) : 6;
	long done = 0, wrong = 0;

	memory = (char *)mmap(NULL, (size_t)STRIDE * WORLD_MAX, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	world_region = {2 << 20, 3 << 20, 1 << 19};
	for (int i = 0; i < few && wrong == 0; i++) {
		wrong += cases_run(&ranks[i], 1, counts, 6, sizes, 3, slots, &done);
		wrong += routes_run(&ranks[i], 1, counts, 6, sizes, 3, slots, 6, &done);
		printf("%d ranks: %ld cases, %ld wrong\n", ranks[i], done, wrong);
		fflush(stdout);
	}
	wrong += wrap_run(2, 512) + wrap_run(3, 512);
	printf("%ld wrong after the wrap\n", wrong);
	return wrong != 0;
}
