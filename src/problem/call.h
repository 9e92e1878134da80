/* A checked call: problem and batch put together, every default resolved, every stride
 * explicit. What the backends and the kernels receive; plain data, the same on host and
 * device. */
#ifndef EA_PROBLEM_CALL_H
#define EA_PROBLEM_CALL_H

#include "common/hd.h"
#include "extattn.h"
#include "plan/walk.h"

typedef struct ea_strided {
  const void *data;
  int64_t token_stride; /* elements */
  int64_t head_stride;
} ea_strided;

typedef struct ea_pool {
  const void *data;
  int64_t page_stride; /* elements */
  int64_t row_stride;
  int64_t head_stride;
} ea_pool;

typedef struct ea_call {
  ea_strided q, k, v;
  ea_pool k_cache, v_cache; /* with shared_kv, v and v_cache repeat k and k_cache */
  void *out;
  int64_t out_token_stride, out_head_stride;
  float *lse; /* or NULL */
  int64_t lse_token_stride, lse_head_stride;

  const int32_t *qo_indptr; /* where the tensors are */
  const int32_t *kv_indptr;
  const void *kv_indices;
  const uint8_t *custom_mask; /* NULL: none */
  const void *mask_indptr;
  const int32_t *window_kv_offsets; /* NULL: none, or no window */
  const void *sinks;                /* NULL: none */

  int64_t num_seqs, num_tokens, num_kv_indices, num_pages, num_slots, custom_mask_bytes;
  int32_t num_q_heads, num_kv_heads, group; /* group = Hq / Hkv */
  int32_t head_dim, head_dim_v;
  int32_t page_size;
  int32_t window; /* 0: none */
  bool shared_kv, causal, skip_prefix_custom_mask, skip_prefix, skip_extend;
  ea_dtype dtype, cache_dtype; /* cache_dtype resolved: never EA_DTYPE_NONE */
  ea_dtype index_dtype, mask_indptr_dtype, sinks_dtype;
  int64_t xai_temperature_len; /* 0: none */
  double softmax_scale;        /* resolved: never 0 */
  double logit_cap;            /* 0: none */
  double k_scale, v_scale;
} ea_call;

EA_HD int64_t ea_load_index(const void *base, ea_dtype dtype, int64_t i) {
  return dtype == EA_I64 ? ((const int64_t *)base)[i] : (int64_t)((const int32_t *)base)[i];
}

/* What the queries of sequence b may see. Reads the index arrays, so it runs where they are. */
EA_HD ea_view ea_view_of(const ea_call *call, int64_t b) {
  ea_view view;
  view.prefix = call->kv_indptr[b + 1] - call->kv_indptr[b];
  view.extend = call->qo_indptr[b + 1] - call->qo_indptr[b];
  view.window = call->window;
  view.causal = call->causal;
  view.skip_prefix = call->skip_prefix;
  view.skip_extend = call->skip_extend;
  view.mask_skips_prefix = call->skip_prefix_custom_mask;
  view.mask = 0;
  view.mask_stride = 0;
  if (call->custom_mask) {
    const int32_t offset = call->window_kv_offsets && call->window > 0 ? call->window_kv_offsets[b] : 0;
    view.mask_stride = (int64_t)offset + view.prefix + view.extend;
    view.mask = call->custom_mask + ea_load_index(call->mask_indptr, call->mask_indptr_dtype, b) + offset;
  }
  return view;
}

/* Element offset of a slot in a pool, for one K/V head. */
EA_HD int64_t ea_slot_offset(const ea_pool *pool, int64_t slot, int32_t page_size, int32_t kv_head) {
  const int64_t page = page_size == 1 ? slot : slot / page_size;
  const int64_t row = page_size == 1 ? 0 : slot - page * page_size;
  return page * pool->page_stride + row * pool->row_stride + (int64_t)kv_head * pool->head_stride;
}

#endif
