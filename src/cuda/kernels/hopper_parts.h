/* What both Hopper kernels do alike. Included by them once they have said where things are in shared memory (ea_places,
 * barriers_at, items_at, items_done_at), their sizes (SLICES, TILE_M, TILE_N), how many keys they take at a step
 * (STEP_KEYS) and how many threads of the producer gather a tile together (FEEDERS). */
#ifndef EA_CUDA_KERNELS_HOPPER_PARTS_H
#define EA_CUDA_KERNELS_HOPPER_PARTS_H

/* The value of lane 0, known to be the same in all lanes. */
EA_DEVICE int uniform(int x) {
  return __shfl_sync(0xffffffffu, x, 0);
}
EA_DEVICE uint32_t uniform(uint32_t x) {
  return __shfl_sync(0xffffffffu, x, 0);
}

/* What a block works on: rows of one sequence and K/V head. */
typedef struct ea_item {
  ea_view view;
  int64_t token0;      /* the sequence's first row in q, k, v, out */
  int64_t prefix_base; /* and in kv_indices */
  ea_key_range keys;   /* visible to some row of the block */
  ea_key_range plain;  /* tiles between these need no mask */
  int32_t first_step, end_step;
  int32_t gather_end;          /* steps before this one have keys that no TMA box of new tokens brings */
  int32_t i0;                  /* first query */
  int32_t rows;                /* (query, head) rows that exist; 0: no more work */
  int32_t kv_head, first_head; /* first_head: of the queries */
  uint32_t number;             /* of this block's items; the one before the first has -1 */
  uint32_t ring;               /* hopper.cu: its first tile's place in the rings */
  uint32_t careful;            /* done once more, for its NaN or Inf */
  uint32_t found;              /* NaN or Inf came out */
} ea_item;
static_assert(sizeof(ea_item) <= EA_HOPPER_ITEM_BYTES, "its place in the layout");

EA_DEVICE const ea_item *item_at(uint32_t address) {
  return (const ea_item *)shared_anew(address);
}

