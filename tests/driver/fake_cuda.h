/* A driver without a GPU: device memory is host memory, kernels are not run but written down.
 * For tests of what the library asks of a driver, and of what it does when the driver fails. */
#ifndef EA_TESTS_DRIVER_FAKE_CUDA_H
#define EA_TESTS_DRIVER_FAKE_CUDA_H

#include <stdint.h>

typedef struct fake_launch {
  char kernel[64];
  unsigned grid_x, grid_y, threads, smem_bytes;
  void *stream;
} fake_launch;

typedef struct fake_map {
  int type;
  unsigned rank;
  void *address;
  uint64_t dims[5], strides[5]; /* strides in bytes, of all dimensions but the first */
  uint32_t box[5];
  int swizzle;
} fake_map;

typedef struct fake_state {
  /* What the card says of itself. */
  int multiprocessors; /* 0: 132 */
  int devices;
  int major, minor;
  int smem_block_bytes, smem_sm_bytes;
  /* The next call of this name fails with this result; the name is then forgotten. */
  const char *fail_name;
  int fail_result;
  /* Runs in place of a kernel. */
  void (*on_launch)(const char *kernel, void **params);
  /* What has happened. */
  int contexts; /* retained less released */
  int modules;  /* loaded less unloaded */
  int loads;    /* ever */
  int launches;
  int allocations; /* cuMemAlloc and cuMemFree */
  int waits;       /* anything that waits for the device */
  int copies;
  fake_launch last;
  int maps; /* encoded tensor maps */
  fake_map last_maps[3];
} fake_state;

/* The one state; fake_reset makes it that of an H200. */
extern fake_state fake;
void fake_reset(void);

/* How deep the calling thread's stack of contexts is. */
int fake_stack_depth(void);

#endif
