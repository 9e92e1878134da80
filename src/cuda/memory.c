/* See memory.h: thin, checked calls of the driver, and their host counterparts. */
#include "cuda/memory.h"

#include <stdlib.h>
#include <string.h>

#include "common/context.h"
#include "common/error.h"
#include "cuda/launch.h"

#define EA_MEM_ALIGNMENT 256

/* The context's GPU with its driver context current; NULL (and the reason kept) otherwise. */
static const ea_cuda_device *enter_gpu(ea_context *context, const char *what, ea_status *status) {
  const ea_cuda_device *device = context->cuda;
  if (!device) {
    *status = ea_fail(EA_ERR_UNSUPPORTED, "context: found a CPU, allowed for %s: a GPU", what);
    return NULL;
  }
  *status = ea_device_enter(device);
  return *status == EA_OK ? device : NULL;
}

/* Ends what enter_gpu began and turns the driver's answer into a status. */
static ea_status leave_gpu(const ea_cuda_device *device, ea_cu_result result, const char *what) {
  ea_device_leave(device);
  return ea_driver_check(&device->driver, result, what);
}

ea_status ea_gpu_enter(ea_context *context) {
  ea_status status;
  enter_gpu(context, "its driver context", &status);
  return status;
}

void ea_gpu_leave(ea_context *context) {
  ea_device_leave(context->cuda);
}

/* ---- memory ---- */

static ea_status host_alloc(size_t bytes, void **ptr) {
  const size_t rounded = (bytes + EA_MEM_ALIGNMENT - 1) / EA_MEM_ALIGNMENT * EA_MEM_ALIGNMENT;
  *ptr = rounded < bytes ? NULL : aligned_alloc(EA_MEM_ALIGNMENT, rounded ? rounded : EA_MEM_ALIGNMENT);
  return *ptr ? EA_OK : ea_fail(EA_ERR_OUT_OF_MEMORY, "host memory: found none for %zu bytes", bytes);
}

ea_status ea_mem_alloc(ea_context *context, size_t bytes, void **ptr) {
  if (!context->cuda) return host_alloc(bytes, ptr);
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "memory", &status);
  if (!device) return status;
  ea_cu_ptr address = 0;
  const ea_cu_result result = device->driver.mem_alloc(&address, bytes ? bytes : 1);
  ea_device_leave(device);
  if (result == EA_CU_OUT_OF_MEMORY) {
    return ea_fail(EA_ERR_OUT_OF_MEMORY, "device memory: found none for %zu bytes", bytes);
  }
  status = ea_driver_check(&device->driver, result, "cuMemAlloc");
  if (status == EA_OK) *ptr = (void *)(uintptr_t)address;
  return status;
}

void ea_mem_free(ea_context *context, void *ptr) {
  if (!ptr) return;
  if (!context->cuda) {
    free(ptr);
    return;
  }
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "memory", &status);
  if (!device) return;
  device->driver.mem_free(ea_cu_address(ptr));
  ea_device_leave(device);
}

ea_status ea_mem_upload(ea_context *context, void *to, const void *from, size_t bytes, void *stream) {
  if (bytes == 0) return EA_OK;
  if (!context->cuda) {
    memcpy(to, from, bytes);
    return EA_OK;
  }
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "memory", &status);
  if (!device) return status;
  ea_cu_result result = device->driver.memcpy_to_device(ea_cu_address(to), from, bytes, (ea_cu_stream)stream);
  if (result == EA_CU_SUCCESS) result = device->driver.stream_synchronize((ea_cu_stream)stream);
  return leave_gpu(device, result, "cuMemcpyHtoDAsync");
}

ea_status ea_mem_download(ea_context *context, void *to, const void *from, size_t bytes, void *stream) {
  if (bytes == 0) return EA_OK;
  if (!context->cuda) {
    memcpy(to, from, bytes);
    return EA_OK;
  }
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "memory", &status);
  if (!device) return status;
  ea_cu_result result = device->driver.memcpy_to_host(to, ea_cu_address(from), bytes, (ea_cu_stream)stream);
  if (result == EA_CU_SUCCESS) result = device->driver.stream_synchronize((ea_cu_stream)stream);
  return leave_gpu(device, result, "cuMemcpyDtoHAsync");
}

ea_status ea_mem_copy(ea_context *context, void *to, const void *from, size_t bytes, void *stream) {
  if (bytes == 0) return EA_OK;
  if (!context->cuda) {
    memmove(to, from, bytes);
    return EA_OK;
  }
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "memory", &status);
  if (!device) return status;
  const ea_cu_result result =
      device->driver.memcpy_on_device(ea_cu_address(to), ea_cu_address(from), bytes, (ea_cu_stream)stream);
  return leave_gpu(device, result, "cuMemcpyDtoDAsync");
}

