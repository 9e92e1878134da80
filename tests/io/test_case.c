/* Case files: what is written comes back and computes the same, hostile files are refused
 * with the right words, and no damage to a file does more than that. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "check/generate.h"
#include "check/runner.h"
#include "support.h"

static ea_context *context;

static int open_context(void **state) {
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  options.num_threads = 1; /* the cases are too small for more */
  return enter_folder(state) || ea_context_create(&options, &context) ? -1 : 0;
}

static int close_context(void **state) {
  ea_context_destroy(context);
  return leave_folder(state);
}

/* The float64 reference on a case, outputs and inputs watched. */
static ea_status run(const ea_case *c, ea_result *result) {
  ea_plan_options options = EA_PLAN_OPTIONS_INIT;
  options.family = EA_FAMILY_REFERENCE;
  return ea_check_run(context, &options, c, EA_OUT_PACKED, result);
}

static void read_ok(const char *path, ea_case *c) {
  if (ea_case_read(path, c)) fail_msg("%s: %s", path, ea_last_error());
}

/* ------------------------------------------------------------------------------------
 * What is refused
 * ---------------------------------------------------------------------------------- */

static void hostile_files_are_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < num_hostiles; ++i) {
    const hostile *h = &hostiles[i];
    h->make("f");
    ea_case c;
    ea_status status = ea_case_read("f", &c);
    if (h->by_library) {
      if (status) fail_msg("%s: not read: %s", h->name, ea_last_error());
      ea_result result;
      status = run(&c, &result);
      ea_result_free(&result);
    }
    if (status != EA_ERR_INVALID) fail_msg("%s: found %s", h->name, ea_status_name(status));
    const char *said = ea_last_error();
    if (strncmp(said, h->message, strlen(h->message)) != 0) {
      fail_msg("%s: found '%s', wanted '%s'", h->name, said, h->message);
    }
    if (!h->by_library) { /* nothing is held on to */
      assert_int_equal(c.num_storages, 0);
      assert_null(c.map);
    }
    ea_case_free(&c);
  }
  remove("f");
}

static void truncated_files_are_refused(void **state) {
  (void)state;
  const parts p = valid_parts();
  write_parts("f", &p);
  size_t n;
  unsigned char *bytes = read_bytes("f", &n);
  for (size_t length = 0; length < n; ++length) {
    assert_int_equal(truncate("f", (off_t)length), 0);
    ea_case c;
    if (ea_case_read("f", &c) != EA_ERR_INVALID) fail_msg("%zu of %zu bytes: read", length, n);
    write_bytes("f", bytes, n);
  }
  free(bytes);
  remove("f");
}

/* Reads a file that may be damaged; what can still be read must be run or refused, nothing
 * else. Both are watched: by the runner, and by a sanitizer where the build has one. */
static void read_and_run(const char *path, const char *what, size_t where) {
  ea_case c;
  ea_status status = ea_case_read(path, &c);
  if (!status) {
    ea_result result;
    status = run(&c, &result);
    ea_result_free(&result);
    ea_case_free(&c);
  }
  if (status != EA_OK && status != EA_ERR_INVALID) {
    fail_msg("%s %zu: found %s (%s)", what, where, ea_status_name(status), ea_last_error());
  }
}

static void flipped_bits_are_harmless(void **state) {
  (void)state;
  const parts p = valid_parts();
  write_parts("f", &p);
  size_t n;
  unsigned char *bytes = read_bytes("f", &n);
  const int fd = open("f", O_WRONLY);
  assert_true(fd >= 0);
  for (size_t bit = 0; bit < 8 * n; ++bit) {
    const unsigned char flipped = (unsigned char)(bytes[bit / 8] ^ (1U << (bit % 8)));
    assert_int_equal(pwrite(fd, &flipped, 1, (off_t)(bit / 8)), 1);
    read_and_run("f", "bit", bit);
    assert_int_equal(pwrite(fd, &bytes[bit / 8], 1, (off_t)(bit / 8)), 1);
  }
  close(fd);
  free(bytes);
  remove("f");
}

/* ------------------------------------------------------------------------------------
 * What comes back
 * ---------------------------------------------------------------------------------- */

