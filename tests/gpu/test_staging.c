/* Cached keys and values that a call copies together first (src/cuda/staging.c): whatever room the workspace
 * has for them, and wherever they lie, the result is the same to the bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

/* Small: without the last sequence a block of the grid has one piece of work. Of blocks with many racecheck has said
 * that reads right behind a barrier race with the writes before it. */
enum { MAX_SEQS = 3, PREFIX = 199 + 64 + 0, HEADS = 64, POOL_SLOTS = 320 };
static const int32_t prefixes[MAX_SEQS] = {199, 64, 0};

typedef struct shape {
  int32_t head_dim, head_dim_v, kv_heads;
  bool shared_kv;
} shape;

/* How a pool lies in memory; strides in elements, per token slot and head. */
typedef struct layout {
  int64_t between_pages; /* elements that belong to nobody */
  int64_t offset;        /* of the first element: 1 is not aligned */
  int32_t page_size;
  bool wide_indices;
} layout;

/* A permutation of the slots, so that neither tokens nor pages follow each other. */
static int32_t slot_of(int32_t token) {
  return (token * 97 + 11) % POOL_SLOTS;
}

/* A pool full of NaN but for the prefix's tokens, which it has from `tokens`, [PREFIX, row elements]. */
static char *build_pool(const layout *l, const char *tokens, int64_t row, ea_cache *cache) {
  const size_t element = ea_dtype_size(EA_BF16);
  cache->row_stride = row;
  cache->page_stride = l->page_size * row + l->between_pages;
  const size_t bytes = (size_t)(POOL_SLOTS / l->page_size * cache->page_stride + l->offset) * element;
  char *pool = device_alloc(bytes);
  assert_ok(ea_mem_set(gpu.context, pool, 0xff, bytes, NULL));
  for (int32_t t = 0; t < PREFIX; t++) {
    const int64_t at = slot_of(t) / l->page_size * cache->page_stride + slot_of(t) % l->page_size * row + l->offset;
    assert_ok(ea_mem_copy(gpu.context, pool + (size_t)at * element, tokens + (size_t)(t * row) * element,
                          (size_t)row * element, NULL));
  }
  cache->data = pool + (size_t)l->offset * element;
  return pool;
}

static void *build_indices(bool wide) {
  int32_t narrow[PREFIX];
  int64_t indices[PREFIX];
  for (int32_t t = 0; t < PREFIX; t++) indices[t] = narrow[t] = slot_of(t);
  return wide ? device_copy(indices, sizeof indices) : device_copy(narrow, sizeof narrow);
}

/* The result in host memory, with a workspace of this size. */
static char *run_with(ea_plan *plan, const ea_batch *batch, size_t workspace_bytes, size_t out_bytes) {
  void *workspace = device_alloc(workspace_bytes);
  assert_ok(ea_mem_set(gpu.context, workspace, 0xff, workspace_bytes, NULL));
  assert_ok(ea_mem_set(gpu.context, batch->out.data, 0xff, out_bytes, NULL));
  assert_ok(ea_run(plan, batch, workspace, workspace_bytes, NULL));
  assert_ok(ea_stream_synchronize(gpu.context, NULL));
  device_free(workspace);
  return host_copy(batch->out.data, out_bytes);
}

typedef struct tensors {
  ea_batch batch; /* without pools */
  char *k_tokens, *v_tokens;
  int32_t *indptr;
  size_t out_bytes;
} tensors;

static void make_tensors(const shape *s, int32_t tokens_each, tensors *t) {
  const int32_t num_seqs = small ? MAX_SEQS - 1 : MAX_SEQS;
  const int64_t tokens = (int64_t)num_seqs * tokens_each;
  int32_t indptr[2 * (MAX_SEQS + 1)] = {0};
  int32_t *kv_indptr = indptr + MAX_SEQS + 1;
  for (int32_t b = 0; b < num_seqs; b++) {
    indptr[b + 1] = indptr[b] + tokens_each;
    kv_indptr[b + 1] = kv_indptr[b] + prefixes[b];
  }
  *t = (tensors){.batch = EA_BATCH_INIT, .indptr = device_copy(indptr, sizeof indptr)};
  t->out_bytes = (size_t)(tokens * HEADS * s->head_dim_v) * ea_dtype_size(EA_BF16);
  t->k_tokens = random_tensor(EA_BF16, (int64_t)PREFIX * s->kv_heads * s->head_dim, 4);
  t->v_tokens = random_tensor(EA_BF16, (int64_t)PREFIX * s->kv_heads * s->head_dim_v, 5);
  ea_batch *batch = &t->batch;
  batch->num_seqs = num_seqs;
  batch->num_tokens = tokens;
  batch->num_kv_indices = PREFIX;
  batch->q.data = random_tensor(EA_BF16, tokens * HEADS * s->head_dim, 1);
  batch->k.data = random_tensor(EA_BF16, tokens * s->kv_heads * s->head_dim, 2);
  batch->v.data = s->shared_kv ? NULL : random_tensor(EA_BF16, tokens * s->kv_heads * s->head_dim_v, 3);
  batch->out.data = device_alloc(t->out_bytes);
  batch->qo_indptr = t->indptr;
  batch->kv_indptr = t->indptr + MAX_SEQS + 1;
}

