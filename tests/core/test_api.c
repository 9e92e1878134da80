/* The public functions on a CPU context, used right and wrong. Promise 5: a wrong argument
 * gives a text that names it, what was found and what is allowed, and nothing is written. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "cpu/cpu.h"
#include "fixture.h"
#include "plan/planner.h"

static ea_context *open_cpu(void) {
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  options.num_threads = 2;
  ea_context *context = NULL;
  assert_int_equal(ea_context_create(&options, &context), EA_OK);
  return context;
}

static ea_plan *plan_for(ea_context *context, const ea_problem *problem, ea_family family) {
  ea_plan_options options = EA_PLAN_OPTIONS_INIT;
  options.family = family;
  ea_plan *plan = NULL;
  const ea_status status = ea_plan_create(context, problem, &options, &plan);
  if (status) fail_msg("%s: %s", ea_status_name(status), ea_last_error());
  return plan;
}

static void *workspace_for(const ea_plan *plan, const ea_batch *batch, size_t *bytes) {
  assert_int_equal(ea_workspace_size(plan, batch, bytes), EA_OK);
  void *workspace = aligned_alloc(256, (*bytes + 256) / 256 * 256);
  assert_non_null(workspace);
  return workspace;
}

static void assert_failed(ea_status status, ea_status wanted, const char *text, int line) {
  if (status != wanted) fail_msg("line %d: %s (%s)", line, ea_status_name(status), ea_last_error());
  if (strcmp(ea_last_error(), text) != 0) fail_msg("line %d: \"%s\", wanted \"%s\"", line, ea_last_error(), text);
}

#define ASSERT_FAILED(call, status, text) assert_failed(call, status, text, __LINE__)

/* ---- Names ---- */

static void names_never_fail(void **state) {
  (void)state;
  assert_string_equal(ea_version(), "0.1.0");
  assert_string_equal(ea_status_name(EA_ERR_DOES_NOT_FIT), "EA_ERR_DOES_NOT_FIT");
  assert_string_equal(ea_dtype_name(EA_BF16), "bf16");
  assert_string_equal(ea_isa_name(EA_ISA_AVX512_BF16), "avx512_bf16");
  assert_string_equal(ea_family_name(EA_FAMILY_HOPPER), "hopper");
  for (int i = -3; i < 300; ++i) {
    const bool status = i >= EA_OK && i <= EA_ERR_INTERNAL;
    assert_int_equal(strncmp(ea_status_name((ea_status)i), "EA_", 3) == 0, status);
    assert_int_equal(strcmp(ea_dtype_name((ea_dtype)i), "unknown") != 0, i >= EA_F32 && i <= EA_I64);
    assert_int_equal(ea_dtype_size((ea_dtype)i) != 0, i >= EA_F32 && i <= EA_I64);
    assert_int_equal(strcmp(ea_isa_name((ea_isa)i), "unknown") != 0, i >= EA_ISA_AUTO && i <= EA_ISA_AMX);
    assert_int_equal(strcmp(ea_family_name((ea_family)i), "unknown") != 0, i >= 0 && i <= EA_FAMILY_HOPPER);
  }
  assert_int_equal(ea_dtype_size(EA_I64), 8);
  assert_int_equal(ea_dtype_size(EA_F32), 4);
  assert_int_equal(ea_dtype_size(EA_BF16), 2);
  assert_int_equal(ea_dtype_size(EA_E5M2), 1);
}

/* ---- Contexts ---- */

static void opens_the_cpu_by_default(void **state) {
  (void)state;
  ea_context *context = NULL;
  assert_int_equal(ea_context_create(NULL, &context), EA_OK);
  ea_device_info info = EA_DEVICE_INFO_INIT;
  assert_int_equal(ea_context_info(context, &info), EA_OK);
  assert_int_equal(info.device, EA_DEVICE_CPU);
  assert_in_range(info.num_threads, 1, 1024);
  assert_true(info.name[0] != '\0');
  assert_string_equal(info.arch, ea_isa_name(info.isa));
  assert_true(ea_cpu_has_isa(info.isa));
  ea_context_destroy(context);
  ea_context_destroy(NULL);
}

static void refuses_wrong_context_options(void **state) {
  (void)state;
  ea_context *context = (ea_context *)&context;
#define REFUSE(spoil, status, text)                                                                                    \
  do {                                                                                                                 \
    ea_context_options o = EA_CONTEXT_OPTIONS_INIT;                                                                    \
    spoil;                                                                                                             \
    ASSERT_FAILED(ea_context_create(&o, &context), status, text);                                                      \
    assert_null(context);                                                                                              \
  } while (0)
  REFUSE(o.struct_size = 0, EA_ERR_INVALID,
         "options.struct_size: found 0, allowed 8 to 65536 (start from the struct's EA_..._INIT)");
  REFUSE(o.device = (ea_device_type)2, EA_ERR_INVALID, "device: found 2, allowed 0 (CPU), 1 (CUDA)");
  REFUSE(o.device_ordinal = 1, EA_ERR_INVALID, "device_ordinal: found 1, allowed 0 for the CPU");
  REFUSE((o.device = EA_DEVICE_CUDA, o.device_ordinal = -1), EA_ERR_INVALID,
         "device_ordinal: found -1, allowed 0 or more");
  REFUSE(o.num_threads = -1, EA_ERR_INVALID, "num_threads: found -1, allowed 0 (automatic) to 1024");
  REFUSE(o.num_threads = 1025, EA_ERR_INVALID, "num_threads: found 1025, allowed 0 (automatic) to 1024");
  REFUSE(o.isa = (ea_isa)6, EA_ERR_INVALID, "isa: found 6, allowed 0 (auto) to 5 (amx)");
  REFUSE(o.isa = (ea_isa)-1, EA_ERR_INVALID, "isa: found -1, allowed 0 (auto) to 5 (amx)");
#undef REFUSE
  ASSERT_FAILED(ea_context_create(NULL, NULL), EA_ERR_INVALID,
                "context: found NULL, allowed where to put the new context");
}

/* Every instruction set is either usable or refused by name. */
static void chooses_the_instruction_set(void **state) {
  (void)state;
  for (int isa = EA_ISA_PORTABLE; isa <= EA_ISA_AMX; ++isa) {
    ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
    options.isa = (ea_isa)isa;
    ea_context *context = NULL;
    const ea_status status = ea_context_create(&options, &context);
    if (ea_cpu_has_isa((ea_isa)isa)) {
      assert_int_equal(status, EA_OK);
      ea_device_info info = EA_DEVICE_INFO_INIT;
      assert_int_equal(ea_context_info(context, &info), EA_OK);
      assert_int_equal(info.isa, isa);
      ea_context_destroy(context);
    } else {
      char text[160];
      snprintf(text, sizeof text, "isa: found %s, allowed what this processor has, at best %s",
               ea_isa_name((ea_isa)isa), ea_isa_name(ea_cpu_best_isa()));
      ASSERT_FAILED(status, EA_ERR_UNSUPPORTED, text);
    }
  }
}

static ea_isa isa_of_new_context(ea_isa asked) {
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  options.isa = asked;
  ea_context *context = NULL;
  assert_int_equal(ea_context_create(&options, &context), EA_OK);
  ea_device_info info = EA_DEVICE_INFO_INIT;
  assert_int_equal(ea_context_info(context, &info), EA_OK);
  ea_context_destroy(context);
  return info.isa;
}

static void environment_overrides_the_automatic_choice(void **state) {
  (void)state;
  const char *before = getenv("EXTATTN_ISA");
  char saved[64];
  snprintf(saved, sizeof saved, "%s", before ? before : "");

  assert_int_equal(setenv("EXTATTN_ISA", "portable", 1), 0);
  assert_int_equal(isa_of_new_context(EA_ISA_AUTO), EA_ISA_PORTABLE);
  for (int isa = EA_ISA_PORTABLE; isa <= EA_ISA_AMX; ++isa) {
    if (ea_cpu_has_isa((ea_isa)isa)) assert_int_equal(isa_of_new_context((ea_isa)isa), isa); /* asked: not overridden */
    assert_int_equal(setenv("EXTATTN_ISA", ea_isa_name((ea_isa)isa), 1), 0);
    ea_context *context = NULL;
    const ea_status status = ea_context_create(NULL, &context);
    assert_int_equal(status, ea_cpu_has_isa((ea_isa)isa) ? EA_OK : EA_ERR_UNSUPPORTED);
    if (status) assert_memory_equal(ea_last_error(), "EXTATTN_ISA: found ", 19);
    ea_context_destroy(context);
  }

  ea_context *context = NULL;
  assert_int_equal(setenv("EXTATTN_ISA", "sse\n9", 1), 0);
  ASSERT_FAILED(ea_context_create(NULL, &context), EA_ERR_INVALID,
                "EXTATTN_ISA: found \"sse?9\", allowed portable, avx2, avx512, avx512_bf16, amx");
  assert_int_equal(setenv("EXTATTN_ISA", "auto", 1), 0);
  assert_int_equal(ea_context_create(NULL, &context), EA_ERR_INVALID);
  assert_int_equal(setenv("EXTATTN_ISA", "", 1), 0);
  assert_int_equal(isa_of_new_context(EA_ISA_AUTO), ea_cpu_best_isa());

  assert_int_equal(before ? setenv("EXTATTN_ISA", saved, 1) : unsetenv("EXTATTN_ISA"), 0);
}