static void check_problem(const ea_problem *found, const ea_problem *written) {
  assert_int_equal(found->dtype, written->dtype);
  assert_int_equal(found->cache_dtype, written->cache_dtype ? written->cache_dtype : written->dtype);
  assert_int_equal(found->index_dtype, written->index_dtype);
  assert_int_equal(found->num_q_heads, written->num_q_heads);
  assert_int_equal(found->num_kv_heads, written->num_kv_heads);
  assert_int_equal(found->head_dim, written->head_dim);
  assert_int_equal(found->head_dim_v, written->head_dim_v ? written->head_dim_v : written->head_dim);
  assert_int_equal(found->page_size, written->page_size);
  assert_int_equal(found->causal, written->causal);
  assert_int_equal(found->has_sinks, written->has_sinks);
  assert_int_equal(found->has_custom_mask, written->has_custom_mask);
  assert_int_equal(found->skip_prefix_custom_mask, written->skip_prefix_custom_mask);
  assert_int_equal(found->skip_prefix, written->skip_prefix);
  assert_int_equal(found->skip_extend, written->skip_extend);
  assert_int_equal(found->window_left, written->window_left);
  assert_int_equal(found->xai_temperature_len, written->xai_temperature_len);
  assert_true(found->softmax_scale == written->softmax_scale);
  assert_true(found->logit_cap == written->logit_cap);
  assert_true(found->k_scale == written->k_scale);
  assert_true(found->v_scale == written->v_scale);
}

static void check_result(const ea_result *found, const ea_result *wanted, uint64_t seed) {
  const size_t rows = (size_t)wanted->tokens * (size_t)wanted->heads;
  if (memcmp(found->out, wanted->out, rows * ea_result_row_bytes(wanted)) != 0 ||
      memcmp(found->lse, wanted->lse, rows * sizeof(float)) != 0) {
    fail_msg("seed %llu: another result", (unsigned long long)seed);
  }
}

/* Random cases of every kind, views with gaps and views of one buffer included. */
static void random_cases_come_back(void **state) {
  (void)state;
  static ea_spec spec; /* large */
  for (uint64_t seed = 0; seed < 60; ++seed) {
    ea_gen_options options = EA_GEN_OPTIONS_INIT;
    options.seed = seed;
    options.max_work = 300000;
    ea_spec_random(&options, &spec);
    ea_case made, found;
    ea_result wanted, result;
    ea_case_init(&made);
    assert_int_equal(ea_spec_build(&spec, &made), EA_OK);
    assert_int_equal(run(&made, &wanted), EA_OK);
    if (ea_case_write("f", &made)) fail_msg("seed %llu: %s", (unsigned long long)seed, ea_last_error());

    read_ok("f", &found);
    check_problem(&found.problem, &made.problem);
    if (made.problem.shared_kv) assert_true(ea_case_find_shared_kv(&found));
    assert_int_equal(run(&found, &result), EA_OK);
    check_result(&result, &wanted, seed);
    assert_int_equal(ea_case_write("g", &found), EA_OK);
    check_same_files("f", "g");

    ea_result_free(&wanted);
    ea_result_free(&result);
    ea_case_free(&made);
    ea_case_free(&found);
  }
  remove("f");
  remove("g");
}

static void a_missing_option_has_its_default(void **state) {
  (void)state;
  parts p = valid_parts();
  p.num_options = 0;
  write_parts("f", &p);
  ea_case c;
  read_ok("f", &c);
  ea_problem defaults = EA_PROBLEM_INIT;
  assert_true(c.problem.softmax_scale == defaults.softmax_scale);
  assert_true(c.problem.logit_cap == defaults.logit_cap);
  assert_true(c.problem.k_scale == 1 && c.problem.v_scale == 1);
  assert_true(c.problem.causal && c.problem.skip_prefix_custom_mask);
  assert_false(c.problem.skip_prefix || c.problem.skip_extend);
  assert_int_equal(c.problem.window_left, -1);
  assert_int_equal(c.problem.xai_temperature_len, 0);
  ea_case_free(&c);
  remove("f");
}

static void options_are_read(void **state) {
  (void)state;
  static const ea_st_entry options[] = {
      {"softmax_scale", "1.25e-1"},
      {"causal", "false"},
      {"window_left", "128"},
      {"logit_cap", "0"},
      {"k_scale", "0.5"},
      {"xai_temperature_len", "4294967297"},
      {"v_scale", "+2"},
      {"skip_prefix_custom_mask", "false"},
      {"skip_prefix", "true"},
      {"skip_extend", "true"},
  };
  parts p = valid_parts();
  p.num_options = sizeof options / sizeof options[0];
  memcpy(p.options, options, sizeof options);
  write_parts("f", &p);
  ea_case c;
  read_ok("f", &c);
  assert_true(c.problem.softmax_scale == 0.125 && c.problem.logit_cap == 0);
  assert_true(c.problem.k_scale == 0.5 && c.problem.v_scale == 2);
  assert_false(c.problem.causal || c.problem.skip_prefix_custom_mask);
  assert_true(c.problem.skip_prefix && c.problem.skip_extend);
  assert_int_equal(c.problem.window_left, 128);
  assert_true(c.problem.xai_temperature_len == INT64_C(4294967297));
  ea_case_free(&c);
  remove("f");
}

