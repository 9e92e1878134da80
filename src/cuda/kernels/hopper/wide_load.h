/* How units of K and V come into the rings of the wide kernels (wide.h).
 *
 * Units of new tokens come by TMA, and those of a tile of the prefix whose slots follow each other. Those of another
 * tile that holds a prefix key are gathered with cp.async, slot by slot, and rows that are not there are zeros; so are
 * tiles of rows that TMA cannot read. 8-bit caches are widened on this way. Rows behind a sequence's end that TMA
 * brings along belong to somebody else: no query sees them, and what a NaN of theirs could do is taken care of like any
 * other hidden NaN's. */
#ifndef EA_CUDA_KERNELS_HOPPER_WIDE_LOAD_H
#define EA_CUDA_KERNELS_HOPPER_WIDE_LOAD_H

#include "cuda/kernels/hopper/nonfinite.h"
#include "cuda/kernels/hopper/wide.h"

/* Passes (load.h) of a unit of V. */
template <class Shape> constexpr int unit_passes = Shape::v_keys / pass_rows<Shape>;

/* A ring as the threads see it that fill it. */
typedef struct ea_fill {
  ea_unit_ring ring;
  bool by_tma; /* the last tile came by TMA, for which one warp waited: the others are ahead */
} ea_fill;

/* Which slice a unit of K begins with. Latent: first those that are values of this consumer's columns, which are
 * free again first. */
template <class Shape> EA_DEVICE int slice_of(int unit, int side) {
  if (!Shape::latent) return unit * Shape::unit_slices;
  return unit < 2 * Shape::v_slices ? (unit + side * Shape::v_slices) % (2 * Shape::v_slices) : unit;
}

EA_DEVICE void wait_empty(const ea_fill *fill) {
  mbarrier_wait(unit_empty(fill->ring), phase_of(fill->ring.ring) ^ 1);
}

/* Ends a gathered unit. Nobody stays until its copies are there: they arrive by themselves. */
EA_DEVICE void gathered(ea_fill *fill) {
  cp_async_mbarrier_arrive_noinc(unit_full(fill->ring));
  unit_advance(&fill->ring);
}

/* A tile of K, or this consumer's columns of a tile of V, by cp.async. WHOLE: all rows are there, with all columns. */
template <bool WHOLE, class Shape>
EA_DEVICE void copy_k(const ea_cta<Shape> &cta, const ea_lane_rows &rows, int tid, int tile, int dim, ea_fill *fill) {
  const int row0 = tid % Shape::gather_threads / 8;
  const uint32_t first = (uint32_t)(row0 * 128 + (tid % 8 ^ row0) * 16);
  const char *row[gather_passes<Shape>];
#pragma unroll
  for (int pass = 0; pass < gather_passes<Shape>; pass++) row[pass] = row_of_pass(rows, tid, pass);
#pragma unroll 1
  for (int unit = 0; unit < Shape::k_units; unit++) {
    PRODUCER_MARK(cta, SLOT_K, tile);
    wait_empty(fill);
    PRODUCER_MARK(cta, COPY_K, tile);
    const int slice0 = slice_of<Shape>(unit, tid / Shape::gather_threads);
    const uint32_t to = unit_address<Shape>(fill->ring) + first;
#pragma unroll
    for (int pass = 0; pass < gather_passes<Shape>; pass++) {
      const char *from = row[pass] + slice0 * EA_HOPPER_SLICE_BYTES;
      const bool there = WHOLE || is_there(rows, tid, pass);
#pragma unroll
      for (int n = 0; n < Shape::unit_slices; n++) {
        const bool wanted = WHOLE || (there && (slice0 + n) * EA_HOPPER_SLICE + tid % 8 * CHUNK < dim);
        cp_async_16(to + (uint32_t)(n * Shape::slice_bytes + pass * pass_rows<Shape> * 128),
                    from + n * EA_HOPPER_SLICE_BYTES, wanted ? 16 : 0);
      }
    }
    gathered(fill);
  }
}

