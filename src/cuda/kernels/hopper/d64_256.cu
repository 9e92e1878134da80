/* Extend attention on sm_90a for head dimensions up to 256, by bulk copies and warpgroup products: produce and consume.
 *
 * Compiled once for each shape of plan/hopper.h and each of bf16 and f16:
 * -DEA_SHAPE=d128 -DEA_TYPE_BF16 -DEA_KERNEL_NAME=hopper_d128_bf16.
 *
 * Persistent: one block a multiprocessor lives as long as the launch. Its producer warpgroup schedules work tiles
 * (scheduler.h) and fills Q and the rings of K and V tiles (narrow.h); its consumer warpgroups own 64 query rows each.
 * K and V have barriers apart. The mainloop of a consumer, tile t of a work tile:
 *
 *   wait for its turn                                      (ping-pong: the warpgroups issue in a fixed round)
 *   wait for K(t);   issue S = Q K(t); meanwhile rescale O where a row's reference moved
 *   wait for V(t-1); issue O += P V(t-1)
 *   pass the turn on
 *   S done: release K(t); exp2 with the reference there is, sum, P(t) in 16 bits
 *   O done: release V(t-1)
 *
 * so a warpgroup's softmax runs beside its own P V and beside the others' products. Masked tiles, caps and the
 * like go through a longer body. The rings' depth is a run-time number and changes no arithmetic. docs/hopper.md
 * has the schedule, and what was measured on the way to it. */
#include "cuda/kernels/hopper/epilogue.h"
#include "cuda/kernels/hopper/narrow.h"
#include "cuda/kernels/hopper/products.h"
#include "cuda/kernels/hopper/softmax.h"

#define EA_SHAPE_CONSTANT(what) EA_PASTE(EA_HOPPER_, EA_SHAPE, what)

using shape = ea_narrow_traits<EA_SHAPE_CONSTANT(_DIM), EA_SHAPE_CONSTANT(_DIM_V), EA_SHAPE_CONSTANT(_WG),
                               EA_SHAPE_CONSTANT(_N), EA_SHAPE_CONSTANT(_CONSUMER_REGISTERS),
                               EA_SHAPE_CONSTANT(_PRODUCER_REGISTERS), (ea_hopper_calls)EA_SHAPE_CONSTANT(_CALLS)>;

/* The producer's thread that schedules, in a warp that has nothing else to do meanwhile. */
constexpr int scheduler_thread = 32;

/* ---- the producer ---------------------------------------------------------------------------- */

/* A work tile's tiles that are not gathered, by TMA, for one whole warp. with_q: Q as well, when its place is free,
 * which it is when consumers have the last scores of the work tile before (at once, for the first). All stages but one
 * are empty sooner, so that many tiles are issued before Q: with short walks much of the work tile's time would go by.
 * Of the first work tile Q and a tile of K are under way (issue_first_loads). */
EA_DEVICE void load_tiles(const ea_cta<shape> &cta, ea_work work, bool with_q) {
  const uint32_t stages = (uint32_t)cta.launch.scores.stages;
  const int head = uniform(work->kv_head);
  const int end = uniform(work->end_step);
  int tile = uniform(work->gather_end);
  int token = uniform(new_token<shape>(work, tile));
  ea_ring ring = {uniform(work->ring)};
  ring_skip(&ring, (uint32_t)(tile - work->first_step), stages, cta.launch.stages_magic);
  ea_ring ring_v = ring;
  const int tiles_before_q = (int)stages - 1;
  if (with_q && uniform((int)work->number) == 0) {
    PRODUCER_MARK(cta, SLOT_Q, 0);
    PRODUCER_MARK(cta, COPY_Q, 0);
    with_q = false;
    if (tile < end) {
      PRODUCER_MARK(cta, SLOT_K, tile);
      PRODUCER_MARK(cta, COPY_K, tile);
      ring_advance(&ring, stages);
      tile++;
      token += shape::tile_n;
    }
  } else if (with_q && tiles_before_q > 0) {
    prefetch_q(cta, work);
  }
#pragma unroll 1
  for (const int q_tile = with_q ? ea_min_i32(tile + tiles_before_q, end) : -1;; tile++, token += shape::tile_n) {
    if (tile == q_tile) load_q(cta, work);
    if (tile < end) {
      const uint32_t stage = stage_of(ring);
      PRODUCER_MARK(cta, SLOT_K, tile);
      mbarrier_wait(k_empty(cta.smem, stage), phase_of(ring) ^ 1);
      PRODUCER_MARK(cta, COPY_K, tile);
      load_tile<shape, shape::slices>(&cta.launch.k, k_full(cta.smem, stage), k_tile(cta.smem, stage), head, token);
      ring_advance(&ring, stages);
    }
    if (tile > work->gather_end) {
      const uint32_t stage = stage_of(ring_v);
      PRODUCER_MARK(cta, SLOT_V, tile - 1);
      mbarrier_wait(v_empty(cta.smem, stage), phase_of(ring_v) ^ 1);
      PRODUCER_MARK(cta, COPY_V, tile - 1);
      load_tile<shape, shape::slices_v>(&cta.launch.v, v_full(cta.smem, stage), v_tile(cta.smem, stage), head,
                                        token - shape::tile_n);
      ring_advance(&ring_v, stages);
    }
    if (tile >= end) break;
  }
}

