/* Where the elements of a [pages, rows, heads, width] array lie in a buffer; a tensor is an
 * array of one page. */
#ifndef EA_CHECK_LAYOUT_H
#define EA_CHECK_LAYOUT_H

#include <stdint.h>

#include "check/generate.h"
#include "check/random.h"

typedef struct ea_shape {
  int64_t pages, rows;
  int32_t heads, width;
} ea_shape;

/* In elements. */
typedef struct ea_strides {
  int64_t page, row, head;
} ea_strides;

/* Gaps are drawn where the layout has them. */
ea_strides ea_lay_out(ea_layout layout, ea_rng *rng, ea_shape shape);

/* Elements from the first to the last, both included; 0 when there are none. */
int64_t ea_extent(ea_shape shape, ea_strides by);

static inline int64_t ea_element(ea_strides by, int64_t page, int64_t row, int32_t head) {
  return page * by.page + row * by.row + head * by.head;
}

/* A tensor with these strides; a packed one says so by zeros. */
ea_tensor ea_tensor_of(ea_layout layout, void *data, ea_strides by);

#endif
