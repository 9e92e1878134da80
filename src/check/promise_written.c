/* Promise 1: every row of out and lse is written (the runner sees to that), a row that sees
 * no key is 0 with lse = -inf, and any other is finite. */
#include <math.h>

#include "check/promise.h"
#include "common/numeric.h"

/* Half of the cases have masks that leave rows without a key. */
void ea_aim_written(ea_gen_options *options) {
  if (options->custom_mask == EA_ANY && options->seed % 2) options->custom_mask = EA_YES;
  if (options->skip_extend == EA_ANY && options->seed % 4 == 0) options->skip_extend = EA_YES;
}

static int64_t count_seen(const ea_spec *spec, int32_t seq, int32_t i) {
  int64_t seen = 0;
  for (int32_t j = 0; j < spec->seqs[seq].prefix + spec->seqs[seq].extend; j++) seen += ea_spec_sees(spec, seq, i, j);
  return seen;
}

/* All elements are 0, or all are finite. */
static bool row_is(const ea_result *result, int64_t token, int32_t head, bool zero) {
  const void *row = ea_result_row(result, token, head);
  for (int32_t d = 0; d < result->dim; d++) {
    const double x = ea_load_double(row, result->dtype, d);
    if (zero ? x != 0.0 : !isfinite(x)) return false;
  }
  return true;
}

static void check_row(const ea_spec *spec, const ea_result *result, int32_t seq, int32_t i, int64_t token,
                      ea_verdict *verdict) {
  const int64_t seen = count_seen(spec, seq, i);
  for (int32_t h = 0; h < result->heads; h++) {
    const float lse = result->lse[token * result->heads + h];
    const bool lse_right = seen ? isfinite(lse) : lse == -INFINITY;
    if (lse_right && row_is(result, token, h, seen == 0)) continue;
    ea_break(verdict, "sequence %d (%d+%d), new token %d, head %d sees %lld keys: lse is %g, out is %s", seq,
             spec->seqs[seq].prefix, spec->seqs[seq].extend, i, h, (long long)seen, (double)lse,
             row_is(result, token, h, true)    ? "all zeros"
             : row_is(result, token, h, false) ? "finite"
                                               : "not finite");
    return;
  }
}

void ea_check_written(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict) {
  ea_result result;
  if (!ea_run_spec(subject->context, &subject->plan, spec, "run", &result, verdict)) return;
  int64_t token = 0;
  for (int32_t b = 0; b < spec->num_seqs; b++) {
    for (int32_t i = 0; i < spec->seqs[b].extend; i++) check_row(spec, &result, b, i, token++, verdict);
  }
  ea_result_free(&result);
}
