/* See launch.h: the driver's launch, what a plan settles for it, and the choice of a kernel's own. */
#include "cuda/launch.h"

#include "common/error.h"

ea_status ea_launch(const ea_cuda_device *device, const ea_cuda_kernel *kernel, const ea_launch_shape *shape,
                    void **params, ea_cu_stream stream) {
  if (shape->blocks == 0) return EA_OK;
  const ea_cu_result result =
      device->driver.launch_kernel(kernel->function, (unsigned)shape->blocks, 1, 1, (unsigned)shape->threads, 1, 1,
                                   (unsigned)shape->smem_bytes, stream, params, NULL);
  return ea_driver_check(&device->driver, result, "cuLaunchKernel");
}

ea_status ea_cuda_plan_make(ea_cuda_device *device, const ea_kernel *kernel, const ea_problem *resolved,
                            ea_plan_info *info, ea_cuda_plan *plan) {
  *plan = (ea_cuda_plan){.kernel = kernel, .stages = info->stages, .smem_bytes = info->smem_bytes};
  if (kernel->family == EA_FAMILY_HOPPER) ea_plan_hopper(resolved, plan);
  ea_status status = ea_device_enter(device);
  if (status) return status;
  status = ea_device_load(device, info->kernel, &plan->loaded);
  ea_device_leave(device);
  if (!status) info->registers = plan->loaded->registers;
  return status;
}

/* The kernels keep slots in 32 bits. */
static ea_status check_slots(const ea_call *call) {
  if (call->num_slots <= UINT32_MAX) return EA_OK;
  return ea_fail(EA_ERR_UNSUPPORTED, "num_pages: found %lld pages of %d slots, allowed 2^32 - 1 slots on a GPU",
                 (long long)call->num_pages, call->page_size);
}

static ea_status launch_call(const ea_cuda_device *device, const ea_cuda_plan *plan, const ea_call *call,
                             ea_workspace workspace, ea_cu_stream stream) {
  const ea_status status = check_slots(call);
  if (status) return status;
  switch (plan->kernel->launch) {
  case EA_LAUNCH_PORTABLE:
    return ea_launch_portable(device, plan, call, stream);
  case EA_LAUNCH_HOPPER:
  case EA_LAUNCH_HOPPER_WIDE:
    return ea_launch_hopper(device, plan, call, workspace, stream);
  }
  return ea_fail(EA_ERR_INTERNAL, "kernel %s: found no way to launch it", plan->kernel->name);
}

ea_status ea_cuda_run(ea_cuda_device *device, const ea_cuda_plan *plan, const ea_call *call, void *workspace,
                      size_t workspace_bytes, void *stream) {
  ea_status status = ea_device_enter(device);
  if (status) return status;
  status = launch_call(device, plan, call, (ea_workspace){workspace, workspace_bytes}, (ea_cu_stream)stream);
  ea_device_leave(device);
  return status;
}
