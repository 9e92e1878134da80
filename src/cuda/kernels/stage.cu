/* Copies cached keys and values to where their rows follow each other (stage.h). One warp a token. The launch sees to
 * it that the rows are 16-bit and can be read 16 bytes at a time. */
#include "cuda/kernels/stage.h"

#include "cuda/kernels/ptx.h"
#include "problem/call.h"

/* The rows of a token, one a head. */
EA_DEVICE void copy_rows(const ea_pool &pool, int64_t slot, const ea_call &call, int32_t dim, uint16_t *to, int lane) {
  const int32_t chunks = dim / 8; /* of 16 bytes, of a row */
  for (int32_t head = 0; head < call.num_kv_heads; head++) {
    const uint16_t *from = (const uint16_t *)pool.data + ea_slot_offset(&pool, slot, call.page_size, head);
#pragma unroll 2
    for (int32_t chunk = lane; chunk < chunks; chunk += 32) {
      ((uint4 *)to)[(int64_t)head * chunks + chunk] = ((const uint4 *)from)[chunk];
    }
  }
}

extern "C" __global__ void __launch_bounds__(EA_STAGE_THREADS)
    stage(const __grid_constant__ ea_call call, const __grid_constant__ ea_stage_launch launch) {
  const int lane = (int)threadIdx.x % 32;
  const int64_t cached = call.kv_indptr[call.num_seqs], end = launch.tokens < cached ? launch.tokens : cached;
  const int64_t step = (int64_t)gridDim.x * EA_STAGE_TOKENS;
  for (int64_t token = (int64_t)blockIdx.x * EA_STAGE_TOKENS + threadIdx.x / 32; token < end; token += step) {
    const int64_t slot = ea_load_index(call.kv_indices, call.index_dtype, token), row = token * call.num_kv_heads;
    copy_rows(call.k_cache, slot, call, call.head_dim, (uint16_t *)launch.k + row * call.head_dim, lane);
    if (launch.v)
      copy_rows(call.v_cache, slot, call, call.head_dim_v, (uint16_t *)launch.v + row * call.head_dim_v, lane);
  }
}
