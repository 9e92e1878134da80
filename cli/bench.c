/* extattn bench: how fast, at which depth, next to what the same machine reaches with a large
 * product and a copy; and whether every depth gives the same bits. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "common/error.h"
#include "cuda/memory.h"
#include "files.h"
#include "plot.h"

enum {
  KEY_OUT = 'o',
  KEY_PLOT = 'p',
  KEY_REQUESTS = 'n',
  KEY_WARM_UP = 0x100,
  KEY_REPEATS,
  KEY_COMMIT,
  KEY_CUBLAS,
  KEY_TRACE,
  KEY_SHRINK,
  KEY_LIST
};

static const struct argp_option options[] = {
    {"warm-up", KEY_WARM_UP, "N", 0, "Runs before the first that counts (4; of suite replay, 1 pass)", 0},
    {"repeats", KEY_REPEATS, "N", 0, "Runs that count; the median is shown (12; of suite replay, 3 passes)", 0},
    {"trace", KEY_TRACE, "FILE", 0, "Suite replay: the trace", 0},
    {"requests", KEY_REQUESTS, "N", 0, "Suite replay: only the first N requests (100)", 0},
    {"shrink", KEY_SHRINK, "N", 0, "Divide the tokens of each shape by N, to try the command out; no ceilings then (1)",
     0},
    {"cublas", KEY_CUBLAS, "FILE", 0, "cuBLAS, for the ceiling (looked for by its usual names)", 0},
    {"commit", KEY_COMMIT, "HASH", 0, "What is measured, for the record", 0},
    {"output", KEY_OUT, "FILE", 0, "Write the result as JSON (-: standard output, instead of the text)", 0},
    EA_JSON_OPTION(0),
    {"plot", KEY_PLOT, "FILE.svg|.png|.pdf", 0,
     "Draw the result, with gnuplot (-: an SVG on standard output, instead of the text)", 0},
    {"list", KEY_LIST, NULL, 0, "Print the suite's shapes as JSON and measure nothing", 0},
    {0},
};

/* --list looks at the suite and --shrink, and prints JSON anyway. */
static void refuse_idle(const struct argp_state *state, const ea_bench_args *args) {
  static const char list[] = "beside --list", without[] = "without it";
  const bool trace = !strcmp(args->suite_name, "replay"), recorded = args->json || args->out_path;
  const ea_idle_option idle[] = {
      {"trace", args->trace_path && !trace, "with another suite", "with suite replay"},
      {"requests", args->max_requests && !trace, "with another suite", "with suite replay"},
      {"output", args->out_path && args->list, list, without},
      {"plot", args->plot_path && args->list, list, without},
      {"commit", args->commit && args->list, list, without},
      {"cublas", args->cublas_path && args->list, list, without},
      {"warm-up", args->method.warm_up >= 0 && args->list, list, without},
      {"repeats", args->method.repeats >= 0 && args->list, list, without},
      {ea_device_option_given(&args->device, EA_OPTIONS_OF_DEVICE), args->list, list, without},
      {"commit", args->commit && !recorded, "without a record", "with --output or --json"},
      {"cublas", args->cublas_path && args->shrink > 1, "beside --shrink", without},
  };
  ea_refuse_idle(state, idle, sizeof idle / sizeof idle[0]);
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  ea_bench_args *args = state->input;
  switch (key) {
  case ARGP_KEY_INIT:
    state->child_inputs[0] = &args->device;
    return 0;
  case KEY_WARM_UP:
    args->method.warm_up = (int)ea_arg_int(state, "--warm-up", arg, 0, EA_BENCH_MAX_REPEATS);
    return 0;
  case KEY_REPEATS:
    args->method.repeats = (int)ea_arg_int(state, "--repeats", arg, 1, EA_BENCH_MAX_REPEATS);
    return 0;
  case KEY_SHRINK:
    args->shrink = (int32_t)ea_arg_int(state, "--shrink", arg, 1, INT32_MAX);
    return 0;
  case KEY_TRACE:
    args->trace_path = arg;
    return 0;
  case KEY_REQUESTS:
    args->max_requests = ea_arg_int(state, "--requests", arg, 1, INT64_MAX);
    return 0;
  case KEY_CUBLAS:
    args->cublas_path = arg;
    return 0;
  case KEY_COMMIT:
    args->commit = arg;
    return 0;
  case EA_JSON_KEY:
    args->json = true;
    return 0;
  case KEY_OUT:
    args->out_path = arg;
    return 0;
  case KEY_PLOT:
    args->plot_path = arg;
    return 0;
  case KEY_LIST:
    args->list = true;
    return 0;
  case ARGP_KEY_ARG:
    if (args->suite_name && args->json) ea_refuse_json_file(state, arg);
    if (args->suite_name) argp_error(state, "found a second suite '%s', allowed one", arg);
    args->suite_name = arg;
    return 0;
  case ARGP_KEY_END:
    if (!args->suite_name) argp_error(state, "SUITE is missing");
    if (args->suite_name) refuse_idle(state, args);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_child children[] = {{&ea_device_argp, 0, NULL, 0}, {0}};

static void print_suites(FILE *stream) {
  fputs("Suites:\n", stream);
  for (int i = 0; i < ea_num_bench_suites; i++) {
    fprintf(stream, "  %-10s %s\n", ea_bench_suites[i].name, ea_bench_suites[i].what);
  }
  fputs("  replay     a trace of requests, batch by batch (--trace)\n", stream);
}

static char *help_text(int key, const char *text, void *input) {
  (void)input;
  return ea_help_with_list(key, text, print_suites);
}

static const struct argp argp = {
    options,
    parse_option,
    "SUITE",
    "Measures a suite of shapes at pipeline depths 1, 2, 3 and automatic (or at --stages), and compares the bits of "
    "their results. A GPU rests before each measurement.\v"
    "Examples:\n"
    "  extattn bench cpu --shrink 16 -o cpu.json --plot cpu.svg\n"
    "  extattn bench seed --list\n"
    "  extattn bench seed -o seed.json --plot seed.svg   # needs a GPU",
    children,
    help_text,
    NULL,
};

/* ------------------------------------------------------------------------------------
 * Results
 * ---------------------------------------------------------------------------------- */

typedef struct record {
  const ea_bench_case *c;
  int32_t stages_asked; /* 0: automatic */
  ea_plan_info plan;
  char error[256]; /* why it was not measured; "": it was */
  ea_bench_time time;
  double tflops, gbytes; /* a second */
  double ceiling_share;  /* of the ceiling that bounds the suite; 0: not known */
  uint64_t fingerprint;
  bool same_bits; /* as the first depth that was measured */
} record;

typedef struct result {
  const ea_bench_args *args;
  const ea_bench_suite *suite;
  ea_bench_case *cases; /* [suite->num_cases], shrunk where that is asked for */
  ea_device_info device;
  ea_bench_ceilings ceilings;
  record *records;
  int num_records;
} result;

static json_t *case_json(const ea_bench_case *c) {
  return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:b, s:s, s:f, s:f}", "dtype",
                   ea_dtype_name(c->dtype), "head_dim", c->head_dim, "head_dim_v", c->head_dim_v, "num_q_heads",
                   c->num_q_heads, "num_kv_heads", c->num_kv_heads, "window", c->window, "seqs", c->seqs, "prefix",
                   c->prefix, "extend", c->extend, "ragged", (c->traits & EA_BENCH_RAGGED) != 0, "shared_kv",
                   (c->traits & EA_BENCH_SHARED_KV) != 0, "slots",
                   c->traits & EA_BENCH_ORDERED_SLOTS ? "ordered" : "shuffled", "flop", ea_bench_flop(c), "bytes",
                   ea_bench_bytes(c));
}

