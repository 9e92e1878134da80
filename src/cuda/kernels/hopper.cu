/* The Hopper kernel: extend attention on sm_90a, by bulk copies and warpgroup products.
 *
 * Compiled once for each shape of plan/hopper.h and each of bf16 and f16:
 * -DEA_SHAPE=d128 -DEA_TYPE_BF16 gives the entry hopper_d128_bf16.
 *
 * One block a multiprocessor lives as long as the launch. Its producer warpgroup decides what is
 * worked on (an item: a block of query rows of one sequence and K/V head) and fills Q and the rings
 * of K and V tiles; its consumer warpgroups own 64 query rows each. K and V have barriers apart.
 * Consumer, tile t of an item:
 *
 *   [tile t-1 masked: look for NaN and Inf in V(t-1), see below]
 *   wait for its turn                                      (the warpgroups issue in a fixed round)
 *   wait for K(t);   issue S' = Q K(t)
 *   wait for V(t-1); issue O += P V(t-1)
 *   pass the turn on
 *   S' done: release K(t); mask where the walk says so; running maximum, exp2, sum
 *   O done:  release V(t-1); rescale O where a maximum grew; P = S' in 16 bits
 *
 * so a warpgroup's softmax runs beside its own P V and beside the others' products. The rings'
 * depth is a run-time number and changes no arithmetic.
 *
 * Tiles of new tokens come by TMA. A tile that holds a prefix key is gathered by the producer's 128
 * threads with cp.async, slot by slot, and rows that are not there are zeros; so are tiles of rows that TMA
 * cannot read (not aligned to 16 bytes). 8-bit caches are widened on this way. Rows behind a sequence's end that TMA
 * brings along belong to somebody else: no query sees them, and what a NaN of theirs could do is taken care of like any
 * other hidden NaN's. */
#include <stdint.h>

#include "cuda/kernels/hopper.h"
#include "cuda/kernels/parts.h"
#include "cuda/kernels/ptx_hopper.h"
#include "problem/call.h"

#define EA_SHAPE_CONSTANT(what) EA_PASTE(EA_HOPPER_, EA_SHAPE, what)

#define DIM EA_SHAPE_CONSTANT(_DIM)
#define DIM_V EA_SHAPE_CONSTANT(_DIM_V)
#define TILE_N EA_SHAPE_CONSTANT(_N)
#define CONSUMERS EA_SHAPE_CONSTANT(_WG)
#define CONSUMER_REGISTERS EA_SHAPE_CONSTANT(_CONSUMER_REGISTERS)
#define PRODUCER_REGISTERS EA_SHAPE_CONSTANT(_PRODUCER_REGISTERS)
#define TILE_M (CONSUMERS * 64)
#define THREADS ((CONSUMERS + 1) * 128)

#ifdef EA_TYPE_BF16
#define KERNEL EA_PASTE(hopper_, EA_SHAPE, _bf16)
#else
#define KERNEL EA_PASTE(hopper_, EA_SHAPE, _f16)
#endif
/* The product for n columns, a constant that the preprocessor does not know. */
#define EA_PRODUCT_N(n, kind, type) wgmma_n##n##_##kind##_##type
#define EA_PRODUCT_(kind, type, n, ...)                                                                                \
  do {                                                                                                                 \
    static_assert((n) == 64 || (n) == 80 || (n) == 96 || (n) == 128 || (n) == 192 || (n) == 256,                       \
                  "products there are");                                                                               \
    if constexpr ((n) == 64) EA_PRODUCT_N(64, kind, type)(__VA_ARGS__);                                                \
    if constexpr ((n) == 80) EA_PRODUCT_N(80, kind, type)(__VA_ARGS__);                                                \
    if constexpr ((n) == 96) EA_PRODUCT_N(96, kind, type)(__VA_ARGS__);                                                \
    if constexpr ((n) == 128) EA_PRODUCT_N(128, kind, type)(__VA_ARGS__);                                              \
    if constexpr ((n) == 192) EA_PRODUCT_N(192, kind, type)(__VA_ARGS__);                                              \
    if constexpr ((n) == 256) EA_PRODUCT_N(256, kind, type)(__VA_ARGS__);                                              \
  } while (0)
#define EA_PRODUCT(kind, type, n, ...) EA_PRODUCT_(kind, type, n, __VA_ARGS__)

#define SLICES ((DIM + EA_HOPPER_SLICE - 1) / EA_HOPPER_SLICE)
#define SLICES_V ((DIM_V + EA_HOPPER_SLICE - 1) / EA_HOPPER_SLICE)
#define K_BYTES (TILE_N * SLICES * EA_HOPPER_SLICE_BYTES)
#define V_BYTES (TILE_N * SLICES_V * EA_HOPPER_SLICE_BYTES)
#define SLICE_BYTES (TILE_N * EA_HOPPER_SLICE_BYTES) /* one slice of a tile */

