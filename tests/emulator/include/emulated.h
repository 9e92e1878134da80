/* CUDA C as g++ takes it: included before every kernel's source. What a thread of a block asks
 * of its hardware goes to the emulator (block.cpp) by the functions declared here. */
#ifndef EA_EMULATOR_EMULATED_H
#define EA_EMULATOR_EMULATED_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
/* `extern __shared__ char smem[]` is the block's dynamic shared memory; a worker runs one block at a time. */
#define __shared__ __thread

typedef struct emu_index {
  uint32_t x, y, z;
} emu_index;

/* The part of a thread's state that kernels see. */
typedef struct emu_thread {
  emu_index thread_index, block_index, block_size, grid_size;
} emu_thread;
extern __thread emu_thread *emu_self __attribute__((tls_model("initial-exec")));
#define threadIdx (emu_self->thread_index)
#define blockIdx (emu_self->block_index)
#define blockDim (emu_self->block_size)
#define gridDim (emu_self->grid_size)

typedef struct uint2 {
  uint32_t x, y;
} __attribute__((aligned(8))) uint2;
typedef struct uint4 {
  uint32_t x, y, z, w;
} __attribute__((aligned(16))) uint4;
static inline uint2 make_uint2(uint32_t x, uint32_t y) {
  return {x, y};
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  return {x, y, z, w};
}

/* ---- what the emulator does ---- */

uint32_t emu_shared_address(const void *generic);
void *emu_shared_pointer(uint32_t address); /* no check: a kernel may form addresses that it does not use */
void *emu_shared_read(uint32_t address, uint32_t bytes);
void *emu_shared_write(uint32_t address, uint32_t bytes);

uint32_t emu_shuffle(uint32_t mask, uint32_t value, uint32_t from_lane);
uint32_t emu_ballot(uint32_t mask, bool value);
void emu_syncwarp(uint32_t mask);
bool emu_bar(int id, int threads, bool value); /* bar.sync and bar.red.or */
void emu_bar_arrive(int id, int threads);

void emu_ldmatrix(uint32_t *r, uint32_t address, int matrices, bool transposed);
void emu_stmatrix(uint32_t address, const uint32_t *r); /* four matrices */
void emu_mma(float *d, const uint32_t *a, const uint32_t *b, bool bf16, bool zero);

void emu_cp_async(uint32_t dst, const void *src, uint32_t src_bytes);
void emu_cp_async_commit(void);
void emu_cp_async_wait(int newest_groups);
void emu_cp_async_wait_all(void);
void emu_cp_async_arrive(uint32_t barrier);

void emu_mbarrier_init(uint32_t barrier, uint32_t arrivals);
void emu_mbarrier_inval(uint32_t barrier);
void emu_mbarrier_arrive(uint32_t barrier, uint32_t arrivals, uint32_t expected_bytes);
bool emu_mbarrier_test(uint32_t barrier, uint32_t parity);
void emu_mbarrier_wait(uint32_t barrier, uint32_t parity);

struct ea_tensor_map;
void emu_tma_load(uint32_t dst, const struct ea_tensor_map *map, uint32_t barrier, const int32_t *at, int rank);
void emu_fence_proxy_async(void);
void emu_setmaxnreg(int registers);
int64_t emu_clock(void); /* later at every call */
void emu_wgmma(float *d, const uint32_t *a, uint64_t a_descriptor, uint64_t b_descriptor, int n, int accumulate,
               bool b_along_n, bool bf16); /* a: NULL where it is by descriptor */
void emu_wgmma_fence(void);
void emu_wgmma_commit(void);
void emu_wgmma_wait(int newest_groups);

float emu_f16_to_f32(uint32_t bits);
uint32_t emu_f32_to_f16(float x); /* to nearest even; a NaN is 0x7fff */
static inline uint32_t emu_f32_to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

/* ---- intrinsics ---- */

static inline float __int_as_float(int x) {
  float y;
  memcpy(&y, &x, 4);
  return y;
}
static inline int __float_as_int(float x) {
  int y;
  memcpy(&y, &x, 4);
  return y;
}
static inline float __uint_as_float(uint32_t x) {
  return __int_as_float((int)x);
}
static inline uint32_t __float_as_uint(float x) {
  return (uint32_t)__float_as_int(x);
}
static inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return (uint32_t)((uint64_t)a * b >> 32);
}
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return (uint64_t)((unsigned __int128)a * b >> 64);
}
static inline int __clz(int x) {
  return x ? __builtin_clz((unsigned)x) : 32;
}
static inline float __fdividef(float a, float b) {
  return a / b;
}
#define __log2f(x) log2f(x) /* the C library has a name like that, too */
static inline uint32_t __cvta_generic_to_shared(const void *p) {
  return emu_shared_address(p);
}
static inline void *__cvta_shared_to_generic(uint32_t address) {
  return emu_shared_pointer(address);
}
static inline void __threadfence_block() {}

template <class T> static inline T emu_shuffle_any(uint32_t mask, T value, uint32_t from_lane) {
  static_assert(sizeof(T) == 4, "32-bit values");
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits = emu_shuffle(mask, bits, from_lane);
  memcpy(&value, &bits, 4);
  return value;
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T value, int with) {
  return emu_shuffle_any(mask, value, (threadIdx.x % 32) ^ (uint32_t)with);
}
template <class T> static inline T __shfl_sync(uint32_t mask, T value, int lane) {
  return emu_shuffle_any(mask, value, (uint32_t)lane % 32);
}
static inline uint32_t __ballot_sync(uint32_t mask, bool value) {
  return emu_ballot(mask, value);
}
static inline bool __any_sync(uint32_t mask, bool value) {
  return emu_ballot(mask, value) != 0;
}
static inline bool __all_sync(uint32_t mask, bool value) {
  return emu_ballot(mask, value) == mask;
}
static inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  emu_syncwarp(mask);
}
static inline void __syncthreads() {
  emu_bar(0, (int)blockDim.x, false);
}
static inline int __syncthreads_or(int value) {
  return emu_bar(0, (int)blockDim.x, value != 0);
}
static inline uint32_t atomicOr(uint32_t *to, uint32_t value) {
  return __atomic_fetch_or(to, value, __ATOMIC_SEQ_CST);
}
static inline uint32_t __vmaxu2(uint32_t a, uint32_t b) {
  const uint32_t low = (a & 0xffffu) > (b & 0xffffu) ? a : b, high = a >> 16 > b >> 16 ? a : b;
  return (low & 0xffffu) | (high & 0xffff0000u);
}
static inline int32_t atomicAdd(int32_t *to, int32_t value) {
  return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST);
}
static inline uint32_t atomicAdd(uint32_t *to, uint32_t value) {
  return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST);
}

#endif
