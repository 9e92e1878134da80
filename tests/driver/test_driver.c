/* What the CUDA backend asks of the driver, and what it does when the driver refuses: opening,
 * loading, launching, validating. Promise 6 (a call allocates nothing and waits for nothing) is
 * counted here; whether results are right is for the tests on a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.h"
#include "cuda/kernels/hopper.h"
#include "cuda/kernels/stage.h"
#include "cuda/memory.h"
#include "extattn.h"
#include "fake_cuda.h"
#include "plan/portable.h"
#include "problem/call.h"

static ea_status open_gpu(int32_t ordinal, ea_context **context) {
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  options.device = EA_DEVICE_CUDA;
  options.device_ordinal = ordinal;
  return ea_context_create(&options, context);
}

static void assert_says(const char *part) {
  if (!strstr(ea_last_error(), part)) fail_msg("\"%s\" does not say \"%s\"", ea_last_error(), part);
}

static ea_problem small_problem(void) {
  ea_problem problem = EA_PROBLEM_INIT;
  problem.num_q_heads = 4;
  problem.num_kv_heads = 2;
  problem.head_dim = 128;
  return problem;
}

/* Two sequences: 5 new tokens after 3 cached, and 2 after none. Tensors lie at addresses of the card's, which nothing
 * here reads, with room behind each for any call. */
typedef struct small_batch {
  ea_batch batch;
  int32_t qo_indptr[3], kv_indptr[3], slots[3];
} small_batch;

static uint16_t *on_card(uintptr_t place) {
  return (uint16_t *)(place << 44); // NOLINT(performance-no-int-to-ptr)
}

static void make_small_batch(small_batch *s) {
  *s = (small_batch){.qo_indptr = {0, 5, 7}, .kv_indptr = {0, 3, 3}, .slots = {6, 0, 3}};
  s->batch = (ea_batch)EA_BATCH_INIT;
  s->batch.num_seqs = 2;
  s->batch.num_tokens = 7;
  s->batch.num_kv_indices = 3;
  s->batch.num_pages = 7;
  s->batch.q.data = s->batch.k.data = s->batch.v.data = on_card(1);
  s->batch.k_cache.data = s->batch.v_cache.data = on_card(1);
  s->batch.out.data = on_card(2);
  s->batch.lse = (float *)(void *)on_card(3);
  s->batch.qo_indptr = s->qo_indptr;
  s->batch.kv_indptr = s->kv_indptr;
  s->batch.kv_indices = s->slots;
}

static _Alignas(256) unsigned char workspace[4096];

static int reset(void **state) {
  (void)state;
  fake_reset();
  return 0;
}

/* Whatever a test did: everything given back, and the thread's context as it was. */
static int balanced(void **state) {
  (void)state;
  assert_int_equal(fake.contexts, 0);
  assert_int_equal(fake.modules, 0);
  assert_int_equal(fake_stack_depth(), 0);
  return 0;
}

/* ---- opening ---- */

static void test_device_is_described(void **state) {
  (void)state;
  ea_context *context;
  ea_device_info info = EA_DEVICE_INFO_INIT;
  assert_int_equal(ea_cuda_device_count(), 1);
  assert_int_equal(open_gpu(0, &context), EA_OK);
  assert_int_equal(ea_context_info(context, &info), EA_OK);
  assert_string_equal(info.name, "Fake H200");
  assert_string_equal(info.arch, "sm_90");
  assert_int_equal(info.multiprocessors, 132);
  assert_int_equal(info.smem_limit_bytes, 232448);
  assert_int_equal(info.driver_version, 13000);
  ea_context_destroy(context);
}

static void test_absent_devices_are_refused(void **state) {
  (void)state;
  ea_context *context;
  assert_int_equal(open_gpu(1, &context), EA_ERR_NO_DEVICE);
  assert_says("device_ordinal: found 1, allowed 0 to 0");
  fake.devices = 0;
  assert_int_equal(open_gpu(0, &context), EA_ERR_NO_DEVICE);
  assert_says("found 0");
  assert_int_equal(ea_cuda_device_count(), 0);
  fake.fail_name = "cuInit";
  fake.fail_result = 100;
  assert_int_equal(open_gpu(0, &context), EA_ERR_NO_DEVICE);
  assert_says("as planned");
}

/* A cubin runs on its own major version, from its minor version on; sm_90a on 9.0 only. */
static void test_which_image_runs_where(void **state) {
  (void)state;
  static const struct {
    int32_t image, capability;
    bool exact, runs;
  } rules[] = {{80, 80, false, true},   {80, 86, false, true},   {80, 89, false, true},    {80, 90, false, false},
               {80, 75, false, false},  {90, 90, true, true},    {90, 89, true, false},    {90, 100, true, false},
               {100, 100, false, true}, {100, 103, false, true}, {100, 110, false, false}, {120, 120, false, true},
               {120, 121, false, true}, {120, 100, false, false}};
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
    const ea_image image = {.capability = rules[i].image, .exact = rules[i].exact};
    assert_int_equal(ea_image_runs_on(&image, rules[i].capability), rules[i].runs);
  }
}

