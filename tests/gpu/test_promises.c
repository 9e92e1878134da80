/* Promises 1 to 5 on random cases of every feature, and on every head dimension that
 * semantics.md names. */
#include <stdio.h>
#include <stdlib.h>

#include "../promises/known_logits.h"
#include "support.h"

/* How many cases a promise is held to, unless EXTATTN_GPU_CASES says otherwise. */
static int num_cases(void) {
  const char *asked = getenv("EXTATTN_GPU_CASES");
  if (asked) return (int)strtol(asked, NULL, 10);
  return small ? 2 : 60;
}

static void hold(const ea_promise *promise, const ea_gen_options *options, int *kept) {
  ea_spec spec;
  ea_verdict verdict = {.outcome = EA_KEPT};
  ea_promise_draw(promise, options, &spec);
  promise->check(&gpu, &spec, &verdict);
  *kept += verdict.outcome == EA_KEPT;
  if (verdict.outcome != EA_BROKEN) return;
  char text[512];
  ea_spec_describe(&spec, text, sizeof text);
  fail_msg("promise %s broken on seed %llu (%s): %s", promise->name, (unsigned long long)options->seed, text,
           verdict.text);
}

static void test_promise(void **state) {
  const ea_promise *promise = *state;
  int kept = 0;
  for (int seed = 1; seed <= num_cases(); seed++) {
    ea_gen_options options = EA_GEN_OPTIONS_INIT;
    options.seed = (uint64_t)seed;
    options.dtype = seed / 2 % 2 ? EA_F16 : EA_BF16; /* what the kernels take */
    if (small) options.max_work = 200000;
    hold(promise, &options, &kept);
  }
  print_message("         %s: %d of %d kept, the others do not speak of this promise\n", promise->name, kept,
                num_cases());
  assert_true(kept > 0);
}

/* Head dimensions of queries and keys, and of values. */
static const int32_t dims[][2] = {{64, 64},   {96, 96},   {128, 128}, {192, 192}, {256, 256}, {512, 512},
                                  {192, 128}, {288, 256}, {576, 512}, {576, 576}, {1, 1},     {13, 13},
                                  {80, 80},   {200, 200}, {40, 64},   {8, 512},   {320, 256}, {257, 3}};

static void test_head_dims(void **state) {
  const ea_promise *promise = *state;
  int kept = 0;
  for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
    if (small && i % 4 != 0) continue;
    for (int type = 0; type < 2; type++) {
      ea_gen_options options = EA_GEN_OPTIONS_INIT;
      options.seed = 1000 + 2 * i; /* even: bits may re-cut it */
      options.dtype = type ? EA_F16 : EA_BF16;
      options.head_dim = dims[i][0];
      options.head_dim_v = dims[i][1];
      if (small) options.max_work = 200000;
      hold(promise, &options, &kept);
    }
  }
  assert_true(kept > 0);
}

/* The measurement's configurations, long enough for every kind of tile. */
static void test_accuracy_of_measured_shapes(void **state) {
  (void)state;
  static const int32_t measured_dims[] = {64, 128, 256, 512};
  static const int32_t heads[2][2] = {{16, 8}, {32, 4}};
  const int32_t none = 0, tokens = small ? 100 : 1200;
  int kept = 0;
  for (int i = 0; i < 16; i++) {
    ea_gen_options options = EA_GEN_OPTIONS_INIT;
    options.seed = (uint64_t)(2000 + i);
    options.max_work = INT64_MAX;
    options.dtype = options.cache_dtype = EA_BF16;
    options.head_dim = options.head_dim_v = measured_dims[i / 4];
    options.num_q_heads = heads[i / 2 % 2][0];
    options.num_kv_heads = heads[i / 2 % 2][1];
    options.window_left = i % 2 ? 1024 : -1;
    options.num_seqs = 1;
    options.prefix = &none;
    options.extend = &tokens;
    options.causal = EA_YES;
    options.custom_mask = options.skip_prefix = options.skip_extend = EA_NO;
    options.sinks = options.shared_kv = EA_NO;
    options.logit_cap = options.softmax_scale = -1;
    options.xai_temperature_len = -1;
    hold(ea_promise_find("accuracy"), &options, &kept);
  }
  assert_int_equal(kept, 16);
}

static void test_known_logits(void **state) {
  (void)state;
  assert_true(check_known_logits(gpu.context, &gpu.plan) > 0);
}

int test_promises(void) {
  struct CMUnitTest tests[64] = {{0}};
  size_t count = 0;
  static char names[64][64];
  for (int p = 0; p < ea_num_promises; p++) {
    snprintf(names[count], sizeof names[count], "promise_%s", ea_promises[p].name);
    tests[count] = (struct CMUnitTest){names[count], test_promise, NULL, NULL, (void *)&ea_promises[p]};
    count++;
  }
  static const char *const by_dim[] = {"accuracy", "extremes", "bits", "unseen", "written"};
  for (size_t i = 0; i < sizeof by_dim / sizeof by_dim[0]; i++) {
    snprintf(names[count], sizeof names[count], "head_dims_%s", by_dim[i]);
    tests[count] = (struct CMUnitTest){names[count], test_head_dims, NULL, NULL, (void *)ea_promise_find(by_dim[i])};
    count++;
  }
  tests[count++] = (struct CMUnitTest)cmocka_unit_test(test_known_logits);
  tests[count++] = (struct CMUnitTest)cmocka_unit_test(test_accuracy_of_measured_shapes);
  return _cmocka_run_group_tests("promises", tests, count, NULL, NULL);
}
