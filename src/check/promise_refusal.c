/* Promise 5: bad input is refused with a text that names the argument, what was found and
 * what is allowed, and nothing is written. A valid case is spoiled in one place at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/layout.h"
#include "check/promise.h"

/* Refusing takes no arithmetic: small cases do, as many as possible. */
void ea_aim_refusal(ea_gen_options *options) {
  if (options->max_work == EA_GEN_MAX_WORK) options->max_work = 100000;
}

typedef struct refusal {
  const ea_subject *subject;
  ea_case c;
  bool on_gpu;
  ea_rng rng;
  ea_verdict *verdict;
} refusal;

/* Whether a text says what was wrong, in the project's form: "name: found ..., allowed ...". */
static bool names_argument(const char *text, const char *name) {
  const size_t n = strlen(name);
  const bool begins = strncmp(text, name, n) == 0 && (text[n] == ':' || text[n] == '[');
  return begins && strstr(text, ": found ") && strstr(text, ", allowed ");
}

static void expect_refusal(const refusal *r, const char *spoiled, const char *call, ea_status status,
                           ea_status expected) {
  if (status == EA_OK) {
    ea_break(r->verdict, "%s spoiled: %s accepted it", spoiled, call);
  } else if (status != expected || !names_argument(ea_last_error(), spoiled)) {
    ea_break(r->verdict, "%s spoiled: %s says %s \"%s\", not %s that names it", spoiled, call, ea_status_name(status),
             ea_last_error(), ea_status_name(expected));
  }
}

/* ------------------------------------------------------------------------------------
 * Fields
 * ---------------------------------------------------------------------------------- */

typedef enum field_kind { BYTE, I32, I64, SIZE, F64, IS_NULL, OFF_BY_ONE, ONE_LESS } field_kind;

/* When spoiling a field spoils the call. */
typedef enum condition {
  ALWAYS,
  V_APART,       /* v is not inside k */
  SEQS,          /* B > 0 */
  TOKENS,        /* T > 0 */
  MANY_TOKENS,   /* T > 1 */
  NEW_READ,      /* k of the new tokens is read */
  NEW_V_READ,    /* and v */
  PREFIX_READ,   /* k_cache is read */
  PREFIX_V_READ, /* and v_cache */
  MASK,          /* a mask is read */
  SINKS,         /* sinks are read */
} condition;

typedef struct field {
  const char *name;
  size_t offset;
  field_kind kind;
  condition when;
  double value; /* of BYTE to F64 */
} field;

static int64_t prefix_tokens(const ea_case *c) {
  return c->batch.num_seqs > 0 ? c->batch.kv_indptr[c->batch.num_seqs] : 0;
}

static bool holds(const refusal *r, condition when) {
  const ea_problem *problem = &r->c.problem;
  const ea_batch *batch = &r->c.batch;
  const bool v_apart = !problem->shared_kv, tokens = batch->num_tokens > 0;
  const bool reads_prefix = prefix_tokens(&r->c) > 0 && !problem->skip_prefix;
  switch (when) {
  case ALWAYS:
    return true;
  case TOKENS:
    return tokens;
  case NEW_READ:
    return tokens && !problem->skip_extend;
  case NEW_V_READ:
    return tokens && !problem->skip_extend && v_apart;
  case MANY_TOKENS:
    return batch->num_tokens > 1;
  case SEQS:
    return batch->num_seqs > 0;
  case PREFIX_READ:
    return reads_prefix;
  case PREFIX_V_READ:
    return reads_prefix && v_apart;
  case V_APART:
    return v_apart;
  case MASK:
    return tokens && problem->has_custom_mask;
  case SINKS:
    return tokens && problem->has_sinks;
  }
  return false;
}

/* Spoils a field of a struct. False: its pointer cannot be spoiled this way. */
static bool spoil(const field *f, void *structure) {
  char *at = (char *)structure + f->offset;
  const int32_t i32 = (int32_t)(f->kind == I32 ? f->value : 0);
  const int64_t i64 = (int64_t)(f->kind == I64 ? f->value : 0);
  size_t size = (size_t)(f->kind == SIZE ? f->value : 0);
  const unsigned char byte = (unsigned char)(f->kind == BYTE ? f->value : 0);
  char *pointer = NULL;
  switch (f->kind) {
  case BYTE:
    memcpy(at, &byte, sizeof byte);
    return true;
  case I32:
    memcpy(at, &i32, sizeof i32);
    return true;
  case I64:
    memcpy(at, &i64, sizeof i64);
    return true;
  case SIZE:
    memcpy(at, &size, sizeof size);
    return true;
  case F64:
    memcpy(at, &f->value, sizeof f->value);
    return true;
  case IS_NULL:
    memcpy(at, &pointer, sizeof pointer);
    return true;
  case OFF_BY_ONE:
    memcpy(&pointer, at, sizeof pointer);
    if (!pointer) return false;
    pointer++;
    memcpy(at, &pointer, sizeof pointer);
    return true;
  case ONE_LESS:
    memcpy(&size, at, sizeof size);
    size--;
    memcpy(at, &size, sizeof size);
    return true;
  }
  return false;
}

