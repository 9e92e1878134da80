/* The epilogue: denominators, sinks and lse of a work tile's rows, and the output on its way to global memory. */
#ifndef EA_CUDA_KERNELS_PORTABLE_EPILOGUE_H
#define EA_CUDA_KERNELS_PORTABLE_EPILOGUE_H

#include <stdint.h>

#include "cuda/kernels/element.h"
#include "cuda/kernels/epilogue.h"
#include "cuda/kernels/portable/cta.h"
#include "cuda/kernels/portable/pipeline.h"
#include "cuda/kernels/portable/scheduler.h"
#include "cuda/kernels/portable/softmax.h"
#include "cuda/kernels/ptx.h"
#include "cuda/kernels/reference.h"
#include "cuda/kernels/softmax.h"
#include "plan/walk.h"

/* The rows' sums over all their columns, to the lse and to what the output is to be multiplied by. */
template <class Shape>
EA_DEVICE void finish_rows(const ea_call &call, const ea_portable_launch &launch, const ea_cta<Shape> &cta,
                           const ea_work_tile *work, const ea_warp_tile &own, const ea_softmax<Shape> &state,
                           float (&factor)[Shape::QK_MI][2]) {
  const int lane = own.lane, warp = own.warp;
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      state.row_sum[mi][h] = quad_sum(state.row_sum[mi][h]);
      const int row = own.qk_row + mi * 16 + h * 8 + lane / 4;
      if (Shape::CROSSING && lane % 4 == 0) {
        st_shared_f32(cta.stats + (warp % Shape::QK_WARPS_N * Shape::TILE_M + row) * 4, state.row_sum[mi][h]);
      }
    }
  }
  if (Shape::CROSSING) __syncthreads();
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = own.qk_row + mi * 16 + h * 8 + lane / 4;
      float sum = state.row_sum[mi][h];
      if (Shape::CROSSING) {
        sum = 0.0f;
#pragma unroll
        for (int n = 0; n < Shape::QK_WARPS_N; n++) sum += ld_shared_f32(cta.stats + (n * Shape::TILE_M + row) * 4);
      }
      const int head = work->kv_head * cta.group + row_head(work, row, cta.group);
      const float error = shift_error(state.row_max[mi][h], launch.scale_log2);
      const ea_row_end end = end_large_row(call, launch, state.row_max[mi][h], error, sum, head, row < work->rows);
      factor[mi][h] = end.factor;
      if (call.lse && row < work->rows && lane % 4 == 0 && warp % Shape::QK_WARPS_N == 0) {
        const int64_t token = work->token0 + row_query(work, row, cta.group);
        call.lse[token * call.lse_token_stride + head * call.lse_head_stride] = end.lse;
      }
      if (Shape::CROSSING && warp % Shape::QK_WARPS_N == 0 && lane % 4 == 0) {
        st_shared_f32(cta.row_factors + row * 4, factor[mi][h]);
      }
    }
  }
  if (Shape::CROSSING) __syncthreads();
}

/* The output in 16 bits to shared memory, where Q was, so that whole rows leave together. */
template <class Shape>
EA_DEVICE void stage_output(const ea_cta<Shape> &cta, const ea_warp_tile &own,
                            const float (&output)[Shape::PV_MI][Shape::PV_NI * 4],
                            const float (&row_factor)[Shape::QK_MI][2]) {
  const int lane = own.lane;
#pragma unroll
  for (int mi = 0; mi < Shape::PV_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = own.pv_row + mi * 16 + h * 8 + lane / 4;
      const float factor =
          Shape::CROSSING ? ld_shared_f32(cta.row_factors + row * 4) : row_factor[Shape::CROSSING ? 0 : mi][h];
#pragma unroll
      for (int ni = 0; ni < Shape::PV_NI; ni++) {
        const int e = ni * 4 + h * 2;
        st_shared_b32(tile_address(cta.q, row, own.pv_col / CHUNK + ni, Shape::DIM_V) + (uint32_t)(lane % 4 * 4),
                      cvt_x2(output[mi][e] * factor, output[mi][e + 1] * factor));
      }
    }
  }
}

/* Eight elements to a row, or as many of them as there are. */
EA_DEVICE void store_chunk(uint16_t *to, uint4 v, int count, bool aligned) {
  if (aligned && count == CHUNK) {
    *(uint4 *)to = v;
    return;
  }
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int e = 0; e < CHUNK; e++) {
    if (e < count) to[e] = (uint16_t)(words[e / 2] >> (16 * (e % 2)));
  }
}

template <class Shape>
EA_DEVICE void store_output(const ea_call &call, const ea_portable_launch &launch, const ea_cta<Shape> &cta,
                            const ea_work_tile *work) {
  const int chunks = Shape::DIM_V / CHUNK;
#pragma unroll 2
  for (int index = thread_index(cta); index < work->rows * chunks; index += Shape::THREADS) {
    const int row = index / chunks, chunk = index % chunks;
    const int count = ea_min_i32(call.head_dim_v - chunk * CHUNK, CHUNK);
    if (count <= 0) continue;
    const int64_t token = work->token0 + row_query(work, row, cta.group);
    const int head = work->kv_head * cta.group + row_head(work, row, cta.group);
    uint16_t *to = (uint16_t *)call.out + token * call.out_token_stride + head * call.out_head_stride + chunk * CHUNK;
    const uint4 v = ld_shared_v4(tile_address(cta.q, row, chunk, Shape::DIM_V));
    if (launch.out_aligned && count == CHUNK) {
      *(uint4 *)to = v;
    } else {
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int e = 0; e < CHUNK; e++) {
        if (e < count) to[e] = (uint16_t)(words[e / 2] >> (16 * (e % 2)));
      }
    }
  }
}

template <class Shape>
EA_DEVICE void epilogue(const ea_call &call, const ea_portable_launch &launch, const ea_cta<Shape> &cta,
                        const ea_softmax<Shape> &state, const float (&output)[Shape::PV_MI][Shape::PV_NI * 4]) {
  const ea_warp_tile own = warp_tile(cta);
  load_state(cta, state);
  __syncthreads(); /* everyone is done with Q and the ring */
  inval_ring(cta);
  const ea_work_tile *work = work_tile(cta);
  float factor[Shape::QK_MI][2];
  finish_rows(call, launch, cta, work, own, state, factor);
  stage_output(cta, own, output, factor);
  __syncthreads();
  store_output(call, launch, cta, work);
}

#endif
