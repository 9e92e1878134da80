/* The part of the NVIDIA driver's interface that the library uses, declared here so that a
 * build needs no CUDA toolkit and a machine needs no GPU. Layouts and numbers are those of
 * the driver's binary interface, which never change for a given symbol name. */
#ifndef EA_CUDA_DRIVER_H
#define EA_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/kernels/tensor_map.h"
#include "extattn.h"

typedef int ea_cu_result; /* 0 is success */
typedef int ea_cu_device;
typedef uint64_t ea_cu_ptr; /* an address in device memory */
typedef struct ea_cu_context_s *ea_cu_context;
typedef struct ea_cu_module_s *ea_cu_module;
typedef struct ea_cu_function_s *ea_cu_function;
typedef struct ea_cu_stream_s *ea_cu_stream;
typedef struct ea_cu_event_s *ea_cu_event;
typedef struct ea_cu_graph_s *ea_cu_graph;
typedef struct ea_cu_graph_exec_s *ea_cu_graph_exec;

enum {
  EA_CU_SUCCESS = 0,
  EA_CU_OUT_OF_MEMORY = 2,
  EA_CU_NO_DEVICE = 100,
  EA_CU_INVALID_DEVICE = 101,

  EA_CU_DEVICE_MULTIPROCESSORS = 16,
  EA_CU_DEVICE_CAPABILITY_MAJOR = 75,
  EA_CU_DEVICE_CAPABILITY_MINOR = 76,
  EA_CU_DEVICE_SMEM_PER_MULTIPROCESSOR = 81,
  EA_CU_DEVICE_SMEM_PER_BLOCK_OPTIN = 97,

  EA_CU_FUNC_STATIC_SMEM_BYTES = 1,
  EA_CU_FUNC_REGISTERS = 4,
  EA_CU_FUNC_MAX_DYNAMIC_SMEM_BYTES = 8,

  EA_CU_TENSOR_MAP_FLOAT16 = 6,
  EA_CU_TENSOR_MAP_BFLOAT16 = 9,
  EA_CU_TENSOR_MAP_SWIZZLE_128B = 3,
  EA_CU_TENSOR_MAP_L2_PROMOTION_128B = 2,

  EA_CU_STREAM_NON_BLOCKING = 1,
  EA_CU_CAPTURE_THREAD_LOCAL = 1
};

