/* The vectorised CPU backend, instruction set by instruction set: accuracy at head dimensions
 * that fit no vector (promise 4), bits that do not depend on threads, neighbours or where the
 * prefix ends (promise 3), and special values that stay where they are seen (promise 2).
 *
 * Built twice: with the library as it is, where sets that the processor lacks are skipped, and
 * as test_cpu_emulated, whose AVX-512 and AMX kernels run on emulate_avx512.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/cmocka_all.h"
#include "check/random.h"
#include "common/numeric.h"
#include "cpu/cpu.h"
#include "extattn.h"

enum { MAX_SEQS = 4, MAX_THREADS = 5 };

/* Sequences of tokens 0 .. length-1, of which the first `prefix` are cached. */
typedef struct scene {
  ea_problem problem;
  int32_t num_seqs;
  int32_t ids[MAX_SEQS]; /* a token's numbers depend on these, not on the place in the batch */
  int32_t length[MAX_SEQS];
  int32_t prefix[MAX_SEQS];
  int32_t slot_step;       /* a prime: how far apart the slots of neighbouring tokens are */
  double poison;           /* not 0: in the first element of ... */
  int32_t poison_token;    /* ... this token's ... */
  bool poison_k, poison_v; /* ... keys, values, of all K/V heads */
} scene;

/* What a scene looks like in memory, and what came out. */
typedef struct stage {
  ea_batch batch;
  int32_t qo_indptr[MAX_SEQS + 1];
  int32_t kv_indptr[MAX_SEQS + 1];
  int32_t *slots;
} stage;

static scene scene_of(ea_dtype dtype, int32_t head_dim, int32_t head_dim_v, int32_t q_heads, int32_t kv_heads) {
  scene s = {.problem = EA_PROBLEM_INIT, .num_seqs = 1, .ids = {1}, .length = {150}, .prefix = {70}, .slot_step = 7};
  s.problem.dtype = dtype;
  s.problem.head_dim = head_dim;
  s.problem.head_dim_v = head_dim_v;
  s.problem.num_q_heads = q_heads;
  s.problem.num_kv_heads = kv_heads;
  return s;
}

static void *allocate(size_t bytes) {
  void *memory = aligned_alloc(256, (bytes + 256) / 256 * 256);
  assert_non_null(memory);
  return memory;
}

enum part { PART_Q = 1, PART_K, PART_V };

/* The numbers of one token, rounded to `round_to` and stored as `dtype`. */
static void put_token(const scene *s, void *to, int64_t at, ea_dtype dtype, ea_dtype round_to, enum part part,
                      int32_t seq, int32_t token, int32_t heads, int32_t dim) {
  double *x = allocate((size_t)(heads * dim + 1) * sizeof *x);
  ea_rng rng = ea_rng_of(ea_mix3((uint64_t)s->ids[seq], (uint64_t)token, part));
  ea_rng_normal(&rng, x, heads * dim);
  const bool poisoned = s->poison != 0 && token == s->poison_token &&
                        ((part == PART_K && s->poison_k) || (part == PART_V && s->poison_v));
  for (int32_t i = 0; i < heads * dim; ++i) {
    uint32_t rounded[1];
    if (poisoned && i % dim == 0) x[i] = s->poison;
    ea_store_double(rounded, round_to, 0, x[i]);
    ea_store_double(to, dtype, at + i, ea_load_double(rounded, round_to, 0));
  }
  free(x);
}

