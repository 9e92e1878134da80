/* Captured calls: which are written, that a written one replays to the same bits, and that a call's own
 * answer stays as it was. Random cases in every layout, with pools of which only a part is used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "check/generate.h"
#include "support.h"

typedef struct result {
  void *out;
  float *lse;
  size_t out_bytes, lse_bytes;
} result;

static int32_t dim_v_of(const ea_problem *problem) {
  return problem->head_dim_v ? problem->head_dim_v : problem->head_dim;
}

/* Runs a case on a context into packed memory of its own. */
static ea_status run_case(ea_context *context, ea_case *c, result *r) {
  const size_t rows = (size_t)c->batch.num_tokens * (size_t)c->problem.num_q_heads;
  r->out_bytes = rows * (size_t)dim_v_of(&c->problem) * ea_dtype_size(c->problem.dtype);
  r->lse_bytes = rows * sizeof(float);
  r->out = calloc(1, r->out_bytes + 1);
  r->lse = calloc(1, r->lse_bytes + 1);
  ea_batch batch = c->batch;
  batch.out = (ea_tensor){r->out, 0, 0};
  batch.lse = r->lse;
  batch.lse_token_stride = batch.lse_head_stride = 0;

  ea_plan *plan = NULL;
  void *workspace = NULL;
  size_t bytes = 0;
  ea_status status = ea_plan_create(context, &c->problem, NULL, &plan);
  if (!status) status = ea_workspace_size(plan, &batch, &bytes);
  if (!status && posix_memalign(&workspace, 256, bytes + 1)) status = EA_ERR_OUT_OF_MEMORY;
  if (!status) status = ea_run(plan, &batch, workspace, bytes, NULL);
  free(workspace);
  ea_plan_destroy(plan);
  return status;
}

static void free_result(result *r) {
  free(r->out);
  free(r->lse);
}

static ea_context *open_context(void) {
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  options.num_threads = 2;
  ea_context *context = NULL;
  assert_int_equal(ea_context_create(&options, &context), EA_OK);
  return context;
}

static void capture(ea_context *context, int64_t call, double slower_ms, bool failing, int32_t max_files) {
  ea_capture_options options = EA_CAPTURE_OPTIONS_INIT;
  options.directory = ".";
  options.call = call;
  options.slower_ms = slower_ms;
  options.failing = failing;
  options.max_files = max_files;
  if (ea_context_capture(context, &options)) fail_msg("%s", ea_last_error());
}

static const char *file_of(int64_t number, const char *why) {
  static char path[128];
  snprintf(path, sizeof path, "extattn-%ld-%06lld-%s.safetensors", (long)getpid(), (long long)number, why);
  return path;
}

static void make(uint64_t seed, ea_case *c) {
  ea_gen_options options = EA_GEN_OPTIONS_INIT;
  options.seed = seed;
  options.max_work = 300000;
  ea_spec spec;
  ea_spec_random(&options, &spec);
  ea_case_init(c);
  if (ea_spec_build(&spec, c)) fail_msg("seed %llu: %s", (unsigned long long)seed, ea_last_error());
}

static void check_same(uint64_t seed, const result *a, const result *b) {
  if (a->out_bytes != b->out_bytes || memcmp(a->out, b->out, a->out_bytes) != 0) {
    fail_msg("seed %llu: out differs", (unsigned long long)seed);
  }
  if (memcmp(a->lse, b->lse, a->lse_bytes) != 0) fail_msg("seed %llu: lse differs", (unsigned long long)seed);
}

static void a_captured_call_replays_to_the_same_bits(void **state) {
  (void)state;
  ea_context *context = open_context();
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    ea_case c, read;
    result first, again;
    make(seed, &c);
    capture(context, 1, 0, false, 1);
    if (run_case(context, &c, &first)) fail_msg("seed %llu: %s", (unsigned long long)seed, ea_last_error());
    assert_int_equal(ea_context_capture(context, NULL), EA_OK);
    if (ea_case_read(file_of(1, "call"), &read)) fail_msg("seed %llu: %s", (unsigned long long)seed, ea_last_error());
    assert_true(read.batch.num_pages * read.problem.page_size <= c.batch.num_pages * c.problem.page_size);
    if (run_case(context, &read, &again)) fail_msg("seed %llu: %s", (unsigned long long)seed, ea_last_error());
    check_same(seed, &first, &again);
    free_result(&first);
    free_result(&again);
    ea_case_free(&read);
    ea_case_free(&c);
    remove_files();
  }
  ea_context_destroy(context);
}