/* How many images there are for an entry point of this name, or for one that begins so. */
static int32_t count_images(const char *entry, bool whole) {
  int32_t found = 0;
  for (int32_t i = 0; i < ea_image_count; i++) {
    found += whole ? strcmp(ea_images[i].kernel, entry) == 0 : strncmp(ea_images[i].kernel, entry, strlen(entry)) == 0;
  }
  return found;
}

/* The Hopper kernels that were compiled (none, where nvcc does not know sm_90a) are those of the registry. */
static void test_images_are_rows_of_the_registry(void **state) {
  (void)state;
  const int32_t compiled = count_images("hopper_", false);
  int32_t rows = 0, expected = 0;
  const ea_kernel *kernels = ea_kernels(&rows);
  for (int32_t k = 0; k < rows; k++) {
    for (ea_dtype type = EA_F16; type <= EA_BF16; type++) {
      if (kernels[k].family != EA_FAMILY_HOPPER) continue;
      char entry[64];
      snprintf(entry, sizeof entry, "%s_%s", kernels[k].name, ea_dtype_name(type));
      if (compiled > 0 && count_images(entry, true) != 1) fail_msg("%s: no image, or several", entry);
      expected++;
    }
  }
  assert_true(compiled == 0 || compiled == expected);
}

static void test_old_cards_are_refused_with_what_is_allowed(void **state) {
  (void)state;
  ea_context *context;
  fake.major = 7;
  fake.minor = 5;
  assert_int_equal(open_gpu(0, &context), EA_ERR_UNSUPPORTED);
  assert_says("device: found sm_75, allowed");
  assert_says("sm_90a");
}

static void test_failures_on_the_way_give_everything_back(void **state) {
  (void)state;
  static const char *const names[] = {"cuDeviceGetCount", "cuDevicePrimaryCtxRetain", "cuModuleLoadData",
                                      "cuModuleGetFunction"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    ea_context *context;
    fake.fail_name = names[i];
    fake.fail_result = i % 2 ? 2 : 999;
    assert_int_equal(open_gpu(0, &context), i % 2 ? EA_ERR_OUT_OF_MEMORY : EA_ERR_DEVICE);
    assert_says("as planned");
    assert_int_equal(fake.contexts, 0);
    if (fake.modules != 0) fail_msg("%s fails: %d modules stay loaded", names[i], fake.modules);
  }
}

/* ---- loading ---- */

static void *make_plan(void *context) {
  const ea_problem problem = small_problem();
  ea_plan *plan;
  if (ea_plan_create(context, &problem, NULL, &plan) != EA_OK) return context;
  ea_plan_destroy(plan);
  return NULL;
}

static void test_a_kernel_is_loaded_once(void **state) {
  (void)state;
  enum { THREADS = 8 };
  pthread_t threads[THREADS];
  ea_context *context;
  assert_int_equal(open_gpu(0, &context), EA_OK);
  const int before = fake.loads;
  for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, make_plan, context), 0);
  for (int i = 0; i < THREADS; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    assert_null(failed);
  }
  assert_int_equal(fake.loads, before + 1);
  ea_context_destroy(context);
}

static void test_a_failed_load_can_be_tried_again(void **state) {
  (void)state;
  const ea_problem problem = small_problem();
  ea_plan_info info = EA_PLAN_INFO_INIT;
  ea_context *context;
  ea_plan *plan;
  assert_int_equal(open_gpu(0, &context), EA_OK);
  fake.fail_name = "cuModuleLoadData";
  fake.fail_result = 2;
  assert_int_equal(ea_plan_create(context, &problem, NULL, &plan), EA_ERR_OUT_OF_MEMORY);
  assert_int_equal(ea_plan_create(context, &problem, NULL, &plan), EA_OK);
  assert_int_equal(ea_plan_get_info(plan, &info), EA_OK);
  assert_int_equal(info.registers, 168);
  ea_plan_destroy(plan);
  ea_context_destroy(context);
}

/* ---- running ---- */

typedef struct opened {
  ea_context *context;
  ea_plan *plan;
  ea_plan_info info;
} opened;

static void open_family(const ea_problem *problem, ea_family family, opened *o) {
  *o = (opened){.info = EA_PLAN_INFO_INIT};
  ea_plan_options options = EA_PLAN_OPTIONS_INIT;
  options.family = family;
  assert_int_equal(open_gpu(0, &o->context), EA_OK);
  assert_int_equal(ea_plan_create(o->context, problem, &options, &o->plan), EA_OK);
  assert_int_equal(ea_plan_get_info(o->plan, &o->info), EA_OK);
}

static void open_plan(const ea_problem *problem, opened *o) {
  open_family(problem, EA_FAMILY_AUTO, o);
}

static void close_plan(opened *o) {
  ea_plan_destroy(o->plan);
  ea_context_destroy(o->context);
}

