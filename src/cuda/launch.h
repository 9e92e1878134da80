/* Inside the CUDA backend: launching a loaded kernel. */
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

#endif