/* Named barriers; 0 is __syncthreads'. */
#define BARRIER_TURN 1 /* and the CONSUMERS - 1 after it */
#define BARRIER_PRODUCER 4
#define BARRIER_CONSUMERS 5

static_assert(DIM % 16 == 0 && DIM_V % 16 == 0 && TILE_N % 16 == 0, "the products' steps");
static_assert(TILE_N <= 128, "the bits of a custom mask are 32");
static_assert(SLICE_BYTES % 1024 == 0, "slices keep the swizzle's alignment");

EA_DEVICE ea_hopper_shape shape_constants(void) {
  const ea_hopper_shape shape = {0, DIM, DIM_V, CONSUMERS, TILE_N};
  return shape;
}

/* What a block works on. */
typedef struct ea_item {
  ea_view view;
  int64_t token0;      /* the sequence's first row in q, k, v, out */
  int64_t prefix_base; /* and in kv_indices */
  ea_key_range keys;   /* visible to some row of the block */
  ea_key_range plain;  /* tiles between these need no mask */
  int32_t first_tile, end_tile;
  int32_t i0;   /* first query */
  int32_t rows; /* (query, head) rows that exist; 0: no more work */
  int32_t kv_head;
  int32_t next_round; /* where the search for the next goes on */
  uint32_t q_parity;  /* of Q's barriers */
} ea_item;
static_assert(sizeof(ea_item) <= EA_HOPPER_ITEM_BYTES, "its place in the layout");

EA_DEVICE const ea_item *item_at(uint32_t address) {
  return (const ea_item *)shared_anew(address);
}

/* Where things are in shared memory: all but V at constant distances from its start. */
typedef struct ea_places {
  uint32_t q, v;
} ea_places;

EA_DEVICE uint32_t barriers_at(ea_places at) {
  return at.q + (uint32_t)ea_hopper_smem_layout(shape_constants(), 0).barriers;
}
EA_DEVICE uint32_t items_at(ea_places at) {
  return at.q + (uint32_t)ea_hopper_smem_layout(shape_constants(), 0).items;
}
EA_DEVICE uint32_t k_tile_at(ea_places at, uint32_t slot) {
  return at.q + (uint32_t)ea_hopper_smem_layout(shape_constants(), 0).k + slot * K_BYTES;
}
EA_DEVICE uint32_t v_tile_at(ea_places at, uint32_t slot) {
  return at.v + slot * V_BYTES;
}
EA_DEVICE uint32_t q_full(ea_places at) {
  return barriers_at(at);
}
EA_DEVICE uint32_t q_empty(ea_places at) {
  return barriers_at(at) + 8;
}
EA_DEVICE uint32_t k_full(ea_places at, uint32_t slot) {
  return barriers_at(at) + 16 + slot * 16;
}
EA_DEVICE uint32_t k_empty(ea_places at, uint32_t slot) {
  return barriers_at(at) + 24 + slot * 16;
}
EA_DEVICE uint32_t v_full(ea_places at, uint32_t slot) {
  return barriers_at(at) + 16 + (EA_HOPPER_MAX_STAGES + slot) * 16;
}
EA_DEVICE uint32_t v_empty(ea_places at, uint32_t slot) {
  return barriers_at(at) + 24 + (EA_HOPPER_MAX_STAGES + slot) * 16;
}
/* Items take turns in their places. */
#define LAST_PLACE ((EA_HOPPER_ITEMS - 1) * EA_HOPPER_ITEM_BYTES)
EA_DEVICE uint32_t place_after(ea_places at, uint32_t place) {
  return place == items_at(at) + LAST_PLACE ? items_at(at) : place + EA_HOPPER_ITEM_BYTES;
}
EA_DEVICE uint32_t place_before(ea_places at, uint32_t place) {
  return place == items_at(at) ? items_at(at) + LAST_PLACE : place - EA_HOPPER_ITEM_BYTES;
}

/* A place in the rings of K and V, which have a tile's number in common: slot * 2 + parity of the slot's
 * current use, one register for both. */
typedef struct ea_ring {
  uint32_t position;
} ea_ring;

EA_DEVICE uint32_t slot_of(ea_ring ring) {
  return ring.position / 2;
}
EA_DEVICE uint32_t parity_of(ea_ring ring) {
  return ring.position & 1;
}
EA_DEVICE void ring_advance(ea_ring *ring, uint32_t stages) {
  ring->position += 2;
  if (slot_of(*ring) == stages) ring->position = parity_of(*ring) ^ 1;
}

/* ---- the producer ---------------------------------------------------------------------------- */

/* Piece of work w: heads of a chunk fastest, then row blocks, those with the longest walks first, then
 * chunks. Every number fits 32 bits: the launch sees to it. False: a spare row block. */
