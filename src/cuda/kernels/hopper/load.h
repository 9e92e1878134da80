/* How rows reach shared memory, for the producers of all Hopper kernels: Q (by TMA or by plain loads), where a key's
 * row begins, and what the threads that gather a tile by cp.async know of its rows. */
#ifndef EA_CUDA_KERNELS_HOPPER_LOAD_H
#define EA_CUDA_KERNELS_HOPPER_LOAD_H

#include "cuda/kernels/hopper/scheduler.h"

/* ---- queries ---------------------------------------------------------------------------------- */

/* Q by plain loads, where its rows are not aligned. */
template <class Shape> EA_DEVICE void copy_q_rows(const ea_cta<Shape> &cta, ea_work work, int tid) {
  const ea_source how = {EA_ELEMENT_16BIT, false};
  const ea_call &call = cta.call;
#pragma unroll 1
  for (int index = tid; index < work->rows * Shape::slices * 8; index += 128) {
    const ea_work_tile *work_tile = work.get();
    const int row = index / (Shape::slices * 8), chunk = index % (Shape::slices * 8);
    const int t = row_token<Shape>(cta.launch, row);
    const int64_t token = work_tile->token0 + work_tile->i0 + t, head = work_tile->first_head + row - t * call.group;
    const char *source = (const char *)call.q.data + (token * call.q.token_stride + head * call.q.head_stride) * 2;
    const uint32_t to = q_tile(cta.smem) + (uint32_t)(chunk / 8 * Shape::tile_m * EA_HOPPER_SLICE_BYTES + row * 128 +
                                                      ((chunk % 8) ^ (row & 7)) * 16);
    if (chunk * CHUNK < call.head_dim) {
      load_row_chunk(to, source, chunk, call.head_dim, how);
    } else {
      st_shared_v4(to, make_uint4(0, 0, 0, 0));
    }
  }
}

/* Rows that no query ever fills become zeros: what is in shared memory at first, a NaN perhaps, would keep the softmax
 * busy. All threads come here, before the block begins. */
template <class Shape> EA_DEVICE void clear_spare_rows(const ea_cta<Shape> &cta) {
  const int filled = cta.launch.block_tokens * cta.call.group;
  const int chunks = (Shape::tile_m - filled) * 8; /* of a slice */
#pragma unroll 1
  for (int index = (int)threadIdx.x; index < chunks * Shape::slices; index += Shape::threads) {
    const int slice = index / chunks, chunk = index % chunks;
    st_shared_v4(q_tile(cta.smem) +
                     (uint32_t)(slice * Shape::tile_m * EA_HOPPER_SLICE_BYTES + filled * 128 + chunk * 16),
                 make_uint4(0, 0, 0, 0));
  }
  fence_proxy_async_shared();
}

/* Q of a work tile, when the one before it is no longer needed, by all threads. Its barrier counts 128 arrivals. */
template <class Shape> EA_DEVICE void load_q_by_threads(const ea_cta<Shape> &cta, ea_work work, int tid) {
  PRODUCER_MARK(cta, SLOT_Q, 0);
  mbarrier_wait(q_empty(cta.smem), work.q_phase() ^ 1);
  PRODUCER_MARK(cta, COPY_Q, 0);
  copy_q_rows(cta, work, tid);
  fence_proxy_async_shared();
  mbarrier_arrive(q_full(cta.smem));
}

