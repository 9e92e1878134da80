/* extattn run: one batch from a case file, on any device, its result into a file. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "clock.h"
#include "common/error.h"
#include "cuda/memory.h"
#include "files.h"
#include "io/case.h"
#include "place.h"

/* ------------------------------------------------------------------------------------
 * Arguments
 * ---------------------------------------------------------------------------------- */

typedef enum sharing { SHARING_AUTO, SHARING_ON, SHARING_OFF } sharing;

typedef struct run_args {
  const char *path;
  const char *out; /* NULL: made from path */
  sharing shared_kv;
  bool json;
  bool quiet;
  ea_device_args device;
} run_args;

enum { KEY_OUT = 'o', KEY_QUIET = 'q', KEY_SHARED_KV = 0x400 };

static const struct argp_option options[] = {
    {"output", KEY_OUT, "OUT", 0,
     "Where the result goes (as CASE, but ending in .out.safetensors; -: standard output, instead of the text)", 1},
    {"shared-kv", KEY_SHARED_KV, "auto|on|off", 0,
     "Whether values are read as the first columns of the keys, as in latent attention (auto: where they are)", 1},
    EA_JSON_OPTION(1),
    {"quiet", KEY_QUIET, NULL, 0, "Print nothing", 1},
    {0},
};

static sharing parse_sharing(const struct argp_state *state, const char *arg) {
  static const char *const names[] = {"auto", "on", "off"};
  for (int i = 0; i < 3; i++) {
    if (!strcmp(arg, names[i])) return (sharing)i;
  }
  argp_failure(state, EA_EXIT_BAD_INPUT, 0, "--shared-kv: found '%s', allowed auto, on, off", arg);
  return SHARING_AUTO;
}

static void refuse_idle(const struct argp_state *state, const run_args *args) {
  const ea_idle_option options_idle[] = {
      {"quiet", args->quiet && args->json, "beside --json", "without it"},
      {"quiet", args->quiet && ea_is_dash(args->out), "beside --output -", "without it"},
  };
  ea_refuse_idle(state, options_idle, sizeof options_idle / sizeof options_idle[0]);
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  run_args *args = state->input;
  switch (key) {
  case ARGP_KEY_INIT:
    state->child_inputs[0] = &args->device;
    return 0;
  case KEY_OUT:
    args->out = arg;
    return 0;
  case KEY_SHARED_KV:
    args->shared_kv = parse_sharing(state, arg);
    return 0;
  case EA_JSON_KEY:
    args->json = true;
    return 0;
  case KEY_QUIET:
    args->quiet = true;
    return 0;
  case ARGP_KEY_ARG:
    if (args->path) argp_failure(state, EA_EXIT_BAD_INPUT, 0, "CASE: found '%s' too, allowed one file", arg);
    args->path = arg;
    return 0;
  case ARGP_KEY_END:
    if (!args->path) argp_failure(state, EA_EXIT_BAD_INPUT, 0, "CASE: found none, allowed one file");
    refuse_idle(state, args);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* CASE.safetensors gives CASE.out.safetensors. Frees with free(); NULL when out of memory. */
static char *default_out(const char *path) {
  static const char suffix[] = ".safetensors";
  const size_t length = strlen(path), suffix_length = strlen(suffix);
  const bool has_suffix = length > suffix_length && !strcmp(path + length - suffix_length, suffix);
  char *out = NULL;
  if (asprintf(&out, "%.*s.out%s", (int)(has_suffix ? length - suffix_length : length), path, suffix) < 0) return NULL;
  return out;
}

static int check_files(const run_args *args, const char *out) {
  const ea_file_use files[] = {
      EA_FILE_READ("CASE", args->path),
      EA_FILE_WRITTEN("--output", out),
      EA_FILE_WRITTEN("--json", args->json ? "-" : NULL),
  };
  return ea_files_check(files, sizeof files / sizeof files[0]);
}

/* ------------------------------------------------------------------------------------
 * The run
 * ---------------------------------------------------------------------------------- */

typedef struct job {
  const ea_case *c;
  ea_context *context;
  ea_plan *plan;
  ea_device_info device;
  ea_plan_info plan_info;
  ea_placed placed;
  void *fetched;   /* on a GPU: both outputs in host memory */
  const void *out; /* in host memory */
  const float *lse;
  double elapsed_ms;
} job;

static bool on_gpu(const job *j) {
  return j->device.device == EA_DEVICE_CUDA;
}

static ea_status open_device(job *j, const ea_device_args *args) {
  ea_status status = ea_device_open(args, &j->context);
  if (!status) status = ea_context_info(j->context, &j->device);
  if (!status) status = ea_plan_create(j->context, &j->c->problem, &args->plan, &j->plan);
  if (!status) status = ea_plan_get_info(j->plan, &j->plan_info);
  return status;
}

static ea_status compute(job *j) {
  const ea_placed *p = &j->placed;
  ea_status status = EA_OK;
  if (on_gpu(j)) status = ea_validate(j->plan, &p->batch, p->workspace, p->workspace_bytes, NULL);
  const double start_ms = ea_clock_ms();
  if (!status) status = ea_run(j->plan, &p->batch, p->workspace, p->workspace_bytes, NULL);
  if (!status && on_gpu(j)) status = ea_stream_synchronize(j->context, NULL);
  j->elapsed_ms = ea_clock_ms() - start_ms;
  return status;
}

/* To host memory, where they are not there yet. */
static ea_status fetch_outputs(job *j) {
  const ea_placed *p = &j->placed;
  j->out = p->out;
  j->lse = p->lse;
  if (!on_gpu(j)) return EA_OK;
  j->fetched = malloc(p->out_bytes + p->lse_bytes + 1);
  if (!j->fetched) return ea_fail(EA_ERR_OUT_OF_MEMORY, "out: found no host memory for %zu bytes", p->out_bytes);
  j->lse = j->fetched;
  j->out = (char *)j->fetched + p->lse_bytes;
  const ea_status status = ea_mem_download(j->context, j->fetched, p->lse, p->lse_bytes, NULL);
  return status ? status : ea_mem_download(j->context, (char *)j->fetched + p->lse_bytes, p->out, p->out_bytes, NULL);
}

static void job_close(job *j) {
  free(j->fetched);
  ea_placed_free(&j->placed);
  ea_plan_destroy(j->plan);
  ea_context_destroy(j->context);
}

static ea_status run_job(job *j, const ea_device_args *device) {
  ea_status status = open_device(j, device);
  if (!status) status = ea_place(j->context, j->plan, j->c, &j->placed);
  if (!status) status = compute(j);
  if (!status) status = fetch_outputs(j);
  return status;
}

/* ------------------------------------------------------------------------------------
 * Output
 * ---------------------------------------------------------------------------------- */

/* The case has run, so its index arrays are in order. */
static int64_t prefix_tokens(const ea_case *c) {
  return c->batch.kv_indptr[c->batch.num_seqs];
}

static bool print_json(const job *j, const char *out) {
  const ea_batch *batch = &j->c->batch;
  const ea_plan_info *plan = &j->plan_info;
  return ea_json_print(
      json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:b, s:f}", "out", out, "device", j->device.name, "arch",
                j->device.arch, "family", ea_family_name(plan->family), "kernel", plan->kernel, "stages", plan->stages,
                "num_seqs", (json_int_t)batch->num_seqs, "num_tokens", (json_int_t)batch->num_tokens, "prefix_tokens",
                (json_int_t)prefix_tokens(j->c), "shared_kv", j->c->problem.shared_kv, "elapsed_ms", j->elapsed_ms),
      stdout);
}