/* New tokens, sequence by sequence. */
static json_t *extends_json(const ea_bench_case *c) {
  json_t *extends = json_array();
  for (int32_t s = 0; s < c->seqs; s++) json_array_append_new(extends, json_integer(ea_bench_extend(c, s)));
  return extends;
}

static json_t *list_json(const ea_bench_suite *suite, int32_t shrink) {
  json_t *cases = json_array();
  for (int i = 0; i < suite->num_cases; i++) {
    const ea_bench_case c = ea_bench_shrunk(&suite->cases[i], shrink);
    json_t *entry = case_json(&c);
    json_object_set_new(entry, "extends", extends_json(&c));
    json_array_append_new(cases, entry);
  }
  return json_pack("{s:s, s:s, s:b, s:o}", "suite", suite->name, "what", suite->what, "memory_bound",
                   suite->memory_bound, "cases", cases);
}

static json_t *record_json(const record *r) {
  json_t *row = case_json(r->c);
  json_object_set_new(row, "stages_asked", json_integer(r->stages_asked));
  if (r->error[0]) {
    json_object_set_new(row, "error", json_string(r->error));
    return row;
  }
  char fingerprint[24];
  snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, r->fingerprint);
  json_t *measured = json_pack(
      "{s:s, s:i, s:i, s:i, s:I, s:I, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:b}", "kernel", r->plan.kernel, "stages",
      r->plan.stages, "tile_m", r->plan.tile_m, "tile_n", r->plan.tile_n, "smem_bytes", (json_int_t)r->plan.smem_bytes,
      "smem_limit_bytes", (json_int_t)r->plan.smem_limit_bytes, "registers", r->plan.registers, "median_ms",
      r->time.median_ms, "min_ms", r->time.min_ms, "max_ms", r->time.max_ms, "tflops", r->tflops, "gbytes_per_s",
      r->gbytes, "ceiling_share", r->ceiling_share, "fingerprint", fingerprint, "same_bits", r->same_bits);
  json_object_update(row, measured);
  json_decref(measured);
  return row;
}

