/* See fake_cuda.h. The symbols are the real driver's, with its names and parameters. */
#include "fake_cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_FOUND = 500 };

#define FAKE_H200                                                                                                      \
  { .devices = 1, .major = 9, .minor = 0, .smem_block_bytes = 232448, .smem_sm_bytes = 233472 }

fake_state fake = FAKE_H200;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int stack_depth;

typedef struct module {
  char kernel[64];
} module;

void fake_reset(void) {
  fake = (fake_state)FAKE_H200;
}

int fake_stack_depth(void) {
  return stack_depth;
}

/* The planned failure of a call, or success. counter, if any, goes up by step. */
static int answer(const char *name, int *counter, int step) {
  pthread_mutex_lock(&lock);
  int result = SUCCESS;
  if (fake.fail_name && strcmp(fake.fail_name, name) == 0) {
    result = fake.fail_result;
    fake.fail_name = NULL;
  }
  if (counter && result == SUCCESS) *counter += step;
  pthread_mutex_unlock(&lock);
  return result;
}

int cuGetErrorName(int error, const char **text) {
  *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == NOT_FOUND   ? "CUDA_ERROR_NOT_FOUND"
                                 : "CUDA_ERROR";
  return SUCCESS;
}
int cuGetErrorString(int error, const char **text) {
  (void)error;
  *text = "as planned";
  return SUCCESS;
}
int cuInit(unsigned flags) {
  (void)flags;
  return answer("cuInit", NULL, 0);
}
int cuDriverGetVersion(int *version) {
  *version = 13000;
  return SUCCESS;
}
int cuDeviceGetCount(int *count) {
  *count = fake.devices;
  return answer("cuDeviceGetCount", NULL, 0);
}
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal < fake.devices ? SUCCESS : INVALID_DEVICE;
}
int cuDeviceGetName(char *name, int size, int device) {
  (void)device;
  strncpy(name, "Fake H200", (size_t)size);
  return SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  switch (attribute) {
  case 16:
    *value = fake.multiprocessors ? fake.multiprocessors : 132;
    break;
  case 75:
    *value = fake.major;
    break;
  case 76:
    *value = fake.minor;
    break;
  case 81:
    *value = fake.smem_sm_bytes;
    break;
  case 97:
    *value = fake.smem_block_bytes;
    break;
  default:
    return INVALID_VALUE;
  }
  return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = (size_t)141 << 30;
  return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  (void)device;
  *context = &fake;
  return answer("cuDevicePrimaryCtxRetain", &fake.contexts, 1);
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  return answer("cuDevicePrimaryCtxRelease", &fake.contexts, -1);
}
int cuCtxPushCurrent_v2(void *context) {
  if (context != &fake) return INVALID_VALUE;
  stack_depth++;
  return SUCCESS;
}
int cuCtxPopCurrent_v2(void **context) {
  *context = &fake;
  stack_depth--;
  return SUCCESS;
}

int cuModuleLoadData(void **loaded, const void *image) {
  if (!image || stack_depth == 0) return INVALID_VALUE;
  const int result = answer("cuModuleLoadData", &fake.modules, 1);
  if (result != SUCCESS) return result;
  *loaded = calloc(1, sizeof(module));
  return answer("cuModuleLoadData", &fake.loads, 1);
}
int cuModuleUnload(void *loaded) {
  free(loaded);
  return answer("cuModuleUnload", &fake.modules, -1);
}
int cuModuleGetFunction(void **function, void *loaded, const char *name) {
  strncpy(((module *)loaded)->kernel, name, sizeof(((module *)loaded)->kernel) - 1);
  *function = loaded;
  return answer("cuModuleGetFunction", NULL, 0);
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  (void)function;
  *value = attribute == 4 ? 168 : 0; /* registers; static shared memory */
  return SUCCESS;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  (void)function;
  return attribute == 8 && value <= fake.smem_block_bytes ? SUCCESS : INVALID_VALUE;
}
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned smem_bytes, void *stream, void **params, void **extra) {
  if (stack_depth == 0 || grid_z != 1 || block_y != 1 || block_z != 1 || extra) return INVALID_VALUE;
  const int result = answer("cuLaunchKernel", &fake.launches, 1);
  if (result != SUCCESS) return result;
  pthread_mutex_lock(&lock);
  fake.last =
      (fake_launch){.grid_x = grid_x, .grid_y = grid_y, .threads = block_x, .smem_bytes = smem_bytes, .stream = stream};
  memcpy(fake.last.kernel, ((module *)function)->kernel, sizeof fake.last.kernel);
  pthread_mutex_unlock(&lock);
  if (fake.on_launch) fake.on_launch(((module *)function)->kernel, params);
  return SUCCESS;
}

