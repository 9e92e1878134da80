/* Drawing a random spec, and what can be said about a spec without building it. Every
 * feature has its own stream of random numbers, so that fixing one leaves the others. */
#include "check/generate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check/extremes.h"
#include "check/random.h"

/* Names of the streams. */
enum {
  DRAW_TYPES = 1,
  DRAW_HEADS,
  DRAW_DIMS,
  DRAW_PAGES,
  DRAW_LENGTHS,
  DRAW_SHARING,
  DRAW_RULES,
  DRAW_MASK,
  DRAW_SCORES,
  DRAW_LAYOUT,
  DRAW_CONTENTS,
  DRAW_EXTREMES
};

static ea_rng stream(const ea_gen_options *options, uint64_t name) {
  return ea_rng_of(ea_mix3(options->seed, UINT64_C(0x67656e), name));
}

static bool choose(ea_rng *rng, ea_choice choice, uint32_t percent) {
  const bool drawn = ea_rng_percent(rng, percent);
  return choice == EA_ANY ? drawn : choice == EA_YES;
}

#define PICK(rng, ...)                                                                                                 \
  ((const int32_t[]){__VA_ARGS__})[ea_rng_below(rng, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))]

/* ------------------------------------------------------------------------------------
 * Drawing
 * ---------------------------------------------------------------------------------- */

static void draw_types(const ea_gen_options *options, ea_problem *problem) {
  ea_rng rng = stream(options, DRAW_TYPES);
  const ea_dtype dtype = (ea_dtype)PICK(&rng, EA_BF16, EA_BF16, EA_F16, EA_F32);
  const ea_dtype cache_dtype = (ea_dtype)PICK(&rng, EA_DTYPE_NONE, EA_DTYPE_NONE, EA_DTYPE_NONE, EA_E4M3, EA_E5M2);
  const ea_dtype index_dtype = (ea_dtype)PICK(&rng, EA_I32, EA_I64);
  problem->dtype = options->dtype ? options->dtype : dtype;
  problem->cache_dtype = options->cache_dtype ? options->cache_dtype : cache_dtype;
  if (problem->cache_dtype == problem->dtype && ea_rng_percent(&rng, 50)) problem->cache_dtype = EA_DTYPE_NONE;
  problem->index_dtype = options->index_dtype ? options->index_dtype : index_dtype;
  problem->mask_indptr_dtype = (ea_dtype)PICK(&rng, EA_I32, EA_I64);
  problem->sinks_dtype = (ea_dtype)PICK(&rng, EA_F32, EA_DTYPE_NONE);
}

static void draw_heads(const ea_gen_options *options, ea_problem *problem) {
  ea_rng rng = stream(options, DRAW_HEADS);
  int32_t num_kv_heads = PICK(&rng, 1, 1, 1, 2, 2, 3, 4);
  int32_t group = PICK(&rng, 1, 1, 2, 2, 3, 4, 4, 5, 7, 8, 16);
  if (num_kv_heads * group > 16) num_kv_heads = 1;
  if (options->num_kv_heads) {
    num_kv_heads = options->num_kv_heads;
  } else if (options->num_q_heads) {
    while (options->num_q_heads % num_kv_heads != 0) num_kv_heads--;
  }
  problem->num_kv_heads = num_kv_heads;
  problem->num_q_heads = options->num_q_heads ? options->num_q_heads : num_kv_heads * group;
}

static void draw_dims(const ea_gen_options *options, ea_problem *problem) {
  static const int32_t fast[][2] = {{64, 64},   {96, 96},   {128, 128}, {128, 128}, {192, 192},
                                    {256, 256}, {512, 512}, {192, 128}, {288, 256}, {576, 512}};
  static const int32_t odd[] = {1, 2, 7, 13, 16, 24, 33, 40, 72, 80, 96, 100, 112, 120, 160, 200, 250, 320, 500, 575};
  enum { NUM_FAST = sizeof fast / sizeof fast[0], NUM_ODD = sizeof odd / sizeof odd[0] };
  ea_rng rng = stream(options, DRAW_DIMS);
  const int32_t *pair = fast[ea_rng_below(&rng, NUM_FAST)];
  int32_t head_dim = pair[0], head_dim_v = pair[1];
  const uint32_t kind = ea_rng_below(&rng, 100);
  const int32_t odd_dim = odd[ea_rng_below(&rng, NUM_ODD)], odd_dim_v = odd[ea_rng_below(&rng, NUM_ODD)];
  if (kind >= 60) head_dim = head_dim_v = odd_dim;
  if (kind >= 80) head_dim_v = odd_dim_v;
  if (options->head_dim) {
    if (head_dim_v == head_dim) head_dim_v = options->head_dim;
    head_dim = options->head_dim;
  }
  if (options->head_dim_v) head_dim_v = options->head_dim_v;
  const bool by_default = head_dim_v == head_dim && ea_rng_percent(&rng, 50);
  problem->head_dim = head_dim;
  problem->head_dim_v = by_default ? 0 : head_dim_v;
}

