/* Views as ranges of addresses, and of remainders. */
#include "problem/footprint.h"

static void add_axis(ea_footprint *footprint, int64_t count, int64_t stride, size_t element_bytes) {
  if (count == 0) footprint->row_bytes = 0;
  if (count <= 1) return; /* a stride that is never taken: it may be any number */
  const uint64_t stride_bytes = (uint64_t)stride * element_bytes;
  footprint->axes[footprint->num_axes].stride = stride_bytes;
  footprint->axes[footprint->num_axes].reach = stride_bytes * ((uint64_t)count - 1);
  footprint->num_axes++;
}

static void close_axes(ea_footprint *footprint) {
  footprint->end = footprint->begin + footprint->row_bytes;
  if (footprint->row_bytes == 0) return;
  for (int a = 0; a < footprint->num_axes; ++a) footprint->end += footprint->axes[a].reach;
}

static ea_footprint begin_at(const char *name, const void *data, uint64_t row_bytes) {
  const ea_footprint footprint = {.name = name, .begin = (uintptr_t)data, .row_bytes = data ? row_bytes : 0};
  return footprint;
}

ea_footprint ea_tensor_footprint(const char *name, ea_strided tensor, int64_t num_tokens, int32_t num_heads,
                                 int32_t dim, ea_dtype dtype) {
  const size_t element_bytes = ea_dtype_size(dtype);
  ea_footprint footprint = begin_at(name, tensor.data, (uint64_t)dim * element_bytes);
  add_axis(&footprint, num_tokens, tensor.token_stride, element_bytes);
  add_axis(&footprint, num_heads, tensor.head_stride, element_bytes);
  close_axes(&footprint);
  return footprint;
}

ea_footprint ea_pool_footprint(const char *name, const ea_pool *pool, const ea_call *call, int32_t dim) {
  const size_t element_bytes = ea_dtype_size(call->cache_dtype);
  ea_footprint footprint = begin_at(name, pool->data, (uint64_t)dim * element_bytes);
  add_axis(&footprint, call->num_pages, pool->page_stride, element_bytes);
  add_axis(&footprint, call->page_size, pool->row_stride, element_bytes);
  add_axis(&footprint, call->num_kv_heads, pool->head_stride, element_bytes);
  close_axes(&footprint);
  return footprint;
}

ea_footprint ea_array_footprint(const char *name, const void *data, uint64_t count, size_t element_bytes) {
  const uint64_t left = UINT64_MAX - (uintptr_t)data;
  uint64_t bytes;
  if (__builtin_mul_overflow(count, (uint64_t)element_bytes, &bytes) || bytes > left) bytes = left;
  ea_footprint footprint = begin_at(name, data, bytes);
  close_axes(&footprint);
  return footprint;
}

/* How many remainders of m a view has, counted from that of its beginning; too many is more than m. */
static uint64_t count_remainders(const ea_footprint *footprint, uint64_t m) {
  uint64_t count = footprint->row_bytes;
  for (int a = 0; a < footprint->num_axes; ++a) {
    if (footprint->axes[a].stride % m != 0) count += footprint->axes[a].reach;
  }
  return count;
}

static bool apart_modulo(const ea_footprint *a, const ea_footprint *b, uint64_t m) {
  const uint64_t count_a = count_remainders(a, m);
  const uint64_t count_b = count_remainders(b, m);
  if (count_a > m || count_b > m) return false;
  const uint64_t from_a_to_b = (b->begin % m + (m - a->begin % m)) % m;
  return count_a <= from_a_to_b && count_b <= m - from_a_to_b;
}

static bool apart_by_a_stride_of(const ea_footprint *strides, const ea_footprint *a, const ea_footprint *b) {
  for (int i = 0; i < strides->num_axes; ++i) {
    if (strides->axes[i].stride > 0 && apart_modulo(a, b, strides->axes[i].stride)) return true;
  }
  return false;
}

bool ea_footprints_apart(const ea_footprint *a, const ea_footprint *b) {
  if (a->begin == a->end || b->begin == b->end) return true;
  if (a->end <= b->begin || b->end <= a->begin) return true;
  return apart_by_a_stride_of(a, a, b) || apart_by_a_stride_of(b, a, b);
}

bool ea_footprints_equal(const ea_footprint *a, const ea_footprint *b) {
  if (a->begin != b->begin || a->row_bytes != b->row_bytes || a->num_axes != b->num_axes) return false;
  for (int i = 0; i < a->num_axes; ++i) {
    if (a->axes[i].stride != b->axes[i].stride || a->axes[i].reach != b->axes[i].reach) return false;
  }
  return true;
}
