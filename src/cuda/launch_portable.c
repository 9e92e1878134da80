/* Launches of the portable kernels, and the arguments that the Hopper kernels share with them. */
#include <math.h>

#include "common/error.h"
#include "cuda/arguments.h"
#include "cuda/launch.h"

/* What the driver takes: blocks of a grid. */
#define EA_CUDA_MAX_BLOCKS INT32_MAX

/* Whether every row of a view can be read 8 elements at a time: 16 bytes, or 8 of an 8-bit pool. */
static bool rows_aligned(const void *data, const int64_t *strides, int num_strides, int32_t dim, size_t element_bytes) {
  bool aligned = (uintptr_t)data % (8 * element_bytes) == 0 && dim % 8 == 0;
  for (int i = 0; i < num_strides; i++) aligned = aligned && strides[i] % 8 == 0;
  return aligned;
}

static bool tensor_aligned(const ea_strided *tensor, int32_t dim) {
  return rows_aligned(tensor->data, (const int64_t[]){tensor->token_stride, tensor->head_stride}, 2, dim,
                      EA_PORTABLE_ELEMENT_BYTES);
}

static bool pool_aligned(const ea_pool *pool, int32_t dim, size_t element_bytes) {
  const int64_t strides[] = {pool->page_stride, pool->row_stride, pool->head_stride};
  return rows_aligned(pool->data, strides, 3, dim, element_bytes);
}

/* page_magic is ceil(2^64 / page_size): for a power of two, floor((2^64 - 1) / page_size) + 1 is
 * exact, and otherwise it rounds up as it should. */
ea_portable_launch ea_score_arguments(const ea_call *call, int32_t stages) {
  const ea_strided out = {call->out, call->out_token_stride, call->out_head_stride};
  const int32_t dim = call->head_dim, dim_v = call->head_dim_v;
  const size_t cache_bytes = ea_dtype_size(call->cache_dtype);
  const double log2_e = 1.4426950408889634;
  const bool transformed = call->logit_cap > 0 || call->xai_temperature_len > 0;
  return (ea_portable_launch){
      .stages = stages,
      .q_aligned = tensor_aligned(&call->q, dim),
      .kv_aligned = tensor_aligned(&call->k, dim) && tensor_aligned(&call->v, dim_v),
      .cache_aligned =
          pool_aligned(&call->k_cache, dim, cache_bytes) && pool_aligned(&call->v_cache, dim_v, cache_bytes),
      .out_aligned = tensor_aligned(&out, dim_v),
      .transformed = transformed,
      .scale = (float)(transformed ? 1.0 : call->softmax_scale),
      .scale_log2 = (float)(transformed ? log2_e : call->softmax_scale * log2_e),
      .softmax_scale = (float)call->softmax_scale,
      .logit_cap = (float)call->logit_cap,
      .inv_logit_cap = call->logit_cap > 0 ? (float)(1.0 / call->logit_cap) : 0.0f,
      .inv_log2_len = call->xai_temperature_len > 0 ? (float)(1.0 / log2((double)call->xai_temperature_len)) : 0.0f,
      .k_scale = (float)call->k_scale,
      .v_scale = (float)call->v_scale,
      /* Probabilities up to 2^8 are as exact as those up to 1; f16 has no room for v_scale on top. */
      .sum_limit = 1024.0f, /* far below f16's 65,504, and a sum of 32 exponentials of at most 1 far below it */
      .rescale_slack_log2 = call->v_scale <= 1.0 ? 8.0f : 0.0f,
      .page_magic = call->page_size > 1 ? UINT64_MAX / (uint64_t)call->page_size + 1 : 0,
  };
}

ea_status ea_launch_portable(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_call *call,
                             ea_cu_stream stream) {
  const int32_t tile_m = plan->kernel->tile_m;
  const int64_t row_blocks = ea_portable_first_block(call->num_tokens, call->num_seqs, call->group, tile_m);
  const ea_launch_shape shape = {
      .blocks = row_blocks * call->num_kv_heads, .threads = plan->kernel->threads, .smem_bytes = plan->smem_bytes};
  if (shape.blocks > EA_CUDA_MAX_BLOCKS) {
    return ea_fail(EA_ERR_UNSUPPORTED,
                   "num_tokens: found %lld, which with %d key/value heads and groups of %d makes %lld blocks, "
                   "allowed %d blocks",
                   (long long)call->num_tokens, call->num_kv_heads, call->group, (long long)shape.blocks,
                   EA_CUDA_MAX_BLOCKS);
  }
  ea_call passed_call = *call;
  ea_portable_launch passed_launch = ea_score_arguments(call, plan->stages);
  void *params[] = {&passed_call, &passed_launch};
  return ea_launch(device, plan->loaded, &shape, params, stream);
}
