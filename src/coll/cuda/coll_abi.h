/*
 * What the host hands to a kernel. C only; both compilers assert the layout.
 */
#ifndef COLL_ABI_H
#define COLL_ABI_H

#include <stddef.h>
#include <stdint.h>
#include "device/ctrl.h"

#define CUDA_THREADS_MAX 512 /* of a CTA; any multiple of 32 up to it will do */

/* What a reducing kernel does besides its operator: struct cuda_args.mode. */
enum {
	CUDA_MODE_AVG = 1,    /* sum: divide by the number of ranks */
	CUDA_MODE_PREMUL = 2, /* sum: each rank's input times its own factor first */
	CUDA_MODE_SIGNED = 4, /* sum, min: the integers are signed */
	CUDA_MODE_MAX = 8,    /* min: take the maximum instead */
	/* Who takes part in what is one call for all ranks; neither: everybody sends to everybody.
	 */
	CUDA_MODE_FROM_ROOT = 16, /* broadcast, scatter: the root sends */
	CUDA_MODE_TO_ROOT = 32,   /* gather, reduce: the root hears; a reduce-scatter kernel then
				     takes all elements for the root's part */
	CUDA_MODE_WHOLE = 64,     /* a direct or staged reduce-scatter kernel: all elements are
				     everybody's part, which is an all-reduce */
	CUDA_MODE_EARLY = 128 /* dependents may start, and wait, at once: the rank has its GPU to
				 itself, so their CTAs keep no other rank's out */
};

/*
 * Buffers. Packet kernels touch only this rank's own: in, out are its user's addresses, the strides
 * are not read. Direct kernels reach rank q's at in + q * in_stride, out + q * out_stride (the
 * space's addresses, rank 0 first), except that all-gather reads its input, and reduce-scatter
 * writes its output, at `in` (`out`) itself. One alias rule: if those lie in a window that the same
 * kernel also reaches through the space, they must be given as addresses in the space too. Every
 * in_stride and out_stride is a multiple of 16.
 *
 * A broadcast's direct kernel finds in in_stride, a reduce's in out_stride, where the root's own
 * input or output lies: an offset from its control block, 0 when peers cannot reach it. On the
 * root; else 0.
 *
 * Staged kernels: this rank's own as packet kernels. in_stride is where the scratch lies, as an
 * offset from the control block, a multiple of 16; out_stride the most bytes of a part, a multiple
 * of 16; cuda_staged_bytes() says how much scratch that takes.
 *
 * Multimem kernels: as direct ones, and the same places by multicast in in_mc, out_mc.
 *
 * Move kernels: rank q's block is at in + q * in_stride, out + q * out_stride (any numbers; 0 where
 * there is one block). Push kernel: out is the space's address as above, in + q * count this rank's
 * block for q, or in itself for all when the root sends.
 *
 * count is the call's own: elements of the whole vector (all-reduce, reduce), of one rank's part
 * (all-gather and the kernels that move blocks, which are told bytes; reduce-scatter). Not 0.
 */
struct cuda_args {
	struct dev_team team;
	struct dev_watch watch;
	uint64_t in, in_stride;
	uint64_t out, out_stride;
	uint64_t count;
	uint64_t factor;    /* of a pre-multiplied sum, as an element in the low bytes */
	uint64_t factor_at; /* or its address, read when the kernel runs; 0: none */
	uint32_t mode;      /* CUDA_MODE_* */
	uint32_t root;
	uint64_t in_mc, out_mc; /* multimem kernels: the windows' multicast addresses */
};
DEV_ASSERT(sizeof(struct cuda_args) == 168);
DEV_ASSERT(offsetof(struct cuda_args, watch) == 56);
DEV_ASSERT(offsetof(struct cuda_args, in) == 88);
DEV_ASSERT(offsetof(struct cuda_args, mode) == 144);