/* The tiles of a work tile that are gathered, by all threads; Q behind the first, for the first warp. K runs a tile
 * ahead of V, as the consumers take them: a tile's V would otherwise keep the next K waiting for a stage that is empty
 * much later. */
EA_DEVICE void gather_tiles(const ea_cta<shape> &cta, ea_work work, int tid_once) {
  const auto tid = [&]() { return read_anew(tid_once); };
  const uint32_t stages = (uint32_t)cta.launch.scores.stages;
  int tile = work->first_step;
  ea_ring ring = {work->ring}, ring_v = ring;
  uint32_t slot_v = 0, slot = tile_slots(cta, work, tid(), tile);
#pragma unroll 1
  for (;; tile++) {
    uint32_t slot_next = 0;
    if (tile < work->gather_end) {
      if (tile + 1 < work->gather_end) slot_next = tile_slots(cta, work, tid(), tile + 1);
      gather_tile<false>(cta, work, tid(), tile, slot, ring);
      ring_advance(&ring, stages);
    }
    if (tile > work->first_step) {
      gather_tile<true>(cta, work, tid(), tile - 1, slot_v, ring_v);
      ring_advance(&ring_v, stages);
    } else if (cta.launch.scores.q_aligned && uniform(tid() / 32) == 0) {
      load_q(cta, work);
    }
    if (tile >= work->gather_end) return;
    slot_v = slot;
    slot = slot_next;
  }
}

/* All tiles of a second pass (nonfinite.h), by all threads: values of masked tiles lose their NaN and Inf. Q behind the
 * first. What TMA can bring it brings; the rest comes the way that is small rather than fast. */
EA_DEVICE void load_second_pass(const ea_cta<shape> &cta, ea_work work, int tid_once) {
  const auto tid = [&]() { return read_anew(tid_once); };
  const auto is_first_warp = [&]() { return uniform(tid() / 32) == 0; };
  ea_ring ring = {work->ring};
#pragma unroll 1
  for (int tile = work->first_step; tile < work->end_step; tile++) {
    bar_sync(BARRIER_PRODUCER, 128); /* nobody overtakes the first warp */
#pragma unroll 1
    for (int of_v = 0; of_v < 2; of_v++) {
      const auto stage = [&]() { return (uint32_t)read_anew((int)stage_of(ring)); };
      const auto full = [&]() { return of_v ? v_full(cta.smem, stage()) : k_full(cta.smem, stage()); };
      const auto dst = [&]() { return of_v ? v_tile(cta.smem, stage()) : k_tile(cta.smem, stage()); };
      const bool cleared = of_v && is_masked<shape>(work.get(), tile);
      PRODUCER_MARK_OF(cta, SLOT, of_v, tile);
      mbarrier_wait(full() + barrier_bytes, phase_of(ring) ^ 1);
      PRODUCER_MARK_OF(cta, COPY, of_v, tile);
      if (tile < work->gather_end || cleared) {
        load_rows_plain(cta, work, tid(), tile, dst(), of_v);
        cp_async_wait_all();
        if (cleared) {
          bar_sync(BARRIER_PRODUCER, 128); /* all of it is there */
          clear_nonfinite(dst(), shape::v_bytes, tid(), 128);
        }
        fence_proxy_async_shared();
        mbarrier_arrive(full());
      } else if (is_first_warp()) {
        const int head = uniform(work->kv_head);
        const int token = uniform(new_token<shape>(work, tile));
        if (of_v) {
          load_tile<shape, shape::slices_v>(&cta.launch.v, full(), dst(), head, token);
        } else {
          load_tile<shape, shape::slices>(&cta.launch.k, full(), dst(), head, token);
        }
      }
    }
    if (tile == work->first_step && cta.launch.scores.q_aligned && is_first_warp()) load_q(cta, work);
    ring_advance(&ring, (uint32_t)cta.launch.scores.stages);
  }
}

