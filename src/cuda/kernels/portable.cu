/* The portable kernel: extend attention on sm_80 and later, every shape and feature.
 *
 * Compiled once for each shape of plan/portable.h and each of bf16 and f16:
 * -DEA_SHAPE=d128 -DEA_TYPE_BF16 gives the entry portable_d128_bf16.
 *
 * A block owns M query rows of one sequence and K/V head (rows are tokens times the heads
 * of the group, so these share each key that is loaded) and walks the key tiles that plan/
 * walk.h gives, prefix and new tokens alike. Schedule of tile t at depth S, every warp alike:
 *
 *   ask memory for the slot numbers of tile t+S
 *   wait for tile t's full barrier                  (the copies of all threads are done)
 *   scores = Q K^T
 *   wait for tile t-1's empty barrier               (all warps are done with it)
 *   start copying tile t+S-1 into its slot          (cp.async; addresses found earlier)
 *   mask only where the walk says so; running maximum, exp2
 *   [QN > 1: maxima and probabilities cross among the warps of a group, two named barriers]
 *   output = output * rescale + P V
 *   write the addresses of tile t+S where the copies will look for them
 *   arrive at tile t's empty barrier
 *
 * So warps may drift apart by part of a tile, and one's softmax runs beside another's products.
 * S is a run-time number and changes no arithmetic: results are bit for bit the same at every
 * depth. At S = 1 a tile's copies start when the last warp has left the tile before. */
#include <stdint.h>

#include "cuda/kernels/parts.h"
#include "cuda/kernels/ptx.h"
#include "plan/portable.h"
#include "problem/call.h"

#define EA_SHAPE_CONSTANT(what) EA_PASTE(EA_PORTABLE_, EA_SHAPE, what)

#define DIM EA_SHAPE_CONSTANT(_DIM)
#define DIM_V EA_SHAPE_CONSTANT(_DIM_V)
#define TILE_M EA_SHAPE_CONSTANT(_M)
#define TILE_N EA_SHAPE_CONSTANT(_N)
#define QK_WARPS_M EA_SHAPE_CONSTANT(_QM)
#define QK_WARPS_N EA_SHAPE_CONSTANT(_QN)
#define PV_WARPS_M EA_SHAPE_CONSTANT(_PM)
#define PV_WARPS_N EA_SHAPE_CONSTANT(_PN)
#define MIN_BLOCKS EA_SHAPE_CONSTANT(_BLOCKS)
#define THREADS (QK_WARPS_M * QK_WARPS_N * 32)

#ifdef EA_TYPE_BF16
#define KERNEL EA_PASTE(portable_, EA_SHAPE, _bf16)
#define mma_m16n8k16 mma_m16n8k16_bf16
#define mma_m16n8k16_zero mma_m16n8k16_bf16_zero
#else
#define KERNEL EA_PASTE(portable_, EA_SHAPE, _f16)
#define mma_m16n8k16 mma_m16n8k16_f16
#define mma_m16n8k16_zero mma_m16n8k16_f16_zero
#endif

/* A warp's part of the scores: QK_ROWS x QK_KEYS in fragments of 16 x 8. */
#define QK_ROWS (TILE_M / QK_WARPS_M)
#define QK_KEYS (TILE_N / QK_WARPS_N)
#define QK_MI (QK_ROWS / 16)
#define QK_NI (QK_KEYS / 8)
/* A warp's part of the output: PV_ROWS x PV_COLS. */
#define PV_ROWS (TILE_M / PV_WARPS_M)
#define PV_COLS (DIM_V / PV_WARPS_N)
#define PV_MI (PV_ROWS / 16)
#define PV_NI (PV_COLS / 8)
#define CROSSING (QK_WARPS_N > 1)
/* The warps that share PV_ROWS rows: scores and probabilities cross among these only, so that
 * one group's softmax can run beside another's products. */
#define GROUP_WARPS PV_WARPS_N
/* Few enough to stay in registers over the whole walk. */
#define Q_IN_REGISTERS (DIM <= 64 && MIN_BLOCKS < 3)

#define STATE_IN_SHARED ea_portable_state_in_shared(shape_constants())

/* A tile is copied in passes, eight threads a row. */
#define PASS_ROWS (THREADS / 8)
#define PASSES (TILE_N / PASS_ROWS)

static_assert(TILE_M % (16 * QK_WARPS_M) == 0 && TILE_N % (8 * QK_WARPS_N) == 0, "whole score fragments");
static_assert(TILE_M % (16 * PV_WARPS_M) == 0 && DIM_V % (8 * PV_WARPS_N) == 0, "whole output fragments");
static_assert(QK_WARPS_M * QK_WARPS_N == PV_WARPS_M * PV_WARPS_N, "the same warps do both products");
static_assert(DIM % 64 == 0 && DIM_V % 64 == 0 && DIM >= DIM_V && TILE_N % 16 == 0, "the swizzle's and mma's units");
static_assert(!CROSSING || QK_WARPS_N * (PV_ROWS / QK_ROWS) == GROUP_WARPS, "a group's scores are its own");
static_assert(QK_NI % 2 == 0 || QK_NI == 1, "keys of a warp come by 16, or there are 8");
static_assert(PV_COLS % 16 == 0, "output columns come by 16");
static_assert(PASS_ROWS % 8 == 0 && TILE_N % PASS_ROWS == 0, "a tile is copied in whole passes");
static_assert(2 * TILE_N <= THREADS, "one thread finds the address of one row");

EA_DEVICE ea_portable_shape shape_constants(void) {
  const ea_portable_shape shape = {0,          DIM,        DIM_V,      TILE_M,     TILE_N,
                                   QK_WARPS_M, QK_WARPS_N, PV_WARPS_M, PV_WARPS_N, MIN_BLOCKS};
  return shape;
}

