/* Polynomials of the vector functions, fitted for this project by Remez exchange and rounded
 * to f32. The names vf_fma and vf_set1 are the including vector header's. */
#ifndef EA_CPU_KERNELS_POLY_H
#define EA_CPU_KERNELS_POLY_H

/*
 * 2^f on [0, 1): 1 + f * P(f). The constant term is exactly 1, so that a row's factor for an
 * unmoved maximum is exactly 1 (a tile that a row does not see must leave no trace).
 * Degree 5: relative error 9.5e-8. Degree 4: 2.9e-6, for results that are rounded to bf16.
 */
#ifdef EA_EXP2_DEGREE_4
#define EA_EXP2_POLY(f)                                                                                                \
  vf_fma(vf_fma(vf_fma(vf_fma(vf_set1(0x1.b7f730p-7f), (f), vf_set1(0x1.abf86ap-5f)), (f), vf_set1(0x1.ee2450p-3f)),   \
                (f), vf_set1(0x1.62d6c6p-1f)),                                                                         \
         (f), vf_set1(1.0f))
#else
#define EA_EXP2_POLY(f)                                                                                                \
  vf_fma(vf_fma(vf_fma(vf_fma(vf_fma(vf_set1(0x1.e974fcp-10f), (f), vf_set1(0x1.277854p-7f)), (f),                     \
                              vf_set1(0x1.c91ce6p-5f)),                                                                \
                       (f), vf_set1(0x1.ebdb56p-3f)),                                                                  \
                (f), vf_set1(0x1.62e4bap-1f)),                                                                         \
         (f), vf_set1(1.0f))
#endif

#endif
