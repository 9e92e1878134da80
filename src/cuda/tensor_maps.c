/* See tensor_maps.h. */
#include "cuda/tensor_maps.h"

#include <string.h>

#include "plan/hopper.h"

/* What a tensor map is made of. No padding: compared as bytes. */
typedef struct map_key {
  uint64_t address, dims[4], strides[3]; /* strides: in bytes, from the second dimension on */
  uint32_t box[4];
  int32_t rank, type;
} map_key;
_Static_assert(sizeof(map_key) == 88, "no padding");

/* A map depends on its key alone, and a call often has tensors in the places of the call before: of a layer's, say, in
 * the next. So each thread remembers the last few. */
enum { REMEMBERED_MAPS = 8 };
typedef struct map_memory {
  ea_tensor_map maps[REMEMBERED_MAPS];
  map_key keys[REMEMBERED_MAPS]; /* rank 0: none */
  unsigned next;
} map_memory;
static _Thread_local map_memory of_thread;

static ea_status encode(const ea_cuda_device *device, const char *name, const map_key *key, ea_tensor_map *map) {
  map_memory *remembered = &of_thread;
  for (unsigned i = 0; i < REMEMBERED_MAPS; i++) {
    if (memcmp(&remembered->keys[i], key, sizeof *key) != 0) continue;
    *map = remembered->maps[i];
    return EA_OK;
  }
  static const uint32_t steps[] = {1, 1, 1, 1};
  const ea_cu_result result = device->driver.tensor_map_encode_tiled(
      map, key->type, (unsigned)key->rank, (void *)(uintptr_t)key->address, key->dims, key->strides, key->box, steps, 0,
      EA_CU_TENSOR_MAP_SWIZZLE_128B, EA_CU_TENSOR_MAP_L2_PROMOTION_128B, 0);
  const ea_status status = ea_driver_check(&device->driver, result, name);
  if (status) return status;
  const unsigned place = remembered->next++ % REMEMBERED_MAPS;
  remembered->maps[place] = *map;
  remembered->keys[place] = *key;
  return EA_OK;
}

static int32_t map_type_of(const ea_call *call) {
  return call->dtype == EA_BF16 ? EA_CU_TENSOR_MAP_BFLOAT16 : EA_CU_TENSOR_MAP_FLOAT16;
}

ea_status ea_map_rows(const ea_cuda_device *device, const char *name, const ea_call *call, const ea_strided *tensor,
                      int32_t heads, int32_t dim, ea_box box, ea_tensor_map *map) {
  const map_key key = {
      .address = (uint64_t)(uintptr_t)tensor->data,
      .dims = {(uint64_t)dim, (uint64_t)heads, (uint64_t)call->num_tokens},
      .strides = {(uint64_t)tensor->head_stride * 2, (uint64_t)tensor->token_stride * 2},
      .box = {EA_HOPPER_SLICE, (uint32_t)box.heads, (uint32_t)box.tokens},
      .rank = 3,
      .type = map_type_of(call),
  };
  return encode(device, name, &key, map);
}

ea_status ea_map_slices(const ea_cuda_device *device, const char *name, const ea_call *call, const ea_strided *tensor,
                        int64_t tokens, int32_t dim, ea_box box, ea_tensor_map *map) {
  const map_key key = {
      .address = (uint64_t)(uintptr_t)tensor->data,
      .dims = {EA_HOPPER_SLICE, (uint64_t)tokens, (uint64_t)ea_hopper_slices(dim), (uint64_t)call->num_kv_heads},
      .strides = {(uint64_t)tensor->token_stride * 2, EA_HOPPER_SLICE_BYTES, (uint64_t)tensor->head_stride * 2},
      .box = {EA_HOPPER_SLICE, (uint32_t)box.tokens, (uint32_t)box.slices, 1},
      .rank = 4,
      .type = map_type_of(call),
  };
  return encode(device, name, &key, map);
}

bool ea_pool_as_tensor(const ea_pool *pool, int32_t page_size, ea_strided *tensor) {
  *tensor = (ea_strided){pool->data, page_size == 1 ? pool->page_stride : pool->row_stride, pool->head_stride};
  return (page_size == 1 || pool->page_stride == page_size * pool->row_stride) && tensor->token_stride > 0 &&
         tensor->head_stride > 0 && ea_tma_can_step(tensor);
}
