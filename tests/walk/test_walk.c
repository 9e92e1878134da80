/* The rules that the CPU backend and the kernels share (plan/walk.h), by brute force:
 * every small size and every option against the rules of extattn.h written down a second time, in 64
 * bits and without shortcuts; and the largest sizes, where 32 bits are nearly not enough. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../core/cmocka_all.h"

#include "plan/walk.h"

/* Whether query i sees key j, as extattn.h says it. */
static bool sees(const ea_view *view, int64_t i, int64_t j) {
  const int64_t P = view->prefix, W = view->window;
  const bool is_prefix = j < P;
  bool visible;
  if (view->mask) {
    visible = (view->mask_skips_prefix && is_prefix) || view->mask[i * view->mask_stride + j] != 0;
  } else if (view->causal) {
    visible = is_prefix || j - P <= i;
  } else {
    visible = true;
  }
  if (W > 0 && P + i > j + W) visible = false;
  if (W > 0 && !view->causal && !is_prefix && j > P + i + W) visible = false;
  if (view->skip_prefix && is_prefix) visible = false;
  if (view->skip_extend && !is_prefix) visible = false;
  return visible;
}

static void describe(const ea_view *view, char *text, size_t n) {
  snprintf(text, n, "P %d, E %d, W %d%s%s%s%s%s", view->prefix, view->extend, view->window,
           view->causal ? ", causal" : "", view->skip_prefix ? ", skip_prefix" : "",
           view->skip_extend ? ", skip_extend" : "", view->mask ? ", mask" : "",
           view->mask_skips_prefix ? " (prefix skipped)" : "");
}

#define FAIL_FOR(view, ...)                                                                                            \
  do {                                                                                                                 \
    char described[160];                                                                                               \
    describe(view, described, sizeof described);                                                                       \
    print_error("%s: ", described);                                                                                    \
    print_error(__VA_ARGS__);                                                                                          \
    print_error("\n");                                                                                                 \
    fail();                                                                                                            \
  } while (0)

static bool seen_by_some(const ea_view *view, int32_t i0, int32_t i1, int64_t j) {
  for (int32_t i = i0; i < i1; i++) {
    if (sees(view, i, j)) return true;
  }
  return false;
}

/* ------------------------------------------------------------------------------------
 * Small sizes, all of them
 * ---------------------------------------------------------------------------------- */

enum { MAX_PREFIX = 5, MAX_EXTEND = 5, MAX_WINDOW = 11, MAX_KEYS = MAX_PREFIX + MAX_EXTEND };

/* Every mask that matters: a judgement made without reading the mask must hold for the one
 * that hides all and be exact for it, a range for the one that shows all. */
typedef enum mask_kind { NO_MASK, HIDES_ALL, SHOWS_ALL, MIXED, NUM_MASK_KINDS } mask_kind;

static void fill_mask(mask_kind kind, uint8_t *mask, size_t n) {
  for (size_t x = 0; x < n; x++) {
    const uint8_t mixed = (uint8_t)(x * 2654435761u >> 7 & 1 ? 0x80 >> x % 8 : 0);
    mask[x] = kind == HIDES_ALL ? 0 : kind == SHOWS_ALL ? 255 : mixed;
  }
}

static void for_every_small_view(void (*check)(const ea_view *view, mask_kind kind)) {
  uint8_t mask[MAX_EXTEND * (MAX_KEYS + 3)];
  for (int32_t p = 0; p <= MAX_PREFIX; p++) {
    for (int32_t e = 1; e <= MAX_EXTEND; e++) {
      for (int32_t w = 0; w <= MAX_WINDOW; w++) {
        for (int flags = 0; flags < 16; flags++) {
          for (int kind = 0; kind < NUM_MASK_KINDS; kind++) {
            ea_view view = {.prefix = p, .extend = e, .window = w};
            view.causal = flags & 1;
            view.skip_prefix = flags & 2;
            view.skip_extend = flags & 4;
            view.mask_skips_prefix = flags & 8;
            if (kind != NO_MASK) {
              fill_mask((mask_kind)kind, mask, sizeof mask);
              view.mask = mask + 3; /* as behind a window offset of 3 */
              view.mask_stride = p + e + 3;
            }
            check(&view, (mask_kind)kind);
          }
        }
      }
    }
  }
}

static void check_visible(const ea_view *view, mask_kind kind) {
  (void)kind;
  for (int32_t i = 0; i < view->extend; i++) {
    for (int32_t j = 0; j < view->prefix + view->extend; j++) {
      if (ea_visible(view, i, j) != sees(view, i, j)) {
        FAIL_FOR(view, "query %d, key %d: ea_visible says %d", i, j, ea_visible(view, i, j));
      }
    }
  }
}

