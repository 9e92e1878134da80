/* Promise 3: a row's bits depend on its own tokens and nothing else. A base run is compared,
 * row by row, with runs of the same tokens arranged in every other way. */
#include <stdio.h>
#include <string.h>

#include "check/promise.h"

/* Half of the cases may be re-cut: one type, no scales, nothing skipped. */
void ea_aim_bits(ea_gen_options *options) {
  if (options->seed % 2) return;
  if (options->cache_dtype == EA_DTYPE_NONE) {
    if (options->dtype == EA_DTYPE_NONE) options->dtype = options->seed % 4 ? EA_BF16 : EA_F32;
    options->cache_dtype = options->dtype;
  }
  if (options->k_scale == 0.0) options->k_scale = 1.0;
  if (options->v_scale == 0.0) options->v_scale = 1.0;
  if (options->skip_prefix == EA_ANY) options->skip_prefix = EA_NO;
  if (options->skip_extend == EA_ANY) options->skip_extend = EA_NO;
  if (options->skip_prefix_custom_mask == EA_ANY) options->skip_prefix_custom_mask = EA_NO;
}

typedef struct bits {
  const ea_subject *subject;
  const ea_spec *spec;
  ea_result base;
  ea_rng rng;
  ea_verdict *verdict;
} bits;

/* Another arrangement of the base's tokens. */
typedef struct variant {
  const char *what;
  ea_spec spec;
  int32_t from[EA_SPEC_MAX_SEQS]; /* the base's sequence that each sequence is; -1: none of them */
  bool without_lse;
} variant;

static variant same_as_base(const bits *b, const char *what) {
  variant v = {.what = what, .spec = *b->spec};
  for (int32_t n = 0; n < b->spec->num_seqs; n++) v.from[n] = n;
  return v;
}

static void compare(const bits *b, const variant *v, const ea_result *other) {
  for (int32_t n = 0; n < v->spec.num_seqs; n++) {
    if (v->from[n] < 0) continue;
    const ea_spec_seq *theirs = &v->spec.seqs[n], *ours = &b->spec->seqs[v->from[n]];
    const int64_t their_first = ea_first_token(&v->spec, n), our_first = ea_first_token(b->spec, v->from[n]);
    for (int32_t i = 0; i < theirs->extend; i++) {
      const int32_t our_i = theirs->prefix + i - ours->prefix; /* the same position */
      if (our_i < 0 || our_i >= ours->extend) continue;
      for (int32_t h = 0; h < other->heads; h++) {
        if (!ea_expect_same(v->what, b->spec, v->from[n], our_i, h, &b->base, our_first + our_i, other, their_first + i,
                            b->verdict)) {
          return;
        }
      }
    }
  }
}

static void compare_run(const bits *b, const variant *v, ea_context *context, const ea_plan_options *plan) {
  if (b->verdict->outcome == EA_BROKEN) return;
  ea_case c;
  ea_result other = {0};
  ea_status status = ea_spec_build(&v->spec, &c);
  if (!status) {
    ea_out_layout layout = ea_out_layout_of(&v->spec);
    layout.without_lse = v->without_lse;
    status = ea_check_run(context, plan, &c, layout, &other);
    ea_case_free(&c);
  }
  if (status) {
    ea_judge_failure(b->verdict, v->what, status);
    return;
  }
  compare(b, v, &other);
  ea_result_free(&other);
}

static void compare_variant(const bits *b, const variant *v) {
  compare_run(b, v, b->subject->context, &b->subject->plan);
}

/* ------------------------------------------------------------------------------------
 * Arrangements
 * ---------------------------------------------------------------------------------- */

static void check_without_lse(const bits *b) {
  variant v = same_as_base(b, "run without lse");
  v.without_lse = true;
  compare_variant(b, &v);
}

static void check_alone(bits *b) {
  const int32_t num_seqs = b->spec->num_seqs;
  if (num_seqs < 2) return;
  for (int32_t times = 0; times < 2; times++) {
    variant v = same_as_base(b, "sequence alone");
    v.from[0] = (int32_t)ea_rng_below(&b->rng, (uint32_t)num_seqs);
    v.spec.seqs[0] = b->spec->seqs[v.from[0]];
    v.spec.num_seqs = 1;
    compare_variant(b, &v);
  }
}

static void swap_seqs(variant *v, int32_t a, int32_t b) {
  const ea_spec_seq seq = v->spec.seqs[a];
  const int32_t from = v->from[a];
  v->spec.seqs[a] = v->spec.seqs[b];
  v->from[a] = v->from[b];
  v->spec.seqs[b] = seq;
  v->from[b] = from;
}

/* The batch in another order, with strangers in between. */
static void check_other_batch(bits *b) {
  variant v = same_as_base(b, "batch in another order and with other sequences");
  const int32_t strangers = ea_rng_range(&b->rng, 1, 3);
  for (int32_t s = 0; s < strangers && v.spec.num_seqs < EA_SPEC_MAX_SEQS; s++) {
    const int32_t n = v.spec.num_seqs++;
    v.from[n] = -1;
    v.spec.seqs[n] = (ea_spec_seq){.id = UINT64_C(1) << 40 | (uint64_t)s,
                                   .prefix = ea_rng_range(&b->rng, 0, 70),
                                   .extend = ea_rng_range(&b->rng, 0, 9)};
  }
  for (int32_t n = v.spec.num_seqs - 1; n > 0; n--) swap_seqs(&v, n, (int32_t)ea_rng_below(&b->rng, (uint32_t)n + 1));
  compare_variant(b, &v);
}

