/* See replay_engine.h. */
#include "replay_engine.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "check/random.h"
#include "clock.h"
#include "common/error.h"
#include "common/numeric.h"
#include "cuda/memory.h"

/* Of the free memory, what an automatic pool takes at most. */
static const double device_share = 0.8;
static const double host_share = 0.25;

/* Elements of the table of random numbers that all tensors are filled from. */
enum { TABLE_ELEMENTS = 1 << 20, FILL_BYTES = 1 << 24 };

/* Memory of the device. */
enum { MEM_Q, MEM_K, MEM_V, MEM_OUT, MEM_K_CACHE, MEM_V_CACHE, MEM_QO, MEM_KV, MEM_SLOTS, MEM_WORKSPACE, NUM_MEM };

struct ea_replay {
  ea_replay_config config;
  ea_problem problem;
  ea_plan *plan;
  ea_plan_info info;
  ea_schedule *schedule;
  void *mem[NUM_MEM];
  double mem_bytes[NUM_MEM];
  size_t workspace_bytes;
  int64_t pool_blocks;
  int64_t num_pages;                      /* of problem.page_size slots */
  int32_t *page_at;                       /* [num_pages]: where they lie, or NULL: in order */
  int32_t *qo_indptr, *kv_indptr, *slots; /* of the batch, in host memory */
  int64_t *blocks;                        /* of one sequence */
  bool on_gpu;
  ea_event start, end; /* GPU */
};

/* ------------------------------------------------------------------------------------
 * Sizes
 * ---------------------------------------------------------------------------------- */

static double min_double(double a, double b) {
  return a < b ? a : b;
}

/* MemAvailable of /proc/meminfo; 0 when it cannot be read. */
static double host_available_bytes(void) {
  FILE *file = fopen("/proc/meminfo", "r");
  if (!file) return 0;
  char line[256];
  double kib = 0;
  while (fgets(line, sizeof line, file)) {
    if (!strncmp(line, "MemAvailable:", 13)) kib = strtod(line + 13, NULL);
  }
  fclose(file);
  return kib * 1024;
}

static double available_bytes(const ea_replay *r) {
  if (!r->on_gpu) return host_available_bytes();
  size_t bytes = 0;
  return ea_mem_available(r->config.context, &bytes) == EA_OK ? (double)bytes : 0;
}

/* Bytes of one token in a cache. */
static double cache_token_bytes(const ea_problem *p, int32_t dim) {
  const ea_dtype dtype = p->cache_dtype == EA_DTYPE_NONE ? p->dtype : p->cache_dtype;
  return (double)dim * p->num_kv_heads * (double)ea_dtype_size(dtype);
}

/* What a batch takes, pool apart. In double, where no shape and no trace overflows. */
static void size_batch(ea_replay *r) {
  const ea_problem *p = &r->problem;
  const ea_trace_totals *t = r->config.totals;
  const double tokens = (double)t->max_new_tokens, element = (double)ea_dtype_size(p->dtype);
  r->mem_bytes[MEM_Q] = tokens * p->num_q_heads * p->head_dim * element;
  r->mem_bytes[MEM_K] = tokens * p->num_kv_heads * p->head_dim * element;
  r->mem_bytes[MEM_V] = p->shared_kv ? 0 : tokens * p->num_kv_heads * p->head_dim_v * element;
  r->mem_bytes[MEM_OUT] = tokens * p->num_q_heads * p->head_dim_v * element;
  r->mem_bytes[MEM_QO] = ((double)t->max_sequences + 1) * sizeof(int32_t);
  r->mem_bytes[MEM_KV] = r->mem_bytes[MEM_QO];
  r->mem_bytes[MEM_SLOTS] = (double)t->max_prefix_tokens * sizeof(int32_t);
  r->mem_bytes[MEM_WORKSPACE] = (double)r->workspace_bytes;
}

static ea_status check_batch(const ea_trace_totals *t) {
  if (t->max_new_tokens <= INT32_MAX && t->max_prefix_tokens <= INT32_MAX) return EA_OK;
  return ea_fail(EA_ERR_INVALID,
                 "trace: found a batch of %" PRId64 " new and %" PRId64 " prefix tokens, allowed %d of either",
                 t->max_new_tokens, t->max_prefix_tokens, INT32_MAX);
}