/* Of Q's barriers. */
EA_DEVICE uint32_t q_parity(const ea_item *item) {
  return item->number % 2;
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

/* Told by each warp of the consumers when it is through with an item. */
EA_DEVICE uint32_t item_done(ea_places at, uint32_t place) {
  return items_done_at(at) + (place - items_at(at)) / EA_HOPPER_ITEM_BYTES * 8;
}

/* ---- work ------------------------------------------------------------------------------------- */

/* The next number of a piece of work, for a block that has had `last`: blocks take them one after another, as they get
 * through. Where nobody counts there are no more than two for each: who had the longest of the first round has the
 * shortest of the second. */
EA_DEVICE int32_t take_work(const ea_hopper_launch &launch, int32_t last) {
  const int32_t blocks = (int32_t)gridDim.x;
  if (launch.taken) return blocks + atomicAdd(launch.taken, 1);
  return last < blocks ? 2 * blocks - 1 - last : INT32_MAX;
}

/* Piece of work w: heads of a chunk fastest, then row blocks, those with the longest walks first, then
 * chunks. Every number fits 32 bits: the launch sees to it. False: a spare row block. */
EA_DEVICE bool make_item(const ea_call &call, const ea_hopper_launch &launch, int32_t row_blocks, int32_t work,
                         ea_item *item) {
  /* One thread does this, so it is cheap in latency: there are one or two chunks, and no division is common. */
  const int32_t all_heads = call.num_kv_heads * launch.group_parts; /* parts of groups count as such */
  int32_t first_head = 0, heads = ea_min_i32(launch.head_chunk, all_heads), in_chunk = work;
#pragma unroll 1
  while (in_chunk >= row_blocks * heads) {
    in_chunk -= row_blocks * heads;
    first_head += heads;
    heads = ea_min_i32(launch.head_chunk, all_heads - first_head);
  }
  int32_t block = in_chunk;
  if (heads == launch.head_chunk) {
    if (heads > 1) block = (int32_t)__umul64hi((uint64_t)in_chunk, launch.chunk_magic);
  } else {
    block = in_chunk / heads;
  }
  const int32_t head = first_head + in_chunk - block * heads;
  item->kv_head = launch.group_parts == 1 ? head : head / launch.group_parts;
  item->first_head = head * call.group;
  const ea_row_block found = launch.order ? launch.order->blocks[block]
                                          : ea_hopper_find_row_block(call.qo_indptr, (int32_t)call.num_seqs,
                                                                     row_blocks - 1 - block, launch.block_tokens);
  item->view = ea_view_of(&call, found.seq);
  item->prefix_base = call.kv_indptr[found.seq];
  item->token0 = call.qo_indptr[found.seq];
  if (found.i0 >= item->view.extend) return false;
  const int32_t i0 = found.i0;
  const int32_t tokens = ea_min_i32(launch.block_tokens, item->view.extend - i0);
  item->i0 = i0;
  item->rows = tokens * call.group;
  item->keys = ea_visible_keys(&item->view, i0, i0 + tokens);
  const ea_key_range plain = ea_unmasked_keys(&item->view, i0, i0 + tokens);
  item->plain.first = ea_max_i32(plain.first, item->keys.first);
  item->plain.end = ea_min_i32(plain.end, item->keys.end);
  const int32_t first = item->keys.first / STEP_KEYS;
  const int32_t end = item->keys.end > item->keys.first ? (item->keys.end + STEP_KEYS - 1) / STEP_KEYS : first;
  const int32_t cached_end = (item->view.prefix + STEP_KEYS - 1) / STEP_KEYS;
  item->first_step = first;
  item->end_step = end;
  item->gather_end = launch.kv_boxes ? ea_min_i32(end, ea_max_i32(first, cached_end)) : end;
  return true;
}

/* ---- NaN and Inf in V
 *
 * They must reach only the rows that see them (promise 2), and 0 * NaN is NaN: in a tile of which some row of the block
 * does not see a key they would reach all rows. They are rare, and to look for them beforehand took an H200
 * 1 to 3 % of the time (at D = 64 with a window of 128, 8 %; docs/hopper.md). So consumers look at what came out: where
 * that is not finite the item is done once more, carefully. Then its masked tiles lose them on their way to the
 * products, and the rows that see them get them by hand at the end. */

/* Whether an item is to be done once more. Waits for its end, and is to be asked once. */
EA_DEVICE bool came_out_special(ea_places at, uint32_t place) {
  ea_item *item = (ea_item *)__cvta_shared_to_generic(place);
  mbarrier_wait(item_done(at, place), item->number / EA_HOPPER_ITEMS % 2);
  const bool found = item->found != 0;
  item->found = 0;
  return found;
}

/* Of a piece that was used, kept in its place (~: it is negative then). */
EA_DEVICE void take_next(const ea_hopper_launch &launch, int32_t *work) {
  if (*work < 0) *work = take_work(launch, ~*work);
}

/* Makes an item of a piece of work; rows = 0 and false: there is none left. work: the number of a piece that was taken;
 * ~ of it, if it was used. */
EA_DEVICE bool find_work(const ea_call &call, const ea_hopper_launch &launch, ea_item *item, int32_t *work) {
  const int32_t row_blocks = launch.order ? launch.order->count : launch.row_blocks;
  const int32_t all_work = row_blocks * call.num_kv_heads * launch.group_parts;
  item->rows = 0;
  take_next(launch, work);
#pragma unroll 1
  while (*work < all_work && !make_item(call, launch, row_blocks, *work, item)) *work = take_work(launch, *work);
  if (*work >= all_work) return false;
  *work = ~*work;
  return true;
}

/* Finds the next item, and writes it where all will read it; rows = 0: there is none. work: as above. Consumers are at
 * the last item but one or further. */
EA_DEVICE void next_item(const ea_call &call, const ea_hopper_launch &launch, ea_places at, uint32_t place,
                         int32_t *work) {
  ea_item *item = (ea_item *)__cvta_shared_to_generic(place);
  const uint32_t number = item_at(place_before(at, place))->number + 1;
  /* Three items ago is the last that consumers are known to be through with; while there is work nobody waits for the
   * others. */
  uint32_t ago = 3, again = place_after(at, place);
  static_assert(EA_HOPPER_ITEMS == 4, "three items ago is in the place after this one's");
  bool found = number >= ago && came_out_special(at, again);
  if (!found && !find_work(call, launch, item, work)) {
#pragma unroll 1
    while (!found && --ago > 0) {
      again = place_after(at, again);
      found = number >= ago && came_out_special(at, again);
    }
  }
  if (found) {
#pragma unroll 1
    for (uint32_t byte = 0; byte < EA_HOPPER_ITEM_BYTES; byte += 16)
      st_shared_v4(place + byte, ld_shared_v4(again + byte));
  }
  item->number = number;
  item->careful = found;
  item->found = 0;
}

/* ---- rows of a block --------------------------------------------------------------------------- */

/* Its token, counted from the block's first. Exact, since rows and the group are at most TILE_M. */
EA_DEVICE int row_token(const ea_hopper_launch &launch, int row) {
  static_assert(TILE_M * TILE_M < 65536, "where the quotient is exact");
  return (int)((uint32_t)row * launch.group_magic >> 16);
}
/* Its query; rows past the last show what that sees. */
EA_DEVICE int row_query(const ea_hopper_launch &launch, const ea_item *item, int row) {
  return ea_min_i32(item->i0 + row_token(launch, row), item->view.extend - 1);
}

/* ---- queries ---------------------------------------------------------------------------------- */

/* Q by plain loads, where its rows are not aligned. */
EA_DEVICE void load_q(const ea_call &call, const ea_hopper_launch &launch, uint32_t place, int tid, uint32_t q) {
  const ea_source how = {EA_ELEMENT_16BIT, false};
#pragma unroll 1
  for (int index = tid; index < item_at(place)->rows * SLICES * 8; index += 128) {
    const ea_item *item = item_at(place);
    const int row = index / (SLICES * 8), at = index % (SLICES * 8);
    const int t = row_token(launch, row);
    const int64_t token = item->token0 + item->i0 + t, head = item->first_head + row - t * call.group;
    const char *source = (const char *)call.q.data + (token * call.q.token_stride + head * call.q.head_stride) * 2;
    const uint32_t to =
        q + (uint32_t)(at / 8 * TILE_M * EA_HOPPER_SLICE_BYTES + row * 128 + ((at % 8) ^ (row & 7)) * 16);
    if (at * CHUNK < call.head_dim) {
      load_row_chunk(to, source, at, call.head_dim, how);
    } else {
      st_shared_v4(to, make_uint4(0, 0, 0, 0));
    }
  }
}

/* Rows that no query ever fills become zeros: what is in shared memory at first, a NaN perhaps, would keep the softmax
 * busy. All threads come here, before the block begins. */
EA_DEVICE void clear_spare_rows(const ea_call &call, const ea_hopper_launch &launch, ea_places at) {
  const int filled = launch.block_tokens * call.group, chunks = (TILE_M - filled) * 8; /* of a slice */
#pragma unroll 1
  for (int index = (int)threadIdx.x; index < chunks * SLICES; index += THREADS) {
    const int slice = index / chunks, chunk = index % chunks;
    st_shared_v4(at.q + (uint32_t)(slice * TILE_M * EA_HOPPER_SLICE_BYTES + filled * 128 + chunk * 16),
                 make_uint4(0, 0, 0, 0));
  }
  fence_proxy_async_shared();
}

/* Q of an item, when the one before it is no longer needed, by all threads. Its barrier counts 128 arrivals. */
EA_DEVICE void copy_q(const ea_call &call, const ea_hopper_launch &launch, ea_places at, uint32_t place, int tid) {
  PRODUCER_MARK(launch, SLOT_Q, 0);
  mbarrier_wait(q_empty(at), q_parity(item_at(place)) ^ 1);
  PRODUCER_MARK(launch, COPY_Q, 0);
  load_q(call, launch, place, tid, at.q);
  fence_proxy_async_shared();
  mbarrier_arrive(q_full(at));
}

/* The same by TMA, where its rows are aligned, asked for by one thread. */
EA_DEVICE void ask_for_q(const ea_call &call, const ea_hopper_launch &launch, ea_places at, int head, int token) {
  mbarrier_arrive_expect_tx(q_full(at), (uint32_t)(launch.block_tokens * call.group * SLICES * EA_HOPPER_SLICE_BYTES));
  mbarrier_arrive_many(q_full(at), 127);
#pragma unroll
  for (int slice = 0; slice < SLICES; slice++) {
    tma_load_3d(at.q + (uint32_t)(slice * TILE_M * EA_HOPPER_SLICE_BYTES), &launch.q, q_full(at),
                slice * EA_HOPPER_SLICE, head, token);
  }
}
/* And by one whole warp, when the one before it is no longer needed. */
EA_DEVICE void bring_q(const ea_call &call, const ea_hopper_launch &launch, ea_places at, uint32_t place) {
  const ea_item *item = item_at(place);
  PRODUCER_MARK(launch, SLOT_Q, 0);
  mbarrier_wait(q_empty(at), q_parity(item) ^ 1);
  PRODUCER_MARK(launch, COPY_Q, 0);
  const int head = uniform(item->first_head), token = uniform((int)item->token0 + item->i0);
  if (elect_one()) ask_for_q(call, launch, at, head, token);
  __syncwarp();
}

/* ---- keys ------------------------------------------------------------------------------------- */

/* Whether some row of the item does not see some key of a tile. */
EA_DEVICE bool is_masked(const ea_item *item, int tile) {
  return tile * TILE_N < item->plain.first || (tile + 1) * TILE_N > item->plain.end;
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

/* Eight threads copy a row, so FEEDERS threads gather a tile in passes of FEEDERS / 8 rows. Slots of a tile's cached
 * keys, one a lane: of the rows that this warp gathers, number lane % 4 of pass lane / 4. Asked for ahead, so that
 * nobody waits for them. Lanes whose key is not one have 0. */
#define PASS_ROWS (FEEDERS / 8)
static_assert(TILE_N <= 8 * PASS_ROWS, "a lane a slot");

EA_DEVICE int slot_row(int tid) {
  return tid % FEEDERS / 32 * 4 + tid % 4 + tid % 32 / 4 * PASS_ROWS;
}
EA_DEVICE bool is_cached(const ea_item *item, int key) {
  return key >= item->keys.first && key < ea_min_i32(item->keys.end, item->view.prefix);
}
EA_DEVICE uint32_t tile_slots(const ea_call &call, uint32_t place, int tid, int tile) {
  const ea_item *item = item_at(place);
  const int row = slot_row(tid), key = tile * TILE_N + row;
  if (row >= TILE_N || !is_cached(item, key)) return 0;
  return (uint32_t)ea_load_index(call.kv_indices, call.index_dtype, item->prefix_base + key);
}

/* Rows of a tile, for those who gather it: where the one of this lane's slot begins, and which lanes have one. Each
 * lane works out one address, and gets those that it copies from by shuffles: a copy then takes two or three
 * instructions of its threads instead of eight, which the products of the consumers' warps would wait for. */
typedef struct ea_lane_rows {
  const char *row; /* somewhere, where there is none */
  uint32_t there;
} ea_lane_rows;
#define ALL_LANES (TILE_N / PASS_ROWS * 4 == 32 ? 0xffffffffu : (1u << TILE_N / PASS_ROWS * 4 % 32) - 1)

template <bool OF_V>
EA_DEVICE ea_lane_rows lane_rows(const ea_call &call, const ea_hopper_launch &launch, uint32_t place, int tid, int tile,
                                 uint32_t slot) {
  const ea_item *item = item_at(place);
  const int row = slot_row(tid), key = tile * TILE_N + row;
  const bool there = row < TILE_N && key >= item->keys.first && key < item->keys.end;
  const char *at = (const char *)call.q.data;
  if (there && key < item->view.prefix) {
    const ea_pool &pool = OF_V ? call.v_cache : call.k_cache;
    at = (const char *)pool.data + slot_offset(pool, slot, call.page_size, launch.scores.page_magic, item->kv_head) * 2;
  } else if (there) {
    const ea_strided &fresh = OF_V ? call.v : call.k;
    const int64_t token = item->token0 + (key - item->view.prefix);
    at = (const char *)fresh.data + (token * fresh.token_stride + item->kv_head * fresh.head_stride) * 2;
  }
  return {at, __ballot_sync(0xffffffffu, there)};
}

EA_DEVICE int lane_of_pass(int tid, int pass) {
  return tid % 32 / 8 + pass * 4;
}
/* This thread's 16 bytes of the first slice of the row that it copies in a pass. */
EA_DEVICE const char *row_of_pass(const ea_lane_rows &rows, int tid, int pass) {
  const uint64_t row = (uint64_t)rows.row;
  const uint32_t low = __shfl_sync(0xffffffffu, (uint32_t)row, lane_of_pass(tid, pass));
  const uint32_t high = __shfl_sync(0xffffffffu, (uint32_t)(row >> 32), lane_of_pass(tid, pass));
  return (const char *)((uint64_t)high << 32 | low) + tid % 8 * 16;
}
EA_DEVICE bool is_there(const ea_lane_rows &rows, int tid, int pass) {
  return rows.there >> lane_of_pass(tid, pass) & 1;
}

/* A tile is there. Gathered ones arrive as soon as their copies are complete, and what those wrote the products do not
 * see before a fence. */
EA_DEVICE void wait_full(uint32_t barrier, uint32_t parity, bool gathered) {
  mbarrier_wait(barrier, parity);
  if (gathered) fence_proxy_async_shared();
}

/* ---- rows ------------------------------------------------------------------------------------- */

/* One arrival a warp, when all its lanes are through. */
EA_DEVICE void release(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
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
      const int position = item->view.prefix + row_query(launch, item, row + h * 8);
      temperature = ea_temperature(position, call.xai_temperature_len, __log2f((float)position), with.inv_log2_len);
    }
#pragma unroll
    for (int e = 0; e < TILE_N / 4; e++) {
      float *x = &s[e / 2 * 4 + h * 2 + e % 2];
      *x = transformed_score(*x, with, temperature);
    }
  }
}