static void test_a_run_is_one_launch_of_what_the_plan_says(void **state) {
  (void)state;
  const ea_problem problem = small_problem();
  opened o;
  small_batch s;
  int stream;
  open_family(&problem, EA_FAMILY_PORTABLE, &o);
  make_small_batch(&s);
  const fake_state before = fake;
  assert_int_equal(ea_run(o.plan, &s.batch, NULL, 0, &stream), EA_OK); /* this family needs no workspace */
  assert_int_equal(fake.launches, before.launches + 1);
  assert_string_equal(fake.last.kernel, o.info.kernel);
  assert_int_equal(fake.last.threads, o.info.threads);
  assert_int_equal(fake.last.smem_bytes, o.info.smem_bytes);
  assert_ptr_equal(fake.last.stream, &stream);
  assert_int_equal(fake.last.grid_x, ea_portable_first_block(7, 2, 2, o.info.tile_m) * 2); /* two K/V heads */
  assert_int_equal(fake.last.grid_y, 1);
  /* Promise 6. */
  assert_int_equal(fake.allocations, before.allocations);
  assert_int_equal(fake.waits, before.waits);
  assert_int_equal(fake.copies, before.copies);
  assert_int_equal(fake.loads, before.loads);
  assert_int_equal(fake_stack_depth(), 0);
  close_plan(&o);
}

static void test_nothing_is_launched_for_no_tokens(void **state) {
  (void)state;
  const ea_problem problem = small_problem();
  opened o;
  small_batch s;
  open_plan(&problem, &o);
  make_small_batch(&s);
  memset(s.qo_indptr, 0, sizeof s.qo_indptr);
  s.batch.num_tokens = 0;
  const int before = fake.launches;
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_OK);
  assert_int_equal(fake.launches, before);
  close_plan(&o);
}

static ea_portable_launch seen_launch;

static void see_launch(const char *kernel, void **params) {
  (void)kernel;
  memcpy(&seen_launch, params[1], sizeof seen_launch);
}

/* The kernel reads 16 bytes at a time only where every row starts at a multiple of 16. */
static void test_alignment_is_told_to_the_kernel(void **state) {
  (void)state;
  const ea_problem problem = small_problem();
  opened o;
  small_batch s;
  open_family(&problem, EA_FAMILY_PORTABLE, &o);
  make_small_batch(&s);
  fake.on_launch = see_launch;
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_OK);
  assert_true(seen_launch.q_aligned && seen_launch.kv_aligned && seen_launch.cache_aligned);
  assert_int_equal(seen_launch.stages, o.info.stages);

  s.batch.q.data = on_card(1) + 1;
  s.batch.v.head_stride = 129;
  s.batch.v_cache.row_stride = 2 * 128 + 4;
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_OK);
  assert_false(seen_launch.q_aligned);
  assert_false(seen_launch.kv_aligned);
  assert_false(seen_launch.cache_aligned);
  close_plan(&o);
}

/* ---- the Hopper family ---- */

static bool hopper_is_here(void) {
  for (int32_t i = 0; i < ea_image_count; i++) {
    if (strcmp(ea_images[i].kernel, "hopper_d128_bf16") == 0) return true;
  }
  return false;
}

static ea_schedule_launch seen_schedule;

static void see_schedule(const char *kernel, void **params) {
  if (strcmp(kernel, "schedule") == 0) memcpy(&seen_schedule, params[1], sizeof seen_schedule);
}

static int seen_maps; /* of q, k and v */

static void see_hopper_launch(const char *kernel, void **params) {
  if (strncmp(kernel, "hopper", 6) != 0) return;
  const ea_hopper_launch *launch = params[1];
  static const ea_tensor_map none;
  seen_launch = launch->scores;
  seen_maps = (memcmp(&launch->q, &none, sizeof none) != 0) + (memcmp(&launch->k, &none, sizeof none) != 0) +
              (memcmp(&launch->v, &none, sizeof none) != 0);
}

static void assert_map(const fake_map *map, const uint64_t dims[3], const uint64_t strides[2], const uint32_t box[3]) {
  assert_int_equal(map->type, EA_CU_TENSOR_MAP_BFLOAT16);
  assert_int_equal(map->rank, 3);
  assert_int_equal(map->swizzle, EA_CU_TENSOR_MAP_SWIZZLE_128B);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(map->dims[i], dims[i]);
    assert_int_equal(map->box[i], box[i]);
    if (i < 2) assert_int_equal(map->strides[i], strides[i]);
  }
}

