/* Whether the emulated GPU notices faults: a checker that cannot fail is worth nothing. Every run is a
 * process of its own, since a fault that is noticed ends it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda/driver.h"
#include "faults.h"

#define FAULT_NAME(name) #name,
static const char *const names[] = {EA_FAULTS(FAULT_NAME)};

enum { ELEMENTS_A = FAULTS_ROWS * FAULTS_COLS, ELEMENTS_B = FAULTS_TILES * ELEMENTS_A };

/* Small whole numbers: every sum is exact, in any order. */
static int value_at(int i) {
  return (i * 7 + i / 64 * 3) % 9 - 4;
}

static uint16_t bf16_of(int value) {
  const float wide = (float)value;
  uint32_t bits;
  memcpy(&bits, &wide, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static int wrong_elements(const float *out) {
  int wrong = 0;
  for (int row = 0; row < FAULTS_ROWS; row++) {
    for (int col = 0; col < FAULTS_ROWS; col++) {
      int sum = 0;
      for (int tile = 0; tile < FAULTS_TILES; tile++) {
        for (int k = 0; k < FAULTS_COLS; k++) {
          sum += value_at(row * FAULTS_COLS + k) * value_at((tile * FAULTS_ROWS + col) * FAULTS_COLS + k + 1);
        }
      }
      wrong += out[row * FAULTS_COLS + col] != (float)sum;
    }
  }
  return wrong;
}

static void must(ea_cu_result result) {
  if (result != EA_CU_SUCCESS) _exit(9);
}

/* Exit status 0: the result is right, 1: wrong; a fault that is noticed aborts. */
static void run_and_exit(int fault) {
  static uint16_t a[ELEMENTS_A], b[ELEMENTS_B];
  static float out[ELEMENTS_A];
  for (int i = 0; i < ELEMENTS_A; i++) a[i] = bf16_of(value_at(i));
  for (int i = 0; i < ELEMENTS_B; i++) b[i] = bf16_of(value_at(i + 1));
  ea_driver driver;
  ea_cu_device device;
  ea_cu_context context;
  ea_cu_module module;
  ea_cu_function function;
  ea_cu_ptr a_device, b_device, out_device;
  if (ea_driver_open(&driver) != EA_OK) _exit(9);
  must(driver.device_get(&device, 0));
  must(driver.primary_ctx_retain(&context, device));
  must(driver.ctx_push_current(context));
  must(driver.module_load_data(&module, "faults"));
  must(driver.module_get_function(&function, module, "faults"));
  must(driver.mem_alloc(&a_device, sizeof a));
  must(driver.mem_alloc(&b_device, sizeof b));
  must(driver.mem_alloc(&out_device, sizeof out));
  must(driver.memcpy_to_device(a_device, a, sizeof a, NULL));
  must(driver.memcpy_to_device(b_device, b, sizeof b, NULL));
  ea_faults_args args = {.a = (const uint16_t *)(uintptr_t)a_device,
                         .b = (const uint16_t *)(uintptr_t)b_device,
                         .out = (float *)(uintptr_t)out_device,
                         .fault = fault};
  const uint64_t dims[] = {FAULTS_COLS, 1, FAULTS_TILES * FAULTS_ROWS}, strides[] = {128, 128};
  const uint32_t box[] = {FAULTS_COLS, 1, FAULTS_ROWS}, steps[] = {1, 1, 1};
  must(driver.tensor_map_encode_tiled(&args.map, EA_CU_TENSOR_MAP_BFLOAT16, 3, (void *)(uintptr_t)b_device, dims,
                                      strides, box, steps, 0, EA_CU_TENSOR_MAP_SWIZZLE_128B, 0, 0));
  void *params[] = {&args};
  must(driver.launch_kernel(function, 1, 1, 1, FAULTS_THREADS, 1, 1, FAULTS_SMEM_BYTES, NULL, params, NULL));
  must(driver.memcpy_to_host(out, out_device, sizeof out, NULL));
  _exit(wrong_elements(out) ? 1 : 0);
}

/* Runs it apart. text: what it said. */
static int run(int fault, const char *order, char *text, size_t size) {
  int ends[2], status = 0;
  assert_int_equal(pipe(ends), 0);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    setenv("EA_EMULATED_ORDER", order, 1);
    alarm(20);
    run_and_exit(fault);
  }
  close(ends[1]);
  size_t used = 0;
  for (ssize_t got; used + 1 < size && (got = read(ends[0], text + used, size - 1 - used)) > 0;) used += (size_t)got;
  text[used] = 0;
  close(ends[0]);
  waitpid(child, &status, 0);
  return status;
}

static bool is_right(int status) {
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
static bool is_wrong(int status) {
  return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

static void test_a_right_kernel_is_right_at_any_order(void **state) {
  (void)state;
  static const char *const orders[] = {"early", "late", "1", "2", "3", "4", "5", "6", "7", "8"};
  char text[4096];
  for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
    if (!is_right(run(FAULT_NONE, orders[i], text, sizeof text))) fail_msg("order %s: %s", orders[i], text);
  }
}

static const struct {
  ea_fault fault;
  const char *order; /* at which it has to be noticed */
  const char *words; /* of the message; NULL: the result has to be wrong */
} expected[] = {
    {FAULT_NO_WAIT_FOR_TILE, "late", "too many"},
    {FAULT_RELEASED_BEFORE_THE_PRODUCT, "late", "wgmma reads B"},
    {FAULT_NEVER_RELEASED, "early", "deadlock"},
    {FAULT_NEVER_RELEASED, "late", "deadlock"},
    {FAULT_WRONG_PARITY, "late", "too many"},
    {FAULT_NO_FENCE_AFTER_CP_ASYNC, "early", "fence.proxy.async"},
    {FAULT_NO_FENCE_AFTER_CP_ASYNC, "late", "fence.proxy.async"},
    {FAULT_NO_FENCE_AFTER_ARRIVAL, "early", "fence.proxy.async"},
    {FAULT_NO_FENCE_AFTER_ARRIVAL, "late", "fence.proxy.async"},
    {FAULT_NO_ARRIVAL_OF_COPIES, "early", "fence.proxy.async"},
    {FAULT_NO_ARRIVAL_OF_COPIES, "late", "fence.proxy.async"},
    {FAULT_NO_WAIT_FOR_CP_ASYNC, "early", "fence.proxy.async"},
    {FAULT_NO_WAIT_FOR_CP_ASYNC, "late", "fence.proxy.async"},
    {FAULT_NO_FENCE_AFTER_STORES, "early", "wgmma reads A"},
    {FAULT_NO_WGMMA_FENCE, "early", "no wgmma.fence"},
    {FAULT_NO_WAIT_FOR_THE_PRODUCT, "late", NULL},
    {FAULT_ACCUMULATOR_WRITTEN_IN_FLIGHT, "late", "in flight"},
    {FAULT_ONE_ARRIVAL_TOO_MANY, "early", "too many"},
    {FAULT_TOO_FEW_BYTES_EXPECTED, "early", "deadlock"},
    {FAULT_TOO_MANY_BYTES_EXPECTED, "late", "deadlock"},
    {FAULT_SHARED_OUT_OF_RANGE, "early", "shared memory"},
    {FAULT_DEVICE_OUT_OF_RANGE, "early", "memory that is not there"},
    {FAULT_A_LANE_STRAYS, "early", "diverged"},
    {FAULT_A_LANE_STAYS_AWAY, "early", "deadlock"},
    {FAULT_OTHER_DESCRIPTOR, "early", "other operands"},
    {FAULT_UNLIKE_BAR_COUNTS, "early", "bar 1"},
    {FAULT_COPY_LEFT_BEHIND, "late", "in flight"},
    {FAULT_BARRIER_OVERWRITTEN, "early", "overwritten"},
    {FAULT_NO_SYNC_BEFORE_LDMATRIX, "early", NULL},
};

/* Named kernel and block in the message, or a wrong result. */
static bool is_noticed(int status, const char *text, const char *words) {
  if (!words) return is_wrong(status);
  return WIFSIGNALED(status) && strstr(text, words) && strstr(text, "faults block (0, 0)");
}

static void test_faults_are_noticed(void **state) {
  (void)state;
  char text[4096];
  int missed = 0;
  for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
    const int status = run(expected[i].fault, expected[i].order, text, sizeof text);
    if (is_noticed(status, text, expected[i].words)) continue;
    missed++;
    print_error("%s at order %s: expected %s, found status %x: %s\n", names[expected[i].fault], expected[i].order,
                expected[i].words ? expected[i].words : "a wrong result", (unsigned)status, text);
  }
  assert_int_equal(missed, 0);
}

/* Faults of timing, which one order may hide, and which some of the random ones has to show. */
static void test_random_orders_show_faults_of_timing(void **state) {
  (void)state;
  static const ea_fault timing[] = {FAULT_NO_WAIT_FOR_TILE, FAULT_RELEASED_BEFORE_THE_PRODUCT,
                                    FAULT_NO_WAIT_FOR_THE_PRODUCT, FAULT_NO_SYNC_BEFORE_LDMATRIX};
  char text[4096], seed[16];
  for (size_t i = 0; i < sizeof timing / sizeof timing[0]; i++) {
    bool noticed = false;
    for (int s = 1; s <= 8 && !noticed; s++) {
      snprintf(seed, sizeof seed, "%d", s);
      noticed = !is_right(run(timing[i], seed, text, sizeof text));
    }
    if (!noticed) fail_msg("%s: not noticed with seeds 1 to 8", names[timing[i]]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_right_kernel_is_right_at_any_order),
      cmocka_unit_test(test_faults_are_noticed),
      cmocka_unit_test(test_random_orders_show_faults_of_timing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