static int32_t head_dim_v_of(const ea_problem *problem) {
  return problem->head_dim_v ? problem->head_dim_v : problem->head_dim;
}

static int32_t draw_page_size(const ea_gen_options *options) {
  ea_rng rng = stream(options, DRAW_PAGES);
  const int32_t page_size = PICK(&rng, 1, 1, 1, 2, 3, 16, 16, 64, 100, 256);
  return options->page_size ? options->page_size : page_size;
}

/* Lengths where loops turn: none, one, and both sides of every usual tile. */
static int32_t draw_length(ea_rng *rng) {
  const int32_t edge = PICK(rng, 8, 16, 32, 48, 64, 80, 96, 112, 128, 144, 192, 256, 384, 512);
  const int32_t near = edge + ea_rng_range(rng, -1, 1);
  const int32_t small = ea_rng_range(rng, 2, 9), any = ea_rng_range(rng, 1, 400);
  const uint32_t kind = ea_rng_below(rng, 100);
  if (kind < 12) return 0;
  if (kind < 25) return 1;
  if (kind < 45) return small;
  return kind < 80 ? near : any;
}

static int64_t seq_pairs(const ea_spec_seq *seq) {
  return (int64_t)seq->extend * ((int64_t)seq->prefix + seq->extend);
}

/* Halves drawn lengths, of the most expensive sequence first, until the work is allowed. */
static void shrink_lengths(const ea_gen_options *options, ea_spec *spec) {
  while (ea_spec_work(spec) > options->max_work) {
    ea_spec_seq *largest = &spec->seqs[0];
    for (int32_t b = 1; b < spec->num_seqs; b++) {
      if (seq_pairs(&spec->seqs[b]) > seq_pairs(largest)) largest = &spec->seqs[b];
    }
    const bool may_prefix = !options->prefix && largest->prefix > 0;
    const bool may_extend = !options->extend && largest->extend > 1;
    if (!may_prefix && !may_extend) return;
    if (may_prefix && (!may_extend || largest->prefix >= largest->extend)) {
      largest->prefix -= largest->prefix / 2 + largest->prefix % 2;
    } else {
      largest->extend -= largest->extend / 2;
    }
  }
}

static void draw_seqs(const ea_gen_options *options, ea_spec *spec) {
  ea_rng rng = stream(options, DRAW_LENGTHS);
  const int32_t drawn = PICK(&rng, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8, 12);
  const int32_t wanted = options->num_seqs >= 0 ? options->num_seqs : drawn;
  spec->num_seqs = wanted < EA_SPEC_MAX_SEQS ? wanted : EA_SPEC_MAX_SEQS;
  for (int32_t b = 0; b < spec->num_seqs; b++) {
    ea_spec_seq *seq = &spec->seqs[b];
    *seq = (ea_spec_seq){.id = (uint64_t)b + 1};
    seq->prefix = draw_length(&rng);
    seq->extend = draw_length(&rng);
    if (options->prefix) seq->prefix = options->prefix[b];
    if (options->extend) seq->extend = options->extend[b];
    seq->mask_offset = ea_rng_percent(&rng, 50) ? ea_rng_range(&rng, 0, 40) : 0;
  }
  shrink_lengths(options, spec);

  /* A few sequences begin with the same tokens, kept once. */
  ea_rng sharing = stream(options, DRAW_SHARING);
  if (!ea_rng_percent(&sharing, 20)) return;
  for (int32_t b = 0; b < spec->num_seqs; b++) {
    ea_spec_seq *seq = &spec->seqs[b];
    seq->prefix_id = UINT64_C(1) << 32 | ea_rng_below(&sharing, 2);
    seq->shared = ea_rng_range(&sharing, 0, seq->prefix);
  }
}

