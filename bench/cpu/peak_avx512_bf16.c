/* Fourteen chains of vdpbf16ps on zmm registers: more than its latency times its rate. */
#include "peaks.h"

enum { CHAINS = 14, STEPS = 100000 };

#define STEP(c) "vdpbf16ps %%zmm15, %%zmm15, %%zmm" #c "\n\t"

double peak_avx512_bf16(void) {
  __asm__ volatile("vzeroall" ::: "memory");
  for (int i = 0; i < STEPS; ++i) {
    __asm__ volatile(STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9) STEP(10) STEP(11)
                         STEP(12) STEP(13)::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                               "xmm11", "xmm12", "xmm13", "xmm15");
  }
  return 2.0 * 32.0 * CHAINS * STEPS;
}
