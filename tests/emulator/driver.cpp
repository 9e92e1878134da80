/* The driver's functions that src/cuda/driver.h looks up, with one device. Streams run at once.
 *
 *   EA_EMULATED_ARCH     80, 86, 90 (default) or 120: the device's compute capability
 *   EA_EMULATED_ORDER    early (default), late, or a number: the seed of random times
 *   EA_EMULATED_THREADS  blocks at a time (default: as many as there are processors) */
#include "driver.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <time.h>
#include <vector>

#include "block.h"
#include "tensor_map.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_FOUND = 500, NOT_SUPPORTED = 801 };

#define API extern "C" __attribute__((visibility("default"))) int

/* ---- the device ------------------------------------------------------------------------------- */

struct emu_device {
  int capability, shared_bytes, shared_sm_bytes;
};

static const emu_device &device() {
  static const emu_device chosen = [] {
    static const emu_device known[] = {
        {80, 166912, 167936}, {86, 101376, 102400}, {90, 232448, 233472}, {120, 101376, 102400}};
    const char *asked = getenv("EA_EMULATED_ARCH");
    const int capability = asked ? atoi(asked) : 90;
    for (const emu_device &d : known) {
      if (d.capability == capability) return d;
    }
    emu_fail("EA_EMULATED_ARCH: found %s, allowed 80, 86, 90 or 120", asked);
  }();
  return chosen;
}

static const uint64_t MEMORY_BYTES = (uint64_t)6 << 30;

API cuInit(unsigned) {
  return SUCCESS;
}
API cuGetErrorName(int error, const char **text) {
  *text = error == OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == NOT_FOUND     ? "CUDA_ERROR_NOT_FOUND"
          : error == NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED"
          : error == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
                                   : "CUDA_ERROR";
  return SUCCESS;
}
API cuGetErrorString(int, const char **text) {
  *text = "from the emulated GPU";
  return SUCCESS;
}
API cuDriverGetVersion(int *version) {
  *version = 13000;
  return SUCCESS;
}
API cuDeviceGetCount(int *count) {
  *count = 1;
  return SUCCESS;
}
API cuDeviceGet(int *handle, int ordinal) {
  *handle = ordinal;
  return ordinal == 0 ? SUCCESS : INVALID_DEVICE;
}
API cuDeviceGetName(char *name, int size, int) {
  snprintf(name, (size_t)size, "emulated GPU");
  return SUCCESS;
}
API cuDeviceGetAttribute(int *value, int attribute, int) {
  switch (attribute) {
  case 16: /* few, so that blocks that live long get several pieces of work */
    *value = 3;
    break;
  case 75:
    *value = device().capability / 10;
    break;
  case 76:
    *value = device().capability % 10;
    break;
  case 81:
    *value = device().shared_sm_bytes;
    break;
  case 97:
    *value = device().shared_bytes;
    break;
  default:
    return INVALID_VALUE;
  }
  return SUCCESS;
}
API cuDeviceTotalMem_v2(size_t *bytes, int) {
  *bytes = MEMORY_BYTES;
  return SUCCESS;
}

static int context; /* its address is the handle */
API cuDevicePrimaryCtxRetain(void **handle, int) {
  *handle = &context;
  return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int) {
  return SUCCESS;
}
static thread_local int contexts_pushed;
API cuCtxPushCurrent_v2(void *handle) {
  if (handle != &context) return INVALID_VALUE;
  contexts_pushed++;
  return SUCCESS;
}
API cuCtxPopCurrent_v2(void **handle) {
  if (contexts_pushed == 0) return INVALID_VALUE;
  *handle = &context;
  contexts_pushed--;
  return SUCCESS;
}

/* ---- kernels ---------------------------------------------------------------------------------- */

struct emu_function {
  std::string name;
  emu_binder bind;
  int max_shared_bytes;
};

/* Filled while the library is loaded. */
static std::map<std::string, emu_function> &functions() {
  static std::map<std::string, emu_function> table;
  return table;
}

void emu_register(const char *name, emu_binder bind) {
  functions()[name] = {name, bind, 48 * 1024};
}

/* An image says nothing: kernels go by their names. */
API cuModuleLoadData(void **module, const void *image) {
  static int loaded;
  if (!image || contexts_pushed == 0) return INVALID_VALUE;
  *module = &loaded;
  return SUCCESS;
}
API cuModuleUnload(void *) {
  return SUCCESS;
}
API cuModuleGetFunction(void **function, void *, const char *name) {
  const auto found = functions().find(name);
  if (found == functions().end()) return NOT_FOUND;
  *function = &found->second;
  return SUCCESS;
}
API cuFuncGetAttribute(int *value, int attribute, void *) {
  *value = attribute == 4 ? 168 : 0;
  return SUCCESS;
}
API cuFuncSetAttribute(void *function, int attribute, int value) {
  if (attribute != 8 || value > device().shared_bytes) return INVALID_VALUE;
  ((emu_function *)function)->max_shared_bytes = value;
  return SUCCESS;
}

