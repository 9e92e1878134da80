/* Running a case with everything around it watched. */
#include "check/runner.h"

#include <stdlib.h>
#include <string.h>

#include "check/layout.h"
#include "common/error.h"
#include "cuda/memory.h"

/* Keeps the alignment that the library asks of a workspace. */
#define GUARD_BYTES 256

/* Memory on the context's device with a guard on both sides, and its image on the host. */
typedef struct watched {
  void *device;
  unsigned char *expected; /* what it held when it was filled */
  unsigned char *found;    /* what it holds now */
  size_t bytes;            /* of all three */
} watched;

typedef struct output {
  watched memory;
  ea_shape shape;
  ea_strides by;
  size_t element_bytes;
  int64_t first; /* element at which the view begins */
} output;

struct ea_runner {
  ea_context *context;
  const ea_case *c;
  ea_plan *plan;
  bool on_host;
  void *inputs[EA_CASE_MAX_STORAGES];         /* the case's storages on the device; on a host the storages themselves */
  unsigned char *saved[EA_CASE_MAX_STORAGES]; /* what they held */
  output out, lse;
  bool has_lse;
  watched workspace;
  ea_runner_args args;
};

ea_out_layout ea_out_layout_of(const ea_spec *spec) {
  return (ea_out_layout){spec->out_layout, spec->lse_layout, spec->misalign, spec->layout_seed, false};
}

void ea_result_free(ea_result *result) {
  free(result->out);
  free(result->lse);
  *result = (ea_result){0};
}

size_t ea_result_row_bytes(const ea_result *result) {
  return (size_t)result->dim * ea_dtype_size(result->dtype);
}

const void *ea_result_row(const ea_result *result, int64_t token, int32_t head) {
  return (const char *)result->out + (size_t)(token * result->heads + head) * ea_result_row_bytes(result);
}

static ea_status out_of_memory(size_t bytes) {
  return ea_fail(EA_ERR_OUT_OF_MEMORY, "runner: found no memory for %zu bytes", bytes);
}

/* ------------------------------------------------------------------------------------
 * Watched memory
 * ---------------------------------------------------------------------------------- */

/* Every element of two or four bytes is a signalling NaN, negative, of a payload that no
 * arithmetic makes: a row that holds it was not written, and reading it shows. */
static void fill_pattern(unsigned char *bytes, size_t n, size_t element_bytes) {
  static const unsigned char of_two[] = {0x95, 0xff}, of_four[] = {0xa5, 0xa5, 0x95, 0xff};
  const unsigned char *pattern = element_bytes == 2 ? of_two : of_four;
  for (size_t i = 0; i < n; i++) bytes[i] = pattern[i % element_bytes];
}

static ea_status watched_create(ea_context *context, size_t bytes, size_t element_bytes, watched *w) {
  w->bytes = bytes + 2 * (size_t)GUARD_BYTES;
  w->expected = malloc(w->bytes);
  w->found = malloc(w->bytes);
  if (!w->expected || !w->found) return out_of_memory(w->bytes);
  fill_pattern(w->expected, w->bytes, element_bytes);
  return ea_mem_alloc(context, w->bytes, &w->device);
}

static void watched_destroy(ea_context *context, watched *w) {
  ea_mem_free(context, w->device);
  free(w->expected);
  free(w->found);
}

static ea_status watched_reset(ea_context *context, watched *w, void *stream) {
  return w->device ? ea_mem_upload(context, w->device, w->expected, w->bytes, stream) : EA_OK;
}

static ea_status watched_fetch(ea_context *context, watched *w, void *stream) {
  return w->device ? ea_mem_download(context, w->found, w->device, w->bytes, stream) : EA_OK;
}

/* First byte of [begin, end) that changed, or end. */
static size_t first_change(const watched *w, size_t begin, size_t end) {
  while (begin < end && w->found[begin] == w->expected[begin]) begin++;
  return begin;
}