/* Blocks of the pool: what was asked for, or as many as the trace caches and memory allows. */
static ea_status size_pool(ea_replay *r) {
  const ea_problem *p = &r->problem;
  const double k = cache_token_bytes(p, p->head_dim), v = p->shared_kv ? 0 : cache_token_bytes(p, p->head_dim_v);
  const double block_bytes = (k + v) * EA_TRACE_BLOCK_TOKENS, free_bytes = available_bytes(r);
  double batch_bytes = 0;
  for (int i = 0; i < NUM_MEM; i++) batch_bytes += r->mem_bytes[i];

  const int64_t asked =
      r->config.pool_tokens / EA_TRACE_BLOCK_TOKENS + (r->config.pool_tokens % EA_TRACE_BLOCK_TOKENS != 0);
  double blocks = (double)(asked ? asked : r->config.totals->blocks);
  if (!asked) {
    const double share = r->on_gpu ? device_share : host_share;
    blocks = min_double(blocks, (share * free_bytes - batch_bytes) / block_bytes);
  }
  const int32_t most = (INT32_MAX - p->page_size) / EA_TRACE_BLOCK_TOKENS; /* slots are i32 */
  blocks = min_double(blocks, most);
  if (blocks < 1) blocks = 1;
  r->pool_blocks = (int64_t)blocks;

  const int64_t pool_tokens = r->pool_blocks * EA_TRACE_BLOCK_TOKENS;
  r->num_pages = (pool_tokens + p->page_size - 1) / p->page_size;
  r->mem_bytes[MEM_K_CACHE] = (double)(r->num_pages * p->page_size) * k;
  r->mem_bytes[MEM_V_CACHE] = (double)(r->num_pages * p->page_size) * v;
  const double needed = batch_bytes + r->mem_bytes[MEM_K_CACHE] + r->mem_bytes[MEM_V_CACHE];
  if (free_bytes <= 0 || needed <= free_bytes) return EA_OK;
  return ea_fail(EA_ERR_OUT_OF_MEMORY,
                 "memory: found %.1f GiB free, needed %.1f for the largest batch and %.1f for the pool; smaller with "
                 "--budget, --requests or --pool-tokens",
                 free_bytes / (1 << 30), batch_bytes / (1 << 30), (needed - batch_bytes) / (1 << 30));
}

/* ------------------------------------------------------------------------------------
 * Contents
 * ---------------------------------------------------------------------------------- */

/* Pieces of a table of normal numbers, each from anywhere in it: as random as a timing
 * needs, at the speed of a copy. */
static void fill_host(char *to, size_t bytes, const char *table, size_t element, ea_rng *rng) {
  enum { PIECE_ELEMENTS = 4096 };
  const size_t piece = PIECE_ELEMENTS * element;
  for (size_t at = 0; at < bytes; at += piece) {
    const size_t from = ea_rng_below(rng, TABLE_ELEMENTS - PIECE_ELEMENTS) * element;
    memcpy(to + at, table + from, bytes - at < piece ? bytes - at : piece);
  }
}

static ea_status fill(ea_replay *r, int which, const char *table, size_t element, char *chunk, ea_rng *rng) {
  char *to = r->mem[which];
  const size_t bytes = (size_t)r->mem_bytes[which];
  if (!to) return EA_OK; /* no such tensor in this shape */
  if (!r->on_gpu) {
    fill_host(to, bytes, table, element, rng);
    return EA_OK;
  }
  for (size_t at = 0; at < bytes; at += FILL_BYTES) {
    const size_t n = bytes - at < FILL_BYTES ? bytes - at : FILL_BYTES;
    fill_host(chunk, n, table, element, rng);
    const ea_status status = ea_mem_upload(r->config.context, to + at, chunk, n, NULL);
    if (status != EA_OK) return status;
  }
  return EA_OK;
}

static void make_table(char *table, ea_dtype dtype, ea_rng *rng) {
  double normal[256];
  for (int64_t i = 0; i < TABLE_ELEMENTS; i += 256) {
    ea_rng_normal(rng, normal, 256);
    for (int j = 0; j < 256; j++) ea_store_double(table, dtype, i + j, normal[j]);
  }
}

