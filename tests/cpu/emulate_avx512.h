/* The AVX-512 and AMX intrinsics that the CPU kernels use, in plain C on AVX2: included ahead
 * of a kernel's file (-include), it makes the kernel run on a processor without them, so that
 * its packing, masks and order of sums can be tested anywhere. What an instruction does with
 * special values and subnormals is taken from the Intel SDM, volumes 2A to 2D. */
#ifndef EA_TESTS_EMULATE_AVX512_H
#define EA_TESTS_EMULATE_AVX512_H

#include <immintrin.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EMULATE static __attribute__((unused))

/* The lanes of a register, for loops over them. */
typedef union emu_lanes {
  float f[16];
  uint32_t u[16];
  uint16_t h[32];
  __m256 half[2];
  __m256i half_i[2];
} emu_lanes;

EMULATE emu_lanes emu_of(const void *x) {
  emu_lanes lanes;
  memcpy(&lanes, x, sizeof lanes);
  return lanes;
}
EMULATE __m512 emu_ps(emu_lanes lanes) {
  __m512 x;
  memcpy(&x, &lanes, sizeof x);
  return x;
}
EMULATE __m512i emu_si(emu_lanes lanes) {
  __m512i x;
  memcpy(&x, &lanes, sizeof x);
  return x;
}

/* Each intrinsic is defined under its own name with emu in front; the macros at the end make
 * the kernels call it. EMU_LANES: one expression of lane i. */
#define EMU_LANES(type, member, expression)                                                                            \
  do {                                                                                                                 \
    emu_lanes r;                                                                                                       \
    for (int i = 0; i < 16; ++i) r.member[i] = (expression);                                                           \
    return emu_##type(r);                                                                                              \
  } while (0)

EMULATE __m512 emu_mm512_set1_ps(float x) {
  EMU_LANES(ps, f, x);
}
EMULATE __m512i emu_mm512_set1_epi32(int x) {
  EMU_LANES(si, u, (uint32_t)x);
}
/* Aligned loads and stores fault on other addresses, as the real ones do. */
EMULATE __m512 emu_mm512_load_ps(const void *p) {
  const emu_lanes r = {.half = {_mm256_load_ps(p), _mm256_load_ps((const float *)p + 8)}};
  if ((uintptr_t)p % 64 != 0) abort();
  return emu_ps(r);
}
EMULATE void emu_mm512_store_ps(void *p, __m512 x) {
  if ((uintptr_t)p % 64 != 0) abort();
  memcpy(p, &x, sizeof x);
}
EMULATE __m512 emu_mm512_loadu_ps(const void *p) {
  return emu_ps(emu_of(p));
}
EMULATE __m512i emu_mm512_loadu_si512(const void *p) {
  return emu_si(emu_of(p));
}
EMULATE void emu_mm512_storeu_ps(void *p, __m512 x) {
  memcpy(p, &x, sizeof x);
}
EMULATE __m512 emu_mm512_castsi512_ps(__m512i x) {
  return emu_ps(emu_of(&x));
}
EMULATE __m512i emu_mm512_castps_si512(__m512 x) {
  return emu_si(emu_of(&x));
}
EMULATE __m256 emu_mm512_castps512_ps256(__m512 x) {
  return emu_of(&x).half[0];
}
EMULATE __m256 emu_mm512_extractf32x8_ps(__m512 x, int half) {
  return emu_of(&x).half[half];
}

#define EMU_BINARY_PS(name, expression)                                                                                \
  EMULATE __m512 emu_mm512_##name##_ps(__m512 x, __m512 y) {                                                           \
    const emu_lanes a = emu_of(&x);                                                                                    \
    const emu_lanes b = emu_of(&y);                                                                                    \
    EMU_LANES(ps, f, expression);                                                                                      \
  }
EMU_BINARY_PS(add, a.f[i] + b.f[i])
EMU_BINARY_PS(sub, a.f[i] - b.f[i])
EMU_BINARY_PS(mul, a.f[i] * b.f[i])
EMU_BINARY_PS(div, a.f[i] / b.f[i])
EMU_BINARY_PS(max, a.f[i] > b.f[i] ? a.f[i] : b.f[i]) /* the second operand where either is NaN */

#define EMU_BINARY_BITS(name, type, register, expression)                                                              \
  EMULATE register emu_mm512_##name(register x, register y) {                                                          \
    const emu_lanes a = emu_of(&x);                                                                                    \
    const emu_lanes b = emu_of(&y);                                                                                    \
    EMU_LANES(type, u, expression);                                                                                    \
  }