static void draw_rules(const ea_gen_options *options, ea_spec *spec) {
  ea_problem *problem = &spec->problem;
  ea_rng rng = stream(options, DRAW_RULES);
  problem->causal = choose(&rng, options->causal, 80);
  const int32_t any = ea_rng_range(&rng, 1, 300);
  const int32_t window = PICK(&rng, -1, -1, -1, -1, 0, 1, 2, 15, 63, 64, 65, 127, 128, any, any, any, INT32_MAX);
  problem->window_left = options->window_left ? options->window_left : window;
  problem->skip_prefix = choose(&rng, options->skip_prefix, 7);
  problem->skip_extend = choose(&rng, options->skip_extend, 7);
  problem->has_sinks = choose(&rng, options->sinks, 25);
  problem->shared_kv = choose(&rng, options->shared_kv, 12);
  if (problem->shared_kv && head_dim_v_of(problem) > problem->head_dim) {
    if (options->shared_kv == EA_ANY) problem->shared_kv = false;
    if (!options->head_dim_v) problem->head_dim_v = 0;
  }
  spec->v_from_k = problem->shared_kv;

  rng = stream(options, DRAW_MASK);
  problem->has_custom_mask = choose(&rng, options->custom_mask, 22);
  problem->skip_prefix_custom_mask = choose(&rng, options->skip_prefix_custom_mask, 50);
  spec->window_kv_offsets = choose(&rng, options->window_kv_offsets, 50) && problem->has_custom_mask;
  static const double densities[] = {0.0, 0.02, 0.3, 0.5, 0.5, 0.9, 1.0};
  spec->mask_density = densities[ea_rng_below(&rng, sizeof densities / sizeof densities[0])];
}

static void draw_scores(const ea_gen_options *options, ea_problem *problem) {
  ea_rng rng = stream(options, DRAW_SCORES);
  const bool cap = ea_rng_percent(&rng, 30), scale = ea_rng_percent(&rng, 35), warm = ea_rng_percent(&rng, 25);
  const bool k_scale = ea_rng_percent(&rng, 30), v_scale = ea_rng_percent(&rng, 30);
  const double cap_value = ea_rng_percent(&rng, 50) ? 30.0 : 0.5 + 60.0 * ea_rng_uniform(&rng);
  const double scale_value = (0.2 + 1.3 * ea_rng_uniform(&rng)) / sqrt(problem->head_dim);
  /* as of a tensor that uses the whole range of its 8 bits, or of any other */
  const double size = ea_rng_percent(&rng, 50) && ea_is_8_bit(problem->cache_dtype) ? 0.015 : 1.0;
  const double k_value = size * (0.25 + 1.5 * ea_rng_uniform(&rng));
  const double v_value = size * (0.25 + 1.5 * ea_rng_uniform(&rng));
  const int32_t warm_len = PICK(&rng, 2, 3, 16, 17, 100, 1024);
  problem->logit_cap = cap ? cap_value : 0.0;
  problem->softmax_scale = scale ? scale_value : 0.0;
  problem->xai_temperature_len = warm ? warm_len : (int32_t)PICK(&rng, 0, -1);
  problem->k_scale = k_scale ? k_value : 1.0;
  problem->v_scale = v_scale ? v_value : 1.0;
  if (options->logit_cap != 0.0) problem->logit_cap = options->logit_cap == -1.0 ? 0.0 : options->logit_cap;
  if (options->softmax_scale != 0.0) {
    problem->softmax_scale = options->softmax_scale == -1.0 ? 0.0 : options->softmax_scale;
  }
  if (options->xai_temperature_len) problem->xai_temperature_len = options->xai_temperature_len;
  if (options->k_scale != 0.0) problem->k_scale = options->k_scale;
  if (options->v_scale != 0.0) problem->v_scale = options->v_scale;
}

