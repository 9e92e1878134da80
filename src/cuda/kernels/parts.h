/* What the attention kernels share: the 16-bit type they are compiled for, elements of any type and
 * alignment, what scores go through. -DEA_TYPE_BF16 is bf16, otherwise f16. */
#ifndef EA_CUDA_KERNELS_PARTS_H
#define EA_CUDA_KERNELS_PARTS_H

#include <stdint.h>

#include "common/tanh.h"
#include "cuda/kernels/ptx.h"
#include "cuda/kernels/reference.h"
#include "plan/portable.h"
#include "problem/call.h"

#define EA_PASTE_(a, b, c) a##b##c
#define EA_PASTE(a, b, c) EA_PASTE_(a, b, c)

#ifdef EA_TYPE_BF16
#define EA_TYPE bf16
#define cvt_x2 cvt_bf16x2
#define EXPONENT_BITS 0x7f80u /* all ones: Inf or NaN */
#else
#define EA_TYPE f16
#define cvt_x2 cvt_f16x2
#define EXPONENT_BITS 0x7c00u
#endif

#define CHUNK 8 /* 16-bit elements in 16 bytes, the unit of every shared-memory access */
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define MINUS_INF EA_MINUS_INF

/* What lies at a shared-memory address, read anew at each use, so that nothing of it stays in registers in
 * between: the products need them all. */
EA_DEVICE const void *shared_anew(uint32_t address) {
  asm volatile("" : "+r"(address)::"memory");
  return __cvta_shared_to_generic(address);
}

/* ---- reading elements of any type and alignment ------------------------------------------ */

/* An 8-bit float as the bits of an f16 or bf16 (exact). */
EA_DEVICE uint32_t widen_8bit(uint32_t byte, bool e4m3) {
  const uint32_t sign = (byte & 0x80u) << 8;
  float value;
  if (e4m3) {
    const uint32_t magnitude = byte & 0x7fu;
    /* The bits are those of an f16 whose exponent is biased by 8 less. */
    value = magnitude == 0x7fu ? __int_as_float(0x7fffffff) : cvt_f32_f16(magnitude << 7) * 256.0f;
  } else {
    value = cvt_f32_f16((byte & 0x7fu) << 8);
  }
  return (cvt_x2(value, 0.0f) & 0xffffu) | sign;
}

typedef enum { EA_ELEMENT_16BIT, EA_ELEMENT_E4M3, EA_ELEMENT_E5M2 } ea_element;

/* Elements [0, count) of src, count <= 8, as 16-bit floats; zeros behind them. Small rather
 * than fast: rows that are not aligned come this way. */
EA_DEVICE uint4 load_chunk(const void *src, int count, ea_element element) {
  uint64_t low = 0, high = 0;
#pragma unroll 1
  for (int e = CHUNK - 1; e >= 0; e--) { /* pushed in from the top, the first element last */
    uint32_t half = 0;
    if (e < count) {
      half = element == EA_ELEMENT_16BIT ? ((const uint16_t *)src)[e]
                                         : widen_8bit(((const uint8_t *)src)[e], element == EA_ELEMENT_E4M3);
    }
    high = high << 16 | low >> 48;
    low = low << 16 | half;
  }
  return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32));
}