/* The same by TMA, where its rows are aligned, issued by one thread. */
template <class Shape> EA_DEVICE void issue_q(const ea_cta<Shape> &cta, int head, int token) {
  const uint32_t full = q_full(cta.smem);
  mbarrier_arrive_expect_tx(
      full, (uint32_t)(cta.launch.block_tokens * cta.call.group * Shape::slices * EA_HOPPER_SLICE_BYTES));
  mbarrier_arrive_many(full, 127);
#pragma unroll
  for (int slice = 0; slice < Shape::slices; slice++) {
    tma_load_3d(q_tile(cta.smem) + (uint32_t)(slice * Shape::tile_m * EA_HOPPER_SLICE_BYTES), &cta.launch.q, full,
                slice * EA_HOPPER_SLICE, head, token);
  }
}
/* And by one whole warp, when the one before it is no longer needed. */
template <class Shape> EA_DEVICE void load_q(const ea_cta<Shape> &cta, ea_work work) {
  const ea_work_tile *work_tile = work.get();
  PRODUCER_MARK(cta, SLOT_Q, 0);
  mbarrier_wait(q_empty(cta.smem), (work_tile->number % 2) ^ 1);
  PRODUCER_MARK(cta, COPY_Q, 0);
  const int head = uniform(work_tile->first_head), token = uniform((int)work_tile->token0 + work_tile->i0);
  if (elect_one()) issue_q(cta, head, token);
  __syncwarp();
}

/* Q's rows on their way to L2, while its place in shared memory is still taken. */
template <class Shape> EA_DEVICE void prefetch_q(const ea_cta<Shape> &cta, ea_work work) {
  const int head = uniform(work->first_head), token = uniform((int)work->token0 + work->i0);
  if (elect_one()) {
#pragma unroll
    for (int slice = 0; slice < Shape::slices; slice++) {
      tma_prefetch_3d(&cta.launch.q, slice * EA_HOPPER_SLICE, head, token);
    }
  }
  __syncwarp();
}

/* ---- keys ------------------------------------------------------------------------------------- */

/* Where a key's row begins; NULL where it is not there. */
template <class Shape> EA_DEVICE const char *key_row(const ea_cta<Shape> &cta, ea_work work, int key, bool of_v) {
  const ea_call &call = cta.call;
  const ea_work_tile *work_tile = work.get();
  if (key < work_tile->keys.first || key >= work_tile->keys.end) return 0;
  if (key < work_tile->view.prefix) {
    const ea_pool &pool = of_v ? call.v_cache : call.k_cache;
    const int64_t slot = ea_load_index(call.kv_indices, call.index_dtype, work_tile->prefix_base + key);
    const int64_t offset = slot_offset(pool, slot, call.page_size, cta.launch.scores.page_magic, work_tile->kv_head);
    return (const char *)pool.data + (call.cache_dtype == call.dtype ? offset * 2 : offset);
  }
  const ea_strided &fresh = of_v ? call.v : call.k;
  const int64_t token = work_tile->token0 + (key - work_tile->view.prefix);
  return (const char *)fresh.data + (token * fresh.token_stride + work_tile->kv_head * fresh.head_stride) * 2;
}

/* Whether cp.async can read all rows of a tile. */
template <class Shape> EA_DEVICE bool rows_are_aligned(const ea_cta<Shape> &cta, ea_work work, int tile) {
  const ea_portable_launch &scores = cta.launch.scores;
  const int cached = work->view.prefix - tile * Shape::tile_n; /* so many rows are of the prefix */
  const bool pool_aligned = scores.cache_aligned && cta.call.cache_dtype == cta.call.dtype;
  return (cached <= 0 || pool_aligned) && (cached >= Shape::tile_n || scores.kv_aligned);
}

/* The first row, of the new tokens' tensors, of a tile of new keys. */
template <class Shape> EA_DEVICE int new_token(ea_work work, int tile) {
  return (int)work->token0 + (tile * Shape::tile_n - work->view.prefix);
}

/* ---- rows of a tile that is gathered -------------------------------------------------------------
 *
 * Eight threads copy a row, so gather_threads gather a tile in passes of an eighth as many rows. Cache slots of a
 * tile's keys, one a lane: of the rows that this warp gathers, number lane % 4 of pass lane / 4. Asked for ahead, so
 * that nobody waits for them. Lanes whose key is not a cached one have 0. */

