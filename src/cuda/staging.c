/* See staging.h. */
#include "cuda/staging.h"

#include "common/error.h"

/* Rows of queries (tokens times the heads of a group) of a sequence, in the mean, from which on it pays: two passes
 * over memory take a few percent of the time of the products with so many. */
#define STAGED_FROM_ROWS 4096
/* More of a workspace is not asked for. Keys that find no room come slot by slot. */
#define STAGED_BYTES ((int64_t)1 << 30)

static int64_t token_bytes(const ea_call *call) {
  return (int64_t)call->num_kv_heads * (call->head_dim + (call->shared_kv ? 0 : call->head_dim_v)) * 2;
}

static bool pays(const ea_kernel *kernel, const ea_call *call) {
  const int64_t rows = call->num_tokens * (call->num_q_heads / call->num_kv_heads);
  const bool often = rows > 0 && rows >= STAGED_FROM_ROWS * call->num_seqs;
  const bool whole_slices = call->head_dim % EA_HOPPER_SLICE == 0 && call->head_dim_v % EA_HOPPER_SLICE == 0;
  const bool all_seen = call->window == 0 && !call->skip_prefix, as_it_is = call->cache_dtype == call->dtype;
  return kernel->launch == EA_LAUNCH_HOPPER_WIDE && often && whole_slices && all_seen && as_it_is;
}

/* How many of the cached tokens are staged, in so many bytes. If less than half would be, none is: slots of a tile
 * may follow each other, and would not come by TMA beside those that are staged. */
static int64_t tokens_in(const ea_kernel *kernel, const ea_call *call, int64_t room) {
  if (!pays(kernel, call)) return 0;
  const int64_t fit = (room < STAGED_BYTES ? room : STAGED_BYTES) / token_bytes(call);
  if (fit < call->num_kv_indices / 2) return 0;
  return fit < call->num_kv_indices ? fit : call->num_kv_indices;
}

size_t ea_staging_bytes(const ea_kernel *kernel, const ea_call *call) {
  return (size_t)(tokens_in(kernel, call, STAGED_BYTES) * token_bytes(call));
}

size_t ea_staging_offset(size_t used) {
  return (used + EA_WORKSPACE_ALIGNMENT - 1) / EA_WORKSPACE_ALIGNMENT * EA_WORKSPACE_ALIGNMENT;
}

ea_stage_launch ea_staging_of(const ea_kernel *kernel, const ea_call *call, ea_workspace workspace, size_t used) {
  const size_t offset = ea_staging_offset(used);
  if (workspace.bytes <= offset) return (ea_stage_launch){0};
  const int64_t tokens = tokens_in(kernel, call, (int64_t)(workspace.bytes - offset));
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
