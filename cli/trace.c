/* extattn trace: one launch of a Hopper kernel, and what its producer and consumers did when. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "common/error.h"
#include "cuda/memory.h"
#include "cuda/recording.h"
#include "files.h"
#include "io/case.h"
#include "place.h"
#include "plot.h"
#include "timeline.h"

/* ------------------------------------------------------------------------------------
 * Arguments
 * ---------------------------------------------------------------------------------- */

typedef struct trace_args {
  const char *case_path;
  const char *out, *plot_path, *commit;
  ea_problem shape; /* what the shape options set; 0 where they are not given */
  ea_shape_args shape_args;
  int32_t seqs, prefix, extend, window; /* -1: not given */
  int32_t blocks, records_log2;
  ea_device_args device;
} trace_args;

enum {
  KEY_OUT = 'o',
  KEY_PLOT = 'p',
  KEY_SEQS = 0x600,
  KEY_PREFIX,
  KEY_EXTEND,
  KEY_WINDOW,
  KEY_BLOCKS,
  KEY_RECORDS,
  KEY_COMMIT
};

static const struct argp_option options[] = {
    {"output", KEY_OUT, "FILE", 0, "The timeline, in Chrome's trace format (-: standard output, instead of the text)",
     1},
    {"plot", KEY_PLOT, "FILE.svg|.png|.pdf", 0,
     "Draw some of it, with gnuplot, as 'extattn plot' does (-: an SVG on standard output, instead of the text)", 1},
    {"blocks", KEY_BLOCKS, "N", 0, "Record the launch's first N blocks, one a multiprocessor (2)", 1},
    {"records", KEY_RECORDS, "N", 0, "Room for N marks of each warp that is recorded (4096)", 1},
    {"commit", KEY_COMMIT, "HASH", 0, "What is traced, for the record", 1},
    {NULL, 0, NULL, 0, "Instead of CASE, random numbers in a causal batch (heads 32/8, bf16):", 5},
    {"seqs", KEY_SEQS, "N", 0, "Sequences (1)", 5},
    {"prefix", KEY_PREFIX, "N", 0, "Cached tokens of each, in shuffled slots (0)", 5},
    {"extend", KEY_EXTEND, "N", 0, "New tokens of each (4096)", 5},
    {"window", KEY_WINDOW, "W", 0, "Sliding window: W tokens to the left", 5},
    {0},
};

static bool shape_given(const trace_args *args) {
  return args->shape_args.given || args->seqs >= 0 || args->prefix >= 0 || args->extend >= 0 || args->window >= 0;
}

static void check_subject(const struct argp_state *state, const trace_args *args) {
  if (args->case_path && shape_given(args)) {
    argp_failure(state, EA_EXIT_BAD_INPUT, 0, "CASE: found '%s' beside options of a shape, allowed one of the two",
                 args->case_path);
  } else if (!args->case_path && !args->shape.head_dim) {
    argp_failure(state, EA_EXIT_BAD_INPUT, 0, "found neither CASE nor --head-dim, allowed one of the two");
  } else if (args->shape.cache_dtype) {
    argp_failure(state, EA_EXIT_BAD_INPUT, 0, "--cache-dtype: found %s, allowed in a CASE (extattn make-case)",
                 ea_dtype_name(args->shape.cache_dtype));
  }
}

static void refuse_idle(const struct argp_state *state, const trace_args *args) {
  const ea_idle_option idle[] = {
      {ea_device_option_given(&args->device, EA_OPTIONS_OF_CPU), true, "for a timeline",
       "on a CPU, which records none"},
      {"commit", args->commit && !args->out, "without a record", "with --output"},
  };
  ea_refuse_idle(state, idle, sizeof idle / sizeof idle[0]);
}