#define AT(type, member) #member, offsetof(type, member)

static const field problem_fields[] = {
    {"problem.struct_size", offsetof(ea_problem, struct_size), SIZE, ALWAYS, 0},
    {"problem.struct_size", offsetof(ea_problem, struct_size), SIZE, ALWAYS, 1e9},
    {AT(ea_problem, dtype), I32, ALWAYS, EA_DTYPE_NONE},
    {AT(ea_problem, dtype), I32, ALWAYS, EA_I32},
    {AT(ea_problem, dtype), I32, ALWAYS, 99},
    {AT(ea_problem, cache_dtype), I32, ALWAYS, EA_I64},
    {AT(ea_problem, cache_dtype), I32, ALWAYS, -1},
    {AT(ea_problem, index_dtype), I32, ALWAYS, EA_F32},
    {AT(ea_problem, index_dtype), I32, ALWAYS, EA_DTYPE_NONE},
    {AT(ea_problem, mask_indptr_dtype), I32, ALWAYS, EA_BF16},
    {AT(ea_problem, sinks_dtype), I32, ALWAYS, EA_E4M3},
    {AT(ea_problem, num_q_heads), I32, ALWAYS, 0},
    {AT(ea_problem, num_q_heads), I32, ALWAYS, -4},
    {AT(ea_problem, num_kv_heads), I32, ALWAYS, 0},
    {AT(ea_problem, num_kv_heads), I32, ALWAYS, INT32_MIN},
    {AT(ea_problem, head_dim), I32, ALWAYS, 0},
    {AT(ea_problem, head_dim), I32, ALWAYS, EA_MAX_HEAD_DIM + 1},
    {AT(ea_problem, head_dim), I32, ALWAYS, INT32_MAX},
    {AT(ea_problem, head_dim_v), I32, ALWAYS, -1},
    {AT(ea_problem, head_dim_v), I32, ALWAYS, EA_MAX_HEAD_DIM + 1},
    {AT(ea_problem, page_size), I32, ALWAYS, 0},
    {AT(ea_problem, page_size), I32, ALWAYS, -16},
    {AT(ea_problem, shared_kv), BYTE, ALWAYS, 2},
    {AT(ea_problem, causal), BYTE, ALWAYS, 255},
    {AT(ea_problem, has_sinks), BYTE, ALWAYS, 2},
    {AT(ea_problem, has_custom_mask), BYTE, ALWAYS, 3},
    {AT(ea_problem, skip_prefix_custom_mask), BYTE, ALWAYS, 2},
    {AT(ea_problem, skip_prefix), BYTE, ALWAYS, 128},
    {AT(ea_problem, skip_extend), BYTE, ALWAYS, 2},
    {AT(ea_problem, window_left), I32, ALWAYS, -2},
    {AT(ea_problem, window_left), I32, ALWAYS, INT32_MIN},
    {AT(ea_problem, xai_temperature_len), I64, ALWAYS, 1},
    {AT(ea_problem, xai_temperature_len), I64, ALWAYS, -2},
    {AT(ea_problem, softmax_scale), F64, ALWAYS, (double)NAN},
    {AT(ea_problem, softmax_scale), F64, ALWAYS, (double)INFINITY},
    {AT(ea_problem, softmax_scale), F64, ALWAYS, -0.125},
    {AT(ea_problem, softmax_scale), F64, ALWAYS, 1e300},
    {AT(ea_problem, logit_cap), F64, ALWAYS, (double)NAN},
    {AT(ea_problem, logit_cap), F64, ALWAYS, -30},
    {AT(ea_problem, logit_cap), F64, ALWAYS, (double)INFINITY},
    {AT(ea_problem, k_scale), F64, ALWAYS, 0},
    {AT(ea_problem, k_scale), F64, ALWAYS, (double)NAN},
    {AT(ea_problem, k_scale), F64, ALWAYS, -(double)INFINITY},
    {AT(ea_problem, v_scale), F64, ALWAYS, 0},
    {AT(ea_problem, v_scale), F64, ALWAYS, -1},
    {AT(ea_problem, v_scale), F64, ALWAYS, 1e-300},
};

