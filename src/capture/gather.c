/* A call's tensors, wherever they lie and however they are strided, as a packed case in host
 * memory. */
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "capture/capture.h"
#include "common/error.h"
#include "cuda/memory.h"
#include "problem/call.h"

/* Rows that lie apart are fetched together with what is between them when that is at most so many
 * times as much: a copy from a GPU costs some ten microseconds, however small. */
#define MAX_SPAN_FACTOR 8
#define MAX_SPAN_BYTES ((size_t)1 << 28)

typedef struct source {
  ea_context *context;
  void *stream;
} source;

/* count blocks of bytes, stride apart at from, packed at to. */
static ea_status fetch_blocks(const source *s, char *to, const char *from, size_t count, size_t stride, size_t bytes) {
  if (count == 0 || bytes == 0) return EA_OK;
  if (stride == bytes || count == 1) return ea_mem_download(s->context, to, from, count * bytes, s->stream);
  const size_t span = (count - 1) * stride + bytes;
  char *all = span <= MAX_SPAN_FACTOR * count * bytes && span <= MAX_SPAN_BYTES ? malloc(span) : NULL;
  ea_status status = EA_OK;
  if (all) status = ea_mem_download(s->context, all, from, span, s->stream);
  for (size_t i = 0; i < count && !status; ++i) {
    if (all) {
      memcpy(to + i * bytes, all + i * stride, bytes);
    } else {
      status = ea_mem_download(s->context, to + i * bytes, from + i * stride, bytes, s->stream);
    }
  }
  free(all);
  return status;
}

/* [rows, heads, dim] elements with strides in elements (0: packed), packed at to. */
static ea_status fetch_rows(const source *s, char *to, ea_tensor from, int64_t rows, int32_t heads, int32_t dim,
                            size_t size) {
  const size_t row = (size_t)dim * size;
  const size_t head_stride = (size_t)(from.head_stride ? from.head_stride : dim) * size;
  const size_t token_stride = from.token_stride ? (size_t)from.token_stride * size : (size_t)heads * head_stride;
  const char *data = from.data;
  if (head_stride == row || heads == 1) {
    return fetch_blocks(s, to, data, (size_t)rows, token_stride, (size_t)heads * row);
  }
  for (int64_t t = 0; t < rows; ++t) {
    const ea_status status = fetch_blocks(s, to + (size_t)t * (size_t)heads * row, data + (size_t)t * token_stride,
                                          (size_t)heads, head_stride, row);
    if (status) return status;
  }
  return EA_OK;
}

/* NULL (a part that the call does not need) becomes zeros. */
static ea_status gather_tensor(const source *s, ea_case *c, ea_tensor from, int64_t rows, int32_t heads, int32_t dim,
                               size_t size, ea_tensor *to) {
  void *data;
  *to = (ea_tensor){0};
  ea_status status = ea_case_alloc(c, (size_t)rows * (size_t)heads * (size_t)dim * size, &data);
  if (status) return status;
  to->data = data;
  return from.data ? fetch_rows(s, data, from, rows, heads, dim, size) : EA_OK;
}

/* A flat array; NULL stays NULL. */
static ea_status gather_array(const source *s, ea_case *c, const void *from, size_t bytes, const void **to) {
  *to = NULL;
  if (!from) return EA_OK;
  void *data;
  const ea_status status = ea_case_alloc(c, bytes, &data);
  if (status) return status;
  *to = data;
  return ea_mem_download(s->context, data, from, bytes, s->stream);
}

/* ------------------------------------------------------------------------------------
 * The pool
 * ---------------------------------------------------------------------------------- */

static int compare_pages(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* The pages that the slots lie in, ascending, each once. */
static size_t used_pages(const void *indices, ea_dtype dtype, int64_t count, int32_t page_size, int64_t num_pages,
                         int64_t *pages) {
  size_t n = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = ea_load_index(indices, dtype, i);
    if (slot >= 0 && slot / page_size < num_pages) pages[n++] = slot / page_size;
  }
  qsort(pages, n, sizeof *pages, compare_pages);
  size_t distinct = 0;
  for (size_t i = 0; i < n; ++i) {
    if (distinct == 0 || pages[distinct - 1] != pages[i]) pages[distinct++] = pages[i];
  }
  return distinct;
}

