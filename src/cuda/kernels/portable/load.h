/* Loading: rows of Q, and tiles of K and V into the ring.
 *
 * The address of each row of a tile is found by one thread, some time before the tile is copied: fetch_slot asks memory
 * for the cache slot, write_row_table leaves the address in shared memory. load_tile's copies start from there. Tables
 * of two tiles are kept. */
#ifndef EA_CUDA_KERNELS_PORTABLE_LOAD_H
#define EA_CUDA_KERNELS_PORTABLE_LOAD_H

#include <stdint.h>

#include "cuda/kernels/element.h"
#include "cuda/kernels/portable/cta.h"
#include "cuda/kernels/portable/pipeline.h"
#include "cuda/kernels/portable/scheduler.h"
#include "cuda/kernels/ptx.h"
#include "cuda/kernels/rows.h"
#include "plan/portable.h"

/* How a tile can be copied. */
typedef enum {
  EA_COPY_WHOLE,   /* by cp.async, every row and every column there */
  EA_COPY_PARTIAL, /* by cp.async, zeros where there is nothing */
  EA_COPY_ANY      /* widening 8-bit elements or reading them one by one */
} ea_copy;

/* ---- row tables ---- */

/* A tile's table: addresses of its K rows and V rows (0: zeros), its ea_copy, and how many of the rows come from the
 * cache. */
template <class Shape> EA_DEVICE uint32_t row_table(const ea_cta<Shape> &cta, int tile) {
  return cta.base + (uint32_t)(cta.layout.rows + (tile & 1) * EA_PORTABLE_TABLE_BYTES(Shape::TILE_N));
}
template <class Shape> EA_DEVICE uint32_t table_copy(uint32_t table) {
  return table + 2 * Shape::TILE_N * 8;
}
template <class Shape> EA_DEVICE uint32_t table_prefix_rows(uint32_t table) {
  return table_copy<Shape>(table) + 4;
}

/* slot: of this thread's key in the tile, where that is cached; the launch sees that 32 bits suffice. The first TILE_N
 * threads have K's rows, the next V's. */
template <class Shape>
EA_DEVICE void fetch_slot(const ea_call &call, const ea_cta<Shape> &cta, int tile, uint32_t &slot) {
  const ea_work_tile *work = work_tile(cta);
  const int tid = thread_index(cta), key = tile * Shape::TILE_N + tid % Shape::TILE_N;
  if (tid < 2 * Shape::TILE_N && key >= work->keys.first && key < ea_min_i32(work->keys.end, work->view.prefix)) {
    slot = (uint32_t)ea_load_index(call.kv_indices, call.index_dtype, work->prefix_base + key);
  }
}

/* Which way a tile's rows can be copied, and how many of them come from the cache. */
template <class Shape>
EA_DEVICE void write_copy(const ea_call &call, const ea_portable_launch &launch, const ea_work_tile *work, int tile,
                          uint32_t table) {
  const int j0 = tile * Shape::TILE_N, prefix_rows = work->view.prefix - j0;
  const ea_source cached = cached_source(call, launch);
  const bool cached_fast = cached.aligned && cached.element == EA_ELEMENT_16BIT;
  const bool fresh_fast = fresh_source(launch).aligned;
  const bool by_cp_async = (prefix_rows <= 0 || cached_fast) && (prefix_rows >= Shape::TILE_N || fresh_fast);
  const bool rows_there = j0 >= work->keys.first && j0 + Shape::TILE_N <= work->keys.end;
  const bool whole = rows_there && call.head_dim == Shape::DIM && call.head_dim_v == Shape::DIM_V;
  const ea_copy how = !by_cp_async ? EA_COPY_ANY : whole ? EA_COPY_WHOLE : EA_COPY_PARTIAL;
  st_shared_b32(table_copy<Shape>(table), (uint32_t)how);
  st_shared_b32(table_prefix_rows<Shape>(table), (uint32_t)ea_max_i32(prefix_rows, 0));
}

