/* What a row of the output ends with: its denominator, its sink, its lse. */
#ifndef EA_CUDA_KERNELS_EPILOGUE_H
#define EA_CUDA_KERNELS_EPILOGUE_H

#include <stdint.h>

#include "cuda/kernels/element.h"
#include "cuda/kernels/logits.h"
#include "cuda/kernels/ptx.h"
#include "plan/portable.h"
#include "problem/call.h"

/* What a row's output is to be multiplied by, and its lse: of its denominator and reference with its sink. A row that
 * saw nothing has neither. */
typedef struct ea_row_end {
  float factor, lse;
} ea_row_end;

EA_DEVICE float sink_of(const ea_call &call, int head) {
  return call.sinks_dtype == EA_F32 ? ((const float *)call.sinks)[head]
                                    : element_value(((const uint16_t *)call.sinks)[head]);
}

/* sum: of weights relative to the reference times scale_log2, rounded: what fused exponentials give (reference.h). */
EA_DEVICE ea_row_end end_row(const ea_call &call, float reference, float scale_log2, float sum, int head, bool exists) {
  const bool nothing = reference == MINUS_INF;
  float top = reference * scale_log2, factor = 1.0f;
  if (call.sinks && !nothing && exists) {
    const float sink = sink_of(call, head), with_sink = fmaxf(top, sink * LOG2E);
    factor = ex2_approx(top - with_sink);
    sum = sum * factor + ex2_approx(sink * LOG2E - with_sink);
    top = with_sink;
  }
  const ea_row_end end = {nothing ? 0.0f : __fdividef(factor, sum), nothing ? MINUS_INF : (top + __log2f(sum)) * LN2};
  return end;
}

/* The same for references of any size. sum: of weights relative to the reference and, beyond it, to 2^error. What may
 * be large, a score or a sink, is compared in natural units, where it comes from. */
EA_DEVICE ea_row_end end_large_row(const ea_call &call, const ea_portable_launch &launch, float reference, float error,
                                   float sum, int head, bool exists) {
  const bool nothing = reference == MINUS_INF;
  float top = reference * launch.scale, log2_top = error, factor = 1.0f; /* the denominator: sum * e^top * 2^log2_top */
  if (call.sinks && exists && !nothing) {
    const float sink = sink_of(call, head);
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
