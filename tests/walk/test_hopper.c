/* The Hopper kernels' division of work (plan/hopper.h), by brute force: every row of every sequence
 * belongs to exactly one row block, and the parts of shared memory neither overlap nor lose the alignment
 * that the swizzle needs. And the registry's rows: what they accept, and what is taken for granted of them. */
#include "../core/cmocka_all.h"

#include <string.h>

#include "plan/kernels.h"

enum { MAX_SEQS = 200 };

/* Sequences of these lengths: their row blocks are the ones behind their own first and before the next
 * one's first, with room for all their tokens. */
static void check_row_blocks(const int32_t *lengths, int32_t count, int32_t block_tokens) {
  int32_t start = 0, behind = 0;
  for (int32_t b = 0; b < count; b++) {
    const int32_t first = ea_hopper_first_block(start, b, block_tokens);
    const int32_t next = ea_hopper_first_block(start + lengths[b], b + 1, block_tokens);
    const int32_t needed = (lengths[b] + block_tokens - 1) / block_tokens;
    if (first < behind)
      fail_msg("sequence %d of %d tokens: first block %d, taken up to %d", b, lengths[b], first, behind);
    if (next < first + needed) {
      fail_msg("sequence %d of %d tokens: blocks %d to %d, needs %d", b, lengths[b], first, next, needed);
    }
    behind = first + needed;
    start += lengths[b];
  }
  /* The grid, as tile_schedule.c counts it: each of its blocks is found where it belongs, or is spare. */
  const int32_t grid = start / block_tokens + count;
  assert_true(behind <= grid);
  int32_t indptr[MAX_SEQS + 1] = {0};
  for (int32_t b = 0; b < count; b++) indptr[b + 1] = indptr[b] + lengths[b];
  int32_t next_seq = 0, next_i0 = 0;
  for (int32_t block = 0; block < grid; block++) {
    const ea_row_block found = ea_hopper_find_row_block(indptr, count, block, block_tokens);
    if (found.i0 >= lengths[found.seq]) continue;
    while (next_seq < count && next_i0 >= lengths[next_seq]) next_seq++, next_i0 = 0;
    if (found.seq != next_seq || found.i0 != next_i0) {
      fail_msg("block %d: found sequence %d from %d, expected %d from %d", block, found.seq, found.i0, next_seq,
               next_i0);
    }
    next_i0 += block_tokens;
  }
  while (next_seq < count && next_i0 >= lengths[next_seq]) next_seq++, next_i0 = 0;
  assert_int_equal(next_seq, count);
}

/* Numbers below `limit`, the same in every run (a linear congruence's upper bits). */
static int32_t draw(uint64_t *rng, int32_t limit) {
  *rng = *rng * 6364136223846793005u + 1442695040888963407u;
  return (int32_t)((*rng >> 33) % (uint64_t)limit);
}

static void test_row_blocks(void **state) {
  (void)state;
  for (int32_t block_tokens = 1; block_tokens <= 9; block_tokens++) {
    for (int32_t code = 0; code < 20 * 20 * 20; code++) {
      const int32_t lengths[] = {code % 20, code / 20 % 20, code / 400};
      check_row_blocks(lengths, 3, block_tokens);
    }
  }
  int32_t lengths[MAX_SEQS];
  uint64_t rng = 1;
  for (int round = 0; round < 200; round++) {
    for (int b = 0; b < MAX_SEQS; b++) lengths[b] = draw(&rng, 3) ? draw(&rng, 3000) : 0;
    check_row_blocks(lengths, MAX_SEQS, 1 + draw(&rng, 192));
  }
}

/* The registry's rows of one launch kind, one after another; NULL behind the last. */
static const ea_kernel *next_kernel(ea_launch_kind launch, int32_t *at) {
  int32_t count;
  const ea_kernel *kernels = ea_kernels(&count);
  while (*at < count) {
    const ea_kernel *kernel = &kernels[(*at)++];
    if (kernel->launch == launch) return kernel;
  }
  return NULL;
}

