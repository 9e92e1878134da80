/* The online softmax of a consumer thread's two rows: what scores go through before it, exponentials against a
 * reference, sums, and the factor for the output so far. */
#ifndef EA_CUDA_KERNELS_HOPPER_SOFTMAX_H
#define EA_CUDA_KERNELS_HOPPER_SOFTMAX_H

#include "cuda/kernels/hopper/scheduler.h"
#include "cuda/kernels/reference.h"

/* Scores S become logits where the call says more than a softmax scale: the prefix's k_scale, cap, temperature. key0:
 * this thread's first key; its others are the next one, and every 8 on. row: the first of its two. */
template <class Shape, int SCORES>
EA_DEVICE void scale_logits(float (&s)[SCORES], const ea_cta<Shape> &cta, const ea_work_tile *work_tile, int key0,
                            int row) {
  const ea_portable_launch &with = cta.launch.scores;
  const ea_call &call = cta.call;
  if (with.k_scale != 1.0f) {
    const int cached = work_tile->view.prefix - key0;
#pragma unroll
    for (int e = 0; e < SCORES; e++) {
      if (e / 4 * 8 + e % 2 < cached) s[e] *= with.k_scale;
    }
  }
  if (!with.transformed) return;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float temperature = 1.0f;
    if (call.xai_temperature_len > 0) {
      const int position = work_tile->view.prefix + row_query<Shape>(cta.launch, work_tile, row + h * 8);
      temperature = ea_temperature(position, call.xai_temperature_len, __log2f((float)position), with.inv_log2_len);
    }
#pragma unroll
    for (int e = 0; e < SCORES / 2; e++) {
      float *x = &s[e / 2 * 4 + h * 2 + e % 2];
      *x = transformed_score(*x, with, temperature);
    }
  }
}

/* Of a thread's two rows. */
typedef struct ea_softmax {
  float reference[2]; /* of the exponentials: a score that the row has seen, near its maximum; -Inf: none yet */
  float row_sum[2];   /* of this thread's columns */
} ea_softmax;

/* The shift of a row (h) with this reference, which it gets; NaN, if that is too large: the row is done again
 * (large.h). */
EA_DEVICE float set_reference(ea_softmax *state, int h, float reference, float scale_log2) {
  const float shift = reference == MINUS_INF ? 0.0f : shift_of(reference, scale_log2); /* exp2(-inf - 0) = 0 */
  state->reference[h] = reference;
  return is_fused(shift) ? shift : EA_NAN;
}

/* P = 2^(score * scale - shift), in 16 bits, and its sums over this thread's columns of each row. V_SCALE: times
 * v_scale for the first `cached` keys from this thread's first. */
template <bool V_SCALE, int WORDS>
EA_DEVICE void exponentials(uint32_t (&p)[WORDS], const float (&s)[WORDS * 2], const float shift[2], float sum[2],
                            const ea_hopper_launch &launch, int cached) {
  const float scale = launch.scores.scale_log2;
  float sums[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}}; /* two chains a row: an addition waits for the one before */
#pragma unroll
  for (int w = 0; w < WORDS; w++) {
    const int h = w % 2;
    float p0 = ex2_approx(fmaf(s[w * 2], scale, -shift[h]));
    float p1 = ex2_approx(fmaf(s[w * 2 + 1], scale, -shift[h]));
    sums[h][0] += p0;
    sums[h][1] += p1;
    if (V_SCALE) {
      if (w / 2 * 8 < cached) p0 *= launch.scores.v_scale;
      if (w / 2 * 8 + 1 < cached) p1 *= launch.scores.v_scale;
    }
    p[w] = cvt_x2(p0, p1);
  }
  sum[0] = sums[0][0] + sums[0][1];
  sum[1] = sums[1][0] + sums[1][1];
}

/* The greatest score of a row (h) in a tile. */
template <int SCORES> EA_DEVICE float tile_maximum(const float (&s)[SCORES], int h) {
  float m[2] = {s[h * 2], s[h * 2 + 1]}; /* two chains */
#pragma unroll
  for (int e = 4; e < SCORES; e += 4) {
    m[0] = fmaxf(m[0], s[e + h * 2]);
    m[1] = fmaxf(m[1], s[e + h * 2 + 1]);
  }
  return quad_max(fmaxf(m[0], m[1]));
}

/* References for which the exponentials of a tile are in range: a row moves its own to its maximum so far if it
 * `must` (a function of the row alone, or the result would depend on its neighbours). factor: what follows for
 * the output so far. */