/* Lays a scene out; `dtype` is its own, or EA_F32 for the exact answer. */
static void set_stage(const scene *s, ea_dtype dtype, stage *to) {
  const ea_problem *p = &s->problem;
  const int32_t dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim;
  const ea_dtype cache_round = p->cache_dtype ? p->cache_dtype : p->dtype;
  const ea_dtype cache = p->cache_dtype ? p->cache_dtype : dtype;
  memset(to, 0, sizeof *to);
  for (int32_t b = 0; b < s->num_seqs; ++b) {
    to->qo_indptr[b + 1] = to->qo_indptr[b] + s->length[b] - s->prefix[b];
    to->kv_indptr[b + 1] = to->kv_indptr[b] + s->prefix[b];
  }
  const int32_t tokens = to->qo_indptr[s->num_seqs];
  const int32_t slots = to->kv_indptr[s->num_seqs];
  int32_t pool = slots + 16;
  while (pool % s->slot_step == 0) ++pool; /* or slots would coincide */
  const size_t kv_heads = (size_t)p->num_kv_heads;
  ea_batch *b = &to->batch;
  *b = (ea_batch)EA_BATCH_INIT;
  b->num_seqs = s->num_seqs;
  b->num_tokens = tokens;
  b->num_kv_indices = slots;
  b->num_pages = pool;
  b->q.data = allocate((size_t)tokens * (size_t)(p->num_q_heads * p->head_dim) * 4);
  b->k.data = allocate((size_t)tokens * kv_heads * (size_t)p->head_dim * 4);
  b->v.data = allocate((size_t)tokens * kv_heads * (size_t)dim_v * 4);
  b->out.data = allocate((size_t)tokens * (size_t)(p->num_q_heads * dim_v) * 4);
  b->lse = allocate((size_t)(tokens * p->num_q_heads) * 4);
  void *k_pool = allocate((size_t)pool * kv_heads * (size_t)p->head_dim * 4);
  void *v_pool = allocate((size_t)pool * kv_heads * (size_t)dim_v * 4);
  b->k_cache.data = k_pool;
  b->v_cache.data = v_pool;
  b->qo_indptr = to->qo_indptr;
  b->kv_indptr = to->kv_indptr;
  b->kv_indices = to->slots = allocate((size_t)pool * 4);
  memset(k_pool, 0xff, (size_t)pool * kv_heads * (size_t)p->head_dim * 4); /* NaN in every type */
  memset(v_pool, 0xff, (size_t)pool * kv_heads * (size_t)dim_v * 4);
  for (int32_t seq = 0; seq < s->num_seqs; ++seq) {
    for (int32_t t = 0; t < s->length[seq]; ++t) {
      const bool cached = t < s->prefix[seq];
      const int32_t index = to->kv_indptr[seq] + t;
      const int32_t slot = cached ? (int32_t)((int64_t)index * s->slot_step % pool) : 0;
      const int32_t row = cached ? slot : to->qo_indptr[seq] + t - s->prefix[seq];
      const int64_t at_k = (int64_t)row * p->num_kv_heads * p->head_dim;
      const int64_t at_v = (int64_t)row * p->num_kv_heads * dim_v;
      if (cached) to->slots[index] = slot;
      put_token(s, cached ? k_pool : b->k.data, at_k, cached ? cache : dtype, cached ? cache_round : p->dtype, PART_K,
                seq, t, p->num_kv_heads, p->head_dim);
      put_token(s, cached ? v_pool : b->v.data, at_v, cached ? cache : dtype, cached ? cache_round : p->dtype, PART_V,
                seq, t, p->num_kv_heads, dim_v);
      if (!cached) {
        put_token(s, b->q.data, (int64_t)row * p->num_q_heads * p->head_dim, dtype, p->dtype, PART_Q, seq, t,
                  p->num_q_heads, p->head_dim);
      }
    }
  }
}

static void strike_stage(stage *st) {
  free(st->batch.q.data);
  free(st->batch.k.data);
  free(st->batch.v.data);
  free(st->batch.out.data);
  free(st->batch.lse);
  free((void *)(uintptr_t)st->batch.k_cache.data);
  free((void *)(uintptr_t)st->batch.v_cache.data);
  free(st->slots);
}

static void perform(const scene *s, stage *st, ea_dtype dtype, ea_family family, ea_isa isa, int32_t threads) {
  ea_context_options device = EA_CONTEXT_OPTIONS_INIT;
  ea_plan_options options = EA_PLAN_OPTIONS_INIT;
  ea_problem problem = s->problem;
  ea_context *context;
  ea_plan *plan;
  size_t bytes;
  device.isa = isa;
  device.num_threads = threads;
  options.family = family;
  problem.dtype = dtype;
  assert_int_equal(ea_context_create(&device, &context), EA_OK);
  assert_int_equal(ea_plan_create(context, &problem, &options, &plan), EA_OK);
  assert_int_equal(ea_workspace_size(plan, &st->batch, &bytes), EA_OK);
  void *workspace = allocate(bytes);
  memset(workspace, 0xff, bytes); /* nothing may be taken for granted in it */
  const ea_status status = ea_run(plan, &st->batch, workspace, bytes, NULL);
  if (status) print_error("%s\n", ea_last_error());
  assert_int_equal(status, EA_OK);
  free(workspace);
  ea_plan_destroy(plan);
  ea_context_destroy(context);
}