/* ---- softmax ---------------------------------------------------------------------------------- */

/* Of a thread's two rows. */
typedef struct ea_softmax {
  float reference[2]; /* of the exponentials: a score that the row has seen, near its maximum; -Inf: none yet */
  float row_sum[2];   /* of this thread's columns */
} ea_softmax;

/* P = 2^(score * scale - shift), in 16 bits, and its sums over this thread's columns of each row. V_SCALE: times
 * v_scale for the first `cached` keys from this thread's first. */
template <bool V_SCALE>
EA_DEVICE void exponentials(uint32_t p[TILE_N / 4], const float s[TILE_N / 2], const float shift[2], float sum[2],
                            const ea_hopper_launch &launch, int cached) {
  const float scale = launch.scores.scale_log2;
  float sums[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}}; /* two chains a row: an addition waits for the one before */
#pragma unroll
  for (int w = 0; w < TILE_N / 4; w++) {
    const int h = w % 2;
    float p0 = ex2_approx(fmaf(s[w * 2], scale, -shift[h]));
    float p1 = ex2_approx(fmaf(s[w * 2 + 1], scale, -shift[h]));
    sums[h][0] += p0;
    sums[h][1] += p1;
    if (V_SCALE) {
      if (w / 2 * 8 < cached) p0 *= launch.scores.v_scale;
      if (w / 2 * 8 + 1 < cached) p1 *= launch.scores.v_scale;
    }
    p[w] = cvt_x2(p0, p1);
  }
  sum[0] = sums[0][0] + sums[0][1];
  sum[1] = sums[1][0] + sums[1][1];
}

