/* ea_merge on a CPU context: two partial results are the whole; a part that saw nothing counts
 * for nothing; merging in place; and every argument's rule. */
#include <math.h>
#include <stdio.h>

#include "common/numeric.h"
#include "fixture.h"

enum { TOKENS = 3, HEADS = 2, DIM = 5, ROWS = TOKENS * HEADS };

/* Two parts in f32 and room for the result, packed. */
typedef struct parts {
  float a[ROWS * DIM], b[ROWS * DIM], out[ROWS * DIM];
  float lse_a[ROWS], lse_b[ROWS], lse[ROWS];
} parts;

static parts make_parts(void) {
  parts p;
  for (int i = 0; i < ROWS * DIM; ++i) {
    p.a[i] = (float)(i % 7) - 3.0F;
    p.b[i] = (float)(i % 5) * 0.5F;
    p.out[i] = -77.0F;
  }
  for (int r = 0; r < ROWS; ++r) {
    p.lse_a[r] = (float)r * 0.5F - 1.0F;
    p.lse_b[r] = 1.0F - (float)r * 0.25F;
    p.lse[r] = -77.0F;
  }
  return p;
}

static ea_merge_args args_of(parts *p) {
  ea_merge_args args = EA_MERGE_ARGS_INIT;
  args.dtype = EA_F32;
  args.num_tokens = TOKENS;
  args.num_heads = HEADS;
  args.head_dim_v = DIM;
  args.out_a.data = p->a;
  args.out_b.data = p->b;
  args.out.data = p->out;
  args.lse_a = p->lse_a;
  args.lse_b = p->lse_b;
  args.lse = p->lse;
  return args;
}

static int open_context(void **state) {
  ea_context *context = NULL;
  if (ea_context_create(NULL, &context)) return -1;
  *state = context;
  return 0;
}

static int close_context(void **state) {
  ea_context_destroy(*state);
  return 0;
}

static void assert_near(float found, double wanted) {
  if (fabs((double)found - wanted) > 1e-6 * (1 + fabs(wanted))) fail_msg("%.9g, wanted %.9g", (double)found, wanted);
}

static void weighs_by_lse(void **state) {
  parts p = make_parts();
  const ea_merge_args args = args_of(&p);
  assert_int_equal(ea_merge(*state, &args, NULL), EA_OK);
  for (int r = 0; r < ROWS; ++r) {
    const double lse = log(exp((double)p.lse_a[r]) + exp((double)p.lse_b[r]));
    assert_near(p.lse[r], lse);
    for (int d = r * DIM; d < (r + 1) * DIM; ++d) {
      assert_near(p.out[d],
                  exp((double)p.lse_a[r] - lse) * (double)p.a[d] + exp((double)p.lse_b[r] - lse) * (double)p.b[d]);
    }
  }
}

/* A part that saw no key may hold anything. */
static void ignores_a_part_that_saw_nothing(void **state) {
  parts p = make_parts();
  for (int d = 0; d < DIM; ++d) {
    p.a[0 * DIM + d] = NAN;
    p.b[1 * DIM + d] = INFINITY;
    p.a[2 * DIM + d] = NAN;
    p.b[2 * DIM + d] = -INFINITY;
  }
  p.lse_a[0] = p.lse_b[1] = p.lse_a[2] = p.lse_b[2] = -INFINITY;
  const ea_merge_args args = args_of(&p);
  assert_int_equal(ea_merge(*state, &args, NULL), EA_OK);
  assert_memory_equal(p.out, p.b, DIM * sizeof(float));
  assert_memory_equal(p.out + DIM, p.a + DIM, DIM * sizeof(float));
  assert_true(p.lse[0] == p.lse_b[0] && p.lse[1] == p.lse_a[1]);
  assert_true(isinf(p.lse[2]) && p.lse[2] < 0);
  for (int d = 2 * DIM; d < 3 * DIM; ++d) assert_true(p.out[d] == 0.0F && !signbit(p.out[d]));
}

static void far_apart_parts_do_not_overflow(void **state) {
  parts p = make_parts();
  const float lse[ROWS] = {3e38F, -3e38F, 1e4F, -1e4F, 100.0F, 0.0F};
  for (int r = 0; r < ROWS; ++r) {
    p.lse_a[r] = lse[r];
    p.lse_b[r] = -lse[r];
  }
  const ea_merge_args args = args_of(&p);
  assert_int_equal(ea_merge(*state, &args, NULL), EA_OK);
  for (int r = 0; r < 5; ++r) {
    const float *larger = lse[r] > 0 ? p.a : p.b;
    assert_memory_equal(p.out + r * DIM, larger + r * DIM, DIM * sizeof(float));
    assert_true(p.lse[r] == fabsf(lse[r]));
  }
  assert_near(p.lse[5], log(2.0));
}

