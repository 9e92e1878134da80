/* Products of bf16 with f32 sums (AVX512_BF16, AMX): a unit is a pair of elements that lie side
 * by side in the direction of the sum. bf16, e4m3 and e5m2 are all exact in bf16. */
#ifndef EA_CPU_KERNELS_UNIT_H
#define EA_CPU_KERNELS_UNIT_H

#include "cpu/kernels/rows.h"

enum { UNIT = 2 };
#define UNIT_DTYPE EA_BF16

/* acc + a0 * b0 + a1 * b1, for a unit of A and of every column of B. */
EA_INLINE vf unit_mac(vf acc, vf a, vf b) {
  return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
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
    default:                                                                                                           \
      f(__VA_ARGS__, EA_BF16);                                                                                         \
    }                                                                                                                  \
  } while (0)

EA_INLINE vf units_load_as(const uint8_t *p, ea_dtype dtype) {
  if (dtype == EA_BF16) return _mm512_loadu_ps(p);
  const vf low = vf_load_as(p, dtype);
  const vf high = vf_load_as(p + VL, dtype);
  return (vf)_mm512_cvtne2ps_pbh(high, low);
}

/* VL units of a row of dim elements, from `unit` on; zeros past the row's end. */
EA_INLINE vf load_units(const uint8_t *row, int32_t unit, int32_t dim, ea_dtype dtype) {
  const int32_t at = unit * UNIT;
  const uint8_t *from = row + (size_t)at * bytes_of(dtype);
  if (at + VL * UNIT <= dim) return units_load_as(from, dtype);
  uint8_t tail[VL * UNIT * sizeof(uint16_t)] = {0};
  if (at < dim) memcpy(tail, from, (size_t)(dim - at) * bytes_of(dtype));
  return units_load_as(tail, dtype);
}

/* VL elements of a row from `at` on, each in the lower half of a word. */
EA_INLINE __m512i load_values(const uint8_t *row, int32_t at, int32_t dim, ea_dtype dtype) {
  const uint8_t *from = row + (size_t)at * bytes_of(dtype);
  uint8_t tail[VL * sizeof(uint16_t)] = {0};
  if (at + VL > dim) {
    memcpy(tail, from, (size_t)(dim - at) * bytes_of(dtype));
    from = tail;
  }
  if (dtype == EA_BF16) return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
  return _mm512_srli_epi32(_mm512_castps_si512(vf_load_as(from, dtype)), 16);
}

EA_INLINE void values_pack_pair(float *to, const block_dims *dims, const uint8_t *const *rows, ea_dtype first,
                                ea_dtype last) {
  for (int32_t d = 0; d < dims->head_dim_v; d += VL) {
    const __m512i even = load_values(rows[0], d, dims->head_dim_v, first);
    const __m512i odd = load_values(rows[1], d, dims->head_dim_v, last);
    vf_store(to, _mm512_castsi512_ps(_mm512_or_si512(even, _mm512_slli_epi32(odd, 16))));
    to += dims->value_panel;
  }
}
EA_INLINE void values_pack_alike(float *to, const block_dims *dims, const uint8_t *const *rows, ea_dtype dtype) {
  values_pack_pair(to, dims, rows, dtype, dtype);
}

/* A unit of the values of UNIT keys, first and last of the types given, into every panel. */
static inline void values_pack(float *to, const block_dims *dims, const uint8_t *const *rows, ea_dtype first,
                               ea_dtype last) {
  if (first == last) {
    EA_WITH_DTYPE(first, values_pack_alike, to, dims, rows);
  } else {
    values_pack_pair(to, dims, rows, first, last); /* where the prefix ends within the pair */
  }
}

static inline uint32_t unit_bits(float unit) {
  uint32_t bits;
  memcpy(&bits, &unit, sizeof bits);
  return bits;
}

static inline bool unit_bad(uint32_t bits) {
  return (bits & 0x7f80u) == 0x7f80u || (bits & 0x7f800000u) == 0x7f800000u;
}

static inline bool units_all_finite(const float *units, size_t count) {
  uint32_t bad = 0;
  for (size_t u = 0; u < count; ++u) bad |= (uint32_t)unit_bad(unit_bits(units[u]));
  return bad == 0;
}

static inline void units_keep_finite(float *units, size_t count) {
  for (size_t u = 0; u < count; ++u) {
    uint32_t bits = unit_bits(units[u]);
    if ((bits & 0x7f80u) == 0x7f80u) bits &= 0xffff0000u;
    if ((bits & 0x7f800000u) == 0x7f800000u) bits &= 0xffffu;
    memcpy(&units[u], &bits, sizeof bits);
  }
}

/* Weights of 2 * VL keys, rounded to bf16. */
EA_INLINE void weights_store(float *to, vf first, vf second) {
  vf_store(to, (vf)_mm512_cvtne2ps_pbh(second, first));
}

/* The weight of key n in row r of a strip's weights. */
static inline float weight_at(const float *weights, int32_t r, int32_t n) {
  const uint32_t pair = unit_bits(weights[((size_t)r * TILE_N + (size_t)n) / UNIT]);
  return ea_bf16_to_float((uint16_t)(n % UNIT ? pair >> 16 : pair));
}

/* VDPBF16PS and TDPBF16PS take subnormals for zero whatever MXCSR says; here everything else
 * is made to do the same, so that a sum that they leave alone is left alone everywhere. */
typedef struct bf16_state {
  unsigned csr;
} bf16_state;

static inline void bf16_enter(void *state) {
  bf16_state *saved = state;
  saved->csr = _mm_getcsr();
  _mm_setcsr(saved->csr | _MM_FLUSH_ZERO_ON | 0x40 /* denormals are zero */);
}
static inline void bf16_leave(void *state) {
  const bf16_state *saved = state;
  _mm_setcsr(saved->csr);
}

#endif
