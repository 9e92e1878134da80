/* The definition of extend attention in double, one query and head at a time: what every
 * other path is measured against. Nothing is clever here; in particular each row walks all
 * keys and asks ea_visible about each, without the shortcuts of the tile walk, and the scores
 * are computed twice rather than kept. */
#include <math.h>

#include "common/numeric.h"
#include "cpu/cpu.h"
#include "cpu/region.h"

/* The sequence that a row belongs to: the last one that starts at or before it (sequences
 * without new tokens start where the next one does). */
static int64_t sequence_of(const ea_call *call, int64_t token) {
  int64_t low = 0;
  int64_t high = call->num_seqs;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (call->qo_indptr[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* One query of one head, and what it looks at. */
typedef struct ea_row {
  const ea_call *call;
  ea_view view;
  int64_t seq;
  int32_t query; /* within the sequence */
  int32_t kv_head;
  double q[EA_MAX_HEAD_DIM];
} ea_row;

/* k_j or v_j of a visible key: from the pool for j < P, else from the new tokens. */
static void load_key(const ea_row *row, const ea_pool *pool, const ea_strided *fresh, int32_t dim, int32_t j,
                     double *to) {
  const ea_call *call = row->call;
  if (j < row->view.prefix) {
    const int64_t slot = ea_load_index(call->kv_indices, call->index_dtype, call->kv_indptr[row->seq] + (int64_t)j);
    const int64_t at = ea_slot_offset(pool, slot, call->page_size, row->kv_head);
    ea_load_doubles(to, pool->data, call->cache_dtype, at, dim);
  } else {
    const int64_t token = call->qo_indptr[row->seq] + (int64_t)(j - row->view.prefix);
    const int64_t at = token * fresh->token_stride + row->kv_head * fresh->head_stride;
    ea_load_doubles(to, fresh->data, call->dtype, at, dim);
  }
}

static double temperature(const ea_call *call, int32_t position) {
  const int64_t len = call->xai_temperature_len;
  if (len == 0 || position <= len) return 1.0;
  return log2((double)position) / log2((double)len);
}

/* s(i, j) */
static double score(const ea_row *row, int32_t j) {
  const ea_call *call = row->call;
  double k[EA_MAX_HEAD_DIM];
  load_key(row, &call->k_cache, &call->k, call->head_dim, j, k);

  double dot = 0.0;
  for (int32_t d = 0; d < call->head_dim; ++d) dot += row->q[d] * k[d];
  double s = call->softmax_scale * dot;
  if (j < row->view.prefix) s *= call->k_scale;
  if (call->logit_cap > 0.0) s = call->logit_cap * tanh(s / call->logit_cap);
  return s * temperature(call, row->view.prefix + row->query);
}

/* The largest score of a visible key, or false: no key is visible. */
static bool max_score(const ea_row *row, double *max) {
  bool any = false;
  for (int32_t j = 0; j < row->view.prefix + row->view.extend; ++j) {
    if (!ea_visible(&row->view, row->query, j)) continue;
    const double s = score(row, j);
    *max = any ? fmax(*max, s) : s;
    any = true;
  }
  return any;
}

/* numerator = sum_j exp(s - max) v_j; returns sum_j exp(s - max), the keys' share of the denominator. */
static double sum_values(const ea_row *row, double max, double *numerator) {
  const ea_call *call = row->call;
  double denominator = 0.0;
  for (int32_t d = 0; d < call->head_dim_v; ++d) numerator[d] = 0.0;
  for (int32_t j = 0; j < row->view.prefix + row->view.extend; ++j) {
    if (!ea_visible(&row->view, row->query, j)) continue;
    double v[EA_MAX_HEAD_DIM];
    load_key(row, &call->v_cache, &call->v, call->head_dim_v, j, v);
    const double p = exp(score(row, j) - max);
    const double weight = j < row->view.prefix ? p * call->v_scale : p;
    for (int32_t d = 0; d < call->head_dim_v; ++d) numerator[d] += weight * v[d];
    denominator += p;
  }
  return denominator;
}

static void reference_row(const ea_call *call, int64_t token, int32_t head) {
  ea_row row;
  row.call = call;
  row.seq = sequence_of(call, token);
  row.view = ea_view_of(call, row.seq);
  row.query = (int32_t)(token - call->qo_indptr[row.seq]);
  row.kv_head = head / call->group;
  ea_load_doubles(row.q, call->q.data, call->dtype, token * call->q.token_stride + head * call->q.head_stride,
                  call->head_dim);

  double out[EA_MAX_HEAD_DIM] = {0.0};
  double lse = -INFINITY;
  double max = 0.0;
  if (max_score(&row, &max)) {
    const double sink = call->sinks ? ea_load_double(call->sinks, call->sinks_dtype, head) : -INFINITY;
    max = fmax(max, sink);
    const double denominator = sum_values(&row, max, out) + (call->sinks ? exp(sink - max) : 0.0);
    for (int32_t d = 0; d < call->head_dim_v; ++d) out[d] /= denominator;
    lse = max + log(denominator);
  }

  const int64_t at = token * call->out_token_stride + head * call->out_head_stride;
  for (int32_t d = 0; d < call->head_dim_v; ++d) ea_store_double(call->out, call->dtype, at + d, out[d]);
  if (call->lse) call->lse[token * call->lse_token_stride + head * call->lse_head_stride] = (float)lse;
}

static void run_rows(void *argument, int num_threads) {
  const ea_call *call = argument;
  const int64_t rows = call->num_tokens * call->num_q_heads;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
  for (int64_t row = 0; row < rows; ++row) {
    reference_row(call, row / call->num_q_heads, (int32_t)(row % call->num_q_heads));
  }
}

void ea_reference_run(const ea_call *call, int num_threads) {
  ea_call argument = *call;
  ea_cpu_run_region(run_rows, &argument, num_threads);
}
