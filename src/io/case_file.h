/* What the reader and the writer of case files share: the names of tensors and options,
 * and a batch's defaults made explicit. Private to this folder. */
#ifndef EA_IO_CASE_FILE_H
#define EA_IO_CASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "io/case.h"

#define EA_CASE_Q "q"
#define EA_CASE_K "k"
#define EA_CASE_V "v"
#define EA_CASE_K_CACHE "k_cache"
#define EA_CASE_V_CACHE "v_cache"
#define EA_CASE_QO_INDPTR "qo_indptr"
#define EA_CASE_KV_INDPTR "kv_indptr"
#define EA_CASE_KV_INDICES "kv_indices"
#define EA_CASE_CUSTOM_MASK "custom_mask"
#define EA_CASE_MASK_INDPTR "mask_indptr"
#define EA_CASE_WINDOW_KV_OFFSETS "window_kv_offsets"
#define EA_CASE_SINKS "sinks"

/* One of a problem's fields that the file's metadata sets. */
typedef enum ea_option_kind { EA_OPTION_BOOL, EA_OPTION_I32, EA_OPTION_I64, EA_OPTION_DOUBLE } ea_option_kind;

typedef struct ea_case_option {
  const char *name;
  ea_option_kind kind;
  size_t offset; /* in ea_problem */
} ea_case_option;

#define EA_CASE_NUM_OPTIONS 10
extern const ea_case_option ea_case_options[EA_CASE_NUM_OPTIONS];

/* Takes over memory: freed with the case when owned. */
ea_status ea_case_add_storage(ea_case *c, void *data, size_t bytes, bool owned);

/* Fields of a problem whose 0 means "as another". */
int32_t ea_case_head_dim_v(const ea_problem *problem);
ea_dtype ea_case_cache_dtype(const ea_problem *problem);

/* Strides of 0, which mean packed, made explicit. */
ea_tensor ea_case_strides(ea_tensor tensor, int32_t num_heads, int32_t dim);
ea_cache ea_case_cache_strides(ea_cache cache, const ea_problem *problem, int32_t dim);

#endif
