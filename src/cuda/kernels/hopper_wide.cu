/* The Hopper kernel for head dimensions above 256, by bulk copies and warpgroup products.
 *
 * Compiled once for each shape of plan/hopper_wide.h and each of bf16 and f16:
 * -DEA_SHAPE=d512 -DEA_TYPE_BF16 gives the entry hopper_d512_bf16.
 *
 * One block a multiprocessor lives as long as the launch and works on items, as in hopper.cu. It has 64
 * query rows. An output of 64 x 512 takes the registers of two consumer warpgroups, which own half of its
 * columns each. Keys go in pairs of tiles of 64: each consumer computes the scores of its own tile of a
 * pair (the first one's is the first), and both need the probabilities of both.
 *
 * Consumer, pair t of an item (own and other: the tile of this consumer and of the other one):
 *
 *   issue S(t+1) = Q K(own tile of t+1), unit by unit
 *   rescale O where a maximum grew
 *   issue O += P(own) V(own tile of t), unit by unit, P from registers
 *   S(t+1) done: mask; rows' maxima, told to the other consumer
 *   issue O += P(other) V(other tile of t), unit by unit, P from shared memory
 *   the other's maxima: both take the same reference; exp2, sum (of own tiles), P(own) in 16 bits, also to
 *   shared memory for the other
 *   O done
 *
 * A unit (plan/hopper_wide.h) has one reader, so each consumer has a ring of units of its own, in the order in
 * which it reads them, and half of the producer's threads to fill it. A unit is released when RELEASE_LAG more
 * have been given to the products. The rings' depth is a run-time number and changes no arithmetic.
 *
 * Units of new tokens come by TMA, and those of a tile of the prefix whose slots follow each other. Those of another
 * tile that holds a prefix key are gathered with cp.async, slot by slot, and rows that are not there are zeros; so are
 * tiles of rows that TMA cannot read. 8-bit caches are widened on this way. Rows behind a sequence's end that TMA
 * brings along belong to somebody else: no query sees them, and what a NaN of theirs could do is taken care of like any
 * other hidden NaN's. */
#include <stdint.h>

#include "cuda/kernels/hopper.h"
#include "cuda/kernels/marks.h"
#include "cuda/kernels/parts.h"
#include "cuda/kernels/ptx_hopper.h"
#include "plan/hopper_wide.h"
#include "problem/call.h"

#define EA_SHAPE_CONSTANT(what) EA_PASTE(EA_WIDE_, EA_SHAPE, what)

#define DIM EA_SHAPE_CONSTANT(_DIM)
#define DIM_V EA_SHAPE_CONSTANT(_DIM_V)
#define LATENT EA_SHAPE_CONSTANT(_LATENT)
#define UNIT_SLICES EA_SHAPE_CONSTANT(_UNIT)
#define CONSUMER_REGISTERS EA_SHAPE_CONSTANT(_CONSUMER_REGISTERS)
#define PRODUCER_REGISTERS EA_SHAPE_CONSTANT(_PRODUCER_REGISTERS)
#define TILE_M EA_WIDE_M
#define TILE_N EA_WIDE_N
#define STEP_KEYS (TILE_N * EA_WIDE_PAIR) /* a step is a pair of tiles */
#define THREADS EA_WIDE_THREADS
#define COLUMNS EA_WIDE_V_COLUMNS /* of the output, a consumer's */

#ifdef EA_TYPE_BF16
#define KERNEL EA_PASTE(hopper_, EA_SHAPE, _bf16)
#else
#define KERNEL EA_PASTE(hopper_, EA_SHAPE, _f16)
#endif
#define EA_PRODUCT_(n, kind, type) wgmma_n##n##_##kind##_##type
#define EA_PRODUCT(n, kind, type) EA_PRODUCT_(n, kind, type)

#define RELEASE_LAG 1 /* units given to the products after the one that is released */

#define EARLY_UNITS 6 /* latent: slices whose scores are asked for before the other consumer's values are used */
#define LATENT_N 128  /* columns of a product P V where values are in the keys */

#define SLICES ((DIM + EA_HOPPER_SLICE - 1) / EA_HOPPER_SLICE)
#define SLICE_BYTES (TILE_N * EA_HOPPER_SLICE_BYTES)
#define UNIT_BYTES (UNIT_SLICES * SLICE_BYTES)
#define V_KEYS (16 * UNIT_SLICES)      /* of a unit of V */
#define K_UNITS (SLICES / UNIT_SLICES) /* of a tile */
#define V_UNITS (TILE_N / V_KEYS)      /* of a consumer's columns of a tile */
#define V_SLICES (COLUMNS / EA_HOPPER_SLICE)
#define V_SLICE_BYTES (V_KEYS * EA_HOPPER_SLICE_BYTES)
#define LATENT_SLICES (LATENT_N / EA_HOPPER_SLICE)
#define P_SLOT (SLICES - 1) /* latent: the last slice's place, which is no value */
#define OUTPUT_GROUPS (COLUMNS / LATENT_N)
#define FEEDERS 64                           /* threads of the producer that fill a ring */
#define UNIT_PASSES (V_KEYS / (FEEDERS / 8)) /* of a unit of V */

/* The thread of the producer that finds items and loads Q: one that feeds no ring by TMA. It has waited for the end
 * of Q's last use but one, so an item's place is free when it comes to it again. */
#define LEADER 32

/* Named barriers; 0 is __syncthreads'. */
#define BARRIER_PRODUCER 1
#define BARRIER_CONSUMERS 2
#define BARRIER_CONSUMER 3 /* of the first, and of the second after it */
#define BARRIER_FEEDERS 5  /* likewise */
#define BARRIER_P 7        /* the first consumer's probabilities are in shared memory; and the second's */

static_assert(DIM_V == 2 * COLUMNS && SLICES % UNIT_SLICES == 0, "what units are cut for");
static_assert(!LATENT || UNIT_SLICES == 1, "a slice a unit");
static_assert(RELEASE_LAG >= 1 && RELEASE_LAG < V_UNITS, "when products are done; the ring has more slots");

EA_DEVICE ea_wide_shape shape_constants(void) {
  const ea_wide_shape shape = {0, DIM, DIM_V, LATENT, UNIT_SLICES};
  return shape;
}

/* Where things are in shared memory: at constant distances from its start. */
typedef struct ea_places {
  uint32_t q;
} ea_places;