/* The greatest score of a row (h) in a tile. */
EA_DEVICE float tile_maximum(const float s[TILE_N / 2], int h) {
  float m[2] = {s[h * 2], s[h * 2 + 1]}; /* two chains */
#pragma unroll
  for (int e = 4; e < TILE_N / 2; e += 4) {
    m[0] = fmaxf(m[0], s[e + h * 2]);
    m[1] = fmaxf(m[1], s[e + h * 2 + 1]);
  }
  return quad_max(fmaxf(m[0], m[1]));
}

/* References for which the exponentials of a tile are in range: a row moves its own to its maximum so far if it
 * `must` (a function of the row alone, or the result would depend on its neighbours). shift: for the exponentials of
 * the scores as they then are; factor: what follows for the output so far. */
EA_DEVICE void move_references(float (&s)[TILE_N / 2], ea_softmax *state, const bool must[2], float shift[2],
                               float factor[2], const ea_hopper_launch &launch) {
  const float scale = launch.scores.scale_log2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float row_max = fmaxf(tile_maximum(s, h), state->reference[h]);
    const float reference = must[h] ? row_max : state->reference[h];
    shift[h] = shift_scores<TILE_N / 2>(s + h * 2, reference, scale);
    factor[h] = reference == state->reference[h] ? 1.0f : reference_factor(state->reference[h], reference, scale);
    state->reference[h] = reference;
    state->row_sum[h] *= factor[h];
  }
}

