/* The two products of a tile, by mma: scores = Q K^T and output += P V.
 *
 * A thread's part of a 16-row fragment of accumulators: [ni * 4 + h * 2 + c] is row lane / 4 + h * 8, column
 * ni * 8 + lane % 4 * 2 + c. */
#ifndef EA_CUDA_KERNELS_PORTABLE_PRODUCTS_H
#define EA_CUDA_KERNELS_PORTABLE_PRODUCTS_H

#include <stdint.h>

#include "cuda/kernels/element.h"
#include "cuda/kernels/portable/cta.h"
#include "cuda/kernels/portable/pipeline.h"
#include "cuda/kernels/portable/scheduler.h"
#include "cuda/kernels/ptx.h"

EA_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2]) {
#ifdef EA_TYPE_BF16
  mma_m16n8k16_bf16(d, a, b);
#else
  mma_m16n8k16_f16(d, a, b);
#endif
}
EA_DEVICE void mma_zero(float d[4], const uint32_t a[4], const uint32_t b[2]) {
#ifdef EA_TYPE_BF16
  mma_m16n8k16_bf16_zero(d, a, b);
#else
  mma_m16n8k16_f16_zero(d, a, b);
#endif
}

/* Q's fragments where they stay in registers; read with the first tile. */
template <class Shape> struct ea_q_fragments {
  uint32_t step[Shape::Q_IN_REGISTERS ? Shape::DIM / 16 : 1][Shape::QK_MI][4];
};

/* Fragments of one step of 16 dimensions. */
template <class Shape> struct ea_qk_fragments { uint32_t q[Shape::QK_MI][4], k[(Shape::QK_NI + 1) / 2][4]; };

template <class Shape>
EA_DEVICE void read_qk_fragments(ea_qk_fragments<Shape> &to, int step, uint32_t q_lane, uint32_t k_lane) {
  if (!Shape::Q_IN_REGISTERS) {
#pragma unroll
    for (int mi = 0; mi < Shape::QK_MI; mi++)
      ldmatrix_x4(to.q[mi], step_chunks(q_lane, step * 2) + mi * 16 * Shape::DIM * 2);
  }
#pragma unroll
  for (int ni = 0; ni < Shape::QK_NI; ni += 2) {
    if (Shape::QK_NI % 2 == 0) { /* 16 keys: matrices (keys 0-7, 8-15) x (dims 0-7, 8-15) */
      ldmatrix_x4(to.k[ni / 2], step_chunks(k_lane, step * 2) + ni * 8 * Shape::DIM * 2);
    } else { /* a warp has 8 keys in all */
      ldmatrix_x2(to.k[ni / 2], step_chunks(k_lane, step * 2));
    }
  }
}

