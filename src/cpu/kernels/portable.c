/* The CPU kernel for any processor. */
#include "cpu/kernels/vec_portable.h"

enum { TILE_M = 64, TILE_N = 64, STRIP = 16 };

#include "cpu/kernels/unit_f32.h"

#include "cpu/kernels/products_vector.h"

#include "cpu/kernels/block.h"

const ea_cpu_kernel ea_cpu_portable_f32 = {
    .name = "portable_f32",
    .tile_m = TILE_M,
    .tile_n = TILE_N,
    .row_step = STRIP,
    .scratch_bytes = scratch_bytes,
    .run = run_block,
};