static ea_status fill_all(ea_replay *r) {
  static const struct {
    int which;
    bool cache;
  } tensors[] = {{MEM_Q, false}, {MEM_K, false}, {MEM_V, false}, {MEM_K_CACHE, true}, {MEM_V_CACHE, true}};
  const ea_problem *p = &r->problem;
  ea_rng rng = ea_rng_of(r->config.seed);
  char *table = malloc(TABLE_ELEMENTS * ea_dtype_size(EA_F32)), *chunk = malloc(FILL_BYTES);
  if (!table || !chunk) {
    free(table);
    free(chunk);
    return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for random numbers");
  }
  ea_status status = EA_OK;
  ea_dtype table_dtype = EA_DTYPE_NONE;
  for (size_t i = 0; i < sizeof tensors / sizeof tensors[0] && status == EA_OK; i++) {
    const ea_dtype dtype = tensors[i].cache && p->cache_dtype != EA_DTYPE_NONE ? p->cache_dtype : p->dtype;
    if (dtype != table_dtype) make_table(table, dtype, &rng);
    table_dtype = dtype;
    status = fill(r, tensors[i].which, table, ea_dtype_size(dtype), chunk, &rng);
  }
  free(table);
  free(chunk);
  return status;
}

/* A random order of the pool's pages (Fisher and Yates). */
static ea_status place_pages(ea_replay *r) {
  if (r->config.placement == EA_PLACE_ORDERED) return EA_OK;
  r->page_at = malloc((size_t)r->num_pages * sizeof *r->page_at);
  if (!r->page_at)
    return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for the order of %" PRId64 " pages", r->num_pages);
  ea_rng rng = ea_rng_of(ea_mix(r->config.seed));
  for (int32_t i = 0; i < r->num_pages; i++) {
    const uint32_t j = ea_rng_below(&rng, (uint32_t)i + 1);
    r->page_at[i] = r->page_at[j];
    r->page_at[j] = i;
  }
  return EA_OK;
}

/* ------------------------------------------------------------------------------------
 * Opening and closing
 * ---------------------------------------------------------------------------------- */

/* A plan, and what its workspace takes for the largest batch. */
static ea_status plan_with(const ea_replay *r, const ea_plan_options *options, ea_plan **plan, ea_plan_info *info,
                           size_t *workspace_bytes) {
  ea_status status = ea_plan_create(r->config.context, &r->problem, options, plan);
  if (status != EA_OK) return status;
  *info = (ea_plan_info)EA_PLAN_INFO_INIT;
  status = ea_plan_get_info(*plan, info);
  if (status != EA_OK) return status;
  ea_batch largest = EA_BATCH_INIT;
  largest.num_seqs = r->config.totals->max_sequences;
  largest.num_tokens = r->config.totals->max_new_tokens;
  largest.num_kv_indices = r->config.totals->max_prefix_tokens;
  return ea_workspace_size(*plan, &largest, workspace_bytes);
}

static ea_status make_plan(ea_replay *r) {
  ea_device_info device = EA_DEVICE_INFO_INIT;
  const ea_status status = ea_context_info(r->config.context, &device);
  if (status != EA_OK) return status;
  r->on_gpu = device.device == EA_DEVICE_CUDA;
  return plan_with(r, &r->config.plan_options, &r->plan, &r->info, &r->workspace_bytes);
}

static ea_status allocate(ea_replay *r) {
  const ea_trace_totals *t = r->config.totals;
  for (int i = 0; i < NUM_MEM; i++) {
    const ea_status status = ea_mem_alloc(r->config.context, (size_t)r->mem_bytes[i], &r->mem[i]);
    if (status != EA_OK) return status;
  }
  const size_t sequences = (size_t)t->max_sequences, prefix = (size_t)t->max_prefix_tokens;
  r->qo_indptr = malloc((sequences + 1) * sizeof(int32_t));
  r->kv_indptr = malloc((sequences + 1) * sizeof(int32_t));
  r->slots = malloc((prefix + 1) * sizeof(int32_t));
  r->blocks = malloc((prefix / EA_TRACE_BLOCK_TOKENS + 1) * sizeof(int64_t));
  if (r->qo_indptr && r->kv_indptr && r->slots && r->blocks) return EA_OK;
  return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for the slots of %zu prefix tokens", prefix);
}

