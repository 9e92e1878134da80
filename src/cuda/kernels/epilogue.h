/* What a row of the output ends with: its denominator, its sink, its lse. */
#ifndef EA_CUDA_KERNELS_EPILOGUE_H
#define EA_CUDA_KERNELS_EPILOGUE_H

#include <stdint.h>

#include "cuda/kernels/element.h"
#include "cuda/kernels/logits.h"
#include "cuda/kernels/ptx.h"
#include "plan/portable.h"
#include "problem/call.h"

/* A row's denominator and reference with its sink: what its output is to be multiplied by, and its lse. A row that
 * saw nothing has neither. */
typedef struct ea_row_end {
  float factor, lse;
} ea_row_end;

/* sum: of the row's weights, which are relative to the reference and, beyond it, to 2^error (reference.h). What may be
 * large, a score or a sink, is compared in natural units, where it comes from. */
EA_DEVICE ea_row_end end_row(const ea_call &call, const ea_portable_launch &launch, float reference, float error,
                             float sum, int head, bool exists) {
  const bool nothing = reference == MINUS_INF; /* no branch: what follows would stand there twice */
  float top = reference * launch.scale, log2_top = error, factor = 1.0f; /* the denominator: sum * e^top * 2^log2_top */
  if (call.sinks && exists && !nothing) {
    const float sink = call.sinks_dtype == EA_F32 ? ((const float *)call.sinks)[head]
                                                  : element_value(((const uint16_t *)call.sinks)[head]);
    const float above = fmaf(fmaf(reference, launch.scale, -sink), LOG2E, error); /* of the row over its sink, log2 */
    if (above >= 0.0f) {
      sum += ex2_approx(-above);
    } else {
      factor = ex2_approx(above);
      sum = fmaf(sum, factor, 1.0f);
      top = sink;
      log2_top = 0.0f;
    }
  }
  return {nothing ? 0.0f : __fdividef(factor, sum), nothing ? MINUS_INF : fmaf(log2_top + __log2f(sum), LN2, top)};
}

#endif