template <int SCORES>
EA_DEVICE void move_references(const float (&s)[SCORES], ea_softmax *state, const bool must[2], float shift[2],
                               float factor[2], const ea_hopper_launch &launch) {
  const float scale = launch.scores.scale_log2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float row_max = fmaxf(tile_maximum(s, h), state->reference[h]);
    const float reference = must[h] ? row_max : state->reference[h];
    const float before = state->reference[h];
    shift[h] = set_reference(state, h, reference, scale);
    factor[h] = reference == before ? 1.0f : ex2_approx(shift_of(before, scale) - shift[h]);
    state->row_sum[h] *= factor[h];
  }
}

/* Scores become probabilities. There is no look for the tile's maximum first: the exponentials are taken with the
 * reference there is, and only where they grow out of range, or nothing was seen before, once more with a better
 * one. Any reference near the maximum gives the same quotient. Returns whether O so far has to be multiplied by
 * `factor`. */
template <int WORDS>
EA_DEVICE bool probabilities(uint32_t (&p)[WORDS], const float (&s)[WORDS * 2], ea_softmax *state, float factor[2],
                             const ea_hopper_launch &launch) {
  const float limit = launch.scores.sum_limit;
  const float scale = launch.scores.scale_log2;
  float shift[2] = {shift_of(state->reference[0], scale), shift_of(state->reference[1], scale)}, sum[2];
  exponentials<false>(p, s, shift, sum, launch, 0);
  bool must[2] = {!(sum[0] <= limit), !(sum[1] <= limit)}; /* NaN too: -Inf of a key that is not seen, minus -Inf */
  const bool moved = __any_sync(0xffffffffu, must[0] || must[1]);
  if (__builtin_expect(moved, 0)) {
    must[0] = quad_any(must[0]);
    must[1] = quad_any(must[1]);
    move_references(s, state, must, shift, factor, launch);
    exponentials<false>(p, s, shift, sum, launch, 0);
  }
  state->row_sum[0] += sum[0];
  state->row_sum[1] += sum[1];
  return moved;
}

/* ---- a row at a time, its maximum first (d512.cu) -------------------------------------------------- */

/* A row's (h) scores become probabilities, in f32; factor: what the output so far is to be multiplied by. The
 * reference of the exponentials follows a row's maximum (over both tiles) only when that has grown by 2^slack:
 * any reference near it gives the same quotient. cached: keys from this thread's first that are of the prefix. */
template <bool V_SCALE, int SCORES>
EA_DEVICE void row_exponentials(float (&s)[SCORES], int h, ea_softmax *state, const float maxima[2], float factor[2],
                                const ea_hopper_launch &launch, int cached) {
  const float scale = launch.scores.scale_log2;
  const bool grown = (maxima[h] - state->reference[h]) * scale > launch.scores.rescale_slack_log2;
  const float reference = grown ? maxima[h] : state->reference[h];
  const float before = state->reference[h], shift = set_reference(state, h, reference, scale);
  factor[h] = grown ? ex2_approx(shift_of(before, scale) - shift) : 1.0f;
  float sum[2] = {0.0f, 0.0f}; /* two chains: an addition waits for the one before */
#pragma unroll
  for (int e = h * 2; e < SCORES; e += 4) {
    float p0 = ex2_approx(fmaf(s[e], scale, -shift));
    float p1 = ex2_approx(fmaf(s[e + 1], scale, -shift));
    sum[0] += p0;
    sum[1] += p1;
    if (V_SCALE) {
      if (e / 4 * 8 < cached) p0 *= launch.scores.v_scale;
      if (e / 4 * 8 + 1 < cached) p1 *= launch.scores.v_scale;
    }
    s[e] = p0;
    s[e + 1] = p1;
  }
  state->row_sum[h] = fmaf(state->row_sum[h], factor[h], sum[0] + sum[1]);
}

template <int WORDS> EA_DEVICE void round_probabilities(uint32_t (&p)[WORDS], const float (&s)[WORDS * 2]) {
#pragma unroll
  for (int w = 0; w < WORDS; w++) p[w] = cvt_x2(s[w * 2], s[w * 2 + 1]);
}

/* ---- the output so far ------------------------------------------------------------------------------ */

template <int COUNT> EA_DEVICE void rescale(float (&o)[COUNT], const float factor[2]) {
#pragma unroll
  for (int e = 0; e < COUNT; e++) o[e] *= factor[e / 2 % 2];
}
template <int COUNT> EA_DEVICE void rescale_where_grown(float (&o)[COUNT], const float factor[2]) {
  if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) rescale(o, factor);
}

#endif