EA_DEVICE uint32_t barriers_at(ea_places at) {
  return at.q + (uint32_t)ea_wide_smem_layout(shape_constants(), 0).barriers;
}
EA_DEVICE uint32_t items_at(ea_places at) {
  return at.q + (uint32_t)ea_wide_smem_layout(shape_constants(), 0).items;
}
/* Of the consumer `side`, in this round of two. */
EA_DEVICE uint32_t maxima_at(ea_places at, uint32_t side, uint32_t round) {
  return at.q + (uint32_t)ea_wide_smem_layout(shape_constants(), 0).maxima + (round * 2 + side) * (TILE_M * 4);
}
EA_DEVICE uint32_t p_at(ea_places at, uint32_t side, uint32_t round) {
  return at.q + (uint32_t)ea_wide_smem_layout(shape_constants(), 0).p + (round * 2 + side) * EA_WIDE_P_BYTES;
}
EA_DEVICE uint32_t ring_at(ea_places at, uint32_t side, uint32_t slots) {
  return at.q + (uint32_t)ea_wide_smem_layout(shape_constants(), 0).ring + side * slots * UNIT_BYTES;
}
/* A slot's full barrier; its empty one is 8 further. */
EA_DEVICE uint32_t slots_at(ea_places at, uint32_t side) {
  return barriers_at(at) + 16 + side * (EA_WIDE_MAX_SLOTS * 16);
}
/* A barrier of each consumer: it has told the rows' maxima (512: or sums; latent: references); latent: its sums. */
EA_DEVICE uint32_t told_at(ea_places at) {
  return barriers_at(at) + (1 + 2 * EA_WIDE_MAX_SLOTS) * 16;
}
EA_DEVICE uint32_t told_sums_at(ea_places at) {
  return told_at(at) + 16;
}
EA_DEVICE uint32_t items_done_at(ea_places at) {
  return told_at(at) + 32;
}
#define MARKS_OFFSET ea_wide_smem_layout(shape_constants(), 0).marks
#include "cuda/kernels/hopper_parts.h"

/* A ring as one side sees it: its barriers and units, and a place in it, which is slot * 2 + parity of the
 * slot's current use. */
typedef struct ea_ring {
  uint32_t barriers, units, slots;
  uint32_t position;
} ea_ring;

EA_DEVICE uint32_t ring_full(ea_ring ring) {
  return ring.barriers + ring.position / 2 * 16;
}
EA_DEVICE uint32_t ring_empty(ea_ring ring) {
  return ring.barriers + 8 + ring.position / 2 * 16;
}
EA_DEVICE uint32_t ring_unit(ea_ring ring) {
  return ring.units + ring.position / 2 * UNIT_BYTES;
}
EA_DEVICE uint32_t parity_of(ea_ring ring) {
  return ring.position & 1;
}
EA_DEVICE void ring_advance(ea_ring *ring) {
  ring->position += 2;
  if (ring->position / 2 == ring->slots) ring->position = parity_of(*ring) ^ 1;
}
/* So many units on. */
EA_DEVICE void ring_skip(ea_ring *ring, uint32_t units) {
  uint32_t slot = ring->position / 2 + units, parity = parity_of(*ring);
  for (; slot >= ring->slots; slot -= ring->slots) parity ^= 1;
  ring->position = slot * 2 + parity;
}
EA_DEVICE ea_ring ring_of(ea_places at, const ea_hopper_launch &launch, uint32_t side) {
  const uint32_t slots =
      LATENT ? SLICES : (uint32_t)ea_wide_slots(shape_constants(), launch.scores.stages); /* a constant, for latent */
  const ea_ring ring = {slots_at(at, side), ring_at(at, side, slots), slots, 0};
  return ring;
}

/* Which slice a unit of K begins with. Latent: first those that are values of this consumer's columns, which are
 * free again first. */
EA_DEVICE int slice_of(int unit, int side) {
  if (!LATENT) return unit * UNIT_SLICES;
  return unit < 2 * V_SLICES ? (unit + side * V_SLICES) % (2 * V_SLICES) : unit;
}

/* ---- the producer ---------------------------------------------------------------------------- */

/* A ring as its feeders see it. */
typedef struct ea_feed {
  ea_ring ring;
  bool streamed; /* the last tile came by TMA, for which one warp waited: the others are ahead */
} ea_feed;

EA_DEVICE void wait_empty(const ea_feed *feed) {
  mbarrier_wait(ring_empty(feed->ring), parity_of(feed->ring) ^ 1);
}

/* Whether a tile's values lose their NaN and Inf. Those of latent attention do so when the scores have seen them, by
 * the consumers; others on their way, by the threads that copy them. */
EA_DEVICE bool is_cleared(const ea_item *item, int tile) {
  return item->careful != 0 && is_masked(item, tile);
}

/* Ends a gathered unit. Nobody stays until its copies are there: they arrive by themselves. */
EA_DEVICE void gathered(ea_feed *feed) {
  cp_async_mbarrier_arrive_noinc(ring_full(feed->ring));
  ring_advance(&feed->ring);
}

/* A tile of K, or this consumer's columns of a tile of V, by cp.async. WHOLE: all rows are there, with all columns. */
template <bool WHOLE>
EA_DEVICE void copy_k(const ea_hopper_launch &launch, uint32_t place, const ea_lane_rows &rows, int tid, int tile,
                      int dim, ea_feed *feed) {
  const int row0 = tid % FEEDERS / 8;
  const uint32_t first = (uint32_t)(row0 * 128 + (tid % 8 ^ row0) * 16);
  const char *row[TILE_N / PASS_ROWS];
#pragma unroll
  for (int pass = 0; pass < TILE_N / PASS_ROWS; pass++) row[pass] = row_of_pass(rows, tid, pass);
#pragma unroll 1
  for (int unit = 0; unit < K_UNITS; unit++) {
    PRODUCER_MARK(launch, SLOT_K, tile);
    wait_empty(feed);
    PRODUCER_MARK(launch, COPY_K, tile);
    const int slice0 = slice_of(unit, tid / FEEDERS);
    const uint32_t to = ring_unit(feed->ring) + first;
#pragma unroll
    for (int pass = 0; pass < TILE_N / PASS_ROWS; pass++) {
      const char *from = row[pass] + slice0 * EA_HOPPER_SLICE_BYTES;
      const bool there = WHOLE || is_there(rows, tid, pass);
#pragma unroll
      for (int n = 0; n < UNIT_SLICES; n++) {
        const bool wanted = WHOLE || (there && (slice0 + n) * EA_HOPPER_SLICE + tid % 8 * CHUNK < dim);
        cp_async_16(to + (uint32_t)(n * SLICE_BYTES + pass * PASS_ROWS * 128), from + n * EA_HOPPER_SLICE_BYTES,
                    wanted ? 16 : 0);
      }
    }
    gathered(feed);
  }
}

