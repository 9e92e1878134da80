/* extattn make-case: a random batch from a seed, as a case file. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "check/generate.h"
#include "check/random.h"
#include "cli.h"
#include "common/error.h"
#include "files.h"
#include "io/case.h"
#include "plan/walk.h"
#include "problem/problem.h"

/* ------------------------------------------------------------------------------------
 * Arguments
 * ---------------------------------------------------------------------------------- */

typedef struct range {
  int32_t low, high;
  bool given;
} range;

typedef enum mask_kind { MASK_ANY, MASK_CAUSAL, MASK_FULL, MASK_RANDOM } mask_kind;

typedef struct make_args {
  const char *out;
  ea_problem shape; /* what the shape options set; 0 where they are not given */
  ea_shape_args shape_args;
  ea_gen_options gen;
  int32_t num_seqs;
  range prefix, extend;
  ea_slot_order slots;
  bool slots_given;
  mask_kind mask;
  bool any;   /* what is not given is drawn */
  bool empty; /* some sequences without prefix, without new tokens, without both */
  bool quiet;
  int32_t prefix_lengths[EA_SPEC_MAX_SEQS], extend_lengths[EA_SPEC_MAX_SEQS]; /* drawn, for gen */
} make_args;

enum {
  KEY_OUT = 'o',
  KEY_SEED = 's',
  KEY_QUIET = 'q',
  KEY_ANY = 0x500,
  KEY_SEQS,
  KEY_PREFIX,
  KEY_EXTEND,
  KEY_PAGE_SIZE,
  KEY_SLOTS,
  KEY_INDEX_DTYPE,
  KEY_WINDOW,
  KEY_CAP,
  KEY_SCALE,
  KEY_K_SCALE,
  KEY_V_SCALE,
  KEY_TEMPERATURE,
  KEY_MASK,
  KEY_MASK_PREFIX,
  KEY_MASK_OFFSETS,
  KEY_SINKS,
  KEY_SKIP_PREFIX,
  KEY_SKIP_EXTEND,
  KEY_STALE_NAN,
  KEY_EMPTY,
  KEY_PEAKS
};

static const struct argp_option options[] = {
    {"output", KEY_OUT, "FILE", 0, "The case file to write (-: standard output)", 1},
    {"seed", KEY_SEED, "N", 0, "The same seed and options give the same file (0)", 1},
    {"any", KEY_ANY, NULL, 0, "Draw from the seed whatever no option sets, instead of the plain values below", 1},
    {"quiet", KEY_QUIET, NULL, 0, "Print nothing", 1},
    {NULL, 0, NULL, 0, "Sizes (heads 8/2, head dimension 128, bf16):", 5},
    {"seqs", KEY_SEQS, "N", 0, "Sequences (4)", 5},
    {"prefix", KEY_PREFIX, "A..B", 0, "Cached tokens of a sequence, between A and B (0..256)", 5},
    {"extend", KEY_EXTEND, "A..B", 0, "New tokens of a sequence (1..64)", 5},
    {"page-size", KEY_PAGE_SIZE, "N", 0, "Slots of a page (1)", 5},
    {"slots", KEY_SLOTS, "ordered|pages|shuffled", 0, "Where the cached tokens lie (shuffled)", 5},
    {"index-dtype", KEY_INDEX_DTYPE, "i32|i64", 0, "Type of the slot numbers (i32)", 5},
    {NULL, 0, NULL, 0, "Rules (causal, nothing else):", 7},
    {"mask", KEY_MASK, "causal|full|random", 0, "Which new tokens see which: random is a custom mask", 7},
    {"mask-prefix", KEY_MASK_PREFIX, NULL, 0, "The custom mask covers the prefix, too", 7},
    {"mask-offsets", KEY_MASK_OFFSETS, NULL, 0, "Give window_kv_offsets with the custom mask", 7},
    {"window", KEY_WINDOW, "W", 0, "Sliding window: W tokens to the left", 7},
    {"cap", KEY_CAP, "C", 0, "Scores are capped: C * tanh(score / C)", 7},
    {"scale", KEY_SCALE, "X", 0, "softmax_scale (1/sqrt of the head dimension)", 7},
    {"k-scale", KEY_K_SCALE, "X", 0, "Scale of cached keys", 7},
    {"v-scale", KEY_V_SCALE, "X", 0, "Scale of cached values", 7},
    {"temperature", KEY_TEMPERATURE, "L", 0, "xai_temperature_len", 7},
    {"sinks", KEY_SINKS, NULL, 0, "A sink logit a query head", 7},
    {"skip-prefix", KEY_SKIP_PREFIX, NULL, 0, "Leave the prefix out", 7},
    {"skip-extend", KEY_SKIP_EXTEND, NULL, 0, "Leave the new tokens out", 7},
    {NULL, 0, NULL, 0, "Hostile input:", 9},
    {"stale-nan", KEY_STALE_NAN, NULL, 0, "NaN and Inf in unused slots and wherever else no row may look", 9},
    {"empty", KEY_EMPTY, NULL, 0, "Some sequences without prefix, without new tokens, or without both", 9},
    {"peaks", KEY_PEAKS, NULL, 0, "One key in sixteen outweighs the others by far", 9},
    {0},
};

