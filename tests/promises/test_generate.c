/* The random cases themselves: a seed means one case, tokens hold the same numbers however
 * they are laid out, every feature comes up, hostile places are hostile, and a failing case
 * becomes small. What the promises are worth rests on these. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../core/cmocka_all.h"
#include "check/promises.h"
#include "check/random.h"
#include "common/numeric.h"

static ea_spec spec_of_seed(uint64_t seed) {
  ea_gen_options options = EA_GEN_OPTIONS_INIT;
  ea_spec spec;
  options.seed = seed;
  options.max_work = 1000000;
  ea_spec_random(&options, &spec);
  return spec;
}

static bool same_spec(const ea_spec *a, const ea_spec *b) {
  char text_a[4096], text_b[4096];
  ea_spec_describe(a, text_a, sizeof text_a);
  ea_spec_describe(b, text_b, sizeof text_b);
  return a->seed == b->seed && a->layout_seed == b->layout_seed && strcmp(text_a, text_b) == 0;
}

static void build(const ea_spec *spec, ea_case *c) {
  if (ea_spec_build(spec, c) != EA_OK) fail_msg("%s", ea_last_error());
}

/* ------------------------------------------------------------------------------------
 * Seeds
 * ---------------------------------------------------------------------------------- */

static void test_seed_means_one_case(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 20; seed++) {
    const ea_spec first = spec_of_seed(seed), second = spec_of_seed(seed), other = spec_of_seed(seed + 1000);
    ea_case a, b;
    assert_true(same_spec(&first, &second));
    assert_false(same_spec(&first, &other));
    build(&first, &a);
    build(&second, &b);
    assert_int_equal(a.num_storages, b.num_storages);
    for (size_t s = 0; s < a.num_storages; s++) {
      assert_int_equal(a.storages[s].bytes, b.storages[s].bytes);
      assert_memory_equal(a.storages[s].data, b.storages[s].data, a.storages[s].bytes);
    }
    ea_case_free(&a);
    ea_case_free(&b);
  }
}

/* Fixing one thing leaves the rest as it was drawn. */
static void test_options_are_independent(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 50; seed++) {
    ea_gen_options options = EA_GEN_OPTIONS_INIT;
    ea_spec drawn, forced;
    options.seed = seed;
    options.max_work = INT64_MAX; /* what a case costs decides about its lengths */
    ea_spec_random(&options, &drawn);
    options.logit_cap = 12.5;
    options.hostile = drawn.hostile ? EA_NO : EA_YES;
    ea_spec_random(&options, &forced);
    assert_true(forced.problem.logit_cap == 12.5);
    assert_int_equal(forced.hostile, !drawn.hostile);
    forced.problem.logit_cap = drawn.problem.logit_cap;
    forced.hostile = drawn.hostile;
    assert_true(same_spec(&drawn, &forced));
  }
}