/* Q of the first work tile and its first tile of K, by the thread that has found it: what the producer's warps do until
 * they come to that took an H200 2 us, most of it for instructions that nobody had fetched. Where Q comes another way,
 * or behind a gathered tile, it is left to them. */
EA_DEVICE void issue_first_loads(const ea_cta<shape> &cta) {
  const ea_work_tile *work_tile = first_work(cta).get();
  const bool by_tma = work_tile->rows != 0 && cta.launch.scores.q_aligned;
  if (!by_tma || work_tile->first_step != work_tile->gather_end) return;
  issue_q(cta, work_tile->first_head, (int)work_tile->token0 + work_tile->i0);
  if (work_tile->first_step == work_tile->end_step) return;
  const int token = (int)work_tile->token0 + (work_tile->first_step * shape::tile_n - work_tile->view.prefix);
  issue_tile<shape, shape::slices>(&cta.launch.k, k_full(cta.smem, 0), k_tile(cta.smem, 0), work_tile->kv_head, token);
}

/* Schedules the work tile behind `work`. */
EA_DEVICE void schedule_after(const ea_cta<shape> &cta, ea_work work, int32_t *index) {
  const ea_work next = work_after(cta, work);
  schedule_next(cta, next, index);
  const ea_work_tile *work_tile = work.get();
  ea_ring ring = {work_tile->ring};
  ring_skip(&ring, (uint32_t)(work_tile->end_step - work_tile->first_step), (uint32_t)cta.launch.scores.stages,
            cta.launch.stages_magic);
  next.to_write()->ring = ring.position;
}

/* index: the next work tile's, for the scheduler thread. */
EA_DEVICE void produce(const ea_cta<shape> &cta, int32_t index) {
  const int tid_once = read_tid();
  const auto tid = [&]() { return read_anew(tid_once); };
  PRODUCER_MARK(cta, FIND, 0);
  PRODUCER_MARK(cta, MEET, 0);
#pragma unroll 1
  for (ea_work work = first_work(cta); work->rows != 0; work = work_after(cta, work)) {
    WORK_MARKS(cta, work);
    bool with_q = cta.launch.scores.q_aligned; /* the first warp's */
    if (!with_q) load_q_by_threads(cta, work, tid());
    const bool second_pass = work->second_pass != 0;
    if (second_pass) {
      load_second_pass(cta, work, tid_once);
    } else if (work->first_step < work->gather_end) {
      gather_tiles(cta, work, tid_once);
      with_q = false; /* has come behind a tile of K */
    }
    if (uniform(tid() / 32) == scheduler_thread / 32) { /* consumers would wait for it if it came behind the tiles */
      PRODUCER_MARK(cta, FIND, 0);
      if (tid() == scheduler_thread) schedule_after(cta, work, &index);
    } else {
      if (!second_pass && uniform(tid() / 32) == 0) load_tiles(cta, work, with_q);
      PRODUCER_MARK(cta, FIND, 0); /* what is before belongs to the work tile in hand */
    }
    PRODUCER_MARK(cta, MEET, 0);
    bar_sync(BARRIER_PRODUCER, 128);
  }
  if (tid() == 0) mbarrier_arrive_many(q_full(cta.smem), 128); /* nothing is left to do, for the consumers */
  PRODUCER_MARK(cta, END, 0);
}

/* ---- a consumer ------------------------------------------------------------------------------ */