static void says_why_there_is_no_gpu(void **state) {
  (void)state;
  if (ea_cuda_device_count() > 0) skip();
  assert_true(ea_last_error()[0] != '\0');
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  options.device = EA_DEVICE_CUDA;
  ea_context *context = NULL;
  assert_int_equal(ea_context_create(&options, &context), EA_ERR_NO_DEVICE);
  assert_null(context);
  assert_true(ea_last_error()[0] != '\0');
}

/* ---- Plans ---- */

static void plans_say_what_they_are(void **state) {
  (void)state;
  ea_context *context = open_cpu();
  fixture f = fixture_make();
  const ea_family families[] = {EA_FAMILY_AUTO, EA_FAMILY_CPU, EA_FAMILY_REFERENCE};
  for (int i = 0; i < 3; ++i) {
    ea_plan *plan = plan_for(context, &f.problem, families[i]);
    ea_plan_info info = EA_PLAN_INFO_INIT;
    assert_int_equal(ea_plan_get_info(plan, &info), EA_OK);
    assert_int_equal(info.family, i == 2 ? EA_FAMILY_REFERENCE : EA_FAMILY_CPU);
    assert_int_equal(info.stages, 1);
    assert_int_equal(info.max_stages, 1);
    assert_int_equal(info.threads, 2);
    assert_int_equal(info.smem_bytes, 0);
    assert_int_equal(info.smem_limit_bytes, 0);
    assert_true(info.tile_m >= 1 && info.tile_n >= 1 && info.kernel[0] && info.reason[0]);
    ea_plan_destroy(plan);
  }
  ea_plan_destroy(NULL);
  fixture_free(&f);
  ea_context_destroy(context);
}

static void refuses_wrong_plan_options(void **state) {
  (void)state;
  ea_context *context = open_cpu();
  fixture f = fixture_make();
  ea_plan *plan = (ea_plan *)&plan;
#define REFUSE(spoil, status, text)                                                                                    \
  do {                                                                                                                 \
    ea_plan_options o = EA_PLAN_OPTIONS_INIT;                                                                          \
    spoil;                                                                                                             \
    ASSERT_FAILED(ea_plan_create(context, &f.problem, &o, &plan), status, text);                                       \
    assert_null(plan);                                                                                                 \
  } while (0)
  REFUSE(o.struct_size = 3, EA_ERR_INVALID,
         "options.struct_size: found 3, allowed 8 to 65536 (start from the struct's EA_..._INIT)");
  REFUSE(o.family = (ea_family)5, EA_ERR_INVALID, "family: found 5, allowed 0 (auto) to 4 (hopper)");
  REFUSE(o.family = EA_FAMILY_PORTABLE, EA_ERR_UNSUPPORTED,
         "family: found portable, allowed cpu, reference on a CPU context");
  REFUSE(o.family = EA_FAMILY_HOPPER, EA_ERR_UNSUPPORTED,
         "family: found hopper, allowed cpu, reference on a CPU context");
  REFUSE(o.stages = -1, EA_ERR_INVALID, "stages: found -1, allowed 0 (automatic) or more");
  REFUSE(o.stages = 2, EA_ERR_UNSUPPORTED, "stages: found 2, allowed 0 or 1 on a CPU context");
#undef REFUSE
  ASSERT_FAILED(ea_plan_create(context, NULL, NULL, &plan), EA_ERR_INVALID,
                "problem: found NULL, allowed a pointer to the struct");
  ASSERT_FAILED(ea_plan_create(NULL, &f.problem, NULL, &plan), EA_ERR_INVALID,
                "context: found NULL, allowed a context");
  ASSERT_FAILED(ea_plan_create(context, &f.problem, NULL, NULL), EA_ERR_INVALID,
                "plan: found NULL, allowed where to put the new plan");
  f.problem.head_dim = 1000;
  ASSERT_FAILED(ea_plan_create(context, &f.problem, NULL, &plan), EA_ERR_INVALID,
                "head_dim: found 1000, allowed 1 to 576");
  fixture_free(&f);
  ea_context_destroy(context);
}

static void a_plan_outlives_its_context(void **state) {
  (void)state;
  ea_context *context = open_cpu();
  fixture f = fixture_make();
  ea_plan *plan = plan_for(context, &f.problem, EA_FAMILY_REFERENCE);
  ea_plan *second = plan_for(context, &f.problem, EA_FAMILY_CPU);
  ea_context_destroy(context);
  assert_int_equal(ea_run(plan, &f.batch, NULL, 0, NULL), EA_OK);
  ea_plan_destroy(plan);
  assert_int_equal(ea_run(second, &f.batch, NULL, 0, NULL), EA_OK);
  ea_plan_destroy(second);
  fixture_free(&f);
}

static void plans_for_architectures_that_are_not_here(void **state) {
  (void)state;
  fixture f = fixture_make();
  f.problem.dtype = EA_BF16;
  f.problem.head_dim = f.problem.head_dim_v = 128;
  int32_t count = 0;
  const ea_arch *archs = ea_known_archs(&count);
  assert_true(count > 0);
  ea_plan_info info = EA_PLAN_INFO_INIT;
  for (int32_t i = 0; i < count; ++i) {
    const ea_status status = ea_plan_for_arch(archs[i].name, &f.problem, NULL, &info);
    if (status) fail_msg("%s: %s", archs[i].name, ea_last_error());
    assert_true(info.stages >= 1 && info.stages <= info.max_stages);
    assert_true(info.smem_bytes > 0 && info.smem_bytes <= info.smem_limit_bytes);
    assert_int_equal(info.smem_limit_bytes, archs[i].smem_limit_bytes);
    assert_true(info.kernel[0] && info.reason[0]);
  }
  assert_int_equal(ea_plan_for_arch("sm_12", &f.problem, NULL, &info), EA_ERR_INVALID);
  assert_memory_equal(ea_last_error(), "arch: found \"sm_12\", allowed sm_80, ", 36);
  ASSERT_FAILED(ea_plan_for_arch(NULL, &f.problem, NULL, &info), EA_ERR_INVALID,
                "arch: found NULL, allowed a name such as \"sm_90\"");
  ASSERT_FAILED(ea_plan_for_arch("sm_90", &f.problem, NULL, NULL), EA_ERR_INVALID,
                "info: found NULL, allowed a pointer to the struct");
  ASSERT_FAILED(ea_plan_for_arch("sm_90", NULL, NULL, &info), EA_ERR_INVALID,
                "problem: found NULL, allowed a pointer to the struct");
  ea_plan_options options = EA_PLAN_OPTIONS_INIT;
  options.family = EA_FAMILY_CPU;
  ASSERT_FAILED(ea_plan_for_arch("sm_90", &f.problem, &options, &info), EA_ERR_UNSUPPORTED,
                "family: found cpu, allowed portable, hopper on a GPU");
  options.family = EA_FAMILY_AUTO;
  options.stages = -5;
  ASSERT_FAILED(ea_plan_for_arch("sm_90", &f.problem, &options, &info), EA_ERR_INVALID,
                "stages: found -5, allowed 0 (automatic) or more");
  fixture_free(&f);
}

/* ---- Structs that grow ---- */