/* slot: as fetch_slot left it for the tile. */
template <class Shape>
EA_DEVICE void write_row_table(const ea_call &call, const ea_portable_launch &launch, const ea_cta<Shape> &cta,
                               int tile, uint32_t slot) {
  const int tid = thread_index(cta);
  if (tid >= 2 * Shape::TILE_N) return;
  const ea_work_tile *work = work_tile(cta);
  const bool of_v = tid >= Shape::TILE_N;
  const int j0 = tile * Shape::TILE_N, key = j0 + tid % Shape::TILE_N;
  const char *row = 0;
  if (key >= work->keys.first && key < work->keys.end) {
    if (key < work->view.prefix) {
      const int bytes = cached_source(call, launch).element == EA_ELEMENT_16BIT ? 2 : 1;
      row =
          cached_row(of_v ? call.v_cache : call.k_cache, slot, call.page_size, launch.page_magic, work->kv_head, bytes);
    } else {
      row = token_row(of_v ? call.v : call.k, work->token0, key - work->view.prefix, work->kv_head);
    }
  }
  st_shared_b64(row_table(cta, tile) + (uint32_t)tid * 8, (uint64_t)row); /* V's rows follow K's */
  if (tid == 0) write_copy<Shape>(call, launch, work, tile, row_table(cta, tile));
}

/* ---- tiles ---- */

/* Copying: eight threads a row, 128 bytes of it at a time, so that a row's address is read once
 * and every step from there is a constant. rows: where the table has the addresses. */
template <class Shape> EA_DEVICE void read_row_addresses(const char *source[Shape::PASSES], int tid, uint32_t rows) {
#pragma unroll
  for (int pass = 0; pass < Shape::PASSES; pass++) {
    source[pass] = (const char *)ld_shared_b64(rows + (tid / 8 + pass * Shape::PASS_ROWS) * 8) + tid % 8 * 16;
  }
}

/* A tile that is all there. */
template <class Shape, int PITCH>
EA_DEVICE void copy_whole(const char *const source[Shape::PASSES], int tid, uint32_t dst) {
  const uint32_t first = tile_address(dst, tid / 8, tid % 8, PITCH);
#pragma unroll
  for (int pass = 0; pass < Shape::PASSES; pass++) {
#pragma unroll
    for (int chunk = 0; chunk < PITCH / CHUNK; chunk += 8) {
      cp_async_16(first + pass * Shape::PASS_ROWS * PITCH * 2 + chunk * 16, source[pass] + chunk * 16, 16);
    }
  }
}

/* Any other. rows: where the table has the addresses. */
template <class Shape, int PITCH>
EA_DEVICE void copy_partial(const ea_call &call, const ea_portable_launch &launch, int tid, uint32_t dst, uint32_t rows,
                            uint32_t table, int dim, ea_copy how) {
  const int first_row = tid / 8, chunk0 = tid % 8;
  const uint32_t first = tile_address(dst, first_row, chunk0, PITCH);
  if (how == EA_COPY_PARTIAL) {
#pragma unroll 1
    for (int row = 0; row < Shape::TILE_N; row += Shape::PASS_ROWS) {
      const char *source = (const char *)ld_shared_b64(rows + (first_row + row) * 8);
#pragma unroll 1
      for (int chunk = 0; chunk < PITCH / CHUNK; chunk += 8) {
        const bool there = source != 0 && (chunk + chunk0) * CHUNK < dim;
        cp_async_16(first + row * PITCH * 2 + chunk * 16,
                    there ? source + (chunk + chunk0) * 16 : (const char *)call.q.data, there ? 16 : 0);
      }
    }
    return;
  }
  const int chunks = PITCH / CHUNK, total = Shape::TILE_N * chunks;
  const int prefix_rows = (int)ld_shared_b32(table_prefix_rows<Shape>(table));
  const ea_source fresh = fresh_source(launch), cached = cached_source(call, launch);
#pragma unroll 1
  for (int index = tid; index < total; index += Shape::THREADS) {
    const int row = index / chunks, chunk = index % chunks;
    const char *source = (const char *)ld_shared_b64(rows + (uint32_t)row * 8);
    const uint32_t address = tile_address(dst, row, chunk, PITCH);
    if (source == 0 || chunk * CHUNK >= dim) {
      st_shared_v4(address, make_uint4(0, 0, 0, 0));
    } else {
      load_row_chunk(address, source, chunk, dim, row < prefix_rows ? cached : fresh);
    }
  }
}

