/* Reading a case file: tensors and their shapes held against each other, options parsed
 * strictly. Whatever a batch can say wrong in its values is left to the library. */
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "io/case.h"
#include "io/case_file.h"
#include "io/safetensors.h"

/* A case has at most 12 tensors and 10 options; what a larger header would cost to parse is
 * spared. */
#define MAX_HEADER_BYTES (1 << 20)

#define BIT(dtype) (1U << (dtype))
#define FLOATS (BIT(EA_ST_BF16) | BIT(EA_ST_F16) | BIT(EA_ST_F32))

enum {
  T_Q,
  T_K,
  T_V,
  T_K_CACHE,
  T_V_CACHE,
  T_QO_INDPTR,
  T_KV_INDPTR,
  T_KV_INDICES,
  NUM_REQUIRED,
  T_CUSTOM_MASK = NUM_REQUIRED,
  T_MASK_INDPTR,
  T_WINDOW_KV_OFFSETS,
  T_SINKS,
  NUM_TENSORS
};

static const struct {
  const char *name;
  unsigned dtypes; /* allowed ones; which of them go together is checked later */
} rules[NUM_TENSORS] = {
    [T_Q] = {EA_CASE_Q, FLOATS},
    [T_K] = {EA_CASE_K, FLOATS},
    [T_V] = {EA_CASE_V, FLOATS},
    [T_K_CACHE] = {EA_CASE_K_CACHE, FLOATS | BIT(EA_ST_F8_E4M3) | BIT(EA_ST_F8_E5M2)},
    [T_V_CACHE] = {EA_CASE_V_CACHE, FLOATS | BIT(EA_ST_F8_E4M3) | BIT(EA_ST_F8_E5M2)},
    [T_QO_INDPTR] = {EA_CASE_QO_INDPTR, BIT(EA_ST_I32)},
    [T_KV_INDPTR] = {EA_CASE_KV_INDPTR, BIT(EA_ST_I32)},
    [T_KV_INDICES] = {EA_CASE_KV_INDICES, BIT(EA_ST_I32) | BIT(EA_ST_I64)},
    [T_CUSTOM_MASK] = {EA_CASE_CUSTOM_MASK, BIT(EA_ST_U8) | BIT(EA_ST_BOOL)},
    [T_MASK_INDPTR] = {EA_CASE_MASK_INDPTR, BIT(EA_ST_I32) | BIT(EA_ST_I64)},
    [T_WINDOW_KV_OFFSETS] = {EA_CASE_WINDOW_KV_OFFSETS, BIT(EA_ST_I32)},
    [T_SINKS] = {EA_CASE_SINKS, FLOATS},
};

typedef struct reader {
  ea_st_file file;
  const ea_st_tensor *tensors[NUM_TENSORS]; /* NULL: not there */
} reader;

/* ------------------------------------------------------------------------------------
 * Which tensors, of which types
 * ---------------------------------------------------------------------------------- */

typedef struct text {
  char s[256];
} text;

/* Appends to a list: "A, B, C". */
static void append(text *list, const char *name) {
  const size_t used = strlen(list->s);
  snprintf(list->s + used, sizeof list->s - used, "%s%s", used ? ", " : "", name);
}

static text names_of_tensors(void) {
  text list = {""};
  for (int i = 0; i < NUM_TENSORS; ++i) append(&list, rules[i].name);
  return list;
}

static text names_of_dtypes(unsigned dtypes) {
  text list = {""};
  for (int i = 0; i < EA_ST_NUM_DTYPES; ++i) {
    if (dtypes & BIT(i)) append(&list, ea_st_dtype_name((ea_st_dtype)i));
  }
  return list;
}

