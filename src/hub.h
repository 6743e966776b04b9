/*
 * A hub is what the ranks of one communicator in one process share: the bootstrap, the address
 * space and windows, and the worker thread that talks to the other processes. It is found by the
 * unique id, lives from the first local rank's join to the last one's leave.
 */
#ifndef HUB_H
#define HUB_H

#include <pthread.h>
#include "board.h"
#include "comm.h"

enum hub_state { HUB_JOINING, HUB_READY, HUB_FAILED };

struct hub_gpu;

struct hub {
	struct hub *next; /* all hubs of the process */
	symcclUniqueId id;
	int nranks;
	const struct mem_ops *mem;
	pthread_mutex_t lock;
	pthread_cond_t cond; /* state changes */
	int state;           /* enum hub_state, written atomically under the lock */
	struct failure why;  /* when failed */
	int nlocal, nleft, local_room;
	struct symcclComm **local; /* ascending by rank once ready */
	int *local_rank, *local_device;
	int sealed; /* all ranks have come */
	int stood;  /* was ready once: what fails later is no failure to join */
	int closing;
	int wake;   /* eventfd: something for the worker */
	int cancel; /* eventfd: break off whatever the worker waits for */
	pthread_t worker;
	struct boot *boot;
	struct board *board; /* written under the lock */
	int entered;         /* this process is on the board as living */
	struct mem_handle *board_mem;
	size_t board_size;
	struct coll_tuning tuning;
	struct coll_wait wait;
	int oversubscribed;
	double crowd;        /* ranks that share a CPU, at least 1 */
	struct hub_gpu *gpu; /* NULL on the host backend (comm_gpu.c) */
	uint32_t *gpu_abort; /* the abort word that this process's kernels see, or NULL */
	int readable;
	uint64_t probe; /* read by the other processes to see whether they can */
	int32_t *pid;   /* for coll_team */
	int nctas;
	size_t stride;
	struct ctrl_layout layout;
	struct sym sym;
	uint32_t *freed; /* ordinals that local ranks have deregistered since the last batch */
	int nfreed, freed_room;
};

/* Add comm to the hub of this id, making it when it is the first; returns at once. */
symcclResult_t hub_join(const symcclUniqueId *id, symcclComm_t comm, const struct mem_ops *mem);
/* Wait until all ranks of the communicator have come; on failure comm is no member any more. watch
 * (may be NULL) is called now and then meanwhile; what it returns breaks the joining off. */
symcclResult_t hub_wait_ready(symcclComm_t comm, symcclResult_t (*watch)(void *arg), void *arg);
/* Leave; the last local rank stops the worker and frees the hub. Does not wait for peers. */
void hub_leave(symcclComm_t comm);
/* The communicator is dead: tell every local rank and, through the board and the bootstrap, every
 * other. The first reason on the node stands. Any thread. */
void hub_fail(struct hub *h, const struct failure *why);
/* The same with what this thread has just said with fail(). */
void hub_fail_here(struct hub *h, symcclResult_t code, int rank);
/* The failure that stands, with its sentence in the calling thread; success while alive. Any
 * thread; one load when all is well. */
symcclResult_t hub_status(struct hub *h);
/* Is all well? */
static inline int hub_alive(const struct hub *h)
{
	return __atomic_load_n(&h->state, __ATOMIC_ACQUIRE) != HUB_FAILED &&
	       (h->board == NULL || !__atomic_load_n(&h->board->abort, __ATOMIC_ACQUIRE));
}
/* Something for the worker to look at. */
void hub_wake(struct hub *h);

/* A local rank has deregistered the window; goes out with the next batch. */
void hub_free_window(struct hub *h, uint32_t ordinal);

/* hub_init.c: agree on everything once the bootstrap stands (worker thread). */
symcclResult_t hub_agree(struct hub *h, uint64_t deadline);

/* Between hub.c and hub_worker.c; lock held, except for the worker itself. */
void *hub_worker(void *hub);
void hub_fail_locked(struct hub *h, const struct failure *why);
/* A set has its result: wake its rank. */
void hub_finish_set(struct symcclComm *c, struct reg_set *s);
/* Every queued set of every local rank ends with the hub's reason. */
void hub_fail_queues(struct hub *h);

#endif