/* ---- Messages between pairs of ranks ----------------------------------------------------------
 *
 * Each ordered pair has `channels` rings of RING_SLOTS packets, in the receiver's memory, and a
 * line for each in the memory of both, at ctrl + ring.lines: lines first, [peer][channel], then the
 * rings, [source][channel], then the signals. Zeroed at birth.
 *
 * A packet's flag is how often the ring has been filled, plus one; it has another flag each time
 * its slot is used, so nothing is ever cleared. Positions are counted on the GPU, so graphs can be
 * replayed. */
#define RING_SLOTS 512
#define RING_CHANNELS_MAX 256
#define RING_CHANNEL_BYTES 896 /* of a message: with less, fewer channels; 112 packets */
#define RING_DIRECT_BYTES \
	(32u << 10)        /* from here on the receiver says where it could be stored \
			    */
#define SIGNALS_PER_RANK 8 /* SYMCCL_SIGNALS */

struct ring_line {
	/* This rank's own: packets it has sent to the peer and taken from it; offers it has taken
	 * from the peer and made to it. */
	uint64_t sent, got;
	uint32_t taken, offered;
	uint64_t pad0;
	uint64_t credit; /* the peer's: packets it has taken */
	uint64_t pad1[3];
	uint64_t offer[4]; /* the peer's: two packets, where (or ~0: nowhere) and how many bytes */
	uint64_t pad2[4];
};
DEV_ASSERT(sizeof(struct ring_line) == 128);
DEV_ASSERT(offsetof(struct ring_line, offer) == 64);

/* A rank's signals: those that have come, written by the source alone, and how many of them earlier
 * waits took. */
struct signal_words {
	uint64_t come[SIGNALS_PER_RANK], taken[SIGNALS_PER_RANK];
};

struct ring_layout {
	uint64_t lines, rings, signals; /* bytes from the control block on */
	uint64_t end;
	uint32_t channels, pad;
};
static inline struct ring_layout ring_layout(uint64_t from, uint32_t nranks, uint64_t room)
{
	uint64_t most = room / (16u * RING_SLOTS) / nranks;
	struct ring_layout l;

	l.channels = most < 1 ? 1 : most > RING_CHANNELS_MAX ? RING_CHANNELS_MAX : (uint32_t)most;
	l.pad = 0;
	l.lines = from;
	l.rings = l.lines + (uint64_t)nranks * l.channels * sizeof(struct ring_line);
	l.signals = l.rings + (uint64_t)nranks * l.channels * 16 * RING_SLOTS;
	l.end = l.signals + nranks * sizeof(struct signal_words);
	return l;
}
#ifdef __CUDACC__
#define CUDA_BOTH static inline __host__ __device__
#else
#define CUDA_BOTH static inline
#endif
/* How many channels a message takes: both sides know without asking. */
CUDA_BOTH uint32_t ring_channels(uint64_t bytes, uint32_t channels)
{
	uint64_t n = (bytes + RING_CHANNEL_BYTES - 1) / RING_CHANNEL_BYTES;

	return n < 1 ? 1 : n < channels ? (uint32_t)n : channels;
}

/* Store bytes (0: none) from here to there, then count one signal: one CTA. Signals of a rank to a
 * peer follow each other by stream order. */
struct cuda_signal {
	struct dev_team team;
	struct dev_watch watch;
	uint64_t signals; /* ring_layout.signals */
	uint64_t from, to, bytes;
	uint32_t peer, index;
};
/* Wait until so many more than earlier waits took have come of each, all different: one CTA. */
#define CUDA_WAITS_MAX 200
struct cuda_waits {
	struct dev_team team;
	struct dev_watch watch;
	uint64_t signals;
	uint32_t n, pad;
	struct {
		uint32_t peer, index;
		uint64_t count;
	} w[CUDA_WAITS_MAX];
};
DEV_ASSERT(sizeof(struct cuda_waits) <= 4096);

