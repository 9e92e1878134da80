/* The table of promises, and what their checks share. */
#include "check/promises.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/promise.h"
#include "common/numeric.h"

const ea_promise ea_promises[] = {
    {"written", 1, "every row is written; one that sees nothing is 0 with lse -inf", ea_aim_written, ea_check_written},
    {"unseen", 2, "NaN and Inf never reach a row that does not see them", ea_aim_nothing, ea_check_unseen},
    {"bits", 3, "the same bits in any batch, order, layout, cut, threads and depth", ea_aim_bits, ea_check_bits},
    {"accuracy", 4, "close to float64 on standard normal input", ea_aim_accuracy, ea_check_accuracy},
    {"extremes", 4, "close to float64 with logits of any size", ea_aim_extremes, ea_check_accuracy},
    {"refusal", 5, "bad input is refused by name, and nothing is written", ea_aim_refusal, ea_check_refusal},
    {"merge", 0, "prefix and new tokens apart, merged by lse, equal the whole", ea_aim_merge, ea_check_merge},
    {"shared_kv", 0, "values inside the keys equal values kept apart", ea_aim_shared_kv, ea_check_shared_kv},
};
const int ea_num_promises = sizeof ea_promises / sizeof ea_promises[0];

const ea_promise *ea_promise_find(const char *name) {
  for (int p = 0; p < ea_num_promises; p++) {
    char number[16];
    snprintf(number, sizeof number, "%d", ea_promises[p].number);
    const bool by_number = ea_promises[p].number > 0 && strcmp(name, number) == 0;
    if (by_number || strcmp(name, ea_promises[p].name) == 0) return &ea_promises[p];
  }
  return NULL;
}

void ea_promise_draw(const ea_promise *promise, const ea_gen_options *options, ea_spec *spec) {
  ea_gen_options aimed = *options;
  promise->aim(&aimed);
  ea_spec_random(&aimed, spec);
}

void ea_aim_nothing(ea_gen_options *options) {
  (void)options;
}

/* ------------------------------------------------------------------------------------
 * Subjects
 * ---------------------------------------------------------------------------------- */

/* One thread, and more than there are pieces of work of one size: both ends of every schedule. */
static ea_status open_other_threads(const ea_context_options *context, ea_subject *subject) {
  const int32_t few = subject->info.num_threads == 1 ? 2 : 1;
  const int32_t counts[] = {few, subject->info.num_threads == 5 ? 7 : 5};
  for (int i = 0; i < 2; i++) {
    ea_context_options other = *context;
    other.num_threads = counts[i];
    const ea_status status = ea_context_create(&other, &subject->other_threads[i]);
    if (status) return status;
  }
  return EA_OK;
}

ea_status ea_subject_open(const ea_context_options *context, const ea_plan_options *plan, ea_subject *subject) {
  *subject = (ea_subject){.info = EA_DEVICE_INFO_INIT, .plan = *plan};
  ea_status status = ea_context_create(context, &subject->context);
  if (!status) status = ea_context_info(subject->context, &subject->info);
  if (!status) status = ea_context_create(NULL, &subject->reference);
  if (!status && context->device == EA_DEVICE_CPU) status = open_other_threads(context, subject);
  if (status) ea_subject_close(subject);
  return status;
}

void ea_subject_close(ea_subject *subject) {
  for (int i = 0; i < 2; i++) ea_context_destroy(subject->other_threads[i]);
  ea_context_destroy(subject->reference);
  ea_context_destroy(subject->context);
  *subject = (ea_subject){0};
}

/* ------------------------------------------------------------------------------------
 * Verdicts
 * ---------------------------------------------------------------------------------- */

void ea_break(ea_verdict *verdict, const char *format, ...) {
  if (verdict->outcome == EA_BROKEN) return; /* the first is the one to read */
  verdict->outcome = EA_BROKEN;
  va_list args;
  va_start(args, format);
  vsnprintf(verdict->text, sizeof verdict->text, format, args);
  va_end(args);
}

void ea_judge_failure(ea_verdict *verdict, const char *what, ea_status status) {
  if (status != EA_ERR_UNSUPPORTED && status != EA_ERR_DOES_NOT_FIT) {
    ea_break(verdict, "%s: %s: %s", what, ea_status_name(status), ea_last_error());
    return;
  }
  if (verdict->outcome == EA_BROKEN) return;
  verdict->outcome = EA_SKIPPED;
  snprintf(verdict->text, sizeof verdict->text, "%s", ea_last_error());
}

/* ------------------------------------------------------------------------------------
 * Running and comparing
 * ---------------------------------------------------------------------------------- */

bool ea_run_spec(ea_context *context, const ea_plan_options *plan, const ea_spec *spec, const char *what,
                 ea_result *result, ea_verdict *verdict) {
  ea_case c;
  *result = (ea_result){0};
  ea_status status = ea_spec_build(spec, &c);
  if (!status) {
    status = ea_check_run(context, plan, &c, ea_out_layout_of(spec), result);
    ea_case_free(&c);
  }
  if (status) ea_judge_failure(verdict, what, status);
  return status == EA_OK;
}

int64_t ea_first_token(const ea_spec *spec, int32_t seq) {
  int64_t token = 0;
  for (int32_t b = 0; b < seq; b++) token += spec->seqs[b].extend;
  return token;
}

bool ea_same_row(const ea_result *a, int64_t token_a, const ea_result *b, int64_t token_b, int32_t head) {
  return memcmp(ea_result_row(a, token_a, head), ea_result_row(b, token_b, head), ea_result_row_bytes(a)) == 0;
}

static uint32_t lse_bits(const ea_result *result, int64_t token, int32_t head) {
  uint32_t bits;
  memcpy(&bits, &result->lse[token * result->heads + head], sizeof bits);
  return bits;
}

bool ea_same_lse(const ea_result *a, int64_t token_a, const ea_result *b, int64_t token_b, int32_t head) {
  if (!a->lse || !b->lse) return true;
  return lse_bits(a, token_a, head) == lse_bits(b, token_b, head);
}

/* The first element that differs, in words. */
static void describe_difference(const ea_result *a, int64_t token_a, const ea_result *b, int64_t token_b, int32_t head,
                                char *text, size_t n) {
  const void *row_a = ea_result_row(a, token_a, head), *row_b = ea_result_row(b, token_b, head);
  const size_t size = ea_dtype_size(a->dtype);
  for (int32_t d = 0; d < a->dim; d++) {
    if (memcmp((const char *)row_a + (size_t)d * size, (const char *)row_b + (size_t)d * size, size) == 0) continue;
    snprintf(text, n, "out[%d] is %.9g, not %.9g", d, ea_load_double(row_b, b->dtype, d),
             ea_load_double(row_a, a->dtype, d));
    return;
  }
  snprintf(text, n, "lse is %.9g, not %.9g", (double)b->lse[token_b * b->heads + head],
           (double)a->lse[token_a * a->heads + head]);
}

bool ea_expect_same(const char *what, const ea_spec *spec, int32_t seq, int32_t i, int32_t head, const ea_result *a,
                    int64_t token_a, const ea_result *b, int64_t token_b, ea_verdict *verdict) {
  if (ea_same_row(a, token_a, b, token_b, head) && ea_same_lse(a, token_a, b, token_b, head)) return true;
  char difference[128];
  describe_difference(a, token_a, b, token_b, head, difference, sizeof difference);
  ea_break(verdict, "%s: sequence %d (%d+%d), new token %d, head %d: %s", what, seq, spec->seqs[seq].prefix,
           spec->seqs[seq].extend, i, head, difference);
  return false;
}
