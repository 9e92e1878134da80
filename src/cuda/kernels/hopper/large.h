/* Rows whose logits are too large for the mainloop's exponentials (reference.h). It marks them by a shift of NaN, which
 * makes their sums and output NaN, and so their work tile comes once more, as one with a NaN in V does (nonfinite.h).
 * In the epilogue of this second pass a warp does them again, a row at a time, key by key, and rows that have seen a
 * NaN as well. They are rare, so this is short and not fast, and mainloop and first pass have next to nothing of it:
 * every instruction in them shows. Which rows come here is a function of the row alone, and so is what comes out. */
#ifndef EA_CUDA_KERNELS_HOPPER_LARGE_H
#define EA_CUDA_KERNELS_HOPPER_LARGE_H

#include "cuda/kernels/epilogue.h"
#include "cuda/kernels/hopper/nonfinite.h"

/* A row, as all lanes of the warp have it. */
typedef struct ea_large_row {
  const uint16_t *q;
  int64_t token;
  int head, query;
  float temperature;
} ea_large_row;

template <class Shape> EA_DEVICE ea_large_row large_row(const ea_cta<Shape> &cta, ea_work work, int row) {
  const ea_call &call = cta.call;
  const ea_portable_launch &with = cta.launch.scores;
  ea_large_row r;
  const int t = row_token<Shape>(cta.launch, row), position = work->view.prefix + work->i0 + t;
  r.query = work->i0 + t;
  r.token = work->token0 + r.query;
  r.head = work->first_head + row - t * call.group;
  r.q = (const uint16_t *)call.q.data + r.token * call.q.token_stride + r.head * call.q.head_stride;
  r.temperature = call.xai_temperature_len > 0
                      ? ea_temperature(position, call.xai_temperature_len, __log2f((float)position), with.inv_log2_len)
                      : 1.0f;
  return r;
}

template <class Shape> EA_DEVICE ea_element element_of(const ea_cta<Shape> &cta, ea_work work, int key) {
  return key < work->view.prefix ? cached_source(cta.call, cta.launch.scores).element : EA_ELEMENT_16BIT;
}
EA_DEVICE float load_element(const char *row, int column, ea_element element) {
  return element_value(load_pair(row, column, column + 1, element));
}

/* A score as the softmax takes it. */
template <class Shape>
EA_DEVICE float score_of(const ea_cta<Shape> &cta, ea_work work, const ea_large_row &row, int key, int lane) {
  const ea_portable_launch &with = cta.launch.scores;
  const char *k = key_row(cta, work, key, false);
  const ea_element element = element_of(cta, work, key);
  float s = 0.0f;
#pragma unroll 1
  for (int d = lane; d < cta.call.head_dim; d += 32) s = fmaf(element_value(row.q[d]), load_element(k, d, element), s);
#pragma unroll 1
  for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(0xffffffffu, s, step);
  if (key < work->view.prefix) s *= with.k_scale;
  return with.transformed ? transformed_score(s, with, row.temperature) : s;
}

/* Row `number` of the work tile: WIDTH columns of its output from first_column on, a lane each; and its lse. Its keys
 * are walked for the greatest score, and once more for every 32 columns: the code is what is kept small. */
template <int WIDTH, class Shape>
EA_DEVICE void redo_row(const ea_cta<Shape> &cta, ea_work work, int number, int lane, int first_column) {
  const ea_call &call = cta.call;
  const ea_portable_launch &with = cta.launch.scores;
  const ea_large_row row = large_row(cta, work, number);
  const int column_end = ea_min_i32(first_column + WIDTH, call.head_dim_v);
  float top = MINUS_INF;
#pragma unroll 1
  for (int c = first_column - 32; c < column_end; c += 32) {
    const bool first_walk = c < first_column;
    const int column = c + lane;
    const float base = top == MINUS_INF ? 0.0f : top;
    float sum = 0.0f, out = 0.0f;
#pragma unroll 1
    for (int key = work->keys.first; key < work->keys.end; key++) {
      if (!ea_visible(&work->view, row.query, key)) continue;
      const float s = score_of(cta, work, row, key, lane);
      if (first_walk) {
        top = max_nan(top, s);
      } else {
        float weight = ex2_approx((s - base) * with.scale_log2);
        sum += weight;
        if (key < work->view.prefix) weight *= with.v_scale;
        if (column < column_end) {
          const char *v = key_row(cta, work, key, true);
          out = fmaf(weight, load_element(v, column, element_of(cta, work, key)), out);
        }
      }
      if (top != top) break; /* NaN: so is the sum, whatever else there is */
    }
    if (first_walk) continue;
    const ea_row_end end = end_large_row(call, with, top, 0.0f, sum, row.head, true);
    uint16_t *to = (uint16_t *)call.out + row.token * call.out_token_stride + row.head * call.out_head_stride;
    if (column < column_end) to[column] = (uint16_t)cvt_x2(out * end.factor, 0.0f);
    if (c == 0 && lane == 0 && call.lse) {
      call.lse[row.token * call.lse_token_stride + row.head * call.lse_head_stride] = end.lse;
    }
  }
}

/* The rows of a warp whose sums are NaN, over what finish has written for them. sum: of the thread's two rows; the
 * warp's are the 16 from `first_row` on. */
template <int WIDTH, class Shape>
EA_DEVICE void redo_rows(const ea_cta<Shape> &cta, ea_work work, const float sum[2], int first_row, int lane,
                         int first_column) {
  const uint32_t low = __ballot_sync(0xffffffffu, sum[0] != sum[0]),
                 high = __ballot_sync(0xffffffffu, sum[1] != sum[1]);
  __syncwarp(); /* what other lanes wrote comes before what this one writes */
#pragma unroll 1
  for (int n = 0; n < 16; n++) {
    const bool marked = (n < 8 ? low : high) >> n % 8 * 4 & 1;
    if (marked && first_row + n < work->rows) redo_row<WIDTH>(cta, work, first_row + n, lane, first_column);
  }
}

#endif
