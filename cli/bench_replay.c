/* extattn bench replay: a trace of requests as chunked prefill (see replay_engine.h), pass after
 * pass at each pipeline depth. A run is a pass over all batches; its time is their sum. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "common/error.h"
#include "replay.h"

enum { BUDGET = 8192 /* new tokens in a batch */, DEFAULT_REQUESTS = 100 };

typedef struct record {
  int32_t stages_asked; /* 0: automatic */
  char error[256];      /* why it was not measured; "": it was */
  ea_plan_info plan;
  ea_bench_time time;
  double tflops;
  double ceiling_share; /* 0: not known */
} record;

typedef struct result {
  const ea_bench_args *args;
  ea_device_info device;
  ea_bench_ceilings ceilings;
  ea_trace trace;
  ea_trace_totals totals;
  ea_replay_config config;
  record records[EA_BENCH_MAX_DEPTHS];
  int num_records;
} result;

/* ------------------------------------------------------------------------------------
 * Measuring
 * ---------------------------------------------------------------------------------- */

static ea_status run_pass(ea_replay *replay, double *total_ms) {
  *total_ms = 0;
  ea_status status = ea_replay_restart(replay);
  while (status == EA_OK) {
    ea_trace_batch batch;
    double elapsed_ms;
    status = ea_replay_next(replay, &batch, &elapsed_ms);
    if (status != EA_OK || batch.num_pieces == 0) break;
    *total_ms += elapsed_ms;
  }
  return status;
}

static ea_status run_passes(ea_replay *replay, ea_bench_method method, ea_bench_time *time) {
  double ms[EA_BENCH_MAX_REPEATS];
  for (int i = 0; i < method.warm_up + method.repeats; i++) {
    double total_ms;
    const ea_status status = run_pass(replay, &total_ms);
    if (status != EA_OK) return status;
    if (i >= method.warm_up) ms[i - method.warm_up] = total_ms;
  }
  *time = ea_bench_summarise(ms, method.repeats);
  return EA_OK;
}

/* Opens the replay at the first depth that fits: its pool is filled once for all of them. */
static ea_status set_depth(result *r, int32_t stages, ea_replay **replay) {
  if (*replay) return ea_replay_set_stages(*replay, stages);
  r->config.plan_options.stages = stages;
  return ea_replay_open(&r->config, replay);
}

static ea_status measure_depth(result *r, ea_replay **replay, record *rec) {
  ea_status status = set_depth(r, rec->stages_asked, replay);
  if (ea_bench_is_an_answer(status)) {
    snprintf(rec->error, sizeof rec->error, "%s", ea_last_error());
    return EA_OK;
  }
  if (status != EA_OK) return status;
  rec->plan = *ea_replay_plan(*replay);
  status = run_passes(*replay, r->args->method, &rec->time);
  if (status != EA_OK) return status;
  rec->tflops = ea_replay_tflops(&r->config.problem, r->totals.visible_pairs, rec->time.median_ms);
  if (r->ceilings.product_tflops > 0) rec->ceiling_share = rec->tflops / r->ceilings.product_tflops;
  return EA_OK;
}

/* ------------------------------------------------------------------------------------
 * Table
 * ---------------------------------------------------------------------------------- */

static const ea_column columns[] = {
    {"depth", false, 8},   {"ms", false, 10},   {"+-%", false, 6},
    {"TFLOP/s", false, 8}, {"% max", false, 6}, {"note", true, 0},
};
enum { NUM_COLUMNS = sizeof columns / sizeof columns[0] };

static const char *file_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static void print_head(const result *r) {
  const ea_trace_totals *t = &r->totals;
  const ea_problem *p = &r->config.problem;
  ea_bench_print_device(&r->device, &r->ceilings);
  printf("%s: %s requests, %s batches, %s new and %s prefix tokens\n", file_name(r->args->trace_path),
         ea_count_text(r->trace.num_requests).text, ea_count_text(t->batches).text, ea_count_text(t->new_tokens).text,
         ea_count_text(t->prefix_tokens).text);
  printf("%d/%d heads of %d, %s, shuffled slots; %d passes after %d\n", p->num_q_heads, p->num_kv_heads, p->head_dim,
         ea_dtype_name(p->dtype), r->args->method.repeats, r->args->method.warm_up);
  ea_header_print(stdout, columns, NUM_COLUMNS);
  fflush(stdout);
}

static void print_record(const record *rec) {
  char depth[16];
  if (rec->stages_asked > 0) {
    snprintf(depth, sizeof depth, "%d", rec->stages_asked);
  } else {
    snprintf(depth, sizeof depth, rec->error[0] ? "auto" : "auto %d", rec->plan.stages);
  }
  if (rec->error[0]) {
    ea_row_print(stdout, columns, NUM_COLUMNS, depth, "-", "-", "-", "-", rec->error);
    return;
  }
  char ms[24], spread[16], tflops[24], share[16] = "-";
  snprintf(ms, sizeof ms, "%.1f", rec->time.median_ms);
  snprintf(spread, sizeof spread, "%.1f", 50 * (rec->time.max_ms - rec->time.min_ms) / rec->time.median_ms);
  snprintf(tflops, sizeof tflops, "%.*f", rec->tflops < 1 ? 4 : 1, rec->tflops);
  if (rec->ceiling_share > 0) snprintf(share, sizeof share, "%.1f", 100 * rec->ceiling_share);
  ea_row_print(stdout, columns, NUM_COLUMNS, depth, ms, spread, tflops, share, rec->plan.kernel);
}

