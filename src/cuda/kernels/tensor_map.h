/* A tensor map as the driver encodes it and kernels take it (CUtensorMap): opaque. */
#ifndef EA_CUDA_KERNELS_TENSOR_MAP_H
#define EA_CUDA_KERNELS_TENSOR_MAP_H

#include <stdint.h>

typedef struct ea_tensor_map {
#ifdef __cplusplus
  alignas(64) uint64_t opaque[16];
#else
  _Alignas(64) uint64_t opaque[16];
#endif
} ea_tensor_map;

#endif