static void fills_as_much_as_the_caller_knows(void **state) {
  (void)state;
  ea_context *context = open_cpu();
  fixture f = fixture_make();
  ea_plan *plan = plan_for(context, &f.problem, EA_FAMILY_CPU);

  ea_plan_info info;
  memset(&info, 0x77, sizeof info);
  info.struct_size = offsetof(ea_plan_info, tile_n);
  const size_t known = info.struct_size;
  assert_int_equal(ea_plan_get_info(plan, &info), EA_OK);
  assert_int_equal(info.struct_size, known);
  assert_int_equal(info.family, EA_FAMILY_CPU);
  assert_int_not_equal(info.tile_m, 0x77777777);
  for (size_t i = known; i < sizeof info; ++i) assert_int_equal(((unsigned char *)&info)[i], 0x77);

  struct {
    ea_device_info known;
    unsigned char tail[24];
  } later;
  memset(&later, 0x77, sizeof later);
  later.known.struct_size = sizeof later;
  assert_int_equal(ea_context_info(context, &later.known), EA_OK);
  assert_int_equal(later.known.num_threads, 2);
  for (size_t i = 0; i < sizeof later.tail; ++i) assert_int_equal(later.tail[i], 0x77);

  info.struct_size = 4;
  ASSERT_FAILED(ea_plan_get_info(plan, &info), EA_ERR_INVALID,
                "info.struct_size: found 4, allowed 8 to 65536 (start from the struct's EA_..._INIT)");
  ASSERT_FAILED(ea_context_info(context, NULL), EA_ERR_INVALID, "info: found NULL, allowed a pointer to the struct");
  ASSERT_FAILED(ea_context_info(NULL, &later.known), EA_ERR_INVALID, "context: found NULL, allowed a context");
  ASSERT_FAILED(ea_plan_get_info(NULL, &info), EA_ERR_INVALID, "plan: found NULL, allowed a plan");
  ea_plan_destroy(plan);
  fixture_free(&f);
  ea_context_destroy(context);
}

/* What a caller compiled before the field at `known` existed would pass: memory that ends there. */
static void *shorter(const void *full, size_t known) {
  void *copy = fix_copy(full, known);
  memcpy(copy, &known, sizeof known); /* struct_size */
  return copy;
}

static void takes_shorter_options(void **state) {
  (void)state;
  ea_context_options full = EA_CONTEXT_OPTIONS_INIT;
  full.num_threads = -5; /* not passed on */
  void *options = shorter(&full, offsetof(ea_context_options, num_threads));
  ea_context *context = NULL;
  assert_int_equal(ea_context_create(options, &context), EA_OK);
  free(options);

  fixture f = fixture_make();
  ea_plan_options plan_options = EA_PLAN_OPTIONS_INIT;
  plan_options.family = EA_FAMILY_REFERENCE;
  plan_options.stages = -1; /* not passed on */
  options = shorter(&plan_options, offsetof(ea_plan_options, stages));
  ea_plan *plan = NULL;
  assert_int_equal(ea_plan_create(context, &f.problem, options, &plan), EA_OK);
  free(options);
  ea_plan_info info = EA_PLAN_INFO_INIT;
  assert_int_equal(ea_plan_get_info(plan, &info), EA_OK);
  assert_int_equal(info.family, EA_FAMILY_REFERENCE);
  ea_plan_destroy(plan);
  fixture_free(&f);
  ea_context_destroy(context);
}

/* The index arrays came after lse, so such a caller can only run an empty batch. */
static void takes_a_shorter_batch(void **state) {
  (void)state;
  ea_context *context = open_cpu();
  fixture f = fixture_make();
  ea_plan *plan = plan_for(context, &f.problem, EA_FAMILY_CPU);
  ea_batch empty = EA_BATCH_INIT;
  empty.custom_mask = f.custom_mask; /* not passed on */
  size_t bytes;
  void *workspace = workspace_for(plan, &empty, &bytes);
  void *known = shorter(&empty, offsetof(ea_batch, lse));
  assert_int_equal(ea_run(plan, known, workspace, bytes, NULL), EA_OK);
  free(known);
  known = shorter(&empty, offsetof(ea_batch, lse) - 1);
  assert_int_equal(ea_run(plan, known, workspace, bytes, NULL), EA_ERR_INVALID);
  free(known);
  free(workspace);
  ea_plan_destroy(plan);
  fixture_free(&f);
  ea_context_destroy(context);
}

/* A struct of a later version: fine while what is not known is zero. */
static void takes_a_longer_batch(void **state) {
  (void)state;
  ea_context *context = open_cpu();
  fixture f = fixture_make();
  struct {
    ea_batch known;
    unsigned char tail[32];
  } later = {.known = f.batch};
  memset(later.tail, 0, sizeof later.tail);
  later.known.struct_size = sizeof later;
  ea_plan *plan = plan_for(context, &f.problem, EA_FAMILY_CPU);
  size_t bytes;
  void *workspace = workspace_for(plan, &later.known, &bytes);
  assert_int_equal(ea_run(plan, &later.known, workspace, bytes, NULL), EA_OK);
  assert_memory_not_equal(f.out, f.out_before, FIX_OUT_BYTES);
  memcpy(f.out, f.out_before, FIX_OUT_BYTES);
  memcpy(f.lse, f.lse_before, FIX_LSE_BYTES);
  later.tail[31] = 1;
  char text[160];
  snprintf(
      text, sizeof text,
      "batch.struct_size: found %zu and byte %zu not 0, allowed only 0 past the %zu bytes that extattn 0.1.0 knows",
      sizeof later, sizeof later - 1, sizeof(ea_batch));
  ASSERT_FAILED(ea_run(plan, &later.known, workspace, bytes, NULL), EA_ERR_INVALID, text);
  ASSERT_FAILED(ea_validate(plan, &later.known, workspace, bytes, NULL), EA_ERR_INVALID, text);
  ASSERT_FAILED(ea_workspace_size(plan, &later.known, &bytes), EA_ERR_INVALID, text);
  assert_memory_equal(f.out, f.out_before, FIX_OUT_BYTES);
  free(workspace);
  ea_plan_destroy(plan);
  fixture_free(&f);
  ea_context_destroy(context);
}

/* Every other struct that a caller fills, with a last byte that this library does not know. */
static void refuses_options_of_a_later_version(void **state) {
  (void)state;
  ea_context *context = open_cpu();
  fixture f = fixture_make();
  ea_context *other = NULL;
  ea_plan *plan = NULL;
#define LATER(type, init, call)                                                                                        \
  do {                                                                                                                 \
    struct {                                                                                                           \
      type known;                                                                                                      \
      unsigned char tail[8];                                                                                           \
    } later = {.known = init};                                                                                         \
    later.known.struct_size = sizeof later;                                                                            \
    later.tail[7] = 2;                                                                                                 \
    assert_int_equal(call, EA_ERR_INVALID);                                                                            \
    assert_non_null(strstr(ea_last_error(), "not 0, allowed only 0 past the "));                                       \
  } while (0)
  LATER(ea_context_options, (ea_context_options)EA_CONTEXT_OPTIONS_INIT, ea_context_create(&later.known, &other));
  LATER(ea_problem, f.problem, ea_plan_create(context, &later.known, NULL, &plan));
  LATER(ea_plan_options, (ea_plan_options)EA_PLAN_OPTIONS_INIT,
        ea_plan_create(context, &f.problem, &later.known, &plan));
  LATER(ea_merge_args, (ea_merge_args)EA_MERGE_ARGS_INIT, ea_merge(context, &later.known, NULL));
  LATER(ea_capture_options, (ea_capture_options)EA_CAPTURE_OPTIONS_INIT, ea_context_capture(context, &later.known));
#undef LATER
  assert_true(!other && !plan);
  fixture_free(&f);
  ea_context_destroy(context);
}

/* ---- Batches ---- */

static void assert_untouched(const fixture *f, int line) {
  const unsigned char *out = (const unsigned char *)(const void *)f->out;
  const unsigned char *lse = (const unsigned char *)(const void *)f->lse;
  if (memcmp(out, f->out_before, FIX_OUT_BYTES) != 0) fail_msg("line %d: out was written", line);
  if (memcmp(lse, f->lse_before, FIX_LSE_BYTES) != 0) fail_msg("line %d: lse was written", line);
}

/* Both families and ea_validate say the same. */
static void refuse_run(ea_context *context, fixture *f, const char *text, int line) {
  const ea_family families[] = {EA_FAMILY_CPU, EA_FAMILY_REFERENCE};
  for (int i = 0; i < 2; ++i) {
    ea_plan *plan = plan_for(context, &f->problem, families[i]);
    ea_batch any_size = EA_BATCH_INIT;
    size_t bytes;
    void *workspace = workspace_for(plan, &any_size, &bytes);
    assert_failed(ea_validate(plan, &f->batch, workspace, bytes, NULL), EA_ERR_INVALID, text, line);
    assert_failed(ea_run(plan, &f->batch, workspace, bytes, NULL), EA_ERR_INVALID, text, line);
    assert_untouched(f, line);
    free(workspace);
    ea_plan_destroy(plan);
  }
}