EMU_BINARY_BITS(and_ps, ps, __m512, a.u[i] & b.u[i])
EMU_BINARY_BITS(or_ps, ps, __m512, a.u[i] | b.u[i])
EMU_BINARY_BITS(andnot_ps, ps, __m512, ~a.u[i] & b.u[i])
EMU_BINARY_BITS(and_si512, si, __m512i, a.u[i] & b.u[i])
EMU_BINARY_BITS(or_si512, si, __m512i, a.u[i] | b.u[i])
EMU_BINARY_BITS(add_epi32, si, __m512i, a.u[i] + b.u[i])

EMULATE __m512i emu_mm512_slli_epi32(__m512i x, unsigned count) {
  const emu_lanes a = emu_of(&x);
  EMU_LANES(si, u, a.u[i] << count);
}
EMULATE __m512i emu_mm512_srli_epi32(__m512i x, unsigned count) {
  const emu_lanes a = emu_of(&x);
  EMU_LANES(si, u, a.u[i] >> count);
}
EMULATE __m512 emu_mm512_fmadd_ps(__m512 x, __m512 y, __m512 z) {
  const emu_lanes a = emu_of(&x);
  const emu_lanes b = emu_of(&y);
  const emu_lanes c = emu_of(&z);
  EMU_LANES(ps, f, fmaf(a.f[i], b.f[i], c.f[i]));
}

EMULATE __mmask16 emu_mm512_cmp_ps_mask(__m512 x, __m512 y, int predicate) {
  const emu_lanes a = emu_of(&x);
  const emu_lanes b = emu_of(&y);
  unsigned mask = 0;
  if (predicate != _CMP_GT_OQ && predicate != _CMP_UNORD_Q) abort();
  for (int i = 0; i < 16; ++i) {
    const int yes = predicate == _CMP_GT_OQ ? a.f[i] > b.f[i] : isnan(a.f[i]) || isnan(b.f[i]);
    mask |= (unsigned)yes << i;
  }
  return (__mmask16)mask;
}
EMULATE __mmask16 emu_mm512_test_epi32_mask(__m512i x, __m512i y) {
  const emu_lanes a = emu_of(&x);
  const emu_lanes b = emu_of(&y);
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) mask |= (unsigned)((a.u[i] & b.u[i]) != 0) << i;
  return (__mmask16)mask;
}
EMULATE __m512 emu_mm512_mask_blend_ps(__mmask16 mask, __m512 x, __m512 y) {
  const emu_lanes a = emu_of(&x);
  const emu_lanes b = emu_of(&y);
  EMU_LANES(ps, u, mask >> i & 1 ? b.u[i] : a.u[i]);
}
EMULATE __m512i emu_mm512_mask_blend_epi32(__mmask16 mask, __m512i x, __m512i y) {
  const emu_lanes a = emu_of(&x);
  const emu_lanes b = emu_of(&y);
  EMU_LANES(si, u, mask >> i & 1 ? b.u[i] : a.u[i]);
}

/* VREDUCEPS without fraction bits, rounding down: x - floor(x); 0 for an infinite x. */
EMULATE __m512 emu_mm512_reduce_ps(__m512 x, int how) {
  const emu_lanes a = emu_of(&x);
  if (how != (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)) abort();
  EMU_LANES(ps, f, isinf(a.f[i]) ? -0.0f : a.f[i] - floorf(a.f[i]));
}
/* VSCALEFPS: x * 2^floor(y). */
EMULATE float emu_scalef(float x, float y) {
  if (isnan(x) || isnan(y)) return NAN;
  if (isinf(y)) return y > 0 ? x * INFINITY : copysignf(0.0f, x);
  return ldexpf(x, (int)fmaxf(fminf(floorf(y), 1000.0f), -1000.0f));
}
EMULATE __m512 emu_mm512_scalef_ps(__m512 x, __m512 y) {
  const emu_lanes a = emu_of(&x);
  const emu_lanes b = emu_of(&y);
  EMU_LANES(ps, f, emu_scalef(a.f[i], b.f[i]));
}

/* Within each group of four lanes. */
EMU_BINARY_BITS(unpacklo_ps, ps, __m512, (i % 2 ? b.u : a.u)[i / 4 * 4 + i % 4 / 2])
EMU_BINARY_BITS(unpackhi_ps, ps, __m512, (i % 2 ? b.u : a.u)[i / 4 * 4 + i % 4 / 2 + 2])
EMULATE __m512 emu_mm512_shuffle_ps(__m512 x, __m512 y, int how) {
  const emu_lanes a = emu_of(&x);
  const emu_lanes b = emu_of(&y);
  EMU_LANES(ps, u, (i % 4 < 2 ? a.u : b.u)[i / 4 * 4 + (how >> (2 * (i % 4)) & 3)]);
}
/* The groups of four themselves. */
EMULATE __m512 emu_mm512_shuffle_f32x4(__m512 x, __m512 y, int how) {
  const emu_lanes a = emu_of(&x);
  const emu_lanes b = emu_of(&y);
  EMU_LANES(ps, u, (i < 8 ? a.u : b.u)[(how >> (2 * (i / 4)) & 3) * 4 + i % 4]);
}

