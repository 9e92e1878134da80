/* The tile scheduler: which work tile a thread block of the grid has. Not persistent: one each. */
#ifndef EA_CUDA_KERNELS_PORTABLE_SCHEDULER_H
#define EA_CUDA_KERNELS_PORTABLE_SCHEDULER_H

#include <stdint.h>

#include "cuda/kernels/portable/cta.h"
#include "cuda/kernels/portable/shape.h"
#include "cuda/kernels/ptx.h"
#include "plan/portable.h"
#include "plan/walk.h"
#include "problem/call.h"

/* Rows of one sequence and K/V head, and the key tiles that they walk. Kept in shared memory: the products need every
 * register, and this is read between them. */
typedef struct ea_work_tile {
  ea_view view;
  int64_t token0;        /* the sequence's first row in q, k, v, out */
  int64_t prefix_base;   /* and in kv_indices */
  ea_key_range keys;     /* visible to some row */
  ea_key_range unmasked; /* tiles between these need no mask */
  int32_t first_tile, end_tile;
  int32_t i0, i1; /* queries */
  int32_t head0;  /* head of row 0 within its group */
  int32_t rows;   /* rows that exist */
  int32_t kv_head;
} ea_work_tile;
static_assert(sizeof(ea_work_tile) <= EA_PORTABLE_BLOCK_BYTES, "its place in the layout");

template <class Shape> EA_DEVICE const ea_work_tile *work_tile(const ea_cta<Shape> &cta) {
  return (const ea_work_tile *)shared_anew(cta.work_tile);
}

/* Query and head (within the GQA group) of a row. */
EA_DEVICE int row_query(const ea_work_tile *work, int row, int group) {
  return work->i0 + (work->head0 + row) / group;
}
EA_DEVICE int row_head(const ea_work_tile *work, int row, int group) {
  return (work->head0 + row) % group;
}

/* Which sequence a block of the grid works on: the last whose first block is not behind it. */
template <class Shape> EA_DEVICE int64_t find_sequence(const ea_call &call, int64_t block) {
  int64_t low = 0, high = call.num_seqs; /* low's first block is never behind: it is 0 for sequence 0 */
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (ea_portable_first_block(call.qo_indptr[middle], middle, call.group, Shape::TILE_M) <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* The work tile of this thread block. False: it is one of the grid's spare blocks. */
template <class Shape>
EA_DEVICE bool find_work_tile(const ea_call &call, const ea_cta<Shape> &cta, ea_work_tile &work) {
  const int group = cta.group;
  /* Longest walks first, those of all heads side by side: were one head's after another's, the last ones would begin
   * late, and multiprocessors wait for them. */
  const uint32_t heads = (uint32_t)call.num_kv_heads;
  const int64_t block = gridDim.x / heads - 1 - blockIdx.x / heads;
  const int64_t seq = find_sequence<Shape>(call, block);
  work.view = ea_view_of(&call, seq);
  work.kv_head = (int32_t)(blockIdx.x % heads);
  work.token0 = call.qo_indptr[seq];
  work.prefix_base = call.kv_indptr[seq];
  const int64_t first_row = (block - ea_portable_first_block(work.token0, seq, group, Shape::TILE_M)) * Shape::TILE_M;
  const int64_t seq_rows = (int64_t)work.view.extend * group;
  if (first_row >= seq_rows) return false;
  work.rows = (int)(seq_rows - first_row < Shape::TILE_M ? seq_rows - first_row : Shape::TILE_M);
  work.i0 = (int)(first_row / group);
  work.head0 = (int)(first_row - (int64_t)work.i0 * group);
  work.i1 = work.i0 + (work.head0 + work.rows - 1) / group + 1;
  work.keys = ea_visible_keys(&work.view, work.i0, work.i1);
  work.unmasked = ea_unmasked_keys(&work.view, work.i0, work.i1);
  work.unmasked.first = ea_max_i32(work.unmasked.first, work.keys.first);
  work.unmasked.end = ea_min_i32(work.unmasked.end, work.keys.end);
  work.first_tile = work.keys.first / Shape::TILE_N;
  work.end_tile =
      work.keys.end > work.keys.first ? (work.keys.end + Shape::TILE_N - 1) / Shape::TILE_N : work.first_tile;
  return true;
}

#endif