static void test_shared_memory(void **state) {
  (void)state;
  int32_t at_row = 0;
  for (const ea_kernel *kernel; (kernel = next_kernel(EA_LAUNCH_HOPPER, &at_row));) {
    const ea_hopper_shape s = kernel->shape.hopper;
    for (int32_t stages = 1; stages <= EA_HOPPER_MAX_STAGES; stages++) {
      const ea_hopper_smem at = ea_hopper_smem_layout(s, stages);
      const int32_t tiles[] = {at.q, at.k, at.v, at.k + at.k_bytes, at.v + at.v_bytes};
      for (size_t t = 0; t < sizeof tiles / sizeof tiles[0]; t++) assert_int_equal(tiles[t] % 1024, 0);
      assert_int_equal(s.tile_n * EA_HOPPER_SLICE_BYTES % 1024, 0);
      assert_true(at.barriers - at.q >= s.consumers * 64 * s.dim * 2);
      assert_true(at.k_bytes >= s.tile_n * s.dim * 2 && at.v_bytes >= s.tile_n * s.dim_v * 2);
      assert_int_equal(at.v - at.k, at.k_bytes);
      assert_int_equal(at.total - at.k, stages * (at.k_bytes + at.v_bytes));
      assert_true(at.items - at.barriers >= (3 + 2 * EA_HOPPER_MAX_STAGES) * 16 && at.items % 16 == 0);
      assert_true(at.k - at.items >= EA_HOPPER_ITEMS * EA_HOPPER_ITEM_BYTES);
      assert_int_equal(kernel->smem_bytes(kernel, stages), at.total);
    }
    /* Two stages fit a block of sm_90. */
    assert_true(ea_hopper_smem_layout(s, 2).total <= 232448);
  }
}

/* What setmaxnreg shares out is what the block has at its start. */
static void check_registers(const char *name, int32_t threads, int32_t shared_out) {
  const int32_t at_start = 65536 / threads / 8 * 8 * threads;
  if (shared_out > at_start) fail_msg("%s: %d registers of %d", name, shared_out, at_start);
}

