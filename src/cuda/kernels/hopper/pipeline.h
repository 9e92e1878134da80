/* What producer and consumers of a Hopper kernel meet at: the ring's stage and phase, the mbarriers, the plan of shared
 * memory. Everything in this folder is a template over a Shape, a struct of constants:
 *
 *   dim, dim_v           head dimensions, as the products take them
 *   tile_m, tile_n       query rows of a work tile, keys of a tile
 *   step_keys            keys of a step of the mainloop: one tile (narrow.h) or a pair (wide.h)
 *   slices               64-column slices of Q and of K
 *   threads              of a block
 *   gather_threads       of the producer, that gather a tile together
 *   ring_barriers        pairs of mbarriers between Q's and those of the work tiles
 *   layout()             offsets in shared memory (plan/hopper.h, plan/hopper_wide.h)
 *   first_row(tid)       the first of a consumer thread's two rows; the other is 8 further */
#ifndef EA_CUDA_KERNELS_HOPPER_PIPELINE_H
#define EA_CUDA_KERNELS_HOPPER_PIPELINE_H

#include <stdint.h>

#include "cuda/kernels/hopper.h"
#include "cuda/kernels/marks.h"
#include "cuda/kernels/parts.h"
#include "cuda/kernels/ptx_hopper.h"
#include "problem/call.h"

#define EA_MEMBER __device__ __forceinline__

/* The value of lane 0, known to be the same in all lanes. */
EA_DEVICE int uniform(int x) {
  return __shfl_sync(0xffffffffu, x, 0);
}
EA_DEVICE uint32_t uniform(uint32_t x) {
  return __shfl_sync(0xffffffffu, x, 0);
}

/* Where one side stands in a ring: the stage, and the parity of that stage's current use (its phase), in one register.
 * A consumer waits for a stage's full barrier with the phase, the producer for its empty one with the other parity: the
 * first round finds every stage empty. */
typedef struct ea_ring {
  uint32_t position; /* stage * 2 + phase */
} ea_ring;

EA_DEVICE uint32_t stage_of(ea_ring ring) {
  return ring.position / 2;
}
EA_DEVICE uint32_t phase_of(ea_ring ring) {
  return ring.position & 1;
}
EA_DEVICE void ring_advance(ea_ring *ring, uint32_t stages) {
  ring->position += 2;
  if (stage_of(*ring) == stages) ring->position = phase_of(*ring) ^ 1;
}
/* Any number of stages on. magic: ceil(2^32 / stages), not looked at for one stage. */
EA_DEVICE void ring_skip(ea_ring *ring, uint32_t count, uint32_t stages, uint32_t magic) {
  const uint32_t ahead = stage_of(*ring) + count, rounds = stages == 1 ? ahead : __umulhi(ahead, magic);
  ring->position = (ahead - rounds * stages) * 2 | (phase_of(*ring) ^ (rounds & 1));
}
/* The same for a few. */
EA_DEVICE void ring_skip_few(ea_ring *ring, uint32_t count, uint32_t stages) {
  uint32_t ahead = stage_of(*ring) + count, phase = phase_of(*ring);
  for (; ahead >= stages; ahead -= stages) phase ^= 1;
  ring->position = ahead * 2 + phase;
}

/* An mbarrier is 8 bytes; full and empty of a stage lie behind each other. */
constexpr int barrier_bytes = 8;
constexpr int barrier_pair_bytes = 16;

/* The plan of shared memory: where it starts. Addresses are at constant distances from there. */
template <class Shape> struct ea_smem_plan { uint32_t base; };

template <class Shape> EA_DEVICE uint32_t q_tile(ea_smem_plan<Shape> smem) {
  return smem.base;
}
template <class Shape> EA_DEVICE uint32_t q_full(ea_smem_plan<Shape> smem) {
  return smem.base + (uint32_t)Shape::layout().barriers;
}
template <class Shape> EA_DEVICE uint32_t q_empty(ea_smem_plan<Shape> smem) {
  return q_full(smem) + barrier_bytes;
}
/* The ring's first pair. */
template <class Shape> EA_DEVICE uint32_t ring_barriers(ea_smem_plan<Shape> smem) {
  return q_full(smem) + barrier_pair_bytes;
}
/* EA_HOPPER_ITEMS barriers, one a work tile: arrived at by each warp of the consumers that is through with it. */
template <class Shape> EA_DEVICE uint32_t work_done(ea_smem_plan<Shape> smem) {
  return ring_barriers(smem) + Shape::ring_barriers * barrier_pair_bytes;
}
template <class Shape> EA_DEVICE uint32_t work_tiles(ea_smem_plan<Shape> smem) {
  return smem.base + (uint32_t)Shape::layout().items;
}
/* Of a recording build (marks.h). */
template <class Shape> EA_DEVICE uint32_t marks(ea_smem_plan<Shape> smem) {
  return smem.base + (uint32_t)Shape::layout().marks;
}

/* What all parts of a kernel work with, in one thread block. */
template <class Shape> struct ea_cta {
  const ea_call &call;
  const ea_hopper_launch &launch;
  ea_smem_plan<Shape> smem;
};

/* A stage is full. Gathered rows arrive as soon as their copies are complete, and what those wrote the products do not
 * see before a fence. */
EA_DEVICE void wait_full(uint32_t barrier, uint32_t phase, bool gathered) {
  mbarrier_wait(barrier, phase);
  if (gathered) fence_proxy_async_shared();
}

/* A consumer's arrival, at an empty barrier for example: one a warp, when all its lanes are through. */
EA_DEVICE void release(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

#endif