/* Tiles lie row by row, 16-byte chunk c of row r at chunk c XOR (r mod 8): eight rows of one
 * column fall into different banks, for any pitch that is a multiple of 128 bytes. */
EA_DEVICE uint32_t tile_address(uint32_t base, int row, int chunk, int pitch_elements) {
  return base + (uint32_t)(row * pitch_elements * 2) + (uint32_t)((chunk ^ (row & 7)) * 16);
}

/* tile_address for a lane that steps along its row by an even number of chunks: the step
 * enters by one XOR (within 128 bytes) and a constant. lane_address is that of chunk 0 or 1. */
EA_DEVICE uint32_t step_chunks(uint32_t lane_address, int even_chunks) {
  return (lane_address ^ (uint32_t)(even_chunks % 8 * 16)) + (uint32_t)(even_chunks / 8 * 128);
}

/* The same for P, whose rows of TILE_N elements may be shorter than 128 bytes. */
EA_DEVICE uint32_t p_address(uint32_t base, int row, int chunk) {
  const int chunks = TILE_N / CHUNK;
  const int rows_a_line = chunks >= 8 ? 1 : 8 / chunks;
  const int mask = chunks >= 8 ? 7 : chunks - 1;
  return base + (uint32_t)(row * TILE_N * 2) + (uint32_t)((chunk ^ ((row / rows_a_line) & mask)) * 16);
}

/* ---- loading -------------------------------------------------------------------------------- */

/* Behind the row addresses in a tile's table: how it can be copied, and how many of the rows come
 * from the pool. */
#define TABLE_SPEED (2 * TILE_N * 8)
#define TABLE_PREFIX_ROWS (TABLE_SPEED + 4)

/* How a tile can be copied. */
typedef enum {
  EA_LOAD_WHOLE, /* by cp.async, every row and every column there */
  EA_LOAD_FAST,  /* by cp.async, zeros where there is nothing */
  EA_LOAD_ANY    /* widening 8-bit elements or reading them one by one */
} ea_speed;

/* Copying: eight threads a row, 128 bytes of it at a time, so that a row's address is read once
 * and every step from there is a constant. */
EA_DEVICE void read_row_addresses(const char *source[PASSES], int tid, uint32_t rows) {
#pragma unroll
  for (int pass = 0; pass < PASSES; pass++) {
    source[pass] = (const char *)ld_shared_b64(rows + (tid / 8 + pass * PASS_ROWS) * 8) + tid % 8 * 16;
  }
}

/* A tile that is all there. */
template <int PITCH> EA_DEVICE void copy_whole(const char *const source[PASSES], int tid, uint32_t dst) {
  const uint32_t first = tile_address(dst, tid / 8, tid % 8, PITCH);
#pragma unroll
  for (int pass = 0; pass < PASSES; pass++) {
#pragma unroll
    for (int chunk = 0; chunk < PITCH / CHUNK; chunk += 8) {
      cp_async_16(first + pass * PASS_ROWS * PITCH * 2 + chunk * 16, source[pass] + chunk * 16, 16);
    }
  }
}

/* Any other. table: shared-memory address of what `answer` wrote for the tile; rows: of its TILE_N
 * row addresses (0: zeros). */
template <int PITCH>
EA_DEVICE void copy_partial(const ea_call &call, const ea_portable_launch &launch, int tid, uint32_t dst, uint32_t rows,
                            uint32_t table, int dim, ea_speed speed) {
  const int first_row = tid / 8, chunk0 = tid % 8;
  const uint32_t first = tile_address(dst, first_row, chunk0, PITCH);
  if (speed == EA_LOAD_FAST) {
#pragma unroll 1
    for (int row = 0; row < TILE_N; row += PASS_ROWS) {
      const char *source = (const char *)ld_shared_b64(rows + (first_row + row) * 8);
#pragma unroll 1
      for (int chunk = 0; chunk < PITCH / CHUNK; chunk += 8) {
        const bool there = source != 0 && (chunk + chunk0) * CHUNK < dim;
        cp_async_16(first + row * PITCH * 2 + chunk * 16,
                    there ? source + (chunk + chunk0) * 16 : (const char *)call.q.data, there ? 16 : 0);
      }
    }
    return;
  }
  const int chunks = PITCH / CHUNK, total = TILE_N * chunks;
  const int prefix_rows = (int)ld_shared_b32(table + TABLE_PREFIX_ROWS);
  const ea_source fresh = fresh_source(launch), cached = cached_source(call, launch);
#pragma unroll 1
  for (int index = tid; index < total; index += THREADS) {
    const int row = index / chunks, chunk = index % chunks;
    const char *source = (const char *)ld_shared_b64(rows + (uint32_t)row * 8);
    const uint32_t address = tile_address(dst, row, chunk, PITCH);
    if (source == 0 || chunk * CHUNK >= dim) {
      st_shared_v4(address, make_uint4(0, 0, 0, 0));
    } else {
      load_row_chunk(address, source, chunk, dim, row < prefix_rows ? cached : fresh);
    }
  }
}

/* ---- what a block works on ------------------------------------------------------------------ */

/* Kept in shared memory: the products need every register, and this is read between them. */
typedef struct ea_block {
  ea_view view;
  int64_t token0;      /* the sequence's first row in q, k, v, out */
  int64_t prefix_base; /* and in kv_indices */
  ea_key_range keys;   /* visible to some row of the block */
  ea_key_range plain;  /* tiles between these need no mask */
  int32_t first_tile, end_tile;
  int32_t i0, i1; /* queries of the block */
  int32_t head0;  /* head of row 0 within its group */
  int32_t rows;   /* rows that exist */
  int32_t kv_head;
} ea_block;
static_assert(sizeof(ea_block) <= EA_PORTABLE_BLOCK_BYTES, "its place in the layout");

