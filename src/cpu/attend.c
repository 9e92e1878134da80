/* The fast CPU backend's entry: threads take blocks of query rows, longest first. */
#include "cpu/cpu.h"

#include <math.h>

#include "common/numeric.h"
#include "cpu/schedule.h"

enum { TILE_M = 64, TILE_N = 64 };

ea_cpu_shape ea_cpu_shape_of(const ea_problem *resolved, ea_isa isa) {
  (void)resolved, (void)isa;
  return (ea_cpu_shape){TILE_M, TILE_N, "portable_f32"};
}

size_t ea_cpu_workspace_bytes(const ea_problem *resolved, ea_isa isa, int num_threads) {
  (void)resolved, (void)isa, (void)num_threads;
  return 0;
}

typedef struct row_source {
  const void *data;
  ea_dtype dtype;
  int64_t offset;
} row_source;

static row_source key_row(const ea_call *call, const ea_cpu_item *item, int32_t j, bool values) {
  const ea_pool *pool = values ? &call->v_cache : &call->k_cache;
  const ea_strided *fresh = values ? &call->v : &call->k;
  if (j < item->view.prefix) {
    const int64_t slot = ea_load_index(call->kv_indices, call->index_dtype, call->kv_indptr[item->seq] + (int64_t)j);
    return (row_source){pool->data, call->cache_dtype, ea_slot_offset(pool, slot, call->page_size, item->kv_head)};
  }
  const int64_t token = (int64_t)call->qo_indptr[item->seq] + j - item->view.prefix;
  return (row_source){fresh->data, call->dtype, token * fresh->token_stride + item->kv_head * fresh->head_stride};
}

static float score(const ea_call *call, const ea_cpu_item *item, const float *q, int32_t i, int32_t j) {
  const row_source k = key_row(call, item, j, false);
  float dot = 0.0f;
  for (int32_t d = 0; d < call->head_dim; ++d) dot += q[d] * (float)ea_load_double(k.data, k.dtype, k.offset + d);
  float s = dot * (float)call->softmax_scale;
  if (j < item->view.prefix) s *= (float)call->k_scale;
  if (call->logit_cap > 0) s = (float)call->logit_cap * tanhf(s / (float)call->logit_cap);
  if (call->xai_temperature_len > 0) {
    const int32_t position = item->view.prefix + i;
    s *= ea_temperature(position, call->xai_temperature_len, log2f((float)position),
                        1.0f / log2f((float)call->xai_temperature_len));
  }
  return s;
}

static void attend_row(const ea_call *call, const ea_cpu_item *item, int64_t row) {
  const int32_t i = ea_row_query(row, call->group);
  const int32_t head = item->kv_head * call->group + (int32_t)(row % call->group);
  const int64_t token = (int64_t)call->qo_indptr[item->seq] + i;
  float q[EA_MAX_HEAD_DIM];
  float o[EA_MAX_HEAD_DIM] = {0};
  for (int32_t d = 0; d < call->head_dim; ++d) {
    q[d] =
        (float)ea_load_double(call->q.data, call->dtype, token * call->q.token_stride + head * call->q.head_stride + d);
  }
  float max = -INFINITY;
  float sum = 0.0f;
  bool any = false;
  const ea_key_range keys = ea_visible_keys(&item->view, i, i + 1);
  for (int32_t j = keys.first; j < keys.end; ++j) {
    if (!ea_visible(&item->view, i, j)) continue;
    const float s = score(call, item, q, i, j);
    const float new_max = any ? fmaxf(max, s) : s;
    const float alpha = any ? expf(max - new_max) : 0.0f;
    const float p = expf(s - new_max);
    const float weight = j < item->view.prefix ? p * (float)call->v_scale : p;
    const row_source v = key_row(call, item, j, true);
    for (int32_t d = 0; d < call->head_dim_v; ++d) {
      o[d] = o[d] * alpha + weight * (float)ea_load_double(v.data, v.dtype, v.offset + d);
    }
    sum = sum * alpha + p;
    max = new_max;
    any = true;
  }
  if (any && call->sinks) {
    const float sink = (float)ea_load_double(call->sinks, call->sinks_dtype, head);
    if (sink > max) {
      const float alpha = expf(max - sink);
      for (int32_t d = 0; d < call->head_dim_v; ++d) o[d] *= alpha;
      sum *= alpha;
      max = sink;
    }
    sum += expf(sink - max);
  }
  for (int32_t d = 0; d < call->head_dim_v; ++d) {
    ea_store_double(call->out, call->dtype, token * call->out_token_stride + head * call->out_head_stride + d,
                    any ? (double)(o[d] / sum) : 0.0);
  }
  if (call->lse) {
    call->lse[token * call->lse_token_stride + head * call->lse_head_stride] = any ? max + logf(sum) : -INFINITY;
  }
}

void ea_cpu_run(const ea_call *call, ea_isa isa, int num_threads, void *workspace) {
  (void)isa, (void)workspace;
  const ea_cpu_schedule schedule = ea_cpu_schedule_make(call, TILE_M, 1, num_threads);
  int64_t next = 0;
#pragma omp parallel num_threads(num_threads)
  {
    ea_cpu_cursor cursor = {.schedule = &schedule};
    for (;;) {
      int64_t number;
#pragma omp atomic capture
      number = next++;
      ea_cpu_item item;
      if (!ea_cpu_cursor_seek(&cursor, number, &item)) break;
      for (int32_t r = 0; r < item.rows; ++r) attend_row(call, &item, item.row_first + r);
    }
  }
}