/* The same for eight 8-bit elements at an address that is a multiple of 8. */
EA_DEVICE uint4 load_chunk_8bit(const void *src, bool e4m3) {
  const uint2 bytes = *(const uint2 *)src;
  uint32_t words[4];
#pragma unroll
  for (int w = 0; w < 4; w++) {
    const uint32_t pair = (w < 2 ? bytes.x : bytes.y) >> (16 * (w & 1));
    words[w] = widen_8bit(pair & 0xffu, e4m3) | widen_8bit((pair >> 8) & 0xffu, e4m3) << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/* The 16-bit element's value. */
EA_DEVICE float element_value(uint32_t bits) {
#ifdef EA_TYPE_BF16
  return __int_as_float((int)(bits << 16));
#else
  return cvt_f32_f16(bits);
#endif
}

/* ea_slot_offset without a 64-bit division: magic = ceil(2^64 / page_size), exact while
 * slots times page_size stay below 2^64 (the launch sees to it). */
EA_DEVICE int64_t slot_offset(const ea_pool &pool, int64_t slot, int page_size, uint64_t magic, int kv_head) {
  const int64_t page = page_size == 1 ? slot : (int64_t)__umul64hi((uint64_t)slot, magic);
  return page * pool.page_stride + (slot - page * page_size) * pool.row_stride + kv_head * pool.head_stride;
}

/* How rows of one source (new tokens, or the pool) reach shared memory. */
typedef struct ea_source {
  ea_element element;
  bool aligned; /* 16-bit: cp.async of 16 bytes; 8-bit: loads of 8 bytes */
} ea_source;

/* One chunk of a row; row = NULL writes zeros. */
EA_DEVICE void load_row_chunk(uint32_t dst, const char *row, int chunk, int dim, ea_source source) {
  const int first = chunk * CHUNK;
  const int count = row == 0 ? 0 : ea_min_i32(ea_max_i32(dim - first, 0), CHUNK);
  if (source.aligned && source.element == EA_ELEMENT_16BIT) {
    /* An aligned row holds whole chunks, so count is 0 or 8. */
    cp_async_16(dst, row + first * 2, 16);
  } else if (source.aligned) {
    st_shared_v4(dst, load_chunk_8bit(row + first, source.element == EA_ELEMENT_E4M3));
  } else {
    st_shared_v4(dst, load_chunk(row + first * (source.element == EA_ELEMENT_16BIT ? 2 : 1), count, source.element));
  }
}

/* The sources of a call's rows. Looked up in the parameters anew at each use. */
EA_DEVICE ea_source fresh_source(const ea_portable_launch &launch) {
  const ea_source source = {EA_ELEMENT_16BIT, read_anew(launch.kv_aligned) != 0};
  return source;
}
EA_DEVICE ea_source cached_source(const ea_call &call, const ea_portable_launch &launch) {
  const int type = read_anew(call.cache_dtype);
  const ea_source source = {type == EA_E4M3   ? EA_ELEMENT_E4M3
                            : type == EA_E5M2 ? EA_ELEMENT_E5M2
                                              : EA_ELEMENT_16BIT,
                            read_anew(launch.cache_aligned) != 0};
  return source;
}

/* ---- scores --------------------------------------------------------------------------------- */

/* Over the four lanes that share a row. */
EA_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
EA_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

EA_DEVICE bool quad_any(bool x) {
  uint32_t any = x;
  any |= __shfl_xor_sync(0xffffffffu, any, 1);
  return (any | __shfl_xor_sync(0xffffffffu, any, 2)) != 0;
}

/* cap * tanh(s / cap), and just s where the cap is far away: relative error of a few f32 roundings. */
EA_DEVICE float capped(float s, float cap, float inv_cap) {
  const float y = s * inv_cap, square = y * y;
  const float small = fmaf(s * square, EA_TANH_POLY(square, fmaf, ), s);
  const float e = ex2_approx(y * (2.0f * LOG2E)); /* tanh(y) = 1 - 2 / (1 + exp(2y)), which cancels near 0 */
  const float large = cap * (1.0f - __fdividef(2.0f, 1.0f + e));
  return fabsf(y) < EA_TANH_SMALL ? small : large;
}

/* A score as the softmax takes it where there is a cap or a temperature. */
EA_DEVICE float transformed_score(float s, const ea_portable_launch &launch, float temperature) {
  s *= launch.softmax_scale;
  if (launch.logit_cap > 0.0f) s = capped(s, launch.logit_cap, launch.inv_logit_cap);
  return s * temperature;
}

/* ---- NaN and Inf among values ---------------------------------------------------------------- */

EA_DEVICE bool is_special(uint32_t bits) {
  return (bits & EXPONENT_BITS) == EXPONENT_BITS;
}
/* Whether some of eight elements is one. */
EA_DEVICE bool any_special(uint4 x) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
  bool found = false;
#pragma unroll
  for (int w = 0; w < 4; w++) {
    found |= is_special(words[w]);
    found |= is_special(words[w] >> 16);
  }
  return found;
}
/* Zeros in their place. */
EA_DEVICE uint4 without_special(uint4 x) {
  uint32_t *words[4] = {&x.x, &x.y, &x.z, &x.w};
#pragma unroll
  for (int w = 0; w < 4; w++) {
    if (is_special(*words[w])) *words[w] &= 0xffff0000u;
    if (is_special(*words[w] >> 16)) *words[w] &= 0x0000ffffu;
  }
  return x;
}

/* ---- the end of a row ------------------------------------------------------------------------- */

/* A row's denominator and reference with its sink: what its output is to be multiplied by, and its lse. A row that
 * saw nothing has neither. */
typedef struct ea_row_end {
  float factor, lse;
} ea_row_end;

/* sum: of the row's weights. What is large, a score or a sink, is compared in natural units, where it comes from. */
EA_DEVICE ea_row_end end_row(const ea_call &call, const ea_portable_launch &launch, float reference, float sum,
                             int head, bool exists) {
  if (reference == MINUS_INF) return {0.0f, MINUS_INF};
  const float error = shift_error(reference, launch.scale_log2);
  float top = reference * launch.scale, log2_top = error, factor = 1.0f; /* the denominator: sum * e^top * 2^log2_top */
  if (call.sinks && exists) {
    const float sink = call.sinks_dtype == EA_F32 ? ((const float *)call.sinks)[head]
                                                  : element_value(((const uint16_t *)call.sinks)[head]);
    const float above = fmaf(fmaf(reference, launch.scale, -sink), LOG2E, error); /* of the row over its sink, log2 */
    if (above >= 0.0f) {
      sum += ex2_approx(-above);
    } else {
      factor = ex2_approx(above);
      sum = fmaf(sum, factor, 1.0f);
      top = sink;
      log2_top = 0.0f;
    }
  }
  return {__fdividef(factor, sum), fmaf(log2_top + __log2f(sum), LN2, top)};
}

#endif