struct cuda_message {
	uint64_t at, bytes; /* this rank's own memory */
	uint64_t offer; /* receiving: offset from its control block, the same to everybody; or ~0 */
	uint32_t peer;
	uint16_t recv; /* 0: a send */
	uint16_t pair; /* which (peer, direction) of the list: 0, 1, ... */
};
/*
 * Messages of one pair are in their order; all of the list in one order that both sides of each
 * message know: by distance from sender to receiver, then by number. A warp works them off in that
 * order. So the least one that is not done has both its sides at work, however the list is cut into
 * kernels and spread over warps: no deadlock. With as many warps as pairs, no pair waits for
 * another.
 */
#define CUDA_MESSAGES_MAX 96
struct cuda_messages {
	struct dev_team team;
	struct dev_watch watch; /* hash is not looked at */
	struct ring_layout ring;
	uint32_t n, npairs;
	uint32_t warps, places; /* of a pair; pairs side by side: places * warps are all */
	struct cuda_message m[CUDA_MESSAGES_MAX];
};
DEV_ASSERT(sizeof(struct cuda_message) == 32);
DEV_ASSERT(sizeof(struct cuda_messages) <= 4096); /* a kernel's arguments */

/* In dev_record.code, beyond enum dev_dead: a message has another size than the peer expects;
 * `epoch` is this side's size, hash and peer_hash are the low and high half of the peer's. */
#define CUDA_DEAD_SIZES 16

/* Kernels, by what they do: the row names in kernels.def. */
enum cuda_algo {
	CUDA_ALLREDUCE_ONESHOT, /* packets: everything to everybody */
	CUDA_ALLREDUCE_TWOSTEP, /* packets: reduce a part each, then send it round */
	CUDA_ALLREDUCE_DIRECT,  /* load a part from everybody, store it to everybody */
	CUDA_ALLREDUCE_STAGED,  /* by the peers' scratch */
	CUDA_REDUCESCATTER_PACKET,
	CUDA_REDUCESCATTER_DIRECT,
	CUDA_REDUCESCATTER_STAGED,
	CUDA_ALLGATHER_PACKET,
	CUDA_ALLGATHER_DIRECT,
	CUDA_ALLGATHER_STAGED,
	CUDA_BARRIER,
	CUDA_MOVE_PACKET, /* blocks from rank to rank */
	CUDA_PUSH_DIRECT, /* blocks into the receivers' windows */
	CUDA_MESSAGES,    /* struct cuda_messages */
	CUDA_SIGNAL,      /* struct cuda_signal */
	CUDA_WAITS,       /* struct cuda_waits */
	CUDA_ALLREDUCE_MULTIMEM,
	CUDA_REDUCESCATTER_MULTIMEM,
	CUDA_ALLGATHER_MULTIMEM,
	CUDA_NUM_ALGOS
};

/* Packets of one epoch's half that a call needs; the kernel may run when they are at most
 * layout.slots. bytes: count in bytes. Direct and staged kernels and the barrier: 0. */
static inline uint64_t cuda_slots_needed(enum cuda_algo algo, uint32_t nranks, uint64_t bytes)
{
	uint64_t packs = (bytes + 7) / 8;

	switch (algo) {
	case CUDA_ALLREDUCE_ONESHOT:
	case CUDA_REDUCESCATTER_PACKET:
	case CUDA_ALLGATHER_PACKET:
		return packs * nranks;
	case CUDA_MOVE_PACKET: /* at most: see struct route */
		return packs * nranks + nranks;
	case CUDA_ALLREDUCE_TWOSTEP:
		return 2 * ((packs + nranks - 1) / nranks) * nranks;
	default:
		return 0;
	}
}

/* Scratch of a rank that staged kernels of so many CTAs take: a slot for each of the others in two
 * stages of each area, of which all-reduce has two. */
static inline uint64_t cuda_staged_bytes(
	enum cuda_algo algo, uint32_t nranks, uint32_t ctas, uint64_t part)
{
	return (algo == CUDA_ALLREDUCE_STAGED ? 4 : 2) * (uint64_t)ctas *
	       (nranks > 1 ? nranks - 1 : 1) * part;
}

#endif