/* A scene performed by the backend. */
static stage run_scene(const scene *s, ea_isa isa, int32_t threads) {
  stage st;
  set_stage(s, s->problem.dtype, &st);
  perform(s, &st, s->problem.dtype, EA_FAMILY_CPU, isa, threads);
  return st;
}

/* ---- accuracy -------------------------------------------------------------------------- */

static double bound_of(ea_dtype dtype) {
  return dtype == EA_BF16 ? 3e-3 : dtype == EA_F16 ? 5e-4 : 1e-5;
}

static void check_accuracy(const scene *s, ea_isa isa) {
  const int32_t dim_v = s->problem.head_dim_v ? s->problem.head_dim_v : s->problem.head_dim;
  stage ours = run_scene(s, isa, 2);
  stage exact;
  set_stage(s, EA_F32, &exact);
  perform(s, &exact, EA_F32, EA_FAMILY_REFERENCE, EA_ISA_AUTO, 2);
  const int64_t rows = ours.batch.num_tokens * s->problem.num_q_heads;
  double up = 0.0;
  double down = 0.0;
  double lse = 0.0;
  for (int64_t i = 0; i < rows * dim_v; ++i) {
    const double x = ea_load_double(ours.batch.out.data, s->problem.dtype, i);
    const double y = ((const float *)exact.batch.out.data)[i];
    up += (x - y) * (x - y);
    down += y * y;
  }
  for (int64_t r = 0; r < rows; ++r) lse = fmax(lse, fabs((double)ours.batch.lse[r] - (double)exact.batch.lse[r]));
  const double error = sqrt(up / down);
  const bool good = error <= bound_of(s->problem.dtype) && lse <= 2e-5;
  if (!good) {
    print_error("%s %s, cache %s, D %d/%d, heads %d/%d: error %.2e, allowed %.0e; lse %.2e, allowed 2e-5\n",
                ea_isa_name(isa), ea_dtype_name(s->problem.dtype), ea_dtype_name(s->problem.cache_dtype),
                s->problem.head_dim, dim_v, s->problem.num_q_heads, s->problem.num_kv_heads, error,
                bound_of(s->problem.dtype), lse);
  }
  strike_stage(&ours);
  strike_stage(&exact);
  assert_true(good);
}

static void test_accuracy(void **state) {
  const ea_isa isa = *(const ea_isa *)*state;
  static const int32_t dims[][2] = {{13, 13},   {64, 64},   {80, 80},   {96, 96},   {128, 128}, {200, 200},
                                    {256, 256}, {192, 128}, {576, 512}, {576, 576}, {33, 1},    {1, 33}};
  static const int32_t heads[][2] = {{3, 1}, {5, 1}, {2, 2}, {14, 2}};
  static const ea_dtype dtypes[] = {EA_BF16, EA_F16, EA_F32};
  for (size_t d = 0; d < sizeof dims / sizeof dims[0]; ++d) {
    for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; ++t) {
      const int32_t *h = heads[(d + t) % 4];
      scene s = scene_of(dtypes[t], dims[d][0], dims[d][1], h[0], h[1]);
      check_accuracy(&s, isa);
    }
  }
}

/* The options that change the arithmetic, each alone. */
static void test_features(void **state) {
  const ea_isa isa = *(const ea_isa *)*state;
  for (int t = 0; t < 3; ++t) {
    const ea_dtype dtype = (ea_dtype[]){EA_BF16, EA_F16, EA_F32}[t];
    for (int feature = 0; feature < 7; ++feature) {
      scene s = scene_of(dtype, 40, 24, 3, 1);
      if (feature == 0) s.problem.cache_dtype = EA_E4M3;
      if (feature == 1) s.problem.cache_dtype = EA_E5M2;
      if (feature == 2) s.problem.k_scale = 0.7;
      if (feature == 3) s.problem.v_scale = 1.3;
      if (feature == 4) s.problem.logit_cap = 2.0;
      if (feature == 5) s.problem.xai_temperature_len = 90;
      if (feature == 6) s.problem.window_left = 37;
      check_accuracy(&s, isa);
    }
  }
}

