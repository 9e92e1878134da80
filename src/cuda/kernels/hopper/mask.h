/* Which keys of a tile a consumer thread's two rows see. The rules are plan/walk.h's. */
#ifndef EA_CUDA_KERNELS_HOPPER_MASK_H
#define EA_CUDA_KERNELS_HOPPER_MASK_H

#include "cuda/kernels/hopper/scheduler.h"

/* Whether some row of the work tile does not see some key of a tile. */
template <class Shape> EA_DEVICE bool is_masked(const ea_work_tile *work_tile, int tile) {
  return tile * Shape::tile_n < work_tile->unmasked.first || (tile + 1) * Shape::tile_n > work_tile->unmasked.end;
}

/* From which key on a custom mask is asked. */
EA_DEVICE int first_custom_key(const ea_work_tile *work_tile, ea_key_range seen) {
  return work_tile->view.mask_skips_prefix ? ea_max_i32(seen.first, work_tile->view.prefix) : seen.first;
}

/* ---- as bits, made ahead while the tensor cores are busy (narrow.h) ------------------------------ */

/* How many of a thread's keys of a tile are before key `end`, counted from the thread's first: it has two of every
 * eight. */
template <class Shape> EA_DEVICE int keys_before(int end) {
  end = ea_min_i32(ea_max_i32(end, 0), Shape::tile_n);
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

/* seen: the keys of each row, but for a custom mask. */
template <class Shape>
EA_DEVICE ea_tile_mask mask_of(const ea_hopper_launch &launch, const ea_work_tile *work_tile,
                               const ea_key_range seen[2], int tile, int tid) {
  static_assert(Shape::tile_n <= 128, "a thread's keys are 32 bits");
  ea_tile_mask mask = {uniform(is_masked<Shape>(work_tile, tile)) != 0, {0, 0}};
  if (!mask.masked) return mask;
  const int key0 = tile * Shape::tile_n + tid % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint32_t visible =
        bits_below(keys_before<Shape>(seen[h].end - key0)) & ~bits_below(keys_before<Shape>(seen[h].first - key0));
    if (work_tile->view.mask) { /* the mask is all that is left to ask */
      const int i = row_query<Shape>(launch, work_tile, Shape::first_row(tid) + h * 8);
      const uint8_t *row = work_tile->view.mask + i * work_tile->view.mask_stride;
      const int first = first_custom_key(work_tile, seen[h]);
#pragma unroll 1
      for (int e = 0; e < Shape::tile_n / 4; e++) {
        const int key = key0 + e / 2 * 8 + e % 2;
        if (key >= first && key < seen[h].end && row[key] == 0) visible &= ~(1u << e);
      }
    }
    mask.visible[h] = (uint32_t)read_anew((int)visible); /* now, not when it is used */
  }
  return mask;
}

/* -Inf where a key is hidden. */
template <int SCORES> EA_DEVICE void apply_mask(float (&s)[SCORES], const ea_tile_mask &mask) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int e = 0; e < SCORES / 2; e++) {
      float *x = &s[e / 2 * 4 + h * 2 + e % 2];
      *x = mask.visible[h] & 1u << e ? *x : MINUS_INF;
    }
  }
}

/* ---- at once, where registers do not suffice for bits (wide.h) ------------------------------------ */

/* -Inf where a key is hidden. key0: this thread's first key; its others are the next one, and every 8 on. */
template <class Shape, int SCORES>
EA_DEVICE void apply_mask(float (&s)[SCORES], const ea_cta<Shape> &cta, const ea_work_tile *work_tile, int key0,
                          int row) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int i = row_query<Shape>(cta.launch, work_tile, row + h * 8);
    const ea_key_range seen = ea_visible_keys(&work_tile->view, i, i + 1);
    const int from = seen.first - key0, to = seen.end - key0;
    uint32_t hidden = 0;
    if (work_tile->view.mask) { /* bit of a key: its number among the thread's. The mask is all that is left to ask. */
      const uint8_t *mask = work_tile->view.mask + i * work_tile->view.mask_stride;
      const int first = first_custom_key(work_tile, seen);
#pragma unroll 1
      for (int e = 0; e < SCORES / 2; e++) {
        const int key = key0 + e / 2 * 8 + e % 2;
        if (key >= first && key < seen.end && mask[key] == 0) hidden |= 1u << e;
      }
    }
#pragma unroll
    for (int e = 0; e < SCORES / 2; e++) {
      const int key = e / 2 * 8 + e % 2; /* from key0 */
      const bool visible = key >= from && key < to && (hidden >> e & 1) == 0;
      float *x = &s[e / 2 * 4 + h * 2 + e % 2];
      *x = visible ? *x : MINUS_INF;
    }
  }
}

#endif