/* NaN is not hidden when its part counts. */
static void nan_stays_nan(void **state) {
  parts p = make_parts();
  p.a[0] = NAN;
  p.lse_b[1] = NAN;
  const ea_merge_args args = args_of(&p);
  assert_int_equal(ea_merge(*state, &args, NULL), EA_OK);
  assert_true(isnan(p.out[0]) && !isnan(p.out[1]) && !isnan(p.lse[0]));
  for (int d = DIM; d < 2 * DIM; ++d) assert_true(isnan(p.out[d]));
  assert_true(isnan(p.lse[1]));
}

static void works_in_place_and_either_way_round(void **state) {
  parts apart = make_parts();
  const ea_merge_args args = args_of(&apart);
  assert_int_equal(ea_merge(*state, &args, NULL), EA_OK);
  for (int in_b = 0; in_b < 2; ++in_b) {
    parts p = make_parts();
    ea_merge_args in_place = args_of(&p);
    in_place.out = in_b ? in_place.out_b : in_place.out_a;
    in_place.lse = in_b ? p.lse_b : p.lse_a;
    assert_int_equal(ea_merge(*state, &in_place, NULL), EA_OK);
    assert_memory_equal(in_b ? p.b : p.a, apart.out, sizeof apart.out);
    assert_memory_equal(in_b ? p.lse_b : p.lse_a, apart.lse, sizeof apart.lse);
  }
  parts p = make_parts();
  ea_merge_args swapped = args_of(&p);
  swapped.out_a.data = p.b;
  swapped.out_b.data = p.a;
  swapped.lse_a = p.lse_b;
  swapped.lse_b = p.lse_a;
  assert_int_equal(ea_merge(*state, &swapped, NULL), EA_OK);
  assert_memory_equal(p.out, apart.out, sizeof apart.out);
  assert_memory_equal(p.lse, apart.lse, sizeof apart.lse);
}

/* Columns of one buffer, and in place where a stride that is never taken differs. */
static void takes_views_of_one_buffer(void **state) {
  parts apart = make_parts();
  const ea_merge_args args = args_of(&apart);
  assert_int_equal(ea_merge(*state, &args, NULL), EA_OK);
  parts p = make_parts();
  float columns[ROWS][3 * DIM];
  for (int row = 0; row < ROWS; ++row) {
    memcpy(columns[row], p.a + row * DIM, DIM * sizeof(float));
    memcpy(columns[row] + DIM, p.b + row * DIM, DIM * sizeof(float));
  }
  ea_merge_args views = args_of(&p);
  const ea_tensor all = {columns, HEADS * 3 * DIM, 3 * DIM};
  views.out_a = views.out_b = views.out = all;
  views.out_b.data = columns[0] + DIM;
  views.out.data = columns[0] + 2 * DIM;
  assert_int_equal(ea_merge(*state, &views, NULL), EA_OK);
  for (int row = 0; row < ROWS; ++row) {
    assert_memory_equal(columns[row] + 2 * DIM, apart.out + row * DIM, DIM * sizeof(float));
  }

  ea_merge_args one = args_of(&p);
  one.num_tokens = 1;
  one.out = one.out_a;
  one.out.token_stride = 77;
  assert_int_equal(ea_merge(*state, &one, NULL), EA_OK);
  assert_memory_equal(p.a, apart.out, HEADS * DIM * sizeof(float));
}

static void takes_strides_types_and_no_lse(void **state) {
  parts plain = make_parts();
  const ea_merge_args plain_args = args_of(&plain);
  assert_int_equal(ea_merge(*state, &plain_args, NULL), EA_OK);
  const ea_dtype dtypes[] = {EA_F16, EA_BF16};
  for (int t = 0; t < 2; ++t) {
    parts p = make_parts();
    uint16_t a[ROWS * DIM];
    uint16_t b[HEADS * 100];
    uint16_t out[ROWS * 8];
    memset(out, 0xee, sizeof out);
    for (int row = 0; row < ROWS; ++row) {
      for (int d = 0; d < DIM; ++d) {
        ea_store_double(a, dtypes[t], row * DIM + d, (double)p.a[row * DIM + d]);
        ea_store_double(b, dtypes[t], row / HEADS * 7 + row % HEADS * 100 + d, (double)p.b[row * DIM + d]);
      }
    }
    ea_merge_args args = args_of(&p);
    args.dtype = dtypes[t];
    args.out_a.data = a;
    args.out_b = (ea_tensor){b, 7, 100};
    args.out = (ea_tensor){out, 16, 8};
    args.lse = NULL;
    assert_int_equal(ea_merge(*state, &args, NULL), EA_OK);
    for (int row = 0; row < ROWS; ++row) {
      for (int d = 0; d < 8; ++d) {
        if (d >= DIM) {
          assert_int_equal(out[row * 8 + d], 0xeeee);
          continue;
        }
        const double wanted = (double)plain.out[row * DIM + d];
        const double half_ulp = dtypes[t] == EA_BF16 ? 0x1p-8 : 0x1p-11;
        assert_true(fabs(ea_load_double(out, dtypes[t], row * 8 + d) - wanted) <= half_ulp * fabs(wanted) + 1e-6);
      }
    }
  }
}