EA_DEVICE const ea_block *block_at(uint32_t address) {
  return (const ea_block *)shared_anew(address);
}

/* Query and head (within the group) of a row of the block. */
EA_DEVICE int row_query(const ea_block *b, int row, int group) {
  return b->i0 + (b->head0 + row) / group;
}
EA_DEVICE int row_head(const ea_block *b, int row, int group) {
  return (b->head0 + row) % group;
}

/* Which part of the two products a thread has. */
typedef struct ea_part {
  int lane, warp;
  int qk_row, qk_key; /* first row and key of the warp's scores */
  int pv_row, pv_col; /* first row and column of its output */
} ea_part;

EA_DEVICE ea_part thread_part(int tid) {
  const int warp = tid / 32;
  const ea_part part = {tid % 32,
                        warp,
                        warp / QK_WARPS_N * QK_ROWS,
                        warp % QK_WARPS_N * QK_KEYS,
                        warp / PV_WARPS_N * PV_ROWS,
                        warp % PV_WARPS_N * PV_COLS};
  return part;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Which sequence a block of the grid works on: the last whose first block is not behind it. */
EA_DEVICE int64_t find_sequence(const ea_call &call, int64_t block) {
  int64_t low = 0, high = call.num_seqs; /* low's first block is never behind: it is 0 for sequence 0 */
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (ea_portable_first_block(call.qo_indptr[middle], middle, call.group, TILE_M) <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    KERNEL(const __grid_constant__ ea_call call, const __grid_constant__ ea_portable_launch launch) {
  extern __shared__ __align__(1024) char smem[];

  /* What follows from the thread's number is worked out anew at each use: the products need every
   * register. */
  const int tid_once = read_tid();
  const auto thread_index = [&]() { return read_anew(tid_once); };
  const int group = call.group, stages = launch.stages;
  const ea_portable_smem layout = ea_portable_smem_layout(shape_constants(), stages);
  const uint32_t base = smem_address(smem);
  const uint32_t info = base + (uint32_t)layout.block;
  const uint32_t barriers = base + (uint32_t)layout.barriers;

  /* ---- which rows, which tiles ---- */
  int first_tile;
  bool any_tile;
  {
    /* Longest walks first, those of all heads side by side: were one head's after another's, the last ones would begin
     * late, and multiprocessors wait for them. */
    const uint32_t heads = (uint32_t)call.num_kv_heads;
    const int64_t block = gridDim.x / heads - 1 - blockIdx.x / heads;
    const int64_t seq = find_sequence(call, block);
    ea_block b;
    b.view = ea_view_of(&call, seq);
    b.kv_head = (int32_t)(blockIdx.x % heads);
    b.token0 = call.qo_indptr[seq];
    b.prefix_base = call.kv_indptr[seq];
    const int64_t first_row = (block - ea_portable_first_block(b.token0, seq, group, TILE_M)) * TILE_M;
    const int64_t seq_rows = (int64_t)b.view.extend * group;
    if (first_row >= seq_rows) return; /* the grid's spare blocks */
    b.rows = (int)(seq_rows - first_row < TILE_M ? seq_rows - first_row : TILE_M);
    b.i0 = (int)(first_row / group);
    b.head0 = (int)(first_row - (int64_t)b.i0 * group);
    b.i1 = b.i0 + (b.head0 + b.rows - 1) / group + 1;
    b.keys = ea_visible_keys(&b.view, b.i0, b.i1);
    b.plain = ea_unmasked_keys(&b.view, b.i0, b.i1);
    b.plain.first = ea_max_i32(b.plain.first, b.keys.first);
    b.plain.end = ea_min_i32(b.plain.end, b.keys.end);
    first_tile = b.first_tile = b.keys.first / TILE_N;
    b.end_tile = b.keys.end > b.keys.first ? (b.keys.end + TILE_N - 1) / TILE_N : first_tile;
    any_tile = b.end_tile > first_tile;
    if (threadIdx.x < (uint32_t)stages) {
      mbarrier_init(barriers + threadIdx.x * 16, 2 * THREADS); /* full: two arrivals a thread, see load */
      mbarrier_init(barriers + threadIdx.x * 16 + 8, THREADS); /* empty */
    }
    if (threadIdx.x == 0) *(ea_block *)(smem + layout.block) = b;
  }
  __syncthreads();

  /* ---- where things are ---- */
  const uint32_t q_smem = base + (uint32_t)layout.q;
  const uint32_t ring = base + (uint32_t)layout.ring;
  const uint32_t p_smem = base + (uint32_t)layout.p;
  const uint32_t stats = base + (uint32_t)layout.stats; /* QN x M maxima or sums */
  const uint32_t row_factors = stats + QK_WARPS_N * TILE_M * 4;

  /* ---- addresses of keys: of K rows by the first TILE_N threads, of V rows by the next; two
   * tiles' worth are kept ---- */
  uint32_t slot_number = 0; /* of this thread's key in the tile asked for last; the launch sees that it fits */
  const auto full_barrier = [&](int slot) { return barriers + (uint32_t)slot * 16; };
  const auto empty_barrier = [&](int slot) { return barriers + (uint32_t)slot * 16 + 8; };
  const auto table_of = [&](int tile) {
    return base + (uint32_t)(layout.rows + (tile & 1) * EA_PORTABLE_TABLE_BYTES(TILE_N));
  };
  const auto ask = [&](int tile) {
    const ea_block *b = block_at(info);
    const int tid = thread_index(), key = tile * TILE_N + tid % TILE_N;
    if (tid < 2 * TILE_N && key >= b->keys.first && key < ea_min_i32(b->keys.end, b->view.prefix)) {
      slot_number = (uint32_t)ea_load_index(call.kv_indices, call.index_dtype, b->prefix_base + key);
    }
  };
  const auto answer = [&](int tile) {
    const int tid = thread_index();
    if (tid >= 2 * TILE_N) return;
    const ea_block *b = block_at(info);
    const bool of_v = tid >= TILE_N;
    const int j0 = tile * TILE_N, key = j0 + tid % TILE_N;
    const char *row = 0;
    if (key >= b->keys.first && key < b->keys.end) {
      if (key < b->view.prefix) {
        const int bytes = cached_source(call, launch).element == EA_ELEMENT_16BIT ? 2 : 1;
        const ea_pool &pool = of_v ? call.v_cache : call.k_cache;
        row = (const char *)pool.data +
              slot_offset(pool, slot_number, call.page_size, launch.page_magic, b->kv_head) * bytes;
      } else {
        const ea_strided &tensor = of_v ? call.v : call.k;
        const int64_t token = b->token0 + (key - b->view.prefix);
        row = (const char *)tensor.data + (token * tensor.token_stride + b->kv_head * tensor.head_stride) * 2;
      }
    }
    st_shared_b64(table_of(tile) + (uint32_t)tid * 8, (uint64_t)row); /* V's rows follow K's */
    if (tid == 0) {
      const int prefix_rows = b->view.prefix - j0; /* this many rows come from the pool */
      const ea_source cached = cached_source(call, launch);
      const bool cached_fast = cached.aligned && cached.element == EA_ELEMENT_16BIT;
      const bool fresh_fast = fresh_source(launch).aligned;
      const bool by_cp_async = (prefix_rows <= 0 || cached_fast) && (prefix_rows >= TILE_N || fresh_fast);
      const bool rows_there = j0 >= b->keys.first && j0 + TILE_N <= b->keys.end;
      const bool whole = rows_there && call.head_dim == DIM && call.head_dim_v == DIM_V;
      const ea_speed speed = !by_cp_async ? EA_LOAD_ANY : whole ? EA_LOAD_WHOLE : EA_LOAD_FAST;
      st_shared_b32(table_of(tile) + TABLE_SPEED, (uint32_t)speed);
      st_shared_b32(table_of(tile) + TABLE_PREFIX_ROWS, (uint32_t)ea_max_i32(prefix_rows, 0));
    }
  };
  /* Starts the copies of a tile; the slot's full barrier falls when all threads' are done. */
  const auto load = [&](int tile, int slot) {
    const uint32_t k_tile = ring + (uint32_t)(slot * layout.stage_bytes);
    const uint32_t table = table_of(tile);
    const uint32_t v_tile = k_tile + TILE_N * DIM * 2, v_rows = table + TILE_N * 8;
    const int tid = thread_index();
    const ea_speed speed = (ea_speed)ld_shared_b32(table + TABLE_SPEED);
    if (speed == EA_LOAD_WHOLE) {
      const char *k_source[PASSES], *v_source[PASSES];
      read_row_addresses(k_source, tid, table);
      read_row_addresses(v_source, tid, v_rows);
      copy_whole<DIM>(k_source, tid, k_tile);
      copy_whole<DIM_V>(v_source, tid, v_tile);
    } else {
      copy_partial<DIM>(call, launch, tid, k_tile, table, table, call.head_dim, speed);
      copy_partial<DIM_V>(call, launch, tid, v_tile, v_rows, table, call.head_dim_v, speed);
      __threadfence_block(); /* plain stores, if any: before the arrival below */
    }
    cp_async_mbarrier_arrive_noinc(full_barrier(slot));
    mbarrier_arrive(full_barrier(slot));
  };

  /* ---- Q, and the first tiles ---- */
  {
    const int chunks = DIM / CHUNK;
    const ea_source source = {EA_ELEMENT_16BIT, launch.q_aligned != 0};
    const ea_block *b = block_at(info);
#pragma unroll 4
    for (int index = thread_index(); index < TILE_M * chunks; index += THREADS) {
      const int row = index / chunks, chunk = index % chunks;
      const uint32_t address = tile_address(q_smem, row, chunk, DIM);
      if (row >= b->rows || chunk * CHUNK >= call.head_dim) {
        st_shared_v4(address, make_uint4(0, 0, 0, 0));
        continue;
      }
      const int64_t token = b->token0 + row_query(b, row, group);
      const int64_t head = (int64_t)b->kv_head * group + row_head(b, row, group);
      const char *source_row =
          (const char *)call.q.data + (token * call.q.token_stride + head * call.q.head_stride) * 2;
      load_row_chunk(address, source_row, chunk, call.head_dim, source);
    }
  }
  ask(first_tile);
  answer(first_tile);
  for (int ahead = 0; ahead < stages - 1; ahead++) {
    __syncthreads();
    if (first_tile + ahead < block_at(info)->end_tile) load(first_tile + ahead, ahead);
    ask(first_tile + ahead + 1);
    answer(first_tile + ahead + 1);
  }
  cp_async_wait_all();
  __syncthreads(); /* Q is there, and the addresses of tile first_tile + S - 1 */

  /* ---- state ---- */
  float output[PV_MI][PV_NI][4];
#pragma unroll
  for (int mi = 0; mi < PV_MI; mi++) {
#pragma unroll
    for (int ni = 0; ni < PV_NI; ni++) {
#pragma unroll
      for (int e = 0; e < 4; e++) output[mi][ni][e] = 0.0f;
    }
  }
  /* A thread holds, of each 16-row fragment, row lane/4 (h = 0) and that + 8 (h = 1). */
  float row_max[QK_MI][2], row_sum[QK_MI][2]; /* row_sum: of this thread's columns */
#pragma unroll
  for (int mi = 0; mi < QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) row_max[mi][h] = MINUS_INF, row_sum[mi][h] = 0.0f;
  }

  const auto load_state = [&]() {
    if (!STATE_IN_SHARED) return;
#pragma unroll
    for (int mi = 0; mi < QK_MI; mi++) {
      const uint4 state = ld_shared_v4(stats + (mi * THREADS + thread_index()) * 16);
      row_max[mi][0] = __uint_as_float(state.x), row_max[mi][1] = __uint_as_float(state.y);
      row_sum[mi][0] = __uint_as_float(state.z), row_sum[mi][1] = __uint_as_float(state.w);
    }
  };
  const auto store_state = [&]() {
    if (!STATE_IN_SHARED) return;
#pragma unroll
    for (int mi = 0; mi < QK_MI; mi++) {
      st_shared_v4(stats + (mi * THREADS + thread_index()) * 16,
                   make_uint4(__float_as_uint(row_max[mi][0]), __float_as_uint(row_max[mi][1]),
                              __float_as_uint(row_sum[mi][0]), __float_as_uint(row_sum[mi][1])));
    }
  };
  store_state();

  const float scale = launch.scale_log2;

  uint32_t q_fragments[Q_IN_REGISTERS ? DIM / 16 : 1][QK_MI][4];

  uint32_t position = 0; /* in the ring: slot * 2 + parity of the slot's current use, one register for both */
  /* Copies tile t+S-1 into the slot of tile t-1, once all warps are done with that. */
  const auto load_ahead = [&](int tile) {
    const ea_block *b = block_at(info);
    if (tile + stages - 1 >= b->end_tile) return;
    const int slot = (int)(position / 2), before = slot == 0 ? stages - 1 : slot - 1;
    if (tile > b->first_tile) mbarrier_wait(empty_barrier(before), (position ^ (uint32_t)(slot == 0)) & 1);
    load(tile + stages - 1, before);
  };
#pragma unroll 1
  for (int tile = first_tile; any_tile; tile++) {
    if (stages == 1) load_ahead(tile);
    ask(tile + stages);
    mbarrier_wait(full_barrier((int)(position / 2)), position & 1);
    const uint32_t k_tile = ring + position / 2 * (uint32_t)layout.stage_bytes;

    /* This lane's fragment addresses; found anew each time, which is cheaper than keeping them. */
    const int at = thread_index(), at_lane = at % 32, at_key = at / 32 % QK_WARPS_N * QK_KEYS;
    const uint32_t q_lane = tile_address(q_smem, at / 32 / QK_WARPS_N * QK_ROWS + at_lane % 16, at_lane / 16, DIM);
    const uint32_t k_lane = QK_NI % 2 == 0
                                ? tile_address(k_tile, at_key + at_lane % 8 + at_lane / 16 * 8, at_lane / 8 % 2, DIM)
                                : tile_address(k_tile, at_key + at_lane % 8, at_lane / 8 % 2, DIM);
    if (Q_IN_REGISTERS && tile == block_at(info)->first_tile) {
#pragma unroll
      for (int kk = 0; kk < DIM / 16; kk++) {
#pragma unroll
        for (int mi = 0; mi < QK_MI; mi++) {
          ldmatrix_x4(q_fragments[Q_IN_REGISTERS ? kk : 0][mi], step_chunks(q_lane, kk * 2) + mi * 16 * DIM * 2);
        }
      }
    }

    /* ---- scores = Q K^T ---- */
    float scores[QK_MI][QK_NI][4];
    uint32_t q_ahead[2][QK_MI][4], k_ahead[2][(QK_NI + 1) / 2][4]; /* fragments of this step and the next */
    const auto read_fragments = [&](int kk) {
      if (!Q_IN_REGISTERS) {
#pragma unroll
        for (int mi = 0; mi < QK_MI; mi++)
          ldmatrix_x4(q_ahead[kk % 2][mi], step_chunks(q_lane, kk * 2) + mi * 16 * DIM * 2);
      }
#pragma unroll
      for (int ni = 0; ni < QK_NI; ni += 2) {
        if (QK_NI % 2 == 0) { /* 16 keys: matrices (keys 0-7, 8-15) x (dims 0-7, 8-15) */
          ldmatrix_x4(k_ahead[kk % 2][ni / 2], step_chunks(k_lane, kk * 2) + ni * 8 * DIM * 2);
        } else { /* a warp has 8 keys in all */
          ldmatrix_x2(k_ahead[kk % 2][ni / 2], step_chunks(k_lane, kk * 2));
        }
      }
    };
    if (CROSSING) read_fragments(0);
#pragma unroll
    for (int kk = 0; kk < DIM / 16; kk++) {
      if (!CROSSING) read_fragments(kk);
      if (CROSSING && kk + 1 < DIM / 16) read_fragments(kk + 1);
#pragma unroll
      for (int ni = 0; ni < QK_NI; ni++) {
        const uint32_t *b = k_ahead[kk % 2][ni / 2] + ni % 2 * 2;
#pragma unroll
        for (int mi = 0; mi < QK_MI; mi++) {
          const uint32_t *a = Q_IN_REGISTERS ? q_fragments[Q_IN_REGISTERS ? kk : 0][mi] : q_ahead[kk % 2][mi];
          if (kk == 0) {
            mma_m16n8k16_zero(scores[mi][ni], a, b);
          } else {
            mma_m16n8k16(scores[mi][ni], a, b);
          }
        }
      }
    }

    /* Late enough for a warp to run ahead of the others by some part of a tile. */
    if (stages > 1) load_ahead(tile);

    const ea_part part = thread_part(thread_index());
    const int lane = part.lane, warp = part.warp, qk_row = part.qk_row, qk_key = part.qk_key;
    const int pv_row = part.pv_row;

    /* ---- what scores become before the softmax ---- */
    const int j0 = tile * TILE_N;
    if (launch.k_scale != 1.0f) {
      const float k_scale = launch.k_scale;
      const int prefix = block_at(info)->view.prefix;
#pragma unroll
      for (int mi = 0; mi < QK_MI; mi++) {
#pragma unroll
        for (int ni = 0; ni < QK_NI; ni++) {
#pragma unroll
          for (int e = 0; e < 4; e++) {
            const int key = j0 + qk_key + ni * 8 + lane % 4 * 2 + e % 2;
            if (key < prefix) scores[mi][ni][e] *= k_scale;
          }
        }
      }
    }
    if (launch.transformed) {
      const ea_block *b = block_at(info);
#pragma unroll
      for (int mi = 0; mi < QK_MI; mi++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float temperature = 1.0f;
          if (call.xai_temperature_len > 0) {
            const int position = b->view.prefix + row_query(b, qk_row + mi * 16 + h * 8 + lane / 4, group);
            temperature =
                ea_temperature(position, call.xai_temperature_len, __log2f((float)position), launch.inv_log2_len);
          }
#pragma unroll
          for (int ni = 0; ni < QK_NI; ni++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
              scores[mi][ni][h * 2 + c] = transformed_score(scores[mi][ni][h * 2 + c], launch, temperature);
            }
          }
        }
      }
    }

    /* ---- mask ---- */
    bool masked;
    {
      const ea_block *b = block_at(info);
      masked = j0 < b->plain.first || j0 + TILE_N > b->plain.end;
    }
    if (masked) {
#pragma unroll
      for (int mi = 0; mi < QK_MI; mi++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const ea_block *b = block_at(info);
          const int i = ea_min_i32(row_query(b, qk_row + mi * 16 + h * 8 + lane / 4, group), b->view.extend - 1);
          const ea_key_range seen = ea_visible_keys(&b->view, i, i + 1);
          const int first_key = j0 + qk_key + lane % 4 * 2; /* this thread's keys: this, next, and every 8 on */
          uint32_t hidden = 0;
          if (b->view.mask) { /* bit ni * 2 + c */
#pragma unroll 1
            for (int k = 0; k < QK_NI * 2; k++) {
              const int key = first_key + k / 2 * 8 + k % 2;
              if (key >= seen.first && key < seen.end && !ea_visible(&b->view, i, key)) hidden |= 1u << k;
            }
          }
#pragma unroll
          for (int ni = 0; ni < QK_NI; ni++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
              const int key = first_key + ni * 8 + c;
              const bool visible = key >= seen.first && key < seen.end && (hidden >> (ni * 2 + c) & 1) == 0;
              scores[mi][ni][h * 2 + c] = visible ? scores[mi][ni][h * 2 + c] : MINUS_INF;
            }
          }
        }
      }
    }

    /* ---- running maximum ---- */
    float rescale[QK_MI][2];
    float tile_max[QK_MI][2];
