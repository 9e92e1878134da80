/* Every rule of ea_problem, and of a call's sizes, strides and index arrays where they are too
 * large to exist here: the wrong value, the status, and the whole text. Promise 5. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "problem/problem.h"

static ea_problem good_problem(void) {
  ea_problem problem = EA_PROBLEM_INIT;
  problem.num_q_heads = 8;
  problem.num_kv_heads = 2;
  problem.head_dim = 128;
  return problem;
}

static ea_problem resolved(ea_problem problem) {
  ea_problem out;
  assert_int_equal(ea_problem_resolve(&problem, &out), EA_OK);
  return out;
}

/* Field by field: structs have padding. */
static void assert_same_problem(const ea_problem *a, const ea_problem *b) {
#define SAME(field) assert_true(a->field == b->field)
  SAME(struct_size), SAME(dtype), SAME(cache_dtype), SAME(index_dtype), SAME(mask_indptr_dtype), SAME(sinks_dtype);
  SAME(num_q_heads), SAME(num_kv_heads), SAME(head_dim), SAME(head_dim_v), SAME(page_size);
  SAME(shared_kv), SAME(causal), SAME(has_sinks), SAME(has_custom_mask), SAME(skip_prefix_custom_mask);
  SAME(skip_prefix), SAME(skip_extend), SAME(window_left), SAME(xai_temperature_len);
  SAME(softmax_scale), SAME(logit_cap), SAME(k_scale), SAME(v_scale);
#undef SAME
}

/* A refused problem leaves the output alone and says why. */
static void refuse(const ea_problem *problem, const char *text, int line) {
  ea_problem out;
  ea_problem before;
  memset(&out, 0x5a, sizeof out);
  memcpy(&before, &out, sizeof out);
  const ea_status status = ea_problem_resolve(problem, &out);
  if (status != EA_ERR_INVALID) fail_msg("line %d: %s", line, ea_status_name(status));
  if (strcmp(ea_last_error(), text) != 0) fail_msg("line %d: \"%s\", wanted \"%s\"", line, ea_last_error(), text);
  assert_memory_equal(&out, &before, sizeof out);
}

/* Statements that spoil p, and the text that is due. */
#define REFUSE(spoil, text)                                                                                            \
  do {                                                                                                                 \
    ea_problem p = good_problem();                                                                                     \
    spoil;                                                                                                             \
    refuse(&p, text, __LINE__);                                                                                        \
  } while (0)

static void set_byte(bool *field, unsigned char byte) {
  memcpy(field, &byte, 1);
}

static void refuses_wrong_types(void **state) {
  (void)state;
  REFUSE(p.dtype = EA_E4M3, "dtype: found e4m3 (4), allowed bf16, f16, f32");
  REFUSE(p.dtype = EA_DTYPE_NONE, "dtype: found unknown (0), allowed bf16, f16, f32");
  REFUSE(p.dtype = (ea_dtype)77, "dtype: found unknown (77), allowed bf16, f16, f32");
  REFUSE(p.dtype = (ea_dtype)-1, "dtype: found unknown (-1), allowed bf16, f16, f32");
  REFUSE(p.cache_dtype = EA_F16, "cache_dtype: found f16 (2), allowed none (as q), q's own, e4m3, e5m2");
  REFUSE(p.cache_dtype = EA_I32, "cache_dtype: found i32 (6), allowed none (as q), q's own, e4m3, e5m2");
  REFUSE(p.index_dtype = EA_F32, "index_dtype: found f32 (1), allowed i32, i64");
  REFUSE(p.index_dtype = EA_DTYPE_NONE, "index_dtype: found unknown (0), allowed i32, i64");
  REFUSE(p.mask_indptr_dtype = EA_BF16, "mask_indptr_dtype: found bf16 (3), allowed i64, i32");
  REFUSE(p.sinks_dtype = EA_F16, "sinks_dtype: found f16 (2), allowed f32, none (as q), q's own");
}

