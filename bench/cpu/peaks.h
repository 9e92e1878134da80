/* What the processor's multiply-add instructions reach when nothing holds them up: loops over
 * registers, a file for each instruction set. The denominators of the benchmark's shares. */
#ifndef EA_BENCH_CPU_PEAKS_H
#define EA_BENCH_CPU_PEAKS_H

/* Floating-point operations (a multiply-add is two) that one call of a loop makes. */
typedef double peak_loop(void);

peak_loop peak_avx2;        /* vfmadd231ps ymm */
peak_loop peak_avx512;      /* vfmadd231ps zmm */
peak_loop peak_avx512_bf16; /* vdpbf16ps zmm */
peak_loop peak_amx;         /* tdpbf16ps */

#endif