#pragma unroll
    for (int mi = 0; mi < QK_MI; mi++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float m[2] = {scores[mi][0][h * 2], scores[mi][0][h * 2 + 1]};
#pragma unroll
        for (int ni = 1; ni < QK_NI; ni++) {
          m[0] = fmaxf(m[0], scores[mi][ni][h * 2]);
          m[1] = fmaxf(m[1], scores[mi][ni][h * 2 + 1]);
        }
        tile_max[mi][h] = quad_max(fmaxf(m[0], m[1]));
      }
    }
    if (CROSSING) {
#pragma unroll
      for (int mi = 0; mi < QK_MI; mi++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int row = qk_row + mi * 16 + h * 8 + lane / 4;
          if (lane % 4 == 0) st_shared_f32(stats + (warp % QK_WARPS_N * TILE_M + row) * 4, tile_max[mi][h]);
        }
      }
      bar_sync(1 + warp / GROUP_WARPS, GROUP_WARPS * 32);
#pragma unroll
      for (int mi = 0; mi < QK_MI; mi++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int row = qk_row + mi * 16 + h * 8 + lane / 4;
#pragma unroll
          for (int n = 0; n < QK_WARPS_N; n++) {
            tile_max[mi][h] = fmaxf(tile_max[mi][h], ld_shared_f32(stats + (n * TILE_M + row) * 4));
          }
        }
      }
    }
    load_state();
    /* P as it enters the second product: a pair of neighbouring columns a word. The denominator
     * sums the unrounded values, and knows nothing of v_scale. */
    uint32_t p[QK_MI][QK_NI][2];
    float tile_sum[QK_MI][2];
    const auto exponentials = [&](bool with_v_scale, int prefix) {
#pragma unroll
      for (int mi = 0; mi < QK_MI; mi++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          /* The reference of the exponentials follows the maximum only when that has grown by a
           * factor of 2^slack: any reference near it gives the same quotient, and the output is
           * spared most of its rescaling. Decided a row at a time, by the row's own scores. */
          const bool grown = (tile_max[mi][h] - row_max[mi][h]) * scale > launch.rescale_slack_log2;
          const float m = grown ? tile_max[mi][h] : row_max[mi][h];
          const float shift = shift_scores<QK_NI * 4>(&scores[mi][0][h * 2], m, scale);
          rescale[mi][h] = grown ? reference_factor(row_max[mi][h], m, scale) : 1.0f;
          row_max[mi][h] = m;
          float sum[2] = {0.0f, 0.0f}; /* two chains: an addition waits for the one before */
#pragma unroll
          for (int ni = 0; ni < QK_NI; ni++) {
            float p0 = ex2_approx(fmaf(scores[mi][ni][h * 2], scale, -shift));
            float p1 = ex2_approx(fmaf(scores[mi][ni][h * 2 + 1], scale, -shift));
            sum[0] += p0;
            sum[1] += p1;
            if (with_v_scale) {
              const int key = j0 + qk_key + ni * 8 + lane % 4 * 2;
              if (key < prefix) p0 *= launch.v_scale;
              if (key + 1 < prefix) p1 *= launch.v_scale;
            }
            p[mi][ni][h] = cvt_x2(p0, p1);
          }
          tile_sum[mi][h] = sum[0] + sum[1];
        }
      }
    };
    if (launch.v_scale != 1.0f) {
      exponentials(true, block_at(info)->view.prefix);
    } else {
      exponentials(false, 0);
    }
