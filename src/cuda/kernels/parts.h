/* What the attention kernels share, by subject. */
#ifndef EA_CUDA_KERNELS_PARTS_H
#define EA_CUDA_KERNELS_PARTS_H

#include "cuda/kernels/element.h"   /* the 16-bit type, and elements on their way to it */
#include "cuda/kernels/epilogue.h"  /* what a row of the output ends with */
#include "cuda/kernels/logits.h"    /* what a score goes through before the softmax */
#include "cuda/kernels/nonfinite.h" /* NaN and Inf among values */
#include "cuda/kernels/ptx.h"
#include "cuda/kernels/rows.h"    /* where rows of Q, K and V lie */
#include "cuda/kernels/softmax.h" /* rows of scores */

#endif