/* s = Q K^T of this warpgroup's rows. */
EA_DEVICE void issue_scores(float (&s)[shape::tile_n / 2], uint32_t q, uint32_t k) {
  const uint64_t q_descriptor = wgmma_descriptor(q, 0);
  const uint64_t k_descriptor = wgmma_descriptor(k, 0);
#pragma unroll
  for (int step = 0; step < shape::dim / 16; step++) {
    const uint32_t q_offset = (uint32_t)(step / 4 * shape::tile_m * EA_HOPPER_SLICE_BYTES + step % 4 * 32);
    const uint32_t k_offset = (uint32_t)(step / 4 * shape::slice_bytes + step % 4 * 32);
    product_ss<shape::tile_n>(s, wgmma_advance(q_descriptor, q_offset), wgmma_advance(k_descriptor, k_offset),
                              step > 0);
  }
  wgmma_commit_group();
}

/* o += P V. */
EA_DEVICE void issue_output(float (&o)[shape::dim_v / 2], const uint32_t (&p)[shape::tile_n / 4], uint32_t v) {
  const uint64_t v_descriptor = wgmma_descriptor(v, shape::slice_bytes);
#pragma unroll
  for (int step = 0; step < shape::tile_n / 16; step++) {
    product_rs<shape::dim_v>(o, p + step * 4, wgmma_advance(v_descriptor, (uint32_t)step * 2048), 1);
  }
  wgmma_commit_group();
}

/* Scores or values go through scales, a cap or a temperature. */
EA_DEVICE bool is_scaled(const ea_hopper_launch &launch) {
  return launch.scores.transformed || launch.scores.k_scale != 1.0f || launch.scores.v_scale != 1.0f;
}

/* The mainloop, around it the work tiles, in one piece: its steps are lambdas, which share the accumulators,
 * the probabilities, the softmax's state and the ring, all in registers, and ptxas serialises the products where
 * anything else touches those that are in flight. */
