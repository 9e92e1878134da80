/* The shapes that `extattn bench` measures; bench/peers.py takes them from here too, through
 * `extattn bench SUITE --list`. */
#include <inttypes.h>

#include "bench.h"

enum { KI = 1024 };

enum { PLAIN = 0, SHARED_KV = EA_BENCH_SHARED_KV, RAGGED = EA_BENCH_RAGGED, ORDERED = EA_BENCH_ORDERED_SLOTS };

/* Steps from one sequence of a ragged batch to the next, in the order of their lengths; shares no factor with 64. */
enum { RAGGED_STEP = 37 };

/* Prefill without a prefix: the measurement that the project began with. */
static const ea_bench_case seed_cases[] = {
    {EA_BF16, 64, 64, 16, 8, 0, 1, 0, 16 * KI, PLAIN},   {EA_BF16, 64, 64, 32, 4, 0, 1, 0, 16 * KI, PLAIN},
    {EA_BF16, 128, 128, 16, 8, 0, 1, 0, 16 * KI, PLAIN}, {EA_BF16, 128, 128, 32, 4, 0, 1, 0, 16 * KI, PLAIN},
    {EA_BF16, 256, 256, 16, 8, 0, 1, 0, 16 * KI, PLAIN}, {EA_BF16, 256, 256, 32, 4, 0, 1, 0, 16 * KI, PLAIN},
    {EA_BF16, 512, 512, 16, 8, 0, 1, 0, 16 * KI, PLAIN}, {EA_BF16, 512, 512, 32, 4, 0, 1, 0, 16 * KI, PLAIN},
};

static const ea_bench_case window_cases[] = {
    {EA_BF16, 256, 256, 16, 8, 1024, 1, 0, 16 * KI, PLAIN},
    {EA_BF16, 256, 256, 16, 8, 1024, 1, 0, 27000, PLAIN},
    {EA_BF16, 256, 256, 16, 8, 1024, 1, 0, 64 * KI, PLAIN},
    {EA_BF16, 64, 64, 64, 8, 128, 1, 0, 16 * KI, PLAIN},
};

static const ea_bench_case mla_cases[] = {
    {EA_BF16, 576, 512, 16, 1, 0, 1, 0, 4 * KI, SHARED_KV},
    {EA_BF16, 576, 512, 16, 1, 0, 1, 16 * KI, 4 * KI, SHARED_KV},
    {EA_BF16, 576, 512, 128, 1, 0, 1, 4 * KI, 4 * KI, SHARED_KV},
    {EA_BF16, 192, 128, 16, 16, 0, 1, 0, 4 * KI, PLAIN},
};

static const ea_bench_case prefix_cases[] = {
    {EA_BF16, 128, 128, 32, 8, 0, 8, 8 * KI, 512, PLAIN},
    {EA_BF16, 128, 128, 32, 8, 0, 16, 2 * KI, 2 * KI, PLAIN},
    {EA_BF16, 128, 128, 32, 8, 0, 1, 64 * KI, 2 * KI, PLAIN},
    {EA_BF16, 256, 256, 16, 8, 0, 8, 8 * KI, 512, PLAIN},
};

static const ea_bench_case verify_cases[] = {
    {EA_BF16, 128, 128, 32, 8, 0, 64, 32 * KI, 4, PLAIN},
    {EA_BF16, 128, 128, 32, 8, 0, 1, 128 * KI, 8, PLAIN},
    {EA_BF16, 64, 64, 64, 8, 0, 16, 8 * KI, 4, PLAIN},
};

/* A server's batch of prompts, and the one prompt that finds the server idle. */
static const ea_bench_case ragged_cases[] = {
    {EA_BF16, 64, 64, 16, 8, 0, 64, 0, 2 * KI, RAGGED},   {EA_BF16, 64, 64, 32, 4, 0, 64, 0, 2 * KI, RAGGED},
    {EA_BF16, 128, 128, 16, 8, 0, 64, 0, 2 * KI, RAGGED}, {EA_BF16, 128, 128, 32, 4, 0, 64, 0, 2 * KI, RAGGED},
    {EA_BF16, 256, 256, 16, 8, 0, 64, 0, 2 * KI, RAGGED}, {EA_BF16, 256, 256, 32, 4, 0, 64, 0, 2 * KI, RAGGED},
    {EA_BF16, 64, 64, 32, 8, 0, 1, 0, 1 * KI, PLAIN},     {EA_BF16, 128, 128, 32, 8, 0, 1, 0, 1 * KI, PLAIN},
    {EA_BF16, 256, 256, 32, 8, 0, 1, 0, 1 * KI, PLAIN},
};

/* Chunked prefill of a long prompt: the chunk is the same, what is cached before it grows. */
static const ea_bench_case chunks_cases[] = {
    {EA_BF16, 512, 512, 32, 4, 0, 1, 0, 8 * KI, PLAIN},
    {EA_BF16, 512, 512, 32, 4, 0, 1, 8 * KI, 8 * KI, ORDERED},
    {EA_BF16, 512, 512, 32, 4, 0, 1, 8 * KI, 8 * KI, PLAIN},
    {EA_BF16, 512, 512, 32, 4, 0, 1, 32 * KI, 8 * KI, ORDERED},
    {EA_BF16, 512, 512, 32, 4, 0, 1, 32 * KI, 8 * KI, PLAIN},
    {EA_BF16, 512, 512, 32, 4, 0, 1, 120 * KI, 8 * KI, ORDERED},
    {EA_BF16, 512, 512, 32, 4, 0, 1, 120 * KI, 8 * KI, PLAIN},
};