/* Statements that spoil f, and the text that is due. */
#define REFUSE_RUN(spoil, text)                                                                                        \
  do {                                                                                                                 \
    fixture f = fixture_make();                                                                                        \
    spoil;                                                                                                             \
    refuse_run(context, &f, text, __LINE__);                                                                           \
    fixture_free(&f);                                                                                                  \
  } while (0)

static void refuses_wrong_counts(void **state) {
  ea_context *context = *state;
  REFUSE_RUN(f.batch.num_seqs = -1, "num_seqs: found -1, allowed 0 to 2147483646");
  REFUSE_RUN(f.batch.num_seqs = INT32_MAX, "num_seqs: found 2147483647, allowed 0 to 2147483646");
  REFUSE_RUN(f.batch.num_seqs = INT64_MIN, "num_seqs: found -9223372036854775808, allowed 0 to 2147483646");
  REFUSE_RUN(f.batch.num_seqs = 0, "num_tokens: found 8, allowed 0 when num_seqs is 0");
  REFUSE_RUN(f.batch.num_tokens = -1, "num_tokens: found -1, allowed 0 to 2147483647");
  REFUSE_RUN(f.batch.num_tokens = INT64_C(1) << 31, "num_tokens: found 2147483648, allowed 0 to 2147483647");
  REFUSE_RUN(f.batch.num_kv_indices = -1, "num_kv_indices: found -1, allowed 0 to 1152921504606846975");
  REFUSE_RUN(f.batch.num_pages = -1, "num_pages: found -1, allowed 0 to 2305843009213693951");
  REFUSE_RUN(f.batch.struct_size = 0,
             "batch.struct_size: found 0, allowed 200 to 65536 (start from the struct's EA_..._INIT)");
}

static void refuses_wrong_pointers(void **state) {
  ea_context *context = *state;
  REFUSE_RUN(f.batch.q.data = NULL, "q.data: found NULL, allowed the tensor's memory");
  REFUSE_RUN(f.batch.k.data = NULL, "k.data: found NULL, allowed the tensor's memory");
  REFUSE_RUN(f.batch.v.data = NULL, "v.data: found NULL, allowed the tensor's memory");
  REFUSE_RUN(f.batch.out.data = NULL, "out.data: found NULL, allowed the tensor's memory");
  REFUSE_RUN(f.batch.qo_indptr = NULL, "qo_indptr: found NULL, allowed an array of num_seqs + 1");
  REFUSE_RUN(f.batch.kv_indptr = NULL, "kv_indptr: found NULL, allowed an array of num_seqs + 1");
  REFUSE_RUN(f.batch.kv_indices = NULL, "kv_indices: found NULL, allowed memory as kv_indptr[3] says 10 prefix tokens");
  REFUSE_RUN(f.batch.k_cache.data = NULL,
             "k_cache.data: found NULL, allowed memory as kv_indptr[3] says 10 prefix tokens");
  REFUSE_RUN(f.batch.v_cache.data = NULL,
             "v_cache.data: found NULL, allowed memory as kv_indptr[3] says 10 prefix tokens");
  REFUSE_RUN(f.batch.out.data = f.q, "out: found memory that overlaps q, allowed memory of its own");
  REFUSE_RUN(f.batch.out.data = f.v_cache, "out: found memory that overlaps v_cache, allowed memory of its own");
  REFUSE_RUN(f.batch.lse = f.k, "lse: found memory that overlaps k, allowed memory of its own");
  REFUSE_RUN(f.batch.lse = f.out, "lse: found memory that overlaps out, allowed memory of its own");
#define ODD ((void *)(uintptr_t)0x10002)
  REFUSE_RUN(f.batch.q.data = ODD, "q.data: found address 0x10002, allowed multiples of 4");
  REFUSE_RUN(f.batch.v.data = ODD, "v.data: found address 0x10002, allowed multiples of 4");
  REFUSE_RUN(f.batch.k_cache.data = ODD, "k_cache.data: found address 0x10002, allowed multiples of 4");
  REFUSE_RUN(f.batch.out.data = ODD, "out.data: found address 0x10002, allowed multiples of 4");
  REFUSE_RUN(f.batch.lse = ODD, "lse: found address 0x10002, allowed multiples of 4");
  REFUSE_RUN(f.batch.qo_indptr = ODD, "qo_indptr: found address 0x10002, allowed multiples of 4");
  REFUSE_RUN(f.batch.kv_indptr = ODD, "kv_indptr: found address 0x10002, allowed multiples of 4");
  REFUSE_RUN(f.batch.kv_indices = ODD, "kv_indices: found address 0x10002, allowed multiples of 4");
  REFUSE_RUN((f.problem.index_dtype = EA_I64, f.batch.kv_indices = (void *)(uintptr_t)0x10004),
             "kv_indices: found address 0x10004, allowed multiples of 8");
  REFUSE_RUN(f.batch.qo_indptr_host = ODD, "qo_indptr_host: found address 0x10002, allowed multiples of 4");
  REFUSE_RUN(f.batch.kv_indptr_host = ODD, "kv_indptr_host: found address 0x10002, allowed multiples of 4");
#undef ODD
}

static void refuses_wrong_strides(void **state) {
  ea_context *context = *state;
#define PACKED "allowed 0 (packed) or more elements"
  REFUSE_RUN(f.batch.q.token_stride = -1, "q.token_stride: found -1, " PACKED);
  REFUSE_RUN(f.batch.q.head_stride = -8, "q.head_stride: found -8, " PACKED);
  REFUSE_RUN(f.batch.k.token_stride = INT64_MIN, "k.token_stride: found -9223372036854775808, " PACKED);
  REFUSE_RUN(f.batch.v.head_stride = -1, "v.head_stride: found -1, " PACKED);
  REFUSE_RUN(f.batch.k_cache.page_stride = -1, "k_cache.page_stride: found -1, " PACKED);
  REFUSE_RUN(f.batch.k_cache.row_stride = -1, "k_cache.row_stride: found -1, " PACKED);
  REFUSE_RUN(f.batch.v_cache.head_stride = -1, "v_cache.head_stride: found -1, " PACKED);
  REFUSE_RUN(f.batch.out.token_stride = -24, "out.token_stride: found -24, " PACKED);
  REFUSE_RUN(f.batch.lse_token_stride = -4, "lse_token_stride: found -4, " PACKED);
  REFUSE_RUN(f.batch.lse_head_stride = -1, "lse_head_stride: found -1, " PACKED);
#undef PACKED
  REFUSE_RUN(f.batch.out.head_stride = 5, "out: found out.token_stride 20 and out.head_stride 5, allowed strides that "
                                          "keep 8 x 4 rows of 6 elements apart");
  REFUSE_RUN(f.batch.out.token_stride = 23, "out: found out.token_stride 23 and out.head_stride 6, allowed strides "
                                            "that keep 8 x 4 rows of 6 elements apart");
  REFUSE_RUN(f.batch.lse_token_stride = 3, "lse: found lse_token_stride 3 and lse_head_stride 1, allowed strides that "
                                           "keep 8 x 4 rows of 1 elements apart");
}

