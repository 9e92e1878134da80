/* One strided tensor or pool of a call: pointer, alignment, strides and extent checked,
 * packed strides made explicit. */
#ifndef EA_PROBLEM_TENSOR_H
#define EA_PROBLEM_TENSOR_H

#include "extattn.h"

/* What a tensor [num_tokens, num_heads, dim] of a call has to be. */
typedef struct ea_tensor_rule {
  const char *name; /* the public field */
  int64_t num_tokens;
  int32_t num_heads;
  int32_t dim;
  ea_dtype dtype;
  bool required; /* with num_tokens > 0 its data must be there */
  bool written;  /* its rows must not share memory */
} ea_tensor_rule;

/* Checks tensor and makes its strides explicit. */
ea_status ea_tensor_resolve(const ea_tensor_rule *rule, ea_tensor *tensor);

/* What a pool [num_pages, page_size, num_heads, dim] of a call has to be. */
typedef struct ea_pool_rule {
  const char *name;
  int64_t num_pages;
  int32_t page_size;
  int32_t num_heads;
  int32_t dim;
  ea_dtype dtype;
} ea_pool_rule;

/* The same for a pool. Its data may be NULL: whether a prefix exists is in the index arrays. */
ea_status ea_cache_resolve(const ea_pool_rule *rule, ea_cache *cache);

#endif
