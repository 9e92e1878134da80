/* How calls behave on a GPU: captured into graphs, on many streams and threads at once, without
 * allocating; validation on the device; merge. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/random.h"
#include "common/numeric.h"
#include "support.h"

/* ---- graphs ---- */

static void draw_case(uint64_t seed, ea_case *c) {
  ea_gen_options options = EA_GEN_OPTIONS_INIT;
  options.seed = seed;
  options.dtype = EA_BF16;
  if (small) options.max_work = 200000;
  ea_spec spec;
  ea_spec_random(&options, &spec);
  assert_ok(ea_spec_build(&spec, c));
}

static bool same_result(const ea_result *a, const ea_result *b) {
  const size_t out_bytes = (size_t)(a->tokens * a->heads) * ea_result_row_bytes(a);
  const size_t lse_bytes = (size_t)(a->tokens * a->heads) * sizeof(float);
  return memcmp(a->out, b->out, out_bytes) == 0 && memcmp(a->lse, b->lse, lse_bytes) == 0;
}

/* Promise 6. A call that allocated or waited could not be captured. */
static void test_graph_capture_and_replay(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= (small ? 2 : 12); seed++) {
    ea_case c;
    ea_runner *runner;
    ea_result direct, replayed;
    void *stream;
    ea_graph graph;
    draw_case(seed, &c);
    assert_ok(ea_runner_create(gpu.context, &gpu.plan, &c, EA_OUT_PACKED, &runner));
    assert_ok(ea_stream_create(gpu.context, &stream));
    assert_ok(ea_runner_run(runner, stream, &direct));

    assert_ok(ea_graph_begin(gpu.context, stream));
    assert_ok(ea_runner_enqueue(runner, stream));
    assert_ok(ea_graph_end(gpu.context, stream, &graph));
    for (int launch = 0; launch < 3; launch++) {
      assert_ok(ea_runner_reset(runner, stream));
      assert_ok(ea_graph_launch(gpu.context, graph, stream));
      assert_ok(ea_runner_collect(runner, stream, &replayed));
      assert_true(same_result(&direct, &replayed));
      ea_result_free(&replayed);
    }
    ea_graph_destroy(gpu.context, graph);
    ea_stream_destroy(gpu.context, stream);
    ea_result_free(&direct);
    ea_runner_destroy(runner);
    ea_case_free(&c);
  }
}

static void test_calls_do_not_allocate(void **state) {
  (void)state;
  ea_case c;
  ea_runner *runner;
  ea_result result;
  size_t before = 0, after = 0;
  draw_case(3, &c);
  assert_ok(ea_runner_create(gpu.context, &gpu.plan, &c, EA_OUT_PACKED, &runner));
  assert_ok(ea_runner_run(runner, NULL, &result));
  ea_result_free(&result);
  assert_ok(ea_mem_available(gpu.context, &before));
  for (int i = 0; i < 200; i++) assert_ok(ea_runner_enqueue(runner, NULL));
  assert_ok(ea_mem_available(gpu.context, &after));
  assert_ok(ea_stream_synchronize(gpu.context, NULL));
  assert_int_equal(before, after);
  ea_runner_destroy(runner);
  ea_case_free(&c);
}

/* ---- threads ---- */

typedef struct worker {
  pthread_t thread;
  ea_context *context;
  uint64_t seed;
  int rounds;
  char trouble[512]; /* cmocka's assertions are for the main thread */
} worker;

static void work(worker *w, ea_runner *runner, void *stream, const ea_result *first) {
  for (int i = 0; i < w->rounds && !w->trouble[0]; i++) {
    ea_result again;
    if (ea_runner_run(runner, stream, &again) != EA_OK) {
      snprintf(w->trouble, sizeof w->trouble, "round %d: %s", i, ea_last_error());
      return;
    }
    if (!same_result(first, &again)) snprintf(w->trouble, sizeof w->trouble, "round %d gives other bits", i);
    ea_result_free(&again);
  }
}

/* Plans (and so kernels that nobody has loaded yet), streams and runs, all at once. */
static void *worker_main(void *argument) {
  worker *w = argument;
  ea_gen_options options = EA_GEN_OPTIONS_INIT;
  options.seed = w->seed;
  options.dtype = EA_BF16;
  options.max_work = 200000;
  ea_spec *spec = malloc(sizeof *spec);
  ea_case c;
  ea_runner *runner = NULL;
  ea_result first = {0};
  void *stream = NULL;
  ea_case_init(&c);
  ea_status status = spec ? EA_OK : EA_ERR_OUT_OF_MEMORY;
  if (status == EA_OK) {
    ea_spec_random(&options, spec);
    status = ea_spec_build(spec, &c);
  }
  if (status == EA_OK) status = ea_runner_create(w->context, &gpu.plan, &c, EA_OUT_PACKED, &runner);
  if (status == EA_OK) status = ea_stream_create(w->context, &stream);
  if (status == EA_OK) status = ea_runner_run(runner, stream, &first);
  if (status == EA_OK) {
    work(w, runner, stream, &first);
  } else {
    snprintf(w->trouble, sizeof w->trouble, "%s", ea_last_error());
  }
  ea_result_free(&first);
  if (stream) ea_stream_destroy(w->context, stream);
  if (runner) ea_runner_destroy(runner);
  ea_case_free(&c);
  free(spec);
  return NULL;
}