#define REGISTERS(name, source, archs, d, dv, wg, n, consumer_registers, producer_registers, window, calls)            \
  check_registers(#name, 128 * ((wg) + 1), 128 * ((wg) * (consumer_registers) + (producer_registers)));
#define WIDE_REGISTERS(name, source, archs, d, dv, latent, unit, consumer_registers, producer_registers)               \
  check_registers(#name, EA_WIDE_THREADS, 128 * (2 * (consumer_registers) + (producer_registers)));
static void test_registers(void **state) {
  (void)state;
  EA_KERNELS(REGISTERS, WIDE_REGISTERS, EA_NO_ROW, EA_NO_ROW)
}

static void test_wide(void **state) {
  (void)state;
  int32_t at_row = 0;
  for (const ea_kernel *kernel; (kernel = next_kernel(EA_LAUNCH_HOPPER_WIDE, &at_row));) {
    const ea_wide_shape s = kernel->shape.hopper_wide;
    assert_int_equal(kernel->max_stages, s.latent ? 1 : EA_WIDE_MAX_STAGES);
    for (int32_t stages = 1; stages <= kernel->max_stages; stages++) {
      const ea_wide_smem at = ea_wide_smem_layout(s, stages);
      const int32_t slots = ea_wide_slots(s, stages);
      assert_true(at.q % 1024 == 0 && at.p % 1024 == 0 && at.ring % 1024 == 0 && ea_wide_unit_bytes(s) % 1024 == 0);
      assert_true(at.p - at.q >= EA_WIDE_M * s.dim * 2);
      assert_int_equal(at.barriers - at.p, s.latent ? 0 : 4 * EA_WIDE_P_BYTES);
      assert_true(slots >= 2 && slots <= EA_WIDE_MAX_SLOTS);
      assert_true(at.maxima - at.barriers >= (3 + 2 * EA_WIDE_MAX_SLOTS) * 16 && at.maxima % 16 == 0);
      assert_true(at.items - at.maxima >= 4 * EA_WIDE_M * 4 && at.items % 128 == 0);
      assert_true(at.ring - at.items >= EA_HOPPER_ITEMS * EA_HOPPER_ITEM_BYTES);
      assert_int_equal(at.total - at.ring, 2 * slots * ea_wide_unit_bytes(s));
      assert_int_equal(kernel->smem_bytes(kernel, stages), at.total);
    }
    assert_true(ea_wide_smem_layout(s, s.latent ? 1 : 2).total <= 232448); /* a block of sm_90 */
  }
}

static void test_group_parts(void **state) {
  (void)state;
  for (int32_t group = 1; group <= 300; group++) {
    const int32_t parts = ea_hopper_group_parts(EA_WIDE_M, group);
    assert_true(parts >= 1 && group % parts == 0 && group / parts <= EA_WIDE_M);
  }
  assert_int_equal(ea_hopper_group_parts(64, 64), 1);
  assert_int_equal(ea_hopper_group_parts(64, 128), 2);
  assert_int_equal(ea_hopper_group_parts(64, 66), 2);
  assert_int_equal(ea_hopper_group_parts(128, 128), 1);
  assert_int_equal(ea_hopper_group_parts(192, 192), 1);
}

/* The Hopper family's first row that accepts a problem; NULL: none. */
static const char *hopper_for(int32_t dim, int32_t dim_v, bool shared_kv, int32_t window, double logit_cap) {
  ea_problem problem = EA_PROBLEM_INIT;
  problem.head_dim = dim;
  problem.head_dim_v = dim_v;
  problem.shared_kv = shared_kv;
  problem.window_left = window;
  problem.logit_cap = logit_cap;
  int32_t count;
  const ea_kernel *kernels = ea_kernels(&count);
  for (int32_t i = 0; i < count; i++) {
    if (kernels[i].family == EA_FAMILY_HOPPER && ea_kernel_accepts(&kernels[i], &problem)) return kernels[i].name;
  }
  return NULL;
}

static void test_accepts(void **state) {
  (void)state;
  assert_string_equal(hopper_for(320, 512, false, -1, 0), "hopper_d512");
  assert_string_equal(hopper_for(576, 512, true, -1, 0), "hopper_d576x512");
  assert_null(hopper_for(576, 512, false, -1, 0));
  assert_null(hopper_for(512, 576, true, -1, 0));
  assert_string_equal(hopper_for(256, 256, false, -1, 0), "hopper_d256");
  assert_string_equal(hopper_for(256, 256, false, 4096, 0), "hopper_d256w");
  assert_string_equal(hopper_for(256, 256, false, 4097, 0), "hopper_d256");
  assert_string_equal(hopper_for(64, 64, false, -1, 0), "hopper_d64");
  assert_string_equal(hopper_for(64, 64, false, -1, 30), "hopper_d64s");
  assert_string_equal(hopper_for(96, 96, false, -1, 30), "hopper_d96");
}

/* What the launch and the planner take for granted of every row. */
static void test_rows(void **state) {
  (void)state;
  int32_t count;
  const ea_kernel *kernels = ea_kernels(&count);
  assert_true(count > 0);
  for (int32_t i = 0; i < count; i++) {
    const ea_kernel *k = &kernels[i];
    const size_t family = strlen(ea_family_name(k->family));
    if (strncmp(k->name, ea_family_name(k->family), family) != 0 || k->name[family] != '_') fail_msg("%s", k->name);
    for (int32_t j = 0; j < i; j++) assert_string_not_equal(k->name, kernels[j].name);
    assert_true(k->threads % 32 == 0 && k->threads > 0 && k->threads <= 1024);
    const int32_t fixed_bytes = k->smem_bytes(k, 0), stage_bytes = k->smem_bytes(k, 1) - fixed_bytes;
    for (int32_t stages = 0; stages <= k->max_stages; stages++) {
      const int32_t bytes = k->smem_bytes(k, stages);
      assert_int_equal(bytes, fixed_bytes + stages * stage_bytes);
      assert_int_equal(ea_kernel_deepest(k, bytes), stages);
      assert_int_equal(ea_kernel_deepest(k, bytes - 1), stages > 0 ? stages - 1 : 0);
    }
    assert_int_equal(ea_kernel_deepest(k, INT32_MAX), k->max_stages);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_row_blocks), cmocka_unit_test(test_shared_memory), cmocka_unit_test(test_registers),
      cmocka_unit_test(test_wide),       cmocka_unit_test(test_group_parts),   cmocka_unit_test(test_accepts),
      cmocka_unit_test(test_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