/* ---- bits ------------------------------------------------------------------------------ */

/* Rows of token `token` of sequence `seq_a` in a and `seq_b` in b. */
static void assert_same_rows(const scene *a, const stage *sa, int32_t seq_a, const scene *b, const stage *sb,
                             int32_t seq_b, int32_t token) {
  const int32_t dim_v = a->problem.head_dim_v ? a->problem.head_dim_v : a->problem.head_dim;
  const int64_t row_a = sa->qo_indptr[seq_a] + token - a->prefix[seq_a];
  const int64_t row_b = sb->qo_indptr[seq_b] + token - b->prefix[seq_b];
  const size_t bytes = (size_t)(a->problem.num_q_heads * dim_v) * ea_dtype_size(a->problem.dtype);
  const size_t heads = (size_t)a->problem.num_q_heads;
  assert_memory_equal((const uint8_t *)sa->batch.out.data + (size_t)row_a * bytes,
                      (const uint8_t *)sb->batch.out.data + (size_t)row_b * bytes, bytes);
  assert_memory_equal(sa->batch.lse + (size_t)row_a * heads, sb->batch.lse + (size_t)row_b * heads, heads * 4);
}

static void test_threads(void **state) {
  const ea_isa isa = *(const ea_isa *)*state;
  scene s = scene_of(EA_BF16, 72, 40, 6, 2);
  s.num_seqs = 3;
  memcpy(s.ids, (int32_t[]){1, 2, 3}, 12);
  memcpy(s.length, (int32_t[]){150, 20, 301}, 12);
  memcpy(s.prefix, (int32_t[]){70, 0, 290}, 12);
  stage one = run_scene(&s, isa, 1);
  for (int32_t threads = 2; threads <= MAX_THREADS; ++threads) {
    stage more = run_scene(&s, isa, threads);
    for (int32_t b = 0; b < s.num_seqs; ++b) {
      for (int32_t t = s.prefix[b]; t < s.length[b]; ++t) assert_same_rows(&s, &one, b, &s, &more, b, t);
    }
    strike_stage(&more);
  }
  strike_stage(&one);
}

/* The same tokens cut elsewhere, in other slots, with other neighbours. */
static void test_cuts(void **state) {
  const ea_isa isa = *(const ea_isa *)*state;
  static const int32_t cuts[] = {0, 1, 37, 64, 129, 199};
  for (int t = 0; t < 3; ++t) {
    for (int32_t window = -1; window < 100; window += 46) {
      scene whole = scene_of((ea_dtype[]){EA_BF16, EA_F16, EA_F32}[t], 40, 24, 5, 1);
      whole.problem.window_left = window;
      whole.length[0] = 200;
      whole.prefix[0] = 0;
      stage all = run_scene(&whole, isa, 2);
      for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; ++c) {
        scene cut = whole;
        cut.num_seqs = 2;
        memcpy(cut.ids, (int32_t[]){9, 1}, 8);
        memcpy(cut.length, (int32_t[]){30 + (int32_t)c, 200}, 8);
        memcpy(cut.prefix, (int32_t[]){(int32_t)c, cuts[c]}, 8);
        cut.slot_step = (int32_t[]){5, 7, 11, 13, 17, 19}[c];
        stage part = run_scene(&cut, isa, 2);
        for (int32_t token = cuts[c]; token < 200; ++token) assert_same_rows(&whole, &all, 0, &cut, &part, 1, token);
        strike_stage(&part);
      }
      strike_stage(&all);
    }
  }
}

/* ---- special values -------------------------------------------------------------------- */

static bool row_finite(const scene *s, const stage *st, int32_t token) {
  const int32_t count = s->problem.num_q_heads * s->problem.head_dim;
  const int64_t row = st->qo_indptr[0] + token - s->prefix[0];
  for (int32_t i = 0; i < count; ++i) {
    if (!isfinite(ea_load_double(st->batch.out.data, s->problem.dtype, row * count + i))) return false;
  }
  return true;
}