/* Scores become probabilities. There is no look for the tile's maximum first: the exponentials are taken with the
 * reference there is, and only where they grow out of range, or nothing was seen before, once more with a better
 * one. Any reference near the maximum gives the same quotient. Returns whether O so far has to be multiplied by
 * `factor`. */
EA_DEVICE bool probabilities(uint32_t p[TILE_N / 4], float (&s)[TILE_N / 2], ea_softmax *state, float factor[2],
                             const ea_hopper_launch &launch) {
  const float limit = launch.scores.sum_limit;
  const float scale = launch.scores.scale_log2;
  float shift[2] = {shift_of(state->reference[0], scale), shift_of(state->reference[1], scale)}, sum[2];
  exponentials<false>(p, s, shift, sum, launch, 0);
  /* NaN too: -Inf of a key that is not seen, minus -Inf. */
  bool must[2] = {!(sum[0] <= limit) || !is_fused(shift[0]), !(sum[1] <= limit) || !is_fused(shift[1])};
  const bool moved = __any_sync(0xffffffffu, must[0] || must[1]);
  if (__builtin_expect(moved, 0)) {
    must[0] = quad_any(must[0]);
    must[1] = quad_any(must[1]);
    move_references(s, state, must, shift, factor, launch);
    exponentials<false>(p, s, shift, sum, launch, 0);
  }
  state->row_sum[0] += sum[0];
  state->row_sum[1] += sum[1];
  return moved;
}

