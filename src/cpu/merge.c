/* Two partial results into one, by their lse, in double. */
#include <math.h>

#include "common/numeric.h"
#include "cpu/cpu.h"
#include "cpu/region.h"

/* A part with lse = -inf saw no key: its weight is none, not a zero to multiply by, since its
 * out may hold anything (0 * NaN is NaN). */
static double part_weight(double lse, double max) {
  return lse == -INFINITY ? 0.0 : exp(lse - max);
}

static double weighted(double weight, const ea_tensor *part, ea_dtype dtype, int64_t at, double lse) {
  return lse == -INFINITY ? 0.0 : weight * ea_load_double(part->data, dtype, at);
}

static int64_t row_offset(const ea_tensor *tensor, int64_t token, int32_t head) {
  return token * tensor->token_stride + head * tensor->head_stride;
}

/* Each element is read from both parts before it is written, so out may be either of them. */
static void merge_row(const ea_merge_args *args, int64_t token, int32_t head) {
  const int64_t row = token * args->num_heads + head;
  const double lse_a = args->lse_a[row];
  const double lse_b = args->lse_b[row];
  const bool any = lse_a != -INFINITY || lse_b != -INFINITY;
  const double max = any ? fmax(lse_a, lse_b) : 0.0;
  const double a = part_weight(lse_a, max);
  const double b = part_weight(lse_b, max);

  const int64_t at_a = row_offset(&args->out_a, token, head);
  const int64_t at_b = row_offset(&args->out_b, token, head);
  const int64_t at = row_offset(&args->out, token, head);
  for (int32_t d = 0; d < args->head_dim_v; ++d) {
    const double sum = weighted(a, &args->out_a, args->dtype, at_a + d, lse_a) +
                       weighted(b, &args->out_b, args->dtype, at_b + d, lse_b);
    ea_store_double(args->out.data, args->dtype, at + d, any ? sum / (a + b) : 0.0);
  }
  if (args->lse) args->lse[row] = any ? (float)(max + log(a + b)) : -INFINITY;
}

static void merge_rows(void *argument, int num_threads) {
  const ea_merge_args *args = argument;
  const int64_t rows = args->num_tokens * args->num_heads;
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    merge_row(args, row / args->num_heads, (int32_t)(row % args->num_heads));
  }
}

void ea_cpu_merge(const ea_merge_args *args, int num_threads) {
  ea_merge_args argument = *args;
  ea_cpu_run_region(merge_rows, &argument, num_threads);
}
