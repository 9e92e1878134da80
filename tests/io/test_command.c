/* The commands run and make-case as a user has them: exit codes, the one line that says why,
 * and what is on disk afterwards. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "check/runner.h"
#include "command.h"
#include "common/numeric.h"
#include "support.h"

static int enter(void **state) {
  setenv("OMP_NUM_THREADS", "1", 1);
  return enter_folder(state);
}

static int write_case(void **state) {
  (void)state;
  const parts p = valid_parts();
  write_parts("case.safetensors", &p);
  return 0;
}

static int remove_all(void **state) {
  (void)state;
  remove_files();
  return 0;
}

/* ------------------------------------------------------------------------------------
 * run
 * ---------------------------------------------------------------------------------- */

static void hostile_files_are_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < num_hostiles; ++i) {
    const hostile *h = &hostiles[i];
    char message[512];
    snprintf(message, sizeof message, "extattn run: case.safetensors: %s", h->message);
    h->make("case.safetensors");
    extattn("run case.safetensors --device cpu -o out.safetensors");
    refused(h->name, 2, message);
    if (count_files() != 1) fail_msg("%s: left a file behind", h->name);
  }
}

static void a_result_is_written(void **state) {
  (void)state;
  extattn("run case.safetensors --device cpu --family reference");
  succeeded("run");
  assert_non_null(strstr(ran.out, "case.out.safetensors: 2 sequences, 3 new and 3 prefix tokens in "));
  assert_int_equal(count_files(), 2);

  ea_case c;
  ea_context *context;
  ea_plan_options options = EA_PLAN_OPTIONS_INIT;
  ea_result result;
  options.family = EA_FAMILY_REFERENCE;
  assert_int_equal(ea_context_create(NULL, &context), EA_OK);
  assert_int_equal(ea_case_read("case.safetensors", &c), EA_OK);
  assert_int_equal(ea_check_run(context, &options, &c, EA_OUT_PACKED, &result), EA_OK);
  assert_int_equal(ea_case_result_write("wanted", &c, result.out, result.lse), EA_OK);
  check_same_files("case.out.safetensors", "wanted");
  ea_result_free(&result);
  ea_case_free(&c);
  ea_context_destroy(context);
}

static void names_of_results(void **state) {
  (void)state;
  extattn("run case.safetensors --device cpu -q -o x");
  succeeded("-o x");
  assert_int_equal(access("x", R_OK), 0);
  assert_int_equal(rename("case.safetensors", "case"), 0);
  extattn("run case --device cpu -q");
  succeeded("run case");
  assert_string_equal(ran.out, "");
  assert_int_equal(access("case.out.safetensors", R_OK), 0);
}

static void json_says_what_was_run(void **state) {
  (void)state;
  extattn("run case.safetensors --device cpu --json --threads 1 --isa portable -o x");
  succeeded("--json");
  json_t *json = json_loads(ran.out, 0, NULL);
  assert_non_null(json);
  assert_string_equal(json_string_value(json_object_get(json, "out")), "x");
  assert_string_equal(json_string_value(json_object_get(json, "family")), "cpu");
  assert_string_equal(json_string_value(json_object_get(json, "arch")), "portable");
  assert_int_equal(json_integer_value(json_object_get(json, "num_seqs")), 2);
  assert_int_equal(json_integer_value(json_object_get(json, "num_tokens")), 3);
  assert_int_equal(json_integer_value(json_object_get(json, "prefix_tokens")), 3);
  assert_true(json_is_false(json_object_get(json, "shared_kv")));
  assert_true(json_real_value(json_object_get(json, "elapsed_ms")) >= 0);
  json_decref(json);
}

