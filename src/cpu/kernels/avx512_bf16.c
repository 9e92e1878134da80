/* The CPU kernel for AVX-512 with its product of bf16 pairs. */
#define EA_EXP2_DEGREE_4 /* weights are rounded to bf16 */
#include "cpu/kernels/vec_avx512.h"

enum { TILE_M = 192, TILE_N = 64, STRIP = 48 };

#include "cpu/kernels/unit_bf16.h"

#include "cpu/kernels/products_vector.h"

#include "cpu/kernels/block.h"

const ea_cpu_kernel ea_cpu_avx512_bf16 = {
    .name = "avx512_bf16",
    .tile_m = TILE_M,
    .tile_n = TILE_N,
    .row_step = STRIP,
    .scratch_bytes = scratch_bytes,
    .enter = bf16_enter,
    .leave = bf16_leave,
    .run = run_block,
};