static void refuses_wrong_shapes(void **state) {
  (void)state;
  REFUSE(p.num_q_heads = 0, "num_q_heads: found 0, allowed 1 or more");
  REFUSE(p.num_q_heads = -8, "num_q_heads: found -8, allowed 1 or more");
  REFUSE(p.num_kv_heads = 0, "num_kv_heads: found 0, allowed 1 or more");
  REFUSE(p.num_kv_heads = INT32_MIN, "num_kv_heads: found -2147483648, allowed 1 or more");
  REFUSE(p.num_kv_heads = 3, "num_q_heads: found 8, allowed multiples of num_kv_heads (3)");
  REFUSE(p.num_kv_heads = 16, "num_q_heads: found 8, allowed multiples of num_kv_heads (16)");
  REFUSE(p.head_dim = 0, "head_dim: found 0, allowed 1 to 576");
  REFUSE(p.head_dim = -1, "head_dim: found -1, allowed 1 to 576");
  REFUSE(p.head_dim = 577, "head_dim: found 577, allowed 1 to 576");
  REFUSE(p.head_dim_v = -1, "head_dim_v: found -1, allowed 1 to 576, or 0 (as head_dim)");
  REFUSE(p.head_dim_v = 577, "head_dim_v: found 577, allowed 1 to 576, or 0 (as head_dim)");
  REFUSE((p.shared_kv = true, p.head_dim_v = 129), "head_dim_v: found 129, allowed 1 to head_dim (128) with shared_kv");
  REFUSE(p.page_size = 0, "page_size: found 0, allowed 1 or more");
  REFUSE(p.page_size = -16, "page_size: found -16, allowed 1 or more");
}

static void refuses_wrong_options(void **state) {
  (void)state;
  REFUSE(p.window_left = -2, "window_left: found -2, allowed 1 or more, or 0 or -1 (none)");
  REFUSE(p.window_left = INT32_MIN, "window_left: found -2147483648, allowed 1 or more, or 0 or -1 (none)");
  REFUSE(p.xai_temperature_len = 1, "xai_temperature_len: found 1, allowed 2 or more, or 0 or -1 (none)");
  REFUSE(p.xai_temperature_len = -2, "xai_temperature_len: found -2, allowed 2 or more, or 0 or -1 (none)");
  REFUSE(set_byte(&p.shared_kv, 2), "shared_kv: found 2, allowed 0 (false) or 1 (true)");
  REFUSE(set_byte(&p.causal, 255), "causal: found 255, allowed 0 (false) or 1 (true)");
  REFUSE(set_byte(&p.has_sinks, 128), "has_sinks: found 128, allowed 0 (false) or 1 (true)");
  REFUSE(set_byte(&p.has_custom_mask, 3), "has_custom_mask: found 3, allowed 0 (false) or 1 (true)");
  REFUSE(set_byte(&p.skip_prefix_custom_mask, 9), "skip_prefix_custom_mask: found 9, allowed 0 (false) or 1 (true)");
  REFUSE(set_byte(&p.skip_prefix, 2), "skip_prefix: found 2, allowed 0 (false) or 1 (true)");
  REFUSE(set_byte(&p.skip_extend, 2), "skip_extend: found 2, allowed 0 (false) or 1 (true)");
}

static void refuses_wrong_factors(void **state) {
  (void)state;
#define RANGE "allowed 1.17549e-38 to 3.40282e+38"
  REFUSE(p.softmax_scale = -1.0, "softmax_scale: found -1, " RANGE ", or 0 (default)");
  REFUSE(p.softmax_scale = (double)NAN, "softmax_scale: found nan, " RANGE ", or 0 (default)");
  REFUSE(p.softmax_scale = (double)INFINITY, "softmax_scale: found inf, " RANGE ", or 0 (default)");
  REFUSE(p.softmax_scale = -(double)INFINITY, "softmax_scale: found -inf, " RANGE ", or 0 (default)");
  REFUSE(p.softmax_scale = 1e39, "softmax_scale: found 1e+39, " RANGE ", or 0 (default)");
  REFUSE(p.softmax_scale = 1e-39, "softmax_scale: found 1e-39, " RANGE ", or 0 (default)");
  REFUSE(p.logit_cap = -30.0, "logit_cap: found -30, " RANGE ", or 0 (default)");
  REFUSE(p.logit_cap = (double)NAN, "logit_cap: found nan, " RANGE ", or 0 (default)");
  REFUSE(p.logit_cap = (double)INFINITY, "logit_cap: found inf, " RANGE ", or 0 (default)");
  REFUSE(p.k_scale = 0.0, "k_scale: found 0, " RANGE);
  REFUSE(p.k_scale = (double)NAN, "k_scale: found nan, " RANGE);
  REFUSE(p.k_scale = -0.5, "k_scale: found -0.5, " RANGE);
  REFUSE(p.v_scale = 0.0, "v_scale: found 0, " RANGE);
  REFUSE(p.v_scale = (double)INFINITY, "v_scale: found inf, " RANGE);
  REFUSE(p.v_scale = -(double)FLT_MAX, "v_scale: found -3.40282e+38, " RANGE);
#undef RANGE
}

