/* NaN and Inf among 16-bit values: found, and taken out. */
#ifndef EA_CUDA_KERNELS_NONFINITE_H
#define EA_CUDA_KERNELS_NONFINITE_H

#include <stdint.h>

#include "cuda/kernels/element.h"
#include "cuda/kernels/ptx.h"

#ifdef EA_TYPE_BF16
#define EXPONENT_BITS 0x7f80u /* all ones: Inf or NaN */
#else
#define EXPONENT_BITS 0x7c00u
#endif

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

#endif