template <bool WHOLE, class Shape>
EA_DEVICE void copy_v(const ea_cta<Shape> &cta, const ea_lane_rows &rows, int tid, int tile, int dim, ea_fill *fill) {
  const int row0 = tid % Shape::gather_threads / 8, column0 = tid / Shape::gather_threads * Shape::columns;
  const uint32_t first = (uint32_t)(row0 * 128 + (tid % 8 ^ row0) * 16);
#pragma unroll 1
  for (int unit = 0; unit < Shape::v_units; unit++) {
    PRODUCER_MARK(cta, SLOT_V, tile);
    wait_empty(fill);
    PRODUCER_MARK(cta, COPY_V, tile);
    const uint32_t to = unit_address<Shape>(fill->ring) + first;
#pragma unroll
    for (int i = 0; i < unit_passes<Shape>; i++) {
      const int pass = unit * unit_passes<Shape> + i;
      const char *from = row_of_pass(rows, tid, pass) + column0 * 2;
      const bool there = WHOLE || is_there(rows, tid, pass);
#pragma unroll
      for (int n = 0; n < Shape::v_slices; n++) {
        const bool wanted = WHOLE || (there && column0 + n * EA_HOPPER_SLICE + tid % 8 * CHUNK < dim);
        cp_async_16(to + (uint32_t)(n * Shape::v_slice_bytes + i * pass_rows<Shape> * 128),
                    from + n * EA_HOPPER_SLICE_BYTES, wanted ? 16 : 0);
      }
    }
    gathered(fill);
  }
}

template <bool OF_V, class Shape>
EA_DEVICE void gather_rows(const ea_cta<Shape> &cta, ea_work work, int tid, int tile, uint32_t slot, ea_fill *fill) {
  const int dim = OF_V ? cta.call.head_dim_v : cta.call.head_dim;
  const ea_lane_rows rows = lane_rows<OF_V>(cta, work, tid, tile, slot);
  const bool whole = all_there<Shape>(rows) && dim == (OF_V ? Shape::dim_v : Shape::slices * EA_HOPPER_SLICE);
  if (OF_V) {
    whole ? copy_v<true>(cta, rows, tid, tile, dim, fill) : copy_v<false>(cta, rows, tid, tile, dim, fill);
  } else {
    whole ? copy_k<true>(cta, rows, tid, tile, dim, fill) : copy_k<false>(cta, rows, tid, tile, dim, fill);
  }
}

/* A tile of either by plain loads and stores, for rows that are not aligned or have 8-bit elements, and for
 * values that are cleared. */
template <class Shape>
EA_DEVICE void load_rows_plain(const ea_cta<Shape> &cta, ea_work work, int tid, int tile, ea_fill *fill, bool of_v) {
  const int units = of_v ? Shape::v_units : Shape::k_units, keys = of_v ? Shape::v_keys : Shape::tile_n;
  const int chunks = Shape::unit_bytes / 16 / keys; /* of a row, in a unit */
#pragma unroll 1
  for (int unit = 0; unit < units; unit++) {
    PRODUCER_MARK_OF(cta, SLOT, of_v, tile);
    wait_empty(fill);
    PRODUCER_MARK_OF(cta, COPY, of_v, tile);
#pragma unroll 1
    for (int index = tid % Shape::gather_threads; index < Shape::unit_bytes / 16; index += Shape::gather_threads) {
      const int row = index / chunks, c = index % chunks;
      const int key = tile * Shape::tile_n + (of_v ? unit * Shape::v_keys : 0) + row;
      const int side = tid / Shape::gather_threads;
      const int chunk =
          c + (of_v ? side * (Shape::columns / CHUNK) : slice_of<Shape>(unit, side) * (EA_HOPPER_SLICE / CHUNK));
      const uint32_t to =
          unit_address<Shape>(fill->ring) + (uint32_t)(c / 8 * keys * 128 + row * 128 + ((c % 8) ^ (row & 7)) * 16);
      const char *source = key_row(cta, work, key, of_v);
      const int dim = of_v ? cta.call.head_dim_v : cta.call.head_dim;
      if (source == 0 || chunk * CHUNK >= dim) {
        st_shared_v4(to, make_uint4(0, 0, 0, 0));
      } else {
        const bool cached = key < work->view.prefix;
        load_row_chunk(to, source, chunk, dim,
                       cached ? cached_source(cta.call, cta.launch.scores) : fresh_source(cta.launch.scores));
      }
    }
    cp_async_wait_all();
    if (of_v && is_cleared<Shape>(work.get(), tile)) {
      bar_sync(BARRIER_GATHER + tid / Shape::gather_threads, Shape::gather_threads); /* all of it is there */
      clear_nonfinite(unit_address<Shape>(fill->ring), Shape::unit_bytes, tid % Shape::gather_threads,
                      Shape::gather_threads);
    }
    fence_proxy_async_shared();
    mbarrier_arrive(unit_full(fill->ring));
    unit_advance(&fill->ring);
  }
}

/* A tile of K, or this consumer's columns of a tile of V, by TMA issued by one lane of a warp that is here whole,
 * with operands that are the same in all lanes: only so are they in uniform registers, where the instruction wants
 * them. A full barrier counts gather_threads arrivals, as a gathered unit brings them. */