/* Whatever can be drawn is drawn, often enough for a few hundred cases to meet it. */
static void test_every_feature_comes_up(void **state) {
  (void)state;
  enum { SEEDS = 400, AT_LEAST = 8 };
  enum {
    BF16,
    F16,
    F32,
    E4M3,
    E5M2,
    I64,
    MANY_HEADS,
    ODD_DIM,
    V_SMALLER,
    V_LARGER,
    PAGED,
    NO_SEQS,
    NO_PREFIX,
    NO_NEW,
    SHARED_PREFIX,
    WINDOW,
    FULL,
    MASK,
    MASK_PREFIX,
    MASK_OFFSETS,
    SINKS,
    SHARED_KV,
    SKIP_PREFIX,
    SKIP_EXTEND,
    CAP,
    TEMPERATURE,
    SCALE,
    K_SCALE,
    V_SCALE,
    HOSTILE,
    PEAKS,
    STRIDED,
    LATE,
    NUM_FEATURES
  };
  int count[NUM_FEATURES] = {0};
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    const ea_spec spec = spec_of_seed(seed);
    const ea_problem *p = &spec.problem;
    const int32_t dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim;
    count[BF16] += p->dtype == EA_BF16;
    count[F16] += p->dtype == EA_F16;
    count[F32] += p->dtype == EA_F32;
    count[E4M3] += p->cache_dtype == EA_E4M3;
    count[E5M2] += p->cache_dtype == EA_E5M2;
    count[I64] += p->index_dtype == EA_I64;
    count[MANY_HEADS] += p->num_kv_heads > 1 && p->num_q_heads > p->num_kv_heads;
    count[ODD_DIM] += p->head_dim % 2;
    count[V_SMALLER] += dim_v < p->head_dim;
    count[V_LARGER] += dim_v > p->head_dim;
    count[PAGED] += p->page_size > 1;
    count[NO_SEQS] += spec.num_seqs == 0;
    for (int32_t b = 0; b < spec.num_seqs; b++) {
      count[NO_PREFIX] += spec.seqs[b].prefix == 0;
      count[NO_NEW] += spec.seqs[b].extend == 0;
      count[SHARED_PREFIX] += spec.seqs[b].shared > 0;
    }
    count[WINDOW] += p->window_left > 0;
    count[FULL] += !p->causal;
    count[MASK] += p->has_custom_mask;
    count[MASK_PREFIX] += p->has_custom_mask && !p->skip_prefix_custom_mask;
    count[MASK_OFFSETS] += spec.window_kv_offsets;
    count[SINKS] += p->has_sinks;
    count[SHARED_KV] += p->shared_kv;
    count[SKIP_PREFIX] += p->skip_prefix;
    count[SKIP_EXTEND] += p->skip_extend;
    count[CAP] += p->logit_cap > 0;
    count[TEMPERATURE] += p->xai_temperature_len > 0;
    count[SCALE] += p->softmax_scale > 0;
    count[K_SCALE] += p->k_scale != 1.0;
    count[V_SCALE] += p->v_scale != 1.0;
    count[HOSTILE] += spec.hostile;
    count[PEAKS] += spec.peak != 1.0;
    count[STRIDED] += spec.cache_layout == EA_LAYOUT_INTERLEAVED || spec.kv_layout == EA_LAYOUT_HEAD_MAJOR;
    count[LATE] += spec.misalign > 0;
  }
  for (int f = 0; f < NUM_FEATURES; f++) {
    if (count[f] < AT_LEAST) fail_msg("feature %d came up %d times in %d cases", f, count[f], SEEDS);
  }
}

/* ------------------------------------------------------------------------------------
 * Contents
 * ---------------------------------------------------------------------------------- */

static const void *slot_row(const ea_case *c, const ea_cache *cache, int64_t slot, int32_t head, int32_t width) {
  const ea_problem *p = &c->problem;
  const int64_t head_stride = cache->head_stride ? cache->head_stride : width;
  const int64_t row_stride = cache->row_stride ? cache->row_stride : p->num_kv_heads * head_stride;
  const int64_t page_stride = cache->page_stride ? cache->page_stride : p->page_size * row_stride;
  const int64_t at = slot / p->page_size * page_stride + slot % p->page_size * row_stride + head * head_stride;
  return (const char *)cache->data + (size_t)at * ea_dtype_size(p->cache_dtype ? p->cache_dtype : p->dtype);
}

static int64_t slot_of(const ea_case *c, int64_t i) {
  return c->problem.index_dtype == EA_I64 ? ((const int64_t *)c->batch.kv_indices)[i]
                                          : ((const int32_t *)c->batch.kv_indices)[i];
}

/* The same tokens in other slots, pages and strides: the caches hold the same bytes for each. */
static void test_layout_moves_tokens_unchanged(void **state) {
  (void)state;
  int64_t compared = 0;
  for (uint64_t seed = 1; seed <= 60; seed++) {
    ea_spec here = spec_of_seed(seed), there = here;
    there.layout_seed++;
    there.cache_layout = (ea_layout)((here.cache_layout + 2) % EA_NUM_LAYOUTS);
    there.slot_order = (ea_slot_order)((here.slot_order + 1) % EA_NUM_SLOT_ORDERS);
    there.problem.page_size = here.problem.page_size == 1 ? 16 : 1;
    there.misalign = here.misalign ? 0 : 3;
    ea_case a, b;
    build(&here, &a);
    build(&there, &b);
    const ea_problem *p = &here.problem;
    const size_t bytes = (size_t)p->head_dim * ea_dtype_size(p->cache_dtype ? p->cache_dtype : p->dtype);
    const int64_t tokens = here.num_seqs ? a.batch.kv_indptr[here.num_seqs] : 0;
    for (int64_t i = 0; i < tokens; i++) {
      for (int32_t h = 0; h < p->num_kv_heads; h++, compared++) {
        const void *first = slot_row(&a, &a.batch.k_cache, slot_of(&a, i), h, p->head_dim);
        const void *second = slot_row(&b, &b.batch.k_cache, slot_of(&b, i), h, p->head_dim);
        assert_memory_equal(first, second, bytes);
      }
    }
    ea_case_free(&a);
    ea_case_free(&b);
  }
  assert_true(compared > 1000);
}