static void refuses_wrong_structs(void **state) {
  (void)state;
  refuse(NULL, "problem: found NULL, allowed a pointer to the struct", __LINE__);
  char text[160];
#define SIZE_TEXT(size)                                                                                                \
  (snprintf(text, sizeof text,                                                                                         \
            "problem.struct_size: found %zu, allowed %zu to 65536 (start from the struct's EA_..._INIT)",              \
            (size_t)(size), offsetof(ea_problem, head_dim_v)),                                                         \
   text)
  REFUSE(p.struct_size = 0, SIZE_TEXT(0));
  REFUSE(p.struct_size = 7, SIZE_TEXT(7));
  REFUSE(p.struct_size = offsetof(ea_problem, head_dim_v) - 1, SIZE_TEXT(offsetof(ea_problem, head_dim_v) - 1));
  REFUSE(p.struct_size = 65537, SIZE_TEXT(65537));
  REFUSE(p.struct_size = SIZE_MAX, SIZE_TEXT(SIZE_MAX));
#undef SIZE_TEXT
}

static void resolves_the_defaults(void **state) {
  (void)state;
  const ea_problem p = resolved(good_problem());
  assert_int_equal(p.struct_size, sizeof p);
  assert_int_equal(p.cache_dtype, EA_BF16);
  assert_int_equal(p.sinks_dtype, EA_F32);
  assert_int_equal(p.head_dim_v, 128);
  assert_int_equal(p.window_left, 0);
  assert_int_equal(p.xai_temperature_len, 0);
  assert_true(p.softmax_scale == 1.0 / sqrt(128.0));
  assert_true(p.logit_cap == 0.0 && p.k_scale == 1.0 && p.v_scale == 1.0);
  assert_true(p.causal && p.skip_prefix_custom_mask);

  ea_problem none = good_problem();
  none.sinks_dtype = EA_DTYPE_NONE;
  none.xai_temperature_len = -1;
  none.window_left = 0;
  assert_int_equal(resolved(none).sinks_dtype, EA_BF16);
  assert_int_equal(resolved(none).xai_temperature_len, 0);
}

static void resolving_twice_changes_nothing(void **state) {
  (void)state;
  ea_problem p = good_problem();
  p.sinks_dtype = EA_DTYPE_NONE;
  p.head_dim_v = 64;
  p.shared_kv = true;
  p.window_left = INT32_MAX;
  p.xai_temperature_len = INT64_MAX;
  const ea_problem once = resolved(p);
  const ea_problem twice = resolved(once);
  assert_int_equal(once.window_left, INT32_MAX);
  assert_same_problem(&once, &twice);
}

/* A caller compiled before head_dim_v existed, its memory ending there. */
static void takes_a_shorter_struct(void **state) {
  (void)state;
  const size_t known = offsetof(ea_problem, head_dim_v);
  ea_problem full = good_problem();
  full.head_dim_v = 577; /* not the caller's any more: must not be looked at */
  full.struct_size = known;
  ea_problem *exact = malloc(known);
  assert_non_null(exact);
  memcpy(exact, &full, known);
  ea_problem out;
  const ea_status status = ea_problem_resolve(exact, &out);
  free(exact);
  assert_int_equal(status, EA_OK);
  const ea_problem wanted = resolved(good_problem());
  assert_same_problem(&out, &wanted);
}

