/* Measures the CPU backend through the public API: causal attention of one sequence, its prefix
 * (if any) in shuffled slots, and the peaks of the processor's multiply-add instructions.
 *
 *     bench_cpu [--shapes bf16:64:8/8:2048,bf16:128:32/8:8192+512] [--threads 1,16] [--isa auto]
 *               [--repeats 9] [--commit HASH] [--json FILE]
 *
 * GFLOP/s count 4 * D for each visible pair and query head. */
#include <getopt.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/numeric.h"
#include "cpu/cpu.h"
#include "extattn.h"
#include "peaks.h"

enum { MAX_LIST = 64, MAX_REPEATS = 101 };

typedef struct shape {
  ea_dtype dtype;
  int32_t head_dim, num_q_heads, num_kv_heads, tokens, prefix;
} shape;

typedef struct options {
  shape shapes[MAX_LIST];
  int num_shapes;
  int threads[MAX_LIST];
  int num_threads;
  ea_isa isa;
  int repeats;
  const char *commit;
  const char *json;
} options;

typedef struct result {
  shape shape;
  int threads;
  char kernel[64];
  double median_ms, min_ms, max_ms, gflops;
} result;

typedef struct peak {
  const char *name;
  ea_isa isa;
  peak_loop *loop;
} peak;

static const peak peaks[] = {
    {"fma_avx2", EA_ISA_AVX2, peak_avx2},
    {"fma_avx512", EA_ISA_AVX512, peak_avx512},
    {"vdpbf16ps", EA_ISA_AVX512_BF16, peak_avx512_bf16},
    {"tdpbf16ps", EA_ISA_AMX, peak_amx},
};
enum { NUM_PEAKS = sizeof peaks / sizeof peaks[0] };

static void fail(const char *what, const char *found) {
  fprintf(stderr, "bench_cpu: %s: found %s\n", what, found);
  exit(2);
}

static void check(ea_status status) {
  if (status == EA_OK) return;
  fprintf(stderr, "bench_cpu: %s\n", ea_last_error());
  exit(1);
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a;
  const double y = *(const double *)b;
  return (x > y) - (x < y);
}

/* ---- arguments ----------------------------------------------------------------------- */

static ea_dtype dtype_named(const char *name) {
  for (int dtype = EA_F32; dtype <= EA_BF16; ++dtype) {
    if (strcmp(name, ea_dtype_name((ea_dtype)dtype)) == 0) return (ea_dtype)dtype;
  }
  fail("--shapes: allowed types f32, f16, bf16", name);
  return EA_DTYPE_NONE;
}

static ea_isa isa_named(const char *name) {
  for (int isa = EA_ISA_AUTO; isa <= EA_ISA_AMX; ++isa) {
    if (strcmp(name, ea_isa_name((ea_isa)isa)) == 0) return (ea_isa)isa;
  }
  fail("--isa: allowed auto, portable, avx2, avx512, avx512_bf16, amx", name);
  return EA_ISA_AUTO;
}

/* A number from 0 on at *at, which then points past it and the mark that must follow. */
static int32_t take_number(const char **at, char mark) {
  char *end;
  const long n = strtol(*at, &end, 10);
  if (end == *at || n < 0 || n > INT32_MAX || *end != mark) fail("arguments: a number was expected", *at);
  *at = mark ? end + 1 : end;
  return (int32_t)n;
}

/* TYPE:DIM:HEADS/KV_HEADS:TOKENS or ...:PREFIX+TOKENS */
static shape parse_shape(const char *text) {
  shape s;
  const char *colon = strchr(text, ':');
  char dtype[8] = "";
  if (!colon || colon - text >= (long)sizeof dtype) fail("--shapes: allowed TYPE:DIM:HEADS/KV_HEADS:TOKENS", text);
  memcpy(dtype, text, (size_t)(colon - text));
  const char *at = colon + 1;
  s.dtype = dtype_named(dtype);
  s.head_dim = take_number(&at, ':');
  s.num_q_heads = take_number(&at, '/');
  s.num_kv_heads = take_number(&at, ':');
  s.prefix = strchr(at, '+') ? take_number(&at, '+') : 0;
  s.tokens = take_number(&at, 0);
  return s;
}

