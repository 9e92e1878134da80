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
 *   wait for its turn                                      (the warpgroups issue in a fixed round)
 *   wait for K(t);   issue S = Q K(t); meanwhile rescale O where a row's reference moved
 *   wait for V(t-1); issue O += P V(t-1)
 *   pass the turn on
 *   S done: release K(t); exp2 with the reference there is, sum, P(t) in 16 bits
 *   O done: release V(t-1)
 *
 * so a warpgroup's softmax runs beside its own P V and beside the others' products. Masked tiles, caps and the
 * like go through a longer body. The rings' depth is a run-time number and changes no arithmetic. docs/hopper.md
 * has the schedule, and what was measured on the way to it.
 *
 * Tiles of new tokens come by TMA. A tile that holds a prefix key is gathered by the producer's 128
 * threads with cp.async, slot by slot, and rows that are not there are zeros; so are tiles of rows that TMA
 * cannot read (not aligned to 16 bytes). 8-bit caches are widened on this way. Rows behind a sequence's end that TMA
 * brings along belong to somebody else: no query sees them, and what a NaN of theirs could do is taken care of like any
 * other hidden NaN's. */
#include <stdint.h>

#include "cuda/kernels/hopper.h"
#include "cuda/kernels/marks.h"
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
#define CALLS ((ea_hopper_calls)EA_SHAPE_CONSTANT(_CALLS))
#define TILE_M (CONSUMERS * 64)
#define STEP_KEYS TILE_N
#define FEEDERS 128 /* threads that gather a tile */
#define FINDER 32   /* the producer's thread that finds items, in a warp that has nothing else to do meanwhile */
#define THREADS ((CONSUMERS + 1) * 128)
/* Whether registers suffice for the probabilities of two tiles: then a tile's exponentials run beside the product of
 * the one before. */
#define TWO_P (DIM_V <= 192)
/* Likewise for what a warp knows of its item and of itself: read anew at each use otherwise. */
#define KEEPS_ITEM (DIM != 192)
/* Likewise for a loop apart where tiles may be gathered: the other one has no instruction for them. */
#define GATHER_LOOP (DIM <= 128)

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

static_assert(CONSUMERS * 128 * CONSUMER_REGISTERS + 128 * PRODUCER_REGISTERS <= 65536 / THREADS / 8 * 8 * THREADS,
              "setmaxnreg deals out what the block began with, and waits for ever for more");
static_assert(DIM % 16 == 0 && DIM_V % 16 == 0 && TILE_N % 16 == 0, "the products' steps");
static_assert(TILE_N <= 128, "the bits of a custom mask are 32");
static_assert(SLICE_BYTES % 1024 == 0, "slices keep the swizzle's alignment");

EA_DEVICE ea_hopper_shape shape_constants(void) {
  const ea_hopper_shape shape = {0, DIM, DIM_V, CONSUMERS, TILE_N, 0, EA_CALLS_ANY};
  return shape;
}

/* Where things are in shared memory: at constant distances from its start. */
typedef struct ea_places {
  uint32_t q;
} ea_places;