static void draw_layout(const ea_gen_options *options, ea_spec *spec) {
  ea_rng rng = stream(options, DRAW_LAYOUT);
  spec->layout_seed = ea_rng_next(&rng);
  spec->slot_order = (ea_slot_order)ea_rng_below(&rng, EA_NUM_SLOT_ORDERS);
  spec->empty_pool = ea_rng_percent(&rng, 50);
  const bool strided = choose(&rng, options->strided, 50);
  ea_layout *layouts[] = {&spec->q_layout, &spec->kv_layout, &spec->cache_layout, &spec->out_layout, &spec->lse_layout};
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
    *layouts[i] = (ea_layout)ea_rng_below(&rng, strided ? EA_NUM_LAYOUTS : EA_LAYOUT_PADDED);
  }
  const int32_t late = PICK(&rng, 0, 0, 0, 1, 2, 3, 4, 8);
  spec->misalign = strided ? late : 0;
}

static void draw_contents(const ea_gen_options *options, ea_spec *spec) {
  ea_rng rng = stream(options, DRAW_CONTENTS);
  spec->seed = ea_rng_next(&rng);
  spec->hostile = choose(&rng, options->hostile, 50);
  spec->peak = choose(&rng, options->normal, 70) ? 1.0 : 6.0;
}

static double power_of_ten(ea_rng *rng, double low, double high) {
  return pow(10.0, low + (high - low) * ea_rng_uniform(rng));
}

static void draw_extremes(const ea_gen_options *options, ea_spec *spec) {
  ea_problem *problem = &spec->problem;
  ea_rng rng = stream(options, DRAW_EXTREMES);
  spec->extreme = choose(&rng, options->extreme, 10);
  if (problem->shared_kv && options->extreme != EA_YES) spec->extreme = false;
  ea_extremes_draw(&rng, spec);
  /* Caps far away, too: scores then come out as they went in. */
  const bool far = ea_rng_percent(&rng, 30);
  const double far_cap = power_of_ten(&rng, 2.0, 30.0), any_cap = power_of_ten(&rng, -2.0, 30.0);
  if (options->logit_cap != 0.0 || problem->logit_cap == 0.0) return;
  if (spec->extreme || far) problem->logit_cap = spec->extreme ? any_cap : far_cap;
}

void ea_spec_random(const ea_gen_options *options, ea_spec *spec) {
  memset(spec, 0, sizeof *spec);
  spec->problem = (ea_problem)EA_PROBLEM_INIT;
  draw_types(options, &spec->problem);
  draw_heads(options, &spec->problem);
  draw_dims(options, &spec->problem);
  spec->problem.page_size = draw_page_size(options);
  draw_seqs(options, spec);
  draw_rules(options, spec);
  draw_scores(options, &spec->problem);
  draw_layout(options, spec);
  draw_contents(options, spec);
  draw_extremes(options, spec);
  spec->round_to = spec->problem.dtype;
  spec->cache_round_to = spec->problem.cache_dtype ? spec->problem.cache_dtype : spec->problem.dtype;
}

/* ------------------------------------------------------------------------------------
 * Asking
 * ---------------------------------------------------------------------------------- */

int64_t ea_spec_tokens(const ea_spec *spec) {
  int64_t tokens = 0;
  for (int32_t b = 0; b < spec->num_seqs; b++) tokens += spec->seqs[b].extend;
  return tokens;
}

int64_t ea_spec_work(const ea_spec *spec) {
  int64_t pairs = 0;
  for (int32_t b = 0; b < spec->num_seqs; b++) pairs += seq_pairs(&spec->seqs[b]);
  return pairs * spec->problem.num_q_heads * (spec->problem.head_dim + head_dim_v_of(&spec->problem));
}

double ea_spec_cache_gain(const ea_spec *spec, double scale) {
  return ea_is_8_bit(spec->problem.cache_dtype) && scale < 0.1 ? 1.0 / scale : 1.0;
}

/* One row in eight is all zeros or all ones, whatever the density. */
uint8_t ea_spec_mask_byte(const ea_spec *spec, int32_t b, int32_t position, int32_t j) {
  const uint64_t row = ea_mix3(spec->seed ^ UINT64_C(0x6d61736b), spec->seqs[b].id, (uint64_t)position);
  const double density = row % 16 == 0 ? 0.0 : row % 16 == 1 ? 1.0 : spec->mask_density;
  const uint64_t drawn = ea_mix(row + (uint64_t)j);
  const bool visible = (double)(drawn >> 11) * 0x1p-53 < density;
  return visible ? (uint8_t)(1 + drawn % 255) : 0;
}

