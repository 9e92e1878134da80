/* The 16-bit type that a kernel is compiled for (-DEA_TYPE_BF16: bf16, otherwise f16), and elements of any type and
 * alignment on their way to it. */
#ifndef EA_CUDA_KERNELS_ELEMENT_H
#define EA_CUDA_KERNELS_ELEMENT_H

#include <stdint.h>

#include "cuda/kernels/ptx.h"

#define EA_PASTE_(a, b, c) a##b##c
#define EA_PASTE(a, b, c) EA_PASTE_(a, b, c)

#ifdef EA_TYPE_BF16
#define EA_TYPE bf16
#define cvt_x2 cvt_bf16x2
#else
#define EA_TYPE f16
#define cvt_x2 cvt_f16x2
#endif

#define CHUNK 8 /* 16-bit elements in 16 bytes, the unit of every shared-memory access */

/* The 16-bit element's value. */
EA_DEVICE float element_value(uint32_t bits) {
#ifdef EA_TYPE_BF16
  return __int_as_float((int)(bits << 16));
#else
  return cvt_f32_f16(bits);
#endif
}

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

#endif
