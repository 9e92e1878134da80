/* Inside the CUDA backend: a plan's call on its way to the driver. launch.c sends it to the launch of its kernel's
 * kind:
 *
 *   launch_portable.c   portable kernels, and the arguments that all attention kernels share
 *   launch_hopper.c     Hopper kernels, with
 *     tile_schedule.c     the work tiles and their order
 *     staging.c           cached keys and values copied together first
 *     tensor_maps.c       what TMA reads by */
#ifndef EA_CUDA_LAUNCH_H
#define EA_CUDA_LAUNCH_H

#include "cuda/device.h"

typedef struct ea_launch_shape {
  int64_t blocks;     /* 0 launches nothing */
  int32_t threads;    /* a block */
  int64_t smem_bytes; /* dynamic shared memory a block */
} ea_launch_shape;

static inline ea_cu_ptr ea_cu_address(const void *ptr) {
  return (ea_cu_ptr)(uintptr_t)ptr;
}

/* Enqueues. params point to the kernel's arguments, in order; they are copied. The device's
 * context is to be current. */
ea_status ea_launch(const ea_cuda_device *device, const ea_cuda_kernel *kernel, const ea_launch_shape *shape,
                    void **params, ea_cu_stream stream);

typedef struct ea_workspace {
  char *data; /* aligned as extattn.h says; NULL with 0 bytes */
  size_t bytes;
} ea_workspace;

/* Enqueue a whole call. The device's context is to be current. */
ea_status ea_launch_portable(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_call *call,
                             ea_cu_stream stream);
ea_status ea_launch_hopper(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_call *call,
                           ea_workspace workspace, ea_cu_stream stream);

/* Completes the plan of a Hopper kernel. */
void ea_plan_hopper(const ea_problem *resolved, ea_cuda_plan *plan);

#endif
