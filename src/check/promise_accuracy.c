/* Promise 4, and the two rules that are judged by it: merging, and values inside the keys.
 *
 * The exact answer is the float64 reference on the same numbers, kept in f32, so that its own
 * rounding to a 16-bit result is no part of the error that is measured. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/extremes.h"
#include "check/promise.h"
#include "common/numeric.h"
#include "cuda/memory.h"

void ea_aim_accuracy(ea_gen_options *options) {
  if (options->normal == EA_ANY) options->normal = EA_YES;
  if (options->extreme == EA_ANY) options->extreme = EA_NO;
}

void ea_aim_extremes(ea_gen_options *options) {
  options->extreme = EA_YES;
  if (options->shared_kv == EA_ANY) options->shared_kv = EA_NO;
}

void ea_aim_merge(ea_gen_options *options) {
  ea_aim_accuracy(options);
  options->skip_prefix = options->skip_extend = EA_NO;
  options->sinks = EA_NO; /* both parts would count it */
}

void ea_aim_shared_kv(ea_gen_options *options) {
  ea_aim_accuracy(options);
  options->shared_kv = EA_YES;
  if (options->head_dim && options->head_dim_v > options->head_dim)
    options->head_dim_v = 0; /* they do not fit inside */
}

/* ------------------------------------------------------------------------------------
 * The exact answer
 * ---------------------------------------------------------------------------------- */

ea_spec ea_spec_in_f32(const ea_spec *spec) {
  ea_spec wide = *spec;
  ea_problem *problem = &wide.problem;
  if (problem->cache_dtype == problem->dtype) problem->cache_dtype = EA_DTYPE_NONE;
  problem->dtype = EA_F32;
  return wide;
}

bool ea_run_exact(const ea_subject *subject, const ea_spec *spec, ea_result *result, ea_verdict *verdict) {
  const ea_spec wide = ea_spec_in_f32(spec);
  ea_plan_options plan = EA_PLAN_OPTIONS_INIT;
  plan.family = EA_FAMILY_REFERENCE;
  return ea_run_spec(subject->reference, &plan, &wide, "reference", result, verdict);
}

/* ------------------------------------------------------------------------------------
 * Bounds
 * ---------------------------------------------------------------------------------- */

/* How much larger the scores' standard deviation is than with the default scale, for which
 * the bound is meant; at least 1. An error of f32 arithmetic in a score is relative to the
 * score, and exp turns it into a relative error of the result. */
static double score_gain(const ea_spec *spec) {
  const ea_problem *problem = &spec->problem;
  double gain = fmax(1.0, problem->k_scale);
  if (problem->softmax_scale > 0) gain *= problem->softmax_scale * sqrt(problem->head_dim);
  double last = 1.0;
  for (int32_t b = 0; b < spec->num_seqs; b++) last = fmax(last, spec->seqs[b].prefix + spec->seqs[b].extend);
  const double L = (double)problem->xai_temperature_len;
  if (L > 0 && last > L) gain *= log2(last) / log2(L);
  return fmax(1.0, gain);
}

/* Relative Frobenius norm of out's error, as promised in docs/testing.md. */
static double out_bound(const ea_spec *spec) {
  switch (spec->problem.dtype) {
  case EA_BF16:
    return 3e-3;
  case EA_F16:
    return 5e-4;
  default:
    return 1e-5 * score_gain(spec);
  }
}

/* Error that an element may have however small it is: half the distance of the type's smallest
 * numbers, where these are not flushed to zero, as GPUs flush those of f32. */
static double out_quantum(ea_dtype dtype) {
  return dtype == EA_F16 ? 0x1p-25 : 0x1p-126;
}

/* Largest error of lse. Products of 16-bit numbers are exact in f32 and their sum, the scores,
 * the exponentials and the denominator are kept in f32 by every backend, so the bound does not
 * depend on the type; but a backend may sum the denominator from exponentials that it already
 * rounded to the type for the second product, or compute them by a polynomial of that accuracy,
 * which the looser bounds of the 16-bit types leave room for. */
static double lse_bound(const ea_spec *spec, double lse) {
  const double f32 = 1e-5 * score_gain(spec) * (1.0 + fabs(lse));
  return spec->problem.dtype == EA_BF16 ? fmax(f32, 2e-3) : spec->problem.dtype == EA_F16 ? fmax(f32, 5e-4) : f32;
}

/* ------------------------------------------------------------------------------------
 * Judging
 * ---------------------------------------------------------------------------------- */

/* Sums over the rows judged so far. */
typedef struct judge {
  const char *what;
  const ea_spec *spec;
  const ea_result *result, *exact;
  double bound;
  double value_size; /* standard deviation of the largest values, at least 1 */
  double noise;      /* of logits: f32 cannot tell apart what is nearer than that */
  double squared_error, squared_exact, squared_floor, elements, rows;
  ea_verdict *verdict;
} judge;