static const ea_gen_options no_gen_options = EA_GEN_OPTIONS_INIT;

/* A whole number of which nothing is left over. */
static const char *parse_part(const char *text, int32_t *value) {
  char *end;
  const long long parsed = strtoll(text, &end, 10);
  if (end == text || *text == ' ' || parsed < 0 || parsed > EA_MAX_SEQ_LEN) return NULL;
  *value = (int32_t)parsed;
  return end;
}

/* "A..B", or "A" for "A..A". */
static range parse_range(const struct argp_state *state, const char *option, const char *arg) {
  range r = {.given = true};
  const char *rest = parse_part(arg, &r.low);
  r.high = r.low;
  if (rest && !strncmp(rest, "..", 2)) rest = parse_part(rest + 2, &r.high);
  if (!rest || *rest || r.high < r.low) {
    argp_failure(state, EA_EXIT_BAD_INPUT, 0, "%s: found '%s', allowed A..B with 0 <= A <= B <= %d, or one number",
                 option, arg, EA_MAX_SEQ_LEN);
  }
  return r;
}

/* The place of a word in a list that NULL ends. */
static int parse_word(const struct argp_state *state, const char *option, const char *arg, const char *const *words) {
  char list[128] = "";
  for (int i = 0; words[i]; i++) {
    if (!strcmp(arg, words[i])) return i;
    const size_t used = strlen(list);
    snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
  }
  argp_failure(state, EA_EXIT_BAD_INPUT, 0, "%s: found '%s', allowed %s", option, arg, list);
  return 0;
}

