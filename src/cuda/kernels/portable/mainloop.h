/* The mainloop: a work tile's walk over its tiles of keys. The schedule is portable.cu's opening comment. */
#ifndef EA_CUDA_KERNELS_PORTABLE_MAINLOOP_H
#define EA_CUDA_KERNELS_PORTABLE_MAINLOOP_H

#include <stdint.h>

#include "cuda/kernels/logits.h"
#include "cuda/kernels/portable/cta.h"
#include "cuda/kernels/portable/load.h"
#include "cuda/kernels/portable/mask.h"
#include "cuda/kernels/portable/nonfinite.h"
#include "cuda/kernels/portable/pipeline.h"
#include "cuda/kernels/portable/products.h"
#include "cuda/kernels/portable/scheduler.h"
#include "cuda/kernels/portable/softmax.h"
#include "cuda/kernels/ptx.h"

template <class Shape>
EA_DEVICE void clear_accumulators(float (&output)[Shape::PV_MI][Shape::PV_NI * 4], const ea_softmax<Shape> &state) {
#pragma unroll
  for (int mi = 0; mi < Shape::PV_MI; mi++) {
#pragma unroll
    for (int e = 0; e < Shape::PV_NI * 4; e++) output[mi][e] = 0.0f;
  }
#pragma unroll
  for (int mi = 0; mi < Shape::QK_MI; mi++) {
#pragma unroll
    for (int h = 0; h < 2; h++) state.row_max[mi][h] = MINUS_INF, state.row_sum[mi][h] = 0.0f;
  }
}

/* slot: as the prologue left it. */
template <class Shape>
EA_DEVICE void mainloop(const ea_call &call, const ea_portable_launch &launch, const ea_cta<Shape> &cta, int first_tile,
                        bool any_tile, uint32_t &slot, const ea_softmax<Shape> &state,
                        float (&output)[Shape::PV_MI][Shape::PV_NI * 4]) {
  const int stages = cta.stages;
  ea_q_fragments<Shape> q_fragments;
  ea_ring ring = {0};
#pragma unroll 1
  for (int tile = first_tile; any_tile; tile++) {
    if (stages == 1) load_ahead(call, launch, cta, tile, ring);
    fetch_slot(call, cta, tile + stages, slot);
    mbarrier_wait(full_barrier(cta, ring_stage(ring)), ring_phase(ring));

    float scores[Shape::QK_MI][Shape::QK_NI * 4];
    multiply_qk(cta, ring, tile, q_fragments, scores);
    /* Late enough for a warp to run ahead of the others by some part of a tile. */
    if (stages > 1) load_ahead(call, launch, cta, tile, ring);

    const ea_warp_tile own = warp_tile(cta);
    const int key0 = tile * Shape::TILE_N;
    if (launch.k_scale != 1.0f) scale_cached_scores(launch, cta, own, key0, scores);
    if (launch.transformed) transform_scores(call, launch, cta, own, scores);
    bool
        masked; /* some row does not see some key of the tile; not a function, whose result would be kept as a number */
    {
      const ea_work_tile *work = work_tile(cta);
      masked = key0 < work->unmasked.first || key0 + Shape::TILE_N > work->unmasked.end;
    }
    if (masked) apply_mask(cta, own, key0, scores);

    uint32_t p[Shape::QK_MI][Shape::QK_NI * 2];
    float rescale[Shape::QK_MI][2];
    online_softmax(launch, cta, own, scores, key0, state, p, rescale);
    if (Shape::CROSSING) share_p(cta, own, p, rescale);
    rescale_output(cta, own, rescale, output);
    if (masked) separate_nonfinite(cta, ring, key0, output);
    multiply_pv(cta, ring, own, p, output);

    if (tile + stages < work_tile(cta)->end_tile) write_row_table(call, launch, cta, tile + stages, slot);
    mbarrier_arrive(empty_barrier(cta, ring_stage(ring)));
    ring_advance(ring, stages);
    if (tile + 1 == work_tile(cta)->end_tile) break;
  }
}

#endif
