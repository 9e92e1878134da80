/* NaN and Inf in V, and the second pass for them.
 *
 * They must reach only the rows that see them (promise 2), and 0 * NaN is NaN: in a tile of which some row of the work
 * tile does not see a key they would reach all rows. They are rare, and to look for them beforehand took an H200
 * 1 to 3 % of the time (at D = 64 with a window of 128, 8 %; docs/hopper.md). So the epilogue looks at what came out:
 * where that is not finite the work tile is done once more. In this second pass its masked tiles lose their NaN and Inf
 * on their way to the products, and the rows that see them get them by hand in the epilogue. (Which work tiles are done
 * again is the scheduler's to decide: needs_second_pass.) */
#ifndef EA_CUDA_KERNELS_HOPPER_NONFINITE_H
#define EA_CUDA_KERNELS_HOPPER_NONFINITE_H

#include "cuda/kernels/hopper/load.h"
#include "cuda/kernels/hopper/mask.h"

/* Whether a tile's values lose their NaN and Inf before the products read them. */
template <class Shape> EA_DEVICE bool is_cleared(const ea_work_tile *work_tile, int tile) {
  return work_tile->second_pass != 0 && is_masked<Shape>(work_tile, tile);
}

/* Takes them out of what these threads have in shared memory. */
EA_DEVICE void clear_nonfinite(uint32_t first, int bytes, int thread, int threads) {
#pragma unroll 1
  for (int index = thread; index < bytes / 16; index += threads) {
    const uint32_t address = first + (uint32_t)index * 16;
    const uint4 x = ld_shared_v4(address);
    if (any_special(x)) st_shared_v4(address, without_special(x));
  }
}

/* Two elements of a row, where there are so many, as 16-bit floats. */
EA_DEVICE uint32_t load_pair(const char *row, int column, int dim, ea_element element) {
  uint32_t pair = 0;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    if (column + c >= dim) continue;
    const uint32_t bits = element == EA_ELEMENT_16BIT
                              ? ((const uint16_t *)row)[column + c]
                              : widen_8bit(((const uint8_t *)row)[column + c], element == EA_ELEMENT_E4M3);
    pair |= bits << (16 * c);
  }
  return pair;
}

template <int COUNT> EA_DEVICE bool is_finite(const float (&o)[COUNT]) {
  float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int e = 0; e < COUNT; e++) zeros[e % 4] = fmaf(o[e], 0.0f, zeros[e % 4]);
  return (zeros[0] + zeros[1]) + (zeros[2] + zeros[3]) == 0.0f;
}

#endif