static int64_t new_slot(int64_t slot, const int64_t *pages, size_t count, int32_t page_size, int64_t num_pages) {
  if (slot < 0) return slot;
  const int64_t page = slot / page_size;
  if (page >= num_pages) return slot - (num_pages - (int64_t)count) * page_size; /* as far outside as it was */
  size_t low = 0, high = count;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    if (pages[middle] <= page) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return (int64_t)low * page_size + slot % page_size;
}

static void renumber(void *indices, ea_dtype dtype, int64_t count, const int64_t *pages, size_t num_used,
                     int32_t page_size, int64_t num_pages) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = new_slot(ea_load_index(indices, dtype, i), pages, num_used, page_size, num_pages);
    if (dtype == EA_I64) {
      ((int64_t *)indices)[i] = slot;
    } else {
      ((int32_t *)indices)[i] = (int32_t)slot;
    }
  }
}

/* The pages one after another, packed; runs of neighbours are fetched together. */
static ea_status gather_pool(const source *s, ea_case *c, ea_cache from, const ea_problem *problem, int32_t dim,
                             const int64_t *pages, size_t count, ea_cache *to) {
  *to = (ea_cache){0};
  if (!from.data) return EA_OK;
  const int32_t heads = problem->num_kv_heads, page_size = problem->page_size;
  const size_t size = ea_dtype_size(problem->cache_dtype);
  const size_t row_bytes = (size_t)heads * (size_t)dim * size, page_bytes = (size_t)page_size * row_bytes;
  if (!from.head_stride) from.head_stride = dim;
  if (!from.row_stride) from.row_stride = heads * from.head_stride;
  if (!from.page_stride) from.page_stride = page_size * from.row_stride;
  /* Rows of one stride all through the pool are one long tensor. */
  const bool even = page_size == 1 || from.page_stride == page_size * from.row_stride;
  const int64_t row_stride = page_size == 1 ? from.page_stride : from.row_stride;

  void *data;
  ea_status status = ea_case_alloc(c, count * page_bytes, &data);
  to->data = data;
  for (size_t i = 0, run; i < count && !status; i += run) {
    for (run = 1; even && i + run < count && pages[i + run] == pages[i] + (int64_t)run;) ++run;
    const char *first = (const char *)from.data + (size_t)(pages[i] * from.page_stride) * size;
    const ea_tensor rows = {(void *)(uintptr_t)first, row_stride, from.head_stride};
    status = fetch_rows(s, (char *)data + i * page_bytes, rows, (int64_t)run * page_size, heads, dim, size);
  }
  return status;
}

static ea_status gather_prefix(const source *s, const ea_problem *problem, const ea_batch *from, ea_case *c) {
  ea_batch *to = &c->batch;
  const size_t index_bytes = ea_dtype_size(problem->index_dtype);
  int64_t count = from->num_kv_indices;
  if (from->num_seqs > 0 && to->kv_indptr[from->num_seqs] >= 0 && to->kv_indptr[from->num_seqs] <= count) {
    count = to->kv_indptr[from->num_seqs]; /* the array may be longer than what is used of it */
  }
  if (!from->kv_indices) count = 0;
  void *indices;
  ea_status status = ea_case_alloc(c, (size_t)count * index_bytes, &indices);
  if (!status) status = ea_mem_download(s->context, indices, from->kv_indices, (size_t)count * index_bytes, s->stream);
  int64_t *pages = status ? NULL : malloc(((size_t)count + 1) * sizeof *pages);
  if (!status && !pages) status = ea_fail(EA_ERR_OUT_OF_MEMORY, "case: out of memory for %lld pages", (long long)count);
  if (!status) {
    const size_t used = used_pages(indices, problem->index_dtype, count, problem->page_size, from->num_pages, pages);
    renumber(indices, problem->index_dtype, count, pages, used, problem->page_size, from->num_pages);
    to->kv_indices = indices;
    to->num_kv_indices = count;
    to->num_pages = (int64_t)used;
    status = gather_pool(s, c, from->k_cache, problem, problem->head_dim, pages, used, &to->k_cache);
    if (!status && !problem->shared_kv) {
      status = gather_pool(s, c, from->v_cache, problem, problem->head_dim_v, pages, used, &to->v_cache);
    }
  }
  free(pages);
  return status;
}

/* ------------------------------------------------------------------------------------
 * The whole
 * ---------------------------------------------------------------------------------- */

