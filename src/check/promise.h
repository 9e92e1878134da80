/* What the promises share: running specs, comparing rows, judging accuracy. Private to this folder. */
#ifndef EA_CHECK_PROMISE_H
#define EA_CHECK_PROMISE_H

#include "check/promises.h"
#include "check/random.h"
#include "check/runner.h"

void ea_aim_written(ea_gen_options *options);
void ea_aim_bits(ea_gen_options *options);
void ea_aim_accuracy(ea_gen_options *options);
void ea_aim_refusal(ea_gen_options *options);
void ea_aim_merge(ea_gen_options *options);
void ea_aim_shared_kv(ea_gen_options *options);
void ea_aim_extremes(ea_gen_options *options);
void ea_aim_nothing(ea_gen_options *options);
void ea_check_written(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict);
void ea_check_unseen(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict);
void ea_check_bits(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict);
void ea_check_accuracy(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict);
void ea_check_refusal(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict);
void ea_check_merge(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict);
void ea_check_shared_kv(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict);

/* Random choices of a check: a function of the spec, and of nothing that shrinking changes. */
static inline ea_rng ea_promise_rng(const ea_spec *spec, uint64_t name) {
  return ea_rng_of(ea_mix3(spec->seed, UINT64_C(0x70726f6d), name));
}

void ea_break(ea_verdict *verdict, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The verdict on a call that failed: skipped where the device cannot, else broken. */
void ea_judge_failure(ea_verdict *verdict, const char *what, ea_status status);

/* Builds and runs a spec. False when there is no result; the verdict then says why. */
bool ea_run_spec(ea_context *context, const ea_plan_options *plan, const ea_spec *spec, const char *what,
                 ea_result *result, ea_verdict *verdict);

/* Whether two rows are the same, bit for bit. */
bool ea_same_row(const ea_result *a, int64_t token_a, const ea_result *b, int64_t token_b, int32_t head);
bool ea_same_lse(const ea_result *a, int64_t token_a, const ea_result *b, int64_t token_b, int32_t head);

/* Breaks the promise unless rows (and lse, where both have one) are the same bits. */
bool ea_expect_same(const char *what, const ea_spec *spec, int32_t seq, int32_t i, int32_t head, const ea_result *a,
                    int64_t token_a, const ea_result *b, int64_t token_b, ea_verdict *verdict);

/* First row of out that belongs to a sequence. */
int64_t ea_first_token(const ea_spec *spec, int32_t seq);

/* The same case with its numbers, already rounded to the spec's types, kept as f32. */
ea_spec ea_spec_in_f32(const ea_spec *spec);

/* The exact answer: the float64 reference on ea_spec_in_f32. */
bool ea_run_exact(const ea_subject *subject, const ea_spec *spec, ea_result *result, ea_verdict *verdict);

/* Breaks the promise unless a result is as close to the exact one as promise 4 says. A merge
 * starts from parts that were rounded to the type once more than promise 4 reckons with: merged
 * allows it that rounding. */
void ea_judge_accuracy(const char *what, const ea_spec *spec, bool merged, const ea_result *result,
                       const ea_result *exact, ea_verdict *verdict);

#endif
