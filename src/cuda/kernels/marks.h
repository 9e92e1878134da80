/* Marks in the Hopper kernels: one line each, of which nothing is left in a build without EA_TRACE. What they
 * record, and for whom: timeline.h.
 *
 * A consumer has its place in its track in a register, since it has no time to lose; the producer, which runs ahead and
 * has few registers but many functions, in shared memory (marks() of hopper/pipeline.h). cta: an ea_cta
 * (hopper/pipeline.h). */
#ifndef EA_CUDA_KERNELS_MARKS_H
#define EA_CUDA_KERNELS_MARKS_H

#ifdef EA_TRACE

#include "cuda/kernels/hopper.h"
#include "cuda/kernels/ptx.h"

static_assert(EA_MARK_PRODUCERS * 4 <= EA_HOPPER_MARKS_BYTES, "a place for each");

#define EA_MARKS_NOWHERE 0xffffffffu

/* A track's first place, for its one thread. */
EA_DEVICE uint32_t first_mark(const ea_hopper_launch &launch, uint32_t track, bool records) {
  const ea_marks_place &to = launch.marks;
  if (!records || to.timeline == 0 || blockIdx.x >= (uint32_t)to.blocks) return EA_MARKS_NOWHERE;
  return (blockIdx.x * EA_MARK_TRACKS + track) << to.records_log2;
}

EA_DEVICE void put_mark(const ea_hopper_launch &launch, uint32_t *place, uint32_t kind, int n) {
  const ea_marks_place &to = launch.marks;
  const uint32_t at = *place, last = (1u << to.records_log2) - 1;
  if (at == EA_MARKS_NOWHERE) return;
  if ((at & last) == last) {
    atomicAdd(&to.timeline[blockIdx.x].dropped[(at >> to.records_log2) % EA_MARK_TRACKS], 1u);
    return;
  }
  const ea_mark mark = {read_clock(), kind << EA_MARK_TILE_BITS | ((uint32_t)n & ((1u << EA_MARK_TILE_BITS) - 1))};
  *(uint2 *)((ea_mark *)(to.timeline + to.blocks) + at) = make_uint2(mark.clock, mark.what);
  *place = at + 1;
}

EA_DEVICE void put_producer_mark(const ea_hopper_launch &launch, uint32_t address, uint32_t kind, int n) {
  if (threadIdx.x % 32 != 0) return;
  address += threadIdx.x / 32 * 4;
  uint32_t place = ld_shared_b32(address);
  put_mark(launch, &place, kind, n);
  st_shared_b32(address, place);
}

EA_DEVICE void begin_marks(const ea_hopper_launch &launch, uint32_t address, uint32_t warps) {
  const uint32_t warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) st_shared_b32(address + warp * 4, first_mark(launch, warp, (warps >> warp & 1) != 0));
  if (threadIdx.x != 0 || first_mark(launch, 0, true) == EA_MARKS_NOWHERE) return;
  ea_marked_block *block = &launch.marks.timeline[blockIdx.x];
  block->multiprocessor = read_smid();
  block->begin_ns = read_globaltimer();
  block->begin_clock = read_clock64();
}

EA_DEVICE void end_marks(const ea_hopper_launch &launch, uint32_t *place) {
  put_mark(launch, place, EA_MARK_END, 0);
  if (threadIdx.x != 128 || *place == EA_MARKS_NOWHERE) return; /* one consumer for all: they end together */
  ea_marked_block *block = &launch.marks.timeline[blockIdx.x];
  block->end_ns = read_globaltimer();
  block->end_clock = read_clock64();
}

/* The producer's threads, at the kernel's beginning. warps: bits of its warps that record. */
#define MARKS_OF_BLOCK(cta, warps) begin_marks((cta).launch, marks((cta).smem), warps)
/* In the producer, all lanes. n: the tile, or 0. */
#define PRODUCER_MARK(cta, kind, n) put_producer_mark((cta).launch, marks((cta).smem), EA_MARK_##kind, n)
/* what: SLOT or COPY, of V or of K. */
#define PRODUCER_MARK_OF(cta, what, of_v, n)                                                                           \
  put_producer_mark((cta).launch, marks((cta).smem), (of_v) ? EA_MARK_##what##_V : EA_MARK_##what##_K, n)
/* The work tile that the producer has found. */
#define WORK_MARKS(cta, work)                                                                                          \
  do {                                                                                                                 \
    PRODUCER_MARK(cta, ITEM_TOKEN, (int)(work)->token0 + (work)->i0);                                                  \
    PRODUCER_MARK(cta, ITEM_ROWS, (work)->rows);                                                                       \
    PRODUCER_MARK(cta, ITEM_HEAD, (work)->kv_head);                                                                    \
    PRODUCER_MARK(cta, ITEM_FIRST, (work)->first_step);                                                                \
    PRODUCER_MARK(cta, ITEM_GATHER, (work)->gather_end);                                                               \
    PRODUCER_MARK(cta, ITEM_END, (work)->end_step);                                                                    \
  } while (0)
/* In a consumer, before its first mark; there; behind its last work tile. */
#define MARKS(launch, consumer)                                                                                        \
  const ea_hopper_launch &marks_launch = launch;                                                                       \
  uint32_t marks_place = first_mark(marks_launch, EA_MARK_PRODUCERS + (uint32_t)(consumer), threadIdx.x % 128 == 0)
#define MARK(kind, n) put_mark(marks_launch, &marks_place, EA_MARK_##kind, n)
#define MARKS_END(launch) end_marks(launch, &marks_place)

#else

#define MARKS_OF_BLOCK(cta, warps) ((void)0)
#define PRODUCER_MARK(cta, kind, n) ((void)0)
#define PRODUCER_MARK_OF(cta, what, of_v, n) ((void)0)
#define WORK_MARKS(cta, work) ((void)0)
#define MARKS(launch, consumer) ((void)0)
#define MARK(kind, n) ((void)0)
#define MARKS_END(launch) ((void)0)

#endif

#endif
