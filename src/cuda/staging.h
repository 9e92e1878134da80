/* Inside the CUDA backend: cached keys and values that are copied together, in order, before the kernel that reads
 * them.
 *
 * Rows of scattered slots come to shared memory 16 bytes at a time, and slower than the kernels for wide heads multiply
 * them (docs/hopper_wide.md). Where many row blocks read the same keys, these are first copied behind what else is in
 * the workspace, and come by TMA. */
#ifndef EA_CUDA_STAGING_H
#define EA_CUDA_STAGING_H

#include "cuda/kernels/stage.h"
#include "cuda/launch.h"

/* Of a cached token, where a kernel and a problem are such that staging may pay; else 0. */
int64_t ea_staged_token_bytes(const ea_kernel *kernel, const ea_problem *resolved);

/* Bytes with which all of a call's cached tokens that it pays for are staged; 0: for none. */
size_t ea_staging_bytes(const ea_cuda_plan *plan, ea_batch_size size);

/* What is staged, in what of a workspace lies behind its first `used` bytes: tokens is 0 where it does not pay, or
 * finds no room. */
ea_stage_launch ea_staging_of(const ea_cuda_plan *plan, const ea_call *call, ea_workspace workspace, size_t used);

/* The workspace's bytes before the staged rows: `used` ones, rounded up. */
size_t ea_staging_offset(size_t used);

ea_status ea_enqueue_staging(const ea_cuda_device *device, ea_call *call, ea_stage_launch *staged, ea_cu_stream stream);

#endif
