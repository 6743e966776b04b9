/* The GPU's control block, packets and barriers, one thread at a time. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "coll/cuda/coll_abi.h"
#include "device/barrier.h"
#include "device/packet.h"

TestSuite(device_packet, .timeout = 20);

/* n ranks' control blocks, all in this process. */
struct world {
	char *memory;
	struct dev_team team[8];
	struct dev_watch watch;
	struct dev_record record;
	uint32_t abort;
};

static void world_open(struct world *w, uint32_t n, uint64_t slots)
{
	struct dev_layout l = dev_layout(n, slots);
	uint64_t stride = dev_round_up(dev_ctrl_bytes(&l), 4096);

	memset(w, 0, sizeof(*w));
	w->memory = aligned_alloc(4096, stride * n);
	memset(w->memory, 0, stride * n);
	for (uint32_t r = 0; r < n; r++)
		w->team[r] = (struct dev_team){(uint64_t)(uintptr_t)w->memory, stride, l, r, n};
	w->watch.abort = (uint64_t)(uintptr_t)&w->abort;
	w->watch.record = (uint64_t)(uintptr_t)&w->record;
	w->watch.timeout_ns = 20000000;
	w->watch.hash = 77;
	w->watch.look_every = 16;
}

static void seed(struct world *w, uint32_t n, uint64_t epoch)
{
	for (uint32_t r = 0; r < n; r++)
		team_head(&w->team[r])->arrivals = epoch << DEV_EPOCH_SHIFT;
}

Test(device_packet, layout_keeps_regions_apart)
{
	for (uint32_t n = 1; n <= DEV_RANKS_MAX; n++) {
		struct dev_layout l = dev_layout(n, 1000);

		cr_assert_geq(l.scalar_off, 8 * n);
		cr_assert_geq(l.barrier_off, l.scalar_off + 16 * n);
		cr_assert_geq(l.barrier_row, 8 * n);
		cr_assert_geq(
			l.packet_off, l.barrier_off + DEV_PHASES * DEV_CTAS_MAX * l.barrier_row);
		cr_assert_geq(l.half_bytes, l.packet_off + 16 * 1000);
		cr_assert_eq(l.packet_off % 128 + l.scalar_off % 128 + l.barrier_off % 128, 0);
		cr_assert_eq(l.half_bytes % 128, 0, "%u ranks: half of %lu bytes", n, l.half_bytes);
	}
}

Test(device_packet, slots_needed_fit_what_kernels_address)
{
	/* two steps: n parts for what is to be reduced, n for what has been */
	cr_assert_eq(cuda_slots_needed(CUDA_ALLREDUCE_ONESHOT, 3, 17), 9);
	cr_assert_eq(cuda_slots_needed(CUDA_ALLREDUCE_TWOSTEP, 3, 17), 6);
	cr_assert_eq(cuda_slots_needed(CUDA_ALLREDUCE_TWOSTEP, 4, 8), 8);
	cr_assert_eq(cuda_slots_needed(CUDA_ALLGATHER_PACKET, 2, 8), 2);
	cr_assert_eq(cuda_slots_needed(CUDA_BARRIER, 2, 8), 0);
}

Test(device_packet, half_a_packet_is_none)
{
	struct pair64 slot = {0, 0};
	uint64_t got = 0, data = 0x0123456789abcdef;
	uint32_t flag = epoch_flag(5);
	struct pair64 whole;

	packet_store(&slot, data, flag);
	cr_assert(packet_load(&slot, flag, &got));
	cr_assert_eq(got, data);
	cr_assert_not(packet_load(&slot, epoch_flag(7), &got));
	whole = slot;
	slot.hi = 0;
	cr_assert_not(packet_load(&slot, flag, &got));
	slot = whole;
	slot.lo = 0;
	cr_assert_not(packet_load(&slot, flag, &got));
}

Test(device_packet, flags_are_never_zero_and_differ_within_a_period)
{
	const uint64_t at[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x17fffffff};

	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		cr_assert_neq(epoch_flag(at[i]), 0);
		cr_assert_neq(epoch_flag(at[i]), epoch_flag(at[i] + 1));
		cr_assert_neq(epoch_flag(at[i]), epoch_flag(at[i] + 2));
	}
}

Test(device_packet, arrivals_make_one_epoch_for_any_grid)
{
	struct world w;

	world_open(&w, 2, 8);
	for (uint32_t ctas = 1; ctas <= DEV_CTAS_MAX; ctas += 9) {
		uint64_t before = epoch_begin(&w.team[0]).number;

		for (uint32_t i = 0; i < ctas; i++) {
			/* one that starts late still reads the same epoch; CTA 0 first, last,
			 * between */
			cr_assert_eq(epoch_begin(&w.team[0]).number, before);
			epoch_end(&w.team[0], (i + ctas / 2) % ctas, ctas);
		}
		cr_assert_eq(epoch_begin(&w.team[0]).number, before + 1);
	}
	free(w.memory);
}