/* Tensors are [7, 4, 128] and [7, 2, 128]; a block has 128 rows: 64 tokens of the 2 heads of a group. */
static void test_hopper_describes_the_tensors_to_tma(void **state) {
  (void)state;
  if (!hopper_is_here()) skip();
  const ea_problem problem = small_problem();
  opened o;
  small_batch s;
  open_family(&problem, EA_FAMILY_HOPPER, &o);
  make_small_batch(&s);
  s.batch.v.token_stride = 512;
  s.batch.v.head_stride = 136;
  const fake_state before = fake;
  size_t bytes = 1;
  assert_int_equal(ea_workspace_size(o.plan, &s.batch, &bytes), EA_OK);
  assert_int_equal(bytes, 0);
  assert_int_equal(ea_run(o.plan, &s.batch, NULL, 0, NULL), EA_OK);
  assert_int_equal(fake.launches, before.launches + 1); /* one piece of work a block: in any order */
  assert_int_equal(fake.maps, before.maps + 3);
  assert_int_equal(fake.allocations, before.allocations);
  assert_int_equal(fake.waits, before.waits);
  assert_string_equal(fake.last.kernel, "hopper_d128_bf16");
  assert_int_equal(fake.last.threads, 384);
  assert_int_equal(fake.last.smem_bytes, o.info.smem_bytes);
  /* Two row blocks (one may be spare) of each of two K/V heads. */
  assert_int_equal(fake.last.grid_x, 4);
  assert_map(&fake.last_maps[0], (const uint64_t[]){128, 4, 7}, (const uint64_t[]){256, 1024},
             (const uint32_t[]){64, 2, 64});
  assert_map(&fake.last_maps[1], (const uint64_t[]){128, 2, 7}, (const uint64_t[]){256, 512},
             (const uint32_t[]){64, 1, 128});
  assert_map(&fake.last_maps[2], (const uint64_t[]){128, 2, 7}, (const uint64_t[]){272, 1024},
             (const uint32_t[]){64, 1, 128});

  /* The same tensors once more: their maps are remembered. Not when anything is another. */
  fake.on_launch = see_hopper_launch;
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_OK);
  assert_int_equal(fake.maps, before.maps + 3);
  assert_int_equal(seen_maps, 3);
  s.batch.k.token_stride = 264;
  s.batch.q.data = (uint16_t *)s.batch.q.data + 8;
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_OK);
  assert_int_equal(fake.maps, before.maps + 5);
  assert_int_equal(fake.last_maps[1].strides[1], 528);

  fake.fail_name = "cuTensorMapEncodeTiled";
  fake.fail_result = 1;
  s.batch.v.token_stride = 520;
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_ERR_DEVICE);
  assert_int_equal(fake.launches, before.launches + 3);
  assert_int_equal(fake.maps, before.maps + 5);
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_OK); /* no failure is remembered */
  assert_int_equal(fake.launches, before.launches + 4);
  assert_int_equal(fake.maps, before.maps + 6);
  close_plan(&o);
}

/* More work than multiprocessors: it is counted out, and that of several sequences in an order. */
static void test_hopper_orders_the_work_of_several_sequences(void **state) {
  (void)state;
  if (!hopper_is_here()) skip();
  const ea_problem problem = small_problem();
  opened o;
  small_batch s;
  fake.multiprocessors = 2;
  open_family(&problem, EA_FAMILY_HOPPER, &o);
  make_small_batch(&s);
  const int before = fake.launches;
  size_t bytes = 0;
  assert_int_equal(ea_workspace_size(o.plan, &s.batch, &bytes), EA_OK);
  assert_true(bytes > 0);
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, bytes - 1, NULL), EA_ERR_INVALID);
  assert_says("workspace_bytes");
  assert_int_equal(fake.launches, before);
  fake.on_launch = see_schedule;
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, bytes, NULL), EA_OK);
  assert_int_equal(fake.launches, before + 2);
  assert_int_equal(fake.last.grid_x, 2);
  assert_ptr_equal(seen_schedule.taken, workspace); /* cleared by the schedule kernel */
  close_plan(&o);

  /* One sequence needs no order, and for one piece of each K/V head on one multiprocessor no count either. */
  s.batch.num_seqs = 1;
  s.qo_indptr[1] = 7;
  fake.multiprocessors = 1;
  open_family(&problem, EA_FAMILY_HOPPER, &o);
  bytes = 1;
  assert_int_equal(ea_workspace_size(o.plan, &s.batch, &bytes), EA_OK);
  assert_int_equal(bytes, 0);
  assert_int_equal(ea_run(o.plan, &s.batch, NULL, 0, NULL), EA_OK);
  assert_int_equal(fake.launches, before + 3);
  assert_int_equal(fake.last.grid_x, 1);
  close_plan(&o);

  ea_problem four_heads = problem;
  four_heads.num_kv_heads = 4;
  open_family(&four_heads, EA_FAMILY_HOPPER, &o);
  memset(workspace, 0xff, sizeof workspace);
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_OK);
  assert_int_equal(fake.launches, before + 4);
  int32_t taken;
  memcpy(&taken, workspace, sizeof taken);
  assert_int_equal(taken, 0);

  fake.fail_name = "cuMemsetD8Async";
  fake.fail_result = 1;
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_ERR_DEVICE);
  assert_int_equal(fake.launches, before + 4);
  close_plan(&o);
}

static ea_stage_launch seen_stage;
static int32_t seen_staged;

static void see_staging(const char *kernel, void **params) {
  if (strcmp(kernel, "stage") == 0) memcpy(&seen_stage, params[1], sizeof seen_stage);
  if (strncmp(kernel, "hopper", 6) == 0) seen_staged = ((const ea_hopper_launch *)params[1])->staged;
}

/* Cached keys and values are copied together where the workspace has room for most of them, and many queries read them.
 */
