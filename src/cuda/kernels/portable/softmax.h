/* The online softmax of a tile: running maximum, exponentials, sums; and P on its way to the second product. */
#ifndef EA_CUDA_KERNELS_PORTABLE_SOFTMAX_H
#define EA_CUDA_KERNELS_PORTABLE_SOFTMAX_H

#include <stdint.h>

#include "cuda/kernels/element.h"
#include "cuda/kernels/logits.h"
#include "cuda/kernels/portable/cta.h"
#include "cuda/kernels/ptx.h"
#include "cuda/kernels/reference.h"
#include "cuda/kernels/softmax.h"
#include "plan/portable.h"

/* A thread holds, of each 16-row fragment, row lane/4 (h = 0) and that + 8 (h = 1). Two arrays rather than one struct:
 * as members of one the compiler would have them in pairs of registers. */
template <class Shape> struct ea_softmax {
  float (&row_max)[Shape::QK_MI][2]; /* the exponentials' reference: the row's maximum, or a score near it */
  float (&row_sum)[Shape::QK_MI][2]; /* of this thread's columns */
};

/* Where registers are short the state waits in shared memory between tiles. */
template <class Shape> EA_DEVICE void load_state(const ea_cta<Shape> &cta, const ea_softmax<Shape> &state) {
  if (!ea_portable_state_in_shared(planned_shape<Shape>())) return;
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
    const uint4 x = ld_shared_v4(cta.stats + (mi * Shape::THREADS + thread_index(cta)) * 16);
    state.row_max[mi][0] = __uint_as_float(x.x), state.row_max[mi][1] = __uint_as_float(x.y);
    state.row_sum[mi][0] = __uint_as_float(x.z), state.row_sum[mi][1] = __uint_as_float(x.w);
  }
}
template <class Shape> EA_DEVICE void store_state(const ea_cta<Shape> &cta, const ea_softmax<Shape> &state) {
  if (!ea_portable_state_in_shared(planned_shape<Shape>())) return;
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
    st_shared_v4(cta.stats + (mi * Shape::THREADS + thread_index(cta)) * 16,
                 make_uint4(__float_as_uint(state.row_max[mi][0]), __float_as_uint(state.row_max[mi][1]),
                            __float_as_uint(state.row_sum[mi][0]), __float_as_uint(state.row_sum[mi][1])));
  }
}

/* All warps of the group, whose rows are the same: a named barrier each. */
template <class Shape> EA_DEVICE void group_sync(const ea_warp_tile &warp_tile) {
  bar_sync(1 + warp_tile.warp / Shape::GROUP_WARPS, Shape::GROUP_WARPS * 32);
}

/* The greatest of what the warps that share a row have. */
template <class Shape>
EA_DEVICE void cross_maxima(const ea_cta<Shape> &cta, const ea_warp_tile &warp_tile,
                            float (&tile_max)[Shape::QK_MI][2]) {
  const int lane = warp_tile.lane;
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = warp_tile.qk_row + mi * 16 + h * 8 + lane / 4;
      if (lane % 4 == 0) {
        st_shared_f32(cta.stats + (warp_tile.warp % Shape::QK_WARPS_N * Shape::TILE_M + row) * 4, tile_max[mi][h]);
      }
    }
  }
  group_sync<Shape>(warp_tile);
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = warp_tile.qk_row + mi * 16 + h * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < Shape::QK_WARPS_N; n++) {
        tile_max[mi][h] = fmaxf(tile_max[mi][h], ld_shared_f32(cta.stats + (n * Shape::TILE_M + row) * 4));
      }
    }
  }
}

/* P as it enters the second product: a pair of neighbouring columns a word. The denominator
 * sums the unrounded values, and knows nothing of v_scale (V_SCALE: that there is one, for keys before `prefix`).
 * rescale: what the output so far, and the sum, are to be multiplied by. */
