/* Extend attention on sm_90a with values in the keys (latent attention, 576/512): produce and consume.
 *
 * Compiled once for each such shape of plan/hopper_wide.h and each of bf16 and f16:
 * -DEA_SHAPE=d576x512 -DEA_TYPE_BF16 -DEA_KERNEL_NAME=hopper_d576x512_bf16.
 *
 * Persistent, one block a multiprocessor, as d64_256.cu. Its parts are in wide.h. A ring holds one tile, a slice a
 * stage. A tile of each consumer's is in shared memory, whose slices the next one's follow as they are released; the
 * consumers take turns with their tiles, one's loads behind the other's products. The mainloop of a consumer, its tile
 * t:
 *
 *   issue S = Q K(t) for the first slices, which are there first
 *   P and reference of the other's tile before: rescale O; issue O += P(other) V(other), P from shared memory
 *   issue S for the other slices
 *   the other tile's slices that are values of this consumer's columns, and the place of its P, are released
 *   S done: mask; exp2 with the reference there is, sum; P in 16 bits, to the last slice's place for the other
 *   O += P V(t), P from registers; the slices that are values of this consumer's columns are released
 *
 * so that one's softmax runs beside the other's first scores. The second consumer's tile before is the first one's
 * tile of the same pair, so references follow the tiles' order. */
#include "cuda/kernels/hopper/epilogue.h"
#include "cuda/kernels/hopper/products.h"
#include "cuda/kernels/hopper/wide_load.h"

#define EA_SHAPE_CONSTANT(what) EA_PASTE(EA_WIDE_, EA_SHAPE, what)

using shape = ea_wide_traits<EA_SHAPE_CONSTANT(_DIM), EA_SHAPE_CONSTANT(_DIM_V), EA_SHAPE_CONSTANT(_LATENT),
                             EA_SHAPE_CONSTANT(_UNIT), EA_SHAPE_CONSTANT(_CONSUMER_REGISTERS),
                             EA_SHAPE_CONSTANT(_PRODUCER_REGISTERS)>;

static_assert(shape::latent, "values in the keys: d512.cu is for the others");

constexpr int early_units = 6;       /* slices whose scores are issued before the other consumer's values are used */
constexpr int product_columns = 128; /* of a product P V */
constexpr int product_slices = product_columns / EA_HOPPER_SLICE;
constexpr int output_products = shape::columns / product_columns;
constexpr int p_stage = shape::slices - 1; /* for P: the last slice's stage, which is no value */

/* ---- a consumer ------------------------------------------------------------------------------ */

/* The mainloop, around it the work tiles, in one piece: its steps are lambdas, which share the accumulators,
 * the probabilities, the softmax's state and the ring, all in registers, and ptxas serialises the products where
 * anything else touches those that are in flight. */
