/* Launches: each turns a checked call into one kernel's arguments and enqueues it. */
#include "cuda/launch.h"

#include <math.h>
#include <string.h>

#include "common/error.h"
#include "cuda/kernels/hopper.h"
#include "cuda/kernels/stage.h"
#include "plan/hopper_wide.h"
#include "plan/portable.h"

/* What the driver takes: blocks of a grid. */
#define EA_CUDA_MAX_BLOCKS INT32_MAX

ea_status ea_launch(const ea_cuda_device *device, const ea_cuda_kernel *kernel, const ea_launch_shape *shape,
                    void **params, ea_cu_stream stream) {
  if (shape->blocks == 0) return EA_OK;
  const ea_cu_result result =
      device->driver.launch_kernel(kernel->function, (unsigned)shape->blocks, 1, 1, (unsigned)shape->threads, 1, 1,
                                   (unsigned)shape->smem_bytes, stream, params, NULL);
  return ea_driver_check(&device->driver, result, "cuLaunchKernel");
}

/* The count of work taken, and behind it an order of work. */
#define EA_HOPPER_WORKSPACE_BYTES 256
#define EA_HOPPER_ORDER_OFFSET 128

/* A call's work, as the Hopper kernels give it out. */
typedef struct hopper_work {
  int32_t parts; /* of each group: the kernels for wide heads cut one that has more heads than they have rows */
  int32_t block_tokens;
  int64_t row_blocks; /* as many as the sequences can need, whatever their lengths are */
  int64_t pieces;
  bool counted; /* given out by a count, or by an order and a count */
  size_t bytes; /* of workspace for that */
} hopper_work;

static hopper_work work_of(const ea_cuda_device *device, const ea_plan_info *info, const ea_call *call) {
  const int32_t group = call->num_q_heads / call->num_kv_heads;
  hopper_work work = {.parts = info->tile_m == EA_WIDE_M ? ea_wide_group_parts(group) : 1};
  work.block_tokens = ea_hopper_block_tokens(info->tile_m, group / work.parts);
  work.row_blocks = call->num_seqs == 1 ? (call->num_tokens + work.block_tokens - 1) / work.block_tokens
                                        : call->num_tokens / work.block_tokens + call->num_seqs;
  work.pieces = work.row_blocks * call->num_kv_heads * work.parts;
  /* One round of it, a piece a multiprocessor, needs no count; nor do two of one sequence, whose second piece is the
   * shorter the longer the first was. */
  work.counted = work.pieces > (int64_t)device->multiprocessors * (call->num_seqs == 1 ? 2 : 1);
  if (work.counted) work.bytes = EA_HOPPER_WORKSPACE_BYTES + (size_t)work.row_blocks * sizeof(ea_row_block);
  return work;
}

/* ---- staging -----------------------------------------------------------------------------------
 *
 * Rows of scattered slots come to shared memory 16 bytes at a time, and slower than the kernels for wide heads multiply
 * them (docs/hopper_wide.md). Where many blocks of rows read the same keys, these are first copied together, in order,
 * behind what else is in the workspace, and come by TMA. */

/* Rows of queries (tokens times the heads of a group) of a sequence, in the mean, from which on it pays: two passes
 * over memory take a few percent of the time of the products with so many. */
#define STAGED_FROM_ROWS 4096
/* More of a workspace is not asked for. Keys that find no room come slot by slot. */
#define STAGED_BYTES ((int64_t)1 << 30)

static int64_t staged_token_bytes(const ea_call *call) {
  return (int64_t)call->num_kv_heads * (call->head_dim + (call->shared_kv ? 0 : call->head_dim_v)) * 2;
}

/* How many of the cached tokens are staged, in so many bytes. If less than half would be, none is: slots of a tile
 * may follow each other, and would not come by TMA beside those that are staged. */
static int64_t staged_tokens(const ea_plan_info *info, const ea_call *call, int64_t room) {
  const int64_t rows = call->num_tokens * (call->num_q_heads / call->num_kv_heads);
  const bool often = rows > 0 && rows >= STAGED_FROM_ROWS * call->num_seqs;
  const bool whole_slices = call->head_dim % EA_HOPPER_SLICE == 0 && call->head_dim_v % EA_HOPPER_SLICE == 0;
  const bool all_seen = call->window == 0 && !call->skip_prefix, as_it_is = call->cache_dtype == call->dtype;
  if (info->tile_m != EA_WIDE_M || !often || !whole_slices || !all_seen || !as_it_is) return 0;
  const int64_t fit = (room < STAGED_BYTES ? room : STAGED_BYTES) / staged_token_bytes(call);
  if (fit < call->num_kv_indices / 2) return 0;
  return fit < call->num_kv_indices ? fit : call->num_kv_indices;
}