/* Nothing visible outside; and, where the mask does not hide it, something at both ends. */
static void check_visible_keys(const ea_view *view, mask_kind kind) {
  const int32_t total = view->prefix + view->extend;
  for (int32_t i0 = 0; i0 < view->extend; i0++) {
    for (int32_t i1 = i0 + 1; i1 <= view->extend; i1++) {
      const ea_key_range range = ea_visible_keys(view, i0, i1);
      if (range.first < range.end && (range.first < 0 || range.end > total)) {
        FAIL_FOR(view, "queries [%d, %d): keys [%d, %d) leave the sequence", i0, i1, range.first, range.end);
      }
      for (int32_t j = 0; j < total; j++) {
        const bool inside = range.first <= j && j < range.end;
        if (!inside && seen_by_some(view, i0, i1, j)) {
          FAIL_FOR(view, "queries [%d, %d): key %d is visible, outside [%d, %d)", i0, i1, j, range.first, range.end);
        }
      }
      if (range.first >= range.end || (kind != NO_MASK && kind != SHOWS_ALL)) continue;
      if (!seen_by_some(view, i0, i1, range.first) || !seen_by_some(view, i0, i1, range.end - 1)) {
        FAIL_FOR(view, "queries [%d, %d): an end of [%d, %d) is not visible", i0, i1, range.first, range.end);
      }
    }
  }
}

static bool all_seen(const ea_view *view, int32_t i0, int32_t i1, int32_t j0, int32_t j1) {
  for (int32_t i = i0; i < i1; i++) {
    for (int32_t j = j0; j < j1; j++) {
      if (j >= view->prefix + view->extend || !sees(view, i, j)) return false;
    }
  }
  return true;
}

/* Leaving the mask out must be right, and must be done wherever it is. */
static void check_tile_needs_mask(const ea_view *view, mask_kind kind) {
  const int32_t beyond = view->prefix + view->extend + 3; /* a last tile ends behind the last key */
  for (int32_t i0 = 0; i0 < view->extend; i0++) {
    for (int32_t i1 = i0 + 1; i1 <= view->extend; i1++) {
      for (int32_t j0 = 0; j0 < beyond; j0++) {
        for (int32_t j1 = j0 + 1; j1 <= beyond; j1++) {
          const bool needs = ea_tile_needs_mask(view, i0, i1, j0, j1);
          const bool all = all_seen(view, i0, i1, j0, j1);
          const ea_key_range unmasked = ea_unmasked_keys(view, i0, i1);
          if (needs == (unmasked.first <= j0 && j1 <= unmasked.end)) {
            FAIL_FOR(view, "queries [%d, %d), keys [%d, %d): needs a mask: %d, but unmasked are [%d, %d)", i0, i1, j0,
                     j1, needs, unmasked.first, unmasked.end);
          }
          const bool exact = kind == NO_MASK || kind == HIDES_ALL;
          if ((!needs && !all) || (exact && needs && all)) {
            FAIL_FOR(view, "queries [%d, %d), keys [%d, %d): needs a mask: %d, all visible: %d", i0, i1, j0, j1, needs,
                     all);
          }
        }
      }
    }
  }
}

static void test_visible_small(void **state) {
  (void)state;
  for_every_small_view(check_visible);
}

static void test_visible_keys_small(void **state) {
  (void)state;
  for_every_small_view(check_visible_keys);
}

static void test_tile_needs_mask_small(void **state) {
  (void)state;
  for_every_small_view(check_tile_needs_mask);
}

/* ------------------------------------------------------------------------------------
 * Large sizes: the same claims at the positions where something changes
 * ---------------------------------------------------------------------------------- */

/* Some queries, and some keys around all the places where visibility turns for them. */
enum { MAX_POINTS = 64 };
typedef struct points {
  int32_t at[MAX_POINTS];
  int count;
} points;

static void add_around(points *p, int64_t center, int64_t end) {
  for (int64_t x = center - 1; x <= center + 1; x++) {
    if (x >= 0 && x < end && p->count < MAX_POINTS) p->at[p->count++] = (int32_t)x;
  }
}

static points points_of(const ea_view *view, int32_t i0, int32_t i1) {
  const int64_t P = view->prefix, W = view->window, total = P + view->extend;
  points keys = {.count = 0};
  const int64_t turns[] = {0, P, P + i0, P + i1, P + i0 - W, P + i1 - W, P + i0 + W, P + i1 + W, total};
  for (size_t t = 0; t < sizeof turns / sizeof turns[0]; t++) add_around(&keys, turns[t], total);
  return keys;
}

static void check_large_keys(const ea_view *view, int32_t i0, int32_t i1, const points *keys) {
  const ea_key_range range = ea_visible_keys(view, i0, i1);
  for (int a = 0; a < keys->count; a++) {
    const int32_t j = keys->at[a];
    for (int32_t i = i0; i < i1; i++) {
      if (ea_visible(view, i, j) != sees(view, i, j)) FAIL_FOR(view, "query %d, key %d: ea_visible is wrong", i, j);
    }
    const bool inside = range.first <= j && j < range.end;
    if (!inside && seen_by_some(view, i0, i1, j)) {
      FAIL_FOR(view, "queries [%d, %d): key %d is visible, outside [%d, %d)", i0, i1, j, range.first, range.end);
    }
  }
  if (range.first < range.end &&
      (!seen_by_some(view, i0, i1, range.first) || !seen_by_some(view, i0, i1, range.end - 1))) {
    FAIL_FOR(view, "queries [%d, %d): an end of [%d, %d) is not visible", i0, i1, range.first, range.end);
  }
}

