/* Every field of every EA_..._INIT has the default that the header's comments give it. The fields are
 * named in their order and may lie apart only by alignment: one that a later version adds needs its line. */
#include "cmocka_all.h"
#include "extattn.h"

typedef struct fields {
  const char *type;
  size_t end; /* of the last field seen */
} fields;

static void next_field(fields *seen, const char *name, size_t offset, size_t size, size_t alignment) {
  const size_t expected = (seen->end + alignment - 1) / alignment * alignment;
  if (offset != expected) {
    fail_msg("%s.%s: at byte %zu, expected %zu (a field before it has no line here)", seen->type, name, offset,
             expected);
  }
  seen->end = offset + size;
}

static void no_field_left(const fields *seen, size_t size) {
  const size_t rounded = (seen->end + 7) / 8 * 8;
  if (rounded != size) fail_msg("%s: the last field seen ends at byte %zu of %zu", seen->type, seen->end, size);
}

static size_t alignment_of(size_t size) {
  return size < 8 ? size : 8;
}

/* BEGIN(type, init), a line for each field, END. A number, enum, bool or pointer: HAS(name, default). */
#define BEGIN(type, init)                                                                                              \
  const type it = init;                                                                                                \
  fields seen = {#type, 0};                                                                                            \
  HAS(struct_size, sizeof(type))
#define NEXT(name, alignment)                                                                                          \
  next_field(&seen, #name, (size_t)((const char *)&it.name - (const char *)&it), sizeof it.name, alignment)
#define HAS(name, value)                                                                                               \
  do {                                                                                                                 \
    NEXT(name, alignment_of(sizeof it.name));                                                                          \
    if (it.name != (value)) fail_msg("%s.%s: not %s", seen.type, #name, #value);                                       \
  } while (0)
#define HAS_NO_TEXT(name)                                                                                              \
  do {                                                                                                                 \
    NEXT(name, 1);                                                                                                     \
    for (size_t i = 0; i < sizeof it.name; ++i) assert_int_equal(it.name[i], 0);                                       \
  } while (0)
#define HAS_NO_TENSOR(name)                                                                                            \
  do {                                                                                                                 \
    NEXT(name, 8);                                                                                                     \
    assert_true(!it.name.data && it.name.token_stride == 0 && it.name.head_stride == 0);                               \
  } while (0)
#define HAS_NO_CACHE(name)                                                                                             \
  do {                                                                                                                 \
    NEXT(name, 8);                                                                                                     \
    assert_true(!it.name.data && it.name.page_stride == 0 && it.name.row_stride == 0 && it.name.head_stride == 0);     \
  } while (0)
#define END no_field_left(&seen, sizeof it)

static void of_context_options(void **state) {
  (void)state;
  BEGIN(ea_context_options, EA_CONTEXT_OPTIONS_INIT);
  HAS(device, EA_DEVICE_CPU);
  HAS(device_ordinal, 0);
  HAS(num_threads, 0);
  HAS(isa, EA_ISA_AUTO);
  END;
}

static void of_device_info(void **state) {
  (void)state;
  BEGIN(ea_device_info, EA_DEVICE_INFO_INIT);
  HAS(device, EA_DEVICE_CPU);
  HAS(device_ordinal, 0);
  HAS_NO_TEXT(name);
  HAS_NO_TEXT(arch);
  HAS(isa, EA_ISA_AUTO);
  HAS(num_threads, 0);
  HAS(multiprocessors, 0);
  HAS(smem_limit_bytes, 0);
  HAS(memory_bytes, 0);
  HAS(driver_version, 0);
  END;
}

static void of_problem(void **state) {
  (void)state;
  BEGIN(ea_problem, EA_PROBLEM_INIT);
  HAS(dtype, EA_BF16);
  HAS(cache_dtype, EA_DTYPE_NONE);
  HAS(index_dtype, EA_I32);
  HAS(mask_indptr_dtype, EA_I64);
  HAS(sinks_dtype, EA_F32);
  HAS(num_q_heads, 0);
  HAS(num_kv_heads, 0);
  HAS(head_dim, 0);
  HAS(head_dim_v, 0);
  HAS(page_size, 1);
  HAS(shared_kv, false);
  HAS(causal, true);
  HAS(has_sinks, false);
  HAS(has_custom_mask, false);
  HAS(skip_prefix_custom_mask, true);
  HAS(skip_prefix, false);
  HAS(skip_extend, false);
  HAS(window_left, -1);
  HAS(xai_temperature_len, 0);
  HAS(softmax_scale, 0.0);
  HAS(logit_cap, 0.0);
  HAS(k_scale, 1.0);
  HAS(v_scale, 1.0);
  END;
}

static void of_plan_options(void **state) {
  (void)state;
  BEGIN(ea_plan_options, EA_PLAN_OPTIONS_INIT);
  HAS(family, EA_FAMILY_AUTO);
  HAS(stages, 0);
  END;
}

static void of_plan_info(void **state) {
  (void)state;
  BEGIN(ea_plan_info, EA_PLAN_INFO_INIT);
  HAS(family, EA_FAMILY_AUTO);
  HAS_NO_TEXT(kernel);
  HAS(tile_m, 0);
  HAS(tile_n, 0);
  HAS(stages, 0);
  HAS(max_stages, 0);
  HAS(threads, 0);
  HAS(smem_bytes, 0);
  HAS(smem_limit_bytes, 0);
  HAS(registers, 0);
  HAS_NO_TEXT(reason);
  END;
}

static void of_batch(void **state) {
  (void)state;
  BEGIN(ea_batch, EA_BATCH_INIT);
  HAS(num_seqs, 0);
  HAS(num_tokens, 0);
  HAS(num_kv_indices, 0);
  HAS(num_pages, 0);
  HAS_NO_TENSOR(q);
  HAS_NO_TENSOR(k);
  HAS_NO_TENSOR(v);
  HAS_NO_CACHE(k_cache);
  HAS_NO_CACHE(v_cache);
  HAS_NO_TENSOR(out);
  HAS(lse, NULL);
  HAS(lse_token_stride, 0);
  HAS(lse_head_stride, 0);
  HAS(qo_indptr, NULL);
  HAS(kv_indptr, NULL);
  HAS(kv_indices, NULL);
  HAS(custom_mask, NULL);
  HAS(custom_mask_bytes, 0);
  HAS(mask_indptr, NULL);
  HAS(window_kv_offsets, NULL);
  HAS(sinks, NULL);
  HAS(qo_indptr_host, NULL);
  HAS(kv_indptr_host, NULL);
  END;
}

static void of_merge_args(void **state) {
  (void)state;
  BEGIN(ea_merge_args, EA_MERGE_ARGS_INIT);
  HAS(dtype, EA_DTYPE_NONE);
  HAS(num_tokens, 0);
  HAS(num_heads, 0);
  HAS(head_dim_v, 0);
  HAS_NO_TENSOR(out_a);
  HAS_NO_TENSOR(out_b);
  HAS_NO_TENSOR(out);
  HAS(lse_a, NULL);
  HAS(lse_b, NULL);
  HAS(lse, NULL);
  END;
}

static void of_capture_options(void **state) {
  (void)state;
  BEGIN(ea_capture_options, EA_CAPTURE_OPTIONS_INIT);
  HAS(directory, NULL);
  HAS(call, 0);
  HAS(slower_ms, 0.0);
  HAS(failing, false);
  HAS(max_files, 16);
  END;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(of_context_options), cmocka_unit_test(of_device_info),     cmocka_unit_test(of_problem),
      cmocka_unit_test(of_plan_options),    cmocka_unit_test(of_plan_info),       cmocka_unit_test(of_batch),
      cmocka_unit_test(of_merge_args),      cmocka_unit_test(of_capture_options),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
