/* What a row's exponentials are relative to: its reference, a score near the maximum of those it has seen; -Inf, while
 * it has seen none.
 *
 * A weight is 2^((score - reference) * scale), as one instruction 2^fma(score, scale, -shift) with shift = reference *
 * scale. That is as exact as can be while the rounding of this product is small; what is summed is relative to the
 * rounded shift then, and whoever moves a reference or writes an lse takes shifts, or the rounding, into account. Above
 * FUSED_LIMIT the rounding shows (at 2^32 it is up to 256: Inf, or nothing, comes out), and such rows go another way:
 * in the portable kernel their scores are first taken relative to the reference (shift_scores); in the Hopper kernels,
 * where an instruction more in the mainloop shows, they are done again in the epilogue (hopper/large.h). */
#ifndef EA_CUDA_KERNELS_REFERENCE_H
#define EA_CUDA_KERNELS_REFERENCE_H

#include "cuda/kernels/logits.h"
#include "cuda/kernels/ptx.h"

#define EA_NAN __int_as_float(0x7fffffff)
#define FUSED_LIMIT 0x1p17f /* log2 units: a rounding is at most 2^-8, and a weight of 1 comes out as 1 */

EA_DEVICE float shift_of(float reference, float scale_log2) {
  return mul_rn(reference, scale_log2);
}
EA_DEVICE bool is_fused(float shift) {
  return fabsf(shift) <= FUSED_LIMIT;
}

/* By how much (log2 units) the weights are relative to more than reference * scale. */
EA_DEVICE float shift_error(float reference, float scale_log2) {
  const float shift = shift_of(reference, scale_log2);
  return is_fused(shift) ? fmaf(-reference, scale_log2, shift) : 0.0f;
}

/* What follows for sums of a row's weights when its reference moves; 0 where it was -Inf. */
EA_DEVICE float reference_factor(float from, float to, float scale_log2) {
  return ex2_approx(fmaf(from - to, scale_log2, shift_error(from, scale_log2) - shift_error(to, scale_log2)));
}

/* The shift for a row's exponentials. Where it is not fused the row's scores, if it has seen any, become relative to
 * the reference. s: of an accumulator of COUNT elements from the row's first on: two of every four are the row's. */
template <int COUNT> EA_DEVICE float shift_scores(float *s, float reference, float scale_log2) {
  const float shift = shift_of(reference, scale_log2);
  if (__builtin_expect(is_fused(shift), 1)) return shift;
  if (reference == MINUS_INF) return 0.0f; /* nothing seen yet: exp2(-inf - 0) = 0 */
#pragma unroll
  for (int e = 0; e < COUNT; e += 4) {
    s[e] -= reference;
    s[e + 1] -= reference;
  }
  return 0.0f;
}

#endif