template <class Shape, bool V_SCALE>
EA_DEVICE void exponentials(const ea_portable_launch &launch, const ea_cta<Shape> &cta, const ea_warp_tile &warp_tile,
                            float (&scores)[Shape::QK_MI][Shape::QK_NI * 4], const float (&tile_max)[Shape::QK_MI][2],
                            int key0, int prefix, const ea_softmax<Shape> &state,
                            uint32_t (&p)[Shape::QK_MI][Shape::QK_NI * 2], float (&tile_sum)[Shape::QK_MI][2],
                            float (&rescale)[Shape::QK_MI][2]) {
  const float scale = launch.scale_log2;
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      /* The reference of the exponentials follows the maximum only when that has grown by a
       * factor of 2^slack: any reference near it gives the same quotient, and the output is
       * spared most of its rescaling. Decided a row at a time, by the row's own scores. */
      const bool grown = (tile_max[mi][h] - state.row_max[mi][h]) * scale > launch.rescale_slack_log2;
      const float m = grown ? tile_max[mi][h] : state.row_max[mi][h];
      const float shift = shift_scores<Shape::QK_NI * 4>(&scores[mi][h * 2], m, scale);
      rescale[mi][h] = grown ? reference_factor(state.row_max[mi][h], m, scale) : 1.0f;
      state.row_max[mi][h] = m;
      float sum[2] = {0.0f, 0.0f}; /* two chains: an addition waits for the one before */
#pragma unroll
      for (int ni = 0; ni < Shape::QK_NI; ni++) {
        const int e = ni * 4 + h * 2;
        const int key = key0 + warp_tile.qk_key + ni * 8 + warp_tile.lane % 4 * 2;
        p[mi][ni * 2 + h] =
            exponential_pair<V_SCALE>(scores[mi][e], scores[mi][e + 1], scale, shift, sum, launch.v_scale, key, prefix);
      }
      tile_sum[mi][h] = sum[0] + sum[1];
    }
  }
}

/* From a tile's scores to P, its rows' references and sums, and what the output so far is to be multiplied by. */
template <class Shape>
EA_DEVICE void online_softmax(const ea_portable_launch &launch, const ea_cta<Shape> &cta, const ea_warp_tile &warp_tile,
                              float (&scores)[Shape::QK_MI][Shape::QK_NI * 4], int key0, const ea_softmax<Shape> &state,
                              uint32_t (&p)[Shape::QK_MI][Shape::QK_NI * 2], float (&rescale)[Shape::QK_MI][2]) {
  float tile_max[Shape::QK_MI][2], tile_sum[Shape::QK_MI][2];
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) tile_max[mi][h] = row_maximum(scores[mi], h);
  }
  if (Shape::CROSSING) cross_maxima(cta, warp_tile, tile_max);
  load_state(cta, state);
  if (launch.v_scale != 1.0f) {
    exponentials<Shape, true>(launch, cta, warp_tile, scores, tile_max, key0, work_tile(cta)->view.prefix, state, p,
                              tile_sum, rescale);
  } else {
    exponentials<Shape, false>(launch, cta, warp_tile, scores, tile_max, key0, 0, state, p, tile_sum, rescale);
  }
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      state.row_sum[mi][h] = fmaf(state.row_sum[mi][h], rescale[mi][h], tile_sum[mi][h]);
    }
  }
  store_state(cta, state);
}

/* P and the rows' factors to where the warps of the group read them. */
template <class Shape>
EA_DEVICE void share_p(const ea_cta<Shape> &cta, const ea_warp_tile &warp_tile,
                       const uint32_t (&p)[Shape::QK_MI][Shape::QK_NI * 2], const float (&rescale)[Shape::QK_MI][2]) {
  const int lane = warp_tile.lane;
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = warp_tile.qk_row + mi * 16 + h * 8 + lane / 4;
      if (warp_tile.warp % Shape::QK_WARPS_N == 0 && lane % 4 == 0) {
        st_shared_f32(cta.row_factors + row * 4, rescale[mi][h]);
      }
#pragma unroll
      for (int ni = 0; ni < Shape::QK_NI; ni++) {
        st_shared_b32(p_address<Shape::TILE_N>(cta.p, row, warp_tile.qk_key / CHUNK + ni) + lane % 4 * 4,
                      p[mi][ni * 2 + h]);
      }
    }
  }
  group_sync<Shape>(warp_tile);
}

/* The output so far, in terms of the rows' new references. */
template <class Shape>
EA_DEVICE void rescale_output(const ea_cta<Shape> &cta, const ea_warp_tile &warp_tile,
                              const float (&rescale)[Shape::QK_MI][2],
                              float (&output)[Shape::PV_MI][Shape::PV_NI * 4]) {
  float factor[Shape::PV_MI][2];
  bool moved = false;
#pragma unroll
  for (int mi = 0; mi < Shape::PV_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = warp_tile.pv_row + mi * 16 + h * 8 + warp_tile.lane / 4;
      factor[mi][h] = Shape::CROSSING ? ld_shared_f32(cta.row_factors + row * 4) : rescale[Shape::CROSSING ? 0 : mi][h];
      moved |= factor[mi][h] != 1.0f;
    }
  }
  /* Times 1 changes nothing. */
  if (!__any_sync(0xffffffffu, moved)) return;
#pragma unroll
  for (int mi = 0; mi < Shape::PV_MI; mi++) {
#pragma unroll
    for (int e = 0; e < Shape::PV_NI * 4; e++) output[mi][e] *= factor[mi][e / 2 % 2];
  }
}

#endif
