/* See known_logits.h. */
#include "known_logits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/cmocka_all.h"
#include "common/numeric.h"
#include "cuda/memory.h"

/* Tokens of one sequence, all new, one head. Of q, k and v the first `filled` elements (0: all) hold these numbers, the
 * others 0; the last token's row is what is looked at. */
typedef struct known {
  ea_dtype dtype;
  int32_t tokens, filled;
  double q[2], k[2], v[2], sink;
  double softmax_scale, logit_cap; /* 0: the default */
  double out, lse;
} known;

static const known cases[] = {
    /* the rounding of maximum * log2(e) is up to 256 here */
    {EA_BF16, 1, 1, {54784}, {54784}, {1}, 0, 1, 0, 1, 3.0013e9},
    {EA_BF16, 1, 1, {-54784}, {54784}, {1}, 0, 1, 0, 1, -3.0013e9},
    {EA_F16, 1, 1, {20992}, {20992}, {1}, 0, 1, 0, 1, 4.4066e8},
    {EA_F16, 1, 1, {-22016}, {22016}, {1}, 0, 1, 0, 1, -4.8470e8},
    {EA_F32, 1, 1, {54784}, {54784}, {1}, 0, 1, 0, 1, 3.0013e9},
    {EA_BF16, 1, 0, {133120}, {133120}, {133120}, 0, 1, 0, 133120, 0}, /* lse: D * 133120^2 */
    /* close to the largest f32 */
    {EA_BF16, 1, 1, {0x1p63}, {0x1.8p63}, {2}, 0, 1, 0, 2, 0x1.8p126},
    {EA_BF16, 1, 1, {-0x1p63}, {0x1.8p63}, {2}, 0, 1, 0, 2, -0x1.8p126},
    {EA_F32, 1, 1, {-0x1p63}, {0x1.8p63}, {2}, 0, 1, 0, 2, -0x1.8p126},
    /* equal ones share; 64 apart, the greater takes all; from the least to the greatest */
    {EA_BF16, 2, 1, {54784, 54784}, {54784, 54784}, {1, 3}, 0, 1, 0, 2, 3.0013e9},
    {EA_BF16, 2, 1, {1024, 1024}, {1024, 1032}, {1, 3}, 0, 1, 0, 3, 1056768},
    {EA_BF16, 2, 1, {0x1p63, 0x1p63}, {-0x1p63, 0x1p63}, {1, 3}, 0, 1, 0, 3, 0x1p126},
    {EA_BF16, 2, 1, {1, 1}, {0x1p-120, 0x1p-126}, {1, 3}, 0, 1, 0, 2, 0.693147},
    /* a sink as large as they are takes its share */
    {EA_BF16, 1, 1, {0x1p15}, {0x1p16}, {2}, 0x1p31, 1, 0, 1, 0x1p31},
    {EA_BF16, 1, 1, {0x1p15}, {0x1p16}, {2}, 0x1p32, 1, 0, 0, 0x1p32},
    /* scores 0 and 3 under a cap that is far away, and one that is not */
    {EA_BF16, 2, 1, {1, 1}, {0, 3}, {0, 1}, 0, 1, 1e3, 0.952574, 3.048587},
    {EA_BF16, 2, 1, {1, 1}, {0, 3}, {0, 1}, 0, 1, 1e5, 0.952574, 3.048587},
    {EA_BF16, 2, 1, {1, 1}, {0, 3}, {0, 1}, 0, 1, 1e8, 0.952574, 3.048587},
    {EA_F16, 2, 1, {1, 1}, {0, 3}, {0, 1}, 0, 1, 1e12, 0.952574, 3.048587},
    {EA_F32, 2, 1, {1, 1}, {0, 3}, {0, 1}, 0, 1, 1e30, 0.952574, 3.048587},
    {EA_BF16, 2, 1, {1, 1}, {0, 3}, {0, 1}, 0, 1, 3e38, 0.952574, 3.048587},
    {EA_BF16, 2, 1, {1, 1}, {0, 3}, {0, 1}, 0, 1, 2, 0.859398, 1.961819},
    {EA_BF16, 1, 1, {54784}, {54784}, {1}, 0, 1, 30, 1, 30},
};
enum { NUM_CASES = sizeof cases / sizeof cases[0] };

/* Latent attention: the values are the keys' first elements. */
static bool is_shared(int32_t dim, int32_t dim_v) {
  return dim == 576 && dim_v == 512;
}

static void *upload(ea_context *context, const known *c, int32_t dim, const double *numbers) {
  const size_t element = ea_dtype_size(c->dtype), bytes = (size_t)(c->tokens * dim) * element;
  void *host = calloc((size_t)(c->tokens * dim), element), *ptr = NULL;
  assert_non_null(host);
  for (int32_t t = 0; t < c->tokens; t++) {
    for (int32_t d = 0; d < dim && (d < c->filled || !c->filled); d++) {
      ea_store_double(host, c->dtype, (int64_t)t * dim + d, numbers[t]);
    }
  }
  assert_int_equal(ea_mem_alloc(context, bytes, &ptr), EA_OK);
  assert_int_equal(ea_mem_upload(context, ptr, host, bytes, NULL), EA_OK);
  free(host);
  return ptr;
}

static void *copy_to(ea_context *context, const void *host, size_t bytes) {
  void *ptr = NULL;
  assert_int_equal(ea_mem_alloc(context, bytes, &ptr), EA_OK);
  assert_int_equal(ea_mem_upload(context, ptr, host, bytes, NULL), EA_OK);
  return ptr;
}

