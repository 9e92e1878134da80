/* Buffers, timing and ceilings for `extattn bench`. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "check/random.h"
#include "clock.h"
#include "common/error.h"
#include "common/numeric.h"
#include "cuda/memory.h"

static ea_status is_gpu(ea_context *context, bool *gpu) {
  ea_device_info info = EA_DEVICE_INFO_INIT;
  const ea_status status = ea_context_info(context, &info);
  *gpu = status == EA_OK && info.device == EA_DEVICE_CUDA;
  return status;
}

/* ------------------------------------------------------------------------------------
 * Timing
 * ---------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

ea_bench_time ea_bench_summarise(double *ms, int n) {
  qsort(ms, (size_t)n, sizeof *ms, compare_doubles);
  const double median = n % 2 ? ms[n / 2] : (ms[n / 2 - 1] + ms[n / 2]) / 2;
  return (ea_bench_time){median, ms[0], ms[n - 1]};
}

static ea_status repeat_on_cpu(ea_bench_method method, ea_bench_work work, void *user, double *ms) {
  for (int i = 0; i < method.warm_up + method.repeats; i++) {
    const double start_ms = ea_clock_ms();
    const ea_status status = work(user, i);
    if (status != EA_OK) return status;
    if (i >= method.warm_up) ms[i - method.warm_up] = ea_clock_ms() - start_ms;
  }
  return EA_OK;
}

/* Everything is enqueued before anything is waited for, so that the device never runs dry. */
static ea_status enqueue_repeats(ea_context *context, ea_bench_method method, ea_bench_work work, void *user,
                                 ea_event *events) {
  for (int i = 0; i < method.warm_up + method.repeats; i++) {
    ea_event *pair = i < method.warm_up ? NULL : &events[2 * (i - method.warm_up)];
    ea_status status = pair ? ea_event_record(context, pair[0], NULL) : EA_OK;
    if (status == EA_OK) status = work(user, i);
    if (status == EA_OK && pair) status = ea_event_record(context, pair[1], NULL);
    if (status != EA_OK) return status;
  }
  return EA_OK;
}

static ea_status repeat_on_gpu(ea_context *context, ea_bench_method method, ea_bench_work work, void *user,
                               double *ms) {
  const int num_events = 2 * method.repeats;
  ea_event *events = calloc((size_t)num_events, sizeof(ea_event));
  if (!events) return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for %d events", num_events);
  ea_status status = EA_OK;
  for (int i = 0; i < num_events && status == EA_OK; i++) status = ea_event_create(context, &events[i]);
  nanosleep(&(struct timespec){.tv_nsec = EA_BENCH_PAUSE_MS * 1000000L}, NULL); /* nothing is under way */
  if (status == EA_OK) status = enqueue_repeats(context, method, work, user, events);
  for (int i = 0; i < method.repeats && status == EA_OK; i++) {
    float elapsed_ms = 0;
    status = ea_event_elapsed_ms(context, events[2 * i], events[2 * i + 1], &elapsed_ms);
    ms[i] = (double)elapsed_ms;
  }
  for (int i = 0; i < num_events; i++) ea_event_destroy(context, events[i]);
  free(events);
  return status;
}

ea_status ea_bench_measure(ea_context *context, ea_bench_method method, ea_bench_work work, void *user,
                           ea_bench_time *time) {
  double ms[EA_BENCH_MAX_REPEATS];
  bool gpu;
  ea_status status = is_gpu(context, &gpu);
  if (status != EA_OK) return status;
  status = gpu ? repeat_on_gpu(context, method, work, user, ms) : repeat_on_cpu(method, work, user, ms);
  if (status == EA_OK) *time = ea_bench_summarise(ms, method.repeats);
  return status;
}

/* ------------------------------------------------------------------------------------
 * Random contents
 * ---------------------------------------------------------------------------------- */

/* Not a power of two, and odd: repeats of the noise meet every row at another offset. */
enum { NOISE_ELEMENTS = 4000037 };

