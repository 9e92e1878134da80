/* Rows of scores as the tensor cores leave them. A row of a 16-row fragment lies with four neighbouring lanes (a quad):
 * lane/4 and that + 8 are a thread's two. */
#ifndef EA_CUDA_KERNELS_SOFTMAX_H
#define EA_CUDA_KERNELS_SOFTMAX_H

#include <stdint.h>

#include "cuda/kernels/ptx.h"

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

#endif
