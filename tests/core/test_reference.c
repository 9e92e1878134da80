/* The float64 reference against the definition written down a second time in another shape
 * (plain sums of exp, no maximum taken out, visibility as a list of reasons not to see), over
 * every combination of options; then promises 1 and 2, and values known by hand. */
#include <math.h>

#include "common/numeric.h"
#include "fixture.h"

static ea_status run_reference(const fixture *f) {
  ea_context *context = NULL;
  ea_plan *plan = NULL;
  ea_plan_options options = EA_PLAN_OPTIONS_INIT;
  options.family = EA_FAMILY_REFERENCE;
  ea_status status = ea_context_create(NULL, &context);
  if (!status) status = ea_plan_create(context, &f->problem, &options, &plan);
  if (!status) status = ea_run(plan, &f->batch, NULL, 0, NULL);
  ea_plan_destroy(plan);
  ea_context_destroy(context);
  return status;
}

static bool hidden(const fixture *f, int b, int i, int j) {
  const ea_problem *p = &f->problem;
  const int P = f->kv_indptr[b + 1] - f->kv_indptr[b];
  const int E = f->qo_indptr[b + 1] - f->qo_indptr[b];
  const int W = p->window_left;
  const bool is_new = j >= P;
  if (!is_new && p->skip_prefix) return true;
  if (is_new && p->skip_extend) return true;
  if (W > 0 && P + i > j + W) return true;
  if (W > 0 && !p->causal && is_new && j > P + i + W) return true;
  if (!p->has_custom_mask) return p->causal && is_new && j - P > i;
  if (!is_new && p->skip_prefix_custom_mask) return false;
  const int offset = W > 0 && f->batch.window_kv_offsets ? f->window_kv_offsets[b] : 0;
  return f->custom_mask[f->mask_indptr[b] + (int64_t)i * (offset + P + E) + offset + j] == 0;
}

/* k or v of key j, as double. */
static const float *key_of(const fixture *f, int b, int j, int kv_head, bool value) {
  const int P = f->kv_indptr[b + 1] - f->kv_indptr[b];
  const int dim = value && !f->problem.shared_kv ? FIX_DIM_V : FIX_DIM;
  const bool from_v = value && !f->problem.shared_kv;
  const float *cache = from_v ? f->v_cache : f->k_cache;
  const float *fresh = from_v ? f->v : f->k;
  const float *base = j < P ? cache + f->kv_indices[f->kv_indptr[b] + j] * FIX_KV_HEADS * dim
                            : fresh + (f->qo_indptr[b] + j - P) * FIX_KV_HEADS * dim;
  return base + kv_head * dim;
}

static double score_of(const fixture *f, int b, int i, int j, int head) {
  const ea_problem *p = &f->problem;
  const int P = f->kv_indptr[b + 1] - f->kv_indptr[b];
  const float *q = f->q + ((f->qo_indptr[b] + i) * FIX_Q_HEADS + head) * FIX_DIM;
  const float *k = key_of(f, b, j, head / 2, false);
  double s = 0.0;
  for (int d = FIX_DIM - 1; d >= 0; --d) s += (double)q[d] * (double)k[d];
  s *= p->softmax_scale > 0 ? p->softmax_scale : 1.0 / sqrt(FIX_DIM);
  if (j < P) s *= p->k_scale;
  if (p->logit_cap > 0) s = p->logit_cap * tanh(s / p->logit_cap);
  const double position = P + i;
  const double length = (double)p->xai_temperature_len;
  return length > 0 && position > length ? s * log(position) / log(length) : s;
}

static void assert_near(double found, double wanted, unsigned options, const char *what) {
  if (found == wanted || fabs(found - wanted) <= 1e-6 * (1 + fabs(wanted))) return;
  fail_msg("options 0x%x: %s is %.9g, wanted %.9g", options, what, found, wanted);
}

