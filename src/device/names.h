/*
 * The names that the protocol headers use are short; what they are for the compiler, and for the
 * programs that include symccl_device.h, begins with symccl. Every header of this folder includes
 * this before its guard, so the short names hold after any of them; names_end.h takes them back
 * at the end of symccl_device.h.
 */

/* port.h */
#define DEV SYMCCL_DEV
#define DEV_COLD SYMCCL_DEV_COLD
#define DEV_LOOP SYMCCL_DEV_LOOP
#define load_relaxed64 symccl_load_relaxed64
#define load_acquire64 symccl_load_acquire64
#define store_relaxed64 symccl_store_relaxed64
#define store_release64 symccl_store_release64
#define store_opening64 symccl_store_opening64
#define load_relaxed32 symccl_load_relaxed32
#define load_acquire32 symccl_load_acquire32
#ifndef cpu_relax /* tests have their own */
#define cpu_relax symccl_cpu_relax
#endif
#define DEV_UNROLL SYMCCL_DEV_UNROLL

/* lane.h */
#define pair64 symccl_pair64
#define store_relaxed_pair symccl_store_relaxed_pair
#define load_relaxed_pair symccl_load_relaxed_pair
#define store_relaxed32 symccl_store_relaxed32
#define store_release32 symccl_store_release32
#define add_local64 symccl_add_local64
#define add_release64 symccl_add_release64
#define exchange_local32 symccl_exchange_local32
#define fence_system symccl_fence_system
#define clock_ns symccl_clock_ns
#define wait_rest symccl_wait_rest
#define cta_sync symccl_cta_sync
#define cta_sync_or symccl_cta_sync_or
#define grid_wait symccl_grid_wait
#define grid_trigger symccl_grid_trigger
#define emulate_sync symccl_emulate_sync
#define emulate_sync_or symccl_emulate_sync_or
#define emulate_thread symccl_emulate_thread

/* ctrl.h */
#define DEV_CTAS_MAX SYMCCL_DEV_CTAS_MAX
#define DEV_RANKS_MAX SYMCCL_DEV_RANKS_MAX
#define DEV_PHASES SYMCCL_DEV_PHASES
#define DEV_EPOCH_SHIFT SYMCCL_DEV_EPOCH_SHIFT
#define DEV_FLAG_BIT SYMCCL_DEV_FLAG_BIT
#define DEV_HEAD_BYTES SYMCCL_DEV_HEAD_BYTES
#define DEV_ASSERT SYMCCL_DEV_ASSERT
#define DEV_ALIVE SYMCCL_DEV_ALIVE
#define DEV_ABORTED SYMCCL_DEV_ABORTED
#define DEV_TIMED_OUT SYMCCL_DEV_TIMED_OUT
#define DEV_DIFFERS SYMCCL_DEV_DIFFERS
#define dev_head symccl_dev_head
#define dev_dead symccl_dev_dead
#define dev_record symccl_dev_record
#define dev_layout symccl_dev_layout
#define dev_layout_rows symccl_dev_layout_rows
#define dev_team symccl_dev_team
#define dev_watch symccl_dev_watch
#define dev_round_up symccl_dev_round_up
#define dev_ctrl_bytes symccl_dev_ctrl_bytes
#define dev_epoch symccl_dev_epoch
#define team_ctrl symccl_team_ctrl
#define team_half symccl_team_half
#define team_head symccl_team_head
#define team_plan_word symccl_team_plan_word
#define epoch_flag symccl_epoch_flag
#define epoch_word symccl_epoch_word
#define epoch_of symccl_epoch_of
#define epoch_begin symccl_epoch_begin
#define epoch_end symccl_epoch_end
#define epoch_period_ends symccl_epoch_period_ends
#define epoch_zero_half symccl_epoch_zero_half
#define epoch_prepare symccl_epoch_prepare
#define epoch_announce symccl_epoch_announce
#define dev_wait symccl_dev_wait
#define team_die symccl_team_die
#define wait_look symccl_wait_look
#define wait_turn symccl_wait_turn

