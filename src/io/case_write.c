/* Writing cases and results. */
#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "common/error.h"
#include "io/case.h"
#include "io/case_file.h"
#include "io/safetensors.h"

#define MAX_SOURCES 12
#define VALUE_BYTES 40 /* the longest number, and more */

static ea_st_dtype st_dtype_of(ea_dtype dtype) {
  switch (dtype) {
  case EA_F32:
    return EA_ST_F32;
  case EA_F16:
    return EA_ST_F16;
  case EA_BF16:
    return EA_ST_BF16;
  case EA_E4M3:
    return EA_ST_F8_E4M3;
  case EA_E5M2:
    return EA_ST_F8_E5M2;
  case EA_I64:
    return EA_ST_I64;
  case EA_I32:
  case EA_DTYPE_NONE:
    break;
  }
  return EA_ST_I32;
}

/* ------------------------------------------------------------------------------------
 * Tensors
 * ---------------------------------------------------------------------------------- */

typedef struct sources {
  ea_st_source list[MAX_SOURCES];
  size_t count;
} sources;

static void add_flat(sources *s, const char *name, ea_st_dtype dtype, int64_t elements, const void *data) {
  ea_st_source *source = &s->list[s->count++];
  *source = (ea_st_source){.name = name, .dtype = dtype, .rank = 1, .shape = {elements}, .data = data};
  ea_st_pack(source);
}

static void add_tensor(sources *s, const char *name, ea_dtype dtype, int64_t tokens, int32_t heads, int32_t dim,
                       ea_tensor tensor) {
  const ea_tensor t = ea_case_strides(tensor, heads, dim);
  const int64_t size = (int64_t)ea_dtype_size(dtype);
  s->list[s->count++] = (ea_st_source){
      .name = name,
      .dtype = st_dtype_of(dtype),
      .rank = 3,
      .shape = {tokens, heads, dim},
      .stride_bytes = {t.token_stride * size, t.head_stride * size, size},
      .data = t.data,
  };
}

static void add_cache(sources *s, const char *name, const ea_problem *problem, int64_t num_pages, int32_t dim,
                      ea_cache cache) {
  const ea_cache p = ea_case_cache_strides(cache, problem, dim);
  const ea_dtype dtype = ea_case_cache_dtype(problem);
  const int64_t size = (int64_t)ea_dtype_size(dtype);
  ea_st_source source = {.name = name, .dtype = st_dtype_of(dtype), .data = p.data};
  const int64_t shape[] = {p.data ? num_pages : 0, problem->page_size, problem->num_kv_heads, dim};
  const int64_t strides[] = {p.page_stride * size, p.row_stride * size, p.head_stride * size, size};
  for (int i = 0; i < 4; ++i) {
    if (i == 1 && problem->page_size == 1) continue; /* the pool is then [S, Hkv, D] */
    source.shape[source.rank] = shape[i];
    source.stride_bytes[source.rank++] = strides[i];
  }
  s->list[s->count++] = source;
}

static sources sources_of(const ea_case *c) {
  const ea_problem *problem = &c->problem;
  const ea_batch *batch = &c->batch;
  const int64_t tokens = batch->num_tokens, seqs = batch->num_seqs;
  const int32_t kv_heads = problem->num_kv_heads, dim = problem->head_dim, dim_v = ea_case_head_dim_v(problem);
  /* A view of k has k's strides, so they are made explicit while k's dimension is known. */
  const ea_tensor v = problem->shared_kv ? ea_case_strides(batch->k, kv_heads, dim) : batch->v;
  const ea_cache v_cache = problem->shared_kv ? ea_case_cache_strides(batch->k_cache, problem, dim) : batch->v_cache;
  sources s = {.count = 0};
  add_tensor(&s, EA_CASE_Q, problem->dtype, tokens, problem->num_q_heads, dim, batch->q);
  add_tensor(&s, EA_CASE_K, problem->dtype, tokens, kv_heads, dim, batch->k);
  add_tensor(&s, EA_CASE_V, problem->dtype, tokens, kv_heads, dim_v, v);
  add_cache(&s, EA_CASE_K_CACHE, problem, batch->num_pages, dim, batch->k_cache);
  add_cache(&s, EA_CASE_V_CACHE, problem, batch->num_pages, dim_v, v_cache);
  add_flat(&s, EA_CASE_QO_INDPTR, EA_ST_I32, seqs + 1, batch->qo_indptr);
  add_flat(&s, EA_CASE_KV_INDPTR, EA_ST_I32, seqs + 1, batch->kv_indptr);
  add_flat(&s, EA_CASE_KV_INDICES, st_dtype_of(problem->index_dtype), batch->num_kv_indices, batch->kv_indices);
  if (problem->has_custom_mask) {
    add_flat(&s, EA_CASE_CUSTOM_MASK, EA_ST_U8, batch->custom_mask_bytes, batch->custom_mask);
    add_flat(&s, EA_CASE_MASK_INDPTR, st_dtype_of(problem->mask_indptr_dtype), seqs, batch->mask_indptr);
  }
  if (batch->window_kv_offsets) add_flat(&s, EA_CASE_WINDOW_KV_OFFSETS, EA_ST_I32, seqs, batch->window_kv_offsets);
  if (problem->has_sinks) {
    const ea_dtype sinks_dtype = problem->sinks_dtype ? problem->sinks_dtype : problem->dtype;
    add_flat(&s, EA_CASE_SINKS, st_dtype_of(sinks_dtype), problem->num_q_heads, batch->sinks);
  }
  return s;
}