static void refuses_wrong_index_arrays(void **state) {
  ea_context *context = *state;
  REFUSE_RUN(f.qo_indptr[0] = 1, "qo_indptr[0]: found 1, allowed 0");
  REFUSE_RUN(f.qo_indptr[0] = -1, "qo_indptr[0]: found -1, allowed 0");
  REFUSE_RUN(f.qo_indptr[2] = 4, "qo_indptr[2]: found 4, allowed 5 (the entry before) to 8 (num_tokens)");
  REFUSE_RUN(f.qo_indptr[2] = 9, "qo_indptr[2]: found 9, allowed 5 (the entry before) to 8 (num_tokens)");
  REFUSE_RUN(f.qo_indptr[1] = INT32_MIN, "qo_indptr[1]: found -2147483648, allowed 0 (the entry before) to 8 "
                                         "(num_tokens)");
  REFUSE_RUN(f.qo_indptr[3] = 7, "qo_indptr[3]: found 7, allowed 8 (num_tokens)");
  REFUSE_RUN(f.qo_indptr[3] = INT32_MAX, "qo_indptr[3]: found 2147483647, allowed 5 (the entry before) to 8 "
                                         "(num_tokens)");
  REFUSE_RUN(f.kv_indptr[0] = 2, "kv_indptr[0]: found 2, allowed 0");
  REFUSE_RUN(f.kv_indptr[2] = 5, "kv_indptr[2]: found 5, allowed 6 (the entry before) to 10 (num_kv_indices)");
  REFUSE_RUN(f.kv_indptr[3] = 11, "kv_indptr[3]: found 11, allowed 10 (the entry before) to 10 (num_kv_indices)");
  REFUSE_RUN(f.batch.num_kv_indices = 9, "kv_indptr[2]: found 10, allowed 6 (the entry before) to 9 (num_kv_indices)");
  REFUSE_RUN(f.kv_indices[7] = 20, "kv_indices[7]: found 20, allowed 0 to 19 (num_pages 5 * page_size 4)");
  REFUSE_RUN(f.kv_indices[9] = -1, "kv_indices[9]: found -1, allowed 0 to 19 (num_pages 5 * page_size 4)");
  REFUSE_RUN(f.kv_indices[0] = INT32_MIN,
             "kv_indices[0]: found -2147483648, allowed 0 to 19 (num_pages 5 * page_size 4)");
  REFUSE_RUN(f.batch.num_pages = 0, "kv_indices[0]: found 19, allowed none (num_pages 0)");
  int64_t wide[FIX_PREFIX] = {0, 1, 2, 3, 4, INT64_C(1) << 32, 6, 7, 8, 9};
  REFUSE_RUN((f.problem.index_dtype = EA_I64, f.batch.kv_indices = wide),
             "kv_indices[5]: found 4294967296, allowed 0 to 19 (num_pages 5 * page_size 4)");
}

static void refuses_wrong_masks_and_sinks(void **state) {
  ea_context *context = *state;
  REFUSE_RUN(f.batch.custom_mask = f.custom_mask,
             "custom_mask: found a mask, allowed NULL as the problem's has_custom_mask is false");
  REFUSE_RUN(f.problem.has_custom_mask = true,
             "custom_mask: found NULL, allowed a mask as the problem's has_custom_mask is true");
  REFUSE_RUN((fixture_use_mask(&f), f.batch.mask_indptr = NULL),
             "mask_indptr: found NULL, allowed an array of num_seqs");
  REFUSE_RUN((fixture_use_mask(&f), f.batch.mask_indptr = (void *)(uintptr_t)0x10004),
             "mask_indptr: found address 0x10004, allowed multiples of 8");
  REFUSE_RUN((fixture_use_mask(&f), f.batch.window_kv_offsets = (void *)(uintptr_t)0x10001),
             "window_kv_offsets: found address 0x10001, allowed multiples of 4");
  REFUSE_RUN((fixture_use_mask(&f), f.batch.custom_mask_bytes = -1),
             "custom_mask_bytes: found -1, allowed 0 to 9223372036854775807");
  REFUSE_RUN((fixture_use_mask(&f), f.batch.custom_mask_bytes = 54),
             "custom_mask_bytes: found 54, allowed 0 + 5 rows * 11 bytes or more for sequence 0");
  REFUSE_RUN((fixture_use_mask(&f), f.batch.custom_mask_bytes = 63),
             "custom_mask_bytes: found 63, allowed 55 + 3 rows * 3 bytes or more for sequence 2");
  REFUSE_RUN((fixture_use_mask(&f), f.mask_indptr[2] = 56),
             "custom_mask_bytes: found 64, allowed 56 + 3 rows * 3 bytes or more for sequence 2");
  REFUSE_RUN((fixture_use_mask(&f), f.mask_indptr[1] = 65),
             "mask_indptr[1]: found 65, allowed 0 to 64 (custom_mask_bytes)");
  REFUSE_RUN((fixture_use_mask(&f), f.mask_indptr[0] = INT64_MIN),
             "mask_indptr[0]: found -9223372036854775808, allowed 0 to 64 (custom_mask_bytes)");
  REFUSE_RUN((fixture_use_mask(&f), f.problem.window_left = 3, f.batch.window_kv_offsets = f.window_kv_offsets,
              f.window_kv_offsets[2] = -1),
             "window_kv_offsets[2]: found -1, allowed 0 or more");
  REFUSE_RUN((fixture_use_mask(&f), f.problem.window_left = 3, f.batch.window_kv_offsets = f.window_kv_offsets,
              f.window_kv_offsets[2] = 1),
             "custom_mask_bytes: found 64, allowed 55 + 3 rows * 4 bytes or more for sequence 2");
  REFUSE_RUN(f.batch.sinks = f.sinks, "sinks: found an array, allowed NULL as the problem's has_sinks is false");
  REFUSE_RUN(f.problem.has_sinks = true,
             "sinks: found NULL, allowed an array of num_q_heads as the problem's has_sinks is true");
  REFUSE_RUN((fixture_use_sinks(&f), f.batch.sinks = (void *)(uintptr_t)0x10002),
             "sinks: found address 0x10002, allowed multiples of 4");
}

static void refuses_wrong_workspaces_and_streams(void **state) {
  ea_context *context = *state;
  fixture f = fixture_make();
  ea_plan *plan = plan_for(context, &f.problem, EA_FAMILY_CPU);
  size_t bytes = 12345;
  char text[128];
  ASSERT_FAILED(ea_workspace_size(NULL, &f.batch, &bytes), EA_ERR_INVALID, "plan: found NULL, allowed a plan");
  ASSERT_FAILED(ea_workspace_size(plan, NULL, &bytes), EA_ERR_INVALID,
                "batch: found NULL, allowed a pointer to the struct");
  ASSERT_FAILED(ea_workspace_size(plan, &f.batch, NULL), EA_ERR_INVALID,
                "bytes: found NULL, allowed where to put the size");
  ea_batch wrong = EA_BATCH_INIT;
  wrong.num_tokens = -7;
  ASSERT_FAILED(ea_workspace_size(plan, &wrong, &bytes), EA_ERR_INVALID,
                "num_tokens: found -7, allowed 0 to 2147483647");
  assert_int_equal(bytes, 12345);

  unsigned char *workspace = workspace_for(plan, &f.batch, &bytes);
  ASSERT_FAILED(ea_run(plan, &f.batch, workspace, bytes, (void *)(uintptr_t)0x1000), EA_ERR_INVALID,
                "stream: found 0x1000, allowed NULL on a CPU context");
  ASSERT_FAILED(ea_run(NULL, &f.batch, workspace, bytes, NULL), EA_ERR_INVALID, "plan: found NULL, allowed a plan");
  ASSERT_FAILED(ea_validate(NULL, &f.batch, workspace, bytes, NULL), EA_ERR_INVALID,
                "plan: found NULL, allowed a plan");
  ASSERT_FAILED(ea_run(plan, NULL, workspace, bytes, NULL), EA_ERR_INVALID,
                "batch: found NULL, allowed a pointer to the struct");
  if (bytes > 0) {
    snprintf(text, sizeof text,
             "workspace_bytes: found %zu, allowed %zu or more for this batch, as ea_workspace_size says", bytes - 1,
             bytes);
    ASSERT_FAILED(ea_run(plan, &f.batch, workspace, bytes - 1, NULL), EA_ERR_INVALID, text);
    ASSERT_FAILED(ea_run(plan, &f.batch, NULL, bytes, NULL), EA_ERR_INVALID,
                  "workspace: found NULL, allowed memory of ea_workspace_size bytes");
    snprintf(text, sizeof text, "workspace: found address %p, allowed multiples of 256", (void *)(workspace + 64));
    ASSERT_FAILED(ea_run(plan, &f.batch, workspace + 64, bytes, NULL), EA_ERR_INVALID, text);
  }
  assert_untouched(&f, __LINE__);
  assert_int_equal(ea_run(plan, &f.batch, workspace, bytes, NULL), EA_OK);
  free(workspace);
  ea_plan_destroy(plan);
  fixture_free(&f);
}

/* Without a workspace, 0 bytes of it, a run on a CPU takes its own: the same bits. */
static void takes_its_own_workspace(void **state) {
  fixture with = fixture_make();
  fixture without = fixture_make();
  ea_plan *plan = plan_for(*state, &with.problem, EA_FAMILY_CPU);
  size_t bytes;
  void *workspace = workspace_for(plan, &with.batch, &bytes);
  assert_true(bytes > 0);
  assert_int_equal(ea_run(plan, &with.batch, workspace, bytes, NULL), EA_OK);
  assert_int_equal(ea_validate(plan, &without.batch, NULL, 0, NULL), EA_OK);
  assert_int_equal(ea_run(plan, &without.batch, NULL, 0, NULL), EA_OK);
  assert_memory_equal(with.out, without.out, FIX_OUT_BYTES);
  assert_memory_equal(with.lse, without.lse, FIX_LSE_BYTES);
  free(workspace);
  ea_plan_destroy(plan);
  fixture_free(&with);
  fixture_free(&without);
}

