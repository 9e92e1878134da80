/* NaN and Inf in V. They must reach only the rows that see them (promise 2), and 0 * NaN is NaN: in a tile of which
 * some row does not see some key they would reach all rows. */
#ifndef EA_CUDA_KERNELS_PORTABLE_NONFINITE_H
#define EA_CUDA_KERNELS_PORTABLE_NONFINITE_H

#include <stdint.h>

#include "cuda/kernels/element.h"
#include "cuda/kernels/nonfinite.h"
#include "cuda/kernels/portable/cta.h"
#include "cuda/kernels/portable/pipeline.h"
#include "cuda/kernels/portable/scheduler.h"
#include "cuda/kernels/ptx.h"
#include "plan/walk.h"

/* Gives those of a tile to the output of the rows that see them. */
template <class Shape>
EA_DEVICE void add_nonfinite(const ea_cta<Shape> &cta, uint32_t v_smem, int key0,
                             float (&output)[Shape::PV_MI][Shape::PV_NI * 4]) {
  const ea_warp_tile own = warp_tile(cta);
  const int lane = own.lane, pv_row = own.pv_row, pv_col = own.pv_col;
#pragma unroll 1
  for (int n = 0; n < Shape::TILE_N; n++) {
    const int key = key0 + n;
    const ea_work_tile *work = work_tile(cta);
    if (key < work->keys.first || key >= work->keys.end) continue;
    uint32_t seen = 0; /* bit mi * 2 + h: that row sees the key */
#pragma unroll 1
    for (int r = 0; r < Shape::PV_MI * 2; r++) {
      const int i = row_query(work, pv_row + r * 8 + lane / 4, cta.group);
      if (i < work->view.extend && ea_visible(&work->view, i, key)) seen |= 1u << r;
    }
#pragma unroll
    for (int ni = 0; ni < Shape::PV_NI; ni++) {
      const uint32_t pair = ld_shared_b32(tile_address(v_smem, n, pv_col / CHUNK + ni, Shape::DIM_V) + lane % 4 * 4);
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const uint32_t bits = c == 0 ? pair & 0xffffu : pair >> 16;
        if (!is_special(bits)) continue;
#pragma unroll
        for (int r = 0; r < Shape::PV_MI * 2; r++) {
          if (seen >> r & 1) output[r / 2][ni * 4 + r % 2 * 2 + c] += element_value(bits);
        }
      }
    }
  }
}

/* Before the product of a masked tile. Rarely is there one: it is given to the rows that see it by hand, and then taken
 * out of the tile. */
template <class Shape>
EA_DEVICE void separate_nonfinite(const ea_cta<Shape> &cta, ea_ring ring, int key0,
                                  float (&output)[Shape::PV_MI][Shape::PV_NI * 4]) {
  const uint32_t v_smem = v_tile(cta, ring);
  bool found = false;
  for (int index = thread_index(cta); index < Shape::TILE_N * Shape::DIM_V / CHUNK; index += Shape::THREADS) {
    found |= any_special(ld_shared_v4(v_smem + (uint32_t)index * 16));
  }
  if (!__syncthreads_or(found)) return;
  add_nonfinite(cta, v_smem, key0, output);
  __syncthreads();
  for (int index = thread_index(cta); index < Shape::TILE_N * Shape::DIM_V / CHUNK; index += Shape::THREADS) {
    const uint32_t address = v_smem + (uint32_t)index * 16;
    st_shared_v4(address, without_special(ld_shared_v4(address)));
  }
  __syncthreads();
}

#endif
