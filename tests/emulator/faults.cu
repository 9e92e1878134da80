/* See faults.h. Warpgroup 0 fills a ring of two tiles, those of even number by TMA, the others by cp.async,
 * of which every second arrives by itself and leaves the fence to the consumers; warpgroup 1 multiplies. */
#include "faults.h"

#include "cuda/kernels/ptx_hopper.h"

enum { TILE_BYTES = FAULTS_ROWS * 128, A_AT = 0, RING_AT = TILE_BYTES, BARRIERS_AT = 3 * TILE_BYTES };

EA_DEVICE uint32_t swizzled(uint32_t base, int row, int chunk) {
  return base + (uint32_t)(row * 128 + (chunk ^ (row & 7)) * 16);
}
EA_DEVICE uint32_t full(uint32_t base, int slot) {
  return base + BARRIERS_AT + (uint32_t)slot * 16;
}
EA_DEVICE uint32_t empty(uint32_t base, int slot) {
  return full(base, slot) + 8;
}

EA_DEVICE void produce(const ea_faults_args &args, uint32_t base, int tid) {
  for (int tile = 0; tile < FAULTS_TILES; tile++) {
    const int slot = tile % 2, parity = tile / 2 & 1;
    const uint32_t dst = base + RING_AT + (uint32_t)(slot * TILE_BYTES);
    mbarrier_wait(empty(base, slot), (uint32_t)parity ^ 1);
    if (tile % 2 == 0) {
      if (tid != 0) continue;
      const int wrong = args.fault == FAULT_TOO_FEW_BYTES_EXPECTED    ? -16
                        : args.fault == FAULT_TOO_MANY_BYTES_EXPECTED ? 16
                                                                      : 0;
      mbarrier_arrive_expect_tx(full(base, slot), (uint32_t)(TILE_BYTES + wrong));
      mbarrier_arrive_many(full(base, slot), args.fault == FAULT_ONE_ARRIVAL_TOO_MANY ? 128 : 127);
      tma_load_3d(dst, &args.map, full(base, slot), 0, 0, tile * FAULTS_ROWS);
      continue;
    }
    for (int row = tid / 8; row < FAULTS_ROWS; row += 16) {
      const int past = args.fault == FAULT_DEVICE_OUT_OF_RANGE && tile == FAULTS_TILES - 2 ? 2 * FAULTS_ROWS : 0;
      cp_async_16(swizzled(dst, row, tid % 8), args.b + (tile * FAULTS_ROWS + row + past) * FAULTS_COLS + tid % 8 * 8,
                  16);
    }
    if (tile % 4 == 3) {
      if (args.fault == FAULT_NO_ARRIVAL_OF_COPIES) {
        mbarrier_arrive(full(base, slot));
      } else {
        cp_async_mbarrier_arrive_noinc(full(base, slot));
      }
      continue;
    }
    cp_async_commit_group();
    if (args.fault != FAULT_NO_WAIT_FOR_CP_ASYNC) cp_async_wait_group(0);
    if (args.fault != FAULT_NO_FENCE_AFTER_CP_ASYNC) fence_proxy_async_shared();
    mbarrier_arrive(full(base, slot));
  }
  if (args.fault == FAULT_COPY_LEFT_BEHIND) cp_async_16(base + FAULTS_SMEM_BYTES - 16, args.b, 16);
}

