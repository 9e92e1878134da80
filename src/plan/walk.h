/* One sequence of keys, seen from a block of its queries: which keys and tiles to visit,
 * which of them need a mask, and the mask itself. The CPU backend, the kernels and the
 * tests all use these functions, so they cannot disagree.
 *
 * Positions are 32-bit: a sequence has at most EA_MAX_SEQ_LEN keys (checked where the
 * index arrays are on the host). */
#ifndef EA_PLAN_WALK_H
#define EA_PLAN_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/hd.h"

/* Leaves room to round a position up to any tile without leaving 32 bits. */
#define EA_MAX_SEQ_LEN (INT32_MAX - 65535)

/* What the queries of one sequence may see. */
typedef struct ea_view {
  int32_t prefix; /* P: keys 0 .. P-1 are the cached prefix */
  int32_t extend; /* E: keys P .. P+E-1 are the new tokens, as are queries 0 .. E-1 */
  int32_t window; /* W >= 1, or 0: none */
  bool causal;
  bool skip_prefix;
  bool skip_extend;
  bool mask_skips_prefix; /* the custom mask says nothing about prefix keys */
  const uint8_t *mask;    /* byte (i, j) at mask[i * mask_stride + j], or NULL: no custom mask */
  int64_t mask_stride;
} ea_view;

/* Half-open range of keys. */
typedef struct ea_key_range {
  int32_t first;
  int32_t end;
} ea_key_range;

EA_HD int32_t ea_min_i32(int32_t a, int32_t b) {
  return a < b ? a : b;
}
EA_HD int32_t ea_max_i32(int32_t a, int32_t b) {
  return a > b ? a : b;
}

/* Whether query i sees key j, 0 <= i < E and 0 <= j < P+E. */
EA_HD bool ea_visible(const ea_view *view, int32_t i, int32_t j) {
  const int32_t position = view->prefix + i;
  const bool in_prefix = j < view->prefix;
  if (in_prefix ? view->skip_prefix : view->skip_extend) return false;
  if (view->window > 0) {
    if (position - j > view->window) return false;
    if (!view->causal && !in_prefix && j - position > view->window) return false;
  }
  if (view->mask) {
    if (in_prefix && view->mask_skips_prefix) return true;
    return view->mask[(int64_t)i * view->mask_stride + j] != 0;
  }
  return !view->causal || j <= position; /* j <= position holds for all of the prefix */
}

/* The keys that queries [i0, i1) can see at all, i0 < i1: no key outside is visible to any
 * of them. Empty when first >= end. A custom mask may hide more. */
EA_HD ea_key_range ea_visible_keys(const ea_view *view, int32_t i0, int32_t i1) {
  const int32_t total = view->prefix + view->extend;
  ea_key_range range = {0, total};
  if (view->causal && !view->mask) range.end = ea_min_i32(total, view->prefix + i1);
  if (view->window > 0) {
    range.first = ea_max_i32(0, view->prefix + i0 - view->window);
    if (!view->causal) {
      const int32_t last = view->prefix + i1 - 1; /* its right edge is last + W, which may pass INT32_MAX */
      if (total - 1 - last > view->window) range.end = ea_max_i32(view->prefix, last + view->window + 1);
    }
  }
  if (view->skip_prefix) range.first = ea_max_i32(range.first, view->prefix);
  if (view->skip_extend) range.end = ea_min_i32(range.end, view->prefix);
  return range;
}

/* Whether some query of [i0, i1) does not see some key of [j0, j1), judged without reading
 * the custom mask: false means that the mask test can be left out for the whole tile. */
EA_HD bool ea_tile_needs_mask(const ea_view *view, int32_t i0, int32_t i1, int32_t j0, int32_t j1) {
  if (j1 > view->prefix + view->extend) return true;
  if (view->skip_prefix && j0 < view->prefix) return true;
  if (view->skip_extend && j1 > view->prefix) return true;
  if (view->window > 0) {
    if (view->prefix + i1 - 1 - j0 > view->window) return true;
    if (!view->causal && j1 > view->prefix && j1 - 1 - (view->prefix + i0) > view->window) return true;
  }
  if (view->mask) return !(view->mask_skips_prefix && j1 <= view->prefix);
  return view->causal && j1 - 1 > view->prefix + i0;
}

/* The keys between which no tile needs a mask for queries [i0, i1): ea_tile_needs_mask(..., j0, j1)
 * is false exactly when first <= j0 and j1 <= end. One look at a block's start instead of one a tile. */
EA_HD ea_key_range ea_unmasked_keys(const ea_view *view, int32_t i0, int32_t i1) {
  ea_key_range range = {0, view->prefix + view->extend};
  if (view->skip_prefix) range.first = view->prefix;
  if (view->skip_extend) range.end = view->prefix;
  if (view->window > 0) {
    const int32_t last = view->prefix + i1 - 1;
    if (last > view->window) range.first = ea_max_i32(range.first, last - view->window);
    if (!view->causal && range.end - 1 - (view->prefix + i0) > view->window) {
      range.end = ea_max_i32(view->prefix, view->prefix + i0 + view->window + 1);
    }
  }
  if (view->mask) {
    range.end = view->mask_skips_prefix ? ea_min_i32(range.end, view->prefix) : range.first;
  } else if (view->causal) {
    range.end = ea_min_i32(range.end, view->prefix + i0 + 1);
  }
  return range;
}

/*
 * Query rows. A block's rows are (token, head of the group) pairs, the head fastest:
 * row r of a sequence is query r / group, head r % group of the K/V head's group. So the
 * heads of a group share every key tile that is loaded.
 */
EA_HD int32_t ea_row_query(int64_t row, int32_t group) {
  return (int32_t)(row / group);
}

/* Blocks of tile_m rows for E new tokens. */
EA_HD int64_t ea_row_blocks(int32_t extend, int32_t group, int32_t tile_m) {
  return ((int64_t)extend * group + tile_m - 1) / tile_m;
}

/* log2(x)/log2(L) for x > L, else 1; inv_log2_len = 1/log2(L). The reference computes it
 * in double by the definition; this is what the fast paths share. */
EA_HD float ea_temperature(int32_t position, int64_t len, float log2_position, float inv_log2_len) {
  return position > len ? log2_position * inv_log2_len : 1.0f;
}

#endif