/* What comes out where the values are those of the keys. */
static double shared_out(const known *c) {
  if (c->tokens == 1) return c->out / c->v[0] * c->k[0];
  const double weight = (c->out - c->v[0]) / (c->v[1] - c->v[0]);
  return c->k[0] + weight * (c->k[1] - c->k[0]);
}

static void judge(const known *c, int32_t dim, int32_t dim_v, const void *out, float lse) {
  const bool shared = is_shared(dim, dim_v);
  const double exact = shared ? shared_out(c) : c->out;
  const double size = shared ? fmax(fabs(c->k[0]), fabs(c->k[1])) : fabs(exact);
  const double bound = (c->dtype == EA_F32 ? 1e-5 : c->dtype == EA_F16 ? 5e-4 : 3e-3) * size;
  const double exact_lse = c->filled ? c->lse : dim * c->q[0] * c->k[0];
  for (int32_t d = 0; d < (c->filled ? 1 : dim_v); d++) {
    const double found = ea_load_double(out, c->dtype, d);
    if (fabs(found - exact) <= bound) continue;
    fail_msg("case %d, D %d/%d: out[%d] is %.9g, not %.9g", (int)(c - cases), dim, dim_v, d, found, exact);
  }
  if (fabs((double)lse - exact_lse) <= 5e-5 * (1.0 + fabs(exact_lse))) return;
  fail_msg("case %d, D %d/%d: lse is %.9g, not %.9g", (int)(c - cases), dim, dim_v, (double)lse, exact_lse);
}

static void run(ea_context *context, const ea_plan *plan, const known *c, int32_t dim, int32_t dim_v) {
  const int32_t qo_indptr[] = {0, c->tokens}, kv_indptr[] = {0, 0};
  const float sink = (float)c->sink;
  const size_t row_bytes = (size_t)dim_v * ea_dtype_size(c->dtype);
  size_t bytes = 0;
  ea_batch b = EA_BATCH_INIT;
  b.num_seqs = 1;
  b.num_tokens = c->tokens;
  void *const mine[] = {upload(context, c, dim, c->q),
                        upload(context, c, dim, c->k),
                        upload(context, c, dim_v, c->v),
                        copy_to(context, qo_indptr, sizeof qo_indptr),
                        copy_to(context, kv_indptr, sizeof kv_indptr),
                        copy_to(context, &sink, sizeof sink)};
  void *out = NULL, *lse = NULL, *workspace = NULL;
  b.q.data = mine[0], b.k.data = mine[1];
  if (!is_shared(dim, dim_v)) b.v.data = mine[2];
  b.qo_indptr = mine[3], b.kv_indptr = mine[4];
  if (c->sink != 0) b.sinks = mine[5];
  assert_int_equal(ea_mem_alloc(context, (size_t)c->tokens * row_bytes, &out), EA_OK);
  assert_int_equal(ea_mem_alloc(context, (size_t)c->tokens * sizeof(float), &lse), EA_OK);
  b.out.data = out, b.lse = lse;
  assert_int_equal(ea_workspace_size(plan, &b, &bytes), EA_OK);
  assert_int_equal(ea_mem_alloc(context, bytes, &workspace), EA_OK);
  const ea_status status = ea_run(plan, &b, workspace, bytes, NULL);
  if (status) fail_msg("case %d, D %d/%d: %s", (int)(c - cases), dim, dim_v, ea_last_error());
  char *row = malloc((size_t)c->tokens * row_bytes);
  float sums[2];
  assert_non_null(row);
  assert_int_equal(ea_mem_download(context, row, out, (size_t)c->tokens * row_bytes, NULL), EA_OK);
  assert_int_equal(ea_mem_download(context, sums, lse, (size_t)c->tokens * sizeof(float), NULL), EA_OK);
  judge(c, dim, dim_v, row + (size_t)(c->tokens - 1) * row_bytes, sums[c->tokens - 1]);
  free(row);
  for (size_t i = 0; i < sizeof mine / sizeof mine[0]; i++) ea_mem_free(context, mine[i]);
  ea_mem_free(context, out);
  ea_mem_free(context, lse);
  ea_mem_free(context, workspace);
}

static ea_problem problem_of(const known *c, int32_t dim, int32_t dim_v) {
  ea_problem problem = EA_PROBLEM_INIT;
  problem.dtype = c->dtype;
  problem.num_q_heads = problem.num_kv_heads = 1;
  problem.head_dim = dim;
  problem.head_dim_v = dim_v;
  problem.softmax_scale = c->softmax_scale;
  problem.logit_cap = c->logit_cap;
  problem.shared_kv = is_shared(dim, dim_v);
  problem.has_sinks = c->sink != 0;
  problem.sinks_dtype = problem.has_sinks ? EA_F32 : EA_DTYPE_NONE;
  return problem;
}

int check_known_logits(ea_context *context, const ea_plan_options *options) {
  static const int32_t dims[][2] = {{1, 1},     {64, 64},   {96, 96},   {128, 128}, {192, 128},
                                    {192, 192}, {256, 256}, {512, 512}, {576, 512}};
  int count = 0;
  for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
    for (int i = 0; i < NUM_CASES; i++) {
      const ea_problem problem = problem_of(&cases[i], dims[d][0], dims[d][1]);
      ea_plan *plan;
      if (ea_plan_create(context, &problem, options, &plan) != EA_OK) continue; /* not of this family, or no f32 */
      run(context, plan, &cases[i], dims[d][0], dims[d][1]);
      ea_plan_destroy(plan);
      count++;
    }
  }
  return count;
}
