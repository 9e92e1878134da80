/* Promise 3 across pipeline depths, on the configurations of the measurement that the project
 * began with: every depth that fits gives the same bits, and one more is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

typedef struct config {
  int32_t head_dim, num_q_heads, num_kv_heads, window;
} config;

static const config configs[16] = {
    {64, 16, 8, 0},  {64, 32, 4, 0},  {64, 16, 8, 1024},  {64, 32, 4, 1024},
    {128, 16, 8, 0}, {128, 32, 4, 0}, {128, 16, 8, 1024}, {128, 32, 4, 1024},
    {256, 16, 8, 0}, {256, 32, 4, 0}, {256, 16, 8, 1024}, {256, 32, 4, 1024},
    {512, 16, 8, 0}, {512, 32, 4, 0}, {512, 16, 8, 1024}, {512, 32, 4, 1024},
};

static ea_problem problem_of(const config *c, ea_dtype dtype) {
  ea_problem problem = EA_PROBLEM_INIT;
  problem.dtype = dtype;
  problem.num_q_heads = c->num_q_heads;
  problem.num_kv_heads = c->num_kv_heads;
  problem.head_dim = c->head_dim;
  if (c->window) problem.window_left = c->window;
  return problem;
}

/* A family that was asked for need not take every configuration. */
static bool family_takes(const ea_problem *problem) {
  ea_plan *plan;
  const ea_status status = ea_plan_create(gpu.context, problem, &gpu.plan, &plan);
  if (gpu.plan.family != EA_FAMILY_AUTO && status == EA_ERR_UNSUPPORTED) return false;
  assert_ok(status);
  ea_plan_destroy(plan);
  return true;
}

/* Half of the tokens are new, the other half lies in a pool, backwards. */
static void compare_depths(const config *c, ea_dtype dtype) {
  const int32_t prefix = small ? 100 : 2048, extend = prefix;
  const ea_problem problem = problem_of(c, dtype);
  if (!family_takes(&problem)) return;
  const int64_t q_elements = (int64_t)extend * c->num_q_heads * c->head_dim;
  const int64_t kv_elements = (int64_t)extend * c->num_kv_heads * c->head_dim;
  const size_t out_bytes = (size_t)q_elements * ea_dtype_size(dtype);
  const size_t lse_bytes = (size_t)extend * (size_t)c->num_q_heads * sizeof(float);
  int32_t *slots = malloc((size_t)prefix * sizeof *slots);
  assert_non_null(slots);
  for (int32_t i = 0; i < prefix; i++) slots[i] = prefix - 1 - i;
  const int32_t indptr[4] = {0, extend, 0, prefix};
  int32_t *indptr_device = device_copy(indptr, sizeof indptr);

  ea_batch batch = EA_BATCH_INIT;
  batch.num_seqs = 1;
  batch.num_tokens = extend;
  batch.num_kv_indices = batch.num_pages = prefix;
  batch.q.data = random_tensor(dtype, q_elements, 1);
  batch.k.data = random_tensor(dtype, kv_elements, 2);
  batch.v.data = random_tensor(dtype, kv_elements, 3);
  batch.k_cache.data = random_tensor(dtype, kv_elements, 4);
  batch.v_cache.data = random_tensor(dtype, kv_elements, 5);
  batch.out.data = device_alloc(out_bytes);
  batch.lse = device_alloc(lse_bytes);
  batch.qo_indptr = indptr_device;
  batch.kv_indptr = indptr_device + 2;
  batch.kv_indices = device_copy(slots, (size_t)prefix * sizeof *slots);
  free(slots);

  char *first_out = NULL;
  char *first_lse = NULL;
  const int32_t max_stages = max_stages_of(&problem);
  assert_true(max_stages >= 1);
  for (int32_t stages = 1; stages <= max_stages; stages++) {
    assert_ok(ea_mem_set(gpu.context, batch.out.data, 0xff, out_bytes, NULL));
    assert_ok(ea_mem_set(gpu.context, batch.lse, 0xff, lse_bytes, NULL));
    run_once(&problem, stages, &batch);
    char *out = host_copy(batch.out.data, out_bytes), *lse = host_copy(batch.lse, lse_bytes);
    if (!first_out) {
      first_out = out;
      first_lse = lse;
      continue;
    }
    if (memcmp(out, first_out, out_bytes) != 0 || memcmp(lse, first_lse, lse_bytes) != 0) {
      fail_msg("D %d, heads %d/%d, window %d: depth %d gives other bits than depth 1", c->head_dim, c->num_q_heads,
               c->num_kv_heads, c->window, stages);
    }
    free(out);
    free(lse);
  }
  free(first_out);
  free(first_lse);
  const void *memory[] = {batch.q.data,   batch.k.data, batch.v.data,  batch.k_cache.data, batch.v_cache.data,
                          batch.out.data, batch.lse,    indptr_device, batch.kv_indices};
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) device_free((void *)(uintptr_t)memory[i]);
}