template <bool WHOLE>
EA_DEVICE void copy_v(const ea_hopper_launch &launch, uint32_t place, const ea_lane_rows &rows, int tid, int tile,
                      int dim, ea_feed *feed) {
  const int row0 = tid % FEEDERS / 8, column0 = tid / FEEDERS * COLUMNS;
  const uint32_t first = (uint32_t)(row0 * 128 + (tid % 8 ^ row0) * 16);
#pragma unroll 1
  for (int unit = 0; unit < V_UNITS; unit++) {
    PRODUCER_MARK(launch, SLOT_V, tile);
    wait_empty(feed);
    PRODUCER_MARK(launch, COPY_V, tile);
    const uint32_t to = ring_unit(feed->ring) + first;
#pragma unroll
    for (int i = 0; i < UNIT_PASSES; i++) {
      const int pass = unit * UNIT_PASSES + i;
      const char *from = row_of_pass(rows, tid, pass) + column0 * 2;
      const bool there = WHOLE || is_there(rows, tid, pass);
#pragma unroll
      for (int n = 0; n < V_SLICES; n++) {
        const bool wanted = WHOLE || (there && column0 + n * EA_HOPPER_SLICE + tid % 8 * CHUNK < dim);
        cp_async_16(to + (uint32_t)(n * V_SLICE_BYTES + i * PASS_ROWS * 128), from + n * EA_HOPPER_SLICE_BYTES,
                    wanted ? 16 : 0);
      }
    }
    gathered(feed);
  }
}

template <bool OF_V>
EA_DEVICE void gather(const ea_call &call, const ea_hopper_launch &launch, uint32_t place, int tid, int tile,
                      uint32_t slot, ea_feed *feed) {
  const int dim = OF_V ? call.head_dim_v : call.head_dim;
  const ea_lane_rows rows = lane_rows<OF_V>(call, launch, place, tid, tile, slot);
  const bool whole = (rows.there & ALL_LANES) == ALL_LANES && dim == (OF_V ? DIM_V : SLICES * EA_HOPPER_SLICE);
  if (OF_V) {
    whole ? copy_v<true>(launch, place, rows, tid, tile, dim, feed)
          : copy_v<false>(launch, place, rows, tid, tile, dim, feed);
  } else {
    whole ? copy_k<true>(launch, place, rows, tid, tile, dim, feed)
          : copy_k<false>(launch, place, rows, tid, tile, dim, feed);
  }
}

/* A tile of either by plain loads and stores, for rows that are not aligned or have 8-bit elements, and for
 * values that are cleared. */
EA_DEVICE void gather_any(const ea_call &call, const ea_hopper_launch &launch, uint32_t place, int tid, int tile,
                          ea_feed *feed, bool of_v) {
  const int units = of_v ? V_UNITS : K_UNITS, keys = of_v ? V_KEYS : TILE_N;
  const int chunks = UNIT_BYTES / 16 / keys; /* of a row, in a unit */
#pragma unroll 1
  for (int unit = 0; unit < units; unit++) {
    PRODUCER_MARK_OF(launch, SLOT, of_v, tile);
    wait_empty(feed);
    PRODUCER_MARK_OF(launch, COPY, of_v, tile);
#pragma unroll 1
    for (int index = tid % FEEDERS; index < UNIT_BYTES / 16; index += FEEDERS) {
      const int row = index / chunks, at = index % chunks;
      const int key = tile * TILE_N + (of_v ? unit * V_KEYS : 0) + row;
      const int side = tid / FEEDERS;
      const int chunk = at + (of_v ? side * (COLUMNS / CHUNK) : slice_of(unit, side) * (EA_HOPPER_SLICE / CHUNK));
      const uint32_t to =
          ring_unit(feed->ring) + (uint32_t)(at / 8 * keys * 128 + row * 128 + ((at % 8) ^ (row & 7)) * 16);
      const char *source = key_row(call, launch, place, key, of_v);
      const int dim = of_v ? call.head_dim_v : call.head_dim;
      if (source == 0 || chunk * CHUNK >= dim) {
        st_shared_v4(to, make_uint4(0, 0, 0, 0));
      } else {
        const bool cached = key < item_at(place)->view.prefix;
        load_row_chunk(to, source, chunk, dim,
                       cached ? cached_source(call, launch.scores) : fresh_source(launch.scores));
      }
    }
    cp_async_wait_all();
    if (of_v && is_cleared(item_at(place), tile)) {
      bar_sync(BARRIER_FEEDERS + tid / FEEDERS, FEEDERS); /* all of it is there */
      clear_special(ring_unit(feed->ring), UNIT_BYTES, tid % FEEDERS, FEEDERS);
    }
    fence_proxy_async_shared();
    mbarrier_arrive(ring_full(feed->ring));
    ring_advance(&feed->ring);
  }
}

/* A tile of K, or this consumer's columns of a tile of V, by TMA, asked for by one lane of a warp that is here whole,
 * with operands that are the same in all lanes: only so are they in uniform registers, where the instruction wants
 * them. A full barrier counts FEEDERS arrivals, as a gathered unit brings them. */
template <bool OF_V>
EA_DEVICE void load_tile(const ea_hopper_launch &launch, const ea_tensor_map *map, int kv_head, int tile, int token,
                         int side, ea_ring ring) {
  kv_head = uniform(kv_head);
  token = uniform(token);
  ring.position = uniform(ring.position);
#pragma unroll 1
  for (int unit = 0; unit < (OF_V ? V_UNITS : K_UNITS); unit++) {
    const int slice = OF_V ? side * V_SLICES : slice_of(unit, side);
    PRODUCER_MARK_OF(launch, SLOT, OF_V, tile);
    mbarrier_wait(ring_empty(ring), parity_of(ring) ^ 1);
    PRODUCER_MARK_OF(launch, COPY, OF_V, tile);
    if (elect_one()) {
      mbarrier_arrive_expect_tx(ring_full(ring), UNIT_BYTES);
      mbarrier_arrive_many(ring_full(ring), FEEDERS - 1);
      tma_load_4d(ring_unit(ring), map, ring_full(ring), 0, token, slice, kv_head);
    }
    __syncwarp();
    if (OF_V) token += V_KEYS;
    ring_advance(&ring);
  }
}

