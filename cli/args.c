/* Option values, and the groups of options that several commands share: the device that
 * runs and the shape of the problem. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "common/error.h"
#include "common/limits.h"

/* Ends the program: one line and EA_EXIT_BAD_INPUT. */
static void refuse(const struct argp_state *state, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void refuse(const struct argp_state *state, const char *format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  argp_failure(state, EA_EXIT_BAD_INPUT, 0, "%s", text);
}

/* A whole decimal number and nothing else. */
static bool parse_int(const char *text, int64_t *value) {
  char *end;
  errno = 0;
  const long long parsed = strtoll(text, &end, 10);
  if (end == text || *end || errno) return false;
  *value = parsed;
  return true;
}

int64_t ea_arg_int(const struct argp_state *state, const char *option, const char *arg, int64_t min, int64_t max) {
  int64_t value = 0;
  if (!parse_int(arg, &value) || value < min || value > max) {
    refuse(state, "%s: found '%s', allowed %lld to %lld", option, arg, (long long)min, (long long)max);
  }
  return value;
}

double ea_arg_double(const struct argp_state *state, const char *option, const char *arg, double min, bool inclusive) {
  char *end;
  const double value = strtod(arg, &end);
  const bool number = end != arg && !*end && isfinite(value);
  if (!number || (inclusive ? value < min : value <= min)) {
    refuse(state, "%s: found '%s', allowed a finite number %s %g", option, arg, inclusive ? ">=" : ">", min);
  }
  return value;
}

ea_dtype ea_arg_dtype(const struct argp_state *state, const char *option, const char *arg, const ea_dtype *allowed,
                      int num_allowed) {
  char names[128] = "";
  for (int i = 0; i < num_allowed; i++) {
    const char *name = ea_dtype_name(allowed[i]);
    if (!strcmp(arg, name)) return allowed[i];
    const size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", name);
  }
  refuse(state, "%s: found '%s', allowed %s", option, arg, names);
  return EA_DTYPE_NONE;
}

void ea_arg_heads(const struct argp_state *state, const char *option, const char *arg, int32_t *num_q_heads,
                  int32_t *num_kv_heads) {
  char *end = NULL;
  errno = 0;
  const long q = strtol(arg, &end, 10);
  long kv = q;
  bool ok = end != arg && !errno;
  if (ok && *end == '/') {
    const char *rest = end + 1;
    kv = strtol(rest, &end, 10);
    ok = end != rest && !errno;
  }
  if (!ok || *end || q < 1 || kv < 1 || q > INT32_MAX || q % kv != 0) {
    refuse(state, "%s: found '%s', allowed query heads / key-value heads, the first a multiple of the second (32/8)",
           option, arg);
  }
  *num_q_heads = (int32_t)q;
  *num_kv_heads = (int32_t)kv;
}

void ea_refuse_json_file(const struct argp_state *state, const char *file) {
  refuse(state, "--json: found '%s' behind it, allowed --output FILE to write a file", file);
}

void ea_refuse_idle(const struct argp_state *state, const ea_idle_option *options, int num_options) {
  for (int i = 0; i < num_options; i++) {
    const ea_idle_option *o = &options[i];
    if (o->option && o->idle) refuse(state, "--%s: found %s, allowed %s", o->option, o->found, o->allowed);
  }
}

char *ea_help_with_list(int key, const char *text, void (*print)(FILE *stream)) {
  char *list = NULL;
  size_t size = 0;
  FILE *stream = key == ARGP_KEY_HELP_POST_DOC ? open_memstream(&list, &size) : NULL;
  if (!stream) return (char *)text;
  print(stream);
  if (text) fprintf(stream, "\n%s", text);
  fclose(stream);
  return list;
}

/* ------------------------------------------------------------------------------------
 * The device
 * ---------------------------------------------------------------------------------- */

enum { KEY_DEVICE = 'd', KEY_THREADS = 't', KEY_STAGES = 0x200, KEY_FAMILY, KEY_ISA };

static const struct argp_option device_options[] = {
    {"device", KEY_DEVICE, "auto|cpu|cuda[:N]", 0, "Where to run (auto: the first GPU if there is one, else the CPU)",
     10},
    {"stages", KEY_STAGES, "auto|N", 0, "Pipeline depth on a GPU", 10},
    {"family", KEY_FAMILY, "auto|reference|cpu|portable|hopper", 0, "Kernel family", 10},
    {"threads", KEY_THREADS, "N", 0, "CPU threads (0: all cores)", 10},
    {"isa", KEY_ISA, "auto|portable|avx2|avx512|avx512_bf16|amx", 0, "CPU instruction set", 10},
    {0},
};

static void parse_device(const struct argp_state *state, const char *arg, ea_device_args *args) {
  int64_t ordinal = 0;
  args->automatic = !strcmp(arg, "auto");
  if (args->automatic) return;
  if (!strcmp(arg, "cpu")) {
    args->context.device = EA_DEVICE_CPU;
  } else if (!strcmp(arg, "cuda") ||
             (!strncmp(arg, "cuda:", 5) && parse_int(arg + 5, &ordinal) && ordinal >= 0 && ordinal <= INT32_MAX)) {
    args->context.device = EA_DEVICE_CUDA;
  } else {
    refuse(state, "--device: found '%s', allowed auto, cpu, cuda, cuda:N", arg);
  }
  args->context.device_ordinal = (int32_t)ordinal;
}

static ea_isa parse_isa(const struct argp_state *state, const char *arg) {
  if (!strcmp(arg, "auto")) return EA_ISA_AUTO;
  for (ea_isa isa = EA_ISA_PORTABLE; isa <= EA_ISA_AMX; isa++) {
    if (!strcmp(arg, ea_isa_name(isa))) return isa;
  }
  refuse(state, "--isa: found '%s', allowed auto, portable, avx2, avx512, avx512_bf16, amx", arg);
  return EA_ISA_AUTO;
}

static ea_family parse_family(const struct argp_state *state, const char *arg) {
  if (!strcmp(arg, "auto")) return EA_FAMILY_AUTO;
  for (ea_family family = EA_FAMILY_REFERENCE; family <= EA_FAMILY_HOPPER; family++) {
    if (!strcmp(arg, ea_family_name(family))) return family;
  }
  refuse(state, "--family: found '%s', allowed auto, reference, cpu, portable, hopper", arg);
  return EA_FAMILY_AUTO;
}

/* How many fit is a question of the shape and the chip, which the planner answers. */
static int32_t parse_stages(const struct argp_state *state, const char *arg) {
  int64_t stages = 0;
  if (!strcmp(arg, "auto")) return 0;
  if (!parse_int(arg, &stages) || stages < 1 || stages > INT32_MAX) {
    refuse(state, "--stages: found '%s', allowed auto, or as many as fit (extattn plan says how many)", arg);
  }
  return (int32_t)stages;
}

static error_t parse_device_option(int key, char *arg, struct argp_state *state) {
  ea_device_args *args = state->input;
  switch (key) {
  case KEY_DEVICE:
    parse_device(state, arg, args);
    args->given |= EA_OPTION_DEVICE;
    return 0;
  case KEY_STAGES:
    args->plan.stages = parse_stages(state, arg);
    args->given |= EA_OPTION_STAGES;
    return 0;
  case KEY_FAMILY:
    args->plan.family = parse_family(state, arg);
    args->given |= EA_OPTION_FAMILY;
    return 0;
  case KEY_THREADS:
    args->context.num_threads = (int32_t)ea_arg_int(state, "--threads", arg, 0, EA_MAX_THREADS);
    args->given |= EA_OPTION_THREADS;
    return 0;
  case KEY_ISA:
    args->context.isa = parse_isa(state, arg);
    args->given |= EA_OPTION_ISA;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

const struct argp ea_device_argp = {.options = device_options, .parser = parse_device_option};

const char *ea_device_option_given(const ea_device_args *args, unsigned options) {
  static const char *const names[] = {"device", "stages", "family", "threads", "isa"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (args->given & options & 1U << i) return names[i];
  }
  return NULL;
}

ea_status ea_device_settle(ea_device_args *args) {
  if (args->automatic) args->context.device = ea_cuda_device_count() > 0 ? EA_DEVICE_CUDA : EA_DEVICE_CPU;
  args->automatic = false;
  const char *idle = ea_device_option_given(args, EA_OPTIONS_OF_CPU);
  if (!idle || args->context.device == EA_DEVICE_CPU) return EA_OK;
  return ea_fail(EA_ERR_INVALID, "--%s: found on a GPU, allowed with --device cpu", idle);
}

ea_status ea_device_open(const ea_device_args *args, ea_context **context) {
  ea_device_args settled = *args;
  const ea_status status = ea_device_settle(&settled);
  return status == EA_OK ? ea_context_create(&settled.context, context) : status;
}

/* ------------------------------------------------------------------------------------
 * The shape
 * ---------------------------------------------------------------------------------- */

enum { KEY_HEADS = 'H', KEY_HEAD_DIM = 'D', KEY_HEAD_DIM_V = 0x300, KEY_DTYPE, KEY_CACHE_DTYPE, KEY_SHARED_KV };

static const struct argp_option shape_options[] = {
    {"heads", KEY_HEADS, "HQ/HKV", 0, "Query heads / key-value heads", 5},
    {"head-dim", KEY_HEAD_DIM, "D", 0, "Head dimension of queries and keys, 1 to 576", 5},
    {"head-dim-v", KEY_HEAD_DIM_V, "DV", 0, "Head dimension of values (as --head-dim)", 5},
    {"dtype", KEY_DTYPE, "bf16|f16|f32", 0, "Type of queries and new tokens (bf16)", 5},
    {"cache-dtype", KEY_CACHE_DTYPE, "bf16|f16|f32|e4m3|e5m2", 0, "Type of the cache (as --dtype)", 5},
    {"shared-kv", KEY_SHARED_KV, NULL, 0, "Values are the first DV columns of the keys (latent attention)", 5},
    {0},
};

static error_t parse_shape_option(int key, char *arg, struct argp_state *state) {
  static const ea_dtype dtypes[] = {EA_BF16, EA_F16, EA_F32, EA_E4M3, EA_E5M2};
  ea_shape_args *args = state->input;
  ea_problem *problem = args->problem;
  for (const struct argp_option *o = shape_options; o->name; o++) {
    if (o->key == key) args->given = o->name;
  }
  switch (key) {
  case KEY_HEADS:
    ea_arg_heads(state, "--heads", arg, &problem->num_q_heads, &problem->num_kv_heads);
    return 0;
  case KEY_HEAD_DIM:
    problem->head_dim = (int32_t)ea_arg_int(state, "--head-dim", arg, 1, EA_MAX_HEAD_DIM);
    return 0;
  case KEY_HEAD_DIM_V:
    problem->head_dim_v = (int32_t)ea_arg_int(state, "--head-dim-v", arg, 1, EA_MAX_HEAD_DIM);
    return 0;
  case KEY_DTYPE:
    problem->dtype = ea_arg_dtype(state, "--dtype", arg, dtypes, 3);
    return 0;
  case KEY_CACHE_DTYPE:
    problem->cache_dtype = ea_arg_dtype(state, "--cache-dtype", arg, dtypes, 5);
    return 0;
  case KEY_SHARED_KV:
    problem->shared_kv = true;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

const struct argp ea_shape_argp = {.options = shape_options, .parser = parse_shape_option};