static const field option_fields[] = {
    {"options.struct_size", offsetof(ea_plan_options, struct_size), SIZE, ALWAYS, 1},
    {AT(ea_plan_options, family), I32, ALWAYS, 77},
    {AT(ea_plan_options, family), I32, ALWAYS, -1},
    {AT(ea_plan_options, stages), I32, ALWAYS, -1},
};

static const field batch_fields[] = {
    {"batch.struct_size", offsetof(ea_batch, struct_size), SIZE, ALWAYS, 16},
    {AT(ea_batch, num_seqs), I64, ALWAYS, -1},
    {AT(ea_batch, num_seqs), I64, ALWAYS, 0x1p62},
    {AT(ea_batch, num_tokens), I64, ALWAYS, -1},
    {AT(ea_batch, num_tokens), I64, ALWAYS, 0x1p62},
    {AT(ea_batch, num_kv_indices), I64, ALWAYS, -1},
    {AT(ea_batch, num_pages), I64, ALWAYS, -1},
    {AT(ea_batch, q.data), IS_NULL, TOKENS, 0},
    {AT(ea_batch, q.data), OFF_BY_ONE, ALWAYS, 0},
    {AT(ea_batch, q.token_stride), I64, ALWAYS, -1},
    {AT(ea_batch, q.head_stride), I64, ALWAYS, -0x1p62},
    {AT(ea_batch, q.token_stride), I64, MANY_TOKENS, 0x1p62},
    {AT(ea_batch, k.data), IS_NULL, NEW_READ, 0},
    {AT(ea_batch, k.data), OFF_BY_ONE, ALWAYS, 0},
    {AT(ea_batch, k.token_stride), I64, ALWAYS, -1},
    {AT(ea_batch, k.head_stride), I64, ALWAYS, -1},
    {AT(ea_batch, k.token_stride), I64, MANY_TOKENS, 0x1p62},
    {AT(ea_batch, v.data), IS_NULL, NEW_V_READ, 0},
    {AT(ea_batch, v.data), OFF_BY_ONE, V_APART, 0},
    {AT(ea_batch, v.token_stride), I64, V_APART, -8},
    {AT(ea_batch, v.head_stride), I64, V_APART, -1},
    {AT(ea_batch, k_cache.data), IS_NULL, PREFIX_READ, 0},
    {AT(ea_batch, k_cache.page_stride), I64, ALWAYS, -1},
    {AT(ea_batch, k_cache.row_stride), I64, ALWAYS, -1},
    {AT(ea_batch, k_cache.head_stride), I64, ALWAYS, -1},
    {AT(ea_batch, v_cache.data), IS_NULL, PREFIX_V_READ, 0},
    {AT(ea_batch, v_cache.page_stride), I64, V_APART, -1},
    {AT(ea_batch, v_cache.row_stride), I64, V_APART, -1},
    {AT(ea_batch, v_cache.head_stride), I64, V_APART, -1},
    {AT(ea_batch, out.data), IS_NULL, TOKENS, 0},
    {AT(ea_batch, out.data), OFF_BY_ONE, ALWAYS, 0},
    {AT(ea_batch, out.token_stride), I64, ALWAYS, -1},
    {AT(ea_batch, out.head_stride), I64, ALWAYS, -1},
    {AT(ea_batch, out.token_stride), I64, MANY_TOKENS, 0x1p62},
    {AT(ea_batch, lse), OFF_BY_ONE, ALWAYS, 0},
    {AT(ea_batch, lse_token_stride), I64, ALWAYS, -1},
    {AT(ea_batch, lse_head_stride), I64, ALWAYS, -1},
    {AT(ea_batch, qo_indptr), IS_NULL, SEQS, 0},
    {AT(ea_batch, qo_indptr), OFF_BY_ONE, ALWAYS, 0},
    {AT(ea_batch, kv_indptr), IS_NULL, SEQS, 0},
    {AT(ea_batch, kv_indptr), OFF_BY_ONE, ALWAYS, 0},
    {AT(ea_batch, kv_indices), IS_NULL, PREFIX_READ, 0},
    {AT(ea_batch, kv_indices), OFF_BY_ONE, ALWAYS, 0},
    {AT(ea_batch, custom_mask), IS_NULL, MASK, 0},
    {AT(ea_batch, custom_mask_bytes), I64, MASK, -1},
    {AT(ea_batch, mask_indptr), IS_NULL, MASK, 0},
    {AT(ea_batch, mask_indptr), OFF_BY_ONE, MASK, 0},
    {AT(ea_batch, window_kv_offsets), OFF_BY_ONE, MASK, 0},
    {AT(ea_batch, sinks), IS_NULL, SINKS, 0},
    {AT(ea_batch, sinks), OFF_BY_ONE, SINKS, 0},
};