static ea_status make_events(ea_replay *r) {
  if (!r->on_gpu) return EA_OK;
  const ea_status status = ea_event_create(r->config.context, &r->start);
  return status == EA_OK ? ea_event_create(r->config.context, &r->end) : status;
}

static ea_status warm_up(ea_replay *r) {
  ea_trace_batch batch;
  double elapsed_ms;
  const ea_status status = ea_replay_restart(r);
  return status == EA_OK ? ea_replay_next(r, &batch, &elapsed_ms) : status;
}

ea_status ea_replay_open(const ea_replay_config *config, ea_replay **replay) {
  *replay = NULL;
  ea_replay *r = calloc(1, sizeof *r);
  if (!r) return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for a replay");
  r->config = *config;
  r->problem = config->problem;
  r->problem.page_size = config->placement == EA_PLACE_PAGES ? config->page_size : 1;
  if (r->problem.head_dim_v == 0) r->problem.head_dim_v = r->problem.head_dim;

  ea_status status = check_batch(config->totals);
  if (status == EA_OK) status = make_plan(r);
  if (status == EA_OK) {
    size_batch(r);
    status = size_pool(r);
  }
  if (status == EA_OK) status = allocate(r);
  if (status == EA_OK) status = place_pages(r);
  if (status == EA_OK) status = fill_all(r);
  if (status == EA_OK) status = make_events(r);
  if (status == EA_OK) status = warm_up(r);
  if (status == EA_OK) status = ea_replay_restart(r);
  if (status != EA_OK) {
    ea_replay_close(r);
    return status;
  }
  *replay = r;
  return EA_OK;
}

ea_status ea_replay_restart(ea_replay *r) {
  ea_schedule_destroy(r->schedule);
  r->schedule = NULL;
  return ea_schedule_create(r->config.trace, r->config.budget, &r->schedule);
}

ea_status ea_replay_set_stages(ea_replay *r, int32_t stages) {
  ea_plan_options options = r->config.plan_options;
  options.stages = stages;
  ea_plan *plan = NULL;
  ea_plan_info info;
  size_t workspace_bytes = 0;
  void *workspace = NULL;
  ea_status status = plan_with(r, &options, &plan, &info, &workspace_bytes);
  if (status == EA_OK) status = ea_mem_alloc(r->config.context, workspace_bytes, &workspace);
  if (status != EA_OK) {
    ea_plan_destroy(plan);
    return status;
  }
  ea_plan_destroy(r->plan);
  ea_mem_free(r->config.context, r->mem[MEM_WORKSPACE]);
  r->plan = plan;
  r->info = info;
  r->mem[MEM_WORKSPACE] = workspace;
  r->workspace_bytes = workspace_bytes;
  return EA_OK;
}

void ea_replay_close(ea_replay *r) {
  if (!r) return;
  if (r->start) ea_event_destroy(r->config.context, r->start);
  if (r->end) ea_event_destroy(r->config.context, r->end);
  for (int i = 0; i < NUM_MEM; i++) ea_mem_free(r->config.context, r->mem[i]);
  free(r->page_at);
  free(r->qo_indptr);
  free(r->kv_indptr);
  free(r->slots);
  free(r->blocks);
  ea_schedule_destroy(r->schedule);
  ea_plan_destroy(r->plan);
  free(r);
}

/* ------------------------------------------------------------------------------------
 * Running
 * ---------------------------------------------------------------------------------- */

/* The slots of a piece's prefix. */
static void write_slots(ea_replay *r, const ea_trace_piece *piece, int32_t *slots) {
  const int32_t page_size = r->problem.page_size;
  ea_schedule_blocks(r->schedule, piece, r->blocks);
  for (int32_t i = 0; i < piece->prefix; i++) {
    const int64_t place = r->blocks[i / EA_TRACE_BLOCK_TOKENS] % r->pool_blocks;
    const int32_t token = (int32_t)(place * EA_TRACE_BLOCK_TOKENS + i % EA_TRACE_BLOCK_TOKENS);
    const int32_t page = token / page_size, row = token % page_size;
    slots[i] = (r->page_at ? r->page_at[page] : page) * page_size + row;
  }
}

