/* extattn replay: a trace of requests as the batches of a server with chunked prefill and a
 * prefix cache; counts them, runs them, says how long each took. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "common/error.h"
#include "files.h"
#include "plot.h"
#include "replay.h"

typedef struct replay_args {
  ea_replay_config config; /* trace, totals and context come later */
  ea_shape_args shape;
  ea_device_args device;
  const char *trace_path;
  int64_t max_requests;
  bool counts_only;
  bool summary; /* without the row for each batch */
  bool json;
  const char *slots, *seed; /* as typed; NULL: not given */
  const char *out_path, *plot_path;
} replay_args;

enum {
  KEY_REQUESTS = 'n',
  KEY_BUDGET = 'b',
  KEY_OUT = 'o',
  KEY_PLOT = 'p',
  KEY_SEED = 's',
  KEY_COUNTS = 'c',
  KEY_SLOTS = 0x100,
  KEY_POOL,
  KEY_SUMMARY
};

static const struct argp_option options[] = {
    {"requests", KEY_REQUESTS, "N", 0, "Only the first N requests", 0},
    {"budget", KEY_BUDGET, "N", 0, "New tokens in a batch, at most (8192)", 0},
    {"counts-only", KEY_COUNTS, NULL, 0, "Count batches, tokens and pairs without running anything", 0},
    {"slots", KEY_SLOTS, "ordered|shuffled|pages:N", 0, "Where cached tokens lie in the pool (shuffled)", 0},
    {"pool-tokens", KEY_POOL, "N", 0,
     "Slots of the pool; where the trace caches more, blocks share them (all it caches, if a part of the free memory "
     "holds it: 80 % of a GPU's, 25 % of the host's)",
     0},
    {"seed", KEY_SEED, "N", 0, "Seed of the random numbers and of the slots (1)", 0},
    {"summary", KEY_SUMMARY, NULL, 0, "Leave out the row for each batch", 0},
    {"output", KEY_OUT, "FILE", 0, "Write the result as JSON (-: standard output, instead of the text)", 0},
    EA_JSON_OPTION(0),
    {"plot", KEY_PLOT, "FILE.svg|.png|.pdf", 0,
     "Draw batch time against visible pairs, with gnuplot (-: an SVG on standard output, instead of the text)", 0},
    {0},
};

static void parse_slots(const struct argp_state *state, const char *arg, ea_replay_config *config) {
  if (!strcmp(arg, "ordered")) {
    config->placement = EA_PLACE_ORDERED;
  } else if (!strcmp(arg, "shuffled")) {
    config->placement = EA_PLACE_SHUFFLED;
  } else if (!strncmp(arg, "pages:", 6)) {
    config->placement = EA_PLACE_PAGES;
    config->page_size = (int32_t)ea_arg_int(state, "--slots pages", arg + 6, 1, 1 << 20);
  } else {
    argp_failure(state, EA_EXIT_BAD_INPUT, 0, "--slots: found '%s', allowed ordered, shuffled, pages:N", arg);
  }
}

/* Standard output belongs to one of them. */
static bool wants_text(const replay_args *args) {
  return !args->json && !ea_is_dash(args->out_path) && !ea_is_dash(args->plot_path);
}