/* barrier.h */
#define barrier_slot symccl_barrier_slot
#define barrier_arrive symccl_barrier_arrive
#define barrier_await symccl_barrier_await
#define barrier_meet symccl_barrier_meet

/* packet.h */
#define PACKET_BYTES SYMCCL_PACKET_BYTES
#define PACKET_DATA SYMCCL_PACKET_DATA
#define packet_slots symccl_packet_slots
#define packet_scalar symccl_packet_scalar
#define packet_store symccl_packet_store
#define packet_load symccl_packet_load
#define packet_await symccl_packet_await

/* types.h */
#define F16_NAN SYMCCL_F16_NAN
#define BF16_NAN SYMCCL_BF16_NAN
#define E4M3_NAN SYMCCL_E4M3_NAN
#define E5M2_NAN SYMCCL_E5M2_NAN
#define F32_NAN SYMCCL_F32_NAN
#define F64_NAN SYMCCL_F64_NAN
#define F32_INF SYMCCL_F32_INF
#define F32_EXPONENT SYMCCL_F32_EXPONENT
#define f32_bits symccl_f32_bits
#define f32_of_bits symccl_f32_of_bits
#define f64_bits symccl_f64_bits
#define f64_of_bits symccl_f64_of_bits
#define mask_below symccl_mask_below
#define mask_pick symccl_mask_pick
#define f32_widen symccl_f32_widen
#define f16_widen symccl_f16_widen
#define bf16_widen symccl_bf16_widen
#define e4m3_widen symccl_e4m3_widen
#define e5m2_widen symccl_e5m2_widen
#define f32_narrow symccl_f32_narrow
#define f16_narrow symccl_f16_narrow
#define bf16_narrow symccl_bf16_narrow
#define e4m3_narrow symccl_e4m3_narrow
#define e5m2_narrow symccl_e5m2_narrow

/* coop.h */
#define coop_of symccl_coop_of
#define coop_rank symccl_coop_rank
#define coop_sync symccl_coop_sync
#define coop_sync_or symccl_coop_sync_or
#define coop_copy symccl_coop_copy

/* session.h */
#define dead_result symccl_dead_result
#define block_team symccl_block_team
#define session_prepare symccl_session_prepare
#define session_step symccl_session_step

/* transfer.h */
#define signal_word symccl_signal_word
#define shadow_word symccl_shadow_word
#define counter_word symccl_counter_word
#define none_such symccl_none_such
#define word_await symccl_word_await
#define coop_await symccl_coop_await
#define out_of symccl_out_of

/* reduce.h */
#define REDUCE_EXACT SYMCCL_REDUCE_EXACT
#define REDUCE_TREE SYMCCL_REDUCE_TREE
#define REDUCE_ADD SYMCCL_REDUCE_ADD
#define REDUCE_GROUP SYMCCL_REDUCE_GROUP
#define REDUCE_LEVELS SYMCCL_REDUCE_LEVELS
#define REDUCE_OF SYMCCL_REDUCE_OF
#define REDUCE_GET_INT SYMCCL_REDUCE_GET_INT
#define REDUCE_GET_F32 SYMCCL_REDUCE_GET_F32
#define REDUCE_JOIN_INT SYMCCL_REDUCE_JOIN_INT
#define REDUCE_JOIN_F64 SYMCCL_REDUCE_JOIN_F64
#define REDUCE_JOIN_F32 SYMCCL_REDUCE_JOIN_F32
#define reduce_size symccl_reduce_size
#define reduce_is_int symccl_reduce_is_int
#define reduce_trim symccl_reduce_trim
#define reduce_widen symccl_reduce_widen
#define reduce_narrow symccl_reduce_narrow
#define reduce_f32 symccl_reduce_f32
#define reduce_f64 symccl_reduce_f64
#define reduce_int symccl_reduce_int
#define reduce_value symccl_reduce_value
#define reduce_join symccl_reduce_join
#define reduce_group symccl_reduce_group
#define reduce_finish symccl_reduce_finish
#define reduce_load symccl_reduce_load
#define reduce_store symccl_reduce_store
#define reduce_at symccl_reduce_at