EA_DEVICE uint32_t barriers_at(ea_places at) {
  return at.q + (uint32_t)ea_hopper_smem_layout(shape_constants(), 0).barriers;
}
EA_DEVICE uint32_t items_at(ea_places at) {
  return at.q + (uint32_t)ea_hopper_smem_layout(shape_constants(), 0).items;
}
EA_DEVICE uint32_t k_tile_at(ea_places at, uint32_t slot) {
  return at.q + (uint32_t)ea_hopper_smem_layout(shape_constants(), 0).k + slot * (K_BYTES + V_BYTES);
}
EA_DEVICE uint32_t v_tile_at(ea_places at, uint32_t slot) {
  return at.q + (uint32_t)ea_hopper_smem_layout(shape_constants(), 0).v + slot * (K_BYTES + V_BYTES);
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
EA_DEVICE uint32_t items_done_at(ea_places at) {
  return barriers_at(at) + 16 + 2 * EA_HOPPER_MAX_STAGES * 16;
}
#define MARKS_OFFSET ea_hopper_smem_layout(shape_constants(), 0).marks
#include "cuda/kernels/hopper_parts.h"

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

EA_DEVICE void ring_skip(ea_ring *ring, uint32_t tiles, const ea_hopper_launch &launch) {
  const uint32_t stages = (uint32_t)launch.scores.stages;
  const uint32_t slots = slot_of(*ring) + tiles, rounds = stages == 1 ? slots : __umulhi(slots, launch.stages_magic);
  ring->position = (slots - rounds * stages) * 2 | (parity_of(*ring) ^ (rounds & 1));
}

/* ---- the producer ---------------------------------------------------------------------------- */

/* One tile of K or V by cp.async, 128 bytes of a row at a time. Rows that are not there are zeros. WHOLE: all are, and
 * the slices are full of columns. */
template <bool WHOLE, int SLICE_COUNT>
EA_DEVICE void copy_rows(const ea_lane_rows &rows, int tid, int dim, uint32_t dst) {
  const int row0 = tid / 8, chunk = tid % 8;
  const uint32_t first = dst + (uint32_t)(row0 * 128 + (chunk ^ (row0 & 7)) * 16);
#pragma unroll
  for (int pass = 0; pass < TILE_N / PASS_ROWS; pass++) {
    const char *row = row_of_pass(rows, tid, pass);
    const bool there = WHOLE || is_there(rows, tid, pass);
#pragma unroll
    for (int slice = 0; slice < SLICE_COUNT; slice++) {
      const bool wanted = WHOLE || (there && slice * EA_HOPPER_SLICE + chunk * CHUNK < dim);
      cp_async_16(first + (uint32_t)(pass * PASS_ROWS * 128 + slice * SLICE_BYTES), row + slice * EA_HOPPER_SLICE_BYTES,
                  wanted ? 16 : 0);
    }
  }
}

template <bool OF_V>
EA_DEVICE void gather(const ea_call &call, const ea_hopper_launch &launch, uint32_t place, int tid, int tile,
                      uint32_t slot, uint32_t dst) {
  constexpr int slices = OF_V ? SLICES_V : SLICES;
  const int dim = OF_V ? call.head_dim_v : call.head_dim;
  const ea_lane_rows rows = lane_rows<OF_V>(call, launch, place, tid, tile, slot);
  if ((rows.there & ALL_LANES) == ALL_LANES && dim == slices * EA_HOPPER_SLICE) {
    copy_rows<true, slices>(rows, tid, dim, dst);
  } else {
    copy_rows<false, slices>(rows, tid, dim, dst);
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

/* One tile by TMA, asked for by one thread. The barrier counts 128 arrivals, as a gathered tile brings them. */
template <int SLICE_COUNT>
EA_DEVICE void ask_for_tile(const ea_tensor_map *map, uint32_t barrier, uint32_t dst, int kv_head, int token) {
  mbarrier_arrive_expect_tx(barrier, SLICE_COUNT * SLICE_BYTES);
  mbarrier_arrive_many(barrier, 127);
#pragma unroll
  for (int slice = 0; slice < SLICE_COUNT; slice++) {
    tma_load_3d(dst + (uint32_t)(slice * SLICE_BYTES), map, barrier, slice * EA_HOPPER_SLICE, kv_head, token);
  }
}

/* The same by a warp that is here whole, with operands that are the same in all lanes: only so are they in uniform
 * registers, where the instruction wants them. */
template <int SLICE_COUNT>
EA_DEVICE void load_tile(const ea_tensor_map *map, uint32_t barrier, uint32_t dst, int kv_head, int token) {
  if (elect_one()) ask_for_tile<SLICE_COUNT>(map, barrier, dst, kv_head, token);
  __syncwarp();
}

/* A tile of K or V by all threads, when its slot is free. Nobody stays until its copies are there: they arrive by
 * themselves. */
template <bool OF_V>
EA_DEVICE void gather_tile(const ea_call &call, const ea_hopper_launch &launch, ea_places at, uint32_t place, int tid,
                           int tile, uint32_t slots, ea_ring ring) {
  const uint32_t slot = slot_of(ring), full = OF_V ? v_full(at, slot) : k_full(at, slot);
  const uint32_t dst = OF_V ? v_tile_at(at, slot) : k_tile_at(at, slot);
  PRODUCER_MARK_OF(launch, SLOT, OF_V, tile);
  mbarrier_wait(full + 8, parity_of(ring) ^ 1);
  PRODUCER_MARK_OF(launch, COPY, OF_V, tile);
  const bool aligned = rows_are_aligned(call, launch, place, tile);
  if (aligned) {
    gather<OF_V>(call, launch, place, tid, tile, slots, dst);
  } else {
    gather_any(call, launch, place, tid, tile, dst, OF_V);
  }
  if (aligned) {
    cp_async_mbarrier_arrive_noinc(full);
  } else {
    cp_async_wait_all();
    fence_proxy_async_shared();
    mbarrier_arrive(full);
  }
}

/* Whether Q of the block's first item and its first tile of K are asked for by the thread that has found it. */
EA_DEVICE bool is_asked_for_first(const ea_hopper_launch &launch, const ea_item *item) {
  return item->rows != 0 && launch.scores.q_aligned && item->first_step == item->gather_end;
}

/* An item's tiles that are not gathered, by TMA, for one whole warp. with_q: Q as well, when its place is free, which
 * it is when consumers have the last scores of the item before (at once, for the first item). Slots of as many tiles as
 * there are stages but one are free sooner, so those tiles are asked for first: with short walks much of the item's
 * time would go by. Of the first item Q and a tile of K are under way (ask_for_first). */
EA_DEVICE void stream_tiles(const ea_call &call, const ea_hopper_launch &launch, ea_places at, uint32_t place,
                            bool with_q) {
  const uint32_t stages = (uint32_t)launch.scores.stages;
  const int head = uniform(item_at(place)->kv_head);
  const int end = uniform(item_at(place)->end_step);
  int tile = uniform(item_at(place)->gather_end);
  int token = uniform((int)item_at(place)->token0 + (tile * TILE_N - item_at(place)->view.prefix));
  ea_ring ring = {uniform(item_at(place)->ring)};
  ring_skip(&ring, (uint32_t)(tile - item_at(place)->first_step), launch);
  ea_ring ring_v = ring;
  const int tiles_before_q = (int)stages - 1;
  if (with_q && uniform((int)item_at(place)->number) == 0) {
    PRODUCER_MARK(launch, SLOT_Q, 0);
    PRODUCER_MARK(launch, COPY_Q, 0);
    with_q = false;
    if (tile < end) {
      PRODUCER_MARK(launch, SLOT_K, tile);
      PRODUCER_MARK(launch, COPY_K, tile);
      ring_advance(&ring, stages);
      tile++;
      token += TILE_N;
    }
  } else if (with_q && tiles_before_q > 0) { /* Q's place is still taken, but its rows can come nearer */
    const int q_head = uniform(item_at(place)->first_head);
    const int q_token = uniform((int)item_at(place)->token0 + item_at(place)->i0);
    if (elect_one()) {
#pragma unroll
      for (int slice = 0; slice < SLICES; slice++) tma_prefetch_3d(&launch.q, slice * EA_HOPPER_SLICE, q_head, q_token);
    }
    __syncwarp();
  }
#pragma unroll 1
  for (const int q_tile = with_q ? ea_min_i32(tile + tiles_before_q, end) : -1;; tile++, token += TILE_N) {
    if (tile == q_tile) bring_q(call, launch, at, place);
    if (tile < end) {
      const uint32_t slot = slot_of(ring);
      PRODUCER_MARK(launch, SLOT_K, tile);
      mbarrier_wait(k_empty(at, slot), parity_of(ring) ^ 1);
      PRODUCER_MARK(launch, COPY_K, tile);
      load_tile<SLICES>(&launch.k, k_full(at, slot), k_tile_at(at, slot), head, token);
      ring_advance(&ring, stages);
    }
    if (tile > item_at(place)->gather_end) {
      const uint32_t slot = slot_of(ring_v);
      PRODUCER_MARK(launch, SLOT_V, tile - 1);
      mbarrier_wait(v_empty(at, slot), parity_of(ring_v) ^ 1);
      PRODUCER_MARK(launch, COPY_V, tile - 1);
      load_tile<SLICES_V>(&launch.v, v_full(at, slot), v_tile_at(at, slot), head, token - TILE_N);
      ring_advance(&ring_v, stages);
    }
    if (tile >= end) break;
  }
}

/* The tiles of an item that are gathered, by all threads; Q behind the first, for the first warp. K runs a tile ahead
 * of V, as the consumers take them: a tile's V would otherwise keep the next K waiting for a slot that is free much
 * later. */
EA_DEVICE void gather_tiles(const ea_call &call, const ea_hopper_launch &launch, ea_places at, uint32_t place,
                            int tid_once) {
  const auto tid = [&]() { return read_anew(tid_once); };
  const uint32_t stages = (uint32_t)launch.scores.stages;
  int tile = item_at(place)->first_step;
  ea_ring ring = {item_at(place)->ring}, ring_v = ring;
  uint32_t slots_v = 0, slots = tile_slots(call, place, tid(), tile);
#pragma unroll 1
  for (;; tile++) {
    uint32_t slots_next = 0;
    if (tile < item_at(place)->gather_end) {
      if (tile + 1 < item_at(place)->gather_end) slots_next = tile_slots(call, place, tid(), tile + 1);
      gather_tile<false>(call, launch, at, place, tid(), tile, slots, ring);
      ring_advance(&ring, stages);
    }
    if (tile > item_at(place)->first_step) {
      gather_tile<true>(call, launch, at, place, tid(), tile - 1, slots_v, ring_v);
      ring_advance(&ring_v, stages);
    } else if (launch.scores.q_aligned && uniform(tid() / 32) == 0) {
      bring_q(call, launch, at, place);
    }
    if (tile >= item_at(place)->gather_end) return;
    slots_v = slots;
    slots = slots_next;
  }
}

/* All tiles of a careful item, by all threads: values of masked tiles lose their NaN and Inf. Q behind the first. What
 * TMA can bring it brings; the rest comes the way that is small rather than fast. */
EA_DEVICE void copy_carefully(const ea_call &call, const ea_hopper_launch &launch, ea_places at, uint32_t place,
                              int tid_once) {
  const auto tid = [&]() { return read_anew(tid_once); };
  const auto is_first_warp = [&]() { return uniform(tid() / 32) == 0; };
  ea_ring ring = {item_at(place)->ring};
#pragma unroll 1
  for (int tile = item_at(place)->first_step; tile < item_at(place)->end_step; tile++) {
    bar_sync(BARRIER_PRODUCER, 128); /* nobody overtakes the first warp */
#pragma unroll 1
    for (int of_v = 0; of_v < 2; of_v++) {
      const auto slot = [&]() { return (uint32_t)read_anew((int)slot_of(ring)); };
      const auto full = [&]() { return of_v ? v_full(at, slot()) : k_full(at, slot()); };
      const auto dst = [&]() { return of_v ? v_tile_at(at, slot()) : k_tile_at(at, slot()); };
      const bool cleared = of_v && is_masked(item_at(place), tile);
      PRODUCER_MARK_OF(launch, SLOT, of_v, tile);
      mbarrier_wait(full() + 8, parity_of(ring) ^ 1);
      PRODUCER_MARK_OF(launch, COPY, of_v, tile);
      if (tile < item_at(place)->gather_end || cleared) {
        gather_any(call, launch, place, tid(), tile, dst(), of_v);
        cp_async_wait_all();
        if (cleared) {
          bar_sync(BARRIER_PRODUCER, 128); /* all of it is there */
          clear_special(dst(), V_BYTES, tid(), 128);
        }
        fence_proxy_async_shared();
        mbarrier_arrive(full());
      } else if (is_first_warp()) {
        const int head = uniform(item_at(place)->kv_head);
        const int token = uniform((int)item_at(place)->token0 + (tile * TILE_N - item_at(place)->view.prefix));
        if (of_v) {
          load_tile<SLICES_V>(&launch.v, full(), dst(), head, token);
        } else {
          load_tile<SLICES>(&launch.k, full(), dst(), head, token);
        }
      }
    }
    if (tile == item_at(place)->first_step && launch.scores.q_aligned && is_first_warp()) {
      bring_q(call, launch, at, place);
    }
    ring_advance(&ring, (uint32_t)launch.scores.stages);
  }
}

/* The block's first item; behind the last place, the one that the first consumers take for the item before. */
EA_DEVICE void find_first(const ea_call &call, const ea_hopper_launch &launch, ea_places at, int32_t *work) {
  ea_item *none = (ea_item *)__cvta_shared_to_generic(items_at(at) + LAST_PLACE);
  ea_item *item = (ea_item *)__cvta_shared_to_generic(items_at(at));
  none->number = UINT32_MAX;
  find_work(call, launch, item, work);
  item->number = item->ring = item->careful = item->found = 0;
}

/* Asks for Q of the first item and for its first tile of K, by the thread that has found it: what the producer's warps
 * do until they come to that took an H200 2 us, most of it for instructions that nobody had fetched. Where Q comes
 * another way, or behind a gathered tile, it is left to them. */
EA_DEVICE void ask_for_first(const ea_call &call, const ea_hopper_launch &launch, ea_places at) {
  const ea_item *item = item_at(items_at(at));
  if (!is_asked_for_first(launch, item)) return;
  ask_for_q(call, launch, at, item->first_head, (int)item->token0 + item->i0);
  if (item->first_step == item->end_step) return;
  const int token = (int)item->token0 + (item->first_step * TILE_N - item->view.prefix);
  ask_for_tile<SLICES>(&launch.k, k_full(at, 0), k_tile_at(at, 0), item->kv_head, token);
}

/* Finds the item behind the one at `place`. */
EA_DEVICE void find_next(const ea_call &call, const ea_hopper_launch &launch, ea_places at, uint32_t place,
                         int32_t *work) {
  const uint32_t next = place_after(at, place);
  next_item(call, launch, at, next, work);
  const ea_item *item = item_at(place);
  ea_ring ring = {item->ring};
  ring_skip(&ring, (uint32_t)(item->end_step - item->first_step), launch);
  ((ea_item *)__cvta_shared_to_generic(next))->ring = ring.position;
}

/* work: the next piece, for the finder. */
EA_DEVICE void produce(const ea_call &call, const ea_hopper_launch &launch, ea_places at, int32_t work) {
  const int tid_once = read_tid();
  const auto tid = [&]() { return read_anew(tid_once); };
  PRODUCER_MARK(launch, FIND, 0);
  PRODUCER_MARK(launch, MEET, 0);
#pragma unroll 1
  for (uint32_t place = items_at(at); item_at(place)->rows != 0; place = place_after(at, place)) {
    ITEM_MARKS(launch, item_at(place));
    bool with_q = launch.scores.q_aligned; /* the first warp's */
    if (!with_q) copy_q(call, launch, at, place, tid());
    const bool careful = item_at(place)->careful != 0;
    if (careful) {
      copy_carefully(call, launch, at, place, tid_once);
    } else if (item_at(place)->first_step < item_at(place)->gather_end) {
      gather_tiles(call, launch, at, place, tid_once);
      with_q = false; /* has come behind a tile of K */
    }
    if (uniform(tid() / 32) == FINDER / 32) { /* consumers would wait for it if it came behind the tiles */
      PRODUCER_MARK(launch, FIND, 0);
      if (tid() == FINDER) find_next(call, launch, at, place, &work);
    } else {
      if (!careful && uniform(tid() / 32) == 0) stream_tiles(call, launch, at, place, with_q);
      PRODUCER_MARK(launch, FIND, 0); /* what is before belongs to the item in hand */
    }
    PRODUCER_MARK(launch, MEET, 0);
    bar_sync(BARRIER_PRODUCER, 128);
  }
  if (tid() == 0) mbarrier_arrive_many(q_full(at), 128); /* nothing is left to do, for the consumers */
  PRODUCER_MARK(launch, END, 0);
}

/* ---- a consumer ------------------------------------------------------------------------------ */

/* The first of a thread's two rows; the other is 8 further. */
EA_DEVICE int first_row(int tid) {
  return (tid - 128) / 32 * 16 + tid % 32 / 4;
}

/* s = Q K^T of this warpgroup's rows. */
EA_DEVICE void issue_scores(float s[TILE_N / 2], uint32_t q, uint32_t k) {
  const uint64_t q_descriptor = wgmma_descriptor(q, 0);
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

/* How many of a thread's keys of a tile are before key `end`, counted from the thread's first: it has two of every
 * eight. */
EA_DEVICE int keys_before(int end) {
  end = ea_min_i32(ea_max_i32(end, 0), TILE_N);
  return end / 8 * 2 + ea_min_i32(end % 8, 2);
}
EA_DEVICE uint32_t bits_below(int count) { /* 0 to 32 */
  return count == 32 ? 0xffffffffu : (1u << count) - 1;
}

/* What a thread's two rows see of its keys of a tile: bits, by the keys' order. */
typedef struct ea_tile_mask {
  bool masked; /* else they see all, and the bits mean nothing */
  uint32_t visible[2];
} ea_tile_mask;

/* To be called while the tensor cores are busy. */
EA_DEVICE ea_tile_mask mask_of(const ea_hopper_launch &launch, const ea_item *item, const ea_key_range seen[2],
                               int tile, int tid) {
  ea_tile_mask mask = {uniform(is_masked(item, tile)) != 0, {0, 0}};
  if (!mask.masked) return mask;
  const int key0 = tile * TILE_N + tid % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t visible = bits_below(keys_before(seen[h].end - key0)) & ~bits_below(keys_before(seen[h].first - key0));
    if (item->view.mask) { /* the mask is all that is left to ask */
      const uint8_t *row = item->view.mask + row_query(launch, item, first_row(tid) + h * 8) * item->view.mask_stride;
      const int told = item->view.mask_skips_prefix ? ea_max_i32(seen[h].first, item->view.prefix) : seen[h].first;
#pragma unroll 1
      for (int e = 0; e < TILE_N / 4; e++) {
        const int key = key0 + e / 2 * 8 + e % 2;
        if (key >= told && key < seen[h].end && row[key] == 0) visible &= ~(1u << e);
      }
    }
    mask.visible[h] = (uint32_t)read_anew((int)visible); /* now, not when it is used */
  }
  return mask;
}

/* -Inf where a key is hidden. */
EA_DEVICE void apply_mask(float s[TILE_N / 2], const ea_tile_mask &mask) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int e = 0; e < TILE_N / 4; e++) {
      float *x = &s[e / 2 * 4 + h * 2 + e % 2];
      *x = mask.visible[h] & 1u << e ? *x : MINUS_INF;
    }
  }
}