static ea_status upload_indices(ea_replay *r, const ea_trace_batch *batch) {
  int32_t new_tokens = 0, prefix_tokens = 0;
  for (int64_t i = 0; i < batch->num_pieces; i++) {
    r->qo_indptr[i] = new_tokens;
    r->kv_indptr[i] = prefix_tokens;
    write_slots(r, &batch->pieces[i], r->slots + prefix_tokens);
    new_tokens += batch->pieces[i].extend;
    prefix_tokens += batch->pieces[i].prefix;
  }
  r->qo_indptr[batch->num_pieces] = new_tokens;
  r->kv_indptr[batch->num_pieces] = prefix_tokens;

  ea_context *context = r->config.context;
  const size_t indptr_bytes = (size_t)(batch->num_pieces + 1) * sizeof(int32_t);
  ea_status status = ea_mem_upload(context, r->mem[MEM_QO], r->qo_indptr, indptr_bytes, NULL);
  if (status == EA_OK) status = ea_mem_upload(context, r->mem[MEM_KV], r->kv_indptr, indptr_bytes, NULL);
  if (status != EA_OK) return status;
  return ea_mem_upload(context, r->mem[MEM_SLOTS], r->slots, (size_t)prefix_tokens * sizeof(int32_t), NULL);
}

static ea_batch call_of(const ea_replay *r, const ea_trace_batch *batch) {
  ea_batch call = EA_BATCH_INIT;
  call.num_seqs = batch->num_pieces;
  call.num_tokens = batch->new_tokens;
  call.num_kv_indices = batch->prefix_tokens;
  call.num_pages = r->num_pages;
  call.q.data = r->mem[MEM_Q];
  call.k.data = r->mem[MEM_K];
  call.out.data = r->mem[MEM_OUT];
  call.k_cache.data = r->mem[MEM_K_CACHE];
  if (!r->problem.shared_kv) {
    call.v.data = r->mem[MEM_V];
    call.v_cache.data = r->mem[MEM_V_CACHE];
  }
  call.qo_indptr = r->mem[MEM_QO];
  call.kv_indptr = r->mem[MEM_KV];
  call.kv_indices = r->mem[MEM_SLOTS];
  if (r->on_gpu) {
    call.qo_indptr_host = r->qo_indptr;
    call.kv_indptr_host = r->kv_indptr;
  }
  return call;
}

static ea_status run_on_cpu(const ea_replay *r, const ea_batch *call, double *elapsed_ms) {
  const double start_ms = ea_clock_ms();
  const ea_status status = ea_run(r->plan, call, r->mem[MEM_WORKSPACE], r->workspace_bytes, NULL);
  *elapsed_ms = ea_clock_ms() - start_ms;
  return status;
}

static ea_status run_on_gpu(const ea_replay *r, const ea_batch *call, double *elapsed_ms) {
  ea_context *context = r->config.context;
  float between_ms = 0;
  ea_status status = ea_event_record(context, r->start, NULL);
  if (status == EA_OK) status = ea_run(r->plan, call, r->mem[MEM_WORKSPACE], r->workspace_bytes, NULL);
  if (status == EA_OK) status = ea_event_record(context, r->end, NULL);
  if (status == EA_OK) status = ea_event_elapsed_ms(context, r->start, r->end, &between_ms);
  *elapsed_ms = between_ms;
  return status;
}

ea_status ea_replay_next(ea_replay *r, ea_trace_batch *batch, double *elapsed_ms) {
  *elapsed_ms = 0;
  ea_status status = ea_schedule_next(r->schedule, batch);
  if (status != EA_OK || batch->num_pieces == 0) return status;
  status = upload_indices(r, batch);
  if (status != EA_OK) return status;
  const ea_batch call = call_of(r, batch);
  return r->on_gpu ? run_on_gpu(r, &call, elapsed_ms) : run_on_cpu(r, &call, elapsed_ms);
}

const ea_plan_info *ea_replay_plan(const ea_replay *replay) {
  return &replay->info;
}

int64_t ea_replay_pool_tokens(const ea_replay *replay) {
  return replay->pool_blocks * EA_TRACE_BLOCK_TOKENS;
}

int64_t ea_replay_pool_bytes(const ea_replay *replay) {
  return (int64_t)(replay->mem_bytes[MEM_K_CACHE] + replay->mem_bytes[MEM_V_CACHE]);
}
