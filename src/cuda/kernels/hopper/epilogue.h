/* The epilogue: a work tile's output and lse, from a consumer's registers to global memory. */
#ifndef EA_CUDA_KERNELS_HOPPER_EPILOGUE_H
#define EA_CUDA_KERNELS_HOPPER_EPILOGUE_H

#include "cuda/kernels/hopper/large.h"
#include "cuda/kernels/hopper/nonfinite.h"

/* The first `dim` columns of a row (h) times `factor`, in 16 bits. o: WIDTH columns from first_column on. Chunks of
 * `out` are aligned to 16 bytes. */
template <int WIDTH>
EA_DEVICE void store_row(const float (&o)[WIDTH / 2], int h, float factor, uint16_t *out, int lane, int first_column,
                         int dim) {
  static_assert(WIDTH % 16 == 0, "columns by 16");
  /* A lane holds 4 bytes of every 8 columns; two neighbours trade so that each holds 8 bytes of every 16, and four
   * lanes write 32 bytes of a row at a time. */
  const bool odd = lane & 1;
  const int first = first_column + (odd ? 8 : 0) + lane % 4 / 2 * 4;
#pragma unroll
  for (int j = 0; j < WIDTH / 8; j += 2) {
    const uint32_t low = cvt_x2(o[j * 4 + h * 2] * factor, o[j * 4 + h * 2 + 1] * factor);
    const uint32_t high = cvt_x2(o[j * 4 + 4 + h * 2] * factor, o[j * 4 + 4 + h * 2 + 1] * factor);
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
    if (first + j * 8 < dim) *(uint2 *)(out + first + j * 8) = odd ? make_uint2(got, high) : make_uint2(low, got);
  }
}

/* The same for any alignment. */
template <int WIDTH>
EA_DEVICE void store_elements(const float (&o)[WIDTH / 2], int h, float factor, uint16_t *out, int lane,
                              int first_column, int dim) {
#pragma unroll
  for (int j = 0; j < WIDTH / 8; j++) {
    const uint32_t pair = cvt_x2(o[j * 4 + h * 2] * factor, o[j * 4 + h * 2 + 1] * factor);
    const int column = first_column + j * 8 + lane % 4 * 2;
    if (column < dim) out[column] = (uint16_t)pair;
    if (column + 1 < dim) out[column + 1] = (uint16_t)(pair >> 16);
  }
}

/* Of the rows of a thread: a row of the work tile and the eighth after it. sum: of the row's exponentials with
 * `reference`; o: WIDTH columns from first_column on. Denominator, sink, lse, and the rows' way out. */
template <int WIDTH, class Shape>
EA_DEVICE void finish(const float (&o)[WIDTH / 2], const float reference[2], const float sum[2],
                      const ea_cta<Shape> &cta, const ea_work_tile *work_tile, int row, int lane, int first_column) {
  const ea_call &call = cta.call;
  const ea_hopper_launch &launch = cta.launch;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int r = row + h * 8;
    const bool exists = r < work_tile->rows;
    const int t = row_token<Shape>(launch, r), head = work_tile->first_head + r - t * call.group;
    const int64_t token = work_tile->token0 + work_tile->i0 + t;
    const ea_row_end end = end_row(call, reference[h], launch.scores.scale_log2, sum[h], head, exists);
    if (call.lse && exists && lane % 4 == 0 && first_column == 0) {
      call.lse[token * call.lse_token_stride + head * call.lse_head_stride] = end.lse;
    }
    const float factor = end.factor;
    uint16_t *out = (uint16_t *)call.out + token * call.out_token_stride + head * call.out_head_stride;
    if (launch.scores.out_aligned) {
      store_row<WIDTH>(o, h, factor, out, lane, first_column, exists ? call.head_dim_v : 0);
    } else {
      store_elements<WIDTH>(o, h, factor, out, lane, first_column, exists ? call.head_dim_v : 0);
    }
  }
}

/* All of it: what NaN and Inf ask for (nonfinite.h, large.h), the rows, and that the work tile is done. */
template <int WIDTH, class Shape>
EA_DEVICE void epilogue(float (&o)[WIDTH / 2], float (&reference)[2], float (&sum)[2], const ea_cta<Shape> &cta,
                        ea_work work, int row, int lane, int first_column) {
  if (work->second_pass) {
    end_second_pass<WIDTH>(o, reference, sum, cta, work, row, lane, first_column);
  } else if (__any_sync(0xffffffffu, !is_finite(o)) && lane == 0) {
    atomicOr(&work.to_write()->nonfinite, 1u);
  }
  finish<WIDTH>(o, reference, sum, cta, work.get(), row, lane, first_column);
  release(work_done(cta, work));
}

#endif