#pragma unroll
    for (int mi = 0; mi < QK_MI; mi++) {
#pragma unroll
      for (int h = 0; h < 2; h++) row_sum[mi][h] = fmaf(row_sum[mi][h], rescale[mi][h], tile_sum[mi][h]);
    }
    store_state();

    /* ---- P to where the second product reads it ---- */
    if (CROSSING) {
#pragma unroll
      for (int mi = 0; mi < QK_MI; mi++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int row = qk_row + mi * 16 + h * 8 + lane / 4;
          if (warp % QK_WARPS_N == 0 && lane % 4 == 0) st_shared_f32(row_factors + row * 4, rescale[mi][h]);
#pragma unroll
          for (int ni = 0; ni < QK_NI; ni++) {
            st_shared_b32(p_address(p_smem, row, qk_key / CHUNK + ni) + lane % 4 * 4, p[mi][ni][h]);
          }
        }
      }
      bar_sync(1 + warp / GROUP_WARPS, GROUP_WARPS * 32);
    }
    float factor[PV_MI][2];
    bool moved = false;
#pragma unroll
    for (int mi = 0; mi < PV_MI; mi++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        factor[mi][h] = CROSSING ? ld_shared_f32(row_factors + (pv_row + mi * 16 + h * 8 + lane / 4) * 4)
                                 : rescale[CROSSING ? 0 : mi][h];
        moved |= factor[mi][h] != 1.0f;
      }
    }
    /* Times 1 changes nothing. */
    if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
      for (int mi = 0; mi < PV_MI; mi++) {
#pragma unroll
        for (int ni = 0; ni < PV_NI; ni++) {
#pragma unroll
          for (int e = 0; e < 4; e++) output[mi][ni][e] *= factor[mi][e / 2];
        }
      }
    }

    /* ---- a NaN or Inf in V must reach only the rows that see it (promise 2): 0 * NaN is NaN ----
     * Where every row sees every key, it reaches whom it should by itself. */
    if (masked) {
      const uint32_t v_tile = ring + position / 2 * (uint32_t)layout.stage_bytes + TILE_N * DIM * 2;
      bool found = false;
      for (int index = thread_index(); index < TILE_N * DIM_V / CHUNK; index += THREADS) {
        found |= any_special(ld_shared_v4(v_tile + (uint32_t)index * 16));
      }
      if (__syncthreads_or(found)) {
        const ea_part part = thread_part(thread_index());
        const int lane = part.lane, pv_row = part.pv_row, pv_col = part.pv_col;
        /* Rare: give it to the rows that see it by hand, then take it out of the tile. */
#pragma unroll 1
        for (int n = 0; n < TILE_N; n++) {
          const int key = j0 + n;
          const ea_block *b = block_at(info);
          if (key < b->keys.first || key >= b->keys.end) continue;
          uint32_t seen = 0; /* bit mi * 2 + h: that row sees the key */
#pragma unroll 1
          for (int r = 0; r < PV_MI * 2; r++) {
            const int i = row_query(b, pv_row + r * 8 + lane / 4, group);
            if (i < b->view.extend && ea_visible(&b->view, i, key)) seen |= 1u << r;
          }
#pragma unroll
          for (int ni = 0; ni < PV_NI; ni++) {
            const uint32_t pair = ld_shared_b32(tile_address(v_tile, n, pv_col / CHUNK + ni, DIM_V) + lane % 4 * 4);
#pragma unroll
            for (int c = 0; c < 2; c++) {
              const uint32_t bits = c == 0 ? pair & 0xffffu : pair >> 16;
              if (!is_special(bits)) continue;
#pragma unroll
              for (int r = 0; r < PV_MI * 2; r++) {
                if (seen >> r & 1) output[r / 2][ni][r % 2 * 2 + c] += element_value(bits);
              }
            }
          }
        }
        __syncthreads();
        for (int index = thread_index(); index < TILE_N * DIM_V / CHUNK; index += THREADS) {
          const uint32_t address = v_tile + (uint32_t)index * 16;
          st_shared_v4(address, without_special(ld_shared_v4(address)));
        }
        __syncthreads();
      }
    }

    /* ---- output += P V ---- */
    const uint32_t v_tile = ring + position / 2 * (uint32_t)layout.stage_bytes + TILE_N * DIM * 2;
    const int v_at = thread_index(), v_chunk = v_at / 32 % PV_WARPS_N * (PV_COLS / CHUNK) + v_at % 32 / 16;
    const uint32_t v_lane = tile_address(v_tile, v_at % 16, v_chunk, DIM_V);
