/* Chunked prefill with a growing cache: a prompt of 100 tokens in chunks of 1, 7, 32 and 60,
 * each chunk attending to what the chunks before it left in the cache. The result is bit for
 * bit that of the prompt in one piece.
 *
 *     cc -O2 chunked_prefill.c -o chunked_prefill $(pkg-config --cflags --libs extattn)
 *     ./chunked_prefill
 */
#include <extattn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 100, CHUNKS = 4, Q_HEADS = 8, KV_HEADS = 2, DIM = 128, SLOTS = 128 };

typedef uint16_t bf16;

typedef struct result {
  bf16 out[PROMPT][Q_HEADS][DIM];
  float lse[PROMPT][Q_HEADS];
} result;

static bf16 q[PROMPT][Q_HEADS][DIM], k[PROMPT][KV_HEADS][DIM], v[PROMPT][KV_HEADS][DIM];
static bf16 k_cache[SLOTS][KV_HEADS][DIM], v_cache[SLOTS][KV_HEADS][DIM];
static result whole, chunked;

static void fill(bf16 *x, size_t n) {
  static uint32_t state = 1;
  for (size_t i = 0; i < n; i++) {
    state = state * 1664525u + 1013904223u;
    const float value = (float)(state >> 8) / (float)(1 << 23) - 1.0f; /* uniform in [-1, 1) */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    x[i] = (bf16)(bits >> 16);
  }
}

/* The slot of prompt token t: any allocator will do, so one that scatters. */
static int32_t slot_of(int32_t t) {
  return (t * 37 + 11) % SLOTS;
}

/* Tokens [first, end) of the prompt as new tokens, the ones before them as the prefix. */
static ea_status attend(const ea_plan *plan, int32_t first, int32_t end, result *to) {
  const int32_t qo_indptr[2] = {0, end - first};
  const int32_t kv_indptr[2] = {0, first};
  int32_t kv_indices[PROMPT];
  for (int32_t t = 0; t < first; t++) kv_indices[t] = slot_of(t);

  ea_batch batch = EA_BATCH_INIT;
  batch.num_seqs = 1;
  batch.num_tokens = end - first;
  batch.num_kv_indices = first;
  batch.num_pages = SLOTS; /* page_size is 1 */
  batch.q.data = q[first];
  batch.k.data = k[first];
  batch.v.data = v[first];
  batch.k_cache.data = k_cache;
  batch.v_cache.data = v_cache;
  batch.out.data = to->out[first];
  batch.lse = to->lse[first];
  batch.qo_indptr = qo_indptr;
  batch.kv_indptr = kv_indptr;
  batch.kv_indices = kv_indices;

  size_t bytes;
  ea_status status = ea_workspace_size(plan, &batch, &bytes);
  if (status != EA_OK) return status;
  const size_t rounded = (bytes / 256 + 1) * 256; /* ea_run wants it 256-byte aligned */
  void *workspace = aligned_alloc(256, rounded);
  if (!workspace) return EA_ERR_OUT_OF_MEMORY;
  status = ea_run(plan, &batch, workspace, rounded, NULL);
  free(workspace);
  return status;
}

/* The chunk's keys and values move into the cache, where the next chunk finds them. */
static void keep(int32_t first, int32_t end) {
  for (int32_t t = first; t < end; t++) {
    memcpy(k_cache[slot_of(t)], k[t], sizeof k[t]);
    memcpy(v_cache[slot_of(t)], v[t], sizeof v[t]);
  }
}

static ea_status prefill_in_chunks(const ea_plan *plan) {
  static const int32_t ends[CHUNKS] = {1, 8, 40, PROMPT};
  int32_t first = 0;
  for (int c = 0; c < CHUNKS; c++) {
    const ea_status status = attend(plan, first, ends[c], &chunked);
    if (status != EA_OK) return status;
    printf("chunk %d: %3d new tokens after a prefix of %2d\n", c, (int)(ends[c] - first), (int)first);
    keep(first, ends[c]);
    first = ends[c];
  }
  return EA_OK;
}

int main(void) {
  fill(&q[0][0][0], sizeof q / sizeof(bf16));
  fill(&k[0][0][0], sizeof k / sizeof(bf16));
  fill(&v[0][0][0], sizeof v / sizeof(bf16));

  ea_problem problem = EA_PROBLEM_INIT; /* bf16, causal */
  problem.num_q_heads = Q_HEADS;
  problem.num_kv_heads = KV_HEADS;
  problem.head_dim = DIM;

  ea_context *context = NULL;
  ea_plan *plan = NULL;
  ea_status status = ea_context_create(NULL, &context);
  if (status == EA_OK) status = ea_plan_create(context, &problem, NULL, &plan);
  if (status == EA_OK) status = attend(plan, 0, PROMPT, &whole);
  if (status == EA_OK) status = prefill_in_chunks(plan);
  ea_plan_destroy(plan);
  ea_context_destroy(context);
  if (status != EA_OK) {
    fprintf(stderr, "%s: %s\n", ea_status_name(status), ea_last_error());
    return 1;
  }

  const int same = memcmp(&whole, &chunked, sizeof whole) == 0;
  printf("out and lse of %d tokens %s those of the prompt in one piece\n", PROMPT,
         same ? "equal, bit for bit," : "DIFFER from");
  return same ? 0 : 1;
}