static ea_status find_tensors(reader *r) {
  for (size_t t = 0; t < r->file.num_tensors; ++t) {
    const ea_st_tensor *tensor = &r->file.tensors[t];
    int i = 0;
    while (i < NUM_TENSORS && strcmp(tensor->name, rules[i].name) != 0) ++i;
    if (i == NUM_TENSORS) {
      return ea_fail(EA_ERR_INVALID, "%s: found a tensor of this name, allowed %s", ea_st_printable(tensor->name).s,
                     names_of_tensors().s);
    }
    r->tensors[i] = tensor;
  }
  for (int i = 0; i < NUM_REQUIRED; ++i) {
    if (!r->tensors[i])
      return ea_fail(EA_ERR_INVALID, "%s: found no tensor of this name, it is required", rules[i].name);
  }
  if (r->tensors[T_CUSTOM_MASK] && !r->tensors[T_MASK_INDPTR]) {
    return ea_fail(EA_ERR_INVALID, "mask_indptr: found no tensor of this name, it is required with custom_mask");
  }
  if (r->tensors[T_MASK_INDPTR] && !r->tensors[T_CUSTOM_MASK]) {
    return ea_fail(EA_ERR_INVALID, "custom_mask: found no tensor of this name, it is required with mask_indptr");
  }
  return EA_OK;
}

static ea_status check_dtype(const ea_st_tensor *tensor, unsigned dtypes, const char *why) {
  if (dtypes & BIT(tensor->dtype)) return EA_OK;
  return ea_fail(EA_ERR_INVALID, "%s: found type %s, allowed %s%s", tensor->name, ea_st_dtype_name(tensor->dtype),
                 names_of_dtypes(dtypes).s, why);
}

static ea_status check_dtypes(const reader *r) {
  const ea_st_tensor *const *t = r->tensors;
  for (int i = 0; i < NUM_TENSORS; ++i) {
    const ea_status status = t[i] ? check_dtype(t[i], rules[i].dtypes, "") : EA_OK;
    if (status) return status;
  }
  const unsigned as_q = BIT(t[T_Q]->dtype);
  const unsigned of_cache = as_q | BIT(EA_ST_F8_E4M3) | BIT(EA_ST_F8_E5M2);
  ea_status status = check_dtype(t[T_K], as_q, ", as q");
  if (!status) status = check_dtype(t[T_V], as_q, ", as q");
  if (!status) status = check_dtype(t[T_K_CACHE], of_cache, " (q's type, or 8 bits)");
  if (!status) status = check_dtype(t[T_V_CACHE], BIT(t[T_K_CACHE]->dtype), ", as k_cache");
  if (!status && t[T_SINKS]) status = check_dtype(t[T_SINKS], as_q | BIT(EA_ST_F32), " (q's type, or F32)");
  return status;
}

static ea_dtype dtype_of(const ea_st_tensor *tensor) {
  switch (tensor->dtype) {
  case EA_ST_F32:
    return EA_F32;
  case EA_ST_F16:
    return EA_F16;
  case EA_ST_BF16:
    return EA_BF16;
  case EA_ST_F8_E4M3:
    return EA_E4M3;
  case EA_ST_F8_E5M2:
    return EA_E5M2;
  case EA_ST_I32:
    return EA_I32;
  case EA_ST_I64:
    return EA_I64;
  default:
    return EA_DTYPE_NONE;
  }
}

/* ------------------------------------------------------------------------------------
 * Shapes
 * ---------------------------------------------------------------------------------- */

/* One expected dimension: its symbol, and its size where another tensor has decided it. */
typedef struct dim {
  const char *symbol;
  int64_t size; /* ANY: free */
} dim;

#define ANY (-1)

static ea_status check_shape(const ea_st_tensor *tensor, const dim *dims, int32_t rank) {
  bool ok = tensor->rank == rank;
  for (int32_t i = 0; i < rank && ok; ++i) ok = dims[i].size == ANY || tensor->shape[i] == dims[i].size;
  if (ok) return EA_OK;
  text allowed = {""};
  for (int32_t i = 0; i < rank; ++i) {
    char one[48];
    if (dims[i].size == ANY) {
      snprintf(one, sizeof one, "%s", dims[i].symbol);
    } else {
      snprintf(one, sizeof one, "%s = %" PRId64, dims[i].symbol, dims[i].size);
    }
    append(&allowed, one);
  }
  return ea_fail(EA_ERR_INVALID, "%s: found shape %s, allowed [%s]", tensor->name, ea_st_shape_of(tensor).s, allowed.s);
}