EMULATE __m512 emu_mm512_cvtph_ps(__m256i x) {
  const emu_lanes r = {
      .half = {_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))}};
  return emu_ps(r);
}
EMULATE __m256i emu_mm512_cvtps_ph(__m512 x, int how) {
  const emu_lanes a = emu_of(&x);
  if (how != (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)) abort();
  return _mm256_set_m128i(_mm256_cvtps_ph(a.half[1], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                          _mm256_cvtps_ph(a.half[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
EMULATE __m512i emu_mm512_cvtepu16_epi32(__m256i x) {
  uint16_t a[16];
  memcpy(a, &x, sizeof a);
  EMU_LANES(si, u, a[i]);
}
EMULATE __m256i emu_mm512_cvtepi32_epi16(__m512i x) {
  const emu_lanes a = emu_of(&x);
  uint16_t low[16];
  __m256i r;
  for (int i = 0; i < 16; ++i) low[i] = (uint16_t)a.u[i];
  memcpy(&r, low, sizeof r);
  return r;
}

/* ---- bf16: subnormals count as zero, going in and coming out ---------------------------- */

EMULATE float emu_flush(float x) {
  return fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x;
}
EMULATE float emu_bf16(uint32_t code) {
  float x;
  code <<= 16;
  memcpy(&x, &code, sizeof x);
  return emu_flush(x);
}
EMULATE uint16_t emu_to_bf16(float x) {
  uint32_t bits;
  const float flushed = emu_flush(x);
  memcpy(&bits, &flushed, sizeof bits);
  if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
EMULATE __m512bh emu_mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  const emu_lanes a = emu_of(&high);
  const emu_lanes b = emu_of(&low);
  emu_lanes r;
  __m512bh x;
  for (int i = 0; i < 16; ++i) {
    r.h[i] = emu_to_bf16(b.f[i]);
    r.h[i + 16] = emu_to_bf16(a.f[i]);
  }
  memcpy(&x, &r, sizeof x);
  return x;
}
/* VDPBF16PS: the odd element of each pair first. */
EMULATE __m512 emu_mm512_dpbf16_ps(__m512 sum, __m512bh x, __m512bh y) {
  const emu_lanes acc = emu_of(&sum);
  const emu_lanes a = emu_of(&x);
  const emu_lanes b = emu_of(&y);
  emu_lanes r;
  for (int i = 0; i < 16; ++i) {
    const float odd = emu_flush(fmaf(emu_bf16(a.u[i] >> 16), emu_bf16(b.u[i] >> 16), emu_flush(acc.f[i])));
    r.f[i] = emu_flush(fmaf(emu_bf16(a.u[i] & 0xffff), emu_bf16(b.u[i] & 0xffff), odd));
  }
  return emu_ps(r);
}

/* ---- AMX: eight tiles a thread, of 16 rows of 64 bytes ---------------------------------- */

typedef struct emu_tiles {
  uint32_t row[8][16][16];
  int configured;
} emu_tiles;

static _Thread_local emu_tiles emu_amx;

/* An instruction on tiles faults unless they are configured. */
static inline uint32_t (*emu_tile(int t))[16] {
  if (!emu_amx.configured) {
    fputs("tile instruction without a tile configuration\n", stderr);
    abort();
  }
  return emu_amx.row[t];
}
static inline void emu_tile_loadconfig(const void *config) {
  const uint8_t *bytes = config;
  uint16_t bytes_a_row[8];
  memcpy(bytes_a_row, bytes + 16, sizeof bytes_a_row);
  for (int t = 0; t < 8; ++t) {
    if (bytes[0] != 1 || bytes[1] != 0 || bytes_a_row[t] != 64 || bytes[48 + t] != 16) abort();
  }
  memset(emu_amx.row, 0, sizeof emu_amx.row);
  emu_amx.configured = 1;
}
static inline void emu_tile_release(void) {
  emu_amx.configured = 0;
}
static inline void emu_tile_zero(int t) {
  memset(emu_tile(t), 0, sizeof emu_amx.row[t]);
}
static inline void emu_tile_loadd(int t, const void *base, size_t stride) {
  uint32_t(*tile)[16] = emu_tile(t);
  for (size_t r = 0; r < 16; ++r) memcpy(tile[r], (const uint8_t *)base + r * stride, 64);
}
static inline void emu_tile_stored(int t, void *base, size_t stride) {
  uint32_t(*tile)[16] = emu_tile(t);
  for (size_t r = 0; r < 16; ++r) memcpy((uint8_t *)base + r * stride, tile[r], 64);
}
/* TDPBF16PS: sums over the even and over the odd elements, then both onto the tile. */
static inline void emu_tile_dpbf16ps(int to, int left, int right) {
  uint32_t(*c)[16] = emu_tile(to);
  uint32_t(*a)[16] = emu_tile(left);
  uint32_t(*b)[16] = emu_tile(right);
  for (int m = 0; m < 16; ++m) {
    float even[16] = {0};
    float odd[16] = {0};
    float sum[16];
    for (int k = 0; k < 16; ++k) {
      const float a_even = emu_bf16(a[m][k] & 0xffff);
      const float a_odd = emu_bf16(a[m][k] >> 16);
      for (int n = 0; n < 16; ++n) even[n] = emu_flush(fmaf(a_even, emu_bf16(b[k][n] & 0xffff), even[n]));
      for (int n = 0; n < 16; ++n) odd[n] = emu_flush(fmaf(a_odd, emu_bf16(b[k][n] >> 16), odd[n]));
    }
    memcpy(sum, c[m], sizeof sum);
    for (int n = 0; n < 16; ++n) sum[n] = emu_flush(emu_flush(sum[n]) + emu_flush(even[n] + odd[n]));
    memcpy(c[m], sum, sizeof sum);
  }
}

/* The names are the compiler's, on purpose. NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
#define _mm512_set1_ps emu_mm512_set1_ps
#define _mm512_set1_epi32 emu_mm512_set1_epi32
#define _mm512_load_ps emu_mm512_load_ps
#define _mm512_store_ps emu_mm512_store_ps
#define _mm512_loadu_ps emu_mm512_loadu_ps
#define _mm512_loadu_si512 emu_mm512_loadu_si512
#define _mm512_storeu_ps emu_mm512_storeu_ps
#define _mm512_castsi512_ps emu_mm512_castsi512_ps
#define _mm512_castps_si512 emu_mm512_castps_si512
#define _mm512_castps512_ps256 emu_mm512_castps512_ps256
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps emu_mm512_extractf32x8_ps
#define _mm512_add_ps emu_mm512_add_ps
#define _mm512_sub_ps emu_mm512_sub_ps
#define _mm512_mul_ps emu_mm512_mul_ps
#define _mm512_div_ps emu_mm512_div_ps
#define _mm512_max_ps emu_mm512_max_ps
#define _mm512_and_ps emu_mm512_and_ps
#define _mm512_or_ps emu_mm512_or_ps
#define _mm512_andnot_ps emu_mm512_andnot_ps
#define _mm512_and_si512 emu_mm512_and_si512
#define _mm512_or_si512 emu_mm512_or_si512
#define _mm512_add_epi32 emu_mm512_add_epi32
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 emu_mm512_slli_epi32
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 emu_mm512_srli_epi32
#define _mm512_fmadd_ps emu_mm512_fmadd_ps
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask emu_mm512_cmp_ps_mask
#define _mm512_test_epi32_mask emu_mm512_test_epi32_mask
#define _mm512_mask_blend_ps emu_mm512_mask_blend_ps
#define _mm512_mask_blend_epi32 emu_mm512_mask_blend_epi32
#undef _mm512_reduce_ps
#define _mm512_reduce_ps emu_mm512_reduce_ps
#define _mm512_scalef_ps emu_mm512_scalef_ps
#define _mm512_unpacklo_ps emu_mm512_unpacklo_ps
#define _mm512_unpackhi_ps emu_mm512_unpackhi_ps
#undef _mm512_shuffle_ps
#define _mm512_shuffle_ps emu_mm512_shuffle_ps
#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4 emu_mm512_shuffle_f32x4
#define _mm512_cvtph_ps emu_mm512_cvtph_ps
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph emu_mm512_cvtps_ph
#define _mm512_cvtepu16_epi32 emu_mm512_cvtepu16_epi32
#define _mm512_cvtepi32_epi16 emu_mm512_cvtepi32_epi16
#define _mm512_cvtne2ps_pbh emu_mm512_cvtne2ps_pbh
#define _mm512_dpbf16_ps emu_mm512_dpbf16_ps
#undef _tile_loadconfig
#define _tile_loadconfig emu_tile_loadconfig
#undef _tile_release
#define _tile_release emu_tile_release
#undef _tile_zero
#define _tile_zero emu_tile_zero
#undef _tile_loadd
#define _tile_loadd emu_tile_loadd
#undef _tile_stored
#define _tile_stored emu_tile_stored
#undef _tile_dpbf16ps
#define _tile_dpbf16ps emu_tile_dpbf16ps
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

#endif