static void assert_row(const fixture *f, int b, int i, int head, unsigned options) {
  const int P = f->kv_indptr[b + 1] - f->kv_indptr[b];
  const int E = f->qo_indptr[b + 1] - f->qo_indptr[b];
  double sum = 0.0;
  double values[FIX_DIM_V] = {0};
  bool any = false;
  for (int j = 0; j < P + E; ++j) {
    if (hidden(f, b, i, j)) continue;
    const double weight = exp(score_of(f, b, i, j, head));
    const float *v = key_of(f, b, j, head / 2, true);
    for (int d = 0; d < FIX_DIM_V; ++d) values[d] += weight * (double)v[d] * (j < P ? f->problem.v_scale : 1.0);
    sum += weight;
    any = true;
  }
  if (any && f->problem.has_sinks) sum += exp((double)f->sinks[head]);
  const int row = (f->qo_indptr[b] + i) * FIX_Q_HEADS + head;
  for (int d = 0; d < FIX_DIM_V; ++d) {
    assert_near((double)f->out[row * FIX_DIM_V + d], any ? values[d] / sum : 0.0, options, "out");
  }
  assert_near((double)f->lse[row], any ? log(sum) : -(double)INFINITY, options, "lse");
}

static fixture with_options(unsigned options) {
  fixture f = fixture_make();
  f.problem.causal = options & 1;
  f.problem.window_left = options & 2 ? 3 : -1;
  if (options & 4) fixture_use_mask(&f);
  f.problem.skip_prefix_custom_mask = options & 8;
  f.problem.skip_prefix = options & 16;
  f.problem.skip_extend = options & 32;
  if (options & 64) fixture_use_sinks(&f);
  f.problem.logit_cap = options & 128 ? 1.5 : 0.0;
  const int64_t len = options & 1 ? 2 : 8; /* queries sit before, at and past both */
  f.problem.xai_temperature_len = options & 256 ? len : -1;
  f.problem.k_scale = options & 512 ? 0.7 : 1.0;
  f.problem.v_scale = options & 512 ? 1.9 : 1.0;
  f.problem.softmax_scale = options & 1024 ? 0.25 : 0.0;
  f.problem.shared_kv = options & 2048;
  return f;
}

static void equals_the_definition(void **state) {
  (void)state;
  for (unsigned options = 0; options < 4096; ++options) {
    fixture f = with_options(options);
    assert_int_equal(run_reference(&f), EA_OK);
    for (int b = 0; b < FIX_SEQS; ++b) {
      for (int i = 0; i < f.qo_indptr[b + 1] - f.qo_indptr[b]; ++i) {
        for (int head = 0; head < FIX_Q_HEADS; ++head) assert_row(&f, b, i, head, options);
      }
    }
    fixture_free(&f);
  }
}

/* A mask whose rows begin with columns that are not used. */
static void skips_the_offset_columns_of_a_mask(void **state) {
  (void)state;
  fixture f = fixture_make();
  fixture_use_mask(&f);
  f.problem.skip_prefix_custom_mask = false;
  f.problem.window_left = 4;
  f.window_kv_offsets[0] = 2;
  f.window_kv_offsets[2] = 1;
  f.mask_indptr[1] = f.mask_indptr[2] = 5 * 13;
  f.batch.custom_mask_bytes = 5 * 13 + 3 * 4;
  free(f.custom_mask);
  f.custom_mask = fix_memory((size_t)f.batch.custom_mask_bytes);
  for (int i = 0; i < f.batch.custom_mask_bytes; ++i) f.custom_mask[i] = (uint8_t)(i % 5 < 2 ? 0 : i);
  f.batch.custom_mask = f.custom_mask;
  f.batch.window_kv_offsets = f.window_kv_offsets;
  assert_int_equal(run_reference(&f), EA_OK);
  for (int head = 0; head < FIX_Q_HEADS; ++head) {
    for (int i = 0; i < 5; ++i) assert_row(&f, 0, i, head, 4);
    for (int i = 0; i < 3; ++i) assert_row(&f, 2, i, head, 4);
  }
  fixture_free(&f);
}

/* Promise 1: rows that see no key, with a sink too. */
static void rows_without_keys_are_zero(void **state) {
  (void)state;
  fixture f = fixture_make();
  fixture_use_sinks(&f);
  f.problem.skip_extend = true; /* the third sequence has no prefix */
  assert_int_equal(run_reference(&f), EA_OK);
  for (int row = 5 * FIX_Q_HEADS; row < FIX_TOKENS * FIX_Q_HEADS; ++row) {
    assert_true(isinf(f.lse[row]) && f.lse[row] < 0);
    for (int d = 0; d < FIX_DIM_V; ++d) assert_true(f.out[row * FIX_DIM_V + d] == 0.0F);
  }
  for (int row = 0; row < 5 * FIX_Q_HEADS; ++row) assert_true(isfinite(f.lse[row]));
  fixture_free(&f);
}