static json_t *device_json(const ea_device_info *d) {
  return json_pack("{s:s, s:s, s:s, s:i, s:i, s:i}", "type", d->device == EA_DEVICE_CPU ? "cpu" : "cuda", "name",
                   d->name, "arch", d->arch, "threads", d->num_threads, "multiprocessors", d->multiprocessors,
                   "driver_version", d->driver_version);
}

json_t *ea_bench_head_json(const ea_bench_args *args, const ea_device_info *device, const ea_bench_ceilings *ceilings) {
  json_t *root = json_pack("{s:s, s:s, s:s, s:o, s:o, s:{s:i, s:i, s:s}}", "command", "bench", "suite",
                           args->suite_name, "version", ea_version(), "date", ea_json_date(), "device",
                           device_json(device), "method", "warm_up", args->method.warm_up, "repeats",
                           args->method.repeats, "clock", device->device == EA_DEVICE_CPU ? "host" : "CUDA events");
  if (device->device == EA_DEVICE_CUDA && strcmp(args->suite_name, "replay") != 0) {
    json_object_set_new(json_object_get(root, "method"), "pause_s", json_real(EA_BENCH_PAUSE_MS / 1000.0));
  }
  if (args->commit) json_object_set_new(root, "commit", json_string(args->commit));
  if (args->shrink > 1) json_object_set_new(root, "shrink", json_integer(args->shrink));
  json_object_set_new(
      root, "ceilings",
      json_pack("{s:f, s:f}", "product_tflops", ceilings->product_tflops, "copy_gbytes_per_s", ceilings->copy_gbytes));
  return root;
}

static json_t *result_json(const result *r) {
  json_t *rows = json_array();
  for (int i = 0; i < r->num_records; i++) json_array_append_new(rows, record_json(&r->records[i]));
  json_t *root = ea_bench_head_json(r->args, &r->device, &r->ceilings);
  json_object_set_new(root, "memory_bound", json_boolean(r->suite->memory_bound));
  json_object_set_new(root, "rows", rows);
  return root;
}

/* ------------------------------------------------------------------------------------
 * Table
 * ---------------------------------------------------------------------------------- */

bool ea_bench_wants_table(const ea_bench_args *args) {
  return !args->json && !ea_is_dash(args->out_path) && !ea_is_dash(args->plot_path);
}

void ea_bench_print_device(const ea_device_info *device, const ea_bench_ceilings *ceilings) {
  printf("%s, %s", device->name, device->arch);
  if (device->device == EA_DEVICE_CPU) {
    printf(", %d threads\n", device->num_threads);
    return;
  }
  if (ceilings->copy_gbytes == 0) {
    putchar('\n');
    return;
  }
  printf("; copy %.0f GB/s", ceilings->copy_gbytes);
  if (ceilings->product_tflops > 0) {
    printf(", product of %d^3 in bf16 %.0f TFLOP/s\n", EA_BENCH_PRODUCT_DIM, ceilings->product_tflops);
  } else {
    printf(", product not measured: %s\n", ceilings->product_note);
  }
}

/* Both fit a terminal of 80 columns: a line for a shape, and below it one for each depth. */
static const ea_column shape_columns[] = {{"type", true, 4}, {"D/Dv", true, 7}, {"heads", true, 6}, {"batch", true, 0}};
static const ea_column columns[] = {
    {"  depth", false, 8}, {"ms", false, 8},    {"+-%", false, 6}, {"TFLOP/s", false, 7},
    {"GB/s", false, 5},    {"% max", false, 5}, {"bits", true, 4}, {"kernel", true, 0},
};
enum {
  NUM_SHAPE_COLUMNS = sizeof shape_columns / sizeof shape_columns[0],
  NUM_COLUMNS = sizeof columns / sizeof columns[0]
};

