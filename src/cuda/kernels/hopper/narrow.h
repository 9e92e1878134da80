/* The kernels for head dimensions up to 256 (d64_256.cu): their constants, their shared memory, and how whole tiles of
 * K and V come into it.
 *
 * Tiles of new tokens come by TMA. A tile that holds a prefix key is gathered by the producer's 128
 * threads with cp.async, slot by slot, and rows that are not there are zeros; so are tiles of rows that TMA
 * cannot read (not aligned to 16 bytes). 8-bit caches are widened on this way. Rows behind a sequence's end that TMA
 * brings along belong to somebody else: no query sees them, and what a NaN of theirs could do is taken care of like any
 * other hidden NaN's. */
#ifndef EA_CUDA_KERNELS_HOPPER_NARROW_H
#define EA_CUDA_KERNELS_HOPPER_NARROW_H

#include "cuda/kernels/hopper/load.h"
#include "plan/hopper.h"

/* The Shape of these kernels (pipeline.h says what each needs). */
template <int DIM, int DIM_V, int CONSUMERS, int TILE_N, int CONSUMER_REGISTERS, int PRODUCER_REGISTERS,
          ea_hopper_calls CALLS>
struct ea_narrow_traits {
  static constexpr int dim = DIM, dim_v = DIM_V;
  static constexpr int consumers = CONSUMERS; /* warpgroups of 64 query rows each */
  static constexpr int tile_m = CONSUMERS * 64, tile_n = TILE_N, step_keys = TILE_N;
  static constexpr int threads = (CONSUMERS + 1) * 128, gather_threads = 128;
  static constexpr int consumer_registers = CONSUMER_REGISTERS, producer_registers = PRODUCER_REGISTERS;
  static constexpr ea_hopper_calls calls = CALLS;
  static constexpr int slices = (DIM + EA_HOPPER_SLICE - 1) / EA_HOPPER_SLICE;
  static constexpr int slices_v = (DIM_V + EA_HOPPER_SLICE - 1) / EA_HOPPER_SLICE;
  static constexpr int slice_bytes = TILE_N * EA_HOPPER_SLICE_BYTES; /* one slice of a tile */
  static constexpr int k_bytes = slices * slice_bytes, v_bytes = slices_v * slice_bytes;
  static constexpr int ring_barriers = 2 * EA_HOPPER_MAX_STAGES; /* of K, then of V */

  /* Whether registers suffice for the probabilities of two tiles: then a tile's exponentials run beside the product of
   * the one before. */
  static constexpr bool two_p = DIM_V <= 192;
  /* Likewise for what a warp knows of its work tile and of itself: read anew at each use otherwise. */
  static constexpr bool keeps_work = DIM != 192;
  /* Likewise for a mainloop apart where tiles may be gathered: the other one has no instruction for them. */
  static constexpr bool gather_loop = DIM <= 128;

  static_assert(CONSUMERS * 128 * CONSUMER_REGISTERS + 128 * PRODUCER_REGISTERS <= 65536 / threads / 8 * 8 * threads,
                "setmaxnreg deals out what the block began with, and waits for ever for more");
  static_assert(DIM % 16 == 0 && DIM_V % 16 == 0 && TILE_N % 16 == 0, "the products' steps");
  static_assert(slice_bytes % 1024 == 0, "slices keep the swizzle's alignment");

  EA_DEVICE ea_hopper_smem layout() {
    const ea_hopper_shape shape = {0, DIM, DIM_V, CONSUMERS, TILE_N, 0, EA_CALLS_ANY};
    return ea_hopper_smem_layout(shape, 0);
  }
  EA_DEVICE int first_row(int tid) { return (tid - 128) / 32 * 16 + tid % 32 / 4; }
};

