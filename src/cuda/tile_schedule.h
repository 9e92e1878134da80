/* Inside the CUDA backend: how the Hopper kernels, which are persistent, share out a call's work tiles.
 *
 * A work tile is a block of query rows (whole tokens of one sequence, all heads of a GQA group or of a part of it) and
 * one key/value head. */
#ifndef EA_CUDA_TILE_SCHEDULE_H
#define EA_CUDA_TILE_SCHEDULE_H

#include "cuda/kernels/schedule.h"
#include "cuda/launch.h"

typedef struct ea_tile_schedule {
  int64_t row_blocks; /* as many as the sequences can need, whatever their lengths are */
  int64_t work_tiles;
  bool counted; /* blocks take tiles by a counter in the workspace, in an order that lies behind it or the last first */
  bool ordered;
  size_t workspace_bytes; /* for that */
} ea_tile_schedule;

ea_tile_schedule ea_schedule_tiles(const ea_cuda_device *device, const ea_cuda_plan *plan, int64_t num_seqs,
                                   int64_t num_tokens);

/* Parts of key/value heads that are worked on together, so that their keys and values stay in L2. */
int32_t ea_heads_together(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_tile_schedule *tiles,
                          const ea_call *call);

/* Where they are in the workspace; NULL: there is none. */
int32_t *ea_tile_counter(const ea_tile_schedule *tiles, ea_workspace workspace);
ea_schedule *ea_tile_order(const ea_tile_schedule *tiles, ea_workspace workspace);

/* Enqueues what makes the counter 0, and the order. */
ea_status ea_enqueue_schedule(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_tile_schedule *tiles,
                              ea_call *call, ea_workspace workspace, ea_cu_stream stream);

#endif
