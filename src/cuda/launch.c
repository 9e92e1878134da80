/* Launches: each turns a checked call into one kernel's arguments and enqueues it. */
#include "cuda/launch.h"

#include <math.h>

#include "common/error.h"
#include "plan/portable.h"

/* What the driver takes: grids of this many blocks in x and y. */
#define EA_CUDA_MAX_GRID_X INT32_MAX
#define EA_CUDA_MAX_GRID_Y 65535

ea_status ea_launch(const ea_cuda_device *device, const ea_cuda_kernel *kernel, const ea_launch_shape *shape,
                    void **params, ea_cu_stream stream) {
  if (shape->grid_x == 0 || shape->grid_y == 0) return EA_OK;
  const ea_cu_result result =
      device->driver.launch_kernel(kernel->function, (unsigned)shape->grid_x, (unsigned)shape->grid_y, 1,
                                   (unsigned)shape->threads, 1, 1, (unsigned)shape->smem_bytes, stream, params, NULL);
  return ea_driver_check(&device->driver, result, "cuLaunchKernel");
}

/* The flag of cuda/kernels/validate.h; the attention kernels need none. */
#define EA_CUDA_WORKSPACE_BYTES 256

size_t ea_cuda_workspace_bytes(const ea_plan_info *info, int64_t num_seqs, int64_t num_tokens) {
  (void)info;
  (void)num_seqs;
  (void)num_tokens;
  return EA_CUDA_WORKSPACE_BYTES;
}

/* Whether every row of a view starts at a multiple of `bytes`, and rows are whole multiples of it. */
static bool rows_aligned(const void *data, const int64_t *strides, int num_strides, int32_t dim, ea_dtype dtype,
                         size_t bytes) {
  const int64_t elements = (int64_t)(bytes / ea_dtype_size(dtype));
  bool aligned = (uintptr_t)data % bytes == 0 && dim % elements == 0;
  for (int i = 0; i < num_strides; i++) aligned = aligned && strides[i] % elements == 0;
  return aligned;
}

static bool tensor_aligned(const ea_strided *tensor, int32_t dim, ea_dtype dtype) {
  return rows_aligned(tensor->data, (const int64_t[]){tensor->token_stride, tensor->head_stride}, 2, dim, dtype, 16);
}

/* 8-bit pools are read 8 elements at a time too, which are 8 bytes. */
static bool pool_aligned(const ea_pool *pool, int32_t dim, ea_dtype dtype) {
  const int64_t strides[] = {pool->page_stride, pool->row_stride, pool->head_stride};
  return rows_aligned(pool->data, strides, 3, dim, dtype, 8 * ea_dtype_size(dtype));
}

/* page_magic is ceil(2^64 / page_size): for a power of two, floor((2^64 - 1) / page_size) + 1 is
 * exact, and otherwise it rounds up as it should. */
static ea_portable_launch portable_launch_of(const ea_call *call, int32_t stages) {
  const ea_strided out = {call->out, call->out_token_stride, call->out_head_stride};
  const int32_t dim = call->head_dim, dim_v = call->head_dim_v;
  const double log2_e = 1.4426950408889634;
  const bool transformed = call->logit_cap > 0 || call->xai_temperature_len > 0;
  return (ea_portable_launch){
      .stages = stages,
      .q_aligned = tensor_aligned(&call->q, dim, call->dtype),
      .kv_aligned = tensor_aligned(&call->k, dim, call->dtype) && tensor_aligned(&call->v, dim_v, call->dtype),
      .cache_aligned = pool_aligned(&call->k_cache, dim, call->cache_dtype) &&
                       pool_aligned(&call->v_cache, dim_v, call->cache_dtype),
      .out_aligned = tensor_aligned(&out, dim_v, call->dtype),
      .transformed = transformed,
      .scale_log2 = (float)(transformed ? log2_e : call->softmax_scale * log2_e),
      .softmax_scale = (float)call->softmax_scale,
      .logit_cap = (float)call->logit_cap,
      .inv_logit_cap = call->logit_cap > 0 ? (float)(1.0 / call->logit_cap) : 0.0f,
      .inv_log2_len = call->xai_temperature_len > 0 ? (float)(1.0 / log2((double)call->xai_temperature_len)) : 0.0f,
      .k_scale = (float)call->k_scale,
      .v_scale = (float)call->v_scale,
      /* Probabilities up to 2^8 are as exact as those up to 1; f16 has no room for v_scale on top. */
      .rescale_slack_log2 = call->v_scale <= 1.0 ? 8.0f : 0.0f,
      .page_magic = call->page_size > 1 ? UINT64_MAX / (uint64_t)call->page_size + 1 : 0,
  };
}

static ea_status run_portable(const ea_cuda_device *device, const ea_cuda_kernel *kernel, const ea_plan_info *info,
                              const ea_call *call, ea_cu_stream stream) {
  const ea_launch_shape shape = {
      .grid_x = ea_portable_first_block(call->num_tokens, call->num_seqs, call->group, info->tile_m),
      .grid_y = call->num_kv_heads,
      .threads = info->threads,
      .smem_bytes = info->smem_bytes,
  };
  if (shape.grid_x > EA_CUDA_MAX_GRID_X) {
    return ea_fail(EA_ERR_UNSUPPORTED,
                   "num_tokens: found %lld, which with groups of %d heads makes %lld blocks, "
                   "allowed %d blocks",
                   (long long)call->num_tokens, call->group, (long long)shape.grid_x, EA_CUDA_MAX_GRID_X);
  }
  if (shape.grid_y > EA_CUDA_MAX_GRID_Y) {
    return ea_fail(EA_ERR_UNSUPPORTED, "num_kv_heads: found %d, allowed %d on a GPU", call->num_kv_heads,
                   EA_CUDA_MAX_GRID_Y);
  }
  if (call->num_slots > UINT32_MAX) {
    return ea_fail(EA_ERR_UNSUPPORTED, "num_pages: found %lld pages of %d slots, allowed 2^32 - 1 slots on a GPU",
                   (long long)call->num_pages, call->page_size);
  }
  ea_call passed_call = *call;
  ea_portable_launch passed_launch = portable_launch_of(call, info->stages);
  void *params[] = {&passed_call, &passed_launch};
  return ea_launch(device, kernel, &shape, params, stream);
}

ea_status ea_cuda_run(ea_cuda_device *device, const ea_cuda_kernel *kernel, const ea_plan_info *info,
                      const ea_call *call, const ea_batch *batch, void *workspace, void *stream) {
  (void)batch;
  (void)workspace;
  ea_status status = ea_device_enter(device);
  if (status) return status;
  switch (info->family) {
  case EA_FAMILY_PORTABLE:
    status = run_portable(device, kernel, info, call, (ea_cu_stream)stream);
    break;
  default:
    status = ea_fail(EA_ERR_INTERNAL, "family: found %s, allowed one that runs on a GPU", ea_family_name(info->family));
  }
  ea_device_leave(device);
  return status;
}