EA_DEVICE void consume(const ea_faults_args &args, uint32_t base, int tid) {
  const int fault = args.fault;
  for (int row = tid / 8; row < FAULTS_ROWS; row += 16) {
    uint4 chunk;
    memcpy(&chunk, args.a + row * FAULTS_COLS + tid % 8 * 8, 16);
    st_shared_v4(swizzled(base + A_AT, row, tid % 8), chunk);
  }
  if (fault != FAULT_NO_FENCE_AFTER_STORES) fence_proxy_async_shared();
  if (fault == FAULT_SHARED_OUT_OF_RANGE && tid == 5) st_shared_b32(base + FAULTS_SMEM_BYTES, 0);
  if (fault == FAULT_BARRIER_OVERWRITTEN && tid == 5) st_shared_b64(empty(base, 1), 0);
  if (fault != FAULT_NO_SYNC_BEFORE_LDMATRIX) {
    bar_sync(1, fault == FAULT_UNLIKE_BAR_COUNTS && tid >= 64 ? 256 : 128);
  }
  /* A warp's first 8x8 matrices, rows of another warp, as a sample of what plain loads see. */
  uint32_t sample[4];
  ldmatrix_x4(sample, swizzled(base + A_AT, (tid / 32 * 16 + 32) % 64 + tid % 16, tid % 32 / 16));
  if (fault == FAULT_A_LANE_STRAYS && tid == 37) {
    __shfl_xor_sync(0xffffffffu, tid, 1);
  } else if (fault != FAULT_A_LANE_STAYS_AWAY || tid != 37) {
    __syncwarp();
  }

  float d[32];
  for (int e = 0; e < 32; e++) d[e] = 0.0f;
  for (int tile = 0; tile < FAULTS_TILES; tile++) {
    const int slot = tile % 2, parity = tile / 2 & 1;
    const uint32_t b = base + RING_AT + (uint32_t)(slot * TILE_BYTES);
    if (fault != FAULT_NO_WAIT_FOR_TILE) {
      mbarrier_wait(full(base, slot), (uint32_t)(parity ^ (fault == FAULT_WRONG_PARITY)));
    }
    if (tile % 4 == 3 && fault != FAULT_NO_FENCE_AFTER_ARRIVAL) fence_proxy_async_shared();
    if (fault != FAULT_NO_WGMMA_FENCE) wgmma_fence();
    const uint64_t a_descriptor = wgmma_descriptor(base + A_AT, 0);
    const uint64_t b_descriptor = wgmma_descriptor(b + (fault == FAULT_OTHER_DESCRIPTOR && tid == 7 ? 1024 : 0), 0);
    for (uint32_t step = 0; step < FAULTS_COLS / 16; step++) {
      wgmma_n64_ss_bf16(d, wgmma_advance(a_descriptor, step * 32), wgmma_advance(b_descriptor, step * 32), 1);
    }
    wgmma_commit_group();
    if (fault == FAULT_RELEASED_BEFORE_THE_PRODUCT) mbarrier_arrive(empty(base, slot));
    if (fault == FAULT_ACCUMULATOR_WRITTEN_IN_FLIGHT) d[3] = 1.0f;
    if (fault != FAULT_NO_WAIT_FOR_THE_PRODUCT || tile + 1 < FAULTS_TILES) wgmma_wait_group(0);
    wgmma_settle(d, 32);
    if (fault != FAULT_RELEASED_BEFORE_THE_PRODUCT && fault != FAULT_NEVER_RELEASED) {
      mbarrier_arrive(empty(base, slot));
    }
  }
  const int row = tid / 32 * 16 + tid % 32 / 4;
  for (int e = 0; e < 32; e++) {
    args.out[(row + (e & 2) * 4) * FAULTS_COLS + e / 4 * 8 + tid % 4 * 2 + (e & 1)] = d[e];
  }
  if (fault == FAULT_NO_WAIT_FOR_THE_PRODUCT) wgmma_wait_group(0);

  /* The sample has to be A. */
  const int first = (tid / 32 * 16 + 32) % 64;
  for (int m = 0; m < 4; m++) {
    uint32_t expected;
    memcpy(&expected, args.a + (first + m % 2 * 8 + tid % 32 / 4) * FAULTS_COLS + m / 2 * 8 + tid % 4 * 2, 4);
    if (sample[m] != expected) args.out[0] = __int_as_float(0x7fc00000);
  }
}

extern "C" __global__ void faults(const __grid_constant__ ea_faults_args args) {
  extern __shared__ __align__(1024) char smem[];
  const uint32_t base = smem_address(smem);
  const int tid = read_tid();
  if (tid == 0) {
    for (int slot = 0; slot < 2; slot++) {
      mbarrier_init(full(base, slot), 128);
      mbarrier_init(empty(base, slot), 128);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (tid < 128) {
    produce(args, base, tid);
  } else {
    consume(args, base, tid - 128);
  }
}