Test(device_packet, the_next_half_is_zeroed_where_a_period_ends)
{
	const uint64_t period = DEV_FLAG_BIT;
	struct world w;

	world_open(&w, 2, 64);
	for (uint64_t e = period - 4; e < period + 4; e++) {
		uint64_t half_bytes = w.team[0].layout.half_bytes;
		char *now = team_half(&w.team[0], 0, e), *next = team_half(&w.team[0], 0, e + 1);
		int ends = e + 1 == period || e + 1 == period + 1;
		struct dev_epoch epoch;

		seed(&w, 2, e);
		memset(now, 0x55, half_bytes);
		memset(next, 0x55, half_bytes);
		epoch = epoch_begin(&w.team[0]);
		cr_assert_eq(epoch.number, e);
		epoch_prepare(&w.team[0], &epoch, 0, 1);
		epoch_announce(&w.team[0], &epoch, 77, 0, 1);
		for (uint64_t i = 0; i < half_bytes; i++) {
			cr_assert_eq(now[i], 0x55);
			cr_assert_eq(next[i], ends ? 0 : 0x55, "epoch %lx byte %lu", e, i);
		}
		cr_assert_eq(*team_plan_word(&w.team[1], 1, e, 0), (uint64_t)epoch.flag << 32 | 77);
	}
	/* nothing to zero at the very first epochs */
	seed(&w, 2, 0);
	memset(w.memory + DEV_HEAD_BYTES, 0x55, 64);
	{
		struct dev_epoch epoch = epoch_begin(&w.team[0]);

		cr_assert_not(epoch_period_ends(&epoch));
	}
	free(w.memory);
}

/* What a wait for rank 1 that never comes ends with. */
static void await_nobody(struct world *w, uint32_t want)
{
	struct dev_epoch e = epoch_begin(&w->team[0]);
	uint64_t data;

	cr_assert(packet_await(
		&w->team[0], &e, &w->watch, packet_slots(&w->team[0], 0, &e), 1, 3, &data));
	cr_assert_eq(team_head(&w->team[0])->dead, want);
	cr_assert_eq(epoch_begin(&w->team[0]).dead, want);
}

Test(device_packet, a_deadline_ends_a_wait_and_says_for_whom)
{
	struct world w;

	world_open(&w, 2, 8);
	seed(&w, 2, 41);
	await_nobody(&w, DEV_TIMED_OUT);
	cr_assert_eq(w.record.state, 1);
	cr_assert_eq(w.record.code, DEV_TIMED_OUT);
	cr_assert_eq(w.record.rank, 0);
	cr_assert_eq(w.record.peer, 1);
	cr_assert_eq(w.record.epoch, 41);
	cr_assert_eq(w.record.hash, 77);
	cr_assert_eq(w.record.peer_hash, 0);
	cr_assert_eq(w.record.cta, 3);
	free(w.memory);
}

Test(device_packet, abort_ends_a_wait_without_a_record)
{
	struct world w;

	world_open(&w, 2, 8);
	w.watch.timeout_ns = 0;
	w.abort = 1;
	await_nobody(&w, DEV_ABORTED);
	cr_assert_eq(w.record.state, 0);
	free(w.memory);
}

Test(device_packet, another_call_at_the_peer_ends_a_wait)
{
	struct dev_epoch e;
	struct world w;

	world_open(&w, 2, 8);
	w.watch.timeout_ns = 0;
	e = epoch_begin(&w.team[1]);
	epoch_announce(&w.team[1], &e, 78, 0, 1);
	await_nobody(&w, DEV_DIFFERS);
	cr_assert_eq(w.record.code, DEV_DIFFERS);
	cr_assert_eq(w.record.peer_hash, 78);
	free(w.memory);
}

Test(device_packet, the_first_of_a_rank_writes_the_record)
{
	struct dev_epoch e;
	struct world w;

	world_open(&w, 2, 8);
	e = epoch_begin(&w.team[0]);
	team_die(&w.team[0], e.number, &w.watch, DEV_TIMED_OUT, 1, 0, 5);
	team_die(&w.team[0], e.number, &w.watch, DEV_DIFFERS, 1, 9, 6);
	cr_assert_eq(w.record.code, DEV_TIMED_OUT);
	cr_assert_eq(w.record.cta, 5);
	free(w.memory);
}

Test(device_packet, a_barrier_refuses_another_call)
{
	struct dev_epoch e;
	struct world w;

	world_open(&w, 2, 8);
	e = epoch_begin(&w.team[0]);
	store_release64(barrier_slot(&w.team[1], 0, &e, 0, 2, 1), epoch_word(&e, 78));
	cr_assert(barrier_meet(&w.team[0], &e, &w.watch, 0, 2, 0, 1, 0, 0));
	cr_assert_eq(w.record.code, DEV_DIFFERS);
	cr_assert_eq(w.record.peer, 1);
	cr_assert_eq(w.record.peer_hash, 78);
	/* and was heard by the peer all the same */
	cr_assert_eq(*barrier_slot(&w.team[0], 1, &e, 0, 2, 0), epoch_word(&e, 77));
	free(w.memory);
}

Test(device_packet, who_gave_up_sends_nothing)
{
	struct dev_epoch e;
	struct world w;

	world_open(&w, 2, 8);
	e = epoch_begin(&w.team[0]);
	cr_assert(barrier_meet(&w.team[0], &e, &w.watch, 0, 0, 0, 1, 0, 1));
	cr_assert_eq(*barrier_slot(&w.team[0], 1, &e, 0, 0, 0), 0);
	cr_assert_eq(w.record.state, 0);
	free(w.memory);
}