/* ---- streams: everything runs at once, or goes into the graph that is being captured ----------- */

typedef std::vector<emu_body> emu_graph;

struct emu_stream {
  std::unique_ptr<emu_graph> captured;
};

static int enqueue(void *stream, const emu_body &work) {
  emu_stream *s = (emu_stream *)stream;
  if (s && s->captured) {
    s->captured->push_back(work);
  } else {
    work();
  }
  return SUCCESS;
}

API cuStreamCreate(void **stream, unsigned) {
  *stream = new emu_stream;
  return SUCCESS;
}
API cuStreamDestroy_v2(void *stream) {
  delete (emu_stream *)stream;
  return SUCCESS;
}
API cuStreamSynchronize(void *stream) {
  const emu_stream *s = (const emu_stream *)stream;
  return s && s->captured ? 900 : SUCCESS; /* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED */
}
API cuStreamBeginCapture_v2(void *stream, int) {
  if (!stream) return INVALID_VALUE;
  ((emu_stream *)stream)->captured.reset(new emu_graph);
  return SUCCESS;
}
API cuStreamEndCapture(void *stream, void **graph) {
  *graph = ((emu_stream *)stream)->captured.release();
  return *graph ? SUCCESS : INVALID_VALUE;
}
API cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long) {
  *exec = new emu_graph(*(emu_graph *)graph);
  return SUCCESS;
}
API cuGraphLaunch(void *exec, void *stream) {
  const emu_graph copy = *(emu_graph *)exec;
  return enqueue(stream, [copy] {
    for (const emu_body &work : copy) work();
  });
}
API cuGraphDestroy(void *graph) {
  delete (emu_graph *)graph;
  return SUCCESS;
}
API cuGraphExecDestroy(void *exec) {
  delete (emu_graph *)exec;
  return SUCCESS;
}

static double now_ms() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
API cuEventCreate(void **event, unsigned) {
  *event = new double(0);
  return SUCCESS;
}
API cuEventDestroy_v2(void *event) {
  delete (double *)event;
  return SUCCESS;
}
API cuEventRecord(void *event, void *) {
  *(double *)event = now_ms();
  return SUCCESS;
}
API cuEventSynchronize(void *) {
  return SUCCESS;
}
API cuEventElapsedTime(float *elapsed_ms, void *first, void *last) {
  *elapsed_ms = (float)(*(double *)last - *(double *)first);
  return SUCCESS;
}

/* ---- launching -------------------------------------------------------------------------------- */

struct emu_launch {
  std::string name;
  emu_body body;
  emu_index grid;
  int threads;
  uint32_t shared_bytes;
};

static emu_order order(uint64_t *seed) {
  const char *asked = getenv("EA_EMULATED_ORDER");
  *seed = 0;
  if (!asked || strcmp(asked, "early") == 0) return EMU_EARLY;
  if (strcmp(asked, "late") == 0) return EMU_LATE;
  char *end;
  *seed = strtoull(asked, &end, 10);
  if (!*asked || *end) emu_fail("EA_EMULATED_ORDER: found %s, allowed early, late or a number", asked);
  return EMU_RANDOM;
}

static unsigned workers() {
  const char *asked = getenv("EA_EMULATED_THREADS");
  const unsigned count = asked ? (unsigned)atoi(asked) : std::thread::hardware_concurrency();
  return count < 1 ? 1 : count;
}

static void run(const emu_launch &launch) {
  static std::atomic<uint64_t> launches;
  uint64_t seed;
  const emu_order how = order(&seed);
  const uint64_t launch_seed = seed * 1000003 + launches++;
  const uint32_t blocks = launch.grid.x * launch.grid.y;
  std::atomic<uint32_t> next(0);
  const auto work = [&] {
    const std::unique_ptr<emu_block> block(new emu_block());
    for (uint32_t b = next++; b < blocks; b = next++) {
      emu_run_block(block.get(), launch.name.c_str(), launch.grid, {b % launch.grid.x, b / launch.grid.x, 0},
                    launch.threads, launch.shared_bytes, how, launch_seed * 4096 + b, launch.body);
    }
  };
  const unsigned count = workers() < blocks ? workers() : blocks;
  std::vector<std::thread> others;
  for (unsigned i = 1; i < count; i++) others.emplace_back(work);
  work();
  for (std::thread &other : others) other.join();
}

API cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned smem_bytes, void *stream, void **params, void **extra) {
  const emu_function *f = (const emu_function *)function;
  if (contexts_pushed == 0 || grid_x == 0 || grid_y == 0 || grid_y > 65535 || grid_z != 1 || block_x == 0 ||
      block_x > EMU_MAX_THREADS || block_y != 1 || block_z != 1 || extra || (int)smem_bytes > f->max_shared_bytes) {
    return INVALID_VALUE;
  }
  const emu_launch launch = {f->name, f->bind(params), {grid_x, grid_y, 1}, (int)block_x, smem_bytes};
  return enqueue(stream, [launch] { run(launch); });
}