EA_DEVICE bool make_item(const ea_call &call, const ea_hopper_launch &launch, int32_t row_blocks, int32_t work,
                         ea_item *item) {
  const int32_t chunk_work = row_blocks * launch.head_chunk;
  const int32_t first_head = work / chunk_work * launch.head_chunk, in_chunk = work % chunk_work;
  const int32_t heads = ea_min_i32(launch.head_chunk, call.num_kv_heads - first_head);
  item->kv_head = first_head + in_chunk % heads;
  const int32_t block = in_chunk / heads;
  ea_row_block found;
  if (launch.order) {
    found = launch.order->blocks[block];
  } else if (!ea_hopper_find_row_block(call.qo_indptr, (int32_t)call.num_seqs, row_blocks - 1 - block,
                                       launch.block_tokens, &found)) {
    return false;
  }
  item->view = ea_view_of(&call, found.seq);
  item->prefix_base = call.kv_indptr[found.seq];
  item->token0 = call.qo_indptr[found.seq];
  const int32_t i0 = found.i0;
  const int32_t tokens = ea_min_i32(launch.block_tokens, item->view.extend - i0);
  item->i0 = i0;
  item->rows = tokens * call.group;
  item->keys = ea_visible_keys(&item->view, i0, i0 + tokens);
  const ea_key_range plain = ea_unmasked_keys(&item->view, i0, i0 + tokens);
  item->plain.first = ea_max_i32(plain.first, item->keys.first);
  item->plain.end = ea_min_i32(plain.end, item->keys.end);
  item->first_tile = item->keys.first / TILE_N;
  item->end_tile = item->keys.end > item->keys.first ? (item->keys.end + TILE_N - 1) / TILE_N : item->first_tile;
  return true;
}

/* A gathered tile's copies are announced to the consumers one tile late: the thread waits for its
 * own copies, makes them visible to the products, arrives. 0: nothing to announce. */
EA_DEVICE void announce(uint32_t *pending) {
  if (*pending == 0) return;
  cp_async_wait_group(0);
  fence_proxy_async_shared();
  mbarrier_arrive(*pending);
  *pending = 0;
}