static void print_headers(void) {
  ea_header_print(stdout, shape_columns, NUM_SHAPE_COLUMNS);
  ea_header_print(stdout, columns, NUM_COLUMNS);
}

static void print_shape(const ea_bench_case *c) {
  char dims[16], heads[16], batch[64];
  snprintf(dims, sizeof dims, "%d/%d", c->head_dim, c->head_dim_v);
  snprintf(heads, sizeof heads, "%d/%d", c->num_q_heads, c->num_kv_heads);
  ea_bench_batch_text(c, batch, sizeof batch);
  ea_row_print(stdout, shape_columns, NUM_SHAPE_COLUMNS, ea_dtype_name(c->dtype), dims, heads, batch);
  fflush(stdout);
}

static void print_record(const record *r) {
  char depth[16];
  if (r->stages_asked > 0) {
    snprintf(depth, sizeof depth, "%d", r->stages_asked);
  } else if (r->error[0]) {
    snprintf(depth, sizeof depth, "auto");
  } else {
    snprintf(depth, sizeof depth, "auto %d", r->plan.stages);
  }
  if (r->error[0]) {
    ea_row_print(stdout, columns, NUM_COLUMNS, depth, "-", "-", "-", "-", "-", "-", r->error);
    return;
  }
  char ms[24], spread[16], tflops[24], gbytes[24], share[16] = "-";
  snprintf(ms, sizeof ms, "%.3f", r->time.median_ms);
  snprintf(spread, sizeof spread, "%.1f", 50 * (r->time.max_ms - r->time.min_ms) / r->time.median_ms);
  snprintf(tflops, sizeof tflops, "%.*f", r->tflops < 1 ? 4 : 1, r->tflops);
  snprintf(gbytes, sizeof gbytes, "%.0f", r->gbytes);
  if (r->ceiling_share > 0) snprintf(share, sizeof share, "%.1f", 100 * r->ceiling_share);
  ea_row_print(stdout, columns, NUM_COLUMNS, depth, ms, spread, tflops, gbytes, share,
               r->same_bits ? "same" : "DIFFERENT", r->plan.kernel);
}

/* ------------------------------------------------------------------------------------
 * Measuring
 * ---------------------------------------------------------------------------------- */

typedef struct attention_work {
  const ea_plan *plan;
  const ea_bench_buffers *buffers;
  void *workspace;
  size_t workspace_bytes;
} attention_work;

static ea_status run_attention(void *user, int i) {
  const attention_work *w = user;
  return ea_run(w->plan, ea_bench_batch(w->buffers, i), w->workspace, w->workspace_bytes, NULL);
}

static ea_status measure_plan(ea_context *context, const result *r, const ea_plan *plan, ea_bench_buffers *buffers,
                              record *rec) {
  attention_work w = {.plan = plan, .buffers = buffers};
  ea_status status = ea_workspace_size(plan, ea_bench_batch(buffers, 0), &w.workspace_bytes);
  if (status == EA_OK) status = ea_mem_alloc(context, w.workspace_bytes, &w.workspace);
  if (status == EA_OK) {
    status = ea_bench_fingerprint(buffers, plan, w.workspace, w.workspace_bytes, &rec->fingerprint);
  }
  if (status == EA_OK) status = ea_bench_measure(context, r->args->method, run_attention, &w, &rec->time);
  ea_mem_free(context, w.workspace);
  if (status != EA_OK) return status;
  rec->tflops = ea_bench_flop(rec->c) / rec->time.median_ms * 1e-9;
  rec->gbytes = ea_bench_bytes(rec->c) / rec->time.median_ms * 1e-6;
  if (r->suite->memory_bound && r->ceilings.copy_gbytes > 0) {
    rec->ceiling_share = rec->gbytes / r->ceilings.copy_gbytes;
  } else if (!r->suite->memory_bound && r->ceilings.product_tflops > 0) {
    rec->ceiling_share = rec->tflops / r->ceilings.product_tflops;
  }
  return EA_OK;
}

bool ea_bench_is_an_answer(ea_status status) {
  return status == EA_ERR_DOES_NOT_FIT || status == EA_ERR_UNSUPPORTED;
}

