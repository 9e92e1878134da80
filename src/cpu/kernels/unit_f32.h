/* Products of f32: a unit is one element. Every type of tensor is widened to f32 on loading. */
#ifndef EA_CPU_KERNELS_UNIT_H
#define EA_CPU_KERNELS_UNIT_H

#include "cpu/kernels/rows.h"

enum { UNIT = 1 };
#define UNIT_DTYPE EA_F32

/* acc + a * b, for a unit of A and of every column of B. */
EA_INLINE vf unit_mac(vf acc, vf a, vf b) {
  return vf_fma(a, b, acc);
}

/* Calls f(..., dtype) with dtype a constant, so that its conversion is inlined. */
#define EA_WITH_DTYPE(dtype, f, ...)                                                                                   \
  do {                                                                                                                 \
    switch (dtype) {                                                                                                   \
    case EA_E4M3:                                                                                                      \
      f(__VA_ARGS__, EA_E4M3);                                                                                         \
      break;                                                                                                           \
    case EA_E5M2:                                                                                                      \
      f(__VA_ARGS__, EA_E5M2);                                                                                         \
      break;                                                                                                           \
    case EA_F16:                                                                                                       \
      f(__VA_ARGS__, EA_F16);                                                                                          \
      break;                                                                                                           \
    case EA_BF16:                                                                                                      \
      f(__VA_ARGS__, EA_BF16);                                                                                         \
      break;                                                                                                           \
    default:                                                                                                           \
      f(__VA_ARGS__, EA_F32);                                                                                          \
    }                                                                                                                  \
  } while (0)

EA_INLINE vf units_load_as(const uint8_t *p, ea_dtype dtype) {
  return vf_load_as(p, dtype);
}

/* VL units of a row of dim elements, from `unit` on; zeros past the row's end. */
EA_INLINE vf load_units(const uint8_t *row, int32_t unit, int32_t dim, ea_dtype dtype) {
  const uint8_t *from = row + (size_t)unit * bytes_of(dtype);
  if (unit + VL <= dim) return units_load_as(from, dtype);
  uint8_t tail[VL * sizeof(float)] = {0};
  if (unit < dim) memcpy(tail, from, (size_t)(dim - unit) * bytes_of(dtype));
  return units_load_as(tail, dtype);
}

EA_INLINE void values_pack_row(float *to, const block_dims *dims, const uint8_t *row, ea_dtype dtype) {
  for (int32_t d = 0; d < dims->head_dim_v; d += VL) {
    vf_store(to, load_units(row, d, dims->head_dim_v, dtype));
    to += dims->value_panel;
  }
}

/* A unit of the values of UNIT keys, first and last of the types given, into every panel. */
static inline void values_pack(float *to, const block_dims *dims, const uint8_t *const *rows, ea_dtype first,
                               ea_dtype last) {
  (void)last;
  EA_WITH_DTYPE(first, values_pack_row, to, dims, rows[0]);
}

static inline uint32_t unit_bits(float unit) {
  uint32_t bits;
  memcpy(&bits, &unit, sizeof bits);
  return bits;
}

static inline bool units_all_finite(const float *units, size_t count) {
  uint32_t bad = 0;
  for (size_t u = 0; u < count; ++u) bad |= (uint32_t)((unit_bits(units[u]) & 0x7f800000u) == 0x7f800000u);
  return bad == 0;
}

static inline void units_keep_finite(float *units, size_t count) {
  for (size_t u = 0; u < count; ++u) {
    if (!isfinite(units[u])) units[u] = 0.0f;
  }
}

/* Weights of 2 * VL keys. */
EA_INLINE void weights_store(float *to, vf first, vf second) {
  vf_store(to, first);
  vf_store(to + VL, second);
}

/* The weight of key n in row r of a strip's weights. */
static inline float weight_at(const float *weights, int32_t r, int32_t n) {
  return weights[(size_t)r * TILE_N + (size_t)n];
}

#endif