static double value_size(const ea_spec *spec) {
  if (spec->extreme && spec->v_from_k) return fmax(1.0, spec->problem.v_scale) * ea_extremes_key_size(spec);
  const double scale = spec->v_from_k ? spec->problem.k_scale : spec->problem.v_scale;
  return fmax(1.0, spec->problem.v_scale * ea_spec_cache_gain(spec, scale));
}

static int64_t count_seen(const ea_spec *spec, int32_t seq, int32_t i) {
  int64_t seen = 0;
  for (int32_t j = 0; j < spec->seqs[seq].prefix + spec->seqs[seq].extend; j++) seen += ea_spec_sees(spec, seq, i, j);
  return seen;
}

static void judge_lse(const judge *g, int32_t seq, int32_t i, int64_t at) {
  const double found = (double)g->result->lse[at], exact = (double)g->exact->lse[at];
  if (found == exact || fabs(found - exact) <= lse_bound(g->spec, exact) + g->noise) return;
  ea_break(g->verdict, "%s: sequence %d (%d+%d), new token %d, head %d: lse is %.9g, exactly %.9g, allowed +-%.2g",
           g->what, seq, g->spec->seqs[seq].prefix, g->spec->seqs[seq].extend, i, (int)(at % g->result->heads), found,
           exact, lse_bound(g->spec, exact));
}

/* Adds one row to the sums; and no element may be off by much more than the
 * norm of its row allows, so that a wrong element among many right ones shows too. */
static void judge_row(judge *g, int32_t seq, int32_t i, int64_t token, int32_t head, int64_t seen) {
  const void *found = ea_result_row(g->result, token, head), *exact = ea_result_row(g->exact, token, head);
  const int32_t dim = g->result->dim;
  const double typical = seen ? g->value_size / sqrt((double)seen) : 0.0; /* of a mean of so many values, at least */
  double squared = 0;
  for (int32_t d = 0; d < dim; d++) {
    const double x = ea_load_double(exact, EA_F32, d);
    squared += x * x;
  }
  /* Two means of the same values, by weights that differ by as much as the noise lets them. */
  const double unsettled = fmin(1.0, 2.0 * g->noise) * 16.0 * g->value_size;
  const double row = dim >= 16 ? fmax(sqrt(squared / dim), typical) : g->value_size;
  for (int32_t d = 0; d < dim; d++) {
    const double x = ea_load_double(exact, EA_F32, d), y = ea_load_double(found, g->result->dtype, d);
    const double error = y - x, allowed = 16.0 * g->bound * (fabs(x) + row) + unsettled;
    g->squared_error += error * error;
    if (fabs(error) <= allowed) continue;
    ea_break(g->verdict,
             "%s: sequence %d (%d+%d), new token %d, head %d: out[%d] is %.9g, exactly %.9g, allowed +-%.2g", g->what,
             seq, g->spec->seqs[seq].prefix, g->spec->seqs[seq].extend, i, head, d, y, x, allowed);
  }
  g->squared_exact += squared;
  g->squared_floor += dim * typical * typical;
  g->elements += dim;
  g->rows += 1;
}

/* What a rounding to the type adds to a relative Frobenius norm: errors spread evenly up to half a
 * unit in the last place, so that divided by the square root of 3. */
static double rounding_error(ea_dtype dtype) {
  const double half_unit = dtype == EA_BF16 ? 0x1p-8 : dtype == EA_F16 ? 0x1p-11 : 0x1p-24;
  return half_unit / sqrt(3.0);
}

void ea_judge_accuracy(const char *what, const ea_spec *spec, bool merged, const ea_result *result,
                       const ea_result *exact, ea_verdict *verdict) {
  judge g = {
      .what = what, .spec = spec, .result = result, .exact = exact, .bound = out_bound(spec), .verdict = verdict};
  g.value_size = value_size(spec);
  g.noise = ea_extremes_noise(spec);
  if (merged) g.bound = hypot(g.bound, rounding_error(spec->problem.dtype)); /* independent of the other errors */
  int64_t token = 0;
  for (int32_t b = 0; b < spec->num_seqs; b++) {
    for (int32_t i = 0; i < spec->seqs[b].extend; i++, token++) {
      const int64_t seen = count_seen(spec, b, i);
      for (int32_t h = 0; h < result->heads; h++) {
        judge_lse(&g, b, i, token * result->heads + h);
        judge_row(&g, b, i, token, h, seen);
      }
    }
  }
  if (g.noise > 0.0) return; /* what was allowed a row is all that can be said */
  /* A few numbers may be small by chance, and their error then large beside them. */
  const double size = g.elements < 1000 ? fmax(g.squared_exact, g.squared_floor) : g.squared_exact;
  const double quantum = out_quantum(spec->problem.dtype);
  const double squared_error = fmax(0.0, g.squared_error - g.elements * quantum * quantum);
  const double relative = squared_error > 0 ? sqrt(squared_error / size) : 0.0;
  /* The bound is for a mean over many rows; the roundings of a row's weights are common to all of
   * its elements, so a few rows vary. */
  const double allowed = g.rows < 256 ? g.bound * (1.0 + 1.0 / sqrt(g.rows + 1.0)) : g.bound;
  if (relative <= allowed) return;
  ea_break(verdict, "%s: relative error %.3g (Frobenius, %.0f elements), allowed %.3g", what, relative, g.elements,
           allowed);
}

