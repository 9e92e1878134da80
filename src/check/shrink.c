/* Makes a failing spec small enough to think about. Greedy: whatever can be taken away while
 * the promise stays broken is taken away. */
#include <string.h>

#include "check/promise.h"

/* Makes spec smaller in one respect, for sequence b where it is about one; false when it
 * already is as small as that. */
typedef struct reduction {
  bool per_seq;
  bool (*reduce)(ea_spec *spec, int32_t b);
} reduction;

static bool drop_second_half(ea_spec *spec, int32_t b) {
  (void)b;
  if (spec->num_seqs < 2) return false;
  spec->num_seqs -= spec->num_seqs / 2;
  return true;
}

static bool drop_seq(ea_spec *spec, int32_t b) {
  if (spec->num_seqs < 2) return false;
  memmove(&spec->seqs[b], &spec->seqs[b + 1], (size_t)(spec->num_seqs - 1 - b) * sizeof spec->seqs[0]);
  spec->num_seqs--;
  return true;
}

static bool change_i32(int32_t *value, int32_t to) {
  if (*value == to) return false;
  *value = to;
  return true;
}

static bool change_bool(bool *value, bool to) {
  if (*value == to) return false;
  *value = to;
  return true;
}

static bool change_double(double *value, double to) {
  if (*value == to) return false;
  *value = to;
  return true;
}

static bool halve_extend(ea_spec *spec, int32_t b) {
  return change_i32(&spec->seqs[b].extend, spec->seqs[b].extend / 2);
}

static bool shorten_extend(ea_spec *spec, int32_t b) {
  return spec->seqs[b].extend > 0 && change_i32(&spec->seqs[b].extend, spec->seqs[b].extend - 1);
}

static bool drop_prefix(ea_spec *spec, int32_t b) {
  return change_i32(&spec->seqs[b].prefix, 0);
}

static bool halve_prefix(ea_spec *spec, int32_t b) {
  return change_i32(&spec->seqs[b].prefix, spec->seqs[b].prefix / 2);
}

static bool shorten_prefix(ea_spec *spec, int32_t b) {
  return spec->seqs[b].prefix > 0 && change_i32(&spec->seqs[b].prefix, spec->seqs[b].prefix - 1);
}

static bool unshare(ea_spec *spec, int32_t b) {
  return change_i32(&spec->seqs[b].shared, 0);
}

static bool one_head_a_group(ea_spec *spec, int32_t b) {
  (void)b;
  return change_i32(&spec->problem.num_q_heads, spec->problem.num_kv_heads);
}

static bool one_group(ea_spec *spec, int32_t b) {
  (void)b;
  const int32_t group = spec->problem.num_q_heads / spec->problem.num_kv_heads;
  spec->problem.num_q_heads = group;
  return change_i32(&spec->problem.num_kv_heads, 1);
}

static bool halve_dims(ea_spec *spec, int32_t b) {
  (void)b;
  ea_problem *problem = &spec->problem;
  if (problem->head_dim_v > 1) problem->head_dim_v /= 2;
  return problem->head_dim > 1 && change_i32(&problem->head_dim, problem->head_dim / 2);
}

static bool without_mask(ea_spec *spec, int32_t b) {
  (void)b;
  spec->window_kv_offsets = false;
  return change_bool(&spec->problem.has_custom_mask, false);
}

static bool without_window(ea_spec *spec, int32_t b) {
  (void)b;
  return change_i32(&spec->problem.window_left, -1);
}

static bool without_sinks(ea_spec *spec, int32_t b) {
  (void)b;
  return change_bool(&spec->problem.has_sinks, false);
}

static bool without_cap(ea_spec *spec, int32_t b) {
  (void)b;
  return change_double(&spec->problem.logit_cap, 0.0);
}

static bool without_temperature(ea_spec *spec, int32_t b) {
  (void)b;
  if (spec->problem.xai_temperature_len <= 0) return false;
  spec->problem.xai_temperature_len = 0;
  return true;
}

static bool default_scale(ea_spec *spec, int32_t b) {
  (void)b;
  return change_double(&spec->problem.softmax_scale, 0.0);
}

static bool without_k_scale(ea_spec *spec, int32_t b) {
  (void)b;
  return change_double(&spec->problem.k_scale, 1.0);
}

static bool without_v_scale(ea_spec *spec, int32_t b) {
  (void)b;
  return change_double(&spec->problem.v_scale, 1.0);
}

static bool causal(ea_spec *spec, int32_t b) {
  (void)b;
  return change_bool(&spec->problem.causal, true);
}