#pragma unroll
    for (int kk = 0; kk < TILE_N / 16; kk++) {
      uint32_t a[PV_MI][4];
#pragma unroll
      for (int mi = 0; mi < PV_MI; mi++) {
        if (CROSSING) {
          ldmatrix_x4(a[mi], p_address(p_smem, pv_row + mi * 16 + lane % 16, kk * 2 + lane / 16));
        } else {
          /* The accumulators of two neighbouring 16x8 fragments are the operand of one 16x16. */
          const int m = CROSSING ? 0 : mi, n = CROSSING ? 0 : kk * 2;
          a[mi][0] = p[m][n][0], a[mi][1] = p[m][n][1];
          a[mi][2] = p[m][n + !CROSSING][0], a[mi][3] = p[m][n + !CROSSING][1];
        }
      }
#pragma unroll
      for (int ni = 0; ni < PV_NI; ni += 2) { /* 16 columns */
        uint32_t b[4];
        /* step_chunks wants to start at a multiple of 128 bytes. */
        const uint32_t v_address = PV_COLS % 64 == 0 ? step_chunks(v_lane, ni)
                                                     : tile_address(v_tile, thread_index() % 16, v_chunk + ni, DIM_V);
        ldmatrix_x4_trans(b, v_address + kk * 16 * DIM_V * 2);
#pragma unroll
        for (int mi = 0; mi < PV_MI; mi++) {
          mma_m16n8k16(output[mi][ni], a[mi], b);
          mma_m16n8k16(output[mi][ni + 1], a[mi], b + 2);
        }
      }
    }

    if (tile + stages < block_at(info)->end_tile) answer(tile + stages);
    mbarrier_arrive(empty_barrier((int)(position / 2)));
    position += 2;
    if (position / 2 == (uint32_t)stages) position = (position & 1) ^ 1;
    if (tile + 1 == block_at(info)->end_tile) break;
  }

  /* ---- denominator, sink, lse ---- */
  const ea_part part = thread_part(thread_index());
  const int lane = part.lane, warp = part.warp, qk_row = part.qk_row, pv_row = part.pv_row, pv_col = part.pv_col;
  load_state();
  __syncthreads(); /* everyone is done with Q and the ring */
  if (thread_index() < stages) {
    mbarrier_inval(full_barrier(thread_index()));
    mbarrier_inval(empty_barrier(thread_index()));
  }
  const ea_block *b = block_at(info);
  float factor_out[QK_MI][2];