static const ea_bench_case cpu_cases[] = {
    {EA_BF16, 64, 64, 8, 8, 0, 1, 0, 2 * KI, PLAIN},
    {EA_BF16, 128, 128, 8, 8, 0, 1, 0, 2 * KI, PLAIN},
    {EA_BF16, 256, 256, 8, 8, 0, 1, 0, 2 * KI, PLAIN},
    {EA_F32, 128, 128, 8, 8, 0, 1, 0, 2 * KI, PLAIN},
};

#define SUITE(name, what, cases, memory_bound, on_cpu)                                                                 \
  { name, what, cases, (int)(sizeof(cases) / sizeof(cases)[0]), memory_bound, on_cpu }

const ea_bench_suite ea_bench_suites[] = {
    SUITE("seed", "prefill of 16384 tokens, head dimensions 64 to 512", seed_cases, false, false),
    SUITE("window", "sliding windows of 1024 and 128", window_cases, false, false),
    SUITE("mla", "latent attention, 576/512, and 192/128", mla_cases, false, false),
    SUITE("prefix", "prefixes in single slots anywhere in the pool", prefix_cases, false, false),
    SUITE("ragged", "64 prompts of 1 to 2048 tokens, and a prompt of 1024", ragged_cases, false, false),
    SUITE("chunks", "a chunk of 8192 after up to 122880 tokens, head dimension 512", chunks_cases, false, false),
    SUITE("verify", "a few new tokens after long prefixes", verify_cases, true, false),
    SUITE("cpu", "this machine's processor, 2048 tokens", cpu_cases, false, true),
};
const int ea_num_bench_suites = sizeof ea_bench_suites / sizeof ea_bench_suites[0];

static int32_t divided(int32_t tokens, int32_t divisor) {
  return tokens > divisor ? tokens / divisor : tokens > 0 ? 1 : 0;
}

ea_bench_case ea_bench_shrunk(const ea_bench_case *c, int32_t divisor) {
  ea_bench_case small = *c;
  small.window = divided(c->window, divisor);
  small.prefix = divided(c->prefix, divisor);
  small.extend = divided(c->extend, divisor);
  return small;
}

int32_t ea_bench_extend(const ea_bench_case *c, int32_t seq) {
  if (!(c->traits & RAGGED) || c->seqs == 1) return c->extend;
  const int64_t rank = (int64_t)seq * RAGGED_STEP % c->seqs; /* by length, shortest first */
  return 1 + (int32_t)((c->extend - 1) * rank / (c->seqs - 1));
}

int64_t ea_bench_new_tokens(const ea_bench_case *c) {
  int64_t tokens = 0;
  for (int32_t s = 0; s < c->seqs; s++) tokens += ea_bench_extend(c, s);
  return tokens;
}

ea_problem ea_bench_problem(const ea_bench_case *c) {
  ea_problem problem = EA_PROBLEM_INIT;
  problem.dtype = c->dtype;
  problem.num_q_heads = c->num_q_heads;
  problem.num_kv_heads = c->num_kv_heads;
  problem.head_dim = c->head_dim;
  problem.head_dim_v = c->head_dim_v;
  problem.shared_kv = (c->traits & SHARED_KV) != 0;
  if (c->window > 0) problem.window_left = c->window;
  return problem;
}

/* Of one sequence and head. */
static double visible_pairs(const ea_bench_case *c, int32_t extend) {
  double pairs = 0;
  for (int32_t i = 0; i < extend; i++) {
    const int64_t seen = (int64_t)c->prefix + i + 1;
    pairs += (double)(c->window > 0 && seen > c->window + 1 ? c->window + 1 : seen);
  }
  return pairs;
}

double ea_bench_flop(const ea_bench_case *c) {
  double pairs = 0;
  for (int32_t s = 0; s < c->seqs; s++) pairs += visible_pairs(c, ea_bench_extend(c, s));
  return 2.0 * (c->head_dim + c->head_dim_v) * pairs * c->num_q_heads;
}

double ea_bench_bytes(const ea_bench_case *c) {
  const double tokens = (double)ea_bench_new_tokens(c), keys = (double)c->seqs * c->prefix + tokens;
  const double kv_row = c->head_dim + (c->traits & SHARED_KV ? 0 : c->head_dim_v), q_row = c->head_dim + c->head_dim_v;
  return (keys * c->num_kv_heads * kv_row + tokens * c->num_q_heads * q_row) * (double)ea_dtype_size(c->dtype);
}

void ea_bench_batch_text(const ea_bench_case *c, char *text, size_t n) {
  char window[24] = "";
  if (c->window > 0) snprintf(window, sizeof window, ", window %d", c->window);
  snprintf(text, n, "%d x (%d + %s%d)%s%s", c->seqs, c->prefix, c->traits & RAGGED ? "1 to " : "", c->extend, window,
           c->traits & ORDERED ? ", ordered" : "");
}
