/* Ten chains of vfmadd231ps on ymm registers: more than its latency times its rate. */
#include "peaks.h"

enum { CHAINS = 10, STEPS = 100000 };

#define STEP(c) "vfmadd231ps %%ymm15, %%ymm15, %%ymm" #c "\n\t"

double peak_avx2(void) {
  __asm__ volatile("vzeroall" ::: "memory");
  for (int i = 0; i < STEPS; ++i) {
    __asm__ volatile(STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9)::
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm15");
  }
  return 2.0 * 8.0 * CHAINS * STEPS;
}