/* A caller compiled against a later version: taken while the tail that is not known here is zero. */
static void takes_a_longer_struct(void **state) {
  (void)state;
  struct {
    ea_problem known;
    unsigned char tail[40];
  } later = {.known = good_problem()};
  later.known.struct_size = sizeof later;
  memset(later.tail, 0, sizeof later.tail);
  ea_problem out;
  assert_int_equal(ea_problem_resolve(&later.known, &out), EA_OK);
  const ea_problem wanted = resolved(good_problem());
  assert_same_problem(&out, &wanted);
  for (size_t i = 0; i < sizeof later.tail; ++i) {
    later.tail[i] = 0x80;
    assert_int_equal(ea_problem_resolve(&later.known, &out), EA_ERR_INVALID);
    char text[160];
    snprintf(
        text, sizeof text,
        "problem.struct_size: found %zu and byte %zu not 0, allowed only 0 past the %zu bytes that extattn %s knows",
        sizeof later, sizeof(ea_problem) + i, sizeof(ea_problem), ea_version());
    assert_string_equal(ea_last_error(), text);
    later.tail[i] = 0;
  }
}

/* ---- Calls. Addresses that are never read, so any size can be claimed. ---- */

#define SOMEWHERE ((void *)(uintptr_t)0x10000)
#define ELSEWHERE ((void *)(uintptr_t)0x20000)

static ea_batch good_batch(void) {
  ea_batch batch = EA_BATCH_INIT;
  batch.num_seqs = 2;
  batch.num_tokens = 10;
  batch.num_kv_indices = 64;
  batch.num_pages = 100;
  batch.q.data = batch.k.data = batch.v.data = SOMEWHERE;
  batch.out.data = ELSEWHERE;
  batch.k_cache.data = batch.v_cache.data = SOMEWHERE;
  batch.qo_indptr = batch.kv_indptr = SOMEWHERE;
  batch.kv_indices = SOMEWHERE;
  return batch;
}

static ea_problem paged_problem(void) {
  ea_problem problem = good_problem();
  problem.page_size = 16;
  problem.head_dim_v = 64;
  return resolved(problem);
}

static void makes_strides_explicit(void **state) {
  (void)state;
  const ea_problem problem = paged_problem();
  ea_batch batch = good_batch();
  batch.lse = (void *)(uintptr_t)0x30000;
  batch.k.head_stride = 200; /* the token stride packs around what is given */
  batch.v_cache.row_stride = 1000;
  ea_call call;
  assert_int_equal(ea_call_make(&problem, &batch, &call), EA_OK);
  assert_int_equal(call.q.head_stride, 128);
  assert_int_equal(call.q.token_stride, 8 * 128);
  assert_int_equal(call.k.head_stride, 200);
  assert_int_equal(call.k.token_stride, 2 * 200);
  assert_int_equal(call.v.head_stride, 64);
  assert_int_equal(call.v.token_stride, 2 * 64);
  assert_int_equal(call.out_head_stride, 64);
  assert_int_equal(call.out_token_stride, 8 * 64);
  assert_int_equal(call.lse_head_stride, 1);
  assert_int_equal(call.lse_token_stride, 8);
  assert_int_equal(call.k_cache.head_stride, 128);
  assert_int_equal(call.k_cache.row_stride, 2 * 128);
  assert_int_equal(call.k_cache.page_stride, 16 * 2 * 128);
  assert_int_equal(call.v_cache.head_stride, 64);
  assert_int_equal(call.v_cache.row_stride, 1000);
  assert_int_equal(call.v_cache.page_stride, 16 * 1000);
  assert_int_equal(call.num_slots, 1600);
  assert_int_equal(call.group, 4);
}

static void shared_kv_repeats_k(void **state) {
  (void)state;
  ea_problem problem = good_problem();
  problem.shared_kv = true;
  problem.head_dim = 576;
  problem.head_dim_v = 512;
  problem = resolved(problem);
  ea_batch batch = good_batch();
  batch.v.data = NULL;
  batch.v.token_stride = -1; /* not looked at */
  batch.v_cache.data = (void *)(uintptr_t)1;
  batch.k_cache.data = (void *)(uintptr_t)0x40000;
  ea_call call;
  assert_int_equal(ea_call_make(&problem, &batch, &call), EA_OK);
  assert_memory_equal(&call.v, &call.k, sizeof call.k);
  assert_memory_equal(&call.v_cache, &call.k_cache, sizeof call.k_cache);
  assert_int_equal(call.v.token_stride, 2 * 576);
  assert_ptr_equal(call.v_cache.data, (void *)(uintptr_t)0x40000);
}

