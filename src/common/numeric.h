/* The floating-point types of tensors, to and from float and double. Widening is exact;
 * narrowing rounds once, to nearest even, straight from the double (a detour through float
 * would round twice). Written for being right: the reference, merge, the tests and the case
 * generator use it, the fast backends have their own vector forms. */
#ifndef EA_COMMON_NUMERIC_H
#define EA_COMMON_NUMERIC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "extattn.h"

/* A binary format: sign, exponent_bits, mantissa_bits from the top; bias 2^(exponent_bits-1)-1.
 * finite_only (OCP FP8 E4M3): the highest exponent holds ordinary values, there is no Inf,
 * and only all ones is NaN. Otherwise as IEEE 754. */
typedef struct ea_float_format {
  int exponent_bits;
  int mantissa_bits;
  bool finite_only;
} ea_float_format;

static const ea_float_format ea_format_bf16 = {8, 7, false};
static const ea_float_format ea_format_f16 = {5, 10, false};
static const ea_float_format ea_format_e4m3 = {4, 3, true};
static const ea_float_format ea_format_e5m2 = {5, 2, false};

static inline uint64_t ea_double_bits(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
static inline double ea_bits_double(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Code of the double that is nearest to x, ties to the even code. Past the largest finite
 * value: Inf, or NaN in a format that has no Inf. NaN keeps its sign and becomes quiet. */
static inline uint32_t ea_float_encode(double x, ea_float_format format) {
  const int mantissa_bits = format.mantissa_bits;
  const int min_exponent = 2 - (1 << (format.exponent_bits - 1)); /* of a normal value: 1 - bias */
  const uint32_t exponent_ones = ((UINT32_C(1) << format.exponent_bits) - 1) << mantissa_bits;
  const uint32_t all_ones = exponent_ones | ((UINT32_C(1) << mantissa_bits) - 1);
  const uint32_t overflow = format.finite_only ? all_ones : exponent_ones;
  const uint32_t nan = format.finite_only ? all_ones : exponent_ones | UINT32_C(1) << (mantissa_bits - 1);

  const uint64_t bits = ea_double_bits(x);
  const uint64_t magnitude = bits & (UINT64_MAX >> 1);
  const uint32_t sign = (uint32_t)(bits >> 63) << (format.exponent_bits + mantissa_bits);
  if (magnitude > UINT64_C(0x7ff) << 52) return sign | nan;
  if (magnitude == UINT64_C(0x7ff) << 52) return sign | overflow;

  const int exponent = (int)(magnitude >> 52) - 1023;
  const int denormal = exponent < min_exponent ? min_exponent - exponent : 0; /* bits lost below the least exponent */
  const int shift = 52 - mantissa_bits + denormal;
  if (shift > 53) return sign; /* less than half of the least value; all double subnormals are here */
  const uint64_t significand = (magnitude & (UINT64_MAX >> 12)) | UINT64_C(1) << 52;
  const uint64_t rest = significand & ((UINT64_C(1) << shift) - 1);
  const uint64_t half = UINT64_C(1) << (shift - 1);
  uint32_t kept = (uint32_t)(significand >> shift);
  if (rest > half || (rest == half && (kept & 1))) ++kept;

  /* kept still holds the leading one of a normal value, which counts as one exponent; a carry
   * out of the mantissa moves into the exponent by itself. */
  const uint32_t code = ((uint32_t)(exponent + denormal - min_exponent) << mantissa_bits) + kept;
  return sign | (code < overflow ? code : overflow);
}

static inline double ea_float_decode(uint32_t code, ea_float_format format) {
  const int mantissa_bits = format.mantissa_bits;
  const uint32_t exponent_max = (UINT32_C(1) << format.exponent_bits) - 1;
  const uint32_t mantissa_max = (UINT32_C(1) << mantissa_bits) - 1;
  const uint32_t exponent = (code >> mantissa_bits) & exponent_max;
  const uint32_t mantissa = code & mantissa_max;
  const uint64_t sign = (uint64_t)(code >> (format.exponent_bits + mantissa_bits) & 1) << 63;

  if (exponent == exponent_max && (!format.finite_only || mantissa == mantissa_max)) {
    const bool nan = format.finite_only || mantissa != 0;
    return ea_bits_double(sign | UINT64_C(0x7ff) << 52 | (uint64_t)nan << 51);
  }
  const uint32_t significand = exponent ? mantissa + mantissa_max + 1 : mantissa;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int power = (int)(exponent ? exponent : 1) - bias - mantissa_bits;
  const double value = (double)significand * ea_bits_double((uint64_t)(1023 + power) << 52);
  return ea_bits_double(sign | ea_double_bits(value));
}

static inline float ea_bf16_to_float(uint16_t code) {
  const uint32_t bits = (uint32_t)code << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static inline float ea_f16_to_float(uint16_t code) {
  return (float)ea_float_decode(code, ea_format_f16);
}
static inline float ea_e4m3_to_float(uint8_t code) {
  return (float)ea_float_decode(code, ea_format_e4m3);
}
static inline float ea_e5m2_to_float(uint8_t code) {
  return (float)ea_float_decode(code, ea_format_e5m2);
}

/* A float widens to double exactly, so these serve both. */
static inline uint16_t ea_bf16_from_double(double x) {
  return (uint16_t)ea_float_encode(x, ea_format_bf16);
}
static inline uint16_t ea_f16_from_double(double x) {
  return (uint16_t)ea_float_encode(x, ea_format_f16);
}
static inline uint8_t ea_e4m3_from_double(double x) {
  return (uint8_t)ea_float_encode(x, ea_format_e4m3);
}
static inline uint8_t ea_e5m2_from_double(double x) {
  return (uint8_t)ea_float_encode(x, ea_format_e5m2);
}

/* Element i of a tensor of a floating-point type. */
static inline double ea_load_double(const void *base, ea_dtype dtype, int64_t i) {
  switch (dtype) {
  case EA_F32:
    return ((const float *)base)[i];
  case EA_F16:
    return ea_f16_to_float(((const uint16_t *)base)[i]);
  case EA_BF16:
    return ea_bf16_to_float(((const uint16_t *)base)[i]);
  case EA_E4M3:
    return ea_e4m3_to_float(((const uint8_t *)base)[i]);
  case EA_E5M2:
    return ea_e5m2_to_float(((const uint8_t *)base)[i]);
  default:
    return 0.0;
  }
}

static inline void ea_store_double(void *base, ea_dtype dtype, int64_t i, double x) {
  switch (dtype) {
  case EA_F32:
    ((float *)base)[i] = (float)x;
    break;
  case EA_F16:
    ((uint16_t *)base)[i] = ea_f16_from_double(x);
    break;
  case EA_BF16:
    ((uint16_t *)base)[i] = ea_bf16_from_double(x);
    break;
  case EA_E4M3:
    ((uint8_t *)base)[i] = ea_e4m3_from_double(x);
    break;
  case EA_E5M2:
    ((uint8_t *)base)[i] = ea_e5m2_from_double(x);
    break;
  default:
    break;
  }
}

/* n elements from element i on. */
static inline void ea_load_doubles(double *to, const void *base, ea_dtype dtype, int64_t i, int32_t n) {
  switch (dtype) { /* the two that matter for speed; the switch stays out of their loops */
  case EA_F32:
    for (int32_t d = 0; d < n; ++d) to[d] = ((const float *)base)[i + d];
    break;
  case EA_BF16:
    for (int32_t d = 0; d < n; ++d) to[d] = ea_bf16_to_float(((const uint16_t *)base)[i + d]);
    break;
  default:
    for (int32_t d = 0; d < n; ++d) to[d] = ea_load_double(base, dtype, i + d);
    break;
  }
}

#endif