/* ---- memory: what is allocated ends at a page that is not there -------------------------------- */

enum { PAGE = 4096, ALIGNMENT = 256, POISON_BYTE = 0xff, SLACK_BYTE = 0x5a };

struct allocation {
  char *pages;
  size_t mapped, bytes;
};
static std::mutex memory_lock;
static std::map<uint64_t, allocation> allocations;
static uint64_t allocated_bytes;

API cuMemAlloc_v2(uint64_t *ptr, size_t bytes) {
  if (bytes == 0) return INVALID_VALUE;
  const std::lock_guard<std::mutex> hold(memory_lock);
  if (bytes > MEMORY_BYTES - allocated_bytes) return OUT_OF_MEMORY;
  const size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  const size_t mapped = (rounded + PAGE - 1) / PAGE * PAGE + PAGE;
  void *pages = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return OUT_OF_MEMORY;
  mprotect((char *)pages + mapped - PAGE, PAGE, PROT_NONE);
  char *start = (char *)pages + mapped - PAGE - rounded;
  memset(start, POISON_BYTE, bytes);
  memset(start + bytes, SLACK_BYTE, rounded - bytes);
  *ptr = (uint64_t)(uintptr_t)start;
  allocations[*ptr] = {(char *)pages, mapped, bytes};
  allocated_bytes += bytes;
  return SUCCESS;
}

API cuMemFree_v2(uint64_t ptr) {
  const std::lock_guard<std::mutex> hold(memory_lock);
  const auto found = allocations.find(ptr);
  if (found == allocations.end()) return INVALID_VALUE;
  const allocation freed = found->second;
  allocations.erase(found);
  allocated_bytes -= freed.bytes;
  const char *start = (const char *)(uintptr_t)ptr, *end = freed.pages + freed.mapped - PAGE;
  for (const char *at = start + freed.bytes; at < end; at++) {
    if (*at != SLACK_BYTE)
      emu_fail("device memory of %zu bytes was written %td past its end", freed.bytes,
               at - start - (ptrdiff_t)freed.bytes);
  }
  munmap(freed.pages, freed.mapped);
  return SUCCESS;
}
API cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  const std::lock_guard<std::mutex> hold(memory_lock);
  *free_bytes = MEMORY_BYTES - allocated_bytes;
  *total_bytes = MEMORY_BYTES;
  return SUCCESS;
}
API cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
  return enqueue(stream, [=] { memcpy((void *)(uintptr_t)to, from, bytes); });
}
API cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
  return enqueue(stream, [=] { memcpy(to, (const void *)(uintptr_t)from, bytes); });
}
API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  return enqueue(stream, [=] { memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes); });
}
API cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream) {
  return enqueue(stream, [=] { memset((void *)(uintptr_t)to, value, bytes); });
}

/* Refuses what the driver refuses (CUDA driver API, cuTensorMapEncodeTiled) and what is not emulated. */
API cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                           int interleave, int swizzle, int, int out_of_bounds_fill) {
  static const uint8_t element_bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2}; /* U8 to BFLOAT16 */
  if (type < 0 || type > 9 || rank < 1 || rank > 5 || interleave != 0 || out_of_bounds_fill != 0) return INVALID_VALUE;
  if ((swizzle != 0 && swizzle != 3) || (uintptr_t)address % 16 != 0 || (uintptr_t)map % 64 != 0) return INVALID_VALUE;
  emu_tensor_map encoded = {};
  encoded.mark = EMU_TENSOR_MAP_MARK;
  encoded.rank = (uint8_t)rank;
  encoded.element_bytes = element_bytes[type];
  encoded.swizzle_128 = swizzle == 3;
  encoded.address = address;
  for (unsigned d = 0; d < rank; d++) {
    if (dims[d] == 0 || dims[d] > (uint64_t)1 << 32 || box[d] == 0 || box[d] > 256 || element_strides[d] != 1) {
      return INVALID_VALUE;
    }
    if (d > 0 && (strides[d - 1] % 16 != 0 || strides[d - 1] >= (uint64_t)1 << 40)) return INVALID_VALUE;
    encoded.dims[d] = dims[d];
    encoded.box[d] = (uint16_t)box[d];
    if (d > 0) encoded.strides[d - 1] = strides[d - 1];
  }
  const uint32_t row_bytes = box[0] * encoded.element_bytes;
  if (row_bytes % 16 != 0 || (encoded.swizzle_128 && row_bytes != 128)) return INVALID_VALUE;
  memset(map, 0, 128);
  memcpy(map, &encoded, sizeof encoded);
  return SUCCESS;
}
