/* One strided tensor or pool of a call: pointer, alignment, strides and extent checked,
 * packed strides made explicit. */
#ifndef EA_PROBLEM_TENSOR_H
#define EA_PROBLEM_TENSOR_H

#include "extattn.h"

/* What the caller knows a tensor's fields by. */
typedef struct ea_tensor_names {
  const char *tensor;
  const char *data;
  const char *token_stride;
  const char *head_stride;
} ea_tensor_names;

#define EA_TENSOR_NAMES(tensor)                                                                                        \
  { tensor, tensor ".data", tensor ".token_stride", tensor ".head_stride" }

/* What a tensor [num_tokens, num_heads, dim] of a call has to be. */
typedef struct ea_tensor_rule {
  ea_tensor_names names;
  int64_t num_tokens;
  int32_t num_heads;
  int32_t dim;
  ea_dtype dtype;
  bool required; /* with num_tokens > 0 its data must be there */
  bool written;  /* its rows must not share memory */
} ea_tensor_rule;

/* Checks tensor and makes its strides explicit. */
ea_status ea_tensor_resolve(const ea_tensor_rule *rule, ea_tensor *tensor);

typedef struct ea_pool_names {
  const char *data;
  const char *page_stride;
  const char *row_stride;
  const char *head_stride;
} ea_pool_names;

#define EA_POOL_NAMES(pool)                                                                                            \
  { pool ".data", pool ".page_stride", pool ".row_stride", pool ".head_stride" }

/* What a pool [num_pages, page_size, num_heads, dim] of a call has to be. */
typedef struct ea_pool_rule {
  ea_pool_names names;
  int64_t num_pages;
  int32_t page_size;
  int32_t num_heads;
  int32_t dim;
  ea_dtype dtype;
} ea_pool_rule;

/* The same for a pool. Its data may be NULL: whether a prefix exists is in the index arrays. */
ea_status ea_cache_resolve(const ea_pool_rule *rule, ea_cache *cache);

#endif