static size_t staging_offset(size_t bytes_before) {
  return (bytes_before + EA_WORKSPACE_ALIGNMENT - 1) / EA_WORKSPACE_ALIGNMENT * EA_WORKSPACE_ALIGNMENT;
}

/* Where the keys and values of the first `tokens` entries of kv_indices are copied to. */
static ea_stage_launch staging_of(const ea_call *call, int64_t tokens, void *to) {
  const ea_stage_launch launch = {
      .k = to,
      .v = call->shared_kv ? NULL : (uint16_t *)to + tokens * call->num_kv_heads * call->head_dim,
      .tokens = tokens,
  };
  return launch;
}

static ea_status stage(const ea_cuda_device *device, ea_call *call, ea_stage_launch *launch, ea_cu_stream stream) {
  if (!device->stage) {
    return ea_fail(EA_ERR_INTERNAL, "kernel stage: found none in a build that has the Hopper kernels");
  }
  const int64_t blocks = (launch->tokens + EA_STAGE_TOKENS - 1) / EA_STAGE_TOKENS;
  const int64_t most = (int64_t)device->multiprocessors * 8; /* as many as can be there at once */
  const ea_launch_shape shape = {.blocks = blocks < most ? blocks : most, .threads = EA_STAGE_THREADS};
  void *params[] = {call, launch};
  return ea_launch(device, device->stage, &shape, params, stream);
}

/* ---- workspace --------------------------------------------------------------------------------- */

