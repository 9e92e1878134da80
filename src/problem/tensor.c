/* Strides and extents of one tensor or pool. All arithmetic is checked: an offset that a
 * backend computes later from these strides cannot leave 64 bits. */
#include "problem/tensor.h"

#include "common/check.h"

/* One dimension but the last: how many, and how far apart in elements. */
typedef struct ea_axis {
  const char *stride_name;
  int64_t count;
  int64_t stride;
} ea_axis;

static ea_status check_not_negative(const ea_axis *axes, int num_axes) {
  for (int a = 0; a < num_axes; ++a) {
    if (axes[a].stride < 0) {
      return ea_fail(EA_ERR_INVALID, "%s: found %lld, allowed 0 (packed) or more elements", axes[a].stride_name,
                     (long long)axes[a].stride);
    }
  }
  return EA_OK;
}

/* axes come outermost first; a stride of 0 becomes packed over the axis inside it. */
static ea_status resolve_packed(ea_axis *axes, int num_axes, int64_t dim) {
  int64_t inner_count = 1;
  int64_t inner_stride = dim;
  for (int a = num_axes - 1; a >= 0; --a) {
    if (axes[a].stride == 0 && __builtin_mul_overflow(inner_count, inner_stride, &axes[a].stride)) {
      return ea_fail(EA_ERR_INVALID, "%s: found 0 (packed: %lld times %lld elements), allowed less than 2^63",
                     axes[a].stride_name, (long long)inner_count, (long long)inner_stride);
    }
    inner_count = axes[a].count;
    inner_stride = axes[a].stride;
  }
  return EA_OK;
}

/* From the first element to the end of the last: all of it has to be addressable. */
static ea_status check_extent(const void *data, const ea_axis *axes, int num_axes, int64_t dim, ea_dtype dtype) {
  for (int a = 0; a < num_axes; ++a) {
    if (axes[a].count == 0) return EA_OK;
  }
  const int64_t element_bytes = (int64_t)ea_dtype_size(dtype);
  int64_t elements = dim;
  for (int a = 0; a < num_axes; ++a) {
    int64_t reach;
    int64_t bytes;
    if (__builtin_mul_overflow(axes[a].count - 1, axes[a].stride, &reach) ||
        __builtin_add_overflow(elements, reach, &elements) || __builtin_mul_overflow(elements, element_bytes, &bytes) ||
        (uint64_t)bytes > UINTPTR_MAX - (uintptr_t)data) {
      return ea_fail(EA_ERR_INVALID, "%s: found %lld (for %lld of them), allowed what stays within the address space",
                     axes[a].stride_name, (long long)axes[a].stride, (long long)axes[a].count);
    }
  }
  return EA_OK;
}

/* Rows are apart when the wider stride clears everything that the narrower one spans. Every
 * slice and permutation of a dense array is like that. The extent has been checked. */
static bool rows_apart(const ea_axis *wide, const ea_axis *narrow, int64_t dim) {
  if (narrow->count > 1 && narrow->stride < dim) return false;
  return wide->count <= 1 || wide->stride >= (narrow->count - 1) * narrow->stride + dim;
}

static ea_status check_rows_apart(const ea_tensor_rule *rule, const ea_axis axes[2]) {
  if (rule->num_tokens == 0) return EA_OK;
  if (rows_apart(&axes[0], &axes[1], rule->dim) || rows_apart(&axes[1], &axes[0], rule->dim)) return EA_OK;
  return ea_fail(EA_ERR_INVALID,
                 "%s: found %s %lld and %s %lld, allowed strides that keep %lld x %d rows of %d elements apart",
                 rule->names.tensor, axes[0].stride_name, (long long)axes[0].stride, axes[1].stride_name,
                 (long long)axes[1].stride, (long long)rule->num_tokens, rule->num_heads, rule->dim);
}

static ea_status check_data(const char *name, const void *data, ea_dtype dtype, bool required) {
  if (!data && !required) return EA_OK;
  return ea_check_pointer(name, data, ea_dtype_size(dtype), "the tensor's memory");
}

ea_status ea_tensor_resolve(const ea_tensor_rule *rule, ea_tensor *tensor) {
  ea_axis axes[2] = {{rule->names.token_stride, rule->num_tokens, tensor->token_stride},
                     {rule->names.head_stride, rule->num_heads, tensor->head_stride}};
  ea_status status = check_data(rule->names.data, tensor->data, rule->dtype, rule->required && rule->num_tokens > 0);
  if (!status) status = check_not_negative(axes, 2);
  if (!status) status = resolve_packed(axes, 2, rule->dim);
  if (!status) status = check_extent(tensor->data, axes, 2, rule->dim, rule->dtype);
  if (!status && rule->written) status = check_rows_apart(rule, axes);
  if (status) return status;

  tensor->token_stride = axes[0].stride;
  tensor->head_stride = axes[1].stride;
  return EA_OK;
}

ea_status ea_cache_resolve(const ea_pool_rule *rule, ea_cache *cache) {
  ea_axis axes[3] = {{rule->names.page_stride, rule->num_pages, cache->page_stride},
                     {rule->names.row_stride, rule->page_size, cache->row_stride},
                     {rule->names.head_stride, rule->num_heads, cache->head_stride}};
  ea_status status = check_data(rule->names.data, cache->data, rule->dtype, false);
  if (!status) status = check_not_negative(axes, 3);
  if (!status) status = resolve_packed(axes, 3, rule->dim);
  if (!status) status = check_extent(cache->data, axes, 3, rule->dim, rule->dtype);
  if (status) return status;

  cache->page_stride = axes[0].stride;
  cache->row_stride = axes[1].stride;
  cache->head_stride = axes[2].stride;
  return EA_OK;
}