static void test_hopper_stages_what_the_workspace_has_room_for(void **state) {
  (void)state;
  if (!hopper_is_here()) skip();
  enum { TOKENS = 64, CACHED = 100, TOKEN_BYTES = 2 * 512 * 2 };
  static _Alignas(256) unsigned char room[CACHED * TOKEN_BYTES + 256];
  ea_problem problem = small_problem();
  problem.num_q_heads = 64;
  problem.num_kv_heads = 1;
  problem.head_dim = 512;
  opened o;
  small_batch s;
  open_family(&problem, EA_FAMILY_HOPPER, &o);
  make_small_batch(&s);
  s.batch.num_seqs = 1;
  s.batch.num_tokens = TOKENS;
  s.batch.num_kv_indices = CACHED;
  s.batch.lse = NULL;
  size_t bytes = 0;
  assert_int_equal(ea_workspace_size(o.plan, &s.batch, &bytes), EA_OK);
  assert_int_equal(bytes, CACHED * TOKEN_BYTES); /* 64 pieces of work are one round: no count */
  const struct {
    unsigned char *workspace;
    size_t bytes;
    int32_t staged;
  } calls[] = {
      {room, bytes, CACHED},
      {room, bytes + 256, CACHED},
      {room, (CACHED / 2) * TOKEN_BYTES + 1, CACHED / 2},
      {room, (CACHED / 2) * TOKEN_BYTES - 1, 0}, /* better none than less than half */
      {room, 0, 0},
      {NULL, bytes, 0},
      {room + 16, bytes, 0}, /* not aligned: as good as none, for a call that needs none */
  };
  fake.on_launch = see_staging;
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    const int before = fake.launches;
    seen_staged = -1;
    seen_stage = (ea_stage_launch){0};
    assert_int_equal(ea_run(o.plan, &s.batch, calls[i].workspace, calls[i].bytes, NULL), EA_OK);
    assert_int_equal(fake.launches, before + 1 + (calls[i].staged > 0));
    assert_int_equal(seen_staged, calls[i].staged);
    assert_int_equal(seen_stage.tokens, calls[i].staged);
    if (calls[i].staged == 0) continue;
    assert_ptr_equal(seen_stage.k, room);
    assert_ptr_equal(seen_stage.v, room + calls[i].staged * (TOKEN_BYTES / 2));
  }
  /* Rows that cannot be read 16 bytes at a time; few queries; an older caller, who has not told how many are cached. */
  s.batch.k_cache.row_stride = 512 + 4;
  assert_int_equal(ea_run(o.plan, &s.batch, room, bytes, NULL), EA_OK);
  assert_int_equal(seen_staged, 0);
  s.batch.k_cache.row_stride = 0;
  s.batch.num_tokens = TOKENS - 1;
  assert_int_equal(ea_run(o.plan, &s.batch, room, bytes, NULL), EA_OK);
  assert_int_equal(seen_staged, 0);
  assert_int_equal(ea_workspace_size(o.plan, &s.batch, &bytes), EA_OK);
  assert_int_equal(bytes, 0);
  s.batch.num_seqs = s.batch.num_tokens = 0;
  bytes = 1;
  assert_int_equal(ea_workspace_size(o.plan, &s.batch, &bytes), EA_OK);
  assert_int_equal(bytes, 0);
  s.batch.num_seqs = 1;
  s.batch.num_tokens = TOKENS;
  s.batch.struct_size = offsetof(ea_batch, num_kv_indices);
  bytes = 1;
  assert_int_equal(ea_workspace_size(o.plan, &s.batch, &bytes), EA_OK);
  assert_int_equal(bytes, 0);
  s.batch.struct_size = sizeof s.batch;
  close_plan(&o);

  /* An 8-bit cache is widened on its way, so no copy of it can come by TMA. */
  problem.cache_dtype = EA_E4M3;
  open_family(&problem, EA_FAMILY_HOPPER, &o);
  assert_int_equal(ea_workspace_size(o.plan, &s.batch, &bytes), EA_OK);
  assert_int_equal(bytes, 0);
  assert_int_equal(ea_run(o.plan, &s.batch, room, sizeof room, NULL), EA_OK);
  assert_int_equal(seen_staged, 0);
  close_plan(&o);
}

/* Rows that TMA cannot read are left out of its maps, and the kernel is told. */
static void test_hopper_does_without_tma_where_rows_are_not_aligned(void **state) {
  (void)state;
  if (!hopper_is_here()) skip();
  const ea_problem problem = small_problem();
  opened o;
  small_batch s;
  open_family(&problem, EA_FAMILY_HOPPER, &o);
  fake.on_launch = see_hopper_launch;
  for (int which = 0; which < 6; which++) {
    make_small_batch(&s);
    if (which == 0) s.batch.q.data = (uint16_t *)s.batch.q.data + 1;
    if (which == 1) s.batch.v.head_stride = 129;
    if (which == 2) s.batch.k_cache.row_stride = 2 * 128 + 4;
    if (which == 3) s.batch.out.token_stride = 4 * 128 + 2;
    if (which == 4) s.batch.k.token_stride = (int64_t)1 << 39;
    assert_int_equal(ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_OK);
    assert_int_equal(seen_maps, which == 0 ? 2 : which == 1 || which == 4 ? 1 : 3);
    assert_int_equal(seen_launch.q_aligned, which != 0);
    assert_int_equal(seen_launch.kv_aligned, which != 1 && which != 4);
    assert_int_equal(seen_launch.cache_aligned, which != 2);
    assert_int_equal(seen_launch.out_aligned, which != 3);
  }
  close_plan(&o);
}