static void check_other_slots(bits *b) {
  static const int32_t page_sizes[] = {1, 2, 5, 16, 64, 128};
  variant v = same_as_base(b, "other slots, page size and index types");
  v.spec.layout_seed = ea_rng_next(&b->rng);
  v.spec.slot_order = (ea_slot_order)ea_rng_below(&b->rng, EA_NUM_SLOT_ORDERS);
  v.spec.slots_apart = ea_rng_percent(&b->rng, 50);
  v.spec.problem.page_size = page_sizes[ea_rng_below(&b->rng, 6)];
  v.spec.problem.index_dtype = v.spec.problem.index_dtype == EA_I32 ? EA_I64 : EA_I32;
  v.spec.problem.mask_indptr_dtype = v.spec.problem.mask_indptr_dtype == EA_I32 ? EA_I64 : EA_I32;
  for (int32_t n = 0; n < v.spec.num_seqs; n++) v.spec.seqs[n].mask_offset = ea_rng_range(&b->rng, 0, 9);
  compare_variant(b, &v);
}

static ea_layout other_layout(bits *b) {
  return (ea_layout)ea_rng_below(&b->rng, EA_NUM_LAYOUTS);
}

static void check_other_strides(bits *b) {
  variant v = same_as_base(b, "other strides and addresses");
  v.spec.layout_seed = ea_rng_next(&b->rng);
  v.spec.q_layout = other_layout(b);
  v.spec.kv_layout = other_layout(b);
  v.spec.cache_layout = other_layout(b);
  v.spec.out_layout = other_layout(b);
  v.spec.lse_layout = other_layout(b);
  v.spec.misalign = b->spec->misalign ? 0 : ea_rng_range(&b->rng, 1, 8);
  compare_variant(b, &v);
}

/* Whether visibility, types and scales do not depend on where the prefix ends. */
static bool may_recut(const ea_problem *problem) {
  const bool one_type = !problem->cache_dtype || problem->cache_dtype == problem->dtype;
  const bool no_scales = problem->k_scale == 1.0 && problem->v_scale == 1.0;
  const bool one_rule = !problem->has_custom_mask || !problem->skip_prefix_custom_mask;
  return one_type && no_scales && one_rule && !problem->skip_prefix && !problem->skip_extend;
}

static void check_recut(bits *b) {
  if (!may_recut(&b->spec->problem)) return;
  for (int32_t times = 0; times < 2; times++) {
    variant v = same_as_base(b, "cut elsewhere into prefix and new tokens");
    for (int32_t n = 0; n < v.spec.num_seqs; n++) {
      ea_spec_seq *seq = &v.spec.seqs[n];
      const int32_t total = seq->prefix + seq->extend;
      if (total == 0) continue;
      const int32_t most_new = 2 * seq->extend + 64; /* keeps the work within bounds */
      const int32_t least = total > most_new ? total - most_new : 0;
      seq->prefix = ea_rng_range(&b->rng, least, total - 1);
      seq->extend = total - seq->prefix;
    }
    compare_variant(b, &v);
  }
}

static void check_threads(const bits *b) {
  for (int t = 0; t < 2; t++) {
    if (!b->subject->other_threads[t]) continue;
    const variant v = same_as_base(b, t ? "other number of threads" : "other number of threads (few)");
    compare_run(b, &v, b->subject->other_threads[t], &b->subject->plan);
  }
}

/* Every depth that fits; what a plan may say about its own is the planner's tests' business. */
static void check_depths(const bits *b, int32_t max_stages) {
  for (int32_t stages = 1; stages <= max_stages; stages++) {
    char what[64];
    snprintf(what, sizeof what, "pipeline depth %d", stages);
    const variant v = same_as_base(b, what);
    ea_plan_options plan = b->subject->plan;
    plan.stages = stages;
    compare_run(b, &v, b->subject->context, &plan);
  }
}

static ea_status max_stages_of(const ea_subject *subject, const ea_spec *spec, int32_t *max_stages) {
  ea_plan *plan;
  ea_plan_info info = EA_PLAN_INFO_INIT;
  ea_status status = ea_plan_create(subject->context, &spec->problem, &subject->plan, &plan);
  if (status) return status;
  status = ea_plan_get_info(plan, &info);
  ea_plan_destroy(plan);
  *max_stages = info.max_stages;
  return status;
}

void ea_check_bits(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict) {
  bits b = {.subject = subject, .spec = spec, .rng = ea_promise_rng(spec, 3), .verdict = verdict};
  int32_t max_stages = 1;
  const ea_status status = max_stages_of(subject, spec, &max_stages);
  if (status) {
    ea_judge_failure(verdict, "plan", status);
    return;
  }
  if (!ea_run_spec(subject->context, &subject->plan, spec, "run", &b.base, verdict)) return;
  const variant again = same_as_base(&b, "run again");
  compare_variant(&b, &again);
  check_without_lse(&b);
  check_alone(&b);
  check_other_batch(&b);
  check_other_slots(&b);
  check_other_strides(&b);
  check_recut(&b);
  check_threads(&b);
  if (subject->info.device == EA_DEVICE_CUDA) check_depths(&b, max_stages);
  ea_result_free(&b.base);
}