static const field workspace_fields[] = {
    {AT(ea_runner_args, workspace), IS_NULL, ALWAYS, 0},
    {AT(ea_runner_args, workspace), OFF_BY_ONE, ALWAYS, 0},
    {AT(ea_runner_args, workspace_bytes), SIZE, ALWAYS, 0},
    {AT(ea_runner_args, workspace_bytes), ONE_LESS, ALWAYS, 0},
};

enum {
  NUM_PROBLEM_FIELDS = sizeof problem_fields / sizeof problem_fields[0],
  NUM_OPTION_FIELDS = sizeof option_fields / sizeof option_fields[0],
  NUM_BATCH_FIELDS = sizeof batch_fields / sizeof batch_fields[0],
  NUM_WORKSPACE_FIELDS = sizeof workspace_fields / sizeof workspace_fields[0],
};

/* ------------------------------------------------------------------------------------
 * Plans
 * ---------------------------------------------------------------------------------- */

static void expect_no_plan(const refusal *r, const char *spoiled, const ea_problem *problem,
                           const ea_plan_options *options) {
  ea_plan *plan = NULL;
  const ea_status status = ea_plan_create(r->subject->context, problem, options, &plan);
  expect_refusal(r, spoiled, "ea_plan_create", status, EA_ERR_INVALID);
  ea_plan_destroy(plan);
}

/* Two 16-bit types, heads that do not divide, values wider than the keys that they are in. */
static void check_combinations(const refusal *r) {
  ea_problem problem = r->c.problem;
  problem.cache_dtype = problem.dtype == EA_F16 ? EA_BF16 : EA_F16;
  expect_no_plan(r, "cache_dtype", &problem, &r->subject->plan);
  problem = r->c.problem;
  problem.num_q_heads = 7;
  problem.num_kv_heads = 3;
  expect_no_plan(r, "num_q_heads", &problem, &r->subject->plan);
  problem = r->c.problem;
  problem.shared_kv = true;
  problem.head_dim_v = problem.head_dim + 1;
  expect_no_plan(r, "head_dim_v", &problem, &r->subject->plan);
}

static void check_plans(const refusal *r) {
  for (int f = 0; f < NUM_PROBLEM_FIELDS; f++) {
    ea_problem problem = r->c.problem;
    if (holds(r, problem_fields[f].when) && spoil(&problem_fields[f], &problem)) {
      expect_no_plan(r, problem_fields[f].name, &problem, &r->subject->plan);
    }
  }
  for (int f = 0; f < NUM_OPTION_FIELDS; f++) {
    ea_plan_options options = r->subject->plan;
    if (spoil(&option_fields[f], &options)) expect_no_plan(r, option_fields[f].name, &r->c.problem, &options);
  }
  check_combinations(r);
}

/* ------------------------------------------------------------------------------------
 * Batches
 * ---------------------------------------------------------------------------------- */

/* The runner's arguments are spoiled: both calls must refuse them, and nothing be written. */
static void expect_no_run(const refusal *r, ea_runner *runner, const char *spoiled, void *stream) {
  const ea_runner_args *args = ea_runner_arguments(runner);
  const ea_plan *plan = ea_runner_plan(runner);
  const ea_status run = ea_run(plan, &args->batch, args->workspace, args->workspace_bytes, stream);
  expect_refusal(r, spoiled, "ea_run", run, EA_ERR_INVALID);
  const ea_status validate = ea_validate(plan, &args->batch, args->workspace, args->workspace_bytes, stream);
  expect_refusal(r, spoiled, "ea_validate", validate, EA_ERR_INVALID);
  if (ea_runner_untouched(runner, NULL)) ea_break(r->verdict, "%s spoiled: %s", spoiled, ea_last_error());
}