static void drops_what_does_not_apply(void **state) {
  (void)state;
  ea_problem problem = good_problem();
  problem.has_custom_mask = true;
  problem = resolved(problem);
  ea_batch batch = good_batch();
  batch.custom_mask = SOMEWHERE;
  batch.custom_mask_bytes = 1000;
  batch.mask_indptr = SOMEWHERE;
  batch.window_kv_offsets = SOMEWHERE;
  ea_call call;
  assert_int_equal(ea_call_make(&problem, &batch, &call), EA_OK);
  assert_ptr_equal(call.custom_mask, SOMEWHERE);
  assert_null(call.window_kv_offsets); /* there is no window */
  problem.window_left = 5;
  assert_int_equal(ea_call_make(&problem, &batch, &call), EA_OK);
  assert_ptr_equal(call.window_kv_offsets, SOMEWHERE);
  batch.num_tokens = 0;
  assert_int_equal(ea_call_make(&problem, &batch, &call), EA_OK);
  assert_null(call.custom_mask); /* there is no query */
}

static void refuse_call(const ea_problem *problem, const ea_batch *batch, const char *text, int line) {
  ea_call call;
  ea_call before;
  memset(&call, 0x5a, sizeof call);
  memcpy(&before, &call, sizeof call);
  const ea_status status = ea_call_make(problem, batch, &call);
  if (status != EA_ERR_INVALID) fail_msg("line %d: %s", line, ea_status_name(status));
  if (strcmp(ea_last_error(), text) != 0) fail_msg("line %d: \"%s\", wanted \"%s\"", line, ea_last_error(), text);
  assert_memory_equal(&call, &before, sizeof call);
}

#define REFUSE_CALL(spoil, text)                                                                                       \
  do {                                                                                                                 \
    const ea_problem problem = paged_problem();                                                                        \
    ea_batch batch = good_batch();                                                                                     \
    spoil;                                                                                                             \
    refuse_call(&problem, &batch, text, __LINE__);                                                                     \
  } while (0)

static void refuses_sizes_past_64_bits(void **state) {
  (void)state;
  REFUSE_CALL(batch.num_pages = INT64_MAX / 16 + 1,
              "num_pages: found 576460752303423488, allowed 0 to 576460752303423487");
  REFUSE_CALL(batch.num_pages = INT64_MAX / 16, "k_cache.page_stride: found 4096 (for 576460752303423487 of them), "
                                                "allowed what stays within the address space");
  REFUSE_CALL(batch.num_kv_indices = INT64_MAX,
              "num_kv_indices: found 9223372036854775807, allowed 0 to 1152921504606846975");
  REFUSE_CALL(batch.q.token_stride = INT64_MAX, "q.token_stride: found 9223372036854775807 (for 10 of them), allowed "
                                                "what stays within the address space");
  REFUSE_CALL(batch.q.token_stride = INT64_MAX / 18, "q.token_stride: found 512409557603043100 (for 10 of them), "
                                                     "allowed what stays within the address space");
  REFUSE_CALL(batch.k.head_stride = INT64_MAX,
              "k.token_stride: found 0 (packed: 2 times 9223372036854775807 elements), allowed less than 2^63");
  REFUSE_CALL((batch.v.head_stride = INT64_MAX, batch.v.token_stride = 1),
              "v.head_stride: found 9223372036854775807 (for 2 of them), allowed what stays within the address space");
  REFUSE_CALL(batch.v_cache.row_stride = INT64_MAX / 8,
              "v_cache.page_stride: found 0 (packed: 16 times 1152921504606846975 elements), allowed less than 2^63");
  REFUSE_CALL((batch.v_cache.row_stride = INT64_MAX / 8, batch.v_cache.page_stride = 1),
              "v_cache.row_stride: found 1152921504606846975 (for 16 of them), allowed what stays within the address "
              "space");
  REFUSE_CALL(batch.out.data = (void *)(UINTPTR_MAX - 63),
              "out.token_stride: found 512 (for 10 of them), allowed what stays within the address space");
}

/* Whatever is accepted, every offset that a backend forms stays within 64 bits: random strides
 * and sizes at the edges, against 128-bit arithmetic. */
static uint64_t next_random(uint64_t *random) {
  *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *random >> 11;
}