/* Whether a tile's keys are all of the prefix, and staged or in slots that follow each other: then the first's row of
 * the pools' maps. All feeders of the ring come here. */
EA_DEVICE bool is_run(const ea_call &call, const ea_hopper_launch &launch, uint32_t place, int tid, int tile,
                      uint32_t slots, int32_t *first) {
  const ea_item *item = item_at(place);
  const int key0 = tile * TILE_N;
  const int32_t base = (int32_t)slots - slot_row(tid);
  const bool inside = key0 >= item->keys.first && key0 + TILE_N <= ea_min_i32(item->keys.end, item->view.prefix);
  if (launch.staged > 0) {
    *first = (int32_t)item->prefix_base + key0;
    return inside && *first + TILE_N <= launch.staged;
  }
  bool run = inside && __all_sync(0xffffffffu, base == (int32_t)uniform((uint32_t)base));
  if (run) { /* with the other warps, too */
    *first = (int32_t)ea_load_index(call.kv_indices, call.index_dtype, item->prefix_base + key0);
    run = base == *first;
  }
  return !bar_red_or(BARRIER_FEEDERS + tid / FEEDERS, FEEDERS, !run);
}

/* A tile of K, or this consumer's columns of a tile of V. */
EA_DEVICE void feed_tile(const ea_call &call, const ea_hopper_launch &launch, uint32_t place, int tid, int tile,
                         bool gathers, uint32_t slots, ea_feed *feed, bool of_v) {
  PRODUCER_MARK(launch, MEET, 0);
  int32_t first = (int32_t)item_at(place)->token0 + (tile * TILE_N - item_at(place)->view.prefix);
  const bool cleared = of_v && is_cleared(item_at(place), tile);
  const bool run = gathers && !cleared && launch.pool_boxes && is_run(call, launch, place, tid, tile, slots, &first);
  if (run || !(gathers || cleared)) {
    const int warp = uniform(tid / 32), head = item_at(place)->kv_head;
    if (warp % (FEEDERS / 32) == 0) {
      const int side = warp / (FEEDERS / 32);
      if (of_v) {
        load_tile<true>(launch, run ? &launch.v_pool : &launch.v, head, tile, first, side, feed->ring);
      } else {
        load_tile<false>(launch, run ? &launch.k_pool : &launch.k, head, tile, first, side, feed->ring);
      }
    }
    ring_skip(&feed->ring, of_v ? V_UNITS : K_UNITS);
    feed->streamed = true;
    return;
  }
  /* Nobody waits for a slot whose use before is still to come. */
  if (feed->streamed) bar_sync(BARRIER_FEEDERS + tid / FEEDERS, FEEDERS);
  feed->streamed = false;
  if (cleared || !rows_are_aligned(call, launch, place, tile)) {
    gather_any(call, launch, place, tid, tile, feed, of_v);
  } else if (of_v) {
    gather<true>(call, launch, place, tid, tile, slots, feed);
  } else {
    gather<false>(call, launch, place, tid, tile, slots, feed);
  }
}

EA_DEVICE void produce(const ea_call &call, const ea_hopper_launch &launch, ea_places at) {
  const int tid_once = read_tid();
  const auto tid = [&]() { return read_anew(tid_once); };
  const int side = uniform(tid_once / FEEDERS);
  ea_feed feed = {ring_of(at, launch, (uint32_t)side), false};
  uint32_t place = items_at(at);
  int32_t work = (int32_t)blockIdx.x; /* the next piece, where this thread is the one that looks for it */
#pragma unroll 1
  while (true) {
    PRODUCER_MARK(launch, FIND, 0);
    bool found = false;
    if (tid() == LEADER) {
      next_item(call, launch, at, place, &work);
      found = item_at(place)->rows != 0;
      take_next(launch, &work); /* asked for here, needed only an item later */
    }
    PRODUCER_MARK(launch, MEET, 0);
    if (!bar_red_or(BARRIER_PRODUCER, 128, found)) break;
    ITEM_MARKS(launch, item_at(place));
    if (!launch.scores.q_aligned) {
      copy_q(call, launch, at, place, tid());
    } else if (uniform(tid_once / 32) == LEADER / 32) {
      bring_q(call, launch, at, place);
    }
    const int first = uniform(item_at(place)->first_step), end = uniform(item_at(place)->end_step);
    const int gather_end = uniform(item_at(place)->gather_end);
    const auto slots_of = [&](int pair, int which) {
      return pair < gather_end ? tile_slots(call, place, tid(), pair * EA_WIDE_PAIR + which) : 0u;
    };
    /* Slots of the own tiles of this pair (for V) and of the next (for K), and of the other tile of this pair. */
    uint32_t own[2] = {0, slots_of(first, side)};
    uint32_t other = 0;
#pragma unroll 1
    for (int pair = first - 1; pair < end; pair++) {
      const uint32_t own_ahead = slots_of(pair + 2, side), other_ahead = LATENT ? 0 : slots_of(pair + 1, 1 - side);
#pragma unroll 1
      for (int part = 0; part < (LATENT ? 1 : 3); part++) { /* own K of the next pair, own V, other V */
        if (part == 0 ? pair + 1 == end : pair < first) continue;
        const int of = pair + (part == 0), tile = of * EA_WIDE_PAIR + (part == 2 ? 1 - side : side);
        const uint32_t slots = part == 0 ? own[1] : part == 1 ? own[0] : other;
        feed_tile(call, launch, place, tid(), tile, of < gather_end, slots, &feed, part != 0);
      }
      own[0] = own[1];
      own[1] = own_ahead;
      other = other_ahead;
    }
    place = place_after(at, place);
  }
  if (tid() == LEADER) mbarrier_arrive_many(q_full(at), 128); /* nothing is left to do, for the consumers */
  PRODUCER_MARK(launch, END, 0);
}

/* ---- a consumer ------------------------------------------------------------------------------ */

/* The first of a thread's two rows; the other is 8 further. Both consumers have the same rows. */
EA_DEVICE int first_row(int tid) {
  return tid % 128 / 32 * 16 + tid % 32 / 4;
}

/* -Inf where a key is hidden. key0: this thread's first key; its others are the next one, and every 8 on. */
EA_DEVICE void apply_mask(float s[TILE_N / 2], const ea_hopper_launch &launch, const ea_item *item, int key0, int row) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int i = row_query(launch, item, row + h * 8);
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