static ea_status check_unchanged(const char *name, const watched *w, size_t begin, size_t end) {
  const size_t at = first_change(w, begin, end);
  if (at == end) return EA_OK;
  return ea_fail(EA_ERR_INTERNAL, "%s: found byte %lld written (of %zu), allowed only its rows", name,
                 (long long)at - GUARD_BYTES, w->bytes - 2 * (size_t)GUARD_BYTES);
}

/* ------------------------------------------------------------------------------------
 * Outputs
 * ---------------------------------------------------------------------------------- */

static ea_status output_create(ea_runner *runner, ea_layout layout, ea_shape shape, size_t element_bytes,
                               const ea_out_layout *how, output *out) {
  ea_rng rng = ea_rng_of(ea_mix3(how->layout_seed, UINT64_C(0x6f7574), element_bytes));
  out->shape = shape;
  out->by = ea_lay_out(layout, &rng, shape);
  out->element_bytes = element_bytes;
  out->first = GUARD_BYTES / (int64_t)element_bytes + how->misalign;
  const int64_t elements = how->misalign + ea_extent(shape, out->by);
  return watched_create(runner->context, (size_t)elements * element_bytes, element_bytes, &out->memory);
}

static void *output_data(const output *out) {
  return (char *)out->memory.device + (size_t)out->first * out->element_bytes;
}

/* Takes one row out of what was fetched, checks that all of it was written, and puts the
 * pattern in its place, so that what is left must be pattern everywhere. */
static ea_status take_row(const char *name, output *out, int64_t token, int32_t head, char *to) {
  const size_t width_bytes = (size_t)out->shape.width * out->element_bytes;
  const size_t at = (size_t)(out->first + ea_element(out->by, 0, token, head)) * out->element_bytes;
  unsigned char *found = out->memory.found + at;
  const unsigned char *pattern = out->memory.expected + at;
  memcpy(to, found, width_bytes);
  for (size_t i = 0; i < width_bytes; i += out->element_bytes) {
    if (memcmp(found + i, pattern + i, out->element_bytes) == 0) {
      return ea_fail(EA_ERR_INTERNAL, "%s: found element %zu of row (token %lld, head %d) not written", name,
                     i / out->element_bytes, (long long)token, head);
    }
  }
  memcpy(found, pattern, width_bytes);
  return EA_OK;
}

static ea_status take_output(const char *name, output *out, char *to) {
  const size_t width_bytes = (size_t)out->shape.width * out->element_bytes;
  for (int64_t t = 0; t < out->shape.rows; t++) {
    for (int32_t h = 0; h < out->shape.heads; h++) {
      const ea_status status = take_row(name, out, t, h, to);
      if (status) return status;
      to += width_bytes;
    }
  }
  return check_unchanged(name, &out->memory, 0, out->memory.bytes);
}

/* ------------------------------------------------------------------------------------
 * Creating and destroying
 * ---------------------------------------------------------------------------------- */

static ea_status place_inputs(ea_runner *runner) {
  const ea_case *c = runner->c;
  for (size_t i = 0; i < c->num_storages; i++) {
    const ea_storage *storage = &c->storages[i];
    runner->saved[i] = malloc(storage->bytes + 1);
    if (!runner->saved[i]) return out_of_memory(storage->bytes);
    memcpy(runner->saved[i], storage->data, storage->bytes);
    runner->inputs[i] = storage->data;
    if (runner->on_host) continue;
    ea_status status = ea_mem_alloc(runner->context, storage->bytes, &runner->inputs[i]);
    if (!status) status = ea_mem_upload(runner->context, runner->inputs[i], storage->data, storage->bytes, NULL);
    if (status) return status;
  }
  runner->args.batch = runner->on_host ? c->batch : ea_case_rebase(c, runner->inputs);
  return EA_OK;
}