/* Promise 2: NaN in every slot that nobody has, and in keys outside of the window. */
static void invisible_keys_are_not_read(void **state) {
  (void)state;
  fixture f = fixture_make();
  f.problem.window_left = 2;
  const int unused[] = {1, 4, 6, 9, 10, 13, 14, 15, 17, 18, /* outside the window: */ 19, 0, 7, 3};
  for (size_t s = 0; s < sizeof unused / sizeof unused[0]; ++s) {
    for (int d = 0; d < FIX_KV_HEADS * FIX_DIM; ++d) f.k_cache[unused[s] * FIX_KV_HEADS * FIX_DIM + d] = NAN;
    for (int d = 0; d < FIX_KV_HEADS * FIX_DIM_V; ++d) f.v_cache[unused[s] * FIX_KV_HEADS * FIX_DIM_V + d] = INFINITY;
  }
  assert_int_equal(run_reference(&f), EA_OK);
  for (int row = 0; row < FIX_TOKENS * FIX_Q_HEADS; ++row) {
    assert_true(isfinite(f.lse[row]));
    for (int d = 0; d < FIX_DIM_V; ++d) assert_true(isfinite(f.out[row * FIX_DIM_V + d]));
  }
  fixture_free(&f);
}

/* A visible NaN, on the other hand, is an honest part of the answer of those who see it. */
static void visible_nan_reaches_its_rows_only(void **state) {
  (void)state;
  fixture f = fixture_make();
  f.k[6 * FIX_KV_HEADS * FIX_DIM] = NAN; /* second token of the last sequence, first K/V head */
  assert_int_equal(run_reference(&f), EA_OK);
  for (int t = 0; t < FIX_TOKENS; ++t) {
    for (int head = 0; head < FIX_Q_HEADS; ++head) {
      assert_int_equal(isnan(f.lse[t * FIX_Q_HEADS + head]) != 0, t >= 6 && head < 2);
    }
  }
  fixture_free(&f);
}

/* Equal keys: the mean of the values, and lse the log of their number (plus the sink). */
static void equal_keys_give_the_mean(void **state) {
  (void)state;
  fixture f = fixture_make();
  fixture_use_sinks(&f);
  for (int i = 0; i < FIX_TOKENS * FIX_Q_HEADS * FIX_DIM; ++i) f.q[i] = 0.0F;
  for (int head = 0; head < FIX_Q_HEADS; ++head) f.sinks[head] = logf((float)head + 1.0F);
  for (int t = 0; t < FIX_TOKENS; ++t) {
    for (int d = 0; d < FIX_KV_HEADS * FIX_DIM_V; ++d) f.v[t * FIX_KV_HEADS * FIX_DIM_V + d] = (float)t;
  }
  assert_int_equal(run_reference(&f), EA_OK);
  for (int i = 0; i < 3; ++i) { /* the last sequence: tokens 5, 6, 7 and no prefix */
    for (int head = 0; head < FIX_Q_HEADS; ++head) {
      const int row = (5 + i) * FIX_Q_HEADS + head;
      const double denominator = (i + 1) + (head + 1);
      double sum = 0;
      for (int t = 5; t <= 5 + i; ++t) sum += t;
      assert_near((double)f.out[row * FIX_DIM_V], sum / denominator, 0, "out");
      assert_near((double)f.lse[row], log(denominator), 0, "lse");
    }
  }
  fixture_free(&f);
}

/* Scores of thousands, where a plain exp would overflow. */
static void large_scores_do_not_overflow(void **state) {
  (void)state;
  fixture f = fixture_make();
  fixture_use_sinks(&f);
  f.problem.softmax_scale = 1e6;
  assert_int_equal(run_reference(&f), EA_OK);
  for (int row = 0; row < FIX_TOKENS * FIX_Q_HEADS; ++row) {
    assert_true(isfinite(f.lse[row]));
    for (int d = 0; d < FIX_DIM_V; ++d) assert_true(fabsf(f.out[row * FIX_DIM_V + d]) <= 2.0F);
  }
  fixture_free(&f);
}

