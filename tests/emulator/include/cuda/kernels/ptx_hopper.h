/* The wrappers of src/cuda/kernels/ptx_hopper.h, emulated. */
#ifndef EA_CUDA_KERNELS_PTX_HOPPER_H
#define EA_CUDA_KERNELS_PTX_HOPPER_H

#include "cuda/kernels/ptx.h"
#include "cuda/kernels/tensor_map.h"

EA_DEVICE void tensor_map_prefetch(const ea_tensor_map *map) {
  (void)map;
}
EA_DEVICE void tma_load_3d(uint32_t dst, const ea_tensor_map *map, uint32_t barrier, int32_t c0, int32_t c1,
                           int32_t c2) {
  const int32_t at[] = {c0, c1, c2};
  emu_tma_load(dst, map, barrier, at, 3);
}
EA_DEVICE void tma_load_4d(uint32_t dst, const ea_tensor_map *map, uint32_t barrier, int32_t c0, int32_t c1, int32_t c2,
                           int32_t c3) {
  const int32_t at[] = {c0, c1, c2, c3};
  emu_tma_load(dst, map, barrier, at, 4);
}
EA_DEVICE void tma_prefetch_3d(const ea_tensor_map *, int32_t, int32_t, int32_t) {}
EA_DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  emu_mbarrier_arrive(barrier, 1, bytes);
}
EA_DEVICE bool mbarrier_test(uint32_t barrier, uint32_t parity) {
  return emu_mbarrier_test(barrier, parity);
}
EA_DEVICE void fence_mbarrier_init(void) {}
EA_DEVICE void fence_proxy_async_shared(void) {
  emu_fence_proxy_async();
}

EA_DEVICE bool elect_one(void) {
  return threadIdx.x % 32 == 0;
}

EA_DEVICE void stmatrix_x4(uint32_t address, const uint32_t r[4]) {
  emu_stmatrix(address, r);
}

EA_DEVICE void cp_async_commit_group(void) {
  emu_cp_async_commit();
}
#define cp_async_wait_group(newest) emu_cp_async_wait(newest)

EA_DEVICE void bar_arrive(int id, int threads) {
  emu_bar_arrive(id, threads);
}
EA_DEVICE bool bar_red_or(int id, int threads, bool value) {
  return emu_bar(id, threads, value);
}

#define setmaxnreg_dec(registers) emu_setmaxnreg((int)(registers))
#define setmaxnreg_inc(registers) emu_setmaxnreg((int)(registers))

EA_DEVICE void wgmma_fence(void) {
  emu_wgmma_fence();
}
EA_DEVICE void wgmma_commit_group(void) {
  emu_wgmma_commit();
}
#define wgmma_wait_group(newest) emu_wgmma_wait(newest)
EA_DEVICE void wgmma_settle(float *d, int n) {
  (void)d, (void)n;
}
EA_DEVICE void wgmma_refill(uint32_t *to, const uint32_t *from, int n) {
  for (int i = 0; i < n; i++) to[i] = from[i];
}

EA_DEVICE uint64_t wgmma_descriptor(uint32_t address, uint32_t leading) {
  return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
         (uint64_t)1 << 62;
}
EA_DEVICE uint64_t wgmma_advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

#define EA_WGMMA(n, type, is_bf16)                                                                                     \
  EA_DEVICE void wgmma_n##n##_ss_##type(float d[n / 2], uint64_t a, uint64_t b, int accumulate) {                      \
    emu_wgmma(d, 0, a, b, n, accumulate, false, is_bf16);                                                              \
  }                                                                                                                    \
  EA_DEVICE void wgmma_n##n##_st_##type(float d[n / 2], uint64_t a, uint64_t b, int accumulate) {                      \
    emu_wgmma(d, 0, a, b, n, accumulate, true, is_bf16);                                                               \
  }                                                                                                                    \
  EA_DEVICE void wgmma_n##n##_rs_##type(float d[n / 2], const uint32_t a[4], uint64_t b, int accumulate) {             \
    emu_wgmma(d, a, 0, b, n, accumulate, true, is_bf16);                                                               \
  }
#define EA_WGMMA_BOTH(n) EA_WGMMA(n, bf16, true) EA_WGMMA(n, f16, false)
EA_WGMMA_BOTH(64)
EA_WGMMA_BOTH(80)
EA_WGMMA_BOTH(96)
EA_WGMMA_BOTH(112)
EA_WGMMA_BOTH(128)
EA_WGMMA_BOTH(160)
EA_WGMMA_BOTH(192)
EA_WGMMA_BOTH(256)

#endif
