/* ea_validate on a GPU: a kernel looks, and only when it finds something are the arrays
 * copied to the host, whose own check names the first bad entry. */
#include <stdlib.h>

#include "common/error.h"
#include "cuda/device.h"
#include "cuda/kernels/validate.h"
#include "cuda/launch.h"
#include "problem/problem.h"

/* The arrays of a call in host memory; NULL where the call's own is NULL. */
typedef struct host_arrays {
  void *qo_indptr, *kv_indptr, *kv_indices, *mask_indptr, *window_kv_offsets;
} host_arrays;

static void free_arrays(host_arrays *arrays) {
  free(arrays->qo_indptr);
  free(arrays->kv_indptr);
  free(arrays->window_kv_offsets);
  free(arrays->kv_indices);
  free(arrays->mask_indptr);
}

/* A copy of a device array, complete on return. */
static ea_status copy_array(const ea_cuda_device *device, const void *from, int64_t count, size_t element_bytes,
                            ea_cu_stream stream, void **to) {
  const ea_driver *driver = &device->driver;
  *to = NULL;
  if (!from) return EA_OK;
  const size_t bytes = (size_t)count * element_bytes;
  *to = malloc(bytes ? bytes : 1);
  if (!*to) return ea_fail(EA_ERR_OUT_OF_MEMORY, "host memory: found none for %zu bytes of index arrays", bytes);
  if (bytes == 0) return EA_OK;
  ea_status status =
      ea_driver_check(driver, driver->memcpy_to_host(*to, ea_cu_address(from), bytes, stream), "cuMemcpyDtoHAsync");
  if (!status) status = ea_driver_check(driver, driver->stream_synchronize(stream), "cuStreamSynchronize");
  return status;
}

static ea_status copy_indptrs(const ea_cuda_device *device, ea_cu_stream stream, host_arrays *arrays, ea_call *call) {
  const int64_t count = call->num_seqs + 1;
  ea_status status = copy_array(device, call->qo_indptr, count, sizeof(int32_t), stream, &arrays->qo_indptr);
  if (!status) status = copy_array(device, call->kv_indptr, count, sizeof(int32_t), stream, &arrays->kv_indptr);
  call->qo_indptr = arrays->qo_indptr;
  call->kv_indptr = arrays->kv_indptr;
  return status;
}

/* The arrays whose lengths the indptr say; these are good, and on the host. */
static ea_status copy_rest(const ea_cuda_device *device, ea_cu_stream stream, host_arrays *arrays, ea_call *call) {
  const size_t index_bytes = ea_dtype_size(call->index_dtype), mask_bytes = ea_dtype_size(call->mask_indptr_dtype);
  const int64_t num_seqs = call->num_seqs, prefix_tokens = call->kv_indptr ? call->kv_indptr[num_seqs] : 0;
  ea_status status = copy_array(device, call->kv_indices, prefix_tokens, index_bytes, stream, &arrays->kv_indices);
  if (!status) status = copy_array(device, call->mask_indptr, num_seqs, mask_bytes, stream, &arrays->mask_indptr);
  if (!status) {
    status = copy_array(device, call->window_kv_offsets, num_seqs, sizeof(int32_t), stream, &arrays->window_kv_offsets);
  }
  call->kv_indices = arrays->kv_indices;
  call->mask_indptr = arrays->mask_indptr;
  call->window_kv_offsets = arrays->window_kv_offsets;
  return status;
}

/* The kernel found something bad: say what. */
static ea_status explain(const ea_cuda_device *device, const ea_call *call, ea_cu_stream stream) {
  host_arrays arrays = {0};
  ea_call host_call = *call;
  ea_status status = copy_indptrs(device, stream, &arrays, &host_call);
  if (!status) status = ea_check_indptr(&host_call, host_call.qo_indptr, host_call.kv_indptr);
  if (!status) status = copy_rest(device, stream, &arrays, &host_call);
  if (!status) status = ea_check_host_arrays(&host_call);
  if (!status) {
    status = ea_fail(EA_ERR_INVALID, "index arrays: found a bad entry that was gone at a second look, allowed "
                                     "arrays that nobody writes during the check");
  }
  free_arrays(&arrays);
  return status;
}

static ea_status look(const ea_cuda_device *device, const ea_call *call, ea_cu_ptr flag, ea_cu_stream stream,
                      uint32_t *bad) {
  const ea_driver *driver = &device->driver;
  ea_status status = ea_driver_check(driver, driver->memset_bytes(flag, 0, sizeof *bad, stream), "cuMemsetD8Async");
  if (status) return status;

  const int64_t entries = call->num_kv_indices > call->num_seqs ? call->num_kv_indices : call->num_seqs + 1;
  const int64_t enough = (entries + EA_VALIDATE_THREADS - 1) / EA_VALIDATE_THREADS;
  const int64_t most = (int64_t)device->multiprocessors * 8;
  ea_call passed = *call;
  uint64_t flag_argument = flag;
  int slots = 0;
  void *params[] = {&passed, &flag_argument, &slots};
  const ea_launch_shape shape = {.blocks = enough < most ? enough : most, .threads = EA_VALIDATE_THREADS};
  status = ea_launch(device, device->validate, &shape, params, stream);
  if (status) return status;
  slots = 1;
  status = ea_launch(device, device->validate, &shape, params, stream);
  if (status) return status;
  status = ea_driver_check(driver, driver->memcpy_to_host(bad, flag, sizeof *bad, stream), "cuMemcpyDtoHAsync");
  const ea_status waited = ea_driver_check(driver, driver->stream_synchronize(stream), "cuStreamSynchronize");
  return status ? status : waited;
}

ea_status ea_cuda_validate(ea_cuda_device *device, const ea_call *call, void *workspace, void *stream) {
  if (call->num_seqs == 0) return EA_OK;
  ea_status status = ea_device_enter(device);
  if (status) return status;
  uint32_t bad = 0;
  ea_cu_ptr own = 0;
  if (!workspace) {
    status = ea_driver_check(&device->driver, device->driver.mem_alloc(&own, EA_CUDA_VALIDATE_BYTES), "cuMemAlloc");
  }
  if (!status) status = look(device, call, own ? own : ea_cu_address(workspace), (ea_cu_stream)stream, &bad);
  if (!status && bad) status = explain(device, call, (ea_cu_stream)stream);
  if (own) device->driver.mem_free(own);
  ea_device_leave(device);
  return status;
}