/* Normal random numbers on the device, NOISE_ELEMENTS of them. */
static ea_status make_noise(ea_context *context, ea_dtype dtype, void **noise) {
  enum { CHUNK = 256 };
  const size_t element = ea_dtype_size(dtype);
  char *host = malloc((NOISE_ELEMENTS + CHUNK) * element);
  if (!host) return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for random numbers");
  ea_rng rng = ea_rng_of(1);
  double normal[CHUNK];
  for (int64_t i = 0; i < NOISE_ELEMENTS; i += CHUNK) {
    ea_rng_normal(&rng, normal, CHUNK);
    for (int j = 0; j < CHUNK; j++) ea_store_double(host, dtype, i + j, normal[j]);
  }
  ea_status status = ea_mem_alloc(context, NOISE_ELEMENTS * element, noise);
  if (status == EA_OK) status = ea_mem_upload(context, *noise, host, NOISE_ELEMENTS * element, NULL);
  free(host);
  return status;
}

/* start: where in the noise to begin, so that two tensors do not hold the same numbers. */
static ea_status fill(ea_context *context, void *to, size_t bytes, const void *noise, size_t noise_bytes,
                      size_t start) {
  size_t from = start % noise_bytes;
  for (size_t at = 0; at < bytes;) {
    const size_t left = bytes - at, piece = noise_bytes - from;
    const size_t n = left < piece ? left : piece;
    const ea_status status = ea_mem_copy(context, (char *)to + at, (const char *)noise + from, n, NULL);
    if (status != EA_OK) return status;
    at += n;
    from = 0;
  }
  return EA_OK;
}

/* ------------------------------------------------------------------------------------
 * Buffers
 * ---------------------------------------------------------------------------------- */

/* What a round of all copies should take: several times any cache. */
static const size_t rotation_bytes = (size_t)512 << 20;
enum { MAX_COPIES = 8, NUM_TENSORS = 7 };

enum { TENSOR_Q, TENSOR_K, TENSOR_V, TENSOR_K_CACHE, TENSOR_V_CACHE, TENSOR_OUT, TENSOR_LSE };

struct ea_bench_buffers {
  ea_context *context;
  size_t bytes[NUM_TENSORS];
  void *memory[MAX_COPIES][NUM_TENSORS];
  ea_batch batches[MAX_COPIES];
  int copies;
  int32_t *indptr;      /* host: qo then kv, [seqs + 1] each */
  void *indptr_device;  /* the same */
  void *indices_device; /* [seqs * prefix] */
};

static void size_tensors(const ea_bench_case *c, size_t *bytes) {
  const size_t element = ea_dtype_size(c->dtype);
  const size_t tokens = (size_t)ea_bench_new_tokens(c), slots = (size_t)c->seqs * (size_t)c->prefix;
  const size_t q_heads = (size_t)c->num_q_heads, kv_heads = (size_t)c->num_kv_heads;
  const size_t dim = (size_t)c->head_dim, dim_v = (size_t)c->head_dim_v;
  bytes[TENSOR_Q] = tokens * q_heads * dim * element;
  bytes[TENSOR_K] = tokens * kv_heads * dim * element;
  bytes[TENSOR_V] = c->traits & EA_BENCH_SHARED_KV ? 0 : tokens * kv_heads * dim_v * element;
  bytes[TENSOR_K_CACHE] = slots * kv_heads * dim * element;
  bytes[TENSOR_V_CACHE] = c->traits & EA_BENCH_SHARED_KV ? 0 : slots * kv_heads * dim_v * element;
  bytes[TENSOR_OUT] = tokens * q_heads * dim_v * element;
  bytes[TENSOR_LSE] = tokens * q_heads * sizeof(float);
}

static int count_copies(const size_t *bytes) {
  size_t total = 0;
  for (int t = 0; t < NUM_TENSORS; t++) total += bytes[t];
  const size_t wanted = (rotation_bytes + total - 1) / total;
  return wanted < MAX_COPIES ? (int)wanted : MAX_COPIES;
}

/* Every slot of the pool once, in random order (Fisher and Yates). */
static void shuffle_slots(int32_t *slots, int64_t count) {
  ea_rng rng = ea_rng_of(2);
  for (int64_t i = 0; i < count; i++) {
    const uint32_t j = ea_rng_below(&rng, (uint32_t)i + 1);
    slots[i] = slots[j];
    slots[j] = (int32_t)i;
  }
}

static ea_status upload_new(ea_context *context, const void *host, size_t bytes, void **device) {
  const ea_status status = ea_mem_alloc(context, bytes, device);
  return status == EA_OK ? ea_mem_upload(context, *device, host, bytes, NULL) : status;
}