template <bool OF_V, class Shape>
EA_DEVICE void load_tile(const ea_cta<Shape> &cta, const ea_tensor_map *map, int kv_head, int tile, int token, int side,
                         ea_unit_ring ring) {
  kv_head = uniform(kv_head);
  token = uniform(token);
  ring.ring.position = uniform(ring.ring.position);
#pragma unroll 1
  for (int unit = 0; unit < (OF_V ? Shape::v_units : Shape::k_units); unit++) {
    const int slice = OF_V ? side * Shape::v_slices : slice_of<Shape>(unit, side);
    PRODUCER_MARK_OF(cta, SLOT, OF_V, tile);
    mbarrier_wait(unit_empty(ring), phase_of(ring.ring) ^ 1);
    PRODUCER_MARK_OF(cta, COPY, OF_V, tile);
    if (elect_one()) {
      mbarrier_arrive_expect_tx(unit_full(ring), Shape::unit_bytes);
      mbarrier_arrive_many(unit_full(ring), Shape::gather_threads - 1);
      tma_load_4d(unit_address<Shape>(ring), map, unit_full(ring), 0, token, slice, kv_head);
    }
    __syncwarp();
    if (OF_V) token += Shape::v_keys;
    unit_advance(&ring);
  }
}

/* Whether a tile's keys are all of the prefix, and staged or in slots that follow each other: then the first's row of
 * the pools' maps. All threads that fill the ring come here. */
template <class Shape>
EA_DEVICE bool is_run(const ea_cta<Shape> &cta, ea_work work, int tid, int tile, uint32_t slots, int32_t *first) {
  const ea_work_tile *work_tile = work.get();
  const int key0 = tile * Shape::tile_n;
  const int32_t base = (int32_t)slots - slot_row<Shape>(tid);
  const bool inside =
      key0 >= work_tile->keys.first && key0 + Shape::tile_n <= ea_min_i32(work_tile->keys.end, work_tile->view.prefix);
  if (cta.launch.staged > 0) {
    *first = (int32_t)work_tile->prefix_base + key0;
    return inside && *first + Shape::tile_n <= cta.launch.staged;
  }
  bool run = inside && __all_sync(0xffffffffu, base == (int32_t)uniform((uint32_t)base));
  if (run) { /* with the other warps, too */
    *first = (int32_t)ea_load_index(cta.call.kv_indices, cta.call.index_dtype, work_tile->prefix_base + key0);
    run = base == *first;
  }
  return !bar_red_or(BARRIER_GATHER + tid / Shape::gather_threads, Shape::gather_threads, !run);
}

/* A tile of K, or this consumer's columns of a tile of V. */
template <class Shape>
EA_DEVICE void fill_tile(const ea_cta<Shape> &cta, ea_work work, int tid, int tile, bool gathers, uint32_t slots,
                         ea_fill *fill, bool of_v) {
  PRODUCER_MARK(cta, MEET, 0);
  int32_t first = (int32_t)work->token0 + (tile * Shape::tile_n - work->view.prefix);
  const bool cleared = of_v && is_cleared<Shape>(work.get(), tile);
  const bool run = gathers && !cleared && cta.launch.pool_boxes && is_run(cta, work, tid, tile, slots, &first);
  if (run || !(gathers || cleared)) {
    const int warp = uniform(tid / 32), head = work->kv_head;
    if (warp % (Shape::gather_threads / 32) == 0) {
      const int side = warp / (Shape::gather_threads / 32);
      if (of_v) {
        load_tile<true>(cta, run ? &cta.launch.v_pool : &cta.launch.v, head, tile, first, side, fill->ring);
      } else {
        load_tile<false>(cta, run ? &cta.launch.k_pool : &cta.launch.k, head, tile, first, side, fill->ring);
      }
    }
    ring_skip_few(&fill->ring.ring, of_v ? Shape::v_units : Shape::k_units, fill->ring.stages);
    fill->by_tma = true;
    return;
  }
  /* Nobody waits for a stage whose use before is still to come. */
  if (fill->by_tma) bar_sync(BARRIER_GATHER + tid / Shape::gather_threads, Shape::gather_threads);
  fill->by_tma = false;
  if (cleared || !rows_are_aligned(cta, work, tile)) {
    load_rows_plain(cta, work, tid, tile, fill, of_v);
  } else if (of_v) {
    gather_rows<true>(cta, work, tid, tile, slots, fill);
  } else {
    gather_rows<false>(cta, work, tid, tile, slots, fill);
  }
}

