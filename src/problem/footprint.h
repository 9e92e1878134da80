/* The bytes that a strided view touches, and whether two views can touch the same one. */
#ifndef EA_PROBLEM_FOOTPRINT_H
#define EA_PROBLEM_FOOTPRINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "extattn.h"
#include "problem/call.h"

enum { EA_FOOTPRINT_AXES = 3 };

/* Rows of row_bytes that repeat along some axes. All in bytes; sums fit, as the view's extent was checked. */
typedef struct ea_footprint {
  const char *name;
  uint64_t begin, end; /* addresses; the same: no memory */
  uint64_t row_bytes;
  int num_axes; /* of more than one element */
  struct {
    uint64_t stride, reach; /* reach: from the first element to the last */
  } axes[EA_FOOTPRINT_AXES];
} ea_footprint;

/* [num_tokens, num_heads, dim] with the strides that ea_tensor_resolve left. No data: no memory. */
ea_footprint ea_tensor_footprint(const char *name, ea_strided tensor, int64_t num_tokens, int32_t num_heads,
                                 int32_t dim, ea_dtype dtype);

/* [num_pages, page_size, num_heads, dim], as ea_cache_resolve left it. */
ea_footprint ea_pool_footprint(const char *name, const ea_pool *pool, const ea_call *call, int32_t dim);

/* count elements in a row; what would leave the address space ends with it. */
ea_footprint ea_array_footprint(const char *name, const void *data, uint64_t count, size_t element_bytes);

/*
 * Whether two views are known to have no byte in common. That is so where one ends before the other begins, and where
 * they interleave but keep apart: some stride m of the two, taken as a modulus, leaves each of them a range of
 * remainders (strides that are multiples of m add nothing to it), and the two ranges do not meet. Heads or columns of
 * one buffer are like that. False for every pair that has a byte in common, and for the odd one that has none.
 */
bool ea_footprints_apart(const ea_footprint *a, const ea_footprint *b);

/* Whether two views have the same rows at the same places. */
bool ea_footprints_equal(const ea_footprint *a, const ea_footprint *b);

#endif