static void print_summary(const job *j, const char *out) {
  const ea_batch *batch = &j->c->batch;
  printf("%s: %s sequences, %s new and %s prefix tokens in %.3f ms by %s on %s (%s)\n", out,
         ea_count_text(batch->num_seqs).text, ea_count_text(batch->num_tokens).text,
         ea_count_text(prefix_tokens(j->c)).text, j->elapsed_ms, j->plan_info.kernel, j->device.name, j->device.arch);
}

static int write_result(const job *j, const run_args *args, const char *out) {
  if (ea_case_result_write(out, j->c, j->out, j->lse)) {
    ea_message("%s", ea_last_error());
    return EA_EXIT_FAILURE; /* neither the case nor the device is to blame */
  }
  if (args->json) return print_json(j, out) ? EA_EXIT_OK : EA_EXIT_FAILURE;
  if (!args->quiet && !ea_is_dash(out)) print_summary(j, out);
  return EA_EXIT_OK;
}

/* ------------------------------------------------------------------------------------
 * The command
 * ---------------------------------------------------------------------------------- */

static ea_status share_kv(ea_case *c, sharing wanted) {
  if (wanted == SHARING_OFF || ea_case_find_shared_kv(c) || wanted == SHARING_AUTO) return EA_OK;
  return ea_fail(EA_ERR_INVALID,
                 "--shared-kv: found v or v_cache with other values than the first columns of k or k_cache, allowed "
                 "auto, off");
}

static int run_case(const run_args *args, ea_case *c, const char *out) {
  ea_status status = share_kv(c, args->shared_kv);
  if (status) return ea_exit_failed(status);
  job j = {.c = c, .device = EA_DEVICE_INFO_INIT, .plan_info = EA_PLAN_INFO_INIT};
  status = run_job(&j, &args->device);
  int code = EA_EXIT_OK;
  if (!status) code = write_result(&j, args, out);
  if (status) code = j.context ? ea_exit_failed_in(args->path, status) : ea_exit_failed(status);
  job_close(&j);
  return code;
}

static int run_file(const run_args *args, const char *out) {
  ea_case c;
  int code = check_files(args, out);
  if (code != EA_EXIT_OK) return code;
  const ea_status status = ea_case_read(args->path, &c);
  if (status) return ea_exit_failed_in(args->path, status);
  code = run_case(args, &c, out);
  ea_case_free(&c);
  return code;
}

int ea_cmd_run(int argc, char **argv) {
  static const struct argp_child children[] = {{&ea_device_argp, 0, NULL, 0}, {0}};
  static const struct argp argp = {
      .options = options,
      .parser = parse_option,
      .args_doc = "CASE",
      .children = children,
      .doc = "Runs the batch in CASE, a safetensors file, and writes its result: out, and lse, the logarithm of each "
             "row's softmax denominator. OUT is complete or not written at all.\v"
             "Exit status: 0 done, 2 the file or its contents are refused, 3 the device cannot do it, 1 anything "
             "else.\n\n"
             "Examples:\n"
             "  extattn make-case -o batch.safetensors --seed 7\n"
             "  extattn run batch.safetensors   # writes batch.out.safetensors\n"
             "  extattn run batch.safetensors -o cpu.safetensors --device cpu --json",
  };
  run_args args = {.device = EA_DEVICE_ARGS_INIT};
  const error_t error = argp_parse(&argp, argc, argv, 0, NULL, &args);
  if (error) return EA_EXIT_FAILURE;
  char *made = args.out ? NULL : default_out(args.path);
  const char *out = args.out ? args.out : made;
  if (!out) {
    ea_message("out of memory");
    return EA_EXIT_FAILURE;
  }
  const int code = run_file(&args, out);
  free(made);
  return code;
}