static error_t parse_size(int key, char *arg, struct argp_state *state) {
  static const char *const slots[] = {"ordered", "pages", "shuffled", NULL};
  static const ea_dtype index_dtypes[] = {EA_I32, EA_I64};
  make_args *args = state->input;
  switch (key) {
  case KEY_SEQS:
    args->num_seqs = (int32_t)ea_arg_int(state, "--seqs", arg, 0, EA_SPEC_MAX_SEQS);
    return 0;
  case KEY_PREFIX:
    args->prefix = parse_range(state, "--prefix", arg);
    return 0;
  case KEY_EXTEND:
    args->extend = parse_range(state, "--extend", arg);
    return 0;
  case KEY_PAGE_SIZE:
    args->gen.page_size = (int32_t)ea_arg_int(state, "--page-size", arg, 1, 1 << 20);
    return 0;
  case KEY_SLOTS:
    args->slots = (ea_slot_order)parse_word(state, "--slots", arg, slots);
    args->slots_given = true;
    return 0;
  case KEY_INDEX_DTYPE:
    args->gen.index_dtype = ea_arg_dtype(state, "--index-dtype", arg, index_dtypes, 2);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static error_t parse_rule(int key, char *arg, struct argp_state *state) {
  static const char *const masks[] = {"causal", "full", "random", NULL};
  make_args *args = state->input;
  ea_gen_options *gen = &args->gen;
  switch (key) {
  case KEY_MASK:
    args->mask = (mask_kind)(MASK_CAUSAL + parse_word(state, "--mask", arg, masks));
    return 0;
  case KEY_MASK_PREFIX:
    gen->skip_prefix_custom_mask = EA_NO;
    return 0;
  case KEY_MASK_OFFSETS:
    gen->window_kv_offsets = EA_YES;
    return 0;
  case KEY_WINDOW:
    gen->window_left = (int32_t)ea_arg_int(state, "--window", arg, 1, INT32_MAX);
    return 0;
  case KEY_CAP:
    gen->logit_cap = ea_arg_double(state, "--cap", arg, 0, false);
    return 0;
  case KEY_SCALE:
    gen->softmax_scale = ea_arg_double(state, "--scale", arg, 0, false);
    return 0;
  case KEY_K_SCALE:
    gen->k_scale = ea_arg_double(state, "--k-scale", arg, 0, false);
    return 0;
  case KEY_V_SCALE:
    gen->v_scale = ea_arg_double(state, "--v-scale", arg, 0, false);
    return 0;
  case KEY_TEMPERATURE:
    gen->xai_temperature_len = ea_arg_int(state, "--temperature", arg, 2, INT64_MAX);
    return 0;
  case KEY_SINKS:
    gen->sinks = EA_YES;
    return 0;
  case KEY_SKIP_PREFIX:
    gen->skip_prefix = EA_YES;
    return 0;
  case KEY_SKIP_EXTEND:
    gen->skip_extend = EA_YES;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* Whether the seed or the options make a custom mask. */
static bool may_be_masked(const make_args *args) {
  return args->mask == MASK_RANDOM || (args->any && args->mask == MASK_ANY);
}

static void refuse_idle(const struct argp_state *state, const make_args *args) {
  const ea_gen_options *gen = &args->gen;
  const bool no_mask = !may_be_masked(args);
  const ea_idle_option idle[] = {
      {"mask-prefix", gen->skip_prefix_custom_mask == EA_NO && no_mask, "without a custom mask", "with --mask random"},
      {"mask-offsets", gen->window_kv_offsets == EA_YES && no_mask, "without a custom mask", "with --mask random"},
      {"quiet", args->quiet && ea_is_dash(args->out), "beside --output -", "without it"},
  };
  ea_refuse_idle(state, idle, sizeof idle / sizeof idle[0]);
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  make_args *args = state->input;
  switch (key) {
  case ARGP_KEY_INIT:
    args->shape_args.problem = &args->shape;
    state->child_inputs[0] = &args->shape_args;
    return 0;
  case KEY_OUT:
    args->out = arg;
    return 0;
  case KEY_SEED:
    args->gen.seed = (uint64_t)ea_arg_int(state, "--seed", arg, 0, INT64_MAX);
    return 0;
  case KEY_QUIET:
    args->quiet = true;
    return 0;
  case KEY_ANY:
    args->any = true;
    return 0;
  case KEY_STALE_NAN:
    args->gen.hostile = EA_YES;
    return 0;
  case KEY_EMPTY:
    args->empty = true;
    return 0;
  case KEY_PEAKS:
    args->gen.normal = EA_NO;
    return 0;
  case ARGP_KEY_ARG:
    argp_failure(state, EA_EXIT_BAD_INPUT, 0, "found the argument '%s', allowed options only", arg);
    return 0;
  case ARGP_KEY_END:
    if (!args->out) argp_failure(state, EA_EXIT_BAD_INPUT, 0, "--output: found none, allowed a file's name");
    refuse_idle(state, args);
    return 0;
  default: {
    const error_t size = parse_size(key, arg, state);
    return size == ARGP_ERR_UNKNOWN ? parse_rule(key, arg, state) : size;
  }
  }
}

/* ------------------------------------------------------------------------------------
 * From arguments to a spec
 * ---------------------------------------------------------------------------------- */

static void set_plain(ea_choice *choice) {
  if (*choice == EA_ANY) *choice = EA_NO;
}

/* Plain values for what is left open. */
static void fill_in(make_args *args) {
  ea_gen_options *gen = &args->gen;
  if (!gen->num_q_heads) gen->num_q_heads = 8, gen->num_kv_heads = 2;
  if (!gen->head_dim) gen->head_dim = 128;
  if (!gen->head_dim_v) gen->head_dim_v = gen->head_dim;
  if (!gen->dtype) gen->dtype = EA_BF16;
  if (!gen->cache_dtype) gen->cache_dtype = gen->dtype;
  if (!gen->index_dtype) gen->index_dtype = EA_I32;
  if (!gen->page_size) gen->page_size = 1;
  if (args->num_seqs < 0) args->num_seqs = 4;
  if (!args->prefix.given) args->prefix = (range){0, 256, true};
  if (!args->extend.given) args->extend = (range){1, 64, true};
  if (!args->slots_given) args->slots = EA_SLOTS_SHUFFLED;
  args->slots_given = true;
  if (args->mask == MASK_ANY) args->mask = MASK_CAUSAL;
  if (!gen->window_left) gen->window_left = -1;
  if (gen->logit_cap == 0) gen->logit_cap = -1;
  if (gen->softmax_scale == 0) gen->softmax_scale = -1;
  if (!gen->xai_temperature_len) gen->xai_temperature_len = -1;
  if (gen->k_scale == 0) gen->k_scale = 1;
  if (gen->v_scale == 0) gen->v_scale = 1;
  set_plain(&gen->sinks);
  set_plain(&gen->skip_prefix);
  set_plain(&gen->skip_extend);
  set_plain(&gen->shared_kv);
  set_plain(&gen->window_kv_offsets);
  set_plain(&gen->hostile);
  if (gen->skip_prefix_custom_mask == EA_ANY) gen->skip_prefix_custom_mask = EA_YES;
  if (gen->normal == EA_ANY) gen->normal = EA_YES;
}

static void take_shape(make_args *args) {
  ea_gen_options *gen = &args->gen;
  gen->num_q_heads = args->shape.num_q_heads;
  gen->num_kv_heads = args->shape.num_kv_heads;
  gen->head_dim = args->shape.head_dim;
  gen->head_dim_v = args->shape.head_dim_v;
  gen->dtype = args->shape.dtype;
  gen->cache_dtype = args->shape.cache_dtype;
  if (args->shape.shared_kv) gen->shared_kv = EA_YES;
  gen->strided = EA_NO;
}

static void take_mask(make_args *args) {
  ea_gen_options *gen = &args->gen;
  if (args->mask == MASK_ANY) return;
  gen->custom_mask = args->mask == MASK_RANDOM ? EA_YES : EA_NO;
  gen->causal = args->mask == MASK_FULL ? EA_NO : EA_YES;
}

/* Draws the lengths that options bound. The generator's own are left alone otherwise. */
static void draw_lengths(make_args *args) {
  ea_rng rng = ea_rng_of(ea_mix3(args->gen.seed, UINT64_C(0x6d616b65), 0));
  for (int32_t b = 0; b < args->num_seqs; b++) {
    args->prefix_lengths[b] = ea_rng_range(&rng, args->prefix.low, args->prefix.high);
    args->extend_lengths[b] = ea_rng_range(&rng, args->extend.low, args->extend.high);
  }
  if (args->prefix.given) args->gen.prefix = args->prefix_lengths;
  if (args->extend.given) args->gen.extend = args->extend_lengths;
}

/* Sequence 0 has nothing; of the others, some lack a part. */
static void empty_some(ea_spec *spec) {
  ea_rng rng = ea_rng_of(ea_mix3(spec->seed, UINT64_C(0x656d707479), 0));
  for (int32_t b = 0; b < spec->num_seqs; b++) {
    ea_spec_seq *seq = &spec->seqs[b];
    const uint32_t kind = b == 0 ? 0 : ea_rng_below(&rng, 6);
    if (kind <= 1) seq->prefix = 0;
    if (kind == 0 || kind == 2) seq->extend = 0;
    if (seq->shared > seq->prefix) seq->shared = seq->prefix;
  }
}

/* The generator takes what it is given; what the library would refuse is refused here. */
static ea_status check_spec(const ea_spec *spec) {
  ea_problem resolved;
  const ea_status status = ea_problem_resolve(&spec->problem, &resolved);
  if (status) return status;
  int64_t tokens = 0;
  for (int32_t b = 0; b < spec->num_seqs; b++) {
    const int64_t length = (int64_t)spec->seqs[b].prefix + spec->seqs[b].extend;
    if (length > EA_MAX_SEQ_LEN) {
      return ea_fail(EA_ERR_INVALID, "--prefix, --extend: found a sequence of %" PRId64 " tokens, allowed up to %d",
                     length, EA_MAX_SEQ_LEN);
    }
    tokens += length;
  }
  if (tokens <= INT32_MAX) return EA_OK;
  return ea_fail(EA_ERR_INVALID, "--prefix, --extend: found %" PRId64 " tokens in all, allowed up to %d", tokens,
                 INT32_MAX);
}

static ea_status make_spec(make_args *args, ea_spec *spec) {
  take_shape(args);
  if (!args->any) fill_in(args);
  take_mask(args);
  const bool bounded = args->prefix.given || args->extend.given;
  if (bounded && args->num_seqs < 0) args->num_seqs = 4;
  args->gen.num_seqs = args->num_seqs;
  draw_lengths(args);
  ea_spec_random(&args->gen, spec);
  spec->q_layout = spec->kv_layout = spec->cache_layout = EA_LAYOUT_PACKED; /* as a file is */
  spec->out_layout = spec->lse_layout = EA_LAYOUT_PACKED;
  if (args->slots_given) spec->slot_order = args->slots;
  if (args->empty) empty_some(spec);
  return check_spec(spec);
}

/* ------------------------------------------------------------------------------------
 * The command
 * ---------------------------------------------------------------------------------- */

static int write_case(const make_args *args, const ea_spec *spec) {
  ea_case c;
  ea_case_init(&c);
  ea_status status = ea_spec_build(spec, &c);
  if (status) return ea_exit_failed(status);
  status = ea_case_write(args->out, &c);
  ea_case_free(&c);
  if (status) return ea_exit_failed(status);
  if (!args->quiet && !ea_is_dash(args->out)) {
    char text[1024];
    ea_spec_describe(spec, text, sizeof text);
    printf("%s: seed %" PRIu64 ", %s\n", args->out, args->gen.seed, text);
  }
  return EA_EXIT_OK;
}

int ea_cmd_make_case(int argc, char **argv) {
  static const struct argp_child children[] = {{&ea_shape_argp, 0, NULL, 5}, {0}};
  static const struct argp argp = {
      .options = options,
      .parser = parse_option,
      .children = children,
      .doc = "Writes a random batch as a case file, which `extattn run` runs.\v"
             "Examples:\n"
             "  extattn make-case -o batch.safetensors --seed 7\n"
             "  extattn make-case -o mla.safetensors -H 16/1 -D 576 --shared-kv\n"
             "  extattn make-case -o nasty.safetensors --seed 3 --any --stale-nan --empty",
  };
  make_args args = {.shape = EA_PROBLEM_INIT, .gen = no_gen_options, .num_seqs = -1};
  args.shape.dtype = EA_DTYPE_NONE; /* not given */
  if (argp_parse(&argp, argc, argv, 0, NULL, &args)) return EA_EXIT_FAILURE;
  const ea_file_use files[] = {EA_FILE_WRITTEN("--output", args.out)};
  const int checked = ea_files_check(files, 1);
  if (checked != EA_EXIT_OK) return checked;
  ea_spec *spec = malloc(sizeof *spec);
  if (!spec) {
    ea_message("out of memory");
    return EA_EXIT_FAILURE;
  }
  const ea_status status = make_spec(&args, spec);
  const int code = status ? ea_exit_failed(status) : write_case(&args, spec);
  free(spec);
  return code;
}
