/* Cached keys and values copied together, in the order of kv_indices, before a kernel that reads them often. */
#ifndef EA_CUDA_KERNELS_STAGE_H
#define EA_CUDA_KERNELS_STAGE_H

#include <stdint.h>

#define EA_STAGE_THREADS 256
#define EA_STAGE_TOKENS (EA_STAGE_THREADS / 32) /* at a time of a block: one a warp */

typedef struct ea_stage_launch {
  void *k, *v;    /* to here: [tokens, Hkv, D] and [tokens, Hkv, Dv]; v NULL: values are in the keys */
  int64_t tokens; /* the first ones of kv_indices; those behind kv_indptr's end are left alone */
} ea_stage_launch;

#endif
