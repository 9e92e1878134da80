/* The persistent tile scheduler: which work tiles a block takes, one after another, and what its threads know of them.
 * A work tile is a block of query rows of one sequence and one K/V head (its GQA group packed into the rows), with all
 * the keys that they see.
 *
 * One thread of the producer finds the next work tile while the others load the one in hand, and writes it to shared
 * memory; EA_HOPPER_ITEMS of them are there at a time. */
#ifndef EA_CUDA_KERNELS_HOPPER_SCHEDULER_H
#define EA_CUDA_KERNELS_HOPPER_SCHEDULER_H

#include "cuda/kernels/hopper/pipeline.h"

typedef struct ea_work_tile {
  ea_view view;
  int64_t token0;        /* the sequence's first row in q, k, v, out */
  int64_t prefix_base;   /* and in kv_indices */
  ea_key_range keys;     /* visible to some row */
  ea_key_range unmasked; /* tiles between these need no mask */
  int32_t first_step, end_step;
  int32_t gather_end;          /* steps before this one have keys that no TMA box of new tokens brings */
  int32_t i0;                  /* first query */
  int32_t rows;                /* (query, head) rows that exist; 0: no more work */
  int32_t kv_head, first_head; /* first_head: of the queries */
  uint32_t number;             /* of this block's work tiles; the one before the first has -1 */
  uint32_t ring;               /* narrow.h: where its first tile stands in the rings */
  uint32_t second_pass;        /* done once more, for its NaN or Inf (nonfinite.h) */
  uint32_t nonfinite;          /* NaN or Inf came out */
} ea_work_tile;
static_assert(sizeof(ea_work_tile) <= EA_HOPPER_ITEM_BYTES, "its place in the layout");

/* A work tile in shared memory, read anew at each ->, so that nothing of it stays in registers in between. */
struct ea_work {
  uint32_t address;

  EA_MEMBER const ea_work_tile *operator->() const { return (const ea_work_tile *)shared_anew(address); }
  EA_MEMBER const ea_work_tile *get() const { return (const ea_work_tile *)shared_anew(address); }
  EA_MEMBER ea_work_tile *to_write() const { return (ea_work_tile *)__cvta_shared_to_generic(address); }
  EA_MEMBER uint32_t q_phase() const { return get()->number % 2; } /* of Q's barriers */
};

/* Work tiles take turns in their places in shared memory. */
constexpr uint32_t last_place = (EA_HOPPER_ITEMS - 1) * EA_HOPPER_ITEM_BYTES;
template <class Shape> EA_DEVICE ea_work first_work(const ea_cta<Shape> &cta) {
  return {work_tiles(cta.smem)};
}
template <class Shape> EA_DEVICE ea_work last_work(const ea_cta<Shape> &cta) {
  return {work_tiles(cta.smem) + last_place};
}
template <class Shape> EA_DEVICE uint32_t place_after(ea_smem_plan<Shape> smem, uint32_t place) {
  return place == work_tiles(smem) + last_place ? work_tiles(smem) : place + EA_HOPPER_ITEM_BYTES;
}
template <class Shape> EA_DEVICE uint32_t place_before(ea_smem_plan<Shape> smem, uint32_t place) {
  return place == work_tiles(smem) ? work_tiles(smem) + last_place : place - EA_HOPPER_ITEM_BYTES;
}
template <class Shape> EA_DEVICE ea_work work_after(const ea_cta<Shape> &cta, ea_work work) {
  return {place_after(cta.smem, work.address)};
}
template <class Shape> EA_DEVICE ea_work work_before(const ea_cta<Shape> &cta, ea_work work) {
  return {place_before(cta.smem, work.address)};
}
template <class Shape> EA_DEVICE uint32_t work_done(const ea_cta<Shape> &cta, ea_work work) {
  return work_done(cta.smem) + (work.address - work_tiles(cta.smem)) / EA_HOPPER_ITEM_BYTES * barrier_bytes;
}

/* ---- finding work ------------------------------------------------------------------------------ */

/* The next index of a work tile, for a block that has had `last`: blocks take them one after another, as they get
 * through. Where nobody counts there are no more than two for each: who had the longest of the first round has the
 * shortest of the second. */
EA_DEVICE int32_t take_work_index(const ea_hopper_launch &launch, int32_t last) {
  const int32_t blocks = (int32_t)gridDim.x;
  if (launch.taken) return blocks + atomicAdd(launch.taken, 1);
  return last < blocks ? 2 * blocks - 1 - last : INT32_MAX;
}
/* The same where the index in hand was used, which is kept as ~index (it is negative then). */
EA_DEVICE void replace_used_index(const ea_hopper_launch &launch, int32_t *index) {
  if (*index < 0) *index = take_work_index(launch, ~*index);
}

/* The keys that a work tile visits, in steps of the mainloop. */
template <class Shape>
EA_DEVICE void set_keys(const ea_hopper_launch &launch, int32_t i0, int32_t tokens, ea_work_tile *work) {
  work->keys = ea_visible_keys(&work->view, i0, i0 + tokens);
  const ea_key_range unmasked = ea_unmasked_keys(&work->view, i0, i0 + tokens);
  work->unmasked.first = ea_max_i32(unmasked.first, work->keys.first);
  work->unmasked.end = ea_min_i32(unmasked.end, work->keys.end);
  constexpr int step = Shape::step_keys;
  const int32_t first = work->keys.first / step;
  const int32_t end = work->keys.end > work->keys.first ? (work->keys.end + step - 1) / step : first;
  const int32_t cached_end = (work->view.prefix + step - 1) / step;
  work->first_step = first;
  work->end_step = end;
  work->gather_end = launch.kv_boxes ? ea_min_i32(end, ea_max_i32(first, cached_end)) : end;
}