EA_DEVICE void consume(const ea_cta<shape> &cta) {
  const ea_hopper_launch &launch = cta.launch;
  const int tid_once = read_tid();
  const auto tid = [&]() { return read_anew(tid_once); };
  const uint32_t side = uniform((uint32_t)tid_once / 128 - 1);
  const bool scaled = launch.scores.transformed || launch.scores.k_scale != 1.0f;
  const uint32_t own = ring_units(cta.smem, side, shape::slices), other = ring_units(cta.smem, 1 - side, shape::slices);
  float o[shape::columns / 2], s[shape::tile_n / 2];
  uint32_t p[shape::tile_n / 4];
  uint32_t own_phase = 0, other_phase = 0; /* of the tiles' rounds */
  uint32_t sums_phase = 0, q_phase = 0;
  MARKS(launch, side);

  const auto full = [&](uint32_t of, int stage) {
    return unit_barriers(cta.smem, of) + (uint32_t)stage * barrier_pair_bytes;
  };
  const auto empty = [&](uint32_t of, int stage) { return full(of, stage) + barrier_bytes; };
  /* Of a gathered tile all slices of a part are waited for before the first product: one fence is enough. */
  const auto issue_scores = [&](int from, int to, bool gathered) {
    if (gathered) {
#pragma unroll
      for (int unit = from; unit < to; unit++) mbarrier_wait(full(side, unit), own_phase);
      fence_proxy_async_shared();
    }
#pragma unroll
    for (int unit = from; unit < to; unit++) {
      /* The slices' order differs between the consumers, by addresses alone. */
      const uint32_t slice = unit < 2 * shape::v_slices
                                 ? ((uint32_t)unit + side * shape::v_slices) % (2 * shape::v_slices)
                                 : (uint32_t)unit;
      mbarrier_wait(full(side, unit), own_phase);
      if (unit == from) wgmma_fence();
      const uint64_t k = wgmma_descriptor(own + (uint32_t)unit * shape::unit_bytes, 0);
      const uint64_t q = wgmma_descriptor((uint32_t)read_anew((int)q_tile(cta.smem)) + slice * shape::slice_bytes, 0);
#pragma unroll
      for (int step = 0; step < 4; step++) {
        product_ss<shape::tile_n>(s, wgmma_advance(q, (uint32_t)step * 32), wgmma_advance(k, (uint32_t)step * 32),
                                  unit + step > 0);
      }
    }
    wgmma_commit_group();
  };
  /* O += P V of a tile whose slices for this consumer's columns begin at stage `first` of a ring, of which it releases
   * all but the last product's. */
  const auto issue_output = [&](auto product, uint32_t of, uint32_t units, int first, bool cleared) {
#pragma unroll
    for (int group = 0; group < output_products; group++) {
      const uint32_t v = units + (uint32_t)(first + group * product_slices) * shape::unit_bytes;
      if (cleared) { /* the scores have seen them */
        clear_nonfinite(v, product_slices * shape::unit_bytes, tid() % 128, 128);
        fence_proxy_async_shared();
        bar_sync(BARRIER_CONSUMER + (int)side, 128);
      }
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < shape::tile_n / 16; step++) {
        product(o + group * (product_columns / 2), step,
                wgmma_advance(wgmma_descriptor(v, shape::unit_bytes), (uint32_t)step * 2048));
      }
      wgmma_commit_group();
      if (group > 0) {
        wgmma_wait_group(1);
#pragma unroll
        for (int n = 0; n < product_slices; n++) release(empty(of, first + (group - 1) * product_slices + n));
      }
    }
  };
  const auto end_output = [&](uint32_t of, int first) {
    wgmma_settle(o, shape::columns / 2);
#pragma unroll
    for (int n = 0; n < product_slices; n++) release(empty(of, first + shape::v_slices - product_slices + n));
  };
  const auto own_product = [&](float *d, int step, uint64_t v) { product_rs<product_columns>(d, p + step * 4, v, 1); };
  const auto other_product = [&](float *d, int step, uint64_t v) {
    product_st<product_columns>(
        d, wgmma_advance(wgmma_descriptor(other + p_stage * shape::unit_bytes, 0), (uint32_t)step * 32), v, 1);
  };