static void test_every_depth_gives_the_same_bits(void **state) {
  (void)state;
  for (size_t i = 0; i < 16; i++) {
    if (small && i % 5 != 0) continue;
    compare_depths(&configs[i], EA_BF16);
    compare_depths(&configs[i], EA_F16);
  }
}

static void test_too_deep_is_refused_with_numbers(void **state) {
  (void)state;
  for (size_t i = 0; i < 16; i += 4) {
    const ea_problem problem = problem_of(&configs[i], EA_BF16);
    if (!family_takes(&problem)) continue;
    ea_plan_options options = gpu.plan;
    ea_plan *plan = NULL;
    ea_plan_info info = EA_PLAN_INFO_INIT;
    options.stages = max_stages_of(&problem);
    assert_ok(ea_plan_create(gpu.context, &problem, &options, &plan));
    assert_ok(ea_plan_get_info(plan, &info));
    ea_plan_destroy(plan);
    assert_true(info.smem_bytes <= info.smem_limit_bytes);
    assert_int_equal(info.smem_limit_bytes, gpu.info.smem_limit_bytes);

    char asked[32], allowed[32], deepest[32];
    options.stages++;
    snprintf(asked, sizeof asked, "found %d", options.stages);
    snprintf(allowed, sizeof allowed, "%lld", (long long)info.smem_limit_bytes);
    snprintf(deepest, sizeof deepest, "most %d", info.max_stages);
    const char *const words[] = {"stages", asked, allowed, deepest, NULL};
    assert_refused(ea_plan_create(gpu.context, &problem, &options, &plan), EA_ERR_DOES_NOT_FIT, words);
  }
}

/* The launch uses what the plan for the architecture says, and the driver what ptxas said. */
static void test_the_plan_is_what_runs(void **state) {
  (void)state;
  for (size_t i = 0; i < 16; i += 4) {
    const ea_problem problem = problem_of(&configs[i], EA_BF16);
    ea_plan_info here = EA_PLAN_INFO_INIT, by_name = EA_PLAN_INFO_INIT;
    ea_plan *plan;
    assert_ok(ea_plan_create(gpu.context, &problem, NULL, &plan));
    assert_ok(ea_plan_get_info(plan, &here));
    ea_plan_destroy(plan);
    assert_ok(ea_plan_for_arch(gpu.info.arch, &problem, NULL, &by_name));
    assert_string_equal(here.kernel, by_name.kernel);
    assert_int_equal(here.stages, by_name.stages);
    assert_int_equal(here.smem_bytes, by_name.smem_bytes);
    assert_in_range(here.registers, 16, 255);
  }
}

int test_depths(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_depth_gives_the_same_bits),
      cmocka_unit_test(test_too_deep_is_refused_with_numbers),
      cmocka_unit_test(test_the_plan_is_what_runs),
  };
  return cmocka_run_group_tests_name("depths", tests, NULL, NULL);
}