static void bad_usage_is_refused(void **state) {
  (void)state;
  extattn("run");
  refused("run", 2, "extattn run: CASE: found none, allowed one file");
  extattn("run case.safetensors other");
  refused("two files", 2, "extattn run: CASE: found 'other' too, allowed one file");
  extattn("run other");
  refused("a missing file", 2, "extattn run: other: cannot read: No such file or directory");
  extattn("run case.safetensors --stages 0");
  refused("--stages 0", 2, "extattn run: --stages: found '0', allowed ");
  extattn("run case.safetensors --device gpu");
  refused("--device gpu", 2, "extattn run: --device: found 'gpu', allowed auto, cpu, cuda, cuda:N");
  extattn("run case.safetensors --shared-kv maybe");
  refused("--shared-kv maybe", 2, "extattn run: --shared-kv: found 'maybe', allowed auto, on, off");
  extattn("run case.safetensors --device cpu --shared-kv on");
  refused("--shared-kv on", 2, "extattn run: --shared-kv: found v or v_cache with other values");
  extattn("run case.safetensors -o ./case.safetensors");
  refused("-o CASE", 2, "extattn run: --output: found './case.safetensors', taken by CASE, allowed another file");
  assert_int_equal(count_files(), 1);
  extattn("run case.safetensors --device cpu -q");
  succeeded("the case is as it was");
}

static void what_a_device_cannot_do(void **state) {
  (void)state;
  extattn("run case.safetensors --device cuda:1000");
  refused("no such GPU", 3, "extattn run: device");
  extattn("run case.safetensors --device cpu --stages 3");
  refused("stages on a CPU", 3, "extattn run: stages: found 3");
  extattn("run case.safetensors --device cpu --family hopper");
  refused("a GPU's family on a CPU", 3, "extattn run: family: found hopper");
  assert_int_equal(count_files(), 1);
}

static void results_that_cannot_be_written(void **state) {
  (void)state;
  extattn("run case.safetensors --device cpu -o no/out.safetensors");
  refused("no such folder", 1, "extattn run: no/out.safetensors: cannot write: No such file or directory");
  assert_int_equal(count_files(), 1);
  extattn("make-case -q -o large --seqs 1 --prefix 0 --extend 32");
  succeeded("make-case");
  extattn_on_a_full_disk("run large --device cpu -o out.safetensors");
  refused("a full disk", 1, "extattn run: out.safetensors: cannot write: File too large");
  assert_int_equal(count_files(), 2);
  extattn("run case.safetensors --device cpu -o /dev/full");
  refused("/dev/full", 1, "extattn run: /dev/full: cannot write: No space left on device");
  extattn("run case.safetensors --device cpu -o /dev/null");
  succeeded("/dev/null");
  struct stat info;
  assert_int_equal(stat("/dev/null", &info), 0);
  assert_true(S_ISCHR(info.st_mode));
}

static void an_older_result_stays_or_is_replaced(void **state) {
  (void)state;
  write_bytes("out", "old", 3);
  extattn("run other --device cpu -o out");
  refused("a missing file", 2, "extattn run: other: cannot read");
  size_t n;
  unsigned char *bytes = read_bytes("out", &n);
  assert_int_equal(n, 3);
  free(bytes);
  extattn("run case.safetensors --device cpu -q -o out");
  succeeded("run");
  bytes = read_bytes("out", &n);
  assert_true(n > 64);
  free(bytes);
  assert_int_equal(count_files(), 2);
}

/* ------------------------------------------------------------------------------------
 * make-case
 * ---------------------------------------------------------------------------------- */

static void a_seed_names_a_case(void **state) {
  (void)state;
  extattn("make-case -q -o a --seed 5 --prefix 1..20 --extend 1..5");
  succeeded("a");
  extattn("make-case -q -o b --seed 5 --prefix 1..20 --extend 1..5");
  succeeded("b");
  check_same_files("a", "b");
  extattn("make-case -o c --seed 6 --prefix 1..20 --extend 1..5");
  succeeded("c");
  assert_non_null(strstr(ran.out, "c: seed 6, bf16"));
  size_t n, m;
  unsigned char *a = read_bytes("a", &n), *c = read_bytes("c", &m);
  assert_true(n != m || memcmp(a, c, n) != 0);
  free(a);
  free(c);
}

