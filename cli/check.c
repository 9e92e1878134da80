/* extattn check: random cases of every feature against the promises, on any device. Case n
 * of a run with seed S is that of seed S+n, so a failing one is repeated by its own seed. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "check/promises.h"
#include "cli.h"
#include "clock.h"
#include "common/error.h"
#include "files.h"
#include "io/case.h"

enum { MAX_PROMISES = 16, MAX_SHRINKS = 400, DEFAULT_CASES = 100 };

/* ------------------------------------------------------------------------------------
 * Arguments
 * ---------------------------------------------------------------------------------- */

typedef struct check_args {
  ea_device_args device;
  ea_problem shape; /* what the shape options set; 0 where they are not given */
  ea_shape_args shape_args;
  ea_gen_options gen;
  bool seed_given, json, verbose;
  int64_t cases;   /* 0: not given */
  double seconds;  /* 0: not given */
  unsigned chosen; /* promises, a bit each; 0: all */
  const char *dir; /* of the files with failing cases */
} check_args;

enum {
  KEY_CASES = 'n',
  KEY_SEED = 's',
  KEY_PROMISE = 'p',
  KEY_VERBOSE = 'v',
  KEY_SECONDS = 0x600,
  KEY_MAX_SIZE,
  KEY_DIR
};

static const struct argp_option options[] = {
    {"cases", KEY_CASES, "N", 0, "Random cases a promise (100)", 1},
    {"seconds", KEY_SECONDS, "S", 0, "Cases until S seconds are over", 1},
    {"seed", KEY_SEED, "N", 0, "Of the first case; the next is that of N+1 (random)", 1},
    {"promise", KEY_PROMISE, "PROMISE", 0, "Only this one, by name or number; may be repeated (all)", 1},
    {"max-size", KEY_MAX_SIZE, "N", 0, "Largest case, in multiply-adds (16000000)", 1},
    {"directory", KEY_DIR, "DIR", 0, "Where the smallest failing cases are written (.)", 1},
    {"verbose", KEY_VERBOSE, NULL, 0, "Name every case on standard error before it runs, lest it crash", 1},
    EA_JSON_OPTION(1),
    {0},
};