/* A dimension that becomes an int32_t of the problem. */
static ea_status take_dim(const ea_st_tensor *tensor, int32_t index, const char *what, int32_t max, int32_t *to) {
  const int64_t size = tensor->shape[index];
  if (size < 1 || size > max) {
    return ea_fail(EA_ERR_INVALID, "%s: found shape %s, allowed %s (dimension %" PRId32 ") from 1 to %" PRId32,
                   tensor->name, ea_st_shape_of(tensor).s, what, index, max);
  }
  *to = (int32_t)size;
  return EA_OK;
}

static ea_status read_new_tokens(const reader *r, ea_case *c) {
  const ea_st_tensor *q = r->tensors[T_Q], *k = r->tensors[T_K], *v = r->tensors[T_V];
  ea_problem *problem = &c->problem;
  ea_status status = check_shape(q, (dim[]){{"T", ANY}, {"Hq", ANY}, {"D", ANY}}, 3);
  if (status) return status;
  const int64_t tokens = q->shape[0];
  status = check_shape(k, (dim[]){{"T", tokens}, {"Hkv", ANY}, {"D", q->shape[2]}}, 3);
  if (!status) status = check_shape(v, (dim[]){{"T", tokens}, {"Hkv", k->shape[1]}, {"Dv", ANY}}, 3);
  if (!status) status = take_dim(q, 1, "query heads", INT32_MAX, &problem->num_q_heads);
  if (!status) status = take_dim(q, 2, "a head dimension", EA_MAX_HEAD_DIM, &problem->head_dim);
  if (!status) status = take_dim(k, 1, "key/value heads", INT32_MAX, &problem->num_kv_heads);
  if (!status) status = take_dim(v, 2, "a head dimension", EA_MAX_HEAD_DIM, &problem->head_dim_v);
  problem->dtype = dtype_of(q);
  c->batch.num_tokens = tokens;
  return status;
}

static ea_status read_caches(const reader *r, ea_case *c) {
  const ea_st_tensor *k = r->tensors[T_K_CACHE], *v = r->tensors[T_V_CACHE];
  ea_problem *problem = &c->problem;
  const dim heads = {"Hkv", problem->num_kv_heads}, d = {"D", problem->head_dim}, dv = {"Dv", problem->head_dim_v};
  ea_status status;
  if (k->rank == 4) {
    status = check_shape(k, (dim[]){{"pages", ANY}, {"page_size", ANY}, heads, d}, 4);
    if (!status) status = check_shape(v, (dim[]){{"pages", k->shape[0]}, {"page_size", k->shape[1]}, heads, dv}, 4);
    if (!status) status = take_dim(k, 1, "a page size", INT32_MAX, &problem->page_size);
  } else {
    status = check_shape(k, (dim[]){{"S", ANY}, heads, d}, 3);
    if (!status) status = check_shape(v, (dim[]){{"S", k->shape[0]}, heads, dv}, 3);
  }
  problem->cache_dtype = dtype_of(k);
  c->batch.num_pages = k->shape[0];
  return status;
}

static ea_status read_index_arrays(const reader *r, ea_case *c) {
  const ea_st_tensor *qo = r->tensors[T_QO_INDPTR], *kv = r->tensors[T_KV_INDPTR], *slots = r->tensors[T_KV_INDICES];
  ea_status status = check_shape(qo, (dim[]){{"B+1", ANY}}, 1);
  if (status) return status;
  if (qo->shape[0] == 0) return ea_fail(EA_ERR_INVALID, "qo_indptr: found shape [0], allowed [B+1] with B >= 0");
  status = check_shape(kv, (dim[]){{"B+1", qo->shape[0]}}, 1);
  if (!status) status = check_shape(slots, (dim[]){{"sum of prefixes", ANY}}, 1);
  c->problem.index_dtype = dtype_of(slots);
  c->batch.num_seqs = qo->shape[0] - 1;
  c->batch.num_kv_indices = slots->shape[0];
  return status;
}