static void check_batch_fields(const refusal *r, ea_runner *runner) {
  ea_runner_args *args = ea_runner_arguments(runner);
  const ea_runner_args valid = *args;
  for (int f = 0; f < NUM_BATCH_FIELDS; f++) {
    if (holds(r, batch_fields[f].when) && spoil(&batch_fields[f], &args->batch)) {
      expect_no_run(r, runner, batch_fields[f].name, NULL);
    }
    *args = valid;
  }
  for (int f = 0; f < NUM_WORKSPACE_FIELDS && valid.workspace_bytes > 0 && valid.batch.num_tokens > 0; f++) {
    if (spoil(&workspace_fields[f], args)) expect_no_run(r, runner, workspace_fields[f].name, NULL);
    *args = valid;
  }
}

/* Fields that contradict each other, or the problem. */
static void check_contradictions(const refusal *r, ea_runner *runner) {
  ea_runner_args *args = ea_runner_arguments(runner);
  const ea_runner_args valid = *args;
  const ea_problem *problem = &r->c.problem;
  const int64_t num_tokens = valid.batch.num_tokens;
  const int32_t width = problem->head_dim_v ? problem->head_dim_v : problem->head_dim;

  if (num_tokens > 0) {
    args->batch.num_seqs = 0;
    expect_no_run(r, runner, "num_tokens", NULL);
    *args = valid;
  }
  if (num_tokens > 1 && width > 1) { /* rows of out that overlap */
    args->batch.out.token_stride = 1;
    args->batch.out.head_stride = width;
    expect_no_run(r, runner, "out", NULL);
    *args = valid;
  }
  if (num_tokens > 1 && problem->num_q_heads > 1) {
    args->batch.lse_token_stride = args->batch.lse_head_stride = 1;
    expect_no_run(r, runner, "lse", NULL);
    *args = valid;
  }
  if (!problem->has_custom_mask) {
    args->batch.custom_mask = valid.workspace ? valid.workspace : valid.batch.q.data;
    expect_no_run(r, runner, "custom_mask", NULL);
    *args = valid;
  }
  if (!problem->has_sinks) {
    args->batch.sinks = valid.batch.q.data;
    expect_no_run(r, runner, "sinks", NULL);
    *args = valid;
  }
  if (!r->on_gpu) {
    int not_a_stream;
    expect_no_run(r, runner, "stream", &not_a_stream);
  }
}

/* ------------------------------------------------------------------------------------
 * Overlaps
 * ---------------------------------------------------------------------------------- */

/* An input as [pages, rows, heads, width]; strides in elements, 0 where packed. */
typedef struct input {
  const char *name;
  const void *data;
  ea_shape shape;
  ea_strides by;
  size_t element_bytes;
} input;

enum { MAX_INPUTS = 12 };

static void add_input(input *inputs, int *count, const char *name, const void *data, ea_shape shape, ea_strides by,
                      ea_dtype dtype) {
  if (!data || shape.pages == 0 || shape.rows == 0) return;
  if (by.head == 0) by.head = shape.width;
  if (by.row == 0) by.row = shape.heads * by.head;
  if (by.page == 0) by.page = shape.rows * by.row;
  inputs[(*count)++] = (input){name, data, shape, by, ea_dtype_size(dtype)};
}

static void add_tensor(input *inputs, int *count, const char *name, const ea_tensor *t, ea_shape shape,
                       ea_dtype dtype) {
  add_input(inputs, count, name, t->data, shape, (ea_strides){0, t->token_stride, t->head_stride}, dtype);
}

static void add_cache(input *inputs, int *count, const char *name, const ea_cache *c, ea_shape shape, ea_dtype dtype) {
  add_input(inputs, count, name, c->data, shape, (ea_strides){c->page_stride, c->row_stride, c->head_stride}, dtype);
}

static void add_array(input *inputs, int *count, const char *name, const void *data, int64_t elements, ea_dtype dtype) {
  add_input(inputs, count, name, data, (ea_shape){1, elements, 1, 1}, (ea_strides){0, 0, 0}, dtype);
}

