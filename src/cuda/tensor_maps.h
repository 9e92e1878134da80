/* Inside the CUDA backend: tensor maps, by which TMA reads a call's tensors. */
#ifndef EA_CUDA_TENSOR_MAPS_H
#define EA_CUDA_TENSOR_MAPS_H

#include "cuda/device.h"
#include "problem/call.h"

/* What TMA asks of strides beside their alignment (CUDA driver API, cuTensorMapEncodeTiled). Other rows are read by
 * plain loads. */
static inline bool ea_tma_can_step(const ea_strided *tensor) {
  const int64_t limit = ((int64_t)1 << 40) / 2; /* elements */
  return tensor->token_stride < limit && tensor->head_stride < limit;
}

/* A pool as a tensor whose tokens are slots. False: slots are not equally far from each other, or not for TMA. */
bool ea_pool_as_tensor(const ea_pool *pool, int32_t page_size, ea_strided *tensor);

/* A box of a [tokens, heads, dim] tensor. */
typedef struct ea_box {
  int32_t tokens, heads;
  int32_t slices; /* of 64 columns */
} ea_box;

/* A [tokens of the call, heads, dim] tensor in boxes of one slice: token by token, of each the box's heads. name: for
 * the error. */
ea_status ea_map_rows(const ea_cuda_device *device, const char *name, const ea_call *call, const ea_strided *tensor,
                      int32_t heads, int32_t dim, ea_box box, ea_tensor_map *map);

/* A [tokens, Hkv, dim] tensor in boxes of one head: slice by slice, of each the box's tokens. dim is a multiple of 64.
 */
ea_status ea_map_slices(const ea_cuda_device *device, const char *name, const ea_call *call, const ea_strided *tensor,
                        int64_t tokens, int32_t dim, ea_box box, ea_tensor_map *map);

#endif