/* ---- What is allowed to be missing ---- */

static void run_with(ea_context *context, fixture *f, int line) {
  const ea_family families[] = {EA_FAMILY_CPU, EA_FAMILY_REFERENCE};
  for (int i = 0; i < 2; ++i) {
    ea_plan *plan = plan_for(context, &f->problem, families[i]);
    size_t bytes;
    void *workspace = workspace_for(plan, &f->batch, &bytes);
    ea_status status = ea_validate(plan, &f->batch, workspace, bytes, NULL);
    if (!status) status = ea_run(plan, &f->batch, workspace, bytes, NULL);
    if (status) fail_msg("line %d, %s: %s", line, ea_family_name(families[i]), ea_last_error());
    free(workspace);
    ea_plan_destroy(plan);
  }
}

#define RUN(change)                                                                                                    \
  do {                                                                                                                 \
    fixture f = fixture_make();                                                                                        \
    change;                                                                                                            \
    run_with(context, &f, __LINE__);                                                                                   \
    fixture_free(&f);                                                                                                  \
  } while (0)

static void empty_batch(fixture *f) {
  f->batch = (ea_batch)EA_BATCH_INIT;
}

/* Sequences with prefixes only: nothing to compute, and no memory for what would be computed. */
static void no_new_tokens(fixture *f) {
  for (int b = 1; b <= FIX_SEQS; ++b) f->qo_indptr[b] = 0;
  f->batch.num_tokens = 0;
  f->batch.q.data = f->batch.k.data = f->batch.v.data = f->batch.out.data = NULL;
  f->batch.lse = NULL;
  f->problem.has_custom_mask = f->problem.has_sinks = true;
}

static void no_prefix(fixture *f) {
  for (int b = 1; b <= FIX_SEQS; ++b) f->kv_indptr[b] = 0;
  f->batch.num_kv_indices = 0;
  f->batch.num_pages = 0;
  f->batch.kv_indices = NULL;
  f->batch.k_cache.data = f->batch.v_cache.data = NULL;
}

/* The prefix is counted, but nothing of it is read. */
static void skipped_prefix(fixture *f) {
  f->problem.skip_prefix = true;
  f->batch.kv_indices = NULL;
  f->batch.k_cache.data = f->batch.v_cache.data = NULL;
  f->batch.num_pages = 0;
}

static void skipped_extend(fixture *f) {
  f->problem.skip_extend = true;
  f->batch.k.data = f->batch.v.data = NULL;
}

/* Values are the first columns of the keys: no v at all. */
static void values_in_keys(fixture *f) {
  f->problem.shared_kv = true;
  f->batch.v.data = NULL;
  f->batch.v_cache.data = NULL;
}

static void runs_without_what_is_not_needed(void **state) {
  ea_context *context = *state;
  RUN((void)0);
  RUN(empty_batch(&f));
  RUN(no_new_tokens(&f));
  RUN(no_prefix(&f));
  RUN(skipped_prefix(&f));
  RUN(skipped_extend(&f));
  RUN((skipped_prefix(&f), skipped_extend(&f)));
  RUN(f.batch.lse = NULL);
  RUN(values_in_keys(&f));
  RUN(fixture_use_mask(&f));
  RUN(fixture_use_sinks(&f));
  RUN((fixture_use_mask(&f), f.batch.window_kv_offsets = f.window_kv_offsets, f.window_kv_offsets[0] = -9));
  RUN((fixture_use_mask(&f), f.problem.window_left = 2, f.batch.window_kv_offsets = f.window_kv_offsets));
}

/* More slots than are used may be there, and whatever they hold is nobody's business. */
static void ignores_what_lies_past_the_prefixes(void **state) {
  ea_context *context = *state;
  fixture f = fixture_make();
  int32_t indices[FIX_PREFIX + 3] = {19, 0, 7, 3, 12, 5, 11, 2, 8, 16, -1, INT32_MAX, 77};
  f.batch.kv_indices = indices;
  f.batch.num_kv_indices = FIX_PREFIX + 3;
  run_with(context, &f, __LINE__);
  fixture_free(&f);
}

/* An input, copied to where nothing else lies near. */
static void *apart_from_all(const void *input, size_t bytes) {
  enum { ROOM = 2048 };
  static _Alignas(256) unsigned char memory[3 * ROOM];
  assert_true(bytes <= ROOM && FIX_OUT_BYTES <= ROOM);
  return memcpy(memory + ROOM, input, bytes);
}

/* Results that begin in the last element of an input, or end in its first. */
static void refuses_results_that_overlap(void **state) {
  ea_context *context = *state;
#define OVERLAP(array) "found memory that overlaps " array ", allowed memory of its own"
#define LAST_OF(pointer, bytes) ((void *)((char *)(uintptr_t)(pointer) + (bytes) - sizeof(float)))
#define BEFORE(pointer, bytes) ((void *)((char *)(uintptr_t)(pointer) - (bytes) + sizeof(float)))
#define MOVE(input, bytes) f.batch.input = apart_from_all(f.batch.input, bytes)
#define REFUSE_ON(setup, input, bytes, name)                                                                           \
  REFUSE_RUN((setup, MOVE(input, bytes), f.batch.out.data = LAST_OF(f.batch.input, bytes)), "out: " OVERLAP(name));    \
  REFUSE_RUN((setup, MOVE(input, bytes), f.batch.out.data = BEFORE(f.batch.input, FIX_OUT_BYTES)),                     \
             "out: " OVERLAP(name));                                                                                   \
  REFUSE_RUN((setup, MOVE(input, bytes), f.batch.lse = LAST_OF(f.batch.input, bytes)), "lse: " OVERLAP(name));         \
  REFUSE_RUN((setup, MOVE(input, bytes), f.batch.lse = BEFORE(f.batch.input, FIX_LSE_BYTES)), "lse: " OVERLAP(name))
  const size_t slots = FIX_PAGES * FIX_PAGE_SIZE * FIX_KV_HEADS * sizeof(float);
  const size_t tokens = FIX_TOKENS * FIX_KV_HEADS * sizeof(float);
  REFUSE_ON((void)0, q.data, FIX_TOKENS * FIX_Q_HEADS * FIX_DIM * sizeof(float), "q");
  REFUSE_ON((void)0, k.data, tokens * FIX_DIM, "k");
  REFUSE_ON((void)0, v.data, tokens * FIX_DIM_V, "v");
  REFUSE_ON((void)0, k_cache.data, slots * FIX_DIM, "k_cache");
  REFUSE_ON((void)0, v_cache.data, slots * FIX_DIM_V, "v_cache");
  REFUSE_ON((void)0, qo_indptr, sizeof(int32_t) * (FIX_SEQS + 1), "qo_indptr");
  REFUSE_ON((void)0, kv_indptr, sizeof(int32_t) * (FIX_SEQS + 1), "kv_indptr");
  REFUSE_ON((void)0, kv_indices, sizeof(int32_t) * FIX_PREFIX, "kv_indices");
  REFUSE_ON(fixture_use_mask(&f), custom_mask, FIX_MASK_BYTES, "custom_mask");
  REFUSE_ON(fixture_use_mask(&f), mask_indptr, sizeof(int64_t) * FIX_SEQS, "mask_indptr");
  REFUSE_ON((fixture_use_mask(&f), f.problem.window_left = 3, f.batch.window_kv_offsets = f.window_kv_offsets),
            window_kv_offsets, sizeof(int32_t) * FIX_SEQS, "window_kv_offsets");
  REFUSE_ON(fixture_use_sinks(&f), sinks, sizeof(float) * FIX_Q_HEADS, "sinks");
  REFUSE_RUN((MOVE(out.data, FIX_OUT_BYTES), f.batch.lse = LAST_OF(f.batch.out.data, FIX_OUT_BYTES)),
             "lse: " OVERLAP("out"));
  REFUSE_RUN((MOVE(lse, FIX_LSE_BYTES), f.batch.out.data = LAST_OF(f.batch.lse, FIX_LSE_BYTES)),
             "lse: " OVERLAP("out"));
  REFUSE_RUN((f.problem.shared_kv = true, MOVE(k.data, tokens * FIX_DIM), f.batch.v.data = NULL,
              f.batch.out.data = LAST_OF(f.batch.k.data, tokens * FIX_DIM)),
             "out: " OVERLAP("k"));
  /* Rows of out between those of q, the first column of each in the last of q's. */
  static float wide[FIX_TOKENS * FIX_Q_HEADS * 16];
  REFUSE_RUN((f.batch.q = (ea_tensor){wide, 64, 16}, f.batch.out = (ea_tensor){wide + 7, 64, 16}),
             "out: " OVERLAP("q"));
#undef REFUSE_ON
#undef MOVE
}

