/* The kernels for head dimensions above 256 (d512.cu, mla.cu): their constants, their shared memory, their rings, and
 * what the two consumers exchange.
 *
 * A block has 64 query rows. An output of 64 x 512 takes the registers of two consumer warpgroups, which own half of
 * its columns each. Keys go in pairs of tiles of 64: each consumer computes the scores of its own tile of a pair (the
 * first one's is the first), and both need the probabilities of both. A consumer is 0 or 1, its `side`.
 *
 * A unit (plan/hopper_wide.h) is what a stage of a ring holds: of K 64 keys x 64 columns, of V 16 keys x 256 columns,
 * or two of them. It has one reader, so each consumer has a ring of units of its own, in the order in which it reads
 * them, and half of the producer's threads to fill it (wide_load.h). The rings' depth is a run-time number and changes
 * no arithmetic. */
#ifndef EA_CUDA_KERNELS_HOPPER_WIDE_H
#define EA_CUDA_KERNELS_HOPPER_WIDE_H

#include "cuda/kernels/hopper/load.h"
#include "cuda/kernels/hopper/mask.h"
#include "cuda/kernels/hopper/softmax.h"
#include "plan/hopper_wide.h"

/* The Shape of these kernels (pipeline.h says what each needs). LATENT: values are the keys' first columns. */
template <int DIM, int DIM_V, bool LATENT, int UNIT_SLICES, int CONSUMER_REGISTERS, int PRODUCER_REGISTERS>
struct ea_wide_traits {
  static constexpr int dim = DIM, dim_v = DIM_V;
  static constexpr bool latent = LATENT;
  static constexpr int tile_m = EA_WIDE_M, tile_n = EA_WIDE_N, step_keys = EA_WIDE_N * EA_WIDE_PAIR;
  static constexpr int threads = EA_WIDE_THREADS;
  static constexpr int gather_threads = 64; /* those that fill a ring */
  static constexpr int consumer_registers = CONSUMER_REGISTERS, producer_registers = PRODUCER_REGISTERS;
  static constexpr int columns = EA_WIDE_V_COLUMNS; /* of the output, a consumer's */
  static constexpr int slices = (DIM + EA_HOPPER_SLICE - 1) / EA_HOPPER_SLICE;
  static constexpr int slice_bytes = tile_n * EA_HOPPER_SLICE_BYTES;
  static constexpr int unit_slices = UNIT_SLICES, unit_bytes = UNIT_SLICES * slice_bytes;
  static constexpr int k_units = slices / UNIT_SLICES;       /* of a tile */
  static constexpr int v_keys = 16 * UNIT_SLICES;            /* of a unit of V */
  static constexpr int v_units = tile_n / v_keys;            /* of a consumer's columns of a tile */
  static constexpr int v_slices = columns / EA_HOPPER_SLICE; /* of a consumer */
  static constexpr int v_slice_bytes = v_keys * EA_HOPPER_SLICE_BYTES;
  static constexpr int ring_barriers = 2 * EA_WIDE_MAX_SLOTS + 2; /* of two rings; rows_written, sums_written */

  static_assert(DIM_V == 2 * columns && slices % UNIT_SLICES == 0, "what units are cut for");
  static_assert(!LATENT || UNIT_SLICES == 1, "a slice a unit");

  EA_DEVICE ea_wide_shape plan_shape() {
    const ea_wide_shape shape = {0, DIM, DIM_V, LATENT, UNIT_SLICES};
    return shape;
  }
  EA_DEVICE ea_wide_smem layout() { return ea_wide_smem_layout(plan_shape(), 0); }
  EA_DEVICE int first_row(int tid) { return tid % 128 / 32 * 16 + tid % 32 / 4; } /* both have the same rows */
};

/* Of a consumer, `side`; round: one of two. A number of each row, for the other consumer: maxima, references or sums.
 */
template <class Shape> EA_DEVICE uint32_t row_numbers(ea_smem_plan<Shape> smem, uint32_t side, uint32_t round) {
  return smem.base + (uint32_t)Shape::layout().maxima + (round * 2 + side) * (Shape::tile_m * 4);
}
template <class Shape> EA_DEVICE uint32_t p_tile(ea_smem_plan<Shape> smem, uint32_t side, uint32_t round) {
  return smem.base + (uint32_t)Shape::layout().p + (round * 2 + side) * EA_WIDE_P_BYTES;
}
template <class Shape> EA_DEVICE uint32_t ring_units(ea_smem_plan<Shape> smem, uint32_t side, uint32_t stages) {
  return smem.base + (uint32_t)Shape::layout().ring + side * stages * Shape::unit_bytes;
}
/* The first stage's pair. */
template <class Shape> EA_DEVICE uint32_t unit_barriers(ea_smem_plan<Shape> smem, uint32_t side) {
  return ring_barriers(smem) + side * (EA_WIDE_MAX_SLOTS * barrier_pair_bytes);
}
/* Barriers of the two consumers: one's rows are written, the maxima or references; the sums. */
template <class Shape> EA_DEVICE uint32_t rows_written(ea_smem_plan<Shape> smem) {
  return unit_barriers(smem, 2);
}
template <class Shape> EA_DEVICE uint32_t sums_written(ea_smem_plan<Shape> smem) {
  return rows_written(smem) + 2 * barrier_bytes;
}

/* Named barriers; 0 is __syncthreads'. */
typedef enum ea_wide_barrier {
  BARRIER_PRODUCER = 1,
  BARRIER_CONSUMERS = 2,
  BARRIER_CONSUMER = 3, /* of the first, and of the second after it */
  BARRIER_GATHER = 5,   /* of the threads that fill a ring, likewise */
  BARRIER_P = 7         /* the first consumer's probabilities are in shared memory; and the second's */
} ea_wide_barrier;