/* The prefix's answer and the new tokens' answer, merged, are the whole's. */
static void run_part(ea_context *context, fixture *f, bool skip_prefix, bool skip_extend) {
  ea_problem problem = f->problem;
  problem.skip_prefix = skip_prefix;
  problem.skip_extend = skip_extend;
  ea_plan_options options = EA_PLAN_OPTIONS_INIT;
  options.family = EA_FAMILY_REFERENCE;
  ea_plan *plan = NULL;
  assert_int_equal(ea_plan_create(context, &problem, &options, &plan), EA_OK);
  assert_int_equal(ea_run(plan, &f->batch, NULL, 0, NULL), EA_OK);
  ea_plan_destroy(plan);
}

static void halves_make_the_whole(void **state) {
  for (int window = 0; window < 5; ++window) {
    fixture whole = fixture_make();
    fixture prefix = fixture_make();
    fixture extend = fixture_make();
    whole.problem.window_left = prefix.problem.window_left = extend.problem.window_left = window;
    run_part(*state, &whole, false, false);
    run_part(*state, &prefix, false, true);
    run_part(*state, &extend, true, false);
    ea_merge_args args = EA_MERGE_ARGS_INIT;
    args.dtype = EA_F32;
    args.num_tokens = FIX_TOKENS;
    args.num_heads = FIX_Q_HEADS;
    args.head_dim_v = FIX_DIM_V;
    args.out_a.data = prefix.out;
    args.out_b.data = extend.out;
    args.out.data = prefix.out;
    args.lse_a = prefix.lse;
    args.lse_b = extend.lse;
    args.lse = prefix.lse;
    assert_int_equal(ea_merge(*state, &args, NULL), EA_OK);
    for (int i = 0; i < FIX_TOKENS * FIX_Q_HEADS * FIX_DIM_V; ++i) assert_near(prefix.out[i], (double)whole.out[i]);
    for (int i = 0; i < FIX_TOKENS * FIX_Q_HEADS; ++i) assert_near(prefix.lse[i], (double)whole.lse[i]);
    fixture_free(&whole);
    fixture_free(&prefix);
    fixture_free(&extend);
  }
}

static void refuse(ea_context *context, parts *p, const ea_merge_args *args, void *stream, const char *text, int line) {
  parts before = *p;
  const ea_status status = ea_merge(context, args, stream);
  if (status != EA_ERR_INVALID) fail_msg("line %d: %s", line, ea_status_name(status));
  if (strcmp(ea_last_error(), text) != 0) fail_msg("line %d: \"%s\", wanted \"%s\"", line, ea_last_error(), text);
  assert_memory_equal(p, &before, sizeof before);
}

#define REFUSE(spoil, text)                                                                                            \
  do {                                                                                                                 \
    parts p = make_parts();                                                                                            \
    ea_merge_args args = args_of(&p);                                                                                  \
    void *stream = NULL;                                                                                               \
    spoil;                                                                                                             \
    refuse(*state, &p, &args, stream, text, __LINE__);                                                                 \
  } while (0)

