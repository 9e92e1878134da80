/* Small things that the unit, products and block headers share. */
#ifndef EA_CPU_KERNELS_ROWS_H
#define EA_CPU_KERNELS_ROWS_H

#include "cpu/kernels/kernel.h"

static inline int32_t round_up(int32_t n, int32_t step) {
  return (n + step - 1) / step * step;
}

EA_INLINE size_t bytes_of(ea_dtype dtype) {
  return dtype == EA_F32 ? 4 : dtype == EA_F16 || dtype == EA_BF16 ? 2 : 1;
}

#endif
