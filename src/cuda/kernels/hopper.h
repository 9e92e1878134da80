/* What the Hopper kernels take beside the ea_call, worked out once on the host. */
#ifndef EA_CUDA_KERNELS_HOPPER_H
#define EA_CUDA_KERNELS_HOPPER_H

#include "cuda/kernels/schedule.h"
#include "cuda/kernels/timeline.h"
#include "cuda/tensor_map.h"
#include "plan/hopper.h"
#include "plan/portable.h"

typedef struct ea_hopper_launch {
  ea_tensor_map q; /* [T, Hq, D]: boxes of 64 columns, a group's heads, a block's tokens */
  ea_tensor_map k; /* [T, Hkv, D]: boxes of 64 columns, one head, N tokens */
  ea_tensor_map v;
  ea_portable_launch scores; /* scales and the like */
  const ea_schedule *order;  /* NULL: row blocks from the last to the first */
  int32_t *taken;            /* work tiles given out beyond each block's first; NULL: there are none beyond */
  int32_t row_blocks;        /* of one K/V head, spare ones included; with an order, that has the number */
  int32_t block_tokens;
  uint32_t group_magic; /* ceil(2^16 / group): a row of a block times it has the row's token in the upper half */
  int32_t group_parts;  /* wide heads: parts of a GQA group, each like a group itself; call.group has a part's heads */
  int32_t kv_boxes;     /* wide heads: k and v are maps of units (plan/hopper_wide.h), for new tokens */
  int32_t head_chunk;   /* K/V heads worked on together, whose keys and values stay in L2 */
  uint32_t
      stages_magic; /* ceil(2^32 / stages): a number of tiles times it has the rounds of the ring in the upper half */
  uint64_t chunk_magic; /* likewise ceil(2^64 / head_chunk). Neither is looked at for 1 */
  int32_t pool_boxes;   /* wide heads: the two maps below are there, a slot a row; or, if any are staged, ... */
  int32_t staged; /* ... one a row of so many first tokens of kv_indices, whose keys and values have been copied */
  ea_marks_place marks; /* in a build with EA_TRACE */
  ea_tensor_map k_pool, v_pool;
} ea_hopper_launch;

#endif