#pragma unroll 1
  for (ea_work work = first_work(cta);; work = work_after(cta, work), q_phase ^= 1) {
    MARK(WAIT_Q, 0);
    mbarrier_wait(q_full(cta.smem), q_phase);
    if (uniform(work->rows) == 0) break;
    MARK(BEGIN, 0);
    ea_softmax state = {{MINUS_INF, MINUS_INF}, {0.0f, 0.0f}};
#pragma unroll
    for (int e = 0; e < shape::columns / 2; e++) o[e] = 0.0f;
    const int first = uniform(work->first_step), end_pair = uniform(work->end_step);
    const int gather_end = uniform(work->gather_end);

    /* The other's tile, which is complete but for the release of its last values. */
    const auto take_other = [&](int tile) {
      float reference[2], factor[2];
      MARK(WAIT_V, tile);
#pragma unroll
      for (int n = 0; n < shape::v_slices; n++) mbarrier_wait(full(1 - side, shape::v_slices + n), other_phase);
      MARK(WAIT_P, tile);
      bar_sync(BARRIER_P + 1 - (int)side, 256);
      if (tile / EA_WIDE_PAIR < gather_end) fence_proxy_async_shared();
      MARK(ISSUE_O, tile);
      read_rows(cta, rows_written(cta.smem), other_phase, 1 - side, other_phase, tid(), reference);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float scale = launch.scores.scale_log2;
        const bool grown = reference[h] > state.reference[h];
        factor[h] = grown ? ex2_approx(shift_of(state.reference[h], scale) - shift_of(reference[h], scale)) : 1.0f;
        state.reference[h] = reference[h];
        state.row_sum[h] *= factor[h];
      }
      rescale_where_grown(o, factor);
      wgmma_settle(o, shape::columns / 2);
      issue_output(other_product, 1 - side, other, shape::v_slices, is_cleared<shape>(work.get(), tile));
    };
    const auto release_other = [&]() {
      end_output(1 - side, shape::v_slices);
      release(empty(1 - side, p_stage));
      other_phase ^= 1;
    };
    /* The own tile, from its scores on. */
    const auto end_own = [&](int pair, bool is_first) {
      const int tile = pair * EA_WIDE_PAIR + (int)side;
      float factor[2];
      bool moved; /* O is to be multiplied by factor */
      wgmma_settle(s, shape::tile_n / 2);
      MARK(SOFTMAX, tile);
      if (pair + 1 == end_pair) release(q_empty(cta.smem));
      const int key0 = tile * shape::tile_n + tid() % 4 * 2;
      if (scaled) scale_logits(s, cta, work.get(), key0, shape::first_row(tid()));
      if (is_masked<shape>(work.get(), tile)) apply_mask(s, cta, work.get(), key0, shape::first_row(tid()));
      const bool v_scaled = launch.scores.v_scale != 1.0f;
      if (v_scaled || is_first) {
        const bool must[2] = {true, true};
        float shift[2], sum[2];
        move_references(s, &state, must, shift, factor, launch);
        if (v_scaled) {
          exponentials<true>(p, s, shift, sum, launch, work->view.prefix - key0);
        } else {
          exponentials<false>(p, s, shift, sum, launch, 0);
        }
        state.row_sum[0] += sum[0];
        state.row_sum[1] += sum[1];
        moved = !is_first;
      } else {
        moved = probabilities(p, s, &state, factor, launch);
      }
      write_rows(cta, rows_written(cta.smem), side, own_phase, tid(), state.reference);
      write_probabilities(side, own + p_stage * shape::unit_bytes, tid(), p);
      MARK(ISSUE_O, tile);
      if (moved) rescale(o, factor);
      wgmma_settle(o, shape::columns / 2);
      issue_output(own_product, side, own, 0, is_cleared<shape>(work.get(), tile));
      MARK(WAIT_O, tile);
      wgmma_wait_group(0);
      end_output(side, 0);
      own_phase ^= 1;
    };

    if (first < end_pair) {
      if (side == 0) { /* there is no tile before */
        MARK(ISSUE_S, first * EA_WIDE_PAIR);
        issue_scores(0, shape::k_units, first < gather_end);
        MARK(WAIT_S, first * EA_WIDE_PAIR);
        wgmma_wait_group(0);
        end_own(first, true);
      }
#pragma unroll 1
      for (int pair = first + 1 - (int)side; pair < end_pair; pair++) {
        const int before = pair * EA_WIDE_PAIR - 1 + (int)side;
        MARK(ISSUE_S, before + 1);
        issue_scores(0, early_units, pair < gather_end);
        take_other(before);
        MARK(ISSUE_S, before + 1);
        issue_scores(early_units, shape::k_units, pair < gather_end);
        MARK(WAIT_O, before);
        wgmma_wait_group(1);
        release_other();
        MARK(WAIT_S, before + 1);
        wgmma_wait_group(0);
        end_own(pair, false);
      }
      if (side == 0) { /* and one more of the other's */
        const int before = end_pair * EA_WIDE_PAIR - 1;
        take_other(before);
        MARK(WAIT_O, before);
        wgmma_wait_group(0);
        release_other();
      }
      /* Where no reference is that may still be wanted. */
      add_sums(cta, sums_written(cta.smem), sums_phase, side, own_phase, tid(), state.row_sum);
      sums_phase ^= 1;
    } else {
      release(q_empty(cta.smem));
    }
    MARK(FINISH, 0);
    epilogue<shape::columns>(o, state.reference, state.row_sum, cta, work, shape::first_row(tid()), tid() % 32,
                             (int)side * shape::columns);
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