static int32_t log2_above(int64_t n) {
  int32_t log2 = 0;
  while (((int64_t)1 << log2) <= n) log2++;
  return log2;
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  trace_args *args = state->input;
  switch (key) {
  case ARGP_KEY_INIT:
    args->shape_args.problem = &args->shape;
    state->child_inputs[0] = &args->shape_args;
    state->child_inputs[1] = &args->device;
    return 0;
  case KEY_OUT:
    args->out = arg;
    return 0;
  case KEY_PLOT:
    args->plot_path = arg;
    return 0;
  case KEY_COMMIT:
    args->commit = arg;
    return 0;
  case KEY_SEQS:
    args->seqs = (int32_t)ea_arg_int(state, "--seqs", arg, 1, 1 << 16);
    return 0;
  case KEY_PREFIX:
    args->prefix = (int32_t)ea_arg_int(state, "--prefix", arg, 0, 1 << 28);
    return 0;
  case KEY_EXTEND:
    args->extend = (int32_t)ea_arg_int(state, "--extend", arg, 1, 1 << 28);
    return 0;
  case KEY_WINDOW:
    args->window = (int32_t)ea_arg_int(state, "--window", arg, 1, INT32_MAX);
    return 0;
  case KEY_BLOCKS:
    args->blocks = (int32_t)ea_arg_int(state, "--blocks", arg, 1, 1024);
    return 0;
  case KEY_RECORDS: /* a track's last place stays empty */
    args->records_log2 = log2_above(ea_arg_int(state, "--records", arg, 8, (1 << 18) - 1));
    return 0;
  case ARGP_KEY_ARG:
    if (args->case_path) argp_failure(state, EA_EXIT_BAD_INPUT, 0, "CASE: found '%s' too, allowed one file", arg);
    args->case_path = arg;
    return 0;
  case ARGP_KEY_END:
    check_subject(state, args);
    refuse_idle(state, args);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static ea_bench_case shape_of(const trace_args *args) {
  const ea_problem *s = &args->shape;
  return (ea_bench_case){
      .dtype = s->dtype ? s->dtype : EA_BF16,
      .head_dim = s->head_dim,
      .head_dim_v = s->head_dim_v ? s->head_dim_v : s->head_dim,
      .num_q_heads = s->num_q_heads ? s->num_q_heads : 32,
      .num_kv_heads = s->num_q_heads ? s->num_kv_heads : 8,
      .window = args->window > 0 ? args->window : 0,
      .seqs = args->seqs > 0 ? args->seqs : 1,
      .prefix = args->prefix > 0 ? args->prefix : 0,
      .extend = args->extend > 0 ? args->extend : 4096,
      .traits = s->shared_kv ? EA_BENCH_SHARED_KV : 0,
  };
}

/* ------------------------------------------------------------------------------------
 * What is traced
 * ---------------------------------------------------------------------------------- */

typedef struct subject {
  ea_context *context;
  ea_plan *plan;
  ea_device_info device;
  ea_plan_info plan_info;
  ea_problem problem;
  char batch_text[128];
  /* one of the two */
  ea_placed placed;
  ea_bench_buffers *buffers;
  const ea_batch *batch;
  void *workspace;
  size_t workspace_bytes;
  void *own_workspace; /* of the buffers' batch */
} subject;

/* Only these kernels leave marks. */
static ea_status check_family(const ea_plan_info *info) {
  if (info->family == EA_FAMILY_HOPPER) return EA_OK;
  return ea_fail(EA_ERR_UNSUPPORTED, "family: found %s, allowed for a timeline: hopper", ea_family_name(info->family));
}

static ea_status open_plan(const trace_args *args, subject *s) {
  ea_device_args device = args->device;
  if (!(device.given & EA_OPTION_DEVICE)) { /* a CPU has nothing to record */
    device.automatic = false;
    device.context.device = EA_DEVICE_CUDA;
  }
  ea_status status = ea_device_open(&device, &s->context);
  if (status == EA_OK) status = ea_context_info(s->context, &s->device);
  if (status == EA_OK) status = ea_plan_create(s->context, &s->problem, &device.plan, &s->plan);
  if (status == EA_OK) status = ea_plan_get_info(s->plan, &s->plan_info);
  if (status == EA_OK) status = check_family(&s->plan_info);
  return status;
}

static ea_status place_case(const trace_args *args, ea_case *c, subject *s) {
  ea_case_find_shared_kv(c);
  s->problem = c->problem;
  snprintf(s->batch_text, sizeof s->batch_text, "%lld sequences, %lld new tokens", (long long)c->batch.num_seqs,
           (long long)c->batch.num_tokens);
  ea_status status = open_plan(args, s);
  if (status == EA_OK) status = ea_place(s->context, s->plan, c, &s->placed);
  s->batch = &s->placed.batch;
  s->workspace = s->placed.workspace;
  s->workspace_bytes = s->placed.workspace_bytes;
  if (status == EA_OK) status = ea_validate(s->plan, s->batch, s->workspace, s->workspace_bytes, NULL);
  return status;
}

static ea_status place_shape(const trace_args *args, subject *s) {
  const ea_bench_case shape = shape_of(args);
  s->problem = ea_bench_problem(&shape);
  ea_bench_batch_text(&shape, s->batch_text, sizeof s->batch_text);
  ea_status status = open_plan(args, s);
  if (status == EA_OK) status = ea_bench_buffers_create(s->context, &shape, &s->buffers);
  if (status != EA_OK) return status;
  s->batch = ea_bench_batch(s->buffers, 0);
  status = ea_workspace_size(s->plan, s->batch, &s->workspace_bytes);
  if (status == EA_OK) status = ea_mem_alloc(s->context, s->workspace_bytes, &s->own_workspace);
  s->workspace = s->own_workspace;
  return status;
}

static void subject_close(subject *s) {
  if (s->context) ea_mem_free(s->context, s->own_workspace);
  ea_bench_buffers_destroy(s->buffers);
  ea_placed_free(&s->placed);
  ea_plan_destroy(s->plan);
  ea_context_destroy(s->context);
}

/* ------------------------------------------------------------------------------------
 * The launch
 * ---------------------------------------------------------------------------------- */

static ea_status launch(const subject *s, double *elapsed_us) {
  ea_event events[2] = {NULL, NULL};
  float elapsed_ms = 0;
  ea_status status = ea_event_create(s->context, &events[0]);
  if (status == EA_OK) status = ea_event_create(s->context, &events[1]);
  if (status == EA_OK) status = ea_event_record(s->context, events[0], NULL);
  if (status == EA_OK) status = ea_run(s->plan, s->batch, s->workspace, s->workspace_bytes, NULL);
  if (status == EA_OK) status = ea_event_record(s->context, events[1], NULL);
  if (status == EA_OK) status = ea_event_elapsed_ms(s->context, events[0], events[1], &elapsed_ms);
  for (int i = 0; i < 2; i++) {
    if (events[i]) ea_event_destroy(s->context, events[i]);
  }
  *elapsed_us = (double)elapsed_ms * 1e3;
  return status;
}

typedef struct measured {
  double plain_us, recorded_us; /* of a launch without and with recording */
  ea_timeline timeline;
} measured;

enum { WARM_UPS = 4 };

static ea_status measure(const trace_args *args, const subject *s, measured *m) {
  ea_status status = EA_OK;
  for (int i = 0; i < WARM_UPS && status == EA_OK; i++) status = launch(s, &m->plain_us);
  if (status != EA_OK) return status;
  ea_recording *recording = NULL;
  status = ea_recording_begin(s->context, args->blocks, args->records_log2, &recording);
  if (status == EA_OK) status = launch(s, &m->recorded_us);
  if (status == EA_OK) status = ea_recording_fetch(recording);
  if (status == EA_OK) status = ea_timeline_make(recording, args->blocks, &m->timeline);
  ea_recording_end(recording);
  return status;
}

/* ------------------------------------------------------------------------------------
 * Output
 * ---------------------------------------------------------------------------------- */

static json_t *head_json(const trace_args *args, const subject *s) {
  const ea_problem *p = &s->problem;
  json_t *root =
      json_pack("{s:s, s:s, s:o, s:{s:s, s:s, s:s, s:i, s:i}}", "command", "trace", "version", ea_version(), "date",
                ea_json_date(), "device", "type", "cuda", "name", s->device.name, "arch", s->device.arch,
                "multiprocessors", s->device.multiprocessors, "driver_version", s->device.driver_version);
  if (args->commit) json_object_set_new(root, "commit", json_string(args->commit));
  json_object_set_new(root, "shape",
                      json_pack("{s:i, s:i, s:i, s:i, s:s, s:b, s:s}", "num_q_heads", p->num_q_heads, "num_kv_heads",
                                p->num_kv_heads, "head_dim", p->head_dim, "head_dim_v",
                                p->head_dim_v ? p->head_dim_v : p->head_dim, "dtype", ea_dtype_name(p->dtype),
                                "shared_kv", p->shared_kv, "batch", s->batch_text));
  json_object_set_new(root, "plan",
                      json_pack("{s:s, s:i, s:i, s:i}", "kernel", s->plan_info.kernel, "tile_m", s->plan_info.tile_m,
                                "tile_n", s->plan_info.tile_n, "stages", s->plan_info.stages));
  return root;
}

/* What is no event, Chrome's format takes as notes. */
static json_t *result_json(const trace_args *args, const subject *s, const measured *m) {
  json_t *root = head_json(args, s);
  json_object_set_new(root, "elapsed_us", json_real(m->plain_us));
  json_object_set_new(root, "recorded_elapsed_us", json_real(m->recorded_us));
  json_object_set_new(root, "cycles_per_us", json_real(m->timeline.cycles_per_us));
  json_object_set_new(root, "dropped", json_integer(m->timeline.num_dropped));
  json_object_set_new(root, "summary", ea_timeline_summary(&m->timeline));
  json_object_set_new(root, "displayTimeUnit", json_string("ns"));
  json_object_set_new(root, "traceEvents", ea_timeline_events(&m->timeline));
  return root;
}

static void print_result(const subject *s, const measured *m) {
  printf("%s on %s (%s), %s, depth %d: %.1f us, %.1f us with recording\n", s->plan_info.kernel, s->device.name,
         s->device.arch, s->batch_text, s->plan_info.stages, m->plain_us, m->recorded_us);
  printf("%s spans in %d blocks, %.0f cycles a us", ea_count_text(m->timeline.num_spans).text, m->timeline.num_blocks,
         m->timeline.cycles_per_us);
  if (m->timeline.num_dropped > 0) {
    printf("; %s marks more found no room (--records)", ea_count_text(m->timeline.num_dropped).text);
  }
  printf("\n\n");
  ea_timeline_print(&m->timeline, stdout);
}

static int deliver(const trace_args *args, const subject *s, const measured *m) {
  const bool table = !ea_is_dash(args->out) && !ea_is_dash(args->plot_path);
  int code = EA_EXIT_OK;
  if (args->out || args->plot_path) {
    json_t *json = result_json(args, s, m);
    if (args->out && !ea_json_write(json_incref(json), args->out)) code = EA_EXIT_FAILURE;
    if (args->plot_path) {
      const int plotted = ea_plot_write(json, args->plot_path);
      if (code == EA_EXIT_OK) code = plotted;
    }
    json_decref(json);
  }
  if (table) print_result(s, m);
  return code;
}

/* ------------------------------------------------------------------------------------
 * The command
 * ---------------------------------------------------------------------------------- */

static int trace_subject(const trace_args *args, ea_case *c) {
  subject s = {.device = EA_DEVICE_INFO_INIT, .plan_info = EA_PLAN_INFO_INIT};
  measured m = {0};
  ea_status status = c ? place_case(args, c, &s) : place_shape(args, &s);
  if (status == EA_OK) status = measure(args, &s, &m);
  int code = EA_EXIT_OK;
  if (status == EA_OK) code = deliver(args, &s, &m);
  if (status != EA_OK) code = c && s.context ? ea_exit_failed_in(args->case_path, status) : ea_exit_failed(status);
  ea_timeline_free(&m.timeline);
  subject_close(&s);
  return code;
}

static int trace_case(const trace_args *args) {
  ea_case c;
  const ea_status status = ea_case_read(args->case_path, &c);
  if (status != EA_OK) return ea_exit_failed_in(args->case_path, status);
  const int code = trace_subject(args, &c);
  ea_case_free(&c);
  return code;
}

static int check_files(const trace_args *args) {
  const ea_file_use files[] = {
      EA_FILE_READ("CASE", args->case_path),
      EA_FILE_WRITTEN("--output", args->out),
      EA_FILE_WRITTEN("--plot", args->plot_path),
  };
  const int code = ea_files_check(files, sizeof files / sizeof files[0]);
  return code == EA_EXIT_OK ? ea_plot_check("--plot", args->plot_path) : code;
}

int ea_cmd_trace(int argc, char **argv) {
  static const struct argp_child children[] = {{&ea_shape_argp, 0, NULL, 5}, {&ea_device_argp, 0, NULL, 0}, {0}};
  static const struct argp argp = {
      .options = options,
      .parser = parse_option,
      .args_doc = "[CASE]",
      .children = children,
      .doc = "Records when the warps of a Hopper kernel wait, copy, multiply and take exponentials in one launch, "
             "after a few to warm up: of a batch in a case file, or of a shape. Prints how often and how long for "
             "each; with --output, a timeline that Perfetto (ui.perfetto.dev) opens. Needs a GPU of the Hopper kind, "
             "and a build configured with -DEA_TRACE=ON.\v"
             "Examples:\n"
             "  extattn trace --head-dim 128 --extend 16384 -o timeline.json   # needs a GPU\n"
             "  extattn trace batch.safetensors --blocks 4 --plot timeline.svg # needs a GPU",
  };
  trace_args args = {.shape = EA_PROBLEM_INIT,
                     .seqs = -1,
                     .prefix = -1,
                     .extend = -1,
                     .window = -1,
                     .blocks = 2,
                     .records_log2 = 12,
                     .device = EA_DEVICE_ARGS_INIT};
  args.shape.dtype = EA_DTYPE_NONE; /* not given */
  if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0) return EA_EXIT_FAILURE;

  const int checked = check_files(&args);
  if (checked != EA_EXIT_OK) return checked;
  const ea_status status = ea_recording_possible();
  if (status != EA_OK) return ea_exit_failed(status);
  return args.case_path ? trace_case(&args) : trace_subject(&args, NULL);
}