/* What the call holds, where it lies. EA_E4M3 stands for a byte. */
static int list_inputs(const refusal *r, const ea_batch *batch, input *inputs) {
  const ea_problem *p = &r->c.problem;
  const ea_dtype cache = p->cache_dtype ? p->cache_dtype : p->dtype;
  const int32_t width_v = p->head_dim_v ? p->head_dim_v : p->head_dim;
  const ea_shape q = {1, batch->num_tokens, p->num_q_heads, p->head_dim};
  const ea_shape k = {1, batch->num_tokens, p->num_kv_heads, p->head_dim};
  const ea_shape v = {1, batch->num_tokens, p->num_kv_heads, width_v};
  const ea_shape k_cache = {batch->num_pages, p->page_size, p->num_kv_heads, p->head_dim};
  const ea_shape v_cache = {batch->num_pages, p->page_size, p->num_kv_heads, width_v};
  int count = 0;
  add_tensor(inputs, &count, "q", &batch->q, q, p->dtype);
  add_tensor(inputs, &count, "k", &batch->k, k, p->dtype);
  add_cache(inputs, &count, "k_cache", &batch->k_cache, k_cache, cache);
  if (holds(r, V_APART)) {
    add_tensor(inputs, &count, "v", &batch->v, v, p->dtype);
    add_cache(inputs, &count, "v_cache", &batch->v_cache, v_cache, cache);
  }
  add_array(inputs, &count, "qo_indptr", batch->qo_indptr, batch->num_seqs + 1, EA_I32);
  add_array(inputs, &count, "kv_indptr", batch->kv_indptr, batch->num_seqs + 1, EA_I32);
  add_array(inputs, &count, "kv_indices", batch->kv_indices, batch->num_kv_indices, p->index_dtype);
  if (holds(r, SINKS)) {
    add_array(inputs, &count, "sinks", batch->sinks, p->num_q_heads, p->sinks_dtype ? p->sinks_dtype : p->dtype);
  }
  if (!holds(r, MASK)) return count;
  add_array(inputs, &count, "custom_mask", batch->custom_mask, batch->custom_mask_bytes, EA_E4M3);
  add_array(inputs, &count, "mask_indptr", batch->mask_indptr, batch->num_seqs, p->mask_indptr_dtype);
  if (p->window_left > 0) {
    add_array(inputs, &count, "window_kv_offsets", batch->window_kv_offsets, batch->num_seqs, EA_I32);
  }
  return count;
}

/* Below n, which may be larger than the generator's 32 bits. */
static int64_t draw_below(ea_rng *rng, int64_t n) {
  return ea_rng_range(rng, 0, (int32_t)(n < INT32_MAX ? n : INT32_MAX) - 1);
}

static uintptr_t draw_element(ea_rng *rng, const input *in) {
  const int64_t page = draw_below(rng, in->shape.pages);
  const int64_t row = draw_below(rng, in->shape.rows);
  const int32_t head = (int32_t)draw_below(rng, in->shape.heads);
  const int64_t at = ea_element(in->by, page, row, head) + draw_below(rng, in->shape.width);
  return (uintptr_t)in->data + (size_t)at * in->element_bytes;
}

/* Where an array of so many packed elements has to begin for one of them to lie on an address. */
static void *draw_begin(ea_rng *rng, uintptr_t on, int64_t elements, size_t element_bytes) {
  const uintptr_t begin = on - (uintptr_t)draw_below(rng, elements) * element_bytes;
  return (void *)(begin / element_bytes * element_bytes);
}

/* out, lse and the workspace in turn on some element of every input; lse and the workspace on out. */
static void check_overlaps(refusal *r, ea_runner *runner) {
  ea_runner_args *args = ea_runner_arguments(runner);
  const ea_runner_args valid = *args;
  const ea_problem *p = &r->c.problem;
  const int64_t rows = valid.batch.num_tokens * p->num_q_heads;
  const int32_t width = p->head_dim_v ? p->head_dim_v : p->head_dim;
  if (!holds(r, TOKENS)) return;
  input inputs[MAX_INPUTS + 1];
  int count = list_inputs(r, &valid.batch, inputs);
  add_array(inputs, &count, "out", valid.batch.out.data, rows * width, p->dtype);
  for (int i = 0; i < count; i++) {
    const uintptr_t on = draw_element(&r->rng, &inputs[i]);
    if (inputs[i].data != valid.batch.out.data) {
      args->batch.out.data = draw_begin(&r->rng, on, rows * width, ea_dtype_size(p->dtype));
      expect_no_run(r, runner, "out", NULL);
      *args = valid;
    }
    args->batch.lse = draw_begin(&r->rng, on, rows, sizeof(float));
    expect_no_run(r, runner, "lse", NULL);
    *args = valid;
    if (valid.workspace_bytes < 256) continue; /* too small to reach from an aligned address to any other */
    args->workspace = (void *)(on / 256 * 256);
    expect_no_run(r, runner, "workspace", NULL);
    *args = valid;
  }
}

static void check_batch(refusal *r) {
  ea_runner *runner;
  ea_status status = ea_runner_create(r->subject->context, &r->subject->plan, &r->c, EA_OUT_PACKED, &runner);
  if (!status) status = ea_runner_reset(runner, NULL);
  if (status) {
    ea_judge_failure(r->verdict, "valid case", status);
    return;
  }
  check_batch_fields(r, runner);
  check_contradictions(r, runner);
  check_overlaps(r, runner);
  ea_runner_destroy(runner);
}