/* Waits for a slot. What is pending must not wait with it. */
EA_DEVICE void wait_empty(uint32_t barrier, uint32_t parity, uint32_t *pending) {
  if (mbarrier_test(barrier, parity)) return;
  announce(pending);
  mbarrier_wait(barrier, parity);
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

/* One tile of K or V by cp.async, eight threads a row, 128 bytes of it at a time. Rows that are not there
 * are zeros. */
template <int SLICE_COUNT>
EA_DEVICE void gather(const ea_call &call, const ea_hopper_launch &launch, uint32_t place, int tid, int tile,
                      uint32_t dst, bool of_v) {
  const int row0 = tid / 8, chunk = tid % 8;
  const uint32_t first = dst + (uint32_t)(row0 * 128 + (chunk ^ (row0 & 7)) * 16);
#pragma unroll 1
  for (int row = 0; row < TILE_N; row += 16) {
    const char *source = key_row(call, launch, place, tile * TILE_N + row0 + row, of_v);
#pragma unroll
    for (int slice = 0; slice < SLICE_COUNT; slice++) {
      const int column = slice * EA_HOPPER_SLICE + chunk * CHUNK;
      const bool wanted = source != 0 && column < (of_v ? call.head_dim_v : call.head_dim);
      cp_async_16(first + (uint32_t)(row * 128 + slice * SLICE_BYTES),
                  wanted ? source + column * 2 : (const char *)call.q.data, wanted ? 16 : 0);
    }
  }
}

/* The same by plain loads and stores, for rows that are not aligned or have 8-bit elements. */
EA_DEVICE void gather_any(const ea_call &call, const ea_hopper_launch &launch, uint32_t place, int tid, int tile,
                          uint32_t dst, bool of_v) {
  const int slices = of_v ? SLICES_V : SLICES;
#pragma unroll 1
  for (int index = tid; index < TILE_N * slices * 8; index += 128) {
    const int row = index / (slices * 8), at = index % (slices * 8), key = tile * TILE_N + row;
    const uint32_t to = dst + (uint32_t)(at / 8 * SLICE_BYTES + row * 128 + ((at % 8) ^ (row & 7)) * 16);
    const char *source = key_row(call, launch, place, key, of_v);
    const int dim = of_v ? call.head_dim_v : call.head_dim;
    if (source == 0 || at * CHUNK >= dim) {
      st_shared_v4(to, make_uint4(0, 0, 0, 0));
    } else {
      const bool cached = key < item_at(place)->view.prefix;
      load_row_chunk(to, source, at, dim, cached ? cached_source(call, launch.scores) : fresh_source(launch.scores));
    }
  }
}

/* Whether cp.async can read all rows of a tile. */
EA_DEVICE bool rows_are_aligned(const ea_call &call, const ea_hopper_launch &launch, uint32_t place, int tile) {
  const int cached = item_at(place)->view.prefix - tile * TILE_N; /* so many rows are of the prefix */
  const bool pool_aligned = launch.scores.cache_aligned && call.cache_dtype == call.dtype;
  return (cached <= 0 || pool_aligned) && (cached >= TILE_N || launch.scores.kv_aligned);
}

/* Q by plain loads, where its rows are not aligned. */
EA_DEVICE void load_q(const ea_call &call, uint32_t place, int tid, uint32_t q) {
  const ea_source how = {EA_ELEMENT_16BIT, false};
#pragma unroll 1
  for (int index = tid; index < item_at(place)->rows * SLICES * 8; index += 128) {
    const ea_item *item = item_at(place);
    const int row = index / (SLICES * 8), at = index % (SLICES * 8);
    const int64_t token = item->token0 + item->i0 + row / call.group;
    const int64_t head = (int64_t)item->kv_head * call.group + row % call.group;
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

/* One tile by TMA, asked for by one thread. The barrier counts 128 arrivals, as a gathered tile brings
 * them. */
EA_DEVICE void load_tile(const ea_tensor_map *map, uint32_t barrier, uint32_t dst, int slices, int kv_head, int token) {
  mbarrier_arrive_expect_tx(barrier, (uint32_t)(slices * SLICE_BYTES));
  mbarrier_arrive_many(barrier, 127);
#pragma unroll 1
  for (int slice = 0; slice < slices; slice++) {
    tma_load_3d(dst + (uint32_t)(slice * SLICE_BYTES), map, barrier, slice * EA_HOPPER_SLICE, kv_head, token);
  }
}

/* Ends a gathered tile: the one before it is announced, this one will be. */
EA_DEVICE void gathered(uint32_t barrier, uint32_t *pending) {
  cp_async_commit_group();
  if (*pending) {
    cp_async_wait_group(1);
    fence_proxy_async_shared();
    mbarrier_arrive(*pending);
  }
  *pending = barrier;
}

/* Finds the next piece of work and writes it where all will read it; rows = 0: there is none. */
EA_DEVICE void next_item(const ea_call &call, const ea_hopper_launch &launch, uint32_t before, uint32_t place) {
  ea_item *item = (ea_item *)__cvta_shared_to_generic(place);
  const int32_t row_blocks = launch.order ? launch.order->count : launch.row_blocks;
  const int32_t all_work = row_blocks * call.num_kv_heads;
  int32_t round = item_at(before)->next_round;
  item->q_parity = item_at(before)->q_parity ^ 1;
  item->rows = 0;
#pragma unroll 1
  for (; round * (int64_t)gridDim.x < all_work; round++) { /* a later round has nothing for anyone */
    const int64_t work = ea_hopper_work(round, (int32_t)blockIdx.x, (int32_t)gridDim.x);
    if (work < all_work && make_item(call, launch, row_blocks, (int32_t)work, item)) break;
  }
  item->next_round = round + 1;
}

EA_DEVICE void produce(const ea_call &call, const ea_hopper_launch &launch, ea_places at) {
  const int tid_once = read_tid();
  const auto tid = [&]() { return read_anew(tid_once); };
  ea_ring ring = {0};
  uint32_t pending = 0, place = items_at(at);
#pragma unroll 1
  while (true) {
    if (tid() == 0) next_item(call, launch, place_before(at, place), place);
    bar_sync(BARRIER_PRODUCER, 128);
    const bool last = item_at(place)->rows == 0;
    if (last) {
      if (tid() == 0) {
        mbarrier_wait(q_empty(at), item_at(place)->q_parity ^ 1);
        mbarrier_arrive_many(q_full(at), 128);
      }
      break;
    }
    if (!launch.scores.q_aligned) {
      mbarrier_wait(q_empty(at), item_at(place)->q_parity ^ 1);
      load_q(call, place, tid(), at.q);
      fence_proxy_async_shared();
      mbarrier_arrive(q_full(at));
    } else if (tid() == 0) {
      const ea_item *item = item_at(place);
      const int32_t head = item->kv_head * call.group, token = (int32_t)item->token0 + item->i0;
      mbarrier_wait(q_empty(at), item->q_parity ^ 1);
      mbarrier_arrive_expect_tx(q_full(at),
                                (uint32_t)(launch.block_tokens * call.group * SLICES * EA_HOPPER_SLICE_BYTES));
      mbarrier_arrive_many(q_full(at), 127); /* it counts 128 arrivals, as without TMA */
#pragma unroll 1
      for (int slice = 0; slice < SLICES; slice++) {
        tma_load_3d(at.q + (uint32_t)(slice * TILE_M * EA_HOPPER_SLICE_BYTES), &launch.q, q_full(at),
                    slice * EA_HOPPER_SLICE, head, token);
      }
    }
#pragma unroll 1
    for (int tile = item_at(place)->first_tile; tile < item_at(place)->end_tile; tile++) {
      if (tile * TILE_N < item_at(place)->view.prefix || !launch.scores.kv_aligned) {
        const bool aligned = rows_are_aligned(call, launch, place, tile);
        wait_empty(k_empty(at, slot_of(ring)), parity_of(ring) ^ 1, &pending);
        if (aligned) {
          gather<SLICES>(call, launch, place, tid(), tile, k_tile_at(at, slot_of(ring)), false);
        } else {
          gather_any(call, launch, place, tid(), tile, k_tile_at(at, slot_of(ring)), false);
        }
        gathered(k_full(at, slot_of(ring)), &pending);
        wait_empty(v_empty(at, slot_of(ring)), parity_of(ring) ^ 1, &pending);
        if (aligned) {
          gather<SLICES_V>(call, launch, place, tid(), tile, v_tile_at(at, slot_of(ring)), true);
        } else {
          gather_any(call, launch, place, tid(), tile, v_tile_at(at, slot_of(ring)), true);
        }
        gathered(v_full(at, slot_of(ring)), &pending);
      } else {
        announce(&pending);
        if (tid() == 0) {
          const ea_item *item = item_at(place);
          const int32_t token = (int32_t)item->token0 + (tile * TILE_N - item->view.prefix), head = item->kv_head;
          mbarrier_wait(k_empty(at, slot_of(ring)), parity_of(ring) ^ 1);
          load_tile(&launch.k, k_full(at, slot_of(ring)), k_tile_at(at, slot_of(ring)), SLICES, head, token);
          mbarrier_wait(v_empty(at, slot_of(ring)), parity_of(ring) ^ 1);
          load_tile(&launch.v, v_full(at, slot_of(ring)), v_tile_at(at, slot_of(ring)), SLICES_V, head, token);
        }
      }
      ring_advance(&ring, (uint32_t)launch.scores.stages);
    }
    announce(&pending);
    place = place_after(at, place);
  }
}

/* ---- a consumer ------------------------------------------------------------------------------ */

/* One arrival a warp, when all its lanes are through. */
EA_DEVICE void release(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

/* The first of a thread's two rows; the other is 8 further. */
EA_DEVICE int first_row(int tid) {
  return (tid - 128) / 32 * 16 + tid % 32 / 4;
}

/* s = Q K^T of this warpgroup's rows. */
EA_DEVICE void issue_scores(float s[TILE_N / 2], uint32_t q, uint32_t k) {
  const uint64_t q_descriptor = wgmma_descriptor((uint32_t)read_anew((int)q), 0); /* cheaper than kept */
  const uint64_t k_descriptor = wgmma_descriptor(k, 0);
#pragma unroll
  for (int step = 0; step < DIM / 16; step++) {
    const uint32_t q_at = (uint32_t)(step / 4 * TILE_M * EA_HOPPER_SLICE_BYTES + step % 4 * 32);
    const uint32_t k_at = (uint32_t)(step / 4 * SLICE_BYTES + step % 4 * 32);
    EA_PRODUCT(ss, EA_TYPE, TILE_N, s, wgmma_advance(q_descriptor, q_at), wgmma_advance(k_descriptor, k_at), step > 0);
  }
  wgmma_commit_group();
}

/* o += P V. */
EA_DEVICE void issue_output(float o[DIM_V / 2], const uint32_t p[TILE_N / 4], uint32_t v) {
  const uint64_t v_descriptor = wgmma_descriptor(v, SLICE_BYTES);
#pragma unroll
  for (int step = 0; step < TILE_N / 16; step++) {
    EA_PRODUCT(rs, EA_TYPE, DIM_V, o, p + step * 4, wgmma_advance(v_descriptor, (uint32_t)step * 2048), 1);
  }
  wgmma_commit_group();
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

/* -Inf where a key is hidden. key0: this thread's first key; its others are the next one, and every 8 on. */
EA_DEVICE void apply_mask(float s[TILE_N / 2], const ea_call &call, const ea_item *item, int key0, int row) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int i = row_query(item, row + h * 8, call.group);
    const ea_key_range seen = ea_visible_keys(&item->view, i, i + 1);
    const int from = seen.first - key0, to = seen.end - key0;
    uint32_t hidden = 0;
    if (item->view.mask) { /* bit of a key: its number among the thread's. The mask is all that is left to ask. */
      const uint8_t *mask = item->view.mask + i * item->view.mask_stride;
      const int told = item->view.mask_skips_prefix ? ea_max_i32(seen.first, item->view.prefix) : seen.first;
#pragma unroll 1
      for (int e = 0; e < TILE_N / 4; e++) {
        const int key = key0 + e / 2 * 8 + e % 2;
        if (key >= told && key < seen.end && mask[key] == 0) hidden |= 1u << e;
      }
    }
#pragma unroll
    for (int e = 0; e < TILE_N / 4; e++) {
      const int key = e / 2 * 8 + e % 2; /* from key0 */
      const bool visible = key >= from && key < to && (hidden >> e & 1) == 0;
      float *x = &s[e / 2 * 4 + h * 2 + e % 2];
      *x = visible ? *x : MINUS_INF;
    }
  }
}

/* Running maximum and sum of a thread's two rows. */
typedef struct ea_softmax {
  float row_max[2], row_sum[2]; /* row_sum: of this thread's columns */
} ea_softmax;

/* Scores become probabilities, in f32; factor: what the output so far is to be multiplied by. The
 * reference of the exponentials follows a row's maximum only when that has grown by 2^slack: any
 * reference near it gives the same quotient. cached: keys from this thread's first that are of the prefix. */
template <bool WITH_V_SCALE>
EA_DEVICE void exponentials(float s[TILE_N / 2], ea_softmax *state, float factor[2], const ea_hopper_launch &launch,
                            int cached) {
  const float scale = launch.scores.scale_log2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float m[2] = {s[h * 2], s[h * 2 + 1]};
#pragma unroll
    for (int e = 4; e < TILE_N / 2; e += 4) {
      m[0] = fmaxf(m[0], s[e + h * 2]);
      m[1] = fmaxf(m[1], s[e + h * 2 + 1]);
    }
    const float tile_max = quad_max(fmaxf(m[0], m[1]));
    const bool grown = (tile_max - state->row_max[h]) * scale > launch.scores.rescale_slack_log2;
    const float reference = grown ? tile_max : state->row_max[h];
    const float shift = reference == MINUS_INF ? 0.0f : reference * scale; /* nothing seen yet: exp2(-inf - 0) = 0 */
    factor[h] = grown ? ex2_approx(state->row_max[h] * scale - shift) : 1.0f;
    state->row_max[h] = reference;
    float sum[2] = {0.0f, 0.0f}; /* two chains: an addition waits for the one before */
#pragma unroll
    for (int e = h * 2; e < TILE_N / 2; e += 4) {
      float p0 = ex2_approx(fmaf(s[e], scale, -shift));
      float p1 = ex2_approx(fmaf(s[e + 1], scale, -shift));
      sum[0] += p0;
      sum[1] += p1;
      if (WITH_V_SCALE) {
        if (e / 4 * 8 < cached) p0 *= launch.scores.v_scale;
        if (e / 4 * 8 + 1 < cached) p1 *= launch.scores.v_scale;
      }
      s[e] = p0;
      s[e + 1] = p1;
    }
    state->row_sum[h] = fmaf(state->row_sum[h], factor[h], sum[0] + sum[1]);
  }
}

EA_DEVICE void round_probabilities(uint32_t p[TILE_N / 4], const float s[TILE_N / 2]) {
#pragma unroll
  for (int w = 0; w < TILE_N / 4; w++) p[w] = cvt_x2(s[w * 2], s[w * 2 + 1]);
}

/* A NaN or Inf in V must reach only the rows that see it (promise 2), and 0 * NaN is NaN. Where every
 * row of the block sees every key it reaches whom it should by itself; elsewhere, when there is one,
 * it is given by hand to the rows that see it and taken out of the tile. All consumers come here. */
EA_DEVICE void settle_special_values(float o[DIM_V / 2], const ea_call &call, const ea_item *item, int tile, uint32_t v,
                                     int tid) {
  const int thread = tid - 128, row = first_row(tid), lane = tid % 32;
  bool found = false;
#pragma unroll 1
  for (int index = thread; index < V_BYTES / 16; index += CONSUMERS * 128) {
    found |= any_special(ld_shared_v4(v + (uint32_t)index * 16));
  }
  if (!bar_red_or(BARRIER_CONSUMERS, CONSUMERS * 128, found)) return;
#pragma unroll 1
  for (int n = 0; n < TILE_N; n++) {
    const int key = tile * TILE_N + n;
    if (key < item->keys.first || key >= item->keys.end) continue;
    bool seen[2];
#pragma unroll
    for (int h = 0; h < 2; h++) seen[h] = ea_visible(&item->view, row_query(item, row + h * 8, call.group), key);
#pragma unroll
    for (int j = 0; j < DIM_V / 8; j++) { /* eight columns: a chunk of a slice */
      const uint32_t at = v + (uint32_t)(j / 8 * SLICE_BYTES + n * 128 + ((j % 8) ^ (n & 7)) * 16 + lane % 4 * 4);
      const uint32_t pair = ld_shared_b32(at);
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const uint32_t bits = c == 0 ? pair & 0xffffu : pair >> 16;
        if (!is_special(bits)) continue;
        if (seen[0]) o[j * 4 + c] += element_value(bits);
        if (seen[1]) o[j * 4 + 2 + c] += element_value(bits);
      }
    }
  }
  bar_sync(BARRIER_CONSUMERS, CONSUMERS * 128);
  for (int index = thread; index < V_BYTES / 16; index += CONSUMERS * 128) {
    const uint32_t address = v + (uint32_t)index * 16;
    st_shared_v4(address, without_special(ld_shared_v4(address)));
  }
  fence_proxy_async_shared();
  bar_sync(BARRIER_CONSUMERS, CONSUMERS * 128);
}

/* Denominator, sink, lse, and the rows' way out. */
EA_DEVICE void finish(float o[DIM_V / 2], const ea_softmax *state, const ea_call &call, const ea_hopper_launch &launch,
                      const ea_item *item, int tid) {
  const int row = first_row(tid), lane = tid % 32;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int r = row + h * 8;
    const bool exists = r < item->rows;
    const int head = item->kv_head * call.group + r % call.group;
    const int64_t token = item->token0 + item->i0 + r / call.group;
    const float sum = quad_sum(state->row_sum[h]);
    const ea_row_end end = end_row(call, state->row_max[h], launch.scores.scale_log2, sum, head, exists);
    if (call.lse && exists && lane % 4 == 0) {
      call.lse[token * call.lse_token_stride + head * call.lse_head_stride] = end.lse;
    }
    const float factor = end.factor;
    /* A lane holds 4 bytes of every 8 columns; four lanes trade so that each holds 16 bytes of every
     * fourth 8 columns, and a row leaves 64 bytes at a time. */
    uint16_t *out = (uint16_t *)call.out + token * call.out_token_stride + head * call.out_head_stride;
#pragma unroll
    for (int j = 0; j < DIM_V / 8; j += 4) {
      uint32_t mine[4];
#pragma unroll
      for (int w = 0; w < 4; w++) {
        mine[w] = j + w < DIM_V / 8 ? cvt_x2(o[(j + w) * 4 + h * 2] * factor, o[(j + w) * 4 + h * 2 + 1] * factor) : 0;
      }
      /* Transposition of 4 x 4 words among four lanes: exchange with lane ^ 1, then with lane ^ 2. */
      const bool odd = lane & 1, high = lane & 2;
#pragma unroll
      for (int w = 0; w < 4; w += 2) {
        const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? mine[w] : mine[w + 1], 1);
        if (odd) {
          mine[w] = got;
        } else {
          mine[w + 1] = got;
        }
      }
#pragma unroll
      for (int w = 0; w < 2; w++) {
        const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? mine[w] : mine[w + 2], 2);
        if (high) {
          mine[w] = got;
        } else {
          mine[w + 2] = got;
        }
      }
      const int column = (j + lane % 4) * CHUNK, count = exists ? call.head_dim_v - column : 0;
      if (launch.scores.out_aligned && count > 0) { /* then a whole chunk */
        *(uint4 *)(out + column) = make_uint4(mine[0], mine[1], mine[2], mine[3]);
      } else {
#pragma unroll
        for (int e = 0; e < CHUNK; e++) {
          if (e < count) out[column + e] = (uint16_t)(mine[e / 2] >> (16 * (e % 2)));
        }
      }
    }
  }
}