EA_DEVICE void consume(const ea_cta<shape> &cta) {
  const ea_hopper_launch &launch = cta.launch;
  /* What follows from the thread's number is worked out anew at each use: the products need every register. */
  const int tid_once = read_tid();
  const auto tid = [&]() { return read_anew(tid_once); };
  const int warpgroup = uniform(tid_once / 128) - 1;
  const auto turn = [&](int from_mine) {
    return BARRIER_TURN + ((shape::keeps_work ? warpgroup : tid_once / 128 - 1) + from_mine) % shape::consumers;
  };
  const uint32_t stages = (uint32_t)launch.scores.stages;
  const uint32_t q = q_tile(cta.smem) + (uint32_t)(warpgroup * 64 * EA_HOPPER_SLICE_BYTES);
  const auto v_scaled = [&]() {
    return shape::calls != EA_CALLS_PLAIN && read_anew(launch.scores.v_scale != 1.0f) != 0;
  };
  const auto scaled = [&]() {
    return shape::calls == EA_CALLS_SCALED || (shape::calls == EA_CALLS_ANY && read_anew(is_scaled(launch)) != 0);
  };
  float o[shape::dim_v / 2], s[shape::tile_n / 2];
  uint32_t p[shape::tile_n / 4], p_next[shape::tile_n / 4];
  ea_ring ring = {0}; /* of the next K tile */
  MARKS(launch, warpgroup);

  if (warpgroup == shape::consumers - 1) bar_arrive(BARRIER_TURN, 256); /* the first warpgroup begins */
#pragma unroll 1
  for (ea_work work = first_work(cta);; work = work_after(cta, work)) {
    MARK(WAIT_Q, 0);
    mbarrier_wait(q_full(cta.smem), work_before(cta, work).q_phase() ^ 1);
    if (uniform(work->rows) == 0) break;
    MARK(BEGIN, 0);
    ea_softmax state = {{MINUS_INF, MINUS_INF}, {0.0f, 0.0f}};
    float factor[2] = {1.0f, 1.0f};
    bool moved = false; /* O is still to be multiplied by factor */
#pragma unroll
    for (int e = 0; e < shape::dim_v / 2; e++) o[e] = 0.0f;

    const int first = uniform(work->first_step), end = uniform(work->end_step);
    const int gather_end = uniform(work->gather_end);
    const int unmasked_end_once = uniform(work->unmasked.end);
    const auto unmasked_end = [&]() { return shape::keeps_work ? unmasked_end_once : uniform(work->unmasked.end); };
    const auto is_gathered = [&](int tile) { return tile < (shape::keeps_work ? gather_end : work->gather_end); };
    /* Scales, cap, temperature and mask of any tile. */
    const auto prepare = [&](int tile, const ea_tile_mask &mask) {
      if (scaled()) scale_logits(s, cta, work.get(), tile * shape::tile_n + tid() % 4 * 2, shape::first_row(tid()));
      if (mask.masked) apply_mask(s, mask);
    };
    /* Then to probabilities, whatever the call asks for. */
    const auto convert = [&](int tile, bool is_first, uint32_t(&to)[shape::tile_n / 4]) {
      if (v_scaled() || is_first) {
        const bool must[2] = {true, true};
        float shift[2], sum[2];
        move_references(s, &state, must, shift, factor, launch);
        if (v_scaled()) {
          exponentials<true>(to, s, shift, sum, launch, work->view.prefix - tile * shape::tile_n - tid() % 4 * 2);
        } else {
          exponentials<false>(to, s, shift, sum, launch, 0);
        }
        state.row_sum[0] += sum[0];
        state.row_sum[1] += sum[1];
        moved = !is_first;
      } else {
        moved = probabilities(to, s, &state, factor, launch);
      }
    };
    /* Waits for the product of a tile with V. */
    uint32_t in_flight; /* the empty barrier of its stage */
    const auto output_done = [&](int tile) {
      MARK(WAIT_O, tile);
      wgmma_wait_group(0);
      wgmma_settle(o, shape::dim_v / 2);
      release(in_flight);
    };
    /* Issues the scores of `tile`, and the output product of the tile before. */
    const auto issue = [&](int tile, const uint32_t(&with)[shape::tile_n / 4], bool k_gathered, bool v_gathered) {
      const ea_ring before = {uniform(ring.position)};
      ring = before;
      ring_advance(&ring, stages);
      MARK(WAIT_TURN, tile);
      bar_sync(turn(0), 256);
      MARK(WAIT_K, tile);
      wait_full(k_full(cta.smem, stage_of(ring)), phase_of(ring), k_gathered);
      MARK(ISSUE_S, tile);
      wgmma_fence();
      issue_scores(s, q, k_tile(cta.smem, stage_of(ring)));
      if (moved) rescale(o, factor);
      MARK(WAIT_V, tile - 1);
      wait_full(v_full(cta.smem, stage_of(before)), phase_of(before), v_gathered);
      MARK(ISSUE_O, tile - 1);
      wgmma_settle(o, shape::dim_v / 2);
      wgmma_fence();
      issue_output(o, with, v_tile(cta.smem, stage_of(before)));
      in_flight = v_empty(cta.smem, stage_of(before));
      bar_arrive(turn(1), 256);
    };
    /* Waits for the scores, with the product under way. */
    const auto scores_done = [&](int tile) {
      MARK(WAIT_S, tile);
      wgmma_wait_group(1);
      wgmma_settle(s, shape::tile_n / 2);
      MARK(SOFTMAX, tile);
      release(k_empty(cta.smem, stage_of(ring)));
    };

    if (first < end) {
      MARK(WAIT_K, first);
      wait_full(k_full(cta.smem, stage_of(ring)), phase_of(ring), is_gathered(first));
      MARK(ISSUE_S, first);
      wgmma_fence();
      issue_scores(s, q, k_tile(cta.smem, stage_of(ring)));
      ea_key_range seen[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int i = row_query<shape>(launch, work.get(), shape::first_row(tid()) + h * 8);
        seen[h] = ea_visible_keys(&work->view, i, i + 1);
      }
      const ea_tile_mask first_mask = mask_of<shape>(launch, work.get(), seen, first, tid());
      MARK(WAIT_S, first);
      wgmma_wait_group(0);
      wgmma_settle(s, shape::tile_n / 2);
      MARK(SOFTMAX, first);
      release(k_empty(cta.smem, stage_of(ring)));
      prepare(first, first_mask);
      convert(first, true, p);
      int tile = first + 1;
      /* Tiles up to `last` that all rows see whole, two at a time. */
      const auto unmasked_tiles = [&](auto gathered, int last) {
#pragma unroll 1
        for (; (tile + 1 + shape::two_p) * shape::tile_n <= unmasked_end() && tile <= last; tile += 1 + shape::two_p) {
          issue(tile, p, gathered(tile), gathered(tile));
          scores_done(tile);
          if (shape::two_p) {
            moved = probabilities(p_next, s, &state, factor, launch);
            output_done(tile - 1);
            issue(tile + 1, p_next, gathered(tile), gathered(tile));
            scores_done(tile + 1);
            moved = probabilities(p, s, &state, factor, launch);
            output_done(tile);
          } else {
            output_done(tile - 1);
            MARK(SOFTMAX, tile);
            moved = probabilities(p, s, &state, factor, launch);
          }
        }
      };
#pragma unroll 1
      while (tile < end) {
        if (!scaled() && tile * shape::tile_n >= uniform(work->unmasked.first)) {
          if (shape::gather_loop) {
            unmasked_tiles([](int) { return true; }, gather_end);
            unmasked_tiles([](int) { return false; }, INT32_MAX);
          } else {
            unmasked_tiles([&](int of) { return is_gathered(of - 1); }, INT32_MAX);
          }
          if (tile >= end) break;
        }
        issue(tile, p, is_gathered(tile), is_gathered(tile - 1));
        const ea_tile_mask mask = mask_of<shape>(launch, work.get(), seen, tile, tid());
        scores_done(tile);
        prepare(tile, mask);
        if (shape::two_p) {
          convert(tile, false, p_next);
          output_done(tile - 1);
          wgmma_refill(p, p_next, shape::tile_n / 4);
        } else {
          output_done(tile - 1);
          MARK(SOFTMAX, tile);
          convert(tile, false, p);
        }
        tile++;
      }
      release(q_empty(cta.smem));
      MARK(WAIT_V, end - 1);
      if (moved) rescale(o, factor);
      wait_full(v_full(cta.smem, stage_of(ring)), phase_of(ring), is_gathered(end - 1));
      MARK(ISSUE_O, end - 1);
      wgmma_settle(o, shape::dim_v / 2);
      wgmma_fence();
      issue_output(o, p, v_tile(cta.smem, stage_of(ring)));
      in_flight = v_empty(cta.smem, stage_of(ring));
      output_done(end - 1);
      ring_advance(&ring, stages);
    } else {
      release(q_empty(cta.smem));
    }
    MARK(FINISH, 0);
#pragma unroll
    for (int h = 0; h < 2; h++) state.row_sum[h] = quad_sum(state.row_sum[h]);
    epilogue<shape::dim_v>(o, state.reference, state.row_sum, cta, work, shape::first_row(tid()), tid() % 32, 0);
  }
  MARKS_END(launch);
}