static int64_t random_edge(uint64_t *random) {
  const int64_t edges[] = {
      0,         1,         2,         64, 128, 129, INT32_MAX - 1, INT32_MAX, INT64_C(1) << 31, INT64_MAX,
      INT64_MIN, INT64_MAX, INT32_MIN, -1, 7,   100};
  const uint64_t r = next_random(random);
  if (r % 3 == 0) return edges[r / 3 % (sizeof edges / sizeof edges[0])];
  return (int64_t)(next_random(random) >> next_random(random) % 53);
}

static bool reaches(int64_t count, int64_t stride, __int128 *elements) {
  *elements += (__int128)(count - 1) * stride;
  return count > 0;
}

static void accepted_offsets_fit_64_bits(void **state) {
  (void)state;
  uint64_t random = 20240607;
  int accepted = 0;
  for (int round = 0; round < 200000; ++round) {
    const ea_problem problem = paged_problem();
    ea_batch batch = good_batch();
    int64_t *const fields[] = {&batch.num_seqs,           &batch.num_tokens,          &batch.num_pages,
                               &batch.q.token_stride,     &batch.q.head_stride,       &batch.k_cache.page_stride,
                               &batch.k_cache.row_stride, &batch.k_cache.head_stride, &batch.out.token_stride,
                               &batch.out.head_stride};
    const int changes = 1 + (int)(next_random(&random) % 4);
    for (int c = 0; c < changes; ++c) {
      *fields[next_random(&random) % (sizeof fields / sizeof fields[0])] = random_edge(&random);
    }
    ea_call call;
    if (ea_call_make(&problem, &batch, &call)) continue;
    ++accepted;
    const __int128 limit = INT64_MAX;
    __int128 q = 128;
    __int128 out = 64;
    __int128 pool = 128;
    if (reaches(call.num_tokens, call.q.token_stride, &q) && reaches(8, call.q.head_stride, &q)) {
      assert_true(q * 2 <= limit);
    }
    if (reaches(call.num_tokens, call.out_token_stride, &out) && reaches(8, call.out_head_stride, &out)) {
      assert_true(out * 2 <= limit);
    }
    if (reaches(call.num_pages, call.k_cache.page_stride, &pool) && reaches(16, call.k_cache.row_stride, &pool) &&
        reaches(2, call.k_cache.head_stride, &pool)) {
      assert_true(pool * 2 <= limit);
    }
    assert_true((__int128)call.num_pages * 16 == call.num_slots);
  }
  assert_in_range(accepted, 10000, 190000);
}

/* Rows that do share memory are never accepted; dense views of a larger array always are. */
static bool rows_overlap(const ea_call *call) {
  const int64_t dim = call->head_dim_v;
  for (int64_t t = 0; t < call->num_tokens; ++t) {
    for (int64_t h = -(int64_t)call->num_q_heads + 1; h < call->num_q_heads; ++h) {
      if (t == 0 && h <= 0) continue;
      const int64_t apart = t * call->out_token_stride + h * call->out_head_stride;
      if (apart < dim && apart > -dim) return true;
    }
  }
  return false;
}

static void accepted_rows_do_not_overlap(void **state) {
  (void)state;
  int accepted = 0;
  for (int64_t tokens = 1; tokens <= 3; ++tokens) {
    for (int32_t heads = 1; heads <= 3; ++heads) {
      for (int64_t token_stride = 1; token_stride < 20; ++token_stride) {
        for (int64_t head_stride = 1; head_stride < 20; ++head_stride) {
          ea_problem problem = good_problem();
          problem.num_q_heads = heads;
          problem.num_kv_heads = 1;
          problem.head_dim = 4;
          problem = resolved(problem);
          ea_batch batch = good_batch();
          batch.num_tokens = tokens;
          batch.out.token_stride = token_stride;
          batch.out.head_stride = head_stride;
          ea_call call;
          const bool nested = (head_stride >= 4 && token_stride >= (heads - 1) * head_stride + 4) ||
                              (token_stride >= 4 && head_stride >= (tokens - 1) * token_stride + 4);
          if (ea_call_make(&problem, &batch, &call)) {
            assert_false(nested);
            continue;
          }
          assert_false(rows_overlap(&call));
          ++accepted;
        }
      }
    }
  }
  assert_in_range(accepted, 500, 2000);
}

/* ---- Index arrays that claim more than fits in memory here ---- */