static ea_status place_outputs(ea_runner *runner, const ea_out_layout *layout) {
  const ea_problem *problem = &runner->c->problem;
  ea_batch *batch = &runner->args.batch;
  ea_shape shape = {1, batch->num_tokens, problem->num_q_heads, problem->head_dim_v};
  if (shape.width == 0) shape.width = problem->head_dim;
  ea_status status = output_create(runner, layout->out, shape, ea_dtype_size(problem->dtype), layout, &runner->out);
  if (status) return status;
  batch->out = ea_tensor_of(layout->out, output_data(&runner->out), runner->out.by);
  runner->has_lse = !layout->without_lse;
  if (!runner->has_lse) return EA_OK;

  shape.width = 1;
  status = output_create(runner, layout->lse, shape, sizeof(float), layout, &runner->lse);
  if (status) return status;
  const ea_tensor lse = ea_tensor_of(layout->lse, output_data(&runner->lse), runner->lse.by);
  batch->lse = lse.data;
  batch->lse_token_stride = lse.token_stride;
  batch->lse_head_stride = lse.head_stride;
  return EA_OK;
}

static ea_status place_workspace(ea_runner *runner) {
  ea_runner_args *args = &runner->args;
  ea_status status = ea_workspace_size(runner->plan, &args->batch, &args->workspace_bytes);
  if (!status) status = watched_create(runner->context, args->workspace_bytes, sizeof(float), &runner->workspace);
  if (!status) args->workspace = (char *)runner->workspace.device + GUARD_BYTES;
  return status;
}

static ea_status prepare(ea_runner *runner, const ea_plan_options *options, const ea_out_layout *layout) {
  ea_device_info info = EA_DEVICE_INFO_INIT;
  ea_status status = ea_context_info(runner->context, &info);
  runner->on_host = info.device == EA_DEVICE_CPU;
  if (!status) status = ea_plan_create(runner->context, &runner->c->problem, options, &runner->plan);
  if (!status) status = place_inputs(runner);
  if (!status) status = place_outputs(runner, layout);
  if (!status) status = place_workspace(runner);
  return status;
}

ea_status ea_runner_create(ea_context *context, const ea_plan_options *options, const ea_case *c, ea_out_layout layout,
                           ea_runner **runner) {
  *runner = NULL;
  ea_runner *created = calloc(1, sizeof *created);
  if (!created) return out_of_memory(sizeof *created);
  created->context = context;
  created->c = c;
  const ea_status status = prepare(created, options, &layout);
  if (status) {
    ea_runner_destroy(created);
    return status;
  }
  *runner = created;
  return EA_OK;
}

void ea_runner_destroy(ea_runner *runner) {
  if (!runner) return;
  watched_destroy(runner->context, &runner->workspace);
  watched_destroy(runner->context, &runner->lse.memory);
  watched_destroy(runner->context, &runner->out.memory);
  for (size_t i = 0; i < runner->c->num_storages; i++) {
    if (!runner->on_host) ea_mem_free(runner->context, runner->inputs[i]);
    free(runner->saved[i]);
  }
  ea_plan_destroy(runner->plan);
  free(runner);
}

const ea_plan *ea_runner_plan(const ea_runner *runner) {
  return runner->plan;
}

ea_runner_args *ea_runner_arguments(ea_runner *runner) {
  return &runner->args;
}

/* ------------------------------------------------------------------------------------
 * Running
 * ---------------------------------------------------------------------------------- */

ea_status ea_runner_reset(ea_runner *runner, void *stream) {
  ea_status status = watched_reset(runner->context, &runner->out.memory, stream);
  if (!status) status = watched_reset(runner->context, &runner->lse.memory, stream);
  if (!status) status = watched_reset(runner->context, &runner->workspace, stream);
  return status;
}

ea_status ea_runner_enqueue(ea_runner *runner, void *stream) {
  const ea_runner_args *args = &runner->args;
  return ea_run(runner->plan, &args->batch, args->workspace, args->workspace_bytes, stream);
}

static ea_status fetch(ea_runner *runner, void *stream) {
  ea_status status = watched_fetch(runner->context, &runner->out.memory, stream);
  if (!status) status = watched_fetch(runner->context, &runner->lse.memory, stream);
  if (!status) status = watched_fetch(runner->context, &runner->workspace, stream);
  return status;
}

