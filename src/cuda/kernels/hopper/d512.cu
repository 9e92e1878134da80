/* Extend attention on sm_90a for head dimensions above 256 with values apart from the keys: produce and consume.
 *
 * Compiled once for each such shape of plan/hopper_wide.h and each of bf16 and f16:
 * -DEA_SHAPE=d512 -DEA_TYPE_BF16 -DEA_KERNEL_NAME=hopper_d512_bf16.
 *
 * Persistent, one block a multiprocessor, as d64_256.cu. Its parts are in wide.h. The mainloop of a consumer, pair t of
 * a work tile (own and other: the tile of this consumer and of the other one):
 *
 *   issue S(t+1) = Q K(own tile of t+1), unit by unit
 *   rescale O where a maximum grew
 *   issue O += P(own) V(own tile of t), unit by unit, P from registers
 *   S(t+1) done: mask; rows' maxima, written for the other consumer
 *   issue O += P(other) V(other tile of t), unit by unit, P from shared memory
 *   the other's maxima: both take the same reference; exp2, sum (of own tiles), P(own) in 16 bits, also to
 *   shared memory for the other
 *   O done
 *
 * A unit is released when release_lag more have been given to the products. */
#include "cuda/kernels/hopper/epilogue.h"
#include "cuda/kernels/hopper/products.h"
#include "cuda/kernels/hopper/wide_load.h"

#define EA_SHAPE_CONSTANT(what) EA_PASTE(EA_WIDE_, EA_SHAPE, what)

using shape = ea_wide_traits<EA_SHAPE_CONSTANT(_DIM), EA_SHAPE_CONSTANT(_DIM_V), EA_SHAPE_CONSTANT(_LATENT),
                             EA_SHAPE_CONSTANT(_UNIT), EA_SHAPE_CONSTANT(_CONSUMER_REGISTERS),
                             EA_SHAPE_CONSTANT(_PRODUCER_REGISTERS)>;

static_assert(!shape::latent, "values apart from the keys: mla.cu is for the others");

constexpr int release_lag = 1; /* units given to the products after the one that is released */
static_assert(release_lag >= 1 && release_lag < shape::v_units, "when products are done; the ring has more stages");

/* ---- a consumer ------------------------------------------------------------------------------ */

/* The mainloop, around it the work tiles, in one piece: its steps are lambdas, which share the accumulators,
 * the probabilities, the softmax's state and the ring, all in registers, and ptxas serialises the products where
 * anything else touches those that are in flight. */
EA_DEVICE void consume(const ea_cta<shape> &cta) {
  const ea_hopper_launch &launch = cta.launch;
  /* What follows from the thread's number is worked out anew at each use: the products need every register. */
  const int tid_once = read_tid();
  const auto tid = [&]() { return read_anew(tid_once); };
  const uint32_t side_once = uniform((uint32_t)tid_once / 128 - 1);
  const auto side = [&]() { return side_once; };
  const bool scaled = launch.scores.transformed || launch.scores.k_scale != 1.0f;
  float o[shape::columns / 2], s[shape::tile_n / 2];
  uint32_t p[shape::tile_n / 4];
  ea_unit_ring ring = unit_ring(cta, side()), tail = ring; /* the next unit, the oldest that is not released */
  uint32_t rows_phase = 0, p_round = 0;                    /* parities of the rounds of maxima and of P */
  uint32_t q_phase = 0;
  MARKS(launch, side_once);

  /* The next unit is there; it has gone to the products. release_lag units are issued and not released, but at the
   * beginning of a work tile. */
  const auto begin = [&](bool gathered) {
    wait_full(unit_full(ring), phase_of(ring.ring), gathered);
    return unit_address<shape>(ring);
  };
  const auto release_oldest = [&]() {
    release(unit_empty(tail));
    unit_advance(&tail);
  };
  const auto end = [&](bool releases) {
    wgmma_commit_group();
    unit_advance(&ring);
    if (releases) {
      wgmma_wait_group(release_lag);
      release_oldest();
    }
  };
  const auto issue_scores = [&](bool first, bool gathered) {
#pragma unroll
    for (int unit = 0; unit < shape::k_units; unit++) {
      const uint64_t k = wgmma_descriptor(begin(gathered), 0);
      const uint64_t q = wgmma_descriptor(q_tile(cta.smem), 0);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < shape::unit_slices * 4; step++) {
        const uint32_t further = (uint32_t)(step / 4 * shape::slice_bytes + step % 4 * 32);
        product_ss<shape::tile_n>(
            s, wgmma_advance(q, (uint32_t)(unit * shape::unit_slices * shape::slice_bytes) + further),
            wgmma_advance(k, further), unit + step > 0);
      }
      end(!first || unit >= release_lag);
    }
  };
  /* O += P V of a unit. */
  const auto issue_own = [&](int unit, bool gathered) {
    const uint32_t v_address = begin(gathered);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < shape::unit_slices; step++) {
      product_rs<shape::columns>(
          o, p + (unit * shape::unit_slices + step) * 4,
          wgmma_advance(wgmma_descriptor(v_address, shape::v_slice_bytes), (uint32_t)step * 2048), 1);
    }
    end(true);
  };
  const auto issue_other = [&](int unit, bool gathered, uint32_t p_address) {
    const uint32_t v_address = begin(gathered);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < shape::unit_slices; step++) {
      product_st<shape::columns>(
          o, wgmma_advance(wgmma_descriptor(p_address, 0), (uint32_t)(unit * shape::unit_slices + step) * 32),
          wgmma_advance(wgmma_descriptor(v_address, shape::v_slice_bytes), (uint32_t)step * 2048), 1);
    }
    end(true);
  };