/* Two numbers of a thread's rows for the other consumer, and what that has for them. */
EA_DEVICE void put_rows(ea_places at, uint32_t side, uint32_t round, int tid, const float x[2]) {
  if (tid % 4 != 0) return;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    st_shared_f32(maxima_at(at, side, round) + (uint32_t)(first_row(tid) + h * 8) * 4, x[h]);
  }
}
EA_DEVICE void get_rows(ea_places at, uint32_t side, uint32_t round, int tid, float x[2]) {
#pragma unroll
  for (int h = 0; h < 2; h++) x[h] = ld_shared_f32(maxima_at(at, side, round) + (uint32_t)(first_row(tid) + h * 8) * 4);
}
/* told: the barriers that say so. */
EA_DEVICE void tell(ea_places at, uint32_t told, uint32_t side, uint32_t round, int tid, const float x[2]) {
  put_rows(at, side, round, tid, x);
  mbarrier_arrive(told + side * 8);
}
EA_DEVICE void hear(ea_places at, uint32_t told, uint32_t parity, uint32_t side, uint32_t round, int tid, float x[2]) {
  mbarrier_wait(told + side * 8, parity);
  get_rows(at, side, round, tid, x);
}

/* Rows' sums of both consumers' tiles, the same in both. */
EA_DEVICE void add_sums(ea_places at, uint32_t told, uint32_t parity, uint32_t side, uint32_t round, int tid,
                        float sum[2]) {
  float others[2];
#pragma unroll
  for (int h = 0; h < 2; h++) sum[h] = quad_sum(sum[h]);
  tell(at, told, side, round, tid, sum);
  hear(at, told, parity, 1 - side, round, tid, others);
#pragma unroll
  for (int h = 0; h < 2; h++) sum[h] += others[h];
  bar_sync(BARRIER_CONSUMERS, 256); /* both have heard before either tells again */
}

/* A row's (h) scores become probabilities, in f32; factor: what the output so far is to be multiplied by. The
 * reference of the exponentials follows a row's maximum (over both tiles) only when that has grown by 2^slack:
 * any reference near it gives the same quotient. cached: keys from this thread's first that are of the prefix. */
template <bool WITH_V_SCALE>
EA_DEVICE void row_exponentials(float (&s)[TILE_N / 2], int h, ea_softmax *state, const float maxima[2], float factor[2],
                                const ea_hopper_launch &launch, int cached) {
  const float scale = launch.scores.scale_log2;
  const bool grown = (maxima[h] - state->reference[h]) * scale > launch.scores.rescale_slack_log2;
  const float reference = grown ? maxima[h] : state->reference[h];
  const float shift = shift_scores<TILE_N / 2>(s + h * 2, reference, scale);
  factor[h] = grown ? reference_factor(state->reference[h], reference, scale) : 1.0f;
  state->reference[h] = reference;
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

EA_DEVICE void round_probabilities(uint32_t p[TILE_N / 4], const float s[TILE_N / 2]) {
#pragma unroll
  for (int w = 0; w < TILE_N / 4; w++) p[w] = cvt_x2(s[w * 2], s[w * 2 + 1]);
}

/* P for the other consumer: 64 x 64 under the 128-byte swizzle. */
EA_DEVICE void give_probabilities(ea_places at, uint32_t side, uint32_t buffer, int tid, const uint32_t p[TILE_N / 4]) {
  const int row = tid % 128 / 32 * 16 + tid % 16;
  const uint32_t to = buffer + (uint32_t)row * 128;
#pragma unroll
  for (int step = 0; step < TILE_N / 16; step++) {
    stmatrix_x4(to + (uint32_t)((step * 2 + tid % 32 / 16) ^ (row & 7)) * 16, p + step * 4);
  }
  fence_proxy_async_shared();
  bar_arrive(BARRIER_P + (int)side, 256);
}

EA_DEVICE void rescale_where_grown(float (&o)[COLUMNS / 2], const float factor[2]) {
  if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) rescale(o, factor);
}

/* Values apart from the keys. */
EA_DEVICE void consume(const ea_call &call, const ea_hopper_launch &launch, ea_places at) {
  /* What follows from the thread's number is worked out anew at each use: the products need every register. */
  const int tid_once = read_tid();
  const auto tid = [&]() { return read_anew(tid_once); };
  const uint32_t side_once = uniform((uint32_t)tid_once / 128 - 1);
  const auto side = [&]() { return side_once; };
  const bool special = launch.scores.transformed || launch.scores.k_scale != 1.0f;
  float o[COLUMNS / 2], s[TILE_N / 2];
  uint32_t p[TILE_N / 4];
  ea_ring ring = ring_of(at, launch, side()), tail = ring; /* the next unit, the oldest that is not released */
  uint32_t told = 0, given = 0;                            /* parities of the rounds of maxima and of P */
  MARKS(launch, side_once);

  /* The next unit is there; it has gone to the products. RELEASE_LAG units are given and not released, but at the
   * beginning of an item. */
  const auto begin = [&](bool gathered) {
    wait_full(ring_full(ring), parity_of(ring), gathered);
    return ring_unit(ring);
  };
  const auto release_oldest = [&]() {
    release(ring_empty(tail));
    ring_advance(&tail);
  };
  const auto end = [&](bool releases) {
    wgmma_commit_group();
    ring_advance(&ring);
    if (releases) {
      wgmma_wait_group(RELEASE_LAG);
      release_oldest();
    }
  };
  const auto issue_scores = [&](bool first, bool gathered) {
#pragma unroll
    for (int unit = 0; unit < K_UNITS; unit++) {
      const uint64_t k = wgmma_descriptor(begin(gathered), 0);
      const uint64_t q = wgmma_descriptor(at.q, 0);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < UNIT_SLICES * 4; step++) {
        const uint32_t further = (uint32_t)(step / 4 * SLICE_BYTES + step % 4 * 32);
        EA_PRODUCT(TILE_N, ss, EA_TYPE)
        (s, wgmma_advance(q, (uint32_t)(unit * UNIT_SLICES * SLICE_BYTES) + further), wgmma_advance(k, further),
         unit + step > 0);
      }
      end(!first || unit >= RELEASE_LAG);
    }
  };
  /* O += P V of a unit. */
  const auto issue_own = [&](int unit, bool gathered) {
    const uint32_t at_v = begin(gathered);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < UNIT_SLICES; step++) {
      EA_PRODUCT(COLUMNS, rs, EA_TYPE)
      (o, p + (unit * UNIT_SLICES + step) * 4,
       wgmma_advance(wgmma_descriptor(at_v, V_SLICE_BYTES), (uint32_t)step * 2048), 1);
    }
    end(true);
  };
  const auto issue_other = [&](int unit, bool gathered, uint32_t at_p) {
    const uint32_t at_v = begin(gathered);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < UNIT_SLICES; step++) {
      EA_PRODUCT(COLUMNS, st, EA_TYPE)
      (o, wgmma_advance(wgmma_descriptor(at_p, 0), (uint32_t)(unit * UNIT_SLICES + step) * 32),
       wgmma_advance(wgmma_descriptor(at_v, V_SLICE_BYTES), (uint32_t)step * 2048), 1);
    }
    end(true);
  };