/* Scores or values go through scales, a cap or a temperature. */
EA_DEVICE bool is_scaled(const ea_hopper_launch &launch) {
  return launch.scores.transformed || launch.scores.k_scale != 1.0f || launch.scores.v_scale != 1.0f;
}

EA_DEVICE void consume(const ea_call &call, const ea_hopper_launch &launch, ea_places at) {
  /* What follows from the thread's number is worked out anew at each use: the products need every register. */
  const int tid_once = read_tid();
  const auto tid = [&]() { return read_anew(tid_once); };
  const int warpgroup = uniform(tid_once / 128) - 1;
  const auto turn = [&](int from_mine) {
    return BARRIER_TURN + ((KEEPS_ITEM ? warpgroup : tid_once / 128 - 1) + from_mine) % CONSUMERS;
  };
  const uint32_t stages = (uint32_t)launch.scores.stages;
  const uint32_t q = at.q + (uint32_t)(warpgroup * 64 * EA_HOPPER_SLICE_BYTES);
  const auto v_scaled = [&]() { return CALLS != EA_CALLS_PLAIN && read_anew(launch.scores.v_scale != 1.0f) != 0; };
  const auto scaled = [&]() {
    return CALLS == EA_CALLS_SCALED || (CALLS == EA_CALLS_ANY && read_anew(is_scaled(launch)) != 0);
  };
  float o[DIM_V / 2], s[TILE_N / 2];
  uint32_t p[TILE_N / 4], p_next[TILE_N / 4];
  ea_ring ring = {0}; /* of the next K tile */
  MARKS(launch, warpgroup);

  if (warpgroup == CONSUMERS - 1) bar_arrive(BARRIER_TURN, 256); /* the first warpgroup begins */
#pragma unroll 1
  for (uint32_t place = items_at(at);; place = place_after(at, place)) {
    MARK(WAIT_Q, 0);
    mbarrier_wait(q_full(at), q_parity(item_at(place_before(at, place))) ^ 1);
    if (uniform(item_at(place)->rows) == 0) break;
    MARK(BEGIN, 0);
    ea_softmax state = {{MINUS_INF, MINUS_INF}, {0.0f, 0.0f}};
    float factor[2] = {1.0f, 1.0f};
    bool moved = false; /* O is still to be multiplied by factor */
#pragma unroll
    for (int e = 0; e < DIM_V / 2; e++) o[e] = 0.0f;

    const int first = uniform(item_at(place)->first_step), end = uniform(item_at(place)->end_step);
    const int gather_end = uniform(item_at(place)->gather_end);
    const int plain_end_once = uniform(item_at(place)->plain.end);
    const auto plain_end = [&]() { return KEEPS_ITEM ? plain_end_once : uniform(item_at(place)->plain.end); };
    const auto is_gathered = [&](int tile) { return tile < (KEEPS_ITEM ? gather_end : item_at(place)->gather_end); };
    /* Scales, cap, temperature and mask of any tile. */
    const auto prepare = [&](int tile, const ea_tile_mask &mask) {
      if (scaled()) transform(s, call, launch, item_at(place), tile * TILE_N + tid() % 4 * 2, first_row(tid()));
      if (mask.masked) apply_mask(s, mask);
    };
    /* Then to probabilities, whatever the call asks for. */
    const auto convert = [&](int tile, bool is_first, uint32_t(&to)[TILE_N / 4]) {
      if (v_scaled() || is_first) {
        const bool must[2] = {true, true};
        float shift[2], sum[2];
        move_references(s, &state, must, shift, factor, launch);
        if (v_scaled()) {
          exponentials<true>(to, s, shift, sum, launch, item_at(place)->view.prefix - tile * TILE_N - tid() % 4 * 2);
        } else {
          exponentials<false>(to, s, shift, sum, launch, 0);
        }
        state.row_sum[0] += sum[0];
        state.row_sum[1] += sum[1];
        moved = !is_first;
      } else {
        moved = probabilities(to, s, &state, factor, launch);
      }
    };
    /* Waits for the product of a tile with V. */
    uint32_t in_flight; /* the barrier to tell of its end */
    const auto output_done = [&](int tile) {
      MARK(WAIT_O, tile);
      wgmma_wait_group(0);
      wgmma_settle(o, DIM_V / 2);
      release(in_flight);
    };
    /* Asks for the scores of `tile`, and for the product of the one before. */
    const auto issue = [&](int tile, const uint32_t(&with)[TILE_N / 4], bool k_gathered, bool v_gathered) {
      const ea_ring before = {uniform(ring.position)};
      ring = before;
      ring_advance(&ring, stages);
      MARK(WAIT_TURN, tile);
      bar_sync(turn(0), 256);
      MARK(WAIT_K, tile);
      wait_full(k_full(at, slot_of(ring)), parity_of(ring), k_gathered);
      MARK(ISSUE_S, tile);
      wgmma_fence();
      issue_scores(s, q, k_tile_at(at, slot_of(ring)));
      if (moved) rescale(o, factor);
      MARK(WAIT_V, tile - 1);
      wait_full(v_full(at, slot_of(before)), parity_of(before), v_gathered);
      MARK(ISSUE_O, tile - 1);
      wgmma_settle(o, DIM_V / 2);
      wgmma_fence();
      issue_output(o, with, v_tile_at(at, slot_of(before)));
      in_flight = v_empty(at, slot_of(before));
      bar_arrive(turn(1), 256);
    };
    /* Waits for the scores, with the product under way. */
    const auto scores_done = [&](int tile) {
      MARK(WAIT_S, tile);
      wgmma_wait_group(1);
      wgmma_settle(s, TILE_N / 2);
      MARK(SOFTMAX, tile);
      release(k_empty(at, slot_of(ring)));
    };

    if (first < end) {
      MARK(WAIT_K, first);
      wait_full(k_full(at, slot_of(ring)), parity_of(ring), is_gathered(first));
      MARK(ISSUE_S, first);
      wgmma_fence();
      issue_scores(s, q, k_tile_at(at, slot_of(ring)));
      ea_key_range seen[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int i = row_query(launch, item_at(place), first_row(tid()) + h * 8);
        seen[h] = ea_visible_keys(&item_at(place)->view, i, i + 1);
      }
      const ea_tile_mask first_mask = mask_of(launch, item_at(place), seen, first, tid());
      MARK(WAIT_S, first);
      wgmma_wait_group(0);
      wgmma_settle(s, TILE_N / 2);
      MARK(SOFTMAX, first);
      release(k_empty(at, slot_of(ring)));
      prepare(first, first_mask);
      convert(first, true, p);
      int tile = first + 1;
      /* Tiles up to `last` that all rows see whole, two at a time. */
      const auto plain_tiles = [&](auto gathered, int last) {
#pragma unroll 1
        for (; (tile + 1 + TWO_P) * TILE_N <= plain_end() && tile <= last; tile += 1 + TWO_P) {
          issue(tile, p, gathered(tile), gathered(tile));
          scores_done(tile);
          if (TWO_P) {
            moved = probabilities(p_next, s, &state, factor, launch);
            output_done(tile - 1);
            issue(tile + 1, p_next, gathered(tile), gathered(tile));
            scores_done(tile + 1);
            moved = probabilities(p, s, &state, factor, launch);
            output_done(tile);
          } else {
            output_done(tile - 1);
            MARK(SOFTMAX, tile);
            moved = probabilities(p, s, &state, factor, launch);
          }
        }
      };
#pragma unroll 1
      while (tile < end) {
        if (!scaled() && tile * TILE_N >= uniform(item_at(place)->plain.first)) {
          if (GATHER_LOOP) {
            plain_tiles([](int) { return true; }, gather_end);
            plain_tiles([](int) { return false; }, INT32_MAX);
          } else {
            plain_tiles([&](int of) { return is_gathered(of - 1); }, INT32_MAX);
          }
          if (tile >= end) break;
        }
        issue(tile, p, is_gathered(tile), is_gathered(tile - 1));
        const ea_tile_mask mask = mask_of(launch, item_at(place), seen, tile, tid());
        scores_done(tile);
        prepare(tile, mask);
        if (TWO_P) {
          convert(tile, false, p_next);
          output_done(tile - 1);
          wgmma_refill(p, p_next, TILE_N / 4);
        } else {
          output_done(tile - 1);
          MARK(SOFTMAX, tile);
          convert(tile, false, p);
        }
        tile++;
      }
      release(q_empty(at));
      MARK(WAIT_V, end - 1);
      if (moved) rescale(o, factor);
      wait_full(v_full(at, slot_of(ring)), parity_of(ring), is_gathered(end - 1));
      MARK(ISSUE_O, end - 1);
      wgmma_settle(o, DIM_V / 2);
      wgmma_fence();
      issue_output(o, p, v_tile_at(at, slot_of(ring)));
      in_flight = v_empty(at, slot_of(ring));
      output_done(end - 1);
      ring_advance(&ring, stages);
    } else {
      release(q_empty(at));
    }
    MARK(FINISH, 0);
#pragma unroll
    for (int h = 0; h < 2; h++) state.row_sum[h] = quad_sum(state.row_sum[h]);
    end_item<DIM_V>(o, state.reference, state.row_sum, call, launch, at, place, first_row(tid()), tid() % 32, 0);
  }
  MARKS_END(launch);
}