static void free_tensors(tensors *t) {
  void *memory[] = {t->batch.q.data, t->batch.k.data, t->batch.v.data, t->batch.out.data,
                    t->k_tokens,     t->v_tokens,     t->indptr};
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) device_free(memory[i]);
}

/* With room for all, for most, for one token too few to be worth it, and for none. */
static void check_layout(const shape *s, const layout *l, tensors *t, char **expected) {
  ea_problem problem = EA_PROBLEM_INIT;
  problem.num_q_heads = HEADS;
  problem.num_kv_heads = s->kv_heads;
  problem.head_dim = s->head_dim;
  problem.head_dim_v = s->head_dim_v;
  problem.shared_kv = s->shared_kv;
  problem.page_size = l->page_size;
  problem.index_dtype = l->wide_indices ? EA_I64 : EA_I32;
  ea_plan *plan;
  assert_ok(ea_plan_create(gpu.context, &problem, &gpu.plan, &plan));

  ea_batch batch = t->batch;
  batch.num_pages = POOL_SLOTS / l->page_size;
  char *k_pool = build_pool(l, t->k_tokens, (int64_t)s->kv_heads * s->head_dim, &batch.k_cache);
  char *v_pool = s->shared_kv ? NULL : build_pool(l, t->v_tokens, (int64_t)s->kv_heads * s->head_dim_v, &batch.v_cache);
  void *indices = build_indices(l->wide_indices);
  batch.kv_indices = indices;

  size_t all = 0, none = 0;
  ea_batch without = batch;
  without.num_kv_indices = 0;
  assert_ok(ea_workspace_size(plan, &batch, &all));
  assert_ok(ea_workspace_size(plan, &without, &none));
  const size_t token_bytes = (size_t)s->kv_heads * (size_t)(s->head_dim + (s->shared_kv ? 0 : s->head_dim_v)) * 2;
  assert_true(all >= none + PREFIX * token_bytes); /* or nothing is staged, and nothing tested */
  const size_t rooms[] = {all, all - PREFIX / 4 * token_bytes, all - (PREFIX / 2 + 1) * token_bytes, none};
  for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++) {
    char *found = run_with(plan, &batch, rooms[i], t->out_bytes);
    if (!*expected) {
      *expected = found;
      continue;
    }
    if (memcmp(found, *expected, t->out_bytes) != 0) {
      fail_msg("D %d, Dv %d, pages of %d, offset %lld: other bits with a workspace of %zu bytes (all: %zu, none: %zu)",
               s->head_dim, s->head_dim_v, l->page_size, (long long)l->offset, rooms[i], all, none);
    }
    free(found);
  }
  device_free(indices);
  device_free(v_pool);
  device_free(k_pool);
  ea_plan_destroy(plan);
}

static void test_room_changes_no_bit(void **state) {
  (void)state;
  const shape shapes[] = {{512, 512, 1, false}, {576, 512, 1, true}, {320, 320, 2, false}};
  const layout layouts[] = {{0, 0, 1, false}, {64, 0, 1, true}, {40, 0, 16, false}, {0, 1, 4, false}};
  if (strcmp(gpu.info.arch, "sm_90") != 0 || gpu.plan.family == EA_FAMILY_PORTABLE) {
    print_message("         skipped: %s, and only the Hopper kernels for wide heads stage\n", gpu.info.arch);
    skip();
    return;
  }
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    if (small && shapes[i].kv_heads > 1) continue;
    tensors t;
    char *expected = NULL;
    make_tensors(&shapes[i], 64 * shapes[i].kv_heads, &t); /* 4096 rows of each key/value head, in the mean */
    for (size_t k = 0; k < sizeof layouts / sizeof layouts[0]; k++) {
      if (small && k % 2 == 1) continue;
      check_layout(&shapes[i], &layouts[k], &t, &expected);
    }
    free(expected);
    free_tensors(&t);
  }
}

int test_staging(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_room_changes_no_bit)};
  return cmocka_run_group_tests_name("staging", tests, NULL, NULL);
}