/* ------------------------------------------------------------------------------------
 * JSON
 * ---------------------------------------------------------------------------------- */

static json_t *record_json(const result *r, const record *rec) {
  const ea_problem *p = &r->config.problem;
  json_t *row = json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:i}", "dtype", ea_dtype_name(p->dtype), "head_dim",
                          p->head_dim, "head_dim_v", p->head_dim, "num_q_heads", p->num_q_heads, "num_kv_heads",
                          p->num_kv_heads, "requests", (json_int_t)r->trace.num_requests, "batches",
                          (json_int_t)r->totals.batches, "stages_asked", rec->stages_asked);
  if (rec->error[0]) {
    json_object_set_new(row, "error", json_string(rec->error));
    return row;
  }
  json_t *measured = json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f}", "kernel", rec->plan.kernel, "stages",
                               rec->plan.stages, "tile_m", rec->plan.tile_m, "tile_n", rec->plan.tile_n, "median_ms",
                               rec->time.median_ms, "min_ms", rec->time.min_ms, "max_ms", rec->time.max_ms, "tflops",
                               rec->tflops, "ceiling_share", rec->ceiling_share);
  json_object_update(row, measured);
  json_decref(measured);
  return row;
}

static json_t *result_json(const result *r) {
  const ea_trace_totals *t = &r->totals;
  json_t *rows = json_array();
  for (int i = 0; i < r->num_records; i++) json_array_append_new(rows, record_json(r, &r->records[i]));
  json_t *root = ea_bench_head_json(r->args, &r->device, &r->ceilings);
  json_object_set_new(root, "trace",
                      json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "file", file_name(r->args->trace_path),
                                "requests", (json_int_t)r->trace.num_requests, "budget", (json_int_t)BUDGET, "batches",
                                (json_int_t)t->batches, "sequences", (json_int_t)t->sequences, "new_tokens",
                                (json_int_t)t->new_tokens, "prefix_tokens", (json_int_t)t->prefix_tokens,
                                "visible_pairs", (json_int_t)t->visible_pairs));
  json_object_set_new(root, "rows", rows);
  return root;
}

/* ------------------------------------------------------------------------------------
 * The whole
 * ---------------------------------------------------------------------------------- */

static void configure(ea_context *context, result *r) {
  r->config = (ea_replay_config){.trace = &r->trace,
                                 .totals = &r->totals,
                                 .budget = BUDGET,
                                 .context = context,
                                 .problem = EA_PROBLEM_INIT,
                                 .plan_options = r->args->device.plan,
                                 .placement = EA_PLACE_SHUFFLED,
                                 .page_size = 1,
                                 .seed = 1};
  r->config.problem.num_q_heads = 32;
  r->config.problem.num_kv_heads = 8;
  r->config.problem.head_dim = 128;
}

static ea_status prepare(ea_context *context, result *r) {
  const int64_t requests = r->args->max_requests ? r->args->max_requests : DEFAULT_REQUESTS;
  ea_status status = ea_context_info(context, &r->device);
  if (status == EA_OK) status = ea_trace_read(r->args->trace_path, requests, &r->trace);
  if (status == EA_OK) status = ea_trace_count(&r->trace, BUDGET, &r->totals);
  if (status == EA_OK) status = ea_bench_measure_ceilings(context, r->args, &r->device, &r->ceilings);
  configure(context, r);
  return status;
}

static ea_status measure_depths(result *r) {
  int32_t depths[EA_BENCH_MAX_DEPTHS];
  const int num_depths = ea_bench_depths(r->args, &r->device, depths);
  ea_replay *replay = NULL;
  ea_status status = EA_OK;
  for (int i = 0; i < num_depths; i++) {
    record *rec = &r->records[r->num_records];
    *rec = (record){.stages_asked = depths[i]};
    status = measure_depth(r, &replay, rec);
    if (status != EA_OK) break;
    r->num_records++;
    if (ea_bench_wants_table(r->args)) print_record(rec);
    fflush(stdout);
  }
  ea_replay_close(replay);
  return status;
}

int ea_bench_replay(ea_context *context, const ea_bench_args *args) {
  result r = {.args = args, .device = EA_DEVICE_INFO_INIT};
  ea_status status = prepare(context, &r);
  if (status == EA_OK && ea_bench_wants_table(args)) print_head(&r);
  if (status == EA_OK) status = measure_depths(&r);
  int code = status == EA_OK ? EA_EXIT_OK : ea_exit_failed(status);
  if (r.num_records > 0) { /* after a failure too: what was measured before it stands */
    bool some_ran = false;
    for (int i = 0; i < r.num_records; i++) some_ran = some_ran || !r.records[i].error[0];
    code = ea_bench_deliver(args, result_json(&r), some_ran, code);
  }
  ea_trace_free(&r.trace);
  return code;
}
