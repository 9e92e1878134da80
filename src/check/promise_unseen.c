/* Promise 2: what a row does not see cannot change a bit of it, whatever it holds.
 *
 * First everything that no row sees becomes NaN and Inf at once. Then single keys, values
 * and queries do, which some rows see and others, often of the same block, do not: these
 * must keep their bits, and the others must show that the NaN was really there. */
#include <math.h>
#include <string.h>

#include "check/promise.h"
#include "common/numeric.h"

static void check_hostile(const ea_subject *subject, const ea_spec *clean_spec, const ea_result *clean,
                          ea_verdict *verdict) {
  ea_spec spec = *clean_spec;
  ea_result hostile;
  spec.hostile = true;
  if (!ea_run_spec(subject->context, &subject->plan, &spec, "hostile run", &hostile, verdict)) return;
  int64_t token = 0;
  for (int32_t b = 0; b < spec.num_seqs; b++) {
    for (int32_t i = 0; i < spec.seqs[b].extend; i++, token++) {
      for (int32_t h = 0; h < clean->heads; h++) {
        ea_expect_same("NaN where no row looks", &spec, b, i, h, clean, token, &hostile, token, verdict);
      }
    }
  }
  ea_result_free(&hostile);
}

static bool is_poisoned(const ea_spec *spec, const ea_poison *where) {
  for (int32_t p = 0; p < spec->num_poisons; p++) {
    const ea_poison *other = &spec->poisons[p];
    const bool same_token = other->id == where->id && other->position == where->position;
    if (same_token && other->part == where->part && other->head == where->head) return true;
  }
  return false;
}

/* Poisons a few random tokens; in every case at least one, when there is any. */
static void add_poisons(ea_spec *spec) {
  static const double values[] = {NAN, NAN, NAN, INFINITY, -INFINITY};
  ea_rng rng = ea_promise_rng(spec, 2);
  const int32_t wanted = ea_rng_range(&rng, 1, 4);
  for (int32_t p = 0; p < wanted && spec->num_seqs > 0; p++) {
    const int32_t b = (int32_t)ea_rng_below(&rng, (uint32_t)spec->num_seqs);
    const ea_spec_seq *seq = &spec->seqs[b];
    const double where = ea_rng_uniform(&rng), head = ea_rng_uniform(&rng);
    ea_poison poison = {.part = (ea_poison_part)ea_rng_below(&rng, 3)};
    poison.value = values[ea_rng_below(&rng, sizeof values / sizeof values[0])];
    if (seq->extend == 0) continue;
    if (poison.part == EA_POISON_V && spec->v_from_k) poison.part = EA_POISON_K;
    if (poison.part == EA_POISON_Q) {
      poison.position = seq->prefix + (int32_t)(where * seq->extend);
      poison.head = (int32_t)(head * spec->problem.num_q_heads);
    } else {
      poison.position = (int32_t)(where * (seq->prefix + seq->extend));
      poison.head = (int32_t)(head * spec->problem.num_kv_heads);
    }
    poison.id = ea_spec_token_id(seq, poison.position);
    if (!is_poisoned(spec, &poison)) spec->poisons[spec->num_poisons++] = poison;
  }
}

/* What the poisons do to one row. */
typedef struct effect {
  bool reaches; /* at all: anything may happen to out, and to lse */
  bool only_v;  /* reaches out alone */
  bool out_nan; /* out must not be finite */
  bool lse_nan; /* nor lse */
} effect;

static effect effect_on(const ea_spec *spec, int32_t seq, int32_t i, int32_t head, bool sees_any) {
  effect e = {false, true, false, false};
  const int32_t group = spec->problem.num_q_heads / spec->problem.num_kv_heads;
  for (int32_t p = 0; p < spec->num_poisons && sees_any; p++) {
    const ea_poison *poison = &spec->poisons[p];
    const ea_spec_seq *s = &spec->seqs[seq];
    const bool is_q = poison->part == EA_POISON_Q;
    if (poison->position >= s->prefix + s->extend || ea_spec_token_id(s, poison->position) != poison->id) continue;
    if (poison->head != (is_q ? head : head / group)) continue;
    const bool seen = is_q ? poison->position == s->prefix + i : ea_spec_sees(spec, seq, i, poison->position);
    if (!seen) continue;
    e.reaches = true;
    e.only_v = e.only_v && poison->part == EA_POISON_V;
    e.out_nan = e.out_nan || isnan(poison->value);
    e.lse_nan = e.lse_nan || (isnan(poison->value) && poison->part != EA_POISON_V);
  }
  return e;
}

static bool all_not_finite(const ea_result *result, int64_t token, int32_t head) {
  const void *row = ea_result_row(result, token, head);
  for (int32_t d = 0; d < result->dim; d++) {
    if (isfinite(ea_load_double(row, result->dtype, d))) return false;
  }
  return true;
}

static bool sees_any_key(const ea_spec *spec, int32_t seq, int32_t i) {
  for (int32_t j = 0; j < spec->seqs[seq].prefix + spec->seqs[seq].extend; j++) {
    if (ea_spec_sees(spec, seq, i, j)) return true;
  }
  return false;
}

static void check_row(const ea_spec *spec, int32_t seq, int32_t i, int64_t token, int32_t head, bool sees_any,
                      const ea_result *clean, const ea_result *poisoned, ea_verdict *verdict) {
  const effect e = effect_on(spec, seq, i, head, sees_any);
  if (!e.reaches) {
    ea_expect_same("a NaN or Inf that the row does not see", spec, seq, i, head, clean, token, poisoned, token,
                   verdict);
    return;
  }
  if (e.only_v && !ea_same_lse(clean, token, poisoned, token, head)) {
    ea_break(verdict, "a NaN or Inf in v: sequence %d, new token %d, head %d: lse changed", seq, i, head);
  }
  const bool out_shows = !e.out_nan || all_not_finite(poisoned, token, head);
  const bool lse_shows = !e.lse_nan || !isfinite(poisoned->lse[token * poisoned->heads + head]);
  if (!out_shows || !lse_shows) {
    ea_break(verdict, "a NaN that the row sees: sequence %d (%d+%d), new token %d, head %d: result is finite", seq,
             spec->seqs[seq].prefix, spec->seqs[seq].extend, i, head);
  }
}

static void check_poisoned(const ea_subject *subject, const ea_spec *clean_spec, const ea_result *clean,
                           ea_verdict *verdict) {
  ea_spec spec = *clean_spec;
  ea_result poisoned;
  add_poisons(&spec);
  if (!ea_run_spec(subject->context, &subject->plan, &spec, "poisoned run", &poisoned, verdict)) return;
  int64_t token = 0;
  for (int32_t b = 0; b < spec.num_seqs; b++) {
    for (int32_t i = 0; i < spec.seqs[b].extend; i++, token++) {
      const bool sees_any = sees_any_key(&spec, b, i);
      for (int32_t h = 0; h < clean->heads; h++) {
        check_row(&spec, b, i, token, h, sees_any, clean, &poisoned, verdict);
      }
    }
  }
  ea_result_free(&poisoned);
}

void ea_check_unseen(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict) {
  ea_spec clean_spec = *spec;
  ea_result clean;
  clean_spec.hostile = false;
  if (!ea_run_spec(subject->context, &subject->plan, &clean_spec, "clean run", &clean, verdict)) return;
  check_hostile(subject, &clean_spec, &clean, verdict);
  check_poisoned(subject, &clean_spec, &clean, verdict);
  ea_result_free(&clean);
}
