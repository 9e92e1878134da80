/* ea_merge on a GPU. */
#include "cuda/kernels/merge.h"

#include "cuda/device.h"
#include "cuda/launch.h"

/* Packed strides made explicit: the kernel knows no default. */
static void resolve_strides(const ea_merge_args *args, ea_tensor *tensor) {
  if (tensor->head_stride == 0) tensor->head_stride = args->head_dim_v;
  if (tensor->token_stride == 0) tensor->token_stride = args->num_heads * tensor->head_stride;
}

static const ea_cuda_kernel *kernel_of(const ea_cuda_device *device, ea_dtype dtype) {
  return device->merge[dtype == EA_F32 ? 0 : dtype == EA_F16 ? 1 : 2];
}

ea_status ea_cuda_merge(ea_cuda_device *device, const ea_merge_args *args, void *stream) {
  ea_merge_args passed = *args;
  resolve_strides(args, &passed.out_a);
  resolve_strides(args, &passed.out_b);
  resolve_strides(args, &passed.out);

  const int64_t blocks = (args->num_tokens * args->num_heads + EA_MERGE_ROWS - 1) / EA_MERGE_ROWS;
  const int64_t most = (int64_t)device->multiprocessors * 64; /* each then strides over the rest */
  const ea_launch_shape shape = {.blocks = blocks < most ? blocks : most, .threads = EA_MERGE_THREADS};
  void *params[] = {&passed};
  ea_status status = ea_device_enter(device);
  if (status) return status;
  status = ea_launch(device, kernel_of(device, args->dtype), &shape, params, (ea_cu_stream)stream);
  ea_device_leave(device);
  return status;
}