/* mask_indptr with B+1 entries, the mask as U8, I32 slots. */
static void other_forms_are_the_same(void **state) {
  (void)state;
  parts p = valid_parts();
  ea_case c;
  ea_result wanted, result;
  write_parts("f", &p);
  read_ok("f", &c);
  assert_int_equal(run(&c, &wanted), EA_OK);
  ea_case_free(&c);

  static const int32_t mask_indptr[] = {0, 10, 11}, kv_indices[] = {5, 0, 2};
  part(&p, "custom_mask")->dtype = EA_ST_U8;
  ea_st_source *indptr = part(&p, "mask_indptr"), *indices = part(&p, "kv_indices");
  indptr->dtype = indices->dtype = EA_ST_I32;
  indptr->shape[0] = 3;
  indptr->data = mask_indptr;
  indices->data = kv_indices;
  ea_st_pack(indptr);
  ea_st_pack(indices);
  write_parts("f", &p);
  read_ok("f", &c);
  assert_int_equal(c.problem.mask_indptr_dtype, EA_I32);
  assert_int_equal(c.problem.index_dtype, EA_I32);
  assert_int_equal(run(&c, &result), EA_OK);
  check_result(&result, &wanted, 0);
  ea_case_free(&c);
  ea_result_free(&wanted);
  ea_result_free(&result);
  remove("f");
}

/* The header one byte longer, so that no tensor is aligned in the file. */
static void unaligned_tensors_are_copied(void **state) {
  (void)state;
  const parts p = valid_parts();
  write_parts("f", &p);
  ea_case aligned, shifted;
  read_ok("f", &aligned);
  for (size_t i = 0; i < aligned.num_storages; ++i) assert_false(aligned.storages[i].owned);

  size_t n;
  unsigned char *bytes = read_bytes("f", &n);
  const size_t header_bytes = bytes[0] + 256U * bytes[1];
  unsigned char *longer = malloc(n + 1);
  assert_non_null(longer);
  memcpy(longer, bytes, 8 + header_bytes);
  longer[8 + header_bytes] = ' ';
  memcpy(longer + 8 + header_bytes + 1, bytes + 8 + header_bytes, n - 8 - header_bytes);
  longer[0] = (unsigned char)((header_bytes + 1) % 256);
  longer[1] = (unsigned char)((header_bytes + 1) / 256);
  write_bytes("g", longer, n + 1);
  read_ok("g", &shifted);
  assert_int_equal((uintptr_t)shifted.batch.q.data % 2, 0);
  assert_int_equal((uintptr_t)shifted.batch.kv_indices % 8, 0);

  ea_result wanted, result;
  assert_int_equal(run(&aligned, &wanted), EA_OK);
  assert_int_equal(run(&shifted, &result), EA_OK);
  check_result(&result, &wanted, 0);
  ea_result_free(&wanted);
  ea_result_free(&result);
  ea_case_free(&aligned);
  ea_case_free(&shifted);
  free(bytes);
  free(longer);
  remove("f");
  remove("g");
}

/* ------------------------------------------------------------------------------------
 * The rest of the interface
 * ---------------------------------------------------------------------------------- */

static void latent_attention_is_found(void **state) {
  (void)state;
  static const uint16_t k[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24};
  static uint16_t v[12];
  for (int i = 0; i < 12; ++i) v[i] = k[i / 2 * 4 + i % 2];
  parts p = valid_parts();
  part(&p, "k")->data = part(&p, "k_cache")->data = k;
  part(&p, "v")->data = part(&p, "v_cache")->data = v;
  write_parts("f", &p);
  ea_case c;
  read_ok("f", &c);
  assert_false(c.problem.shared_kv); /* only when asked */
  assert_true(ea_case_find_shared_kv(&c));
  assert_true(c.problem.shared_kv);
  ea_case_free(&c);

  v[11] ^= 1; /* one bit in the pool */
  write_parts("f", &p);
  read_ok("f", &c);
  assert_false(ea_case_find_shared_kv(&c));
  assert_false(c.problem.shared_kv);
  ea_case_free(&c);
  remove("f");
}

