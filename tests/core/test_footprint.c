/* Views that share memory against brute force: every byte of small views is marked, and no pair that has one in common
 * may be called apart. The views of one buffer that engines make must be. Promise 5. */
#include "cmocka_all.h"
#include "problem/footprint.h"

enum { BUFFER = 4096, ROUNDS = 200000 };

static unsigned char buffer[BUFFER]; /* never touched: only its addresses count */

typedef struct view {
  size_t first; /* byte of the buffer */
  int64_t counts[2], strides[2];
  int32_t dim;
  ea_dtype dtype;
} view;

static ea_footprint footprint_of(const view *v) {
  const ea_strided tensor = {buffer + v->first, v->strides[0], v->strides[1]};
  return ea_tensor_footprint("view", tensor, v->counts[0], (int32_t)v->counts[1], v->dim, v->dtype);
}

/* Sets bit in every byte of marks that the view touches; returns whether a byte had another bit. */
static bool mark(const view *v, unsigned char *marks, unsigned char bit) {
  const size_t size = ea_dtype_size(v->dtype);
  bool met = false;
  for (int64_t t = 0; t < v->counts[0]; ++t) {
    for (int64_t h = 0; h < v->counts[1]; ++h) {
      unsigned char *row = marks + v->first + (size_t)(t * v->strides[0] + h * v->strides[1]) * size;
      for (size_t i = 0; i < (size_t)v->dim * size; ++i) {
        met = met || (row[i] & ~bit);
        row[i] |= bit;
      }
    }
  }
  return met;
}

static uint32_t next_random(uint64_t *random) {
  *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(*random >> 33);
}

static view random_view(uint64_t *random) {
  const ea_dtype dtypes[] = {EA_E4M3, EA_BF16, EA_F32};
  view v = {.dtype = dtypes[next_random(random) % 3]};
  for (int a = 0; a < 2; ++a) {
    v.counts[a] = next_random(random) % 5;
    v.strides[a] = next_random(random) % 4 ? 1 + next_random(random) % 48 : 1 + next_random(random) % 8;
  }
  v.dim = 1 + (int32_t)(next_random(random) % 6);
  v.first = next_random(random) % 100 * ea_dtype_size(v.dtype);
  return v;
}

/* As often as not the second view has the first one's strides, in bytes. */
static void follow(const view *first, view *second, uint64_t *random) {
  if (next_random(random) % 2) return;
  second->dtype = first->dtype;
  second->first = next_random(random) % 100 * ea_dtype_size(first->dtype);
  for (int a = 0; a < 2; ++a) second->strides[a] = first->strides[a];
}

static void views_that_meet_are_never_apart(void **state) {
  (void)state;
  uint64_t random = 20261203;
  int num_apart = 0, num_interleaved = 0, num_meeting = 0;
  for (int round = 0; round < ROUNDS; ++round) {
    const view a = random_view(&random);
    view b = random_view(&random);
    follow(&a, &b, &random);
    unsigned char marks[BUFFER] = {0};
    (void)mark(&a, marks, 1);
    const bool meet = mark(&b, marks, 2);
    const ea_footprint fa = footprint_of(&a);
    const ea_footprint fb = footprint_of(&b);
    const bool apart = ea_footprints_apart(&fa, &fb);
    assert_int_equal(ea_footprints_apart(&fb, &fa), apart);
    if (meet && apart) fail_msg("round %d: views that meet are called apart", round);
    num_meeting += meet;
    num_apart += apart;
    num_interleaved += apart && fa.begin < fb.end && fb.begin < fa.end;
  }
  assert_true(num_meeting > ROUNDS / 10 && num_apart > ROUNDS / 2 && num_interleaved > ROUNDS / 10);
}