static void refuses_wrong_arguments(void **state) {
  parts unused = make_parts();
  refuse(NULL, &unused, NULL, NULL, "context: found NULL, allowed a context", __LINE__);
  refuse(*state, &unused, NULL, NULL, "args: found NULL, allowed a pointer to the struct", __LINE__);
  REFUSE(args.struct_size = 8, "args.struct_size: found 8, allowed 120 to 65536 (start from the struct's EA_..._INIT)");
  REFUSE(args.dtype = EA_E4M3, "dtype: found e4m3 (4), allowed bf16, f16, f32");
  REFUSE(args.dtype = EA_DTYPE_NONE, "dtype: found unknown (0), allowed bf16, f16, f32");
  REFUSE(args.num_tokens = -1, "num_tokens: found -1, allowed 0 to 2147483647");
  REFUSE(args.num_heads = 0, "num_heads: found 0, allowed 1 or more");
  REFUSE(args.head_dim_v = 0, "head_dim_v: found 0, allowed 1 to 576");
  REFUSE(args.head_dim_v = 577, "head_dim_v: found 577, allowed 1 to 576");
  REFUSE(args.out_a.data = NULL, "out_a.data: found NULL, allowed the tensor's memory");
  REFUSE(args.out_b.data = NULL, "out_b.data: found NULL, allowed the tensor's memory");
  REFUSE(args.out.data = NULL, "out.data: found NULL, allowed the tensor's memory");
  REFUSE(args.lse_a = NULL, "lse_a: found NULL, allowed the tensor's memory");
  REFUSE(args.lse_b = NULL, "lse_b: found NULL, allowed the tensor's memory");
  REFUSE(args.lse_b = (void *)(uintptr_t)0x10001, "lse_b: found address 0x10001, allowed multiples of 4");
  REFUSE(args.lse = (void *)(uintptr_t)0x10001, "lse: found address 0x10001, allowed multiples of 4");
  REFUSE(args.out_a.token_stride = -1, "out_a.token_stride: found -1, allowed 0 (packed) or more elements");
  REFUSE(args.out_b.head_stride = -1, "out_b.head_stride: found -1, allowed 0 (packed) or more elements");
  REFUSE(args.out.head_stride = 4, "out: found out.token_stride 8 and out.head_stride 4, allowed strides that keep 3 x "
                                   "2 rows of 5 elements apart");
  REFUSE((args.out.data = p.a, args.out.token_stride = 11),
         "out: found memory that overlaps out_a, allowed out_a itself or memory apart");
  REFUSE((args.out.data = p.b, args.out_b.head_stride = 6, args.out_b.token_stride = 1),
         "out: found memory that overlaps out_b, allowed out_b itself or memory apart");
  REFUSE(args.out.data = p.a + DIM, "out: found memory that overlaps out_a, allowed out_a itself or memory apart");
  REFUSE(args.out.data = p.b + 1, "out: found memory that overlaps out_b, allowed out_b itself or memory apart");
  REFUSE((args.out = args.out_a, args.out_b.data = p.a + 1),
         "out: found memory that overlaps out_b, allowed out_b itself or memory apart");
  REFUSE(args.out.data = p.lse_a + ROWS - 1, "out: found memory that overlaps lse_a, allowed memory of its own");
  REFUSE(args.out.data = p.lse_b + ROWS - 1, "out: found memory that overlaps lse_b, allowed memory of its own");
  REFUSE(args.lse = p.a + 1, "lse: found memory that overlaps out_a, allowed memory of its own");
  REFUSE(args.lse = p.out + 1, "lse: found memory that overlaps out, allowed memory of its own");
  REFUSE(args.lse = p.lse_a + 1, "lse: found memory that overlaps lse_a, allowed lse_a itself or memory apart");
  REFUSE((args.lse_b = p.lse_a + 1, args.lse = p.lse_a),
         "lse: found memory that overlaps lse_b, allowed lse_b itself or memory apart");
  REFUSE(stream = (void *)(uintptr_t)0x40, "stream: found 0x40, allowed NULL on a CPU context");
}

static void merges_nothing(void **state) {
  ea_merge_args args = EA_MERGE_ARGS_INIT;
  args.dtype = EA_BF16;
  args.num_heads = 1;
  args.head_dim_v = 1;
  assert_int_equal(ea_merge(*state, &args, NULL), EA_OK);
}

/* A caller compiled when ea_merge_args ended before lse. */
static void takes_a_shorter_struct(void **state) {
  parts p = make_parts();
  ea_merge_args args = args_of(&p);
  args.struct_size = offsetof(ea_merge_args, lse);
  assert_int_equal(ea_merge(*state, &args, NULL), EA_OK);
  assert_true(p.out[0] != -77.0F);
  for (int r = 0; r < ROWS; ++r) assert_true(p.lse[r] == -77.0F);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(weighs_by_lse),
      cmocka_unit_test(ignores_a_part_that_saw_nothing),
      cmocka_unit_test(far_apart_parts_do_not_overflow),
      cmocka_unit_test(nan_stays_nan),
      cmocka_unit_test(works_in_place_and_either_way_round),
      cmocka_unit_test(takes_views_of_one_buffer),
      cmocka_unit_test(takes_strides_types_and_no_lse),
      cmocka_unit_test(halves_make_the_whole),
      cmocka_unit_test(refuses_wrong_arguments),
      cmocka_unit_test(merges_nothing),
      cmocka_unit_test(takes_a_shorter_struct),
  };
  return cmocka_run_group_tests(tests, open_context, close_context);
}
