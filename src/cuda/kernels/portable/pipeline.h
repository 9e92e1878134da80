/* The ring of K/V tiles: each stage has a barrier that says full (its copies are done) and one that says empty (all
 * warps are done with it). How many stages is a run-time number. */
#ifndef EA_CUDA_KERNELS_PORTABLE_PIPELINE_H
#define EA_CUDA_KERNELS_PORTABLE_PIPELINE_H

#include <stdint.h>

#include "cuda/kernels/portable/cta.h"
#include "cuda/kernels/ptx.h"

template <class Shape> EA_DEVICE uint32_t full_barrier(const ea_cta<Shape> &cta, int stage) {
  return cta.barriers + (uint32_t)stage * 16;
}
template <class Shape> EA_DEVICE uint32_t empty_barrier(const ea_cta<Shape> &cta, int stage) {
  return cta.barriers + (uint32_t)stage * 16 + 8;
}

template <class Shape> EA_DEVICE void init_ring(const ea_cta<Shape> &cta) {
  if (threadIdx.x >= (uint32_t)cta.stages) return;
  mbarrier_init(cta.barriers + threadIdx.x * 16, 2 * Shape::THREADS); /* full: two arrivals a thread, see load_tile */
  mbarrier_init(cta.barriers + threadIdx.x * 16 + 8, Shape::THREADS); /* empty */
}
template <class Shape> EA_DEVICE void inval_ring(const ea_cta<Shape> &cta) {
  if (thread_index(cta) >= cta.stages) return;
  mbarrier_inval(full_barrier(cta, thread_index(cta)));
  mbarrier_inval(empty_barrier(cta, thread_index(cta)));
}

/* Where the mainloop is in the ring: stage * 2 + the phase of the stage's current use, one register for both. */
typedef struct ea_ring {
  uint32_t position;
} ea_ring;

EA_DEVICE int ring_stage(ea_ring ring) {
  return (int)(ring.position / 2);
}
EA_DEVICE uint32_t ring_phase(ea_ring ring) {
  return ring.position & 1;
}
EA_DEVICE void ring_advance(ea_ring &ring, int stages) {
  ring.position += 2;
  if (ring.position / 2 == (uint32_t)stages) ring.position = (ring.position & 1) ^ 1;
}

/* A stage's tiles: V lies behind K. */
template <class Shape> EA_DEVICE uint32_t k_tile(const ea_cta<Shape> &cta, ea_ring ring) {
  return cta.ring + ring.position / 2 * (uint32_t)cta.layout.stage_bytes;
}
template <class Shape> EA_DEVICE uint32_t v_tile(const ea_cta<Shape> &cta, ea_ring ring) {
  return k_tile(cta, ring) + Shape::TILE_N * Shape::DIM * 2;
}

#endif