/* Work tile `index`: heads of a chunk fastest, then row blocks, those with the longest walks first, then
 * chunks. Every number fits 32 bits: the launch sees to it. False: a spare row block. */
template <class Shape>
EA_DEVICE bool make_work_tile(const ea_call &call, const ea_hopper_launch &launch, int32_t row_blocks, int32_t index,
                              ea_work_tile *work) {
  /* One thread does this, so it is cheap in latency: there are one or two chunks, and no division is common. */
  const int32_t all_heads = call.num_kv_heads * launch.group_parts; /* parts of groups count as such */
  int32_t first_head = 0, heads = ea_min_i32(launch.head_chunk, all_heads), in_chunk = index;
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
  work->kv_head = launch.group_parts == 1 ? head : head / launch.group_parts;
  work->first_head = head * call.group;
  const ea_row_block found = launch.order ? launch.order->blocks[block]
                                          : ea_hopper_find_row_block(call.qo_indptr, (int32_t)call.num_seqs,
                                                                     row_blocks - 1 - block, launch.block_tokens);
  work->view = ea_view_of(&call, found.seq);
  work->prefix_base = call.kv_indptr[found.seq];
  work->token0 = call.qo_indptr[found.seq];
  if (found.i0 >= work->view.extend) return false;
  const int32_t i0 = found.i0;
  const int32_t tokens = ea_min_i32(launch.block_tokens, work->view.extend - i0);
  work->i0 = i0;
  work->rows = tokens * call.group;
  set_keys<Shape>(launch, i0, tokens, work);
  return true;
}

/* The next work tile; rows = 0 and false: there is none left. index: a work tile's that was taken; ~ of it, if it was
 * used. */
template <class Shape>
EA_DEVICE bool find_work(const ea_call &call, const ea_hopper_launch &launch, ea_work_tile *work, int32_t *index) {
  const int32_t row_blocks = launch.order ? launch.order->count : launch.row_blocks;
  const int32_t all_work = row_blocks * call.num_kv_heads * launch.group_parts;
  work->rows = 0;
  replace_used_index(launch, index);
#pragma unroll 1
  while (*index < all_work && !make_work_tile<Shape>(call, launch, row_blocks, *index, work)) {
    *index = take_work_index(launch, *index);
  }
  if (*index >= all_work) return false;
  *index = ~*index;
  return true;
}

/* Whether a work tile is to be done once more (nonfinite.h). Waits for its end; to be called once. */
template <class Shape> EA_DEVICE bool needs_second_pass(const ea_cta<Shape> &cta, ea_work work) {
  ea_work_tile *work_tile = work.to_write();
  mbarrier_wait(work_done(cta, work), work_tile->number / EA_HOPPER_ITEMS % 2);
  const bool needed = work_tile->nonfinite != 0;
  work_tile->nonfinite = 0;
  return needed;
}

/* The block's first work tile; in the last place, the one that the first consumers take for the work tile before. */
template <class Shape> EA_DEVICE void schedule_first(const ea_cta<Shape> &cta, int32_t *index) {
  ea_work_tile *none = last_work(cta).to_write();
  ea_work_tile *work_tile = first_work(cta).to_write();
  none->number = UINT32_MAX;
  find_work<Shape>(cta.call, cta.launch, work_tile, index);
  work_tile->number = work_tile->ring = work_tile->second_pass = work_tile->nonfinite = 0;
}

/* Finds the next work tile, and writes it where all will read it; rows = 0: there is none. index: as above. Consumers
 * are at the last work tile but one or further. */
template <class Shape> EA_DEVICE void schedule_next(const ea_cta<Shape> &cta, ea_work work, int32_t *index) {
  ea_work_tile *work_tile = work.to_write();
  const uint32_t number = work_before(cta, work)->number + 1;
  /* Three work tiles ago is the last that consumers are known to be through with; while there is work nobody waits for
   * the others. */
  uint32_t ago = 3;
  ea_work again = work_after(cta, work);
  static_assert(EA_HOPPER_ITEMS == 4, "three work tiles ago is in the place after this one's");
  bool second_pass = number >= ago && needs_second_pass(cta, again);
  if (!second_pass && !find_work<Shape>(cta.call, cta.launch, work_tile, index)) {
#pragma unroll 1
    while (!second_pass && --ago > 0) {
      again = work_after(cta, again);
      second_pass = number >= ago && needs_second_pass(cta, again);
    }
  }
  if (second_pass) {
#pragma unroll 1
    for (uint32_t byte = 0; byte < EA_HOPPER_ITEM_BYTES; byte += 16)
      st_shared_v4(work.address + byte, ld_shared_v4(again.address + byte));
  }
  work_tile->number = number;
  work_tile->second_pass = second_pass;
  work_tile->nonfinite = 0;
}

/* ---- rows of a work tile ------------------------------------------------------------------------ */

/* A row's token, counted from the work tile's first. Exact, since rows and the group are at most tile_m. */
template <class Shape> EA_DEVICE int row_token(const ea_hopper_launch &launch, int row) {
  static_assert(Shape::tile_m * Shape::tile_m < 65536, "where the quotient is exact");
  return (int)((uint32_t)row * launch.group_magic >> 16);
}
/* Its query; rows past the last show what that sees. */
template <class Shape> EA_DEVICE int row_query(const ea_hopper_launch &launch, const ea_work_tile *work_tile, int row) {
  return ea_min_i32(work_tile->i0 + row_token<Shape>(launch, row), work_tile->view.extend - 1);
}

#endif