/* Counting looks at nothing but the trace and the budget. */
static void refuse_idle(const struct argp_state *state, const replay_args *args) {
  static const char beside[] = "beside --counts-only", without[] = "without it";
  const bool counts = args->counts_only;
  const ea_idle_option idle[] = {
      {"plot", counts && args->plot_path, beside, without},
      {"slots", counts && args->slots, beside, without},
      {"pool-tokens", counts && args->config.pool_tokens, beside, without},
      {"seed", counts && args->seed, beside, without},
      {"summary", counts && args->summary, beside, without},
      {args->shape.given, counts, beside, without},
      {ea_device_option_given(&args->device, EA_OPTIONS_OF_DEVICE), counts, beside, without},
      {"summary", args->summary && !wants_text(args), "without text to print", "with it"},
  };
  ea_refuse_idle(state, idle, sizeof idle / sizeof idle[0]);
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  replay_args *args = state->input;
  switch (key) {
  case ARGP_KEY_INIT:
    args->shape.problem = &args->config.problem;
    state->child_inputs[0] = &args->shape;
    state->child_inputs[1] = &args->device;
    return 0;
  case KEY_REQUESTS:
    args->max_requests = ea_arg_int(state, "--requests", arg, 1, INT64_MAX);
    return 0;
  case KEY_BUDGET:
    args->config.budget = ea_arg_int(state, "--budget", arg, 1, INT64_MAX);
    return 0;
  case KEY_COUNTS:
    args->counts_only = true;
    return 0;
  case KEY_SLOTS:
    parse_slots(state, arg, &args->config);
    args->slots = arg;
    return 0;
  case KEY_POOL:
    args->config.pool_tokens = ea_arg_int(state, "--pool-tokens", arg, 1, INT64_MAX);
    return 0;
  case KEY_SEED:
    args->config.seed = (uint64_t)ea_arg_int(state, "--seed", arg, 0, INT64_MAX);
    args->seed = arg;
    return 0;
  case KEY_SUMMARY:
    args->summary = true;
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
  case ARGP_KEY_ARG:
    if (args->trace_path && args->json) ea_refuse_json_file(state, arg);
    if (args->trace_path) argp_error(state, "found a second trace '%s', allowed one", arg);
    args->trace_path = arg;
    return 0;
  case ARGP_KEY_END:
    if (!args->trace_path) argp_error(state, "TRACE is missing");
    refuse_idle(state, args);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_child children[] = {
    {&ea_shape_argp, 0, NULL, 0},
    {&ea_device_argp, 0, NULL, 0},
    {0},
};

static const char doc[] =
    "Runs a trace of requests as a server with chunked prefill and a prefix cache would batch them, and times the "
    "attention of one layer, batch by batch. TRACE is JSON lines with input_length and hash_ids (blocks of 512 "
    "tokens); "
    "- is standard input. Requests come in file order; all blocks stay cached; a batch is filled first come first "
    "served "
    "and the request that does not fit is split. The shape is 32/8 heads of 128 dimensions in bf16 where options do "
    "not say otherwise.\v"
    "TFLOP/s counts 2 * (D + DV) operations for each visible pair of tokens and query head. Times are the device's own "
    "(CUDA events) on a GPU and the host's on a CPU; the first batch is run once before, to warm up.\n\n"
    "Examples:\n"
    "  echo '{\"input_length\": 1300, \"hash_ids\": [0, 1, 2]}' >trace.jsonl\n"
    "  extattn replay trace.jsonl --counts-only\n"
    "  extattn replay trace.jsonl --slots pages:16 -o trace.json --plot trace.svg";

/* ------------------------------------------------------------------------------------
 * Running
 * ---------------------------------------------------------------------------------- */

static void add_record(ea_replay_result *r, const ea_trace_batch *batch, double elapsed_ms) {
  r->records[r->num_records++] =
      (ea_replay_record){batch->num_pieces, batch->new_tokens, batch->prefix_tokens, batch->visible_pairs, elapsed_ms};
  r->elapsed_ms += elapsed_ms;
}

static ea_status run_batches(ea_replay *replay, ea_replay_result *r, bool rows) {
  ea_progress progress;
  ea_progress_begin(&progress, (double)r->totals.visible_pairs);
  int64_t pairs = 0;
  ea_status status;
  for (;;) {
    char text[64];
    snprintf(text, sizeof text, "batch %" PRId64 " of %" PRId64, r->num_records + 1, r->totals.batches);
    ea_progress_update(&progress, (double)pairs, text);
    ea_trace_batch batch;
    double elapsed_ms;
    status = ea_replay_next(replay, &batch, &elapsed_ms);
    if (status != EA_OK || batch.num_pieces == 0) break;
    add_record(r, &batch, elapsed_ms);
    pairs += batch.visible_pairs;
    if (!rows) continue;
    ea_progress_clear(&progress);
    ea_replay_print_record(r);
  }
  ea_progress_clear(&progress);
  return status;
}

/* With text: what is about to run, a row for each batch, and the sums. */
static ea_status run_replay(const replay_args *args, ea_replay_result *r, bool text) {
  r->records = malloc((size_t)r->totals.batches * sizeof *r->records);
  if (!r->records) return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for %" PRId64 " batches", r->totals.batches);
  ea_replay *replay;
  ea_status status = ea_replay_open(&r->config, &replay);
  if (status != EA_OK) return status;
  r->plan = *ea_replay_plan(replay);
  r->pool_tokens = ea_replay_pool_tokens(replay);
  r->pool_bytes = ea_replay_pool_bytes(replay);
  if (text) ea_replay_print_setup(r);
  if (text) ea_replay_print_header(r);
  status = run_batches(replay, r, text && !args->summary);
  ea_replay_close(replay);
  if (status == EA_OK && text) ea_replay_print_summary(r);
  return status;
}

/* ------------------------------------------------------------------------------------
 * Results
 * ---------------------------------------------------------------------------------- */

/* JSON and plot, as far as they are asked for. */
static int write_results(const replay_args *args, const ea_replay_result *r, bool text) {
  if (!args->json && !args->out_path && !args->plot_path) return EA_EXIT_OK;
  json_t *json = ea_replay_json(r);
  int exit_code = EA_EXIT_OK;
  if (args->json && !ea_json_print(json_incref(json), stdout)) exit_code = EA_EXIT_FAILURE;
  if (args->out_path && !ea_json_write(json_incref(json), args->out_path)) exit_code = EA_EXIT_FAILURE;
  if (args->plot_path) {
    const int plotted = ea_plot_write(json, args->plot_path);
    if (plotted == EA_EXIT_OK && text) printf("plot: %s\n", args->plot_path);
    if (exit_code == EA_EXIT_OK) exit_code = plotted;
  }
  json_decref(json);
  return exit_code;
}

static ea_status count(const ea_trace *trace, ea_replay_result *r) {
  r->num_requests = trace->num_requests;
  for (int64_t i = 0; i < trace->num_requests; i++) r->prompt_tokens += trace->requests[i].input_length;
  return ea_trace_count(trace, r->config.budget, &r->totals);
}

static int replay(const replay_args *args, const ea_trace *trace) {
  ea_replay_result r = {.trace_path = args->trace_path, .config = args->config};
  r.config.trace = trace;
  r.config.totals = &r.totals;
  r.config.plan_options = args->device.plan;
  r.device = (ea_device_info)EA_DEVICE_INFO_INIT;
  const bool text = wants_text(args);
  ea_status status = count(trace, &r);
  if (status == EA_OK && !args->counts_only) {
    status = ea_device_open(&args->device, &r.config.context);
    if (status == EA_OK) status = ea_context_info(r.config.context, &r.device);
    if (status == EA_OK) status = run_replay(args, &r, text);
  } else if (status == EA_OK && text) {
    ea_replay_print_counts(&r);
  }
  const int exit_code = status == EA_OK ? write_results(args, &r, text) : ea_exit_failed(status);
  ea_context_destroy(r.config.context);
  free(r.records);
  return exit_code;
}

/* Found out before the work, not after it. */
static int check_files(const replay_args *args) {
  const ea_file_use files[] = {
      EA_FILE_READ("TRACE", args->trace_path),
      EA_FILE_WRITTEN("--output", args->out_path),
      EA_FILE_WRITTEN("--json", args->json ? "-" : NULL),
      EA_FILE_WRITTEN("--plot", args->plot_path),
  };
  const int code = ea_files_check(files, sizeof files / sizeof files[0]);
  return code == EA_EXIT_OK ? ea_plot_check("--plot", args->plot_path) : code;
}

int ea_cmd_replay(int argc, char **argv) {
  static const struct argp argp = {
      .options = options, .parser = parse_option, .args_doc = "TRACE", .children = children, .doc = doc};
  replay_args args = {.device = EA_DEVICE_ARGS_INIT, .max_requests = INT64_MAX};
  args.config = (ea_replay_config){
      .budget = 8192, .problem = EA_PROBLEM_INIT, .placement = EA_PLACE_SHUFFLED, .page_size = 1, .seed = 1};
  args.config.problem.num_q_heads = 32;
  args.config.problem.num_kv_heads = 8;
  args.config.problem.head_dim = 128;
  if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0) return EA_EXIT_FAILURE;
  const int checked = check_files(&args);
  if (checked != EA_EXIT_OK) return checked;

  ea_trace trace;
  const ea_status status = ea_trace_read(args.trace_path, args.max_requests, &trace);
  if (status != EA_OK) return ea_exit_failed(status);
  const int exit_code = replay(&args, &trace);
  ea_trace_free(&trace);
  return exit_code;
}
