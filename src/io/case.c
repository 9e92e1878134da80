/* What a case holds, and moving its pointers to another device's memory. */
#include "io/case.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/error.h"
#include "io/case_file.h"

#define STORAGE_ALIGNMENT 64 /* a cache line, and the widest vector */

const ea_case_option ea_case_options[EA_CASE_NUM_OPTIONS] = {
    {"softmax_scale", EA_OPTION_DOUBLE, offsetof(ea_problem, softmax_scale)},
    {"causal", EA_OPTION_BOOL, offsetof(ea_problem, causal)},
    {"window_left", EA_OPTION_I32, offsetof(ea_problem, window_left)},
    {"logit_cap", EA_OPTION_DOUBLE, offsetof(ea_problem, logit_cap)},
    {"xai_temperature_len", EA_OPTION_I64, offsetof(ea_problem, xai_temperature_len)},
    {"k_scale", EA_OPTION_DOUBLE, offsetof(ea_problem, k_scale)},
    {"v_scale", EA_OPTION_DOUBLE, offsetof(ea_problem, v_scale)},
    {"skip_prefix_custom_mask", EA_OPTION_BOOL, offsetof(ea_problem, skip_prefix_custom_mask)},
    {"skip_prefix", EA_OPTION_BOOL, offsetof(ea_problem, skip_prefix)},
    {"skip_extend", EA_OPTION_BOOL, offsetof(ea_problem, skip_extend)},
};

void ea_case_init(ea_case *c) {
  *c = (ea_case){.problem = EA_PROBLEM_INIT, .batch = EA_BATCH_INIT};
}

void ea_case_free(ea_case *c) {
  for (size_t i = 0; i < c->num_storages; ++i) {
    if (c->storages[i].owned) free(c->storages[i].data);
  }
  if (c->map) munmap(c->map, c->map_bytes);
  ea_case_init(c);
}

ea_status ea_case_add_storage(ea_case *c, void *data, size_t bytes, bool owned) {
  if (c->num_storages == EA_CASE_MAX_STORAGES) {
    return ea_fail(EA_ERR_INTERNAL, "case: found more than %d storages", EA_CASE_MAX_STORAGES);
  }
  c->storages[c->num_storages++] = (ea_storage){data, bytes, owned};
  return EA_OK;
}

ea_status ea_case_alloc(ea_case *c, size_t bytes, void **data) {
  void *memory;
  if (posix_memalign(&memory, STORAGE_ALIGNMENT, bytes ? bytes : 1) != 0) { /* no byte more: an overrun shows */
    return ea_fail(EA_ERR_OUT_OF_MEMORY, "case: out of memory for %zu bytes", bytes);
  }
  memset(memory, 0, bytes);
  const ea_status status = ea_case_add_storage(c, memory, bytes, true);
  if (status) {
    free(memory);
    return status;
  }
  *data = memory;
  return EA_OK;
}

/* Where a pointer of the batch comes to lie. In a file an empty tensor shares its address with
 * the one behind it, so a storage that has a byte there goes before one that only ends there. */
static void *moved(const ea_case *c, void *const *bases, const void *pointer) {
  const uintptr_t address = (uintptr_t)pointer;
  void *at_end = NULL;
  for (size_t i = 0; i < c->num_storages; ++i) {
    const uintptr_t begin = (uintptr_t)c->storages[i].data;
    const uintptr_t offset = address - begin;
    if (address < begin || offset > c->storages[i].bytes) continue;
    void *there = (char *)bases[i] + offset;
    if (offset < c->storages[i].bytes) return there;
    at_end = there;
  }
  return at_end;
}

