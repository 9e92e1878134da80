/* The half of a call that changes from batch to batch: sizes, pointers and strides checked
 * without reading any memory that they point to, so it serves host and device alike. */
#include "common/check.h"
#include "common/grow.h"
#include "problem/problem.h"
#include "problem/tensor.h"

static ea_status check_count(const char *name, int64_t found, int64_t max) {
  if (found >= 0 && found <= max) return EA_OK;
  return ea_fail(EA_ERR_INVALID, "%s: found %lld, allowed 0 to %lld", name, (long long)found, (long long)max);
}

ea_status ea_check_batch_size(int64_t num_seqs, int64_t num_tokens) {
  /* qo_indptr is i32, and its num_seqs + 1 entries have to be countable in 32 bits too. */
  ea_status status = check_count("num_seqs", num_seqs, INT32_MAX - 1);
  if (!status) status = check_count("num_tokens", num_tokens, INT32_MAX);
  if (status) return status;
  if (num_seqs == 0 && num_tokens > 0) {
    return ea_fail(EA_ERR_INVALID, "num_tokens: found %lld, allowed 0 when num_seqs is 0", (long long)num_tokens);
  }
  return EA_OK;
}

static ea_status check_counts(const ea_problem *problem, const ea_batch *batch) {
  ea_status status = ea_check_batch_size(batch->num_seqs, batch->num_tokens);
  if (!status) status = check_count("num_kv_indices", batch->num_kv_indices, INT64_MAX / 8);
  if (!status) status = check_count("num_pages", batch->num_pages, INT64_MAX / problem->page_size);
  if (!status && problem->has_custom_mask) {
    status = check_count("custom_mask_bytes", batch->custom_mask_bytes, INT64_MAX);
  }
  return status;
}

static ea_status resolve_tensors(const ea_problem *problem, ea_batch *batch) {
  const int64_t tokens = batch->num_tokens;
  const int32_t q_heads = problem->num_q_heads;
  const int32_t kv_heads = problem->num_kv_heads;
  const int32_t dim = problem->head_dim;
  const int32_t dim_v = problem->head_dim_v;
  const bool reads_new = !problem->skip_extend;
  const ea_tensor_rule q = {EA_TENSOR_NAMES("q"), tokens, q_heads, dim, problem->dtype, true, false};
  const ea_tensor_rule k = {EA_TENSOR_NAMES("k"), tokens, kv_heads, dim, problem->dtype, reads_new, false};
  const ea_tensor_rule v = {EA_TENSOR_NAMES("v"), tokens, kv_heads, dim_v, problem->dtype, reads_new, false};
  const ea_tensor_rule out = {EA_TENSOR_NAMES("out"), tokens, q_heads, dim_v, problem->dtype, true, true};
  const ea_pool_rule k_cache = {EA_POOL_NAMES("k_cache"), batch->num_pages, problem->page_size, kv_heads, dim,
                                problem->cache_dtype};
  const ea_pool_rule v_cache = {EA_POOL_NAMES("v_cache"), batch->num_pages, problem->page_size, kv_heads, dim_v,
                                problem->cache_dtype};

  ea_status status = ea_tensor_resolve(&q, &batch->q);
  if (!status) status = ea_tensor_resolve(&k, &batch->k);
  if (!status) status = ea_cache_resolve(&k_cache, &batch->k_cache);
  if (problem->shared_kv) {
    batch->v = batch->k;
    batch->v_cache = batch->k_cache;
  } else {
    if (!status) status = ea_tensor_resolve(&v, &batch->v);
    if (!status) status = ea_cache_resolve(&v_cache, &batch->v_cache);
  }
  if (!status) status = ea_tensor_resolve(&out, &batch->out);
  return status;
}

/* lse is a tensor [T, Hq, 1] whose strides have names of their own. */
static ea_status resolve_lse(const ea_problem *problem, ea_batch *batch) {
  if (!batch->lse) return EA_OK;
  const ea_tensor_names names = {"lse", "lse", "lse_token_stride", "lse_head_stride"};
  const ea_tensor_rule rule = {names, batch->num_tokens, problem->num_q_heads, 1, EA_F32, true, true};
  ea_tensor lse = {batch->lse, batch->lse_token_stride, batch->lse_head_stride};
  const ea_status status = ea_tensor_resolve(&rule, &lse);
  if (status) return status;
  batch->lse_token_stride = lse.token_stride;
  batch->lse_head_stride = lse.head_stride;
  return EA_OK;
}

/* NULL is fine where nothing would be read. */
static ea_status check_array(const char *name, const void *data, ea_dtype dtype, bool required, const char *wanted) {
  if (!data && !required) return EA_OK;
  return ea_check_pointer(name, data, ea_dtype_size(dtype), wanted);
}

static ea_status check_arrays(const ea_problem *problem, const ea_batch *batch) {
  const bool any_seq = batch->num_seqs > 0;
  ea_status status = check_array("qo_indptr", batch->qo_indptr, EA_I32, any_seq, "an array of num_seqs + 1");
  if (!status) status = check_array("kv_indptr", batch->kv_indptr, EA_I32, any_seq, "an array of num_seqs + 1");
  if (!status) status = check_array("kv_indices", batch->kv_indices, problem->index_dtype, false, "");
  if (!status) status = check_array("qo_indptr_host", batch->qo_indptr_host, EA_I32, false, "");
  if (!status) status = check_array("kv_indptr_host", batch->kv_indptr_host, EA_I32, false, "");
  return status;
}