template <int COUNT> EA_DEVICE void rescale(float (&o)[COUNT], const float factor[2]) {
#pragma unroll
  for (int e = 0; e < COUNT; e++) o[e] *= factor[e / 2 % 2];
}

/* ---- NaN and Inf in V, in careful items ------------------------------------------------------- */

/* Takes them out of what these threads have in shared memory. */
EA_DEVICE void clear_special(uint32_t at, int bytes, int thread, int threads) {
#pragma unroll 1
  for (int index = thread; index < bytes / 16; index += threads) {
    const uint32_t address = at + (uint32_t)index * 16;
    const uint4 x = ld_shared_v4(address);
    if (any_special(x)) st_shared_v4(address, without_special(x));
  }
}

/* Two elements of a row, where there are so many, as 16-bit floats. */
EA_DEVICE uint32_t load_pair(const char *row, int column, int dim, ea_element element) {
  uint32_t pair = 0;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    if (column + c >= dim) continue;
    const uint32_t bits = element == EA_ELEMENT_16BIT
                              ? ((const uint16_t *)row)[column + c]
                              : widen_8bit(((const uint8_t *)row)[column + c], element == EA_ELEMENT_E4M3);
    pair |= bits << (16 * c);
  }
  return pair;
}

/* Those of the masked tiles, read once more, to the rows that see them. row: the first of the thread's two; o: WIDTH
 * columns from first_column on. */
template <int WIDTH>
EA_DEVICE void add_special(float o[WIDTH / 2], const ea_call &call, const ea_hopper_launch &launch, uint32_t place,
                           int row, int lane, int first_column) {
#pragma unroll 1
  for (int key = item_at(place)->keys.first; key < item_at(place)->keys.end; key++) {
    const ea_item *item = item_at(place);
    if (!is_masked(item, key / TILE_N)) continue;
    const char *source = key_row(call, launch, place, key, true);
    const ea_element element = key < item->view.prefix ? cached_source(call, launch.scores).element : EA_ELEMENT_16BIT;
    bool seen[2];
#pragma unroll
    for (int h = 0; h < 2; h++) seen[h] = ea_visible(&item->view, row_query(launch, item, row + h * 8), key);
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++) {
      const uint32_t pair = load_pair(source, first_column + lane % 4 * 2 + j * 8, call.head_dim_v, element);
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const uint32_t bits = c == 0 ? pair & 0xffffu : pair >> 16;
#pragma unroll
        for (int h = 0; h < 2; h++) { /* no branch: with so many registers alive, ptxas takes long over them */
          float *x = &o[j * 4 + h * 2 + c];
          *x = is_special(bits) && seen[h] ? *x + element_value(bits) : *x;
        }
      }
    }
  }
}

template <int COUNT> EA_DEVICE bool is_finite(const float (&o)[COUNT]) {
  float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int e = 0; e < COUNT; e++) zeros[e % 4] = fmaf(o[e], 0.0f, zeros[e % 4]);
  return (zeros[0] + zeros[1]) + (zeros[2] + zeros[3]) == 0.0f;
}

