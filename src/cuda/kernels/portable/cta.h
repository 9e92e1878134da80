/* What the functions of the portable kernel know of their thread and thread block (CTA): the plan of its shared memory,
 * how tiles are swizzled there, and which part of the products a warp has. */
#ifndef EA_CUDA_KERNELS_PORTABLE_CTA_H
#define EA_CUDA_KERNELS_PORTABLE_CTA_H

#include <stdint.h>

#include "cuda/kernels/element.h"
#include "cuda/kernels/portable/shape.h"
#include "cuda/kernels/ptx.h"
#include "plan/portable.h"
#include "problem/call.h"

template <class Shape> struct ea_cta {
  int tid_once; /* see thread_index */
  int group, stages;
  ea_portable_smem layout;
  /* Shared-memory addresses: */
  uint32_t base;
  uint32_t work_tile, barriers;
  uint32_t q, ring, p;
  uint32_t stats; /* QN x M maxima or sums of rows, or the softmax's state of each thread */
  uint32_t row_factors;
};

template <class Shape>
EA_DEVICE ea_cta<Shape> make_cta(const ea_call &call, const ea_portable_launch &launch, const char *smem) {
  const int tid = read_tid();
  const ea_portable_smem layout = ea_portable_smem_layout(planned_shape<Shape>(), launch.stages);
  const uint32_t base = smem_address(smem);
  const uint32_t stats = base + (uint32_t)layout.stats;
  return {tid,
          call.group,
          launch.stages,
          layout,
          base,
          base + (uint32_t)layout.block,
          base + (uint32_t)layout.barriers,
          base + (uint32_t)layout.q,
          base + (uint32_t)layout.ring,
          base + (uint32_t)layout.p,
          stats,
          stats + Shape::QK_WARPS_N * Shape::TILE_M * 4};
}

/* What follows from the thread's number is worked out anew at each use: the products need every
 * register. */
template <class Shape> EA_DEVICE int thread_index(const ea_cta<Shape> &cta) {
  return read_anew(cta.tid_once);
}

/* ---- swizzles ---- */

/* Tiles lie row by row, 16-byte chunk c of row r at chunk c XOR (r mod 8): eight rows of one
 * column fall into different banks, for any pitch that is a multiple of 128 bytes. */
EA_DEVICE uint32_t tile_address(uint32_t base, int row, int chunk, int pitch_elements) {
  return base + (uint32_t)(row * pitch_elements * 2) + (uint32_t)((chunk ^ (row & 7)) * 16);
}

/* tile_address for a lane that steps along its row by an even number of chunks: the step
 * enters by one XOR (within 128 bytes) and a constant. lane_address is that of chunk 0 or 1. */
EA_DEVICE uint32_t step_chunks(uint32_t lane_address, int even_chunks) {
  return (lane_address ^ (uint32_t)(even_chunks % 8 * 16)) + (uint32_t)(even_chunks / 8 * 128);
}

/* The same for P, whose rows of TILE_N elements may be shorter than 128 bytes. */
template <int TILE_N> EA_DEVICE uint32_t p_address(uint32_t base, int row, int chunk) {
  const int chunks = TILE_N / CHUNK;
  const int rows_a_line = chunks >= 8 ? 1 : 8 / chunks;
  const int mask = chunks >= 8 ? 7 : chunks - 1;
  return base + (uint32_t)(row * TILE_N * 2) + (uint32_t)((chunk ^ ((row / rows_a_line) & mask)) * 16);
}

/* ---- warp tiles ---- */

/* Which part of the two products a thread's warp has. */
typedef struct ea_warp_tile {
  int lane, warp;
  int qk_row, qk_key; /* first row and key of the warp's scores */
  int pv_row, pv_col; /* first row and column of its output */
} ea_warp_tile;

template <class Shape> EA_DEVICE ea_warp_tile warp_tile(const ea_cta<Shape> &cta) {
  const int tid = thread_index(cta), warp = tid / 32;
  const ea_warp_tile tile = {tid % 32,
                             warp,
                             warp / Shape::QK_WARPS_N * Shape::QK_ROWS,
                             warp % Shape::QK_WARPS_N * Shape::QK_KEYS,
                             warp / Shape::PV_WARPS_N * Shape::PV_ROWS,
                             warp % Shape::PV_WARPS_N * Shape::PV_COLS};
  return tile;
}

#endif