/* A NaN or Inf in one key or value: rows that do not see it keep their bits, the others get it. */
static void test_special_values(void **state) {
  const ea_isa isa = *(const ea_isa *)*state;
  static const double values[] = {NAN, INFINITY, -INFINITY};
  for (int t = 0; t < 3; ++t) {
    for (int v = 0; v < 3; ++v) {
      for (int part = 0; part < 2; ++part) {
        for (int32_t token = 60; token < 150; token += 41) {
          scene clean = scene_of((ea_dtype[]){EA_BF16, EA_F16, EA_F32}[t], 24, 24, 3, 1);
          clean.problem.window_left = 25;
          scene dirty = clean;
          dirty.poison = values[v];
          dirty.poison_token = token;
          dirty.poison_k = part == 0;
          dirty.poison_v = part == 1;
          stage before = run_scene(&clean, isa, 1);
          stage after = run_scene(&dirty, isa, 1);
          for (int32_t i = clean.prefix[0]; i < clean.length[0]; ++i) {
            const bool sees = token <= i && i <= token + 25;
            if (!sees) assert_same_rows(&clean, &before, 0, &dirty, &after, 0, i);
            /* an infinite key may give a score of -Inf, which is a weight of 0 */
            if (sees && (part == 1 || isnan(values[v]))) assert_false(row_finite(&dirty, &after, i));
          }
          strike_stage(&before);
          strike_stage(&after);
        }
      }
    }
  }
}

/* ---- what the plan says ----------------------------------------------------------------- */

static void test_kernel_names(void **state) {
  const ea_isa isa = *(const ea_isa *)*state;
  static const char *const names[][3] = {
      [EA_ISA_PORTABLE] = {"portable_f32", "portable_f32", "portable_f32"},
      [EA_ISA_AVX2] = {"avx2_f32", "avx2_f32", "avx2_f32"},
      [EA_ISA_AVX512] = {"avx512_f32", "avx512_f32", "avx512_f32"},
      [EA_ISA_AVX512_BF16] = {"avx512_f32", "avx512_f32", "avx512_bf16"},
      [EA_ISA_AMX] = {"avx512_f32", "avx512_f32", "amx_bf16"},
  };
  for (int dtype = EA_F32; dtype <= EA_BF16; ++dtype) {
    scene s = scene_of((ea_dtype)dtype, 64, 64, 1, 1);
    assert_string_equal(ea_cpu_shape_of(&s.problem, isa).kernel, names[isa][dtype - EA_F32]);
  }
}

int main(void) {
  static const struct {
    const char *name;
    CMUnitTestFunction run;
  } checks[] = {
      {"accuracy", test_accuracy},
      {"features", test_features},
      {"threads", test_threads},
      {"cuts", test_cuts},
      {"special values", test_special_values},
      {"kernel names", test_kernel_names},
  };
  enum { CHECKS = sizeof checks / sizeof checks[0] };
  static ea_isa isas[EA_ISA_AMX + 1];
  static char names[(EA_ISA_AMX + 1) * CHECKS][64];
  static struct CMUnitTest tests[(EA_ISA_AMX + 1) * CHECKS];
  size_t count = 0;
#if defined(__x86_64__)
  if (EA_FIRST_ISA > EA_ISA_AVX2 && !__builtin_cpu_supports("avx2")) {
    puts("skipped: the emulation needs AVX2");
    return 77;
  }
#endif
  for (int isa = EA_FIRST_ISA; isa <= EA_ISA_AMX; ++isa) {
    isas[isa] = (ea_isa)isa;
    if (!ea_cpu_has_isa((ea_isa)isa)) {
      print_message("skipped: %s: this processor does not have it\n", ea_isa_name((ea_isa)isa));
      continue;
    }
    for (size_t c = 0; c < CHECKS; ++c, ++count) {
      (void)snprintf(names[count], sizeof names[count], "%s %s", ea_isa_name((ea_isa)isa), checks[c].name);
      tests[count] = (struct CMUnitTest){names[count], checks[c].run, NULL, NULL, &isas[isa]};
    }
  }
  return _cmocka_run_group_tests("cpu", tests, count, NULL, NULL);
}