/* ------------------------------------------------------------------------------------
 * Arrays
 * ---------------------------------------------------------------------------------- */

/* A GPU's ea_run reads no array on the device: it sees what is wrong with the host's copies of
 * the two indptr only, ea_validate sees everything. */
typedef enum seen_by { BY_BOTH, BY_VALIDATE } seen_by;

/* The case's arrays are spoiled. Runs on a runner of its own, which takes them as they are. */
static void expect_arrays_refused(const refusal *r, const char *spoiled, seen_by seen) {
  ea_runner *runner;
  ea_status status = ea_runner_create(r->subject->context, &r->subject->plan, &r->c, EA_OUT_PACKED, &runner);
  if (!status) status = ea_runner_reset(runner, NULL);
  if (status) {
    ea_judge_failure(r->verdict, spoiled, status);
    return;
  }
  const ea_plan *plan = ea_runner_plan(runner);
  ea_runner_args *args = ea_runner_arguments(runner);
  if (seen == BY_BOTH || !r->on_gpu) {
    const ea_status run = ea_runner_enqueue(runner, NULL);
    expect_refusal(r, spoiled, "ea_run", run, EA_ERR_INVALID);
  }
  args->batch.qo_indptr_host = args->batch.kv_indptr_host = NULL;
  const ea_status validate = ea_validate(plan, &args->batch, args->workspace, args->workspace_bytes, NULL);
  expect_refusal(r, spoiled, "ea_validate", validate, EA_ERR_INVALID);
  if (ea_runner_untouched(runner, NULL)) ea_break(r->verdict, "%s spoiled: %s", spoiled, ea_last_error());
  ea_runner_destroy(runner);
}

static void spoil_index(const refusal *r, const char *name, const void *array, ea_dtype dtype, int64_t at,
                        int64_t value, seen_by seen) {
  if (dtype == EA_I32 && (value > INT32_MAX || value < INT32_MIN)) return;
  char *entry = (char *)(uintptr_t)array + (size_t)at * ea_dtype_size(dtype); /* the case's own memory */
  int64_t saved = 0;
  const int32_t narrow = (int32_t)value;
  memcpy(&saved, entry, ea_dtype_size(dtype));
  memcpy(entry, dtype == EA_I32 ? (const void *)&narrow : (const void *)&value, ea_dtype_size(dtype));
  expect_arrays_refused(r, name, seen);
  memcpy(entry, &saved, ea_dtype_size(dtype));
}

static void check_indptr(refusal *r) {
  const ea_batch *batch = &r->c.batch;
  const int64_t last = batch->num_seqs;
  if (last == 0) return;
  const int64_t any = ea_rng_range(&r->rng, 1, (int32_t)last);
  spoil_index(r, "qo_indptr", batch->qo_indptr, EA_I32, 0, 1, BY_BOTH);
  spoil_index(r, "qo_indptr", batch->qo_indptr, EA_I32, any, -1, BY_BOTH);
  spoil_index(r, "qo_indptr", batch->qo_indptr, EA_I32, any, INT32_MAX, BY_BOTH);
  spoil_index(r, "qo_indptr", batch->qo_indptr, EA_I32, last, batch->num_tokens + 1, BY_BOTH);
  spoil_index(r, "qo_indptr", batch->qo_indptr, EA_I32, last, batch->num_tokens - 1, BY_BOTH);
  spoil_index(r, "kv_indptr", batch->kv_indptr, EA_I32, 0, 1, BY_BOTH);
  spoil_index(r, "kv_indptr", batch->kv_indptr, EA_I32, any, INT32_MIN, BY_BOTH);
  spoil_index(r, "kv_indptr", batch->kv_indptr, EA_I32, last, batch->num_kv_indices + 1, BY_BOTH);
}

/* More keys than positions have room for. Nothing is read at that length. */
static void check_too_long(refusal *r) {
  ea_batch *batch = &r->c.batch;
  if (batch->num_seqs == 0) return;
  const int64_t num_kv_indices = batch->num_kv_indices;
  batch->num_kv_indices = INT32_MAX;
  spoil_index(r, "kv_indptr", batch->kv_indptr, EA_I32, batch->num_seqs, INT32_MAX, BY_BOTH);
  batch->num_kv_indices = num_kv_indices;
}

