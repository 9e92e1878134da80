/* A small batch in host memory, every buffer of exactly its size (so that a sanitizer sees a
 * step outside): three sequences with 5, 0 and 3 new tokens after prefixes of 6, 4 and 0, in
 * f32, pages of 4 slots. */
#ifndef EA_TESTS_FIXTURE_H
#define EA_TESTS_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "cmocka_all.h"
#include "extattn.h"

enum {
  FIX_SEQS = 3,
  FIX_TOKENS = 8,
  FIX_PREFIX = 10,
  FIX_PAGES = 5,
  FIX_PAGE_SIZE = 4,
  FIX_Q_HEADS = 4,
  FIX_KV_HEADS = 2,
  FIX_DIM = 8,
  FIX_DIM_V = 6,
  FIX_MASK_BYTES = 5 * 11 + 0 + 3 * 3
};

typedef struct fixture {
  ea_problem problem;
  ea_batch batch;
  float *q, *k, *v, *k_cache, *v_cache, *out, *lse, *sinks;
  int32_t *qo_indptr, *kv_indptr, *kv_indices, *window_kv_offsets;
  int64_t *mask_indptr;
  uint8_t *custom_mask;
  unsigned char *out_before, *lse_before; /* what out and lse held */
} fixture;

#define FIX_OUT_BYTES (FIX_TOKENS * FIX_Q_HEADS * FIX_DIM_V * sizeof(float))
#define FIX_LSE_BYTES (FIX_TOKENS * FIX_Q_HEADS * sizeof(float))

static inline void *fix_memory(size_t bytes) {
  void *memory = malloc(bytes);
  assert_non_null(memory);
  return memory;
}

/* Ordinary numbers, no two rows alike. */
static inline float *fix_floats(int n, unsigned seed) {
  float *x = fix_memory((size_t)n * sizeof *x);
  for (int i = 0; i < n; ++i) {
    seed = seed * 1664525U + 1013904223U;
    x[i] = (float)(int32_t)seed / 1073741824.0F; /* -2 .. 2 */
  }
  return x;
}

static inline void *fix_copy(const void *from, size_t bytes) {
  return memcpy(fix_memory(bytes), from, bytes);
}

static inline fixture fixture_make(void) {
  static const int32_t qo_indptr[FIX_SEQS + 1] = {0, 5, 5, 8};
  static const int32_t kv_indptr[FIX_SEQS + 1] = {0, 6, 10, 10};
  static const int32_t kv_indices[FIX_PREFIX] = {19, 0, 7, 3, 12, 5, 11, 2, 8, 16};
  static const int64_t mask_indptr[FIX_SEQS] = {0, 55, 55};
  static const int32_t window_kv_offsets[FIX_SEQS] = {0, 0, 0};
  const int slots = FIX_PAGES * FIX_PAGE_SIZE;

  fixture f;
  memset(&f, 0, sizeof f);
  f.problem = (ea_problem)EA_PROBLEM_INIT;
  f.problem.dtype = EA_F32;
  f.problem.num_q_heads = FIX_Q_HEADS;
  f.problem.num_kv_heads = FIX_KV_HEADS;
  f.problem.head_dim = FIX_DIM;
  f.problem.head_dim_v = FIX_DIM_V;
  f.problem.page_size = FIX_PAGE_SIZE;

  f.q = fix_floats(FIX_TOKENS * FIX_Q_HEADS * FIX_DIM, 1);
  f.k = fix_floats(FIX_TOKENS * FIX_KV_HEADS * FIX_DIM, 2);
  f.v = fix_floats(FIX_TOKENS * FIX_KV_HEADS * FIX_DIM_V, 3);
  f.k_cache = fix_floats(slots * FIX_KV_HEADS * FIX_DIM, 4);
  f.v_cache = fix_floats(slots * FIX_KV_HEADS * FIX_DIM_V, 5);
  f.sinks = fix_floats(FIX_Q_HEADS, 6);
  f.out = fix_memory(FIX_OUT_BYTES);
  f.lse = fix_memory(FIX_LSE_BYTES);
  memset(f.out, 0xa5, FIX_OUT_BYTES);
  memset(f.lse, 0xa5, FIX_LSE_BYTES);
  f.out_before = fix_copy(f.out, FIX_OUT_BYTES);
  f.lse_before = fix_copy(f.lse, FIX_LSE_BYTES);
  f.qo_indptr = fix_copy(qo_indptr, sizeof qo_indptr);
  f.kv_indptr = fix_copy(kv_indptr, sizeof kv_indptr);
  f.kv_indices = fix_copy(kv_indices, sizeof kv_indices);
  f.mask_indptr = fix_copy(mask_indptr, sizeof mask_indptr);
  f.window_kv_offsets = fix_copy(window_kv_offsets, sizeof window_kv_offsets);
  f.custom_mask = fix_memory(FIX_MASK_BYTES);
  for (int i = 0; i < FIX_MASK_BYTES; ++i) f.custom_mask[i] = (uint8_t)(i % 3 == 0);

  f.batch = (ea_batch)EA_BATCH_INIT;
  f.batch.num_seqs = FIX_SEQS;
  f.batch.num_tokens = FIX_TOKENS;
  f.batch.num_kv_indices = FIX_PREFIX;
  f.batch.num_pages = FIX_PAGES;
  f.batch.q.data = f.q;
  f.batch.k.data = f.k;
  f.batch.v.data = f.v;
  f.batch.k_cache.data = f.k_cache;
  f.batch.v_cache.data = f.v_cache;
  f.batch.out.data = f.out;
  f.batch.lse = f.lse;
  f.batch.qo_indptr = f.qo_indptr;
  f.batch.kv_indptr = f.kv_indptr;
  f.batch.kv_indices = f.kv_indices;
  return f;
}

static inline void fixture_use_mask(fixture *f) {
  f->problem.has_custom_mask = true;
  f->batch.custom_mask = f->custom_mask;
  f->batch.custom_mask_bytes = FIX_MASK_BYTES;
  f->batch.mask_indptr = f->mask_indptr;
}

static inline void fixture_use_sinks(fixture *f) {
  f->problem.has_sinks = true;
  f->batch.sinks = f->sinks;
}

static inline void fixture_free(fixture *f) {
  void *const all[] = {f->q,          f->k,          f->v,           f->k_cache,          f->v_cache,    f->out,
                       f->lse,        f->sinks,      f->qo_indptr,   f->kv_indptr,        f->kv_indices, f->mask_indptr,
                       f->out_before, f->lse_before, f->custom_mask, f->window_kv_offsets};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) free(all[i]);
}

#endif
