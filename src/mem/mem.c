/* Which backends there are, names of processes and allocations, and the public allocator. */
#include "mem/mem.h"
#include <pthread.h>
#include <sys/random.h>
#include <unistd.h>
#include "params.h"
#include "util.h"

/* In the order in which auto asks them. */
static const struct mem_ops *const all[] = {&mem_cuda, &mem_host};

/* ---- Names ----------------------------------------------------------------------------------- */

static uint64_t proc_uid; /* atomic; 0: not chosen yet */
static uint64_t last_seq; /* atomic */

static void forked_child(void)
{
	__atomic_store_n(&proc_uid, 0, __ATOMIC_RELAXED);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forked_child);
}

uint64_t mem_proc_uid(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	uint64_t mine = __atomic_load_n(&proc_uid, __ATOMIC_RELAXED), none = 0;

	if (mine != 0)
		return mine;
	pthread_once(&once, watch_forks);
	if (getrandom(&mine, sizeof(mine), 0) != sizeof(mine) || mine == 0)
		mine = now_ns() << 22 | (uint64_t)getpid(); /* differs on this node, at least */
	if (!__atomic_compare_exchange_n(
		    &proc_uid, &none, mine, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		mine = none; /* another thread was first */
	return mine;
}

struct mem_uid mem_uid_next(void)
{
	return (struct mem_uid){mem_proc_uid(), __atomic_add_fetch(&last_seq, 1, __ATOMIC_RELAXED)};
}

/* ---- Backends ------------------------------------------------------------------------------- */

static const struct mem_ops *current(void)
{
	size_t i = 0;

	while (!all[i]->current() || all[i]->unusable() != NULL)
		i++; /* ends at the host */
	return all[i];
}

symcclResult_t mem_select(symcclDeviceType_t type, const struct mem_ops **ops)
{
	const char *asker = "the program";
	const char *why;

	if (type == symcclDeviceAuto) {
		type = (symcclDeviceType_t)params_get()->device; /* same order of names */
		asker = "SYMCCL_DEVICE";
	}
	if (type == symcclDeviceAuto) {
		*ops = current();
		return symcclSuccess;
	}
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		if (all[i]->type != type)
			continue;
		why = all[i]->unusable();
		if (why != NULL)
			return fail(symcclInvalidUsage,
				"%s asks for %s memory, which cannot be had here: %s", asker,
				all[i]->name, why);
		*ops = all[i];
		return symcclSuccess;
	}
	return fail(symcclInvalidArgument, "device %d is no symcclDeviceType_t", (int)type);
}

/* ---- symcclMemAlloc, symcclMemFree ---------------------------------------------------------- */

symcclResult_t symcclMemAllocOn(void **ptr, size_t size, symcclDeviceType_t device)
{
	const struct mem_ops *ops;

	if (ptr == NULL)
		return fail(symcclInvalidArgument, "ptr is NULL");
	if (size == 0)
		return fail(symcclInvalidArgument, "size is 0");
	TRY(mem_select(device, &ops));
	return ops->alloc(size, ptr);
}

symcclResult_t symcclMemAlloc(void **ptr, size_t size)
{
	return symcclMemAllocOn(ptr, size, symcclDeviceAuto);
}

unsigned mem_nfrees;

void mem_freed(void)
{
	__atomic_add_fetch(&mem_nfrees, 1, __ATOMIC_RELEASE);
}

symcclResult_t symcclMemFree(void *ptr)
{
	if (ptr == NULL)
		return symcclSuccess;
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (all[i]->owns(ptr))
			return all[i]->free_(ptr);
	return fail(symcclInvalidArgument, "%p was not returned by symcclMemAlloc", ptr);
}