#pragma unroll 1
  for (ea_work work = first_work(cta);; work = work_after(cta, work), q_phase ^= 1) {
    MARK(WAIT_Q, 0);
    mbarrier_wait(q_full(cta.smem), q_phase);
    if (work->rows == 0) break;
    MARK(BEGIN, 0);
    ea_softmax state = {{MINUS_INF, MINUS_INF}, {0.0f, 0.0f}};
#pragma unroll
    for (int e = 0; e < shape::columns / 2; e++) o[e] = 0.0f;
    const int first = uniform(work->first_step), end_pair = uniform(work->end_step);
    const int gather_end = uniform(work->gather_end);
    const auto own_tile = [&](int pair) { return pair * EA_WIDE_PAIR + (int)side(); };
    [[maybe_unused]] const auto other_tile = [&](int pair) {
      return pair * EA_WIDE_PAIR + 1 - (int)side();
    }; /* marks */

    /* Scores of the pair: masked, their maxima written. */
    const auto begin_softmax = [&](int pair, float maxima[2]) {
      MARK(SOFTMAX, own_tile(pair));
      const ea_work_tile *work_tile = work.get();
      const int j0 = own_tile(pair) * shape::tile_n, key0 = j0 + tid() % 4 * 2, row = shape::first_row(tid());
      if (scaled) scale_logits(s, cta, work_tile, key0, row);
      if (is_masked<shape>(work_tile, own_tile(pair))) apply_mask(s, cta, work_tile, key0, row);
#pragma unroll
      for (int h = 0; h < 2; h++) maxima[h] = tile_maximum(s, h);
      write_rows(cta, rows_written(cta.smem), side(), rows_phase, tid(), maxima);
    };
    const auto read_maxima = [&](float maxima[2]) {
      float others[2];
      MARK(WAIT_MAX, 0);
      read_rows(cta, rows_written(cta.smem), rows_phase, 1 - side(), rows_phase, tid(), others);
      rows_phase ^= 1;
#pragma unroll
      for (int h = 0; h < 2; h++) maxima[h] = fmaxf(maxima[h], others[h]);
    };
    const auto exponentiate = [&](int pair, int h, const float maxima[2], float factor[2]) {
      MARK(SOFTMAX, own_tile(pair));
      if (launch.scores.v_scale != 1.0f) {
        const int key0 = own_tile(pair) * shape::tile_n + tid() % 4 * 2;
        row_exponentials<true>(s, h, &state, maxima, factor, launch, work->view.prefix - key0);
      } else {
        row_exponentials<false>(s, h, &state, maxima, factor, launch, 0);
      }
      wgmma_settle(s, shape::tile_n / 2); /* now, not later */
    };
    const auto end_softmax = [&]() {
      round_probabilities(p, s);
      write_probabilities(side(), p_tile(cta.smem, side(), p_round), tid(), p);
    };

    if (first < end_pair) {
      float factor[2], maxima[2];
      MARK(ISSUE_S, own_tile(first));
      issue_scores(true, first < gather_end);
      MARK(WAIT_S, own_tile(first));
      wgmma_wait_group(0);
      wgmma_settle(s, shape::tile_n / 2);
      begin_softmax(first, maxima);
      read_maxima(maxima);
#pragma unroll
      for (int h = 0; h < 2; h++) exponentiate(first, h, maxima, factor);
      end_softmax();
#pragma unroll 1
      for (int pair = first; pair + 1 < end_pair; pair++) {
        const bool gathered = pair < gather_end;
        MARK(ISSUE_S, own_tile(pair + 1));
        issue_scores(false, pair + 1 < gather_end);
        const uint32_t round = p_round;
        p_round ^= 1;
        MARK(ISSUE_O, own_tile(pair));
        rescale_where_grown(o, factor);
        wgmma_settle(o, shape::columns / 2);
#pragma unroll
        for (int unit = 0; unit < shape::v_units; unit++) issue_own(unit, gathered);
        wgmma_settle(s, shape::tile_n / 2);
        MARK(WAIT_P, other_tile(pair));
        bar_sync(BARRIER_P + 1 - (int)side(), 256); /* before the maxima: so no round of them overtakes another */
        begin_softmax(pair + 1, maxima);
#pragma unroll
        for (int h = 0; h < 2; h++) {
          MARK(ISSUE_O, other_tile(pair));
#pragma unroll
          for (int unit = h * shape::v_units / 2; unit < (h + 1) * shape::v_units / 2; unit++) {
            issue_other(unit, gathered, p_tile(cta.smem, 1 - side(), round));
          }
          if (h == 0) read_maxima(maxima);
          exponentiate(pair + 1, h, maxima, factor);
        }
        end_softmax();
        MARK(WAIT_O, other_tile(pair));
        wgmma_wait_group(0);
        wgmma_settle(o, shape::columns / 2);
      }
      release(q_empty(cta.smem));
      const int pair = end_pair - 1;
      const bool gathered = pair < gather_end;
      const uint32_t round = p_round;
      p_round ^= 1;
      MARK(ISSUE_O, own_tile(pair));
      rescale_where_grown(o, factor);
      wgmma_settle(o, shape::columns / 2);
#pragma unroll
      for (int unit = 0; unit < shape::v_units; unit++) issue_own(unit, gathered);
      MARK(WAIT_P, other_tile(pair));
      bar_sync(BARRIER_P + 1 - (int)side(), 256);
      MARK(ISSUE_O, other_tile(pair));
#pragma unroll
      for (int unit = 0; unit < shape::v_units; unit++) {
        issue_other(unit, gathered, p_tile(cta.smem, 1 - side(), round));
      }
      MARK(WAIT_O, other_tile(pair));
      wgmma_wait_group(0);
#pragma unroll
      for (int n = 0; n < release_lag; n++) release_oldest();
      wgmma_settle(o, shape::columns / 2);
      add_sums(cta, rows_written(cta.smem), rows_phase, side(), rows_phase, tid(), state.row_sum);
      rows_phase ^= 1;
    } else {
      release(q_empty(cta.smem));
    }
    MARK(FINISH, 0);
    epilogue<shape::columns>(o, state.reference, state.row_sum, cta, work, shape::first_row(tid()), tid() % 32,
                             (int)side() * shape::columns);
  }
  MARKS_END(launch);
}

/* ---- the entry ---------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(shape::threads, 1)
    EA_KERNEL_NAME(const __grid_constant__ ea_call call, const __grid_constant__ ea_hopper_launch launch) {
  extern __shared__ __align__(1024) char smem[];
  const ea_cta<shape> cta = {call, launch, {smem_address(smem)}};
  run_block<shape, consume>(cta);
}
