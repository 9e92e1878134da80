/* One batch of extend attention on the CPU, with an installed extattn: two sequences whose
 * prefixes lie in a paged cache, checked against a naive loop.
 *
 *     cc -O2 minimal.c -o minimal $(pkg-config --cflags --libs extattn) -lm
 *     ./minimal
 */
#include <extattn.h>

#include <math.h>
#include <stdio.h>

enum {
  SEQS = 2,
  TOKENS = 5, /* new tokens: 3 of sequence 0, 2 of sequence 1 */
  Q_HEADS = 4,
  KV_HEADS = 2,
  DIM = 64,
  PAGE_SIZE = 4,
  PAGES = 8,
  PREFIX_TOKENS = 16 /* cached tokens: 6 of sequence 0, 10 of sequence 1 */
};

static float q[TOKENS][Q_HEADS][DIM], k[TOKENS][KV_HEADS][DIM], v[TOKENS][KV_HEADS][DIM];
static float k_cache[PAGES * PAGE_SIZE][KV_HEADS][DIM], v_cache[PAGES * PAGE_SIZE][KV_HEADS][DIM];
static float out[TOKENS][Q_HEADS][DIM], lse[TOKENS][Q_HEADS];

static const int32_t qo_indptr[SEQS + 1] = {0, 3, 5};
static const int32_t kv_indptr[SEQS + 1] = {0, 6, PREFIX_TOKENS};
/* Sequence 0 owns pages 5 and 2, sequence 1 pages 0, 7 and 3, each filled from its first row. */
static const int32_t kv_indices[PREFIX_TOKENS] = {20, 21, 22, 23, 8, 9, 0, 1, 2, 3, 28, 29, 30, 31, 12, 13};

static void fill(float *x, size_t n) {
  static uint32_t state = 1;
  for (size_t i = 0; i < n; i++) {
    state = state * 1664525u + 1013904223u;
    x[i] = (float)(state >> 8) / (float)(1 << 23) - 1.0f; /* uniform in [-1, 1) */
  }
}

/* The definition, word for word, for query token t of sequence b: new token t - qo_indptr[b]. */
static void naive_row(int b, int t, int head, double *row) {
  const int prefix = kv_indptr[b + 1] - kv_indptr[b];
  const int visible = prefix + t - qo_indptr[b] + 1; /* causal: the prefix, and new tokens up to itself */
  const int kv_head = head / (Q_HEADS / KV_HEADS);
  double denominator = 0.0;
  for (int d = 0; d < DIM; d++) row[d] = 0.0;
  for (int j = 0; j < visible; j++) {
    const int cached = j < prefix;
    const int at = cached ? kv_indices[kv_indptr[b] + j] : qo_indptr[b] + j - prefix;
    const float *key = cached ? k_cache[at][kv_head] : k[at][kv_head];
    const float *value = cached ? v_cache[at][kv_head] : v[at][kv_head];
    double score = 0.0;
    for (int d = 0; d < DIM; d++) score += (double)q[t][head][d] * (double)key[d];
    const double weight = exp(score / sqrt(DIM)); /* small scores: no maximum to subtract */
    denominator += weight;
    for (int d = 0; d < DIM; d++) row[d] += weight * (double)value[d];
  }
  for (int d = 0; d < DIM; d++) row[d] /= denominator;
}

static double largest_difference(void) {
  double largest = 0.0;
  for (int b = 0; b < SEQS; b++) {
    for (int t = qo_indptr[b]; t < qo_indptr[b + 1]; t++) {
      for (int h = 0; h < Q_HEADS; h++) {
        double row[DIM];
        naive_row(b, t, h, row);
        for (int d = 0; d < DIM; d++) largest = fmax(largest, fabs(row[d] - (double)out[t][h][d]));
      }
    }
  }
  return largest;
}

static ea_status attend(const ea_plan *plan) {
  ea_batch batch = EA_BATCH_INIT;
  batch.num_seqs = SEQS;
  batch.num_tokens = TOKENS;
  batch.num_kv_indices = PREFIX_TOKENS;
  batch.num_pages = PAGES;
  batch.q.data = q; /* strides left at 0: packed */
  batch.k.data = k;
  batch.v.data = v;
  batch.k_cache.data = k_cache;
  batch.v_cache.data = v_cache;
  batch.out.data = out;
  batch.lse = &lse[0][0];
  batch.qo_indptr = qo_indptr;
  batch.kv_indptr = kv_indptr;
  batch.kv_indices = kv_indices;

  return ea_run(plan, &batch, NULL, 0, NULL); /* on a CPU it takes its workspace itself */
}

int main(void) {
  fill(&q[0][0][0], sizeof q / sizeof(float));
  fill(&k[0][0][0], sizeof k / sizeof(float));
  fill(&v[0][0][0], sizeof v / sizeof(float));
  fill(&k_cache[0][0][0], sizeof k_cache / sizeof(float));
  fill(&v_cache[0][0][0], sizeof v_cache / sizeof(float));

  ea_problem problem = EA_PROBLEM_INIT; /* causal, softmax_scale = 1/sqrt(DIM) */
  problem.dtype = EA_F32;
  problem.num_q_heads = Q_HEADS;
  problem.num_kv_heads = KV_HEADS;
  problem.head_dim = DIM;
  problem.page_size = PAGE_SIZE;

  ea_context *context = NULL;
  ea_plan *plan = NULL;
  ea_status status = ea_context_create(NULL, &context);
  if (status == EA_OK) status = ea_plan_create(context, &problem, NULL, &plan);
  if (status == EA_OK) status = attend(plan);
  ea_plan_destroy(plan);
  ea_context_destroy(context);
  if (status != EA_OK) {
    fprintf(stderr, "%s: %s\n", ea_status_name(status), ea_last_error());
    return 1;
  }

  for (int t = 0; t < TOKENS; t++) {
    printf("token %d, head 0: out = %+.5f %+.5f %+.5f ..., lse = %.5f\n", t, (double)out[t][0][0], (double)out[t][0][1],
           (double)out[t][0][2], (double)lse[t][0]);
  }
  const double difference = largest_difference();
  printf("extattn %s; largest difference from the naive loop: %.1e\n", ea_version(), difference);
  return difference < 1e-5 ? 0 : 1;
}