static ea_status read_optional(const reader *r, ea_case *c) {
  const ea_st_tensor *mask = r->tensors[T_CUSTOM_MASK], *indptr = r->tensors[T_MASK_INDPTR];
  const ea_st_tensor *offsets = r->tensors[T_WINDOW_KV_OFFSETS], *sinks = r->tensors[T_SINKS];
  ea_problem *problem = &c->problem;
  const int64_t seqs = c->batch.num_seqs;
  ea_status status = EA_OK;
  if (mask) {
    status = check_shape(mask, (dim[]){{"bytes", ANY}}, 1);
    if (!status && (indptr->rank != 1 || (indptr->shape[0] != seqs && indptr->shape[0] != seqs + 1))) {
      status = ea_fail(EA_ERR_INVALID, "mask_indptr: found shape %s, allowed [B = %" PRId64 "] or [B+1 = %" PRId64 "]",
                       ea_st_shape_of(indptr).s, seqs, seqs + 1);
    }
    problem->has_custom_mask = true;
    problem->mask_indptr_dtype = dtype_of(indptr);
    c->batch.custom_mask_bytes = mask->shape[0];
  }
  if (!status && offsets) status = check_shape(offsets, (dim[]){{"B", seqs}}, 1);
  if (!status && sinks) {
    status = check_shape(sinks, (dim[]){{"Hq", problem->num_q_heads}}, 1);
    problem->has_sinks = true;
    problem->sinks_dtype = dtype_of(sinks);
  }
  return status;
}

/* ------------------------------------------------------------------------------------
 * Options
 * ---------------------------------------------------------------------------------- */

static ea_status bad_option(const ea_st_entry *entry, const char *allowed) {
  return ea_fail(EA_ERR_INVALID, "%s: found '%s', allowed %s", entry->key, ea_st_printable(entry->value).s, allowed);
}

/* A decimal number in full: no space, no hexadecimal, no infinity, no NaN, whatever the
 * program's locale. */
static bool parse_double(const char *value, double *to) {
  if (!*value || value[strspn(value, "0123456789+-.eE")]) return false;
  const locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!locale) return false;
  char *end;
  *to = strtod_l(value, &end, locale);
  freelocale(locale);
  return !*end && isfinite(*to);
}

static bool parse_integer(const char *value, int64_t min, int64_t max, int64_t *to) {
  if (!*value || value[strspn(value, "0123456789+-")]) return false;
  char *end;
  errno = 0;
  const long long parsed = strtoll(value, &end, 10);
  *to = parsed;
  return !*end && !errno && parsed >= min && parsed <= max;
}

static ea_status read_option(const ea_case_option *option, const ea_st_entry *entry, ea_problem *problem) {
  char *field = (char *)problem + option->offset;
  switch (option->kind) {
  case EA_OPTION_BOOL: {
    const bool value = strcmp(entry->value, "true") == 0;
    if (!value && strcmp(entry->value, "false") != 0) return bad_option(entry, "true or false");
    memcpy(field, &value, sizeof value);
    return EA_OK;
  }
  case EA_OPTION_I32: {
    int64_t value;
    if (!parse_integer(entry->value, INT32_MIN, INT32_MAX, &value))
      return bad_option(entry, "a whole number of 32 bits");
    const int32_t narrow = (int32_t)value;
    memcpy(field, &narrow, sizeof narrow);
    return EA_OK;
  }
  case EA_OPTION_I64: {
    int64_t value;
    if (!parse_integer(entry->value, INT64_MIN, INT64_MAX, &value))
      return bad_option(entry, "a whole number of 64 bits");
    memcpy(field, &value, sizeof value);
    return EA_OK;
  }
  case EA_OPTION_DOUBLE: {
    double value;
    if (!parse_double(entry->value, &value)) return bad_option(entry, "a finite decimal number");
    memcpy(field, &value, sizeof value);
    return EA_OK;
  }
  }
  return ea_fail(EA_ERR_INTERNAL, "%s: option of unknown kind", entry->key);
}