/* Two new tokens after a prefix of three in single slots. */
static void one_sequence(uint64_t seed, ea_case *c) {
  const int32_t prefix[] = {3}, extend[] = {2};
  ea_gen_options options = EA_GEN_OPTIONS_INIT;
  options.seed = seed;
  options.num_seqs = 1;
  options.prefix = prefix;
  options.extend = extend;
  options.page_size = 1;
  options.index_dtype = EA_I32;
  options.skip_prefix = EA_NO;
  options.custom_mask = EA_NO;
  ea_spec spec;
  ea_spec_random(&options, &spec);
  ea_case_init(c);
  assert_int_equal(ea_spec_build(&spec, c), EA_OK);
}

/* Three slots of a pool are used: the file holds no more pages. */
static void only_used_pages_are_written(void **state) {
  (void)state;
  ea_context *context = open_context();
  ea_case c, read;
  result r;
  one_sequence(5, &c);
  capture(context, 1, 0, false, 1);
  assert_int_equal(run_case(context, &c, &r), EA_OK);
  assert_int_equal(ea_case_read(file_of(1, "call"), &read), EA_OK);
  assert_true(read.batch.num_pages <= 3);
  free_result(&r);
  ea_case_free(&read);
  ea_case_free(&c);
  ea_context_destroy(context);
  remove_files();
}

static void the_conditions_are_kept(void **state) {
  (void)state;
  ea_context *context = open_context();
  ea_case c;
  result r;
  make(3, &c);
  capture(context, 2, 0, true, 16); /* the second of four */
  for (int i = 0; i < 4; ++i) {
    assert_int_equal(run_case(context, &c, &r), EA_OK);
    free_result(&r);
  }
  assert_int_equal(count_files(), 1);
  assert_int_equal(access(file_of(2, "call"), F_OK), 0);
  remove_files();

  capture(context, 0, 1e-9, false, 2); /* all are slower than that, but two are enough */
  for (int i = 0; i < 4; ++i) {
    assert_int_equal(run_case(context, &c, &r), EA_OK);
    free_result(&r);
  }
  assert_int_equal(count_files(), 2);
  assert_int_equal(access(file_of(1, "slow"), F_OK), 0);
  remove_files();

  capture(context, 0, 1e9, true, 2); /* none is that slow, none fails */
  assert_int_equal(run_case(context, &c, &r), EA_OK);
  free_result(&r);
  assert_int_equal(count_files(), 0);

  assert_int_equal(ea_context_capture(context, NULL), EA_OK);
  capture(context, 1, 0, false, 1);
  assert_int_equal(ea_context_capture(context, NULL), EA_OK);
  assert_int_equal(run_case(context, &c, &r), EA_OK);
  free_result(&r);
  assert_int_equal(count_files(), 0);
  ea_case_free(&c);
  ea_context_destroy(context);
}

/* The case of a refused call is refused in the same words, but for the pool's size; the call's own
 * error is what the caller finds. */
static void a_failing_call_fails_again(void **state) {
  (void)state;
  ea_context *context = open_context();
  ea_case c, read;
  result r;
  one_sequence(9, &c);
  int32_t slots[3];
  memcpy(slots, c.batch.kv_indices, sizeof slots);
  slots[1] = (int32_t)(c.batch.num_pages * c.problem.page_size) + 1;
  c.batch.kv_indices = slots;
  capture(context, 0, 0, true, 16);
  assert_int_equal(run_case(context, &c, &r), EA_ERR_INVALID);
  assert_non_null(strstr(ea_last_error(), "kv_indices[1]: found"));
  free_result(&r);
  assert_int_equal(ea_context_capture(context, NULL), EA_OK);
  assert_int_equal(ea_case_read(file_of(1, "failing"), &read), EA_OK);
  assert_int_equal(run_case(context, &read, &r), EA_ERR_INVALID);
  assert_non_null(strstr(ea_last_error(), "kv_indices[1]: found"));
  free_result(&r);
  ea_case_free(&read);

  capture(context, 0, 0, true, 16); /* what cannot be read is not written, and the error stays */
  c.batch.q.data = NULL;
  assert_int_equal(run_case(context, &c, &r), EA_ERR_INVALID);
  assert_non_null(strstr(ea_last_error(), "q.data: found NULL"));
  free_result(&r);
  remove_files();
  ea_case_free(&c);
  ea_context_destroy(context);
}