#pragma unroll
  for (int mi = 0; mi < QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      row_sum[mi][h] = quad_sum(row_sum[mi][h]);
      const int row = qk_row + mi * 16 + h * 8 + lane / 4;
      if (CROSSING && lane % 4 == 0) st_shared_f32(stats + (warp % QK_WARPS_N * TILE_M + row) * 4, row_sum[mi][h]);
    }
  }
  if (CROSSING) __syncthreads();
#pragma unroll
  for (int mi = 0; mi < QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = qk_row + mi * 16 + h * 8 + lane / 4;
      float sum = row_sum[mi][h];
      if (CROSSING) {
        sum = 0.0f;
#pragma unroll
        for (int n = 0; n < QK_WARPS_N; n++) sum += ld_shared_f32(stats + (n * TILE_M + row) * 4);
      }
      const int head = b->kv_head * group + row_head(b, row, group);
      const ea_row_end end = end_row(call, launch, row_max[mi][h], sum, head, row < b->rows);
      factor_out[mi][h] = end.factor;
      if (call.lse && row < b->rows && lane % 4 == 0 && warp % QK_WARPS_N == 0) {
        const int64_t token = b->token0 + row_query(b, row, group);
        call.lse[token * call.lse_token_stride + head * call.lse_head_stride] = end.lse;
      }
      if (CROSSING && warp % QK_WARPS_N == 0 && lane % 4 == 0) st_shared_f32(row_factors + row * 4, factor_out[mi][h]);
    }
  }
  if (CROSSING) __syncthreads();

    /* ---- output through shared memory, so that whole rows leave together ---- */