static ea_status read_options(const reader *r, ea_problem *problem) {
  for (size_t e = 0; e < r->file.num_metadata; ++e) {
    const ea_st_entry *entry = &r->file.metadata[e];
    int i = 0;
    while (i < EA_CASE_NUM_OPTIONS && strcmp(entry->key, ea_case_options[i].name) != 0) ++i;
    if (i == EA_CASE_NUM_OPTIONS) {
      text names = {""};
      for (int o = 0; o < EA_CASE_NUM_OPTIONS; ++o) append(&names, ea_case_options[o].name);
      return ea_fail(EA_ERR_INVALID, "%s: found an option of this name, allowed %s", ea_st_printable(entry->key).s,
                     names.s);
    }
    const ea_status status = read_option(&ea_case_options[i], entry, problem);
    if (status) return status;
    /* In a problem 0 stands for the default; in a file the default is a missing option. */
    if (ea_case_options[i].offset == offsetof(ea_problem, softmax_scale) && !(problem->softmax_scale > 0)) {
      return bad_option(entry, "a number > 0");
    }
  }
  return EA_OK;
}

/* ------------------------------------------------------------------------------------
 * Data
 * ---------------------------------------------------------------------------------- */

/* Where the batch finds a tensor: in the mapping, or in a copy where its elements are not
 * aligned there. */
static ea_status take_data(const ea_st_tensor *tensor, ea_case *c, const void **data) {
  if ((uintptr_t)tensor->data % ea_st_dtype_size(tensor->dtype) == 0) {
    *data = tensor->data;
    return ea_case_add_storage(c, (void *)tensor->data, (size_t)tensor->bytes, false);
  }
  void *copy;
  const ea_status status = ea_case_alloc(c, (size_t)tensor->bytes, &copy);
  if (status) return status;
  memcpy(copy, tensor->data, (size_t)tensor->bytes);
  *data = copy;
  return EA_OK;
}

static ea_status read_data(reader *r, ea_case *c) {
  const void *data[NUM_TENSORS] = {NULL};
  for (int i = 0; i < NUM_TENSORS; ++i) {
    const ea_status status = r->tensors[i] ? take_data(r->tensors[i], c, &data[i]) : EA_OK;
    if (status) return status;
  }
  ea_batch *batch = &c->batch;
  batch->q.data = (void *)data[T_Q]; /* inputs: never written, as ea_tensor says */
  batch->k.data = (void *)data[T_K];
  batch->v.data = (void *)data[T_V];
  batch->k_cache.data = data[T_K_CACHE];
  batch->v_cache.data = data[T_V_CACHE];
  batch->qo_indptr = data[T_QO_INDPTR];
  batch->kv_indptr = data[T_KV_INDPTR];
  batch->kv_indices = data[T_KV_INDICES];
  batch->custom_mask = data[T_CUSTOM_MASK];
  batch->mask_indptr = data[T_MASK_INDPTR];
  batch->window_kv_offsets = data[T_WINDOW_KV_OFFSETS];
  batch->sinks = data[T_SINKS];
  return EA_OK;
}

static ea_status read_file(reader *r, ea_case *c) {
  ea_status status = find_tensors(r);
  if (!status) status = check_dtypes(r);
  if (!status) status = read_new_tokens(r, c);
  if (!status) status = read_caches(r, c);
  if (!status) status = read_index_arrays(r, c);
  if (!status) status = read_optional(r, c);
  if (!status) status = read_options(r, &c->problem);
  if (!status) status = read_data(r, c);
  return status;
}

ea_status ea_case_read(const char *path, ea_case *c) {
  ea_case_init(c);
  reader r = {.tensors = {NULL}};
  ea_status status = ea_st_open(path, MAX_HEADER_BYTES, &r.file);
  if (status) return status;
  status = read_file(&r, c);
  if (status) {
    ea_case_free(c);
  } else { /* the case keeps the mapping */
    c->map = r.file.map;
    c->map_bytes = r.file.map_bytes;
    r.file.map = NULL;
  }
  ea_st_close(&r.file);
  return status;
}