static ea_status make_slots(ea_bench_buffers *b, const ea_bench_case *c) {
  const int64_t count = (int64_t)c->seqs * c->prefix;
  int32_t *slots = malloc(((size_t)count + 1) * sizeof *slots);
  if (!slots) return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for %lld slots", (long long)count);
  if (c->traits & EA_BENCH_ORDERED_SLOTS) {
    for (int64_t i = 0; i < count; i++) slots[i] = (int32_t)i;
  } else {
    shuffle_slots(slots, count);
  }
  const ea_status status = upload_new(b->context, slots, (size_t)count * sizeof *slots, &b->indices_device);
  free(slots);
  return status;
}

static ea_status make_indptr(ea_bench_buffers *b, const ea_bench_case *c) {
  const size_t bytes = 2 * ((size_t)c->seqs + 1) * sizeof *b->indptr;
  int32_t *indptr = malloc(bytes);
  if (!indptr) return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for %d sequences", c->seqs);
  int32_t *qo = indptr, *kv = indptr + c->seqs + 1;
  qo[0] = kv[0] = 0;
  for (int32_t s = 0; s < c->seqs; s++) {
    qo[s + 1] = qo[s] + ea_bench_extend(c, s);
    kv[s + 1] = kv[s] + c->prefix;
  }
  b->indptr = indptr;
  return upload_new(b->context, indptr, bytes, &b->indptr_device);
}

static ea_status fill_copy(ea_bench_buffers *b, int copy, const void *noise, size_t noise_bytes, size_t element) {
  for (int t = 0; t < NUM_TENSORS; t++) {
    ea_status status = ea_mem_alloc(b->context, b->bytes[t], &b->memory[copy][t]);
    if (status != EA_OK) return status;
    if (t == TENSOR_OUT || t == TENSOR_LSE) continue;
    const size_t start = (size_t)(copy * NUM_TENSORS + t) * 70001 * element;
    status = fill(b->context, b->memory[copy][t], b->bytes[t], noise, noise_bytes, start);
    if (status != EA_OK) return status;
  }
  return EA_OK;
}

static ea_batch batch_of(const ea_bench_buffers *b, const ea_bench_case *c, int copy, bool gpu) {
  void *const *memory = b->memory[copy];
  const int32_t *indptr = b->indptr_device;
  ea_batch batch = EA_BATCH_INIT;
  batch.num_seqs = c->seqs;
  batch.num_tokens = ea_bench_new_tokens(c);
  batch.num_kv_indices = batch.num_pages = (int64_t)c->seqs * c->prefix;
  batch.q.data = memory[TENSOR_Q];
  batch.k.data = memory[TENSOR_K];
  batch.v.data = memory[TENSOR_V];
  batch.k_cache.data = memory[TENSOR_K_CACHE];
  batch.v_cache.data = memory[TENSOR_V_CACHE];
  batch.out.data = memory[TENSOR_OUT];
  batch.lse = memory[TENSOR_LSE];
  batch.qo_indptr = indptr;
  batch.kv_indptr = indptr + c->seqs + 1;
  batch.kv_indices = b->indices_device;
  if (gpu) {
    batch.qo_indptr_host = b->indptr;
    batch.kv_indptr_host = b->indptr + c->seqs + 1;
  }
  return batch;
}

ea_status ea_bench_buffers_create(ea_context *context, const ea_bench_case *c, ea_bench_buffers **buffers) {
  bool gpu;
  ea_status status = is_gpu(context, &gpu);
  if (status != EA_OK) return status;
  ea_bench_buffers *b = calloc(1, sizeof *b);
  if (!b) return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for buffers");
  b->context = context;
  size_tensors(c, b->bytes);
  b->copies = count_copies(b->bytes);

  void *noise = NULL;
  const size_t element = ea_dtype_size(c->dtype);
  status = make_noise(context, c->dtype, &noise);
  if (status == EA_OK) status = make_indptr(b, c);
  if (status == EA_OK) status = make_slots(b, c);
  for (int copy = 0; copy < b->copies && status == EA_OK; copy++) {
    status = fill_copy(b, copy, noise, NOISE_ELEMENTS * element, element);
    b->batches[copy] = batch_of(b, c, copy, gpu);
  }
  ea_mem_free(context, noise);
  if (status != EA_OK) {
    ea_bench_buffers_destroy(b);
    return status;
  }
  *buffers = b;
  return EA_OK;
}