#pragma unroll
  for (int mi = 0; mi < PV_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = pv_row + mi * 16 + h * 8 + lane / 4;
      const float factor = CROSSING ? ld_shared_f32(row_factors + row * 4) : factor_out[CROSSING ? 0 : mi][h];
#pragma unroll
      for (int ni = 0; ni < PV_NI; ni++) {
        st_shared_b32(tile_address(q_smem, row, pv_col / CHUNK + ni, DIM_V) + (uint32_t)(lane % 4 * 4),
                      cvt_x2(output[mi][ni][h * 2] * factor, output[mi][ni][h * 2 + 1] * factor));
      }
    }
  }
  __syncthreads();
  const int chunks = DIM_V / CHUNK;
#pragma unroll 2
  for (int index = thread_index(); index < b->rows * chunks; index += THREADS) {
    const int row = index / chunks, chunk = index % chunks;
    const int count = ea_min_i32(call.head_dim_v - chunk * CHUNK, CHUNK);
    if (count <= 0) continue;
    const int64_t token = b->token0 + row_query(b, row, group);
    const int head = b->kv_head * group + row_head(b, row, group);
    uint16_t *to = (uint16_t *)call.out + token * call.out_token_stride + head * call.out_head_stride + chunk * CHUNK;
    const uint4 v = ld_shared_v4(tile_address(q_smem, row, chunk, DIM_V));
    if (launch.out_aligned && count == CHUNK) {
      *(uint4 *)to = v;
    } else {
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int e = 0; e < CHUNK; e++) {
        if (e < count) to[e] = (uint16_t)(words[e / 2] >> (16 * (e % 2)));
      }
    }
  }
}