/* The workspace, too, must not be where a result or an input is. */
static void refuses_a_workspace_that_overlaps(void **state) {
  ea_context *context = *state;
  fixture f = fixture_make();
  ea_plan *plan = plan_for(context, &f.problem, EA_FAMILY_CPU);
  size_t bytes;
  unsigned char *workspace = workspace_for(plan, &f.batch, &bytes);
  memset(workspace, 0, bytes);
  const ea_batch good = f.batch;
  f.batch.out.data = workspace + bytes - sizeof(float);
  ASSERT_FAILED(ea_run(plan, &f.batch, workspace, bytes, NULL), EA_ERR_INVALID, "workspace: " OVERLAP("out"));
  ASSERT_FAILED(ea_validate(plan, &f.batch, workspace, bytes, NULL), EA_ERR_INVALID, "workspace: " OVERLAP("out"));
  f.batch = good;
  f.batch.lse = BEFORE(workspace, FIX_LSE_BYTES);
  ASSERT_FAILED(ea_run(plan, &f.batch, workspace, bytes, NULL), EA_ERR_INVALID, "workspace: " OVERLAP("lse"));
  f.batch = good;
  f.batch.q.data = BEFORE(workspace, FIX_TOKENS * FIX_Q_HEADS * FIX_DIM * sizeof(float));
  ASSERT_FAILED(ea_run(plan, &f.batch, workspace, bytes, NULL), EA_ERR_INVALID, "workspace: " OVERLAP("q"));
  f.batch = good;
  f.batch.kv_indices = memcpy(workspace + 64, f.kv_indices, FIX_PREFIX * sizeof(int32_t));
  ASSERT_FAILED(ea_run(plan, &f.batch, workspace, bytes, NULL), EA_ERR_INVALID, "workspace: " OVERLAP("kv_indices"));
  f.batch = good;
  assert_untouched(&f, __LINE__);
  assert_int_equal(ea_run(plan, &f.batch, workspace, bytes, NULL), EA_OK);
  free(workspace);
  ea_plan_destroy(plan);
  fixture_free(&f);
}
#undef OVERLAP
#undef LAST_OF
#undef BEFORE

/* Everything of a token side by side in one buffer, as a fused projection leaves it: q, k, v, out and lse interleave
 * and have no byte in common. The result is the one of separate tensors. */
static void views_into_one_buffer_are_fine(void **state) {
  enum {
    Q = 0,
    K = Q + FIX_Q_HEADS * FIX_DIM,
    V = K + FIX_KV_HEADS * FIX_DIM,
    OUT = V + FIX_KV_HEADS * FIX_DIM_V,
    LSE = OUT + FIX_Q_HEADS * FIX_DIM_V,
    TOKEN = LSE + FIX_Q_HEADS
  };
  static float fused[FIX_TOKENS][TOKEN];
  fixture f = fixture_make();
  f.batch.lse = f.lse;
  run_with(*state, &f, __LINE__);
  for (int t = 0; t < FIX_TOKENS; ++t) {
    memcpy(&fused[t][Q], f.q + t * (K - Q), (K - Q) * sizeof(float));
    memcpy(&fused[t][K], f.k + t * (V - K), (V - K) * sizeof(float));
    memcpy(&fused[t][V], f.v + t * (OUT - V), (OUT - V) * sizeof(float));
  }
  const ea_batch separate = f.batch;
  f.batch.q = (ea_tensor){&fused[0][Q], TOKEN, FIX_DIM};
  f.batch.k = (ea_tensor){&fused[0][K], TOKEN, FIX_DIM};
  f.batch.v = (ea_tensor){&fused[0][V], TOKEN, FIX_DIM_V};
  f.batch.out = (ea_tensor){&fused[0][OUT], TOKEN, FIX_DIM_V};
  f.batch.lse = &fused[0][LSE];
  f.batch.lse_token_stride = TOKEN;
  run_with(*state, &f, __LINE__);
  for (int t = 0; t < FIX_TOKENS; ++t) {
    assert_memory_equal(&fused[t][OUT], (float *)separate.out.data + t * (LSE - OUT), (LSE - OUT) * sizeof(float));
    assert_memory_equal(&fused[t][LSE], separate.lse + t * FIX_Q_HEADS, FIX_Q_HEADS * sizeof(float));
  }
  fixture_free(&f);
}

/* Both families agree, every row is written, strided views work, and gaps stay as they are. */
static void writes_every_row_and_nothing_else(void **state) {
  ea_context *context = *state;
  enum { OUT_TOKEN = 40, OUT_HEAD = 9, LSE_TOKEN = 1, LSE_HEAD = 11 };
  float out[2][FIX_TOKENS * OUT_TOKEN];
  float lse[2][FIX_Q_HEADS * LSE_HEAD];
  const ea_family families[] = {EA_FAMILY_REFERENCE, EA_FAMILY_CPU};
  for (int i = 0; i < 2; ++i) {
    fixture f = fixture_make();
    for (int e = 0; e < FIX_TOKENS * OUT_TOKEN; ++e) out[i][e] = -77.0F;
    for (int e = 0; e < FIX_Q_HEADS * LSE_HEAD; ++e) lse[i][e] = -77.0F;
    f.batch.out = (ea_tensor){out[i], OUT_TOKEN, OUT_HEAD};
    f.batch.lse = lse[i];
    f.batch.lse_token_stride = LSE_TOKEN;
    f.batch.lse_head_stride = LSE_HEAD;
    ea_plan *plan = plan_for(context, &f.problem, families[i]);
    size_t bytes;
    void *workspace = workspace_for(plan, &f.batch, &bytes);
    assert_int_equal(ea_run(plan, &f.batch, workspace, bytes, NULL), EA_OK);
    free(workspace);
    ea_plan_destroy(plan);
    fixture_free(&f);
  }
  for (int t = 0; t < FIX_TOKENS; ++t) {
    for (int e = 0; e < OUT_TOKEN; ++e) {
      const int at = t * OUT_TOKEN + e;
      const bool row = e / OUT_HEAD < FIX_Q_HEADS && e % OUT_HEAD < FIX_DIM_V;
      assert_int_equal(out[0][at] != -77.0F, row);
      assert_int_equal(out[1][at] != -77.0F, row);
      assert_true(fabsf(out[0][at] - out[1][at]) < 1e-4F);
    }
  }
  for (int e = 0; e < FIX_Q_HEADS * LSE_HEAD; ++e) {
    assert_int_equal(lse[0][e] != -77.0F, e % LSE_HEAD < FIX_TOKENS);
    assert_true(fabsf(lse[0][e] - lse[1][e]) < 1e-4F);
  }
}

/* ---- Batches with random damage: refused with nothing written, or run to the same end by both
 * families. Buffers have exactly their sizes, so a sanitizer sees whatever slips through. ---- */

static uint32_t next_random(uint64_t *random) {
  *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(*random >> 33);
}

static void damage(fixture *f, uint64_t *random) {
  const int32_t edges[] = {INT32_MIN, -1, 0, 1, 2, 5, 8, 10, 11, 19, 20, 64, INT32_MAX};
  const uint32_t edge = next_random(random) % (2 * sizeof edges / sizeof edges[0]);
  const int32_t value = edge < sizeof edges / sizeof edges[0] ? edges[edge] : (int32_t)(next_random(random) % 12);
  const uint32_t at = next_random(random);
  switch (next_random(random) % 9) {
  case 0:
    f->qo_indptr[at % (FIX_SEQS + 1)] = value;
    break;
  case 1:
    f->kv_indptr[at % (FIX_SEQS + 1)] = value;
    break;
  case 2:
    f->kv_indices[at % FIX_PREFIX] = value;
    break;
  case 3:
    f->mask_indptr[at % FIX_SEQS] = value;
    break;
  case 4:
    f->window_kv_offsets[at % FIX_SEQS] = value;
    break;
  case 5:
    f->batch.num_kv_indices -= at % 4;
    break;
  case 6:
    f->batch.num_pages -= at % 3;
    break;
  case 7:
    f->batch.custom_mask_bytes -= f->problem.has_custom_mask ? at % 32 : 0;
    break;
  default: /* the first sequences only */
    f->batch.num_seqs = at % (FIX_SEQS + 1);
    f->batch.num_tokens = f->qo_indptr[f->batch.num_seqs];
    break;
  }
}

