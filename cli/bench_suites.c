/* The shapes that `extattn bench` measures; bench/peers.py takes them from here too, through
 * `extattn bench SUITE --list`. */
#include <inttypes.h>

#include "bench.h"

enum { KI = 1024 };

/* Prefill without a prefix: the measurement that the project began with. */
static const ea_bench_case seed_cases[] = {
    {EA_BF16, 64, 64, 16, 8, 0, 1, 0, 16 * KI, false},   {EA_BF16, 64, 64, 32, 4, 0, 1, 0, 16 * KI, false},
    {EA_BF16, 128, 128, 16, 8, 0, 1, 0, 16 * KI, false}, {EA_BF16, 128, 128, 32, 4, 0, 1, 0, 16 * KI, false},
    {EA_BF16, 256, 256, 16, 8, 0, 1, 0, 16 * KI, false}, {EA_BF16, 256, 256, 32, 4, 0, 1, 0, 16 * KI, false},
    {EA_BF16, 512, 512, 16, 8, 0, 1, 0, 16 * KI, false}, {EA_BF16, 512, 512, 32, 4, 0, 1, 0, 16 * KI, false},
};

static const ea_bench_case window_cases[] = {
    {EA_BF16, 256, 256, 16, 8, 1024, 1, 0, 16 * KI, false},
    {EA_BF16, 256, 256, 16, 8, 1024, 1, 0, 27000, false},
    {EA_BF16, 256, 256, 16, 8, 1024, 1, 0, 64 * KI, false},
    {EA_BF16, 64, 64, 64, 8, 128, 1, 0, 16 * KI, false},
};

static const ea_bench_case mla_cases[] = {
    {EA_BF16, 576, 512, 16, 1, 0, 1, 0, 4 * KI, true},
    {EA_BF16, 576, 512, 16, 1, 0, 1, 16 * KI, 4 * KI, true},
    {EA_BF16, 576, 512, 128, 1, 0, 1, 4 * KI, 4 * KI, true},
    {EA_BF16, 192, 128, 16, 16, 0, 1, 0, 4 * KI, false},
};

static const ea_bench_case prefix_cases[] = {
    {EA_BF16, 128, 128, 32, 8, 0, 8, 8 * KI, 512, false},
    {EA_BF16, 128, 128, 32, 8, 0, 16, 2 * KI, 2 * KI, false},
    {EA_BF16, 128, 128, 32, 8, 0, 1, 64 * KI, 2 * KI, false},
    {EA_BF16, 256, 256, 16, 8, 0, 8, 8 * KI, 512, false},
};

static const ea_bench_case verify_cases[] = {
    {EA_BF16, 128, 128, 32, 8, 0, 64, 32 * KI, 4, false},
    {EA_BF16, 128, 128, 32, 8, 0, 1, 128 * KI, 8, false},
    {EA_BF16, 64, 64, 64, 8, 0, 16, 8 * KI, 4, false},
};

static const ea_bench_case cpu_cases[] = {
    {EA_BF16, 64, 64, 8, 8, 0, 1, 0, 2 * KI, false},
    {EA_BF16, 128, 128, 8, 8, 0, 1, 0, 2 * KI, false},
    {EA_BF16, 256, 256, 8, 8, 0, 1, 0, 2 * KI, false},
    {EA_F32, 128, 128, 8, 8, 0, 1, 0, 2 * KI, false},
};

#define SUITE(name, what, cases, memory_bound, on_cpu)                                                                 \
  { name, what, cases, (int)(sizeof(cases) / sizeof(cases)[0]), memory_bound, on_cpu }

const ea_bench_suite ea_bench_suites[] = {
    SUITE("seed", "prefill of 16384 tokens, head dimensions 64 to 512", seed_cases, false, false),
    SUITE("window", "sliding windows of 1024 and 128", window_cases, false, false),
    SUITE("mla", "latent attention, 576/512, and 192/128", mla_cases, false, false),
    SUITE("prefix", "prefixes in single slots anywhere in the pool", prefix_cases, false, false),
    SUITE("verify", "a few new tokens after long prefixes", verify_cases, true, false),
    SUITE("cpu", "this machine's processor, 2048 tokens", cpu_cases, false, true),
};
const int ea_num_bench_suites = sizeof ea_bench_suites / sizeof ea_bench_suites[0];

ea_problem ea_bench_problem(const ea_bench_case *c) {
  ea_problem problem = EA_PROBLEM_INIT;
  problem.dtype = c->dtype;
  problem.num_q_heads = c->num_q_heads;
  problem.num_kv_heads = c->num_kv_heads;
  problem.head_dim = c->head_dim;
  problem.head_dim_v = c->head_dim_v;
  problem.shared_kv = c->shared_kv;
  if (c->window > 0) problem.window_left = c->window;
  return problem;
}

double ea_bench_flop(const ea_bench_case *c) {
  double pairs = 0; /* of one sequence and head */
  for (int32_t i = 0; i < c->extend; i++) {
    const int64_t seen = (int64_t)c->prefix + i + 1;
    pairs += (double)(c->window > 0 && seen > c->window + 1 ? c->window + 1 : seen);
  }
  return 2.0 * (c->head_dim + c->head_dim_v) * pairs * c->num_q_heads * c->seqs;
}

double ea_bench_bytes(const ea_bench_case *c) {
  const double keys = (double)c->prefix + c->extend;
  const double kv_row = c->head_dim + (c->shared_kv ? 0 : c->head_dim_v), q_row = c->head_dim + c->head_dim_v;
  const double elements = keys * c->num_kv_heads * kv_row + (double)c->extend * c->num_q_heads * q_row;
  return elements * c->seqs * (double)ea_dtype_size(c->dtype);
}

void ea_bench_batch_text(const ea_bench_case *c, char *text, size_t n) {
  const int used = snprintf(text, n, "%d x (%d + %d)", c->seqs, c->prefix, c->extend);
  if (c->window > 0 && used > 0 && (size_t)used < n) snprintf(text + used, n - (size_t)used, ", window %d", c->window);
}
