/* The CPU kernel for AVX2, FMA and F16C. */
#include "cpu/kernels/vec_avx2.h"

enum { TILE_M = 192, TILE_N = 64, STRIP = 24 };

#include "cpu/kernels/unit_f32.h"

#include "cpu/kernels/products_vector.h"

#include "cpu/kernels/block.h"

const ea_cpu_kernel ea_cpu_avx2_f32 = {
    .name = "avx2_f32",
    .tile_m = TILE_M,
    .tile_n = TILE_N,
    .row_step = STRIP,
    .scratch_bytes = scratch_bytes,
    .run = run_block,
};
