/* The wrappers of src/cuda/kernels/ptx.h, emulated. */
#ifndef EA_CUDA_KERNELS_PTX_H
#define EA_CUDA_KERNELS_PTX_H

#include <stdint.h>

#define EA_DEVICE static __device__ __forceinline__

EA_DEVICE uint32_t smem_address(const void *p) {
  return emu_shared_address(p);
}
EA_DEVICE int read_tid(void) {
  return (int)threadIdx.x;
}
EA_DEVICE int read_anew(int x) {
  return x;
}
EA_DEVICE const void *shared_anew(uint32_t address) {
  asm volatile("" ::: "memory");
  return emu_shared_pointer(address);
}

/* Reads of the clock are what makes it go on. */
EA_DEVICE uint32_t read_clock(void) {
  return (uint32_t)emu_clock();
}
EA_DEVICE int64_t read_clock64(void) {
  return emu_clock();
}
EA_DEVICE int64_t read_globaltimer(void) {
  return emu_clock();
}
EA_DEVICE uint32_t read_smid(void) {
  return blockIdx.x;
}

EA_DEVICE void prefetch_l2(const void *) {}
EA_DEVICE void cp_async_16(uint32_t dst, const void *src, uint32_t src_bytes) {
  emu_cp_async(dst, src, src_bytes);
}
EA_DEVICE void cp_async_wait_all(void) {
  emu_cp_async_wait_all();
}

EA_DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  emu_mbarrier_init(barrier, arrivals);
}
EA_DEVICE void mbarrier_inval(uint32_t barrier) {
  emu_mbarrier_inval(barrier);
}
EA_DEVICE void mbarrier_arrive(uint32_t barrier) {
  emu_mbarrier_arrive(barrier, 1, 0);
}
EA_DEVICE void cp_async_mbarrier_arrive_noinc(uint32_t barrier) {
  emu_cp_async_arrive(barrier);
}
EA_DEVICE void mbarrier_arrive_many(uint32_t barrier, uint32_t arrivals) {
  emu_mbarrier_arrive(barrier, arrivals, 0);
}
EA_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  emu_mbarrier_wait(barrier, parity);
}

EA_DEVICE void st_shared_v4(uint32_t address, uint4 v) {
  memcpy(emu_shared_write(address, 16), &v, 16);
}
EA_DEVICE uint4 ld_shared_v4(uint32_t address) {
  uint4 v;
  memcpy(&v, emu_shared_read(address, 16), 16);
  return v;
}
EA_DEVICE void st_shared_b32(uint32_t address, uint32_t v) {
  memcpy(emu_shared_write(address, 4), &v, 4);
}
EA_DEVICE void st_shared_f32(uint32_t address, float v) {
  memcpy(emu_shared_write(address, 4), &v, 4);
}
EA_DEVICE float ld_shared_f32(uint32_t address) {
  float v;
  memcpy(&v, emu_shared_read(address, 4), 4);
  return v;
}
EA_DEVICE void st_shared_b64(uint32_t address, uint64_t v) {
  memcpy(emu_shared_write(address, 8), &v, 8);
}
EA_DEVICE uint64_t ld_shared_b64(uint32_t address) {
  uint64_t v;
  memcpy(&v, emu_shared_read(address, 8), 8);
  return v;
}
EA_DEVICE uint32_t ld_shared_b32(uint32_t address) {
  uint32_t v;
  memcpy(&v, emu_shared_read(address, 4), 4);
  return v;
}

EA_DEVICE void ldmatrix_x4(uint32_t r[4], uint32_t address) {
  emu_ldmatrix(r, address, 4, false);
}
EA_DEVICE void ldmatrix_x2(uint32_t r[2], uint32_t address) {
  emu_ldmatrix(r, address, 2, false);
}
EA_DEVICE void ldmatrix_x4_trans(uint32_t r[4], uint32_t address) {
  emu_ldmatrix(r, address, 4, true);
}

EA_DEVICE void mma_m16n8k16_bf16_zero(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  emu_mma(d, a, b, true, true);
}
EA_DEVICE void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  emu_mma(d, a, b, true, false);
}
EA_DEVICE void mma_m16n8k16_f16_zero(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  emu_mma(d, a, b, false, true);
}
EA_DEVICE void mma_m16n8k16_f16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  emu_mma(d, a, b, false, false);
}

EA_DEVICE void bar_sync(int id, int threads) {
  emu_bar(id, threads, false);
}

EA_DEVICE float max_nan(float a, float b) {
  return a > b || a != a ? a : b;
}
EA_DEVICE float mul_rn(float a, float b) {
  /* Without -ffp-contract=fast there is no fused form to fall into: g++ compiles the emulator for x86-64. */
  return a * b;
}
EA_DEVICE float ex2_approx(float x) {
  const float y = exp2f(x);
  return y < 1.17549435e-38f ? 0.0f : y; /* ftz; a NaN stays */
}
EA_DEVICE uint32_t cvt_bf16x2(float lo, float hi) {
  return emu_f32_to_bf16(lo) | emu_f32_to_bf16(hi) << 16;
}
EA_DEVICE uint32_t cvt_f16x2(float lo, float hi) {
  return emu_f32_to_f16(lo) | emu_f32_to_f16(hi) << 16;
}
EA_DEVICE float cvt_f32_f16(uint32_t bits) {
  return emu_f16_to_f32(bits & 0xffffu);
}

#endif