static void every_option_is_in_the_case(void **state) {
  (void)state;
  extattn("make-case -q -o f --seqs 3 --prefix 5 --extend 2..4 --heads 6/3 --head-dim 24 --head-dim-v 40 --dtype f16 "
          "--cache-dtype e5m2 --page-size 4 --slots pages --index-dtype i64 --mask random --mask-prefix --mask-offsets "
          "--window 9 --cap 20 --scale 0.25 --k-scale 0.5 --v-scale 2");
  succeeded("make-case");
  ea_case c;
  assert_int_equal(ea_case_read("f", &c), EA_OK);
  const ea_problem *p = &c.problem;
  assert_int_equal(c.batch.num_seqs, 3);
  assert_int_equal(c.batch.kv_indptr[3], 15);
  assert_in_range(c.batch.num_tokens, 6, 12);
  assert_int_equal(p->num_q_heads, 6);
  assert_int_equal(p->num_kv_heads, 3);
  assert_int_equal(p->head_dim, 24);
  assert_int_equal(p->head_dim_v, 40);
  assert_int_equal(p->dtype, EA_F16);
  assert_int_equal(p->cache_dtype, EA_E5M2);
  assert_int_equal(p->index_dtype, EA_I64);
  assert_int_equal(p->page_size, 4);
  assert_true(p->has_custom_mask && !p->skip_prefix_custom_mask && c.batch.window_kv_offsets);
  assert_int_equal(p->window_left, 9);
  assert_true(p->logit_cap == 20 && p->softmax_scale == 0.25 && p->k_scale == 0.5 && p->v_scale == 2);
  ea_case_free(&c);

  extattn("make-case -q -o f --mask full --sinks --skip-prefix --temperature 512 --head-dim 16 --shared-kv --peaks");
  succeeded("make-case");
  assert_int_equal(ea_case_read("f", &c), EA_OK);
  assert_true(!p->causal && p->has_sinks && p->skip_prefix && !p->skip_extend && !p->has_custom_mask);
  assert_int_equal(p->xai_temperature_len, 512);
  assert_true(ea_case_find_shared_kv(&c));
  ea_case_free(&c);

  extattn("make-case -q -o f --skip-extend --empty --seqs 20 --head-dim 8");
  succeeded("make-case");
  assert_int_equal(ea_case_read("f", &c), EA_OK);
  assert_true(p->causal && p->skip_extend && !p->skip_prefix);
  assert_int_equal(c.batch.qo_indptr[1], 0);
  assert_int_equal(c.batch.kv_indptr[1], 0);
  ea_case_free(&c);
}