static void parse_shapes(char *text, options *to) {
  to->num_shapes = 0;
  for (char *item = strtok(text, ","); item && to->num_shapes < MAX_LIST; item = strtok(NULL, ",")) {
    to->shapes[to->num_shapes++] = parse_shape(item);
  }
}

static void parse_threads(char *text, options *to) {
  to->num_threads = 0;
  for (char *item = strtok(text, ","); item && to->num_threads < MAX_LIST; item = strtok(NULL, ",")) {
    const char *at = item;
    to->threads[to->num_threads++] = take_number(&at, 0);
  }
}

static options parse(int argc, char **argv) {
  static char shapes[] = "bf16:64:8/8:2048,bf16:128:8/8:2048,bf16:256:8/8:2048,f32:128:8/8:2048";
  static const struct option names[] = {{"shapes", 1, NULL, 's'},  {"threads", 1, NULL, 't'}, {"isa", 1, NULL, 'i'},
                                        {"repeats", 1, NULL, 'r'}, {"commit", 1, NULL, 'c'},  {"json", 1, NULL, 'j'},
                                        {NULL, 0, NULL, 0}};
  options o = {.threads = {1, omp_get_max_threads()}, .num_threads = 2, .repeats = 9, .commit = "unknown"};
  parse_shapes(shapes, &o);
  for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
    switch (c) {
    case 's':
      parse_shapes(optarg, &o);
      break;
    case 't':
      parse_threads(optarg, &o);
      break;
    case 'i':
      o.isa = isa_named(optarg);
      break;
    case 'r': {
      const char *at = optarg;
      o.repeats = take_number(&at, 0);
    } break;
    case 'c':
      o.commit = optarg;
      break;
    case 'j':
      o.json = optarg;
      break;
    default:
      exit(2);
    }
  }
  if (o.repeats < 1 || o.repeats > MAX_REPEATS) fail("--repeats: allowed 1 to 101", "another number");
  return o;
}

/* ---- measuring ----------------------------------------------------------------------- */

static void *allocate(size_t bytes) {
  void *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (!memory) fail("memory", "none left");
  return memory;
}

/* Numbers of about standard deviation 1: sums of four uniform ones. */
static void *random_tensor(ea_dtype dtype, size_t count, uint64_t seed) {
  uint8_t *data = allocate(count * ea_dtype_size(dtype));
  for (size_t i = 0; i < count; ++i) {
    double x = 0.0;
    for (int k = 0; k < 4; ++k) {
      seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
      x += (double)(seed >> 40) / 16777216.0 - 0.5;
    }
    ea_store_double(data, dtype, (int64_t)i, x * 1.7320508);
  }
  return data;
}

static int32_t *shuffled(int32_t count) {
  int32_t *order = allocate((size_t)count * sizeof *order + 1);
  uint64_t seed = 6;
  for (int32_t i = 0; i < count; ++i) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const int32_t at = (int32_t)((seed >> 33) % (uint64_t)(i + 1));
    order[i] = order[at];
    order[at] = i;
  }
  return order;
}

static void median_of(const ea_plan *plan, const ea_batch *batch, void *workspace, size_t bytes, int repeats,
                      result *to) {
  double times[MAX_REPEATS];
  for (int i = -2; i < repeats; ++i) { /* two to warm up */
    const double start = now_ms();
    check(ea_run(plan, batch, workspace, bytes, NULL));
    if (i >= 0) times[i] = now_ms() - start;
  }
  qsort(times, (size_t)repeats, sizeof times[0], by_value);
  to->median_ms = times[repeats / 2];
  to->min_ms = times[0];
  to->max_ms = times[repeats - 1];
}

