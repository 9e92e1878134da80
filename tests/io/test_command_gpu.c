/* The command run on a GPU: cases go there and results come back, against the float64
 * reference of the CPU, and what is refused is refused there too. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "command.h"
#include "common/numeric.h"
#include "support.h"

#define NUM_SEEDS 30
#define MAX_ERROR 1e-2     /* relative, Frobenius: of bf16, with keys that outweigh others */
#define MAX_LSE_ERROR 1e-2 /* absolute */

static int remove_all(void **state) {
  (void)state;
  remove_files();
  return 0;
}

static const ea_st_tensor *tensor_of(const ea_st_file *file, const char *name) {
  for (size_t i = 0; i < file->num_tensors; ++i) {
    if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
  }
  fail_msg("no tensor %s", name);
  return NULL;
}

static ea_dtype dtype_of(const ea_st_tensor *tensor) {
  return tensor->dtype == EA_ST_F32 ? EA_F32 : tensor->dtype == EA_ST_F16 ? EA_F16 : EA_BF16;
}

static void check_out(const ea_st_tensor *found, const ea_st_tensor *wanted, int seed) {
  assert_int_equal(found->bytes, wanted->bytes);
  const ea_dtype dtype = dtype_of(wanted);
  const int64_t n = (int64_t)(wanted->bytes / ea_dtype_size(dtype));
  double error = 0, size = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double a = ea_load_double(found->data, dtype, i), b = ea_load_double(wanted->data, dtype, i);
    error += (a - b) * (a - b);
    size += b * b;
  }
  if (!(sqrt(error) <= MAX_ERROR * sqrt(size))) fail_msg("seed %d: out: error %g of %g", seed, sqrt(error), sqrt(size));
}

static void check_lse(const ea_st_tensor *found, const ea_st_tensor *wanted, int seed) {
  assert_int_equal(found->bytes, wanted->bytes);
  const float *a = found->data, *b = wanted->data;
  for (size_t i = 0; i < wanted->bytes / sizeof *a; ++i) {
    const bool same_infinity = a[i] < -FLT_MAX && b[i] < -FLT_MAX;
    const double error = fabs((double)a[i] - (double)b[i]);
    if (!same_infinity && !(error <= MAX_LSE_ERROR * fmax(1.0, fabs((double)b[i])))) {
      fail_msg("seed %d: lse %zu: found %g, wanted %g", seed, i, (double)a[i], (double)b[i]);
    }
  }
}

static void check_results(int seed) {
  ea_st_file found, wanted;
  assert_int_equal(ea_st_open("gpu", EA_ST_MAX_HEADER_BYTES, &found), EA_OK);
  assert_int_equal(ea_st_open("cpu", EA_ST_MAX_HEADER_BYTES, &wanted), EA_OK);
  check_out(tensor_of(&found, "out"), tensor_of(&wanted, "out"), seed);
  check_lse(tensor_of(&found, "lse"), tensor_of(&wanted, "lse"), seed);
  ea_st_close(&found);
  ea_st_close(&wanted);
}

static void random_cases_agree(void **state) {
  (void)state;
  for (int seed = 0; seed < NUM_SEEDS; ++seed) {
    extattn("make-case -q -o case --seed %d --any --dtype %s --stale-nan --prefix 0..300 --extend 0..100 --seqs 3",
            seed, seed % 2 ? "f16" : "bf16");
    succeeded("make-case");
    extattn("run case -q --device cuda -o gpu");
    if (ran.code != 0) fail_msg("seed %d: exit code %d, '%s'", seed, ran.code, ran.err);
    extattn("run case -q --device cpu --family reference -o cpu");
    succeeded("the reference");
    check_results(seed);
  }
}

/* The message's first word, as the device may know less than the host about the rest. */
static void hostile_values_are_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < num_hostiles; ++i) {
    const hostile *h = &hostiles[i];
    if (!h->by_library) continue;
    char message[64];
    snprintf(message, sizeof message, "extattn run: %.*s", (int)strcspn(h->message, "[:"), h->message);
    h->make("case");
    extattn("run case --device cuda -o out");
    refused(h->name, 2, message);
    if (count_files() != 1) fail_msg("%s: left a file behind", h->name);
  }
}

static void every_depth_gives_the_same_bits(void **state) {
  (void)state;
  extattn("make-case -q -o case --heads 4/2 --head-dim 128 --prefix 200..300 --extend 50..100 --seed 1");
  succeeded("make-case");
  extattn("run case -q --device cuda --stages 1 -o one");
  succeeded("one stage");
  extattn("run case -q --device cuda --stages 2 -o two");
  succeeded("two stages");
  check_same_files("one", "two");
}

static void a_depth_that_does_not_fit_is_refused(void **state) {
  (void)state;
  extattn("make-case -q -o case --heads 1/1 --head-dim 512 --prefix 4 --extend 4 --seqs 1");
  succeeded("make-case");
  extattn("run case --device cuda --stages 100 -o out");
  refused("100 stages", 3, "extattn run: stages: found 100");
  assert_int_equal(count_files(), 1);
}

int main(void) {
  if (ea_cuda_device_count() == 0) {
    printf("skipped: no GPU: %s\n", ea_last_error());
    return 77;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(random_cases_agree, NULL, remove_all),
      cmocka_unit_test_setup_teardown(hostile_values_are_refused, NULL, remove_all),
      cmocka_unit_test_setup_teardown(every_depth_gives_the_same_bits, NULL, remove_all),
      cmocka_unit_test_setup_teardown(a_depth_that_does_not_fit_is_refused, NULL, remove_all),
  };
  return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