static void rebased_pointers_keep_their_places(void **state) {
  (void)state;
  ea_case c;
  void *kv, *index;
  ea_case_init(&c);
  assert_int_equal(ea_case_alloc(&c, 100, &kv), EA_OK);
  assert_int_equal(ea_case_alloc(&c, 8, &index), EA_OK);
  assert_int_equal((uintptr_t)kv % 64, 0);
  c.batch.k.data = kv;
  c.batch.v.data = (char *)kv + 36;
  c.batch.q.data = (char *)kv + 100; /* empty, at the end */
  c.batch.kv_indptr = index;
  char there[200];
  ea_batch moved = ea_case_rebase(&c, (void *[]){there, there + 150});
  assert_ptr_equal(moved.k.data, there);
  assert_ptr_equal(moved.v.data, there + 36);
  assert_ptr_equal(moved.q.data, there + 100);
  assert_ptr_equal(moved.kv_indptr, there + 150);
  assert_ptr_equal(moved.kv_indptr_host, index);
  assert_null(moved.sinks);
  ea_case_free(&c);
  ea_case_free(&c); /* and an empty one */
}

/* In a file an empty tensor lies where the next one begins. */
static void an_empty_tensor_hides_no_other(void **state) {
  (void)state;
  static int32_t numbers[2];
  ea_case c;
  ea_case_init(&c);
  c.storages[c.num_storages++] = (ea_storage){numbers, 0, false};
  c.storages[c.num_storages++] = (ea_storage){numbers, sizeof numbers, false};
  c.batch.kv_indices = c.batch.qo_indptr = numbers;
  char there[2];
  const ea_batch moved = ea_case_rebase(&c, (void *[]){there, there + 1});
  assert_ptr_equal(moved.qo_indptr, there + 1);
  assert_ptr_equal(moved.kv_indices, there + 1);
  ea_case_free(&c);
}

static void storages_are_limited(void **state) {
  (void)state;
  ea_case c;
  void *data;
  ea_case_init(&c);
  for (int i = 0; i < EA_CASE_MAX_STORAGES; ++i) assert_int_equal(ea_case_alloc(&c, 0, &data), EA_OK);
  assert_int_equal(ea_case_alloc(&c, 0, &data), EA_ERR_INTERNAL);
  ea_case_free(&c);
}

static void results_are_written(void **state) {
  (void)state;
  const parts p = valid_parts();
  write_parts("f", &p);
  ea_case c;
  read_ok("f", &c);
  uint16_t out[3 * 2 * 2];
  float lse[3 * 2];
  for (int i = 0; i < 12; ++i) out[i] = (uint16_t)(100 + i);
  for (int i = 0; i < 6; ++i) lse[i] = (float)i;
  assert_int_equal(ea_case_result_write("out", &c, out, lse), EA_OK);
  ea_st_file file;
  assert_int_equal(ea_st_open("out", EA_ST_MAX_HEADER_BYTES, &file), EA_OK);
  assert_int_equal(file.num_tensors, 2);
  const ea_st_tensor *first = &file.tensors[0], *second = &file.tensors[1];
  assert_string_equal(first->name, "lse");
  assert_int_equal(first->dtype, EA_ST_F32);
  assert_string_equal(ea_st_shape_of(first).s, "[3, 2]");
  assert_memory_equal(first->data, lse, sizeof lse);
  assert_string_equal(second->name, "out");
  assert_int_equal(second->dtype, EA_ST_F16);
  assert_string_equal(ea_st_shape_of(second).s, "[3, 2, 2]");
  assert_memory_equal(second->data, out, sizeof out);
  ea_st_close(&file);
  ea_case_free(&c);
  remove("f");
  remove("out");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(hostile_files_are_refused),
      cmocka_unit_test(truncated_files_are_refused),
      cmocka_unit_test(flipped_bits_are_harmless),
      cmocka_unit_test(random_cases_come_back),
      cmocka_unit_test(a_missing_option_has_its_default),
      cmocka_unit_test(options_are_read),
      cmocka_unit_test(other_forms_are_the_same),
      cmocka_unit_test(unaligned_tensors_are_copied),
      cmocka_unit_test(latent_attention_is_found),
      cmocka_unit_test(rebased_pointers_keep_their_places),
      cmocka_unit_test(an_empty_tensor_hides_no_other),
      cmocka_unit_test(storages_are_limited),
      cmocka_unit_test(results_are_written),
  };
  return cmocka_run_group_tests(tests, open_context, close_context);
}