size_t ea_cuda_workspace_bytes(const ea_cuda_device *device, const ea_problem *resolved, const ea_plan_info *info,
                               int64_t num_seqs, int64_t num_tokens, int64_t num_kv_indices) {
  if (info->family != EA_FAMILY_HOPPER) return 0;
  const ea_call call = {
      .num_seqs = num_seqs,
      .num_tokens = num_tokens,
      .num_kv_indices = num_kv_indices,
      .num_q_heads = resolved->num_q_heads,
      .num_kv_heads = resolved->num_kv_heads,
      .head_dim = resolved->head_dim,
      .head_dim_v = resolved->head_dim_v,
      .dtype = resolved->dtype,
      .cache_dtype = resolved->cache_dtype,
      .shared_kv = resolved->shared_kv,
      .skip_prefix = resolved->skip_prefix,
      .window = resolved->window_left > 0 ? resolved->window_left : 0,
  };
  const size_t bytes = work_of(device, info, &call).bytes;
  const int64_t tokens = staged_tokens(info, &call, STAGED_BYTES);
  return tokens == 0 ? bytes : staging_offset(bytes) + (size_t)(tokens * staged_token_bytes(&call));
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

/* The kernels keep slots in 32 bits. */
static ea_status check_slots(const ea_call *call) {
  if (call->num_slots <= UINT32_MAX) return EA_OK;
  return ea_fail(EA_ERR_UNSUPPORTED, "num_pages: found %lld pages of %d slots, allowed 2^32 - 1 slots on a GPU",
                 (long long)call->num_pages, call->page_size);
}

static ea_status run_portable(const ea_cuda_device *device, const ea_cuda_kernel *kernel, const ea_plan_info *info,
                              const ea_call *call, ea_cu_stream stream) {
  const int64_t row_blocks = ea_portable_first_block(call->num_tokens, call->num_seqs, call->group, info->tile_m);
  const ea_launch_shape shape = {
      .blocks = row_blocks * call->num_kv_heads, .threads = info->threads, .smem_bytes = info->smem_bytes};
  if (shape.blocks > EA_CUDA_MAX_BLOCKS) {
    return ea_fail(EA_ERR_UNSUPPORTED,
                   "num_tokens: found %lld, which with %d key/value heads and groups of %d makes %lld blocks, "
                   "allowed %d blocks",
                   (long long)call->num_tokens, call->num_kv_heads, call->group, (long long)shape.blocks,
                   EA_CUDA_MAX_BLOCKS);
  }
  const ea_status status = check_slots(call);
  if (status) return status;
  ea_call passed_call = *call;
  ea_portable_launch passed_launch = portable_launch_of(call, info->stages);
  void *params[] = {&passed_call, &passed_launch};
  return ea_launch(device, kernel, &shape, params, stream);
}

/* ---- hopper ------------------------------------------------------------------------------------ */

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
static _Thread_local struct {
  ea_tensor_map maps[REMEMBERED_MAPS];
  map_key keys[REMEMBERED_MAPS]; /* rank 0: none */
  unsigned next;
} remembered;

static ea_status encode_key(const ea_cuda_device *device, const char *name, const map_key *key, ea_tensor_map *map) {
  for (unsigned i = 0; i < REMEMBERED_MAPS; i++) {
    if (memcmp(&remembered.keys[i], key, sizeof *key) != 0) continue;
    *map = remembered.maps[i];
    return EA_OK;
  }
  static const uint32_t steps[] = {1, 1, 1, 1};
  const ea_cu_result result = device->driver.tensor_map_encode_tiled(
      map, key->type, (unsigned)key->rank, (void *)(uintptr_t)key->address, key->dims, key->strides, key->box, steps, 0,
      EA_CU_TENSOR_MAP_SWIZZLE_128B, EA_CU_TENSOR_MAP_L2_PROMOTION_128B, 0);
  const ea_status status = ea_driver_check(&device->driver, result, name);
  if (status) return status;
  const unsigned place = remembered.next++ % REMEMBERED_MAPS;
  remembered.maps[place] = *map;
  remembered.keys[place] = *key;
  return EA_OK;
}

static int32_t map_type_of(const ea_call *call) {
  return call->dtype == EA_BF16 ? EA_CU_TENSOR_MAP_BFLOAT16 : EA_CU_TENSOR_MAP_FLOAT16;
}

/* A [tokens, heads, dim] tensor as TMA sees it, in boxes of 64 columns x box_heads x box_tokens. */
static ea_status encode_map(const ea_cuda_device *device, const char *name, const ea_call *call,
                            const ea_strided *tensor, int32_t dim, int32_t heads, int32_t box_heads, int32_t box_tokens,
                            ea_tensor_map *map) {
  const map_key key = {
      .address = (uint64_t)(uintptr_t)tensor->data,
      .dims = {(uint64_t)dim, (uint64_t)heads, (uint64_t)call->num_tokens},
      .strides = {(uint64_t)tensor->head_stride * 2, (uint64_t)tensor->token_stride * 2},
      .box = {EA_HOPPER_SLICE, (uint32_t)box_heads, (uint32_t)box_tokens},
      .rank = 3,
      .type = map_type_of(call),
  };
  return encode_key(device, name, &key, map);
}

/* A [tokens, heads, dim] tensor in boxes of rows x slices of one head, slice by slice: units of the kernels for wide
 * heads. dim is a multiple of 64. */
static ea_status encode_units(const ea_cuda_device *device, const char *name, const ea_call *call,
                              const ea_strided *tensor, int64_t tokens, int32_t dim, int32_t rows, int32_t slices,
                              ea_tensor_map *map) {
  const map_key key = {
      .address = (uint64_t)(uintptr_t)tensor->data,
      .dims = {EA_HOPPER_SLICE, (uint64_t)tokens, (uint64_t)ea_hopper_slices(dim), (uint64_t)call->num_kv_heads},
      .strides = {(uint64_t)tensor->token_stride * 2, EA_HOPPER_SLICE_BYTES, (uint64_t)tensor->head_stride * 2},
      .box = {EA_HOPPER_SLICE, (uint32_t)rows, (uint32_t)slices, 1},
      .rank = 4,
      .type = map_type_of(call),
  };
  return encode_key(device, name, &key, map);
}

/* What TMA asks of strides beside their alignment (CUDA driver API, cuTensorMapEncodeTiled). Other rows are
 * read by plain loads. */
static bool tma_can_step(const ea_strided *tensor) {
  const int64_t limit = ((int64_t)1 << 40) / 2; /* elements */
  return tensor->token_stride < limit && tensor->head_stride < limit;
}

/* A pool as a tensor whose tokens are slots. False: slots are not equally far from each other, or not for TMA. */
static bool pool_as_tensor(const ea_pool *pool, int32_t page_size, ea_strided *tensor) {
  *tensor = (ea_strided){pool->data, page_size == 1 ? pool->page_stride : pool->row_stride, pool->head_stride};
  return (page_size == 1 || pool->page_stride == page_size * pool->row_stride) && tensor->token_stride > 0 &&
         tensor->head_stride > 0 && tma_can_step(tensor);
}

/* The maps of a kernel for wide heads. staged: where cached tokens are copied to, if any are. */
static ea_status encode_wide(const ea_cuda_device *device, const ea_call *call, const ea_stage_launch *staged,
                             ea_hopper_launch *launch) {
  const ea_wide_shape shape = ea_wide_find_shape(call->head_dim, call->head_dim_v, call->shared_kv);
  const int32_t keys = ea_wide_v_keys(shape), slices = EA_WIDE_V_COLUMNS / EA_HOPPER_SLICE;
  const bool whole_slices = call->head_dim % EA_HOPPER_SLICE == 0 && call->head_dim_v % EA_HOPPER_SLICE == 0;
  const int64_t heads = call->num_kv_heads;
  ea_strided k_pool = {staged->k, heads * call->head_dim, call->head_dim};
  ea_strided v_pool = {staged->v, heads * call->head_dim_v, call->head_dim_v};
  if (call->shared_kv) v_pool = k_pool;
  int64_t rows = staged->tokens;
  launch->staged = (int32_t)rows;
  launch->kv_boxes = whole_slices && launch->scores.kv_aligned;
  launch->pool_boxes = rows > 0;
  if (rows == 0) {
    rows = call->num_slots;
    launch->pool_boxes = whole_slices && launch->scores.cache_aligned && call->cache_dtype == call->dtype && rows > 0 &&
                         rows <= INT32_MAX && pool_as_tensor(&call->k_cache, call->page_size, &k_pool) &&
                         pool_as_tensor(&call->v_cache, call->page_size, &v_pool);
  }
  ea_status status = EA_OK;
  if (launch->kv_boxes) {
    status =
        encode_units(device, "k", call, &call->k, call->num_tokens, call->head_dim, EA_WIDE_N, shape.unit, &launch->k);
    if (!status) {
      status = encode_units(device, "v", call, &call->v, call->num_tokens, call->head_dim_v, keys, slices, &launch->v);
    }
  }
  if (!status && launch->pool_boxes) {
    status =
        encode_units(device, "k_cache", call, &k_pool, rows, call->head_dim, EA_WIDE_N, shape.unit, &launch->k_pool);
    if (!status) {
      status = encode_units(device, "v_cache", call, &v_pool, rows, call->head_dim_v, keys, slices, &launch->v_pool);
    }
  }
  return status;
}

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

static ea_status clear_taken(const ea_cuda_device *device, int32_t *taken, ea_cu_stream stream) {
  const ea_cu_result result = device->driver.memset_bytes(ea_cu_address(taken), 0, sizeof *taken, stream);
  return ea_driver_check(&device->driver, result, "cuMemsetD8Async");
}

/* Clears the count of work taken as well. */
static ea_status order_work(const ea_cuda_device *device, ea_call *call, const ea_hopper_launch *work, int32_t tile_n,
                            ea_schedule *order, ea_cu_stream stream) {
  if (!device->schedule) {
    return ea_fail(EA_ERR_INTERNAL, "kernel schedule: found none in a build that has the Hopper kernels");
  }
  ea_schedule_launch launch = {
      .taken = work->taken, .row_blocks = work->row_blocks, .block_tokens = work->block_tokens, .tile_n = tile_n};
  const ea_launch_shape shape = {.blocks = 1, .threads = EA_SCHEDULE_THREADS, .smem_bytes = EA_SCHEDULE_SMEM_BYTES};
  void *params[] = {call, &launch, &order};
  return ea_launch(device, device->schedule, &shape, params, stream);
}

static ea_status run_hopper(const ea_cuda_device *device, const ea_cuda_kernel *kernel, const ea_plan_info *info,
                            const ea_call *call, void *workspace, size_t workspace_bytes, ea_cu_stream stream) {
  if (call->num_tokens == 0) return EA_OK;
  const hopper_work work = work_of(device, info, call);
  ea_call passed_call = *call;
  passed_call.group = call->group / work.parts;
  if (work.pieces > INT32_MAX - device->multiprocessors) {
    return ea_fail(EA_ERR_UNSUPPORTED,
                   "num_tokens: found %lld with %d key/value heads, which makes %lld blocks of rows, "
                   "allowed with family portable",
                   (long long)call->num_tokens, call->num_kv_heads, (long long)work.pieces);
  }
  /* One sequence needs no order: its blocks are taken from the last. */
  ea_schedule *const order =
      work.counted && call->num_seqs > 1 ? (void *)((char *)workspace + EA_HOPPER_ORDER_OFFSET) : NULL;
  ea_hopper_launch launch = {
      .scores = portable_launch_of(call, info->stages),
      .order = order,
      .taken = work.counted ? workspace : NULL,
      .row_blocks = (int32_t)work.row_blocks,
      .block_tokens = work.block_tokens,
      .group_magic = (uint32_t)((65536 + passed_call.group - 1) / passed_call.group),
      .group_parts = work.parts,
      .head_chunk = heads_together(call, device->multiprocessors, work.row_blocks, work.block_tokens) * work.parts,
      .stages_magic = UINT32_MAX / (uint32_t)info->stages + 1,
      .marks = device->marks,
  };
  launch.chunk_magic = UINT64_MAX / (uint64_t)launch.head_chunk + 1;
  if (!tma_can_step(&call->q)) launch.scores.q_aligned = false;
  if (!tma_can_step(&call->k) || !tma_can_step(&call->v)) launch.scores.kv_aligned = false;
  const size_t staging_at = staging_offset(work.bytes);
  ea_stage_launch staged = {NULL, NULL, 0};
  if (launch.scores.cache_aligned && workspace_bytes > staging_at) {
    const int64_t tokens = staged_tokens(info, call, (int64_t)(workspace_bytes - staging_at));
    staged = staging_of(call, tokens, (char *)workspace + staging_at);
  }
  ea_status status = check_slots(call);
  if (!status && launch.scores.q_aligned) {
    status = encode_map(device, "q", call, &call->q, call->head_dim, call->num_q_heads, passed_call.group,
                        work.block_tokens, &launch.q);
  }
  const bool wide = info->tile_m == EA_WIDE_M;
  if (!status && wide) status = encode_wide(device, call, &staged, &launch);
  if (!wide) launch.kv_boxes = launch.scores.kv_aligned;
  if (!status && !wide && launch.scores.kv_aligned) {
    status = encode_map(device, "k", call, &call->k, call->head_dim, call->num_kv_heads, 1, info->tile_n, &launch.k);
  }
  if (!status && !wide && launch.scores.kv_aligned) {
    status = encode_map(device, "v", call, &call->v, call->head_dim_v, call->num_kv_heads, 1, info->tile_n, &launch.v);
  }
  if (status) return status;
  const ea_launch_shape shape = {
      .blocks = work.pieces < device->multiprocessors ? work.pieces : device->multiprocessors,
      .threads = info->threads,
      .smem_bytes = info->smem_bytes,
  };
  if (staged.tokens > 0) status = stage(device, &passed_call, &staged, stream);
  if (status) return status;
  if (order) {
    status = order_work(device, &passed_call, &launch, info->tile_n, order, stream);
  } else if (launch.taken) {
    status = clear_taken(device, launch.taken, stream);
  }
  if (status) return status;
  void *params[] = {&passed_call, &launch};
  return ea_launch(device, kernel, &shape, params, stream);
}

ea_status ea_cuda_run(ea_cuda_device *device, const ea_cuda_kernel *kernel, const ea_plan_info *info,
                      const ea_call *call, const ea_batch *batch, void *workspace, size_t workspace_bytes,
                      void *stream) {
  (void)batch;
  ea_status status = ea_device_enter(device);
  if (status) return status;
  switch (info->family) {
  case EA_FAMILY_PORTABLE:
    status = run_portable(device, kernel, info, call, (ea_cu_stream)stream);
    break;
  case EA_FAMILY_HOPPER:
    status = run_hopper(device, kernel, info, call, workspace, workspace_bytes, (ea_cu_stream)stream);
    break;
  default:
    status = ea_fail(EA_ERR_INTERNAL, "family: found %s, allowed one that runs on a GPU", ea_family_name(info->family));
  }
  ea_device_leave(device);
  return status;
}
