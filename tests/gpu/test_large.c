/* Offsets beyond 31 bits: a pool of more than 2^31 elements and a custom mask of more than
 * 2^31 bytes, both really there. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/numeric.h"
#include "support.h"

static bool enough_memory(size_t bytes) {
  size_t available = 0;
  if (small) {
    print_message("         skipped: needs %zu MiB, and small cases were asked for\n", bytes >> 20);
    return false;
  }
  assert_ok(ea_mem_available(gpu.context, &available));
  if (available >= bytes) return true;
  print_message("         skipped: needs %zu MiB of device memory, %zu are free\n", bytes >> 20, available >> 20);
  return false;
}

static void copy_on_device(void *to, const void *from, size_t bytes) {
  assert_ok(ea_mem_copy(gpu.context, to, from, bytes, NULL));
}

/* ---- pool ---- */

enum { POOL_DIM = 128, POOL_HEADS = 8, POOL_PREFIX = 300, POOL_EXTEND = 40, POOL_ROW = POOL_DIM * POOL_HEADS };

/* One K and one V pool of 2^31 elements and some more. The prefix lies in slots from both
 * ends; all others hold NaN. The same tokens in a small pool give the same bits. */
static void test_pool_beyond_31_bits(void **state) {
  (void)state;
  const int64_t num_slots = (INT64_C(1) << 31) / POOL_ROW + 1000;
  const size_t element = ea_dtype_size(EA_BF16), row_bytes = POOL_ROW * element;
  const size_t pool_bytes = (size_t)num_slots * row_bytes;
  if (!enough_memory(2 * pool_bytes + ((size_t)64 << 20))) {
    skip();
    return;
  }
  ea_problem problem = EA_PROBLEM_INIT;
  problem.num_q_heads = problem.num_kv_heads = POOL_HEADS;
  problem.head_dim = POOL_DIM;

  const int64_t tokens = POOL_EXTEND * (int64_t)POOL_ROW, prefix = POOL_PREFIX * (int64_t)POOL_ROW;
  const size_t out_bytes = (size_t)tokens * element;
  void *k_near = random_tensor(EA_BF16, prefix, 4), *v_near = random_tensor(EA_BF16, prefix, 5);
  char *k_far = device_alloc(pool_bytes), *v_far = device_alloc(pool_bytes);
  assert_ok(ea_mem_set(gpu.context, k_far, 0xff, pool_bytes, NULL)); /* NaN */
  assert_ok(ea_mem_set(gpu.context, v_far, 0xff, pool_bytes, NULL));
  int32_t near_slots[POOL_PREFIX], far_slots[POOL_PREFIX];
  for (int32_t i = 0; i < POOL_PREFIX; i++) {
    near_slots[i] = i;
    far_slots[i] = (int32_t)(i % 3 == 0 ? i : num_slots - 1 - i);
    const size_t to = (size_t)far_slots[i] * row_bytes, from = (size_t)i * row_bytes;
    copy_on_device(k_far + to, (char *)k_near + from, row_bytes);
    copy_on_device(v_far + to, (char *)v_near + from, row_bytes);
  }

  const int32_t indptr[4] = {0, POOL_EXTEND, 0, POOL_PREFIX};
  int32_t *indptr_device = device_copy(indptr, sizeof indptr);
  void *near_device = device_copy(near_slots, sizeof near_slots),
       *far_device = device_copy(far_slots, sizeof far_slots);
  ea_batch batch = EA_BATCH_INIT;
  batch.num_seqs = 1;
  batch.num_tokens = POOL_EXTEND;
  batch.num_kv_indices = batch.num_pages = POOL_PREFIX;
  batch.q.data = random_tensor(EA_BF16, tokens, 1);
  batch.k.data = random_tensor(EA_BF16, tokens, 2);
  batch.v.data = random_tensor(EA_BF16, tokens, 3);
  batch.k_cache.data = k_near;
  batch.v_cache.data = v_near;
  batch.out.data = device_alloc(out_bytes);
  batch.qo_indptr = indptr_device;
  batch.kv_indptr = indptr_device + 2;
  batch.kv_indices = near_device;
  run_once(&problem, 0, &batch);
  char *expected = host_copy(batch.out.data, out_bytes);

  batch.k_cache.data = k_far;
  batch.v_cache.data = v_far;
  batch.num_pages = num_slots;
  batch.kv_indices = far_device;
  assert_ok(ea_mem_set(gpu.context, batch.out.data, 0xff, out_bytes, NULL));
  run_once(&problem, 0, &batch);
  char *found = host_copy(batch.out.data, out_bytes);
  assert_memory_equal(found, expected, out_bytes);

  free(found);
  free(expected);
  void *memory[] = {k_near,     v_near,       k_far,        v_far,        indptr_device, near_device,
                    far_device, batch.q.data, batch.k.data, batch.v.data, batch.out.data};
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) device_free(memory[i]);
}

