/* Threads that allocate, look each other's memory up, and free, all at once. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "mem/mem.h"
#include "util.h"

#define THREADS 4
#define ROUNDS 1500

static char *shown[THREADS]; /* atomic: a live allocation of each thread, or stale */
static int failed;           /* atomic */

#define CHECK(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #cond, error_text()); \
			__atomic_store_n(&failed, 1, __ATOMIC_RELAXED); \
			return NULL; \
		} \
	} while (0)

static void *worker(void *arg)
{
	int self = *(int *)arg;
	size_t page = mem_host.granularity();

	for (int i = 0; i < ROUNDS && !__atomic_load_n(&failed, __ATOMIC_RELAXED); i++) {
		char *other = __atomic_load_n(
			     &shown[(self + 1 + i % 3) % THREADS], __ATOMIC_RELAXED),
		     *p;
		struct mem_span s;
		void *va;

		CHECK(symcclMemAllocOn((void **)&p, page, symcclDeviceHost) == symcclSuccess);
		__atomic_store_n(&shown[self], p, __ATOMIC_RELAXED);
		/* Stale addresses are refused, or are somebody's new memory. */
		if (mem_host.owns(other) && mem_host.retain(other, page, &s) == symcclSuccess) {
			CHECK(s.n == 1 && s.size == page);
			CHECK(mem_host.reserve(page, 0, &va) == symcclSuccess);
			CHECK(mem_host.map(va, s.seg[0]) == symcclSuccess);
			mem_host.release(s.seg[0]);
			CHECK(mem_host.set_access(va, page, 1, NULL) == symcclSuccess);
			CHECK(mem_host.unmap(va, s.seg[0]) == symcclSuccess);
			CHECK(mem_host.unreserve(va, page) == symcclSuccess);
		}
		CHECK(mem_host.retain(p, page, &s) == symcclSuccess);
		CHECK(s.seg[0]->uid.proc == mem_proc_uid());
		mem_host.release(s.seg[0]);
		CHECK(symcclMemFree(p) == symcclSuccess);
	}
	return NULL;
}

int main(void)
{
	pthread_t t[THREADS];
	int id[THREADS];

	for (int i = 0; i < THREADS; i++) {
		id[i] = i;
		if (pthread_create(&t[i], NULL, worker, &id[i]) != 0)
			return 1;
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	return failed;
}