static result measure(const shape *s, int threads, const options *o) {
  const size_t q_count = (size_t)s->tokens * (size_t)s->num_q_heads * (size_t)s->head_dim;
  const size_t k_count = (size_t)s->tokens * (size_t)s->num_kv_heads * (size_t)s->head_dim;
  const int32_t qo_indptr[] = {0, s->tokens};
  const int32_t kv_indptr[] = {0, s->prefix};
  const size_t pool_count = (size_t)(s->prefix + 1) * (size_t)s->num_kv_heads * (size_t)s->head_dim;
  result r = {.shape = *s, .threads = threads};

  ea_context_options device = EA_CONTEXT_OPTIONS_INIT;
  device.num_threads = threads;
  device.isa = o->isa;
  ea_problem problem = EA_PROBLEM_INIT;
  problem.dtype = s->dtype;
  problem.num_q_heads = s->num_q_heads;
  problem.num_kv_heads = s->num_kv_heads;
  problem.head_dim = s->head_dim;
  void *k_pool = random_tensor(s->dtype, pool_count, 4);
  void *v_pool = random_tensor(s->dtype, pool_count, 5);
  int32_t *slots = shuffled(s->prefix);
  ea_batch batch = EA_BATCH_INIT;
  batch.num_seqs = 1;
  batch.num_tokens = s->tokens;
  batch.q.data = random_tensor(s->dtype, q_count, 1);
  batch.k.data = random_tensor(s->dtype, k_count, 2);
  batch.v.data = random_tensor(s->dtype, k_count, 3);
  batch.out.data = allocate(q_count * ea_dtype_size(s->dtype));
  batch.num_pages = s->prefix + 1;
  batch.num_kv_indices = s->prefix;
  batch.k_cache.data = k_pool;
  batch.v_cache.data = v_pool;
  batch.kv_indices = slots;
  batch.qo_indptr = qo_indptr;
  batch.kv_indptr = kv_indptr;

  ea_context *context;
  ea_plan *plan;
  size_t bytes;
  ea_plan_info info = EA_PLAN_INFO_INIT;
  check(ea_context_create(&device, &context));
  check(ea_plan_create(context, &problem, NULL, &plan));
  check(ea_plan_get_info(plan, &info));
  check(ea_workspace_size(plan, &batch, &bytes));
  void *workspace = allocate(bytes ? bytes : 1);
  median_of(plan, &batch, workspace, bytes, o->repeats, &r);
  (void)snprintf(r.kernel, sizeof r.kernel, "%s", info.kernel);
  const double pairs = ((double)s->tokens * (s->tokens + 1) / 2 + (double)s->tokens * s->prefix) * s->num_q_heads;
  r.gflops = 4.0 * s->head_dim * pairs / r.median_ms * 1e-6;

  ea_plan_destroy(plan);
  ea_context_destroy(context);
  free(batch.q.data);
  free(batch.k.data);
  free(batch.v.data);
  free(batch.out.data);
  free(workspace);
  free(k_pool);
  free(v_pool);
  free(slots);
  return r;
}

/* GFLOP/s of all threads together, the best of a few tries; 0 where the instruction is missing. The
 * clock starts when every thread is there, and each repeats the loop, so that waking them counts for nothing. */
static double measure_peak(const peak *p, int threads) {
  enum { TRIES = 8, LOOPS = 16 };
  double best = 0.0;
  if (!ea_cpu_has_isa(p->isa)) return 0.0;
  for (int i = 0; i < TRIES; ++i) {
    double flops = 0.0, start = 0.0;
#pragma omp parallel num_threads(threads) reduction(+ : flops)
    {
#pragma omp barrier
#pragma omp single
      start = now_ms();
      for (int loop = 0; loop < LOOPS; ++loop) flops += p->loop();
    }
    const double gflops = flops / (now_ms() - start) * 1e-6;
    if (gflops > best) best = gflops;
  }
  return best;
}

/* Keeps what is higher than before: other work on the machine only ever lowers a peak. */
static void measure_peaks(const options *o, double (*peak_gflops)[NUM_PEAKS]) {
  for (int t = 0; t < o->num_threads; ++t) {
    for (int p = 0; p < NUM_PEAKS; ++p) {
      const double gflops = measure_peak(&peaks[p], o->threads[t]);
      if (gflops > peak_gflops[t][p]) peak_gflops[t][p] = gflops;
    }
  }
}

