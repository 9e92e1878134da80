/* Rows of scores as the tensor cores leave them. A row of a 16-row fragment lies with four neighbouring lanes (a quad):
 * lane/4 and that + 8 are a thread's two. */
#ifndef EA_CUDA_KERNELS_SOFTMAX_H
#define EA_CUDA_KERNELS_SOFTMAX_H

#include <stdint.h>

#include "cuda/kernels/element.h"
#include "cuda/kernels/ptx.h"

/* Over the four lanes that share a row. */
EA_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
EA_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

EA_DEVICE bool quad_any(bool x) {
  uint32_t any = x;
  any |= __shfl_xor_sync(0xffffffffu, any, 1);
  return (any | __shfl_xor_sync(0xffffffffu, any, 2)) != 0;
}

/* The greatest score of a row (h) of a fragment of accumulators. */
template <int COUNT> EA_DEVICE float row_maximum(const float (&s)[COUNT], int h) {
  float m[2] = {s[h * 2], s[h * 2 + 1]}; /* two chains */
#pragma unroll
  for (int e = 4; e < COUNT; e += 4) {
    m[0] = fmaxf(m[0], s[e + h * 2]);
    m[1] = fmaxf(m[1], s[e + h * 2 + 1]);
  }
  return quad_max(fmaxf(m[0], m[1]));
}

/* P of two neighbouring keys of a row, 2^(score * scale - shift), in 16 bits; sum: grows by both, unrounded. V_SCALE:
 * times v_scale if it is of a key before `prefix`, the first being `key`. */
template <bool V_SCALE>
EA_DEVICE uint32_t exponential_pair(float s0, float s1, float scale, float shift, float sum[2], float v_scale, int key,
                                    int prefix) {
  float p0 = ex2_approx(fmaf(s0, scale, -shift));
  float p1 = ex2_approx(fmaf(s1, scale, -shift));
  sum[0] += p0;
  sum[1] += p1;
  if (V_SCALE) {
    if (key < prefix) p0 *= v_scale;
    if (key + 1 < prefix) p1 *= v_scale;
  }
  return cvt_x2(p0, p1);
}

#endif
