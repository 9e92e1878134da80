/* Inside the CUDA backend: an open device, its embedded kernel images and what is loaded of
 * them. Everything but the kernel slots, and a recording's place, is constant once the device is open. */
#ifndef EA_CUDA_DEVICE_H
#define EA_CUDA_DEVICE_H

#include <pthread.h>
#include <stdbool.h>

#include "cuda/cuda.h"
#include "cuda/driver.h"
#include "cuda/kernels/timeline.h"

/* One kernel for one architecture, as embedded in the library. */
typedef struct ea_image {
  const char *kernel;        /* its entry point's name too */
  int32_t capability;        /* compiled for: 90 is sm_90 */
  bool exact;                /* uses features of that one capability (sm_90a) */
  const unsigned char *data; /* what cuModuleLoadData takes */
} ea_image;

/* Written by the build (cmake/EaCuda.cmake). */
extern const ea_image ea_images[];
extern const int32_t ea_image_count;
extern const bool ea_images_record; /* the Hopper kernels' images leave marks (EA_TRACE) */

/* A kernel on a device; one slot an image, filled when it is first asked for. */
struct ea_cuda_kernel {
  ea_cu_module module; /* NULL: not loaded */
  ea_cu_function function;
  int32_t registers;
};

struct ea_cuda_device {
  ea_driver driver;
  ea_cu_device handle;
  ea_cu_context primary;
  int32_t ordinal;
  int32_t capability;
  int32_t multiprocessors;
  int32_t driver_version;
  int64_t memory_bytes;
  int64_t smem_limit_bytes;
  int64_t smem_per_sm_bytes;
  char name[128];
  char arch[16];
  pthread_mutex_t lock; /* of the slots below */
  ea_cuda_kernel *kernels;
  const ea_cuda_kernel *validate; /* loaded with the device: a first use may be inside a graph capture, */
  const ea_cuda_kernel *merge[3]; /* where nothing can be loaded. f32, f16, bf16 */
  const ea_cuda_kernel *schedule; /* with the Hopper family's kernels; else NULL */
  const ea_cuda_kernel *stage;    /* likewise */
  ea_marks_place marks;           /* of the recording that is on (recording.h) */
};

/* Whether a device of this capability runs the image: a cubin runs on its own major version,
 * from its minor version on. */
bool ea_image_runs_on(const ea_image *image, int32_t capability);

/* The device's primary context is current between these two, and the caller's own after. */
ea_status ea_device_enter(const ea_cuda_device *device);
void ea_device_leave(const ea_cuda_device *device);

/* Loads a kernel by name if it is not loaded yet. The context is to be current. */
ea_status ea_device_load(ea_cuda_device *device, const char *name, const ea_cuda_kernel **kernel);

#endif