/* [T, 6 heads of 4] in one buffer: q heads 0-2, k 3, v 4, out 5 upwards; and columns, and tokens. */
static void views_of_one_buffer_are_apart(void **state) {
  (void)state;
  const struct {
    view a, b;
    bool apart;
  } pairs[] = {
      {{0, {8, 3}, {24, 4}, 4, EA_BF16}, {24, {8, 3}, {24, 4}, 4, EA_BF16}, true},  /* heads 0-2, 3-5 */
      {{0, {8, 3}, {24, 4}, 4, EA_BF16}, {16, {8, 3}, {24, 4}, 4, EA_BF16}, false}, /* heads 0-2, 2-4 */
      {{0, {8, 3}, {24, 8}, 4, EA_BF16}, {8, {8, 3}, {24, 8}, 4, EA_BF16}, true},   /* even heads, odd heads */
      {{0, {8, 6}, {24, 4}, 2, EA_BF16}, {4, {8, 6}, {24, 4}, 2, EA_BF16}, true},   /* columns 0-1, 2-3 of each head */
      {{0, {8, 6}, {24, 4}, 3, EA_BF16}, {4, {8, 6}, {24, 4}, 2, EA_BF16}, false},  /* columns 0-2, 2-3 */
      {{0, {8, 2}, {4, 64}, 4, EA_BF16}, {64, {8, 2}, {4, 64}, 4, EA_BF16}, true}, /* heads outside: tokens 0-7, 8-15 */
      {{0, {8, 2}, {4, 64}, 4, EA_BF16}, {56, {8, 2}, {4, 64}, 4, EA_BF16}, false},  /* tokens 0-7, 7-14 */
      {{0, {8, 3}, {24, 4}, 4, EA_BF16}, {24, {8, 3}, {12, 1}, 1, EA_F32}, true},    /* an f32 beside 16-bit rows */
      {{46, {8, 1}, {24, 4}, 2, EA_BF16}, {2, {8, 1}, {24, 4}, 22, EA_BF16}, true},  /* rows over a stride's end */
      {{46, {8, 1}, {24, 4}, 2, EA_BF16}, {2, {8, 1}, {24, 4}, 23, EA_BF16}, false}, /* and one column more */
      {{0, {8, 6}, {24, 4}, 4, EA_BF16}, {384, {8, 6}, {24, 4}, 4, EA_BF16}, true},  /* one behind the other */
      {{0, {8, 6}, {24, 4}, 4, EA_BF16}, {382, {8, 6}, {24, 4}, 4, EA_BF16}, false}, /* nearly */
      {{0, {0, 6}, {24, 4}, 4, EA_BF16}, {0, {8, 6}, {24, 4}, 4, EA_BF16}, true},    /* no tokens, no memory */
  };
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
    const ea_footprint a = footprint_of(&pairs[i].a);
    const ea_footprint b = footprint_of(&pairs[i].b);
    unsigned char marks[BUFFER] = {0};
    (void)mark(&pairs[i].a, marks, 1);
    assert_int_equal(mark(&pairs[i].b, marks, 2), !pairs[i].apart);
    if (ea_footprints_apart(&a, &b) != pairs[i].apart) fail_msg("pair %zu", i);
    if (ea_footprints_apart(&b, &a) != pairs[i].apart) fail_msg("pair %zu, the other way round", i);
  }
}

static void huge_views_do_not_wrap(void **state) {
  (void)state;
  const ea_footprint all = ea_array_footprint("all", buffer, UINT64_MAX / 2, 8);
  const ea_footprint last = ea_array_footprint("last", (void *)UINTPTR_MAX, 1, 1);
  const ea_footprint none = ea_array_footprint("none", buffer + 1, 0, 8);
  const ea_footprint null = ea_array_footprint("null", NULL, UINT64_MAX, 8);
  const ea_footprint one = ea_array_footprint("one", buffer + 64, 1, 1);
  assert_true(all.end == UINT64_MAX && last.end == last.begin);
  assert_false(ea_footprints_apart(&all, &one));
  assert_true(ea_footprints_apart(&none, &all) && ea_footprints_apart(&null, &all));
  const view wide = {0, {2, 1}, {INT64_C(1) << 59, INT64_MAX}, 4, EA_F32}; /* one head: its stride is never taken */
  const ea_footprint far = footprint_of(&wide);
  assert_true(far.end == far.begin + (UINT64_C(1) << 61) + 16);
  assert_true(ea_footprints_apart(&far, &one));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(views_that_meet_are_never_apart),
      cmocka_unit_test(views_of_one_buffer_are_apart),
      cmocka_unit_test(huge_views_do_not_wrap),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