void ea_bench_buffers_destroy(ea_bench_buffers *b) {
  if (!b) return;
  for (int copy = 0; copy < b->copies; copy++) {
    for (int t = 0; t < NUM_TENSORS; t++) ea_mem_free(b->context, b->memory[copy][t]);
  }
  ea_mem_free(b->context, b->indptr_device);
  ea_mem_free(b->context, b->indices_device);
  free(b->indptr);
  free(b);
}

const ea_batch *ea_bench_batch(const ea_bench_buffers *buffers, int i) {
  return &buffers->batches[i % buffers->copies];
}

/* FNV-1a over 64-bit words rather than bytes, folded so that high bits reach low ones. bytes
 * is a multiple of 2; what is left of the last word counts as zero-filled. */
static uint64_t hash_bytes(uint64_t hash, const unsigned char *data, size_t bytes) {
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    memcpy(&word, data + at, bytes - at < sizeof word ? bytes - at : sizeof word);
    hash = (hash ^ word) * UINT64_C(0x100000001b3);
    hash ^= hash >> 29;
  }
  return hash;
}

static ea_status hash_tensor(const ea_bench_buffers *b, int tensor, uint64_t *hash) {
  const size_t bytes = b->bytes[tensor];
  unsigned char *host = malloc(bytes);
  if (!host) return ea_fail(EA_ERR_OUT_OF_MEMORY, "memory: none for %zu bytes of output", bytes);
  const ea_status status = ea_mem_download(b->context, host, b->memory[0][tensor], bytes, NULL);
  if (status == EA_OK) *hash = hash_bytes(*hash, host, bytes);
  free(host);
  return status;
}

ea_status ea_bench_fingerprint(ea_bench_buffers *b, const ea_plan *plan, void *workspace, size_t workspace_bytes,
                               uint64_t *fingerprint) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  ea_status status = ea_mem_set(b->context, b->memory[0][TENSOR_OUT], 0xff, b->bytes[TENSOR_OUT], NULL);
  if (status == EA_OK) status = ea_mem_set(b->context, b->memory[0][TENSOR_LSE], 0xff, b->bytes[TENSOR_LSE], NULL);
  if (status == EA_OK) status = ea_run(plan, &b->batches[0], workspace, workspace_bytes, NULL);
  if (status == EA_OK) status = hash_tensor(b, TENSOR_OUT, &hash);
  if (status == EA_OK) status = hash_tensor(b, TENSOR_LSE, &hash);
  *fingerprint = hash;
  return status;
}

/* ------------------------------------------------------------------------------------
 * Ceilings
 * ---------------------------------------------------------------------------------- */

/* The part of cuBLAS that is used, its numbers from cublas_api.h and library_types.h. */
enum { CUBLAS_OP_TRANSPOSED = 1, CUBLAS_OP_AS_IS = 0, CUBLAS_BF16 = 14, CUBLAS_COMPUTE_F32 = 68, CUBLAS_DEFAULT = -1 };

typedef struct cublas {
  void *library;
  void *handle;
  int (*create)(void **handle);
  int (*destroy)(void *handle);
  int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int type_a,
              int ld_a, const void *b, int type_b, int ld_b, const void *beta, void *c, int type_c, int ld_c,
              int compute, int algorithm);
} cublas;

static void *open_cublas(const char *path) {
  if (path) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so",
                                      "/usr/local/cuda/lib64/libcublas.so"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library) return library;
  }
  return NULL;
}

static bool look_up(void *library, const char *symbol, void *function) {
  void *address = dlsym(library, symbol);
  memcpy(function, &address, sizeof address);
  return address != NULL;
}

/* The driver context is to be current. note says what is missing. */
static bool cublas_start(const char *path, cublas *blas, char *note, size_t n) {
  *blas = (cublas){.library = open_cublas(path)};
  if (!blas->library) {
    snprintf(note, n, "%s", dlerror());
    return false;
  }
  if (!look_up(blas->library, "cublasCreate_v2", &blas->create) ||
      !look_up(blas->library, "cublasDestroy_v2", &blas->destroy) ||
      !look_up(blas->library, "cublasGemmEx", &blas->gemm)) {
    snprintf(note, n, "cuBLAS lacks cublasGemmEx");
    return false;
  }
  const int result = blas->create(&blas->handle);
  if (result != 0) snprintf(note, n, "cublasCreate gives status %d", result);
  return result == 0;
}

typedef struct product_work {
  const cublas *blas;
  void *a, *b, *c;
} product_work;

