/* Both products by vector instructions: C[MR][NRV * VL] = A * B with all of C in registers, one
 * unit of A broadcast against NRV vectors of B at a time. Each element of C is one chain of
 * multiply-adds in the order of the units, whatever the shape. */
#ifndef EA_CPU_KERNELS_PRODUCTS_H
#define EA_CPU_KERNELS_PRODUCTS_H

#include "cpu/kernels/rows.h"

/* Rows and keys that a score product takes at once. */
enum { ROW_STEP = MR, KEY_STEP = NRV * VL };

/* Queries are packed as [rows / MR][head_units][MR]. */
EA_INLINE void query_store(float *q, const block_dims *dims, int32_t row, int32_t unit, vf x) {
  _Alignas(64) float units[VL];
  vf_store(units, x);
  float *to = q + ((size_t)(row / MR) * (size_t)dims->head_units + (size_t)unit) * MR + row % MR;
  for (int l = 0; l < VL; ++l) to[l * MR] = units[l];
}

/* acc[r][c] = sum over u < units of A(r, u) * B(u, c), where A(r, u) is at a[r * a_row + u * a_step]. */
EA_INLINE void multiply(vf acc[MR][NRV], int nrv, const float *a, size_t a_row, size_t a_step, const float *b,
                        size_t panel, int32_t units) {
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < nrv; ++c) acc[r][c] = vf_set1(0.0f);
  }
  for (int32_t u = 0; u < units; ++u) {
    vf column[NRV];
#pragma GCC unroll 4
    for (int c = 0; c < nrv; ++c) column[c] = vf_load(b + (size_t)c * panel);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      const vf broadcast = vf_set1(a[(size_t)r * a_row]);
#pragma GCC unroll 4
      for (int c = 0; c < nrv; ++c) acc[r][c] = unit_mac(acc[r][c], broadcast, column[c]);
    }
    a += a_step;
    b += VL;
  }
}

/* s[0 .. rows)[first .. end) for the rows from r0 on; whole groups of MR rows. */
static void scores_product(float *s, const float *q, const float *k, const block_dims *dims, int32_t r0, int32_t rows,
                           int32_t first, int32_t end) {
  const int32_t units = (dims->head_dim + UNIT - 1) / UNIT;
  for (int32_t n = first; n < end; n += KEY_STEP) {
    const float *panels = k + (size_t)(n / VL) * dims->key_panel;
    for (int32_t r = 0; r < rows; r += MR) {
      vf acc[MR][NRV];
      multiply(acc, NRV, q + (size_t)(r0 + r) * (size_t)dims->head_units, 1, MR, panels, dims->key_panel, units);
      float *to = s + (size_t)r * TILE_N + n;
      for (int i = 0; i < MR; ++i) {
        for (int c = 0; c < NRV; ++c) vf_store(to + i * TILE_N + c * VL, acc[i][c]);
      }
    }
  }
}

EA_INLINE void values_product_at(float *o, const float *p, const float *v, const float *alpha, const block_dims *dims,
                                 int nrv, int32_t units) {
  vf acc[MR][NRV];
  multiply(acc, nrv, p, TILE_N / UNIT, 1, v, dims->value_panel, units);
  for (int i = 0; i < MR; ++i) {
    float *row = o + (size_t)i * (size_t)dims->value_width;
    const vf before = vf_set1(alpha[i]);
    for (int c = 0; c < nrv; ++c) vf_store(row + c * VL, vf_fma(vf_load(row + c * VL), before, acc[i][c]));
  }
}

/* o = alpha * o + p * v over the keys [first, end), for the rows from r0 on. */
static void values_product(float *o, const float *p, const float *v, const float *alpha, const block_dims *dims,
                           int32_t r0, int32_t rows, int32_t first, int32_t end) {
  const int32_t units = (end - first) / UNIT;
  const int32_t paired = dims->value_width / (NRV * VL) * (NRV * VL);
  p += first / UNIT;
  v += (size_t)(first / UNIT) * VL;
  o += (size_t)r0 * (size_t)dims->value_width;
  for (int32_t d = 0; d < paired; d += NRV * VL) {
    const float *panels = v + (size_t)(d / VL) * dims->value_panel;
    for (int32_t r = 0; r < rows; r += MR) {
      values_product_at(o + (size_t)r * (size_t)dims->value_width + d, p + (size_t)r * (TILE_N / UNIT), panels,
                        alpha + r, dims, NRV, units);
    }
  }
  for (int32_t d = paired; d < dims->value_width; d += VL) {
    const float *panel = v + (size_t)(d / VL) * dims->value_panel;
    for (int32_t r = 0; r < rows; r += MR) {
      values_product_at(o + (size_t)r * (size_t)dims->value_width + d, p + (size_t)r * (TILE_N / UNIT), panel,
                        alpha + r, dims, 1, units);
    }
  }
}

#endif
