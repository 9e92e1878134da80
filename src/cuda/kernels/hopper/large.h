/* Rows whose logits are too large for the mainloop's exponentials (reference.h). It marks them by a shift of NaN, which
 * makes their sums and output NaN, and so their work tile comes once more, as one with a NaN in V does (nonfinite.h).
 * At the end of this second pass they are done again, key by key, and rows that have seen a NaN as well. They are rare,
 * so this is short and not fast: each thread works alone, since a shuffle in code that ptxas takes for divergent makes
 * it guard every shuffle of the kernel, at 0.2 us a work tile. Which rows come here is a function of the row alone, and
 * so is what comes out. */
#ifndef EA_CUDA_KERNELS_HOPPER_LARGE_H
#define EA_CUDA_KERNELS_HOPPER_LARGE_H

#include "cuda/kernels/hopper/nonfinite.h"
#include "cuda/kernels/reference.h"

/* The score of a row of the work tile, as the softmax takes it. */
template <class Shape> EA_DEVICE float score_again(const ea_cta<Shape> &cta, ea_work work, int row, int key) {
  const ea_call &call = cta.call;
  const ea_portable_launch &with = cta.launch.scores;
  const bool cached = key < work->view.prefix;
  row = ea_min_i32(row, work->rows - 1); /* those past the last repeat it */
  const int query = row_query<Shape>(cta.launch, work.get(), row), position = work->view.prefix + query;
  const int64_t head = work->first_head + row - row_token<Shape>(cta.launch, row) * call.group;
  const uint16_t *q =
      (const uint16_t *)call.q.data + (work->token0 + query) * call.q.token_stride + head * call.q.head_stride;
  const char *k = key_row(cta, work, key, false);
  const ea_element element = cached ? cached_source(call, with).element : EA_ELEMENT_16BIT;
  float s = 0.0f;
#pragma unroll 1
  for (int d = 0; d < call.head_dim; d++) {
    s = fmaf(element_value(q[d]), element_value(load_pair(k, d, d + 1, element)), s);
  }
  if (cached) s *= with.k_scale;
  if (!with.transformed) return s;
  const float temperature =
      ea_temperature(position, call.xai_temperature_len, __log2f((float)position), with.inv_log2_len);
  return transformed_score(s, with, call.xai_temperature_len > 0 ? temperature : 1.0f);
}

/* The end of a second pass, key by key. Rows whose sums are NaN get their output, references and sums; the others get
 * the NaN and Inf that their masked tiles have lost. row: the first of the thread's two; o: WIDTH columns from
 * first_column on. */
template <int WIDTH, class Shape>
EA_DEVICE void end_second_pass(float (&o)[WIDTH / 2], float reference[2], float sum[2], const ea_cta<Shape> &cta,
                               ea_work work, int row, int lane, int first_column) {
  const ea_portable_launch &with = cta.launch.scores;
  const bool large[2] = {sum[0] != sum[0], sum[1] != sum[1]}, any_large = large[0] || large[1];
#pragma unroll
  for (int e = 0; e < WIDTH / 2; e++) o[e] = large[e / 2 % 2] ? 0.0f : o[e];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    sum[h] = large[h] ? 0.0f : sum[h];
    reference[h] = large[h] ? MINUS_INF : reference[h];
  }
#pragma unroll 1
  for (int walk = any_large ? 0 : 1; walk < 2; walk++) { /* the first for the greatest score */
#pragma unroll 1
    for (int key = work->keys.first; key < work->keys.end; key++) {
      const bool cached = key < work->view.prefix, masked = is_masked<Shape>(work.get(), key / Shape::tile_n);
      if (!any_large && !masked) continue;
      float weight[2] = {1.0f, 1.0f};
      bool seen[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        seen[h] = ea_visible(&work->view, row_query<Shape>(cta.launch, work.get(), row + h * 8), key);
      }
#pragma unroll 1
      for (int h = 0; h < 2; h++) {
        if (!(h == 0 ? large[0] && seen[0] : large[1] && seen[1])) continue;
        const float s = score_again(cta, work, row + h * 8, key), before = h == 0 ? reference[0] : reference[1];
        const float top = walk == 0 ? max_nan(before, s) : before;
        const float w = ex2_approx((s - (top == MINUS_INF ? 0.0f : top)) * with.scale_log2);
        const float add = walk == 1 ? w : 0.0f, times = cached ? w * with.v_scale : w;
        reference[0] = h == 0 ? top : reference[0];
        reference[1] = h == 1 ? top : reference[1];
        sum[0] += h == 0 ? add : 0.0f;
        sum[1] += h == 1 ? add : 0.0f;
        weight[0] = h == 0 ? times : weight[0];
        weight[1] = h == 1 ? times : weight[1];
      }
      if (walk == 0) continue;
      const ea_element element = cached ? cached_source(cta.call, with).element : EA_ELEMENT_16BIT;
      const char *v = key_row(cta, work, key, true);
#pragma unroll
      for (int j = 0; j < WIDTH / 8; j++) {
        const uint32_t pair = load_pair(v, first_column + lane % 4 * 2 + j * 8, cta.call.head_dim_v, element);
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const uint32_t bits = c == 0 ? pair & 0xffffu : pair >> 16;
#pragma unroll
          for (int h = 0; h < 2; h++) { /* no branch: with so many registers alive, ptxas takes long over them */
            float *x = &o[j * 4 + h * 2 + c];
            const bool add = seen[h] && (large[h] || (masked && is_special(bits)));
            *x = add ? fmaf(weight[h], element_value(bits), *x) : *x;
          }
        }
      }
    }
  }
}

#endif