static void choose_promise(const struct argp_state *state, const char *arg, check_args *args) {
  const ea_promise *promise = ea_promise_find(arg);
  if (promise) {
    args->chosen |= 1U << (promise - ea_promises);
    return;
  }
  char names[256] = "";
  for (int p = 0; p < ea_num_promises; p++) {
    const size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%s", p ? ", " : "", ea_promises[p].name);
    if (!ea_promises[p].number) continue;
    const size_t named = strlen(names);
    snprintf(names + named, sizeof names - named, " (%d)", ea_promises[p].number);
  }
  argp_failure(state, EA_EXIT_BAD_INPUT, 0, "--promise: found '%s', allowed %s", arg, names);
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  check_args *args = state->input;
  switch (key) {
  case ARGP_KEY_INIT:
    args->shape_args.problem = &args->shape;
    state->child_inputs[0] = &args->shape_args;
    state->child_inputs[1] = &args->device;
    return 0;
  case KEY_CASES:
    args->cases = ea_arg_int(state, "--cases", arg, 1, INT64_MAX);
    return 0;
  case KEY_SECONDS:
    args->seconds = ea_arg_double(state, "--seconds", arg, 0, false);
    return 0;
  case KEY_SEED:
    args->gen.seed = (uint64_t)ea_arg_int(state, "--seed", arg, 0, INT64_MAX);
    args->seed_given = true;
    return 0;
  case KEY_PROMISE:
    choose_promise(state, arg, args);
    return 0;
  case KEY_MAX_SIZE:
    args->gen.max_work = ea_arg_int(state, "--max-size", arg, 1, INT64_MAX);
    return 0;
  case KEY_DIR:
    args->dir = arg;
    return 0;
  case KEY_VERBOSE:
    args->verbose = true;
    return 0;
  case EA_JSON_KEY:
    args->json = true;
    return 0;
  case ARGP_KEY_ARG:
    argp_failure(state, EA_EXIT_BAD_INPUT, 0, "found the argument '%s', allowed options only", arg);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* Settles what the options left open. */
static void settle(check_args *args) {
  ea_gen_options *gen = &args->gen;
  gen->num_q_heads = args->shape.num_q_heads;
  gen->num_kv_heads = args->shape.num_kv_heads;
  gen->head_dim = args->shape.head_dim;
  gen->head_dim_v = args->shape.head_dim_v;
  gen->dtype = args->shape.dtype;
  gen->cache_dtype = args->shape.cache_dtype;
  if (args->shape.shared_kv) gen->shared_kv = EA_YES;
  if (!args->chosen) args->chosen = (1U << ea_num_promises) - 1;
  if (!args->cases && args->seconds == 0) args->cases = DEFAULT_CASES;
  uint32_t drawn = 0;
  if (!args->seed_given && getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) drawn = (uint32_t)ea_clock_ms();
  if (!args->seed_given) gen->seed = drawn;
}

/* ------------------------------------------------------------------------------------
 * Checking
 * ---------------------------------------------------------------------------------- */

typedef struct tally {
  int64_t kept, skipped;
  char skip_reason[256]; /* of the last */
  bool broken;           /* by its first failing case; no more are drawn then */
  uint64_t seed;
  ea_verdict verdict, smallest;
  char shape[768], smallest_shape[768];
  char file[PATH_MAX]; /* "": could not be written */
} tally;

typedef struct checking {
  const check_args *args;
  ea_subject subject;
  tally tallies[MAX_PROMISES];
  int64_t done; /* seeds */
} checking;

/* The options that lead back to a failing case. */
static void print_again(const checking *k, int p, FILE *stream) {
  const check_args *args = k->args;
  const bool cuda = k->subject.info.device == EA_DEVICE_CUDA;
  fprintf(stream, "extattn check --promise %s --seed %" PRIu64 " --cases 1 --device %s", ea_promises[p].name,
          k->tallies[p].seed, cuda ? "cuda" : "cpu");
  if (cuda && k->subject.info.device_ordinal) fprintf(stream, ":%d", k->subject.info.device_ordinal);
  if (!cuda) fprintf(stream, " --isa %s", ea_isa_name(k->subject.info.isa));
  if (args->device.plan.family) fprintf(stream, " --family %s", ea_family_name(args->device.plan.family));
  if (args->device.plan.stages) fprintf(stream, " --stages %d", args->device.plan.stages);
  if (args->gen.max_work != EA_GEN_MAX_WORK) fprintf(stream, " --max-size %" PRId64, args->gen.max_work);
  if (args->gen.num_q_heads) fprintf(stream, " --heads %d/%d", args->gen.num_q_heads, args->gen.num_kv_heads);
  if (args->gen.head_dim) fprintf(stream, " --head-dim %d", args->gen.head_dim);
  if (args->gen.head_dim_v) fprintf(stream, " --head-dim-v %d", args->gen.head_dim_v);
  if (args->gen.dtype) fprintf(stream, " --dtype %s", ea_dtype_name(args->gen.dtype));
  if (args->gen.cache_dtype) fprintf(stream, " --cache-dtype %s", ea_dtype_name(args->gen.cache_dtype));
  if (args->gen.shared_kv == EA_YES) fputs(" --shared-kv", stream);
}

static void write_smallest(const checking *k, int p, const ea_spec *spec) {
  tally *t = (tally *)&k->tallies[p];
  ea_case c;
  const int n = snprintf(t->file, sizeof t->file, "%s/extattn-%s-%" PRIu64 ".safetensors", k->args->dir,
                         ea_promises[p].name, t->seed);
  ea_status status = n > 0 && (size_t)n < sizeof t->file
                         ? ea_spec_build(spec, &c)
                         : ea_fail(EA_ERR_INVALID, "--directory: found a name too long for files in it");
  if (!status) {
    status = ea_case_write(t->file, &c);
    ea_case_free(&c);
  }
  if (!status) return;
  ea_message("%s", ea_last_error());
  t->file[0] = '\0';
}

static void report_broken(checking *k, int p, ea_spec *spec, const ea_verdict *verdict) {
  tally *t = &k->tallies[p];
  t->broken = true;
  t->verdict = t->smallest = *verdict;
  ea_spec_describe(spec, t->shape, sizeof t->shape);
  ea_promise_shrink(&ea_promises[p], &k->subject, MAX_SHRINKS, spec, &t->smallest);
  ea_spec_describe(spec, t->smallest_shape, sizeof t->smallest_shape);
  write_smallest(k, p, spec);
}

static void check_one(checking *k, int p, uint64_t seed, ea_spec *spec) {
  tally *t = &k->tallies[p];
  ea_gen_options gen = k->args->gen;
  ea_verdict verdict = {EA_KEPT, ""};
  gen.seed = t->seed = seed;
  ea_promise_draw(&ea_promises[p], &gen, spec);
  if (k->args->verbose) {
    char shape[1024];
    ea_spec_describe(spec, shape, sizeof shape);
    fprintf(stderr, "%s, seed %" PRIu64 ": %s\n", ea_promises[p].name, seed, shape);
  }
  ea_promises[p].check(&k->subject, spec, &verdict);
  switch (verdict.outcome) {
  case EA_KEPT:
    t->kept++;
    return;
  case EA_SKIPPED:
    t->skipped++;
    snprintf(t->skip_reason, sizeof t->skip_reason, "%.255s", verdict.text);
    return;
  case EA_BROKEN:
    report_broken(k, p, spec, &verdict);
    return;
  }
}

static bool is_open(const checking *k, int p) {
  return (k->args->chosen >> p & 1) && !k->tallies[p].broken;
}

static bool any_open(const checking *k) {
  for (int p = 0; p < ea_num_promises; p++) {
    if (is_open(k, p)) return true;
  }
  return false;
}

static void check_all(checking *k, ea_spec *spec) {
  const check_args *args = k->args;
  const double start = ea_clock_ms();
  ea_progress progress;
  ea_progress_begin(&progress, args->cases ? (double)args->cases : args->seconds);
  if (args->verbose) progress.enabled = false;
  for (k->done = 0; any_open(k); k->done++) {
    const double seconds = (ea_clock_ms() - start) / 1000;
    if (args->cases && k->done >= args->cases) break;
    if (args->seconds > 0 && seconds >= args->seconds) break;
    const uint64_t seed = args->gen.seed + (uint64_t)k->done;
    for (int p = 0; p < ea_num_promises; p++) {
      char text[96];
      snprintf(text, sizeof text, "seed %" PRIu64 ", %s", seed, ea_promises[p].name);
      ea_progress_update(&progress, args->cases ? (double)k->done : seconds, text);
      if (is_open(k, p)) check_one(k, p, seed, spec);
    }
  }
  ea_progress_clear(&progress);
}

/* ------------------------------------------------------------------------------------
 * Results
 * ---------------------------------------------------------------------------------- */

static void print_table(const checking *k) {
  static const ea_column columns[] = {{"promise", true, 0},  {"no.", false, 0},    {"kept", false, 0},
                                      {"skipped", false, 0}, {"broken", false, 0}, {"", true, 0}};
  ea_table *table = ea_table_new(columns, sizeof columns / sizeof columns[0]);
  for (int p = 0; p < ea_num_promises; p++) {
    const tally *t = &k->tallies[p];
    char number[16] = "";
    if (!(k->args->chosen >> p & 1)) continue;
    if (ea_promises[p].number) snprintf(number, sizeof number, "%d", ea_promises[p].number);
    ea_table_add(table, ea_promises[p].name, number, ea_count_text(t->kept).text, ea_count_text(t->skipped).text,
                 t->broken ? "1" : "0", ea_promises[p].summary);
  }
  ea_table_print(table, stdout);
}

static void print_broken(const checking *k, int p) {
  const tally *t = &k->tallies[p];
  printf("\nbroken: %s: %s\n  case:     %s\n  smallest: %s\n            %s\n", ea_promises[p].name, t->verdict.text,
         t->shape, t->smallest.text, t->smallest_shape);
  if (t->file[0]) printf("  file:     %s\n", t->file);
  printf("  again:    ");
  print_again(k, p, stdout);
  putchar('\n');
}

static void print_text(const checking *k) {
  const ea_device_info *info = &k->subject.info;
  printf("%s (%s), seeds %" PRIu64 " to %" PRIu64 "\n", info->name, info->arch, k->args->gen.seed,
         k->args->gen.seed + (uint64_t)k->done - (k->done > 0));
  print_table(k);
  for (int p = 0; p < ea_num_promises; p++) {
    const tally *t = &k->tallies[p];
    if (t->skipped && !t->broken) printf("skipped: %s: %s\n", ea_promises[p].name, t->skip_reason);
  }
  for (int p = 0; p < ea_num_promises; p++) {
    if (k->tallies[p].broken) print_broken(k, p);
  }
}

static json_t *broken_json(const checking *k, int p) {
  const tally *t = &k->tallies[p];
  char again[512] = "";
  FILE *stream = fmemopen(again, sizeof again - 1, "w");
  if (stream) {
    print_again(k, p, stream);
    fclose(stream);
  }
  return json_pack("{s:I, s:s, s:s, s:s, s:s, s:s?, s:s}", "seed", (json_int_t)t->seed, "text", t->verdict.text, "case",
                   t->shape, "smallest_text", t->smallest.text, "smallest_case", t->smallest_shape, "file",
                   t->file[0] ? t->file : NULL, "again", again);
}

static json_t *result_json(const checking *k) {
  const ea_device_info *info = &k->subject.info;
  json_t *promises = json_array();
  for (int p = 0; p < ea_num_promises; p++) {
    const tally *t = &k->tallies[p];
    if (!(k->args->chosen >> p & 1)) continue;
    json_t *promise = json_pack("{s:s, s:i, s:I, s:I}", "name", ea_promises[p].name, "number", ea_promises[p].number,
                                "kept", (json_int_t)t->kept, "skipped", (json_int_t)t->skipped);
    if (t->skipped) json_object_set_new(promise, "skip_reason", json_string(t->skip_reason));
    if (t->broken) json_object_set_new(promise, "broken", broken_json(k, p));
    json_array_append_new(promises, promise);
  }
  return json_pack("{s:s, s:s, s:I, s:I, s:o}", "device", info->name, "arch", info->arch, "seed",
                   (json_int_t)k->args->gen.seed, "cases", (json_int_t)k->done, "promises", promises);
}

/* 0 only when every promise was really looked at and kept. */
static int exit_code(const checking *k) {
  int code = EA_EXIT_OK;
  for (int p = 0; p < ea_num_promises; p++) {
    const tally *t = &k->tallies[p];
    if (t->broken) return EA_EXIT_FAILURE;
    if ((k->args->chosen >> p & 1) && t->kept == 0) code = EA_EXIT_DEVICE;
  }
  return code;
}

/* ------------------------------------------------------------------------------------
 * The command
 * ---------------------------------------------------------------------------------- */

static int run(const check_args *args) {
  checking *k = calloc(1, sizeof *k);
  ea_spec *spec = calloc(1, sizeof *spec);
  int code = EA_EXIT_FAILURE;
  if (!k || !spec) {
    ea_message("out of memory");
  } else {
    k->args = args;
    const ea_status status = ea_subject_open(&args->device.context, &args->device.plan, &k->subject);
    if (status) {
      code = ea_exit_failed(status);
    } else {
      check_all(k, spec);
      code = exit_code(k);
      if (!args->json) print_text(k);
      if (args->json && !ea_json_print(result_json(k), stdout)) code = EA_EXIT_FAILURE;
      ea_subject_close(&k->subject);
    }
  }
  free(spec);
  free(k);
  return code;
}

static void print_promises(FILE *stream) {
  fputs("Promises:\n", stream);
  for (int p = 0; p < ea_num_promises; p++) {
    fprintf(stream, "  %-12s %s\n", ea_promises[p].name, ea_promises[p].summary);
  }
}

static char *help_text(int key, const char *text, void *input) {
  (void)input;
  return ea_help_with_list(key, text, print_promises);
}

int ea_cmd_check(int argc, char **argv) {
  static const struct argp_child children[] = {{&ea_shape_argp, 0, NULL, 5}, {&ea_device_argp, 0, NULL, 0}, {0}};
  static const struct argp argp = {
      .options = options,
      .parser = parse_option,
      .children = children,
      .help_filter = help_text,
      .doc = "Holds random batches of every feature against the library's promises: rows always written, "
             "unseen NaN without effect, identical bits however the batch is arranged, accuracy against "
             "float64, bad input refused, partial results that merge. The first case that breaks a promise "
             "is made as small as possible and written as a case file. Exit status 1 when a promise is "
             "broken, 3 when the device could do none of the cases.\v"
             "Examples:\n"
             "  extattn check --seconds 10\n"
             "  extattn check --promise bits --device cpu --isa portable --cases 20\n"
             "  extattn check --promise 2 --seed 4711 --cases 1",
  };
  check_args args = {.device = EA_DEVICE_ARGS_INIT, .shape = EA_PROBLEM_INIT, .gen = EA_GEN_OPTIONS_INIT, .dir = "."};
  args.shape.dtype = EA_DTYPE_NONE; /* not given */
  if (argp_parse(&argp, argc, argv, 0, NULL, &args)) return EA_EXIT_FAILURE;
  const int code = ea_folder_check("--directory", args.dir);
  if (code != EA_EXIT_OK) return code;
  const ea_status status = ea_device_settle(&args.device);
  if (status != EA_OK) return ea_exit_failed(status);
  settle(&args);
  return run(&args);
}