/* What has to be there before anything can be read. */
static ea_status check_readable(const ea_batch *batch) {
  if (batch->num_seqs < 0 || batch->num_seqs >= INT32_MAX || batch->num_tokens < 0 || batch->num_tokens > INT32_MAX ||
      batch->num_kv_indices < 0 || batch->num_pages < 0 || batch->custom_mask_bytes < 0) {
    return ea_fail(EA_ERR_INVALID, "batch: found counts out of range, which cannot be written");
  }
  if (batch->num_seqs > 0 && (!batch->qo_indptr || !batch->kv_indptr)) {
    return ea_fail(EA_ERR_INVALID, "qo_indptr, kv_indptr: found NULL, which cannot be written");
  }
  if (batch->num_tokens > 0 && !batch->q.data) return ea_fail(EA_ERR_INVALID, "q: found NULL, which cannot be written");
  return EA_OK;
}

static ea_status gather_indptr(const source *s, ea_case *c, const int32_t *from, int64_t num_seqs, const int32_t **to) {
  void *data; /* zeros: what an empty batch's arrays hold */
  ea_status status = ea_case_alloc(c, (size_t)(num_seqs + 1) * sizeof **to, &data);
  if (!status && from && num_seqs > 0) {
    status = ea_mem_download(s->context, data, from, (size_t)(num_seqs + 1) * sizeof **to, s->stream);
  }
  *to = data;
  return status;
}

static ea_status gather_extras(const source *s, const ea_problem *problem, const ea_batch *from, ea_case *c) {
  ea_batch *to = &c->batch;
  const void *array = NULL;
  ea_status status = EA_OK;
  if (problem->has_custom_mask) {
    status = gather_array(s, c, from->custom_mask, (size_t)from->custom_mask_bytes, &array);
    to->custom_mask = array;
    to->custom_mask_bytes = array ? from->custom_mask_bytes : 0;
    if (!status) {
      const size_t bytes = (size_t)from->num_seqs * ea_dtype_size(problem->mask_indptr_dtype);
      status = gather_array(s, c, from->mask_indptr, bytes, &to->mask_indptr);
    }
    if (!status) {
      status = gather_array(s, c, from->window_kv_offsets, (size_t)from->num_seqs * sizeof(int32_t), &array);
      to->window_kv_offsets = array;
    }
    if (!status && (!to->custom_mask || !to->mask_indptr)) {
      status = ea_fail(EA_ERR_INVALID, "custom_mask, mask_indptr: found NULL, which cannot be written");
    }
  }
  if (!status && problem->has_sinks) {
    const size_t bytes = (size_t)problem->num_q_heads * ea_dtype_size(problem->sinks_dtype);
    status = gather_array(s, c, from->sinks, bytes, &to->sinks);
    if (!status && !to->sinks) status = ea_fail(EA_ERR_INVALID, "sinks: found NULL, which cannot be written");
  }
  return status;
}

ea_status ea_capture_gather(ea_context *context, const ea_problem *resolved, const ea_batch *batch, void *stream,
                            bool ran, ea_case *c) {
  const source s = {context, stream};
  const size_t size = ea_dtype_size(resolved->dtype);
  ea_batch *to = &c->batch;
  ea_status status = check_readable(batch);
  if (status) return status;
  c->problem = *resolved;
  to->num_seqs = batch->num_seqs;
  status = gather_indptr(&s, c, batch->qo_indptr, batch->num_seqs, &to->qo_indptr);
  if (!status) status = gather_indptr(&s, c, batch->kv_indptr, batch->num_seqs, &to->kv_indptr);
  if (status) return status;

  int64_t tokens = batch->num_tokens;
  const int64_t last = to->qo_indptr[batch->num_seqs];
  if (ran && last >= 0 && last < tokens) tokens = last;
  to->num_tokens = tokens;
  const int32_t kv_heads = resolved->num_kv_heads, dim = resolved->head_dim, dim_v = resolved->head_dim_v;
  status = gather_tensor(&s, c, batch->q, tokens, resolved->num_q_heads, dim, size, &to->q);
  if (!status) status = gather_tensor(&s, c, batch->k, tokens, kv_heads, dim, size, &to->k);
  if (!status && !resolved->shared_kv) {
    status = gather_tensor(&s, c, batch->v, tokens, kv_heads, dim_v, size, &to->v);
  }
  if (!status) status = gather_prefix(&s, resolved, batch, c);
  if (!status) status = gather_extras(&s, resolved, batch, c);
  return status;
}