static void random_options(fixture *f, uint64_t *random) {
  const uint32_t bits = next_random(random);
  f->problem.causal = bits & 1;
  f->problem.window_left = bits & 2 ? (int32_t)(next_random(random) % 6) : -1;
  f->problem.skip_prefix = (bits & 12) == 12;
  f->problem.skip_extend = (bits & 48) == 48;
  f->problem.skip_prefix_custom_mask = bits & 64;
  if (bits & 128) fixture_use_mask(f);
  if (bits & 128 && bits & 256) f->batch.window_kv_offsets = f->window_kv_offsets;
  if (bits & 512) fixture_use_sinks(f);
}

static ea_status run_family(ea_context *context, fixture *f, ea_family family) {
  ea_plan *plan = plan_for(context, &f->problem, family);
  ea_batch any_size = EA_BATCH_INIT;
  size_t bytes;
  void *workspace = workspace_for(plan, &any_size, &bytes);
  const ea_status status = ea_run(plan, &f->batch, workspace, bytes, NULL);
  free(workspace);
  ea_plan_destroy(plan);
  return status;
}

static bool near(float a, float b) {
  return a == b || fabsf(a - b) <= 1e-4F;
}

static void damaged_batches_are_refused_or_run(void **state) {
  ea_context *context = *state;
  uint64_t random = 4711;
  int ran = 0;
  for (int round = 0; round < 4000; ++round) {
    fixture f = fixture_make();
    const uint64_t seed = random;
    random_options(&f, &random);
    for (uint32_t n = next_random(&random) % 4; n > 0; --n) damage(&f, &random);

    if (run_family(context, &f, EA_FAMILY_CPU)) {
      assert_int_equal(run_family(context, &f, EA_FAMILY_REFERENCE), EA_ERR_INVALID);
      assert_untouched(&f, __LINE__);
    } else {
      const int tokens = (int)f.batch.num_tokens;
      float *out = fix_copy(f.out, FIX_OUT_BYTES);
      float *lse = fix_copy(f.lse, FIX_LSE_BYTES);
      assert_int_equal(run_family(context, &f, EA_FAMILY_REFERENCE), EA_OK);
      for (int i = 0; i < tokens * FIX_Q_HEADS * FIX_DIM_V; ++i) {
        if (!near(out[i], f.out[i])) fail_msg("seed %llu: out[%d]", (unsigned long long)seed, i);
      }
      for (int i = 0; i < tokens * FIX_Q_HEADS; ++i) {
        if (!near(lse[i], f.lse[i])) fail_msg("seed %llu: lse[%d]", (unsigned long long)seed, i);
      }
      free(out);
      free(lse);
      ++ran;
    }
    fixture_free(&f);
  }
  assert_in_range(ran, 1000, 3500);
}

static void last_error_is_kept_until_the_next_failure(void **state) {
  ea_context *context = *state;
  fixture f = fixture_make();
  f.problem.head_dim = -3;
  ea_plan *plan = NULL;
  assert_int_equal(ea_plan_create(context, &f.problem, NULL, &plan), EA_ERR_INVALID);
  f.problem.head_dim = FIX_DIM;
  assert_int_equal(ea_plan_create(context, &f.problem, NULL, &plan), EA_OK);
  assert_string_equal(ea_last_error(), "head_dim: found -3, allowed 1 to 576");
  ea_plan_destroy(plan);
  fixture_free(&f);
}

static void *fail_in_a_thread(void *text) {
  assert_string_equal(ea_last_error(), "");
  ea_context *context = NULL;
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  options.num_threads = -9;
  (void)ea_context_create(&options, &context);
  (void)snprintf(text, 128, "%s", ea_last_error());
  return NULL;
}

static void last_error_belongs_to_its_thread(void **state) {
  (void)state;
  ASSERT_FAILED(ea_context_create(NULL, NULL), EA_ERR_INVALID,
                "context: found NULL, allowed where to put the new context");
  char text[128] = "";
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, fail_in_a_thread, text), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_string_equal(text, "num_threads: found -9, allowed 0 (automatic) to 1024");
  assert_string_equal(ea_last_error(), "context: found NULL, allowed where to put the new context");
}

/* One plan, many threads at once: the same bits from each. */
typedef struct shared_run {
  const ea_plan *plan;
  fixture f;
  ea_status status;
} shared_run;

static void *run_in_a_thread(void *argument) {
  shared_run *run = argument;
  size_t bytes = 0;
  run->status = ea_workspace_size(run->plan, &run->f.batch, &bytes);
  void *workspace = aligned_alloc(256, (bytes + 256) / 256 * 256);
  for (int i = 0; i < 20 && !run->status && workspace; ++i) {
    run->status = ea_run(run->plan, &run->f.batch, workspace, bytes, NULL);
  }
  free(workspace);
  return NULL;
}

static void a_plan_serves_many_threads(void **state) {
  enum { THREADS = 4 };
  fixture first = fixture_make();
  ea_plan *plan = plan_for(*state, &first.problem, EA_FAMILY_CPU);
  shared_run runs[THREADS];
  pthread_t threads[THREADS];
  for (int t = 0; t < THREADS; ++t) {
    runs[t] = (shared_run){plan, fixture_make(), EA_ERR_INTERNAL};
    assert_int_equal(pthread_create(&threads[t], NULL, run_in_a_thread, &runs[t]), 0);
  }
  for (int t = 0; t < THREADS; ++t) {
    assert_int_equal(pthread_join(threads[t], NULL), 0);
    assert_int_equal(runs[t].status, EA_OK);
    assert_memory_equal(runs[t].f.out, runs[0].f.out, FIX_OUT_BYTES);
    assert_memory_equal(runs[t].f.lse, runs[0].f.lse, FIX_LSE_BYTES);
  }
  assert_memory_not_equal(runs[0].f.out, first.out, FIX_OUT_BYTES);
  for (int t = 0; t < THREADS; ++t) fixture_free(&runs[t].f);
  fixture_free(&first);
  ea_plan_destroy(plan);
}

static int open_shared(void **state) {
  ea_context *context = open_cpu();
  *state = context;
  return 0;
}

static int close_shared(void **state) {
  ea_context_destroy(*state);
  return 0;
}

int main(void) {
#define SHARED(test) cmocka_unit_test_setup_teardown(test, open_shared, close_shared)
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_never_fail),
      cmocka_unit_test(opens_the_cpu_by_default),
      cmocka_unit_test(refuses_wrong_context_options),
      cmocka_unit_test(chooses_the_instruction_set),
      cmocka_unit_test(environment_overrides_the_automatic_choice),
      cmocka_unit_test(says_why_there_is_no_gpu),
      cmocka_unit_test(plans_say_what_they_are),
      cmocka_unit_test(refuses_wrong_plan_options),
      cmocka_unit_test(a_plan_outlives_its_context),
      cmocka_unit_test(plans_for_architectures_that_are_not_here),
      cmocka_unit_test(fills_as_much_as_the_caller_knows),
      cmocka_unit_test(takes_shorter_options),
      cmocka_unit_test(takes_a_shorter_batch),
      cmocka_unit_test(takes_a_longer_batch),
      cmocka_unit_test(refuses_options_of_a_later_version),
      SHARED(refuses_wrong_counts),
      SHARED(refuses_wrong_pointers),
      SHARED(refuses_wrong_strides),
      SHARED(refuses_results_that_overlap),
      SHARED(refuses_a_workspace_that_overlaps),
      SHARED(views_into_one_buffer_are_fine),
      SHARED(refuses_wrong_index_arrays),
      SHARED(refuses_wrong_masks_and_sinks),
      SHARED(refuses_wrong_workspaces_and_streams),
      SHARED(takes_its_own_workspace),
      SHARED(runs_without_what_is_not_needed),
      SHARED(ignores_what_lies_past_the_prefixes),
      SHARED(writes_every_row_and_nothing_else),
      SHARED(damaged_batches_are_refused_or_run),
      SHARED(last_error_is_kept_until_the_next_failure),
      cmocka_unit_test(last_error_belongs_to_its_thread),
      SHARED(a_plan_serves_many_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
