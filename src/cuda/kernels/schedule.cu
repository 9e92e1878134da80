/* Sorts a batch's row blocks by the length of their walks, longest first: with sequences of many lengths
 * a multiprocessor that takes a long one last keeps all others waiting. One block; a counting sort. The
 * order within a bucket is left to chance, and no result depends on it. It also clears the count of work
 * taken, which spares the stream a memset. */
#include "cuda/kernels/schedule.h"

#include "problem/call.h"

static_assert(EA_SCHEDULE_BUCKETS == EA_SCHEDULE_THREADS, "a thread sums up one bucket");

/* The longest walks' bucket is 0. Steps of 1/32 and finer. */
__device__ static uint32_t bucket_of(uint32_t tiles) {
  const uint32_t power = tiles ? 31u - (uint32_t)__clz((int)tiles) : 0u;
  const uint32_t step = power >= 5 ? (tiles >> (power - 5)) & 31u : (tiles << (5 - power)) & 31u;
  return EA_SCHEDULE_BUCKETS - 1 - (tiles ? power * 32 + step : 0u);
}

/* False: a spare row block. */
__device__ static bool find_block(const ea_call &call, const ea_schedule_launch &launch, int32_t block,
                                  ea_row_block *found, uint32_t *bucket) {
  *found = ea_hopper_find_row_block(call.qo_indptr, (int32_t)call.num_seqs, block, launch.block_tokens);
  const ea_view view = ea_view_of(&call, found->seq);
  if (found->i0 >= view.extend) return false;
  const int32_t tokens = ea_min_i32(launch.block_tokens, view.extend - found->i0);
  const ea_key_range keys = ea_visible_keys(&view, found->i0, found->i0 + tokens);
  const bool any = keys.end > keys.first;
  *bucket = bucket_of(any ? (uint32_t)((keys.end - 1) / launch.tile_n - keys.first / launch.tile_n + 1) : 0u);
  return true;
}

extern "C" __global__ void __launch_bounds__(EA_SCHEDULE_THREADS, 1)
    schedule(const __grid_constant__ ea_call call, const __grid_constant__ ea_schedule_launch launch,
             ea_schedule *out) {
  extern __shared__ __align__(1024) char smem[];
  uint32_t *places = (uint32_t *)smem;
  const int tid = (int)threadIdx.x;
  ea_row_block found;
  uint32_t bucket;

  if (tid == 0) *launch.taken = 0;
  places[tid] = 0;
  __syncthreads();
  for (int block = tid; block < launch.row_blocks; block += EA_SCHEDULE_THREADS) {
    if (find_block(call, launch, block, &found, &bucket)) atomicAdd(&places[bucket], 1u);
  }
  __syncthreads();

  const uint32_t mine = places[tid];
  uint32_t up_to_mine = mine;
  for (int distance = 1; distance < EA_SCHEDULE_BUCKETS; distance *= 2) {
    const uint32_t before = tid >= distance ? places[tid - distance] : 0u;
    __syncthreads();
    up_to_mine += before;
    places[tid] = up_to_mine;
    __syncthreads();
  }
  if (tid == EA_SCHEDULE_BUCKETS - 1) out->count = (int32_t)up_to_mine;
  places[tid] = up_to_mine - mine;
  __syncthreads();

  for (int block = tid; block < launch.row_blocks; block += EA_SCHEDULE_THREADS) {
    if (find_block(call, launch, block, &found, &bucket)) out->blocks[atomicAdd(&places[bucket], 1u)] = found;
  }
}