ea_status ea_mem_set(ea_context *context, void *to, unsigned char value, size_t bytes, void *stream) {
  if (bytes == 0) return EA_OK;
  if (!context->cuda) {
    memset(to, value, bytes);
    return EA_OK;
  }
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "memory", &status);
  if (!device) return status;
  const ea_cu_result result = device->driver.memset_bytes(ea_cu_address(to), value, bytes, (ea_cu_stream)stream);
  return leave_gpu(device, result, "cuMemsetD8Async");
}

ea_status ea_mem_available(ea_context *context, size_t *bytes) {
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "memory", &status);
  if (!device) return status;
  size_t total;
  return leave_gpu(device, device->driver.mem_get_info(bytes, &total), "cuMemGetInfo");
}

/* ---- streams ---- */

ea_status ea_stream_synchronize(ea_context *context, void *stream) {
  if (!context->cuda) return EA_OK;
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "streams", &status);
  if (!device) return status;
  return leave_gpu(device, device->driver.stream_synchronize((ea_cu_stream)stream), "cuStreamSynchronize");
}

ea_status ea_stream_create(ea_context *context, void **stream) {
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "streams", &status);
  if (!device) return status;
  ea_cu_stream created = NULL;
  status = leave_gpu(device, device->driver.stream_create(&created, EA_CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  if (status == EA_OK) *stream = created;
  return status;
}

void ea_stream_destroy(ea_context *context, void *stream) {
  if (!stream) return;
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "streams", &status);
  if (!device) return;
  device->driver.stream_destroy((ea_cu_stream)stream);
  ea_device_leave(device);
}

/* ---- events ---- */

ea_status ea_event_create(ea_context *context, ea_event *event) {
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "events", &status);
  if (!device) return status;
  ea_cu_event created = NULL;
  status = leave_gpu(device, device->driver.event_create(&created, 0), "cuEventCreate");
  if (status == EA_OK) *event = (ea_event)created;
  return status;
}

void ea_event_destroy(ea_context *context, ea_event event) {
  if (!event) return;
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "events", &status);
  if (!device) return;
  device->driver.event_destroy((ea_cu_event)event);
  ea_device_leave(device);
}

ea_status ea_event_record(ea_context *context, ea_event event, void *stream) {
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "events", &status);
  if (!device) return status;
  return leave_gpu(device, device->driver.event_record((ea_cu_event)event, (ea_cu_stream)stream), "cuEventRecord");
}

ea_status ea_event_elapsed_ms(ea_context *context, ea_event first, ea_event last, float *elapsed_ms) {
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "events", &status);
  if (!device) return status;
  ea_cu_result result = device->driver.event_synchronize((ea_cu_event)last);
  if (result == EA_CU_SUCCESS) {
    result = device->driver.event_elapsed(elapsed_ms, (ea_cu_event)first, (ea_cu_event)last);
  }
  return leave_gpu(device, result, "cuEventElapsedTime");
}

/* ---- graphs ---- */

ea_status ea_graph_begin(ea_context *context, void *stream) {
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "graphs", &status);
  if (!device) return status;
  return leave_gpu(device, device->driver.stream_begin_capture((ea_cu_stream)stream, EA_CU_CAPTURE_THREAD_LOCAL),
                   "cuStreamBeginCapture");
}

ea_status ea_graph_end(ea_context *context, void *stream, ea_graph *graph) {
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "graphs", &status);
  if (!device) return status;
  ea_cu_graph captured = NULL;
  ea_cu_graph_exec ready = NULL;
  ea_cu_result result = device->driver.stream_end_capture((ea_cu_stream)stream, &captured);
  if (result == EA_CU_SUCCESS) result = device->driver.graph_instantiate(&ready, captured, 0);
  if (captured) device->driver.graph_destroy(captured); /* the instance does not need its template */
  status = leave_gpu(device, result, "cuStreamEndCapture");
  if (status == EA_OK) *graph = (ea_graph)ready;
  return status;
}

ea_status ea_graph_launch(ea_context *context, ea_graph graph, void *stream) {
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "graphs", &status);
  if (!device) return status;
  return leave_gpu(device, device->driver.graph_launch((ea_cu_graph_exec)graph, (ea_cu_stream)stream), "cuGraphLaunch");
}

void ea_graph_destroy(ea_context *context, ea_graph graph) {
  if (!graph) return;
  ea_status status;
  const ea_cuda_device *device = enter_gpu(context, "graphs", &status);
  if (!device) return;
  device->driver.graph_exec_destroy((ea_cu_graph_exec)graph);
  ea_device_leave(device);
}