static void check_refused(ea_context *context, const ea_capture_options *options, const char *message) {
  assert_int_equal(ea_context_capture(context, options), EA_ERR_INVALID);
  if (!strstr(ea_last_error(), message)) fail_msg("found '%s', wanted '%s'", ea_last_error(), message);
}

static void options_are_checked(void **state) {
  (void)state;
  ea_context *context = open_context();
  ea_capture_options options = EA_CAPTURE_OPTIONS_INIT;
  check_refused(context, &options, "directory: found NULL");
  options.directory = "not_there";
  check_refused(context, &options, "directory: found not_there, allowed a folder");
  options.directory = ".";
  options.call = -1;
  check_refused(context, &options, "call: found -1");
  options.call = 0;
  options.slower_ms = -1;
  check_refused(context, &options, "slower_ms: found -1");
  options.slower_ms = 0;
  options.max_files = 0;
  check_refused(context, &options, "max_files: found 0");
  assert_int_equal(ea_context_capture(NULL, NULL), EA_ERR_INVALID);
  ea_context_destroy(context);
}

static void check_environment(const char *directory, const char *when, const char *message) {
  setenv("EXTATTN_CAPTURE", directory, 1);
  setenv("EXTATTN_CAPTURE_WHEN", when, 1);
  ea_context *context = NULL;
  const ea_status status = ea_context_create(NULL, &context);
  if (message) {
    assert_int_equal(status, EA_ERR_INVALID);
    if (!strstr(ea_last_error(), message)) fail_msg("found '%s', wanted '%s'", ea_last_error(), message);
  } else {
    assert_int_equal(status, EA_OK);
    ea_case c;
    result r;
    make(3, &c);
    for (int i = 0; i < 3; ++i) {
      assert_int_equal(run_case(context, &c, &r), EA_OK);
      free_result(&r);
    }
    ea_case_free(&c);
  }
  ea_context_destroy(context);
  unsetenv("EXTATTN_CAPTURE");
  unsetenv("EXTATTN_CAPTURE_WHEN");
}

static void the_environment_begins_it(void **state) {
  (void)state;
  check_environment(".", "call=3,failing", NULL);
  assert_int_equal(count_files(), 1);
  assert_int_equal(access(file_of(3, "call"), F_OK), 0);
  remove_files();
  check_environment(".", "slower=0.000001,limit=2", NULL);
  assert_int_equal(count_files(), 2);
  remove_files();
  check_environment(".", "", NULL); /* failing calls only */
  assert_int_equal(count_files(), 0);
  check_environment("", "call=1", NULL);
  assert_int_equal(count_files(), 0);
  check_environment(".", "call=0", "EXTATTN_CAPTURE_WHEN: found \"call=0\", allowed call=N, slower=MS");
  check_environment(".", "call=1x", "EXTATTN_CAPTURE_WHEN: found");
  check_environment(".", "sometimes", "EXTATTN_CAPTURE_WHEN: found \"sometimes\"");
  check_environment("not_there", "failing", "EXTATTN_CAPTURE: found not_there, allowed a folder that exists");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_captured_call_replays_to_the_same_bits),
      cmocka_unit_test(only_used_pages_are_written),
      cmocka_unit_test(the_conditions_are_kept),
      cmocka_unit_test(a_failing_call_fails_again),
      cmocka_unit_test(options_are_checked),
      cmocka_unit_test(the_environment_begins_it),
  };
  return cmocka_run_group_tests_name("capture", tests, enter_folder, leave_folder);
}