static void check_slots(refusal *r) {
  ea_batch *batch = &r->c.batch;
  const ea_dtype dtype = r->c.problem.index_dtype;
  const int64_t num_slots = batch->num_pages * r->c.problem.page_size;
  if (!holds(r, PREFIX_READ)) return;
  const int64_t any = ea_rng_range(&r->rng, 0, (int32_t)prefix_tokens(&r->c) - 1);
  spoil_index(r, "kv_indices", batch->kv_indices, dtype, any, -1, BY_VALIDATE);
  spoil_index(r, "kv_indices", batch->kv_indices, dtype, any, num_slots, BY_VALIDATE);
  spoil_index(r, "kv_indices", batch->kv_indices, dtype, any, INT64_MAX, BY_VALIDATE);
  spoil_index(r, "kv_indices", batch->kv_indices, dtype, any, INT32_MIN, BY_VALIDATE);
  const int64_t num_pages = batch->num_pages;
  batch->num_pages = 0;
  expect_arrays_refused(r, "kv_indices", BY_VALIDATE);
  batch->num_pages = num_pages;
  const int64_t num_kv_indices = batch->num_kv_indices;
  batch->num_kv_indices = prefix_tokens(&r->c) - 1;
  expect_arrays_refused(r, "kv_indptr", BY_BOTH);
  batch->num_kv_indices = num_kv_indices;
}

/* One byte less than the masks reach to; -1 where some mask begins behind that, which is then
 * the one that is named. */
static int64_t too_few_mask_bytes(const ea_case *c) {
  const ea_batch *batch = &c->batch;
  int64_t end = 0, last_start = 0;
  for (int64_t b = 0; b < batch->num_seqs; b++) {
    const int64_t extend = batch->qo_indptr[b + 1] - batch->qo_indptr[b];
    const int64_t prefix = batch->kv_indptr[b + 1] - batch->kv_indptr[b];
    const bool has_offset = batch->window_kv_offsets && c->problem.window_left > 0;
    const int64_t offset = has_offset ? batch->window_kv_offsets[b] : 0;
    const int64_t start = c->problem.mask_indptr_dtype == EA_I64 ? ((const int64_t *)batch->mask_indptr)[b]
                                                                 : ((const int32_t *)batch->mask_indptr)[b];
    const int64_t reaches = start + extend * (offset + prefix + extend);
    if (reaches > end) end = reaches;
    if (start > last_start) last_start = start;
  }
  return last_start < end ? end - 1 : -1;
}

static void check_masks(refusal *r) {
  ea_batch *batch = &r->c.batch;
  const ea_dtype dtype = r->c.problem.mask_indptr_dtype;
  if (!holds(r, MASK)) return;
  const int64_t any = ea_rng_range(&r->rng, 0, (int32_t)batch->num_seqs - 1);
  spoil_index(r, "mask_indptr", batch->mask_indptr, dtype, any, -1, BY_VALIDATE);
  spoil_index(r, "mask_indptr", batch->mask_indptr, dtype, any, batch->custom_mask_bytes + 1, BY_VALIDATE);
  spoil_index(r, "mask_indptr", batch->mask_indptr, dtype, any, INT64_MAX, BY_VALIDATE);
  if (batch->window_kv_offsets && r->c.problem.window_left > 0) {
    spoil_index(r, "window_kv_offsets", batch->window_kv_offsets, EA_I32, any, -1, BY_VALIDATE);
    spoil_index(r, "window_kv_offsets", batch->window_kv_offsets, EA_I32, any, INT32_MIN, BY_VALIDATE);
  }
  const int64_t bytes = batch->custom_mask_bytes;
  batch->custom_mask_bytes = too_few_mask_bytes(&r->c);
  expect_arrays_refused(r, "custom_mask_bytes", BY_VALIDATE);
  batch->custom_mask_bytes = bytes;
}

void ea_check_refusal(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict) {
  refusal r = {.subject = subject, .rng = ea_promise_rng(spec, 5), .verdict = verdict};
  r.on_gpu = subject->info.device == EA_DEVICE_CUDA;
  ea_result result; /* without anything spoiled the case is accepted */
  if (!ea_run_spec(subject->context, &subject->plan, spec, "valid case", &result, verdict)) return;
  ea_result_free(&result);
  const ea_status status = ea_spec_build(spec, &r.c);
  if (status) {
    ea_judge_failure(verdict, "valid case", status);
    return;
  }
  check_plans(&r);
  check_batch(&r);
  check_indptr(&r);
  check_too_long(&r);
  check_masks(&r);
  check_slots(&r);
  ea_case_free(&r.c);
}
