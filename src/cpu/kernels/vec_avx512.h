/* Sixteen floats: AVX-512 F, BW, DQ and VL. See vec_portable.h for what the names mean. */
#ifndef EA_CPU_KERNELS_VEC_H
#define EA_CPU_KERNELS_VEC_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/numeric.h"
#include "cpu/kernels/poly.h"

/* 12 x 2 accumulators, two vectors of B and one of A: 27 of the 32 registers. */
enum { VL = 16, MR = 12, NRV = 2, HAS_FMA = 1 };

typedef __m512 vf;
typedef __mmask16 vm;

#define EA_INLINE static inline __attribute__((always_inline))

EA_INLINE vf vf_set1(float x) {
  return _mm512_set1_ps(x);
}
EA_INLINE vf vf_load(const float *p) {
  return _mm512_load_ps(p);
}
EA_INLINE void vf_store(float *p, vf x) {
  _mm512_store_ps(p, x);
}
EA_INLINE vf vf_add(vf a, vf b) {
  return _mm512_add_ps(a, b);
}
EA_INLINE vf vf_sub(vf a, vf b) {
  return _mm512_sub_ps(a, b);
}
EA_INLINE vf vf_mul(vf a, vf b) {
  return _mm512_mul_ps(a, b);
}
EA_INLINE vf vf_div(vf a, vf b) {
  return _mm512_div_ps(a, b);
}
EA_INLINE vf vf_fma(vf a, vf b, vf c) {
  return _mm512_fmadd_ps(a, b, c);
}
EA_INLINE vf vf_select(vm mask, vf a, vf b) {
  return _mm512_mask_blend_ps(mask, b, a);
}
EA_INLINE vf vf_max(vf a, vf b) {
  return _mm512_max_ps(a, b);
}
EA_INLINE vm vm_gt(vf a, vf b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
EA_INLINE vf vf_abs(vf x) {
  return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
}
EA_INLINE vf vf_copysign(vf magnitude, vf sign) {
  const vf sign_bit = _mm512_set1_ps(-0.0f);
  return _mm512_or_ps(_mm512_andnot_ps(sign_bit, magnitude), _mm512_and_ps(sign_bit, sign));
}
/* The lowest n lanes; all for n >= VL, none for n <= 0. */
EA_INLINE vm vm_first(int32_t n) {
  return (vm)((UINT32_C(1) << (n < 0 ? 0 : n > VL ? VL : n)) - 1);
}
EA_INLINE vm vm_between(int32_t first, int32_t end) {
  return (vm)(vm_first(end) & ~vm_first(first));
}
EA_INLINE vm vm_load(const int32_t *p) {
  const __m512i x = _mm512_loadu_si512(p);
  return _mm512_test_epi32_mask(x, x);
}
EA_INLINE float vf_hmax(vf x) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
EA_INLINE float vf_hsum(vf x) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* 2^x; 0 at -Inf; exactly 1 at 0; NaN stays. VREDUCEPS gives x - floor(x), and 0 for an
 * infinite x; VSCALEFPS multiplies by 2^floor(x), which is 0 for -Inf (Intel SDM volume 2C,
 * tables of special cases). */
EA_INLINE vf vf_exp2(vf x) {
  const vf f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  return _mm512_scalef_ps(EA_EXP2_POLY(f), x);
}

EA_INLINE vf vf_load_as(const uint8_t *p, ea_dtype dtype) {
  switch (dtype) {
  case EA_F16:
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
  case EA_BF16:
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
  case EA_E5M2: /* the upper byte of an f16 */
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)), 8));
  case EA_E4M3: { /* an f16 with 8 less in the exponent's bias; its all ones are NaN */
    const __m256i ones = _mm256_set1_epi16(0x7f);
    const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    const __m256i magnitude = _mm256_and_si256(code, ones);
    const __m256i sign = _mm256_slli_epi16(_mm256_andnot_si256(ones, code), 8);
    const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, ones), _mm256_set1_epi16(0x7e00));
    const __m256i half = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign), nan);
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
  }
  default:
    return _mm512_loadu_ps(p);
  }
}
EA_INLINE void vf_store_as(uint8_t *p, ea_dtype dtype, vf x) {
  if (dtype == EA_F16) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return;
  }
  if (dtype == EA_F32) {
    _mm512_storeu_ps(p, x);
    return;
  }
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_blend_epi32(is_nan, rounded, quiet);
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}

EA_INLINE void vf_transpose(vf r[VL]) {
  vf a[VL];
#pragma GCC unroll 16
  for (int i = 0; i < VL; i += 2) {
    a[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < VL; i += 4) { /* r[i + c]: rows i .. i+3 of columns c, c+4, c+8, c+12 */
    r[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
#pragma GCC unroll 16
  for (int c = 0; c < 4; ++c) {
    a[c] = _mm512_shuffle_f32x4(r[c], r[c + 4], 0x88);     /* rows 0-7: columns c and c+8 */
    a[c + 4] = _mm512_shuffle_f32x4(r[c], r[c + 4], 0xdd); /* columns c+4 and c+12 */
    a[c + 8] = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0x88);
    a[c + 12] = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0xdd);
  }
#pragma GCC unroll 16
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm512_shuffle_f32x4(a[c], a[c + 8], 0x88);
    r[c + 4] = _mm512_shuffle_f32x4(a[c + 4], a[c + 12], 0x88);
    r[c + 8] = _mm512_shuffle_f32x4(a[c], a[c + 8], 0xdd);
    r[c + 12] = _mm512_shuffle_f32x4(a[c + 4], a[c + 12], 0xdd);
  }
}

#endif