static ea_status measure_depth(ea_context *context, const result *r, ea_bench_buffers *buffers, record *rec) {
  const ea_problem problem = ea_bench_problem(rec->c);
  ea_plan_options plan_options = r->args->device.plan;
  plan_options.stages = rec->stages_asked;
  ea_plan *plan = NULL;
  ea_status status = ea_plan_create(context, &problem, &plan_options, &plan);
  if (ea_bench_is_an_answer(status)) {
    snprintf(rec->error, sizeof rec->error, "%s", ea_last_error());
    return EA_OK;
  }
  if (status != EA_OK) return status;
  rec->plan = (ea_plan_info)EA_PLAN_INFO_INIT;
  status = ea_plan_get_info(plan, &rec->plan);
  if (status == EA_OK) status = measure_plan(context, r, plan, buffers, rec);
  ea_plan_destroy(plan);
  return status;
}

int ea_bench_depths(const ea_bench_args *args, const ea_device_info *device, int32_t depths[EA_BENCH_MAX_DEPTHS]) {
  if (device->device == EA_DEVICE_CPU || args->device.plan.stages > 0) {
    depths[0] = args->device.plan.stages;
    return 1;
  }
  static const int32_t all[EA_BENCH_MAX_DEPTHS] = {1, 2, 3, 0};
  memcpy(depths, all, sizeof all);
  return EA_BENCH_MAX_DEPTHS;
}

static ea_status measure_case(ea_context *context, result *r, const ea_bench_case *c) {
  int32_t depths[EA_BENCH_MAX_DEPTHS];
  const int num_depths = ea_bench_depths(r->args, &r->device, depths);
  ea_bench_buffers *buffers;
  ea_status status = ea_bench_buffers_create(context, c, &buffers);
  if (status != EA_OK) return status;
  if (ea_bench_wants_table(r->args)) print_shape(c);
  const record *first = NULL;
  for (int i = 0; i < num_depths && status == EA_OK; i++) {
    record *rec = &r->records[r->num_records];
    *rec = (record){.c = c, .stages_asked = depths[i]};
    status = measure_depth(context, r, buffers, rec);
    if (status != EA_OK) break;
    if (!first && !rec->error[0]) first = rec;
    rec->same_bits = first && rec->fingerprint == first->fingerprint;
    r->num_records++;
    if (ea_bench_wants_table(r->args)) print_record(rec);
    fflush(stdout);
  }
  ea_bench_buffers_destroy(buffers);
  return status;
}

ea_status ea_bench_measure_ceilings(ea_context *context, const ea_bench_args *args, const ea_device_info *device,
                                    ea_bench_ceilings *ceilings) {
  *ceilings = (ea_bench_ceilings){0};
  if (device->device == EA_DEVICE_CPU || args->shrink > 1) return EA_OK;
  return ea_bench_ceilings_measure(context, args->method, args->cublas_path, ceilings);
}

static bool all_same_bits(const result *r) {
  for (int i = 0; i < r->num_records; i++) {
    if (!r->records[i].error[0] && !r->records[i].same_bits) return false;
  }
  return true;
}

static bool some_ran(const result *r) {
  for (int i = 0; i < r->num_records; i++) {
    if (!r->records[i].error[0]) return true;
  }
  return false;
}

/* Found out before the work, not after it. */
static int check_files(const ea_bench_args *args) {
  const ea_file_use files[] = {
      EA_FILE_READ("--trace", args->trace_path),   EA_FILE_READ("--cublas", args->cublas_path),
      EA_FILE_WRITTEN("--output", args->out_path), EA_FILE_WRITTEN("--json", args->json ? "-" : NULL),
      EA_FILE_WRITTEN("--plot", args->plot_path),
  };
  const int code = ea_files_check(files, sizeof files / sizeof files[0]);
  return code == EA_EXIT_OK ? ea_plot_check("--plot", args->plot_path) : code;
}

int ea_bench_deliver(const ea_bench_args *args, json_t *json, bool some_ran, int code) {
  int delivered = EA_EXIT_OK;
  if (args->json && !ea_json_print(json_incref(json), stdout)) delivered = EA_EXIT_FAILURE;
  if (args->out_path && !ea_json_write(json_incref(json), args->out_path)) delivered = EA_EXIT_FAILURE;
  if (!some_ran && code == EA_EXIT_OK) {
    ea_message("nothing could run: each row says why");
    delivered = EA_EXIT_DEVICE;
  } else if (some_ran && args->plot_path) {
    const int plotted = ea_plot_write(json, args->plot_path);
    if (delivered == EA_EXIT_OK) delivered = plotted;
  }
  json_decref(json);
  return code == EA_EXIT_OK ? delivered : code;
}

