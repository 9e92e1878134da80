/* The portable kernel: extend attention on sm_80 and later, every shape and feature.
 *
 * Compiled once for each shape of plan/portable.h and each of bf16 and f16:
 * -DEA_SHAPE=d128 -DEA_TYPE_BF16 -DEA_KERNEL_NAME=portable_d128_bf16.
 *
 * A thread block has one work tile: M query rows of one sequence and K/V head (rows are tokens times the heads of the
 * GQA group, so these share each key that is loaded). It walks the key tiles that plan/walk.h gives, prefix and new
 * tokens alike, all its warps both loading and computing. Schedule of the mainloop for tile t, with S stages in the
 * ring:
 *
 *   fetch the slot numbers of tile t+S              (each thread that of its key, into a register)
 *   wait for tile t's full barrier                  (the copies of all threads are done)
 *   scores = Q K^T
 *   wait for tile t-1's empty barrier               (all warps are done with it)
 *   start copying tile t+S-1 into its stage         (cp.async; addresses found earlier)
 *   mask only where the walk says so; online softmax: running maximum, exp2
 *   [QN > 1: maxima and probabilities cross among the warps of a group, two named barriers]
 *   output = output * rescale + P V
 *   write the row addresses of tile t+S where the copies will look for them
 *   arrive at tile t's empty barrier
 *
 * So warps may drift apart by part of a tile, and one's softmax runs beside another's products.
 * S is a run-time number and changes no arithmetic: results are bit for bit the same at every
 * depth. At S = 1 a tile's copies start when the last warp has left the tile before.
 *
 * The pieces, under portable/: shape.h (a shape as a template argument), cta.h (shared memory, warp tiles), scheduler.h
 * (the work tile), pipeline.h (the ring), load.h (Q, K, V), products.h (both mma loops), mask.h (scales, cap, mask),
 * softmax.h, nonfinite.h (NaN and Inf in V), mainloop.h, epilogue.h.
 *
 * Registers are short in every shape. So what is not needed all the time waits in shared memory or is worked out anew
 * (thread_index, work_tile), and functions take the kernel's parameters by references of their own: read through a
 * struct they are no longer known to be there, and a condition on one becomes a branch. */
#include "cuda/kernels/element.h"
#include "cuda/kernels/portable/cta.h"
#include "cuda/kernels/portable/epilogue.h"
#include "cuda/kernels/portable/load.h"
#include "cuda/kernels/portable/mainloop.h"
#include "cuda/kernels/portable/pipeline.h"
#include "cuda/kernels/portable/scheduler.h"
#include "cuda/kernels/portable/shape.h"
#include "cuda/kernels/portable/softmax.h"
#include "plan/portable.h"
#include "problem/call.h"

using Shape = EA_PASTE(ea_shape_, EA_SHAPE, );

extern "C" __global__ void __launch_bounds__(Shape::THREADS, Shape::MIN_BLOCKS)
    EA_KERNEL_NAME(const __grid_constant__ ea_call call, const __grid_constant__ ea_portable_launch launch) {
  extern __shared__ __align__(1024) char smem[];
  const ea_cta<Shape> cta = make_cta<Shape>(call, launch, smem);
  int first_tile;
  bool any_tile;
  {
    ea_work_tile work;
    if (!find_work_tile(call, cta, work)) return;
    first_tile = work.first_tile;
    any_tile = work.end_tile > first_tile;
    init_ring(cta);
    if (threadIdx.x == 0) *(ea_work_tile *)(smem + cta.layout.block) = work;
  }
  __syncthreads();

  uint32_t slot = 0;
  prologue(call, launch, cta, first_tile, slot);

  float output[Shape::PV_MI][Shape::PV_NI * 4];
  float row_max[Shape::QK_MI][2], row_sum[Shape::QK_MI][2];
  const ea_softmax<Shape> state = {row_max, row_sum};
  clear_accumulators<Shape>(output, state);
  store_state(cta, state);
  mainloop(call, launch, cta, first_tile, any_tile, slot, state, output);
  epilogue(call, launch, cta, state, output);
}