static ea_status check_custom_mask(const ea_problem *problem, const ea_batch *batch) {
  if (!problem->has_custom_mask) {
    if (!batch->custom_mask) return EA_OK;
    return ea_fail(EA_ERR_INVALID, "custom_mask: found a mask, allowed NULL as the problem's has_custom_mask is false");
  }
  const bool required = batch->num_tokens > 0;
  if (!batch->custom_mask && required) {
    return ea_fail(EA_ERR_INVALID, "custom_mask: found NULL, allowed a mask as the problem's has_custom_mask is true");
  }
  if (batch->custom_mask && (uint64_t)batch->custom_mask_bytes > UINTPTR_MAX - (uintptr_t)batch->custom_mask) {
    return ea_fail(EA_ERR_INVALID, "custom_mask_bytes: found %lld, allowed what stays within the address space",
                   (long long)batch->custom_mask_bytes);
  }
  ea_status status =
      check_array("mask_indptr", batch->mask_indptr, problem->mask_indptr_dtype, required, "an array of num_seqs");
  if (!status) status = check_array("window_kv_offsets", batch->window_kv_offsets, EA_I32, false, "");
  return status;
}

static ea_status check_sinks(const ea_problem *problem, const ea_batch *batch) {
  if (!problem->has_sinks) {
    if (!batch->sinks) return EA_OK;
    return ea_fail(EA_ERR_INVALID, "sinks: found an array, allowed NULL as the problem's has_sinks is false");
  }
  return check_array("sinks", batch->sinks, problem->sinks_dtype, batch->num_tokens > 0,
                     "an array of num_q_heads as the problem's has_sinks is true");
}

static ea_strided strided_of(const ea_tensor *tensor) {
  const ea_strided strided = {tensor->data, tensor->token_stride, tensor->head_stride};
  return strided;
}

static ea_pool pool_of(const ea_cache *cache) {
  const ea_pool pool = {cache->data, cache->page_stride, cache->row_stride, cache->head_stride};
  return pool;
}

static ea_call put_together(const ea_problem *problem, const ea_batch *batch) {
  const bool masked = problem->has_custom_mask && batch->num_tokens > 0; /* without a query the mask says nothing */
  const ea_call call = {
      .q = strided_of(&batch->q),
      .k = strided_of(&batch->k),
      .v = strided_of(&batch->v),
      .k_cache = pool_of(&batch->k_cache),
      .v_cache = pool_of(&batch->v_cache),
      .out = batch->out.data,
      .out_token_stride = batch->out.token_stride,
      .out_head_stride = batch->out.head_stride,
      .lse = batch->lse,
      .lse_token_stride = batch->lse_token_stride,
      .lse_head_stride = batch->lse_head_stride,
      .qo_indptr = batch->qo_indptr,
      .kv_indptr = batch->kv_indptr,
      .kv_indices = batch->kv_indices,
      .custom_mask = masked ? batch->custom_mask : NULL,
      .mask_indptr = masked ? batch->mask_indptr : NULL,
      .window_kv_offsets = masked && problem->window_left > 0 ? batch->window_kv_offsets : NULL,
      .sinks = problem->has_sinks ? batch->sinks : NULL,
      .num_seqs = batch->num_seqs,
      .num_tokens = batch->num_tokens,
      .num_kv_indices = batch->num_kv_indices,
      .num_pages = batch->num_pages,
      .num_slots = batch->num_pages * problem->page_size,
      .custom_mask_bytes = masked ? batch->custom_mask_bytes : 0,
      .num_q_heads = problem->num_q_heads,
      .num_kv_heads = problem->num_kv_heads,
      .group = problem->num_q_heads / problem->num_kv_heads,
      .head_dim = problem->head_dim,
      .head_dim_v = problem->head_dim_v,
      .page_size = problem->page_size,
      .window = problem->window_left,
      .shared_kv = problem->shared_kv,
      .causal = problem->causal,
      .skip_prefix_custom_mask = problem->skip_prefix_custom_mask,
      .skip_prefix = problem->skip_prefix,
      .skip_extend = problem->skip_extend,
      .dtype = problem->dtype,
      .cache_dtype = problem->cache_dtype,
      .index_dtype = problem->index_dtype,
      .mask_indptr_dtype = problem->mask_indptr_dtype,
      .sinks_dtype = problem->sinks_dtype,
      .xai_temperature_len = problem->xai_temperature_len,
      .softmax_scale = problem->softmax_scale,
      .logit_cap = problem->logit_cap,
      .k_scale = problem->k_scale,
      .v_scale = problem->v_scale,
  };
  return call;
}

ea_status ea_call_make(const ea_problem *resolved, const ea_batch *callers, ea_call *call) {
  ea_status status = ea_check_struct_in("batch", callers, offsetof(ea_batch, lse), sizeof *callers);
  if (status) return status;

  ea_batch batch = EA_BATCH_INIT;
  ea_struct_in(&batch, sizeof batch, callers, callers->struct_size);
  status = check_counts(resolved, &batch);
  if (!status) status = resolve_tensors(resolved, &batch);
  if (!status) status = resolve_lse(resolved, &batch);
  if (!status) status = check_arrays(resolved, &batch);
  if (!status) status = check_custom_mask(resolved, &batch);
  if (!status) status = check_sinks(resolved, &batch);
  if (status) return status;

  *call = put_together(resolved, &batch);
  return EA_OK;
}
