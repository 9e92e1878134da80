/* Launches of the Hopper kernels: work tiles, staged keys, tensor maps, and then the kernel, with what goes before it.
 */
#include "common/error.h"
#include "cuda/arguments.h"
#include "cuda/kernels/hopper.h"
#include "cuda/launch.h"
#include "cuda/staging.h"
#include "cuda/tensor_maps.h"
#include "cuda/tile_schedule.h"

void ea_plan_hopper(const ea_problem *resolved, ea_cuda_plan *plan) {
  const int32_t tile_m = plan->kernel->tile_m, group = resolved->num_q_heads / resolved->num_kv_heads;
  plan->num_kv_heads = resolved->num_kv_heads;
  plan->group_parts = ea_hopper_group_parts(tile_m, group);
  plan->group = group / plan->group_parts;
  plan->block_tokens = ea_hopper_block_tokens(tile_m, plan->group);
  plan->staged_token_bytes = ea_staged_token_bytes(plan->kernel, resolved);
}

size_t ea_cuda_workspace_bytes(const ea_cuda_device *device, const ea_cuda_plan *plan, ea_batch_size size) {
  if (plan->kernel->family != EA_FAMILY_HOPPER) return 0;
  const size_t bytes = ea_schedule_tiles(device, plan, size.num_seqs, size.num_tokens).workspace_bytes;
  const size_t staging_bytes = ea_staging_bytes(plan, size);
  return staging_bytes == 0 ? bytes : ea_staging_offset(bytes) + staging_bytes;
}

/* ---- the kernel's arguments ---- */

static ea_hopper_launch arguments_of(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_call *call,
                                     const ea_tile_schedule *tiles, ea_workspace workspace) {
  const int32_t head_chunk = ea_heads_together(device, plan, tiles, call);
  ea_hopper_launch launch = {
      .scores = ea_score_arguments(call, plan->stages),
      .order = ea_tile_order(tiles, workspace),
      .taken = ea_tile_counter(tiles, workspace),
      .row_blocks = (int32_t)tiles->row_blocks,
      .block_tokens = plan->block_tokens,
      .group_magic = (uint32_t)((65536 + plan->group - 1) / plan->group),
      .group_parts = plan->group_parts,
      .head_chunk = head_chunk,
      .stages_magic = UINT32_MAX / (uint32_t)plan->stages + 1,
      .chunk_magic = UINT64_MAX / (uint64_t)head_chunk + 1,
      .marks = device->marks,
  };
  if (!ea_tma_can_step(&call->q)) launch.scores.q_aligned = false;
  if (!ea_tma_can_step(&call->k) || !ea_tma_can_step(&call->v)) launch.scores.kv_aligned = false;
  return launch;
}

static ea_status map_queries(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_call *call,
                             ea_hopper_launch *launch) {
  if (!launch->scores.q_aligned) return EA_OK;
  const ea_box box = {.tokens = plan->block_tokens, .heads = plan->group};
  return ea_map_rows(device, "q", call, &call->q, call->num_q_heads, call->head_dim, box, &launch->q);
}

/* K and V of the new tokens, a tile a box and slice. */
static ea_status map_tiles(const ea_cuda_device *device, const ea_kernel *kernel, const ea_call *call,
                           ea_hopper_launch *launch) {
  launch->kv_boxes = launch->scores.kv_aligned;
  if (!launch->kv_boxes) return EA_OK;
  const ea_box box = {.tokens = kernel->tile_n, .heads = 1};
  const ea_status status =
      ea_map_rows(device, "k", call, &call->k, call->num_kv_heads, call->head_dim, box, &launch->k);
  if (status) return status;
  return ea_map_rows(device, "v", call, &call->v, call->num_kv_heads, call->head_dim_v, box, &launch->v);
}

/* Where the kernels for wide heads find cached tokens by TMA: staged, a row each, or in the pool, a slot a row. rows 0:
 * nowhere. */
typedef struct cached_rows {
  ea_strided k, v;
  int64_t rows;
} cached_rows;

static cached_rows cached_rows_of(const ea_call *call, const ea_stage_launch *staged, bool cache_aligned) {
  const int64_t heads = call->num_kv_heads;
  cached_rows cached = {.k = {staged->k, heads * call->head_dim, call->head_dim},
                        .v = {staged->v, heads * call->head_dim_v, call->head_dim_v},
                        .rows = staged->tokens};
  if (call->shared_kv) cached.v = cached.k;
  if (cached.rows > 0) return cached;
  const bool readable = cache_aligned && call->cache_dtype == call->dtype && call->num_slots <= INT32_MAX &&
                        ea_pool_as_tensor(&call->k_cache, call->page_size, &cached.k) &&
                        ea_pool_as_tensor(&call->v_cache, call->page_size, &cached.v);
  cached.rows = readable ? call->num_slots : 0;
  return cached;
}

