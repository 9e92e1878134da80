/* What a row of the output ends with: its denominator, its sink, its lse. */
#ifndef EA_CUDA_KERNELS_EPILOGUE_H
#define EA_CUDA_KERNELS_EPILOGUE_H

#include <stdint.h>

#include "cuda/kernels/element.h"
#include "cuda/kernels/logits.h"
#include "cuda/kernels/ptx.h"
#include "problem/call.h"

/* A row's denominator and maximum (log2 units) with its sink: what its output is to be multiplied by, and
 * its lse. A row that saw nothing has neither. */
typedef struct ea_row_end {
  float factor, lse;
} ea_row_end;

EA_DEVICE ea_row_end end_row(const ea_call &call, float row_max, float scale_log2, float sum, int head, bool exists) {
  const bool nothing = row_max == MINUS_INF;
  float top = row_max * scale_log2, factor = 1.0f;
  if (call.sinks && !nothing && exists) {
    const float sink = call.sinks_dtype == EA_F32 ? ((const float *)call.sinks)[head]
                                                  : element_value(((const uint16_t *)call.sinks)[head]);
    const float with_sink = fmaxf(top, sink * LOG2E);
    factor = ex2_approx(top - with_sink);
    sum = sum * factor + ex2_approx(sink * LOG2E - with_sink);
    top = with_sink;
  }
  const ea_row_end end = {nothing ? 0.0f : __fdividef(factor, sum), nothing ? MINUS_INF : (top + __log2f(sum)) * LN2};
  return end;
}

#endif