/* Every type of tensor and cache: the same numbers, rounded to a type that holds them all. */
static void stores_and_loads_every_type(void **state) {
  (void)state;
  const ea_dtype dtypes[] = {EA_F32, EA_F16, EA_BF16};
  const ea_dtype caches[] = {EA_DTYPE_NONE, EA_E4M3, EA_E5M2};
  enum { NEW = FIX_TOKENS * FIX_Q_HEADS * FIX_DIM, POOL = FIX_PAGES * FIX_PAGE_SIZE * FIX_KV_HEADS * FIX_DIM };
  for (int a = 0; a < 3; ++a) {
    for (int c = 0; c < 3; ++c) {
      fixture narrow = fixture_make();
      fixture wide = fixture_make();
      float *const tensors[][2] = {{narrow.q, wide.q},
                                   {narrow.k, wide.k},
                                   {narrow.v, wide.v},
                                   {narrow.k_cache, wide.k_cache},
                                   {narrow.v_cache, wide.v_cache}};
      const int counts[] = {NEW, FIX_TOKENS * FIX_KV_HEADS * FIX_DIM, FIX_TOKENS * FIX_KV_HEADS * FIX_DIM_V, POOL,
                            FIX_PAGES * FIX_PAGE_SIZE * FIX_KV_HEADS * FIX_DIM_V};
      for (int t = 0; t < 5; ++t) {
        const ea_dtype dtype = t >= 3 && caches[c] ? caches[c] : dtypes[a];
        for (int i = 0; i < counts[t]; ++i) {
          const double eighth = rint((double)tensors[t][1][i] * 4) / 4; /* 9 values up to 2: in e5m2 too */
          const double kept = fabs(eighth) > 1 ? rint(eighth * 2) / 2 : eighth;
          tensors[t][1][i] = (float)kept;
          ea_store_double(tensors[t][0], dtype, i, kept);
        }
      }
      narrow.problem.dtype = dtypes[a];
      narrow.problem.cache_dtype = caches[c];
      assert_int_equal(run_reference(&narrow), EA_OK);
      assert_int_equal(run_reference(&wide), EA_OK);
      assert_memory_equal(narrow.lse, wide.lse, FIX_LSE_BYTES);
      for (int i = 0; i < FIX_TOKENS * FIX_Q_HEADS * FIX_DIM_V; ++i) {
        const double half_ulp = dtypes[a] == EA_BF16 ? 0x1p-8 : dtypes[a] == EA_F16 ? 0x1p-11 : 0x1p-24;
        const double found = ea_load_double(narrow.out, dtypes[a], i);
        assert_true(fabs(found - (double)wide.out[i]) <= half_ulp * fabs((double)wide.out[i]) + 1e-7);
      }
      fixture_free(&narrow);
      fixture_free(&wide);
    }
  }
}

/* Sinks and slots in their other types. */
static void reads_other_index_and_sink_types(void **state) {
  (void)state;
  fixture plain = fixture_make();
  fixture other = fixture_make();
  fixture_use_sinks(&plain);
  fixture_use_mask(&plain);
  fixture_use_sinks(&other);
  fixture_use_mask(&other);
  int64_t slots[FIX_PREFIX];
  for (int i = 0; i < FIX_PREFIX; ++i) slots[i] = plain.kv_indices[i];
  const int32_t starts[FIX_SEQS] = {0, 55, 55};
  other.problem.index_dtype = EA_I64;
  other.problem.mask_indptr_dtype = EA_I32;
  other.problem.sinks_dtype = EA_DTYPE_NONE;
  other.batch.kv_indices = slots;
  other.batch.mask_indptr = starts;
  assert_int_equal(run_reference(&plain), EA_OK);
  assert_int_equal(run_reference(&other), EA_OK);
  assert_memory_equal(plain.out, other.out, FIX_OUT_BYTES);
  assert_memory_equal(plain.lse, other.lse, FIX_LSE_BYTES);
  fixture_free(&plain);
  fixture_free(&other);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equals_the_definition),
      cmocka_unit_test(skips_the_offset_columns_of_a_mask),
      cmocka_unit_test(rows_without_keys_are_zero),
      cmocka_unit_test(invisible_keys_are_not_read),
      cmocka_unit_test(visible_nan_reaches_its_rows_only),
      cmocka_unit_test(equal_keys_give_the_mean),
      cmocka_unit_test(large_scores_do_not_overflow),
      cmocka_unit_test(stores_and_loads_every_type),
      cmocka_unit_test(reads_other_index_and_sink_types),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
