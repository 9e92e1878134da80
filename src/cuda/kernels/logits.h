/* What a score goes through before the softmax: scale, cap, temperature. */
#ifndef EA_CUDA_KERNELS_LOGITS_H
#define EA_CUDA_KERNELS_LOGITS_H

#include "common/tanh.h"
#include "cuda/kernels/ptx.h"
#include "plan/portable.h"

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define MINUS_INF __int_as_float(0xff800000)

/* cap * tanh(s / cap), and just s where the cap is far away: relative error of a few f32 roundings. */
EA_DEVICE float capped(float s, float cap, float inv_cap) {
  const float y = s * inv_cap, square = y * y;
  const float small = fmaf(s * square, EA_TANH_POLY(square, fmaf, ), s);
  const float e = ex2_approx(y * (2.0f * LOG2E)); /* tanh(y) = 1 - 2 / (1 + exp(2y)), which cancels near 0 */
  const float large = cap * (1.0f - __fdividef(2.0f, 1.0f + e));
  return fabsf(y) < EA_TANH_SMALL ? small : large;
}

/* A score as the softmax takes it where there is a cap or a temperature. */
EA_DEVICE float transformed_score(float s, const ea_portable_launch &launch, float temperature) {
  s *= launch.softmax_scale;
  if (launch.logit_cap > 0.0f) s = capped(s, launch.logit_cap, launch.inv_logit_cap);
  return s * temperature;
}

#endif