/* ------------------------------------------------------------------------------------
 * Options
 * ---------------------------------------------------------------------------------- */

/* A number that reads back as the same one, whatever the program's locale. */
static bool format_double(double number, char *value) {
  const locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!locale) return false;
  const locale_t previous = uselocale(locale);
  snprintf(value, VALUE_BYTES, "%.17g", number);
  uselocale(previous);
  freelocale(locale);
  return true;
}

static bool format_option(const ea_case_option *option, const ea_problem *problem, char *value) {
  const char *field = (const char *)problem + option->offset;
  switch (option->kind) {
  case EA_OPTION_BOOL: {
    bool flag;
    memcpy(&flag, field, sizeof flag);
    snprintf(value, VALUE_BYTES, "%s", flag ? "true" : "false");
    return true;
  }
  case EA_OPTION_I32: {
    int32_t number;
    memcpy(&number, field, sizeof number);
    snprintf(value, VALUE_BYTES, "%" PRId32, number);
    return true;
  }
  case EA_OPTION_I64: {
    int64_t number;
    memcpy(&number, field, sizeof number);
    snprintf(value, VALUE_BYTES, "%" PRId64, number);
    return true;
  }
  case EA_OPTION_DOUBLE: {
    double number;
    memcpy(&number, field, sizeof number);
    return format_double(number, value);
  }
  }
  return false;
}

ea_status ea_case_write(const char *path, const ea_case *c) {
  char values[EA_CASE_NUM_OPTIONS][VALUE_BYTES];
  ea_st_entry metadata[EA_CASE_NUM_OPTIONS];
  size_t num_metadata = 0;
  for (int i = 0; i < EA_CASE_NUM_OPTIONS; ++i) {
    const ea_case_option *option = &ea_case_options[i];
    const bool is_default = option->offset == offsetof(ea_problem, softmax_scale) && c->problem.softmax_scale == 0;
    if (is_default) continue;
    if (!format_option(option, &c->problem, values[i])) {
      return ea_fail(EA_ERR_OUT_OF_MEMORY, "%s: out of memory", path);
    }
    metadata[num_metadata++] = (ea_st_entry){option->name, values[i]};
  }
  const sources s = sources_of(c);
  return ea_st_write(path, s.list, s.count, metadata, num_metadata);
}

ea_status ea_case_result_write(const char *path, const ea_case *c, const void *out, const float *lse) {
  const ea_problem *problem = &c->problem;
  const int64_t tokens = c->batch.num_tokens, heads = problem->num_q_heads;
  ea_st_source list[] = {
      {.name = "out",
       .dtype = st_dtype_of(problem->dtype),
       .rank = 3,
       .shape = {tokens, heads, ea_case_head_dim_v(problem)},
       .data = out},
      {.name = "lse", .dtype = EA_ST_F32, .rank = 2, .shape = {tokens, heads}, .data = lse},
  };
  const size_t count = sizeof list / sizeof list[0];
  for (size_t i = 0; i < count; ++i) ea_st_pack(&list[i]);
  return ea_st_write(path, list, count, NULL, 0);
}