/* K and V, new and cached, a unit of the kernels for wide heads a box. */
static ea_status map_units(const ea_cuda_device *device, const ea_kernel *kernel, const ea_call *call,
                           const ea_stage_launch *staged, ea_hopper_launch *launch) {
  const ea_wide_shape shape = kernel->shape.hopper_wide;
  const ea_box k_box = {.tokens = EA_WIDE_N, .slices = shape.unit};
  const ea_box v_box = {.tokens = ea_wide_v_keys(shape), .slices = EA_WIDE_V_COLUMNS / EA_HOPPER_SLICE};
  const bool whole_slices = call->head_dim % EA_HOPPER_SLICE == 0 && call->head_dim_v % EA_HOPPER_SLICE == 0;
  if (!whole_slices) return EA_OK;
  const int32_t dim = call->head_dim, dim_v = call->head_dim_v;
  const cached_rows cached = cached_rows_of(call, staged, launch->scores.cache_aligned);
  launch->staged = (int32_t)staged->tokens;
  launch->kv_boxes = launch->scores.kv_aligned;
  launch->pool_boxes = cached.rows > 0;
  ea_status status = EA_OK;
  if (launch->kv_boxes) {
    status = ea_map_slices(device, "k", call, &call->k, call->num_tokens, dim, k_box, &launch->k);
    if (!status) status = ea_map_slices(device, "v", call, &call->v, call->num_tokens, dim_v, v_box, &launch->v);
  }
  if (!status && launch->pool_boxes) {
    status = ea_map_slices(device, "k_cache", call, &cached.k, cached.rows, dim, k_box, &launch->k_pool);
    if (!status) status = ea_map_slices(device, "v_cache", call, &cached.v, cached.rows, dim_v, v_box, &launch->v_pool);
  }
  return status;
}

/* ---- the launch ---- */

static ea_status check_tiles(const ea_cuda_device *device, const ea_call *call, const ea_tile_schedule *tiles) {
  if (tiles->work_tiles <= INT32_MAX - device->multiprocessors) return EA_OK;
  return ea_fail(EA_ERR_UNSUPPORTED,
                 "num_tokens: found %lld with %d key/value heads, which makes %lld blocks of rows, "
                 "allowed with family portable",
                 (long long)call->num_tokens, call->num_kv_heads, (long long)tiles->work_tiles);
}

static ea_status map_tensors(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_call *call,
                             const ea_stage_launch *staged, ea_hopper_launch *launch) {
  const ea_kernel *kernel = plan->kernel;
  const ea_status status = map_queries(device, plan, call, launch);
  if (status) return status;
  return kernel->launch == EA_LAUNCH_HOPPER_WIDE ? map_units(device, kernel, call, staged, launch)
                                                 : map_tiles(device, kernel, call, launch);
}

ea_status ea_launch_hopper(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_call *call,
                           ea_workspace workspace, ea_cu_stream stream) {
  const ea_tile_schedule tiles = ea_schedule_tiles(device, plan, call->num_seqs, call->num_tokens);
  ea_status status = check_tiles(device, call, &tiles);
  if (status) return status;
  ea_call passed_call = *call;
  passed_call.group = plan->group; /* a part of a group is a group of its own to the kernels */
  ea_hopper_launch launch = arguments_of(device, plan, call, &tiles, workspace);
  ea_stage_launch staged = {0};
  if (launch.scores.cache_aligned) staged = ea_staging_of(plan, call, workspace, tiles.workspace_bytes);

  status = map_tensors(device, plan, call, &staged, &launch);
  if (!status) status = ea_enqueue_staging(device, &passed_call, &staged, stream);
  if (!status) status = ea_enqueue_schedule(device, plan, &tiles, &passed_call, workspace, stream);
  if (status) return status;
  const ea_launch_shape shape = {
      .blocks = tiles.work_tiles < device->multiprocessors ? tiles.work_tiles : device->multiprocessors,
      .threads = plan->kernel->threads,
      .smem_bytes = plan->smem_bytes,
  };
  void *params[] = {&passed_call, &launch};
  return ea_launch(device, plan->loaded, &shape, params, stream);
}
