/* The attention kernels on the emulated GPU, at every order of what is asynchronous: each shape keeps
 * the promises, and gives the same bits whenever copies and products happen.
 *
 *     test_emulated_orders portable|hopper [PATTERN]
 *
 * EA_EMULATED_CASES: random cases of a shape and promise (1). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../promises/known_logits.h"
#include "check/promises.h"
#include "check/runner.h"
#include "extattn.h"

static const char *const orders[] = {"early", "late", "1", "2"};
enum { NUM_ORDERS = sizeof orders / sizeof orders[0] };

static ea_subject gpu;

static void choose_order(int order) {
  setenv("EA_EMULATED_ORDER", orders[order], 1);
}

/* Head dimensions that between them take every shape of the family, some not their own. */
static const int32_t portable_dims[][2] = {{64, 64},   {40, 16},   {128, 128}, {192, 128}, {256, 256},
                                           {320, 256}, {512, 512}, {576, 512}, {576, 576}};
static const int32_t small_dims[][2] = {{64, 64}, {120, 120}, {256, 200}, {576, 512}};
static const int32_t hopper_dims[][2] = {{64, 64},   {40, 16},   {96, 96},   {128, 128}, {192, 128}, {192, 192},
                                         {200, 200}, {256, 256}, {512, 512}, {320, 512}, {500, 300}, {576, 512}};

static ea_gen_options options_of(const int32_t *dims, uint64_t seed) {
  ea_gen_options options = EA_GEN_OPTIONS_INIT;
  options.seed = seed;
  options.max_work = 150000;
  options.dtype = seed % 2 ? EA_BF16 : EA_F16;
  options.head_dim = dims[0];
  options.head_dim_v = dims[1];
  if (gpu.plan.family == EA_FAMILY_HOPPER && dims[0] > 512) options.shared_kv = EA_YES;
  return options;
}

static uint64_t seed_of(const int32_t *dims) {
  return (uint64_t)(dims[0] * 1000 + dims[1]);
}

static int num_cases(void) {
  const char *asked = getenv("EA_EMULATED_CASES");
  return asked ? (int)strtol(asked, NULL, 10) : 1;
}

/* Small batches of every feature. The promise about bits runs every depth. */
static void test_promises(void **state) {
  const int32_t *dims = *state;
  static const char *const names[] = {"written", "unseen", "bits", "accuracy", "extremes"};
  int kept = 0;
  for (size_t p = 0; p < sizeof names / sizeof names[0]; p++) {
    const ea_promise *promise = ea_promise_find(names[p]);
    for (int i = 0; i < num_cases() * NUM_ORDERS; i++) {
      const ea_gen_options options = options_of(dims, seed_of(dims) + (uint64_t)i);
      static ea_spec spec;
      static ea_verdict verdict;
      verdict = (ea_verdict){.outcome = EA_KEPT};
      ea_promise_draw(promise, &options, &spec);
      choose_order(i % NUM_ORDERS);
      promise->check(&gpu, &spec, &verdict);
      kept += verdict.outcome == EA_KEPT;
      if (verdict.outcome != EA_BROKEN) continue;
      char text[512];
      ea_spec_describe(&spec, text, sizeof text);
      fail_msg("promise %s broken at order %s on seed %llu (%s): %s", promise->name, orders[i % NUM_ORDERS],
               (unsigned long long)options.seed, text, verdict.text);
    }
  }
  assert_true(kept > 0);
}

static ea_result run_at(ea_runner *runner, int order) {
  ea_result result = {0};
  choose_order(order);
  if (ea_runner_run(runner, NULL, &result) != EA_OK) fail_msg("order %s: %s", orders[order], ea_last_error());
  return result;
}

static bool same_bits(const ea_result *a, const ea_result *b) {
  const size_t rows = (size_t)(a->tokens * a->heads);
  return memcmp(a->out, b->out, rows * ea_result_row_bytes(a)) == 0 &&
         memcmp(a->lse, b->lse, rows * sizeof(float)) == 0;
}

/* What a walk's keys come by. */
typedef enum ea_way {
  BY_ANY_WAY,       /* the random case's, of rows that are not aligned */
  BY_FASTEST,       /* aligned rows of the queries' type */
  BY_STORES_OR_TMA, /* the prefix widened from 8 bits, new tokens as by the fastest: one after another, and again */
  NUM_WAYS
} ea_way;