static bool allocate(result *r) {
  const int num_cases = r->suite->num_cases;
  r->cases = calloc((size_t)num_cases, sizeof *r->cases);
  r->records = calloc((size_t)num_cases * EA_BENCH_MAX_DEPTHS, sizeof *r->records);
  if (!r->cases || !r->records) return false;
  for (int i = 0; i < num_cases; i++) r->cases[i] = ea_bench_shrunk(&r->suite->cases[i], r->args->shrink);
  return true;
}

static ea_status measure_suite(ea_context *context, result *r) {
  ea_status status = ea_context_info(context, &r->device);
  if (status == EA_OK) status = ea_bench_measure_ceilings(context, r->args, &r->device, &r->ceilings);
  if (status == EA_OK && ea_bench_wants_table(r->args)) {
    ea_bench_print_device(&r->device, &r->ceilings);
    print_headers();
  }
  for (int i = 0; i < r->suite->num_cases && status == EA_OK; i++) status = measure_case(context, r, &r->cases[i]);
  return status;
}

static int run_suite(ea_context *context, const ea_bench_args *args, const ea_bench_suite *suite) {
  result r = {.args = args, .suite = suite, .device = EA_DEVICE_INFO_INIT};
  const ea_status status =
      allocate(&r) ? measure_suite(context, &r) : ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for the results");
  int code = status == EA_OK ? EA_EXIT_OK : ea_exit_failed(status);
  if (r.num_records > 0) { /* after a failure too: what was measured before it stands */
    code = ea_bench_deliver(args, result_json(&r), some_ran(&r), code);
  }
  if (code == EA_EXIT_OK && !all_same_bits(&r)) {
    ea_message("depths that give different bits, marked above");
    code = EA_EXIT_FAILURE;
  }
  free(r.cases);
  free(r.records);
  return code;
}

/* ------------------------------------------------------------------------------------
 * The command
 * ---------------------------------------------------------------------------------- */

static const ea_bench_suite *find_suite(const char *name) {
  for (int i = 0; i < ea_num_bench_suites; i++) {
    if (!strcmp(ea_bench_suites[i].name, name)) return &ea_bench_suites[i];
  }
  return NULL;
}

/* The runs that options do not say: a pass of a trace is a run of many batches, so fewer are enough. */
static void default_method(ea_bench_method *method, bool replay) {
  if (method->warm_up < 0) method->warm_up = replay ? 1 : 4;
  if (method->repeats < 0) method->repeats = replay ? 3 : 12;
}

int ea_cmd_bench(int argc, char **argv) {
  ea_bench_args args = {.device = EA_DEVICE_ARGS_INIT, .method = {.warm_up = -1, .repeats = -1}, .shrink = 1};
  argp_parse(&argp, argc, argv, 0, NULL, &args);

  const bool replay = !strcmp(args.suite_name, "replay");
  const ea_bench_suite *suite = find_suite(args.suite_name);
  if (!suite && !replay) {
    ea_message("SUITE: found '%s', allowed those that 'extattn bench --help' lists", args.suite_name);
    return EA_EXIT_BAD_INPUT;
  }
  if (replay && (!args.trace_path || args.list || args.shrink > 1)) {
    ea_message("suite replay: allowed with --trace FILE, and without --list and --shrink (it has --requests)");
    return EA_EXIT_BAD_INPUT;
  }
  if (args.list) return ea_json_print(list_json(suite, args.shrink), stdout) ? EA_EXIT_OK : EA_EXIT_FAILURE;
  const int checked = check_files(&args);
  if (checked != EA_EXIT_OK) return checked;
  default_method(&args.method, replay);

  /* The shapes of a GPU's suite would take hours on a CPU, so it has to be asked for. */
  if (!(args.device.given & EA_OPTION_DEVICE)) {
    args.device.automatic = false;
    args.device.context.device = suite && suite->on_cpu ? EA_DEVICE_CPU : EA_DEVICE_CUDA;
  }
  ea_context *context;
  ea_status status = ea_device_settle(&args.device);
  if (status == EA_OK && args.cublas_path && args.device.context.device == EA_DEVICE_CPU) {
    status = ea_fail(EA_ERR_INVALID, "--cublas: found on a CPU, allowed with a GPU");
  }
  if (status == EA_OK) status = ea_device_open(&args.device, &context);
  if (status != EA_OK) return ea_exit_failed(status);
  const int code = replay ? ea_bench_replay(context, &args) : run_suite(context, &args, suite);
  ea_context_destroy(context);
  return code;
}
