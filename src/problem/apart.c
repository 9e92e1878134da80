/* Results and workspace lie apart from what they are computed from, and from each other. */
#include "common/error.h"
#include "problem/footprint.h"
#include "problem/problem.h"

enum { NUM_RESULTS = 3, NUM_INPUTS = 12 };

static ea_status check_pair(const ea_footprint *result, const ea_footprint *other) {
  if (ea_footprints_apart(result, other)) return EA_OK;
  return ea_fail(EA_ERR_INVALID, "%s: found memory that overlaps %s, allowed memory of its own", result->name,
                 other->name);
}

static void list_results(const ea_call *call, const void *workspace, size_t workspace_bytes, ea_footprint *results) {
  const ea_strided out = {call->out, call->out_token_stride, call->out_head_stride};
  const ea_strided lse = {call->lse, call->lse_token_stride, call->lse_head_stride};
  results[0] = ea_tensor_footprint("out", out, call->num_tokens, call->num_q_heads, call->head_dim_v, call->dtype);
  results[1] = ea_tensor_footprint("lse", lse, call->num_tokens, call->num_q_heads, 1, EA_F32);
  results[2] = ea_array_footprint("workspace", workspace, workspace_bytes, 1);
}

static void list_inputs(const ea_call *call, ea_footprint *inputs) {
  const int64_t tokens = call->num_tokens;
  const int32_t heads = call->num_kv_heads;
  const uint64_t seqs = (uint64_t)call->num_seqs;
  const size_t i32 = sizeof(int32_t);
  const size_t mask_start = ea_dtype_size(call->mask_indptr_dtype);
  const size_t slot = ea_dtype_size(call->index_dtype);
  const size_t sink = ea_dtype_size(call->sinks_dtype);
  *inputs++ = ea_tensor_footprint("q", call->q, tokens, call->num_q_heads, call->head_dim, call->dtype);
  *inputs++ = ea_tensor_footprint("k", call->k, tokens, heads, call->head_dim, call->dtype);
  *inputs++ = ea_tensor_footprint("v", call->v, tokens, heads, call->head_dim_v, call->dtype);
  *inputs++ = ea_pool_footprint("k_cache", &call->k_cache, call, call->head_dim);
  *inputs++ = ea_pool_footprint("v_cache", &call->v_cache, call, call->head_dim_v);
  *inputs++ = ea_array_footprint("qo_indptr", call->qo_indptr, seqs + 1, i32);
  *inputs++ = ea_array_footprint("kv_indptr", call->kv_indptr, seqs + 1, i32);
  *inputs++ = ea_array_footprint("kv_indices", call->kv_indices, (uint64_t)call->num_kv_indices, slot);
  *inputs++ = ea_array_footprint("custom_mask", call->custom_mask, (uint64_t)call->custom_mask_bytes, 1);
  *inputs++ = ea_array_footprint("mask_indptr", call->mask_indptr, seqs, mask_start);
  *inputs++ = ea_array_footprint("window_kv_offsets", call->window_kv_offsets, seqs, i32);
  *inputs++ = ea_array_footprint("sinks", call->sinks, (uint64_t)call->num_q_heads, sink);
}

ea_status ea_check_apart(const ea_call *call, const void *workspace, size_t workspace_bytes) {
  if (call->num_tokens == 0) return EA_OK; /* nothing is written */
  ea_footprint results[NUM_RESULTS];
  ea_footprint inputs[NUM_INPUTS];
  list_results(call, workspace, workspace_bytes, results);
  list_inputs(call, inputs);
  ea_status status = EA_OK;
  for (int r = 0; r < NUM_RESULTS; ++r) {
    for (int i = 0; i < NUM_INPUTS && !status; ++i) status = check_pair(&results[r], &inputs[i]);
    for (int i = 0; i < r && !status; ++i) status = check_pair(&results[r], &results[i]);
  }
  return status;
}