static void test_many_threads_and_streams(void **state) {
  (void)state;
  enum { THREADS = 16 };
  static worker workers[THREADS];
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  options.device = EA_DEVICE_CUDA;
  ea_context *context; /* a fresh one: nothing is loaded */
  assert_ok(ea_context_create(&options, &context));
  const int threads = small ? 4 : THREADS;
  for (int i = 0; i < threads; i++) {
    /* Two threads each have one case, so that kernels are asked for by both. */
    workers[i] = (worker){.context = context, .seed = (uint64_t)(100 + i / 2), .rounds = small ? 2 : 20};
    assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
  }
  for (int i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
  ea_context_destroy(context);
  for (int i = 0; i < threads; i++) {
    if (workers[i].trouble[0]) fail_msg("thread %d: %s", i, workers[i].trouble);
  }
}

/* ---- validation ---- */

typedef struct spoil {
  const char *what;
  void (*make)(ea_batch *batch);
} spoil;

static int32_t *indptr_of(const int32_t *indptr) {
  return (int32_t *)(uintptr_t)indptr; /* the case's own memory */
}

static void set_slot(ea_batch *batch, int64_t i, int32_t slot) {
  ((int32_t *)(uintptr_t)batch->kv_indices)[i] = slot;
}

static void first_slot_negative(ea_batch *b) {
  set_slot(b, 0, -1);
}
static void last_slot_past_the_pool(ea_batch *b) {
  set_slot(b, b->kv_indptr[b->num_seqs] - 1, (int32_t)b->num_pages * 4);
}
static void two_bad_slots(ea_batch *b) {
  set_slot(b, 2, INT32_MAX);
  set_slot(b, 1, INT32_MIN);
}
static void qo_starts_late(ea_batch *b) {
  indptr_of(b->qo_indptr)[0] = 1;
}
static void qo_decreases(ea_batch *b) {
  indptr_of(b->qo_indptr)[1] = b->qo_indptr[2] + 1;
}
static void qo_ends_early(ea_batch *b) {
  indptr_of(b->qo_indptr)[b->num_seqs]--;
}
static void kv_decreases(ea_batch *b) {
  indptr_of(b->kv_indptr)[1] = -5;
}
static void kv_ends_past_the_indices(ea_batch *b) {
  indptr_of(b->kv_indptr)[b->num_seqs] = INT32_MAX;
}
static void mask_starts_negative(ea_batch *b) {
  ((int64_t *)(uintptr_t)b->mask_indptr)[1] = -1;
}
static void mask_ends_past_its_bytes(ea_batch *b) {
  b->custom_mask_bytes--;
}

static const spoil spoils[] = {
    {"first slot negative", first_slot_negative},
    {"last slot past the pool", last_slot_past_the_pool},
    {"two bad slots", two_bad_slots},
    {"qo_indptr starts late", qo_starts_late},
    {"qo_indptr decreases", qo_decreases},
    {"qo_indptr ends early", qo_ends_early},
    {"kv_indptr decreases", kv_decreases},
    {"kv_indptr ends past the indices", kv_ends_past_the_indices},
    {"mask starts before its memory", mask_starts_negative},
    {"mask ends past its memory", mask_ends_past_its_bytes},
};

static void build_masked_case(ea_case *c) {
  static const int32_t prefix[] = {5, 0, 37}, extend[] = {3, 4, 9};
  ea_gen_options options = EA_GEN_OPTIONS_INIT;
  options.seed = 11;
  options.dtype = options.cache_dtype = EA_BF16;
  options.index_dtype = EA_I32;
  options.num_q_heads = options.num_kv_heads = 1;
  options.head_dim = options.head_dim_v = 16;
  options.page_size = 4;
  options.num_seqs = 3;
  options.prefix = prefix;
  options.extend = extend;
  options.window_left = -1;
  options.custom_mask = EA_YES;
  options.skip_prefix = options.skip_extend = options.hostile = EA_NO;
  ea_spec spec;
  ea_spec_random(&options, &spec);
  spec.problem.mask_indptr_dtype = EA_I64;
  assert_ok(ea_spec_build(&spec, c));
}

/* ea_validate's answer for a case, on a context. */
static ea_status validate(ea_context *context, const ea_case *c, char *text, size_t n) {
  ea_runner *runner;
  assert_ok(ea_runner_create(context, &gpu.plan, c, EA_OUT_PACKED, &runner));
  assert_ok(ea_runner_reset(runner, NULL));
  const ea_runner_args *args = ea_runner_arguments(runner);
  const ea_status status =
      ea_validate(ea_runner_plan(runner), &args->batch, args->workspace, args->workspace_bytes, NULL);
  snprintf(text, n, "%s", status == EA_OK ? "" : ea_last_error());
  ea_runner_destroy(runner);
  return status;
}

/* A GPU finds what the host would have found, and says the same. */
static void test_validation_says_what_the_host_says(void **state) {
  (void)state;
  char on_gpu[512], on_host[512];
  ea_case good;
  build_masked_case(&good);
  if (validate(gpu.context, &good, on_gpu, sizeof on_gpu) != EA_OK) fail_msg("a good case is refused: %s", on_gpu);
  ea_case_free(&good);
  for (size_t i = 0; i < sizeof spoils / sizeof spoils[0]; i++) {
    ea_case c;
    build_masked_case(&c);
    spoils[i].make(&c.batch);
    const ea_status found = validate(gpu.context, &c, on_gpu, sizeof on_gpu);
    const ea_status expected = validate(gpu.reference, &c, on_host, sizeof on_host);
    if (found != EA_ERR_INVALID || expected != found || strcmp(on_gpu, on_host) != 0) {
      fail_msg("%s: the GPU says %s \"%s\", the host %s \"%s\"", spoils[i].what, ea_status_name(found), on_gpu,
               ea_status_name(expected), on_host);
    }
    ea_case_free(&c);
  }
}

/* More slots than the kernel has threads; the one bad entry is the last. */
static void test_validation_of_many_slots(void **state) {
  (void)state;
  const int32_t count = small ? 10000 : 3000000;
  int64_t *slots = calloc((size_t)count, sizeof *slots);
  assert_non_null(slots);
  ea_problem problem = EA_PROBLEM_INIT;
  problem.num_q_heads = problem.num_kv_heads = 1;
  problem.head_dim = 64;
  problem.index_dtype = EA_I64;
  const int32_t indptr[4] = {0, 1, 0, count};
  int32_t *indptr_device = device_copy(indptr, sizeof indptr);
  void *row = random_tensor(EA_BF16, 64, 1);
  ea_batch batch = EA_BATCH_INIT;
  batch.num_seqs = batch.num_tokens = batch.num_pages = 1;
  batch.num_kv_indices = count;
  batch.q.data = batch.k.data = batch.v.data = row;
  batch.k_cache.data = batch.v_cache.data = row;
  batch.out.data = device_alloc(128);
  batch.qo_indptr = indptr_device;
  batch.kv_indptr = indptr_device + 2;

  ea_plan *plan;
  size_t bytes;
  assert_ok(ea_plan_create(gpu.context, &problem, NULL, &plan));
  assert_ok(ea_workspace_size(plan, &batch, &bytes));
  void *workspace = device_alloc(bytes);
  batch.kv_indices = device_copy(slots, (size_t)count * sizeof *slots);
  assert_ok(ea_validate(plan, &batch, workspace, bytes, NULL));
  slots[count - 1] = 1;
  assert_ok(
      ea_mem_upload(gpu.context, (void *)(uintptr_t)batch.kv_indices, slots, (size_t)count * sizeof *slots, NULL));
  char where[32];
  snprintf(where, sizeof where, "kv_indices[%d]", count - 1);
  const char *const words[] = {where, "found 1", NULL};
  assert_refused(ea_validate(plan, &batch, workspace, bytes, NULL), EA_ERR_INVALID, words);

  device_free((void *)(uintptr_t)batch.kv_indices);
  device_free(workspace);
  device_free(batch.out.data);
  device_free(row);
  device_free(indptr_device);
  ea_plan_destroy(plan);
  free(slots);
}

/* ---- merge ---- */

enum { MERGE_TOKENS = 37, MERGE_HEADS = 3, MERGE_DIM = 70, MERGE_STRIDE = 79 };

/* Every third row of either part has lse = -inf and holds NaN. */
static void fill_part(ea_dtype dtype, ea_rng *rng, int part, void *out, float *lse) {
  for (int row = 0; row < MERGE_TOKENS * MERGE_HEADS; row++) {
    const bool empty = row % 3 == part || row % 7 == 6; /* the latter in both parts */
    double x[2];
    ea_rng_normal(rng, x, 2);
    lse[row] = empty ? -INFINITY : (float)(4 * x[0]);
    for (int d = 0; d < MERGE_STRIDE; d++) {
      ea_rng_normal(rng, x, 2);
      ea_store_double(out, dtype, (int64_t)row * MERGE_STRIDE + d, empty ? NAN : x[0]);
    }
  }
}

static ea_tensor padded(void *data) {
  return (ea_tensor){data, (int64_t)MERGE_HEADS * MERGE_STRIDE, MERGE_STRIDE};
}

static void merge_and_compare(ea_dtype dtype, bool in_place) {
  const size_t elements = (size_t)MERGE_TOKENS * MERGE_HEADS * MERGE_STRIDE, rows = (size_t)MERGE_TOKENS * MERGE_HEADS;
  const size_t out_bytes = elements * ea_dtype_size(dtype), lse_bytes = rows * sizeof(float);
  void *a = malloc(out_bytes), *b = malloc(out_bytes), *expected = calloc(1, out_bytes);
  float *lse_a = malloc(lse_bytes), *lse_b = malloc(lse_bytes), *expected_lse = malloc(lse_bytes);
  assert_true(a && b && expected && lse_a && lse_b && expected_lse);
  ea_rng rng = ea_rng_of((uint64_t)dtype);
  fill_part(dtype, &rng, 0, a, lse_a);
  fill_part(dtype, &rng, 1, b, lse_b);

  ea_merge_args args = EA_MERGE_ARGS_INIT;
  args.dtype = dtype;
  args.num_tokens = MERGE_TOKENS;
  args.num_heads = MERGE_HEADS;
  args.head_dim_v = MERGE_DIM;
  args.out_a = padded(a);
  args.out_b = padded(b);
  args.out = padded(expected);
  args.lse_a = lse_a;
  args.lse_b = lse_b;
  args.lse = expected_lse;
  assert_ok(ea_merge(gpu.reference, &args, NULL));

  void *a_device = device_copy(a, out_bytes), *b_device = device_copy(b, out_bytes);
  float *lse_a_device = device_copy(lse_a, lse_bytes), *lse_b_device = device_copy(lse_b, lse_bytes);
  void *out_device = in_place ? a_device : device_alloc(out_bytes);
  float *lse_device = in_place ? lse_b_device : device_alloc(lse_bytes);
  if (!in_place) {
    assert_ok(ea_mem_set(gpu.context, out_device, 0xff, out_bytes, NULL));
    assert_ok(ea_mem_set(gpu.context, lse_device, 0xff, lse_bytes, NULL));
  }
  args.out_a = padded(a_device);
  args.out_b = padded(b_device);
  args.out = padded(out_device);
  args.lse_a = lse_a_device;
  args.lse_b = lse_b_device;
  args.lse = lse_device;
  assert_ok(ea_merge(gpu.context, &args, NULL));
  void *found = host_copy(out_device, out_bytes);
  float *found_lse = host_copy(lse_device, lse_bytes);

  const double unit = dtype == EA_F32 ? 1e-6 : dtype == EA_F16 ? 1e-3 : 8e-3;
  for (size_t row = 0; row < rows; row++) {
    if (isinf(expected_lse[row])) {
      assert_true(isinf(found_lse[row]) && found_lse[row] < 0);
    } else {
      assert_true(fabsf(found_lse[row] - expected_lse[row]) <= 1e-5f * (1 + fabsf(expected_lse[row])));
    }
    for (int d = 0; d < MERGE_DIM; d++) {
      const int64_t i = (int64_t)row * MERGE_STRIDE + d;
      const double x = ea_load_double(found, dtype, i), y = ea_load_double(expected, dtype, i);
      if (!(fabs(x - y) <= unit * (0.1 + fabs(y)))) {
        fail_msg("%s, row %zu, column %d: found %g, the CPU gives %g", ea_dtype_name(dtype), row, d, x, y);
      }
    }
  }
  device_free(a_device);
  device_free(b_device);
  device_free(lse_a_device);
  device_free(lse_b_device);
  if (!in_place) {
    device_free(out_device);
    device_free(lse_device);
  }
  void *memory[] = {a, b, expected, lse_a, lse_b, expected_lse, found, found_lse};
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) free(memory[i]);
}

static void test_merge_is_the_cpus(void **state) {
  (void)state;
  static const ea_dtype dtypes[] = {EA_F32, EA_F16, EA_BF16};
  for (int i = 0; i < 3; i++) {
    merge_and_compare(dtypes[i], false);
    merge_and_compare(dtypes[i], true);
  }
}

int test_calls(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_graph_capture_and_replay), cmocka_unit_test(test_calls_do_not_allocate),
      cmocka_unit_test(test_many_threads_and_streams), cmocka_unit_test(test_validation_says_what_the_host_says),
      cmocka_unit_test(test_validation_of_many_slots), cmocka_unit_test(test_merge_is_the_cpus),
  };
  return cmocka_run_group_tests_name("calls", tests, NULL, NULL);
}
