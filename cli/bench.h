/* What `extattn bench` measures and how. bench_suites.c has the shapes, bench_device.c the
 * buffers, the timing and the ceilings, bench.c the command. */
#ifndef EA_CLI_BENCH_H
#define EA_CLI_BENCH_H

#include "cli.h"

/* ------------------------------------------------------------------------------------
 * Shapes
 * ---------------------------------------------------------------------------------- */

/* One batch: seqs sequences of prefix cached and extend new tokens each, causal. */
typedef struct ea_bench_case {
  ea_dtype dtype;
  int32_t head_dim, head_dim_v;
  int32_t num_q_heads, num_kv_heads;
  int32_t window; /* 0: none */
  int32_t seqs, prefix, extend;
  bool shared_kv; /* v is the first head_dim_v columns of k */
} ea_bench_case;

typedef struct ea_bench_suite {
  const char *name;
  const char *what; /* one line */
  const ea_bench_case *cases;
  int num_cases;
  bool memory_bound; /* judged by bytes a second, not by products */
  bool on_cpu;
} ea_bench_suite;

extern const ea_bench_suite ea_bench_suites[];
extern const int ea_num_bench_suites;

ea_problem ea_bench_problem(const ea_bench_case *c);
/* Multiply and add of both products, over the visible pairs. */
double ea_bench_flop(const ea_bench_case *c);
/* Every key, value, query and output once. */
double ea_bench_bytes(const ea_bench_case *c);
/* "8 x (8192 + 512)", in a buffer of n bytes. */
void ea_bench_batch_text(const ea_bench_case *c, char *text, size_t n);

/* ------------------------------------------------------------------------------------
 * Timing
 * ---------------------------------------------------------------------------------- */

/* A piece of work, the i-th time: enqueued on the default stream of a GPU, done on return on a CPU. */
typedef ea_status (*ea_bench_work)(void *user, int i);

typedef struct ea_bench_method {
  int warm_up, repeats;
} ea_bench_method;

#define EA_BENCH_MAX_REPEATS 1000

typedef struct ea_bench_time {
  double median_ms, min_ms, max_ms;
} ea_bench_time;

/* By CUDA events around each repeat on a GPU, by the host's clock on a CPU. */
ea_status ea_bench_measure(ea_context *context, ea_bench_method method, ea_bench_work work, void *user,
                           ea_bench_time *time);

/* ------------------------------------------------------------------------------------
 * Buffers
 * ---------------------------------------------------------------------------------- */

/* A batch of normal random numbers, in as many copies as it takes for a repeat not to find
 * the last one's in the caches; slots are shuffled. */
typedef struct ea_bench_buffers ea_bench_buffers;

ea_status ea_bench_buffers_create(ea_context *context, const ea_bench_case *c, ea_bench_buffers **buffers);
/* NULL is fine. */
void ea_bench_buffers_destroy(ea_bench_buffers *buffers);
/* The i-th copy's, i taken modulo their number. */
const ea_batch *ea_bench_batch(const ea_bench_buffers *buffers, int i);
/* Runs once into poisoned outputs and hashes every byte of out and lse. */
ea_status ea_bench_fingerprint(ea_bench_buffers *buffers, const ea_plan *plan, void *workspace, size_t workspace_bytes,
                               uint64_t *fingerprint);

/* ------------------------------------------------------------------------------------
 * Ceilings of a GPU
 * ---------------------------------------------------------------------------------- */

typedef struct ea_bench_ceilings {
  double product_tflops;  /* 8192 x 8192 x 8192 in bf16 through cuBLAS; 0: no cuBLAS */
  double copy_gbytes;     /* a second, read and written, of a copy on the device */
  char product_note[128]; /* why there is no product */
} ea_bench_ceilings;

#define EA_BENCH_PRODUCT_DIM 8192

/* cublas: the library's file, or NULL: the usual names. */
ea_status ea_bench_ceilings_measure(ea_context *context, ea_bench_method method, const char *cublas,
                                    ea_bench_ceilings *ceilings);

#endif