ea_batch ea_case_rebase(const ea_case *c, void *const *bases) {
  ea_batch batch = c->batch;
  batch.q.data = moved(c, bases, batch.q.data);
  batch.k.data = moved(c, bases, batch.k.data);
  batch.v.data = moved(c, bases, batch.v.data);
  batch.k_cache.data = moved(c, bases, batch.k_cache.data);
  batch.v_cache.data = moved(c, bases, batch.v_cache.data);
  batch.qo_indptr = moved(c, bases, batch.qo_indptr);
  batch.kv_indptr = moved(c, bases, batch.kv_indptr);
  batch.kv_indices = moved(c, bases, batch.kv_indices);
  batch.custom_mask = moved(c, bases, batch.custom_mask);
  batch.mask_indptr = moved(c, bases, batch.mask_indptr);
  batch.window_kv_offsets = moved(c, bases, batch.window_kv_offsets);
  batch.sinks = moved(c, bases, batch.sinks);
  batch.qo_indptr_host = c->batch.qo_indptr;
  batch.kv_indptr_host = c->batch.kv_indptr;
  return batch;
}

/* ------------------------------------------------------------------------------------
 * Shapes and strides
 * ---------------------------------------------------------------------------------- */

int32_t ea_case_head_dim_v(const ea_problem *problem) {
  return problem->head_dim_v ? problem->head_dim_v : problem->head_dim;
}

ea_dtype ea_case_cache_dtype(const ea_problem *problem) {
  return problem->cache_dtype ? problem->cache_dtype : problem->dtype;
}

ea_tensor ea_case_strides(ea_tensor tensor, int32_t num_heads, int32_t dim) {
  if (!tensor.head_stride) tensor.head_stride = dim;
  if (!tensor.token_stride) tensor.token_stride = num_heads * tensor.head_stride;
  return tensor;
}

ea_cache ea_case_cache_strides(ea_cache cache, const ea_problem *problem, int32_t dim) {
  if (!cache.head_stride) cache.head_stride = dim;
  if (!cache.row_stride) cache.row_stride = problem->num_kv_heads * cache.head_stride;
  if (!cache.page_stride) cache.page_stride = problem->page_size * cache.row_stride;
  return cache;
}

/* ------------------------------------------------------------------------------------
 * Latent attention
 * ---------------------------------------------------------------------------------- */

/* Whether every row of v begins the row of k at the same place. */
static bool is_view(const ea_problem *problem, ea_cache k, ea_cache v, int64_t num_pages, int32_t page_size,
                    ea_dtype dtype) {
  const int64_t size = (int64_t)ea_dtype_size(dtype);
  const size_t row_bytes = (size_t)(ea_case_head_dim_v(problem) * size);
  for (int64_t page = 0; page < num_pages; ++page) {
    for (int32_t row = 0; row < page_size; ++row) {
      for (int32_t head = 0; head < problem->num_kv_heads; ++head) {
        const int64_t k_offset = page * k.page_stride + row * k.row_stride + head * k.head_stride;
        const int64_t v_offset = page * v.page_stride + row * v.row_stride + head * v.head_stride;
        const char *k_row = (const char *)k.data + k_offset * size, *v_row = (const char *)v.data + v_offset * size;
        if (memcmp(k_row, v_row, row_bytes) != 0) return false;
      }
    }
  }
  return true;
}

/* New tokens, seen as a pool of pages of one row. */
static ea_cache as_cache(ea_tensor tensor, int32_t num_heads, int32_t dim) {
  const ea_tensor t = ea_case_strides(tensor, num_heads, dim);
  return (ea_cache){t.data, t.token_stride, t.token_stride, t.head_stride};
}

bool ea_case_find_shared_kv(ea_case *c) {
  ea_problem *problem = &c->problem;
  const ea_batch *batch = &c->batch;
  const int32_t dim = problem->head_dim, dim_v = ea_case_head_dim_v(problem);
  if (problem->shared_kv) return true;
  if (dim_v > dim) return false;
  problem->shared_kv =
      is_view(problem, as_cache(batch->k, problem->num_kv_heads, dim), as_cache(batch->v, problem->num_kv_heads, dim_v),
              batch->num_tokens, 1, problem->dtype) &&
      is_view(problem, ea_case_cache_strides(batch->k_cache, problem, dim),
              ea_case_cache_strides(batch->v_cache, problem, dim_v), batch->k_cache.data ? batch->num_pages : 0,
              problem->page_size, ea_case_cache_dtype(problem));
  return problem->shared_kv;
}
