/* What both Hopper kernels do alike. Included by them once they have said what an item is (ea_item), where things are
 * in shared memory (ea_places, barriers_at, items_at, item_at) and how many keys a tile has (TILE_N). */
#ifndef EA_CUDA_KERNELS_HOPPER_PARTS_H
#define EA_CUDA_KERNELS_HOPPER_PARTS_H

/* The value of lane 0, known to be the same in all lanes. */
EA_DEVICE int uniform(int x) {
  return __shfl_sync(0xffffffffu, x, 0);
}
EA_DEVICE uint32_t uniform(uint32_t x) {
  return __shfl_sync(0xffffffffu, x, 0);
}

/* ---- places ----------------------------------------------------------------------------------- */

EA_DEVICE uint32_t q_full(ea_places at) {
  return barriers_at(at);
}
EA_DEVICE uint32_t q_empty(ea_places at) {
  return barriers_at(at) + 8;
}
/* Items take turns in their places. */
#define LAST_PLACE ((EA_HOPPER_ITEMS - 1) * EA_HOPPER_ITEM_BYTES)
EA_DEVICE uint32_t place_after(ea_places at, uint32_t place) {
  return place == items_at(at) + LAST_PLACE ? items_at(at) : place + EA_HOPPER_ITEM_BYTES;
}
EA_DEVICE uint32_t place_before(ea_places at, uint32_t place) {
  return place == items_at(at) ? items_at(at) + LAST_PLACE : place - EA_HOPPER_ITEM_BYTES;
}

/* ---- work and keys ---------------------------------------------------------------------------- */

/* The next number of a piece of work: blocks take them one after another, as they get through. */
EA_DEVICE int32_t take_work(const ea_hopper_launch &launch) {
  return launch.taken ? (int32_t)gridDim.x + atomicAdd(launch.taken, 1) : INT32_MAX;
}

/* Where a key's row begins; NULL where it is not there. */
EA_DEVICE const char *key_row(const ea_call &call, const ea_hopper_launch &launch, uint32_t place, int key, bool of_v) {
  const ea_item *item = item_at(place);
  if (key < item->keys.first || key >= item->keys.end) return 0;
  if (key < item->view.prefix) {
    const ea_pool &pool = of_v ? call.v_cache : call.k_cache;
    const int64_t slot = ea_load_index(call.kv_indices, call.index_dtype, item->prefix_base + key);
    const int64_t offset = slot_offset(pool, slot, call.page_size, launch.scores.page_magic, item->kv_head);
    return (const char *)pool.data + (call.cache_dtype == call.dtype ? offset * 2 : offset);
  }
  const ea_strided &fresh = of_v ? call.v : call.k;
  const int64_t token = item->token0 + (key - item->view.prefix);
  return (const char *)fresh.data + (token * fresh.token_stride + item->kv_head * fresh.head_stride) * 2;
}

/* Whether cp.async can read all rows of a tile. */
EA_DEVICE bool rows_are_aligned(const ea_call &call, const ea_hopper_launch &launch, uint32_t place, int tile) {
  const int cached = item_at(place)->view.prefix - tile * TILE_N; /* so many rows are of the prefix */
  const bool pool_aligned = launch.scores.cache_aligned && call.cache_dtype == call.dtype;
  return (cached <= 0 || pool_aligned) && (cached >= TILE_N || launch.scores.kv_aligned);
}

/* ---- rows ------------------------------------------------------------------------------------- */

/* One arrival a warp, when all its lanes are through. */
EA_DEVICE void release(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

/* Query of a row of the block; rows past the last query show what that sees. */
EA_DEVICE int row_query(const ea_item *item, int row, int group) {
  return ea_min_i32(item->i0 + row / group, item->view.extend - 1);
}

/* What scores become before the softmax: scales, cap, temperature. */
EA_DEVICE void transform(float s[TILE_N / 2], const ea_call &call, const ea_hopper_launch &launch, const ea_item *item,
                         int key0, int row) {
  const ea_portable_launch &with = launch.scores;
  if (with.k_scale != 1.0f) {
    const int cached = item->view.prefix - key0;
#pragma unroll
    for (int e = 0; e < TILE_N / 2; e++) {
      if (e / 4 * 8 + e % 2 < cached) s[e] *= with.k_scale;
    }
  }
  if (!with.transformed) return;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float temperature = 1.0f;
    if (call.xai_temperature_len > 0) {
      const int position = item->view.prefix + row_query(item, row + h * 8, call.group);
      temperature = ea_temperature(position, call.xai_temperature_len, __log2f((float)position), with.inv_log2_len);
    }
#pragma unroll
    for (int e = 0; e < TILE_N / 4; e++) {
      float *x = &s[e / 2 * 4 + h * 2 + e % 2];
      *x = transformed_score(*x, with, temperature);
    }
  }
}

#endif
