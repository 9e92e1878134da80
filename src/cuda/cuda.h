/* The CUDA backend: the driver is opened at run time, kernels come from images embedded
 * in the library. Without a driver (or without kernels in the build) every call says so. */
#ifndef EA_CUDA_CUDA_H
#define EA_CUDA_CUDA_H

#include <stddef.h>

#include "extattn.h"
#include "plan/kernels.h"
#include "plan/planner.h"
#include "problem/call.h"

/* ea_run's workspace starts at a multiple of this, as extattn.h says. */
#define EA_WORKSPACE_ALIGNMENT 256

typedef struct ea_cuda_device ea_cuda_device;
typedef struct ea_cuda_kernel ea_cuda_kernel;

/* 0 without a driver; the reason is then the thread's last error. */
int32_t ea_cuda_count(void);

ea_status ea_cuda_open(int32_t ordinal, ea_cuda_device **device);
void ea_cuda_close(ea_cuda_device *device);
void ea_cuda_describe(const ea_cuda_device *device, ea_device_info *info);
/* The planner's view of the device, from the device's own answers. */
void ea_cuda_arch(const ea_cuda_device *device, ea_arch *arch);

/* What a plan settles for the launches of its calls. */
typedef struct ea_cuda_plan {
  const ea_kernel *kernel;      /* the registry's row */
  const ea_cuda_kernel *loaded; /* the device's */
  int32_t stages;
  int64_t smem_bytes; /* dynamic shared memory a block */

  /* Of a Hopper kernel. */
  int32_t num_kv_heads;
  int32_t group_parts;        /* equal ones, of each GQA group that has more heads than a tile has rows; else 1 */
  int32_t group;              /* query heads of a part */
  int32_t block_tokens;       /* whole ones that a tile has room for, all heads of a part each */
  int64_t staged_token_bytes; /* of a cached token that may be staged (staging.h); 0: none is */
} ea_cuda_plan;

/* Loads (once a device) the kernel that info names, and fills info->registers. */
ea_status ea_cuda_plan_make(ea_cuda_device *device, const ea_kernel *kernel, const ea_problem *resolved,
                            ea_plan_info *info, ea_cuda_plan *plan);

/* What of a batch decides how much work it is. */
typedef struct ea_batch_size {
  int64_t num_seqs, num_tokens, num_kv_indices;
} ea_batch_size;

/* What makes a call fastest; with num_kv_indices 0, what it cannot do without: 0 where the work fits one wave of the
 * multiprocessors or two, and for the portable family. */
size_t ea_cuda_workspace_bytes(const ea_cuda_device *device, const ea_cuda_plan *plan, ea_batch_size size);

/* Enqueues the call, which has tokens, on stream; no allocation, no synchronisation. */
ea_status ea_cuda_run(ea_cuda_device *device, const ea_cuda_plan *plan, const ea_call *call, void *workspace,
                      size_t workspace_bytes, void *stream);

/* What ea_cuda_validate uses of a workspace. */
#define EA_CUDA_VALIDATE_BYTES 256

/* Checks index arrays, slots and mask extents on the device; waits for the answer. workspace: EA_CUDA_VALIDATE_BYTES,
 * or NULL: as much is allocated for the time. */
ea_status ea_cuda_validate(ea_cuda_device *device, const ea_call *call, void *workspace, void *stream);

ea_status ea_cuda_merge(ea_cuda_device *device, const ea_merge_args *args, void *stream);

#endif
