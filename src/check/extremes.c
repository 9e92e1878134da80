/* See extremes.h. */
#include "check/extremes.h"

#include <math.h>
#include <string.h>

/* Exponents that a type's numbers may have here: normal ones, and of half the range for bf16 and f32, so that products
 * of two are in f32's. */
typedef struct range {
  int32_t low, high;
} range;

static range range_of(ea_dtype dtype) {
  switch (dtype) {
  case EA_F16:
    return (range){-14, 15};
  case EA_E4M3:
    return (range){-6, 7};
  case EA_E5M2:
    return (range){-14, 14};
  default:
    return (range){-110, 110};
  }
}

static int32_t clamp(int32_t x, range to) {
  return x < to.low ? to.low : x > to.high ? to.high : x;
}

void ea_extremes_draw(ea_rng *rng, ea_spec *spec) {
  const range allowed = range_of(spec->problem.dtype);
  range keys = allowed;
  if (spec->problem.shared_kv && keys.high > 90) keys.high = 90; /* sums of the values that they are stay in f32 */
  /* of the product: anywhere, or where exponentials begin to notice how large a score is */
  const int32_t anywhere = ea_rng_range(rng, -140, 120), noticed = ea_rng_range(rng, 6, 40);
  const int32_t both = ea_rng_percent(rng, 50) ? anywhere : noticed;
  const int32_t apart = ea_rng_range(rng, -20, 20);
  spec->q_exponent = clamp(both / 2 + apart, allowed);
  spec->k_exponent = clamp(both - spec->q_exponent, keys);
}

static int32_t k_exponent(const ea_spec *spec, bool cached) {
  const ea_dtype cache = spec->problem.cache_dtype;
  return cached && cache ? clamp(spec->k_exponent, range_of(cache)) : spec->k_exponent;
}

void ea_extremes_numbers(const ea_spec *spec, bool of_q, bool cached, ea_rng *rng, double *numbers) {
  static const double sizes[] = {1.0, 1.0, 1.0, 129.0 / 128, 130.0 / 128, 255.0 / 128, 0.5, 0x1p-6};
  const ea_problem *problem = &spec->problem;
  const int32_t dim = problem->head_dim, heads = of_q ? problem->num_q_heads : problem->num_kv_heads;
  const int32_t group = problem->num_q_heads / problem->num_kv_heads;
  const int32_t exponent = of_q ? spec->q_exponent : k_exponent(spec, cached);
  memset(numbers, 0, (size_t)heads * (size_t)dim * sizeof *numbers);
  for (int32_t h = 0; h < heads; h++) {
    const uint64_t kv_head = (uint64_t)(of_q ? h / group : h);
    const int32_t d = (int32_t)(ea_mix3(spec->seed, UINT64_C(0x646d), kv_head) % (uint64_t)dim);
    const double size = sizes[ea_rng_below(rng, sizeof sizes / sizeof sizes[0])];
    const double sign = ea_rng_percent(rng, 25) ? -1.0 : 1.0;
    numbers[(int64_t)h * dim + d] = sign * ldexp(size, exponent);
  }
}

double ea_extremes_key_size(const ea_spec *spec) {
  const int32_t cached = k_exponent(spec, true);
  return ldexp(2.0, cached > spec->k_exponent ? cached : spec->k_exponent);
}

double ea_extremes_noise(const ea_spec *spec) {
  const ea_problem *problem = &spec->problem;
  const bool capped = problem->logit_cap > 0, warm = problem->xai_temperature_len > 0;
  if (!spec->extreme || !(capped || warm || problem->k_scale != 1.0 || problem->has_sinks)) return 0.0;
  const double scale = problem->softmax_scale > 0 ? problem->softmax_scale : 1.0 / sqrt(problem->head_dim);
  double logit = ldexp(2.0, spec->q_exponent) * ea_extremes_key_size(spec) * scale * fmax(1.0, problem->k_scale);
  if (capped) logit = fmin(logit, problem->logit_cap);
  if (warm) logit *= 16.0; /* log2 of a position, over log2 of a length of at least 2 */
  return logit * 0x1p-20;
}