/* Starts the copies of a tile; the stage's full barrier completes when all threads' are done. */
template <class Shape>
EA_DEVICE void load_tile(const ea_call &call, const ea_portable_launch &launch, const ea_cta<Shape> &cta, int tile,
                         int stage) {
  const uint32_t k = cta.ring + (uint32_t)(stage * cta.layout.stage_bytes);
  const uint32_t k_rows = row_table(cta, tile);
  const uint32_t v = k + Shape::TILE_N * Shape::DIM * 2, v_rows = k_rows + Shape::TILE_N * 8;
  const int tid = thread_index(cta);
  const ea_copy how = (ea_copy)ld_shared_b32(table_copy<Shape>(k_rows));
  if (how == EA_COPY_WHOLE) {
    const char *k_source[Shape::PASSES], *v_source[Shape::PASSES];
    read_row_addresses<Shape>(k_source, tid, k_rows);
    read_row_addresses<Shape>(v_source, tid, v_rows);
    copy_whole<Shape, Shape::DIM>(k_source, tid, k);
    copy_whole<Shape, Shape::DIM_V>(v_source, tid, v);
  } else {
    copy_partial<Shape, Shape::DIM>(call, launch, tid, k, k_rows, k_rows, call.head_dim, how);
    copy_partial<Shape, Shape::DIM_V>(call, launch, tid, v, v_rows, k_rows, call.head_dim_v, how);
    __threadfence_block(); /* plain stores, if any: before the arrival below */
  }
  cp_async_mbarrier_arrive_noinc(full_barrier(cta, stage));
  mbarrier_arrive(full_barrier(cta, stage));
}

/* Copies tile t+S-1 into the stage of tile t-1, once all warps are done with that. */
template <class Shape>
EA_DEVICE void load_ahead(const ea_call &call, const ea_portable_launch &launch, const ea_cta<Shape> &cta, int tile,
                          ea_ring ring) {
  const ea_work_tile *work = work_tile(cta);
  if (tile + cta.stages - 1 >= work->end_tile) return;
  const int stage = ring_stage(ring), before = stage == 0 ? cta.stages - 1 : stage - 1;
  if (tile > work->first_tile) mbarrier_wait(empty_barrier(cta, before), (ring.position ^ (uint32_t)(stage == 0)) & 1);
  load_tile(call, launch, cta, tile + cta.stages - 1, before);
}

/* ---- what comes before the mainloop ---- */

template <class Shape>
EA_DEVICE void load_q(const ea_call &call, const ea_portable_launch &launch, const ea_cta<Shape> &cta) {
  const int chunks = Shape::DIM / CHUNK;
  const ea_source source = {EA_ELEMENT_16BIT, launch.q_aligned != 0};
  const ea_work_tile *work = work_tile(cta);
#pragma unroll 4
  for (int index = thread_index(cta); index < Shape::TILE_M * chunks; index += Shape::THREADS) {
    const int row = index / chunks, chunk = index % chunks;
    const uint32_t address = tile_address(cta.q, row, chunk, Shape::DIM);
    const bool row_there = row < work->rows, columns_there = chunk * CHUNK < call.head_dim; /* one branch for both */
    if (!row_there || !columns_there) {
      st_shared_v4(address, make_uint4(0, 0, 0, 0));
      continue;
    }
    const int query = row_query(work, row, cta.group);
    const int64_t head = (int64_t)work->kv_head * cta.group + row_head(work, row, cta.group);
    load_row_chunk(address, token_row(call.q, work->token0, query, head), chunk, call.head_dim, source);
  }
}

/* Q, the first S-1 tiles, and the table of the next. */
template <class Shape>
EA_DEVICE void prologue(const ea_call &call, const ea_portable_launch &launch, const ea_cta<Shape> &cta, int first_tile,
                        uint32_t &slot) {
  load_q(call, launch, cta);
  fetch_slot(call, cta, first_tile, slot);
  write_row_table(call, launch, cta, first_tile, slot);
  for (int ahead = 0; ahead < cta.stages - 1; ahead++) {
    __syncthreads();
    if (first_tile + ahead < work_tile(cta)->end_tile) load_tile(call, launch, cta, first_tile + ahead, ahead);
    fetch_slot(call, cta, first_tile + ahead + 1, slot);
    write_row_table(call, launch, cta, first_tile + ahead + 1, slot);
  }
  cp_async_wait_all();
  __syncthreads(); /* Q is there, and the addresses of tile first_tile + S - 1 */
}

#endif
