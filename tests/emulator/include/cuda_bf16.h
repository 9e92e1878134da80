/* The part of CUDA's header that the kernels use. */
#ifndef EA_EMULATOR_CUDA_BF16_H
#define EA_EMULATOR_CUDA_BF16_H

struct __nv_bfloat16 {
  uint16_t bits;
};
static inline float __bfloat162float(__nv_bfloat16 x) {
  return __int_as_float((int)((uint32_t)x.bits << 16));
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {(uint16_t)emu_f32_to_bf16(x)};
}

#endif
