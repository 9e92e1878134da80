/* The CPU kernel for AMX tiles of bf16. */
#define EA_EXP2_DEGREE_4 /* weights are rounded to bf16 */
#include "cpu/kernels/vec_avx512.h"

enum { TILE_M = 256, TILE_N = 512, STRIP = 32 };

#include "cpu/kernels/unit_bf16.h"

#include "cpu/kernels/products_amx.h"

#include "cpu/kernels/block.h"

const ea_cpu_kernel ea_cpu_amx_bf16 = {
    .name = "amx_bf16",
    .tile_m = TILE_M,
    .tile_n = TILE_N,
    .row_step = STRIP,
    .scratch_bytes = scratch_bytes,
    .enter = amx_enter,
    .leave = amx_leave,
    .run = run_block,
};
