/* The result of a replay as JSON: what `extattn plot` draws and what benchmarks keep. */
#include "replay.h"

static json_t *trace_json(const ea_replay_result *r) {
  return json_pack("{s:s, s:I, s:I, s:I}", "path", r->trace_path, "requests", (json_int_t)r->num_requests,
                   "prompt_tokens", (json_int_t)r->prompt_tokens, "budget", (json_int_t)r->config.budget);
}

static json_t *counts_json(const ea_trace_totals *t) {
  return json_pack("{s:I, s:I, s:I, s:I, s:I}", "batches", (json_int_t)t->batches, "sequences",
                   (json_int_t)t->sequences, "new_tokens", (json_int_t)t->new_tokens, "prefix_tokens",
                   (json_int_t)t->prefix_tokens, "visible_pairs", (json_int_t)t->visible_pairs);
}

static json_t *device_json(const ea_device_info *d) {
  if (d->device == EA_DEVICE_CPU) {
    return json_pack("{s:s, s:s, s:s, s:i}", "type", "cpu", "name", d->name, "arch", d->arch, "threads",
                     d->num_threads);
  }
  return json_pack("{s:s, s:s, s:s, s:i, s:i}", "type", "cuda", "name", d->name, "arch", d->arch, "multiprocessors",
                   d->multiprocessors, "driver_version", d->driver_version);
}

static json_t *shape_json(const ea_problem *p) {
  const ea_dtype cache_dtype = p->cache_dtype == EA_DTYPE_NONE ? p->dtype : p->cache_dtype;
  return json_pack("{s:i, s:i, s:i, s:i, s:s, s:s, s:b}", "num_q_heads", p->num_q_heads, "num_kv_heads",
                   p->num_kv_heads, "head_dim", p->head_dim, "head_dim_v", p->head_dim_v ? p->head_dim_v : p->head_dim,
                   "dtype", ea_dtype_name(p->dtype), "cache_dtype", ea_dtype_name(cache_dtype), "shared_kv",
                   p->shared_kv);
}

static json_t *plan_json(const ea_plan_info *plan) {
  return json_pack("{s:s, s:s, s:i, s:i, s:i, s:s}", "family", ea_family_name(plan->family), "kernel", plan->kernel,
                   "tile_m", plan->tile_m, "tile_n", plan->tile_n, "stages", plan->stages, "reason", plan->reason);
}

static json_t *pool_json(const ea_replay_result *r) {
  static const char *const orders[] = {"ordered", "shuffled", "pages"};
  const bool pages = r->config.placement == EA_PLACE_PAGES;
  return json_pack("{s:s, s:i, s:I, s:I, s:I}", "slots", orders[r->config.placement], "page_size",
                   pages ? r->config.page_size : 1, "tokens", (json_int_t)r->pool_tokens, "bytes",
                   (json_int_t)r->pool_bytes, "seed", (json_int_t)r->config.seed);
}

static json_t *totals_json(const ea_replay_result *r) {
  const double seconds = r->elapsed_ms / 1e3;
  return json_pack("{s:f, s:f, s:f}", "elapsed_ms", r->elapsed_ms, "new_tokens_per_s",
                   seconds > 0 ? (double)r->totals.new_tokens / seconds : 0.0, "tflops",
                   ea_replay_tflops(&r->config.problem, r->totals.visible_pairs, r->elapsed_ms));
}

static json_t *batches_json(const ea_replay_result *r) {
  json_t *list = json_array();
  for (int64_t i = 0; i < r->num_records; i++) {
    const ea_replay_record *b = &r->records[i];
    json_t *batch = json_pack("{s:I, s:I, s:I, s:I, s:f, s:f}", "sequences", (json_int_t)b->sequences, "new_tokens",
                              (json_int_t)b->new_tokens, "prefix_tokens", (json_int_t)b->prefix_tokens, "visible_pairs",
                              (json_int_t)b->visible_pairs, "elapsed_ms", b->elapsed_ms, "tflops",
                              ea_replay_tflops(&r->config.problem, b->visible_pairs, b->elapsed_ms));
    json_array_append_new(list, batch);
  }
  return list;
}

json_t *ea_replay_json(const ea_replay_result *r) {
  json_t *root = json_pack("{s:s, s:s, s:o, s:o, s:o}", "command", "replay", "version", ea_version(), "date",
                           ea_json_date(), "trace", trace_json(r), "counts", counts_json(&r->totals));
  if (!root || r->num_records == 0) return root;
  json_object_set_new(root, "device", device_json(&r->device));
  json_object_set_new(root, "shape", shape_json(&r->config.problem));
  json_object_set_new(root, "plan", plan_json(&r->plan));
  json_object_set_new(root, "pool", pool_json(r));
  json_object_set_new(root, "totals", totals_json(r));
  json_object_set_new(root, "batches", batches_json(r));
  return root;
}