/* ---- a work tile's beginning ------------------------------------------------------------------------ */

/* The producer's thread that schedules and loads Q: one that fills no ring by TMA. It has waited for the end of Q's
 * last use but one, so a work tile's place is free when it comes to it again. */
constexpr int scheduler_thread = 32;

/* Schedules a work tile and loads its Q, by all threads; false: there is none left. index: the next work tile's, where
 * this thread is the one that looks for it. */
template <class Shape> EA_DEVICE bool begin_work(const ea_cta<Shape> &cta, ea_work work, int tid_once, int32_t *index) {
  const auto tid = [&]() { return read_anew(tid_once); };
  PRODUCER_MARK(cta, FIND, 0);
  bool found = false;
  if (tid() == scheduler_thread) {
    schedule_next(cta, work, index);
    found = work->rows != 0;
    replace_used_index(cta.launch, index); /* fetched here, needed only a work tile later */
  }
  PRODUCER_MARK(cta, MEET, 0);
  if (!bar_red_or(BARRIER_PRODUCER, 128, found)) return false;
  WORK_MARKS(cta, work);
  if (!cta.launch.scores.q_aligned) {
    load_q_by_threads(cta, work, tid());
  } else if (uniform(tid_once / 32) == scheduler_thread / 32) {
    load_q(cta, work);
  }
  return true;
}

/* Nothing is left to do, for the consumers. */
template <class Shape> EA_DEVICE void end_work(const ea_cta<Shape> &cta, int tid) {
  if (tid == scheduler_thread) mbarrier_arrive_many(q_full(cta.smem), 128);
  PRODUCER_MARK(cta, END, 0);
}

/* ---- the producer ---------------------------------------------------------------------------------- */

/* Fills both rings, each by half of the threads, in the order in which its consumer reads it: of a pair K of its own
 * tile and, where values are apart from the keys, its columns of V of its own tile and of the other one. K is a pair
 * ahead. */
template <class Shape> EA_DEVICE void produce(const ea_cta<Shape> &cta) {
  const int tid_once = read_tid();
  const auto tid = [&]() { return read_anew(tid_once); };
  const int side = uniform(tid_once / Shape::gather_threads);
  ea_fill fill = {unit_ring(cta, (uint32_t)side), false};
  ea_work work = first_work(cta);
  int32_t index = (int32_t)blockIdx.x;
#pragma unroll 1
  for (; begin_work(cta, work, tid_once, &index); work = work_after(cta, work)) {
    const int first = uniform(work->first_step), end = uniform(work->end_step);
    const int gather_end = uniform(work->gather_end);
    const auto slots_of = [&](int pair, int which) {
      return pair < gather_end ? tile_slots(cta, work, tid(), pair * EA_WIDE_PAIR + which) : 0u;
    };
    /* Slots of the own tiles of this pair (for V) and of the next (for K), and of the other tile of this pair. */
    uint32_t own[2] = {0, slots_of(first, side)};
    uint32_t other = 0;
#pragma unroll 1
    for (int pair = first - 1; pair < end; pair++) {
      const uint32_t own_ahead = slots_of(pair + 2, side),
                     other_ahead = Shape::latent ? 0 : slots_of(pair + 1, 1 - side);
#pragma unroll 1
      for (int part = 0; part < (Shape::latent ? 1 : 3); part++) { /* own K of the next pair, own V, other V */
        if (part == 0 ? pair + 1 == end : pair < first) continue;
        const int of = pair + (part == 0), tile = of * EA_WIDE_PAIR + (part == 2 ? 1 - side : side);
        const uint32_t slots = part == 0 ? own[1] : part == 1 ? own[0] : other;
        fill_tile(cta, work, tid(), tile, of < gather_end, slots, &fill, part != 0);
      }
      own[0] = own[1];
      own[1] = own_ahead;
      other = other_ahead;
    }
  }
  end_work(cta, tid());
}

/* A block's threads from beginning to end; CONSUME: the kernel's. */
template <class Shape, void (*CONSUME)(const ea_cta<Shape> &)> EA_DEVICE void run_block(const ea_cta<Shape> &cta) {
  if (threadIdx.x < 128) MARKS_OF_BLOCK(cta, 7); /* whose lanes 0 fill the first ring, schedule, fill the second */
  if (threadIdx.x == 0) init_block(cta);
  clear_spare_rows(cta);
  __syncthreads();
  if (threadIdx.x < 128) {
    setmaxnreg_dec(Shape::producer_registers);
    produce(cta);
  } else {
    setmaxnreg_inc(Shape::consumer_registers);
    CONSUME(cta);
  }
}

#endif