static bool keep_prefix(ea_spec *spec, int32_t b) {
  (void)b;
  return change_bool(&spec->problem.skip_prefix, false);
}

static bool keep_extend(ea_spec *spec, int32_t b) {
  (void)b;
  return change_bool(&spec->problem.skip_extend, false);
}

static bool cache_as_q(ea_spec *spec, int32_t b) {
  (void)b;
  if (spec->problem.cache_dtype == EA_DTYPE_NONE) return false;
  spec->problem.cache_dtype = EA_DTYPE_NONE;
  spec->cache_round_to = spec->round_to;
  return true;
}

static bool pages_of_one(ea_spec *spec, int32_t b) {
  (void)b;
  return change_i32(&spec->problem.page_size, 1);
}

static bool not_hostile(ea_spec *spec, int32_t b) {
  (void)b;
  return change_bool(&spec->hostile, false);
}

static bool without_peaks(ea_spec *spec, int32_t b) {
  (void)b;
  return change_double(&spec->peak, 1.0);
}

static bool without_extremes(ea_spec *spec, int32_t b) {
  (void)b;
  return change_bool(&spec->extreme, false);
}

static bool plain_layout(ea_spec *spec, int32_t b) {
  (void)b;
  const bool plain = !spec->q_layout && !spec->kv_layout && !spec->cache_layout && !spec->out_layout &&
                     !spec->lse_layout && !spec->misalign && !spec->slot_order;
  spec->q_layout = spec->kv_layout = spec->cache_layout = EA_LAYOUT_PACKED;
  spec->out_layout = spec->lse_layout = EA_LAYOUT_PACKED;
  spec->misalign = 0;
  spec->slot_order = EA_SLOTS_ORDERED;
  return !plain;
}

/* What takes most away comes first. */
static const reduction reductions[] = {
    {false, drop_second_half},    {true, drop_seq},       {true, halve_extend},
    {true, drop_prefix},          {true, halve_prefix},   {false, without_mask},
    {false, without_window},      {false, without_sinks}, {false, without_cap},
    {false, without_temperature}, {false, default_scale}, {false, without_k_scale},
    {false, without_v_scale},     {false, causal},        {false, keep_prefix},
    {false, keep_extend},         {false, cache_as_q},    {false, pages_of_one},
    {false, not_hostile},         {false, without_peaks}, {false, without_extremes},
    {false, plain_layout},        {true, unshare},        {false, one_head_a_group},
    {false, one_group},           {false, halve_dims},    {true, shorten_extend},
    {true, shorten_prefix},
};
enum { NUM_REDUCTIONS = sizeof reductions / sizeof reductions[0] };

static void keep_consistent(ea_spec *spec) {
  for (int32_t b = 0; b < spec->num_seqs; b++) {
    ea_spec_seq *seq = &spec->seqs[b];
    if (seq->shared > seq->prefix) seq->shared = seq->prefix;
  }
}

typedef struct shrinking {
  const ea_promise *promise;
  const ea_subject *subject;
  int tries_left;
  ea_spec *spec;
  ea_verdict *verdict;
} shrinking;

/* Takes away as long as the promise stays broken; whether anything was. */
static bool apply(shrinking *s, const reduction *r, int32_t b) {
  bool smaller = false;
  while (s->tries_left > 0 && b < s->spec->num_seqs + !r->per_seq) {
    ea_spec candidate = *s->spec;
    if (!r->reduce(&candidate, b)) break;
    keep_consistent(&candidate);
    ea_verdict verdict = {EA_KEPT, ""};
    s->tries_left--;
    s->promise->check(s->subject, &candidate, &verdict);
    if (verdict.outcome != EA_BROKEN) break;
    *s->spec = candidate;
    *s->verdict = verdict;
    smaller = true;
  }
  return smaller;
}

int ea_promise_shrink(const ea_promise *promise, const ea_subject *subject, int max_tries, ea_spec *spec,
                      ea_verdict *verdict) {
  shrinking s = {promise, subject, max_tries, spec, verdict};
  bool smaller = true;
  while (smaller && s.tries_left > 0) {
    smaller = false;
    for (int r = 0; r < NUM_REDUCTIONS; r++) {
      if (!reductions[r].per_seq) smaller |= apply(&s, &reductions[r], 0);
      for (int32_t b = 0; reductions[r].per_seq && b < spec->num_seqs; b++) smaller |= apply(&s, &reductions[r], b);
    }
  }
  return max_tries - s.tries_left;
}
