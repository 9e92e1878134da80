/* The order of work of a batch of several sequences, as the schedule kernel leaves it in the workspace
 * for the kernel behind it. */
#ifndef EA_CUDA_KERNELS_SCHEDULE_H
#define EA_CUDA_KERNELS_SCHEDULE_H

#include <stdint.h>

#include "plan/hopper.h"

typedef struct ea_schedule {
  int32_t count; /* row blocks of one K/V head that exist */
  int32_t unused;
  ea_row_block blocks[]; /* longest walks first, as finely as the buckets tell them apart */
} ea_schedule;

typedef struct ea_schedule_launch {
  int32_t *taken;     /* set to 0: the count that the kernel behind takes its work by (hopper.h) */
  int32_t row_blocks; /* spare ones included: room for as many */
  int32_t block_tokens;
  int32_t tile_n;
} ea_schedule_launch;

#define EA_SCHEDULE_THREADS 1024
#define EA_SCHEDULE_BUCKETS 1024 /* 32 for each power of two of tiles */
#define EA_SCHEDULE_SMEM_BYTES (EA_SCHEDULE_BUCKETS * (int)sizeof(uint32_t))

#endif