static ea_status run_product(void *user, int i) {
  (void)i;
  const product_work *w = user;
  const int n = EA_BENCH_PRODUCT_DIM;
  const float one = 1.0f, zero = 0.0f;
  const int result =
      w->blas->gemm(w->blas->handle, CUBLAS_OP_TRANSPOSED, CUBLAS_OP_AS_IS, n, n, n, &one, w->a, CUBLAS_BF16, n, w->b,
                    CUBLAS_BF16, n, &zero, w->c, CUBLAS_BF16, n, CUBLAS_COMPUTE_F32, CUBLAS_DEFAULT);
  return result == 0 ? EA_OK : ea_fail(EA_ERR_DEVICE, "cublasGemmEx: found status %d, allowed 0", result);
}

static ea_status measure_product(ea_context *context, ea_bench_method method, const cublas *blas, double *tflops) {
  const size_t bytes = (size_t)EA_BENCH_PRODUCT_DIM * EA_BENCH_PRODUCT_DIM * ea_dtype_size(EA_BF16);
  const size_t noise_bytes = NOISE_ELEMENTS * ea_dtype_size(EA_BF16);
  product_work w = {.blas = blas};
  void *noise = NULL;
  ea_status status = make_noise(context, EA_BF16, &noise);
  if (status == EA_OK) status = ea_mem_alloc(context, bytes, &w.a);
  if (status == EA_OK) status = ea_mem_alloc(context, bytes, &w.b);
  if (status == EA_OK) status = ea_mem_alloc(context, bytes, &w.c);
  if (status == EA_OK) status = fill(context, w.a, bytes, noise, noise_bytes, 0);
  if (status == EA_OK) status = fill(context, w.b, bytes, noise, noise_bytes, noise_bytes / 2);
  ea_bench_time time = {0};
  if (status == EA_OK) status = ea_bench_measure(context, method, run_product, &w, &time);
  if (status == EA_OK) {
    const double n = EA_BENCH_PRODUCT_DIM;
    *tflops = 2 * n * n * n / time.median_ms * 1e-9;
  }
  ea_mem_free(context, w.a);
  ea_mem_free(context, w.b);
  ea_mem_free(context, w.c);
  ea_mem_free(context, noise);
  return status;
}

/* A missing cuBLAS is not a failure: it is optional, and the note says so. */
static ea_status product_ceiling(ea_context *context, ea_bench_method method, const char *path,
                                 ea_bench_ceilings *ceilings) {
  ea_status status = ea_gpu_enter(context);
  if (status != EA_OK) return status;
  cublas blas;
  if (cublas_start(path, &blas, ceilings->product_note, sizeof ceilings->product_note)) {
    status = measure_product(context, method, &blas, &ceilings->product_tflops);
    blas.destroy(blas.handle);
  }
  ea_gpu_leave(context);
  return status; /* the library stays loaded: it has exit handlers of its own */
}

typedef struct copy_work {
  ea_context *context;
  void *from, *to;
  size_t bytes;
} copy_work;

static ea_status run_copy(void *user, int i) {
  (void)i;
  const copy_work *w = user;
  return ea_mem_copy(w->context, w->to, w->from, w->bytes, NULL);
}

static ea_status copy_ceiling(ea_context *context, ea_bench_method method, double *gbytes) {
  copy_work w = {.context = context, .bytes = (size_t)2 << 30};
  ea_bench_time time = {0};
  ea_status status = ea_mem_alloc(context, w.bytes, &w.from);
  if (status == EA_OK) status = ea_mem_alloc(context, w.bytes, &w.to);
  if (status == EA_OK) status = ea_mem_set(context, w.from, 0x5a, w.bytes, NULL);
  if (status == EA_OK) status = ea_bench_measure(context, method, run_copy, &w, &time);
  if (status == EA_OK) *gbytes = 2 * (double)w.bytes / time.median_ms * 1e-6;
  ea_mem_free(context, w.from);
  ea_mem_free(context, w.to);
  return status;
}

ea_status ea_bench_ceilings_measure(ea_context *context, ea_bench_method method, const char *cublas_path,
                                    ea_bench_ceilings *ceilings) {
  *ceilings = (ea_bench_ceilings){0};
  const ea_status status = copy_ceiling(context, method, &ceilings->copy_gbytes);
  return status == EA_OK ? product_ceiling(context, method, cublas_path, ceilings) : status;
}