/* Slots that no sequence has hold NaN or Inf where hostile, and numbers where not. */
static void test_hostile_slots(void **state) {
  (void)state;
  int64_t unused[2] = {0, 0};
  for (uint64_t seed = 1; seed <= 60; seed++) {
    ea_spec spec = spec_of_seed(seed);
    const ea_problem *p = &spec.problem;
    ea_case c;
    build(&spec, &c);
    const int64_t slots = c.batch.num_pages * p->page_size,
                  tokens = spec.num_seqs ? c.batch.kv_indptr[spec.num_seqs] : 0;
    for (int64_t s = 0; s < slots; s++) {
      bool used = false;
      for (int64_t i = 0; i < tokens && !used; i++) used = slot_of(&c, i) == s;
      if (used) continue;
      const void *row = slot_row(&c, &c.batch.k_cache, s, p->num_kv_heads - 1, p->head_dim);
      for (int32_t d = 0; d < p->head_dim; d++) {
        const double x = ea_load_double(row, p->cache_dtype ? p->cache_dtype : p->dtype, d);
        assert_int_equal(isfinite(x) != 0, !spec.hostile);
      }
      unused[spec.hostile]++;
    }
    ea_case_free(&c);
  }
  assert_true(unused[0] > 10 && unused[1] > 10);
}

static void test_numbers_are_standard_normal(void **state) {
  (void)state;
  enum { N = 400001 };
  static double x[N];
  ea_rng rng = ea_rng_of(5);
  ea_rng_normal(&rng, x, N);
  double moments[5] = {0};
  for (int i = 0; i < N; i++) {
    double power = 1;
    for (int m = 1; m <= 4; m++) moments[m] += (power *= x[i]) / N;
  }
  assert_true(fabs(moments[1]) < 0.01 && fabs(moments[2] - 1) < 0.01);
  assert_true(fabs(moments[3]) < 0.03 && fabs(moments[4] - 3) < 0.06);
}

/* ------------------------------------------------------------------------------------
 * Shrinking
 * ---------------------------------------------------------------------------------- */

/* "Broken" by a window on any sequence with at least 3 cached and 2 new tokens. */
static void check_window(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict) {
  (void)subject;
  for (int32_t b = 0; b < spec->num_seqs; b++) {
    const bool long_enough = spec->seqs[b].prefix >= 3 && spec->seqs[b].extend >= 2;
    if (spec->problem.window_left > 0 && long_enough) verdict->outcome = EA_BROKEN;
  }
}

static void test_shrinks_to_what_matters(void **state) {
  (void)state;
  const ea_promise promise = {"window", 0, "", NULL, check_window};
  const ea_subject subject = {0};
  int shrunk = 0;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    ea_spec spec = spec_of_seed(seed);
    ea_verdict verdict = {EA_KEPT, ""};
    check_window(&subject, &spec, &verdict);
    if (verdict.outcome != EA_BROKEN) continue;
    ea_promise_shrink(&promise, &subject, 1000, &spec, &verdict);
    assert_int_equal(verdict.outcome, EA_BROKEN);
    assert_int_equal(spec.num_seqs, 1);
    assert_int_equal(spec.seqs[0].prefix, 3);
    assert_int_equal(spec.seqs[0].extend, 2);
    assert_int_equal(spec.problem.num_q_heads, 1);
    assert_int_equal(spec.problem.head_dim, 1);
    assert_false(spec.problem.has_custom_mask || spec.problem.has_sinks || spec.hostile || spec.misalign);
    shrunk++;
  }
  assert_true(shrunk >= 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_seed_means_one_case),     cmocka_unit_test(test_options_are_independent),
      cmocka_unit_test(test_every_feature_comes_up),  cmocka_unit_test(test_layout_moves_tokens_unchanged),
      cmocka_unit_test(test_hostile_slots),           cmocka_unit_test(test_numbers_are_standard_normal),
      cmocka_unit_test(test_shrinks_to_what_matters),
  };
  return cmocka_run_group_tests_name("generate", tests, NULL, NULL);
}