EA_DEVICE void consume(const ea_call &call, const ea_hopper_launch &launch, ea_places at) {
  /* What follows from the thread's number is worked out anew at each use: the products need every register. */
  const int tid_once = read_tid();
  const auto tid = [&]() { return read_anew(tid_once); };
  const auto turn = [&](int from_mine) { return BARRIER_TURN + (tid() / 128 - 1 + from_mine) % CONSUMERS; };
  const uint32_t stages = (uint32_t)launch.scores.stages;
  const uint32_t q = at.q + (uint32_t)((tid() / 128 - 1) * 64 * EA_HOPPER_SLICE_BYTES);
  const bool special = launch.scores.transformed || launch.scores.k_scale != 1.0f;
  float o[DIM_V / 2], s[TILE_N / 2];
  uint32_t p[TILE_N / 4];
  ea_ring ring = {0}; /* of the next K tile */

  if (tid() / 128 == CONSUMERS) bar_arrive(BARRIER_TURN, 256); /* the first warpgroup begins */
#pragma unroll 1
  for (uint32_t place = items_at(at), q_parity = 0;; place = place_after(at, place), q_parity ^= 1) {
    mbarrier_wait(q_full(at), q_parity);
    if (item_at(place)->rows == 0) break;
    ea_softmax state = {{MINUS_INF, MINUS_INF}, {0.0f, 0.0f}};
#pragma unroll
    for (int e = 0; e < DIM_V / 2; e++) o[e] = 0.0f;

    const int first = item_at(place)->first_tile, end = item_at(place)->end_tile;
    /* From scores to probabilities; whether the tile was masked. */
    const auto softmax = [&](int tile, float factor[2]) {
      const ea_item *item = item_at(place);
      const int j0 = tile * TILE_N, key0 = j0 + tid() % 4 * 2, row = first_row(tid());
      if (special) transform(s, call, launch, item, key0, row);
      const bool masked = j0 < item->plain.first || j0 + TILE_N > item->plain.end;
      if (masked) apply_mask(s, call, item, key0, row);
      if (launch.scores.v_scale != 1.0f) {
        exponentials<true>(s, &state, factor, launch, item->view.prefix - key0);
      } else {
        exponentials<false>(s, &state, factor, launch, 0);
      }
      return masked;
    };

    if (first < end) {
      float factor[2];
      mbarrier_wait(k_full(at, slot_of(ring)), parity_of(ring));
      wgmma_fence();
      issue_scores(s, q, k_tile_at(at, slot_of(ring)));
      wgmma_wait_group(0);
      wgmma_settle(s, TILE_N / 2);
      release(k_empty(at, slot_of(ring)));
      bool masked = softmax(first, factor);
      round_probabilities(p, s);
#pragma unroll 1
      for (int tile = first + 1; tile < end; tile++) {
        const ea_ring before = ring;
        ring_advance(&ring, stages);
        const uint32_t v = v_tile_at(at, slot_of(before));
        if (masked) {
          mbarrier_wait(v_full(at, slot_of(before)), parity_of(before));
          settle_special_values(o, call, item_at(place), tile - 1, v, tid());
        }
        bar_sync(turn(0), 256);
        mbarrier_wait(k_full(at, slot_of(ring)), parity_of(ring));
        wgmma_settle(o, DIM_V / 2);
        wgmma_fence();
        issue_scores(s, q, k_tile_at(at, slot_of(ring)));
        mbarrier_wait(v_full(at, slot_of(before)), parity_of(before));
        issue_output(o, p, v);
        bar_arrive(turn(1), 256);
        wgmma_wait_group(1);
        wgmma_settle(s, TILE_N / 2);
        release(k_empty(at, slot_of(ring)));
        masked = softmax(tile, factor);
        wgmma_wait_group(0);
        wgmma_settle(o, DIM_V / 2);
        release(v_empty(at, slot_of(before)));
#pragma unroll
        for (int e = 0; e < DIM_V / 2; e++) o[e] *= factor[e / 2 % 2]; /* times 1 changes nothing */
        round_probabilities(p, s);
      }
      release(q_empty(at));
      const uint32_t v = v_tile_at(at, slot_of(ring));
      mbarrier_wait(v_full(at, slot_of(ring)), parity_of(ring));
      if (masked) settle_special_values(o, call, item_at(place), end - 1, v, tid());
      wgmma_settle(o, DIM_V / 2);
      wgmma_fence();
      issue_output(o, p, v);
      wgmma_wait_group(0);
      wgmma_settle(o, DIM_V / 2);
      release(v_empty(at, slot_of(ring)));
      ring_advance(&ring, stages);
    } else {
      release(q_empty(at));
    }
    finish(o, &state, call, launch, item_at(place), tid());
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const __grid_constant__ ea_call call, const __grid_constant__ ea_hopper_launch launch) {
  extern __shared__ __align__(1024) char smem[];
  const ea_hopper_smem layout = ea_hopper_smem_layout(shape_constants(), launch.scores.stages);
  const uint32_t base = smem_address(smem);
  const ea_places at = {base, base + (uint32_t)layout.v};
  if (threadIdx.x == 0) {
    if (launch.scores.q_aligned) tensor_map_prefetch(&launch.q);
    if (launch.scores.kv_aligned) {
      tensor_map_prefetch(&launch.k);
      tensor_map_prefetch(&launch.v);
    }
    mbarrier_init(q_full(at), 128);
    mbarrier_init(q_empty(at), CONSUMERS * 4);
    for (uint32_t slot = 0; slot < (uint32_t)launch.scores.stages; slot++) {
      mbarrier_init(k_full(at, slot), 128);
      mbarrier_init(k_empty(at, slot), CONSUMERS * 4);
      mbarrier_init(v_full(at, slot), 128);
      mbarrier_init(v_empty(at, slot), CONSUMERS * 4);
    }
    fence_mbarrier_init();
    ea_item *none = (ea_item *)__cvta_shared_to_generic(items_at(at) + LAST_PLACE); /* the one before the first */
    none->next_round = 0;
    none->q_parity = 1;
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    setmaxnreg_dec(PRODUCER_REGISTERS);
    produce(call, launch, at);
  } else {
    setmaxnreg_inc(CONSUMER_REGISTERS);
    consume(call, launch, at);
  }
}
