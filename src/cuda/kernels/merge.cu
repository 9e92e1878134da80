/* Two partial results over disjoint keys become one (ea_merge). One warp a row of out: a
 * (token, head) pair. The source is compiled once a type, EA_MERGE_TYPE.
 *
 * out may be one of the parts and lse likewise, so a row is read by the warp that writes it,
 * and every lane has both lse before one of them overwrites either. */
#include "cuda/kernels/merge.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "extattn.h"

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ void from_float(float x, float *to) {
  *to = x;
}
__device__ __forceinline__ void from_float(float x, __half *to) {
  *to = __float2half_rn(x);
}
__device__ __forceinline__ void from_float(float x, __nv_bfloat16 *to) {
  *to = __float2bfloat16_rn(x);
}

struct merge_weights {
  bool use_a, use_b;
  float a, b, lse;
};

/* A part with lse = -inf is not used at all; with two such parts lse stays -inf. */
__device__ static merge_weights weights_of(float lse_a, float lse_b) {
  merge_weights w = {lse_a != -INFINITY, lse_b != -INFINITY, 1.0f, 1.0f, -INFINITY};
  if (w.use_a && w.use_b) {
    const float top = fmaxf(lse_a, lse_b);
    const float a = expf(lse_a - top), b = expf(lse_b - top);
    w.a = a / (a + b);
    w.b = b / (a + b);
    w.lse = top + logf(a + b);
  } else if (w.use_a || w.use_b) {
    w.lse = w.use_a ? lse_a : lse_b;
  }
  return w;
}

extern "C" __global__ void __launch_bounds__(EA_MERGE_THREADS)
    EA_KERNEL_NAME(const __grid_constant__ ea_merge_args args) {
  typedef EA_MERGE_TYPE type;
  const int lane = (int)threadIdx.x % 32;
  const int64_t rows = args.num_tokens * args.num_heads;
  const int64_t step = (int64_t)gridDim.x * EA_MERGE_ROWS;

  for (int64_t row = (int64_t)blockIdx.x * EA_MERGE_ROWS + threadIdx.x / 32; row < rows; row += step) {
    const int64_t token = row / args.num_heads, head = row % args.num_heads;
    const merge_weights w = weights_of(args.lse_a[row], args.lse_b[row]);
    __syncwarp();
    if (lane == 0 && args.lse) args.lse[row] = w.lse;

    const type *out_a = (const type *)args.out_a.data + token * args.out_a.token_stride + head * args.out_a.head_stride;
    const type *out_b = (const type *)args.out_b.data + token * args.out_b.token_stride + head * args.out_b.head_stride;
    type *out = (type *)args.out.data + token * args.out.token_stride + head * args.out.head_stride;
    for (int32_t d = lane; d < args.head_dim_v; d += 32) {
      /* Left out rather than multiplied by 0: a part that counts for nothing may hold NaN. */
      const float a = w.use_a ? w.a * to_float(out_a[d]) : 0.0f;
      const float b = w.use_b ? w.b * to_float(out_b[d]) : 0.0f;
      from_float(a + b, &out[d]);
    }
  }
}