/* A kernel may leave out what the call does not ask for: which one it is follows from the problem. */
static void test_hopper_has_kernels_for_kinds_of_call(void **state) {
  (void)state;
  const struct {
    int32_t head_dim, head_dim_v, window_left, temperature_len;
    double logit_cap, k_scale, v_scale;
    const char *kernel;
  } chosen[] = {
      {64, 64, 0, 0, 0, 1, 1, "hopper_d64_bf16"},         {64, 64, 1024, 0, 30, 1, 1, "hopper_d64s_bf16"},
      {40, 8, 0, 0, 0, 1, 1, "hopper_d64_bf16"},          {96, 96, 0, 0, 0, 1, 1, "hopper_d96_bf16"},
      {80, 96, 0, 0, 0, 1, 0.5, "hopper_d96_bf16"},       {128, 128, 128, 0, 0, 1, 1, "hopper_d128_bf16"},
      {128, 128, 0, 512, 0, 1, 1, "hopper_d128s_bf16"},   {128, 128, 0, -1, 0, 1, 1, "hopper_d128_bf16"},
      {128, 64, 0, 0, 0, 2, 1, "hopper_d128s_bf16"},      {192, 128, 0, 0, 0, 1, 1, "hopper_d192x128_bf16"},
      {160, 128, 0, 0, 0, 1, 3, "hopper_d192x128s_bf16"}, {192, 192, 0, 0, 50, 1, 1, "hopper_d192_bf16"},
      {256, 256, 0, 0, 0, 1, 1, "hopper_d256_bf16"},      {256, 256, 4096, 0, 50, 1, 1, "hopper_d256w_bf16"},
      {256, 256, 4097, 0, 50, 1, 1, "hopper_d256_bf16"},
  };
  for (size_t i = 0; i < sizeof chosen / sizeof chosen[0]; i++) {
    ea_problem problem = small_problem();
    problem.head_dim = chosen[i].head_dim;
    problem.head_dim_v = chosen[i].head_dim_v;
    problem.window_left = chosen[i].window_left;
    problem.xai_temperature_len = chosen[i].temperature_len;
    problem.logit_cap = chosen[i].logit_cap;
    problem.k_scale = chosen[i].k_scale;
    problem.v_scale = chosen[i].v_scale;
    ea_plan_info info = EA_PLAN_INFO_INIT;
    assert_int_equal(ea_plan_for_arch("sm_90", &problem, NULL, &info), EA_OK);
    assert_string_equal(info.kernel, chosen[i].kernel);
  }
}

static void test_hopper_refuses_kinds_of_call_it_has_no_way_for(void **state) {
  (void)state;
  const struct {
    int32_t head_dim, heads;
    ea_dtype dtype, cache_dtype;
    const char *says;
  } refused[] = {
      {520, 4, EA_BF16, EA_DTYPE_NONE, "head_dim: found 520"},
      {128, 4, EA_F32, EA_DTYPE_NONE, "dtype: found f32"},
      {128, 258, EA_BF16, EA_DTYPE_NONE, "num_q_heads: found 129"},
  };
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    ea_problem problem = small_problem();
    problem.head_dim = refused[i].head_dim;
    problem.num_q_heads = refused[i].heads;
    problem.dtype = refused[i].dtype;
    problem.cache_dtype = refused[i].cache_dtype;
    ea_plan_options options = EA_PLAN_OPTIONS_INIT;
    options.family = EA_FAMILY_HOPPER;
    ea_plan_info info = EA_PLAN_INFO_INIT;
    assert_int_equal(ea_plan_for_arch("sm_90", &problem, &options, &info), EA_ERR_UNSUPPORTED);
    assert_says(refused[i].says);
  }
}

static void test_a_refused_launch_is_reported(void **state) {
  (void)state;
  const ea_problem problem = small_problem();
  opened o;
  small_batch s;
  open_plan(&problem, &o);
  make_small_batch(&s);
  fake.fail_name = "cuLaunchKernel";
  fake.fail_result = 719;
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_ERR_DEVICE);
  assert_says("cuLaunchKernel");
  assert_int_equal(fake_stack_depth(), 0);
  close_plan(&o);
}

static void test_host_copies_of_the_indptr_are_checked(void **state) {
  (void)state;
  const ea_problem problem = small_problem();
  const int32_t wrong[3] = {0, 5, 6};
  opened o;
  small_batch s;
  open_plan(&problem, &o);
  make_small_batch(&s);
  s.batch.qo_indptr_host = wrong;
  s.batch.kv_indptr_host = s.kv_indptr;
  const int before = fake.launches;
  assert_int_equal(ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_ERR_INVALID);
  assert_says("qo_indptr[2]: found 6, allowed 7");
  assert_int_equal(fake.launches, before);
  close_plan(&o);
}

