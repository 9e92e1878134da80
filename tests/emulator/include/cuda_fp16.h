/* The part of CUDA's header that the kernels use. */
#ifndef EA_EMULATOR_CUDA_FP16_H
#define EA_EMULATOR_CUDA_FP16_H

struct __half {
  uint16_t bits;
};
static inline float __half2float(__half x) {
  return emu_f16_to_f32(x.bits);
}
static inline __half __float2half_rn(float x) {
  return {(uint16_t)emu_f32_to_f16(x)};
}

#endif