/* F(member of ea_driver, the driver's symbol, its parameters) */
#define EA_DRIVER_FUNCTIONS(F)                                                                                         \
  F(get_error_name, "cuGetErrorName", (ea_cu_result error, const char **text))                                         \
  F(get_error_string, "cuGetErrorString", (ea_cu_result error, const char **text))                                     \
  F(init, "cuInit", (unsigned flags))                                                                                  \
  F(driver_get_version, "cuDriverGetVersion", (int *version))                                                          \
  F(device_get_count, "cuDeviceGetCount", (int *count))                                                                \
  F(device_get, "cuDeviceGet", (ea_cu_device * device, int ordinal))                                                   \
  F(device_get_name, "cuDeviceGetName", (char *name, int size, ea_cu_device device))                                   \
  F(device_get_attribute, "cuDeviceGetAttribute", (int *value, int attribute, ea_cu_device device))                    \
  F(device_total_mem, "cuDeviceTotalMem_v2", (size_t * bytes, ea_cu_device device))                                    \
  F(primary_ctx_retain, "cuDevicePrimaryCtxRetain", (ea_cu_context * context, ea_cu_device device))                    \
  F(primary_ctx_release, "cuDevicePrimaryCtxRelease_v2", (ea_cu_device device))                                        \
  F(ctx_push_current, "cuCtxPushCurrent_v2", (ea_cu_context context))                                                  \
  F(ctx_pop_current, "cuCtxPopCurrent_v2", (ea_cu_context * context))                                                  \
  F(module_load_data, "cuModuleLoadData", (ea_cu_module * module, const void *image))                                  \
  F(module_unload, "cuModuleUnload", (ea_cu_module module))                                                            \
  F(module_get_function, "cuModuleGetFunction", (ea_cu_function * function, ea_cu_module module, const char *name))    \
  F(func_get_attribute, "cuFuncGetAttribute", (int *value, int attribute, ea_cu_function function))                    \
  F(func_set_attribute, "cuFuncSetAttribute", (ea_cu_function function, int attribute, int value))                     \
  F(launch_kernel, "cuLaunchKernel",                                                                                   \
    (ea_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,   \
     unsigned block_z, unsigned smem_bytes, ea_cu_stream stream, void **params, void **extra))                         \
  F(tensor_map_encode_tiled, "cuTensorMapEncodeTiled",                                                                 \
    (ea_tensor_map * map, int type, unsigned rank, void *address, const uint64_t *dims, const uint64_t *strides,       \
     const uint32_t *box, const uint32_t *element_strides, int interleave, int swizzle, int l2_promotion,              \
     int out_of_bounds_fill))                                                                                          \
  F(mem_get_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))                                      \
  F(mem_alloc, "cuMemAlloc_v2", (ea_cu_ptr * ptr, size_t bytes))                                                       \
  F(mem_free, "cuMemFree_v2", (ea_cu_ptr ptr))                                                                         \
  F(memcpy_to_device, "cuMemcpyHtoDAsync_v2", (ea_cu_ptr to, const void *from, size_t bytes, ea_cu_stream stream))     \
  F(memcpy_to_host, "cuMemcpyDtoHAsync_v2", (void *to, ea_cu_ptr from, size_t bytes, ea_cu_stream stream))             \
  F(memcpy_on_device, "cuMemcpyDtoDAsync_v2", (ea_cu_ptr to, ea_cu_ptr from, size_t bytes, ea_cu_stream stream))       \
  F(memset_bytes, "cuMemsetD8Async", (ea_cu_ptr to, unsigned char value, size_t bytes, ea_cu_stream stream))           \
  F(stream_create, "cuStreamCreate", (ea_cu_stream * stream, unsigned flags))                                          \
  F(stream_destroy, "cuStreamDestroy_v2", (ea_cu_stream stream))                                                       \
  F(stream_synchronize, "cuStreamSynchronize", (ea_cu_stream stream))                                                  \
  F(stream_begin_capture, "cuStreamBeginCapture_v2", (ea_cu_stream stream, int mode))                                  \
  F(stream_end_capture, "cuStreamEndCapture", (ea_cu_stream stream, ea_cu_graph * graph))                              \
  F(event_create, "cuEventCreate", (ea_cu_event * event, unsigned flags))                                              \
  F(event_destroy, "cuEventDestroy_v2", (ea_cu_event event))                                                           \
  F(event_record, "cuEventRecord", (ea_cu_event event, ea_cu_stream stream))                                           \
  F(event_synchronize, "cuEventSynchronize", (ea_cu_event event))                                                      \
  F(event_elapsed, "cuEventElapsedTime", (float *elapsed_ms, ea_cu_event first, ea_cu_event last))                     \
  F(graph_instantiate, "cuGraphInstantiateWithFlags",                                                                  \
    (ea_cu_graph_exec * exec, ea_cu_graph graph, unsigned long long flags))                                            \
  F(graph_launch, "cuGraphLaunch", (ea_cu_graph_exec exec, ea_cu_stream stream))                                       \
  F(graph_destroy, "cuGraphDestroy", (ea_cu_graph graph))                                                              \
  F(graph_exec_destroy, "cuGraphExecDestroy", (ea_cu_graph_exec exec))

typedef struct ea_driver {
#define EA_DRIVER_MEMBER(member, symbol, params) ea_cu_result(*member) params;
  EA_DRIVER_FUNCTIONS(EA_DRIVER_MEMBER)
#undef EA_DRIVER_MEMBER
} ea_driver;

/* Opens the driver and starts it. EA_ERR_NO_DEVICE says what is missing. The driver stays
 * loaded until the process ends: it has threads and exit handlers of its own. */
ea_status ea_driver_open(ea_driver *driver);

/* EA_OK for success; else keeps "what: found CUDA_ERROR_... (...)" as the thread's last error
 * and returns EA_ERR_OUT_OF_MEMORY or EA_ERR_DEVICE. */
ea_status ea_driver_check(const ea_driver *driver, ea_cu_result result, const char *what);

#endif