/* ---- mask ---- */

enum { MASK_DIM = 64, MASK_PREFIX = 17000, MASK_EXTEND = 40000, MASK_KEYS = MASK_PREFIX + MASK_EXTEND };

/* The causal rule, written out byte by byte. */
static void *causal_mask(size_t bytes) {
  char *mask = device_alloc(bytes);
  enum { ROWS = 1000 };
  char *host = malloc((size_t)ROWS * MASK_KEYS);
  assert_non_null(host);
  for (int32_t first = 0; first < MASK_EXTEND; first += ROWS) {
    for (int32_t r = 0; r < ROWS; r++) {
      const size_t visible = (size_t)(MASK_PREFIX + first + r + 1);
      memset(host + (size_t)r * MASK_KEYS, 1, visible);
      memset(host + (size_t)r * MASK_KEYS + visible, 0, MASK_KEYS - visible);
    }
    assert_ok(ea_mem_upload(gpu.context, mask + (size_t)first * MASK_KEYS, host, (size_t)ROWS * MASK_KEYS, NULL));
  }
  free(host);
  return mask;
}

/* A mask that says what the causal rule says gives what the causal rule gives. */
static void test_mask_beyond_31_bits(void **state) {
  (void)state;
  const size_t mask_bytes = (size_t)MASK_EXTEND * MASK_KEYS;
  assert_true(mask_bytes > (size_t)1 << 31);
  if (!enough_memory(mask_bytes + ((size_t)256 << 20))) {
    skip();
    return;
  }
  ea_problem problem = EA_PROBLEM_INIT;
  problem.num_q_heads = problem.num_kv_heads = 1;
  problem.head_dim = MASK_DIM;

  const int64_t tokens = (int64_t)MASK_EXTEND * MASK_DIM, prefix = (int64_t)MASK_PREFIX * MASK_DIM;
  const size_t out_bytes = (size_t)tokens * ea_dtype_size(EA_BF16);
  int32_t *slots = malloc(MASK_PREFIX * sizeof *slots);
  assert_non_null(slots);
  for (int32_t i = 0; i < MASK_PREFIX; i++) slots[i] = i;
  const int32_t indptr[4] = {0, MASK_EXTEND, 0, MASK_PREFIX};
  const int64_t mask_start = 0;
  int32_t *indptr_device = device_copy(indptr, sizeof indptr);
  void *slots_device = device_copy(slots, MASK_PREFIX * sizeof *slots);
  void *start_device = device_copy(&mask_start, sizeof mask_start), *mask = causal_mask(mask_bytes);
  free(slots);

  ea_batch batch = EA_BATCH_INIT;
  batch.num_seqs = 1;
  batch.num_tokens = MASK_EXTEND;
  batch.num_kv_indices = batch.num_pages = MASK_PREFIX;
  batch.q.data = random_tensor(EA_BF16, tokens, 1);
  batch.k.data = random_tensor(EA_BF16, tokens, 2);
  batch.v.data = random_tensor(EA_BF16, tokens, 3);
  void *k_cache = random_tensor(EA_BF16, prefix, 4), *v_cache = random_tensor(EA_BF16, prefix, 5);
  batch.k_cache.data = k_cache;
  batch.v_cache.data = v_cache;
  batch.out.data = device_alloc(out_bytes);
  batch.qo_indptr = indptr_device;
  batch.kv_indptr = indptr_device + 2;
  batch.kv_indices = slots_device;
  run_once(&problem, 0, &batch);
  char *expected = host_copy(batch.out.data, out_bytes);

  problem.has_custom_mask = true;
  problem.skip_prefix_custom_mask = false;
  batch.custom_mask = mask;
  batch.custom_mask_bytes = (int64_t)mask_bytes;
  batch.mask_indptr = start_device;
  assert_ok(ea_mem_set(gpu.context, batch.out.data, 0xff, out_bytes, NULL));
  run_once(&problem, 0, &batch);
  char *found = host_copy(batch.out.data, out_bytes);
  double difference = 0, size = 0;
  for (int64_t i = 0; i < tokens; i++) {
    const double x = ea_load_double(found, EA_BF16, i), y = ea_load_double(expected, EA_BF16, i);
    difference += (x - y) * (x - y);
    size += y * y;
  }
  if (!(sqrt(difference / size) <= 1e-4)) {
    fail_msg("relative difference of the masked and the causal result: found %g, allowed 1e-4",
             sqrt(difference / size));
  }

  free(found);
  free(expected);
  void *memory[] = {indptr_device, slots_device, start_device, mask,    batch.q.data,
                    batch.k.data,  batch.v.data, k_cache,      v_cache, batch.out.data};
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) device_free(memory[i]);
}

int test_large(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pool_beyond_31_bits),
      cmocka_unit_test(test_mask_beyond_31_bits),
  };
  return cmocka_run_group_tests_name("large", tests, NULL, NULL);
}