/* ---- a consumer's ring ---------------------------------------------------------------------------- */

/* Its barriers and units, and where one side stands in it. */
typedef struct ea_unit_ring {
  uint32_t barriers, units, stages;
  ea_ring ring;
} ea_unit_ring;

EA_DEVICE uint32_t unit_full(ea_unit_ring ring) {
  return ring.barriers + stage_of(ring.ring) * barrier_pair_bytes;
}
EA_DEVICE uint32_t unit_empty(ea_unit_ring ring) {
  return ring.barriers + barrier_bytes + stage_of(ring.ring) * barrier_pair_bytes;
}
template <class Shape> EA_DEVICE uint32_t unit_address(ea_unit_ring ring) {
  return ring.units + stage_of(ring.ring) * Shape::unit_bytes;
}
EA_DEVICE void unit_advance(ea_unit_ring *ring) {
  ring_advance(&ring->ring, ring->stages);
}
template <class Shape> EA_DEVICE ea_unit_ring unit_ring(const ea_cta<Shape> &cta, uint32_t side) {
  const uint32_t stages = Shape::latent ? Shape::slices /* a constant */
                                        : (uint32_t)ea_wide_slots(Shape::plan_shape(), cta.launch.scores.stages);
  return {unit_barriers(cta.smem, side), ring_units(cta.smem, side, stages), stages, {0}};
}

/* ---- what the consumers exchange --------------------------------------------------------------------- */

/* A number of each of a thread's rows, for the other consumer. written: the barriers that say so. */
template <class Shape>
EA_DEVICE void write_rows(const ea_cta<Shape> &cta, uint32_t written, uint32_t side, uint32_t round, int tid,
                          const float x[2]) {
  if (tid % 4 == 0) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      st_shared_f32(row_numbers(cta.smem, side, round) + (uint32_t)(Shape::first_row(tid) + h * 8) * 4, x[h]);
    }
  }
  mbarrier_arrive(written + side * barrier_bytes);
}
template <class Shape>
EA_DEVICE void read_rows(const ea_cta<Shape> &cta, uint32_t written, uint32_t phase, uint32_t side, uint32_t round,
                         int tid, float x[2]) {
  mbarrier_wait(written + side * barrier_bytes, phase);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    x[h] = ld_shared_f32(row_numbers(cta.smem, side, round) + (uint32_t)(Shape::first_row(tid) + h * 8) * 4);
  }
}

/* Rows' sums of both consumers' tiles, the same in both. */
template <class Shape>
EA_DEVICE void add_sums(const ea_cta<Shape> &cta, uint32_t written, uint32_t phase, uint32_t side, uint32_t round,
                        int tid, float sum[2]) {
  float others[2];
#pragma unroll
  for (int h = 0; h < 2; h++) sum[h] = quad_sum(sum[h]);
  write_rows(cta, written, side, round, tid, sum);
  read_rows(cta, written, phase, 1 - side, round, tid, others);
#pragma unroll
  for (int h = 0; h < 2; h++) sum[h] += others[h];
  bar_sync(BARRIER_CONSUMERS, 256); /* both have read before either writes again */
}

/* P for the other consumer: 64 x 64 under the 128-byte swizzle. */
template <int WORDS>
EA_DEVICE void write_probabilities(uint32_t side, uint32_t buffer, int tid, const uint32_t (&p)[WORDS]) {
  const int row = tid % 128 / 32 * 16 + tid % 16;
  const uint32_t to = buffer + (uint32_t)row * 128;
#pragma unroll
  for (int step = 0; step < WORDS / 4; step++) {
    stmatrix_x4(to + (uint32_t)((step * 2 + tid % 32 / 16) ^ (row & 7)) * 16, p + step * 4);
  }
  fence_proxy_async_shared();
  bar_arrive(BARRIER_P + (int)side, 256);
}

/* ---- the block's beginning -------------------------------------------------------------------------- */

/* Tensor maps, barriers, and the work tile before the first: by one thread. */
template <class Shape> EA_DEVICE void init_block(const ea_cta<Shape> &cta) {
  const ea_hopper_launch &launch = cta.launch;
  if (launch.scores.q_aligned) tensor_map_prefetch(&launch.q);
  if (launch.kv_boxes) {
    tensor_map_prefetch(&launch.k);
    tensor_map_prefetch(&launch.v);
  }
  if (launch.pool_boxes) {
    tensor_map_prefetch(&launch.k_pool);
    tensor_map_prefetch(&launch.v_pool);
  }
  mbarrier_init(q_full(cta.smem), 128);
  mbarrier_init(q_empty(cta.smem), 8);
  for (uint32_t side = 0; side < 2; side++) {
    ea_unit_ring ring = unit_ring(cta, side);
    for (uint32_t stage = 0; stage < ring.stages; stage++) {
      mbarrier_init(unit_full(ring), Shape::gather_threads);
      mbarrier_init(unit_empty(ring), 4);
      unit_advance(&ring);
    }
    mbarrier_init(rows_written(cta.smem) + side * barrier_bytes, 128);
    mbarrier_init(sums_written(cta.smem) + side * barrier_bytes, 128);
  }
  for (uint32_t n = 0; n < EA_HOPPER_ITEMS; n++) mbarrier_init(work_done(cta.smem) + n * barrier_bytes, 8);
  fence_mbarrier_init();
  last_work(cta).to_write()->number = UINT32_MAX;
}

#endif