/* ---- the way out ------------------------------------------------------------------------------ */

/* The first `dim` columns of a row (h) times `factor`, in 16 bits. o: WIDTH columns from first_column on. Chunks of
 * `out` are aligned to 16 bytes. */
template <int WIDTH>
EA_DEVICE void store_row(const float o[WIDTH / 2], int h, float factor, uint16_t *out, int lane, int first_column,
                         int dim) {
  static_assert(WIDTH % 16 == 0, "columns by 16");
  /* A lane holds 4 bytes of every 8 columns; two neighbours trade so that each holds 8 bytes of every 16, and four
   * lanes write 32 bytes of a row at a time. */
  const bool odd = lane & 1;
  const int first = first_column + (odd ? 8 : 0) + lane % 4 / 2 * 4;
#pragma unroll
  for (int j = 0; j < WIDTH / 8; j += 2) {
    const uint32_t low = cvt_x2(o[j * 4 + h * 2] * factor, o[j * 4 + h * 2 + 1] * factor);
    const uint32_t high = cvt_x2(o[j * 4 + 4 + h * 2] * factor, o[j * 4 + 4 + h * 2 + 1] * factor);
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
    if (first + j * 8 < dim) *(uint2 *)(out + first + j * 8) = odd ? make_uint2(got, high) : make_uint2(low, got);
  }
}

/* The same for any alignment. */
template <int WIDTH>
EA_DEVICE void store_elements(const float o[WIDTH / 2], int h, float factor, uint16_t *out, int lane, int first_column,
                              int dim) {
#pragma unroll
  for (int j = 0; j < WIDTH / 8; j++) {
    const uint32_t pair = cvt_x2(o[j * 4 + h * 2] * factor, o[j * 4 + h * 2 + 1] * factor);
    const int column = first_column + j * 8 + lane % 4 * 2;
    if (column < dim) out[column] = (uint16_t)pair;
    if (column + 1 < dim) out[column + 1] = (uint16_t)(pair >> 16);
  }
}

/* Of the rows of a thread: a row of the block and the eighth after it. sum: of the row's exponentials with `reference`;
 * o: WIDTH columns from first_column on. Denominator, sink, lse, and the rows' way out. */
template <int WIDTH>
EA_DEVICE void finish(const float o[WIDTH / 2], const float reference[2], const float sum[2], const ea_call &call,
                      const ea_hopper_launch &launch, const ea_item *item, int row, int lane, int first_column) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int r = row + h * 8;
    const bool exists = r < item->rows;
    const int t = row_token(launch, r), head = item->first_head + r - t * call.group;
    const int64_t token = item->token0 + item->i0 + t;
    const ea_row_end end = end_row(call, launch.scores, reference[h], sum[h], head, exists);
    if (call.lse && exists && lane % 4 == 0 && first_column == 0) {
      call.lse[token * call.lse_token_stride + head * call.lse_head_stride] = end.lse;
    }
    const float factor = end.factor;
    uint16_t *out = (uint16_t *)call.out + token * call.out_token_stride + head * call.out_head_stride;
    if (launch.scores.out_aligned) {
      store_row<WIDTH>(o, h, factor, out, lane, first_column, exists ? call.head_dim_v : 0);
    } else {
      store_elements<WIDTH>(o, h, factor, out, lane, first_column, exists ? call.head_dim_v : 0);
    }
  }
}

/* The whole way out: what an item's end has to do with NaN and Inf, its rows, and that it is through. */
template <int WIDTH>
EA_DEVICE void end_item(float (&o)[WIDTH / 2], const float reference[2], const float sum[2], const ea_call &call,
                        const ea_hopper_launch &launch, ea_places at, uint32_t place, int row, int lane,
                        int first_column) {
  if (item_at(place)->careful) {
    add_special<WIDTH>(o, call, launch, place, row, lane, first_column);
  } else if (__any_sync(0xffffffffu, !is_finite(o)) && lane == 0) {
    atomicOr(&((ea_item *)__cvta_shared_to_generic(place))->found, 1u);
  }
  finish<WIDTH>(o, reference, sum, call, launch, item_at(place), row, lane, first_column);
  release(item_done(at, place));
}

#endif