static void test_grids_that_no_card_takes_are_refused(void **state) {
  (void)state;
  ea_problem problem = small_problem();
  problem.num_q_heads = problem.num_kv_heads = 65536;
  problem.head_dim = 1;
  opened o;
  small_batch s;
  open_plan(&problem, &o);
  make_small_batch(&s);
  s.batch.num_tokens = 4300000; /* the fake card reads nothing */
  s.batch.lse = NULL;
  const ea_status status = ea_run(o.plan, &s.batch, workspace, sizeof workspace, NULL);
  assert_says("num_tokens: found 4300000, which with 65536 key/value heads and groups of 1 makes 2201681920 blocks, "
              "allowed 2147483647 blocks");
  assert_int_equal(status, EA_ERR_UNSUPPORTED);
  close_plan(&o);
}

/* ---- validation: the kernel's place is taken by a function that says "bad" or "good" ---- */

static void say_bad(const char *kernel, void **params) {
  assert_string_equal(kernel, "validate");
  uint64_t flag;
  memcpy(&flag, params[1], sizeof flag);
  *(uint32_t *)(uintptr_t)flag = 1;
}

static void test_validation_names_the_first_bad_entry(void **state) {
  (void)state;
  const ea_problem problem = small_problem();
  opened o;
  small_batch s;
  open_plan(&problem, &o);
  make_small_batch(&s);
  assert_int_equal(ea_validate(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_OK);
  assert_string_equal(fake.last.kernel, "validate");

  fake.on_launch = say_bad;
  s.slots[1] = 7;
  assert_int_equal(ea_validate(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_ERR_INVALID);
  assert_says("kv_indices[1]: found 7, allowed 0 to 6");
  s.slots[1] = 0;
  s.qo_indptr[1] = -1;
  assert_int_equal(ea_validate(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_ERR_INVALID);
  assert_says("qo_indptr[1]: found -1");
  s.qo_indptr[1] = 5;
  assert_int_equal(ea_validate(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_ERR_INVALID);
  assert_says("gone at a second look");
  close_plan(&o);
}

/* A call that needs no workspace is validated without one, too. */
static void test_validation_takes_its_own_memory_where_it_is_given_none(void **state) {
  (void)state;
  const ea_problem problem = small_problem();
  opened o;
  small_batch s;
  open_plan(&problem, &o);
  make_small_batch(&s);
  const int before = fake.allocations;
  assert_int_equal(ea_validate(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_OK);
  assert_int_equal(fake.allocations, before);
  assert_int_equal(ea_validate(o.plan, &s.batch, NULL, 0, NULL), EA_OK);
  assert_int_equal(fake.allocations, before + 2); /* taken and given back: the fake counts both */
  fake.on_launch = say_bad;
  s.slots[1] = 7;
  assert_int_equal(ea_validate(o.plan, &s.batch, workspace + 4, sizeof workspace - 4, NULL), EA_ERR_INVALID);
  assert_says("kv_indices[1]: found 7, allowed 0 to 6");
  assert_int_equal(fake.allocations, before + 4);
  fake.fail_name = "cuMemAlloc";
  fake.fail_result = 2;
  assert_int_equal(ea_validate(o.plan, &s.batch, NULL, 0, NULL), EA_ERR_OUT_OF_MEMORY);
  assert_int_equal(fake_stack_depth(), 0);
  close_plan(&o);
}

static void test_validation_hands_on_what_the_driver_says(void **state) {
  (void)state;
  static const char *const names[] = {"cuMemsetD8Async", "cuLaunchKernel", "cuMemcpyDtoHAsync", "cuStreamSynchronize"};
  const ea_problem problem = small_problem();
  opened o;
  small_batch s;
  open_plan(&problem, &o);
  make_small_batch(&s);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    fake.fail_name = names[i];
    fake.fail_result = 700;
    assert_int_equal(ea_validate(o.plan, &s.batch, workspace, sizeof workspace, NULL), EA_ERR_DEVICE);
    assert_says(names[i]);
    assert_int_equal(fake_stack_depth(), 0);
  }
  close_plan(&o);
}

/* ---- merge ---- */

static ea_merge_args seen_merge;

static void see_merge(const char *kernel, void **params) {
  (void)kernel;
  memcpy(&seen_merge, params[0], sizeof seen_merge);
}

static void test_merge_launches_its_types_kernel_with_explicit_strides(void **state) {
  (void)state;
  static const struct {
    ea_dtype dtype;
    const char *kernel;
  } types[] = {{EA_F32, "merge_f32"}, {EA_F16, "merge_f16"}, {EA_BF16, "merge_bf16"}};
  ea_context *context;
  static float a[6 * 3 * 20], b[6 * 3 * 32], lse[6 * 3];
  assert_int_equal(open_gpu(0, &context), EA_OK);
  fake.on_launch = see_merge;
  for (size_t i = 0; i < 3; i++) {
    ea_merge_args args = EA_MERGE_ARGS_INIT;
    args.dtype = types[i].dtype;
    args.num_tokens = 6;
    args.num_heads = 3;
    args.head_dim_v = 20;
    args.out_a.data = args.out.data = a;
    args.out_b.data = b;
    args.out_b.head_stride = 32;
    args.lse_a = args.lse_b = lse;
    args.lse = lse;
    const int loads = fake.loads, waits = fake.waits;
    assert_int_equal(ea_merge(context, &args, NULL), EA_OK);
    assert_string_equal(fake.last.kernel, types[i].kernel);
    assert_int_equal(fake.loads, loads); /* capturable from the first call on */
    assert_int_equal(fake.waits, waits);
    assert_int_equal(seen_merge.out_a.head_stride, 20);
    assert_int_equal(seen_merge.out_a.token_stride, 60);
    assert_int_equal(seen_merge.out_b.token_stride, 96);
  }
  ea_context_destroy(context);
}

/* ---- the tools' memory ---- */

static void test_memory_goes_there_and_back(void **state) {
  (void)state;
  const char text[] = "there and back";
  char back[sizeof text] = "";
  void *a = NULL, *b = NULL;
  ea_context *context;
  assert_int_equal(open_gpu(0, &context), EA_OK);
  assert_int_equal(ea_mem_alloc(context, sizeof text, &a), EA_OK);
  assert_int_equal(ea_mem_alloc(context, sizeof text, &b), EA_OK);
  assert_int_equal(ea_mem_upload(context, a, text, sizeof text, NULL), EA_OK);
  assert_int_equal(ea_mem_copy(context, b, a, sizeof text, NULL), EA_OK);
  assert_int_equal(ea_mem_download(context, back, b, sizeof text, NULL), EA_OK);
  assert_string_equal(back, text);
  ea_mem_free(context, a);
  ea_mem_free(context, b);
  fake.fail_name = "cuMemAlloc";
  fake.fail_result = 2;
  assert_int_equal(ea_mem_alloc(context, 12345, &a), EA_ERR_OUT_OF_MEMORY);
  assert_says("12345 bytes");
  ea_context_destroy(context);
}

static void test_a_cpu_has_memory_but_no_streams(void **state) {
  (void)state;
  ea_context *context;
  void *memory = NULL, *stream = NULL;
  assert_int_equal(ea_context_create(NULL, &context), EA_OK);
  assert_int_equal(ea_mem_alloc(context, 0, &memory), EA_OK);
  assert_non_null(memory);
  assert_int_equal((uintptr_t)memory % 256, 0);
  ea_mem_free(context, memory);
  assert_int_equal(ea_stream_create(context, &stream), EA_ERR_UNSUPPORTED);
  assert_says("found a CPU");
  ea_context_destroy(context);
}

#define DRIVER_TEST(test) cmocka_unit_test_setup_teardown(test, reset, balanced)

int main(void) {
  const struct CMUnitTest tests[] = {
      DRIVER_TEST(test_device_is_described),
      DRIVER_TEST(test_absent_devices_are_refused),
      DRIVER_TEST(test_which_image_runs_where),
      DRIVER_TEST(test_images_are_rows_of_the_registry),
      DRIVER_TEST(test_old_cards_are_refused_with_what_is_allowed),
      DRIVER_TEST(test_failures_on_the_way_give_everything_back),
      DRIVER_TEST(test_a_kernel_is_loaded_once),
      DRIVER_TEST(test_a_failed_load_can_be_tried_again),
      DRIVER_TEST(test_a_run_is_one_launch_of_what_the_plan_says),
      DRIVER_TEST(test_nothing_is_launched_for_no_tokens),
      DRIVER_TEST(test_alignment_is_told_to_the_kernel),
      DRIVER_TEST(test_hopper_describes_the_tensors_to_tma),
      DRIVER_TEST(test_hopper_orders_the_work_of_several_sequences),
      DRIVER_TEST(test_hopper_stages_what_the_workspace_has_room_for),
      DRIVER_TEST(test_hopper_does_without_tma_where_rows_are_not_aligned),
      DRIVER_TEST(test_hopper_has_kernels_for_kinds_of_call),
      DRIVER_TEST(test_hopper_refuses_kinds_of_call_it_has_no_way_for),
      DRIVER_TEST(test_a_refused_launch_is_reported),
      DRIVER_TEST(test_host_copies_of_the_indptr_are_checked),
      DRIVER_TEST(test_grids_that_no_card_takes_are_refused),
      DRIVER_TEST(test_validation_names_the_first_bad_entry),
      DRIVER_TEST(test_validation_takes_its_own_memory_where_it_is_given_none),
      DRIVER_TEST(test_validation_hands_on_what_the_driver_says),
      DRIVER_TEST(test_merge_launches_its_types_kernel_with_explicit_strides),
      DRIVER_TEST(test_memory_goes_there_and_back),
      DRIVER_TEST(test_a_cpu_has_memory_but_no_streams),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
