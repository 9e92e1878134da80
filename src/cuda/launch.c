/* Launches: each turns a checked call into one kernel's arguments and enqueues it. */
#include "cuda/launch.h"

#include "common/error.h"

ea_status ea_launch(const ea_cuda_device *device, const ea_cuda_kernel *kernel, const ea_launch_shape *shape,
                    void **params, ea_cu_stream stream) {
  if (shape->grid == 0) return EA_OK;
  if (shape->grid > INT32_MAX) {
    return ea_fail(EA_ERR_UNSUPPORTED, "batch: found work for %lld blocks, allowed %d", (long long)shape->grid,
                   INT32_MAX);
  }
  const ea_cu_result result =
      device->driver.launch_kernel(kernel->function, (unsigned)shape->grid, 1, 1, (unsigned)shape->threads, 1, 1,
                                   (unsigned)shape->smem_bytes, stream, params, NULL);
  return ea_driver_check(&device->driver, result, "cuLaunchKernel");
}

/* The flag of cuda/kernels/validate.h; the attention kernels need none. */
#define EA_CUDA_WORKSPACE_BYTES 256

size_t ea_cuda_workspace_bytes(const ea_plan_info *info, int64_t num_seqs, int64_t num_tokens) {
  (void)info;
  (void)num_seqs;
  (void)num_tokens;
  return EA_CUDA_WORKSPACE_BYTES;
}

ea_status ea_cuda_run(ea_cuda_device *device, const ea_cuda_kernel *kernel, const ea_plan_info *info,
                      const ea_call *call, const ea_batch *batch, void *workspace, void *stream) {
  (void)device, (void)kernel, (void)call, (void)batch, (void)workspace, (void)stream;
  return ea_fail(EA_ERR_UNSUPPORTED, "family: found %s, allowed one with kernels in this build",
                 ea_family_name(info->family));
}
