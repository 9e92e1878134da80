/* What happens to a tile's scores before the softmax: scales, cap and temperature, and the mask. */
#ifndef EA_CUDA_KERNELS_PORTABLE_MASK_H
#define EA_CUDA_KERNELS_PORTABLE_MASK_H

#include <stdint.h>

#include "cuda/kernels/logits.h"
#include "cuda/kernels/portable/cta.h"
#include "cuda/kernels/portable/scheduler.h"
#include "cuda/kernels/ptx.h"
#include "plan/walk.h"

/* Scores of the prefix's keys, whose K is k_scale times what the cache has. key0: the tile's first. */
template <class Shape>
EA_DEVICE void scale_cached_scores(const ea_portable_launch &launch, const ea_cta<Shape> &cta,
                                   const ea_warp_tile &warp_tile, int key0,
                                   float (&scores)[Shape::QK_MI][Shape::QK_NI * 4]) {
  const float k_scale = launch.k_scale;
  const int prefix = work_tile(cta)->view.prefix;
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
#pragma unroll
    for (int e = 0; e < Shape::QK_NI * 4; e++) {
      const int key = key0 + warp_tile.qk_key + e / 4 * 8 + warp_tile.lane % 4 * 2 + e % 2;
      if (key < prefix) scores[mi][e] *= k_scale;
    }
  }
}

/* Cap and temperature. */
template <class Shape>
EA_DEVICE void transform_scores(const ea_call &call, const ea_portable_launch &launch, const ea_cta<Shape> &cta,
                                const ea_warp_tile &warp_tile, float (&scores)[Shape::QK_MI][Shape::QK_NI * 4]) {
  const ea_work_tile *work = work_tile(cta);
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float temperature = 1.0f;
      if (call.xai_temperature_len > 0) {
        const int row = warp_tile.qk_row + mi * 16 + h * 8 + warp_tile.lane / 4;
        const int position = work->view.prefix + row_query(work, row, cta.group);
        temperature = ea_temperature(position, call.xai_temperature_len, __log2f((float)position), launch.inv_log2_len);
      }
#pragma unroll
      for (int e = 0; e < Shape::QK_NI * 2; e++) {
        float *score = &scores[mi][e / 2 * 4 + h * 2 + e % 2];
        *score = transformed_score(*score, launch, temperature);
      }
    }
  }
}

/* -Inf where a row does not see a key. */
template <class Shape>
EA_DEVICE void apply_mask(const ea_cta<Shape> &cta, const ea_warp_tile &warp_tile, int key0,
                          float (&scores)[Shape::QK_MI][Shape::QK_NI * 4]) {
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const ea_work_tile *work = work_tile(cta);
      const int row = warp_tile.qk_row + mi * 16 + h * 8 + warp_tile.lane / 4;
      const int i = ea_min_i32(row_query(work, row, cta.group), work->view.extend - 1);
      const ea_key_range seen = ea_visible_keys(&work->view, i, i + 1);
      /* This thread's keys: this, next, and every 8 on. */
      const int first_key = key0 + warp_tile.qk_key + warp_tile.lane % 4 * 2;
      uint32_t hidden = 0; /* a bit each */
      if (work->view.mask) {
#pragma unroll 1
        for (int e = 0; e < Shape::QK_NI * 2; e++) {
          const int key = first_key + e / 2 * 8 + e % 2;
          if (key >= seen.first && key < seen.end && !ea_visible(&work->view, i, key)) hidden |= 1u << e;
        }
      }
#pragma unroll
      for (int ni = 0; ni < Shape::QK_NI; ni++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const int key = first_key + ni * 8 + c;
          const bool visible = key >= seen.first && key < seen.end && (hidden >> (ni * 2 + c) & 1) == 0;
          float &score = scores[mi][ni * 4 + h * 2 + c];
          score = visible ? score : MINUS_INF;
        }
      }
    }
  }
}

#endif
