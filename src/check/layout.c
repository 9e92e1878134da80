/* Strides of every layout that a spec may ask for. */
#include "check/layout.h"

static int64_t at_least_one(int64_t n) {
  return n > 1 ? n : 1;
}

ea_strides ea_lay_out(ea_layout layout, ea_rng *rng, ea_shape shape) {
  /* Multiples of 8 elements keep 16-byte alignment, so fast paths take such rows too. */
  static const int32_t gaps[] = {1, 3, 8, 8, 16, 24};
  int64_t gap[3] = {0, 0, 0};
  for (int i = 0; i < 3 && layout >= EA_LAYOUT_PADDED; i++) gap[i] = gaps[ea_rng_below(rng, 6)];

  if (layout == EA_LAYOUT_HEAD_MAJOR) {
    const int64_t row = shape.width + gap[0];
    if (shape.rows == 1 && shape.pages > 1) { /* pages of one slot: the heads go outside of all pages */
      return (ea_strides){.page = row, .row = row, .head = shape.pages * row + gap[1]};
    }
    const int64_t head = at_least_one(shape.rows) * row + gap[1];
    return (ea_strides){.page = shape.heads * head + gap[2], .row = row, .head = head};
  }
  const int64_t head = shape.width + gap[0];
  const int64_t row = shape.heads * head + gap[1];
  return (ea_strides){.page = at_least_one(shape.rows) * row + gap[2], .row = row, .head = head};
}

int64_t ea_extent(ea_shape shape, ea_strides by) {
  if (shape.pages == 0 || shape.rows == 0) return 0;
  return ea_element(by, shape.pages - 1, shape.rows - 1, shape.heads - 1) + shape.width;
}

ea_tensor ea_tensor_of(ea_layout layout, void *data, ea_strides by) {
  if (layout == EA_LAYOUT_PACKED) return (ea_tensor){.data = data};
  return (ea_tensor){.data = data, .token_stride = by.row, .head_stride = by.head};
}
