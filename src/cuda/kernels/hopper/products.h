/* The products of a consumer warpgroup, by their number of columns and the element type of -DEA_TYPE_...:
 * d (64 x N) = or += a b. product_ss: a and b in shared memory, scores = Q K^T. product_rs: a in registers,
 * output += P V. product_st: the same with P in shared memory. */
#ifndef EA_CUDA_KERNELS_HOPPER_PRODUCTS_H
#define EA_CUDA_KERNELS_HOPPER_PRODUCTS_H

#include "cuda/kernels/parts.h"
#include "cuda/kernels/ptx_hopper.h"

/* wgmma_n64_ss_bf16 and so on: names that only the preprocessor can put together. */
#define EA_PRODUCT_NAME_(n, kind, type) wgmma_n##n##_##kind##_##type
#define EA_PRODUCT_NAME(n, kind, type) EA_PRODUCT_NAME_(n, kind, type)
#define EA_DEFINE_PRODUCT(kind, operand)                                                                               \
  template <int N> EA_DEVICE void product_##kind(float *d, operand a, uint64_t b, int accumulate) {                    \
    static_assert(N == 64 || N == 80 || N == 96 || N == 128 || N == 192 || N == 256, "products there are");            \
    if constexpr (N == 64) EA_PRODUCT_NAME(64, kind, EA_TYPE)(d, a, b, accumulate);                                    \
    if constexpr (N == 80) EA_PRODUCT_NAME(80, kind, EA_TYPE)(d, a, b, accumulate);                                    \
    if constexpr (N == 96) EA_PRODUCT_NAME(96, kind, EA_TYPE)(d, a, b, accumulate);                                    \
    if constexpr (N == 128) EA_PRODUCT_NAME(128, kind, EA_TYPE)(d, a, b, accumulate);                                  \
    if constexpr (N == 192) EA_PRODUCT_NAME(192, kind, EA_TYPE)(d, a, b, accumulate);                                  \
    if constexpr (N == 256) EA_PRODUCT_NAME(256, kind, EA_TYPE)(d, a, b, accumulate);                                  \
  }
EA_DEFINE_PRODUCT(ss, uint64_t)
EA_DEFINE_PRODUCT(rs, const uint32_t *)
EA_DEFINE_PRODUCT(st, uint64_t)
#undef EA_DEFINE_PRODUCT

#endif