/* ---- output -------------------------------------------------------------------------- */

static void write_json(const options *o, const result *results, int count, double (*peak_gflops)[NUM_PEAKS]) {
  char processor[128];
  char date[32];
  const time_t seconds = time(NULL);
  struct tm utc;
  ea_cpu_name(processor, sizeof processor);
  (void)strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
  FILE *f = fopen(o->json, "w");
  if (!f) fail("--json: cannot be written", o->json);
  fprintf(f, "{\n  \"processor\": \"%s\",\n  \"date\": \"%s\",\n  \"commit\": \"%s\",\n  \"version\": \"%s\",\n",
          processor, date, o->commit, ea_version());
  fprintf(f, "  \"repeats\": %d,\n  \"peaks\": [", o->repeats);
  for (int t = 0; t < o->num_threads; ++t) {
    fprintf(f, "%s\n    {\"threads\": %d", t ? "," : "", o->threads[t]);
    for (int p = 0; p < NUM_PEAKS; ++p) {
      if (peak_gflops[t][p] > 0) fprintf(f, ", \"%s_gflops\": %.1f", peaks[p].name, peak_gflops[t][p]);
    }
    fprintf(f, "}");
  }
  fprintf(f, "\n  ],\n  \"results\": [");
  for (int i = 0; i < count; ++i) {
    const result *r = &results[i];
    fprintf(f,
            "%s\n    {\"dtype\": \"%s\", \"head_dim\": %d, \"num_q_heads\": %d, \"num_kv_heads\": %d, \"prefix\": %d, "
            "\"tokens\": %d, "
            "\"threads\": %d, \"kernel\": \"%s\", \"median_ms\": %.4f, \"min_ms\": %.4f, \"max_ms\": %.4f, "
            "\"gflops\": %.1f}",
            i ? "," : "", ea_dtype_name(r->shape.dtype), r->shape.head_dim, r->shape.num_q_heads, r->shape.num_kv_heads,
            r->shape.prefix, r->shape.tokens, r->threads, r->kernel, r->median_ms, r->min_ms, r->max_ms, r->gflops);
  }
  fprintf(f, "\n  ]\n}\n");
  if (fclose(f) != 0) fail("--json: cannot be written", o->json);
}

int main(int argc, char **argv) {
  const options o = parse(argc, argv);
  static result results[MAX_LIST * MAX_LIST];
  static double peak_gflops[MAX_LIST][NUM_PEAKS];
  int count = 0;
  measure_peaks(&o, peak_gflops);
  printf("%-5s %4s %7s %8s %7s %7s  %-14s %9s %9s\n", "type", "dim", "heads", "prefix", "tokens", "threads", "kernel",
         "ms", "GFLOP/s");
  for (int s = 0; s < o.num_shapes; ++s) {
    for (int t = 0; t < o.num_threads; ++t) {
      const result r = measure(&o.shapes[s], o.threads[t], &o);
      printf("%-5s %4d %4d/%-3d %7d %7d %7d  %-14s %9.3f %9.1f\n", ea_dtype_name(r.shape.dtype), r.shape.head_dim,
             r.shape.num_q_heads, r.shape.num_kv_heads, r.shape.prefix, r.shape.tokens, r.threads, r.kernel,
             r.median_ms, r.gflops);
      (void)fflush(stdout);
      results[count++] = r;
    }
  }
  measure_peaks(&o, peak_gflops); /* a shared machine is not equally fast all the time */
  for (int t = 0; t < o.num_threads; ++t) {
    for (int p = 0; p < NUM_PEAKS; ++p) {
      if (peak_gflops[t][p] > 0)
        printf("%d threads: %s peak %.0f GFLOP/s\n", o.threads[t], peaks[p].name, peak_gflops[t][p]);
    }
  }
  if (o.json) write_json(&o, results, count, peak_gflops);
  return 0;
}