int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                           int interleave, int swizzle, int l2_promotion, int out_of_bounds_fill) {
  (void)element_strides, (void)interleave, (void)l2_promotion, (void)out_of_bounds_fill;
  const int result = answer("cuTensorMapEncodeTiled", &fake.maps, 1);
  if (result != SUCCESS) return result;
  fake_map seen = {.type = type, .rank = rank, .address = address, .swizzle = swizzle};
  for (unsigned i = 0; i < rank && i < 5; i++) {
    seen.dims[i] = dims[i];
    seen.box[i] = box[i];
    if (i + 1 < rank) seen.strides[i] = strides[i];
  }
  fake.last_maps[(fake.maps - 1) % 3] = seen;
  memset(map, 0x5a, 128);
  return SUCCESS;
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  *free_bytes = *total_bytes = (size_t)141 << 30;
  return SUCCESS;
}
int cuMemAlloc_v2(uint64_t *ptr, size_t bytes) {
  const int result = answer("cuMemAlloc", &fake.allocations, 1);
  if (result != SUCCESS) return result;
  void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  *ptr = (uint64_t)(uintptr_t)memory;
  return memory ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemFree_v2(uint64_t ptr) {
  free((void *)(uintptr_t)ptr);
  return answer("cuMemFree", &fake.allocations, 1);
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
  (void)stream;
  memcpy((void *)(uintptr_t)to, from, bytes);
  return answer("cuMemcpyHtoDAsync", &fake.copies, 1);
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
  (void)stream;
  memcpy(to, (const void *)(uintptr_t)from, bytes);
  return answer("cuMemcpyDtoHAsync", &fake.copies, 1);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  (void)stream;
  memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
  return answer("cuMemcpyDtoDAsync", &fake.copies, 1);
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream) {
  (void)stream;
  memset((void *)(uintptr_t)to, value, bytes);
  return answer("cuMemsetD8Async", NULL, 0);
}

int cuStreamCreate(void **stream, unsigned flags) {
  (void)flags;
  *stream = malloc(1);
  return answer("cuStreamCreate", NULL, 0);
}
int cuStreamDestroy_v2(void *stream) {
  free(stream);
  return SUCCESS;
}
int cuStreamSynchronize(void *stream) {
  (void)stream;
  return answer("cuStreamSynchronize", &fake.waits, 1);
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
  (void)mode;
  return stream ? SUCCESS : INVALID_VALUE;
}
int cuStreamEndCapture(void *stream, void **graph) {
  (void)stream;
  *graph = malloc(1);
  return SUCCESS;
}
int cuEventCreate(void **event, unsigned flags) {
  (void)flags;
  *event = malloc(1);
  return SUCCESS;
}
int cuEventDestroy_v2(void *event) {
  free(event);
  return SUCCESS;
}
int cuEventRecord(void *event, void *stream) {
  (void)event, (void)stream;
  return SUCCESS;
}
int cuEventSynchronize(void *event) {
  (void)event;
  return answer("cuEventSynchronize", &fake.waits, 1);
}
int cuEventElapsedTime(float *elapsed_ms, void *first, void *last) {
  (void)first, (void)last;
  *elapsed_ms = 1.0f;
  return SUCCESS;
}
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
  (void)graph, (void)flags;
  *exec = malloc(1);
  return answer("cuGraphInstantiate", NULL, 0);
}
int cuGraphLaunch(void *exec, void *stream) {
  (void)exec, (void)stream;
  return SUCCESS;
}
int cuGraphDestroy(void *graph) {
  free(graph);
  return SUCCESS;
}
int cuGraphExecDestroy(void *exec) {
  free(exec);
  return SUCCESS;
}
