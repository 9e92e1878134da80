/* Eight floats: AVX2, FMA and F16C. See vec_portable.h for what the names mean. */
#ifndef EA_CPU_KERNELS_VEC_H
#define EA_CPU_KERNELS_VEC_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/numeric.h"
#include "cpu/kernels/poly.h"

/* 6 x 2 accumulators, two vectors of B and one of A: 15 of the 16 registers. */
enum { VL = 8, MR = 6, NRV = 2, HAS_FMA = 1 };

typedef __m256 vf;
typedef __m256 vm; /* all ones or all zeros a lane */

#define EA_INLINE static inline __attribute__((always_inline))

EA_INLINE vf vf_set1(float x) {
  return _mm256_set1_ps(x);
}
EA_INLINE vf vf_load(const float *p) {
  return _mm256_load_ps(p);
}
EA_INLINE void vf_store(float *p, vf x) {
  _mm256_store_ps(p, x);
}
EA_INLINE vf vf_add(vf a, vf b) {
  return _mm256_add_ps(a, b);
}
EA_INLINE vf vf_sub(vf a, vf b) {
  return _mm256_sub_ps(a, b);
}
EA_INLINE vf vf_mul(vf a, vf b) {
  return _mm256_mul_ps(a, b);
}
EA_INLINE vf vf_div(vf a, vf b) {
  return _mm256_div_ps(a, b);
}
EA_INLINE vf vf_fma(vf a, vf b, vf c) {
  return _mm256_fmadd_ps(a, b, c);
}
EA_INLINE vf vf_select(vm mask, vf a, vf b) {
  return _mm256_blendv_ps(b, a, mask);
}
EA_INLINE vf vf_max(vf a, vf b) {
  return _mm256_max_ps(a, b);
}
EA_INLINE vm vm_gt(vf a, vf b) {
  return _mm256_cmp_ps(a, b, _CMP_GT_OQ);
}
EA_INLINE vf vf_abs(vf x) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
EA_INLINE vf vf_copysign(vf magnitude, vf sign) {
  const vf sign_bit = _mm256_set1_ps(-0.0f);
  return _mm256_or_ps(_mm256_andnot_ps(sign_bit, magnitude), _mm256_and_ps(sign_bit, sign));
}
EA_INLINE vm vm_between(int32_t first, int32_t end) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane);
  return _mm256_castsi256_ps(_mm256_andnot_si256(before, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane)));
}
EA_INLINE vm vm_load(const int32_t *p) {
  const __m256i zero = _mm256_cmpeq_epi32(_mm256_loadu_si256((const __m256i *)p), _mm256_setzero_si256());
  return _mm256_castsi256_ps(_mm256_xor_si256(zero, _mm256_set1_epi32(-1)));
}
EA_INLINE float vf_hmax(vf x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
EA_INLINE float vf_hsum(vf x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* 2^x for x <= 126; 0 from -127 down, -Inf included; exactly 1 at 0; NaN stays. (Below -126
 * what is left of the mantissa is a subnormal of no meaning, as small as the true value.) */
EA_INLINE vf vf_exp2(vf x) {
  const vf clamped = _mm256_max_ps(_mm256_set1_ps(-127.0f), x); /* in this order NaN gets through */
  const vf n = _mm256_floor_ps(clamped);
  const vf f = _mm256_sub_ps(clamped, n);
  const __m256i shifted = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23); /* NaN: INT32_MIN, shifted out */
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(EA_EXP2_POLY(f)), shifted));
}

EA_INLINE vf vf_load_as(const uint8_t *p, ea_dtype dtype) {
  switch (dtype) {
  case EA_F16:
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
  case EA_BF16:
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
  case EA_E5M2: /* the upper byte of an f16 */
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p)), 8));
  case EA_E4M3: { /* an f16 with 8 less in the exponent's bias; its all ones are NaN */
    const __m128i code = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));
    const __m128i magnitude = _mm_and_si128(code, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_andnot_si128(_mm_set1_epi16(0x7f), code), 8);
    const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7e00));
    const __m128i half = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign), nan);
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
  }
  default:
    return _mm256_loadu_ps((const float *)p);
  }
}
EA_INLINE void vf_store_as(uint8_t *p, ea_dtype dtype, vf x) {
  if (dtype == EA_F16) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return;
  }
  if (dtype == EA_F32) {
    _mm256_storeu_ps((float *)p, x);
    return;
  }
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256i kept =
      _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan));
  const __m256i high = _mm256_srli_epi32(kept, 16);
  _mm_storeu_si128((__m128i *)p, _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
}

EA_INLINE void vf_transpose(vf r[VL]) {
  vf a[VL];
  vf b[VL];
  for (int i = 0; i < VL; i += 2) {
    a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < VL; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int i = 0; i < VL / 2; ++i) {
    r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

#endif