/* K and V of a stage lie behind each other, and have barriers apart. */
template <class Shape> EA_DEVICE uint32_t k_tile(ea_smem_plan<Shape> smem, uint32_t stage) {
  return smem.base + (uint32_t)Shape::layout().k + stage * (Shape::k_bytes + Shape::v_bytes);
}
template <class Shape> EA_DEVICE uint32_t v_tile(ea_smem_plan<Shape> smem, uint32_t stage) {
  return smem.base + (uint32_t)Shape::layout().v + stage * (Shape::k_bytes + Shape::v_bytes);
}
template <class Shape> EA_DEVICE uint32_t k_full(ea_smem_plan<Shape> smem, uint32_t stage) {
  return ring_barriers(smem) + stage * barrier_pair_bytes;
}
template <class Shape> EA_DEVICE uint32_t k_empty(ea_smem_plan<Shape> smem, uint32_t stage) {
  return k_full(smem, stage) + barrier_bytes;
}
template <class Shape> EA_DEVICE uint32_t v_full(ea_smem_plan<Shape> smem, uint32_t stage) {
  return ring_barriers(smem) + (EA_HOPPER_MAX_STAGES + stage) * barrier_pair_bytes;
}
template <class Shape> EA_DEVICE uint32_t v_empty(ea_smem_plan<Shape> smem, uint32_t stage) {
  return v_full(smem, stage) + barrier_bytes;
}

/* Named barriers; 0 is __syncthreads'. */
typedef enum ea_narrow_barrier {
  BARRIER_TURN = 1, /* a consumer's turn to issue products, and of the others after it: three at most */
  BARRIER_PRODUCER = 4
} ea_narrow_barrier;

/* ---- by cp.async and by plain loads ------------------------------------------------------------- */

/* One tile of K or V by cp.async, 128 bytes of a row at a time. Rows that are not there are zeros. WHOLE: all are, and
 * the slices are full of columns. */
template <class Shape, bool WHOLE, int SLICES>
EA_DEVICE void copy_rows(const ea_lane_rows &rows, int tid, int dim, uint32_t dst) {
  const int row0 = tid / 8, chunk = tid % 8;
  const uint32_t first = dst + (uint32_t)(row0 * 128 + (chunk ^ (row0 & 7)) * 16);
#pragma unroll
  for (int pass = 0; pass < gather_passes<Shape>; pass++) {
    const char *row = row_of_pass(rows, tid, pass);
    const bool there = WHOLE || is_there(rows, tid, pass);
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
      const bool wanted = WHOLE || (there && slice * EA_HOPPER_SLICE + chunk * CHUNK < dim);
      cp_async_16(first + (uint32_t)(pass * pass_rows<Shape> * 128 + slice * Shape::slice_bytes),
                  row + slice * EA_HOPPER_SLICE_BYTES, wanted ? 16 : 0);
    }
  }
}

template <bool OF_V, class Shape>
EA_DEVICE void gather_rows(const ea_cta<Shape> &cta, ea_work work, int tid, int tile, uint32_t slot, uint32_t dst) {
  constexpr int slices = OF_V ? Shape::slices_v : Shape::slices;
  const int dim = OF_V ? cta.call.head_dim_v : cta.call.head_dim;
  const ea_lane_rows rows = lane_rows<OF_V>(cta, work, tid, tile, slot);
  if (all_there<Shape>(rows) && dim == slices * EA_HOPPER_SLICE) {
    copy_rows<Shape, true, slices>(rows, tid, dim, dst);
  } else {
    copy_rows<Shape, false, slices>(rows, tid, dim, dst);
  }
}

/* The same by plain loads and stores, for rows that are not aligned or have 8-bit elements. */
template <class Shape>
EA_DEVICE void load_rows_plain(const ea_cta<Shape> &cta, ea_work work, int tid, int tile, uint32_t dst, bool of_v) {
  const ea_call &call = cta.call;
  const int slices = of_v ? Shape::slices_v : Shape::slices;
#pragma unroll 1
  for (int index = tid; index < Shape::tile_n * slices * 8; index += 128) {
    const int row = index / (slices * 8), chunk = index % (slices * 8), key = tile * Shape::tile_n + row;
    const uint32_t to = dst + (uint32_t)(chunk / 8 * Shape::slice_bytes + row * 128 + ((chunk % 8) ^ (row & 7)) * 16);
    const char *source = key_row(cta, work, key, of_v);
    const int dim = of_v ? call.head_dim_v : call.head_dim;
    if (source == 0 || chunk * CHUNK >= dim) {
      st_shared_v4(to, make_uint4(0, 0, 0, 0));
    } else {
      const bool cached = key < work->view.prefix;
      load_row_chunk(to, source, chunk, dim,
                     cached ? cached_source(call, cta.launch.scores) : fresh_source(cta.launch.scores));
    }
  }
}