#pragma unroll 1
  for (uint32_t place = items_at(at), q_parity = 0;; place = place_after(at, place), q_parity ^= 1) {
    MARK(WAIT_Q, 0);
    mbarrier_wait(q_full(at), q_parity);
    if (item_at(place)->rows == 0) break;
    MARK(BEGIN, 0);
    ea_softmax state = {{MINUS_INF, MINUS_INF}, {0.0f, 0.0f}};
#pragma unroll
    for (int e = 0; e < COLUMNS / 2; e++) o[e] = 0.0f;
    const int first = uniform(item_at(place)->first_step), end_pair = uniform(item_at(place)->end_step);
    const int gather_end = uniform(item_at(place)->gather_end);
    const auto own_tile = [&](int pair) { return pair * EA_WIDE_PAIR + (int)side(); };
    [[maybe_unused]] const auto other_tile = [&](int pair) {
      return pair * EA_WIDE_PAIR + 1 - (int)side();
    }; /* marks */

    /* Scores of the pair: masked, their maxima told. */
    const auto begin_softmax = [&](int pair, float maxima[2]) {
      MARK(SOFTMAX, own_tile(pair));
      const ea_item *item = item_at(place);
      const int j0 = own_tile(pair) * TILE_N, key0 = j0 + tid() % 4 * 2, row = first_row(tid());
      if (special) transform(s, call, launch, item, key0, row);
      if (is_masked(item, own_tile(pair))) apply_mask(s, launch, item, key0, row);
#pragma unroll
      for (int h = 0; h < 2; h++) maxima[h] = tile_maximum(s, h);
      tell(at, told_at(at), side(), told, tid(), maxima);
    };
    const auto hear_maxima = [&](float maxima[2]) {
      float others[2];
      MARK(WAIT_MAX, 0);
      hear(at, told_at(at), told, 1 - side(), told, tid(), others);
      told ^= 1;
#pragma unroll
      for (int h = 0; h < 2; h++) maxima[h] = fmaxf(maxima[h], others[h]);
    };
    const auto exponentiate = [&](int pair, int h, const float maxima[2], float factor[2]) {
      MARK(SOFTMAX, own_tile(pair));
      if (launch.scores.v_scale != 1.0f) {
        const int key0 = own_tile(pair) * TILE_N + tid() % 4 * 2;
        row_exponentials<true>(s, h, &state, maxima, factor, launch, item_at(place)->view.prefix - key0);
      } else {
        row_exponentials<false>(s, h, &state, maxima, factor, launch, 0);
      }
      wgmma_settle(s, TILE_N / 2); /* now, not later */
    };
    const auto end_softmax = [&]() {
      round_probabilities(p, s);
      give_probabilities(at, side(), p_at(at, side(), given), tid(), p);
    };

    if (first < end_pair) {
      float factor[2], maxima[2];
      MARK(ISSUE_S, own_tile(first));
      issue_scores(true, first < gather_end);
      MARK(WAIT_S, own_tile(first));
      wgmma_wait_group(0);
      wgmma_settle(s, TILE_N / 2);
      begin_softmax(first, maxima);
      hear_maxima(maxima);
#pragma unroll
      for (int h = 0; h < 2; h++) exponentiate(first, h, maxima, factor);
      end_softmax();
#pragma unroll 1
      for (int pair = first; pair + 1 < end_pair; pair++) {
        const bool gathered = pair < gather_end;
        MARK(ISSUE_S, own_tile(pair + 1));
        issue_scores(false, pair + 1 < gather_end);
        const uint32_t round = given;
        given ^= 1;
        MARK(ISSUE_O, own_tile(pair));
        rescale_where_grown(o, factor);
        wgmma_settle(o, COLUMNS / 2);
#pragma unroll
        for (int unit = 0; unit < V_UNITS; unit++) issue_own(unit, gathered);
        wgmma_settle(s, TILE_N / 2);
        MARK(WAIT_P, other_tile(pair));
        bar_sync(BARRIER_P + 1 - (int)side(), 256); /* before the maxima: so no round of them overtakes another */
        begin_softmax(pair + 1, maxima);
#pragma unroll
        for (int h = 0; h < 2; h++) {
          MARK(ISSUE_O, other_tile(pair));
#pragma unroll
          for (int unit = h * V_UNITS / 2; unit < (h + 1) * V_UNITS / 2; unit++) {
            issue_other(unit, gathered, p_at(at, 1 - side(), round));
          }
          if (h == 0) hear_maxima(maxima);
          exponentiate(pair + 1, h, maxima, factor);
        }
        end_softmax();
        MARK(WAIT_O, other_tile(pair));
        wgmma_wait_group(0);
        wgmma_settle(o, COLUMNS / 2);
      }
      release(q_empty(at));
      const int pair = end_pair - 1;
      const bool gathered = pair < gather_end;
      const uint32_t round = given;
      given ^= 1;
      MARK(ISSUE_O, own_tile(pair));
      rescale_where_grown(o, factor);
      wgmma_settle(o, COLUMNS / 2);
#pragma unroll
      for (int unit = 0; unit < V_UNITS; unit++) issue_own(unit, gathered);
      MARK(WAIT_P, other_tile(pair));
      bar_sync(BARRIER_P + 1 - (int)side(), 256);
      MARK(ISSUE_O, other_tile(pair));
#pragma unroll
      for (int unit = 0; unit < V_UNITS; unit++) {
        issue_other(unit, gathered, p_at(at, 1 - side(), round));
      }
      MARK(WAIT_O, other_tile(pair));
      wgmma_wait_group(0);
#pragma unroll
      for (int n = 0; n < RELEASE_LAG; n++) release_oldest();
      wgmma_settle(o, COLUMNS / 2);
      add_sums(at, told_at(at), told, side(), told, tid(), state.row_sum);
      told ^= 1;
    } else {
      release(q_empty(at));
    }
    MARK(FINISH, 0);
    end_item<COLUMNS>(o, state.reference, state.row_sum, call, launch, at, place, first_row(tid()), tid() % 32,
                      (int)side() * COLUMNS);
  }
  MARKS_END(launch);
}