/* ---- the entry ---------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(shape::threads, 1)
    EA_KERNEL_NAME(const __grid_constant__ ea_call call, const __grid_constant__ ea_hopper_launch launch) {
  extern __shared__ __align__(1024) char smem[];
  const ea_cta<shape> cta = {call, launch, {smem_address(smem)}};
  if (threadIdx.x == scheduler_thread) { /* what the first work tile is found by */
    prefetch_l2(call.qo_indptr);
    prefetch_l2(call.kv_indptr);
  }
  clear_spare_rows(cta);
  int32_t index = (int32_t)blockIdx.x;
  if (threadIdx.x < 128) MARKS_OF_BLOCK(cta, 3);
  if (threadIdx.x == 128) { /* while the first work tile is found */
    if (launch.scores.q_aligned) tensor_map_prefetch(&launch.q);
    if (launch.scores.kv_aligned) {
      tensor_map_prefetch(&launch.k);
      tensor_map_prefetch(&launch.v);
    }
    init_other_barriers(cta);
  } else if (threadIdx.x == scheduler_thread) {
    init_first_barriers(cta);
    schedule_first(cta, &index);
    issue_first_loads(cta);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    setmaxnreg_dec(shape::producer_registers);
    produce(cta, index);
  } else {
    setmaxnreg_inc(shape::consumer_registers);
    consume(cta);
  }
}