template <class Shape> constexpr int pass_rows = Shape::gather_threads / 8;
template <class Shape> constexpr int gather_passes = Shape::tile_n / pass_rows<Shape>;
/* The lanes of a warp that have a row. */
template <class Shape>
constexpr uint32_t row_lanes = gather_passes<Shape> * 4 == 32 ? 0xffffffffu : (1u << gather_passes<Shape> * 4 % 32) - 1;

template <class Shape> EA_DEVICE int slot_row(int tid) {
  static_assert(Shape::tile_n <= 8 * pass_rows<Shape>, "a lane a slot");
  return tid % Shape::gather_threads / 32 * 4 + tid % 4 + tid % 32 / 4 * pass_rows<Shape>;
}
EA_DEVICE bool is_cached(const ea_work_tile *work_tile, int key) {
  return key >= work_tile->keys.first && key < ea_min_i32(work_tile->keys.end, work_tile->view.prefix);
}
template <class Shape> EA_DEVICE uint32_t tile_slots(const ea_cta<Shape> &cta, ea_work work, int tid, int tile) {
  const ea_work_tile *work_tile = work.get();
  const int row = slot_row<Shape>(tid), key = tile * Shape::tile_n + row;
  if (row >= Shape::tile_n || !is_cached(work_tile, key)) return 0;
  return (uint32_t)ea_load_index(cta.call.kv_indices, cta.call.index_dtype, work_tile->prefix_base + key);
}

/* Rows of a tile, for those who gather it: where the one of this lane's slot begins, and which lanes have one. Each
 * lane works out one address, and gets those that it copies from by shuffles: a copy then takes two or three
 * instructions of its threads instead of eight, which the products of the consumers' warps would wait for. */
typedef struct ea_lane_rows {
  const char *row; /* somewhere, where there is none */
  uint32_t there;
} ea_lane_rows;

template <bool OF_V, class Shape>
EA_DEVICE ea_lane_rows lane_rows(const ea_cta<Shape> &cta, ea_work work, int tid, int tile, uint32_t slot) {
  const ea_call &call = cta.call;
  const ea_work_tile *work_tile = work.get();
  const int row = slot_row<Shape>(tid), key = tile * Shape::tile_n + row;
  const bool there = row < Shape::tile_n && key >= work_tile->keys.first && key < work_tile->keys.end;
  const char *from = (const char *)call.q.data;
  if (there && key < work_tile->view.prefix) {
    const ea_pool &pool = OF_V ? call.v_cache : call.k_cache;
    const uint64_t magic = cta.launch.scores.page_magic;
    from = (const char *)pool.data + slot_offset(pool, slot, call.page_size, magic, work_tile->kv_head) * 2;
  } else if (there) {
    const ea_strided &fresh = OF_V ? call.v : call.k;
    const int64_t token = work_tile->token0 + (key - work_tile->view.prefix);
    from = (const char *)fresh.data + (token * fresh.token_stride + work_tile->kv_head * fresh.head_stride) * 2;
  }
  return {from, __ballot_sync(0xffffffffu, there)};
}
/* Whether all of a tile's rows are there. */
template <class Shape> EA_DEVICE bool all_there(const ea_lane_rows &rows) {
  return (rows.there & row_lanes<Shape>) == row_lanes<Shape>;
}

EA_DEVICE int lane_of_pass(int tid, int pass) {
  return tid % 32 / 8 + pass * 4;
}
/* This thread's 16 bytes of the first slice of the row that it copies in a pass. */
EA_DEVICE const char *row_of_pass(const ea_lane_rows &rows, int tid, int pass) {
  const uint64_t row = (uint64_t)rows.row;
  const uint32_t low = __shfl_sync(0xffffffffu, (uint32_t)row, lane_of_pass(tid, pass));
  const uint32_t high = __shfl_sync(0xffffffffu, (uint32_t)(row >> 32), lane_of_pass(tid, pass));
  return (const char *)((uint64_t)high << 32 | low) + tid % 8 * 16;
}
EA_DEVICE bool is_there(const ea_lane_rows &rows, int tid, int pass) {
  return rows.there >> lane_of_pass(tid, pass) & 1;
}

#endif