/* scores = Q K^T. Where scores cross, fragments are read a step ahead of their products. */
template <class Shape>
EA_DEVICE void multiply_qk(const ea_cta<Shape> &cta, ea_ring ring, int tile, ea_q_fragments<Shape> &q_fragments,
                           float (&scores)[Shape::QK_MI][Shape::QK_NI * 4]) {
  const uint32_t k_smem = k_tile(cta, ring);
  /* This lane's fragment addresses; found anew each time, which is cheaper than keeping them. */
  const int tid = thread_index(cta), lane = tid % 32, key = tid / 32 % Shape::QK_WARPS_N * Shape::QK_KEYS;
  const uint32_t q_lane =
      tile_address(cta.q, tid / 32 / Shape::QK_WARPS_N * Shape::QK_ROWS + lane % 16, lane / 16, Shape::DIM);
  const uint32_t k_lane = Shape::QK_NI % 2 == 0
                              ? tile_address(k_smem, key + lane % 8 + lane / 16 * 8, lane / 8 % 2, Shape::DIM)
                              : tile_address(k_smem, key + lane % 8, lane / 8 % 2, Shape::DIM);
  if (Shape::Q_IN_REGISTERS && tile == work_tile(cta)->first_tile) {
#pragma unroll
    for (int step = 0; step < Shape::DIM / 16; step++) {
#pragma unroll
      for (int mi = 0; mi < Shape::QK_MI; mi++) {
        ldmatrix_x4(q_fragments.step[Shape::Q_IN_REGISTERS ? step : 0][mi],
                    step_chunks(q_lane, step * 2) + mi * 16 * Shape::DIM * 2);
      }
    }
  }
  ea_qk_fragments<Shape> fragments[2]; /* of this step and the next */
  if (Shape::CROSSING) read_qk_fragments(fragments[0], 0, q_lane, k_lane);
#pragma unroll
  for (int step = 0; step < Shape::DIM / 16; step++) {
    if (!Shape::CROSSING) read_qk_fragments(fragments[step % 2], step, q_lane, k_lane);
    if (Shape::CROSSING && step + 1 < Shape::DIM / 16) {
      read_qk_fragments(fragments[(step + 1) % 2], step + 1, q_lane, k_lane);
    }
#pragma unroll
    for (int ni = 0; ni < Shape::QK_NI; ni++) {
      const uint32_t *b = fragments[step % 2].k[ni / 2] + ni % 2 * 2;
#pragma unroll
      for (int mi = 0; mi < Shape::QK_MI; mi++) {
        const uint32_t *a =
            Shape::Q_IN_REGISTERS ? q_fragments.step[Shape::Q_IN_REGISTERS ? step : 0][mi] : fragments[step % 2].q[mi];
        if (step == 0) {
          mma_zero(scores[mi] + ni * 4, a, b);
        } else {
          mma(scores[mi] + ni * 4, a, b);
        }
      }
    }
  }
}

/* output += P V. p: this warp's own probabilities, which count where they do not cross. */
template <class Shape>
EA_DEVICE void multiply_pv(const ea_cta<Shape> &cta, ea_ring ring, const ea_warp_tile &warp_tile,
                           const uint32_t (&p)[Shape::QK_MI][Shape::QK_NI * 2],
                           float (&output)[Shape::PV_MI][Shape::PV_NI * 4]) {
  const uint32_t v_smem = v_tile(cta, ring);
  const int tid = thread_index(cta);
  const int v_chunk = tid / 32 % Shape::PV_WARPS_N * (Shape::PV_COLS / CHUNK) + tid % 32 / 16;
  const uint32_t v_lane = tile_address(v_smem, tid % 16, v_chunk, Shape::DIM_V);
#pragma unroll
  for (int step = 0; step < Shape::TILE_N / 16; step++) {
    uint32_t a[Shape::PV_MI][4];
#pragma unroll
    for (int mi = 0; mi < Shape::PV_MI; mi++) {
      if (Shape::CROSSING) {
        ldmatrix_x4(a[mi], p_address<Shape::TILE_N>(cta.p, warp_tile.pv_row + mi * 16 + warp_tile.lane % 16,
                                                    step * 2 + warp_tile.lane / 16));
      } else {
        /* The accumulators of two neighbouring 16x8 fragments are the operand of one 16x16. */
        const int m = Shape::CROSSING ? 0 : mi, first = Shape::CROSSING ? 0 : step * 4;
#pragma unroll
        for (int w = 0; w < 4; w++) a[mi][w] = p[m][Shape::CROSSING ? 0 : first + w];
      }
    }
#pragma unroll
    for (int ni = 0; ni < Shape::PV_NI; ni += 2) { /* 16 columns */
      uint32_t b[4];
      /* step_chunks wants to start at a multiple of 128 bytes. */
      const uint32_t v_address = Shape::PV_COLS % 64 == 0
                                     ? step_chunks(v_lane, ni)
                                     : tile_address(v_smem, thread_index(cta) % 16, v_chunk + ni, Shape::DIM_V);
      ldmatrix_x4_trans(b, v_address + step * 16 * Shape::DIM_V * 2);
#pragma unroll
      for (int mi = 0; mi < Shape::PV_MI; mi++) {
        mma(output[mi] + ni * 4, a[mi], b);
        mma(output[mi] + ni * 4 + 4, a[mi], b + 2);
      }
    }
  }
}

#endif