static void bad_cases_are_not_made(void **state) {
  (void)state;
  static const char *const wrong[][2] = {
      {"", "--output: found none"},
      {"-o f x", "found the argument 'x'"},
      {"-o f --seed -1", "--seed: found '-1', allowed 0 to "},
      {"-o f --seqs 257", "--seqs: found '257', allowed 0 to 256"},
      {"-o f --prefix 5..3", "--prefix: found '5..3', allowed A..B"},
      {"-o f --extend 1..2x", "--extend: found '1..2x', allowed A..B"},
      {"-o f --prefix 1000000000 --seqs 5", "--prefix, --extend: found 50000"},
      {"-o f --extend 2147418113", "--extend: found '2147418113', allowed A..B with 0 <= A <= B <= 2147418112"},
      {"-o f --seqs 1 --prefix 2147418112 --extend 1", "--prefix, --extend: found a sequence of 2147418113 tokens"},
      {"-o f --mask-prefix", "--mask-prefix: found without a custom mask, allowed with --mask random"},
      {"-o f --heads 3/2", "--heads: found '3/2'"},
      {"-o f --head-dim 577", "--head-dim: found '577', allowed 1 to 576"},
      {"-o f --head-dim 64 --head-dim-v 65 --shared-kv", "head_dim_v: found 65, allowed 1 to head_dim (64)"},
      {"-o f --cache-dtype f32", "cache_dtype: found f32"},
      {"-o f --slots random", "--slots: found 'random', allowed ordered, pages, shuffled"},
      {"-o f --mask x", "--mask: found 'x', allowed causal, full, random"},
      {"-o f --cap nan", "--cap: found 'nan', allowed a finite number > 0"},
      {"-o f --window 0", "--window: found '0', allowed 1 to "},
      {"-o f --temperature 1", "--temperature: found '1', allowed 2 to "},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    char message[256];
    snprintf(message, sizeof message, "extattn make-case: %s", wrong[i][1]);
    extattn(wrong[i][0][0] ? "make-case %s" : "make-case", wrong[i][0]);
    refused(wrong[i][0], 2, message);
  }
  extattn("make-case -o no/f");
  refused("no such folder", 1, "extattn make-case: no/f: cannot write: No such file or directory");
  extattn_on_a_full_disk("make-case -o f");
  refused("a full disk", 1, "extattn make-case: f: cannot write: File too large");
  assert_int_equal(count_files(), 0);
}

static void check_no_nan(const char *path, int seed) {
  ea_st_file file;
  assert_int_equal(ea_st_open(path, EA_ST_MAX_HEADER_BYTES, &file), EA_OK);
  for (size_t t = 0; t < file.num_tensors; ++t) {
    const ea_st_tensor *tensor = &file.tensors[t];
    const ea_dtype dtype = tensor->dtype == EA_ST_F32 ? EA_F32 : tensor->dtype == EA_ST_F16 ? EA_F16 : EA_BF16;
    const int64_t n = (int64_t)(tensor->bytes / ea_dtype_size(dtype));
    for (int64_t i = 0; i < n; ++i) {
      const double x = ea_load_double(tensor->data, dtype, i);
      if (isnan(x) || x == (double)INFINITY) fail_msg("seed %d: found %g in %s", seed, x, tensor->name);
    }
  }
  ea_st_close(&file);
}

/* From seed to result, with NaN wherever no row may look (promise 2). */
static void hostile_batches_run(void **state) {
  (void)state;
  for (int seed = 0; seed < 40; ++seed) {
    extattn("make-case -q -o f --seed %d --any --stale-nan --empty --seqs 3 --prefix 0..40 --extend 0..20", seed);
    succeeded("make-case");
    extattn("run f -q --device cpu --threads 1 -o out");
    if (ran.code != 0) fail_msg("seed %d: exit code %d, '%s'", seed, ran.code, ran.err);
    check_no_nan("out", seed);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(hostile_files_are_refused, NULL, remove_all),
      cmocka_unit_test_setup_teardown(a_result_is_written, write_case, remove_all),
      cmocka_unit_test_setup_teardown(names_of_results, write_case, remove_all),
      cmocka_unit_test_setup_teardown(json_says_what_was_run, write_case, remove_all),
      cmocka_unit_test_setup_teardown(bad_usage_is_refused, write_case, remove_all),
      cmocka_unit_test_setup_teardown(what_a_device_cannot_do, write_case, remove_all),
      cmocka_unit_test_setup_teardown(results_that_cannot_be_written, write_case, remove_all),
      cmocka_unit_test_setup_teardown(an_older_result_stays_or_is_replaced, write_case, remove_all),
      cmocka_unit_test_setup_teardown(a_seed_names_a_case, NULL, remove_all),
      cmocka_unit_test_setup_teardown(every_option_is_in_the_case, NULL, remove_all),
      cmocka_unit_test_setup_teardown(bad_cases_are_not_made, NULL, remove_all),
      cmocka_unit_test_setup_teardown(hostile_batches_run, NULL, remove_all),
  };
  return cmocka_run_group_tests(tests, enter, leave_folder);
}
