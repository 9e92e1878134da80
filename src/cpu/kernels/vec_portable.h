/* Four floats through the compiler's vector extension: what any processor can run.
 *
 * Every vec_*.h gives the same names: VL lanes, vf (floats), vm (a lane mask), the register
 * blocking MR x NRV that suits the register file, and the functions below. vf_max returns its
 * second operand where either is NaN. */
#ifndef EA_CPU_KERNELS_VEC_H
#define EA_CPU_KERNELS_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/numeric.h"
#include "cpu/kernels/poly.h"

enum { VL = 4, MR = 4, NRV = 2, HAS_FMA = 0 };

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vm __attribute__((vector_size(16)));

#define EA_INLINE static inline __attribute__((always_inline))

EA_INLINE vf vf_set1(float x) {
  return (vf){x, x, x, x};
}
EA_INLINE vf vf_load(const float *p) {
  vf x;
  memcpy(&x, p, sizeof x);
  return x;
}
EA_INLINE void vf_store(float *p, vf x) {
  memcpy(p, &x, sizeof x);
}
EA_INLINE vf vf_add(vf a, vf b) {
  return a + b;
}
EA_INLINE vf vf_sub(vf a, vf b) {
  return a - b;
}
EA_INLINE vf vf_mul(vf a, vf b) {
  return a * b;
}
EA_INLINE vf vf_div(vf a, vf b) {
  return a / b;
}
EA_INLINE vf vf_fma(vf a, vf b, vf c) {
  return a * b + c;
}
EA_INLINE vf vf_select(vm mask, vf a, vf b) {
  return (vf)((mask & (vm)a) | (~mask & (vm)b));
}
EA_INLINE vf vf_max(vf a, vf b) {
  return vf_select(a > b, a, b);
}
EA_INLINE vm vm_gt(vf a, vf b) {
  return a > b;
}
EA_INLINE vf vf_abs(vf x) {
  return (vf)((vm)x & 0x7fffffff);
}
EA_INLINE vf vf_copysign(vf magnitude, vf sign) {
  return (vf)(((vm)magnitude & 0x7fffffff) | ((vm)sign & INT32_MIN));
}
/* Lanes l with first <= l < end. */
EA_INLINE vm vm_between(int32_t first, int32_t end) {
  const vm lane = {0, 1, 2, 3};
  return (lane >= first) & (lane < end);
}
/* Lanes whose int32 is not zero. */
EA_INLINE vm vm_load(const int32_t *p) {
  vm x;
  memcpy(&x, p, sizeof x);
  return x != 0;
}
EA_INLINE float vf_hmax(vf x) {
  const float a = x[0] > x[1] ? x[0] : x[1];
  const float b = x[2] > x[3] ? x[2] : x[3];
  return a > b ? a : b;
}
EA_INLINE float vf_hsum(vf x) {
  return (x[0] + x[2]) + (x[1] + x[3]);
}

/* 2^x for x <= 126; 0 from -127 down, -Inf included; exactly 1 at 0; NaN stays. */
EA_INLINE vf vf_exp2(vf x) {
  const vf lowest = vf_set1(-127.0f);
  const vf clamped = vf_select(x > lowest, x, lowest); /* NaN too, so that the conversion is defined */
  vm n = __builtin_convertvector(clamped, vm);
  n += __builtin_convertvector(n, vf) > clamped; /* truncated: the true comparison is -1 */
  const vf f = clamped - __builtin_convertvector(n, vf);
  const vf result = (vf)((vm)EA_EXP2_POLY(f) + (n << 23));
  return vf_select(x == x, result, x);
}

/* VL elements of a type, converted exactly. dtype is a constant where this is inlined. */
EA_INLINE vf vf_load_as(const uint8_t *p, ea_dtype dtype) {
  vf x = {0};
  if (dtype == EA_F32) {
    memcpy(&x, p, sizeof x);
    return x;
  }
  /* The 16- and 8-bit types: exponent and mantissa are moved into place as if they were a
   * float's, and a multiplication repairs the exponent's bias (subnormals included). */
  vm code = {0};
  vm sign = {0};
  if (dtype == EA_E4M3 || dtype == EA_E5M2) {
    code = (vm){p[0], p[1], p[2], p[3]};
    sign = (code & 0x80) << 24;
    code &= 0x7f;
  } else {
    uint16_t half[VL];
    memcpy(half, p, sizeof half);
    code = (vm){half[0], half[1], half[2], half[3]};
    if (dtype == EA_BF16) return (vf)(code << 16);
    sign = (code & 0x8000) << 16;
    code &= 0x7fff;
  }
  const int shift = dtype == EA_F16 ? 13 : dtype == EA_E4M3 ? 20 : 21;
  const float bias = dtype == EA_E4M3 ? 0x1p120f : 0x1p112f;
  const int32_t first_special = dtype == EA_F16 ? 0x7c00 : dtype == EA_E4M3 ? 0x7f : 0x7c;
  const vm magnitude = (vm)((vf)(code << shift) * bias);
  const vm special = (code >= first_special) & (INT32_C(0x7f800000) | (code << shift));
  return (vf)(sign | magnitude | special);
}
EA_INLINE void vf_store_as(uint8_t *p, ea_dtype dtype, vf x) {
  for (int l = 0; l < VL; ++l) ea_store_double(p, dtype, l, (double)x[l]);
}

/* Rows to columns. */
EA_INLINE void vf_transpose(vf r[VL]) {
  vf t[VL];
  for (int i = 0; i < VL; ++i) t[i] = (vf){r[0][i], r[1][i], r[2][i], r[3][i]};
  for (int i = 0; i < VL; ++i) r[i] = t[i];
}

#endif