/* Values in the keys. A tile of each consumer's is in shared memory, whose slices the next one's follow as they are
 * released; the consumers take turns with their tiles, one's loads behind the other's products. Consumer, its tile t:
 *
 *   issue S = Q K(t) for the first slices, which are there first
 *   P and reference of the other's tile before: rescale O; issue O += P(other) V(other), P from shared memory
 *   issue S for the other slices
 *   the other tile's slices that are values of this consumer's columns, and the place of its P, are released
 *   S done: mask; exp2 with the reference there is, sum; P in 16 bits, to the last slice's place for the other
 *   O += P V(t), P from registers; the slices that are values of this consumer's columns are released
 *
 * so that one's softmax runs beside the other's first scores. The second consumer's tile before is the first one's
 * tile of the same pair, so references follow the tiles' order. */
EA_DEVICE void consume_latent(const ea_call &call, const ea_hopper_launch &launch, ea_places at) {
  const int tid_once = read_tid();
  const auto tid = [&]() { return read_anew(tid_once); };
  const uint32_t side = uniform((uint32_t)tid_once / 128 - 1);
  const bool special = launch.scores.transformed || launch.scores.k_scale != 1.0f;
  const uint32_t own = ring_at(at, side, SLICES), other = ring_at(at, 1 - side, SLICES);
  float o[COLUMNS / 2], s[TILE_N / 2];
  uint32_t p[TILE_N / 4];
  uint32_t own_parity = 0, other_parity = 0; /* of the tiles' rounds */
  uint32_t summed = 0;                       /* parity of the items' rounds */
  MARKS(launch, side);

  const auto full = [&](uint32_t of, int slot) { return slots_at(at, of) + (uint32_t)slot * 16; };
  const auto empty = [&](uint32_t of, int slot) { return full(of, slot) + 8; };
  /* Of a gathered tile all slices of a part are waited for before the first product: one fence is enough. */
  const auto issue_scores = [&](int from, int to, bool gathered) {
    if (gathered) {
#pragma unroll
      for (int unit = from; unit < to; unit++) mbarrier_wait(full(side, unit), own_parity);
      fence_proxy_async_shared();
    }
#pragma unroll
    for (int unit = from; unit < to; unit++) {
      /* The slices' order differs between the consumers, by addresses alone. */
      const uint32_t slice = unit < 2 * V_SLICES ? ((uint32_t)unit + side * V_SLICES) % (2 * V_SLICES) : (uint32_t)unit;
      mbarrier_wait(full(side, unit), own_parity);
      if (unit == from) wgmma_fence();
      const uint64_t k = wgmma_descriptor(own + (uint32_t)unit * UNIT_BYTES, 0);
      const uint64_t q = wgmma_descriptor((uint32_t)read_anew((int)at.q) + slice * SLICE_BYTES, 0);
#pragma unroll
      for (int step = 0; step < 4; step++) {
        EA_PRODUCT(TILE_N, ss, EA_TYPE)
        (s, wgmma_advance(q, (uint32_t)step * 32), wgmma_advance(k, (uint32_t)step * 32), unit + step > 0);
      }
    }
    wgmma_commit_group();
  };
  /* O += P V of a tile whose slices for this consumer's columns begin at slot `first` of a ring, of which it releases
   * all but the last product's. */
  const auto issue_output = [&](auto product, uint32_t of, uint32_t units, int first, bool cleared) {
#pragma unroll
    for (int group = 0; group < OUTPUT_GROUPS; group++) {
      const uint32_t v = units + (uint32_t)(first + group * LATENT_SLICES) * UNIT_BYTES;
      if (cleared) { /* the scores have seen them */
        clear_special(v, LATENT_SLICES * UNIT_BYTES, tid() % 128, 128);
        fence_proxy_async_shared();
        bar_sync(BARRIER_CONSUMER + (int)side, 128);
      }
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < TILE_N / 16; step++) {
        product(o + group * (LATENT_N / 2), step,
                wgmma_advance(wgmma_descriptor(v, UNIT_BYTES), (uint32_t)step * 2048));
      }
      wgmma_commit_group();
      if (group > 0) {
        wgmma_wait_group(1);
#pragma unroll
        for (int n = 0; n < LATENT_SLICES; n++) release(empty(of, first + (group - 1) * LATENT_SLICES + n));
      }
    }
  };
  const auto end_output = [&](uint32_t of, int first) {
    wgmma_settle(o, COLUMNS / 2);
#pragma unroll
    for (int n = 0; n < LATENT_SLICES; n++) release(empty(of, first + V_SLICES - LATENT_SLICES + n));
  };
  const auto own_product = [&](float *d, int step, uint64_t v) {
    EA_PRODUCT(LATENT_N, rs, EA_TYPE)(d, p + step * 4, v, 1);
  };
  const auto other_product = [&](float *d, int step, uint64_t v) {
    EA_PRODUCT(LATENT_N, st, EA_TYPE)
    (d, wgmma_advance(wgmma_descriptor(other + P_SLOT * UNIT_BYTES, 0), (uint32_t)step * 32), v, 1);
  };