void ea_check_accuracy(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict) {
  ea_result result, exact;
  if (!ea_run_spec(subject->context, &subject->plan, spec, "run", &result, verdict)) return;
  if (ea_run_exact(subject, spec, &exact, verdict)) {
    ea_judge_accuracy("run", spec, false, &result, &exact, verdict);
    ea_result_free(&exact);
  }
  ea_result_free(&result);
}

/* ------------------------------------------------------------------------------------
 * Values inside the keys
 * ---------------------------------------------------------------------------------- */

void ea_check_shared_kv(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict) {
  ea_spec shared = *spec, apart = *spec;
  ea_result result, exact;
  shared.problem.shared_kv = true;
  apart.problem.shared_kv = false;
  shared.v_from_k = apart.v_from_k = true;
  if (!ea_run_exact(subject, &apart, &exact, verdict)) return;
  if (ea_run_spec(subject->context, &subject->plan, &shared, "shared_kv", &result, verdict)) {
    ea_judge_accuracy("shared_kv", &shared, false, &result, &exact, verdict);
    ea_result_free(&result);
  }
  if (ea_run_spec(subject->context, &subject->plan, &apart, "v apart", &result, verdict)) {
    ea_judge_accuracy("v apart", &apart, false, &result, &exact, verdict);
    ea_result_free(&result);
  }
  ea_result_free(&exact);
}

/* ------------------------------------------------------------------------------------
 * Merging
 * ---------------------------------------------------------------------------------- */

/* Two parts and their merge on the subject's device. */
typedef struct merging {
  ea_context *context;
  void *out[3];
  float *lse[3];
} merging;

static ea_status merge_on_device(merging *m, const ea_result parts[2], ea_result *merged) {
  const size_t rows = (size_t)parts[0].tokens * (size_t)parts[0].heads;
  const size_t out_bytes = rows * ea_result_row_bytes(&parts[0]), lse_bytes = rows * sizeof(float);
  for (int p = 0; p < 3; p++) {
    ea_status status = ea_mem_alloc(m->context, out_bytes, &m->out[p]);
    if (!status) status = ea_mem_alloc(m->context, lse_bytes, (void **)&m->lse[p]);
    if (!status && p < 2) status = ea_mem_upload(m->context, m->out[p], parts[p].out, out_bytes, NULL);
    if (!status && p < 2) status = ea_mem_upload(m->context, m->lse[p], parts[p].lse, lse_bytes, NULL);
    if (status) return status;
  }
  ea_merge_args args = EA_MERGE_ARGS_INIT;
  args.dtype = parts[0].dtype;
  args.num_tokens = parts[0].tokens;
  args.num_heads = parts[0].heads;
  args.head_dim_v = parts[0].dim;
  args.out_a.data = m->out[0];
  args.out_b.data = m->out[1];
  args.out.data = m->out[2];
  args.lse_a = m->lse[0];
  args.lse_b = m->lse[1];
  args.lse = m->lse[2];
  ea_status status = ea_merge(m->context, &args, NULL);
  if (!status) status = ea_mem_download(m->context, merged->out, m->out[2], out_bytes, NULL);
  if (!status) status = ea_mem_download(m->context, merged->lse, m->lse[2], lse_bytes, NULL);
  return status;
}

/* The merge replaces what the first part held. */
static ea_status merge(ea_context *context, ea_result parts[2]) {
  merging m = {.context = context};
  const ea_status status = merge_on_device(&m, parts, &parts[0]);
  for (int p = 0; p < 3; p++) {
    ea_mem_free(context, m.out[p]);
    ea_mem_free(context, m.lse[p]);
  }
  return status;
}

void ea_check_merge(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict) {
  ea_spec only_new = *spec, only_prefix = *spec;
  only_new.problem.skip_prefix = true;
  only_prefix.problem.skip_extend = true;
  ea_result parts[2] = {{0}, {0}}, exact = {0};
  if (ea_run_spec(subject->context, &subject->plan, &only_new, "new tokens", &parts[0], verdict) &&
      ea_run_spec(subject->context, &subject->plan, &only_prefix, "prefix", &parts[1], verdict) &&
      ea_run_exact(subject, spec, &exact, verdict)) {
    const ea_status status = merge(subject->context, parts);
    if (status) {
      ea_judge_failure(verdict, "merge", status);
    } else {
      ea_judge_accuracy("merge", spec, true, &parts[0], &exact, verdict);
    }
  }
  ea_result_free(&parts[0]);
  ea_result_free(&parts[1]);
  ea_result_free(&exact);
}
