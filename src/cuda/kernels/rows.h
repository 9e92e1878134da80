/* Rows of Q, K and V in global memory: where one begins, in a tensor of the new tokens or in the cache, and how it
 * reaches shared memory. */
#ifndef EA_CUDA_KERNELS_ROWS_H
#define EA_CUDA_KERNELS_ROWS_H

#include <stdint.h>

#include "cuda/kernels/element.h"
#include "cuda/kernels/ptx.h"
#include "plan/portable.h"
#include "problem/call.h"

/* ea_slot_offset without a 64-bit division: magic = ceil(2^64 / page_size), exact while
 * slots times page_size stay below 2^64 (the launch sees to it). */
EA_DEVICE int64_t slot_offset(const ea_pool &pool, int64_t slot, int page_size, uint64_t magic, int kv_head) {
  const int64_t page = page_size == 1 ? slot : (int64_t)__umul64hi((uint64_t)slot, magic);
  return page * pool.page_stride + (slot - page * page_size) * pool.row_stride + kv_head * pool.head_stride;
}

/* Where a cached key's row begins. bytes: of an element of the cache. */
EA_DEVICE const char *cached_row(const ea_pool &pool, int64_t slot, int page_size, uint64_t magic, int kv_head,
                                 int bytes) {
  return (const char *)pool.data + slot_offset(pool, slot, page_size, magic, kv_head) * bytes;
}

/* Where a new token's row of Q, K or V begins: token i of a sequence whose first is token0. Head: int or
 * int64_t, as the caller has it. */
template <class Head> EA_DEVICE const char *token_row(const ea_strided &tensor, int64_t token0, int i, Head head) {
  return (const char *)tensor.data + ((token0 + i) * tensor.token_stride + head * tensor.head_stride) * 2;
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

#endif