#pragma unroll 1
  for (uint32_t place = items_at(at), q_parity = 0;; place = place_after(at, place), q_parity ^= 1) {
    MARK(WAIT_Q, 0);
    mbarrier_wait(q_full(at), q_parity);
    if (uniform(item_at(place)->rows) == 0) break;
    MARK(BEGIN, 0);
    ea_softmax state = {{MINUS_INF, MINUS_INF}, {0.0f, 0.0f}};
#pragma unroll
    for (int e = 0; e < COLUMNS / 2; e++) o[e] = 0.0f;
    const int first = uniform(item_at(place)->first_step), end_pair = uniform(item_at(place)->end_step);
    const int gather_end = uniform(item_at(place)->gather_end);

    /* The other's tile, which is complete but for the release of its last values. */
    const auto take_other = [&](int tile) {
      float reference[2], factor[2];
      MARK(WAIT_V, tile);
#pragma unroll
      for (int n = 0; n < V_SLICES; n++) mbarrier_wait(full(1 - side, V_SLICES + n), other_parity);
      MARK(WAIT_P, tile);
      bar_sync(BARRIER_P + 1 - (int)side, 256);
      if (tile / EA_WIDE_PAIR < gather_end) fence_proxy_async_shared();
      MARK(ISSUE_O, tile);
      hear(at, told_at(at), other_parity, 1 - side, other_parity, tid(), reference);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float scale = launch.scores.scale_log2;
        const bool grown = reference[h] > state.reference[h];
        factor[h] = grown ? reference_factor(state.reference[h], reference[h], scale) : 1.0f;
        state.reference[h] = reference[h];
        state.row_sum[h] *= factor[h];
      }
      rescale_where_grown(o, factor);
      wgmma_settle(o, COLUMNS / 2);
      issue_output(other_product, 1 - side, other, V_SLICES, is_cleared(item_at(place), tile));
    };
    const auto release_other = [&]() {
      end_output(1 - side, V_SLICES);
      release(empty(1 - side, P_SLOT));
      other_parity ^= 1;
    };
    /* The own tile, from its scores on. */
    const auto end_own = [&](int pair, bool is_first) {
      const int tile = pair * EA_WIDE_PAIR + (int)side;
      float factor[2];
      bool moved; /* O is to be multiplied by factor */
      wgmma_settle(s, TILE_N / 2);
      MARK(SOFTMAX, tile);
      if (pair + 1 == end_pair) release(q_empty(at));
      const int key0 = tile * TILE_N + tid() % 4 * 2;
      if (special) transform(s, call, launch, item_at(place), key0, first_row(tid()));
      if (is_masked(item_at(place), tile)) apply_mask(s, launch, item_at(place), key0, first_row(tid()));
      const bool v_scaled = launch.scores.v_scale != 1.0f;
      if (v_scaled || is_first) {
        const bool must[2] = {true, true};
        float shift[2], sum[2];
        move_references(s, &state, must, shift, factor, launch);
        if (v_scaled) {
          exponentials<true>(p, s, shift, sum, launch, item_at(place)->view.prefix - key0);
        } else {
          exponentials<false>(p, s, shift, sum, launch, 0);
        }
        state.row_sum[0] += sum[0];
        state.row_sum[1] += sum[1];
        moved = !is_first;
      } else {
        moved = probabilities(p, s, &state, factor, launch);
      }
      tell(at, told_at(at), side, own_parity, tid(), state.reference);
      give_probabilities(at, side, own + P_SLOT * UNIT_BYTES, tid(), p);
      MARK(ISSUE_O, tile);
      if (moved) rescale(o, factor);
      wgmma_settle(o, COLUMNS / 2);
      issue_output(own_product, side, own, 0, is_cleared(item_at(place), tile));
      MARK(WAIT_O, tile);
      wgmma_wait_group(0);
      end_output(side, 0);
      own_parity ^= 1;
    };

    if (first < end_pair) {
      if (side == 0) { /* there is no tile before */
        MARK(ISSUE_S, first * EA_WIDE_PAIR);
        issue_scores(0, K_UNITS, first < gather_end);
        MARK(WAIT_S, first * EA_WIDE_PAIR);
        wgmma_wait_group(0);
        end_own(first, true);
      }
#pragma unroll 1
      for (int pair = first + 1 - (int)side; pair < end_pair; pair++) {
        const int before = pair * EA_WIDE_PAIR - 1 + (int)side;
        MARK(ISSUE_S, before + 1);
        issue_scores(0, EARLY_UNITS, pair < gather_end);
        take_other(before);
        MARK(ISSUE_S, before + 1);
        issue_scores(EARLY_UNITS, K_UNITS, pair < gather_end);
        MARK(WAIT_O, before);
        wgmma_wait_group(1);
        release_other();
        MARK(WAIT_S, before + 1);
        wgmma_wait_group(0);
        end_own(pair, false);
      }
      if (side == 0) { /* and one more of the other's */
        const int before = end_pair * EA_WIDE_PAIR - 1;
        take_other(before);
        MARK(WAIT_O, before);
        wgmma_wait_group(0);
        release_other();
      }
      /* Where no reference is that may still be wanted. */
      add_sums(at, told_sums_at(at), summed, side, own_parity, tid(), state.row_sum);
      summed ^= 1;
    } else {
      release(q_empty(at));
    }
    MARK(FINISH, 0);
    end_item<COLUMNS>(o, state.reference, state.row_sum, call, launch, at, place, first_row(tid()), tid() % 32,
                      (int)side * COLUMNS);
  }
  MARKS_END(launch);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const __grid_constant__ ea_call call, const __grid_constant__ ea_hopper_launch launch) {
  extern __shared__ __align__(1024) char smem[];
  const ea_places at = {smem_address(smem)};
  if (threadIdx.x < 128) MARKS_OF_BLOCK(launch, 7); /* whose lanes 0 feed the first ring, lead, feed the second */
  if (threadIdx.x == 0) {
    if (launch.scores.q_aligned) tensor_map_prefetch(&launch.q);
    if (launch.kv_boxes) {
      tensor_map_prefetch(&launch.k);
      tensor_map_prefetch(&launch.v);
    }
    if (launch.pool_boxes) {
      tensor_map_prefetch(&launch.k_pool);
      tensor_map_prefetch(&launch.v_pool);
    }
    mbarrier_init(q_full(at), 128);
    mbarrier_init(q_empty(at), 8);
    for (uint32_t side = 0; side < 2; side++) {
      ea_ring ring = ring_of(at, launch, side);
      for (uint32_t slot = 0; slot < ring.slots; slot++) {
        mbarrier_init(ring_full(ring), FEEDERS);
        mbarrier_init(ring_empty(ring), 4);
        ring_advance(&ring);
      }
      mbarrier_init(told_at(at) + side * 8, 128);
      mbarrier_init(told_sums_at(at) + side * 8, 128);
    }
    for (uint32_t n = 0; n < EA_HOPPER_ITEMS; n++) mbarrier_init(items_done_at(at) + n * 8, 8);
    fence_mbarrier_init();
    ea_item *none = (ea_item *)__cvta_shared_to_generic(items_at(at) + LAST_PLACE); /* the one before the first */
    none->number = UINT32_MAX;
  }
  clear_spare_rows(call, launch, at);
  __syncthreads();
  if (threadIdx.x < 128) {
    setmaxnreg_dec(PRODUCER_REGISTERS);
    produce(call, launch, at);
  } else {
    setmaxnreg_inc(CONSUMER_REGISTERS);
    if constexpr (LATENT) {
      consume_latent(call, launch, at);
    } else {
      consume(call, launch, at);
    }
  }
}
