/*
 * The board: memory that all processes of a communicator on a node map, made when it is. It
 * outlives the bootstrap: what has to be agreed on after a failure is agreed on here.
 *
 * It holds the abort word that every waiting loop looks at, and why; for each rank how many
 * registrations it has posted, so that a time-out can name the ranks that did not come; whether the
 * rank has left, and whether its process lives; and two pairs of notes, by which ranks tell each
 * other small things (life.c).
 *
 * A process lives while its worker thread holds `alive`, a robust mutex: the kernel releases it
 * when the process dies, however it dies. A process id would have to be looked up in a namespace
 * that may be another, and may have been given to somebody else since.
 */
#ifndef BOARD_H
#define BOARD_H

#include <pthread.h>
#include "error.h"

#define BOARD_NOTE 168

/* A rank's note: seq is written last, and is what readers sleep on. */
struct board_note {
	uint32_t seq; /* 0: none, or being written */
	uint32_t kind;
	uint64_t key;
	unsigned char data[BOARD_NOTE];
};

enum { NOTE_TEAM = 0, NOTE_PART = 2 }; /* first of a pair */

struct board_rank {
	_Alignas(64) uint32_t posted; /* sets of registrations */
	uint32_t left;                /* the rank has destroyed or aborted the communicator */
	int32_t proc_rank;            /* its process's lowest rank: that one's `alive` counts */
	uint32_t dead;                /* somebody has seen that this process has died */
	pthread_mutex_t alive;
	_Alignas(64) struct board_note note[4]; /* team's, part's: by the parity of seq */
};

struct board {
	uint32_t abort;   /* nonzero: dead; written last */
	uint32_t claim;   /* first to set it writes `why` */
	uint32_t revoked; /* by symcclCommRevoke: ranks may still split and shrink */
	struct failure why;
	struct board_rank rank[];
};

/* Put the reason on the board; the first on the node stands. */
void board_fail(struct board *b, const struct failure *why);
/* The board's reason, if any; b may be NULL. */
int board_read(const struct board *b, struct failure *why);

/* Worker thread: these ranks' process lives from now on; until the same thread says it does not. */
symcclResult_t board_enter(struct board *b, const int *ranks, int n);
void board_leave(struct board *b, int lowest);

enum board_life { BOARD_ALIVE, BOARD_LEFT, BOARD_DEAD };
/* Any thread. BOARD_LEFT: the rank has left the communicator, its process may live on. */
enum board_life board_look(struct board *b, int rank);

/* Write this rank's note number seq (counted from 1) of the pair `which`. The note before may be
 * read meanwhile, the one before that not. */
void board_post(struct board *b, int rank, int which, uint32_t kind, uint64_t key, uint32_t seq,
	const void *data, size_t n);
/* Copy a rank's note number seq of that key: 1; 0: it has not come; -1: it is gone. */
int board_heard(struct board *b, int rank, int which, uint64_t key, uint32_t seq, uint32_t *kind,
	void *data, size_t n);
/* Sleep until the rank may have written note number seq, at most ms. */
void board_sleep(const struct board *b, int rank, int which, uint32_t seq, int ms);

#endif
