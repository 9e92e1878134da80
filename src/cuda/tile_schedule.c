/* See tile_schedule.h. */
#include "cuda/tile_schedule.h"

#include "common/error.h"

/* The counter of tiles taken, and behind it their order. */
#define COUNTER_BYTES 256
#define ORDER_OFFSET 128

/* Bytes of keys and values that are to stay in L2 while the heads they belong to are worked on. */
#define L2_SHARE_BYTES ((int64_t)32 << 20)

/* How many K/V heads are worked on together: as many as find room in L2, but enough to keep every multiprocessor busy
 * to the end, which the longest walks of the last heads do not if they begin late; and in chunks as equal as can be,
 * for the same reason. Under a window, blocks at work see only what is near their rows. */
static int32_t heads_together(const ea_call *call, int64_t multiprocessors, int64_t row_blocks, int32_t block_tokens) {
  const int64_t key_bytes = (int64_t)(call->head_dim + call->head_dim_v) * 2, heads = call->num_kv_heads;
  const int64_t keys = call->num_tokens + call->num_kv_indices;
  int64_t room = L2_SHARE_BYTES / key_bytes, head_keys = keys;
  if (call->window > 0 && call->window + multiprocessors * block_tokens < keys) {
    room -= multiprocessors * block_tokens; /* however many heads share the blocks out */
    head_keys = call->window;
  }
  int64_t together = head_keys > 0 ? room / head_keys : heads;
  const int64_t busy = 2 * multiprocessors / row_blocks + 1; /* walks are half as long as the longest, in the mean */
  if (together < busy) together = busy;
  if (together > heads) together = heads;
  const int64_t chunks = (heads + together - 1) / together;
  return (int32_t)((heads + chunks - 1) / chunks);
}

ea_tile_schedule ea_schedule_tiles(const ea_cuda_device *device, const ea_cuda_plan *plan, int64_t num_seqs,
                                   int64_t num_tokens) {
  const int32_t block_tokens = plan->block_tokens;
  ea_tile_schedule tiles = {.row_blocks = num_seqs == 1 ? (num_tokens + block_tokens - 1) / block_tokens
                                                        : num_tokens / block_tokens + num_seqs};
  tiles.work_tiles = tiles.row_blocks * plan->num_kv_heads * plan->group_parts;
  /* One wave of them, a tile a multiprocessor, needs no counter; nor do two of one sequence, whose second tile is the
   * shorter the longer the first was. */
  tiles.counted = tiles.work_tiles > (int64_t)device->multiprocessors * (num_seqs == 1 ? 2 : 1);
  tiles.ordered = tiles.counted && num_seqs > 1; /* one sequence's are taken from the last */
  if (tiles.counted) tiles.workspace_bytes = COUNTER_BYTES + (size_t)tiles.row_blocks * sizeof(ea_row_block);
  return tiles;
}

int32_t ea_heads_together(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_tile_schedule *tiles,
                          const ea_call *call) {
  return heads_together(call, device->multiprocessors, tiles->row_blocks, plan->block_tokens) * plan->group_parts;
}

int32_t *ea_tile_counter(const ea_tile_schedule *tiles, ea_workspace workspace) {
  return tiles->counted ? (void *)workspace.data : NULL;
}

ea_schedule *ea_tile_order(const ea_tile_schedule *tiles, ea_workspace workspace) {
  return tiles->ordered ? (void *)(workspace.data + ORDER_OFFSET) : NULL;
}

static ea_status clear_counter(const ea_cuda_device *device, int32_t *counter, ea_cu_stream stream) {
  const ea_cu_result result = device->driver.memset_bytes(ea_cu_address(counter), 0, sizeof *counter, stream);
  return ea_driver_check(&device->driver, result, "cuMemsetD8Async");
}

/* The longest walks first. The kernel clears the counter as well. */
static ea_status sort_tiles(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_tile_schedule *tiles,
                            ea_call *call, ea_workspace workspace, ea_cu_stream stream) {
  if (!device->schedule) {
    return ea_fail(EA_ERR_INTERNAL, "kernel schedule: found none in a build that has the Hopper kernels");
  }
  ea_schedule *order = ea_tile_order(tiles, workspace);
  ea_schedule_launch launch = {.taken = ea_tile_counter(tiles, workspace),
                               .row_blocks = (int32_t)tiles->row_blocks,
                               .block_tokens = plan->block_tokens,
                               .tile_n = plan->kernel->tile_n};
  const ea_launch_shape shape = {.blocks = 1, .threads = EA_SCHEDULE_THREADS, .smem_bytes = EA_SCHEDULE_SMEM_BYTES};
  void *params[] = {call, &launch, &order};
  return ea_launch(device, device->schedule, &shape, params, stream);
}

ea_status ea_enqueue_schedule(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_tile_schedule *tiles,
                              ea_call *call, ea_workspace workspace, ea_cu_stream stream) {
  if (tiles->ordered) return sort_tiles(device, plan, tiles, call, workspace, stream);
  return tiles->counted ? clear_counter(device, ea_tile_counter(tiles, workspace), stream) : EA_OK;
}