bool ea_spec_sees(const ea_spec *spec, int32_t b, int32_t i, int32_t j) {
  const ea_problem *problem = &spec->problem;
  const int64_t P = spec->seqs[b].prefix, W = problem->window_left;
  const bool is_prefix = j < P;
  if (problem->skip_prefix && is_prefix) return false;
  if (problem->skip_extend && !is_prefix) return false;
  if (W > 0) {
    if (!(P + i <= j + W)) return false;
    if (!problem->causal && !is_prefix && !(j <= P + i + W)) return false;
  }
  if (problem->has_custom_mask) {
    if (problem->skip_prefix_custom_mask && is_prefix) return true;
    return ea_spec_mask_byte(spec, b, (int32_t)(P + i), j) != 0;
  }
  if (problem->causal) return is_prefix || j - P <= i;
  return true;
}

/* ------------------------------------------------------------------------------------
 * Describing
 * ---------------------------------------------------------------------------------- */

static void describe_rules(const ea_problem *problem, FILE *stream) {
  if (problem->shared_kv) fputs(", shared_kv", stream);
  if (!problem->causal) fputs(", not causal", stream);
  if (problem->window_left > 0) fprintf(stream, ", window %d", problem->window_left);
  if (problem->has_custom_mask) {
    fprintf(stream, ", mask%s", problem->skip_prefix_custom_mask ? " (prefix skipped)" : "");
  }
  if (problem->skip_prefix) fputs(", skip_prefix", stream);
  if (problem->skip_extend) fputs(", skip_extend", stream);
  if (problem->has_sinks) fputs(", sinks", stream);
  if (problem->logit_cap > 0) fprintf(stream, ", cap %g", problem->logit_cap);
  if (problem->xai_temperature_len > 0) fprintf(stream, ", temperature %lld", (long long)problem->xai_temperature_len);
  if (problem->softmax_scale > 0) fprintf(stream, ", scale %g", problem->softmax_scale);
  if (problem->k_scale != 1.0) fprintf(stream, ", k_scale %g", problem->k_scale);
  if (problem->v_scale != 1.0) fprintf(stream, ", v_scale %g", problem->v_scale);
}

void ea_spec_describe(const ea_spec *spec, char *text, size_t n) {
  static const char *const layouts[] = {"packed", "explicit", "padded", "head-major", "interleaved"};
  static const char *const orders[] = {"ordered", "paged", "shuffled"};
  const ea_problem *problem = &spec->problem;
  text[0] = '\0';
  FILE *stream = fmemopen(text, n, "w");
  if (!stream) return;
  fprintf(stream, "%s", ea_dtype_name(problem->dtype));
  if (problem->cache_dtype) fprintf(stream, " cache %s", ea_dtype_name(problem->cache_dtype));
  fprintf(stream, ", heads %d/%d, D %d/%d, page %d, %s %s slots", problem->num_q_heads, problem->num_kv_heads,
          problem->head_dim, head_dim_v_of(problem), problem->page_size, orders[spec->slot_order],
          ea_dtype_name(problem->index_dtype));
  describe_rules(problem, stream);
  fprintf(stream, ", q %s, kv %s, cache %s, out %s", layouts[spec->q_layout], layouts[spec->kv_layout],
          layouts[spec->cache_layout], layouts[spec->out_layout]);
  if (spec->misalign) fprintf(stream, " +%d", spec->misalign);
  if (spec->hostile) fputs(", hostile", stream);
  if (spec->peak != 1.0) fputs(", peaks", stream);
  if (spec->extreme) fprintf(stream, ", extreme: q 2^%d, k 2^%d", spec->q_exponent, spec->k_exponent);
  fprintf(stream, ", %d sequences:", spec->num_seqs);
  for (int32_t b = 0; b < spec->num_seqs; b++) {
    const ea_spec_seq *seq = &spec->seqs[b];
    fprintf(stream, " %d+%d", seq->prefix, seq->extend);
    if (seq->shared) fprintf(stream, "(%d shared)", seq->shared);
  }
  fclose(stream);
  text[n - 1] = '\0'; /* fmemopen leaves a text that fills the buffer open */
}