/* Walks long enough for the ring to come round twice, several blocks of rows, every kind of tile. */
static void draw_long_walks(const int32_t *dims, ea_way way, ea_spec *spec) {
  static const int32_t prefixes[2][3] = {{330, 0, 129}, {100, 0, 33}}, extends[2][3] = {{90, 260, 1}, {40, 90, 1}};
  const int short_tiles = dims[0] > 256;
  ea_gen_options options = options_of(dims, seed_of(dims) + (uint64_t)way);
  options.max_work = INT64_MAX;
  options.num_seqs = 3;
  options.prefix = prefixes[short_tiles];
  options.extend = extends[short_tiles];
  options.num_q_heads = 2;
  options.num_kv_heads = 1;
  options.skip_prefix = options.skip_extend = EA_NO;
  options.custom_mask = EA_NO;
  if (way == BY_ANY_WAY) options.logit_cap = 20.0; /* kernels for scaled calls, and those for plain ones */
  if (way == BY_FASTEST) {
    options.logit_cap = -1.0;
    options.xai_temperature_len = -1;
    options.k_scale = options.v_scale = 1.0;
  }
  if (way != BY_ANY_WAY) {
    options.strided = EA_NO;
    options.cache_dtype = way == BY_FASTEST ? options.dtype : EA_E4M3;
    options.window_left = -1;
    options.causal = EA_YES;
  }
  ea_spec_random(&options, spec);
  if (way == BY_ANY_WAY) spec->misalign = 1;
}

/* At one depth. False: it does not fit. */
static bool compare_orders(const ea_case *c, int32_t stages) {
  ea_plan_options plan = gpu.plan;
  plan.stages = stages;
  ea_runner *runner;
  const ea_status status = ea_runner_create(gpu.context, &plan, c, EA_OUT_PACKED, &runner);
  if (status == EA_ERR_DOES_NOT_FIT) return false;
  if (status != EA_OK) fail_msg("%s", ea_last_error());
  ea_result first = run_at(runner, 0);
  for (int order = 1; order < NUM_ORDERS; order++) {
    ea_result result = run_at(runner, order);
    if (!same_bits(&first, &result)) fail_msg("depth %d: order %s gives other bits", stages, orders[order]);
    ea_result_free(&result);
  }
  ea_result_free(&first);
  ea_runner_destroy(runner);
  return true;
}

static void test_the_order_does_not_matter(void **state) {
  for (int way = 0; way < NUM_WAYS; way++) {
    static ea_spec spec;
    ea_case c;
    draw_long_walks(*state, (ea_way)way, &spec);
    if (ea_spec_build(&spec, &c) != EA_OK) fail_msg("%s", ea_last_error());
    const bool fits = compare_orders(&c, way == BY_FASTEST ? 1 : 2);
    if (way == BY_FASTEST && fits) compare_orders(&c, 2);
    ea_case_free(&c);
  }
}

static void test_known_logits(void **state) {
  (void)state;
  choose_order(0);
  assert_true(check_known_logits(gpu.context, &gpu.plan) > 0);
}

static int run_family(void) {
  const int32_t(*dims)[2] = portable_dims;
  size_t count = sizeof portable_dims / sizeof portable_dims[0];
  if (gpu.plan.family == EA_FAMILY_HOPPER) {
    dims = hopper_dims, count = sizeof hopper_dims / sizeof hopper_dims[0];
  } else if (gpu.info.smem_limit_bytes < 160 * 1024) {
    dims = small_dims, count = sizeof small_dims / sizeof small_dims[0];
  }
  static char names[32][48];
  struct CMUnitTest tests[32] = {{0}};
  for (size_t i = 0; i < count; i++) {
    for (int kind = 0; kind < 2; kind++) {
      char *name = names[2 * i + (size_t)kind];
      snprintf(name, sizeof names[0], "%s_%dx%d", kind ? "order" : "promises", dims[i][0], dims[i][1]);
      tests[2 * i + (size_t)kind] = (struct CMUnitTest){name, kind ? test_the_order_does_not_matter : test_promises,
                                                        NULL, NULL, (void *)(uintptr_t)dims[i]};
    }
  }
  tests[2 * count] = (struct CMUnitTest)cmocka_unit_test(test_known_logits);
  return _cmocka_run_group_tests("orders", tests, 2 * count + 1, NULL, NULL);
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s portable|hopper [PATTERN]\n", argv[0]);
    return 2;
  }
  if (argc > 2) cmocka_set_test_filter(argv[2]);
  ea_context_options context = EA_CONTEXT_OPTIONS_INIT;
  context.device = EA_DEVICE_CUDA;
  ea_plan_options plan = EA_PLAN_OPTIONS_INIT;
  plan.family = strcmp(argv[1], "hopper") == 0 ? EA_FAMILY_HOPPER : EA_FAMILY_PORTABLE;
  if (ea_subject_open(&context, &plan, &gpu) != EA_OK) {
    printf("%s\n", ea_last_error());
    return 1;
  }
  printf("%s, %s, %s\n", gpu.info.name, gpu.info.arch, argv[1]);
  fflush(stdout);
  const int failed = run_family();
  ea_subject_close(&gpu);
  return failed ? 1 : 0;
}