/* A tile of K or V by all threads, when its stage is empty. Nobody stays until its copies are there: they arrive by
 * themselves. slot: the lane's cache slot (tile_slots). */
template <bool OF_V, class Shape>
EA_DEVICE void gather_tile(const ea_cta<Shape> &cta, ea_work work, int tid, int tile, uint32_t slot, ea_ring ring) {
  const uint32_t stage = stage_of(ring), full = OF_V ? v_full(cta.smem, stage) : k_full(cta.smem, stage);
  const uint32_t dst = OF_V ? v_tile(cta.smem, stage) : k_tile(cta.smem, stage);
  PRODUCER_MARK_OF(cta, SLOT, OF_V, tile);
  mbarrier_wait(full + barrier_bytes, phase_of(ring) ^ 1);
  PRODUCER_MARK_OF(cta, COPY, OF_V, tile);
  const bool aligned = rows_are_aligned(cta, work, tile);
  if (aligned) {
    gather_rows<OF_V>(cta, work, tid, tile, slot, dst);
  } else {
    load_rows_plain(cta, work, tid, tile, dst, OF_V);
  }
  if (aligned) {
    cp_async_mbarrier_arrive_noinc(full);
  } else {
    cp_async_wait_all();
    fence_proxy_async_shared();
    mbarrier_arrive(full);
  }
}

/* ---- by TMA ------------------------------------------------------------------------------------- */

/* One tile, issued by one thread. The barrier counts 128 arrivals, as a gathered tile brings them. */
template <class Shape, int SLICES>
EA_DEVICE void issue_tile(const ea_tensor_map *map, uint32_t full, uint32_t dst, int kv_head, int token) {
  mbarrier_arrive_expect_tx(full, SLICES * Shape::slice_bytes);
  mbarrier_arrive_many(full, 127);
#pragma unroll
  for (int slice = 0; slice < SLICES; slice++) {
    tma_load_3d(dst + (uint32_t)(slice * Shape::slice_bytes), map, full, slice * EA_HOPPER_SLICE, kv_head, token);
  }
}

/* The same by a warp that is here whole, with operands that are the same in all lanes: only so are they in uniform
 * registers, where the instruction wants them. */
template <class Shape, int SLICES>
EA_DEVICE void load_tile(const ea_tensor_map *map, uint32_t full, uint32_t dst, int kv_head, int token) {
  if (elect_one()) issue_tile<Shape, SLICES>(map, full, dst, kv_head, token);
  __syncwarp();
}

/* ---- barriers ------------------------------------------------------------------------------------- */

/* Q's and the first K's full barriers are made by the thread that issues the first loads, the others meanwhile. */
template <class Shape> EA_DEVICE void init_first_barriers(const ea_cta<Shape> &cta) {
  mbarrier_init(q_full(cta.smem), 128);
  mbarrier_init(k_full(cta.smem, 0), 128);
  fence_mbarrier_init();
}
template <class Shape> EA_DEVICE void init_other_barriers(const ea_cta<Shape> &cta) {
  constexpr int consumer_warps = Shape::consumers * 4;
  mbarrier_init(q_empty(cta.smem), consumer_warps);
#pragma unroll 1
  for (uint32_t stage = 0; stage < (uint32_t)cta.launch.scores.stages; stage++) {
    if (stage > 0) mbarrier_init(k_full(cta.smem, stage), 128);
    mbarrier_init(k_empty(cta.smem, stage), consumer_warps);
    mbarrier_init(v_full(cta.smem, stage), 128);
    mbarrier_init(v_empty(cta.smem, stage), consumer_warps);
  }
  for (uint32_t n = 0; n < EA_HOPPER_ITEMS; n++) {
    mbarrier_init(work_done(cta.smem) + n * barrier_bytes, consumer_warps);
  }
  fence_mbarrier_init();
}

#endif
