/* See staging.h. */
#include "cuda/staging.h"

#include "common/error.h"

/* Rows of queries (tokens times the heads of a group) of a sequence, in the mean, from which on it pays: two passes
 * over memory take a few percent of the time of the products with so many. */
#define STAGED_FROM_ROWS 4096
/* More of a workspace is not asked for. Keys that find no room come slot by slot. */
#define STAGED_BYTES ((int64_t)1 << 30)

int64_t ea_staged_token_bytes(const ea_kernel *kernel, const ea_problem *resolved) {
  const bool whole_slices = resolved->head_dim % EA_HOPPER_SLICE == 0 && resolved->head_dim_v % EA_HOPPER_SLICE == 0;
  const bool all_seen = resolved->window_left <= 0 && !resolved->skip_prefix;
  const bool as_it_is = resolved->cache_dtype == resolved->dtype;
  if (kernel->launch != EA_LAUNCH_HOPPER_WIDE || !whole_slices || !all_seen || !as_it_is) return 0;
  return (int64_t)resolved->num_kv_heads * (resolved->head_dim + (resolved->shared_kv ? 0 : resolved->head_dim_v)) * 2;
}

/* How many of the cached tokens are staged, in so many bytes. If less than half would be, none is: slots of a tile
 * may follow each other, and would not come by TMA beside those that are staged. */
static int64_t tokens_in(const ea_cuda_plan *plan, ea_batch_size size, int64_t room) {
  const int64_t rows = size.num_tokens * plan->group * plan->group_parts;
  const bool often = rows > 0 && rows >= STAGED_FROM_ROWS * size.num_seqs;
  if (plan->staged_token_bytes == 0 || !often) return 0;
  const int64_t fit = (room < STAGED_BYTES ? room : STAGED_BYTES) / plan->staged_token_bytes;
  if (fit < size.num_kv_indices / 2) return 0;
  return fit < size.num_kv_indices ? fit : size.num_kv_indices;
}

size_t ea_staging_bytes(const ea_cuda_plan *plan, ea_batch_size size) {
  return (size_t)(tokens_in(plan, size, STAGED_BYTES) * plan->staged_token_bytes);
}

size_t ea_staging_offset(size_t used) {
  return (used + EA_WORKSPACE_ALIGNMENT - 1) / EA_WORKSPACE_ALIGNMENT * EA_WORKSPACE_ALIGNMENT;
}

ea_stage_launch ea_staging_of(const ea_cuda_plan *plan, const ea_call *call, ea_workspace workspace, size_t used) {
  const size_t offset = ea_staging_offset(used);
  if (plan->staged_token_bytes == 0 || workspace.bytes <= offset) return (ea_stage_launch){0};
  const ea_batch_size size = {call->num_seqs, call->num_tokens, call->num_kv_indices};
  const int64_t tokens = tokens_in(plan, size, (int64_t)(workspace.bytes - offset));
  uint16_t *keys = (void *)(workspace.data + offset);
  return (ea_stage_launch){
      .k = keys,
      .v = call->shared_kv ? NULL : keys + tokens * call->num_kv_heads * call->head_dim,
      .tokens = tokens,
  };
}

ea_status ea_enqueue_staging(const ea_cuda_device *device, ea_call *call, ea_stage_launch *staged,
                             ea_cu_stream stream) {
  if (staged->tokens == 0) return EA_OK;
  if (!device->stage) {
    return ea_fail(EA_ERR_INTERNAL, "kernel stage: found none in a build that has the Hopper kernels");
  }
  const int64_t blocks = (staged->tokens + EA_STAGE_TOKENS - 1) / EA_STAGE_TOKENS;
  const int64_t most = (int64_t)device->multiprocessors * 8; /* as many as can be there at once */
  const ea_launch_shape shape = {.blocks = blocks < most ? blocks : most, .threads = EA_STAGE_THREADS};
  void *params[] = {call, staged};
  return ea_launch(device, device->stage, &shape, params, stream);
}