static ea_status check_input(const ea_runner *runner, size_t i, void *stream) {
  const ea_storage *storage = &runner->c->storages[i];
  const void *found = runner->inputs[i];
  void *fetched = NULL;
  if (!runner->on_host) {
    fetched = malloc(storage->bytes + 1);
    if (!fetched) return out_of_memory(storage->bytes);
    const ea_status status = ea_mem_download(runner->context, fetched, found, storage->bytes, stream);
    if (status) {
      free(fetched);
      return status;
    }
    found = fetched;
  }
  const bool same = memcmp(found, runner->saved[i], storage->bytes) == 0;
  free(fetched);
  return same ? EA_OK : ea_fail(EA_ERR_INTERNAL, "inputs: found storage %zu changed by the run, allowed none", i);
}

/* Inputs as they were, nothing written around the workspace. */
static ea_status check_surroundings(ea_runner *runner, void *stream) {
  for (size_t i = 0; i < runner->c->num_storages; i++) {
    const ea_status status = check_input(runner, i, stream);
    if (status) return status;
  }
  const watched *workspace = &runner->workspace;
  const ea_status status = check_unchanged("workspace", workspace, 0, GUARD_BYTES);
  return status ? status : check_unchanged("workspace", workspace, workspace->bytes - GUARD_BYTES, workspace->bytes);
}

static ea_status gather(ea_runner *runner, ea_result *result) {
  const ea_shape *shape = &runner->out.shape;
  *result = (ea_result){runner->c->problem.dtype, shape->rows, shape->heads, shape->width, NULL, NULL};
  const size_t rows = (size_t)shape->rows * (size_t)shape->heads;
  result->out = malloc(rows * ea_result_row_bytes(result) + 1);
  if (!result->out) return out_of_memory(rows);
  const ea_status status = take_output("out", &runner->out, result->out);
  if (status || !runner->has_lse) return status;
  result->lse = malloc((rows + 1) * sizeof *result->lse);
  if (!result->lse) return out_of_memory(rows);
  return take_output("lse", &runner->lse, (char *)result->lse);
}

ea_status ea_runner_collect(ea_runner *runner, void *stream, ea_result *result) {
  *result = (ea_result){0};
  ea_status status = fetch(runner, stream);
  if (!status) status = check_surroundings(runner, stream);
  if (!status) status = gather(runner, result);
  if (status) ea_result_free(result);
  return status;
}

ea_status ea_runner_untouched(ea_runner *runner, void *stream) {
  ea_status status = fetch(runner, stream);
  if (!status) status = check_surroundings(runner, stream);
  if (!status) status = check_unchanged("out", &runner->out.memory, 0, runner->out.memory.bytes);
  if (!status && runner->has_lse) status = check_unchanged("lse", &runner->lse.memory, 0, runner->lse.memory.bytes);
  return status;
}

/* The library failed: its own words are handed on, unless it wrote something nevertheless. */
static ea_status refused(ea_runner *runner, void *stream, ea_status status) {
  char reason[512];
  strncpy(reason, ea_last_error(), sizeof reason - 1);
  reason[sizeof reason - 1] = '\0';
  const ea_status untouched = ea_runner_untouched(runner, stream);
  return untouched ? untouched : ea_fail(status, "%s", reason);
}

ea_status ea_runner_run(ea_runner *runner, void *stream, ea_result *result) {
  *result = (ea_result){0};
  ea_status status = ea_runner_reset(runner, stream);
  if (status) return status;
  status = ea_runner_enqueue(runner, stream);
  return status ? refused(runner, stream, status) : ea_runner_collect(runner, stream, result);
}

ea_status ea_check_run(ea_context *context, const ea_plan_options *options, const ea_case *c, ea_out_layout layout,
                       ea_result *result) {
  *result = (ea_result){0};
  ea_runner *runner;
  ea_status status = ea_runner_create(context, options, c, layout, &runner);
  if (status) return status;
  status = ea_runner_run(runner, NULL, result);
  ea_runner_destroy(runner);
  return status;
}