static ea_call huge_call(void) {
  const ea_problem problem = paged_problem();
  ea_batch batch = good_batch();
  batch.num_seqs = 1;
  batch.num_tokens = INT32_MAX;
  batch.num_kv_indices = INT64_C(1) << 40;
  ea_call call;
  assert_int_equal(ea_call_make(&problem, &batch, &call), EA_OK);
  return call;
}

static void limits_the_length_of_a_sequence(void **state) {
  (void)state;
  ea_call call = huge_call();
  int32_t qo[2] = {0, 70000};
  int32_t kv[2] = {0, EA_MAX_SEQ_LEN - 70000};
  call.num_tokens = 70000;
  assert_int_equal(ea_check_indptr(&call, qo, kv), EA_OK);
  kv[1] += 1;
  assert_int_equal(ea_check_indptr(&call, qo, kv), EA_ERR_INVALID);
  assert_string_equal(ea_last_error(),
                      "kv_indptr[1]: found 2147348113 prefix and 70000 new tokens, allowed 2147418112 together");
  qo[1] = INT32_MAX;
  kv[1] = INT32_MAX;
  call.num_tokens = INT32_MAX;
  assert_int_equal(ea_check_indptr(&call, qo, kv), EA_ERR_INVALID);
  assert_string_equal(ea_last_error(),
                      "kv_indptr[1]: found 2147483647 prefix and 2147483647 new tokens, allowed 2147418112 together");
}

/* A mask whose E rows of P+E bytes pass 32 bits by far. */
static void measures_masks_in_64_bits(void **state) {
  (void)state;
  ea_call call = huge_call();
  const int32_t qo[2] = {0, 1 << 20};
  const int32_t kv[2] = {0, 1 << 30};
  const int32_t offsets[1] = {INT32_MAX};
  int64_t start[1] = {5};
  const uint8_t mask[1] = {0};
  call.num_tokens = 1 << 20;
  call.qo_indptr = qo;
  call.kv_indptr = kv;
  call.skip_prefix = true; /* no slots to read */
  call.custom_mask = mask;
  call.mask_indptr = start;
  call.mask_indptr_dtype = EA_I64;
  const int64_t rows = (INT64_C(1) << 20) * ((INT64_C(1) << 30) + (1 << 20));
  call.custom_mask_bytes = 5 + rows;
  assert_int_equal(ea_check_host_arrays(&call), EA_OK);
  call.custom_mask_bytes = 5 + rows - 1;
  assert_int_equal(ea_check_host_arrays(&call), EA_ERR_INVALID);
  assert_string_equal(ea_last_error(), "custom_mask_bytes: found 1126999418470404, allowed 5 + 1048576 rows * "
                                       "1074790400 bytes or more for sequence 0");
  call.window_kv_offsets = offsets;
  call.window = 1;
  call.custom_mask_bytes = INT64_MAX;
  assert_int_equal(ea_check_host_arrays(&call), EA_OK);
  start[0] = INT64_MAX;
  assert_int_equal(ea_check_host_arrays(&call), EA_ERR_INVALID);
  call.custom_mask_bytes = 5 + rows; /* without the offset's columns */
  start[0] = 5;
  assert_int_equal(ea_check_host_arrays(&call), EA_ERR_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(refuses_wrong_types),
      cmocka_unit_test(refuses_wrong_shapes),
      cmocka_unit_test(refuses_wrong_options),
      cmocka_unit_test(refuses_wrong_factors),
      cmocka_unit_test(refuses_wrong_structs),
      cmocka_unit_test(resolves_the_defaults),
      cmocka_unit_test(resolving_twice_changes_nothing),
      cmocka_unit_test(takes_a_shorter_struct),
      cmocka_unit_test(takes_a_longer_struct),
      cmocka_unit_test(makes_strides_explicit),
      cmocka_unit_test(shared_kv_repeats_k),
      cmocka_unit_test(drops_what_does_not_apply),
      cmocka_unit_test(refuses_sizes_past_64_bits),
      cmocka_unit_test(accepted_offsets_fit_64_bits),
      cmocka_unit_test(accepted_rows_do_not_overlap),
      cmocka_unit_test(limits_the_length_of_a_sequence),
      cmocka_unit_test(measures_masks_in_64_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