/* What one row sees are at most two runs of keys, of which the ends are among the points; so
 * a tile is visible as a whole where its ends and the points inside it are. */
static void check_large_tiles(const ea_view *view, int32_t i0, int32_t i1, const points *keys) {
  const int64_t total = (int64_t)view->prefix + view->extend;
  for (int a = 0; a < keys->count; a++) {
    for (int b = 0; b < keys->count; b++) {
      const int32_t j0 = keys->at[a], j1 = keys->at[b] + 1;
      if (j0 >= j1) continue;
      bool all = true;
      for (int c = 0; c < keys->count; c++) {
        const int32_t j = keys->at[c];
        for (int32_t i = i0; i < i1 && j >= j0 && j < j1; i++) all = all && sees(view, i, j);
      }
      const ea_key_range unmasked = ea_unmasked_keys(view, i0, i1);
      const bool inside = unmasked.first <= j0 && j1 <= unmasked.end;
      if (ea_tile_needs_mask(view, i0, i1, j0, j1) == all || inside != all) {
        FAIL_FOR(view, "queries [%d, %d), keys [%d, %d): all visible: %d, unmasked [%d, %d)", i0, i1, j0, j1, all,
                 unmasked.first, unmasked.end);
      }
    }
    const int32_t tile_end = keys->at[a] / 256 * 256 + 256;
    if (tile_end > total && !ea_tile_needs_mask(view, i0, i1, tile_end - 256, tile_end)) {
      FAIL_FOR(view, "queries [%d, %d): the tile that ends at %d needs no mask", i0, i1, tile_end);
    }
  }
}

static void test_large(void **state) {
  (void)state;
  static const int32_t extends[] = {1, 2, 1000, INT32_C(1) << 30, EA_MAX_SEQ_LEN - 1, EA_MAX_SEQ_LEN};
  static const int32_t windows[] = {0, 1, 1000, INT32_C(1) << 30, EA_MAX_SEQ_LEN, INT32_MAX - 1, INT32_MAX};
  for (size_t e = 0; e < sizeof extends / sizeof extends[0]; e++) {
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
      for (int flags = 0; flags < 8; flags++) {
        ea_view view = {.prefix = EA_MAX_SEQ_LEN - extends[e], .extend = extends[e], .window = windows[w]};
        view.causal = flags & 1;
        view.skip_prefix = flags & 2;
        view.skip_extend = flags & 4;
        const int32_t starts[] = {0, view.extend / 2, ea_max_i32(0, view.extend - 3)};
        for (size_t s = 0; s < 3; s++) {
          const int32_t i0 = starts[s], i1 = ea_min_i32(view.extend, i0 + 3);
          const points keys = points_of(&view, i0, i1);
          check_large_keys(&view, i0, i1, &keys);
          check_large_tiles(&view, i0, i1, &keys);
        }
      }
    }
  }
}

/* ------------------------------------------------------------------------------------
 * Rows and temperature
 * ---------------------------------------------------------------------------------- */

static void test_rows(void **state) {
  (void)state;
  for (int32_t group = 1; group <= 17; group++) {
    for (int32_t extend = 0; extend <= 40; extend++) {
      for (int32_t row = 0; row < extend * group; row++) {
        const int32_t query = ea_row_query(row, group);
        assert_true(query * group <= row && row < (query + 1) * group);
      }
      for (int32_t tile_m = 1; tile_m <= 70; tile_m++) {
        const int64_t blocks = ea_row_blocks(extend, group, tile_m);
        assert_true(blocks * tile_m >= (int64_t)extend * group);
        assert_true((blocks - 1) * tile_m < (int64_t)extend * group || blocks == 0);
      }
    }
  }
  assert_int_equal(ea_row_query((int64_t)EA_MAX_SEQ_LEN * 64 - 1, 64), EA_MAX_SEQ_LEN - 1);
  assert_true(ea_row_blocks(EA_MAX_SEQ_LEN, 64, 64) == EA_MAX_SEQ_LEN);
}

static void test_temperature(void **state) {
  (void)state;
  static const int64_t lens[] = {2, 3, 100, 1024, INT64_C(1) << 33};
  static const int32_t positions[] = {0, 1, 2, 3, 4, 99, 100, 101, 1024, 1025, 131072, EA_MAX_SEQ_LEN};
  for (size_t l = 0; l < sizeof lens / sizeof lens[0]; l++) {
    for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
      const int32_t x = positions[p];
      const double expected = x > lens[l] ? log2((double)x) / log2((double)lens[l]) : 1.0;
      const float found = ea_temperature(x, lens[l], log2f((float)x), (float)(1.0 / log2((double)lens[l])));
      assert_true(fabs((double)found - expected) <= 1e-6 * expected);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_visible_small),
                                     cmocka_unit_test(test_visible_keys_small),
                                     cmocka_unit_test(test_tile_needs_mask_small),
                                     cmocka_unit_test(test_large),
                                     cmocka_unit_test(test_rows),
                                     cmocka_unit_test(test_temperature)};
  return cmocka_run_group_tests_name("walk", tests, NULL, NULL);
}