/* Those of what ask_for_first asks for are its thread's to make. */
EA_DEVICE void make_first_barriers(ea_places at) {
  mbarrier_init(q_full(at), 128);
  mbarrier_init(k_full(at, 0), 128);
  fence_mbarrier_init();
}
EA_DEVICE void make_other_barriers(const ea_hopper_launch &launch, ea_places at) {
  mbarrier_init(q_empty(at), CONSUMERS * 4);
#pragma unroll 1
  for (uint32_t slot = 0; slot < (uint32_t)launch.scores.stages; slot++) {
    if (slot > 0) mbarrier_init(k_full(at, slot), 128);
    mbarrier_init(k_empty(at, slot), CONSUMERS * 4);
    mbarrier_init(v_full(at, slot), 128);
    mbarrier_init(v_empty(at, slot), CONSUMERS * 4);
  }
  for (uint32_t n = 0; n < EA_HOPPER_ITEMS; n++) mbarrier_init(items_done_at(at) + n * 8, CONSUMERS * 4);
  fence_mbarrier_init();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const __grid_constant__ ea_call call, const __grid_constant__ ea_hopper_launch launch) {
  extern __shared__ __align__(1024) char smem[];
  const ea_places at = {smem_address(smem)};
  if (threadIdx.x == FINDER) { /* what the first item is found by */
    prefetch_l2(call.qo_indptr);
    prefetch_l2(call.kv_indptr);
  }
  clear_spare_rows(call, launch, at);
  int32_t work = (int32_t)blockIdx.x;
  if (threadIdx.x < 128) MARKS_OF_BLOCK(launch, 3);
  if (threadIdx.x == 128) { /* while the first item is found */
    if (launch.scores.q_aligned) tensor_map_prefetch(&launch.q);
    if (launch.scores.kv_aligned) {
      tensor_map_prefetch(&launch.k);
      tensor_map_prefetch(&launch.v);
    }
    make_other_barriers(launch, at);
  } else if (threadIdx.x == FINDER) {
    make_first_barriers(at);
    find_first(call, launch, at, &work);
    ask_for_first(call, launch, at);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    setmaxnreg_dec(PRODUCER_REGISTERS);
    produce(call, launch, at, work);
  } else {
    setmaxnreg_inc(CONSUMER_REGISTERS);
    consume(call, launch, at);
  }
}
